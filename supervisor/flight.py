"""Reads the dumps of PyTorch's flight recorder without running what is in them. (I/O)

How it thinks. A dump is a pickle of plain containers, or JSON. A pickle is a program, so it is loaded by a reader that
knows no names at all: whatever would import or call something is refused as damage. Sizes are bounded before anything is read.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftrun.supervisor.recorder import Collective, Dump, Group

__all__ = ["DUMP_BYTES_MAX", "BadDump", "looks_like_dump", "read"]

DUMP_BYTES_MAX = 256 * 1024 * 1024
"""A recorder of 20,000 entries with stacks writes some 40 MiB; what is larger is not read."""

_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin))?$")
_MARKS = (b"pg_config", b"entries", b"pg_status", b"nccl_comm_state")


class BadDump(ValueError):
    """A file that is no dump of a flight recorder, or a damaged or hostile one: why, in one line."""


class _Plain(pickle.Unpickler):
    """Containers, numbers and texts; nothing that has a name."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadDump(f"it names {module}.{name}, which no flight recorder writes")


def looks_like_dump(head: bytes) -> bool:
    """Whether the first bytes of a file (some KiB) are those of a pickle or JSON dump."""
    pickled = head[:1] == b"\x80" and any(mark in head for mark in (*_MARKS, b"version"))
    return pickled or (head.lstrip()[:1] == b"{" and b'"pg_config"' in head)


def read(path: Path) -> Dump:
    """The dump of one rank; its rank is the number at the end of the file's name, as the recorder names it.

    Raises BadDump (one line) for what is not a dump, OSError where the file cannot be read.
    """
    if path.stat().st_size > DUMP_BYTES_MAX:
        raise BadDump(f"{path}: larger than {DUMP_BYTES_MAX >> 20} MiB")
    number = _RANK.search(path.name)
    if number is None:
        raise BadDump(f"{path}: the name does not end in a rank")
    content = path.read_bytes()
    try:
        table = _Plain(io.BytesIO(content)).load() if content[:1] == b"\x80" else json.loads(content.decode())
        return Dump(int(number[1]), _groups(table))
    except BadDump as error:
        raise BadDump(f"{path}: {error}") from None
    except (
        pickle.UnpicklingError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        IndexError,
        AttributeError,
        RecursionError,
        MemoryError,
        OverflowError,
    ) as error:
        raise BadDump(f"{path}: no readable flight recorder dump ({type(error).__name__})") from None


def _groups(table: Any) -> dict[str, Group]:
    if not isinstance(table, Mapping) or not isinstance(table.get("entries", []), list):
        raise BadDump("no entries in it")
    config: Mapping[str, Any] = {str(key): value for key, value in dict(table.get("pg_config") or {}).items()}
    calls: dict[str, dict[int, Collective]] = {}
    names: dict[str, str] = {}
    numbers: dict[str, str] = {}  # the recorder's own number of a group -> its key
    for entry in table.get("entries") or []:
        if entry.get("is_p2p"):
            continue
        name, description = _names(entry)
        numbers[str(entry.get("pg_id", name))] = name
        one = _collective(entry)
        if one is not None:
            calls.setdefault(name, {})[one.sequence] = one
            names[name] = description
    status: Mapping[str, Any] = {
        str(key) if str(key) in config else numbers.get(str(key), str(key)): value
        for key, value in dict(table.get("pg_status") or {}).items()
    }
    return {
        key: _group(key, config.get(key) or {}, status.get(key) or {}, names.get(key, ""), calls.get(key, {}))
        for key in {*status, *config, *calls}
    }


def _group(
    key: str,
    config: Mapping[str, Any],
    status: Mapping[str, Any],
    description: str,
    calls: Mapping[int, Collective],
) -> Group:
    name = str(config.get("desc") or "").strip()
    named = name if name not in {"", "undefined"} else description or key
    enqueued = _number(status.get("last_enqueued_collective"), max(calls, default=0))
    done = max((one.sequence for one in calls.values() if one.completed), default=0)
    return Group(
        # The name of a group is not unique, its key is; what is printed must tell them apart.
        name=f"{named}[{key}]" if named != key else key,
        members=_members(config.get("ranks")),
        enqueued=max(enqueued, max(calls, default=0)),
        completed=max(_number(status.get("last_completed_collective"), 0), done),
        calls=calls,
    )


def _names(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The key and the description of the group that an entry belongs to."""
    of = entry.get("process_group")
    if isinstance(of, (tuple, list)) and of:
        return str(of[0]), str(of[1]) if len(of) > 1 else ""
    return str(entry.get("pg_id", "0")), ""


def _collective(entry: Mapping[str, Any]) -> Collective | None:
    sequence = _number(entry.get("collective_seq_id", entry.get("seq_id")), 0)
    if sequence <= 0:
        return None
    state = str(entry.get("state", ""))
    call = str(entry.get("profiling_name", "")).split(":", 1)[-1] or "a collective"
    sizes, types = entry.get("input_sizes"), entry.get("input_dtypes")
    told = " ".join([call, *(_flat(part) for part in (sizes, types) if part)])
    started = state in {"started", "completed"} or bool(entry.get("time_discovered_started_ns"))
    return Collective(sequence, told, started, state == "completed")


def _flat(part: object) -> str:
    """Sizes as 64x64,8 and types as Float,Half."""
    if isinstance(part, (list, tuple)):
        inner = [_flat(one) for one in part]
        plain = all(isinstance(one, int) for one in part)
        return ("x" if plain else ",").join(inner)
    return str(part)


def _members(ranks: object) -> tuple[int, ...]:
    """The ranks of a group; the recorder writes them as a text such as "[0, 1, 2]"."""
    return tuple(sorted({int(number) for number in re.findall(r"\d+", str(ranks or ""))}))


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
