"""What a sick or a healthy node means for a run: the four scenarios of a training service, and our finer ones, as a table. (pure)

How it thinks. Three things are known: whether the check before the script failed, whether a check says that hardware of a minority of the
nodes is bad, and whether the script has ended. ModelArts names four of the combinations ("training fault tolerance check": pre-check failed
and hardware faulty; failed and functional; passed, faulty, and the service exits; passed, functional, and the service exits). The table has
all eight, so that no combination is decided anywhere else. What is left to the log is judged by it, class by class; and what is alive is never
ended for a finding alone.
"""

from __future__ import annotations

from enum import StrEnum

from ftrun.slurm.records import dataclass

__all__ = ["TABLE", "Act", "Scenario", "of"]


class Act(StrEnum):
    """What a scenario asks for."""

    ISOLATE = "isolate and submit again"
    START = "start all the same"
    JUDGE = "judge by the log"
    SUSPECT = "end it only if it stands still"
    WATCH = "let it run"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row. `number` is that of ModelArts, 0 where it names none. `ended`: the script has ended, or was not started because of the check."""

    number: int
    precheck_failed: bool
    hardware_bad: bool
    ended: bool
    act: Act
    why: str


TABLE = (
    Scenario(
        1, True, True, True, Act.ISOLATE,
        "the sick nodes are left out and the run goes on elsewhere; no budget of a fault class pays for it",
    ),
    Scenario(
        2, True, False, True, Act.JUDGE,
        "what every node shows is the site's or the set-up's: nobody is left out, and the log tells whether to try again",
    ),
    Scenario(
        3, False, True, True, Act.ISOLATE,
        "the machine explains the end where the log does not explain it better: the node is left out, the run resumes from its checkpoint",
    ),
    Scenario(
        4, False, False, True, Act.JUDGE,
        "the job's own end: its class decides, a mistake in the script fails, a full disk waits, an unknown cause is tried once more",
    ),
    Scenario(
        0, True, True, False, Act.SUSPECT,
        "the script runs on a node that failed its check: as long as it makes steps it is not touched",
    ),
    Scenario(
        0, True, False, False, Act.START,
        "a check that fails everywhere, or is unsure, keeps no script from starting",
    ),
    Scenario(
        0, False, True, False, Act.SUSPECT,
        "training may survive a fault: it is ended when nothing is seen to move for `end-wait`",
    ),
    Scenario(0, False, False, False, Act.WATCH, "nothing is wrong"),
)  # fmt: skip


def of(*, precheck_failed: bool, hardware_bad: bool, ended: bool) -> Scenario:
    """The row for what is known."""
    wanted = (precheck_failed, hardware_bad, ended)
    return next(row for row in TABLE if (row.precheck_failed, row.hardware_bad, row.ended) == wanted)
