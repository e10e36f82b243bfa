"""`ftrun sandbox`: a disposable real Slurm on this machine, to try things and to break nodes. (I/O)"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.sandbox import lifecycle
from ftrun.slurm.sandbox.handle import Sandbox, SandboxStatus
from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.model.errors import EXIT_USAGE, UserError

app = typer.Typer(
    help="A disposable real Slurm on this machine: try things, break nodes.", no_args_is_help=True
)

EXIT_FAILED = 1

NameOption = Annotated[
    str | None, option("--name", "Which sandbox [default: the folder in FTRUN_SANDBOX, else `default`].")
]
FolderOption = Annotated[Path | None, option("--folder", "The folder of a sandbox without a name.")]
NodeArgument = Annotated[str, argument("NODE", "A node: n0, n1, ...")]


@app.command()
def up(  # noqa: PLR0917 - options, never positions
    name: NameOption = None,
    folder: FolderOption = None,
    nodes: Annotated[int, option("--nodes", "How many nodes.")] = 4,
    gpus: Annotated[int, option("--gpus", "GPUs that each node shows to Slurm (none need to exist).")] = 0,
    ssh: Annotated[bool, option("--ssh", "Run an sshd on every node.")] = False,
    accounting: Annotated[bool, option("--accounting", "Run slurmdbd and a MariaDB.")] = False,
    shm: Annotated[int, option("--shm", "Give every node its own /dev/shm of this size.", "MIB")] = 0,
    as_json: Json = False,
) -> None:
    """Start a sandbox; return when all nodes are idle."""
    with _as_user_errors():
        where = _folder(name, folder)
        box = _living(where)
        if box is None:
            line = f"sandbox {name or where.name}: starting munged, slurmctld and {nodes} slurmd ..."
            start_s = time.monotonic()
            box = lifecycle.up(
                where,
                nodes=nodes,
                gpus=gpus,
                ssh=ssh,
                accounting=accounting,
                shm_mib=shm,
                name=name,
                on_start=lambda: print(line, file=sys.stderr, flush=True),
            )
            headline = f"sandbox {box.name} is up after {time.monotonic() - start_s:.1f} s"
        else:
            headline = f"sandbox {box.name} is up already"
        if as_json:
            common.print_json(box.status())
        else:
            _introduce(box, headline, name, folder)


@app.command()
def status(name: NameOption = None, folder: FolderOption = None, as_json: Json = False) -> int:
    """Show the daemons and nodes of a sandbox; exit 1 if it is not up."""
    with _as_user_errors():
        found = lifecycle.find(_folder(name, folder)).status()
    if as_json:
        common.print_json(found)
    else:
        _show(found)
    return 0 if found.alive else EXIT_FAILED


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], argument("-- CMD [ARGS]...", "The command and its arguments.")],
    name: NameOption = None,
    folder: FolderOption = None,
) -> None:
    """Run a command as a client of a sandbox, with its SLURM_CONF; exit with the status of the command."""
    with _as_user_errors():
        box = _living_or_error(name, folder)
    _exec(box, command)


@app.command()
def shell(name: NameOption = None, folder: FolderOption = None) -> None:
    """Open your shell as a client of a sandbox."""
    with _as_user_errors():
        box = _living_or_error(name, folder)
    program = os.environ.get("SHELL") or "/bin/sh"
    if Path(program).name != "bash":
        _exec(box, [program])
    # A prompt from the environment would not survive the user's own bashrc.
    rc = box.folder / "bashrc"
    rc.write_text(f'[ -r ~/.bashrc ] && . ~/.bashrc\nPS1="(sandbox {box.name}) $PS1"\n')
    _exec(box, [program, "--rcfile", str(rc), "-i"])


@app.command()
def down(
    name: NameOption = None,
    folder: FolderOption = None,
    everything: Annotated[bool, option("--all", "All named sandboxes.")] = False,
) -> None:
    """Stop a sandbox with all its processes; its logs and the shared folder stay."""
    with _as_user_errors():
        if everything and (name or folder):
            raise UserError("--all means every sandbox: give no --name or --folder with it")
        boxes = lifecycle.known() if everything else [lifecycle.find(_folder(name, folder))]
        for box in boxes:
            ended = box.down()
            print(f"sandbox {box.name} is down: {ended} processes ended, logs in {box.log}")


@app.command("break")
def break_node(
    node: NodeArgument,
    how: Annotated[str, option("--how", "crash, freeze, slurmd (only its slurmd dies) or drain.")] = "crash",
    name: NameOption = None,
    folder: FolderOption = None,
) -> None:
    """Break a node."""
    with _as_user_errors():
        box = _living_or_error(name, folder)
        box.break_node(node, how)
    done = {
        "crash": "has crashed",
        "freeze": "is frozen",
        "slurmd": "has lost its slurmd",
        "drain": "is drained",
    }
    print(f"{node} {done[how]}; `ftrun sandbox mend {node}` undoes it")


@app.command()
def mend(node: NodeArgument, name: NameOption = None, folder: FolderOption = None) -> None:
    """Undo what `break` did to a node; return when Slurm uses it again."""
    with _as_user_errors():
        box = _living_or_error(name, folder)
        box.mend(node)
        print(f"{node} is {box.node_state(node)}")


@app.command("list")
def list_sandboxes(as_json: Json = False) -> None:
    """List the named sandboxes."""
    with _as_user_errors():
        found = [box.status() for box in lifecycle.known()]
    if as_json:
        common.print_json(found)
        return
    rows = [
        [one.name, "up" if one.alive else "down", len(one.nodes), one.slurm_version, one.folder]
        for one in found
    ]
    common.print_table(["NAME", "STATE", "NODES", "SLURM", "FOLDER"], rows)


@contextlib.contextmanager
def _as_user_errors() -> Iterator[None]:
    try:
        yield
    except SandboxError as error:
        raise UserError(str(error), EXIT_USAGE if error.wrong_usage else EXIT_FAILED) from error


def _folder(name: str | None, folder: Path | None) -> Path:
    if name and folder:
        raise UserError("give --name or --folder, not both")
    if name is not None and (not name or "/" in name or name.startswith(".")):
        raise UserError(f"{name!r} is no name for a sandbox: use --folder for a path")
    return folder.absolute() if folder else lifecycle.folder_of(name)


def _living(folder: Path) -> Sandbox | None:
    if not (folder / "sandbox.json").exists():
        return None
    box = lifecycle.find(folder)
    return box if box.status().alive else None


def _living_or_error(name: str | None, folder: Path | None) -> Sandbox:
    box = lifecycle.find(_folder(name, folder))
    if not box.status().alive:
        raise SandboxError(
            f"sandbox {box.name} is not up: `ftrun sandbox up` starts it afresh", wrong_usage=True
        )
    return box


def _exec(box: Sandbox, command: list[str]) -> None:
    # exec, not a child: the command owns the terminal, the signals and the exit status.
    environment = box.env() | {"FTRUN_SANDBOX": str(box.folder)}
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise UserError(f"{command[0]}: command not found", 127)
    sys.stdout.flush()
    try:
        os.execve(program, command, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise UserError(f"{program}: {error.strerror}", 126) from error


def _introduce(box: Sandbox, headline: str, name: str | None, folder: Path | None) -> None:
    plan = box.plan
    gpus = f" with {plan.gpus} GPUs each" if plan.gpus else ""
    print(
        f"{headline}: {counted(plan.node_count, 'node')}{gpus}, Slurm {plan.version[0]}.{plan.version[1]:02d}, in {box.folder}"
    )
    if not plan.uts:
        print(
            f"  `hostname` on a node prints this machine's name: nodes cannot have host names of their own here ({plan.uts_refused})"
        )
    if plan.gpus and not plan.gpu_numbered:
        print(
            "  jobs get GPUs but no CUDA_VISIBLE_DEVICES: this machine has no character devices that could stand for them"
        )
    if box.ssh_config:
        print(f"  ssh -F {box.ssh_config} n0")
    which = f" --name {name}" if name else f" --folder {folder}" if folder else ""
    print(f"  ftrun sandbox run{which} -- sinfo")


def _show(found: SandboxStatus) -> None:
    print(
        f"sandbox {found.name}: {'up' if found.alive else 'down'}, Slurm {found.slurm_version}, {found.folder}"
    )
    daemon_of = {daemon.name: daemon.state for daemon in found.daemons}
    others = [[one.name, one.state, one.pid] for one in found.daemons if "-" not in one.name]
    common.print_table(["DAEMON", "STATE", "PID"], others)
    rows = [
        [
            one.name,
            one.state,
            daemon_of[f"slurmd-{one.name}"],
            daemon_of.get(f"sshd-{one.name}"),
            one.reason or None,
        ]
        for one in found.nodes
    ]
    common.print_table(["NODE", "SLURM", "SLURMD", "SSHD", "REASON"], rows)
