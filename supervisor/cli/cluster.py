"""`ftrun cluster`: a private, real Slurm on your own hosts, over SSH. (I/O)"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

import typer

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.client.nodeset import fold
from ftrun.slurm.cluster.plan import Plan
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.cluster import bundle as cluster_bundle
from ftrun.supervisor.cluster import (
    choice,
    hosts,
    lifecycle,
    membership,
    on_head_host,
    share,
    site_file,
    takedown,
)
from ftrun.supervisor.cluster import survey as cluster_survey
from ftrun.supervisor.cluster.state import ClusterState, known
from ftrun.supervisor.cluster.survey import Survey
from ftrun.supervisor.model.errors import UserError

app = typer.Typer(help="A private, real Slurm on your own hosts, over SSH.", no_args_is_help=True)

DEFAULT = "default"
EXIT_FAILED = 1
STARTS_SHOWN = 3
"""How many starts by its keeper `status` tells of each host."""

NameOption = Annotated[
    str, option("--name", "Which cluster [default: FTRUN_CLUSTER, else the only one, else `default`].")
]
HostsArgument = Annotated[
    list[str] | None, argument("[HOSTS]...", "gpu[01-08], @group of ClusterShell, or localhost.")
]
HostfileOption = Annotated[
    str, option("--hostfile", "A file with `host` or `host slots=8` on each line.", "FILE")
]
PortOption = Annotated[
    int,
    option(
        "--base-port", "The first of 210 ports that the hosts use between them.", "PORT", min=1024, max=65_000
    ),
]
SharedOption = Annotated[str, option("--shared", "A folder that all hosts see [default: your home].", "DIR")]
ShareOption = Annotated[
    str,
    option(
        "--share",
        "A folder of the first host that all hosts shall see: the others mount it, by sshfs.",
        "DIR",
    ),
]
FenceOption = Annotated[
    str,
    option(
        "--fence-command",
        "Command that cuts off a node which Slurm has given up ({node} is its name), such as power off by ipmitool or a cloud's CLI.",
        "COMMAND",
    ),
]
RepairOption = Annotated[
    list[str] | None,
    option(
        "--repair-command",
        "Command that `ftrun recheck` tries on a drained node that fails ({node}); may be given several times.",
        "COMMAND",
    ),
]
BundleOption = Annotated[
    list[str] | None,
    option(
        "--bundle",
        "Use the Slurm of a bundle, whatever is installed; once for each architecture of the hosts.",
        "FILE",
    ),
]
BackupOption = Annotated[
    str,
    option(
        "--backup",
        "Which of the hosts runs a second slurmctld; both keep their state in the shared folder (not by sshfs).",
        "HOST",
    ),
]
PublicOption = Annotated[
    bool, option("--allow-public", "Permit daemons to listen on addresses that the internet reaches.")
]


@app.command()
def survey(  # noqa: PLR0917 - options, never positions
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    base_port: PortOption = lifecycle.BASE_PORT,
    shared: SharedOption = "",
    share_dir: ShareOption = "",
    allow_public: PublicOption = False,
    as_json: Json = False,
) -> int:
    """Look at hosts side by side, and say what follows; change nothing. Exit 1 if one of them cannot be part of a cluster."""
    targets = hosts.targets(words or [], hostfile)
    folder = share.checked_folder(share_dir, shared, [one.name for one in targets])
    with _Progress("surveying", len(targets)) as progress:
        found = cluster_survey.survey(
            targets, base_port, shared, share=folder, allow_public=allow_public, told=progress.step
        )
    if as_json:
        common.print_json({"hosts": found.facts, "findings": found.findings, "shared": found.shared})
    else:
        _show_survey(found)
    return EXIT_FAILED if found.bad else 0


@app.command()
def up(  # noqa: PLR0917 - options, never positions
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    name: NameOption = "",
    base_port: PortOption = lifecycle.BASE_PORT,
    shared: SharedOption = "",
    share_dir: ShareOption = "",
    partial: Annotated[
        bool, option("--partial", "Go on without the hosts that cannot be part of it.")
    ] = False,
    allow_public: PublicOption = False,
    fence_command: FenceOption = "",
    repair_commands: RepairOption = None,
    bundles: BundleOption = None,
    backup: BackupOption = "",
    install: Annotated[
        bool,
        option(
            "--install",
            "Install the packages of their distribution on hosts that lack Slurm, by root or `sudo -n`.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a cluster up on these hosts, or mend it; return when all its nodes are usable.

    Slurm is taken from the hosts where all have one release of 22.05 or newer installed, else from a bundle.
    """
    began_s = time.monotonic()
    targets = hosts.targets(words or [], hostfile)
    wish = lifecycle.Wish(
        targets=targets,
        base_port=base_port,
        shared=shared,
        share=share.checked_folder(share_dir, shared, [one.name for one in targets]),
        partial=partial,
        allow_public=allow_public,
        fence_command=site_file.checked(fence_command),
        repair_commands=tuple(map(site_file.checked, repair_commands or [])),
        bundles=tuple(bundles or ()),
        backup=backup,
        install=install,
    )
    if wish.backup and wish.share:
        raise UserError("--backup with --share: the second controller's state would die with the first host")
    state = _state(name)
    takedown.sweep(state, [one.name for one in targets], _say)
    plan, found = lifecycle.up(state, wish, _say)
    took_s = time.monotonic() - began_s
    if as_json:
        common.print_json(
            {"name": plan.name, "hosts": [host.name for host in plan.hosts], "took_s": round(took_s, 2)}
        )
        return
    for one in found.findings if found else ():
        if one.level == "note":
            print(f"  note: {one.target}: {one.topic}: {one.text}")
    gpus = sum(sum(host.gres.values()) for host in plan.hosts)
    with_them = f" with {gpus} accelerators" if gpus else ""
    print(
        f"cluster {plan.name} is up after {took_s:.1f} s: {counted(len(plan.hosts), 'node')}{with_them}, Slurm {_version(plan)}"
    )
    if choice.is_here(plan) or choice.elsewhere(os.environ) == plan.name:
        print(f"  ftrun sbatch -N {len(plan.hosts)} train.sh")
    print("  ftrun cluster run -- sinfo")
    for line in _unkept(plan):
        print(line)


@app.command()
def bundle(
    out: Annotated[str, option("--out", "Write it to a file, to be carried elsewhere.", "FILE")] = "",
    arch: Annotated[
        str, option("--arch", "For hosts of another architecture: x86_64, aarch64, ppc64le.", "ARCH")
    ] = "",
    suite: Annotated[
        str,
        option("--suite", "The suite of this distribution [default: Debian: trixie, Ubuntu: noble].", "NAME"),
    ] = "",
    as_json: Json = False,
) -> None:
    """Make a bundle of Slurm from packages of Debian or Ubuntu, for hosts without Slurm; nothing is installed.

    `up` makes one by itself where it needs one and none is kept. This makes a new one, with the newest packages.
    """
    made = cluster_bundle.make(_say, arch, suite, out)
    if as_json:
        common.print_json(made)
    else:
        print(f"{made.path}: Slurm {made.version} for {made.arch}, {os.path.getsize(made.path) >> 20} MiB")


@app.command()
def status(name: NameOption = "", as_json: Json = False) -> int:
    """Show the hosts of a cluster, their daemons and nodes; exit 1 if not all daemons live."""
    state = _state(name)
    plan = state.existing_plan()
    rows = lifecycle.status(state, plan)
    alive = lifecycle.is_up(plan, rows)
    if as_json:
        done = [row for row in state.journal() if row.get("token") == plan.token]
        common.print_json(
            {"name": plan.name, "up": alive, "slurm": _version(plan), "hosts": rows, "journal": done}
        )
        return 0 if alive else EXIT_FAILED
    print(
        f"cluster {plan.name}: {'up' if alive else 'not all up'}, Slurm {_version(plan)}, controller on {' and '.join(host.name for host in plan.controllers)}"
    )
    daemons = {"MUNGED": ["munged"], "SLURMCTLD": ["slurmctld"], "SLURMD": ["slurmd"]}
    if plan.share:
        daemons["FOLDER"] = ["sshd", "sshfs"]
    cells = [
        [
            row.host,
            row.unreached or row.state,
            _duration(row.up_s) if row.up_s else None,
            *(_daemon(row, *names) for names in daemons.values()),
            row.kept_by or "nobody",
            row.reason or None,
        ]
        for row in rows
    ]
    common.print_table(["HOST", "NODE", "UP", *daemons, "KEPT BY", "REASON"], cells)
    for row in rows:
        for one in row.done[-STARTS_SHOWN:]:
            print(_told(row.host, one))
    for row in rows:
        for text in row.notes:
            print(f"note: {row.host}: {text}")
    for line in (*_cut(plan, rows), *_unkept(plan)):
        print(line)
    return 0 if alive else EXIT_FAILED


@app.command()
def down(
    name: NameOption = "",
    force: Annotated[
        bool,
        option(
            "--force",
            "Even if jobs run (they are ended, and nothing submits them again) or a host cannot be reached.",
        ),
    ] = False,
) -> None:
    """Take a cluster down: no process, key or claim is left on any host; logs stay."""
    state = _state(name)
    ended, notes = takedown.down(state, _say, force=force)
    for note in notes:
        print(f"ftrun: note: {note}", file=sys.stderr)
    print(f"cluster {state.name} is down: {ended} processes ended")


@app.command()
def add(  # noqa: PLR0917 - options, never positions
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    name: NameOption = "",
    allow_public: PublicOption = False,
    bundles: BundleOption = None,
    as_json: Json = False,
) -> None:
    """Add hosts to a living cluster; return when they are usable. Jobs go on."""
    began_s = time.monotonic()
    targets = hosts.targets(words or [], hostfile)
    state = _state(name)
    wish = lifecycle.Wish(
        targets=targets,
        base_port=state.existing_plan().base_port,
        allow_public=allow_public,
        bundles=tuple(bundles or ()),
    )
    plan, new = membership.add(state, wish, _say)
    took_s = time.monotonic() - began_s
    if as_json:
        added = [host.name for host in new]
        everyone = [host.name for host in plan.hosts]
        common.print_json({"name": plan.name, "added": added, "hosts": everyone, "took_s": round(took_s, 2)})
        return
    what = fold(host.name for host in new) if new else "nobody"
    print(f"cluster {plan.name} has {counted(len(plan.hosts), 'node')}: {what} was added in {took_s:.1f} s")


@app.command()
def remove(
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    name: NameOption = "",
    force: Annotated[
        bool,
        option(
            "--force", "Even if jobs run on them (they end as with a node that died) or one cannot be asked."
        ),
    ] = False,
) -> None:
    """Take hosts out of a cluster: no process, key or claim is left on them; jobs on the others go on."""
    names = [target.name for target in hosts.targets(words or [], hostfile)]
    plan, notes = membership.remove(_state(name), names, _say, force=force)
    for note in notes:
        print(f"ftrun: note: {note}", file=sys.stderr)
    print(f"cluster {plan.name} has {counted(len(plan.hosts), 'node')}: {fold(names)} was removed")


@app.command()
def drain(
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    name: NameOption = "",
    reason: Annotated[str, option("--reason", "What others should know [default: by whom].", "TEXT")] = "",
) -> None:
    """Let no more jobs start on hosts of a cluster; those that run go on."""
    names = [target.name for target in hosts.targets(words or [], hostfile)]
    by = f"by {getpass.getuser()}@{os.uname().nodename}"
    nodes = membership.drain(_state(name), names, reason or by)
    print(f"{fold(nodes)} takes no more jobs; `ftrun cluster resume` ends that")


@app.command()
def resume(words: HostsArgument = None, hostfile: HostfileOption = "", name: NameOption = "") -> None:
    """Let jobs start again on hosts that were drained, or are down."""
    names = [target.name for target in hosts.targets(words or [], hostfile)]
    nodes = membership.resume(_state(name), names)
    print(f"{fold(nodes)} takes jobs")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], argument("-- CMD [ARGS]...", "The command and its arguments.")],
    name: NameOption = "",
) -> None:
    """Run a command as a client of a cluster, over SSH on its first host if this machine is none; exit as the command does."""
    _exec(_state(name).existing_plan(), command)


@app.command()
def shell(name: NameOption = "") -> None:
    """Open your shell as a client of a cluster."""
    plan = _state(name).existing_plan()
    _exec(plan, [os.environ.get("SHELL") or "/bin/sh"] if choice.is_here(plan) else [])


@app.command()
def env(name: NameOption = "") -> None:
    """Print the variables that make a shell a client of a cluster: eval "$(ftrun cluster env)"."""
    print(on_head_host.exports(_state(name).existing_plan()))


@app.command()
def logs(
    daemon: Annotated[str, argument("[DAEMON]", "slurmctld, slurmd, munged or start [default: all].")] = "",
    name: NameOption = "",
    lines: Annotated[int, option("--lines", "How many lines of each.", min=1)] = 20,
    as_json: Json = False,
) -> int:
    """Print the ends of the daemons' logs on all hosts."""
    answers = lifecycle.logs(_state(name).existing_plan(), daemon, lines)
    if as_json:
        common.print_json(
            {target: answer.done[0] if answer.ok else answer.failed for target, answer in answers.items()}
        )
        return 0
    for target, answer in answers.items():
        if not answer.ok:
            print(f"ftrun: {target}: {answer.failed}", file=sys.stderr)
        for file, text in (answer.done[0] if answer.ok else {}).items():
            print(f"==> {target} {file} <==\n{text}")
    return 0 if all(answer.ok for answer in answers.values()) else EXIT_FAILED


@app.command("list")
def list_clusters(as_json: Json = False) -> None:
    """List your clusters that were made from here."""
    plans = [plan for state in known() if (plan := state.plan()) is not None]
    if as_json:
        common.print_json(
            [
                {"name": plan.name, "hosts": [host.name for host in plan.hosts], "slurm": _version(plan)}
                for plan in plans
            ]
        )
        return
    common.print_table(
        ["NAME", "HOSTS", "SLURM"],
        [[plan.name, fold(host.name for host in plan.hosts), _version(plan)] for plan in plans],
    )


def _state(name: str) -> ClusterState:
    """The cluster that is meant: the one named, that of FTRUN_CLUSTER, the only one, or `default`."""
    if name or os.environ.get("FTRUN_CLUSTER"):
        return ClusterState(name or os.environ["FTRUN_CLUSTER"])
    there = known()
    return there[0] if len(there) == 1 else ClusterState(DEFAULT)


def _say(line: str) -> None:
    print(f"ftrun: {line} ...", file=sys.stderr, flush=True)


def _exec(plan: Plan, command: list[str]) -> None:
    if choice.is_here(plan):
        on_head_host.execute(command, dict(os.environ) | on_head_host.variables(plan, os.environ))
    last = shlex.join(command) if command else '"$SHELL"'
    script = f"{on_head_host.exports(plan)}\nexec {last}"
    host = on_head_host.controller_host(plan).target
    on_head_host.execute(on_head_host.ssh_words(host, f"exec /bin/sh -c {shlex.quote(script)}"), os.environ)


class _Progress:
    """A bar on a terminal while hosts answer; nothing elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, _host: str) -> None:
        """One host more has answered."""
        self._bar.advance(self._task)


def _show_survey(found: Survey) -> None:
    rows = [
        [
            target,
            one["host"],
            one["system"],
            one["arch"],
            one["cpus"],
            f"{one['memory_mib'] / 1024:.1f} GiB",
            ", ".join(f"{len(row['files'])} {row['kind']}" for row in one["gres"].values()) or None,
            one["python"],
            f"{one['clock_offset_s']:+.1f} s",
            one["slurm"]["version"] or None,
            one["cgroup"] or None,
        ]
        for target, one in found.facts.items()
    ]
    names = [
        "HOST",
        "NAME",
        "SYSTEM",
        "ARCH",
        "CPUS",
        "MEMORY",
        "ACCELERATORS",
        "PYTHON",
        "CLOCK",
        "SLURM",
        "CGROUP",
    ]
    common.print_table(names, rows)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in found.findings:
        alike.setdefault((one.level, one.topic, one.text), []).append(one.target)
    for (level, topic, text), targets in alike.items():
        print(f"{level}: {fold(targets)}: {topic}: {text}")


def _version(plan: Plan) -> str:
    return f"{plan.version[0]}.{plan.version[1]:02d}"


def _daemon(row: lifecycle.HostStatus, *names: str) -> str | None:
    """How long the daemon of one of these names lives there; None where none does."""
    one = next((row.daemons[name] for name in names if name in row.daemons), None)
    if one is None:
        return None
    return "frozen" if one["frozen"] else _duration(one["up_s"])


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _unkept(plan: Plan) -> Iterator[str]:
    """A line about the hosts that do not come back by themselves, if there are any."""
    if plan.unkept:
        names = fold(host.name for host in plan.unkept)
        yield f"note: {names}: neither systemd with linger nor cron: does not come back by itself after a reboot; {os.uname().nodename} starts what is dead there over SSH while it can"


def _cut(plan: Plan, rows: Sequence[lifecycle.HostStatus]) -> Iterator[str]:
    """A line about hosts whose removal was cut, if there are any."""
    drained = [row.host for row in rows if row.reason == membership.REMOVAL]
    if drained or plan.leaving:
        names = fold([*drained, *(host.name for host in plan.leaving)])
        back = f", `ftrun cluster resume {fold(drained)}` takes it back" if drained else ""
        yield f"note: {names}: its removal was cut: `ftrun cluster remove {names}` ends it{back}"


def _told(host: str, one: Mapping[str, Any]) -> str:
    """One line about what the keeper of a host did."""
    at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(one["at_s"]))
    if one["did"] == "left":
        return f"{at}  {host} left the cluster, by {one['by']}: {one['why']}"
    what = one["did"] if one["did"] in {"started", "ended"} else "did not start"
    return f"{at}  {host}: {one['by']} {what} {one['daemon']}: {one['why']}"
