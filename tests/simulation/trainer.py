"""What a simulated job does: the opening of hooks/bundle/batch.sh, then a training that logs, saves and gets hurt. (I/O)

How it thinks. Each launch is a `Start`, or several, one after the other, where an agent goes on inside it (`inside`). It claims its attempt by the law, chooses its checkpoint by the rule of
`supervisor/store/checkpoints.py`, writes the same records as batch.sh into the real run folder, and then makes one step after
the other as long as the ranks on all its nodes live. Everything is an event of the launch's first node, so a frozen node
freezes it and a dead one ends it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints import diverged
from ftrun.hooks.checkpoints.diverged_folder import noted_divergences
from ftrun.hooks.checkpoints.selection import Selection
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.finding import Finding
from ftrun.slurm.client.cluster import JobState
from tests.fake_slurm import faults
from tests.fake_slurm.records import Launch
from tests.simulation import saved
from tests.simulation.inside import Inside, inside_of
from tests.simulation.plan import JobFault

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["LINES", "Start", "fault_of"]

PEERS_TIMEOUT_S = 60.0  # of a collective in which a rank is missing
CLAIM_EVERY_S = 2.0
UNSEEN_FOR_S = 1.0  # between claim and launch record

XID = (
    "[Tue Nov 14 22:13:20 2023] {node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, name=python3,"
    " GPU has fallen off the bus."
)
WATCHDOG = (
    "[rank{rank}]:[E1114 22:13:20.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=1704, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60021"
    " milliseconds before timing out."
)
DIVERGED = "Loss is nan, stopping training"
LINES = {
    "hardware-gpu": (XID,),
    "hang": (WATCHDOG,),
    "checkpoint": (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    "port-conflict": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address.",
        "RuntimeError: port: 29500, useIpv6: true, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    "user-code": (
        "Traceback (most recent call last):",
        '  File "train.py", line 41, in <module>',
        "NameError: name 'optimiser' is not defined",
    ),
    "oom-gpu": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.15 GiB",
    ),
}


class Start:
    """One launch: from its first line to its last; or one more start of the script inside it, the `number`-th."""

    def __init__(
        self, world: World, launch: Launch, *, inside: Inside | None = None, number: int = 1
    ) -> None:
        self.world = world
        self.launch = launch
        self.inside = inside
        self.number = number
        self.token = launch.request.token
        self.attempt = int(self.token.rsplit(":", 1)[1])
        self.folder = Path(world.run_dir) / "attempts" / str(self.attempt)
        self.step = 0
        self.began_from = 0  # the step of the checkpoint that it loaded
        self.training = False  # claimed, recorded, and not yet over
        self.began_s = 0.0
        self.last_step_s = 0.0
        self.sick_from: int | None = None  # the step after which its losses are no numbers any more
        self.fatal_s: float | None = None  # when it wrote a line that training does not survive
        self._claim_made: tuple[float, int] | None = (
            None  # a fatal line that training survives: when, at which step
        )
        self.hung = False  # a rank stands still, and it will never go on by itself
        self.reported = False  # a node of it was found bad, and it went on
        self._nodes: tuple[str, ...] = ()
        self.over = False
        self.cancelled = False  # its step is, and the script has not noticed yet
        self._waited_s = 0.0
        self.stuck_s: float | None = None  # since when a rank has been missing
        launch.on_signal = self._signal
        if inside is None:
            self.after(0.5, self._open)
        else:
            self._begin(launch.restarts)

    def __str__(self) -> str:
        which = f" start {self.number}" if self.number > 1 else ""
        return f"attempt {self.attempt} launch {self.launch.restarts}{which} (job {self.launch.job_id})"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that it uses."""
        return self._nodes if self._nodes else self.launch.nodes

    def host(self, node: str) -> Launch:
        """The launch by which it has this node: its own, or that of a companion."""
        return self.inside.host(node) if self.inside is not None else self.launch

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, if it is not over by then."""
        self.launch.after(delay_s, lambda: None if self.over else action())

    @property
    def alive(self) -> bool:
        """Its first node could write: a frozen node may thaw."""
        processes = self.launch.processes.get(self.launch.head)
        return processes is not None and processes.alive and not self.over

    @property
    def claimed_s(self) -> float | None:
        """When it wrote a fatal line after which it has not gone on (P7): one step may have been under way on another rank."""
        # The first step that a launch prints tells where it is, and not that it goes on.
        if self._claim_made is None or self.step > max(self._claim_made[1], self.began_from + 1) + 1:
            return None
        return self._claim_made[0]

    def claim(self, line: str) -> None:
        """Write a fatal line that need not be true."""
        self._say(line)
        self._claim_made = self.world.clock.now(), self.step

    # ------------------------------------------------------------------ as batch.sh does it

    def _open(self) -> None:
        number = self.launch.restarts
        verdict = self._claim(number)
        if verdict == "unseen":
            if self.attempt == 1 and number == 0:
                self._begin(number)
            elif self._waited_s >= self.world.claim_wait_s:
                self._exit(1, record=False)
            else:
                self._waited_s += CLAIM_EVERY_S
                self.after(CLAIM_EVERY_S, self._open)
        elif verdict == "taken":
            self.world.trace(f"  job {self.launch.job_id}: attempt {self.attempt} is closed; not started")
            self._exit(0, record=False)
        elif verdict == "again":
            self.world.trace(
                f"  job {self.launch.job_id}: launch {number} was started before; not started again"
            )
            self._record(f"lost.{number}", {"job": self.launch.job_id})
            self._exit(1, record=False)
        else:
            self.after(UNSEEN_FOR_S, lambda: self._begin(number))

    def _claim(self, number: int) -> str:
        if self.world.nodes_blind:
            return "unseen"
        names = ["claim", *(f"claim.{k}" for k in range(1, number + 1))]
        for earlier in names[:-1]:
            if _readlink(self.folder / earlier).startswith("closed."):
                return "taken"
        own = f"{self.world.cluster_name}.{self.launch.job_id}."
        held = [_readlink(path) for path in (self.folder / "claim", *self.folder.glob("claim.*"))]
        if any(one and not one.startswith(("closed.", own)) for one in held):
            return "taken"
        mine = f"{own}{number}.{self.token}"
        try:
            os.symlink(mine, self.folder / names[-1])
        except FileExistsError:
            if _readlink(self.folder / names[-1]) != mine:
                return "taken"
            # Our own words, by another start: Slurm started this launch twice (a controller that lost its memory).
            return "again" if (self.folder / f"launch.{number}").exists() else "mine"
        except OSError:
            return "unseen"
        return "mine"

    def _begin(self, number: int) -> None:
        world = self.world
        if self.inside is None:
            self.inside = inside_of(self)
        if self.inside is not None:
            self._nodes = self.inside.nodes
        picked = self._pick()
        chosen = picked.chosen.found.path if picked.chosen is not None else ""
        log = Path(self.launch.job.std_out)
        offset = log.stat().st_size if log.exists() else 0
        log.touch()
        stat = log.stat()
        record = {
            "job": self.launch.job_id,
            "restart": number,
            "cluster": world.cluster_name,
            "host": self.launch.head,
            "nodes": ",".join(self.launch.nodes),
            "pid": 1,
            "started_s": int(world.clock.now()),
            "stdout": log,
            "stdout_dev": stat.st_dev,
            "stdout_ino": stat.st_ino,
            "stdout_offset": offset,
            "stderr": log,
            "stderr_dev": stat.st_dev,
            "stderr_ino": stat.st_ino,
            "stderr_offset": offset,
            "resume_from": chosen,
        }
        if self.number == 1 and not world.nodes_blind and not self._record(f"launch.{number}", record):
            self._exit(1, record=False)
            return
        if self.number == 1 and self.inside is not None and self.inside.make_current() == 1:
            self._exit(0, record=False)
            return
        if picked.stuck:
            world.trace(f"  {self} has nothing to load: {picked.stuck}")
            if self.number == 1 and not world.nodes_blind:
                self._record(f"pick.{number}.1", {"stuck": picked.stuck, "end": 1})
            self._exit(1, record=False)
            return
        self.training = True
        self.began_s = self.last_step_s = world.clock.now()
        if self.inside is not None:
            self.inside.begins(self, record)
        world.laws.training_begins(self)
        self.after(1.0, lambda: self._load(chosen))

    def _record(self, name: str, values: dict[str, object]) -> bool:
        """Write a record that nobody wrote before; False when somebody did."""
        path = self.folder / name
        temporary = self.folder / f"{name}.{id(self)}.tmp"
        temporary.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        os.utime(temporary, (self.world.clock.now(), self.world.clock.now()))
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def _pick(self) -> Selection:
        """What batch.sh is told of the run's checkpoints, by its file or by the agent, and what it finds."""
        composed = (self.folder / "submitted" / "train.sh").read_bytes()
        told = {key: _word(composed, key) for key in ("skip", "poison", "had", "fresh", "verify")}
        if self.number > 1 and self.inside is not None:
            told |= {"skip": "\n".join(self.inside.added), "poison": "\n".join(self.inside.poison)}
            told["had"] = told["had"] or ("1" if self.inside.had else "")
        return saved.choose(
            self.world.checkpoint,
            self.world.cwd,
            aside=tuple(told["skip"].splitlines()),
            poisons=(
                *diverged.from_lines(told["poison"]),
                *(() if told["verify"] != "structure" else noted_divergences(self.world.run_dir)),
            ),
            had=bool(told["had"]),
            fresh=bool(told["fresh"]),
            run_dir=self.world.run_dir,
            by_rule=told["verify"] != "structure",
        )

    # ------------------------------------------------------------------ training

    def _load(self, path: str) -> None:
        if path:
            content = saved.read(path)
            if content is None:
                self.world.laws.not_loaded(self, path)
                self._fail("checkpoint", 1)
                return
            self.step = self.began_from = content.step
            self.sick_from = self.step if content.sick else None
        self.world.laws.resumed(self, path)
        self._say(f"resuming at step {self.step}" if self.step else "starting from scratch")
        again = self.attempt > 1 or self.launch.restarts or self.number > 1
        self.after(self.world.plan.step_s + (self.world.plan.load_s if again else 0.0), self._next)

    def _next(self) -> None:
        if self.cancelled:
            return
        if self.step >= self.world.plan.steps:
            self._say("training finished")
            self._exit(0)
            return
        if self._peers_missing():
            return
        fault = self.world.due(self.step + 1)
        if fault is not None and fault_of(fault.kind)(self, fault):
            return
        self._make_step()

    def _peers_missing(self) -> bool:
        """A collective with a rank that does not answer: wait, then give up as the watchdog does."""
        now = self.world.clock.now()
        missing = [node for node in self.nodes if not self.host(node).running(node)]
        if not missing:
            self.stuck_s = None
            return False
        if self.stuck_s is None:
            self.stuck_s = now
        if now - self.stuck_s >= PEERS_TIMEOUT_S:
            self._watchdog(missing)
            self._exit(1)
        else:
            self.after(2.0, self._next)
        return True

    def _watchdog(self, missing: list[str]) -> None:
        for rank, node in enumerate(self.nodes):
            if node not in missing:
                self._say(WATCHDOG.format(rank=rank))
        self.fatal_s = self.world.clock.now()

    def _make_step(self) -> None:
        plan, now = self.world.plan, self.world.clock.now()
        self.step += 1
        self.last_step_s = now
        self.world.laws.stepped(self)
        loss = f"{10.0 / self.step:.4f}" if self.sick_from is None else "nan"
        self._say(f"step {self.step}/{plan.steps} loss {loss}")
        if self.step % plan.save_every == 0 or self.step == plan.steps:
            self.save()
        if self.sick_from is not None and self.step - self.sick_from >= plan.sick_steps:
            self._say(DIVERGED)
            self.fatal_s = self.world.clock.now()
            self.after(1.0, lambda: self._exit(1))
            return
        self.after(0.2 if self.step >= plan.steps else plan.step_s, self._next)

    def save(self, *, torn: bool = False) -> None:
        """Write a checkpoint, whole by rename or torn in place."""
        folder = Path(self.world.cwd) / "ckpt"
        path = folder / f"step-{self.step:06d}.pt"
        known = saved.Content(self.step, self.sick_from is not None)
        written = saved.content(known, like_torch=self.world.plan.judged, torn=torn)
        if torn:
            path.write_bytes(written)
            os.utime(path, (self.world.clock.now(), self.world.clock.now()))
            return
        temporary = folder / f"{path.name}.tmp"
        temporary.write_bytes(written)
        temporary.rename(path)
        os.utime(path, (self.world.clock.now(), self.world.clock.now()))
        self.world.laws.saved(self, str(path))
        self._say(f"saved checkpoint {path} at step {self.step}")

    # ------------------------------------------------------------------ the end

    def _say(self, line: str) -> None:
        with open(self.launch.job.std_out, "a", encoding="utf-8") as log:
            log.write(line + "\n")

    def _fail(self, fault: str, code: int, node: str = "") -> None:
        """The last words of a fault, then the end."""
        for line in LINES[fault]:
            self._say(line.format(node=node, rank=0))
        self.fatal_s = self.world.clock.now()
        self.after(1.0, lambda: self._exit(code))

    def _signal(self, name: str) -> bool:
        if name == "TERM" and self.inside is not None:
            if self.over and not self.inside.ended_by_others:
                self._told()  # the script is over, and batch.sh waits for its agent
            self.inside.ended_by_others = True
        if name != "TERM" or self.over:
            return True
        if self.training and self.world.plan.graceful:
            if self.step and not self.stuck_s:
                self.save()
            self._told()
            self.after(2.0, lambda: self._exit(0, 15))
            return True
        self._told()
        if self.training:
            self._write_exit(0, 15)
        self.over = True
        return False

    def _told(self) -> None:
        """slurmstepd says in the job's own log why it ends it."""
        job = self.launch.job
        why = {
            "TIMEOUT": " DUE TO TIME LIMIT",
            "PREEMPTED": " DUE TO PREEMPTION",
            "NODE_FAIL": " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
        }.get(job.becomes.value, "")
        if job.state is JobState.COMPLETING and job.becomes is JobState.PENDING:
            words = {"Preempted": "PREEMPTION", "NodeDown": "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"}
            why = f" DUE TO {words.get(job.reason, 'JOB REQUEUE')}"
        self._say(
            f"slurmstepd: error: *** JOB {job.number} ON {self.launch.head} CANCELLED AT 2023-11-14T22:13:20{why} ***"
        )

    def last_words(self, node: str) -> None:
        """Its first node thaws, where a later start has begun: slurmstepd and srun tell in its log how it was lost."""
        if not self.world.plan.one_log or node != self.launch.head or self is self.world.laws.starts[-1]:
            return
        number, head = self.launch.job.number, self.launch.head
        cancelled = "CANCELLED AT 2023-11-14T22:13:20 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
        for rank, one in enumerate(self.nodes):
            self._say(
                f"srun: error: {one}: task {rank}: Killed"
                if one != head
                else f"srun: error: Node failure on {one}"
            )
        self._say(f"slurmstepd: error: *** JOB {number} ON {head} {cancelled}")
        self._say("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")

    def _exit(self, code: int, signal: int = 0, *, record: bool = True) -> None:
        if self.over:
            return
        self.over = True
        trained, self.training = self.training, False
        if code == 0 and not signal and record:
            self.world.laws.script_finished(self)
        if self.inside is not None and trained:
            self.inside.over(self, code, signal)
            return
        if record and trained:
            self._write_exit(code, signal)
        self.launch.exit(code, signal)

    def ends_job(self, code: int, signal: int) -> None:
        """Nobody starts the script again: the job ends as its last start did."""
        self._write_exit(code, signal)
        self.launch.exit(code, signal)

    def _write_exit(self, code: int, signal: int) -> None:
        if not self.world.nodes_blind:
            self._record(
                f"exit.{self.launch.restarts}",
                {
                    "code": 128 + signal if signal else code,
                    "signal": signal or "",
                    "ended_s": int(self.world.clock.now()),
                },
            )


# ---------------------------------------------------------------------- the faults of a plan


def _node_fault(start: Start, fault: JobFault) -> bool:
    world, nodes = start.world, start.nodes
    name = nodes[fault.node % len(nodes)]
    world.hurt(name, fault.kind, fault.for_s)
    # The step is tried again by what is left of the job; a dead first node says nothing more.
    start.after(world.plan.step_s, start._next)
    return True


def _xid(start: Start, fault: JobFault) -> bool:
    node = start.nodes[fault.node % len(start.nodes)]
    start.world.laws.guilty.add(node)
    start._fail("hardware-gpu", 1, node)
    return True


def _hang(start: Start, fault: JobFault) -> bool:
    """One rank stands still and the others say so; by themselves they never end."""
    missing = [start.nodes[fault.node % len(start.nodes)]]
    start.world.laws.guilty.update(missing)
    start.hung = True
    start.after(PEERS_TIMEOUT_S, lambda: start._watchdog(missing if len(start.nodes) > 1 else []))
    return True


def _silent(start: Start, _fault: JobFault) -> bool:
    """It stands still, and nobody says so."""
    start.hung = True
    return True


def _hang_exit(start: Start, fault: JobFault) -> bool:
    _hang(start, fault)
    start.after(PEERS_TIMEOUT_S + 5.0, lambda: start._exit(1, 6))
    return True


def _torn(start: Start, fault: JobFault) -> bool:
    """The process dies while it writes a checkpoint under its final name."""
    start.step += 1
    start.world.laws.stepped(start)
    start.save(torn=True)
    start._exit(0, 9)
    return True


def _survived(start: Start, _fault: JobFault) -> bool:
    """A fatal line, and training goes on."""
    start.claim(WATCHDOG.format(rank=0))
    return False


def _forged(start: Start, fault: JobFault) -> bool:
    """A user prints the words of a hardware fault."""
    start.claim(XID.format(node=start.nodes[fault.node % len(start.nodes)]))
    return False


def _report(start: Start, fault: JobFault) -> bool:
    """The watch finds a node bad, and training goes on: as much as a fatal line, and no more."""
    start.reported = _tell(start, fault)
    start.claim("")
    return False


def _sick(start: Start, fault: JobFault) -> bool:
    """A rank stands still without a word, and only the watch over its node tells why; where it cannot tell, the rank goes on."""
    # Beside another sick node of two, be it one that a start before this one had, most nodes are sick, and then nobody is suspected.
    before = start.inside.sick & {*start.nodes} if start.inside is not None else ()
    if start.reported or before or not _tell(start, fault):
        return False
    start.hung = True
    return True


def _tell(start: Start, fault: JobFault) -> bool:
    """The node's report, in the attempt's folder; False where the nodes do not see it."""
    world, node = start.world, start.nodes[fault.node % len(start.nodes)]
    world.laws.guilty.add(node)
    # Nothing watches what began without seeing the run's folder, either.
    if world.nodes_blind or not (start.folder / f"launch.{start.launch.restarts}").exists():
        return False
    finding = Finding(
        "gpu-check", "bad", "a GPU does not answer", "hardware-gpu", f"before step {fault.at_step}"
    )
    rows = [{**finding._asdict(), "at_s": world.clock.now(), "until_s": None}]
    report = {"schema": 1, "kind": "watch", "node": node, "at_s": world.clock.now(), "findings": rows}
    node_report.write_report(str(start.folder / "nodes"), start.launch.restarts, report)
    if start.inside is not None:
        start.inside.sick.add(node)
    return True


def _launch_failed(start: Start) -> None:
    start.world.laws.guilty.add(start.launch.head)
    faults.hold_launch(start.world.engine, start.launch.job_id)


def _slurm_does(act: Callable[[Start], None]) -> Callable[[Start, JobFault], bool]:
    def happen(start: Start, _fault: JobFault) -> bool:
        job = start.launch.job
        if start.world.engine.jobs.get(job.number) is job and job.launch is start.launch:
            start.world.engine.tell(lambda: act(start) if job.launch is start.launch else None)
        start.after(start.world.plan.step_s, start._next)
        return True

    return happen


def _dies(fault: str, code: int) -> Callable[[Start, JobFault], bool]:
    def happen(start: Start, planned: JobFault) -> bool:
        start.world.again(planned)  # it is in the code: every attempt meets it
        start._fail(fault, code)
        return True

    return happen


def _diverge(start: Start, _fault: JobFault) -> bool:
    """From this step on nothing is a number; the trainer says so, and stops itself a while later."""
    start.sick_from = start.step if start.sick_from is None else start.sick_from
    return False


def _diverge_again(start: Start, planned: JobFault) -> bool:
    start.world.again(planned)  # it is in the data: every attempt meets it
    return _diverge(start, planned)


def _port(start: Start, _fault: JobFault) -> bool:
    start._fail("port-conflict", 1)
    return True


def _kill(start: Start, _fault: JobFault) -> bool:
    start._exit(0, 9)
    return True


def _early_exit(start: Start, _fault: JobFault) -> bool:
    start._exit(0)
    return True


_FAULTS: dict[str, Callable[[Start, JobFault], bool]] = {
    "crash": _node_fault,
    "freeze": _node_fault,
    "slurmd": _node_fault,
    "xid": _xid,
    "hang": _hang,
    "hang-exit": _hang_exit,
    "silent": _silent,
    "torn": _torn,
    "port": _port,
    "diverge": _diverge,
    "diverge-again": _diverge_again,
    "survived": _survived,
    "report": _report,
    "sick": _sick,
    "forged": _forged,
    "kill": _kill,
    "early-exit": _early_exit,
    "bug": _dies("user-code", 1),
    "oom": _dies("oom-gpu", 1),
    "preempt": _slurm_does(lambda s: faults.preempt(s.world.engine, s.launch.job_id)),
    "preempt-cancel": _slurm_does(lambda s: faults.preempt(s.world.engine, s.launch.job_id, cancel=True)),
    "requeue": _slurm_does(lambda s: faults.requeue(s.world.engine, s.launch.job_id)),
    "hold-launch": _slurm_does(_launch_failed),
}


def fault_of(kind: str) -> Callable[[Start, JobFault], bool]:
    """What a planned fault does to a start just before a step; True = the step is not made now."""
    return _FAULTS[kind]


def _word(composed: bytes, key: str) -> str:
    """The value of a variable in a composed file."""
    found = re.search(rb"^_ft_" + key.encode() + rb"='([^']*)'$", composed, re.MULTILINE)
    return found[1].decode() if found else ""


def _readlink(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
