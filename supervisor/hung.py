"""The diagnosis of a start that was ended because it hung. (pure)

How it thinks. Whoever is behind is named, by what the ranks themselves said. While a start is ended its ranks and Slurm say things as well, and those
explain nothing; a line that names a cause explains more than a silence does. But a cause that stops a run for good (the program's mistake, memory,
data, settings) needs an end of the script or of a rank by itself: programs print such lines and go on (P7). What ftrun ended is then a hang after that
line; the same line at the same step again is the policy's to judge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftrun.slurm.records import replace
from ftrun.supervisor.hang_verdict import Verdict
from ftrun.supervisor.model import Diagnosis, FaultClass, Source
from ftrun.supervisor.run_types import Attempt
from ftrun.supervisor.verdicts import plain

__all__ = ["better", "ended_by_us", "hung", "judged"]

_NODE = re.compile(r"\((\S+)\)$")
_NOTHING_BETTER = frozenset({FaultClass.UNKNOWN, FaultClass.HANG, FaultClass.HEALTHY})


def hung(verdict: Verdict, nodes: Sequence[str]) -> Diagnosis:
    """What is told of a start on these nodes that was ended for this verdict."""
    named = [match[1] for one in verdict.behind if (match := _NODE.search(one))]
    known = {node.split(".")[0]: node for node in nodes}
    culprits = tuple(dict.fromkeys(known[n.split(".")[0]] for n in named if n.split(".")[0] in known))
    words = [verdict.reason, *(f"behind: {one}" for one in verdict.behind)]
    found = plain(
        FaultClass.HANG, "it hung", words, names=culprits, confidence=0.7, sources=(Source.SILENCE,)
    )
    return replace(found, signature="hang.no-progress")


def better(found: Diagnosis, why: Diagnosis) -> Diagnosis:
    """`found` where it explains the end of a start that was ended because of `why`; else `why`."""
    vague = found.fault in _NOTHING_BETTER and (not found.signature or found.fault is FaultClass.UNKNOWN)
    return why if vague else found


def ended_by_us(found: Diagnosis, why: Diagnosis, *, rank_ended: bool) -> Diagnosis:
    """The diagnosis of a start that ftrun ended because of `why`, where its logs say `found`. `rank_ended`: a task had ended by itself before."""
    if found.retry or rank_ended or found.fault in _NOTHING_BETTER:
        return better(found, why)
    return replace(
        why,
        title=f"{why.title} after: {found.title}",
        signature=found.signature,
        because=found.because,
        blame=why.blame if why.nodes else found.blame,
        loading=found.loading,
        rests_on=(
            *why.rests_on,
            f"ftrun ended the start: whether the program died of this {found.fault.value} line is not known",
        ),
    )


def judged(attempt: Attempt, found: Diagnosis) -> Diagnosis:
    """`found`; where ftrun ended the launch because it hung and nothing explains that, the hang. A script that came to a good end finished."""
    known = attempt.hung
    if known is None or not attempt.ended_by_us or attempt.launch.end.state == "COMPLETED":
        return found
    if (known.launch, known.start) != (attempt.launch.number, attempt.launch.start.number):
        return found
    why = hung(known.verdict, attempt.used)
    return ended_by_us(found, why, rank_ended=known.verdict.rank_ended)
