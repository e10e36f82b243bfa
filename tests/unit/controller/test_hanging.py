"""Laws of hangs where no agent looks on: who is ended, and what is never taken for a hang. (I/O)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import Unreachable
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.context.services import Stale
from ftrun.supervisor.controller import hang
from ftrun.supervisor.store import run_dir
from tests.fake_slurm import faults
from tests.unit.lives import Life, StackSteps

WAITS = "distributed/distributed_c10d.py:all_reduce < distributed/c10d_logger.py:wrapper < /train.py:step"
LOADS = "utils/data.py:load < /train.py:step"
SHORT: dict[str, Any] = {"hang_min": 10.0, "hang_max": 60.0, "hang_grace": 40.0}


class Ranks:
    """Three ranks that beat, as far as their process does; rank 1 may be elsewhere than the others."""

    def __init__(self, life: Life, *, tops: tuple[str, str] = (WAITS, LOADS)) -> None:
        self.life, self.tops, self.n, self.works = life, tops, 0, True

    @property
    def folder(self) -> Path:
        place = Path(run_dir.attempt_dir(self.life.run_dir, self.life.attempt.number)) / "beats/0.1"
        place.mkdir(parents=True, exist_ok=True)
        return place

    def tell(self) -> None:
        """What all say now: a step further, or where they stand still."""
        self.n += self.works
        for rank in (0, 1, 2):
            told: dict[str, Any] = {
                "rank": rank, "pid": 10 + rank, "host": f"n{rank % 2}", "step": self.n, "phase": "",
                "n": self.n, "t": 1e9, "stack_signal": 42, "own_s": 0.0, "own_n": 0,
            }  # fmt: skip
            if not self.works:
                still = {
                    "stack": "aa",
                    "top": self.tops[rank % 2],
                    "cpu_s": 1.0,
                    "io_bytes": 9,
                    "stuck": False,
                }
                told["still"] = still | {"at": self.life.engine.now()}
            (self.folder / str(rank)).write_text(json.dumps(told).ljust(500) + "\n")

    def live(self, seconds: int) -> None:
        """Time passes, and they tell each second."""
        for _ in range(seconds):
            self.tell()
            self.life.live(1)


def _trains(folder: Path, **chosen: Any) -> tuple[Life, Ranks]:
    """A run that trains and beats, for longer than its warm-up."""
    life = Life(folder, **{**SHORT, **chosen})
    life.until("running")
    ranks = Ranks(life)
    ranks.live(20)
    return life, ranks


def _hangs(ranks: Ranks, seconds: int = 200) -> bool:
    """Whether that is decided while the ranks stand still for so long."""
    ranks.works = False
    for _ in range(0, seconds, 5):
        ranks.live(5)
        if "hang.decided" in ranks.life.kinds():
            return True
    return False


def test_a_hang_without_an_agent_is_found_ended_and_repeated(tmp_path: Path) -> None:
    """Told, decided, ended, diagnosed by what was seen, and tried again; whoever is behind is named."""
    life, ranks = _trains(tmp_path)
    assert _hangs(ranks)
    life.live(60)

    kinds = life.kinds()
    order = [
        "hang.suspected",
        "hang.decided",
        "end.intended",
        "cancel.intended",
        "end.done",
        "job.ended",
        "diagnosed",
        "decided",
    ]
    assert order == sorted(order, key=kinds.index)
    assert kinds.count("hang.decided") == 1
    incident = life.run.incidents[0]
    assert (incident.fault, incident.signature, incident.nodes) == ("hang", "hang.no-progress", ("n1",))
    assert any("no beat and no step" in words for words in incident.diagnosis["rests_on"])
    assert (life.run.state.value, life.attempt.number) == ("running", 2)


def test_a_silent_log_alone_is_no_hang(tmp_path: Path) -> None:
    """Without beats and stacks nobody agrees: the run is suspected and let be (P7)."""
    life = Life(tmp_path, **SHORT)
    life.until("running")
    life.train(1, 12)
    life.live(2000, step_s=5.0)

    assert "hang.suspected" in life.kinds()
    assert (life.run.state.value, "hang.decided" in life.kinds()) == ("running", False)


@pytest.mark.parametrize("moves", [False, True])
def test_stacks_are_taken_from_afar(tmp_path: Path, *, moves: bool) -> None:
    """A step of the supervisor's brings them: where all wait in a collective it is ended, where they move it is not."""
    life, steps = Life(tmp_path, **SHORT), StackSteps()
    life.supervisor.services.steps, life.supervisor.services.in_background = steps, lambda deed: deed()
    steps.moves = moves
    life.until("running")
    life.train(1, 12)
    life.live(300)

    assert steps.asked > 1
    assert ("hang.decided" in life.kinds()) != moves
    taken = [record["data"] for record in life.records() if record["kind"] == "stacks.taken"]
    assert taken[0]["nodes"] == ["n0", "n1"]
    assert taken[0]["folder"].endswith("attempts/1/stacks/0.1/1")


def test_where_no_step_can_be_had_it_goes_on_without(tmp_path: Path) -> None:
    """A login node without srun costs the stacks, not the watch."""
    life, ranks = _trains(tmp_path)
    life.supervisor.services.steps = StackSteps()
    life.supervisor.services.steps.away = True
    life.supervisor.services.in_background = lambda deed: deed()

    assert _hangs(ranks)


def test_an_agent_that_lives_is_not_interfered_with(tmp_path: Path) -> None:
    """P8: while its counter moves nobody else decides; once it is dead the watch begins with fresh clocks."""
    life, ranks = _trains(tmp_path)
    place = Path(run_dir.attempt_dir(life.run_dir, 1)) / "agent"
    place.mkdir()
    row = {
        "v": 1, "seq": 0, "at": life.engine.now(), "kind": "agent.opened", "attempt": 1, "job": "1", "launch": 0, "start": 1,
        "data": {"pid": 1, "host": "n0", "nodes": ["n0", "n1"], "active": ["n0", "n1"], "spares": [], "rungs": [], "off": ""},
    }  # fmt: skip
    (place / "0.jsonl").write_text(json.dumps(row) + "\n")
    ranks.works = False
    for beat in range(100):
        (place / "pulse.0").write_text(str(beat))
        ranks.live(1)
    assert "hang.decided" not in life.kinds()
    died_s = life.engine.now()
    assert _hangs(ranks)

    assert life.engine.now() - died_s >= 30 + SHORT["hang_grace"]


def test_who_takes_over_looks_long_enough_itself(tmp_path: Path) -> None:
    """A supervisor that has just come gives a start its whole warm-up."""
    life, ranks = _trains(tmp_path)
    ranks.works = False
    ranks.live(8)
    life.begin_anew()
    began_s = life.engine.now()
    assert _hangs(ranks)

    assert life.engine.now() - began_s >= SHORT["hang_grace"]


def test_a_supervisor_that_stood_still_has_seen_nothing(tmp_path: Path) -> None:
    """An hour between two looks is no silence of an hour."""
    life, ranks = _trains(tmp_path)
    life.engine.advance(3600)
    life.live(1)
    ranks.live(100)

    assert "hang.decided" not in life.kinds()


def test_a_suspended_job_does_not_hang(tmp_path: Path) -> None:
    """Its ranks stand still, and that says nothing; nor does it right afterwards."""
    life, ranks = _trains(tmp_path)
    job = life.engine.jobs[1]
    job.state = JobState.SUSPENDED
    assert not _hangs(ranks, 120)
    job.state = JobState.RUNNING
    ranks.works = True
    ranks.live(30)

    assert "hang.decided" not in life.kinds()


def test_a_job_found_suspended_at_the_last_moment_is_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look at the queue may be some seconds old: Slurm is asked once more before anything is decided."""
    life, ranks = _trains(tmp_path)
    usual, job = life.cluster.jobs, life.engine.jobs[1]
    looks = [0]

    def jobs(ids: Any) -> Any:
        looks[0] += 1
        job.state = JobState.SUSPENDED if looks[0] % 2 == 0 and not ranks.works else JobState.RUNNING
        return usual(ids)

    monkeypatch.setattr(life.cluster, "jobs", jobs)

    assert not _hangs(ranks, 60)


@pytest.mark.parametrize("what", ["log", "beats"])
def test_what_cannot_be_read_is_not_silent(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared folder that is away tells neither of life nor of a hang."""
    life, ranks = _trains(tmp_path)
    if what == "log":
        life.log.rename(life.log.with_suffix(".away"))
        life.log.mkdir()
    else:
        ranks.folder.rename(ranks.folder.with_name("away"))
    life.live(2000, step_s=5.0)

    assert "hang.decided" not in life.kinds()
    assert life.run.state.value == "running"


def test_beats_that_have_stopped_need_twice_as_long_from_afar(tmp_path: Path) -> None:
    """Nobody knows from here what the nodes do: `hang-max` and the usual gap twice."""
    life, _ = _trains(tmp_path)
    began_s = life.engine.now()
    while "hang.decided" not in life.kinds():
        life.live(1)
        assert life.engine.now() - began_s < 600

    assert life.engine.now() - began_s >= 2 * SHORT["hang_max"]


def test_a_script_that_is_over_does_not_hang(tmp_path: Path) -> None:
    """What comes behind it, checks of nodes and commands of the user, shows no steps."""
    life, ranks = _trains(tmp_path)
    (Path(run_dir.attempt_dir(life.run_dir, 1)) / "exit.0").write_text("code=0\n")

    assert not _hangs(ranks, 200)


def test_slurm_out_of_sight_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blindness is neither clean nor dead."""
    life, ranks = _trains(tmp_path)

    def away(ids: Any) -> Any:
        raise Unreachable("slurmctld is away")

    with monkeypatch.context() as patch:
        patch.setattr(life.cluster, "jobs", away)
        assert not _hangs(ranks, 100)
    ranks.works = True
    ranks.live(30)

    assert "hang.suspected" not in life.kinds()


@pytest.mark.parametrize("chosen", [{"hang": "never"}, {"observe": True}, {"retries": 0}])
def test_who_wants_no_hangs_looked_for_loses_no_job(tmp_path: Path, chosen: dict[str, Any]) -> None:
    """`hang=never` looks for none; a run that may only be watched is shown what would be done, once."""
    life, ranks = _trains(tmp_path, **chosen)
    _hangs(ranks, 100)
    ranks.live(30)

    kinds = life.kinds()
    assert "end.intended" not in kinds
    assert kinds.count("observed") == kinds.count("hang.decided") == (0 if "hang" in chosen else 1)


def test_a_requeued_launch_is_watched_anew(tmp_path: Path) -> None:
    """What its predecessor did says nothing of it."""
    life, ranks = _trains(tmp_path)
    ranks.works = False
    ranks.live(8)
    faults.requeue(life.engine, 1)
    life.live(40)

    assert "hang.decided" not in life.kinds()


def test_a_script_that_waits_to_be_called_is_let_be(tmp_path: Path) -> None:
    """A server in a job without an agent does nothing for hours: it has shown neither step nor beat, and from afar that is no hang."""
    life, steps = Life(tmp_path, **SHORT), StackSteps()
    steps.top = "accept (lib/socket.py:294)"
    life.supervisor.services.steps, life.supervisor.services.in_background = steps, lambda deed: deed()
    life.until("running")
    life.say("listening on port 8080")
    life.live(3000, step_s=5.0)

    assert steps.asked
    assert "hang.decided" not in life.kinds()


def test_only_a_few_stacks_are_taken_at_a_time(tmp_path: Path) -> None:
    """Who comes too late asks again at the next look."""
    life, steps = Life(tmp_path, **SHORT), StackSteps()
    services = life.supervisor.services
    services.steps, services.in_background = steps, lambda deed: None
    life.until("running")
    life.train(1, 12)
    errands = services.shared(hang.StackRequests)
    errands.pending = [hang._StackRequest(())] * 4
    life.live(60)
    assert "stacks.taken" not in life.kinds()
    assert len(errands.pending) == 4
    errands.pending, services.in_background = [], lambda deed: deed()

    life.live(60)

    assert "stacks.taken" in life.kinds()


def test_stacks_that_could_not_be_begun_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen too long ago is not acted on; such a moment keeps nobody from taking stacks later."""
    life, steps = Life(tmp_path, **SHORT), StackSteps()
    services = life.supervisor.services
    services.steps, services.in_background = steps, lambda deed: deed()
    act = RunContext.act

    def stale(self: RunContext, name: str, deed: Any) -> Any:
        if name == "stacks":
            raise Stale("seen long ago")
        return act(self, name, deed)

    life.until("running")
    life.train(1, 12)
    monkeypatch.setattr(RunContext, "act", stale)
    life.live(60)
    monkeypatch.undo()
    life.live(60)

    assert "stacks.taken" in life.kinds()
