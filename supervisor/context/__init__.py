"""What every feature of the loop receives: run and journal, services, snapshot of the cluster. (pure)

Start with `run_context`. The room imports `nodes` and the rooms below it; it knows no feature of the
controller.
"""
