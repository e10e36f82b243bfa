"""Drills in which somebody looks at the nodes: the watch, the checks before and after the script, the operator. (pure)"""

from __future__ import annotations

from ftrun.supervisor.drill.moves import (
    after,
    asked,
    at_step,
    ftrun_command,
    held,
    lose_gpu,
    lose_memory,
    lose_memory_of,
    mend_gpu,
    spare,
    struck,
    unsupervised,
)
from ftrun.supervisor.drill.terms import Expect, Fault, Scenario

__all__ = ["LOOKED_AT"]

BAD_GPU = Fault("gpu-lost", (14,), rank=1, sticky=True)

LOOKED_AT: tuple[Scenario, ...] = (
    Scenario(
        "watch-only-fault",
        "A rank stands still without a word, and only a counter of its node tells why",
        faults=(Fault("hang", (50,), rank=1, starts=(1,)),),
        steps=60,
        moves=(lose_memory(1, struck),),
        settings={"watch-period": "1s", "end-wait": "4s"},
        counters=True,
        needs_sandbox=True,
        expect=Expect(
            classes=("hardware-other",),
            blamed="hurt",
            avoided=True,
            attempts=2,
            steps_lost_max=4,
            ended_by_us=True,
            evidence="check-edac",
        ),
    ),
    Scenario(
        "preflight-sick-node",
        "A node is sick before the job begins, and a check finds it before the script starts",
        settings={"preflight": "yes"},
        counters=True,
        sick="n1",
        needs_sandbox=True,
        expect=Expect(
            classes=("hardware-other",), blamed="hurt", avoided=True, attempts=2, starts=1, steps_lost_max=0
        ),
    ),
    Scenario(
        "after-failure",
        "A rank hangs, all run into their time limit, and the checks after the failure find the node",
        faults=(Fault("hang", (40,), rank=1, starts=(1,)),),
        steps=50,
        kill_on_bad_exit=True,
        collective_timeout_s=3.0,
        moves=(lose_memory(1, struck),),
        settings={"watch": "never"},
        counters=True,
        needs_sandbox=True,
        expect=Expect(
            classes=("hardware-other",),
            blamed="hurt",
            avoided=True,
            attempts=2,
            starts=2,
            rungs=("resubmit",),
            steps_lost_max=4,
            evidence="check-edac",
        ),
    ),
    Scenario(
        "after-failure-spare",
        "The same with spares, of which the first is sick as well: the other one takes the node's place",
        ranks=2,
        spares=2,
        faults=(Fault("hang", (40,), rank=1, starts=(1,)),),
        steps=50,
        kill_on_bad_exit=True,
        collective_timeout_s=3.0,
        moves=(lose_memory(1, struck), lose_memory_of(spare(0), after(0.0))),
        settings={"watch": "never"},
        counters=True,
        needs_sandbox=True,
        expect=Expect(
            classes=("hardware-other",),
            avoided=True,
            attempts=1,
            starts=2,
            rungs=("swap",),
            steps_lost_max=4,
        ),
    ),
    Scenario(
        "drain-on-request",
        "A user may not drain: the operator does, recheck keeps the node while it is broken, and gives it back",
        faults=(BAD_GPU,),
        moves=(
            lose_gpu(1, at_step(8)),
            ftrun_command("the operator looks into its spool", "operator", "--once", when=asked),
            ftrun_command("cron runs `ftrun recheck`", "recheck", when=held("")),
            mend_gpu(1, held("still:")),
            ftrun_command("cron runs `ftrun recheck` again", "recheck", when=after(0.0)),
        ),
        settings={"drain": "ask"},
        operator=True,
        needs_sandbox=True,
        expect=Expect(
            classes=("hardware-gpu",), blamed="hurt", avoided=True, attempts=2, answer="drained", held=0
        ),
    ),
    Scenario(
        "drain-refused",
        "A log tells of a broken GPU, and the node is well: nobody is drained, although the supervisor dies while it asks",
        faults=(BAD_GPU,),
        moves=(
            ftrun_command("somebody asks `ftrun status`", "status", when=unsupervised),
            ftrun_command("the operator looks into its spool", "operator", "--once", when=asked),
        ),
        settings={"drain": "ask"},
        environment={"FTRUN_CRASH_AT": "ask:after"},
        operator=True,
        needs_sandbox=True,
        expect=Expect(classes=("hardware-gpu",), avoided=True, attempts=2, answer="refused", held=0),
    ),
)
