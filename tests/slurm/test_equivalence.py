"""Plain sbatch and the composed file side by side on real Slurm: nobody can tell them apart.

One table, all rows at once: every row is a plain job and one of ours for each way to compose it (with an agent, without), and
while they run all are treated alike. At the end state, exit code, restarts and every byte of output must agree. What differs by nature (job ids, times, pids, the script's own path)
is replaced by a word before comparing; docs/inside-the-job.md lists what a script can still notice.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.submission import library_env
from ftrun.supervisor.submission.compose import compose
from tests.slurm.rows import MORE_ROWS, ROWS, SLOW_ROWS, Row

pytestmark = pytest.mark.slurm

SETTLE_MIN_S = 0.4  # a signal delivered twice shows within this time
SETTLE_SILENT_S = 3.0  # of an act that shows in no log
QUIET_MAX_S = 120.0
TABLE_MAX_S = 900.0  # only what hangs takes so long, however loaded the machine is
OURS, WITH_AGENT = "with ftrun", "with an agent"
Facts = dict[str, str]
FINISHED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")

CACHES = rf"(?m)^({'|'.join(one.name for one in library_env.CACHES)})\b.*\n"


# As the real one it takes no signal that is meant for the job.
SAYS_END = """#!/bin/sh
trap '' HUP INT QUIT USR1 USR2 ALRM TERM CONT PROF URG TSTP XCPU ABRT SEGV
while [ $# -gt 0 ]; do [ "$1" = --talk ] && t=$2; shift; done
until [ -e "$t/over.1" ]; do
    [ -d "$t" ] || exit
    echo $((n += 1)) >"$t/pulse"
    sleep 0.5
done 2>/dev/null
echo end >"$t/tmp" && mv "$t/tmp" "$t/next.1"
"""


@dataclass
class Trial:
    """The jobs of a row while they run: the plain one, and ours."""

    row: Row
    folders: list[Path]
    jobs: list[str]
    facts: list[dict[str, str]]
    todo: list[str]
    since: float = 0.0
    """When the last act was done (monotonic); 0 before the first."""
    before: list[str] = field(default_factory=list)
    """What stood in the logs then."""

    def logs(self) -> list[str]:
        logs = [
            normal(
                "".join(_read(f) for f in sorted(folder.glob("the log")) + sorted(folder.glob("*.err"))),
                folder,
                job,
            )
            for folder, job in zip(self.folders, self.jobs, strict=True)
        ]
        return ["\n".join(sorted(log.split("\n"))) for log in logs] if self.row.sorted else logs

    def over(self) -> bool:
        return all(facts.get("JobState") in FINISHED for facts in self.facts)


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "backslashreplace")


def normal(text: str, folder: Path, job: str) -> str:
    """A log without what differs between any two jobs."""
    for pattern, word in (
        (r"\d{4}-\d\d-\d\dT[\d:.]+", "TIME"),
        (re.escape(str(folder)), "FOLDER"),
        (r"/\S*/slurm_script", "SCRIPT"),
        (rf"\b{job}\b", "JOB"),
        (rf"\b0*{job}\b", "JOB"),
        (r"\bn[0-3]\b", "NODE"),
        (r"(line \d+:) +\d+ ", r"\1 PID "),
        (r"\[\d{3,}\]", "[PID]"),
        (
            r"(?:(?:slurmstepd|ftrun)(?:-\S+)?:|\[TIME\]) error: execve\(\): (?:bad interpreter\([^)]*\)|\S+): (.*)",
            r"EXECVE \1",
        ),
        (r"\bpid \d+", "pid PID"),
        # Slurm's own lines, which are there or not as its processes race each other to the end.
        (r"slurmstepd-\S+ error: (\*\*\* (JOB|STEP) |_handle_signal_container).*\n", ""),
        (
            r"srun: (Job \S+ step creation temporarily disabled.*|Step created for (?:job |StepId=).*)\n",
            "",
        ),  # they come by chance
        (r"(pipe|socket):\S+", r"\1"),
        # With an agent: where processes may meet, and the srun in front of Slurm's.
        (r"(?m)^MASTER_(ADDR|PORT)\b.*\n", ""),
        # Where compile caches are, and no other variable.
        (CACHES, ""),
        (r"[^=:\s]*/ftrun\.\w{6}/agent/bin:", ""),
        (
            r"(_PORT|_ADDR|_COMM_HOST|LAUNCH_NODE_IPADDR|SLURM_SUBMIT_DIR|SLURM_LOCALID|SLURM_JOB_SLUID)=\S*",
            r"\1=X",
        ),
    ):
        text = re.sub(pattern, word, text)
    return text


def composed(row: Row, place: Path, number: int, way: str, facts: Facts) -> bytes:
    """The file of ours for a row; its run has a folder of its own."""
    run = f"row-{number}-{way.rsplit(maxsplit=1)[-1]}"
    attempt = {"run": run, "attempt": "1", "token": f"ftrun:{run}:00000000:1", "cluster": "c"}
    attempt |= {"run_dir": str(place / f"run dir of {way}"), **facts}
    if "cache_exports" in attempt:
        attempt["caches"] = f"1000000 {place}/caches of {run}"
    Path(attempt["run_dir"], "attempts", "1").mkdir(parents=True)
    return compose(row.text, attempt)


def submit(box: Sandbox, row: Row, place: Path, number: int, ways: Mapping[str, Facts]) -> Trial:
    """All jobs of a row, on the same node."""
    trial = Trial(row, [], [], [{} for _ in range(1 + len(ways))], list(row.acts))
    texts = {"plain": row.text} | {way: composed(row, place, number, way, ways[way]) for way in ways}
    for name, text in texts.items():
        folder = place / name
        folder.mkdir(parents=True)
        (folder / "my script.sh").write_bytes(text)
        if row.log:
            (folder / "the log").write_text(row.log)
        where = ("-o", "the log", f"-wn{number % 4}")
        command = ["sbatch", "--parsable", *where, *row.options, "my script.sh", *row.args]
        trial.folders.append(folder)
        trial.jobs.append(box.run(command, cwd=folder, check=True).stdout.strip())
    return trial


def look(box: Sandbox, trials: list[Trial]) -> None:
    """The facts of all jobs, by one call."""
    wanted = ("JobState", "ExitCode", "DerivedExitCode", "Restarts", "Reason", "BatchFlag", "Requeue")
    rows = box.run(["scontrol", "-o", "-d", "show", "job"]).stdout.splitlines()
    facts: dict[str, dict[str, str]] = {}
    for row in rows:
        words: dict[str, str] = {}
        for word in row.split():
            key, _, value = word.partition("=")
            words.setdefault(key, value)
        facts[words.get("ArrayJobId", words.get("JobId", ""))] = {key: words.get(key, "") for key in wanted}
    for trial in trials:
        trial.facts = [facts.get(job, known) for job, known in zip(trial.jobs, trial.facts, strict=True)]


def drive(box: Sandbox, trial: Trial) -> None:
    """The next act of a row, when all its jobs are ready for it."""
    if not trial.todo:
        return
    act = trial.todo[0]
    logs = trial.logs()
    if act.startswith("await "):
        if not all(act.removeprefix("await ") in log for log in logs):
            return
    else:
        if trial.since and not settled(trial, logs):
            return
        if act == "go":
            for folder in trial.folders:
                (folder / "go").touch()
        else:
            jobs = [",".join(trial.jobs)] if act.startswith("scontrol") else trial.jobs
            box.run([*act.split(), *jobs])
    trial.since, trial.before = time.monotonic(), logs
    trial.todo.pop(0)


def settled(trial: Trial, logs: list[str]) -> bool:
    """Whether the last act has had its effect on all jobs of the row. A second signal before that could overtake the first."""
    waited_s = time.monotonic() - trial.since
    alike = len({*logs}) == 1
    shown = all(then != now for then, now in zip(trial.before, logs, strict=True))
    if waited_s < SETTLE_MIN_S or (not alike and waited_s < QUIET_MAX_S):
        return False
    return shown or waited_s >= SETTLE_SILENT_S


def run_table(box: Sandbox, rows: list[Row], folder: Path, ways: Mapping[str, Facts]) -> dict[str, list[str]]:
    """What differed from plain sbatch, row by row, for each way to compose a file."""
    trials = [
        submit(box, row, folder / "a table" / row.name, number, ways) for number, row in enumerate(rows)
    ]
    deadline = time.monotonic() + TABLE_MAX_S
    while time.monotonic() < deadline and not all(trial.over() for trial in trials):
        for trial in trials:
            if not trial.over():
                drive(box, trial)
        look(box, trials)
        time.sleep(0.3)
    for trial in trials:
        if not trial.over():
            box.run(["scancel", "-s", "KILL", *trial.jobs])
    told = {way: list(differences(trials, column, way)) for column, way in enumerate(ways, 1)}
    for folder in (folder for trial in trials for folder in trial.folders):
        (folder / "go").touch()  # a script that outlives its job ends, too
    return told


def differences(trials: list[Trial], column: int, way: str) -> Iterator[str]:
    """What differed between the plain jobs and those of this column."""
    for trial in trials:
        logs = trial.logs()
        if not trial.over():
            yield f"{trial.row.name}: not over: {trial.facts} {logs}"
        elif trial.facts[0] != trial.facts[column]:
            yield f"{trial.row.name}: {trial.facts[0]}\n    but {way} {trial.facts[column]} {logs}"
        elif logs[0] != logs[column]:
            plain, ours = (logs[n].splitlines(keepends=True) for n in (0, column))
            yield f"{trial.row.name}:\n" + "".join(difflib.unified_diff(plain, ours, "sbatch", way, n=20))


@dataclass(frozen=True)
class Table:
    """What differed for each way, and the folder in which all was."""

    differences: dict[str, list[str]]
    folder: Path


def played(box: Sandbox, rows: list[Row], folder: Path) -> Table:
    """Rows of the table, played once: plain sbatch, our file, our file with an agent."""
    agent = folder / "agent"
    agent.write_text(SAYS_END)
    agent.chmod(0o755)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", str(folder))  # jobs that end by SIGKILL leave their folder there
        environment.setenv("BASH_FUNC_hello%%", "() {  echo hello\n}")
        environment.setenv("FT_LINES", "a\nb=c ' \" \\")
        told = {
            "agent": str(agent),
            "labels": "auto",
            "cache_exports": library_env.export_lines(library_env.CACHES, "auto"),
        }
        ways = {OURS: {}, WITH_AGENT: told}
        return Table(run_table(box, rows, folder, ways), folder)


@pytest.fixture(scope="module")
def table(slurm_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The table of every test run."""
    return played(slurm_sandbox, ROWS, tmp_path_factory.mktemp("table"))


def test_a_script_cannot_tell_ftrun_from_sbatch(table: Table) -> None:
    """State, exit code, restarts, output and signals seen are those of plain sbatch, row by row."""
    assert not table.differences[OURS], "\n\n".join(table.differences[OURS])


def test_an_agent_beside_the_script_changes_nothing(table: Table) -> None:
    """The same with an agent that is asked at each failure and has nothing to say, and with caches; only PATH, a meeting place and their folders are told."""
    assert not table.differences[WITH_AGENT], "\n\n".join(table.differences[WITH_AGENT])
    assert len(list(table.folder.rglob("agent.0.log"))) >= len(ROWS) - 4  # not beside a task of an array


@pytest.mark.drills
def test_nor_can_one_of_more_kinds(slurm_sandbox: Sandbox, tmp_path: Path) -> None:
    """The same for more interpreters, codes and signals."""
    told = played(slurm_sandbox, MORE_ROWS, tmp_path).differences

    assert not told[OURS] + told[WITH_AGENT], "\n\n".join(told[OURS] + told[WITH_AGENT])


@pytest.mark.drills
def test_a_time_limit_ends_both_alike(
    slurm_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TIMEOUT, its signals and its grace are the same; Slurm's shortest limit is a minute."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    told = run_table(slurm_sandbox, SLOW_ROWS, tmp_path, {OURS: {}})[OURS]

    assert not told, "\n\n".join(told)


@pytest.mark.parametrize(
    "script", [b"#!/bin/sh\r\necho\r\n", b"#!/bin/sh\necho \0\n"], ids=["DOS line ends", "NUL"]
)
def test_what_sbatch_refuses_in_a_script_it_refuses_in_ours(
    slurm_sandbox: Sandbox, tmp_path: Path, script: bytes
) -> None:
    """The words and the code are sbatch's own."""
    answers = []
    for text in (
        script,
        compose(script, {"run": "r", "attempt": "1", "token": "t", "run_dir": str(tmp_path)}),
    ):
        (tmp_path / "script").write_bytes(text)
        answer = slurm_sandbox.run(["sbatch", "script"], cwd=tmp_path)
        answers.append((answer.returncode, answer.stdout, answer.stderr))

    assert answers[0] == answers[1]
    assert answers[0][0] != 0


@pytest.mark.parametrize("export", ["NONE", "FT_A=1,HOME", "ALL"])
def test_srun_hands_our_variables_to_the_tasks(slurm_sandbox: Sandbox, tmp_path: Path, export: str) -> None:
    """Whatever the user exports, a task sees FTRUN_* and the resume variables."""
    (tmp_path / "c" / "step_7").mkdir(parents=True)
    (tmp_path / "c" / "step_7" / "weights").write_text("w")
    attempt = {"run": "r", "attempt": "1", "token": "t", "run_dir": str(tmp_path), "checkpoint_glob": "c/*"}
    attempt |= {"resume_env": "MY_STEP={checkpoint}", "sized": "1 1 1 4 16"}
    script = b"#!/bin/sh\nsrun -n1 /usr/bin/env | grep -c '^FTRUN_\\|^MY_STEP=c/step_7$'\n"
    (tmp_path / "script").write_bytes(compose(script, attempt))
    slurm_sandbox.run(
        ["sbatch", "--wait", f"--export={export}", "-o", "log", "script"], cwd=tmp_path, check=True
    )

    assert (tmp_path / "log").read_text() == "21\n"
