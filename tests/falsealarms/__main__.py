"""`make false-alarms`: healthy logs of many programs, judged as `ftrun diagnose` judges them. (I/O)

    python -m tests.falsealarms [--mib N] [--seed N] [--only FORMAT]

How it thinks. Each case is one log of 4 to 20 MiB of one format, in several dresses (plain, srun --label, mpirun --tag-output). It is judged
without a record of its end, where anything but healthy is an alarm, and as a job that failed for a reason that its log
does not tell, where a stop or a blamed node is one: then a healthy line would have been taken for the cause.
Exit 1 where a case would have stopped a run or excluded a node.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from ftrun.supervisor.diagnosis import inputs, log_text
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Role, Topology
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures.grammar_file import load_grammar
from tests.falsealarms import computing, machine, training
from tests.falsealarms.dice import Dice
from tests.falsealarms.short import UNKNOWN_MAX

MIB = 1 << 20
Format = Callable[[Dice], Iterator[str]]
FORMATS: dict[str, Format] = {
    made.__name__: made for made in (*training.FORMATS, *computing.FORMATS, *machine.FORMATS)
}
ENDS: dict[str, Ended | None] = {
    "no record": None,
    "failed": Ended("FAILED", "NonZeroExitCode", exit_code=1),
    "gone": Ended("GONE"),
}
ROLES = (Role.CAUSE, Role.EITHER, Role.CONSEQUENCE)
SHOWN = 15


@dataclass(slots=True)
class Tally:
    """What was judged and what came of it. An alarm is (format, end, class, signature, first line)."""

    size_bytes: int = 0
    cases: int = 0
    alarms: Counter[tuple[str, ...]] = field(default_factory=Counter)
    stops: int = 0
    exclusions: int = 0
    blamed: int = 0
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)

    def per_gib(self, count: int) -> str:
        """A count per GiB of text."""
        return f"{count * (1 << 30) / max(1, self.size_bytes):.1f}"


def text(made: Format, seed: int, size_bytes: int) -> bytes:
    """One healthy log of about so many bytes; the same for the same seed."""
    dice = Dice(seed, size_bytes)
    dressed = DRESSES[seed % len(DRESSES)] if made in DRESSED else None
    parts: list[str] = []
    for line in made(dice):
        dice.left_bytes -= len(line) + 1
        parts.append(line if line.endswith(("\r", "\n")) else line + "\n")
    whole = "".join(parts)
    if dressed is not None:
        label = dice.filled(dressed)
        whole = label + whole.replace("\n", f"\n{label}")
    return whole.encode()


DRESSES = (None, "@rank: ", None, "[1,@rank]<stdout>:", "[default@gpu]:")
DRESSED = frozenset({*training.FORMATS, computing.open_mpi, computing.simulations})


def judge(tally: Tally, made: Format, log: bytes, catalog: signatures_catalog.Catalog) -> None:
    """Judge one log by all ends, and note what is wrong with that."""
    tally.cases += 1
    tally.size_bytes += len(log)
    report = inputs.read_attempt_files([], catalog=catalog, stdin=log).report
    for one in report.evidence:
        signature = catalog.by_id[one.signature]
        if signature.role in ROLES and signature.fault is not FaultClass.HEALTHY:
            tally.hits[one.signature, signature.role.value] += one.count
    lines = log_text.read_log_text([], log)
    for name, ended in ENDS.items():
        found = diagnose(
            Facts(
                report.evidence,
                report.seats.added_to(Topology()),
                ended=ended,
                catalog=catalog,
                progress=report.progress,
                text=lines,
                grammar=load_grammar(),
            )
        )
        _note(tally, made, name, found)


def _note(tally: Tally, made: Format, end: str, found: Diagnosis) -> None:
    stop = not found.retry and found.fault is not FaultClass.HEALTHY
    # What nobody knows may be called unknown if the confidence says so (short.py).
    guess = found.fault is FaultClass.UNKNOWN and found.confidence <= UNKNOWN_MAX
    wrong = (
        found.fault is not FaultClass.HEALTHY and not guess if end == "no record" else bool(found.signature)
    )
    tally.stops += stop
    tally.exclusions += found.exclude
    tally.blamed += len(found.nodes)
    if wrong or stop or found.exclude or found.nodes:
        proof = found.because[0].text[:160] if found.because else found.title
        tally.alarms[made.__name__, end, found.fault.value, found.signature, proof] += 1


def run(size_bytes: int, seed: int, names: list[str], *, case_mib: tuple[float, float], tell: bool) -> Tally:
    """Make and judge cases, one format after another, until there are so many bytes."""
    catalog, chance, tally = signatures_catalog.load(), Random(seed), Tally()
    began = told = time.monotonic()
    while tally.size_bytes < size_bytes:
        made = FORMATS[names[tally.cases % len(names)]]
        log = text(made, chance.randrange(1 << 30), int(chance.uniform(*case_mib) * MIB))
        judge(tally, made, log, catalog)
        if tell and time.monotonic() - told > 5:
            told = time.monotonic()
            done = tally.size_bytes / MIB
            print(
                f"{done:6.0f} MiB, {tally.cases} logs, {sum(tally.alarms.values())} alarms, {told - began:.0f} s",
                flush=True,
            )
    return tally


def show(tally: Tally) -> None:
    """Print the figures, then what is behind them."""
    alarms = sum(tally.alarms.values())
    print(
        f"{tally.size_bytes / MIB:.0f} MiB of healthy logs in {tally.cases} cases, each judged by {len(ENDS)} ends"
    )
    for name, count in (
        ("alarms", alarms),
        ("stops", tally.stops),
        ("exclusions", tally.exclusions),
        ("nodes blamed", tally.blamed),
    ):
        print(f"  {name:13} {count:6}   {tally.per_gib(count):>8} per GiB")
    for (made, end, fault, signature, proof), count in tally.alarms.most_common(SHOWN):
        print(f"  {count:4} x {made} ({end}): {fault} [{signature}] {proof!r}")
    if tally.hits:
        print("lines that could be part of a fault, all of them set aside unless named above:")
    for (signature, role), count in tally.hits.most_common(SHOWN):
        print(f"  {count:8}   {tally.per_gib(count):>10} per GiB  {role:11} {signature}")


def main() -> int:
    """Judge, print, and say whether a healthy run would have been harmed."""
    parser = argparse.ArgumentParser(prog="make false-alarms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=float, default=1024, help="so much text (default: 1024)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=sorted(FORMATS), help="these formats alone")
    parser.add_argument(
        "--case", type=float, nargs=2, default=(4, 20), metavar="MIB", help="the size of a log"
    )
    asked = parser.parse_args()
    low, high = asked.case
    tally = run(
        int(asked.mib * MIB), asked.seed, asked.only or list(FORMATS), case_mib=(low, high), tell=True
    )
    show(tally)
    return bool(tally.stops or tally.exclusions)


if __name__ == "__main__":
    sys.exit(main())
