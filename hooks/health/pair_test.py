"""`ftrun-hook pair-test`: tests the network between the nodes of a job in pairs, and names bad nodes. (I/O)

It is started on every node at once, by `srun --ntasks-per-node=1 ftrun-hook pair-test --folder DIR`, or over
SSH with `--node` and `--nodes`. Without a shared folder `--board HOST:PORT` names an address of the first
node, which then serves the notes (the token in FTRUN_PAIRS_TOKEN keeps strangers out).

Each worker opens a port for tests and posts its address on a board (`rendezvous`). The first node is the
leader: it waits for the others, posts which nodes to test in each round, and prints the verdict. A node that
does not show up is left out and not blamed. Every wait has a limit.

In the first round each node is tested with one other; a good test proves both nodes good. In the second each
suspect is tested with a proven good node, and a failure identifies it. A test is bad without a connection, or
if it is much slower than most; so if most of the network is slow, or no test is good, no node is named. If two
suspects are both well with a third, the fault lies between them. Tests of a round that share a node are in
different steps; of an odd number of nodes the last one is tested with the first.

A test measures plain TCP for some time: round trip, and bytes per second in both directions, which the
receiver counts. On the wire: one line of JSON {"token", "want": "echo" | "swallow" | "pour", "seconds"}, then
bytes. After "swallow" the server answers with one line: the bytes received and the seconds from the first to
the last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median, median_high, median_low
from typing import Any, NamedTuple, Optional

from ftrun.hooks.checks import job_hosts
from ftrun.hooks.health.rendezvous import (
    HANG_UP,
    Board,
    BoardServer,
    FolderBoard,
    Listener,
    SocketBoard,
    is_token,
    wait_for_notes,
)
from ftrun.hooks.runtime import UsageError
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.finding import BAD, NOTE, OK, UNKNOWN, Finding
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.slurm_env import node_name


class Pair(NamedTuple):
    """A test: `client` connects to `server`; tests of the same step share no node."""

    client: str
    server: str
    step: int = 0


class Measurement(NamedTuple):
    """Bytes per second of the slower direction, round trip in seconds; `why` the test failed ("": not)."""

    bytes_per_s: float = 0.0
    round_trip_s: float = 0.0
    why: str = ""


class Outcome(NamedTuple):
    """The conclusion from both rounds. `bad`: node -> why; `between`: pairs that fail together and are good
    with others; `untried`: nodes without a result; `site`: why no node is named although something failed, or
    "".
    """

    bad: Mapping[str, str]
    between: tuple[tuple[str, str], ...]
    untried: tuple[str, ...]
    site: str


def first_round(nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Every node with one other; nothing for fewer than two nodes."""
    if len(nodes) < 2:
        return ()
    pairs = [Pair(nodes[place], nodes[place + 1]) for place in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        pairs.append(Pair(nodes[0], nodes[-1], step=1))
    return tuple(pairs)


def second_round(first: Mapping[Pair, Measurement], share: float, slower: float) -> tuple[Pair, ...]:
    """Every suspect of the first round with a proven good node; nothing without both kinds."""
    good, suspects = _sorted_out(first, share, slower)
    if not good:
        return ()
    return tuple(
        Pair(good[number % len(good)], suspect, step=number // len(good))
        for number, suspect in enumerate(suspects)
    )


def evaluate(
    first: Mapping[Pair, Measurement],
    second: Mapping[Pair, Measurement],
    *,
    share: float = 0.5,
    slower: float = 10.0,
) -> Outcome:
    """The conclusion from both rounds. A test is bad below `share` of the usual bandwidth or above `slower`
    times the usual round trip. A planned test without an answer is in `first` with a `why`, and is missing in
    `second`: there it says nothing about the suspect.
    """
    good, suspects = _sorted_out(first, share, slower)
    if suspects and not good:
        return Outcome(
            {},
            (),
            tuple(suspects),
            f"no try of {len(first)} went well: a matter of the network, or of all nodes",
        )
    limits = _limits(first, share, slower)
    well = {pair: found for pair, found in first.items() if not _why(found, limits)}
    measure = _limits(well, share, slower)
    told = {pair.server: _why(found, measure) for pair, found in second.items()}
    bad = {node: why for node, why in told.items() if why}
    untried = tuple(node for node in suspects if node not in told)
    between = tuple(
        (pair.client, pair.server)
        for pair, found in first.items()
        if _why(found, limits) and not {pair.client, pair.server} & {*bad, *untried}
    )
    return Outcome(bad, between, untried, "")


def _sorted_out(
    first: Mapping[Pair, Measurement], share: float, slower: float
) -> tuple[list[str], list[str]]:
    """Proven good nodes, and those without a good test; each in the order of the plan."""
    nodes = list(dict.fromkeys(node for pair in first for node in (pair.client, pair.server)))
    limits = _limits(first, share, slower)
    good = [pair for pair, found in first.items() if not _why(found, limits)]
    proven = {node for pair in good for node in (pair.client, pair.server)}
    return [node for node in nodes if node in proven], [node for node in nodes if node not in proven]


class _Limits(NamedTuple):
    """The limits of a good test: least bytes per second, longest round trip; and the usual values."""

    bytes_per_s: float
    round_trip_s: float
    usual: Measurement


def _limits(tries: Mapping[Pair, Measurement], share: float, slower: float) -> _Limits:
    """Limits from the tests that worked; no limits if none did."""
    # A node with two tests, in an odd number of nodes, must not count twice.
    once = [one for pair, one in tries.items() if not one.why and not pair.step]
    working = once or [one for one in tries.values() if not one.why]
    if not working:
        return _Limits(0.0, float("inf"), Measurement())
    usual = Measurement(
        median_high(one.bytes_per_s for one in working), median_low(one.round_trip_s for one in working)
    )
    return _Limits(usual.bytes_per_s * share, usual.round_trip_s * slower, usual)


def _why(found: Measurement, limits: _Limits) -> str:
    """Why a test is bad, compared with all; "" if it is not."""
    if found.why:
        return found.why
    if found.bytes_per_s < limits.bytes_per_s:
        return f"{found.bytes_per_s * 8 / 1e9:.2f} Gb/s, most others have {limits.usual.bytes_per_s * 8 / 1e9:.2f}"
    if found.round_trip_s > limits.round_trip_s:
        return f"{found.round_trip_s * 1e6:.0f} us for a round trip, most others need {limits.usual.round_trip_s * 1e6:.0f}"
    return ""


CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 4096
PINGS = 30
SECONDS_MAX = 30.0


class Server:
    """Serves tests until it is closed; hangs up on clients without its token."""

    def __init__(self, address: str, token: str, limit_s: float = 10.0) -> None:
        self._token = token
        self._limit_s = limit_s
        self._listener = Listener(address, 0, self._take_part)
        self.port: int = self._listener.port

    def close(self) -> None:
        """Stop serving."""
        self._listener.close()

    def _take_part(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(*HANG_UP):
            connection.settimeout(self._limit_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked = json.loads(_line(connection))
            if not is_token(asked["token"], self._token):
                return
            if asked["want"] == "echo":
                while True:
                    byte = connection.recv(1)
                    if not byte:
                        return
                    connection.sendall(byte)
            elif asked["want"] == "pour":
                _pour(connection, min(float(asked["seconds"]), SECONDS_MAX))
                connection.shutdown(socket.SHUT_WR)
            else:
                received, seconds = _swallowed(connection)
                connection.sendall(json.dumps([received, seconds]).encode() + b"\n")


def measure_link(
    address: str, port: int, token: str, *, seconds: float = 0.5, limit_s: float = 10.0
) -> Measurement:
    """Test the way to a server, `seconds` for each direction. Never raises: `why` says what failed."""
    try:
        trip_s = _round_trip_s(address, port, token, limit_s)
        there = _poured(address, port, token, seconds, limit_s)
        back = _drawn(address, port, token, seconds, limit_s)
    except (OSError, ValueError, IndexError) as error:
        return Measurement(
            why=f"no connection: {getattr(error, 'strerror', None) or error or type(error).__name__}"
        )
    return Measurement(min(there, back), trip_s)


def _round_trip_s(address: str, port: int, token: str, limit_s: float) -> float:
    with _opened(address, port, {"token": token, "want": "echo"}, limit_s) as connection:
        trips = []
        for _ in range(PINGS):
            began = time.perf_counter()
            connection.sendall(b".")
            if not connection.recv(1):
                raise ConnectionError("the other side hung up")
            trips.append(time.perf_counter() - began)
    return median(trips)


def _poured(address: str, port: int, token: str, seconds: float, limit_s: float) -> float:
    with _opened(address, port, {"token": token, "want": "swallow"}, limit_s) as connection:
        _pour(connection, seconds)
        connection.shutdown(socket.SHUT_WR)
        received, took_s = json.loads(_line(connection))
    return float(received) / max(float(took_s), 1e-6)


def _drawn(address: str, port: int, token: str, seconds: float, limit_s: float) -> float:
    with _opened(address, port, {"token": token, "want": "pour", "seconds": seconds}, limit_s) as connection:
        received, took_s = _swallowed(connection)
    if not received:
        raise ConnectionError("the other side hung up")
    return received / max(took_s, 1e-6)


def _opened(address: str, port: int, question: dict[str, object], limit_s: float) -> socket.socket:
    connection = socket.create_connection((address, port), limit_s)
    connection.settimeout(limit_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(json.dumps(question).encode() + b"\n")
    return connection


def _pour(connection: socket.socket, seconds: float) -> None:
    chunk = memoryview(bytes(CHUNK_BYTES))
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        connection.sendall(chunk)


def _swallowed(connection: socket.socket) -> tuple[int, float]:
    """Bytes until the other side is done, and the seconds from the first of them to the last."""
    buffer = bytearray(CHUNK_BYTES)
    received = connection.recv_into(buffer)
    began_s = ended_s = time.monotonic()
    while True:
        count = connection.recv_into(buffer)
        if not count:
            return received, ended_s - began_s
        ended_s = time.monotonic()
        received += count


def _line(connection: socket.socket) -> bytes:
    """One line, read byte by byte, so that nothing behind it is consumed."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the other side hung up")
        line += byte
    return line


NAME = "pairs"
SCHEMA = 1
EXIT_BAD = 1
"""A node is named."""
EXIT_NO_VERDICT = 3
"""The workers did not all meet."""
FAULT = "network"
SEEN_LIMIT_S = 3.0


def main(arguments: list[str]) -> int:
    """Take part; the first node prints the verdict. 0: no node is named, 1: a node is, 3: no verdict."""
    words = _parser().parse_args(arguments)
    nodes = _nodes(words.nodes)
    me = node_name(words.node)
    if me not in nodes:
        raise UsageError(f"{me} is not among the nodes {','.join(nodes[:8])}: give its name by --node")
    if bool(words.folder) == bool(words.board):
        raise UsageError("give either --folder, which all nodes see, or --board HOST:PORT of the first node")
    address = words.address or _address(me)
    keeper: Optional[BoardServer] = None
    token = os.environ.get("FTRUN_PAIRS_TOKEN", "")
    if words.board:
        host, _, port = words.board.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--board {words.board}: it is HOST:PORT")
        if not token:
            raise UsageError("--board needs a secret word in FTRUN_PAIRS_TOKEN, the same on all nodes")
        keeper = BoardServer(_address(host), int(port), token) if me == nodes[0] else None
        board: Board = SocketBoard(host, int(port), token, words.meet)
    else:
        board = FolderBoard(_folder(words.folder))
    verdict = None
    try:
        verdict = Worker(board, me, nodes, words).run(address)
    except OSError as error:
        print(f"ftrun-hook: pair-test: {words.board or words.folder}: {error}", file=sys.stderr)
    finally:
        if keeper:  # until the others have read the verdict
            absent = verdict["absent"] if verdict else ()
            wait_for_notes(board, "seen.", lambda found: len(found) + len(absent) >= len(nodes), SEEN_LIMIT_S)
            keeper.close()
    if me == nodes[0] or words.all:
        _print(verdict, as_json=words.json)
    if verdict is None:
        return EXIT_NO_VERDICT
    return EXIT_BAD if verdict["bad"] else 0


class Worker:
    """One node's part in a test."""

    def __init__(self, board: Board, me: str, nodes: Sequence[str], words: argparse.Namespace) -> None:
        self._board = board
        self._me = me
        self._nodes = nodes
        self._words = words

    def run(self, address: str) -> Optional[dict[str, Any]]:
        """Take part in both rounds and return the verdict; None without one."""
        token = secrets.token_hex(16)
        server = Server(address, token, self._words.limit)
        try:
            place = {"node": self._me, "address": address, "port": server.port, "token": token}
            self._board.put(f"here.{self._me}", place)
            leads = self._me == self._nodes[0]
            if leads:
                self._board.put("plan.1", self._invited())
            for number in (1, 2):
                plan = self._awaited(f"plan.{number}", self._words.meet + number * self._round_s())
                if plan is None:
                    return None
                self._try(number, plan)
                if leads:
                    self._lead_on(number, plan)
            verdict = self._awaited("verdict", self._round_s())
            self._board.put(f"seen.{self._me}", None)
            return verdict
        finally:
            server.close()

    def _invited(self) -> dict[str, Any]:
        """Wait for the workers, and plan the first round with those that came."""
        here = wait_for_notes(
            self._board, "here.", lambda found: len(found) >= len(self._nodes), self._words.meet
        )
        places = {one["node"]: one for one in here.values() if one.get("node") in self._nodes}
        present = [node for node in self._nodes if node in places]
        return {"pairs": first_round(present), "places": places, "present": present}

    def _try(self, number: int, plan: Mapping[str, Any]) -> None:
        """Run the tests of a round in which this node is the client, one after the other."""
        for place, row in enumerate(plan["pairs"]):
            pair = Pair(*row)
            if pair.client == self._me:
                at = plan["places"][pair.server]
                limits = {"seconds": self._words.seconds, "limit_s": self._words.limit}
                found = measure_link(at["address"], at["port"], at["token"], **limits)
                self._board.put(f"result.{number}.{place}", found)

    def _lead_on(self, number: int, plan: Mapping[str, Any]) -> None:
        """Wait for the results of a round; then post the next plan, or the verdict."""
        count = len(plan["pairs"])
        steps = 1 + max((row[2] for row in plan["pairs"]), default=0)
        prefix = f"result.{number}."
        told = wait_for_notes(self._board, prefix, lambda found: len(found) >= count, self._round_s() * steps)
        by_place = {int(name[len(prefix) :]): Measurement(*row) for name, row in told.items()}
        results = [(Pair(*row), by_place.get(place)) for place, row in enumerate(plan["pairs"])]
        if number == 1:
            first = {pair: found or Measurement(why="no result came") for pair, found in results}
            pairs = second_round(first, self._words.share, self._words.slower)
            self._board.put(
                "plan.2",
                {**plan, "pairs": pairs, "first": [[*pair, *found] for pair, found in first.items()]},
            )
            return
        first = {Pair(*row[:3]): Measurement(*row[3:]) for row in plan["first"]}
        second = {pair: found for pair, found in results if found}
        outcome = evaluate(first, second, share=self._words.share, slower=self._words.slower)
        self._board.put("verdict", _verdict(self._nodes, plan["present"], outcome, {**first, **second}))

    def _awaited(self, name: str, limit_s: float) -> Optional[dict[str, Any]]:
        found: Optional[dict[str, Any]] = wait_for_notes(
            self._board, name, lambda notes: name in notes, limit_s
        ).get(name)
        return found

    def _round_s(self) -> float:
        """How long a step of a round may take: three tests, each with its limit."""
        return float(3 * self._words.limit + 2 * self._words.seconds)


def findings(verdict: Mapping[str, Any]) -> dict[str, Finding]:
    """A finding for each node, in the form of a check."""
    found = {}
    for node in verdict["nodes"]:
        if node in verdict["bad"]:
            found[node] = Finding(NAME, BAD, verdict["bad"][node], FAULT, "", (verdict["bad"][node],))
        elif node in verdict["absent"]:
            found[node] = Finding(NAME, UNKNOWN, "it did not take part")
        elif node in verdict["untried"]:
            found[node] = Finding(NAME, UNKNOWN, verdict["site"] or "nothing is known of it")
        else:
            others = [other for pair in verdict["between"] if node in pair for other in pair if other != node]
            told = (
                f"the way to {others[0]} is bad, and it is well with others"
                if others
                else "it is well with others"
            )
            found[node] = Finding(NAME, NOTE if others else OK, told, device=others[0] if others else "")
    return found


def _verdict(
    nodes: Sequence[str], present: Sequence[str], outcome: Outcome, tried: Mapping[Pair, Measurement]
) -> dict[str, Any]:
    """The verdict. If more than half of the nodes would be named, it is the network's fault."""
    many = len(outcome.bad) * 2 > len(present)
    alone = "only one node came" if len(present) < 2 else ""
    return {
        "schema": SCHEMA,
        "kind": NAME,
        "nodes": list(nodes),
        "absent": [node for node in nodes if node not in present],
        "bad": {} if many else dict(outcome.bad),
        "untried": [*outcome.untried, *(outcome.bad if many else ())],
        "between": [list(pair) for pair in outcome.between],
        "site": "most nodes are bad: a matter of the network" if many else outcome.site or alone,
        "pairs": [
            {"client": pair.client, "server": pair.server, **found._asdict()} for pair, found in tried.items()
        ],
    }


def _print(verdict: Optional[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(verdict))
    elif verdict is None:
        print("ftrun-hook: pair-test: the nodes did not all meet: no verdict", file=sys.stderr)
    else:
        for node, one in findings(verdict).items():
            print(f"{one.severity:<9} {node}: {one.message}")
        if verdict["site"]:
            print(f"{UNKNOWN:<9} {verdict['site']}")


def _nodes(told: str) -> list[str]:
    machine = Machine()
    try:
        found = job_hosts.all_of(machine, {"hosts": told, "hosts_file": ""})
    except NoAnswer as error:
        raise UsageError(f"--nodes {told}: {error}") from None
    if not found:
        raise UsageError("no nodes are named, and no job is around: give --nodes")
    return found


def _folder(told: str) -> str:
    """A folder of this very step, if there is one: notes of an earlier test would lead to closed ports."""
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    return os.path.join(told, f"{job}.{step}") if job and step else told


def _address(node: str) -> str:
    """The address of this node for others; a loopback address only if exactly that was asked for."""
    told = job_hosts.resolve(node) if node else ""
    found = [] if told.startswith("!") else told.split()  # else it says in words why there is none
    useful = [word for word in found if not word.startswith(("127.", "::1"))]
    if useful:
        return useful[0]
    if found and (node == "localhost" or node.startswith("127.")):
        return found[0]
    # A name that means the loopback here (Debian's /etc/hosts): take the address towards others. Nothing is
    # sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _parser() -> argparse.ArgumentParser:
    text = "Try the network between the nodes; start it on each of them at once."
    parser = parser_of("pair-test", text, "--json")
    add = parser.add_argument
    add("--nodes", default="", metavar="LIST", help="all nodes (default: those of the job)")
    add("--node", default="", metavar="NAME", help="this node's name in the list (default: Slurm's)")
    add("--address", default="", help="where others reach this node (default: of its name)")
    add("--folder", default="", metavar="DIR", help="a new folder that all nodes see, where they meet")
    add("--board", default="", metavar="HOST:PORT", help="without a folder: an address of the first node")
    add("--meet", type=float, default=30.0, metavar="S", help="how long to wait for all nodes (30)")
    add("--seconds", type=float, default=0.5, metavar="S", help="of each direction of a try (0.5)")
    add("--limit", type=float, default=10.0, metavar="S", help="a silence that long ends a try (10)")
    add("--share", type=float, default=0.5, help="of the usual bandwidth, below which a try is bad (0.5)")
    add("--slower", type=float, default=10.0, help="times the usual round trip, above which it is bad (10)")
    add("--all", action="store_true", help="every node prints the verdict, not the first only")
    return parser
