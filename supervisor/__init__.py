"""Decides: diagnosis, policy, the crash-safe loop, the command line. (pure)"""
