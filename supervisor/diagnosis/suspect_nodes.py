"""Names a node that failures for no known cause follow over starts and runs. (pure)

What no log can tell alone shows in the history of nodes: `nodes/repeat_failures` finds by an exact test that
starts on one node fail more often than chance, while the same work passes elsewhere. If a start on such a node
fails in a way that looks like the program's own, one more try without the node tells which of the two it was.
So the diagnosis keeps its class and its confidence, names the node as a suspect, shows the arithmetic and
allows a retry. It excludes nobody by itself: where the evidence is strong enough, the history does.
"""

from __future__ import annotations

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.evidence import Case
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, FaultClass

OF_NO_NODE = frozenset(
    {
        FaultClass.UNKNOWN, FaultClass.USER_CODE, FaultClass.LIBRARY_BUG, FaultClass.CONFIG, FaultClass.DATA,
        FaultClass.OOM_GPU, FaultClass.OOM_HOST, FaultClass.HANG,
    }
)  # fmt: skip
"""Classes of failures that look like the program's own, and that a bad node can cause unseen."""


def add_suspect_nodes(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The diagnosis with the nodes of this start that failures follow; None where it names nodes already, or
    all nodes would be named.
    """
    used = case.facts.attempt.used if case.facts.attempt is not None else case.topology.nodes
    suspects = tuple(node for node in used if node in case.facts.suspects)
    if found.fault not in OF_NO_NODE or found.nodes or not suspects or len(suspects) == len(used) > 1:
        return None
    return replace(
        found,
        nodes=suspects,
        blame=Blame.NODE,
        retry=True,
        action=Action.RESUBMIT if found.action in (Action.STOP, Action.NONE) else found.action,
        rests_on=(*found.rests_on, *(f"suspected: {case.facts.suspects[node]}" for node in suspects)),
    )
