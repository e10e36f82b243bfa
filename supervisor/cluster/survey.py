"""The survey of all hosts at once: facts of each, then whether they reach each other and see one folder. (I/O)"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftrun.slurm.cluster.plan import FIRST_SRUN_PORT, SHARE_PORT
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cluster import findings, remote
from ftrun.supervisor.cluster import share as share_folder
from ftrun.supervisor.cluster.findings import BAD, Facts, Finding
from ftrun.supervisor.cluster.hosts import Target

SURVEY_S = 30.0
REACH_S = 8.0
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
        {name: [{"do": "survey", "share": share}] for name in names}, SURVEY_S, lambda one: told(one.target)
    )
    facts = {name: _with_clock(answer.done[0], answer) for name, answer in answers.items() if answer.ok}
    unreached = {name: answer.failed for name, answer in answers.items() if not answer.ok}
    found = findings.of_hosts(facts, unreached, allow_public)
    if share and facts:
        found += share_folder.findings_of(facts, share)
    bad = {one.target for one in found if one.level == BAD}
    good = {name: one for name, one in facts.items() if name not in bad}
    where = "" if share else shared or str(next(iter(good.values()), {}).get("home", ""))
    if len(good) > 1 or (good and base_port):
        found += _reach(good, base_port, where if len(good) > 1 else "", [SHARE_PORT] if share else [])
    order = {name: index for index, name in enumerate(names)}
    return Survey(facts, tuple(sorted(found, key=lambda one: (one.level, order[one.target]))), where)


def _with_clock(one: Facts, answer: remote.HostAnswer) -> Facts:
    """The facts with the offset of its clock: it was read at some moment between question and answer."""
    within_s = answer.took_s / 2
    return {**one, "clock_offset_s": one["clock_s"] - (answer.at_s - within_s), "clock_within_s": within_s}


def _reach(
    facts: Mapping[str, Facts], base_port: int, shared: str, more_ports: Sequence[int]
) -> list[Finding]:
    ports = [base_port + port for port in (0, 1, FIRST_SRUN_PORT, *more_ports)]
    hosts = {one["host"]: findings.address_of(target, one) for target, one in facts.items()}
    token = os.urandom(8).hex()
    steps = {
        target: [
            {
                "do": "reach",
                "own": one["host"],
                "hosts": hosts,
                "ports": ports,
                "shared": shared,
                "token": token,
                "limit_s": REACH_S,
            }
        ]
        for target, one in facts.items()
    }
    answers = remote.ask(steps, SURVEY_S)
    if shared:  # one host sees the files of all, unless the folder is not shared
        apart = any(answer.ok and answer.done[0]["unshared"] for answer in answers.values())
        unmark = {"do": "unmark", "shared": shared, "token": token}
        remote.ask({target: [unmark] for target in (facts if apart else list(facts)[:1])}, SURVEY_S)
    lost = [Finding(target, BAD, "ssh", answer.failed) for target, answer in answers.items() if not answer.ok]
    return lost + findings.of_reach(
        {target: answer.done[0] for target, answer in answers.items() if answer.ok}, shared
    )
