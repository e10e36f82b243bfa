"""What runs on the nodes: standard library only, Python 3.9. (pure)

Training code imports `beat` and `stage` from here. A name of PUBLIC is loaded when it is first asked for.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # that this module can be called is nothing that type checkers see by themselves
    from ftrun.hooks.beat import Beat
    from ftrun.hooks.staging.api import stage as stage

    beat: Beat

PUBLIC = {"stage": "ftrun.hooks.staging.api"}  # name -> the module that has it


def __getattr__(name: str) -> object:
    """A public name. Raises AttributeError."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(PUBLIC[name]), name)
