"""Scenarios from TOML files: those shipped with ftrun and the user's own. (I/O)"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftrun.supervisor.model.errors import SettingError, nearest_word
from ftrun.supervisor.simulator.scenario import Cause, Scenario, scenario_from

FOLDER = Path(__file__).resolve().parent
SIZE_BYTES_MAX = 1_000_000


def names() -> list[str]:
    """The names of the shipped scenarios."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_preset(name: str, own: Mapping[str, Any]) -> Scenario:
    """A shipped scenario with the quantities of `own` on top. Raises SettingError."""
    if name not in names():
        near = nearest_word(name, names())
        hint = f"did you mean {near}?" if near else f"there are {', '.join(names())}"
        raise SettingError(f"preset: no scenario is called {name!r}; {hint}")
    return _built(_table(FOLDER / f"{name}.toml"), own)


def read_file(path: str, own: Mapping[str, Any]) -> Scenario:
    """A scenario from the user's file. Raises SettingError with the file's name."""
    try:
        return _built(_table(Path(path)), own)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None


def _built(table: Mapping[str, Any], own: Mapping[str, Any]) -> Scenario:
    return scenario_from({**table, **own}, causes=_causes(table.get("causes-of")))


def _causes(name: Any) -> tuple[Cause, ...]:
    if name is None:
        return ()
    if name not in names():
        raise SettingError(f"causes-of: no scenario is called {name!r}; there are {', '.join(names())}")
    table = _table(FOLDER / f"{name}.toml")
    return scenario_from(table).causes if "causes-of" not in table else ()


def _table(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > SIZE_BYTES_MAX:
            raise SettingError("too large for a scenario")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"is no TOML: {error}") from None
