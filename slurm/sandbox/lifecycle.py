"""A disposable real Slurm on one machine: munged, slurmctld and N slurmd in one folder. (I/O)

Nothing outside the folder is touched, except a short folder for sockets in the temporary folder where the
path would be too long for them. Works as root (jobs run as the user who submitted them) and as an ordinary
user (every job runs as that user). Several sandboxes live side by side. Nodes can be hurt on demand.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ftrun.slurm.records import replace
from ftrun.slurm.sandbox import accounting as sandbox_accounting
from ftrun.slurm.sandbox import boot, sshd
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.plan import NODES_MAX, RUN_DIR_LENGTH_MAX, Plan, SandboxError, usable_folder
from ftrun.slurm.sandbox.ports import port_range, user_lock


def up(  # noqa: PLR0917 - all but the folder are given by name
    folder: Path,
    nodes: int = 4,
    gpus: int = 0,
    ssh: bool = False,
    accounting: bool = False,
    shm_mib: int = 0,
    topology: str = "",
    slurmd_timeout_s: int = 10,
    conf: Mapping[str, str] | None = None,
    base_port: int | None = None,
    uts: bool = True,
    name: str | None = None,
    on_start: Callable[[], None] | None = None,
) -> Sandbox:
    """Bring a sandbox up in a folder of its own and return when all nodes are idle. `gpus` is per node;
    `conf` overrides slurm.conf (see `slurm_conf`); with `uts=False` no host names of nodes are attempted.
    With `shm_mib` every node has a /dev/shm of its own, so large, which is gone when the node crashes.
    `topology` is the text of topology.conf. A
    living sandbox with the same nodes in that folder is returned as it is; a dead one is cleaned up first.
    `on_start` is called once all checks have passed and daemons are about to start. Raises SandboxError: what
    is missing and what to install, or what went wrong.
    """
    folder = Path(folder).absolute()
    usable_folder(folder)
    if not 1 <= nodes <= NODES_MAX or not 0 <= gpus <= 64:
        raise SandboxError(f"nodes must be 1 to {NODES_MAX} and gpus 0 to 64", wrong_usage=True)
    tools = ["munged", "slurmctld", "slurmd", "sinfo"]
    tools += ["sshd", "ssh-keygen"] if ssh else []
    tools += sandbox_accounting.TOOLS if accounting else ()
    boot.require_tools(tools)
    with _folder_lock(folder):
        living = _take_over(folder, nodes, gpus)
        if living is not None:
            return living
        if on_start is not None:
            on_start()
        draft = Plan(
            name=name or folder.name,
            folder=str(folder),
            run_dir=str(folder),
            user=boot.user_name(),
            host=socket.gethostname().split(".")[0],
            node_count=nodes,
            base_port=0,
            version=boot.slurm_version(),
            gpus=gpus,
            ssh=ssh,
            accounting=accounting,
            shm_mib=shm_mib,
            topology=topology,
            slurmd_timeout_s=slurmd_timeout_s,
            conf=dict(conf or {}),
        )
        return _boot(draft, base_port, uts)


def _boot(plan: Plan, base_port: int | None, uts: bool) -> Sandbox:
    names = boot.own_names(plan.version) if uts else boot.NOT_ASKED_FOR
    plan = replace(
        plan, uts=names.named, hosts=names.resolved, marked=names.marked, uts_refused=names.refused
    )
    if plan.shm_mib:
        boot.require_own_memory(plan)
    try:
        # Until every daemon is seen to have its port no other sandbox of this user may choose ports.
        with user_lock():
            plan = replace(plan, base_port=port_range(plan.port_count, base_port))
            plan = replace(plan, run_dir=_run_dir(Path(plan.folder)))
            if plan.gpus:
                files, numbered = boot.gpu_files(Path(plan.folder), plan.gpus)
                plan = replace(plan, gpu_files=files, gpu_numbered=numbered)
            boot.put(Path(plan.folder) / "sandbox.json", plan.to_json())
            plan = _start(plan)
    except BaseException:
        # Also when interrupted: half a sandbox is of no use to anybody.
        Sandbox(plan).down()
        raise
    return Sandbox(plan)


def _start(plan: Plan) -> Plan:
    boot.make_folders(plan)
    boot.start_munged(plan)
    if plan.accounting:
        sandbox_accounting.start(plan)
    box = Sandbox(plan)
    box.start_controller()
    if plan.node_count > 1 and not box.has_multiple_slurmd():
        plan = _restart_with_own_hosts(box)
    for node in plan.node_names:
        boot.start_slurmd(plan, node)
    if plan.ssh:
        sshd.prepare(plan)
        for node in plan.node_names:
            sshd.start(plan, node)
    _wait_ready(Sandbox(plan))
    return plan


def _restart_with_own_hosts(box: Sandbox) -> Plan:
    """The plan by which each node has a host name and a munged of its own; slurmctld runs by it. SandboxError where names are refused."""
    plan = replace(box.plan, multiple_slurmd=False)
    if not (plan.uts and plan.hosts):
        raise SandboxError(
            "this Slurm was built without --enable-multiple-slurmd, and its nodes cannot have host names of their own here"
            f" ({plan.uts_refused or 'no namespaces'}): ask for --nodes 1, or install a Slurm that has it (Debian's does)",
            wrong_usage=True,
        )
    box.kill_controller()
    shutil.rmtree(Path(plan.run_dir) / "state")  # it tells of nodes by the other names
    boot.put(Path(plan.folder) / "sandbox.json", plan.to_json())
    boot.make_folders(plan)
    Sandbox(plan).start_controller()
    return plan


def _wait_ready(box: Sandbox) -> None:
    deadline = time.monotonic() + 90.0 + 0.5 * len(box.node_names)
    while True:
        status = box.status()
        dead = [daemon.name for daemon in status.daemons if daemon.state == "dead"]
        waiting = [node for node in status.nodes if node.state != "idle"]
        # sinfo alone may say idle for a slurmd that could not bind its port and is gone.
        if not dead and not waiting:
            return
        if time.monotonic() > deadline:
            missing = ", ".join(
                [
                    *(f"{name} is dead" for name in dead),
                    *(f"{node.name} is {node.state}" for node in waiting),
                ][:4]
            )
            raise SandboxError(f"the sandbox did not come up: {missing} (logs: {box.log})")
        time.sleep(0.05)


def _take_over(folder: Path, nodes: int, gpus: int) -> Sandbox | None:
    """The living sandbox of the folder if it is the one asked for; otherwise make the folder fit to start in."""
    if not (folder / "sandbox.json").exists():
        # Whoever was killed before the plan was written leaves these two at most.
        if any(entry.name not in {".lock", "dev"} for entry in folder.iterdir()):
            raise SandboxError(
                f"{folder} is not empty and no sandbox: choose another folder", wrong_usage=True
            )
        return None
    box = Sandbox.load(folder)
    if not box.status().alive:
        box.down()
        # What the dead one logged would read as the new one's doings.
        shutil.rmtree(box.log, ignore_errors=True)
        return None
    if (box.plan.node_count, box.plan.gpus) != (nodes, gpus):
        raise SandboxError(
            f"a sandbox with {box.plan.node_count} nodes of {box.plan.gpus} GPUs is up in {folder}: take it down first",
            wrong_usage=True,
        )
    return box


def _run_dir(folder: Path) -> str:
    if len(str(folder)) <= RUN_DIR_LENGTH_MAX:
        return str(folder)
    run_dir = Path(tempfile.mkdtemp(prefix="ftrun-sandbox-"))
    run_dir.chmod(0o755)
    return str(run_dir)


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    try:
        boot.make_folder(folder)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SandboxError(f"cannot write into {folder}: {error.strerror}", wrong_usage=True) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def default_root() -> Path:
    """Where named sandboxes live: ${XDG_STATE_HOME:-~/.local/state}/ftrun/sandbox."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "ftrun" / "sandbox"


def folder_of(name_or_folder: str | Path | None = None) -> Path:
    """The folder that a name, a path or nothing stands for; nothing is $FTRUN_SANDBOX, else `default`."""
    if name_or_folder is None:
        return (
            Path(os.environ["FTRUN_SANDBOX"])
            if os.environ.get("FTRUN_SANDBOX")
            else default_root() / "default"
        )
    if isinstance(name_or_folder, Path) or "/" in name_or_folder:
        return Path(name_or_folder).absolute()
    return default_root() / name_or_folder


def find(name_or_folder: str | Path | None = None) -> Sandbox:
    """The sandbox of that name or folder, alive or dead. SandboxError where there is none."""
    return Sandbox.load(folder_of(name_or_folder))


def known() -> list[Sandbox]:
    """The named sandboxes of this user, alive or dead, by name."""
    return [Sandbox.load(path.parent) for path in sorted(default_root().glob("*/sandbox.json"))]
