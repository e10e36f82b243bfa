"""Short lives of runs in a simulated world that are cut everywhere: whoever dies there, and whatever fails, the laws hold.

`--stride N`: every Nth place of those at which somebody may die (`make simulate`: all of them).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.supervisor.signatures.catalog import load
from tests.simulation.plan import AgentFault, JobFault, PersonAct, Plan, SupervisorFault
from tests.simulation.trainer import LINES
from tests.simulation.world import live

# Short lives that together pass every step of a recovery.
CUT: dict[str, Plan] = {
    "bad-device": Plan(1, steps=10, job=(JobFault("xid", 6, 1, 60.0),)),
    "dead-node": Plan(2, steps=10, job=(JobFault("crash", 6, 1, 120.0),)),
    "requeued": Plan(3, steps=10, job=(JobFault("preempt", 6, 0, 0.0),)),
    "torn": Plan(4, steps=12, save_every=3, job=(JobFault("torn", 8, 0, 0.0),)),
    "hang": Plan(5, steps=8, job=(JobFault("hang", 4, 1, 0.0),), settings=(("fault-grace", 20.0),)),
    "silent": Plan(
        11,
        steps=8,
        step_s=2.0,
        job=(JobFault("silent", 7, 0, 0.0),),
        settings=(("hang-grace", 20.0), ("hang-max", 20.0), ("hang-min", 10.0)),
    ),
    "smaller": Plan(12, nodes=3, wanted=3, least=2, steps=10, job=(JobFault("crash", 6, 1, 2000.0),)),
    "smaller-later": Plan(
        13,
        nodes=4,
        wanted=3,
        least=2,
        steps=10,
        strangers=((3, 1.0, 2000.0),),
        job=(JobFault("crash", 6, 1, 2000.0),),
        settings=(("resize-after", 20.0),),
    ),
    "bug": Plan(6, steps=8, job=(JobFault("bug", 4, 0, 0.0),)),
}

# The same inside an allocation.
INSIDE: dict[str, Plan] = {
    "port": Plan(7, steps=8, agent=True, job=(JobFault("port", 4, 0, 0.0),)),
    "swap": Plan(8, steps=8, agent=True, spares=1, job=(JobFault("xid", 4, 1, 60.0),)),
    "dead-node": Plan(
        10, steps=10, agent=True, spares=2, job=(JobFault("crash", 6, 1, 400.0), JobFault("xid", 7, 0, 0.0))
    ),
    "unfit-spare": Plan(11, steps=8, agent=True, spares=2, unfit=(2,), job=(JobFault("xid", 4, 1, 60.0),)),
    "companion": Plan(14, nodes=4, steps=6, agent=True, job=(JobFault("xid", 4, 1, 60.0),)),
}


def _points(request: pytest.FixtureRequest, count: int) -> range:
    """Where to cut: `--stride 1` = everywhere, which takes minutes."""
    return range(1, count + 1, request.config.getoption("--stride"))


@pytest.mark.parametrize(("name", "tear"), [*((name, 0) for name in CUT), ("dead-node", 40)])
def test_a_supervisor_may_die_anywhere(request: pytest.FixtureRequest, name: str, tear: int) -> None:
    """After every record, before and after every effect: the next supervisor comes to the same end, and submits nothing twice."""
    plan = CUT[name]
    outcome, broken, world = live(plan)
    assert not broken

    ends = {}
    for point in _points(request, world.points):
        cut = replace(plan, supervisors=(SupervisorFault("crash", point, 15.0, tear),))
        end, broken, _ = live(cut)
        ends[point] = broken[0] if broken else end

    assert dict.fromkeys(ends, outcome) == ends


@pytest.mark.parametrize(
    ("name", "kind", "for_s"),
    [*((name, "kill", 0.0) for name in INSIDE), ("swap", "freeze", 25.0), ("swap", "stuck", 50.0)],
)
def test_an_agent_may_fail_anywhere(
    request: pytest.FixtureRequest, name: str, kind: str, for_s: float
) -> None:
    """It dies, or stands still for too long, behind any record and around any effect: that costs the ladder, never the run."""
    outcome, broken, world = live(INSIDE[name])
    assert (outcome, broken) == ("finished", [])

    ends = {}
    for point in _points(request, world.agent_points):
        end, broken, _ = live(replace(INSIDE[name], agents=(AgentFault(kind, point, for_s),)))
        ends[point] = broken[0] if broken else end

    assert dict.fromkeys(ends, outcome) == ends


def test_a_supervisor_may_die_anywhere_beside_an_agent(request: pytest.FixtureRequest) -> None:
    """What goes on inside the allocation goes on without it, and is not done twice when the next one comes."""
    plan = INSIDE["swap"]
    outcome, broken, world = live(plan)
    assert (outcome, broken) == ("finished", [])

    ends = {}
    for point in _points(request, world.points):
        end, broken, _ = live(replace(plan, supervisors=(SupervisorFault("crash", point, 15.0),)))
        ends[point] = broken[0] if broken else end

    assert dict.fromkeys(ends, outcome) == ends


@pytest.mark.parametrize("kind", ["crash", "pause"])
def test_a_supervisor_may_fail_around_a_companion(kind: str) -> None:
    """Whoever takes over ends what is left of a companion, once, and nothing begins beside it."""
    plan = Plan(
        15,
        nodes=4,
        steps=8,
        agent=True,
        job=(JobFault("xid", 4, 1, 60.0), JobFault("crash", 7, 0, 400.0)),
        settings=(("recover", "companion,resubmit"),),
    )
    ends = {}
    for name in (
        "record:after:companion.ended.intended",
        "companion:before",
        "companion:after",
        "record:after:companion.gone",
    ):
        cut = replace(plan, supervisors=(SupervisorFault(kind, 1, 60.0, at_name=name),))
        end, broken, world = live(cut)
        assert world.laws.companions
        ends[name] = broken[0] if broken else end

    assert set(ends.values()) == {"finished"}, ends


def test_a_start_in_two_jobs_outlives_its_companion() -> None:
    """A person, or a dead node, ends the companion: the start is made again with another one, nobody innocent is left out, and each companion is over in the end."""
    plan = Plan(16, nodes=6, wanted=3, steps=20, agent=True, job=(JobFault("xid", 4, 1, 60.0),))
    lost = replace(plan, job=(*plan.job, JobFault("crash", 9, 2, 400.0)))
    for one in (replace(plan, people=(PersonAct("scancel-companions", 70.0),)), lost):
        end, broken, world = live(one)
        assert (end, broken) == ("finished", [])
        assert len(world.laws.companions) == 2


def test_an_agent_counts_what_the_one_before_it_spent() -> None:
    """Slurm starts the job again while no supervisor watches: no budget begins anew with the next agent."""
    kills = (JobFault("kill", 3, 0, 0.0),) * 2
    plan = Plan(
        17,
        steps=14,
        save_every=50,
        agent=True,
        job=(*kills, JobFault("requeue", 3, 0, 0.0), *kills),
        supervisors=(SupervisorFault("crash", 1, 900.0, at_name="record:after:job.started"),),
        settings=(("retries", 3), ("budget-unknown", 9), ("budget-step", 9)),
        calm_s=1000.0,
    )
    outcome, broken, world = live(plan)
    assert ("stopped", []) == (outcome, broken)
    assert len(world.laws.starts) == 1 + 3 + 1  # nothing was gained in between; the requeue alone is free


def test_the_faults_of_the_simulation_are_known_faults() -> None:
    """A simulated log speaks as real ones do: the catalog knows its last words, and takes them for what they are."""
    import re

    known = load().signatures
    for fault, lines in LINES.items():
        classes = {
            s.fault.value for s in known for line in lines if re.search(s.pattern.encode(), line.encode())
        }
        assert fault in classes
