"""What the documents say is so. (I/O)"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.supervisor.cli import app
from ftrun.supervisor.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
UNREAD = {".git", ".venv", ".tools", ".cache", "build", "dist"}
PAGES = sorted(
    p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.md") if not UNREAD & set(p.relative_to(ROOT).parts)
)
GENERATORS = sorted(path.name for path in (ROOT / ".ci" / "gen").glob("*.py"))


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"sbatch"}))
def test_every_command_can_be_loaded_and_explains_itself(name: str) -> None:
    """Each line of the table leads to a command whose own help is not empty, its sub-commands' too."""
    command = app.load(name, COMMANDS[name])

    assert command.help
    assert [] == [sub for sub, made in getattr(command, "commands", {}).items() if not made.help]


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_generated_pages_are_current(generator: str) -> None:
    """docs/commands.md is what the commands' help says, the diagram what the table says: `make docs`."""
    command = [sys.executable, str(ROOT / ".ci" / "gen" / generator), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page: str) -> None:
    """A link to a file of the project finds the file, and its #part a heading of that file."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, part = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        if not found.exists() or (part and part not in _headings(found)):
            dead.append(target)

    assert [] == dead


def test_the_tests_that_hold_the_table_of_trust_exist() -> None:
    """docs/security.md names a test for each row, by file and function."""
    named = re.findall(
        r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    )

    assert len(named) > 15
    assert [] == [
        (file, name)
        for file, name in named
        if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]


def _headings(page: Path) -> set[str]:
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}
