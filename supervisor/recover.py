"""From a decision to the next attempt, each step an effect that may be cut anywhere. (I/O)

    set aside -> drain -> take the requeued job out of the queue -> prove the attempt over (P6) -> wait ->
    close its claim (P4) -> look for strays -> open attempt n+1 -> sbatch -> move dependents

Every step asks first whether it is done already, so a supervisor that died between two of them goes on where it was.
Two startable jobs of one run must never exist: nothing is submitted before the old job is proven over, its claim is ours,
and no other job bears the run's token.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, Unreachable
from ftrun.slurm.records import replace
from ftrun.supervisor import (
    absent,
    archive,
    arrays,
    arrayspec,
    attempts,
    checkpoints,
    context,
    dependents,
    drains,
    ends,
    grounds,
    haltfile,
    held,
    inside,
    last_line,
    nodebook,
    over,
    placing,
    policy,
    queue_desk,
    rows,
    settle,
    store,
    strays,
    submit,
    usable,
)
from ftrun.supervisor.diagnosis_told import LEFT
from ftrun.supervisor.model import Decision, FaultClass

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = [
    "ALIVE_FOR_S",
    "abandoned",
    "cancelled_in_queue",
    "close",
    "end_attempt",
    "finish",
    "follow",
    "let_go",
    "recover",
    "resume",
    "set_aside",
]

STRAYS_FOR_S = 600.0
STRAYS_EVERY_S = 15.0
PARTITION_WITHIN_S = 60.0
ALIVE_FOR_S = 15.0  # a job that was cancelled runs no longer than this before Slurm says so


def recover(keeper: Keeper, world: World) -> None:
    """One look at a run whose next step is decided."""
    if (wish := policy.withdrawn(keeper.run)) is not None:
        finish(keeper, world, wish, {"class": "cancelled"})
        return
    kind = keeper.run.decision.get("kind", "resubmit")
    if kind == "keep":
        _keep(keeper)
        return
    if keeper.attempt.submission == "done":
        if keeper.run.decision.get("older_checkpoint"):
            set_aside(keeper)
        drains.carry_out(keeper, world)
        if not _out_of_the_queue(keeper, world) or not over.proven(keeper, world):
            return
    if not _waited(keeper, world) or not _closed(keeper):
        return
    _next_attempt(keeper, world)


def _keep(keeper: Keeper) -> None:
    """Slurm starts the requeued job itself: follow it as the next launch of the same attempt."""
    keeper.record("launch.kept", launch=keeper.attempt.launch + 1)
    keeper.forget(keeper.attempt.launch)


def set_aside(keeper: Keeper) -> None:
    """The checkpoint that this launch began with is loaded by no later one, unless it is written anew."""
    path = keeper.attempt.resume_from
    path = os.path.normpath(os.path.join(context.cwd(keeper.run_dir), path)) if path else ""
    aside = checkpoints.still_aside(keeper.run.set_aside)
    if path and path not in aside:
        keeper.record("checkpoint.set-aside", path=path, stamp=checkpoints.stamp(path))


def _out_of_the_queue(keeper: Keeper, world: World) -> bool:
    """True when the job cannot start (again) by itself."""
    row = keeper.row(world)
    if row is None:
        return _gone(keeper, world)
    absent.seen(keeper, world, row)
    if keeper.run.decision.get("resumed") and _resumed_alive(keeper, world, row):
        return False
    if keeper.run.decision.get("queued") and not queue_desk.may_be_taken_out(keeper, world, row):
        return False
    if row.state.ended:
        return not keeper.attempt.requeued or _requeued_ended(keeper, world, row)
    if row.state.pending:
        if (
            keeper.memory.for_how_long("requeued-cancel", world.mono_s) > 15.0
            or "requeued-cancelled" not in keeper.memory.since
        ):
            keeper.memory.since["requeued-cancel"] = world.mono_s
            keeper.memory.since["requeued-cancelled"] = world.mono_s
            dependents.hold(keeper, world)
            keeper.office.fresh(world)  # an intent that is not carried out takes a person's cancel for ours
            what = f"{'waiting' if keeper.run.decision.get('queued') else 'requeued'} job {row.job_id}"
            keeper.record("cancel.intended", what=what, own=True)
            keeper.office.act("cancel", world, lambda: keeper.office.cluster.cancel(keeper.attempt.job))
            keeper.record("cancel.done", what=what)
        return False
    if keeper.attempt.requeued and row.state is JobState.RUNNING and keeper.started_again(row):
        follow(keeper, row)
    return False


def _resumed_alive(keeper: Keeper, world: World, row: JobRow) -> bool:
    """A person resumed a run whose job had not ended when it was stopped. True where that job is what goes on, or came
    to its end: it is followed, unless a cancel on its way ends it in the next moments."""
    attempt = keeper.attempt
    if attempt.end_state and not attempt.requeued:
        return False
    if row.state is JobState.COMPLETED:
        job = row.raw_job_id or row.job_id
        launch = row.restarts if row.restarts is not None else absent.latest_launch(keeper)
        data = ends.end_data(keeper, row.state.value, row.reason, row.nodes, job=job, launch=launch)
        if data["state"] == "COMPLETED":
            finish(keeper, world, Decision("finish", "the script exited 0"), {"class": "healthy"})
            return True
    elif row.state is JobState.RUNNING:
        if keeper.memory.for_how_long("resumed-alive", world.mono_s) >= ALIVE_FOR_S:
            follow(keeper, row)
        return True
    return False


def _gone(keeper: Keeper, world: World) -> bool:
    """Slurm does not show the job. True = go on; what a person cancelled in the queue while nobody watched is not brought back (P5)."""
    absent.unseen(keeper, world)
    if keeper.run.decision.get("resumed") or not absent.left_the_queue(keeper):
        return True
    told = archive.word(keeper) if absent.for_long(keeper, world) else archive.ASKED
    if told == archive.NOTHING:
        decision = Decision("stop", f"the job was {LEFT.title}", advice=LEFT.advice)
        finish(keeper, world, decision, {"class": "cancelled", "signature": LEFT.signature})
    return told == archive.LOST


def cancelled_in_queue(keeper: Keeper, world: World) -> None:
    """A person ended the job before it began: the run is over (P5)."""
    decision = Decision("stop", "the job was cancelled by a person while it waited in the queue")
    finish(keeper, world, decision, {"class": "cancelled"})


def _requeued_ended(keeper: Keeper, world: World, row: JobRow) -> bool:
    """The requeued job is over: by us, by a person in the queue, or after a launch that nobody watched. True = go on."""
    if row.state is JobState.CANCELLED and keeper.attempt.cancel_intended:
        return True  # our cancel, be it that it came when the job had just started again
    if row.state is JobState.CANCELLED and keeper.run.decision.get("resumed"):
        return True  # who resumes the run takes the cancel back
    if row.state is JobState.CANCELLED and not row.nodes:
        cancelled_in_queue(keeper, world)
        return False
    if row.nodes and keeper.started_again(row):
        follow(keeper, row)
        return False
    return True


def follow(keeper: Keeper, row: JobRow) -> None:
    """The job started (again) before it was taken out of the queue: a launch that shows no fault is not ended (P7), be it on
    the blamed node, which may have been mended since. What was meant to end it counts no more."""
    again = keeper.attempt.launch + (1 if keeper.attempt.requeued else 0)
    launch = row.restarts if row.restarts is not None else again
    keeper.record(
        "job.started",
        launch=launch,
        nodes=list(row.nodes),
        started_at_s=row.start_time_s,
        partition=row.partition,
        stays=True,
    )
    keeper.forget(launch)


def _waited(keeper: Keeper, world: World) -> bool:
    decision = keeper.run.decision
    delay_s = float(decision.get("delay_s", 0.0))
    return (
        delay_s <= 0 or keeper.memory.for_how_long(f"delay:{keeper.attempt.number}", world.mono_s) >= delay_s
    )


def close(keeper: Keeper, *, started: bool = True) -> attempts.Claim | None:
    """Take the newest attempt's next claim (see `attempts.close`), once we have proven that we lead. Raises LeaseLost."""
    number = keeper.run.attempt.number if keeper.run.attempt is not None else 1
    keeper.office.prove()
    return attempts.close(keeper.run_dir, number, keeper.office.lead.epoch, started=started)


def _closed(keeper: Keeper) -> bool:
    """Take the attempt's next claim. False when a launch of it got there first: it is watched instead."""
    if keeper.attempt.closed:
        return True
    taken = close(keeper)
    if taken is not None:
        if not taken.closed:
            keeper.record(
                "warned",
                message=f"launch {taken.launch} of attempt {keeper.attempt.number} claimed while it was being closed",
            )
        return False
    keeper.record("attempt.closed")
    return True


def _next_attempt(keeper: Keeper, world: World) -> None:
    if strays.everywhere(keeper, world):
        return
    number = store.latest_attempt(keeper.run_dir) + 1
    decision = keeper.run.decision
    view = settle.cluster_view(keeper, world)
    if not view.partition and keeper.memory.for_how_long("no-partition", world.mono_s) < PARTITION_WITHIN_S:
        return  # Slurm did not tell how many nodes there are: nobody knows how many may be left out
    # Where no attempt ever had nodes, how many the job needs is not known, nor how many others it can do without.
    placed = any(attempt.nodes for attempt in keeper.run.attempts)
    quarantined = nodebook.kept_away(keeper, world.now_s) if placed else ()
    cap = grounds.limits_from(keeper.settings).exclude_cap
    exclude = placing.left_out(
        view,
        placing.within_cap(view, nodebook.excluded(keeper, world.now_s), cap),
        decision.get("avoid", ()),
        over.silent(keeper, world),
        quarantined=quarantined,
        cap=cap,
    )
    tasks = arrays.wanted(keeper.run_dir, keeper.run, keeper.attempt)
    if keeper.office.act("open", world, lambda: store.open_attempt(keeper.run_dir, number)) is None:
        return  # somebody else made it: only its maker may submit it (P4)
    more: dict[str, Any] = {"tasks": list(tasks)} if tasks else {}
    more |= {"quarantined": known} if (known := sorted({*exclude} & {*quarantined})) else {}
    size, spares = queue_desk.shape_of_next(keeper, world, view, exclude)
    more |= {"size": size} if size else {}
    more |= {"spares": spares} if spares is not None else {}
    keeper.record("attempt.opened", attempt=number, job_id="", launch=0, excluded=list(exclude), **more)
    if spares is not None and spares < keeper.settings["spares"]:
        keeper.record("warned", message=inside.fewer(spares, keeper.settings["spares"]))
    idle = tuple(sorted(view.available - set(exclude)))
    keeper.forget(0)
    token = f"{keeper.run.token}:{number}"
    try:
        request = submit.request_for(
            keeper.run_dir,
            number,
            token=token,
            exclude=exclude,
            restart=sum(one.starts_made for one in keeper.run.attempts if one.number < number),
            last_fault=str(decision.get("class", "")),
            **usable.told(keeper.run_dir, keeper.run),
            fresh=bool(decision.get("fresh")),
            idle=idle,
            array=_narrowed(keeper, tasks),
            anyway=held.starts_anyway(decision, keeper.run.spent),
            spares=spares,
            size=size,
        )
    except submit.SubmitImpossible as error:
        keeper.record("submit.refused", message=str(error), for_good=True)
        return
    keeper.office.uncalled.add(token)
    keeper.record("submit.intended", token=token)
    _submit(keeper, world, request)
    if keeper.attempt.submission == "done":
        dependents.move(keeper, world)


def _narrowed(keeper: Keeper, tasks: tuple[int, ...]) -> str:
    """The --array of the next attempt, with the user's own %limit; "" for what is no array."""
    spec = str(context.load(keeper.run_dir).get("array", "")) if tasks else ""
    return arrayspec.narrowed(spec, tasks) if spec else ""


def _submit(keeper: Keeper, world: World, request: Any) -> None:
    try:
        answer = keeper.office.act("submit", world, lambda: keeper.office.submit(request))
    except (RefusedForGood, RefusedForNow, Unreachable) as error:
        keeper.record("submit.refused", message=error.message, for_good=isinstance(error, RefusedForGood))
    except OutcomeUnknown as error:
        keeper.record("submit.unknown", message=error.message)
    else:
        cluster = answer.cluster or keeper.office.facts().name
        keeper.record("submit.done", job_id=answer.job_id, cluster=cluster)
        store.index(keeper.office.home, answer.job_id, keeper.run.id)


# ---------------------------------------------------------------------- ending and stopping


def end_attempt(keeper: Keeper, world: World) -> None:
    """Carry out an announced end: dependents are held first, then the job is cancelled.

    It is looked at once more just before: what somebody ends already is not ended by us, and a person's cancel that came
    between the announcement and ours must count as that (P5). Raises SlurmError.
    """
    dependents.hold(keeper, world)
    if not keeper.attempt.cancel_intended:
        families = rows.families(keeper.office.cluster.jobs((keeper.attempt.job,)))
        row = keeper.row(replace(world, families=families))
        if row is None or row.state.ended or row.state is JobState.COMPLETING:
            return  # how it ends tells who ended it; an id that is another job's by now is left alone
        keeper.record("cancel.intended", what=f"job {keeper.attempt.job}", own=True)
    keeper.office.act("cancel", world, lambda: keeper.office.cluster.cancel(keeper.attempt.job))
    keeper.record("end.done")


def finish(keeper: Keeper, world: World, decision: Decision, data: dict[str, Any]) -> None:
    """The run is over. Whatever of it could still start is asked for by its token, since a look may lack a row, and cancelled."""
    if not keeper.watch_only:
        strays.everywhere(keeper, world)
    if decision.kind == "finish" or keeper.run.wish != "pause":  # what waits for a paused run waits on
        dependents.let_go(keeper, world)
    attempt = keeper.attempt
    found = keeper.run.incidents[-1] if keeper.run.incidents else None
    present = (attempt.number, attempt.launch, attempt.start)
    of_this_start = found is not None and (found.attempt, found.launch, found.start) == present
    if (
        decision.kind == "stop"
        and found is not None
        and of_this_start
        and found.fault == FaultClass.CHECKPOINT
    ):
        set_aside(keeper)  # now, not when a person resumes the run: by then it may be mended
    code = attempt.exit_code if attempt.exit_code else (0 if decision.kind == "finish" else 1)
    fields = {**settle.decision_json(decision), **data, "exit_code": code}
    if decision.kind == "finish":
        for note in decision.notes:
            keeper.record("warned", message=note)
        keeper.record("run.finished", **fields)
        return
    last_line.stopped(keeper, fields)


def let_go(keeper: Keeper, world: World) -> None:
    """Of a run that is over, what still waits for it: an earlier release of ftrun noted only what it could release."""
    if dependents.are_left(keeper.run):
        dependents.let_go(keeper, world)


def abandoned(keeper: Keeper, world: World) -> None:
    """A stopped run stays stopped: a job of it that appears late (its submission had no answer) is cancelled."""
    let_go(keeper, world)
    attempt = keeper.run.attempt
    if attempt is None or attempt.submission not in ("unknown", "intended") or keeper.watch_only:
        return
    since = keeper.memory.for_how_long("abandoned", world.mono_s)
    due = world.mono_s - keeper.memory.since.get("strays", float("-inf")) >= STRAYS_EVERY_S
    if since <= STRAYS_FOR_S and due:
        keeper.memory.since["strays"] = world.mono_s
        if not attempt.closed:  # a late job then ends before the user's script begins (P4)
            close(keeper)
            keeper.record("attempt.closed")
        strays.everywhere(keeper, world)


def resume(keeper: Keeper) -> None:
    """A person wants a stopped run to go on: budgets are fresh, or as they were where it was only paused; exclusions stay."""
    if keeper.run.attempt is None:
        keeper.record("warned", message="no attempt of this run was ever submitted: submit it anew")
        return
    haltfile.remove(keeper.run_dir)
    decision = {"kind": "resubmit", "reason": "resumed by a person", "exclude": [], "resumed": True}
    if keeper.run.paused:
        decision["paused"] = True
    keeper.record("run.resumed", decision=decision)


def give_up(keeper: Keeper, want: str, by: str) -> None:
    """A person does not want a paused run to come back: it is stopped, and what waits for it is let go."""
    haltfile.remove(keeper.run_dir)
    reason = f"{'cancelled' if want == 'cancel' else 'stopped'} by {by or 'request'}"
    fields = {"reason": reason, "want": want, "by": by, "class": keeper.run.final_class}
    last_line.given_up(keeper, fields)
