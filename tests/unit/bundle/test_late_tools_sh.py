"""The node side that is installed while a job starts: the watch and the fence daemon of batch.sh wait for it, under each POSIX shell."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from ftrun.hooks.bundle.shell import BATCH_SH
from tests.unit.bundle.test_batch_sh import EACH_SHELL, SHELLS

# A second takes a moment; the tools are found at the look number $LATE. What is started is printed with its words.
STAND = """
sleep() { command sleep 0.001; }
_ft_find_hook() { looks=$((${looks:-0} + 1)); [ "$looks" -ge "$LATE" ]; }
_ft_note_mpi() { :; }
_ft_on_nodes() { _ft_find_hook && echo "$@" >&3; exit 0; }
_ft_place=/attempt _ft_whole=/attempt _ft_launch=0 _ft_checks= _ft_talk=/none _ft_watcher=
_ft_keep=$KEEP _ft_watch=$WATCH _ft_agent_pid=$AGENT
"""


def started(shell: str, *, late: int, watch: str = "1 0.5", keep: str = "", agent: str = "1") -> str:
    path = shutil.which(SHELLS[shell][0])
    if path is None:
        pytest.skip(f"no {shell} on this machine")
    text = BATCH_SH.decode()
    functions = [
        found[0] for found in re.finditer(r"^_ft_post_(?:guard|watch)\(\) \{\n.*?^\}\n", text, re.M | re.S)
    ]
    assert 2 == len(functions)
    env = {"LATE": str(late), "WATCH": watch, "KEEP": keep, "AGENT": agent, "PATH": "/usr/bin:/bin"}
    script = "".join([STAND, *functions, "exec 3>&1\n_ft_post_watch\nwait\n"])
    return subprocess.run([path, *SHELLS[shell][1:], "-c", script], env=env, capture_output=True, text=True, timeout=300, check=True).stdout  # fmt: skip


@pytest.mark.parametrize("shell", EACH_SHELL)
@pytest.mark.parametrize("late", [1, 8, 30])
def test_the_fence_daemon_waits_for_the_tools(shell: str, late: int) -> None:
    """However short the watch's own period is, it starts when they arrive, and the watch at once."""
    told = started(shell, late=late)

    assert told.startswith("guard --attempt-folder /attempt --launch 0 --watch-after 0 -- --period 1 ")
    assert "--watch-after 0 " in started(shell, late=late, watch="20 10.0")


@pytest.mark.parametrize("shell", EACH_SHELL)
def test_staging_does_not_wait_for_the_watch(shell: str) -> None:
    """The fence daemon starts at the first look that finds the tools; what is left until the watch is its own."""
    assert "--watch-after 30 -- --period 60 " in started(shell, late=1, watch="60 30", keep="words")
    assert "--watch-after 10 -- --period 60 " in started(shell, late=21, watch="60 30", keep="words")
    assert "--watch-after 1000000000 --" in started(shell, late=21, watch="", keep="words")


@pytest.mark.parametrize("shell", EACH_SHELL)
@pytest.mark.parametrize("late", [1, 30])
def test_the_watch_of_a_job_without_an_agent_waits_for_the_tools(shell: str, late: int) -> None:
    """As the fence daemon does."""
    assert started(shell, late=late, agent="").startswith("watch --period 1 ")


@pytest.mark.parametrize("shell", EACH_SHELL)
def test_tools_that_never_arrive_are_given_up(shell: str) -> None:
    """After about two minutes."""
    assert not started(shell, late=10_000)
    assert not started(shell, late=10_000, agent="")
