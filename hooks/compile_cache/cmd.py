"""`ftrun-hook cache`: fills or merges the compile caches of a run on this node. (I/O)

`fill` runs before a start, `merge` during or after one, each within a time limit. An error here must not cost
a job, so the exit status is 0, except for a folder of another user: no start may run code from there.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from ftrun.hooks.compile_cache import exchange, node
from ftrun.hooks.compile_cache.node import ForeignFolder, Index, Location
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.command_line import node_name
from ftrun.hooks.runtime.host import UsageError

EXIT_FOREIGN = 71
FILL_S, MERGE_S, MEND_S = 20.0, 120.0, 5.0
LITTER_S = 3 * 86_400.0
DOUBTED = "others could write into the folder: nothing in it is given"
NPUS = "/dev/davinci_manager"
PREFIX = "cache-"
USAGE = (
    "usage: ftrun-hook cache fill|merge --folder NODES [--launch N] [--seconds S]\n"
    "Fills this node's compile caches from those of the run, or gives the run what it does not have yet.\n"
    "NODES: nodes/ of the attempt."
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
    location = node.locate(os.path.dirname(folder))
    if location is None:  # then nobody knows whether the folder is ours
        return EXIT_FOREIGN if arguments[0] == "fill" else 0
    with contextlib.suppress(OSError):
        os.nice(19 if arguments[0] == "merge" else 0)
    seconds = float(words.get("--seconds", FILL_S if arguments[0] == "fill" else MERGE_S))
    work = _fill if arguments[0] == "fill" else _merge
    try:
        node.ensure_private(location.local)
        told = work(location, time.monotonic() + seconds)
    except ForeignFolder as error:
        with contextlib.suppress(OSError):
            node.refuse(location, f"{node_name()}: {error}")
        return EXIT_FOREIGN
    except OSError as error:
        told = {"trouble": [f"{error.filename or location.local}: {error.strerror or error}"]}
    _report(folder, int(words.get("--launch", "0")), told)
    return 0


def mend(attempt_folder: str, seconds: float = MEND_S) -> None:
    """Between two starts in one allocation: remove torn entries, and fill a new node. Never raises."""
    location = node.locate(attempt_folder)
    if location is None:
        return
    try:
        node.ensure_private(location.local)
        if os.listdir(location.local) or any(one.is_dir() for one in os.scandir(location.shared)):
            _fill(location, time.monotonic() + seconds)
    except ForeignFolder as error:
        with contextlib.suppress(OSError):
            node.refuse(location, f"{node_name()}: {error}")
    except (OSError, ValueError):
        pass  # the start compiles what it does not find


def _fill(location: Location, until_s: float) -> dict[str, Any]:
    began_s = time.monotonic()
    in_use = node.in_use(location.local)
    if not node.ensure_private(location.local):
        if in_use:
            return {"trouble": [DOUBTED]}
        node.empty_folder(location.local)
    facts = node.node_facts()
    index = node.load_index(location, node.node_class_of(facts))
    # A live rank may be writing an entry, which only looks torn.
    torn = [] if in_use else node.remove_torn(location, index, until_s)
    index, trouble = exchange.fill(location, index, until_s)
    if os.path.exists(NPUS):  # CANN does not make its folder
        os.makedirs(os.path.join(location.local, "ascend"), mode=0o700, exist_ok=True)
    node.store_index(location, index)
    _drop_litter(location.local)
    return {
        **_state(location, index, facts),
        "torn": torn[:16],
        "trouble": trouble[:16],
        "fill_s": round(time.monotonic() - began_s, 3),
    }


def _merge(location: Location, until_s: float) -> dict[str, Any]:
    began_s = time.monotonic()
    if not node.ensure_private(location.local):
        return {"trouble": [DOUBTED]}
    facts = node.node_facts()
    index = node.load_index(location, node.node_class_of(facts))
    leads = os.environ.get("SLURM_PROCID", "0") == "0"
    contributor = exchange.Contributor(
        node_name(), leads, node.framework_versions(location.local), facts, time.time(), until_s
    )
    index, told = exchange.merge(location, index, contributor)
    node.store_index(location, index)
    return {
        **_state(location, index, facts),
        **told,
        "writers": dict(contributor.writers),
        "merge_s": round(time.monotonic() - began_s, 3),
    }


def _state(location: Location, index: Index, facts: dict[str, str]) -> dict[str, Any]:
    return {"class": index.node_class, "facts": facts, **node.summary(location, index)}


def _report(folder: str, launch: int, told: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        table = {"schema": 1, "kind": "caches", "node": node_name(), "at_s": round(time.time(), 3), **told}
        node_report.write_json(node_report.report_path(folder, "caches", launch, node_name()), table)


def _drop_litter(local: str) -> None:
    """Remove folders of this user's other runs, beside ours, that were not filled or merged for days."""
    import shutil

    with contextlib.suppress(OSError):
        for one in os.scandir(os.path.dirname(local)):
            if not one.name.startswith(PREFIX) or one.path == local or one.is_symlink():
                continue
            with contextlib.suppress(OSError):
                fact = one.stat(follow_symlinks=False)
                newest = max(fact.st_mtime, _time_of(os.path.join(one.path, node.INDEX)))
                if fact.st_uid == os.geteuid() and time.time() - newest > LITTER_S:
                    shutil.rmtree(one.path, ignore_errors=True)


def _time_of(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0
