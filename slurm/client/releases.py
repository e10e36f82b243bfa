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

# Long name, and the short one where there is one: what all releases know. What only some know stands in the table of releases.
# Facts: the tables of src/common/slurm_opt.c of 22.05 to 26.05.
_ALWAYS_REQUIRED = """
account:A acctg-freq array:a batch bb bbf begin:b chdir:D cluster cluster-constraint clusters:M comment constraint:C
container context core-spec:S cores-per-socket cpu-freq cpus-per-gpu cpus-per-task:c deadline delay-boot dependency:d
distribution:m error:e exclude:x export export-file extra-node-info:B gid gpu-bind gpu-freq gpus:G gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint input:i job-name:J kill-on-invalid-dep licenses:L mail-type mail-user
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile:F nodelist:w nodes:N ntasks:n ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output:o partition:p prefer priority profile
qos:q reservation signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time:t time-min tmp uid
wait-all-nodes wckey wrap
"""
_ALWAYS_BARE = """
contiguous help:h hold:H ignore-pbs no-requeue overcommit:O oversubscribe:s parsable quiet:Q reboot spread-job test-only
usage use-min-nodes verbose:v version:V wait:W
"""
_ALWAYS_OPTIONAL = "exclusive get-user-env nice no-kill:k propagate requeue"
# Two names for one option: callers use one of them.
SAME_OPTION = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


def since(key: str, release: Release) -> bool:
    """Whether this difference applies to `release`."""
    return release >= SINCE[key]


def release_text(release: Release) -> str:
    """As Slurm writes it: 22.05."""
    return f"{release[0]}.{release[1]:02d}"


def _tables() -> tuple[dict[str, tuple[int, Release, Release | None]], dict[str, str]]:
    long: dict[str, tuple[int, Release, Release | None]] = {}
    short: dict[str, str] = {}
    for text, takes in ((_ALWAYS_REQUIRED, REQUIRED), (_ALWAYS_BARE, NONE), (_ALWAYS_OPTIONAL, OPTIONAL)):
        for entry in text.split():
            name, _, letter = entry.partition(":")
            long[name] = (takes, OLDEST, None)
            if letter:
                short[letter] = name
    for name, takes, first, last in OPTIONS:
        long[name] = (takes, first, last)
    return long, short


LONG, SHORT = _tables()


def plugin_options(help_text: str) -> dict[str, int]:
    """Options in the text of `sbatch --help` that the table lacks: SPANK plugins' and a newer Slurm's.
    Returns long name -> NONE, REQUIRED or OPTIONAL. The help writes `--name`, `--name=value`,
    `--name[=value]`.
    """
    found: dict[str, int] = {}
    for line in help_text.splitlines():
        words = line.split()
        for word in words[:2]:  # "-N, --nodes=N" or "--nodes=N"
            if not word.startswith("--") or len(word) < 3:
                continue
            name = word[2:].replace("[", "=").split("=", 1)[0].rstrip(",")
            if name not in LONG:
                found[name] = OPTIONAL if "[=" in word else REQUIRED if "=" in word else NONE
            break
    return found
