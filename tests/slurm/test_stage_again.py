"""Checkpoints that are staged under one name again and again, on real Slurm, and by two runs into one folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.staging import replace
from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

MakeBox = Callable[..., Sandbox]
MakePost = Callable[..., Post]

# Ranks that know one path and one name. Each save is written over the one before.
SAVES = """
srun bash -c 'for n in 1 2 3; do
    mkdir -p $FTRUN_STAGE_DIR/last
    printf "save $n" >$FTRUN_STAGE_DIR/last/shard-$SLURM_PROCID
    [ $SLURM_PROCID != 0 ] || printf "save $n" >$FTRUN_STAGE_DIR/checkpoint.pt
    until [ -e seen.$n ]; do sleep 0.1; done
done'
"""


def shown(folder: Path) -> set[str]:
    """What the files of a published set hold, where it is whole."""
    there = manifest.read(str(folder)) if folder.exists() else None
    if there is None:
        return set()
    return {(folder / name if folder.is_dir() else folder).read_text() for name in there.files}


def _follow(folders: list[Path], number: int) -> bool:
    return [shown(path) for path in folders] == [{f"save {number}"}] * 2


@side_by_side
def test_each_save_of_a_name_is_published_and_another_run_takes_a_free_one(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """`last` of three nodes and `checkpoint.pt` follow the script, save by save; a second run of the same script leaves the first one's sets as they are, and says so."""
    at = make_post(make_sandbox(nodes=3, shm_mib=128))
    to = at.work / "published"
    for names in (("last", "checkpoint.pt"), None):
        job = at.sbatch(SAVES, f"--ft-stage={to}", "-N3", "--ntasks-per-node=1")
        at.supervise()
        own = [
            to / (name if names else replace.alias_of(name, replace.run_of(at.run_dir(job))))
            for name in ("last", "checkpoint.pt")
        ]
        for number in (1, 2, 3):
            at.until(partial(_follow, own, number), f"save {number} is out")
            (at.work / f"seen.{number}").touch()
        at.until_state("finished", job=job)
        assert "published as" in at.ftrun("show", job) or names
        for path in at.work.glob("seen.*"):
            path.unlink()
    assert shown(to / "last") == {"save 3"}
