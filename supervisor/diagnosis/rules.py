"""The list of rules that makes every diagnosis, and the rules that find a cause. (pure)

The supervisor, the agent inside a job and `ftrun diagnose` all call `diagnose`; no other code makes a
diagnosis or changes one. RULES has three parts:

- END: an end that explains itself (`known_ends`). The first answer is the diagnosis, and final.
- CAUSE: the first answer names the cause; the last rule always answers.
- REVIEW: each rule may replace the diagnosis so far (`review`).

A rule is asked only where the input that it `needs` is there (`evidence.Input`), so a caller with few facts
needs no other list, and a plain failure asks only the causes.

The causes in order: first what Slurm recorded, where that is decisive; then the log; then the exit record. In
the log, lines that training survived are no causes, and consequences are counted but never blamed. A cause
ranks before a line that may be either, hardware before the software that noticed it (by the signature's
priority), and the earlier before the later (`evidence`). `blame` finds the culprits; in doubt, nobody is
blamed.

The confidence starts with the signature's own. Each source that agrees raises it; rivals and distance from
the end lower it. Each rule says in `rests_on` what it rested on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.diagnosis import (
    blame,
    context_rules,
    known_ends,
    odd_one,
    outlived,
    rank_deaths,
    review,
    second_opinion,
    setup_rules,
    statements,
    suspect_nodes,
)
from ftrun.supervisor.diagnosis.class_defaults import CLASS_DEFAULTS, clamp_confidence, plain, proofs
from ftrun.supervisor.diagnosis.evidence import IGNORED, LOGGER, Case, Input, case_of, is_warning
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, Evidence, FaultClass, Layer, Role, Source

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.facts import Facts
    from ftrun.supervisor.signatures.catalog import Signature


HARDWARE = frozenset({FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER})
TOLD_BY_SLURM = frozenset({FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.NODE})
"""Classes that slurmstepd may name for a CANCELLED that no person asked for."""

TRACEBACK = "python-traceback"
"""The signature of the first line of a traceback."""

REPORTED_ONLY = frozenset({LOGGER, IGNORED})
"""Signatures of tracebacks that Python prints and goes on after."""

NAMELESS = 0.5
"""The least confidence in a sick machine that costs a node although no line names it: a wrong set-up can look
like one.
"""

OF_MACHINES = frozenset({Layer.HARDWARE, Layer.NETWORK, Layer.NODE, Layer.RUNTIME})
"""Layers whose lines tell of the machine on which they were printed."""

SEEN_FROM_AFAR = frozenset(
    {"node-unreachable", "ray-node-died", "node-maintenance-event", "slurm-node-said-down"}
)
"""Signatures of a machine that others miss. Without its name, nobody knows which one to leave out."""

MEASURED_BY_SLURM = frozenset({"slurm-node-rebooted", "slurm-kill-task-failed", "slurm-stepd-unkillable"})
"""Signatures of a machine's state that Slurm's daemon there reported."""

STATES_OF_OTHERS = frozenset({"PREEMPTED", "TIMEOUT", "DEADLINE", "CANCELLED"})
"""States in which Slurm ended the job for a reason that has nothing to do with a node."""

CRASHES = {
    4: "illegal instruction",
    6: "abort",
    7: "bus error",
    8: "arithmetic error",
    11: "segmentation fault",
}
SIGKILL, SIGTERM = 9, 15

JOB_OVER = "slurm-step-job-over"
"""The signature of a step that Slurm refuses because its job is over, or unknown."""

_INVALID_ID = re.compile(r"Invalid job id specified|Expired or invalid job|has expired")


class Part(StrEnum):
    """What happens with a rule's answer."""

    END = "end"  # it is the diagnosis, and final
    CAUSE = "cause"  # the first answer names the cause
    REVIEW = "review"  # it replaces the diagnosis so far


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `why` gives the reason for its place in the list.

    `judge` takes the case, and in a review the diagnosis so far. It returns None for "no answer".
    """

    name: str
    part: Part
    judge: Callable[..., Diagnosis | None]
    why: str
    needs: Input | None = None


def diagnose(facts: Facts) -> Diagnosis:
    """The cause of an end. Without an end (a live run, or a text without a record): the cause of what was
    seen so far.

    A live run without anything fatal is HEALTHY with signature "".
    """
    case = case_of(facts)
    found = _diagnose(case)
    for rest in outlived.rests_of_text(case, found):
        if (later := outlived.tells_more(found, rest, _diagnose(case_of(rest)))) is not None:
            return later
    return found


def _diagnose(case: Case) -> Diagnosis:
    found: Diagnosis | None = None
    for rule in RULES:
        if rule.needs is not None and rule.needs not in case.inputs:
            continue
        if rule.part is Part.REVIEW and found is not None:
            found = rule.judge(case, found) or found
        elif rule.part is not Part.REVIEW and found is None:
            found = rule.judge(case)
            if found is not None and rule.part is Part.END:
                return found
    assert found is not None, "the last cause always answers"
    return found


def finished(case: Case) -> Diagnosis | None:
    """COMPLETED is the script's own verdict. It outweighs every line."""
    ended = case.ended
    if ended is None or ended.state != "COMPLETED" or ended.failed:
        return None
    words = ["Slurm: COMPLETED"]
    if ended.derived_exit_code:
        words.append(f"a step exited {ended.derived_exit_code}, the script exited 0")
    return plain(FaultClass.HEALTHY, "finished", words, confidence=0.99, sources=(Source.SLURM,))


def hardware_of_lost_node(case: Case) -> Diagnosis | None:
    """A lost node whose hardware complained before: the hardware is the cause."""
    signature = case.log.cause
    if not case.down or signature is None or signature.fault not in HARDWARE:
        return None
    if case.ended is not None and case.ended.state == "CANCELLED" and not case.ended.by_us:
        return None  # a person ended it, no matter what else is wrong
    found = _by_signature(case, signature)
    if not set(found.nodes) & set(case.down):
        return None
    words = (f"Slurm: {', '.join(case.down)} down or not responding", *found.rests_on)
    more = clamp_confidence(found.confidence + 0.15)
    return replace(found, confidence=more, sources=(*found.sources, Source.SLURM), rests_on=words)


def node_lost(case: Case) -> Diagnosis | None:
    """Slurm names the lost node, or reports one as lost and the log names it."""
    ended = case.ended
    if ended is None:
        return None
    held = "launchfailedrequeuedheld" in ended.why
    seen = bool(case.down) and (ended.by_us or ended.state not in STATES_OF_OTHERS)
    if not seen and not held and ended.state not in {"NODE_FAIL", "BOOT_FAIL"}:
        return None
    words = [f"Slurm: {ended.state or 'no state'}{', ' + ended.reason if ended.why else ''}"]
    alone = len(case.topology.nodes) == 1 and not ended.unused
    names = case.down or (case.topology.nodes if alone else ())
    told = case.log.first_of({FaultClass.NODE})
    if not names and told is not None:
        # No source but the log names the node, so the log alone is what the blame rests on.
        found = _by_signature(case, told)
        return replace(found, rests_on=(*words, *found.rests_on))
    if case.down:
        words.append(f"Slurm: {', '.join(case.down)} down or not responding")
    title = (
        "the job could not be launched on a node" if held or ended.state == "BOOT_FAIL" else "a node was lost"
    )
    lines = case.log.lines_of(told.id) if told else ()
    confidence = 0.95 if names else 0.8
    sources = (Source.SLURM, Source.LOG) if lines else (Source.SLURM,)
    return plain(
        FaultClass.NODE, title, words, names=names, lines=lines, confidence=confidence, sources=sources
    )


def hardware_before_the_limit(case: Case) -> Diagnosis | None:
    """The job hung on broken hardware until its time limit: more time would not have helped."""
    signature = case.log.cause
    if (
        case.ended is None
        or case.ended.state != "TIMEOUT"
        or signature is None
        or signature.fault not in HARDWARE
    ):
        return None
    lines = case.log.lines_of(signature.id)
    if not case.trained or _before_the_last_step(case, lines):
        return None
    found = _by_signature(case, signature)
    return replace(found, rests_on=("Slurm: TIMEOUT, with no step after the fault", *found.rests_on))


def by_state(states: frozenset[str], fault: FaultClass, title: str) -> Callable[[Case], Diagnosis | None]:
    """A rule for Slurm states that are a verdict in themselves."""

    def rule(case: Case) -> Diagnosis | None:
        if case.ended is None or case.ended.state not in states:
            return None
        same = case.log.first_of({fault})
        lines = case.log.lines_of(same.id) if same else ()
        sources = (Source.SLURM, Source.LOG) if lines else (Source.SLURM,)
        return plain(
            fault, title, [f"Slurm: {case.ended.state}"], lines=lines, confidence=0.97, sources=sources
        )

    return rule


def cancelled(case: Case) -> Diagnosis | None:
    """A CANCELLED that is not ours came from a person, unless Slurm's reason or slurmstepd says otherwise."""
    ended = case.ended
    if ended is None or ended.state != "CANCELLED" or ended.by_us:
        return None
    words = [f"Slurm: CANCELLED{', ' + ended.reason if ended.why else ''}, not by ftrun"]
    by_reason = {
        "dependencyneversatisfied": (FaultClass.CONFIG, "its dependency can never be satisfied"),
        "deadline": (FaultClass.TIMELIMIT, "its deadline has passed"),
        "preempt": (FaultClass.PREEMPTED, "preempted"),
    }
    for part, (fault, title) in by_reason.items():
        if part in ended.why:
            return plain(fault, title, words, confidence=0.95, sources=(Source.SLURM,))
    told = case.log.first_of(TOLD_BY_SLURM)
    if told is not None:
        found = _by_signature(case, told)
        return replace(found, rests_on=(*words, *found.rests_on))
    return plain(
        FaultClass.CANCELLED, "cancelled by a person", words, confidence=0.95, sources=(Source.SLURM,)
    )


def log_cause(case: Case) -> Diagnosis | None:
    """The best cause in the log. What was only warned of before the last step was no cause."""
    signature = case.log.cause
    if signature is None:
        return None
    lines = case.log.lines_of(signature.id)
    if (
        case.ended is None
        and all(is_warning(line, signature) for line in lines)
        and _before_the_last_step(case, lines)
    ):
        return None
    return _by_signature(case, signature)


def requeued(case: Case) -> Diagnosis | None:
    """Slurm requeued the job and nothing was wrong. SIGTERM is how Slurm ends the old launch."""
    ended = case.ended
    if ended is None or not ended.requeued or (ended.failed and ended.signal != SIGTERM):
        return None
    title = "requeued, and nothing wrong was seen"
    return plain(FaultClass.HEALTHY, title, ["Slurm: requeued"], confidence=0.7, sources=(Source.SLURM,))


def launch_failure(case: Case) -> Diagnosis | None:
    """JobLaunchFailure with signal 9: the batch script was killed from outside. Without it, the launch
    failed.
    """
    if case.ended is None or "joblaunchfailure" not in case.ended.why:
        return None
    words = [f"Slurm: {case.ended.reason}, signal {case.ended.signal}"]
    if case.ended.signal == SIGKILL:
        title = "the batch script was killed from outside"
        return plain(FaultClass.UNKNOWN, title, words, confidence=0.4, sources=(Source.SLURM,))
    if folder := case.facts.no_log_folder:
        title = f"the folder of the job's output does not exist: {folder}"
        advice = f"mkdir -p {folder}: Slurm makes no folders."
        return plain(FaultClass.CONFIG, title, words, confidence=0.9, sources=(Source.SLURM,), advice=advice)
    title = "the job could not be launched"
    return plain(FaultClass.NODE, title, words, confidence=0.6, sources=(Source.SLURM,))


def job_forgotten(case: Case) -> Diagnosis | None:
    """Slurm lost its memory of a live job: srun is refused with "Invalid job id", or slurmd kills the job that
    its controller does not know. The program did nothing wrong.
    """
    if not case.facts.forgotten or (case.ended is not None and case.ended.by_us):
        return None
    lines = [line for line in case.lines if line.signature == JOB_OVER and _INVALID_ID.search(line.text)]
    killed = case.ended is not None and (not case.ended.failed or case.ended.signal in {SIGKILL, SIGTERM})
    if not lines and not killed:
        return None
    words = ["Slurm answers, and does not know the job any more: its controller was set back"]
    sources = (Source.SLURM, Source.LOG) if lines else (Source.SLURM,)
    title = "Slurm lost track of the job while it ran"
    found = plain(FaultClass.SCHEDULER, title, words, lines=lines, confidence=0.85, sources=sources)
    return replace(found, signature="slurm.job-unknown")


def exit_record(case: Case) -> Diagnosis | None:
    """Nothing in the log: the exit code or signal alone, which says little."""
    ended = case.ended
    if ended is None or not ended.failed or ended.by_us:
        return None
    told = f"signal {ended.signal}" if ended.signal else f"code {ended.exit_code}"
    words, sources = [f"exit record: {told}"], (Source.EXIT,)
    if ended.signal in CRASHES:
        words.append("it had been training" if case.trained else "no step was seen")
        title = f"crashed: {CRASHES[ended.signal]}"
        found = plain(FaultClass.USER_CODE, title, words, confidence=0.35, sources=sources)
        # What trained for a while may do so again; what never started will not.
        return replace(found, retry=True, action=Action.RESUBMIT) if case.trained else found
    if ended.exit_code in {126, 127}:
        title = "a command was not found or cannot be run"
        return plain(FaultClass.CONFIG, title, words, confidence=0.6, sources=sources)
    if ended.signal == SIGKILL:
        advice = "often the kernel out of memory: see the node's kernel log, or ask for more memory (--mem)"
        return _unknown(case, "killed, and nothing says by whom", words, advice)
    return _unknown(case, f"ended with {told}, and no line that ftrun knows says why", words)


def text_alone(case: Case) -> Diagnosis | None:
    """A text without a record of an end, and without a line that can be a cause."""
    if case.ended is not None:
        return None
    reported = case.log.noted & REPORTED_ONLY and {line.signature for line in case.log.spoken} == {TRACEBACK}
    if case.log.consequences and not case.log.finished and not reported:
        if {line.signature for line in case.log.spoken} == {TRACEBACK}:
            words = ["a traceback, and an exception that no signature knows"]
            return plain(FaultClass.USER_CODE, "a program of Python gave up", words, confidence=0.3)
        return _unknown(case, "it failed, and no line says why", ["only consequences were seen"])
    if Input.TEXT in case.inputs and not case.log.finished:
        return statements.text_without_cause(case, statements.read_statements(case))
    words = ["the log tells of a good end" if case.log.finished else "no line tells of a failure"]
    return plain(FaultClass.HEALTHY, "no failure seen", words, confidence=0.9 if case.log.finished else 0.7)


def ended_somehow(case: Case) -> Diagnosis | None:
    """The job is over, and neither Slurm, the log nor the exit record says why."""
    state = (case.ended.state if case.ended else "") or "unknown"
    if case.ended is not None and case.ended.by_us:
        title = "ended by ftrun after a suspicion that no line explains"
        return plain(
            FaultClass.HANG, title, [f"Slurm: {state}, by ftrun"], confidence=0.3, sources=(Source.SILENCE,)
        )
    return _unknown(case, "ended, and nothing says why", [f"Slurm: {state}"])


def with_consequences(case: Case, found: Diagnosis) -> Diagnosis | None:
    """Adds the number of consequences, and why lines of the log were left out."""
    return replace(found, consequences=case.log.consequences, rests_on=(*found.rests_on, *case.log.words))


def _by_signature(case: Case, signature: Signature) -> Diagnosis:
    """The diagnosis for `signature`, as seen in this case."""
    lines = case.log.lines_of(signature.id)
    accused = signature.blame in {Blame.NODE, Blame.DEVICE, Blame.LINK}
    if signature.fault is FaultClass.HANG and not accused:
        who = blame.laggards(case.log.lines_about(FaultClass.HANG), case.log.spoken, case.topology)
    else:
        who = blame.find_culprits(signature.blame, lines, case.topology)
    sources = _agreeing(case, signature, lines)
    confidence, words = _earned(case, signature, lines, sources)
    broken = _is_measured(signature) and confidence >= NAMELESS
    to_elsewhere = signature.action in {Action.DRAIN, Action.EXCLUDE}
    found = Diagnosis(
        fault=signature.fault,
        retry=signature.retry,
        action=Action.RESUBMIT if who.everywhere and to_elsewhere else signature.action,
        nodes=who.names,
        exclude=signature.exclude and not who.everywhere and (bool(who.names) or broken),
        confidence=confidence,
        signature=signature.id,
        title=_title(signature, lines),
        because=proofs(lines),
        advice=signature.advice or CLASS_DEFAULTS[signature.fault].advice,
        blame=Blame.CLUSTER if who.everywhere else signature.blame,
        rests_on=(
            f"{signature.id}: {counted(sum(line.count for line in lines), 'line')}",
            *who.words,
            *words,
        ),
        sources=sources,
    )
    return context_rules.in_context(found, lines, case)


_NAMED = frozenset({FaultClass.CONFIG, FaultClass.DATA})


def _title(signature: Signature, lines: Sequence[Evidence]) -> str:
    """The signature's title; of a mistake in the script or its data with the file, command or argument that its first line names."""
    named = lines[0].captures.get("path", "") if lines and signature.fault in _NAMED else ""
    return f"{signature.title}: {named}" if named else signature.title


def _is_measured(signature: Signature) -> bool:
    """Whether the line tells of a state measured on a machine: then Slurm knows which one it was."""
    if signature.fault in HARDWARE or signature.id in MEASURED_BY_SLURM:
        return True
    here = signature.layer in OF_MACHINES and signature.id not in SEEN_FROM_AFAR
    of_one = signature.role is Role.CAUSE and signature.blame in {Blame.NODE, Blame.DEVICE}
    return here and of_one and signature.fault in {FaultClass.NODE, FaultClass.NETWORK}


def _agreeing(case: Case, signature: Signature, lines: Sequence[Evidence]) -> tuple[Source, ...]:
    """The distinct sources of the cause's lines, and the exit record where its signal fits."""
    sources = [line.source for line in lines]
    died_of = case.ended.signal if case.ended is not None else 0
    killed_for_memory = signature.fault is FaultClass.OOM_HOST and died_of == SIGKILL
    crashed = signature.fault in {FaultClass.USER_CODE, FaultClass.LIBRARY_BUG} and died_of in CRASHES
    if killed_for_memory or crashed:
        sources.append(Source.EXIT)
    return tuple(dict.fromkeys(sources))


def _earned(
    case: Case, signature: Signature, lines: Sequence[Evidence], sources: Sequence[Source]
) -> tuple[float, list[str]]:
    confidence, words = signature.confidence, []
    if len(sources) > 1:
        confidence += 0.1 * (len(sources) - 1)
        words.append(f"{len(sources)} sources agree: {', '.join(source.value for source in sources)}")
    rivals = case.log.rivals_of(signature)
    if rivals:
        confidence *= 0.8
        words.append(f"could also be: {', '.join(rivals)}")
    if signature.role is Role.EITHER:
        confidence *= 0.75
        words.append("such a line can also be a consequence")
    if Source.EXIT in sources:  # the signal fits: other ranks may still have printed a step
        return clamp_confidence(confidence), words
    if _before_the_last_step(case, lines):
        confidence *= 0.75
        words.append("such a line can also be a consequence")
    steps_end = case.progress.offset_bytes if case.progress is not None else 0
    if lines and all(line.source is Source.LOG and line.offset_bytes < steps_end for line in lines):
        confidence *= 0.7
        words.append("steps were printed after it")
    return clamp_confidence(confidence), words


def _before_the_last_step(case: Case, lines: Sequence[Evidence]) -> bool:
    """Some rank printed a step after one of `lines`. False where several files are read: their order is
    unknown.
    """
    if case.progress is None or len({line.file for line in lines}) > 1:
        return False
    end = case.progress.offset_bytes
    return any(line.source is Source.LOG and line.offset_bytes < end for line in lines)


def _unknown(case: Case, title: str, words: Sequence[str], advice: str = "") -> Diagnosis:
    sources = (Source.EXIT,) if case.ended is not None else (Source.LOG,)
    found = plain(FaultClass.UNKNOWN, title, words, confidence=0.2, sources=sources, advice=advice)
    return replace(found, suspicious=proofs(case.log.suspicious))


_PREEMPTED = by_state(frozenset({"PREEMPTED"}), FaultClass.PREEMPTED, "preempted")
_TIME_LIMIT = by_state(frozenset({"TIMEOUT", "DEADLINE"}), FaultClass.TIMELIMIT, "the time limit was reached")
_OUT_OF_MEMORY = by_state(frozenset({"OUT_OF_MEMORY"}), FaultClass.OOM_HOST, "out of host memory")

RULES: tuple[Rule, ...] = (
    Rule("tasks", Part.END, known_ends.surest_task_diagnosis,
         "each task of the array has a diagnosis already", Input.TASKS),
    Rule("refused", Part.END, known_ends.refused_by_sbatch, "there never was a job", Input.REFUSAL),
    Rule("started-twice", Part.END, known_ends.started_twice,
         "this end is that of a start that never ran", Input.ODD_END),
    Rule("lost-track", Part.END, known_ends.lost_track,
         "the log only shows how Slurm killed that start", Input.ODD_END),
    Rule("left-the-queue", Part.END, known_ends.left_the_queue,
         "no start claimed: the log is not its own", Input.ODD_END),
    Rule("cancelled-again", Part.END, known_ends.cancelled_again,
         "a cancel outweighs the launch's cause", Input.ODD_END),
    Rule("elsewhere", Part.END, known_ends.revoked, "its end is not ours to judge", Input.ODD_END),
    Rule("held", Part.END, known_ends.held_by_checks,
         "the script did not run: only its checks know why", Input.HELD),
    Rule("unloadable", Part.END, known_ends.no_loadable_checkpoint,
         "the script did not run: nothing could be loaded", Input.UNLOADABLE),
    Rule("hook-hold", Part.END, known_ends.held_by_hook,
         "the script did not run: the user's pre-hook failed", Input.HOOK_HOLD),
    Rule("given-up", Part.END, known_ends.tasks_given_up,
         "the tasks that are left ended well", Input.GIVEN_UP),
    Rule("finished", Part.CAUSE, finished, "the script's own verdict outweighs every line"),
    Rule("hardware-of-lost-node", Part.CAUSE, hardware_of_lost_node, "why it was lost says more"),
    Rule("node-lost", Part.CAUSE, node_lost, "what ranks print after a lost node follows from it"),
    Rule("hardware-before-limit", Part.CAUSE, hardware_before_the_limit, "then the limit is not the cause"),
    Rule("preempted", Part.CAUSE, _PREEMPTED, "Slurm's own verdict outweighs the log"),
    Rule("time-limit", Part.CAUSE, _TIME_LIMIT, "Slurm's own verdict outweighs the log"),
    Rule("out-of-memory", Part.CAUSE, _OUT_OF_MEMORY, "Slurm's own verdict outweighs the log"),
    Rule("cancelled", Part.CAUSE, cancelled, "a person ended it, no matter what else is wrong"),
    Rule("rank-death", Part.CAUSE, rank_deaths.rank_death, "the others lose their peer: before what they print"),
    Rule("log", Part.CAUSE, log_cause, "a line that can be a cause says more than what follows"),
    Rule("cut-off", Part.CAUSE, context_rules.cut_off, "only lost connections, and no end on record"),
    Rule("job-forgotten", Part.CAUSE, job_forgotten, "before the exit, which only follows; after the log's own cause"),
    Rule("statement", Part.CAUSE, statements.stated_cause,
         "words that no signature knows say less than a signature, and more than a number", Input.TEXT),
    Rule("odd-row", Part.CAUSE, odd_one.odd_row, "a table tells less than a sentence", Input.TEXT),
    Rule("launch-failure", Part.CAUSE, launch_failure, "Slurm's reason, where the log has none"),
    Rule("requeued", Part.CAUSE, requeued, "only where nothing was wrong, so after the log"),
    Rule("exit-record", Part.CAUSE, exit_record, "a number says little, so after everything with words"),
    Rule("text-alone", Part.CAUSE, text_alone, "no end on record, and no line that can be a cause"),
    Rule("ended-somehow", Part.CAUSE, ended_somehow, "it always answers"),
    Rule("checkpoint", Part.REVIEW, review.review_checkpoint,
         "needs the log's cause: a checkpoint may not load", Input.RESUMED),
    Rule("counted", Part.REVIEW, with_consequences, "the other lines of the log count for its cause only"),
    Rule("sentence", Part.REVIEW, statements.sentence_before_type,
         "the words of an exception say more than its type", Input.TEXT),
    Rule("set-up", Part.REVIEW, setup_rules.judge_setup,
         "before names: a set-up blames nobody", Input.TEXT),
    Rule("named-beside", Part.REVIEW, statements.named_beside,
         "a name beside the lines of the cause, where they name nobody", Input.TEXT),
    Rule("odd-rank", Part.REVIEW, odd_one.odd_rank,
         "a list names by what is not in it, where nothing else names anybody", Input.TEXT),
    Rule("cancelled-by-us", Part.REVIEW, review.cancelled_by_us,
         "our own cancel is no person's", Input.OUR_END),
    Rule("put-back", Part.REVIEW, review.requeued_then_gone,
         "a person's cancel comes before any other review", Input.ODD_END),
    Rule("suspected", Part.REVIEW, review.ended_on_suspicion,
         "before the nodes, which may say why it hung", Input.SUSPICION),
    Rule("companion-over", Part.REVIEW, review.companion_over,
         "before the nodes: lost nodes report nothing", Input.GONE),
    Rule("nodes", Part.REVIEW, review.add_node_findings,
         "the program sees a fault of the machine from one side", Input.FINDINGS),
    Rule("silent", Part.REVIEW, review.add_silent_nodes,
         "after the nodes: silent ones are left in any case", Input.SILENT),
    Rule("left-as-asked", Part.REVIEW, review.ended_as_requested,
         "after the nodes: bad hardware is no such end", Input.OUR_END),
    Rule("told-inside", Part.REVIEW, review.agent_diagnosis,
         "only where all others name nobody", Input.TOLD_INSIDE),
    Rule("suspect-nodes", Part.REVIEW, suspect_nodes.add_suspect_nodes,
         "the history names a node only where nothing else does", Input.SUSPECTS),
    Rule("worth-a-look", Part.REVIEW, review.add_suspicious_lines,
         "only what stays unknown", Input.LAST_WORDS),
    Rule("second-opinion", Part.REVIEW, second_opinion.add_second_opinion,
         "a guess counts for least: only where all else left the cause open", Input.OPINION),
)  # fmt: skip
