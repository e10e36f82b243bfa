"""Laws of a supervisor's end: what will not come back keeps no process for ever, and a home that is gone stays gone. (I/O)"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun.supervisor.controller import reasons_to_end
from ftrun.supervisor.controller.loop import Supervisor
from ftrun.supervisor.controller.reasons_to_end import ReasonsToEnd
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.store import node_tools
from ftrun.supervisor.store.lease import Lease, SystemClock
from tests.unit.lives import Life

ENDS_WITHIN_S = 60.0
SUPERVISE = [sys.executable, "-P", "-m", "ftrun.supervisor", "supervise", "--detached"]


def _environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FTRUN_HOME": str(home),
        "FTRUN_LEASE": "2s",
        "FTRUN_IDLE_EXIT": "1h",
        "FTRUN_POLL": "0.2s",
    }


def _wait_for(path: Path) -> None:
    end_s = time.monotonic() + ENDS_WITHIN_S
    while not path.exists() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert path.exists()


def test_a_supervisor_whose_home_is_removed_ends_and_never_makes_it_again(tmp_path: Path) -> None:
    """It says so where it logs."""
    home, log = tmp_path / "home", tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(SUPERVISE, env=_environment(home), stderr=stream)
    try:
        _wait_for(home / "supervisor.json")
        shutil.rmtree(home)
        assert process.wait(timeout=ENDS_WITHIN_S) == 0
    finally:
        process.kill()
        process.wait()
    assert not home.exists()
    assert "supervisor.ends" in log.read_text()


FULL = """
mount -t tmpfs -o size=1m,mode=0700 ftrun-test "$FTRUN_HOME" || exit 77
"$@" 2>"$FTRUN_HOME.log" &
until [ -e "$FTRUN_HOME/supervisor.json" ]; do sleep 0.1; done
head -c 2m /dev/zero >"$FTRUN_HOME/filler" 2>/dev/null
wait $!
"""


def test_a_supervisor_without_runs_that_lost_its_lease_on_a_full_disk_ends(tmp_path: Path) -> None:
    """Nobody needs it: it notices the loss although no run makes it look, and says why it ends."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    words = ["unshare", "-m", "sh", "-c", FULL, "sh", *SUPERVISE]
    process = subprocess.Popen(words, env=_environment(home), start_new_session=True)
    try:
        status = process.wait(timeout=ENDS_WITHIN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    if status == 77 or (status and os.geteuid()):
        pytest.skip("no file system can be mounted here")
    events = [json.loads(line) for line in (tmp_path / "home.log").read_text().splitlines()]
    assert status == 0
    told = [one["event"] for one in events if one["event"] != "lease.awaited"]
    assert ["lease.taken", "lease.lost", "home.unseen", "supervisor.ends"] == told


@pytest.mark.parametrize(
    ("slurm_conf", "limit_s"),
    [("/gone/slurm.conf", reasons_to_end.CONFIG_GONE_S), (__file__, reasons_to_end.BLIND_MAX_S)],
)
def test_a_supervisor_whose_slurm_is_gone_for_good_ends_with_its_runs_open(
    tmp_path: Path, slurm_conf: str, limit_s: float
) -> None:
    """Soon, where even the configuration is gone; else after longer than any maintenance. The run is left as it is."""
    life = Life(tmp_path)
    life.until("running")
    events: list[tuple[str, str]] = []

    class Log:
        def info(self, event: str, **fields: object) -> None:
            events.append((event, str(fields.get("why", ""))))

    life.supervisor.lease.release()
    lease = Lease(life.home, life.clock, term_s=1e9, writer="another")
    supervisor = Supervisor(life.home, life.cluster, life.clock, lease, log=Log(), slurm_conf=slurm_conf)
    life.engine.controller = "down"
    began_s = life.clock.mono_s()

    assert supervisor.run(poll_s=limit_s / 20, until=lambda _: False)

    assert limit_s < life.clock.mono_s() - began_s < limit_s * 1.2
    assert ("supervisor.ends") == events[-1][0]
    assert "running" == life.run.state.value


def test_an_outage_that_ends_starts_no_clock_twice(tmp_path: Path) -> None:
    """Each reason must hold without a break."""
    reasons = ReasonsToEnd(str(tmp_path))
    for day in range(60):
        assert not reasons.why(day * 86_400.0, blind=day % 6 > 0, lease_unwritable=False)


def test_nothing_that_a_supervisor_writes_makes_its_home_again(tmp_path: Path) -> None:
    """The lease, the ledger of nodes, the node's tools."""
    home = str(tmp_path / "home")
    with pytest.raises(FileNotFoundError):
        Lease(home, SystemClock()).acquire()
    with pytest.raises(FileNotFoundError):
        node_tools.install_node_tools(home)
    assert not ledger.append_entries(home, {"what": "check", "node": "n0"})
    assert not os.path.exists(home)
