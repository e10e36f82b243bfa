"""The catalogue of fault signatures, and one pass over a log for all of them. (pure)

Start with `catalog` (TOML to signatures) and `scanner` (lines to hits). A new signature is a block of TOML in supervisor/catalog. Imports store and below.
"""
