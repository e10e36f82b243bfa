"""`ftrun-hook install FOLDER`: a copy of the hooks for Slurm to call, on this node's own disk. (I/O)

What root runs before every job must not lie where users write, nor on a file system that may hang, nor change
while a job starts. So the hooks are copied as a whole, into a folder named by their content, and compiled.
Only then the three small scripts that Slurm calls are put in place, each by one rename; a prolog that is
running continues with the copy it started with.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import pkgutil
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence

from ftrun.hooks.health import epilog, health_check, prolog, slurm_hook
from ftrun.hooks.runtime import UsageError
from ftrun.hooks.runtime.host import USUAL_PATH

LIMITS_S = {
    "prolog": prolog.DEFAULTS["within_s"],
    "epilog": epilog.DEFAULTS["within_s"],
    "health": health_check.DEFAULTS["within_s"],
}
PYTHONS = (
    "/usr/bin/python3",
    *(f"/usr/bin/python3.{minor}" for minor in (13, 12, 11, 10, 9)),
    sys.executable,
)
START = b'''"""Entry of the hooks that Slurm calls."""
import sys

sys.path.insert(0, __file__.rpartition("/")[0])

from ftrun.hooks.main import main

sys.exit(main())
'''
USAGE = """\
usage: ftrun-hook install [--settings FILE] [--state FOLDER] [--python PATH] FOLDER

Copy the hooks to FOLDER, on the node's own disk, and print the lines for slurm.conf.

  --settings FILE   what is switched and the thresholds (default: /etc/ftrun/checks.json)
  --state FOLDER    where the hooks keep their log (default: /var/lib/ftrun)
  --python PATH     the interpreter (default: the first of the usual places that is 3.9 or newer)"""
NOHOLD = "nohold_on_prolog_fail"
LINES = """\
Copied to {folder}.  For slurm.conf (docs/hooks.md tells more):

Prolog={folder}/prolog
Epilog={folder}/epilog
HealthCheckProgram={folder}/health
HealthCheckInterval=300
{parameters}

Switches: {settings}; all hooks of this node: touch {switch}"""


def main(arguments: list[str]) -> int:
    """Copy, write the three scripts, print the lines for slurm.conf. Raises UsageError."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    folder, words = _understood(arguments)
    settings = words.get("--settings", slurm_hook.SETTINGS)
    python = words.get("--python") or _python()
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        lib = _copied(folder)
        common = {
            "lib": lib,
            "python": python,
            "settings": settings,
            "state": words.get("--state", slurm_hook.STATE),
            "path": ":".join(dict.fromkeys([*_slurm_folder(), *USUAL_PATH.split(":")])),
            "conf": os.environ.get("SLURM_CONF", ""),
        }
        for hook, limit_s in LIMITS_S.items():
            _put(os.path.join(folder, hook), _script({**common, "hook": hook, "limit": f"{limit_s:.0f}"}))
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: {error.strerror}; run it as root, or name another folder"
        ) from None
    switch = os.path.join(os.path.dirname(settings), slurm_hook.SWITCH)
    print(LINES.format(folder=folder, settings=settings, switch=switch, parameters=_parameters()))
    return 0


def _parameters() -> str:
    """The line of SchedulerParameters, with what stands there already: a second line would take its place."""
    try:
        asked = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        asked = None
    lines = asked.stdout.splitlines() if asked is not None and asked.returncode == 0 else []
    found = [line.partition("=")[2].strip() for line in lines if line.startswith("SchedulerParameters ")]
    if not found:
        return f"and add {NOHOLD} to SchedulerParameters, behind what stands there (Slurm was not asked)"
    present = [word for word in found[0].split(",") if word not in ("", "(null)")]
    if NOHOLD in present:
        return f"SchedulerParameters has {NOHOLD} already."
    merged = ",".join([*present, NOHOLD])
    return f"and add {NOHOLD} to SchedulerParameters, in its one line:\nSchedulerParameters={merged}"


def _understood(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    words: dict[str, str] = {}
    folders = []
    left = list(arguments)
    while left:
        word, equals, value = left.pop(0).partition("=")
        if word in ("--settings", "--state", "--python") and (equals or left):
            words[word] = os.path.abspath(value if equals else left.pop(0))
        elif word.startswith("-"):
            raise UsageError(
                f"install: {word} is not understood; there are --settings, --state and --python, each with a path"
            )
        else:
            folders.append(word)
    if len(folders) != 1:
        raise UsageError(
            "install: one folder is wanted, on the node's own disk, as in: ftrun-hook install /opt/ftrun"
        )
    return os.path.abspath(folders[0]), words


def _python() -> str:
    """The first interpreter of the usual ones that is new enough."""
    question = "import sys; sys.exit(sys.version_info < (3, 9))"
    for path in PYTHONS:
        if (
            os.access(path, os.X_OK)
            and subprocess.run([path, "-I", "-S", "-c", question], check=False).returncode == 0
        ):
            return path
    raise UsageError("install: no Python 3.9 or newer was found; name one with --python")


def _slurm_folder() -> list[str]:
    """The folder of scontrol on this node: Slurm gives its hooks no PATH."""
    found = shutil.which("scontrol")
    return [os.path.dirname(found)] if found else []


def _copied(folder: str) -> str:
    """The folder of a complete copy, named by its content; created if it is missing."""
    draft = tempfile.mkdtemp(prefix=".lib-", dir=folder)
    try:
        os.chmod(draft, 0o755)  # noqa: S103  as any installed program: all may read it
        _fill(draft)
        with open(os.path.join(draft, "start.py"), "wb") as stream:
            stream.write(START)
        lib = os.path.join(folder, f"lib-{_hash(draft)}")
        if not os.path.isdir(lib):
            os.rename(draft, lib)
            compileall.compile_dir(lib, quiet=2)
        return lib
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fill(draft: str) -> None:
    """Copy the package from the zipapp that runs now, or from the folder it is installed in."""
    import ftrun.hooks as package

    archive = getattr(package.__loader__, "archive", "")
    if archive:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(draft, [name for name in packed.namelist() if name.startswith("ftrun/")])
        return
    from ftrun.hooks.bundle.zipapp import EXCLUDED

    source = os.path.dirname(package.__file__ or "")
    skipped = shutil.ignore_patterns("__pycache__", *EXCLUDED)
    shutil.copytree(source, os.path.join(draft, "ftrun", "hooks"), ignore=skipped)
    with open(os.path.join(draft, "ftrun", "__init__.py"), "wb"):
        pass


def _hash(draft: str) -> str:
    digest = hashlib.sha256()
    for folder, below, names in os.walk(draft):
        below.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            with open(path, "rb") as stream:
                digest.update(f"{os.path.relpath(path, draft)}\0".encode() + stream.read() + b"\0")
    return digest.hexdigest()[:12]


def _script(values: dict[str, str]) -> bytes:
    """slurm.sh with its variables in front."""
    text = (pkgutil.get_data("ftrun.hooks.health", "slurm.sh") or b"").partition(b"\n")[2]
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return b"#!/bin/sh\n" + lines.encode("utf-8", "surrogateescape") + text


def _put(path: str, content: bytes) -> None:
    draft = f"{path}.{os.getpid()}"
    with open(draft, "wb") as stream:
        stream.write(content)
        os.fchmod(stream.fileno(), 0o755)
    os.replace(draft, path)
