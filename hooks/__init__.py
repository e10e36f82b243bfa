"""What runs on the nodes: standard library only, Python 3.9. (pure)

Training code imports `beat` and `stage` from here: `from ftrun.hooks import beat, stage`. Each is loaded when it is first asked for.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # type checkers do not see by themselves that the module `beat` can be called
    from ftrun.hooks.progress.beat import Beat
    from ftrun.hooks.staging.api import stage as stage

    beat: Beat

PUBLIC = {"beat": ("ftrun.hooks.progress.beat", ""), "stage": ("ftrun.hooks.staging.api", "stage")}
# name -> its module, and what of it; "" = the module itself


def __getattr__(name: str) -> object:
    """A public name. Raises AttributeError."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, member = PUBLIC[name]
    found = importlib.import_module(module)
    return getattr(found, member) if member else found
