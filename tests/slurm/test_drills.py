"""Drills on real Slurm: what a user runs with `ftrun drill` is what passes here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.lifecycle import Sandbox
from ftrun.supervisor.drill import company, hands
from ftrun.supervisor.drill.scenarios import SCENARIOS
from ftrun.supervisor.drill.terms import Event
from tests.slurm.apart import side_by_side

pytestmark = pytest.mark.slurm

FTRUN = (sys.executable, "-m", "ftrun.supervisor")
LANES = 4


@contextlib.contextmanager
def _short_folder() -> Iterator[Path]:
    """Not tmp_path: Unix sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hold(names: list[str]) -> None:
    """Hold these drills side by side; each must come as it must. How soon is for `ftrun drill` on a machine of its own to say."""
    told: list[str] = []

    def on_event(event: Event) -> None:
        if not event.passing:
            told.append(f"+{event.after_s} s {event.drill} {event.text}")

    with _short_folder() as folder:
        results = company.run_all(
            names, lanes=LANES, parent=folder, on_event=on_event, on_end=lambda result: None
        )

    wrong = [
        f"{result.name}: wanted: {check.wanted}; seen: {check.seen}"
        for result in results
        for check in result.checks
        if not check.held and not check.timed
    ]
    assert not wrong, "\n".join([*wrong, "", *told])


@side_by_side
def test_the_quick_drills_end_as_they_must() -> None:
    """A fault is named, its node blamed and avoided, the training is that of an undisturbed one; or the run stops with its reason."""
    _hold([s.name for s in SCENARIOS if s.quick])


@pytest.mark.drills
def test_all_other_drills_end_as_they_must() -> None:
    """The same for every other drill."""
    held = [s.name for s in SCENARIOS if not s.quick and not (s.needs_root and os.geteuid())]
    _hold(held)


@side_by_side
def test_a_drill_that_is_interrupted_leaves_nothing_behind() -> None:
    """Ctrl-C ends supervisor, jobs and sandbox, and removes the folder."""
    with _short_folder() as parent:
        process = subprocess.Popen(
            [*FTRUN, "drill", "--folder", str(parent)], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "attempt 1 runs on" in line:
                break
        (folder,) = parent.iterdir()
        assert hands.supervisors(folder / "home")

        process.send_signal(signal.SIGINT)
        # To the end: a drill whose reader has gone away ends by that, not by the interrupt.
        process.communicate(timeout=300)

        assert process.returncode == 130
        assert list(parent.iterdir()) == []
        assert _processes_that_name(str(folder)) == []


@side_by_side
def test_a_drill_on_the_slurm_of_the_shell_cleans_its_jobs_away(make_sandbox: Callable[..., Sandbox]) -> None:
    """With --here no sandbox is made; facts come as JSON, and the exit status says that all was as expected."""
    box = make_sandbox(nodes=4, gpus=2)
    with _short_folder() as folder:
        done = subprocess.run(
            [*FTRUN, "drill", "user-bug", "--here", "--json", "--folder", str(folder)],
            env=box.env(),
            capture_output=True,
            text=True,
            timeout=400,
        )

        facts = json.loads(done.stdout)
        assert (done.returncode, facts["held"]) == (0, True), done.stdout + done.stderr
        assert facts["drills"][0]["rows"][0]["diagnosed_as"].startswith("user-code")
        rest = box.run(["squeue", "-h", "-o", "%A %Z"]).stdout.splitlines()
        assert [] == [line for line in rest if str(folder) in line]
        assert list(folder.iterdir()) == []


def test_a_drill_that_breaks_nodes_is_refused_on_somebody_s_cluster() -> None:
    """Wrong usage is exit 2 and one line, before anything is made."""
    done = subprocess.run([*FTRUN, "drill", "node-crash", "--here"], capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr == "ftrun: node-crash breaks nodes or the controller: it runs in a sandbox only\n"


def _processes_that_name(text: str) -> list[str]:
    """Command lines of living processes that name a folder; the dead may take a moment to be gone."""
    deadline = time.monotonic() + 240.0
    while True:
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    line = (
                        Path("/proc", entry, "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                except OSError:
                    continue
                if text in line:
                    found.append(line)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
