"""Submit ten ordinary scripts without any setting, and write what their owner reads: python -m tests.first_days.

A real Slurm of its own; a node of one training dies, and one job is cancelled by its owner. Of each script one
page: the script, and what `ftrun logs`, `status`, `show` and `explain` print. Exit 1 where one ends otherwise than it
should, or is said to be of another class. (I/O)
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill import injector
from tests.slurm.post import boxes

SCRIPTS = Path(__file__).parent / "scripts"
WITHIN_S = 420.0
ENDS = {
    "01-hello": ("finished", ""),
    "02-train": ("finished", ""),
    "03-bug": ("stopped", "user-code"),
    "04-typo": ("stopped", "config"),
    "05-no-module": ("stopped", "config"),
    "06-gpu-memory": ("stopped", "oom-gpu"),
    "07-gpu-lost": ("finished", "hardware-gpu"),
    "08-node-dies": ("finished", "node"),
    "09-array": ("stopped", "user-code"),
    "10-cancelled": ("stopped", "cancelled"),
}
"""Script -> how its run ends, and the class of its last fault."""


class Owner:
    """Somebody who has never used ftrun: a home, a folder of scripts, a Slurm."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.work = box, folder / "work"
        shutil.copytree(SCRIPTS, self.work)
        clean = {k: v for k, v in box.env().items() if not k.startswith(("FTRUN_", "SBATCH_", "SLURM_JOB"))}
        home = {
            "HOME": str(folder),
            "FTRUN_HOME": str(folder / "ftrun"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self.env = clean | home | {"PATH": f"{Path(sys.executable).parent}:{clean['PATH']}"}

    def types(self, line: str) -> str:
        """What a command line prints, both streams, in the order of printing."""
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.work, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout

    def end(self, job: str) -> tuple[str, str] | None:
        """State of the run and class of its last fault; None while it is not over."""
        told = self.types(f"ftrun status {job} --json 2>/dev/null")
        (row,) = json.loads(told)["runs"]
        return (row["state"], row["last_fault"]) if row["state"] in ("finished", "stopped") else None


def _page(owner: Owner, name: str, job: str) -> str:
    parts = [f"# {name}", "## The script", _block((owner.work / f"{name}.sh").read_text())]
    for command in ("logs", "status", "show", "explain"):
        parts += [f"## ftrun {command} {job}", _block(owner.types(f"ftrun {command} {job}"))]
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    return f"```\n{text.rstrip()}\n```"


def _play(owner: Owner) -> dict[str, str]:
    """What README says to type first, then all scripts; two are hurt. Name -> job id."""
    owner.types("ftrun doctor")
    jobs = {}
    for name in ENDS:
        said = owner.types(f"ftrun sbatch {name}.sh")
        found = re.fullmatch(r"Submitted batch job (\d+)\n", said)
        assert found, said
        jobs[name] = found[1]
    cancelled, dies = owner.work / f"slurm-{jobs['10-cancelled']}.out", owner.work / "node" / "step-0010.pt"
    _until(lambda: cancelled.exists() and "step 3/" in cancelled.read_text(), "the job to be cancelled runs")
    owner.types(f"scancel {jobs['10-cancelled']}")
    _until(dies.exists, "the training whose node shall die has saved")
    owner.box.crash(
        owner.types(f"squeue -h -j {jobs['08-node-dies']} -o %N | xargs scontrol show hostnames").split()[-1]
    )
    return jobs


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {WITHIN_S:g} s: {what}")
        time.sleep(1.0)


def main() -> int:
    """Play, wait for the ends, write the pages; 1 where an end is another than expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.first_days", description=__doc__)
    parser.add_argument("--out", type=Path, help="the folder for the pages (default: a new one)")
    out = parser.parse_args().out or Path(tempfile.mkdtemp(prefix="first-days-"))
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the sandbox goes with us
    ends: dict[str, tuple[str, str]] = {}
    with boxes() as make, tempfile.TemporaryDirectory(prefix="ftrun-t-") as folder:
        owner = Owner(make(nodes=6), Path(folder))
        try:
            jobs = _play(owner)
            deadline = time.monotonic() + WITHIN_S
            while set(ends) < set(jobs) and time.monotonic() < deadline:
                time.sleep(2.0)
                for name, job in jobs.items():
                    if name not in ends and (end := owner.end(job)):
                        ends[name] = end
            for name, job in jobs.items():
                (out / f"{name}.md").write_text(_page(owner, name, job))
            shutil.copy(owner.env["FTRUN_HOME"] + "/supervisor.log", out / "supervisor.log")
        finally:
            _end_supervisors(owner)
    for name, end in ends.items():
        print(
            f"{'as it should' if end == ENDS[name] else f'WRONG, expected {ENDS[name]}'}: {name}: {' '.join(end)}"
        )
    print(f"the pages lie in {out}")
    return int(ends != ENDS)


def _end_supervisors(owner: Owner) -> None:
    injector.end_processes(injector.supervisors(Path(owner.env["FTRUN_HOME"])), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
