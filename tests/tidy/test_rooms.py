"""The rooms: imports go one way, without a cycle of modules or of rooms, and no room is a hall. (I/O)"""

from __future__ import annotations

import ast
import graphlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("supervisor", "hooks", "slurm")
FILES_PER_ROOM_MAX = 30
FILES_AT_THE_TOP_MAX = 12
ENTRIES = {"__init__", "__main__"}


@cache
def _modules() -> dict[str, Path]:
    paths = sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py"))
    return {_name(path): path for path in paths}


def _name(path: Path) -> str:
    return ".".join(("ftrun", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@cache
def _imports() -> dict[str, set[str]]:
    """Module -> the modules that it imports; late imports and imports for types count as well."""
    known = _modules()
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [one if one in known else str(node.module) for one in whole]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                continue
            found[name] |= {target for target in targets if target in known and target != name}
    return found


def _cycle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Whoever reads one file can read what it stands on first."""
    assert [] == _cycle(_imports())


def test_no_rooms_import_each_other_in_a_circle() -> None:
    """A room is below another one or above it."""
    room = {name: path.parent for name, path in _modules().items()}
    rooms: dict[str, set[str]] = defaultdict(set)
    for name, targets in _imports().items():
        rooms[str(room[name])] |= {str(room[one]) for one in targets if room[one] != room[name]}

    assert [] == _cycle(rooms)


def test_no_room_is_a_hall() -> None:
    """At most so many files that a person finds the one that is meant."""
    files = Counter(path.parent for path in _modules().values() if path.stem not in ENTRIES)

    assert [] == [str(room) for room, count in files.items() if count > FILES_PER_ROOM_MAX]
    assert [] == [top for top in TOPS if files[ROOT / top] > FILES_AT_THE_TOP_MAX]


def test_each_room_says_what_it_is_for() -> None:
    """Purpose in the first line; then where to start, and what it may import."""
    for path in (path for path in _modules().values() if path.stem == "__init__"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert len(text.partition("\n")[0]) > 20, path
