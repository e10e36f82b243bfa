"""Looks after hosts that have neither systemd nor cron: runs their keeper over SSH, from where `up` was said. (I/O)

One process for each cluster with such hosts, on one machine: it holds <home>/cluster/<name>/watch.lock, and ends when the cluster is gone
or none of its hosts needs it. Every `ftrun cluster up`, `add`, `remove` and `status` starts it where it is not alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import signal
import sys
import time
from collections.abc import Iterator

from ftrun.hooks.cluster.members import MARK, mark_of
from ftrun.slurm.cluster.plan import Plan
from ftrun.supervisor.cluster import remote
from ftrun.supervisor.cluster.state import ClusterState
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.submission.start_supervisor import clean_env

BY = "ssh"
PERIOD_S = 30.0
LOOK_S = 1.0
ASK_S = 150.0
"""The keeper of a host may wait a minute for each of two daemons."""
BEGIN_S = 10.0
END_S = 15.0


def watch(state: ClusterState) -> None:
    """Run the keepers of the hosts that nobody else looks after, as long as there are any. Returns at once where another process does."""
    with _alone(state) as is_mine:
        if not is_mine:
            return
        first = state.plan()
        while True:  # `up` has just seen all daemons alive: a pause comes first
            next_s = time.monotonic() + PERIOD_S
            while time.monotonic() < next_s and _same(state, first) is not None:
                time.sleep(LOOK_S)
            plan = _same(state, first)
            if plan is None or not plan.unkept:
                return
            by = f"{getpass.getuser()}@{os.uname().nodename} over SSH"
            step = {"do": "run_keeper", "folder": plan.folder, "by": by}
            with contextlib.suppress(UserError):
                remote.ask({host.target: [step] for host in plan.unkept}, ASK_S)


def _same(state: ClusterState, first: Plan | None) -> Plan | None:
    """The plan as it is now; None where that cluster is no more."""
    plan = state.plan()
    return plan if plan is not None and first is not None and plan.token == first.token else None


def is_alive(state: ClusterState, plan: Plan) -> bool:
    """Start a watch where hosts need one and none lives; whether one lives then."""
    ensure(state, plan)
    give_up_s = time.monotonic() + BEGIN_S
    while plan.unkept and not _is_held(state) and time.monotonic() < give_up_s:
        time.sleep(0.05)
    return _is_held(state)


def ensure(state: ClusterState, plan: Plan) -> None:
    """Start a watch where hosts need one and none lives. Of two, one ends at once."""
    if not plan.unkept or _is_held(state):
        return
    env = {**clean_env(os.environ), MARK: mark_of(plan.token, "watch")}
    if "FTRUN_HOME" in os.environ:
        env["FTRUN_HOME"] = os.environ["FTRUN_HOME"]
    words = [sys.executable, "-P", "-m", "ftrun.supervisor.cluster.watch", state.name]
    null = os.open(os.devnull, os.O_RDWR)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        os.posix_spawn(sys.executable, words, env, file_actions=actions, setsid=True)
    finally:
        os.close(null)


def await_end(state: ClusterState) -> None:
    """Wait until the watch of a cluster that was forgotten has ended; one that hangs on a host is ended."""
    give_up_s = time.monotonic() + END_S
    ended = False
    while _is_held(state) and time.monotonic() < give_up_s:
        if not ended and time.monotonic() > give_up_s - END_S + 3 * LOOK_S:
            ended = True
            _end_holder(state)
        time.sleep(0.05)


def _path(state: ClusterState) -> str:
    return os.path.join(state.folder, "watch.lock")


@contextlib.contextmanager
def _alone(state: ClusterState) -> Iterator[bool]:
    """Hold the lock with this process's name in it; False where another process has it, or there is no such cluster."""
    try:
        number = os.open(_path(state), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(number, 0)
        os.write(number, f"{os.getpid()} {os.uname().nodename}".encode())
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(number)


def _is_held(state: ClusterState) -> bool:
    try:
        number = os.open(_path(state), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


def _end_holder(state: ClusterState) -> None:
    """Who holds the lock lives, so the pid in it is no stranger's on the host that it names."""
    with contextlib.suppress(OSError, ValueError), open(_path(state), encoding="ascii") as stream:
        words = stream.read().split()
        if len(words) == 2 and words[1] == os.uname().nodename and int(words[0]) > 1:
            os.kill(int(words[0]), signal.SIGTERM)


if __name__ == "__main__":
    watch(ClusterState(sys.argv[1]))
