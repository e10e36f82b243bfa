"""The user's commands before and after the script, under each POSIX shell of this machine, without Slurm. (I/O)"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.unit.bundle.test_batch_sh import NO_PERL, Attempt, attempt, wait_for  # noqa: F401 - a fixture is asked for by name

SCRIPT = '#!/bin/sh\necho "script $FTRUN_HOOK" >>order\nexit 3\n'


def record(attempt: Attempt, name: str) -> dict[str, str]:  # noqa: F811
    text = (attempt.place / name).read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def test_commands_run_before_and_after_the_script(attempt: Attempt) -> None:  # noqa: F811
    """Once each, in this order, with what the script is told and how it ended; their words stay out of the job's log, and the
    job ends as the script ended.
    """
    attempt.env["SLURM_JOB_NODELIST"] = "n[1-2]"
    told = 'echo "$FTRUN_HOOK $FTRUN_ATTEMPT $FTRUN_NODES [$FTRUN_EXIT_CODE]" | tee -a order; exit 7'
    attempt.values |= {"pre_hook": told, "post_hook": told, "hook_limit_s": "20"}

    assert (3, "", "") == attempt.run(SCRIPT)
    lines = ["pre-hook 1 n[1-2] []", "script ", "post-hook 1 n[1-2] [3]"]
    assert lines == (attempt.folder / "order").read_text().splitlines()
    assert [lines[0]] == (attempt.place / "pre-hook.0.log").read_text().splitlines()
    for name in ("pre-hook.0", "post-hook.0"):
        assert {"code": "7", "why": "itself"} == record(attempt, name)


def test_a_command_that_cannot_be_run_costs_nothing(attempt: Attempt) -> None:  # noqa: F811
    """A missing program, words that are no shell, a folder that takes no log: the script runs all the same."""
    attempt.values |= {
        "pre_hook": "/no/such/program --at all",
        "post_hook": "if then ((",
        "hook_limit_s": "20",
    }

    assert (3, "", "") == attempt.run(SCRIPT)
    assert "127" == record(attempt, "pre-hook.0")["code"]
    assert "0" != record(attempt, "post-hook.0")["code"]


def test_a_command_that_fails_may_hold_the_start(attempt: Attempt) -> None:  # noqa: F811
    """Where the user says so the script does not run, the job ends with 1 and says why; one that is well holds nothing, and the last command has nothing to say then."""
    attempt.values |= {"pre_hook": "exit 4", "post_hook": "echo post >>order", "pre_hook_holds": "nodes", "hook_limit_s": "20"}  # fmt: skip
    code, _, said = attempt.run(SCRIPT)

    assert 1 == code
    assert "pre-hook failed, and pre-hook-failed is hold" in said
    assert {"code": "4", "why": "itself", "held": "1"} == record(attempt, "pre-hook.0")
    assert not (attempt.folder / "order").exists()
    assert not (attempt.place / "exit.0").exists()


@pytest.mark.parametrize("attempt", ["dash"], indirect=True)
def test_a_command_that_hangs_is_ended_at_its_limit(attempt: Attempt) -> None:  # noqa: F811
    """With all that it started, be it that it ignores the asking; then the script begins."""
    hangs = "trap '' TERM; sleep 321 & echo $! >pid; wait; sleep 321"
    attempt.values |= {"pre_hook": hangs, "hook_limit_s": "2"}

    assert 3 == attempt.run(SCRIPT)[0]
    assert {"code": "137", "why": "limit"} == record(attempt, "pre-hook.0")
    left = Path("/proc", (attempt.folder / "pid").read_text().strip(), "stat")
    wait_for(lambda: not left.exists() or ") Z " in left.read_text())


def test_a_signal_that_comes_before_the_script_is_the_script_s(attempt: Attempt) -> None:  # noqa: F811
    """The command ends at once, and the script is told what came."""
    attempt.values |= {"pre_hook": "touch begun; sleep 321", "hook_limit_s": "300"}
    job = attempt.start("#!/bin/sh\ntrap 'echo told; exit 5' USR1\nwhile :; do sleep 0.05; done\n")
    wait_for((attempt.folder / "begun").exists)
    job.send_signal(signal.SIGUSR1)
    out, _ = job.communicate(timeout=60)

    assert (5, b"told\n") == (job.returncode, out)
    assert "signal" == record(attempt, "pre-hook.0")["why"]


def test_the_script_s_signal_is_the_job_s_whatever_came_after(attempt: Attempt) -> None:  # noqa: F811
    """A script that died of a signal ends the job by it, and the record of its end is there before the command behind it runs."""
    attempt.values |= {"post_hook": f"cat '{attempt.place}/exit.0' >seen; exit 0", "hook_limit_s": "20"}

    assert -signal.SIGKILL == attempt.run("#!/bin/sh\nkill -9 $$\n")[0]
    assert "signal=9" in (attempt.folder / "seen").read_text()


def test_commands_run_without_perl_too(attempt: Attempt) -> None:  # noqa: F811
    """Less exact, and never in the way."""
    attempt.values |= {"pre_hook": "echo pre >>order", "post_hook": "echo post >>order", "hook_limit_s": "20"}

    assert 3 == attempt.run(SCRIPT, change=NO_PERL)[0]
    assert ["pre", "script ", "post"] == (attempt.folder / "order").read_text().splitlines()
