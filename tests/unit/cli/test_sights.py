"""Laws of telling what a site lets the watch see. (I/O)"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ftrun.hooks.health import node_monitor
from ftrun.supervisor.cli import doctor


def test_a_kernel_log_that_is_closed_is_told_with_what_opens_it() -> None:
    """A site that hides the log gets a way to show it; what is not there at all is no complaint."""
    found = {"counters": ["edac"], "kernel log": ["mce"], "accelerators": []}

    told = {one.family: one for one in doctor.capabilities(found)}

    assert told["counters"] == doctor.MonitorCapability("counters", True, "edac")
    assert "dmesg_restrict" in told["kernel log"].mend
    assert (told["accelerators"].seen, told["accelerators"].mend) == (False, "")


def test_an_open_log_needs_no_mending() -> None:
    """Where the log can be read, its checks are all that is said."""
    told = list(doctor.capabilities({"kernel log": ["mce", doctor.LOG]}))

    assert told == [doctor.MonitorCapability("kernel log", True, "mce")]


def test_a_node_tells_what_it_sees_as_one_line(tmp_path: Path) -> None:
    """Every family has its place in the answer, be it that it sees nothing."""
    words = [sys.executable, "-m", "ftrun.hooks.main", "watch", "--visible", "--root", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    told = json.loads(done.stdout)
    assert list(told) == [family.name for family in node_monitor.FAMILIES]
    assert told["counters"] == []
