"""The soak's plan, its arithmetic and its verdicts, without Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.drill_trainer import faults
from ftrun.supervisor.model.run import Attempt, Run
from tests.drills.tables import all_scenarios
from tests.soak import __main__ as soak
from tests.soak import report, struck
from tests.soak.blows import KINDS, plan, plan_as_json
from tests.soak.goodput import alive_until_s, lost, spent, usual_step_s
from tests.soak.invariants import Book, Sample, bounded, forgotten, innocent, two_jobs

BEGAN = 1000.0


def _steps(*made: tuple[int, float], start: int = 1) -> list[dict[str, Any]]:
    """Lines of the trainer: (step, seconds after the beginning)."""
    return [{"step": step, "at": BEGAN + at, "start": start, "job": "1"} for step, at in made]


# ---------------------------------------------------------------------------- the plan


@given(seed=st.integers(0, 10**6), stretches=st.integers(2, 60))
def test_a_seed_makes_one_plan(seed: int, stretches: int) -> None:
    """The same seed strikes the same at the same moments: one blow in each stretch but the last, none outside the training."""
    made = [plan(seed, length_s=stretches * 120.0, every_s=120.0, ranks=4, person_s=180.0) for _ in range(2)]

    assert made[0] == made[1]
    assert [int(blow.at_s // 120.0) for blow in made[0]] == list(range(stretches - 1))
    assert all(0 <= blow.rank < 4 and blow.repair_s > 0 for blow in made[0])


def test_every_kind_falls_before_any_falls_twice() -> None:
    """The deck is dealt to its end."""
    made = plan(1, length_s=120.0 * (len(KINDS) + 1), every_s=120.0, ranks=4, person_s=180.0)

    assert sorted(kind.name for kind in KINDS) == sorted(blow.kind.name for blow in made)


def test_every_kind_is_out_of_a_drill() -> None:
    """What strikes from inside is a fault of the drills' trainer, and each kind names the drill that it is out of."""
    drills = {scenario.name for scenario in all_scenarios()}

    assert [] == [kind.name for kind in KINDS if kind.drill not in drills]
    assert [] == [kind.name for kind in KINDS if kind.inside and kind.inside not in faults.FAULTS]


def test_what_was_told_strikes_once_and_in_time(tmp_path: Path) -> None:
    """A trainer sees the last step and the faults that stand on disk now; what it met too late does not strike."""
    told = {"what": "killed", "rank": 1, "sticky": False}
    (tmp_path / "told.json").write_text(
        json.dumps({"steps": 77, "faults": [{**told, "until": 4e9}, {**told, "until": 0.0}]})
    )

    seen = struck.up_to_date({"folder": str(tmp_path), "steps": 5}, 12)

    assert 77 == seen["steps"]
    assert [[12], []] == [fault["steps"] for fault in seen["faults"]]
    assert all(fault["once"] for fault in seen["faults"])


# ---------------------------------------------------------------------------- the arithmetic


def test_undisturbed_training_is_useful_from_end_to_end() -> None:
    """A hundred steps of a second in a hundred seconds are all of the time."""
    used = spent(
        _steps(*((n, float(n)) for n in range(1, 101))),
        [],
        [],
        began_s=BEGAN,
        ended_s=BEGAN + 100,
        step_s=1.0,
    )

    assert (1.0, 0.0, 0.0) == (used.useful, used.repeated, used.idle)


def test_steps_that_were_made_again_count_once() -> None:
    """Ten steps, back to the fifth, and up to the tenth again: ten are kept, five were made again, the rest was standing still."""
    book = [
        *_steps(*((n, float(n)) for n in range(1, 11))),
        *_steps(*((n, 10.0 + n) for n in range(6, 11)), start=2),
    ]

    used = spent(book, [], [], began_s=BEGAN, ended_s=BEGAN + 20, step_s=1.0)

    assert (10, 5) == (used.kept, used.again)
    assert (0.5, 0.25, 0.25) == (used.useful, used.repeated, used.idle)


def test_what_nobody_will_use_does_not_count() -> None:
    """A side that is dead in the end has what its last checkpoint has, and one that went back has what it has made up."""
    book = _steps(*((n, float(n)) for n in range(1, 31)))
    saves = [{"step": 20, "at": BEGAN + 20}]

    dead = spent(book, saves, [], began_s=BEGAN, ended_s=BEGAN + 500, step_s=1.0)
    back = spent(
        [*book, *_steps((21, 90.0), start=2)], saves, [], began_s=BEGAN, ended_s=BEGAN + 100, step_s=1.0
    )

    assert (20, 10) == (dead.kept, dead.again)
    assert (21, 10) == (back.kept, back.again)
    assert 30.0 == alive_until_s(book, began_s=BEGAN, ended_s=BEGAN + 500)
    assert alive_until_s(book, began_s=BEGAN, ended_s=BEGAN + 31) is None


def test_a_step_takes_what_it_usually_takes() -> None:
    """The median between neighbours of one start; a restart's pause is no step."""
    book = [*_steps((1, 0.0), (2, 0.5), (3, 1.0)), *_steps((3, 60.0), (4, 60.5), start=2)]

    assert 0.5 == usual_step_s([book, []])
    assert 0.0 == usual_step_s([[]])


def test_a_blow_costs_what_the_time_after_it_lacks_in_new_steps() -> None:
    """Ten seconds without a step, and five steps made again, are fifteen seconds that a blow has cost; the next one is counted apart."""
    book = [
        *_steps(*((n, float(n)) for n in range(1, 11))),
        *_steps(*((n, 15.0 + n) for n in range(6, 27)), start=2),
    ]

    assert [15.0, 0.0] == lost(book, [BEGAN + 10, BEGAN + 30], ended_s=BEGAN + 40, step_s=1.0)


# ---------------------------------------------------------------------------- the verdicts


def test_a_breach_is_told_once_and_each_look_is_counted() -> None:
    """Looks are counted even where nothing is wrong; the same breach is one violation."""
    book = Book()

    told = [book.note("law", []), book.note("law", ["a"]), book.note("law", ["a", "b"])]

    assert [[], ["a"], ["b"]] == told
    assert ({"law": 3}, 2) == (book.looks, book.violations)


def test_a_drain_must_name_a_hurt_node() -> None:
    """Only reasons of ftrun's are looked at, and only a node that was hurt may bear one."""
    reasons = {"n0": "ftrun: run-1 x 2026", "n1": "ftrun: run-1 x 2026", "n2": "kernel update"}

    assert ["n1 was never hurt: ftrun: run-1 x 2026"] == innocent(reasons, {"n0": 1.0})


def test_two_jobs_of_a_run_may_not_run_for_long() -> None:
    """A job that finds its attempt closed goes at once; one that stays is a breach."""
    run = Run("run-1", attempts=(Attempt(1, 0.0, job="7"), Attempt(2, 1.0, job="8")))

    assert [] == two_jobs(run, {"7": 60.0, "8": 2.0, "9": 60.0})
    assert ["jobs 7, 8 run at once"] == two_jobs(run, {"7": 60.0, "8": 20.0})


def test_what_was_decided_stays() -> None:
    """A decision that is gone or is another one is a breach."""
    before = {"a": 1, "b": 2}

    assert [] == forgotten(before, {**before, "c": 3})
    assert ["b was 2, is 9"] == forgotten(before, {"a": 1, "b": 9})
    assert ["b was 2, is None"] == forgotten(before, {"a": 1})


@pytest.mark.parametrize(
    ("rss_kib", "files", "wrong"), [(50_000, 9, 0), (200_000, 9, 1), (50_000, 90, 1), (200_000, 90, 2)]
)
def test_a_supervisor_that_grows_is_found(rss_kib: int, files: int, wrong: int) -> None:
    """Memory and open files of the last tenth against the first."""
    samples = [Sample(float(n), 48_000, 8) for n in range(90)] + [
        Sample(90.0 + n, rss_kib, files) for n in range(10)
    ]

    assert wrong == len(bounded(samples))


def test_the_table_says_what_was_violated() -> None:
    """Shares, costs of blows, looks and breaches stand in it."""
    side = {"side": "ftrun", "useful": 0.75, "repeated": 0.05, "standing_still": 0.2, "steps_kept": 900, "starts": 3,
            "dead_after_s": None, "blows": [{"kind": "hang", "lost_s": 12.0}]}  # fmt: skip
    told = {
        "seed": 7, "plan": [1], "minutes": 20.0, "usual_step_s": 0.4, "sides": [side], "violations": 1, "load": [2.0, 3.0], "attempts": 2, "incidents": [1],
        "laws": [{"law": "never two at the same time", "looks": 40, "breaches": ["start 1 went on"]}], "drained": [],
        "supervisor": {"rss_kib_first_last": [51200, 51200], "files_first_last": [8, 8]}, "run_folder_kib_per_hour": 100,
    }  # fmt: skip

    text = report.text(told)

    assert "75.0%" in text
    assert "  never two at the same time: start 1 went on" in text
    assert text.endswith("violations: 1")


def test_wrong_usage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and one line that names what there is."""
    with pytest.raises(SystemExit) as refused:
        soak.main(["--kinds", "earthquake"])

    assert 2 == refused.value.code
    assert "node-crash" in capsys.readouterr().err


def test_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """--plan says what would strike, and does nothing."""
    assert 0 == soak.main(["--plan", "--seed", "5", "--hours", "0.5"])

    assert plan_as_json(plan(5, length_s=1800.0, every_s=120.0, ranks=4, person_s=180.0)) == json.loads(
        capsys.readouterr().out
    )
