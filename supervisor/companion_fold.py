"""Companions of an attempt, folded from what the agent and the supervisor journalled of them. (pure)

How it thinks. Two write about one companion: the agent that asked for it, and, once the agent is gone or the launch is over, the supervisor that clears it
away. A record of the agent's may be copied late. So a companion only ever goes forward, from intended to gone, and what is noted late adds what was not
known (its job, its nodes) and takes nothing back.

A companion is named by its launch and its number there. Its mark stands in its comment. It holds the run's own random part, for two homes of one user may each have a
run of one name; and it is not the run's token, for what bears that and is no attempt is cancelled as a stray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import replace
from ftrun.supervisor.parts import Attempt, Companion

if TYPE_CHECKING:
    from ftrun.supervisor.events import Run

__all__ = ["APPLY", "JOB", "job_of", "mark_of"]

JOB = "companion_job"

Record = Mapping[str, Any]
_ORDER = ("intended", "submitted", "here", "failed", "ending", "ended", "gone")


def mark_of(run_token: str, attempt: int, launch: int, number: int) -> str:
    """What the comment of a companion bears: `train-0001:0badcafe:companion:1.0.1` for a run whose token is `ftrun:train-0001:0badcafe`."""
    return f"{run_token.removeprefix('ftrun:')}:companion:{attempt}.{launch}.{number}"


def _intended(run: Run, record: Record) -> Run:
    data, owner = record["data"], _owner(run, record)
    if owner is None or _known(owner, record) is not None:
        return run
    asked = Companion(
        record["launch"],
        int(data["number"]),
        int(data["nodes"]),
        str(data["mark"]),
        _at_s(record),
        pool=str(data.get("pool", "")),
    )
    return _with(run, owner, (*owner.companions, asked))


def _to(state: str) -> Callable[[Run, Record], Run]:
    """The companion comes to this state; where it is further already, only what was not known of it is added."""

    def apply(run: Run, record: Record) -> Run:
        owner = _owner(run, record)
        known = _known(owner, record) if owner is not None else None
        return (
            run if owner is None or known is None else _with(run, owner, _moved(owner, known, state, record))
        )

    return apply


def _moved(owner: Attempt, known: Companion, state: str, record: Record) -> tuple[Companion, ...]:
    data = record["data"]
    further = _ORDER.index(state) > _ORDER.index(known.state)
    changed = replace(
        known,
        job=known.job or job_of(data),
        nodes=known.nodes or tuple(str(node) for node in data.get("nodes", ())),
        state=state if further else known.state,
        reason=str(data.get("reason", "")) or known.reason if further else known.reason,
        here_at_s=_at_s(record) if state == "here" and known.here_at_s is None else known.here_at_s,
        gone_at_s=_at_s(record) if state == "gone" and known.gone_at_s is None else known.gone_at_s,
        end_state=str(data.get("state", "")) if state == "gone" else known.end_state,
        by_us=known.by_us or state in ("ending", "ended"),
    )
    return tuple(changed if one is known else one for one in owner.companions)


def job_of(data: Mapping[str, Any]) -> str:
    """The companion's own job in a record's data: `job` as the agent writes it; in the run's journal that name is taken by the main job, and it is `companion_job`."""
    return str(data.get(JOB) or data.get("job") or "")


def _owner(run: Run, record: Record) -> Attempt | None:
    return next((one for one in run.attempts if one.number == record["attempt"]), None)


def _known(owner: Attempt, record: Record) -> Companion | None:
    place = (record["launch"], int(record["data"]["number"]))
    return next((one for one in owner.companions if (one.launch, one.number) == place), None)


def _with(run: Run, owner: Attempt, companions: tuple[Companion, ...]) -> Run:
    changed = replace(owner, companions=companions)
    return replace(run, attempts=tuple(changed if one is owner else one for one in run.attempts))


def _at_s(record: Record) -> float:
    return float(record["data"].get("at_s", record["at"]))


APPLY: Mapping[str, Callable[[Run, Record], Run]] = {
    "companion.intended": _intended,
    "companion.submitted": _to("submitted"),
    "companion.here": _to("here"),
    "companion.failed": _to("failed"),
    "companion.ended.intended": _to("ending"),
    "companion.ended": _to("ended"),
    "companion.gone": _to("gone"),
}
