"""`ftrun cluster add`, `remove`, `drain`, `resume`: the hosts of a living cluster; and what all commands of `ftrun cluster` share. (I/O)"""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from ftrun.slurm.client.nodeset import fold
from ftrun.slurm.cluster.plan import Plan
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.cluster import hosts, lifecycle, membership
from ftrun.supervisor.cluster.state import ClusterState, known

DEFAULT = "default"

NameOption = Annotated[
    str, option("--name", "Which cluster [default: FTRUN_CLUSTER, else the only one, else `default`].")
]
HostsArgument = Annotated[
    list[str] | None, argument("[HOSTS]...", "gpu[01-08], @group of ClusterShell, or localhost.")
]
HostfileOption = Annotated[
    str, option("--hostfile", "A file with `host` or `host slots=8` on each line.", "FILE")
]
PortOption = Annotated[
    int,
    option(
        "--base-port", "The first of 210 ports that the hosts use between them.", "PORT", min=1024, max=65_000
    ),
]
SharedOption = Annotated[str, option("--shared", "A folder that all hosts see [default: your home].", "DIR")]
PublicOption = Annotated[
    bool, option("--allow-public", "Permit daemons to listen on addresses that the internet reaches.")
]


def state_of(name: str) -> ClusterState:
    """The cluster that is meant: the one named, that of FTRUN_CLUSTER, the only one, or `default`."""
    if name or os.environ.get("FTRUN_CLUSTER"):
        return ClusterState(name or os.environ["FTRUN_CLUSTER"])
    there = known()
    return there[0] if len(there) == 1 else ClusterState(DEFAULT)


def say(line: str) -> None:
    """Tell the stage that begins."""
    print(f"ftrun: {line} ...", file=sys.stderr, flush=True)


def add(  # noqa: PLR0917 - options, never positions
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    name: NameOption = "",
    shared: SharedOption = "",
    allow_public: PublicOption = False,
    as_json: Json = False,
) -> None:
    """Add hosts to a living cluster; return when they are usable. Jobs go on."""
    began_s = time.monotonic()
    targets = hosts.targets(words or [], hostfile)
    state = state_of(name)
    wish = lifecycle.Wish(targets, state.existing_plan().base_port, shared, allow_public=allow_public)
    plan, new = membership.add(state, wish, say)
    took_s = time.monotonic() - began_s
    if as_json:
        added = [host.name for host in new]
        everyone = [host.name for host in plan.hosts]
        common.print_json({"name": plan.name, "added": added, "hosts": everyone, "took_s": round(took_s, 2)})
        return
    what = fold(host.name for host in new) if new else "nobody"
    print(f"cluster {plan.name} has {len(plan.hosts)} nodes: {what} was added in {took_s:.1f} s")


def remove(
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    name: NameOption = "",
    force: Annotated[
        bool,
        option(
            "--force", "Even if jobs run on them (they end as with a node that died) or one cannot be asked."
        ),
    ] = False,
) -> None:
    """Take hosts out of a cluster: no process, key or claim is left on them; jobs on the others go on."""
    names = [target.name for target in hosts.targets(words or [], hostfile)]
    plan, notes = membership.remove(state_of(name), names, say, force=force)
    for note in notes:
        print(f"ftrun: note: {note}", file=sys.stderr)
    print(f"cluster {plan.name} has {len(plan.hosts)} nodes: {fold(names)} was removed")


def drain(
    words: HostsArgument = None,
    hostfile: HostfileOption = "",
    name: NameOption = "",
    reason: Annotated[str, option("--reason", "What others should know [default: by whom].", "TEXT")] = "",
) -> None:
    """Let no more jobs start on hosts of a cluster; those that run go on."""
    names = [target.name for target in hosts.targets(words or [], hostfile)]
    by = f"by {getpass.getuser()}@{os.uname().nodename}"
    nodes = membership.drain(state_of(name), names, reason or by)
    print(f"{fold(nodes)} takes no more jobs; `ftrun cluster resume` ends that")


def resume(words: HostsArgument = None, hostfile: HostfileOption = "", name: NameOption = "") -> None:
    """Let jobs start again on hosts that were drained, or are down."""
    names = [target.name for target in hosts.targets(words or [], hostfile)]
    nodes = membership.resume(state_of(name), names)
    print(f"{fold(nodes)} takes jobs")


def unkept(plan: Plan) -> Iterator[str]:
    """A line about the hosts that do not come back by themselves, if there are any."""
    if plan.unkept:
        names = fold(host.name for host in plan.unkept)
        yield f"note: {names}: neither systemd with linger nor cron: does not come back by itself after a reboot; {os.uname().nodename} starts what is dead there over SSH while it can"


def told(host: str, one: Mapping[str, Any]) -> str:
    """One line about what the keeper of a host did."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["at_s"]))
    if one["did"] == "left":
        return f"{at}  {host} left the cluster, by {one['by']}: {one['why']}"
    what = "started" if one["did"] == "started" else "did not start"
    return f"{at}  {host}: {one['by']} {what} {one['daemon']}: {one['why']}"
