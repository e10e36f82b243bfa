"""Stops, pauses and time limits of a live attempt: it is asked for a checkpoint before it is left. (I/O)

How it thinks. What `leaving` decides is carried out here, one look at a time. Asking is an effect like any other: intent, act, fact.
Who takes over in between asks once more, which costs the script one more checkpoint at the worst; the time of the wait is by the
clock of who waits, so a takeover makes it longer and never shorter.

A time limit is left to Slurm: the script is asked in time, goes on with its work, and the limit itself ends it, for it may come to its own
end before. Where Slurm was told to send a signal, it asks, and it may do so a minute early: from then on a new checkpoint is the answer, and only
where there is none in time the script is asked by us as well. One kind of script is ended once it has answered: it tells its last step and
cannot reach it before the limit, and in all its time it has saved nothing unasked, so that all it makes from there on would be thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.errors import RefusedForGood
from ftrun.supervisor import (
    checkpoints,
    drained,
    expected,
    haltfile,
    leaving,
    preempted,
    savenow,
    settle,
    warned,
)
from ftrun.supervisor.end_reasons import AT_LIMIT
from ftrun.supervisor.halts import FILE, BadHalt, Halt
from ftrun.supervisor.leaving import Ask, Occasion, Sight, Verdict
from ftrun.supervisor.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = [
    "ask",
    "asked",
    "awaited",
    "leave",
    "listens",
    "live",
    "look",
    "near_limit",
    "save_wait_s",
    "sight",
]

SLURM = "slurm"
_OVER = frozenset({State.SETTLING, State.RECOVERING})


def look(keeper: Keeper, world: World) -> None:
    """Note what `halt.json` says, and that its condition holds. Raises OSError (journal)."""
    if keeper.run.final:
        return
    if keeper.run.state in _OVER:
        savenow.clear(keeper.run_dir)  # it was meant for a launch that is over
    halt = _read(keeper)
    if halt is not None and halt.token != keeper.run.halt.get("token", ""):
        keeper.record("halt.set", halt=halt.to_json())
        _unask(keeper)
    known = Halt.from_json(keeper.run.halt)
    if not known.wanted or keeper.run.wish:
        return
    why = known.due(step=keeper.memory.step, now_s=world.now_s, save_wait_s=save_wait_s(keeper))
    if why:
        keeper.record("halt.due", want=known.word, by=known.by, why=why)


def live(keeper: Keeper, world: World, row: JobRow) -> None:
    """What a person, or the time limit, wants of a live attempt. Raises SlurmError."""
    drained.tidy(keeper, world)
    if keeper.run.wish == "cancel":
        keeper.intend_end(f"cancel by {keeper.run.wish_by or 'request'}")
    elif keeper.run.wish:
        leave(keeper, world)
    elif not preempted.look(keeper, world, row):
        drained.look(keeper, world, row)
        if keeper.run.state is State.ENDING:
            return
        near_limit(keeper, world, row)


def leave(keeper: Keeper, world: World) -> None:
    """One look at a live attempt that a person wants to stop or pause: ask it, wait, end it."""
    run, report = keeper.run, keeper.memory.report
    if report is not None and report.behind:
        return  # what was saved long ago would look new
    halt = Halt.from_json(run.halt)
    if not halt.wanted:  # a request without conditions
        halt = Halt(after_checkpoint=True)
    occasion = Occasion.PAUSE if run.wish == "pause" else Occasion.STOP
    if not asked(keeper, occasion) or run.leaving.get("halt") != halt.token:
        wait_s = halt.wait_s(now_s=world.now_s, save_wait_s=save_wait_s(keeper), listens=listens(keeper))
        ask(keeper, world, occasion, wait_s, halt=halt.token)
        return
    verdict = awaited(keeper, world)
    if verdict.end:
        keeper.intend_end(f"{run.wish} by {run.wish_by or 'request'}; {verdict.reason}")


def ask(
    keeper: Keeper,
    world: World,
    occasion: Occasion,
    wait_s: float | None,
    *,
    by_signal: bool = True,
    halt: str = "",
    known: Mapping[str, Any] | None = None,
    unasked: bool = True,
    by: str = "",
    nodes: Sequence[str] = (),
) -> None:
    """Ask the present launch for a checkpoint, which is awaited for `wait_s` seconds (None = until there is one).

    `known`: what was there before, where that is not what is there now; `unasked`: it may save without being asked; `by`: SLURM where that
    one asks; `nodes` are those for which it is to be left. Raises SlurmError: then it is intended, and `awaited` asks again.
    """
    signal = str(keeper.settings.get("save-signal", "")) if by_signal else ""
    keeper.office.fresh(world)
    drained.unask(keeper)
    keeper.record(
        "leave.intended",
        token=str(int(world.now_s * 1000)),
        occasion=occasion.value,
        wait_s=wait_s,
        signal=signal,
        halt=halt,
        known=known if known is not None else sight(keeper, world).to_json(),
        unasked=unasked,
        by=by,
        nodes=list(nodes),
    )
    if by != SLURM:
        _tell(keeper, world)


def awaited(keeper: Keeper, world: World) -> Verdict:
    """What has become of the checkpoint that was asked for; the end of the wait is journalled, once. Raises SlurmError."""
    told = keeper.run.leaving
    if told["stage"] in ("saved", "missed"):
        return Verdict(True, told["stage"] == "saved", str(told.get("why", "")))
    if told["stage"] == "intended" and told.get("by") != SLURM:
        _tell(keeper, world)
    asking = Ask(Occasion(told["occasion"]), Sight.from_json(told["known"]), told["wait_s"])
    now = sight(keeper, world)
    waited_s = keeper.memory.for_how_long(f"leave:{told['token']}", world.mono_s)
    verdict = leaving.decide(asking, now, waited_s)
    if not verdict.end:
        return verdict
    if verdict.saved:
        keeper.record("leave.saved", why=verdict.reason, path=now.path, waited_s=round(waited_s, 1))
    else:
        keeper.record("leave.missed", why=verdict.reason, waited_s=round(waited_s, 1))
        if asking.occasion is not Occasion.GASP:
            keeper.record("warned", message=f"attempt {keeper.attempt.number}: {verdict.reason}")
    _unask(keeper)
    return verdict


def near_limit(keeper: Keeper, world: World, row: JobRow) -> None:
    """Have the script save when the time limit is near: Slurm asks it where it was told to, we do otherwise. Raises SlurmError."""
    limit_s, end_s = row.time_limit_s, row.limit_end_s
    if keeper.watch_only or limit_s is None or end_s is None:
        return
    left_s = end_s - world.now_s
    near = leaving.limit_is_near(limit_s, left_s, save_wait_s(keeper))
    if asked(keeper, Occasion.TIMELIMIT):
        _hear(keeper, world, left_s, near=near)
        return
    if not (keeper.settings.get("checkpoint") or listens(keeper)):
        return
    if keeper.memory.warned is None:
        keeper.memory.warned = (warned.ahead_s(keeper.run_dir),)
    (ahead_s,) = keeper.memory.warned
    slurms = bool(ahead_s) and leaving.warning_is_due(ahead_s or 0.0, left_s)
    if not near and not slurms:
        return
    known = sight(keeper, world)
    written_s = checkpoints.written_s(known.path) if known.path else None
    by_itself = known.logged is not None or (written_s or 0.0) > (keeper.attempt.started_at_s or 0.0)
    if slurms and written_s is not None and leaving.warning_is_due(ahead_s or 0.0, end_s - written_s):
        known = Sight()  # the answer to Slurm is there already
    ask(
        keeper,
        world,
        Occasion.TIMELIMIT,
        max(left_s, 0.0),
        by_signal=ahead_s is None,
        known=known.to_json(),
        unasked=by_itself,
        by=SLURM if slurms else "",
    )


def _hear(keeper: Keeper, world: World, left_s: float, *, near: bool) -> None:
    """What becomes of a script that was asked to save before its time limit."""
    told = keeper.run.leaving
    if told["stage"] == "missed":
        return
    verdict = awaited(keeper, world)
    if not verdict.end and near and told.get("by") == SLURM:
        if not leaving.new(Sight.from_json(told["known"]), sight(keeper, world)):
            more = {"known": told["known"], "unasked": told["unasked"]}
            ask(keeper, world, Occasion.TIMELIMIT, max(left_s, 0.0), by_signal=False, **more)
        return
    ends = expected.of_run(keeper.run, world.now_s)
    work_s = (ends.target - ends.step) * ends.step_s if ends is not None else None
    vain = leaving.in_vain(work_s=work_s, left_s=left_s, unasked=bool(told.get("unasked", True)))
    if verdict.saved and vain and settle.newest_checkpoint(keeper) and keeper.run.state is State.RUNNING:
        keeper.intend_end(f"{AT_LIMIT}; {verdict.reason}")


def sight(keeper: Keeper, world: World) -> Sight:
    """The newest checkpoint as it is now, and for how long it has been so while this process looked."""
    path = settle.newest_checkpoint(keeper)
    stamp, since = checkpoints.stamp(path) if path else "", keeper.memory.since
    key = f"checkpoint:{path}:{stamp}"
    for other in [name for name in since if name.startswith("checkpoint:") and name != key]:
        del since[other]
    return Sight(
        path=path,
        stamp=stamp,
        step=checkpoints.step_of(path) if path else None,
        logged=keeper.memory.saved_step,
        quiet_s=keeper.memory.for_how_long(key, world.mono_s),
        marked=bool(keeper.settings.get("checkpoint-marker")),
    )


# ---------------------------------------------------------------------- the effects


def _tell(keeper: Keeper, world: World) -> None:
    """The file for scripts that look, the signal for scripts that listen."""
    told = keeper.run.leaving
    try:
        keeper.office.act("save-now", world, lambda: savenow.ask(keeper.run_dir, told["token"]))
    except OSError as error:
        keeper.record(
            "warned", message=f"{keeper.run_dir}/{savenow.FILE} cannot be written: {error.strerror}"
        )
    name, to_script = leaving.split_signal(told["signal"])
    if name:
        attempt, cluster = keeper.attempt, keeper.office.cluster
        jobs = (attempt.job,) if to_script else (attempt.job, *attempt.joined)

        def send() -> None:
            for job in jobs:
                cluster.cancel(job, signal=name, batch=to_script)

        try:
            keeper.office.act("signal", world, send)
        except RefusedForGood as error:
            keeper.record("warned", message=f"the signal {told['signal']} cannot be sent: {error.message}")
    keeper.record("leave.asked", token=told["token"])


def _unask(keeper: Keeper) -> None:
    savenow.unask(keeper.run_dir, str(keeper.run.leaving.get("token", "")))


# ---------------------------------------------------------------------- what is known


def asked(keeper: Keeper, occasion: Occasion) -> bool:
    """This launch was asked for a checkpoint, for this reason."""
    told, attempt = keeper.run.leaving, keeper.attempt
    place = (told.get("occasion"), told.get("attempt"), told.get("launch"))
    return place == (occasion.value, attempt.number, attempt.launch)


def save_wait_s(keeper: Keeper) -> float:
    """How long a new checkpoint is waited for."""
    return float(keeper.settings.get("save-wait", 120.0))


def listens(keeper: Keeper) -> bool:
    """The script is known to save when it is asked to."""
    return bool(keeper.settings.get("save-signal"))


def _read(keeper: Keeper) -> Halt | None:
    """What `halt.json` says now; None where there is none that can be obeyed. One that makes no sense is told once."""
    try:
        return haltfile.read(keeper.run_dir)
    except BadHalt as error:
        if keeper.memory.due(f"halt:{error}", 0.0, float("inf")):
            keeper.record("warned", message=f"{keeper.run_dir}/{FILE} is not obeyed: {error}")
        return None
