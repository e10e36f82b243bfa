"""Set-up that sounds like a fault of the network, a node or a port. (pure)

Questions that a careful reader asks before he retries: had a step been done, can the address work at all, did
somebody refuse or did nobody answer, was the program still busy with its preparation, did anything fail on
the node that is called dead. What fails before the first step for such a reason fails again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, FaultClass

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.evidence import Case


LINES_BEFORE = 60
"""How many lines before a time-out are looked at."""

_DISGUISED = frozenset(
    {FaultClass.NETWORK, FaultClass.HANG, FaultClass.NODE, FaultClass.PORT_CONFLICT, FaultClass.UNKNOWN}
)
_IMPOSSIBLE = re.compile(
    r"(?<![\d.])(?:172\.17\.\d+\.\d+|169\.254\.\d+\.\d+|198\.1[89]\.\d+\.\d+|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\.\d+\.\d+)(?![\d.])"
    r"|(?:host|addr\w*|endpoint|coordinator|master|to|at)[ =:\[(\"']+(?:<[a-z_ -]+>|\$\{?[A-Z_]+\}?|your[-_]\w+|(?:master|node|host)_?(?:ip|name|addr))(?=[\s:\]\"')]|$)",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"connection refused|ECONNREFUSED|refused", re.IGNORECASE)
_NOT_REFUSED = re.compile(r"timed? ?out|no route|no reply|unreachable|reset by", re.IGNORECASE)
_SSH_REFUSED = re.compile(r"ssh: connect to host \S+ port \d+: Connection refused")
_DOWNLOAD = re.compile(
    r"urlopen error|URLError|urllib|requests\.exceptions|HTTPS?ConnectionPool|https?://(?!localhost|127\.|10\.|192\.168)[\w.-]+\.[a-z]{2,}"
    r"|\bwget\b|\bcurl\b|download",
    re.IGNORECASE,
)
_BAR = re.compile(r"(?:^|\s)(\d{1,2})%\|.{0,60}\| ?\S+/\S+ \[(?:\d+:)?\d+:\d\d<(?:(\d+):)?(\d+):(\d\d)")
_PREPARES = re.compile(
    r"token|map|build|index|prepar|filter|preprocess|extract|cache|caching|generating|load|pack|convert|scan|collat|resampl|split",
    re.IGNORECASE,
)
_LIMIT_S = 600
_WILL_RETRY = re.compile(
    r"timed? ?out.{0,120}(?:will retry|retrying)|(?:will retry|retrying).{0,80}timed? ?out", re.IGNORECASE
)
_RAY_DEATH = re.compile(
    r"(?:Actor|Task|Worker|actor|task|worker|ObjectRef|step)\b.{0,120}(?:died|dead|failed|unavailable|lost|crashed)|Traceback|Error\b|exception",
    re.IGNORECASE,
)
_RAY_PREEMPTED = re.compile(
    r"node was preempted|preempt(?:ed|ion) (?:notice|by|:)|drain.{0,40}preempt", re.IGNORECASE
)
_PROLOG_MISSING = re.compile(
    r"(?:prolog|epilog|plugstack|plugin)\S*.{0,120}(?:No such file|not found|does not exist)|No such file.{0,80}prolog",
    re.IGNORECASE,
)
_SEERS = ("health-check", "pcie-")
_OF_GPU = re.compile(r"(?<![a-z])xid|gpu|nvidia|nvlink|ecc|dcgm|rocm|amdgpu", re.IGNORECASE)


def judge_setup(case: Case, found: Diagnosis) -> Diagnosis | None:
    """A fault of the set-up in the clothes of another; None where nothing tells of one."""
    if case.facts.attempt is not None or not case.facts.text:
        return None
    own = [proof.text for proof in found.because]
    told = _first(OF_ANY_TIME, case, found, own)
    if told is not None:
        return told
    if found.fault not in _DISGUISED or case.trained or (case.ended is not None and not case.ended.failed):
        return None
    return _first(BEFORE_STEPS, case, found, own)


def _first(rules: Sequence[Rule], case: Case, found: Diagnosis, own: Sequence[str]) -> Diagnosis | None:
    return next((better for rule in rules if (better := rule(case, found, own)) is not None), None)


def _texts(case: Case) -> list[str]:
    return [line.text for line in case.facts.text]


def _is_set_up(found: Diagnosis, why: str, advice: str) -> Diagnosis:
    return replace(
        found,
        fault=FaultClass.CONFIG,
        retry=False,
        action=Action.STOP,
        nodes=(),
        exclude=False,
        blame=Blame.JOB,
        confidence=round(min(0.5, found.confidence), 2),
        rests_on=(*found.rests_on, why),
        advice=advice,
    )


def _part_that_failed(_case: Case, found: Diagnosis, own: Sequence[str]) -> Diagnosis | None:
    """The class is that of the part that failed, not of the check or the bus that saw it."""
    if not found.signature.startswith(_SEERS) or not any(_OF_GPU.search(text) for text in own):
        return None
    why = "the part that failed is a GPU: the class is that of the part, not of what saw it"
    return replace(found, fault=FaultClass.HARDWARE_GPU, rests_on=(*found.rests_on, why))


def _ray_node_removed(case: Case, found: Diagnosis, _own: Sequence[str]) -> Diagnosis | None:
    """A framework that marks a node dead on which nothing died has removed an idle node."""
    if found.signature != "ray-node-died":
        return None
    texts = _texts(case)
    if any(_RAY_PREEMPTED.search(text) for text in texts):
        why = "the text says that the node was preempted"
        return replace(
            found, fault=FaultClass.PREEMPTED, nodes=(), exclude=False, blame=Blame.UNKNOWN,
            rests_on=(*found.rests_on, why),
        )  # fmt: skip
    quoted = {proof.text for proof in found.because}
    if texts and not any(_RAY_DEATH.search(text) for text in texts if text not in quoted):
        return replace(
            found,
            fault=FaultClass.HEALTHY,
            retry=False,
            action=Action.NONE,
            nodes=(),
            exclude=False,
            blame=Blame.UNKNOWN,
            confidence=0.5,
            title="a node was removed, and nothing died on it",
            rests_on=(*found.rests_on, "no task, actor or step failed after it: an idle node was removed"),
        )
    return None


def _prolog_not_there(case: Case, found: Diagnosis, _own: Sequence[str]) -> Diagnosis | None:
    """A file that the configuration names and that is not there explains the prolog that fails."""
    if "prolog" not in found.signature or not any(_PROLOG_MISSING.search(text) for text in _texts(case)):
        return None
    why = "a file that the configuration names does not exist: every launch fails"
    return _is_set_up(found, why, "An administrator corrects the path in slurm.conf.")


def _busy_preparing(case: Case, found: Diagnosis, own: Sequence[str]) -> Diagnosis | None:
    """A time-out while a bar of preparation still had longer to go than the limit."""
    if found.fault is not FaultClass.HANG:
        return None
    texts = _texts(case)
    at = next((place for place, text in enumerate(texts) if text in own), len(texts))
    for text in reversed(texts[max(0, at - LINES_BEFORE) : at + 1]):
        bar = _BAR.search(text)
        if bar and _PREPARES.search(text[: bar.start() + 1]):
            left_s = int(bar[2] or 0) * 3600 + int(bar[3]) * 60 + int(bar[4])
            if left_s >= _LIMIT_S:
                why = f"before it, a bar of preparation had {left_s} s to go: a rank was busy, not faulty"
                return _is_set_up(found, why, "Prepare the data before the job, or raise the time-out.")
            return None
    return None


def _impossible_address(_case: Case, found: Diagnosis, own: Sequence[str]) -> Diagnosis | None:
    """An address that no other node can reach."""
    told = next((match[0] for text in own if (match := _IMPOSSIBLE.search(text))), None)
    if told is None:
        return None
    why = f"{told.strip()} cannot be reached from another node: a bridge, a tunnel or a placeholder"
    return _is_set_up(
        found, why, "Choose the interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) and MASTER_ADDR."
    )


def _refused(case: Case, found: Diagnosis, own: Sequence[str]) -> Diagnosis | None:
    """Refused is an answer: the machine lives, and the service was never started."""
    if found.fault is FaultClass.NODE and any(_SSH_REFUSED.search(text) for text in _texts(case)):
        why = "ssh was refused: the machine lives, and lets nobody in"
        return _is_set_up(found, why, "Start sshd there, or let the launcher use srun.")
    if found.fault not in {FaultClass.NETWORK, FaultClass.NODE} or not own:
        return None
    if not all(_REFUSED.search(text) and not _NOT_REFUSED.search(text) for text in own):
        return None
    if any(_NOT_REFUSED.search(text) for text in _texts(case)):
        return None
    why = "refused before the first step: the other end lives, and nothing listens there"
    return _is_set_up(found, why, "Start what should listen there first, and check address and port.")


def _download(_case: Case, found: Diagnosis, own: Sequence[str]) -> Diagnosis | None:
    """A download at the start that nobody answers: compute nodes often have no way out."""
    if found.fault is not FaultClass.NETWORK or not any(_DOWNLOAD.search(text) for text in own):
        return None
    why = "a download before the first step: compute nodes often have no way to the internet"
    return _is_set_up(found, why, "Download on a login node first, or set the proxy.")


Rule = Callable[["Case", Diagnosis, Sequence[str]], "Diagnosis | None"]
OF_ANY_TIME: tuple[Rule, ...] = (_part_that_failed, _ray_node_removed, _prolog_not_there)
BEFORE_STEPS: tuple[Rule, ...] = (_busy_preparing, _impossible_address, _refused, _download)


def waits_for_ever(case: Case) -> Diagnosis | None:
    """The same time-out, retried over and over before the first step, is no health."""
    texts = _texts(case)
    waiting = [text for text in texts if _WILL_RETRY.search(text)]
    if case.trained or len(waiting) < _REPEATED:
        return None
    found = Diagnosis(
        fault=FaultClass.HANG,
        retry=True,
        action=Action.RESUBMIT,
        nodes=(),
        exclude=False,
        confidence=0.4,
        signature="statement.retries-without-end",
        title="the same connection is tried again without end",
        rests_on=(f"{len(waiting)} times, and no step",),
    )
    told = next((match[0] for text in waiting if (match := _IMPOSSIBLE.search(text))), None)
    if told is None:
        return found
    return _is_set_up(
        found, f"{told.strip()} cannot be reached from another node", "Choose the interface and MASTER_ADDR."
    )


_REPEATED = 3
