"""`ftrun-hook staging-daemon`: manages the checkpoints that a job stages in this node's memory. (I/O)

It seals complete parts, publishes them in the background, and frees memory. The trainer has priority: the
daemon takes one core at most, at a low priority for the processor and the lowest for disks, with small
buffers, and leaves nothing in the page cache. It lives as long as the job on this node: the guard restarts
it, it continues from its files, and at the end it frees the memory.

USR2: the job is over and everything is reported; clear up and exit. TERM: the job is being ended; publish
what is complete in the time before Slurm kills.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.command_line import handle_end_signals, node_name, parser_of
from ftrun.hooks.runtime.formats import parse_amount, parse_bytes
from ftrun.hooks.runtime.host import UsageError
from ftrun.hooks.runtime.parent import Parent
from ftrun.hooks.runtime.procfs import lower_priority
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.runtime.wakeup_fifo import WakeupListener
from ftrun.hooks.staging import inventory, local, publish, records, replace, sealing
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.local import LocalPart, LocalState
from ftrun.hooks.staging.partner_client import PartnerClient, PartnerConfig
from ftrun.hooks.staging.publisher import Publisher, PublisherConfig
from ftrun.hooks.staging.records import Home, Publishing
from ftrun.hooks.staging.replace import Own
from ftrun.hooks.staging.workspace import STALE_S, clear_dead, open_base

CANNOT = 3
"""Exit status: nothing can be staged on this node, do not restart the daemon."""
LOOK_S, BUSY_LOOK_S = 1.0, 0.5
LOOK_SHARE, LOOK_MAX_S = 9.0, 10.0  # the pause after a look, as a multiple of its duration
ROOM_S = 2.0
REPORT_S = 5.0
TERM_S = 20.0  # Slurm kills 30 s after TERM (KillWait)
LEFT_S = 60.0
LEAVES_S = 2.0  # for a last write to the shared file system, which may hang


class StagingDaemon:
    """The daemon of one node."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.home = Home(args.base)
        run, attempt = os.path.split(args.attempt_folder)
        self.run = replace.run_of(os.path.dirname(run))
        owner = {"run": self.run, "attempt": attempt, "launch": args.launch, "job": args.job}
        self.attempt = int(attempt) if attempt.isdigit() else 0
        self.owner = json.dumps(owner).encode()
        place = (args.attempt_folder, args.launch, args.job, args.node, args.to)
        config = PublisherConfig(*place, self.owner, parse_bytes(args.rate), args.wait)
        self.local = LocalState(self.home, args.node)
        self.publisher = Publisher(config, self.local, publish.seal_check_of(args.marker))
        partner = PartnerConfig(args.base, args.attempt_folder, args.node, args.job, args.to, self.owner)
        self.partner = PartnerClient(partner) if args.partner == "auto" else None
        self.limit_bytes = parse_amount(args.limit, inventory.memory_bytes())
        self.used_bytes = 0
        self.was_full = False
        self.flushed, self.is_leaving = "", False
        self.sealed = threading.Event()
        self._room_s = 0.0
        self._told: Mapping[str, Any] = {}
        self._told_s = 0.0
        self._telling = threading.Lock()

    def look(self, now_s: float) -> float:
        """One look at this node's memory; returns the seconds until the next."""
        if self.local.look(now_s, self.publisher.starts):
            self.sealed.set()
        if now_s >= self._room_s:
            self.make_room()
            self._room_s = now_s + ROOM_S
        return BUSY_LOOK_S if self.local.is_growing() else LOOK_S

    def make_room(self) -> None:
        """Drop parts that exceed the limit, are beyond `--keep`, or are left over from earlier starts."""
        sealed = self.local.sealed()
        self.used_bytes = inventory.used_bytes(self.home.base)
        fact = os.statvfs(self.home.base)
        free = fact.f_bavail * fact.f_frsize
        newest = sealed[-1].size_bytes if sealed else 0
        reserve = int(inventory.RESERVE * fact.f_blocks * fact.f_frsize)
        held = [local.DropCandidate(one.token, one.name, one.size_bytes, _is_done(one)) for one in sealed]
        over = max(self.used_bytes - self.limit_bytes, reserve - free)
        wanted = max(self.used_bytes + newest - self.limit_bytes, newest + reserve - free)
        for one in local.to_drop(held, keep=self.args.keep, over_bytes=over, wanted_bytes=wanted):
            part = self.local.parts.get((one.token, one.name))
            if part is not None:
                self.local.drop(part)
        for part in list(self.local.parts.values()):
            if self._is_left_over(part):
                self.local.drop(part)
        token = self.publisher.starts.token
        if free < reserve // 2 and any(
            one.token == token and one.seal is None for one in self.local.parts.values()
        ):
            self.was_full = True

    def _is_left_over(self, part: LocalPart) -> bool:
        """Whether this part is of an earlier start and no start will resume from it."""
        starts = self.publisher.starts
        if (token_of(part.token) or (0, 0)) >= (token_of(starts.token) or (0, 0)):
            return False
        if part.seal is None:
            return part.state == sealing.GIVEN_UP or time.monotonic() - part.changed_s > LEFT_S
        return not part.is_published and any(
            one.is_published and one.token == starts.token for one in self.local.sealed()
        )

    def publish_forever(self) -> None:
        """The publishing thread."""
        self._clear_earlier()
        while True:
            now_s, done = time.monotonic(), False
            try:
                self.publisher.read_starts(now_s)
                if not self.is_leaving:
                    self.local.open_starts(self.publisher.starts.token)
                done = self.publisher.run_round(now_s)
                self._mark_flushed(now_s)
                self._mark_full()
            except Exception as error:  # noqa: BLE001  our mistake must not end this thread
                self.publisher.why = f"{type(error).__name__}: {error}"
            if not done:
                self.sealed.wait(self.publisher.pause_s())
            self.sealed.clear()

    def report_forever(self) -> None:
        """The reporting thread: reports continue while a large file is copied."""
        while True:
            with contextlib.suppress(OSError):
                self.report(time.monotonic())
            time.sleep(LOOK_S)

    def _mark_flushed(self, now_s: float) -> None:
        token = self.publisher.starts.token
        if token in (self.flushed, "") or not self.publisher.is_done(token, now_s):
            return
        folder = f"{self.args.attempt_folder}/stage"
        _put(f"{folder}/done.{token}.{self.args.node}", "")
        if self.publisher.is_flushed(token, now_s):
            _put(f"{folder}/flushed.{token}.{self.args.node}", "")
            self.flushed = token

    def _mark_full(self) -> None:
        """A start failed with full memory: later starts of this launch save to the shared folder."""
        starts = self.publisher.starts
        path = f"{self.args.attempt_folder}/stage/full.{self.args.launch}.{self.args.node}"
        if self.was_full and starts.phase(starts.token) == sealing.BROKEN and not os.path.exists(path):
            _put(path, "its memory was full when the script ended")

    def report(self, now_s: float) -> None:
        """Write the report if it changed: at once for a state, else every REPORT_S. Raises OSError."""
        with self._telling:  # the last report comes from the thread that ends the daemon
            report = self.publisher.report()
            report.update(used_bytes=self.used_bytes, limit_bytes=self.limit_bytes)
            states = [(row["set"], row["state"]) for row in report["sets"]] + [report["why"]]
            is_due = now_s - self._told_s >= REPORT_S and report != self._told
            if is_due or states != self._told.get("states"):
                node_report.write_json(
                    records.report_path(self.args.attempt_folder, self.args.node),
                    {**report, "at_s": round(time.time(), 3)},
                )
                self._told, self._told_s = {**report, "states": states}, now_s

    def _clear_earlier(self) -> None:
        """Remove pending sets of earlier attempts and launches of this run."""

        def is_over(owner: Mapping[str, object], one: Publishing) -> bool:
            own = (_number(owner.get("attempt")), _number(owner.get("launch")))
            return bool(owner) and one.job != self.args.job and own < (self.attempt, self.args.launch)

        publish.clear_gone(Disk(), self.args.to, self.run, is_over)
        replace.clear_sets(Disk(), self.args.to, Own.of(self.owner, f"{self.args.launch}.0"))


def _is_done(part: LocalPart) -> bool:
    """Whether it is only kept for a resume."""
    return part.is_published or part.state == publish.REFUSED


def _number(value: object) -> int:
    return int(value) if isinstance(value, (int, str)) and str(value).isdigit() else -1


def main(arguments: list[str]) -> int:
    """Run until the job ends. 0, or CANNOT if nothing can be staged on this node."""
    parent = Parent()
    args = _parser().parse_args(arguments)
    if not os.path.isabs(args.base) or not os.path.isabs(args.to):
        raise UsageError("--base and --to must be full paths")
    args.node = node_name(args.node)
    args.attempt_folder = args.attempt_folder.rstrip("/")
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{args.attempt_folder}/stage", 0o700)
    ready = f"{args.attempt_folder}/stage/ready.{args.launch}.{args.node}"
    try:
        lock = open_base(args.base)
        daemon = StagingDaemon(args)
        daemon.local.open_starts(_token(args))
        os.makedirs(args.to, exist_ok=True)
    except (OSError, ValueError) as error:
        _put(ready.replace("/ready.", "/refused."), str(error))
        return CANNOT
    lower_priority()
    life = _DaemonLife(daemon, parent)
    life.listen()
    _put(ready, "")
    clear_dead(os.path.dirname(args.base), args.base)
    life.live(lock)
    return 0


class _DaemonLife:
    """The main thread: polls, and exits on a signal."""

    def __init__(self, daemon: StagingDaemon, parent: Parent) -> None:
        self.daemon, self.parent = daemon, parent
        self.until_s: Optional[float] = None

    def listen(self) -> None:
        """Install signal handlers; signals for the job's own steps are ignored."""
        handle_end_signals(lambda *_: self.hurry())
        signal.signal(signal.SIGUSR2, lambda *_: self.leave())

    def hurry(self) -> None:
        """Publish what is complete, then exit."""
        if self.until_s is None:
            now_s = time.monotonic()
            self.until_s = now_s + min(TERM_S, self.daemon.args.wait)
            self.daemon.publisher.end(now_s)
            if self.daemon.partner is not None:
                self.daemon.partner.stop()

    def leave(self) -> None:
        """Clear up and exit; a thread that hangs in a file system is left to the kernel."""
        if self.daemon.partner is not None:
            self.daemon.partner.stop()
        self.daemon.is_leaving = True
        told = _in_background(self.daemon.report, time.monotonic())
        for _ in range(2):  # the publishing thread may be making the folder of a start
            shutil.rmtree(self.daemon.home.base, ignore_errors=True)
            time.sleep(0.02)
        args = self.daemon.args
        if os.environ.get("SLURM_JOB_ID") == args.job and os.environ.get("SLURM_NODEID") == "0":
            # The first node leaves only with its job; another may be given back, and its parts still count.
            _in_background(publish.clear_job, Disk(), args.to, args.job, args.node).join(LEAVES_S)
        told.join(LEAVES_S)
        _in_background(_put, f"{args.attempt_folder}/stage/left.{args.launch}.{args.node}", "").join(LEAVES_S)
        os._exit(0)

    def live(self, lock: int) -> None:
        """Run until a signal, or the end of the parent process."""
        touched_s, ear = 0.0, WakeupListener(self.daemon.home.base)
        partner = [self.daemon.partner.run_forever] if self.daemon.partner is not None else []
        for life in (self.daemon.publish_forever, self.daemon.report_forever, *partner):
            threading.Thread(target=life, daemon=True).start()
        while not self.parent.is_gone:
            now_s = time.monotonic()
            if self.until_s is not None and (
                now_s > self.until_s or self.daemon.flushed == self.daemon.publisher.starts.token
            ):
                self.leave()
            if now_s - touched_s > STALE_S / 1000:
                os.utime(lock)
                touched_s = now_s
            pause_s = self.daemon.look(now_s)
            took_s = time.monotonic() - now_s  # of a hundred thousand files that is long
            ear.wait(max(pause_s, min(LOOK_SHARE * took_s, LOOK_MAX_S)))


def _in_background(act: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start something on the shared file system, which may hang, in a thread."""

    def acting() -> None:
        with contextlib.suppress(OSError):
            act(*arguments)

    thread = threading.Thread(target=acting, daemon=True)
    thread.start()
    return thread


def _token(args: argparse.Namespace) -> str:
    """The present start, or the first one of this launch."""
    try:
        token = os.readlink(f"{args.attempt_folder}/current")
    except OSError:
        token = ""
    launch, _ = token_of(token) or (-1, 0)
    return token if launch == args.launch else f"{args.launch}.1"


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def _parser() -> argparse.ArgumentParser:
    text = "Look after the checkpoints that a job stages in the memory of this node."
    shared = ("--attempt-folder", "--job", "--base", "--to", "--node", "--marker")
    parser = parser_of("staging-daemon", text, *shared)
    add = parser.add_argument
    add("--launch", type=int, required=True, help="which launch of the attempt this is")
    add("--limit", default="40%", help="how much memory staged checkpoints may take")
    add("--rate", default="0", help="how many bytes may be published in a second (0: no limit)")
    add("--keep", type=int, default=2, help="how many published checkpoints stay in memory")
    text = "keep copies on another node, too"
    add("--partner", choices=("auto", "never"), default="never", help=text)
    add("--wait", type=float, default=120.0, help="how long the end may take, in seconds")
    return parser
