"""From a diagnosis to one decision: retry, where, at which size, from which checkpoint, or stop. (pure)

Start with `decide` (the rules in their order) and `ladder` (recovery inside the allocation). The room imports
diagnosis and below.
"""
