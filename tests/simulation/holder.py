"""What a simulated companion does: it says that its nodes are there, and ends itself by the rules of hooks/bundle/companion.sh. (I/O)

How it thinks. Nothing of the training runs in here by itself: a start of the main job makes a step on these nodes (`inside`). The folder that it reads is
the real one, what it hears of the main job is what the controller would say; where one of both says nothing, nothing is concluded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from tests.fake_slurm.records import Job, Launch

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Holder", "named", "word"]

OPENS_S = 0.4
LOOKS_EVERY_S = 3.0
STILL_S = 120.0
LONGEST_S = 1800.0
_MARK = re.compile(r":companion:(\d+)\.(\d+)\.(\d+)$")


def named(job: Job) -> tuple[int, int, int] | None:
    """(attempt, launch, number) of a companion's job; None of any other."""
    found = _MARK.search(job.comment)
    return (int(found[1]), int(found[2]), int(found[3])) if found is not None else None


def word(composed: bytes, name: str) -> str:
    """A variable above the text of a composed script; "" where there is none."""
    found = re.search(rb"^_ft_%s='?([^'\n]*)'?$" % name.encode(), composed, re.MULTILINE)
    return found[1].decode() if found else ""


class Holder:
    """One launch of a companion: it has only one."""

    def __init__(self, world: World, launch: Launch) -> None:
        self.world, self.launch = world, launch
        name = named(launch.job)
        assert name is not None
        self.attempt, self.main_launch, self.number = name
        script = launch.request.script or b""
        self.main_job = int(word(script, "main_job"))
        self.main_started_s = float(word(script, "main_started"))
        self.place = Path(world.run_dir) / "attempts" / str(self.attempt)
        self.main_host = word(script, "main_host")
        self._counted: tuple[str, ...] = ()
        self._used = False  # the present start says that it lies in here, too
        self._moved_s = world.clock.now()
        launch.on_signal = lambda _name: False
        launch.after(OPENS_S, self._announce)

    def __str__(self) -> str:
        return f"companion {self.attempt}.{self.main_launch}.{self.number} (job {self.launch.job_id})"

    @property
    def _folder(self) -> Path:
        return self.place / "companions"

    def _announce(self) -> None:
        if not self.world.nodes_blind and self.place.exists():
            self._folder.mkdir(exist_ok=True)
            draft = self._folder / f"{self.number}.here.{id(self)}"
            nodes = ",".join(self.launch.nodes)
            draft.write_text(f"job={self.launch.job_id}\nnodes={nodes}\nhost={self.launch.head}\n")
            draft.rename(self._folder / f"{self.number}.here")
        self._attend()

    def _attend(self) -> None:
        why = self._told() or self._main_is_other()
        now = self.world.clock.now()
        counted = self._count()
        heard = self.world.engine.controller == "up" and not self.world.nodes_blind
        if not heard or counted != self._counted:
            self._moved_s = now
        self._counted = counted
        if not why and self._is_left(now - self._moved_s):
            why = f"job {self.main_job} has not counted for {now - self._moved_s:.0f} s"
        if not why:
            self.launch.after(LOOKS_EVERY_S, self._attend)
            return
        self.world.trace(f"  {self} ends itself: {why}")
        self.world.laws.companion_ends(self.launch.job, "its own script")
        self.launch.exit(0)

    def _told(self) -> str:
        """What the attempt's folder says against it."""
        if self.world.nodes_blind:
            return ""
        if (self._folder / f"{self.number}.over").exists():
            return "told to end"
        try:
            current = os.readlink(self.place / "current")
        except OSError:
            return ""
        launch = current.partition(".")[0]
        later = launch.isdigit() and int(launch) > self.main_launch
        return f"the launch is over ({current})" if later or current.startswith("closed") else ""

    def _main_is_other(self) -> str:
        """What Slurm says against it."""
        engine = self.world.engine
        if engine.controller != "up":
            return ""
        job = engine.jobs.get(self.main_job)
        if job is None or job.state is not JobState.RUNNING or job.start_s is None:
            return f"job {self.main_job} is {job.state.value if job is not None else 'gone'}"
        return "it was started anew" if abs(job.start_s - self.main_started_s) > 2.0 else ""

    def _is_left(self, still_s: float) -> bool:
        """Nobody can be left who wants it, where nothing was counted for so long."""
        if still_s < STILL_S or not (self._used and self.main_host and still_s < LONGEST_S):
            return still_s >= STILL_S
        node, job = self.world.engine.nodes[self.main_host], self.world.engine.jobs.get(self.main_job)
        return job is None or self.main_host not in job.nodes or node.not_responding or node.down

    def _count(self) -> tuple[str, ...]:
        """As `_ft_read_counters`."""
        if self.world.nodes_blind:
            return self._counted
        paths = (
            self.place / "agent" / f"pulse.{self.main_launch}",
            self._folder / f"alive.{self.main_launch}",
        )
        lines = [line.split() for path in paths if path.exists() for line in path.read_text().splitlines()]
        mine = [words for words in lines if not words[1:] or self.launch.job_id in words[1:]]
        self._used = any(words[1:] for words in mine)
        return tuple(words[0] for words in mine if words)
