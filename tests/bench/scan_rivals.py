"""Who else can look for the same patterns, each as quick as its options let it be. (I/O)

Every rival is asked for the CPU seconds of one pass over a file: what it needs before the first byte (to compile 1,300 patterns) is
not counted, or is taken off by a pass over an empty file.  A rival that this machine does not have says so.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.signatures.prefilter import HyperscanPrefilter, prefilter_for, widened
from ftrun.supervisor.signatures.scanner import BLOCK_BYTES, Scanner
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.tail import READ_BYTES, Piece
from tests.bench.dialects import Dialect, translated

__all__ = ["MIB", "Missing", "Rival", "rivals", "scanned_s"]

MIB = 1 << 20
NVRX_PYTHON = "NVRX_PYTHON"  # an interpreter that has nvidia_resiliency_ext, where it is not this one
NVRX_MODULE = "nvidia_resiliency_ext.attribution.restart_agent.l0"
NVRX_CODE = f"""
import sys, time
from {NVRX_MODULE} import ProgressiveL0Accumulator
began = time.process_time()
one = ProgressiveL0Accumulator(sys.argv[1])
one.refresh()
one.finalize()
print(time.process_time() - began)
"""
WITHIN_S = 600.0  # a busy machine takes its time; CPU seconds are counted


@dataclass(frozen=True, slots=True)
class Rival:
    """`pass_s` takes a file and returns CPU seconds; slow ones get a smaller file."""

    name: str
    sample_bytes: int
    pass_s: Callable[[Path], float]


@dataclass(frozen=True, slots=True)
class Missing:
    """A rival that is not here, and why."""

    name: str
    why: str


def rivals(catalog: Catalog, folder: Path) -> list[Rival | Missing]:
    """Return all that this machine can run; what they need is written into `folder`."""
    expressions = tuple(one.pattern for one in catalog.signatures)
    return [
        Rival("cat >/dev/null", 64 * MIB, _cat),
        *_engines(expressions, folder),
        Rival("ftrun, and the progress read", 8 * MIB, lambda log: _with_progress_s(catalog, log)),
        Rival("the fallback engine", 4 * MIB, lambda log: scanned_s(Scanner(catalog, engine="re"), log)),
        _ripgrep(expressions, folder),
        _grep(expressions, folder),
        _nvrx(),
    ]


def scanned_s(scanner: Scanner, log: Path) -> float:
    """Return the CPU seconds of reading a file as the supervisor reads it, and scanning it."""
    return _each_piece_s(log, scanner.feed)


def _with_progress_s(catalog: Catalog, log: Path) -> float:
    """All that is done with a log: hits become evidence, and each line that may tell a step is read for its number."""
    file = LogFile(str(log), LogContext(catalog))
    offsets = itertools.count(step=READ_BYTES)
    return _each_piece_s(log, lambda data: file.take(Piece(data, next(offsets), 0), 0.0))


def _each_piece_s(log: Path, take: Callable[[bytes], object]) -> float:
    descriptor = os.open(log, os.O_RDONLY)
    try:
        began = time.process_time()
        at = 0
        while piece := os.pread(descriptor, READ_BYTES, at):
            take(piece)
            at += len(piece)
        return time.process_time() - began
    finally:
        os.close(descriptor)


def _engines(expressions: tuple[str, ...], folder: Path) -> list[Rival | Missing]:
    """The compiled database alone, called from Python and from C."""
    loop = _c_loop(expressions, folder)
    try:
        sieve = prefilter_for(expressions, "hyperscan")
    except ImportError as error:
        return [Missing("bare loop", f"no hyperscan: {error}"), loop]
    assert isinstance(sieve, HyperscanPrefilter)
    database = sieve._database
    scratch = sieve._module.Scratch(database)

    def with_handler(piece: bytes) -> None:
        for at in range(0, len(piece), BLOCK_BYTES):
            sieve.sift(piece[at : at + BLOCK_BYTES])

    def without(piece: bytes) -> None:
        view = memoryview(piece)
        for at in range(0, len(piece), BLOCK_BYTES):
            database.scan(view[at : at + BLOCK_BYTES], scratch=scratch)

    return [
        Rival("bare Python loop", 64 * MIB, lambda log: _each_piece_s(log, with_handler)),
        Rival("bare loop, no handler", 64 * MIB, lambda log: _each_piece_s(log, without)),
        loop,
    ]


def _c_loop(expressions: Sequence[str], folder: Path) -> Rival | Missing:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return Missing("bare C loop", "there is no C compiler")
    source, program = Path(__file__).with_name("bare_loop.c"), folder / "bare_loop"
    made = subprocess.run(
        [compiler, "-O2", "-o", program, source, "-lhs"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        return Missing("bare C loop", "no libhs with headers (libhyperscan-dev or libvectorscan-dev)")
    listed = folder / "expressions"
    listed.write_text("".join(f"{widened(one)}\n" for one in expressions), "latin-1")
    return Rival("bare C loop", 64 * MIB, lambda log: float(_said([program, listed, log]).split()[0]))


def _cat(log: Path) -> float:
    return _command_s(["cat", log])


def _ripgrep(expressions: Sequence[str], folder: Path) -> Rival | Missing:
    program = shutil.which("rg")
    if program is None:
        return Missing("ripgrep", "rg is not installed")
    listed = folder / "ripgrep.patterns"
    listed.write_text("".join(f"{translated(one, Dialect.RIPGREP)}\n" for one in expressions))
    options = ["--no-config", "--no-unicode", "-j1", "-c", "-a", "--dfa-size-limit=1G"]
    return Rival(
        "ripgrep --no-unicode", 64 * MIB, lambda log: _beyond_start_s([program, *options, "-f", listed], log)
    )


def _grep(expressions: Sequence[str], folder: Path) -> Rival | Missing:
    program = shutil.which("grep")
    if program is None:
        return Missing("grep -E", "grep is not installed")
    listed = folder / "grep.patterns"
    listed.write_text("".join(f"{translated(one, Dialect.POSIX)}\n" for one in expressions))
    return Rival(
        "grep -E", MIB >> 6, lambda log: _beyond_start_s([program, "-E", "-c", "-a", "-f", listed], log)
    )


def _nvrx() -> Rival | Missing:
    """Its deterministic analyser reads the progress, too, and makes a verdict."""
    python = os.environ.get(NVRX_PYTHON, sys.executable)
    there = subprocess.run(
        [python, "-c", f"import {NVRX_MODULE}"], capture_output=True, text=True, check=False
    )
    if there.returncode:
        why = (there.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Missing(
            "NVRx's deterministic analyser", f"{why}; {NVRX_PYTHON} names an interpreter that has it"
        )
    return Rival(
        "NVRx's deterministic analyser", MIB, lambda log: float(_said([python, "-c", NVRX_CODE, log]))
    )


def _said(command: Sequence[str | Path]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=WITHIN_S, env=_environment()
    ).stdout


def _command_s(command: Sequence[str | Path]) -> float:
    """Return the CPU seconds of a child; exit 1 says that nothing matched.  grep stops at its first match when it writes to /dev/null."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.DEVNULL if command[0] == "cat" else subprocess.PIPE
    done = subprocess.run(
        command, check=False, stdout=out, stderr=subprocess.PIPE, timeout=WITHIN_S, env=_environment()
    )
    if done.returncode > 1:
        raise ChildProcessError(f"{command[0]}: {done.stderr.decode(errors='replace')[-200:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _beyond_start_s(command: Sequence[str | Path], log: Path) -> float:
    empty = log.with_name("empty")
    empty.touch()
    return max(1e-6, _command_s([*command, log]) - _command_s([*command, empty]))


def _environment() -> Mapping[str, str]:
    return {**os.environ, "LC_ALL": "C"}
