"""Checkpoints that the libraries write here and now: each is known, whole on both levels, and not whole any more when harmed. (I/O)

`make test-formats` makes the environment that the writers run in (tests/formats/environment); FTRUN_FORMATS_PYTHON names the python of another one. A writer that
cannot run fails its tests: a proof that did not run is none.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, Found
from tests.told import told
from tests.unit import written

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "formats"
PYTHON = told("FTRUN_FORMATS_PYTHON", str(CACHE / "bin" / "python"))
LIMIT_S = 600

WRITERS = {
    "torch": ("write_torch.py", [], 1),
    "deepspeed": ("write_deepspeed.py", [], 1),
    "megatron": ("write_megatron.py", [], 1),
    "huggingface": ("write_huggingface.py", [], 1),
    "huggingface-ranks": ("write_huggingface.py", [], 2),
    "lightning": ("write_lightning.py", [], 1),
    "lightning-sharded": ("write_lightning.py", ["sharded"], 1),
    "orbax": ("write_orbax.py", [], 1),
    "mindspore": ("write_mindspore.py", [], 1),
}  # name -> the script, its further arguments, its processes

FOUND = {
    "torch": {"torch", "dcp"},
    "deepspeed": {"deepspeed"},
    "megatron": {"megatron", "nemo"},
    "huggingface": {"transformers", "accelerate", "safetensors"},
    "huggingface-ranks": {"transformers", "accelerate"},
    "lightning": {"lightning"},
    "lightning-sharded": {"lightning"},
    "orbax": {"orbax"},
    "mindspore": {"mindspore", "safetensors"},
}  # the layouts of what it writes

# Settings and notes, which resuming does not read or can do without; chunks of zarr, which are counted only.
SPARE = (
    "config.json",
    "commit_success.txt",
    "_sharding",
    "metadata",
    "latest",
    ".py",
    ".txt",
    "/0.0",
    "/c/0/0",
)

pytestmark = pytest.mark.formats


@pytest.fixture(scope="module", params=sorted(WRITERS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a writer, and the folder where it has written."""
    script, more, processes = WRITERS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [PYTHON, *(launcher if processes > 1 else []), str(HERE / script), str(folder), *more]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    # DeepSpeed builds a library there, and waits for ever for a lock that a killed build left in the usual place.
    quiet["TORCH_EXTENSIONS_DIR"] = str(tmp_path_factory.mktemp("extensions"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=quiet, cwd=folder)
    assert 0 == done.returncode, done.stderr[-2000:]
    return request.param, folder


def _all(folder: Path) -> list[Found]:
    """Everything that is found from each folder in it, but what nobody knows."""
    below = [path for path, _, _ in os.walk(folder)]
    found = {one.path: one for path in below for one in find([path], cwd="/") if one.layout != "any"}
    # A part of a checkpoint is one in its own eyes.
    inner = {path for path in found for other in found if path.startswith(f"{other}/")}
    return [found[path] for path in sorted(set(found) - inner)]


@pytest.mark.parametrize("level", [QUICK, DEEP])
def test_what_a_library_writes_is_known_and_whole(made: tuple[str, Path], level: str) -> None:
    """Every checkpoint, by the layouts that the library has, with nothing to say against any of them."""
    name, folder = made

    judged = [written.seen(one.path, level=level) for one in _all(folder)]

    assert {one.found.layout for one in judged} == FOUND[name]
    assert [] == [f"{one.found.path}: {one.state}: {one.why}" for one in judged if one.state != COMPLETE]


def test_a_cut_in_the_middle_of_any_large_file_is_noticed(made: tuple[str, Path], tmp_path: Path) -> None:
    """Whatever weights, optimizers, arrays and metadata lie in."""
    _, folder = made
    unnoticed = [
        f"{source}: {name}"
        for number, source in enumerate(Path(one.path) for one in _all(folder))
        for copy, name in _harmed(source, tmp_path / str(number))
        if written.seen(copy).state == COMPLETE
    ]

    assert [] == unnoticed


def _harmed(source: Path, room: Path) -> Iterator[tuple[Path, str]]:
    """A copy of the checkpoint for each file in it that counts, with half of that file."""
    names = written.files(source) if source.is_dir() else [""]
    for number, name in enumerate(names):
        size = (source / name).stat().st_size
        if size < 200 or name.endswith(SPARE):
            continue
        copy = written.copied(source, room / str(number) / source.name)
        written.cut(copy / name, size // 2)
        yield copy, name
