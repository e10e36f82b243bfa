"""What every feature of the loop receives: one run and its journal, the services, the snapshot of the
cluster. (pure)

Start with `run_context`. The room imports `nodes` and the rooms below it; it knows no feature of the
controller.
"""
