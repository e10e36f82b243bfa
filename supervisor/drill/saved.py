"""The checkpoint files of the drills' trainer: zip files, as torch's are. (I/O)

Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

from ftrun.supervisor.drill.weights import checksum

__all__ = ["PADDING", "read_checkpoint", "read_state", "write_checkpoint"]

PADDING = "archive/data/0"


def read_checkpoint(path: str) -> dict[str, Any]:
    """Step, weights and who wrote them. Raises RuntimeError, in torch's words, for a torn or foreign file."""
    try:
        with zipfile.ZipFile(path) as archive:
            state = read_state(archive)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise RuntimeError(
            "PytorchStreamReader failed reading zip archive: failed finding central directory"
        ) from error
    if state["checksum"] != checksum(state["weights"]):
        raise RuntimeError(f"PytorchStreamReader failed reading file data/0: checksum mismatch in {path}")
    return state


def read_state(archive: zipfile.ZipFile) -> dict[str, Any]:
    """What an opened file holds. Raises what zipfile raises."""
    state: dict[str, Any] = json.loads(archive.read("archive/data.json"))
    return state


def write_checkpoint(
    path: str, state: Mapping[str, Any], padding: bytes = b"", *, lasting: bool = True
) -> None:
    """Write a checkpoint file, with so much more in it, and where it is to last wait until it is on disk."""
    with open(path, "wb") as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("archive/data.json", json.dumps(state))
            archive.writestr("archive/version", "3\n")
            if padding:
                archive.writestr(PADDING, padding)
        stream.flush()
        if lasting:
            os.fsync(stream.fileno())
