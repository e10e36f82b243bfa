"""Who could have written a file or a folder, and folders that only this user can enter. (I/O)

A file that another user of the same machine can write must never be run, read as settings, or followed as a
link. As with git's safe.directory and sshd's StrictModes, a path is trusted if it belongs to this user or
root and no other user may write it. A group counts as private to this user by the convention that it has the
user's name.

A claim is a name that one process alone can make. SFTP has no word for "it is there": on sshfs the loser of a race is
told EPERM, and only who comes later is told EEXIST. To `link` and `symlink` EPERM can also mean that the file system has
no such links. The fence daemon keeps this module loaded for days, so it imports almost nothing.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


RUNNER = """\
import os, sys
if sys.version_info < (3, 9):
    sys.exit(120)
try:
    from _sha2 import sha256
except ImportError:
    try:
        from _sha256 import sha256
    except ImportError:
        from hashlib import sha256
def unsound(path):
    for name in os.path.dirname(path), path:
        fact = os.lstat(name)
        if fact.st_uid not in (os.geteuid(), 0):
            return name + " belongs to another user"
        if fact.st_mode & 0o022:
            return name + " may be written by others"
    with open(path, "rb") as stream:
        whole = sha256(stream.read()).hexdigest() == path.split(".")[-2]
    return "" if whole else path + " is not what its name says"
path = os.path.realpath(sys.argv[1])
try:
    why = unsound(path)
except (OSError, IndexError) as error:
    why = str(error)
if why:
    sys.stderr.write("ftrun: %s: nothing of it is run, and nobody looks after the nodes\\n" % why)
    sys.exit(121)
if len(sys.argv) > 2:
    sys.argv[:2] = [path]
    sys.path.insert(0, path)
    import zipimport
    exec(zipimport.zipimporter(path).get_code("__main__"), {"__name__": "__main__"})
"""
"""For `python3 -IS -c RUNNER FILE [ARGS]`: runs a zipapp with its arguments if no other user can have written
it; without arguments it only checks.

The file and its folder must belong to this user or root, no other user may write them, and the file must have
the SHA-256 that its name ends with. Exit status 120: this Python is too old, 121: the file is not run.
Written without single quotes, for shells.
"""


class NotPrivate(OSError):
    """A folder is not this user's alone, is a link or cannot be closed. One line with the fix."""


def why_untrusted(path: str, *, uid: Optional[int] = None, follow: bool = False) -> str:
    """Why another user may have written what lies at `path`; "" if only `uid` (default: this user) and root
    can have. A link is distrusted unless `follow`; then its target counts. A file that cannot be examined is
    distrusted, too.
    """
    try:
        fact = os.stat(path) if follow else os.lstat(path)
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror or error}"
    return why_status_untrusted(path, fact, uid=uid)


def why_status_untrusted(path: str, fact: os.stat_result, *, uid: Optional[int] = None) -> str:
    """The same for an open file: `fact` is its fstat, so no other file can take its place meanwhile."""
    user = os.geteuid() if uid is None else uid
    if stat.S_ISLNK(fact.st_mode):
        return f"{path} is a symbolic link"
    if why := why_foreign_owner(path, fact, uid=user):
        return why
    is_sticky_folder = stat.S_ISDIR(fact.st_mode) and fact.st_mode & stat.S_ISVTX
    if fact.st_mode & stat.S_IWOTH and not is_sticky_folder:
        return f"{path} may be written by everybody (chmod o-w {path})"
    if fact.st_mode & stat.S_IWGRP and not is_private_group(fact.st_gid, user):
        return f"{path} may be written by its group (chmod g-w {path})"
    return ""


def why_foreign_owner(path: str, fact: os.stat_result, *, uid: Optional[int] = None) -> str:
    """Why a file of this status is neither `uid`'s (default: this user) nor root's; "" if it is."""
    user = os.geteuid() if uid is None else uid
    if fact.st_uid in (user, 0):
        return ""
    return f"{path} belongs to {_user_name(fact.st_uid)}, not to {_user_name(user)} or root"


def is_private_group(group: int, uid: Optional[int] = None) -> bool:
    """Whether a group contains only root, or only this user, by the convention that it has the user's name."""
    if group == 0:
        return True
    import grp
    import pwd

    try:
        found = grp.getgrgid(group)
        name = pwd.getpwuid(os.geteuid() if uid is None else uid).pw_name
    except (KeyError, OSError):
        return False
    return found.gr_name == name and not set(found.gr_mem) - {name}


def is_own_folder(path: str) -> bool:
    """Whether `path` is a folder of this user and no link."""
    try:
        fact = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(fact.st_mode) and fact.st_uid == os.geteuid()


def private_folder(path: str) -> str:
    """Create the folder, or check the existing one: this user's, mode 0700 whatever the umask, no link.
    Returns `path`. Raises NotPrivate, OSError. A folder of this user that others could enter is closed to
    them; a caller that must not use its earlier content checks first.
    """
    try:  # noqa: SIM105
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    fact = os.lstat(path)
    if not stat.S_ISDIR(fact.st_mode):
        raise NotPrivate(
            f"{path} is {'a symbolic link' if stat.S_ISLNK(fact.st_mode) else 'no folder'}: remove it or name another folder"
        )
    if fact.st_uid != os.geteuid():
        raise NotPrivate(f"{path} belongs to {_user_name(fact.st_uid)}: remove it or name another folder")
    if stat.S_IMODE(fact.st_mode) != 0o700:  # by descriptor: no link can take its place meanwhile
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    return path


def private_folders(path: str) -> str:
    """As `private_folder`, and missing parents are created private as well. Returns `path`. Raises
    NotPrivate, OSError. os.makedirs gives its mode to the last folder alone, and leaves the parents to the
    umask.
    """
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        private_folders(above)
    return private_folder(path)


def why_replaceable(folder: str, *, uid: Optional[int] = None) -> str:
    """Why others could replace a folder: a parent is theirs, or all may write it; "" if they cannot."""
    path = os.path.realpath(folder)
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        if why := why_untrusted(path, uid=uid):
            return why
    return ""


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return f"user {uid}"


def is_taken(error: OSError, path: str) -> bool:
    """Whether making `path` failed with `error` because it is there by now."""
    return error.errno == errno.EEXIST or (error.errno == errno.EPERM and os.path.lexists(path))
