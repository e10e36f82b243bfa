"""Laws of the commands of `ftrun-hook`: each can be loaded, and former names still work but are not shown. (I/O)"""

from __future__ import annotations

import importlib

import pytest

from ftrun.hooks.main import ALIASES, COMMANDS, main


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_can_be_loaded(name: str) -> None:
    """The table names a module that has a `main`, and a line for the help."""
    module, line = COMMANDS[name]

    assert callable(importlib.import_module(f"ftrun.hooks.{module}").main)
    assert line


def test_former_names_still_work_and_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that an older version submitted calls them."""
    assert {"after", "deepen", "keep", "pairs"} == set(ALIASES)
    assert not set(ALIASES) & set(COMMANDS)
    for former, name in ALIASES.items():
        with pytest.raises(SystemExit) as ended:
            main([former, "--help"])
        assert 0 == ended.value.code
        assert f"ftrun-hook {name}" in capsys.readouterr().out

    assert 0 == main(["--help"])
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert set(COMMANDS) == listed
