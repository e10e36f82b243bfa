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

from ftrun.supervisor.drill import saved, weights
from ftrun.supervisor.drill.chronicle import Chronicle
from ftrun.supervisor.drill.harm import FAULTS
from ftrun.supervisor.drill.scenarios import SCENARIOS
from ftrun.supervisor.drill.terms import Expect, Ledger, Scenario, Story
from ftrun.supervisor.drill.verdict import judge
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.run_types import Attempt, Incident, Run

# ---------------------------------------------------------------------- the trainer


def _train(folder: Path, *, ranks: int = 3, resume: str = "", **plan: Any) -> list[tuple[int, str]]:
    """Run one start of the trainer without Slurm; (exit code, output) of each rank."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    usual = {
        "folder": str(folder),
        "steps": 6,
        "every": 2,
        "step_s": 0.0,
        "collective_timeout_s": 20.0,
        "host": "127.0.0.1",
    }
    (folder / "plan.json").write_text(json.dumps({**usual, "faults": [], **plan}))
    words = [sys.executable, "-m", "ftrun.supervisor.drill.trainer", str(folder / "plan.json")]
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
    assert _sum_at_the_end(tmp_path) == weights.checksum(weights.weights_after(6, 3))


def test_a_training_that_is_cut_and_resumed_ends_with_the_same_weights(tmp_path: Path) -> None:
    """A rank dies at step 5, the next start goes on from the checkpoint of step 4."""
    fault = {"what": "gpu-lost", "steps": [5], "rank": 1, "starts": [], "sticky": False}
    codes = [code for code, _ in _train(tmp_path, faults=[fault])]

    assert codes == [1, -6, 1]
    assert [0, 0, 0] == [
        code for code, _ in _train(tmp_path, resume=f"{tmp_path}/checkpoints/ckpt-000004.pt")
    ]
    assert _sum_at_the_end(tmp_path) == weights.checksum(weights.weights_after(6, 3))


@pytest.mark.parametrize("change", [[1, 2, 4, 5], [1, 2, 3, 3, 4, 5], [2, 1, 3, 4, 5]])
def test_a_step_lost_doubled_or_swapped_shows_in_the_weights(change: list[int]) -> None:
    """The order of steps is in the sum."""
    now = weights.initial_weights()
    for step in change:
        parts = [weights.gradient(now, rank, step) for rank in range(3)]
        now = weights.apply(now, [sum(column) for column in zip(*parts, strict=True)], step)

    assert weights.checksum(now) != weights.checksum(weights.weights_after(5, 3))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_torn_checkpoint_fails_to_load_in_the_words_of_torch(tmp_path: Path, share: float) -> None:
    """Wherever it is cut, it is an error and never half a state."""
    path = str(tmp_path / "ckpt-000004.pt")
    now = weights.weights_after(4, 3)
    saved.write_checkpoint(path, {"step": 4, "weights": now, "checksum": weights.checksum(now)})
    assert saved.read_checkpoint(path)["weights"] == now

    os.truncate(path, int(os.path.getsize(path) * share))

    with pytest.raises(RuntimeError, match="PytorchStreamReader failed reading zip archive"):
        saved.read_checkpoint(path)


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
    names = [s.name for s in SCENARIOS]

    assert len(names) == len(set(names))
    assert {f.what for s in SCENARIOS for f in s.faults} <= set(FAULTS)
    assert all(s.needs_sandbox or not s.box for s in SCENARIOS)


def test_only_the_last_move_repeats() -> None:
    """What is made again and again would keep the moves behind it waiting."""
    assert not any(move.repeats for s in SCENARIOS for move in s.moves[:-1])


# ---------------------------------------------------------------------- the judge

SCENARIO = Scenario(
    "a-drill",
    "A drill",
    steps=6,
    every=2,
    expect=Expect(
        classes=("node",),
        blamed="hurt",
        avoided=True,
        attempts=2,
        rungs=("resubmit",),
        stayed=True,
        steps_lost_max=1,
    ),
)
RIGHT = weights.checksum(weights.weights_after(6, 3))


def _steps(start: int, first: int, last: int, at: float) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"at": at + i, "attempt": start, "start": start, "step": step}
        for i, step in enumerate(range(first, last + 1))
    )


def _save(start: int, step: int, at: float) -> Mapping[str, Any]:
    return {"at": at, "attempt": start, "start": start, "step": step, "path": f"ckpt-{step}"}


LEDGER = Ledger(
    steps=(*_steps(1, 1, 5, 100.0), *_steps(2, 5, 6, 120.0)),
    saves=(_save(1, 2, 101.5), _save(1, 4, 103.5), _save(2, 6, 121.5)),
    hurts=({"at": 105.0, "what": "gpu-lost", "node": "n1", "rank": 1, "step": 6, "start": 1},),
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
STORY = Story((RUN,), (LEDGER,), (), {"ckpt-4": {"start": 1}, "ckpt-6": {"start": 2}})


def _wrong(story: Story) -> set[str]:
    return {check.wanted for check in judge(SCENARIO, story)[1] if not check.held}


def test_a_story_that_went_as_it_must_passes_with_its_times() -> None:
    """The row counts from the moment of the fault."""
    rows, checks = judge(SCENARIO, STORY)

    assert all(check.held for check in checks)
    assert (rows[0].detected_after_s, rows[0].running_after_s, rows[0].steps_lost) == (0.5, 14.0, 1)
    assert (rows[0].node_blamed, rows[0].finished) == ("n1", "yes")


def _with_run(**changes: Any) -> Story:
    return replace(STORY, runs=(replace(RUN, **changes),))


def _with_ledger(**changes: Any) -> Story:
    return replace(STORY, ledgers=(replace(LEDGER, **changes),))


LATE_STEP = (*LEDGER.steps, {"at": 130.0, "attempt": 1, "start": 1, "step": 6})
LATE_SAVE = (*LEDGER.saves, _save(1, 6, 125.0))
STAYED = "every rank but the hurt one keeps its process"
OTHER = ({"at": 99.0, "start": 1, "rank": 2, "node": "n0", "pid": 5, "memory": "d"},)
GAP = (*_steps(1, 1, 5, 100.0), *_steps(2, 6, 6, 120.0))


@pytest.mark.parametrize(
    ("story", "wanted"),
    [
        (_with_run(state=State.STOPPED), "a-drill-0001 is finished"),
        (_with_run(incidents=()), "diagnosed as node"),
        (_with_run(incidents=(replace(INCIDENT, nodes=("n0",)),)), "blamed: n1"),
        (_with_run(attempts=(*RUN.attempts, RUN.attempts[0])), "attempts: 2"),
        (_with_ledger(ranks=(*LEDGER.ranks, {**LEDGER.ranks[1], "node": "n1"})), "the last start avoids n1"),
        (_with_run(incidents=(replace(INCIDENT, decision={"kind": "step"}),)), "decided: resubmit"),
        (_with_ledger(ends=({"rank": 1, "pid": 8, "memory": "b"},)), STAYED),
        (_with_ledger(ranks=(*LEDGER.ranks, *OTHER, *OTHER)), STAYED),
        (_with_ledger(finals=()), "the weights are those of an undisturbed training, once"),
        (_with_ledger(finals=LEDGER.finals * 2), "the weights are those of an undisturbed training, once"),
        (_with_ledger(steps=LATE_STEP), "never two at the same time"),
        (_with_ledger(saves=LATE_SAVE), "never two at the same time"),
        (_with_ledger(steps=GAP), "every start goes on from a checkpoint"),
        (
            _with_ledger(steps=(*_steps(1, 1, 5, 100.0), *_steps(2, 3, 6, 120.0))),
            "steps trained twice: at most 1",
        ),
        (replace(STORY, checkpoints={"ckpt-6": {"start": 1}}), "no checkpoint is overwritten or torn"),
        (replace(STORY, checkpoints={"ckpt-6": "torn"}), "no checkpoint is overwritten or torn"),
        (replace(STORY, timed_out=True), "it comes to an end in time"),
        (replace(STORY, failure="no sandbox"), "the drill can be held"),
    ],
)
def test_nothing_wrong_passes(story: Story, wanted: str) -> None:
    """For each expectation and each law there is a story that breaks it, and is caught."""
    assert wanted in _wrong(story)


def test_the_chronicle_tells_each_thing_once() -> None:
    """What was told is not told again, and the same fault on several ranks is one line."""
    chronicle = Chronicle()
    hurts = LEDGER.hurts * 2

    first = chronicle.news([RUN], [replace(LEDGER, hurts=hurts)])

    assert first[0] == "!! gpu-lost strikes rank 1 on n1 at step 6"
    assert any(line.startswith("diagnosed as node (s): a node was lost, to blame: n1") for line in first)
    assert chronicle.news([RUN], [replace(LEDGER, hurts=hurts)]) == []
