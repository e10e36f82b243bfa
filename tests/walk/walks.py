"""The two walks that are counted, a fault and a submission: each returns its trace and its plumbing. (I/O)"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.unit.lives import Life
from tests.walk.trace import ROOT, Function, Trace

__all__ = ["fault", "submission"]

FALLEN = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
QUIET_TICKS = 30
LIMIT_TICKS = 300
SCRIPT_LIVES_TICKS = 2  # behind the line


def fault() -> tuple[Trace, Collection[Function]]:
    """Xid 79 in a job's log, and its node is lost: line, diagnosis, drain, second sbatch; without an agent, on the Slurm in memory.

    Plumbing is what the supervisor runs in 30 ticks in which the training is silent: lease, polls of Slurm, folders, tails.
    The client itself is the tests': the last step that counts is the call of its `submit`.
    """
    trace, quiet = Trace(), Trace()
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), nodes=4, wanted=2)
        life.until("running")
        life.train(1, 20)
        for _ in range(QUIET_TICKS):
            _tick(life, quiet)
        node = life.launches[0].nodes[1]
        submitted: list[None] = []
        life.cluster.submit = _arrival(trace, submitted, life.cluster.submit)  # type: ignore[method-assign]
        life.say(f"{node} {FALLEN}")
        for number in range(LIMIT_TICKS):
            if number == SCRIPT_LIVES_TICKS:
                life.engine.fail_node(node, "crash")
                life.exit(1)
            _tick(life, trace)
            if submitted:
                break
        incident = life.run.incidents[-1]
        if not submitted or (incident.fault, life.run.drained) != ("hardware-gpu", (node,)):
            raise SystemExit(f"this walk went astray: {incident.fault}, drained {life.run.drained}")
    return trace, quiet.order.keys()


def _tick(life: Life, trace: Trace) -> None:
    """A second passes; only the supervisor's part of it is traced."""
    life.engine.advance(1.0)
    with trace.running():
        life.supervisor.tick()


def _arrival(trace: Trace, arrived: list[None], call: Callable[..., Any]) -> Callable[..., Any]:
    def arrive(*args: Any, **named: Any) -> Any:
        trace.stop()
        arrived.append(None)
        return call(*args, **named)

    return arrive


def submission() -> tuple[Trace, Collection[Function]]:
    """`ftrun sbatch train.sh`, from the command line to the start of sbatch, which here only says a number; in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        stand_in, script, kept = Path(folder, "sbatch"), Path(folder, "train.sh"), Path(folder, "trace")
        for path, text in ((stand_in, "echo Submitted batch job 1"), (script, "exec python3 train.py")):
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        env = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": folder, "FTRUN_HOME": f"{folder}/home"}
        env |= {"PYTHONPATH": str(ROOT), "FTRUN_SUPERVISOR": "none"}
        command = [sys.executable, "-m", "tests.walk.walks", str(kept), "sbatch", "train.sh"]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=60, check=False)
        if done.returncode or not kept.exists():
            raise SystemExit(f"this walk went astray: {done.stderr.decode()}")
        trace = Trace(**pickle.loads(kept.read_bytes()))
    return trace, ()


def _submit(kept: str, words: list[str]) -> int:
    """Be `ftrun` with these words; keep the trace to the start of sbatch."""
    from ftrun.supervisor.cli import main

    trace = Trace()

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.posix_spawn" and os.path.basename(os.fsdecode(args[0])) == "sbatch":
            trace.stop()
            Path(kept).write_bytes(pickle.dumps({"order": trace.order, "entries": trace.entries}))

    sys.addaudithook(heard)
    with trace.running():
        return main(words)


if __name__ == "__main__":
    sys.exit(_submit(sys.argv[1], sys.argv[2:]))
