"""The odd one of a list or a table: who is missing among the ready, whose state differs from all others. (pure)

A list of those that are ready names the culprit by what is not in it; a list of those that stall, or that are
waited for, names him itself. In a table equal rows are the norm, and the odd one is the finding. Both count
only where few are odd: if most are missing, the set-up is at fault, and nobody is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis import names
from ftrun.supervisor.diagnosis.blame import admitted
from ftrun.supervisor.diagnosis.class_defaults import plain
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, FaultClass, Proof, Source

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.evidence import Case

ODD_MAX = 2
"""More than so many odd ones name nobody."""

LINES_READ = 2000
"""How many of the last lines are searched for lists and tables."""

SIGNATURE = "statement.odd-one"
CONFIDENCE = 0.45

_NUMBERS = r"\d{1,6}(?:\s*-\s*\d{1,6})?(?:\s*,\s*\d{1,6}(?:\s*-\s*\d{1,6})?)*"
_READY = re.compile(
    rf"(?:ready|arrived|joined|reported|connected|present|responded) (?:ranks?|workers?|tasks?|processes)\b ?[:=]? ?[\[({{]?(?P<list>{_NUMBERS})",
    re.IGNORECASE,
)
_MISSING = re.compile(
    rf"(?:(?:missing|stalled|absent|late|lagging|stuck|unresponsive|straggl\w+|dead|lost|timed[- ]out|unfinished) (?:ranks?|workers?|tasks?|processes)\b"
    rf"|(?:ranks?|workers?|tasks?|processes) (?:that (?:are|have|did) )?(?:missing|stalled|not (?:yet )?(?:arrived|joined|responding|responded|reported|ready|present|connected))"
    rf"|(?:still )?waiting (?:for|on) (?:the )?(?:ranks?|workers?|tasks?|processes))\b ?[:=]? ?[\[({{]?(?P<list>{_NUMBERS})(?! ?(?:of|/|more|s\b|sec|min))",
    re.IGNORECASE,
)
_STALLED_HEAD = re.compile(
    r"^\W*(?:stalled|missing|absent|lagging) (?:ranks?|workers?)\s*[:=]?\s*$", re.IGNORECASE
)
_STALLED_ROW = re.compile(r"^(?:.{0,40}[>\]:] ?)?\s*(?P<rank>\d{1,6}): ?\[")
_TASK_NAME = re.compile(r"timed out task names?:?[^/]{0,20}(?P<names>(?:/\S+task:\d+,?\s*)+)", re.IGNORECASE)
_TASK = re.compile(r"task:(\d+)")
_WORLD = re.compile(
    r"(?:world[_ ]?size|-np|--ntasks|num[_ ]?(?:workers|processes|ranks)|nranks)[ =:]+(\d{1,6})\b",
    re.IGNORECASE,
)

_EXPECTED_HOSTS = re.compile(
    r"\b(?:expected|requested|allocated|all)(?: (?:nodes|hosts|machines))?\s*[:=]\s*(?P<list>\S.*)$",
    re.IGNORECASE,
)
_READY_HOSTS = re.compile(
    r"\b(?:checked in|ready|joined|up|present|responded|registered|connected|online)(?: (?:nodes|hosts|machines))?\s*[:=]\s*(?P<list>\S.*)$",
    re.IGNORECASE,
)
_MISSING_HOSTS = re.compile(
    r"\b(?:missing|waiting (?:for|on)|not (?:yet )?(?:ready|joined|responding|responded|checked in|up|registered|connected)|no answer from|absent)"
    r"(?: (?:nodes?|hosts?|machines?|workers?))?\s*[:=]\s*(?P<list>\S.*)$",
    re.IGNORECASE,
)
_STOPPED = re.compile(
    r"time[d -]*out|expired|giv(?:e|ing|en) up|gave up|abort|failed|fatal|error|stall", re.IGNORECASE
)


def odd_rank(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The ranks or nodes that a list tells to be missing, where a hang or an unknown end names nobody."""
    if found.nodes or found.fault not in {FaultClass.HANG, FaultClass.UNKNOWN, FaultClass.HEALTHY}:
        return None
    if case.log.finished or (case.ended is not None and not case.ended.failed):
        return None
    texts = [line.text for line in case.facts.text][-LINES_READ:]
    ranks, proof = _odd_ranks(texts)
    named = [f"rank {rank}" for rank in sorted(ranks)]
    if not named and any(_STOPPED.search(text) for text in texts):
        named, proof = _odd_hosts(texts)
    who = tuple(dict.fromkeys(node for name in named if (node := admitted(name, case.topology))))
    if not who or len(who) > ODD_MAX:
        return None
    words = f"a list tells who is missing: {', '.join(who)}"
    if found.fault is FaultClass.HANG:
        return replace(found, nodes=who, rests_on=(*found.rests_on, words))
    hosts = not ranks
    fault = FaultClass.NODE if hosts else FaultClass.HANG
    told = plain(
        fault,
        f"{', '.join(who)} did not join the others",
        [words],
        confidence=CONFIDENCE,
        sources=(Source.LOG,),
    )
    at = next((line for line in case.facts.text if line.text == proof), None)
    return replace(
        told,
        retry=True,
        action=Action.EXCLUDE if hosts else Action.RESUBMIT,
        nodes=who,
        exclude=hosts,
        blame=Blame.NODE,
        signature=SIGNATURE,
        because=(Proof(at.file, at.number, at.text, SIGNATURE),) if at is not None else (),
    )


def _odd_ranks(texts: Sequence[str]) -> tuple[frozenset[int], str]:
    """The ranks that lists call missing, or leave out, and a line that says so."""
    ready: set[int] = set()
    named: set[int] = set()
    world, proof, below = 0, "", False
    for text in texts:
        if (size := _WORLD.search(text)) is not None:
            world = max(world, int(size[1]))
        if (row := _READY.search(text)) is not None:
            ready |= _numbers(row["list"])
            proof = proof or text
        if (row := _MISSING.search(text)) is not None:
            named |= _numbers(row["list"])
            proof = text
        if (row := _TASK_NAME.search(text)) is not None:
            named |= {int(number) for number in _TASK.findall(row["names"])}
            proof = text
        row = _STALLED_ROW.match(text) if below else None
        if row is not None:
            named.add(int(row["rank"]))
            proof = text
        below = _STALLED_HEAD.search(text) is not None or row is not None
        if len(named) > ODD_MAX or len(ready) > _RANKS_MAX:
            return frozenset(), ""
    if named:
        return frozenset(named), proof
    if ready:
        everyone = frozenset(range(max(world, max(ready) + 1)))
        absent = everyone - ready
        if 0 < len(absent) <= ODD_MAX and len(everyone) > len(absent) + 1:
            return absent, proof
    return frozenset(), ""


def _numbers(text: str) -> set[int]:
    """The numbers of a list; of a longer one than `_RANKS_MAX` so many that nobody is named by it."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            end = int(last) if last.isdigit() else int(first)
            found.update(range(int(first), min(end, int(first) + _RANKS_MAX) + 1))
        if len(found) > _RANKS_MAX:
            break
    return found


_RANKS_MAX = 1 << 14
"""A log is its user's: a list of more ranks names nobody, and costs no more memory than so many."""


def _odd_hosts(texts: Sequence[str]) -> tuple[list[str], str]:
    """The hosts that a list calls missing, or that are expected and not among those that are ready."""
    expected: set[str] = set()
    ready: set[str] = set()
    for text in texts:
        missing = _MISSING_HOSTS.search(text)
        if missing and (told := _hosts(missing["list"])):
            return sorted(told), text
        if (found := _EXPECTED_HOSTS.search(text)) is not None:
            expected |= _hosts(found["list"])
        elif (found := _READY_HOSTS.search(text)) is not None:
            ready |= _hosts(found["list"])
            proof = text
    absent = expected - ready
    return (sorted(absent), proof) if ready and ready < expected else ([], "")


def _hosts(text: str) -> set[str]:
    words = re.split(r"[\s,;'\"()]+", text.strip("[]{} "))
    return {word.strip("[].") for word in words if names.is_host_name(word) and re.match(r"[A-Za-z]", word)}


# ---- tables

_GOOD = re.compile(
    r"ok|up|active|ready|healthy|pass(?:ed)?|true|online|free|idle|alloc(?:ated)?|mix(?:ed)?|job-(?:busy|exclusive)|linkup|connected|good|normal",
    re.IGNORECASE,
)
_BAD = re.compile(
    r"(?:down|offline|unavail|fail|drain|drng)\S*|failed|failure|false|err(?:or)?!?|notready|unreach(?:able)?|dead|lost|missing|unhealthy|bad|polling|faulty|disconnected|unknown[!*]?",
    re.IGNORECASE,
)
_PARTS = re.compile(r"\s*\|\s*|\t+| {2,}|(?<=\w): +")
_KINDS = (
    (FaultClass.HARDWARE_GPU, re.compile(r"(?:gpu|npu|hpu|tpu|xpu|device|card|accelerator|nvidia|hl|neuron|chip)[ _:#-]?\d{1,3}$", re.IGNORECASE)),
    (FaultClass.NETWORK, re.compile(r"(?:mlx\d_|ib|hsn|cxi|bnxt_re|hfi1_|efa_|rdmap|opa|irdma)\d+\S*$|(?:port|link|rail|nic)[ _:#-]?\d{1,3}$", re.IGNORECASE)),
)  # fmt: skip
_HOST_HEAD = re.compile(
    r"^\W*(?:node|host|vnode|machine|server|name|hostname|host_name|nodename|nodelist)\b", re.IGNORECASE
)
_ROWS_LEAST = 3

TABLE_LINES = 80
"""A longer text is no output of a tool: its tables list what happens to be around."""


def odd_row(case: Case) -> Diagnosis | None:
    """The device or host of a table whose state differs from that of its equals, in a text without a cause."""
    if case.log.finished or case.ended is not None or case.trained or len(case.facts.text) > TABLE_LINES:
        return None
    for head, rows in _tables(case):
        odd = _odd_of(rows)
        if odd is None:
            continue
        at, name = odd
        host = _HOST_HEAD.match(head) and names.is_host_name(name)
        fault = None if host else next((fault for fault, form in _KINDS if form.match(name)), None)
        if fault is None and not host:
            continue
        node = admitted(name, case.topology) if fault is None else None
        who = (node,) if node else ()
        if fault is None and not who:
            continue
        line = case.facts.text[at]
        told = plain(
            fault or FaultClass.NODE,
            f"of {len(rows)} equal rows of a table, that of {name} differs",
            [f"{name} alone is in another state than its equals"],
            confidence=CONFIDENCE,
            sources=(Source.LOG,),
        )
        return replace(
            told,
            retry=True,
            action=Action.EXCLUDE if who else Action.RESUBMIT,
            nodes=who,
            exclude=True,
            blame=Blame.NODE if who else Blame.UNKNOWN,
            signature="statement.odd-row",
            because=(Proof(line.file, line.number, line.text, "statement.odd-row"),),
        )
    return None


Row = tuple[int, list[str]]


def _tables(case: Case) -> Iterator[tuple[str, list[Row]]]:
    """Blocks of lines with as many columns, each with the line above it."""
    text = case.facts.text[-LINES_READ:]
    first = len(case.facts.text) - len(text)
    rows: list[Row] = []
    head = ""
    for at, line in enumerate(text):
        parts = [part for part in _PARTS.split(line.text.strip(" |")) if part]
        if re.fullmatch(r"[\s|+=*-]*", line.text):
            continue
        if rows and len(parts) == len(rows[-1][1]):
            rows.append((first + at, parts))
            continue
        if len(rows) >= _ROWS_LEAST:
            yield head, _without_head(rows)
        head = rows[0][1][0] if rows and len(rows) == 1 else head if not rows else ""
        rows = [(first + at, parts)] if len(parts) > 1 else []
        head = parts[0] if rows else line.text
    if len(rows) >= _ROWS_LEAST:
        yield head, _without_head(rows)


def _without_head(rows: list[Row]) -> list[Row]:
    known = [any(_is_state(cell) for cell in cells[1:]) for _, cells in rows]
    return rows[1:] if not known[0] and all(known[1:]) else rows


def _is_state(cell: str) -> bool:
    return bool(_GOOD.fullmatch(cell) or _BAD.fullmatch(cell))


def _odd_of(rows: Sequence[Row]) -> tuple[int, str] | None:
    """The place and the name of the one row whose state is bad while all others are good."""
    if len(rows) < _ROWS_LEAST:
        return None
    for column in range(1, len(rows[0][1])):
        cells = [row[column] for _, row in rows]
        if not all(map(_is_state, cells)):
            continue
        bad = [place for place, cell in enumerate(cells) if _BAD.fullmatch(cell)]
        if len(bad) == 1:
            return rows[bad[0]][0], rows[bad[0]][1][0]
    return None
