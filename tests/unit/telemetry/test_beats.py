"""The beats of a start as its watcher reads them, and what ranks wait in. (I/O)"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.telemetry import stack_samples
from ftrun.supervisor.telemetry.heartbeats import BeatReader, parse_beat
from ftrun.supervisor.telemetry.liveness import Activity

WAITS = "distributed/distributed_c10d.py:all_reduce < distributed/c10d_logger.py:wrapper < /train.py:step"
LOADS = "utils/data.py:load < /train.py:step"


def _write(folder: Path, rank: int, n: int, *, still: dict[str, Any] | None = None, **more: Any) -> None:
    told = {
        "rank": rank, "pid": 10 + rank, "host": f"n{rank}", "step": n, "phase": "", "n": n, "t": 1e9, "stack_signal": 42,
        "own_s": 0.5 * n, "own_n": n, **more,
    }  # fmt: skip
    if still is not None:
        told["still"] = {"stack": "aa", "top": WAITS, "cpu_s": 1.0, "io_bytes": 1000, "stuck": False, **still}
    (folder / str(rank)).write_text(json.dumps(told).ljust(400) + "\n")


def test_a_folder_that_is_not_there_has_no_beats(tmp_path: Path) -> None:
    """Scripts without beats cost nothing and break nothing."""
    pulse = BeatReader(str(tmp_path / "none")).poll(1.0)

    assert ((), None, None) == (pulse.ranks, pulse.stacks, pulse.activity)


def test_a_beat_is_as_old_as_its_last_movement_by_the_readers_clock(tmp_path: Path) -> None:
    """No clock of a node is believed: what counts is when the count was seen to move."""
    reader = BeatReader(str(tmp_path))
    _write(tmp_path, 0, 1)
    _write(tmp_path, 1, 1)
    reader.poll(10.0)
    _write(tmp_path, 1, 2)
    ranks = reader.poll(20.0).ranks

    assert [(0, "n0", 1, 10.0), (1, "n1", 2, 20.0)] == [(r.rank, r.node, r.step, r.moved_s) for r in ranks]


@pytest.mark.parametrize("rubbish", [b"", b"{", b'{"rank": 1}', b"[]", b'{"rank":"x"}', b"\xff\x00"])
def test_half_a_line_costs_that_look_only(tmp_path: Path, rubbish: bytes) -> None:
    """What cannot be read leaves the beat before it."""
    reader = BeatReader(str(tmp_path))
    _write(tmp_path, 0, 7)
    reader.poll(1.0)
    (tmp_path / "0").write_bytes(rubbish)

    assert parse_beat(rubbish) is None
    assert [7] == [rank.step for rank in reader.poll(2.0).ranks]


def test_a_count_that_begins_anew_goes_on_growing(tmp_path: Path) -> None:
    """Another process of the same rank is movement, not a step back."""
    reader = BeatReader(str(tmp_path))
    _write(tmp_path, 0, 100)
    before = reader.poll(1.0).ranks[0].n
    _write(tmp_path, 0, 1, pid=99)
    after = reader.poll(2.0).ranks[0]

    assert (before + 1, 2.0) == (after.n, after.moved_s)


def test_a_sample_is_complete_once_all_ranks_told_anew(tmp_path: Path) -> None:
    """Two tellings of each rank make a pair: whether anybody moved, and what was used in between."""
    reader = BeatReader(str(tmp_path))
    for rank in (0, 1):
        _write(tmp_path, rank, 5, still={"at": 100.0})
    assert reader.poll(1.0).stacks is None
    _write(tmp_path, 0, 5, still={"at": 105.0})
    assert reader.poll(2.0).stacks is None
    _write(tmp_path, 1, 5, still={"at": 105.0})
    pulse = reader.poll(3.0)

    assert pulse.stacks is not None
    assert (1, False, "collective") == (pulse.stacks.taken, pulse.stacks.moved, pulse.stacks.waiting)
    assert pulse.activity == Activity(cpu=False, io=False)
    assert reader.poll(4.0).stacks is None


def test_one_rank_that_moves_is_movement(tmp_path: Path) -> None:
    """A rank whose stack differs, that uses its processor or waits for a file speaks for all; and it is elsewhere."""
    reader = BeatReader(str(tmp_path))
    for at in (100.0, 105.0):
        _write(tmp_path, 0, 5, still={"at": at})
        _write(tmp_path, 1, 5, still={"at": at})
        _write(tmp_path, 2, 5, still={"at": at, "stack": str(at), "top": LOADS, "cpu_s": at, "stuck": True})
        pulse = reader.poll(at)

    assert pulse.stacks is not None
    assert (True, "", (2,)) == (pulse.stacks.moved, pulse.stacks.waiting, pulse.stacks.elsewhere)
    assert pulse.activity == Activity(cpu=True, io=True, stuck=True)


def test_a_rank_that_says_nothing_leaves_it_open(tmp_path: Path) -> None:
    """Where one rank steps or is not heard there is no sample; a rank that is done is no longer asked."""
    reader = BeatReader(str(tmp_path))
    seen = []
    for at in (100.0, 105.0, 110.0):
        _write(tmp_path, 0, 5, still={"at": at})
        _write(tmp_path, 1, 5, phase="done" if at > 100.0 else "")
        seen.append(reader.poll(at).stacks)

    assert [None, None] == seen[:2]
    assert seen[2] is not None


def test_many_ranks_are_read_in_turn(tmp_path: Path) -> None:
    """A look reads 256 files at most, the next one goes on where it ended."""
    for rank in range(300):
        _write(tmp_path, rank, 1)
    reader = BeatReader(str(tmp_path))

    assert 256 == len(reader.poll(1.0).ranks)
    assert 300 == len(reader.poll(2.0).ranks)


def test_a_node_whose_ranks_owe_a_line_while_others_write_is_seen(tmp_path: Path) -> None:
    """Ranks that stand still write as well. Where nobody writes, the file system may stand still."""
    reader = BeatReader(str(tmp_path))
    for rank in (0, 1):
        _write(tmp_path, rank, 5)
    reader.poll(100.0)
    assert reader.unwritten_s(["n1"], 109.0) == {}

    _write(tmp_path, 0, 5, still={"at": 109.0})
    assert not reader.overdue_nodes(107.0)
    assert reader.unwritten_s(["n1"], 109.0) == {"n1": 9.0}
    assert reader.overdue_nodes(109.0)
    _write(tmp_path, 1, 5, still={"at": 110.0})
    assert reader.unwritten_s(["n1.cluster", "n7"], 110.0) == {"n1.cluster": 0.0}
    assert not reader.overdue_nodes(110.0)


def test_only_ranks_are_read(tmp_path: Path) -> None:
    """Files of stacks, drafts and ranks under a wrong name are no beats."""
    _write(tmp_path, 3, 1)
    (tmp_path / "3.stack").write_text("x")
    os.link(tmp_path / "3", tmp_path / "4")

    assert [3] == [rank.rank for rank in BeatReader(str(tmp_path)).poll(1.0).ranks]


def test_own_times_are_samples_for_stragglers(tmp_path: Path) -> None:
    """Only ranks that measure them."""
    reader = BeatReader(str(tmp_path))
    _write(tmp_path, 0, 8)
    _write(tmp_path, 1, 8, own_n=0, own_s=0.0)
    reader.poll(1.0)

    assert [(0, "n0", 4.0, 8)] == [(one.rank, one.node, one.own_s, one.own_n) for one in reader.samples()]


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (WAITS, "collective"),
        ("distributed/distributed_c10d.py:barrier < /train.py:main", "collective"),
        ('File "/opt/torch/distributed/distributed_c10d.py", line 2501 in all_gather', "collective"),
        ("horovod/torch/mpi_ops.py:synchronize < /train.py:main", "collective"),
        ("cuda/__init__.py:synchronize < /train.py:main", "device"),
        ("autograd/graph.py:_engine_run_backward < autograd/__init__.py:backward", "device"),
        (LOADS, ""),
        ("threading.py:wait < queue.py:get < utils/data.py:next", ""),
        ("/distributed_training.py:train", ""),
        ("", ""),
    ],
)
def test_what_a_rank_waits_in_is_read_from_its_innermost_frames(stack: str, kind: str) -> None:
    """The framework's file and the name of a collective together; anything else is work."""
    assert kind == stack_samples.wait_kind(stack)


def test_all_wait_only_where_each_does() -> None:
    """One rank that works, or no rank at all, and nobody knows what all wait in."""
    device = "cuda/__init__.py:synchronize"

    assert ["collective", "device", "", ""] == [
        stack_samples.common_wait(dict(enumerate(tops)))
        for tops in ([WAITS, WAITS], [WAITS, device], [WAITS, LOADS], [])
    ]
