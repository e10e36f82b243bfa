"""Laws of leaving in good order: what is asked, what counts as saved, when it is enough, and what a pause is. (I/O)"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.cluster import SubmitRequest
from ftrun.slurm.client.options import SbatchOptions, split
from ftrun.supervisor.cli import common, main
from ftrun.supervisor.cli.control import at_time, result_line
from ftrun.supervisor.config import home, settings
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.stop_conditions import HALT_FILE, BadStopConditions, StopConditions
from ftrun.supervisor.model.types import CheckpointState
from ftrun.supervisor.policy import estimates, save_request
from ftrun.supervisor.policy.save_request import Occasion, SaveRequest
from ftrun.supervisor.store import checkpoints, flag_files
from ftrun.supervisor.submission import plan
from tests.unit.lives import Life

NOTHING = CheckpointState()
OLD = CheckpointState("/c/step-100.pt", "a", 100, 100, 600.0)
STEPS = st.none() | st.integers(0, 9)
SIGHTS = st.builds(
    CheckpointState,
    path=st.sampled_from(["", "/c/1", "/c/2"]),
    stamp=st.sampled_from(["a", "b"]),
    step=STEPS,
    logged=STEPS,
    quiet_s=st.floats(0, 20),
    marked=st.booleans(),
)
WAITS = st.none() | st.floats(0, 300)


# ---------------------------------------------------------------------- a new complete checkpoint


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (OLD, "the one that was there"),
        (
            CheckpointState("/c/step-50.pt", "b", 50, 100, 600.0),
            "an older one that is left after a newer one was removed",
        ),
        (CheckpointState("", "", None, 900, 600.0), "a line, where files are known"),
    ],
)
def test_what_was_there_before_is_not_new(now: CheckpointState, why: str) -> None:
    """Only a higher step, or the same file written anew, was saved since."""
    assert not save_request.is_new(OLD, now), why


@pytest.mark.parametrize(
    ("known", "now"),
    [
        (OLD, CheckpointState("/c/step-200.pt", "b", 200)),
        (CheckpointState("/c/last.pt", "a"), CheckpointState("/c/last.pt", "b")),
        (NOTHING, CheckpointState("/c/step-1.pt", "a", 1)),
        (CheckpointState("/c/one", "a"), CheckpointState("/c/other", "b")),
        (CheckpointState(logged=5), CheckpointState(logged=6)),
        (NOTHING, CheckpointState(logged=6)),
    ],
)
def test_what_was_saved_since_is_new(known: CheckpointState, now: CheckpointState) -> None:
    """By file, under a new name or the same one; by the log where no file was ever seen."""
    assert save_request.is_new(known, now)


@given(known=SIGHTS, now=SIGHTS, wait_s=WAITS, waited_s=st.floats(0, 400))
def test_the_wait_ends_saved_or_at_its_deadline_and_not_before(
    known: CheckpointState, now: CheckpointState, wait_s: float | None, waited_s: float
) -> None:
    """For whatever is seen: an end is a new complete checkpoint or the deadline, and either is an end."""
    verdict = save_request.save_verdict(SaveRequest(Occasion.STOP, known, wait_s), now, waited_s)
    complete = not now.path or now.marked or now.quiet_s >= save_request.QUIET_S

    assert verdict.saved == (save_request.is_new(known, now) and complete)
    assert verdict.end == (verdict.saved or (wait_s is not None and waited_s >= wait_s))
    assert verdict.reason


@pytest.mark.parametrize("wait_s", [None, 300.0])
def test_a_script_that_saves_all_the_time_has_saved_once_it_goes_on_to_the_next(wait_s: float | None) -> None:
    """No checkpoint of it ever rests: the one before the one that is being written counts, if it is new itself."""
    ask = SaveRequest(Occasion.DRAIN, OLD, wait_s)
    writing = CheckpointState("/c/step-300.pt", "c", 300, 300, 0.4)
    new, old = CheckpointState("/c/step-200.pt", "b", 200), CheckpointState(OLD.path, OLD.stamp, OLD.step)

    verdict = save_request.save_verdict(ask, replace(writing, overtaken=new), 9.0)
    assert (verdict.end, verdict.saved, verdict.path) == (True, True, new.path)
    for overtaken in (old, None):
        verdict = save_request.save_verdict(ask, replace(writing, overtaken=overtaken), 9.0)
        assert (verdict.end, verdict.still_written) == (False, False)
        assert save_request.save_verdict(ask, replace(writing, overtaken=overtaken), 61.0).still_written


@pytest.mark.parametrize("wait_s", [None, 300.0])
@pytest.mark.parametrize("occasion", list(Occasion))
def test_no_start_is_left_by_choice_for_a_checkpoint_that_a_diverged_training_wrote(
    occasion: Occasion, wait_s: float | None
) -> None:
    """No later start would load it. Whoever must end the start, or was told to, takes what there is."""
    ask = SaveRequest(occasion, OLD, wait_s)
    saved = CheckpointState("/c/step-200.pt", "b", 200, marked=True)
    by_choice = occasion in (Occasion.SWAP, Occasion.DRAIN, Occasion.GROW)

    assert save_request.save_verdict(ask, saved, 9.0).saved
    verdict = save_request.save_verdict(ask, saved, 9.0, diverged=True)
    assert (verdict.end, verdict.saved) == (not by_choice, not by_choice)
    late = save_request.save_verdict(ask, saved, 300.0, diverged=True)
    assert (late.end, late.saved) == (not by_choice or wait_s is not None, not by_choice)


def test_a_checkpoint_is_overtaken_once_another_is_written_behind_it(tmp_path: Path) -> None:
    """By the times of the file system, a second apart; two that are written side by side are both at work."""
    for step, at_s in ((1, 100.0), (2, 200.0), (3, 200.4)):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"x")
        for path in (folder / "weights", folder):
            os.utime(path, (at_s, at_s))
    pattern = str(tmp_path / "step-*")
    one, two, three = (str(tmp_path / f"step-{step}") for step in (1, 2, 3))

    assert checkpoints.overtaken_checkpoint(three, pattern) == ""
    os.utime(Path(three, "weights"), (203.0, 203.0))
    assert checkpoints.overtaken_checkpoint(three, pattern) == two
    assert checkpoints.overtaken_checkpoint(two, pattern) == ""  # the third is newer
    assert checkpoints.overtaken_checkpoint("", pattern) == checkpoints.overtaken_checkpoint(one, one) == ""


@given(known=SIGHTS)
def test_nothing_new_is_ever_seen_where_nothing_changed(known: CheckpointState) -> None:
    """However often the same is looked at."""
    assert not save_request.is_new(known, known)


@given(known=SIGHTS)
def test_what_the_journal_keeps_of_a_sight_is_enough_to_go_on(known: CheckpointState) -> None:
    """Who takes over compares with the same sight."""
    kept = CheckpointState.from_json(json.loads(json.dumps(known.to_json())))

    assert (kept.path, kept.stamp, kept.step, kept.logged) == (
        known.path,
        known.stamp,
        known.step,
        known.logged,
    )


# ---------------------------------------------------------------------- the dying gasp


@given(
    total=st.integers(1, 64),
    alive=st.integers(0, 64),
    listens=st.booleans(),
    gasp_wait_s=st.sampled_from([0.0, 30.0]),
)
def test_survivors_are_asked_when_they_are_most_and_somebody_listens(
    total: int, alive: int, listens: bool, gasp_wait_s: float
) -> None:
    """In no other case, and the reason is always told."""
    ask, why = save_request.emergency_save(total=total, alive=alive, listens=listens, gasp_wait_s=gasp_wait_s)

    assert ask == (alive * 2 > total and listens and gasp_wait_s > 0)
    assert why


# ---------------------------------------------------------------------- before a time limit


def _option(*argv: str, env: dict[str, str] | None = None, head: tuple[str, ...] = (), **chosen: Any) -> str:
    known = {key.replace("_", "-"): value for key, value in chosen.items()}
    return plan.signal_option(known, SbatchOptions(split([*argv, "job.sh"]), [split(list(head))], env or {}))


def test_slurm_is_told_to_send_the_signal_so_early_that_there_is_time_to_save() -> None:
    """The wait and a margin before the limit, wherever that was given; with B: to the script."""
    assert "USR1@150" == _option("-t", "4:00:00", save_signal="SIGUSR1", save_wait=120.0)
    assert "B:USR2@330" == _option(head=("--time=1-00",), save_signal="B:USR2", save_wait=300.0)
    assert "USR1@150" == _option(env={"SBATCH_TIMELIMIT": "60"}, save_signal="usr1")


@pytest.mark.parametrize(
    "given_",
    [
        {"argv": ("-t60", "--signal=TERM@30")},
        {"argv": ("-t60",), "head": ("--signal=B:USR1@60",)},
        {"argv": ("-t60",), "env": {"SBATCH_SIGNAL": "USR1@60"}},
        {"argv": ("-t60",), "save_signal": ""},
        {"argv": ()},
        {"argv": ("--time=UNLIMITED",)},
        {"argv": ("-t3",)},
        {"argv": ("-t60", ":", "-t60")},
    ],
)
def test_the_users_own_signal_wins_and_an_unknown_or_short_limit_gets_none(given_: dict[str, Any]) -> None:
    """Nothing is added where the user chose, where nothing was set, and where the script might not listen yet."""
    more = {"save_signal": "USR1"} | {key: value for key, value in given_.items() if key != "argv"}

    assert "" == _option(*given_["argv"], **more)


@pytest.mark.parametrize("text", ["USR1", "SIGUSR2", "b:term", "B:SIGURG"])
def test_a_signal_that_can_be_sent_and_caught_is_taken(text: str) -> None:
    """As sbatch and scancel write it, with or without SIG, in either case."""
    assert text == settings.parse("save-signal", text)
    name, to_script = save_request.parse_save_signal(text)
    assert (name in {"USR1", "USR2", "TERM", "URG"}, to_script) == (True, ":" in text)


@pytest.mark.parametrize("text", ["USR3", "KILL", "B:", "USR1@60", "10", "R:USR1"])
def test_a_signal_that_nobody_can_catch_is_refused_at_submission(text: str) -> None:
    """In one line that names what is wanted."""
    with pytest.raises(errors.SettingError, match="a signal such as USR1 or B:USR1"):
        settings.parse("save-signal", text)


def test_the_pace_of_a_run_tells_its_end(life: Life, capsys: pytest.CaptureFixture[str]) -> None:
    """Once the usual time of a step is known: a step a second, 100,000 of them, or to where it is to stop."""
    life.train(6, 80)
    assert 0 == main(["show", life.run.id, "--json"])
    end = json.loads(capsys.readouterr().out)["expected_end"]
    assert (100_000, 1, 1.0, None) == (end["target_step"], end["jobs"], end["step_s"], end["time_limit_s"])
    assert main(["status"]) == 0
    assert "ENDS" in capsys.readouterr().out

    _halt(life, at_step=90)
    life.live(2)
    assert 0 == main(["show", life.run.id])
    out = capsys.readouterr().out
    assert "ends at step 90, asked by ann" in out
    assert "of 90, 1 s a step" in out


@given(limit_s=st.floats(60, 1e6), save_wait_s=st.floats(0, 1e4))
def test_most_of_a_time_limit_is_for_work(limit_s: float, save_wait_s: float) -> None:
    """However long the wait for a checkpoint may be, no more than a quarter of the limit is kept for it."""
    assert not save_request.limit_is_near(limit_s, limit_s * 0.26, save_wait_s)
    assert save_request.limit_is_near(limit_s, 0.0, save_wait_s)
    assert save_request.warning_s(limit_s, save_wait_s) <= limit_s / 4


# ---------------------------------------------------------------------- the conditions


@given(
    st.builds(
        StopConditions,
        token=st.text(max_size=4),
        pause=st.booleans(),
        now=st.booleans(),
        after_checkpoint=st.booleans(),
        at_step=STEPS,
        before_s=st.none() | st.floats(0, 1e10),
        by=st.sampled_from(["", "ann"]),
    )
)
def test_conditions_outlive_their_file(halt: StopConditions) -> None:
    """What was written is read."""
    assert halt == StopConditions.from_json(json.loads(json.dumps(halt.to_json())))


@pytest.mark.parametrize(
    "data",
    [
        [],
        "stop",
        3,
        {"at_step": "7"},
        {"at_step": -1},
        {"at_step": True},
        {"before_s": "18:00"},
        {"before_s": 1e18},
        {"before_s": -1},
        {"before_s": float("nan")},
    ],
)
def test_a_file_that_makes_no_sense_is_refused(data: object) -> None:
    """In one line, and never obeyed by half."""
    with pytest.raises(BadStopConditions):
        StopConditions.from_json(data)


@pytest.mark.parametrize(
    ("halt", "step", "now_s", "due"),
    [
        (StopConditions(), 9, 1e9, False),
        (StopConditions(now=True), None, 0.0, True),
        (StopConditions(after_checkpoint=True), None, 0.0, True),
        (StopConditions(at_step=5), 4, 0.0, False),
        (StopConditions(at_step=5), None, 0.0, False),
        (StopConditions(at_step=5), 5, 0.0, True),
        (StopConditions(before_s=1000.0), 9, 849.0, False),
        (StopConditions(before_s=1000.0), None, 850.0, True),
        (StopConditions(at_step=5, before_s=1000.0), 4, 900.0, True),
    ],
)
def test_the_first_condition_that_holds_counts(
    halt: StopConditions, step: int | None, now_s: float, due: bool
) -> None:
    """A time is met so early that there is time to save, by `save-wait` and a margin."""
    assert due == bool(halt.due(step=step, now_s=now_s, save_wait_s=120.0))


@pytest.mark.parametrize(
    ("halt", "listens", "wait_s"),
    [
        (StopConditions(after_checkpoint=True), False, None),
        (StopConditions(after_checkpoint=True), True, 120.0),
        (StopConditions(now=True), False, 120.0),
        (StopConditions(at_step=5), False, 120.0),
        (StopConditions(before_s=1090.0), False, 90.0),
        (StopConditions(after_checkpoint=True, before_s=4600.0), False, 3600.0),
        (StopConditions(after_checkpoint=True, before_s=900.0), False, 0.0),
    ],
)
def test_only_who_asked_for_the_next_checkpoint_of_a_script_that_does_not_listen_waits_without_end(
    halt: StopConditions, listens: bool, wait_s: float | None
) -> None:
    """Everybody else waits for `save-wait`, and nobody longer than to the time that was set."""
    assert wait_s == halt.wait_s(now_s=1000.0, save_wait_s=120.0, listens=listens)


# ---------------------------------------------------------------------- the expected end


@given(
    left=st.integers(0, 10_000),
    step_s=st.floats(0.01, 60),
    limit_s=st.floats(60, 1e5),
    ran=st.floats(0, 0.9),
    save_wait_s=st.floats(0, 600),
)
def test_an_expected_end_is_neither_before_the_work_is_done_nor_in_fewer_jobs_than_it_takes(
    left: int, step_s: float, limit_s: float, ran: float, save_wait_s: float
) -> None:
    """One job where the limit allows it; else so many that their limits together hold the work."""
    now_s = 1e9
    found = estimates.estimate_end(
        step=100,
        target=100 + left,
        step_s=step_s,
        now_s=now_s,
        started_s=now_s - ran * limit_s,
        limit_s=limit_s,
        save_wait_s=save_wait_s,
    )
    work_s, rest_s = left * step_s, limit_s * (1 - ran)

    assert found.at_s >= now_s + work_s - 1e-3
    assert (found.jobs == 1) == (work_s <= rest_s + 1e-6) or abs(work_s - rest_s) < 1e-3
    assert rest_s + (found.jobs - 1) * limit_s >= work_s - 1e-3


def test_without_a_limit_one_job_is_enough() -> None:
    """1,000 steps of 2 s."""
    found = estimates.estimate_end(
        step=0, target=1000, step_s=2.0, now_s=50.0, started_s=0.0, limit_s=None, save_wait_s=120.0
    )

    assert (2050.0, 1) == (found.at_s, found.jobs)


# ---------------------------------------------------------------------- whole lives


def _halt(life: Life, **conditions: Any) -> None:
    token = str(life.engine.now())
    text = json.dumps({"token": token, "by": "ann"} | conditions)
    home.write_atomically(os.path.join(life.run_dir, HALT_FILE), text.encode())


def _save(life: Life, step: int) -> Path:
    path = life.cwd / f"step-{step}.pt"
    path.write_text(f"saved at {life.engine.now()}")
    return path


def _life(tmp_path: Path, **chosen: Any) -> Life:
    life = Life(tmp_path, checkpoint=str(tmp_path / "work" / "step-*.pt"), **chosen)
    life.until("running")
    life.train(1, 5)
    return life


def _fail(life: Life) -> None:
    """The launch fails, and the next attempt runs."""
    number = life.attempt.number
    life.exit(1)
    while life.attempt.number == number:
        life.live()
    life.until("running")


def _asked(life: Life) -> bool:
    return os.path.exists(os.path.join(life.run_dir, "save-now"))


def test_a_pause_waits_for_a_new_checkpoint_releases_the_nodes_and_comes_back_with_its_budgets(
    tmp_path: Path,
) -> None:
    """Asked, saved, ended, shown as paused; the next attempt begins with what was used up before."""
    life = _life(tmp_path, save_signal="USR1", save_wait=60.0)
    _fail(life)
    spent, retries = dict(life.run.spent), life.run.retries
    heard: list[str] = []

    def hear(name: str) -> bool:
        heard.append(name)
        return True

    life.launches[-1].on_signal = hear
    life.say("step 1/100 loss 0.5")
    _save(life, 5)
    life.live(3)
    _halt(life, pause=True, after_checkpoint=True)
    life.live(20)

    assert (["USR1"], True, "running") == (heard, _asked(life), life.run.state.value)
    _save(life, 9)
    life.until("stopped")
    assert (True, "pause", "pause by ann", False) == (
        life.run.paused,
        life.run.wish,
        life.attempt.end_intended.partition(";")[0],
        _asked(life),
    )
    assert [] == life.living()
    life.ask("resume", "9-resume")
    life.until("running")
    assert (spent, retries, {}, "") == (dict(life.run.spent), life.run.retries, life.run.halt, life.run.wish)
    assert retries > 0
    life.live(5)
    assert "running" == life.run.state.value


def test_a_deadline_without_a_checkpoint_ends_the_attempt_all_the_same(tmp_path: Path) -> None:
    """With a warning, and the file is gone: nobody is asked for ever."""
    life = _life(tmp_path, save_wait=20.0)
    _halt(life, now=True)
    life.until("stopped", 60)

    assert ("stop", False) == (life.run.wish, life.run.paused)
    assert any("no new complete checkpoint within 20 s" in text for text in life.run.warnings)
    assert not _asked(life)


def test_until_its_step_a_run_that_is_to_stop_there_recovers_as_ever(tmp_path: Path) -> None:
    """A fault before the condition holds is a fault: another attempt; the stop comes at the step."""
    life = _life(tmp_path, save_wait=5.0)
    _halt(life, at_step=50)
    life.train(6, 8)
    _fail(life)
    life.train(48, 49)
    assert not _asked(life)
    life.train(50, 52)
    assert _asked(life)
    life.until("stopped", 60)

    assert "stop" == life.run.wish


@pytest.mark.parametrize(("want", "done"), [("cancel", "cancelled"), ("stop", "stopped")])
def test_a_paused_run_can_be_given_up(tmp_path: Path, want: str, done: str) -> None:
    """It is stopped by a person then, whoever leads; what waits for it waits through the pause and is let go."""
    life = _life(tmp_path)
    argv = ("-N1", "-pmain", "-Jwaiter", f"--dependency=afterany:{life.attempt.job}", "waiter.sh")
    life.engine.script("waiter", lambda launch: None)
    waiter = int(life.cluster.submit(SubmitRequest("", argv, b"#!/bin/sh\n", {}, str(life.cwd))).job_id)
    _halt(life, pause=True, now=True)
    life.until("stopped", 300)
    life.live(5)
    assert (True, True) == (life.run.paused, life.engine.jobs[waiter].held)
    life.begin_anew()
    life.ask(want, "9-end")
    life.live(5)
    life.begin_anew()
    life.live(5)

    run = life.run
    assert (run.state.value, run.paused, run.final_reason, run.halt) == (
        "stopped",
        False,
        f"{done} by ann",
        {},
    )
    assert " stopped after attempt " in life.log.read_text().splitlines()[-1]
    assert not life.engine.jobs[waiter].held
    assert not os.path.exists(os.path.join(life.run_dir, "halt.json"))
    life.ask("resume", "9-resume")
    life.until("running")


# ---------------------------------------------------------------------- lives with a time limit


LIMIT_S = 600.0
LISTENS: dict[str, Any] = {"words": ("-t10",), "save_signal": "USR1", "save_wait": 20.0}  # Slurm: 50 s before


def _limited(tmp_path: Path, left_s: float, **chosen: Any) -> tuple[Life, list[str]]:
    """A life so long before its time limit, and the signals that its script is sent from now on."""
    life = _life(tmp_path, **(LISTENS | chosen))
    heard: list[str] = []

    def hear(name: str) -> bool:
        heard.append(name)
        return True

    life.launches[-1].on_signal = hear
    _train_until(life, left_s)
    return life, heard


def _train_until(life: Life, left_s: float) -> None:
    begun_s = life.attempt.launch.started_at_s
    assert begun_s is not None
    while begun_s + LIMIT_S - life.engine.now() > left_s:
        life.train(life.attempt.last_step or 6, life.attempt.last_step or 6)


def _saved_now(life: Life, step: int) -> None:
    now_s = life.engine.now()
    os.utime(_save(life, step), (now_s, now_s))


def test_what_is_saved_after_slurms_warning_was_due_is_the_answer_and_nobody_else_asks(
    tmp_path: Path,
) -> None:
    """Slurm sends its signal up to a minute early: a checkpoint from then on counts, and neither file nor signal follows."""
    life, heard = _limited(tmp_path, 105.0)
    assert ("slurm", False) == (life.run.leaving["by"], _asked(life))
    _saved_now(life, 500)
    life.live(12)

    assert "saved" == life.run.leaving["stage"]
    assert ([], False) == (heard, _asked(life))
    assert "leave.asked" not in life.kinds()
    assert not life.run.warnings


def test_an_answer_that_was_there_before_anybody_looked_counts(tmp_path: Path) -> None:
    """A supervisor that comes late sees by its time that the checkpoint was written after the warning was due."""
    life, heard = _limited(tmp_path, 115.0)
    life.engine.advance(20.0)
    _saved_now(life, 500)
    life.engine.advance(10.0)
    life.begin_anew()
    life.live(8)

    assert ("saved", [], False) == (life.run.leaving["stage"], heard, _asked(life))


def test_where_slurms_warning_brought_nothing_the_script_is_asked_once_more(tmp_path: Path) -> None:
    """By the file only: the signal was Slurm's; an answer to either is one."""
    life, heard = _limited(tmp_path, 52.0)
    assert ("slurm", False) == (life.run.leaving["by"], _asked(life))
    _train_until(life, 48.0)

    assert ("", True, []) == (life.run.leaving["by"], _asked(life), heard)
    _saved_now(life, 500)
    life.live(8)
    assert "saved" == life.run.leaving["stage"]


def test_where_slurm_sends_no_signal_the_supervisor_does(tmp_path: Path) -> None:
    """A limit of three minutes is too short for Slurm's: 45 s before it, both ways, once."""
    life, heard = _limited(tmp_path, LIMIT_S - 130.0, words=("-t3",))
    assert ([], {}) == (heard, dict(life.run.leaving))
    _train_until(life, LIMIT_S - 138.0)

    assert (["USR1"], True) == (heard, _asked(life))


def test_a_script_that_has_saved_and_cannot_be_through_is_ended_and_goes_on_in_a_new_job(
    tmp_path: Path,
) -> None:
    """What it would make until its limit were thrown away: it had saved nothing unasked. It counts as its limit, and costs nothing."""
    life, _ = _limited(tmp_path, 105.0)
    _saved_now(life, 500)
    life.train(900, 915)
    while life.attempt.number == 1:
        life.live()

    assert ("timelimit", "slurm.ended-before-limit") == (
        life.run.incidents[0].fault,
        life.run.incidents[0].signature,
    )
    assert {} == dict(life.run.spent)
    begun_s = life.run.attempts[0].launch.started_at_s
    assert begun_s is not None
    assert life.engine.now() < begun_s + LIMIT_S - 60


@pytest.mark.parametrize("unasked", [True, False])
def test_a_script_is_not_ended_early_for_nothing(tmp_path: Path, unasked: bool) -> None:
    """One that saves by itself may do so again, and one whose last step nobody knows may be through in time: the limit is theirs."""
    life, _ = _limited(tmp_path, 400.0)
    if unasked:
        _saved_now(life, 200)
        _train_until(life, 105.0)
    else:
        life = Life(tmp_path / "other", checkpoint=str(tmp_path / "other" / "work" / "step-*.pt"), **LISTENS)
        life.until("running")
        for step in range(int(LIMIT_S - 105.0)):
            life.say(f"step {step} loss 0.5")
            life.live()
    _saved_now(life, 500)
    life.live(70)

    assert ("saved", 1, "running") == (
        life.run.leaving["stage"],
        life.attempt.number,
        life.run.state.value,
    )


@pytest.mark.parametrize(
    ("words", "save_signal", "ahead_s"),
    [
        (("-t60",), "USR1", 150.0),
        (("-t60", "--signal=B:TERM@600"), "USR1", 600.0),
        (("-t60", "--signal=TERM"), "", 60.0),
        (("-t3",), "USR1", None),
        (("-t60",), "", None),
    ],
)
def test_how_early_slurm_warns_is_known(
    tmp_path: Path, words: tuple[str, ...], save_signal: str, ahead_s: float | None
) -> None:
    """The user's own signal or ours; sbatch's own minute where none is told."""
    life = Life(tmp_path, words=words, save_signal=save_signal)

    assert ahead_s == plan.signal_ahead_s(life.run_dir)


@given(work_s=st.none() | st.floats(0, 1e6), left_s=st.floats(-100, 1e5), unasked=st.booleans())
def test_only_who_surely_cannot_be_through_and_saves_only_when_asked_works_in_vain(
    work_s: float | None, left_s: float, unasked: bool
) -> None:
    """Never where anything of it is unknown, nor where the limit is there."""
    vain = save_request.work_is_lost(work_s=work_s, left_s=left_s, unasked=unasked)

    assert not vain or (work_s is not None and work_s > left_s > 0 and not unasked)


def test_what_is_taken_back_is_as_if_it_had_never_been_said(tmp_path: Path) -> None:
    """The attempt goes on, nobody is asked any more, and a later fault is recovered from."""
    life = _life(tmp_path)
    _halt(life, after_checkpoint=True)
    life.live(5)
    assert _asked(life)
    _halt(life)
    life.live(5)

    assert ("", False, "running") == (life.run.wish, _asked(life), life.run.state.value)
    _save(life, 9)
    life.live(20)
    assert "running" == life.run.state.value
    _fail(life)


def test_who_takes_over_in_the_middle_asks_again_and_waits_for_the_same_checkpoint(tmp_path: Path) -> None:
    """Killed between the intent and the fact: the next supervisor asks, and a checkpoint from before does not count."""
    life = _life(tmp_path)
    _save(life, 5)
    life.live(10)
    _halt(life, after_checkpoint=True)

    def crash(point: str) -> None:
        if point == "save-now:before":
            raise KeyboardInterrupt

    life.supervisor.services.crash = crash
    with pytest.raises(KeyboardInterrupt):
        life.live(5)
    assert "intended" == life.run.leaving["stage"]
    life.begin_anew()
    life.live(30)
    assert ("asked", "running", True) == (life.run.leaving["stage"], life.run.state.value, _asked(life))
    _save(life, 12)
    life.until("stopped", 60)

    assert 1 == len([kind for kind in life.kinds() if kind == "leave.intended"])


def test_a_script_that_saves_and_exits_0_when_it_is_asked_is_paused_not_finished(tmp_path: Path) -> None:
    """It can be resumed: nobody said that it had come to its end."""
    life = _life(tmp_path)
    _halt(life, pause=True, after_checkpoint=True)
    life.live(5)
    _save(life, 9)
    life.exit(0)
    life.until("stopped", 60)

    assert life.run.paused


def test_a_script_that_comes_to_its_last_step_while_it_is_asked_is_finished(tmp_path: Path) -> None:
    """The script's own verdict wins where its last step is known."""
    life = _life(tmp_path)
    _halt(life, after_checkpoint=True)
    life.live(5)
    life.say("step 100000/100000 loss 0.5")
    life.live(2)
    life.exit(0)
    life.until("finished", 60)


def test_an_agent_obeys_a_file_that_no_supervisor_has_taken_up(tmp_path: Path) -> None:
    """A condition that holds is a wish; one that does not is none; what was taken back is none; a cancel stays."""
    life = _life(tmp_path)
    run, now_s = life.run, life.engine.now()
    assert flag_files.with_due_stop(run, life.run_dir, now_s) == run
    for halt, wish in (
        (StopConditions(token="1", at_step=10**6), ""),
        (StopConditions(token="2", now=True, pause=True), "pause"),
        (StopConditions(token="3", before_s=now_s + 10), "stop"),
        (StopConditions(token="4"), ""),
    ):
        flag_files.write_halt(life.run_dir, halt)
        assert wish == flag_files.with_due_stop(run, life.run_dir, now_s).wish
        assert "cancel" == flag_files.with_due_stop(replace(run, wish="cancel"), life.run_dir, now_s).wish
    Path(life.run_dir, HALT_FILE).write_text("[")
    assert flag_files.with_due_stop(run, life.run_dir, now_s) == run


def test_a_halt_file_that_makes_no_sense_is_told_once_and_not_obeyed(tmp_path: Path) -> None:
    """The run goes on."""
    life = _life(tmp_path)
    home.write_atomically(os.path.join(life.run_dir, HALT_FILE), b'{"at_step": "soon"}')
    life.live(10)

    assert 1 == len([text for text in life.run.warnings if "is not obeyed" in text])
    assert "running" == life.run.state.value


# ---------------------------------------------------------------------- the commands

NOON = 1_795_262_400.0  # some noon, whatever the time zone of the machine


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "12:61", "+3", "+h", "2026-13-01", "-2h", "1795262400", "+99999999999999d"]
)
def test_a_time_that_cannot_be_meant_is_wrong_usage(text: str) -> None:
    """Exit 2, in one line that names what is wanted."""
    with pytest.raises(UserError, match="--before") as error:
        at_time(text, NOON)
    assert 2 == error.value.exit_code


def test_a_time_is_always_ahead() -> None:
    """A clock's time is the next one; a date that is over is refused."""
    assert NOON + 7200 == at_time("+2h", NOON)
    assert NOON + 90 * 60 == at_time("+1.5h", NOON)
    for hour in range(24):
        assert NOON < at_time(f"{hour}:00", NOON) <= NOON + 86_400
    with pytest.raises(UserError, match="over already"):
        at_time("2020-01-01T00:00", NOON)


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    """A live run, and the commands look at its home."""
    made = _life(tmp_path)
    monkeypatch.setenv("FTRUN_HOME", made.home)
    monkeypatch.setenv("FTRUN_SUPERVISOR", "none")
    monkeypatch.setattr(common, "FOREIGN_LOOK_S", 0.01)  # its supervisor lives in another time
    return made


@pytest.mark.parametrize(
    "words",
    [
        "stop --now --at-step 5",
        "stop --clear --now",
        "stop --after-checkpoint --at-step 5",
        "stop --at-step -1",
        "stop --at-step 0",
        "stop --at-step x",
        "stop --before yesterday",
        "pause --clear --before 18:00",
    ],
)
def test_conditions_that_contradict_each_other_are_wrong_usage(
    life: Life, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, one line, nothing written."""
    assert 2 == main([*words.split(), life.run.id])
    assert 1 == len(capsys.readouterr().err.splitlines())
    assert not os.path.exists(os.path.join(life.run_dir, HALT_FILE))


def test_a_wish_stands_in_its_file_though_nobody_watches(
    life: Life, capsys: pytest.CaptureFixture[str]
) -> None:
    """Conditions as the file has them, and the next supervisor obeys."""
    assert 1 == main(["pause", life.run.id, "--at-step", "7"])
    assert "the request to pause is kept" in capsys.readouterr().err
    halt = StopConditions.from_json(json.loads(Path(life.run_dir, HALT_FILE).read_text()))
    assert (True, 7, False) == (halt.pause, halt.at_step, halt.after_checkpoint)
    life.live(2)

    assert 0 == main(["show", life.run.id])
    assert "pauses at step 7, asked by" in capsys.readouterr().out
    assert 0 == main(["status"])
    assert "running (pause asked)" in capsys.readouterr().out
    assert 0 == main(["explain", life.run.id])
    assert "pauses at step 7, asked by" in capsys.readouterr().out


def test_a_step_that_is_made_already_is_told(life: Life) -> None:
    """Whoever mistypes the step sees that the run leaves now; one still ahead says nothing more."""
    life.live(2)
    step = life.run.attempt.last_step if life.run.attempt else None
    assert step is not None
    told = result_line(life.run, StopConditions(token="1", at_step=step), asked=True)
    assert told.endswith(f"ends at step {step}; it is at step {step}, so it leaves now")
    assert result_line(life.run, StopConditions(token="1", at_step=step + 1), asked=True).endswith(
        f"at step {step + 1}"
    )


def test_a_node_names_the_runs_that_use_it(life: Life, capsys: pytest.CaptureFixture[str]) -> None:
    """Others are left alone, and that is no error."""
    assert 0 == main(["pause", "--node", "n[7-9]"])
    assert "no run uses n[7-9]" in capsys.readouterr().out
    assert not os.path.exists(os.path.join(life.run_dir, HALT_FILE))

    assert 1 == main(["pause", "--node", "n[0-3]"])
    assert os.path.exists(os.path.join(life.run_dir, HALT_FILE))


def test_a_pause_needs_a_run_or_a_node(life: Life, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 without either, and for a node list that is none."""
    assert 2 == main(["pause"])
    assert 2 == main(["pause", "--node", "n[1-"])
    assert 2 == len(capsys.readouterr().err.splitlines())


def test_nobody_removes_a_wish_that_is_not_its_own(tmp_path: Path) -> None:
    """The agent's last wish before it ends a start leaves that of a stop where it is; the end of a launch ends all of them."""
    wish = tmp_path / "save-now"
    for beside, stands in ((True, "stop\n"), (False, "gasp\n")):
        flag_files.request_save(str(tmp_path), "stop")
        flag_files.request_save(str(tmp_path), "gasp", beside=beside)
        assert stands == wish.read_text()
        flag_files.withdraw_save(str(tmp_path), "stop" if stands == "gasp\n" else "gasp")
        flag_files.withdraw_save(str(tmp_path), "")
        assert stands == wish.read_text()
        flag_files.withdraw_save(str(tmp_path), stands.strip())
        assert not wish.exists()
    flag_files.request_save(str(tmp_path), "gasp", beside=True)
    flag_files.clear_save_requests(str(tmp_path))
    assert not wish.exists()


@pytest.mark.parametrize("command", ["cancel", "stop"])
def test_the_commands_give_a_paused_run_up(
    life: Life, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its request is kept where nobody watches; conditions of a run that trains no further are wrong usage; then it is over."""
    _halt(life, pause=True, now=True)
    life.until("stopped", 300)
    assert 2 == main(["stop", life.run.id, "--at-step", "900"])
    assert "is paused and trains no further" in capsys.readouterr().err
    assert 1 == main([command, life.run.id])
    assert f"the request to {command} is kept" in capsys.readouterr().err
    life.live(2)

    assert 0 == main(["status"])
    assert life.run.id not in capsys.readouterr().out
    assert 0 == main([command, life.run.id])
    assert "is over already" in capsys.readouterr().out
    assert 0 == main(["explain", life.run.id])
    assert "is not resubmitted" in capsys.readouterr().out
