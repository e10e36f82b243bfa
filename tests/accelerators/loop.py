"""Cases of the whole loop: a training on a real Slurm fails on its first start, and ftrun decides. (I/O)"""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ftrun.slurm.sandbox import lifecycle
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.drill import injector
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import journal_tail, run_dir
from tests.accelerators.cases import Case
from tests.accelerators.here import PROGRAMS, Here, NotHere, Seen
from tests.accelerators.kit import PLUGINS

WITHIN_S = 150.0
QUICK = """\
poll = 0.5
log-quiet = 1
log-quiet-max = 3
backoff = 1
fault-grace = 3
exclude-cap = '50%'
hang-min = 6
hang-max = 12
hang-grace = 40
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name} --nodes=1 --ntasks=1 --gres=gpu:1 --output=job.log --open-mode=append
#FTRUN --checkpoint=checkpoints/step-*.pt
mkdir -p checkpoints
srun {python} {program} training {fault}
"""


class Slurm:
    """The sandbox of the cases, brought up when the first of them asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._refused = folder / "box", ""
        self._box: Sandbox | None = None

    def get(self) -> Sandbox:
        """The sandbox: three nodes with one GPU each. Raises NotHere where Slurm does not run here."""
        if self._refused:
            raise NotHere(self._refused)
        if self._box is None:
            plugins = os.environ.get(PLUGINS)
            try:
                self._box = lifecycle.up(
                    self._folder, nodes=3, gpus=1, conf={"PluginDir": plugins} if plugins else None
                )
            except SandboxError as error:
                self._refused = f"Slurm does not run here: {error}"
                raise NotHere(self._refused) from None
        return self._box

    def words(self) -> str:
        """Its release and where it is from, or why there is none."""
        if self._box is None:
            return self._refused or "not asked for"
        major, minor = self._box.plan.version
        return f"{major}.{minor:02d}, {'of the kit' if os.environ.get(PLUGINS) else 'of this machine'}, GPUs: {self._box.plan.gpu_files}"

    def down(self) -> None:
        """End it, if it is up."""
        if self._box is not None:
            self._box.down()


class Played(NamedTuple):
    """A run that ended."""

    run: Run
    log: str
    took_s: float

    @property
    def faults(self) -> list[str]:
        """The class of each incident."""
        return [
            re.sub(r".*\.", "", str(one.diagnosis["class"])) for one in self.run.incidents if one.diagnosis
        ]

    def losses(self) -> dict[int, set[str]]:
        """Step -> the losses that were printed for it, all digits."""
        found: dict[int, set[str]] = {}
        for step, loss in re.findall(r"^step (\d+)/\d+ loss (\S+)$", self.log, re.MULTILINE):
            found.setdefault(int(step), set()).add(loss)
        return found

    def story(self) -> str:
        """The run in a line."""
        starts = len(re.findall(r"^on \S+ .*from step", self.log, re.MULTILINE))
        return f"{self.run.state.value} after {starts} start(s), {', '.join(self.faults) or 'no fault'}, {self.took_s:.0f} s"


def play(here: Here, fault: str, hurt: Callable[[Path], None] | None = None) -> Played:
    """A training with this fault, submitted by `ftrun sbatch`, until its run ends. Raises AssertionError where it does not."""
    box = here.slurm()
    folder = box.shared / fault
    folder.mkdir()
    (folder / "site.toml").write_text(QUICK)
    words = {"name": fault, "python": shlex.quote(here.python), "program": PROGRAMS, "fault": fault}
    (folder / "job.sh").write_text(SCRIPT.format(**words))
    env = {key: value for key, value in box.env().items() if key in ("SLURM_CONF", "PATH")} | {
        "FTRUN_HOME": str(folder / "home"),
        "FTRUN_SITE_CONFIG": str(folder / "site.toml"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    began_s = time.monotonic()
    done = here.ftrun("sbatch", "job.sh", cwd=folder, env=env)
    assert done.code == 0, done.text
    reader = journal_tail.RunReader()
    try:
        (where,) = run_dir.run_dirs(str(folder / "home"))
        while not (run := reader.run(where)).final:
            assert time.monotonic() < began_s + WITHIN_S, (
                f"{fault}: {run.state.value} after {WITHIN_S:g} s: {_log(folder)[-300:]}"
            )
            if hurt:
                hurt(folder)
            time.sleep(0.3)
    finally:
        injector.end_processes(injector.supervisors(folder / "home"), signal.SIGTERM)
    return Played(run, _log(folder), time.monotonic() - began_s)


def _log(folder: Path) -> str:
    path = folder / "job.log"
    return path.read_text(errors="replace") if path.exists() else ""


def goes_on(here: Here, fault: str, classes: str) -> Seen:
    """The run recovers: it finishes, each step has one loss only, however often it was made, and no node is drained for a program's fault."""
    played = play(here, fault)
    losses = played.losses()
    same = all(len(told) == 1 for told in losses.values()) and set(losses) == set(range(1, 13))
    right = played.run.state.value == "finished" and played.faults[:1] in [
        [one] for one in classes.split("|")
    ]
    return Seen(f"{played.story()}; losses {'the same' if same else 'DIFFER'}", right and same)


def gives_up(here: Here, fault: str, classes: str) -> Seen:
    """The run stops, for a fault that a retry cannot mend, without a second start."""
    played = play(here, fault)
    one_start = played.log.count("from step") == 1
    right = played.run.state.value == "stopped" and played.faults[:1] in [[one] for one in classes.split("|")]
    return Seen(f"{played.story()}; {played.run.final_reason[:120]}", right and one_start)


def undisturbed(here: Here) -> Seen:
    """A healthy training is left alone, and computes on the GPU that Slurm gave it where there is one."""
    played = play(here, "none")
    found = re.search(r"^on (\S+) (\S*) from", played.log, re.MULTILINE)
    where = f"on {found[1]}, CUDA_VISIBLE_DEVICES={found[2]}" if found else "nobody says where"
    on_device = not here.has_device or bool(found and found[1] == "cuda" and found[2] == "0")
    right = played.run.state.value == "finished" and not played.run.incidents and on_device
    return Seen(f"{played.story()}; {where}", right)


def _recovers(fault: str, classes: str, *needs: str) -> Case:
    expected = f"finished; {classes}; the same losses"
    return Case(
        "loop", fault, expected, lambda here: goes_on(here, fault, classes), ("torch", *needs), WITHIN_S
    )


def _stops(fault: str, classes: str, *needs: str) -> Case:
    expected = f"stopped after one start; {classes}"
    return Case(
        "loop", fault, expected, lambda here: gives_up(here, fault, classes), ("torch", *needs), WITHIN_S
    )


CASES = [
    Case("loop", "none", "finished, no incident, on the GPU of its gres", undisturbed, ("torch",), WITHIN_S),
    _recovers("xid", "hardware-gpu"),
    _recovers("killed", "unknown|oom-host"),
    _recovers("hang", "hang"),
    _stops("user-bug", "user-code"),
    _stops("oom", "oom-gpu", "device"),
    _stops("assert", "user-code", "device"),
]
