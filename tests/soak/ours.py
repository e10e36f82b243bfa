"""The side of a soak that ftrun looks after, and the watch over its invariants. (I/O)"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.drill import injector, readers, verdict
from ftrun.supervisor.drill.observation import Outcome
from ftrun.supervisor.drill.scenario import Expectation, Scenario
from ftrun.supervisor.drill.timeline import Timeline
from ftrun.supervisor.drill.workload import DEFAULT_SETTINGS
from ftrun.supervisor.drill_trainer import toy_model
from ftrun.supervisor.model import events
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.nodes import spool
from ftrun.supervisor.store import journal
from ftrun.supervisor.store import run_dir as store_run_dir
from tests.drills.tables import by_name
from tests.soak.invariants import Book, Sample, bounded, decisions, forgotten, innocent, two_jobs
from tests.soak.stand import ENDLESS, JOB, Side

__all__ = ["Ours"]

LAWS_EVERY_S = 20.0
RECHECK_EVERY_S = 45.0
GONE_WITHIN_S = 60.0
# Between the trainer's last word and the supervisor's some seconds may lie; whether a job is left is asked of Slurm at the end.
NOT_YET = ("nothing was trained to the end", "no job of the training is left")
NO_LATE_JOB_AFTER_S = (
    3.0  # what a law finds wrong is looked at once more: a checkpoint is moved into place before it is noted
)
SETTINGS = {
    **DEFAULT_SETTINGS,
    **by_name("node-crash").settings,
    **by_name("hang-silent").settings,
    "retries": "100000",
    "exclude-for": "4m",
    "quarantine-max": "8m",
    "watch-period": "5s",
}


class Ours(Side):
    """`ftrun sbatch`, with a supervisor of its own, `ftrun recheck` from cron, and a person who asks `ftrun status` after the supervisor was killed."""

    name = "ftrun"
    ssh = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.laws = Book()
        self.samples: list[Sample] = []
        self._timeline = Timeline()
        self._known: dict[str, Any] = {}
        self._then: list[
            tuple[int, model_run.Run]
        ] = []  # how many records the journal had, and the run that they made
        self._running: dict[str, float] = {}  # job -> since when it has been seen to run
        self._laws_at_s = self._recheck_at_s = 0.0

    def _site(self) -> str:
        return f'poll = 0.5\nssh-config = "{self.folder}/box/ssh/config"\nrecheck-spacing = 0\nrecheck-passes = 1\n'

    def submit(self) -> None:
        """As a user does with ftrun."""
        self.doer.env["FTRUN_WATCH_ROOT"] = self.doer.counters(self.box.node_names)
        ours = {
            "checkpoint": f"{self.work}/checkpoints/ckpt-*.pt",
            "resume-arg": "--resume={checkpoint}",
            **SETTINGS,
        }
        words = [*self.sbatch_words(), *(f"--ft-{key}={value}" for key, value in ours.items())]
        done = self.doer.submit([*words, str(self.work / "train.sh")], {})
        if done.returncode:
            raise SandboxError(f"ftrun sbatch did not submit: {(done.stderr or done.stdout).strip()}")

    # ---- looking

    def run(self) -> model_run.Run:
        """The run as its journal folds."""
        (run_dir,) = store_run_dir.run_dirs(str(self.home))
        return spool.with_answers(
            events.fold(os.path.basename(run_dir), journal.read_run(run_dir)), time.time()
        )

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return Path(store_run_dir.run_dirs(str(self.home))[0])

    def standing(self) -> str:
        """The state of the run, the step."""
        return f"{self.run().state.value}, {super().standing()}"

    def look(self) -> None:
        """Tell what is new; every law that can be looked at now."""
        run, now_s = self.run(), time.time()
        for text in self._timeline.news([run], [self.trace()]):
            self.say(text)
        self._sample(now_s)
        self._note("no decision is forgotten", forgotten(self._known, known := decisions(run)))
        self._known |= known
        if now_s - self._laws_at_s < LAWS_EVERY_S:
            return
        self._laws_at_s = now_s
        self._look_at_slurm(run, now_s)
        self._drill_laws(run, live=True)
        records = journal.read_run(str(self.run_dir))
        self._then.append((len(records), events.fold(run.id, records)))
        if now_s - self._recheck_at_s > RECHECK_EVERY_S:
            self._recheck_at_s = now_s
            self.recheck()

    def recheck(self) -> None:
        """What cron does."""
        if any(self.ours(node) for node in self.box.node_names):
            self.doer.ftrun("recheck")

    def reasons(self) -> dict[str, str]:
        """Why Slurm holds nodes back; {} where it cannot be asked."""
        try:
            return self.doer.reasons()
        except SandboxError:
            return {}

    def ours(self, node: str) -> bool:
        """Whether it is held back by ftrun."""
        return self.reasons().get(node, "").startswith("ftrun:")

    def _look_at_slurm(self, run: model_run.Run, now_s: float) -> None:
        self._note("ftrun drains no healthy node", innocent(self.reasons(), self.hurt))
        try:
            rows = self.box.run(["squeue", "-h", f"--name={JOB}", "-t", "R", "-o", "%i"], timeout_s=15.0)
        except SandboxError:
            return
        if not rows.returncode:
            self._running = {job: self._running.get(job, now_s) for job in rows.stdout.split()}
            self._note(
                "no two jobs of a run run at once",
                two_jobs(run, {job: now_s - since for job, since in self._running.items()}),
            )

    def _drill_laws(self, run: model_run.Run, *, live: bool) -> None:
        wrong = self._broken(run)
        if live and any(wrong.values()):
            time.sleep(NO_LATE_JOB_AFTER_S)
            wrong = self._broken(self.run())
        for law, why in wrong.items():
            self._note(law, [why] if why else [])

    def _broken(self, run: model_run.Run) -> dict[str, str]:
        """Law of the drills -> why it does not hold, "" where it does."""
        outcome = Outcome(
            runs=(run,),
            traces=(self.trace(),),
            faults=(),
            checkpoints=readers.read_checkpoints(self.work),
            timed_out=True,
        )
        held = Scenario(
            JOB,
            JOB,
            Expectation(),
            ranks=self.options.ranks,
            steps=0 if self._steps == ENDLESS else self._steps,
        )
        checks = verdict.laws(held, outcome)
        return {check.wanted: "" if check.held else check.seen or "it does not hold" for check in checks}

    def _sample(self, now_s: float) -> None:
        for pid in injector.supervisors(self.home)[:1]:
            try:
                status = Path("/proc", str(pid), "status").read_text()
                rss_kib = int(status.partition("VmRSS:")[2].split()[0])
                self.samples.append(Sample(now_s, rss_kib, len(os.listdir(f"/proc/{pid}/fd"))))
            except (OSError, IndexError, ValueError):
                continue  # it ended meanwhile

    def _note(self, law: str, breaches: list[str]) -> None:
        for breach in self.laws.note(law, breaches):
            self.say(f"## VIOLATED: {law}: {breach}")

    # ---- what only this side has

    def _kill_supervisor(self) -> None:
        self.doer.kill_supervisor()

    def _kill_agent(self) -> None:
        self.doer.kill_agent()

    def _lose_memory(self, node: str) -> None:
        self.doer.lose_memory(node)

    def _repaired(self, kind: str, node: str) -> None:
        if kind == "supervisor-killed":
            self.doer.ftrun("status")
        elif kind == "memory" and node:
            self.doer.counters([node])

    # ---- the end

    def finish(self, within_s: float) -> None:
        """Wait until the run is over, then look at everything once more."""
        deadline = time.monotonic() + within_s
        while not (run := self.run()).final and time.monotonic() < deadline:
            self.look()
            time.sleep(2.0)
        self._note(
            "the run is finished in the end",
            [] if run.state is State.FINISHED else [f"{run.state.value} {run.final_reason}".strip()],
        )
        self._give_back()
        self._drill_laws(run, live=False)
        self._note("nothing of ftrun is left", self._left())
        self._note("the journal replays to the same states", self._replayed(run.id))
        self._note("memory and open files of the supervisor are bounded", bounded(self.samples))

    def _replayed(self, run_id: str) -> list[str]:
        """The journal as it is now makes the very runs that it made at each look, whoever wrote it in between."""
        records = journal.read_run(str(self.run_dir))
        again = model_run.Run(run_id)
        states = [again, *(again := events.apply(again, record) for record in records)]
        wrong = [count for count, then in self._then if count >= len(states) or states[count] != then]
        return [f"after {count} records it made another run than now" for count in wrong]

    def _give_back(self) -> None:
        """All nodes are well now: cron's rechecks give back what ftrun holds."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while any(self.ours(node) for node in self.box.node_names) and time.monotonic() < deadline:
            self.recheck()
            time.sleep(2.0)

    def _left(self) -> list[str]:
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := self._left_now()) and time.monotonic() < deadline:
            time.sleep(2.0)
        return left

    def _left_now(self) -> list[str]:
        supervising = set(injector.supervisors(self.home))  # one stays for `idle-exit`
        wanted = f"FTRUN_HOME={self.home}".encode()
        processes = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) in supervising | {os.getpid()}:
                continue
            try:
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    words = (
                        Path("/proc", entry, "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                    parent = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
                    if parent not in supervising:
                        processes.append(f"process {words[:120]}")
            except OSError:
                continue  # it ended meanwhile
        jobs = [f"job {job}" for job in self.doer.jobs_named(JOB)]
        nodes = [
            f"{node} is drained: {why}" for node, why in self.reasons().items() if why.startswith("ftrun:")
        ]
        told = self.box.run(["scontrol", "-o", "show", "reservation"], timeout_s=15.0).stdout
        reservations = [line[:120] for line in told.splitlines() if line.startswith("ReservationName=")]
        return [*processes, *jobs, *nodes, *reservations]

    def right_checksum(self) -> str:
        """That of an undisturbed training of as many steps."""
        return toy_model.checksum(toy_model.weights_after(self._steps, self.options.ranks))

    def run_folder_bytes(self) -> int:
        """What the run's folder takes."""
        return sum(path.lstat().st_size for path in self.run_dir.rglob("*") if not path.is_dir())
