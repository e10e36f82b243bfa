"""Laws of reading zstd frames by the system's library, against frames of another. (pure)"""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.checkpoints import ocdbt_reader

TEXTS = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda text, times: text * times, st.binary(max_size=40), st.integers(0, 300)),
)


@given(text=TEXTS, level=st.sampled_from([-5, 3, 19]), checksum=st.booleans(), sized=st.booleans())
def test_what_the_library_packs_is_unpacked(text: bytes, level: int, checksum: bool, sized: bool) -> None:
    """At any level, with a checksum or without, with its size told or not, and whatever stands behind it."""
    packer = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=sized)

    assert text == ocdbt_reader.decompress(packer.compress(text))
    assert text == ocdbt_reader.decompress(packer.compress(text) + b"behind")


@given(text=TEXTS, place=st.integers(0, 400), value=st.integers(0, 255), length=st.integers(0, 400))
def test_a_damaged_frame_is_an_error_or_some_bytes_and_ends_nothing_else(
    text: bytes, place: int, value: int, length: int
) -> None:
    """One byte is another, or the end is missing."""
    packed = bytearray(zstandard.ZstdCompressor().compress(text))
    packed[place % len(packed)] = value
    for damaged in (bytes(packed), bytes(packed[:length])):
        try:
            ocdbt_reader.decompress(damaged)
        except ValueError:
            continue


def test_a_frame_of_more_than_a_node_has_is_refused() -> None:
    """It may be a bomb."""
    with pytest.raises(ValueError, match="more than"):
        ocdbt_reader.decompress(zstandard.ZstdCompressor().compress(bytes(ocdbt_reader.OUT_BYTES_MAX + 1)))


def test_without_the_library_nothing_is_known_of_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read proves nothing."""
    packed = zstandard.ZstdCompressor().compress(b"body")
    monkeypatch.setattr(ocdbt_reader, "_library", lambda: None)

    assert ocdbt_reader.newest_root(bytes(12) + b"\0\1" + packed + bytes(4)) is None
