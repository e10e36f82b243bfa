"""`ftrun sbatch` beside plain sbatch on real Slurm: what it prints, how it ends, what job comes of it, what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ftrun.slurm.client.releases import LONG, plugin_options
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.store import journal
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.submission import library_env
from ftrun.supervisor.submission.plan import AttemptSpec, request_for
from tests.begin_lines import without_begin_lines

pytestmark = pytest.mark.slurm

FTRUN = (sys.executable, "-m", "ftrun.supervisor")
JOB_ENDS_WITHIN_S = 240.0


@dataclass
class Desk:
    """A folder with scripts, a $FTRUN_HOME, and a sandbox to submit to."""

    box: Sandbox
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def call(
        self, command: tuple[str, ...], *, stdin: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder as a user would."""
        base = {
            **self.box.env(),
            "FTRUN_HOME": str(self.home),
            "FTRUN_SUPERVISOR": "none",
            "PWD": str(self.folder),
        }
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**base, **env},
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=180,
        )

    def sbatch(self, *args: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return self.call(("sbatch", *args), stdin=stdin, **env)

    def ftrun(self, *args: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return self.call((*FTRUN, "sbatch", *args), stdin=stdin, **env)

    def runs(self) -> list[str]:
        return [Path(path).name for path in store_run_dir.run_dirs(str(self.home))]

    def shown(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job, less what differs by nature."""
        # What was typed is not quoted there, so that no pattern finds its end but the field behind it.
        text = re.sub(
            r" SubmitLine=.*?(?= WorkDir=)",
            "",
            self.call(("scontrol", "-o", "show", "job", job)).stdout,
            flags=re.DOTALL,
        )
        fields = dict(re.findall(r"(\S+?)=(.*?)(?=\s\S+?=|$)", text))
        for key in (
            "JobId",
            "Command",
            "Priority",
            "SubmitTime",
            "EligibleTime",
            "AccrueTime",
            "LastSchedEval",
            "ArrayJobId",
            "HetJobId",
            "HetJobIdSet",
        ):
            fields.pop(key, None)
        comment = re.sub(r" ?ftrun:\S+", "", fields.pop("Comment", "")).strip()
        if comment:
            fields["Comment"] = comment
        return {
            key: re.sub(r"(?<=-)\d+", "ID", value) if key.startswith("Std") else value
            for key, value in fields.items()
        }

    def wait_for_end(self, *jobs: str) -> None:
        give_up = time.monotonic() + JOB_ENDS_WITHIN_S
        while any(
            "JobState=COMPLETED" not in self.call(("scontrol", "-o", "show", "job", job)).stdout
            for job in jobs
        ):
            assert time.monotonic() < give_up, self.call(("squeue",)).stdout
            time.sleep(0.2)


@pytest.fixture
def make_desk() -> Iterator[Callable[[Sandbox], Desk]]:
    desks: list[Desk] = []

    def make(box: Sandbox) -> Desk:
        desk = Desk(box, Path(tempfile.mkdtemp(prefix="ftrun-t-")))
        desks.append(desk)
        write(desk, "job.sh", "echo hello")
        write(desk, "my job.sh", '#SBATCH -N2 --comment="my own" -t 7\necho hello "$@"')
        return desk

    yield make
    for desk in desks:
        jobs = desk.call(("squeue", "-h", "-o", "%A %Z")).stdout.splitlines()
        mine = [line.split()[0] for line in jobs if line.split()[1].startswith(str(desk.folder))]
        desk.call(("scancel", "--quiet", *mine))
        shutil.rmtree(desk.folder, ignore_errors=True)


@pytest.fixture
def desk(slurm_sandbox: Sandbox, make_desk: Callable[[Sandbox], Desk]) -> Desk:
    return make_desk(slurm_sandbox)


def write(desk: Desk, name: str, body: str, first: str = "#!/bin/bash") -> Path:
    path = desk.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\n{textwrap.dedent(body)}\n")
    return path


def alike(text: str) -> str:
    """Output with job ids, run folders and times replaced by a word: they differ by nature."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "TIME", text)
    return re.sub(r"(?m)((?<=batch job )\d+|(?<=Job )\d+|^\d+)", "ID", text)


@dataclass(frozen=True)
class Row:
    """One way to call sbatch, and what it is called with."""

    name: str
    args: tuple[str, ...]
    stdin: str | None = None
    env: dict[str, str] = field(default_factory=dict)


EARLIER = "earlier"  # a job of this name waits already
HELD = "#!/bin/sh\n#SBATCH --hold --job-name=from-stdin\nhostname\n"
ROWS = (
    Row("a script", ("-H", "job.sh")),
    Row(
        "spaces and quotes everywhere",
        ("-H", "my job.sh", "a b", "", "*", "'q\"", "$HOME", "--x", "-N9", "é", "a\nb"),
    ),
    Row("by absolute path", ("-H", "{folder}/job.sh")),
    Row("by relative path", ("-H", "./job.sh")),
    Row("in a folder", ("-H", "sub/deep.sh")),
    Row("along PATH", ("-H", "onpath.sh")),
    Row("short options in one", ("-HN2", "-n", "2", "job.sh")),
    Row("long options", ("--hold", "--nodes", "1-2", "--time=0:30", "--job-name", "other name", "job.sh")),
    Row("shortened options", ("--hol", "--tim=5", "--job-n", "short", "job.sh")),
    Row("short forms whose sense depends on the version", ("-H", "--cont", "--kill=yes", "job.sh")),
    Row("end mark", ("-H", "--", "job.sh", "-x")),
    Row("comment", ("-H", "--comment", "mine, all mine", "job.sh")),
    Row("parsable", ("-H", "--parsable", "job.sh")),
    Row("quiet", ("-H", "-Q", "job.sh")),
    Row("wrap", ("-H", "--wrap", "echo 'a  b'; exit 3")),
    Row("wrap with a name", ("-H", "-J", "named", "--wrap=hostname")),
    Row("wrap named by the environment", ("-H", "--wrap=hostname"), env={"SBATCH_JOB_NAME": "from-env"}),
    Row("standard input", (), stdin=HELD),
    Row("standard input with options", ("-N2", "--parsable"), stdin=HELD),
    Row("standard input under a name", ("-H", "-J", "given"), stdin="#!/bin/sh\n"),
    Row(
        "environment",
        ("-H", "job.sh"),
        env={"SBATCH_TIMELIMIT": "9", "SBATCH_JOB_NAME": "envname", "SBATCH_OUTPUT": "o-%j"},
    ),
    Row("environment outweighs the script", ("-H", "my job.sh"), env={"SBATCH_TIMELIMIT": "11"}),
    Row("an array", ("-H", "--array=0-3%2", "job.sh")),
    Row("a heterogeneous job", ("-H", "-N1", ":", "-H", "-N2", "job.sh")),
    Row("test only", ("--test-only", "-N1", "job.sh")),
    Row("test only of a wrap", ("--test-only", "--wrap=true")),
    Row("dependency", ("-H", "-d", "singleton", "-J", EARLIER, "job.sh")),
    Row("begin", ("-b", "2037-12-31T23:00:00", "job.sh")),  # no time that runs on between the two calls
    Row("excluding", ("-H", "-x", "{node}", "job.sh")),
    Row("open mode", ("-H", "--open-mode=truncate", "job.sh")),
    Row("this cluster by name", ("-H", "job.sh"), env={"SLURM_HINT": "nomultithread"}),
    Row("version", ("--version",)),
    Row("usage", ("--usage",)),
    Row("help", ("-N2", "--help", "job.sh")),
    Row("no such file", ("nothing.sh", "x")),
    Row("a folder", ("/tmp",)),
    Row("no shebang", ("plain.txt",)),
    Row("no shebang on standard input", (), stdin="echo\n"),
    Row("nothing on standard input", (), stdin=""),
    Row("only blanks", (), stdin=" \n\n"),
    Row("DOS line ends", ("dos.sh",)),
    Row("unknown option", ("--bogus", "job.sh")),
    Row("unknown letter", ("-y", "job.sh")),
    Row("ambiguous option", ("--no", "job.sh")),
    Row("option behind the script", ("-H", "job.sh", "-N")),
    Row("value missing at the end", ("-N",)),
    Row("value where none is wanted", ("--hold=yes", "job.sh")),
    Row("script beside wrap", ("--wrap=x", "job.sh")),
    Row("no such partition", ("-p", "nope", "job.sh")),
    Row("too many tasks", ("-N1", "-n", "100000", "job.sh")),
    Row("bad time", ("-t", "soon", "job.sh")),
    Row("bad dependency", ("-d", "after", "job.sh")),
    Row("bad array", ("--array=x", "job.sh")),
    Row("bad directive", ("badopt.sh",)),
    Row("unmatched quote in a directive", ("badquote.sh",)),
    Row("all nodes excluded", ("-x", "{nodes}", "job.sh")),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_output_exit_status_and_job_are_those_of_sbatch(desk: Desk, row: Row) -> None:
    """Byte for byte on both streams; and Slurm shows the same job but for the path of the file."""
    write(desk, "sub/deep.sh", "true")
    write(desk, "bin/onpath.sh", "true")
    write(desk, "dos.sh", "true\r", first="#!/bin/sh\r")
    write(desk, "badopt.sh", "#SBATCH --bogus=1\ntrue")
    write(desk, "badquote.sh", "#SBATCH --comment='x\ntrue")
    (desk.folder / "plain.txt").write_text("hello\n")
    names = {
        "folder": str(desk.folder),
        "node": desk.box.node_names[0],
        "nodes": ",".join(desk.box.node_names),
    }
    args = tuple(
        arg.format(**names) if arg in ("{folder}/job.sh", "{node}", "{nodes}") else arg for arg in row.args
    )
    env = {"PATH": f"{desk.folder}/bin:{desk.box.env()['PATH']}", **row.env}
    if EARLIER in args:
        desk.sbatch("-H", "-J", EARLIER, "job.sh")
    plain = desk.sbatch(*args, stdin=row.stdin, **env)
    ours = desk.ftrun(*args, stdin=row.stdin, **env)
    shown = ours.stdout.partition("\nSettings of ftrun: ")[0] if row.name == "help" else ours.stdout
    assert (alike(shown), alike(ours.stderr), ours.returncode) == (
        alike(plain.stdout),
        alike(plain.stderr),
        plain.returncode,
    )
    printed = re.compile(r"(?:Submitted batch job )?(\d+)\n")
    was, is_now = printed.fullmatch(plain.stdout), printed.fullmatch(ours.stdout)
    if was and is_now:
        assert desk.shown(is_now[1]) == desk.shown(was[1])
        assert store_run_dir.find_run(str(desk.home), is_now[1])
    elif plain.returncode:
        assert desk.runs() == []


CACHES = f"^({'|'.join(one.name for one in library_env.CACHES)})="
LOOK = rf"""
    printf '[%s]' "$@"; echo; unset SLURM_OPEN_MODE; pwd; umask; nice; ulimit -aS; ulimit -aH; f
    env -0 | sort -z | tr '\0' '\n' | sed 's,^PATH=[^:]*/agent/bin:,PATH=,' | grep -v '^FTRUN_\|^MASTER_\|^TORCH_[NH]CCL_\|^SLURM_JOB_*ID=\|^SLURM_JOBID=\|^SLURM_TASK_PID\|^SLURM_JOB_SLUID\|_TIME=\|^SLURM_JOB_NODELIST\|^SLURM_NODELIST\|^SLURMD_NODENAME\|^SLURM_TOPOLOGY\|^HOSTNAME' | grep -vE '{CACHES}'
"""
SUBMIT_IN_A_CORNER = """
    umask 027; ulimit -n 500; ulimit -S -c 0; cd corner; export LANG=C ODD=$'a\\nb =c'; unset LC_ALL LC_CTYPE
    f() { echo f "$1"; }; export -f f
    nice -n 3 "$@"
"""


def test_the_second_attempt_finds_the_context_of_the_first(desk: Desk) -> None:
    """Environment, exported functions, limits, umask, nice, folder and arguments: plain, attempt 1 and attempt 2, which
    another process submits from another folder with an empty environment.
    """
    write(desk, "corner/look.sh", LOOK)
    corner = ("bash", "-c", textwrap.dedent(SUBMIT_IN_A_CORNER), "x")
    args = ("-o", "{}.out", "look.sh", "a b", "$x", "")
    for command, log in ((("sbatch",), "plain"), ((*FTRUN, "sbatch"), "first")):
        done = desk.call((*corner, *command, *(arg.format(log) for arg in args)))
        assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    run_dir = str(desk.home / "runs" / run)
    desk.wait_for_end(*desk.call(("squeue", "-h", "-t", "all", "-n", "look.sh", "-o", "%A")).stdout.split())
    assert store_run_dir.open_attempt(run_dir, 2)
    program = (
        "import sys; from ftrun.slurm.commands.cluster import CommandCluster; from ftrun.supervisor.submission.plan import AttemptSpec, request_for\n"
        "_, run_dir, conf, node = sys.argv\n"
        "print(CommandCluster({'SLURM_CONF': conf}).submit(request_for(run_dir, AttemptSpec(2, exclude=(node,)))).job_id)"
    )
    asking = [sys.executable, "-c", program, run_dir, str(desk.box.conf), desk.box.node_names[0]]
    second = subprocess.run(asking, env={}, cwd="/", capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    desk.wait_for_end(second.stdout.strip())
    plain = (desk.folder / "corner/plain.out").read_text()
    both = without_begin_lines((desk.folder / "corner/first.out").read_text())
    first, again = both.split("[a b][$x][]\n")[1:]
    assert "nofile" in plain.replace("open files", "nofile")
    assert "[a b][$x][]\n" + first == plain
    assert again == first
    assert (
        f"ExcNodeList={desk.box.node_names[0]}"
        in desk.call(("scontrol", "-o", "show", "job", second.stdout.strip())).stdout
    )


def test_a_comment_of_json_stays_json_and_the_job_is_found_by_it(desk: Desk) -> None:
    """Slurm gives back what was written, and a site's program that reads it finds its own keys."""
    write(desk, "job.sh", "true")
    job = desk.ftrun("-H", "--parsable", "--comment", '{"APS": {"maxRestarts": 3}}', "job.sh").stdout.strip()
    run_dir = store_run_dir.find_run(str(desk.home), job)
    assert run_dir is not None
    token = journal.read_run(run_dir)[2]["data"]["token"]
    (row,) = CommandCluster(desk.box.env()).find(token)
    assert (row.job_id, json.loads(row.comment)) == (job, {"APS": {"maxRestarts": 3}, "ftrun": token})


def test_what_a_submission_leaves_behind(desk: Desk) -> None:
    """The intent before the id, the script byte for byte, nobody else can read it, and the id leads to the run."""
    done = desk.ftrun("-H", "--parsable", "--ft-retries=3", "my job.sh", "a b")
    job = done.stdout.strip()
    run_dir = store_run_dir.find_run(str(desk.home), job)
    assert run_dir is not None
    assert Path(run_dir).name == "my-job.sh-0001"
    records = journal.read_run(run_dir)
    assert [record["kind"] for record in records] == [
        "run.created",
        "attempt.opened",
        "submit.intended",
        "submit.done",
    ]
    assert records[3]["job"] == job
    token = records[2]["data"]["token"]
    assert [row.comment for row in CommandCluster(desk.box.env()).find(token)] == [f"my own {token}"]
    kept = json.loads(Path(run_dir, "submit/context.json").read_text())
    assert kept["argv"] == ["-H", "--parsable", "my job.sh", "a b"]
    assert (kept["settings"]["retries"], kept["settings_from"]["retries"]) == (3, "command line")
    assert (kept["script_path"], kept["source"], kept["shape"]) == (
        str(desk.folder / "my job.sh"),
        "file",
        "single",
    )
    assert Path(run_dir, "submit/script").read_bytes() == (desk.folder / "my job.sh").read_bytes()
    assert all(path.stat().st_mode & 0o077 == 0 for path in desk.home.rglob("*") if not path.is_symlink())


def test_a_refused_submission_leaves_no_run(desk: Desk) -> None:
    """Nothing is there for a supervisor to find."""
    assert desk.ftrun("-p", "nope", "job.sh").returncode == 1
    assert os.listdir(desk.home / "runs") == []


def test_where_no_run_can_be_kept_a_plain_job_is_submitted_with_a_warning(desk: Desk) -> None:
    """A full disk loses no submission, unless the user wants all or nothing."""
    done = desk.ftrun("-H", "job.sh", FTRUN_HOME="/proc/no/such")
    assert done.returncode == 0
    assert done.stdout.startswith("Submitted batch job ")
    assert done.stderr.startswith("ftrun: /proc/no")
    assert done.stderr.count("\n") == 1
    assert "ftrun" not in desk.call(("scontrol", "show", "job", done.stdout.split()[-1])).stdout.replace(
        str(desk.folder), ""
    )
    strict = desk.ftrun("-H", "--ft-strict", "job.sh", FTRUN_HOME="/proc/no/such")
    assert (strict.returncode, strict.stdout) == (2, "")
    assert "nothing was submitted" in strict.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--ft-retrys=3", "job.sh"), "did you mean 'retries'?"),
        (("--ft-retries=x", "nothing.sh"), "--ft-retries: a whole number"),
        (("--ft-retries",), "--ft-retries: a value is wanted"),
        (("wrong.sh",), "#FTRUN"),
        (
            ("-M", "elsewhere", "job.sh"),
            "--clusters=elsewhere: ftrun looks after jobs of the local cluster (",
        ),
        (("-Mall", "job.sh"), "--clusters=all: "),
        (("far.sh",), "#SBATCH --clusters=east,west: "),
        (("--cluster-constraint=fast", "job.sh"), "cannot move between the clusters of a federation"),
        (("--requeue=expedite", "--array=1-2", "job.sh"), "--requeue=expedite: failed tasks of an array"),
        (("--array=1-2", "held.sh"), "--requeue=expedite: "),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_before_anything_is_made(
    desk: Desk, args: tuple[str, ...], says: str
) -> None:
    """Exit 2, one line, no job and no run."""
    write(desk, "wrong.sh", "#FTRUN --retrys=10\ntrue")
    write(desk, "far.sh", "#SBATCH -M east,west\ntrue")
    write(desk, "held.sh", "#SBATCH --requeue=expedite\ntrue")
    done = desk.ftrun(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ftrun: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not desk.home.exists()


@pytest.mark.parametrize("name", ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"])
@pytest.mark.parametrize("named", ["elsewhere", "all", "east,west"])
def test_a_variable_that_names_other_clusters_is_refused_as_the_option_is(
    desk: Desk, name: str, named: str
) -> None:
    """sbatch itself would send the job there; what it thinks of one that is empty, sbatch says."""
    done = desk.ftrun("-H", "job.sh", **{name: named})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ftrun: {name}={named}: ftrun looks after jobs of the local cluster (")
    assert done.stderr.count("\n") == 1
    assert not desk.home.exists()
    ours, theirs = desk.ftrun("-H", "job.sh", **{name: ""}), desk.sbatch("-H", "job.sh", **{name: ""})
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_settings_stand_in_the_script_as_well(desk: Desk) -> None:
    """#FTRUN lines among the directives."""
    write(desk, "with.sh", "#SBATCH -H\n#FTRUN --retries=9 --checkpoint='ck pt/*'\ntrue")
    done = desk.ftrun("--parsable", "with.sh")
    run_dir = store_run_dir.find_run(str(desk.home), done.stdout.strip())
    assert run_dir is not None
    chosen = journal.read_run(run_dir)[0]["data"]["settings"]
    assert (chosen["retries"], chosen["checkpoint"]) == (9, "ck pt/*")


def test_a_dry_run_prints_command_and_file_and_makes_nothing(desk: Desk) -> None:
    """The first line is what would be called; the file follows."""
    done = desk.ftrun("--ft-dry-run", "-N2", "my job.sh", "a b")
    command, empty, first, *_ = done.stdout.split("\n")
    assert command.startswith("sbatch -N2 '--comment=my own ftrun:my-job.sh-0000:")
    assert command.endswith("'my job.sh' 'a b'") or "my job.sh' 'a b'" in command
    assert (empty, first) == ("", "#!/bin/sh")
    assert done.stdout.endswith((desk.folder / "my job.sh").read_text())
    assert not desk.home.exists()


def test_a_dependency_on_an_earlier_job_of_a_run_means_its_present_job(desk: Desk) -> None:
    """The id that was printed stands for the run, also after another attempt."""
    old = desk.ftrun("-H", "--parsable", "job.sh").stdout.strip()
    run_dir = store_run_dir.find_run(str(desk.home), old)
    assert run_dir is not None
    new = desk.sbatch("-H", "--parsable", "job.sh").stdout.strip()
    later = journal.Journal.open_epoch(
        run_dir, epoch=1, writer="test", believed=journal.believed_lengths(run_dir)
    )
    later.append("job.ended", attempt=1, job=old, state="FAILED", nodes=[])
    later.append("decided", attempt=1, job=old, kind="resubmit", reason="x", spent={}, retries=1, exclude=[])
    later.append("attempt.opened", attempt=2)
    later.append("submit.intended", attempt=2, token="ftrun:x:2")
    later.append("submit.done", attempt=2, job=new)
    later.close()
    done = desk.ftrun("-H", "--parsable", f"--dependency=afterok:{old},after:{old}+5", "job.sh")
    shown = desk.call(("scontrol", "-o", "show", "job", done.stdout.strip())).stdout
    assert f"afterok:{new}(unfulfilled),after:{new}+5(unfulfilled)" in shown
    assert f":{old}" not in re.search(r"Dependency=(\S+)", shown)[1]  # type: ignore[index]
    desk.call(
        ("scontrol", "update", f"JobId={old}", "Comment=ftrun:r-9999:cd:1")
    )  # as if its id were another run's by now
    done = desk.ftrun("-H", "--parsable", f"--dependency=afterok:{old}", "job.sh")
    assert f"afterok:{old}(" in desk.call(("scontrol", "-o", "show", "job", done.stdout.strip())).stdout


def test_a_reader_that_went_away_does_not_stop_the_submission(desk: Desk) -> None:
    """`ftrun sbatch job.sh | true` submits."""
    words = " ".join((*FTRUN, "sbatch", "-H", "job.sh"))
    assert desk.call(("bash", "-c", f"{words} | true; exit ${{PIPESTATUS[0]}}")).returncode in (0, 141)
    (run,) = desk.runs()
    assert journal.read_run(str(desk.home / "runs" / run))[-1]["kind"] == "submit.done"


def test_a_submission_whose_answer_was_lost_is_found_again(
    make_sandbox: Callable[..., Sandbox], make_desk: Callable[[Sandbox], Desk]
) -> None:
    """slurmctld stands still while sbatch waits for it: sbatch fails, the job exists, and ftrun says so and exits 0."""
    desk = make_desk(make_sandbox(nodes=1, conf={"MessageTimeout": "3"}))
    (pid,) = (daemon.pid for daemon in desk.box.status().daemons if daemon.name == "slurmctld")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        command = (*FTRUN, "sbatch", "-H", "job.sh")
        env = {**desk.box.env(), "FTRUN_HOME": str(desk.home), "FTRUN_SUPERVISOR": "none"}
        with subprocess.Popen(command, cwd=desk.folder, env=env, stdout=-1, stderr=-1, text=True) as child:
            while not _sbatch_below(child.pid):
                assert child.poll() is None
                time.sleep(0.02)
            while _sbatch_below(child.pid):  # until it has given up, after MessageTimeout
                time.sleep(0.05)
            os.kill(pid, signal.SIGCONT)
            out, err = child.communicate(timeout=240)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert child.returncode == 0, err
    assert out == ""
    assert "Socket timed out" in err
    (run,) = desk.runs()
    assert f"(run {run})" in err
    assert journal.read_run(str(desk.home / "runs" / run))[-1]["kind"] == "submit.done"
    assert len(desk.call(("squeue", "-h", "-o", "%k")).stdout.split()) == 1


def _sbatch_below(pid: int) -> bool:
    """Whether a child of this process is Slurm's own sbatch."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    with contextlib.suppress(OSError):
        return any(Path(f"/proc/{one}/comm").read_text() == "sbatch\n" for one in children)
    return False


def test_waiting_is_for_the_run_and_ends_with_the_status_of_its_last_attempt(desk: Desk) -> None:
    """`--wait` returns when the journal says that the run is over, also when it stands in a #SBATCH line."""
    write(desk, "waiting.sh", "#SBATCH --hold --wait\ntrue")
    env = {**desk.box.env(), "FTRUN_HOME": str(desk.home), "FTRUN_SUPERVISOR": "none"}
    command = (*FTRUN, "sbatch", "waiting.sh")
    with subprocess.Popen(command, cwd=desk.folder, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("Submitted batch job ")
        (run,) = desk.runs()
        run_dir = str(desk.home / "runs" / run)
        give_up = time.monotonic() + JOB_ENDS_WITHIN_S
        while journal.read_run(run_dir)[-1]["kind"] != "submit.done":
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert child.poll() is None
        later = journal.Journal.open_epoch(
            run_dir, epoch=1, writer="t", believed=journal.believed_lengths(run_dir)
        )
        later.append("job.started", attempt=1, nodes=["n0"])
        later.append("job.ended", attempt=1, state="FAILED", exit_code=3)
        later.append("run.finished", attempt=1, reason="test", exit_code=3)
        later.close()
        assert child.wait(timeout=JOB_ENDS_WITHIN_S) == 3


def test_a_submission_returns_at_once_although_it_starts_a_supervisor(desk: Desk) -> None:
    """Under `$(...)` and behind a pipe: the supervisor holds none of the caller's streams open."""
    words = " ".join((*FTRUN, "sbatch", "-H", "--ft-supervisor=auto", "job.sh"))
    done = desk.call(("bash", "-c", f'id=$({words} 2>&1 | cat); echo "[$id]"; exec sleep 0'))
    assert re.fullmatch(r"\[Submitted batch job \d+\]\n", done.stdout)
    assert (desk.home / "supervisor.log").exists()
    end_supervisor(str(desk.home))


def end_supervisor(home: str) -> None:
    """End the supervisor of this home, by the process id in its lease."""
    from ftrun.supervisor.store import lease

    give_up = time.monotonic() + JOB_ENDS_WITHIN_S
    while not (writer := lease.read_holder(home).writer):
        assert time.monotonic() < give_up, Path(home, "supervisor.log").read_text()
        time.sleep(0.1)
    os.kill(int(writer.split(".")[3]), signal.SIGTERM)
    while not store_run_dir.provably_dead(writer):
        assert time.monotonic() < give_up
        time.sleep(0.1)


HEAVY = (
    "typer click rich structlog paramiko tenacity msgspec ClusterShell hyperscan dataclasses inspect typing subprocess"
    " tempfile shutil logging asyncio argparse tomllib socket threading importlib.resources importlib.metadata email"
)


def test_a_submission_imports_nothing_heavy(desk: Desk) -> None:
    """What stands in front of every sbatch loads no client library, no typer, no dataclasses, no subprocess."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from ftrun.supervisor.cli import main\n"
        "assert main(['sbatch', '-H', 'job.sh']) == 0\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = desk.call((sys.executable, "-c", code))
    told, modules = done.stdout.splitlines()
    assert told.startswith("Submitted batch job")
    loaded = set(modules.split())
    assert not loaded & set(HEAVY.split())
    assert len(loaded) <= 60


def test_the_option_table_knows_every_option_of_the_installed_sbatch(desk: Desk) -> None:
    """Its help names nothing that the table lacks, so no option of it can be taken for a script."""
    assert plugin_options(desk.sbatch("--help").stdout) == {}
    assert len(LONG) > 100


def test_the_request_for_an_attempt_reaches_slurm_with_its_token(desk: Desk) -> None:
    """The kept context of a job from standard input and of a wrapped one is whole, too."""
    for args, stdin in ((("-H",), HELD), (("-H", "--wrap=hostname"), None)):
        job = desk.ftrun("--parsable", *args, stdin=stdin).stdout.strip()
        run_dir = store_run_dir.find_run(str(desk.home), job)
        assert run_dir is not None
        store_run_dir.open_attempt(run_dir, 2)
        request = request_for(run_dir, AttemptSpec(2))
        again = CommandCluster(desk.box.env()).submit(request).job_id
        (row,) = CommandCluster(desk.box.env()).find(request.token)
        assert row.job_id == again
        assert row.name == ("wrap" if "--wrap=hostname" in args else "from-stdin")


def test_a_script_named_sbatch_that_calls_ftrun_stands_in_for_sbatch(desk: Desk) -> None:
    """For tools that call sbatch themselves: one run and one job come of a call, and neither ftrun nor the job finds that script."""
    own = desk.folder / "own bin"
    own.mkdir()
    (own / "sbatch").write_text(f'#!/bin/sh\nexec {" ".join(FTRUN)} sbatch "$@" # ftrun sbatch\n')
    (own / "sbatch").chmod(0o755)
    path = f"{own}:{desk.box.env()['PATH']}"
    before = desk.runs()
    done = desk.call(("sbatch", "--parsable", "-H", "job.sh", "x"), PATH=path)
    (run,) = set(desk.runs()) - set(before)
    kept = (desk.home / "runs" / run / "submit" / "environment").read_bytes().split(b"\0")

    assert (0, "") == (done.returncode, done.stderr)
    assert store_run_dir.find_run(str(desk.home), done.stdout.strip()) == str(desk.home / "runs" / run)
    assert f"PATH={desk.box.env()['PATH']}".encode() in kept
