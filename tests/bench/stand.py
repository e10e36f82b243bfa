"""A sandbox, a $FTRUN_HOME and a folder for jobs, as a user has them; nothing of it is left afterwards. (I/O)

The supervisor is the one that `ftrun sbatch` starts by itself, detached, in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.drill import injector
from ftrun.supervisor.store import journal, lease
from ftrun.supervisor.store import run_dir as store_run_dir

__all__ = ["Stand", "stand", "until"]

SUBMITTED = re.compile(r"Submitted batch job (\d+)")
FORKS = """
import os, sys
from ftrun.supervisor.cli import sbatch as submit_cli
from ftrun.supervisor.submission import first_attempt, start_supervisor
for words in sys.stdin.read().splitlines():
    pid = os.fork()
    if not pid:
        os._exit(submit_cli.main(words.split()) or (sys.stdout.flush() or 0))
    assert os.waitpid(pid, 0)[1] == 0
"""
FTRUN = str(Path(sys.executable).with_name("ftrun"))


class Stand:
    """Where one part of the bench is held."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder, self.home = box, folder, folder / "home"
        self.work = folder / "work"
        self.prefix: tuple[str, ...] = ()  # before every command: who calls it
        self.work.mkdir(exist_ok=True)
        self.env = {**box.env(), "FTRUN_HOME": str(self.home)}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules

    def call(self, *words: str) -> str:
        """Run a command to its end; what it printed. Raises CalledProcessError."""
        done = subprocess.run(
            [*self.prefix, *words],
            env=self.env,
            cwd=self.work,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    def sbatch(self, *words: str) -> str:
        """The job id of a plain submission."""
        return _job(self.call("sbatch", *words))

    def ftrun_sbatch(self, *words: str) -> Path:
        """The run folder of a submission by ftrun."""
        job = _job(self.call(FTRUN, "sbatch", *words))
        return Path(os.path.realpath(self.home / "index" / job))

    def ftrun_sbatches(self, calls: Sequence[str], *, within_s: float = 300.0) -> list[str]:
        """The job ids of many calls of the real `ftrun sbatch` (words without blanks), by forks of a process that has loaded it: a thousand interpreters would take minutes."""
        done = subprocess.run(
            [*self.prefix, sys.executable, "-c", FORKS],
            input="".join(f"--parsable {words}\n" for words in calls),
            env=self.env,
            cwd=self.work,
            check=True,
            capture_output=True,
            text=True,
            timeout=within_s,
        )
        ids = re.findall(r"^(\d+)$", done.stdout, re.MULTILINE)
        assert len(ids) == len(calls), done.stderr
        return ids

    def supervisor(self) -> int:
        """The pid of the supervisor that leads; 0 = none does."""
        writer = lease.read_holder(str(self.home)).writer
        return int(writer.split(".")[3]) if writer and not store_run_dir.provably_dead(writer) else 0

    def end_supervisors(self) -> None:
        """The leader, and those who stand by because several submissions came at once."""
        injector.end_processes(injector.supervisors(self.home))


@contextlib.contextmanager
def stand(nodes: int, **options: Any) -> Iterator[Stand]:
    """A stand of its own for one part."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-b-"))
    folder.chmod(0o755)
    try:
        here = Stand(up(folder / "box", nodes=nodes, **options), folder)
        try:
            yield here
        except TimeoutError:
            with contextlib.suppress(OSError):
                sys.stderr.write((here.home / "supervisor.log").read_text()[-4000:])
            raise
        finally:
            here.end_supervisors()
            try:
                here.box.down()
            except (
                SandboxError
            ) as error:  # of a hundred jobs on a busy machine some end late; the figures stand
                sys.stderr.write(f"{error}\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def until(holds: Callable[[], Any], within_s: float, *, every_s: float = 0.05) -> Any:
    """What `holds` answered at last. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while not (answer := holds()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {getattr(holds, '__name__', holds)}")
        time.sleep(every_s)
    return answer


def moments(run_dir: Path) -> dict[tuple[str, int], float]:
    """(kind, attempt) -> Unix seconds of the first such record of a run."""
    found: dict[tuple[str, int], float] = {}
    for record in journal.read_run(str(run_dir)):
        found.setdefault((record["kind"], record["attempt"]), record["at"])
    return found


def _job(said: str) -> str:
    match = SUBMITTED.search(said)
    assert match is not None, said
    return match[1]
