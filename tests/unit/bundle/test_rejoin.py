"""Laws of the example that rejoins: whoever dies comes back alone, and the others keep pid and memory, with the real parent of a rank. (I/O)"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.hooks.bundle.zipapp import build_zipapp

TRAIN = Path(__file__).resolve().parents[3] / "examples" / "rejoin" / "train.py"
RANKS = 4


class Run:
    """Four wrapped ranks, and an agent that always answers `again`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = folder / "attempts" / "1"
        self.ranks = self.attempt / "ranks" / "0.1"
        self.ranks.mkdir(parents=True)
        (self.attempt / "current").symlink_to("0.1")
        self.log = folder / "log"
        hook = build_zipapp(str(folder / "home"))
        words = [
            sys.executable, "-IS", hook, "rank", "--folder", str(self.ranks), "--", sys.executable,
            str(TRAIN), "150", str(folder),
        ]  # fmt: skip
        with self.log.open("ab") as stream:
            self.tasks = [
                subprocess.Popen(
                    words,
                    stdout=stream,
                    env={
                        "PATH": os.environ["PATH"],
                        "SLURM_PROCID": str(rank),
                        "FTRUN_START_TOKEN": "0.1",
                        "LOOPBACK": "1",
                        "STEP_S": "0.1",
                    },
                )
                for rank in range(RANKS)
            ]
        self.over = threading.Event()
        self.agent = threading.Thread(target=self._answer)
        self.agent.start()

    def _answer(self) -> None:
        while not self.over.wait(0.05):
            for path in self.ranks.glob("[0-9]*.[0-9]*"):
                if path.suffix != ".next" and not path.with_name(path.name + ".next").exists():
                    (self.ranks / ".draft").write_text("again\n")
                    (self.ranks / ".draft").rename(path.with_name(path.name + ".next"))

    def pids(self) -> dict[int, int]:
        """Rank -> the pid that it wrote last."""
        return {
            int(rank): int(pid)
            for rank, pid in re.findall(r"^rank (\d) pid (\d+) ", self.log.read_text(), re.MULTILINE)
        }

    def own(self, rank: int) -> int:
        """The last count of a worker's memory."""
        found = re.findall(
            rf"^rank {rank} pid \d+ restart \d+ step \d+ own (\d+)", self.log.read_text(), re.MULTILINE
        )
        return int(found[-1]) if found else 0

    def until(self, ready: Callable[[], bool]) -> None:
        give_up = time.monotonic() + 120
        while not ready():
            assert time.monotonic() < give_up, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    one = Run(tmp_path)
    yield one
    one.over.set()
    one.agent.join()
    for task in one.tasks:
        task.kill()
        task.wait()


def test_whoever_dies_comes_back_alone(run: Run) -> None:
    """A worker, then the first rank: each comes back as a new process, the others count on in theirs, and all end well."""
    run.until(lambda: len(run.pids()) == RANKS and min(run.own(rank) for rank in (1, 2, 3)) >= 10)
    before = run.pids()
    for victim in (2, 0):
        held = {rank: run.own(rank) for rank in (1, 3)}
        here = run.pids()
        os.kill(here[victim], signal.SIGKILL)
        run.until(lambda victim=victim, here=here: run.pids()[victim] != here[victim])  # type: ignore[misc]
        run.until(lambda held=held: all(run.own(rank) > held[rank] for rank in held))  # type: ignore[misc]

    assert [0] * RANKS == [task.wait(timeout=180) for task in run.tasks]
    assert {rank: before[rank] for rank in (1, 3)} == {rank: run.pids()[rank] for rank in (1, 3)}
    assert {"0.1", "2.1"} == {path.name for path in run.ranks.iterdir() if re.fullmatch(r"\d\.\d", path.name)}
    assert 150 == json.loads((run.folder / "parameters.json").read_text())["step"]
