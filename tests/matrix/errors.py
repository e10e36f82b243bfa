"""Slurm's own list of errors, by asking its library for the words of every number. (I/O)

    python -m tests.matrix.errors >tests/data/slurm-errors/RELEASE.txt     (in a root of that release)

A line for each number that has words of its own: the number, a blank, the words.
"""

from __future__ import annotations

import ctypes
import glob
from collections.abc import Iterator

__all__ = ["listed"]

LIBRARY = "/usr/lib/*/slurm-wlm/libslurmfull.so"
# slurm/slurm_errno.h: general ones from 1000, the controller's from 2000, jobs' and steps' behind, slurmd's from 4000, plugins' up to 9999.
NUMBERS = range(1000, 10_000)


def listed() -> Iterator[tuple[int, str]]:
    """(number, words) as the library of this machine tells them."""
    library = ctypes.CDLL(glob.glob(LIBRARY)[0])
    library.slurm_strerror.restype = ctypes.c_char_p
    for number in NUMBERS:
        words = (library.slurm_strerror(number) or b"").decode()
        if words and not words.startswith("Unknown"):
            yield number, words


def main() -> None:
    """Print them."""
    for number, words in listed():
        print(number, words)


if __name__ == "__main__":
    main()
