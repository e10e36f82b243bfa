"""The administrator's commands of `ftrun site`: look at nodes and requests, deny, pause, resume, release. (I/O)

All of them are for the service's host and user: they read its journal and its ledger, below its FTRUN_HOME.
"""

from __future__ import annotations

import os
import pwd
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from ftrun.hooks.runtime.formats import counted, plain
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import replace
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.nodes.machines import machine_text
from ftrun.supervisor.reports.view_run import clock_text

if TYPE_CHECKING:
    import typer

    from ftrun.slurm.client.cluster import NodeRow
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.config.sources import Config
    from ftrun.supervisor.nodes.recheck_rules import CheckNodes, CheckReport, RecheckRules
    from ftrun.supervisor.site.database import SiteDatabase
    from ftrun.supervisor.site.standing import Event, Order, Orders, Report, Standing
    from ftrun.supervisor.site.sweep import Sweep

COMMAND_TIMEOUT_S = 30.0
A_DAY_S = 86_400.0
Days = Annotated[float, option("--days", "Of the last N days.", "N", min=0.01)]
Why = Annotated[str, option("--why", "The reason, for those who meet it.", "TEXT")]


def setup() -> tuple[Config, str, CommandCluster]:
    """The settings, the home and the cluster of a service of the site. Raises UserError."""
    from ftrun.slurm.commands.cluster import CommandCluster

    env = dict(os.environ)
    settings = sources.load("/", env)  # not the current folder: its owner must not configure root
    home = common.checked_home(settings.home(env))
    return settings, home, CommandCluster(env, timeout_s=COMMAND_TIMEOUT_S)


def writable_by_others(paths: Iterable[str]) -> list[str]:
    """Why somebody but this user and root could have written or replaced each of these; a line for each path, [] if nobody."""
    from ftrun.hooks.runtime import ownership

    found = []
    for path in filter(os.path.exists, map(os.path.realpath, filter(None, paths))):
        why = ownership.why_untrusted(path) or ownership.why_replaceable(path)
        found += [why if path in why else f"{path}: {why}"] if why else []
    return found


def recheck_rules(settings: Config) -> RecheckRules:
    """The rules of recheck, as the site sets them."""
    from ftrun.supervisor.nodes.recheck_rules import RecheckRules

    steps = settings["recheck-step"]
    assert isinstance(steps, list)
    return RecheckRules(
        passes=settings.whole("recheck-passes"),
        spacing_s=settings.number("recheck-spacing"),
        lies=settings.whole("recheck-max-relapses"),
        steps=len(steps),
    )


def user_name(uid: int) -> str:
    """The name of a user of requests and reports; -1 is the site itself."""
    if uid < 0:
        return "the site's ledger"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _place() -> tuple[Config, str, CommandCluster, str]:
    """`setup`, and the folder of the service, which must have run. Raises UserError."""
    from ftrun.supervisor.site import drain_service

    settings, home, cluster = setup()
    where = drain_service.site_dir(home)
    for folder in (home, where):
        if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            owner = user_name(os.stat(folder).st_uid)
            raise UserError(f"{folder} is {owner}'s: run this as {owner}, the service's user", 77)
    if not os.path.isdir(where):
        raise UserError(f"no `ftrun site` has run with the home {home}: give its FTRUN_HOME", 1)
    return settings, home, cluster, where


@contextmanager
def open_ledger() -> Iterator[tuple[SiteDatabase, CommandCluster, Config, str]]:
    """The site's ledger of this home, and its folder. Raises UserError."""
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.supervisor.site.database import DatabaseError, SiteDatabase

    settings, home, cluster, where = _place()
    if not os.path.exists(os.path.join(where, "site.db")):
        raise UserError(f"no `ftrun site` has run with the home {home}: give its FTRUN_HOME", 1)
    try:
        with closing(SiteDatabase(where)) as database:
            yield database, cluster, settings, where
    except DatabaseError as error:
        raise UserError(str(error), 1) from None
    except SlurmError as error:
        raise UserError(f"Slurm does not answer: {error.message}", 75) from None


def _standings(
    database: SiteDatabase, cluster: CommandCluster, settings: Config, orders: Orders
) -> dict[str, Standing]:
    """What the ledger says of each node, as it is published."""
    from ftrun.supervisor.site import service, standing
    from ftrun.supervisor.store import site_nodes

    now_s = time.time()
    leaves, rules = cluster.topology().leaves, standing.SiteRules()
    found = service.read_standings(
        database, now_s, leaves, rules, denied=orders.denied, names=cluster.nodes()
    )
    last = site_nodes.quarantined_nodes(settings.text("site-spool"), now_s)
    for one in [one for one in found.values() if one.node not in last]:
        found[one.node] = replace(one, quarantined_until_s=0.0)  # beyond the share, or only observed
    return found


def _row_of(node: str, cluster: CommandCluster) -> NodeRow | None:
    """The node as Slurm shows it; None where Slurm does not answer or knows none."""
    from ftrun.slurm.client.errors import SlurmError

    with suppress(SlurmError):
        return cluster.nodes([node]).get(node)
    return None


# ---------------------------------------------------------------------- nodes


def nodes(json: Json = False) -> None:
    """Show what runs of all users say of nodes: score, state, classes."""
    from ftrun.supervisor.site.orders import read_orders

    with open_ledger() as (database, cluster, settings, where):
        now_s, found = time.time(), _standings(database, cluster, settings, read_orders(where))
    told = [one for one in found.values() if one.score or one.out or one.quarantined_until_s > now_s]
    shown = sorted(told, key=lambda one: (-one.score, one.node))
    if json:
        common.print_json([asdict(one) for one in shown])
    elif shown:
        rows = [
            [one.node, one.score or None, _state(one, now_s), ", ".join(one.classes), one.reports or None]
            for one in shown
        ]
        common.print_table(["NODE", "SCORE", "STATE", "CLASSES", "REPORTS"], rows)
    else:
        print("no node is blamed, out of service or placed last")


def history_of(
    database: SiteDatabase, node: str, names: Collection[str], since_s: float = 0.0
) -> tuple[list[Report], list[Event], Mapping[str, str]]:
    """Reports and events of the machine that bears this name, whatever it was called, oldest first; and the machine."""
    from ftrun.supervisor.site.machine_history import MachineHistory, follow_machines

    happened = database.events(0.0)
    reports, events = follow_machines(database.reports(since_s), happened, names)
    mine = sorted((one for one in reports if one.node == node), key=lambda one: one.seen_s)
    return mine, [one for one in events if one.node == node], MachineHistory(happened, names).bearer(node)


def _state(one: Standing, now_s: float) -> str:
    from ftrun.supervisor.site.publication import state_text

    return state_text(one, last=one.quarantined_until_s > now_s, clock=clock_text)


Node = Annotated[str, argument("NODE", "One node, by its name.")]


def node(node: Node, json: Json = False) -> None:
    """Show all that the ledger has of one node: each report with its user, checks, drains, quarantines."""
    from ftrun.supervisor.site.orders import read_orders
    from ftrun.supervisor.site.standing import Standing

    with open_ledger() as (database, cluster, settings, where):
        one = _standings(database, cluster, settings, read_orders(where)).get(node)
        mine, events, machine = history_of(database, node, cluster.nodes())
        if one is None and _row_of(node, cluster) is None:
            raise UserError(f"neither Slurm nor the site's ledger knows a node {node!r}")
    one = one or Standing(node)
    if json:
        told = {"reports": [asdict(r) for r in mine], "events": [asdict(event) for event in events]}
        told["machine"] = machine  # type: ignore[assignment]
        common.print_json({**asdict(one), **told})
        return
    print(f"{node}: {_state(one, time.time())}, score {one.score}")
    if text := machine_text(machine):
        print(f"the machine is {text}")
    rows = [
        [r.seen_s, f"{r.fault} {r.signature}, {r.confidence:.2f}, job {r.job} of {user_name(r.uid)}"]
        for r in mine
    ]
    rows += [[e.at_s, " ".join((e.what, *map(str, e.detail.values())))] for e in events]
    for at_s, what in sorted(rows, key=lambda row: float(str(row[0]))):
        print(f"{clock_text(float(str(at_s)))}  {plain(what)}")


def why(node: Node, json: Json = False) -> None:
    """Say why a node is as it is: who drained it or had it checked, on whose word, what was found, what is next."""
    from ftrun.supervisor.nodes import recheck_loop
    from ftrun.supervisor.nodes import recheck_rules as rules
    from ftrun.supervisor.site.account_of_node import NodeFacts, account
    from ftrun.supervisor.site.observed import observed_drains
    from ftrun.supervisor.site.orders import read_orders
    from ftrun.supervisor.site.standing import Standing
    from ftrun.supervisor.store.append_log import AppendLog

    with open_ledger() as (database, cluster, settings, where):
        row, orders = cluster.nodes([node]).get(node), read_orders(where)
        if row is None:
            raise UserError(f"Slurm knows no node {node!r}")
        found = _standings(database, cluster, settings, orders)
        reports, events, _ = history_of(database, node, cluster.nodes(), since_s=time.time() - 30 * A_DAY_S)
        records = AppendLog(where).read()
        home = os.path.dirname(where)
        remembered = rules.fold(AppendLog(recheck_loop.recheck_dir(home)).read())
    drains = [one for one in observed_drains(records, recheck_rules(settings)) if one.node == node]
    facts = NodeFacts(
        row=row,
        standing=found.get(node, Standing(node)),
        reports=reports,
        events=events,
        answers=[one for one in records if one["kind"] == "answered" and one.get("node") == node],
        recheck=remembered.get(node, rules.RecheckState()),
        drain=drains[-1] if drains else None,
        orders=orders,
    )
    lines = account(facts, time.time(), lambda at_s: clock_text(at_s) or "", user_name)
    if json:
        common.print_json({"node": node, "why": lines})
    else:
        print("\n".join((f"{node}:", *(f"  {plain(line)}" for line in lines))))


def release(nodes: Annotated[list[str], argument("NODE...", "Nodes, or lists such as n[1-4].")]) -> None:
    """Forget what was reported of nodes until now, and place them as all others. It drains and resumes nothing."""
    from ftrun.supervisor.site.standing import Event

    names, now_s = common.nodes_named(nodes), time.time()
    with open_ledger() as (database, cluster, _, _):
        known = {*cluster.nodes(), *(one.node for one in database.events(0.0))}
        if unknown := sorted(set(names) - known):
            raise UserError(f"neither Slurm nor the site's ledger knows {nodeset.fold(unknown)}")
        database.add_events(
            *(Event(f"released:{name}:{now_s:.3f}", name, now_s, "released") for name in names)
        )
    print(f"released: {nodeset.fold(names)}")


# ---------------------------------------------------------------------- requests


def requests(
    days: Days = 7.0,
    user: Annotated[str, option("--user", "Of this user only.", "USER")] = "",
    json: Json = False,
) -> None:
    """Show what users' supervisors asked for and what they were answered, the newest last; and what waits."""
    from ftrun.supervisor.nodes import spool
    from ftrun.supervisor.store.append_log import AppendLog

    settings, _, _, where = _place()
    uid = _uid(user) if user else None
    since_s = time.time() - days * A_DAY_S
    keys = ("at", "uid", "node", "verdict", "why", "id")
    rows: list[Mapping[str, Any]] = [
        {key: one[key] for key in keys}
        for one in AppendLog(where).read()
        if one["kind"] == "answered" and one["at"] > since_s and uid in (None, one["uid"])
    ]
    try:
        waiting = [one for one in spool.names_left(settings.text("site-spool")) if uid in (None, one.uid)]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", 1) from None
    left = Counter((one.uid, "reports" if one.is_report else "requests") for one in waiting)
    if json:
        told = [{"uid": whose, "what": what, "count": count} for (whose, what), count in sorted(left.items())]
        common.print_json({"answered": rows, "waiting": told})
        return
    if rows:
        table = [
            [clock_text(one["at"]), user_name(one["uid"]), one["node"] or None, one["verdict"], one["why"]]
            for one in rows
        ]
        common.print_table(["WHEN", "USER", "NODE", "ANSWER", "WHY"], table)
    else:
        print(f"nothing was answered in the last {counted(round(days), 'day')}")
    for (whose, what), count in sorted(left.items()):
        print(f"waiting: {count} {what} of {user_name(whose)}")


def observed(days: Days = 30.0, json: Json = False) -> None:
    """Say what the service would have done while it only observed (`--observe`), and which of it later checks
    proved wrong.
    """
    from ftrun.supervisor.site.observed import observed_drains
    from ftrun.supervisor.store.append_log import AppendLog

    settings, _, _, where = _place()
    since_s = time.time() - days * A_DAY_S
    records = AppendLog(where).read()
    drains = [one for one in observed_drains(records, recheck_rules(settings)) if one.at_s > since_s]
    raised = [
        one
        for one in records
        if one["kind"] == "answered"
        and one["at"] > since_s
        and (one["verdict"], one["node"]) == ("observed", "")
    ]
    with open_ledger() as (database, _, _, _):
        last = [one.node for one in database.events(since_s) if one.what == "quarantined"]
    outcomes = Counter(one.outcome for one in drains)
    if json:
        common.print_json(
            {
                "drains": [
                    {key: getattr(one, key) for key in ("node", "at_s", "why", "uid", "times", "outcome", "ended_s", "last")}
                    for one in drains
                ],
                "outcomes": outcomes,
                "raised": len(raised),
                "placed_last": last,
            }
        )  # fmt: skip
        return
    rows = [
        [one.node, clock_text(one.at_s), user_name(one.uid), str(one.times), one.outcome, one.why, one.last or None]
        for one in drains
    ]  # fmt: skip
    if rows:
        common.print_table(["NODE", "WHEN", "ASKED BY", "TIMES", "OUTCOME", "WHY", "LAST LOOK"], rows)
    print(
        f"{counted(len(drains), 'drain')} would have been made: {outcomes['right']} right, {outcomes['wrong']} wrong,"
        f" {outcomes['open']} not yet known; {counted(len(raised), 'job')} would have been put ahead;"
        f" {counted(len(set(last)), 'node')} placed last"
    )


# ---------------------------------------------------------------------- orders


def deny(
    users: Annotated[list[str], argument("USER...", "Names of users, or their numbers.")],
    why: Why = "",
    off: Annotated[bool, option("--off", "Take what these users ask and report again.")] = False,
    json: Json = False,
) -> None:
    """Take nothing of these users any more: what they ask is refused, and what they reported counts for nothing.
    Nodes that are drained or placed last stay so: `ftrun recheck` and `ftrun site release` end that.
    """
    order, uids = _order(why), {_uid(user) for user in users}

    def change(before: Orders) -> Orders:
        kept = {uid: one for uid, one in before.denied.items() if uid not in uids}
        return replace(before, denied=kept if off else kept | dict.fromkeys(uids, order))

    _ordered(change, json=json)


def pause(why: Why = "", json: Json = False) -> None:
    """Let the service stand still, for a maintenance: it drains, raises, checks and returns nothing. Reports are
    still taken, requests wait in the spool; they are valid for an hour.
    """
    order = _order(why)
    _ordered(lambda before: replace(before, paused=order), json=json)


def resume(json: Json = False) -> None:
    """Let a paused service go on."""
    _ordered(lambda before: replace(before, paused=None), json=json)


def _uid(user: str) -> int:
    """The number of a user. Raises UserError."""
    with suppress(KeyError):
        return pwd.getpwnam(user).pw_uid
    if user.isascii() and user.isdigit() and len(user) <= 10:
        return int(user)
    raise UserError(f"no user is called {user!r} on this host: give the number")


def _order(why: str) -> Order:
    from ftrun.supervisor.site.standing import Order

    return Order(
        time.time(), os.environ.get("SUDO_USER") or user_name(os.geteuid()), " ".join(why.split())[:200]
    )


def _ordered(change: Callable[[Orders], Orders], *, json: bool) -> None:
    from ftrun.supervisor.site.orders import change_orders

    *_, where = _place()
    try:
        now = change_orders(where, change)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", 1) from None
    if json:
        common.print_json(asdict(now))
        return
    print("\n".join(orders_lines(now)))


def orders_lines(now: Orders) -> list[str]:
    """The orders in force, in words."""
    paused = now.paused
    lines = [
        f"paused since {clock_text(paused.at_s)} by {paused.by}{paused.why and ': '}{paused.why}"
        if paused
        else "not paused"
    ]
    for uid, one in sorted(now.denied.items()):
        lines.append(
            f"denied: {user_name(uid)}, since {clock_text(one.at_s)} by {one.by}{one.why and ': '}{one.why}"
        )
    return lines


# ---------------------------------------------------------------------- sweep


def sweep(
    nodes: Annotated[
        list[str] | None, argument("NODE...", "These, if they idle, however lately they were swept.")
    ] = None,
    *,
    tier: Annotated[str, option("--tier", "How thorough: recheck (5 min) or burn-in (1 h).")] = "recheck",
    most: Annotated[int, option("--most", "Nodes of one sweep.", "N", min=1)] = 8,
    every: Annotated[
        float, option("--every-days", "A node is due so long after its last sweep.", "N", min=0.0)
    ] = 7.0,
    no_job: Annotated[
        bool, option("--no-job", "Hold the nodes by no job: a job may start meanwhile; pairs are not tested.")
    ] = False,
    sbatch_options: Annotated[
        str, option("--sbatch-options", 'More options for the job ("-A staff -q scavenger").')
    ] = "",
    json: Json = False,
) -> int:
    """Check idle nodes thoroughly, test the network between them in pairs, and compare them with each other. For
    cron: a sweep takes the idle nodes of one partition that wait longest, by a job of the lowest priority, and gives
    them up when a job waits there. It drains nothing; the service acts on what it found.

    Exit 0: nothing is bad, or no node is due.  1: something is bad.  75: not now (the service is paused, another
    sweep runs, jobs wait, or Slurm does not answer).  77: not the service's user.
    """
    from ftrun.hooks.runtime.finding import TIERS
    from ftrun.supervisor.nodes import check_summary
    from ftrun.supervisor.site import sweep as sweeps
    from ftrun.supervisor.site.orders import read_orders
    from ftrun.supervisor.store import append_log

    if tier not in TIERS[1:]:
        raise UserError(f"no tier of sweeps is called {tier!r}; there are {', '.join(TIERS[1:])}")
    only = common.nodes_named(nodes or [])
    with open_ledger() as (database, cluster, settings, where):
        if read_orders(where).paused is not None:
            raise UserError("the service is paused: `ftrun site resume` ends that", 75)
        rows = cluster.nodes()
        if unknown := sorted(set(only) - set(rows)):
            raise UserError(f"Slurm knows no node {nodeset.fold(unknown)}")
        with append_log.lock_service(os.path.join(where, "sweep")) as alone:
            if not alone:
                raise UserError("another sweep is running; nothing was done", 75)
            swept_s = {one.node: one.at_s for one in database.events(0.0) if one.what == "swept"}
            partition, due = sweeps.due_nodes(
                rows,
                cluster.partitions(),
                swept_s,
                time.time(),
                most=most,
                every_s=every * A_DAY_S,
                only=only,
            )
            if due:
                done = _swept(
                    database,
                    partition,
                    due,
                    tier=tier,
                    cluster=cluster,
                    settings=settings,
                    job=not no_job,
                    options=sbatch_options,
                )
                database.add_events(*sweeps.events_of(done.result, time.time()))
    return _shown_sweep(done if due else sweeps.Sweep("", check_summary.summarize([])), json=json)


def _shown_sweep(done: Sweep, *, json: bool) -> int:
    from ftrun.supervisor.nodes import check_summary

    nodes = nodeset.fold(one.node for one in done.result.seen)
    if json:
        told = check_summary.summary_json(done.result)
        common.print_json({"partition": done.partition, "gave_way": done.gave_way, **told})
    elif not nodes:
        print("no idle node is due")
    else:
        print("\n".join(check_summary.summary_lines(done.result)) or "nothing is bad")
        way = "; given up for a job that waits" if done.gave_way else ""
        print(f"swept {nodes} of {done.partition}{way}")
    return 1 if done.result.verdict.bad else 0


def noting(look: CheckNodes, opened: Callable[[], AbstractContextManager[SiteDatabase]]) -> CheckNodes:
    """The same looks, of which the site's ledger keeps which machines they met."""
    from ftrun.supervisor.site.database import DatabaseError
    from ftrun.supervisor.site.service import keep_sightings

    def looked(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        reports = look(nodes)
        with suppress(DatabaseError), opened() as database:
            keep_sightings(database, reports, time.time())
        return reports

    return looked


def _swept(
    database: SiteDatabase,
    partition: str,
    due: Sequence[str],
    *,
    tier: str,
    cluster: CommandCluster,
    settings: Config,
    job: bool,
    options: str,
) -> Sweep:
    """Sweep these nodes. Raises UserError, SlurmError."""
    from ftrun.hooks.checks.runner import BUDGETS_S
    from ftrun.supervisor.nodes import remote_checks
    from ftrun.supervisor.site import sweep as sweeps

    checks, config = remote_checks.thresholds(settings.text("checks")), settings.text("ssh-config")
    look = noting(
        remote_checks.ssh_checks(tier, "sweep", ssh_config=config, checks=checks),
        lambda: nullcontext(database),
    )

    if not job:
        return sweeps.Sweep(partition, *sweeps.sweep_nodes(due, look, lambda _nodes: {}))
    others = sweeps.sharing(cluster.partitions(), due)
    if cluster.contended(others):
        raise UserError(f"jobs wait for nodes of {', '.join(others)}: nothing was swept", 75)
    try:
        limit_s = 2 * BUDGETS_S[tier] + remote_checks.PAIRS_S
        with sweeps.held(cluster, partition, due, limit_s, shlex.split(options)) as number:

            def gives_way() -> bool:
                if waits := cluster.contended(others):
                    cluster.cancel(number)
                return waits

            return sweeps.Sweep(
                partition,
                *sweeps.sweep_nodes(
                    due, look, partial(remote_checks.test_pairs, ssh_config=config), gives_way
                ),
            )
    except (sweeps.NotHeld, ValueError) as error:
        raise UserError(f"{nodeset.fold(due)}: {error}", 75) from None


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `ftrun site`."""
    for command in (nodes, node, why, requests, observed, deny, pause, resume, release, sweep):
        app.command(command.__name__)(command)
