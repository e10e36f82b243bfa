"""batch.sh under each POSIX shell of this machine, without Slurm: claims, checkpoints, resume flags, the way it ends."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.bundle import shell as bundle_shell
from ftrun.supervisor.store import attempt_dir, checkpoints
from ftrun.supervisor.submission.compose import compose
from tests.begin_lines import without_begin_lines

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "ash"]}
# ./test tries the two that are /bin/sh on nodes of clusters, make drills all.
EACH_SHELL = [pytest.param(name, marks=pytest.mark.drills if name == "busybox" else ()) for name in SHELLS]


def shell_of(request: pytest.FixtureRequest) -> list[str]:
    """The command of the shell that a fixture is made for, by its path; skips the test where this machine has none."""
    name, *words = SHELLS[request.param]
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on this machine")
    return [path, *words]


def under_one_shell(fixture: str) -> pytest.MarkDecorator:
    """For laws that wait for many seconds, and for long tables: `./test` tries them under dash, `make drills` under all. What shells differ in has laws that take none."""
    names = [name if name == "dash" else pytest.param(name, marks=pytest.mark.drills) for name in SHELLS]
    return pytest.mark.parametrize(fixture, names, indirect=True)


# What is waited for in seconds on a node may take a minute on a busy machine.
PATIENCE = (
    (b"_ft_patience=10\n", b"_ft_patience=120\n"),
    (b'_ft_within 10 "$_ft_k"', b'_ft_within 120 "$_ft_k"'),
)
NO_PERL = (b"for _ft_i in /usr/bin/perl /bin/perl /usr/local/bin/perl;", b"for _ft_i in /none;")
TELL = '#!/bin/sh\nenv | grep ^FTRUN_ | sort\nfor a; do echo "[$a]"; done\n'


class Job(subprocess.Popen[bytes]):
    """What a job prints without the line of ours that tells where the script begins again."""

    def communicate(self, *args: Any, **words: Any) -> tuple[bytes, bytes]:
        out, err = super().communicate(*args, **words)
        return without_begin_lines(out.decode("latin-1"), "r-0001").encode("latin-1"), err


class Attempt:
    """One attempt of a run in a folder, and its job: a shell that reads the composed file."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder = folder
        self.shell = shell
        self.run_dir = folder / "my home" / "run"
        self.values = {
            "run": "r-0001",
            "attempt": "1",
            "token": "ftrun:r-0001:ab:1",
            "run_dir": str(self.run_dir),
        }
        self.values |= {"cluster": "c", "claim_wait_s": "20"}
        self.env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
        self.env |= {"TMPDIR": str(folder / "my tmp"), "HOME": str(folder)}
        self.place.mkdir(parents=True)
        (folder / "my tmp").mkdir()

    @property
    def place(self) -> Path:
        return self.run_dir / "attempts" / self.values["attempt"]

    def start(
        self, script: str, *args: str, change: tuple[bytes, bytes] = (b"", b"")
    ) -> subprocess.Popen[bytes]:
        composed = compose(script.encode(), self.values)
        assert change[0] in composed
        composed = composed.replace(*change, 1) if change[0] else composed
        for old, new in PATIENCE:
            composed = composed.replace(old, new)
        file = self.folder / "slurm_script"
        file.write_bytes(composed)
        return Job(
            [*self.shell, str(file), *args],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=as_slurm_starts_it,
        )

    def run(self, script: str, *args: str, change: tuple[bytes, bytes] = (b"", b"")) -> tuple[int, str, str]:
        """Code (negative: signal), stdout, stderr."""
        job = self.start(script, *args, change=change)
        out, err = job.communicate(timeout=180)
        return job.returncode, out.decode(), err.decode()

    def claim(self, name: str = "claim") -> str:
        return os.readlink(self.place / name)


def as_slurm_starts_it() -> None:
    """No signal is ignored in a job, whatever the tests were started by (nohup, a shell's `&`)."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


@functools.cache
def reads_after_a_signal(*shell: str) -> bool:
    """Whether `read` returns once a trap has run: in busybox 1.38.0 it does not, whatever the script does."""
    if not shell[0].endswith("busybox"):
        return True
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [*shell, "-c", "trap : TERM; kill -TERM $$; read -r x </proc/uptime"], check=True, timeout=30
        )
        return True
    return False


@pytest.fixture(params=EACH_SHELL)
def attempt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attempt]:
    name, *words = shell = shell_of(request)
    if not reads_after_a_signal(name, *words):
        pytest.skip(
            f"this {request.param} can read nothing any more after a signal (busybox 1.38.0 as released)"
        )
    one = Attempt(tmp_path, shell)
    yield one
    assert [] == list((tmp_path / "my tmp").iterdir())  # whatever happened, nothing stays behind


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_first_launch_claims_its_attempt(attempt: Attempt) -> None:
    """The claim is one symlink that says cluster, job, restart and token."""
    assert (0, "hi\n", "") == attempt.run("#!/bin/sh\necho hi\n")
    assert attempt.claim() == "c.7.0.ftrun:r-0001:ab:1"


def test_a_requeued_job_claims_its_launch(attempt: Attempt) -> None:
    """Launch r has a claim of its own, whatever happened to the ones before."""
    attempt.env["SLURM_RESTART_COUNT"] = "2"

    assert attempt.run(TELL)[1].startswith("FTRUN_ATTEMPT=1\n")
    assert attempt.claim("claim.2") == "c.7.2.ftrun:r-0001:ab:1"


def test_our_own_claim_is_no_obstacle(attempt: Attempt) -> None:
    """A network file system may carry out a request and report that it failed."""
    os.symlink("c.7.0.ftrun:r-0001:ab:1", attempt.place / "claim")

    assert (0, "hi\n", "") == attempt.run("#!/bin/sh\necho hi\n")


def test_a_launch_that_was_started_is_not_started_again(attempt: Attempt) -> None:
    """A controller that lost its memory starts a job anew under its old id and count; the second start tells of itself and fails."""
    assert (0, "hi\n", "") == attempt.run("#!/bin/sh\necho hi\n")
    again = attempt.run("#!/bin/sh\necho hi\n")
    lost = attempt_dir.second_start_job(str(attempt.run_dir), 1, 0)

    line = "ftrun: launch 0 of attempt 1 of r-0001 was started before; not started again\n"
    assert (1, "", line) == again
    assert "7" == lost
    assert "code=0\n" in (attempt.place / "exit.0").read_text()
    attempt.env["SLURM_RESTART_COUNT"] = "1"  # a requeue is another launch
    assert "hi\n" == attempt.run("#!/bin/sh\necho hi\n")[1]


def test_a_second_start_of_a_closed_attempt_does_not_run(attempt: Attempt) -> None:
    """Its first start died before it could say so, and the supervisor went on: the claim that follows tells."""
    os.symlink("c.7.0.ftrun:r-0001:ab:1", attempt.place / "claim")
    os.symlink("closed.2", attempt.place / "claim.1")

    assert (0, "", "ftrun: attempt 1 of r-0001 is closed; not started\n") == attempt.run(
        "#!/bin/sh\necho hi\n"
    )


@under_one_shell("attempt")
@pytest.mark.parametrize(("number", "answer"), [("1", (0, "hi\n")), ("2", (1, ""))])
def test_a_file_system_that_hangs_holds_no_job(
    attempt: Attempt, number: str, answer: tuple[int, str]
) -> None:
    """After the claim wait attempt 1 runs, for nothing else can exist; a later one leaves without the script."""
    attempt.values |= {"attempt": number, "claim_wait_s": "1"}
    attempt.place.mkdir(exist_ok=True)
    job = attempt.start("#!/bin/sh\necho hi\n", change=(b"    ln -s ", b"    sleep 600; ln -s "))
    code = job.wait(120)
    os.killpg(job.pid, signal.SIGKILL)  # the child that hangs

    assert answer == (code, job.communicate(timeout=60)[0].decode())


@pytest.mark.parametrize("theirs", ["closed.4", "c.6.0.ftrun:r-0001:ab:1", "c.7.1.ftrun:r-0001:ab:1"])
def test_an_attempt_that_is_somebody_elses_does_not_run(attempt: Attempt, theirs: str) -> None:
    """One line says so, the code is 0, the script never starts and the claim stays as it was."""
    os.symlink(theirs, attempt.place / "claim")
    answer = attempt.run("#!/bin/sh\necho hi\n")

    assert (0, "", "ftrun: attempt 1 of r-0001 is closed; not started\n") == answer
    assert [attempt.place / "claim"] == list(attempt.place.iterdir())
    assert attempt.claim() == theirs


@pytest.mark.parametrize(("held", "restart", "own"), [("claim.1", "0", "claim"), ("claim", "1", "claim.1")])
def test_an_attempt_of_which_another_job_holds_any_launch_does_not_run(
    attempt: Attempt, held: str, restart: str, own: str
) -> None:
    """sbatch may make two jobs of one attempt, and one may be requeued before its script begins: their launches differ then."""
    os.symlink("c.6.1.ftrun:r-0001:ab:1", attempt.place / held)
    attempt.env["SLURM_RESTART_COUNT"] = restart

    assert attempt.run("#!/bin/sh\necho hi\n")[:2] == (0, "")
    assert not (attempt.place / own).is_symlink()


def test_a_launch_after_a_closed_one_does_not_run(attempt: Attempt) -> None:
    """Closing an attempt holds for every later launch of it."""
    os.symlink("c.7.0.ftrun:r-0001:ab:1", attempt.place / "claim")
    os.symlink("closed.2", attempt.place / "claim.1")
    attempt.env["SLURM_RESTART_COUNT"] = "2"

    assert attempt.run("#!/bin/sh\necho hi\n")[1] == ""
    assert not (attempt.place / "claim.2").is_symlink()


def test_the_supervisor_closes_what_batch_sh_would_claim(attempt: Attempt) -> None:
    """Both sides agree on the names: what `attempts.close` takes, a job cannot start."""
    attempt_dir.close_attempt(str(attempt.run_dir), 1, epoch=3)

    assert "not started" in attempt.run("#!/bin/sh\necho hi\n")[2]


def test_attempt_1_runs_without_its_folder(attempt: Attempt) -> None:
    """Before the first launch nothing else can exist, so a home that a node cannot see costs nothing."""
    shutil.rmtree(attempt.run_dir)

    assert (3, "hi\n", "") == attempt.run("#!/bin/sh\necho hi\nexit 3\n")
    assert not attempt.run_dir.exists()


@pytest.mark.parametrize(("number", "restart"), [("2", "0"), ("1", "1")])
def test_any_later_start_needs_its_claim(attempt: Attempt, number: str, restart: str) -> None:
    """Where no claim can be made a later attempt or launch waits, then leaves without running the script."""
    attempt.values |= {"attempt": number, "claim_wait_s": "0"}
    attempt.env["SLURM_RESTART_COUNT"] = restart
    shutil.rmtree(attempt.run_dir)
    code, out, err = attempt.run("#!/bin/sh\necho hi\n")

    assert (1, "") == (code, out)
    assert "could not be claimed" in err


def test_a_claim_that_becomes_possible_is_taken(attempt: Attempt) -> None:
    """A folder that appears late is waited for."""
    attempt.values |= {"attempt": "2", "claim_wait_s": "3000"}
    job = attempt.start("#!/bin/sh\necho hi\n", change=(b"        sleep 2\n", b"        sleep 0.2\n"))
    time.sleep(0.3)
    attempt.place.mkdir(parents=True)

    assert (b"hi\n", b"") == job.communicate(timeout=60)


def test_tasks_of_an_array_have_claims_of_their_own(attempt: Attempt) -> None:
    """One attempt covers many tasks; each keeps its records in a folder named for it."""
    attempt.env["SLURM_ARRAY_JOB_ID"] = "7"
    for task in ("3", "4"):
        attempt.env |= {"SLURM_ARRAY_TASK_ID": task, "SLURM_JOB_ID": "1" + task}
        assert attempt.run("#!/bin/sh\necho hi\n")[1] == "hi\n"
    assert os.readlink(attempt.place / "tasks" / "4" / "claim") == "c.14.0.ftrun:r-0001:ab:1"
    assert "array_task=3\n" in (attempt.place / "tasks" / "3" / "launch.0").read_text()
    os.symlink("closed.2", attempt.place / "claim")
    attempt.env["SLURM_ARRAY_TASK_ID"] = "5"
    assert attempt.run("#!/bin/sh\necho hi\n")[1] == ""


def test_the_tasks_of_a_narrowed_array_are_told_of_the_whole(attempt: Attempt) -> None:
    """A script that splits its work by the number of tasks splits it as before."""
    attempt.env |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_MAX": "3"}
    attempt.values["array"] = "SLURM_ARRAY_TASK_COUNT=6\nSLURM_ARRAY_TASK_MAX=5"

    assert (
        "6 5 3\n"
        == attempt.run(
            "#!/bin/sh\necho $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_ID\n"
        )[1]
    )


def test_a_launch_and_its_end_are_recorded(attempt: Attempt) -> None:
    """The supervisor reads where the log is, where this launch begins in it, and how the script ended."""
    log = attempt.folder / "the log"
    log.write_text("before\n")
    composed = attempt.folder / "slurm_script"
    composed.write_bytes(compose(b"#!/bin/sh\nexit 5\n", attempt.values))
    with log.open("a") as file:
        subprocess.run(
            [*attempt.shell, composed], env=attempt.env, cwd=attempt.folder, stdout=file, stderr=file
        )
    launch = attempt_dir.launch_record(str(attempt.run_dir), 1, 0)
    end = attempt_dir.exit_record(str(attempt.run_dir), 1, 0)

    assert launch is not None
    assert end is not None
    assert ("7", str(log), 7) == (launch.job, launch.stdout, launch.stdout_offset_bytes)
    assert (log.stat().st_dev, log.stat().st_ino) == (launch.stdout_dev, launch.stdout_ino)
    assert (launch.stderr, launch.resume_from) == (str(log), "")
    assert (5, 0) == (end.code, end.signal)
    assert stat.S_IMODE((attempt.place / "exit.0").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL, signal.SIGINT, signal.SIGPIPE, signal.SIGUSR1]
)
def test_a_script_that_dies_of_a_signal_ends_the_job_by_it(attempt: Attempt, number: int) -> None:
    """Slurm must see the signal, not 128 and a number; so does the record."""
    assert (-number, "", "") == attempt.run(f"#!/bin/sh\nkill -{int(number)} $$\nsleep 9\n")
    assert f"signal={int(number)}\n" in (attempt.place / "exit.0").read_text()


@under_one_shell("attempt")
@pytest.mark.parametrize("code", [0, 1, 127, 128, 139, 143, 145, 255])
def test_an_exit_code_is_no_signal(attempt: Attempt, code: int) -> None:
    """A script that says `exit 139` did not die of signal 11."""
    assert (code, "", "") == attempt.run(f"#!/bin/sh\nexit {code}\n")
    assert f"code={code}\nsignal=0\n" in (attempt.place / "exit.0").read_text()


@pytest.mark.parametrize("change", [(b"", b""), NO_PERL], ids=["perl", "no perl"])
def test_signals_to_the_parent_alone_reach_the_script_once(
    attempt: Attempt, change: tuple[bytes, bytes]
) -> None:
    """`scancel -b` and cgroups signal the batch shell only; it hands each on."""
    script = (
        '#!/bin/bash\nfor s in HUP INT QUIT USR1 USR2 TERM CONT; do trap "echo $s | tee -a heard" $s; done\n'
    )
    job = attempt.start(script + "touch ready\nwhile [ ! -e go ]; do sleep 0.05; done\n", change=change)
    wait_for((attempt.folder / "ready").exists)
    sent = ["USR1", "INT", "QUIT", "HUP", "CONT", "TERM", "USR1"]
    for number, name in enumerate(sent):
        os.kill(job.pid, getattr(signal, "SIG" + name))
        wait_for(lambda so_far=sent[: number + 1]: _heard(attempt)[: len(so_far)] == so_far)  # type: ignore[misc]
    time.sleep(0.3)  # for one that comes twice
    (attempt.folder / "go").touch()

    assert (sent, b"") == ((done := job.communicate(timeout=60))[0].decode().split(), done[1])


def _heard(attempt: Attempt) -> list[str]:
    file = attempt.folder / "heard"
    return file.read_text().split() if file.exists() else []


def test_signals_that_come_close_together_all_arrive(attempt: Attempt) -> None:
    """One that comes while another is handed on is not left lying."""
    script = '#!/bin/bash\nfor s in USR1 USR2 TERM CONT; do trap "echo $s | tee -a heard" $s; done\n'
    job = attempt.start(script + "touch ready\nwhile [ ! -e go ]; do sleep 0.05; done\n")
    wait_for((attempt.folder / "ready").exists)
    for name, pause_s in (("CONT", 0.03), ("USR1", 0.12), ("USR2", 0.07), ("TERM", 0.5)):
        os.kill(job.pid, getattr(signal, "SIG" + name))
        time.sleep(pause_s)
    wait_for(lambda: len(_heard(attempt)) >= 4)
    (attempt.folder / "go").touch()

    assert ["CONT", "TERM", "USR1", "USR2"] == sorted(job.communicate(timeout=60)[0].decode().split())


def test_a_signal_to_all_reaches_the_script_once_though_its_sender_is_held_up(attempt: Attempt) -> None:
    """Whoever still runs may not be done: on a busy machine slurmstepd waits between two processes that it signals."""
    script = '#!/bin/bash\ntrap "echo TERM | tee -a heard" TERM\n'
    # It is waited for a second; where others have the processors it takes longer to be held up for a moment.
    job = attempt.start(
        script + "touch ready\nwhile [ ! -e go ]; do sleep 0.05; done\n",
        change=(b"_ft_tries=10\n", b"_ft_tries=600\n"),
    )
    wait_for((attempt.folder / "ready").exists)
    children = _children(job.pid)
    os.kill(job.pid, signal.SIGTERM)
    until_s = time.thread_time() + 0.3  # of a processor, so this process is seen to run
    while time.thread_time() < until_s:
        pass
    for process in children:
        with contextlib.suppress(ProcessLookupError):  # one that was about to become a `sleep`
            os.kill(process, signal.SIGTERM)
    wait_for(lambda: _heard(attempt) != [])
    time.sleep(0.3)  # for one that comes twice
    (attempt.folder / "go").touch()

    assert "TERM" == job.communicate(timeout=60)[0].decode().strip()


def _children(parent: int) -> list[int]:
    """Processes that a process started itself, but for the `sleep` with which it waits."""
    found = []
    for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{one}/comm").read_text() != "sleep\n":
                found.append(int(one))
    return found


def test_what_the_shell_sees_is_what_slurm_gave(attempt: Attempt) -> None:
    """Environment, exported functions, arguments and open files are the job's own; nothing of ours leaks."""
    attempt.env |= {
        "BASH_FUNC_f%%": "() {  echo f\n}",
        "A": "x\ny='",
        "SHLVL": "3",
        "IFS": "x",
        "LC_ALL": "C.UTF-8",
        "SLURM_JOB_NODELIST": "n[3,5]",
        "_ft_rc": "9",
    }
    script = "#!/usr/bin/env python3\nimport os, sys\nprint(sorted(os.environ.items()), sys.argv[1:], sorted(os.listdir('/proc/self/fd')))\n"
    wanted = {
        **attempt.env,
        "FTRUN_RUN_ID": "r-0001",
        "FTRUN_ATTEMPT": "1",
        "FTRUN_RESTART": "0",
        "FTRUN_RESUME_FROM": "",
    }
    wanted |= {
        "FTRUN_LAST_FAULT": "",
        "FTRUN_EXCLUDED": "",
        "FTRUN_RUN_DIR": str(attempt.run_dir),
        "FTRUN_NNODES": "2",
        "FTRUN_JOB_ID": "7",
        "FTRUN_START": "1",
        "FTRUN_START_TOKEN": "0.1",
        "FTRUN_ATTEMPT_DIR": str(attempt.place),
        "FTRUN_BEAT_DIR": str(attempt.place / "beats" / "0.1"),
        "FTRUN_MASTER_ADDR": "n3",
        "FTRUN_MASTER_PORT": "21192",
        "FTRUN_WORLD_SIZE": "2",
        "FTRUN_DP_SCALE": "1",
    }
    args = ["a b", "*", "", "'", "\\", "x\ny"]

    assert f"{sorted(wanted.items())} {args} ['0', '1', '2', '3']\n" == attempt.run(script, *args)[1]


def checkpoint(path: Path, age_s: int = 0) -> Path:
    path.mkdir(parents=True) if path.suffix == "" else path.parent.mkdir(parents=True, exist_ok=True)
    (path / "weights" if path.suffix == "" else path).write_text("w")
    os.utime(path, (1_000_000 - age_s, 1_000_000 - age_s))
    return path


NAMES = [
    (["step_9", "step_10", "step_100"], "step_100"),
    (["step-000200", "step-1000"], "step-1000"),
    (["ckpt_100.h5", "ckpt_99.h5"], "ckpt_100.h5"),
    (["epoch=9-step=90.ckpt", "epoch=1-step=100.ckpt"], "epoch=1-step=100.ckpt"),
    (["epoch=02-val=0.99.ckpt", "epoch=10-val=0.12.ckpt"], "epoch=10-val=0.12.ckpt"),
    (["global_step20", "latest"], "global_step20"),
    (["iter_0000008", "iter_0000010"], "iter_0000010"),
    (["b", "a"], "b"),
    (["08", "9", "010"], "010"),
    (["step_5", "step_6.tmp", "step_7.partial", "step_8-tmp", "tmp-step_9", "step_10.orbax-checkpoint-tmp-3"], "step_5"),
    (["a b 1", "a b 2"], "a b 2"),
    (["x.1.pt", "x.2.pt.3"], "x.2.pt.3"),
]  # fmt: skip


@under_one_shell("attempt")
@pytest.mark.parametrize(("names", "newest"), NAMES, ids=[n for _, n in NAMES])
def test_the_newest_checkpoint_is_the_highest_step(attempt: Attempt, names: list[str], newest: str) -> None:
    """By the number in the name; the supervisor, which looks from outside, finds the same."""
    folder = attempt.folder / "check points"
    for name in names:
        checkpoint(folder / name)
    attempt.values["checkpoint_glob"] = str(folder / "*")

    assert f"FTRUN_RESUME_FROM={folder / newest}\n" in attempt.run(TELL)[1]
    assert checkpoints.newest_checkpoint(str(folder / "*")) == str(folder / newest)


def test_the_youngest_wins_where_no_name_has_a_number(attempt: Attempt) -> None:
    """Without steps, age decides."""
    for name, age_s in (("good", 5), ("best", 1), ("last", 9)):
        checkpoint(attempt.folder / "c" / name, age_s)
    attempt.values["checkpoint_glob"] = "c/*"

    assert "FTRUN_RESUME_FROM=c/best\n" in attempt.run(TELL)[1]
    assert checkpoints.newest_checkpoint("c/*", cwd=str(attempt.folder)) == str(attempt.folder / "c" / "best")


def test_incomplete_checkpoints_are_passed_over(attempt: Attempt) -> None:
    """Empty files and folders, a missing marker, and what the supervisor set aside are no checkpoints."""
    folder = attempt.folder / "c"
    for n in (1, 2, 3):
        checkpoint(folder / f"step_{n}")
        (folder / f"step_{n}" / "done").touch()
    checkpoint(folder / "step_4")
    (folder / "step_5").mkdir()
    (folder / "step_6").touch()
    attempt.values |= {"checkpoint_glob": str(folder / "*"), "checkpoint_marker": "done"}
    attempt.values["checkpoint_skip"] = f"{folder / 'step_9'}\n{folder / 'step_3'}"

    assert f"FTRUN_RESUME_FROM={folder / 'step_2'}\n" in attempt.run(TELL)[1]
    found = checkpoints.newest_checkpoint(
        str(folder / "*"), marker="done", set_aside=(str(folder / "step_3"),)
    )
    assert found == str(folder / "step_2")


def test_a_marker_may_stand_beside_its_file(attempt: Attempt) -> None:
    """`step_1.pt` is complete when `step_1.pt.ok` exists; the marker itself is no checkpoint."""
    for n in (1, 2):
        checkpoint(attempt.folder / "c" / f"step_{n}.pt")
    (attempt.folder / "c" / "step_1.pt.ok").write_text("x")
    attempt.values |= {"checkpoint_glob": "~/c/*", "checkpoint_marker": ".ok"}

    assert f"FTRUN_RESUME_FROM={attempt.folder}/c/step_1.pt\n" in attempt.run(TELL)[1]


def test_resume_flags_appear_only_with_a_checkpoint(attempt: Attempt) -> None:
    """Templates become arguments behind the user's own, and variables; a path with blanks stays one word."""
    attempt.values |= {
        "checkpoint_glob": "my c*/step *",
        "resume_arg": "--resume={checkpoint}\n--again",
        "restart": "3",
    }
    attempt.values["resume_env"] = "FTRUN_TEST={checkpoint}:{checkpoint}"
    assert "[x y]\n" == attempt.run(TELL, "x y")[1].partition("FTRUN_WORLD_SIZE=2\n")[2]
    shutil.rmtree(attempt.place)
    attempt.place.mkdir()
    checkpoint(attempt.folder / "my c" / "step 1")
    out = attempt.run(TELL, "x y")[1]

    assert out.endswith("[x y]\n[--resume=my c/step 1]\n[--again]\n")
    assert "FTRUN_TEST=my c/step 1:my c/step 1\n" in out
    assert "FTRUN_RESTART=3\n" in out
    assert "resume_from=my c/step 1\n" in (attempt.place / "launch.0").read_text()


@under_one_shell("attempt")
@pytest.mark.parametrize(
    ("exported", "seen"),
    [("NONE", "FTRUN_RUN_ID,"), ("A,B=2", "A,B=2,FTRUN_RUN_ID,"), ("ALL", "ALL\n"), ("ALL,X=1", "ALL,X=1\n")],
)
def test_srun_is_told_to_export_our_names_and_no_others(attempt: Attempt, exported: str, seen: str) -> None:
    """With --export=NONE or a list, tasks get FTRUN_* and nothing that they would not have had."""
    attempt.env["SLURM_EXPORT_ENV"] = exported

    assert attempt.run("#!/bin/sh\necho $SLURM_EXPORT_ENV\n")[1].startswith(seen)


def test_a_full_temporary_folder_is_no_obstacle(attempt: Attempt) -> None:
    """The script goes to the next place that takes it."""
    attempt.env["TMPDIR"] = "/proc"

    assert (0, "hi\n", "") == attempt.run("#!/bin/sh\necho hi\n")


@under_one_shell("attempt")
@pytest.mark.parametrize(
    ("interpreter", "code", "why"),
    [
        ("/no/such", 2, "No such file"),
        ("/etc/passwd", 13, "Permission denied"),
        ("/", 13, "Permission denied"),
        ("", 8, "Exec format"),
    ],
)
def test_a_missing_interpreter_ends_as_under_slurm(
    attempt: Attempt, interpreter: str, code: int, why: str
) -> None:
    """slurmstepd ends such a job with the error's number."""
    answer = attempt.run(f"#!{interpreter}\n")

    assert (code, "") == answer[:2]
    assert why in answer[2]


def test_what_killed_jobs_left_is_removed(attempt: Attempt) -> None:
    """A job that ends by SIGKILL cannot clean up; a later one does, and spares the living and the young."""
    temporary = attempt.folder / "my tmp"
    folders = [temporary / f"ftrun.aaaaa{n}" for n in range(3)]
    for folder in folders:
        folder.mkdir()
        os.mkfifo(folder / "ask.1")
    reader = os.open(folders[1] / "ask.1", os.O_RDWR)
    for folder in folders[:2]:
        os.utime(folder, (1_000_000, 1_000_000))
    attempt.run("#!/bin/sh\n")
    os.close(reader)

    assert folders[1:] == sorted(temporary.iterdir())
    for folder in folders[1:]:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1"])
@pytest.mark.parametrize(
    "where",
    [b"_ft_take\n    _ft_claimed", b"_ft_unpack\n    _ft_open_talk", b"_ft_open_stage\n    _ft_compose"],
    ids=["before the claim", "behind the folder", "at last"],
)
def test_a_job_that_is_ended_before_its_script_begins_ends_by_that_signal(
    attempt: Attempt, where: bytes, name: str
) -> None:
    """There is nobody yet to hand a signal to: the script does not begin, and nothing private stays on the node."""
    job = attempt.start(
        "#!/bin/sh\necho began\n",
        change=(where, where.replace(b"\n", f"\n    kill -{name} $$\n".encode(), 1)),
    )
    out, err = job.communicate(timeout=60)

    assert (-getattr(signal, "SIG" + name), b"", b"") == (job.returncode, out, err)


@pytest.mark.parametrize(
    "where",
    [
        b"_ft_choose\n    _ft_name_logs",
        b"_ft_unpack\n    _ft_open_talk",
        b"_ft_listen\n    while",
        b"_ft_await\n        _ft_dismiss",
    ],
)
def test_a_mistake_of_ours_costs_no_run(attempt: Attempt, where: bytes) -> None:
    """Wherever our own shell breaks down, the script runs, sees its arguments and keeps its code."""
    broken = (
        where.replace(b"\n", b"\n    exit 2\n", 1)
        if not where.startswith(b"_ft_await")
        else b"exit 2\n" + where
    )
    out = attempt.run(TELL + "sleep 0.2\nexit 6\n", "it's", change=(where, broken))

    assert (6, "[it's]") == (out[0], out[1].splitlines()[-1])
    for left in (attempt.folder / "my tmp").iterdir():  # nobody is left to remove it
        shutil.rmtree(left)


ENDS = """
_ft_tmp=$1 _ft_got= wrong=
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    for end in 'exit 3' 'exit 0' 'kill -15 $$'; do
        : >"$_ft_tmp/jobs"
        trap 'jobs -l >>"$_ft_tmp/jobs"' CHLD
        case $end in exit*) (eval "$end") & ;; *) (sh -c "$end") & ;; esac
        _ft_child=$!
        sleep 0.001 &
        (sleep 0.00$((n % 5))) &
        (exit 7) &
        other=$!
        _ft_await
        until _ft_is_over "$other"; do :; done
        [ "$_ft_status" = 7 ] || wrong="$wrong other:$_ft_status"
        case "$end:$_ft_rc:$_ft_sig" in 'exit 3:3:0' | 'exit 0:0:0' | kill*:143:15) ;; *) wrong="$wrong $end:$_ft_rc:$_ft_sig" ;; esac
    done
done
echo "wrong:$wrong"
"""


def test_bash_knows_how_a_child_ended_whatever_other_children_end_beside_it(tmp_path: Path) -> None:
    """SIGCHLD may take the place of any child's status, once or for good: then the list of jobs has it."""
    text = Path(bundle_shell.__file__).with_name("batch.sh").read_text()
    parts = [
        text[(at := text.index(f"\n{name}() {{")) : text.index("\n}\n", at) + 3]
        for name in ("_ft_state", "_ft_is_over", "_ft_await", "_ft_listed")
    ]
    told = subprocess.run(
        [*SHELLS["bash"], "-c", "".join(parts) + ENDS, "sh", str(tmp_path)], capture_output=True, text=True
    )
    assert ("wrong:\n", "") == (told.stdout, told.stderr)
