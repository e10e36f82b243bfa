"""What went wrong, and who is to blame: facts in, a diagnosis with its proof out. (pure)

How it thinks. RULES makes every diagnosis, for the supervisor, for the agent inside a job and for `ftrun
diagnose` alike; nothing rewrites it afterwards. The rules are asked in their order, in three parts:

- told: an end that tells by itself what it was. The first that answers makes the diagnosis, and it is
  final.
- cause: the first that answers names the cause; the last always answers.
- review: each may put a better diagnosis in the place of the one so far.

What a rule needs and does not know (no journal, no reports of nodes) makes it silent, so few facts need no
other list.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from ftrun.slurm.records import dataclass
from ftrun.supervisor.diagnosis import known_ends, review, root_cause
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.root_cause import Case, case_of
from ftrun.supervisor.model.types import Diagnosis, FaultClass

__all__ = ["RULES", "Part", "Rule", "diagnose"]


class Part(StrEnum):
    """What becomes of a rule's answer."""

    TOLD = "told"  # it is the diagnosis
    CAUSE = "cause"  # it is the cause, to be reviewed
    REVIEW = "review"  # it takes the place of the diagnosis so far


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `why` says why it stands where it does; `judge` gets the diagnosis so far, None before
    there is one, and returns None for "no answer".
    """

    name: str
    part: Part
    why: str
    judge: Callable[[Case, Diagnosis | None], Diagnosis | None]


def diagnose(facts: Facts) -> Diagnosis:
    """The cause of an end, or of what is seen so far where it has not ended (a live run, a text without a
    record).

    A live run without anything fatal is HEALTHY with signature "".
    """
    case, found = case_of(facts), None
    for rule in RULES:
        if rule.part is not Part.REVIEW and found is not None:
            continue
        answer = rule.judge(case, found)
        if answer is not None and rule.part is Part.TOLD:
            return answer
        found = answer if answer is not None else found
    assert found is not None, "the last cause always answers"
    return found


def _told(name: str, judge: Callable[[Case], Diagnosis | None], why: str) -> Rule:
    return Rule(name, Part.TOLD, why, lambda case, found: judge(case))


def _cause(name: str, judge: Callable[[Case], Diagnosis | None], why: str) -> Rule:
    return Rule(name, Part.CAUSE, why, lambda case, found: judge(case))


def _review(name: str, judge: Callable[[Case, Diagnosis], Diagnosis | None], why: str) -> Rule:
    return Rule(name, Part.REVIEW, why, lambda case, found: None if found is None else judge(case, found))


_PREEMPTED = root_cause.by_state(frozenset({"PREEMPTED"}), FaultClass.PREEMPTED, "preempted")
_TIME_LIMIT = root_cause.by_state(
    frozenset({"TIMEOUT", "DEADLINE"}), FaultClass.TIMELIMIT, "the time limit was reached"
)
_OUT_OF_MEMORY = root_cause.by_state(frozenset({"OUT_OF_MEMORY"}), FaultClass.OOM_HOST, "out of host memory")

RULES: tuple[Rule, ...] = (
    _told("tasks", known_ends.of_tasks, "an array's tasks were judged each by this list already"),
    _told("refused", known_ends.refused, "there never was a job"),
    _told("started-twice", known_ends.started_twice, "the end is that of a start which never ran"),
    _told("lost-track", known_ends.lost_track, "the log tells how Slurm killed the start that it forgot"),
    _told("left-the-queue", known_ends.left_the_queue, "no start was claimed: the log is another launch's"),
    _told("cancelled-again", known_ends.cancelled_again, "a cancel outweighs what the last launch died of"),
    _told("elsewhere", known_ends.elsewhere, "its end is not ours to judge"),
    _told("held", known_ends.held, "the script did not run: only the checks before it know why"),
    _told("unloadable", known_ends.unloadable, "the script did not run: nothing could be loaded"),
    _told("given-up", known_ends.given_up, "the tasks that are left ended well, those that were given up did not"),
    _cause("finished", root_cause.finished, "the script's own verdict stands above every line"),
    _cause("hardware-of-lost-node", root_cause.hardware_of_lost_node, "why it was lost says more"),
    _cause("node-lost", root_cause.node_lost, "what ranks say who lost a node follows from that"),
    _cause("hardware-before-limit", root_cause.hardware_before_the_limit, "the limit is no cause then"),
    _cause("preempted", _PREEMPTED, "Slurm's own verdict stands above the log"),
    _cause("time-limit", _TIME_LIMIT, "Slurm's own verdict stands above the log"),
    _cause("out-of-memory", _OUT_OF_MEMORY, "Slurm's own verdict stands above the log"),
    _cause("cancelled", root_cause.cancelled, "a person ended it, whatever else is wrong"),
    _cause("log", root_cause.log_cause, "a line that can be a cause says more than what follows"),
    _cause("cut-off", root_cause.cut_off, "only lost connections are told of, and no end is on record"),
    _cause("launch-failure", root_cause.launch_failure, "Slurm's reason, where the log has none"),
    _cause("requeued", root_cause.requeued, "only where nothing was wrong, so after the log"),
    _cause("exit-record", root_cause.exit_record, "a number tells little: after all that has words"),
    _cause("text-alone", root_cause.text_alone, "no record of an end, and no line that can be a cause"),
    _cause("ended-somehow", root_cause.ended_somehow, "it always answers"),
    _review("checkpoint", review.of_checkpoint, "the log's cause: what failed to load may be broken"),
    _review("counted", review.counted, "what the log has besides belongs to its cause alone"),
    _review("cancelled-by-us", review.cancelled_by_us, "our own cancel is none of a person's"),
    _review("put-back", review.put_back, "a person's cancel, before anything else is asked about the end"),
    _review("suspected", review.suspected, "before the nodes, which may say why it hung"),
    _review("companion-over", review.companion_over, "before the nodes: those of a lost one tell nothing"),
    _review("nodes", review.nodes, "the machine explains what the program saw only from its side"),
    _review("silent", review.silent, "after the nodes: who is silent is left, whoever else is blamed"),
    _review("left-as-asked", review.left_as_asked, "after the nodes: broken hardware is no leaving in order"),
    _review("told-inside", review.told_inside, "only where all others name nobody"),
    _review("worth-a-look", review.worth_a_look, "only what is unknown in the end"),
)  # fmt: skip
