"""Laws of a rank that a signal ended: it is the cause, and what its peers then print is not. (pure)"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.launch_state import is_fatal
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, FaultClass, HangState, HangVerdict, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.tail import Piece

CATALOG = catalog.load()
NODES = ("n0", "n1", "n2", "n3")
FAILED = Ended("FAILED", exit_code=1)
STEPS = [f"0: step {step}/90 loss 0.5" for step in range(1, 20)]
RESETS = [f"{rank}: ConnectionResetError: [Errno 104] Connection reset by peer" for rank in (0, 2, 3)]
GLOO = "2: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.0.5]:4"
NCCL = "0: RuntimeError: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"
EXITS = [
    "srun: error: n0: task 0: Exited with exit code 1",
    "srun: error: n[2-3]: tasks 2-3: Exited with exit code 1",
]
FORCED = "srun: Force Terminated StepId=12.0"
LATE = (
    "0: [E1030 10:00:00.0 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=20, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
XID = "n2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed."
BUG = [
    "1: Traceback (most recent call last):",
    '1:   File "t.py", line 3, in <module>',
    "1: TypeError: 'NoneType' object",
]


def _facts(*lines: str, ended: Ended | None = FAILED) -> Facts:
    file = LogFile("job.log", LogContext(CATALOG))
    file.take(Piece("".join(f"{line}\n" for line in lines).encode(), 0, 0), 1000.0)
    file.finish(1000.0)
    return Facts(
        evidence=file.evidence(),
        topology=Topology(nodes=NODES),
        catalog=CATALOG,
        ended=ended,
        progress=file.progress,
    )


def _judged(*lines: str, ended: Ended | None = FAILED) -> Diagnosis:
    return diagnose(_facts(*STEPS, *lines, ended=ended))


def _died(word: str, rank: str = "1", host: str = "n1") -> str:
    return f"srun: error: {host}: task{'s' * (not rank.isdigit())} {rank}: {word}"


@pytest.mark.parametrize(
    ("word", "signal"),
    [
        ("Killed", "SIGKILL"),
        ("Terminated", "SIGTERM"),
        ("Interrupt", "SIGINT"),
        ("Aborted (core dumped)", "SIGABRT"),
        ("Aborted", "SIGABRT"),
        ("Segmentation fault (core dumped)", "SIGSEGV"),
        ("Floating point exception", "SIGFPE"),
    ],
)
@pytest.mark.parametrize("others", [[*RESETS, *EXITS], [GLOO, *EXITS], [NCCL, *RESETS, FORCED], EXITS])
@pytest.mark.parametrize("first", [True, False])
def test_the_rank_that_a_signal_ended_is_named_with_its_node(
    word: str, signal: str, others: list[str], first: bool
) -> None:
    """srun's report may come just before or just behind what the others print."""
    lines = [_died(word), *others] if first else [*others[:1], _died(word), *others[1:]]
    found = _judged(*lines)

    assert found.nodes == ("n1",)
    assert not found.exclude
    assert found.title.startswith("rank 1 on n1 ")
    assert signal in found.title
    assert found.fault is (
        FaultClass.LIBRARY_BUG if word.startswith(("Abort", "Seg", "Float")) else FaultClass.UNKNOWN
    )
    assert [one.text for one in found.because] == [_died(word)]
    assert found.retry


@pytest.mark.parametrize(
    "ended_by",
    [
        FORCED,
        "srun: Terminating StepId=12.0",
        "srun: Job step aborted: Waiting up to 32 seconds",
        "slurmstepd: error: *** STEP 12.0 ON n0 CANCELLED AT 2026-01-01T10:00:00 ***",
    ],
)
def test_after_the_step_was_ended_every_rank_dies_and_none_is_named(ended_by: str) -> None:
    found = _judged(*RESETS[:1], ended_by, _died("Killed"), _died("Terminated", "2-3", "n[2-3]"))
    assert (found.fault, found.nodes) == (FaultClass.NETWORK, ())


@pytest.mark.parametrize(
    ("line", "fault"),
    [(XID, FaultClass.HARDWARE_GPU), (OOM, FaultClass.OOM_HOST), (BUG[-1], FaultClass.USER_CODE)],
)
def test_what_says_why_a_rank_died_says_more(line: str, fault: FaultClass) -> None:
    lines = BUG if line is BUG[-1] else [line]
    assert _judged(*lines, _died("Killed"), *RESETS, *EXITS).fault is fault


def test_ranks_of_several_nodes_that_are_killed_together_name_no_node() -> None:
    found = _judged(_died("Killed", "0-1", "n[0-1]"), *RESETS[1:])
    assert found.nodes == ()
    assert found.title.startswith("ranks 0-1 on n0, n1 were ended by SIGKILL")


def test_several_ranks_that_abort_met_something_together() -> None:
    """Whoever aborts because of a lost connection is no cause of it."""
    found = _judged(*RESETS, _died("Aborted"), _died("Aborted", "2", "n2"))
    assert (found.fault, found.nodes) == (FaultClass.NETWORK, ())


def test_a_rank_that_aborts_after_a_time_out_is_not_its_cause() -> None:
    assert _judged(LATE, _died("Aborted", "0", "n0"), *EXITS[1:]).fault is FaultClass.HANG


def test_a_time_out_after_a_death_follows_from_it_and_one_before_does_not() -> None:
    assert _judged(_died("Killed"), LATE).nodes == ("n1",)
    assert _judged(LATE, _died("Killed")).fault is FaultClass.HANG


def test_a_hang_after_a_rank_was_killed_is_called_by_that() -> None:
    """The others waited for it until ftrun ended the start."""
    hung = suspicions.hang_suspicion(HangVerdict(HangState.HUNG, 70.0, 60.0, "no step"), NODES)
    facts = replace(
        _facts(*STEPS, _died("Killed"), ended=replace(FAILED, by_us=True)), suspicion=hung, rank_ended=True
    )
    found = diagnose(facts)
    assert (found.nodes, found.fault) == (("n1",), FaultClass.UNKNOWN)


def test_a_requeue_ends_every_rank() -> None:
    found = _judged(_died("Terminated"), ended=Ended("PENDING", requeued=True, exit_signal=15))
    assert found.nodes == ()


def test_a_death_that_training_survived_is_none() -> None:
    found = _judged(_died("Killed"), *(f"0: step {step}/90 loss 0.5" for step in range(20, 40)))
    assert found.nodes == ()


def test_a_live_start_is_suspect_when_a_rank_died() -> None:
    """So the silence of the others needs less to be a hang."""
    live = diagnose(_facts(*STEPS, _died("Killed"), *RESETS, ended=None))
    assert is_fatal(live)
    assert not is_fatal(diagnose(_facts(*STEPS, ended=None)))
