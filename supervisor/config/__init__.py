"""Settings: the table, where they come from, who may write them, and the values that are made of them. (pure)

Start with `table` (every setting, one row each) and `sources` (defaults, site, user, project, environment, command line). Imports model and
hooks.runtime.
"""
