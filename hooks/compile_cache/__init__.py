"""Shared compile caches: what one node of a run compiled is on the others before their start. (pure)

Entry points: `cmd` (`ftrun-hook cache fill|merge`, and `mend` between two starts), `periodic_merge` (beside
the script). May import of hooks the runtime only; `packs` knows no other module of this room, `node` knows
`packs`, `exchange` both.
"""
