"""`ftrun supervise`: look after the runs of this user. (I/O)"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer

from ftrun.supervisor import config
from ftrun.supervisor.errors import UserError

ONCE_AT_MOST_S = (
    1200.0  # more than a stock fence wait (SlurmdTimeout 300 s + 30 s) or the longest back-off (600 s)
)
COMMAND_TIMEOUT_S = 15.0


def supervise(
    once: Annotated[
        bool, typer.Option("--once", help="Do what is due now, then end (for cron and scrontab).")
    ] = False,
    detached: Annotated[bool, typer.Option("--detached", hidden=True)] = False,
) -> int:
    """Look after all runs until interrupted: watch, diagnose, recover. One supervisor leads; others stand by."""
    from ftrun.slurm.commands import CommandCluster
    from ftrun.supervisor import logs
    from ftrun.supervisor.lease import Lease, SystemClock
    from ftrun.supervisor.supervise import Supervisor

    ended = _end_on_signal()
    if detached:
        os.closerange(3, 1024)  # whoever started us may wait for the end of a pipe that we would hold open
        os.chdir("/")
    env = dict(os.environ)
    settings = config.load(os.getcwd(), env)
    home = settings.home(env)
    _find_cluster(home, env)
    log = logs.configure(machine=detached or not sys.stderr.isatty())
    clock = SystemClock()
    lease = Lease(home, clock, term_s=float(str(settings["lease"])))
    supervisor = Supervisor(home, CommandCluster(env, timeout_s=COMMAND_TIMEOUT_S), clock, lease, log=log)
    idle_exit_s = float(str(settings["idle-exit"]))
    started = clock.mono_s()
    idle_since = [started]

    def until(s: Any) -> bool:
        now = clock.mono_s()
        if not s.idle or not s.lease.held:
            idle_since[0] = now
        if ended:
            return True
        if once:
            return (s.ticks > 1 and not s.moving and not s.patient) or now - started > ONCE_AT_MOST_S
        return detached and now - idle_since[0] > idle_exit_s

    led = supervisor.run(poll_s=float(str(settings["poll"])), until=until, standby=not (once or detached))
    if not led and not detached:
        raise UserError("another supervisor looks after the runs of this home; nothing was done", 0)
    return 0


def _find_cluster(home: str, env: dict[str, str]) -> None:
    """cron knows no SLURM_CONF. Where the newest run was submitted with one, that is the cluster of this home."""
    from ftrun.supervisor import context, store

    if env.get("SLURM_CONF"):
        return
    try:
        newest = max(store.run_dirs(home), key=os.path.getmtime, default=None)
        conf = context.environment(newest).get("SLURM_CONF", "") if newest else ""
    except (OSError, context.ContextError):
        return
    if conf:
        env["SLURM_CONF"] = conf


def _end_on_signal() -> list[int]:
    """TERM, INT and HUP end the loop between two looks; a list that fills up when one came."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)

    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, note)
    return came
