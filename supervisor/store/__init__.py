"""Everything on disk: the folder of a run, its journal, the lease, the folder of an attempt. (pure)

Start with `run_dir` (create and find runs), `journal` (append and read records) and `lease` (who leads).
docs/how-it-works.md lists all files with writer, reader and format. Imports model, config and hooks.
"""
