"""How much a node looks like a lemon: one that keeps failing jobs although every check passes it. (pure)

The signals are those that Meta found to correlate with lemons on two research clusters ("Revisiting
Reliability in Large-Scale Machine Learning Research Clusters", Kokolis, Kuchnik and others, HPCA 2025,
arXiv:2410.21680, section IV): how many jobs excluded the node, its distinct Xid errors, repair tickets, how
often it was taken out of the scheduler, multi-node job failures that it alone caused, failures of jobs on
it alone, and their share of the jobs on it alone; over 28 days. They also found that exclusions by
themselves hardly correlate with failures, so these weigh least here. The paper gives no weights: they are
ours, and so is the added signal of a relapse after a recheck.

    score = sum over the signals of weight x min(count, most), and 2 x the share

Faults of the switch, the job or the cluster do not count. A lemon has a score of 6 or more from at least
two runs: what one job's log claims is not enough.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes.history import NodeRecord, strike_key

WINDOW_S = 28 * 86_400.0
LEMON_AT = 6.0
RUNS_LEAST = 2
SHARE_WEIGHT = 2.0
SHARE_OF_LEAST = 3  # fewer launches on the node alone give no share

# signal -> (weight, the highest count that adds to the score)
WEIGHTS: Mapping[str, tuple[float, int]] = {
    "exclusions": (0.5, 4),
    "fault_kinds": (1.0, 4),
    "left_for_a_person": (1.5, 2),
    "outs": (1.5, 4),
    "multi_node_fails": (2.0, 4),
    "single_node_fails": (1.0, 4),
    "lies": (2.0, 2),
}


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one node, with the counts that make it. `share` is 0..1."""

    node: str
    score: float
    lemon: bool
    runs: int
    signals: Mapping[str, int]
    share: float


def score(record: NodeRecord, now_s: float) -> Score:
    """The score of a node now, from the last 28 days."""
    recent = [e for e in record.history if now_s - WINDOW_S <= e.at_s <= now_s]
    own = [e for e in recent if not e.by and strike_key(e) not in record.common]
    struck = (e for e in own if e.what == "incident" and e.detail.get("strike") is True)
    incidents = list({strike_key(entry): entry for entry in struck}.values())
    signals = {
        "exclusions": len({e.run for e in own if e.what == "excluded"}),
        "fault_kinds": len({e.signature or e.fault for e in incidents}),
        "left_for_a_person": sum(e.what == "left" for e in own),
        "outs": sum(e.what == "drained" for e in recent),
        "multi_node_fails": sum(_width(e) > 1 and len(e.nodes) == 1 for e in incidents),
        "single_node_fails": sum(_width(e) == 1 for e in incidents),
        "lies": record.lies,
    }
    launches = sum(now_s - WINDOW_S <= at_s <= now_s for at_s in record.alone)
    share = min(1.0, signals["single_node_fails"] / launches) if launches >= SHARE_OF_LEAST else 0.0
    total = SHARE_WEIGHT * share
    for name, count in signals.items():
        weight, most = WEIGHTS[name]
        total += weight * min(count, most)
    runs = len({e.run for e in own if e.run and e.what in ("incident", "excluded", "drained")})
    lemon = total >= LEMON_AT and runs >= RUNS_LEAST
    return Score(record.node, round(total, 2), lemon, runs, signals, round(share, 3))


def _width(entry: NodeEntry) -> int:
    """How many nodes the attempt had; 0 where the entry does not say."""
    nodes = entry.detail.get("attempt_nodes", 0)
    return nodes if isinstance(nodes, int) else 0
