"""The small training job of the drills. It runs on nodes: standard library only, Python 3.9. (pure)

Start at `trainer.Trainer.train`. It imports `hooks.progress` and nothing else of ftrun; `drill` copies it
into the folder of each drill.
"""
