"""Laws of a start that could not load its checkpoint: whose fault it is, and what is done about it. (pure)"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.supervisor.diagnosis import checkpoint_blame, inputs
from ftrun.supervisor.diagnosis.checkpoint_blame import AGAIN, ASIDE, PROGRAM, ResumedCheckpoint, ResumePoint
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model import agent_events
from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd, Run, Start
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Loading, Topology
from ftrun.supervisor.policy.decide import decide
from ftrun.supervisor.policy.policy_input import ClusterView, PolicyInput, PolicyLimits, Ruling
from ftrun.supervisor.signatures import catalog as signatures_catalog
from tests.unit.cases import NOW, F, diagnosis, incident, rule

X, Y, Z = "/scratch/ckpt/step_30", "/scratch/ckpt/step_20", "/scratch/ckpt/step_10"
CHECKSUM = "ValueError: checksum of ckpt/step_30/rank_1.bin is wrong: 0x7f11, not 0x80aa"
GONE = "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/step_30/rank_1.bin'"
KEY = "KeyError: 'optimizer'"
OLDER = ResumePoint(Y)


def judged(*lines: str, resumed: ResumedCheckpoint | None, ended: Ended | None = None) -> Diagnosis:
    """The diagnosis of a start that printed these lines and exited 1."""
    catalog = signatures_catalog.load()
    report = inputs.read_attempt_files(
        [], catalog=catalog, stdin="".join(f"{line}\n" for line in lines).encode()
    ).report
    ended = ended or Ended("FAILED", exit_code=1)
    return diagnose(
        Facts(
            report.evidence,
            Topology(nodes=("n1", "n2")),
            ended=ended,
            catalog=catalog,
            progress=report.progress,
            resumed=resumed,
        )
    )


def failed(path: str, line: str, *, verdict: str = ASIDE, before: tuple[Loading, ...] = ()) -> Loading:
    """What the journal has of an earlier start from `path` that said `line`."""
    found = judged(line, resumed=ResumedCheckpoint(path, before, OLDER, trained=True)).loading
    assert found is not None
    return replace(found, verdict=verdict)


FROM_X = ResumedCheckpoint(X, (), OLDER, trained=True)
FOREIGN = ResumedCheckpoint(X, (), OLDER)
STORAGE = "OSError: [Errno 5] Input/output error: 'ckpt/step_30/rank_1.bin'"
XID = "[Mon Jan  5 10:11:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."
CUDA_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
LAST = "step 30/60 loss 2.0"


@pytest.mark.parametrize(
    ("lines", "resumed", "fault", "verdict"),
    [
        ((CHECKSUM,), FROM_X, "checkpoint", ASIDE),
        ((CHECKSUM,), FOREIGN, "checkpoint", ASIDE),
        ((f"[rank1]: {CHECKSUM}",), FROM_X, "checkpoint", ASIDE),
        ((GONE,), FROM_X, "checkpoint", ASIDE),
        (("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",), FROM_X, "config", AGAIN),
        (("RuntimeError: PytorchStreamReader failed reading zip archive",), FROM_X, "checkpoint", ASIDE),
        ((f"loaded {X}", LAST, CHECKSUM), FROM_X, "checkpoint", ASIDE),
        ((LAST, "step 31/60 loss 2.0", CHECKSUM), FROM_X, "user-code", None),
        (("step 31/60 loss 2.0", CHECKSUM), FROM_X, "user-code", None),
        ((CHECKSUM,), None, "user-code", None),
        ((CHECKSUM,), ResumedCheckpoint(Y, (), OLDER, trained=True), "user-code", AGAIN),
        ((KEY,), FROM_X, "user-code", AGAIN),
        ((KEY,), FOREIGN, "user-code", ""),
        (("SyntaxError: invalid syntax",), FROM_X, "user-code", ""),
        ((f"train.py: error: unrecognized arguments: --load {X}",), FROM_X, "config", ""),
        ((XID, CHECKSUM), FROM_X, "hardware-gpu", None),
        ((CUDA_MEMORY, CHECKSUM), FROM_X, "oom-gpu", None),
        ((STORAGE,), FROM_X, "storage", ""),
        ((KEY,), replace(FROM_X, earlier=(failed(X, KEY, verdict=AGAIN),)), "checkpoint", ASIDE),
        ((), FROM_X, "unknown", ""),
        ((), replace(FROM_X, earlier=(Loading(X, "and code ended"),)), "checkpoint", ASIDE),
        ((STORAGE,), replace(FROM_X, earlier=(failed(X, STORAGE, verdict=""),)), "checkpoint", ASIDE),
    ],
)  # fmt: skip
def test_a_start_that_failed_before_its_first_step_is_judged_by_what_it_resumed_from(
    lines: tuple[str, ...], resumed: ResumedCheckpoint | None, fault: str, verdict: str | None
) -> None:
    """Words that name the checkpoint accuse it at once, others the second time; a graver cause, a step and a mistake that is sure acquit it."""
    found = judged(*lines, resumed=resumed)

    assert fault == found.fault.value
    assert verdict == (found.loading.verdict if found.loading is not None else None)
    assert checkpoint_blame.is_set_aside(found) == (verdict == ASIDE)
    assert found.retry or found.fault is not FaultClass.CHECKPOINT


@pytest.mark.parametrize(
    ("state", "more", "fault"),
    [
        ("COMPLETED", {}, "healthy"),
        ("NODE_FAIL", {"nodes_down": ("n1",)}, "node"),
        ("PREEMPTED", {}, "preempted"),
        ("TIMEOUT", {}, "timelimit"),
        ("CANCELLED", {}, "cancelled"),
        ("OUT_OF_MEMORY", {}, "oom-host"),
    ],
)
def test_what_slurm_says_of_an_end_acquits_a_checkpoint(
    state: str, more: dict[str, tuple[str, ...]], fault: str
) -> None:
    """A node that died while it loaded prints many things."""
    found = judged(
        CHECKSUM,
        resumed=FROM_X,
        ended=Ended(state, **more),  # type: ignore[arg-type]
    )

    assert (fault, None) == (found.fault.value, found.loading)


def _of(line: str, path: str) -> str:
    return line.replace("step_30", path.rpartition("/")[2])


@pytest.mark.parametrize(
    ("line", "before", "left", "fault", "verdict"),
    [
        (KEY, (X,), Z, "user-code", PROGRAM),
        (KEY, (X,), "", "user-code", PROGRAM),
        (CHECKSUM, (X,), Z, "checkpoint", ASIDE),
        (CHECKSUM, (X,), "", "user-code", PROGRAM),
        (CHECKSUM, (), "", "checkpoint", ASIDE),
        (CHECKSUM, tuple(f"/scratch/ckpt/step_{n}" for n in (60, 50, 40, 35)), Z, "user-code", PROGRAM),
        ("RuntimeError: PytorchStreamReader failed reading zip archive", (X,), "", "user-code", PROGRAM),
        (STORAGE, (X,), "", "storage", PROGRAM),
        (GONE, (), "", "checkpoint", ASIDE),
    ],
)
def test_an_error_that_every_checkpoint_gives_is_the_programs(
    line: str, before: tuple[str, ...], left: str, fault: str, verdict: str
) -> None:
    """Words that name the checkpoint are believed to be about it as long as an older one is left; others from the second checkpoint on are not."""
    earlier = tuple(failed(path, _of(line, path)) for path in before)
    found = judged(_of(line, Y), resumed=ResumedCheckpoint(Y, earlier, ResumePoint(left), trained=True))

    assert found.loading is not None
    assert (fault, verdict) == (found.fault.value, found.loading.verdict)
    if verdict == PROGRAM:
        assert before == found.loading.back
        assert found.retry == (fault == "storage")
        assert found.confidence >= 0.5


@pytest.mark.parametrize(
    "line",
    [
        "KeyErrorKeyError: : 'optimizer''optimizer'", "[rank2]: KeyError: 'optimizer'", "3: KeyError: 'optimizer'", "KeyError",
        "KeyError: 'optimizesrun: error: n2: task 1: Exited with exit code 1", "KeyError: 'optimizeTraceback (most recent call last):",
    ],
)  # fmt: skip
def test_ranks_that_write_into_each_others_lines_give_the_same_error(line: str) -> None:
    """However the lines were mixed or labelled."""
    found = judged(
        "KeyError: 'optimizer'",
        resumed=ResumedCheckpoint(
            Y, (replace(failed(X, KEY), error=checkpoint_blame._plain(line, X)),), ResumePoint(Z)
        ),
    )

    assert found.loading is not None
    assert PROGRAM == found.loading.verdict


def test_one_start_of_each_checkpoint_is_enough_to_tell_that_its_error_is_the_same() -> None:
    """What another start from it printed may be the words of somebody else."""
    earlier = (failed(X, "Broken words of who knows whom", verdict=AGAIN), failed(X, KEY))
    found = judged(KEY, resumed=ResumedCheckpoint(Y, earlier, ResumePoint(Z), trained=True))

    assert found.loading is not None
    assert PROGRAM == found.loading.verdict


def test_checkpoints_that_fail_each_in_its_own_way_are_each_to_blame() -> None:
    """Nothing is left, and yet it is not one error of the program."""
    found = judged(
        _of(GONE, Y),
        resumed=ResumedCheckpoint(Y, (failed(X, CHECKSUM),), ResumePoint(stuck="none"), trained=True),
    )

    assert checkpoint_blame.is_set_aside(found)


@pytest.mark.parametrize(
    ("text", "path", "named"),
    [
        (f"cannot read {X}", X, True),
        ("cannot read ckpt/step_30/rank_1.bin", X, True),
        ("cannot read './ckpt/step_30'.", X, True),
        ("cannot read step_30/rank_0.bin: it is short", X, True),
        ("bad file (/home/me/.local/runs/r/views/2.0.1/step_30)", X, True),
        ("/mnt/gpfs/ckpt/step_30/rank_1.bin is short", X, True),
        ("model.pt is broken", "/scratch/out/model.pt", True),
        ("out/model.pt.index is broken", "/scratch/out/model.pt", True),
        ("cannot read ckpt/step_300/rank_1.bin", X, False),
        ("cannot read other/step_30/rank_1.bin", X, False),
        ("/data/step_30/part-1 is broken", X, False),
        ("error at 100", "/scratch/out/100", False),
        ("out/100/w.bin is short", "/scratch/out/100", True),
        ("the last one failed", "/scratch/out/last", False),
        ("unknown option --resume=ckpt/step_30", X, False),
    ],
)
def test_a_line_names_a_checkpoint_by_its_path_or_by_a_name_that_nothing_else_has(
    text: str, path: str, named: bool
) -> None:
    """Absolute, relative, inside it, through a view; not by a number or a word that any sentence may have."""
    assert named == checkpoint_blame.names_checkpoint(text, path)


def _told(found: Loading, step: int | None = None, number: int = 1, **changes: object) -> object:
    kept = {
        "loading": {
            "path": found.path,
            "error": found.error,
            "text": found.text,
            "named": found.named,
            "verdict": found.verdict,
        }
    }
    return incident(F.CHECKPOINT, number, diagnosis=kept, step=step, **changes)


def test_what_failed_to_load_before_is_remembered_until_a_start_makes_steps() -> None:
    """A node that was lost in between does not count; a step does, for then the loading works."""
    one, two = Loading(X, "a"), Loading(Y, "b")
    run = Run(
        "r", incidents=(_told(one), incident(F.NODE, 2), _told(two, number=3), _told(one, number=4))  # type: ignore[arg-type]
    )  # fmt: skip
    stepped = replace(run, incidents=(_told(one), incident(F.NODE, 2, step=40), _told(two, number=3)))  # type: ignore[arg-type]

    assert (one, two) == checkpoint_blame.earlier_failures(run, "4.0")
    assert (two,) == checkpoint_blame.earlier_failures(stepped, "4.0")


# ---------------------------------------------------------------------- what the policy makes of it


def test_a_program_that_worked_before_gets_one_more_start_from_the_same_checkpoint() -> None:
    """It costs the ceiling, and no budget of its class."""
    found = diagnosis(F.USER_CODE, loading=Loading(X, verdict=AGAIN))
    ruling = rule(
        found,
        attempt={"launch": Launch(end=LaunchEnd("FAILED"), start=Start(resume_from=X))},
        run={"retries": 3},
    )

    assert ("resubmit", False, 4, {}) == (
        ruling.decision.kind, ruling.decision.older_checkpoint, ruling.retries, dict(ruling.spent),
    )  # fmt: skip
    assert (
        "stop"
        == rule(
            found,
            attempt={"launch": Launch(end=LaunchEnd("FAILED"), start=Start(resume_from=X))},
            run={"retries": 20},
        ).decision.kind
    )


def zero(
    *, trained_s: float = 600.0, own: bool = True, limit_s: float = 3600.0, fault: F = F.CHECKPOINT, fresh: int = 0
) -> Ruling:  # fmt: skip
    """The ruling on a run that may load nothing."""
    attempt = Attempt(
        1,
        NOW - trained_s,
        launch=Launch(
            started_at_s=NOW - trained_s, end=LaunchEnd(state="FAILED"), start=Start(resume_from=X)
        ),
    )
    incidents = tuple(
        incident(F.CHECKPOINT, decision={"fresh": True}, decided_at_s=NOW - trained_s) for _ in range(fresh)
    )
    run = Run("r", State.SETTLING, attempts=(attempt,), incidents=incidents)
    limits = PolicyLimits(from_zero_max_s=limit_s)
    case = PolicyInput(
        run,
        attempt,
        diagnosis(fault),
        ClusterView(),
        limits,
        NOW,
        no_checkpoint="none of 2: a, b",
        own_checkpoints=own,
    )
    return decide(case)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({}, "resubmit"),
        ({"trained_s": 3600.0}, "resubmit"),
        ({"trained_s": 3601.0}, "stop"),
        ({"limit_s": 0.0}, "stop"),
        ({"limit_s": 7200.0, "trained_s": 7000.0}, "resubmit"),
        ({"own": False}, "stop"),
        ({"fault": F.NODE}, "resubmit"),
        ({"fault": F.USER_CODE}, "stop"),
        ({"fresh": 2}, "resubmit"),
        ({"fresh": 3}, "stop"),
    ],
)
def test_a_run_that_may_load_nothing_begins_anew_where_little_is_lost(
    words: dict[str, float], kind: str
) -> None:
    """At most `restart-from-zero-max` of its own training; what others left is not thrown away, nor is it tried without end."""
    decision = zero(**words).decision  # type: ignore[arg-type]

    assert (kind, kind == "resubmit") == (decision.kind, decision.fresh)
    if kind == "stop" and "fault" not in words:
        assert "none of 2: a, b" in decision.reason
        assert "--ft-checkpoint-fresh" in decision.advice


def test_what_was_given_up_before_is_not_counted_again() -> None:
    """The time counts from the last beginning."""
    attempt = Attempt(1, NOW - 7000, launch=Launch(started_at_s=NOW - 7000))
    anew = incident(F.CHECKPOINT, decision={"fresh": True}, decided_at_s=NOW - 500)
    run = Run("r", attempts=(attempt,), incidents=(anew,))

    assert 500.0 == PolicyInput(run, attempt, diagnosis(F.NODE), ClusterView(), PolicyLimits(), NOW).trained_s


@pytest.mark.parametrize("fresh", [False, True])
def test_progress_counts_anew_where_a_run_begins_from_nothing(fresh: bool) -> None:
    """What it makes again refills its budgets as it did the first time."""
    run = Run("r", State.SETTLING, attempts=(Attempt(1, NOW),), best_step=35, best_checkpoint=X)
    data = {"spent": {}, "retries": 1, "reason": "", "kind": "resubmit", "fresh": fresh}
    after = apply(run, {"kind": "decided", "at": NOW, "attempt": 1, "launch": 0, "data": data})

    assert ((None, "") if fresh else (35, X)) == (after.best_step, after.best_checkpoint)


def test_what_is_not_to_blame_is_no_longer_set_aside() -> None:
    """Be it that the supervisor says so or the agent."""
    run = Run("r", State.SETTLING, attempts=(Attempt(1, NOW),), set_aside=((X, "1"), (Y, "2")))
    record = {"kind": "checkpoint.taken-back", "at": NOW, "attempt": 1, "launch": 0, "data": {"paths": [X]}}
    decided = {
        "incident": "1.0.1", "rung": "step", "spent": {}, "retries": 1, "reason": "", "taken_back": [X], "set_aside": [[Z, "3"]],
    }  # fmt: skip
    inside = {"kind": "start.decided", "at": NOW, "attempt": 1, "launch": 0, "start": 1, "data": decided}

    assert ((Y, "2"),) == apply(run, record).set_aside
    assert ((Y, "2"), (Z, "3")) == agent_events.apply_agent_record(run, inside).set_aside
