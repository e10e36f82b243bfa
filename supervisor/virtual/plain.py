"""What happens without ftrun: a person starts the job again, or Slurm does without a question. (pure)

How it thinks. Both see a fault when the script ends: a crash at once, a lost node when Slurm gives it up, a hang when the collectives give up.
The person finds out which node it was and leaves it out. The requeue asks nothing: Slurm leaves out what does not answer and what
the site has drained by then, so a node that is broken and answers is used again, and fails again.
"""

from __future__ import annotations

import math

from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.virtual.life import Fault, Life
from ftrun.supervisor.virtual.queue import Waiting, first_job

__all__ = ["Person", "Requeue"]


class _Patient:
    """A run that is well is left alone."""

    def look_at_s(self, _life: Life) -> float:
        """Never."""
        return math.inf

    def look(self, _life: Life) -> None:
        """Nobody looks."""


class Person(_Patient):
    """Somebody looks now and then."""

    def begin(self, life: Life) -> None:
        """The first job."""
        first_job(life, 0)

    def recover(self, life: Life, fault: Fault) -> None:
        """Noticed late, understood, started again by hand."""
        _until_over(life, fault)
        life.spend("person", life.wait(life.scenario["reaction"]), held=False)
        if fault.node:
            life.cluster.found(fault.node, life.now_s)
        _new_job(life, "by hand")


class Requeue(_Patient):
    """`scontrol requeue` at each end of the script that is not its last."""

    def begin(self, life: Life) -> None:
        """The first job."""
        first_job(life, 0)

    def recover(self, life: Life, fault: Fault) -> None:
        """Into the queue again, whatever it was."""
        _until_over(life, fault)
        life.spend("queue", life.scenario["requeue"], held=False)
        _new_job(life, "requeue")


def _until_over(life: Life, fault: Fault) -> None:
    if fault.cause.fault is FaultClass.HANG:
        life.spend("detection", life.scenario["watchdog"])
    elif fault.cause.lost:
        life.spend("detection", life.scenario["lost-after"])


def _new_job(life: Life, how: str) -> None:
    Waiting(life, life.scenario.nodes).started()
    life.spend("restart", life.scenario["new-job"])
    life.restarted(how)
