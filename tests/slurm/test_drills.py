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
from typing import Any

import pytest

from ftrun.slurm.client.releases import since
from ftrun.slurm.sandbox.boot import slurm_version
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill import injector
from ftrun.supervisor.drill.runner import run_scenario
from ftrun.supervisor.drill.timeline import Event
from tests.drills.tables import BLOCKS, all_scenarios, by_name
from tests.slurm.apart import side_by_side

pytestmark = pytest.mark.slurm

FTRUN = (sys.executable, "-m", "ftrun.supervisor")
QUICK = ("gpu-lost",)  # which every test run holds


@contextlib.contextmanager
def _short_folder() -> Iterator[Path]:
    """Not tmp_path: Unix sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hold(name: str) -> None:
    """Hold a drill; it must come as it must. How soon is for `ftrun drill` on a machine of its own to say."""
    told: list[str] = []

    def on_event(event: Event) -> None:
        if not event.passing:
            told.append(f"+{event.after_s} s {event.text}")

    with _short_folder() as folder:
        result = run_scenario(by_name(name), parent=folder, on_event=on_event)

    wrong = [
        f"wanted: {check.wanted}; seen: {check.seen}"
        for check in result.checks
        if not check.held and not check.timed
    ]
    assert not wrong, "\n".join([*wrong, "", *told])


def _drills() -> list[Any]:
    """Every drill; all but the quick ones are left to `make drills`, and a disk of its own to root."""
    no_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
    return [
        pytest.param(
            one.name,
            marks=[pytest.mark.drills] * (one.name not in QUICK) + [no_root] * one.needs_root,
        )
        for one in all_scenarios()
    ] + [pytest.param(one.name + BLOCKS, marks=pytest.mark.drills) for one in all_scenarios() if one.topology]


@pytest.mark.parametrize("name", _drills())
@side_by_side
def test_a_drill_ends_as_it_must(name: str) -> None:
    """Fault, node and recovery are as expected, and the training is that of an undisturbed one."""
    if name.endswith(BLOCKS) and not since("topology-block", slurm_version()):
        pytest.skip("this Slurm has no topology/block")
    _hold(name)


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
        assert injector.supervisors(folder / "home")

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
