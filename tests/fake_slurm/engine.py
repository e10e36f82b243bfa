"""A virtual Slurm: nodes, a queue, a controller, and everything that goes wrong with them, on a virtual clock. (pure)

How it thinks. Everything that happens is an event on a virtual clock, so thousands of job lives fit into a second and
every run is repeated exactly. The controller learns what happens on nodes by messages
(`_tell`); while it is away they wait, as real daemons wait. What a node does and what the controller believes of it are
two things (see `memory_records`).

Simpler than the real one: nodes are dealt out whole or in slots, first in first out, and a later job may start when an
earlier one does not fit (no reservations). Faults of the controller are in `memory_faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ftrun.slurm.client.cluster import JobState
from tests.fake_slurm.clock import Clock
from tests.fake_slurm.dependencies import Verdict, judge
from tests.fake_slurm.records import Controller, Fault, Job, Launch, Node, Processes, Script, Timing

__all__ = ["Engine"]


class Engine:
    """The whole virtual cluster. `partitions` maps names to nodes; the first is the default one."""

    def __init__(
        self,
        partitions: Mapping[str, Collection[str]],
        *,
        timing: Timing | None = None,
        slots: int = 1,
        clock: Clock | None = None,
        first_id: int = 1,
    ) -> None:
        self.clock = clock if clock is not None else Clock()
        self.timing = timing if timing is not None else Timing()
        self.partitions = {name: tuple(nodes) for name, nodes in partitions.items()}
        names = dict.fromkeys(node for nodes in self.partitions.values() for node in nodes)
        self.nodes = {
            name: Node(name, tuple(p for p, nodes in self.partitions.items() if name in nodes), slots)
            for name in names
        }
        self.switches: dict[str, tuple[str, ...]] = {}  # leaf switches, where there are any
        self.jobs: dict[int, Job] = {}
        self.final: dict[int, JobState] = {}  # of every id that ever ended, purged ones too
        self.next_id = first_id
        self.controller: Controller = "up"
        self.requeue_default = True
        self._scripts: dict[str, Script] = {}
        self._inbox: list[Callable[[], None]] = []
        self._schedule_queued = False

    # ------------------------------------------------------------------ time

    def now(self) -> float:
        """Virtual Unix time."""
        return self.clock.now()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self.clock.after(delay_s, action)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    # --------------------------------------------------------------- scripts

    def script(self, name: str, behaviour: Script) -> None:
        """What jobs of this name do; the name "" stands for all others, which otherwise run for ever."""
        self._scripts[name] = behaviour

    def script_over(self, launch: Launch, code: int, signal: int) -> None:
        """The batch script ended by itself; its slurmd tells the controller when both can."""
        state = JobState.FAILED if code or signal else JobState.COMPLETED
        reason = "JobLaunchFailure" if signal else "NonZeroExitCode" if code else "None"

        def report() -> None:
            job = launch.job
            if job.launch is not launch:
                return
            if job.state is JobState.RUNNING:
                job.exit_code, job.exit_signal = code, signal
                self._end(job, state, reason)
            elif job.state is JobState.COMPLETING:
                self._clear_nodes(job)

        head = self.nodes[launch.head]
        self.kill(head, launch)
        if head.fault:  # its daemon tells when it is back
            head.unsent.append(report)
        else:
            self.tell(report)

    # -------------------------------------------------------- the controller

    def tell(self, message: Callable[[], None]) -> None:
        """A message to the controller: heard at once, or when it is back."""
        if self.controller == "up":
            message()
        else:
            self._inbox.append(message)

    def set_controller(self, state: Controller) -> None:
        """Stop, hang or (re)start the controller; what was sent meanwhile is then heard in order."""
        self.controller = state
        if state == "up":
            waiting, self._inbox = self._inbox, []
            for message in waiting:
                self.tell(message)
            self.schedule_soon()

    # ------------------------------------------------------------- the queue

    def add(self, job: Job) -> None:
        """Put a new job into the queue under its number."""
        self.jobs[job.number] = job
        self.final.pop(job.number, None)
        self.schedule_soon()

    def schedule_soon(self) -> None:
        """Something changed that may let a job start."""
        if not self._schedule_queued:
            self._schedule_queued = True
            self.after(self.timing.schedule_s, self._schedule)

    def _schedule(self) -> None:
        self._schedule_queued = False
        if self.controller != "up":
            return
        blocked = False
        for job in [job for job in self.jobs.values() if job.state is JobState.PENDING]:
            if not self._eligible(job):
                continue
            nodes = self._choose(job)
            if nodes is None:
                job.reason = "Priority" if blocked else "Resources"
                blocked = True
            else:
                self._start(job, nodes)

    def _eligible(self, job: Job) -> bool:
        if job.held:
            job.reason = job.held_reason
            return False
        if job.dependency:
            verdict, job.dependency = judge(job, self.jobs, self.final)
            if verdict is not Verdict.MET:
                job.reason = "Dependency" if verdict is Verdict.WAIT else "DependencyNeverSatisfied"
                return False
        if job.begin_s > self.clock.now():
            job.reason = "BeginTime"
            if job.wake_s != job.begin_s:
                job.wake_s = job.begin_s
                self.after(job.begin_s - self.clock.now(), self.schedule_soon)
            return False
        return True

    def _choose(self, job: Job) -> tuple[str, ...] | None:
        excluded = set(job.excluded)
        candidates = self.partitions[job.partition]
        free = [name for name in candidates if name not in excluded and self._free(self.nodes[name])]
        if any(name not in free for name in job.required):
            return None
        chosen = list(job.required) + [name for name in free if name not in job.required]
        count = max(job.node_count, len(job.required))
        return tuple(sorted(chosen[:count], key=free.index)) if len(chosen) >= count else None

    @staticmethod
    def _free(node: Node) -> bool:
        return not node.down and not node.not_responding and not node.drained and len(node.jobs) < node.slots

    # -------------------------------------------------------- a job's life

    def _start(self, job: Job, nodes: tuple[str, ...]) -> None:
        job.state, job.reason, job.nodes = JobState.RUNNING, "None", nodes
        job.start_s, job.end_s, job.grace_end_s = self.clock.now(), None, None
        launch = Launch(self, job, nodes, job.restarts, self.clock.now(), job.request)
        job.launch = launch
        for name in nodes:
            self.nodes[name].jobs.add(job.number)
        if job.time_limit_s is not None:
            self.after(job.time_limit_s, lambda: self.tell(lambda: self._time_is_up(job, launch)))
        if self.nodes[nodes[0]].fault:  # nobody there to start it: Slurm will notice when it misses the node
            return
        for name in nodes:
            self.occupy(launch, name)
        behaviour = self._scripts.get(job.name) or self._scripts.get("")
        if behaviour is not None:
            behaviour(launch)

    def _time_is_up(self, job: Job, launch: Launch) -> None:
        if job.launch is launch and job.state is JobState.RUNNING:
            self._end(job, JobState.TIMEOUT, "TimeLimit", terminate=True)

    def end(self, job: Job, state: JobState, reason: str = "None") -> None:
        """End a job from outside (cancel, preemption): a running one gets SIGTERM first, PENDING as the state = requeue."""
        if job.state is JobState.PENDING:
            if state is not JobState.PENDING:
                job.start_s = job.end_s = self.clock.now()
                job.reason = reason
                self._finish(job, state)
        elif job.state is JobState.RUNNING:
            self._end(job, state, reason, terminate=True)
        elif job.state is JobState.COMPLETING and job.becomes is JobState.PENDING:
            job.becomes = state

    def _end(self, job: Job, state: JobState, reason: str, *, terminate: bool = False) -> None:
        """COMPLETING, until nothing of it is left on any node."""
        launch = job.launch
        assert launch is not None
        job.state, job.becomes, job.reason = JobState.COMPLETING, state, reason
        job.end_s = self.clock.now()
        job.derived = launch.derived
        job.completing = set(job.nodes)
        if terminate and launch.signal("TERM"):
            self.after(self.timing.kill_wait_s, lambda: self.tell(lambda: self._clear_launch(job, launch)))
        else:
            self._clear_nodes(job)

    def _clear_launch(self, job: Job, launch: Launch) -> None:
        if job.launch is launch and job.state is JobState.COMPLETING:
            self._clear_nodes(job)

    def _clear_nodes(self, job: Job) -> None:
        """Kill what is left; a node that does not answer keeps the job completing until it is down or back."""
        launch = job.launch
        for name in sorted(job.completing):
            node = self.nodes[name]
            if not node.fault:
                self.kill(node, launch)
                self._left_soon(job, launch, name)
            elif node.down:
                self._left(job, launch, name)

    def _left_soon(self, job: Job, launch: Launch | None, name: str) -> None:
        self.after(self.timing.complete_s, lambda: self.tell(lambda: self._left(job, launch, name)))

    def _left(self, job: Job, launch: Launch | None, name: str) -> None:
        """Nothing of this launch is left on the node, as far as the controller can know."""
        if job.launch is not launch or job.state is not JobState.COMPLETING or name not in job.completing:
            return
        job.completing.discard(name)
        self.nodes[name].jobs.discard(job.number)
        if not job.completing:
            if job.becomes is JobState.PENDING:
                self._requeue(job)
            else:
                self._finish(job, job.becomes)
        self.schedule_soon()

    def _finish(self, job: Job, state: JobState) -> None:
        job.state = state
        self.final[job.number] = state
        self.after(self.timing.min_job_age_s, lambda: self._purge(job))
        self.schedule_soon()

    def _purge(self, job: Job) -> None:
        if job.state.ended and self.jobs.get(job.number) is job:
            del self.jobs[job.number]

    def _requeue(self, job: Job) -> None:
        """Back into the queue under the same id, as a new launch to be."""
        job.state, job.nodes, job.launch = JobState.PENDING, (), None
        job.restarts += 1
        job.submit_s = self.clock.now()
        job.begin_s = self.clock.now() + self.timing.requeue_delay_s
        job.start_s = job.end_s = None
        job.exit_code = job.exit_signal = 0
        job.derived = (0, 0)
        job.reason = job.held_reason if job.held else "BeginTime"
        self.schedule_soon()

    def requeue_ended(self, job: Job) -> None:
        """`scontrol requeue` of a job that is over already."""
        self.final.pop(job.number, None)
        self._requeue(job)

    # ------------------------------------------------------ what a node does

    def occupy(self, launch: Launch, node: str) -> None:
        """Processes of a launch begin on a node that is there."""
        if not self.nodes[node].fault:
            processes = launch.processes[node] = Processes(launch, node)
            self.nodes[node].processes.append(processes)

    def silent(self, node: str) -> bool:
        """Neither the node nor its daemon may be away."""
        return bool(self.nodes[node].fault)

    def kill(self, node: Node, launch: Launch | None = None) -> None:
        """SIGKILL to the processes of a launch (default: of every launch) on a node."""
        for processes in [p for p in node.processes if launch is None or p.launch is launch]:
            processes.alive = False
            processes.waiting.clear()
            node.processes.remove(processes)
            if processes.launch.on_gone is not None:
                processes.launch.on_gone(node.name)

    def fail_node(self, name: str, fault: Fault) -> None:
        """Hurt a node: "crash" (all processes gone), "freeze" (they stand still), "slurmd" (only the daemon is gone)."""
        node = self.nodes[name]
        node.fault = fault
        node.fault_count += 1
        if fault == "crash":
            self.kill(node)
            node.unsent.clear()
        for processes in node.processes:
            processes.frozen = fault == "freeze"
        count = node.fault_count
        self.after(self.timing.silent_s, lambda: self.tell(lambda: self._missed(node, count, down=False)))
        self.after(self.timing.down_s, lambda: self.tell(lambda: self._missed(node, count, down=True)))

    def mend_node(self, name: str) -> None:
        """Thaw, reboot or restart the daemon. Frozen processes go on at once; the controller's orders reach the node
        `register_s` later, and until then an old rank writes beside a new attempt.
        """
        node = self.nodes[name]
        node.fault = ""
        node.fault_count += 1
        for processes in list(node.processes):
            processes.frozen = False
            waiting, processes.waiting = processes.waiting, []
            for action in waiting:
                action()
        self.register_soon(node)

    def register_soon(self, node: Node) -> None:
        """The node's daemon and the controller will compare notes."""
        count = node.fault_count
        self.after(self.timing.register_s, lambda: self.tell(lambda: self._register(node, count)))

    def _register(self, node: Node, count: int) -> None:
        """The daemon reports itself: what should not run there is killed, what should run and does not is missed."""
        if node.fault_count != count:
            return
        unsent, node.unsent = node.unsent, []
        for message in unsent:
            message()
        node.not_responding = False
        if node.down:
            node.down = False
            if not node.drained:  # a drain outlives the outage, and so does its reason
                node.reason, node.reason_s = "", None
        for processes in list(node.processes):
            job = processes.launch.job
            owned = self.jobs.get(job.number) is job and job.launch is processes.launch
            # What Slurm has taken from a job (--no-kill) is no longer its own.
            if not owned or job.state is not JobState.RUNNING or node.name not in job.nodes:
                self.kill(node, processes.launch)
        for job in [self.jobs[number] for number in sorted(node.jobs)]:
            if job.state is JobState.COMPLETING:
                self._left(job, job.launch, node.name)
            elif job.launch is not None and not job.launch.running() and job.nodes[0] == node.name:
                self.lose_node(job, node.name)
        self.schedule_soon()

    def _missed(self, node: Node, count: int, *, down: bool) -> None:
        if node.fault_count != count:
            return
        node.not_responding = True
        if not down:
            return
        node.down = True
        if not node.reason:
            node.reason, node.reason_s = "Not responding", self.clock.now()
        for job in [self.jobs[number] for number in sorted(node.jobs)]:
            if job.state is JobState.COMPLETING:
                self._left(job, job.launch, node.name)
            else:
                self.lose_node(job, node.name)

    def lose_node(self, job: Job, name: str) -> None:
        """Slurm takes the node for lost to this job: it shrinks (--no-kill), is requeued, or fails.

        [tried on 22.05] A --no-kill job shrinks by the node of its own batch script, too, and stays RUNNING without a script.
        """
        if job.state is not JobState.RUNNING:
            return
        if job.no_kill and len(job.nodes) > 1:
            job.nodes = tuple(node for node in job.nodes if node != name)
            self.nodes[name].jobs.discard(job.number)
        else:
            self._end(
                job, JobState.PENDING if job.requeue else JobState.NODE_FAIL, "NodeDown", terminate=True
            )
