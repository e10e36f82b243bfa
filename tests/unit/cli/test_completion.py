"""Completion: what is offered where, and that real shells offer it. (I/O)"""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.slurm.commands import completion_names
from ftrun.supervisor import cli
from ftrun.supervisor.cli import complete, complete_table
from ftrun.supervisor.cli.commands import COMMANDS
from ftrun.supervisor.drill.runner import user_scenarios

BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
HEAVY = (
    "typer click rich structlog paramiko tenacity msgspec ClusterShell hyperscan asyncio argparse subprocess"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two runs and a job of one of them."""
    for name in ("llm-7b-0001", "llm-7b-0002"):
        (tmp_path / "runs" / name / "journal").mkdir(parents=True)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "4711").symlink_to("../runs/llm-7b-0002")
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path))
    return tmp_path


def _offered(*words: str) -> list[str]:
    return [one.partition("\t")[0] for one in complete.candidates(words)]


def test_commands_sub_commands_and_options_are_offered() -> None:
    """What can be typed next, by what was typed before."""
    assert set(COMMANDS) | {"sbatch"} == set(_offered(""))
    assert ["status", "stats", "stop"] == _offered("st")
    assert ["show", "lemons", "exclude", "release"] == _offered("nodes", "")
    assert ["show"] == _offered("nodes", "--all", "sh")
    assert "--json" in _offered("nodes", "show", "--")
    assert ["--before="] == _offered("stop", "--be")
    assert [] == _offered("nothing-of-ours", "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("show", ""), ["llm-7b-0001", "llm-7b-0002"]),
        (("show", "llm-7b-0002", ""), []),
        (("pause", "llm-7b-0001", "llm-7b-0002"), ["llm-7b-0002"]),
        (("cancel", "--no-wait", "47"), ["4711"]),
        (("checkpoints", "l"), ["llm-7b-0001", "llm-7b-0002", ":files"]),
        (("diagnose", "--json", ""), [":files"]),
        (("simulate", "--scenario", ""), [":files"]),
        (("sandbox", "up", "--folder="), [":dirs"]),
        (("sandbox", "break", "n1", "--how", "f"), ["freeze"]),
        (("preflight", "--tier=b"), ["--tier=burn-in"]),
        (("catalog", "show", "nvidia-xid-79"), ["nvidia-xid-79"]),
        (("explain", "--what-if", "bmc-power-l"), ["bmc-power-lost"]),
        (("completion", "z"), ["zsh"]),
        (("status", "--", "--js"), []),
    ],
)
def test_values_are_offered(home: Path, words: tuple[str, ...], offered: list[str]) -> None:
    """Runs are names of folders; other values come from where the command takes them."""
    assert offered == _offered(*words)


def test_every_drill_is_offered() -> None:
    """By the table of drills."""
    assert {scenario.name for scenario in user_scenarios()} == set(_offered("drill", "gpu-lost", ""))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), [":files"]),
        (("-N2", "tr"), [":files"]),
        (("train.sh", "--"), [":files"]),
        (("--ft-retri",), ["--ft-retries="]),
        (("--ft-obs",), ["--ft-observe"]),
        (("--ft-hang=n",), ["--ft-hang=never"]),
        (("--ft-hang", "n"), ["never"]),
        (("--ft-retries", ""), []),
        (("--ft-stage=",), [":dirs"]),
        (("--constraint", ""), []),
        (("-p", ""), ["gpu", "main"]),
        (("--partition=main,",), ["--partition=main,gpu", "--partition=main,main"]),
        (("-Afoo", "-x", "n1,n2", "-w", "n"), ["n1", "n2"]),
        (("-o", ""), [":files"]),
        (("-D", ""), [":dirs"]),
        (("--chdi",), ["--chdir="]),
        (("--hol",), ["--hold"]),
        (("--ft-site-sp",), []),
        (("--no-such-option=1", ""), None),
    ],
)
def test_sbatch_completes_its_options_ours_and_files(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], offered: list[str] | None
) -> None:
    """Options until the script, then files: the script's arguments are its own. What the site alone may set is not offered."""
    known = {"partition": ["gpu", "main"], "node": ["n1", "n2"]}
    monkeypatch.setattr(completion_names, "names", lambda kind, *_, **__: known[kind])
    if offered is None:
        assert 0 == cli.main(["__complete", "zsh", "ftrun", "sbatch", *words])
    else:
        assert offered == _offered("sbatch", *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ftrun ", ["ftrun", ""]),
        ("ftrun  show 'a b", ["ftrun", "show", "a b"]),
        ('ftrun show "a" b\\ c', ["ftrun", "show", "a", "b c"]),
        ("ftrun show ''", ["ftrun", "show", ""]),
        ("ftrun show x\\", ["ftrun", "show", "x"]),
    ],
)
def test_a_line_is_split_as_a_shell_splits_it(line: str, words: list[str]) -> None:
    """What is quoted is one word, also where the quote is still open."""
    assert words == complete._split(line)


@pytest.mark.parametrize(
    "arguments",
    [[], ["bash"], ["bash", "ftrun"], ["zsh"], ["fish", "ftrun", "show", ""], ["bash", "\udcff ", "="]],
)
def test_nothing_that_goes_wrong_reaches_the_shell(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not a wrong call, not a home that cannot be read, not a broken file of settings: exit 0 and no word on stderr."""
    (tmp_path / "site.toml").write_text("this is = no [ toml\n")
    monkeypatch.setenv("FTRUN_SITE_CONFIG", str(tmp_path / "site.toml"))
    monkeypatch.setenv("FTRUN_HOME", "/proc/self/mem/none")

    assert 0 == cli.main(["__complete", *arguments])
    assert "" == capfd.readouterr().err


def test_completion_loads_no_command_and_no_client(home: Path) -> None:
    """A person waits for it: the table of words is read, and nothing that draws in a library."""
    code = (
        "import sys; from ftrun.supervisor.cli import main\n"
        "for words in (['show', ''], ['sbatch', '--ft-'], ['drill', '']): main(['__complete', 'fish', 'ftrun', *words])\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = set(loaded.splitlines()[-1].split())

    assert not modules & set(HEAVY.split())
    assert {
        "ftrun.supervisor.cli",
        "ftrun.supervisor.cli.complete",
        "ftrun.supervisor.cli.complete_table",
    } == {name for name in modules if name.startswith("ftrun.supervisor.cli")}


def test_a_wrong_shell_is_told_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit 2."""
    assert 2 == cli.main(["completion", "csh"])
    assert "ftrun: completion: bash or zsh or fish is wanted, not 'csh'\n" == capsys.readouterr().err


def test_the_table_has_no_hidden_option() -> None:
    """What is not in the help is not offered."""
    names = [names for names, _, _ in complete_table.COMMANDS["supervise"][1]]
    assert "--once" in names
    assert not {"--detached", "--in-job"} & set(names)


# ---------------------------------------------------------------------- real shells


@pytest.fixture
def place(home: Path, tmp_path: Path) -> Path:
    """A folder of work with a script, and `ftrun` on a PATH of its own."""
    work = tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    (work / "bin" / "ftrun").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m ftrun.supervisor "$@"\n')
    (work / "bin" / "ftrun").chmod(0o755)
    (work / "my training.sh").write_text("#!/bin/sh\n")
    (work / "below").mkdir()
    return work


class Terminal:
    """A shell at a terminal: keys go in, what is shown comes out."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def until(self, text: str) -> str:
        """What was shown until `text` was; it is forgotten then."""
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, f"never shown: {text!r}; but: {self.shown!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.shown += os.read(self.fd, 65536).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before + text


@contextmanager
def _shell(place: Path, *words: str, **env: str) -> Iterator[Terminal]:
    path = f"{place}/bin:{os.environ['PATH']}"
    known = {
        "PATH": path,
        "HOME": str(place),
        "TERM": "dumb",
        "FTRUN_HOME": os.environ["FTRUN_HOME"],
        "LC_ALL": "C.UTF-8",
    }
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        words,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=known | env,
        cwd=place,
        start_new_session=True,
    )
    os.close(follower)
    try:
        yield Terminal(leader)
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)


def _without_a_word(shown: str) -> None:
    assert not [word for word in ("rror", "Traceback", "not found") if word in shown], shown


def _try_bash(terminal: Terminal) -> None:
    shown = ""
    for keys, wanted in (
        ("echo ftr; ftrun supe\t", "supervise "),
        ("ftrun show llm-7b-0001\t", "llm-7b-0001 "),
        ("ftrun nodes le\t", "lemons "),
        ("ftrun preflight --tier=burn\t", "--tier=burn-in "),
        ("ftrun sbatch --ft-hang=ne\t", "--ft-hang=never "),
        ("ftrun sbatch --ft-retri\t", "--ft-retries="),
        ("ftrun sbatch my\t", "training.sh "),
        ("ftrun sbatch -o be\t", "below/"),
        ("ftrun sandbox up --folder=be\t", "--folder=below/"),
        ("ftrun --no-such=\t", "--no-such="),
        ("ftrun show none\t", "none"),
    ):
        terminal.type(keys)
        shown += terminal.until(wanted)
        terminal.type("\x05\x15echo re''ady\r")
        shown += terminal.until("ready")
    _without_a_word(shown)


def test_bash_completes(place: Path) -> None:
    """Interactive bash alone, without the package bash-completion: words, values behind `=`, files with a space in them; and never an error."""
    with _shell(place, "bash", "--norc", "--noprofile", "-i", PS1="$ ") as terminal:
        terminal.type('eval "$(ftrun completion bash)"; echo re""ady\r')
        terminal.until("ready")
        _try_bash(terminal)


def test_bash_completes_by_a_file_of_bash_completion(place: Path) -> None:
    """With that package, a file in its folder is read when TAB is first pressed."""
    if not BASH_COMPLETION.exists():
        pytest.skip("bash-completion is not installed")
    folder = place / ".local/share/bash-completion/completions"
    folder.mkdir(parents=True)
    code = subprocess.run(
        [place / "bin" / "ftrun", "completion", "bash"], capture_output=True, check=True
    ).stdout
    (folder / "ftrun").write_bytes(code)
    with _shell(place, "bash", "--norc", "--noprofile", "-i", PS1="$ ") as terminal:
        terminal.type(f". {BASH_COMPLETION}; echo re''ady\r")
        terminal.until("ready")
        _try_bash(terminal)


def test_zsh_completes(place: Path) -> None:
    """Interactive zsh, behind compinit; without compinit its line is no error."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    with _shell(place, "zsh", "-f", "-i", PS1="$ ") as terminal:
        terminal.type('eval "$(ftrun completion zsh)"; autoload compinit; compinit -D -u; echo re""ady\r')
        shown = terminal.until("ready")
        terminal.type('unsetopt zle_bracketed_paste; eval "$(ftrun completion zsh)"; echo re""ady\r')
        shown += terminal.until("ready")
        for keys, wanted in (
            ("ftrun supe\t", "supervise "),
            ("ftrun show llm-7b-0001\t", "llm-7b-0001 "),
            ("ftrun preflight --tier=burn\t", "--tier=burn-in "),
            ("ftrun sbatch --ft-retri\t", "--ft-retries="),
            ("ftrun sbatch my\t", "training.sh "),
            ("ftrun sandbox up --folder=be\t", "--folder=below/"),
        ):
            terminal.type(keys)
            shown += terminal.until(wanted)
            terminal.type("\x05\x15echo re''ady\r")
            shown += terminal.until("ready")
        _without_a_word(shown)


def test_fish_completes(place: Path) -> None:
    """fish's own `complete -C`, which is what TAB asks."""
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    code = "ftrun completion fish | source\n" + "".join(
        f'echo "[{line}]"; complete -C "{line}"\n'
        for line in (
            "ftrun supe", "ftrun show llm-7b-0001", "ftrun preflight --tier=burn", "ftrun sbatch my", "ftrun sandbox up --folder=be", "ftrun show none",
        )
    )  # fmt: skip
    env = os.environ | {"PATH": f"{place}/bin:{os.environ['PATH']}", "HOME": str(place)}
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], env=env, cwd=place, capture_output=True, text=True
    )

    assert ("", 0) == (done.stderr, done.returncode)
    lines = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    for wanted in ("supervise", "llm-7b-0001", "--tier=burn-in", "my training.sh", "--folder=below/"):
        assert wanted in lines, done.stdout
    assert "[ftrun show none]" == lines[-1]
