"""The signatures of known faults, as TOML files; `ftrun.supervisor.signatures.catalog` reads and checks them. (pure)"""
