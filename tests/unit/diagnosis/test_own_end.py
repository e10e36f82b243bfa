"""Laws of an end of ours: nothing that is written after it is a cause (P7). (I/O)"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.diagnosis import inputs, suspicions
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model import events
from ftrun.supervisor.model.run import Attempt
from ftrun.supervisor.model.types import Diagnosis, FaultClass, HangState, HangVerdict, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.log_watcher import LogWatcher
from ftrun.supervisor.telemetry.tail import LogPath, Piece

CATALOG = catalog.load()
NODES = ("n0", "n1")
HUNG = suspicions.hang_suspicion(HangVerdict(HangState.HUNG, 70.0, 60.0, "no step for 70 s"), NODES)
STEPS = "".join(f"step {step}/90 loss 0.5\n" for step in range(1, 20))
RESET = "0: ConnectionResetError: [Errno 104] Connection reset by peer\n"
KILLED = "srun: error: n1: task 1: Killed\n"
XID = "n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus.\n"
STEPD = "slurmstepd: error: *** STEP 12.0 ON n0 CANCELLED AT 2026-01-01T10:00:00 ***\n"
BUG = "Traceback (most recent call last):\nTypeError: unsupported operand\n"


def _judged(before: str, after: str, *, known: bool = True, name: str = "job.log") -> Diagnosis:
    """What becomes of a hang whose log had `before` when ftrun began to end it, and `after` behind."""
    file = LogFile(name, LogContext(CATALOG))
    file.take(Piece((before + after).encode(), 0, 0), 1000.0)
    file.finish(1000.0)
    facts = Facts(
        evidence=file.evidence(),
        topology=Topology(nodes=NODES),
        catalog=CATALOG,
        ended=Ended("FAILED", exit_code=143, by_us=True),
        progress=file.progress,
        suspicion=HUNG,
        end_offsets={"job.log": len(before.encode())} if known else {},
    )
    return diagnose(facts)


@pytest.mark.parametrize("after", [RESET, STEPD + RESET + KILLED, XID, RESET * 200, BUG, KILLED + STEPD])
def test_what_our_own_end_prints_is_no_cause(after: str) -> None:
    """Peers of a rank that is killed lose their connections, whichever end the line is printed at."""
    found = _judged(STEPS, after)

    assert (found.fault, found.signature) == (FaultClass.HANG, HUNG.signature)
    assert found.because == ()


def test_it_is_counted_and_told() -> None:
    found = _judged(STEPS, RESET + KILLED)

    assert found.consequences == 2
    assert "2 lines written after ftrun had begun to end the start: no cause" in found.rests_on


@pytest.mark.parametrize("line", [RESET, XID])
def test_what_stood_before_counts_as_ever(line: str) -> None:
    assert _judged(STEPS + line, RESET) == replace(
        _judged(STEPS + line, ""),
        consequences=1,
        rests_on=_judged(STEPS + line, RESET).rests_on,
    )
    assert _judged(STEPS + line, "").fault is not FaultClass.HANG


def test_a_link_that_came_back_may_be_why_training_hangs() -> None:
    """Alone it is no fault, and training that goes on after it has survived it; this one did not."""
    down = "Nov 22 10:00:00 n1 kernel: mlx5_core 0000:5e:00.0 ibs3: Link down\n"
    up = "Nov 22 10:00:01 n1 kernel: mlx5_core 0000:5e:00.0 ibs3: Link up\n"
    assert _judged(STEPS + down + up, RESET).fault is FaultClass.NETWORK
    more = "".join(f"step {step}/90 loss 0.5\n" for step in range(20, 30))
    assert _judged(STEPS + down + up + more, RESET).fault is FaultClass.HANG


def test_a_line_under_way_when_the_end_began_counts_by_where_it_begins() -> None:
    head, tail = XID[:20], XID[20:]
    assert _judged(STEPS + head, tail).fault is FaultClass.HARDWARE_GPU


def test_of_a_log_whose_length_is_not_known_every_line_counts() -> None:
    assert _judged(STEPS, RESET, known=False).fault is FaultClass.NETWORK
    assert _judged(STEPS, RESET, name="other.log").fault is FaultClass.NETWORK


def test_no_time_is_compared() -> None:
    """A node whose clock is an hour behind prints after our end what bears an earlier time."""
    late = "2026-01-01T09:00:00 " + RESET
    assert _judged("2026-01-01T10:00:00 " + STEPS, late).fault is FaultClass.HANG


def test_a_worker_s_error_file_that_our_end_makes_is_not_read(tmp_path: Path) -> None:
    early, late = tmp_path / "0.json", tmp_path / "1.json"
    for path in (early, late):
        path.write_text('{"message": {"message": "x", "extraInfo": {"py_callstack": "y"}}}')
    dump = tmp_path / "nccl_0"
    dump.write_bytes(b"{}")

    paths = [str(early), str(late), str(dump)]
    assert inputs.attachments_before(paths, {str(early): 10}) == [str(early), str(dump)]
    assert inputs.attachments_before(paths, {}) == paths


def test_a_watcher_tells_how_long_its_logs_are_even_beyond_what_it_has_read(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"one\n")
    watcher = LogWatcher([LogPath(str(log))], catalog=CATALOG)
    watcher.poll(1.0)
    assert watcher.sizes() == {str(log): 4}
    with open(log, "ab") as stream:
        stream.write(b"two\n")
    assert watcher.sizes() == {str(log): 8}
    log.unlink()
    assert watcher.sizes() == {str(log): 4}
    watcher.close()


# ---- what the journal keeps of it


BEGUN = ("start.begun", {"nodes": ["n0"], "token": "0.1", "resume_from": ""}, 1)
OVER = ("start.over", {"code": 143, "signal": 0, "by_us": True}, 1)


def _attempt(*told: tuple[str, dict[str, Any], int]) -> Attempt:
    """The attempt of a run that runs, after these records: kind, data, start."""
    before: list[tuple[str, dict[str, Any]]] = [
        ("run.created", {"token": "t"}),
        ("attempt.opened", {}),
        ("submit.done", {}),
        ("job.started", {"nodes": ["n0"]}),
    ]
    records = [*((kind, data, 1) for kind, data in before), *told]
    common = {"at": 7.0, "attempt": 1, "launch": 0, "job": "1"}
    lines = [common | {"kind": kind, "data": data, "start": start} for kind, data, start in records]
    return events.fold("r-1", lines).attempts[-1]


def _agent_ends(size_bytes: int, kind: str = "start.end.intended") -> tuple[str, dict[str, Any], int]:
    return kind, {"logs": {"job.log": size_bytes}}, 1


def test_the_agent_s_end_is_known_to_the_supervisor_that_judges_after_it() -> None:
    assert _attempt(BEGUN, _agent_ends(90), OVER).end_offsets == {"job.log": 90}


def test_the_first_of_several_steps_of_an_end_counts() -> None:
    attempt = _attempt(BEGUN, _agent_ends(90), ("steps.cancel.intended", {"steps": ["1.0"]}, 1), OVER)
    assert attempt.end_offsets == {"job.log": 90}


def test_an_end_of_an_earlier_start_says_nothing_of_the_present_one() -> None:
    again = ("start.begun", {"nodes": ["n0"], "token": "0.2", "resume_from": ""}, 2)
    assert _attempt(BEGUN, _agent_ends(90), OVER, again).end_offsets == {}


def test_a_cancel_of_ours_counts_and_a_person_s_or_one_of_a_stray_does_not() -> None:
    logs = {"logs": {"job.log": 80}}
    meant = ("end.intended", {"reason": "it hangs"}, 1)
    assert _attempt(meant, ("cancel.intended", {"own": True, **logs}, 1)).end_offsets == {"job.log": 80}
    assert _attempt(meant, ("cancel.intended", {"own": False, **logs}, 1)).end_offsets == {}
    assert _attempt(meant).end_offsets == {}


def test_a_later_cancel_that_names_no_logs_takes_nothing_back() -> None:
    """What Slurm put back into its queue is cancelled when it is judged already."""
    meant = ("end.intended", {"reason": "it hangs"}, 1)
    first = ("cancel.intended", {"own": True, "logs": {"job.log": 80}}, 1)
    again = ("cancel.intended", {"own": True, "what": "requeued job 1"}, 1)
    assert _attempt(meant, first, again).end_offsets == {"job.log": 80}


def test_of_two_who_end_it_the_earlier_counts() -> None:
    cancel = ("cancel.intended", {"own": True, "logs": {"job.log": 80, "err.log": 5}}, 1)
    attempt = _attempt(BEGUN, _agent_ends(90), ("end.intended", {"reason": "it hangs"}, 1), cancel)
    assert attempt.end_offsets == {"job.log": 80, "err.log": 5}


def test_each_task_of_an_array_has_the_end_of_its_own_log() -> None:
    ends = (("tasks.end.intended", {"task": task, "logs": {f"{task}.log": 10 + task}}, 1) for task in (1, 2))
    assert _attempt(*ends).end_offsets == {"1.log": 11, "2.log": 12}


def test_a_journal_of_an_older_build_names_no_lengths() -> None:
    """Every line counts, as it did."""
    meant = ("end.intended", {"reason": "it hangs"}, 1)
    attempt = _attempt(
        BEGUN, ("steps.cancel.intended", {"steps": []}, 1), OVER, meant, ("cancel.intended", {"own": True}, 1)
    )
    assert attempt.end_offsets == {}
