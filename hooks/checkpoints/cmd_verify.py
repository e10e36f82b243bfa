"""`ftrun-hook verify-checkpoint`: reads a run's newest checkpoint completely while the run runs. (I/O)

Most checkpoints contain checksums, but comparing them needs a complete read: minutes that no start has, and a
running job has. So one process on one node reads the checkpoint that the next start would load, once it has
not changed for a minute. A child process reads it at the lowest priority for processor and disks, one file at
a time, at a limited rate, without filling the page cache, and is the first victim when memory is short. Each
checkpoint is read once; if a newer one appears, the child ends.

The result is stored in the run's folder (`deep_results`), where each start looks. Nothing depends on it: if
this process fails, hangs or is killed, the next start inspects on the quick level.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import Optional

from ftrun.hooks.checkpoints import deep_results, listing
from ftrun.hooks.checkpoints.deep_results import DeepResult
from ftrun.hooks.checkpoints.diverged_folder import noted_divergences
from ftrun.hooks.checkpoints.find import found_at
from ftrun.hooks.checkpoints.inspection import YOUNG_S, inspect, tree_of
from ftrun.hooks.checkpoints.listing import DeadlinePassed
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, WRITING
from ftrun.hooks.checkpoints.selection import Request, select
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.formats import parse_bytes
from ftrun.hooks.runtime.host import UsageError
from ftrun.hooks.runtime.parent import Parent
from ftrun.hooks.runtime.procfs import lower_priority

LOOK_S = 30.0
LOOK_SHARE = 50.0  # the least pause after a look, as a multiple of its duration
TICK_S = 0.5
PR_SET_PDEATHSIG = 1


class Verifier:
    """Looks for the checkpoint to read, and has one child at most that reads it."""

    def __init__(self, words: argparse.Namespace) -> None:
        self.words = words
        self.child = 0
        self.reads = ("", "")  # path and identity of what the child reads
        self.tried: set[tuple[str, str]] = set()

    def update(self) -> None:
        """One look: read the newest checkpoint without a result; stop reading one that is not the newest."""
        self.reap()
        wanted = self._wanted()
        if self.child and wanted != self.reads:
            self.kill()
        if wanted is not None and not self.child and wanted not in self.tried:
            self.tried.add(wanted)
            self.reads, self.child = wanted, self._begun(wanted[0])

    def reap(self) -> None:
        """Reap the child."""
        if self.child:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.child, os.WNOHANG)[0] == 0:
                    return
            self.child = 0

    def kill(self) -> None:
        """Kill the child; what it read may become the newest again."""
        self.tried.discard(self.reads)
        with contextlib.suppress(OSError):
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
        self.child = 0

    def _wanted(self) -> Optional[tuple[str, str]]:
        """Path and identity of what the next start would load, if it is unchanged and has no result yet."""
        words = self.words
        request = Request(
            patterns=words.glob.splitlines(),
            cwd=words.cwd,
            marker=words.marker,
            aside=words.skip.splitlines(),
            poisons=noted_divergences(words.run_dir),
            run_dir=words.run_dir,
        )
        one = select(request).chosen
        if one is None or time.time() - one.written_s < words.still:
            return None
        try:
            now = deep_results.identity(tree_of(one.found))
        except (OSError, DeadlinePassed):
            return None
        then = deep_results.load(words.run_dir, one.found.path)
        return (one.found.path, now) if then is None or then.identity != now else None

    def _begun(self, path: str) -> int:
        """The child's pid."""
        reader = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != reader:  # it died before the line above
                os._exit(1)
            listing.slow_down(parse_bytes(self.words.rate))
            verify_one(self.words.run_dir, path, self.words.marker)
        except BaseException:  # noqa: BLE001  nobody waits for the result of a child
            os._exit(1)
        os._exit(0)


def verify_one(run_dir: str, path: str, marker: str) -> Optional[DeepResult]:
    """Inspect a checkpoint deeply, store the result; None if it changed. Raises OSError, DeadlinePassed."""
    found = found_at(path)
    before = deep_results.identity(tree_of(found))
    began_s = time.monotonic()
    one = inspect(found, level=DEEP, marker=marker, now_s=time.time())
    seconds = round(time.monotonic() - began_s, 1)
    if one.state == WRITING or deep_results.identity(tree_of(found)) != before:
        return None
    level = one.level if one.state == COMPLETE else DEEP
    result = DeepResult(
        path, before, one.state, one.why, level, one.size_bytes, round(time.time(), 3), seconds
    )
    deep_results.save(run_dir, result)
    return result


def main(arguments: Sequence[str]) -> int:
    """Run until the parent process has ended. Always 0."""
    parent = Parent()
    words = _parser().parse_args(arguments)
    try:
        parse_bytes(words.rate)
    except ValueError as error:
        raise UsageError(f"--rate: {error}") from None
    lower_priority(idle=True)
    listing.slow_down(0)  # its looks are small
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("1000")
    verifier, due_s = Verifier(words), 0.0
    while not parent.is_gone:
        now_s = time.monotonic()
        if now_s >= due_s:
            verifier.update()
            took_s = time.monotonic() - now_s
            due_s = time.monotonic() + max(words.every, LOOK_SHARE * took_s)
        if verifier.child:
            verifier.reap()
            due_s = due_s if verifier.child else 0.0  # its result may make an older checkpoint the next
        time.sleep(TICK_S)
    if verifier.child:
        verifier.kill()
    return 0


def _parser() -> argparse.ArgumentParser:
    text = "Read a run's newest checkpoint to its end, in the background, once."
    parser = parser_of("verify-checkpoint", text, "--marker")
    add = parser.add_argument
    add("--run-dir", required=True, help="the run's folder, where what was found is kept")
    add("--glob", required=True, help="where the checkpoints are: patterns, one in each line")
    add("--cwd", default="/", help="the folder that patterns start from")
    add("--skip", default="", help="checkpoints that a start failed to load, one in each line")
    add("--rate", default="200M", help="how many bytes are read in a second at most (0: no limit)")
    add("--every", type=float, default=LOOK_S, help="seconds between two looks for a newer one")
    add("--still", type=float, default=YOUNG_S, help="seconds that nobody has written to it")
    return parser
