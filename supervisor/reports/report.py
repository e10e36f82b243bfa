"""`ftrun report`: one HTML file that tells a run, or a month of runs, to a person. (I/O)

The file needs no network, no script and no font, is light or dark as its reader wishes, and prints. All text is
escaped by jinja2; control characters and marks that turn the direction of writing are shown as their codes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from ftrun.hooks.runtime.formats import counted, duration_text, plain
from ftrun.slurm.client import nodeset
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import charts, requeue_model, statistics, view_run
from ftrun.supervisor.reports.statistics import FaultCost, Statistics
from ftrun.supervisor.reports.time_ledger import Spent, TimeLedger

TEMPLATE = "report.html.j2"
PROOF_LINES_MAX = 12
ROWS_MAX = 200


def run_report(run: Run, ledger: TimeLedger, now_s: float, *, advice: Sequence[str] = ()) -> str:
    """The report of one run. `advice`: what to change, a sentence each."""
    told = statistics.statistics_of([(run, ledger)])
    facts = view_run.run_facts(run, now_s)
    costs = {one.incident: one for one in told.faults}
    axis = charts.axis_of(ledger)
    at_s = {one.incident: one.at_s for one in told.faults}
    begin, end = (view_run.clock_text(value) for value in (axis.begin_s, axis.end_s))
    return _render(
        title=run.id,
        made_at=_moment_with_zone(now_s),
        head=[
            f"{view_run.state_text(facts)}" + (f": {facts['why']}" if facts["why"] else ""),
            f"from {begin} to {end}, {duration_text(ledger.life_s)}, on {counted(ledger.asked, 'node')}",
        ],
        facts=_figures(told, facts["step"]),
        band=charts.band(run, ledger, axis),
        nodes=charts.node_rows(run, ledger, axis),
        faults=charts.fault_marks(run, at_s, axis),
        spent=statistics.spent_rows(told),
        spent_words=_words(told, requeue_model.goodput(run, told, ledger.asked)),
        curves=charts.curves(ledger.points, axis),
        tables=_tables(facts, told),
        incidents=[_incident(one, costs.get(one["incident"])) for one in facts["incidents"]],
        advice=[one[:1].upper() + one[1:] for one in (*_missing(run, ledger, advice), *advice)],
    )


def runs_report(found: Sequence[tuple[Run, TimeLedger]], title: str, now_s: float) -> str:
    """The report of many runs, such as those of a month."""
    told = statistics.statistics_of(found)
    blamed = Counter(node for one in told.faults for node in one.nodes)
    hours: dict[str, float] = {}
    for one in told.faults:
        for node in one.nodes:
            hours[node] = hours.get(node, 0.0) + one.node_hours
    rows = []
    for run, ledger in sorted(found, key=lambda pair: -pair[0].created_at_s)[:ROWS_MAX]:
        its = statistics.statistics_of([(run, ledger)])
        rows.append([
            run.id, run.state.value, view_run.clock_text(run.created_at_s), duration_text(ledger.life_s), ledger.asked,
            statistics.percent_text(its.goodput), len(its.faults), its.steps_lost, round(its.node_hours_lost, 1),
        ])  # fmt: skip
    nodes = [[node, count, round(hours[node], 1)] for node, count in blamed.most_common(30)]
    tables = [
        {
            "title": "Nodes that were blamed most",
            "columns": ["node", "faults", "node-hours lost"],
            "rows": nodes,
        }
    ]
    return _render(
        title=title,
        made_at=_moment_with_zone(now_s),
        head=[
            f"{counted(len(found), 'run')}"
            + (f", the newest {ROWS_MAX} are listed" if len(found) > ROWS_MAX else "")
        ],
        facts=_figures(told),
        spent=statistics.spent_rows(told),
        spent_words=_words(told, None),
        runs={
            "columns": [
                "run",
                "state",
                "since",
                "life",
                "nodes",
                "goodput",
                "faults",
                "steps lost",
                "node-hours lost",
            ],
            "rows": rows,
        },
        tables=[*(tables if nodes else []), *_means(told)],
    )


def _render(**context: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
    )
    environment.filters["plain"] = partial(plain, keep="\t\n")
    return environment.get_template(TEMPLATE).render(**context)


def _figures(told: Statistics, step: int | None = None) -> list[dict[str, str]]:
    figures = [
        ("goodput", statistics.percent_text(told.goodput) or "unknown"),
        ("ETTR", statistics.percent_text(told.ettr) or "unknown"),
        ("faults", str(len(told.faults))),
        ("steps lost", str(told.steps_lost)),
        ("node-hours", f"{told.node_hours_held:.3g}"),
        ("of them without a new step", f"{told.node_hours_lost:.3g}"),
        ("between faults by chance", duration_text(told.mtbf_s) if told.mtbf_s else "none"),
    ]
    if step is not None:
        figures.insert(0, ("step", str(step)))
    return [{"name": name, "value": value} for name, value in figures]


def _moment_with_zone(at_s: float) -> str:
    zone = time.strftime("%Z (UTC%z)", time.localtime(at_s))
    return f"{view_run.clock_text(at_s)} {zone}; all times are of this zone"


def _words(told: Statistics, requeue_goodput: float | None) -> list[str]:
    words = list(filter(None, [statistics.phases_text(told)]))
    if requeue_goodput is not None and told.goodput is not None:
        words.append(
            f"A plain requeue at each of these faults would have reached about {requeue_goodput:.1%} goodput"
            f" instead of {told.goodput:.1%}, by the model of ftrun simulate."
        )
    return words


def _tables(facts: Mapping[str, Any], told: Statistics) -> Iterable[dict[str, Any]]:
    rows = [
        [
            one["attempt"], one["job"] or None, nodeset.fold(one["nodes"]) or None, view_run.clock_text(one["started_at"]),
            view_run.clock_text(one["ended_at"]), one["end_state"] or None, one["exit_code"], one["last_step"],
            one["resumed_from"].rpartition("/")[2] or None,
        ]
        for one in facts["attempts"][-ROWS_MAX:]
    ]  # fmt: skip
    columns = ["attempt", "job", "nodes", "started", "ended", "end", "exit", "step", "resumed from"]
    yield {"title": "Attempts", "columns": columns, "rows": rows}
    yield from _means(told)
    if facts["exclusions"]:
        rows = [[one["node"], view_run.clock_text(one["until"]), one["why"]] for one in facts["exclusions"]]
        yield {"title": "Excluded nodes", "columns": ["node", "until", "why"], "rows": rows}
    used = [[name, row["used"], row["of"]] for name, row in facts["budgets"].items() if row["used"]]
    if used:
        yield {
            "title": "Budgets used since the last progress",
            "columns": ["class", "used", "of"],
            "rows": used,
        }


def _means(told: Statistics) -> list[dict[str, Any]]:
    tables = (("class", told.by_class), ("rung", told.by_rung))
    return [
        {
            "title": f"Mean repair by {name}",
            "columns": [name, "faults", "from the first sign to the first new step"],
            "rows": statistics.mean_rows(table),
        }
        for name, table in tables
        if table
    ]


def _incident(one: Mapping[str, Any], cost: FaultCost | None) -> dict[str, Any]:
    diagnosis = one["diagnosis"]
    proof = [
        f"{line.get('file', '')}:{line.get('line', '')}: {line.get('text', '')}"
        for line in diagnosis.get("because", ())
    ]
    words = ""
    if cost is not None:
        parts = [f"{name} {duration_text(value)}" for name, value in cost.seconds.items() if value]
        parts += [f"steps made again {duration_text(cost.redone_s)}"] if cost.redone_s else []
        words = f"it cost {', '.join(parts)}; {cost.node_hours:.2f} node-hours; {counted(cost.steps_lost, 'step')}"
    return {
        "name": one["incident"],
        "at": view_run.clock_text(cost.at_s) if cost is not None else "",
        "fault": one["class"],
        "nodes": nodeset.fold(one["nodes"]),
        "action": one["rung"] or one["action"] or "no decision yet",
        "title": one["title"],
        "proof": proof[:PROOF_LINES_MAX],
        "rests_on": "; ".join(str(word) for word in diagnosis.get("rests_on", ())),
        "reason": one["reason"],
        "cost": words if cost is not None and (cost.repair_s or cost.node_hours) else "",
    }


def _missing(run: Run, ledger: TimeLedger, advice: Sequence[str]) -> Iterable[str]:
    """What the run lacks that would have told or saved more, and `advice` does not say."""
    seconds = ledger.seconds()
    if seconds[Spent.UNMEASURED] and not ledger.points:
        yield "No line of its log is one that ftrun knows as a step: one call, `from ftrun.hooks import beat`, or a line such as `step 12 loss 3.4` shows progress, hangs and goodput."
    if not run.settings.get("checkpoint") and not any("--ft-checkpoint" in one for one in advice):
        yield "No checkpoint is named (--ft-checkpoint): after a fault the script itself has to find where to go on, or begins at its first step."
