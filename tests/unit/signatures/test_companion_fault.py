"""What the end of a start means that lay in a companion which is over. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.diagnosis.review import COMPANION_OVER
from ftrun.supervisor.model.types import Diagnosis, Evidence, FaultClass, Source, Topology
from ftrun.supervisor.policy import start_decision
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.scanner import Scanner

CATALOG = catalog.load()
NODES = ("n0", "n1", "n4")
RANKS = Topology(nodes=NODES, rank_node=dict(enumerate(NODES)))
ENDED = (
    "slurmstepd-n4: error: *** STEP 25.3 ON n4 CANCELLED AT 2026-11-21T19:47:20 ***",
    "srun: error: n4: task 2: Terminated",
)
LEFT_ALONE = (
    "0: Traceback (most recent call last):",
    '0:   File "train.py", line 21, in receive',
    "0: RuntimeError: peer closed",
    "srun: error: n0: task 0: Exited with exit code 1",
)


def _judged(lines: tuple[str, ...], gone: tuple[str, ...] = ("n4",)) -> Diagnosis:
    hits = Scanner(CATALOG, engine="re").feed("".join(f"{line}\n" for line in lines).encode())
    evidence = tuple(
        Evidence(
            Source.LOG,
            hit.signature,
            hit.text,
            file="job.log",
            line=hit.line,
            order=hit.line,
            captures=hit.captures,
        )
        for hit in hits
    )
    seen = start_decision.StartFacts(2, NODES, "", 1, 0, 1000.0, evidence=evidence, topology=RANKS, gone=gone)
    return start_decision.diagnose_start(seen, CATALOG)


@pytest.mark.parametrize("lines", [(), ENDED, LEFT_ALONE, (*ENDED, *LEFT_ALONE)])
def test_a_script_that_raises_because_its_companion_was_ended_is_started_again(
    lines: tuple[str, ...],
) -> None:
    """An exception of whoever lost a peer is a consequence, as it is where a node is lost; nobody is blamed."""
    found = _judged(lines)

    assert (found.signature, found.fault, found.nodes) == (COMPANION_OVER, FaultClass.NODE, ())


def test_the_same_exception_without_a_companion_that_is_over_is_the_scripts() -> None:
    """It is the end of the companion that explains it."""
    assert _judged(LEFT_ALONE, gone=()).fault is FaultClass.USER_CODE


def test_what_explains_itself_is_no_consequence_of_a_companions_end() -> None:
    """A device that broke keeps its name and its node."""
    broken = "n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."
    found = _judged((broken, *LEFT_ALONE))

    assert found.fault is FaultClass.HARDWARE_GPU
