"""What the watch over nodes can see, here or on a node: for `ftrun doctor`. (I/O)"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ftrun.hooks import watch
from ftrun.hooks.ownership import RUNNER
from ftrun.supervisor import nodetools

__all__ = ["Sight", "here", "on_a_node", "sights"]

ANSWER_WITHIN_S = 60.0
LOG = "log"
KERNEL_LOG = "kernel log"
NODE_SIDE = 'for p in /usr/bin/python3 python3; do "$p" -IS -c "$@" && echo "${SLURMD_NODENAME:-a node}" && exit; done'


class Sight(NamedTuple):
    """One family of facts: whether anything of it can be seen, in words, and what would show more."""

    family: str
    seen: bool
    what: str
    mend: str = ""


def here() -> Mapping[str, list[str]]:
    """Family -> its checks that find something to look at on this machine."""
    return watch.visible()


def on_a_node(home: str, env: Mapping[str, str]) -> tuple[str, Mapping[str, list[str]]] | None:
    """The name of an idle node and what can be seen there, by one short srun; None where none answers."""
    words = ["srun", "--immediate=30", "-N1", "-n1", "--time=1", "--quiet", "/bin/sh", "-c", NODE_SIDE, "sh"]
    try:
        words += [RUNNER, nodetools.provide(home), "watch", "--visible"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ANSWER_WITHIN_S, env=dict(env), check=False
        )
        told, node = done.stdout.splitlines()[:2]
        found = json.loads(told)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return (node, found) if isinstance(found, dict) else None


def sights(found: Mapping[str, list[str]]) -> Iterator[Sight]:
    """What was found, family by family. (pure)"""
    for family, checks in found.items():
        names = ", ".join(name for name in checks if name != LOG)
        if family == KERNEL_LOG and LOG not in checks:
            mend = "kernel.dmesg_restrict=0, or users in the group systemd-journal: then Xids and machine checks are told by the minute"
            yield Sight(family, False, f"closed to users; without it: {names or 'nothing'}", mend)
        else:
            yield Sight(family, bool(names), names or "nothing of this kind here")
