"""The variables of the compile caches beside the real JAX and PyTorch: nothing of them keeps a start from starting, and the folder fills. (I/O)

On the processor: XLA tunes nothing there, so of its own caches only where JAX leads them is seen.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ftrun.supervisor.submission import library_env
from tests.formats.test_written import LIMIT_S, PYTHON

JAX = "import jax, jax.numpy as jnp; print(float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8)))))"
LED = """
from jax._src import compiler
options = compiler.get_compile_options(1, 1)  # held, since what hangs on it is not
build = options.executable_build_options
print(build.debug_options.xla_gpu_per_fusion_autotune_cache_dir)
"""
TORCH = (
    "import torch; print(float(torch.compile(lambda x: (x @ x).sum() + x.sin().sum() * 0)(torch.ones(8, 8))))"
)

pytestmark = pytest.mark.formats


def _run(code: str, folder: Path, **more: str) -> tuple[int, str, str]:
    lines = (
        line.partition("=") for line in library_env.export_lines(library_env.CACHES, "auto").splitlines()
    )
    told = {names.split(",")[0]: value.replace("{caches}", str(folder)) for names, _, value in lines}
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TORCH", "XLA_"))
    }
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": "", **told, **more}
    done = subprocess.run([PYTHON, "-c", code], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("xla", ["", "all", "of-a-later-release"])
def test_jax_starts_and_fills_its_folder(tmp_path: Path, xla: str) -> None:
    """Whatever XLA caches are asked for by JAX's own variable; XLA's are led into JAX's folder without any of XLA_FLAGS."""
    more = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": xla} if xla else {}
    code, out, err = _run(JAX + LED, tmp_path, **more)
    led = "" if xla == "of-a-later-release" else f"{tmp_path}/jax/xla_gpu_per_fusion_autotune_cache_dir"
    assert (code, out) == (0, f"512.0\n{led}\n"), err
    assert list((tmp_path / "jax").glob("*-cache"))


def test_a_flag_that_xla_does_not_know_ends_the_process(tmp_path: Path) -> None:
    """Why nothing is ever added to XLA_FLAGS."""
    code, _, err = _run(JAX, tmp_path, XLA_FLAGS="--xla_of_a_later_release=1")
    assert code != 0
    assert "Unknown flag" in err


def test_torch_starts_and_keeps_its_graphs(tmp_path: Path) -> None:
    """Graphs and what AOTAutograd made of them lie in the folder that is carried on."""
    code, out, err = _run(TORCH, tmp_path)
    assert (code, out) == (0, "512.0\n"), err
    assert list((tmp_path / "inductor" / "fxgraph").iterdir())
    assert list((tmp_path / "inductor" / "aotautograd").iterdir())
