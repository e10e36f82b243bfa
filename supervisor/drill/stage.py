"""One drill from an empty folder to its result. (I/O)

How it thinks. Every drill has a sandbox, a $FTRUN_HOME and so a supervisor of its own: drills cannot disturb each other and run
side by side. The job is submitted by the very command a user types, which starts a real detached supervisor. Then the drill
only looks: at the run as its journal folds, and at what the trainer wrote; and makes its moves when their time has
come. Whatever happens, at the end nothing of it is left.

    <folder>/box      the sandbox            <folder>/home   $FTRUN_HOME
    <folder>/published  staged checkpoints, once they are on disk
    <folder>/work     script, log, ledger of the training (work2, work3: the jobs that wait for it)
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftrun.slurm.sandbox.lifecycle import Sandbox, SandboxError, up
from ftrun.supervisor import asking, events, journal, run_types, store
from ftrun.supervisor.drill import hands, ledger, script, verdict
from ftrun.supervisor.drill.chronicle import Chronicle
from ftrun.supervisor.drill.memory import Memory, small_disk, without_disk
from ftrun.supervisor.drill.scenarios import by_name
from ftrun.supervisor.drill.terms import Event, Move, Result, Scenario, Sight, Staging, Story
from ftrun.supervisor.errors import UserError

__all__ = ["USUAL", "DrillFailed", "run_scenario"]

LOOK_EVERY_S = 0.25
GONE_WITHIN_S = 60.0
# Waits that a user may shorten as well; a tenth of four nodes would be none.
USUAL = {"settle": "1s", "settle-max": "4s", "backoff": "1s", "exclude-cap": "50%"}
MACHINES_OWN = {"FTRUN_SLURM_CLIENT", "FTRUN_PYSLURM_PYTHON"}  # kept from the environment
SUBMITTED = re.compile(r"Submitted batch job (\d+)")


class DrillFailed(Exception):
    """The drill could not be held; one line. It says nothing about ftrun's recovery."""


def run_scenario(
    name: str,
    *,
    box: Sandbox | None = None,
    here: bool = False,
    keep: bool = False,
    parent: Path | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    stop: threading.Event | None = None,
) -> Result:
    """Hold the drill of that name and judge it.

    In a sandbox of its own, in `box` (which is left as the drill leaves it), or with `here` on the Slurm of the
    environment. `parent` is where its folder is made: it must be seen by the nodes. `keep` keeps the folder. `stop` ends it
    early, as a failure. Raises UserError for an unknown name and where the sandbox cannot be had.
    """
    scenario = by_name(name)
    if scenario is None:
        raise UserError(f"no drill is called {name!r}: `ftrun drill --list` shows them")
    if here and scenario.needs_sandbox:
        raise UserError(f"{name} breaks nodes or the controller: it runs in a sandbox only")
    stage = Stage(
        scenario, box=box, here=here, parent=parent, on_event=on_event, stop=stop or threading.Event()
    )
    try:
        return stage.play(keep=keep)
    except SandboxError as error:
        raise UserError(str(error), 2 if error.wrong_usage else 1) from error


class Stage:
    """The place and the course of one drill."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        box: Sandbox | None,
        here: bool,
        parent: Path | None,
        on_event: Callable[[Event], None],
        stop: threading.Event,
    ) -> None:
        self.scenario, self._box, self._own_box, self._stop = scenario, box, box is None and not here, stop
        self.folder = Path(tempfile.mkdtemp(prefix="ftrun-drill-", dir=parent))
        self.folder.chmod(0o755)
        self.home = self.folder / "home"
        self._works = [self.folder / ("work" if n == 0 else f"work{n + 1}") for n in range(scenario.chain)]
        self._published, self._staging = self.folder / "published", scenario.stage or Staging()
        self._hurts: list[dict[str, Any]] = []
        self._events: list[Event] = []
        self._on_event = on_event
        self._began_s = time.monotonic()
        self._chronicle = Chronicle()
        self._timed_out = False
        self._doer: hands.Doer | None = None
        # On a cluster with other jobs the name must tell ours from all others, for the clearing away.
        self._job_name = scenario.name if self._own_box else f"{scenario.name}-{self.folder.name[-8:]}"

    # ------------------------------------------------------------------ the course

    def play(self, *, keep: bool) -> Result:
        """Build, submit, look and move until the run is over; judge; clear away."""
        try:
            doer = self._build()
            failure = ""
            try:
                self._submit(doer)
                self._look_on(doer)
            except (DrillFailed, hands.NoSandbox, SandboxError) as error:
                failure = str(error)
            return self._judge(doer, failure, folder=str(self.folder) if keep else "")
        finally:
            self._clear(keep=keep)

    def _judge(self, doer: hands.Doer, failure: str, *, folder: str) -> Result:
        story = Story(
            runs=tuple(self._runs()),
            ledgers=tuple(ledger.read(work) for work in self._works),
            hurts=tuple(self._hurts),
            checkpoints=ledger.checkpoints(self._works[0]),
            published=ledger.published(self._published),
            in_memory=self._forgotten(doer.memory),
            reasons=self._reasons(),
            left=self._left(),
            timed_out=self._timed_out,
            failure=failure,
        )
        rows, checks = verdict.judge(self.scenario, story)
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

    def _look_on(self, doer: hands.Doer) -> None:
        began = moved = time.monotonic()
        moves = list(self.scenario.moves)
        while True:
            runs = self._runs()
            if not runs:
                raise DrillFailed("the run's folder is gone")
            self._tell(runs)
            if moves:
                sight = self._sight(runs[0], moved, doer.memory)
                if moves[0].when(sight):
                    self._make(doer, moves[0] if moves[0].repeats else moves.pop(0), sight)
                    moved = time.monotonic()
                    continue
            if (
                all(run.final for run in runs)
                and len(runs) == self.scenario.chain
                and not self._awaited(runs, moves)
            ):
                break
            if time.monotonic() - began > self.scenario.timeout_s:
                self._timed_out = True
                return
            self._pause(LOOK_EVERY_S)
        self._linger()

    def _awaited(self, runs: list[run_types.Run], moves: list[Move]) -> bool:
        """What an operator does goes on when the run is over, and a paused run is not."""
        return bool(moves) and (self.scenario.operator or runs[0].paused)

    def _linger(self) -> None:
        """After the end nothing may come back."""
        ended = time.monotonic()
        while time.monotonic() - ended < self.scenario.linger_s:
            self._tell(self._runs())
            self._pause(LOOK_EVERY_S)

    def _make(self, doer: hands.Doer, move: Move, sight: Sight) -> None:
        node = move.hurts(sight) if move.hurts is not None else ""
        self._say(move.says + (f": {node}" if node else ""))
        if move.hurts is not None:
            self._hurts.append(
                {"at": time.time(), "what": move.says, "node": node, "step": sight.ledger.step}
            )
        move.act(doer, sight)

    def _sight(self, run: run_types.Run, moved: float, seen: Memory) -> Sight:
        return Sight(
            run=run,
            ledger=ledger.read(self._works[0]),
            since_move_s=time.monotonic() - moved,
            supervised=bool(hands.supervisors(self.home)),
            reasons=self._reasons(),
            published=seen.on_disk(),
            sealed=seen.sealed(),
            copied=seen.copied(),
        )

    def _reasons(self) -> dict[str, str]:
        return self._doer.reasons() if self.scenario.operator and self._doer is not None else {}

    def _forgotten(self, seen: Memory) -> dict[str, tuple[str, ...]]:
        """What is in the memory of the nodes in the end; those of a job that ended just now have a moment to clear away."""
        give_up_s = time.monotonic() + GONE_WITHIN_S
        while any((left := seen.left()).values()) and time.monotonic() < give_up_s:
            time.sleep(LOOK_EVERY_S)
        return left

    def _left(self) -> tuple[str, ...]:
        """The jobs of the training that are there in the end; one that was cancelled just now has a moment."""
        give_up_s = time.monotonic() + GONE_WITHIN_S
        while True:
            found = self._doer.jobs_named(self._job_name) if self._doer is not None else ()
            if not found or time.monotonic() > give_up_s:
                return found
            time.sleep(LOOK_EVERY_S)

    def _runs(self) -> list[run_types.Run]:
        return [
            asking.up_to_date(events.fold(os.path.basename(run_dir), journal.read_run(run_dir)), time.time())
            for run_dir in store.run_dirs(str(self.home))
        ]

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise DrillFailed("interrupted")

    # ------------------------------------------------------------------ telling

    def _say(self, text: str) -> None:
        event = Event(self.scenario.name, round(time.monotonic() - self._began_s, 1), text)
        self._events.append(event)
        self._on_event(event)

    def _tell(self, runs: list[run_types.Run]) -> None:
        ledgers = [ledger.read(work) for work in self._works]
        for text in self._chronicle.news(runs, ledgers):
            self._say(text)
        after_s = round(time.monotonic() - self._began_s, 1)
        standing = f"{runs[0].state.value}, step {ledgers[0].step} of {self.scenario.steps}"
        self._on_event(Event(self.scenario.name, after_s, standing, passing=True))

    # ------------------------------------------------------------------ building and clearing away

    def _build(self) -> hands.Doer:
        for work in self._works:
            (work / "checkpoints").mkdir(parents=True)
        self._published.mkdir()
        if self._staging.disk_mib:  # before the nodes are there: they have what is mounted then
            small_disk(self._published, self._staging.disk_mib)
        self.home.mkdir(mode=0o700)
        (self.folder / "tmp").mkdir()
        (self.folder / "config.toml").write_text(self._site())
        if self._own_box:
            self._box = up(
                self.folder / "box",
                nodes=self.scenario.nodes,
                conf=self.scenario.box,
                ssh=self.scenario.operator,
                shm_mib=self._staging.memory_mib if self.scenario.stage is not None else 0,
                name="drill",
            )
            self._say(f"a sandbox with {self.scenario.nodes} nodes is up")
        base = self._box.env() if self._box is not None else dict(os.environ)
        env = {
            key: value
            for key, value in base.items()
            if not key.startswith(("FTRUN_", "SBATCH_")) or key in MACHINES_OWN
        }
        env |= {
            "FTRUN_HOME": str(self.home),
            "FTRUN_SITE_CONFIG": str(self.folder / "config.toml"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PWD": str(self.folder),
            # A node that dies leaves its private files behind.
            "TMPDIR": str(self.folder / "tmp"),
        }
        self._doer = hands.Doer(self._box, self.folder, self.home, env, Memory(self._box, self._published))
        if self.scenario.operator:
            self._doer.ftrun("operator", "--once")  # it makes the spool
        if self.scenario.counters:
            self._doer.env["FTRUN_WATCH_ROOT"] = self._doer.counters(self._doer.box.plan.node_names)
        if self.scenario.sick:
            self._doer.lose_memory(self.scenario.sick)
            self._hurts.append(
                {"at": time.time(), "what": "a sick node", "node": self.scenario.sick, "step": 0}
            )
            self._say(f"!! the memory of {self.scenario.sick} fails")
        return self._doer

    def _site(self) -> str:
        """The site's settings: waits that a site may shorten, too."""
        lines = ["poll = 0.5"]
        if (
            not self.scenario.companions
        ):  # there is always an idle node, and most drills are of what is done without
            lines.append('recover = "rank,step,swap,shrink,resubmit"')
        if self.scenario.operator:
            lines += [
                f'operator-spool = "{self.folder}/spool"',
                f'ssh-config = "{self.folder}/box/ssh/config"',
            ]
            lines += ["recheck-spacing = 0", "recheck-passes = 1"]
        return "\n".join(lines) + "\n"

    def _submit(self, doer: hands.Doer) -> None:
        job = ""
        for number, work in enumerate(self._works):
            self._write(work, hurt=number == 0)
            words = self._words(work) + ([f"--dependency=afterok:{job}"] if job else [])
            done = doer.submit([*words, str(work / "train.sh")], self.scenario.environment)
            found = SUBMITTED.search(done.stdout)
            if found is None:
                raise DrillFailed(f"ftrun sbatch did not submit: {(done.stderr or done.stdout).strip()}")
            job = found[1]

    def _words(self, work: Path) -> list[str]:
        s = self.scenario
        ours = {
            **(
                {"stage": str(self._published)}
                if s.stage is not None
                else {"checkpoint": f"{work}/checkpoints/ckpt-*.pt"}
            ),
            "resume-arg": "--resume={checkpoint}",
            **({"spares": str(s.spares)} if s.spares else {}),
            **({"rejoin": "yes"} if s.rejoin else {}),
            **USUAL,
            **s.settings,
        }
        return [
            f"--job-name={self._job_name}",
            f"--nodes={s.ranks}",
            "--ntasks-per-node=1",
            f"--output={work}/train.log",
            *s.sbatch,
            *(f"--ft-{key}={value}" for key, value in ours.items()),
        ]

    def _write(self, work: Path, *, hurt: bool) -> None:
        s = self.scenario
        plan = {
            "folder": str(work),
            "steps": s.steps,
            "shares": s.ranks,
            "every": s.every,
            "step_s": s.step_s,
            "save_s": s.save_s,
            "load_s": s.load_s,
            "marker": s.settings.get("checkpoint-marker", ""),
            "collective_timeout_s": s.collective_timeout_s,
            "on_timeout": s.on_timeout,
            "on_loss": s.on_loss,
            "loader": s.loader,
            "beat": s.beat,
            "rejoin": s.rejoin,
            **({"stage": s.stage.way, "pad_kib": s.stage.pad_kib} if s.stage is not None else {}),
            "host": "127.0.0.1" if self._box is not None and not self._box.plan.hosts else "",
            "faults": [asdict(f) for f in (s.faults if hurt else ())],
        }
        words = [*(["--kill-on-bad-exit=1"] if s.kill_on_bad_exit else []), *s.srun]
        script.lay_out(work, plan, srun=words, python=sys.executable if self._box is not None else "python3")

    def _clear(self, *, keep: bool) -> None:
        """No process of the drill is left, whatever came before; the folder goes unless it is wanted."""
        hands.end_processes(hands.supervisors(self.home))
        if self._own_box:
            if (self.folder / "box" / "sandbox.json").exists():
                Sandbox.load(self.folder / "box").down()
        elif self._doer is not None:
            self._doer.scancel_named(self._job_name)
        if self._staging.disk_mib:
            without_disk(self._published)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
