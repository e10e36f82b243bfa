"""What is printed for systemd and cron is really run, by their rules: odd folders, a bare environment, a leader beside it. (I/O)"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.supervisor.cli import main, supervise
from ftrun.supervisor.cli.commands import COMMANDS
from ftrun.supervisor.submission import start_supervisor

ODD = "a home's folder of 100%d \\ and more"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose name means something to systemd, to cron and to a shell."""
    path = tmp_path / ODD
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A login shell's environment, with a site that has a short lease, so that nobody waits long for it."""
    site = tmp_path / "site.toml"
    site.write_text("lease = 2\npoll = 0.2\n")
    return {"PATH": os.environ["PATH"], "FTRUN_SITE_CONFIG": str(site), "LD_PRELOAD": "none.so"}


@contextmanager
def _leading(home: Path, argv: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor, once it leads."""
    process = subprocess.Popen(argv, env=env, cwd="/", stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not start_supervisor.holder_alive_here(str(home)):
            assert process.poll() is None, f"it ended with {process.returncode}"
            assert time.monotonic() < deadline, "it does not lead"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def _systemd(text: str) -> tuple[list[str], dict[str, str]]:
    """Command line and variables of a unit, as systemd.service(5) and systemd.syntax(7) read them."""
    variables = {}
    command: list[str] = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in ("Environment", "ExecStart"):
            words = [word.replace("%%", "%") for word in shlex.split(value)]
            if key == "ExecStart":
                command = [word.replace("$$", "$") for word in words]
            else:
                [word] = words
                name, _, variables[name] = word.partition("=")
                variables[name] = word.partition("=")[2]
    return command, variables


def _cron(text: str) -> str:
    """The command of the only line, as cron hands it to sh: it ends at the first `%` that has no backslash."""
    [line] = [line for line in text.splitlines() if not line.startswith("#")]
    assert line.startswith("*/2 * * * * ")
    return re.split(r"(?<!\\)%", line.removeprefix("*/2 * * * * "))[0].replace("\\%", "%")


def test_systemd_takes_the_unit(home: Path, env: dict[str, str], tmp_path: Path) -> None:
    """Its own check finds nothing to complain of."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    (tmp_path / "run").mkdir(mode=0o700)
    unit = tmp_path / "ftrun.service"
    unit.write_text(supervise.unit(str(home), env))
    own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", unit], env=own, capture_output=True, text=True
    )

    ours = [line for line in done.stderr.splitlines() if "ftrun" in line]
    assert ([], 0) == (ours, done.returncode), done.stderr


def test_the_unit_s_command_leads_and_ends_when_it_is_told_to(home: Path, env: dict[str, str]) -> None:
    """In the bare environment that systemd gives it; TERM is no failure, so that `stop` is none."""
    command, variables = _systemd(supervise.unit(str(home), env))
    assert "LD_PRELOAD" not in variables
    with _leading(home, command, {"HOME": str(home), **variables}) as process:
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(120)


def test_a_unit_with_wrong_settings_is_not_started_for_ever(
    home: Path, env: dict[str, str], tmp_path: Path
) -> None:
    """It ends with 2, for which systemd is told not to start it again."""
    (tmp_path / "site.toml").write_text("retires = 3\n")
    text = supervise.unit(str(home), env)
    command, variables = _systemd(text)
    done = subprocess.run(
        command, env={"HOME": str(home), **variables}, capture_output=True, text=True, timeout=120
    )

    assert 2 == done.returncode
    assert "did you mean 'retries'" in done.stderr
    assert "RestartPreventExitStatus=2\n" in text


def test_unit_and_crontab_of_the_site_call_a_command_that_exists(home: Path, env: dict[str, str]) -> None:
    """One service by either way, with the home and the file of settings of this shell."""
    env = {**env, "FTRUN_SITE_CONFIG": "/etc/my site.toml"}
    lines = supervise.site_crontab(str(home), env).splitlines()
    called = [line.split(" -m ftrun.supervisor ")[1].split()[0] for line in lines if line.startswith("*")]
    command, variables = _systemd(supervise.site_unit(str(home), env))
    assert [command[-1]] == called == ["site"]
    assert set(called) <= set(COMMANDS)
    assert (variables["FTRUN_HOME"], variables["FTRUN_SITE_CONFIG"]) == (str(home), "/etc/my site.toml")


def test_cron_s_line_does_what_is_due_and_leaves_a_leader_alone(home: Path, env: dict[str, str]) -> None:
    """By sh, in cron's environment: exit 0 and not a word, neither for a mail nor in the log, whether it leads itself or somebody does."""
    line = _cron(supervise.crontab(str(home), env))
    bare = {"HOME": str(home), "LOGNAME": "somebody", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}

    def by_cron() -> tuple[int, str, str]:
        done = subprocess.run(
            ["/bin/sh", "-c", line], env=bare, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr, (home / "supervisor.log").read_text()

    assert (0, "", "") == by_cron()
    assert (home / "lease" / "epoch-000001").is_symlink(), "it led"
    command, variables = _systemd(supervise.unit(str(home), env))
    with _leading(home, command, {"HOME": str(home), **variables}) as process:
        assert (0, "", "") == by_cron()
        assert process.poll() is None


def test_scrontab_s_entry_has_time_for_what_is_due(home: Path, env: dict[str, str]) -> None:
    """The call is the same; its job's limit is above the time that one call takes at most."""
    text = supervise.scrontab(str(home), env)

    assert text.count("\n#SCRON ") == 1
    assert "--time=00:30:00" in text
    assert text.splitlines()[-1].replace("%", "\\%") == supervise.crontab(str(home), env).splitlines()[-1]


@pytest.mark.parametrize("kind", supervise.TEXTS)
def test_supervise_prints_each_and_doctor_all(
    kind: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ready to be redirected into a file, or in one object."""
    monkeypatch.setenv("FTRUN_HOME", str(home))
    assert 0 == main(["supervise", "--print", kind])
    text = capsys.readouterr().out
    assert 0 == main(["supervise", "--print", kind, "--json"])
    assert {"kind": kind, "home": str(home), "text": text} == json.loads(capsys.readouterr().out)
    assert 0 == main(["doctor", "--units"])
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--print", "upstart"), "systemd or cron or scrontab is wanted"),
        (("--once", "--as-job"), "one of --once, --as-job and --print"),
        (("--sbatch-options", "-p x"), "--sbatch-options is for --as-job"),
        (("--json",), "--json is for --as-job and --print"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: tuple[str, ...],
    told: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In one line, exit 2, before anything is done."""
    monkeypatch.setenv("FTRUN_HOME", str(home))
    assert 2 == main(["supervise", *words])
    said = capsys.readouterr().err
    assert told in said
    assert 1 == said.count("\n")
    assert [] == list(home.iterdir())
