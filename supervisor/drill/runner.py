"""Runs one drill from an empty folder to its result, and several in parallel. (I/O)

Every drill has its own sandbox and $FTRUN_HOME, and so its own supervisor: drills cannot disturb each other
and run in parallel. The drill submits the job by the command that a user types, which starts a real detached
supervisor. Then it only observes (the run by its journal, and the trainer's log) and performs its actions
when they are due. Whatever happens, it leaves nothing behind.

    <folder>/box      the sandbox            <folder>/home   $FTRUN_HOME
    <folder>/published  staged checkpoints that are on disk
    <folder>/work     script, log, trace of the training (work2, work3: the dependent jobs)
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.drill import injector, readers, verdict, workload
from ftrun.supervisor.drill import scenario as drill_scenario
from ftrun.supervisor.drill.injector import Injector
from ftrun.supervisor.drill.observation import Observation, Outcome, is_due, target_node
from ftrun.supervisor.drill.scenario import Action, Scenario, Staging
from ftrun.supervisor.drill.timeline import Event, Row, Timeline
from ftrun.supervisor.drill.verdict import Check
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.nodes import spool
from ftrun.supervisor.store import journal_tail
from ftrun.supervisor.store import run_dir as store_run_dir

POLL_S = 0.25
GONE_WITHIN_S = 60.0
MACHINES_OWN = {"FTRUN_SLURM_CLIENT", "FTRUN_PYSLURM_PYTHON"}  # kept from the environment
SUBMITTED = re.compile(r"Submitted batch job (\d+)")


class DrillFailed(Exception):
    """The drill itself could not run; one line. It says nothing about ftrun's recovery."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one drill. `held`: as expected; `folder` is "" if it was removed."""

    name: str
    title: str
    held: bool
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    events: tuple[Event, ...]
    took_s: float
    folder: str


# ---------------------------------------------------------------------------- tables of drills


def load(path: Path) -> tuple[Scenario, ...]:
    """The drills of a table (see scenario). Raises ValueError."""
    return drill_scenario.parse(path.read_text(encoding="utf-8"))


def user_scenarios() -> tuple[Scenario, ...]:
    """The drills of `ftrun drill`, in the order of the list."""
    return load(Path(__file__).with_name("scenarios.toml"))


# ---------------------------------------------------------------------------- running drills


def ignore(*_: object) -> None:
    """The listener of a caller that wants to hear nothing."""


def run_all(
    scenarios: Sequence[Scenario],
    *,
    lanes: int,
    here: bool = False,
    keep: bool = False,
    parent: Path | None = None,
    on_event: Callable[[Event], None],
    on_end: Callable[[Result], None],
    on_home: Callable[[str, Path], None] = ignore,
) -> list[Result]:
    """Run these drills, at most `lanes` at a time; the results are in their order. Raises what `run_scenario`
    raises. Every drill has cleaned up before this returns or raises, on KeyboardInterrupt too.
    """
    stop = threading.Event()

    def hold(one: Scenario) -> Result:
        result = run_scenario(
            one, here=here, keep=keep, parent=parent, on_event=on_event, on_home=on_home, stop=stop
        )
        on_end(result)
        return result

    with ThreadPoolExecutor(max_workers=lanes, thread_name_prefix="drill") as pool:
        futures = [pool.submit(hold, one) for one in scenarios]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            return [future.result() for future in futures]
        finally:
            # Drop the drills not begun and end the running ones early; leaving the pool waits for them.
            for future in futures:
                future.cancel()
            stop.set()


def run_scenario(
    one: Scenario,
    *,
    here: bool = False,
    keep: bool = False,
    parent: Path | None = None,
    on_event: Callable[[Event], None] = ignore,
    on_home: Callable[[str, Path], None] = ignore,
    stop: threading.Event | None = None,
) -> Result:
    """Run a drill and check its outcome.

    It runs in its own sandbox, or with `here` on the Slurm of the environment. `parent`: where to make its
    folder, which the nodes must see; `keep`: keep the folder; `on_home`: called with the drill and its home
    before that is removed; `stop`: end early, as a failure. Raises
    UserError if no sandbox can be started.
    """
    if here and one.needs_sandbox:
        raise UserError(f"{one.name} breaks nodes or the controller: it runs in a sandbox only")
    try:
        drill = Drill(one, here=here, parent=parent, on_event=on_event, stop=stop)
        return drill.run(keep=keep, on_home=on_home)
    except SandboxError as error:
        raise UserError(str(error), 2 if error.wrong_usage else 1) from error


class Drill:
    """One drill: folder, sandbox, events. A `box` that existed before is not taken down."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        box: Sandbox | None = None,
        here: bool = False,
        parent: Path | None = None,
        on_event: Callable[[Event], None] = ignore,
        stop: threading.Event | None = None,
    ) -> None:
        self.scenario, self._box, self._own_box = scenario, box, box is None and not here
        self._stop = stop or threading.Event()
        self.folder = Path(tempfile.mkdtemp(prefix="ftrun-drill-", dir=parent))
        self.folder.chmod(0o755)
        self.home = self.folder / "home"
        self._works = [self.folder / ("work" if n == 0 else f"work{n + 1}") for n in range(scenario.chain)]
        self._published, self._staging = self.folder / "published", scenario.stage or Staging()
        self._faults: list[dict[str, Any]] = []
        self._events: list[Event] = []
        self._journals = journal_tail.RunReader()
        self._on_event = on_event
        self._began_s = time.monotonic()
        self._timeline = Timeline()
        self._timed_out = False
        self._injector: Injector | None = None
        self._staged: readers.StagingView = readers.StagingView(None, self._published)
        # On a cluster with other jobs the name must be unique, since the cleanup cancels by name.
        self._job_name = scenario.name if self._own_box else f"{scenario.name}-{self.folder.name[-8:]}"

    # ---- running

    def run(self, *, keep: bool, on_home: Callable[[str, Path], None] = ignore) -> Result:
        """Build, submit, observe and act until the run is over; check the outcome; clean up."""
        try:
            inject = self._build()
            failure = ""
            try:
                self._submit(inject)
                self._follow(inject)
            except (DrillFailed, injector.NoSandbox, SandboxError) as error:
                failure = str(error)
            result = self._judge(inject, failure, folder=str(self.folder) if keep else "")
            on_home(self.scenario.name, self.home)
            return result
        finally:
            self._clear(keep=keep)

    def _judge(self, inject: Injector, failure: str, *, folder: str) -> Result:
        outcome = Outcome(
            runs=tuple(self._runs()),
            traces=tuple(readers.read_trace(work) for work in self._works),
            faults=tuple(self._faults),
            checkpoints=readers.read_checkpoints(self._works[0]),
            published=readers.read_published(self._published),
            in_memory=_wait_until_empty(self._staged.left, lambda left: not any(left.values())),
            reasons=self._reasons(),
            jobs_left=_wait_until_empty(lambda: inject.jobs_named(self._job_name), lambda jobs: not jobs),
            timed_out=self._timed_out,
            failure=failure,
        )
        rows, checks = verdict.check_outcome(self.scenario, outcome)
        return Result(
            name=self.scenario.name,
            title=self.scenario.title,
            held=all(check.held for check in checks),
            rows=rows,
            checks=checks,
            events=tuple(self._events),
            took_s=round(time.monotonic() - self._began_s, 1),
            folder=folder,
        )

    def _follow(self, inject: Injector) -> None:
        began = acted = time.monotonic()
        actions = list(self.scenario.actions)
        while True:
            runs = self._runs()
            if not runs:
                raise DrillFailed("the run's folder is gone")
            self._tell(runs)
            if actions:
                seen = self._observe(runs[0], acted, actions[0])
                if is_due(actions[0], seen):
                    self._act(inject, actions[0] if actions[0].repeats else actions.pop(0), seen)
                    acted = time.monotonic()
                    continue
            over = all(run.final for run in runs) and len(runs) == self.scenario.chain
            # Actions for the site go on after the end of the run; a paused run is not over.
            if over and not (actions and (self.scenario.site_service or runs[0].paused)):
                break
            if time.monotonic() - began > self.scenario.timeout_s:
                self._timed_out = True
                return
            self._pause(POLL_S)
        ended = time.monotonic()
        while time.monotonic() - ended < self.scenario.linger_s:  # no job may appear
            self._tell(self._runs())
            self._pause(POLL_S)

    def _act(self, inject: Injector, action: Action, seen: Observation) -> None:
        node = target_node(action, seen)
        self._say(action.title + (f": {node}" if node else ""))
        if action.is_fault:
            self._note_fault(action.title, node, seen.trace.step)
        inject.do(action, seen)

    def _note_fault(self, what: str, node: str, step: int) -> None:
        self._faults.append({"at": time.time(), "what": what, "node": node, "step": step})

    def _observe(self, run: model_run.Run, acted: float, action: Action) -> Observation:
        return Observation(
            run=run,
            trace=readers.read_trace(self._works[0]),
            since_action_s=time.monotonic() - acted,
            supervised="supervised" in dict(action.when) and bool(injector.supervisors(self.home)),
            reasons=self._reasons(),
            published=self._staged.on_disk(),
            sealed=self._staged.sealed(),
            copied=self._staged.copied(),
        )

    def _reasons(self) -> dict[str, str]:
        return self._injector.reasons() if self.scenario.site_service and self._injector is not None else {}

    def _runs(self) -> list[model_run.Run]:
        return [
            spool.with_answers(self._journals.run(run_dir), time.time())
            for run_dir in store_run_dir.run_dirs(str(self.home))
        ]

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise DrillFailed("interrupted")

    # ---- events

    def _say(self, text: str) -> None:
        event = Event(self.scenario.name, round(time.monotonic() - self._began_s, 1), text)
        self._events.append(event)
        self._on_event(event)

    def _tell(self, runs: list[model_run.Run]) -> None:
        traces = [readers.read_trace(work) for work in self._works]
        for text in self._timeline.news(runs, traces):
            self._say(text)
        after_s = round(time.monotonic() - self._began_s, 1)
        standing = f"{runs[0].state.value}, step {traces[0].step} of {self.scenario.steps}"
        self._on_event(Event(self.scenario.name, after_s, standing, passing=True))

    # ---- building and cleanup

    def _build(self) -> Injector:
        for work in self._works:
            (work / "checkpoints").mkdir(parents=True)
        self._published.mkdir()
        if self._staging.disk_mib:  # before the nodes start: they see only earlier mounts
            injector.mount_small_disk(self._published, self._staging.disk_mib)
        self.home.mkdir(mode=0o700)
        (self.folder / "tmp").mkdir()
        (self.folder / "config.toml").write_text(workload.site_config(self.scenario, self.folder))
        if self._own_box:
            self._box = up(
                self.folder / "box",
                nodes=self.scenario.nodes,
                conf=self.scenario.slurm_conf,
                topology=self.scenario.topology,
                ssh=self.scenario.site_service,
                shm_mib=self._staging.memory_mib if self.scenario.stage is not None else 0,
                name="drill",
            )
            self._say(f"a sandbox with {self.scenario.nodes} nodes is up")
        self._staged = readers.StagingView(self._box, self._published)
        self._injector = inject = Injector(self._box, self.folder, self.home, self._environment())
        if self.scenario.site_service:
            inject.ftrun("site", "--once")  # it makes the spool
        if self.scenario.counters:
            inject.env["FTRUN_WATCH_ROOT"] = inject.counters(inject.box.node_names)
        if self.scenario.sick_node:
            inject.lose_memory(self.scenario.sick_node)
            self._note_fault("a sick node", self.scenario.sick_node, 0)
            self._say(f"!! the memory of {self.scenario.sick_node} fails")
        return inject

    def _environment(self) -> dict[str, str]:
        base = self._box.env() if self._box is not None else dict(os.environ)
        foreign = ("FTRUN_", "SBATCH_")
        return {
            **{key: base[key] for key in base if not key.startswith(foreign) or key in MACHINES_OWN},
            "FTRUN_HOME": str(self.home),
            "FTRUN_SITE_CONFIG": str(self.folder / "config.toml"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PWD": str(self.folder),
            # A node that dies leaves its private files behind.
            "TMPDIR": str(self.folder / "tmp"),
        }

    def _submit(self, inject: Injector) -> None:
        job = ""
        for number, work in enumerate(self._works):
            self._write(work, hurt=number == 0)
            words = workload.sbatch_words(self.scenario, work, self._published, self._job_name)
            words += [f"--dependency=afterok:{job}"] if job else []
            done = inject.submit([*words, str(work / "train.sh")], self.scenario.environment)
            found = SUBMITTED.search(done.stdout)
            if found is None:
                raise DrillFailed(f"ftrun sbatch did not submit: {(done.stderr or done.stdout).strip()}")
            job = found[1]

    def _write(self, work: Path, *, hurt: bool) -> None:
        own_slurm = self._box is not None
        host = "127.0.0.1" if self._box is not None and not self._box.plan.hosts else ""
        plan = workload.plan_of(self.scenario, work, hurt=hurt, host=host)
        srun = [*(["--kill-on-bad-exit=1"] if self.scenario.kill_on_bad_exit else []), *self.scenario.srun]
        workload.write_workload(work, plan, srun=srun, python=sys.executable if own_slurm else "python3")

    def _clear(self, *, keep: bool) -> None:
        """End every process of the drill; remove its folder unless `keep`."""
        injector.end_processes(injector.supervisors(self.home))
        if self._own_box:
            if (self.folder / "box" / "sandbox.json").exists():
                Sandbox.load(self.folder / "box").down()
        elif self._injector is not None:
            self._injector.scancel_named(self._job_name)
        if self._staging.disk_mib:
            injector.unmount_disk(self._published)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def _wait_until_empty(look: Callable[[], Any], empty: Callable[[Any], bool]) -> Any:
    """The result of `look` once it is `empty`, or after a grace period."""
    give_up_s = time.monotonic() + GONE_WITHIN_S
    while not empty(found := look()) and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
    return found
