"""A scenario: how large, how long, what breaks how often, what each thing costs. (pure)

Published figures are kept as published (counts over nodes and days, or a rate). What is unknown is a
quantity with an assumed default that says so. All quantities are rows of one table, so a preset, a user's
file and the command line follow the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config import settings
from ftrun.supervisor.config.node_counts import SIZES_MAX
from ftrun.supervisor.config.table import DURATION, INT, NUMBER, SHARE, Setting
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.errors import SettingError
from ftrun.supervisor.model.types import FaultClass

DAYS_MAX = 3_650.0

# fmt: off
ROWS = (
    Setting("nodes", INT, 2048, "Nodes that the training uses.", least=1),
    Setting("days", NUMBER, 30.0, "How long it is followed, in days.", least=0.01),
    Setting("checkpoint-every", DURATION, 600.0, "Useful work between two checkpoints. Assumed.", least=1),
    Setting("checkpoint-cost", DURATION, 15.0, "How long training stands still for one. Assumed."),
    Setting("copy-lag", DURATION, 0.0, "How long a save is only in the memory of its own node: a node that is lost takes it along."),
    Setting("step", DURATION, 10.0, "Seconds a step. Assumed; it decides little.", least=0.001),
    Setting("launch", DURATION, "", "From the start of the script to its first new step: processes, collectives, loading the checkpoint."
            " Default: 60 s and 0.05 s for each node. Assumed."),
    Setting("new-job", DURATION, 60.0, "What a new job takes beyond a restart inside the allocation: prolog, containers, cold caches. Assumed."),
    Setting("queue", DURATION, 120.0, "Mean wait of a job that comes back while enough nodes are free; exponential. Assumed."),
    Setting("contended", SHARE, 0.5, "Share of the time in which other jobs wait for nodes: then a companion waits, too, so long that all wait"
            " `queue` on average, and no run grows. Assumed."),
    Setting("requeue", DURATION, 121.0, "Pause before a job that was requeued may start again: measured on Slurm 22.05."),
    Setting("idle", INT, "", "Nodes of the cluster beyond those of the training: spares come out of these. Default: one for 64 nodes,"
            " 4 at least. Assumed."),
    Setting("repair", DURATION, 86_400.0, "Mean time until a broken node is back, once it is known; exponential. Assumed."),
    Setting("found", DURATION, 3_600.0, "Mean time until the site itself finds a broken node that still answers, and drains it;"
            " exponential. Assumed."),
    Setting("reboot", DURATION, 900.0, "How long a node is away that crashed and is not broken. Assumed."),
    Setting("rack", INT, 0, "Nodes below one switch, or on one power supply, that can fail together. 0: none do."),
    Setting("rack-every", DURATION, 31_536_000.0, "Mean time between two faults of one rack; exponential. Each takes all of its nodes, spares included."
            " Assumed.", least=1),
    Setting("rack-repair", DURATION, 14_400.0, "Mean time until a rack that failed is back with all its nodes; exponential. Assumed."),
    Setting("relapse", DURATION, 300.0, "Mean time until a broken node that is used again fails again; exponential. Assumed.", least=1),
    Setting("reaction", DURATION, 3_600.0, "Mean time until a person has seen that a run is over, found out why, and started it again,"
            " nights and weekends included; exponential. Assumed."),
    Setting("lost-after", DURATION, 300.0, "How long Slurm needs to notice a dead node: its SlurmdTimeout, by default 300 s.", least=1),
    Setting("watchdog", DURATION, 600.0, "How long a hang lasts until the collectives give up: PyTorch's default for NCCL is 10 minutes.", least=1),
    Setting("in-place-step", DURATION, "", "From a fault until the script runs again on the same nodes. Default: 2.9 s (docs/benchmarks.md:"
            " 3.4 s less the first step), times the binary logarithm of the nodes."),
    Setting("in-place-swap", DURATION, "", "The same with a spare in a node's place. Default: 3.8 s (4.2 s less the first step), scaled alike."),
)
# fmt: on

QUANTITIES: Mapping[str, Setting] = {row.key: row for row in ROWS}
_CAUSE_SHARES = {"lasts": 0.0, "named": 0.9}
_CAUSE_KEYS = ("name", "class", "count", "lost", *_CAUSE_SHARES)
_TOP_KEYS = ("title", "source", "observed", "cause", "causes-of", *QUANTITIES)
_STEP_S, _SWAP_S = 2.9, 3.8
STAGED_PAUSE_S = 0.67
"""The pause of a save into memory, 1 GiB a rank, and how many times quicker memory is read than the disk: docs/stage-proofs.md."""
READ_SPEEDUP = 3.6
_NODES_OF = frozenset(
    {FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER, FaultClass.NODE, FaultClass.NETWORK, FaultClass.HANG}
)
_NEVER = frozenset({FaultClass.HEALTHY, FaultClass.CANCELLED, FaultClass.PREEMPTED, FaultClass.TIMELIMIT})


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that breaks. `per_node_day`: events; `lost`: the node no longer answers.

    `lasts`: the share in which the node stays broken until it is repaired; `named`: the share in which the
    diagnosis names the node.
    """

    name: str
    fault: FaultClass
    per_node_day: float
    lasts: float = 0.0
    named: float = 0.9
    lost: bool = False
    rack: bool = False  # it takes all nodes of the rack

    @property
    def of_a_node(self) -> bool:
        """Whether a node is to blame, known or not."""
        return self.fault in _NODES_OF


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a simulation rests on, in seconds; `given`: the quantities as they were written."""

    causes: tuple[Cause, ...]
    given: Mapping[str, float]
    title: str = ""
    source: str = ""

    def __getitem__(self, key: str) -> float:
        """The quantity of this name, times in seconds; those that depend on the size are computed."""
        if key in self.given:
            return self.given[key]
        default = QUANTITIES[key].default
        return float(default) if isinstance(default, int | float) else self._by_size(key)

    def _by_size(self, key: str) -> float:
        scale = max(1.0, math.log2(self.nodes))
        return {
            "launch": 60.0 + 0.05 * self.nodes,
            "idle": float(max(4, self.nodes // 64)),
            "in-place-step": _STEP_S * scale,
            "in-place-swap": _SWAP_S * scale,
        }[key]

    @property
    def nodes(self) -> int:
        """Nodes that the training uses."""
        return int(self["nodes"])

    @property
    def faults_a_second(self) -> float:
        """Faults per second of the whole training, all causes together."""
        return sum(cause.per_node_day for cause in self.causes) * self.nodes / 86_400.0

    @property
    def between_s(self) -> float:
        """Mean time between two faults while it runs; infinite where nothing breaks."""
        return 1.0 / self.faults_a_second if self.causes else math.inf


def quantity(key: str, given: Any) -> float:
    """The value of one quantity. Raises SettingError, with the nearest name for an unknown one."""
    row = QUANTITIES.get(key)
    if row is None:
        near = errors.nearest_word(key, QUANTITIES)
        raise SettingError(f"no quantity is called {key!r}" + (f"; did you mean {near!r}?" if near else ""))
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise SettingError(f"{key}: one value is wanted, not {given!r}")
    value = float(settings.parse_number(row, given))
    most = {"nodes": float(SIZES_MAX), "idle": float(SIZES_MAX), "days": DAYS_MAX}.get(key, math.inf)
    if value > most:
        raise SettingError(f"{key}: at most {most:g}")
    return value


def scenario_from(table: Mapping[str, Any], *, causes: tuple[Cause, ...] = ()) -> Scenario:
    """A scenario from a TOML table; `causes` are those that `causes-of` names. Raises SettingError."""
    _only("scenario", table, _TOP_KEYS)
    given = {key: quantity(key, value) for key, value in table.items() if key in QUANTITIES}
    rows = table.get("cause", [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise SettingError("scenario: [[cause]] is wanted, a table for each cause")
    listed = [_cause(row) for row in rows] or list(causes)
    if not listed:
        raise SettingError("scenario: nothing breaks in it; write [[cause]] or causes-of")
    scale = _scale(table.get("observed"), sum(one.per_node_day for one in listed), fresh=bool(rows))
    rated = (
        Cause(one.name, one.fault, one.per_node_day * scale, one.lasts, one.named, one.lost) for one in listed
    )
    found = Scenario(tuple(rated), given, str(table.get("title", "")), str(table.get("source", "")))
    return replace(found, causes=(*found.causes, _of_racks(found))) if found["rack"] > 1 else found


def _of_racks(scenario: Scenario) -> Cause:
    """Each rack fails once in `rack-every`, wherever in it the fault is told of first."""
    per_node_day = 86_400.0 / scenario["rack-every"] / scenario["rack"]
    return Cause("rack", FaultClass.NODE, per_node_day, lasts=1.0, named=1.0, lost=True, rack=True)


def _cause(row: Mapping[str, Any]) -> Cause:
    """A cause whose rate is still its plain count."""
    name = str(row.get("name", ""))
    place = f"cause {name!r}"
    _only(place, row, _CAUSE_KEYS)
    words = [fault.value for fault in FaultClass if fault not in _NEVER]
    if row.get("class") not in words:
        near = errors.nearest_word(str(row.get("class", "")), words)
        raise SettingError(f"{place}: class is a fault class" + (f"; did you mean {near!r}?" if near else ""))
    shares = {
        key: float(
            settings.parse_number(Setting(f"{place}: {key}", SHARE, default, ""), row.get(key, default))
        )
        for key, default in _CAUSE_SHARES.items()
    }
    count = float(settings.parse_number(Setting(f"{place}: count", NUMBER, 0.0, ""), row.get("count", 0)))
    return Cause(
        name, FaultClass(row["class"]), count, shares["lasts"], shares["named"], row.get("lost") is True
    )


def _scale(observed: Any, counted: float, *, fresh: bool) -> float:
    """The factor that turns counts into events per node and day."""
    if observed is None and not fresh:
        return 1.0
    if not isinstance(observed, Mapping):
        raise SettingError(
            "scenario: [observed] is wanted: nodes and days of the counts, or per-1000-node-days"
        )
    _only("observed", observed, ("nodes", "days", "per-1000-node-days"))
    known = {
        key: float(settings.parse_number(Setting(f"observed: {key}", NUMBER, 0.0, ""), value))
        for key, value in observed.items()
    }
    if not counted:
        raise SettingError("scenario: no cause has a count above 0")
    if known.get("per-1000-node-days"):
        return known["per-1000-node-days"] / 1000.0 / counted
    if not known.get("nodes") or not known.get("days"):
        raise SettingError("observed: nodes and days are wanted, both above 0, or per-1000-node-days")
    return 1.0 / (known["nodes"] * known["days"])


def _only(place: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            near = errors.nearest_word(str(key), known)
            raise SettingError(
                f"{place}: unknown key {key!r}" + (f"; did you mean {near!r}?" if near else "")
            )
