"""Ending a start that still lives: a last checkpoint where one can be had, its steps, then its script. (I/O)

How it thinks. From the gentle to the hard. Where most of it is alive it is asked once for a checkpoint (the dying gasp, `leaving`); then its steps
are cancelled, upon which most scripts end by themselves; then the script's own process group is told to leave, and killed. batch.sh sees
the script end and asks us what comes next, even where the script then says that all went well. Each effect is journalled before and after.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.steps import StepRow
from ftrun.supervisor import checkpoints, context, leaving, savenow, suspicions
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.model import FaultClass

__all__ = ["Boundary", "cancel_steps", "stop"]

OWN_STEPS = "ftrun"
"""So the steps are called that ftrun makes: they look after the nodes, and are not the script's."""

STEPS_END_S = 8.0
LOST_END_S = 0.2  # srun would wait for the lost node, up to a minute; whoever needs longer to leave is swept
SIGHT_EVERY_S = 5.0  # between looks at a folder of checkpoints that nobody is in a hurry for
WRITING_EVERY_S = 0.5  # while a new one is being written
TERM_S = 10.0
KILL_S = 10.0


def stop(desk: Desk, eye: Eye, found: Suspicion, settings: Mapping[str, Any]) -> None:
    """End the start; returns when it is over, or nothing is left to try. Raises OSError (journal), GivenUp."""
    number = eye.started.number
    desk.talk.ending(number)
    if not suspicions.is_planned(found.diagnosis):  # else it has just saved
        _gasp(desk, eye, found, settings)
    if desk.talk.over(number) is not None:
        return
    lost = found.diagnosis.signature == suspicions.LOST
    if cancel_steps(desk) and _over_within(desk, number, LOST_END_S if lost else STEPS_END_S):
        return
    for name, wait_s in (("TERM", TERM_S), ("KILL", KILL_S)):
        if desk.talk.over(number) is not None:
            return
        desk.book.record("script.end.intended", signal=name, pid=eye.started.pid)
        desk.book.act("script.end", lambda name=name: desk.signal(eye.started.pid, name))  # type: ignore[misc]
        desk.book.record("script.end.done", signal=name)
        if _over_within(desk, number, wait_s):
            return
    say(f"start {number}: it does not end")


def cancel_steps(desk: Desk) -> bool:
    """Cancel all steps of the script; True where there were any. Slurm may not answer: then the script's end has to do."""
    try:
        running = own(desk.steps.steps(desk.where.job))
    except SlurmError as error:
        say(f"steps unknown: {error.message}")
        return False
    if not running:
        return False
    names = [step.id for step in running]
    desk.book.record("steps.cancel.intended", steps=names)
    desk.book.act("steps.cancel", lambda: _cancel(desk, names))
    desk.book.record("steps.cancel.done", steps=names)
    return True


def own(steps: tuple[StepRow, ...]) -> tuple[StepRow, ...]:
    """The script's steps among these. (pure)"""
    return tuple(step for step in steps if step.name != OWN_STEPS)


def _cancel(desk: Desk, names: list[str]) -> None:
    for name in names:
        try:
            desk.steps.end_step(name)
        except SlurmError as error:
            say(f"step {name}: {error.message}")


def _over_within(desk: Desk, number: int, limit_s: float) -> bool:
    until_s = desk.clock.mono_s() + limit_s
    while desk.talk.over(number) is None:
        if desk.clock.mono_s() > until_s:
            return False
        desk.rest(0.05)
    return True


# ---------------------------------------------------------------------- the dying gasp


def _gasp(desk: Desk, eye: Eye, found: Suspicion, settings: Mapping[str, Any]) -> None:
    """Ask the survivors for a checkpoint, once, and wait a little for it."""
    nodes = eye.started.nodes
    signal_name, to_script = leaving.split_signal(str(settings.get("save-signal", "")))
    gone = [node for node in nodes if node in found.diagnosis.nodes]
    reads = found.diagnosis.fault is not FaultClass.HANG  # who hangs reads no file
    wanted, why = leaving.gasp(
        total=len(nodes),
        alive=len(nodes) - len(gone),
        listens=bool(signal_name) or (reads and savenow.is_read(desk.where.place, eye.started.token)),
        asked=False,
        gasp_wait_s=float(settings.get("gasp-wait", 30.0)),
    )
    if not wanted:
        say(f"no last checkpoint is asked for: {why}")
        return
    wait_s = float(settings.get("gasp-wait", 30.0))
    known = sight(desk, eye, settings, desk.clock.mono_s(), None)
    ask = leaving.Ask(leaving.Occasion.GASP, known[0], wait_s)
    desk.book.record("save.asked", occasion="gasp", why=why, known=known[0].to_json(), wait_s=wait_s)
    token = _wish(desk, eye)
    try:
        desk.book.act("save", lambda: _ask(desk, eye, token, signal_name, to_script=to_script))
        began_s = desk.clock.mono_s()
        seen = known
        while True:
            eye.look()
            seen = sight(desk, eye, settings, desk.clock.mono_s(), seen)
            verdict = leaving.decide(ask, seen[0], desk.clock.mono_s() - began_s)
            if verdict.end or desk.talk.over(eye.started.number) is not None:
                break
            desk.rest(0.5)
    finally:
        savenow.unask(desk.where.run_dir, token)
    desk.book.record("save.done" if verdict.saved else "save.missed", why=verdict.reason)


class Boundary:
    """The next checkpoint of a live start: asked for where somebody listens, else awaited for as long as it takes."""

    def __init__(
        self,
        desk: Desk,
        eye: Eye,
        settings: Mapping[str, Any],
        occasion: leaving.Occasion = leaving.Occasion.SWAP,
        why: str = "a spare is to take a slow node's place",
    ) -> None:
        self._desk, self._eye, self._settings = desk, eye, settings
        self._began_s = self._looked_s = desk.clock.mono_s()
        self._seen = sight(desk, eye, settings, self._began_s, None)
        signal_name, to_script = leaving.split_signal(str(settings.get("save-signal", "")))
        asks = bool(signal_name) or savenow.is_read(desk.where.place, eye.started.token)
        wait_s = float(settings.get("save-wait", 120.0)) if asks else None
        self._ask = leaving.Ask(occasion, self._seen[0], wait_s)
        self._token = _wish(desk, eye)
        if asks:
            known = self._seen[0].to_json()
            desk.book.record("save.asked", occasion=occasion.value, why=why, known=known, wait_s=wait_s)
            desk.book.act("save", lambda: _ask(desk, eye, self._token, signal_name, to_script=to_script))

    def look(self) -> leaving.Verdict:
        """Whether the checkpoint is there, or is not coming. Raises OSError (journal)."""
        mono_s, seen = self._desk.clock.mono_s(), self._seen[0]
        fresh = leaving.new(self._ask.known, seen) or self._eye.memory.saved_step != seen.logged
        if mono_s - self._looked_s < (WRITING_EVERY_S if fresh else SIGHT_EVERY_S):
            return leaving.Verdict(False, False, "a new checkpoint is awaited")
        self._looked_s = mono_s
        self._seen = sight(self._desk, self._eye, self._settings, mono_s, self._seen)
        verdict = leaving.decide(self._ask, self._seen[0], mono_s - self._began_s)
        if verdict.end and self._ask.wait_s is not None:
            self.close()
            self._desk.book.record("save.done" if verdict.saved else "save.missed", why=verdict.reason)
        return verdict

    def close(self) -> None:
        """Nothing is asked for any more, be it that the start ended meanwhile."""
        if self._ask.wait_s is not None:
            savenow.unask(self._desk.where.run_dir, self._token)


def sight(
    desk: Desk,
    eye: Eye,
    settings: Mapping[str, Any],
    mono_s: float,
    before: tuple[leaving.Sight, float] | None,
) -> tuple[leaving.Sight, float]:
    """What is known of checkpoints now, and since when (monotonic) it has been so."""
    marker = str(settings.get("checkpoint-marker", ""))
    path = checkpoints.newest(
        str(settings.get("checkpoint", "")), marker=marker, cwd=context.cwd(desk.where.run_dir)
    )
    stamp = checkpoints.stamp(path) if path else ""
    same = before is not None and (before[0].path, before[0].stamp) == (path, stamp)
    since_s = before[1] if same and before is not None else mono_s
    step = checkpoints.step_of(path) if path else None
    now = leaving.Sight(path, stamp, step, eye.memory.saved_step, mono_s - since_s, marked=bool(marker))
    return now, since_s


def _wish(desk: Desk, eye: Eye) -> str:
    return f"{eye.started.token} {desk.clock.now_s():.3f}"


def _ask(desk: Desk, eye: Eye, token: str, signal_name: str, *, to_script: bool) -> None:
    savenow.ask(desk.where.run_dir, token, beside=True)
    if signal_name and to_script:
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.kill(eye.started.pid, getattr(signal, f"SIG{signal_name}"))
    elif signal_name:
        try:
            for step in own(desk.steps.steps(desk.where.job)):
                desk.steps.end_step(step.id, signal=signal_name)
        except SlurmError as error:
            say(f"{signal_name} could not be sent: {error.message}")
