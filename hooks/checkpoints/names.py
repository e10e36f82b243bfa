"""What names of checkpoints and their files mean: a step, a temporary file, a note. (pure)

`step_of` and `is_temporary` have the same rules as hooks/bundle/batch.sh, which works without Python;
tests/unit/bundle/test_batch_sh.py compares them.
"""

from __future__ import annotations

import functools
import re
from typing import Optional

WORDS = ("step", "iter", "epoch")
BEHIND_WORD = re.compile(r"[a-z_=.-]*([0-9]+)")
LAST_NUMBER = re.compile(r"([0-9]+)(?![\s\S]*[0-9])")
TEMPORARY = re.compile(
    r"(\.tmp|\.temp|\.partial|\.incomplete|[-_]tmp|~|\.ftrun-manifest\.json|\.ftrun-complete)$|-tmp-|^tmp[-_]|^\.tmp"
)
NOTE = re.compile(r"\.(?:log|out|err|txt|jsonl|csv|lock)$|tfevents", re.IGNORECASE)
DIGITS_MAX = 18  # what a shell can compare


@functools.lru_cache(maxsize=4096)
def step_of(path: str) -> Optional[int]:
    """The number after step, iter or epoch in the base name, else its last number without the extension."""
    name = path.rstrip("/").rpartition("/")[2]
    for word in WORDS:
        _, found, rest = name.lower().rpartition(word)
        number = BEHIND_WORD.match(rest) if found else None
        if number:
            return _number(number[1])
    stem, dot, extension = name.rpartition(".")
    if dot and extension[:1].isascii() and extension[:1].isalpha() and re.search(r"[0-9]", stem):
        name = stem
    last = LAST_NUMBER.search(name)
    return _number(last[1]) if last else None


def is_temporary(path: str) -> bool:
    """Whether the base name is one of an unfinished file or folder."""
    return TEMPORARY.search(path.rstrip("/").rpartition("/")[2]) is not None


def is_note(name: str) -> bool:
    """Whether it is a file that is written into complete checkpoints: logs, curves, evaluation results."""
    return NOTE.search(name) is not None


def without_step(name: str, step: Optional[int]) -> str:
    """The name of a file in a checkpoint of this step, with `#` for the step."""
    return name if step is None else _number_of(step).sub("#", name)


def with_step(name: str, step: int, other: int, count: int = 0) -> str:
    """The name with `step` replaced by `other`, as many digits wide; `count`: how many times (0: all)."""
    return _number_of(step).sub(lambda digits: str(other).zfill(len(digits[0])), name, count=count)


def _number_of(step: int) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9])0*{step}(?![0-9])")


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[-DIGITS_MAX:] or "0")
