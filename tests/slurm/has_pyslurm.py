"""Where pyslurm is, for the tests that ask it: FTRUN_PYSLURM_PYTHON names the interpreter that has it, else this one is tried. (I/O)"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

import pytest

from ftrun.slurm.native.rows import unfit
from tests.told import told

__all__ = ["PYTHON", "marks", "why_not"]

PYTHON = told("FTRUN_PYSLURM_PYTHON", sys.executable)


@cache
def why_not() -> str:
    """Why pyslurm cannot be tried here; "" where it can."""
    code = "import importlib.metadata as m; print(m.version('pyslurm'))"
    try:
        asked = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
        slurm = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=False).stdout
    except OSError as wrong:
        return f"pyslurm was not tried: {wrong.strerror}: {wrong.filename}"
    if asked.returncode:
        return (
            f"pyslurm was not tried: {PYTHON} has none (FTRUN_PYSLURM_PYTHON names another; docs/pyslurm.md)"
        )
    major, minor = map(int, re.findall(r"\d+", slurm)[:2])
    wrong_release = unfit(asked.stdout.strip(), (major, minor, 0), auto=True)
    return f"pyslurm was not tried: {wrong_release}" if wrong_release else ""


def marks() -> list[pytest.MarkDecorator]:
    """For a test that asks pyslurm. Not `skipif`: of plain skips a report makes one line."""
    return [pytest.mark.slurm, *([pytest.mark.skip(reason=why_not())] if why_not() else [])]
