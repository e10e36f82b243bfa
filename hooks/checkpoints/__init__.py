"""Finds checkpoints, inspects them without loading them, and chooses one; standard library only. (pure)

From the lowest: `model` (states, levels, layouts), `names`, `listing` (reading files), `manifest`; the
readers of formats (`*_reader`, `zstd`); the layouts of frameworks (`layout_*`) and their table (`layouts`);
`file_check` (one file), `inspection` (one checkpoint), `deep_results` (earlier complete reads); `find`,
`diverged*`, `selection` (which one a start loads), `resume_view` and `shard_repair` (what it loads instead);
the commands `cmd_pick` and `cmd_verify`.
"""
