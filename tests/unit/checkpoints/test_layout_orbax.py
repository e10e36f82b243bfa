"""Checkpoints of Orbax, as orbax-checkpoint 0.12 wrote them: OCDBT and zarr, alone and by a manager. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import ocdbt_reader
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, TEMPORARY, TORN, UNFLUSHED
from tests.unit import written

MANAGED = "orbax/manager/200"
COMPOSITE = "orbax/composite/step_00000020"
ZARR = ("orbax/zarr/50", "orbax/zarr3/50")


@pytest.mark.parametrize("level", [QUICK, DEEP])
@pytest.mark.parametrize(("name", "step"), [(MANAGED, 200), (COMPOSITE, 20), *((name, 50) for name in ZARR)])
def test_what_the_library_wrote_is_complete_with_its_step(
    kept: Path, name: str, step: int, level: str
) -> None:
    """One item, items by name, arrays of zarr 2 and 3."""
    judged = written.seen(kept / name, level=level)

    assert (COMPLETE, "orbax", step, 1) == (
        judged.state,
        judged.found.layout,
        judged.found.step,
        judged.world,
    ), judged.why


@pytest.mark.parametrize(("above", "steps"), [("manager", [100, 200]), ("composite", [20]), ("zarr", [50])])
def test_the_steps_of_a_manager_are_found_in_its_folder(kept: Path, above: str, steps: list[int]) -> None:
    """Numbered folders, with a prefix or without."""
    assert steps == [one.step for one in written.inside(kept / "orbax" / above)]


@pytest.mark.parametrize("name", ["200.orbax-checkpoint-tmp", "200.orbax-checkpoint-tmp-1795295473615874"])
def test_a_step_that_was_not_committed_is_temporary(kept: Path, tmp_path: Path, name: str) -> None:
    """Its own name comes with the rename at the end; releases differ in what stands behind."""
    copy = written.copied(kept / MANAGED, tmp_path / name)

    assert (TEMPORARY, "orbax") == (written.seen(copy).state, written.seen(copy).found.layout)


@pytest.mark.parametrize("walked", [True, False])
def test_files_of_the_database_that_were_cut_anywhere_are_noticed(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walked: bool
) -> None:
    """By the places that the tree's nodes name; of a tree that is too large to be walked by the bytes that the manifest counts."""
    if not walked:
        monkeypatch.setattr(ocdbt_reader, "WALKED_BYTES_MAX", 0)
    names = [
        name for name in written.files(kept / MANAGED) if "/d/" in name or name.endswith("manifest.ocdbt")
    ]
    unnoticed = {
        name: found for name in names if (found := written.unnoticed_cuts(kept / MANAGED, name, tmp_path))
    }

    # Of a node with nothing before it 12 bytes must be left to know it; so small a file may be one that nothing refers to any more.
    assert {} == {name: sizes for name, sizes in unnoticed.items() if max(sizes) > 12}


def test_every_data_file_with_values_is_missed(kept: Path, tmp_path: Path) -> None:
    """The manifest counts the bytes of all values, and names the root of the tree."""
    folder = kept / MANAGED / "default"
    largest = max((folder / "ocdbt.process_0/d").iterdir(), key=lambda path: path.stat().st_size)
    root = next((folder / "d").iterdir())
    for number, gone in enumerate((largest, root)):
        copy = written.copied(kept / MANAGED, tmp_path / f"{number}" / "200")
        (copy / gone.relative_to(kept / MANAGED)).unlink()

        assert TORN == written.seen(copy).state


def test_a_manifest_that_is_missing_or_zeros_is_told_apart(kept: Path, tmp_path: Path) -> None:
    """Missing: torn. Of the right length and zeros: never flushed."""
    copy = written.copied(kept / MANAGED, tmp_path / "200")
    manifest = copy / "default/manifest.ocdbt"
    manifest.write_bytes(bytes(manifest.stat().st_size))

    assert UNFLUSHED == written.seen(copy).state

    manifest.unlink()

    assert (TORN, True) == (written.seen(copy).state, "manifest.ocdbt" in written.seen(copy).why)


def test_one_wrong_bit_of_a_manifest_is_noticed(kept: Path, tmp_path: Path) -> None:
    """By its CRC-32C."""
    copy = written.copied(kept / MANAGED, tmp_path / "200")
    manifest = copy / "default/manifest.ocdbt"
    text = bytearray(manifest.read_bytes())
    text[40] ^= 1
    manifest.write_bytes(text)

    assert TORN == written.seen(copy).state


@pytest.mark.parametrize("name", ZARR)
def test_a_missing_chunk_or_array_of_zarr_is_named(kept: Path, tmp_path: Path, name: str) -> None:
    """Chunks by the array's shape, arrays by what each process says it wrote."""
    for number, gone in enumerate(
        name for name in written.files(kept / name) if name.startswith("params.w/")
    ):
        copy = written.copied(kept / name, tmp_path / f"{number}" / "50")
        (copy / gone).unlink()

        judged = written.seen(copy)

        assert TORN == judged.state, gone
        assert "params.w/" in judged.why


@pytest.mark.parametrize("name", ZARR)
def test_what_describes_an_array_is_parsed(kept: Path, tmp_path: Path, name: str) -> None:
    """`.zarray` or `zarr.json`, cut anywhere."""
    described = [file for file in written.files(kept / name) if file.endswith((".zarray", "zarr.json"))]

    assert 4 == len(described)
    assert {} == {
        file: cut for file in described if (cut := written.unnoticed_cuts(kept / name, file, tmp_path))
    }


@pytest.mark.parametrize("name", ZARR)
def test_a_chunk_that_may_be_left_out_is_not_missed(kept: Path, tmp_path: Path, name: str) -> None:
    """Where Orbax was told not to store what equals the fill value."""
    copy = written.copied(kept / name, tmp_path / "50")
    metadata = copy / "_METADATA"
    metadata.write_text(
        metadata.read_text().replace('equal_to_fill_value": true', 'equal_to_fill_value": false')
    )
    for gone in (copy / "params.w/0.0", copy / "params.w/c/0/0"):
        gone.unlink(missing_ok=True)

    assert COMPLETE == written.seen(copy).state


def test_a_folder_of_steps_is_no_step(kept: Path, tmp_path: Path) -> None:
    """Though its own name ends in a number."""
    run = written.copied(kept / "orbax/manager", tmp_path / "run3")

    assert [100, 200] == [one.step for one in written.inside(run)]


def test_the_checksum_is_castagnolis() -> None:
    """The check value of CRC-32C for the digits 1 to 9."""
    assert 0xE3069283 == ocdbt_reader.crc32c(b"123456789")


def test_the_tree_of_a_database_names_each_byte_of_its_values(kept: Path) -> None:
    """What is reached adds up to what the manifest counts, in files that are there."""
    folder = kept / MANAGED / "default"
    root = ocdbt_reader.newest_root((folder / "manifest.ocdbt").read_bytes())
    assert root is not None

    ends = ocdbt_reader.file_ends(root, lambda at: (folder / at.name).read_bytes()[at.begin : at.end])

    assert ends is not None
    assert all((folder / name).stat().st_size >= end for name, end in ends.items())
    assert root.value_bytes == sum(end for name, end in ends.items() if name != root.place.name)


def test_a_manifest_that_cannot_be_read_further_says_nothing() -> None:
    """Compressed, of another version, or cut: None, and no error."""
    for text in (b"", bytes(14), b"\x0c\xdb\x3a\x2a" + bytes(60), b"\x0c\xdb\x3a\x2a" + b"\xff" * 60):
        assert ocdbt_reader.newest_root(text.ljust(20, b"\0")) is None


@pytest.mark.parametrize(
    "name", ["orbax/manager/100/default/_METADATA", "orbax/composite/step_00000020/state/_METADATA"]
)
def test_the_metadata_of_an_item_is_missed(kept: Path, tmp_path: Path, name: str) -> None:
    """Nothing can be restored without it; the list of arrays beside it says that it was there."""
    top = "/".join(name.split("/")[:3])
    copy = written.copied(kept / top, tmp_path / Path(top).name)
    (tmp_path / Path(top).name / name[len(top) + 1 :]).unlink()

    judged = written.seen(copy)

    assert TORN == judged.state
    assert "_METADATA is missing" in judged.why


@pytest.mark.parametrize("listed", ["[1]", "1", '{"a": 1}', '[{"array_metadata": 1}]', "null"])
def test_a_list_of_arrays_that_is_none_says_nothing(kept: Path, tmp_path: Path, listed: str) -> None:
    """Whoever wrote it so, the checkpoint is judged by the rest of it."""
    copy = written.copied(kept / ZARR[0], tmp_path / "50")
    for path in copy.rglob("array_metadatas/process_*"):
        path.chmod(0o600)
        path.write_text(f'{{"array_metadatas": {listed}}}')

    assert COMPLETE == written.seen(copy).state
