"""Short and cut healthy logs full of scary words: pieces of the formats, and harmless lines alone. (pure)

A person who asks about a log often has a piece of it: a few lines out of the middle, without the begin, the
steps or the end. A piece of a healthy log must not be called a failure only because it has scary words.
`cut_logs` cuts windows with such words out of the healthy logs of every format; `remark_logs` makes texts of
1 to 6 harmless lines (`remarks.txt`: what programs print while all is well).

A false alarm is any class but `healthy`, any exclusion, any blamed node, and an `unknown` of more than
UNKNOWN_MAX: what nobody knows may be called unknown if the confidence says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

from ftrun.supervisor.model.types import Diagnosis, FaultClass
from tests.falsealarms.dice import Dice

Format = Callable[[Dice], Iterator[str]]
UNKNOWN_MAX = 0.3
REMARKS = Path(__file__).with_name("remarks.txt")
CUT_BYTES = 1 << 16
LINES = (3, 50)

SCARY = re.compile(
    r"error|fail|fatal|abort|kill|dead|died|lost|timed? ?out|refused|cannot|unable|invalid|corrupt|denied"
    r"|exception|unreachable|missing|crash|panic|hang|stall|nan\b|overflow|not found|exceed|unknown|warn",
    re.IGNORECASE,
)


def is_false_alarm(found: Diagnosis) -> bool:
    """Whether a healthy text was judged wrongly."""
    if found.exclude or found.nodes:
        return True
    if found.fault is FaultClass.UNKNOWN:
        return found.confidence > UNKNOWN_MAX
    return found.fault is not FaultClass.HEALTHY


def cut_logs(
    formats: Mapping[str, Format], made_text: Callable[[Format, int, int], bytes], count: int, seed: int
) -> Iterator[tuple[str, bytes]]:
    """So many windows with scary words, from all formats in turn: (format, text)."""
    chance = Random(seed)
    names = list(formats)
    made = 0
    while made < count:
        name = names[made % len(names)]
        lines = made_text(formats[name], chance.randrange(1 << 30), CUT_BYTES).splitlines(keepends=True)
        scary = [at for at, line in enumerate(lines) if SCARY.search(line.decode("utf-8", "replace"))]
        size = chance.randint(*LINES)
        begin = max(0, (chance.choice(scary) if scary else 0) - chance.randrange(size))
        made += 1
        yield name, b"".join(lines[begin : begin + size])


def remark_logs(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """So many texts of 1 to 6 harmless lines, some between steps: (the first line, text)."""
    blocks = [block.strip("\n") for block in REMARKS.read_text("utf-8").split("\n\n") if block.strip()]
    chance = Random(seed)
    order = chance.sample(blocks, len(blocks))
    for number in range(count):
        dice = Dice(chance.randrange(1 << 30), 0)
        first = order[number % len(order)]
        several = [first, *chance.sample(blocks, chance.randint(0, 5))]
        text = "\n".join(dice.filled(block) for block in several)
        yield first.splitlines()[0], text.encode() + b"\n"
