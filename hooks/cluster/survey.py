"""The survey of one host: what it is, and all that decides whether a private Slurm can live on it. (I/O)

Facts only; `supervisor/cluster/findings.py` says what follows from them. Nothing is changed, and each question has a time limit.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
import time
from typing import Any, Optional

from ftrun.hooks.cluster import claim, reach
from ftrun.hooks.runtime.mounts import mount_of, parse_mounts

SLURM_PROGRAMS = (
    "slurmctld",
    "slurmd",
    "slurmstepd",
    "munged",
    "srun",
    "sbatch",
    "scontrol",
    "sinfo",
    "squeue",
    "scancel",
    "salloc",
    "sattach",
    "sbcast",
    "sacct",
    "sacctmgr",
    "sdiag",
    "sprio",
    "sreport",
    "sshare",
    "sstat",
    "strigger",
    "munge",
    "unmunge",
)
DAEMONS = ("slurmctld", "slurmd", "slurmstepd", "munged")
SBIN = (
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/opt/slurm/sbin",
    "/opt/slurm/bin",
)
ASK_S = 5.0
AMD_DRIVERS = frozenset({"amdgpu"})


def survey(step: dict[str, Any]) -> dict[str, Any]:
    """All facts of this host by name, with the kind of folder that `share` is. A fact that cannot be had is "" or 0 or None."""
    user, nodename = _user(), os.uname().nodename
    gres = accelerators()
    return {
        "host": nodename.partition(".")[0],
        "system": _system(),
        "arch": os.uname().machine,
        "kernel": os.uname().release,
        "boot_id": _line("/proc/sys/kernel/random/boot_id"),
        "up_s": float((_line("/proc/uptime") or "0").split()[0]),
        "cpus": os.cpu_count() or 1,
        "topology": _topology(),
        "memory_mib": _memory_mib(),
        "gres": gres,
        "holders": _holders([path for row in gres.values() for path in row["files"]]),
        "models": _models(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "subreaper": _has_ctypes(),
        "user": user,
        "uid": os.geteuid(),
        "gid": os.getegid(),
        "home": os.path.expanduser("~"),
        "addresses": addresses(),
        "called_at": [*os.environ.get("SSH_CONNECTION", "").split(), "", "", ""][2],
        "own_name": reach.resolved(nodename),
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "cgroup": _cgroup(),
        "user_namespaces": _works(["unshare", "--user", "--map-root-user", "true"]),
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "fusermount3": _fusermount3(),
        "sshfs": shutil.which("sshfs", path=search_path()) or "",
        "sshd": shutil.which("sshd", path=search_path()) or "",
        "share": kind_of_folder(step["share"]) if step.get("share") else "",
        "shared_kind": _file_system(step.get("shared") or os.path.expanduser("~")),
        "cron": bool(shutil.which("crontab", path=search_path())),
        "systemd": os.path.isdir("/run/systemd/system"),
        "linger": os.path.exists(f"/var/lib/systemd/linger/{user}"),
        "dies_at_logout": _dies_at_logout(),
        "sudo": os.geteuid() == 0 or _works(["sudo", "-n", "true"]),
        "slurm": slurm(),
        "var_tmp_free_mib": free_mib("/var/tmp"),  # noqa: S108
        "claim": claim.held(),
        "clock_s": time.time(),
    }


def slurm() -> dict[str, Any]:
    """The installed Slurm: "version" as slurmd tells it ("" without one), "programs" (name -> path, of those that are there)."""
    programs = {name: found for name in SLURM_PROGRAMS if (found := shutil.which(name, path=search_path()))}
    said = _output([programs["slurmd"], "-V"]) if "slurmd" in programs else ""
    version = re.search(r"\d+\.\d+[\w.-]*", said)
    return {"version": version[0] if version else "", "programs": programs}


def accelerators() -> dict[str, dict[str, Any]]:
    """Name of each GRES -> {"kind", "files": its device files} of the accelerators that this host has now."""
    found: dict[str, dict[str, Any]] = {}
    nvidia = _numbered("/dev/nvidia[0-9]*")
    amd = [path for path in _numbered("/dev/dri/render*") if _driver(path) in AMD_DRIVERS]
    ascend = _numbered("/dev/davinci[0-9]*")
    if nvidia or amd:
        found["gpu"] = {"kind": "nvidia" if nvidia else "amd", "files": nvidia or amd}
    if ascend:
        found["npu"] = {"kind": "ascend", "files": ascend}
    return found


def addresses() -> list[str]:
    """The IPv4 addresses of this host, without those of the loopback, in the order of the kernel's table."""
    found: list[str] = []
    address = ""
    for line in _text("/proc/net/fib_trie").splitlines():
        if match := re.search(r"\|-- (\S+)$", line):
            address = match[1]
        elif "/32 host LOCAL" in line and not address.startswith("127.") and address not in found:
            found.append(address)
    return found


def _holders(paths: list[str]) -> dict[str, list[str]]:
    """Device file -> the processes that have it open, `name (pid)`, of those that this user may look at."""
    found: dict[str, list[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc") if paths else []):
        with contextlib.suppress(OSError):
            links = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
            for path in links.intersection(paths):
                found.setdefault(path, []).append(f"{_line(f'/proc/{pid}/comm')} ({pid})")
    return found


def _numbered(pattern: str) -> list[str]:
    """The character devices of a pattern, by number."""
    paths = [path for path in glob.glob(pattern) if re.search(r"\d+$", path) and _is_device(path)]
    return sorted(paths, key=lambda path: int(re.findall(r"\d+$", path)[0]))


def _is_device(path: str) -> bool:
    import stat

    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _driver(path: str) -> str:
    return os.path.basename(os.path.realpath(f"/sys/class/drm/{os.path.basename(path)}/device/driver"))


def _models() -> list[str]:
    """The names of the NVIDIA GPUs, by their driver's files: no tool that could hang is asked."""
    paths = sorted(glob.glob("/proc/driver/nvidia/gpus/*/information"))
    return [
        one.strip() for path in paths for one in re.findall(r"^Model:\s*(.+)$", _text(path), re.MULTILINE)
    ]


def _topology() -> list[int]:
    """Sockets, cores of a socket, threads of a core; [1, cpus, 1] where the kernel does not tell."""
    cpus = os.cpu_count() or 1
    packages, cores = set(), set()
    for path in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology"):
        package = _line(f"{path}/physical_package_id")
        packages.add(package)
        cores.add((package, _line(f"{path}/core_id")))
    if packages and len(cores) % len(packages) == 0 and cpus % len(cores) == 0:
        return [len(packages), len(cores) // len(packages), cpus // len(cores)]
    return [1, cpus, 1]


def _memory_mib() -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) // 1024 if found else 0


def _system() -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text("/etc/os-release"), re.MULTILINE)
    return found[1] if found else "Linux"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def _has_ctypes() -> bool:
    """Whether a step can be made to adopt the orphans of its tasks here."""
    return _works([sys.executable, "-IS", "-c", "import ctypes; ctypes.CDLL(None).prctl"])


def _limit(which: int) -> int:
    """The hard limit; -1 for none."""
    return resource.getrlimit(which)[1]


def _cgroup() -> str:
    """v1, hybrid, v2, "v2 delegated" or ""."""
    kinds = {(mount.target, mount.kind) for mount in parse_mounts(_text("/proc/self/mounts"))}
    if ("/sys/fs/cgroup", "cgroup2") in kinds:
        own = re.search(r"^0::(.*)$", _text("/proc/self/cgroup"), re.MULTILINE)
        is_ours = own is not None and os.access(f"/sys/fs/cgroup{own[1]}/cgroup.procs", os.W_OK)
        return "v2 delegated" if is_ours else "v2"
    if any(kind == "cgroup2" for _, kind in kinds):
        return "hybrid" if any(kind == "cgroup" for _, kind in kinds) else "v2"
    return "v1" if any(kind == "cgroup" for _, kind in kinds) else ""


def _file_system(path: str) -> str:
    """The kind of the file system in which a path lies; "" where nothing tells."""
    found = mount_of(parse_mounts(_text("/proc/self/mounts")), path)
    return found.kind if found else ""


def _dies_at_logout() -> bool:
    for path in ("/etc/systemd/logind.conf", *sorted(glob.glob("/etc/systemd/logind.conf.d/*.conf"))):
        if re.search(r"^\s*KillUserProcesses\s*=\s*yes", _text(path), re.MULTILINE):
            return os.path.isdir("/run/systemd/system")
    return False


def free_mib(folder: str) -> int:
    """How many MiB an ordinary user can write there; 0 where nothing tells."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize >> 20


def _works(command: list[str]) -> bool:
    done = _run(command)
    return done is not None and done.returncode == 0


def _output(command: list[str]) -> str:
    done = _run(command)
    return done.stdout.decode("utf-8", "replace") if done is not None else ""


def _run(command: list[str]) -> Optional[subprocess.CompletedProcess[bytes]]:
    """None where it cannot be started or does not end in time."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=False,
        )
    return None


def kind_of_folder(path: str) -> str:
    """absent, empty, full (a folder with something in it), closed (nothing of it can be read) or taken (no folder)."""
    try:
        return "full" if os.listdir(path) else "empty"
    except FileNotFoundError:
        return "absent"
    except NotADirectoryError:
        return "taken"
    except OSError:
        return "closed"


def _fusermount3() -> str:
    """The program that mounts for an ordinary user; "" where it has not the rights for that."""
    import stat

    path = shutil.which("fusermount3", path=search_path())
    return path if path and (os.geteuid() == 0 or os.stat(path).st_mode & stat.S_ISUID) else ""


def search_path() -> str:
    """PATH with the folders of daemons, which an ordinary user's lacks."""
    own = (os.environ.get("PATH") or os.defpath).split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([*filter(None, own), *SBIN]))


def _line(path: str) -> str:
    return _text(path).strip()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
