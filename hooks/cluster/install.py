"""Slurm and munge from the packages of this host's own distribution, by root or `sudo -n`; none of their services is started. (I/O)"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any

from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.survey import search_path, slurm

INSTALL_S = 900.0
APT = """\
set -e
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
grep -qs 'of ftrun cluster' $policy && rm -f $policy
if [ ! -e $policy ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\\n# of ftrun cluster: starts no service while it installs Slurm\\nexit 101\\n' >$policy
    chmod 755 $policy
fi
apt-get -q update
offered=$(apt-cache policy slurmd | sed -n 's/^ *Candidate: //p')
dpkg --compare-versions "${offered:-0}" ge {least} || { echo "its packages have Slurm ${offered:-none}" >&2; exit 1; }
apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=60 install munge slurmctld slurmd slurm-client
[ ! -d /run/systemd/system ] || systemctl --quiet disable munge slurmctld slurmd || true
"""
DNF = """\
set -e
offered=$(dnf -q repoquery --latest-limit 1 --qf '%{version}' slurm-slurmd | tail -n 1)
[ "$(printf '%s\\n' {least} "${offered:-0}" | sort -V | head -n 1)" = {least} ] || { echo "its packages have Slurm ${offered:-none}" >&2; exit 1; }
dnf -y -q install munge slurm slurm-slurmctld slurm-slurmd
"""
SCRIPTS = {"apt-get": APT, "dnf": DNF}


def install(step: dict[str, Any]) -> dict[str, Any]:
    """Install Slurm and munge, unless they are. `least`: the oldest release that is wanted. Returns {"version": of Slurm}. Raises HostError."""
    manager = next((name for name in SCRIPTS if shutil.which(name, path=search_path())), None)
    if manager is None:
        raise HostError(
            f"neither of {', '.join(SCRIPTS)} is here: install Slurm by hand, or leave --install out"
        )
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    script = SCRIPTS[manager].replace("{least}", step["least"])
    try:
        done = subprocess.run(
            [*root, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{manager}: {error}") from None
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or [
            f"exit code {done.returncode}"
        ]
        raise HostError(f"{manager}: {re.sub(r'^[EW]: ', '', words[-1])}")
    return {"version": slurm()["version"]}
