"""`ftrun supervise`: look after the runs of this user. (I/O)"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer

from ftrun.supervisor import config, spawn
from ftrun.supervisor.cli import common
from ftrun.supervisor.errors import UserError

ONCE_AT_MOST_S = (
    1200.0  # more than a stock fence wait (SlurmdTimeout 300 s + 30 s) or the longest back-off (600 s)
)
COMMAND_TIMEOUT_S = 15.0
_OF_EVERY_CALL = (
    "lease.awaited",
    "lease.taken",
)  # nothing to say of in a log that cron writes every two minutes


def supervise(
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Do what is due now, then end (for cron and scrontab).")
    ] = False,
    as_job: Annotated[
        bool,
        typer.Option(
            "--as-job",
            help="Submit a small job that looks after the runs; Slurm starts it again where its node dies.",
        ),
    ] = False,
    sbatch_options: Annotated[
        str,
        typer.Option("--sbatch-options", help='With --as-job: more options for sbatch ("-p long -t 7-0").'),
    ] = "",
    text: Annotated[
        str,
        typer.Option(
            "--print",
            metavar="systemd|cron|scrontab",
            help="Print a systemd user unit, a crontab line or a scrontab entry that keeps a supervisor at work, and end.",
        ),
    ] = "",
    json: Annotated[
        bool, typer.Option("--json", help="With --as-job and --print: one JSON object on one line.")
    ] = False,
    detached: Annotated[bool, typer.Option("--detached", hidden=True)] = False,
    in_job: Annotated[bool, typer.Option("--in-job", hidden=True)] = False,
) -> int:
    """Look after all runs until interrupted: watch, diagnose, recover. One supervisor leads; others stand by."""
    from ftrun.supervisor import logs

    _refuse(once=once, as_job=as_job, sbatch_options=sbatch_options, text=text, json=json)
    ended = _end_on_signal()
    if detached:
        os.closerange(3, 1024)  # whoever started us may wait for the end of a pipe that we would hold open
        os.chdir("/")
    env = spawn.clean(os.environ) if in_job else dict(os.environ)
    settings = config.load(os.getcwd(), env)
    home = common.own_home(settings.home(env))
    if text:
        return _print(text, home, env, json=json)
    _find_cluster(home, env)
    if as_job:
        return _as_job(home, env, sbatch_options, json=json)
    machine = detached or in_job or not sys.stderr.isatty()
    log = logs.configure(machine=machine, less=_OF_EVERY_CALL if once and machine else ())
    stays, standby = not (detached or in_job), not (once or detached)
    led = _look_after(settings, home, env, log, once=once, stays=stays, standby=standby, ended=ended)
    if not led and not machine:
        print(
            "ftrun: another supervisor looks after the runs of this home; nothing was done", file=sys.stderr
        )
    return 0


def _look_after(
    settings: config.Config,
    home: str,
    env: dict[str, str],
    log: Any,
    *,
    once: bool,
    stays: bool,
    standby: bool,
    ended: list[int],
) -> bool:
    """The loop, until a signal, the end of what is due (`once`), or of what there is to look after (unless it `stays`). False: it never led."""
    from ftrun.slurm.commands.accounting import SacctAccounts
    from ftrun.slurm.commands.steps import CommandSteps
    from ftrun.supervisor import slurmclient
    from ftrun.supervisor.lease import Lease, SystemClock
    from ftrun.supervisor.supervise import Supervisor

    clock = SystemClock()
    lease = Lease(home, clock, term_s=float(str(settings["lease"])))

    def spoke(speaking: Any) -> None:
        supervisor.services.asks = {"by": speaking.by, "why": speaking.why}
        supervisor.services.tell("slurm.client", by=speaking.by, why=speaking.why)

    cluster = slurmclient.open_cluster(settings, env, timeout_s=COMMAND_TIMEOUT_S, tell=spoke)
    supervisor = Supervisor(home, cluster, clock, lease, log=log)
    supervisor.services.steps = CommandSteps(env)
    supervisor.services.accounting.accounts = SacctAccounts(env)
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
        return not stays and now - idle_since[0] > idle_exit_s

    return supervisor.run(poll_s=float(str(settings["poll"])), until=until, standby=standby)


def _refuse(*, once: bool, as_job: bool, sbatch_options: str, text: str, json: bool) -> None:
    """Options that cannot be meant together. Raises UserError."""
    if once + as_job + bool(text) > 1:
        raise UserError("supervise: one of --once, --as-job and --print is wanted, not several")
    if sbatch_options and not as_job:
        raise UserError("supervise: --sbatch-options is for --as-job")
    if json and not (as_job or text):
        raise UserError(
            "supervise: --json is for --as-job and --print; `ftrun status --json` tells of the runs"
        )


def _print(kind: str, home: str, env: dict[str, str], *, json: bool) -> int:
    from ftrun.supervisor import units
    from ftrun.supervisor.cli import output

    if kind not in units.TEXTS:
        raise UserError(f"--print: {' or '.join(units.TEXTS)} is wanted, not {kind!r}")
    made = units.TEXTS[kind](home, env)
    if json:
        output.emit_json({"kind": kind, "home": home, "text": made})
    else:
        print(made, end="")
    return 0


def _as_job(home: str, env: dict[str, str], options: str, *, json: bool) -> int:
    import shlex

    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor import asjob
    from ftrun.supervisor.cli import output

    try:
        watch = asjob.submit(CommandCluster(env), home, env, shlex.split(options))
    except ValueError as error:
        raise UserError(f"--sbatch-options: {error}") from None
    except SlurmError as error:
        raise UserError(f"the supervisor's job was not submitted: {error.message}", 1) from None
    if json:
        log = os.path.join(home, "supervisor.log")
        output.emit_json(
            {
                "job": watch.job,
                "before": watch.before,
                "home": home,
                "log": log,
                "time_limit_min": watch.limit_min,
            }
        )
        return 0
    known = "looks after this home already" if watch.before else f"submitted; it writes {home}/supervisor.log"
    print(f"supervisor job {watch.job} {known}")
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
