"""Laws of preemption with a time of grace: the script is asked to save at once, and whoever leaves in it was preempted. (I/O)"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.supervisor.controller import gather_facts
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd
from tests.fake_slurm import faults, records
from tests.unit.lives import Life

CANCELLED = "slurmstepd: error: *** STEP 1.0 ON n0 CANCELLED AT 2026-01-01T00:00:00 ***"


@pytest.mark.parametrize(
    ("state", "step", "told", "marks", "seen"),
    [
        ("FAILED", 7, True, {"preempted": True}, "PREEMPTED"),
        ("FAILED", 7, False, {"preempted": True}, "PREEMPTED"),
        ("GONE", 7, True, {"asked": True}, "PREEMPTED"),
        ("COMPLETED", 7, True, {"preempted": True}, "PREEMPTED"),
        ("COMPLETED", None, True, {"preempted": True}, "PREEMPTED"),
        ("COMPLETED", 100, True, {"preempted": True}, "COMPLETED"),
        ("COMPLETED", 7, False, {"preempted": True}, "COMPLETED"),
        ("FAILED", 7, True, {}, "FAILED"),
        ("COMPLETED", 7, True, {}, "COMPLETED"),
        ("CANCELLED", 7, True, {"preempted": True}, "CANCELLED"),
        ("TIMEOUT", 7, True, {"preempted": True}, "TIMEOUT"),
        ("OUT_OF_MEMORY", 7, True, {"preempted": True}, "OUT_OF_MEMORY"),
        ("FAILED", 7, True, {"preempted": True, "requeued": True}, "FAILED"),
        ("FAILED", 7, True, {"preempted": True, "end_intended": "x", "end_done": True}, "FAILED"),
    ],
)
def test_who_leaves_in_the_time_of_grace_was_preempted(
    state: str, step: int | None, told: bool, marks: dict[str, Any], seen: str
) -> None:
    """But for its last step, a good end that nobody asked for, and ends that are a person's, a limit's or our own."""
    ours = {key: value for key, value in marks.items() if key.startswith("end_")}
    end = LaunchEnd(state, preempted="preempted" in marks)
    attempt = Attempt(1, 0.0, total_steps=100, launch=Launch(end=end, requeued="requeued" in marks), **ours)

    assert (
        seen == gather_facts.as_preempted(attempt, step, told=told, asked="asked" in marks).launch.end.state
    )


@pytest.mark.parametrize(
    ("limit_s", "planned_s", "cut_short"),
    [
        (3600.0, 4600.0, False),
        (3600.0, 4500.0, False),
        (3600.0, 1130.0, True),
        (None, None, False),
        (None, 1000.0 + 365 * 86_400, False),
        (None, 1130.0, True),
    ],
)
def test_an_end_that_is_nearer_than_the_limit_is_seen(
    limit_s: float | None, planned_s: float | None, cut_short: bool
) -> None:
    """A job without a limit, too; versions differ in what they call the end of one."""
    row = JobRow(
        "1", JobState.RUNNING, "None", ("n0",), 1, "", "x", "ann", "main", 0.0, 1000.0, None,
        time_limit_s=limit_s, planned_end_s=planned_s,
    )  # fmt: skip

    assert cut_short == row.is_cut_short


def _life(tmp_path: Path, **chosen: Any) -> tuple[Life, list[str]]:
    """A run at step 5 whose last one is known to be 100000, and the signals that its script gets from now on."""
    life = Life(
        tmp_path, checkpoint=str(tmp_path / "work" / "step-*.pt"), **({"save_signal": "USR1"} | chosen)
    )
    life.until("running")
    life.train(1, 5)
    heard: list[str] = []

    def hear(name: str) -> bool:
        heard.append(name)
        return True

    life.launches[-1].on_signal = hear
    return life, heard


def _asked(life: Life) -> bool:
    return os.path.exists(os.path.join(life.run_dir, "save-now"))


def _preempt(life: Life, grace_s: float = 60.0, *, cancel: bool = True) -> None:
    faults.preempt_later(life.engine, life.attempt.job, grace_s, cancel=cancel)


def test_a_job_that_is_preempted_is_asked_at_once_and_costs_no_budget(tmp_path: Path) -> None:
    """One signal and the file, as soon as Slurm shows it; Slurm ends the job; the next one begins with the checkpoint."""
    life, heard = _life(tmp_path)
    _preempt(life)
    life.live(3)

    assert (["USR1"], True, "preempt") == (heard, _asked(life), life.run.leaving["occasion"])
    (life.cwd / "step-6.pt").write_text("weights")
    life.live(8)
    assert ("saved", False, "running") == (life.run.leaving["stage"], _asked(life), life.run.state.value)
    while life.attempt.number == 1:
        life.live()
    assert ("preempted", {}) == (life.run.incidents[0].fault, dict(life.run.spent))


@pytest.mark.parametrize("code", [0, 143])
def test_a_script_that_leaves_upon_slurms_term_goes_on_in_a_new_job(tmp_path: Path, code: int) -> None:
    """Slurm calls it COMPLETED or FAILED, slurmstepd speaks of a cancel: neither a good end nor a person's."""
    life, _ = _life(tmp_path, save_signal="")
    _preempt(life)
    life.say(CANCELLED)
    life.live(2)
    life.exit(code)
    while life.attempt.number == 1:
        life.live()

    assert ("preempted", {}) == (life.run.incidents[0].fault, dict(life.run.spent))


def test_what_slurm_requeues_after_its_grace_is_followed(tmp_path: Path) -> None:
    """Asked, put back, started again by Slurm: the same attempt."""
    life, heard = _life(tmp_path)
    _preempt(life, cancel=False)
    life.live(70)
    life.until("running", 90)

    assert (["USR1"], 1, 1) == (heard[:1], life.attempt.number, life.attempt.launch.number)
    assert not _asked(life)


def test_who_takes_over_in_the_time_of_grace_asks_again_and_not_twice(tmp_path: Path) -> None:
    """Killed between the intent and the fact."""
    life, heard = _life(tmp_path)
    _preempt(life)

    def crash(point: str) -> None:
        if point == "signal:before":
            raise KeyboardInterrupt

    life.supervisor.services.crash = crash
    with pytest.raises(KeyboardInterrupt):
        life.live(5)
    life.begin_anew()
    life.live(5)

    assert (["USR1"], "asked", 1) == (heard, life.run.leaving["stage"], life.kinds().count("leave.intended"))


def test_a_run_that_may_only_be_watched_is_not_asked(tmp_path: Path) -> None:
    """`observe` touches nothing."""
    life, heard = _life(tmp_path, observe=True)
    _preempt(life)
    life.live(10)

    assert ([], False, {}) == (heard, _asked(life), dict(life.run.leaving))


def test_an_end_that_is_near_for_another_reason_is_no_preemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reservation that ends: Slurm names no time of preemption, and is asked about it once."""
    life, heard = _life(tmp_path)
    asked: list[str] = []
    details = life.cluster.details

    def without(job_id: str) -> Any:
        asked.append(job_id)
        found = details(job_id)
        return None if found is None else replace(found, fields={})

    monkeypatch.setattr(life.cluster, "details", without)
    _preempt(life, 1000.0)
    life.live(45)

    assert ([], 1) == (heard, len(asked))


def test_where_slurm_itself_sends_the_signal_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that is asked twice saves twice, and the second checkpoint may be cut off. The file is written all the same."""
    life, heard = _life(tmp_path, words=("-t60",))
    facts = life.cluster.facts()
    monkeypatch.setattr(life.cluster, "facts", lambda: replace(facts, preemption_signals=True))
    life.supervisor.services._facts = None
    _preempt(life)
    life.live(3)

    assert ([], True) == (heard, _asked(life))


class Unseen(Life):
    """Its nodes do not see the run's folder."""

    def _started(self, launch: records.Launch) -> None:
        self.launches.append(launch)


@pytest.mark.parametrize(("kind", "fault"), [(Life, "timelimit"), (Unseen, "unknown")])
def test_a_start_leaves_before_its_time_limit_only_where_it_could_be_asked(
    tmp_path: Path, kind: type[Life], fault: str
) -> None:
    """Where nothing of it was seen, the request in the run's folder was not either: nobody knows why it failed."""
    life = kind(tmp_path, words=("--time=2",), checkpoint="ckpt/*.pt")
    life.until("running")
    while "leave.asked" not in life.kinds():
        life.live()
    life.exit(1)
    while "diagnosed" not in life.kinds():
        life.live()

    assert fault == life.run.incidents[-1].fault
