"""Merges the parts of a set, and has the nodes confirm that all parts are of one save. (I/O)

Every node of a start has a part of a set, or reports that it has nothing. A file that several nodes have must
be the same on all. The result does not depend on which node merges, or how often.

A name that is saved again (`last`) may show the present save on one node and the previous one on another. But
none begins the next save before all have finished this one. So the node that is about to assemble a set first
writes down its parts (`asked.json`), and each node of one confirms that its part is that one and still
unchanged some time later: a node with an older save would by then have begun the newer one. If the nodes'
counts of saves differ, that time is long. A set with files of one node only needs no confirmation.
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
    """A set: its files with the node that each is taken from, and the nodes whose part or report is missing.
    `why`: why it can never be published ("" if it can). `key` identifies these parts, so that two sets never
    mix. `is_again`: a node saw the name saved before in this start.
    """

    files: Mapping[str, tuple[File, str]]
    missing: Sequence[str]
    is_file: bool
    is_proven: bool
    key: str
    why: str = ""
    is_again: bool = False

    def is_whole(self) -> bool:
        """Whether nothing is missing; for a single file one node is enough."""
        return bool(self.files) and (self.is_file or not self.missing)


def generation(seal: Seal) -> str:
    """A short name of a part's content: a part that is sealed again with other content gets another one."""
    rows = [f"{path}\0{one.size_bytes}\0{one.mtime_ns}" for path, one in sorted(seal.files.items())]
    return _digest([seal.name, seal.token, seal.node, str(seal.proven), *rows])


def merge_parts(parts: Mapping[str, Seal], expected: Sequence[str]) -> MergedSet:
    """The set of these parts, complete with those of all `expected` nodes. All checksums are known."""
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
    is_proven, is_again = all(part.proven for part in parts.values()), any(one.save > 1 for one in holders)
    return MergedSet(files, missing, is_file, is_proven, key, why, is_again)


def takeover_s(expected: Sequence[str], node: str) -> Optional[float]:
    """How long a set is complete and unpublished before this node, too, assembles it; None: it never does."""
    names = sorted(expected)
    if node not in names:
        return None
    place = names.index(node)
    return TAKEOVER_S * place if place < TAKEOVERS_MAX else None


def _clash(files: Mapping[str, object]) -> str:
    """An error if a path is a file on one node and a folder on another; "" otherwise."""
    folders = {path[:end] for path in files for end, letter in enumerate(path) if letter == "/"}
    both = sorted(folders & set(files))
    return f"{both[0]} is a file on one node and a folder on another" if both else ""


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def unconfirmed_nodes(disk: Disk, to: Publishing, parts: Mapping[str, Seal], node: str) -> Sequence[str]:
    """Ask the nodes for confirmation; returns those that have not confirmed yet. Raises OSError."""
    wanted = {name: [generation(part), part.save] for name, part in parts.items() if part.files}
    if len(wanted) < 2:
        return ()
    text = json.dumps(wanted, sort_keys=True)
    if read_text(to.asked) != text:
        disk.put(to.asked, text.encode(), node)
    return [name for name in sorted(wanted) if read_text(to.word(name)) != _word(text)]


class ConsensusRequest(NamedTuple):
    """A request to confirm that this node's part is `own` (a `generation`). `word`: the confirmation;
    `is_even`: all nodes count the same number of saves; `save`: the highest count.
    """

    own: str
    word: str
    is_even: bool
    save: int


def consensus_request(to: Publishing, node: str) -> Optional[ConsensusRequest]:
    """The request to this node; None without one, or if it is confirmed already. Raises OSError."""
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
    """Write this node's confirmation. Raises OSError."""
    disk.make(os.path.dirname(to.word(node)))
    disk.put(to.word(node), word.encode(), node)


def _word(text: str) -> str:
    """The confirmation of exactly these parts: if one of them changes, all nodes are asked again."""
    return hashlib.sha256(text.encode()).hexdigest()
