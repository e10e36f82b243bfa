"""The catalog of fault signatures, and one pass over a log for all of them. (pure)

Start with `catalog` (TOML files to signatures) and `scanner` (bytes of a log to hits). A new signature is a
block of TOML in supervisor/catalog. May import store and the rooms below it.
"""
