"""Fixtures for tests on real Slurm: a sandbox for the session, and a factory for sandboxes of their own.

A machine without Slurm fails these tests, it does not skip them: a proof that did not run is none.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox import Sandbox, SandboxError, up


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=120, help="simulation: how many lives")
    parser.addoption("--from", type=int, default=0, help="simulation: the seed of the first of them")
    parser.addoption("--seed", type=int, default=None, help="simulation: replay this life and tell its story")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs the Slurm packages (./test installs them)")
    config.addinivalue_line(
        "markers", "drills: takes minutes; left out unless asked for (-m drills, make drills)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long proofs out of an ordinary run."""
    if "drills" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("drills")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def _new_folder() -> Path:
    # Not tmp_path: Unix sockets need a short path, and jobs of other users must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    return folder


def _up(folder: Path, options: dict[str, Any]) -> Sandbox:
    try:
        return up(folder, **options)
    except SandboxError as error:
        pytest.fail(f"no sandbox: {error}. ./test installs what the tests need.", pytrace=False)


def _remove(folder: Path) -> None:
    try:
        Sandbox.load(folder).down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_sandbox() -> Iterator[Sandbox]:
    """Four nodes with two GPUs each, shared by all tests of the session: leave it as you found it."""
    folder = _new_folder()
    box = _up(folder, {"nodes": 4, "gpus": 2})
    yield box
    _remove(box.folder)


@pytest.fixture
def make_sandbox() -> Iterator[Callable[..., Sandbox]]:
    """Make sandboxes of the test's own, with the options of `up`; all are taken down after the test."""
    folders: list[Path] = []

    def make(**options: Any) -> Sandbox:
        folders.append(_new_folder())
        return _up(folders[-1], options)

    yield make
    for folder in folders:
        if (folder / "sandbox.json").exists():
            _remove(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
