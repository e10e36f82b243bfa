"""What the caller tells the tests by FTRUN_* variables, as FTRUN_PROOF_PYTHON. (I/O)

`hide` takes them all out of the environment before the first test: what tests start must behave the same whatever the caller has set for an
ftrun of his own, and must not inherit what is meant for the tests. The workers of pytest-xdist are children: they find the values where `hide`
has put them.
"""

from __future__ import annotations

import os

__all__ = ["hide", "told"]

HIDDEN = "TESTS_"  # stands before the name


def hide() -> None:
    """Rename each FTRUN_* variable of this process."""
    for name in [name for name in os.environ if name.startswith("FTRUN_")]:
        os.environ[HIDDEN + name] = os.environ.pop(name)


def told(name: str, default: str = "") -> str:
    """The caller's value of a variable, hidden or not; the default where it is absent or empty."""
    return os.environ.get(HIDDEN + name) or os.environ.get(name) or default
