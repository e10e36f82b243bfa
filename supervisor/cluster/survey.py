"""The survey of all hosts at once: facts of each, then whether they reach each other and see one folder. (I/O)"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ftrun.slurm.cluster.plan import FIRST_SRUN_PORT, SHARE_PORT, Plan
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cluster import findings, remote
from ftrun.supervisor.cluster import share as share_folder
from ftrun.supervisor.cluster.findings import BAD, Facts, Finding
from ftrun.supervisor.cluster.hosts import Target
from ftrun.supervisor.model.errors import UserError

SURVEY_S = 30.0
REACH_S = 15.0
LATE_S = 45.0
"""Hosts begin at different times: a busy one so much later than the others."""
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found. `facts`: of the hosts that answered, by target, in the user's order. `shared`: the folder that was tried."""

    facts: Mapping[str, Facts]
    findings: tuple[Finding, ...]
    shared: str

    @property
    def bad(self) -> frozenset[str]:
        """The targets with which no cluster can be made."""
        return frozenset(one.target for one in self.findings if one.level == BAD)

    @property
    def architectures(self) -> frozenset[str]:
        """Those of all hosts."""
        return frozenset(one["arch"] for one in self.facts.values())

    def without(self, targets: frozenset[str]) -> Survey:
        """The survey as if these had not been asked."""
        return Survey(
            {target: one for target, one in self.facts.items() if target not in targets},
            tuple(one for one in self.findings if one.target not in targets),
            self.shared,
        )


def survey(
    targets: Sequence[Target],
    base_port: int,
    shared: str = "",
    *,
    share: str = "",
    allow_public: bool = False,
    told: Told = lambda _: None,
) -> Survey:
    """Ask all hosts, then let those that can be part of a cluster call each other. Changes nothing. Raises UserError.

    `shared`: the folder that they should all see, by default the home; with `share` they will see that one, and none is looked for.
    """
    names = [target.name for target in targets]
    answers = remote.ask(
        {name: [{"do": "survey", "share": share, "shared": shared}] for name in names},
        SURVEY_S,
        lambda one: told(one.target),
    )
    facts = {
        name: findings.with_clock(answer.done[0], answer.at_s, answer.took_s)
        for name, answer in answers.items()
        if answer.ok
    }
    unreached = {name: answer.failed for name, answer in answers.items() if not answer.ok}
    found = findings.of_hosts(facts, unreached, allow_public)
    if share and facts:
        found += share_folder.findings_of(facts, share)
    bad = {one.target for one in found if one.level == BAD}
    good = {name: one for name, one in facts.items() if name not in bad}
    where = "" if share else shared or str(next(iter(good.values()), {}).get("home", ""))
    if len(good) > 1 or (good and base_port):
        ports = [SHARE_PORT] if share else []
        found += _reach(_members(good), base_port, where if len(good) > 1 else "", more_ports=ports)
    order = {name: index for index, name in enumerate(names)}
    return Survey(facts, tuple(sorted(found, key=lambda one: (one.level, order[one.target]))), where)


def survey_beside(plan: Plan, targets: Sequence[Target], *, allow_public: bool = False) -> Survey:
    """As `survey` for hosts that shall join a living cluster: they are compared with its first host, and they and its hosts call each
    other. The facts are those of the new hosts. Raises UserError.
    """
    names = [target.name for target in targets]
    steps = [{"do": "survey", "share": plan.share}]
    answers = remote.ask(dict.fromkeys((plan.head.target, *names), steps), SURVEY_S)
    head = answers[plan.head.target]
    if not head.ok:
        raise UserError(f"{plan.head.name}, the host of the controller, cannot be asked: {head.failed}")
    facts = {
        name: findings.with_clock(answer.done[0], answer.at_s, answer.took_s)
        for name, answer in answers.items()
        if answer.ok
    }
    # A host that was removed while nobody could ask it still has our claim.
    facts = {
        name: {**one, "claim": {}} if one["claim"].get("token") == plan.token else one
        for name, one in facts.items()
    }
    unreached = {name: answer.failed for name, answer in answers.items() if not answer.ok}
    found = findings.of_hosts(facts, unreached, allow_public)
    if plan.share:
        found += share_folder.findings_of(facts, plan.share)
    if not plan.bundles:
        found += [
            Finding(
                target, BAD, "Slurm", f"{why}: this cluster uses the Slurm that is installed on its hosts"
            )
            for target, why in findings.without_slurm(facts).items()
        ]
    found = [one for one in found if one.target in names]
    taken = {host.name for host in plan.everywhere}
    found += [
        Finding(
            name,
            BAD,
            "name",
            f"calls itself {facts[name]['host']}, as another host does: give it a name of its own (hostname)",
        )
        for name in names
        if name in facts and facts[name]["host"] in taken - {plan.head.name}
    ]
    bad = {one.target for one in found if one.level == BAD}
    good = {name: facts[name] for name in names if name in facts and name not in bad}
    where = "" if plan.share else plan.shared or str(facts[plan.head.target]["home"])
    if good:
        own = {host.target: (host.name, host.address) for host in plan.hosts}
        members = {host.name: [plan.slurmd_port] for host in plan.hosts}
        if plan.share:
            members[plan.head.name].append(plan.share_port)
        found += _reach({**own, **_members(good)}, plan.base_port, where, members=members)
    return Survey({name: facts[name] for name in names if name in facts}, tuple(found), where)


def _members(facts: Mapping[str, Facts]) -> dict[str, tuple[str, str]]:
    """Target -> name and address of each host."""
    return {target: (one["host"], findings.address_of(target, one)) for target, one in facts.items()}


def _reach(
    called: Mapping[str, tuple[str, str]],
    base_port: int,
    shared: str,
    *,
    members: Mapping[str, Sequence[int]] = MappingProxyType({}),
    more_ports: Sequence[int] = (),
) -> list[Finding]:
    """What follows from calls of all to all; `called`: target -> name and address, `members`: those that are in a cluster, by name -> their ports."""
    ports = [base_port + port for port in (0, 1, FIRST_SRUN_PORT, *more_ports)]
    token = os.urandom(8).hex()
    steps = {
        target: [
            {
                "do": "reach",
                "own": name,
                "hosts": dict(called.values()),
                "ports": ports,
                "shared": shared,
                "token": token,
                "limit_s": REACH_S,
                "late_s": LATE_S,
                "members": dict(members),
            }
        ]
        for target, (name, _) in called.items()
    }
    answers = remote.ask(steps, LATE_S + REACH_S + SURVEY_S)
    if shared:  # one host sees the files of all, unless the folder is not shared
        apart = any(answer.ok and answer.done[0]["unshared"] for answer in answers.values())
        unmark = {"do": "unmark", "shared": shared, "token": token}
        remote.ask({target: [unmark] for target in (called if apart else list(called)[:1])}, SURVEY_S)
    lost = [Finding(target, BAD, "ssh", answer.failed) for target, answer in answers.items() if not answer.ok]
    return lost + findings.of_reach(
        {target: answer.done[0] for target, answer in answers.items() if answer.ok}, shared
    )
