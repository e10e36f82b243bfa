"""Laws of the agent: what it answers, what it journals first, and that it never does anything by halves. The test plays batch.sh."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.runtime import node_report
from ftrun.slurm.client.errors import RefusedForNow, Unreachable
from ftrun.slurm.commands.node_queries import QueryAnswers
from ftrun.slurm.commands.steps import StepRow
from ftrun.supervisor.agent import (
    checkpoint_staging,
    context,
    main,
    node_liveness,
    start_loop,
    start_monitor,
    stop_start,
)
from ftrun.supervisor.agent.batch_channel import BatchChannel
from ftrun.supervisor.diagnosis import launch_monitor
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.store import run_dir
from ftrun.supervisor.store.lease import SystemClock
from ftrun.supervisor.telemetry import hang_rules, node_silence, straggler
from tests.unit.lives import Life, write_stacks
from tests.unit.questions import Said, Shut

TRANSIENT = (
    "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
)
PORT = (
    "RuntimeError: port: 29500, useIpv6: true, code: -98, name: EADDRINUSE, message: address already in use"
)
TICK_S = 0.05
WRONG_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"


class Steps:
    """Steps of a cluster that exists in the test only. `silent` nodes do not answer, `unfit` ones have a reason to stay out."""

    def __init__(self) -> None:
        self.running: list[StepRow] = []
        self.silent: set[str] = set()
        self.unfit: dict[str, str] = {}
        self.ended: list[str] = []
        self.asked: list[tuple[str, ...]] = []
        self.down = False
        self.nodes_dir = Path()
        self.sick: set[str] = set()
        self.checked: list[tuple[str, ...]] = []
        self.kept: list[tuple[str, ...]] = []
        self.refused = ""

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        return tuple(self.running)

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        self.ended.append(step_id)
        self.running = [step for step in self.running if step.id != step_id]

    def begin(self, job_id: str, nodes: Sequence[str], script: str) -> Said:
        if self.down:
            raise Unreachable("no controller")
        heard = [node for node in nodes if node not in self.silent]
        if found := re.search(r" post-failure-check .*--start (\d+)", script):
            self.checked.append(tuple(nodes))
            for node in heard:
                node_report.write_report(
                    str(self.nodes_dir), 0, report(node, int(found[1]), sick=node in self.sick)
                )
            return Said(nodes, dict.fromkeys(heard, ("checked",)))
        self.asked.append(tuple(nodes))
        told = {node: {"node": node, "left": [], "unfit": self.unfit.get(node, "")} for node in heard}
        return Said(nodes, {node: (json.dumps(words),) for node, words in told.items()})

    def doors(self, nodes: Sequence[str]) -> Any:
        return Shut(())

    def keep_nodes(self, job_id: str, nodes: Sequence[str]) -> None:
        if self.refused:
            raise RefusedForNow(self.refused)
        self.kept.append(tuple(nodes))

    def ask(
        self,
        job_id: str,
        nodes: Sequence[str],
        script: str,
        *,
        limit_s: float,
        quiet_s: float,
        alive: Callable[[], None] = lambda: None,
    ) -> QueryAnswers:
        alive()
        if " stacks " in script:
            write_stacks(script, nodes)
            return QueryAnswers(dict.fromkeys(nodes, ("taken",)))
        return self.begin(job_id, nodes, script).reached


def report(node: str, start: int, *, sick: bool) -> dict[str, Any]:
    """What the checks after a failure leave of a node; a sick one has a memory error."""
    bad = {"severity": "bad", "message": "1 uncorrected memory error", "fault": "hardware-other"}
    well = {"severity": "ok", "message": "no errors", "fault": ""}
    finding: dict[str, Any] = {
        "check": "edac",
        "device": "mc0",
        "value": None,
        "unit": "",
        "evidence": [],
        **(bad if sick else well),
    }
    return {
        "schema": 1,
        "kind": "after",
        "node": node,
        "at_s": time.time(),
        "start": start,
        "findings": [finding],
    }


class Clock(SystemClock):
    """The machine's, which counts how often somebody slept."""

    sleeps = 0

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        super().sleep(seconds)


class Stage:
    """A launch of a run on a virtual Slurm, with an agent in a thread beside it, and batch.sh in the test's hands."""

    def __init__(
        self, folder: Path, *, wanted: int, active: int, cluster: int = 6, began_s: str = "", **chosen: Any
    ) -> None:
        quick = {"log_quiet": 0.1, "log_quiet_max": 1.0, "fault_grace": 0.1, "spares": wanted - active}
        self.life = Life(folder, wanted=active, nodes=cluster, **(quick | chosen))
        self.life.live(3)
        self.nodes = self.life.launches[-1].nodes
        self.talk_dir = folder / "talk"
        self.talk_dir.mkdir()
        self.channel = BatchChannel(str(self.talk_dir))
        self.place = run_dir.attempt_dir(self.life.run_dir, 1)
        self.steps = Steps()
        self.steps.nodes_dir = Path(self.place, "nodes")
        self.crashes: list[str] = []
        where = context.LaunchIdentity(
            self.life.run_dir, self.place, 1, 0, str(self.life.launches[-1].job.number), "memory", self.nodes[0], self.nodes
        )  # fmt: skip
        journal = context.AgentJournal(
            where.run_dir, where.place, attempt=1, launch=0, job=where.job, crash=self.crashes.append
        )
        self.clock = Clock()
        self.ctx = context.AgentContext(
            where, self.channel, journal, self.life.cluster, self.steps, clock=self.clock
        )
        self.rounds: start_loop.StartLoop | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.start(1, self.nodes[:active], **({"started_s": began_s} if began_s else {}))
        self.thread.start()

    def _work(self) -> None:
        try:
            self.rounds = main._open_loop(self.ctx)
            self.rounds.run()
        except (
            OSError,
            RuntimeError,
            LookupError,
            TypeError,
            ValueError,
            context.GivenUp,
            context.JournalClosed,
        ) as error:
            self.error = error

    def start(self, number: int, nodes: Sequence[str], **more: str) -> None:
        """batch.sh has started the script."""
        self.life.log.touch()
        facts = os.stat(self.life.log)
        rows = {
            "start": number, "pid": 0, "nodes": ",".join(nodes), "token": f"0.{number}", "stdout": self.life.log,
            "stdout_dev": facts.st_dev, "stdout_ino": facts.st_ino, "stdout_offset": facts.st_size, "stderr": self.life.log,
            "stderr_dev": facts.st_dev, "stderr_ino": facts.st_ino, "stderr_offset": facts.st_size, "started_s": int(time.time()),
            **more,
        }  # fmt: skip
        self._write(f"started.{number}", "".join(f"{key}={value}\n" for key, value in rows.items()))

    def over(self, number: int, code: int = 1, signal: int = 0) -> None:
        """The script has ended."""
        self._write(f"over.{number}", f"code={code}\nsignal={signal}\n")

    def _write(self, name: str, text: str) -> None:
        draft = self.talk_dir / f".{name}"
        draft.write_text(text)
        draft.rename(self.talk_dir / name)

    def answer(self, number: int) -> dict[str, str]:
        """What batch.sh is answered: `kind` and what stands behind it."""
        path = self.talk_dir / f"next.{number}"
        give_up_s = time.monotonic() + 60
        while not path.exists():
            assert self.error is None, self.error
            assert time.monotonic() < give_up_s, self.kinds()
            time.sleep(0.02)
        first, *lines = path.read_text().splitlines()
        return {"kind": first, **dict(line.split("=", 1) for line in lines)}

    def fails(self, number: int, *lines: str, **how: int) -> dict[str, str]:
        """The start prints these lines and fails; what comes next."""
        self.life.say(*lines)
        self.over(number, **how)
        return self.answer(number)

    def records(self) -> list[dict[str, Any]]:
        return list(self.ctx.journal.records)

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records()]

    def looks(self, often: int = 3) -> None:
        """The agent, which looks every 0.1 s, has looked so often: what it would have done by then, it has."""
        last, give_up_s = self.clock.sleeps + 2 * often * (1 + round(0.1 / TICK_S)), time.monotonic() + 60
        while self.clock.sleeps < last:
            assert time.monotonic() < give_up_s, (self.kinds(), self.error)
            time.sleep(0.01)

    def until(self, kind: str) -> dict[str, Any]:
        give_up_s = time.monotonic() + 60
        while kind not in self.kinds():
            assert time.monotonic() < give_up_s, (self.kinds(), self.error)
            time.sleep(0.02)
        return next(record["data"] for record in self.records() if record["kind"] == kind)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that an agent does every second is worth a second here."""
    monkeypatch.setattr(start_loop, "TICK_S", TICK_S)
    monkeypatch.setattr(checkpoint_staging, "LOOK_EVERY_S", 0.1)


@pytest.fixture
def make(tmp_path: Path, quick: None) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def stage(*, wanted: int = 2, active: int = 0, **chosen: Any) -> Stage:
        made.append(Stage(tmp_path / str(len(made)), wanted=wanted, active=active or wanted, **chosen))
        return made[-1]

    yield stage
    for one in made:
        one.ctx.given_up = True
        one.thread.join(60)


# ---- what is answered


def test_a_transient_fault_starts_the_script_again_on_the_same_nodes(make: Callable[..., Stage]) -> None:
    """`again` on the active nodes, with the class of the fault."""
    stage = make()
    told = stage.fails(1, "step 1 loss 2.0", TRANSIENT)

    assert told.pop("why").startswith("network: ")
    assert told == {"kind": "again", "nodes": ",".join(stage.nodes), "fault": "network"}


def test_every_phase_is_journalled_before_its_effect(make: Callable[..., Stage]) -> None:
    """Decided before anything is stopped, stopped before placed, placed before the answer; the next start ends the incident's wait."""
    stage = make()
    stage.steps.running = [StepRow("1.0", "train", stage.nodes), StepRow("1.1", "ftrun", stage.nodes)]
    stage.fails(1, TRANSIENT)
    stage.start(2, stage.nodes)
    stage.life.say("step 7 loss 1.0")
    assert stage.until("start.first-step") == {"incident": "1.0.1", "step": 7}

    assert stage.kinds() == [
        "agent.opened", "start.begun", "start.over", "sweep.intended", "sweep.done", "start.diagnosed", "start.decided",
        "steps.cancel.intended", "steps.cancel.done", "start.stopped", "start.placed", "start.begun", "start.first-step",
    ]  # fmt: skip
    assert stage.steps.ended == ["1.0"]  # the step that looks after the nodes goes on
    points = stage.crashes
    assert points.index("record:after:steps.cancel.intended") < points.index("steps.cancel:before")
    assert points.index("record:after:start.placed") < points.index("answer:before")


def test_what_the_agent_wrote_folds_into_the_run(make: Callable[..., Stage]) -> None:
    """The same records, read by the same fold, make an incident with its rung and spend the rung once."""
    stage = make()
    stage.fails(1, TRANSIENT)
    run: model_run.Run = stage.ctx.journal.run()

    assert [(one.id, one.decision["rung"]) for one in run.incidents] == [("1.0.1", "step")]
    assert run.rungs["step"] == 1
    assert run.retries == 1


def test_a_silent_node_is_replaced_by_a_spare(make: Callable[..., Stage]) -> None:
    """It counts as lost although Slurm has not noticed, whatever the log says; its place is the spare's."""
    stage = make(wanted=3, active=2)
    stage.steps.silent = {stage.nodes[1]}
    told = stage.fails(1, TRANSIENT)

    assert told["kind"] == "again"
    assert told["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}"
    assert told["fault"] == "node"
    assert stage.until("start.decided")["aside"] == [stage.nodes[1]]


def test_a_spare_that_is_silent_or_unfit_is_none(make: Callable[..., Stage]) -> None:
    """The other one is taken."""
    stage = make(wanted=5, active=2)
    stage.steps.silent = {stage.nodes[1], stage.nodes[2]}
    stage.steps.unfit = {stage.nodes[3]: "the run's folder is not seen here"}
    told = stage.fails(1, TRANSIENT)

    assert told["nodes"] == f"{stage.nodes[0]},{stage.nodes[4]}"


def test_a_silent_node_without_a_spare_ends_the_job(make: Callable[..., Stage]) -> None:
    """No rung is left, and the record says what spoke against each."""
    stage = make()
    stage.steps.silent = {stage.nodes[1]}

    assert stage.fails(1, TRANSIENT) == {"kind": "end"}
    path = dict(stage.until("start.left")["path"])
    assert list(path) == ["step", "companion", "resubmit"]


def test_without_a_spare_the_others_go_on_at_the_next_valid_size(make: Callable[..., Stage]) -> None:
    """In the same job, which outlives the node: nothing has to be given back."""
    stage = make(wanted=4, cluster=4, sizes="2-4:2", words=("--no-kill",))
    stage.steps.silent = {stage.nodes[1]}
    told = stage.fails(1, TRANSIENT)

    assert (told["kind"], told["nodes"]) == ("again", ",".join(stage.nodes[2:]))
    assert stage.until("start.decided")["rung"] == "shrink"
    assert stage.steps.kept == []
    stage.start(2, stage.nodes[2:])
    stage.life.say("step 7 loss 1.0")
    stage.until("start.first-step")
    stage.steps.silent = {stage.nodes[1], stage.nodes[3]}
    told = stage.fails(2, TRANSIENT)
    assert told["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}", "the lost node's neighbour is a spare now"


@pytest.mark.parametrize("refused", ["", "Job update not available right now"])
def test_a_job_that_slurm_would_end_gives_its_dead_node_back_at_once(
    make: Callable[..., Stage], refused: str
) -> None:
    """All who stay are named, and the intent is written first; where Slurm refuses, the job is left, for Slurm will end it."""
    stage = make(wanted=4, cluster=4, sizes="2-4", words=("--no-kill=off",))
    stage.steps.silent, stage.steps.refused = {stage.nodes[3]}, refused
    told = stage.fails(1, TRANSIENT)

    assert told["kind"] == ("end" if refused else "again")
    assert stage.until("release.intended") == {"nodes": list(stage.nodes[:3]), "gone": [stage.nodes[3]]}
    kinds = [kind for kind in stage.kinds() if kind.startswith(("release.", "start.decided", "start.left"))]
    if refused:
        assert kinds == ["start.decided", "release.intended", "release.refused", "start.left"]
        assert refused in stage.until("start.left")["reason"]
    else:
        assert kinds == ["start.decided", "release.intended", "release.done"]
        assert stage.steps.kept == [stage.nodes[:3]]


def test_a_node_that_cannot_be_swept_is_used_no_more(make: Callable[..., Stage]) -> None:
    """It answers, but a process of an earlier start cannot be ended there: a spare takes its place."""
    stage = make(wanted=3, active=2)
    stage.steps.unfit = {stage.nodes[1]: "1 process(es) of an earlier start cannot be ended"}
    told = stage.fails(1, TRANSIENT)

    assert told["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}"


def test_the_batch_node_is_replaced_only_where_srun_was_called(make: Callable[..., Stage]) -> None:
    """A script that runs its processes itself runs them on the batch node; one that calls srun leaves it to others."""
    without = make(wanted=3, active=2)
    without.steps.unfit = {without.nodes[0]: "it is broken"}
    assert without.fails(1, TRANSIENT) == {"kind": "end"}

    called = make(wanted=3, active=2)
    called.steps.unfit = {called.nodes[0]: "it is broken"}
    (called.talk_dir / "calls.1").write_text("1700000000 4711 srun ./train\n")
    assert called.fails(1, TRANSIENT)["nodes"] == f"{called.nodes[1]},{called.nodes[2]}"


def test_what_cannot_succeed_is_left_to_the_end(make: Callable[..., Stage]) -> None:
    """The policy's stop is the supervisor's to carry out: the job ends as its script ended."""
    stage = make()

    assert stage.fails(1, WRONG_FILE) == {"kind": "end"}
    assert "start.decided" not in stage.kinds()


def test_a_script_that_ends_well_is_the_end_of_the_agent(make: Callable[..., Stage]) -> None:
    """Nobody is asked, and nothing is answered."""
    stage = make()
    stage.until("start.begun")
    stage.over(1, 0)
    stage.thread.join(60)

    assert not stage.thread.is_alive()
    assert stage.kinds() == ["agent.opened", "start.begun", "start.over"]
    assert not (stage.talk_dir / "next.1").exists()


def test_never_in_circles(make: Callable[..., Stage]) -> None:
    """The same fault again without progress: the rung that did not help is not tried a second time."""
    stage = make()
    assert stage.fails(1, "step 3 loss 2.0", TRANSIENT)["kind"] == "again"
    stage.start(2, stage.nodes)
    stage.until("start.placed")

    assert stage.fails(2, TRANSIENT) == {"kind": "end"}


def test_progress_gives_the_rung_back(make: Callable[..., Stage]) -> None:
    """A start that got further than ever before may fail as the first one did."""
    stage = make()
    assert stage.fails(1, "step 3 loss 2.0", TRANSIENT)["kind"] == "again"
    stage.start(2, stage.nodes)

    assert stage.fails(2, "step 9 loss 1.0", TRANSIENT)["kind"] == "again"


# ---- the checks after a failure


def lived(seconds: float) -> str:
    """When a start began that has lived for so long."""
    return str(int(time.time() - seconds))


def test_a_node_that_the_checks_find_sick_is_replaced(make: Callable[..., Stage]) -> None:
    """All that answer are checked before anything is decided; the log alone names nobody, and the machine does."""
    stage = make(wanted=4, active=2, began_s=lived(60))
    stage.steps.sick = {stage.nodes[1], stage.nodes[2]}
    told = stage.fails(1, TRANSIENT)

    assert stage.steps.checked == [stage.nodes]
    assert (told["nodes"], told["fault"]) == (f"{stage.nodes[0]},{stage.nodes[3]}", "hardware-other")
    assert stage.until("start.diagnosed")["diagnosis"]["nodes"] == [stage.nodes[1]]


def test_a_spare_that_the_checks_find_sick_is_none(make: Callable[..., Stage]) -> None:
    """Nothing is wrong with the nodes in use but one that is silent; the next spare takes its place."""
    stage = make(wanted=4, active=2, began_s=lived(60))
    stage.steps.silent, stage.steps.sick = {stage.nodes[1]}, {stage.nodes[2]}

    assert stage.fails(1, TRANSIENT)["nodes"] == f"{stage.nodes[0]},{stage.nodes[3]}"


def test_what_every_node_shows_costs_no_spare(make: Callable[..., Stage]) -> None:
    """A check that fails everywhere is the site's: nobody is blamed, and spares stay spares."""
    stage = make(wanted=3, active=2, began_s=lived(60))
    stage.steps.silent, stage.steps.sick = {stage.nodes[1]}, {stage.nodes[0], stage.nodes[2]}
    node_report.write_report(str(stage.steps.nodes_dir), 0, report(stage.nodes[1], 1, sick=True))

    assert stage.fails(1, TRANSIENT)["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}"


@pytest.mark.parametrize(
    ("line", "lived_s", "chosen"),
    [(WRONG_FILE, 60, {}), (TRANSIENT, 1, {}), (TRANSIENT, 60, {"after_checks": "never"})],
)
def test_nobody_is_checked_where_it_cannot_matter(
    make: Callable[..., Stage], line: str, lived_s: float, chosen: dict[str, str]
) -> None:
    """A cause that no node has, a script that failed at once, or a person who does not want it."""
    stage = make(began_s=lived(lived_s), **chosen)
    told = stage.fails(1, line)

    assert stage.steps.checked == []
    assert "nodes.checked" not in stage.kinds()
    assert "checked" not in told


def test_the_nodes_are_not_checked_twice_for_one_end(make: Callable[..., Stage]) -> None:
    """Where the agent had them checked and the job ends, batch.sh is told so."""
    stage = make(began_s=lived(60))
    stage.steps.sick = {stage.nodes[1]}

    assert stage.fails(1, TRANSIENT) == {"kind": "end", "checked": "1"}


def test_a_bad_node_that_an_earlier_start_went_on_with_hides_no_other(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most nodes being bad, nobody were suspected, and a start that stands still for the other one stood for ever."""
    monkeypatch.setattr(launch_monitor, "REPORTS_EVERY_S", 0.1)
    monkeypatch.setattr(start_loop, "LOOK_EVERY_S", 0.1)
    stage = make(fault_grace=0.2, hang="never")
    watch = {"schema": 1, "kind": "watch"}
    stage.life.say("step 1 loss 2.0")
    node_report.write_report(str(stage.steps.nodes_dir), 0, report(stage.nodes[1], 1, sick=True) | watch)
    for step in range(2, 8):
        stage.looks(1)
        stage.life.say(f"step {step} loss 2.0")
    assert "again" == stage.fails(1, PORT)["kind"]
    stage.start(2, stage.nodes)
    stage.life.say("step 1 loss 2.0")
    node_report.write_report(str(stage.steps.nodes_dir), 0, report(stage.nodes[0], 1, sick=True) | watch)

    stage.until("script.end.intended")


# ---- where anything is unclear, the job ends


def test_a_slurm_that_does_not_answer_ends_the_ladder(make: Callable[..., Stage]) -> None:
    """Nobody knows which nodes are well: nothing is started on them."""
    stage = make()
    stage.steps.down = True

    assert stage.fails(1, TRANSIENT) == {"kind": "end"}


def test_a_job_of_one_node_needs_no_slurm(make: Callable[..., Stage]) -> None:
    """Its only node is the one that the agent lives on."""
    stage = make(wanted=1)
    stage.steps.down = True
    stage.life.engine.set_controller("down")

    assert stage.fails(1, TRANSIENT)["kind"] == "again"


def test_an_answer_is_given_once(tmp_path: Path) -> None:
    """Whoever comes second finds it given, and changes nothing."""
    channel = BatchChannel(str(tmp_path))

    assert channel.answer(1)
    assert not channel.answer(1, ["n0", "n1"], fault="network")
    assert (tmp_path / "next.1").read_text() == "end\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["next.1"]


def test_who_was_given_up_does_nothing_more(make: Callable[..., Stage]) -> None:
    """The watchdog has answered: no record, no effect, no second answer."""
    stage = make()
    stage.until("start.begun")
    stage.ctx.given_up = True
    stage.thread.join(60)
    stage.over(1)

    assert isinstance(stage.error, context.GivenUp)
    assert stage.kinds() == ["agent.opened", "start.begun"]
    with pytest.raises(context.GivenUp):
        stage.ctx.rest(0.1)


def test_a_journal_that_cannot_be_written_ends_the_ladder(make: Callable[..., Stage]) -> None:
    """No intent on disk, no act: what the work raises makes the watchdog answer `end`."""
    stage = make()
    stage.until("start.begun")
    os.close(stage.ctx.journal._fd)
    stage.over(1)
    stage.thread.join(60)

    assert isinstance(
        stage.error, OSError | context.JournalClosed
    )  # its descriptor may be another file's by now
    assert stage.steps.asked == []
    shared = main.Watchdog(SystemClock())
    shared.ctx = stage.ctx
    shared.give_up(stage.channel)
    assert stage.answer(1) == {"kind": "end"}


def test_the_watchdog_answers_for_work_that_stands_still(tmp_path: Path) -> None:
    """Only where an answer is owed, and only after a good while."""
    channel, shared = BatchChannel(str(tmp_path)), main.Watchdog(SystemClock())
    shared.began_s -= main.STANDSTILL_S + 1
    assert not shared.is_stalled(channel)
    (tmp_path / "over.1").write_text("code=1\nsignal=0\n")
    assert shared.is_stalled(channel)
    shared.give_up(channel)
    assert (tmp_path / "next.1").read_text() == "end\n"
    assert not shared.is_stalled(channel)


# ---- the nodes


def test_a_node_that_slurm_took_from_the_job_is_silent_without_being_asked(
    make: Callable[..., Stage],
) -> None:
    """A step that names it would be refused as a whole."""
    stage = make(wanted=3)
    stage.life.launches[-1].job.nodes = stage.nodes[:2]
    where = stage.ctx.where
    line = node_liveness.sweep_line(where.home, where.place, "0.2", where.job)
    sweep = node_liveness.PingRequest(where.job, stage.nodes, stage.nodes[0], line)
    found = node_liveness.query_nodes(stage.life.cluster, stage.steps, SystemClock(), sweep)

    assert found.silent == (stage.nodes[2],)
    assert stage.steps.asked == [stage.nodes[:2]]


def test_a_step_that_not_even_our_own_node_answers_tells_nothing(make: Callable[..., Stage]) -> None:
    """It failed as such; no node is called silent for it."""
    stage = make(wanted=3)
    stage.steps.silent = set(stage.nodes)
    where = stage.ctx.where
    line = node_liveness.sweep_line(where.home, where.place, "0.2", where.job)
    sweep = node_liveness.PingRequest(where.job, stage.nodes, stage.nodes[0], line)

    assert not node_liveness.query_nodes(stage.life.cluster, stage.steps, SystemClock(), sweep).known


# ---- a start that still lives


def _one_step(stage: Stage) -> StepRow:
    return StepRow(f"{stage.ctx.where.job}.0", "train", stage.nodes)


def test_a_start_that_stands_still_beside_a_silent_node_is_ended(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line tells, and Slurm knows nothing: two answers without that node, and no sign of life between them, are the node's confirmation."""
    monkeypatch.setattr(node_silence, "ASK_S", 0.5)
    monkeypatch.setattr(start_monitor, "ASKED_AGAIN_S", 0.2)
    monkeypatch.setattr(node_silence, "PATIENCE_S", 1.5)
    monkeypatch.setattr(start_loop, "LOOK_EVERY_S", 0.1)
    stage = make(wanted=3, active=2)
    stage.steps.running = [_one_step(stage)]
    for step in range(1, 5):
        stage.life.say(f"step {step} loss 2.0")
        time.sleep(0.1)
    stage.steps.silent = {stage.nodes[1]}
    stage.until("steps.cancel.done")
    told = stage.fails(1, code=143)

    assert told["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}"
    assert told["fault"] == "node"
    assert stage.until("start.over")["by_us"] is True


def test_a_step_that_ends_beside_a_silent_node_is_not_waited_for(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun says that a task failed, then waits for a node that does not answer: the nodes are asked at once, and one answer is enough."""
    monkeypatch.setattr(node_silence, "ASK_S", 600.0)
    monkeypatch.setattr(start_monitor, "ASKED_AGAIN_S", 600.0)
    monkeypatch.setattr(start_loop, "LOOK_EVERY_S", 0.1)
    stage = make(wanted=3, active=2)
    stage.steps.running = [_one_step(stage)]
    for step in range(1, 4):
        stage.life.say(f"step {step} loss 2.0")
        time.sleep(0.1)
    stage.steps.silent = {stage.nodes[1]}
    stage.life.say(f"srun: error: {stage.nodes[0]}: task 0: Exited with exit code 1")
    stage.until("steps.cancel.done")
    told = stage.fails(1, code=143)

    assert len(stage.steps.asked) <= 4
    assert told["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}"
    assert stage.until("start.over")["by_us"] is True


def test_a_start_that_stands_still_on_nodes_that_answer_is_left_alone(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent log alone is no hang (P7)."""
    monkeypatch.setattr(node_silence, "ASK_S", 0.5)
    monkeypatch.setattr(start_monitor, "ASKED_AGAIN_S", 0.2)
    monkeypatch.setattr(node_silence, "PATIENCE_S", 1.5)
    monkeypatch.setattr(start_loop, "LOOK_EVERY_S", 0.1)
    stage = make()
    stage.steps.running = [_one_step(stage)]
    for step in range(1, 5):
        stage.life.say(f"step {step} loss 2.0")
        time.sleep(0.1)
    give_up_s = time.monotonic() + 60
    while not stage.steps.asked and time.monotonic() < give_up_s:
        time.sleep(0.05)
    stage.looks(5)

    assert stage.steps.asked
    assert stage.kinds() == ["agent.opened", "start.begun"]


def test_a_script_that_says_all_is_well_after_we_ended_it_is_started_again(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`srun ...; echo done` exits 0 although its training was ended: that is no verdict of the script's."""
    monkeypatch.setattr(start_loop, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(hang_rules, "QUICK_S", 0.1)
    stage = make(fault_grace=0.2)
    stage.steps.running = [_one_step(stage)]
    for step in range(1, 5):
        stage.life.say(f"step {step} loss 2.0")
        time.sleep(0.05)
    stage.life.say(TRANSIENT)
    stage.until("steps.cancel.done")
    assert stage.channel.asked(1) is False
    told = stage.fails(1, code=0)

    assert told["kind"] == "again"
    assert stage.channel.asked(1) is True


def _slow(node: str) -> straggler.StragglerAdvice:
    return straggler.StragglerAdvice(
        straggler.StragglerAction.SWAP, node, 1.6, f"rank 1 on {node} takes 1.6 times its peers' own time"
    )


@pytest.mark.parametrize("spares", [1, 0])
def test_a_slow_node_is_left_behind_at_the_next_checkpoint(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, spares: int
) -> None:
    """Only once a new one is complete, and only for a spare: without one the start goes on."""
    monkeypatch.setattr(start_loop, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(stop_start, "SIGHT_EVERY_S", 0.1)
    stage = make(wanted=2 + spares, active=2, checkpoint="step-*", checkpoint_marker="done")
    stage.steps.running = [_one_step(stage)]
    told: list[bool] = []

    def look(hangs: start_monitor.HangMonitor, *_: object) -> None:
        if not told:
            told.append(True)
            hangs.swap = _slow(stage.nodes[1])

    monkeypatch.setattr(start_monitor.HangMonitor, "look", look)
    stage.life.say("step 5 loss 2.0")
    stage.until("start.begun")
    stage.looks()
    assert stage.kinds() == ["agent.opened", "start.begun"]
    saved = stage.life.cwd / "step-5"
    saved.mkdir()
    (saved / "done").touch()
    if not spares:
        stage.looks(5)
        assert stage.kinds() == ["agent.opened", "start.begun"]
        return
    stage.until("steps.cancel.done")
    answer = stage.fails(1, code=143)

    assert answer["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}"
    assert stage.until("start.decided")["rung"] == "swap"
    assert stage.until("start.decided")["drain"] == []
