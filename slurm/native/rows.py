"""Converts the pyslurm child's values to records, and decides when to use the child. (pure)

The child sends values as libslurm has them. They become the same records that `parse` makes of the commands'
output, so that callers see no difference. Where pyslurm omits a value (it treats 0 and "None" as nothing),
the text that squeue prints is restored.

One failure of the child is forgiven; several in a short time pause its use for a growing time (`Standing`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftrun.slurm.client.cluster import JobRow, JobState, NodeRow, PartitionRow
from ftrun.slurm.client.nodeset import expand
from ftrun.slurm.client.parse import has_outlived, parse_node_state, parse_state
from ftrun.slurm.records import dataclass

PAUSES_S = (0.0, 1.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""How long only the commands are used after the first, second, ... failure in a row; then always the last
value.
"""

CLEAN_S = 300.0
"""So long after the end of a pause a failure counts as the first again."""

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@dataclass(frozen=True, slots=True)
class ChildHealth:
    """How often the child failed lately, and until when it is not used (in the caller's monotonic seconds)."""

    failures: int = 0
    until_s: float = 0.0

    def failed(self, now_s: float) -> ChildHealth:
        """The state after one more failure."""
        count = 1 if now_s - self.until_s > CLEAN_S else self.failures + 1
        return ChildHealth(count, now_s + PAUSES_S[min(count, len(PAUSES_S)) - 1])

    def barred(self, now_s: float) -> bool:
        """Whether the child is not used now."""
        return self.failures > 0 and now_s < self.until_s


def unfit(version: str, cluster: tuple[int, int, int], *, auto: bool) -> str:
    """Why pyslurm of this version does not fit that cluster; "" if it may be tried. pyslurm's version begins
    with that of the Slurm it was built for. A controller understands libraries some releases older than
    itself, never a newer one; `auto` accepts neither.
    """
    built = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    release = cluster[:2]
    if built == release or (len(built) == 2 and not auto and built < release):
        return ""
    return f"pyslurm {version} is not of the cluster's release, {release[0]}.{release[1]:02}"


def numbers(job_ids: Iterable[str]) -> list[int]:
    """The numbers to request: `7_3` and `7+1` are found through 7."""
    return sorted({int(re.split(r"[_+]", job_id)[0]) for job_id in job_ids})


def job_rows(told: Sequence[Sequence[object]], wanted: Collection[str]) -> dict[str, JobRow]:
    """The rows of `squeue -r -j WANTED`, by their ids. Raises TypeError, ValueError for bad rows."""
    ids = set(wanted)
    rows = {}
    for one in told:
        for row in _job(*one):
            if ids & {row.job_id, row.raw_job_id, re.split(r"[_+]", row.job_id)[0]}:
                rows[row.job_id] = row
    return rows


def _job(  # noqa: PLR0917 - one row of the child, in its order
    number: object, array: object, task: object, waiting: object, het: object, offset: object, state: object, reason: object, nodes: object,
    count: object, user: object, partition: object, submitted: object, started: object, ended: object, restarts: object, limit: object, name: object,
    comment: object,
) -> Iterable[JobRow]:  # fmt: skip
    word, names = parse_state(str(state)), expand(_text(nodes))
    over = word.ended or word is JobState.COMPLETING
    minutes = _number(limit)
    for job_id in _printed_ids(number, array, task, waiting, het, offset):
        yield JobRow(
            job_id=job_id,
            raw_job_id=str(number),
            state=word,
            reason=_text(reason) or "None",
            nodes=names,
            node_count=int(_number(count) or len(names)),
            user=_text(user),
            partition=_text(partition),
            submit_time_s=_number(submitted),
            start_time_s=_number(started),
            end_time_s=_number(ended) if over else None,
            planned_end_s=_number(ended) if word is JobState.RUNNING else None,
            restarts=int(_number(restarts) or 0),
            time_limit_s=None if minutes is None else minutes * 60,
            name=_text(name),
            comment=_text(comment),
        )


def _printed_ids(  # noqa: PLR0917 - the beginning of a row
    number: object, array: object, task: object, waiting: object, het: object, offset: object
) -> Iterable[str]:
    """`7`, `7_3`, `7+1`; one for each unnumbered task of an array. Raises ValueError if not all are named."""
    if het:
        return [f"{het}+{offset or 0}"]
    if not array:
        return [str(number)]
    if not waiting:
        return [f"{array}_{task or 0}"]
    return [f"{array}_{one}" for one in _tasks(str(waiting))]


def _tasks(text: str) -> Iterable[int]:
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"not a list of tasks: {text[:80]!r}")
        first, last, step = (int(one) if one else None for one in found.groups())
        assert first is not None
        yield from range(first, (first if last is None else last) + 1, step or 1)


def node_rows(
    told: Sequence[Sequence[object]], names: Collection[str] | None = None
) -> Mapping[str, NodeRow]:
    """Nodes by name, all or these. Raises TypeError or ValueError for bad rows."""
    return {str(one[0]): _node(*one) for one in told if names is None or one[0] in names}


def _node(  # noqa: PLR0917 - one row of the child, in its order
    name: object, word: object, reason: object, since: object, partitions: object, gres: object
) -> NodeRow:
    if not isinstance(partitions, list) or not isinstance(gres, dict):
        raise TypeError(f"not a node: {name!r}")
    state, flags = parse_node_state(str(word))
    why = "" if has_outlived(state, flags) else _text(reason)
    return NodeRow(
        name=str(name),
        state=state,
        flags=flags,
        reason=why,
        reason_time_s=_number(since) if why else None,
        partitions=tuple(map(str, partitions)),
        gres=",".join(f"{kind}:{count}" for kind, count in gres.items()),
    )


def partition_rows(told: Sequence[Sequence[object]]) -> Mapping[str, PartitionRow]:
    """Partitions by name. Raises TypeError or ValueError for bad rows."""
    return {
        str(name): PartitionRow(str(name), state == "UP", default is True, expand(_text(nodes)))
        for name, state, default, nodes in told
    }


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"not a text: {value!r}")
    return value or ""


def _number(value: object) -> float | None:
    """A number; None for the word that means unlimited."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
        raise TypeError(f"not a number: {value!r}")
    return float(value) if isinstance(value, (int, float)) else None
