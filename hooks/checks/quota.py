"""`quota`: the user of the job is not over quota where the job writes. (I/O)

How it thinks. A write over quota fails like a full disk, from every node alike, so it is degraded here and told, never held against the node.
Two tools are asked where they are: `quota` for local and NFS quotas, `lfs quota` for each Lustre mount. Both mark what is over by an
asterisk and end with an error then, so their text counts and not their exit code. Near the limit is degraded too.

Thresholds: `user` (the runner's; "" is who asks; others' quotas need root), `percent` 98 of the hard limit, or of the soft one where
there is no hard one.

Columns: quota(1) with -w prints one line per file system: blocks, quota, limit, and a grace only where one runs; lfs-quota(1)
prints a column for the grace always ("-").

Checked against: texts in the columns of quota(1) and lfs-quota(1), as their manuals show them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from ftrun.hooks.findings import DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer
from ftrun.hooks.mounts import table

__all__ = ["CHECK", "Facts", "Use", "judge"]

NAME = "quota"


class Facts(NamedTuple):
    """What `quota -w` and `lfs quota` of each Lustre mount printed."""

    quota: str = ""
    lustre: tuple[str, ...] = ()


class Use(NamedTuple):
    """One line of a quota: the file system; KiB or files used, soft and hard limit (0 = none), and whether it is marked as over."""

    where: str
    kind: str
    used: int
    soft: int
    hard: int
    over: bool


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Ask the tools that are here; one that does not answer is left out unless nothing is left. Raises NoAnswer then."""
    user = str(thresholds["user"] or os.getuid())
    questions = []
    if machine.tool("quota"):
        questions.append(["quota", "-w", "-p", "-u", user])
    if machine.tool("lfs"):
        mounts = [one.target for one in table(machine) if one.kind == "lustre"]
        questions += [["lfs", "quota", "-u", user, mount] for mount in mounts]
    outputs = [_said(machine, question) for question in questions]
    silent = [one for one in outputs if isinstance(one, NoAnswer)]
    if silent and len(silent) == len(outputs):
        raise silent[0]
    texts = [(question[0], one) for question, one in zip(questions, outputs) if isinstance(one, str)]
    lustre = tuple(text for tool, text in texts if tool == "lfs")
    return Facts("".join(text for tool, text in texts if tool == "quota"), lustre)


def _said(machine: Machine, question: Sequence[str]) -> Union[str, NoAnswer]:
    try:
        return machine.run(question, 3.0).out
    except NoAnswer as error:
        return error


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded for each quota that is used up, or nearly."""
    uses = [use for text in (facts.quota, *facts.lustre) for use in _uses(text)]
    limited = [use for use in uses if use.soft or use.hard or use.over]
    if not limited:
        return [Finding(NAME, SKIPPED, "no quota is told")]
    found = []
    for use in limited:
        limit = use.hard or use.soft
        if use.over or (limit and use.used > limit * thresholds["percent"] / 100):
            message = (
                f"{use.where}: {use.used} {use.kind} used of {limit}{', over quota' if use.over else ''}"
            )
            found.append(
                Finding(NAME, DEGRADED, message, "storage", use.where, value=use.used, unit=use.kind)
            )
    return found or [Finding(NAME, OK, f"{len(limited)} quota(s) have room")]


def _uses(text: str) -> list[Use]:
    found = []
    where = ""
    for line in text.splitlines():
        words = line.split()
        # lfs puts a long name on a line of its own.
        if len(words) == 1 and words[0].startswith("/"):
            where = words[0]
            continue
        if words and not _number(words[0]) and _number("".join(words[1:2])):
            where, words = words[0], words[1:]
        if where and len(words) >= 6 and _number(words[0]):
            found += _of_line(where, words)
        where = ""
    return found


def _of_line(where: str, words: Sequence[str]) -> list[Use]:
    """Both groups of a line: used, soft, hard, and a grace that is there where it is no number or a time in epoch seconds (-p)."""
    fixed = len(words) >= 8
    second = 4 if fixed or _number(words[3]) is None else 3
    found = []
    for kind, group in (("KiB", words[:3]), ("files", words[second : second + 3])):
        numbers = [_number(word) for word in group]
        if len(numbers) == 3 and None not in numbers:
            used, soft, hard = (number or 0 for number in numbers)
            found.append(Use(where, kind, used, soft, hard, group[0].endswith("*")))
    return found


def _number(word: str) -> Optional[int]:
    plain = word.strip("[]").rstrip("*")
    return int(plain) if plain.isdigit() else None


CHECK = Check(
    name=NAME,
    title="The user of the job is not over quota where the job writes",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=8.0,
    thresholds={"user": "", "percent": 98},
    probe=probe,
    judge=judge,
)
