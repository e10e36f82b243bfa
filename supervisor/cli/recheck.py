"""`ftrun recheck`: check the nodes that ftrun drained, and return healthy ones to service. (I/O)"""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from ftrun.slurm.client import nodeset
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import Cluster
    from ftrun.supervisor.config.sources import Config
    from ftrun.supervisor.nodes.recheck_loop import RecheckRound

EXIT_ATTENTION = 1
EXIT_LATER = 75  # EX_TEMPFAIL of sysexits.h
EXIT_NOT_PERMITTED = 77  # EX_NOPERM
COMMAND_TIMEOUT_S = 30.0
ATTENTION = frozenset({"failing", "unseen", "left", "edited", "refused"})


def recheck(
    nodes: Annotated[
        list[str] | None, argument("NODE...", "Only these nodes; lists such as n[1-4] are allowed.")
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Check the nodes and print what would be done; change and record nothing.")
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
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.nodes import recheck_loop
    from ftrun.supervisor.store import append_log

    env = dict(os.environ)
    settings = sources.load("/", env)  # not the current folder: its owner must not configure root
    home = common.checked_home(settings.home(env))
    cluster = CommandCluster(env, timeout_s=COMMAND_TIMEOUT_S)
    wanted = _named(nodes or [])
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
    elif sys.stdout.isatty() and not wanted:
        print("no node has a drain reason of ftrun")
    others = sorted(set(wanted) - {line.node for line in lines})
    if others:
        print(f"ftrun: {nodeset.fold(others)}: not drained by ftrun; left alone", file=sys.stderr)
    return EXIT_ATTENTION if any(line.state in ATTENTION for line in lines) else 0


def _named(words: list[str]) -> list[str]:
    """The nodes of lists such as n[1-4]. Raises UserError."""
    try:
        return [node for word in words for node in nodeset.expand(word)]
    except ValueError as error:
        raise UserError(str(error)) from None


def _round(home: str, cluster: Cluster, settings: Config, nodes: list[str], *, dry: bool) -> RecheckRound:
    from ftrun.supervisor.nodes import remote_checks
    from ftrun.supervisor.nodes.recheck_loop import RecheckRound
    from ftrun.supervisor.nodes.recheck_rules import RecheckRules
    from ftrun.supervisor.store import crash_points

    steps = settings["recheck-step"]
    assert isinstance(steps, list)
    _checked(steps)
    rules = RecheckRules(
        passes=int(str(settings["recheck-passes"])),
        spacing_s=float(str(settings["recheck-spacing"])),
        lies=int(str(settings["recheck-max-relapses"])),
        steps=len(steps),
    )
    checks = remote_checks.thresholds(settings.text("checks"))
    look = remote_checks.ssh_checks(
        "recheck", "recheck", ssh_config=settings.text("ssh-config"), checks=checks
    )
    return RecheckRound(
        home=home,
        cluster=cluster,
        look=look,
        rules=rules,
        now=time.time,
        steps=steps,
        dry=dry,
        only=frozenset(nodes),
        crash=crash_points.crash_plan(os.environ.get("FTRUN_CRASH_AT", "")),
    )


def _checked(steps: list[str]) -> None:
    """Raise UserError for a command that no shell accepts."""
    for text in steps:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"recheck-step: {text!r}: {error}") from None
        if not words:
            raise UserError("recheck-step: a command is wanted, not an empty text")
