"""Laws of whose line it is: what another job or a node of an earlier launch writes into a shared log is nobody's evidence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.model.types import Evidence
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.line_owner import NO_OWNERS_KNOWN, KnownOwners, LineOwner, owner_of
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.log_watcher import LogWatcher
from ftrun.supervisor.telemetry.tail import LogPath, Piece

CATALOG = catalog.load()
# Attempt 2 is job 42 on n1 and n2; attempt 1 was job 41 on n0 and n1.
SECOND = KnownOwners(
    frozenset({"42"}), frozenset({"n1", "n2", "n10"}), frozenset({"41"}), frozenset({"n0", "n1", "n20"})
)
AT = "AT 2026-11-22T16:01:19"
NODE_LOST = f"CANCELLED {AT} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"

FOREIGN = (
    f"slurmstepd-n0: error: *** JOB 41 ON n0 {NODE_LOST}",
    f"slurmstepd: error: *** STEP 41.0 ON n1 CANCELLED {AT} ***",
    f"1: slurmstepd: error: *** STEP 41.0 ON n1 {NODE_LOST}",
    f"slurmstepd: error: *** STEP 41.0 STEPD TERMINATED ON n0 {AT} DUE TO JOB NOT ENDING WITH SIGNALS ***",
    f"slurmstepd: error: *** JOB 77 ON gpu9 CANCELLED {AT} DUE TO TIME LIMIT ***",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=41.0. Some of the step tasks have been OOM Killed.",
    "slurmstepd-n0: error: Failed to send MESSAGE_TASK_EXIT: Connection refused",
    "srun: error: Node failure on n0",
    "srun: error: Node failure on n[0,2]",
    "srun: error: n0: task 0: Killed",
    "srun: error: n[0-1]: tasks 0-1: Terminated",
    "srun: Force Terminated StepId=41.0",
    "srun: launch/slurm: _step_signal: Terminating StepId=41.0",
    "srun: error: Unable to create step for job 41: Job/step already completing or completed",
    "srun: error: Task launch for StepId=41.1 failed on node n1: Communication connection failure",
    "srun: error: Task launch for StepId=42.0 failed on node n1: see JobId=40_3(41)",
    "srun: error: Unable to confirm allocation for job 41: Invalid job id specified",
    "/var/spool/slurmd/job00041/slurm_script: line 8: 4711 Killed                  srun ./train",
    "slurmstepd: error: execve(): /var/spool/slurmd/job00041/slurm_script: No such file or directory",
    "n0:81:90 [0] NCCL WARN NET/IB : Got completion from peer with status=12",
    "n0.cluster:81:90 [0] NCCL WARN NET/IB : Got completion from peer with status=12",
    "Nov 22 16:01:19 n0 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, GPU has fallen off the bus.",
    "[n0:40812] *** Process received signal ***",
    "n0: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "slurmstepd: error:  mpi/pmix_v4: pmixp_coll_ring_reset_if_to: n20 [2]: pmixp_coll_ring.c:736: collective timeout seq=1",
)
OURS = (
    f"slurmstepd-n1: error: *** STEP 42.0 ON n1 CANCELLED {AT} ***",
    f"slurmstepd: error: *** JOB 42 ON n1 {NODE_LOST}",
    "srun: error: Node failure on n2",
    "srun: error: n10: task 3: Killed",
    "srun: error: n[2,10]: tasks 1,3: Killed",
    "srun: error: Unable to create step for job 42: More processors requested than permitted",
    "/var/spool/slurmd/job00042/slurm_script: line 8: 4711 Killed                  srun ./train",
)
UNSAID = (
    "srun: error: n1: task 0: Exited with exit code 1",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "srun: error: Timed out waiting for job step to complete",
    "srun: error: Cannot communicate with node 0.  Aborting job.",
    "srun: error: task 0 launch failed: Slurmd could not connect IO",
    "srun: got SIGCONT",
    "resuming from the checkpoint of job 41 on n0",
    "INFO: JobId=41 is over, its weights are loaded (StepId=41.0)",
    "sbatch --dependency=afterok:41 next.sh",
    "slurm-41.out: error: *** see there",
    "loading /ckpt/job00041/step_100.pt",
    "ConnectionRefusedError: [Errno 111] Connection refused: storage01:2049",
    "mount.nfs: Connection timed out for n0:/scratch",
    "n1:81:90 [0] NCCL WARN socketProgress: Connection closed by remote peer n0<48123>",
    "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from n0: Connection reset by peer",
    "ssh: connect to host n0 port 22: No route to host",
    "[login1:4711] PRTE ERROR: cannot reach a daemon",
    "gpu07:81:90 [0] NCCL WARN NET/IB : Got completion from peer with status=12",
    "n01: not the name of any node",
    "ftrun: attempt 2 goes on from what job 41 saved",
    "",
)


@pytest.mark.parametrize("line", FOREIGN)
def test_a_line_that_names_another_job_or_node_where_slurm_names_its_own_is_anothers(line: str) -> None:
    """So is one in front of which a program put a host that only an earlier launch had."""
    assert owner_of(line, SECOND) is LineOwner.FOREIGN


@pytest.mark.parametrize("line", OURS)
def test_a_line_that_names_this_job_or_a_node_of_it_alone_is_ours(line: str) -> None:
    """What is said of a node that an earlier launch had, too, may be either's."""
    assert owner_of(line, SECOND) is LineOwner.OURS


@pytest.mark.parametrize("line", UNSAID)
def test_a_name_at_any_other_place_proves_nothing(line: str) -> None:
    """People print the ids of earlier jobs; a true error names a file server, a peer, a login node; a program names its host in its own way."""
    assert owner_of(line, SECOND) is LineOwner.UNSAID


@pytest.mark.parametrize("line", [*FOREIGN, *OURS, *UNSAID])
def test_where_nothing_is_known_of_a_launch_every_line_counts(line: str) -> None:
    """So it was for a log that somebody names by hand."""
    assert owner_of(line, NO_OWNERS_KNOWN) is LineOwner.UNSAID


def test_a_requeued_launch_has_its_job_s_id_and_is_known_by_its_nodes() -> None:
    """Slurm gives the same id again: only a node that the new launch has not shows that the old one speaks."""
    again = KnownOwners(
        frozenset({"41"}), frozenset({"n1", "n2"}), frozenset({"41"}), frozenset({"n0", "n1"})
    )

    assert (
        owner_of(f"slurmstepd: error: *** JOB 41 ON n0 CANCELLED {AT} DUE TO JOB REQUEUE ***", again)
        is LineOwner.FOREIGN
    )
    assert owner_of(f"slurmstepd: error: *** STEP 41.0 ON n1 CANCELLED {AT} ***", again) is LineOwner.UNSAID
    assert owner_of(f"slurmstepd: error: *** STEP 41.0 ON n2 CANCELLED {AT} ***", again) is LineOwner.OURS


@pytest.mark.parametrize("line", [FOREIGN[0], FOREIGN[4], "srun: error: Node failure on n7"])
def test_parts_of_an_array_or_a_heterogeneous_job_are_not_taken_for_strangers(line: str) -> None:
    """They have ids and nodes that nobody listed; only what an earlier launch had is another's there."""
    several = KnownOwners(SECOND.jobs, SECOND.nodes, SECOND.other_jobs, SECOND.other_nodes, several=True)

    assert (owner_of(line, several) is LineOwner.FOREIGN) == (line == FOREIGN[0])


def test_companions_are_ours_from_when_they_join() -> None:
    """Steps span them under their own job's id, and a node that the run has left may come back as one."""
    grown = SECOND.having(("50",), ("n0",))

    assert owner_of(f"slurmstepd: error: *** STEP 50.0 ON n0 CANCELLED {AT} ***", grown) is LineOwner.OURS
    assert owner_of("n0:81:90 [0] NCCL WARN NET/IB : Got completion from peer", grown) is LineOwner.UNSAID
    assert owner_of("srun: error: Node failure on n20", grown) is LineOwner.FOREIGN


# What a thawed batch node really wrote into the log of its successor, which loaded in silence.
THAWED = f"""\
srun: error: n1: task 1: Terminated
srun: error: slurm_msg_sendto: address:port=127.0.0.1:50148 msg_type=8001: Unexpected missing socket error
srun: error: Node failure on n0
srun: error: n1: task 1: Terminated
srun: error: Task 1 reported exit for a second time.
srun: got SIGCONT
slurmstepd-n0: error: *** JOB 41 ON n0 {NODE_LOST}
srun: Job step aborted
""".encode()
BUG = b"Traceback (most recent call last):\nTypeError: unsupported operand type(s) for +: 'int' and 'NoneType'\n"
OWN_WORDS = b"srun: error: n1: task 0: Exited with exit code 1\nsrun: Job step aborted\n"
OWN_END = f"slurmstepd-n1: error: *** STEP 42.0 ON n1 CANCELLED {AT} ***\n".encode()


def _read(pieces: list[bytes], *, ours: KnownOwners = SECOND, rests: bool = False) -> tuple[Evidence, ...]:
    """The evidence of a text that arrives in such pieces, and in the end the same of all of it."""
    file, offset_bytes = LogFile("log", LogContext(CATALOG, ours)), 0
    for piece in pieces:
        file.take(Piece(piece, offset_bytes, 0), 1.0)
        offset_bytes += len(piece)
        if rests:
            file.rest(1.0)
    file.finish(1.0)
    return file.evidence()


def _words(evidence: tuple[Evidence, ...]) -> list[tuple[str, int, int]]:
    return [(one.text, one.offset_bytes, one.count) for one in evidence]


def test_the_last_words_of_a_thawed_node_are_no_evidence() -> None:
    """Neither those that name it nor what its srun says of a node that both launches have."""
    assert len(_read([THAWED], ours=NO_OWNERS_KNOWN)) == 5
    assert _read([THAWED]) == ()


@pytest.mark.parametrize("between", [b"step 100 loss 2.5\n", b"loading shard 3\n", BUG, OWN_END])
def test_what_our_srun_says_later_counts(between: bytes) -> None:
    """A line of the program, or one that is ours for certain, ends the burst."""
    own = _read([between, OWN_WORDS])
    shown = {one.text for one in _read([THAWED, between, OWN_WORDS])}

    assert shown == {one.text for one in own}
    assert "srun: error: n1: task 0: Exited with exit code 1" in shown


def test_words_of_our_own_end_are_ours_where_another_s_follow() -> None:
    """The burst reaches back to the last line that is ours for certain."""
    texts = {one.text for one in _read([OWN_WORDS, OWN_END, THAWED])}

    assert OWN_END.decode().strip() in texts
    assert not any("NODE FAILURE" in text or "Node failure" in text for text in texts)


def test_a_blank_line_ends_no_burst() -> None:
    """Bash and srun print some."""
    assert _read([THAWED.replace(b"srun: got SIGCONT", b"\n\n \r\n")]) == ()


@pytest.mark.parametrize("seed", range(60))
def test_the_pieces_in_which_a_burst_arrives_change_nothing(seed: int) -> None:
    """What was evidence for a moment, before somebody else was named, is taken back; what is counted then is what is there."""
    dice = random.Random(seed)
    parts = [OWN_WORDS, BUG, b"step 7 loss 2.5\n", OWN_END, b"", OWN_WORDS * 30, b"\n"]
    text = (
        b"".join(dice.choice(parts) for _ in range(3))
        + THAWED
        + b"".join(dice.choice(parts) for _ in range(3))
    )
    cuts = sorted(dice.randrange(len(text)) for _ in range(dice.randrange(1, 12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert _words(_read(pieces, rests=dice.random() < 0.5)) == _words(_read([text]))


def test_what_was_found_before_a_truncation_is_not_taken_back() -> None:
    """Offsets begin anew then."""
    file = LogFile("log", LogContext(CATALOG, SECOND))
    file.take(Piece(b"loading\n" * 100 + OWN_WORDS, 0, 0), 1.0)
    before = file.evidence()
    file.take(Piece(b"srun: Job step aborted\n", 0, 1), 1.0)
    file.take(Piece(THAWED, 23, 1), 1.0)

    assert file.evidence() == before


def test_a_burst_of_another_job_is_told_and_not_counted(tmp_path: Path) -> None:
    """The first line of each kind is told, so that `ftrun explain` can show what was passed over."""
    log = tmp_path / "log"
    log.write_bytes(THAWED)
    watcher = LogWatcher([LogPath(str(log))], catalog=CATALOG, ours=SECOND)
    report = watcher.poll(1.0)

    assert (report.evidence, report.new) == ((), ())
    assert [one.text for one in report.others][:2] == [
        "srun: error: n1: task 1: Terminated", "srun: error: Node failure on n0",
    ]  # fmt: skip
    assert report.others[1].line == 3


def test_no_rank_is_seated_by_another_job(tmp_path: Path) -> None:
    """A rank that two lines put on two hosts is on neither."""
    log = tmp_path / "log"
    said = "{}:81:90 [1] NCCL INFO ncclCommInitRank comm 0x55d0c0de rank 0 nranks 2 cudaDev 1 nvmlDev 1 busId 5e000 commId 0x1 - Init COMPLETE\n"
    log.write_text(said.format("n0") + said.format("n1"))

    assert LogWatcher([LogPath(str(log))], catalog=CATALOG, ours=SECOND).poll(1.0).seats.hosts == {0: "n1"}


def _ours(*names: str) -> KnownOwners:
    jobs, nodes, other_jobs, other_nodes = (frozenset(words.split()) for words in names)
    return KnownOwners(jobs, nodes, other_jobs, other_nodes)


def test_a_launch_and_the_others_of_its_run_are_known_by_their_records(tmp_path: Path) -> None:
    """Each start of a job by Slurm left one: a requeue has the same id, and other nodes perhaps."""
    run_dir = str(tmp_path)
    for attempt, launch, lines in (
        (1, 0, "job=41\nnodes=n[0-1]\n"), (1, 1, "job=41\nnodes=n[1,3]\n"), (2, 0, "job=42\nnodes=n[1-2]\n"),
        (3, 0, "job=43\nnodes=n[1-2]\nhet_size=2\n"),
    ):  # fmt: skip
        place = tmp_path / "attempts" / str(attempt)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"launch.{launch}").write_text(lines)

    found = log_watcher.known_owners(run_dir, 2, 0)
    assert found == _ours("42", "n1 n2", "41 43", "n0 n1 n2 n3")
    assert log_watcher.known_owners(run_dir, 1, 1) == _ours("41", "n1 n3", "41 42 43", "n0 n1 n2")
    assert [log_watcher.known_owners(run_dir, *place).several for place in ((1, 0), (3, 0))] == [False, True]
    assert log_watcher.known_owners(run_dir, 4, 0) == NO_OWNERS_KNOWN


def test_afterwards_the_same_lines_count_as_live(tmp_path: Path) -> None:
    """What is read to judge a launch is what was seen while it ran."""
    log = tmp_path / "log"
    log.write_bytes(THAWED + BUG + OWN_WORDS)
    live = LogWatcher([LogPath(str(log))], catalog=CATALOG, ours=SECOND).poll(1.0).evidence
    afterwards = inputs.read_attempt_files([str(log)], catalog=CATALOG, ours=SECOND).report.evidence

    assert [one.text for one in afterwards] == [one.text for one in live]
    assert len(live) == 4
