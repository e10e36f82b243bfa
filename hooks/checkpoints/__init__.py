"""The room of checkpoints: found, inspected without being loaded, and chosen; standard library only, it runs on nodes. (pure)

From below: `model` (what is said of one, what a layout is), `names`, `listing` (files as they lie), `manifest`; the readers of formats
(`*_reader`, `zstd`); the layouts of frameworks (`layout_*`) and their table (`layouts`); `file_check` (one file), `inspection` (one checkpoint),
`deep_results` (what was read to its end before); `find`, `diverged*`, `selection` (which one a start loads), `resume_view` and `shard_repair` (what it
loads in its place); the commands `cmd_pick` and `cmd_verify`.
"""
