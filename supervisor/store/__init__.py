"""Everything on disk: a run's folder, its journal, the lease, an attempt's folder. (pure)

Start with `run_dir` (create and find runs), `journal` (append and read records) and `lease` (who leads). Imports config, model and hooks.
"""
