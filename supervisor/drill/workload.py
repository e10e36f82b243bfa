"""What a drill submits: script, trainer and plan, options of `ftrun sbatch`, site settings. (I/O)"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ftrun.hooks
from ftrun.slurm.client.topology import parse_topology
from ftrun.supervisor import drill_trainer
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.drill.scenario import Scenario
from ftrun.supervisor.drill_trainer import trainer

# Short waits; and a cap that permits an exclusion among four nodes (the default of a tenth would be none).
DEFAULT_SETTINGS = {"log-quiet": "1s", "log-quiet-max": "4s", "backoff": "1s", "exclude-cap": "50%"}
COMPILED = shutil.ignore_patterns("__pycache__")
PLAN_FIELDS = [
    "steps",
    "save_every",
    "step_s",
    "save_s",
    "load_s",
    "collective_timeout_s",
    "on_timeout",
    "on_peer_lost",
    "loader",
    "heartbeats",
    "rejoin",
]
"""Fields of a scenario that the trainer reads."""


def write_workload(
    work: Path, plan: Mapping[str, Any], *, srun: Sequence[str], python: str, module: str = trainer.__name__
) -> None:
    """Write plan.json, train.sh, and a copy of the trainer, so that the nodes need no ftrun.

    train.sh passes its arguments to `module`.
    """
    (work / "plan.json").write_text(json.dumps(plan, indent=1))
    # Keep the package path, so that the modules have the same names on a node without ftrun.
    for package in (drill_trainer, ftrun.hooks):
        copy = work.joinpath(*package.__name__.split("."))
        shutil.copytree(str(Path(str(package.__file__)).parent), copy, ignore=COMPILED)
    (work / "train.sh").write_text(
        f"#!/bin/sh\nexport PYTHONPATH={work}\n"
        f'exec srun {" ".join([*srun, "--unbuffered"])} {python} -m {module} {work}/plan.json "$@"\n'
    )


def plan_of(one: Scenario, work: Path, *, hurt: bool, host: str) -> dict[str, Any]:
    """The trainer's plan. `hurt`: faults strike in it; `host`: where rank 0 listens, "" = its own node."""
    stage = {} if one.stage is None else {"stage": one.stage.way, "pad_kib": one.stage.pad_kib}
    return {
        **{name: getattr(one, name) for name in PLAN_FIELDS},
        **stage,
        "folder": str(work),
        "shares": one.ranks,
        "marker": text_of(one.settings, "checkpoint-marker"),
        "host": host,
        "faults": [asdict(fault) for fault in (one.faults if hurt else ())],
        "segment": one.segment,
        "leaves": dict(parse_topology(one.topology).leaves) if one.segment else {},
    }


def sbatch_words(one: Scenario, work: Path, published: Path, job_name: str) -> list[str]:
    """The options of `ftrun sbatch`."""
    ours = {"resume-arg": "--resume={checkpoint}", **DEFAULT_SETTINGS}
    if one.stage is not None:
        ours["stage"] = str(published)
    else:
        ours["checkpoint"] = f"{work}/checkpoints/ckpt-*.pt"
    if one.spares:
        ours["spares"] = str(one.spares)
    if one.rejoin:
        ours["rank-restart"] = "yes"
    return [
        f"--job-name={job_name}",
        f"--nodes={one.ranks}",
        "--ntasks-per-node=1",
        f"--output={work}/train.log",
        *one.sbatch,
        *(f"--ft-{key}={value}" for key, value in {**ours, **one.settings}.items()),
    ]


def site_config(one: Scenario, folder: Path) -> str:
    """The settings file of the drill's site."""
    lines = ["poll = 0.5"]
    if not one.companions:
        # Without companions: there is always an idle node, and most drills test the other rungs.
        lines.append('recover = "rank,step,swap,shrink,resubmit"')
    if one.site_service:
        lines.append(f'site-spool = "{folder}/spool"')
        lines.append(f'ssh-config = "{folder}/box/ssh/config"')
        lines += ["recheck-spacing = 0", "recheck-passes = 1"]
    return "\n".join(lines) + "\n"
