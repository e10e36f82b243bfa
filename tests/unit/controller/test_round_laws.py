"""Laws of one round over all runs: what it proves before it acts, and what it says of a Slurm that does not answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.errors import Unreachable
from ftrun.supervisor.controller import dependents
from ftrun.supervisor.controller.loop import Supervisor
from ftrun.supervisor.controller.reconcile import SUBMITTER_PATIENCE_S
from ftrun.supervisor.store import journal, run_dir
from ftrun.supervisor.store.lease import Lease, LeaseLost
from ftrun.supervisor.submission import plan
from tests.unit.lives import Life


class Told:
    """The supervisor's own log."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        """One line."""
        self.events.append((event, fields))

    def of_slurm(self) -> list[str]:
        """What was said of Slurm's answers, in order."""
        return [event for event, _ in self.events if event.startswith("slurm.")]


def _effects(life: Life, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on: `proven` for each proof of the lease, the name of each call that changes something, in order."""
    done: list[str] = []
    confirm = life.supervisor.lease.confirm

    def prove() -> None:
        done.append("proven")
        confirm()

    monkeypatch.setattr(life.supervisor.lease, "confirm", prove)
    for name in ("submit", "cancel", "drain"):
        deed = getattr(life.cluster, name)

        def noted(*args: Any, _name: str = name, _deed: Any = deed, **more: Any) -> Any:
            done.append(_name)
            return _deed(*args, **more)

        monkeypatch.setattr(life.cluster, name, noted)
    return done


def test_the_lease_is_proven_before_each_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: each drain, cancel and submission comes right after a proof of its own."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    done = _effects(life, monkeypatch)
    life.engine.fail_node(life.launches[0].nodes[1], "crash")
    life.live(120)

    deeds = [at for at, what in enumerate(done) if what != "proven"]
    assert {done[at] for at in deeds} == {"submit", "cancel", "drain"}
    assert {done[at - 1] for at in deeds} == {"proven"}


def test_runs_without_anything_to_do_cost_no_proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: a round over runs that go on by themselves proves the lease at a slow beat, not once for each of them."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    reconciler = life.supervisor.reconcilers[life.run_dir]
    done = _effects(life, monkeypatch)
    world = life.supervisor._look()
    monkeypatch.setattr(life.supervisor, "_look", lambda: world)
    monkeypatch.setattr(life.supervisor, "_find_runs", lambda: None)
    monkeypatch.setattr(
        life.supervisor, "reconcilers", {f"{life.run_dir}-{i}": reconciler for i in range(100)}
    )

    life.supervisor.tick()

    assert done == ["proven"]


def test_who_lost_the_lease_takes_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: closing an attempt is an effect, too: who does not lead any more leaves its claim alone."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.exit(1, 9)
    life.until("settling")
    reconciler = life.supervisor.reconcilers[life.run_dir]

    def lost() -> None:
        raise LeaseLost("somebody else leads now")

    def goes_on() -> None:
        for _ in range(20):
            life.engine.advance(1)
            reconciler.step(life.supervisor._look())

    monkeypatch.setattr(life.supervisor.lease, "confirm", lost)
    with pytest.raises(LeaseLost):
        goes_on()

    claims = [path.name for path in (Path(life.run_dir) / "attempts" / "1").glob("claim*")]
    assert (claims, life.attempt.closed) == (["claim"], False)


def _taken_over(life: Life) -> Supervisor:
    """Another supervisor leads by now, looks at the run once, and has nothing to write about it."""
    old = life.supervisor.lease
    old.term_s = 20.0
    challenger = Lease(life.home, life.clock, term_s=20.0, writer="other-host")
    while not challenger.acquire():
        life.engine.advance(1)
    supervisor = Supervisor(life.home, life.cluster, life.clock, challenger)
    supervisor.tick()
    return supervisor


def test_who_lost_the_lease_writes_no_record(tmp_path: Path) -> None:
    """P8: a process that stood still and wakes up learns that its lease is over before it writes anything."""
    life = Life(tmp_path)
    life.until("running")
    late = life.supervisor.reconcilers[life.run_dir].ctx
    _taken_over(life)
    written = journal.sizes(life.run_dir)

    with pytest.raises(LeaseLost):
        late.record("warned", message="too late")

    assert journal.sizes(life.run_dir) == written


def test_what_an_older_leader_writes_late_does_not_count(tmp_path: Path) -> None:
    """P8: be it that it stood still between its proof and its write, and that the new leader had nothing to say."""
    life = Life(tmp_path)
    life.until("running")
    late = life.supervisor.reconcilers[life.run_dir].ctx._journal
    before = life.kinds()
    leader = _taken_over(life)
    assert late is not None

    late.append("job.ended", attempt=1, job="1", state="GONE")
    leader.tick()

    assert [kind for kind in life.kinds() if kind != "journal.opened"] == [
        kind for kind in before if kind != "journal.opened"
    ]
    assert life.run.state.value == "running"


def test_a_leader_without_a_rival_writes_no_files_about_nothing(tmp_path: Path) -> None:
    """Supervisors that end properly, one after the other, leave no file in a run that goes on by itself."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    before = journal.sizes(life.run_dir)
    for _ in range(3):
        life.begin_anew()
        life.supervisor._find_runs()
        life.supervisor.reconcilers[life.run_dir].step(replace(life.supervisor._look(), jobs=None))

    assert journal.sizes(life.run_dir) == before


def _copy(life: Life) -> str:
    """sbatch made a second job of the present attempt's token. Its id."""
    request = plan.request_for(life.run_dir, plan.AttemptSpec(life.attempt.number))
    return life.cluster.submit(request).job_id


def test_a_second_job_of_the_attempt_that_holds_the_claim_is_cancelled(tmp_path: Path) -> None:
    """P4: while the attempt runs, the other job of its token does not hold the run's place in the queue."""
    life = Life(tmp_path, nodes=2)
    life.until("running")
    copy = _copy(life)
    life.train(1, 40)

    assert (copy, life.living()) == ("2", ["1"])
    assert (life.run.state.value, life.attempt.cancel_intended) == ("running", False)


def test_of_two_jobs_of_one_submission_none_is_cancelled_before_one_has_the_claim(tmp_path: Path) -> None:
    """P4: which of them is the attempt is not known while both wait."""
    life = Life(tmp_path, nodes=2)
    for job in ("1", _copy(life)):
        life.cluster.hold(job)
    life.live(100)

    assert life.living() == ["1", "2"]


@pytest.mark.parametrize("launch", [0, 1])
@pytest.mark.parametrize("nodes", [2, 4])
def test_of_two_jobs_of_one_submission_the_one_with_the_claim_is_followed(
    tmp_path: Path, nodes: int, launch: int
) -> None:
    """P4: whichever launch it claimed, since its first may have been lost before it claimed anything; the other one waits for its nodes, or starts and leaves."""
    life = Life(tmp_path, nodes=nodes)
    life.cluster.hold("1")
    copy = life.engine.jobs[int(_copy(life))]
    copy.restarts = launch
    life.live(2)
    life.cluster.release("1")
    life.train(1, 60)

    assert (life.attempt.job, life.attempt.launch.number, life.living()) == ("2", launch, ["2"])
    assert (life.run.state.value, life.run.incidents) == ("running", ())


def test_of_two_jobs_the_one_with_the_claim_decides_how_the_attempt_ended(tmp_path: Path) -> None:
    """P4: it has failed and Slurm has forgotten it; the other one, which never began, has left, and that is no good end."""
    life = Life(tmp_path, nodes=4)
    life.cluster.hold("1")
    life.engine.jobs[int(_copy(life))].restarts = 1
    life.engine.advance(5)
    life.exit(1)
    life.engine.advance(600)
    life.cluster.release("1")
    life.live(150)

    assert [one.fault for one in life.run.incidents] != []
    assert "run.finished" not in life.kinds()


def test_two_jobs_that_turned_each_other_away_are_no_good_end(tmp_path: Path) -> None:
    """P4: both claimed a launch, saw the other's claim and left; nothing has trained, so the run goes on."""
    life = Life(tmp_path)
    life.cluster.hold("1")
    place = Path(run_dir.attempt_dir(life.run_dir, 1))
    for job, name in (("1", "claim"), ("2", "claim.1")):
        (place / name).symlink_to(f"memory.{job}.0.{life.attempt.token}")
    life.cluster.release("1")
    life.live(60)

    assert (life.run.final, life.attempt.number) == (False, 2)


def test_strays_of_all_runs_are_looked_for_by_one_question_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many runs live: two questions a minute."""
    life = Life(tmp_path)
    life.until("running")
    reconciler = life.supervisor.reconcilers[life.run_dir]
    asked: list[str] = []

    def find(token: str) -> tuple[JobRow, ...]:
        asked.append(token)
        return ()

    monkeypatch.setattr(life.cluster, "find", find)
    monkeypatch.setattr(life.supervisor, "_find_runs", lambda: None)
    monkeypatch.setattr(
        life.supervisor, "reconcilers", {f"{life.run_dir}-{i}": reconciler for i in range(50)}
    )

    for step in range(60):
        life.say(f"step {step}/100000 loss 0.5")
        life.live(1)

    assert len(asked) == 2


def test_an_outage_is_told_once_and_its_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Slurm answers nobody, or not the questions of one run, that is said once, and once that it is over."""
    life = Life(tmp_path)
    told = Told()
    life.supervisor.services.log = told
    life.until("running")
    life.train(1, 5)
    life.engine.set_controller("down")
    life.live(60)
    life.engine.set_controller("up")
    life.live(5)
    assert told.of_slurm() == ["slurm.unseen", "slurm.seen-again"]

    told.events.clear()

    def fails(token: str) -> None:
        raise Unreachable("Unable to contact slurm controller (connect failure)")

    find = life.cluster.find
    monkeypatch.setattr(life.cluster, "find", fails)
    life.exit(1, 9)
    life.live(40)
    assert told.of_slurm() == ["slurm.unseen"]
    monkeypatch.setattr(life.cluster, "find", find)
    life.live(10)

    assert told.of_slurm() == ["slurm.unseen", "slurm.seen-again"]
    assert life.attempt.number == 2


def test_a_finished_run_whose_dependents_an_earlier_release_left_noted_as_held_comes_to_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That release noted none where none could be let go; a supervisor must not look after the run for ever."""
    life = Life(tmp_path)
    life.until("running")
    (reconciler,) = life.supervisor.reconcilers.values()
    reconciler.ctx.record("dependents.held", jobs=["99"], waits={"99": "afterok:1"})
    with monkeypatch.context() as earlier:
        earlier.setattr(dependents, "release", lambda ctx: None)
        life.exit(0)
        life.until("finished")
    life.begin_anew()
    life.live(5)

    assert life.supervisor.idle
    assert "dependents.moved" in life.kinds()


class Suspended(Life):
    """A run whose `ftrun sbatch` was suspended before its first record."""

    def _submit(self, wanted: int) -> None:
        """Nothing is written, and no sbatch is called."""


def test_a_suspended_submission_loses_its_attempt_before_anything_is_recorded(tmp_path: Path) -> None:
    """P4, P8: readers ignore what it writes after our first record, and a job of it would run on unseen."""
    life = Suspended(tmp_path)
    life.ask("stop", "1-stop")
    lost: list[bool] = []
    life.supervisor.services.crash = lambda _: lost.append(run_dir.open_attempt(life.run_dir, 1) is None)
    life.live(SUBMITTER_PATIENCE_S + 10, step_s=5)

    assert life.run.final
    assert lost
    assert all(lost)


def test_a_job_that_started_meanwhile_is_not_stopped_with_its_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ftrun sbatch` went on just before its attempt was taken from it: its records are there to be read."""
    life = Suspended(tmp_path)
    life.live(SUBMITTER_PATIENCE_S - 10, step_s=5)
    Life._submit(life, 2)
    ctx = life.supervisor.reconcilers[life.run_dir].ctx
    monkeypatch.setattr(ctx, "catch_up", lambda: None)  # its records are not seen yet
    life.live(20)
    assert life.kinds()[-1] == "submit.done"
    life.begin_anew()
    life.until("running")
