"""What a drill sees of staged checkpoints: in the memory of the nodes of its sandbox, and where they are published to. (I/O)

How it thinks. Every node of the sandbox has a /dev/shm of its own, which its slurmd sees: /proc/<slurmd>/root leads there, without asking anybody in the node. A node
that lost power has no slurmd, and nothing in memory.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ftrun.hooks.checkpoints import names
from ftrun.slurm.sandbox.lifecycle import Sandbox, SandboxError

__all__ = ["Memory", "small_disk", "without_disk"]

MARKER = ".ftrun-complete"
FILLER = ".filler"


class Memory:
    """The memory of the nodes of one sandbox; `published` is the folder on disk."""

    def __init__(self, box: Sandbox | None, published: Path) -> None:
        self._box, self._published = box, published
        self._slurmds: dict[str, int] = {}

    def on_disk(self) -> tuple[int, ...]:
        """The steps of the sets that are published."""
        return _steps(path.parent for path in self._published.glob(f"*/{MARKER}"))

    def sealed(self) -> dict[str, tuple[int, ...]]:
        """Node -> steps whose part will not change any more."""
        return {node: _steps(base.glob("ftrun-*/*/parts/*/*.json")) for node, base in self._bases().items()}

    def copied(self) -> dict[str, tuple[int, ...]]:
        """Node -> steps whose part lies in the memory of another node as well."""
        found: dict[str, list[Path]] = {}
        for holder, base in self._bases().items():
            for path in base.glob("ftrun-*/*/partner/*/*/*.json"):
                owner = path.parents[1].name
                if owner != holder:
                    found.setdefault(owner, []).append(path)
        return {owner: _steps(paths) for owner, paths in found.items()}

    def left(self) -> dict[str, tuple[str, ...]]:
        """Node -> the folders of jobs that are in its memory."""
        return {
            node: tuple(path.name for path in base.glob("ftrun-*/*")) for node, base in self._bases().items()
        }

    def fill_disk(self) -> None:
        """No byte of the disk is left."""
        with (self._published / FILLER).open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(1 << 16))
            except OSError:  # which was to come
                return

    def free_disk(self) -> None:
        """As much is left as there was."""
        (self._published / FILLER).unlink()

    def _bases(self) -> dict[str, Path]:
        """Node -> its /dev/shm, where it lives."""
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


def small_disk(folder: Path, size_mib: int) -> None:
    """Make the folder a disk of its own, so large. Raises SandboxError where that is not allowed."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0755", "ftrun-drill", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxError(f"no disk can be made for this drill, which root alone can: {done.stderr.strip()}")


def without_disk(folder: Path) -> None:
    """Take the disk away again; it may be in use for a moment."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)
