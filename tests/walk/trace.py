"""The trace of a walk: which functions of ftrun are entered, in which order, and who calls whom. (I/O)

Nothing here knows a module of ftrun by name, so the numbers stay comparable when files move.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["FOLDERS", "ROOT", "Function", "Trace", "changes", "files", "main_path", "with_details"]

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("supervisor", "hooks", "slurm")
NEW_LOCALS = 0x2  # the code of a function has this flag, that of a module or class does not

Function = tuple[str, str, int]  # file, qualified name, line
_known: dict[CodeType, Function | None] = {}


def _function(code: CodeType) -> Function | None:
    """The function of ftrun that this is; None for other code, bodies of modules and classes, and what the interpreter makes of an expression."""
    if code not in _known:
        path = Path(code.co_filename)
        place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        ours = place.parts[0] in FOLDERS and code.co_flags & NEW_LOCALS and not code.co_name.startswith("<")
        _known[code] = (str(place), code.co_qualname, code.co_firstlineno) if ours else None
    return _known[code]


@dataclass
class Trace:
    """Functions in the order of their first entry, with those that called them.

    Calls while a module is imported are left out: they come once a process.
    """

    order: dict[Function, set[Function]] = field(default_factory=dict)
    entries: int = 0
    _stack: list[tuple[Function | None, bool]] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Trace this thread, to the end of the block or to `stop`."""
        self._stack.clear()
        sys.setprofile(self._event)
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """The walk has arrived: what follows is not traced."""
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event == "return" and self._stack:
            self._stack.pop()
        elif event == "call":
            importing = self._stack[-1][1] if self._stack else False
            function = None if importing else _function(frame.f_code)
            if function is not None:
                self.entries += 1
                callers = self.order.setdefault(function, set())
                caller = next((one for one, _ in reversed(self._stack) if one is not None), None)
                if caller is not None:
                    callers.add(caller)
            self._stack.append((function, importing or frame.f_code.co_name == "<module>"))


def with_details(trace: Trace, plumbing: Collection[Function] = ()) -> list[Function]:
    """The functions of the walk, in the order of their first entry: all but `plumbing`, what runs anyway; yet with those of it that call,
    directly or not, what does not run anyway.
    """
    walk = _closed({one for one in trace.order if one not in plumbing}, trace.order)
    return [one for one in trace.order if one in walk]


def main_path(trace: Trace, plumbing: Collection[Function] = ()) -> list[Function]:
    """The functions through which the walk leads from file to file: those that call, directly or not, a function of the walk in another file.

    The others are details: who reads along looks them up where they are called, and comes back.
    """
    walk = with_details(trace, plumbing)
    callees: dict[Function, set[Function]] = {}
    for one in walk:
        for caller in trace.order[one]:
            callees.setdefault(caller, set()).add(one)
    return [one for one in walk if any(other[0] != one[0] for other in _closed({one}, callees))]


def _closed(functions: set[Function], further: dict[Function, set[Function]]) -> set[Function]:
    """These functions and all that is reached from them."""
    found, todo = set(functions), list(functions)
    while todo:
        new = further.get(todo.pop(), set()) - found
        found |= new
        todo.extend(new)
    return found


def files(path: list[Function]) -> list[str]:
    """The files of a path, in order."""
    return list(dict.fromkeys(file for file, _, _ in path))


def changes(path: list[Function]) -> int:
    """How often one function of the path lies in another file than the one before it."""
    return sum(one[0] != other[0] for one, other in itertools.pairwise(path))
