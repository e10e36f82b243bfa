"""Laws of a drain by somebody else: a live job moves off without losing a step, or goes on and says why. (I/O)"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.cluster import NodeRow, SubmitRequest
from ftrun.supervisor.controller import leave_drained_nodes
from ftrun.supervisor.model.stop_conditions import HALT_FILE
from ftrun.supervisor.policy import drained_nodes
from ftrun.supervisor.policy.drained_nodes import DrainAction, DrainInput
from ftrun.supervisor.store import flag_files, run_dir
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.unit.controller.test_beside import Agent
from tests.unit.lives import Life

WELL = DrainInput("leave", ("n1",), needed=2, free=2, held=1, partition=8)


@pytest.mark.parametrize(
    ("changes", "act"),
    [
        ({}, DrainAction.LEAVE),
        ({"spares": 1}, DrainAction.SWAP),
        ({"spares": 1, "drained": ("n1", "n2")}, DrainAction.LEAVE),
        ({"spares": 1, "free": 0}, DrainAction.SWAP),
        ({"spares": 1, "bound": True}, DrainAction.SWAP),
        ({"free": 1}, DrainAction.WARN),
        ({"bound": True}, DrainAction.WARN),
        ({"constrained": True}, DrainAction.WARN),
        ({"spares": 1, "constrained": True}, DrainAction.SWAP),
        ({"contended": True}, DrainAction.WARN),
        ({"spares": 1, "contended": True}, DrainAction.SWAP),
        ({"held": 4}, DrainAction.LEAVE),
        ({"held": 5}, DrainAction.WARN),
        ({"held": 5, "spares": 1}, DrainAction.WARN),
        ({"ends_soon": True, "spares": 1}, DrainAction.WARN),
        ({"tried": True, "spares": 1}, DrainAction.WARN),
        ({"setting": "warn", "spares": 1}, DrainAction.WARN),
        ({"setting": "never", "spares": 1}, DrainAction.NOTHING),
        ({"drained": ()}, DrainAction.NOTHING),
    ],
)
def test_what_is_done_about_a_drained_node(changes: dict[str, Any], act: DrainAction) -> None:
    """A spare first, then a new job that can begin at once, else a word; nothing for a maintenance of most nodes."""
    assert act == drained_nodes.decide_drained(replace(WELL, **changes)).act


@given(
    setting=st.sampled_from(["leave", "warn", "never"]),
    drained=st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple),
    spares=st.integers(0, 3),
    needed=st.integers(1, 4),
    free=st.integers(0, 6),
    held=st.integers(0, 8),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_a_job_is_only_left_where_it_can_go(
    setting: str,
    drained: tuple[str, ...],
    spares: int,
    needed: int,
    free: int,
    held: int,
    flags: tuple[bool, bool, bool],
) -> None:
    """Whatever else holds: never against the setting, never into a queue, never out of a maintenance; and there is always a reason."""
    ends_soon, tried, bound = flags
    scene = DrainInput(setting, drained, spares, needed, free, held, 8, ends_soon, tried, bound)
    told = drained_nodes.decide_drained(scene)

    moves = told.act in (DrainAction.LEAVE, DrainAction.SWAP)
    assert not moves or (setting == "leave" and drained and held <= 4 and not ends_soon and not tried)
    assert told.act is not DrainAction.LEAVE or (free >= needed and not bound)
    assert told.act is not DrainAction.SWAP or spares >= len(drained)
    assert bool(told.why) == (told.act is not DrainAction.NOTHING)


def _row(name: str, reason: str, *flags: str, state: str = "mixed") -> NodeRow:
    return NodeRow(name, state, frozenset(flags), reason, None, ("main",))


def test_only_a_drain_of_others_on_a_node_that_is_well_counts() -> None:
    """Not ftrun's own, not a node that is silent or down, not one that this start does not use."""
    rows = {
        "n1": _row("n1", "kernel update", "drain"),
        "n2": _row("n2", "ftrun: x gpu 2026-01-01T00:00:00Z", "drain"),
        "n3": _row("n3", "bad", "drain", "not_responding"),
        "n4": _row("n4", ""),
        "n5": _row("n5", "kernel update", "drain"),
        "n6": _row("n6", "bad", "drain", state="down"),
    }
    used = ("n1", "n2", "n3", "n4", "n6", "n7")

    assert ("n1",) == drained_nodes.drained_by_others(used, rows)
    assert 5 == drained_nodes.held_back_count(rows, rows)


def test_only_nodes_of_the_same_kind_that_nobody_else_is_to_have_are_free_at_once() -> None:
    """Other accelerators, a node that Slurm has planned for another job, or one that must first be switched on: the job would end for a place in the queue."""
    rows = {
        "n1": replace(_row("n1", "kernel update", "drain"), gres="gpu:h100:8(S:0-1)"),
        "n2": replace(_row("n2", "", state="idle"), gres="gpu:h100:8(S:0,1)"),
        "n3": replace(_row("n3", "", state="idle"), gres="gpu:a100:8(S:0-1)"),
        "n4": replace(_row("n4", "", "planned", state="idle"), gres="gpu:h100:8"),
        "n5": replace(_row("n5", "", "powered_down", state="idle"), gres="gpu:h100:8"),
        "n6": _row("n6", "", state="idle"),
    }

    assert {"n2"} == drained_nodes.startable_nodes(["n2", "n3", "n4", "n5", "n6", "n7"], ["n1"], rows)


def test_a_job_that_asks_for_features_is_not_ended_for_idle_nodes_that_may_lack_them(tmp_path: Path) -> None:
    """A healthy job is not given up for a place in the queue."""
    life = _life(tmp_path)
    details = life.cluster.details

    def constrained(job: str) -> Any:
        found = details(job)
        return found and replace(found, fields={**found.fields, "Features": "h100"})

    life.cluster.details = constrained  # type: ignore[method-assign, assignment]
    _drain(life, "n0")
    life.live(100)

    assert ["asks for features" in text for text in life.run.warnings] == [True]
    assert ({}, False) == (dict(life.run.leaving), _asked(life))


def test_nodes_that_others_wait_for_are_not_given_back(tmp_path: Path) -> None:
    """A job that waits in the queue would be first to have them, and the run would stand behind it for as long as that takes."""
    life = _life(tmp_path, nodes=6)
    life.cluster.submit(SubmitRequest("", ("-N6", "-pmain", "other.sh"), b"#!/bin/sh\n", {}, str(life.cwd)))
    _drain(life, "n0")
    life.live(100)

    assert ["other jobs wait" in text for text in life.run.warnings] == [True]
    assert ({}, False) == (dict(life.run.leaving), _asked(life))


def test_a_wish_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """What was written is read; what makes no sense, or is gone, is no wish."""
    wish = flag_files.LeaveRequest("7", ("n1",), ("n1", "n3"), "drained (kernel update)")
    flag_files.write_leave(str(tmp_path), 0, wish)
    assert wish == flag_files.read_leave(str(tmp_path), 0)
    assert flag_files.read_leave(str(tmp_path), 1) is None
    (tmp_path / "leave.0.json").write_text("[1]")
    assert flag_files.read_leave(str(tmp_path), 0) is None
    flag_files.remove_leave(str(tmp_path), 0)
    flag_files.remove_leave(str(tmp_path), 0)
    assert flag_files.read_leave(str(tmp_path), 0) is None


# ---------------------------------------------------------------------- lives


def _life(tmp_path: Path, *, nodes: int = 6, **chosen: Any) -> Life:
    options = {"checkpoint": str(tmp_path / "work" / "step-*.pt"), "save_signal": "USR1"} | chosen
    life = Life(tmp_path, nodes=nodes, **options)
    life.until("running")
    life.train(1, 5)
    life.launches[-1].on_signal = lambda name: True
    return life


def _drain(life: Life, *names: str, reason: str = "kernel update") -> None:
    for name in names:
        life.cluster.drain(name, reason)


def _asked(life: Life) -> bool:
    return os.path.exists(os.path.join(life.run_dir, "save-now"))


def _save(life: Life, step: int) -> None:
    (life.cwd / f"step-{step}.pt").write_text("weights")


def test_a_run_moves_off_a_drained_node_at_its_next_checkpoint(tmp_path: Path) -> None:
    """Asked, saved, ended, and on other nodes at once; no budget pays for it, and no node is blamed."""
    life = _life(tmp_path)
    _drain(life, "n0")
    life.live(4)
    assert not _asked(life)  # it may be taken back at once
    life.live(10)
    assert (True, "drain", ["n0"]) == (_asked(life), life.run.leaving["occasion"], life.run.leaving["nodes"])
    _save(life, 6)
    while life.attempt.number == 1:
        life.live()
    life.until("running")

    assert ("preempted", "slurm.moved-off-drained") == (
        life.run.incidents[0].fault,
        life.run.incidents[0].signature,
    )
    assert ({}, (), ("n1", "n2")) == (dict(life.run.spent), life.run.excluded, life.attempt.nodes)
    assert not _asked(life)


def test_a_script_that_saves_nothing_goes_on_where_it_is(tmp_path: Path) -> None:
    """It is asked once, it loses nothing, and it says so."""
    life = _life(tmp_path, save_wait=15.0)
    _drain(life, "n0")
    for step in range(6, 100):
        life.train(step, step)

    assert ("running", 1, False) == (life.run.state.value, life.attempt.number, _asked(life))
    assert 1 == life.kinds().count("leave.intended")
    assert any("n0 is drained (kernel update), the job goes on there" in text for text in life.run.warnings)


def _save_all_the_time(life: Life, name: str) -> None:
    """A save every 3 s, without a marker, none of which rests; `{step}` in the name, or always the same one."""
    for step in range(10, 10 + 120, 3):
        if life.attempt.number > 1:
            return
        path = Path(life.cwd, name.format(step=step))
        path.write_bytes(b"x" * step)
        at_s = life.clock.now_s()
        os.utime(path, (at_s, at_s))
        life.train(step, step + 2)


def test_one_that_saves_every_three_seconds_is_left_too(tmp_path: Path) -> None:
    """No checkpoint of it rests for five seconds: the one before the last counts, once the next is written."""
    life = _life(
        tmp_path, save_signal="", checkpoint=str(tmp_path / "work" / "ckpt-*.pt"), checkpoint_marker=""
    )
    _drain(life, "n0")
    _save_all_the_time(life, "ckpt-{step}.pt")

    assert 2 == life.attempt.number
    assert ["slurm.moved-off-drained"] == [one.signature for one in life.run.incidents]


def test_where_nothing_ever_counts_as_saved_a_person_is_told(tmp_path: Path) -> None:
    """One file that is written anew every three seconds: nobody knows when it is whole, and it is said once."""
    life = _life(
        tmp_path, save_signal="", checkpoint=str(tmp_path / "work" / "last.pt"), checkpoint_marker=""
    )
    _drain(life, "n0")
    _save_all_the_time(life, "last.pt")

    assert 1 == life.attempt.number
    assert 1 == sum("no checkpoint counts as complete: last.pt" in text for text in life.run.warnings)


def test_one_that_does_not_listen_is_left_after_its_own_next_checkpoint(tmp_path: Path) -> None:
    """However long it takes."""
    life = _life(tmp_path, save_signal="", save_wait=5.0)
    _drain(life, "n0")
    for step in range(6, 60):
        life.train(step, step)
    assert (1, "asked") == (life.attempt.number, life.run.leaving["stage"])
    _save(life, 60)
    while life.attempt.number == 1:
        life.live()

    assert "slurm.moved-off-drained" == life.run.incidents[0].signature


@pytest.mark.parametrize(
    ("nodes", "drained", "why"),
    [(3, ("n0",), "only 2 are free"), (6, ("n0", "n3", "n4", "n5"), "4 of 6 nodes")],
    ids=["no other nodes", "maintenance"],
)
def test_where_it_could_not_go_on_elsewhere_it_is_only_told(
    tmp_path: Path, nodes: int, drained: tuple[str, ...], why: str
) -> None:
    """Once, however long it lasts; nobody is asked for anything."""
    life = _life(tmp_path, nodes=nodes, wanted=3 if nodes == 3 else 2)
    _drain(life, *drained)
    life.live(100)

    assert [why in text for text in life.run.warnings] == [True]
    assert ({}, False) == (dict(life.run.leaving), _asked(life))


def test_idle_nodes_are_promised_to_one_run_only(tmp_path: Path) -> None:
    """A supervisor with many runs on drained nodes does not drive all of them to the same few idle ones."""
    life = _life(tmp_path, nodes=4)
    life.supervisor.services.shared(leave_drained_nodes.Promises).nodes["other-0001"] = (
        life.engine.now(),
        2,
    )
    _drain(life, "n0")
    life.live(40)
    assert {} == dict(life.run.leaving)
    assert any("only 1 are free" in text for text in life.run.warnings)
    life.live(200)

    assert "drain" == life.run.leaving["occasion"]
    assert 1 == life.supervisor.services.shared(leave_drained_nodes.Promises).nodes[life.run.id][1]


@pytest.mark.parametrize(("setting", "told"), [("warn", 1), ("never", 0)])
def test_the_setting_decides(tmp_path: Path, setting: str, told: int) -> None:
    """tell: a word; never: nothing."""
    life = _life(tmp_path, drained=setting)
    _drain(life, "n0")
    life.live(60)

    assert (told, {}) == (len(life.run.warnings), dict(life.run.leaving))


def test_a_drain_of_ftruns_own_moves_nobody(tmp_path: Path) -> None:
    """The run of another user had a fault there; this one is well."""
    life = _life(tmp_path)
    _drain(life, "n0", reason="ftrun: other-0001 xid 2026-01-01T00:00:00Z")
    life.live(40)

    assert ({}, ()) == (dict(life.run.leaving), life.run.warnings)


def test_a_node_that_is_given_back_is_not_left(tmp_path: Path) -> None:
    """Nothing is asked for any more, and a later checkpoint ends nothing."""
    life = _life(tmp_path)
    _drain(life, "n0")
    life.live(20)
    assert _asked(life)
    life.cluster.resume("n0", "kernel update")
    life.live(5)
    _save(life, 9)
    life.live(40)

    assert ("dropped", False, "running", 1) == (
        life.run.leaving["stage"],
        _asked(life),
        life.run.state.value,
        life.attempt.number,
    )


@pytest.mark.parametrize(
    "point", ["record:after:leave.intended", "signal:before", "record:after:leave.saved"]
)
def test_who_takes_over_brings_it_to_its_end(tmp_path: Path, point: str) -> None:
    """Killed at any point: asked, or asked once more, and left after a checkpoint; nothing is done twice."""
    life = _life(tmp_path)
    _drain(life, "n0")

    def crash(at: str) -> None:
        if at == point:
            raise KeyboardInterrupt

    life.supervisor.services.crash = crash
    with pytest.raises(KeyboardInterrupt):
        _obey(life, 6, 60)
    life.begin_anew()
    _obey(life, 60, 160)

    assert "slurm.moved-off-drained" == life.run.incidents[0].signature
    assert 1 == len(life.run.incidents)


def _obey(life: Life, first: int, last: int) -> None:
    """Train, and save whenever `save-now` says something new, until another attempt is there."""
    done = ""
    for step in range(first, last):
        if life.attempt.number > 1:
            return
        life.train(step, step)
        wish = Path(life.run_dir, "save-now")
        if wish.exists() and wish.read_text() != done:
            done = wish.read_text()
            _save(life, step)


@pytest.mark.parametrize("dies", [False, True])
def test_a_pause_takes_back_what_was_left_for_the_agent(tmp_path: Path, dies: bool) -> None:
    """Only one of the two acts: the wish to move off is gone from beside the agent, whoever takes over, and does not come back."""
    life = _life(tmp_path, wanted=3, spares=1)
    agent = Agent(life)
    agent.begin(1, list(life.launches[-1].nodes[:2]))
    _drain(life, "n0")
    agent.live(25)
    place = run_dir.attempt_dir(life.run_dir, 1)
    assert flag_files.read_leave(place, 0) is not None
    if dies:

        def crash(point: str) -> None:
            if point == "record:after:leave.intended":
                raise PlannedCrash

        life.supervisor.services.crash = crash
    Path(life.run_dir, HALT_FILE).write_text(
        '{"token": "1", "by": "ann", "pause": true, "after_checkpoint": true}'
    )
    try:
        agent.live(3)
    except PlannedCrash:
        life.begin_anew()
        flag_files.write_leave(
            place, 0, flag_files.LeaveRequest("7", ("n0",), (), "as if it had died a moment earlier")
        )
    agent.live(30)

    assert (flag_files.read_leave(place, 0), life.run.leaving["occasion"]) == (None, "pause")
