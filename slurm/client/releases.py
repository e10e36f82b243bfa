"""Differences between Slurm's releases that code must know, and the spellings of sbatch's options. (pure)

ftrun requests only what agrees in all releases and parses tolerantly; differences that parsers merely tolerate
are listed in docs/releases.md, as a checklist for a new release. `make test-slurm-matrix` runs the suites on
each of TRIED.

`ftrun sbatch` imports this module at startup, so it imports nothing.
"""

from __future__ import annotations

Release = tuple[int, int]
"""Slurm's year and month: (22, 5) is 22.05."""

TRIED: tuple[tuple[Release, str], ...] = (((22, 5), "bookworm"), ((24, 11), "trixie"), ((26, 5), "forky"))
"""The releases on which the suites run, and the Debian suite that has them."""
OLDEST: Release = TRIED[0][0]

NONE, REQUIRED, OPTIONAL = 0, 1, 2

# Long name, whether a value follows, the first and the last release that knows it (None = up to the newest).
# Facts: the tables of src/common/slurm_opt.c of 22.05 to 26.05; those of TRIED also from `sbatch --help` and the manual page.
OPTIONS: tuple[tuple[str, int, Release, Release | None], ...] = (
    ("power", REQUIRED, OLDEST, (23, 11)),
    ("autocomplete", REQUIRED, (23, 2), None),
    ("container-id", REQUIRED, (23, 2), None),
    ("extra", REQUIRED, (23, 2), None),
    ("tres-per-task", REQUIRED, (23, 2), None),
    ("tres-bind", REQUIRED, (23, 11), None),
    ("resv-ports", OPTIONAL, (24, 5), None),
    ("segment", REQUIRED, (24, 5), None),
    ("stepmgr", NONE, (24, 5), None),
    ("oom-kill-step", OPTIONAL, (24, 11), None),
    ("external", NONE, (25, 5), None),
    ("consolidate-segments", NONE, (25, 11), None),
    ("resources", REQUIRED, (25, 11), None),
    ("spread-segments", NONE, (25, 11), None),
    ("container-type", REQUIRED, (26, 5), None),
    ("mem-update", REQUIRED, (26, 5), None),
)
SINCE: dict[str, Release] = {
    "cgroup-plugin-disabled": (23, 11),  # needed where no cgroup may be had; before, it kills slurmd
    "topology-block": (24, 5),  # blocks, such as those of NVL72, beside trees of switches
    "step-files": (24, 11),  # records of steps tell their output files
    "hosts-by-name": (23, 2),  # slurmctld answers an srun by the name of its host, which must resolve
}
"""What code asks for, by the release that began it. docs/releases.md has all known differences."""


def since(key: str, release: Release) -> bool:
    """Whether this difference applies to `release`."""
    return release >= SINCE[key]


def release_text(release: Release) -> str:
    """As Slurm writes it: 22.05."""
    return f"{release[0]}.{release[1]:02d}"
