"""The checks of the way to the other hosts of the job: names, routes, connections, ports. (I/O)"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftrun.hooks.checks import job_hosts
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, NoAnswer

# --- dns

UNRESOLVED_SHOWN = 5


def judge_dns(found: Mapping[str, str], _thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when a host has no address; degraded when it has this node's loopback only, which is right for this
    node alone.
    """
    if not found:
        return [skipped("no hosts are named, and no job is around")]
    lost = [
        f"{host}: {told.lstrip('!')}"
        for host, told in found.items()
        if told == job_hosts.NO_ANSWER or told[:1] in ("!", "")
    ]
    if lost:
        message = f"{len(lost)} of {len(found)} host(s) do not resolve: {'; '.join(lost[:UNRESOLVED_SHOWN])}"
        return [bad(message, value=float(len(lost)), unit="hosts", evidence=tuple(lost[:UNRESOLVED_SHOWN]))]
    selves = [
        host
        for host, told in found.items()
        if host != "localhost" and all(one.startswith("127.") or one == "::1" for one in told.split())
    ]
    if len(selves) > 1:
        message = (
            f"{len(selves)} hosts resolve to this node's loopback: {', '.join(selves[:UNRESOLVED_SHOWN])}"
        )
        return [degraded(message, evidence=tuple(selves[:UNRESOLVED_SHOWN]))]
    return [ok(f"{len(found)} host(s) resolve")]


# --- routes

ROUTES = "/proc/net/route"
UP, REJECT = 0x1, 0x200


class Route(NamedTuple):
    """A network as numbers, and the interface that leads there."""

    network: int
    mask: int
    interface: str
    is_rejected: bool


class RoutesFacts(NamedTuple):
    """The text of the kernel's table, and the IPv4 addresses of each host."""

    table: str
    addresses: Mapping[str, tuple[str, ...]]


def probe_routes(machine: Machine, thresholds: Thresholds) -> RoutesFacts:
    """Read the table and resolve the hosts; what does not resolve is the matter of another check."""
    try:
        told = job_hosts.resolved(machine, thresholds)
    except NoAnswer:
        told = {}
    resolved = {
        host: tuple(one for one in text.split() if one.count(".") == 3)
        for host, text in told.items()
        if text[:1] != "!"
    }
    return RoutesFacts(machine.read(ROUTES) or "", resolved)


def parsed_routes(text: str) -> list[Route] | None:
    """The routes that are in force; None where this is no table of routes."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Iface"):
        return None
    rows = [line.split() for line in lines[1:]]
    return [
        Route(_address(row[1]), _address(row[7]), row[0], bool(int(row[3], 16) & REJECT))
        for row in rows
        if len(row) >= 8 and int(row[3], 16) & UP
    ]


def judge_routes(facts: RoutesFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when a host of the job has no route, or a default route is wanted and missing."""
    routes = parsed_routes(facts.table)
    if routes is None:
        return [unknown("the kernel's table of routes cannot be read")]
    told = []
    default = next((route for route in routes if not route.mask and not route.is_rejected), None)
    if default is None and thresholds["default"]:
        told.append(bad("there is no default route"))
    lost = [
        host
        for host, found in facts.addresses.items()
        if found and not any(_leads(routes, one) for one in found)
    ]
    if lost:
        lines = tuple(f"{host} {', '.join(facts.addresses[host])}" for host in lost[:8])
        told.append(bad(f"no route to {len(lost)} host(s): {', '.join(lost[:8])}", evidence=lines))
    if told:
        return told
    if not facts.addresses and default is None:
        return [skipped("no hosts are named, and no default route is wanted")]
    way = f"default by {default.interface}" if default else "no default route"
    return [ok(f"{way}, {len(facts.addresses)} host(s) have a route")]


def _leads(routes: Sequence[Route], address: str) -> bool:
    """Whether the longest matching route leads anywhere; the loopback needs none in this table."""
    import socket  # where hosts are named

    try:
        number = struct.unpack("!I", socket.inet_aton(address))[0]
    except OSError:
        return True  # not an address that could be judged
    if number >> 24 == 127:
        return True
    fitting = [route for route in routes if number & route.mask == route.network]
    return bool(fitting) and not max(fitting, key=lambda route: route.mask).is_rejected


def _address(text: str) -> int:
    """A hexadecimal address in the machine's byte order."""
    return int.from_bytes(int(text, 16).to_bytes(4, sys.byteorder), "big")


# --- peers

UNREACHED_SHOWN = 8


def probe_peers(machine: Machine, thresholds: Thresholds) -> dict[str, str]:
    """What came of a connection to each host but this one."""
    here = os.uname().nodename.partition(".")[0]
    others = [host for host in job_hosts.all_of(machine, thresholds) if host.partition(".")[0] != here]
    port, limit_s = int(thresholds["port"]), thresholds["limit_s"]
    return job_hosts.asked(machine, others, lambda host: job_hosts.connect(host, port, limit_s), limit_s)


def judge_peers(found: Mapping[str, str], _thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when none of several is reached, degraded when most are not, a note for each of few."""
    if not found:
        return [skipped("no other hosts are named, and no job is around")]
    lost = {host: told.lstrip("!") for host, told in found.items() if told not in ("ok", "refused")}
    if not lost:
        return [ok(f"{len(found)} host(s) answer")]
    lines = tuple(f"{host}: {told}" for host, told in list(lost.items())[:UNREACHED_SHOWN])
    if len(found) == 1:
        return [unknown(f"{lines[0]}; there is no other host to compare with", next(iter(lost)))]
    if len(lost) == len(found):
        message = f"none of {len(found)} hosts answers: {lines[0]}"
        return [bad(message, value=float(len(lost)), unit="hosts", evidence=lines)]
    if len(lost) * 2 > len(found):
        message = f"{len(lost)} of {len(found)} hosts do not answer"
        return [degraded(message, value=float(len(lost)), unit="hosts", evidence=lines)]
    return [note(f"it does not answer: {told}", host) for host, told in lost.items()]


# --- port-free

SOCKETS = ("/proc/net/tcp", "/proc/net/tcp6")
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
LISTEN = "0A"


class PortFreeFacts(NamedTuple):
    """The ports that matter, the kernel's tables of sockets, and its range for outgoing connections (text)."""

    ports: tuple[int, ...]
    tables: tuple[str, ...]
    outgoing: str


def probe_port_free(machine: Machine, thresholds: Thresholds) -> PortFreeFacts:
    """Read the tables."""
    wanted = list(thresholds["ports"]) or [os.environ.get("MASTER_PORT", "")]
    ports = tuple(int(port) for port in wanted if str(port).isdigit())
    # Without a port there is nothing to be looked up in tables of thousands of sockets.
    texts = machine.read_all([*SOCKETS, RANGE]) if ports else {}
    return PortFreeFacts(
        ports, tuple(texts[table] for table in SOCKETS if table in texts), texts.get(RANGE, "")
    )


def listeners(text: str) -> dict[int, int]:
    """Port -> uid of who listens there."""
    rows = [line.split() for line in text.splitlines()]
    return {
        int(row[1].rsplit(":", 1)[1], 16): int(row[7]) for row in rows if len(row) > 9 and row[3] == LISTEN
    }


def judge_port_free(facts: PortFreeFacts, _thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded where somebody listens: this job cannot start here, the node is not to blame."""
    if not facts.ports:
        return [skipped("no port is named")]
    if not facts.tables:
        return [unknown("the kernel's table of sockets cannot be read")]
    held = {port: uid for table in facts.tables for port, uid in listeners(table).items()}
    found = [
        degraded(
            f"user {held[port]} listens at port {port}",
            str(port),
            evidence=(f"port {port} uid {held[port]}",),
        )
        for port in facts.ports
        if port in held
    ]
    if found:
        return found
    ends = [int(word) for word in facts.outgoing.split() if word.isdigit()]
    risky = [port for port in facts.ports if len(ends) == 2 and ends[0] <= port <= ends[1]]
    if risky:
        message = f"free, and in the range of outgoing connections ({ends[0]} to {ends[1]}): it may be taken at any time"
        return [note(message, str(port)) for port in risky]
    return [ok(f"free: {', '.join(map(str, facts.ports))}")]


FUNCTIONS = {
    "dns": (job_hosts.resolved, judge_dns),
    "routes": (probe_routes, judge_routes),
    "peers": (probe_peers, judge_peers),
    "port-free": (probe_port_free, judge_port_free),
}
