"""What runs on the nodes: standard library only, Python 3.9. (pure)"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # that this module can be called is nothing that type checkers see by themselves
    from ftrun.hooks.beat import Beat
    from ftrun.hooks.stage import Stage

    beat: Beat
    stage: Stage
