"""A folder of the head host on all hosts of a cluster, by sshfs: served, mounted, unmounted. (I/O)

The head host serves it by an sshd of the cluster's own, as the user: its port is one of the cluster's, it binds to the address by which
the hosts know each other, it lets one key in, and that key can do SFTP alone. So nothing in ~/.ssh is read or changed, and both keys
go with the cluster. The folder has the same path everywhere; on the other hosts it is a mount point, which must be empty.

What is seen late: sshfs itself keeps nothing, the kernel keeps names and sizes for CACHE_S. What the server writes of a name (a link, a
new file) is asked each time, so whoever finds no claim can believe it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import time
from typing import Any

from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.members import MARK, mark_of, members
from ftrun.hooks.cluster.place import write_file
from ftrun.hooks.cluster.survey import kind_of_folder, search_path
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.mounts import mounted
from ftrun.hooks.runtime.ownership import private_folders

CACHE_S = 1
SERVE_S = 20.0
MOUNT_S = 40.0
UNMOUNT_S = 20.0
ALIVE_S = 40.0
POLL_S = 0.05
ASK_AGAIN_S = 1.0
GONE = (errno.ENOTCONN, errno.ECONNABORTED)
MADE = "share.made"

SSHD_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/key/share_host
AuthorizedKeysFile {folder}/key/share_allowed
AllowUsers {user}
AuthenticationMethods publickey
ForceCommand internal-sftp -u 0
Subsystem sftp internal-sftp
DisableForwarding yes
PermitTTY no
PermitUserRC no
UsePAM no
UseDNS no
PidFile none
# /var/tmp is everybody's; the folder below it is private, which ftrun has checked.
StrictModes no
LoginGraceTime 20
MaxStartups 500
ClientAliveInterval 15
"""
OPTIONS = {
    "dir_cache": "no",
    "entry_timeout": CACHE_S,
    "attr_timeout": CACHE_S,
    "negative_timeout": 0,
    "reconnect": None,
    "ServerAliveInterval": 5,
    "ServerAliveCountMax": 3,
    "ConnectTimeout": 10,
    "BatchMode": "yes",
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
}


def serve(step: dict[str, Any]) -> dict[str, Any]:
    """Serve `share` from this host: make it where it is missing, and start the cluster's sshd unless it lives.

    The step has `token`, `folder`, `share`, `user`, `address`, `port`, `host_key` and `allowed` (a private and a public key). Returns
    {"started": whether it was dead}. Raises HostError, OSError.
    """
    folder, share = step["folder"], step["share"]
    if not os.path.isdir(share):
        private_folders(share)
    _allows_writing(share)
    _write(step, "key/share_host", step["host_key"], 0o600)
    _write(step, "key/share_allowed", f"restrict {step['allowed']}\n", 0o600)
    _write(step, "etc/share_sshd", SSHD_CONFIG.format(**step), 0o600)
    if members(step["token"], folder).daemons.get("sshd"):
        return {"started": False}
    program = shutil.which("sshd", path=search_path())
    if program is None:
        raise HostError("sshd was not found: it serves the folder (Debian, Ubuntu: openssh-server)")
    command = [program, "-f", f"{folder}/etc/share_sshd", "-E", f"{folder}/log/share.log"]
    _run(step, command, SERVE_S, "sshd")
    give_up_s = time.monotonic() + SERVE_S
    while not _answers(step["address"], step["port"]):
        if time.monotonic() > give_up_s:
            raise HostError(f"sshd does not serve {share}: {folder}/log/share.log says why")
        time.sleep(POLL_S)
    return {"started": True}


def mount(step: dict[str, Any]) -> dict[str, Any]:
    """Mount `share` of the head host here, unless it is mounted and answers.

    The step has `token`, `folder`, `share`, `user`, `head` (its address), `port`, `key` (private) and `known` (the head's public key).
    Returns {"mounted": whether it was not}. Raises HostError, OSError.
    """
    folder, share = step["folder"], step["share"]
    there = _source_of(share)
    if there not in ("", _source(step)):
        raise HostError(f"{share} is a mount of {there} already")
    if there and not _is_dead(share):
        return {"mounted": False}
    if there:
        unmount({**step, "lazy": True})
    _make_mount_point(step)
    _write(step, "key/share", step["key"], 0o600)
    _write(step, "key/share_known", f"[{step['head']}]:{step['port']} {step['known']}\n", 0o600)
    options = OPTIONS | {
        "port": step["port"],
        "IdentityFile": f"{folder}/key/share",
        "UserKnownHostsFile": f"{folder}/key/share_known",
    }
    told = ",".join(key if value is None else f"{key}={value}" for key, value in options.items())
    program = _sshfs(step)
    _run(step, [program, "-F", "/dev/null", _source(step), share, "-o", told], MOUNT_S, "sshfs")
    if _source_of(share) != _source(step):
        raise HostError(f"sshfs did not mount {share}")
    _allows_writing(share)
    return {"mounted": True}


def unmount(step: dict[str, Any]) -> dict[str, Any]:
    """Unmount `share` and remove the folder if `mount` made it; `lazy`: also while it is used. Returns {"left": whether it is still
    mounted}. The head host's own folder stays. Raises HostError where even a lazy unmount fails.
    """
    share, lazy = step["share"], bool(step.get("lazy"))
    if _source_of(share) != _source(step):
        return {"left": False}
    program = shutil.which("fusermount3", path=search_path()) or "fusermount3"
    for words in (["-u"], ["-u", "-z"]) if lazy else (["-u"],):
        with contextlib.suppress(HostError):
            _run(step, [program, *words, share], UNMOUNT_S, "fusermount3")
        if _source_of(share) != _source(step):
            break
    else:
        if lazy:
            raise HostError(f"{share} cannot be unmounted: fusermount3 -u -z {share}")
        return {"left": True}
    if os.path.exists(f"{step['folder']}/run/{MADE}"):
        with contextlib.suppress(OSError):
            os.rmdir(share)
    return {"left": False}


def _make_mount_point(step: dict[str, Any]) -> None:
    share = step["share"]
    kind = kind_of_folder(share)
    if kind == "absent":
        private_folders(share)
        _write(step, f"run/{MADE}", "", 0o600)
    elif kind != "empty":
        raise HostError(f"{share} is {kind} here: it must be an empty folder or absent")


def _sshfs(step: dict[str, Any]) -> str:
    program = step.get("sshfs") or shutil.which("sshfs", path=search_path())
    if not program:
        raise HostError("sshfs was not found (Debian, Ubuntu: sshfs)")
    return str(program)


def _source(step: dict[str, Any]) -> str:
    return f"{step['user']}@{step['head']}:{step['share']}"


def _source_of(share: str) -> str:
    """What is mounted at a path; "" where nothing is. The path itself is not touched."""
    found = [one.source for one in mounted(Machine()) if one.target == share]
    return found[-1] if found else ""


def _is_dead(share: str) -> bool:
    """Whether the mount has lost its sshfs. One whose server is away is waited for: it comes back by itself. Raises HostError."""
    give_up_s = time.monotonic() + ALIVE_S
    while True:
        try:
            os.listdir(share)
            return False
        except OSError as error:
            if error.errno in GONE:
                return True
            if time.monotonic() > give_up_s:
                raise HostError(f"{share} does not answer: {error.strerror}") from None
        time.sleep(ASK_AGAIN_S)


def _answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), SERVE_S):
        return True
    return False


def _allows_writing(share: str) -> None:
    if not os.access(share, os.W_OK | os.X_OK):
        raise HostError(f"{share} cannot be written")


def _write(step: dict[str, Any], name: str, text: str, mode: int) -> None:
    write_file(os.path.join(step["folder"], name), text.encode(), mode)


def _run(step: dict[str, Any], command: list[str], limit_s: float, name: str) -> None:
    """Run a program that leaves a daemon behind. Raises HostError with its last words."""
    said = os.path.join(step["folder"], "log", "share.log")
    kept = {
        key: os.environ[key] for key in ("HOME", "LANG", "LC_ALL", "USER", "LOGNAME") if key in os.environ
    }
    with open(said, "ab") as output:
        before = output.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
            env={**kept, "PATH": search_path(), MARK: mark_of(step["token"], name)}, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise HostError(f"{name} did not answer within {limit_s:g} s") from None
    if code:
        with open(said, "rb") as stream:
            stream.seek(before)
            lines = stream.read().decode("utf-8", "replace").split("\n")
        words = "; ".join(line.strip() for line in lines if line.strip())
        raise HostError(f"{name}: {words or f'exit code {code}'}")
