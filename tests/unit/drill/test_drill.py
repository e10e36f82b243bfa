"""Laws of a drill's parts: the trainer's arithmetic, and a judge that does not let anything pass. (pure but for the trainer's files)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.config import sources
from ftrun.supervisor.drill import scenario, workload
from ftrun.supervisor.drill.injector import Injector
from ftrun.supervisor.drill.observation import CONDITIONS, Observation, Outcome, Trace, is_due, target_node
from ftrun.supervisor.drill.scenario import Action, Expectation, Scenario
from ftrun.supervisor.drill.timeline import Timeline
from ftrun.supervisor.drill.verdict import check_outcome
from ftrun.supervisor.drill_trainer import checkpoint_files, toy_model
from ftrun.supervisor.drill_trainer.faults import FAULTS
from ftrun.supervisor.model.run import Attempt, Incident, Run
from ftrun.supervisor.model.states import State
from tests.drills.tables import all_scenarios

# ---------------------------------------------------------------------- the trainer


def _train(folder: Path, *, ranks: int = 3, resume: str = "", **plan: Any) -> list[tuple[int, str]]:
    """Run one start of the trainer without Slurm; (exit code, output) of each rank."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    usual = {
        "folder": str(folder),
        "steps": 6,
        "save_every": 2,
        "step_s": 0.0,
        "collective_timeout_s": 20.0,
        "host": "127.0.0.1",
    }
    (folder / "plan.json").write_text(json.dumps({**usual, "faults": [], **plan}))
    words = [sys.executable, "-m", "ftrun.supervisor.drill_trainer.trainer", str(folder / "plan.json")]
    words += [f"--resume={resume}"] if resume else []
    job = str(len(list(folder.glob("meet.*"))))
    started = [
        subprocess.Popen(
            words,
            env={
                **os.environ,
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(ranks),
                "SLURMD_NODENAME": f"n{rank}",
                "SLURM_JOB_ID": job,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=180)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def _sum_at_the_end(folder: Path) -> str:
    return str(json.loads((folder / "final.log").read_text().splitlines()[-1])["checksum"])


def test_ranks_that_sum_over_sockets_get_the_weights_of_the_formula(tmp_path: Path) -> None:
    """Three processes come to what one process works out alone; otherwise the check of all drills would be worth nothing."""
    assert [0, 0, 0] == [code for code, _ in _train(tmp_path)]
    assert _sum_at_the_end(tmp_path) == toy_model.checksum(toy_model.weights_after(6, 3))


def test_a_training_that_is_cut_and_resumed_ends_with_the_same_weights(tmp_path: Path) -> None:
    """A rank dies at step 5, the next start goes on from the checkpoint of step 4."""
    fault = {"what": "gpu-lost", "steps": [5], "rank": 1, "starts": [], "sticky": False}
    codes = [code for code, _ in _train(tmp_path, faults=[fault])]

    assert codes == [1, -6, 1]
    assert [0, 0, 0] == [
        code for code, _ in _train(tmp_path, resume=f"{tmp_path}/checkpoints/ckpt-000004.pt")
    ]
    assert _sum_at_the_end(tmp_path) == toy_model.checksum(toy_model.weights_after(6, 3))


@pytest.mark.parametrize("change", [[1, 2, 4, 5], [1, 2, 3, 3, 4, 5], [2, 1, 3, 4, 5]])
def test_a_step_lost_doubled_or_swapped_shows_in_the_weights(change: list[int]) -> None:
    """The order of steps is in the sum."""
    now = toy_model.initial_weights()
    for step in change:
        parts = [toy_model.gradient(now, rank, step) for rank in range(3)]
        now = toy_model.apply(now, [sum(column) for column in zip(*parts, strict=True)], step)

    assert toy_model.checksum(now) != toy_model.checksum(toy_model.weights_after(5, 3))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_torn_checkpoint_fails_to_load_in_the_words_of_torch(tmp_path: Path, share: float) -> None:
    """Wherever it is cut, it is an error and never half a state."""
    path = str(tmp_path / "ckpt-000004.pt")
    now = toy_model.weights_after(4, 3)
    checkpoint_files.write_checkpoint(path, {"step": 4, "weights": now, "checksum": toy_model.checksum(now)})
    assert checkpoint_files.read_checkpoint(path)["weights"] == now

    os.truncate(path, int(os.path.getsize(path) * share))

    with pytest.raises(RuntimeError, match="PytorchStreamReader failed reading zip archive"):
        checkpoint_files.read_checkpoint(path)


def test_a_rank_that_woke_up_late_leaves_its_checkpoint_unwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the next attempt exists, nothing is moved into place any more."""
    run_dir = tmp_path / "run"
    (run_dir / "attempts" / "2").mkdir(parents=True)
    monkeypatch.setenv("FTRUN_RUN_DIR", str(run_dir))
    monkeypatch.setenv("FTRUN_ATTEMPT", "1")

    [(code, output)] = _train(tmp_path, ranks=1)

    assert code == 1
    assert "is no longer the run's" in output
    assert list((tmp_path / "checkpoints").iterdir()) == []


# ---------------------------------------------------------------------- the table of drills


def test_names_of_drills_are_unique_and_their_faults_exist() -> None:
    """A drill is called by its name, and hurts by what the trainer knows."""
    names = [s.name for s in all_scenarios()]

    assert len(names) == len(set(names)) >= 111
    assert {f.what for s in all_scenarios() for f in s.faults} <= set(FAULTS)
    assert all(f.steps or f.any_step for s in all_scenarios() for f in s.faults)


@pytest.mark.parametrize("one", all_scenarios(), ids=lambda one: one.name)
def test_what_a_drill_sets_are_settings_of_today(one: Scenario, tmp_path: Path) -> None:
    """Its options of ftrun, the environment of its submission, and the file of its site."""
    words = workload.sbatch_words(one, tmp_path, tmp_path, one.name)
    own = (word.removeprefix("--ft-").partition("=") for word in words if word.startswith("--ft-"))
    site = tmp_path / "config.toml"
    site.write_text(workload.site_config(one, tmp_path))
    env = {"HOME": str(tmp_path), "FTRUN_SITE_CONFIG": str(site), **one.environment}

    sources.load(str(tmp_path), env, own=[(key, value if equals else None) for key, equals, value in own])


def test_actions_of_drills_exist_and_wait_for_what_can_be_observed() -> None:
    """An action is a method of the injector or the sandbox, if not spelled out; a condition is one that is known."""
    spelled_out = {"ftrun", "scancel", "occupy", "vacate", "urgent_job"}
    actions = [action for s in all_scenarios() for action in s.actions]

    assert {a.do for a in actions} <= set(scenario.ACTIONS)
    plain = set(scenario.ACTIONS) - spelled_out
    assert all(callable(getattr(Injector, do, None) or getattr(Sandbox, do)) for do in plain)
    assert {name for a in actions for name in a.when} <= {*CONDITIONS, "step", "start"}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("expect = {}\nsteppes = 3", "steppes"),
        ("steps = 3", "expect"),
        ('expect = {}\nactions = [{do = "burn", when = {step = 1}}]', "no action is called burn"),
        ('expect = {}\nfaults = [{what = "hang", step = 1}]', "step"),
    ],
)
def test_a_wrong_row_is_told_with_its_drill(row: str, told: str) -> None:
    """A misspelt field would be a drill that hurts nothing."""
    with pytest.raises(ValueError, match=f"drill broken: .*{told}"):
        scenario.parse(f'[[drill]]\nname = "broken"\ntitle = "t"\n{row}\n')


def test_an_action_waits_until_its_node_is_known() -> None:
    """A supervisor that is slow has not seen the nodes of the job yet: nothing is done to a node without a name."""
    hurt = Action("lose_memory", {"step": 3}, spare=0)
    trace = Trace(steps=({"step": 9, "start": 1},), ranks=({"rank": 0, "start": 1, "node": "n0"},))
    blind, sighted = (
        Observation(Run("r", State.RUNNING, attempts=(Attempt(1, 98.0, nodes=nodes),)), trace, 1.0, True)
        for nodes in ((), ("n0", "n7"))
    )

    assert not is_due(hurt, blind)
    assert is_due(hurt, sighted)
    assert target_node(hurt, sighted) == "n7"


def test_only_the_last_action_repeats() -> None:
    """What is made again and again would keep the moves behind it waiting."""
    assert not any(action.repeats for s in all_scenarios() for action in s.actions[:-1])


# ---------------------------------------------------------------------- the judge

SCENARIO = Scenario(
    "a-drill",
    "A drill",
    steps=6,
    save_every=2,
    expect=Expectation(
        classes=("node",),
        blamed="hurt",
        avoided=True,
        attempts=2,
        rungs=("resubmit",),
        processes_kept=True,
        steps_lost_max=1,
    ),
)
RIGHT = toy_model.checksum(toy_model.weights_after(6, 3))


def _steps(start: int, first: int, last: int, at: float) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"at": at + i, "attempt": start, "start": start, "step": step}
        for i, step in enumerate(range(first, last + 1))
    )


def _save(start: int, step: int, at: float) -> Mapping[str, Any]:
    return {"at": at, "attempt": start, "start": start, "step": step, "path": f"ckpt-{step}"}


TRACE = Trace(
    steps=(*_steps(1, 1, 5, 100.0), *_steps(2, 5, 6, 120.0)),
    saves=(_save(1, 2, 101.5), _save(1, 4, 103.5), _save(2, 6, 121.5)),
    faults=({"at": 105.0, "what": "gpu-lost", "node": "n1", "rank": 1, "step": 6, "start": 1},),
    ranks=(
        {"at": 99.0, "start": 1, "rank": 1, "node": "n1", "pid": 7, "memory": "a"},
        {"at": 119.0, "start": 2, "rank": 1, "node": "n2", "pid": 9, "memory": "c"},
    ),
    ends=({"rank": 1, "pid": 9, "memory": "c"},),
    finals=({"at": 122.0, "start": 2, "checksum": RIGHT},),
)
INCIDENT = Incident(
    "1.0",
    1,
    0,
    "node",
    "s",
    "a node was lost",
    ("n1",),
    ("n0", "n1"),
    5,
    105.5,
    106.0,
    107.0,
    {},
    {"kind": "resubmit"},
    107.0,
    119.0,
)
RUN = Run(
    "a-drill-0001",
    State.FINISHED,
    attempts=(Attempt(1, 98.0, nodes=("n0", "n1")), Attempt(2, 108.0, nodes=("n0", "n2"))),
    incidents=(INCIDENT,),
)
OUTCOME = Outcome((RUN,), (TRACE,), (), {"ckpt-4": {"start": 1}, "ckpt-6": {"start": 2}})


def _wrong(outcome: Outcome) -> set[str]:
    return {check.wanted for check in check_outcome(SCENARIO, outcome)[1] if not check.held}


def test_a_story_that_went_as_it_must_passes_with_its_times() -> None:
    """The row counts from the moment of the fault."""
    rows, checks = check_outcome(SCENARIO, OUTCOME)

    assert all(check.held for check in checks)
    assert (rows[0].detected_after_s, rows[0].running_after_s, rows[0].steps_lost) == (0.5, 14.0, 1)
    assert (rows[0].node_blamed, rows[0].finished) == ("n1", "yes")


def _with_run(**changes: Any) -> Outcome:
    return replace(OUTCOME, runs=(replace(RUN, **changes),))


def _with_trace(**changes: Any) -> Outcome:
    return replace(OUTCOME, traces=(replace(TRACE, **changes),))


LATE_STEP = (*TRACE.steps, {"at": 130.0, "attempt": 1, "start": 1, "step": 6})
LATE_SAVE = (*TRACE.saves, _save(1, 6, 125.0))
STAYED = "every rank but the hurt one keeps its process"
OTHER = ({"at": 99.0, "start": 1, "rank": 2, "node": "n0", "pid": 5, "memory": "d"},)
GAP = (*_steps(1, 1, 5, 100.0), *_steps(2, 6, 6, 120.0))


@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        (_with_run(state=State.STOPPED), "a-drill-0001 is finished"),
        (_with_run(incidents=()), "diagnosed as node"),
        (_with_run(incidents=(replace(INCIDENT, nodes=("n0",)),)), "blamed: n1"),
        (_with_run(attempts=(*RUN.attempts, RUN.attempts[0])), "attempts: 2"),
        (_with_trace(ranks=(*TRACE.ranks, {**TRACE.ranks[1], "node": "n1"})), "the last start avoids n1"),
        (_with_run(incidents=(replace(INCIDENT, decision={"kind": "step"}),)), "decided: resubmit"),
        (_with_trace(ends=({"rank": 1, "pid": 8, "memory": "b"},)), STAYED),
        (_with_trace(ranks=(*TRACE.ranks, *OTHER, *OTHER)), STAYED),
        (_with_trace(finals=()), "the weights are those of an undisturbed training, once"),
        (_with_trace(finals=TRACE.finals * 2), "the weights are those of an undisturbed training, once"),
        (_with_trace(steps=LATE_STEP), "never two at the same time"),
        (_with_trace(saves=LATE_SAVE), "never two at the same time"),
        (_with_trace(steps=GAP), "every start goes on from a checkpoint"),
        (
            _with_trace(steps=(*_steps(1, 1, 5, 100.0), *_steps(2, 3, 6, 120.0))),
            "steps trained twice: at most 1",
        ),
        (replace(OUTCOME, checkpoints={"ckpt-6": {"start": 1}}), "no checkpoint is overwritten or torn"),
        (replace(OUTCOME, checkpoints={"ckpt-6": "torn"}), "no checkpoint is overwritten or torn"),
        (replace(OUTCOME, timed_out=True), "it comes to an end in time"),
        (replace(OUTCOME, failure="no sandbox"), "the drill can be held"),
    ],
)
def test_nothing_wrong_passes(outcome: Outcome, wanted: str) -> None:
    """For each expectation and each law there is a story that breaks it, and is caught."""
    assert wanted in _wrong(outcome)


def test_the_timeline_tells_each_thing_once() -> None:
    """What was told is not told again, and the same fault on several ranks is one line."""
    timeline = Timeline()
    faults = TRACE.faults * 2

    first = timeline.news([RUN], [replace(TRACE, faults=faults)])

    assert first[0] == "!! gpu-lost strikes rank 1 on n1 at step 6"
    assert any(line.startswith("diagnosed as node (s): a node was lost, to blame: n1") for line in first)
    assert timeline.news([RUN], [replace(TRACE, faults=faults)]) == []
