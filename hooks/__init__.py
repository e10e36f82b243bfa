"""What runs on the nodes: standard library only, Python 3.9. (pure)

Training code imports `beat` and `stage` from here: `from ftrun.hooks import beat, stage`. Each is loaded on
first use. `main` is the command `ftrun-hook`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # type checkers cannot see that the module `beat` is callable
    from ftrun.hooks.progress.beat import Beat
    from ftrun.hooks.staging.api import stage as stage

    beat: Beat

PUBLIC = {"beat": ("ftrun.hooks.progress.beat", ""), "stage": ("ftrun.hooks.staging.api", "stage")}
# name -> its module, and the attribute; "" = the module itself


def __getattr__(name: str) -> object:
    """Load a public name on first use. Raises AttributeError."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, member = PUBLIC[name]
    found = importlib.import_module(module)
    return getattr(found, member) if member else found
