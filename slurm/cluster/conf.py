"""The texts of slurm.conf, gres.conf and cgroup.conf of a Slurm that ftrun brings up: of sandboxes and of clusters. (pure)

Facts the texts rest on (seen on Slurm 22.05 to 26.05):
- CgroupPlugin=disabled exists in newer releases only and kills a 22.05 slurmd, which is content with an
  explicit cgroup/v1 as long as no plugin asks for a controller;
- switch/none is the default everywhere and is no longer accepted by name in newer releases;
- a GRES backed by a character device is counted and numbered, one backed by a plain file is only counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftrun.slurm.client.releases import since

FORBIDDEN_IN_PATHS = " \t\n#%,=\"'\\"
"""Characters that slurm.conf cannot hold in a path."""


def common_settings(cluster: str, user: str, munge_socket: str) -> dict[str, str]:
    """The settings of slurm.conf that hold for a Slurm without root, accounting and cgroups, whatever its hosts are."""
    return {
        "ClusterName": cluster,
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={munge_socket}",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        # No forwarding: a healthy node whose answer had to come through a dead one is believed dead too.
        "TreeWidth": "65533",
        "MinJobAge": "300",
        "OverTimeLimit": "0",
        "InactiveLimit": "0",
    }


def slurm_conf_text(
    settings: Mapping[str, str], nodes: Iterable[Mapping[str, str]], more_lines: Iterable[str]
) -> str:
    """The text of slurm.conf: settings, a line for each node, then lines of partitions and their like."""
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [" ".join(f"{key}={value}" for key, value in node.items()) for node in nodes]
    return "\n".join([*lines, *more_lines]) + "\n"


def gres_conf_text(files: Mapping[str, str]) -> str:
    """The text of gres.conf: name of each GRES -> its File= expression. Empty without any."""
    lines = [f"Name={name} File={expression}" for name, expression in files.items()]
    return "\n".join(["AutoDetect=off", *lines]) + "\n" if lines else ""


def cgroup_conf_text(version: tuple[int, int]) -> str:
    """The text of cgroup.conf for a release: no release may look for cgroups that it cannot have."""
    return (
        "CgroupPlugin=disabled\n" if since("cgroup-plugin-disabled", version) else "CgroupPlugin=cgroup/v1\n"
    )
