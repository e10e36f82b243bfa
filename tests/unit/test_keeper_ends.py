"""A job is cancelled while checkpoints are still on their way: what can be published is, and of the rest nothing is left, on disk or in memory. (I/O)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.hooks.staging import publish, records
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.records import Publishing, Seal
from tests.unit.test_keeper import JOB, KEEPER, _wait, _words


def _cancelled(top: Path, node: str, *more: str) -> list[str]:
    """A small set and then a large one are saved, and the job is cancelled while the large one is copied at 1 MiB/s; the names in the shared folder."""
    attempt = top / "runs" / "r-1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "begun.0.1").write_text("nodes=n0\n")
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURM_NODEID": node}
    words = [*_words(top), "--rate", "1M", *more]
    with subprocess.Popen([sys.executable, "-m", *KEEPER, *words], env=env) as keeper:
        try:
            _wait(attempt / "stage" / "ready.0.n0")
            stage = top / "memory" / "r-1.7" / "stage" / "0.1"
            (stage / "model-1.pt").write_bytes(b"1" * 1000)
            _wait(top / "shared" / "model-1.pt.ftrun-complete")
            (stage / "model-2.pt").write_bytes(b"2" * (64 << 20))
            _wait(top / "shared" / records.PUBLISHING / f"model-2.pt.{JOB}.0.1" / "incoming")
            (stage / "model-3.pt").write_bytes(b"3" * 1000)
            keeper.send_signal(signal.SIGTERM)
            assert keeper.wait(timeout=240) == 0
        finally:
            keeper.kill()
    assert os.listdir(top / "memory") == []
    return sorted(os.listdir(top / "shared"))


def test_a_cancelled_job_leaves_nothing_half_visible(tmp_path: Path) -> None:
    """What does not get out in the time that Slurm leaves is given up: no name of it, nothing half copied, and the memory is given back."""
    names = _cancelled(tmp_path, "0", "--wait", "0.3")
    assert [name for name in names if not name.startswith("model-1.pt")] == [records.PUBLISHING]
    assert os.listdir(tmp_path / "shared" / records.PUBLISHING) == []


@pytest.mark.drills
def test_a_node_that_is_given_back_takes_nothing_along(tmp_path: Path) -> None:
    """Only the first node leaves with its job for sure; what another one has brought the rest of the job still needs."""
    names = _cancelled(tmp_path, "1", "--wait", "0.3")
    assert [name for name in names if not name.startswith("model-1.pt")] == [records.PUBLISHING]
    assert os.listdir(tmp_path / "shared" / records.PUBLISHING) == [f"model-2.pt.{JOB}.0.1"]


@pytest.mark.parametrize("job", ["8", "71"])
def test_a_job_that_is_over_leaves_what_others_bring(job: str, tmp_path: Path) -> None:
    """Into the same folder another job publishes: its sets stay on their way."""
    for one in ("7", job):
        to = Publishing(str(tmp_path), "step-1", one, "0.1")
        publish.push(Disk(), to, Seal("step-1", "0.1", "n0", {}), "", owner=b"{}", pace=lambda _size: None)
    publish.clear_job(Disk(), str(tmp_path), "7", "n0")
    assert os.listdir(tmp_path / records.PUBLISHING) == [f"step-1.{job}.0.1"]
