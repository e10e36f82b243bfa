"""Plain sbatch and the composed file side by side on real Slurm: nobody can tell them apart.

One table, all rows at once: every row is two jobs, and while they run both are treated alike. At the end state, exit
code, restarts and every byte of output must agree. What differs by nature (job ids, times, pids, the script's own path)
is replaced by a word before comparing; docs/inside-the-job.md lists what a script can still notice.
"""

from __future__ import annotations

import difflib
import re
import shlex
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ftrun.slurm.sandbox import Sandbox
from ftrun.supervisor.compose import compose

pytestmark = pytest.mark.slurm

SETTLE_MIN_S = 0.4  # a signal delivered twice shows within this time
SETTLE_MAX_S = 8.0
TABLE_MAX_S = 240.0
FINISHED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")

SH, BASH, PYTHON = "#!/bin/sh", "#!/bin/bash", "#!/usr/bin/env python3"
UNTIL_GO = "echo ready\nwhile [ ! -e go ]; do sleep 0.1; done 2>/dev/null\necho over"
CATCH = 'for s in HUP INT QUIT USR1 USR2 ALRM TERM CONT TSTP URG PROF; do trap "echo saw $s" $s; done\n'
PYTHON_CATCH = """
import os, signal, time
def saw(number, frame): print("saw", signal.Signals(number).name, flush=True)
for name in "HUP INT QUIT USR1 USR2 ALRM TERM CONT URG PROF XCPU ABRT SEGV".split():
    signal.signal(getattr(signal, "SIG" + name), saw)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.1)
print("over")
"""
EACH = ("USR1", "INT", "QUIT", "HUP", "USR2", "ALRM", "CONT", "URG", "PROF", "TERM", "USR1")


@dataclass(frozen=True)
class Row:
    """One line of the table. `acts` are done to both jobs in turn: `await TEXT` in both logs, `go`, or a command to
    which both job ids are added."""

    name: str
    script: str
    first: str = BASH
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    acts: tuple[str, ...] = ()
    newline: bool = True
    log: str = ""  # what stands in the log before
    sorted: bool = False  # lines come in any order: Slurm sends two signals at once, or two processes write

    @property
    def text(self) -> bytes:
        body = self.first + "\n" + textwrap.dedent(self.script).lstrip("\n")
        return (body if not self.newline or body.endswith("\n") else body + "\n").encode()


def sent(how: str, names: tuple[str, ...] = EACH) -> tuple[str, ...]:
    return ("await ready", *(f"scancel {how} -s {name}" for name in names), "go")


LOOK = """
    echo "$#:"; printf '[%s]' "$@"; echo
    env | grep -v '^FTRUN_' | grep -v '^SLURM_JOB_ID=\\|^SLURM_JOBID=\\|^SLURM_TASK_PID=\\|^SLURM_JOB_[A-Z]*_TIME=' | sort
    (sleep 0.2; grep -E '^(Sig|Shd)(Pnd|Blk|Ign|Cgt)' /proc/$$/status); grep -E '^(Sig|Shd)(Pnd|Blk|Ign|Cgt)' /proc/self/status
    for n in /proc/$$/fd/*; do echo "${n##*/} $(readlink $n)"; done
    ulimit -a; umask; nice; pwd; id; shopt; set -o
    [ "$(ps -o pgid= -p $$)" -eq $$ ] && echo leads its group
    ps -o comm= -p $$; cat | wc -c; type hello; jobs; trap; echo "$IFS" | od -c; echo "${0##*/}"
"""

NAMES = "env | cut -d= -f1 | grep -v ^FTRUN_ | sort\necho step\nsrun /usr/bin/env | cut -d= -f1 | grep -v ^FTRUN_ | sort"

ROWS = [
    *(Row(f"exit {n}", f"echo a\nexit {n}", SH) for n in (0, 1, 3, 126, 127, 128, 139, 143, 255)),
    *(Row(f"dies of {s}", f"kill -{s} $$\nsleep 5", SH) for s in ("SEGV", "TERM", "KILL", "INT", "PIPE", "ABRT", "USR1")),
    Row("bash dies of TERM", "kill -TERM $$; sleep 5"),
    Row("python dies of SEGV", "import os; os.kill(os.getpid(), 11)", PYTHON),
    Row("python raises", "raise ValueError('x')", PYTHON),
    Row("child dies", "sh -c 'kill -SEGV $$'\nexit $?"),
    Row("set -e", "set -e\necho a\nfalse\necho b", SH),
    Row("command not found", "no-such-command"),
    Row("syntax error", "echo a\nif then\necho b"),
    Row("exit in the middle", "echo a\nexit 4\n) not a program (", SH),
    Row("exit trap", "trap 'echo bye; exit 9' EXIT\nfalse"),
    Row("bash -l", "shopt login_shell; echo a", "#!/bin/bash -l"),
    Row("sh -e with blanks", "false\necho b", "#! \t/bin/sh  -e  "),
    Row("env", "print('a')", "#!/usr/bin/env python3"),
    Row("env -S", "echo a; exit 5", "#!/usr/bin/env -S bash -e -u"),
    Row("perl", 'print "a @ARGV\\n"; exit 6;', "#!/usr/bin/perl", args=("x y",)),
    Row("missing interpreter", "echo a", "#!/no/such/thing -x"),
    Row("interpreter is a folder", "echo a", "#!/tmp"),
    Row("interpreter is no program", "echo a", "#!/etc/passwd"),
    Row("no final newline", "echo a\nprintf b", newline=False),
    Row("heredocs", "cat <<'E'\n$x `y` \\ 'q'\nE\ncat <<F\n$((1+1))\nF\n#ftrun-payload#\necho end"),
    Row("odd bytes", "printf '%s' '\x01\x7f\x81é\\' | od -c"),
    Row("a megabyte", "x() { echo end; }\n" + "# " + "filler " * 8 + "\n" + ("# " + "y" * 97 + "\n") * 10_000 + "x", SH),
    Row("reads itself", 'sed -n 2,3p "$0"; echo "${0##*/}"; ls -l "$0" | cut -c1-10', SH),
    Row("arguments", LOOK, args=("a b", "*", "", "'q\"", "$HOME", "\\", "--x", "é", "a\nb")),
    Row("exports nothing", NAMES,
        options=("--export=NONE",)),
    Row("exports a list", NAMES,
        options=("--export=FT_A=1,HOME",)),
    Row("input", "cat; echo end", SH, options=("--input=/etc/hostname",)),
    Row("two logs", "echo out; echo err >&2", SH, options=("--error=%x.err",)),
    Row("log is appended to", "echo new", SH, options=("--open-mode=append",), log="old\n"),
    Row("log is truncated", "echo new", SH, log="old\n"),
    Row("directives", "#SBATCH --comment='a b' -t 5 # rest\n\n \t\n  # x\n#SBATCH --no-requeue\necho a\n#SBATCH -N 400", SH),
    Row("pipe closes early", "yes | head -1; echo ${PIPESTATUS[*]}"),
    Row("steps", "srun -n2 sh -c 'echo $SLURM_PROCID' | sort; srun -n1 sh -c 'exit 7'; echo $?", SH, options=("-n2",)),
    Row("step dies", "srun sh -c 'kill -SEGV $$'; echo $?; srun true", SH),
    Row("leaves a child behind", "sleep 300 &\necho $?"),
    Row("leaves a daemon behind", "setsid nohup sleep 300 >/dev/null 2>&1 &\nsleep 0.2; exit 2"),
    Row("becomes another program", "exec python3 -c 'import sys; print(1); sys.exit(5)'"),
    Row("kill 0", "trap 'echo saw' TERM; (trap - TERM; sleep 9) & kill -TERM 0; wait; echo end"),
    Row("kills its group", "trap 'trap - TERM; kill -TERM -- -$$' EXIT\nsleep 9 & exit 3"),
    Row("array", "echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT; exit 3", SH, options=("--array=4",)),
    Row("requeues itself", """
        trap 'echo saw TERM' TERM
        echo "count ${SLURM_RESTART_COUNT-none}"
        [ -n "$SLURM_RESTART_COUNT" ] && exit 6
        scontrol requeue $SLURM_JOB_ID
        while :; do sleep 0.1; done 2>/dev/null""", options=("--open-mode=append", "--requeue"), sorted=True),
    Row("requeued", 'echo "count ${SLURM_RESTART_COUNT-none}"\n[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n' + CATCH + UNTIL_GO,
        options=("--open-mode=append", "--requeue"), acts=("await ready", "scontrol requeue", "await count 1"), sorted=True),
    Row("shell signalled -b", CATCH + UNTIL_GO, acts=sent("-b")),
    Row("shell signalled -f", CATCH + UNTIL_GO, acts=sent("-f")),
    Row("dash signalled -b", CATCH.replace("URG", "USR1") + UNTIL_GO, SH, acts=sent("-b")),
    Row("dash signalled -f", CATCH.replace("URG", "USR1") + UNTIL_GO, SH, acts=sent("-f")),
    Row("python signalled -b", PYTHON_CATCH, PYTHON, acts=sent("-b", (*EACH, "XCPU", "ABRT"))),
    Row("python signalled -f", PYTHON_CATCH, PYTHON, acts=sent("-f", (*EACH, "XCPU", "ABRT"))),
    Row("steps signalled", CATCH + f"srun sh -c {shlex.quote(CATCH + UNTIL_GO)}; echo end", acts=sent("", ("USR1", "INT", "HUP"))),
    *(Row(f"untrapped {s} {how}", UNTIL_GO, first, acts=("await ready", f"scancel {how} -s {s}"))
      for first, how, s in ((SH, "-b", "USR1"), (SH, "-f", "INT"), (BASH, "-b", "TERM"), (SH, "-b", "QUIT"),
                            (BASH, "-b", "KILL"), (PYTHON.replace("python3", "bash"), "-b", "ABRT"))),
    Row("python interrupted", "import time\nprint('ready', flush=True)\ntime.sleep(60)", PYTHON,
        acts=("await ready", "scancel -b -s INT")),
    Row("python interrupted -f", "import time\nprint('ready', flush=True)\ntime.sleep(60)", PYTHON,
        acts=("await ready", "scancel -f -s INT")),
    Row("child group signalled", CATCH + "(trap 'echo child saw' USR1; while [ ! -e go ]; do sleep 0.1; done) 2>/dev/null &\n" + UNTIL_GO,
        acts=sent("-f", ("USR1", "USR1")), sorted=True),
    Row("child group spared", CATCH + "(trap 'echo child saw' USR1; while [ ! -e go ]; do sleep 0.1; done) 2>/dev/null &\n" + UNTIL_GO,
        acts=sent("-b", ("USR1", "USR1"))),
    Row("ignores signals", "trap '' USR1 INT HUP\n" + UNTIL_GO, acts=sent("-f", ("USR1", "INT", "HUP"))),
    Row("cancelled", UNTIL_GO, acts=("await ready", "scancel"), sorted=True),
    Row("cancelled, traps", CATCH + UNTIL_GO, acts=("await ready", "scancel"), sorted=True),
    Row("cancelled, ends well", "trap 'echo saw TERM; exit 0' TERM\n" + UNTIL_GO, acts=("await ready", "scancel"), sorted=True),
    Row("cancelled, python", PYTHON_CATCH, PYTHON, acts=("await ready", "scancel"), sorted=True),
    Row("cancelled, steps", "trap : TERM\nsrun sh -c 'echo ready; exec sleep 60' 2>/dev/null; echo end", acts=("await ready", "scancel"), sorted=True),
    Row("suspended", CATCH + UNTIL_GO, acts=("await ready", "scontrol suspend", "scontrol resume", "go"), sorted=True),
    Row("stopped by TSTP", "import signal\n" + PYTHON_CATCH, PYTHON,
        acts=("await ready", "scancel -b -s TSTP", "scancel -b -s CONT", "go")),
    # Slurm looks every 30 s whom to warn; a machine under load may take seconds to start what is to be warned.
    Row("warned -B", "trap 'echo saw; exit 4' USR1\n" + UNTIL_GO, options=("-t1", "--signal=B:USR1@45")),
    Row("warned", CATCH + "srun python3 -uc 'import signal,time\nsignal.signal(10, lambda *a: exit(3))\ntime.sleep(80)'; echo $?",
        options=("-t1", "--signal=USR1@45")),
]  # fmt: skip

SLOW_ROWS = [
    Row("time limit", UNTIL_GO, options=("-t1",), sorted=True),
    Row("time limit, traps", CATCH + UNTIL_GO, options=("-t1",), sorted=True),
    Row(
        "time limit, ends well",
        "trap 'echo saw TERM; exit 0' TERM\n" + UNTIL_GO,
        options=("-t1",),
        sorted=True,
    ),
    Row("time limit, warned", CATCH + UNTIL_GO, options=("-t1", "--signal=B:USR1@30"), sorted=True),
    Row(
        "time limit, steps",
        "trap : TERM\nsrun sh -c 'echo ready; exec sleep 100' 2>/dev/null; echo end",
        options=("-t1",),
        sorted=True,
    ),
]


# As the real one it takes no signal that is meant for the job.
SAYS_END = """#!/bin/sh
trap '' HUP INT QUIT USR1 USR2 ALRM TERM CONT PROF URG TSTP XCPU ABRT SEGV
while [ $# -gt 0 ]; do [ "$1" = --talk ] && t=$2; shift; done
until [ -e "$t/over.1" ]; do
    [ -d "$t" ] || exit
    echo $((n += 1)) >"$t/pulse"
    sleep 0.2
done 2>/dev/null
echo end >"$t/tmp" && mv "$t/tmp" "$t/next.1"
"""


@dataclass
class Pair:
    """The two jobs of a row while they run."""

    row: Row
    folders: tuple[Path, Path]
    jobs: list[str] = field(default_factory=list)
    facts: list[dict[str, str]] = field(default_factory=lambda: [{}, {}])
    todo: list[str] = field(default_factory=list)
    since: float = 0.0
    """When the last act was done (monotonic); 0 before the first."""

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
            r"(slurmstepd|ftrun)(-\S+)?: error: execve\(\): (bad interpreter\(([^)]*)\)|\S+): (.*)",
            r"EXECVE \5",
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
        (r"[^=:\s]*/ftrun\.\w{6}/agent/bin:", ""),
        (r"(_PORT|_ADDR|_COMM_HOST|LAUNCH_NODE_IPADDR|SLURM_SUBMIT_DIR|SLURM_LOCALID)=\S*", r"\1=X"),
    ):
        text = re.sub(pattern, word, text)
    return text


def submit(box: Sandbox, pair: Pair, number: int, facts: dict[str, str]) -> None:
    """Both jobs of a row, on the same node; ours is composed with these facts too."""
    attempt = {
        "run": f"row-{number}",
        "attempt": "1",
        "token": f"ftrun:row-{number}:00000000:1",
        "run_dir": str(pair.folders[1].parent / "run dir"),
        "cluster": "c",
        **facts,
    }
    Path(attempt["run_dir"], "attempts", "1").mkdir(parents=True)
    for folder, text in zip(pair.folders, (pair.row.text, compose(pair.row.text, attempt)), strict=True):
        folder.mkdir(parents=True)
        (folder / "my script.sh").write_bytes(text)
        if pair.row.log:
            (folder / "the log").write_text(pair.row.log)
        command = [
            "sbatch",
            "--parsable",
            f"-wn{number % 4}",
            "-o",
            "the log",
            *pair.row.options,
            "my script.sh",
            *pair.row.args,
        ]
        answer = box.run(command, cwd=folder, check=True)
        pair.jobs.append(answer.stdout.strip())


def look(box: Sandbox, pairs: list[Pair]) -> None:
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
    for pair in pairs:
        pair.facts = [facts.get(job, known) for job, known in zip(pair.jobs, pair.facts, strict=True)]


def drive(box: Sandbox, pair: Pair) -> None:
    """The next act of a row, when both jobs are ready for it."""
    if not pair.todo:
        return
    act = pair.todo[0]
    logs = pair.logs()
    if act.startswith("await "):
        if not all(act.removeprefix("await ") in log for log in logs):
            return
    else:
        waited = time.monotonic() - pair.since
        if pair.since and (waited < SETTLE_MIN_S or (logs[0] != logs[1] and waited < SETTLE_MAX_S)):
            return
        if act == "go":
            for folder in pair.folders:
                (folder / "go").touch()
        else:
            jobs = [",".join(pair.jobs)] if act.startswith("scontrol") else pair.jobs
            box.run([*act.split(), *jobs])
    pair.since = time.monotonic()
    pair.todo.pop(0)


def run_table(box: Sandbox, rows: list[Row], folder: Path, **facts: str) -> Iterator[str]:
    """What differed, row by row."""
    pairs = []
    for number, row in enumerate(rows):
        place = folder / "a table" / row.name
        pairs.append(Pair(row, (place / "plain", place / "ftrun"), todo=list(row.acts)))
        submit(box, pairs[-1], number, facts)
    deadline = time.monotonic() + TABLE_MAX_S
    while time.monotonic() < deadline and not all(pair.over() for pair in pairs):
        for pair in pairs:
            if not pair.over():
                drive(box, pair)
        look(box, pairs)
        time.sleep(0.1)
    for pair in pairs:
        if not pair.over():
            yield f"{pair.row.name}: not over: {pair.facts} {pair.logs()}"
            box.run(["scancel", "-s", "KILL", *pair.jobs])
        elif pair.facts[0] != pair.facts[1]:
            yield f"{pair.row.name}: {pair.facts[0]}\n    but with ftrun {pair.facts[1]} {pair.logs()}"
        elif pair.logs()[0] != pair.logs()[1]:
            plain, ours = (log.splitlines(keepends=True) for log in pair.logs())
            yield f"{pair.row.name}:\n" + "".join(difflib.unified_diff(plain, ours, "sbatch", "ftrun", n=20))


def test_a_script_cannot_tell_ftrun_from_sbatch(
    slurm_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State, exit code, restarts, output and signals seen are those of plain sbatch, row by row."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # jobs that end by SIGKILL leave their folder there
    monkeypatch.setenv("BASH_FUNC_hello%%", "() {  echo hello\n}")
    monkeypatch.setenv("FT_LINES", "a\nb=c ' \" \\")
    differences = list(run_table(slurm_sandbox, ROWS, tmp_path))

    assert not differences, "\n\n".join(differences)


def test_an_agent_beside_the_script_changes_nothing(
    slurm_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with an agent that is asked at each failure and has nothing to say; only PATH and a meeting place are told."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("BASH_FUNC_hello%%", "() {  echo hello\n}")
    monkeypatch.setenv("FT_LINES", "a\nb=c ' \" \\")
    agent = tmp_path / "agent"
    agent.write_text(SAYS_END)
    agent.chmod(0o755)
    differences = list(run_table(slurm_sandbox, ROWS, tmp_path, agent=str(agent), labels="auto"))

    assert not differences, "\n\n".join(differences)
    assert len(list(tmp_path.rglob("agent.0.log"))) >= len(ROWS) - 4  # not beside a task of an array


@pytest.mark.drills
def test_a_time_limit_ends_both_alike(
    slurm_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TIMEOUT, its signals and its grace are the same; Slurm's shortest limit is a minute."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    differences = list(run_table(slurm_sandbox, SLOW_ROWS, tmp_path))

    assert not differences, "\n\n".join(differences)


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
    attempt["resume_env"] = "MY_STEP={checkpoint}"
    script = b"#!/bin/sh\nsrun -n1 /usr/bin/env | grep -c '^FTRUN_\\|^MY_STEP=c/step_7$'\n"
    (tmp_path / "script").write_bytes(compose(script, attempt))
    slurm_sandbox.run(
        ["sbatch", "--wait", f"--export={export}", "-o", "log", "script"], cwd=tmp_path, check=True
    )

    assert (tmp_path / "log").read_text() == "16\n"
