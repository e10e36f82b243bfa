"""Which nodes may share compiled code: what a class of nodes is made from, and who wrote into a cache. (I/O)

How it thinks. Frameworks put much of their surroundings into the name of an entry, and not all of it: code that was compiled for one
processor is loaded on another and dies there of an illegal instruction; a kernel may rest on what the driver was. So nodes share only with nodes that
are alike in what a node itself can tell: processor, its instruction sets, C library, accelerators and their drivers. What it
cannot tell before the script runs, the versions of Python and of the frameworks, is read afterwards from the processes that use the cache.

Places: /proc/driver/nvidia (driver's README, chapter on /proc), /sys/module/amdgpu/version, /usr/local/Ascend/driver/version.info.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator
from itertools import islice

__all__ = ["class_of", "facts_of_node", "is_used", "writers"]

TEXT_BYTES_MAX = 1 << 20
PROCESSES_MAX = 64
# What compilers ask a processor for. Other flags come and go with kernels and their mitigations.
INSTRUCTIONS = re.compile(
    r"(?:avx\w*|sse\w*|ssse3|fma\d?|bmi\d|amx\w*|f16c|aes|vaes|gfni|adx|popcnt|lzcnt|abm|movbe|sha_ni|asimd\w*|sve\w*|bf16|i8mm|fphp|atomics)"
)
# A part of a mapped file's path -> the framework, and where its version stands beside it.
_LIBRARIES = (
    (re.compile(r"^(.*/torch)/lib/libtorch"), "torch", "version.py"),
    (re.compile(r"^(.*/jaxlib)/"), "jax", "version.py"),
    (re.compile(r"^(.*/triton)/_C/"), "triton", "__init__.py"),
    (re.compile(r"^(.*/mindspore)/(?:lib/|_c_expression)"), "mindspore", "version.py"),
)
_VERSION = r"""(?m)^_{0,2}version_{0,2}\s*(?::\s*\w+\s*)?=\s*["']([\w.+-]{1,60})["']"""


def facts_of_node(root: str = "/") -> dict[str, str]:
    """What tells this node from others: by name, only what is there."""
    told = {
        "arch": os.uname().machine,
        "libc": _libc(),
        "instructions": _instructions(_text(root, "proc/cpuinfo")),
        "nvidia": _first(r"Module +(?:for \w+ +)?(\d[\d.]+)", _text(root, "proc/driver/nvidia/version")),
        "gpus": _models(root),
        "amdgpu": _text(root, "sys/module/amdgpu/version").strip(),
        "ascend": _first(r"(?im)^Version=(\S+)", _text(root, "usr/local/Ascend/driver/version.info")),
    }
    return {name: value for name, value in told.items() if value}


def class_of(facts: dict[str, str]) -> str:
    """12 hexadecimal digits: the same for nodes with the same facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # another C library
        return ""


def _instructions(cpuinfo: str) -> str:
    line = _first(r"(?m)^(?:flags|Features)\s*:(.*)$", cpuinfo)
    return " ".join(sorted({word for word in line.split() if INSTRUCTIONS.fullmatch(word)}))


def _models(root: str) -> str:
    paths = glob.glob(os.path.join(root, "proc/driver/nvidia/gpus/*/information"))
    models = {_first(r"(?m)^Model:\s*(.*?)\s*$", _text("", path)) for path in paths}
    return ", ".join(sorted(models - {""}))


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else ""


def _text(root: str, path: str) -> str:
    with contextlib.suppress(OSError), open(os.path.join(root, path), "rb") as stream:
        return stream.read(TEXT_BYTES_MAX).decode("utf-8", "replace")
    return ""


def is_used(local: str, root: str = "/proc") -> bool:
    """Whether a process of this user lives that was told of the cache folder `local`."""
    return next(_users(local, root), None) is not None


def writers(local: str, root: str = "/proc") -> dict[str, str]:
    """Framework -> version, of the processes of this user that were told of the cache folder `local`; what cannot be read says nothing."""
    found: dict[str, str] = {}
    for place in islice(_users(local, root), PROCESSES_MAX):
        maps = _text(place, "maps")
        for path in {line[line.index("/") :] for line in maps.splitlines() if "/" in line}:
            _note_library(path, found)
        with contextlib.suppress(OSError):
            _note_python(os.readlink(f"{place}/exe"), found)
    return found


def _users(local: str, root: str) -> Iterator[str]:
    """Their places below /proc, ours left out."""
    for name in os.listdir(root):
        place = f"{root}/{name}"
        with contextlib.suppress(OSError):
            if (
                name.isdigit()
                and name != str(os.getpid())
                and os.stat(place).st_uid == os.getuid()
                and local in _text(place, "environ")
            ):
                yield place


def _note_library(path: str, found: dict[str, str]) -> None:
    for pattern, framework, beside in _LIBRARIES:
        hit = pattern.match(path) if framework not in found else None
        version = _first(_VERSION, _text(hit[1], beside)) if hit else ""
        if version:
            found[framework] = version


def _note_python(program: str, found: dict[str, str]) -> None:
    version = _first(r"/python(\d\.\d+)$", program)
    if version:
        found["python"] = version
