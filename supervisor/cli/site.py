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
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

from ftrun.slurm.client import nodeset
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError

if TYPE_CHECKING:
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.config.sources import Config
    from ftrun.supervisor.nodes.drain_service import Answer, DrainService
    from ftrun.supervisor.nodes.recheck_loop import RecheckRound
    from ftrun.supervisor.nodes.recheck_rules import CheckNodes
    from ftrun.supervisor.nodes.spool import Spool

EXIT_ATTENTION = 1
EXIT_LATER = 75  # EX_TEMPFAIL of sysexits.h
EXIT_NOT_PERMITTED = 77  # EX_NOPERM
COMMAND_TIMEOUT_S = 30.0


def _service() -> tuple[Config, str, CommandCluster]:
    """The settings, the home and the cluster of a service of the site. Raises UserError."""
    from ftrun.slurm.commands.cluster import CommandCluster

    env = dict(os.environ)
    settings = sources.load("/", env)  # not the current folder: its owner must not configure root
    home = common.checked_home(settings.home(env))
    return settings, home, CommandCluster(env, timeout_s=COMMAND_TIMEOUT_S)


def _checks(tier: str, kind: str, settings: Config) -> CheckNodes:
    """Checks of nodes over SSH, with the site's configuration and thresholds. Raises UserError."""
    from ftrun.supervisor.nodes import remote_checks

    checks = remote_checks.thresholds(settings.text("checks"))
    return remote_checks.ssh_checks(tier, kind, ssh_config=settings.text("ssh-config"), checks=checks)


def site(
    once: Annotated[bool, option("--once", "Answer the requests that wait, then end (for cron).")] = False,
    observe: Annotated[
        bool, option("--observe", "Check and answer, but drain nothing: begin with this.")
    ] = False,
    every: Annotated[
        float, option("--every", "Seconds between two rounds through the spool.", min=0.2)
    ] = 10.0,
    json: Json = False,
) -> int:
    """Answer the signed requests of users' supervisors: check the nodes and drain those that are sick. Where
    the site sets site-priority, also raise the priority of a job that replaces one lost to a broken node. Run
    as root or SlurmUser.

    Prints one line for each answer.  Exit 75: not now (another `ftrun site` runs, or Slurm or munge does not
    answer).  77: this user may not drain.
    """
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.supervisor.nodes import drain_service
    from ftrun.supervisor.nodes.spool import Spool, SpoolError
    from ftrun.supervisor.store import append_log

    settings, home, cluster = _service()
    path = settings.text("site-spool")
    if not path.startswith("/"):
        raise UserError("site-spool: the site file must name a folder (see docs/site.md)")
    try:
        rights = cluster.rights()
        if not rights.may_drain:
            raise UserError(
                f"nodes cannot be drained: {rights.why}; run this as root or SlurmUser", EXIT_NOT_PERMITTED
            )
        spool = Spool(path)
        with append_log.lock_service(drain_service.drain_service_dir(home)) as alone:
            if not alone:
                raise UserError("another `ftrun site` is running; nothing was done", EXIT_LATER)
            desk = _desk(home, cluster, spool, settings, observe=observe)
            if once:
                _print_answers(desk.round(), json=json)
            else:
                _serve(desk, every, json=json)
    except SpoolError as error:
        raise UserError(str(error), 1) from None
    except SlurmError as error:
        raise UserError(f"{error.message}; the requests stay in the spool", EXIT_LATER) from None
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror}", EXIT_LATER) from None
    return 0


def _desk(
    home: str, cluster: CommandCluster, spool: Spool, settings: Config, *, observe: bool
) -> DrainService:
    from ftrun.slurm.commands import munge
    from ftrun.supervisor.nodes.drain_rules import Limits
    from ftrun.supervisor.nodes.drain_service import DrainService
    from ftrun.supervisor.policy import priority_boost
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
        crash=crash_points.crash_plan(os.environ.get("FTRUN_CRASH_AT", "")),
    )


def _serve(desk: DrainService, every_s: float, *, json: bool) -> None:
    """Round after round until TERM, INT or HUP. What does not answer is told once, and asked again."""
    from ftrun.slurm.client.errors import SlurmError

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    told = ""
    while not over.is_set():
        why = ""
        try:
            _print_answers(desk.round(), json=json)
        except (SlurmError, OSError) as error:
            why = error.message if isinstance(error, SlurmError) else f"{error.filename}: {error.strerror}"
        if why and why != told:
            print(f"ftrun: {why}; the requests stay in the spool", file=sys.stderr, flush=True)
        told = why
        over.wait(every_s)


def _print_answers(answers: list[Answer], *, json: bool) -> None:
    for answer in answers:
        if json:
            common.print_json({"at": time.time(), **asdict(answer)})
        else:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            print(f"{stamp} {answer.verdict} {answer.node or '-'} for {_user(answer.uid)}: {answer.why}")
    sys.stdout.flush()


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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

    settings, home, cluster = _service()
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
    from ftrun.supervisor.nodes.recheck_rules import RecheckRules
    from ftrun.supervisor.store import crash_points

    steps = settings["recheck-step"]
    assert isinstance(steps, list)
    _checked(steps)
    rules = RecheckRules(
        passes=settings.whole("recheck-passes"),
        spacing_s=settings.number("recheck-spacing"),
        lies=settings.whole("recheck-max-relapses"),
        steps=len(steps),
    )
    return RecheckRound(
        home=home,
        cluster=cluster,
        look=_checks("recheck", "recheck", settings),
        rules=rules,
        now=time.time,
        steps=steps,
        dry=dry,
        only=frozenset(nodes),
        crash=crash_points.crash_plan(os.environ.get("FTRUN_CRASH_AT", "")),
    )


def _checked(steps: list[str]) -> None:
    for text in steps:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"recheck-step: {text!r}: {error}") from None
        if not words:
            raise UserError("recheck-step: a command is wanted, not an empty text")
