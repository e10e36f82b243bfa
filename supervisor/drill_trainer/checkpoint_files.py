"""The checkpoint files of the drills' trainer: zip files, as torch's are. (I/O)

Either rank 0 writes one file with all weights, or, with staging, every rank writes a file: rank k of n saves
only the weights k, k+n, k+2n, ..., padded to the wished size with bytes that depend on rank and step, so that
no other file can replace it. A rank reads only its own files, as sharded trainings do, and the ranks combine
the weights when they meet.

Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ftrun.supervisor.drill_trainer.toy_model import WIDTH, checksum

PADDING = "archive/data/0"


def read_checkpoint(path: str) -> dict[str, Any]:
    """Step, weights and writer of a checkpoint. Raises RuntimeError, worded as torch's, for a torn file."""
    try:
        with zipfile.ZipFile(path) as archive:
            state = _read_state(archive)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise RuntimeError(
            "PytorchStreamReader failed reading zip archive: failed finding central directory"
        ) from error
    if state["checksum"] != checksum(state["weights"]):
        raise RuntimeError(f"PytorchStreamReader failed reading file data/0: checksum mismatch in {path}")
    return state


def _read_state(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The content of an opened file. Raises what zipfile raises."""
    state: dict[str, Any] = json.loads(archive.read("archive/data.json"))
    return state


def write_checkpoint(
    path: str, state: Mapping[str, Any], padding: bytes = b"", *, lasting: bool = True
) -> None:
    """Write a checkpoint file with `padding`; with `lasting`, wait until it is on disk."""
    with open(path, "wb") as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("archive/data.json", json.dumps(state))
            archive.writestr("archive/version", "3\n")
            if padding:
                archive.writestr(PADDING, padding)
        stream.flush()
        if lasting:
            os.fsync(stream.fileno())


# ---------------------------------------------------------------------------- one file of each rank


@contextmanager
def save_folder(way: str, step: int) -> Iterator[str]:
    """The folder for the checkpoint of this step: from the staging hook, or one in FTRUN_STAGE_DIR."""
    if way == "hook":
        stage: Any = importlib.import_module(
            "ftrun.hooks"
        ).stage  # late: a trainer that stages nothing has none
        with stage(step) as folder:
            yield str(folder)
        return
    folder = os.path.join(os.environ["FTRUN_STAGE_DIR"], f"step-{step:06d}")
    os.makedirs(folder, exist_ok=True)
    yield folder


def write_part(folder: str, rank: int, size: int, state: Mapping[str, Any], pad_bytes: int) -> str:
    """Write the part of one rank and return the path of its file."""
    path = os.path.join(folder, f"rank-{rank:03d}.pt")
    part = [w if i % size == rank else 0 for i, w in enumerate(state["weights"])]
    write_checkpoint(
        path,
        {**state, "weights": part, "rank": rank, "of": size},
        padding(rank, int(state["step"]), pad_bytes),
        lasting=False,  # the staging daemon does that
    )
    return path


def read_part(folder: str, rank: int, size: int) -> tuple[dict[str, Any], list[str]]:
    """(the step and this rank's share of the weights, zeros elsewhere; the files read). Raises RuntimeError
    for a torn or foreign file. Every file says how many ranks wrote; a rank beyond these reads nothing, and
    does not know the step.
    """
    state: dict[str, Any] = {"step": 0, "weights": [0] * WIDTH}
    read: list[str] = []
    there = sorted(name for name in os.listdir(folder) if name.startswith("rank-"))
    if not there:
        raise RuntimeError(f"{folder} has no file of any rank")
    own = os.path.join(folder, f"rank-{rank:03d}.pt")
    of = rank + 1 if os.path.exists(own) else int(_read(os.path.join(folder, there[0]))["of"])
    while rank < of:
        path = os.path.join(folder, f"rank-{rank:03d}.pt")
        if not os.path.exists(path):
            raise RuntimeError(f"{path} is missing, of {of} files")
        one = _read(path)
        if read and (one["step"], one["start"]) != (state["step"], state["start"]):
            raise RuntimeError(f"{path} is of another step or start than {read[0]}")
        of = int(one["of"])
        state = {**one, "weights": [a + b for a, b in zip(state["weights"], one["weights"])]}
        read.append(os.path.realpath(path))
        rank += size
    return state, read


def read_set(folder: str) -> dict[str, Any]:
    """A complete checkpoint. Raises RuntimeError if a part is missing, torn, or of another step or start."""
    return read_part(folder, 0, 1)[0]


def _read(path: str) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            state = _read_state(archive)
            pad = archive.read(PADDING)
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, EOFError, ValueError) as error:
        raise RuntimeError(f"PytorchStreamReader failed reading zip archive: {path}: {error}") from error
    if pad != padding(int(state["rank"]), int(state["step"]), len(pad)):
        raise RuntimeError(f"PytorchStreamReader failed reading file data/1: checksum mismatch in {path}")
    return state


def padding(rank: int, step: int, size_bytes: int) -> bytes:
    """Incompressible bytes that only this rank has at this step."""
    return hashlib.shake_128(f"{rank}.{step}".encode()).digest(size_bytes)
