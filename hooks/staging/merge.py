"""Which parts make up one set, and whether they are all of one save. (I/O)

Every node that took part in a start says what it has of a set, or that it has nothing. A file that several
nodes have must be the same on all of them. Whatever nodes merge the parts, and however often, the result is
the same.

Of a new name every part that is there belongs to it. Of `last`, which is written anew every few minutes, one
node may show the save of now and another still the save before; together they would look whole, and be none.
Nothing in the files tells them apart. But ranks save together: none begins the next save before all are done
with this one. So the node that is about to put a set together first writes down which parts it has. Every
node that has one of them confirms that its part is that one and is unchanged some time after the request. A
node that shows an older save would by then have begun with the newer one, which others had finished before
the request. Each node also counts the saves that it has seen. Where the counts differ that time is long,
since one node may be late or may have missed a save; a node that has confirmed counts on from the highest.

A set that only one node has anything of needs no confirmation.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.staging.copy import Disk, read_text
from ftrun.hooks.staging.records import File, Publishing, Seal

TAKEOVER_S = 5.0
TAKEOVERS_MAX = 12


class MergedSet(NamedTuple):
    """A set: its files, the node that each is taken from, and which nodes have said nothing yet.

    `why`: why it can never be published ("" where it can). `key` names this very set, for two of them never
    mix. `is_again`: its name was saved before in this start, as far as any node saw.
    """

    files: Mapping[str, tuple[File, str]]
    missing: Sequence[str]
    is_file: bool
    is_proven: bool
    key: str
    why: str = ""
    is_again: bool = False

    def is_whole(self) -> bool:
        """Whether nothing is missing; of a single file one node is enough."""
        return bool(self.files) and (self.is_file or not self.missing)


def generation(seal: Seal) -> str:
    """A short name for what a part holds: a part that is sealed anew with other content has another one."""
    rows = [f"{path}\0{one.size_bytes}\0{one.mtime_ns}" for path, one in sorted(seal.files.items())]
    return _digest([seal.name, seal.token, seal.node, str(seal.proven), *rows])


def merge_parts(parts: Mapping[str, Seal], expected: Sequence[str]) -> MergedSet:
    """What the parts of these nodes make, where those of the `expected` nodes make it whole.

    All sums are known.
    """
    files: dict[str, tuple[File, str]] = {}
    why = ""
    for node in sorted(parts):
        for path, one in parts[node].files.items():
            known = files.setdefault(path, (one, node))
            if (known[0].size_bytes, known[0].sha256) != (one.size_bytes, one.sha256):
                why = why or f"{path or parts[node].name} is not the same on {known[1]} and {node}"
    holders = [part for part in parts.values() if part.files]
    if len({part.is_file for part in holders}) > 1:
        why = why or "it is a file on one node and a folder on another"
    why = why or _clash(files)
    is_file = any(part.is_file for part in holders)
    is_alone = len(holders) == 1 and holders[0].is_alone
    missing = [node for node in expected if node not in parts and not is_alone]
    key = _digest([f"{node}={generation(parts[node])}" for node in sorted(parts)])
    return MergedSet(
        files,
        missing,
        is_file,
        all(part.proven for part in parts.values()),
        key,
        why,
        any(part.save > 1 for part in holders),
    )


def takeover_s(expected: Sequence[str], node: str) -> Optional[float]:
    """How long a set must be whole and unpublished before this node puts it together; None for one that never does.

    0 for the coordinator, which is the first node by name.
    """
    names = sorted(expected)
    if node not in names:
        return None
    place = names.index(node)
    return TAKEOVER_S * place if place < TAKEOVERS_MAX else None


def _clash(files: Mapping[str, object]) -> str:
    """A name that is a file on one node and a folder on another."""
    folders = {path[:end] for path in files for end, letter in enumerate(path) if letter == "/"}
    both = sorted(folders & set(files))
    return f"{both[0]} is a file on one node and a folder on another" if both else ""


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:16]


# ---------------------------------------------------------------------- one save, confirmed by all


def unconfirmed_nodes(disk: Disk, to: Publishing, parts: Mapping[str, Seal], node: str) -> Sequence[str]:
    """The nodes whose word is still to come, after having asked for it. Raises OSError."""
    wanted = {name: [generation(part), part.save] for name, part in parts.items() if part.files}
    if len(wanted) < 2:
        return ()
    text = json.dumps(wanted, sort_keys=True)
    if read_text(to.asked) != text:
        disk.put(to.asked, text.encode(), node)
    return [name for name in sorted(wanted) if read_text(to.word(name)) != _word(text)]


class ConsensusRequest(NamedTuple):
    """What a node is asked to confirm: that its part is `own` (a `generation`).

    `word` is the confirmation, `is_even` whether all nodes count as many saves, `save` the highest count."""

    own: str
    word: str
    is_even: bool
    save: int


def consensus_request(to: Publishing, node: str) -> Optional[ConsensusRequest]:
    """What this node is asked to confirm; None if no node asks, or it is confirmed already. Raises OSError."""
    text = read_text(to.asked)
    try:
        wanted = {name: (str(own), int(save)) for name, (own, save) in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return None
    if node not in wanted or read_text(to.word(node)) == _word(text):
        return None
    saves = {save for _, save in wanted.values()}
    return ConsensusRequest(wanted[node][0], _word(text), len(saves) == 1, max(saves))


def confirm(disk: Disk, to: Publishing, node: str, word: str) -> None:
    """This node's word. Raises OSError."""
    disk.make(os.path.dirname(to.word(node)))
    disk.put(to.word(node), word.encode(), node)


def _word(text: str) -> str:
    """For these very parts of all nodes: when one is another, all are asked anew."""
    return hashlib.sha256(text.encode()).hexdigest()
