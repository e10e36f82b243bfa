"""Which cluster a command uses where the user named none: that of this host, if no other Slurm is configured. (I/O)

A host of a cluster has its claim, a symbolic link that names the cluster and its folder. So this needs no settings, works on every host
of the cluster, and costs one readlink. Every `ftrun sbatch` passes here, so the module imports next to nothing.
"""

from __future__ import annotations

import os
import sys

from ftrun.supervisor.model.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftrun.slurm.cluster.plan import Plan

CONFIGURED = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
)
"""Where an administrator puts slurm.conf, or slurmd what it got from the controller."""
VARIABLES = ("SLURM_CONF", "PATH", "FTRUN_SITE_CONFIG")
"""The variables that make a command a client of a cluster."""
NONE = "none"


def changes(env: Mapping[str, str], wanted: str = "") -> dict[str, str]:
    """The variables that make a command a client of the cluster `wanted` (default: FTRUN_CLUSTER); {} where it uses another Slurm.

    Without a wish it is the cluster of this host, unless the environment or the machine configures another Slurm; then one line on stderr
    says so, once for each cluster. Raises UserError where the cluster that is wanted is not here.
    """
    name = wanted or env.get("FTRUN_CLUSTER", "")
    if _has_other_slurm(env, name):
        return {}
    own_name, folder = _of_this_host()
    if name and own_name != name:
        raise UserError(
            f"this machine is no host of a cluster {name!r} of yours: `ftrun cluster run --name {name} -- ftrun ...` goes to one"
        )
    if not folder:
        return {}
    if not name:
        line = f"no other Slurm is configured here: using your cluster {own_name} (FTRUN_CLUSTER=none: not)"
        say_once(f"{folder}/run/said.{os.geteuid()}", line)
    return variables(folder, env, has_settings=None)


def elsewhere(env: Mapping[str, str], wanted: str = "") -> str:
    """The user's cluster of which this machine is no host, and on whose first host a command therefore runs; "" for none.

    Without a wish only where there is no sbatch: a laptop that brought up one cluster.
    """
    name = wanted or env.get("FTRUN_CLUSTER", "")
    if _has_other_slurm(env, name):
        return ""
    if not name:
        from shutil import which

        if which("sbatch", path=env.get("PATH", os.defpath)):
            return ""
    from ftrun.supervisor.cluster.state import known

    own_name, _ = _of_this_host()
    if own_name and name in ("", own_name):
        return ""
    names = [state.name for state in known(env)]
    return name if name in names else names[0] if not name and len(names) == 1 else ""


def _of_this_host() -> tuple[str, str]:
    """Name and folder of the cluster that this user can use on this host: his own, or root's; two "" for none.

    Every user of the host can make a claim: another's counts as none.
    """
    from ftrun.hooks.cluster import claim  # not where another Slurm is used
    from ftrun.hooks.runtime.ownership import why_untrusted

    held = claim.held()
    folder = str(held.get("folder", ""))
    if not folder or held.get("uid") not in (os.geteuid(), 0) or why_untrusted(f"{folder}/etc/slurm.conf"):
        return "", ""
    return str(held["name"]), folder


def wish_in(arguments: Sequence[str]) -> str:
    """The cluster that `--ft-cluster` names among the arguments of sbatch; "" for none."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if word.startswith("--ft-cluster="):
            return word.partition("=")[2]
        if word == "--ft-cluster":
            return following
    return ""


def _has_other_slurm(env: Mapping[str, str], name: str) -> bool:
    """Whether a command stands in a job, or no cluster is named (or none is wanted) and another Slurm is configured."""
    if name == NONE or "SLURM_JOB_ID" in env:
        return True
    return not name and (
        any(env.get(key) for key in ("SLURM_CONF", "SLURM_CONF_SERVER"))
        or any(map(os.path.exists, CONFIGURED))
    )


def variables(folder: str, env: Mapping[str, str], *, has_settings: bool | None) -> dict[str, str]:
    """The variables of a client of the cluster in `folder`, whose other variables are `env`: Slurm's commands are in its bin/.

    `has_settings`: whether the cluster has some there (None: this host shows it).
    """
    from ftrun.slurm.cluster.plan import SETTINGS  # not where another Slurm is used

    if has_settings is None:
        has_settings = os.path.exists(f"{folder}/{SETTINGS}")
    path = env.get("PATH", os.defpath)
    others = [one for one in path.split(os.pathsep) if one != f"{folder}/bin"] if path else []
    found = {"SLURM_CONF": f"{folder}/etc/slurm.conf", "PATH": os.pathsep.join([f"{folder}/bin", *others])}
    if has_settings and not env.get("FTRUN_SITE_CONFIG"):
        found["FTRUN_SITE_CONFIG"] = f"{folder}/{SETTINGS}"
    return found


def is_here(plan: Plan) -> bool:
    """Whether this machine is a host of the cluster."""
    from ftrun.hooks.cluster import claim

    held = claim.held()
    return held.get("token") == plan.token and held.get("uid") == plan.uid


def say_once(path: str, line: str) -> None:
    """Print a line on stderr, and make the file `path`; nothing where that is there, or cannot be made."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return
    print(f"ftrun: {line}", file=sys.stderr)
