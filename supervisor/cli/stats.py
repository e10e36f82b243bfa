"""`ftrun stats`, `ftrun report` and `ftrun metrics`: where the time of one run, or of all, went. (I/O)"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from ftrun.hooks.runtime.formats import DAY_S, counted, duration_text
from ftrun.slurm.client import nodeset
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import requeue_model, statistics
from ftrun.supervisor.reports.statistics import OF_A_FAULT, Mean, Statistics, percent_text
from ftrun.supervisor.reports.time_ledger import Spent, TimeLedger, ledger_of
from ftrun.supervisor.store import journal

SHIPPED = {True: "dashboard.json", False: "alerts.yml"}
UNITS_S = {"h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}

Found = tuple[Run, TimeLedger]


Since = Annotated[
    str,
    option("--since", "Without a run: only those that lived after then, as 30d, 12h or 2026-11-01.", "TIME"),
]
OneOrAll = Annotated[str, argument("[RUN|JOBID]", "One run; without it, all of this home.")]


def stats(name: OneOrAll = "", since: Since = "", json: Json = False) -> int:
    """Show where the time of a run, or of all runs, went: every second and every node-hour.

    Times and shares add up to the life of the run; docs/stats.md defines each word.
    """
    now_s = time.time()
    found = _found(name, since, now_s)
    whole = statistics.statistics_of(found)
    requeue = requeue_model.goodput(found[0][0], whole, found[0][1].asked) if name else None
    if json:
        facts = facts_of(whole) | ({"plain_requeue_goodput": requeue} if name else {})
        rows = [{"run": run.id, "state": run.state.value} | facts_of(_of(run, led)) for run, led in found]
        common.print_json(facts | ({"run": found[0][0].id} if name else {"each": rows}))
        return 0
    if not found:
        print("no run so far" if not since else f"no run lived since {since}")
        return 0
    if name:
        print(_head(*found[0], whole))
    else:
        _print_runs(found)
        print(f"\n{len(found)} runs together" if len(found) != 1 else "")
    _print_time(whole)
    _print_faults(whole, each=bool(name))
    if requeue is not None:
        print(
            f"with a plain requeue at each of these faults, by `ftrun simulate`: {requeue:.1%} goodput"
            + (f" instead of {whole.goodput:.1%}" if whole.goodput is not None else "")
        )
    return 0


def report(
    name: OneOrAll = "",
    html: Annotated[str, option("--html", "Where to write it; - is standard output.", "FILE")] = "",
    show: Annotated[bool, option("--open", "Open it in a browser.")] = False,
    since: Since = "",
) -> int:
    """Write what happened to a run, or to all runs, as one HTML file that needs no network.

    It shows the run over time, where its time went, its training with the faults marked, each fault with its proof,
    decision and cost, and what to change. By default it lies in the folder of the run.
    """
    _refuse_both(name, since)
    if name:
        folder = common.find_run_dir(name)
        page = page_of_run(folder)
    else:
        folder = common.home()
        page = _page_of_all(since)
    content = page.encode("utf-8", "replace")
    if html == "-":
        sys.stdout.buffer.write(content)
        return 0
    path = os.path.abspath(html or os.path.join(folder, "report.html"))
    try:
        config_home.write_atomically(path, content)
    except OSError as error:
        raise UserError(f"the report cannot be written: {path}: {error.strerror}", 1) from None
    print(path)
    if show:
        open_in_browser(Path(path))
    return 0


def metrics(
    *,
    dashboard: Annotated[bool, option("--dashboard", "Print a dashboard for Grafana, as JSON.")] = False,
    rules: Annotated[bool, option("--rules", "Print alert rules for Prometheus, as YAML.")] = False,
) -> int:
    """Print the series of all runs of this home, as they are now, in the text format of Prometheus.

    The supervisor publishes the same where `metrics-folder` or `metrics-port` is set (docs/metrics.md).
    """
    from ftrun.supervisor.publish.metrics import Metrics
    from ftrun.supervisor.publish.publisher import FollowedRun

    if dashboard and rules:
        raise UserError("metrics: give only one of --dashboard and --rules")
    if dashboard or rules:
        print((resources.files("ftrun.supervisor.publish") / SHIPPED[dashboard]).read_text("utf-8"), end="")
        return 0
    home_dir = common.home()
    counted = Metrics(home_dir)
    for folder, run in common.all_runs(home_dir):
        counted.on_history(FollowedRun(folder, run), journal.read_run(folder))
    sys.stdout.buffer.write(counted.text(time.time()))
    return 0


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A hundred thousand records are looked at again and again by a collector that finds nothing: a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def page_of_run(folder: str) -> str:
    """The report of the run in this folder. Raises UserError."""
    from ftrun.supervisor.cli.advise import advice_words
    from ftrun.supervisor.reports.report import run_report

    now_s = time.time()
    with _no_collection():
        run, records = common.load_records(folder)
        ledger = ledger_of(run, records, now_s)
        del records
    if not ledger.intervals:
        raise UserError(f"{run.id} has only just begun: there is nothing to report yet", 1)
    return run_report(run, ledger, now_s, advice=advice_words(folder, run))


def _page_of_all(since: str) -> str:
    from ftrun.supervisor.reports.report import runs_report

    now_s = time.time()
    found = _found("", since, now_s)
    if not found:
        raise UserError("no run so far" if not since else f"no run lived since {since}", 1)
    return runs_report(found, f"Runs since {since}" if since else "All runs of this home", now_s)


def open_in_browser(path: Path) -> None:
    """Show a page to the person; where there is no browser, say so."""
    import webbrowser

    try:
        opened = webbrowser.open(path.as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        print("ftrun: no browser here; copy the file to where there is one", file=sys.stderr)


def _found(name: str, since: str, now_s: float) -> list[Found]:
    """The run of this name, or all that lived after `since`, each with its ledger. Raises UserError."""
    _refuse_both(name, since)
    if name:
        return [_ledger(*common.find_run(name), now_s)]
    least_s = _moment_s(since, now_s) if since else 0.0
    return [_ledger(*one, now_s) for one in common.all_runs(common.home()) if _lived(one[1], least_s)]


def _refuse_both(name: str, since: str) -> None:
    """Raise UserError where one run is named and others are asked for."""
    if name and since:
        raise UserError("--since is for all runs; name no run with it")


def facts_of(one: Statistics) -> dict[str, Any]:
    """The statistics as `--json` prints them: seconds, node-hours, ratios of 0..1, null for what is unknown."""
    return asdict(one) | {
        "node_hours_lost": one.node_hours_lost,
        "faults": [asdict(fault) | {"repair_s": fault.repair_s} for fault in one.faults],
    }


def _ledger(folder: str, run: Run, now_s: float) -> Found:
    return run, ledger_of(run, journal.read_readable(folder)[0], now_s)


def _of(run: Run, ledger: TimeLedger) -> Statistics:
    return statistics.statistics_of([(run, ledger)])


def _lived(run: Run, least_s: float) -> bool:
    return not run.final or run.last_at_s >= least_s


def _moment_s(text: str, now_s: float) -> float:
    """The moment that `--since` names. Raises UserError."""
    if found := re.fullmatch(r"(\d{1,6})([hdw])", text):
        return now_s - int(found[1]) * UNITS_S[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UserError(f"--since: a time is wanted, such as 30d, 12h or 2026-11-01, not {text!r}") from None


def _head(run: Run, ledger: TimeLedger, whole: Statistics) -> str:
    told = [f"{run.id}: {run.state.value}, {duration_text(ledger.life_s)}"]
    if ledger.asked:
        told.append(f"{ledger.asked} node{'s' if ledger.asked != 1 else ''}")
    if not whole.goodput and not ledger.points and whole.seconds[Spent.UNMEASURED.value]:
        told.append("no log line that ftrun knows as a step: what was useful is not known (docs/stats.md)")
    return "; ".join(told)


def _print_runs(found: Iterable[Found]) -> None:
    rows = []
    for run, ledger in found:
        one = _of(run, ledger)
        rows.append([
            run.id, run.state.value, duration_text(ledger.life_s), ledger.asked or None, f"{one.node_hours_held:.1f}",
            percent_text(one.goodput), percent_text(one.ettr), len(one.faults), one.steps_lost, f"{one.node_hours_lost:.1f}",
        ])  # fmt: skip
    columns = ["RUN", "STATE", "LIFE", "NODES", "NODE-HOURS", "GOODPUT", "ETTR", "FAULTS"]
    common.print_table([*columns, "STEPS LOST", "HOURS LOST"], rows)


def _print_time(whole: Statistics) -> None:
    common.print_table(["SPENT ON", "TIME", "SHARE", "NODE-HOURS"], statistics.spent_rows(whole))
    if phases := statistics.phases_text(whole):
        print(phases)
    print(
        f"\ngoodput {percent_text(whole.goodput) or 'unknown'}, ETTR {percent_text(whole.ettr) or 'unknown'}"
    )


def _print_faults(whole: Statistics, *, each: bool) -> None:
    if not whole.faults:
        print("no faults")
        return
    if each:
        print()
        rows = [
            [
                fault.incident, fault.fault, nodeset.fold(fault.nodes) or None, fault.rung or None,
                *(duration_text(fault.seconds[key]) if fault.seconds[key] else None for key in OF_A_FAULT),
                duration_text(fault.redone_s) if fault.redone_s else None, fault.steps_lost,
            ]
            for fault in whole.faults
        ]  # fmt: skip
        common.print_table(
            [
                "FAULT",
                "CLASS",
                "BLAMED",
                "RUNG",
                *(key.upper() for key in OF_A_FAULT),
                "REDONE",
                "STEPS LOST",
            ],
            rows,
        )
    for title, table in (("CLASS", whole.by_class), ("RUNG", whole.by_rung)):
        _print_means(title, table)
    chance = (
        f"one by chance every {duration_text(whole.mtbf_s)} of running" if whole.mtbf_s else "none by chance"
    )
    count = len(whole.faults)
    print(
        f"\n{counted(count, 'fault')}, {chance}; {counted(whole.steps_lost, 'step')} lost;"
        f" {whole.node_hours_lost:.2f} node-hours made no new step"
    )


def _print_means(title: str, table: Mapping[str, Mean]) -> None:
    if table:
        print()
        common.print_table([title, "COUNT", "MEAN REPAIR"], statistics.mean_rows(table))
