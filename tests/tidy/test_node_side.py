"""What runs on a node needs a Python 3.9 and nothing else. (I/O)"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The SSH side of the hooks runs on the supervisor's machine and loads paramiko, late.
REMOTE_SIDE = {"hooks/ssh/pool.py"}
PYTHON_OF_NODES = (3, 9)


@cache
def _imported(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {
                module,
                *(f"{module}.{alias.name}" for alias in node.names if _file(f"{module}.{alias.name}")),
            }
    return names


def _file(name: str) -> str | None:
    """Return our file for an import name, None for other people's modules."""
    if not name.startswith("ftrun."):
        return None
    stem = name.removeprefix("ftrun.").replace(".", "/")
    return next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if (ROOT / p).exists()), None)


@cache
def _node_side() -> tuple[str, ...]:
    """All files that a node loads: hooks/ and what they take, with what that takes in turn."""
    waiting = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hooks").rglob("*.py")} - REMOTE_SIDE
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        waiting |= {found for name in _imported(path) if (found := _file(name))} - seen - REMOTE_SIDE
    return tuple(sorted(seen))


@cache
def _python39() -> str:
    """Return a Python 3.9; skips the test with the reason where none can be had."""
    found = subprocess.run([ROOT / ".ci" / "python39"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip().splitlines()[-1])
    return found.stdout.strip()


def _run39(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The links of the type checkers make `ftrun` importable without an installation.
    environment = {"PYTHONPATH": str(ROOT / ".ci" / "typing"), "PATH": os.environ["PATH"]}
    command = [_python39(), "-B", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)


def test_the_node_side_imports_the_standard_library_only() -> None:
    """A node has no third-party package of ours, and nothing of the supervisor."""
    foreign = {
        (path, name)
        for path in _node_side()
        for name in _imported(path)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not name.startswith(("ftrun.hooks", "ftrun.slurm"))
    }

    assert set() == foreign


def test_the_node_side_parses_as_python_39() -> None:
    """The grammar of 3.9 is enough."""
    for path in _node_side():
        ast.parse((ROOT / path).read_text(encoding="utf-8"), path, feature_version=PYTHON_OF_NODES)


def test_the_node_side_is_imported_by_a_real_python_39() -> None:
    """Every module of the node side loads on 3.9: names that came later are found here."""
    names = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in _node_side()]
    done = _run39("-c", f"import importlib; [importlib.import_module('ftrun.' + n) for n in {names!r}]")

    assert "" == done.stderr
    assert 0 == done.returncode


def test_the_hook_command_runs_on_a_real_python_39() -> None:
    """`ftrun-hook version` answers on 3.9."""
    done = _run39("-m", "ftrun.hooks.main", "version")

    assert 0 == done.returncode, done.stderr
    assert json.loads(done.stdout)["python"].startswith("3.9.")


# Run by a child of the batch script, in which nothing is trapped, or before it listens to signals.
OUTSIDE = {
    "_ft_is_closed",
    "_ft_link",
    "_ft_try_claim",
    "_ft_record_lost",
    "_ft_unpack",
    "_ft_become",
    "_ft_sum_up",
    "_ft_on_nodes",
    "_ft_ask_hook",
    "_ft_note_mpi",
    "_ft_open_stage",
    "_ft_look_at_stage",
    "_ft_post_agent",
}


def test_a_shell_that_listens_takes_no_output_by_dollar_and_parenthesis() -> None:
    """Bash 5.2 ends where the trap of a child's end comes while it reads $(); backquotes it reads otherwise."""
    found = set()
    for path in sorted((ROOT / "hooks").glob("batch*.sh")):
        name = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            name = line.partition("()")[0] if re.match(r"_ft_\w+\(\)", line) else name
            if re.search(r"\$\((?!\()", line) and not line.lstrip().startswith("#"):
                found.add(name)

    assert found <= OUTSIDE, found - OUTSIDE
