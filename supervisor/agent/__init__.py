"""The agent: recovery inside the allocation, in the batch step of the job. (pure)

Start with `main` (the process and its watchdog) and `start_loop` (watch a start, diagnose it, answer
batch.sh). The agent fails open: a defect here must never cost the training. It imports `nodes` and the rooms
below, never the controller.
"""
