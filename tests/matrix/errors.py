"""Slurm's own list of errors, by asking its library for the words of every number. (I/O)

    python -m tests.matrix.errors >tests/data/slurm-errors/RELEASE.txt     (in a root of that release)

A line for each number that has words of its own: the number, a blank, the words.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["listed", "slurm_folder"]

# slurm/slurm_errno.h: general ones from 1000, the controller's from 2000, jobs' and steps' behind, slurmd's from 4000, plugins' up to 9999.
NUMBERS = range(1000, 10_000)


def slurm_folder() -> Path:
    """Where the Slurm of PATH is installed: the folder with its bin, lib and share."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise SystemExit("no sbatch in PATH")
    return Path(sbatch).resolve().parents[1]


def _library() -> Path:
    """Debian has it in lib/ARCHITECTURE/slurm-wlm, an installation from source in lib/slurm."""
    for pattern in ("lib*/slurm*/libslurmfull.so", "lib/*/slurm*/libslurmfull.so"):
        for found in slurm_folder().glob(pattern):
            return found
    raise SystemExit(f"no libslurmfull.so below {slurm_folder()}")


def listed() -> Iterator[tuple[int, str]]:
    """(number, words) as the library of this machine tells them."""
    library = ctypes.CDLL(str(_library()))
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
