"""Files of Flax from before Orbax: `checkpoint_7`, one MessagePack map. (I/O)"""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import layout_flax
from ftrun.hooks.checkpoints.model import COMPLETE, QUICK, TEMPORARY, TORN, UNFLUSHED
from tests.unit import written

# What flax 0.12 wrote of two arrays (one of bfloat16), a step, a text, a NumPy scalar and a list of numbers.
BYTES = base64.b64decode(
    "haZwYXJhbXOCpmtlcm5lbMcmAZOSAgOnZmxvYXQzMsQYAAAAAAAAgD8AAABAAABAQAAAgEAAAKBApGJpYXPHFAGTkQOoYmZsb2F0MTbEBgAAAAAAAKRzdGVwxxIDk5Cl"
    "aW50NjTECAcAAAAAAAAApG5hbWWkYWRhbaVzY2FsZdgDk5CnZmxvYXQzMsQEAADAP6Rtb3Jlh6EwAaExy0AEAAAAAAAAoTLAoTPDoTT9oTXNASyhNs4AARFw"
)


def saved(path: Path, content: bytes = BYTES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_what_the_library_wrote_is_complete_with_its_step(tmp_path: Path) -> None:
    """The file has no ending; its folder leads to it."""
    saved(tmp_path / "run/checkpoint_7")
    saved(tmp_path / "run/checkpoint_10")
    found = written.inside(tmp_path / "run")
    judged = [written.seen(one.path) for one in found]

    assert [("flax", 10), ("flax", 7)] == [(one.layout, one.step) for one in found]
    assert {(COMPLETE, QUICK)} == {(one.state, one.level) for one in judged}, judged


def test_no_cut_and_no_byte_too_many_stays_unnoticed(tmp_path: Path) -> None:
    """Its lengths lead to its last byte, wherever it was cut; twice the file is no file."""
    unnoticed = [
        size
        for size in range(8, len(BYTES))
        if written.seen(saved(tmp_path / "checkpoint_7", BYTES[:size])).state == COMPLETE
    ]
    assert [] == unnoticed
    for more in (b"\0", BYTES):
        assert TORN == written.seen(saved(tmp_path / "checkpoint_7", BYTES + more)).state


def test_zeros_are_unflushed_and_an_unfinished_name_is_temporary(tmp_path: Path) -> None:
    """A crash leaves the length without the content; the writer renames when it is done."""
    assert UNFLUSHED == written.seen(saved(tmp_path / "checkpoint_7", bytes(5000))).state
    assert TEMPORARY == written.seen(saved(tmp_path / "tmp_checkpoint_7", BYTES)).state


def test_a_large_array_is_stepped_over(tmp_path: Path) -> None:
    """Its length is read, its bytes are not: a hole of 3 GB takes no time and is no damage of the map."""
    length = 3 << 30
    head = b"\x81\xa1w\xc6" + length.to_bytes(4, "big")
    path = saved(tmp_path / "checkpoint_7", head)
    os.truncate(path, len(head) + length)
    assert COMPLETE == written.seen(path).state
    os.truncate(path, len(head) + length - 1)
    assert TORN == written.seen(path).state


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04" + bytes(40), b"\x80\x04}.", b"{}", b"\x81\x01\x02", b"\x80", b"text", b"\xde"]
)
def test_another_file_of_such_a_name_is_none_of_flax(tmp_path: Path, content: bytes) -> None:
    """A map without a text as its first key, an empty one, a zip, a pickle: those are somebody else's."""
    assert not layout_flax.begins_as_map(content[:64])
    assert "any" == written.seen(saved(tmp_path / "checkpoint_7", content)).found.layout
