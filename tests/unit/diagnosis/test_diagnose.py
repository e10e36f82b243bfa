"""Laws of the diagnosis, as tables of evidence in and a diagnosis out. (pure)"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import (
    Action,
    Blame,
    Diagnosis,
    Evidence,
    FaultClass,
    Layer,
    Role,
    Source,
    Topology,
)
from ftrun.supervisor.signatures.catalog import Catalog, Signature
from ftrun.supervisor.telemetry.progress import Progress

NODES = ("n0", "n1", "n2", "n3")
RANKS = {rank: f"n{rank // 2}" for rank in range(8)}
FOUR = Topology(nodes=NODES)
SEATED = Topology(nodes=NODES, rank_node=RANKS, address_node={"10.0.0.2": "n2"})
OFFLINE = Topology()


def _signature(name: str, fault: str, **changes: Any) -> Signature:
    values: dict[str, Any] = {
        "id": name,
        "title": name.replace("-", " "),
        "fault": FaultClass(fault),
        "layer": Layer.FRAMEWORK,
        "role": Role.CAUSE,
        "blame": Blame.JOB,
        "pattern": name,
        "action": Action.STOP,
        "retry": False,
        "exclude": False,
        "priority": 50,
        "confidence": 0.8,
        "at_once": False,
        "advice": "",
        "vendor": "",
        "sources": (Source.LOG,),
        "fact": "",
        "examples": (),
        "counter_examples": (),
    }
    return Signature(**{**values, **changes})


def _hardware(name: str, fault: str, **changes: Any) -> Signature:
    device: dict[str, Any] = {
        "blame": Blame.DEVICE, "action": Action.DRAIN, "retry": True, "exclude": True, "priority": 90, "confidence": 0.85,
    }  # fmt: skip
    return _signature(name, fault, **{**device, **changes})


ROWS = (
    _hardware("xid-off-the-bus", "hardware-gpu"),
    _hardware("ecc", "hardware-gpu", priority=88),
    _hardware("node-failure-line", "node", blame=Blame.NODE, priority=70),
    _hardware("link-retry", "network", blame=Blame.LINK, priority=60, exclude=False, action=Action.RESUBMIT),
    _signature("traceback", "user-code"),
    _signature("zero-division", "user-code", priority=52),
    _signature("bad-config", "config"),
    _signature(
        "collective-timeout", "hang", role=Role.EITHER, priority=40, retry=True, action=Action.RESUBMIT
    ),
    _signature("torn-checkpoint", "checkpoint", priority=55, retry=True, action=Action.RESUBMIT),
    _signature("port-in-use", "port-conflict", priority=55, retry=True, action=Action.RESUBMIT),
    _signature("host-oom", "oom-host", priority=75),
    _signature("due-to-preemption", "preempted", priority=70, retry=True, action=Action.RESUBMIT),
    _signature("due-to-time-limit", "timelimit", priority=70, retry=True, action=Action.RESUBMIT),
    _signature("step-cancelled", "cancelled", priority=70),
    _signature("child-failed", "unknown", role=Role.CONSEQUENCE, priority=20),
    _signature("peer-closed", "network", role=Role.CONSEQUENCE, priority=30),
    _signature("link-flap", "network", role=Role.INFO, priority=30),
    _signature("training-done", "healthy", priority=10),
    _signature("damaged", "data"),
    _signature("job-begins", "healthy", role=Role.EITHER, priority=10),
    _signature("generic-error", "user-code", priority=15),
    _signature(
        "crash", "library-bug", role=Role.EITHER, blame=Blame.UNKNOWN, retry=True, action=Action.RESUBMIT
    ),
)
CATALOG = Catalog(ROWS, MappingProxyType({row.id: row for row in ROWS}), "test")


def _line(signature: str, order: int = 0, text: str = "", **changes: Any) -> Evidence:
    captures: dict[str, str] = {
        str(key): changes.pop(key) for key in ("host", "rank", "peer", "ip", "step") if key in changes
    }
    values = {
        "source": Source.LOG,
        "file": "job.log",
        "line": order + 1,
        "order": order,
        "offset_bytes": order * 100,
    }
    return Evidence(signature=signature, text=text or signature, captures=captures, **{**values, **changes})


def _judged(
    *lines: Evidence, ended: Ended | None = None, topology: Topology = FOUR, progress: Progress | None = None
) -> Diagnosis:
    return diagnose(Facts(lines, topology, ended=ended, catalog=CATALOG, progress=progress))


def _progress(offset_bytes: int) -> Progress:
    return Progress(
        step=100,
        total=None,
        loss=None,
        checkpoint_step=None,
        checkpoint_path="",
        offset_bytes=offset_bytes,
        steps_seen=100,
    )


ENDINGS = [
    ("completed", Ended("COMPLETED", exit_code=0), (), "healthy", False),
    ("completed in spite of a traceback", Ended("COMPLETED", exit_code=0), (_line("traceback"),), "healthy", False),
    ("preempted", Ended("PREEMPTED"), (), "preempted", True),
    ("time limit", Ended("TIMEOUT", exit_signal=15), (_line("step-cancelled"),), "timelimit", True),
    ("node lost", Ended("NODE_FAIL", nodes_down=("n2",)), (), "node", True),
    ("boot failed", Ended("BOOT_FAIL"), (), "node", True),
    ("launch failed", Ended("PENDING", reason="launch failed requeued held", requeued=True), (), "node", True),
    ("memory", Ended("OUT_OF_MEMORY", exit_signal=9), (), "oom-host", False),
    ("scancel", Ended("CANCELLED", exit_signal=15), (_line("step-cancelled"),), "cancelled", False),
    ("scancel after a traceback", Ended("CANCELLED"), (_line("traceback"),), "cancelled", False),
    ("cancelled for the time", Ended("CANCELLED"), (_line("due-to-time-limit"),), "timelimit", True),
    ("cancelled for a better job", Ended("CANCELLED"), (_line("due-to-preemption"),), "preempted", True),
    ("dependency", Ended("CANCELLED", reason="DependencyNeverSatisfied"), (), "config", False),
    ("deadline", Ended("CANCELLED", reason="DeadLine"), (), "timelimit", True),
    ("our own cancel", Ended("CANCELLED", by_us=True), (_line("xid-off-the-bus"),), "hardware-gpu", True),
    ("our own cancel, no line", Ended("CANCELLED", by_us=True, exit_signal=15), (_line("step-cancelled"),), "hang", True),
    ("a step was cancelled", Ended("FAILED", exit_code=1), (_line("step-cancelled"), _line("traceback")), "user-code", False),
    ("requeued by a person", Ended("PENDING", requeued=True), (), "healthy", False),
    ("requeued with TERM", Ended("PENDING", exit_signal=15, requeued=True), (), "healthy", False),
    ("script killed", Ended("FAILED", reason="JobLaunchFailure", exit_signal=9), (), "unknown", True),
    ("launch failure", Ended("FAILED", reason="JobLaunchFailure"), (), "node", True),
    ("killed by nobody known", Ended("FAILED", exit_signal=9), (), "unknown", True),
    ("killed, by the shell's number", Ended("FAILED", exit_code=137), (), "unknown", True),
    ("segmentation fault", Ended("FAILED", exit_signal=11), (), "user-code", False),
    ("command not found", Ended("FAILED", exit_code=127), (), "config", False),
    ("exit 1 and silence", Ended("FAILED", exit_code=1), (), "unknown", True),
    ("gone", Ended("GONE"), (), "unknown", True),
    ("user's bug", Ended("FAILED", exit_code=1), (_line("traceback"), _line("child-failed", 1)), "user-code", False),
    ("torn checkpoint", Ended("FAILED", exit_code=1), (_line("torn-checkpoint"), _line("traceback", 1)), "checkpoint", True),
    ("port", Ended("FAILED", exit_code=1), (_line("port-in-use"), _line("traceback", 1)), "port-conflict", True),
]  # fmt: skip


def test_a_missing_folder_for_the_output_is_no_fault_of_a_node() -> None:
    """Slurm cannot open the output: a new job would end in the same way."""
    ended = Ended("FAILED", reason="JobLaunchFailure", exit_signal=53)
    found = diagnose(Facts((), FOUR, ended=ended, catalog=CATALOG, no_log_folder="/w/logs"))

    assert (found.fault, found.retry) == (FaultClass.CONFIG, False)
    assert "/w/logs" in found.title
    assert "mkdir -p /w/logs" in found.advice


@pytest.mark.parametrize(
    ("ended", "lines", "fault", "retry"), [e[1:] for e in ENDINGS], ids=[e[0] for e in ENDINGS]
)
def test_every_ending_has_its_class(
    ended: Ended, lines: tuple[Evidence, ...], fault: str, retry: bool
) -> None:
    """Slurm's record decides where it is decisive, the log where it is not, the exit record last."""
    found = _judged(*lines, ended=ended)

    assert (FaultClass(fault), retry) == (found.fault, found.retry)
    assert found.rests_on
    assert found.title


def test_a_failed_step_in_a_script_that_exits_zero_is_noted() -> None:
    """The script's verdict wins; that a step failed stands among the words."""
    found = _judged(ended=Ended("COMPLETED", exit_code=0, derived_exit_code=3))

    assert FaultClass.HEALTHY is found.fault
    assert any("a step exited 3" in words for words in found.rests_on)


def test_the_node_that_slurm_calls_down_is_the_culprit_by_slurms_word() -> None:
    """Slurm's own record of a node is a source that no user can write."""
    found = _judged(_line("peer-closed", 1, host="n0"), ended=Ended("NODE_FAIL", nodes_down=("n2",)))

    assert (("n2",), True, (Source.SLURM,)) == (found.nodes, found.exclude, found.sources)
    assert 1 == found.consequences


def test_a_node_down_that_was_not_of_the_attempt_is_nobody() -> None:
    """What else is down on the cluster has nothing to do with this job."""
    found = _judged(_line("traceback"), ended=Ended("FAILED", exit_code=1, nodes_down=("n9",)))

    assert (FaultClass.USER_CODE, ()) == (found.fault, found.nodes)


def test_a_lost_node_whose_hardware_complained_was_lost_to_its_hardware() -> None:
    """The more specific cause on the same node wins, and both sources stand behind it."""
    found = _judged(_line("xid-off-the-bus", host="n2"), ended=Ended("NODE_FAIL", nodes_down=("n2",)))

    assert (FaultClass.HARDWARE_GPU, ("n2",)) == (found.fault, found.nodes)
    assert {Source.LOG, Source.SLURM} == set(found.sources)


def test_hardware_on_another_node_does_not_explain_the_lost_one() -> None:
    """A complaint of n1 is not why n2 was lost."""
    found = _judged(_line("xid-off-the-bus", host="n1"), ended=Ended("NODE_FAIL", nodes_down=("n2",)))

    assert (FaultClass.NODE, ("n2",)) == (found.fault, found.nodes)


def test_a_lost_node_named_by_the_log_alone_is_no_word_of_slurms() -> None:
    """A drain needs a source that no user can write, so such a line never counts as Slurm's."""
    found = _judged(_line("node-failure-line", host="n3"), ended=Ended("NODE_FAIL"))

    assert (("n3",), (Source.LOG,)) == (found.nodes, found.sources)


def test_a_person_who_cancelled_is_believed_even_while_a_node_is_down() -> None:
    """What a person stopped never comes back."""
    found = _judged(ended=Ended("CANCELLED", nodes_down=("n1",)))

    assert (FaultClass.CANCELLED, False) == (found.fault, found.retry)


def test_hardware_comes_before_the_software_that_noticed_it() -> None:
    """The traceback was printed first, the device is the cause."""
    found = _judged(_line("traceback", 0), _line("child-failed", 1), _line("xid-off-the-bus", 2, host="n1"))

    assert ("xid-off-the-bus", ("n1",), 1) == (found.signature, found.nodes, found.consequences)
    assert ["xid-off-the-bus"] == [proof.signature for proof in found.because]


def test_the_earliest_of_equals_is_the_cause_and_the_other_its_rival() -> None:
    """First before later; a rival of another class takes confidence away."""
    alone = _judged(_line("traceback", 5))
    found = _judged(_line("traceback", 5), _line("bad-config", 2))

    assert "bad-config" == found.signature
    assert found.confidence < alone.confidence
    assert any("could also be: traceback" in words for words in found.rests_on)


def test_what_training_survived_is_no_cause() -> None:
    """A line after which a higher step was printed is counted as survived."""
    found = _judged(_line("ecc", 0, host="n1", progress_after=True), _line("traceback", 9))

    assert "traceback" == found.signature
    assert any("survived" in words for words in found.rests_on)


def test_a_live_run_with_survived_or_harmless_lines_is_healthy() -> None:
    """The provisional diagnosis of a run that goes on is no fault and has no signature."""
    found = _judged(_line("link-flap", 1, host="n1"), _line("traceback", 2, progress_after=True))

    assert (FaultClass.HEALTHY, "", (), False) == (found.fault, found.signature, found.nodes, found.exclude)


def test_consequences_alone_are_a_failure_of_unknown_cause() -> None:
    """A wrapper's words tell that it failed, never why; they are shown to the person."""
    found = _judged(_line("child-failed", 3), topology=OFFLINE)

    assert (FaultClass.UNKNOWN, "", True) == (found.fault, found.signature, found.retry)
    assert ["child-failed"] == [proof.signature for proof in found.suspicious]


def test_a_good_end_in_a_text_forgives_what_stood_before_it() -> None:
    """A file that several submissions were appended to is judged by its last one."""
    lines = (_line("due-to-preemption", 1), _line("training-done", 5))

    assert FaultClass.HEALTHY is _judged(*lines).fault
    assert FaultClass.USER_CODE is _judged(*lines, _line("traceback", 7)).fault


def test_a_beginning_after_slurms_verdict_is_a_later_submission() -> None:
    """What was preempted before the file went on is past; the same file without a beginning is not."""
    earlier = (_line("traceback", 1), _line("due-to-preemption", 2))

    assert FaultClass.HEALTHY is _judged(*earlier, _line("job-begins", 3)).fault
    assert FaultClass.CONFIG is _judged(*earlier, _line("job-begins", 3), _line("bad-config", 5)).fault
    assert FaultClass.PREEMPTED is _judged(*earlier).fault


def test_slurms_verdict_stands_though_steps_follow_it() -> None:
    """A job has some seconds before it is killed, and may print steps in them."""
    assert FaultClass.TIMELIMIT is _judged(_line("due-to-time-limit", 2, progress_after=True)).fault


def test_a_step_that_srun_killed_after_a_failure_was_not_cancelled_by_a_person() -> None:
    """One task fails, srun kills the rest of the step; a person's cancel names the job as well."""
    bug = _line("traceback", 1)
    step = _line(
        "step-cancelled", 2, text="slurmstepd: error: *** STEP 7.0 ON n0 CANCELLED AT 2026-01-01T00:00:00 ***"
    )
    job = _line(
        "step-cancelled", 3, text="slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-01-01T00:00:00 ***"
    )

    assert FaultClass.USER_CODE is _judged(bug, step).fault
    assert FaultClass.CANCELLED is _judged(bug, step, job).fault
    assert FaultClass.CANCELLED is _judged(step).fault


def test_of_several_signatures_on_one_line_one_speaks() -> None:
    """A wrapper's line that also looks like an exception is the wrapper's."""
    lines = (_line("child-failed", 3, text="x"), _line("generic-error", 3, text="x"))

    assert FaultClass.UNKNOWN is _judged(*lines).fault


def test_a_wrong_result_before_the_first_step_is_the_softwares() -> None:
    """The line accuses a device, but nothing was ever right: the set-up."""
    line = _line("ecc", 3, host="n1", step="-1")

    assert (FaultClass.LIBRARY_BUG, (), False) == (
        _judged(line).fault,
        _judged(line).nodes,
        _judged(line).retry,
    )
    assert FaultClass.HARDWARE_GPU is _judged(_line("ecc", 3, host="n1", step="800")).fault


def test_a_crash_on_all_hosts_before_the_first_step_comes_again() -> None:
    """One host may be sick; two that crash alike at the start run the same broken program."""
    lines = [_line("crash", i, text=f"srun: error: n{i}: task {i}: Segmentation fault") for i in (0, 1)]

    assert _judged(lines[0]).retry
    assert not _judged(*lines).retry
    assert _judged(*lines, progress=_progress(0)).retry


def test_a_file_that_no_rank_can_read_at_the_start_is_the_configuration() -> None:
    """Ranks read samples of their own and settings in common."""
    lines = [_line("damaged", i, rank=str(i)) for i in (0, 1)]

    assert FaultClass.DATA is _judged(lines[0]).fault
    assert FaultClass.CONFIG is _judged(*lines).fault
    assert FaultClass.DATA is _judged(*lines, progress=_progress(0)).fault


def test_a_good_end_in_the_text_does_not_outvote_a_record_of_failure() -> None:
    """Logs are written by users; the record of the end is not."""
    found = _judged(_line("traceback", 1), _line("training-done", 5), ended=Ended("FAILED", exit_code=1))

    assert FaultClass.USER_CODE is found.fault


def test_the_missing_rank_is_blamed_and_not_those_that_report() -> None:
    """A collective time-out points at who did not come."""
    lines = [_line("collective-timeout", rank, rank=str(rank)) for rank in range(8) if rank != 5]
    found = _judged(*lines, topology=SEATED)

    assert (FaultClass.HANG, ("n2",)) == (found.fault, found.nodes)


def test_where_ranks_are_not_seated_the_silent_node_is_the_suspect() -> None:
    """Hosts in the lines of three nodes leave the fourth."""
    lines = [_line("collective-timeout", i, host=f"n{i}") for i in (0, 1, 3)]

    assert ("n2",) == _judged(*lines).nodes


def test_a_rank_that_said_anything_was_alive() -> None:
    """Who wrote that its peer was gone is not the one that is missing."""
    lines = [_line("collective-timeout", rank, rank=str(rank)) for rank in range(8) if rank not in {4, 5, 6}]
    found = _judged(
        *lines, _line("peer-closed", 9, rank="4"), _line("peer-closed", 10, rank="6"), topology=SEATED
    )

    assert ("n2",) == found.nodes


def test_where_reports_were_only_counted_nobody_is_missing() -> None:
    """Of a storm some lines are kept: whose are not is not known."""
    lines = [_line("collective-timeout", rank, rank=str(rank)) for rank in range(6)]

    assert () == _judged(*lines, _line("collective-timeout", 6, rank="6", count=40), topology=SEATED).nodes


def test_when_all_ranks_report_the_one_that_is_behind_is_blamed() -> None:
    """The lowest collective number is the laggard's."""
    lines = [
        _line(
            "collective-timeout",
            r,
            text=f"[rank{r}]: Watchdog: WorkNCCL(SeqNum={64 if r == 7 else 96})",
            rank=str(r),
        )
        for r in range(8)
    ]

    assert ("n3",) == _judged(*lines, topology=SEATED).nodes


def test_when_all_ranks_report_alike_nobody_is_blamed() -> None:
    """A time-out of everybody tells nothing of anybody."""
    lines = [_line("collective-timeout", r, rank=str(r)) for r in range(8)]

    assert () == _judged(*lines, topology=SEATED).nodes


def test_the_host_in_most_failing_pairs_is_the_suspect_of_a_link() -> None:
    """Two witnesses against one host weigh more than its own complaint."""
    lines = [
        _line("link-retry", 0, host="n0", peer="n2"),
        _line("link-retry", 1, host="n1", peer="10.0.0.2"),
        _line("link-retry", 2, host="n2", peer="n0"),
    ]

    assert ("n2",) == _judged(*lines, topology=SEATED).nodes


def test_a_single_pair_blames_the_peer_that_does_not_answer() -> None:
    """The reporter is the victim; the peer is the lead, and is not excluded on that alone."""
    found = _judged(_line("link-retry", 0, host="n0", peer="n3"))

    assert (("n3",), False) == (found.nodes, found.exclude)


def test_a_fault_on_every_node_is_no_nodes_fault() -> None:
    """The same broken device everywhere is the job or the cluster."""
    found = _judged(*(_line("ecc", i, host=node) for i, node in enumerate(NODES)))

    assert ((), False, Blame.CLUSTER, Action.RESUBMIT) == (
        found.nodes,
        found.exclude,
        found.blame,
        found.action,
    )


def test_a_device_whose_host_is_not_known_blames_nobody() -> None:
    """A PCI address says which device, not on which host."""
    found = _judged(_line("xid-off-the-bus"))

    assert ((), True) == (found.nodes, found.exclude)


def test_a_folded_list_names_each_of_its_nodes() -> None:
    """Slurm prints several nodes as one list."""
    found = _judged(_line("node-failure-line", host="n[0-1],m9"))

    assert ("n0", "n1") == found.nodes


def test_the_only_node_of_a_job_needs_no_name() -> None:
    """What breaks in a job of one node breaks there."""
    assert ("n0",) == _judged(_line("xid-off-the-bus"), topology=Topology(nodes=("n0",))).nodes


@pytest.mark.parametrize(
    "text",
    [
        "5: CUDA error: uncorrectable ECC error encountered",
        "[rank5]: CUDA error: uncorrectable ECC error encountered",
        "[5]<stderr>:CUDA error: uncorrectable ECC error encountered",
        "n2:811:902 [1] NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
        "Nov 21 03:04:05 n2 kernel: NVRM: Xid (PCI:0000:b3:00): 48",
        "[PG ID 0 PG GUID 0(default_pg) Rank 5] terminated: uncorrectable ECC error",
    ],
)
def test_the_prefix_of_a_line_says_where_a_device_is(text: str) -> None:
    """Launchers and loggers put rank or host in front; a broken device is where its line comes from."""
    assert ("n2",) == _judged(_line("ecc", text=text), topology=SEATED).nodes


def test_ranks_are_seated_by_lines_that_name_both() -> None:
    """A line with a rank and its host tells for all other lines of that rank."""
    lines = (_line("link-flap", 0, rank="5", host="n2"), _line("ecc", 1, rank="5"))

    assert ("n2",) == _judged(*lines).nodes


def test_offline_a_rank_is_named_where_no_host_is_known() -> None:
    """Without the nodes of the job the name in the text is what there is."""
    assert ("rank 1",) == _judged(_line("ecc", rank="1"), topology=OFFLINE).nodes


def test_a_hung_job_on_broken_hardware_did_not_need_more_time() -> None:
    """No step after the fault, then the time limit: the hardware is the cause."""
    line = _line("xid-off-the-bus", 50, host="n1")
    timeout = Ended("TIMEOUT")

    assert FaultClass.HARDWARE_GPU is _judged(line, ended=timeout, progress=_progress(100)).fault
    assert FaultClass.TIMELIMIT is _judged(line, ended=timeout, progress=_progress(9_000)).fault
    assert FaultClass.TIMELIMIT is _judged(line, ended=timeout).fault


def test_steps_after_a_line_take_confidence_away() -> None:
    """A cause stands at the end of what was done, not in the middle."""
    early, late = _progress(100_000), _progress(0)

    assert (
        _judged(_line("traceback", 3), progress=early).confidence
        < _judged(_line("traceback", 3), progress=late).confidence
    )


def test_a_crash_after_training_is_worth_one_more_try() -> None:
    """What ran for a hundred steps may do so again; what never started will not."""
    crash = Ended("FAILED", exit_signal=11)

    assert _judged(ended=crash, progress=_progress(0)).retry
    assert not _judged(ended=crash).retry


def test_sources_that_agree_raise_confidence() -> None:
    """The kernel's own log beside the job's is more than the job's alone."""
    log = _line("ecc", 1, host="n1")
    both = _judged(log, _line("ecc", 2, host="n1", source=Source.KERNEL))

    assert {Source.LOG, Source.KERNEL} == set(both.sources)
    assert both.confidence > _judged(log).confidence


def test_a_name_that_every_host_has_is_nobodys() -> None:
    """`localhost` in a line says nothing, with or without the nodes of the job."""
    assert () == _judged(_line("ecc", host="localhost"), topology=OFFLINE).nodes


def test_unknown_evidence_is_left_aside() -> None:
    """A journal of a newer catalog is read without harm."""
    assert FaultClass.HEALTHY is _judged(_line("of-the-future")).fault


names = st.sampled_from(["n0", "n2", "n9", "10.0.0.2", "evil", "rank 3", ""])
some_lines = st.builds(
    lambda row, order, host, peer, rank, survived: _line(
        row.id, order, host=host, peer=peer, rank=rank, progress_after=survived
    ),
    st.sampled_from(ROWS),
    st.integers(0, 99),
    names,
    names,
    st.sampled_from(["", "3", "77", "x"]),
    st.booleans(),
)
some_endings = st.none() | st.builds(
    Ended,
    st.sampled_from(["COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "GONE", ""]),
    reason=st.sampled_from(["", "None", "JobLaunchFailure", "launch failed requeued held"]),
    exit_code=st.none() | st.integers(0, 255),
    exit_signal=st.none() | st.integers(0, 64),
    by_us=st.booleans(),
    nodes_down=st.lists(st.sampled_from(["n1", "n9"]), max_size=2).map(tuple),
    requeued=st.booleans(),
)  # fmt: skip


@given(
    st.lists(some_lines, max_size=12), some_endings, st.sampled_from([FOUR, SEATED, Topology(nodes=("n0",))])
)
def test_nobody_outside_the_attempt_is_ever_blamed(
    lines: list[Evidence], ended: Ended | None, topology: Topology
) -> None:
    """Whatever the log says, a culprit is a node of this attempt, and a cause is named with words."""
    found = diagnose(Facts(lines, topology, ended=ended, catalog=CATALOG))

    assert set(found.nodes) <= set(topology.nodes)
    assert found.rests_on
    assert 0 < found.confidence < 1


@given(st.lists(some_lines, max_size=8, unique_by=lambda line: line.order), some_endings, st.randoms())
def test_the_order_of_arrival_changes_nothing(
    lines: list[Evidence], ended: Ended | None, random: Any
) -> None:
    """Evidence is sorted by when it was written, not by when it was read."""
    shuffled = list(lines)
    random.shuffle(shuffled)
    first = diagnose(Facts(lines, FOUR, ended=ended, catalog=CATALOG))
    second = diagnose(Facts(shuffled, FOUR, ended=ended, catalog=CATALOG))

    assert (first.fault, first.signature, set(first.nodes)) == (
        second.fault,
        second.signature,
        set(second.nodes),
    )


def test_a_label_in_front_of_a_line_names_a_node_of_the_attempt_and_nothing_else() -> None:
    """`n1: text` was written by n1 where n1 is of the attempt; the same form with another word names nobody."""
    text = "NVRM: Xid 79"
    labelled = _judged(_line("xid-off-the-bus", text=f"n1: {text}"), topology=FOUR)
    assert labelled.nodes == ("n1",)
    for word in ("gpu-9", "RuntimeError"):
        assert _judged(_line("xid-off-the-bus", text=f"{word}: {text}"), topology=FOUR).nodes == ()
        assert _judged(_line("xid-off-the-bus", text=f"{word}: {text}"), topology=OFFLINE).nodes == ()
