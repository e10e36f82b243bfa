"""The second start of a program against its first, with real frameworks: what `caches` saves, and what it costs. (I/O)

How it measures. A program compiles a small training step and takes it once. First it runs as on a node that has nothing, told of the folders that
ftrun tells; then the node gives (`ftrun-hook cache merge`), its folder is taken away, an empty one is filled as on another node (`fill`), and the
program runs again. The rival is the first start: without caches a start on a new node is that again. Losses must agree to the bit.

Frameworks are not part of ftrun's environment: FTRUN_CACHE_PYTHON names interpreters that have them, with ":" between. What none has is not measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ftrun.hooks.compile_cache import packs
from ftrun.supervisor.submission import library_env
from tests.bench.figures import Figure, percentiles, ratio

__all__ = ["measure"]

PYTHONS = [one for one in os.environ.get("FTRUN_CACHE_PYTHON", sys.executable).split(":") if one]
LIMIT_S = 900.0
ENTRIES, ENTRY_BYTES = 4000, 20_000
HEAD = "import json, sys, time\nbegan = time.perf_counter()\n"
TAIL = '\nprint(json.dumps({"step_s": time.perf_counter() - loaded, "loss": losses}))\n'
TORCH = """
import torch
loaded = time.perf_counter()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = torch.compile(model)
losses = []
for _ in range(2):
    loss = step(torch.randn(4, 16, 64)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item().hex())
"""
JAX = """
import jax, jax.numpy as jnp
loaded = time.perf_counter()
def net(weights, x):
    for w in weights: x = jnp.tanh(x @ w) + jnp.sin(x)
    return (x ** 2).mean()
weights = [jax.random.normal(jax.random.PRNGKey(k), (128, 128)) for k in range(40)]
step = jax.jit(jax.value_and_grad(net))
loss, slopes = step(weights, jnp.ones((32, 128)))
losses = [float(loss).hex(), float(slopes[0].sum()).hex()]
"""
MINDSPORE = """
import numpy as np, mindspore as ms
from mindspore import nn
loaded = time.perf_counter()
ms.set_seed(1); ms.set_context(mode=ms.GRAPH_MODE); ms.set_device("CPU")
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(*[nn.Dense(32, 32) for _ in range(30)])
    def construct(self, x): return (self.layers(x) ** 2).mean()
net = Net()
optimizer = nn.SGD(net.trainable_params(), 0.01)
x = ms.Tensor(np.ones((4, 32), np.float32))
"""
CELL = """
step = nn.TrainOneStepCell(net, optimizer)
step.set_train()
losses = [float(step(x)).hex() for _ in range(2)]
"""
JIT = """
slope = ms.value_and_grad(net, None, optimizer.parameters)
@ms.jit
def step(x):
    loss, slopes = slope(x)
    optimizer(slopes)
    return loss
losses = [float(step(x)).hex() for _ in range(2)]
"""
PROGRAMS = (
    ("torch.compile", "torch", TORCH, "auto"),
    ("jax.jit", "jax", JAX, "auto"),
    ("mindspore.nn.TrainOneStepCell (caches=all)", "mindspore", MINDSPORE + CELL, "all"),
    ("mindspore.jit (caches=all)", "mindspore", MINDSPORE + JIT, "all"),
)


class Stand:
    """A run's folder and a node's, both temporary."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.local = folder, folder / "ftrun-cache-bench"
        self.nodes = folder / "run" / "attempts" / "1" / "nodes"
        self.nodes.mkdir(parents=True)
        (folder / "run" / "caches").mkdir()
        (folder / "run" / "caches" / "where").write_text(f"{4 << 30} {self.local}\n")

    def hook(self, what: str) -> float:
        """Run `ftrun-hook cache` on the node; seconds."""
        began = time.perf_counter()
        words = [sys.executable, "-m", "ftrun.hooks.main", "cache", what, "--folder", str(self.nodes)]
        subprocess.run(words, check=True)
        return time.perf_counter() - began

    def other_node(self) -> float:
        """Go to a node that has nothing, and fill it; seconds."""
        shutil.rmtree(self.local, ignore_errors=True)
        return self.hook("fill")

    def start(self, python: str, program: str, setting: str) -> tuple[float, object, int]:
        """Seconds from the loaded framework to the end of the first steps, the losses, and the entries that lie here then."""
        told = dict(
            line.split("=", 1) for line in library_env.export_lines(library_env.CACHES, setting).split("\n")
        )
        exports = {
            names.split(",")[0]: value.replace("{caches}", str(self.local)) for names, value in told.items()
        }
        (self.folder / "program.py").write_text(HEAD + program + TAIL)
        done = subprocess.run(
            [python, str(self.folder / "program.py")],
            env={**os.environ, **exports},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
        facts = json.loads(done.stdout.strip().splitlines()[-1])
        return facts["step_s"], facts["loss"], sum(1 for path in self.local.rglob("*") if path.is_file())


def measure(runs: int) -> list[Figure]:
    """A figure for each framework that is there, and one for filling a node."""
    found = []
    for title, framework, program, setting in PROGRAMS:
        python = next((one for one in PYTHONS if _has(one, framework)), "")
        if python:
            name = f"{title}, {_version(python, framework)}"
            found.append(_framework(name, python, program, setting, runs))
        else:
            print(f"{title}: none of {', '.join(PYTHONS)} has it: not measured")
    return [*found, _filling(runs)]


def _has(python: str, framework: str) -> bool:
    words = [python, "-W", "ignore", "-c", f"import {framework}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _framework(name: str, python: str, program: str, setting: str, runs: int) -> Figure:
    cold, warm, fills, merges, losses = [], [], [], [], []
    entries = 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            stand = Stand(Path(folder))
            stand.other_node()
            first = stand.start(python, program, setting)
            time.sleep(4.0)  # what was written so lately is not given yet
            merges.append(stand.hook("merge"))
            fills.append(stand.other_node())
            second = stand.start(python, program, setting)
            cold.append(first[0])
            warm.append(second[0])
            losses.append(first[1] == second[1])
            entries = first[2]
    share = ratio(warm, cold)
    same = (
        "losses agree to the bit"
        if all(losses)
        else "THE LOSSES DIFFER: a warm start computes something else"
    )
    notes = (f"{entries} files; {same}",)
    return Figure(
        f"caches: {name}: first steps of a second start, on another node",
        "s",
        percentiles(warm),
        "its first start",
        percentiles(cold),
        share,
        "second / first",
        "second / first <= 0.5, and the same losses" if setting == "auto" else "",
        (share <= 0.5 and all(losses)) if setting == "auto" else None,
        notes,
        {"fill": percentiles(fills), "merge": percentiles(merges)},
    )


def _version(python: str, name: str) -> str:
    words = [python, "-W", "ignore", "-c", f"import {name}; print({name}.__version__)"]
    return f"{name} {subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()}"


def _filling(runs: int) -> Figure:
    """One pack against a folder of small files, both from a disk whose content is in memory."""
    ours, rival, sizes = [], [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            stand = Stand(Path(folder))
            stand.other_node()
            old = time.time() - 60
            for number in range(ENTRIES):
                path = stand.local / "inductor" / f"{number % 256:02x}" / f"{number}.cpp"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes((b"float x%d = %d;\n" % (number, number)) * (ENTRY_BYTES // 24))
                os.utime(path, (old, old))
            stand.hook("merge")
            shutil.copytree(stand.local, stand.folder / "plain")
            sizes.append(
                sum(path.stat().st_size for path in stand.folder.glob(f"run/caches/*/*{packs.SUFFIX}"))
            )
            ours.append(stand.other_node())
            began = time.perf_counter()
            subprocess.run(["cp", "-a", stand.folder / "plain", stand.folder / "copied"], check=True)
            rival.append(time.perf_counter() - began)
    return Figure(
        f"caches: a node is filled with {ENTRIES} entries of {ENTRY_BYTES // 1000} kB",
        "s",
        percentiles(ours),
        "cp -a",
        percentiles(rival),
        ratio(ours, rival),
        "ours / cp",
        notes=(
            f"one file of {sizes[0] / 2**20:.1f} MiB is read, every sum is checked; cp opens {ENTRIES} files",
        ),
    )
