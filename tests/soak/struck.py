"""The drills' trainer, told while it runs what strikes it and where it ends. (I/O)

    python3 -m struck PLAN [--resume=CHECKPOINT]

Beside PLAN lies told.json: {"steps": the last step, "faults": [{"what", "rank", "sticky", "until"}, ...]}, read anew before each step. A fault strikes once, in the first
step before `until` (Unix seconds). Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.supervisor.drill_trainer.trainer import Trainer

__all__ = ["Struck", "main", "up_to_date"]


class Struck(Trainer):
    """One rank, whose plan is what stands on disk now."""

    def _beat(self, step: int, phase: str = "") -> None:
        super()._beat(step, phase)
        if not phase:
            self.plan = up_to_date(self.plan, step)


def up_to_date(plan: Mapping[str, Any], step: int) -> Mapping[str, Any]:
    """The plan with what was told meanwhile, for this step."""
    try:
        with open(os.path.join(str(plan["folder"]), "told.json")) as stream:
            told = json.load(stream)
    except FileNotFoundError:
        return plan
    faults = [
        {
            "what": fault["what"],
            "rank": fault["rank"],
            "sticky": fault["sticky"],
            "once": True,
            "starts": [],
            "steps": [step] if time.time() < fault["until"] else [],
        }
        for fault in told["faults"]
    ]
    return {**plan, "steps": told["steps"], "faults": faults}


def main(arguments: Sequence[str]) -> int:
    """Train. Returns the exit status."""
    resume = [word[len("--resume=") :] for word in arguments if word.startswith("--resume=")]
    with open(arguments[0]) as stream:
        plan = json.load(stream)
    return Struck(up_to_date(plan, 0), resume[-1] if resume else "").train()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
