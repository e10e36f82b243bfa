"""sbatch as a child process of `ftrun sbatch`: its output is passed on at once and kept. (I/O)

A user must see what sbatch prints when it prints it, byte for byte and on the right stream; and ftrun needs
the job id out of it. So both streams run through ftrun. The child gets what any child of a shell would get:
SIGPIPE and SIGXFSZ as they were before Python changed them, and every open file that is not ftrun's.

posix_spawn is used because `subprocess` would cost more time than sbatch itself takes.
"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SIGPIPE, _SIGXFSZ = 13, 25
_CHUNK = 65_536
_WRAPPER_MAX = 2000  # bytes of a script that stands in for sbatch


class SbatchResult:
    """The result of sbatch. `exit_code` is as a shell shows it: 128 + n after signal n.

    `killed`: by a signal, or both processes got one, so its status means nothing.
    """

    __slots__ = ("exit_code", "interrupted", "killed", "stderr", "stdout")

    def __init__(self, code: int, stdout: bytes, stderr: bytes, *, interrupted: bool) -> None:
        self.exit_code = _as_shell(code)
        self.killed = code < 0 or interrupted
        self.interrupted = interrupted
        self.stdout = stdout
        self.stderr = stderr


def find_sbatch(path: str) -> str:
    """The sbatch that a shell would run by this PATH; "" where there is none."""
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", "sbatch")
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return ""


def path_without_own(path: str) -> str:
    """This PATH without the folders whose `sbatch` is a script that calls `ftrun sbatch`: it would call itself for ever."""
    folders = path.split(":")
    while found := find_sbatch(":".join(folders)):
        if not _calls_ftrun(found):
            break
        folders = [one for one in folders if os.path.join(one or ".", "sbatch") != found]
    return ":".join(folders)


def _calls_ftrun(program: str) -> bool:
    try:
        with open(program, "rb") as stream:
            start = stream.read(_WRAPPER_MAX + 1)
    except OSError:
        return False
    return len(start) <= _WRAPPER_MAX and start.startswith(b"#!") and b"ftrun sbatch" in start


def client_folder(path: str, cwd: str = "") -> str:
    """The folder of the Slurm clients that belong to the sbatch of this PATH, absolute.

    It is that of sbatch, or of the file that it links to, where scontrol and srun lie beside it; for a wrapper,
    which stands alone, the first of PATH that has both. "" where none has.
    """
    found = find_sbatch(path)
    folders = [os.path.dirname(one) for one in (found, os.path.realpath(found))] if found else []
    for folder in (*folders, *path.split(":")):
        whole = os.path.join(cwd or "/", folder or ".")
        if os.access(f"{whole}/scontrol", os.X_OK) and os.access(f"{whole}/srun", os.X_OK):
            return whole if folder.startswith("/") else os.path.normpath(whole)
    return ""


def slurm_facts(env: Mapping[str, str], cwd: str) -> dict[str, str]:
    """What the submitted file says of its Slurm: the folder of the clients, and SLURM_CONF, "" where it is not set."""
    return {"clients": client_folder(env.get("PATH", ""), cwd), "conf": env.get("SLURM_CONF", "")}


def run(
    sbatch: str, argv: Sequence[str], env: Mapping[bytes, bytes], *, stdin: int | None = None
) -> SbatchResult:
    """Call sbatch, pass its output on and keep it. `stdin` is a file descriptor (default: ours). Raises
    OSError where it cannot be started (arguments too long, no such program).
    """
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, out_write, 1), (os.POSIX_SPAWN_DUP2, err_write, 2)]
        pid = _spawn(sbatch, argv, env, stdin, actions)
    except OSError:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    kept, interrupted = _relay({out_read: 1, err_read: 2})
    code, waited_badly = _wait(pid)
    return SbatchResult(code, kept[1], kept[2], interrupted=interrupted or waited_badly)


def run_through(
    sbatch: str, argv: Sequence[str], env: Mapping[bytes, bytes], *, stdin: int | None = None
) -> int:
    """Call sbatch on our own streams and return its exit status. Raises OSError."""
    return _as_shell(_wait(_spawn(sbatch, argv, env, stdin, []))[0])


def job_id(stdout: bytes) -> tuple[str, str] | None:
    """(job id, cluster or "") from sbatch's standard output, with or without --parsable.

    None = it printed none.

    Plugins may print before it, so the last line that fits counts.
    """
    for line in reversed(stdout.decode("utf-8", "replace").splitlines()):
        words = line.split()
        if words[:3] == ["Submitted", "batch", "job"] and len(words) > 3 and words[3].isdigit():
            return words[3], words[6] if words[4:6] == ["on", "cluster"] and len(words) > 6 else ""
        number, _, cluster = line.strip().partition(";")
        if number.isascii() and number.isdigit():
            return number, cluster
    return None


def _spawn(
    sbatch: str,
    argv: Sequence[str],
    env: Mapping[bytes, bytes],
    stdin: int | None,
    actions: list[tuple[int, int, int]],
) -> int:
    if stdin is not None:
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), *actions]
    return os.posix_spawn(
        sbatch, ["sbatch", *argv], env, file_actions=actions, setsigdef=[_SIGPIPE, _SIGXFSZ]
    )


def _relay(streams: dict[int, int]) -> tuple[dict[int, bytes], bool]:
    """Copy what can be read until all ends are closed; an interrupt reaches sbatch too, so wait for it."""
    kept = {target: [] for target in streams.values()}  # type: dict[int, list[bytes]]
    interrupted = False
    gone: set[int] = set()
    poll = select.poll()
    for source in streams:
        poll.register(source, select.POLLIN)
    left = len(streams)
    while left:
        try:
            ready = poll.poll()
        except KeyboardInterrupt:
            interrupted = True
            continue
        for source, _ in ready:
            data = os.read(source, _CHUNK)
            if not data:
                poll.unregister(source)
                os.close(source)
                left -= 1
                continue
            target = streams[source]
            kept[target].append(data)
            if target not in gone and not _write_all(target, data):
                gone.add(target)
    return {target: b"".join(parts) for target, parts in kept.items()}, interrupted


def _write_all(target: int, data: bytes) -> bool:
    """False when nobody reads the stream any more; the submission goes on."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError:
        return False
    return True


def _wait(pid: int) -> tuple[int, bool]:
    """(exit status, or minus the signal's number; whether an interrupt came meanwhile)."""
    interrupted = False
    while True:
        try:
            _, status = os.waitpid(pid, 0)
        except KeyboardInterrupt:
            interrupted = True
            continue
        return os.waitstatus_to_exitcode(status), interrupted


def _as_shell(code: int) -> int:
    return code if code >= 0 else 128 - code
