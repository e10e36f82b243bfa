"""What is submitted: the script, its plan, and a copy of the trainer that needs no ftrun on the nodes. (I/O)"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ftrun.hooks
from ftrun.supervisor.drill import group, harm, saved, staged, trainer, weights

__all__ = ["lay_out"]

COMPILED = shutil.ignore_patterns("__pycache__")


def lay_out(
    work: Path,
    plan: Mapping[str, Any],
    *,
    srun: Sequence[str],
    python: str,
    module: str = trainer.__name__,
) -> None:
    """Write plan.json, the trainer's modules and train.sh, which hands its arguments to `module`, into a folder."""
    (work / "plan.json").write_text(json.dumps(plan, indent=1))
    # A tree of their own, so that the trainer's files have the same names on a node that has no ftrun.
    tree = work / "ftrun" / "supervisor" / "drill"
    tree.mkdir(parents=True)
    for one in (trainer, group, harm, saved, staged, weights):
        shutil.copy(str(one.__file__), tree)
    shutil.copytree(Path(ftrun.hooks.__file__).parent, work / "ftrun" / "hooks", ignore=COMPILED)
    (work / "train.sh").write_text(
        f"#!/bin/sh\nexport PYTHONPATH={work}\n"
        f'exec srun {" ".join([*srun, "--unbuffered"])} {python} -m {module} {work}/plan.json "$@"\n'
    )
