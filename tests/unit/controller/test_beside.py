"""Laws between a supervisor and the agent inside a live allocation: who acts, what is copied, what it costs. (I/O)"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.context import cluster_view
from ftrun.supervisor.controller import agent_link, user_hooks
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.evidence import case_of
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.review import agent_diagnosis
from ftrun.supervisor.model import events
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.types import Action, Diagnosis, FaultClass, Topology
from ftrun.supervisor.policy import policy_input
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.store import attempt_dir, checkpoints, journal, run_dir
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.fake_slurm import faults
from tests.unit.lives import TIMED_OUT, TIMING, Life

OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
BROKEN = {
    "class": "hardware-gpu", "retry": True, "action": "resubmit", "nodes": ["n0"], "exclude": True, "confidence": 0.9,
    "signature": "nvidia.xid-79", "title": "a GPU fell off the bus", "because": [], "consequences": 0, "advice": "",
    "rests_on": [], "sources": ["log"],
}  # fmt: skip


class Agent:
    """What the agent of a launch leaves in the attempt's folder, by the clock of the life it belongs to."""

    def __init__(self, life: Life, *, launch: int = 0) -> None:
        self.life, self.launch, self.seq, self.beats = life, launch, 0, 0
        number = life.attempt.number
        self.place = Path(run_dir.attempt_dir(life.run_dir, number))
        self.folder = self.place / "agent"
        self.folder.mkdir(exist_ok=True)
        self.path = self.folder / f"{launch}.jsonl"
        nodes = list(life.launches[-1].nodes)
        self.note(
            "agent.opened", pid=7, host=nodes[0], nodes=nodes, active=nodes, spares=[], rungs=["step"], off=""
        )
        self.beat()

    def note(self, kind: str, start: int = 1, /, **data: Any) -> None:
        """One record, whole."""
        record = {
            "v": 1, "seq": self.seq, "at": self.life.clock.now_s(), "kind": kind, "submission": 1, "attempt": 1, "job": "1",
            "launch": self.launch, "start": start, "data": data,
        }  # fmt: skip
        with self.path.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        self.seq += 1

    def beat(self) -> None:
        """The counter moves."""
        self.beats += 1
        (self.folder / f"pulse.{self.launch}").write_text(f"{self.beats:020d}\n")

    def live(self, seconds: int) -> None:
        """Time passes, and the agent lives."""
        for _ in range(seconds):
            self.beat()
            self.life.live(1)

    def begin(self, start: int, nodes: list[str]) -> None:
        """batch.sh starts the script, and the agent notes it."""
        facts = os.stat(self.life.log)
        stream = {"dev": facts.st_dev, "ino": facts.st_ino, "offset": facts.st_size}
        rows: dict[str, object] = {"start": start, "nodes": ",".join(nodes), "resume_from": ""}
        for name in ("stdout", "stderr"):
            rows |= {name: self.life.log} | {f"{name}_{key}": value for key, value in stream.items()}
        text = "".join(f"{key}={value}\n" for key, value in rows.items())
        (self.place / f"begun.{self.launch}.{start}").write_text(text)
        self.note("start.begun", start, nodes=nodes, token=f"{self.launch}.{start}", resume_from="", pid=8)

    def decide(self, start: int, nodes: list[str], **more: Any) -> None:
        """A start failed with a bad GPU, and the next one leaves the node out."""
        incident = more.get("incident", f"1.{self.launch}.{start}")
        self.note("start.over", start, code=1, signal=0, by_us=False)
        self.note(
            "start.diagnosed", start, incident=incident, diagnosis=BROKEN, step=5, first_evidence_at_s=None
        )
        decided = {
            "incident": incident, "rung": "swap", "nodes": nodes, "aside": ["n0"], "exclude": ["n0"], "drain": [], "ask": [],
            "reason": "n0 is bad", "spent": {"hardware-gpu": start}, "retries": start, "step": 5, "checkpoint": "",
            "class": "hardware-gpu", "signature": "nvidia.xid-79", "path": [["step", "n0 would be used again"], ["swap", "n2 is spare"]],
            "exclude_until_s": self.life.clock.now_s() + 9e5, "older_checkpoint": False, "used": {"swap": start},
        } | more  # fmt: skip
        self.note("start.decided", start, **decided)


def begun(tmp_path: Path, **chosen: Any) -> tuple[Life, Agent]:
    """A run that trains, its agent beside it."""
    life = Life(tmp_path, nodes=5, wanted=3, **chosen)
    life.until("running")
    agent = Agent(life)
    agent.begin(1, list(life.launches[-1].nodes))
    life.train(1, 5)
    return life, agent


# ---------------------------------------------------------------------- who acts: P8


def test_a_live_agent_alone_judges_inside_its_allocation(tmp_path: Path) -> None:
    """P8: a fatal line and no step for an hour end nothing while the agent's counter moves."""
    life, agent = begun(tmp_path)
    life.say(TIMED_OUT)
    agent.live(1200)

    assert "end.intended" not in life.kinds()
    assert life.run.state.value == "running"
    assert "evidence" in life.kinds()


@pytest.mark.parametrize("agent", ["absent", "dead"])
def test_without_a_live_agent_all_is_as_without_one(tmp_path: Path, agent: str) -> None:
    """P8: where no counter moves, a fatal line that no step follows ends the attempt, in the time that it always takes."""
    life = Life(tmp_path, nodes=5, wanted=3)
    life.until("running")
    if agent == "dead":
        Agent(life)
    life.train(1, 5)
    life.stand_still(TIMED_OUT)
    life.until("queued", within_s=700 + agent_link.STILL_FOR_S)

    assert life.attempt.number == 2


def test_a_dead_agents_silence_is_no_progress_only_from_then_on(tmp_path: Path) -> None:
    """P8: counter and progress must both stand still: what passed before the agent died does not count against the run."""
    life, agent = begun(tmp_path)
    life.stand_still(TIMED_OUT)
    agent.live(500)
    life.live(agent_link.STILL_FOR_S + 30)

    assert "end.intended" not in life.kinds()
    life.until("queued", within_s=700)


@pytest.mark.parametrize("want", ["cancel", "stop"])
def test_a_persons_wish_is_carried_out_beside_a_live_agent(tmp_path: Path, want: str) -> None:
    """P8: the user's word needs no agent's leave; a stop waits for its checkpoint as ever."""
    life, agent = begun(tmp_path, checkpoint="ckpt/step-*.pt")
    life.ask(want, f"1-{want}")
    agent.live(3)
    if want == "stop":
        (life.cwd / "ckpt").mkdir()
        (life.cwd / "ckpt" / "step-000006.pt").write_text("x")
    agent.live(120)

    assert (life.run.state.value, life.living()) == ("stopped", [])


def test_a_suspicion_is_given_up_when_the_agent_is_seen_to_live(tmp_path: Path) -> None:
    """A shared folder that stood still for a while makes the supervisor suspect; the counter that moves again takes it back."""
    life, agent = begun(tmp_path)
    life.say(TIMED_OUT)
    life.live(agent_link.STILL_FOR_S + 10)
    assert life.run.state.value == "suspect"
    agent.live(5)

    assert life.run.state.value == "running"
    agent.live(900)
    assert "end.intended" not in life.kinds()


# ---------------------------------------------------------------------- what is copied


def test_each_record_of_an_agent_is_copied_once_and_in_order(tmp_path: Path) -> None:
    """Over every look and every takeover: the run's journal has the agent's records as the agent wrote them."""
    life, agent = begun(tmp_path)
    agent.decide(1, ["n1", "n2", "n3"])
    agent.live(2)
    life.begin_anew()
    agent.begin(2, ["n1", "n2", "n3"])
    agent.live(3)
    life.begin_anew()
    agent.live(3)
    copied = [(r["data"]["agent_seq"], r["kind"]) for r in life.records() if "agent_seq" in r["data"]]
    own = [(r["seq"], r["kind"]) for r in map(json.loads, agent.path.read_text().splitlines())]

    assert copied == own
    assert (life.run.retries, dict(life.run.spent), dict(life.run.rungs)) == (
        1,
        {"hardware-gpu": 1},
        {"swap": 1},
    )


@pytest.mark.parametrize("kind", ["start.begun", "start.diagnosed", "start.decided", "launch.seen"])
def test_a_copy_that_was_cut_is_gone_on_with(tmp_path: Path, kind: str) -> None:
    """A supervisor that dies behind any record leaves the rest to the next one: nothing is lost, nothing counts twice."""
    life, agent = begun(tmp_path)

    def crash(point: str) -> None:
        if point == f"record:after:{kind}":
            raise PlannedCrash

    life.supervisor.services.crash = crash
    agent.decide(1, ["n1", "n2", "n3"])
    agent.begin(2, ["n1", "n2", "n3"])
    with pytest.raises(PlannedCrash):
        agent.live(3)
    life.begin_anew()
    agent.live(3)

    kinds = [r["kind"] for r in life.records() if "agent_seq" in r["data"]]
    assert kinds == [json.loads(line)["kind"] for line in agent.path.read_text().splitlines()]
    assert (life.run.retries, life.attempt.launch.start.number, len(life.run.incidents)) == (1, 2, 1)


POINTS = (
    "record:after:start.begun", "record:after:start.over", "record:after:start.diagnosed",
    "record:after:start.decided", "record:after:launch.seen", "record:after:drain.intended",
    "drain:before", "drain:after", "record:after:drain.done", "record:after:evidence", "record:after:job.ended",
    "record:after:diagnosed", "record:after:decided", "record:after:attempt.over", "record:after:attempt.closed",
    "record:after:attempt.opened", "submit:after",
)  # fmt: skip


@pytest.mark.parametrize("cut", POINTS)
def test_a_supervisor_may_die_anywhere_beside_an_agent(tmp_path: Path, cut: str) -> None:
    """A swap, then a fault that only a new job helps against: whoever goes on comes to the same budgets and exclusions."""
    life, agent = begun(tmp_path)
    left = [cut]

    def crash(point: str) -> None:
        if point in left:
            left.clear()
            raise PlannedCrash

    def live(seconds: int) -> None:
        for _ in range(seconds):
            life.supervisor.services.crash = crash
            agent.beat()
            try:
                life.live(1)
            except PlannedCrash:
                life.begin_anew()

    agent.decide(1, ["n1", "n2", "n3"], drain=["n0"])
    agent.begin(2, ["n1", "n2", "n3"])
    live(3)
    life.train(6, 9)
    life.say(OFF_THE_BUS)
    life.exit(1)
    live(60)

    run = life.run
    assert left == []
    assert (run.state.value, len(life.launches)) == (
        "running",
        2,
    )  # an attempt that was opened and no more is lost
    assert (run.retries, dict(run.spent), run.drained) == (1, {"hardware-gpu": 1}, ("n0",))
    assert [i.id for i in run.incidents] == ["1.0.1", "1.0.2"]
    assert "n0" not in life.launches[-1].nodes


def test_what_was_not_looked_at_while_it_happened_is_copied_before_the_launch_is_judged(
    tmp_path: Path,
) -> None:
    """The job ended before anybody looked: the budgets that its agent spent count when the next step is decided."""
    life, agent = begun(tmp_path)
    agent.decide(1, ["n1", "n2", "n3"])
    agent.begin(2, ["n1", "n2", "n3"])
    life.say(OFF_THE_BUS)
    life.exit(1)
    life.until("queued")

    kinds = life.kinds()
    assert kinds.index("start.decided") < kinds.index("decided")
    assert (life.run.retries, dict(life.run.spent)) == (2, {"hardware-gpu": 2})
    assert [i.id for i in life.run.incidents] == ["1.0.1", "1.0.2"]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"v": 9, "seq": 1, "at": 1.0, "kind": "start.begun", "start": 1, "data": {}}',
        '{"v": 1, "seq": 1, "at": 1.0, "kind": "run.finished", "start": 1, "data": {"reason": "x"}}',
        '{"v": 1, "seq": 1, "at": 1.0, "kind": "start.decided", "start": 1, "data": {}}',
        '{"v": 1, "seq": "x", "at": 1.0, "kind": "start.begun", "start": 1, "data": {}}',
    ],
    ids=["text", "list", "newer", "moves-the-run", "lacks-everything", "numbers"],
)
def test_a_line_that_makes_no_sense_costs_neither_the_run_nor_the_lines_behind_it(
    tmp_path: Path, line: str
) -> None:
    """The folder belongs to the job's user: what stands there cannot move the run or make its journal unreadable."""
    life, agent = begun(tmp_path)
    with agent.path.open("a") as stream:
        stream.write(line + "\n")
    agent.note("ladder.off", why="srun went around the shim")
    agent.live(3)

    assert (life.run.state.value, life.attempt.launch.ladder_off) == ("running", "srun went around the shim")
    assert life.run.state.value == events.fold("r", journal.read_run(life.run_dir)).state.value


# ---------------------------------------------------------------------- what it costs


def test_a_fault_that_agent_and_supervisor_both_judge_counts_once(tmp_path: Path) -> None:
    """The agent decided, but no later start came to be: the supervisor decides about the same incident, for one try in all."""
    life, agent = begun(tmp_path)
    agent.live(2)
    life.say(OFF_THE_BUS)
    agent.decide(1, ["n1", "n2", "n3"])
    agent.live(2)
    assert life.run.retries == 1
    life.exit(1)
    life.until("queued")

    assert [i.id for i in life.run.incidents] == ["1.0.1"]
    assert (life.run.retries, dict(life.run.spent)) == (1, {"hardware-gpu": 1})


def test_an_earlier_start_is_not_judged_again_when_the_job_ends(tmp_path: Path) -> None:
    """The start that was ended by a bad GPU is dealt with: the next one's own error is what stops the run."""
    life, agent = begun(tmp_path)
    life.say(OFF_THE_BUS)
    agent.live(2)
    agent.decide(1, ["n1", "n2", "n3"])
    agent.begin(2, ["n1", "n2", "n3"])
    agent.live(3)
    life.train(3, 6)
    life.say(
        "Traceback (most recent call last):", '  File "t.py", line 3', "NameError: name 'x' is not defined"
    )
    life.exit(1)
    life.until("stopped")

    last = life.run.incidents[-1]
    assert (last.id, last.fault, last.nodes, last.start) == ("1.0.2", "user-code", (), 2)


def test_the_failed_step_of_an_earlier_start_is_no_warning_of_the_last(tmp_path: Path) -> None:
    """Slurm keeps the worst exit code of all steps of a job; the script that came to its end after a restart has no failed step."""
    life, agent = begun(tmp_path)
    agent.decide(1, ["n1", "n2", "n3"])
    agent.begin(2, ["n1", "n2", "n3"])
    agent.live(3)
    life.engine.jobs[1].derived = (1, 0)
    life.exit(0)
    life.until("finished")

    assert life.run.warnings == ()


def test_an_earlier_start_is_not_judged_again_by_a_supervisor_that_comes_later(tmp_path: Path) -> None:
    """The same, where another supervisor reads the log from its disk."""
    life, agent = begun(tmp_path)
    life.say(OFF_THE_BUS)
    agent.decide(1, ["n1", "n2", "n3"])
    agent.begin(2, ["n1", "n2", "n3"])
    agent.live(3)
    life.train(3, 6)
    life.say(
        "Traceback (most recent call last):", '  File "t.py", line 3', "NameError: name 'x' is not defined"
    )
    life.exit(1)
    life.begin_anew()
    life.until("stopped")

    assert life.run.incidents[-1].fault == "user-code"


def test_a_node_that_a_swap_set_aside_is_left_out_from_then_on(tmp_path: Path) -> None:
    """Exclusion and drain of the agent's decision are the run's: the next attempt does without the node."""
    life, agent = begun(tmp_path)
    agent.decide(1, ["n1", "n2", "n3"], drain=["n0"])
    agent.begin(2, ["n1", "n2", "n3"])
    agent.live(5)
    assert life.run.drained == ("n0",)
    assert (life.run.excluded_at(life.clock.now_s()), life.attempt.launch.aside) == (("n0",), ("n0",))
    life.say("RuntimeError: NCCL error: unhandled system error")
    life.exit(1)
    life.until("queued")
    life.until("running")

    assert life.attempt.number == 2
    assert "n0" in life.attempt.excluded
    assert "n0" not in life.launches[-1].nodes


def test_a_checkpoint_that_a_start_could_not_load_is_loaded_by_no_later_attempt(tmp_path: Path) -> None:
    """The agent's decision sets it aside for the whole run, until it is written anew."""
    life, agent = begun(tmp_path, checkpoint="ckpt/step-*.pt")
    (life.cwd / "ckpt").mkdir()
    for step in (5, 6):
        (life.cwd / "ckpt" / f"step-00000{step}.pt").write_text("x")
    torn = str(life.cwd / "ckpt" / "step-000006.pt")
    ctx = life.supervisor.reconcilers[life.run_dir].ctx
    agent.decide(1, ["n0", "n1", "n2"], rung="step", set_aside=[[torn, checkpoints.content_stamp(torn)]])
    agent.live(2)

    assert cluster_view.newest_checkpoint(ctx).endswith("step-000005.pt")


def test_what_the_agent_of_a_launch_learnt_that_nobody_followed_holds_for_the_next_attempt(
    tmp_path: Path,
) -> None:
    """Slurm ran the job again while nobody watched, and a person had the run cancelled, then resumed: no later attempt loads what that launch could not load."""
    life, _ = begun(tmp_path, checkpoint="ckpt/step-*.pt")
    (life.cwd / "ckpt").mkdir()
    for step in (5, 6):
        (life.cwd / "ckpt" / f"step-00000{step}.pt").write_text("x")
    torn = str(life.cwd / "ckpt" / "step-000006.pt")
    faults.requeue(life.engine, 1)
    life.engine.advance(30)
    again = Agent(life, launch=1)
    again.begin(1, ["n0", "n1", "n2"])
    more = {"set_aside": [[torn, checkpoints.content_stamp(torn)]], "exclude": [], "aside": []}
    again.decide(1, ["n0", "n1", "n2"], rung="step", **more)
    life.ask("cancel", "1")
    life.until("stopped")
    assert torn not in dict(life.run.set_aside)

    life.ask("resume", "2")
    life.until("queued")
    assert (life.attempt.number, torn in dict(life.run.set_aside)) == (2, True)
    assert cluster_view.newest_checkpoint(life.supervisor.reconcilers[life.run_dir].ctx).endswith("5.pt")
    assert (life.run.retries, dict(life.run.spent)) == (0, {}), "a person has given the budgets back since"


def test_a_process_that_was_started_again_alone_is_an_incident_of_its_own(tmp_path: Path) -> None:
    """The start goes on; what ends it later is judged for itself and pays for itself."""
    life, agent = begun(tmp_path)
    agent.decide(1, ["n0", "n1", "n2"], incident="1.0.1.r1", rung="rank", aside=[], exclude=[])
    agent.note("rank.again", incident="1.0.1.r1", rank=2, node="n2", pid=9)
    agent.live(2)
    life.say(OFF_THE_BUS)
    life.exit(1)
    life.until("queued")

    assert [(i.id, i.start) for i in life.run.incidents] == [("1.0.1.r1", 1), ("1.0.1", 1)]
    assert life.run.incidents[0].running_again_at_s is not None
    assert life.run.retries == 2


def test_a_drain_that_was_refused_is_not_asked_for_again(tmp_path: Path) -> None:
    """Neither at the next look nor by the next supervisor."""
    life, agent = begun(tmp_path, drain_cap=0.0)
    life.cluster.drain("n4", "ftrun: another 2026-01-01T00:00:00Z")
    agent.decide(1, ["n1", "n2", "n3"], drain=["n0"])
    agent.live(5)
    life.begin_anew()
    agent.live(5)

    assert life.kinds().count("drain.refused") == 1


def test_a_node_that_slurm_took_out_of_a_living_job_is_still_waited_for(tmp_path: Path) -> None:
    """P6: `--no-kill` jobs lose the row of a frozen node; it may wake up beside the next attempt all the same."""
    life, agent = begun(tmp_path)
    frozen = "n0"
    agent.decide(1, ["n1", "n2", "n3"])
    agent.begin(2, ["n1", "n2", "n3"])
    agent.live(3)
    job = life.engine.jobs[1]
    record = {"state": "FAILED", "reason": "", "nodes": [n for n in life.launches[-1].nodes if n != frozen]}
    ended = {
        "kind": "job.ended",
        "at": 1.0,
        "attempt": 1,
        "launch": 0,
        "job": str(job.number),
        "data": record,
    }
    run = events.apply(life.run, ended)

    assert run.attempt is not None
    assert frozen in run.attempt.nodes


def test_no_attempt_begins_beside_a_frozen_node_that_a_swap_left_behind(tmp_path: Path) -> None:
    """P6: the node was set aside, Slurm took it out of the job, and another start came to its own end: it is waited for all the same."""
    life = Life(tmp_path, nodes=7, wanted=3, backoff=0.0)
    life.engine.jobs[1].no_kill = True
    life.until("running")
    agent = Agent(life)
    frozen = life.launches[-1].nodes[2]
    agent.begin(1, ["n0", "n1", frozen])
    life.train(1, 5)
    life.engine.fail_node(frozen, "freeze")
    agent.decide(1, ["n0", "n1"], aside=[frozen], exclude=[frozen])
    agent.begin(2, ["n0", "n1"])
    while frozen in life.engine.jobs[1].nodes:
        agent.live(1)
    silent_s = life.clock.now_s() - TIMING.slurmd_timeout_s
    life.say("RuntimeError: NCCL error: unhandled system error")
    life.exit(1)
    life.until("recovering", within_s=30)
    while life.attempt.number == 1:
        life.live(1)

    assert life.clock.now_s() - silent_s >= TIMING.slurmd_timeout_s + 30
    (over,) = [record for record in life.records() if record["kind"] == "attempt.over"]
    assert over["data"]["fenced"] == [frozen]
    assert frozen in life.attempt.excluded


@pytest.mark.parametrize("agent", ["agent", "none"])
def test_a_job_that_outlives_the_node_of_its_script_is_submitted_again_at_once(
    tmp_path: Path, agent: str
) -> None:
    """With `--no-kill` Slurm takes that node out of the job and leaves the rest running, without a script, to its time limit."""
    life = Life(tmp_path, nodes=7, wanted=3)
    life.engine.jobs[1].no_kill = True
    life.until("running")
    if agent == "agent":
        Agent(life).live(3)
    life.train(1, 5)
    first = life.launches[-1].nodes[0]
    life.engine.fail_node(first, "crash")
    while first in life.engine.jobs[1].nodes:
        life.live(1)
    gone_s = life.clock.now_s()
    life.until("ending", within_s=agent_link.STILL_FOR_S)
    assert life.clock.now_s() - gone_s <= 2.0
    life.until("queued", within_s=200)

    (incident,) = life.run.incidents
    assert (incident.fault, incident.nodes) == ("node", (first,))
    assert first in life.attempt.excluded


def test_a_job_whose_script_lives_on_is_not_ended_for_a_node_that_slurm_gave_up(tmp_path: Path) -> None:
    """The same row, but the agent's counter moves, or steps are made: the node was only out of Slurm's sight."""
    life = Life(tmp_path, nodes=7, wanted=3)
    life.engine.jobs[1].no_kill = True
    life.until("running")
    agent = Agent(life)
    agent.live(3)
    life.engine.lose_node(life.engine.jobs[1], life.launches[-1].nodes[0])
    agent.live(100)
    assert "end.intended" not in life.kinds()
    life.train(1, 100)
    assert "end.intended" not in life.kinds()
    life.live(100)

    assert "end.intended" in life.kinds()


def test_a_closed_attempt_takes_its_last_start_its_token(tmp_path: Path) -> None:
    """Whoever wakes up on a frozen node sees by `current` that its start is none any more."""
    life, _ = begun(tmp_path)
    current = Path(run_dir.attempt_dir(life.run_dir, 1)) / "current"
    current.symlink_to("0.1")
    life.say(OFF_THE_BUS)
    life.exit(1)
    life.until("queued")

    assert os.readlink(current) == "closed"
    assert attempt_dir.claims(life.run_dir, 1)[-1].closed


# ---------------------------------------------------------------------- what people see


def test_a_run_that_was_restarted_in_place_says_so(tmp_path: Path) -> None:
    """Starts, the swap, and why nothing is restarted any more, as facts and as words."""
    life, agent = begun(tmp_path)
    agent.decide(1, ["n3", "n1", "n2"])
    agent.note("start.stopped", incident="1.0.1")
    agent.live(1)
    agent.note("start.placed", incident="1.0.1", nodes=["n3", "n1", "n2"])
    agent.live(1)
    agent.begin(2, ["n1", "n2", "n3"])
    agent.live(4)
    agent.note("start.first-step", 2, incident="1.0.1", step=6)
    agent.note("ladder.off", 2, why="srun went around the shim")
    agent.live(2)
    row, facts = (
        view_run.run_row(life.run, life.clock.now_s()),
        view_run.run_facts(life.run, life.clock.now_s()),
    )

    assert row["inside"] == {
        "agent": True, "start": 2, "restarts": 1, "swaps": [["n0", "n3"]], "active": ["n1", "n2", "n3"], "spares": [],
        "aside": ["n0"], "full": 0, "ladder_off": "srun went around the shim",
    }  # fmt: skip
    words = view_run.inside_text(row["inside"])
    assert words == "restarted in place once; n0 -> n3; ladder off: srun went around the shim"
    (incident,) = facts["incidents"]
    assert (incident["action"], incident["rung"], incident["start"]) == ("swap", "swap", 1)
    assert incident["path"] == [["step", "n0 would be used again"], ["swap", "n2 is spare"]]
    seconds = incident["seconds"]
    assert (seconds["decision_to_stopped"], seconds["stopped_to_placed"], seconds["placed_to_running"]) == (
        0.0,
        1.0,
        1.0,
    )
    assert (seconds["decision_to_running"], seconds["running_to_first_step"]) == (2.0, 4.0)
    assert [(s["start"], s["code"]) for s in facts["attempts"][0]["starts"]] == [(1, 1), (2, None)]


def test_every_fault_inside_an_allocation_is_told_by_the_users_command(tmp_path: Path) -> None:
    """Two faults between two looks are two calls; what the agent decided is what the command is told."""
    life, agent = begun(tmp_path, on_fault="true")
    agent.decide(1, ["n1", "n2", "n3"])
    agent.begin(2, ["n1", "n2", "n3"])
    agent.decide(2, ["n4", "n2", "n3"])
    told = user_hooks.due_hooks(events.fold("r", [*life.records(), *_copies(agent)]))

    assert [one.key for one in told] == ["on-fault.1.0.1", "on-fault.1.0.2"]
    assert [one.facts["decision"] for one in told] == ["swap", "swap"]


def _copies(agent: Agent) -> list[dict[str, Any]]:
    return [json.loads(line) for line in agent.path.read_text().splitlines()]


VAGUE = Diagnosis(
    FaultClass.HANG, True, Action.RESUBMIT, (), False, 0.4, "nccl-timeout", "a collective timed out"
)


def _said(run: model_run.Run, incident: str, found: Diagnosis) -> Diagnosis:
    """`found` after the rule for what the agent had said of that incident."""
    told = next((one.diagnosis for one in run.incidents if one.id == incident), {})
    facts = Facts((), Topology(), catalog.load(), Ended("FAILED"), attempt=run.attempt, told_inside=told)
    return agent_diagnosis(case_of(facts), found) or found


def test_what_an_agent_found_before_it_died_counts_where_the_supervisor_finds_nobody() -> None:
    """It asked the nodes while they were the job's: its word leaves them out, and drains none."""
    run = _folded([*BEFORE, *_agents(1)[:3]])

    found = _said(run, "1.0.1", VAGUE)
    assert (found.fault, found.nodes, found.exclude) == (FaultClass.HARDWARE_GPU, ("n0",), True)
    assert not set(found.sources) & policy_input.PROOF_SOURCES

    sure = replace(VAGUE, fault=FaultClass.NODE, nodes=("n2",))
    assert _said(run, "1.0.1", sure) == sure, "what is found from outside is not overruled"
    assert _said(run, "1.0.2", VAGUE) == VAGUE, "another incident"
    stranger = [*BEFORE, *_agents(1)[:3]]
    stranger[-1] = {**stranger[-1], "data": {**stranger[-1]["data"], "diagnosis": BROKEN | {"nodes": ["n7"]}}}
    assert _said(_folded(stranger), "1.0.1", VAGUE) == VAGUE, "no node of this job"
    stranger[-1] = {
        **stranger[-1],
        "data": {**stranger[-1]["data"], "diagnosis": BROKEN | {"class": "magic"}},
    }
    assert _said(_folded(stranger), "1.0.1", VAGUE) == VAGUE, "nonsense"


# ---------------------------------------------------------------------- any order

BEFORE = [
    {"kind": "run.created", "data": {}},
    {"kind": "attempt.opened", "data": {}},
    {"kind": "submit.done", "data": {}},
    {"kind": "job.started", "data": {"nodes": ["n0", "n1", "n2"]}},
]
OURS = [
    {"kind": "launch.seen", "data": {"nodes": ["n0", "n1", "n2"], "resume_from": ""}},
    {"kind": "evidence", "data": {"key": "a"}},
    {"kind": "launch.progress", "data": {"step": 5, "first_step": True}},
    {"kind": "drain.done", "data": {"node": "n0"}},
    {"kind": "request.seen", "data": {"name": "x", "want": "cancel"}},
    {"kind": "job.ended", "data": {"state": "FAILED", "nodes": ["n0", "n1"]}},
]
LAST = {
    "kind": "decided",
    "data": {"kind": "resubmit", "reason": "", "spent": {"node": 1}, "retries": 9, "incident": "1.0.4"},
}


def _agents(starts: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for start in range(1, starts + 1):
        name = f"1.0.{start}"
        decided = {
            "incident": name, "rung": "step", "nodes": ["n1"], "aside": [f"n{start}"], "exclude": [f"n{start}"], "reason": "",
            "spent": {"node": start}, "retries": start, "class": "node", "exclude_until_s": 99.0, "used": {"step": start},
            "step": start, "checkpoint": "",
        }  # fmt: skip
        for kind, data in (
            ("start.begun", {"nodes": ["n1"], "token": f"0.{start}", "resume_from": ""}),
            ("start.over", {"code": 1, "signal": 0, "by_us": False}),
            ("start.diagnosed", {"incident": name, "diagnosis": BROKEN, "step": 1}),
            ("start.decided", decided),
            ("start.stopped", {"incident": name}),
        ):
            numbers = {"agent_seq": len(found), "at_s": float(len(found))}
            found.append({"kind": kind, "start": start, "data": {**data, **numbers}})
    return found


def _folded(records: list[dict[str, Any]]) -> model_run.Run:
    common = {"at": 7.0, "attempt": 1, "launch": 0, "job": "1", "start": 1}
    return events.fold("r-1", [common | record for record in records])


@pytest.mark.parametrize("kind", ["steps.cancel.intended", "script.end.intended"])
def test_a_start_that_its_agent_set_out_to_end_was_ended_by_it_should_the_agent_say_no_more(
    kind: str,
) -> None:
    """An agent may die behind its deed; what it does about processes of a start that is over makes that end none of its own."""
    live = [*_agents(1)[:1], {"kind": kind, "start": 1, "data": {"agent_seq": 1, "at_s": 1.0}}]
    over = [*_agents(1)[:2], {"kind": kind, "start": 1, "data": {"agent_seq": 2, "at_s": 2.0}}]
    opened = {"kind": "attempt.opened", "data": {}}
    for records, by_us in ((live, True), (over, False)):
        (start,) = _folded([opened, *records]).attempts[-1].begun
        assert start.by_us is by_us


@pytest.mark.parametrize("late", range(9))
def test_what_a_supervisor_sees_late_of_a_start_that_failed_is_no_phase_of_going_on(late: int) -> None:
    """On a busy machine its look at the first launch may come while the agent still decides: the incident has the agent's times alone, in their order."""
    agent = _agents(2)[:6]  # to the begin of start 2
    for kind in ("start.placed", "start.first-step"):
        agent.insert(
            5 if kind == "start.placed" else len(agent),
            {"kind": kind, "start": 1, "data": {"incident": "1.0.1"}},
        )
    for number, record in enumerate(agent):
        record["data"] |= {"agent_seq": number, "at_s": 100.0 + number}
    seen = [
        {"kind": "job.started", "data": {"nodes": ["n0", "n1"]}, "at": 104.5},
        {"kind": "launch.progress", "data": {"step": 1, "loss": 2.5, "first_step": True}, "at": 104.6},
    ]
    (incident,) = _folded([*BEFORE[:3], *agent[:late], *seen, *agent[late:]]).incidents
    phases = [getattr(incident, name) for name in model_run.PHASES]

    assert phases == [101.0, 102.0, 103.0, 104.0, 105.0, 106.0, 107.0]


@given(st.lists(st.tuples(st.sampled_from(model_run.PHASES[3:]), st.floats(100.0, 109.0)), max_size=6))
def test_phases_of_an_incident_stand_in_their_order_whoever_noted_them_when(
    noted: list[tuple[str, float]],
) -> None:
    """The agent sees a first step before the supervisor has seen the new job, or a clock is set back: no phase is later than the next one."""
    agent = _agents(1)
    for number, record in enumerate(agent):
        record["data"] |= {"agent_seq": number, "at_s": 90.0 + number}
    incident = _folded([*BEFORE[:3], *agent]).incidents[0]
    for name, at_s in noted:
        incident = incident.with_phase(name, at_s)
    phases = [known for name in model_run.PHASES if (known := getattr(incident, name)) is not None]

    assert {name for name, _ in noted} <= {name for name in model_run.PHASES if getattr(incident, name)}
    assert phases == sorted(phases)


def _costs(run: model_run.Run) -> tuple[Any, ...]:
    incidents = [(i.id, i.decision.get("kind"), i.stopped_at_s) for i in run.incidents]
    return dict(run.spent), run.retries, dict(run.rungs), run.excluded, run.best_step, incidents


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_in_whatever_order_both_journals_meet_they_cost_the_same(data: st.DataObject) -> None:
    """Budgets are spent by one record each: any interleaving, with any record copied again, folds to the same costs."""
    agent = _agents(data.draw(st.integers(1, 3)))
    ours, theirs, mixed = list(OURS), list(agent), list(BEFORE)
    while ours or theirs:
        mine = bool(ours) and (not theirs or data.draw(st.booleans()))
        mixed.append(ours.pop(0) if mine else theirs.pop(0))
        done = len(agent) - len(theirs)
        if done and data.draw(st.integers(0, 4)) == 0:
            mixed.append(agent[data.draw(st.integers(0, done - 1))])

    assert _costs(_folded(mixed)) == _costs(_folded([*BEFORE, *OURS, *agent]))
    assert _folded([*mixed, LAST]).retries == 9


@settings(max_examples=16, deadline=None)
@given(st.integers(0, 15))
def test_a_copy_that_comes_after_the_judgement_never_gives_budgets_back(known: int) -> None:
    """What a file system showed too late counts as tries of its own: it does not set the counters to what they were."""
    agent = _agents(3)
    late = agent[known:]
    run = _folded([*BEFORE, *OURS, *agent[:known], LAST, *late])
    tries = sum(record["kind"] == "start.decided" for record in late)

    assert run.retries == 9 + tries
    assert [i.id for i in run.incidents] == ["1.0.1", "1.0.2", "1.0.3"]
