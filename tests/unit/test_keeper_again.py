"""Keepers of several nodes whose script saves under one name again and again, or under a name that is taken, with the clock in the test's hands."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ftrun.hooks import stage
from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.staging import replace, sealing, status_report
from tests.unit.test_keeper import Nodes, nodes, ranks

__all__ = ["nodes", "ranks"]


def save(nodes: Nodes, number: int, *names: str, token: str = "0.1") -> None:
    """The ranks of these nodes (all) save `last`, as a framework does: into files that are there, which are cut first."""
    for name in names or nodes.names:
        for file in ("model", "optimizer"):
            nodes.write(name, f"last/{file}-{name}", f"{file} of save {number}".encode(), token)


def whole(nodes: Nodes) -> int:
    """Which save is published; 0 for none. It must be one save, of all nodes."""
    there = nodes.published().get("last")
    if there is None:
        return 0
    found = {content.decode().rpartition(" ")[2] for content in there.values()}
    assert len(found) == 1, there
    assert len(there) == 2 * len(nodes.names)
    return int(found.pop())


def test_a_file_that_is_saved_again_is_published_again(nodes: Nodes) -> None:
    """`checkpoint.pt`, written in place or renamed over: each save that is done replaces the one before on the shared file system."""
    for number in range(1, 5):
        path = nodes.stage("n0") / "checkpoint.pt"
        if number % 2:
            path.write_bytes(b"save %d" % number)
        else:
            (path.parent / "checkpoint.pt.tmp").write_bytes(b"save %d" % number)
            os.rename(path.parent / "checkpoint.pt.tmp", path)
        nodes.run(5)
        assert nodes.published() == {"checkpoint.pt": {".": b"save %d" % number}}
        assert nodes.states("n0") == {"checkpoint.pt": "published"}


def test_a_folder_that_all_nodes_save_again_is_replaced_as_a_whole(nodes: Nodes) -> None:
    """`last`, again and again, in place: at each second what is published is one save of all nodes, and it follows."""
    seen = []
    for number in (1, 2, 3):
        save(nodes, number)
        for _ in range(14):
            nodes.run(1)
            seen.append(whole(nodes))
        assert seen[-1] == number
    assert seen == sorted(seen)
    assert os.listdir(nodes.to / ".ftrun-publishing") == []


def test_saves_of_two_nodes_never_mix(nodes: Nodes) -> None:
    """A node that begins late, one whose keeper sleeps, and one whose keeper was killed meanwhile: never a file of one save beside one of another."""
    save(nodes, 1)
    nodes.run(8)
    for number in range(2, 8):
        save(nodes, number, "n0")
        nodes.run(1 + number % 3)
        save(nodes, number, "n1")
        assert whole(nodes) in range(1, number)
        awake = nodes.names if number % 2 else ("n0", "n1")
        nodes.run(number, *awake)
        save(nodes, number, "n2")
        nodes.restart(nodes.names[number % 3])
        for _ in range(number):
            nodes.run(1)
            whole(nodes)
    nodes.run(12)
    assert whole(nodes) == 7


def test_a_start_that_breaks_down_while_it_saves_again_leaves_the_save_before(nodes: Nodes) -> None:
    """One node had saved and the other had only begun: the save before stays published, and the report says why there is none of the new one."""
    save(nodes, 1)
    nodes.run(9)
    save(nodes, 2, "n0", "n1")
    nodes.write("n2", "last/model-n2", b"model of save 2")
    nodes.over("0.1", 1)
    nodes.run(40)
    assert whole(nodes) == 1
    assert "saved again" in nodes.local["n2"].parts["0.1", "last"].why


def test_a_start_that_breaks_down_behind_a_save_of_one_node_leaves_the_save_before(nodes: Nodes) -> None:
    """Nothing changes any more, so standing still says nothing: without the word of all nodes from before it is refused."""
    save(nodes, 1)
    nodes.run(9)
    save(nodes, 2, "n0")
    save(nodes, 2, "n1", "n2")
    nodes.run(3)
    nodes.over("0.1", 1)
    nodes.run(30)
    assert whole(nodes) in (1, 2)
    assert all(nodes.shared[name].is_done("0.1", nodes.now_s) for name in nodes.names)
    if whole(nodes) == 1:
        assert any(row["why"] == status_report.UNSURE for row in nodes.shared["n0"].report()["sets"])


def test_the_next_start_saves_over_what_the_one_before_published(nodes: Nodes) -> None:
    """Another start of the same run, the same name: replaced, and what the earlier one still had is not."""
    save(nodes, 1)
    nodes.run(9)
    nodes.over("0.1", 1)
    nodes.start("0.2")
    save(nodes, 2, token="0.2")
    nodes.run(12)
    assert whole(nodes) == 2


def test_a_rank_that_comes_after_all_was_published_is_joined_at_the_end(nodes: Nodes) -> None:
    """A file is added when the set is out already: when the script has ended the set is published anew with it."""
    for name in nodes.names:
        nodes.write(name, f"step-1/{name}.0", b"first")
    nodes.run(6)
    assert sorted(nodes.published()["step-1"]) == ["n0.0", "n1.0", "n2.0"]
    nodes.write("n1", "step-1/n1.1", b"late")
    nodes.run(6)
    nodes.over("0.1", 0)
    nodes.run(12)
    assert sorted(nodes.published()["step-1"]) == ["n0.0", "n1.0", "n1.1", "n2.0"]
    assert all(nodes.shared[name].is_done("0.1", nodes.now_s) for name in nodes.names)


def test_a_name_of_another_run_is_left_alone_and_told(nodes: Nodes) -> None:
    """Two runs publish into one folder: what the first has published stays, the second's comes beside it under a free name, and its report says so."""
    theirs = nodes.to / "last"
    theirs.mkdir()
    (theirs / "weights").write_bytes(b"theirs")
    manifest.write(
        str(theirs),
        manifest.Manifest({"weights": manifest.Entry(6)}, by={"run": "r-9", "attempt": 1, "start": "0.1"}),
    )
    manifest.mark(str(theirs))
    for number in (1, 2):
        save(nodes, number)
        nodes.run(16)
        found = nodes.published()
        own = replace.alias("last", "r-1")
        assert found["last"] == {"weights": b"theirs"}
        assert set(found[own].values()) == {b"model of save %d" % number, b"optimizer of save %d" % number}
    rows = [row for name in nodes.names for row in nodes.shared[name].report()["sets"]]
    assert {row["state"] for row in rows} == {"published"}
    assert {row["why"] for row in rows} == {f"it is published as {own}: last is not this run's there"}


def test_ranks_that_speak_are_believed_for_each_save_of_a_name(
    ranks: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with stage(step, name="last")`: what a rank said of the save before does not count for this one."""
    for step in (10, 20):
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with stage(step, name="last") as folder:
                Path(folder, rank).write_bytes(b"%d" % step)
            ranks.run(6)
            if rank == "0":
                assert set(ranks.published().get("last", {"": b"10"}).values()) == {b"10"}
        assert ranks.published() == {"last": {"0": b"%d" % step, "1": b"%d" % step}}


def test_a_tracker_is_a_checkpoint_only_where_it_is_a_folder(nodes: Nodes) -> None:
    """`last` as a file or a link names a checkpoint; as a folder it is one."""
    nodes.write("n0", "last", b"step-10")
    nodes.write("n0", "checkpoint/model", b"w")
    nodes.over("0.1", 0)
    nodes.run(9)
    assert list(nodes.published()) == ["checkpoint"]


def test_what_is_saved_again_waits_for_files_that_are_as_before(nodes: Nodes) -> None:
    """A rank of the same node is late: its file is still the one of the save before, so the part is not sealed yet."""
    nodes.names = ("n0",)
    nodes.start("0.1")
    for file in ("a", "b"):
        nodes.write("n0", f"last/{file}", b"1")
    nodes.run(4)
    nodes.write("n0", "last/a", b"22")
    nodes.run(10)
    assert nodes.local["n0"].parts["0.1", "last"].state == sealing.WAIT
    assert set(nodes.published()["last"].values()) == {b"1"}
    nodes.write("n0", "last/b", b"22")
    nodes.run(10)
    assert set(nodes.published()["last"].values()) == {b"22"}


def test_links_in_a_set_are_published_as_the_files_they_lead_to(nodes: Nodes, tmp_path: Path) -> None:
    """Also one that leads to another file system; one that leads nowhere, or to itself, is none and is in nobody's way."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as elsewhere:
        elsewhere.write(b"far")
        elsewhere.flush()
        (tmp_path / "near").write_bytes(b"near")
        for name in nodes.names:
            nodes.write(name, f"step-1/{name}", b"w")
        links = {"far": elsewhere.name, "near": str(tmp_path / "near"), "gone": "nowhere", "round": "round"}
        for name, target in links.items():
            (nodes.stage("n0") / "step-1" / name).symlink_to(target)
        nodes.run(8)
    assert nodes.published()["step-1"] == {"far": b"far", "near": b"near", "n0": b"w", "n1": b"w", "n2": b"w"}


def test_a_name_that_cannot_be_there_holds_nobody_up(nodes: Nodes) -> None:
    """It fits in memory, and is too long with what is added to it: refused with that reason, and the others are published."""
    nodes.write("n0", "model-1.pt", b"1")
    nodes.write("n0", "m" * 245 + ".pt", b"2")
    nodes.run(8)
    assert list(nodes.published()) == ["model-1.pt"]
    why = {row["set"][:5]: row["why"] for row in nodes.shared["n0"].report()["sets"]}
    assert why["mmmmm"] == "its name is too long for what is added to it"


def test_names_may_be_anything_that_a_file_can_have(nodes: Nodes) -> None:
    """Line ends, quotes, and bytes that are no text: published as they are."""
    inner = [b"a\nb", b"q'\"\\", b"\xff\xfe", b" "]
    for name in nodes.names:
        folder = os.fsencode(nodes.stage(name)) + b"/step\n1"
        os.makedirs(folder)
        for one in inner:
            Path(os.fsdecode(folder + b"/" + name.encode() + one)).write_bytes(one)
    nodes.run(8)
    found = {os.fsencode(path): content for path, content in nodes.published()["step\n1"].items()}
    assert found == {name.encode() + one: one for name in nodes.names for one in inner}
