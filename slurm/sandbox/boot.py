"""Starts the daemons of a sandbox, one by one. (I/O)

Every daemon gets a session of its own, no terminal and no pipe of ours: a sandbox outlives the terminal it
was started from, and whoever reads our output is not left waiting for a daemon to close it.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftrun.slurm.client.releases import since
from ftrun.slurm.cluster.conf import cgroup_conf_text
from ftrun.slurm.records import dataclass
from ftrun.slurm.sandbox import processes
from ftrun.slurm.sandbox.plan import Plan, SandboxError, gres_conf, hosts_file, slurm_conf

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
START_TIMEOUT_S = 60.0
# What the kernel calls /dev/null; a device of ours with these numbers is as harmless.
NULL_DEVICE = os.makedev(1, 3)
PACKAGES = {
    "munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sinfo": "slurm-wlm",
    "sshd": "openssh-server", "ssh-keygen": "openssh-client", "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-wlm", "mariadbd": "mariadb-server-core", "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}  # fmt: skip


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file of a sandbox with this mode, whatever the umask: daemons of root read it."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(number, "w", encoding="utf-8") as stream:
        os.fchmod(number, mode)
        stream.write(text)


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder of a sandbox with this mode, whatever the umask; folders above it can be written by this user alone."""
    if not path.parent.exists():
        make_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if is_foreign(path) or not path.is_dir():
            raise SandboxError(
                f"{path} may be another user's work: remove it, or choose another folder", wrong_usage=True
            ) from None
    path.chmod(mode)


def is_foreign(path: Path) -> bool:
    """Whether a file or folder of a sandbox may be the work of another user: not ours or root's, a link, or
    left to others to write. Root runs what the files of a sandbox say, so they are asked about before each
    use. A sticky folder is everybody's on purpose.
    """
    fact = path.lstat()
    by_all = bool(fact.st_mode & stat.S_IWOTH) and not fact.st_mode & stat.S_ISVTX
    by_group = bool(fact.st_mode & stat.S_IWGRP) and fact.st_gid not in (0, os.getegid())
    return stat.S_ISLNK(fact.st_mode) or fact.st_uid not in (os.geteuid(), 0) or by_all or by_group


def search_path() -> str:
    """PATH with the folders of daemons behind it: an ordinary user's PATH has no sbin."""
    own = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    return os.pathsep.join(own + [folder for folder in SBIN if folder not in own])


def find_tool(tool: str) -> str:
    """Absolute path of a program; SandboxError naming the package where it is missing."""
    path = shutil.which(tool, path=search_path())
    if path is None:
        require_tools((tool,))
    return str(path)


def require_tools(tools: Sequence[str]) -> None:
    """Raise one SandboxError that names everything to install."""
    missing = [tool for tool in tools if shutil.which(tool, path=search_path()) is None]
    if missing:
        packages = " ".join(dict.fromkeys(PACKAGES.get(tool, tool) for tool in missing))
        raise SandboxError(
            f"{', '.join(missing)} not found: install them, on Debian and Ubuntu: apt-get install --no-install-recommends {packages}",
            wrong_usage=True,
        )


def user_name() -> str:
    """Name of the user we run as; Slurm and munge need an entry in passwd."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise SandboxError(
            f"user id {os.geteuid()} has no entry in passwd: Slurm refuses to run as it", wrong_usage=True
        ) from None


def slurm_version() -> tuple[int, int]:
    """(major, minor) of the slurmd that will run, from `slurmd -V`."""
    answer = subprocess.run(
        [find_tool("slurmd"), "-V"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
    )
    match = re.search(r"(\d+)\.(\d+)", answer.stdout)
    if match is None:
        raise SandboxError(f"slurmd -V says {answer.stdout.strip()!r}: no version in it")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class Names:
    """What a machine allows nodes: host names, resolving them, a UTS namespace; `refused`: why not all."""

    named: bool
    resolved: bool
    marked: bool
    refused: str


NOT_ASKED_FOR = Names(named=False, resolved=False, marked=False, refused="not asked for")


def node_wrapper(plan: Plan, node: str) -> list[str]:
    """The words before a command that let it run under a node's own name; none where that is refused. A UTS
    namespace gives the host name, and marks whatever the node's processes leave behind. A mount namespace
    with an /etc/hosts of the sandbox's own lets every node resolve every other: training scripts meet at the
    first node's name, and newer slurmctlds answer an srun by the name of the host it runs on (24.11 stands
    still for 10 s when it cannot). Where nobody could resolve the name, there is the mark alone. Memory of a
    node's own is a tmpfs in that mount namespace: gone with the last process of the node, as it is gone when
    a machine loses power.
    """
    if not plan.marked:
        return []
    hosts, name = plan.hosts_path if plan.hosts else None, node if plan.uts else None
    if plan.shm_mib and os.geteuid() == 0:
        found = [process for process in processes.members(plan).nodes[node] if process.state != "Z"]
        # A daemon has left its parent behind; one that has not is about to, or lives as long as a moment.
        living = [process.pid for process in found if process.ppid == 1] or [process.pid for process in found]
        if living:  # whatever joins a node finds the memory that the node has
            return ["nsenter", "--mount", "--uts", f"--target={min(living)}", "--"]
    folders = plan.munged_folders
    munge = (folders.get(f"munged-{node}", ""), folders["munged"])
    return _namespaces(hosts, name, uts=True, shm_mib=plan.shm_mib, munge=munge)


def controller_wrapper(plan: Plan) -> list[str]:
    """The words before slurmctld that let it resolve the nodes' names."""
    return _namespaces(plan.hosts_path, None, uts=False) if plan.hosts else []


def own_names(version: tuple[int, int]) -> Names:
    """What this machine allows the nodes of a Slurm of that version. Starts a few short processes."""
    probe = "ftrun-probe"
    refused = _probe(_namespaces("/etc/hosts", probe, uts=True), probe)
    if not refused:
        return Names(named=True, resolved=True, marked=True, refused="")
    # 22.05 answers an srun on the address it called from, and is content with names that nobody resolves.
    if not since("hosts-by-name", version) and not _probe(_namespaces(None, probe, uts=True), probe):
        return Names(named=True, resolved=False, marked=True, refused="")
    marked = not _probe(_namespaces(None, None, uts=True), "")
    return Names(named=False, resolved=False, marked=marked, refused=refused)


def require_own_memory(plan: Plan) -> None:
    """Raise SandboxError where nodes cannot have a /dev/shm of their own."""
    refused = plan.uts_refused or _probe(_namespaces(None, None, uts=True, shm_mib=1), "")
    if refused or not plan.marked:
        raise SandboxError(f"nodes cannot have a /dev/shm of their own here: {refused or 'no namespaces'}")
    if plan.ssh and os.geteuid():
        raise SandboxError(
            "only root can give nodes both an sshd and a /dev/shm of their own: ask for one of them",
            wrong_usage=True,
        )


def _namespaces(
    hosts: str | None, node: str | None, *, uts: bool, shm_mib: int = 0, munge: tuple[str, str] = ("", "")
) -> list[str]:
    # An ordinary user is root in a namespace of its own for as long as this takes, and itself again after.
    ordinary = os.geteuid() != 0
    unshare = ["unshare", *(["--map-root-user"] if ordinary else []), *(["--uts"] if uts else [])]
    script = ""
    if hosts or shm_mib or munge[0]:
        unshare += ["--mount", "--propagation", "slave"]
    if shm_mib:
        script += f"mount -t tmpfs -o mode=1777,nosuid,nodev,size={shm_mib}m ftrun-sandbox /dev/shm && "
    if munge[0]:  # paths of sandboxes need no quotes: slurm.conf could not hold one that does
        script += f"mount --bind {munge[0]} {munge[1]} && "
    if hosts:
        script += 'mount --bind "$0" /etc/hosts && '
    if node:
        script += 'hostname "$1" && '
    back = f"unshare --user --map-user={os.geteuid()} --map-group={os.getegid()} " if ordinary else ""
    return [*unshare, "sh", "-c", f'{script}shift && exec {back}"$@"', hosts or "sh", node or "-"]


def _probe(wrapper: list[str], name: str) -> str:
    """Why a program behind the wrapper does not run under that host name (any, where it is ""); "" if it does."""
    try:
        answer = subprocess.run(
            [*wrapper, "hostname"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            env=_environment(None),
        )
    except FileNotFoundError:
        return "there is no unshare (package util-linux)"
    if answer.returncode == 0 and answer.stdout.strip().endswith(name):
        return ""
    return (answer.stderr.strip() or "unshare is refused").splitlines()[-1]


def gpu_files(folder: Path, count: int) -> tuple[str, bool]:
    """Make or choose `count` device files to stand for GPUs. Returns the File= expression and whether Slurm
    will number them (CUDA_VISIBLE_DEVICES is set), which it does for character devices only: this machine's GPUs
    where it has so many (all nodes share them), else nodes of our own where we may make them, else the consoles, which
    Slurm only looks at and never opens.
    """
    if all(Path(f"/dev/nvidia{index}").is_char_device() for index in range(count)):
        return f"/dev/nvidia{f'[0-{count - 1}]' if count > 1 else '0'}", True
    devices = folder / "dev"
    shutil.rmtree(devices, ignore_errors=True)
    make_folder(devices)
    span = f"[0-{count - 1}]" if count > 1 else "0"
    try:
        for index in range(count):
            os.mknod(devices / f"gpu{index}", 0o20666, NULL_DEVICE)
            (devices / f"gpu{index}").chmod(0o666)
        return f"{devices}/gpu{span}", True
    except PermissionError:
        pass
    if all(Path(f"/dev/tty{index}").is_char_device() for index in range(count)):
        return f"/dev/tty{span}", True
    for index in range(count):
        put(devices / f"gpu{index}", "")
    return f"{devices}/gpu{span}", False


def make_folders(plan: Plan) -> None:
    """Make the folders and write the configuration; everything but keys is readable for all."""
    munge = [Path(folder).name for folder in plan.munged_folders.values()]
    for base, names in ((plan.folder, ("log", "shared")), (plan.run_dir, ("run", "state", "spool", *munge))):
        for name in names:
            make_folder(Path(base) / name, 0o1777 if name == "shared" else 0o755)
    folder = Path(plan.folder)
    for name, text in (
        ("slurm.conf", slurm_conf(plan)),
        ("gres.conf", gres_conf(plan)),
        ("cgroup.conf", cgroup_conf_text(plan.version)),
        *([("topology.conf", plan.topology)] if plan.topology else []),
        ("hosts", hosts_file(plan, _machine_hosts())),
    ):
        put(folder / name, text)


def _machine_hosts() -> str:
    try:
        return Path("/etc/hosts").read_text()
    except OSError:
        return "127.0.0.1 localhost\n"


def start_munged(plan: Plan, name: str = "munged") -> None:
    """Start the munged of the sandbox, or that of a node (`munged-n0`), with the key of this sandbox's own."""
    run_dir = Path(plan.run_dir) / "run"
    key = run_dir / "munge.key"
    if not key.exists():
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(1024))
    start_daemon(
        plan,
        [
            find_tool("munged"),
            f"--socket={plan.munged_folders[name]}/munge.sock",
            f"--key-file={key}",
            f"--pid-file={run_dir}/{name}.pid",
            f"--seed-file={run_dir}/{name}.seed",
            f"--log-file={plan.folder}/log/{name}.log",
            # A folder under a home that is closed to others is our user's own choice.
            "--force",
        ],
        f"{plan.folder}/log/{name}.log",
    )


def start_slurmctld(plan: Plan) -> None:
    """Start slurmctld; it goes on from its saved state where there is one."""
    command = [*controller_wrapper(plan), find_tool("slurmctld"), "-f", plan.slurm_conf_path]
    start_daemon(plan, command, f"{plan.folder}/log/slurmctld.log")


def start_slurmd(plan: Plan, node: str) -> None:
    """Start the slurmd of one node under the node's own host name where the machine allows it."""
    wrapper, slurmd = node_wrapper(plan, node), find_tool("slurmd")
    beside = Path(slurmd).with_name("slurmstepd")  # an unpacked Slurm does not lie where it was built for
    stepd = ["-d", str(beside)] if beside.exists() else []
    # Its steps inherit the node's name: a step that was just started and has not yet opened its log, and whose
    # slurmd died meanwhile, can be told by nothing else.
    start_daemon(
        plan,
        [*wrapper, slurmd, "-f", plan.slurm_conf_path, "-N", node, *stepd],
        plan.slurmd_log(node),
        more={"SLURMD_NODENAME": node},
    )


def start_daemon(
    plan: Plan,
    command: Sequence[str],
    log: str,
    *,
    detach: bool = False,
    more: Mapping[str, str] | None = None,
) -> None:
    """Run a daemon's start command, with `more` in its environment, and wait until it has gone to the
    background. `detach` is for a program that stays in the foreground: it is left running. SandboxError with
    the last line that the daemon said or logged when it refuses.
    """
    said = Path(plan.folder) / "log" / "start.log"
    with open(said, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        before = output.tell()
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=plan.folder,
            env=_environment(plan) | dict(more or {}),
            start_new_session=True,
            umask=0o022,
        )
        if detach:
            # Popen complains about children it never waited for; this one is meant to outlive us.
            process.returncode = 0
            return
        try:
            exit_code = process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            exit_code = -1
    if exit_code:
        daemon = next((Path(word).name for word in command if "sbin/" in word), Path(command[0]).name)
        reason = last_lines(said, before) or last_lines(Path(log), 0) or f"exit code {exit_code}"
        raise SandboxError(f"{daemon} did not start: {reason} (log: {log})")


def last_lines(path: Path, offset: int) -> str:
    """The last words of a daemon's log behind `offset`; "" where it cannot be read."""
    # Two lines: Slurm's last line says that it gives up, the one before says why.
    try:
        text = path.read_bytes()[offset:].decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:])


def _environment(plan: Plan | None) -> dict[str, str]:
    # Not the caller's: what a daemon inherits, prologs and steps inherit from it.
    kept = {
        key: value
        for key, value in os.environ.items()
        if key in ("HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
    }
    kept |= {"PATH": search_path(), "USER": user_name()}
    if plan is not None:
        kept["SLURM_CONF"] = plan.slurm_conf_path
    return kept
