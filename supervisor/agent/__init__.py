"""The agent: recovery inside the allocation, in the batch step of the job. (pure)

Start with `main` and `start_loop` (start, watch, recover, start again). Must fail open: a defect here never costs the training. Imports nodes and below,
never the controller.
"""
