"""Whether the parts of a name that is saved again and again are all of one save. (I/O)

How it thinks. Of a new name every part that is there belongs to it. Of `last`, which is written anew every few minutes, one node may show the save of now and another one
still the save before; together they would look whole, and be none. Nothing in the files tells. But ranks save together: none begins the
next save before all have done with this one. So whoever is about to put a set together first writes down which parts it has, and every node that has one
gives its word that its part is that one, and still stands as it was sealed, some time after that was asked. A node that shows an older save would by then have begun
with the newer one, which others had finished before anybody asked. Each node also counts the saves that it has seen; where they differ that time is long, since one of
them may be late, or has missed one. Whoever gave its word counts on from the highest.

A set that only one node has anything of needs no word.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks import union
from ftrun.hooks.disk import Disk
from ftrun.hooks.staged import Publishing, Seal

__all__ = ["Asked", "asked", "give", "missing"]


def missing(disk: Disk, to: Publishing, parts: Mapping[str, Seal], node: str) -> Sequence[str]:
    """The nodes whose word is still to come, after having asked for it. Raises OSError."""
    wanted = {name: [union.generation(part), part.save] for name, part in parts.items() if part.files}
    if len(wanted) < 2:
        return ()
    text = json.dumps(wanted, sort_keys=True)
    if _read(to.asked) != text:
        disk.put(to.asked, text.encode(), node)
    return [name for name in sorted(wanted) if _read(to.word(name)) != _word(text)]


class Asked(NamedTuple):
    """What this node is asked: whether its part is `own` (`union.generation`); the `word` to give for it, whether all count as many saves, and the highest count."""

    own: str
    word: str
    is_even: bool
    save: int


def asked(to: Publishing, node: str) -> Optional[Asked]:
    """What this node is to give its word for; None where nobody asks, or has it. Raises OSError."""
    text = _read(to.asked)
    try:
        wanted = {name: (str(own), int(save)) for name, (own, save) in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return None
    if node not in wanted or _read(to.word(node)) == _word(text):
        return None
    saves = {save for _, save in wanted.values()}
    return Asked(wanted[node][0], _word(text), len(saves) == 1, max(saves))


def give(disk: Disk, to: Publishing, node: str, word: str) -> None:
    """This node's word. Raises OSError."""
    disk.make(os.path.dirname(to.word(node)))
    disk.put(to.word(node), word.encode(), node)


def _word(text: str) -> str:
    """For these very parts of all nodes: when one is another, all are asked anew."""
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""
