"""First mistakes on real Slurm: what docs/first-days.md says of each is what a person reads. (I/O)"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.hooks.health import install
from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

PAGE = Path(__file__).parents[2] / "docs" / "first-days.md"
FINAL_S = 240.0
PROGRAM = """#!/usr/bin/env python3
import argparse
words = argparse.ArgumentParser()
words.add_argument("--data", required=True)
words.parse_args()
"""


def _rows(name: str) -> list[tuple[str, str]]:
    """The rows of one table of the page: what is done, and the words of the answer."""
    table = PAGE.read_text().partition(f"<!-- {name}: begin -->")[2].partition("<!-- ")[0]
    rows = [line.strip("|").split(" | ") for line in table.strip().splitlines()[2:]]
    return [(left.strip(), right.strip().strip("`")) for left, right in rows]


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def at(slurm_sandbox: Sandbox, make_post: Callable[..., Post]) -> Post:
    """A folder with the files of the page, where `ftrun` is in PATH."""
    post = make_post(slurm_sandbox)
    post.env["PATH"] = f"{Path(sys.executable).parent}:{post.env['PATH']}"
    post.script("true\n", "train.sh")
    (post.work / "settings.sh").write_text("#!/bin/bash\n#SBATCH --ft-retries=3\ntrue\n")
    for name in ("ckpt-1.pt", "ckpt-2.pt"):
        (post.work / name).write_bytes(b"\x80\x02")
    (post.work / "train.py").write_text(PROGRAM)
    (post.work / "import.py").write_text("import no_such_module\n")
    return post


def test_there_are_thirteen() -> None:
    assert len(_rows("typed")) + len(_rows("script")) == 13


@pytest.mark.parametrize(("typed", "said"), _rows("typed"))
def test_what_is_typed_wrong_is_answered(at: Post, typed: str, said: str) -> None:
    """In one line of ftrun's own on stderr that names the mistake; never by "Batch script is empty!"."""
    done = at.run_command("bash", "-c", _code(typed)[0])
    lines = [line for line in done.stderr.splitlines() if line.startswith("ftrun: ")]
    assert len(lines) == 1, done
    assert said in lines[0], done
    assert "empty" not in done.stderr
    assert (done.returncode == 0) == ("Submitted batch job" in done.stdout)


def test_what_is_wrong_in_the_script_is_named(at: Post) -> None:
    """`status` says it, and none is tried again."""
    jobs = {}
    for number, (line, said) in enumerate(_rows("script")):
        words = [word for word in _code(line) if " " in word or "/" in word]
        options = [word.removeprefix("#SBATCH ") for word in words if word.startswith("#SBATCH")]
        body = "\n".join([f"cd {at.work}", *([] if options else words)])
        jobs[at.sbatch(body.replace(", without", ""), *options, name=f"mistake{number}.sh")] = said
    at.supervise()
    for job, said in jobs.items():
        run = at.until_state("stopped", "finished", job=job, within_s=FINAL_S)
        (row,) = json.loads(at.ftrun("status", job, "--json"))["runs"]
        assert said in row["why"], at.ftrun("explain", job)
        assert len(run.attempts) == 1, row


@pytest.mark.parametrize("what", ["pending", "running"])
def test_waiting_ends_as_with_sbatch_where_a_person_cancels(at: Post, what: str) -> None:
    """A job that never ran: 0; one that ran: 1."""
    hold = ["--hold"] * (what == "pending")
    began = at.work / "began"
    # A shell that hears of its child's end first would exit 143.
    at.script(f"touch {began}; exec sleep 300\n", "long.sh")
    at.supervise()

    def waited(*command: str) -> int:
        words = [*command, "--wait", "-J", "long", *hold, "long.sh"]
        began.unlink(missing_ok=True)
        waits = "squeue -h -n long -t pending -o %i | grep -q ."
        cancel = f"until {waits if hold else f'[ -e {began} ]'}; do sleep .2; done; scancel -n long"
        return at.run_command("bash", "-c", f'"$@" & child=$!; {cancel}; wait $child', "-", *words).returncode

    assert waited("sbatch") == waited("ftrun", "sbatch") == (what == "running")


def test_the_help_of_sbatch_ends_with_where_the_settings_are(at: Post) -> None:
    """What sbatch prints, and then one line."""
    plain, ours = (
        at.run_command("bash", "-c", f"{name} --help").stdout for name in ("sbatch", "ftrun sbatch")
    )
    assert ours.startswith(plain)
    assert "`ftrun config show`" in ours.removeprefix(plain)


def test_the_hooks_for_slurm_keep_what_slurm_is_told(
    at: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of SchedulerParameters has all that stands there, and one word more."""
    present = re.search(r"(?m)^SchedulerParameters *= (\S+)$", at.call("scontrol", "show", "config"))
    assert present
    for key in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(key, at.env[key])
    assert install.main([str(tmp_path / "opt")]) == 0
    told = capsys.readouterr().out
    assert f"add {install.NOHOLD} to SchedulerParameters" in told
    assert f"\nSchedulerParameters={present[1]},{install.NOHOLD}\n" in told
