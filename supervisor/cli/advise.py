"""`ftrun advise`: what a run's own history says about its checkpoints, spares and sizes. (I/O)

A run of a week has met a handful of faults, so its own fault rate is uncertain, and advice must not hide
that. `advise` prints the measured rate with its exact 95 % interval, and each choice at that rate and at both
ends of the interval. A run without a fault gets the rate of a published training (`policy.estimates`).

The cost of a restart is the median of the run's own incidents, by rung; for a rung that was never used it is
the default of `ftrun simulate`. The expected share of useful time is Daly's. Spares are used one by one and
come back with a new job, so of each K + 1 faults of a node one pays for the queue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Annotated

from ftrun.hooks.checkpoints import names as checkpoints_names
from ftrun.hooks.runtime.formats import duration_text
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, Name, option
from ftrun.supervisor.config import settings
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.model.errors import SettingError, UserError
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.policy import elastic, estimates
from ftrun.supervisor.policy.estimates import PRIOR, PRIOR_EVENTS, PRIOR_NODE_DAYS, node_hours
from ftrun.supervisor.policy.ladder import NODE_BOUND
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.simulator.formulas import daly_s, rate_interval, useful_share, young_s
from ftrun.supervisor.simulator.scenario import READ_SPEEDUP, STAGED_PAUSE_S, Scenario, quantity
from ftrun.supervisor.store import checkpoints, submission_context
from ftrun.supervisor.submission import in_allocation

PRIOR_NODE_SHARE = 0.8
"""The share of the prior's faults that are faults of a node."""

SPARES = (0, 1, 2, 4, 8)
SPARE_WAIT_S = 270.0
SHORT_NODE_HOURS = 1.0
"""Below these node-hours a report says nothing of spares, intervals and queues: two minutes prove no rate."""

HANG_SHARE = 0.02
"""The share of hangs in the published faults (`ftrun simulate`)."""
WORTH_LEAST = 0.0001
GAPS_MIN = 3
LEAST_S = 0.001
FEW = ": too few to know their rate well; ask again when there are more"


@dataclass(frozen=True, slots=True)
class Rate:
    """How often one fault class occurred: faults per 1,000 node-days with the exact 95 % interval."""

    fault: str
    events: int
    rate: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds, where they come from, and of how many values they are the median (0: assumed or given)."""

    seconds: float
    source: str
    count: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointTiming:
    """Of the checkpoints on disk: work between two, cost of one (None: unknown), number of gaps."""

    work_s: float
    cost_s: float | None
    gaps: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One option. Shares of 0..1: `goodput` at the expected rate, `least` and `most` at the ends of its
    interval; `of_all` counts spares as nodes.

    `gained_hours`: the useful node-hours a day that its spares add, against none; `paid_hours`: what the
    spares cost.
    """

    name: str
    goodput: float
    least: float
    most: float
    of_all: float
    spares: int
    every_s: float
    gained_hours: float
    paid_hours: float


@dataclass(frozen=True, slots=True)
class Lack:
    """What the run does not do about faults, by which option it would, and what that alone would add to its goodput."""

    name: str
    option: str
    gain: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for one run. `between_s`: expected time between two faults, with its interval."""

    run: str
    nodes: int
    node_hours: float
    rates: tuple[Rate, ...]
    reckoned: (
        float  # faults per 1,000 node-days: the measured rate, or that of the prior where there was no fault
    )
    between_s: tuple[float, float, float]
    young_s: float
    best_every_s: float
    figures: Mapping[str, Figure]
    choices: tuple[Choice, ...]
    best_spares: int
    lacks: tuple[Lack, ...]  # what is worth most first
    words: tuple[str, ...]


def make_advice(
    run: Run,
    now_s: float,
    *,
    nodes: int,
    saved: CheckpointTiming | None = None,
    cost_s: float | None = None,
    every_s: float | None = None,
    seen: bool = True,
) -> Advice:
    """The advice for a run. `saved`: timing of its checkpoints; `cost_s`, `every_s`: given by the user; `seen`:
    whether it has any checkpoint.
    """
    hours = node_hours(run, now_s)
    rates_of = fault_rates(run, hours)
    events = rates_of[0].events
    met, days = estimates.faults_with_prior(events, hours)
    reckoned = met / days * 1000.0
    least, most = rate_interval(met, days)
    between_s = _between(reckoned, nodes), _between(most * 1000.0, nodes), _between(least * 1000.0, nodes)
    never = 0.0 if seen or every_s is not None else max(LEAST_S, hours * 3600.0 / nodes)
    figures = _figures(run, nodes, saved, cost_s, every_s, never_s=never)
    share = _node_share(run)
    best_s = max(LEAST_S, daly_s(figures["checkpoint cost"].seconds, between_s[0]))
    have = int(run.settings.get("spares") or 0)

    cost = figures["checkpoint cost"].seconds

    def choice(name: str, spares: int, interval_s: float, queue_s: float = 0.0) -> Choice:
        restart_s = _restart_s(figures, spares, share, queue_s)
        one, low, high = (useful_share(interval_s, cost, span, restart_s) for span in between_s)
        bare = useful_share(interval_s, cost, between_s[0], _restart_s(figures, 0, share, queue_s))
        of_all, gained = one * nodes / (nodes + spares), (one - bare) * nodes * 24.0
        return Choice(name, one, low, high, of_all, spares, interval_s, gained, spares * 24.0)

    choices = [choice("as it is", have, figures["checkpoint interval"].seconds)]
    choices.append(choice("best interval", have, best_s))
    choices += [choice(f"best interval, {_spares(count)}", count, best_s) for count in SPARES]
    shrink_s = _shrink_gain_s(run)
    if shrink_s is not None:
        choices.append(choice("best interval, smaller at once", have, best_s, shrink_s))
    best = max(choices[2 : 2 + len(SPARES)], key=lambda one: (one.of_all, -one.spares))
    return Advice(
        run=run.id,
        nodes=nodes,
        node_hours=hours,
        rates=rates_of,
        reckoned=reckoned,
        between_s=between_s,
        young_s=young_s(figures["checkpoint cost"].seconds, between_s[0]),
        best_every_s=best_s,
        figures=figures,
        choices=tuple(choices),
        best_spares=best.spares,
        lacks=_lacks(run, figures, between_s[0], share, best.spares),
        words=(
            *([_unseen(run)] if never else []),
            *_advice_lines(run, events, hours, choices, best, seen=not never),
            *_growth_advice(run, nodes, figures, now_s),
        ),
    )


# ---------------------------------------------------------------------- how often


def fault_rates(run: Run, hours: float) -> tuple[Rate, ...]:
    """The rates of faults that may recur by chance: of all together, then by class, most frequent first."""
    counted = estimates.random_faults(run)
    names = sorted(set(counted), key=lambda name: (-counted.count(name), name))
    return tuple(
        _rate(name, len(counted) if name == "all" else counted.count(name), hours) for name in ("all", *names)
    )


def _rate(name: str, events: int, hours: float) -> Rate:
    days = hours / 24.0
    least, most = rate_interval(events, days)
    return Rate(name, events, events / days * 1000.0 if days else 0.0, least * 1000.0, most * 1000.0)


def _between(per_1000_node_days: float, nodes: int) -> float:
    rate = per_1000_node_days * nodes / 1000.0 / 86_400.0
    return 1.0 / rate if rate else math.inf


def _node_share(run: Run) -> float:
    """The share of faults that exclude a node; one fault of the prior is counted as well."""
    counted = estimates.random_faults(run)
    own = sum(name in NODE_BOUND for name in counted)
    return (own + PRIOR_NODE_SHARE) / (len(counted) + 1)


# ---------------------------------------------------------------------- what it costs


def checkpoint_timing(saves: Sequence[tuple[int, float]], step_s: float | None) -> CheckpointTiming | None:
    """The timing of checkpoints (step, written at); None for fewer than four.

    The steps between two checkpoints take `step_s` each; the rest of the time between them is the cost. A
    fault makes one gap long, which does not change the median.
    """
    ordered = sorted(saves)
    gaps = [
        (step - before, at - earlier)
        for (before, earlier), (step, at) in pairwise(ordered)
        if step > before and at > earlier
    ]
    if len(gaps) < GAPS_MIN:
        return None
    if step_s is None:
        return CheckpointTiming(median(seconds for _, seconds in gaps), None, len(gaps))
    work_s = median(steps * step_s for steps, _ in gaps)
    cost_s = median(seconds - steps * step_s for steps, seconds in gaps)
    return CheckpointTiming(work_s, cost_s if cost_s > 0.0 else None, len(gaps))


def _figures(
    run: Run,
    nodes: int,
    saved: CheckpointTiming | None,
    cost_s: float | None,
    every_s: float | None,
    *,
    never_s: float,
) -> Mapping[str, Figure]:
    """`never_s`: how long a run that never saved has worked; 0 for one that did."""
    assumed = Scenario((), {"nodes": float(nodes)})
    default = "assumed, as in ftrun simulate"
    every = Figure(assumed["checkpoint-every"], default)
    cost = Figure(assumed["checkpoint-cost"], default)
    if saved is not None:
        every = Figure(saved.work_s, "from the checkpoints on disk", saved.gaps)
        if saved.cost_s is not None:
            cost = Figure(saved.cost_s, "from the checkpoints on disk, beyond the usual steps", saved.gaps)
    if never_s:
        every = Figure(never_s, "no checkpoint was seen: all its work so far")
    if every_s is not None:
        every = Figure(every_s, "given")
    if cost_s is not None:
        cost = Figure(max(cost_s, LEAST_S), "given")
    launch_s = assumed["launch"]
    rungs = {
        "step": assumed["in-place-step"] + launch_s,
        "swap": assumed["in-place-swap"] + launch_s,
        "resubmit": assumed["queue"] + assumed["new-job"] + launch_s,
    }
    measured = _restarts(run)
    restarts = {
        f"restart by {rung}": Figure(median(measured[rung]), "measured", len(measured[rung]))
        if measured.get(rung)
        else Figure(seconds, default)
        for rung, seconds in rungs.items()
    }
    return {"checkpoint interval": every, "checkpoint cost": cost, **restarts}


def _restarts(run: Run) -> dict[str, list[float]]:
    """Rung -> seconds from the first sign of a fault to the first new step, else to the next start."""
    found: dict[str, list[float]] = {}
    for incident, facts in ((one, view_run.incident_facts(one)) for one in run.incidents):
        began = incident.began_at_s
        ended = incident.first_step_at_s or incident.running_again_at_s
        if facts["rung"] and ended is not None and ended >= began:
            found.setdefault(facts["rung"], []).append(ended - began)
    return found


def _queues(run: Run) -> list[float]:
    """Seconds from each decision for a new job until it ran."""
    facts = (view_run.incident_facts(one) for one in run.incidents)
    waits = (one["seconds"]["decision_to_running"] for one in facts if one["rung"] == "resubmit")
    return [wait for wait in waits if wait is not None]


def _shrink_gain_s(run: Run) -> float | None:
    """How much less (<= 0) a new job would wait if it started smaller; None if none waited so long."""
    waits = _queues(run)
    if not any(wait > SPARE_WAIT_S for wait in waits):
        return None
    return sum(min(wait, SPARE_WAIT_S) - wait for wait in waits) / len(waits)


def _restart_s(figures: Mapping[str, Figure], spares: int, share: float, queue_s: float) -> float:
    """The mean cost of a restart. With K spares, K of each K + 1 faults of a node are swapped."""
    again_s = max(0.0, figures["restart by resubmit"].seconds + queue_s)
    swapped = spares / (spares + 1)
    own_s = swapped * figures["restart by swap"].seconds + (1.0 - swapped) * again_s
    return share * own_s + (1.0 - share) * figures["restart by step"].seconds


def _lacks(
    run: Run, figures: Mapping[str, Figure], between_s: float, share: float, best_spares: int
) -> tuple[Lack, ...]:
    """What the run lacks of what `ftrun simulate --waterfall` shows, each alone, at the expected rate."""
    chosen = {**settings.defaults(), **run.settings}
    have, assumed = int(chosen["spares"] or 0), Scenario((), {})
    cost_s, every_s = figures["checkpoint cost"].seconds, figures["checkpoint interval"].seconds
    again_s, step_s, swap_s = (figures[f"restart by {rung}"].seconds for rung in ("resubmit", "step", "swap"))
    restart_s = _restart_s(figures, have, share, 0.0)
    now = useful_share(every_s, cost_s, between_s, restart_s)
    found: list[tuple[str, str, float]] = []

    def add(
        name: str, option: str, *, shorter_s: float = 0.0, cost: float = cost_s, every: float = every_s
    ) -> None:
        found.append(
            (name, option, useful_share(every, cost, between_s, max(0.0, restart_s - shorter_s)) - now)
        )

    if not chosen["stage"]:
        pause_s = min(STAGED_PAUSE_S, cost_s)
        often_s = max(LEAST_S, min(every_s, daly_s(pause_s, between_s)))
        option = f"--ft-stage=FOLDER, and a save every {often_s:.0f} s"
        add("saves into memory, partner copies", option, cost=pause_s, every=often_s)
        add("resume from memory", "--ft-stage=FOLDER", shorter_s=cost_s * (1.0 - 1.0 / READ_SPEEDUP))
    in_place = chosen["agent"] != "never" and chosen["recover"] != "resubmit"
    if not in_place:
        shorter_s = (1.0 - share) * max(0.0, again_s - step_s)
        add("restart in place", "--ft-recover and --ft-agent as by default", shorter_s=shorter_s)
    elif not have:
        count = best_spares or 1
        shorter_s = restart_s - _restart_s(figures, count, share, 0.0)
        add(_spares(count), f"--ft-spares={count}", shorter_s=shorter_s)
    elif chosen["spares-refill"] == "never":
        shorter_s = share / (have + 1) * max(0.0, again_s - swap_s)
        add("spares that queue before they are needed", "--ft-spares-refill=auto", shorter_s=shorter_s)
    if chosen["hang"] == "never":
        shorter_s = HANG_SHARE * max(0.0, assumed["watchdog"] - float(chosen["hang-min"]))
        add("detection of hangs in seconds", "--ft-hang=auto", shorter_s=shorter_s)
    worth = (Lack(*one) for one in sorted(found, key=lambda one: -one[2]))
    return tuple(one for one in worth if one.gain >= WORTH_LEAST)


# ---------------------------------------------------------------------- in words


def _unseen(run: Run) -> str:
    """The first thing to do for a run of which no checkpoint was seen."""
    pattern = str(run.settings.get("checkpoint") or "")
    where = f"nothing matches {pattern}" if pattern else "no setting says where it saves"
    return (
        f"no checkpoint of this run was seen ({where}), so a fault loses all its work: have the script save, and"
        " submit it with --ft-checkpoint='GLOB' --ft-resume-arg='--resume={checkpoint}'"
    )


def _advice_lines(
    run: Run, events: int, hours: float, choices: Sequence[Choice], best: Choice, *, seen: bool
) -> tuple[str, ...]:
    now, better = choices[0], choices[1]
    prior = f"{PRIOR_EVENTS} faults in {PRIOR_NODE_DAYS:,} node-days of {PRIOR}"
    if not events:
        told = [
            f"no fault in {hours:,.1f} node-hours yet: the rate is that of one fault in these node-hours added to a published training ({prior})"
        ]
    else:
        count = "1 fault" if events == 1 else f"{events} faults"
        told = [f"{count} in {hours:,.1f} node-hours" + FEW * (events < 10)]
    gain = better.goodput - now.goodput
    if gain > 0.002:
        instead = f"instead of {now.every_s:.0f}" if seen else "instead of none"
        told.append(f"a checkpoint every {better.every_s:.0f} s of work {instead}: {gain:+.1%}")
    else:
        kept = "is good as it is" if seen else "hardly matters yet: it has worked for too short a time"
        told.append(f"the interval between checkpoints {kept}")
    if best.spares:
        told.append(f"{_spares(best.spares)}: the best share of all node-hours, the spares' own included")
    else:
        told.append(
            "no spare pays for its own node-hours at this rate; each of them still shortens a recovery"
        )
    waits = _queues(run)
    if not waits:
        told.append("elastic or not: not measured, no new job had to wait for nodes yet")
    else:
        long = sum(wait > SPARE_WAIT_S for wait in waits)
        told.append(
            f"elastic: {long} of {len(waits)} new jobs waited longer than {SPARE_WAIT_S:.0f} s; "
            + ("a smaller start would have saved the rest" if long else "there was nothing to be saved")
        )
    return tuple(told)


def _growth_advice(run: Run, nodes: int, figures: Mapping[str, Figure], now_s: float) -> tuple[str, ...]:
    """How many nodes must come back at once before a restart of the others pays; () for a run of one size.

    It uses the figures by which the run itself decides: every restart inside its job, and one fault of the
    prior.
    """
    sizes = sizes_of_settings(run.settings)
    if sizes is None or nodes <= sizes.all[0]:
        return ()
    between_s = estimates.fault_interval_s(run, now_s, nodes)
    restart_s = estimates.restart_s(run) or figures["restart by step"].seconds
    price_s = elastic.MARGIN * nodes * (restart_s + elastic.LOST_S)
    few = max(1, math.ceil(price_s / between_s))
    if few > nodes - sizes.all[0]:
        return (
            "growing: it pays at no size of this run; it comes back to full size by restarts that are made anyway",
        )
    come = "one node that comes back pays" if few == 1 else f"{few} nodes that come back at once pay"
    return (f"growing: {come} a restart of the others, {price_s / few / 60.0:.0f} min later at the latest",)


def _spares(count: int) -> str:
    return "1 spare" if count == 1 else f"{count or 'no'} spares"


Cost = Annotated[str, option("--checkpoint-cost", "Duration of a checkpoint, if you know it better.", "TIME")]
Every = Annotated[
    str, option("--checkpoint-every", "Work between two checkpoints, if you know it better.", "TIME")
]
Nodes = Annotated[str, option("--nodes", "Advise for this number of nodes instead.", "N")]


def advise(name: Name, cost: Cost = "", every: Every = "", nodes: Nodes = "", json: Json = False) -> int:
    """Advise on a run: the best interval between checkpoints, how many spares, and the gain of each choice.

    The advice rests on the run's own faults, phases and checkpoints. With few of them the intervals are wide;
    without a fault a published rate is used.
    """
    run_dir, run = common.find_run(name)
    try:
        cost_s = quantity("checkpoint-cost", cost) if cost else None
        every_s = quantity("checkpoint-every", every) if every else None
        wanted = int(quantity("nodes", nodes)) if nodes else _nodes(run_dir, run)
    except SettingError as error:
        raise UserError(f"--{error}") from None
    if not wanted:
        raise UserError(f"{run.id} has not had nodes yet; give their number: --nodes=N", 1)
    found = _advice(run_dir, run, wanted, cost_s, every_s)
    if json:
        common.print_json(asdict(found))
    else:
        _show(found)
    return 0


def advice_words(run_dir: str, run: Run) -> tuple[str, ...]:
    """The advice for a run, a sentence each; () before it has had nodes. A short run says nothing of rates."""
    nodes = _nodes(run_dir, run)
    if not nodes:
        return ()
    found = _advice(run_dir, run, nodes)
    short = found.node_hours < SHORT_NODE_HOURS
    return tuple(one for one in found.words if not short or "--ft-checkpoint" in one)


def _advice(
    run_dir: str, run: Run, nodes: int, cost_s: float | None = None, every_s: float | None = None
) -> Advice:
    written = _written(run_dir, run)
    step_s = next((one.step_s for one in reversed(run.attempts) if one.step_s), None)
    saved = checkpoint_timing([(step, at) for step, at in written if step is not None], step_s)
    seen = bool(written or run.best_checkpoint)
    return make_advice(run, time.time(), nodes=nodes, saved=saved, cost_s=cost_s, every_s=every_s, seen=seen)


def _nodes(run_dir: str, run: Run) -> int:
    """How many nodes the script uses; 0 if no attempt has had any yet."""
    used = [len(one.used) for one in run.attempts if one.used]
    return in_allocation.active_nodes_of_run(run_dir) or max(used, default=0)


def _written(run_dir: str, run: Run) -> list[tuple[int | None, float]]:
    """The complete checkpoints on disk: the step in the name, and when it was written."""
    chosen = {**settings.defaults(), **run.settings}
    folder = submission_context.cwd(run_dir)
    if not folder:
        return []
    paths = checkpoints.complete_checkpoints(
        str(chosen["checkpoint"]), marker=str(chosen["checkpoint-marker"]), cwd=folder
    )
    saves = [(checkpoints_names.step_of(path), checkpoints.modified_s(path)) for path in paths]
    return [(step, at) for step, at in saves if at is not None]


def _show(found: Advice) -> None:
    print(f"{found.run}: {found.nodes} node{'s' if found.nodes > 1 else ''}\n")
    common.print_table(
        ["CLASS", "FAULTS", "PER 1000 NODE-DAYS", "95 % INTERVAL"],
        [
            [one.fault, one.events, _number(one.rate), f"{_number(one.least)} to {_number(one.most)}"]
            for one in found.rates
        ],
    )
    expected, soon, late = (duration_text(seconds) for seconds in found.between_s)
    print(f"\nassumed rate {_number(found.reckoned)}: a fault every {expected} ({soon} to {late})\n")
    common.print_table(
        ["", "SECONDS", "FROM"],
        [
            [name, f"{one.seconds:.1f}", one.source + (f", median of {one.count}" if one.count else "")]
            for name, one in found.figures.items()
        ],
    )
    print(f"\nbest interval: {found.best_every_s:.0f} s of work by Daly, {found.young_s:.0f} s by Young\n")
    common.print_table(
        ["CHOICE", "GOODPUT", "INTERVAL", "SPARES COUNTED, TOO", "NODE-HOURS A DAY"],
        [
            [
                one.name,
                f"{one.goodput:.2%}",
                f"{one.least:.1%} to {one.most:.1%}",
                f"{one.of_all:.2%}",
                f"{one.gained_hours:+.1f} for {one.paid_hours:.0f}" if one.spares else None,
            ]
            for one in found.choices
        ],
    )
    print()
    if found.lacks:
        rows = [[one.name, one.option, f"{one.gain:+.2%}"] for one in found.lacks]
        common.print_table(["WHAT IT LACKS", "OPTION", "WORTH, ALONE"], rows)
        print()
    for line in found.words:
        print(line)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.3g}"
