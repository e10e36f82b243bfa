"""What the service publishes for everybody: nodes.json, metrics.prom, index.html. (I/O)

All three say what is known of nodes and nothing of people: no user, no run, no job, no path, no line of a log.

    <site-spool>/public/nodes.json     read by every supervisor and `ftrun sbatch` (store.site_nodes)
    <site-spool>/public/metrics.prom   for the textfile collector of node_exporter
    <site-spool>/public/index.html     one page, for a browser, any web server or Open OnDemand
"""

from __future__ import annotations

import html
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ftrun.slurm.client.cluster import NodeRow
from ftrun.slurm.records import dataclass
from ftrun.supervisor.nodes.spool import public_folder
from ftrun.supervisor.publish.metrics import samples_text
from ftrun.supervisor.publish.public_file import write_public
from ftrun.supervisor.publish.series import Samples
from ftrun.supervisor.site import standing
from ftrun.supervisor.site.database import SiteDatabase
from ftrun.supervisor.site.standing import MONTH_S, Event, Report, SiteRules, Standing
from ftrun.supervisor.store import site_nodes

EVERY_S = 300.0
NODES_MAX = 2000  # of each file, the most blamed first
PAGE_NODES_MAX = 100
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Month:
    """What happened in the last 30 days, in numbers."""

    reports: int
    refused: int
    node_hours: float  # that the reported runs had run on the nodes that they blame
    classes: Mapping[str, int]
    drains: int  # by ftrun, whoever asked for them
    checks: Mapping[str, int]  # result -> how many
    returned_healthy: int  # drained by ftrun, and back within an hour: perhaps nothing was wrong


class Publication:
    """The files in one folder, made anew after each change and every five minutes. `acts`: whether quarantines count for supervisors."""

    def __init__(self, spool: str, cluster: str, *, acts: bool = True) -> None:
        self.folder, self._cluster, self._acts = public_folder(spool), cluster, acts
        self._due_s = float("-inf")

    def publish(
        self,
        nodes: Mapping[str, Standing],
        rows: Mapping[str, NodeRow],
        database: SiteDatabase,
        rules: SiteRules,
        now_s: float,
        *,
        tick_s: float,
    ) -> None:
        """Write the files where they are due; `tick_s`: by a clock that never steps. Raises OSError, DatabaseError."""
        if tick_s < self._due_s:
            return
        self._due_s = tick_s + EVERY_S
        since_s = now_s - MONTH_S
        events = database.events(since_s)
        last = standing.quarantined(nodes, now_s, len(rows), rules) if self._acts else []
        month = month_of(database.reports(since_s), events, database.refused(since_s))
        shown = most_blamed(nodes, {one.node for one in last})
        self._write("nodes.json", nodes_json(shown, last, self._cluster, now_s))
        self._write(
            "metrics.prom", samples_text(samples(nodes, last, month, now_s), {"cluster": self._cluster})
        )
        self._write(
            "index.html",
            page(shown[:PAGE_NODES_MAX], last, month, events, cluster=self._cluster, now_s=now_s),
        )

    def due_now(self) -> None:
        """Publish in this round: something has changed."""
        self._due_s = float("-inf")

    def _write(self, name: str, data: bytes) -> None:
        write_public(os.path.join(self.folder, name), data)


def most_blamed(nodes: Mapping[str, Standing], held: set[str]) -> list[Standing]:
    """The nodes about which there is something to say: those placed last, then the most blamed ones."""
    found = [one for one in nodes.values() if one.score or one.out or one.node in held]
    found.sort(key=lambda one: (one.node not in held, -one.score, -one.quarantines, one.node))
    return found[:NODES_MAX]


def nodes_json(shown: Sequence[Standing], last: Sequence[Standing], cluster: str, now_s: float) -> bytes:
    """The nodes with their scores; `quarantined_until_s` is 0 unless the node is to be placed last."""
    held = {one.node for one in last}
    rows = [
        {
            "node": one.node,
            "score": one.score,
            "corroborated": bool(one.corroborated_s),
            "classes": list(one.classes),
            "quarantined_until_s": round(one.quarantined_until_s) if one.node in held else 0,
        }
        for one in shown
    ]
    told = {"schema": site_nodes.SCHEMA, "written_s": round(now_s), "cluster": cluster, "nodes": rows}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def month_of(reports: Sequence[Report], events: Sequence[Event], refused: int) -> Month:
    """The last 30 days in numbers."""
    drained_s: dict[str, float] = {}
    quick = 0
    for event in events:
        if event.what == "out" and event.detail.get("by") == "ftrun":
            drained_s[event.node] = event.at_s
        elif event.what == "back":
            quick += event.at_s - drained_s.pop(event.node, float("-inf")) < HOUR_S
    return Month(
        reports=len(reports),
        refused=refused,
        node_hours=round(sum(one.ran_s for one in reports) / HOUR_S, 1),
        classes=dict(Counter(one.fault for one in reports).most_common()),
        drains=sum(one.what == "out" and one.detail.get("by") == "ftrun" for one in events),
        checks=Counter(str(one.detail.get("result")) for one in events if one.what == "checked"),
        returned_healthy=quick,
    )


def samples(nodes: Mapping[str, Standing], last: Sequence[Standing], month: Month, now_s: float) -> Samples:
    """The series of the site (`publish.series`)."""
    found: Samples = {
        ("ftrun_site_seen_timestamp_seconds",): now_s,
        ("ftrun_site_nodes", "quarantined"): float(len(last)),
        ("ftrun_site_nodes", "corroborated"): float(sum(bool(one.corroborated_s) for one in nodes.values())),
        ("ftrun_site_nodes", "out"): float(sum(one.out for one in nodes.values())),
        ("ftrun_site_reports", "accepted"): float(month.reports),
        ("ftrun_site_reports", "refused"): float(month.refused),
        ("ftrun_site_drains",): float(month.drains),
    }
    for result in ("sick", "healthy", "unseen", "held"):
        found["ftrun_site_checks", result] = float(month.checks.get(result, 0))
    for one in most_blamed(nodes, set()):
        if one.score:
            found["ftrun_site_node_score", one.node] = one.score
    return found


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="300">
<title>Nodes of {cluster}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886 }}
</style></head><body>
<h1>Nodes of {cluster}</h1>
<p>Written by ftrun's site service at {written} UTC. The figures are of the last 30 days.</p>
<h2>The month</h2>{month}
<h2>Nodes that runs blame</h2>{nodes}
<p>Each user counts once for a node, up to 1. Two users of different projects make it corroborated: it is checked
then, and drained if it is sick, or placed last for everybody if it is not.</p>
<h2>Classes of faults</h2>{classes}
</body></html>
"""


def page(
    shown: Sequence[Standing],
    last: Sequence[Standing],
    month: Month,
    events: Sequence[Event],
    *,
    cluster: str,
    now_s: float,
) -> bytes:
    """The page. Everything in it is escaped."""
    held = {one.node for one in last}
    past: dict[str, list[str]] = {}
    for event in events:
        what = f"checked: {event.detail.get('result')}" if event.what == "checked" else event.what
        past.setdefault(event.node, []).append(f"{time.strftime('%m-%d', time.gmtime(event.at_s))} {what}")
    nodes = [
        (
            one.node,
            f"{one.score:.2f}",
            state_text(one, last=one.node in held, clock=_clock),
            ", ".join(one.classes),
            "; ".join(past.get(one.node, ())[-6:]),
        )
        for one in shown
    ]
    figures = [
        ("reports of runs that Slurm confirmed", month.reports),
        ("reports refused", month.refused),
        ("node-hours that the reported starts had run before they failed", month.node_hours),
        ("drains by ftrun", month.drains),
        ("of these back in service within an hour", month.returned_healthy),
        ("checks of corroborated nodes that found them sick", month.checks.get("sick", 0)),
        ("that found them healthy: placed last", month.checks.get("healthy", 0)),
        ("nodes placed last now", len(last)),
    ]
    return PAGE.format(
        cluster=html.escape(cluster),
        written=time.strftime("%Y-%m-%d %H:%M", time.gmtime(now_s)),
        month=_table((), figures),
        nodes=_table(("node", "score", "state", "classes", "history"), nodes),
        classes=_table((), list(month.classes.items())),
    ).encode()


def _clock(at_s: float) -> str:
    return time.strftime("%m-%d %H:%M", time.gmtime(at_s))


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in which everything is escaped."""
    lines = [[f"<th>{name}</th>" for name in head]] if head else []
    lines += [[f"<td>{html.escape(str(cell))}</td>" for cell in row] for row in rows]
    whole = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
    return f"<table>{whole}</table>" if rows else "<p>None.</p>"


def state_text(one: Standing, *, last: bool, clock: Callable[[float], str | None]) -> str:
    """The state of a node in words; `last`: it is published as placed last."""
    if one.out:
        return "out of service"
    if last:
        return f"placed last until {clock(one.quarantined_until_s)}"
    return "to be checked" if one.corroborated_s else "in service"
