"""Laws of `ftrun advise`: honest about few faults, and about whose figures it reckons with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.cli.advise import Advice, CheckpointTiming, checkpoint_timing, fault_rates
from ftrun.supervisor.cli.advise import make_advice as advise
from ftrun.supervisor.model.run import Attempt, Incident, Launch, LaunchEnd, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.policy import estimates
from ftrun.supervisor.policy.estimates import node_hours
from ftrun.supervisor.simulator import presets
from ftrun.supervisor.submission import start_supervisor
from tests.unit.cases import F, incident

FROZEN = Path(__file__).resolve().parents[2] / "frozen" / "v1"
DAY = 86_400.0
NAMES = tuple(f"n{number}" for number in range(256))


def fault(number: int, kind: F, rung: str = "resubmit", wait_s: float = 60.0) -> Incident:
    """A fault on day `number` after which the first new step came so much later."""
    at = number * DAY
    plain = incident(kind, attempt=number, ended_at_s=at)
    phases = {
        "decided_at_s": at + 5.0,
        "running_again_at_s": at + 5.0 + wait_s,
        "first_step_at_s": at + 35.0 + wait_s,
    }
    decision = {"kind": "resubmit"} if rung == "resubmit" else {"kind": rung, "rung": rung}
    return replace(plain, id=f"{number}.0", diagnosed_at_s=at + 2.0, decision=decision, **phases)  # type: ignore[arg-type]


def run(*incidents: Incident, days: float = 30.0, nodes: int = 256, **own: Any) -> Run:
    """A run whose one attempt has had its nodes for so long, and has them still."""
    attempt = Attempt(1, 0.0, nodes=NAMES[:nodes], launch=Launch(started_at_s=0.0, running_seen_at_s=0.0))
    plain = Run("llm-0001", State.RUNNING, attempts=(attempt,), incidents=incidents, last_at_s=days * DAY)
    return replace(plain, **own)


def told(of: Run, days: float = 30.0, **more: Any) -> Advice:
    return advise(of, days * DAY, nodes=256, **more)


def test_a_run_without_faults_is_held_to_be_like_a_published_one() -> None:
    """The prior is named, and its figures are those of the preset."""
    llama = presets.read_preset(estimates.PRIOR, {})
    assert estimates.PRIOR_EVENTS == pytest.approx(llama.faults_a_second * 54 * DAY)
    found = told(run(days=0.001), days=0.001)
    assert found.reckoned == pytest.approx(1000.0 * 419 / (2048 * 54), rel=0.01)
    assert "llama3-16k" in found.words[0]
    assert "no fault" in found.words[0]


def test_a_run_that_never_saved_is_told_so_first() -> None:
    """A fault loses all its work: that is its interval, and the setting that is missing stands in the first line."""
    found = told(run(days=3.0), 3.0, seen=False)
    assert found.figures["checkpoint interval"].seconds == pytest.approx(3.0 * DAY)
    assert "no setting says where it saves" in found.words[0]
    assert "--ft-checkpoint" in found.words[0]
    assert found.choices[0].goodput < told(run(days=3.0), 3.0).choices[0].goodput
    pattern = replace(run(), settings={"checkpoint": "ckpt/*.pt"})
    assert "nothing matches ckpt/*.pt" in told(pattern, seen=False).words[0]


def test_a_long_time_without_faults_speaks_for_the_run() -> None:
    """The longer it goes well, the better it is thought of."""
    assert told(run(days=30.0), 30.0).reckoned < told(run(days=3.0), 3.0).reckoned


def test_a_run_is_told_what_it_lacks_and_what_that_is_worth() -> None:
    """The best first, each with its option, and nothing that the run does already."""
    faults = tuple(fault(day, F.NODE, wait_s=1200.0) for day in range(1, 30))
    bare = told(run(*faults)).lacks
    rich = told(replace(run(*faults), settings={"stage": "/s", "spares": 8, "spares-refill": "auto"})).lacks

    assert [one.gain for one in bare] == sorted((one.gain for one in bare), reverse=True)
    assert {"saves into memory, partner copies", "resume from memory"} < {one.name for one in bare}
    assert any("--ft-spares=" in one.option for one in bare)
    assert () == rich


def test_few_faults_make_a_wide_interval() -> None:
    """It is the exact one, holds the measured rate, and narrows with the number of faults."""
    few, many = (fault_rates(run(*(fault(n, F.NODE) for n in range(1, k + 1))), 1000.0)[0] for k in (2, 40))

    for one in (few, many):
        assert one.least < one.rate < one.most
    assert few.most / few.least > 20.0
    assert many.most / many.least < 3.0


def test_what_a_person_did_is_no_fault_of_chance() -> None:
    """A cancel, a bug of the script and a time limit say nothing of the machine."""
    found = fault_rates(
        run(*(fault(n, kind) for n, kind in enumerate((F.CANCELLED, F.USER_CODE, F.TIMELIMIT), 1))), 1000.0
    )
    assert [(one.fault, one.events) for one in found] == [("all", 0)]


def test_classes_are_told_apart() -> None:
    """All in sum, then the most frequent class first."""
    found = fault_rates(run(fault(1, F.NETWORK), fault(2, F.NODE), fault(3, F.NODE)), 1000.0)
    assert [(one.fault, one.events) for one in found] == [("all", 3), ("node", 2), ("network", 1)]


def test_time_without_a_job_is_no_exposure() -> None:
    """A paused run's node-hours stand still; those of a live one grow."""
    alive = run(days=1.0)
    paused = replace(
        alive.with_launch(end=LaunchEnd(at_s=DAY)), state=State.STOPPED, wish="pause", last_at_s=DAY
    )
    assert node_hours(alive, 2 * DAY) == pytest.approx(2 * 24 * 256)
    assert node_hours(paused, 2 * DAY) == node_hours(paused, 9 * DAY) == pytest.approx(24 * 256)


def test_a_checkpoints_cost_is_what_the_clock_shows_beyond_the_steps() -> None:
    """100 steps of 2 s take 230 s from one checkpoint to the next: 30 s each; a restart in between changes nothing."""
    saves = [(step, step * 2.3) for step in (100, 200, 300, 400)] + [(500, 5_000.0)]
    found = checkpoint_timing(saves, 2.0)
    assert found is not None
    assert (found.work_s, found.cost_s) == pytest.approx((200.0, 30.0))
    unpaced = checkpoint_timing(saves, None)
    assert unpaced is not None
    assert unpaced.work_s == pytest.approx(230.0)
    assert (unpaced.cost_s, unpaced.gaps) == (None, 4)
    assert checkpoint_timing(saves[:3], 2.0) is None


def test_the_best_interval_is_dalys_and_no_other_is_better() -> None:
    """For the rate that is reckoned with."""
    found = told(run(*(fault(n, F.NODE) for n in range(1, 13))), saved=CheckpointTiming(7_200.0, 40.0, 9))
    now, best = found.choices[:2]
    assert best.every_s == found.best_every_s
    assert now.every_s == 7_200.0
    assert best.goodput > now.goodput
    assert best.least < best.goodput < best.most


def test_spares_pay_where_the_queue_is_long() -> None:
    """Each spare raises the goodput less than the one before; how many pay depends on what a new job costs."""
    short, long = (
        told(run(*(fault(n, F.NODE, wait_s=wait_s) for n in range(1, 29)))) for wait_s in (10.0, 9_000.0)
    )
    gains = [one.goodput for one in long.choices[2:7]]
    assert gains == sorted(gains)
    assert gains[1] - gains[0] > gains[2] - gains[1]
    assert long.best_spares > short.best_spares == 0
    assert long.choices[3].gained_hours > long.choices[3].paid_hours


def test_own_phases_count_before_assumptions() -> None:
    """The restart of a rung is the median of the run's own; a rung that was never used says that it is assumed."""
    found = told(
        run(fault(1, F.NODE, wait_s=100.0), fault(2, F.NODE, wait_s=300.0), fault(3, F.NODE, wait_s=900.0))
    )
    again = found.figures["restart by resubmit"]
    assert (again.seconds, again.source, again.count) == (335.0, "measured", 3)
    assert found.figures["restart by swap"].source.startswith("assumed")


def test_smaller_is_advised_only_as_far_as_it_was_measured() -> None:
    """Without a long wait there is nothing to be saved; without any wait nothing is said to be known."""
    none, short, long = (
        told(run(*waits)) for waits in ((), (fault(1, F.NODE),), (fault(1, F.NODE, wait_s=5_000.0),))
    )
    assert any("not measured" in line for line in none.words)
    assert any("nothing to be saved" in line for line in short.words)
    assert any("1 of 1 new jobs waited longer" in line for line in long.words)
    assert [one.name for one in long.choices][-1] == "best interval, smaller at once"
    assert long.choices[-1].goodput > long.choices[1].goodput


def test_what_growing_is_worth_depends_on_the_size() -> None:
    """One node pays a restart of a few others, many must come back to pay one of thousands; of a run of one size nothing is said."""
    assert not any(line.startswith("growing") for line in told(run()).words)
    sizes: dict[str, Any] = {"settings": {"nodes": "128-256"}}
    assert any("one node that comes back" in line for line in told(run(days=300.0, **sizes)).words)
    often = run(*(fault(n, F.NODE) for n in range(1, 29)), days=2.0, **sizes)
    assert any("nodes that come back at once pay" in line for line in told(often, 2.0).words)


def test_what_growing_is_worth_is_told_as_the_run_itself_reckons_it() -> None:
    """One fault in the first minutes does not make a rate, nor an assumed restart a price where one was measured: the run grows, and so it is said."""
    young = run(fault(0, F.NODE, "shrink", 1.0), days=0.002, nodes=4, settings={"nodes": "2-4"})
    found = advise(young, 0.002 * DAY, nodes=4)
    assert any("growing: one node that comes back pays" in line for line in found.words)


def test_what_a_person_knows_better_is_taken() -> None:
    """Cost and interval that were given outweigh what was measured; nothing is divided by a cost of zero."""
    found = told(run(), saved=CheckpointTiming(100.0, 10.0, 5), cost_s=0.0, every_s=60.0)
    assert found.figures["checkpoint cost"].source == found.figures["checkpoint interval"].source == "given"
    assert 0.0 < found.choices[1].goodput <= 1.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with runs that ended in all kinds of ways, one in mid-recovery."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FTRUN_SUPERVISOR", "none")
    monkeypatch.setattr(
        start_supervisor, "ensure_supervisor", lambda *_: pytest.fail("a test must start no supervisor")
    )
    for source in FROZEN.glob("*/*-0001"):
        shutil.copytree(source, tmp_path / "home" / "runs" / source.name, dirs_exist_ok=True)
    return tmp_path / "home"


@pytest.mark.parametrize("name", sorted(path.name for path in FROZEN.glob("*/*-0001") if path.is_dir()))
def test_every_run_gets_advice(home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Recovered, stopped, cancelled, cut in mid-recovery, an array: a table, and the same as one JSON object."""
    assert (home / "runs" / name).is_dir()
    assert 0 == main(["advise", name, "--nodes", "4"])
    assert "best interval" in capsys.readouterr().out
    assert 0 == main(["advise", name, "--nodes", "4", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert (facts["run"], facts["nodes"]) == (name, 4)
    assert facts["choices"][0]["name"] == "as it is"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nobody-0001", "no run and no job of a run is called"),
        ("train.sh-0001 --nodes x", "--nodes: a whole number"),
        ("train.sh-0001 --checkpoint-cost soon", "--checkpoint-cost: a duration"),
    ],
)
def test_bad_input_to_advise_is_refused_in_one_line(
    home: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong and what would be right; exit 2."""
    assert home.is_dir()
    assert 2 == main(["advise", *words.split()])
    shown = capsys.readouterr()
    assert said in shown.err
    assert 1 == shown.err.count("\n")
