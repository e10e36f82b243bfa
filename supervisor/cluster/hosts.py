"""The hosts that a user names: node sets, groups of ClusterShell, a hostfile, `localhost`. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ftrun.slurm.client import nodeset
from ftrun.slurm.cluster.plan import LOCALHOST
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.errors import UserError

_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Target:
    """One host as the user names it. `slots`: how many accelerators of it are used (of its CPUs, where it has none); 0: all."""

    name: str
    slots: int = 0


def targets(words: Sequence[str], hostfile: str = "") -> tuple[Target, ...]:
    """The hosts that words (`gpu[01-08]`, `@group`, `a,b`) or a hostfile name, in their order. Raises UserError."""
    if bool(words) == bool(hostfile):
        raise UserError("name the hosts: gpu[01-08], @group, localhost, or --hostfile FILE (one of them)")
    found = _of_file(hostfile) if hostfile else [Target(name) for word in words for name in _expanded(word)]
    if not found:
        raise UserError(f"no host in {hostfile or ' '.join(words).strip() or 'the words given'}")
    names = [target.name for target in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"named twice: {', '.join(twice)}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} is no name of a host")
    if LOCALHOST in names and len(names) > 1:
        raise UserError(
            "localhost beside other hosts: call this host by the name under which the others know it"
        )
    return tuple(found)


def _expanded(word: str) -> Iterable[str]:
    try:
        return (
            _of_groups(word)
            if "@" in re.sub(r"[\w.-]+@", "", word) or word.startswith("@")
            else nodeset.expand(word)
        )
    except ValueError as error:
        raise UserError(str(error)) from None


def _of_groups(word: str) -> list[str]:
    """The hosts of ClusterShell's groups, by the user's and the machine's groups.conf. Raises UserError."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError

    try:
        return list(NodeSet(word))
    except (NodeSetException, GroupResolverError, GroupSourceError) as error:
        raise UserError(
            f"{word}: no such group: {error} (groups are those of ClusterShell: ~/.config/clustershell/groups.conf)"
        ) from None


def _of_file(path: str) -> list[Target]:
    """The hosts of a hostfile: `host` or `host slots=8` on each line, # begins a comment. Raises UserError."""
    try:
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = 0
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key != "slots" or not value.isdigit() or int(value) < 1:
                raise UserError(
                    f"{path}:{number}: {word!r} is not understood: a line is `host` or `host slots=8`"
                )
            slots = int(value)
        found += [Target(name, slots) for name in _expanded(words[0])]
    return found
