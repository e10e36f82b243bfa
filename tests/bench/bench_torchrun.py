"""A training on plain hosts under the same faults, at the same time: `ftrun sbatch` on `ftrun cluster up`, and torchrun in a loop on each host. (I/O)

The rival is treated well: its rendezvous store is on a host that is never hurt, each host starts its torchrun again the moment it is back, and it goes on
with two of three hosts. Both sides run the same program (`torch_rank.py`) on the same hosts; each fault hits both. As root, with a Python that has torch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.figures import Figure
from tests.cluster.hosts import ROOT, Hosts, wait
from tests.soak.goodput import usual_step_s

PYTHON = Path(os.environ.get("FTRUN_PROOF_PYTHON", ROOT / ".tools/proofs/bin/python"))
PROGRAM = Path(__file__).parent / "torch_rank.py"
WORKERS = ("h2", "h3", "h4")
KINDS = ("a rank is killed", "a host dies and is back after 20 s", "a rank freezes")
OFF_S, STEP_S, BEGIN_S = 20.0, 0.3, 240.0
TORCHRUN = """\
while :; do
    PYTHONPATH={root}/.ci/typing {python} -m torch.distributed.run --nnodes=2:3 --nproc-per-node=1 --max-restarts=1000 --rdzv-backend=c10d --rdzv-id=bench \\
        --rdzv-endpoint=h1:29400 --rdzv-conf=is_host=false,last_call_timeout=10 {program} {folder} {step_s} >>{folder}/log.$(hostname) 2>&1
    sleep 2
done
"""
STORE = "import time; from torch.distributed import TCPStore; s = TCPStore('h1', 29400, None, True, wait_for_workers=False); time.sleep(1e6)"
JOB = """\
#!/bin/sh
#SBATCH -N3 -x h1 --ntasks-per-node=1 -o {folder}/log
#FTRUN --nodes=2-3
#FTRUN --checkpoint={folder}/step-*.pt
PYTHONPATH={root}/.ci/typing srun {python} {program} {folder} {step_s}
"""


class Side:
    """What one side trained: a folder that all hosts see, with the steps and the pid of each host's rank."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self.name, self._hosts = name, hosts
        self.folder = f"{hosts.home}/{name}"
        self._seen = hosts.folder / "home" / hosts.user / name
        hosts.run("h1", ["mkdir", self.folder])

    def text(self, template: str) -> str:
        """A script of it."""
        return template.format(python=PYTHON, program=PROGRAM, folder=self.folder, step_s=STEP_S, root=ROOT)

    def steps(self) -> list[dict[str, float]]:
        """The steps that were trained, in order."""
        path = self._seen / "steps.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def signal(self, host: str, number: signal.Signals) -> None:
        """Send a signal to the rank on a host."""
        path = self._seen / f"pid.{host}"
        if path.exists():
            self._hosts.run(host, ["kill", f"-{int(number)}", path.read_text()], user="root")

    def useful_s(self, began_s: float, ended_s: float, step_s: float) -> float:
        """The seconds that went into new steps; one on two of three hosts counts two thirds."""
        shares = {
            one["step"]: one["ranks"] / len(WORKERS)
            for one in self.steps()
            if began_s <= one["at"] <= ended_s
        }
        before = max((one["step"] for one in self.steps() if one["at"] < began_s), default=0)
        return sum(share for step, share in shares.items() if step > before) * step_s


def measure(length_s: float, every_s: float) -> list[Figure]:
    """Both sides for so long, with a fault every so many seconds."""
    if not PYTHON.exists():
        print(
            f"torchrun: no {PYTHON}: `make proofs` makes it, or FTRUN_PROOF_PYTHON names a Python that has torch"
        )
        return []
    folder = Path(tempfile.mkdtemp(prefix="ftrun-bench-"))
    folder.chmod(0o755)
    hosts = Hosts(folder, 1 + len(WORKERS), cron=True)
    loops: list[subprocess.Popen[str]] = []
    try:
        hosts.up()
        ours, rival = Side(hosts, "ftrun"), Side(hosts, "torchrun")

        def start_rival(host: str) -> None:
            loops.append(hosts.start(host, ["sh", "-c", rival.text(TORCHRUN)]))

        loops.append(hosts.start("h1", [str(PYTHON), "-c", STORE]))
        _start_ours(hosts, ours)
        for host in WORKERS:
            start_rival(host)
        wait(lambda: bool(ours.steps() and rival.steps()), BEGIN_S)
        began_s = time.time()
        struck = _hurt(hosts, (ours, rival), start_rival, length_s, every_s)
        ended_s = time.time()
        step_s = usual_step_s([side.steps() for side in (ours, rival)])
        useful = [
            100 * side.useful_s(began_s, ended_s, step_s) / (ended_s - began_s) for side in (ours, rival)
        ]
        made = [len([one for one in side.steps() if one["at"] >= began_s]) for side in (ours, rival)]
        if keep := os.environ.get("FTRUN_BENCH_KEEP"):
            shutil.copytree(hosts.folder / "home", keep, symlinks=True, dirs_exist_ok=True)
    finally:
        hosts.down()
        for one in loops:
            one.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
    return [
        Figure(
            name=f"useful part of {length_s / 60:g} minutes on {len(WORKERS)} hosts with {len(struck)} faults, one every {every_s:g} s",
            unit="%",
            ours={"useful": round(useful[0], 1), "steps": made[0]},
            rival_name="torchrun, elastic, in a loop",
            rival={"useful": round(useful[1], 1), "steps": made[1]},
            value=round(useful[0] / useful[1], 2) if useful[1] else float("inf"),
            value_name="times as much",
            notes=(
                f"faults: {'; '.join(struck)}",
                f"a step takes {step_s:.2f} s; load {os.getloadavg()[1]:.0f}",
            ),
        )
    ]


def _start_ours(hosts: Hosts, side: Side) -> None:
    (hosts.folder / "home" / hosts.user / "job.sh").write_text(side.text(JOB))
    for words in (("cluster", "up", "h[1-4]"), ("sbatch", "job.sh")):
        done = hosts.ftrun("h1", *words)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())


def _hurt(
    hosts: Hosts, sides: tuple[Side, ...], start_rival: Callable[[str], None], length_s: float, every_s: float
) -> list[str]:
    """Strike until the time is over; what was done."""
    until_s = time.monotonic() + length_s
    struck: list[str] = []
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, every_s if struck else every_s / 2))
        if until_s - time.monotonic() < every_s / 2:
            time.sleep(max(0.0, until_s - time.monotonic()))
            return struck
        kind, host = KINDS[len(struck) % len(KINDS)], WORKERS[(len(struck) + len(struck) // 3 + 1) % 3]
        struck.append(f"{kind} ({host})")
        if kind == KINDS[1]:
            hosts.die(host)
            time.sleep(OFF_S)
            hosts.boot(host)
            start_rival(host)
        else:
            for side in sides:
                side.signal(host, signal.SIGKILL if kind == KINDS[0] else signal.SIGSTOP)
    return struck
