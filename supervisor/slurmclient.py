"""How Slurm is asked: by its commands, or by pyslurm where the settings and the site allow it. (I/O)

Long lives only: what asks once, as most commands of ftrun do, has its answer from Slurm's commands before a library is loaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import Cluster
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.cluster import CommandCluster

if TYPE_CHECKING:
    from ftrun.slurm.native.cluster import NativeCluster, Speaking
    from ftrun.supervisor.config import Config

__all__ = ["examine", "open_cluster"]

PROBE_TIMEOUT_S = 15.0


def open_cluster(
    config: Config, env: Mapping[str, str], *, timeout_s: float, tell: Callable[[Speaking], None]
) -> Cluster:
    """The cluster as the settings want it asked; `tell` is called whenever who is asked changes, and never where that is only the commands."""
    commands = CommandCluster(env, timeout_s=timeout_s)
    return commands if _without(config) else _native(config, commands, env, timeout_s, tell)


def examine(config: Config, env: Mapping[str, str]) -> tuple[str, str, str]:
    """For `ftrun doctor`: state (ok, warn), what is so, how to mend it. A library is really asked."""
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
    """Why pyslurm is out of the question; "" where it is worth a try. Nothing of it is loaded for that."""
    if config.text("slurm-client") == "commands":
        return "slurm-client=commands"
    wanted = config.text("slurm-client") == "pyslurm" or config.text("pyslurm-python")
    return "" if wanted or importlib.util.find_spec("pyslurm") else "pyslurm is not installed here"


def _native(
    config: Config,
    commands: CommandCluster,
    env: Mapping[str, str],
    timeout_s: float,
    tell: Callable[[Speaking], None],
) -> NativeCluster:
    from ftrun.slurm.native.cluster import NativeCluster

    auto = config.text("slurm-client") == "auto"
    python = config.text("pyslurm-python")
    return NativeCluster(commands, env, timeout_s=timeout_s, python=python, auto=auto, tell=tell)
