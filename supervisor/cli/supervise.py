"""`ftrun supervise`: supervise the runs of this user, now, from cron or systemd, or as a job. (I/O)

**Texts for systemd, cron and scrontab** (`--print`). Each text can be pasted as it is: it has full paths, and
the variables that name the cluster, the home and the site. systemd keeps one process alive; cron and scrontab
call `--once`, which does what is due and ends, and leaves a supervisor that already leads alone. Each text
quotes a home whose name has spaces or `%`, by the rules of its reader.

**The supervisor as a job** (`--as-job`). Some clusters end long processes on login nodes; there a job is the
only process that may last. The job is requeueable, so Slurm restarts it on another node when its node is
lost, and it requeues itself shortly before its time limit. It always asks for a limit: without one it may
wait behind every planned maintenance, and gets the partition's default, which may be minutes. The lease
decides who leads, as always: the job stands by beside a supervisor on a login node, and ends once it leads
and no run is left. Its script restarts a supervisor that dies. The job's comment names the home, so that no
second one is submitted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ftrun.hooks.runtime.ownership import private_folders
from ftrun.slurm.client import errors
from ftrun.slurm.client import options as client_options
from ftrun.slurm.client.cluster import Cluster, PartitionRow, SubmitRequest
from ftrun.slurm.client.parse import parse_seconds
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.submission import start_supervisor

ONCE_MAX_S = (
    1200.0  # more than a stock fence wait (SlurmdTimeout 300 s + 30 s) or the longest back-off (600 s)
)
COMMAND_TIMEOUT_S = 15.0
_OF_EVERY_CALL = ("lease.awaited", "lease.taken")  # left out of a log that cron writes every two minutes


def supervise(
    *,
    once: Annotated[bool, option("--once", "Do what is due now, then end (for cron and scrontab).")] = False,
    as_job: Annotated[
        bool,
        option(
            "--as-job", "Submit a small job that supervises the runs; Slurm restarts it when its node dies."
        ),
    ] = False,
    sbatch_options: Annotated[
        str, option("--sbatch-options", 'With --as-job: more options for sbatch ("-p long -t 7-0").')
    ] = "",
    text: Annotated[
        str,
        option(
            "--print",
            "Print a systemd user unit, a crontab line or a scrontab entry for a supervisor, and end.",
            "systemd|cron|scrontab",
        ),
    ] = "",
    json: Annotated[
        bool, option("--json", "With --as-job and --print: one JSON object on one line.")
    ] = False,
    detached: Annotated[bool, option("--detached", "", hidden=True)] = False,
    in_job: Annotated[bool, option("--in-job", "", hidden=True)] = False,
) -> int:
    """Supervise all runs until interrupted: watch, diagnose, recover. One supervisor leads, others wait."""
    from ftrun.supervisor.store import supervisor_log

    _check_options(once=once, as_job=as_job, sbatch_options=sbatch_options, text=text, json=json)
    ended = _end_on_signal()
    if detached:
        os.closerange(3, 1024)  # a parent may wait for the end of a pipe that this process would hold open
        os.chdir("/")
    env = start_supervisor.clean_env(os.environ) if in_job else dict(os.environ)
    settings = sources.load(os.getcwd(), env)
    home = common.checked_home(settings.home(env))
    if text:
        return _print(text, home, env, json=json)
    _find_cluster(home, env)
    if as_job:
        return _as_job(home, env, sbatch_options, json=json)
    machine = detached or in_job or not sys.stderr.isatty()
    log = supervisor_log.configure(machine=machine, less=_OF_EVERY_CALL if once and machine else ())
    stays, standby = not (detached or in_job), not (once or detached)
    led = _run_loop(settings, home, env, log, once=once, stays=stays, standby=standby, ended=ended)
    if not led and not machine:
        print(
            "ftrun: another supervisor looks after the runs of this home; nothing was done", file=sys.stderr
        )
    return 0


def _run_loop(
    settings: sources.Config,
    home: str,
    env: dict[str, str],
    log: Any,
    *,
    once: bool,
    stays: bool,
    standby: bool,
    ended: list[int],
) -> bool:
    """Run until a signal, until nothing is due (`once`), or until no run is open. False: it never led."""
    from ftrun.slurm.commands.accounting import SacctAccounting
    from ftrun.slurm.commands.steps import CommandSteps
    from ftrun.supervisor.controller.loop import Supervisor
    from ftrun.supervisor.publish.process import PublishProcess
    from ftrun.supervisor.store.lease import Lease, SystemClock
    from ftrun.supervisor.submission import cluster_client

    clock = SystemClock()
    lease = Lease(home, clock, term_s=settings.number("lease"))

    def spoke(speaking: Any) -> None:
        supervisor.services.asks = {"by": speaking.by, "why": speaking.why}
        supervisor.services.tell("slurm.client", by=speaking.by, why=speaking.why)

    cluster = cluster_client.open_cluster(settings, env, timeout_s=COMMAND_TIMEOUT_S, tell=spoke)
    if not os.path.isdir(home):
        private_folders(home)
    publish = PublishProcess(env | {"FTRUN_HOME": home}, log.info, clock.mono_s)
    slurm_conf = env.get("SLURM_CONF", "")
    supervisor = Supervisor(home, cluster, clock, lease, log=log, slurm_conf=slurm_conf, publish=publish)
    supervisor.services.steps = CommandSteps(env)
    supervisor.services.accounting.accounts = SacctAccounting(env)
    idle_exit_s = settings.number("idle-exit")
    started = clock.mono_s()
    idle_since = [started]

    def until(s: Any) -> bool:
        now = clock.mono_s()
        if not s.idle or not s.lease.held:
            idle_since[0] = now
        if ended:
            return True
        if once:
            return (s.ticks > 1 and not s.moving and not s.patient) or now - started > ONCE_MAX_S
        return not stays and now - idle_since[0] > idle_exit_s

    return supervisor.run(poll_s=settings.number("poll"), until=until, standby=standby)


def _check_options(*, once: bool, as_job: bool, sbatch_options: str, text: str, json: bool) -> None:
    if once + as_job + bool(text) > 1:
        raise UserError("supervise: give only one of --once, --as-job and --print")
    if sbatch_options and not as_job:
        raise UserError("supervise: --sbatch-options is for --as-job")
    if json and not (as_job or text):
        raise UserError(
            "supervise: --json is for --as-job and --print; see `ftrun status --json` for the runs"
        )


def _print(kind: str, home: str, env: dict[str, str], *, json: bool) -> int:
    if kind not in TEXTS:
        raise UserError(f"--print: {' or '.join(TEXTS)} is wanted, not {kind!r}")
    made = TEXTS[kind](home, env)
    if json:
        common.print_json({"kind": kind, "home": home, "text": made})
    else:
        print(made, end="")
    return 0


def _as_job(home: str, env: dict[str, str], options: str, *, json: bool) -> int:
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.cluster import CommandCluster

    try:
        watch = submit(CommandCluster(env), home, env, shlex.split(options))
    except ValueError as error:
        raise UserError(f"--sbatch-options: {error}") from None
    except SlurmError as error:
        raise UserError(f"the supervisor's job was not submitted: {error.message}", 1) from None
    if json:
        log = os.path.join(home, "supervisor.log")
        common.print_json(
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
    """Ask the Slurm that the newest run of this home was submitted to, by the same clients: cron knows no
    SLURM_CONF, and another shell may find the clients of another Slurm.
    """
    from ftrun.supervisor.store import run_dir, submission_context
    from ftrun.supervisor.submission import sbatch_process

    try:
        newest = max(run_dir.run_dirs(home), key=os.path.getmtime, default=None)
        if newest is None:
            return
        kept, cwd = submission_context.environment(newest), submission_context.cwd(newest)
    except (OSError, submission_context.ContextError):
        return
    slurm = sbatch_process.slurm_facts(kept, cwd)
    if slurm["conf"] and not env.get("SLURM_CONF"):
        env["SLURM_CONF"] = slurm["conf"]
    path = env.get("PATH", os.defpath)
    if slurm["clients"] and slurm["clients"] != sbatch_process.client_folder(path, os.getcwd()):
        env["PATH"] = f"{slurm['clients']}:{path}"


def _end_on_signal() -> list[int]:
    """Let TERM, INT and HUP end the loop between two rounds. Returns the list of signals received."""
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: received.append(got))
    return received


_KEPT = (
    "SLURM_CONF",
    "FTRUN_SITE_CONFIG",
    "XDG_CONFIG_HOME",
    "FTRUN_SLURM_CLIENT",
    "FTRUN_PYSLURM_PYTHON",
    "FTRUN_CATALOG",
)
_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_CALL = ("-P", "-m", "ftrun.supervisor", "supervise")  # -P: no module of the current directory is imported


def unit(home: str, env: Mapping[str, str]) -> str:
    """A systemd user unit that keeps a supervisor alive."""
    head = "# ~/.config/systemd/user/ftrun.service; then: systemctl --user enable --now ftrun; loginctl enable-linger"
    return _unit(head, "ftrun supervisor", "supervise", _variables(home, env), target="default.target")


def site_unit(home: str, env: Mapping[str, str]) -> str:
    """A systemd unit that keeps the site's service alive, with this shell's PATH: checks need the site's tools."""
    head = "# /etc/systemd/system/ftrun-site.service; then: systemctl enable --now ftrun-site"
    variables = [*_variables(home, env, path=False), ("PATH", env.get("PATH", os.defpath))]
    return _unit(head, "The site's service of ftrun", "site", variables, target="multi-user.target")


def _unit(head: str, what: str, command: str, variables: list[tuple[str, str]], *, target: str) -> str:
    no_restart = "2" if command == "supervise" else "2 77"
    lines = "".join(f"Environment={_for_systemd(f'{key}={value}')}\n" for key, value in variables)
    words = (sys.executable, *_CALL[:-1], command)
    call = " ".join(_for_systemd(word).replace("$", "$$") for word in words)
    return f"""\
{head}
[Unit]
Description={what}
Documentation=man:ftrun-{command}(1)

[Service]
{lines}ExecStart={call}
Restart=always
RestartSec=5
# Exit status 2: the settings are wrong; 77: this user has not the rights. A restart would mend neither.
RestartPreventExitStatus={no_restart}

[Install]
WantedBy={target}
"""


def crontab(home: str, env: Mapping[str, str]) -> str:
    """A crontab line for a login node."""
    line = _line(home, env).replace("%", "\\%")
    return f"# crontab -e, on a login node\n{line}\n"


def scrontab(home: str, env: Mapping[str, str]) -> str:
    """A scrontab entry, which Slurm runs on a node, one at a time."""
    return f"""\
# scrontab -e; the nodes must see this folder and this Python, and may call sbatch
#SCRON --job-name=ftrun-supervisor --ntasks=1 --cpus-per-task=1 --time=00:30:00 --output=/dev/null
{_line(home, env)}
"""


TEXTS = {"systemd": unit, "cron": crontab, "scrontab": scrontab}
"""Kind -> function of (home, environment) that returns the text."""


def site_crontab(home: str, env: Mapping[str, str]) -> str:
    """A crontab line for root or SlurmUser, where no systemd unit runs the site's service."""
    call = _call(home, {key: env[key] for key in _KEPT[:2] if key in env}, path=False, once=False)
    call = call.replace("%", "\\%")
    return (
        "# Or crontab -e as root or SlurmUser, on one host that reaches the nodes by SSH\n"
        f"PATH={env.get('PATH', os.defpath)}\n* * * * * {call} site --once >>/var/log/ftrun-site.log 2>&1\n"
    )


def site_settings(spool: str) -> str:
    """What the site's file says for the service; `spool`: the folder that it names already."""
    return f"""\
# /etc/ftrun/config.toml, on the login nodes and where the service runs
site-spool = "{spool or "/var/spool/ftrun"}"  # the service makes it; login nodes and service see it
# ssh-config = "/etc/ftrun/ssh_config"  # how the service reaches nodes; default: its user's own
# observe = true  # for the first weeks: check and answer, drain nothing
"""


def _variables(home: str, env: Mapping[str, str], *, path: bool = True) -> list[tuple[str, str]]:
    found = [("FTRUN_HOME", home), *((key, env[key]) for key in _KEPT if env.get(key))]
    if path:
        sbatch = shutil.which("sbatch", path=env.get("PATH"))
        folders = [os.path.dirname(sbatch)] if sbatch else []
        found.append(("PATH", ":".join(dict.fromkeys((*folders, *_PATH)))))
    return found


def _line(home: str, env: Mapping[str, str]) -> str:
    """The crontab line: `--once` every two minutes, output to the log. `%` is not escaped yet."""
    log = shlex.quote(os.path.join(home, "supervisor.log"))
    return f"*/2 * * * * {_call(home, env)} >>{log} 2>&1"


def _call(home: str, env: Mapping[str, str], *, path: bool = True, once: bool = True) -> str:
    variables = [f"{key}={shlex.quote(value)}" for key, value in _variables(home, env, path=path)]
    words = [sys.executable, *_CALL, "--once"] if once else [sys.executable, *_CALL[:-1]]
    return " ".join([*variables, shlex.join(words)])


def _for_systemd(word: str) -> str:
    """One word of a unit file: `%` is doubled; a word with spaces or quotes is quoted."""
    safe = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{safe}"' if safe != word or set(word) & set(" \t';") else word


NAME = "ftrun-supervisor"
REQUEUE_BEFORE_S = 120  # so long before its time limit the job requeues itself
LIMIT_MIN_S = 240.0  # Slurm may send that signal a minute early, and one round takes a while
LIMIT_DEFAULT_S = 86_400.0

SCRIPT = """#!/bin/sh
export FTRUN_HOME={home}
end() {{ kill -TERM "$child" 2>/dev/null; wait "$child"; }}
again() {{ end; until scontrol requeue "$SLURM_JOB_ID"; do sleep 5; done; exit; }}
leave() {{ end; exit 0; }}
trap again USR1
trap leave TERM
while :; do
    {python} -P -m ftrun.supervisor supervise --in-job &
    child=$!
    wait "$child"
    code=$?
    case $code in 0 | 2 | 126 | 127) exit "$code" ;; esac
    sleep 10
done
"""


@dataclass(frozen=True, slots=True)
class SupervisorJob:
    """The supervisor's job for a home.

    `before`: it existed already; `limit_min`: the time limit asked for, None if the user's options set it or
    nothing was submitted.
    """

    job: str
    before: bool
    limit_min: int | None


def submit(cluster: Cluster, home: str, env: Mapping[str, str], words: Sequence[str] = ()) -> SupervisorJob:
    """Submit the job unless one exists; `words` are options for sbatch. Raises SlurmError, UserError."""
    mark = f"{NAME}:{zlib.crc32(os.path.realpath(home).encode()):08x}"
    living = [row for row in cluster.find(mark) if not row.state.ended]
    if living:
        return SupervisorJob(living[0].job_id, before=True, limit_min=None)
    limit_min = time_limit(words, cluster.partitions())
    given = (
        "--parsable", f"--job-name={NAME}", f"--comment={mark}", "--requeue", "--open-mode=append", "--ntasks=1", "--cpus-per-task=1",
        f"--signal=B:USR1@{REQUEUE_BEFORE_S}", f"--output={os.path.join(home, 'supervisor.log').replace('%', '%%')}",
        *([f"--time={limit_min}"] if limit_min else []),
    )  # fmt: skip
    script = SCRIPT.format(home=shlex.quote(home), python=shlex.quote(sys.executable))
    request = SubmitRequest(mark, (*given, *words), script.encode(), start_supervisor.clean_env(env), home)
    os.makedirs(home, mode=0o700, exist_ok=True)
    return SupervisorJob(cluster.submit(request).job_id, before=False, limit_min=limit_min)


def time_limit(words: Sequence[str], partitions: Mapping[str, PartitionRow]) -> int | None:
    """Minutes to ask for: a day, or the partition's limit; None if `words` set one. Raises UserError."""
    try:
        line = client_options.split(list(words))
    except errors.OptionError as error:
        raise UserError(f"--sbatch-options: {error}") from None
    if line.script is not None:
        raise UserError(f"--sbatch-options: options of sbatch are wanted, not {line.script!r}")
    chosen = line.get("time")
    if chosen is not None:
        limit_s = parse_seconds(chosen)
        if limit_s is not None and 0 < limit_s < LIMIT_MIN_S:
            raise UserError(
                f"--time={chosen}: a supervisor's job needs {LIMIT_MIN_S / 60:.0f} minutes at least"
            )
        return None
    named = line.get("partition")
    names = named.split(",") if named else [row.name for row in partitions.values() if row.default]
    known = [partitions[name] for name in names if name in partitions]
    limits = [row.max_time_s for row in known if row.max_time_s is not None]
    limit_s = min([LIMIT_DEFAULT_S, *limits])
    if limit_s < LIMIT_MIN_S:
        least = min(known, key=lambda row: row.max_time_s or LIMIT_DEFAULT_S).name
        raise UserError(
            f"partition {least} ends a job after {limit_s / 60:g} minutes, a supervisor's job needs {LIMIT_MIN_S / 60:.0f} at least:"
            " name another one with --sbatch-options '-p NAME'"
        )
    return int(limit_s // 60)


def notify(
    *,
    test: Annotated[
        bool, option("--test", "Send one message to each address, now, and say how that went.")
    ] = False,
    json: Json = False,
) -> int:
    """Show who gets notices and what waits for them (docs/notices.md)."""
    from ftrun.supervisor.notices import addresses, delivery, message, notice, outbox, schedule
    from ftrun.supervisor.publish import notices

    config = sources.load(os.getcwd(), os.environ)
    schedule.Rules.of(config.values)
    path = config.path("notify")
    if not path:
        raise UserError(
            'no notices are sent: set notify = "FILE" in ~/.config/ftrun/config.toml (docs/notices.md)'
        )
    known = addresses.read_addresses(path)
    now_s = time.time()
    letter = message.letter_of(
        schedule.Message((notice.test_notice(now_s, notices.sender()),)), notices.sender()
    )
    ways = [
        (one, delivery.Delivery(one, None if one.way == "heartbeat" else letter) if test else None)
        for one in known
    ]
    box = outbox.Outbox(os.path.join(common.home(), "publish", "notices"))
    rows = []
    for one, sent in ways:
        inbox = box.inboxes.get(one.id)
        waiting = len(inbox.waiting) if inbox is not None else 0
        problem = "; ".join(part.partition(": ")[2] for part in notices.problems(box, [one]))
        if sent is not None:
            why = sent.wait(delivery.LIMIT_S)
            problem = f"it takes more than {delivery.LIMIT_S:.0f} s" if why is None else why
        rows.append(
            {
                "address": one.label,
                "way": one.way,
                "waiting": waiting,
                "sent": test and not problem,
                "problem": problem,
            }
        )
    if json:
        common.print_json({"notices": rows})
    else:
        for row in rows:
            state = row["problem"] or ("sent" if test else f"{row['waiting']} notices wait")
            print(f"{row['address']} by {row['way']}: {state}")
    return 1 if test and any(row["problem"] for row in rows) else 0
