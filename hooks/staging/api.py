"""Training code saves a checkpoint at memory speed: `with ftrun.hooks.stage(step) as folder:`. (I/O)

    with stage(step) as folder:              # every rank, as with torch.distributed.checkpoint.save
        torch.save(state, f"{folder}/rank-{rank}.pt")
    with stage(step, ranks=1) as folder:     # where one rank saves for all
        torch.save(model.state_dict(), f"{folder}/model.pt")

The pause ends with the block: `folder` is in the node's memory, and ftrun publishes it in the background. Each
rank reports when it begins and when it is done, so a complete part is sealed at once, and that of a rank that
died is known to be incomplete. Without a staging daemon the block saves to FTRUN_STAGE_TO, else `to`: into a
draft, which the last rank renames. Errors inside the block are the caller's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any, Optional

from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.wakeup_fifo import wake
from ftrun.hooks.staging import records

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
LOCALS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


@contextlib.contextmanager
def stage(
    step: Any, *, ranks: Optional[int] = None, name: str = "", to: str = "checkpoints"
) -> Iterator[str]:
    """The folder to save the checkpoint of `step` into, as seen by this rank. `ranks`: how many ranks save
    something (default: all). `name` of the checkpoint (default: step-<step>). `to`: where it is saved outside
    a job of ftrun. Raises OSError if the folder cannot be made, ValueError for a name that cannot be a
    checkpoint's.
    """
    own = name or f"step-{step}"
    if "/" in own or not records.is_set(own, is_folder=True):
        raise ValueError(f"{own!r} is no name for a checkpoint")
    folder, marks = _places(own)
    if marks:
        with _marked(folder, marks, (_local(ranks), int(ranks == 1)), str(step)):
            yield folder
        return
    final = os.path.join(os.environ.get("FTRUN_STAGE_TO") or to, own)
    with _direct(final, _number(WORLDS, 1) if ranks is None else ranks) as draft:
        yield draft


def _places(name: str) -> tuple[str, str]:
    """The folder of a set in this node's memory, and that of its marks; "" and "" without a daemon."""
    top, to = os.environ.get("FTRUN_STAGE_DIR", ""), os.environ.get("FTRUN_STAGE_TO", "")
    above, kind = os.path.split(os.path.dirname(top))
    if not top or top == to or kind != "stage" or not os.path.isdir(top):
        return "", ""
    return f"{top}/{name}", records.Home(above).marks(os.path.basename(top), name)


@contextlib.contextmanager
def _marked(folder: str, marks: str, ranks: tuple[int, int], step: str) -> Iterator[None]:
    """Mark that this rank begins to save a step, is done, or failed; without marks the files alone count.
    `ranks`: how many ranks of this node save something, and whether this one saves for all nodes.
    """
    os.makedirs(folder, exist_ok=True)
    rank = str(_number(RANKS, 0))
    _say(marks, rank, records.DONE, None)
    _say(marks, rank, records.FAILED, None)
    save = hashlib.sha256(step.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    numbers = (os.getpid(), procfs.start_ticks(os.getpid()), procfs.pid_namespace(), *ranks)
    _say(marks, rank, records.BEGIN, " ".join([*map(str, numbers), save]))
    try:
        yield
    except BaseException:
        _say(marks, rank, records.FAILED, "")
        raise
    _say(marks, rank, records.DONE, "")
    wake(marks.rsplit("/", 3)[0])


def _say(marks: str, rank: str, word: str, text: Optional[str]) -> None:
    """Write a mark atomically; None removes it."""
    path = f"{marks}/{rank}.{word}"
    with contextlib.suppress(OSError):
        if text is None:
            os.unlink(path)
            return
        os.makedirs(marks, mode=0o700, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="ascii") as stream:
            stream.write(text)
        os.replace(f"{path}.{os.getpid()}", path)


@contextlib.contextmanager
def _direct(final: str, ranks: int) -> Iterator[str]:
    """A draft beside the checkpoint for all its ranks; the last rank that is done renames it."""
    draft = os.path.join(os.path.dirname(final), f"tmp-{os.path.basename(final)}")
    done = f"{draft}.done"
    os.makedirs(draft, exist_ok=True)
    yield draft
    _settle(draft)
    os.makedirs(done, exist_ok=True)
    with open(f"{done}/{_number(RANKS, 0)}", "w", encoding="ascii"):
        pass
    if len(os.listdir(done)) < ranks:
        return
    # If two ranks believe that they are the last, one of them renames.
    with contextlib.suppress(FileNotFoundError):
        if os.path.lexists(final):
            raise FileExistsError(f"{final} is there already: what was saved is in {draft}")
        os.rename(draft, final)
        _settle_folder(os.path.dirname(final))
    import shutil

    shutil.rmtree(done, ignore_errors=True)


def _settle(folder: str) -> None:
    """Synchronise all files and folders."""
    for where, _, names in os.walk(folder):
        for one in names:
            with contextlib.suppress(FileNotFoundError), open(os.path.join(where, one), "rb") as stream:
                os.fsync(stream.fileno())
        _settle_folder(where)


def _settle_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        number = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _local(ranks: Optional[int]) -> int:
    """How many ranks of this node will report; 0 if unknown."""
    if ranks is not None:
        return int(ranks == 1)
    node, counts = os.environ.get("SLURM_NODEID", ""), os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    return _number(LOCALS, 0) or _of_step(counts, node)


def _of_step(counts: str, node: str) -> int:
    """This node's count in Slurm's list, such as 2(x3),1; 0 if it cannot be told."""
    found: list[int] = []
    for word in counts.split(","):
        row = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word)
        if row is None:
            return 0
        found += [int(row[1])] * int(row[2] or 1)
    return found[int(node)] if node.isdigit() and int(node) < len(found) else 0


def _number(names: tuple[str, ...], usual: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return usual
