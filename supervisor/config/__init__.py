"""Settings: the table, their sources, who may write them, and the values that are made of them. (pure)

Start with `table` (every setting, one row each), `settings` (parse and refuse values) and `sources`
(defaults, site, user, project, script, environment, command line). Imports model and hooks.runtime.
"""
