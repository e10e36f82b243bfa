"""The rows of the table of equivalence: scripts, how they are submitted, and what is done to them while they run. (pure)"""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import dataclass

__all__ = ["MORE_ROWS", "ROWS", "SLOW_ROWS", "Row"]

SH, BASH, PYTHON = "#!/bin/sh", "#!/bin/bash", "#!/usr/bin/env python3"
UNTIL_GO = "echo ready\nwhile [ ! -e go ]; do sleep 0.3; done 2>/dev/null\necho over"
CATCH = 'for s in HUP INT QUIT USR1 USR2 ALRM TERM CONT TSTP URG PROF; do trap "echo saw $s" $s; done\n'
# It listens before its parent says that all are ready.
CHILD = """(trap 'echo child saw' USR1; : >listens; while [ ! -e go ]; do sleep 0.3; done) 2>/dev/null &
while [ ! -e listens ]; do sleep 0.1; done
"""
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
    """One line of the table. `acts` are done to all jobs in turn: `await TEXT` in all logs, `go`, or a command to
    which the job ids are added.
    """

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
    *(Row(f"exit {n}", f"echo a\nexit {n}", SH) for n in (0, 3, 255)),
    *(Row(f"dies of {s}", f"kill -{s} $$\nsleep 5", SH) for s in ("KILL", "USR1")),
    Row("python dies of SEGV", "import os; os.kill(os.getpid(), 11)", PYTHON),
    Row("set -e", "set -e\necho a\nfalse\necho b", SH),
    Row("syntax error", "echo a\nif then\necho b"),
    Row("exit in the middle", "echo a\nexit 4\n) not a program (", SH),
    Row("exit trap", "trap 'echo bye; exit 9' EXIT\nfalse"),
    Row("bash -l", "shopt login_shell; echo a", "#!/bin/bash -l"),
    Row("env -S", "echo a; exit 5", "#!/usr/bin/env -S bash -e -u"),
    Row("missing interpreter", "echo a", "#!/no/such/thing -x"),
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
    Row("directives", "#SBATCH --comment='a b' -t 5 # rest\n\n \t\n  # x\n#SBATCH --no-requeue\necho a\n#SBATCH -N 400", SH),
    Row("pipe closes early", "yes | head -1; echo ${PIPESTATUS[*]}"),
    Row("steps", "srun -n2 sh -c 'echo $SLURM_PROCID' | sort; srun -n1 sh -c 'exit 7'; echo $?", SH, options=("-n2", "-N1")),
    Row("step dies", "srun sh -c 'kill -SEGV $$'; echo $?; srun true", SH),
    Row("leaves a child behind", "sleep 300 &\necho $?"),
    Row("leaves a daemon behind", "setsid nohup sleep 300 >/dev/null 2>&1 &\nsleep 0.2; exit 2"),
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
    Row("dash signalled -b", CATCH.replace("URG", "USR1") + UNTIL_GO, SH, acts=sent("-b")),
    Row("python signalled -b", PYTHON_CATCH, PYTHON, acts=sent("-b", (*EACH, "XCPU", "ABRT"))),
    Row("steps signalled", CATCH + f"srun sh -c {shlex.quote(CATCH + UNTIL_GO)}; echo end", acts=sent("", ("USR1", "INT", "HUP"))),
    *(Row(f"untrapped {s} {how}", UNTIL_GO, first, acts=("await ready", f"scancel {how} -s {s}"))
      for first, how, s in ((SH, "-b", "USR1"), (SH, "-f", "INT"), (BASH, "-b", "KILL"))),
    Row("python interrupted", "import time\nprint('ready', flush=True)\ntime.sleep(60)", PYTHON,
        acts=("await ready", "scancel -b -s INT")),
    Row("child group signalled", CATCH + CHILD + UNTIL_GO,
        acts=sent("-f", ("USR1", "USR1")), sorted=True),
    Row("child group spared", CATCH + CHILD + UNTIL_GO,
        acts=sent("-b", ("USR1", "USR1"))),
    Row("ignores signals", "trap '' USR1 INT HUP\n" + UNTIL_GO, acts=sent("-f", ("USR1", "INT", "HUP"))),
    Row("cancelled", UNTIL_GO, acts=("await ready", "scancel"), sorted=True),
    Row("cancelled, traps", CATCH + UNTIL_GO, acts=("await ready", "scancel"), sorted=True),
    Row("cancelled, ends well", "trap 'echo saw TERM; exit 0' TERM\n" + UNTIL_GO, acts=("await ready", "scancel"), sorted=True),
    Row("cancelled, steps", "trap : TERM\nsrun sh -c 'echo ready; exec sleep 60' 2>/dev/null; echo end", acts=("await ready", "scancel"), sorted=True),
    Row("suspended", CATCH + UNTIL_GO, acts=("await ready", "scontrol suspend", "scontrol resume", "go"), sorted=True),
    Row("stopped by TSTP", "import signal\n" + PYTHON_CATCH, PYTHON,
        acts=("await ready", "scancel -b -s TSTP", "scancel -b -s CONT", "go")),
]  # fmt: skip

# Of the same kinds as some above, or so long that they are left to `make drills`.
MORE_ROWS = [
    *(Row(f"exit {n}", f"echo a\nexit {n}", SH) for n in (1, 126, 127, 128, 139, 143)),
    *(Row(f"dies of {s}", f"kill -{s} $$\nsleep 5", SH) for s in ("TERM", "PIPE", "ABRT", "SEGV", "INT")),
    Row("python raises", "raise ValueError('x')", PYTHON),
    Row("child dies", "sh -c 'kill -SEGV $$'\nexit $?"),
    Row("command not found", "no-such-command"),
    Row("perl", 'print "a @ARGV\\n"; exit 6;', "#!/usr/bin/perl", args=("x y",)),
    Row("shell signalled -f", CATCH + UNTIL_GO, acts=sent("-f")),
    Row("bash dies of TERM", "kill -TERM $$; sleep 5"),
    Row("interpreter is a folder", "echo a", "#!/tmp"),
    Row("interpreter is no program", "echo a", "#!/etc/passwd"),
    Row("sh -e with blanks", "false\necho b", "#! \t/bin/sh  -e  "),
    Row("env", "print('a')", "#!/usr/bin/env python3"),
    Row("log is truncated", "echo new", SH, log="old\n"),
    Row("becomes another program", "exec python3 -c 'import sys; print(1); sys.exit(5)'"),
    Row("dash signalled -f", CATCH.replace("URG", "USR1") + UNTIL_GO, SH, acts=sent("-f")),
    Row("python signalled -f", PYTHON_CATCH, PYTHON, acts=sent("-f", (*EACH, "XCPU", "ABRT"))),
    Row("python interrupted -f", "import time\nprint('ready', flush=True)\ntime.sleep(60)", PYTHON,
        acts=("await ready", "scancel -f -s INT")),
    Row("cancelled, python", PYTHON_CATCH, PYTHON, acts=("await ready", "scancel"), sorted=True),
    *(Row(f"untrapped {s} {how}", UNTIL_GO, first, acts=("await ready", f"scancel {how} -s {s}"))
      for first, how, s in ((BASH, "-b", "TERM"), (SH, "-b", "QUIT"), (PYTHON.replace("python3", "bash"), "-b", "ABRT"))),
    # Slurm looks every 30 s whom it must warn before its next look: here 25 s after the start or later, when even a
    # machine under load has started what is to be warned, and one look before the end.
    Row("warned -B", "trap 'echo saw; exit 4' USR1\n" + UNTIL_GO, options=("-t1", "--signal=B:USR1@5")),
    Row("warned", CATCH + "srun python3 -uc 'import signal,time\nsignal.signal(10, lambda *a: exit(3))\ntime.sleep(80)'; echo $?",
        options=("-t1", "--signal=USR1@5")),
]  # fmt: skip

# Slurm's shortest limit is a minute.
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
