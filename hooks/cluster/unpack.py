"""A bundle of Slurm on this host: unpacked once, found by its hash the next time. (I/O)

A bundle is a tar.gz. Its first file is bundle.json: version, architecture, loader, and the SHA-256 of each other file. These are real/
(programs), plugins/ and lib/ (all libraries, libc and loader among them). The SHA-256 of bundle.json is the hash of the bundle. What is
unpacked has two folders more: bin/ with a wrapper for each program, and loader/ with a link to the loader for each program, so that a
process has the program's name. A wrapper sets no variable, because a job would inherit it, and gives its own absolute path as argv[0],
because slurmctld starts itself again by that.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from typing import Any

from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.runtime.ownership import private_folder, why_untrusted

MANIFEST = "bundle.json"
FOLDERS = ("real", "plugins", "lib", "bin", "loader")
ASK_S = 20.0
WRAPPER = """\
#!/bin/sh
exec {folder}/loader/{name} --library-path {folder}/lib --argv0 {folder}/bin/{name} {folder}/real/{name} "$@"
"""
_MEMBER = re.compile(r"(?:real|plugins|lib)/[A-Za-z0-9_][A-Za-z0-9._+-]*")


def unpack(step: dict[str, Any]) -> dict[str, Any]:
    """Unpack the bundle of hash `sha256` as `folder`: from `path` where this host sees it there, else from `content` (base64).

    Returns {"there": whether it is unpacked now}; False where it has to be sent. Other bundles beside it are removed: the caller has the
    claim on this host, so no cluster uses them. Raises HostError, OSError.
    """
    folder = step["folder"]
    above = private_folder(os.path.dirname(folder))
    if os.geteuid() == 0:
        os.chmod(above, 0o755)  # noqa: S103  root's cluster runs the jobs of all users
    if not why_unsound(folder, step["sha256"]):
        return {"there": True}
    sent = step.get("content")
    packed = base64.b64decode(sent) if sent else _read(step["path"])
    try:
        files = contents(packed, step["sha256"])
    except HostError:
        if sent:
            raise
        return {"there": False}
    for name in os.listdir(above):
        if name.startswith("slurm_"):
            shutil.rmtree(os.path.join(above, name))
    draft = f"{folder}.draft"
    write_bundle(files, draft, folder)
    loader = json.loads(files[MANIFEST])["loader"]
    words = [f"{draft}/lib/{loader}", "--library-path", f"{draft}/lib", f"{draft}/real/slurmd", "-V"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, check=False)
    if done.returncode:
        raise HostError(
            f"the bundle's slurmd does not run here: {' '.join(done.stderr.decode('utf-8', 'replace').split())}"
        )
    os.rename(draft, folder)
    return {"there": True}


def contents(packed: bytes, sha256: str = "") -> dict[str, bytes]:
    """The files of a bundle by name. Raises HostError unless its hash is `sha256` (if given), and each file is as bundle.json says."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as stream:
            for row in stream:
                is_first = not files
                if not row.isfile() or not (
                    row.name == MANIFEST if is_first else _MEMBER.fullmatch(row.name)
                ):
                    raise HostError(f"the bundle holds {row.name!r}, which does not belong into one")
                if row.name in files:
                    raise HostError(f"the bundle holds {row.name} twice")
                reader = stream.extractfile(row)
                files[row.name] = reader.read() if reader else b""
                if is_first and sha256 and hashlib.sha256(files[MANIFEST]).hexdigest() != sha256:
                    raise HostError("the bundle is another one: its hash is wrong")
        told = json.loads(files[MANIFEST])
        promised, loader = dict(told["files"]), f"lib/{told['loader']}"
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise HostError(f"it is no bundle of Slurm, or a damaged one: {error}") from None
    if set(promised) != set(files) - {MANIFEST} or loader not in promised:
        raise HostError("the bundle is damaged: it does not hold what its bundle.json names")
    for name, wanted in promised.items():
        if hashlib.sha256(files[name]).hexdigest() != wanted:
            raise HostError(f"the bundle is damaged: {name}")
    return files


def write_bundle(files: dict[str, bytes], draft: str, folder: str) -> None:
    """Write the files of a bundle that will be `folder` into a new folder `draft`. Raises FileExistsError, OSError.

    Each file is a new one: a program that overwrites a library in place ends every process of the machine that uses it.
    """
    os.mkdir(draft, 0o755)
    for name in FOLDERS:
        os.mkdir(os.path.join(draft, name), 0o755)
    made = {**files, **_wrappers(folder, list(files))}
    for name, content in made.items():
        _write_new(os.path.join(draft, name), content)
    for name, target in _links(json.loads(files[MANIFEST])["loader"], list(files)).items():
        os.symlink(target, os.path.join(draft, name))
    for where in (draft, *(os.path.join(draft, name) for name in FOLDERS)):
        os.chmod(where, 0o755)  # noqa: S103  whatever the umask; the folder above decides who enters


def why_unsound(folder: str, sha256: str) -> str:
    """Why what lies in `folder` is not the bundle of that hash; "" if it is, to the last byte."""
    if why := why_untrusted(folder):
        return why
    try:
        manifest = _read_sure(os.path.join(folder, MANIFEST))
        if hashlib.sha256(manifest).hexdigest() != sha256:
            return "another bundle.json"
        told = json.loads(manifest)
        names = list(told["files"])
        for name, wanted in told["files"].items():
            if hashlib.sha256(_read_sure(os.path.join(folder, name))).hexdigest() != wanted:
                return f"{name} is damaged"
        for name, text in _wrappers(folder, names).items():
            if _read_sure(os.path.join(folder, name)) != text:
                return f"{name} is damaged"
        for name, target in _links(told["loader"], names).items():
            if os.readlink(os.path.join(folder, name)) != target:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError) as error:
        return str(error)
    return ""


def _wrappers(folder: str, names: list[str]) -> dict[str, bytes]:
    return {f"bin/{name}": WRAPPER.format(folder=folder, name=name).encode() for name in _programs(names)}


def _links(loader: str, names: list[str]) -> dict[str, str]:
    return {f"loader/{name}": f"../lib/{loader}" for name in _programs(names)}


def _programs(names: list[str]) -> list[str]:
    return [name[len("real/") :] for name in names if name.startswith("real/")]


def _write_new(path: str, content: bytes) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
    with os.fdopen(number, "wb") as stream:
        stream.write(content)
        os.fchmod(stream.fileno(), 0o755)


def _read(path: str) -> bytes:
    try:
        return _read_sure(path)
    except OSError:
        return b""


def _read_sure(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()
