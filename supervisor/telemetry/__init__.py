"""Signs from a live job: logs, progress, heartbeats and stacks; the hangs and stragglers in them. (pure)

Start with `log_watcher` (the logs of one launch), `hang_watch` with `hang_rules`, and `straggler`. May import
signatures and the rooms below it.
"""
