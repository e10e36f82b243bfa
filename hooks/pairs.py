"""`ftrun-hook pairs`: started on every node at once, tries the network between them in pairs and names the node that is ill. (I/O)

How it thinks. Each worker opens a port for tests and says on a board where it is; the first node of the list leads: it waits for the others, says who is tried with whom
(pairing.py), and again for the second round, and tells the verdict. A node that does not come is left out, and nothing is held against it by that: its
worker may not have been started. Every wait has an end, so a worker that dies costs its own tries only; if the leader dies there is no verdict.

Started by `srun --ntasks-per-node=1 ftrun-hook pairs --folder DIR`, or over SSH with `--node` and `--nodes`; without a shared folder `--board HOST:PORT` names an address of
the first node, where it keeps the notes (the token in FTRUN_PAIRS_TOKEN keeps strangers out).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ftrun.hooks import pairing
from ftrun.hooks.board import Board, FolderBoard, Notes, SocketBoard, wait
from ftrun.hooks.checks import job_hosts
from ftrun.hooks.errors import UsageError
from ftrun.hooks.findings import BAD, NOTE, OK, UNKNOWN, Finding
from ftrun.hooks.machine import Machine, NoAnswer
from ftrun.hooks.pairing import Measured, Outcome, Pair
from ftrun.hooks.throughput import Server, measured

__all__ = ["EXIT_BAD", "EXIT_NO_VERDICT", "NAME", "findings", "main"]

NAME = "pairs"
SCHEMA = 1
EXIT_BAD = 1
"""A node is named."""
EXIT_NO_VERDICT = 3
"""The workers did not find together."""
FAULT = "network"
SEEN_LIMIT_S = 3.0


def main(arguments: list[str]) -> int:
    """Take part; the first node prints the verdict. 0 nobody is named, 1 somebody is, 3 no verdict."""
    words = _parser().parse_args(arguments)
    nodes = _nodes(words.nodes)
    me = words.node or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if me not in nodes:
        raise UsageError(f"{me} is not among the nodes {','.join(nodes[:8])}: give its name by --node")
    if bool(words.folder) == bool(words.board):
        raise UsageError("give either --folder, which all nodes see, or --board HOST:PORT of the first node")
    address = words.address or _address(me)
    keeper: Optional[Notes] = None
    token = os.environ.get("FTRUN_PAIRS_TOKEN", "")
    if words.board:
        host, _, port = words.board.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--board {words.board}: it is HOST:PORT")
        if not token:
            raise UsageError("--board needs a secret word in FTRUN_PAIRS_TOKEN, the same on all nodes")
        keeper = Notes(_address(host), int(port), token) if me == nodes[0] else None
        board: Board = SocketBoard(host, int(port), token, words.meet)
    else:
        board = FolderBoard(_folder(words.folder))
    verdict = None
    try:
        verdict = Worker(board, me, nodes, words).run(address)
    except OSError as error:
        print(f"ftrun-hook: pairs: {words.board or words.folder}: {error}", file=sys.stderr)
    finally:
        if keeper:  # until the others have read the verdict
            absent = verdict["absent"] if verdict else ()
            wait(board, "seen.", lambda found: len(found) + len(absent) >= len(nodes), SEEN_LIMIT_S)
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
        """Come, be tried twice, and return the verdict; None where there is none."""
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
        """Who came, and who is tried with whom in the first round."""
        here = wait(self._board, "here.", lambda found: len(found) >= len(self._nodes), self._words.meet)
        places = {one["node"]: one for one in here.values() if one.get("node") in self._nodes}
        present = [node for node in self._nodes if node in places]
        return {"pairs": pairing.first_round(present), "places": places, "present": present}

    def _try(self, number: int, plan: Mapping[str, Any]) -> None:
        """Make the tries of a round in which this node is the client, one after the other."""
        for place, row in enumerate(plan["pairs"]):
            pair = Pair(*row)
            if pair.client == self._me:
                at = plan["places"][pair.server]
                limits = {"seconds": self._words.seconds, "limit_s": self._words.limit}
                found = measured(at["address"], at["port"], at["token"], **limits)
                self._board.put(f"result.{number}.{place}", found)

    def _lead_on(self, number: int, plan: Mapping[str, Any]) -> None:
        """Wait for the results of a round; then the next plan, or the verdict."""
        count = len(plan["pairs"])
        steps = 1 + max((row[2] for row in plan["pairs"]), default=0)
        prefix = f"result.{number}."
        told = wait(self._board, prefix, lambda found: len(found) >= count, self._round_s() * steps)
        by_place = {int(name[len(prefix) :]): Measured(*row) for name, row in told.items()}
        results = [(Pair(*row), by_place.get(place)) for place, row in enumerate(plan["pairs"])]
        if number == 1:
            first = {pair: found or Measured(why="no result came") for pair, found in results}
            pairs = pairing.second_round(first, self._words.share, self._words.slower)
            self._board.put(
                "plan.2",
                {**plan, "pairs": pairs, "first": [[*pair, *found] for pair, found in first.items()]},
            )
            return
        first = {Pair(*row[:3]): Measured(*row[3:]) for row in plan["first"]}
        second = {pair: found for pair, found in results if found}
        outcome = pairing.judged(first, second, share=self._words.share, slower=self._words.slower)
        self._board.put("verdict", _verdict(self._nodes, plan["present"], outcome, {**first, **second}))

    def _awaited(self, name: str, limit_s: float) -> Optional[dict[str, Any]]:
        found: Optional[dict[str, Any]] = wait(self._board, name, lambda notes: name in notes, limit_s).get(
            name
        )
        return found

    def _round_s(self) -> float:
        """How long a step of a round may take: three tests, each with its limit."""
        return float(3 * self._words.limit + 2 * self._words.seconds)


def findings(verdict: Mapping[str, Any]) -> dict[str, Finding]:
    """A finding for each node, as a check would tell it."""
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
    nodes: Sequence[str], present: Sequence[str], outcome: Outcome, tried: Mapping[Pair, Measured]
) -> dict[str, Any]:
    """Everything that is known at the end. More than half of the nodes are never named: then it is the network's fault."""
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
        print("ftrun-hook: pairs: the nodes did not find together: no verdict", file=sys.stderr)
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
    """A folder of this very step, where one is around: notes of an earlier test would lead to closed ports."""
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    return os.path.join(told, f"{job}.{step}") if job and step else told


def _address(node: str) -> str:
    """The address that a name of this node has for others; one of the loopback only where just that was asked for."""
    told = job_hosts.resolve(node) if node else ""
    found = [] if told.startswith("!") else told.split()  # else it says in words why there is none
    useful = [word for word in found if not word.startswith(("127.", "::1"))]
    if useful:
        return useful[0]
    if found and (node == "localhost" or node.startswith("127.")):
        return found[0]
    # A name that means the loopback here (Debian's /etc/hosts): the address with which others would be reached. Nothing is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{message}; `ftrun-hook pairs --help` tells more")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ftrun-hook pairs",
        description="Try the network between the nodes; start it on each of them at once.",
    )
    parser.add_argument("--nodes", default="", metavar="LIST", help="all nodes (default: those of the job)")
    parser.add_argument(
        "--node", default="", metavar="NAME", help="this node's name in the list (default: Slurm's)"
    )
    parser.add_argument("--address", default="", help="where others reach this node (default: of its name)")
    parser.add_argument(
        "--folder", default="", metavar="DIR", help="a new folder that all nodes see, where they meet"
    )
    parser.add_argument(
        "--board", default="", metavar="HOST:PORT", help="without a folder: an address of the first node"
    )
    parser.add_argument(
        "--meet", type=float, default=30.0, metavar="S", help="how long to wait for all nodes (30)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.5, metavar="S", help="of each direction of a try (0.5)"
    )
    parser.add_argument(
        "--limit", type=float, default=10.0, metavar="S", help="a silence that long ends a try (10)"
    )
    parser.add_argument(
        "--share", type=float, default=0.5, help="of the usual bandwidth, below which a try is bad (0.5)"
    )
    parser.add_argument(
        "--slower", type=float, default=10.0, help="times the usual round trip, above which it is bad (10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--all", action="store_true", help="every node prints the verdict, not the first only"
    )
    return parser
