"""Fast replacements of `dataclass` and `replace` for frozen records with slots. (pure)

The standard library compiles half a dozen methods for each record class, which took a quarter of the processor
time until a supervisor looked at its first job. A frozen record with slots needs one compiled method, its
__init__; the others are shared. Special cases (own methods under these names, a record as base, fields that
are no argument or are not compared) go to the standard library, as does every other kind of dataclass.

Folding a journal replaces records of some thirty fields for each line, so `replace` fills a draft, a writable
object with the same slots, and then turns it into the record.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

__all__ = ["columns", "dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def dataclass(cls: type | None = None, /, **given: Any) -> Any:
        """As in the standard library; fast for `@dataclass(frozen=True, slots=True)`."""
        if cls is None and given == {"frozen": True, "slots": True}:
            return _record
        return dataclasses.dataclass(cls, **given)

    def replace(record: Any, /, **changes: Any) -> Any:
        """As in the standard library; fast for records of `dataclass` above."""
        cls = record.__class__
        drafted = cls.__dict__.get("__drafted__")  # of this class, not of a record below it
        if drafted is None:
            if cls.__dict__.get("__setattr__") is not _no_set:  # not a record of this module
                return dataclasses.replace(record, **changes)
            lines = "".join(f" new.{name} = old.{name}\n" for name in cls.__slots__)
            found: dict[str, Any] = {"draft": type(cls.__name__, (), {"__slots__": cls.__slots__})}
            exec(f"def drafted(old):\n new = draft()\n{lines} return new", found)  # noqa: S102  as in _init
            drafted = cls.__drafted__ = staticmethod(found["drafted"])
        draft = drafted.__func__(record)
        for name, value in changes.items():
            try:
                setattr(draft, name, value)
            except AttributeError:
                raise TypeError(f"{cls.__qualname__} has no field {name!r}") from None
        draft.__class__ = cls
        if hasattr(cls, "__post_init__"):
            draft.__post_init__()
        return draft


_OWN = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__reduce__"}
_MISSING = dataclasses.MISSING


_drafted: dict[
    type, Any
] = {}  # record class -> what copies a record into a writable object of the same slots


class _Factory:
    """Placeholder for an argument that was not given; prints as in the standard library."""

    def __repr__(self) -> str:
        return "<factory>"


def _record(cls: type) -> type:
    """Build a frozen record class with slots."""
    if _OWN & cls.__dict__.keys() or cls.__bases__ != (object,) or any(map(_is_odd, cls.__dict__.values())):
        return dataclasses.dataclass(frozen=True, slots=True)(cls)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    fields = dataclasses.fields(made)
    made.__dataclass_params__.frozen = made.__dataclass_params__.eq = True
    made.__init__ = _init(made, fields)
    made.__eq__, made.__hash__, made.__reduce__ = _of_values(tuple(field.name for field in fields))
    made.__repr__, made.__setattr__, made.__delattr__ = _repr, _no_set, _no_delete
    return made  # type: ignore[no-any-return]


def _is_odd(value: object) -> bool:
    """Whether a field's default asks for more than a plain value."""
    if not isinstance(value, dataclasses.Field):
        return False
    plain = value.init and value.repr and value.compare and value.hash is None
    return not plain or value.kw_only is True


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    given: dict[str, Any] = {"_set": object.__setattr__, "_missing": _Factory()}
    words, lines = ["self"], []
    for number, field in enumerate(fields):
        name, word, value = field.name, field.name, field.name
        if field.default is not _MISSING:
            given[f"_default{number}"] = field.default
            word += f"=_default{number}"
        elif field.default_factory is not _MISSING:
            given[f"_make{number}"] = field.default_factory
            word += "=_missing"
            value = f"_make{number}() if {name} is _missing else {name}"
        words.append(word)
        lines.append(f"  _set(self, {name!r}, {value})\n")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()\n")
    body = "".join(lines) or "  pass\n"
    text = f"def _all({', '.join(given)}):\n def __init__({', '.join(words)}):\n{body} return __init__"
    found: dict[str, Any] = {}
    exec(text, {}, found)  # noqa: S102  field names, which are identifiers
    made = found["_all"](**given)
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return made


def _of_values(names: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """__eq__, __hash__ and __reduce__ for a record with these fields."""
    get: Any = operator.attrgetter(*names) if names else lambda _: ()
    values: Any = get if len(names) != 1 else lambda record: (get(record),)

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    def __reduce__(self: Any) -> Any:  # noqa: N807
        return self.__class__, values(self)

    return __eq__, __hash__, __reduce__


def _repr(self: Any) -> str:
    inside = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
    return f"{self.__class__.__qualname__}({inside})"


def _no_set(_self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_delete(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def columns(of: object, names: str) -> dict[str, Any]:
    """Attributes as JSON has them. `names`: words `key`, or `key=path.of.attributes` where these differ."""
    found = {}
    for word in names.split():
        key, _, path = word.partition("=")
        value = operator.attrgetter(path or key)(of)
        found[key] = (
            list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
        )
    return found
