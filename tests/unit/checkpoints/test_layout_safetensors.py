"""Models in safetensors files, one or many, as transformers 5.23 and safetensors 0.8 wrote them. (I/O)"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, TORN, UNFLUSHED
from tests.unit import written

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.mark.parametrize("level", [QUICK, DEEP])
@pytest.mark.parametrize("name", ["model/single", "model/sharded", "model/single/model.safetensors"])
def test_what_the_library_wrote_is_complete(kept: Path, name: str, level: str) -> None:
    """A file, a folder with one, a folder of shards with their index."""
    judged = written.seen(kept / name, level=level)

    assert (COMPLETE, "safetensors") == (judged.state, judged.found.layout), judged.why


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named(kept: Path, tmp_path: Path, shard: str, with_index: bool) -> None:
    """By the index, and without one by the number of shards that each name tells."""
    copy = written.copied(kept / "model/sharded", tmp_path / "model")
    (copy / shard).unlink()
    if not with_index:
        (copy / "model.safetensors.index.json").unlink()

    judged = written.seen(copy)

    assert TORN == judged.state
    assert shard in judged.why


def test_shards_without_an_index_are_complete_when_all_are_there(kept: Path, tmp_path: Path) -> None:
    """Other libraries write the same names and no index."""
    copy = written.copied(kept / "model/sharded", tmp_path / "model")
    (copy / "model.safetensors.index.json").unlink()

    assert COMPLETE == written.seen(copy).state


def test_shards_of_an_earlier_save_with_another_count_are_not_counted(kept: Path, tmp_path: Path) -> None:
    """The index names the shards that count."""
    copy = written.copied(kept / "model/sharded", tmp_path / "model")
    written.copied(copy / SHARDS[0], copy / "model-00001-of-00009.safetensors")

    assert COMPLETE == written.seen(copy).state


def test_a_shard_or_an_index_that_was_cut_anywhere_is_noticed(kept: Path, tmp_path: Path) -> None:
    """At a dozen places and one byte before the end."""
    for file in (*SHARDS, "model.safetensors.index.json"):
        assert [] == written.unnoticed_cuts(kept / "model/sharded", file, tmp_path)


def test_a_file_is_whole_only_to_its_last_byte(kept: Path, tmp_path: Path) -> None:
    """The loader refuses a file with more bytes than its tensors have."""
    copy = written.copied(kept / "model/single/model.safetensors", tmp_path / "step_1.safetensors")
    with copy.open("ab") as stream:
        stream.write(b"\0")

    assert TORN == written.seen(copy).state


def test_zeros_in_the_place_of_a_header_were_never_flushed(kept: Path, tmp_path: Path) -> None:
    """A file of the right length whose first pages did not reach the disk."""
    copy = written.copied(kept / "model/single/model.safetensors", tmp_path / "step_1.safetensors")
    copy.write_bytes(bytes(copy.stat().st_size))

    assert UNFLUSHED == written.seen(copy).state


@pytest.mark.parametrize(
    "header",
    [b"{", b"[]", b'{"a": 1}', b'{"a": {"data_offsets": []}}', b'{"a": {"data_offsets": "x"}}', b"[" * 100_000],
    ids=["open", "list", "number", "no-offsets", "text", "deep"],
)  # fmt: skip
def test_a_header_that_is_none_is_torn_and_ends_no_judgement(tmp_path: Path, header: bytes) -> None:
    """Whatever stands there, the answer is a state."""
    path = tmp_path / "step_1.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)

    assert TORN == written.seen(path).state


def test_an_index_of_another_kind_asks_for_nothing(kept: Path, tmp_path: Path) -> None:
    """A JSON file with that ending and no map of weights."""
    copy = written.copied(kept / "model/single", tmp_path / "model")
    (copy / "tokens.index.json").write_text(json.dumps({"words": 3}))

    assert COMPLETE == written.seen(copy).state


def test_a_folder_of_steps_is_not_taken_for_the_model_beside_them(kept: Path, tmp_path: Path) -> None:
    """The last model lies in the folder of a run, and its steps in folders of their own."""
    run = written.copied(kept / "model/single", tmp_path / "run")
    written.copied(kept / "model/single", run / "step_100")
    written.copied(kept / "model/sharded", run / "step_200")

    assert [100, 200] == [one.step for one in written.inside(run) if one.layout == "safetensors" and one.step]


def test_files_of_several_steps_in_a_folder_are_a_checkpoint_each(kept: Path, tmp_path: Path) -> None:
    """A training loop that saves `step_100.safetensors`, `step_200.safetensors`."""
    run = tmp_path / "run"
    for step in (100, 200):
        written.copied(kept / "model/single/model.safetensors", run / f"step_{step}.safetensors")

    assert [100, 200] == [one.step for one in written.inside(run)]


def test_an_index_beside_the_whole_model_asks_for_nothing(kept: Path, tmp_path: Path) -> None:
    """It is left from an earlier save in shards, and loaders take the one file."""
    copy = written.copied(kept / "model/single", tmp_path / "model")
    written.copied(kept / "model/sharded/model.safetensors.index.json", copy / "model.safetensors.index.json")

    assert COMPLETE == written.seen(copy).state


def test_an_index_whose_shards_are_all_gone_misses_them(kept: Path, tmp_path: Path) -> None:
    """It is a checkpoint still, and says so."""
    copy = written.copied(kept / "model/sharded", tmp_path / "step_5")
    for shard in copy.glob("*.safetensors"):
        shard.unlink()

    judged = written.seen(copy)

    assert (TORN, "safetensors") == (judged.state, judged.found.layout)
    assert "model-00001-of-00003.safetensors" in judged.why


def test_a_header_with_a_number_without_an_end_is_torn(tmp_path: Path) -> None:
    """JSON as Python reads it has infinity; no file is that long, and nobody gives up over it."""
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,Infinity]}}'
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)

    assert TORN == written.seen(path).state
