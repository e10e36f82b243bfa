"""Node health over time: history, quarantine, rechecks, requests to the service of the site. (pure)

Start with `history` (what is known of each node), `recheck_loop` (drained nodes) and `drain_rules`
(requests of users). May import submission and the rooms below it.
"""
