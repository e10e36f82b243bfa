"""Hosts for the tests of clusters: each has its own network, name, processes, mounts and IPC, an address and an sshd. As root.

The hosts hang on a bridge in a network namespace of its own, so nothing of the machine's own network changes, several tests have the
same addresses side by side, and all is gone with the last process. `/mnt` is the folder that all hosts see (a bind mount): homes lie
there. `/tmp` and `/run` are each host's own, and so is its disk with `/srv`, `/var/tmp` and the crontabs, which outlives the host's death.
A host dies as a machine without power does: all its processes at once. With `cron` it has a real one. Its /dev/fuse is open to everybody,
as it is on an installed system, whatever the mode of this machine's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.83.0"
ALICE, ALICE_UID = "alice", 61_001
WAIT_S = 120.0
QUIET: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}

# One of two ranks: the second dies in step 5 of the first attempt, as soon as the other is there too.
RANK = """\
import os, pathlib, signal, time
rank, restart = os.environ["SLURM_PROCID"], os.environ["FTRUN_RESTART"]
for step in range(1, 11):
    print(f"step {step}", flush=True)
    if step == 5:
        pathlib.Path(f"here.{restart}.{rank}").touch()
        give_up = time.monotonic() + 120
        while not pathlib.Path(f"here.{restart}.{1 - int(rank)}").exists() and time.monotonic() < give_up:
            time.sleep(0.1)
        if (rank, restart) == ("1", "0"):
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
"""
INIT = """\
import os, signal, subprocess, sys
if sys.argv[1]:
    subprocess.Popen(["/usr/sbin/sshd", "-f", sys.argv[1], "-E", "/run/sshd.log"], stdin=subprocess.DEVNULL)
if sys.argv[2:] == ["cron"]:
    subprocess.Popen(["/usr/sbin/cron", "-f"], stdin=subprocess.DEVNULL)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
"""

# Waits for its network before the sshd starts: the veth is put into the namespace from outside.
BOOT = """\
set -e
mount --make-rprivate /
hostname "$1"
mount --bind "$2" /mnt
[ ! -e /mnt/etc/hidden ] || while read -r path; do mount --bind /dev/null "$path"; done </mnt/etc/hidden
{open_root}for folder in /tmp /run; do mount -t tmpfs -o mode=1777 host "$folder"; done
disk=/mnt/disks/$1; mount --bind "$disk/srv" /srv; mount --bind "$disk/tmp" /var/tmp; mount --bind "$disk/spool" /var/spool
chmod 755 /run; mkdir /run/sshd
[ ! -e /dev/fuse ] || {{ mknod -m 666 /run/fuse c 10 229 && mount --bind /run/fuse /dev/fuse; }}
mount -t proc proc /proc
for file in hosts passwd group; do mount --bind /mnt/etc/$file /etc/$file; done
mount -o remount,bind,ro /
ip link set lo up
until ip -4 addr show dev eth0 2>/dev/null | grep -q inet; do sleep 0.02; done
cd /
exec {python} -IS /mnt/etc/init.py "$3" $4
"""

# An ordinary user may not enter root's home; where the tests' own Python lies there, the hosts have an open one with nothing else in it.
OPEN_ROOT = """\
mount -t tmpfs host /tmp; mkdir /tmp/python; mount --bind {prefix} /tmp/python
mount -t tmpfs -o mode=755 host /root; mkdir -p {prefix}; mount --move /tmp/python {prefix}
"""


class Hosts:
    """`count` hosts h1, h2, ... at 10.83.0.1 and so on; `user` is root or alice, and logs in from each host to each other."""

    def __init__(
        self, folder: Path, count: int, user: str = ALICE, hidden: Sequence[str] = (), *, cron: bool = False
    ) -> None:
        """`hidden`: files of this machine that the hosts do not have."""
        self.folder = folder
        self.hidden = hidden
        self.cron = cron
        self.user = user
        self.names = [f"h{index}" for index in range(1, count + 1)]
        self.home = f"/mnt/home/{user}"
        self._switch: subprocess.Popen[bytes] | None = None
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, name: str) -> str:
        """The address of a host."""
        return f"{NETWORK}.{int(name[1:])}"

    def up(self) -> None:
        """Start all hosts; returns when each lets the user in."""
        self._write_files()
        self._switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], **QUIET)
        _until(
            lambda: os.readlink(f"/proc/{self._pid(self._switch)}/ns/net") != os.readlink("/proc/self/ns/net")
        )
        self._in_switch("ip link add br0 type bridge && ip link set br0 up && ip link set lo up")
        for name in self.names:
            self.boot(name)

    def boot(self, name: str, *, with_sshd: bool = True, new_disk: bool = False) -> None:
        """Start a host, also one that died: its /tmp and /run are empty then, and with a `new_disk` all that is its own."""
        disk = self.folder / "disks" / name
        if new_disk:
            shutil.rmtree(disk)
        if not disk.exists():
            for folder in (disk / "tmp", disk / "srv"):
                folder.mkdir(parents=True)
                folder.chmod(0o1777)
            (disk / "spool" / "cron" / "crontabs").mkdir(parents=True)
            if self.cron:
                shutil.chown(disk / "spool" / "cron" / "crontabs", group="crontab")
                (disk / "spool" / "cron" / "crontabs").chmod(0o1730)
        sshd_config = f"/mnt/etc/sshd-{name}" if with_sshd else ""
        script = BOOT.format(python=sys.executable, open_root=self._open_root())
        words = [
            "unshare",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            script,
        ]
        own = [name, str(self.folder), sshd_config, *(["cron"] if self.cron else [])]
        self._hosts[name] = subprocess.Popen([*words, "boot", *own], **QUIET)
        pid = _until(lambda: _child_of(self._hosts[name].pid))
        veth = f"v{name}"
        self._in_switch(
            f"ip link del {veth} 2>/dev/null; ip link add {veth} type veth peer name eth0 netns {pid} && ip link set {veth} master br0 up"
            f" && nsenter --target {pid} --net sh -c 'ip addr add {self.address(name)}/24 dev eth0 && ip link set eth0 address 02:00:00:00:00:{int(name[1:]):02x} up'"
        )
        listening = f"import socket; socket.create_connection(('{self.address(name)}', 22), 1)"
        if not with_sshd:
            listening = "assert ' /mnt/etc/init.py ' in open('/proc/1/cmdline').read().replace('\\0', ' ')"
        _until(lambda: self.run(name, [sys.executable, "-c", listening]).returncode == 0)

    def die(self, name: str) -> None:
        """All processes of a host are gone at once."""
        host = self._hosts.pop(name)
        init = _child_of(host.pid)
        if init:
            os.kill(init, signal.SIGKILL)
        else:  # it never came up; a signal to 0 would end the tests themselves
            host.kill()
        host.wait(WAIT_S)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a host but its init: SIGSTOP freezes it, SIGCONT thaws it."""
        script = f"for p in /proc/[0-9]*; do p=${{p#/proc/}}; [ $p = 1 ] || [ $p = $$ ] || kill -{int(number)} $p; done 2>/dev/null"
        self.run(name, ["sh", "-c", script], user="root")

    def kill(self, name: str, word: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the processes of a host whose command line has this word first."""
        script = f"for p in /proc/[0-9]*; do w=$(tr '\\0' ' ' <$p/cmdline) 2>/dev/null; case $w in */{word}\\ *) kill -{int(number)} ${{p#/proc/}};; esac; done"
        self.run(name, ["sh", "-c", script], user="root")

    def down(self) -> None:
        """End all hosts."""
        for name in list(self._hosts):
            self.die(name)
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait(WAIT_S)

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
        user: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host as the user, as after a login, in the user's home."""
        return subprocess.run(
            [*self.words(name, user), *self._environment(env or {}, user), *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def outside(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command as the user on no host: in this machine's network, where / is read-only and /tmp is its own."""
        script = (
            f"set -e; mount --make-rprivate /; mount --bind {self.folder} /mnt\n{self._open_root()}"
            'mount -t tmpfs -o mode=1777 host /tmp; mount -o remount,bind,ro /; cd "$HOME"; exec "$@"'
        )
        run_as = ["setpriv", f"--reuid={ALICE_UID}", f"--regid={ALICE_UID}", "--clear-groups", "--"]
        return subprocess.run(
            [*self._environment({}), "unshare", "--mount", "sh", "-c", script, "outside",
             *(run_as if self.user == ALICE else []), *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """As `run`, in the background."""
        return subprocess.Popen(
            [*self.words(name), *self._environment(env or {}), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ftrun(
        self, name: str, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run ftrun on a host."""
        return self.run(name, [str(ROOT / ".venv/bin/ftrun"), *arguments], env=env, timeout_s=timeout_s)

    def words(self, name: str, user: str = "") -> list[str]:
        """The words before a command that let it run on a host as the user."""
        pid = _child_of(self._hosts[name].pid)
        words = [
            "nsenter",
            f"--target={pid}",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            f"--wdns={self.home}",
            "--",
        ]
        if (user or self.user) != ALICE:
            return words
        return [*words, "setpriv", f"--reuid={ALICE_UID}", f"--regid={ALICE_UID}", "--clear-groups", "--"]

    def processes(self, name: str) -> list[str]:
        """The command lines of a host's processes, without its init and its sshd."""
        script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done"
        lines = self.run(name, ["sh", "-c", script], user="root").stdout.splitlines()
        ours = (
            "/mnt/etc/init.py",
            "sshd:",
            "sh -c for f in",
            "/usr/sbin/sshd",
            "/usr/sbin/cron",
            "/usr/sbin/CRON",
        )
        return [line.strip() for line in lines if line.strip() and not any(word in line for word in ours)]

    def _environment(self, more: Mapping[str, str], user: str = "") -> list[str]:
        own = {
            "HOME": self.home,
            "USER": user or self.user,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }
        return ["env", "-i", *(f"{key}={value}" for key, value in {**own, **more}.items())]

    def _open_root(self) -> str:
        is_closed = self.user == ALICE and sys.base_prefix.startswith("/root/")
        return OPEN_ROOT.format(prefix=sys.base_prefix) if is_closed else ""

    def _pid(self, process: subprocess.Popen[bytes] | None) -> int:
        assert process is not None
        return process.pid

    def _in_switch(self, script: str) -> None:
        subprocess.run(
            ["nsenter", f"--target={self._pid(self._switch)}", "--net", "sh", "-c", script],
            check=True,
            timeout=WAIT_S,
        )

    def _write_files(self) -> None:
        etc, home = self.folder / "etc", self.folder / "home" / self.user
        etc.mkdir()
        (home / ".ssh").mkdir(parents=True)
        names = "".join(f"{self.address(name)} {name}\n" for name in self.names)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        others = [
            line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")
        ]
        own = [f"root:*:0:0:root:{'/mnt/home/root' if self.user == 'root' else '/root'}:/bin/sh"]
        own += [f"{ALICE}:*:{ALICE_UID}:{ALICE_UID}::/mnt/home/{ALICE}:/bin/sh"]
        (etc / "passwd").write_text("\n".join([*own, *others]) + "\n")
        (etc / "group").write_text(Path("/etc/group").read_text() + f"{ALICE}:x:{ALICE_UID}:\n")
        (etc / "init.py").write_text(INIT)
        (etc / "hidden").write_text("".join(f"{path}\n" for path in self.hidden))
        for path in (etc / "host_key", home / ".ssh" / "id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        shutil.copy(home / ".ssh" / "id_ed25519.pub", etc / "authorized_keys")
        key = " ".join((etc / "host_key.pub").read_text().split()[:2])
        known = "".join(f"{name},{self.address(name)} {key}\n" for name in self.names)
        (home / ".ssh" / "known_hosts").write_text(known)
        for name in self.names:
            (etc / f"sshd-{name}").write_text(
                f"ListenAddress {self.address(name)}\nHostKey /mnt/etc/host_key\nAuthorizedKeysFile /mnt/etc/authorized_keys\n"
                "UsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\nMaxStartups 100\n"
            )
        if self.user == ALICE:
            for path in (home, *home.rglob("*")):
                os.chown(path, ALICE_UID, ALICE_UID)


def left(hosts: Hosts) -> dict[str, list[str]]:
    """What a cluster left behind by host: processes, files but for logs, the claim; keys and marks in the shared folder."""
    find = ["sh", "-c", "find /mnt/home -name munge.key -o -name '.ftrun-reach*'"]
    shared = hosts.run(hosts.names[0], find, user="root").stdout.split()
    return {name: left_on(hosts, name) + shared for name in hosts.names}


def left_on(hosts: Hosts, name: str) -> list[str]:
    """What a cluster left behind on one host alone."""
    find = [
        "sh",
        "-c",
        "find /var/tmp /tmp /var/spool/cron -mindepth 1 ! -type d ! -path '*/log/*'; find /mnt/home -path '*systemd*' ! -type d",
    ]
    return hosts.processes(name) + hosts.run(name, find, user="root").stdout.split()


def nothing(hosts: Hosts) -> dict[str, list[str]]:
    """What `left` says where a cluster left nothing behind."""
    return {name: [] for name in hosts.names}


def state_of(hosts: Hosts, name: str, run: str) -> str:
    """The state of a run, as `ftrun show` says it on a host."""
    return str(json.loads(hosts.ftrun(name, "show", run, "--json").stdout)["state"])


def state_at_end(hosts: Hosts, name: str, run: str, limit_s: float = 120.0) -> str:
    """Wait until a run is over; its last state. Raises AssertionError when time is up."""
    wait(lambda: state_of(hosts, name, run) in {"finished", "stopped"}, limit_s)
    return state_of(hosts, name, run)


def wait(look: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait until something is so. Raises AssertionError when time is up."""
    give_up_s = time.monotonic() + limit_s
    while not look():
        assert time.monotonic() < give_up_s, "it does not come"
        time.sleep(0.2)


def _child_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(text[0]) if text else 0


def _until(look: Callable[[], Any]) -> Any:
    give_up_s = time.monotonic() + WAIT_S
    while not (found := look()):
        if time.monotonic() > give_up_s:
            raise TimeoutError("a host does not come up")
        time.sleep(0.02)
    return found
