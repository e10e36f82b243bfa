"""All that one diagnosis rests on, as one frozen value. (pure)

The supervisor and the agent inside a job each fill it in one place (`diagnosis_inputs`, `agent_case`); what
one of them cannot know stays empty. The rules (`diagnosis_rules`) read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.diagnosis import blame
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.evidence import RankedEvidence, rank_evidence
from ftrun.supervisor.diagnosis.node_findings import NodeFacts
from ftrun.supervisor.model.log_order import as_written
from ftrun.supervisor.model.types import Diagnosis, Evidence, Proof, Topology

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.checkpoint_blame import Resumed
    from ftrun.supervisor.model.run import Attempt, GivenUp
    from ftrun.supervisor.model.types import Held
    from ftrun.supervisor.signatures.catalog import Catalog
    from ftrun.supervisor.telemetry.progress import Progress

__all__ = ["Case", "Facts", "Gone", "Refusal", "case_of"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """sbatch refused an attempt. `for_good`: it would refuse the same request again, and nothing that ftrun
    added can be why.
    """

    message: str
    for_good: bool
    run: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A companion whose nodes the start used, and which is over; `words` say how that is known."""

    nodes: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one launch, or of one start of it.

    The log: `evidence` in any order, `topology`, `progress`, and `resumed`, the checkpoint that it began
    with. What the catalog does not know is left aside. `last_words` are the lines of an end without a cause
    that a person should look at.

    The end: `ended` (None = it lives, or a text without a record). `attempt` is what the run's journal says
    of it, `requeues` whether Slurm puts back what a lost node ends, `wish` what a person asked for,
    `near_limit` that it was asked to save since its time limit was near.

    Ends without a start of the script: `refusal`, `held` by the checks before it (`held_file` is their
    record), `unloadable` says why nothing could be loaded. Of an array: `given_up` tasks, and `tasks`, the
    diagnoses of those that stand for all.

    The nodes: `nodes` is what they say of themselves at `now_s` (Unix seconds), `silent` those that do not
    answer a step, `gone` companions that are over.

    `suspicion` is why ftrun ended it (None = it did not, or for no fault); `rank_ended`: one of its ranks
    had ended by itself before. `told_inside` is the diagnosis that the agent inside the job had journalled
    of this very end before it died.
    """

    evidence: Sequence[Evidence]
    topology: Topology
    catalog: Catalog
    ended: Ended | None = None
    progress: Progress | None = None
    resumed: Resumed | None = None
    last_words: tuple[Proof, ...] = ()
    attempt: Attempt | None = None
    requeues: bool = True
    wish: str = ""
    near_limit: bool = False
    refusal: Refusal | None = None
    held: Held | None = None
    held_file: str = ""
    unloadable: str = ""
    given_up: tuple[GivenUp, ...] = ()
    tasks: tuple[Diagnosis, ...] = ()
    nodes: NodeFacts = field(default_factory=NodeFacts)
    now_s: float = 0.0
    silent: tuple[str, ...] = ()
    gone: tuple[Gone, ...] = ()
    suspicion: Diagnosis | None = None
    rank_ended: bool = False
    told_inside: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """ftrun ended it."""
        return self.ended is not None and self.ended.by_us


@dataclass(frozen=True, slots=True)
class Case:
    """The facts of one diagnosis: `log` is their evidence weighed by the catalog, `topology` with what the evidence tells of it."""

    facts: Facts
    log: RankedEvidence
    topology: Topology

    @property
    def ended(self) -> Ended | None:
        """How the launch ended; None where it lives, or nothing is on record."""
        return self.facts.ended

    @property
    def progress(self) -> Progress | None:
        """The steps that the log has."""
        return self.facts.progress

    @property
    def trained(self) -> bool:
        """Steps were printed."""
        return self.progress is not None and self.progress.steps_seen > 0

    @property
    def down(self) -> tuple[str, ...]:
        """The nodes of the attempt that Slurm calls down or not responding."""
        names = self.ended.nodes_down if self.ended else ()
        if not self.topology.nodes:
            return names
        return tuple(dict.fromkeys(node for name in names if (node := self.topology.node_of(name))))


def case_of(facts: Facts) -> Case:
    """The same facts with their evidence in order and weighed."""
    evidence = blame.recorded(as_written(facts.evidence))
    topology = blame.learned(evidence, facts.topology)
    return Case(facts, rank_evidence(evidence, facts.catalog, facts.ended), topology)
