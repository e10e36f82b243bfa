"""Zips of torch: the directory proves the file, the checksums prove the records. (I/O)"""

from __future__ import annotations

import math
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.hooks.checkpoints import file_check, listing
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, EMPTY, QUICK, TORN, UNFLUSHED, Damaged, Need
from tests.unit import written

PAGE = 4096
GIB = 1 << 30


def zipped(path: Path, records: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """A zip as torch names its records."""
    with zipfile.ZipFile(path, "w", method) as packed:
        for name, content in records.items():
            packed.writestr(f"archive/{name}", content)
    return path


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes without a zero page, the same for the same seed."""
    block = bytes((seed + n * 31) % 255 + 1 for n in range(1021))
    return (block * (size // len(block) + 1))[:size]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    return zipped(
        folder / "step_10.pt",
        {"data.pkl": noise(900), "data/0": noise(30_000, 3), "data/1": noise(20_000, 5)},
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.floats(0, 1, exclude_max=True))
def test_a_file_that_was_cut_anywhere_is_not_complete(saved: Path, tmp_path: Path, part: float) -> None:
    """Not even where one byte is missing, and already on the quick level."""
    copy = written.copied(saved, tmp_path / "step_10.pt")
    size = int(saved.stat().st_size * part)
    written.cut(copy, size)

    assert (TORN if size else EMPTY) == written.seen(copy).state


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(page=st.integers(0, 12), as_hole=st.booleans())
def test_a_page_of_zeros_is_found_by_the_deep_level(
    saved: Path, tmp_path: Path, page: int, as_hole: bool
) -> None:
    """What a crashed machine did not flush: no page of a zip is all zeros, so some checksum or header is wrong."""
    copy = written.copied(saved, tmp_path / "step_10.pt")
    at = min(page, (saved.stat().st_size - 1) // PAGE) * PAGE
    with copy.open("r+b") as stream:
        stream.seek(at)
        stream.write(bytes(min(PAGE, saved.stat().st_size - at)))

    assert written.seen(copy, level=DEEP).state in (TORN, UNFLUSHED)


def test_what_was_never_flushed_is_told_from_what_was_cut(saved: Path, tmp_path: Path) -> None:
    """Of the right length, with a hole at its end, or nothing but a hole."""
    size = saved.stat().st_size
    tail, nothing = tmp_path / "step_1.pt", tmp_path / "step_2.pt"
    tail.write_bytes(saved.read_bytes()[: size // 2])
    os.truncate(tail, size)
    nothing.touch()
    os.truncate(nothing, size)

    assert [UNFLUSHED, UNFLUSHED] == [written.seen(path).state for path in (tail, nothing)]


def test_a_hole_over_a_record_is_found_quickly_by_its_checksum(tmp_path: Path) -> None:
    """The directory is there, and it tells the record's checksum, which is not that of zeros."""
    path = zipped(
        tmp_path / "step_1.pt", {"data.pkl": noise(100), "data/0": noise(1 << 19), "data/1": noise(100)}
    )
    with zipfile.ZipFile(path) as packed:
        begin = packed.getinfo("archive/data/0").header_offset
    content = path.read_bytes()
    path.unlink()
    with path.open("wb") as stream:  # all but the pages of the record
        stream.write(content[: begin + 43])
        stream.seek(begin + 43 + (1 << 19))
        stream.write(content[stream.tell() :])

    assert written.seen(path).state == UNFLUSHED


def test_zeros_that_are_stored_as_holes_are_good(tmp_path: Path) -> None:
    """Moments of an optimizer that has not stepped are zeros, and some file systems keep them as holes."""
    path = zipped(
        tmp_path / "step_1.pt", {"data.pkl": noise(100), "data/0": bytes(1 << 20), "data/1": noise(100)}
    )
    content = path.read_bytes()
    path.unlink()
    begin = content.index(bytes(1 << 20))
    with path.open("wb") as stream:
        stream.write(content[:begin])
        stream.seek(begin + (1 << 20))
        stream.write(content[stream.tell() :])

    assert path.read_bytes() == content
    assert [COMPLETE, COMPLETE] == [written.seen(path, level=level).state for level in (QUICK, DEEP)]


def test_a_file_beyond_four_gigabytes_is_judged_by_its_zip64_end(tmp_path: Path) -> None:
    """Six gigabytes that take no room: the sizes stand in the zip64 fields; cut by a byte it is torn."""
    path = tmp_path / "step_6.pt"
    huge = 6 * GIB
    names = [b"archive/data.pkl", b"archive/data/0", b"archive/version"]
    sizes = [3, huge, 2]
    contents = [b"abc", None, b"3\n"]
    entries, offset = b"", 0
    with path.open("wb") as stream:
        for name, size, content in zip(names, sizes, contents, strict=True):
            crc = zlib.crc32(content) if content is not None else 0
            wide = struct.pack("<2H2Q", 1, 16, size, size)
            stream.write(
                struct.pack(
                    "<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(wide)
                )
            )
            stream.write(name + wide + (content or b""))
            stream.seek(0 if content is not None else huge, os.SEEK_CUR)
            extra = struct.pack("<2H3Q", 1, 24, size, size, offset)
            full = (0xFFFFFFFF,) * 2
            entries += struct.pack(
                "<4s6H3L5H2L",
                b"PK\1\2",
                45,
                45,
                0,
                0,
                0,
                0,
                crc,
                *full,
                len(name),
                len(extra),
                0,
                0,
                0,
                0,
                full[0],
            )
            entries += name + extra
            offset = stream.tell()
        stream.write(entries)
        end = stream.tell()
        stream.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, len(entries), offset))
        stream.write(struct.pack("<4sLQL", b"PK\6\7", 0, end, 1))
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 3, 3, len(entries), 0xFFFFFFFF, 0))

    whole = written.seen(path)
    written.cut(path, path.stat().st_size - 1)

    assert COMPLETE == whole.state, whole.why
    assert whole.size_bytes > huge
    assert TORN == written.seen(path).state


def test_a_changed_byte_is_found_by_the_deep_level_alone(saved: Path, tmp_path: Path) -> None:
    """The quick level reads no weights."""
    copy = written.copied(saved, tmp_path / "step_10.pt")
    with copy.open("r+b") as stream:
        stream.seek(20_000)
        stream.write(b"\0")

    assert [COMPLETE, TORN] == [written.seen(copy, level=level).state for level in (QUICK, DEEP)]
    assert "archive/data/0" in written.seen(copy, level=DEEP).why


def test_packed_records_are_read_too(tmp_path: Path) -> None:
    """numpy's savez_compressed and others pack."""
    path = zipped(tmp_path / "step_1.npz", {"a": noise(9000), "b": noise(100)}, zipfile.ZIP_DEFLATED)
    whole = written.seen(path, level=DEEP).state
    with path.open("r+b") as stream:
        stream.seek(60)
        stream.write(b"\xff\xff\xff")

    assert [COMPLETE, TORN] == [whole, written.seen(path, level=DEEP).state]


@pytest.mark.parametrize("packed", ["w", "w:gz"])
def test_an_archive_of_nemo_is_cut_nowhere_unnoticed(tmp_path: Path, packed: str) -> None:
    """A tar by its headers, with the zip in it by its directory; one that gzip packed by the deep level."""
    weights = zipped(tmp_path / "model_weights.ckpt", {"data.pkl": noise(500), "data/0": noise(9000)})
    (tmp_path / "model_config.yaml").write_text("name: llama\n" * 40)
    path = tmp_path / "model.nemo"
    with tarfile.open(path, packed) as archive:  # type: ignore[call-overload]
        for name in ("model_config.yaml", "model_weights.ckpt"):
            archive.add(tmp_path / name, arcname=f"./{name}")
    weights.unlink()
    levels = (QUICK, DEEP) if packed == "w" else (DEEP,)

    assert {COMPLETE} == {written.seen(path, level=level).state for level in (QUICK, DEEP)}
    size = path.stat().st_size
    content = path.read_bytes()
    # Behind the two blocks that end a tar is padding that may be missing.
    end = len(content.rstrip(b"\0")) // 512 * 512 + 1024 if packed == "w" else size
    for number, at in enumerate([*range(1, end, max(1, end // 25)), end - 1]):
        copy = tmp_path / f"{number}.nemo"
        copy.write_bytes(content[:at])
        assert {TORN} >= {written.seen(copy, level=level).state for level in levels}, at


def test_a_zip_behind_another_is_what_torch_loads(saved: Path, tmp_path: Path) -> None:
    """Whoever saves into an open file again has the newest at its end; cut, it is torn."""
    twice = tmp_path / "step_2.pt"
    twice.write_bytes(saved.read_bytes() * 2)
    whole = [written.seen(twice, level=level).state for level in (QUICK, DEEP)]
    written.cut(twice, saved.stat().st_size + 30_000)

    assert [COMPLETE, COMPLETE] == whole
    assert TORN == written.seen(twice).state


def test_a_record_that_somebody_else_wrote_has_no_checksum(saved: Path, tmp_path: Path) -> None:
    """torch notes 0 where it leaves the bytes of a record to another writer: there is nothing to compare."""
    path = tmp_path / "step_2.pt"
    content = saved.read_bytes()
    with zipfile.ZipFile(saved) as packed:
        crc = struct.pack("<L", packed.getinfo("archive/data/0").CRC)
    path.write_bytes(content.replace(crc, bytes(4)))

    assert COMPLETE == written.seen(path, level=DEEP).state


def test_tensors_of_safetensors_behind_objects_of_torch_are_no_torn_zip(saved: Path, tmp_path: Path) -> None:
    """torch.distributed.checkpoint writes shards so where it is told to; of those the metadata tells the least length."""
    shard = tmp_path / "__0_0.distcp"
    header = b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[25],"data_offsets":[0,100]}}'
    block = struct.pack("<Q", len(header)) + header + noise(100)
    tree = listing.Tree(str(tmp_path), str(tmp_path), {})

    for content in (saved.read_bytes() + block, saved.read_bytes()):
        shard.write_bytes(content)
        tree = tree._replace(files={shard.name: listing.FileFact(len(content), 0.0)})
        file_check.check_file(tree, shard.name, Need(kind="zipchain"), DEEP, math.inf)
    shard.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(Damaged):
        file_check.check_file(tree, shard.name, Need(kind="zipchain"), QUICK, math.inf)
