"""The heartbeat that training code may send: `from ftrun.hooks import beat`. (pure)"""
