"""From facts to one cause: which fault, which nodes, how sure. (pure)

Start with `root_cause`. `inputs` gathers the facts; everything that judges them is pure. Imports telemetry and below.
"""
