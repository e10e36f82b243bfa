"""The Slurm client of long-lived processes: Slurm's commands, or pyslurm where that is allowed. (I/O)

Commands of ftrun that ask Slurm once use Slurm's commands directly: they have the answer before a library
is loaded.

In a federation of clusters, Slurm offers a job to each cluster and starts it where it can first, but a run
lives on one cluster. `federation_warning` warns of that after a submission. Only jobs of a federation have ids above
26 bits (the upper bits are the number of the cluster), so elsewhere the check costs nothing.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping

from ftrun.slurm.client.cluster import Cluster
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.cluster import CommandCluster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftrun.slurm.native.cluster import ClientInUse, NativeCluster
    from ftrun.supervisor.config.sources import Config

PROBE_TIMEOUT_S = 15.0


def open_cluster(
    config: Config, env: Mapping[str, str], *, timeout_s: float, tell: Callable[[ClientInUse], None]
) -> Cluster:
    """The client that the settings want. `tell` is called when pyslurm or the commands take over."""
    commands = CommandCluster(env, timeout_s=timeout_s)
    return commands if _without(config) else _native(config, commands, env, timeout_s, tell)


def examine_client(config: Config, env: Mapping[str, str]) -> tuple[str, str, str]:
    """For `ftrun doctor`: state (ok, warn), what was found, how to mend it. Tries the library."""
    alone = _without(config)
    if alone:
        return "ok", f"by Slurm's commands: {alone}", ""
    commands = CommandCluster(env, timeout_s=PROBE_TIMEOUT_S)
    cluster = _native(config, commands, env, PROBE_TIMEOUT_S, lambda _: None)
    mend = "docs/pyslurm.md says how it is built; until then nothing is missing but speed. slurm-client=commands: not tried again"
    try:
        found = cluster.probe()
    except SlurmError as error:
        return "warn", f"pyslurm was not tried: {error.message}", "try again when Slurm answers"
    finally:
        cluster.close()
    if found.why:
        return "warn", f"by Slurm's commands, since pyslurm is of no use: {found.why}", mend
    return "ok", f"by {found.by}, in a process of its own", ""


def _without(config: Config) -> str:
    """Why pyslurm is not used; "" where it is worth a try. Does not load it."""
    if config.text("slurm-client") == "commands":
        return "slurm-client=commands"
    wanted = config.text("slurm-client") == "pyslurm" or config.text("pyslurm-python")
    return "" if wanted or importlib.util.find_spec("pyslurm") else "pyslurm is not installed here"


def _native(
    config: Config,
    commands: CommandCluster,
    env: Mapping[str, str],
    timeout_s: float,
    tell: Callable[[ClientInUse], None],
) -> NativeCluster:
    from ftrun.slurm.native.cluster import NativeCluster

    auto = config.text("slurm-client") == "auto"
    python = config.text("pyslurm-python")
    return NativeCluster(commands, env, timeout_s=timeout_s, python=python, auto=auto, tell=tell)


_LOCAL_ID_BITS = 26  # MAX_JOB_ID of slurm.h: higher bits are the origin of a federated job
_ASK_S = 10.0


def federation_warning(job: str, env: Mapping[str, str]) -> str:
    """A warning if this job may start on another cluster of the federation; "" if not, or unknown."""
    if not job.isdigit() or not int(job) >> _LOCAL_ID_BITS:
        return ""
    import subprocess

    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.process import reading_env, tool

    inner = reading_env(env)
    try:
        shown = subprocess.run(
            [tool("scontrol", inner), "show", "federation"], env=inner, capture_output=True, text=True, timeout=_ASK_S, check=False
        ).stdout  # fmt: skip
    except (OSError, SlurmError, subprocess.TimeoutExpired):
        return ""
    own, others = parse_federation(shown)
    if not others:
        return ""
    return (
        f"job {job} may be started on another cluster of its federation ({', '.join(others)}), where ftrun does not see it;"
        f" submit with -M {own} to keep a run here"
    )


def parse_federation(shown: str) -> tuple[str, list[str]]:
    """This cluster and the others of its federation, from `scontrol show federation`."""
    own = re.search(r"^Self:\s+([^:\s]+):", shown, re.MULTILINE)
    return own[1] if own else "", re.findall(r"^Sibling:\s+([^:\s]+):", shown, re.MULTILINE)
