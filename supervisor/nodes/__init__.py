"""Node health over time: history, quarantine, rechecks, drains for users who may not drain. (pure)

Start with `history` (what is known of each node), `recheck_loop` (drained nodes) and `drain_rules`
(requests of users). May import submission and the rooms below it.
"""
