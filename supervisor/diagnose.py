"""What went wrong, and who is to blame: evidence in, a diagnosis with its proof out. (pure)

How it thinks. RULES are asked in their order and the first that answers decides; each leaves in `rests_on` the words for
what it rested on. What Slurm itself recorded comes first where it is decisive; then the log, then the exit record.

In the log, lines that training survived are no causes; consequences are counted and never blamed; a cause comes
before what may be either, hardware before the software that noticed it (the signature's priority), the earliest
before the later. Who is to blame is worked out in `culprits`, and is nobody in doubt.

Confidence is earned: from the signature's own, up with each source that agrees, down with rivals and with distance from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftrun.supervisor import culprits
from ftrun.supervisor.model import (
    Action,
    Blame,
    Diagnosis,
    Evidence,
    FaultClass,
    Proof,
    Role,
    Source,
    Topology,
)
from ftrun.supervisor.weigh import Weighed, weigh

if TYPE_CHECKING:
    from ftrun.supervisor.progress import Progress
    from ftrun.supervisor.signatures import Catalog

__all__ = ["CLASS_DEFAULTS", "RULES", "Ended", "diagnose"]

PROOFS_MAX = 5
HARDWARE = frozenset({FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER})
CRASH_SIGNALS = {
    4: "illegal instruction",
    6: "abort",
    7: "bus error",
    8: "arithmetic error",
    11: "segmentation fault",
}
SIGKILL, SIGTERM = 9, 15
LINES_OF_SLURM = frozenset(
    {FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.NODE, FaultClass.SCHEDULER}
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch ended, by Slurm's record and the exit record of batch.sh.

    `state` is Slurm's ("GONE" and "" = unknown), `by_us` whether ftrun ended it after a suspicion, `nodes_down` the nodes
    of this attempt that Slurm calls down or not responding, `requeued` whether Slurm put the job back into its queue.
    """

    state: str
    reason: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    derived_exit_code: int = 0
    by_us: bool = False
    nodes_down: tuple[str, ...] = ()
    requeued: bool = False


@dataclass(frozen=True, slots=True)
class ClassDefault:
    """What a class gets where no signature says otherwise."""

    retry: bool
    action: Action
    exclude: bool = False
    advice: str = ""


CLASS_DEFAULTS: Mapping[FaultClass, ClassDefault] = {
    FaultClass.HARDWARE_GPU: ClassDefault(True, Action.DRAIN, exclude=True),
    FaultClass.HARDWARE_OTHER: ClassDefault(True, Action.DRAIN, exclude=True),
    FaultClass.NODE: ClassDefault(True, Action.EXCLUDE, exclude=True),
    FaultClass.NETWORK: ClassDefault(True, Action.RESUBMIT),
    FaultClass.STORAGE: ClassDefault(True, Action.WAIT),
    FaultClass.SCHEDULER: ClassDefault(True, Action.WAIT),
    FaultClass.PREEMPTED: ClassDefault(True, Action.RESUBMIT),
    FaultClass.TIMELIMIT: ClassDefault(
        True, Action.RESUBMIT, advice="save checkpoints well before the limit, or raise --time"
    ),
    FaultClass.HANG: ClassDefault(True, Action.RESUBMIT),
    FaultClass.CHECKPOINT: ClassDefault(True, Action.RESUBMIT),
    FaultClass.PORT_CONFLICT: ClassDefault(True, Action.RESUBMIT),
    FaultClass.LIBRARY_BUG: ClassDefault(True, Action.RESUBMIT),
    FaultClass.UNKNOWN: ClassDefault(True, Action.RESUBMIT),
    FaultClass.OOM_GPU: ClassDefault(False, Action.STOP),
    FaultClass.OOM_HOST: ClassDefault(
        False, Action.STOP, advice="ask for more memory (--mem) or use less of it"
    ),
    FaultClass.USER_CODE: ClassDefault(False, Action.STOP),
    FaultClass.DATA: ClassDefault(False, Action.STOP),
    FaultClass.CONFIG: ClassDefault(False, Action.STOP),
    FaultClass.CANCELLED: ClassDefault(False, Action.STOP),
    FaultClass.HEALTHY: ClassDefault(False, Action.NONE),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Everything one diagnosis rests on; `log` is the evidence weighed by the catalog."""

    log: Weighed
    topology: Topology
    ended: Ended | None
    progress: Progress | None

    @property
    def state(self) -> str:
        """Slurm's state at the end; "" for a live run or a text without a record."""
        return self.ended.state if self.ended else ""

    @property
    def down(self) -> tuple[str, ...]:
        """The nodes that Slurm calls down, of those of the attempt."""
        return _of_attempt(self.ended.nodes_down if self.ended else (), self.topology)


def diagnose(
    evidence: Sequence[Evidence],
    topology: Topology,
    *,
    ended: Ended | None,
    catalog: Catalog,
    progress: Progress | None = None,
) -> Diagnosis:
    """The cause of an end, or of what is seen so far where `ended` is None (a live run, a text without a record).

    `evidence` is all that is known of one launch, in any order. A live run without anything fatal is HEALTHY with signature "".
    """
    case = Case(weigh(evidence, catalog, over=ended is not None), topology, ended, progress)
    for rule in RULES:
        found = rule(case)
        if found is not None:
            return replace(
                found, consequences=case.log.consequences, rests_on=(*found.rests_on, *case.log.words)
            )
    raise AssertionError("the last rule always answers")  # pragma: no cover


def _finished(case: Case) -> Diagnosis | None:
    """COMPLETED is the script's own verdict, and it stands above every line."""
    if case.ended is None or case.state != "COMPLETED" or case.ended.exit_code or case.ended.exit_signal:
        return None
    words = ["Slurm: COMPLETED"]
    if case.ended.derived_exit_code:
        words.append(f"a step exited {case.ended.derived_exit_code}, the script exited 0")
    return _plain(FaultClass.HEALTHY, "finished", words, confidence=0.99, sources=(Source.SLURM,))


def _hardware_of_lost_node(case: Case) -> Diagnosis | None:
    """A node that was lost and whose hardware complained before is lost because of that hardware."""
    if not case.down or case.log.cause is None or case.log.cause.fault not in HARDWARE:
        return None
    found = _from_log(case)
    if found is None or not set(found.nodes) & set(case.down):
        return None
    words = f"Slurm: {', '.join(case.down)} down or not responding"
    return replace(
        found,
        confidence=_sure(found.confidence + 0.15),
        sources=(*found.sources, Source.SLURM),
        rests_on=(words, *found.rests_on),
    )


def _node_lost(case: Case) -> Diagnosis | None:
    if case.ended is None:
        return None
    held = (
        "launch failed" in case.ended.reason.lower().replace("_", " ") and "held" in case.ended.reason.lower()
    )
    if not case.down and not held and case.state not in {"NODE_FAIL", "BOOT_FAIL"}:
        return None
    title = "a node failed to launch the job" if held or case.state == "BOOT_FAIL" else "a node was lost"
    words = [
        f"Slurm: {case.state or 'no state'}"
        + (f", reason {case.ended.reason}" if case.ended.reason not in {"", "None"} else "")
    ]
    names, sources = case.down, [Source.SLURM]
    if case.down:
        words.append(f"Slurm: {', '.join(case.down)} down or not responding")
    elif len(case.topology.nodes) == 1:
        names = case.topology.nodes
        words.append("the only node of the attempt")
    else:
        told = _from_log(case)
        if told is not None and told.fault is FaultClass.NODE and told.nodes:
            # Slurm tells that a node was lost, the log which: no source but the log names the node.
            return replace(told, rests_on=(*words, *told.rests_on))
        sources = [Source.SLURM]
    return _plain(
        FaultClass.NODE, title, words, names=names, confidence=0.95 if names else 0.8, sources=tuple(sources)
    )


def _by_slurm(states: frozenset[str], fault: FaultClass, title: str) -> Callable[[Case], Diagnosis | None]:
    """A rule for a state that is a verdict in itself."""

    def rule(case: Case) -> Diagnosis | None:
        if case.state not in states:
            return None
        same = [line for line, signature in case.log.causes if signature.fault is fault]
        sources = (Source.SLURM, Source.LOG) if same else (Source.SLURM,)
        return _plain(fault, title, [f"Slurm: {case.state}"], lines=same, confidence=0.97, sources=sources)

    return rule


def _cancelled(case: Case) -> Diagnosis | None:
    """CANCELLED that is not ours is a person, unless Slurm itself says why in its reason or in the log."""
    if case.ended is None or case.state != "CANCELLED" or case.ended.by_us:
        return None
    reason = case.ended.reason.replace("_", "").lower()
    words = [f"Slurm: CANCELLED{', reason ' + case.ended.reason if case.ended.reason else ''}; not by ftrun"]
    if "dependencyneversatisfied" in reason:
        return _plain(
            FaultClass.CONFIG,
            "its dependency can never be satisfied",
            words,
            confidence=0.95,
            sources=(Source.SLURM,),
        )
    if "preempt" in reason:
        return _plain(FaultClass.PREEMPTED, "preempted", words, confidence=0.95, sources=(Source.SLURM,))
    told = case.log.first_of(LINES_OF_SLURM)
    if told is not None:
        found = _from_log(case, told)
        return replace(found, rests_on=(*words, *found.rests_on)) if found else None
    return _plain(
        FaultClass.CANCELLED, "cancelled by a person", words, confidence=0.95, sources=(Source.SLURM,)
    )


def _requeued(case: Case) -> Diagnosis | None:
    """Slurm put the job back and nothing was wrong: its own business."""
    if case.ended is None or not case.ended.requeued or case.log.cause is not None or _died(case.ended):
        return None
    return _plain(
        FaultClass.HEALTHY,
        "requeued, nothing wrong seen",
        ["Slurm: requeued"],
        confidence=0.7,
        sources=(Source.SLURM,),
    )


def _log_cause(case: Case) -> Diagnosis | None:
    return _from_log(case)


def _batch_script_killed(case: Case) -> Diagnosis | None:
    if case.ended is None or "joblaunchfailure" not in case.ended.reason.replace("_", "").lower():
        return None
    if _signal(case.ended) == SIGKILL:
        title = "the batch script was killed from outside"
        return _plain(
            FaultClass.UNKNOWN,
            title,
            ["Slurm: JobLaunchFailure, signal 9"],
            confidence=0.4,
            sources=(Source.SLURM,),
        )
    return _plain(
        FaultClass.NODE,
        "the job could not be launched",
        ["Slurm: JobLaunchFailure"],
        confidence=0.6,
        sources=(Source.SLURM,),
    )


def _exit_record(case: Case) -> Diagnosis | None:
    """Nothing in the log: what the number alone can tell, and that is little."""
    if case.ended is None or not _died(case.ended):
        return None
    signal = _signal(case.ended)
    ran = case.progress is not None and case.progress.steps_seen > 0
    if signal in CRASH_SIGNALS:
        words = [
            f"exit record: signal {signal} ({CRASH_SIGNALS[signal]})",
            "it had been training" if ran else "no step was seen",
        ]
        crash = _plain(
            FaultClass.USER_CODE,
            f"crashed: {CRASH_SIGNALS[signal]}",
            words,
            confidence=0.35,
            sources=(Source.EXIT,),
        )
        # A program that trained for a while may do so again; one that never started will not.
        return replace(crash, retry=True, action=Action.RESUBMIT) if ran else crash
    if case.ended.exit_code in {126, 127}:
        words = [f"exit record: code {case.ended.exit_code}"]
        return _plain(
            FaultClass.CONFIG,
            "a command was not found or cannot be run",
            words,
            confidence=0.6,
            sources=(Source.EXIT,),
        )
    if signal == SIGKILL:
        words, title = ["exit record: signal 9"], "killed, and nothing says by whom"
        advice = "often the kernel out of memory: look at the node's kernel log, or ask for more memory"
        return replace(
            _plain(FaultClass.UNKNOWN, title, words, confidence=0.3, sources=(Source.EXIT,)), advice=advice
        )
    told = f"signal {signal}" if signal else f"code {case.ended.exit_code}"
    return _unknown(case, f"ended with {told}, and no line says why", [f"exit record: {told}"])


def _nothing_fatal(case: Case) -> Diagnosis | None:
    """No record of an end and no line that is more than a consequence."""
    if case.ended is not None:
        return None
    if case.log.consequences and not case.log.finished:
        return _unknown(case, "it failed, and no line says why", ["only consequences were seen"])
    return _plain(FaultClass.HEALTHY, "no failure seen", ["no line tells of a failure"], confidence=0.7)


def _ended_somehow(case: Case) -> Diagnosis | None:
    state = case.state or "unknown"
    if case.ended is not None and case.ended.by_us:
        title = "ended by ftrun after a suspicion that no line explains"
        return _plain(
            FaultClass.HANG, title, [f"Slurm: {state}, by ftrun"], confidence=0.4, sources=(Source.SILENCE,)
        )
    return _unknown(case, "ended, and nothing says why", [f"Slurm: {state}"])


RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    _finished,
    _hardware_of_lost_node,
    _node_lost,
    _by_slurm(frozenset({"PREEMPTED"}), FaultClass.PREEMPTED, "preempted"),
    _by_slurm(frozenset({"TIMEOUT", "DEADLINE"}), FaultClass.TIMELIMIT, "the time limit was reached"),
    _by_slurm(frozenset({"OUT_OF_MEMORY"}), FaultClass.OOM_HOST, "out of host memory"),
    _cancelled,
    _log_cause,
    _batch_script_killed,
    _requeued,
    _exit_record,
    _nothing_fatal,
    _ended_somehow,
)


def _from_log(case: Case, line: Evidence | None = None) -> Diagnosis | None:
    """The diagnosis that the chosen cause of the log (or `line`) stands for."""
    signature = case.log.cause if line is None else case.log.signature_of(line)
    if signature is None:
        return None
    lines = case.log.lines_of(signature.id)
    who = (
        culprits.laggards(lines, case.topology)
        if signature.fault is FaultClass.HANG
        else culprits.blamed(signature.blame, lines, case.topology)
    )
    sources = tuple(dict.fromkeys(item.source for item in lines))
    confidence, words = _earned(case, signature.confidence, sources, lines)
    return Diagnosis(
        fault=signature.fault,
        retry=signature.retry,
        action=Action.RESUBMIT
        if who.everywhere and signature.action in {Action.DRAIN, Action.EXCLUDE}
        else signature.action,
        nodes=who.names,
        exclude=signature.exclude and not who.everywhere,
        confidence=confidence,
        signature=signature.id,
        title=signature.title,
        because=_proofs(lines),
        advice=signature.advice or CLASS_DEFAULTS[signature.fault].advice,
        blame=Blame.CLUSTER if who.everywhere else signature.blame,
        rests_on=(f"{signature.id}: {sum(item.count for item in lines)} lines", *words, *who.words),
        sources=sources,
    )


def _earned(
    case: Case, base: float, sources: Sequence[Source], lines: Sequence[Evidence]
) -> tuple[float, list[str]]:
    confidence, words = base, []
    if len(sources) > 1:
        confidence += 0.1
        words.append(f"{len(sources)} sources agree: {', '.join(source.value for source in sources)}")
    if case.log.rivals:
        confidence *= 0.8
        words.append(f"could also be: {', '.join(case.log.rivals)}")
    if case.log.role is Role.EITHER:
        confidence *= 0.75
        words.append("this line can also be a consequence")
    if case.progress is not None and all(
        item.offset_bytes < case.progress.offset_bytes for item in lines if item.source is Source.LOG
    ):
        confidence *= 0.7
        words.append("steps were printed after it")
    return _sure(confidence), words


def _plain(
    fault: FaultClass,
    title: str,
    words: Sequence[str],
    *,
    names: tuple[str, ...] = (),
    lines: Sequence[Evidence] = (),
    confidence: float,
    sources: tuple[Source, ...] = (),
) -> Diagnosis:
    """A diagnosis by the defaults of its class."""
    default = CLASS_DEFAULTS[fault]
    return Diagnosis(
        fault=fault,
        retry=default.retry,
        action=default.action,
        nodes=names,
        exclude=default.exclude,
        confidence=confidence,
        signature="",
        title=title,
        because=_proofs(lines),
        advice=default.advice,
        blame=Blame.NODE if names else Blame.UNKNOWN,
        rests_on=tuple(words),
        sources=sources,
    )


def _unknown(case: Case, title: str, words: Sequence[str]) -> Diagnosis:
    sources = (Source.EXIT,) if case.ended is not None else (Source.LOG,)
    found = _plain(FaultClass.UNKNOWN, title, words, confidence=0.2, sources=sources)
    return replace(found, suspicious=_proofs(case.log.suspicious))


def _proofs(lines: Sequence[Evidence]) -> tuple[Proof, ...]:
    ordered = sorted(lines, key=lambda item: item.order)[:PROOFS_MAX]
    return tuple(Proof(item.file, item.line, item.text, item.signature) for item in ordered)


def _of_attempt(names: Sequence[str], topology: Topology) -> tuple[str, ...]:
    if not topology.nodes:
        return tuple(names)
    return tuple(dict.fromkeys(node for name in names if (node := topology.node_of(name))))


def _signal(ended: Ended) -> int:
    """The signal of an end; a shell tells its child's by 128 + N."""
    if ended.exit_signal:
        return ended.exit_signal
    code = ended.exit_code or 0
    return code - 128 if 128 < code < 128 + 65 else 0


def _died(ended: Ended) -> bool:
    return bool(ended.exit_code or ended.exit_signal)


def _sure(confidence: float) -> float:
    return round(min(0.99, max(0.05, confidence)), 2)
