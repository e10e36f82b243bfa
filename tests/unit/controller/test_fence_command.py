"""The command that cuts off a node which Slurm has given up: when it runs, how often, and what its success is worth. (I/O)"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.lives import TIMING, Life


def _lost(folder: Path, **settings: Any) -> Life:
    """A run of which one node freezes; Slurm has given that up, and the next step is decided."""
    life = Life(folder, nodes=5, backoff=0.0, **settings)
    life.until("running")
    life.train(1, 5)
    life.engine.fail_node(life.launches[-1].nodes[1], "freeze")
    life.until("recovering", within_s=TIMING.slurmd_timeout_s + 60)
    return life


def _told(life: Life) -> list[str]:
    path = Path(life.run_dir, "cut")
    return path.read_text().split() if path.exists() else []


def _live(life: Life, until: Any) -> None:
    """Real time passes for the command, and a little of the virtual one."""
    give_up_s = time.monotonic() + 60
    while not until():
        assert time.monotonic() < give_up_s, life.kinds()
        life.live(0.02, step_s=0.02)
        time.sleep(0.02)


def _ends(life: Life) -> list[dict[str, Any]]:
    return [record["data"] for record in life.records() if record["kind"] == "hook.ended"]


def test_a_node_that_was_cut_off_is_waited_for_no_longer(tmp_path: Path) -> None:
    """The command has the node's name, runs once, and the attempt is over although fence-wait is an hour."""
    life = _lost(tmp_path, fence_command='echo {node} >>"$FTRUN_RUN_DIR/cut"', fence_wait=3600.0)
    frozen = life.launches[0].nodes[1]
    began_s = life.clock.now_s()
    _live(life, lambda: "attempt.over" in life.kinds())
    (over,) = [record["data"] for record in life.records() if record["kind"] == "attempt.over"]

    assert [frozen] == _told(life)
    assert [("fence-command", 0, "fenced")] == [(one["hook"], one["code"], one["why"]) for one in _ends(life)]
    assert [frozen] == over["fenced"]
    assert life.clock.now_s() - began_s < 60


def test_where_the_command_fails_the_wait_goes_on(tmp_path: Path) -> None:
    """It is not tried again, and nothing starts beside a node that may still write."""
    life = _lost(tmp_path, fence_command='echo {node} >>"$FTRUN_RUN_DIR/cut"; exit 1', fence_wait=600.0)
    _live(life, lambda: bool(_ends(life)))
    life.live(300)
    assert 1 == life.attempt.number
    assert "attempt.over" not in life.kinds()
    life.live(400)

    assert 1 == len(_told(life))
    assert 2 == life.attempt.number


def test_a_supervisor_that_died_after_the_intent_does_not_cut_twice(tmp_path: Path) -> None:
    """The next one reads how it ended."""
    life = _lost(tmp_path, fence_command='echo {node} >>"$FTRUN_RUN_DIR/cut"', fence_wait=3600.0)
    _live(life, lambda: bool(_told(life)))
    life.begin_anew()
    _live(life, lambda: "attempt.over" in life.kinds())

    assert 1 == len(_told(life))


@pytest.mark.parametrize("command", ["", 'echo {node} >>"$FTRUN_RUN_DIR/cut"'])
def test_a_node_that_slurm_has_not_given_up_is_not_cut_off(tmp_path: Path, command: str) -> None:
    """The job ended by itself, all its nodes answer."""
    life = Life(tmp_path, backoff=0.0, fence_command=command)
    life.until("running")
    life.train(1, 5)
    life.say("NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus.")
    life.exit(1)
    _live(life, lambda: life.attempt.number == 2)

    assert [] == _told(life)
