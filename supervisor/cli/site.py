"""`ftrun site` and `ftrun recheck`: what root or SlurmUser runs for all users of a cluster. (I/O)

`site` drains nodes and raises recovered jobs for users who may not. It believes no request: it checks the node by
itself (`nodes.drain_service`, `nodes.drain_rules`). `recheck` checks the nodes that ftrun drained, and returns
healthy ones to service (`nodes.recheck_loop`). Each takes a lock that keeps a second one out.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ftrun.hooks.runtime.formats import plain
from ftrun.slurm.client import nodeset
from ftrun.supervisor.cli import common, site_admin
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import Cluster
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.cli.doctor import Finding
    from ftrun.supervisor.config.sources import Config
    from ftrun.supervisor.nodes.recheck_loop import RecheckRound
    from ftrun.supervisor.nodes.recheck_rules import CheckNodes
    from ftrun.supervisor.nodes.spool import Spool
    from ftrun.supervisor.site.drain_service import Answer, DrainService
    from ftrun.supervisor.site.service import SiteService
    from ftrun.supervisor.site.ticket import Ticket

EXIT_ATTENTION = 1
EXIT_LATER = 75  # EX_TEMPFAIL of sysexits.h
EXIT_NOT_PERMITTED = 77  # EX_NOPERM
RECHECK_EVERY_S = 300.0


def _checks(tier: str, kind: str, settings: Config) -> CheckNodes:
    """Checks of nodes over SSH, with the site's configuration and thresholds. Raises UserError."""
    from ftrun.supervisor.nodes import remote_checks

    checks = remote_checks.thresholds(settings.text("checks"))
    return remote_checks.ssh_checks(tier, kind, ssh_config=settings.text("ssh-config"), checks=checks)


app = typer.Typer(
    help="The site's service: what users may not do themselves, and what their runs know of nodes."
)


@app.callback(invoke_without_command=True)
def site(
    context: typer.Context,
    once: Annotated[bool, option("--once", "Do what is due, then end (for cron).")] = False,
    observe: Annotated[
        bool, option("--observe", "Check and answer, but drain nothing: begin with this.")
    ] = False,
    every: Annotated[
        float, option("--every", "Seconds between two rounds through the spool.", min=0.2)
    ] = 10.0,
    json: Json = False,
) -> int:
    """Answer the signed requests of users' supervisors: check the nodes and drain those that are sick. Where
    the site sets site-priority, also raise the priority of a job that replaces one lost to a broken node. Check
    drained nodes again, as `ftrun recheck` does. Run as root or SlurmUser; `ftrun site unit` prints what starts it.

    Prints one line for each answer.  Exit 75: not now (another `ftrun site` runs, or Slurm or munge does not
    answer).  77: this user may not drain.
    """
    if context.invoked_subcommand is not None:
        return 0
    return serve(once=once, observe=observe, every=every, json=json)


def serve(*, once: bool = False, observe: bool = False, every: float = 10.0, json: bool = False) -> int:
    """Run the service. Raises UserError."""
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.supervisor.nodes.spool import Spool, SpoolError
    from ftrun.supervisor.site import drain_service
    from ftrun.supervisor.site.database import SiteDatabase
    from ftrun.supervisor.site.publication import Publication
    from ftrun.supervisor.site.service import SiteService
    from ftrun.supervisor.store import append_log

    settings, home, cluster = site_admin.setup()
    path = settings.text("site-spool")
    if not path.startswith("/"):
        raise UserError(
            "site-spool: the site file must name a folder (`ftrun site unit` prints the settings)"
        )
    try:
        rights = cluster.rights()
        if not rights.may_drain:
            raise UserError(
                f"nodes cannot be drained: {rights.why}; run this as root or SlurmUser", EXIT_NOT_PERMITTED
            )
        facts = cluster.facts()
        spool = Spool(path, unsigned=facts.auth != "auth/munge")
        where = drain_service.moved_site_dir(home)
        with append_log.lock_service(where) as alone:
            if not alone:
                raise UserError("another `ftrun site` is running; nothing was done", EXIT_LATER)
            drains = _drains(home, cluster, spool, settings, observe=observe)
            service = SiteService(
                drains,
                partial(SiteDatabase, where),
                _checks("recheck", "site", settings),
                Publication(path, facts.name, acts=not drains.observe),
                recheck=site_admin.recheck_rules(settings),
            )
            if once:
                _print_answers(service.round(), json=json)
                if not drains.observe and drains.orders().paused is None:
                    recheck(quiet=True, json=json)
                if service.ledger_fault:
                    raise UserError(service.ledger_fault, 1)
            else:
                _serve(service, every, json=json)
    except SpoolError as error:
        raise UserError(str(error), 1) from None
    except SlurmError as error:
        raise UserError(f"{error.message}; the requests stay in the spool", EXIT_LATER) from None
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror}", EXIT_LATER) from None
    return 0


def _drains(
    home: str, cluster: CommandCluster, spool: Spool, settings: Config, *, observe: bool
) -> DrainService:
    from ftrun.slurm.commands import munge
    from ftrun.supervisor.nodes.drain_rules import Limits
    from ftrun.supervisor.policy import priority_boost
    from ftrun.supervisor.site import drain_service
    from ftrun.supervisor.site.drain_service import DrainService
    from ftrun.supervisor.site.orders import read_orders
    from ftrun.supervisor.store import crash_points

    limits = Limits(
        share=settings.number("drain-cap"),
        per_hour=settings.whole("site-drains-per-hour"),
        per_user=settings.whole("site-requests-per-user"),
    )
    try:
        rule = priority_boost.parse_rule(
            settings.text("site-priority"),
            per_hour=settings.whole("site-raise-per-hour"),
            per_user=settings.whole("site-raise-per-user"),
            ran_s=settings.number("site-raise-after"),
        )
    except priority_boost.BadRule as error:
        raise UserError(str(error)) from None
    return DrainService(
        home,
        cluster,
        spool,
        _checks("fast", "site", settings),
        limits,
        partial(munge.decode, socket=cluster.facts().munge_socket),
        action=settings.text("site-action"),
        rule=rule,
        prefer=cluster.prefer,
        observe=observe or settings.flag("observe"),
        orders=partial(read_orders, drain_service.site_dir(home)),
        crash=crash_points.crash_plan(os.environ.get("FTRUN_CRASH_AT", "")),
    )


def _serve(service: SiteService, every_s: float, *, json: bool) -> None:
    """Round after round until TERM, INT or HUP. What does not answer is told once, and asked again."""
    from ftrun.slurm.client.errors import SlurmError

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    told, again = "", _Rechecks()
    while not over.is_set():
        why = ""
        try:
            _print_answers(service.round(), json=json)
            why = service.ledger_fault
            if (paused := service.drains.orders().paused) is not None:
                why = f"paused by {paused.by}: {paused.why or 'no reason was given'}"
                again.end()
            elif not service.drains.observe:
                again.start_where_due(service.drains.cluster)
        except (SlurmError, OSError) as error:
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            why += "; the requests stay in the spool"
        if why and why != told:
            print(f"ftrun: {plain(why)}", file=sys.stderr, flush=True)
        told = why
        over.wait(every_s)
    again.end()


class _Rechecks:
    """Rounds of `ftrun recheck` in a child, so that a command which mends a node keeps no request waiting."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._due_s = 0.0
        self._some = True  # a node bore a reason of ftrun's when it was last looked

    def start_where_due(self, cluster: Cluster) -> None:
        """Begin a round where a node bears a reason of ftrun's, or did before. Raises SlurmError, OSError."""
        from ftrun.supervisor.nodes.recheck_rules import PREFIX

        if time.monotonic() < self._due_s or (self._child is not None and self._child.poll() is None):
            return
        self._due_s = time.monotonic() + RECHECK_EVERY_S
        before, self._some = (
            self._some,
            any(row.reason.startswith(PREFIX) for row in cluster.nodes().values()),
        )
        if before or self._some:
            argv = (sys.executable, "-P", "-m", "ftrun.supervisor", "recheck", "--quiet")
            self._child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, cwd="/")

    def end(self) -> None:
        """End the round: a later one goes on where it was cut."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            self._child.wait()


def _print_answers(answers: list[Answer], *, json: bool) -> None:
    for answer in answers:
        if json:
            common.print_json({"at": time.time(), **asdict(answer)})
        else:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            print(
                f"{stamp} {answer.verdict} {answer.node or '-'} for {site_admin.user_name(answer.uid)}: {plain(answer.why)}"
            )
    sys.stdout.flush()


@app.command("unit")
def unit(json: Json = False) -> None:
    """Print what starts the service, ready to be pasted: the site's settings, a systemd unit, or a line for cron."""
    from ftrun.supervisor.cli import supervise

    env = dict(os.environ)
    settings = sources.load("/", env)
    home, spool = settings.home(env), settings.text("site-spool")
    texts = {
        "settings": supervise.site_settings(spool),
        "unit": supervise.site_unit(home, env),
        "crontab": supervise.site_crontab(home, env),
    }
    if json:
        common.print_json(texts)
    else:
        print("\n".join(texts.values()), end="")


@app.command("check")
def check(json: Json = False) -> int:
    """Say what the service lacks on this host. Exit 1 if it would not work. Changes nothing."""
    from ftrun.supervisor.cli import doctor

    settings, home, cluster = site_admin.setup()
    return doctor.print_findings(_missing(settings, home, cluster), json=json)


def _missing(settings: Config, home: str, cluster: Cluster) -> list[Finding]:
    """What the service needs, each as a finding."""
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.supervisor.cli import doctor
    from ftrun.supervisor.cli.doctor import Finding

    found = list(doctor.site_findings(dict(os.environ), settings.text("site-spool"), cluster))
    try:
        rights = cluster.rights()
        mend = "run it as root or SlurmUser, or give its user AdminLevel=Administrator"
        found.append(Finding("draining", "ok" if rights.may_drain else "bad", rights.why, mend))
        found.append(_reached(settings, sorted(cluster.nodes())))
    except SlurmError as error:
        found.append(Finding("slurmctld", "bad", error.message, "run it where sinfo answers"))
    found += _listed(settings.text("site-spool"))
    trusted = (
        home,
        os.path.dirname(settings.text("site-spool")),
        settings.text("checks"),
        settings.text("ssh-config"),
    )
    wrong = site_admin.writable_by_others((*trusted, sys.executable, __file__))
    mend = "let only root, or the service's user, write there"
    found += [Finding("files", "warn", why, mend) for why in wrong]
    found.append(_running(home))
    kind = doctor.file_system(home)
    if kind in doctor.LOCAL_TYPES:
        found.append(Finding("ledger", "ok", f"{home} lies on {kind}"))
    else:
        mend = "set FTRUN_HOME to a folder on a local disk of the service's host"
        found.append(Finding("ledger", "warn", f"{home} lies on {kind or 'an unknown file system'}", mend))
    return found


def _listed(spool: str) -> Iterator[Finding]:
    """Whether this user can list the spool and the folders of users in it, without which no request is seen."""
    from ftrun.supervisor.cli.doctor import Finding
    from ftrun.supervisor.nodes.spool import spool_owner, unlisted_folders

    try:
        closed = unlisted_folders(spool)
    except FileNotFoundError:
        return  # told already
    except OSError as error:
        mend = f"the service runs as the spool's owner, user {spool_owner(spool)}"
        yield Finding("spool", "bad", f"{spool}: {error.strerror}", mend)
        return
    if closed:
        why = f"{len(closed)} folders of users cannot be listed, {closed[0]} is one: their requests are not seen"
        yield Finding("spool", "bad", why, "chmod 0755 each, or run the service as root")


def _reached(settings: Config, nodes: list[str]) -> Finding:
    """Whether the service can check nodes: one of them is asked over SSH."""
    from ftrun.supervisor.cli.doctor import Finding

    name, mend = "nodes by SSH", "a key of this user's on the nodes, or ssh-config in the site's file"
    reports = _checks("fast", "site", settings)(nodes[:1])
    for node, report in reports.items():
        if report.state == "answered":
            return Finding(name, "ok", f"{node} answers with {len(report.findings)} checks")
        return Finding(name, "bad", f"{node}: {report.why or report.state}", mend)
    return Finding(name, "bad", "Slurm shows no node", "")


def _running(home: str) -> Finding:
    from ftrun.supervisor.cli.doctor import Finding
    from ftrun.supervisor.site import drain_service
    from ftrun.supervisor.store import append_log

    where = drain_service.site_dir(home)
    try:
        alone = not append_log.is_locked(where)
    except OSError as error:
        return Finding("service", "bad", f"{where}: {error.strerror}", "FTRUN_HOME must be its user's own")
    mend = "ftrun site unit prints a unit and a line for cron"
    if alone:
        return Finding("service", "warn", f"no `ftrun site` runs now with the home {home}", mend)
    return Finding("service", "ok", f"it runs, with the home {home}")


site_admin.add_commands(app)


@app.command("ticket")
def ticket(
    node: Annotated[str, argument("NODE", "One node, by its name.")],
    out: Annotated[
        str, option("--out -o", "Where to write it (default: ticket-NODE-DATE.tar.gz here).", "FILE")
    ] = "",
    no_look: Annotated[bool, option("--no-look", "Do not visit the node.")] = False,
    json: Json = False,
) -> None:
    """Write a ticket for the vendor of a node, as one archive: machine and serial number, what checks of its hardware
    and network find now (over SSH), kernel lines, faults of jobs with their dates, its history. No user, run, job, path
    or line of a log is in it.
    """
    from ftrun.supervisor.nodes import remote_checks
    from ftrun.supervisor.nodes.recheck_rules import CheckReport
    from ftrun.supervisor.site import ticket as tickets

    def clock(at_s: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))

    with site_admin.open_ledger() as (database, cluster, settings, _):
        now_s, facts = time.time(), cluster.facts()
        reports, events, machine = site_admin.history_of(database, node, cluster.nodes())
        if node not in cluster.nodes([node]) and not events and not reports:
            raise UserError(f"neither Slurm nor the site's ledger knows a node {node!r}")
    look = CheckReport("unseen", why="it was not visited")
    if not no_look:
        checks = remote_checks.thresholds(settings.text("checks"))
        for name in ("gpu-xid", "kernel-log"):
            checks[name] = {**checks.get(name, {}), "recent_s": tickets.LOG_DAYS * 86_400}
        config = settings.text("ssh-config")
        look = remote_checks.ssh_checks("recheck", "ticket", ssh_config=config, checks=checks)([node])[node]
    looked = clock(now_s) if look.state == "answered" else look.why or look.state
    names = {one.pw_name for one in pwd.getpwall() if one.pw_uid >= 1000} | {
        site_admin.user_name(one.uid) for one in reports
    }
    made = tickets.make_ticket(
        node, machine, look, looked, reports=reports, events=events, names=names - {"root"}, clock=clock
    )
    path = out or f"ticket-{node}-{time.strftime('%Y%m%d', time.gmtime(now_s))}.tar.gz"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(ticket_archive(made, facts.name, now_s))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if json:
        common.print_json({"path": os.path.abspath(path), **asdict(made)})
    else:
        print(f"{tickets.text_of(made, facts.name)}\nwritten to {path}; read it before you send it")


def ticket_archive(ticket: Ticket, cluster: str, now_s: float) -> bytes:
    """A gzipped tar with ticket.txt and ticket.json; nobody's name is in its headers."""
    import io
    import tarfile
    from json import dumps

    from ftrun.supervisor.site import ticket as tickets

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, content in (
            ("ticket.txt", tickets.text_of(ticket, cluster)),
            ("ticket.json", dumps({"schema": 1, "cluster": cluster, **asdict(ticket)}, indent=1) + "\n"),
        ):
            data = content.encode()
            entry = tarfile.TarInfo(f"ticket-{ticket.node}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(now_s), 0o644
            packed.addfile(entry, io.BytesIO(data))
    return out.getvalue()


# ---------------------------------------------------------------------- recheck

ATTENTION = frozenset({"failing", "unseen", "left", "edited", "refused"})


def recheck(
    nodes: Annotated[
        list[str] | None, argument("NODE...", "Only these nodes; lists such as n[1-4] are allowed.")
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Check the nodes and print what would be done; change and record nothing.")
    ] = False,
    quiet: Annotated[
        bool, option("--quiet -q", "Print nothing where there is nothing to do; for cron.")
    ] = False,
    json: Json = False,
) -> int:
    """Check the nodes that ftrun drained (by its drain reason), and return to service those that pass several
    times in a row. For cron.

    Prints one line for each node.  Exit 0: no node needs a person.  1: a node still fails, cannot be reached,
    or is left to a person. 75: not now (another recheck runs, or Slurm does not answer).  77: this user may
    not return nodes to service.
    """
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.supervisor.nodes import recheck_loop
    from ftrun.supervisor.store import append_log

    settings, home, cluster = site_admin.setup()
    wanted = common.nodes_named(nodes or [])
    round_ = _round(home, cluster, settings, wanted, dry=dry_run)
    try:
        rights = cluster.rights()
        if not rights.may_drain and not dry_run:
            why = f"nodes cannot be returned to service: {rights.why}; run this as root or SlurmUser"
            raise UserError(why, EXIT_NOT_PERMITTED)
        with (
            nullcontext(True) if dry_run else append_log.lock_service(recheck_loop.recheck_dir(home)) as alone
        ):
            if not alone:
                raise UserError("another recheck is running; nothing was done", EXIT_LATER)
            lines = round_.run()
    except SlurmError as error:
        why = f"Slurm does not answer: {error.message}; nothing more was done"
        raise UserError(why, EXIT_LATER) from None
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; nothing more was done", EXIT_LATER) from None
    if json:
        common.print_json({"dry_run": dry_run, "nodes": [asdict(line) for line in lines]})
    elif lines:
        rows = [[n.node, n.state, n.why, n.reason or None] for n in lines]
        common.print_table(["NODE", "STATE", "WHY", "REASON"], rows)
    elif not wanted and not quiet:
        print("nothing to do: no node has a drain reason of ftrun")
    others = sorted(set(wanted) - {line.node for line in lines})
    if others:
        print(f"ftrun: {nodeset.fold(others)}: not drained by ftrun; left alone", file=sys.stderr)
    return EXIT_ATTENTION if any(line.state in ATTENTION for line in lines) else 0


def _round(
    home: str, cluster: CommandCluster, settings: Config, nodes: tuple[str, ...], *, dry: bool
) -> RecheckRound:
    from ftrun.supervisor.nodes.recheck_loop import RecheckRound
    from ftrun.supervisor.store import crash_points

    steps = settings["recheck-step"]
    assert isinstance(steps, list)
    _checked(steps)
    return RecheckRound(
        home=home,
        cluster=cluster,
        look=_noting(_checks("recheck", "recheck", settings), home, dry=dry),
        rules=site_admin.recheck_rules(settings),
        now=time.time,
        steps=steps,
        dry=dry,
        only=frozenset(nodes),
        crash=crash_points.crash_plan(os.environ.get("FTRUN_CRASH_AT", "")),
    )


def _noting(look: CheckNodes, home: str, *, dry: bool) -> CheckNodes:
    """The same looks; the site's ledger, where there is one, keeps which machines they met."""
    from ftrun.supervisor.site.database import SiteDatabase
    from ftrun.supervisor.site.drain_service import site_dir

    where = site_dir(home)
    if dry or not os.path.exists(os.path.join(where, "site.db")):
        return look
    return site_admin.noting(look, lambda: closing(SiteDatabase(where)))


def _checked(steps: list[str]) -> None:
    for text in steps:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"recheck-step: {text!r}: {error}") from None
        if not words:
            raise UserError("recheck-step: a command is wanted, not an empty text")
