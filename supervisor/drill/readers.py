"""Readers of a drill's facts: the trainer's trace, checkpoints on disk, memory of the nodes. (I/O)

Every node of the sandbox has its own /dev/shm, visible at /proc/<pid of its slurmd>/root/dev/shm. A node that
lost power has no slurmd, and nothing in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ftrun.hooks.checkpoints import names
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill.observation import Trace
from ftrun.supervisor.drill_trainer import checkpoint_files

MARKER = ".ftrun-complete"
Contents = dict[str, Mapping[str, Any] | str]


def read_trace(folder: Path) -> Trace:
    """The trace of one training; empty before its first start."""
    return Trace(
        steps=_lines(folder / "steps.log"),
        saves=_lines(folder / "saves.log"),
        saving=_lines(folder / "saving.log"),
        faults=_lines(folder / "hurt.log"),
        ranks=_lines(folder / "ranks.log"),
        refused=_lines(folder / "refused.log"),
        ends=_lines(folder / "ends.log"),
        finals=_lines(folder / "final.log"),
    )


def _lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete
    return tuple(json.loads(line) for line in whole.splitlines())


def read_checkpoints(folder: Path) -> Contents:
    """Path -> content of every checkpoint, or why it cannot be read."""
    return _contents((folder / "checkpoints").glob("ckpt-*.pt"), checkpoint_files.read_checkpoint)


def read_published(folder: Path) -> Contents:
    """Path -> content of every staged checkpoint with a marker, or why it cannot be read."""
    return _contents((marker.parent for marker in folder.glob(f"*/{MARKER}")), checkpoint_files.read_set)


def _contents(paths: Iterable[Path], read: Callable[[str], dict[str, Any]]) -> Contents:
    found: Contents = {}
    for path in map(str, sorted(paths)):
        try:
            found[path] = read(path)
        except (RuntimeError, OSError) as error:
            found[path] = str(error)
    return found


class StagingView:
    """Staged checkpoints, in the memory of a sandbox's nodes and in the folder for published ones."""

    def __init__(self, box: Sandbox | None, published: Path) -> None:
        self._box, self._published = box, published
        self._slurmds: dict[str, int] = {}

    def on_disk(self) -> tuple[int, ...]:
        """The steps of the published checkpoints."""
        return _steps(path.parent for path in self._published.glob(f"*/{MARKER}"))

    def sealed(self) -> dict[str, tuple[int, ...]]:
        """Node -> steps whose part is sealed in its memory."""
        return {node: _steps(base.glob("ftrun-*/*/parts/*/*.json")) for node, base in self._bases().items()}

    def copied(self) -> dict[str, tuple[int, ...]]:
        """Node -> steps whose part another node has a copy of."""
        found: dict[str, list[Path]] = {}
        for holder, base in self._bases().items():
            for path in base.glob("ftrun-*/*/partner/*/*/*.json"):
                owner = path.parents[1].name
                if owner != holder:
                    found.setdefault(owner, []).append(path)
        return {owner: _steps(paths) for owner, paths in found.items()}

    def left(self) -> dict[str, tuple[str, ...]]:
        """Node -> the folders of jobs in its memory."""
        return {
            node: tuple(path.name for path in base.glob("ftrun-*/*")) for node, base in self._bases().items()
        }

    def _bases(self) -> dict[str, Path]:
        """Living node -> its /dev/shm."""
        if self._box is None or not self._box.plan.shm_mib:
            return {}
        nodes = self._box.node_names
        if not all(os.path.isdir(f"/proc/{self._slurmds.get(node, 0)}/root/dev/shm") for node in nodes):
            self._slurmds = {
                name.partition("-")[2]: min(one.pid for one in found)
                for name, found in self._box.members().daemons.items()
                if name.startswith("slurmd-")
            }
        return {node: Path(f"/proc/{pid}/root/dev/shm") for node, pid in self._slurmds.items()}


def _steps(paths: Iterable[Path]) -> tuple[int, ...]:
    """The steps in the names of sets or of their seals."""
    steps = {names.step_of(path.name.removesuffix(".json")) for path in paths}
    return tuple(sorted(step for step in steps if step is not None))
