"""A keeper, the real process, is killed by SIGKILL before each of its effects on the shared file system, and started again. (I/O)

How it thinks. Each trial has two nodes, which are folders of this machine, and a keeper for each; one of them kills itself before its Nth effect. A new one takes its place, as the guard does it.
Meanwhile a reader looks again and again. The trials run side by side: they mostly wait.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.checkpoints.model import Damaged
from ftrun.hooks.staging import records

LANES = 4
NODES = ("n0", "n1")
TOKEN, JOB = "0.1", "7"
LIMIT_S = 240.0
CONTENT = {"n0": {"rank-0.bin": b"a" * 70_000, "meta.json": b"{}"}, "n1": {"rank-1.bin": b"b" * 300_000}}
DRIVER = """
import os, signal, sys
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks import main
left = int(sys.argv[1])
def effect(self, what):
    global left
    left -= 1
    if left == 0:
        with open(sys.argv[2], "w") as stream:
            stream.write(what)
        os.kill(os.getpid(), signal.SIGKILL)
Disk.effect = effect
sys.exit(main.main(sys.argv[3:]))
"""


class Trial:
    """Two nodes with one staged set."""

    def __init__(self, top: Path) -> None:
        self.top, self.to = top, top / "to"
        self.attempt = top / "run-1" / "attempts" / "1"
        self.attempt.mkdir(parents=True)
        (self.attempt / f"begun.{TOKEN}").write_text("nodes=n[0-1]\n")
        (self.attempt / "current").symlink_to(TOKEN)

    def home(self, node: str) -> records.Home:
        """The memory of a node."""
        return records.Home(str(self.top / node / "ftrun-0" / f"run-1.{JOB}"))

    def save(self, name: str) -> None:
        """Both nodes write their part."""
        for node in NODES:
            folder = Path(self.home(node).stage(TOKEN)) / name
            folder.mkdir(parents=True)
            for path, content in CONTENT[node].items():
                (folder / path).write_bytes(content)

    def keeper(self, node: str, effects: int = 0) -> subprocess.Popen[bytes]:
        """Start one; it dies before that effect (0: never)."""
        words = ["keep", "--attempt-folder", str(self.attempt), "--launch", "0", "--job", JOB, "--node", node]
        words += ["--base", self.home(node).base, "--to", str(self.to), "--limit", "1G", "--wait", "5"]
        return subprocess.Popen([sys.executable, "-c", DRIVER, str(effects), str(self.top / "last"), *words])

    def seen(self, name: str) -> bool:
        """Whether the set is published. What says so must be whole."""
        try:
            found = manifest.read(str(self.to / name))
        except (Damaged, FileNotFoundError):
            return False
        if found is None:
            return False
        wanted = {path: content for part in CONTENT.values() for path, content in part.items()}
        assert {path: (self.to / name / path).read_bytes() for path in wanted} == wanted
        assert {path: entry.size_bytes for path, entry in found.files.items()} == {
            path: len(content) for path, content in wanted.items()
        }
        return True


@contextmanager
def _ended(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _killed_before(top: Path, effect: int) -> str:
    """What the keeper was about to do when it was killed; "" where there was no such effect any more."""
    trial = Trial(top)
    running = [trial.keeper("n0", effect), trial.keeper("n1")]
    died = ""
    with _ended(running):
        deadline = time.monotonic() + LIMIT_S
        while not all(os.path.isdir(trial.home(node).stage(TOKEN)) for node in NODES):
            time.sleep(0.05)
        trial.save("step-10")
        while not trial.seen("step-10"):
            assert time.monotonic() < deadline, f"not published after a kill before: {died}"
            if running[0].poll() is not None:
                died = (top / "last").read_text()
                running[0] = trial.keeper("n0")
            time.sleep(0.05)
        left = top / "to" / records.PUBLISHING
        while not died and running[0].poll() is None and any(left.iterdir()):
            time.sleep(0.05)  # it clears up
        if running[0].poll() is not None:
            died = (top / "last").read_text()
    return died


@pytest.mark.drills
def test_a_keeper_that_is_killed_before_any_effect_leaves_a_whole_set_to_the_next(tmp_path: Path) -> None:
    """Kill -9 at every step of publishing: the reader sees nothing or the whole set, and the whole one in the end."""
    with ThreadPoolExecutor(LANES) as pool:
        told = list(pool.map(lambda n: _killed_before(tmp_path / str(n), n), range(1, 33)))

    effects = [what.split()[0] for what in told if what]
    assert {"make", "write", "rename", "sync", "copy", "link"} <= set(effects), told
    assert len(effects) >= 15
