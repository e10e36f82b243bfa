"""Cases of what ftrun does beside a training: stacks, freed memory, caches, staging, beats. (I/O)"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from ftrun.hooks.ranks import stacks
from ftrun.hooks.runtime.procfs import environments, user_processes
from ftrun.hooks.runtime.start_processes import parse_environment
from tests.accelerators.cases import Case
from tests.accelerators.here import Here, NotHere, Seen

HELD_MIB = 8000
FREED_S = 10.0
BEAT_PRICE_MAX = 0.005
"""What beats may cost of a step."""


def _stood_still(here: Here, program: str, where: tuple[str, ...]) -> Seen:
    """The stack of a process that stands still is taken twice: it has not moved, the place is named, and it lives."""
    beats = tempfile.mkdtemp(dir=here.folder)
    with here.beside(program, env={"FTRUN_BEAT_DIR": beats, "RANK": "0"}) as pid:
        time.sleep(3)
        text = next(text for _, text, _ in environments([pid]))
        rank = stacks.Rank(user_processes()[pid], parse_environment(text))
        table = stacks.sample_stacks([rank], 2.0, 20.0)
        lives = os.path.exists(f"/proc/{pid}/fd")
    row = table["ranks"][0]
    named = any(word in f"{row['top']} {rank.text}" for word in where)
    text = f"by {row['source']}, moved: {row['moved']}, at {row['top']}, {row['cpu_s']} s of processor time, {table['took_s']} s"
    return Seen(text + ("" if lives else "; IT DIED"), lives and row["moved"] is False and named)


def freed_memory(here: Here) -> Seen:
    """What a killed rank held is free soon after it is gone."""

    def used() -> float:
        return here.ask_smi().gpus[0].number("fb_memory_usage/used") or 0.0

    before = used()
    with here.beside("hold", str(HELD_MIB)) as pid:
        held = used()
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        while Path(f"/proc/{pid}/stat").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.01)
        gone_s = time.monotonic()
        while used() > before + 500 and time.monotonic() < killed_s + FREED_S:
            time.sleep(0.05)
        free_s = time.monotonic()
    text = (
        f"{held - before:.0f} MiB; gone after {gone_s - killed_s:.2f} s, free {free_s - gone_s:.2f} s later"
    )
    return Seen(text, held - before > HELD_MIB * 0.9 and free_s - killed_s < FREED_S)


def context(here: Here) -> Seen:
    """The first use of the device costs a second start no more than the first."""
    first, second = (here.program("context").facts()["context_s"] for _ in range(2))
    return Seen(f"{first:.2f} s, then {second:.2f} s", second < 1.5 * first + 0.5)


def compiled(here: Here) -> Seen:
    """A start on an empty node that was given the caches of the first compiles less, and computes the same."""
    if not here.has_device and not (shutil.which("g++") or shutil.which("clang++")):
        raise NotHere("torch.compile needs a C++ compiler where there is no device")

    def start(folder: Path) -> tuple[float, object]:
        env = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }
        done = here.program("compiled", limit_s=150, env=env)
        found = json.loads(done.text.strip().splitlines()[-1])
        return found["first_s"], found["losses"]

    one, other = here.folder / "node-1", here.folder / "node-2"
    first_s, first = start(one)
    shutil.copytree(one, other)
    second_s, second = start(other)
    text = f"first step after {first_s:.1f} s, then {second_s:.1f} s; losses {'the same' if first == second else 'DIFFER'}"
    return Seen(text, first == second and second_s < first_s)


def saving(here: Here) -> Seen:
    """The pause of a training for a checkpoint is shorter by staging than by torch.save to disk."""
    memory = Path(tempfile.mkdtemp(prefix="ftrun-gpu-", dir="/dev/shm"))
    disk = Path(tempfile.mkdtemp(dir=here.folder))
    try:
        staged = memory / "stage" / "run"
        staged.mkdir(parents=True)
        env = {"FTRUN_STAGE_DIR": str(staged), "FTRUN_STAGE_TO": str(disk), "SAVE_TO": str(disk)}
        told = here.program("saving", "1024" if here.has_device else "128", limit_s=120, env=env).facts()
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    pauses = {name: told[name] for name in ("torch.save", "dcp.async_save", "stage")}
    text = f"{told['mib']} MiB from {told['device']}: " + ", ".join(
        f"{name} {took:.3f} s" for name, took in pauses.items()
    )
    return Seen(text, pauses["stage"] < pauses["torch.save"])


def beats(here: Here) -> Seen:
    """What a beat costs, in parts of a real step."""
    told = here.program(
        "beats", limit_s=120, env={"FTRUN_BEAT_DIR": tempfile.mkdtemp(dir=here.folder), "RANK": "0"}
    ).facts()
    text = (
        f"a beat {told['call_s'] * 1e6:.2f} us, a step {told['step_s'] * 1e3:.2f} ms: {told['price']:.3%};"
        f" steps with beats / without {told['ratio']:.3f}"
    )
    return Seen(text, told["price"] <= BEAT_PRICE_MAX)


# fmt: off
CASES = [
    Case("behaviour", "stacks-kernel", "not moved, in synchronize, alive after it", lambda here: _stood_still(here, "hang_kernel", ("synchronize",)), ("device",), 60),
    Case("behaviour", "stacks-gil", "not moved, in the function that keeps the GIL, alive after it", lambda here: _stood_still(here, "hang_gil", ("hang_gil", "match")), ("torch",), 60),
    Case("behaviour", "stacks-loader", "not moved, waits for a data loader, alive after it", lambda here: _stood_still(here, "hang_loader", ("_try_get_data", "poll", "get", "wait", "select")), ("torch",), 60),
    Case("behaviour", "freed-memory", f"free within {FREED_S:.0f} s after the kill", freed_memory, ("device",), 60),
    Case("behaviour", "context", "the second is no slower", context, ("device",), 60),
    Case("behaviour", "compile-caches", "the second start's first step comes sooner; the same losses", compiled, ("torch",), 200),
    Case("behaviour", "saving", "the pause by staging is shorter than by torch.save to disk", saving, ("torch",), 120),
    Case("behaviour", "beats", f"at most {BEAT_PRICE_MAX:.1%} of a step", beats, ("torch",), 120),
]
# fmt: on
