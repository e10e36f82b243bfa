"""Who is to blame: from the lines of one cause to nodes, or to nobody. (pure)

Only what the signature allows is looked for. A device or node is the one that the line comes from or names; a
link blames the host in most failing pairs; a collective time-out blames the ranks that did *not* report. A
reporter is a victim unless the signature says otherwise.

Laws: where the attempt's nodes are known, no other name is ever blamed. What is seen on every node is the
job's or the cluster's fault. A device whose host is unknown blames nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from ftrun.slurm.client import nodeset
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.types import Blame, Evidence, Topology
from ftrun.supervisor.telemetry.line_owner import LABEL, NCCL_PREFIX, SYSLOG_PREFIX

ENOUGH_PAIRS = 2
"""A link is judged by counting from two witnesses on. One line is one opinion."""

ENOUGH_REPORTS = 3
"""How many ranks must report in an excerpt before a rank that does not counts as missing."""

MANY_HOSTS = 4
"""Devices that break on so many hosts of one job at once are not the cause."""

PROMPT = "prompt-on-host"
"""The signature of a shell prompt with a question to that machine."""

RECORD = "slurm-node-record"
"""The signature of the first line of a node record by scontrol."""

RECORD_LINES = 20
"""The most lines of such a record."""

BROADCAST = "syslog-broadcast"
"""The signature of the line in which a machine announces a broadcast of its log daemon."""

BROADCAST_LINES = 2
"""The broadcast follows within so many lines."""

HELP_TEXTS = {"mpi-daemon-lost": "host", "mpi-peer-lost": "peer"}
"""Signatures of MPI help texts that name a host some lines below, and in which role."""

HELP_NAMES = "mpi-help-names-host"
"""The signature of the line with that name."""

NOBODY = frozenset({"localhost", "localhost.localdomain", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104
"""Names that every host has."""

NOBODYS = ("127.", "169.254.", "172.17.0.", "fe80:", "::", "0.")
"""Prefixes of addresses that mean another host to each reader."""

_RANK_PREFIX = re.compile(
    r"^\s*(?:\[(?:default)?(?P<torchrun>\d+)\]:|(?P<srun>\d{1,6}):\s|\[rank(?P<torch>\d+)\]|\[(?P<horovod>\d+)\]<std)"
)
_RANK_INSIDE = re.compile(r"\[(?:PG[^\]]*|[^\]]*\b)[Rr]ank (?P<rank>\d+)\]")
# Log collectors put the machine's name into a field.
_FIELD = re.compile(
    r"\b(?:host|hostname|node|nodename)(?:=|\": ?\"|: )(?P<host>[A-Za-z][\w-]*\d[\w.-]*)", re.IGNORECASE
)
_SRUN_PREFIX = re.compile(r"srun: error: (?P<host>[\w.-]+): tasks? ")
_SEQUENCE = re.compile(r"SeqNum=(\d+)")
# A failed connection shows that two machines do not meet, not which of them is at fault.
_NEVER_MET = re.compile(
    r"(?:[Cc]onnect to|PollConnect|connect\(\)|route to) .{0,80}(?:timed out|No route to host|unreachable|Software caused|refused)"
)


@dataclass(frozen=True, slots=True)
class Culprits:
    """The culprits (host names, or "rank N"), whether the fault is everywhere, and the words for it."""

    names: tuple[str, ...] = ()
    everywhere: bool = False
    words: tuple[str, ...] = ()


def with_learned_ranks(evidence: Sequence[Evidence], topology: Topology) -> Topology:
    """`topology` plus what lines that name both a host and a rank say about it. Known entries stay.

    A rank that two lines put on two nodes is on neither: in a start of several steps, each step numbers its
    tasks from 0. Where no node is known, it is the one machine at whose prompt a person asked for all this.
    """
    told: dict[int, str] = {}
    topology = topology if topology.nodes else replace(topology, nodes=_asked_at(evidence))
    for line in evidence:
        rank, host = _seat(line)
        node = admitted(host, topology)
        if rank is not None and node:
            told[rank] = node if told.get(rank, node) == node else ""
    return replace(topology, rank_node={**told, **topology.rank_node}) if told else topology


def with_recorded_hosts(evidence: Sequence[Evidence]) -> list[Evidence]:
    """`evidence` with the node's name added where a line above or below gives it: in a node record
    (`NodeName=n7 ...`, then `Reason=...`), below a broadcast, and in the first line of a help text.
    """
    whole, of, told = [], {}, {}
    below = [line for line in evidence if line.signature == HELP_NAMES]
    for line in sorted(evidence, key=lambda each: each.order):
        key = HELP_TEXTS.get(line.signature, "")
        named = [each for each in below if key and _stands_below(each, line)]
        if named and not line.captures.get("host"):
            line = replace(line, captures={**line.captures, key: named[0].captures["host"]})  # noqa: PLW2901
        if line.signature == RECORD:
            of[line.file] = line
        about = of.get(line.file)
        near = about is not None and 0 < line.line - about.line <= RECORD_LINES
        if about is not None and near and "Reason=" in line.text and "host" not in line.captures:
            line = replace(line, captures={**line.captures, "host": about.captures["host"]})  # noqa: PLW2901
        if line.signature == BROADCAST:
            told[line.file] = line
        by = told.get(line.file)
        if by is not None and 0 < line.line - by.line <= BROADCAST_LINES and "host" not in line.captures:
            line = replace(line, captures={**line.captures, "host": by.captures["host"]})  # noqa: PLW2901
        whole.append(line)
    return whole


def _stands_below(named: Evidence, line: Evidence) -> bool:
    return named.file == line.file and 0 < named.line - line.line <= RECORD_LINES


def _asked_at(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The one host whose prompt is in a text that names no other; () otherwise, or for a name without a digit
    (no node).
    """
    asked = {line.captures.get("host", "") for line in evidence if line.signature == PROMPT}
    asked = asked if any(letter.isdigit() for host in asked for letter in host) else set()
    named = {host for line in evidence if (host := _host(line))}
    return tuple(asked) if len(asked) == 1 and named <= asked else ()


def writer_of(line: Evidence, topology: Topology) -> str | None:
    """Who wrote `line`: a host, or "rank N" where the host is unknown; None where the line does not say."""
    label = LABEL.match(line.text) if topology.nodes else None
    for name in [*_names_in(line), *([label["host"]] if label else [])]:
        known = admitted(name, topology)
        if known:
            return known
    return topology.nodes[0] if len(topology.nodes) == 1 else _by_file(line, topology)


def find_culprits(blame: Blame, lines: Sequence[Evidence], topology: Topology) -> Culprits:
    """The culprits by `lines`, which all have one signature with this `blame`."""
    if blame in {Blame.NODE, Blame.DEVICE}:
        return _where_it_is(blame, lines, topology)
    if blame is Blame.LINK:
        return _in_most_pairs(lines, topology)
    return Culprits()


def laggards(lines: Sequence[Evidence], spoken: Sequence[Evidence], topology: Topology) -> Culprits:
    """Whom the time-outs in `lines` accuse: ranks or nodes that did *not* report, else the rank that is
    behind.

    Writers of `spoken`, the consequences, were alive and are not missing. Where lines of a storm were only
    counted, nobody knows who reported, and nobody is missing.
    """
    by_rank = {rank: line for line in lines if (rank := rank_of(line)) is not None}
    if all(line.count == 1 for line in lines):
        absent = _absent_ranks(by_rank, spoken, topology) or _absent_nodes(lines, spoken, topology)
        if absent is not None:
            return absent
    sequence = {
        rank: int(found[1]) for rank, line in by_rank.items() if (found := _SEQUENCE.search(line.text))
    }
    lowest = min(sequence.values(), default=0)
    behind = sorted(rank for rank, number in sequence.items() if number == lowest)
    if len(sequence) > 2 and len(behind) == 1:
        return _ranks(
            behind, topology, f"of {len(sequence)} ranks the lowest collective ({lowest}) is that of"
        )
    return Culprits(words=("who waited is told, for whom is not",))


def _absent_ranks(
    reported: Collection[int], spoken: Sequence[Evidence], topology: Topology
) -> Culprits | None:
    world = topology.rank_node
    missing = sorted(set(world) - set(reported) - {rank_of(line) for line in spoken})
    # A text without a job may be an excerpt: ranks may be missing because somebody cut them out.
    most = len(reported) - 1 if topology.nodes else min(1, len(reported) // ENOUGH_REPORTS)
    if not missing or len(missing) > most:
        return None
    return _ranks(missing, topology, f"{len(reported)} of {len(world)} ranks report a time-out, without:")


def _absent_nodes(
    lines: Sequence[Evidence], spoken: Sequence[Evidence], topology: Topology
) -> Culprits | None:
    heard = {node for line in lines if (node := writer_of(line, topology)) in topology.nodes}
    alive = {writer_of(line, topology) for line in spoken}
    silent = tuple(node for node in topology.nodes if node not in heard | alive)
    if not silent or len(silent) >= len(heard):
        return None
    told = f"{len(heard)} of {len(topology.nodes)} nodes report a time-out, without: {', '.join(silent)}"
    return Culprits(silent, words=(told,))


def _ranks(ranks: Sequence[int], topology: Topology, words: str) -> Culprits:
    names = [admitted(f"rank {rank}", topology) for rank in ranks]
    told = ", ".join(
        f"rank {rank}" + (f" on {name}" if name and not name.startswith("rank ") else "")
        for rank, name in zip(ranks, names, strict=True)
    )
    return Culprits(_once(names), words=(f"{words} {told}",))


def _where_it_is(blame: Blame, lines: Sequence[Evidence], topology: Topology) -> Culprits:
    names = _once([name for line in lines for name in _located(blame, line, topology)])
    nodes = set(topology.nodes)
    if (len(nodes) > 1 and nodes <= set(names)) or (blame is Blame.DEVICE and len(names) >= MANY_HOSTS):
        words = (
            f"seen on {len(names)} of {len(nodes) or len(names)} nodes: the job or the cluster, not a node"
        )
        return Culprits(everywhere=True, words=(words,))
    if not names:
        return Culprits(words=("no line says on which node",))
    return Culprits(names, words=(f"the lines name {', '.join(names)}",))


def _located(blame: Blame, line: Evidence, topology: Topology) -> Sequence[str | None]:
    """The nodes that one line is about. Slurm folds several into one list."""
    listed = line.captures.get("host", "")
    if "[" in listed or "," in listed:
        try:
            return [admitted(name, topology) for name in nodeset.expand(listed)]
        except ValueError:
            return ()
    return (writer_of(line, topology) if blame is Blame.DEVICE else _named_node(line, topology),)


def _named_node(line: Evidence, topology: Topology) -> str | None:
    """The node that a line is about. Its writer is only a reporter, unless the line is that host's own system
    log.
    """
    captured = line.captures
    ranks = [captured.get("rank", ""), captured.get("peer", "")]
    names = [_whole(line, captured.get("host", "")), captured.get("ip", "")]
    names += [f"rank {rank}" for rank in ranks if rank.isdigit()]
    syslog = SYSLOG_PREFIX.search(line.text)
    names.append(syslog["host"] if syslog else "")
    known = next((node for name in names if (node := admitted(name, topology))), None)
    return known or (topology.nodes[0] if len(topology.nodes) == 1 else _by_file(line, topology))


def _in_most_pairs(lines: Sequence[Evidence], topology: Topology) -> Culprits:
    pairs: set[tuple[str, str]] = set()
    peers: list[str | None] = []
    for line in lines:
        peer = admitted(line.captures.get("peer") or line.captures.get("ip") or "", topology)
        if peer is None:
            continue
        peers.append(peer)
        witness = admitted(line.captures.get("host") or "", topology) or writer_of(line, topology) or ""
        if witness != peer:
            pairs.add((witness, peer))
    # With unknown nodes, a text may be one victim's excerpt: the victim reports all pairs, so it is in all.
    suspects = {name for pair in pairs for name in (pair if topology.nodes else pair[1:])}
    counted = Counter(name for pair in pairs for name in pair if name and name in suspects).most_common(2)
    if len(pairs) >= ENOUGH_PAIRS and (len(counted) == 1 or counted[0][1] > counted[1][1]):
        name, times = counted[0]
        return Culprits((name,), words=(f"{name} stands in {times} of {len(pairs)} failing pairs",))
    unanswering = _once(peers)
    if (
        len(unanswering) == 1
        and len(pairs) < ENOUGH_PAIRS
        and all(_NEVER_MET.search(line.text) for line in lines)
    ):
        words = f"one host does not reach {unanswering[0]}: the reason may be at either end, or between them"
        return Culprits(words=(words,))
    if len(unanswering) == 1:
        return Culprits(unanswering, words=(f"every failing connection leads to {unanswering[0]}",))
    return Culprits(words=("the link errors do not point at one host",))


def _names_in(line: Evidence) -> list[str]:
    """The names in a line, best first: captures of its signature, then the launcher's prefix."""
    rank = rank_of(line)
    names = [_host(line), line.captures.get("ip", ""), f"rank {rank}" if rank is not None else ""]
    return [name for name in names if name]


def _host(line: Evidence) -> str:
    """The host that a line names, by its signature or its prefix; "" for none."""
    if line.captures.get("host"):
        return _whole(line, line.captures["host"])
    found = NCCL_PREFIX.search(line.text) or SYSLOG_PREFIX.search(line.text) or _SRUN_PREFIX.search(line.text)
    found = found or _FIELD.search(line.text)
    return found["host"] if found else ""


def _whole(line: Evidence, host: str) -> str:
    """The full name in the system log's prefix, where `host` is only its end (patterns begin names with a
    letter).
    """
    prefix = SYSLOG_PREFIX.search(line.text)
    return prefix["host"] if host and prefix and prefix["host"].endswith(host) else host


def rank_of(line: Evidence) -> int | None:
    """The global rank that a line names, that its launcher put in front, or whose file it is; None for none."""
    captured = line.captures.get("rank", "")
    if captured.isdigit():
        return int(captured)
    prefix = _RANK_PREFIX.match(line.text)
    if prefix:
        return int(next(group for group in prefix.groups() if group is not None))
    inside = _RANK_INSIDE.search(line.text)
    return int(inside["rank"]) if inside else line.file_rank


def _seat(line: Evidence) -> tuple[int | None, str]:
    """The rank and the host of one process, where one part of a line gives both."""
    captured = line.captures.get("rank", "")
    if captured.isdigit() and line.captures.get("host"):
        return int(captured), line.captures["host"]
    prefix = NCCL_PREFIX.search(line.text)
    return (rank_of(line), prefix["host"]) if prefix else (None, "")


def admitted(name: str, topology: Topology) -> str | None:
    """`name` as a node of the attempt; unchanged where the attempt's nodes are unknown."""
    if not name or name in NOBODY or name.startswith(NOBODYS):
        return None
    if topology.nodes:
        return topology.node_of(name)
    return topology.node_of(name) or name


def _by_file(line: Evidence, topology: Topology) -> str | None:
    """The node whose file it is, or that the file's name has in it."""
    if line.file_node in topology.nodes:
        return line.file_node
    words = set(re.split(r"[^A-Za-z0-9-]+", line.file.rsplit("/", 1)[-1]))
    named = [node for node in topology.nodes if node in words]
    return named[0] if len(named) == 1 else None


def _once(names: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))
