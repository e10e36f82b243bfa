"""Everything that one diagnosis rests on, as one frozen value. (pure)

The supervisor (`controller/gather_facts`) and the agent inside a job (`policy/start_decision`) each build
`Facts` in one place and leave empty what they cannot know. `evidence.case_of` ranks the evidence; the rules
read only the resulting `Case`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.node_findings import NodeFacts
from ftrun.supervisor.model.types import Diagnosis, Evidence, Opinion, Proof, Topology

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.checkpoint_blame import ResumedCheckpoint
    from ftrun.supervisor.diagnosis.log_text import TextLine
    from ftrun.supervisor.model.run import Attempt, GivenUpTasks
    from ftrun.supervisor.model.types import PrelaunchHold
    from ftrun.supervisor.signatures.catalog import Catalog
    from ftrun.supervisor.signatures.grammar import Grammar
    from ftrun.supervisor.telemetry.progress import Progress


@dataclass(frozen=True, slots=True)
class SbatchRefusal:
    """sbatch refused an attempt. `for_good`: it would refuse the same request again, and nothing that ftrun
    added can be the reason.
    """

    message: str
    for_good: bool
    run: str


@dataclass(frozen=True, slots=True)
class LostCompanion:
    """A companion that is over and whose nodes the start used. `words` say how that is known."""

    nodes: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one launch, or of one start of it.

    The log: `evidence` in any order (signatures that the catalog does not know are ignored), `topology`,
    `progress`, and `resumed`, the checkpoint that the start loaded. `last_words` are the lines of an
    unexplained end that a person should read, `text` the first and last lines of its logs as they
    stand, and `grammar` how to read them.

    The end: `ended` (None = still alive, or a text without a record). `attempt` is the run's journal of it,
    `requeues` whether Slurm requeues a job that lost a node, `wish` what a person asked for, `near_limit`
    whether ftrun had asked the job to save because its time limit was near. `end_offsets`: log -> its bytes
    when ftrun began to end the start; what stands behind is no cause (P7). `forgotten`: Slurm does not know the
    job any more, too soon to have forgotten one that ended.

    Ends without a start of the script: `refusal` by sbatch; `no_log_folder`, the folder of the job's output
    that does not exist; `held` by the checks before the script
    (`held_file` is their record); `unloadable` says why no checkpoint could be loaded, `hook_hold` how the
    user's pre-hook failed, where that keeps the script from starting. For an array: the
    `given_up` tasks, and `tasks`, the diagnoses of the tasks that stand for all.

    The nodes: `nodes` is what their reports say at `now_s` (Unix seconds), `silent` the nodes that do not
    answer a step, `gone` the companions that are over. `suspects`: node -> the arithmetic by which failures
    for no known cause follow it (`nodes/repeat_failures`).

    `suspicion` is why ftrun ended the start (None = it did not, or not for a fault). `rank_ended`: one rank
    had ended by itself before that. `told_inside` is the diagnosis of this end that the agent inside the job
    journalled before it died. `second_opinion` is what a model said that the user named.
    """

    evidence: Sequence[Evidence]
    topology: Topology
    catalog: Catalog
    ended: Ended | None = None
    progress: Progress | None = None
    resumed: ResumedCheckpoint | None = None
    last_words: tuple[Proof, ...] = ()
    text: tuple[TextLine, ...] = ()
    grammar: Grammar | None = None
    attempt: Attempt | None = None
    requeues: bool = True
    wish: str = ""
    near_limit: bool = False
    end_offsets: Mapping[str, int] = field(default_factory=dict)
    forgotten: bool = False
    refusal: SbatchRefusal | None = None
    held: PrelaunchHold | None = None
    held_file: str = ""
    unloadable: str = ""
    hook_hold: str = ""
    no_log_folder: str = ""
    given_up: tuple[GivenUpTasks, ...] = ()
    tasks: tuple[Diagnosis, ...] = ()
    nodes: NodeFacts = field(default_factory=NodeFacts)
    now_s: float = 0.0
    silent: tuple[str, ...] = ()
    gone: tuple[LostCompanion, ...] = ()
    suspects: Mapping[str, str] = field(default_factory=dict)
    suspicion: Diagnosis | None = None
    rank_ended: bool = False
    told_inside: Mapping[str, Any] = field(default_factory=dict)
    second_opinion: Opinion | None = None
