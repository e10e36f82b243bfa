"""A rank that a signal ended, by srun's report, before anybody ended its step. (pure)

The others lose their connections to it, or wait for it, and fail in turn. What they print says that a peer is
gone, not why; so the rank that died first is the cause, and is named with its node. Once srun, Slurm or ftrun
ends the step, every other rank dies of a signal too: such deaths say nothing.

A signal that a process does not send to itself (SIGKILL, SIGTERM, SIGINT) came from outside: several ranks
may get it at once. A rank that aborted or crashed did so for a reason that it may have met in a peer. So it counts only
where no other rank died of a signal, and nobody reports a time-out.

srun prints the signal's name as strsignal(3) has it (src/srun/libsrun/opt.c, `_print_task...`); a task's
number is SLURM_PROCID, the rank of programs that srun starts one by one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.class_defaults import plain
from ftrun.supervisor.model.types import Blame, Diagnosis, Evidence, FaultClass, Source

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.evidence import Case


KILLED, ABORTED, CRASHED = "slurm-task-killed", "slurm-task-aborted", "slurm-task-crash"
"""Signatures of srun's reports: a signal from outside, an abort, a signal that the program's own fault causes."""
OWN_DEATHS = (ABORTED, CRASHED)

_DEATH = re.compile(
    r"(?:srun|yhrun): error: (?P<host>[\w.\-\[\],]+): tasks? (?P<ranks>[\d,\-\[\]]+): (?P<word>\w+(?: \w+)*)"
)
_SIGNALS = {
    "Killed": "SIGKILL",
    "Terminated": "SIGTERM",
    "Interrupt": "SIGINT",
    "Hangup": "SIGHUP",
    "Quit": "SIGQUIT",
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Floating point exception": "SIGFPE",
}
_STEP_ENDED = re.compile(
    r"\*\*\* (?:STEP|JOB) |\b(?:srun|yhrun): (?:error: )?(?:Job step aborted|Terminating |Force Terminated|forcing job|First task exited)"
)
_PEER_GONE = re.compile(
    r"[Cc]onnection (?:was )?(?:reset|closed|refused|aborted)|Connection(?:Reset|Refused|Aborted)Error|[Bb]roken ?[Pp]ipe"
    r"|[Rr]emote (?:process exited|peer)|Socket closed|DistNetworkError"
)
ADVICE = "Look who sends signals there; SIGKILL is often lack of memory: see the node's kernel log."


def is_rank_death(found: Diagnosis) -> bool:
    """Whether the cause is that a signal ended a rank."""
    return found.signature in (KILLED, *OWN_DEATHS) and bool(found.because)


def rank_death(case: Case) -> Diagnosis | None:
    """The rank that died first, if all other faults in the log may follow from that. A requeue ends every
    rank.
    """
    if case.ended is not None and case.ended.requeued:
        return None
    lines = [line for line in case.lines if not line.progress_after]
    ends = min((line.order for line in lines if _STEP_ENDED.search(line.text)), default=float("inf"))
    found = [line for line in lines if line.order < ends and line.signature in (KILLED, *OWN_DEATHS)]
    deaths = [line for line in found if line.signature == KILLED and _DEATH.search(line.text)]
    crashes = [line for line in lines if line.signature == CRASHED]  # whenever: nobody's signal is SIGSEGV
    alone = not deaths and len(found) == 1 and len(crashes) <= 1 and _ranks(found[0]).isdigit()
    deaths = deaths or (found if alone else [])
    if not deaths or not all(_follows(line, deaths[0], case, alone) for line, _ in case.log.causes):
        return None
    return _diagnosis(case, deaths)


def _follows(line: Evidence, death: Evidence, case: Case, alone: bool) -> bool:
    """Whether a line that could be a cause may follow from the death of a rank. `alone`: it aborted or
    crashed.
    """
    fault = next(of.fault for one, of in case.log.causes if one is line)
    if line.signature in OWN_DEATHS or fault is FaultClass.UNKNOWN:
        return True
    if fault is FaultClass.HANG:
        return not alone and line.order > death.order
    return fault is FaultClass.NETWORK and _PEER_GONE.search(line.text) is not None


def _ranks(line: Evidence) -> str:
    found = _DEATH.search(line.text)
    return found["ranks"] if found else ""


def _diagnosis(case: Case, deaths: list[Evidence]) -> Diagnosis:
    places: dict[str, list[str]] = {}
    words = []
    for match in filter(None, (_DEATH.search(line.text) for line in deaths)):
        nodes = [node for name in _unfolded(match["host"]) if (node := case.topology.node_of(name) or name)]
        for node in nodes:
            places.setdefault(node, []).append(match["ranks"])
        words.append(_SIGNALS.get(match["word"], match["word"]))
    ranks = ",".join(dict.fromkeys(rank for of_node in places.values() for rank in of_node))
    signal = "/".join(dict.fromkeys(words))
    who = (
        f"rank {ranks} on {', '.join(places)}" if ranks.isdigit() else f"ranks {ranks} on {', '.join(places)}"
    )
    own = deaths[0].signature in OWN_DEATHS
    did = "aborted" if deaths[0].signature == ABORTED else "crashed"
    title = f"{who} {did} ({signal})" if own else f"{who} was ended by {signal}, and nothing says by whom"
    later = sum(line.count for line, _ in case.log.causes if line.signature not in OWN_DEATHS)
    rests_on = [f"srun: {who}: {signal}, before anybody ended the step"]
    if later:
        rests_on.append(
            f"{counted(later, 'line')} of peers that are gone or of others that failed: a consequence"
        )
    found = plain(
        FaultClass.LIBRARY_BUG if own else FaultClass.UNKNOWN,
        title if ranks.isdigit() else title.replace(" was ", " were "),
        rests_on,
        confidence=0.5 if own else 0.6,
        names=tuple(places) if len(places) == 1 else (),
        lines=deaths,
        sources=(Source.LOG,),
        advice="Look at what this rank printed last." if own else ADVICE,
    )
    return replace(found, signature=deaths[0].signature, exclude=False, blame=Blame.UNKNOWN)


def _unfolded(folded: str) -> list[str]:
    try:
        return list(nodeset.expand(folded))
    except ValueError:
        return [folded]
