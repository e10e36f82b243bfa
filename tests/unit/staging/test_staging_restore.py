"""Laws of copies and views on the nodes: who keeps what, and what a start is led to."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import pytest

from ftrun.hooks.staging import copy, inventory, partner_client, publish
from ftrun.hooks.staging import restore as staging_restore
from ftrun.hooks.staging.partner_client import PartnerClient, PartnerConfig
from ftrun.hooks.staging.partner_map import Ring, put_ring, read_copies
from ftrun.hooks.staging.records import File, Home, Publishing, Seal, base_of, seal_json
from ftrun.hooks.staging.restore import Plan


class Node:
    """A node with a memory of its own, a folder."""

    def __init__(self, at: Path, name: str) -> None:
        self.name, self.at = name, at
        self.home = Home(base_of(str(at / name), os.getuid(), "run", "7"))
        self.attempt = at / "attempt"
        self.attempt.mkdir(exist_ok=True)
        self.partner = PartnerClient(
            PartnerConfig(self.home.base, str(self.attempt), name, "7", str(at / "published")),
            partner_client.Route(is_direct=False),
        )

    def save(self, name: str, files: dict[str, bytes], token: str = "0.1", *, sums: bool = False) -> None:
        """Seal a part."""
        held, found = Path(self.home.held(token, name)), {}
        for inner, content in files.items():
            path = held / inner if inner else held
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            fact = path.stat()
            digest = hashlib.sha256(content).hexdigest() if sums else ""
            found[inner] = File(len(content), fact.st_mtime_ns, fact.st_ino, digest)
        seal = Path(self.home.seal(token, name))
        seal.parent.mkdir(parents=True, exist_ok=True)
        seal.write_text(
            seal_json(Seal(name, token, self.name, found, is_file="" in files, sealed_s=time.time()))
        )

    def copies(self) -> list[tuple[str, str]]:
        return [
            (part.seal.node, part.seal.name) for part in inventory.stored_parts(self.home) if not part.is_own
        ]

    def tend(self) -> None:
        while self.partner.run_round(time.monotonic()):
            pass

    def restore(self, plan: Plan) -> staging_restore.Made:
        return staging_restore.restore(self.home, self.name, plan, str(self.at / "failed"))


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Node]:
    """Three nodes; whoever talks to one talks to a process that writes into its folder."""
    found = {name: Node(tmp_path, name) for name in ("n0", "n1", "n2")}

    def words(target: partner_client.Target) -> list[str]:
        return [sys.executable, "-m", "ftrun.hooks.main", "receive", "--base", found[target.node].home.base]

    monkeypatch.setattr(partner_client, "_remote_command", words)
    return found


def ring(nodes: dict[str, Node], token: str = "0.1", lost: tuple[str, ...] = (), **to: str) -> None:
    put_ring(str(nodes["n0"].attempt), Ring(token, to, lost=lost, limit="1G"))


def sums(files: dict[str, bytes]) -> dict[str, str]:
    """What a manifest says of published files."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def view_of(made: staging_restore.Made) -> dict[str, bytes]:
    root = Path(made.view)
    if root.is_file():
        return {"": root.read_bytes()}
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_each_seal_comes_to_the_partner_and_goes_with_it(nodes: dict[str, Node]) -> None:
    """The newest first; what the node itself has dropped is dropped there, too."""
    ring(nodes, n0="n1", n1="n0")
    nodes["n0"].save("step-1", {"a": b"1"})
    nodes["n0"].save("step-2", {"a": b"2"})
    assert nodes["n0"].partner.run_round(time.monotonic())
    assert nodes["n1"].copies() == [("n0", "step-2")]
    nodes["n0"].tend()
    assert nodes["n1"].copies() == [("n0", "step-1"), ("n0", "step-2")]
    assert list(read_copies(str(nodes["n0"].attempt), "n0").given) == [("0.1", "step-1"), ("0.1", "step-2")]
    Path(nodes["n0"].home.seal("0.1", "step-1")).unlink()
    nodes["n0"].save("step-3", {"a": b"3"})
    nodes["n0"].tend()
    assert nodes["n1"].copies() == [("n0", "step-2"), ("n0", "step-3")]


def test_of_what_is_published_only_the_newest_is_copied(nodes: dict[str, Node]) -> None:
    """Nobody resumes from an older one; the one before stays there until the new one is whole."""
    ring(nodes, n0="n1", n1="n0")
    for step in (1, 2, 3):
        nodes["n0"].save(f"step-{step}", {"a": b"%d" % step})
    for step in (1, 3):
        marker = nodes["n0"].at / "published" / f"step-{step}" / ".ftrun-complete"
        marker.parent.mkdir(parents=True)
        marker.touch()
    nodes["n0"].tend()
    assert nodes["n1"].copies() == [("n0", "step-2"), ("n0", "step-3")]
    nodes["n0"].save("step-4", {"a": b"4"})
    nodes["n0"].tend()
    assert ("n0", "step-4") in nodes["n1"].copies()
    assert ("n0", "step-1") not in nodes["n1"].copies()


def test_a_part_that_is_sealed_anew_is_copied_anew(nodes: dict[str, Node]) -> None:
    """A rank wrote its file long after the others: what the partner had is not the set any more."""
    ring(nodes, n0="n1", n1="n0")
    nodes["n0"].save("step-1", {"rank-0": b"zero"})
    nodes["n0"].tend()
    time.sleep(0.01)
    nodes["n0"].save("step-1", {"rank-0": b"zero", "rank-1": b"one"})
    nodes["n0"].tend()
    part = inventory.stored_part(nodes["n1"].home, "n0", "0.1", "step-1")
    assert part is not None
    assert sorted(part.seal.files) == ["rank-0", "rank-1"]


def test_a_set_that_its_layout_calls_torn_is_not_used_from_memory(nodes: dict[str, Node]) -> None:
    """It was sealed too early, and nobody has judged it yet."""
    nodes["n0"].save("step-1.pt", {"": b"PK\x03\x04 and no more of it"})
    made = nodes["n0"].restore(Plan("0.2", "0.1", "step-1.pt", ["n0"]))
    assert (made.view, made.why.startswith("step-1.pt: ")) == ("", True)


def test_copies_make_room_for_what_the_node_saves_itself(nodes: dict[str, Node]) -> None:
    """Older ones go first; the newest of a node stays."""
    ring(nodes, n0="n1", n1="n0")
    for step in (1, 2, 3):
        nodes["n0"].save(f"step-{step}", {"a": os.urandom(100_000)})
    nodes["n0"].tend()
    put_ring(str(nodes["n0"].attempt), Ring("0.1", {"n0": "n1", "n1": "n0"}, limit="150K"))
    nodes["n1"].tend()
    assert nodes["n1"].copies() == [("n0", "step-3")]


def test_a_copy_moves_when_the_partner_changes(nodes: dict[str, Node]) -> None:
    """The new one gets it, and the old one lets go of what is of an earlier start."""
    ring(nodes, n0="n1", n1="n0")
    nodes["n0"].save("step-1", {"a": b"1"})
    nodes["n0"].tend()
    ring(nodes, "0.2", n0="n2", n2="n0")
    nodes["n0"].tend()
    nodes["n1"].tend()
    assert (nodes["n1"].copies(), nodes["n2"].copies()) == ([], [("n0", "step-1")])


def test_the_partner_publishes_the_part_of_a_lost_node(nodes: dict[str, Node]) -> None:
    """In its name, as it would have done."""
    ring(nodes, n0="n1", n1="n0")
    nodes["n0"].save("step-1", {"rank-0": b"zero"})
    nodes["n0"].tend()
    nodes["n1"].tend()
    to = Publishing(str(nodes["n1"].at / "published"), "step-1", "7", "0.1")
    assert not publish.has_part(to, "n0")
    ring(nodes, lost=("n0",), n1="n2", n2="n1")
    nodes["n1"].tend()
    assert publish.has_part(to, "n0")
    assert publish.parts_of(to)["n0"].files["rank-0"].sha256 == hashlib.sha256(b"zero").hexdigest()
    assert nodes["n1"].copies() == [("n0", "step-1")]


def test_a_partner_that_is_dead_costs_a_reason(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again later, and everything else goes on."""
    monkeypatch.setattr(partner_client, "_remote_command", lambda *_: ["/bin/sh", "-c", "exit 1"])
    ring(nodes, n0="n1", n1="n0")
    nodes["n0"].save("step-1", {"a": b"1"})
    assert not nodes["n0"].partner.run_round(time.monotonic())
    assert "ended with 1" in read_copies(str(nodes["n0"].attempt), "n0").why
    nodes["n0"].tend()


def test_a_start_on_the_same_nodes_reads_its_own_memory(nodes: dict[str, Node]) -> None:
    """What the other nodes saved is offered, too, where it is published."""
    nodes["n0"].save("step-1", {"rank-0": b"zero"})
    nodes["n1"].save("step-1", {"rank-1": b"one"})
    published = nodes["n0"].at / "published" / "step-1"
    published.mkdir(parents=True)
    for name, content in (("rank-0", b"disk"), ("rank-1", b"one")):
        (published / name).write_bytes(content)
    plan = Plan(
        "0.2",
        "0.1",
        "step-1",
        ["n0", "n1"],
        published=str(published),
        files=sums({"rank-0": b"zero", "rank-1": b"one"}),
    )
    made = nodes["n0"].restore(plan)
    assert (made.why, made.memory_files, made.disk_files) == ("", 1, 1)
    assert view_of(made) == {"rank-0": b"zero", "rank-1": b"one"}
    assert Path(made.view) == Path(nodes["n0"].home.views, "0.2", "step-1")


def test_a_node_that_came_gets_the_part_of_the_one_that_was_lost(nodes: dict[str, Node]) -> None:
    """From the memory of its partner, while nothing of it is published; and everybody gets what is missing for a whole."""
    ring(nodes, n0="n1", n1="n0")
    nodes["n0"].save("step-1", {"rank-0": b"zero"})
    nodes["n1"].save("step-1", {"rank-1": b"one"})
    nodes["n0"].tend()
    give = [("n1", "n0", "n2"), ("n1", "n1", "n2")]
    plan = Plan("0.2", "0.1", "step-1", ["n0", "n1"], give, {"n2": ["n0", "n1"]}, limit="1G")
    assert view_of(nodes["n1"].restore(plan)) == {"rank-0": b"zero", "rank-1": b"one"}
    made = nodes["n2"].restore(plan)
    assert view_of(made) == {"rank-0": b"zero", "rank-1": b"one"}
    assert made.fetched_bytes == 0  # it had come before it was asked for


def test_no_view_is_made_that_would_lack_a_file(nodes: dict[str, Node]) -> None:
    """Both partners are dead and nothing is published: an older checkpoint it must be. A receiver that waits in vain is told."""
    nodes["n1"].save("step-1", {"rank-1": b"one"})
    plan = Plan("0.2", "0.1", "step-1", ["n0", "n1"], [("n1", "n0", "n2")], {"n2": ["n0"]}, limit_s=300.0)
    assert "part of n0 is not in memory" in nodes["n1"].restore(plan).why
    began_s = time.monotonic()
    assert "part of n0 is not in memory" in nodes["n2"].restore(plan).why
    assert time.monotonic() - began_s < 250.0  # it did not wait for its limit


def test_a_file_that_changed_is_read_from_disk(nodes: dict[str, Node]) -> None:
    """Somebody wrote into what was sealed: the published one counts."""
    nodes["n0"].save("step-1", {"rank-0": b"zero"})
    time.sleep(0.01)
    Path(nodes["n0"].home.held("0.1", "step-1"), "rank-0").write_bytes(b"evil")
    published = nodes["n0"].at / "published" / "step-1"
    published.mkdir(parents=True)
    (published / "rank-0").write_bytes(b"zero")
    plan = Plan("0.2", "0.1", "step-1", ["n0"], published=str(published), files=sums({"rank-0": b"zero"}))
    made = nodes["n0"].restore(plan)
    assert (view_of(made), made.memory_files) == ({"rank-0": b"zero"}, 0)


def test_a_set_that_is_one_file_is_one(nodes: dict[str, Node]) -> None:
    """From memory where it is there, else a link to the published one."""
    nodes["n0"].save("step-1.ckpt", {"": b"whole"})
    published = nodes["n0"].at / "published" / "step-1.ckpt"
    published.parent.mkdir(parents=True)
    published.write_bytes(b"whole")
    plan = Plan(
        "0.2", "0.1", "step-1.ckpt", ["n0", "n1"], published=str(published), files=sums({"": b"whole"})
    )
    assert view_of(nodes["n0"].restore(plan)) == {"": b"whole"}
    assert not Path(nodes["n0"].restore(plan).view).is_symlink()
    assert Path(nodes["n1"].restore(plan).view).is_symlink()


def test_a_look_tells_what_is_whole(nodes: dict[str, Node]) -> None:
    """Own parts and copies; what was written to is not among them."""
    nodes["n0"].save("step-1", {"rank-0": b"zero"})
    nodes["n0"].save("step-2", {"rank-0": b"zero"})
    time.sleep(0.01)
    Path(nodes["n0"].home.held("0.1", "step-2"), "rank-0").write_bytes(b"evil")
    told = staging_restore.find_plan(nodes["n0"].home)
    assert [row[:-1] for row in told["parts"]] == [["n0", "0.1", "step-1", 4, True, False]]
    assert told["trackers"] == []


def test_a_framework_that_follows_a_tracker_is_led_to_the_view(nodes: dict[str, Node]) -> None:
    """It wrote one beside what it saved; on every node the view's folder has one of its own."""
    nodes["n0"].save("iter_0000100", {"rank-0": b"zero"})
    beside = Path(nodes["n0"].home.stage("0.1"))
    beside.mkdir(parents=True)
    (beside / "latest_checkpointed_iteration.txt").write_text("200")
    (beside / "notes.txt").write_text("")
    told = staging_restore.find_plan(nodes["n0"].home)["trackers"]
    made = nodes["n0"].restore(Plan("0.2", "0.1", "iter_0000100", ["n0"], trackers=[*told, "latest"]))
    assert Path(made.view).parent.joinpath("latest_checkpointed_iteration.txt").read_text() == "100"
    assert Path(made.view).parent.joinpath("latest").read_text() == "iter_0000100"


def test_another_checkpoint_of_that_name_is_not_mixed_with_the_published_one(nodes: dict[str, Node]) -> None:
    """A start that went back saved the same step once more, and is not published: what is on disk counts as a whole."""
    nodes["n0"].save("step-1", {"rank-0": b"anew"})
    published = nodes["n0"].at / "published" / "step-1"
    published.mkdir(parents=True)
    (published / "rank-0").write_bytes(b"zero")
    plan = Plan("0.2", "0.1", "step-1", ["n0"], published=str(published), files=sums({"rank-0": b"zero"}))
    assert view_of(nodes["n0"].restore(plan)) == {"rank-0": b"zero"}


def test_nodes_that_do_not_agree_on_a_file_make_no_view(nodes: dict[str, Node]) -> None:
    """Nobody can say which of them is right."""
    ring(nodes, n0="n1", n1="n0")
    nodes["n0"].save("step-1", {"common": b"zero"})
    nodes["n1"].save("step-1", {"common": b"one"})
    nodes["n0"].tend()
    assert "not the same" in nodes["n1"].restore(Plan("0.2", "0.1", "step-1", ["n0", "n1"])).why


def test_only_the_sums_that_are_asked_for_are_made(nodes: dict[str, Node]) -> None:
    """By several threads at once; what the seal tells is believed, and what was changed is not summed."""
    files = {f"x{number}": os.urandom(100_000 * number) for number in range(5)}
    nodes["n0"].save("step-1", files)
    (part,) = inventory.own_parts(nodes["n0"].home)
    some = inventory.summed(part, 4, {"x1", "x3"})
    assert {inner: one.sha256 for inner, one in some.seal.files.items()} == {
        inner: sum_ if inner in ("x1", "x3") else "" for inner, sum_ in sums(files).items()
    }
    Path(part.path, "x1").write_bytes(b"changed")  # its sum is known, so it is not read
    whole = inventory.summed(some, 2, {"x0", "x2", "x4"})
    assert {inner: one.sha256 for inner, one in whole.seal.files.items()} == sums(files)
    with pytest.raises(copy.Changed):
        inventory.summed(part)
