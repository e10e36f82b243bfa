"""What reads something that another user, a job or a sick node has written, each with valid inputs. (I/O in one folder)

A parser returns a value or raises one of `refusals`, a line for people. Anything else is a traceback, and a defect.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast
from zlib import crc32

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.cluster import claim
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.health import past_checks, rendezvous
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.formats import expand_node_list
from ftrun.hooks.ssh import pool
from ftrun.hooks.staging import partner_map, records
from ftrun.slurm.client import parse
from ftrun.slurm.client.cluster import NodeRow
from ftrun.supervisor.cluster import remote
from ftrun.supervisor.controller import agent_link, user_requests
from ftrun.supervisor.model.errors import UnreadableRun
from ftrun.supervisor.model.types import PRELAUNCH_SCHEMA
from ftrun.supervisor.nodes import drain_rules, ledger, machines, recheck_rules, remote_checks, spool
from ftrun.supervisor.nodes.drain_rules import BadRequest, DrainRequest
from ftrun.supervisor.publish import follower, metrics
from ftrun.supervisor.site.drain_service import DrainService
from ftrun.supervisor.site.orders import read_orders
from ftrun.supervisor.store import attempt_dir, flag_files, journal, live_steps, site_nodes
from ftrun.supervisor.store.append_log import AppendLog
from ftrun.supervisor.telemetry import heartbeats

FROZEN = Path(__file__).resolve().parents[1] / "frozen" / "v1"
NOW_S = 1_800_000_000.0
REQUEST = DrainRequest(
    "a" * 32, "c", "n0", "7", "llm-1", "hardware-gpu", "gpu.lost", NOW_S,
    want="report", digest="ab" * 32, confidence=0.9, ran_s=60.0,
)  # fmt: skip


class Parser(NamedTuple):
    """`read(data)`: the value of one input. `seeds`: valid inputs, which must all be read. `weight`: its share of the inputs."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...] = ()
    weight: int = 10
    refuses_all: bool = False  # also valid inputs


def _json(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


FINDING = {
    "check": "gpu-check",
    "severity": "bad",
    "message": "7 of 8",
    "fault": "hardware-gpu",
    "device": "0",
    "evidence": ["x"],
    "value": 7.0,
    "unit": "gpus",
}
REPORT = {
    "schema": 1,
    "kind": "check",
    "node": "n0",
    "at_s": NOW_S,
    "findings": [FINDING],
    "machine": {"product": "x", "serial": "7", "id": "f"},
}
NODES = {
    "schema": 1, "written_s": NOW_S - 60, "cluster": "c",
    "nodes": [{"node": "n0", "score": 1.0, "corroborated": True, "classes": ["network"], "quarantined_until_s": NOW_S + 900}],
}  # fmt: skip
BEAT = {
    "rank": 0,
    "pid": 7,
    "host": "n0",
    "step": 3,
    "phase": "x",
    "n": 1,
    "t": NOW_S,
    "stack_signal": 10,
    "own_s": 1.0,
    "own_n": 1,
    "still": None,
}
AGENT = {"v": 1, "seq": 0, "at": NOW_S, "start": 1, "kind": "agent.started", "data": {"host": "n0"}}
ORDERS = {"schema": 1, "paused": None, "denied": {"7": {"at_s": 1.0, "by": "root", "why": "x"}}}
CLAIM = {"token": "t", "name": "c", "user": "ann", "since_s": NOW_S, "by": "up", "folder": "/var/tmp/x"}
RECORD = (
    "JobId=7 JobName=train UserId=bob(1000) GroupId=bob(1000) Priority=1 Nice=0 Account=(null) QOS=(null) JobState=FAILED Reason=None "
    "Dependency=(null) Requeue=1 Restarts=2 ExitCode=3:0 TimeLimit=1-02:00:00 Partition=main ReqNodeList=(null) ExcNodeList=n[3,7] "
    "NodeList=n[0-1] BatchHost=n0 NumNodes=2 TRES=cpu=1 Command=/a WorkDir=/b Comment=ftrun:llm-1:0badcafe:1 StdErr=/e StdOut=/o"
)  # fmt: skip


def parsers(folder: str) -> list[Parser]:  # noqa: C901  many small ones
    """All of them; files that they read are written below `folder`."""
    place = Path(folder)
    (place / "public").mkdir()
    (place / "answers").mkdir()
    (place / "requests").mkdir()
    (place / "run" / "journal").mkdir(parents=True)

    def by_file(path: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
        def written(data: bytes) -> object:
            path.write_bytes(data)
            return read()

        return written

    def published(data: bytes) -> object:
        site_nodes._cache.clear()
        return by_file(place / "public" / "nodes.json", lambda: site_nodes.quarantined_nodes(folder, NOW_S))(
            data
        )

    def left(data: bytes) -> object:
        """The way of a request that is not signed: form, then what the service says of it."""
        waits = spool.WaitingRequest(f"u1001/{'a' * 32}.req", "a" * 32, 1001, NOW_S)
        return DrainService.authentic(cast("DrainService", _Desk()), waits, data, used=True)

    def claimed(data: bytes) -> object:
        text = data.replace(b"\0", b"")[:4000] or b"x"
        claim.PATH = str(place / "claim")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(claim.PATH)
        os.symlink(text, claim.PATH)
        return claim.take(dict.fromkeys(claim.FIELDS, "mine"))

    def surveyed(data: bytes) -> object:
        answer = pool.Answer("n0", pool.ANSWERED, 0, data.decode("utf-8", "replace"), "", 0.1, "")
        return remote._parsed(answer), pool._report_of(answer)

    def checked(data: bytes) -> object:
        report = node_report.parse_report(data.decode("utf-8", "replace"))
        row = NodeRow("n0", "idle", frozenset(), "", None, ("main",))
        found = remote_checks._report("answered", report, "")
        return drain_rules.confirm_sick(found, row, [found], drain_rules.WORN), machines.machine_text(
            found.machine
        )

    def called(data: bytes) -> object:
        board = rendezvous.BoardServer.__new__(rendezvous.BoardServer)
        board._token, board._notes = "secret", {}
        ours, theirs = socket.socketpair()
        with ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            ours.sendall(data[: 1 << 16] + b"\n")
            ours.shutdown(socket.SHUT_WR)
            board._answer(theirs)
            with contextlib.suppress(ConnectionError):  # it hung up before it had read all
                return ours.recv(1 << 16)
            return b""

    def agents(data: bytes) -> object:
        path = place / "agent.jsonl"
        path.write_bytes(sealed(data))
        return [agent_link._problem(record) for _, record in agent_link._records(str(path), 0)]

    def history(data: bytes) -> object:
        """The record in the place of another one of a real run; the fold must stand it or refuse the journal."""
        at = crc32(data) % len(lines)
        with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError, RecursionError):
            at = int(json.loads(data)["seq"]) % len(lines)
        run_file.write_bytes(b"".join((*lines[:at], sealed(data), *lines[at + 1 :])))
        return journal.load_run(str(place / "run"))

    def slurm(data: bytes) -> object:
        text = data.decode("utf-8", "surrogateescape")
        with contextlib.suppress(ValueError):  # only Slurm and administrators write these
            parse.parse_partitions(text)
            parse.parse_node_usage(text, text)
        return parse.parse_details(text, "7")

    log = AppendLog(str(place / "log"))
    log.append("answered", id="a" * 32)
    (log_file,) = (place / "log").iterdir()
    book = {
        "kind": "answered",
        "at": NOW_S,
        "id": "a" * 32,
        "key": "7:x",
        "uid": 7,
        "node": "n0",
        "verdict": "refused",
        "why": "x",
    }
    taken = {"kind": "taken", "at": NOW_S, "id": "a" * 32, "key": "7:x", "uid": 7}

    def kept(data: bytes) -> object:
        log_file.write_bytes(sealed(data))
        return drain_rules.DrainHistory.of(log.read()).asked(7, NOW_S), log.read()

    lines: list[bytes] = []
    for path in sorted(FROZEN.glob("*/*/journal/*.jsonl")):
        if "recovered" in path.parts:
            lines += path.read_bytes().splitlines(keepends=True)
    lines = [journal.record_line({**_unsealed(line), "seq": number}) for number, line in enumerate(lines)]
    records_of_runs = {json.dumps(_unsealed(line)).encode() for line in lines}
    run_file = place / "run" / "journal" / "000000-submit.jsonl"
    entry = {
        "schema": ledger.SCHEMA,
        "id": "x",
        "at_s": NOW_S,
        "node": "n0",
        "what": "incident",
        "run": "r",
        "signature": "s",
        "fault": "network",
        "detail": {"strike": True},
    }
    (place / "nodes").mkdir()

    def noted(data: bytes) -> object:
        (place / "nodes" / "a.jsonl").write_bytes(sealed(data))
        return ledger.Reader(folder).entries() or "none"

    seal = records.Seal("step-1", "7.1", "n0", files={"": records.File(3, 1, 2, "ab" * 32)})
    made = manifest.content(manifest.Manifest({"a.pt": manifest.Entry(3, "ab" * 32)}, 7, 2, ("n0",), 0.0, {}))
    ring = {
        "version": partner_map.VERSION,
        "token": "1",
        "to": {"n0": "n1"},
        "jobs": {"n0": "7"},
        "lost": [],
        "limit": "40%",
        "kept": {},
    }
    copies = {
        "version": partner_map.VERSION,
        "partner": "n1",
        "given": [["1", "s"]],
        "kept": [["n0", "1", "s"]],
        "way": "srun",
    }
    (place / "copies").mkdir()
    past = {"schema": 1, "nodes": {"n0": {"at_s": NOW_S - 60, "rows": [FINDING]}}}
    answer = {"schema": 1, "id": "a" * 32, "at_s": NOW_S, "node": "n0", "verdict": "refused", "why": "x"}
    leave = {"v": 1, "token": "t", "nodes": ["n0"], "aside": ["n1"], "why": "x"}

    return [
        Parser("requests and reports, as payloads", drain_rules.from_payload, (drain_rules.to_payload(REQUEST),), (BadRequest,), 20),
        Parser("requests left without a signature", left, (drain_rules.to_payload(REQUEST),), (), 20),
        Parser("answers in the spool", by_file(place / "answers" / f"{'a' * 32}.json", lambda: spool.read_answer(folder, "a" * 32)), _json(answer)),
        Parser("nodes.json", published, _json(NODES), (), 20),
        Parser("orders.json", by_file(place / "orders.json", lambda: read_orders(folder)), _json(ORDERS)),
        Parser("the journal of the service", kept, _json(book, taken)),
        Parser("reports of nodes", checked, _json(REPORT), (), 20),
        Parser("answers of hosts to a survey", surveyed, _json({"done": [{"host": "n0"}], "failed": None}, {"done": [], "failed": {"step": "claim", "why": "x"}}, REPORT)),
        Parser("claims on a host", claimed, _json(CLAIM), (HostError, OSError), 20, refuses_all=True),
        Parser("lines to the board of a preflight", called, _json({"token": "secret", "put": "n0", "value": 1}, {"token": "secret", "prefix": "n"}, {"token": "no"})),
        Parser("journals of runs", history, tuple(sorted(records_of_runs)), (UnreadableRun,), 3),
        Parser("journals of agents", agents, _json(AGENT)),
        Parser("beats of ranks", heartbeats.parse_beat, _json(BEAT)),
        Parser("records of staged checkpoints", lambda data: records.read_seal(data.decode("utf-8", "surrogateescape")), (records.seal_json(seal).encode(),)),
        Parser("manifests of checkpoints", manifest.parse, (made,)),
        Parser("the ring of partners", by_file(place / "ring.json", lambda: partner_map.read_ring(folder)), _json(ring)),
        Parser("copies at a partner", by_file(place / "copies" / "n0.json", lambda: partner_map.read_copies(folder, "n0")), _json(copies)),
        Parser("earlier checks of other nodes", by_file(place / "past.json", lambda: past_checks.read(str(place / "past.json"), NOW_S)), _json(past)),
        Parser("requests of a person to a run", by_file(place / "requests" / "1-stop.json", lambda: user_requests._read(str(place / "requests" / "1-stop.json"))), _json({"want": "stop", "by": "ann", "halt": True})),
        Parser("wishes to leave a node", by_file(place / "leave.1.json", lambda: flag_files.read_leave(folder, 1)), _json(leave)),
        Parser("steps that were seen", by_file(place / live_steps.FILE, lambda: live_steps.read_steps(folder)), _json({"r": [[1, 2, 3], "log", 7, 8]})),
        Parser("a hold before a launch", by_file(place / "hold", lambda: attempt_dir._prelaunch_hold(str(place / "hold"), ["n0", "n1"])), _json({"schema": PRELAUNCH_SCHEMA, "held": True, "bad": {"n0": {"check": "gpu", "fault": "hardware-gpu"}}})),
        Parser("totals of earlier publishers", by_file(place / "floor", lambda: metrics._read_floor(str(place / "floor"))), _json([["ftrun_runs", "ann", 1.0]])),
        Parser("the cursor of a publisher", by_file(place / "cursor", lambda: follower._read_cursor(str(place / "cursor"))), _json({"runs": {"r": 7}})),
        Parser("the ledger of nodes", noted, _json(entry, {"schema": ledger.SCHEMA, "what": "merged", "at_s": NOW_S, "replaces": ["a.jsonl"]})),
        Parser("lists of nodes", lambda data: expand_node_list(data.decode("utf-8", "replace")), (b"n[01-03,7],gpu5",), (ValueError,)),
        Parser("Slurm's records of other users' jobs", slurm, (RECORD.encode(),), (), 10),
        Parser("reasons of drained nodes", lambda data: recheck_rules.reason_owner(data.decode("utf-8", "replace"), recheck_rules.RecheckState()), (b"ftrun: llm-1 gpu.lost 2027-01-01T00:00:00Z",)),
    ]  # fmt: skip


def sealed(record: bytes) -> bytes:
    """A record as a line of a journal, with the checksum that its writer would have written."""
    body = record.rstrip().removesuffix(b"}").replace(b"\n", b" ")
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def _unsealed(line: bytes) -> dict[str, Any]:
    record: dict[str, Any] = journal.parse_record(line.rstrip(b"\n"))
    return record


class _Desk:
    """What `DrainService.authentic` asks of its service."""

    _book = drain_rules.DrainHistory()
    limits = drain_rules.Limits()

    @staticmethod
    def now() -> float:
        return NOW_S
