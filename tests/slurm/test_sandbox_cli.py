"""Laws of `ftrun sandbox`, on real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import known

pytestmark = pytest.mark.slurm

FTRUN = [sys.executable, "-c", "import sys; from ftrun.supervisor.cli import main; sys.exit(main())"]


class Shell:
    """Types `ftrun sandbox ...` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.environment = {key: value for key, value in os.environ.items() if key != "FTRUN_SANDBOX"}
        self.environment |= {"XDG_STATE_HOME": str(home)}
        self.home = home

    def __call__(
        self, *arguments: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        # Pipes on purpose: a daemon that holds ours would keep this call waiting.
        return subprocess.run(
            [*FTRUN, "sandbox", *arguments],
            env=self.environment | variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
        )


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A user with no sandbox; every named one is taken down after the test."""
    home = Path(subprocess.check_output(["mktemp", "-d", "/tmp/ftrun-t-XXXXXX"], text=True).strip())
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    yield Shell(home)
    for box in known():
        box.down()
    subprocess.run(["rm", "-r", str(home)], check=True)


def test_a_sandbox_is_made_used_hurt_mended_and_taken_down(shell: Shell) -> None:
    """The commands of a first quarter of an hour, in their order."""
    made = shell("up", "--nodes", "2", "--gpus", "8")
    assert (made.returncode, made.stderr.count("\n")) == (0, 1)
    assert "2 nodes with 8 GPUs each" in made.stdout

    again = shell("up")
    assert again.returncode == 0
    assert "is up already" in again.stdout

    assert shell("run", "--", "srun", "-N2", "sh", "-c", "exit 7").returncode == 7
    assert shell("run", "cat", stdin="through\n").stdout == "through\n"
    inside = shell("run", "--", "sh", "-c", "echo $SLURM_CONF $FTRUN_SANDBOX").stdout.split()
    assert inside == [f"{shell.home}/ftrun/sandbox/default/slurm.conf", f"{shell.home}/ftrun/sandbox/default"]

    assert shell("break", "n1", "--how", "drain").returncode == 0
    nodes = json.loads(shell("status", "--json").stdout)["nodes"]
    assert nodes[1] == {"name": "n1", "state": "drained", "reason": "sandbox: drained on demand"}
    assert shell("mend", "n1").stdout == "n1 is idle\n"

    opened = shell("shell", stdin="sinfo -h -o %D; exit 3\n", SHELL="/bin/sh")
    assert (opened.returncode, opened.stdout) == (3, "2\n")

    assert shell("down").returncode == 0
    assert shell("status").returncode == 1


def test_sandboxes_with_names_are_listed_and_taken_down_together(shell: Shell) -> None:
    """`list` shows the named ones and `down --all` ends them all."""
    for name in ("left", "right"):
        assert shell("up", "--name", name, "--nodes", "1").returncode == 0

    listed = json.loads(shell("list", "--json").stdout)
    assert [(one["name"], one["alive"]) for one in listed] == [("left", True), ("right", True)]
    assert shell("run", "--name", "right", "--", "true").returncode == 0
    assert shell("down", "--all").stdout.count(" is down: ") == 2
    assert [one["alive"] for one in json.loads(shell("list", "--json").stdout)] == [False, False]


def test_the_environment_names_the_sandbox_where_the_command_line_does_not(
    shell: Shell, slurm_sandbox: Sandbox
) -> None:
    """FTRUN_SANDBOX is the folder that every command takes when it gets neither --name nor --folder."""
    told = shell("status", "--json", FTRUN_SANDBOX=str(slurm_sandbox.folder))

    assert json.loads(told.stdout)["folder"] == str(slurm_sandbox.folder)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "--name", "nowhere", "true"), "no sandbox in"),
        (("down",), "no sandbox in"),
        (("up", "--nodes", "0"), "nodes must be 1 to"),
        (("up", "--name", "a/b"), "is no name for a sandbox"),
        (("up", "--name", "a", "--folder", "b"), "not both"),
        (("down", "--all", "--name", "a"), "give no --name or --folder with it"),
        (("up", "--folder", "/proc/nowhere"), "cannot write into"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    """What the user can mend is said in one line on stderr; nothing is printed, nothing is made."""
    answer = shell(*arguments)

    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1
    assert says in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("break", "n9"), "no node 'n9'"),
        (("mend", "m1"), "no node 'm1'"),
        (("break", "n1", "--how", "unplug"), "one of crash, freeze, slurmd, drain"),
    ],
)
def test_a_wrong_node_or_fault_is_refused(
    shell: Shell, slurm_sandbox: Sandbox, arguments: tuple[str, ...], says: str
) -> None:
    """A typing error hurts no node."""
    answer = shell(*arguments, FTRUN_SANDBOX=str(slurm_sandbox.folder))

    assert (answer.returncode, answer.stdout) == (2, "")
    assert says in answer.stderr
    assert [node.state for node in slurm_sandbox.status().nodes] == ["idle"] * 4


def test_an_unknown_command_inside_is_127(shell: Shell, slurm_sandbox: Sandbox) -> None:
    """`run` exits as a shell does for a command that is not there."""
    assert shell("run", "--", "no-such-command", FTRUN_SANDBOX=str(slurm_sandbox.folder)).returncode == 127
