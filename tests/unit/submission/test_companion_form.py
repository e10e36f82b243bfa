"""Laws of what a companion is submitted with, and that its script runs under each POSIX shell."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.model.agent_events import companion_mark
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.submission import companion as submission_companion
from ftrun.supervisor.submission.companion import companion_call
from tests.unit.bundle.test_batch_sh import EACH_SHELL, shell_of, under_one_shell
from tests.unit.submission.test_submit import kept

SCRIPT = b"#!/bin/sh\necho hello\n"
MARK = "job-0001:0123abcd:companion:2.0.1"
ALWAYS = (
    "--no-requeue",
    "--open-mode=append",
    "--output=",
    "--input=",
    "--job-name=",
    "--comment=",
    "--time=",
    "--nodes=",
)


def made(
    *argv: str, script: bytes = SCRIPT, env: dict[str, str] | None = None, source: str = "file", **about: Any
) -> submission_companion.CompanionCall:
    """A companion of two nodes for attempt 2, beside job 41 on n0 to n3."""
    how: dict[str, Any] = {
        "run_dir": "/r", "attempt": 2, "launch": 0, "number": 1, "nodes": 2, "limit_s": 3659.0, "main_job": "41", "main_started": 1000.4,
        "exclude": ["n0", "n1", "n2", "n3"],
    }  # fmt: skip
    return companion_call(kept(*argv, source=source), script, env or {}, **(how | about))


def resources(*argv: str, **about: Any) -> list[str]:
    """The arguments that differ from submission to submission."""
    return [word for word in made(*argv, **about).argv if not word.startswith((*ALWAYS, "--exclude="))]


def test_a_companion_is_of_the_main_jobs_making() -> None:
    """Its own number of nodes, for what is left of the main job's time and not a second less, beside its nodes, never twice, with a mark that is no token."""
    argv = list(made("-N4", "job.sh").argv)

    assert argv == [
        "--nodes=2", "--time=61", "--no-requeue", "--open-mode=append", "--exclude=n[0-3]", "--output=/r/attempts/2/companions/1.log",
        "--input=/dev/null", "--job-name=job.sh", f"--comment={MARK}",
    ]  # fmt: skip
    assert companion_mark("ftrun:job-0001:0123abcd", 2, 0, 1) == MARK


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["-N4", "--ntasks-per-node=2"], ["--ntasks=4", "--ntasks-per-node=2"]),
        (["-N4", "-n8"], ["--ntasks=4", "--ntasks-per-node=2"]),
        (["-n8", "--ntasks-per-node=2"], ["--ntasks=4", "--ntasks-per-node=2"]),
        (["-N4", "-n8", "-c3"], ["--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=3"]),
        (["-N4", "--gpus=16"], ["--gpus-per-node=4"]),
        (["-N4", "-G", "a100:8"], ["--gpus-per-node=a100:2"]),
        (["-N4", "--gpus=16", "--gpus-per-node=4"], ["--gpus-per-node=4"]),
        (["-N4", "--gres=gpu:8", "--mem=9G", "--exclusive"], ["--exclusive", "--mem=9G", "--gres=gpu:8"]),
        (["-N4", "-p", "a,b", "-A", "x", "-q", "y", "-C", "z"], ["--account=x", "--partition=a,b", "--qos=y", "--constraint=z"]),
        (["-N4", "--reservation=r", "--exclusive=user"], ["--reservation=r", "--exclusive=user"]),
    ],
)  # fmt: skip
def test_it_asks_for_nodes_like_the_main_jobs(argv: list[str], wanted: list[str]) -> None:
    """What counts for the whole job is said for each node; which nodes and how much of each is said as the user said it."""
    assert resources(*argv, "job.sh") == wanted


def test_directives_and_variables_count_as_in_sbatch() -> None:
    """The command line outweighs variables, and these directives; a variable that would put in what is left out is gone."""
    head = b"#!/bin/sh\n#SBATCH -N4 --mem=1G --gres=gpu:1\n#SBATCH -p slow --comment=mine -x bad1\n"
    env = {
        "SBATCH_PARTITION": "fast",
        "SBATCH_REQUEUE": "1",
        "SBATCH_OUTPUT": "/x",
        "SBATCH_EXCLUSIVE": "",
        "A": "b",
    }
    one = made("--mem=2G", "job.sh", script=head, env=env)

    assert {"--partition=fast", "--mem=2G", "--gres=gpu:1", "--exclusive"} <= set(one.argv)
    assert {"--exclude=bad1,n[0-3]", f"--comment=mine {MARK}"} <= set(one.argv)
    assert one.env == {"SBATCH_PARTITION": "fast", "SBATCH_EXCLUSIVE": "", "A": "b"}


def test_what_was_meant_for_the_first_start_stays_out() -> None:
    """No dependency, no time to begin, no nodes by name, no signal, mail or wait, and never --no-kill."""
    typed = (
        "-d", "afterok:3", "-b", "now+1hour", "-w", "n[0-3]", "--signal=USR1@60", "--mail-type=ALL", "-W", "-k", "-H", "--requeue", "-L", "lic:1",
        "--open-mode=truncate", "-o", "mine", "-t", "5-0",
    )  # fmt: skip
    assert resources("-N4", *typed, "job.sh") == []


def test_it_goes_where_the_main_job_runs() -> None:
    """Of several partitions that the user named, the one in which the main job started."""
    assert resources("-N4", "-p", "a,b", "job.sh", partition="b") == ["--partition=b"]


@pytest.mark.parametrize(
    ("argv", "source", "name"),
    [(("-J", "mine", "job.sh"), "file", "mine"), (("--wrap=x",), "wrap", "wrap"), ((), "stdin", "sbatch")],
)
def test_it_has_the_main_jobs_name(argv: tuple[str, ...], source: str, name: str) -> None:
    """Whoever ends jobs by their name ends both."""
    assert f"--job-name={name}" in made("-N4", *argv, source=source).argv


@pytest.mark.parametrize(
    ("argv", "about", "why"),
    [
        (("-N4", "job.sh"), {"limit_s": 59.0}, "less than a minute is left of the job's time"),
        (("-N4", "-M", "other", "job.sh"), {}, "another cluster"),
        (("-N2-4", "job.sh"), {}, "a plain number of nodes"),
        (("-N3", "--gpus=8", "job.sh"), {}, "no multiple"),
    ],
)
def test_what_cannot_be_had_is_told_in_a_line(argv: tuple[str, ...], about: dict[str, Any], why: str) -> None:
    """A companion that could not be like the main job, or would outlive it, is none."""
    with pytest.raises(SubmitImpossible, match=why):
        made(*argv, **about)


def test_a_job_without_limit_has_a_companion_without_limit() -> None:
    """It ends with the main job all the same."""
    assert "--time=UNLIMITED" in made("-N4", "job.sh", limit_s=None).argv


SQUEUE = """#!/bin/sh
case "$*" in *' -s '*) echo 9.batch; echo 9.0; exit ;; esac
echo >>'{folder}/asked'
cat '{folder}/answer'
[ ! -s '{folder}/error' ] || {{ cat '{folder}/error' >&2; exit 1; }}
"""


class Companion:
    """A companion's script under one shell, beside a squeue and a clock that files answer for."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder, self.shell = folder, shell
        self.place = folder / "my run" / "attempts" / "2"
        self.here = self.place / "companions"
        tools = folder / "bin"
        for place in (self.place / "agent", tools, folder / "tmp"):
            place.mkdir(parents=True)
        (tools / "squeue").write_text(SQUEUE.format(folder=folder))
        (tools / "scancel").write_text(f"#!/bin/sh\necho \"$@\" >'{folder}/ended'\n")
        for name in ("sbatch", "scontrol", "srun"):  # by which the folder of the clients is known
            (tools / name).write_text("#!/bin/sh\nexit 1\n")
        for file in tools.iterdir():
            file.chmod(0o755)
        (self.place / "current").symlink_to("0.2")
        (self.place / "agent" / "pulse.0").write_text("5\n")
        (folder / "error").touch()
        (folder / "asked").touch()
        self.now_s = 0
        self.passes(1000)
        self.says("RUNNING 1001")

    def says(self, answer: str, error: str = "") -> None:
        (self.folder / "answer").write_text(answer and f"{answer}\n")
        (self.folder / "error").write_text(error)

    def passes(self, seconds: int) -> None:
        """So much later."""
        self.now_s += seconds
        (self.folder / "uptime.new").write_text(f"{self.now_s}.25 7.00\n")
        (self.folder / "uptime.new").replace(self.folder / "uptime")

    def looks(self, job: subprocess.Popen[str]) -> None:
        """It has looked at everything as it is now, and drawn its conclusions; or it has ended."""
        asked = self.folder / "asked"
        until, deadline = len(asked.read_text()) + 3, time.monotonic() + 60
        while len(asked.read_text()) < until and job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def start(self, **env: str) -> subprocess.Popen[str]:
        file = self.folder / "script"
        about: dict[str, Any] = {"run_dir": str(self.folder / "my run"), "main_host": "n0"}
        made_by = {"PATH": f"{self.folder}/bin:/usr/bin:/bin"}
        file.write_bytes(made("-N4", "job.sh", env=made_by, **about).content)
        told = {
            "PATH": "/usr/bin:/bin",
            "SLURM_JOB_ID": "9",
            "SLURM_JOB_NODELIST": "n[4-5]",
            "SLURMD_NODENAME": "n4",
        }
        told |= {
            "TMPDIR": str(self.folder / "tmp"),
            "FTRUN_COMPANION_PERIOD_S": "0.03",
            "FTRUN_COMPANION_ABSENT_S": "2",
        } | env
        file.write_text(file.read_text().replace("</proc/uptime", f"<'{self.folder}/uptime'"))
        return subprocess.Popen(
            [*self.shell, str(file)], env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


@pytest.fixture(params=EACH_SHELL)
def companion(request: pytest.FixtureRequest, tmp_path: Path) -> Companion:
    return Companion(tmp_path, shell_of(request))


def ended(job: subprocess.Popen[str]) -> str:
    out, _ = job.communicate(timeout=120)
    assert job.returncode == 0
    return out.partition("ftrun: ")[2]


def wait_here(companion: Companion) -> None:
    deadline = time.monotonic() + 60
    while not (companion.here / "1.here").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_says_that_it_is_there_and_ends_when_told(companion: Companion) -> None:
    """Job, nodes and host stand in the attempt's folder; told to end, it ends its steps and leaves nothing behind."""
    job = companion.start()
    wait_here(companion)
    assert (companion.here / "1.here").read_text() == "job=9\nnodes=n[4-5]\nhost=n4\n"
    companion.looks(job)
    assert job.poll() is None
    (companion.here / "1.over").touch()

    assert ended(job) == "told to end\n"
    assert (companion.folder / "ended").read_text() == "9.0\n"
    assert not list((companion.folder / "tmp").iterdir())


def test_its_nodes_keep_what_is_staged_by_the_same_words_as_the_jobs(companion: Companion) -> None:
    """A last word that is empty is one, too."""
    words = "--to\n/shared\n--marker\n\n"
    for file in (
        companion.folder / "my run" / "tools" / "ftrun-hook.pyz",
        companion.place / "stage" / "words.0",
    ):
        file.parent.mkdir()
        file.write_text(words)
    srun = companion.folder / "bin" / "srun"
    srun.write_text(
        f"#!/bin/sh\nfor word in \"$@\"; do printf '%s|' \"$word\"; done >'{companion.folder}/told'\n"
    )
    srun.chmod(0o755)
    job = companion.start()
    told = companion.folder / "told"
    deadline = time.monotonic() + 60
    while not (told.exists() and told.read_text().endswith("|0|")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (companion.here / "1.over").touch()
    ended(job)

    assert f"|--keep|{words}|" in told.read_text()


@under_one_shell("companion")
@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        ("COMPLETING 1001", "", "job 41 is not what it was: COMPLETING 1001\n"),
        ("RUNNING 1200", "", "job 41 is not what it was: RUNNING 1200\n"),
        ("PENDING N/A", "", "job 41 is not what it was: PENDING N/A\n"),
        ("", "", "job 41 is not what it was: gone\n"),
        ("", "slurm_load_jobs error: Invalid job id specified\n", "job 41 is not what it was: unknown\n"),
    ],
)
def test_it_ends_when_the_main_job_is_not_what_it_was(
    companion: Companion, answer: str, error: str, told: str
) -> None:
    """Over, in the queue again, started anew, or unknown to Slurm."""
    job = companion.start()
    wait_here(companion)
    companion.says(answer, error)
    companion.looks(job)
    companion.passes(5)

    assert ended(job) == told


@pytest.mark.parametrize("token", ["closed", "1.1"])
def test_it_ends_with_the_launch(companion: Companion, token: str) -> None:
    """A closed attempt, or a later launch; the word of an earlier one is a late word."""
    job = companion.start()
    wait_here(companion)
    os.replace(_link(companion.folder / "new", token), companion.place / "current")

    assert ended(job) == f"the launch of job 41 is over ({token})\n"


def _link(path: Path, content: str) -> Path:
    path.symlink_to(content)
    return path


@under_one_shell("companion")
def test_it_ends_when_nobody_counts_any_more(companion: Companion) -> None:
    """Neither the agent nor the script of the main job, though Slurm answers: its batch node is dead."""
    job = companion.start(FTRUN_COMPANION_STILL_S="3")
    wait_here(companion)
    for n in range(4):
        (companion.here / "alive.0").write_text(f"{n}\n")
        companion.looks(job)
        companion.passes(2)
    companion.looks(job)
    assert job.poll() is None
    companion.passes(2)

    assert ended(job).startswith("job 41 has not counted for ")


TOOLS = """#!/bin/sh
case " $0 $* " in
    *squeue*" -w "*) cat "${0%/*}/../held" ;;
    *sinfo*) cat "${0%/*}/../heard" ;;
    *) exec "${0%/*}/squeue.plain" "$@" ;;
esac
"""


def _asks_of_nodes(companion: Companion, held: str, heard: str) -> None:
    """Slurm also says which nodes the main job has, and in which state its first one is."""
    tools = companion.folder / "bin"
    (tools / "squeue").rename(tools / "squeue.plain")
    for name in ("squeue", "sinfo"):
        (tools / name).write_text(TOOLS)
        (tools / name).chmod(0o755)
    (companion.folder / "held").write_text(held)
    (companion.folder / "heard").write_text(heard)


@under_one_shell("companion")
def test_a_start_that_lies_in_it_is_not_ended_because_nobody_can_write(companion: Companion) -> None:
    """The main job's first node is well in Slurm's eyes: its mount may hang, or a quota be used up, and the ranks train on. Far later it ends all the same."""
    _asks_of_nodes(companion, "41\n", "mixed\n")
    job = companion.start(FTRUN_COMPANION_STILL_S="10", FTRUN_COMPANION_LONGEST_S="80")
    wait_here(companion)
    (companion.here / "alive.0").write_text("00000000000000000007 8 9\n")
    companion.looks(job)
    companion.passes(70)
    companion.looks(job)
    assert job.poll() is None
    companion.passes(20)

    assert ended(job).startswith("job 41 has not counted for ")


@under_one_shell("companion")
@pytest.mark.parametrize(("held", "heard"), [("", "idle\n"), ("41\n", "mixed*\n"), ("41\n", "down\n")])
def test_it_ends_when_the_node_of_the_script_is_lost(companion: Companion, held: str, heard: str) -> None:
    """Slurm has taken it from the job, or does not hear it, and nobody counts."""
    _asks_of_nodes(companion, held, heard)
    job = companion.start(FTRUN_COMPANION_STILL_S="1")
    wait_here(companion)
    (companion.here / "alive.0").write_text("00000000000000000007 9\n")
    companion.looks(job)
    companion.passes(5)

    assert ended(job).startswith("job 41 has not counted for ")


@under_one_shell("companion")
def test_a_start_in_other_companions_does_not_keep_it(companion: Companion) -> None:
    """Its agent is dead, and the script's counter goes on for those that its start lies in."""
    job = companion.start(FTRUN_COMPANION_STILL_S="2")
    wait_here(companion)
    for n in range(4):
        (companion.here / "alive.new").write_text(f"{n:020d} 8 19\n")
        (companion.here / "alive.new").replace(companion.here / "alive.0")
        companion.looks(job)
        companion.passes(1)

    assert ended(job).startswith("job 41 has not counted for ")


@under_one_shell("companion")
def test_a_main_job_that_is_suspended_is_waited_for(companion: Companion) -> None:
    """Its start goes on when it is resumed; nobody counts meanwhile."""
    job = companion.start(FTRUN_COMPANION_STILL_S="1")
    wait_here(companion)
    companion.says("SUSPENDED 1001")
    companion.looks(job)
    companion.passes(50)
    companion.looks(job)
    assert job.poll() is None
    companion.says("COMPLETING 1001")

    assert ended(job) == "job 41 is not what it was: COMPLETING 1001\n"


@under_one_shell("companion")
def test_one_answer_without_the_main_job_is_no_word(companion: Companion) -> None:
    """P6: a job that is missing once may be there in the next answer."""
    job = companion.start(FTRUN_COMPANION_ABSENT_S="30")
    wait_here(companion)
    for answer, error in (
        ("", ""),
        ("RUNNING 1001", ""),
        ("", "slurm_load_jobs error: Invalid job id specified\n"),
    ):
        companion.says(answer, error)
        companion.looks(job)
        companion.passes(20)
        companion.looks(job)
        assert job.poll() is None
    (companion.here / "1.over").touch()

    assert ended(job) == "told to end\n"


@under_one_shell("companion")
def test_silence_is_no_word(companion: Companion) -> None:
    """A controller that does not answer, and a folder that cannot be read, end nothing."""
    companion.says("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    job = companion.start(FTRUN_COMPANION_STILL_S="1")
    wait_here(companion)
    companion.looks(job)
    companion.passes(50)
    companion.looks(job)
    assert job.poll() is None
    away = companion.folder / "away"
    companion.place.rename(away)
    companion.says("RUNNING 1001")
    companion.looks(job)
    companion.passes(50)
    companion.looks(job)
    assert job.poll() is None
    away.rename(companion.place)
    companion.looks(job)
    companion.passes(50)

    assert ended(job).startswith("job 41 has not counted for ")
