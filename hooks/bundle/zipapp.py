"""Builds the zipapp: the node side as one file, for any Python 3.9 without an installed ftrun. (I/O)

A node may have no ftrun, and a supervisor may be newer than what a node has. So the supervisor builds the
node side from its own sources and names it by their hash: two versions can coexist, and a job keeps the one
that it started with. The bytes do not depend on who builds them or when, so concurrent builders replace a
file by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftrun.hooks.checks.thresholds import SITES_OWN
from ftrun.hooks.runtime.ownership import private_folders, why_untrusted

EXCLUDED = (
    "bundle/shell.py", "bundle/batch.sh", "bundle/batch_caches.sh", "bundle/batch_nodes.sh",
    "bundle/batch_spans.sh", "bundle/batch_starts.sh", "bundle/companion.sh", "bundle/shim.sh",
    "bundle/shim_containers.sh", "bundle/shim_span.sh", "bundle/zipapp.py", "ssh/__init__.py", "ssh/pool.py", "ssh/config.py",
    "ssh/known_hosts.py",
)  # fmt: skip
"""Files that nodes never run: the scripts are in the submitted file, the others run beside the supervisor."""

ENTRY = "bundle/entry.py"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first day that a zip file can express
FILE_MODE = 0o100644 << 16
FOLDER_MODE = (0o40755 << 16) | 0x10

# One line without single quotes, for any login shell. Status 120 means that a Python is too old.
REMOTE_COMMAND = (
    "exec /bin/sh -c '"
    "for p in python3 python3.13 python3.12 python3.11 python3.10 python3.9 /usr/libexec/platform-python; do "
    'command -v "$p" >/dev/null 2>&1 || continue; '
    '"$p" -I -c "import sys; sys.version_info < (3, 9) and sys.exit(120); exec(sys.stdin.buffer.readline())"; '
    'c=$?; [ "$c" = 120 ] || exit "$c"; '
    "done; echo no Python 3.9 or newer >&2; exit 127'"
)

# Read as the first line of stdin. Behind it come a line of JSON and the packed hooks, which stay in memory:
# so a node whose disks are full or gone can still be checked, and no file is left behind.
_LOADER_HEAD = """
import json, os, sys
told = json.loads(sys.stdin.buffer.readline())
def kept(content):
    number = os.memfd_create("ftrun-hook")
    with open(number, "wb", closefd=False) as stream:
        stream.write(content)
    return "/proc/self/fd/%d" % number
sys.path.insert(0, kept(sys.stdin.buffer.read()))
from ftrun.hooks import main
"""

LOADER = (
    _LOADER_HEAD
    + """
from ftrun.hooks.checks import thresholds
own = thresholds.read(told["site"], "")
if own is None:
    sys.exit(0)
settings = kept(json.dumps({**own, **told["settings"]}).encode())
sys.exit(main.main(told["argv"] + ["--settings", settings]))
"""
)


# As LOADER, for a command whose request nobody else may read: it goes with the packed hooks and is a file in memory there.
REQUEST_LOADER = (
    _LOADER_HEAD
    + """
sys.exit(main.main(told["argv"] + ["--request", kept(json.dumps(told["request"]).encode())]))
"""
)


# As LOADER, for a command with a secret, which no command line may show.
SECRET_LOADER = (
    _LOADER_HEAD
    + """
os.environ.update(told["env"])
sys.exit(main.main(told["argv"]))
"""
)


def build_zipapp(home: str) -> str:
    """Return the path of `<home>/tools/ftrun-hook-<version>-<hash>.<sha256>.pyz`, built if it is missing or
    may be another user's work. `python3 PATH check ...` is `ftrun-hook check ...` on a node with Python 3.9
    and nothing else. Raises OSError if the folder cannot be written.
    """
    sources = dict(_sources())
    folder, name = os.path.join(home, "tools"), f"ftrun-hook-{_version()}-{_hash(sources)}."
    private_folders(folder)
    for one in sorted(os.listdir(folder)):
        if one.startswith(name) and one.endswith(".pyz") and _is_sound(os.path.join(folder, one)):
            return os.path.join(folder, one)
    packed = zipapp_bytes(sources)
    path = os.path.join(folder, f"{name}{hashlib.sha256(packed).hexdigest()}.pyz")
    _write_atomically(path, packed)
    return path


def _is_sound(path: str) -> bool:
    """Whether a zipapp belongs to this user alone and matches the hash in its name: nodes run no other."""
    if why_untrusted(path):
        return False
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest() == path.split(".")[-2]


def zipapp_bytes(sources: dict[str, bytes] | None = None) -> bytes:
    """The bytes of the zipapp: the same for the same sources. `sources`: the files of hooks/, by path."""
    told = dict(_sources()) if sources is None else dict(sources)
    main = told.pop(ENTRY)
    facts = f"ftrun-{_version()}.dist-info/METADATA"
    files = {
        "__main__.py": main,
        # A package of its own: an ftrun installed on the node is not used.
        "ftrun/__init__.py": b"",
        **{f"ftrun/hooks/{name}": source for name, source in told.items()},
        facts: f"Metadata-Version: 2.1\nName: ftrun\nVersion: {_version()}\n".encode(),
    }
    return b"#!/usr/bin/env python3\n" + _zipped(files)


def remote_input(arguments: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The input of REMOTE_COMMAND: hooks, arguments of `ftrun-hook check`, thresholds over the node's own."""
    head = json.dumps({"argv": list(arguments), "settings": settings, "site": SITES_OWN})
    return f"exec({LOADER!r})\n{head}\n".encode() + zipapp_bytes()


def secret_input(arguments: Sequence[str], env: Mapping[str, str]) -> bytes:
    """The input of REMOTE_COMMAND for a command that takes a secret from its environment."""
    head = json.dumps({"argv": list(arguments), "env": env})
    return f"exec({SECRET_LOADER!r})\n{head}\n".encode() + zipapp_bytes()


def request_input(arguments: Sequence[str], request: Mapping[str, Any], packed: bytes) -> bytes:
    """The input of REMOTE_COMMAND for a command that takes `--request FILE`; `packed`: of `packed_rooms`."""
    head = json.dumps({"argv": list(arguments), "request": request})
    return f"exec({REQUEST_LOADER!r})\n{head}\n".encode() + packed


def packed_rooms(*rooms: str) -> bytes:
    """The zipapp with these rooms of hooks/ alone, for commands that need no more: it is sent with each request."""
    wanted = tuple(f"{room}/" for room in rooms)
    return zipapp_bytes(
        {
            name: source
            for name, source in _sources()
            if "/" not in name or name == ENTRY or name.startswith(wanted)
        }
    )


def _zipped(files: dict[str, bytes]) -> bytes:
    folders = {name[: end + 1] for name in files for end, letter in enumerate(name) if letter == "/"}
    with tempfile.TemporaryFile() as stream:
        with zipfile.ZipFile(stream, "w") as packed:
            for name in sorted({*files, *folders}):
                row = zipfile.ZipInfo(name, EPOCH)
                row.create_system = 3  # Unix, wherever it is built
                row.external_attr = FOLDER_MODE if name in folders else FILE_MODE
                row.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(row, files.get(name, b""))
        stream.seek(0)
        return stream.read()


def _sources() -> Iterator[tuple[str, bytes]]:
    """The files of hooks/ that run on a node, by path."""
    top = os.path.dirname(os.path.dirname(__file__))
    for folder, below, names in os.walk(top):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            short = os.path.relpath(path, top)
            if short not in EXCLUDED and name.endswith((".py", ".sh", ".md", ".typed")):
                with open(path, "rb") as stream:
                    yield short, stream.read()


def _hash(sources: dict[str, bytes]) -> str:
    """12 hexadecimal digits of the sources; not of the packed bytes, which depend on the version of zlib."""
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name}\0{len(sources[name])}\0".encode() + sources[name])
    return digest.hexdigest()[:12]


def _version() -> str:
    from importlib import metadata  # the agent packs nothing, and each of them would pay for it

    try:
        return metadata.version("ftrun")
    except metadata.PackageNotFoundError:
        return "0"


def _write_atomically(path: str, packed: bytes) -> None:
    """Write a file atomically, for this user alone."""
    descriptor, draft = tempfile.mkstemp(prefix=".ftrun-hook-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(packed)
            stream.flush()
            os.fchmod(descriptor, 0o700)
            os.fsync(descriptor)
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
