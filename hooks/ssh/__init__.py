"""Commands on many nodes over SSH, with the user's own configuration. (pure)

Start with `pool`. Of hooks it imports runtime, bundle and checks.
"""
