"""Hostile variants of valid inputs: bytes that are damaged, and JSON in which a value, a key or the order is another. (pure)

Everything follows from the seed of `random.Random`, so a failure is found again by its number.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

BYTES_MAX = 1 << 17

TOKENS = (
    b"NaN", b"-Infinity", b"1e999", b"-0.0", b"1e308", b"9" * 400, b"9" * 5000, b"null", b"true", b'""', b"{}", b"[]", b"\\u0000",
    b"\\ud800", b"\x1b]0;x\x07", b"\x1b[2J", b"\n", b"\r\n", b"\0", b"\0" * 64, b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"../../../etc/passwd",
    b"%s%n", b"<script>", b"' UserId=root(0) JobState=NODE_FAIL", b"[" * 3000, b'{"a":' * 3000, b'[{"a":' * 3000, b"n[0-99999999]", b"|" * 40,
    "\u202e\u2066".encode(), b"{node}", b"A" * 9000, b",", b"=", b" ", b"\t",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 63, -(1 << 64), 10**400, 0.5, -1.5, 1e308, float("inf"), float("-inf"), float("nan"), "", "x",
    "0", "\0", "\n", "\x1b[31m", "\ud800", "\u202e", "../x", "/etc/passwd", "n[0-3]", "a" * 5000, "9" * 5000, "NaN", "1e999", [], [[]], {}, {"": None},
    [None], [1, 2, 3], {"a": 1}, [[1, "x"]], ["x", "y"], {"node": {}}, [{}], [{"severity": []}],
)  # fmt: skip


def deep(depth: int) -> Any:
    """A value that is nested so deeply."""
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def _places(value: Any, found: list[tuple[Any, Any]], left: int = 200) -> None:
    rows: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in rows:
        if len(found) >= left:
            return
        found.append((value, key))
        _places(inner, found, left)


def hostile_value(random: Random) -> Any:
    """A value where nobody expects it."""
    return (
        deep(random.choice((3, 50, 300))) if random.random() < 0.02 else copy.deepcopy(random.choice(VALUES))
    )


def other_json(value: Any, random: Random) -> Any:
    """`value` (changed in place) with one to three other values, keys or rows; or another value whole."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        _places(value, places)
        if not places or random.random() < 0.02:
            return hostile_value(random)
        holder, key = random.choice(places)
        deed = random.random()
        if deed < 0.7:
            holder[key] = hostile_value(random)
        elif deed < 0.8:
            del holder[key]
        elif deed < 0.9 and isinstance(holder, dict):
            holder[random.choice(("", "x", "\x1b", "node", "schema", "v", "9" * 300))] = holder[key]
        elif isinstance(holder, list) and len(holder) < 100:
            holder.extend([holder[key]] * random.choice((1, 2, 300)))
    return value


def damaged(text: bytes, random: Random) -> bytes:
    """The bytes with one to four places changed, cut, doubled or filled with something hostile."""
    found = bytearray(text)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(found) + 1)
        deed = random.random()
        if deed < 0.25 and found:
            found[at % len(found)] = random.randrange(256)
        elif deed < 0.4 and found:
            found[at % len(found)] ^= 1 << random.randrange(8)
        elif deed < 0.65:
            found[at : at + random.choice((0, 1, 8))] = random.choice(TOKENS)
        elif deed < 0.8:
            del found[at : at + random.choice((1, 4, 64))]
        elif deed < 0.9:
            found[at:at] = found[at // 2 : at]
        else:
            del found[at:]
    return bytes(found[:BYTES_MAX])


def variant(text: bytes, others: tuple[bytes, ...], random: Random) -> bytes:
    """One hostile variant of a valid input; `others`: more valid ones, to be mixed with it."""
    deed = random.random()
    if deed < 0.5:
        try:
            value = json.loads(text)
        except ValueError:
            return damaged(text, random)
        return json.dumps(other_json(value, random)).encode("utf-8", "surrogatepass")[:BYTES_MAX]
    if deed < 0.55:
        other = random.choice(others)
        return text[: random.randrange(len(text) + 1)] + other[random.randrange(len(other) + 1) :]
    if deed < 0.56:
        return random.randbytes(random.choice((0, 1, 16, 4096)))
    return damaged(text, random)
