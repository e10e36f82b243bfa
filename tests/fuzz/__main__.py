"""`python -m tests.fuzz --inputs 1000000 --seed 1`: hostile inputs against every parser of what others wrote. (I/O)

Each input is a valid one made hostile (`mutations`). It ends as a value or a one-line refusal, within a second of the
processor's time and within the memory that is allowed; anything else is told with its number, and `--only NUMBER` repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from tests.fuzz.mutations import variant
from tests.fuzz.parsers import Parser, parsers

MEMORY = "/dev/shm"
TIME_MAX_S = 1.0
MEMORY_MAX_BYTES = 2 << 30
LINE_MAX = 2000


class Failure(NamedTuple):
    """One input that did not end well."""

    number: int
    parser: str
    what: str
    data: bytes


class Result(NamedTuple):
    """What came of all inputs."""

    inputs: Counter[str]
    refused: Counter[str]
    slowest_s: dict[str, float]
    failures: list[Failure]


def attacked(inputs: int, seed: int, folder: str, *, only: int | None = None, most: int = 20) -> Result:
    """Feed so many inputs; stops after `most` failures."""
    targets = parsers(folder)
    result = Result(Counter(), Counter(), {}, list(_unread(targets)))
    for number in range(inputs) if only is None else (only,):
        random = Random(f"{seed}:{number}")
        one = random.choices(targets, [each.weight for each in targets])[0]
        data = variant(random.choice(one.seeds), one.seeds, random)
        began_s = time.process_time()
        wrong = _read(one, data, result)
        took_s = time.process_time() - began_s
        result.inputs[one.name] += 1
        result.slowest_s[one.name] = max(took_s, result.slowest_s.get(one.name, 0.0))
        if not wrong and took_s > TIME_MAX_S:
            wrong = f"it took {took_s:.1f} s of the processor"
        if wrong:
            result.failures.append(Failure(number, one.name, wrong, data))
            if len(result.failures) >= most:
                break
    return result


def _unread(targets: list[Parser]) -> Iterator[Failure]:
    """Valid inputs that are refused: then the hostile ones would prove little."""
    nothing: tuple[object, ...] = (None, {}, [], (), "")
    for one, data in itertools.chain.from_iterable(((one, data) for data in one.seeds) for one in targets):
        try:
            if one.read(data) in nothing:
                yield Failure(-1, one.name, "a valid input says nothing", data)
        except Exception as error:  # noqa: BLE001  whatever it is
            if not one.refuses_all:
                yield Failure(-1, one.name, f"a valid input: {type(error).__name__}: {error}", data)


def _read(one: Parser, data: bytes, result: Result) -> str:
    """Why this input did not end well; "" where it did."""
    try:
        one.read(data)
    except one.refusals as error:
        result.refused[one.name] += 1
        line = str(error)
        return "" if len(line) <= LINE_MAX else f"a refusal of {len(line)} characters"
    except Exception:  # noqa: BLE001  that is what is looked for
        return traceback.format_exc(limit=-4)
    return ""


def main() -> int:
    """Print one line for each parser, and each failure; 1 if there was one."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--inputs", type=int, default=1_000_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--only", type=int)
    asked = words.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory(
        prefix="ftrun-fuzz-", dir=MEMORY if os.path.isdir(MEMORY) else None
    ) as folder:
        result = attacked(asked.inputs, asked.seed, folder, only=asked.only)
    for name, count in sorted(result.inputs.items()):
        print(
            f"{count:9,}  {result.refused[name]:9,} refused  {result.slowest_s[name] * 1000:7.1f} ms at most  {name}"
        )
    for one in result.failures:
        print(f"\n--only {one.number}: {one.parser}\n{one.what}{one.data[:300]!r}")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"\n{sum(result.inputs.values()):,} inputs, seed {asked.seed}: {len(result.failures)} failures; {time.monotonic() - began_s:.0f} s,"
        f" {time.process_time() - began_cpu_s:.0f} s of the processor, {peak_mib} MiB at most"
    )
    return int(bool(result.failures))


if __name__ == "__main__":
    sys.exit(main())
