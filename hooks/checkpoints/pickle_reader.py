"""Reads a pickle as data: nothing that it names is imported, called or made. (pure)

`pickle.load` runs what the file says; a checkpoint may come from anybody, and half of it may be noise. So
pickletools.genops walks the opcodes on a stack of inert values: a class is its name, a call is its callee
with arguments. Anything invalid raises Broken and nothing else, and needs no more memory than the given
bytes.

Source: the documentation of each opcode in Python's pickletools.
"""

from __future__ import annotations

import pickletools
import re
import struct
from typing import Any, Callable, NamedTuple, Optional


class Broken(ValueError):
    """The bytes are no complete pickle. `is_cut`: they are the beginning of one."""

    def __init__(self, why: str, at: int, *, is_cut: bool = False) -> None:
        super().__init__(why)
        self.at = at
        self.is_cut = is_cut


class Global(NamedTuple):
    """A class or function by its name."""

    module: str
    name: str


class PersistentId(NamedTuple):
    """A persistent id: what lies beside the pickle, a tensor's storage most often."""

    id: Any


class Call:
    """What loading would have made: `what` called with `args`, then given `state`, items and entries."""

    __slots__ = ("args", "entries", "items", "state", "what")

    def __init__(self, what: Any, args: Any) -> None:
        self.what = what
        self.args = args
        self.state: Any = None
        self.items: list[Any] = []
        self.entries: dict[Any, Any] = {}

    @property
    def name(self) -> str:
        """The name of the class or function, without its module; "" for what is no name."""
        return self.what.name if isinstance(self.what, Global) else ""

    def get(self, field: str) -> Any:
        """A field of its state, or an entry where it is a mapping; None where it has none."""
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        if isinstance(state, dict) and field in state:
            return state[field]
        return self.entries.get(field)


class _Key:
    """A key that is never looked up, by identity: hashing deeply nested values could crash the interpreter."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


MARK = object()
MEMO = rb"(?:q.|r....|\x94)?"
NUMBER = rb"(K.|M..|J....|\x88|\x89)"
ENDS = re.compile(r"exhausted|not enough|remain|no newline|unexpected end")
PLAIN = (str, int, bytes, float, type(None), Call)


def walk(content: bytes, at: int = 0) -> tuple[Any, int]:
    """The value of the pickle that begins at a byte, and where it ends. Raises Broken."""
    return _run(_Machine(), content, at)


def persistent_ids(content: bytes) -> list[Any]:
    """The persistent ids of a pickle in the order in which they are met. Raises Broken."""
    machine = _Machine()
    _run(machine, content, 0)
    return machine.stored


def _run(machine: _Machine, content: bytes, at: int) -> tuple[Any, int]:
    place = at
    try:
        for opcode, argument, where in pickletools.genops(content[at:] if at else content):
            place = at + (where or 0)
            if opcode.name == "STOP":
                return machine.top(), place + 1
            step = STEPS.get(opcode.name)
            if step:
                step(machine, argument)
            else:
                machine.stack.append(argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        is_cut = ENDS.search(str(error)) is not None
        raise Broken(str(error) or "it is no pickle", place, is_cut=is_cut) from None
    raise Broken("it has no end", place, is_cut=True)


def number_after(content: bytes, key: str) -> Optional[int]:
    """The whole number (or truth) that is stored right behind a text in a pickle, without walking it. None
    where the text has no number behind it, or not always the same one. Keys of a dict are written so, by
    every protocol from 2 on.
    """
    told = {_int(found[1]) for found in re.finditer(_key_of(key) + NUMBER, content, re.DOTALL)}
    return told.pop() if len(told) == 1 else None


def repeated_number_after(content: bytes, key: str) -> Optional[int]:
    """The number that a list right after a text repeats; None if its numbers differ, or without a list."""
    listed = re.finditer(
        _key_of(key) + rb"\]" + MEMO + rb"\(?((?:" + NUMBER + rb")+)[ae]", content, re.DOTALL
    )
    told = {_int(digits[0]) for found in listed for digits in re.finditer(NUMBER, found[1], re.DOTALL)}
    return told.pop() if len(told) == 1 else None


def _key_of(key: str) -> bytes:
    text = key.encode()
    long, short = (re.escape(struct.pack(form, len(text)) + text) for form in ("<I", "B"))
    return b"(?:X%b|\x8c%b)" % (long, short) + MEMO


def _int(told: bytes) -> int:
    return {b"\x88": 1, b"\x89": 0}[told] if len(told) == 1 else int.from_bytes(told[1:], "little")


class _Machine:
    """The stack and the memo of one pickle."""

    __slots__ = ("memo", "stack", "stored")

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[Any, Any] = {}
        self.stored: list[Any] = []

    def top(self) -> Any:
        """What lies uppermost; raises IndexError for nothing, ValueError for a mark."""
        if self.stack[-1] is MARK:
            raise ValueError("a mark where a value must be")
        return self.stack[-1]

    def pop(self) -> Any:
        """Take what lies uppermost."""
        self.top()
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """Take all down to the mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not MARK:
            place -= 1
            if place < 0:
                raise ValueError("no mark")
        taken = self.stack[place + 1 :]
        del self.stack[place:]
        return taken


Step = Callable[[_Machine, Any], object]


def _pushes(make: Callable[[_Machine, Any], Any]) -> Step:
    """The step that pushes what `make` takes from the stack and the opcode's argument."""
    return lambda machine, argument: machine.stack.append(make(machine, argument))


def _named(argument: str) -> Global:
    module, _, name = argument.partition(" ")
    return Global(module, name)


def _stack_global(machine: _Machine, _: Any) -> Global:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("a name that is no text")  # noqa: TRY004 - of the file, not of a caller
    return Global(module, name)


def _reduce(machine: _Machine, _: Any) -> Any:
    """An OrderedDict is a dict for whoever reads it; all else stays what it was to be."""
    args, what = machine.pop(), machine.pop()
    if not isinstance(what, Global) or what.name not in ("OrderedDict", "defaultdict"):
        return Call(what, args)
    made: dict[Any, Any] = {}
    if isinstance(args, tuple) and args and isinstance(args[0], list):  # as Python 2 wrote it
        for pair in args[0]:
            _put(made, list(pair))
    return made


def _obj(machine: _Machine, _: Any) -> Call:
    what, *args = machine.to_mark()
    return Call(what, tuple(args))


def _build(machine: _Machine, _: Any) -> None:
    state, made = machine.pop(), machine.top()
    if isinstance(made, Call):
        made.state = state


def _add(machine: _Machine, values: list[Any]) -> None:
    owner = machine.top()
    if isinstance(owner, list):
        owner.extend(values)
    elif isinstance(owner, Call):
        owner.items.extend(values)


def _set_items(machine: _Machine, values: list[Any]) -> None:
    _put(machine.top(), values)


def _put(owner: Any, values: list[Any]) -> Any:
    """Set entries, key and value behind each other; returns their owner."""
    entries = owner.entries if isinstance(owner, Call) else owner
    for place in range(0, len(values) - 1, 2):
        key = values[place]
        parts = key if isinstance(key, tuple) else (key,)
        is_plain = all(isinstance(part, PLAIN) for part in parts)
        entries[key if is_plain else _Key(key)] = values[place + 1]
    return owner


def _last(machine: _Machine, count: int) -> tuple[Any, ...]:
    at = len(machine.stack) - count
    if at < 0:
        raise ValueError("too little for a tuple")
    values = tuple(machine.stack[at:])
    del machine.stack[at:]
    return values


def _remember(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.top()


def _persistent(machine: _Machine, told: Any) -> PersistentId:
    machine.stored.append(told)
    return PersistentId(told)


_recall = _pushes(lambda machine, argument: machine.memo[int(argument)])
_extension = _pushes(lambda _, argument: Global("copyreg", f"extension {argument}"))

STEPS: dict[str, Step] = {
    "PROTO": lambda *_: None, "FRAME": lambda *_: None, "READONLY_BUFFER": lambda *_: None,
    "NEXT_BUFFER": _pushes(lambda *_: PersistentId("buffer")),
    "NONE": _pushes(lambda *_: None), "NEWTRUE": _pushes(lambda *_: True), "NEWFALSE": _pushes(lambda *_: False),
    "EMPTY_LIST": _pushes(lambda *_: []), "EMPTY_SET": _pushes(lambda *_: []), "EMPTY_TUPLE": _pushes(lambda *_: ()),
    "EMPTY_DICT": _pushes(lambda *_: {}), "MARK": _pushes(lambda *_: MARK),
    "LIST": _pushes(lambda machine, _: machine.to_mark()), "DICT": _pushes(lambda machine, _: _put({}, machine.to_mark())),
    "TUPLE": _pushes(lambda machine, _: tuple(machine.to_mark())), "FROZENSET": _pushes(lambda machine, _: tuple(machine.to_mark())),
    "TUPLE1": _pushes(lambda machine, _: _last(machine, 1)), "TUPLE2": _pushes(lambda machine, _: _last(machine, 2)),
    "TUPLE3": _pushes(lambda machine, _: _last(machine, 3)),
    "APPEND": lambda machine, _: _add(machine, [machine.pop()]), "APPENDS": lambda machine, _: _add(machine, machine.to_mark()),
    "ADDITEMS": lambda machine, _: _add(machine, machine.to_mark()),
    "SETITEM": lambda machine, _: _set_items(machine, [machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.to_mark()),
    "POP": lambda machine, _: machine.stack.pop(), "POP_MARK": lambda machine, _: machine.to_mark(), "DUP": _pushes(lambda machine, _: machine.top()),
    "MEMOIZE": _remember, "PUT": _remember, "BINPUT": _remember, "LONG_BINPUT": _remember,
    "GET": _recall, "BINGET": _recall, "LONG_BINGET": _recall,
    "GLOBAL": _pushes(lambda _, argument: _named(argument)), "STACK_GLOBAL": _pushes(_stack_global),
    "INST": _pushes(lambda machine, argument: Call(_named(argument), tuple(machine.to_mark()))),
    "OBJ": _pushes(_obj),
    "REDUCE": _pushes(_reduce), "NEWOBJ": _pushes(_reduce), "NEWOBJ_EX": _pushes(lambda machine, _: Call(*_last(machine, 3)[:2])), "BUILD": _build,
    "PERSID": _pushes(_persistent), "BINPERSID": _pushes(lambda machine, _: _persistent(machine, machine.pop())),
    "EXT1": _extension, "EXT2": _extension, "EXT4": _extension,
}  # fmt: skip
"""What an opcode does to the stack; one that is not named here pushes its argument, a number or a text."""
