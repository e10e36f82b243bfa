"""Differences between Slurm's releases: all of them, in one table. (pure)

ftrun supports several releases by requesting only what agrees in all of them and by parsing tolerantly. Where
that is not enough, it must know since which release something is as it is now. All such facts are here, with
the spellings of sbatch's options; code calls `since`. Differences that parsers merely tolerate are listed
too, as a checklist for a new release. `make test-slurm-matrix` runs the suites on each of TRIED.

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
# Options that `sbatch --help` of a release still lists although the program refuses them.
NAMED_ONLY: tuple[tuple[str, Release], ...] = (("power", (24, 11)), ("power", (26, 5)))


class Difference:
    """A difference between releases. `where`: who meets it; `asked`: whether code calls `since` for it."""

    __slots__ = ("after", "asked", "before", "first", "key", "where")

    def __init__(
        self, key: str, first: Release, before: str, after: str, where: str, *, asked: bool = False
    ) -> None:
        self.key = key
        self.first = first
        self.before = before
        self.after = after
        self.where = where
        self.asked = asked


# `first` is the first release of TRIED that showed it, or the exact one where Slurm's sources tell it.
DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "cgroup-plugin-disabled", (23, 11), "`CgroupPlugin=disabled` kills slurmd", "needed where no cgroup may be had",
        "slurm/sandbox/plan.py", asked=True,
    ),
    Difference(
        "hosts-by-name", (23, 2), "slurmctld answers an srun on the address that it called from",
        "by the name of its host, which must resolve", "slurm/sandbox/boot.py", asked=True,
    ),
    Difference(
        "switch-none", (24, 11), "`SwitchType=switch/none` may be written", "is refused by name",
        "slurm/sandbox/plan.py leaves it out",
    ),
    Difference(
        "json", (24, 11), "`--json` of squeue ignores filters, scontrol has none", "both have it, in another shape",
        "slurm/client/parse.py reads text alone",
    ),
    Difference(
        "drain-reason-stays", (24, 11), "a node that was resumed has no reason", "keeps that of the drain",
        "slurm/client/parse.py, parse_nodes",
    ),
    Difference(
        "credential-of-a-second-start", (24, 11), "a controller without memory starts a job twice",
        "slurmd refuses the second start: its credential was revoked", "supervisor/controller/exit_status.py",
    ),
    Difference(
        "mpi-none", (24, 11), "`MpiDefault` is shown as `none`", "as `(null)`", "docs/companions.md",
    ),
    Difference(
        "nodes-upper-end", (24, 11), "an update of NumNodes without an upper end leaves that as it was",
        "sets both ends", "slurm/commands/cluster.py, reshape, always gives both",
    ),
    Difference(
        "tasks-of-a-resized-job", (24, 11), "`SLURM_NTASKS` is made at submission",
        "at the start", "supervisor/policy/queue.py",
    ),
    Difference(
        "std-err-empty", (26, 5), "`StdErr` repeats `StdOut` where both are one file", "is empty", "slurm/client/parse.py, parse_details",
    ),
    Difference(
        "unlimited", (26, 5), "no time limit is shown as 365 days once a job runs", "as `UNLIMITED`", "slurm/client/parse.py, parse_seconds",
    ),
    Difference(
        "submit-line", (26, 5), "a job's record ends with its paths", "also has `SubmitLine`, unquoted",
        "slurm/client/parse.py takes the first of each key",
    ),
    Difference(
        "requeue-value",
        (26, 5),
        "`sbatch --requeue` takes no value",
        "may take one (`=expedite`)",
        "supervisor/submission/arguments.py refuses that: a job that fails is held for ever",
    ),
    Difference(
        "cgroup-name", (26, 5), "with cgroup version 2 a job's group is `job_<id>`",
        "it is the job's SLUID, unless `CgroupJobIdPaths=yes`", "hooks/runtime/job_cgroup.py reads both",
    ),
    Difference(
        "user-env-value",
        (26, 5),
        "`sbatch --get-user-env` may take a value",
        "takes none",
        "slurm/client/options.py passes either",
    ),
    Difference(
        "step-killed", (26, 5), "a step whose task was killed is `CANCELLED AT`", "with `DUE TO TASK FAILURE` whatever killed it",
        "supervisor/catalog, tests/drills",
    ),
)  # fmt: skip


def since(key: str, release: Release) -> bool:
    """Whether this difference applies to `release`. KeyError for an unknown key."""
    for one in DIFFERENCES:
        if one.key == key:
            return release >= one.first
    raise KeyError(key)


def release_text(release: Release) -> str:
    """As Slurm writes it: 22.05."""
    return f"{release[0]}.{release[1]:02d}"
