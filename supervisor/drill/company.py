"""Several drills side by side. (I/O)"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from ftrun.supervisor.drill.stage import run_scenario
from ftrun.supervisor.drill.terms import Event, Result

__all__ = ["run_all"]


def run_all(
    names: Sequence[str],
    *,
    lanes: int,
    here: bool = False,
    keep: bool = False,
    parent: Path | None = None,
    on_event: Callable[[Event], None],
    on_end: Callable[[Result], None],
) -> list[Result]:
    """Hold these drills, at most `lanes` at a time; results come in the order of the names.

    Raises what `run_scenario` raises. However it is left, by KeyboardInterrupt too, every drill has cleared away first.
    """
    stop = threading.Event()

    def hold(name: str) -> Result:
        result = run_scenario(name, here=here, keep=keep, parent=parent, on_event=on_event, stop=stop)
        on_end(result)
        return result

    with ThreadPoolExecutor(max_workers=lanes, thread_name_prefix="drill") as pool:
        futures = [pool.submit(partial(hold, name)) for name in names]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            return [future.result() for future in futures]
        finally:
            # Those not begun are dropped, those under way end early; leaving the pool waits for them.
            for future in futures:
                future.cancel()
            stop.set()
