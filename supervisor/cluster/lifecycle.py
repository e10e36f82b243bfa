"""Bring a cluster up, ask how it is, take it down: intent, act, fact. (I/O)

Every effect on a host can be repeated, and the plan is kept before the first one. So whoever was killed in the middle of `up` says it
again, and the second one does what is missing; `down` ends whatever there is of it.
"""

from __future__ import annotations

import base64
import dataclasses
import getpass
import os
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

from ftrun.hooks.cluster.nodes import SETTLED
from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.client.releases import OLDEST, release_text
from ftrun.slurm.cluster.conf import cgroup_conf_text
from ftrun.slurm.cluster.plan import Host, Plan, slurm_conf
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cluster import bundle, findings, remote, share, site_file, watch
from ftrun.supervisor.cluster.bundle import Bundle
from ftrun.supervisor.cluster.findings import Facts
from ftrun.supervisor.cluster.hosts import Target
from ftrun.supervisor.cluster.remote import HostAnswer
from ftrun.supervisor.cluster.state import ClusterState
from ftrun.supervisor.cluster.survey import Survey, survey
from ftrun.supervisor.model.errors import UserError

EXIT_FAILED = 1
BASE_PORT = 17_817
READY_S = 60.0
INSTALL_S = 960.0
MEMORY_LEFT_SHARE = 0.02
"""The part of a host's memory that no job is promised: kernel and daemons live there."""

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked of `up`. `bundles`: files of bundles of Slurm, to be used whatever the hosts have installed. `backup`: the host
    of a second slurmctld, "" for none. `install`: put the packages of their distributions on hosts that lack Slurm.
    """

    targets: tuple[Target, ...]
    base_port: int = BASE_PORT
    shared: str = ""
    share: str = ""
    partial: bool = False
    allow_public: bool = False
    fence_command: str = ""
    repair_commands: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    backup: str = ""
    install: bool = False


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host: its daemons (name -> {"pid", "up_s", "frozen"}), Slurm's word on its node, and why it could not be asked.

    `kept_by`: who starts what is dead there (systemd, cron, ssh), "" for nobody. `up_s`: since when the host is up. `done`: what was started
    again there, by whom and when, the last of it. `notes`: what is wrong with its clock or disk.
    """

    host: str
    target: str
    daemons: Mapping[str, Any]
    processes: int
    state: str
    reason: str
    unreached: str
    kept_by: str
    up_s: float
    done: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()


def up(state: ClusterState, wish: Wish, told: Told) -> tuple[Plan, Survey | None]:
    """Bring the cluster up, or mend what was begun, and return when all its nodes are usable. `told` hears each stage.

    Returns the plan, and the survey of a new cluster. Raises UserError: what is wrong and how to mend it.
    """
    with state.lock():
        plan, found = state.plan(), None
        if plan is not None:
            _same_hosts(plan, wish)
            plan = _with_commands(state, plan, wish)
            told(f"cluster {plan.name} was begun on these hosts: mending what is missing")
        else:
            plan, found = _new_plan(state.name, wish, told)
            state.record("plan.intent", token=plan.token, hosts=[host.target for host in plan.hosts])
            state.keep_plan(plan)
            state.record("plan.done", token=plan.token)
        return settle(state, plan, told), found


def settle(state: ClusterState, plan: Plan, told: Told) -> Plan:
    """Make the hosts what the plan says: claimed, with their files and daemons; what is so already stays. Raises UserError.

    Returns the plan with who looks after the daemons of each host. `state` is locked. Daemons that live with another slurm.conf than the
    plan's are started again.
    """
    claim(state, plan, told)
    if plan.bundles:
        _spread(state, plan, told)
    return _start(state, plan, told)


def _with_commands(state: ClusterState, plan: Plan, wish: Wish) -> Plan:
    """The plan with the commands that are wished anew, kept."""
    fence, repair = wish.fence_command or plan.fence_command, wish.repair_commands or plan.repair_commands
    changed = dataclasses.replace(plan, fence_command=fence, repair_commands=repair)
    state.keep_plan(changed)  # makes the key anew, too, which a `down` that was cut has removed
    return changed


def _same_hosts(plan: Plan, wish: Wish) -> None:
    wanted = {target.name for target in wish.targets}
    living = {host.target for host in plan.hosts}
    if wanted != living and not (wish.partial and living < wanted):
        names = ",".join(host.target for host in plan.hosts)
        raise UserError(
            f"cluster {plan.name} is there with other hosts ({names}): `ftrun cluster add` or `remove` changes them, another --name makes another"
        )
    if {bundle.taken(path).name for path in wish.bundles} - set(plan.bundles.values()):
        raise UserError(f"cluster {plan.name} is there with another Slurm: take it down first")
    if wish.backup and wish.backup not in {host.target for host in plan.controllers[1:]}:
        raise UserError(
            f"cluster {plan.name} has {f'its second controller on {plan.backup}' if plan.backup else 'one controller'}: take it down first, then bring it up with --backup"
        )
    if wish.share and wish.share != plan.share:
        raise UserError(
            f"cluster {plan.name} shares {plan.share or 'no folder'}: take it down first, then bring it up with --share"
        )


def _new_plan(name: str, wish: Wish, told: Told) -> tuple[Plan, Survey]:
    told(f"surveying {host_count(wish.targets)}")
    found = _surveyed(wish, told)
    if wish.install and (lacking := findings.without_slurm(found.without(found.bad).facts)):
        _install(lacking, found.facts, told)
        found = _surveyed(wish, told)
    usable = found.without(found.bad)
    if wish.backup and (problem := findings.backup_problem(wish.backup, usable.facts, usable.shared)):
        raise UserError(f"nothing was changed: {problem}", EXIT_FAILED)
    bundles: dict[str, Bundle] = {}
    if wish.bundles or findings.without_slurm(usable.facts):
        bundles = bundle.choose(wish.bundles, usable.architectures, told)
    return make_plan(name, wish, usable, bundles), found


def _surveyed(wish: Wish, told: Told) -> Survey:
    found = survey(
        wish.targets, wish.base_port, wish.shared, share=wish.share, allow_public=wish.allow_public
    )
    refuse_bad(found, wish, told)
    return found


def _install(lacking: Mapping[str, str], facts: Mapping[str, Facts], told: Told) -> None:
    """Install the packages of their distributions on hosts that lack Slurm (target -> why). Raises UserError."""
    if powerless := [target for target in lacking if not facts[target]["sudo"]]:
        raise UserError(
            f"nothing was changed: {', '.join(powerless)}: --install needs root or `sudo -n` there; without it a bundle is used",
            EXIT_FAILED,
        )
    told(f"installing Slurm and munge on {host_count(lacking)}")
    step = {"do": "install", "least": release_text(OLDEST)}
    answers = remote.ask({target: [step] for target in lacking}, INSTALL_S)
    if failed := [answer for answer in answers.values() if not answer.ok]:
        raise UserError(f"{failures(failed)}; without --install a bundle is used", EXIT_FAILED)


def refuse_bad(found: Survey, wish: Wish, told: Told) -> None:
    """Raise UserError where hosts are bad, unless the wish goes on with the rest of them."""
    if found.bad:
        lines = [
            f"{one.target}: {one.topic}: {one.text}" for one in found.findings if one.level == findings.BAD
        ]
        if not wish.partial or len(found.bad) == len(wish.targets):
            more = f" (and {len(lines) - 1} more: ftrun cluster survey)" if len(lines) > 1 else ""
            rest = "; --partial goes on without it" if 0 < len(found.bad) < len(wish.targets) else ""
            raise UserError(f"nothing was changed: {lines[0]}{more}{rest}", EXIT_FAILED)
        for line in lines:
            told(f"left out: {line}")


def make_plan(name: str, wish: Wish, found: Survey, bundles: Mapping[str, Bundle]) -> Plan:
    """The plan for the hosts of a survey without bad ones, with these bundles by architecture; none: with what is installed.

    Raises UserError where the cluster's folder has too long a path.
    """
    facts = found.facts
    head = next(iter(facts.values()))
    folder = f"/var/tmp/ftrun-{head['uid']}/{name}"  # noqa: S108  opened by `place`, which refuses another user's
    if problem := findings.socket_path_problem(folder, facts):
        raise UserError(problem)
    slots = {target.name: target.slots for target in wish.targets}
    used = {one["host"]: bundles[one["arch"]] for one in facts.values()} if bundles else {}
    version = findings.release(used[head["host"]].version if used else head["slurm"]["version"])
    if version is None:
        raise UserError(f"{head['host']}: slurmd tells no version", EXIT_FAILED)
    token = os.urandom(8).hex()
    plan = Plan(
        name=name,
        token=token,
        user=head["user"],
        uid=head["uid"],
        folder=folder,
        base_port=wish.base_port,
        version=version,
        bound=all(one["own_name"] == findings.address_of(target, one) for target, one in facts.items()),
        hosts=tuple(_host(target, one, slots[target]) for target, one in facts.items()),
        programs={one["host"]: one["slurm"]["programs"] for one in facts.values()},
        subreaper=tuple(one["host"] for one in facts.values() if one["subreaper"]),
        bundles={host: one.name for host, one in used.items()},
        shared=wish.share or wish.shared,
        share=wish.share,
        fence_command=wish.fence_command,
        repair_commands=wish.repair_commands,
        backup=facts[wish.backup]["host"] if wish.backup else "",
        state=f"{found.shared}/.ftrun-cluster-{name}-{token}" if wish.backup else "",
    )
    programs = {
        host: {name: f"{plan.bundle_folder(one.name)}/bin/{name}" for name in one.programs}
        for host, one in used.items()
    }
    return dataclasses.replace(plan, programs=programs) if used else plan


def _host(target: str, one: Facts, slots: int) -> Host:
    gres = {name: len(row["files"]) for name, row in one["gres"].items()}
    gres = {name: min(count, slots or count) for name, count in gres.items()}
    cpus = one["cpus"] if gres or not slots else min(slots, one["cpus"])
    return Host(
        name=one["host"],
        target=target,
        address=findings.address_of(target, one),
        cpus=cpus,
        topology=tuple(one["topology"]),
        memory_mib=int(one["memory_mib"] * (1 - MEMORY_LEFT_SHARE)),
        gres=gres,
        kind=next((row["kind"] for row in one["gres"].values()), ""),
    )


def claim(state: ClusterState, plan: Plan, told: Told, hosts: Sequence[Host] = ()) -> None:
    """Claim hosts (default: all) for the cluster. Raises UserError where another cluster has one: then none was claimed anew."""
    told("claiming the hosts")
    step = {
        "do": "claim",
        "token": plan.token,
        "name": plan.name,
        "user": plan.user,
        "since_s": round(time.time(), 3),
        "by": f"{getpass.getuser()}@{os.uname().nodename}",
        "folder": plan.folder,
    }
    state.record("claim.intent", token=plan.token)
    answers = remote.ask({host.target: [step] for host in hosts or plan.hosts})
    refused = [answer for answer in answers.values() if not answer.ok]
    if refused:
        state.record("claim.failed", token=plan.token, why=failures(refused))
        # Who gave no answer may have been claimed all the same; a cluster that never had a daemon gives all back.
        is_new = not _was_started(state, plan)
        had = {target for target, answer in answers.items() if answer.ok and not answer.done[0]["taken"]}
        kept = _not_given_back(plan, [target for target in answers if is_new or target not in had])
        if is_new and not kept:
            state.forget()
        rest = f"; {', '.join(kept)} may still be claimed: say it again" if kept else ""
        raise UserError(f"nothing was started: {failures(refused)}{rest}", EXIT_FAILED)
    state.record("claim.done", token=plan.token)


def _not_given_back(plan: Plan, targets: Sequence[str]) -> list[str]:
    """Release the claims of an `up` that was refused; the hosts that could not be asked for it."""
    release = {"do": "release", "token": plan.token}
    answers = remote.ask({target: [release] for target in targets})
    return [target for target, answer in answers.items() if not answer.ok]


def _was_started(state: ClusterState, plan: Plan) -> bool:
    return any(row["kind"] == "start.intent" and row.get("token") == plan.token for row in state.journal())


def _spread(state: ClusterState, plan: Plan, told: Told) -> None:
    told("unpacking Slurm on the hosts that do not have it yet")
    state.record("bundle.intent", token=plan.token, bundles=sorted(set(plan.bundles.values())))
    if failed := bundle.spread(plan):
        raise _failed(state, plan, failures(failed))
    state.record("bundle.done", token=plan.token)


def _start(state: ClusterState, plan: Plan, told: Told) -> Plan:
    told(f"starting munged, slurmctld on {plan.head.name} and {len(plan.hosts)} slurmd")
    state.record("start.intent", token=plan.token)
    place = _placing(state, plan)
    first = {
        host.target: [place(host), _starting(state, plan, host, _first_daemons(plan, host))]
        for host in plan.hosts
    }
    _carry_out(state, plan, first)
    state.record("controller.done", token=plan.token)
    answers = _carry_out(
        state,
        plan,
        {
            host.target: [
                _starting(state, plan, host, (*share.mounting(plan, host), "slurmd")),
                _looking_after(state, plan, host),
            ]
            for host in plan.hosts
        },
    )
    plan = dataclasses.replace(
        plan, kept_by={host.name: answers[host.target].done[1]["by"] for host in plan.hosts}
    )
    state.keep_plan(plan)
    state.record("keepers.done", token=plan.token, kept_by=plan.kept_by)
    told("waiting until all nodes are idle")
    answer = ask_controller(plan, [slurm_step(plan, "nodes", wait_s=READY_S)])
    if not answer.ok:
        raise _failed(state, plan, answer.failed)
    missing = [
        f"{name} is {row['state']}{why(row)}"
        for name, row in answer.done[0].items()
        if not is_usable(row["state"])
    ]
    if missing:
        raise _failed(state, plan, "; ".join(missing))
    state.record("up.done", token=plan.token)
    watch.ensure(state, plan)
    return plan


def is_usable(node_state: str) -> bool:
    """Whether Slurm starts jobs on a node of that state, or would if nobody had drained it."""
    return node_state in SETTLED


def why(row: Mapping[str, str]) -> str:
    """The reason of a node's state in parentheses; "" without one."""
    return f" ({row['reason']})" if row["reason"] else ""


def _carry_out(
    state: ClusterState, plan: Plan, requests: Mapping[str, Sequence[remote.Step]]
) -> dict[str, HostAnswer]:
    answers = remote.ask(requests)
    failed = [answer for answer in answers.values() if not answer.ok]
    if failed:
        raise _failed(state, plan, failures(failed))
    return answers


def _failed(state: ClusterState, plan: Plan, reason: str) -> UserError:
    state.record("start.failed", token=plan.token, why=reason)
    return UserError(
        f"cluster {plan.name} is half up: {reason}; say `up` again when that is mended, or `ftrun cluster down`",
        EXIT_FAILED,
    )


def _placing(state: ClusterState, plan: Plan) -> Callable[[Host], dict[str, Any]]:
    key = base64.b64encode(state.key()).decode()
    files = {"etc/slurm.conf": slurm_conf(plan), "etc/cgroup.conf": cgroup_conf_text(plan.version)}
    files |= site_file.files(plan)

    def place(host: Host) -> dict[str, Any]:
        name = plan.bundles.get(host.name, "")
        return {
            "do": "place",
            "folder": plan.folder,
            "files": files,
            "key": key,
            "programs": plan.programs[host.name],
            "plugins": f"{plan.bundle_folder(name)}/plugins" if name else "",
            "adopts": host.name in plan.subreaper,
            "state": plan.state if host in plan.controllers else "",
            "token": plan.token,
        }

    return place


def _first_daemons(plan: Plan, host: Host) -> tuple[str, ...]:
    """The daemons of a host that those of other hosts need."""
    return ("munged", *share.serving(plan, host), *(["slurmctld"] if host in plan.controllers else []))


def daemons_of(plan: Plan, host: Host) -> tuple[str, ...]:
    """The daemons of a host, in the order of their start."""
    return (*_first_daemons(plan, host), *share.mounting(plan, host), "slurmd")


def _starting(state: ClusterState, plan: Plan, host: Host, daemons: Sequence[str]) -> dict[str, Any]:
    return {
        "do": "start",
        "daemons": daemons,
        "token": plan.token,
        "folder": plan.folder,
        "programs": plan.programs[host.name],
        "address": host.address,
        "slurmd_port": plan.slurmd_port,
        "node": host.name,
        "state": plan.state,
        "rank": plan.controllers.index(host) if host in plan.controllers else -1,
        "gres": host.gres,
        **share.fields(state, plan, host),
    }


def _looking_after(state: ClusterState, plan: Plan, host: Host) -> dict[str, Any]:
    wish = _starting(state, plan, host, daemons_of(plan, host))
    return {"do": "look_after", "keep": {**wish, "name": plan.name}}


def slurm_step(plan: Plan, what: str, **more: Any) -> dict[str, Any]:
    """A step for the controller's host that asks Slurm, or tells it something."""
    return {"do": what, "folder": plan.folder, "programs": plan.programs[plan.head.name], **more}


def ask_controller(plan: Plan, steps: Sequence[remote.Step]) -> HostAnswer:
    """What the host of slurmctld answers; where that fails, the host of the second one."""
    answers: list[HostAnswer] = []
    for host in plan.controllers:
        own = [{**step, "programs": plan.programs[host.name]} for step in steps]
        answers += remote.ask({host.target: own}).values()
        if answers[-1].ok:
            return answers[-1]
    return answers[0]


def status(state: ClusterState, plan: Plan) -> list[HostStatus]:
    """How each host is, by its own word and by Slurm's."""
    own = {"token": plan.token, "folder": plan.folder}
    both = [{"do": "status", **own}, {"do": "kept", **own}]
    requests = {
        host.target: [*both, *([slurm_step(plan, "nodes")] if host in plan.controllers else [])]
        for host in plan.hosts
    }
    answers = remote.ask(requests)
    told = [answers[host.target].done for host in plan.controllers]
    nodes: dict[str, Any] = next((one[2] for one in told if len(one) > 2), {})
    is_watched = watch.is_alive(state, plan)
    rows = []
    for host in plan.hosts:
        answer, node = answers[host.target], nodes.get(host.name, {"state": "unknown", "reason": ""})
        one: dict[str, Any] = answer.done[0] if answer.done else {"daemons": {}, "processes": 0}
        kept: dict[str, Any] = answer.done[1] if len(answer.done) > 1 else {"by": "", "up_s": 0, "done": []}
        rows.append(
            HostStatus(
                host=host.name,
                target=host.target,
                daemons=one["daemons"],
                processes=one["processes"],
                state=node["state"],
                reason=node["reason"],
                unreached="" if answer.done else answer.failed,
                kept_by=kept["by"] or (watch.BY if is_watched and host in plan.unkept else ""),
                up_s=kept["up_s"],
                done=kept["done"],
                notes=findings.of_living(findings.with_clock(one, answer.at_s, answer.took_s))
                if answer.done
                else (),
            )
        )
    return rows


def is_up(plan: Plan, rows: Sequence[HostStatus]) -> bool:
    """Whether all daemons live."""
    wanted = {host.name: set(daemons_of(plan, host)) for host in plan.hosts}
    return all(wanted[row.host] <= set(row.daemons) for row in rows)


def logs(plan: Plan, daemon: str, lines: int) -> dict[str, HostAnswer]:
    """The ends of the logs on each host, by target."""
    step = {"do": "logs", "folder": plan.folder, "daemon": daemon, "lines": lines}
    return remote.ask({host.target: [step] for host in plan.hosts})


def host_count(hosts: Sized) -> str:
    """`1 host` or `3 hosts`."""
    return counted(len(hosts), "host")


def failures(answers: Sequence[HostAnswer]) -> str:
    """What failed on which hosts, in one line."""
    return "; ".join(f"{answer.target}: {answer.failed}" for answer in answers)
