"""The zipapp that nodes run: what is packed, how it starts, its compiled cache, the shell around it. (pure)

Imports hooks.runtime.
"""
