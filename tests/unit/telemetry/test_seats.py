"""Laws of seats: which rank sits where is learnt from lines, never guessed, and a hostile line costs nothing. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.slurm.client import nodeset
from ftrun.supervisor.diagnosis import blame
from ftrun.supervisor.diagnosis.inputs import read_attempt_files
from ftrun.supervisor.model.types import Evidence, Source, Topology
from ftrun.supervisor.telemetry.rank_map import SEATS_MAX, RankMap


def _nccl(host: str, rank: int, size: int, device: int) -> str:
    return (
        f"{host}:81:92 [{device}] NCCL INFO comm 0x55d0c0de rank {rank} nranks {size}"
        f" cudaDev {device} nvmlDev {device} busId {rank}5e000 commId 0x1f2e - Init COMPLETE"
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def _learnt(log: Path, *lines: str, nodes: tuple[str, ...] = ()) -> Topology:
    log.write_text("\n".join(lines) + "\n")
    report = read_attempt_files([str(log)]).report
    assert () == report.evidence
    return report.seats.added_to(Topology(nodes=nodes))


def test_ranks_hosts_and_devices_are_learnt_from_nccl(log: Path) -> None:
    """Thousands of such lines are no evidence, and every one of them counts."""
    lines = [_nccl(f"n{rank // 8}", rank, 1024, rank % 8) for rank in range(1024)]
    found = _learnt(log, *lines)

    assert {rank: f"n{rank // 8}" for rank in range(1024)} == dict(found.rank_node)
    assert "95e000" == found.rank_device[9]


def test_a_smaller_communicator_counts_its_own_ranks(log: Path) -> None:
    """Rank 1 of a pair is not rank 1 of the job, whichever is set up first."""
    pair = [_nccl("n0", 0, 2, 0), _nccl("n1", 1, 2, 0)]
    world = [_nccl("n0", 0, 4, 0), _nccl("n0", 1, 4, 1), _nccl("n1", 2, 4, 0), _nccl("n1", 3, 4, 1)]

    for lines in ([*pair, *world], [*world, *pair]):
        assert {0: "n0", 1: "n0", 2: "n1", 3: "n1"} == dict(_learnt(log, *lines).rank_node)


def test_a_rank_on_two_hosts_is_on_neither(log: Path) -> None:
    """Two lines that disagree tell nothing; short and long names of one host agree."""
    found = _learnt(
        log,
        "rank 3 of 16 on gpu07",
        "rank 3 of 16 on gpu08",
        "rank 4 of 16 on gpu07",
        "rank 4 of 16 on gpu07.site",
    )

    assert {3: "", 4: "gpu07"} == dict(found.rank_node)


def test_no_host_outside_the_attempt_is_learnt(log: Path) -> None:
    """What a program prints of other machines is none of our business."""
    found = _learnt(log, "rank 0 of 2 on n1.site", "rank 1 of 2 on elsewhere", nodes=("n1", "n2"))

    assert {0: "n1"} == dict(found.rank_node)


def test_an_address_leads_to_its_host(log: Path) -> None:
    """A peer is told by its address; NCCL says at the start whose that is."""
    found = _learnt(log, "n2:81:81 [0] NCCL INFO Bootstrap : Using eth0:10.11.0.7<0>")

    assert {"10.11.0.7": "n2"} == dict(found.address_node)


def test_the_address_of_the_other_end_is_not_that_of_who_tells_of_it(log: Path) -> None:
    """Who says that a peer has gone names the peer's address, not its own."""
    gone = "n2:81:88 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 10.11.0.9<4711>"

    log.write_text(f"{gone}\n")

    assert {} == dict(read_attempt_files([str(log)]).report.seats.added_to(Topology()).address_node)


@pytest.mark.parametrize("ranks", ["0-99999999999", "1-", "-", "3,,4", "9" * 300, "x"])
def test_absurd_ranks_are_left_alone(ranks: str) -> None:
    """A line that names more ranks than there can be names none."""
    seats = RankMap()
    seats.note("", {"host": "n1", "rank": ranks})

    assert len(seats.hosts) <= 1
    seats.note("", {"host": "n1", "rank": f"0-{SEATS_MAX - 2}"})
    seats.note("", {"host": "n1", "rank": f"{SEATS_MAX}-{SEATS_MAX + 5}"})
    assert len(seats.hosts) <= SEATS_MAX + 6


def test_a_node_list_without_end_is_refused() -> None:
    """A log may hold any text, and no text may cost all memory."""
    with pytest.raises(ValueError, match="more than"):
        nodeset.expand("n[0-999999999]")


def test_the_task_number_of_one_of_several_steps_seats_nobody() -> None:
    """Where a start has a step in each of several jobs, each counts from 0: a rank that two lines put on two nodes stays on neither."""
    seats = RankMap()
    seats.note("n2:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4", {"host": "n2", "rank": "0"})
    seats.note("srun: error: n5: task 0: Exited with exit code 1", {"host": "n5", "rank": "0"})

    topology = seats.added_to(Topology(nodes=("n2", "n4", "n5")))
    aborted = Evidence(
        Source.LOG,
        "slurm-task-aborted",
        "srun: error: n4: task 0: Aborted",
        captures={"host": "n4", "rank": "0"},
    )

    assert {0: ""} == topology.rank_node
    assert {0: ""} == blame.with_learned_ranks([aborted], topology).rank_node
    assert topology.node_of("rank 0") is None
