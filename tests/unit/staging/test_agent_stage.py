"""Laws of the agent and staged checkpoints: what a start is led to, how long that is waited for, and that nothing of it can cost a start."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.staging import partner_map, replace
from tests.unit.agent.test_agent import TRANSIENT, Stage, make, quick
from tests.unit.questions import Said

__all__ = ["make", "quick"]

Make = Callable[..., Stage]
VIEW = "/dev/shm/ftrun/views/0.2/step-10"


class Memory:
    """What the nodes say of their memory: `held` node -> rows, `views` node -> the answer to a plan (default: it is made)."""

    def __init__(self, stage: Stage) -> None:
        self.held: dict[str, list[list[Any]]] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.plans: list[dict[str, Any]] = []
        self.growing = False
        self._begin, self._steps = stage.steps.begin, stage.steps
        stage.steps.begin = self.begin  # type: ignore[method-assign]

    def begin(self, job_id: str, nodes: Sequence[str], script: str) -> Said:
        if " restore " not in script:
            return self._begin(job_id, nodes, script)
        heard = [node for node in nodes if node not in self._steps.silent]
        if found := re.search(r"--plan (\S+)", script):
            self.plans.append(json.loads(Path(found[1]).read_text()))
            told = {node: self.views.get(node, {"view": VIEW, "memory_bytes": 7}) for node in heard}
        else:
            told = {node: {"parts": self.held.get(node, []), "growing": self.growing} for node in heard}
        return Said(nodes, {node: (json.dumps(words),) for node, words in told.items()})


def row(node: str, size: int = 7, name: str = "step-10") -> list[Any]:
    return [node, "0.1", name, size, True, False, time.time()]


def staging(make: Make, tmp_path: Path, **chosen: Any) -> tuple[Stage, Memory, Path]:
    """A launch whose checkpoints are staged and published to a folder."""
    folder = tmp_path / "published"
    folder.mkdir()
    stage = make(stage=str(folder), checkpoint=f"{folder}/*", **chosen)
    memory = Memory(stage)
    stage.until("start.begun")
    return stage, memory, folder


def publish(stage: Stage, folder: Path, name: str = "step-10") -> None:
    (folder / name).mkdir()
    (folder / name / "rank-0").write_bytes(b"weights")
    by = {"run": replace.run_of(stage.life.run_dir), "attempt": 1, "start": "0.1"}
    manifest.write(str(folder / name), manifest.Manifest({"rank-0": manifest.Entry(7, "0" * 64)}, by=by))
    manifest.write_marker(str(folder / name))


def test_a_view_that_all_nodes_have_is_what_the_start_is_led_to(make: Make, tmp_path: Path) -> None:
    """The answer names the folder of links, the checkpoint that it stands for, and its step."""
    stage, memory, folder = staging(make, tmp_path)
    memory.held = {node: [row(node)] for node in stage.nodes}
    publish(stage, folder)
    told = stage.fails(1, "step 12 loss 2.0", TRANSIENT)
    assert (told["view"], told["from"], told["step"]) == (VIEW, f"{folder}/step-10", "10")
    (plan,) = memory.plans
    assert (plan["published"], plan["files"], plan["give"]) == (f"{folder}/step-10", {"rank-0": "0" * 64}, [])
    kinds = stage.kinds()
    assert kinds.index("start.placed") < kinds.index("restore.intended") < kinds.index("restore.done")
    assert stage.crashes.index("record:after:restore.intended") < stage.crashes.index("restore:before")


def test_a_node_without_its_view_leaves_the_choice_to_the_disk(make: Make, tmp_path: Path) -> None:
    """Whatever went wrong there: the start begins all the same."""
    stage, memory, folder = staging(make, tmp_path)
    memory.held = {node: [row(node)] for node in stage.nodes}
    memory.views = {stage.nodes[1]: {"view": "", "why": "no room in memory"}}
    publish(stage, folder)
    told = stage.fails(1, "step 12 loss 2.0", TRANSIENT)
    assert (told["kind"], "view" in told) == ("again", False)
    assert stage.until("restore.failed")["why"] == "no room in memory"


def test_a_spare_gets_the_part_of_a_lost_node_from_its_partner(make: Make, tmp_path: Path) -> None:
    """The nodes hear who is lost, so that its copies are published; who has the copy gives it."""
    stage, memory, folder = staging(make, tmp_path, wanted=3, active=2)
    first, lost, spare = stage.nodes
    memory.held = {first: [row(first), row(lost)]}
    publish(stage, folder)
    stage.steps.silent = {lost}
    told = stage.fails(1, "step 12 loss 2.0", TRANSIENT)
    assert told["view"] == VIEW
    (plan,) = memory.plans
    assert (plan["give"], plan["need"]) == ([[first, lost, spare]], {spare: [lost]})
    heard = partner_map.read_ring(stage.place)
    assert heard is not None
    assert list(heard.lost) == [lost]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_job_that_is_given_up_is_kept_until_its_memory_is_published(
    make: Make, tmp_path: Path, flushed: bool
) -> None:
    """The nodes hear who is lost and who has its copy, and the lost one is given back, for which Slurm would end the job; where nothing is left to publish it is not."""
    stage, _, _ = staging(make, tmp_path)
    first, lost = stage.nodes
    stage.steps.silent = {lost}
    if flushed:
        (Path(stage.place, "stage")).mkdir()
        Path(stage.place, "stage", f"flushed.0.1.{first}").touch()
    assert stage.fails(1, "step 12 loss 2.0", TRANSIENT)["kind"] == "end"
    told = partner_map.read_ring(stage.place)
    assert told is not None
    assert (list(told.lost), told.kept) == ([lost], {lost: first})
    assert [*stage.steps.kept] == ([] if flushed else [(first,)])
    assert ("release.intended" in stage.kinds()) is not flushed


def test_what_would_travel_for_too_long_is_read_from_disk(make: Make, tmp_path: Path) -> None:
    """The nodes have measured how fast they are; batch.sh does not wait for ever."""
    stage, memory, folder = staging(make, tmp_path, wanted=3, active=2)
    first, lost, spare = stage.nodes
    memory.held = {first: [row(first), row(lost, 10 << 30)]}
    partner_map.put_copies(stage.place, first, partner_map.Copies(bytes_per_s=20e6))
    publish(stage, folder)
    stage.steps.silent = {lost}
    assert stage.fails(1, "step 12 loss 2.0", TRANSIENT)["view"] == VIEW
    assert (memory.plans[0]["give"], spare in stage.ctx.nodes) == ([], True)


def test_what_may_still_be_published_is_waited_for(make: Make, tmp_path: Path) -> None:
    """Too much to be brought together in memory at once; as soon as it is on disk, the start goes on."""
    stage, memory, folder = staging(make, tmp_path)
    memory.held = {node: [row(node, 3 << 30)] for node in stage.nodes}
    stage.life.say("step 12 loss 2.0", TRANSIENT)
    stage.over(1)
    stage.until("start.placed")
    stage.looks()
    assert "restore.intended" not in stage.kinds()
    publish(stage, folder)
    assert stage.answer(1)["view"] == VIEW


@pytest.mark.parametrize("why", ["time", "flushed", "torn"])
def test_nobody_waits_for_what_cannot_come(make: Make, tmp_path: Path, why: str) -> None:
    """`stage-flush-timeout` is over, the nodes have nothing left to publish, or a part is lost for good."""
    stage, memory, _ = staging(make, tmp_path, **({"stage_flush_timeout": 0.5} if why == "time" else {}))
    first, second = stage.nodes
    memory.held = {first: [row(first, 3 << 30)]} if why != "time" else {}
    if why == "flushed":
        Path(stage.place, "stage").mkdir()
        for node in stage.nodes:
            Path(stage.place, "stage", f"flushed.0.1.{node}").touch()
    memory.growing = why == "time"
    told = stage.fails(1, "step 12 loss 2.0", TRANSIENT)
    assert (told["kind"], "view" in told, second in told["nodes"]) == ("again", False, True)


def test_a_checkpoint_on_disk_that_is_newer_is_not_passed_over(make: Make, tmp_path: Path) -> None:
    """The script may save elsewhere, too."""
    stage, memory, folder = staging(make, tmp_path)
    memory.held = {node: [row(node)] for node in stage.nodes}
    publish(stage, folder)
    publish(stage, folder, "step-11")
    assert "view" not in stage.fails(1, "step 12 loss 2.0", TRANSIENT)


def test_a_run_that_stages_nothing_hears_nothing_of_it(make: Make) -> None:
    """No file, no question, no record."""
    stage = make()
    memory = Memory(stage)
    assert set(stage.fails(1, TRANSIENT)) == {"kind", "nodes", "fault", "why"}
    assert (memory.plans, Path(stage.place, "ring.json").exists()) == ([], False)
    assert not [kind for kind in stage.kinds() if kind.startswith(("stage.", "restore."))]
