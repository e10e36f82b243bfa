"""Laws of the supervisor and companions: it ends what nobody else can, nothing else, and nothing begins beside one. (I/O)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobState, SubmitRequest
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.supervisor.controller import agent_link, companions, hang
from ftrun.supervisor.diagnosis.review import COMPANION_OVER
from ftrun.supervisor.model.agent_events import companion_mark
from ftrun.supervisor.model.run import Companion
from ftrun.supervisor.model.stop_conditions import HALT_FILE
from ftrun.supervisor.nodes import from_runs
from ftrun.supervisor.store import run_dir
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.fake_slurm.records import Job
from tests.unit.controller.test_beside import Agent
from tests.unit.lives import Life

CASES = ["the script fails", "the script ends well", "a person cancels", "it is requeued"]


class Company:
    """A run of three nodes that trains, its agent, and one companion of one node."""

    def __init__(self, folder: Path, *, nodes: int = 6, **chosen: Any) -> None:
        self.life = Life(folder, nodes=nodes, wanted=3, **chosen)
        self.life.engine.script("companion", lambda launch: None)
        self.life.until("running")
        self.agent = Agent(self.life)
        self.own = list(self.life.launches[-1].nodes)
        self.agent.begin(1, self.own)
        self.life.train(1, 3)
        self.mark = companion_mark(self.life.token, 1, 0, 1)

    def ask(self) -> None:
        """The agent announces one."""
        self.agent.note("companion.intended", number=1, nodes=1, exclude=[], mark=self.mark, why="n0 is dead")

    def submit(self, *, comment: str | None = None, name: str = "companion", user: str = "user") -> Job:
        """sbatch makes it."""
        away = ",".join(self.own)
        text = self.mark if comment is None else comment
        argv = [
            "-N1",
            "-pmain",
            f"--job-name={name}",
            f"--comment={text}",
            f"--exclude={away}",
            "--no-requeue",
        ]
        request = SubmitRequest(
            token=self.mark, argv=(*argv, "companion.sh"), script=None, env={}, cwd="/", umask=0o22, limits={}, nice=0
        )  # fmt: skip
        heard = self.life.cluster.submit(request)
        job = self.life.engine.jobs[int(heard.job_id)]
        job.user = user
        return job

    def told(self, job: Job) -> None:
        """The agent notes its id."""
        self.agent.note("companion.submitted", number=1, job=str(job.number))

    def arrive(self) -> Job:
        """Asked for, submitted, there, and known to be."""
        self.ask()
        job = self.submit()
        self.told(job)
        self.agent.live(3)
        self.agent.note("companion.here", number=1, job=str(job.number), nodes=list(job.nodes))
        self.agent.live(2)
        return job

    def join(self, job: Job) -> None:
        """The next start spans both jobs."""
        nodes = [*self.own[1:], *job.nodes]
        self.agent.decide(1, nodes, aside=[self.own[0]], exclude=[])
        self.agent.begin(2, nodes)
        self.agent.live(3)
        self.life.train(4, 6)

    @property
    def known(self) -> Companion:
        """What the journal knows of it."""
        (one,) = self.life.run.attempts[0].companions
        return one

    def end(self, case: str) -> None:
        """The launch comes to its end."""
        if case == "the script fails":
            self.life.exit(1)
        elif case == "the script ends well":
            self.life.exit(0)
        elif case == "a person cancels":
            self.life.ask("cancel", "1-cancel")
        else:
            self.life.engine.fail_node(self.own[0], "crash")


def _asked_for(company: Company, state: str) -> Job | None:
    """A companion as far as `state`, noted or not."""
    company.ask()
    if state == "intended":
        company.agent.live(2)
        return None
    job = company.submit()
    if state != "unnoted":
        company.told(job)
    company.agent.live(3)
    if state == "here":
        company.agent.note("companion.here", number=1, job=str(job.number), nodes=list(job.nodes))
        company.agent.live(2)
    return job


@pytest.mark.parametrize("state", ["intended", "unnoted", "submitted", "here"])
def test_beside_a_live_agent_nobody_touches_a_companion(tmp_path: Path, state: str) -> None:
    """P8: whatever the state of a companion and however long, while the agent's counter moves it is the agent's."""
    company = Company(tmp_path)
    job = _asked_for(company, state)
    company.agent.live(300)

    assert not [
        kind for kind in company.life.kinds() if kind.startswith(("companion.ended", "companion.gone"))
    ]
    assert job is None or job.state is JobState.RUNNING


def test_a_companion_that_its_agent_gave_back_in_vain_is_ended(tmp_path: Path) -> None:
    """Slurm did not answer the agent, and the companion's own node may not see the folder: the supervisor asks again, as long as it takes."""
    company = Company(tmp_path)
    job = company.arrive()
    for kind in ("companion.ended.intended", "companion.ended"):
        company.agent.note(kind, number=1, job=str(job.number), reason="it came too late")
    company.agent.live(15)
    assert not job.state.ended
    company.agent.live(60)

    assert job.state is JobState.CANCELLED
    assert company.known.state == "gone"


def test_that_one_companion_is_gone_is_no_word_about_the_next(tmp_path: Path) -> None:
    """The first one came to its end and another took its place: what is noted of the one does not end the other, nor the start that lies in it."""
    company = Company(tmp_path)
    first = company.arrive()
    company.join(first)
    mark = companion_mark(company.life.token, 1, 0, 2)
    company.agent.note("companion.intended", number=2, nodes=1, exclude=[], mark=mark, why="it is over")
    second = company.submit(comment=mark)
    company.agent.note("companion.submitted", number=2, job=str(second.number))
    company.agent.note("companion.here", number=2, job=str(second.number), nodes=list(second.nodes))
    company.agent.live(3)
    company.life.engine.end(first, JobState.TIMEOUT)
    company.agent.live(30)

    assert not second.state.ended
    assert [one.state for one in company.life.run.attempts[0].companions] == ["gone", "here"]
    company.life.exit(0)
    company.life.live(60)
    assert second.state is JobState.CANCELLED


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("state", ["unnoted", "submitted", "here"])
def test_with_its_launch_a_companion_ends(tmp_path: Path, state: str, case: str) -> None:
    """Script over, run over, cancelled, requeued: it is cancelled, announced and noted, be its id known or not."""
    company = Company(tmp_path)
    job = _asked_for(company, state)
    company.end(case)
    company.life.live(60)

    assert job is not None
    assert job.state is JobState.CANCELLED
    assert (company.known.state, company.known.job) == ("gone", str(job.number))
    kinds = [kind for kind in company.life.kinds() if kind.startswith("companion.")]
    assert kinds[-3:] == ["companion.ended.intended", "companion.ended", "companion.gone"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_companion_that_slurm_made_twice_ends_twice(tmp_path: Path, forgotten: bool) -> None:
    """sbatch was heard a second time by a controller that had answered late: nobody noted the first job, and it goes with the other,
    also where Slurm forgot that one before anybody saw its end.
    """
    company = Company(tmp_path)
    company.ask()
    unknown, known = company.submit(), company.submit()
    company.told(known)
    company.agent.live(3)
    if forgotten:
        company.life.cluster.cancel(str(known.number))
        del company.life.engine.jobs[known.number]
    company.end("the script fails")
    company.life.until("queued")

    assert [unknown.state, known.state] == [JobState.CANCELLED] * 2
    assert company.known.job == str(known.number)


def test_the_next_attempt_begins_when_the_companion_is_gone(tmp_path: Path) -> None:
    """P6: between the two no moment in which both are there."""
    company = Company(tmp_path)
    job = company.arrive()
    company.join(job)
    company.end("the script fails")
    company.life.until("queued")

    kinds = company.life.kinds()
    assert kinds.index("companion.gone") < kinds.index("attempt.over") < kinds.index("attempt.opened", 9)
    assert job.state is JobState.CANCELLED
    assert job.number < company.life.engine.next_id - 1


def test_a_stubborn_companion_holds_the_next_attempt_up(tmp_path: Path) -> None:
    """P6: as long as Slurm still has it, nothing is submitted, and it is asked for again and again."""
    company = Company(tmp_path)
    job = company.arrive()
    deed = company.life.cluster.cancel
    asked = []

    def deaf(job_id: str, **how: Any) -> None:
        asked.append(job_id)
        if job_id != str(job.number):
            deed(job_id, **how)

    company.life.cluster.cancel = deaf  # type: ignore[method-assign]
    company.end("the script fails")
    company.life.live(200)
    assert "attempt.over" not in company.life.kinds()
    assert 4 <= asked.count(str(job.number)) <= 10
    company.life.cluster.cancel = deed  # type: ignore[method-assign]
    company.life.live(60)

    assert company.life.attempt.number == 2


def test_a_companion_that_may_not_be_cancelled_is_told_and_waited_for(tmp_path: Path) -> None:
    """A refusal is one warning; the companion's own script ends it, and then the run goes on."""
    company = Company(tmp_path)
    job = company.arrive()
    deed = company.life.cluster.cancel

    def refuse(job_id: str, **how: Any) -> None:
        if job_id == str(job.number):
            raise RefusedForGood("Access/permission denied")
        deed(job_id, **how)

    company.life.cluster.cancel = refuse  # type: ignore[method-assign]
    company.end("the script fails")
    company.life.live(100)
    told = [text for text in company.life.run.warnings if "cannot be ended" in text]
    company.life.engine.end(job, JobState.COMPLETED)
    company.life.live(30)

    assert told == [f"companion job {job.number} cannot be ended: Access/permission denied"]
    assert company.life.attempt.number == 2


def test_a_companion_on_a_dead_node_is_fenced_like_the_jobs_own(tmp_path: Path) -> None:
    """P6: silent for the fence's time, and left out: then the next attempt may begin."""
    company = Company(tmp_path, nodes=8, fence_wait=40)
    job = company.arrive()
    company.join(job)
    (node,) = job.nodes
    company.life.engine.fail_node(node, "crash")
    company.life.live(35)  # Slurm notices, and the script hangs so long
    company.end("the script fails")
    began_s = company.life.engine.now()
    company.life.until("queued")

    assert company.life.attempt.number == 2
    assert company.life.engine.now() - began_s >= 20
    over = next(record for record in company.life.records() if record["kind"] == "attempt.over")
    assert node in over["data"]["fenced"]
    assert node in company.life.attempt.excluded
    (incident,) = company.life.run.incidents[1:]
    assert (incident.fault, incident.nodes) == ("node", (node,))
    served = {name for e in from_runs.entries_of(company.life.run) if e.what == "served" for name in e.nodes}
    assert served == {*company.own, node}


def test_a_dead_agents_companion_is_ended_where_no_start_uses_it(tmp_path: Path) -> None:
    """The script goes on alone, and holds no nodes that nobody will ever use."""
    company = Company(tmp_path)
    job = company.arrive()
    company.life.train(4, 4 + int(agent_link.STILL_FOR_S) + 60)

    assert company.life.run.state.value == "running"
    assert (company.known.state, job.state) == ("gone", JobState.CANCELLED)
    assert "agent" in company.known.reason


def test_a_dead_agents_companion_stays_where_the_start_uses_it(tmp_path: Path) -> None:
    """The script that spans both jobs goes on over both."""
    company = Company(tmp_path)
    job = company.arrive()
    company.join(job)
    company.life.train(7, 7 + int(agent_link.STILL_FOR_S) + 60)

    assert company.life.attempt.launch.no_agent
    assert (company.known.state, job.state) == ("here", JobState.RUNNING)


def test_a_companion_whose_arrival_nobody_noted_stays_where_the_start_uses_it(tmp_path: Path) -> None:
    """The agent's words about it were lost, and the start's own record names its nodes: Slurm says in which job they are."""
    company = Company(tmp_path)
    company.ask()
    job = company.submit()
    company.told(job)
    company.agent.live(3)
    company.join(job)
    company.life.train(7, 7 + int(agent_link.STILL_FOR_S) + 60)

    assert company.life.attempt.launch.no_agent
    assert (company.known.state, job.state) == ("submitted", JobState.RUNNING)


@pytest.mark.parametrize("failed", [False, True])
def test_an_sbatch_that_made_nothing_is_looked_for_and_given_up(tmp_path: Path, failed: bool) -> None:
    """An announced one is looked for by its mark for a while; one that failed is looked for once."""
    company = Company(tmp_path)
    company.ask()
    if failed:
        company.agent.note("companion.failed", number=1, reason="sbatch refused")
    company.agent.live(2)
    company.end("the script fails")
    company.life.until("queued")
    at_s = {record["kind"]: record["at"] for record in company.life.records()}
    waited_s = at_s["companion.gone"] - at_s["job.ended"]

    assert company.known.state == "gone"
    assert waited_s < 10 if failed else waited_s >= companions.FIND_FOR_S


@pytest.mark.parametrize("ended", ["the script fails", "the script ends well"])
@pytest.mark.parametrize(("known", "off_s"), [(False, 0.0), (True, 0.0), (True, -3600.0)])
def test_a_companion_that_slurm_makes_minutes_later_is_cancelled(
    tmp_path: Path, known: bool, ended: str, off_s: float
) -> None:
    """Its sbatch gave no answer, and nobody waits for it: not the next attempt, nor the end of the run. It leaves the queue as soon as it is there, whatever the time is on the host that looks."""
    company = Company(tmp_path)
    company.ask()
    if known:
        company.agent.note("companion.failed", number=1, reason="no answer", unanswered=True)
    company.agent.live(2)
    company.end(ended)
    company.life.until("queued" if ended == "the script fails" else "finished")
    company.life.live(companions.FIND_FOR_S + 5)
    assert company.known.state == "gone"

    company.life.clock.now_s = lambda: company.life.engine.now() + off_s  # type: ignore[method-assign]
    company.life.live(120)
    late = company.submit()
    company.life.live(companions.AGAIN_EVERY_S + 10)
    assert late.state is JobState.CANCELLED
    jobs = {str(job.number) for job in company.life.engine.jobs.values() if job is not late}
    assert set(company.life.living()) <= jobs
    assert company.life.run.attempts[-1].end_state in ("live", "ended", "closed"), (
        "no end of the run's own job"
    )
    company.life.live(companions.LATE_FOR_S)
    assert company.life.supervisor.idle == (ended == "the script ends well")


@pytest.mark.parametrize(
    "comment", ["", "ftrun:other-0001:0badf00d:1", "other-0001:0badf00d:companion:1.0.1"]
)
def test_a_job_that_is_another_ones_by_now_is_never_cancelled(tmp_path: Path, comment: str) -> None:
    """P1: the id was given out again, to a job of another run, of another user, of nobody that we know."""
    company = Company(tmp_path)
    job = company.arrive()
    job.comment, job.name = comment, "somebody"
    company.end("the script fails")
    company.life.live(100)

    assert job.state is JobState.RUNNING
    assert (company.known.state, company.life.attempt.number) == ("gone", 2)


def test_where_a_site_rewrites_comments_a_companion_is_known_by_its_name(tmp_path: Path) -> None:
    """User and name of the run's own job, and nobody's mark: it is the one whose id was noted."""
    company = Company(tmp_path)
    job = company.arrive()
    job.comment, job.name = "department 7", company.life.launches[0].job.name
    company.end("the script fails")
    company.life.live(60)

    assert job.state is JobState.CANCELLED


def test_a_person_who_cancels_a_companion_has_not_cancelled_the_run(tmp_path: Path) -> None:
    """Its end is noted, ends nothing, and is no wish."""
    company = Company(tmp_path)
    job = company.arrive()
    company.join(job)
    company.life.cluster.cancel(str(job.number))
    company.agent.live(60)

    run = company.life.run
    assert (run.state.value, run.wish, company.known.state) == ("running", "", "gone")
    assert company.known.end_state == "CANCELLED"
    assert "companion.ended" not in company.life.kinds()


def test_a_script_that_dies_of_its_cancelled_companion_is_started_again(tmp_path: Path) -> None:
    """Without an agent that could: what srun prints of the cancelled step is no cancel of the run."""
    company = Company(tmp_path)
    job = company.arrive()
    company.join(job)
    company.life.cluster.cancel(str(job.number))
    company.life.say(
        f"slurmstepd: error: *** STEP {job.number}.0 ON {job.nodes[0]} CANCELLED AT 2026-01-01T00:00:00 ***"
    )
    company.life.live(3)
    company.life.exit(143)
    company.life.until("queued")

    assert company.life.run.incidents[-1].signature == COMPANION_OVER
    assert not company.life.attempt.excluded
    assert company.life.attempt.number == 2


@pytest.mark.parametrize("uses", [True, False])
def test_who_is_asked_to_save_is_asked_in_both_jobs(tmp_path: Path, uses: bool) -> None:
    """The signal goes to the steps of the companion, too, where the start has any there."""
    company = Company(tmp_path, checkpoint="step-*.pt", save_signal="USR1")
    heard: list[int] = []
    job = company.arrive()
    if uses:
        company.join(job)
    for one in (company.life.launches[0].job, job):
        assert one.launch is not None

        def hear(_: str, number: int = one.number) -> bool:
            heard.append(number)
            return True

        one.launch.on_signal = hear
    text = '{"token": "1", "by": "ann", "pause": true, "after_checkpoint": true}'
    Path(company.life.run_dir, HALT_FILE).write_text(text)
    company.agent.live(5)

    assert heard == ([1, job.number] if uses else [1])


def test_a_start_over_two_jobs_is_watched_in_both(tmp_path: Path) -> None:
    """Where its agent is dead, stacks are asked for in each job, of the ranks of the main one."""
    company = Company(tmp_path)
    job = company.arrive()
    company.join(job)
    supervisor = company.life.supervisor
    (reconciler,) = supervisor.reconcilers.values()
    ctx = reconciler.ctx
    watched = hang.HangTarget("place", "0.2", ctx.attempt.used, tuple, lambda: None)
    hands = hang._Hands(ctx, watched)

    assert hands._parties() == [("1", tuple(company.own[1:])), (str(job.number), job.nodes)]
    assert hands._line(str(job.number), "folder") == hands._line("1", "folder")


def test_a_companion_in_the_queue_is_no_stray_and_no_attempt(tmp_path: Path) -> None:
    """P4: who looks for jobs that bear the run's token neither cancels nor adopts it."""
    company = Company(tmp_path)
    job = company.arrive()
    del company.life.engine.jobs[1]  # Slurm has lost the main job
    for name in company.own:
        company.life.engine.nodes[name].jobs.discard(1)
    company.life.live(120)

    assert "job.adopted" not in company.life.kinds()
    assert [text for text in company.life.kinds() if text == "cancel.intended"] == []
    assert job.state is JobState.CANCELLED


def test_any_job_id_names_the_run(tmp_path: Path) -> None:
    """A companion's, too, from the moment at which the supervisor knows it."""
    company = Company(tmp_path)
    job = company.arrive()

    assert run_dir.find_run(company.life.home, str(job.number)) == company.life.run_dir
    assert company.life.run.companion_ids == (str(job.number),)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "cut",
    [
        "companion:before", "companion:after", "record:after:companion.submitted", "record:after:companion.here",
        "record:after:companion.ended.intended", "record:after:companion.ended", "record:after:companion.gone",
    ],
)  # fmt: skip
def test_a_supervisor_may_die_anywhere_while_it_ends_one(tmp_path: Path, cut: str, case: str) -> None:
    """Whoever goes on ends it, and it is gone before anything begins anew."""
    company = Company(tmp_path)
    job = _asked_for(company, "unnoted")
    assert job is not None
    left = [cut]

    def crash(point: str) -> None:
        if point in left:
            left.clear()
            raise PlannedCrash

    company.end(case)
    for _ in range(120):
        company.life.supervisor.services.crash = crash
        try:
            company.life.live(1)
        except PlannedCrash:
            company.life.begin_anew()

    assert left == []
    assert (job.state, company.known.state) == (JobState.CANCELLED, "gone")
    kinds = company.life.kinds()
    if "attempt.over" in kinds:
        assert kinds.index("companion.gone") < kinds.index("attempt.over")
    assert len(company.life.living()) == (1 if case in ("the script fails", "it is requeued") else 0)
