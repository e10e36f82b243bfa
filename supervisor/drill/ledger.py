"""What the trainer wrote down, and the checkpoints it left. (I/O)"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftrun.supervisor.drill import saved, staged
from ftrun.supervisor.drill.terms import Ledger

__all__ = ["checkpoints", "published", "read"]


def read(folder: Path) -> Ledger:
    """The ledger of one training; empty before its first start."""
    return Ledger(
        steps=_lines(folder / "steps.log"),
        saves=_lines(folder / "saves.log"),
        saving=_lines(folder / "saving.log"),
        hurts=_lines(folder / "hurt.log"),
        ranks=_lines(folder / "ranks.log"),
        refused=_lines(folder / "refused.log"),
        ends=_lines(folder / "ends.log"),
        finals=_lines(folder / "final.log"),
    )


def checkpoints(folder: Path) -> dict[str, Mapping[str, Any] | str]:
    """Every checkpoint in its place: what it holds, or why it cannot be read."""
    found: dict[str, Mapping[str, Any] | str] = {}
    for path in sorted((folder / "checkpoints").glob("ckpt-*.pt")):
        try:
            found[str(path)] = saved.read_checkpoint(str(path))
        except (RuntimeError, OSError) as error:
            found[str(path)] = str(error)
    return found


def published(folder: Path) -> dict[str, Mapping[str, Any] | str]:
    """Every staged checkpoint that says it is whole: what it holds, or why it cannot be read."""
    found: dict[str, Mapping[str, Any] | str] = {}
    for marker in sorted(folder.glob("*/.ftrun-complete")):
        path = str(marker.parent)
        try:
            found[path] = staged.read_set(path)
        except (RuntimeError, OSError) as error:
            found[path] = str(error)
    return found


def _lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    whole = text[: text.rfind("\n") + 1]  # the last line may be half there
    return tuple(json.loads(line) for line in whole.splitlines())
