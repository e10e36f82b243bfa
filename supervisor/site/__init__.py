"""The site's service: what root or SlurmUser does for all users of a cluster. (I/O)

Start with `drain_service` (requests of users). The rules are `nodes.drain_rules`, the spool is `nodes.spool`.
May import the rooms from publish downwards.
"""
