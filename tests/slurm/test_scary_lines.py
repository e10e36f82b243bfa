"""Scripts that print what looks fatal and go on, and such that stand still after it, on real Slurm: the first live, the second do not. (I/O)"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import Post, posts

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

PATIENCE_S = 420.0
SETTINGS = (
    "--ft-fault-grace=4s",
    "--ft-hang-min=4s",
    "--ft-hang-max=20s",
    "--ft-hang-grace=20s",
    "--ft-retries=1",
)
LONG_S = 60.0  # fifteen times `fault-grace`

TRAINING = """
import logging, os, subprocess, sys, threading, time

def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(i * i for i in range(20000))

def steps(first, last):
    for step in range(first, last):
        work(0.1)
        print(f"step {{step}} loss 1.0", flush=True)
        time.sleep(0.2)

def goes_on(talks=True):
    began = time.monotonic()
    while time.monotonic() - began < {long_s}:
        if talks:
            print(f"evaluated batch {{time.monotonic() - began:.0f}}", flush=True)
        work(0.3)
        time.sleep(0.7)

{more}

steps(1, 11)
{body}
steps(11, 16)
"""

CAUGHT = 'try:\n    {raises}\nexcept Exception:\n    logging.exception("{word}")\n'
HEALTHY = {
    "logger": CAUGHT.format(raises='raise ValueError("bad record")', word="could not log") + "goes_on()",
    "connection": CAUGHT.format(raises='raise ConnectionResetError(104, "Connection reset by peer")', word="will retry") + "goes_on()",
    "module": CAUGHT.format(raises="import apex_that_is_not_there", word="goes on without") + "goes_on()",
    "file": CAUGHT.format(raises='open("/nonexistent/shard-7.tar")', word="skipped") + "goes_on()",
    "batch-size": 'print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB")\nprint("batch size 64 does not fit, trying 32", flush=True)\ngoes_on()',
    "helper": 'subprocess.run(["sh", "-c", "kill -9 $$"])\nprint("Killed", flush=True)\ngoes_on()',
    "helper-segfault": 'subprocess.run(["sh", "-c", "kill -11 $$"])\nprint("Segmentation fault (core dumped)", flush=True)\ngoes_on()',
    "nccl": 'print("[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5", flush=True)\ngoes_on()',
    "watchdog": 'print("[rank0]:[E1114 22:13:20.000000000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=21, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60021 milliseconds before timing out.", flush=True)\ngoes_on()',
    "xid": 'print("NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, name=python, GPU has fallen off the bus", flush=True)\ngoes_on()',
    "disk": CAUGHT.format(raises='raise OSError(28, "No space left on device")', word="old files are removed") + "goes_on()",
    "task": 'print("srun: error: n0: task 0: Exited with exit code 1", flush=True)\ngoes_on()',
    "silent": CAUGHT.format(raises='raise RuntimeError("could not upload")', word="uploading failed") + "goes_on(talks=False)",
    "nan": 'print("RuntimeError: loss is nan, skipped this batch", flush=True)\ngoes_on()',
}  # fmt: skip

FATAL = 'print("Traceback (most recent call last):\\n  File \\"train.py\\", line 3\\nRuntimeError: something broke", flush=True)\n'
ONCE = 'if os.environ["FTRUN_ATTEMPT"] == "1" and os.environ.get("FTRUN_START", "1") == "1":\n    '
COLLECTIVE = """
def chatter():
    while True:
        print("heartbeat", flush=True)
        time.sleep(1)

exec(compile("import time\\ndef all_reduce():\\n    until = time.monotonic() + 600\\n    while time.monotonic() < until: pass\\n",
             "/opt/torch/distributed/distributed_c10d.py", "exec"))
"""
HUNG = {
    "waits": FATAL + ONCE + "time.sleep(600)",
    "stopped": FATAL + ONCE + "os.kill(os.getpid(), 19)",
    "spins": FATAL + ONCE + "(threading.Thread(target=chatter, daemon=True).start(), all_reduce())",
}


def _submitted(at: Post, agent: str, name: str, body: str) -> str:
    path = at.work / f"{name}.py"
    path.write_text(TRAINING.format(long_s=LONG_S, more=COLLECTIVE, body=body))
    beats = Path(__file__).resolve().parents[2] / ".ci" / "typing"
    if name == "spins":  # its stack is told by its beats
        text = path.read_text().replace("def steps(", "from ftrun.hooks import beat\ndef steps(")
        path.write_text(text.replace("        work(0.1)\n", "        work(0.1)\n        beat(step)\n", 1))
    command = f"cd {at.work}\nPYTHONPATH={beats} exec {sys.executable} -u {path}\n"
    script = at.work / f"{name}.sh"
    script.write_text("#!/bin/sh\n" + command)
    words = (
        f"--output={at.work}/{name}.log",
        f"--job-name={name}",
        "-N1",
        "-n1",
        "-t10",
        f"--ft-agent={agent}",
        *SETTINGS,
    )
    return at.ftrun("sbatch", "--parsable", *words, str(script)).split()[-1]


@pytest.mark.parametrize("agent", ["auto", "never"])
def test_what_goes_on_lives_and_what_stands_still_does_not(
    make_sandbox: Callable[..., Sandbox], agent: str
) -> None:
    """P7, both sides at once: handled errors and long phases that work end in the first attempt; waiting, stopped and spinning ranks are ended and tried again."""
    box = make_sandbox(nodes=4)
    with posts(box) as make:
        at = make()
        at.supervise()
        well = {name: _submitted(at, agent, name, body) for name, body in HEALTHY.items()}
        hung = {name: _submitted(at, agent, name, body) for name, body in HUNG.items()}
        for job in (*well.values(), *hung.values()):
            at.until_state("finished", "stopped", job=job, within_s=PATIENCE_S)

        ended = {
            name: at.run(job).final_reason
            for name, job in well.items()
            if "end.intended" in at.kinds(job) or at.run(job).incidents
        }
        assert ended == {}, at.story()
        assert {name: at.run(job).state.value for name, job in well.items()} == dict.fromkeys(
            well, "finished"
        )
        assert {name: at.run(job).state.value for name, job in hung.items()} == dict.fromkeys(
            hung, "finished"
        ), at.story()
        assert {name: at.run(job).incidents[0].fault for name, job in hung.items()} == dict.fromkeys(
            hung, "hang"
        )
