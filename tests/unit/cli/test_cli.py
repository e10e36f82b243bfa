"""The dispatcher: what goes where, and how commands end. (I/O)"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from ftrun.supervisor import cli
from ftrun.supervisor.cli import app, commands
from ftrun.supervisor.model.errors import UserError

Planted = Callable[[str, object], None]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Put one command into an otherwise empty table; call it with a name and a function or a typer.Typer."""

    def plant(name: str, what: object) -> None:
        module = types.ModuleType("ftrun_planted")
        module.what = what  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ftrun.supervisor.cli.planted", module)
        monkeypatch.setattr(app, "COMMANDS", {name: commands.Command("planted", "what", "A planted one.")})

    return plant


def _family() -> typer.Typer:
    family = typer.Typer(no_args_is_help=True)
    family.command("up")(lambda: 3)
    family.command("down")(lambda: None)
    return family


def test_a_command_returns_its_exit_status(planted: Planted) -> None:
    """What a command returns is what the process exits with; None is success."""
    planted("status", lambda: 3)

    assert 3 == cli.main(["status"])


def test_a_command_may_exit_through_typer(planted: Planted) -> None:
    """`typer.Exit` means what it says."""

    def leave() -> None:
        raise typer.Exit(4)

    planted("status", leave)

    assert 4 == cli.main(["status"])


def test_sub_commands_are_reached(planted: Planted) -> None:
    """A family with sub-commands is a typer.Typer in the table."""
    planted("sandbox", _family())

    assert 3 == cli.main(["sandbox", "up"])
    assert 0 == cli.main(["sandbox", "down"])


def test_a_family_without_a_sub_command_is_wrong_usage(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ftrun sandbox` alone lists the sub-commands and exits 2."""
    planted("sandbox", _family())

    assert 2 == cli.main(["sandbox"])
    shown = capsys.readouterr()
    assert "up" in shown.err + shown.out


def test_a_wrong_command_is_told_the_nearest(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    """A command mistyped exits 2 and names the one that was meant."""
    planted("status", lambda: None)

    assert 2 == cli.main(["sttaus"])
    assert "ftrun: no such command: sttaus; did you mean `ftrun status`?\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("srun", "write srun in the script"), ("run", "`ftrun sbatch`"), ("sbtach", "`ftrun sbatch`"), ("squeue", "`ftrun status`")],
)  # fmt: skip
def test_the_words_of_other_programs_lead_to_ours_and_none_to_what_removes(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`srun` is told where it goes; `prune`, which removes runs, is never what was meant."""
    assert 2 == cli.main([typed])
    told = capsys.readouterr().err
    assert meant in told
    assert "prune" not in told


def test_a_wrong_option_is_one_line(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that does not exist exits 2 with one line that says where help is."""
    planted("status", lambda: None)

    assert 2 == cli.main(["status", "--jsn"])
    said = capsys.readouterr().err
    assert said.startswith("ftrun: No such option: --jsn")
    assert "`ftrun status --help`" in said
    assert 1 == said.count("\n")


def test_no_arguments_show_the_help_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """`ftrun` alone prints its help to stderr and exits 2, so that a script notices."""
    assert 2 == cli.main([])
    shown = capsys.readouterr()
    assert "" == shown.out
    assert "Usage: ftrun" in shown.err


def test_the_help_lists_commands_without_loading_them(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ftrun --help` needs the table only: no family is imported."""
    planted("status", None)
    monkeypatch.delitem(sys.modules, "ftrun.supervisor.cli.planted")

    assert 0 == cli.main(["--help"])
    assert "A planted one." in capsys.readouterr().out


def test_the_help_says_where_the_settings_of_a_submission_are(capsys: pytest.CaptureFixture[str]) -> None:
    """`ftrun sbatch --help` is sbatch's own, so the way to ours is told one step before it."""
    assert 0 == cli.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "each setting as --ft-NAME; `ftrun config show` lists the settings" in told


def test_a_user_error_is_one_line_and_its_own_code(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the user can mend is said in one line, with the exit code that the command documents."""

    def wrong() -> None:
        raise UserError("no run llm-7; `ftrun status` lists them", exit_code=5)

    planted("show", wrong)

    assert 5 == cli.main(["show"])
    assert "ftrun: no run llm-7; `ftrun status` lists them\n" == capsys.readouterr().err


def test_our_own_mistake_names_a_file_with_the_traceback(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unexpected exception exits 70 with one line; the traceback lies in a private file."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path))

    def broken() -> None:
        raise ZeroDivisionError("planted")

    planted("show", broken)

    assert 70 == cli.main(["show"])
    said = capsys.readouterr().err
    assert 1 == said.count("\n")
    assert "Traceback" not in said
    [file] = (tmp_path / "crashes").iterdir()
    assert str(file) in said
    assert "ZeroDivisionError: planted" in file.read_text()
    assert 0o600 == file.stat().st_mode & 0o777


def test_ctrl_c_is_quiet(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupt ends a command with 130 and without a word."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    planted("logs", interrupted)

    assert 130 == cli.main(["logs"])
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_a_reader_that_goes_away_is_met_quietly(arguments: list[str]) -> None:
    """`ftrun ... | head` prints no complaint when head has seen enough."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ftrun.supervisor", *arguments]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)

    assert b"" == done.stderr
    assert 141 == done.returncode


def test_the_version_is_printed() -> None:
    """`ftrun --version` prints name and version."""
    command = [sys.executable, "-m", "ftrun.supervisor", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("ftrun ")
