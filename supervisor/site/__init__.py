"""The site's service: what root or SlurmUser does for all users of a cluster. (I/O)

Start with `service` (one round of it): `drain_service` answers requests of users, `standing` is the fold of what
their runs report of nodes, `database` keeps that, `publication` shows it to everybody. The rules for requests are
`nodes.drain_rules`, the spool is `nodes.spool`, a supervisor leaves its reports by `nodes.site_reports`.
May import the rooms from publish downwards.
"""
