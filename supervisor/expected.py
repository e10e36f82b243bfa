"""When a run will be through, if nothing goes wrong. (pure)

How it thinks. From the step where training is, the step where it ends and the usual seconds a step follows how much work is
left; from the time limit, how many jobs that takes. What nobody can know is left out and said to be: time in the queue, and
what a job needs before its first step. Where a job is too short for the rest, what comes after the checkpoint that is asked for
before its limit is made again by the next job.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.halts import MARGIN_S
from ftrun.supervisor.leaving import LIMIT_SHARE

if TYPE_CHECKING:
    from ftrun.supervisor.run_types import Run

__all__ = ["Expected", "facts", "of_run", "through"]

ALIVE = frozenset({"running", "suspect"})


@dataclass(frozen=True, slots=True)
class Expected:
    """`at_s` (Unix seconds) is the end without time in the queue; `jobs` how many jobs it takes, the present one included."""

    at_s: float
    jobs: int
    step: int
    target: int
    step_s: float
    limit_s: float | None


def through(
    *,
    step: int,
    target: int,
    step_s: float,
    now_s: float,
    started_s: float | None,
    limit_s: float | None,
    save_wait_s: float,
) -> Expected:
    """The end of a run that is at `step` now. `started_s`: of the present job."""
    work_s = max(0, target - step) * step_s
    if limit_s is None or started_s is None or now_s + work_s <= started_s + limit_s:
        return Expected(now_s + work_s, 1, step, target, step_s, limit_s)
    lost_s = min(save_wait_s + MARGIN_S, limit_s / LIMIT_SHARE)
    rest_s = work_s - max(0.0, started_s + limit_s - lost_s - now_s)
    whole = max(
        0, math.ceil((rest_s - limit_s) / (limit_s - lost_s))
    )  # jobs that are used up before the last one
    begins_s = max(now_s, started_s + limit_s) + whole * limit_s
    return Expected(begins_s + rest_s - whole * (limit_s - lost_s), 2 + whole, step, target, step_s, limit_s)


def of_run(run: Run, now_s: float) -> Expected | None:
    """The expected end of a run whose job is at work; None where its pace or its last step is not known."""
    attempt = run.attempt
    if attempt is None or run.state.value not in ALIVE:
        return None
    wanted = run.halt.get("at_step")
    target = attempt.total_steps if wanted is None else min(wanted, attempt.total_steps or wanted)
    if target is None or attempt.last_step is None or not attempt.step_s or attempt.stepped_at_s is None:
        return None
    made = int(max(0.0, now_s - attempt.stepped_at_s) / attempt.step_s)
    return through(
        step=min(attempt.last_step + made, max(target, attempt.last_step)),
        target=target,
        step_s=attempt.step_s,
        now_s=now_s,
        started_s=attempt.launch.started_at_s,
        limit_s=attempt.launch.limit_s,
        save_wait_s=float(run.settings.get("save-wait", 120.0)),
    )


def facts(found: Expected | None) -> dict[str, Any] | None:
    """The form of `--json`."""
    if found is None:
        return None
    return {
        "at": round(found.at_s),
        "jobs": found.jobs,
        "from_step": found.step,
        "target_step": found.target,
        "step_s": found.step_s,
        "time_limit_s": found.limit_s,
    }
