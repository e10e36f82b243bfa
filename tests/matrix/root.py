"""A root folder with one Debian release and its Slurm, and commands in it as on a machine of their own. (I/O)

How it thinks. A root is made once by debootstrap and kept; what a suite needs beyond that, `.ci/env dev` of the tree that is tried installs in
it, as it would on a fresh machine. A command in a root has mounts, host name and process numbers of its own, and a loopback of its own where it
needs no network: nothing that it starts outlives it, and no port of the machine is taken. The root's /tmp is emptied before, its /dev/shm is its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftrun.slurm.client.releases import Release, release_text

__all__ = ["Root", "RootError", "folder", "missing"]

MIRROR = "http://deb.debian.org/debian"
PACKAGES = "ca-certificates,git,procps,python3-venv"
BUILD_S_MAX = 1200.0
TREE = "/root/ftrun"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
SCRIPTS = Path("/usr/share/debootstrap/scripts")
# What of the caller's environment a download may need.
PASSED = (
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_INDEX_URL",
    "UV_INDEX_URL",
)

# In namespaces of its own: the root becomes /, and a network that is new gets a loopback.
ENTER = r"""
root=$1 network=$2 python=$3 name=$4 command=$5
[ "$network" = 1 ] || "$python" -c '
import fcntl, socket, struct
def ask(request, name, what): fcntl.ioctl(socket.socket(), request, struct.pack("16s24s", name, what))
ask(0x8914, b"lo", struct.pack("h", 0x49))  # SIOCSIFFLAGS: up, loopback, running
# SIOCSIFADDR: an address that is no loopback, without which getaddrinfo knows no family (AI_ADDRCONFIG).
ask(0x8916, b"lo:0", struct.pack("hH4s", socket.AF_INET, 0, bytes((192, 0, 2, 1))))
'
hostname "$name" && mount --bind "$root" "$root" && mount -t proc proc "$root/proc" &&
    mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/dev/shm" &&
    cd "$root" && mkdir -p mnt/old && pivot_root . mnt/old && umount -l /mnt/old || exit 125
exec /bin/sh -c "$command"
"""


class RootError(Exception):
    """A root cannot be made or entered; one line: why, and what to do."""


def missing() -> str:
    """What this machine lacks to make and enter roots; "" where nothing is missing."""
    if os.geteuid() != 0:
        return "roots are made by debootstrap and entered by unshare, and both need root: start it as root"
    for program, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux"), ("git", "git")):
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install {package}"
    return ""


def folder() -> Path:
    """Where roots are kept: $FTRUN_ROOTS, else ~/.cache/ftrun-roots."""
    chosen = os.environ.get("FTRUN_ROOTS")
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "ftrun-roots"


@dataclass(frozen=True)
class Root:
    """The root of one release; `path` may not exist yet."""

    release: Release
    suite: str
    path: Path

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """One matrix at a time works in a root. RootError where another one does."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.path}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RootError(
                    f"another run works in {self.path}: wait for it, or set FTRUN_ROOTS elsewhere"
                ) from None
            yield

    def build(self) -> float:
        """Make the root where there is none; returns the seconds that it took. RootError with debootstrap's last line."""
        if self.path.exists():
            return 0.0
        began = time.monotonic()
        part = self.path.with_name(f"{self.path.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        mirror = os.environ.get("FTRUN_MIRROR", MIRROR)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", self.suite, str(part), mirror]
        if not (SCRIPTS / self.suite).exists():  # a suite that is younger than this debootstrap
            command.append(str(SCRIPTS / "sid"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
        if done.returncode:
            said = (done.stderr + done.stdout).strip().splitlines()
            raise RootError(f"debootstrap {self.suite}: {said[-1] if said else done.returncode}")
        # A mirror may stand still for longer than the suite's lists say that they are valid.
        (part / "etc/apt/apt.conf.d/90old-mirror").write_text('Acquire::Check-Valid-Until "false";\n')
        (part / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        part.rename(self.path)
        return time.monotonic() - began

    @property
    def name(self) -> str:
        """The host name in the root."""
        return f"slurm-{release_text(self.release).replace('.', '-')}"

    def copy_tree(self, tree: Path) -> None:
        """The working tree at `tree`, as it stands and less what git ignores, becomes the one in the root; its environment stays. Raises RootError."""
        to = self.path / TREE.lstrip("/")
        to.mkdir(parents=True, exist_ok=True)
        for old in to.iterdir():
            if old.name in {".venv", ".tools", ".cache"}:
                continue
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        listed = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, capture_output=True, check=False)
        if names.returncode:
            raise RootError(f"{tree} is no git working tree: {names.stderr.decode().strip()}")
        there = b"\0".join(
            name
            for name in names.stdout.split(b"\0")
            if name and os.path.lexists(os.path.join(os.fsencode(tree), name))
        )
        packed = ["tar", "-C", str(tree), "--null", "--verbatim-files-from", "--files-from=-", "--create"]
        with subprocess.Popen(packed, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tar:
            assert tar.stdin is not None
            with subprocess.Popen(["tar", "-C", str(to), "--extract"], stdin=tar.stdout) as untar:
                tar.stdin.write(there)
                tar.stdin.close()
        if tar.returncode or untar.returncode:
            raise RootError(f"{tree} could not be copied to {to}")

    def prepare(self, log: Path) -> None:
        """The environment of the copied tree, Slurm itself included. RootError with the log's name."""
        for name in (
            "etc/resolv.conf",
            CERTIFICATES,
        ):  # a site may have a name server or an authority of its own
            if Path("/", name).exists():
                (self.path / name).unlink(missing_ok=True)
                (self.path / name).write_bytes(Path("/", name).read_bytes())
        if self.run(f"cd {TREE} && .ci/env dev", log, network=True):
            raise RootError(f"the environment of {self.name} could not be made: {log}")

    def run(self, command: str, log: Path, *, network: bool = False, limit_s: float = BUILD_S_MAX) -> int:
        """The exit status of a shell command in the root, 124 where it took too long; what it printed goes to `log`."""
        for old in (self.path / "tmp").iterdir():
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() and not old.is_symlink() else old.unlink()
        unshare = [
            "unshare",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
            *([] if network else ["--net"]),
        ]
        words = [str(self.path), str(int(network)), sys.executable, self.name, command]
        with open(log, "ab") as out, contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(
                [*unshare, "/bin/sh", "-c", ENTER, "enter", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=_environment(),
                timeout=limit_s,
                check=False,
            ).returncode
        return 124


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    own = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8"}
    trusted = {"SSL_CERT_FILE": f"/{CERTIFICATES}", "PIP_CERT": f"/{CERTIFICATES}"}
    return {
        **passed,
        **own,
        **trusted,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
