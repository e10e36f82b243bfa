"""`ftrun-hook cache`: the compile caches of a run on this node. (I/O)

How it thinks. `fill` stands before a start and `merge` beside or behind one; both are given a time, and what is not done by then is left. Nothing that
goes wrong here is worth a job, so their exit status is 0, but for one: a folder that belongs to somebody else, from which no start may be given code.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from ftrun.hooks import cacheclass, cachemerge, caches, nodefile
from ftrun.hooks.caches import Foreign, Index, Where
from ftrun.hooks.errors import UsageError

__all__ = ["EXIT_FOREIGN", "main", "mend"]

EXIT_FOREIGN = 71
FILL_S, MERGE_S, MEND_S = 20.0, 120.0, 5.0
LITTER_S = 3 * 86_400.0
DOUBTED = "others could write into the folder: nothing in it is given"
NPUS = "/dev/davinci_manager"
PREFIX = "cache-"
USAGE = (
    "usage: ftrun-hook cache fill|merge --folder NODES [--launch N] [--seconds S]\n"
    "Fills this node's compile caches from those of the run, or gives the run what it does not have yet. NODES: nodes/ of the attempt."
)


def main(arguments: list[str]) -> int:
    """Fill or merge. 0, or EXIT_FOREIGN."""
    words = dict(zip(arguments[1::2], arguments[2::2]))
    if (
        arguments[:1] not in (["fill"], ["merge"])
        or not set(words) <= {"--folder", "--launch", "--seconds"}
        or len(arguments) % 2 == 0
    ):
        raise UsageError(USAGE)
    if not words.get("--folder"):
        raise UsageError("--folder is missing; " + USAGE)
    folder = os.path.abspath(words["--folder"])
    where = caches.where_of(os.path.dirname(folder))
    if where is None:  # then nobody knows whether the folder is ours
        return EXIT_FOREIGN if arguments[0] == "fill" else 0
    with contextlib.suppress(OSError):
        os.nice(19 if arguments[0] == "merge" else 0)
    seconds = float(words.get("--seconds", FILL_S if arguments[0] == "fill" else MERGE_S))
    work = _fill if arguments[0] == "fill" else _merge
    try:
        caches.own(where.local)
        told = work(where, time.monotonic() + seconds)
    except Foreign as error:
        with contextlib.suppress(OSError):
            caches.refuse(where, f"{_node()}: {error}")
        return EXIT_FOREIGN
    except OSError as error:
        told = {"trouble": [f"{error.filename or where.local}: {error.strerror or error}"]}
    _report(folder, int(words.get("--launch", "0")), told)
    return 0


def mend(attempt_folder: str, seconds: float = MEND_S) -> None:
    """Between two starts of one allocation: what the one before left half written is removed, and a node that is new here is filled. Never raises."""
    where = caches.where_of(attempt_folder)
    if where is None:
        return
    try:
        caches.own(where.local)
        if os.listdir(where.local) or any(one.is_dir() for one in os.scandir(where.shared)):
            _fill(where, time.monotonic() + seconds)  # most scripts compile nothing
    except Foreign as error:
        with contextlib.suppress(OSError):
            caches.refuse(where, f"{_node()}: {error}")
    except (OSError, ValueError):
        pass  # the start compiles what it does not find


def _fill(where: Where, until_s: float) -> dict[str, Any]:
    began_s = time.monotonic()
    is_used = cacheclass.is_used(where.local)
    if not caches.own(where.local):
        if is_used:
            return {"trouble": [DOUBTED]}
        caches.empty(where.local)
    facts = cacheclass.facts_of_node()
    index = caches.load(where, cacheclass.class_of(facts))
    # A rank that lives may be in the middle of a file, which only looks torn.
    torn = [] if is_used else caches.drop_torn(where, index, until_s)
    index, trouble = caches.fill(where, index, until_s)
    if os.path.exists(NPUS):  # CANN wants its folder to be there
        os.makedirs(os.path.join(where.local, "ascend"), mode=0o700, exist_ok=True)
    caches.store(where, index)
    _drop_litter(where.local)
    return {
        **_state(where, index, facts),
        "torn": torn[:16],
        "trouble": trouble[:16],
        "fill_s": round(time.monotonic() - began_s, 3),
    }


def _merge(where: Where, until_s: float) -> dict[str, Any]:
    began_s = time.monotonic()
    if not caches.own(where.local):
        return {"trouble": [DOUBTED]}
    facts = cacheclass.facts_of_node()
    index = caches.load(where, cacheclass.class_of(facts))
    leads = os.environ.get("SLURM_PROCID", "0") == "0"
    giver = cachemerge.Giver(_node(), leads, cacheclass.writers(where.local), facts, time.time(), until_s)
    index, told = cachemerge.merge(where, index, giver)
    caches.store(where, index)
    return {
        **_state(where, index, facts),
        **told,
        "writers": dict(giver.writers),
        "merge_s": round(time.monotonic() - began_s, 3),
    }


def _state(where: Where, index: Index, facts: dict[str, str]) -> dict[str, Any]:
    return {"class": index.node_class, "facts": facts, **caches.tally(where, index)}


def _report(folder: str, launch: int, told: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        table = {"schema": 1, "kind": "caches", "node": _node(), "at_s": round(time.time(), 3), **told}
        nodefile.write(nodefile.path(folder, "caches", launch, _node()), table)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def _drop_litter(local: str) -> None:
    """Folders of this user's other runs, beside ours, that nobody has filled or merged for days."""
    import shutil

    with contextlib.suppress(OSError):
        for one in os.scandir(os.path.dirname(local)):
            if not one.name.startswith(PREFIX) or one.path == local or one.is_symlink():
                continue
            with contextlib.suppress(OSError):
                fact = one.stat(follow_symlinks=False)
                newest = max(fact.st_mtime, _time_of(os.path.join(one.path, caches.INDEX)))
                if fact.st_uid == os.geteuid() and time.time() - newest > LITTER_S:
                    shutil.rmtree(one.path, ignore_errors=True)


def _time_of(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0
