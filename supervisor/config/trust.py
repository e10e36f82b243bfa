"""Which settings files count, and which project files may run, read or write something. (I/O)

A setting can name a command. So a settings file is read only if nobody but this user or root can have
written it; that holds for the file and for a link that leads to it. The file is opened once: owner and mode
are those of what was opened, and the content that was read is the content that is judged. A file of this
user may still be somebody else's work, cloned or unpacked. So what a project file (`ftrun.toml`) sets that
can run, read or write something counts only once the user has said `ftrun trust FILE`, and only while the
file keeps that content and place.

    $XDG_CONFIG_HOME/ftrun/trusted/<hash of the path>     0600: path, hash of the content, time
"""

from __future__ import annotations

import os
import stat

from ftrun.hooks.runtime import ownership

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]

_FOLDER = "trusted"


def read_settings_file(path: str, also: tuple[int, ...] = ()) -> tuple[bytes, str]:
    """Return the content of a settings file, or why it does not count. Raises OSError if it should be
    readable and is not.

    `also`: users beside this one and root whose files count.
    """
    os.lstat(path)
    if why := why_foreign(path, also):
        return b"", why
    try:
        # A pipe that was put in its place must not hold us up.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except PermissionError:
        fact = os.stat(path)
        if fact.st_uid == os.geteuid():
            raise
        return b"", _why_not_of(path, fact, also) or f"{path} is closed to you"
    with os.fdopen(descriptor, "rb") as stream:
        fact = os.fstat(descriptor)
        if not stat.S_ISREG(fact.st_mode):
            return b"", f"{path} is no file"
        why = _why_not_of(path, fact, also) or _shared(path, descriptor, fact)
        return (b"", why) if why else (stream.read(), "")


def why_foreign(path: str, also: tuple[int, ...] = ()) -> str:
    """Why a file, a folder or a link itself belongs to neither this user nor root; "" where it does."""
    try:
        fact = os.lstat(path)
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    return "" if fact.st_uid in also else ownership.why_foreign_owner(path, fact)


def _why_not_of(path: str, fact: os.stat_result, also: tuple[int, ...]) -> str:
    user = fact.st_uid if fact.st_uid in also else None
    return ownership.why_status_untrusted(path, fact, uid=user)


def _shared(path: str, descriptor: int, fact: os.stat_result) -> str:
    """Why an access list lets others write: the group's rights in `ls -l` are the most that it gives."""
    if not fact.st_mode & stat.S_IWGRP:
        return ""
    try:
        os.getxattr(descriptor, "system.posix_acl_access")
    except OSError:
        return ""
    return f"{path} may be written by whom its access list names (setfacl -b {path})"


def trust_key(path: str) -> str:
    """What trust is bound to: the path with links of folders followed, but not the file's own link."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def why_untrusted(path: str, content: bytes, folder: str) -> str:
    """Return why the user does not trust this file with this content: "is not trusted", "has changed since it
    was trusted"; "" if they do.

    `folder` is that of the user's own configuration.
    """
    found = _record(os.path.join(folder, _FOLDER, _name(trust_key(path))))
    if found is None or found["path"] != trust_key(path):
        return "is not trusted"
    return "" if found["sha256"] == _hash(content) else "has changed since it was trusted"


def trust_file(path: str, content: bytes, folder: str) -> Record:
    """Trust the file with this content, from now on. Raises OSError."""
    import json
    import time

    from ftrun.supervisor.config import home

    records = os.path.join(folder, _FOLDER)
    umask = os.umask(0o077)  # makedirs gives its mode to the last folder only
    try:
        os.makedirs(folder, exist_ok=True)
    finally:
        os.umask(umask)
    ownership.private_folder(records)
    made = {"path": trust_key(path), "sha256": _hash(content), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    home.write_atomically(os.path.join(records, _name(made["path"])), json.dumps(made).encode() + b"\n")
    return made


def untrust_file(path: str, folder: str) -> bool:
    """Take the trust back; False where there was none. Raises OSError."""
    try:
        os.unlink(os.path.join(folder, _FOLDER, _name(trust_key(path))))
    except FileNotFoundError:
        return False
    return True


def list_trusted(folder: str) -> list[Record]:
    """What is trusted, by path, each with its `state`: trusted, changed, gone, or why it does not count."""
    records = os.path.join(folder, _FOLDER)
    try:
        names = os.listdir(records)
    except OSError:
        return []
    found = [record for name in names if (record := _record(os.path.join(records, name))) is not None]
    return [record | {"state": _state(record)} for record in sorted(found, key=lambda record: record["path"])]


def _state(record: Record) -> str:
    try:
        content, why = read_settings_file(record["path"])
    except OSError:
        return "gone"
    return why or ("trusted" if _hash(content) == record["sha256"] else "changed")


def _record(path: str) -> Record | None:
    import json

    try:
        content, why = read_settings_file(path)
        found = json.loads(content) if not why else None
    except (OSError, ValueError):
        return None
    is_whole = isinstance(found, dict) and all(
        isinstance(found.get(key), str) for key in ("path", "sha256", "at")
    )
    return found if is_whole else None


def _name(path: str) -> str:
    return _hash(os.fsencode(path))[:32]


def _hash(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()
