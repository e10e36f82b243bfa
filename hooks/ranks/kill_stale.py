"""`ftrun-hook sweep`: kills what earlier starts of a run left on this node. (I/O)

Ranks of an earlier start may still write: the node was frozen, a launcher died before its children, a program
called setsid. They are identified by their environment (`runtime.start_processes`), among this user's
processes only, and get TERM, a short grace, KILL. A stopped one gets KILL at once, since it must not wake up.
Then the sweep looks again, because a process may have forked meanwhile. A pid that another process has by now
is left alone.

A process whose environment cannot be read in time (`procfs.environments`) is attributed by its relatives.
Processes that cannot die are reported.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from ftrun.hooks.runtime import UsageError
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.procfs import environments, read_text
from ftrun.hooks.runtime.procfs import user_processes as listed
from ftrun.hooks.runtime.slurm_env import node_name
from ftrun.hooks.runtime.start_processes import (
    CLOSED,
    PresentStart,
    Process,
    Start,
    job_of_claim,
    own_job,
    parse_environment,
    run_and_attempt_of,
    start_of,
    starts_by_relatives,
    step_of,
    token_of,
)

USUAL_GRACE_S = 1.0
# an srun that waits for a lost node ignores TERM; if killed, it leaves a process that ends its step
LAUNCHER_S = 0.3
DEATH_S = 1.0  # how long a process may take to die after KILL
ROUNDS_MAX = 8
PAUSE_S = 0.02  # look twice after a kill: during exec a process has no environment
SPARED_NAMES = ("slurmstepd", "slurmd", "sackd")
SPARED_WORDS = frozenset(
    {"ftrun.supervisor", "ftrun.supervisor.agent"}
)  # behind -m: a supervisor may be started inside a job


class KillReport:
    """The outcome: pids that are gone, and processes that did not die."""

    def __init__(self, killed: Sequence[int], left: Sequence[Process]) -> None:
        self.killed, self.left = list(killed), list(left)

    def told(self, node: str) -> dict[str, object]:
        """The line that is printed."""
        line: dict[str, object] = {
            "node": node,
            "killed": self.killed,
            "left": [one.pid for one in self.left],
        }
        if self.left:
            line["why"] = [f"{one.pid} {one.name} {one.state}" for one in self.left]
        return line


def present_start(folder: str, token: str, job: str, cluster: str) -> PresentStart:
    """The present start. Raises UsageError for a folder or token that is none."""
    place, number = run_and_attempt_of(os.path.abspath(folder)), token_of(token)
    if place is None:
        raise UsageError(f"{folder} is no folder of an attempt: RUN/attempts/NUMBER")
    if number is None and token != CLOSED:
        raise UsageError(f"{token!r} is no token of a start: LAUNCH.START, or {CLOSED}")
    run, attempt = place
    return PresentStart({run, os.path.realpath(run)}, attempt, number, job, cluster)


def processes_of_starts(here: PresentStart) -> dict[int, tuple[Process, Start]]:
    """This user's processes of any start, without this process, its ancestors and Slurm's own."""
    processes = listed()
    told: dict[int, Optional[Start]] = dict.fromkeys(processes)
    spared, spared_tops = _lineage(os.getpid(), processes), set()
    for pid, environment, words in environments(sorted(processes)):
        told[pid] = start_of(parse_environment(environment))
        if SPARED_WORDS.intersection(words.split("\0")):
            spared_tops.add(pid)
    return {
        pid: (processes[pid], start)
        for pid, start in starts_by_relatives(processes, told, steps_of(processes, here.job)).items()
        if pid not in spared
        and not processes[pid].name.startswith(SPARED_NAMES)
        and not spared_tops.intersection(_lineage(pid, processes))
    }


def steps_of(pids: Iterable[int], job: str) -> dict[int, str]:
    """The numbered step of `job` that each process runs in, "" for none."""
    own = own_job(os.environ, read_text("/proc/self/cgroup"))
    return {pid: step_of(read_text(f"/proc/{pid}/cgroup"), job, own) for pid in pids} if job else {}


def kill_stale(here: PresentStart, grace_s: float = USUAL_GRACE_S) -> KillReport:
    """Kill every process of an earlier start on this node. With a grace of 0 there is no TERM first."""
    jobs = _Jobs(here)
    killed: set[int] = set()
    undying: dict[int, Process] = {}
    quiet = True
    for _ in range(ROUNDS_MAX):
        found = [one for one, start in processes_of_starts(here).values() if here.is_earlier(start, jobs.of)]
        victims = [one for one in found if one.pid not in undying]
        if not victims and quiet:
            break
        quiet = not victims
        if quiet:
            time.sleep(PAUSE_S)
            continue
        undying.update((one.pid, one) for one in terminate(victims, 0.0 if killed else grace_s))
        killed |= {one.pid for one in victims}
    left = [now for now in map(_current, undying.values()) if now is not None]
    return KillReport(sorted(killed - {one.pid for one in left}), left)


def terminate(victims: Sequence[Process], grace_s: float) -> list[Process]:
    """TERM, a grace, KILL. Returns the processes that are still alive."""
    if grace_s > 0:
        for one in victims:
            _signal(one, signal.SIGKILL if one.state in "Tt" else signal.SIGTERM)
        victims = _wait_for_exit(victims, min(LAUNCHER_S, grace_s))
        for one in victims:
            if one.name == "srun":
                _signal(one, signal.SIGKILL)
        victims = _wait_for_exit(victims, max(0.0, grace_s - LAUNCHER_S))
    for one in victims:
        _signal(one, signal.SIGKILL)
    return _wait_for_exit(victims, DEATH_S)


def _signal(one: Process, number: signal.Signals) -> None:
    """Send a signal to this very process: its pid may have been reused since it was read."""
    with contextlib.suppress(OSError):
        holder = os.pidfd_open(one.pid) if hasattr(os, "pidfd_open") else -1
        try:
            if _current(one) is None:
                return
            if holder >= 0:
                signal.pidfd_send_signal(holder, number)
            else:
                os.kill(one.pid, number)
        finally:
            if holder >= 0:
                os.close(holder)


def _wait_for_exit(victims: Sequence[Process], limit_s: float) -> list[Process]:
    """Wait until all are gone or time is up; return those that are still alive."""
    give_up, pause_s = time.monotonic() + limit_s, 0.002
    while True:
        there = [found for found in map(_current, victims) if found is not None]
        if not there or time.monotonic() >= give_up:
            return there
        time.sleep(pause_s)
        pause_s = min(0.05, pause_s * 2)


def _current(one: Process) -> Optional[Process]:
    """The process now; None if it is dead or its pid was reused."""
    tail = read_text(f"/proc/{one.pid}/stat").rpartition(")")[2].split()
    if len(tail) < 20 or tail[0] in "ZX" or int(tail[19]) != one.began:
        return None
    return Process(one.pid, int(tail[1]), one.group, tail[0], one.began, one.name, one.ticks)


class _Jobs:
    """The Slurm jobs that claimed the earlier attempts of a run, read on demand."""

    def __init__(self, here: PresentStart) -> None:
        self._runs = here.runs
        self._known: dict[int, frozenset[str]] = {}

    def of(self, attempt: int) -> frozenset[str]:
        """The job ids of one attempt."""
        if attempt not in self._known:
            self._known[attempt] = frozenset(self._read(attempt))
        return self._known[attempt]

    def _read(self, attempt: int) -> Iterator[str]:
        for run in self._runs:
            place = os.path.join(run, "attempts", str(attempt))
            with contextlib.suppress(OSError):
                for name in os.listdir(place):
                    if name == "claim" or name.startswith("claim."):
                        with contextlib.suppress(OSError):
                            yield job_of_claim(os.readlink(os.path.join(place, name)))


def _lineage(pid: int, processes: dict[int, Process]) -> set[int]:
    """A process and its ancestors."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        one = processes.get(pid)
        pid = one.parent if one else 0
    return found


def main(arguments: list[str]) -> int:
    """Kill, print one line, and return 0."""
    text = "End what earlier starts of a run left on this node."
    parser = parser_of("sweep", text, "--attempt-folder", "--node")
    add = parser.add_argument
    text = f"of the present start, LAUNCH.START; `{CLOSED}` ends all of the attempt"
    add("--token", required=True, help=text)
    add("--grace", type=float, default=USUAL_GRACE_S, help="seconds between TERM and KILL")
    add("--job", default=os.environ.get("SLURM_JOB_ID", ""), help="the Slurm job (default: the one around)")
    add("--spare-check", action="store_true", help="also say whether this node could take part in a start")
    words = parser.parse_args(arguments)
    node = node_name(words.node)
    here = present_start(
        words.attempt_folder, words.token, words.job, os.environ.get("SLURM_CLUSTER_NAME", "")
    )
    swept = kill_stale(here, max(0.0, words.grace))
    line = swept.told(node)
    if words.spare_check:
        line["unfit"] = _unfit(words.attempt_folder, swept)
    print(json.dumps(line), flush=True)
    if os.path.isdir(os.path.join(words.attempt_folder, "stage")):
        from ftrun.hooks.staging import workspace

        own = workspace.job_folder(words.attempt_folder)
        workspace.clear_dead(os.path.dirname(own), own)
    if os.path.exists(os.path.join(words.attempt_folder, "..", "..", "caches", "where")):
        from ftrun.hooks.compile_cache import cmd  # only if the next start uses compile caches

        cmd.mend(words.attempt_folder)
    return 0


def _unfit(folder: str, swept: KillReport) -> str:
    """Why no start should use this node; "" for no reason."""
    if swept.left:
        return f"{len(swept.left)} process(es) of an earlier start cannot be ended"
    if not os.path.isdir(folder):
        return "the run's folder is not seen here"
    place = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  only asked about
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written to"
