"""What is installed is what lies in the folders. (I/O)"""

from __future__ import annotations

import fnmatch
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("supervisor", "slurm", "hooks")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK: dict[str, Any] = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))


def _files() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path.relative_to(ROOT) for path in files if "__pycache__" not in path.parts]


def test_the_packages_listed_are_the_folders_that_exist() -> None:
    """A folder that is not listed would work from a checkout and be missing from the wheel."""
    folders = {".".join(("ftrun", *path.parent.parts)) for path in _files()}

    assert folders == set(PROJECT["tool"]["setuptools"]["packages"])


def test_folders_stay_flat() -> None:
    """A package has sub-packages, they have none."""
    assert [] == [path for path in _files() if len(path.parts) > 3]


def test_every_package_can_be_imported_and_is_typed() -> None:
    """Each folder with code has an __init__.py, and the three roots carry py.typed."""
    with_code = {path.parent for path in _files() if path.suffix == ".py"}

    assert set() == {folder for folder in with_code if not (ROOT / folder / "__init__.py").exists()}
    assert all((ROOT / folder / "py.typed").exists() for folder in FOLDERS)


def test_data_files_are_packed() -> None:
    """Every file that is no code matches a pattern of package-data."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    data = [path for path in _files() if path.suffix != ".py"]

    assert [] == [path for path in data if not any(fnmatch.fnmatch(path.name, p) for p in patterns)]


def test_the_man_pages_are_packed() -> None:
    """Every command has a page, and the wheel puts them where `man` looks: share/man/man1 beside the bin folder."""
    [pattern] = PROJECT["tool"]["setuptools"]["data-files"]["share/man/man1"]
    pages = {path.name for path in ROOT.glob(pattern)}

    assert {"ftrun.1", "ftrun-sbatch.1", *(f"ftrun-{name}.1" for name in COMMANDS)} == pages


@pytest.mark.parametrize("folder", FOLDERS)
def test_type_checkers_find_the_folders_through_links(folder: str) -> None:
    """`.ci/typing/ftrun` links to the three folders, relative, so that a clone anywhere is checked."""
    link = ROOT / ".ci" / "typing" / "ftrun" / folder

    assert link.is_symlink()
    assert f"../../../{folder}" == os.readlink(link)


def test_nobody_imports_the_folders_by_their_bare_names() -> None:
    """`supervisor`, `slurm` and `hooks` are other people's names on PyPI: ours begin with `ftrun.`."""
    code = "import sys, ftrun.supervisor.cli.app, ftrun.hooks.main; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)

    assert set() == set(FOLDERS) & set(loaded.stdout.split())
    assert set() == set(FOLDERS) & set(sys.modules)


def test_the_front_door_loads_nothing_heavy() -> None:
    """Importing what the `ftrun` script imports costs no third-party module: `ftrun sbatch` goes through it."""
    code = "import sys; before = set(sys.modules); import ftrun.supervisor.cli; print(*sys.modules.keys() - before)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)

    tops = {name.split(".")[0] for name in loaded.stdout.split()}
    assert set() == tops - set(sys.stdlib_module_names) - {"ftrun"}
    assert set() == tops & {"argparse", "dataclasses", "json", "subprocess", "inspect", "typing"}


def test_a_prolog_loads_next_to_nothing() -> None:
    """Every job waits for it: on a node of known health it costs hardly more than its interpreter."""
    code = "import sys; before = set(sys.modules); import ftrun.hooks.main, ftrun.hooks.health.prolog; print(*sys.modules.keys() - before)"
    words = [sys.executable, "-c", code]
    loaded = subprocess.run(words, cwd="/", capture_output=True, text=True, check=True).stdout.split()

    assert set() == {
        "argparse",
        "collections",
        "contextlib",
        "enum",
        "json",
        "re",
        "signal",
        "subprocess",
        "typing",
    } & set(loaded)


@pytest.mark.parametrize("target", PROJECT["project"]["scripts"].values())
def test_the_console_scripts_point_at_functions(target: str) -> None:
    """Each console script names a function that exists."""
    module, _, function = target.partition(":")

    assert callable(getattr(importlib.import_module(module), function))


def test_the_lock_is_that_of_this_project() -> None:
    """uv.lock names the dependencies of pyproject.toml: run `make lock` after changing them."""
    [ours] = [package for package in LOCK["package"] if package["name"] == "ftrun"]
    locked = {entry["name"] for entry in ours["metadata"]["requires-dist"]}
    locked_dev = {entry["name"] for entry in ours["metadata"]["requires-dev"]["dev"]}

    assert {_name(text) for text in PROJECT["project"]["dependencies"]} == {
        entry["name"] for entry in ours["metadata"]["requires-dist"] if "extra" not in entry.get("marker", "")
    }
    assert {_name(text) for text in PROJECT["dependency-groups"]["dev"]} == locked_dev
    assert locked | locked_dev <= {package["name"] for package in LOCK["package"]}


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_the_lock_knows_no_index_but_the_public_one() -> None:
    """Everybody can install from the lock: no mirror of one machine is in it."""
    sources = {package["source"].get("registry", "") for package in LOCK["package"]}

    assert {"https://pypi.org/simple", ""} == sources


@pytest.mark.parametrize("script", ["demo", "test", ".ci/env", ".ci/run", ".ci/check", ".ci/python39"])
def test_the_scripts_are_posix_and_executable(script: str) -> None:
    """A fresh machine has sh and nothing else: the scripts parse as sh and can be run."""
    path = ROOT / script

    assert os.access(path, os.X_OK)
    assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", path], check=True)
