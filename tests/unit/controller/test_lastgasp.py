"""Laws of the dying gasp without an agent: who is alive is asked once before the end that is due anyway. (I/O)"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.lives import Life

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, name=python, GPU has fallen off the bus"


def _life(tmp_path: Path, **chosen: Any) -> tuple[Life, list[str]]:
    """A live run that makes steps, and the signals that its script gets."""
    options: dict[str, Any] = {"save_signal": "USR1", "fault_save_timeout": 20.0, "fault_grace": 5.0} | chosen
    life = Life(tmp_path, checkpoint=str(tmp_path / "work" / "step-*.pt"), **options)
    life.until("running")
    life.train(1, 5)
    heard: list[str] = []

    def hear(name: str) -> bool:
        heard.append(name)
        return name != "TERM"

    life.launches[-1].on_signal = hear
    return life, heard


def _fault(life: Life) -> None:
    """A fatal line, no step any more, and the end is announced."""
    life.stand_still(XID)
    life.until("ending", 200)


def _asked(life: Life) -> bool:
    return os.path.exists(os.path.join(life.run_dir, "save-now"))


def test_a_job_that_is_to_be_ended_saves_first(tmp_path: Path) -> None:
    """Asked, saved, ended for its fault as without that; the next attempt begins with the checkpoint."""
    life, heard = _life(tmp_path)
    _fault(life)
    life.live(3)
    assert (["USR1"], True, "gasp", "ending") == (
        heard,
        _asked(life),
        life.run.leaving["occasion"],
        life.run.state.value,
    )
    (life.cwd / "step-6.pt").write_text("weights")
    while life.attempt.number == 1:
        life.live()

    assert ("hardware-gpu", "saved", False) == (
        life.run.incidents[0].fault,
        life.run.leaving["stage"],
        _asked(life),
    )
    assert 1 == heard.count("USR1")


def test_the_end_comes_all_the_same(tmp_path: Path) -> None:
    """Nothing is saved: `fault-save-timeout` later, and without a warning: it was only a try."""
    life, heard = _life(tmp_path)
    _fault(life)
    life.live(15)
    assert "ending" == life.run.state.value
    while life.attempt.number == 1:
        life.live()

    assert ("missed", 1, ()) == (life.run.leaving["stage"], heard.count("USR1"), life.run.warnings)


@pytest.mark.parametrize(
    "chosen", [{"save_signal": ""}, {"fault_save_timeout": 0.0}], ids=["nobody listens", "turned off"]
)
def test_where_nobody_can_be_asked_the_end_comes_at_once(tmp_path: Path, chosen: dict[str, Any]) -> None:
    """As before."""
    life, heard = _life(tmp_path, **chosen)
    _fault(life)
    life.live(4)

    assert ({}, "USR1" in heard, False) == (dict(life.run.leaving), False, _asked(life))
    assert life.run.attempts[0].end_done


def test_a_person_who_cancels_does_not_wait(tmp_path: Path) -> None:
    """The gasp is cut short."""
    life, _ = _life(tmp_path)
    _fault(life)
    life.live(3)
    life.ask("cancel", "1-cancel")
    life.live(5)

    assert life.run.attempts[0].end_done


@pytest.mark.parametrize("point", ["record:after:end.intended", "signal:before", "record:after:leave.saved"])
def test_who_takes_over_ends_it_and_asks_no_second_time(tmp_path: Path, point: str) -> None:
    """Killed at any point: one intent, one end."""
    life, heard = _life(tmp_path)

    def crash(at: str) -> None:
        if at == point:
            raise KeyboardInterrupt

    life.supervisor.services.crash = crash
    life.stand_still(XID)
    with pytest.raises(KeyboardInterrupt):
        _live_and_save(life, heard)
    life.begin_anew()
    _live_and_save(life, heard)

    assert (1, 2) == (life.kinds().count("leave.intended"), life.attempt.number)
    assert 1 == heard.count("USR1")


def _live_and_save(life: Life, heard: list[str]) -> None:
    """Until the next attempt; what is asked for is made."""
    for _ in range(200):
        if life.attempt.number > 1:
            return
        life.live()
        if "USR1" in heard and not (life.cwd / "step-6.pt").exists():
            (life.cwd / "step-6.pt").write_text("weights")
