"""Keep all that sbatch copies into a job, so that later attempts start from the same. (I/O)

    submit/context.json   arguments, working folder, umask, limits, nice, host, settings; plain JSON
    submit/environment    NUL-separated KEY=VALUE as the kernel has it, with functions; never printed
    submit/script         the user's script, byte for byte

sbatch reads its own process: environment, folder, umask, limits and nice value become the job's. So `ftrun
sbatch` takes them from its process before its own code can change them. The environment comes from /proc,
because Python itself sets LC_CTYPE in some locales.

`ftrun sbatch` writes it and the supervisor reads it; the module imports next to nothing.
"""

from __future__ import annotations

import json
import os
import resource

from ftrun.supervisor.config import home
from ftrun.supervisor.model.renamed_settings import rename_settings

VERSION = 1
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class ContextError(Exception):
    """The kept context cannot be read, so no further attempt can be submitted from it. One line."""


def capture() -> dict[str, Any]:
    """What sbatch would copy from this process: cwd, umask, limits, nice, and who and where it is."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "v": VERSION,
        "cwd": os.getcwd(),
        "umask": umask,
        "limits": {
            name[7:]: list(resource.getrlimit(getattr(resource, name)))
            for name in dir(resource)
            if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name for NOFILE
        },
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "host": os.uname().nodename,
        "user": _user(),
    }


def environment_of_process() -> dict[bytes, bytes]:
    """The environment that this process was started with, to the byte."""
    try:
        with open("/proc/self/environ", "rb") as stream:
            return _parsed(stream.read())
    except OSError:
        return dict(os.environb)


def save(run_dir: str, context: dict[str, Any], env: dict[bytes, bytes], script_bytes: bytes) -> None:
    """Write the three files and wait until they are on disk. Raises OSError."""
    folder = os.path.join(run_dir, "submit")
    rows = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in context.items()]
    text = "{\n" + ",\n".join(rows) + "\n}\n"  # a line for each fact, for people who look
    _write(os.path.join(folder, "context.json"), text.encode("utf-8", "surrogateescape"))
    _write(
        os.path.join(folder, "environment"),
        b"".join(key + b"=" + value + b"\0" for key, value in env.items()),
    )
    _write(os.path.join(folder, "script"), script_bytes)


def load(run_dir: str) -> dict[str, Any]:
    """The kept context. Raises ContextError."""
    try:
        context = json.loads(_read(run_dir, "context.json").decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise ContextError(f"{run_dir}/submit/context.json: {error}") from None
    if not isinstance(context, dict) or context.get("v") != VERSION:
        raise ContextError(f"{run_dir}/submit/context.json: written by another version of ftrun")
    if isinstance(context.get("settings"), dict):
        context["settings"] = rename_settings(context["settings"])
    return context


def environment(run_dir: str) -> dict[str, str]:
    """The kept environment; bytes that are no UTF-8 come as surrogates. Raises ContextError."""
    return {
        os.fsdecode(key): os.fsdecode(value) for key, value in _parsed(_read(run_dir, "environment")).items()
    }


def script(run_dir: str) -> bytes:
    """The user's script. Raises ContextError."""
    return _read(run_dir, "script")


def cwd(run_dir: str) -> str:
    """The working folder of the submission; "" where the context cannot be read."""
    try:
        return str(load(run_dir)["cwd"])
    except (ContextError, KeyError):
        return ""


def replace_job(dependency: str, old: str, new: str) -> str:
    """Replace one job id in a dependency: "afterok:12:13+5,after:12" -> "afterok:99:13+5,after:99"."""
    return map_jobs(dependency, lambda job: new if job == old else job)


def map_jobs(dependency: str, renamed: Callable[[str], str]) -> str:
    """A dependency with every job id renamed. Delays ("12+5") and array tasks ("12_3") keep their numbers."""
    parts: list[str] = []
    at = 0
    while at < len(dependency):
        end = at
        while end < len(dependency) and dependency[end].isdigit():
            end += 1
        if end == at:
            parts.append(dependency[at])
            at += 1
            continue
        number = dependency[at:end]
        parts.append(number if at and dependency[at - 1] in "+_" else renamed(number))
        at = end
    return "".join(parts)


def _write(path: str, data: bytes) -> None:
    home.write_atomically(path, data)


def _read(run_dir: str, name: str) -> bytes:
    try:
        with open(os.path.join(run_dir, "submit", name), "rb") as stream:
            return stream.read()
    except OSError as error:
        raise ContextError(f"{run_dir}/submit/{name}: cannot be read: {error.strerror}") from None


def _parsed(data: bytes) -> dict[bytes, bytes]:
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
    return {key: value for key, equals, value in pairs if equals and key}


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
