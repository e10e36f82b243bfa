"""The user's SSH configuration for a host, for connections without a terminal. (I/O)

The files are read as `ssh` reads them: the user's, then the machine's, and the first value counts. paramiko
parses the blocks (the caller passes its parser in); it does not know `Include`, so included files are
inserted first. For words that it does not know (`Match exec`, newer ones) `ssh -G` is called for each host,
which is slower and as exact as ssh. A file that another user could have written is refused, as ssh refuses
the user's own: its ProxyCommand would run as this user.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import getpass
import glob
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from ftrun.hooks.runtime import ownership
from ftrun.hooks.ssh.known_hosts import KnownHosts

INCLUDES_DEEP_MAX = 16  # as OpenSSH
USER_FILE = "~/.ssh/config"
MACHINE_FILE = "/etc/ssh/ssh_config"
KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
MACHINE_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
TRUSTING = frozenset({"no", "off", "false", "accept-new"})
SSH_LIMIT_S = 10.0
_RUNS_COMMANDS = re.compile(r"^\s*match\b.*\bexec\b", re.IGNORECASE | re.MULTILINE)


class Hop(NamedTuple):
    """One SSH server and how to reach it; `strict`: refuse an unknown key; `jump`, `command`: "" for none."""

    host: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[str, ...]
    strict: bool
    keys: tuple[str, ...]
    keys_only: bool
    agent: bool
    jump: str
    command: str


class Config:
    """The configuration in `path`, by default the user's and the machine's; `read` parses text into an object
    with `lookup(host)`. Raises OSError if `path` cannot be read, or a file may be another user's work.
    """

    def __init__(self, path: str, read: Callable[[str], Any]) -> None:
        self._path = path
        self._read = None
        text = files_text(path)
        if _RUNS_COMMANDS.search(text) is None:  # the library would run them without a time limit
            with contextlib.suppress(Exception):  # the library's own errors: words that it does not know
                self._read = read(text)

    def hop(self, name: str) -> Hop:
        """How to reach a host, or user@host:port of a ProxyJump. Raises ValueError if that is unclear."""
        user, host, port = parts_of(name)
        told = None
        if self._read is not None:
            with contextlib.suppress(Exception):  # the same errors, when a host is looked up
                told = self._read.lookup(host)
        return hop_of(host, _told_by_ssh(host, self._path) if told is None else told, port, user)


def _told_by_ssh(host: str, path: str) -> dict[str, Any]:
    """The output of `ssh -G`: the last value of each word, all identity files. Raises ValueError."""
    command = ["ssh", "-G", *(["-F", path] if path else []), "--", host]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SSH_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(
            f"it has words that only ssh understands, and ssh cannot be asked: {error}"
        ) from None
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"ssh -G ends with {done.returncode}"])[-1])
    pairs = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    return {**dict(pairs), "identityfile": [value for word, value in pairs if word == "identityfile"]}


def files_text(ssh_config: str = "") -> str:
    """The configuration with its includes: `ssh_config` alone, or the user's and the machine's."""
    if ssh_config:
        return "\n".join(_lines(ssh_config, must=True))
    own = [*_lines(os.path.expanduser(USER_FILE)), "Host *"]
    return "\n".join([*own, *_lines(MACHINE_FILE)])


def hop_of(name: str, told: Mapping[str, Any], port: str = "", user: str = "") -> Hop:
    """How to reach `name` by its lower-case configuration; a ProxyJump's parts first. Raises ValueError."""
    host = str(told.get("hostname") or name)
    number = int(port or told.get("port") or 22)
    listed = [os.path.expanduser(path) for path in told.get("identityfile") or () if path.lower() != "none"]
    files = (
        told.get("userknownhostsfile", KNOWN_HOSTS)
        + " "
        + told.get("globalknownhostsfile", MACHINE_KNOWN_HOSTS)
    )
    jump = str(told.get("proxyjump") or "")
    return Hop(
        host=host,
        port=number,
        user=user or str(told.get("user") or getpass.getuser()),
        known_as=str(told.get("hostkeyalias") or ""),
        known_hosts=tuple(_filled(path, host) for path in shlex.split(files)),
        strict=str(told.get("stricthostkeychecking", "ask")).lower() not in TRUSTING,
        keys=tuple(listed or [os.path.expanduser(path) for path in KEYS]),
        keys_only=str(told.get("identitiesonly", "no")).lower() == "yes",
        agent=str(told.get("identityagent", "")).lower() != "none",
        jump="" if jump.lower() == "none" else jump,
        command=str(told.get("proxycommand") or ""),
    )


def parts_of(text: str) -> tuple[str, str, str]:
    """User, host and port of `user@host:port`, `[address]:port` or an IPv6 address; "" for missing ones."""
    user, _, rest = text.rpartition("@")
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        return user, host, port.lstrip(":")
    host, _, port = rest.partition(":")
    return (user, host, port) if ":" not in port else (user, rest, "")


def public_half(path: str) -> list[bytes]:
    """The public half of a key file, from the file beside it; [] without one."""
    try:
        with open(path if path.endswith(".pub") else f"{path}.pub", encoding="utf-8") as stream:
            return [base64.b64decode(stream.read().split()[1])]
    except (OSError, ValueError, IndexError):
        return []


def known_hosts_of(paths: Sequence[str]) -> KnownHosts:
    """The keys in these files; files that cannot be read are skipped."""
    lines: list[str] = []
    for path in paths:
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
            lines += stream
    return KnownHosts(lines)


def _filled(path: str, host: str) -> str:
    words = {"%d": os.path.expanduser("~"), "%h": host, "%u": getpass.getuser(), "%%": "%"}
    for token, value in words.items():
        path = path.replace(token, value)
    return os.path.expanduser(path)


def _lines(path: str, *, must: bool = False, deep: int = 0) -> Iterator[str]:
    """The lines of a file with its includes in place; the enclosing block continues after an include."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            why = ownership.why_status_untrusted(path, os.fstat(stream.fileno()))
            own = stream.read().splitlines()
    except OSError:
        if must:
            raise
        return
    if why:
        raise PermissionError(errno.EPERM, why.removeprefix(f"{path} "), path)
    block = "Host *"
    for line in own:
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() in {"host", "match"}:
            block = line
        if word.lower() != "include" or deep >= INCLUDES_DEEP_MAX:
            yield line
            continue
        for pattern in shlex.split(rest):
            whole = os.path.join(os.path.expanduser("~/.ssh"), os.path.expanduser(pattern))
            for found in sorted(glob.glob(whole)):
                yield from _lines(found, deep=deep + 1)
        yield block
