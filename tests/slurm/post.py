"""A $FTRUN_HOME, scripts and supervisors on a sandbox: what the tests of the supervisor share. (I/O)

Every script holds a lock of its folder while it lives and writes `start <attempt> <job>` to the folder's ledger: two
starts at once are seen as `double`, whatever Slurm says. `Witness` looks at Slurm from outside all the while.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.drill import injector
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import journal, journal_tail, lease
from ftrun.supervisor.store import run_dir as store_run_dir

FTRUN = (sys.executable, "-m", "ftrun.supervisor")
QUICK = "poll = 1\nlog-quiet = 1\nlog-quiet-max = 3\nfault-grace = 0.2\nbackoff = 1\nexclude-cap = '50%'\n"
PATIENCE_S = 240.0  # only what hangs takes so long, however loaded the machine is
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, name=python, GPU has fallen off the bus"
RUNS = journal_tail.RunReader()  # who waits for a run asks ten times a second
SUBMITTED = re.compile(r"Submitted batch job (\d+)")
LEDGER = """#!/bin/bash
cd {folder}
exec 9>>lock
flock -n 9 || echo "double $FTRUN_ATTEMPT $SLURM_JOB_ID" >>ledger
echo "start $FTRUN_ATTEMPT $SLURM_JOB_ID" >>ledger
"""


@functools.cache
def _node_side() -> dict[str, bytes]:
    """What a supervisor leaves in `tools` of its home: the packed node side, and what the nodes' Python has made of it."""
    with tempfile.TemporaryDirectory() as home:
        packed = build_zipapp(home)
        subprocess.run(["/usr/bin/python3", "-IS", packed, "version"], stdout=subprocess.DEVNULL, check=False)
        return {path.name: path.read_bytes() for path in Path(packed).parent.iterdir()}


def _put_node_side(home: Path) -> None:
    """As if a supervisor had been here before: each home would else compile it anew, beside all the others."""
    home.mkdir(mode=0o700)
    tools = home / "tools"
    tools.mkdir()
    for name, content in _node_side().items():
        (tools / name).write_bytes(content)
        (tools / name).chmod(0o755 if name.endswith(".pyz") else 0o644)
        if name.endswith(".pyz"):
            (home / store_run_dir.TOOLS_LINK).symlink_to(name)


class Post:
    """One home with its folder of work. Nobody looks after it unless a test starts a supervisor."""

    def __init__(self, box: Sandbox, settings: str = "") -> None:
        self.box = box
        self.folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
        self.home = self.folder / "home"
        self.work = self.folder / "work"
        self.work.mkdir()
        _put_node_side(self.home)
        own = f"cache-base = '{self.folder}'\n"  # what failed jobs leave on their nodes goes with the folder
        (self.folder / "site.toml").write_text(QUICK + own + settings)
        base = {k: v for k, v in box.env().items() if not k.startswith(("FTRUN_", "SBATCH_"))}
        self.env = base | {
            "FTRUN_HOME": str(self.home),
            "FTRUN_SITE_CONFIG": str(self.folder / "site.toml"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "FTRUN_SUPERVISOR": "none",
            "PWD": str(self.work),
        }
        self._started: list[subprocess.Popen[bytes]] = []

    # ------------------------------------------------------------------ commands

    def call(self, *words: str, code: int | None = 0, **env: str) -> str:
        """A command to its end; what it printed on both streams. `code` None: whatever it exits with."""
        done = self.run_command(*words, **env)
        assert code is None or done.returncode == code, (
            f"{words}: {done.returncode}: {done.stderr}{done.stdout}"
        )
        return done.stdout + done.stderr

    def run_command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=self.env | env,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def ftrun(self, *words: str, code: int | None = 0, **env: str) -> str:
        return self.call(*FTRUN, *words, code=code, **env)

    def script(self, body: str, name: str = "job.sh") -> Path:
        path = self.work / name
        path.write_text(LEDGER.format(folder=self.work) + textwrap.dedent(body))
        return path

    def sbatch(self, body: str, *words: str, name: str = "job.sh", **env: str) -> str:
        """`ftrun sbatch` of such a script; the job id."""
        path = self.script(body, name)
        out = self.call(*FTRUN, "sbatch", f"--output={self.work}/%x.log", *words, str(path), code=0, **env)
        found = SUBMITTED.search(out)
        assert found, out
        return found[1]

    def plain(self, *words: str) -> str:
        """Plain sbatch of a command; the job id."""
        found = SUBMITTED.search(self.call("sbatch", "--output=/dev/null", *words))
        assert found
        return found[1]

    def supervise(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """A supervisor in the background; its log is `supervisor.log` in the folder."""
        with open(self.folder / "supervisor.log", "ab") as log:
            process = subprocess.Popen(
                [*FTRUN, "supervise", *words],
                env=self.env | env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process

    @property
    def log(self) -> str:
        """What the supervisors started here and the detached one said."""
        found = (self.folder / "supervisor.log", self.home / "supervisor.log")
        return "".join(path.read_text() for path in found if path.exists())

    def job_log(self, name: str = "job.sh") -> str:
        path = self.work / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # ------------------------------------------------------------------ looking

    def run_dir(self, job: str = "") -> str:
        """The folder of a job's run, or of the only run."""
        found = (
            store_run_dir.find_run(str(self.home), job) if job else store_run_dir.run_dirs(str(self.home))[0]
        )
        assert found is not None
        return found

    def run(self, job: str = "") -> Run:
        return RUNS.run(self.run_dir(job))

    def records(self, job: str = "") -> list[dict[str, Any]]:
        return list(journal.read_run(self.run_dir(job)))

    def kinds(self, job: str = "") -> list[str]:
        return [record["kind"] for record in self.records(job)]

    def ledger(self) -> list[str]:
        path = self.work / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def holder(self) -> lease.Holder:
        return lease.read_holder(str(self.home))

    def jobs(self) -> list[tuple[str, str, str]]:
        """(job, state, attempt token) of every job of this home's runs that Slurm remembers."""
        tokens = {self.run(Path(path).name).token for path in store_run_dir.run_dirs(str(self.home))}
        rows = [line.split("|") for line in queue(self.box)]
        return [(job, state, token) for job, state, token in rows if token.rpartition(":")[0] in tokens]

    def until(
        self, holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S, every_s: float = 0.1
    ) -> Any:
        """Wait until something holds; what it answered. What starts commands is looked at less often."""
        give_up = time.monotonic() + within_s
        while not (answer := holds()):
            if time.monotonic() > give_up:
                raise AssertionError(f"not within {within_s:g} s: {what}\n{self.story()}")
            time.sleep(every_s)
        return answer

    def until_state(self, *states: str, job: str = "", within_s: float = PATIENCE_S) -> Run:
        def reached() -> Run | None:
            run = self.run(job)
            return run if run.state.value in states else None

        found: Run = self.until(reached, f"{job or 'the run'} is {' or '.join(states)}", within_s)
        return found

    def story(self) -> str:
        """Everything that helps to understand a failure."""
        parts = [
            self.call("squeue", "-a", "-t", "all", code=None),
            "\n".join(self.ledger()),
            self.job_log()[-2000:],
            self.log[-6000:],
        ]
        for path in store_run_dir.run_dirs(str(self.home)):
            parts += [
                f"{r['kind']} {r['attempt']} {r['job']} {str(r['data'])[:150]}"
                for r in journal.read_run(path)
            ]
        return "\n".join(parts)

    # ------------------------------------------------------------------ the end

    def clear(self) -> None:
        """No process and no job of this post is left."""
        for process in self._started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(60)
        injector.end_processes(injector.supervisors(self.home), signal.SIGKILL)
        rows = [line.split(maxsplit=1) for line in self._queue()]
        mine = [row[0] for row in rows if len(row) == 2 and row[1].startswith(str(self.folder))]
        if mine:
            self.call("scancel", "--quiet", *mine, code=None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _queue(self) -> Sequence[str]:
        return self.call("squeue", "-h", "-o", "%A %Z", code=None).splitlines()


def queue(box: Sandbox) -> list[str]:
    """`job|state|last word of the comment` of all jobs."""
    printed = box.run(["squeue", "-a", "-h", "-r", "-t", "all", "-o", "%A|%T|%k"]).stdout.splitlines()
    rows = [line for line in printed if line.count("|") >= 2]  # another test's comment may hold line ends
    return [
        f"{job}|{state}|{(comment.split() or [''])[-1]}"
        for job, state, comment in (r.split("|", 2) for r in rows)
    ]


@contextlib.contextmanager
def posts(box: Sandbox) -> Iterator[Callable[..., Post]]:
    """A maker of posts; all are cleared away."""
    made: list[Post] = []

    def make(settings: str = "") -> Post:
        made.append(Post(box, settings))
        return made[-1]

    try:
        yield make
    finally:
        for post in made:
            post.clear()


@contextlib.contextmanager
def boxes() -> Iterator[Callable[..., Sandbox]]:
    """A maker of sandboxes for what would disturb others; all are taken down."""
    folders: list[Path] = []

    def make(**options: Any) -> Sandbox:
        folders.append(Path(tempfile.mkdtemp(prefix="ftrun-t-")))
        return up(folders[-1], **options)

    try:
        yield make
    finally:
        for folder in folders:
            with contextlib.suppress(SandboxError):
                Sandbox.load(folder).down()
            shutil.rmtree(folder, ignore_errors=True)


def traces(folder: Path) -> list[str]:
    """Living processes that show the folder's path in their arguments, environment, files or folder."""
    found = []
    for proc in Path("/proc").iterdir():
        if not proc.name.isdigit() or int(proc.name) == os.getpid():
            continue
        try:
            if ") Z" in (proc / "stat").read_text():
                continue
            text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            links = [
                str((proc / "cwd").readlink()),
                *(str(link.readlink()) for link in (proc / "fd").iterdir()),
            ]
        except OSError:
            continue
        if str(folder).encode() in text or any(str(folder) in link for link in links):
            found.append(f"{proc.name} {text[:120]!r}")
    return found


class Witness:
    """Looks at the queue again and again: how many jobs of one run were alive at the same time."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self.most: dict[str, int] = collections.defaultdict(int)
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._end.wait(0.3):
            alive: dict[str, int] = collections.Counter()
            for row in queue(self._box):
                _, state, token = row.split("|")
                if token.startswith("ftrun:") and state not in OVER:
                    alive[token.rpartition(":")[0]] += 1
            for token, number in alive.items():
                self.most[token] = max(self.most[token], number)
            self.looks += 1
