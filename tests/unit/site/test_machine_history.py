"""Laws of the machine behind a node's name, in the site's ledger; and of what a vendor is told of it."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ftrun.slurm.records import replace
from ftrun.supervisor.cli import site
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes.machines import borne_by, digests
from ftrun.supervisor.nodes.recheck_rules import CheckReport
from ftrun.supervisor.site import ticket
from ftrun.supervisor.site.database import MIGRATIONS, SiteDatabase
from ftrun.supervisor.site.machine_history import MachineHistory, follow_machines
from ftrun.supervisor.site.standing import Event, Report
from ftrun.supervisor.store import site_nodes
from tests.unit.site.test_drain_service import SICK
from tests.unit.site.test_service import Town

A, B = {"serial": "AAA", "product": "X"}, {"serial": "BBB", "product": "X"}


@pytest.fixture
def town(tmp_path: Path) -> Town:
    site_nodes._cache.clear()
    return Town(tmp_path, Random(1))


def bears(town: Town, **machines: dict[str, str]) -> None:
    """Which machine each node shows at a look; its health stays."""
    for node, machine in machines.items():
        town.truth[node] = replace(town.truth[node], machine=machine)


def blamed(town: Town, node: str) -> list[str]:
    """Ann and Ben report that node; what the service did then."""
    for user in ("ann", "ben"):
        town.tell(user, node)
    return [one.verdict for one in town.once()[2:]]


def test_a_machine_that_gets_another_name_is_placed_last_under_that(town: Town) -> None:
    """As soon as a look shows it there; the old name, which a new machine bears, is free."""
    bears(town, n0=A)
    assert blamed(town, "n0") == ["quarantined"]
    assert town.placed_last() == ["n0"]
    bears(town, n0=B, n3=A)
    town.engine.advance(100.0)
    with town.serving() as service:
        service.look(["n0", "n3"])
        service.round()
    town.engine.advance(400.0)
    town.once()
    assert town.placed_last() == ["n3"]


def test_a_replaced_machine_takes_its_blame_away(town: Town) -> None:
    """Two users blamed the old one; the check that follows meets the new one, and nothing happens to that."""
    bears(town, n0=A)
    with town.serving() as service:
        service.look(["n0"])
    town.engine.advance(10.0)
    for user in ("ann", "ben"):
        town.tell(user, "n0")
    bears(town, n0=B)
    town.engine.advance(10.0)
    assert [one.verdict for one in town.once()] == ["reported", "reported"]
    assert (town.ours(), town.placed_last()) == (set(), [])
    town.engine.advance(10.0)
    assert blamed(town, "n0") == ["quarantined"]


def test_a_machine_installed_anew_keeps_its_history(town: Town) -> None:
    """Another machine-id and boot, the same serial number."""
    bears(town, n0={**A, "id": "1", "boot": "1"})
    assert blamed(town, "n0") == ["quarantined"]
    bears(town, n0={**A, "id": "2", "boot": "2"})
    with town.serving() as service:
        service.look(["n0"])
        service.round()
    assert town.placed_last() == ["n0"]


def seen(at_s: float, node: str, machine: dict[str, str]) -> Event:
    return Event(f"machine:{node}:{at_s}", node, at_s, "machine", machine)


def told(at_s: float, node: str, machine: str = "") -> Report:
    return Report(f"{at_s}", 7, "p", node, "1", "network", "s", 0.9, at_s, machine=machine)


def test_swapped_names_swap_their_histories() -> None:
    """Whoever was seen first; a machine on the shelf counts for nobody until it is seen again."""
    events = [seen(1.0, "n1", A), seen(1.0, "n2", B)]
    reports = [told(5.0, "n1"), told(6.0, "n2")]
    names = [[one.node for one in follow_machines(reports, events)[0]]]
    events.append(seen(10.0, "n1", B))
    names.append([one.node for one in follow_machines(reports, events)[0]])
    events.append(seen(11.0, "n2", A))
    names.append([one.node for one in follow_machines(reports, events)[0]])
    assert names == [["n1", "n2"], ["n2"], ["n2", "n1"]]
    assert MachineHistory(events).bearer("n1")["serial"] == "BBB"


@pytest.mark.parametrize(
    ("at_s", "claim", "node"),
    [
        (5.0, "", "n9"), (5.0, digests(A), "n9"), (5.0, digests(B), "n1"), (5.0, digests({"serial": "C"}), "n9"),
        (15.0, digests(A), "n1"), (15.0, "", "n1"),
    ],
)  # fmt: skip
def test_a_users_word_decides_only_what_the_service_cannot_know(at_s: float, claim: str, node: str) -> None:
    """Between its last sight of one machine and its first of the next; never who bears a name that it has seen."""
    events = [seen(1.0, "n1", A), seen(10.0, "n1", B), seen(20.0, "n9", A)]
    assert [one.node for one in follow_machines([told(at_s, "n1", claim)], events)[0]] == [node]


def test_a_name_that_slurm_forgot_gives_its_machine_away() -> None:
    """n1 was renamed to n9: while Slurm knows both, and both showed the machine, it could be a copied serial number."""
    events, reports = [seen(1.0, "n1", A), seen(10.0, "n9", A)], [told(5.0, "n1")]
    assert [one.node for one in follow_machines(reports, events, {"n1", "n9"})[0]] == ["n1"]
    assert [one.node for one in follow_machines(reports, events, {"n9"})[0]] == ["n9"]


def test_what_tells_nothing_of_machines_changes_nothing() -> None:
    """A ledger of before, or nodes whose machine cannot be known."""
    reports, events = [told(1.0, "n1")], [Event("x", "n1", 2.0, "out")]
    assert follow_machines(reports, events) == (reports, events)
    assert borne_by([NodeEntry(1.0, "machine", ("n1",), "k", detail=A)]) == {"n1": A}
    assert digests({}) == ""


def test_a_ledger_of_before_gets_the_machine(tmp_path: Path) -> None:
    """The file of the first version is brought up to date, with a copy from before; what it holds is read."""
    with closing(sqlite3.connect(tmp_path / "site.db")) as raw:
        raw.executescript(f"{MIGRATIONS[0]}; PRAGMA user_version = 1;")
        raw.execute("INSERT INTO reports VALUES (7,'a','p','n1','1','network','s',0.9,5.0,1.0,'',6.0)")
        raw.commit()
    with closing(SiteDatabase(str(tmp_path))) as database:
        (one,) = database.reports(0.0)
        assert (one.node, one.machine) == ("n1", "")
        database.add_events(seen(1.0, "n1", A), Event("x", "n1", 2.0, "out"))
        database.tidy(1e9, 10.0)
        assert [event.what for event in database.events(1e9)] == ["machine"]
    assert (tmp_path / "backups" / "before-2.db").exists()


LINES = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus.",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400",
    "EXT4-fs error (device sda1): comm train.py: /home/ann/secret/data.bin",
    "Killed process 77 (train.py) of user ann, mail ann@example.org",
)


def test_a_ticket_tells_the_machine_and_nobody(tmp_path: Path) -> None:
    """Serial number, Xids, kernel lines and dates; no user, process, path, job, nor a finding about processes."""
    del tmp_path
    findings: list[dict[str, Any]] = [
        {
            "check": "gpu-xid",
            "severity": "bad",
            "message": "Xid 79",
            "fault": "hardware-gpu",
            "device": "0000:3b:00",
            "evidence": LINES,
        },
        {
            "check": "processes",
            "severity": "bad",
            "message": "python of ann",
            "fault": "node",
            "device": "",
            "evidence": ["ann 77"],
        },
        {
            "check": "edac",
            "severity": "ok",
            "message": "none",
            "fault": "hardware-other",
            "device": "",
            "evidence": [],
        },
    ]
    made = ticket.make_ticket(
        "n0", {**A, "id": "mine"}, CheckReport("answered", findings), "now",
        reports=[replace(told(5.0, "n0"), uid=7, job="4242", project="vision"), told(9.0, "n0")],
        events=[Event("x", "n0", 2.0, "out", {"by": "ftrun"}), Event("y", "n0", 3.0, "checked", {"result": "sick"}), seen(1.0, "n0", A)],
        names={"ann", "daemon"}, clock=lambda at_s: f"t{at_s:.0f}",
    )  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(site.ticket_archive(made, "c", 5.0))) as packed:
        members = packed.getmembers()
        texts = {one.name: (packed.extractfile(one) or io.BytesIO()).read().decode() for one in members}
    assert sorted(texts) == ["ticket-n0/ticket.json", "ticket-n0/ticket.txt"]
    assert all((one.uname, one.gname, one.uid) == ("", "", 0) for one in members)
    whole = "".join(texts.values())
    for private in ("ann", "4711", "python", "train.py", "secret", "4242", "vision", "example.org", "mine"):
        assert private not in whole, private
    for wanted in (
        "AAA",
        "Xid (PCI:0000:3b:00): 79",
        "Bank 5",
        "network s: 2 times, t5 to t9",
        "t2 taken out of service",
        "t3 checked sick",
    ):
        assert wanted in texts["ticket-n0/ticket.txt"], wanted
    assert json.loads(texts["ticket-n0/ticket.json"])["machine"] == A


def test_health_counts_for_the_machine_that_is_there(town: Town) -> None:
    """A sick machine is drained under its present name, whoever bore it before."""
    bears(town, n0=A, n1=B)
    with town.serving() as service:
        service.look(["n0", "n1"])
    town.engine.advance(10.0)
    town.truth["n0"] = replace(SICK, machine=A)
    assert blamed(town, "n0") == ["drained"]
