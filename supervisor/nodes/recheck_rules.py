"""When a drained node is checked again, returned to service, kept drained, or left to a person. (pure)

This module handles a node only if its reason is ftrun's, word for word as ftrun set it. The reason is
remembered when it is first seen; a text that differs later is a person's, and so is the node. What Slurm
itself appends when it reboots a node does not count as a change.

- `standing` says from Slurm's state alone whether the node can be checked now.
- `due_s` says when: the pauses between clean passes grow, so do those between failures, and a node that
  relapsed after its return waits longer and must pass more often.
- `judge` says what one check result means. Clean is only what was checked and found good: a check that
  failed before must be good now, a missing answer is not clean, and a skipped check proves nothing.

A reason: `ftrun: RUN SIGNATURE TIME`, with `[words]` before the time once recheck has a result to show; the
time is the drain's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ftrun.hooks.runtime.formats import DAY_S
from ftrun.slurm.client.cluster import NodeRow
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.types import FaultClass

PREFIX = "ftrun:"
WORDS_MAX = 120  # of the still failing checks, in a reason
DOUBLINGS_MAX = 10

_FORM = re.compile(r"ftrun: (\S+) (\S+) (?:\[([^\]]*)\] )?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
_REBOOT = re.compile(r"(?: ?: reboot (?:ASAP|issued|requested|complete|timed out|canceled))+$")
_CLASSES = frozenset(one.value for one in FaultClass)
# States in which a drained node can be checked.
_HARMLESS = frozenset({"drain", "reserved", "planned", "cloud", "dynamic", "dynamic_norm", "dynamic_future"})
_NOT_NOW = {
    "completing": "its last job is being cleaned away",
    "maint": "a maintenance reservation holds it",
    "reboot_requested": "a reboot is waiting",
    "reboot_issued": "it is being rebooted",
    "powering_down": "it is being powered down",
    "power_down": "it is being powered down",
    "powered_down": "it is powered down",
    "powering_up": "it is being powered up",
    "fail": "somebody set it to FAIL",
    "failing": "somebody set it to FAIL",
    "invalid_reg": "it came back with less than slurm.conf says",
    "inval": "it came back with less than slurm.conf says",
}


@dataclass(frozen=True, slots=True)
class RecheckRules:
    """The numbers. `passes` clean checks in a row return a node; `spacing_s` lies between the first two.

    A node that relapsed `lies` times within `lie_within_s` of its return is left to a person; `steps` is
    how many commands may be tried.
    """

    passes: int = 2
    spacing_s: float = 600.0
    lies: int = 2
    lie_within_s: float = 7 * DAY_S
    steps: int = 0


@dataclass(frozen=True, slots=True)
class RecheckState:
    """What recheck remembers of a node, folded from its own records. Times are Unix seconds."""

    reason: str = ""  # as last seen or set by ftrun; "" = the node is not ours now
    pending: str = ""  # a text that ftrun announced to set
    since_s: float = 0.0
    passes: int = 0
    fails: int = 0
    steps: int = 0
    looked_s: float = 0.0
    returned_s: float = 0.0
    lies: int = 0
    left: str = ""  # why it is left to a person
    returning: bool = False  # ftrun announced its return
    told: tuple[str, ...] = ()  # the checks that failed since the drain

    @property
    def ours(self) -> bool:
        """Whether the node's reason was ftrun's when it was last seen."""
        return bool(self.reason)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """One check of a node. `state`: answered, or why there is no report; findings as in the node's report."""

    state: str
    findings: Sequence[Mapping[str, Any]] = ()
    why: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)


CheckNodes = Callable[[Sequence[str]], Mapping[str, CheckReport]]
"""Node names -> a report for each, in bounded time; a node that gave none has a report that says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`result`: clean, failed or unseen; `act`: again, return, step (the next command), keep."""

    result: str
    act: str
    why: str
    wrong: tuple[str, ...] = field(default=())  # the checks that are bad


def step_command(step: str, fault: str) -> str:
    """The command of a `recheck-step` for a node with this fault class ("" = unknown); "" if the step is not for it.

    A step may begin with the classes that it is for: `hardware-gpu,network: COMMAND`.
    """
    head, colon, rest = step.partition(":")
    words = {word.strip() for word in head.split(",")}
    if not colon or not words <= _CLASSES:
        return step
    return rest.strip() if fault in words else ""


def without_reboot_note(reason: str) -> str:
    """The reason without what Slurm appends when it reboots a node."""
    return _REBOOT.sub("", reason)


def reason_owner(reason: str, memory: RecheckState) -> str:
    """Whose reason this is: nobody (not ftrun's), ours, new (an unknown drain of ours), edited."""
    if not reason.startswith(PREFIX):
        return "nobody"
    text = without_reboot_note(reason)
    if text and text in {memory.reason, memory.pending}:
        return "ours"
    form = _FORM.fullmatch(text)
    if form is None or form.group(3) is not None:
        return "edited"  # words in brackets are ftrun's, so the text would be known
    known = _FORM.fullmatch(memory.reason)
    same_drain = known is not None and known.group(1, 2, 4) == form.group(1, 2, 4)
    return "edited" if same_drain else "new"


def with_note(reason: str, words: str) -> str:
    """The reason with `words` in brackets, the time still last. Unchanged where it is not in ftrun's form."""
    form = _FORM.fullmatch(without_reboot_note(reason))
    if form is None:
        return reason
    plain = " ".join("".join(c if c.isprintable() and c not in "[]|\"'\\" else " " for c in words).split())
    middle = f"[{plain[:WORDS_MAX].strip()}] " if plain else ""
    return f"ftrun: {form.group(1)} {form.group(2)} {middle}{form.group(4)}"


def check_eligibility(row: NodeRow) -> tuple[str, str]:
    """(look | silent | wait | gone, why). Silent: no job could run there, so no check can pass."""
    for flag, why in _NOT_NOW.items():
        if flag in row.flags or row.state == flag:
            return "wait", why
    if row.state in {"allocated", "mixed"}:
        return "wait", "jobs still run there"
    if not row.responding and row.state in {"idle", "down"}:
        return "silent", f"Slurm does not hear it ({row.state})"
    strange = row.flags - _HARMLESS
    if row.state != "idle" or strange:
        return "wait", f"its state is {'+'.join((row.state, *sorted(row.flags)))}"
    return ("look", "") if row.drained else ("gone", "it is not drained any more")


def relapses_after(memory: RecheckState, rules: RecheckRules, now_s: float) -> int:
    """How often this node relapsed, now that a new reason of ftrun's is found on it."""
    soon = memory.returned_s and now_s - memory.returned_s <= rules.lie_within_s
    return memory.lies + 1 if soon else 0


def due_s(memory: RecheckState, rules: RecheckRules) -> float:
    """From when on the node may be checked."""
    patience_s = rules.spacing_s * 4.0 ** min(memory.lies, DOUBLINGS_MAX)
    if not memory.looked_s:
        return memory.since_s + (patience_s if memory.lies else 0.0)
    if memory.passes >= rules.passes + memory.lies:
        return memory.looked_s  # its return was announced and did not happen
    if memory.passes:
        return memory.looked_s + patience_s * 2.0 ** (memory.passes - 1)
    again_s = rules.spacing_s * 2.0 ** min(max(memory.fails - 1, 0), DOUBLINGS_MAX)
    return memory.looked_s + min(again_s, max(DAY_S, rules.spacing_s))


def assess_check(memory: RecheckState, report: CheckReport, rules: RecheckRules) -> Verdict:
    """What this check means for the node."""
    if report.state != "answered" or not report.findings:
        return _not_clean(
            memory, rules, "unseen", report.why or f"no report: {report.state or 'no answer'}", ()
        )
    bad = [finding for finding in report.findings if finding.get("severity") == "bad"]
    if bad:
        wrong = tuple(dict.fromkeys(str(finding.get("check", "")) for finding in bad))
        first = bad[0]
        why = f"{first.get('check', '')}: {first.get('message', '')}" + (
            f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        )
        return _not_clean(memory, rules, "failed", why, wrong)
    good = {
        str(f.get("check", "")) for f in report.findings if f.get("severity") in {"ok", "note", "degraded"}
    }
    blind = [check for check in memory.told if check not in good]
    if blind or not good:
        what = f"{', '.join(blind)} failed before and gives no answer now" if blind else "no check could look"
        return _not_clean(memory, rules, "unseen", what, ())
    passes, needed = memory.passes + 1, rules.passes + memory.lies
    told = "".join(
        f"; {f.get('check', '')}: {f['message']}"
        for f in report.findings
        if IN_SERVICE in str(f.get("message"))
    )
    if passes >= needed:
        return Verdict("clean", "return", f"clean {passes} times in a row{told}")
    return Verdict("clean", "again", f"clean, pass {passes} of {needed}{told}")


def _not_clean(
    memory: RecheckState, rules: RecheckRules, result: str, why: str, wrong: tuple[str, ...]
) -> Verdict:
    return Verdict(result, "step" if memory.steps < rules.steps else "keep", why, wrong)


IN_SERVICE = "which are in service: the check is wrong, or the site"
PEERS_MIN = 2
"""So many nodes in service must show the same before a check is called wrong."""


def without_common(report: CheckReport, peers: Mapping[str, CheckReport]) -> CheckReport:
    """The report in which a bad finding is a note where every peer in service that answers shows the same check bad:
    then the check is wrong, or its threshold, or it is the site's matter; jobs run there all the same.
    """
    seen = {name: peer for name, peer in peers.items() if peer.state == "answered" and peer.findings}
    if len(seen) < PEERS_MIN:
        return report
    bad = [
        {one.get("check") for one in peer.findings if one.get("severity") == "bad"} for peer in seen.values()
    ]
    common = set.intersection(*bad)
    why = f"so it is on {', '.join(sorted(seen))}, {IN_SERVICE}"
    findings = [
        {**one, "severity": "note", "message": f"{one.get('message', '')} ({why})"}
        if one.get("severity") == "bad" and one.get("check") in common
        else one
        for one in report.findings
    ]
    return replace(report, findings=findings)


def fold(records: Iterable[Mapping[str, Any]]) -> dict[str, RecheckState]:
    """What the records of recheck say of each node. A record of an unknown kind is for people only."""
    known: dict[str, RecheckState] = {}
    for record in records:
        node = record.get("node")
        if isinstance(node, str):
            known[node] = apply_record(known.get(node, RecheckState()), record)
    return known


def apply_record(memory: RecheckState, record: Mapping[str, Any]) -> RecheckState:
    """The memory after one more record of its node."""
    change = _CHANGES.get(str(record.get("kind")))
    return memory if change is None else change(memory, record)


def _adopt(memory: RecheckState, record: Mapping[str, Any]) -> RecheckState:
    return RecheckState(
        reason=record["reason"],
        since_s=record["at"],
        lies=int(record.get("lies", 0)),
        returned_s=memory.returned_s,
    )


def _looked(memory: RecheckState, record: Mapping[str, Any]) -> RecheckState:
    clean = record["result"] == "clean"
    return replace(
        memory,
        passes=memory.passes + 1 if clean else 0,
        fails=0 if clean else memory.fails + 1,
        looked_s=record["at"],
        told=tuple(dict.fromkeys((*memory.told, *record.get("wrong", ())))),
    )


def _returned(memory: RecheckState, record: Mapping[str, Any]) -> RecheckState:
    return RecheckState(returned_s=record["at"], lies=memory.lies)


_CHANGES: Mapping[str, Callable[[RecheckState, Mapping[str, Any]], RecheckState]] = {
    "adopted": _adopt,
    "looked": _looked,
    "rewording": lambda memory, record: replace(memory, pending=record["after"]),
    "reworded": lambda memory, record: replace(memory, reason=record["reason"], pending=""),
    "step.intended": lambda memory, _: replace(memory, steps=memory.steps + 1),
    "returning": lambda memory, _: replace(memory, returning=True),
    "returned": _returned,
    "left": lambda memory, record: replace(memory, left=record["why"]),
    "gone": lambda _memory, _record: RecheckState(),
}
