"""The spool between supervisors, which may not drain, and the drain service, which may. (I/O)

    <spool>/<id>.req            a credential, by atomic rename, 0644; anybody may put one there
                                (1733, like /tmp without a list); <id>.rep is a report for the site's ledger
    <spool>/u<uid>/<id>.req     where the cluster has no munge: not signed, in a folder of the user's own in which
                                nobody else can write, so that the file's owner is who left it; files
                                in the spool's root are removed unopened there
    <spool>/answers/<id>.json   the answer, 0644; the service's folder (0711: who knows the id may read)

Anybody may put anything there. So the service opens files through the folder's own descriptor, never
follows a link, never waits for a writer (FIFOs), takes plain files of bounded size only, keeps a bounded
number of requests of each user, the oldest, and prints no name that it does not understand. It removes
whatever is not a request, so that rubbish cannot block requests. The supervisor in turn believes an answer only if it belongs
to the owner of the spool.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.nodes.drain_rules import ID, DrainRequest, to_payload

SCHEMA = 1
SPOOL_MODE, ANSWERS_MODE, PUBLIC_MODE = 0o1733, 0o711, 0o755
OWN_MODE = 0o755  # a service that is not root lists it
CREDENTIAL_BYTES_MAX = 16 * 1024
WAITING_MAX = 200  # requests of one user
ENTRIES_MAX = 5_000_000  # looked at in one round
ANSWERS_MAX = 5000  # looked at in one round
HALF_WRITTEN_S = 3600.0
HALF_WRITTEN_MAX = 16  # of one user at a time
ANSWERS_KEPT_S = 7 * 86_400.0
ANSWERED_WITHIN_S = 7200.0  # a credential is valid for an hour; after two no answer can come
REMOVED_MAX = 20_000  # entries of unwanted folders in one round
DEPTH_MAX = 16
ASIDE = ".aside"  # how names end that were taken from somebody
ANSWERS = "answers"
PUBLIC = "public"  # what the service publishes (store.site_nodes)
KINDS = ("req", "rep")
_REQUEST = re.compile(rf"({ID.pattern})\.(?:{'|'.join(KINDS)})")
_OWN_FOLDER = re.compile(r"u([0-9]{1,10})")


class SpoolError(Exception):
    """The spool is not as it must be; one line: what is wrong and how to mend it."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A plain file with a request's name: `uid` is its owner, `left_s` when the file got its name, by ctime, which
    no user can set.
    """

    name: str
    id: str
    uid: int
    left_s: float = 0.0

    @property
    def is_report(self) -> bool:
        """Whether it is a report for the site's ledger."""
        return self.name.endswith(".rep")

    @property
    def is_unsigned(self) -> bool:
        """Whether its owner's folder stands for a signature."""
        return "/" in self.name


# ---------------------------------------------------------------------- the supervisor's side


def spool_owner(spool: str) -> int:
    """The user who can open the requests. Raises OSError."""
    return os.stat(spool, follow_symlinks=False).st_uid


def unlisted_folders(spool: str) -> list[str]:
    """Users' own folders in the spool that this user cannot list. Raises OSError where it cannot list the spool."""
    found = []
    for name in os.listdir(spool):
        if _OWN_FOLDER.fullmatch(name):
            try:
                os.listdir(os.path.join(spool, name))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                found.append(name)
    return sorted(found)


def names_left(spool: str) -> Iterator[WaitingRequest]:
    """What waits in the spool, by the names of plain files: for people; it is neither opened nor removed. Raises OSError."""
    own = [one for one in os.scandir(spool) if _OWN_FOLDER.fullmatch(one.name)]
    folders = [spool, *(one.path for one in own if one.is_dir(follow_symlinks=False))]
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in itertools.islice(entries, ENTRIES_MAX):
                form = _REQUEST.fullmatch(entry.name)
                if form is not None and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield WaitingRequest(entry.name, form.group(1), status.st_uid, status.st_ctime)


def put_request(spool: str, request_id: str, credential: bytes, kind: str = "req") -> None:
    """Put a request there, whole or not at all; repeating does no harm. Raises OSError."""
    # 0644: a drain service without root has to read it; nobody else can open it.
    _put(os.path.join(spool, f".{request_id}.tmp"), os.path.join(spool, f"{request_id}.{kind}"), credential)


def leave_request(spool: str, request: DrainRequest, auth: str, munge_socket: str) -> None:
    """Sign a request by munge and put it there; in a cluster of another AuthType put it, not signed, into a folder
    of this user's own. Raises SlurmError (munge), OSError (spool).
    """
    payload, kind = to_payload(request), "rep" if request.want == "report" else "req"
    if auth == "auth/munge":
        from ftrun.slurm.commands import munge

        signed = munge.sign(payload, for_uid=spool_owner(spool), socket=munge_socket)
        put_request(spool, request.id, signed, kind)
        return
    own = os.path.join(spool, f"u{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(own)
    # Anybody may have put a link or a folder of theirs there, so the mode is set by descriptor.
    folder = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with _closing(folder):
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", own)
        os.fchmod(folder, OWN_MODE)
        _put(f".{request.id}.tmp", f"{request.id}.{kind}", payload, at=folder)


def read_answer(spool: str, request_id: str) -> dict[str, Any] | None:
    """The service's answer: verdict, why, at_s, node; None while there is none that can be believed."""
    if not ID.fullmatch(request_id):
        return None
    try:
        fd = os.open(
            os.path.join(spool, ANSWERS, f"{request_id}.json"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except OSError:
        return None
    try:
        content = _content(fd, spool_owner(spool))
        answer = json.loads(content) if content is not None else None
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    return answer if isinstance(answer, dict) and answer.get("id") == request_id else None


def with_answers(run: Run, now_s: float) -> Run:
    """The run with the answers that came since its journal was written, for read-only views."""
    news = new_answers(run, now_s)
    asked = {i: {**a, "step": "answered", **news[i]} if i in news else a for i, a in run.asked.items()}
    return replace(run, asked=asked) if news else run


def new_answers(run: Run, now_s: float) -> dict[str, Mapping[str, Any]]:
    """Request -> node, verdict and reason, for those whose answer the journal does not have yet."""
    waiting = [
        i
        for i, a in run.asked.items()
        if a["step"] == "left" and now_s - float(a["at_s"]) < ANSWERED_WITHIN_S
    ]
    if not waiting:
        return {}
    found = {i: read_answer(str(run.settings.get("site-spool", "")), i) for i in waiting}
    return {
        i: {
            "node": run.asked[i]["node"],
            "verdict": str(told.get("verdict", "")),
            "why": str(told.get("why", "")),
        }
        for i, told in found.items()
        if told is not None
    }


# ---------------------------------------------------------------------- the drain service's side


class Spool:
    """The spool as its owner sees it; created where it is missing. With `unsigned`, the folders of users count as
    well. Raises SpoolError, OSError.
    """

    def __init__(self, path: str, *, unsigned: bool = False) -> None:
        self.path, self._unsigned = path, unsigned
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fd = _folder(path, SPOOL_MODE)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(ANSWERS, dir_fd=self._fd, follow_symlinks=False).st_uid != os.geteuid():
                put_aside(ANSWERS, self._fd)
        self._answers = _folder(ANSWERS, ANSWERS_MODE, at=self._fd)

    def close(self) -> None:
        """Close the folders."""
        os.close(self._answers)
        os.close(self._fd)

    def look(self) -> tuple[list[WaitingRequest], int]:
        """(waiting requests, in turns among their users, of each the oldest first; how much was removed).

        All names are looked at, so that nobody's files hide another's. Of one user so many requests and so many
        reports wait at most; what he leaves beyond them is removed.
        """
        by_user: dict[tuple[int, bool], list[WaitingRequest]] = {}
        drafts: dict[int, int] = {}
        removed, left = 0, REMOVED_MAX
        for name, status in self._entries():
            form = _REQUEST.fullmatch(os.path.basename(name))
            plain = stat.S_ISREG(status.st_mode) and (not self._unsigned or "/" in name)
            if form is not None and plain and 0 < status.st_size <= CREDENTIAL_BYTES_MAX:
                waits = WaitingRequest(name, form.group(1), status.st_uid, status.st_ctime)
                files = by_user.setdefault((status.st_uid, waits.is_report), [])
                bisect.insort(files, waits, key=lambda one: one.left_s)
                if len(files) > WAITING_MAX:
                    removed += self.remove(files.pop().name)
            elif stat.S_ISDIR(status.st_mode):
                if "/" in name:
                    self.remove(name)
                elif name not in (ANSWERS, PUBLIC):
                    left = self._remove_folder(name, status, left)
            elif not _being_written(os.path.basename(name), status, drafts):
                removed += self.remove(name)
        turns = [(turn, one.left_s, one) for files in by_user.values() for turn, one in enumerate(files)]
        return [one for _, _, one in sorted(turns, key=lambda entry: entry[:2])], removed

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Name and status of each entry, and of those in users' own folders instead of these."""
        with os.scandir(self._fd) as entries:
            for entry in itertools.islice(entries, ENTRIES_MAX):
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # gone, or a file system of a user's that lets nobody else look at it
                    continue
                folder = self._own_folder(entry.name, status) if stat.S_ISDIR(status.st_mode) else None
                if folder is None:
                    yield entry.name, status
                    continue
                # A user may take the right to look from a folder of their own at any moment: their loss alone.
                with _closing(folder), contextlib.suppress(OSError), os.scandir(folder) as own:
                    for one in itertools.islice(own, ENTRIES_MAX):
                        with contextlib.suppress(OSError):
                            yield f"{entry.name}/{one.name}", one.stat(follow_symlinks=False)

    def _remove_folder(self, name: str, status: os.stat_result, left: int) -> int:
        """Remove a folder that is no user's own if it is empty; how many more entries this round may remove.

        One that bears another user's name stands in that user's way: it loses the name, and then its content.
        """
        form = _OWN_FOLDER.fullmatch(name) if self._unsigned else None
        if form is not None and int(form.group(1)) != status.st_uid:
            with contextlib.suppress(OSError):
                name = put_aside(name, self._fd)
        if name.endswith(ASIDE):
            return _removed(self._fd, name, left, DEPTH_MAX)
        if form is None:  # else its user makes it right with the next request
            self.remove(name)
        return left

    def _own_folder(self, name: str, status: os.stat_result) -> int | None:
        """A descriptor of a user's own folder; None where it is none, or others may write there."""
        form = _OWN_FOLDER.fullmatch(name) if self._unsigned else None
        if form is None or int(form.group(1)) != status.st_uid or status.st_mode & 0o022:
            return None
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return None
        if (os.fstat(fd).st_uid, os.fstat(fd).st_mode) != (status.st_uid, status.st_mode):
            os.close(fd)
            return None
        return fd

    @contextlib.contextmanager
    def _folder_of(self, name: str) -> Iterator[tuple[int, str]]:
        """(descriptor of the folder, the name in it). Raises OSError."""
        folder, _, base = name.rpartition("/")
        if not folder:
            yield self._fd, base
            return
        fd = self._own_folder(folder, os.stat(folder, dir_fd=self._fd, follow_symlinks=False))
        if fd is None:
            raise FileNotFoundError(name)
        with _closing(fd):
            yield fd, base

    def read(self, waiting: WaitingRequest) -> bytes | None:
        """The credential of a request; None where the file has changed or is gone."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with self._folder_of(waiting.name) as (folder, name):
                fd = os.open(name, flags, dir_fd=folder)
        except OSError:
            return None
        with _closing(fd):
            return _content(fd, waiting.uid)

    def remove(self, name: str) -> bool:
        """Remove a file, a link (not its target), a FIFO or an empty folder. False where that fails."""
        try:
            with self._folder_of(name) as (folder, base):
                try:
                    os.unlink(base, dir_fd=folder)
                except IsADirectoryError:
                    os.rmdir(base, dir_fd=folder)
        except OSError:
            return False  # a folder with content stays: it does no harm
        return True

    def answered(self, request_id: str) -> bool:
        """Whether there is an answer already."""
        try:
            os.stat(f"{request_id}.json", dir_fd=self._answers, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def answer(self, request_id: str, facts: Mapping[str, Any]) -> None:
        """Write an answer, whole or not at all. Raises OSError."""
        body = json.dumps({"schema": SCHEMA, "id": request_id, **facts}).encode() + b"\n"
        _put(f".{request_id}.tmp", f"{request_id}.json", body, at=self._answers)

    def forget_old_answers(self, now_s: float) -> None:
        """Remove answers older than ANSWERS_KEPT_S."""
        with os.scandir(self._answers) as entries:
            for _, entry in zip(range(ANSWERS_MAX), entries, strict=False):
                with contextlib.suppress(OSError):
                    if now_s - entry.stat(follow_symlinks=False).st_mtime > ANSWERS_KEPT_S:
                        os.unlink(entry.name, dir_fd=self._answers)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(fd)


def put_aside(name: str, at: int | None = None) -> str:
    """Take a name in the spool from whoever holds it: the spool's owner may. Its new name. Raises OSError."""
    aside = os.path.join(os.path.dirname(name), f".{secrets.token_hex(16)}{ASIDE}")
    os.rename(name, aside, src_dir_fd=at, dst_dir_fd=at)
    return aside


def _removed(at: int, name: str, left: int, depth: int) -> int:
    """Remove a folder and at most `left` entries in it, by descriptors, no deeper than `depth`; how many are left.
    What cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        with _closing(fd), os.scandir(fd) as entries:
            for entry in entries:
                if left <= 0:
                    return 0
                left -= 1
                if entry.is_dir(follow_symlinks=False):
                    left = _removed(fd, entry.name, left, depth - 1) if depth > 0 else left
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.name, dir_fd=fd)
        os.rmdir(name, dir_fd=at)
    return left


def _put(temporary: str, path: str, content: bytes, *, at: int | None = None) -> None:
    """Write a file, 0644, whole or not at all. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=at)  # left by an interrupted try
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=at)
    try:
        os.write(fd, content)
        os.fchmod(fd, 0o644)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path, src_dir_fd=at, dst_dir_fd=at)


def _content(fd: int, uid: int) -> bytes | None:
    """The content of a plain file of that user, as it is now; None if it is none, or too long."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or status.st_nlink != 1:
        return None
    content = os.read(fd, CREDENTIAL_BYTES_MAX + 1)
    return content if len(content) <= CREDENTIAL_BYTES_MAX else None


def _being_written(name: str, status: os.stat_result, drafts: dict[int, int]) -> bool:
    """Whether it may yet become a request, by ctime, which no user can set; `drafts` counts by user."""
    if not (name.startswith(".") and name.endswith(".tmp") and stat.S_ISREG(status.st_mode)):
        return False
    drafts[status.st_uid] = drafts.get(status.st_uid, 0) + 1
    return time.time() - status.st_ctime < HALF_WRITTEN_S and drafts[status.st_uid] <= HALF_WRITTEN_MAX


def public_folder(spool: str) -> str:
    """The folder in which the service publishes: made, or taken back from whoever holds its name. Raises SpoolError, OSError."""
    path = os.path.join(spool, PUBLIC)
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            put_aside(path)
        else:  # ours, in a sticky folder: nobody can put a link in its place
            os.chmod(path, PUBLIC_MODE)
    os.close(_folder(path, PUBLIC_MODE))
    return path


def _folder(path: str, mode: int, at: int | None = None) -> int:
    """A descriptor of a folder that only we can change, created where it is missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode, dir_fd=at)
        os.chmod(path, mode, dir_fd=at)  # whatever the umask
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except NotADirectoryError:
        raise SpoolError(f"{path} is no folder: remove it, it is made anew") from None
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != mode:
        os.close(fd)
        raise SpoolError(
            f"{path} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}: it must be this user's, chmod {mode:o}"
        )
    return fd
