"""Starts a supervisor that outlives this process, where none is alive. (I/O)

`ftrun sbatch` goes through here, so this module imports next to nothing. A lease holder that is alive on
this machine is left alone. One on another host cannot be checked in a moment: then a challenger is started,
which watches the lease for a while and exits when the holder turns out to be alive.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sys

from ftrun.hooks.runtime.ownership import private_folders
from ftrun.supervisor.store import run_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Variables of one job or one submission, which a process that serves all runs must not inherit.
_DROPPED_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", "FTRUN_")
_KEPT = (
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "FTRUN_HOME",
    "FTRUN_SITE_CONFIG",
    "FTRUN_CRASH_AT",
    "FTRUN_CATALOG",
    "FTRUN_SLURM_CLIENT",
    "FTRUN_PYSLURM_PYTHON",
    "FTRUN_SECOND_OPINION_KEY",
)


def clean_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that serves all runs: nothing of one job or one submission."""
    return {k: v for k, v in env.items() if k in _KEPT or not k.startswith(_DROPPED_PREFIXES)}


def holder_alive_here(home: str) -> bool:
    """Whether the present holder of the lease is a living process of this machine."""
    folder = os.path.join(home, "lease")
    try:
        epochs = [name for name in os.listdir(folder) if name.startswith("epoch-") and name[6:].isdigit()]
    except OSError:
        return False
    if not epochs:
        return False
    newest = max(epochs, key=lambda name: int(name[6:]))
    try:
        with open(os.path.join(folder, "counter-" + newest[6:])) as stream:
            if stream.read() == "released":
                return False
        writer = os.readlink(os.path.join(folder, newest))
    except OSError:
        return False
    return run_dir.same_machine(writer) and not run_dir.provably_dead(writer)


def dies_at_logout() -> bool:
    """Whether logind ends all processes of a user at logout (KillUserProcesses=yes), ours among them."""
    if not os.path.isdir("/run/systemd/system"):
        return False
    for path in ("/etc/systemd/logind.conf", *glob.glob("/etc/systemd/logind.conf.d/*.conf")):
        with contextlib.suppress(OSError), open(path) as stream:
            if any(line.replace(" ", "").strip() == "KillUserProcesses=yes" for line in stream):
                return True
    return False


def ensure_supervisor(home: str, env: Mapping[str, str]) -> int:
    """Start a detached supervisor unless one is alive here. Returns its pid, or 0. Raises OSError."""
    if holder_alive_here(home):
        return 0
    if dies_at_logout():
        print(
            "ftrun: nothing will watch after logout, logind ends all processes; see: ftrun doctor --units",
            file=sys.stderr,
        )
    if not os.path.isdir(home):
        private_folders(home)
    fit = clean_env(env) | {"FTRUN_HOME": home}
    log = os.open(os.path.join(home, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        # -P: a re.py or json.py in the folder of the submission is the user's, not ours.
        argv = [sys.executable, "-P", "-m", "ftrun.supervisor", "supervise", "--detached"]
        return os.posix_spawn(sys.executable, argv, fit, file_actions=actions, setsid=True)
    finally:
        os.close(log)
        os.close(null)
