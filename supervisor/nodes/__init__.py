"""What is known of nodes: history, quarantine, rechecks, and drains on behalf of users who may not drain. (pure)

Start with `history`, `recheck_loop` and `drain_rules`. Imports submission and below.
"""
