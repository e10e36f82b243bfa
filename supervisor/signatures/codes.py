"""Tables of fault codes: hundreds of one maker's numbers, each as good as a signature. (pure)

A maker who numbers faults gives each number a level, and the level says what to do. So a code has no pattern
of its own. A few signatures find codes in text (capture `code`, key `table`), and a found code counts as the
signature `<table>-<code>`, whose fields are those of its level. Of several codes on one line the worst
counts: the one whose level has the highest priority; of equals, one whose meaning is known. For a code that
the table does not have, the signature that found it counts.

A table is made at once, but its signatures only when somebody asks for one: most codes are never seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from ftrun.slurm.records import dataclass, replace

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_BETWEEN = re.compile(r"[^a-z0-9]+")
_KEYS = frozenset({"id", "title", "written", "example", "fact", "defaults", "level"})
_OF_THE_CODE = frozenset({"id", "title", "pattern", "examples", "counter_examples", "fact", "table"})
_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class Level:
    """The fields of a signature that all codes of one level share."""

    name: str
    row: Mapping[str, Any]
    priority: int


class Code(NamedTuple):
    """One number as its maker writes it. `meaning` is "" where the maker gives none."""

    code: str
    meaning: str
    level: Level


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """The codes of one maker by the id of their signature. `written` finds each code in a list of them.

    `example` is a log line with `{code}` in it, `title` is what a code of this table is called.
    """

    id: str
    title: str
    written: re.Pattern[str]
    example: str
    fact: str
    levels: tuple[Level, ...]
    codes: Mapping[str, Code]

    def worst(self, text: str) -> tuple[str, Code] | None:
        """The id and code of the highest priority that `text` names; None where it names none of this table.

        Of equals, one whose meaning is known, then the first.
        """
        names = [self.name_of(match.group()) for match in self.written.finditer(text)]
        ours = [(name, self.codes[name]) for name in names if name in self.codes]
        return max(ours, key=lambda one: (one[1].level.priority, bool(one[1].meaning)), default=None)

    def name_of(self, code: str) -> str:
        """The id of the signature of `code`, in the table or not."""
        return f"{self.id}-{_BETWEEN.sub('-', code.lower()).strip('-')}"

    def row(self, name: str) -> dict[str, Any]:
        """The row of a signature for the id `name`. Raises KeyError."""
        found = self.codes[name]
        return {
            **found.level.row,
            "id": name,
            "title": f"{self.title} {found.code} ({found.meaning or 'no public meaning'})",
            "pattern": rf"(?i)\b{re.escape(found.code)}\b",
            "examples": [self.example.replace("{code}", found.code)],
            "fact": self.fact,
        }


class SignaturesById(Mapping[str, _S], Generic[_S]):
    """Signatures by id: those of the catalog, and those of codes, made when first asked for."""

    def __init__(
        self, found: Mapping[str, _S], tables: Mapping[str, CodeTable], make: Callable[[dict[str, Any]], _S]
    ) -> None:
        self._found = found
        self._tables = {name: table for table in tables.values() for name in table.codes}
        self._make = make
        self._made: dict[str, _S] = {}

    def __getitem__(self, name: str) -> _S:
        if name in self._found:
            return self._found[name]
        if name not in self._made:
            self._made[name] = self._make(self._tables[name].row(name))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._found or name in self._tables

    def __iter__(self) -> Iterator[str]:
        yield from self._found
        yield from self._tables

    def __len__(self) -> int:
        return len(self._found) + len(self._tables)


def parse_table(raw: Mapping[str, Any]) -> CodeTable:
    """Make a table of one `[[table]]`. Raises KeyError for a missing key, ValueError or TypeError for a wrong
    one.

    A level lists its codes in `codes`, one a line: the code, then its meaning.
    """
    unknown = set(raw) - _KEYS
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}")
    if not _NAME.fullmatch(raw["id"]):
        raise ValueError("an id is lower-case words joined by '-'")
    table = CodeTable(
        id=raw["id"],
        title=raw["title"],
        written=re.compile(raw["written"]),
        example=raw["example"],
        fact=raw["fact"],
        levels=tuple(_level(raw.get("defaults", {}), level) for level in raw["level"]),
        codes={},
    )
    if "{code}" not in table.example:
        raise ValueError("the example has no {code}")
    codes: dict[str, Code] = {}
    for level, lines in zip(table.levels, (level["codes"] for level in raw["level"]), strict=True):
        for code, meaning in _lines(lines):
            name = table.name_of(code)
            if name in codes:
                raise ValueError(f"the code {code} is given twice")
            if table.written.fullmatch(code) is None:
                raise ValueError(f"the code {code} is not written as {table.written.pattern!r} says")
            codes[name] = Code(code, meaning, level)
    names = [level.name for level in table.levels]
    if len(names) > len(set(names)):
        raise ValueError("two levels have one name")
    return CodeTable(
        table.id,
        table.title,
        table.written,
        table.example,
        table.fact,
        table.levels,
        MappingProxyType(codes),
    )


def without_codes(table: CodeTable, silent: Collection[str]) -> CodeTable:
    """`table` without the codes whose signatures are in `silent`."""
    if not table.codes.keys() & set(silent):
        return table
    kept = {name: code for name, code in table.codes.items() if name not in silent}
    return replace(table, codes=MappingProxyType(kept))


def _level(defaults: Mapping[str, Any], raw: Mapping[str, Any]) -> Level:
    row = {key: value for key, value in {**defaults, **raw}.items() if key not in {"name", "codes"}}
    own = set(row) & _OF_THE_CODE
    if own:
        raise ValueError(f"a level cannot say {min(own)!r}: that is the code's own")
    return Level(raw["name"], MappingProxyType(row), int(row["priority"]))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        code, _, meaning = line.strip().partition(" ")
        if code:
            yield code, meaning.strip()
