"""Laws of the flight recorders: who waits for nobody is to blame, and a dump is never run. (I/O)"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.diagnosis import flight_recorder
from ftrun.supervisor.diagnosis.flight_recorder import Collective, Dump, Group


def _group(name: str, members: tuple[int, ...], enqueued: int, completed: int, **calls: Collective) -> Group:
    return Group(name, members, enqueued, completed, {one.sequence: one for one in calls.values()})


def _dump(rank: int, *groups: Group) -> Dump:
    return Dump(rank, {group.name: group for group in groups})


WORLD = (0, 1, 2, 3)


def _call(sequence: int, call: str = "all_reduce 4 Float", *, started: bool = True) -> Collective:
    return Collective(sequence, call, started, completed=False)


def test_nothing_is_said_of_ranks_that_finished_all() -> None:
    """No collective is open, so nobody waits."""
    assert () == flight_recorder.blocked_collectives(
        [_dump(rank, _group("w", WORLD, 9, 9)) for rank in WORLD]
    )


def test_the_rank_that_never_came_is_named() -> None:
    """Three wait in the tenth, the fourth never entered it."""
    dumps = [_dump(rank, _group("w", WORLD, 10, 9, a=_call(10))) for rank in (0, 1, 3)]
    dumps.append(_dump(2, _group("w", WORLD, 9, 9)))
    (line,) = flight_recorder.blocked_collectives(dumps)

    assert "rank 2 did not join collective 10 (all_reduce 4 Float) of group w; 3 of 4 ranks wait" in line


def test_a_rank_without_a_dump_is_missing_too() -> None:
    """A dead process writes nothing."""
    dumps = [_dump(rank, _group("w", WORLD, 10, 9, a=_call(10))) for rank in (0, 1, 3)]
    (line,) = flight_recorder.blocked_collectives(dumps)

    assert "rank 2 did not join" in line
    assert line.endswith("it left no dump")


def test_waiting_is_followed_to_the_one_who_waits_for_nobody() -> None:
    """Ranks 0 and 2 wait for 1, and 1 waits in its pair for 3: rank 3 is to blame."""
    dumps = [
        _dump(0, _group("data", (0, 1, 2), 5, 4, a=_call(5))),
        _dump(2, _group("data", (0, 1, 2), 5, 4, a=_call(5))),
        _dump(1, _group("data", (0, 1, 2), 4, 4), _group("pair", (1, 3), 8, 7, a=_call(8))),
        _dump(3, _group("pair", (1, 3), 7, 7)),
    ]

    (line,) = flight_recorder.blocked_collectives(dumps)
    assert "rank 3 did not join collective 8" in line


def test_a_circle_blames_the_program() -> None:
    """Each waits for the other: no rank is late, the order is wrong."""
    dumps = [
        _dump(0, _group("a", (0, 1), 1, 0, x=_call(1)), _group("b", (0, 1), 0, 0)),
        _dump(1, _group("a", (0, 1), 0, 0), _group("b", (0, 1), 1, 0, x=_call(1))),
    ]

    assert (
        "flight recorder: ranks 0, 1 wait for each other in 2 process groups",
    ) == flight_recorder.blocked_collectives(dumps)


def test_the_odd_call_is_named() -> None:
    """All came to the same place and one of them calls something else."""
    dumps = [_dump(rank, _group("w", WORLD, 3, 2, a=_call(3))) for rank in (0, 1, 3)]
    dumps.append(_dump(2, _group("w", WORLD, 3, 2, a=_call(3, "all_gather 4 Float"))))
    (line,) = flight_recorder.blocked_collectives(dumps)

    assert "mismatch at collective 3 of group w: rank 2 calls all_gather" in line


def test_the_device_that_never_began_is_named_and_else_nobody() -> None:
    """Joined by all; one device is behind, or none can be told from the rest."""
    even = [_dump(rank, _group("w", WORLD, 3, 2, a=_call(3))) for rank in WORLD]
    behind = [*even[:3], _dump(3, _group("w", WORLD, 3, 2, a=_call(3, started=False)))]

    assert (
        "rank 3 joined collective 3 of group w, but its device never began it"
        in flight_recorder.blocked_collectives(behind)[0]
    )
    assert "all ranks joined collective 3" in flight_recorder.blocked_collectives(even)[0]


def _table(enqueued: int, completed: int) -> dict[str, Any]:
    """A dump as version 2.10 of the format writes it, of one rank of four."""
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number + 1,
            "p2p_seq_id": 0,
            "op_id": number + 1,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1,
            "input_sizes": ((64, 64),),
            "input_dtypes": ["Float"],
            "state": "completed" if number < completed else "scheduled",
            "is_p2p": False,
            "retired": False,
        }
        for number in range(enqueued)
    ]
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": enqueued, "last_started_collective": completed, "last_completed_collective": completed}},
        "entries": entries,
    }  # fmt: skip


@pytest.mark.parametrize("packed", [True, False])
def test_a_dump_is_read_from_a_pickle_and_from_json(tmp_path: Path, packed: bool) -> None:
    """Both forms that the recorder writes tell the same; the rank is the number at the end of the name."""
    for rank in WORLD:
        table = _table(5 if rank == 1 else 6, 5)
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(table, protocol=2) if packed else json.dumps(table).encode())
        assert flight_recorder.looks_like_dump(path.read_bytes()[:4096])

    (line,) = flight_recorder.blocked_collectives(
        [flight_recorder.read_dump(path) for path in sorted(tmp_path.iterdir())]
    )
    assert "rank 1 did not join collective 6 (all_reduce 64x64 Float) of group default_pg[0]" in line


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/nonexistent/ftrun-bomb"),))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"pg_config": {}, "entries": [_Bomb()]}),
        pickle.dumps({"entries": 7, "pg_config": {}}),
        pickle.dumps({"entries": ["x"], "pg_config": {}}),
        pickle.dumps([1, 2]),
        pickle.dumps(_table(3, 2))[:-200],
        b"\x80\x04garbage",
        b'{"pg_config": ',
    ],
)
def test_a_damaged_or_hostile_dump_is_one_line_and_runs_nothing(tmp_path: Path, content: bytes) -> None:
    """Whatever a pickle would import, it is refused before it is looked up."""
    path = tmp_path / "trace_0"
    path.write_bytes(content)

    with pytest.raises(flight_recorder.BadDump, match=r"trace_0: [^\n]+$"):
        flight_recorder.read_dump(path)
