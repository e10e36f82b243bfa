"""`ftrun site`: the site's service, which drains nodes and raises recovered jobs for users who may not. (I/O)

The service believes no request: it checks the node by itself (`nodes.drain_service`, `nodes.drain_rules`).
This module reads the site's settings, takes the lock that keeps a second service out, and prints the answers.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError

if TYPE_CHECKING:
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.config.sources import Config
    from ftrun.supervisor.nodes.drain_service import Answer, DrainService
    from ftrun.supervisor.nodes.spool import Spool

EXIT_LATER = 75  # EX_TEMPFAIL of sysexits.h
EXIT_NOT_PERMITTED = 77  # EX_NOPERM
COMMAND_TIMEOUT_S = 30.0


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
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.nodes import drain_service
    from ftrun.supervisor.nodes.spool import Spool, SpoolError
    from ftrun.supervisor.store import append_log

    env = dict(os.environ)
    settings = sources.load("/", env)  # not the current folder: its owner must not configure root
    path = settings.text("site-spool")
    if not path.startswith("/"):
        raise UserError("site-spool: the site file must name a folder (see docs/site.md)")
    home = common.checked_home(settings.home(env))
    cluster = CommandCluster(env, timeout_s=COMMAND_TIMEOUT_S)
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
    from ftrun.supervisor.nodes import remote_checks
    from ftrun.supervisor.nodes.drain_rules import Limits
    from ftrun.supervisor.nodes.drain_service import DrainService
    from ftrun.supervisor.policy import priority_boost
    from ftrun.supervisor.store import crash_points

    look = remote_checks.ssh_checks(
        "fast",
        "site",
        ssh_config=settings.text("ssh-config"),
        checks=remote_checks.thresholds(settings.text("checks")),
    )
    limits = Limits(
        share=float(str(settings["drain-cap"])),
        per_hour=int(str(settings["site-drains-per-hour"])),
        per_user=int(str(settings["site-requests-per-user"])),
    )
    try:
        rule = priority_boost.parse_rule(
            settings.text("site-priority"),
            per_hour=int(str(settings["site-raise-per-hour"])),
            per_user=int(str(settings["site-raise-per-user"])),
            ran_s=float(str(settings["site-raise-after"])),
        )
    except priority_boost.BadRule as error:
        raise UserError(str(error)) from None
    return DrainService(
        home,
        cluster,
        spool,
        look,
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
