"""What a live job tells of itself: its logs, steps, losses, heartbeats, stacks; hangs and stragglers found in them. (pure)

Start with `log_watcher` (one job's logs), `hang_rules` and `straggler`. Imports signatures and below.
"""
