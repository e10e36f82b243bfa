"""A node that drains itself, from its own hook and under the cap of the site. (I/O)

A check that is wrong is wrong on every node, and all nodes check at the same second. So before it drains
itself, a node counts the nodes with a drain reason of ftrun in Slurm. Afterwards it looks again, and resumes
itself if it is beyond the cap in the order of the reasons' times: of a thousand that drain at once, as many
as the cap allows stay out. A node with any drain reason, ours included, is left alone; without an answer from
Slurm nothing is done. If Slurm falls silent between the drain and the second look (a thousand ask at once),
the caller keeps the reason, and `settle` takes the second look later.

Checked against: sinfo(1) and scontrol(1) of 22.05, as root on real nodes; Slurm keeps the reason that a node
already has when it drains the node for a failed prolog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftrun.hooks.runtime.host import Machine, NoAnswer

PREFIX = "ftrun:"
ASK_S = 4.0
UNSURE = "perhaps drained, and not looked at again: "


class Row(NamedTuple):
    """A node in one of its partitions; `reason` is "" for none."""

    node: str
    partition: str
    state: str
    reason: str


def parse_rows(text: str) -> list[Row]:
    """The rows in the output of `sinfo -h -N -o %N|%R|%T|%E`."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 3)
        if len(parts) == 4:
            node, partition, state, reason = (part.strip() for part in parts)
            found.append(Row(node, partition, state, "" if reason in ("none", "Unknown") else reason))
    return found


def is_ours(reason: str) -> bool:
    """Whether a drain reason is one of ftrun's."""
    return reason.startswith(PREFIX)


def is_within_cap(found: Sequence[Row], node: str, cap: float) -> bool:
    """Whether `node` may be out of service: in each of its partitions, fewer nodes have an earlier reason of
    ftrun than the cap allows. The cap is a share; one node always may. A reason without a time counts as
    earlier than one with it.
    """
    own = next((row.reason for row in found if row.node == node), "")
    mine = (_at(own) if is_ours(own) else "~", node)
    for partition in {row.partition for row in found if row.node == node}:
        members = [row for row in found if row.partition == partition]
        earlier = [
            row
            for row in members
            if row.node != node and is_ours(row.reason) and (_at(row.reason), row.node) < mine
        ]
        if len(earlier) >= max(1, int(cap * len(members))):
            return False
    return True


def drain(machine: Machine, node: str, reason: str, *, cap: float) -> tuple[bool, str]:
    """Drain this node for `reason` (`ftrun:... TIME`); whether it is out of service, and what was done."""
    begun = ""
    try:
        found = _look(machine)
        mine = [row for row in found if row.node == node]
        if not mine:
            return False, f"not drained: Slurm knows no node {node}"
        out = any(word in mine[0].state for word in ("drain", "fail"))
        if mine[0].reason or out:
            return out, f"left as it is: {mine[0].state}, {mine[0].reason or 'no reason'}"
        if not is_within_cap(found, node, cap):
            return False, "not drained: as many nodes as may be are out of service by ftrun"
        begun = UNSURE
        _update(machine, node, "state=drain", f"reason={reason}")
        if _stays(machine, node, reason, cap):
            return True, f"drained: {reason}"
        return False, "given back: others drained at the same time, and the cap is reached"
    except NoAnswer as error:
        return False, f"{begun or 'not drained: '}{error}"


def recheck_cap(machine: Machine, node: str, reason: str, *, cap: float) -> str:
    """Take the missing second look after a drain of ours; what was done, "" if Slurm is silent again."""
    try:
        return "within the cap" if _stays(machine, node, reason, cap) else "given back: the cap was reached"
    except NoAnswer:
        return ""


def _stays(machine: Machine, node: str, reason: str, cap: float) -> bool:
    """Whether the drained node may stay out; else resumes it if it has this reason. Raises NoAnswer."""
    found = _look(machine)
    if is_within_cap(found, node, cap):
        return True
    if any(row.node == node and row.reason == reason for row in found):
        _update(machine, node, "state=resume")
    return False


def _look(machine: Machine) -> list[Row]:
    told = machine.run(["sinfo", "-h", "-N", "-o", "%N|%R|%T|%E"], ASK_S)
    if told.code != 0:
        raise NoAnswer(f"sinfo: {(told.err or told.out).strip()[:120]}")
    return parse_rows(told.out)


def _update(machine: Machine, node: str, *words: str) -> None:
    told = machine.run(["scontrol", "update", f"nodename={node}", *words], ASK_S)
    if told.code != 0:
        raise NoAnswer(f"scontrol: {(told.err or told.out).strip()[:120]}")


def _at(reason: str) -> str:
    """The time at the end of a reason; times of this form sort as text."""
    last = reason.rpartition(" ")[2]
    return last if last[:4].isdigit() else ""
