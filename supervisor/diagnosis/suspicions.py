"""Why ftrun ends a live start: the suspicions that later go into its diagnosis. (pure)"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.class_defaults import plain
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Source

if TYPE_CHECKING:
    from ftrun.supervisor.model.run import Attempt
    from ftrun.supervisor.model.types import HangVerdict


LOST, SLOW, DRAINED, GROWN = "node.silent", "straggler.swap", "node.drained", "run.grows"
HUNG = "hang.no-progress"

_NODE = re.compile(r"\((\S+)\)$")


def hang_suspicion(verdict: HangVerdict, nodes: Sequence[str]) -> Diagnosis:
    """A start on these nodes hangs. The culprits are the nodes whose ranks are behind, by the ranks' own
    report.
    """
    named = [match[1] for one in verdict.behind if (match := _NODE.search(one))]
    known = {node.split(".")[0]: node for node in nodes}
    culprits = tuple(dict.fromkeys(known[n.split(".")[0]] for n in named if n.split(".")[0] in known))
    words = [verdict.reason, *(f"behind: {one}" for one in verdict.behind)]
    found = plain(
        FaultClass.HANG, "it hung", words, names=culprits, confidence=0.7, sources=(Source.SILENCE,)
    )
    return replace(found, signature=HUNG)


def recorded_hang(attempt: Attempt) -> tuple[Diagnosis | None, bool]:
    """The hang for which ftrun ended the present start, and whether a task had ended by itself before.

    None where ftrun ended it for another reason. A script with a good end finished.
    """
    known = attempt.hung
    if known is None or not attempt.ended_by_us or attempt.launch.end.state == "COMPLETED":
        return None, False
    if (known.launch, known.start) != (attempt.launch.number, attempt.launch.start.number):
        return None, False
    return hang_suspicion(known.verdict, attempt.used), known.verdict.rank_ended


def rank_died(found: Diagnosis, rank: int) -> Diagnosis:
    """A rank died of this, and the others cannot go on without it."""
    return replace(found, title=f"rank {rank} died: {found.title}")


def lost_suspicion(nodes: tuple[str, ...]) -> Diagnosis:
    """A live start has lost nodes: they do not answer."""
    words = "a node does not answer, and the script stands still"
    return replace(
        plain(FaultClass.NODE, words, [words], names=nodes, confidence=0.8, sources=(Source.SILENCE,)),
        signature=LOST,
    )


def slow_suspicion(node: str, reason: str) -> Diagnosis:
    """ftrun ends a start so that a spare can replace a slow node."""
    found = plain(
        FaultClass.NODE, "a node is slow", [reason], names=(node,), confidence=0.7, sources=(Source.SILENCE,)
    )
    return replace(found, signature=SLOW)


def drained_suspicion(nodes: tuple[str, ...], reason: str) -> Diagnosis:
    """ftrun ends a start so that spares can replace nodes that somebody drained. Slurm reported the drain;
    nobody is blamed.
    """
    title = "a node is drained" if len(nodes) == 1 else "nodes are drained"
    found = plain(FaultClass.NODE, title, [reason], names=nodes, confidence=0.9, sources=(Source.SLURM,))
    return replace(found, signature=DRAINED, exclude=False)


def growth_suspicion(reason: str) -> Diagnosis:
    """ftrun ends a start so that the next one can use more nodes. Nothing failed, and nobody is blamed."""
    found = plain(FaultClass.NODE, "the run grows", [reason], confidence=0.9, sources=(Source.SLURM,))
    return replace(found, signature=GROWN, exclude=False)


def lost_before_growth(nodes: Sequence[str], answered: Collection[str], unfit: Collection[str]) -> Diagnosis:
    """The suspicion for a start that was to grow, where some of its own nodes are lost when it is over."""
    gone = tuple(node for node in nodes if node not in answered or node in unfit)
    return lost_suspicion(gone) if gone else growth_suspicion("it is not known which nodes are well")


def is_planned(found: Diagnosis) -> bool:
    """Whether the start was well when ftrun ended it for this reason. What it printed at its end is then no
    fault.
    """
    return found.signature in (SLOW, DRAINED, GROWN)
