"""What accounting knows of jobs that Slurm's controller has forgotten: the second source. (I/O)

The controller forgets a job MinJobAge after its end. If no supervisor looked for that long, the run folder
shows how the job ended, and accounting may know more: the state, who cancelled it, the nodes of each launch,
even if the log is lost. So once jobs are missing for good (`missing_jobs`), accounting is asked once for all
of them together, in the background. Its answer stands in for the row that Slurm lacks, and everything else
goes on as if the controller had remembered.

Its rows count only for our own jobs, since job ids are reused: the proof is the token in the comment or in
the submit line; if neither is kept, user, name and the second of a start, or of a submission with no other
near it. A row that is no end does not count, nor does the end that a controller without its memory writes for
everything that it lost.

Accounting is never required. Without it, or while its database is down or hangs, the run folder's records
decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.parse import has_token
from ftrun.slurm.commands.accounting import AccountingRow
from ftrun.slurm.records import replace
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.context.services import ClusterSnapshot
from ftrun.supervisor.model.run import Attempt

SUBMITTED_WITHIN_S = 60.0  # sbatch answers within this time after Slurm's own submit time
PENDING, ENDED, LOST, UNKNOWN = "pending", "ended", "lost", "unknown"
Kept = tuple[tuple["AccountingRow", int], ...]  # rows of one job of ours, each with the number of its launch


def verdict(ctx: RunContext) -> str:
    """What accounting says of the missing job.

    PENDING: wait. ENDED: the next snapshot shows its end. LOST: the controller lost it. UNKNOWN: no answer.
    """
    attempt = ctx.attempt
    rows = ctx.services.accounting.answer(attempt.job)
    if rows is None:
        return PENDING
    kept = _own(ctx, rows)
    if _stands_in(kept):
        return ENDED
    return LOST if any(one.given_up for one, _ in _last(kept)) else UNKNOWN


def with_ended_job(ctx: RunContext, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot with the rows of a job that Slurm has forgotten and whose end accounting knows."""
    attempt = ctx.run.attempt
    if attempt is None or not attempt.job or snapshot.jobs is None:
        return snapshot
    if ctx.row(snapshot) is not None:
        ctx.services.accounting.forget(attempt.job)
        return snapshot
    rows = ctx.services.accounting.known(attempt.job)
    kept = _own(ctx, rows)
    if not _stands_in(kept):
        return snapshot
    shown = tuple(_row(one, launch, attempt.token) for one, launch in _last(kept))
    return replace(snapshot, families={**snapshot.families, attempt.job: shown})


def exit_of(ctx: RunContext, job: str, launch: int) -> Mapping[str, int]:
    """Exit code and signal of a launch by accounting; {} if it was not asked or does not know."""
    kept = _own(ctx, ctx.services.accounting.known(ctx.attempt.job))
    for one, number in kept:
        if (one.raw_job_id, number) == (job, launch) and one.start_time_s is not None:
            names = ("exit_code", "exit_signal", "derived_exit_code")
            return {name: getattr(one, name) for name in names}
    return {}


def nodes_of(ctx: RunContext) -> tuple[str, ...]:
    """The nodes of all launches of the job, as far as accounting was asked."""
    kept = _own(ctx, ctx.services.accounting.known(ctx.attempt.job))
    return tuple(sorted({node for one, _ in kept for node in one.nodes}))


def _own(ctx: RunContext, rows: Sequence[AccountingRow]) -> Kept:
    attempt = ctx.attempt
    user, name = attempt.known_as or ctx.observations.known_as or (ctx.run.submitter.get("user", ""), "")
    return rows_of_attempt(rows, attempt, user=user, name=name)


def rows_of_attempt(rows: Iterable[AccountingRow], attempt: Attempt, *, user: str, name: str) -> Kept:
    """The rows that are this attempt's, each with the number of its launch, oldest first. (pure)

    `user` and `name` are those of the attempt's job, "" if unknown: then only a token is proof.
    """
    candidates = [one for one in rows if not user or one.user == user]
    candidates = [one for one in candidates if not attempt.cluster or one.cluster == attempt.cluster]
    found: list[tuple[AccountingRow, int]] = []
    for job_id in dict.fromkeys(one.job_id for one in candidates):
        family = [one for one in candidates if one.job_id == job_id and one.state is not JobState.RESIZING]
        found += _numbered(_ours(family, attempt, user, name), attempt)
    return tuple(found)


def _ours(family: Sequence[AccountingRow], attempt: Attempt, user: str, name: str) -> list[AccountingRow]:
    marked = [one for one in family if "ftrun:" in one.comment or "ftrun:" in one.submit_line]
    if marked:
        return [one for one in marked if _bears(one, attempt.token)]
    same = [one for one in family if user and name and one.name == name]
    starts = {
        int(start) for start in (*attempt.starts.values(), attempt.launch.started_at_s) if start is not None
    }
    first = next((n for n, one in enumerate(same) if one.start_time_s in starts), None)
    if first is None and attempt.submitted_at_s is not None and not starts:
        near = [n for n, one in enumerate(same) if _near(one.submit_time_s, attempt.submitted_at_s)]
        first = near[0] if len(near) == 1 else None
    return _chain(same, first) if first is not None else []


def _bears(one: AccountingRow, token: str) -> bool:
    if "ftrun:" in one.comment:
        return has_token(one.comment, token)
    return has_token(one.submit_line, token)


def _near(one_s: float | None, other_s: float) -> bool:
    return one_s is not None and abs(one_s - other_s) <= SUBMITTED_WITHIN_S


def _chain(same: Sequence[AccountingRow], first: int) -> list[AccountingRow]:
    """From one of our rows, what requeues made of it.

    The next row begins in the second in which the last one ended.
    """
    kept = [same[first]]
    for one in same[first + 1 :]:
        if kept[-1].given_up or kept[-1].end_time_s != one.submit_time_s:
            break
        kept.append(one)
    return kept


def _numbered(rows: Sequence[AccountingRow], attempt: Attempt) -> list[tuple[AccountingRow, int]]:
    """Each row with its launch number: how often the job had started before.

    Starts that the database no longer has are counted from those that we know.
    """
    before, numbered = 0, []
    for one in rows:
        numbered.append((one, before))
        before += one.start_time_s is not None
    for launch, start_s in attempt.starts.items():
        for one, number in numbered:
            if one.start_time_s is not None and abs(one.start_time_s - start_s) <= 1:
                return [(each, at + launch - number) for each, at in numbered]
    return numbered


def _last(kept: Kept) -> Kept:
    return tuple({one.job_id: (one, launch) for one, launch in kept}.values())


def _stands_in(kept: Kept) -> bool:
    """Whether every part of the job came to a recorded end."""
    last = _last(kept)
    return bool(last) and all(one.state.ended and not one.given_up for one, _ in last)


def _row(one: AccountingRow, launch: int, token: str) -> JobRow:
    return JobRow(
        job_id=one.job_id,
        raw_job_id=one.raw_job_id,
        state=one.state,
        reason="",  # accounting keeps why it waited, not why it ended
        nodes=one.nodes,
        node_count=len(one.nodes),
        comment=token,
        name=one.name,
        user=one.user,
        partition="",
        submit_time_s=one.submit_time_s,
        start_time_s=one.start_time_s,
        end_time_s=one.end_time_s,
        restarts=launch,
    )
