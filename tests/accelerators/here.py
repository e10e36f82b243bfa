"""What this machine has, in words, and the ways by which cases run something on it. (I/O)

The interpreter of the programs has torch; that of ftrun may be another one. Everything that a case starts gets a process group of its
own, which is killed with the case.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ftrun.hooks.checks import nvidia_smi
from ftrun.hooks.runtime.finding import SEVERITIES, Finding
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.node_report import parse_report
from ftrun.slurm.sandbox.handle import Sandbox

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / ".ci" / "typing"
"""Has ftrun's folders under their import names, wherever ftrun is not installed."""
PROGRAMS = Path(__file__).with_name("programs.py")
READY_S = 90.0
Env = Mapping[str, str]
NOTHING: Env = {}


class NotHere(Exception):
    """This machine lacks something that a case needs; one line."""


class Done(NamedTuple):
    """A program that ended: `code` is None where it was killed at its limit."""

    code: int | None
    text: str
    took_s: float
    folder: Path

    def facts(self) -> dict[str, float]:
        """The JSON object in its last line. Raises AssertionError."""
        lines = self.text.strip().splitlines()
        assert "{" in "".join(lines[-1:])[:1], f"the program measured nothing: {' | '.join(lines[-2:])}"
        found: dict[str, float] = json.loads(lines[-1])
        return found


class Seen(NamedTuple):
    """What a case saw, and whether that is what it expects."""

    text: str
    ok: bool


class Here:
    """This machine while cases run. `slurm()` gives the sandbox, or raises NotHere with the reason."""

    def __init__(self, python: str, folder: Path, slurm: Callable[[], Sandbox], own_machine: bool) -> None:
        self.python, self.folder, self.slurm, self.own_machine = python, folder, slurm, own_machine

    @functools.cached_property
    def gpus(self) -> tuple[nvidia_smi.Gpu, ...]:
        """The NVIDIA GPUs that nvidia-smi lists."""
        return self.ask_smi().gpus

    def ask_smi(self) -> nvidia_smi.Answer:
        """What nvidia-smi answers now."""
        try:
            return nvidia_smi.probe(Machine("/"), {})
        except NoAnswer as error:
            return nvidia_smi.Answer((), trouble=str(error))

    @functools.cached_property
    def torch(self) -> str:
        """The version of torch that the programs have, with what it computes on; "" where there is none."""
        told = "import torch; print(torch.__version__, torch.version.cuda or 'no CUDA', torch.cuda.is_available())"
        done = self.call([self.python, "-W", "ignore", "-c", told], limit_s=READY_S)
        return done.text.strip().splitlines()[-1] if done.code == 0 and done.text.strip() else ""

    @property
    def has_device(self) -> bool:
        """Whether a GPU is listed and torch can compute on it."""
        return bool(self.gpus) and self.torch.endswith("True")

    def lacks(self, needs: tuple[str, ...]) -> str:
        """What of these this machine has not; "" if nothing."""
        if "own-machine" in needs and not self.own_machine:
            return "changes a setting: with --own-machine only"
        if "smi" in needs and not self.gpus:
            return "no device"
        if "device" in needs and not self.has_device:
            return (
                f"no device that torch can use (torch {self.torch or 'not found'})"
                if self.gpus
                else "no device"
            )
        if {"torch", "device"} & set(needs) and not self.torch:
            return f"{self.python} has no torch"
        return ""

    def words(self) -> dict[str, str]:
        """The machine."""
        model = re.search(r"model name\s*: (.*)", _read("/proc/cpuinfo"))
        memory = re.search(r"MemTotal:\s*(\d+)", _read("/proc/meminfo"))
        gpus = [f"{gpu.product}, {gpu.word('fb_memory_usage/total')}" for gpu in self.gpus]
        return {
            "date": time.strftime("%Y-%m-%d"),
            "accelerators": "; ".join(gpus) or "no device",
            "driver": self.ask_smi().driver or "none",
            "torch": self.torch or "none",
            "processor": f"{os.cpu_count()} x {model[1] if model else platform.machine()}",
            "memory": f"{int(memory[1]) >> 20 if memory else '?'} GiB",
            "kernel": platform.release(),
            "python": f"{platform.python_version()} (ftrun), {self.python} (programs)",
            "load": f"{os.getloadavg()[0]:.1f}",
        }

    # ------------------------------------------------------------------ running something

    def environment(self, more: Env) -> dict[str, str]:
        """For everything that is started here."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FTRUN_", "SLURM_"))}
        path = f"{SOURCES}:{clean['PYTHONPATH']}" if clean.get("PYTHONPATH") else str(SOURCES)
        return {**clean, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **more}

    def call(self, words: list[str], *, limit_s: float, cwd: Path | None = None, env: Env = NOTHING) -> Done:
        """A command to its end or its limit, both streams in the order of printing."""
        began_s = time.monotonic()
        with tempfile.TemporaryFile("w+") as said, self._started(words, said.fileno(), cwd, env) as process:
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            said.seek(0)
            return Done(code, said.read(), time.monotonic() - began_s, cwd or self.folder)

    @contextlib.contextmanager
    def _started(
        self, words: list[str], output: int, cwd: Path | None, env: Env
    ) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True,
            cwd=cwd or self.folder, env=self.environment(env), start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def program(
        self, name: str, *words: str, limit_s: float = 90.0, ranks: int = 1, env: Env = NOTHING
    ) -> Done:
        """One of the programs, to its end; several ranks under torchrun."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        )
        return self.call(
            [self.python, *launcher, str(PROGRAMS), name, *words], limit_s=limit_s, cwd=folder, env=env
        )

    @contextlib.contextmanager
    def beside(self, name: str, *words: str, env: Env = NOTHING) -> Iterator[int]:
        """One of the programs, living while the block runs; its pid, once it has said that it is ready."""
        with (
            self._started([self.python, str(PROGRAMS), name, *words], subprocess.PIPE, None, env) as process,
            contextlib.ExitStack() as limits,
        ):
            assert process.stdout
            timer = threading.Timer(READY_S, process.kill)
            timer.start()
            limits.callback(timer.cancel)
            line = next((line for line in process.stdout if line.startswith("ready")), "")
            assert line, f"{name} did not get ready"
            yield process.pid

    def ftrun(self, *words: str, limit_s: float = 60.0, cwd: Path | None = None, env: Env = NOTHING) -> Done:
        """A command of ftrun."""
        return self.call(
            [sys.executable, "-P", "-m", "ftrun.supervisor", *words], limit_s=limit_s, cwd=cwd, env=env
        )

    def hook(self, *words: str, limit_s: float = 60.0, env: Env = NOTHING) -> Done:
        """A command of the node side."""
        return self.call([sys.executable, "-P", "-m", "ftrun.hooks.main", *words], limit_s=limit_s, env=env)

    def checks(
        self, *names: str, settings: Mapping[str, Mapping[str, object]] | None = None, env: Env = NOTHING
    ) -> dict[str, Finding]:
        """Check -> its worst finding, of node checks that are run as a prolog runs them."""
        words = ["check", "--json", *names]
        if settings:
            (self.folder / "settings.json").write_text(json.dumps(settings))
            words += ["--settings", str(self.folder / "settings.json")]
        done = self.hook(*words, env=env)
        report = parse_report(done.text)
        assert report, f"the checks gave no report: {done.text[-300:]}"
        found: dict[str, Finding] = {}
        for row in report["findings"]:
            one = Finding(row["check"], row["severity"], row["message"], row["fault"], row["device"])
            if one.check not in found or _rank(one) > _rank(found[one.check]):
                found[one.check] = one
        return found


def _rank(one: Finding) -> int:
    return SEVERITIES.index(one.severity)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
