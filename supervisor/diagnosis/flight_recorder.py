"""Dumps of PyTorch's flight recorder: which ranks did not join a collective. (I/O)

Every rank records the collectives that it enqueued in each process group, numbered from 1 in the same order
on all ranks. A collective that some ranks entered and that is not over is blocked. Ranks of the group that
never entered it are missing, but a rank may be missing because it waits in another group for somebody else.
So the waiting is followed from rank to rank, and only ranks that wait for nobody are to blame. A rank without
a dump waits for nobody that we know of. If all ranks entered, either they did not call the same thing (the
program's fault), or some devices never began it, or no culprit can be found.

A dump is a pickle of plain containers, or JSON. A pickle is a program, so the reader knows no names: whatever
would import or call something is refused as damage. Sizes are bounded before anything is read.

Format: torch.distributed, FlightRecorder dumps of version 2.x (docs.pytorch.org, tutorial "Flight Recorder
for Debugging").
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftrun.slurm.records import dataclass

DUMP_BYTES_MAX = 256 * 1024 * 1024
"""A larger file is not read. A recorder of 20,000 entries with stacks writes some 40 MiB."""

_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin))?$")
_MARKS = (b"pg_config", b"entries", b"pg_status", b"nccl_comm_state")
NAMED_MAX = 16
"""How many ranks get a line of their own. More at once are not single ranks that failed."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One call on one rank: what was called (name, sizes, types in one text), and how far it came."""

    sequence: int
    call: str
    started: bool
    completed: bool


@dataclass(frozen=True, slots=True)
class Group:
    """One process group as one rank knows it. `calls` by sequence number; the recorder keeps only the last
    few thousand.
    """

    name: str
    members: tuple[int, ...]
    enqueued: int
    completed: int
    calls: Mapping[int, Collective]


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded."""

    rank: int
    groups: Mapping[str, Group]


class BadDump(ValueError):
    """Not a dump of a flight recorder, or a damaged or hostile one. The message says why, in one line."""


class _Plain(pickle.Unpickler):
    """Loads containers, numbers and texts, and refuses everything with a name."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadDump(f"it names {module}.{name}, which no flight recorder writes")


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins with `head` (some KiB) looks like a pickle or JSON dump."""
    pickled = head[:1] == b"\x80" and any(mark in head for mark in (*_MARKS, b"version"))
    return pickled or (head.lstrip()[:1] == b"{" and b'"pg_config"' in head)


def read_dump(path: Path) -> Dump:
    """The dump of one rank. The rank is the number at the end of the file's name, as the recorder names it.

    Raises BadDump for what is not a dump, OSError where the file cannot be read.
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
        # A group's key is unique, its name is not; the text must distinguish them.
        name=f"{named}[{key}]" if named != key else key,
        members=_members(config.get("ranks")),
        enqueued=max(enqueued, max(calls, default=0)),
        completed=max(_number(status.get("last_completed_collective"), 0), done),
        calls=calls,
    )


def _names(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The key and the description of an entry's group."""
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
    """The ranks of a group. The recorder writes them as a text such as "[0, 1, 2]"."""
    return tuple(sorted({int(number) for number in re.findall(r"\d+", str(ranks or ""))}))


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


# ---- who did not join


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A collective of one group that ranks wait in."""

    name: str
    sequence: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    size: int
    call: str


def blocked_collectives(dumps: Sequence[Dump]) -> tuple[str, ...]:
    """What the dumps of one hang say, one sentence a line, culprits first; () where nothing is blocked.

    The catalog's flight recorder signatures match these sentences.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    blocked = list(_blocked(by_rank))
    if not blocked:
        return ()
    absent = [one for one in blocked if one.missing]
    if not absent:
        return tuple(line for one in blocked for line in _all_joined(one, by_rank))
    return tuple(_missing(absent, by_rank))


def _blocked(by_rank: Mapping[int, Dump]) -> Iterator[_Blocked]:
    """The first collective of each group that some rank entered and some rank has not finished."""
    for key in sorted({key for dump in by_rank.values() for key in dump.groups}):
        known = {rank: dump.groups[key] for rank, dump in by_rank.items() if key in dump.groups}
        waiting = {rank: group for rank, group in known.items() if group.enqueued > group.completed}
        if not waiting:
            continue
        sequence = min(group.completed for group in waiting.values()) + 1
        inside = tuple(sorted(rank for rank, group in waiting.items() if group.completed < sequence))
        some = known[inside[0]]
        members = some.members or tuple(sorted(known))
        entered = {rank for rank, group in known.items() if group.enqueued >= sequence}
        missing = tuple(rank for rank in members if rank not in entered)
        call = some.calls[sequence].call if sequence in some.calls else "a collective"
        yield _Blocked(some.name, sequence, inside, missing, len(members), call)


def _missing(absent: Sequence[_Blocked], by_rank: Mapping[int, Dump]) -> Iterator[str]:
    waits = {rank for one in absent for rank in one.waiting}
    culprits = sorted({rank for one in absent for rank in one.missing} - waits)
    if not culprits:
        # They wait in a circle: the program enters its groups in different orders.
        ranks = ", ".join(str(rank) for rank in sorted(waits)[:NAMED_MAX])
        yield f"flight recorder: ranks {ranks} wait for each other in {len(absent)} process groups"
        return
    shown = [rank for rank in culprits if rank in by_rank] + [
        rank for rank in culprits if rank not in by_rank
    ]
    for rank in shown[:NAMED_MAX]:
        one = next(blocked for blocked in absent if rank in blocked.missing)
        where = f"collective {one.sequence} ({_short(one.call)}) of group {one.name}"
        told = f"{len(one.waiting)} of {one.size} ranks wait in it"
        left = "" if rank in by_rank else ", and it left no dump"
        yield f"flight recorder: rank {rank} did not join {where}; {told}{left}"


def _all_joined(one: _Blocked, by_rank: Mapping[int, Dump]) -> Iterator[str]:
    where = f"collective {one.sequence} of group {one.name}"
    calls = {
        rank: call
        for rank in one.waiting
        for group in by_rank[rank].groups.values()
        if group.name == one.name and (call := group.calls.get(one.sequence)) is not None
    }
    usual, times = Counter(call.call for call in calls.values()).most_common(1)[0] if calls else ("", 0)
    odd = [rank for rank, call in calls.items() if call.call != usual]
    for rank in odd[:NAMED_MAX]:
        yield (
            f"flight recorder: mismatch at {where}: rank {rank} calls {_short(calls[rank].call)}"
            f" where {times} ranks call {_short(usual)}"
        )
    if odd:
        return
    idle = [rank for rank, call in calls.items() if not call.started]
    if idle and len(idle) < len(calls) - len(idle):
        for rank in idle[:NAMED_MAX]:
            yield (
                f"flight recorder: rank {rank} joined {where}, but its device never began it;"
                f" {len(calls) - len(idle)} of {one.size} did"
            )
        return
    yield f"flight recorder: all ranks joined {where} ({_short(one.call)}) and it never ended"


def _short(call: str) -> str:
    return call if len(call) <= 80 else call[:77] + "..."
