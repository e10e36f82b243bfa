"""A command on the controller's host of the user's cluster, over SSH, from a machine that is none of its hosts: a laptop. (I/O)

The supervisor of a run is started there and stays there, so the laptop may go to sleep. Folders and scripts are those of that host.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

from ftrun.slurm.client import options
from ftrun.slurm.client.errors import OptionError
from ftrun.slurm.cluster.plan import Host, Plan
from ftrun.supervisor.cluster import choice, site_file
from ftrun.supervisor.cluster.state import SAID, ClusterState
from ftrun.supervisor.config.settings import takes_value
from ftrun.supervisor.model.errors import SettingError, UserError

ANSWER_S = 15.0
"""The most that a controller's host may take to say who is in control."""
SCRIPT = """\
{exports}
cd {cwd} 2>/dev/null || {{ echo {no_folder} >&2; cd; }}
{script}
for f in {own} ftrun "$HOME/.local/bin/ftrun"; do
    command -v "$f" >/dev/null 2>&1 && exec "$f" {arguments}
done
echo {no_ftrun} >&2
exit 127
"""


def run(name: str, arguments: Sequence[str]) -> int:
    """Carry out `ftrun ARGUMENTS` on the controller's host of a cluster; never returns where that succeeds. Raises UserError."""
    state = ClusterState(name)
    plan = state.existing_plan()
    host = controller_host(plan).target
    line = f"no Slurm is here: this and all further commands run on {host}, of your cluster {name} (FTRUN_CLUSTER=none: not)"
    choice.say_once(os.path.join(state.folder, SAID), line)
    script = remote_script(plan, arguments, host)
    return execute(ssh_words(host, f"exec /bin/sh -c {shlex.quote(script)}"), os.environ)


def controller_host(plan: Plan) -> Host:
    """The host of the slurmctld in control: the first one, or whichever of two it is now, by the word of one that answers."""
    if not plan.backup:
        return plan.head
    from ftrun.supervisor.cluster import remote  # only here: an SSH client is slow to load

    step = {"do": "in_control", "state": plan.state}
    answers = remote.ask({host.target: [step] for host in plan.controllers}, ANSWER_S)
    there = [host for host in plan.controllers if answers[host.target].ok]
    ranks = [answers[host.target].done[0] for host in there]
    chosen = next(
        (host for host in there if plan.controllers.index(host) in ranks), there[0] if there else plan.head
    )
    if chosen is not plan.head:
        why = answers[plan.head.target].failed or "is not in control"
        print(f"ftrun: {plan.head.target}: {why}; this runs on {chosen.target}", file=sys.stderr)
    return chosen


def remote_script(plan: Plan, arguments: Sequence[str], host: str) -> str:
    """What a shell on `host` does: it goes to this folder, where there is one, and starts ftrun. (pure, but for the cwd)"""
    cwd = os.getcwd()
    script = _script_of(arguments[1:]) if arguments[0] == "sbatch" else ""
    missing = f"ftrun: there is no {script} on {host}: copy it there first: scp {script} {host}:"
    return SCRIPT.format(
        exports=exports(plan),
        cwd=shlex.quote(cwd),
        no_folder=shlex.quote(f"ftrun: there is no {cwd} on {host}: working in your home there"),
        script=f"[ -e {shlex.quote(script)} ] || {{ echo {shlex.quote(missing)} >&2; exit 2; }}"
        if script
        else "",
        own=shlex.quote(os.path.abspath(sys.argv[0])),
        arguments=shlex.join(arguments),
        no_ftrun=shlex.quote(
            f"ftrun: ftrun is not installed on {host}, where it looks after runs: install it there"
        ),
    )


def exports(plan: Plan) -> str:
    """The lines of a shell that make it a client of the cluster; its own PATH comes behind the cluster's commands."""
    rows = variables(plan, {**os.environ, "PATH": ""}).items()
    rest = {"PATH": ':"$PATH"'}
    return "\n".join(f"export {key}={shlex.quote(value)}{rest.get(key, '')}" for key, value in rows)


def variables(plan: Plan, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a client of the cluster, whose other variables are `env`."""
    return choice.variables(plan.folder, env, has_settings=bool(site_file.files(plan)))


def ssh_words(host: str, command: str) -> list[str]:
    """The ssh that carries out a command on a host, on a terminal where this one has one."""
    # A terminal there would mix stderr into what `$(...)` catches here.
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return ["ssh", *(["-t"] if on_terminal else []), host, command]


def execute(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become another program: it owns the terminal, the signals and the exit status. Raises UserError."""
    program = shutil.which(words[0], path=environment.get("PATH", os.defpath))
    if program is None:
        raise UserError(f"{words[0]}: command not found", 127)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, [*words], dict(environment))  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise UserError(f"{program}: {error.strerror}", 126) from error


def _script_of(arguments: Sequence[str]) -> str:
    """The script that an sbatch would read from a file; "" for none, and where only the sbatch there can tell."""
    try:
        line = options.split(arguments, own=_has_value)
    except OptionError:
        return ""
    return "" if line.has("wrap") else line.script or ""


def _has_value(key: str) -> bool:
    try:
        return takes_value(key)
    except SettingError:
        return False
