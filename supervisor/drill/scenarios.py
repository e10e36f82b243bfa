"""The drills: what is launched, what is hurt and when, and what must come of it. (pure)

How it thinks. A drill is a value: a training job, faults that the trainer inflicts on itself, moves that are made from
outside as soon as a condition holds (see moves), and what must be true at the end. Settings only shorten waits that ftrun
lets a user shorten (docs/drills.md says which).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftrun.supervisor.drill.checkpointing import CHECKPOINTING
from ftrun.supervisor.drill.companions import COMPANIONS
from ftrun.supervisor.drill.grows import GROWS
from ftrun.supervisor.drill.inside import INSIDE
from ftrun.supervisor.drill.looked_at import LOOKED_AT
from ftrun.supervisor.drill.moves import (
    NO_NODE,
    after,
    at_step,
    both,
    controller,
    crash,
    drain,
    freeze,
    ftrun_command,
    in_state,
    kill_supervisor,
    new_attempt_saved,
    on_attempt,
    saving,
    scancel,
    started,
    thaw,
    unsupervised,
)
from ftrun.supervisor.drill.smaller import SMALLER
from ftrun.supervisor.drill.staging import STAGED
from ftrun.supervisor.drill.terms import Expect, Fault, Hands, Move, Scenario, Sight

__all__ = ["SCENARIOS", "by_name"]

GPU_LOST = Fault("gpu-lost", (14,), rank=1, starts=(1,))
BAD_GPU = Fault("gpu-lost", (14,), rank=1, sticky=True)
QUICK_FENCE: Mapping[str, str] = {"fence-wait": "8s"}
PREEMPTING: Mapping[str, str] = {
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "PartitionName": "urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10\n"
    "patient Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=0",
}
GRACIOUS: Mapping[str, str] = {
    **PREEMPTING,
    "PartitionName": PREEMPTING["PartitionName"].replace("GraceTime=0", "GraceTime=12"),
    "SlurmctldParameters": "preempt_send_user_signal",
}


def _urgent_job(when: Callable[[Sight], bool]) -> Move:
    words = ("--partition=urgent", "-N4", "--exclusive", "--output=/dev/null", "--wrap=sleep 4")
    act: Callable[[Hands, Sight], None] = lambda hands, sight: hands.submit_plain(*words)  # noqa: E731
    return Move("an urgent job wants all nodes", when, act, NO_NODE)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "gpu-lost",
        "A GPU falls off the bus",
        faults=(BAD_GPU,),
        quick=True,
        expect=Expect(classes=("hardware-gpu",), blamed="hurt", avoided=True, attempts=2, steps_lost_max=4),
    ),
    Scenario(
        "node-crash",
        "A node loses power",
        on_loss="wait",
        sbatch=("--no-requeue",),
        moves=(crash(1, at_step(10)),),
        settings=QUICK_FENCE,
        needs_sandbox=True,
        expect=Expect(classes=("node",), blamed="hurt", avoided=True, attempts=2, steps_lost_max=8),
    ),
    Scenario(
        "node-crash-requeue",
        "A node loses power, and Slurm requeues the job",
        on_loss="wait",
        sbatch=("--requeue",),
        moves=(crash(1, at_step(10)),),
        settings=QUICK_FENCE,
        needs_sandbox=True,
        expect=Expect(classes=("node",), blamed="hurt", avoided=True, attempts=2, steps_lost_max=8),
    ),
    Scenario(
        "node-crash-heard",
        "A node loses power, and its peers notice at once",
        sbatch=("--requeue",),
        moves=(crash(1, at_step(10)),),
        settings=QUICK_FENCE,
        needs_sandbox=True,
        expect=Expect(classes=("node|network",), avoided=True, attempts=2, steps_lost_max=8),
    ),
    Scenario(
        "node-frozen",
        "A node freezes while it writes a checkpoint, and wakes up beside its successor",
        on_loss="wait",
        save_s=1.5,
        moves=(
            freeze(0, saving),
            thaw(0, both(on_attempt(2), new_attempt_saved)),
        ),
        settings=QUICK_FENCE,
        needs_sandbox=True,
        linger_s=2.0,
        timeout_s=240.0,
        expect=Expect(classes=("node",), blamed="hurt", avoided=True, attempts=2),
    ),
    Scenario(
        "node-frozen-one-log",
        "A node freezes, and wakes up while its successor loads in silence: its last words come into the log of both",
        on_loss="wait",
        save_s=1.5,
        load_s=30.0,
        moves=(freeze(0, saving), thaw(0, started(2))),
        settings={**QUICK_FENCE, "end-wait": "4s"},
        needs_sandbox=True,
        linger_s=2.0,
        timeout_s=240.0,
        expect=Expect(
            classes=("node",), blamed="hurt", avoided=True, attempts=2, starts=2, no_evidence="slurm-"
        ),
    ),
    Scenario(
        "rank-hang",
        "A rank hangs, the others run into their time limit and stay",
        faults=(Fault("hang", (14,), rank=1, starts=(1,)),),
        collective_timeout_s=3.0,
        on_timeout="wait",
        settings={"end-wait": "4s"},
        expect=Expect(
            classes=("hang",),
            blamed="hurt",
            attempts=1,
            starts=2,
            rungs=("step",),
            steps_lost_max=4,
            ended_by_us=True,
        ),
    ),
    Scenario(
        "user-bug",
        "The training script has a bug",
        faults=(Fault("user-bug", (14,)),),
        expect=Expect(end="stopped", classes=("user-code",), blamed="nobody", attempts=1, reason="user-code"),
        linger_s=3.0,
    ),
    Scenario(
        "oom-host",
        "A rank uses up the memory of its node",
        kill_on_bad_exit=True,
        faults=(Fault("out-of-memory", (14,), rank=1),),
        expect=Expect(end="stopped", classes=("oom-host",), attempts=1, reason="oom-host"),
        linger_s=3.0,
    ),
    Scenario(
        "torn-checkpoint",
        "The newest checkpoint is whole as a file, and cannot be loaded",
        faults=(Fault("nonsense-save", (14,), rank=0, starts=(1,)),),
        expect=Expect(
            classes=("hardware-gpu", "checkpoint"),
            attempts=2,
            rungs=("resubmit", "step"),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "torn-checkpoint-unnamed",
        "The newest checkpoint is whole as a file and cannot be loaded, and no line says so",
        faults=(Fault("nonsense-save", (14,), rank=0, starts=(1,)),),
        loader="silent",
        kill_on_bad_exit=True,
        expect=Expect(
            classes=("hardware-gpu", "unknown", "checkpoint"),
            attempts=2,
            rungs=("resubmit", "step", "step"),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "controller-down",
        "slurmctld is down for a minute",
        steps=400,
        every=20,
        moves=(controller(False, at_step(8)), controller(True, after(60.0))),
        needs_sandbox=True,
        expect=Expect(attempts=1, steps_lost_max=0),
    ),
    Scenario(
        "controller-down-fault",
        "A GPU is lost while slurmctld is down",
        faults=(BAD_GPU,),
        moves=(controller(False, at_step(8)), controller(True, after(20.0))),
        needs_sandbox=True,
        expect=Expect(classes=("hardware-gpu",), avoided=True, attempts=2, steps_lost_max=4),
    ),
    Scenario(
        "supervisor-killed",
        "The supervisor is killed between sbatch and its record",
        faults=(BAD_GPU,),
        environment={"FTRUN_CRASH_AT": "submit:after"},
        moves=(
            ftrun_command("somebody asks `ftrun status`", "status", when=both(unsupervised, at_step(12))),
        ),
        expect=Expect(classes=("hardware-gpu",), blamed="hurt", avoided=True, attempts=2, steps_lost_max=4),
    ),
    Scenario(
        "supervisor-gone",
        "The supervisor is killed for good; cron goes on",
        faults=(BAD_GPU,),
        moves=(
            kill_supervisor(at_step(6)),
            ftrun_command(
                "cron runs `ftrun supervise --once`", "supervise", "--once", when=after(6.0), repeats=True
            ),
        ),
        expect=Expect(classes=("hardware-gpu",), blamed="hurt", avoided=True, attempts=2, steps_lost_max=4),
    ),
    Scenario(
        "self-requeue",
        "The script puts its own job back into the queue",
        faults=(Fault("requeue-itself", (14,), starts=(1,)),),
        expect=Expect(classes=("preempted?",), blamed="nobody", attempts=1, starts=2, steps_lost_max=4),
    ),
    Scenario(
        "preemption",
        "A job of higher priority takes the nodes",
        sbatch=("--partition=patient", "--requeue"),
        box=PREEMPTING,
        moves=(_urgent_job(at_step(10)),),
        needs_sandbox=True,
        expect=Expect(classes=("preempted",), blamed="nobody", attempts=(1, 2), starts=2, steps_lost_max=4),
    ),
    Scenario(
        "preempted-saves",
        "A job of higher priority takes the nodes after a time of grace, in which a checkpoint is made",
        sbatch=("--partition=patient", "--requeue", "--time=10"),
        box=GRACIOUS,
        moves=(_urgent_job(at_step(60)),),
        steps=160,
        every=1000,
        settings={"save-signal": "USR1", "save-wait": "10s"},
        needs_sandbox=True,
        expect=Expect(classes=("preempted",), blamed="nobody", attempts=(1, 2), starts=2, steps_lost_max=100),
        timeout_s=240.0,
    ),
    Scenario(
        "drain-requested",
        "An administrator drains a node, and a spare takes its place after the next checkpoint",
        ranks=2,
        spares=1,
        moves=(drain(1, at_step(20)),),
        steps=260,
        every=1000,
        settings={"save-signal": "USR1", "save-wait": "20s"},
        needs_sandbox=True,
        expect=Expect(
            classes=("node",), avoided=True, attempts=1, starts=2, rungs=("swap",), steps_lost_max=60
        ),
        timeout_s=240.0,
    ),
    Scenario(
        "time-limit",
        "The time limit comes, with progress",
        sbatch=("--time=1",),
        steps=380,
        every=20,
        step_s=0.3,
        expect=Expect(classes=("timelimit",), blamed="nobody", attempts=2, steps_lost_max=20),
        timeout_s=240.0,
    ),
    Scenario(
        "same-node-again",
        "The same bad node again",
        faults=(Fault("hang", (10,), rank=1, sticky=True),),
        collective_timeout_s=2.0,
        on_timeout="wait",
        settings={"end-wait": "3s"},
        expect=Expect(
            classes=("hang", "hang"),
            blamed="hurt",
            attempts=2,
            starts=3,
            rungs=("step", "resubmit"),
            avoided=True,
        ),
    ),
    Scenario(
        "scancel-pending",
        "The user cancels a job that has not started",
        sbatch=("--begin=now+600",),
        moves=(scancel(both(in_state("queued"), after(2.0))),),
        expect=Expect(end="stopped", classes=("cancelled",), attempts=1, starts=0, reason="cancel"),
        linger_s=5.0,
    ),
    Scenario(
        "scancel-running",
        "The user cancels a running job",
        moves=(scancel(at_step(8)),),
        expect=Expect(end="stopped", classes=("cancelled",), attempts=1, starts=1, reason="cancel"),
        linger_s=5.0,
    ),
    Scenario(
        "cancel-between",
        "The user cancels the run between two attempts",
        faults=(GPU_LOST,),
        settings={"settle": "8s", "settle-max": "10s"},
        moves=(
            ftrun_command(
                "the user says ftrun cancel", "cancel", "{run}", when=in_state("settling", "recovering")
            ),
        ),
        expect=Expect(end="stopped", classes=("hardware-gpu",), attempts=1, starts=1, reason="cancel"),
        linger_s=5.0,
    ),
    Scenario(
        "scancel-resubmitted",
        "The user cancels the second attempt",
        faults=(BAD_GPU,),
        moves=(scancel(on_attempt(2)),),
        expect=Expect(
            end="stopped", classes=("hardware-gpu", "cancelled"), attempts=2, starts=2, reason="cancel"
        ),
        linger_s=5.0,
    ),
    Scenario(
        "budget-used-up",
        "Every attempt fails",
        faults=(
            Fault("gpu-lost", (6,), rank=1, starts=(1,)),
            Fault("gpu-lost", (9,), rank=0, starts=(2,)),
            Fault("gpu-lost", (12,), rank=1, starts=(3,)),
        ),
        ranks=2,
        settings={"retries": "2"},
        expect=Expect(end="stopped", classes=("hardware-gpu",) * 3, attempts=3, reason="retries"),
        linger_s=3.0,
    ),
    Scenario(
        "deterministic",
        "The same failure twice at the same step, on different nodes",
        faults=(Fault("gpu-lost", (14,), rank=1),),
        ranks=2,
        expect=Expect(end="stopped", classes=("hardware-gpu",) * 2, attempts=2, reason="twice at step"),
        linger_s=3.0,
    ),
    Scenario(
        "retries-0",
        "With --ft-retries=0 ftrun watches and diagnoses only",
        faults=(GPU_LOST,),
        settings={"retries": "0"},
        expect=Expect(
            end="stopped", classes=("hardware-gpu",), blamed="hurt", attempts=1, reason="retries=0"
        ),
        linger_s=3.0,
    ),
    Scenario(
        "pipeline",
        "Three jobs that wait for each other, and the first is hurt",
        faults=(BAD_GPU,),
        chain=3,
        steps=20,
        expect=Expect(classes=("hardware-gpu",), avoided=True, attempts=2, steps_lost_max=4),
    ),
    Scenario(
        "link-flap",
        "A link goes down and up while training goes on",
        faults=(Fault("link-flap", (8, 16), rank=1),),
        expect=Expect(attempts=1, starts=1, evidence="link", steps_lost_max=0),
    ),
    *LOOKED_AT,
    *INSIDE,
    *SMALLER,
    *COMPANIONS,
    *GROWS,
    *CHECKPOINTING,
    *STAGED,
)


def by_name(name: str) -> Scenario | None:
    """The drill of that name; None where there is none."""
    return next((scenario for scenario in SCENARIOS if scenario.name == name), None)
