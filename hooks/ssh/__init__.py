"""Commands on many nodes over SSH, with the user's own configuration. (pure)

Start with `pool`. Imports hooks.runtime and hooks.bundle.
"""
