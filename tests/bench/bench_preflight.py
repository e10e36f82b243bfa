"""Commands and checks on many nodes: ftrun's own SSH against `xargs -P` around `ssh`, and a step of checks against a bare one. (I/O)

How it thinks. Both reach the same sshds of one sandbox, with the same keys and the same number at a time, in turns. The login, the shell and the checks
themselves cost the same for both, and on one machine most of the time; what is left of the ratio is the client's. So the client's own processor time is
told, too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ftrun.hooks.ssh.pool import ANSWERED, NodePool
from ftrun.supervisor.store import node_tools
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import FTRUN, Stand, stand, until

__all__ = ["measure"]

AT_ONCE = 32
TURNS = 4
AIM_SSH = 1.0
AIM_PREFLIGHT = 1.2
LIMIT_S = 600.0
MANY = 32  # nodes, on one machine: one turn is long enough


def measure(nodes: int, connections: int) -> list[Figure]:
    """`connections` SSH connections to `nodes` nodes, and the fast checks of all nodes, over SSH and inside a job."""
    with stand(nodes=nodes, ssh=True) as here:
        return [_probes(here, connections), *_checks(here)]


def _probes(here: Stand, connections: int) -> Figure:
    config, names = _aliases(here, connections // TURNS)
    ours, rival = _Taken(), _Taken()
    probes = NodePool(str(config), at_once=AT_ONCE, connect_s=60.0)

    def by_ftrun() -> None:
        answers = probes.run(names, "true").values()
        wrong = [answer.why for answer in answers if answer.state != ANSWERED or answer.exit_code]
        if wrong:
            raise RuntimeError(f"{len(wrong)} connections failed: {wrong[0]}")

    def by_ssh() -> None:
        _looped(["ssh", "-F", str(config), "{}", "true"], names)

    for _ in range(TURNS):
        ours.of(by_ftrun)
        rival.of(by_ssh)
    per_s = round(len(names) * TURNS / sum(ours.wall_s))
    return Figure(
        name=f"{len(names) * TURNS} SSH connections, {AT_ONCE} at a time, to {len(here.box.node_names)} nodes",
        unit="s",
        ours=percentiles(ours.wall_s),
        rival_name=f"xargs -P {AT_ONCE} ssh",
        rival=percentiles(rival.wall_s),
        value=ratio(ours.wall_s, rival.wall_s),
        value_name="ratio of medians (turns of a quarter)",
        aim=f"<= {AIM_SSH:g}",
        held=ratio(ours.wall_s, rival.wall_s) <= AIM_SSH,
        parts={
            "client's processor, ftrun": percentiles(ours.cpu_s),
            "client's processor, ssh": percentiles(rival.cpu_s),
        },
        notes=(f"{per_s} connections a second by ftrun; the sshds and login shells run on the same machine",),
    )


class _Taken:
    """Wall and processor seconds of turns, this process and its children together."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def of(self, turn: Callable[[], object]) -> None:
        """One more turn."""
        wall, cpu = time.monotonic(), _cpu_s()
        turn()
        self.wall_s.append(time.monotonic() - wall)
        self.cpu_s.append(_cpu_s() - cpu)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _aliases(here: Stand, number: int) -> tuple[Path, list[str]]:
    """A client configuration with many names for each node, so that one run can visit it often."""
    assert here.box.ssh_config
    text = here.box.ssh_config.read_text()
    nodes = here.box.node_names
    for node in nodes:
        text = text.replace(f"Host {node}\n", f"Host {node} {node}-*\n")
    path = here.folder / "ssh-config"
    path.write_text(text)
    return path, [f"{nodes[i % len(nodes)]}-{i}" for i in range(number)]


def _looped(command: Sequence[str], names: Sequence[str], env: dict[str, str] | None = None) -> None:
    subprocess.run(
        ["xargs", "-P", str(AT_ONCE), "-I{}", *command],
        input="\n".join(names),
        env=env,
        text=True,
        check=False,  # a check that finds something ends with 1
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT_S,
    )


def _checks(here: Stand) -> list[Figure]:
    packed = node_tools.install_node_tools(str(here.home))
    nodes = here.box.node_names
    check = f"{sys.executable} -IS {packed} check --json"
    listed = f"n[0-{len(nodes) - 1}]"
    config = str(here.box.ssh_config)
    ours, rival = _Taken(), _Taken()
    turns = 1 if len(nodes) >= MANY else 2
    for _ in range(turns):
        ours.of(
            lambda: _ended([FTRUN, "preflight", "--json", "--ssh-config", config, "--nodelist", listed], here)
        )
        rival.of(lambda: _looped(["ssh", "-F", config, "{}", check], nodes))
    over_ssh = _figure(
        f"preflight of {len(nodes)} nodes over SSH",
        ours.wall_s,
        f"xargs -P {AT_ONCE} ssh check",
        rival.wall_s,
    )
    mine, theirs = _in_a_job(here, check, turns)
    return [
        over_ssh,
        _figure(f"preflight of {len(nodes)} nodes inside a job", mine, "bare srun check", theirs),
    ]


def _figure(name: str, ours: Sequence[float], rival_name: str, rival: Sequence[float]) -> Figure:
    value = ratio(ours, rival)
    return Figure(
        name=name,
        unit="s",
        ours=percentiles(ours),
        rival_name=rival_name,
        rival=percentiles(rival),
        value=value,
        value_name="ratio of medians",
        aim=f"<= {AIM_PREFLIGHT:g}",
        held=value <= AIM_PREFLIGHT,
        notes=(f"{os.cpu_count()} cores for all nodes: nearly all of it is the checks themselves",),
    )


def _ended(command: Sequence[str], here: Stand) -> None:
    subprocess.run(
        command, env=here.env, cwd=here.work, check=False, stdout=subprocess.DEVNULL, timeout=LIMIT_S
    )


def _in_a_job(here: Stand, check: str, number: int) -> tuple[list[float], list[float]]:
    """Seconds of each, so many turns, as the job itself measures them."""
    script = here.work / "both.sh"
    turn = (
        f"a=$(date +%s.%N); {FTRUN} preflight --json >/dev/null; b=$(date +%s.%N)\n"
        f"srun --overlap {check} >/dev/null 2>&1; c=$(date +%s.%N); echo $a $b $c >>turns\n"
    )
    script.write_text(f"#!/bin/bash\n{turn * number}")
    here.sbatch(f"--nodes={len(here.box.node_names)}", "--output=/dev/null", str(script))
    turns = here.work / "turns"
    until(lambda: turns.exists() and len(turns.read_text().splitlines()) == number, LIMIT_S)
    stamps = [[float(word) for word in line.split()] for line in turns.read_text().splitlines()]
    return [b - a for a, b, _ in stamps], [c - b for _, b, c in stamps]
