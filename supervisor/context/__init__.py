"""What every handler of the loop is given: one run and its journal, services, the cluster as it was last seen. (pure)

Start with `run_context`. Imports nodes and below; knows no feature of the controller.
"""
