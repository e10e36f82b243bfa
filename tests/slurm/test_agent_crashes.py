"""kill -9 of the real agent at every effect and after every kind of record, alone and together with the supervisor, on real Slurm.

How it thinks. A life is a drill: the real trainer with one fault, submitted as a user does. Each is cut once, at one point, and must come
to what an undisturbed training gives, whoever is left to lead it there: the agent that answered in time, else batch.sh, which ends the
job, and the supervisor, which submits another; a supervisor that died is followed by cron's. The laws of all drills hold in each (the same
weights, never two starts at once, no checkpoint torn), and besides: one fault is one incident, paid for once, with its reason. Lives run
side by side in one sandbox; each has its nodes for itself.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill import readers
from ftrun.supervisor.drill.runner import Drill, Result
from ftrun.supervisor.drill.scenario import Action, Expectation, Fault, Scenario
from ftrun.supervisor.model import events
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import journal
from ftrun.supervisor.store import run_dir as store_run_dir
from tests.slurm.post import boxes
from tests.told import told

pytestmark = pytest.mark.slurm

LANES = 5
NODES_A_LIFE = 4
CRON = Action(
    "ftrun",
    {"supervised": False, "after_s": 0.5},
    words=("supervise", "--once"),
    says="cron runs `ftrun supervise --once`",
    repeats=True,
)
BASE = Scenario(
    "cut",
    "A life that is cut once",
    expect=Expectation(attempts=(1, 3)),  # a submission that was lost has a number, too
    ranks=2,
    steps=24,
    save_every=3,
    step_s=0.1,
    sbatch=("--exclusive",),
    timeout_s=280.0,
)
WAITS: Mapping[str, str] = {"fault-grace": "4s", "fence-wait": "8s"}
# A line that is fatal, and then nothing more, in a script that goes on.
TIMED_OUT = replace(
    BASE,
    faults=(Fault("hang", (8,), rank=1, starts=(1,)),),
    collective_timeout_s=3.0,
    on_timeout="wait",
    settings=WAITS,
)
KINDS: Mapping[str, Scenario] = {
    "step": replace(BASE, faults=(Fault("killed", (8,), rank=1, starts=(1,)),)),
    "swap": replace(
        BASE,
        spares=1,
        steps=40,
        step_s=0.2,  # a node takes a moment to lose power
        on_peer_lost="wait",
        collective_timeout_s=600.0,
        actions=(Action("crash", {"step": 8}, rank=1),),
        settings={"fence-wait": "8s"},
    ),
    # The supervisor finds what the agent asked for, by its mark where nobody noted more.
    "companion": replace(
        BASE,
        companions=True,
        sbatch=("--exclusive", "--no-kill"),  # Slurm is quicker here than anybody who looks
        steps=40,
        step_s=0.2,
        on_peer_lost="wait",
        collective_timeout_s=600.0,
        actions=(Action("crash", {"step": 8}, rank=1),),
        settings={"fence-wait": "8s"},
    ),
    # Nobody but an agent sees a hang before the library's own time-out does.
    "hang": replace(
        BASE,
        heartbeats=True,
        step_s=0.25,
        steps=44,
        faults=(Fault("hang", (36,), rank=1, starts=(1,)),),
        collective_timeout_s=60.0,
        settings={
            **WAITS,
            "hang-min": "5s",
            "hang-max": "20s",
            "save-signal": "USR1",
            "fault-save-timeout": "15s",
        },
    ),
    "suspect": TIMED_OUT,
    # A script that goes on when its step was cancelled: it has to be ended itself.
    "deaf": TIMED_OUT,
    # A script that says that all is well, whatever became of its step.
    "blind": TIMED_OUT,
}
RECORDS_OF_AN_END = (
    "record:after:start.over",
    "record:after:sweep.intended",
    "record:after:sweep.done",
    "record:after:start.diagnosed",
    "record:after:start.decided",
    "record:after:start.stopped",
    "record:after:start.placed",
)
AROUND_THE_ANSWER = ("answer:before", "answer:after")
AROUND_THE_CANCEL = (
    "record:after:steps.cancel.intended",
    "steps.cancel:before",
    "steps.cancel:after",
    "record:after:steps.cancel.done",
)
OF_START_2 = ("record:after:start.begun:2", "record:after:start.first-step", "record:after:start.over:2")
ALONE: Mapping[str, tuple[str, ...]] = {
    "step": (
        "record:after:agent.opened",
        "record:after:start.begun",
        "sweep:before",
        "sweep:after",
        *RECORDS_OF_AN_END,
        *AROUND_THE_ANSWER,
        *OF_START_2,
    ),
    "swap": (
        *AROUND_THE_CANCEL,
        "sweep:before",
        "sweep:after",
        *RECORDS_OF_AN_END,
        *AROUND_THE_ANSWER,
        *OF_START_2,
    ),
    "hang": (
        "record:after:hang.suspected",
        "record:after:hang.decided",
        "record:after:save.asked",
        "save:before",
        "save:after",
        "record:after:save.done",
        *AROUND_THE_CANCEL,
        "record:after:start.over",
        "record:after:nodes.checked",
        "record:after:start.decided",
        *AROUND_THE_ANSWER,
    ),
    "companion": (
        "record:after:companion.intended",
        "companion.submit:before",
        "companion.submit:after",
        "record:after:companion.submitted",
        "record:after:companion.here",
        *AROUND_THE_ANSWER,
        "record:after:start.begun:2",
    ),
    "suspect": (*AROUND_THE_CANCEL, "record:after:start.over", "record:after:start.decided", "answer:after"),
    "deaf": (
        "record:after:script.end.intended",
        "script.end:before",
        "script.end:after",
        "record:after:script.end.done",
    ),
    "blind": (*AROUND_THE_CANCEL, "record:after:start.over", "answer:before", "answer:after"),
}
# What of the agent's is being copied, or done in its stead, when the supervisor dies.
COPIES = (
    "record:after:agent.opened",
    "record:after:start.over",
    "record:after:start.diagnosed",
    "record:after:start.decided",
    "record:after:start.placed",
    "record:after:start.begun:2",
    "record:after:start.first-step",
)
BOTH: Mapping[str, tuple[tuple[str, str], ...]] = {
    "step": (
        ("record:after:start.decided", "record:after:start.decided"),
        ("answer:before", "record:after:start.placed"),
        ("answer:before", "record:after:diagnosed"),
        ("answer:before", "record:after:decided"),
        ("answer:before", "submit:before"),
        ("answer:before", "submit:after"),
        ("answer:after", "record:after:start.decided"),
        ("record:after:start.over", "record:after:job.ended"),
    ),
    "swap": (
        ("steps.cancel:after", "record:after:job.ended"),
        ("answer:before", "record:after:decided"),
        ("answer:after", "record:after:start.decided"),
    ),
    "suspect": (
        ("steps.cancel:before", "record:after:end.intended"),
        ("steps.cancel:before", "record:after:end.done"),
        ("steps.cancel:after", "record:after:job.ended"),
    ),
}
QUICK = {
    ("step", "", "record:after:start.decided"),
    ("step", "answer:before", "record:after:decided"),
}
# What stands last in the agent's journal when it is cut at an effect.
BEFORE_THE_EFFECT = {
    "sweep": "sweep.intended",
    "answer": "start.placed",
    "steps.cancel": "steps.cancel.intended",
    "script.end": "script.end.intended",
    "save": "save.asked",
    "companion.submit": "companion.intended",
}
ANSWERED = ("answer:after", *OF_START_2)


@dataclass(frozen=True)
class Cut:
    """Where a life is cut: the agent's point, the supervisor's ("" = it is not)."""

    kind: str
    agent: str
    supervisor: str

    @property
    def name(self) -> str:
        words = [self.kind, f"agent {self.agent}" * bool(self.agent)]
        return ", ".join(
            word for word in (*words, f"supervisor {self.supervisor}" * bool(self.supervisor)) if word
        )


@dataclass(frozen=True)
class Life:
    """What came of one."""

    result: Result
    run: Run
    agents: list[dict[str, Any]]
    kinds: list[str]
    steps_after_the_end: int
    story: str


CUTS = (
    *(Cut(kind, point, "") for kind, points in ALONE.items() for point in points),
    *(Cut(kind, "", point) for kind in ("step", "swap") for point in COPIES),
    *(Cut(kind, *pair) for kind, pairs in BOTH.items() for pair in pairs),
)


class _Drill(Drill):
    """A drill whose script may be deaf or blind."""

    def _write(self, work: Path, *, hurt: bool) -> None:
        super()._write(work, hurt=hurt)
        after = {"deaf": "[ $? = 0 ] || sleep 300\n", "blind": "exit 0\n"}.get(self.scenario.name)
        if after:
            script = work / "train.sh"
            script.write_text(script.read_text().replace("exec srun", "srun") + after)


def _lead(box: Sandbox, cut: Cut) -> Life:
    scenario = KINDS[cut.kind]
    points = {"FTRUN_AGENT_CRASH_AT": cut.agent, "FTRUN_CRASH_AT": cut.supervisor}
    drill = _Drill(
        replace(
            scenario,
            name=cut.kind,
            environment={name: point for name, point in points.items() if point},
            actions=(*scenario.actions, *((CRON,) if cut.supervisor else ())),
        ),
        box=box,
    )
    try:
        return _told(drill, drill.run(keep=True))
    finally:
        if not told("FTRUN_TEST_KEEP"):
            shutil.rmtree(drill.folder, ignore_errors=True)


def _told(drill: Drill, result: Result) -> Life:
    (run_dir,) = store_run_dir.run_dirs(str(drill.home))
    records = list(journal.read_run(run_dir))
    run = events.fold(Path(run_dir).name, records)
    path = Path(run_dir, "attempts", "1", "agent", "0.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    agents = [json.loads(line) for line in lines if line.endswith("}")]
    told: list[str] = [f"+{one.after_s} s {one.text}" for one in result.events]
    told += [f"{r['kind']} {r['attempt']} {str(r['data'])[:200]}" for r in records]
    told += ["agent:", *(f"{r['kind']} {r['start']} {str(r['data'])[:200]}" for r in agents)]
    for name in ("home/supervisor.log", "work/train.log"):
        with contextlib.suppress(OSError):
            told += [name, (drill.folder / name).read_text(errors="replace")[-3000:]]
    told += [p.read_text()[-1500:] for p in Path(run_dir, "attempts").glob("*/agent.*.log")]
    finals = readers.read_trace(drill.folder / "work").finals
    ended = max((float(line["at"]) for line in finals), default=0.0)
    late = [
        line
        for line in readers.read_trace(drill.folder / "work").steps
        if ended and float(line["at"]) > ended
    ]
    return Life(result, run, agents, [str(r["kind"]) for r in records], len(late), "\n".join(told))


Lives = Mapping[str, "Future[Life]"]


@pytest.fixture(scope="module")
def lives(request: pytest.FixtureRequest) -> Iterator[Lives]:
    """Every life that a test of this session asks for, all begun at once."""
    wanted = [
        item.callspec.params["cut"]
        for item in request.session.items
        if item.module is request.module and hasattr(item, "callspec")  # type: ignore[attr-defined]
    ]
    lanes = min(LANES, len(wanted))
    with boxes() as box_of, ThreadPoolExecutor(lanes) as pool:
        box = box_of(nodes=lanes * NODES_A_LIFE, slurmd_timeout_s=20)
        hurt = threading.Lock()

        def lead(cut: Cut) -> Life:
            life = _lead(box, cut)
            nodes = {node for incident in life.run.incidents for node in incident.nodes}
            if cut.kind in ("swap", "companion"):
                with hurt:
                    for node in nodes:
                        box.mend(node)
                        box.run(["scontrol", "update", f"nodename={node}", "state=resume"])
            return life

        yield {cut.name: pool.submit(lead, cut) for cut in wanted}
        pool.shutdown(cancel_futures=True)


def _parameters() -> list[Any]:
    return [
        pytest.param(
            cut,
            id=cut.name,
            marks=[] if (cut.kind, cut.agent, cut.supervisor) in QUICK else [pytest.mark.drills],
        )
        for cut in CUTS
    ]


@pytest.mark.parametrize("cut", _parameters())
def test_whoever_is_killed_wherever_the_training_is_that_of_an_undisturbed_one(
    lives: Lives, cut: Cut
) -> None:
    """The run finishes with the right weights, no two starts at once, no checkpoint torn, one fault paid for once, no healthy job ended."""
    life = lives[cut.name].result()
    run = life.run

    wrong = [
        f"wanted: {c.wanted}; seen: {c.seen}"
        for c in life.result.checks
        if not c.held and "diagnosed" not in c.wanted
    ]
    assert not wrong, "\n".join([*wrong, life.story])
    _was_cut(cut, life)
    assert life.steps_after_the_end == 0, life.story
    assert len(run.incidents) == 1, life.story
    assert run.retries == 1, f"{run.retries} retries for one fault\n{life.story}"
    assert max(run.spent.values(), default=0) <= 1, f"{run.spent}\n{life.story}"
    assert max(run.rungs.values(), default=0) <= 1, f"{run.rungs}\n{life.story}"
    (incident,) = run.incidents
    assert incident.title, life.story
    assert incident.decision.get("reason"), life.story
    inside = not cut.agent or cut.agent in ANSWERED
    assert len([one for one in run.attempts if one.job]) == (1 if inside else 2), life.story
    if inside:
        assert "end.intended" not in life.kinds, life.story
    assert not run.attempts[-1].end_intended, life.story
    assert {*incident.decision.get("avoid", ())} <= {*run.attempts[-1].excluded}, life.story
    if "companion.intended" in life.kinds and not inside:
        gone = life.kinds.index("companion.gone")
        assert gone < life.kinds.index("attempt.opened", 3), life.story


def _was_cut(cut: Cut, life: Life) -> None:
    if cut.supervisor:
        assert "supervise --once" in life.story, (
            f"the supervisor never came to {cut.supervisor}\n{life.story}"
        )
    if not cut.agent:
        return
    what, _, number = cut.agent.removeprefix("record:after:").partition(":")
    last = str(life.agents[-1]["kind"])
    wanted = {BEFORE_THE_EFFECT.get(what, what)}
    if (what, number) == ("start.over", "2"):  # after a good end batch.sh is not always the slower one
        wanted |= {"start.begun", "start.first-step"}
    assert last in wanted, f"the agent never came to {cut.agent}\n{life.story}"
    if number == "2":
        assert life.agents[-1]["start"] == 2, life.story
