"""Laws of the site's service: what reports of all users come to, whoever leaves them, and wherever it is cut."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from ftrun.slurm.client.cluster import NodeUsage
from ftrun.slurm.records import replace
from ftrun.supervisor.nodes import drain_rules
from ftrun.supervisor.nodes.drain_rules import DrainRequest, Limits
from ftrun.supervisor.nodes.recheck_rules import CheckReport
from ftrun.supervisor.nodes.spool import Spool
from ftrun.supervisor.site import drain_service
from ftrun.supervisor.site.database import DatabaseError, SiteDatabase
from ftrun.supervisor.site.drain_service import Answer, DrainService
from ftrun.supervisor.site.publication import Publication
from ftrun.supervisor.site.service import ReportLimits, SiteService
from ftrun.supervisor.site.standing import Event, Report
from ftrun.supervisor.store import append_log, site_nodes
from tests.unit.site.test_drain_service import AWAY, BAD, SICK, WELL, Cut, Site

WORN = CheckReport("answered", (BAD | {"severity": "degraded", "check": "gpu-ecc"},))
PROJECT = {"ann": "vision", "ben": "speech", "cat": "vision"}


class Town(Site):
    """Three users of two projects, who all have a job on n0 to n3."""

    def __init__(self, home: Path, luck: Random) -> None:
        super().__init__(home, luck)
        self.limits = Limits(share=0.5, per_hour=99, per_user=99)
        self.reports = ReportLimits()
        self.stepped_s = 0.0  # by which the clock has been set back
        self.public = str(home / "spool")
        (home / "spool").mkdir(parents=True, exist_ok=True)
        stays = self.cluster.stays

        def charged(job_id: str) -> tuple[NodeUsage, ...]:
            who = next((PROJECT[user] for user, (job, _) in self.jobs.items() if job == job_id), "")
            return tuple(replace(stay, nodes=("n0", "n1", "n2", "n3"), account=who) for stay in stays(job_id))

        self.cluster.stays = charged  # type: ignore[method-assign]

    def tell(self, user: str, node: str = "n0", **changes: Any) -> str:
        """A report of that user's supervisor, or something that looks like one."""
        owner = changes.pop("owner", user)
        uid = crc32(user.encode())
        asked = DrainRequest(
            changes.pop("id", secrets.token_hex(16)), "", node, self.jobs[changes.pop("job_of", user)][0], f"run-{user}",
            "hardware-gpu", f"gpu.{user}", changes.pop("seen_s", self.engine.now()), "report", confidence=0.9, ran_s=7200.0,
        )  # fmt: skip
        asked = replace(asked, **changes)
        payload = drain_rules.to_payload(asked).decode()
        told = {"uid": uid, "at": self.engine.now(), "payload": payload}
        self.spool.files[f"{asked.id}.rep"] = (crc32(owner.encode()), json.dumps(told).encode())
        return asked.id

    @contextlib.contextmanager
    def serving(self, crash: Callable[[str], None] = lambda point: None, **more: Any) -> Any:
        drains = DrainService(
            self.home, self.cluster, self.spool, self.look, self.limits, self.opened,
            lambda: self.engine.now() - self.stepped_s, crash=crash, **more
        )  # fmt: skip
        ledger = partial(SiteDatabase, drain_service.site_dir(self.home))
        public = Publication(self.public, "c", acts=not drains.observe)
        made = SiteService(drains, ledger, self.look, public, limits=self.reports, ticks=self.engine.now)
        try:
            yield made
        finally:
            made.close()

    def once(self, **more: Any) -> list[Answer]:
        """A round of a service that has just begun."""
        with self.serving(**more) as service:
            return list(service.round())

    def kept(self) -> list[Report]:
        with self.serving() as service:
            return list(service.database.reports(0.0))

    def placed_last(self) -> list[str]:
        return list(site_nodes.quarantined_nodes(self.public, self.engine.now()))


@pytest.fixture
def town(tmp_path: Path) -> Town:
    site_nodes._cache.clear()
    return Town(tmp_path, Random(1))


def test_a_node_that_two_users_blame_is_checked_and_drained(town: Town) -> None:
    """By runs of different projects; a finding that would not do for one user's request is enough then."""
    town.truth["n0"] = WORN
    town.tell("ann")
    assert [one.verdict for one in town.once()] == ["reported"]
    assert town.ours() == set()
    town.tell("ben")
    assert [one.verdict for one in town.once()] == ["reported", "drained"]
    assert town.ours() == {"n0"}
    assert town.cluster.nodes()["n0"].reason.startswith("ftrun: site gpu.")
    town.engine.advance(61)
    assert town.once() == []
    assert town.placed_last() == []


@pytest.mark.parametrize(
    "check", ["processes", "swap", "gpu-throttle", "gpu-temperature", "gpu-memory", "stranger-load"]
)
def test_nobody_has_a_node_drained_by_what_a_job_does_there(town: Town, check: str) -> None:
    """Zombies, a full swap, a set clock or heat count against a node for a request as little as for two users' blame."""
    town.truth["n0"] = CheckReport(
        "answered", (BAD | {"severity": "degraded", "check": check, "fault": "node"},)
    )
    for user in ("ann", "ben"):
        town.tell(user)
    assert [one.verdict for one in town.once()] == ["reported", "reported", "quarantined"]
    assert town.ours() == set()


def test_a_worn_node_is_drained_only_where_a_peer_is_well(town: Town) -> None:
    """Without a peer that answers nobody knows whether all nodes of the site show the same."""
    town.truth = dict.fromkeys(town.nodes, AWAY) | {"n0": WORN}
    for user in ("ann", "ben"):
        town.tell(user)
    assert [one.verdict for one in town.once()] == ["reported", "reported", "quarantined"]
    assert town.ours() == set()


def test_a_node_that_passes_is_placed_last_and_never_drained(town: Town) -> None:
    """For a day, told once; two days the next time that two users blame it; reports that it was checked for do not count again."""
    for days in (1, 2):
        for user in ("ann", "ben"):
            town.tell(user)
        assert [one.verdict for one in town.once()] == ["reported", "reported", "quarantined"]
        assert town.once() == []
        assert (town.ours(), town.placed_last()) == (set(), ["n0"])
        town.engine.advance(days * 86_400.0 - 100.0)
        town.once()
        assert town.placed_last() == ["n0"]
        town.engine.advance(200.0)
        assert town.placed_last() == []


def test_two_users_place_a_healthy_node_last_for_a_day_however_often_they_say_so(town: Town) -> None:
    """While it lasts no further check is made and it grows no longer; what was said meanwhile counts when it is over."""
    for _ in range(12):
        for user in ("ann", "ben"):
            town.tell(user)
        town.once()
        town.engine.advance(1200.0)
    with town.serving() as service:
        made = [one for one in service.database.events(0.0) if one.what == "quarantined"]
    (only,) = made
    assert only.detail["until_s"] == only.at_s + 86_400.0
    town.engine.advance(86_400.0)
    assert [one.verdict for one in town.once()] == ["quarantined"]


@pytest.mark.parametrize("action", ["drain", "none"])
def test_a_sick_node_that_may_not_be_drained_is_placed_last(town: Town, action: str) -> None:
    """By the site's wish or a cap; never while it only observes. It is drained once the cap permits."""
    town.limits = Limits(share=0.5, per_hour=9 * (action == "none"), per_user=99)
    town.truth["n0"] = SICK
    for user in ("ann", "ben"):
        town.tell(user)
    answer = town.once(action=action)[-1]
    assert (answer.verdict, answer.why.endswith("placed last for everybody")) == (
        "noted" if action == "none" else "refused",
        True,
    )
    assert (town.ours(), town.placed_last()) == (set(), ["n0"])
    town.limits = Limits(share=0.5, per_hour=9, per_user=99)
    town.engine.advance(3700.0)
    assert [one.verdict for one in town.once(action=action)] == (["drained"] if action == "drain" else [])


def test_the_topology_is_asked_for_in_each_fold(town: Town) -> None:
    """A service that lives for months knows the switches of today."""
    with town.serving() as service:
        service.round()
        town.engine.switches = {"s1": ("n0", "n1", "n2"), "s2": tuple(town.nodes[3:])}
        for node in ("n0", "n1", "n2"):
            for user in ("ann", "ben"):
                town.tell(user, node, signature="nccl")
        assert [one.verdict for one in service.round()] == ["reported"] * 6  # no node's own fault


def test_a_report_from_the_future_does_not_outlive_a_check(town: Town) -> None:
    """Clocks may differ by minutes: what is seen ahead of the service's clock is seen now."""
    for user in ("ann", "ben"):
        town.tell(user, seen_s=town.engine.now() + 500.0)
    assert [one.verdict for one in town.once()] == ["reported", "reported", "quarantined"]
    with town.serving() as service:
        service.round()
        assert service.nodes["n0"].corroborated_s == 0.0


def test_a_clock_that_is_set_back_stops_no_watch(town: Town) -> None:
    """Intervals are measured, not read off the clock: what leaves service is seen, and published."""
    with town.serving() as service:
        service.round()
        town.stepped_s = 7200.0
        town.cluster.drain("n3", "by hand")
        town.engine.advance(400.0)
        service.round()
        assert service.nodes["n3"].out
        written_s = json.loads((Path(site_nodes.public_dir(town.public)) / "nodes.json").read_text())[
            "written_s"
        ]
        assert written_s == round(town.engine.now() - 7200.0)


def test_who_is_alone_or_of_one_project_starts_nothing(town: Town) -> None:
    """However often they report; no check of a node is made for them."""
    looked: list[str] = []
    town.look = lambda nodes: looked.extend(nodes) or {}  # type: ignore[method-assign, func-returns-value]
    for _ in range(5):
        town.tell("ann")
        town.tell("cat")
        town.engine.advance(60)
        assert {one.verdict for one in town.once()} == {"reported"}
    assert (looked, town.ours(), town.placed_last()) == ([], set(), [])


def test_what_is_false_changes_nothing_and_is_told(town: Town) -> None:
    """Forged, stolen, replayed, late, of another's job, of a node outside, of no fault of nodes, or beyond what is one's share."""
    first = town.tell("ann")
    again = town.spool.files[f"{first}.rep"]
    town.once()
    before = town.kept()
    town.truth["n0"] = SICK
    town.spool.files[f"{first}.rep"] = again
    false = [
        town.tell("ben", owner="ann"),
        town.tell("ben", owner="cat"),
        town.tell("ben", job_of="ann"),
        town.tell("ben", "n9"),
        town.tell("ben", seen_s=town.engine.now() - 5000.0),
        town.tell("ben", seen_s=town.engine.now() + 5000.0),
        town.tell("ben", fault="user-code"),
        town.tell("ben", fault="nonsense"),
        town.tell("ben", want="drain"),
        town.tell("ben", confidence=7.0),
        town.tell("ben", cluster="elsewhere"),
    ]
    town.spool.files["f" * 32 + ".rep"] = (1, b"rubbish")
    answers = town.once()
    assert {one.verdict for one in answers} == {"refused"}
    assert len(answers) == len(false) + 2
    assert all(one.why for one in answers)
    assert (town.kept(), town.ours(), town.spool.files) == (before, set(), {})
    town.reports = ReportLimits(per_hour=3)
    for _ in range(6):
        town.tell("cat")
    assert [one.verdict for one in town.once()] == [
        "reported"
    ] * 2  # and what was stolen counts for who left it
    town.reports = ReportLimits(nodes_per_day=1)
    town.engine.advance(3700)
    town.tell("cat", "n1", seen_s=town.engine.now() - 60)
    assert "nodes in a day" in town.once()[0].why


def test_observing_finds_out_and_does_nothing(town: Town) -> None:
    """The journal says what would have been done; nobody's jobs are placed by it."""
    town.truth["n0"] = SICK
    for node in ("n0", "n1"):
        for user in ("ann", "ben"):
            town.tell(user, node)
    with town.serving(observe=True) as service:
        verdicts = {(one.node, one.verdict) for one in service.round() if one.uid == -1}
    assert verdicts == {("n0", "observed"), ("n1", "quarantined")}
    assert (town.ours(), town.placed_last()) == (set(), [])


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(n, marks=pytest.mark.drills) for n in range(2, 40))]
)
def test_a_service_that_is_cut_anywhere_does_what_one_does_that_is_not(tmp_path: Path, seed: int) -> None:
    """At each write of the ledger and the journal, and at each effect: the same reports, drains and quarantines in the end."""
    ends = []
    for cut_every in (0, 1):
        site_nodes._cache.clear()
        luck, cuts = Random(seed), Random(seed + 1000)
        town = Town(tmp_path / str(cut_every), luck)
        ids = Random(seed)
        for _ in range(6):
            for _ in range(luck.randint(0, 6)):
                user, node = luck.choice(["ann", "ben", "cat"]), luck.choice(["n0", "n1", "n2", "n9"])
                town.tell(
                    user, node, id=f"{ids.getrandbits(128):032x}", job_of=luck.choice([user, user, "ann"])
                )
            town.truth[luck.choice(["n0", "n1", "n2"])] = luck.choice([SICK, WORN, WELL, AWAY])
            for _ in range(4 * cut_every):
                left = [cuts.randint(1, 12)]

                def crash(_point: str, left: list[int] = left) -> None:
                    left[0] -= 1
                    if left[0] == 0:
                        raise Cut

                with contextlib.suppress(Cut):
                    town.once(crash=crash)
            town.once()
            for name in town.ours():
                assert town.truth[name] in (SICK, WORN, WELL, AWAY)
            town.engine.advance(luck.choice([60, 400, 4000]))
        with town.serving() as service:
            service.round()
            events = service.database.events(0.0)
            done = sorted((one.node, one.what) for one in events if one.what in ("out", "quarantined"))
            ends.append((service.database.reports(0.0), town.ours(), set(done), town.spool.files))
    assert ends[0] == ends[1]


def test_the_files_for_everybody_name_no_people(town: Town) -> None:
    """Neither users, runs, projects, jobs nor paths; nodes and classes are there, and all of it can be read by anybody."""
    for user in ("ann", "ben"):
        town.tell(user)
        town.tell(user, "n1", signature=f"of.{user}", digest="ab" * 32)
    town.truth["n1"] = SICK
    town.once()
    folder = Path(site_nodes.public_dir(town.public))
    whole = "".join(path.read_text() for path in sorted(folder.iterdir()))
    assert [path.name for path in sorted(folder.iterdir())] == ["index.html", "metrics.prom", "nodes.json"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    for private in ("ann", "ben", "run-", "vision", "speech", str(town.home), "gpu.", "of.", "abab"):
        assert private not in whole, private
    assert (
        'ftrun_site_node_score{cluster="c"' not in whole
    )  # both were dealt with: nothing is open against them
    assert 'ftrun_site_nodes{cluster="c",state="quarantined"} 1.0' in whole
    assert ("placed last until" in whole, "out of service" in whole) == (True, True)


GOOD = {
    "schema": 1,
    "written_s": 1000.0,
    "nodes": [{"node": "n1", "quarantined_until_s": 2000.0, "classes": ["network"]}],
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, {"n1": "network"}),
        ({"schema": 2}, {}),
        ({"nodes": {}}, {}),
        ({"nodes": [7, {}, {"node": "a b", "quarantined_until_s": 2000}]}, {}),
        ({"nodes": [{"node": "n1", "quarantined_until_s": "x"}]}, {}),
        ({"nodes": [{"node": "n1", "quarantined_until_s": 1e308}]}, {}),
        ({"nodes": [{"node": "n1", "quarantined_until_s": 2000, "classes": ["a\nb", 7]}]}, {"n1": ""}),
        ({"written_s": -90_000.0}, {}),
    ],
)
def test_a_supervisor_believes_only_what_has_the_form(
    tmp_path: Path, changed: dict[str, Any], found: dict[str, str]
) -> None:
    """Whatever stands in the file; and only a plain file of the spool's owner, of bounded size."""
    site_nodes._cache.clear()
    public = Path(site_nodes.public_dir(str(tmp_path)))
    public.mkdir()
    path = public / "nodes.json"
    path.write_text(json.dumps(GOOD | changed))
    assert site_nodes.quarantined_nodes(str(tmp_path), 1500.0) == found
    assert site_nodes.quarantined_nodes(str(tmp_path), 90_000.0) == {}
    for content in (b"", b"{", b"[" * 100_000, b"\xff", b'{"schema": 1, "nodes": [' + b"1," * 10 + b"NaN]}"):
        path.write_bytes(content)
        assert site_nodes.quarantined_nodes(str(tmp_path), 1500.0) == {}
    path.unlink()
    path.symlink_to("/dev/zero")
    assert site_nodes.quarantined_nodes(str(tmp_path), 1500.0) == {}


def test_the_ledger_may_be_cut_at_any_byte(tmp_path: Path) -> None:
    """Whatever of its journal reached the disk: what it holds is whole, and is what was kept up to some call."""
    folder = tmp_path / "site"
    database = SiteDatabase(str(folder))
    told = [Report(f"{n:032x}", n, "p", "n1", "7", "network", "s", 0.5, 1000.0 + n) for n in range(6)]
    for one in told:
        database.add_report(one, 1.0)
        database.add_events(
            Event(one.id, "n1", one.seen_s, "out"), Event(f"b{one.id}", "n1", one.seen_s, "back")
        )
    journal = (folder / "site.db-wal").read_bytes()
    seen = set()
    for size in [*range(0, len(journal), 1777), len(journal)]:
        cut = tmp_path / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        cut.mkdir()
        shutil.copy(folder / "site.db", cut)
        (cut / "site.db-wal").write_bytes(journal[:size])
        again = SiteDatabase(str(cut))
        kept = sorted(again.reports(0.0), key=lambda one: one.uid)
        assert kept == told[: len(kept)]
        assert len(again.events(0.0)) in (2 * len(kept), 2 * max(0, len(kept) - 1))
        seen.add(len(kept))
        again.close()
    assert seen == set(range(7))
    database.tidy(86_400.0, 1e9)
    assert [path.name for path in (folder / "backups").iterdir()] == ["1970-01-02.db"]
    database.close()


def test_a_ledger_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    """Of a newer release, or no database: one line each, and nothing is written over."""
    SiteDatabase(str(tmp_path)).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "site.db")) as raw:
        raw.execute("PRAGMA user_version = 99")
    with pytest.raises(DatabaseError, match="newer ftrun"):
        SiteDatabase(str(tmp_path))
    (tmp_path / "site.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DatabaseError, match="whole copies are in"):
        SiteDatabase(str(tmp_path))


def test_a_damaged_ledger_stops_no_drain(town: Town) -> None:
    """Requests are answered without it, the service says so, reports wait; what was mended is opened again."""
    path = Path(drain_service.site_dir(town.home)) / "site.db"
    town.once()
    kept = path.read_bytes()
    town.truth["n1"] = SICK
    asked = town.tell("ann", "n1", want="drain")
    town.spool.files[f"{asked}.req"] = town.spool.files.pop(f"{asked}.rep")
    told = town.tell("ben")
    with town.serving() as service:
        path.write_bytes(b"no database" * 1000)
        assert [one.verdict for one in service.round()] == ["drained"]
        assert "reports wait in the spool" in service.ledger_fault
        assert list(town.spool.files) == [f"{told}.rep"]
        path.write_bytes(kept)
        assert [one.verdict for one in service.round()] == ["reported"]
        assert service.ledger_fault == ""


@pytest.mark.parametrize("name", ["public", "answers"])
@pytest.mark.skipif(os.geteuid() != 0, reason="folders of two users are made by root")
def test_somebody_elses_folder_keeps_no_service_from_its_start(tmp_path: Path, name: str) -> None:
    """Whoever makes it first: it is put aside, and gone after a round."""
    place = tmp_path / "spool"
    Spool(str(place)).close()
    shutil.rmtree(place / name, ignore_errors=True)
    (place / name).mkdir()
    (place / name / "heap").write_bytes(b"x")
    os.chown(place / name, 1001, 1001)
    made = Spool(str(place))
    Publication(str(place), "c")
    made.look()
    assert sorted(os.listdir(place)) == ["answers", "public"]
    assert {(place / one).stat().st_uid for one in os.listdir(place)} == {0}
    assert os.listdir(place / name) == []


def test_looking_moves_and_locks_nothing(tmp_path: Path) -> None:
    """Where a service of an earlier release has left its folder, and whether one runs, is found without a change."""
    earlier = tmp_path / "operator"
    earlier.mkdir()
    assert drain_service.site_dir(str(tmp_path)) == str(earlier)
    assert not append_log.is_locked(str(earlier))
    assert list(earlier.iterdir()) == []
    with append_log.lock_service(str(earlier)):
        assert append_log.is_locked(str(earlier))
    assert not append_log.is_locked(str(earlier))
    assert drain_service.moved_site_dir(str(tmp_path)) == str(tmp_path / "site")
    assert not earlier.exists()
