"""Laws of recheck: whose node it is, when it is looked at, and that a round may be cut anywhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.cluster import NodeRow, SubmitRequest
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import ledger, recheck_rules
from ftrun.supervisor.nodes.recheck_loop import RecheckResult, RecheckRound, recheck_dir
from ftrun.supervisor.nodes.recheck_rules import CheckReport, RecheckRules, RecheckState
from ftrun.supervisor.store.append_log import AppendLog, lock_service
from tests.fake_slurm.cluster import Engine, MemoryCluster

DRAINED = "ftrun: llm-0042 gpu.fell-off 2026-11-20T10:00:00Z"
AGAIN = "ftrun: llm-0043 gpu.fell-off 2026-11-21T10:00:00Z"
GOOD = CheckReport("answered", ({"check": "gpu-check", "severity": "ok", "message": "8 GPUs"},))
BROKEN = CheckReport("answered", ({"check": "gpu-check", "severity": "bad", "message": "7 of 8 GPUs"},))
BLIND = CheckReport(
    "answered", ({"check": "gpu-check", "severity": "skipped", "message": "nvidia-smi is not here"},)
)
UNSEEN = CheckReport("unreachable", why="no route to host")
RULES = RecheckRules(passes=2, spacing_s=600.0, lies=2)


class Site:
    """A virtual cluster of three nodes, a home, and the health of each node as a look shows it."""

    def __init__(self, home: Path, *, rules: RecheckRules = RULES, steps: Sequence[str] = ()) -> None:
        self.home = str(home)
        self.engine = Engine({"main": ["n0", "n1", "n2"]})
        self.cluster = MemoryCluster(self.engine)
        self.health: dict[str, CheckReport] = {}
        self.looked: list[str] = []
        self.rules, self.steps = rules, steps

    def look(self, nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        self.looked += nodes
        return {node: self.health.get(node, GOOD) for node in nodes}

    def round(self, after_s: float = 0.0, **options: Any) -> dict[str, RecheckResult]:
        self.engine.advance(after_s)
        made = RecheckRound(
            self.home, self.cluster, self.look, self.rules, self.engine.now, self.steps, **options
        )
        return {line.node: line for line in made.run()}

    def reason(self, node: str = "n0") -> str:
        return self.cluster.nodes()[node].reason

    def drained(self, node: str = "n0") -> bool:
        return self.cluster.nodes()[node].drained

    def write(self, node: str, reason: str) -> None:
        """What a person types."""
        self.engine.nodes[node].reason = reason

    def memory(self, node: str = "n0") -> RecheckState:
        return recheck_rules.fold(AppendLog(recheck_dir(self.home)).read()).get(node, RecheckState())

    def kinds(self, node: str = "n0") -> list[str]:
        return [r["kind"] for r in AppendLog(recheck_dir(self.home)).read() if r["node"] == node]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.cluster.drain("n0", DRAINED)
    return made


def test_a_mended_node_is_given_back_after_enough_clean_passes(site: Site) -> None:
    """Twice clean, the second time after the pause, and not before."""
    assert site.round()["n0"].state == "passing"
    assert site.round(300)["n0"].state == "waiting"
    assert site.looked == ["n0"]
    assert site.round(300)["n0"].state == "returned"
    assert not site.drained()
    assert site.round() == {}
    (entry,) = ledger.read_entries(site.home)
    assert (entry.what, entry.nodes, entry.run, entry.signature) == (
        "returned",
        ("n0",),
        "llm-0042",
        "gpu.fell-off",
    )


def test_a_broken_node_is_kept_and_its_reason_says_what_is_wrong(site: Site) -> None:
    """The pauses grow; one clean pass after a failure is the first of a new row."""
    site.health["n0"] = BROKEN
    line = site.round()["n0"]
    assert (line.state, line.why) == ("failing", "gpu-check: 7 of 8 GPUs")
    assert site.reason() == "ftrun: llm-0042 gpu.fell-off [still: gpu-check] 2026-11-20T10:00:00Z"
    assert site.round(600)["n0"].state == "failing"
    assert site.round(600)["n0"].state == "waiting"
    site.health["n0"] = GOOD
    assert [site.round(600)["n0"].state, site.round(600)["n0"].state] == ["passing", "returned"]
    assert not site.drained()


@pytest.mark.parametrize("report", [UNSEEN, BLIND])
def test_what_was_not_seen_to_be_good_is_no_pass(site: Site, report: CheckReport) -> None:
    """An answer that did not come, or checks that were skipped, keep the node and begin the row anew."""
    site.round()
    site.health["n0"] = report
    assert site.round(600)["n0"].state == "unseen"
    assert site.memory().passes == 0
    assert site.drained()
    assert site.reason() == DRAINED


def test_what_failed_before_has_to_be_good_and_not_only_silent(site: Site) -> None:
    """A check that was bad and is skipped now is no pass, whatever the others say."""
    site.health["n0"] = BROKEN
    site.round()
    site.health["n0"] = CheckReport(
        "answered", (*BLIND.findings, {"check": "disk", "severity": "ok", "message": ""})
    )
    assert "gpu-check failed before" in site.round(600)["n0"].why


@pytest.mark.parametrize(
    "written",
    [
        DRAINED + " RMA 4711, do not touch",
        DRAINED.replace("gpu.fell-off", "gpu.fell-off [RMA 4711]"),
        "ftrun: mine",
        "ftrun: llm-0042 gpu.fell-off",
        "ftrun:",
        "being repaired",
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_reason_that_a_person_wrote_or_changed_is_left_alone(site: Site, written: str, known: bool) -> None:
    """Neither looked at, nor reworded, nor given back; be it that ftrun knew the node before or not."""
    if known:
        site.round()
    site.write("n0", written)
    site.looked.clear()
    for _ in range(4):
        site.round(100_000)
    assert site.looked == []
    assert (site.reason(), site.drained()) == (written, True)


def test_words_of_ours_that_a_person_takes_away_make_the_reason_theirs(site: Site) -> None:
    """The same drain with another text is no new drain."""
    site.health["n0"] = BROKEN
    site.round()
    site.write("n0", DRAINED)
    site.health["n0"] = GOOD
    assert [site.round(100_000)["n0"].state for _ in range(3)] == ["edited", "left", "left"] or site.drained()
    assert site.drained()


def test_a_reason_that_changes_between_look_and_act_stands(site: Site) -> None:
    """The whole reason is compared just before the node is given back."""
    site.round()
    look = site.look

    def slow(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        site.write("n0", "hands off")
        return look(nodes)

    site.look = slow  # type: ignore[method-assign]
    assert site.round(600)["n0"].state == "edited"
    assert (site.reason(), site.drained()) == ("hands off", True)


def test_a_node_that_goes_down_between_look_and_act_stays(site: Site) -> None:
    """What was clean minutes ago is given back only where Slurm hears it now; then the next round does it."""
    site.round()
    look = site.look

    def slow(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        site.engine.nodes["n0"].down = True
        return look(nodes)

    site.look = slow  # type: ignore[method-assign]
    assert site.round(600)["n0"].state == "waiting"
    assert site.drained()
    site.look = look  # type: ignore[method-assign]
    site.engine.nodes["n0"].down = False
    assert site.round()["n0"].state == "returned"


def test_what_slurm_appends_for_a_reboot_is_no_person_s_word() -> None:
    """The reason of a node that is or was rebooted is still ours."""
    memory = RecheckState(reason=DRAINED)
    for mark in (" : reboot issued", ": reboot complete", " : reboot requested : reboot issued"):
        assert recheck_rules.reason_owner(DRAINED + mark, memory) == "ours"
        assert recheck_rules.reason_owner(DRAINED + mark, RecheckState()) == "new"
    assert recheck_rules.reason_owner(DRAINED + " : reboot it please", memory) == "edited"


def row(state: str, *flags: str, reason: str = DRAINED) -> NodeRow:
    return NodeRow("n0", state, frozenset(flags), reason, 0.0, ("main",))


@pytest.mark.parametrize(
    ("state", "flags", "wanted"),
    [
        ("idle", ["drain"], "look"),
        ("idle", ["drain", "reserved"], "look"),
        ("idle", ["drain", "planned"], "look"),
        ("idle", [], "gone"),
        ("allocated", ["drain"], "wait"),
        ("mixed", ["drain"], "wait"),
        ("mixed", ["drain", "completing"], "wait"),
        ("idle", ["drain", "completing"], "wait"),
        ("allocated", ["drain", "not_responding"], "wait"),
        ("idle", ["drain", "not_responding"], "silent"),
        ("down", ["drain"], "silent"),
        ("down", ["drain", "not_responding"], "silent"),
        ("down", [], "silent"),
        ("idle", ["drain", "maint"], "wait"),
        ("maint", ["drain"], "wait"),
        ("idle", ["drain", "reboot_requested"], "wait"),
        ("down", ["drain", "reboot_issued"], "wait"),
        ("idle", ["drain", "powering_down"], "wait"),
        ("idle", ["drain", "powered_down"], "wait"),
        ("idle", ["drain", "powering_up"], "wait"),
        ("idle", ["drain", "power_down"], "wait"),
        ("idle", ["drain", "fail"], "wait"),
        ("fail", ["drain"], "wait"),
        ("idle", ["drain", "invalid_reg"], "wait"),
        ("inval", ["drain"], "wait"),
        ("future", [], "wait"),
        ("unknown", ["drain"], "wait"),
        ("error", ["drain"], "wait"),
        ("idle", ["drain", "a-flag-of-tomorrow"], "wait"),
    ],
)
def test_each_state_of_a_node_has_its_answer(state: str, flags: list[str], wanted: str) -> None:
    """Only a drained, idle node that Slurm hears is looked at; what is not known is waited out."""
    told, why = recheck_rules.check_eligibility(row(state, *flags))
    assert told == wanted
    assert why or told == "look"


def test_a_node_that_slurm_does_not_hear_is_no_node_that_passes(site: Site) -> None:
    """It is not looked at, is told, and stays."""
    site.round()
    site.engine.nodes["n0"].down = True
    assert site.round(600)["n0"].state == "unseen"
    assert site.memory().passes == 0
    assert site.looked == ["n0"]


def test_a_draining_node_is_left_alone_while_jobs_run_there(site: Site) -> None:
    """No look, no record of one: the job has the node."""
    site.cluster.resume("n0", DRAINED)
    site.cluster.submit(SubmitRequest("t", ("-w", "n0", "train.sh"), b"", {}, "/"))
    site.engine.advance(10)
    site.cluster.drain("n0", DRAINED)
    assert site.round(100_000)["n0"].state == "waiting"
    assert site.looked == []


def test_a_liar_waits_longer_and_is_left_to_a_person_in_the_end(site: Site) -> None:
    """Given back and blamed again: one more pass, four times the pause; the second time it is a person's, with the evidence."""
    for _ in range(2):
        site.round(600)
    assert not site.drained()
    site.cluster.drain("n0", AGAIN)
    assert site.round(600)["n0"].state == "waiting"
    assert site.memory().lies == 1
    assert [site.round(2400)["n0"].state for _ in range(2)] == ["passing", "passing"]
    assert site.round(2400)["n0"].state == "waiting"
    assert site.round(2400)["n0"].state == "returned"
    site.cluster.drain("n0", AGAIN.replace("0043", "0044"))
    site.looked.clear()
    line = site.round(600)["n0"]
    assert line.state == "left"
    evidence = json.loads(Path(line.why.split("evidence in ")[1]).read_text())
    assert [r["kind"] for r in evidence["records"]].count("returned") == 2
    assert evidence["report"]["findings"]
    assert "[left to a person" in site.reason()
    assert site.round(1e7)["n0"].state == "left"
    assert site.looked == []
    assert "left" in [entry.what for entry in ledger.read_entries(site.home)]


def test_a_person_who_gives_a_node_back_ends_its_story(site: Site) -> None:
    """A later drain of ftrun's begins anew: what a person let through is no lie of the node."""
    site.round()
    site.cluster.resume("n0", site.reason())
    assert site.round()["n0"].state == "gone"
    site.cluster.drain("n0", AGAIN)
    site.round()
    assert (site.memory().reason, site.memory().lies) == (AGAIN, 0)


def test_commands_are_tried_once_each_in_their_order(tmp_path: Path) -> None:
    """After a failure the next command, with the node's name in its place; when all were tried, the node is only looked at."""
    steps = [f"touch {tmp_path}/reset-{{node}}", "false"]
    site = Site(tmp_path / "home", rules=RecheckRules(steps=2), steps=steps)
    site.cluster.drain("n0", DRAINED)
    site.health["n0"] = BROKEN
    assert "exit 0" in site.round()["n0"].why
    assert (tmp_path / "reset-n0").exists()
    assert "exit 1" in site.round(1e5)["n0"].why
    assert "tried" not in site.round(1e5)["n0"].why


def test_a_dry_round_looks_and_changes_nothing(site: Site) -> None:
    """Not in Slurm, not on disk."""
    assert site.round(dry=True)["n0"].state == "passing"
    assert not Path(recheck_dir(site.home)).exists()
    site.round()
    before = site.kinds()
    assert site.round(600, dry=True)["n0"].why == "would be given back"
    assert site.drained()
    assert site.kinds() == before


def test_one_recheck_works_at_a_time(tmp_path: Path) -> None:
    """The second is told so; the lock goes with its holder."""
    with lock_service(str(tmp_path)) as first, lock_service(str(tmp_path)) as second:
        assert (first, second) == (True, False)
    with lock_service(str(tmp_path)) as third:
        assert third


class Cut(BaseException):
    """A death at a point of the round."""


def lived(home: Path, cut_at: int) -> tuple[Site, int]:
    """A story of rounds in which the `cut_at`th point kills one round; later ones go on. How many points there were."""
    site = Site(home, rules=RecheckRules(steps=1), steps=["true"])
    site.cluster.drain("n0", DRAINED)
    site.cluster.drain("n1", "a person's")
    left = [cut_at]

    def crash(_point: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Cut

    blamed_again = False
    for number in range(10):
        site.health["n0"] = BROKEN if number < 2 else GOOD
        try:
            site.round(5000, crash=crash)
        except Cut:
            site.round(0)  # cron comes again
        if not site.drained() and not blamed_again:
            site.cluster.drain("n0", AGAIN)
            blamed_again = True
    return site, cut_at - left[0]


def test_a_round_may_be_cut_at_every_record_and_effect(tmp_path: Path) -> None:
    """Whatever the moment of death, the node is given back once it is well, the lie is counted, and nobody else is touched."""
    _, points = lived(tmp_path / "whole", 1_000_000)
    assert points > 15
    for cut_at in range(1, points + 1):
        site, _ = lived(tmp_path / str(cut_at), cut_at)
        kinds = site.kinds()
        assert kinds.count("step.intended") == 1, cut_at
        assert (kinds.count("returned"), site.memory().lies, site.drained()) == (2, 1, False), cut_at
        assert site.reason("n1") == "a person's"
        assert [e.what for e in ledger.read_entries(site.home)].count("returned") == kinds.count(
            "returned"
        ), cut_at


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_but_ours_is_ours(written: str, words: str) -> None:
    """Whatever is typed: ours is only what is remembered word for word, or a whole reason of a new drain."""
    memory = RecheckState(reason=recheck_rules.with_note(DRAINED, words))
    assert recheck_rules.reason_owner(memory.reason, memory) == "ours"
    assert recheck_rules.with_note(memory.reason, "") == DRAINED
    for text in (written, "ftrun:" + written, memory.reason + written, DRAINED + " " + written):
        if recheck_rules.without_reboot_note(text) != memory.reason:
            assert (
                recheck_rules.reason_owner(text, memory) in {"nobody", "edited"}
                or recheck_rules.reason_owner(text, RecheckState()) == "new"
            )


@pytest.mark.parametrize("seed", range(40))
def test_over_any_history_nobody_else_s_node_is_given_back(tmp_path: Path, seed: int) -> None:
    """People drain, edit and resume, nodes break and mend, rounds are cut: only what bears ftrun's own words comes back."""
    luck = Random(seed)
    site = Site(
        tmp_path, rules=RecheckRules(passes=luck.randint(1, 3), spacing_s=60.0, steps=1), steps=["true"]
    )
    theirs: dict[str, str] = {}
    for number in range(80):
        node = luck.choice(["n0", "n1", "n2"])
        deed = luck.randrange(6)
        state = site.engine.nodes[node]
        if deed == 0 and not state.drained:
            site.cluster.drain(node, f"ftrun: r-{number} gpu.x 2026-11-20T10:{number % 60:02d}:00Z")
        elif deed == 1 and not state.drained:
            theirs[node] = f"person {number}"
            site.cluster.drain(node, theirs[node])
        elif deed == 2 and state.drained and node not in theirs:
            theirs[node] = state.reason + " mine now"
            site.write(node, theirs[node])
        elif deed == 3 and node in theirs:
            site.cluster.resume(node, theirs.pop(node))
        else:
            site.health[node] = luck.choice([GOOD, GOOD, BROKEN, UNSEEN, BLIND])
        left = [luck.randint(1, 12)]

        def crash(_point: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Cut

        with contextlib.suppress(Cut):
            site.round(luck.choice([1, 60, 600, 5000]), crash=crash)
        for name, text in theirs.items():
            assert (site.reason(name), site.drained(name)) == (text, True), (seed, number)


@pytest.mark.drills
def test_the_same_over_thousands_of_histories(tmp_path: Path) -> None:
    """Seeds beyond those of every run."""
    for seed in range(40, 2000):
        test_over_any_history_nobody_else_s_node_is_given_back(tmp_path / str(seed), seed)


def test_a_step_is_tried_on_nodes_of_its_class_and_the_machine_is_told(tmp_path: Path) -> None:
    """The class is the ledger's word for the fault that the reason names; a machine is told once, and again when it is another."""
    steps = [f"network: touch {tmp_path}/network", f"hardware-gpu: touch {tmp_path}/{{node}}"]
    site = Site(tmp_path / "home", rules=RecheckRules(steps=2), steps=steps)
    Path(site.home).mkdir()
    incident = NodeEntry(
        site.engine.now(), "incident", ("n0",), "i1", "llm-0042", "gpu.fell-off", "hardware-gpu"
    )
    ledger.append_entries(site.home, incident)
    site.cluster.drain("n0", DRAINED)
    for serial in ("A", "A", "B"):
        site.health["n0"] = replace(BROKEN, machine={"serial": serial})
        site.round(3 * 86_400)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "n0"]
    told = [one for one in ledger.read_entries(site.home) if one.what == "machine"]
    assert [one.detail["serial"] for one in sorted(told, key=lambda one: one.at_s)] == ["A", "B"]
