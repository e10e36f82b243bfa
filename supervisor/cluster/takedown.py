"""Take a cluster down, or hosts of it: nothing is left there but logs. (I/O)

Each step can be repeated, so what was cut is said again. A host that cannot be reached, and that the user gives up (`down --force`), is
remembered: the next `down`, or an `up` that names it, ends what is left there once it is back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.cluster.plan import Host, Plan
from ftrun.supervisor.cluster import remote, share, watch
from ftrun.supervisor.cluster.lifecycle import (
    EXIT_FAILED,
    Told,
    ask_controller,
    failures,
    host_count,
    slurm_step,
)
from ftrun.supervisor.cluster.state import ClusterState
from ftrun.supervisor.model.errors import UserError


def down(state: ClusterState, told: Told, *, force: bool = False) -> tuple[int, list[str]]:
    """End all processes of the cluster on all hosts, remove keys, files and claims; logs stay. Returns how many processes were ended, and
    notes for the user.

    Raises UserError where jobs are there, or a host could not be asked: then the plan stays, and `down` is said again. With `force` jobs
    are ended, and hosts that cannot be reached are given up: rented ones are often gone for good.
    """
    with state.lock():
        swept = _sweep(state, told)
        if swept and state.plan() is None:
            return swept
        plan = state.existing_plan()
        if not force:
            _refuse_jobs(plan)
        told(f"ending all processes of cluster {plan.name} on {host_count(plan.hosts)}")
        state.record("down.intent", token=plan.token)
        take_leave(plan, plan.everywhere)
        answers = remote.ask({host.target: leaving_steps(plan, host) for host in plan.everywhere})
        failed = [answer for answer in answers.values() if not answer.ok]
        gone = [answer for answer in failed if force and not answer.reached]
        if len(failed) > len(gone):
            hint = "" if force else " (--force gives up hosts that cannot be reached)"
            raise _refused(state, plan, f"not all of cluster {plan.name} is down: {failures(failed)}{hint}")
        if plan.state:
            _remove_state(state, plan, {answer.target for answer in gone})
        if gone:
            lost = [host for host in plan.everywhere if host.target in {answer.target for answer in gone}]
            state.give_up(dataclasses.replace(plan, leaving=tuple(lost)))
        state.record("down.ended", token=plan.token, given_up=[answer.target for answer in gone])
        state.forget()
        watch.await_end(state)
        ended = sum(int(answer.done[1]["ended"]) for answer in answers.values() if answer.ok)
        state.record("down.done", token=plan.token, ended=ended)
        return ended, [
            f"{answer.target} was given up ({answer.failed}): should it come back, `ftrun cluster down --name {plan.name}` ends what is left there"
            for answer in gone
        ]


def sweep(state: ClusterState, targets: Collection[str], told: Told) -> None:
    """End what is left on those of the hosts that an earlier cluster of this name gave up. Raises UserError where another command changes it."""
    if state.given_up():
        with state.lock():
            _sweep(state, told, targets)


def _sweep(state: ClusterState, told: Told, targets: Collection[str] = ()) -> tuple[int, list[str]] | None:
    """As `sweep`, of all hosts by default; None where no host was given up, else how many processes were ended, and notes."""
    ended, notes, asked = 0, [], False
    for plan in state.given_up():
        hosts = [host for host in plan.leaving if not targets or host.target in targets]
        if not hosts:
            continue
        asked = True
        told(f"ending what an earlier cluster {plan.name} left on {host_count(hosts)}")
        answers = remote.ask({host.target: leaving_steps(plan, host) for host in hosts})
        ended += sum(int(answer.done[1]["ended"]) for answer in answers.values() if answer.ok)
        left = tuple(
            host for host in plan.leaving if host.target not in answers or not answers[host.target].ok
        )
        notes += [f"{one.target} could not be asked: {one.failed}" for one in answers.values() if not one.ok]
        state.give_up(dataclasses.replace(plan, leaving=left))
    return (ended, notes) if asked else None


def _refused(state: ClusterState, plan: Plan, why: str) -> UserError:
    state.record("down.failed", token=plan.token, why=why)
    return UserError(f"{why}; say `down` again", EXIT_FAILED)


def _remove_state(state: ClusterState, plan: Plan, given_up: Collection[str]) -> None:
    """Remove what two controllers shared, only when both have ended; one that was given up does not start without it. Raises UserError."""
    step = {"do": "remove_state", "state": plan.state, "token": plan.token}
    # One of them alone: two that remove one folder get in each other's way.
    there = [host.target for host in plan.controllers if host.target not in given_up][:1]
    answers = remote.ask({target: [step] for target in there})
    if failed := [answer for answer in answers.values() if not answer.ok]:
        raise _refused(state, plan, failures(failed))


def take_leave(plan: Plan, hosts: Sequence[Host]) -> None:
    """While the first host still serves the shared folder, unmount it on hosts that do not use it: what was written last gets there.

    Whoever cannot be asked, or uses it, is left to `leaving_steps`.
    """
    own = {"token": plan.token, "folder": plan.folder}
    steps = {
        host.target: [{"do": "let_go", **own}, *unmounting]
        for host in hosts
        if (unmounting := share.unmounting(plan, host, lazy=False))
    }
    if steps:
        remote.ask(steps)


def leaving_steps(plan: Plan, host: Host) -> list[remote.Step]:
    """The steps after which nothing of the cluster is on a host but logs; the second one answers {"ended": how many processes}.

    Who starts what is dead goes first: it must never start anything again.
    """
    own = {"token": plan.token, "folder": plan.folder}
    return [
        {"do": "let_go", **own},
        {"do": "stop", **own},
        *share.unmounting(plan, host, lazy=True),
        {"do": "remove", **own},
        {"do": "release", **own},
    ]


def _refuse_jobs(plan: Plan) -> None:
    answer = ask_controller(plan, [slurm_step(plan, "jobs", token=plan.token)])
    if answer.ok and answer.done[0]:
        jobs = answer.done[0]
        raise UserError(
            f"{counted(len(jobs), 'job')} not over ({', '.join(jobs[:5])}): end them first (scancel), or say --force",
            EXIT_FAILED,
        )
    if not answer.ok:  # a cluster that was never up has no jobs; one whose controller is dead may have some
        step = {"do": "status", "token": plan.token, "folder": plan.folder}
        rows = remote.ask({host.target: [step] for host in plan.hosts})
        if busy := [target for target, one in rows.items() if one.ok and one.done[0]["steps"]]:
            raise UserError(
                f"jobs run on {', '.join(busy)}, and slurmctld does not answer ({answer.failed}): `ftrun cluster up` with the same hosts mends it, or say --force",
                EXIT_FAILED,
            )
