"""The catalog of known faults: TOML files in, checked signatures out. (I/O)

A signature is a claim about one line of text, so it carries its own proof: examples that it must match, and
similar lines that it must not match. A signature that fails its own proof is refused. Loading does the cheap
checks (names, types, duplicates, patterns that compile); `selftest` does the rest. A folder of the site's own
files may be added to ours. An id given twice is an error, never a silent replacement.

Patterns are bytes, match within one line, and use only what both `re` and hyperscan understand: no
look-around, no back-references, no pattern that matches nothing.

A `[[table]]` (`codes`) holds a maker's numbered faults. A signature with `table` finds the numbers. Each
number in the table has its own signature in `by_id`, made of its level when somebody first asks for it. A
table has `id`, `title`, `written` (a pattern of one code), `example` (a log line with {code}), `fact`,
`[table.defaults]` and `[[table.level]]`s. A level has its `name`, any field of a signature that its codes
share, and `codes`, one a line: the code and its meaning.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from ftrun.supervisor.model.types import Action, Blame, FaultClass, Layer, Role, Source
from ftrun.supervisor.signatures.codes import CodeTable, SignaturesById, parse_table, without_codes
from ftrun.supervisor.store import user_cache

CAPTURES = frozenset({"host", "rank", "local_rank", "pci", "device", "ip", "peer", "step", "code", "path"})
"""The groups that a pattern may name: what a line itself says about whom, where and when."""

_FOLDER = Path(__file__).parents[1] / "catalog"
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FORBIDDEN = re.compile(r"\(\?(?:[=!]|<[=!])|\(\?P=|\\[1-9]|\.(?:[*+]|\{\d*,\d*\})\??(?:\)*$|\|)")
_E = TypeVar("_E", bound=Enum)
_Columns = tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], tuple[CodeTable | None, ...]]


class CatalogError(ValueError):
    """An unusable catalog file: which file, which signature, what is wrong, in one line."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One known fault.

    `pattern`: a regular expression over the bytes of one line, unanchored unless it says otherwise.
    `priority`: higher the nearer to the root cause (hardware 80+, kernel 75, node and Slurm 70, network 60,
    framework verdict 50, the user's own error 50, wrapper or echo 20). `confidence` (0..1): that this line
    alone is the cause. `exclude`: the next attempt should avoid a node, the one that the line names or the
    one that Slurm will. `sources`: where the line is expected; elsewhere it is weaker. `fact`: how we know
    it. `at_once`: the line is a verdict in itself, and waiting longer reveals nothing. `vendor`: what the
    maker of the part recommends, in short; "" for nothing. `table`: the table of codes for the capture
    `code`; "" where the line has no such number.
    """

    id: str
    title: str
    fault: FaultClass
    layer: Layer
    role: Role
    blame: Blame
    pattern: str
    action: Action
    retry: bool
    exclude: bool
    priority: int
    confidence: float
    at_once: bool
    advice: str
    vendor: str
    sources: tuple[Source, ...]
    fact: str
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]
    table: str = ""


@dataclass(frozen=True)
class Catalog:
    """All signatures in a fixed order. `digest` (hex) changes with every byte of every file.

    `by_id` also has the signatures of all codes, which `signatures` has not: nothing scans for those.
    """

    signatures: tuple[Signature, ...]
    by_id: Mapping[str, Signature]
    digest: str
    tables: Mapping[str, CodeTable] = field(default_factory=dict)

    @cached_property
    def columns(self) -> _Columns:
        """Id, pattern, priority and table of codes of each signature: what a scanner compiles."""
        known = self.signatures
        return (
            tuple(one.id for one in known),
            tuple(one.pattern for one in known),
            tuple(one.priority for one in known),
            tuple(self.tables.get(one.table) for one in known),
        )


def load(extra: Sequence[str] = ()) -> Catalog:
    """Our catalog and the `*.toml` of the folders in `extra`, read once a process.

    Raises CatalogError (one line) for an unreadable file or a wrong signature.
    """
    return _load(tuple(extra))


@cache
def _load(extra: tuple[str, ...]) -> Catalog:
    files = []
    digest = hashlib.sha256()
    for path in _files(extra):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CatalogError(f"{path}: {error}") from error
        digest.update(len(content).to_bytes(8, "big") + content)
        files.append((path, content))
    # The cache key covers these bytes and this form of a signature.
    form = hashlib.sha256(" ".join(Signature.__slots__).encode()).hexdigest()[:8]
    name = f"catalog-{form}-{digest.hexdigest()[:32]}"
    kept = user_cache.read_cached(name)
    if kept is not None:
        with suppress(msgspec.MsgspecError, ValueError, KeyError, TypeError):
            return _catalog(_KEPT.decode(kept), digest.hexdigest())
    parts = _parts(files)
    catalog = _catalog(parts, digest.hexdigest())
    user_cache.write_cached(name, msgspec.msgpack.encode(parts))
    return catalog


@dataclass(slots=True)
class _Parts:
    """What the files say, checked: the source of a catalog, and what the cache keeps of it."""

    signatures: list[Signature]
    tables: list[dict[str, Any]]
    silent: list[str]


_KEPT = msgspec.msgpack.Decoder(_Parts)


def _catalog(parts: _Parts, digest: str) -> Catalog:
    found = {signature.id: signature for signature in parts.signatures}
    made = (without_codes(parse_table(raw), parts.silent) for raw in parts.tables)
    tables = {table.id: table for table in made}
    return Catalog(
        signatures=tuple(parts.signatures),
        by_id=SignaturesById(MappingProxyType(found), tables, _of_code),
        digest=digest,
        tables=MappingProxyType(tables),
    )


def _parts(files: Sequence[tuple[Path, bytes]]) -> _Parts:
    """Read and check all files, in order. A later one may change or silence what an earlier one says."""
    rows: dict[str, tuple[Path, dict[str, Any]]] = {}
    raw_tables: dict[str, dict[str, Any]] = {}
    tables: dict[str, CodeTable] = {}
    silent: list[str] = []
    for path, content in files:
        try:
            table = tomllib.loads(content.decode())
        except ValueError as error:
            raise CatalogError(f"{path}: {error}") from error
        _refuse_keys(path, table)
        defaults = table.get("defaults", {})
        for row in table.get("signature", []):
            name = row.get("id", "?")
            if name in rows:
                raise CatalogError(
                    f"{path}: the id {name} is given twice; a [[change]] changes what there is"
                )
            rows[name] = (path, {**_COMMON, **defaults, **row})
        for raw in table.get("table", []):
            one = _table(path, raw)
            if one.id in tables:
                raise CatalogError(f"{path}: the table {one.id} is given twice")
            tables[one.id], raw_tables[one.id] = one, raw
        for change in table.get("change", []):
            name = change.get("id", "?")
            if name not in rows:
                raise CatalogError(f"{path}: there is no signature {name} to change")
            rows[name] = (path, {**rows[name][1], **change})
        codes = {code for one in tables.values() for code in one.codes}
        for name in table.get("silence", []):
            if name not in codes and rows.pop(name, None) is None:
                raise CatalogError(f"{path}: there is no signature {name} to silence")
            silent.append(name)
    found = {name: _checked(path, name, row) for name, (path, row) in rows.items()}
    _refuse_links(found, tables)
    return _Parts(list(found.values()), list(raw_tables.values()), silent)


def _refuse_keys(path: Path, table: Mapping[str, Any]) -> None:
    unknown = set(table) - {"defaults", "signature", "table", "change", "silence"}
    if unknown:
        raise CatalogError(
            f"{path}: unknown table {min(unknown)!r}; there are [defaults], [[signature]], [[table]], [[change]] and silence"
        )
    silence = table.get("silence", [])
    if not isinstance(silence, list) or any(not isinstance(name, str) for name in silence):
        raise CatalogError(f"{path}: silence must be a list of ids, and stand above the first table")


def _checked(path: Path, name: str, row: Mapping[str, Any]) -> Signature:
    try:
        return _signature(row)
    except (KeyError, TypeError, ValueError, re.error) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CatalogError(f"{path}: signature {name}: {what}") from error


def _files(extra: tuple[str, ...]) -> Iterator[Path]:
    for folder in (_FOLDER, *map(Path, extra)):
        if not folder.is_dir():
            raise CatalogError(f"{folder}: no such folder of signatures")
        yield from sorted(folder.glob("*.toml"))


def _table(path: Path, raw: Mapping[str, Any]) -> CodeTable:
    """Make one table of codes. Each of its levels must make a signature."""
    try:
        table = parse_table(raw)
        first = {code.level.name: name for name, code in reversed(list(table.codes.items()))}
        for name in first.values():
            _of_code(table.row(name))
    except (KeyError, TypeError, ValueError, re.error) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CatalogError(f"{path}: table {raw.get('id', '?')}: {what}") from error
    return table


def _of_code(row: Mapping[str, Any]) -> Signature:
    return _signature({**_COMMON, **row})


def _refuse_links(found: Mapping[str, Signature], tables: Mapping[str, CodeTable]) -> None:
    """Refuse an id that means two things, and a signature whose table does not exist or that captures no
    code.
    """
    seen = set(found)
    for table in tables.values():
        twice = seen & table.codes.keys()
        if twice:
            raise CatalogError(f"table {table.id}: the id {min(twice)} is given twice")
        seen |= table.codes.keys()
    for signature in found.values():
        if signature.table and signature.table not in tables:
            raise CatalogError(f"signature {signature.id}: there is no table {signature.table!r}")
        if signature.table and "(?P<code>" not in signature.pattern:
            raise CatalogError(f"signature {signature.id}: it has a table, but its pattern captures no code")


_COMMON: Mapping[str, Any] = {
    "role": "cause",
    "blame": "unknown",
    "action": "none",
    "retry": True,
    "exclude": False,
    "confidence": 0.6,
    "at_once": False,
    "advice": "",
    "vendor": "",
    "sources": ["log"],
    "fact": "",
    "counter_examples": [],
    "table": "",
}


def _signature(row: Mapping[str, Any]) -> Signature:
    """Make a signature of one TOML row. Raises KeyError for a missing key, ValueError or TypeError for a
    wrong one.
    """
    names = {"class" if field.name == "fault" else field.name for field in fields(Signature)}
    unknown = set(row) - names
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}")
    if not _ID.fullmatch(row["id"]):
        raise ValueError("an id is lower-case words joined by '-'")
    pattern = row["pattern"]
    _refuse_pattern(pattern)
    return Signature(
        id=row["id"],
        title=_text(row, "title"),
        fault=_one_of(FaultClass, row["class"]),
        layer=_one_of(Layer, row["layer"]),
        role=_one_of(Role, row["role"]),
        blame=_one_of(Blame, row["blame"]),
        pattern=pattern,
        action=_one_of(Action, row["action"]),
        retry=_flag(row, "retry"),
        exclude=_flag(row, "exclude"),
        priority=int(row["priority"]),
        confidence=_share(row["confidence"]),
        at_once=_flag(row, "at_once"),
        advice=_text(row, "advice"),
        vendor=_text(row, "vendor"),
        sources=tuple(_one_of(Source, source) for source in row["sources"]),
        fact=_text(row, "fact"),
        examples=_texts(row, "examples"),
        counter_examples=_texts(row, "counter_examples"),
        table=_text(row, "table"),
    )


def _refuse_pattern(pattern: str) -> None:
    forbidden = _FORBIDDEN.search(pattern)
    if forbidden:
        raise ValueError(
            f"the pattern uses {forbidden.group()!r}: no look-around, no back-reference, no open end"
        )
    compiled = re.compile(pattern.encode())
    strange = set(compiled.groupindex) - CAPTURES
    if strange:
        raise ValueError(f"the pattern names {min(strange)!r}; the names are {', '.join(sorted(CAPTURES))}")
    if compiled.search(b""):
        raise ValueError("the pattern matches an empty line")


def _one_of(kind: type[_E], value: object) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{value!r} is none of {', '.join(str(item.value) for item in kind)}") from None


def _text(row: Mapping[str, Any], key: str) -> str:
    if not isinstance(row[key], str):
        raise TypeError(f"{key} must be text")
    return str(row[key])


def _texts(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = row[key]
    if not isinstance(values, list) or any(not isinstance(value, str) or "\n" in value for value in values):
        raise TypeError(f"{key} must be a list of single lines")
    return tuple(values)


def _flag(row: Mapping[str, Any], key: str) -> bool:
    if not isinstance(row[key], bool):
        raise TypeError(f"{key} must be true or false")
    return bool(row[key])


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError("confidence is between 0 and 1")
    return float(value)
