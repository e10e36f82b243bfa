"""Checkpoints that the real libraries wrote (tests/formats), small ones, and what tests do to them."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from ftrun.hooks.checkpoints.find import find, found_at
from ftrun.hooks.checkpoints.inspection import inspect
from ftrun.hooks.checkpoints.model import COMPLETE, QUICK, Found, Inspection

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "checkpoints" / "written.tar.xz"
LATER_S = 4e9  # long after everything was written


def unpack(folder: Path) -> Path:
    """All of them in a folder of their own: transformers, accelerate, fsdp, model, lightning, sharded, orbax, mindspore."""
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return folder


def copied(source: Path, to: Path) -> Path:
    """A copy of one checkpoint, to be harmed."""
    to.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(source, to)) if source.is_dir() else Path(shutil.copy2(source, to))


def seen(path: Path | str, *, level: str = QUICK, now_s: float = LATER_S, marker: str = "") -> Inspection:
    """One path, as whoever looks at it later judges it."""
    return inspect(found_at(str(path)), level=level, now_s=now_s, marker=marker)


def inside(container: Path) -> list[Found]:
    """What is found in a folder."""
    return find([str(container)], cwd="/")


def files(checkpoint: Path) -> list[str]:
    """Its files by their paths in it."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), checkpoint)
        for folder, _, names in os.walk(checkpoint)
        for name in names
    )


def cut(path: Path, size_bytes: int) -> None:
    """Leave the first bytes of a file."""
    path.chmod(0o600)
    os.truncate(path, size_bytes)


def cuts(path: Path, count: int = 12) -> Iterator[int]:
    """Sizes to cut a file to: all but its last byte that is no line break, and some between."""
    size = len(path.read_bytes().rstrip())
    yield size - 1
    yield from range(1, size - 1, max(1, size // count))


def unnoticed_cuts(checkpoint: Path, name: str, room: Path) -> list[int]:
    """The sizes to which a file of a checkpoint can be cut with nobody noticing on the quick level."""
    unnoticed = []
    for number, size in enumerate(cuts(checkpoint / name)):
        copy = copied(checkpoint, room / f"{name.replace('/', '.')}-{number}" / checkpoint.name)
        cut(copy / name, size)
        if seen(copy).state == COMPLETE:
            unnoticed.append(size)
    return unnoticed
