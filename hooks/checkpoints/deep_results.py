"""Results of the deep level for later starts: `deep/<key>.json` in the run's folder. (I/O)

A complete read takes minutes, so it is done once, in the background. A result is valid for exactly the files
that were read: not after a change of size, time of writing or time of change of any of them. A result that
cannot be read or understood does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints.listing import DeadlinePassed, Tree, map_parallel
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, EMPTY, TORN, UNFLUSHED, Inspection

FOLDER = "deep"
VERSION = 1
BROKEN = (TORN, EMPTY, UNFLUSHED)
READ_BYTES_MAX = 1 << 16
KEPT_MAX = 200


class DeepResult(NamedTuple):
    """A checkpoint inspected on the deep level: `identity` of its files; the `level` reached (deep if
    something in it has checksums); when it was inspected (Unix seconds), in how many seconds.
    """

    path: str
    identity: str
    state: str
    why: str
    level: str = DEEP
    size_bytes: int = 0
    at_s: float = 0.0
    seconds: float = 0.0


def identity(tree: Tree) -> str:
    """A hash of the names, sizes and times of these files. Raises OSError, DeadlinePassed."""
    digest, names = hashlib.sha256(), sorted(tree.files)
    for name, facts in zip(names, map_parallel(lambda name: os.stat(tree.at(name)), names, tree.before_s)):
        digest.update(f"{name}\0{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}\n".encode())
    return digest.hexdigest()


def save(run_dir: str, result: DeepResult) -> None:
    """Write a result atomically; of many the oldest are removed. Raises OSError."""
    folder = os.path.join(run_dir, FOLDER)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    final = _path_of(run_dir, result.path)
    draft = f"{final}.{os.getpid()}.tmp"
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as stream:
        json.dump({"version": VERSION, **result._asdict()}, stream)
    os.replace(draft, final)
    kept = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder))
    for _, path in kept[:-KEPT_MAX]:
        os.unlink(path)


def load(run_dir: str, path: str) -> Optional[DeepResult]:
    """The result for a checkpoint, valid or not; None without one."""
    return _read(_path_of(run_dir, path)) if run_dir else None


def load_all(run_dir: str) -> tuple[DeepResult, ...]:
    """All results, the newest last."""
    try:
        names = [name for name in os.listdir(os.path.join(run_dir, FOLDER)) if name.endswith(".json")]
    except OSError:
        return ()
    found = (_read(os.path.join(run_dir, FOLDER, name)) for name in names)
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.at_s))


def with_deep_result(one: Inspection, tree: Tree, run_dir: str) -> Inspection:
    """The inspection of a complete checkpoint, updated by a valid earlier result of the deep level."""
    result = load(run_dir, one.found.path)
    try:
        if result is None or identity(tree) != result.identity:
            return one
    except (OSError, DeadlinePassed):
        return one
    why = f"{result.why} (read to its end before)"
    if result.state in BROKEN:
        return one._replace(state=result.state, why=why, level=DEEP)
    if result.state == COMPLETE and result.level == DEEP:
        return one._replace(why=why, level=DEEP)
    return one


def _path_of(run_dir: str, path: str) -> str:
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return os.path.join(run_dir, FOLDER, f"{key}.json")


def _read(place: str) -> Optional[DeepResult]:
    try:
        with open(place, encoding="utf-8", errors="surrogateescape") as stream:
            facts = json.loads(stream.read(READ_BYTES_MAX))
        if facts.pop("version") != VERSION:
            return None
        result = DeepResult(**facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return result if isinstance(result.at_s, (int, float)) and isinstance(result.why, str) else None
