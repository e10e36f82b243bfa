"""Laws of the service over many histories, on a virtual cluster: who is drained, by whose word, and how many at most."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from ftrun.slurm.client.cluster import NodeRow, NodeUsage, PartitionRow, SubmitRequest
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.commands.munge import GOOD, REPLAYED, Credential
from ftrun.supervisor.nodes import drain_rules
from ftrun.supervisor.nodes.drain_rules import BadRequest, DrainRequest, Limits
from ftrun.supervisor.nodes.recheck_rules import CheckReport
from ftrun.supervisor.nodes.spool import Spool, WaitingRequest
from ftrun.supervisor.site.drain_service import DrainService, site_dir
from ftrun.supervisor.store.append_log import AppendLog
from tests.fake_slurm.cluster import Engine, MemoryCluster

ASKED = DrainRequest("0" * 32, "c", "n0", "7", "llm-1", "hardware-gpu", "gpu.lost", 1000.0)
BAD = {"check": "gpu-check", "severity": "bad", "message": "7 of 8", "fault": "hardware-gpu"}
SICK, WELL = CheckReport("answered", (BAD,)), CheckReport("answered", (BAD | {"severity": "ok"},))
AWAY = CheckReport("unreachable", why="no route")


def row(name: str = "n0", *, heard: bool = True, reason: str = "", state: str = "idle") -> NodeRow:
    flags = frozenset({"drain"} if reason else set()) | (frozenset() if heard else {"not_responding"})
    return NodeRow(name, state, flags, reason, None, ("main",))


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("node", "n0;reboot"), ("node", "n0 State=DOWN"), ("node", "n[0-9]"), ("node", ""), ("node", "ALL,"), ("run", "x y"),
        ("run", "a\nb"), ("signature", "x Reason=y"), ("job", "7,8"), ("job", "-1"), ("id", "../../etc/passwd"), ("fault", "A"),
        ("seen_s", -1), ("seen_s", "now"), ("seen_s", True), ("seen_s", float("inf")), ("node", 7), ("for", "login"), ("schema", 2),
    ],
)  # fmt: skip
def test_a_request_has_a_narrow_form(changed: str, value: object) -> None:
    """What is claimed reaches commands and reasons, so nothing but plain names and numbers passes."""
    assert drain_rules.from_payload(drain_rules.to_payload(ASKED)) == ASKED
    told = json.loads(drain_rules.to_payload(ASKED)) | {changed: value}
    with pytest.raises(BadRequest):
        drain_rules.from_payload(json.dumps(told).encode())


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"[" * 4000, b"x" * 5000, b"\xff", b"null"])
def test_what_is_no_request_is_told_so(payload: bytes) -> None:
    """Whatever somebody signs."""
    with pytest.raises(BadRequest):
        drain_rules.from_payload(payload)


def test_a_credential_counts_for_an_hour_and_once() -> None:
    """By munge's word and by our own clock."""
    limits = Limits()
    refused = drain_rules.refused_credential
    assert refused(900.0, 1000.0, limits, expired=False, used=False) == ""
    assert "once" in refused(900.0, 1000.0, limits, expired=False, used=True)
    assert "older" in refused(900.0, 1000.0, limits, expired=True, used=False)
    assert "older" in refused(900.0, 4600.0, limits, expired=False, used=False)
    assert "future" in refused(2000.0, 1000.0, limits, expired=False, used=False)


@pytest.mark.parametrize(
    ("stays", "wrong"),
    [
        ((NodeUsage("7", 5, ("n0",), 500.0, None),), ""),
        ((NodeUsage("7", 5, ("n0", "n1"), 500.0, 990.0),), ""),
        ((NodeUsage("7", 5, ("n1",), 100.0, 400.0), NodeUsage("7", 5, ("n0",), 500.0, 990.0)), ""),
        ((NodeUsage("7", 6, ("n0",), 500.0, None),), "no job 7 of yours"),
        ((NodeUsage("7", -1, ("n0",), 500.0, None),), "no job 7 of yours"),
        ((), "no job 7 of yours"),
        ((NodeUsage("7", 5, ("n1",), 500.0, None),), "was not on n0"),
        ((NodeUsage("7", 5, ("n0",), 2000.0, None),), "at that time"),
        ((NodeUsage("7", 5, ("n0",), 100.0, 300.0),), "at that time"),
    ],
)
def test_the_signer_must_have_been_there(stays: tuple[NodeUsage, ...], wrong: str) -> None:
    """By what Slurm says of the signer's own jobs; several launches of one job count each."""
    assert wrong in drain_rules.refused_stay(ASKED, 5, stays, 1100.0, Limits())
    if not wrong:
        assert not drain_rules.refused_stay(ASKED, 5, stays, 1100.0, Limits())
    assert drain_rules.refused_stay(ASKED, 5, stays, 100_000.0, Limits())


def test_caps_count_what_slurm_shows() -> None:
    """Drains of ftrun's in each partition of the node, whoever made them; one node always may."""
    rows = {f"n{i}": row(f"n{i}", reason="ftrun: a b c" if i < 2 else "") for i in range(40)}
    main, small = (
        PartitionRow("main", True, True, tuple(rows)),
        PartitionRow("small", True, False, ("n3", "n4")),
    )

    def refused(
        node: str, share: float, drained: Sequence[float] = (), parts: Sequence[PartitionRow] = (main,)
    ) -> str:
        limits = Limits(share=share, per_hour=2)
        return drain_rules.refused_cap(node, rows, parts, drained_s=drained, now_s=10_000.0, limits=limits)

    assert refused("n3", 0.10) == ""
    assert "2 of 40" in refused("n3", 0.05)
    assert "within the last hour" in refused("n3", 0.10, (9000.0, 9500.0))
    assert refused("n3", 0.10, (1000.0, 9500.0)) == ""
    assert refused("n3", 0.10, (), (main, small)) == ""
    rows["n4"] = row("n4", reason="ftrun: a b c")
    assert "small" in refused("n3", 0.50, (), (main, small))


@pytest.mark.parametrize(
    ("report", "heard", "peers", "sick"),
    [
        (SICK, True, [WELL], True),
        (SICK, True, [], True),
        (SICK, True, [AWAY], True),
        (SICK, True, [SICK, WELL], True),
        (SICK, True, [SICK, SICK], False),
        (WELL, True, [WELL], False),
        (WELL, False, [WELL], False),
        (CheckReport("answered", (BAD | {"severity": "degraded"},)), True, [], False),
        (CheckReport("answered", (BAD | {"fault": "config"},)), True, [], False),
        (CheckReport("answered", ()), False, [], False),
        (AWAY, True, [WELL], False),
        (AWAY, False, [WELL], True),
        (CheckReport("timeout"), False, [], True),
        (CheckReport("refused", why="host key"), False, [], False),
        (CheckReport("speechless"), False, [], False),
    ],
)
def test_a_node_is_sick_when_the_service_sees_it(
    report: CheckReport, heard: bool, peers: list[CheckReport], sick: bool
) -> None:
    """Bad by its own checks and not by its peers' alike, or out of reach for SSH and Slurm both; every no has its words."""
    told, why = drain_rules.confirm_sick(report, row(heard=heard), peers)
    assert told is sick
    assert why


@pytest.mark.parametrize("flag", sorted(drain_rules.ON_PURPOSE))
def test_what_was_switched_off_or_rebooted_is_not_sick(flag: str) -> None:
    """Out of reach because power saving, a reboot or a maintenance wants it so: silence says nothing about the node."""
    silent = NodeRow("n0", "idle", frozenset({"not_responding", flag}), "", None, ("main",))
    told, why = drain_rules.confirm_sick(AWAY, silent, [WELL])
    assert not told
    assert flag in why


class MemorySpool(Spool):
    """A spool in memory: name -> (whose, content)."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, bytes]] = {}
        self.answers: dict[str, Mapping[str, Any]] = {}

    def look(self) -> tuple[list[WaitingRequest], int]:
        return [WaitingRequest(name, name[:-4], uid) for name, (uid, _) in sorted(self.files.items())], 0

    def read(self, waiting: WaitingRequest) -> bytes | None:
        return self.files[waiting.name][1] if waiting.name in self.files else None

    def remove(self, name: str) -> bool:
        return self.files.pop(name, None) is not None

    def answered(self, request_id: str) -> bool:
        return request_id in self.answers

    def answer(self, request_id: str, facts: Mapping[str, Any]) -> None:
        assert request_id not in self.answers
        self.answers[request_id] = facts

    def forget_old_answers(self, now_s: float) -> None:
        del now_s


class Cut(BaseException):
    """A death at a point of a round."""


class Site:
    """A virtual cluster of twelve nodes with three users, each with a job on some of them, and the truth about each node."""

    def __init__(self, home: Path, luck: Random) -> None:
        self.home, self.luck = str(home), luck
        self.nodes = [f"n{i}" for i in range(12)]
        self.engine = Engine({"main": self.nodes}, slots=9)
        self.cluster = MemoryCluster(self.engine)
        self.spool = MemorySpool()
        self.opened_before: set[bytes] = set()
        self.limits = Limits(
            share=luck.choice([0.0, 0.2, 0.5]), per_hour=luck.randint(1, 4), per_user=luck.randint(1, 8)
        )
        self.truth = dict.fromkeys(self.nodes, WELL)
        self.jobs: dict[str, tuple[str, tuple[str, ...]]] = {}
        for user in ("ann", "ben", "cat"):
            mine = luck.sample(self.nodes, 4)
            argv = ("-N4", "-w", ",".join(mine), "job.sh")
            told = MemoryCluster(self.engine, user=user).submit(SubmitRequest("t", argv, b"", {}, "/"))
            self.jobs[user] = (told.job_id, tuple(mine))
        self.engine.advance(30)
        self.promised: dict[str, tuple[str, str]] = {}  # id -> user, node

    def opened(self, content: bytes) -> Credential | None:
        """Munge in a nutshell: who signed, when, and whether it was opened before."""
        if not content.startswith(b"{"):
            return None
        told = json.loads(content)
        status = REPLAYED if content in self.opened_before else GOOD
        self.opened_before.add(content)
        payload = told["payload"].encode()
        return Credential(status, told["uid"], told["at"], payload)

    def look(self, nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        return {node: self.truth[node] for node in nodes}

    def ask(self) -> None:
        """Somebody asks for something, often for what is not theirs."""
        user = self.luck.choice(list(self.jobs))
        job, mine = self.jobs[self.luck.choice([user, user, "ann"])]
        node = self.luck.choice([self.luck.choice(mine), self.luck.choice(self.nodes)])
        asked = DrainRequest(
            secrets.token_hex(16), "", node, job, f"run-{user}", "hardware-gpu", "gpu.lost", self.engine.now()
        )
        uid = crc32(user.encode())
        content = json.dumps(
            {"uid": uid, "at": self.engine.now(), "payload": drain_rules.to_payload(asked).decode()}
        ).encode()
        forged = self.luck.random() < 0.1
        name = f"{asked.id}.req"
        self.spool.files[name] = (uid + forged, content if self.luck.random() < 0.9 else b"rubbish")
        self.promised[asked.id] = (user, node)

    def round(self) -> None:
        """One round of the service, perhaps cut."""
        left = [self.luck.randint(1, 25)]

        def crash(_point: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Cut

        desk = DrainService(
            self.home,
            self.cluster,
            self.spool,
            self.look,
            self.limits,
            self.opened,
            self.engine.now,
            crash=crash,
        )
        with contextlib.suppress(Cut):
            desk.round()

    def ours(self) -> set[str]:
        return {name for name, seen in self.cluster.nodes().items() if seen.reason.startswith("ftrun:")}


@pytest.mark.parametrize("seed", [*range(40), 152, 307])
def test_over_any_history_only_sick_nodes_of_the_asking_user_are_drained_and_few(
    tmp_path: Path, seed: int
) -> None:
    """Caps of partition and hour hold, nothing healthy goes, nobody drains where they were not, every request has one answer."""
    luck = Random(seed)
    site = Site(tmp_path, luck)
    drained_at: list[float] = []
    for _ in range(25):
        for _ in range(luck.randint(0, 3)):
            site.ask()
        node = luck.choice(site.nodes)
        site.truth[node] = luck.choice([SICK, SICK, WELL, AWAY])
        before = site.ours()
        site.round()
        new = site.ours() - before
        drained_at += [site.engine.now()] * len(new)
        for name in new:
            assert site.truth[name] is SICK, (seed, name)
            reason = site.cluster.nodes()[name].reason
            assert name in site.jobs[reason.split()[1].removeprefix("run-")][1], (seed, reason)
        if new:
            assert len(site.ours()) <= max(1, int(site.limits.share * 12)), seed
        site.engine.advance(luck.choice([10, 300, 2000]))
        now = site.engine.now()
        assert sum(now - at < 3600 for at in drained_at) <= site.limits.per_hour, seed
        if luck.random() < 0.2 and site.ours():
            back = sorted(site.ours())[0]
            site.cluster.resume(back, site.cluster.nodes()[back].reason)
    for _ in range(4):
        site.round()
        site.engine.advance(400)  # what Slurm may not have noticed yet is answered after SlurmdTimeout
    assert site.spool.files == {}
    kinds = [r["verdict"] for r in AppendLog(site_dir(site.home)).read() if r["kind"] == "answered"]
    assert len(kinds) == len(site.spool.answers), seed


@pytest.mark.parametrize("point", ["drain:before", "drain:after"])
def test_who_drained_says_so_however_late(tmp_path: Path, point: str) -> None:
    """A service that dies at the drain and is away for hours: a node that bears its drain is told as drained, another is not."""
    site = Site(tmp_path, Random(1))
    site.limits = Limits(share=1.0, per_hour=9, per_user=9)
    job, mine = site.jobs["ann"]
    site.truth[mine[0]] = SICK
    now_s, uid = site.engine.now(), crc32(b"ann")
    asked = DrainRequest("c" * 32, "", mine[0], job, "run-ann", "hardware-gpu", "gpu.lost", now_s)
    payload = drain_rules.to_payload(asked).decode()
    content = json.dumps({"uid": uid, "at": now_s, "payload": payload}).encode()
    site.spool.files[f"{asked.id}.req"] = (uid, content)

    def desk(crash: Callable[[str], None]) -> DrainService:
        given = (site.home, site.cluster, site.spool, site.look, site.limits, site.opened, site.engine.now)
        return DrainService(*given, crash=crash)

    def cut(here: str) -> None:
        if here == point:
            raise Cut

    with pytest.raises(Cut):
        desk(cut).round()
    site.engine.advance(3 * 3600.0)
    (answer,) = desk(lambda _point: None).round()

    assert ("drained" if point == "drain:after" else "refused") == answer.verdict
    assert (mine[0] in site.ours()) == (point == "drain:after")


def test_a_job_that_slurm_will_not_be_asked_about_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real Slurm may call a number an invalid id and exit with an error: that request is refused, and the next one is dealt with."""
    site = Site(tmp_path, Random(1))
    site.limits = Limits(share=1.0, per_hour=9, per_user=9)
    job, mine = site.jobs["ann"]
    site.truth[mine[0]] = SICK
    now_s, uid = site.engine.now(), crc32(b"ann")
    for number, told in (("a", "4000000000"), ("b", job)):
        asked = DrainRequest(number * 32, "", mine[0], told, "run-ann", "hardware-gpu", "gpu.lost", now_s)
        payload = drain_rules.to_payload(asked).decode()
        content = json.dumps({"uid": uid, "at": now_s, "payload": payload}).encode()
        site.spool.files[f"{asked.id}.req"] = (uid, content)
    stays = site.cluster.stays

    def particular(job_id: str) -> tuple[NodeUsage, ...]:
        if job_id == "4000000000":
            raise RefusedForGood("Invalid job id: 4000000000")
        return stays(job_id)

    monkeypatch.setattr(site.cluster, "stays", particular)
    desk = DrainService(
        site.home, site.cluster, site.spool, site.look, site.limits, site.opened, site.engine.now
    )
    assert ["refused", "drained"] == [answer.verdict for answer in desk.round()]


@pytest.mark.drills
def test_the_same_over_thousands_of_histories(tmp_path: Path) -> None:
    """Seeds beyond those of every run."""
    for seed in range(40, 2000):
        test_over_any_history_only_sick_nodes_of_the_asking_user_are_drained_and_few(
            tmp_path / str(seed), seed
        )
