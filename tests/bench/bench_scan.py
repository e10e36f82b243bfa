"""How quickly logs are scanned for all signatures, beside everybody else who can look for the same patterns. (I/O)

How it is counted: one core, one thread, CPU seconds of reading the file and scanning it, all contenders one after the other in each round;
a figure is the median over the rounds, a ratio the median of the ratios within each round.  So a busy machine changes little.
The storm has 30 % matching lines.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.signatures.scanner import Scanner
from tests.bench import logs
from tests.bench.figures import Figure, percentiles
from tests.bench.scan_rivals import MIB, Missing, Rival, rivals, scanned_s

__all__ = ["measure"]

OURS = "ftrun"
LOG_BYTES = 64 * MIB
AIMS: Mapping[str, Mapping[str, float]] = {
    "normal log": {"bare C loop": 0.9, "ripgrep --no-unicode": 2.4, "NVRx's deterministic analyser": 300.0},
    "storm": {"ripgrep --no-unicode": 1.0},
}
AIM_PEAK_MIB = 100.0
AIM_LOAD_MS = 20.0
PEAK_CODE = """
import os, sys
from pathlib import Path
from ftrun.supervisor.signatures import catalog as signatures
from ftrun.supervisor.signatures.scanner import Scanner
from ftrun.supervisor.telemetry import tail
peak = lambda: next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
scanner, at = Scanner(signatures.load(), engine="hyperscan"), 0
with open(sys.argv[1], "rb") as log:
    while piece := os.pread(log.fileno(), tail.READ_BYTES, at):
        scanner.feed(piece)
        at += len(piece)
print(before, peak())
"""
LOAD_CODE = """
import time
from ftrun.supervisor.signatures import catalog as signatures
from ftrun.supervisor.signatures import scanner as scan
began = time.process_time()
scan.Scanner(signatures.load(), engine="hyperscan")
print(time.process_time() - began)
"""


def measure(rounds: int) -> list[Figure]:
    """All of it; the machine needs one core and 200 MiB for files."""
    catalog = signatures_catalog.load()
    with _one_core(), tempfile.TemporaryDirectory(prefix="ftrun-scan-") as name:
        folder = Path(name)
        several = rivals(catalog, folder)
        figures = []
        for kind, text in _texts(catalog):
            log = folder / f"{kind.replace(' ', '-')}.log"
            log.write_bytes(text)
            taken = _rounds(catalog, log, [one for one in several if isinstance(one, Rival)], rounds)
            figures += _speeds(kind, len(catalog.signatures), taken, several)
            figures.append(_peak(kind, log))
        figures.append(_loads(folder, rounds))
    return figures


def _texts(catalog: Catalog) -> Iterator[tuple[str, bytes]]:
    yield "normal log", logs.normal(LOG_BYTES)
    examples = [text for one in catalog.signatures for text in one.examples]
    yield "storm", logs.storm(LOG_BYTES, examples)


@contextmanager
def _one_core() -> Iterator[None]:
    """This process and its children stay on the last of the cores that it may have."""
    may = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(may)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, may)


def _rounds(catalog: Catalog, log: Path, several: Sequence[Rival], rounds: int) -> dict[str, list[float]]:
    """Return bytes per CPU second by contender, a value for each round; all of a round stand beside each other."""
    taken: dict[str, list[float]] = {OURS: [], **{one.name: [] for one in several}}
    ours = Rival(OURS, LOG_BYTES, lambda path: scanned_s(Scanner(catalog, engine="hyperscan"), path))
    samples = {one.name: _sample(log, one.sample_bytes) for one in (ours, *several)}
    for one in (ours, *several):  # what is compiled at first use is compiled now
        if one.sample_bytes > MIB:
            one.pass_s(_sample(log, MIB))
    for _ in range(rounds):
        for one in (ours, *several):
            sample = samples[one.name]
            taken[one.name].append(sample.stat().st_size / one.pass_s(sample))
    return taken


def _sample(log: Path, size_bytes: int) -> Path:
    """Return a file with the beginning of `log`, in whole lines."""
    if size_bytes >= log.stat().st_size:
        return log
    part = log.with_suffix(f".{size_bytes}")
    if not part.exists():
        with open(log, "rb") as stream:
            head = stream.read(size_bytes)
        part.write_bytes(head[: head.rfind(b"\n") + 1])
    return part


def _speeds(
    kind: str, count: int, taken: Mapping[str, Sequence[float]], several: Sequence[Rival | Missing]
) -> list[Figure]:
    """One figure for each rival; the aim, where there is one, speaks of the ratio."""
    ours = _gb_s(taken[OURS])
    figures = []
    for one in several:
        aim = AIMS[kind].get(one.name)
        name = f"{kind}, {count:,} signatures: against {one.name}"
        if isinstance(one, Missing):
            figures.append(Figure(name, "GB/s", ours, one.name, {}, 0.0, "not measured:", notes=(one.why,)))
            continue
        value = statistics.median(
            mine / theirs for mine, theirs in zip(taken[OURS], taken[one.name], strict=True)
        )
        figures.append(
            Figure(
                name=name,
                unit="GB/s",
                ours=ours,
                rival_name=one.name,
                rival=_gb_s(taken[one.name]),
                value=round(value, 2 if value < 10 else 0),
                value_name="times as quick:",
                aim=f">= {aim:g}" if aim else "",
                held=value >= aim if aim else None,
            )
        )
    return figures


def _gb_s(rates: Sequence[float]) -> dict[str, float]:
    told = percentiles([rate / 1e9 for rate in rates], digits=6)
    return {name: told[name] for name in ("least", "p50", "most", "n")}


def _peak(kind: str, log: Path) -> Figure:
    """Memory of a process that scans a file of any size."""
    start, most = (int(one) / 1024 for one in _python(PEAK_CODE, str(log)).split())
    return Figure(
        name=f"{kind}: peak memory of a process that scans {log.stat().st_size // MIB} MiB",
        unit="MiB",
        ours={"peak": round(most, 1)},
        rival_name="the same process before it loads the catalog",
        rival={"peak": round(start, 1)},
        value=round(most, 1),
        value_name="peak, MiB",
        aim=f"< {AIM_PEAK_MIB:g}",
        held=most < AIM_PEAK_MIB,
    )


def _loads(folder: Path, rounds: int) -> Figure:
    """CPU time until the first byte can be scanned, in a process of its own each; the cache is warm after the first."""
    cache = folder / "cache"
    cold = []
    for _ in range(min(rounds, 3)):
        shutil.rmtree(cache, ignore_errors=True)
        cold.append(_load_ms(cache))
    warm = [_load_ms(cache) for _ in range(3 * rounds)]
    told = percentiles(warm, digits=1)
    return Figure(
        name="catalog loaded, from its cache, until the first byte can be scanned",
        unit="CPU ms",
        ours=told,
        rival_name="cold: read from TOML and compiled",
        rival=percentiles(cold, digits=0),
        value=told["p50"],
        value_name="median, CPU ms",
        aim=f"< {AIM_LOAD_MS:g} ms",
        held=told["p50"] < AIM_LOAD_MS,
    )


def _load_ms(cache: Path) -> float:
    return float(_python(LOAD_CODE, cache=cache)) * 1e3


def _python(code: str, *words: str, cache: Path | None = None) -> str:
    env = dict(os.environ) | ({"XDG_CACHE_HOME": str(cache)} if cache else {})
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        check=True,
        capture_output=True,
        text=True,
        env=env,
        cwd=root,
        timeout=120,
    ).stdout
