"""Pickles are read as data. (I/O)"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.checkpoints import pickle_reader

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Evil:
    """What runs a command when it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_malicious_pickle_does_nothing(tmp_path: Path, protocol: int) -> None:
    """What it wanted to call is a name with arguments."""
    victim = tmp_path / "victim"
    content = pickle.dumps({"step": 5, "weights": Evil(f"touch {victim}")}, protocol=protocol)

    value, end = pickle_reader.walk(content)

    assert 5 == value["step"]
    assert ("system", (f"touch {victim}",)) == (value["weights"].name, value["weights"].args)
    assert len(content) == end
    assert not victim.exists()


def test_what_a_pickle_nests_deeply_does_not_end_the_interpreter() -> None:
    """Hundreds of thousands of tuples in each other, as the key of a dict: to hash them would overflow the stack."""
    content = b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s."

    value, _ = pickle_reader.walk(content)

    assert [1] == list(value.values())


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_plain_values_come_out_as_they_went_in(value: Any, protocol: int) -> None:
    """Numbers, texts, lists, dicts, tuples, of every protocol."""
    # Protocols below 3 make bytes by a call.
    told, _ = pickle_reader.walk(pickle.dumps(value, protocol=protocol))

    if protocol >= 3:
        assert told == value


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pickletools, for escapes that no pickle has
@given(st.binary(max_size=200), st.integers(0, 200), st.binary(max_size=20))
def test_noise_raises_broken_and_nothing_else(noise: bytes, at: int, more: bytes) -> None:
    """A reader of half a file must not fall over it."""
    content = pickle.dumps({"a": [1, (2.5, "x")], "b": collections.OrderedDict(c=3)}, protocol=2)
    for candidate in (noise, content[:at] + more + content[at:], content[:at]):
        try:
            pickle_reader.walk(candidate)
        except pickle_reader.Broken:
            continue


def test_a_cut_pickle_is_told_from_one_that_is_none() -> None:
    """A file that ends too early may be called torn; one that never was a pickle may not."""
    content = pickle.dumps({"a": list(range(300))}, protocol=4)
    for size in range(2, len(content) - 1, 7):
        with pytest.raises(pickle_reader.Broken) as raised:
            pickle_reader.walk(content[:size])
        assert raised.value.is_cut, size
    with pytest.raises(pickle_reader.Broken) as raised:
        pickle_reader.walk(b"\xfe no pickle")
    assert not raised.value.is_cut


def test_the_state_of_an_object_is_read_by_field() -> None:
    """Megatron keeps its arguments in an argparse.Namespace."""
    value, _ = pickle_reader.walk(pickle.dumps(argparse.Namespace(world_size=8, rank=0), protocol=2))

    assert ("Namespace", 8, None) == (value.name, value.get("world_size"), value.get("missing"))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("number", [0, 1, 255, 256, 65_535, 65_536, True])
def test_a_number_behind_its_key_is_found_without_walking(protocol: int, number: int) -> None:
    """In a dict and in an object's state, whatever else is there."""
    state = {"a": "world_size", "args": argparse.Namespace(x="y", dp=number, list=[7, 7]), "z": 1.5}
    content = pickle.dumps(state, protocol=protocol)

    assert int(number) == pickle_reader.number_after(content, "dp")
    assert pickle_reader.number_after(content, "x") is None
    assert pickle_reader.number_after(content, "missing") is None


def test_a_key_with_two_numbers_has_none() -> None:
    """Which of them is meant cannot be known."""
    content = pickle.dumps([{"n": 1}, argparse.Namespace(m=2), [{"n": 2}]], protocol=4) + pickle.dumps(
        {"n": 3}
    )

    assert pickle_reader.number_after(content, "n") is None
    assert 2 == pickle_reader.number_after(content, "m")


@pytest.mark.parametrize("protocol", range(1, pickle.HIGHEST_PROTOCOL + 1))
def test_a_list_that_repeats_a_number_tells_it(protocol: int) -> None:
    """DeepSpeed keeps a count for each group of parameters."""
    content = pickle.dumps({"same": [4, 4], "one": [300], "differ": [1, 2], "none": []}, protocol=protocol)

    told = [pickle_reader.repeated_number_after(content, key) for key in ("same", "one", "differ", "none")]

    assert [4, 300, None, None] == told


def test_what_a_walk_costs_grows_with_the_content_and_no_faster() -> None:
    """The bound that the quick level relies on: ten times the content, much less than a hundred times the time."""
    spent_s: list[float] = []
    for entries in (3_000, 30_000):
        content = pickle.dumps([{"name": f"layer.{n}", "at": n} for n in range(entries)], protocol=4)
        begin = time.process_time()
        pickle_reader.walk(content)
        spent_s.append(time.process_time() - begin)

    assert len(content) > 1_000_000 // 2
    assert spent_s[1] < 50 * spent_s[0]
