"""The signatures of known faults, as TOML files; `ftrun.supervisor.signatures` reads and checks them. (pure)"""
