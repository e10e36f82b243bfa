"""Laws of the small zstd decompressor, against the library's own frames. (pure)"""

from __future__ import annotations

import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.checkpoints import zstd

TEXTS = st.one_of(
    st.binary(max_size=3000),
    st.lists(
        st.sampled_from([b"params.layer_", b"kernel/", b"0", b"17", b"\0\1", b"bias"]), max_size=400
    ).map(b"".join),
    st.builds(lambda text, times: text * times, st.binary(max_size=40), st.integers(0, 300)),
)


@given(text=TEXTS, level=st.sampled_from([-5, 1, 3, 9, 19]), checksum=st.booleans(), sized=st.booleans())
def test_what_the_library_packs_is_unpacked(text: bytes, level: int, checksum: bool, sized: bool) -> None:
    """At any level, with a checksum or without, with its size told or not."""
    packed = zstandard.ZstdCompressor(
        level=level, write_checksum=checksum, write_content_size=sized
    ).compress(text)

    assert text == zstd.decompress(packed)


@pytest.mark.parametrize("skew", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("level", [1, 19])
def test_long_texts_of_uneven_letters_are_unpacked(skew: float, level: int) -> None:
    """Trees of literals in four streams, and several blocks."""
    source = random.Random(7)
    text = bytes(min(255, int(source.expovariate(skew))) for _ in range(150_000))

    assert text == zstd.decompress(zstandard.ZstdCompressor(level=level).compress(text))


@given(text=TEXTS, place=st.integers(0, 400), value=st.integers(0, 255), length=st.integers(0, 400))
def test_a_damaged_frame_is_an_error_or_some_bytes_and_ends_nothing_else(
    text: bytes, place: int, value: int, length: int
) -> None:
    """One byte is another, or the end is missing."""
    packed = bytearray(zstandard.ZstdCompressor().compress(text))
    packed[place % len(packed)] = value
    for damaged in (bytes(packed), bytes(packed[:length])):
        try:
            zstd.decompress(damaged)
        except ValueError:
            continue
