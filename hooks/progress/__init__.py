"""The heartbeat API of training code: `from ftrun.hooks import beat`. (pure)"""
