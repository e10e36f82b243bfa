"""Hosts that join a living cluster, leave it, or take no more jobs: intent, act, fact. (I/O)

The plan is changed first and each effect can be repeated, so what was cut is mended by saying it again (or `up`, or `down`). Every
daemon reads the new slurm.conf by a start anew, because 22.05 takes no other nodes by `scontrol reconfigure`; jobs, and steps on the
other hosts, outlive that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.cluster.plan import LOCALHOST, Host, Plan
from ftrun.supervisor.cluster import bundle, lifecycle, remote, takedown
from ftrun.supervisor.cluster.hosts import Target
from ftrun.supervisor.cluster.lifecycle import EXIT_FAILED, Told, Wish, slurm_step
from ftrun.supervisor.cluster.state import ClusterState
from ftrun.supervisor.cluster.survey import survey_beside
from ftrun.supervisor.model.errors import UserError

JOBS_END_S = 60.0
REMOVAL = "ftrun: removed from the cluster"
"""The reason of a drain that belongs to a removal: a node that bears it is one whose removal was cut."""


def add(state: ClusterState, wish: Wish, told: Told) -> tuple[Plan, tuple[Host, ...]]:
    """Add the hosts of a wish, or mend an `add` that was cut. Returns the plan, and the hosts that were not in it before. Raises UserError."""
    with state.lock():
        before = state.existing_plan()
        living = {host.target for host in before.hosts}
        fresh = [target for target in wish.targets if target.name not in living]
        if not fresh:
            told(f"these are hosts of cluster {before.name} already: mending what is missing")
            return lifecycle.settle(state, before, told), ()
        _refuse_mixed(before, wish, fresh)
        _refuse_unreached(before.hosts)
        plan = _joined(before, wish, told)
        new = plan.hosts[len(before.hosts) :]
        state.record("add.intent", token=plan.token, hosts=[host.target for host in new])
        state.keep_plan(plan)
        state.record("add.planned", token=plan.token)
        try:
            lifecycle.claim(state, plan, told, new)
        except UserError:
            state.keep_plan(before)
            raise
        plan = lifecycle.settle(state, plan, told)
        state.record("add.done", token=plan.token)
        return plan, new


def _refuse_mixed(plan: Plan, wish: Wish, fresh: Sequence[Target]) -> None:
    if len(fresh) < len(wish.targets):
        known = ", ".join(
            sorted({target.name for target in wish.targets} - {target.name for target in fresh})
        )
        raise UserError(f"nothing was changed: {known}: a host of cluster {plan.name} already", EXIT_FAILED)
    if leaving := sorted({host.target for host in plan.leaving} & {target.name for target in fresh}):
        names = ",".join(leaving)
        raise UserError(
            f"nothing was changed: {names}: its removal was cut; say `ftrun cluster remove {names}` again first",
            EXIT_FAILED,
        )
    if plan.head.target == LOCALHOST or any(target.name == LOCALHOST for target in fresh):
        raise UserError(
            "localhost cannot be one of several hosts: take the cluster down, and make it with the names of all",
            EXIT_FAILED,
        )


def _refuse_unreached(hosts: Sequence[Host], hint: str = "mend or remove it first") -> None:
    """All hosts need the new slurm.conf: none may be out of reach."""
    lost = [answer for answer in remote.ask({host.target: [] for host in hosts}).values() if not answer.ok]
    if lost:
        raise UserError(f"nothing was changed: {lifecycle.failures(lost)}: {hint}", EXIT_FAILED)


def _joined(before: Plan, wish: Wish, told: Told) -> Plan:
    """The plan with the new hosts behind the old ones. Raises UserError where one of them cannot be a host of it."""
    told(f"surveying {lifecycle.host_count(wish.targets)}")
    found = survey_beside(before, wish.targets, allow_public=wish.allow_public)
    lifecycle.refuse_bad(found, wish, told)
    usable = found.without(found.bad)
    bundles = bundle.choose_beside(before, wish.bundles, usable.architectures, told)
    new = lifecycle.make_plan(before.name, wish, usable, bundles)
    return dataclasses.replace(
        before,
        hosts=(*before.hosts, *new.hosts),
        bound=before.bound and new.bound,
        programs={**before.programs, **new.programs},
        subreaper=(*before.subreaper, *new.subreaper),
        bundles={**before.bundles, **new.bundles},
    )


def remove(
    state: ClusterState, names: Sequence[str], told: Told, *, force: bool = False
) -> tuple[Plan, list[str]]:
    """Take hosts out of a cluster; nothing of it stays on them but logs. Returns the plan, and notes for the user.

    Jobs on them, or a host that cannot be asked, keep them in, unless `force`: then jobs end as with a node that died, and a host that
    cannot be asked ends its daemons by itself when it is back. Raises UserError.
    """
    with state.lock():
        before = state.existing_plan()
        going = _named(before, names, before.everywhere)
        fresh = [host for host in going if host in before.hosts]
        staying = tuple(host for host in before.hosts if host not in fresh)
        if fresh:
            _refuse_last(before, fresh, staying)
            _refuse_unreached(staying)
            if not force:
                _refuse_unreached(fresh, "--force removes it all the same")
            _free(state, before, fresh, told, force=force)
        plan = dataclasses.replace(before, hosts=staying, leaving=(*before.leaving, *fresh))
        state.record("remove.intent", token=plan.token, hosts=[host.target for host in going])
        state.keep_plan(plan)
        state.record("remove.planned", token=plan.token)
        told(f"ending what there is on {lifecycle.host_count(plan.leaving)}")
        takedown.take_leave(plan, plan.leaving)
        answers = remote.ask({host.target: takedown.leaving_steps(plan, host) for host in plan.leaving})
        lost = [answer for answer in answers.values() if not answer.ok]
        if lost and not force:
            raise UserError(
                f"not all of {plan.name} is gone from there: {lifecycle.failures(lost)}; say `remove` again, or --force",
                EXIT_FAILED,
            )
        state.record("remove.ended", token=plan.token)
        plan = dataclasses.replace(lifecycle.settle(state, plan, told), leaving=())
        state.keep_plan(plan)
        state.record("remove.done", token=plan.token)
        return plan, [
            f"{answer.target} could not be asked ({answer.failed}): if it comes back, it ends its daemons by itself"
            for answer in lost
        ]


def _refuse_last(plan: Plan, going: Sequence[Host], staying: Sequence[Host]) -> None:
    if not staying:
        raise UserError(
            f"nothing was changed: no host would be left: `ftrun cluster down --name {plan.name}` takes it down",
            EXIT_FAILED,
        )
    if plan.head in going:
        raise UserError(
            f"nothing was changed: {plan.head.target} runs the controller and has the state of all jobs: it is the last to go (`ftrun cluster down`)",
            EXIT_FAILED,
        )
    if plan.backup in {host.name for host in going}:
        raise UserError(
            f"nothing was changed: {plan.backup} runs the second controller: it goes with the cluster (`ftrun cluster down`)",
            EXIT_FAILED,
        )


def _is_drained(row: Mapping[str, str]) -> bool:
    return row["state"].startswith(("drain", "drng", "down"))


def _free(state: ClusterState, plan: Plan, going: Sequence[Host], told: Told, *, force: bool) -> None:
    """Let no job start on these hosts, and see that none is there; with `force` those that are end as with a node that died."""
    names = [host.name for host in going]
    before = _on_head(plan, [slurm_step(plan, "nodes")])[0]
    # Who was drained by a person stays so; who was by a removal that was cut, not.
    ours = [name for name in names if not _is_drained(before[name]) or before[name]["reason"] == REMOVAL]
    drain = [slurm_step(plan, "set_state", nodes=ours, state="drain", reason=REMOVAL)] if ours else []
    jobs = _on_head(plan, [*drain, slurm_step(plan, "jobs", nodes=names)])[-1]
    state.record("remove.drained", token=plan.token, nodes=ours)
    if not jobs:
        return
    if not force:
        _on_head(plan, [slurm_step(plan, "set_state", nodes=ours, state="resume")] if ours else [])
        raise UserError(
            f"nothing was changed: {counted(len(jobs), 'job')} not over ({', '.join(jobs[:5])}): wait for them (`ftrun cluster drain` lets no others start), or say --force",
            EXIT_FAILED,
        )
    told(f"ending {counted(len(jobs), 'job')} as if their node had died")
    down = slurm_step(plan, "set_state", nodes=names, state="down", reason=REMOVAL)
    left = _on_head(plan, [down, slurm_step(plan, "jobs", nodes=names, wait_s=JOBS_END_S)])[1]
    if left:
        raise UserError(f"jobs are still there: {', '.join(left[:5])}; say it again", EXIT_FAILED)


def drain(state: ClusterState, names: Sequence[str], reason: str) -> list[str]:
    """Let no more jobs start on hosts; those that run go on. Returns the names of the nodes. Raises UserError."""
    return _set_state(state, names, "drain", " ".join(reason.split()))


def resume(state: ClusterState, names: Sequence[str]) -> list[str]:
    """Let jobs start on drained hosts again. Returns the names of the nodes. Raises UserError."""
    return _set_state(state, names, "resume")


def _set_state(state: ClusterState, names: Sequence[str], wanted: str, reason: str = "") -> list[str]:
    with state.lock():
        plan = state.existing_plan()
        nodes = [host.name for host in _named(plan, names, plan.hosts)]
        state.record(f"{wanted}.intent", token=plan.token, nodes=nodes, reason=reason)
        _on_head(plan, [slurm_step(plan, "set_state", nodes=nodes, state=wanted, reason=reason)])
        state.record(f"{wanted}.done", token=plan.token, nodes=nodes)
        return nodes


def _named(plan: Plan, names: Sequence[str], among: Sequence[Host]) -> list[Host]:
    """The hosts that are meant, by how SSH calls them or how they call themselves. Raises UserError."""
    found = [host for host in among if {host.target, host.name} & set(names)]
    known = {name for host in found for name in (host.target, host.name)}
    if strangers := sorted(set(names) - known):
        raise UserError(
            f"nothing was changed: {', '.join(strangers)}: no host of cluster {plan.name}", EXIT_FAILED
        )
    return found


def _on_head(plan: Plan, steps: Sequence[remote.Step]) -> tuple[Any, ...]:
    answer = lifecycle.ask_controller(plan, steps)
    if not answer.ok:
        raise UserError(f"nothing was changed: {answer.target}: {answer.failed}", EXIT_FAILED)
    return answer.done
