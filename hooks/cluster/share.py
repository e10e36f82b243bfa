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
from typing import Any, Callable

from ftrun.hooks.cluster import claim
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.launch import POLL_S, launch
from ftrun.hooks.cluster.members import members
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
ASK_AGAIN_S = 1.0
GONE = (errno.ENOTCONN, errno.ECONNABORTED)
MADE = "share.made"

SSHD_CONFIG = """\
Port {share_port}
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


def serve(step: dict[str, Any]) -> bool:
    """Serve `share` from this host: make it where it is missing, and start the cluster's sshd unless it lives. Returns whether it was dead.

    The step has `token`, `folder`, `share`, `user`, `address`, `share_port`, and in `share_keys` a private and a public key, `host_key`
    and `allowed`. Raises HostError, OSError.
    """
    folder, share, keys = step["folder"], step["share"], step["share_keys"]
    if not os.path.isdir(share):
        private_folders(share)
    _allows_writing(share)
    _write(step, "key/share_host", keys["host_key"], 0o600)
    _write(step, "key/share_allowed", f"restrict {keys['allowed']}\n", 0o600)
    _write(step, "etc/share_sshd", SSHD_CONFIG.format(**step), 0o600)
    if members(step["token"], folder).daemons.get("sshd"):
        return False
    program = shutil.which("sshd", path=search_path())
    if program is None:
        raise HostError("sshd was not found: it serves the folder (Debian, Ubuntu: openssh-server)")
    command = [program, "-f", f"{folder}/etc/share_sshd", "-E", f"{folder}/log/share.log"]
    launch(step, "sshd", command, log="share", limit_s=SERVE_S)
    give_up_s = time.monotonic() + SERVE_S
    while not _answers(step["address"], step["share_port"]):
        if time.monotonic() > give_up_s:
            raise HostError(f"sshd does not serve {share}: {folder}/log/share.log says why")
        time.sleep(POLL_S)
    return True


def is_served(step: dict[str, Any]) -> bool:
    """Whether the head host answers where it serves the folder."""
    return _answers(step["head"], step["share_port"])


def mount(step: dict[str, Any]) -> bool:
    """Mount `share` of the head host here, unless it is mounted and answers. Returns whether it was not.

    The step has `token`, `folder`, `share`, `user`, `head` (its address), `share_port`, and in `share_keys` `key` (private) and `known`
    (the head's public key). Raises HostError, OSError.
    """
    folder, share, keys = step["folder"], step["share"], step["share_keys"]
    there = _source_of(share)
    if there not in ("", _source(step)):
        raise HostError(f"{share} is a mount of {there} already")
    if there and not _is_dead(share):
        return False
    if there:
        unmount({**step, "lazy": True})
    _make_mount_point(step)
    _write(step, "key/share", keys["key"], 0o600)
    _write(step, "key/share_known", f"[{step['head']}]:{step['share_port']} {keys['known']}\n", 0o600)
    options = OPTIONS | {
        "port": step["share_port"],
        "IdentityFile": f"{folder}/key/share",
        "UserKnownHostsFile": f"{folder}/key/share_known",
    }
    told = ",".join(key if value is None else f"{key}={value}" for key, value in options.items())
    command = [_sshfs(), "-F", "/dev/null", _source(step), share, "-o", told]
    launch(step, "sshfs", command, log="share", limit_s=MOUNT_S)
    if _source_of(share) != _source(step):
        raise HostError(f"sshfs did not mount {share}")
    _allows_writing(share)
    return True


STARTS: dict[str, Callable[[dict[str, Any]], bool]] = {"sshd": serve, "sshfs": mount}
"""The daemons of a shared folder, and what starts them where they do not live."""


def unmount(step: dict[str, Any]) -> dict[str, Any]:
    """Unmount `share` and remove the folder if `mount` made it; `lazy`: also while it is used. Returns {"left": whether it is still
    mounted}. The head host's own folder stays. Raises HostError where even a lazy unmount fails.
    """
    share, lazy = step["share"], bool(step.get("lazy"))
    if claim.is_anothers(step) or _source_of(share) != _source(step):
        return {"left": False}
    program = shutil.which("fusermount3", path=search_path()) or "fusermount3"
    for words in (["-u"], ["-u", "-z"]) if lazy else (["-u"],):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [program, *words, share]
            subprocess.run(command, capture_output=True, timeout=UNMOUNT_S, check=False)
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


def _sshfs() -> str:
    program = shutil.which("sshfs", path=search_path())
    if program is None:
        raise HostError("sshfs was not found (Debian, Ubuntu: sshfs)")
    return program


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
