"""A private Slurm on plain hosts: from `ftrun cluster up` until the first srun over all of them is over. (I/O)

The hosts are network namespaces of this machine with an sshd each, so all their processes share its cores. The rival only calls: a login on
each host that does nothing, sixteen at once. As root.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.figures import Figure, percentiles, ratio
from tests.cluster.hosts import Hosts

LIMIT_S = 600.0
HOSTS = 16
AT_ONCE = 16


def measure(count: int, rounds: int) -> list[Figure]:
    """`rounds` of each, in turns, on `count` hosts."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-bench-"))
    folder.chmod(0o755)
    hosts = Hosts(folder, count)
    ups: list[float] = []
    sruns: list[float] = []
    again: list[float] = []
    downs: list[float] = []
    calls: list[float] = []
    try:
        hosts.up()
        for _ in range(rounds):
            calls.append(_took_s(lambda: _call_all(hosts)))
            ups.append(_took_s(lambda: _ftrun(hosts, "up", f"h[1-{count}]")))
            sruns.append(_took_s(lambda: _ftrun(hosts, "run", "--", "srun", f"-N{count}", "hostname")))
            again.append(_took_s(lambda: _ftrun(hosts, "up", f"h[1-{count}]")))
            downs.append(_took_s(lambda: _ftrun(hosts, "down")))
    finally:
        hosts.down()
        shutil.rmtree(folder, ignore_errors=True)
    both = [up + srun for up, srun in zip(ups, sruns, strict=True)]
    return [
        Figure(
            name=f"a cluster of {count} hosts, from `up` until `srun -N{count} hostname` is over",
            unit="s",
            ours=percentiles(both, digits=2),
            rival_name=f"xargs -P {AT_ONCE} ssh HOST true",
            rival=percentiles(calls, digits=2),
            value=ratio(both, calls),
            value_name="ratio of medians",
            parts={
                "up": percentiles(ups, digits=2),
                "srun": percentiles(sruns, digits=2),
                "up again": percentiles(again, digits=2),
                "down": percentiles(downs, digits=2),
            },
            notes=("Slurm is installed on the hosts: nothing is copied but configuration",),
        )
    ]


def _call_all(hosts: Hosts) -> None:
    names = "\\n".join(hosts.names)
    command = f"printf '{names}\\n' | xargs -P {AT_ONCE} -I HOST ssh -o BatchMode=yes HOST true"
    _checked(hosts.run("h1", ["sh", "-c", command], timeout_s=LIMIT_S))


def _ftrun(hosts: Hosts, *arguments: str) -> None:
    _checked(hosts.ftrun("h1", "cluster", *arguments, timeout_s=LIMIT_S))


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or done.stdout.strip())


def _took_s(act: Callable[[], None]) -> float:
    began_s = time.monotonic()
    act()
    return time.monotonic() - began_s
