"""The chance in a healthy log: its size, its names and its numbers, the same for the same seed. (pure)"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random

__all__ = ["Dice"]


class Dice:
    """What a format asks for. `hosts` are the machines of one job; `more` says whether the text is still too short."""

    def __init__(self, seed: int, size_bytes: int) -> None:
        self._random = Random(seed)
        self.left_bytes = size_bytes
        self.step = 0
        self.clock_s = 1_760_000_000.0 + 20_000_000 * self._random.random()
        prefix = self._random.choice(("n", "gpu", "node-", "c", "dgx-"))
        first, hosts = self._random.randrange(1, 900), self._random.choice((1, 2, 4, 8))
        self.hosts = tuple(f"{prefix}{first + place:03d}" for place in range(hosts))
        self.tells_end = self._random.random() < 0.6

    def more(self) -> bool:
        """Whether another step is wanted; if so, it is the next one."""
        if self.left_bytes <= 0:
            return False
        self.go()
        return True

    def go(self) -> None:
        """Go one step on."""
        self.step += 1
        self.clock_s += 0.2 + self._random.random()

    def rare(self, share: float = 0.02) -> bool:
        """Whether something happens that happens seldom."""
        return self._random.random() < share

    def one(self, of: Sequence[str]) -> str:
        """One of some texts, with the names and numbers of this run."""
        return self.filled(self._random.choice(of))

    def some(self, of: Sequence[str], share: float = 0.7) -> list[str]:
        """Some of the texts, in their order."""
        return [self.filled(text) for text in of if self._random.random() < share]

    def every(self, of: Sequence[str]) -> list[str]:
        """All of the texts."""
        return [self.filled(text) for text in of]

    def filled(self, text: str) -> str:
        """`text` with names and numbers in place of `@host`, `@rank` and the like."""
        return _PLACE.sub(lambda found: _MAKERS[found[1]](self), text) if "@" in text else text

    def whole(self, low: int, high: int) -> int:
        """A whole number, `high` included."""
        return low + int((high - low + 1) * self._random.random())

    def part(self, low: float, high: float) -> float:
        """Any number between the two."""
        return low + (high - low) * self._random.random()

    @property
    def loss(self) -> float:
        """A loss that falls with the steps."""
        return 11.0 / math.pow(1.0 + self.step / 5000.0, 0.25) + 0.1 * self._random.random()

    @property
    def world(self) -> int:
        """How many ranks the job has."""
        return 8 * len(self.hosts)

    def moment(self, form: str = "%Y-%m-%d %H:%M:%S") -> str:
        """The present time of this run."""
        return time.strftime(form, time.gmtime(self.clock_s))


_MAKERS: Mapping[str, Callable[[Dice], str]] = {
    "host": lambda dice: dice.one(dice.hosts),
    "rank": lambda dice: str(dice.whole(0, dice.world - 1)),
    "gpu": lambda dice: str(dice.whole(0, 7)),
    "pid": lambda dice: str(dice.whole(1000, 4_000_000)),
    "port": lambda dice: str(dice.whole(1024, 65535)),
    "ip": lambda dice: f"10.{dice.whole(0, 255)}.{dice.whole(0, 255)}.{dice.whole(1, 254)}",
    "pci": lambda dice: f"0000:{dice.whole(1, 255):02x}:00.0",
    "hex": lambda dice: f"{dice.whole(0, 1 << 47):012x}",
    "digit": lambda dice: str(dice.whole(1, 9)),
    "few": lambda dice: str(dice.whole(1, 99)),
    "many": lambda dice: str(dice.whole(1000, 999_999)),
    "real": lambda dice: f"{dice.part(0.01, 9.9):.4f}",
    "stamp": lambda dice: dice.moment(),
    "iso": lambda dice: dice.moment("%Y-%m-%dT%H:%M:%S"),
    "syslog": lambda dice: dice.moment("%b %d %H:%M:%S"),
    "glog": lambda dice: dice.moment("%m%d %H:%M:%S.") + f"{dice.whole(0, 999_999):06d}",
    "unix": lambda dice: f"{dice.clock_s:.6f}",
    "step": lambda dice: str(dice.step),
}
_PLACE = re.compile(f"@({'|'.join(_MAKERS)})")
