"""The folder of a cluster on this host: its files written, its keys removed, the ends of its logs. (I/O)

`/var/tmp/ftrun-<uid>/<name>` has etc/ (configuration), key/ (munge's key), munge/ (its socket), bin/ (links to the commands of Slurm, and what
stands before slurmstepd), keep/ (what looks after the daemons), run/, state/, spool/ and log/. Only the user can enter it; where root made
the cluster everybody can, but for PRIVATE.
"""

from __future__ import annotations

import base64
import os
import shutil
import stat
import sys
from typing import Any

from ftrun.hooks.cluster import claim
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.survey import DAEMONS
from ftrun.hooks.runtime.ownership import private_folder, private_folders

FOLDERS = ("etc", "key", "munge", "bin", "keep", "run", "state", "spool", "log")
PRIVATE = ("key", "state", "keep")
KEPT_BY_REMOVE = ("log",)
STATE_MARK = "ftrun-cluster"
"""The file in the folder of two controllers that tells whose it is: without it the folder is not mounted."""
LOG_BYTES = 64 << 10
KERNEL_LINE_BYTES = 127

BEFORE_STEPD = """\
{start}
# slurmd starts this in the place of slurmstepd: a step adopts the orphans of its tasks, so that none outlives it.
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER; survives exec
except Exception:
    pass
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a task would inherit that
    signal.signal(number, signal.SIG_DFL)
os.execv({stepd!r}, [{stepd!r}, *sys.argv[1:]])
"""


def place(step: dict[str, Any]) -> dict[str, Any]:
    """Make the folder and write `files` (path below it -> text), the `key` (base64), and what stands before slurmstepd if `adopts`.

    `state`: the folder of two controllers, which is made ("" for none).

    bin/ gets a link to each of `programs` (name -> path) that is no daemon, etc/plugins leads to `plugins` ("" for none). Raises HostError, OSError; NotPrivate where another user made the folder.
    """
    folder = open_folder(step["folder"])
    if step["state"]:
        private_folders(step["state"])
        write_file(os.path.join(step["state"], STATE_MARK), step["token"].encode(), 0o600)
    for name, text in step["files"].items():
        write_file(os.path.join(folder, name), text.encode(), 0o644)
    write_file(os.path.join(folder, "key", "munge.key"), base64.b64decode(step["key"]), 0o600)
    for name, path in step["programs"].items():
        if name not in DAEMONS:
            _link(os.path.join(folder, "bin", name), path)
    if step["plugins"]:
        _link(os.path.join(folder, "etc", "plugins"), step["plugins"])
    if step["adopts"]:
        text = before_stepd(sys.executable, step["programs"]["slurmstepd"])
        write_file(os.path.join(folder, "bin", "slurmstepd"), text.encode(), 0o755)
    return {"folder": folder}


def before_stepd(python: str, stepd: str) -> str:
    """The script that stands before slurmstepd. The kernel runs no `#!PYTHON` whose path has blanks or is longer than 127 bytes."""
    start = f"#!{python} -IS"
    if " " in python or len(start) > KERNEL_LINE_BYTES:
        start = f"""#!/bin/sh\n''':'\nexec "{python}" -IS "$0" "$@"\n'''"""
    return BEFORE_STEPD.format(start=start, stepd=stepd)


def open_folder(folder: str) -> str:
    """Make the cluster's folder with its subfolders, or check that it is this user's. Returns it."""
    shared = os.geteuid() == 0  # root's cluster runs the jobs of all users
    private_folder(os.path.dirname(folder))
    private_folder(folder)
    for name in FOLDERS:
        private_folder(os.path.join(folder, name))
    if shared:
        public = [os.path.join(folder, name) for name in FOLDERS if name not in PRIVATE]
        for path in (os.path.dirname(folder), folder, *public):
            os.chmod(path, 0o755)  # noqa: S103
    return folder


def remove(step: dict[str, Any]) -> dict[str, Any]:
    """Remove the cluster's folder but for its logs: keys first. Returns {"logs": their folder or ""}.

    A cluster of another `token` that has this host with a folder of the same name keeps it.
    """
    folder = step["folder"]
    if not _is_own(folder) or claim.is_anothers(step):
        return {"logs": ""}
    names = sorted(os.listdir(folder), key=lambda name: name != "key")
    for name in names:
        if name not in KEPT_BY_REMOVE:
            shutil.rmtree(os.path.join(folder, name))
    return {"logs": os.path.join(folder, "log")}


def is_state(step: dict[str, Any]) -> bool:
    """Whether `state` is the folder of the controllers of the cluster of `token`."""
    try:
        with open(os.path.join(step["state"], STATE_MARK), encoding="ascii") as stream:
            return stream.read() == str(step["token"])
    except OSError:
        return False


def remove_state(step: dict[str, Any]) -> dict[str, Any]:
    """Remove the folder in which the controllers of the cluster of `token` kept their state. Returns {"removed": whether it was there}."""
    if not is_state(step):
        return {"removed": False}
    shutil.rmtree(step["state"])
    return {"removed": True}


def logs(step: dict[str, Any]) -> dict[str, str]:
    """The ends of the logs by file name: `lines` each, of those whose name contains `daemon`."""
    folder = os.path.join(step["folder"], "log")
    if not os.path.isdir(folder):
        raise HostError(f"there are no logs in {folder}")
    found = {}
    for name in sorted(os.listdir(folder)):
        if step.get("daemon", "") in name:
            with open(os.path.join(folder, name), "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_BYTES))
                lines = stream.read().decode("utf-8", "replace").splitlines()
            found[name] = "\n".join(lines[-int(step["lines"]) :])
    return found


def _is_own(folder: str) -> bool:
    try:
        fact = os.lstat(folder)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(fact.st_mode) or fact.st_uid != os.geteuid():
        raise HostError(f"{folder} is not this user's: nothing in it was removed")
    return True


def _link(path: str, target: str) -> None:
    """Make a symbolic link, or let the one that is there lead to `target`."""
    draft = f"{path}.new"
    if os.path.islink(draft):
        os.unlink(draft)
    os.symlink(target, draft)
    os.replace(draft, path)


def write_file(path: str, content: bytes, mode: int) -> None:
    """Write a file atomically, with this mode whatever the umask; other hosts may write it at the same time. Raises OSError."""
    draft = f"{path}.{os.uname().nodename}.new"
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "wb") as stream:
        stream.write(content)
        os.fchmod(stream.fileno(), mode)
    os.replace(draft, path)
