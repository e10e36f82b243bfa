"""An example of `examples/` in a folder of its own on a sandbox: what the proofs with real frameworks share. (I/O)

Neither torch nor MPI is part of ftrun's environment. FTRUN_PROOF_PYTHON names an interpreter that has torch and mpi4py; `make proofs` makes one.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill import injector
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.store import run_dir as store_run_dir
from tests.slurm.post import RUNS
from tests.told import told

__all__ = ["PYTHON", "Example", "Stage", "has", "stages"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = told("FTRUN_PROOF_PYTHON", sys.executable)
STEPS = 60
LIMIT_S = 240.0
QUICK = (
    "--ft-log-quiet=1s",
    "--ft-log-quiet-max=4s",
    "--ft-backoff=1s",
    "--ft-fault-grace=5s",
    "--ft-exclude-cap=50%",
)


def has(*modules: str) -> bool:
    """Whether the interpreter of the proofs has them."""
    words = [PYTHON, "-W", "ignore", "-c", "import " + ", ".join(modules)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


class Example:
    """One example in a folder of its own, submitted to a sandbox."""

    def __init__(self, box: Sandbox, name: str) -> None:
        self.box, self.folder = box, box.shared / name
        shutil.copytree(EXAMPLES / name, self.folder)
        self.home = self.folder / "home"
        site = self.folder / "site.toml"
        site.write_text("poll = 0.5\n")
        self.env = {
            **box.env(),
            "FTRUN_HOME": str(self.home),
            "FTRUN_SITE_CONFIG": str(site),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PATH": f"{Path(PYTHON).parent}:{box.env()['PATH']}",
            "PYTHONWARNINGS": "ignore",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",  # the sandbox's jobs are the tester's
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "EXAMPLE_STEP_S": "0.2",
        }

    def submit(self, *options: str, arguments: Sequence[str] = (str(STEPS),)) -> None:
        """`ftrun sbatch job.sh`, with options of sbatch or ftrun and arguments of the script."""
        words = [
            sys.executable,
            "-P",
            "-m",
            "ftrun.supervisor",
            "sbatch",
            *QUICK,
            *options,
            "job.sh",
            *arguments,
        ]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr

    def run(self) -> model_run.Run:
        """The run as its journal tells it."""
        (run_dir,) = store_run_dir.run_dirs(str(self.home))
        return RUNS.run(run_dir)

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for it; the job's log tells why it did not come."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"not {what}: {self.run().state}\n{self.story()}"
            time.sleep(0.25)

    def story(self) -> str:
        """The ends of what job and supervisor said."""
        said = self.home / "supervisor.log"
        return self.log()[-4000:] + (said.read_text()[-2000:] if said.exists() else "")

    def log(self) -> str:
        """The job's output."""
        return "".join(path.read_text() for path in self.folder.glob("*.log"))

    def saved(self) -> int:
        """How many checkpoints there are."""
        return len([path for path in self.folder.glob("checkpoints/step-*") if path.suffix != ".tmp"])

    def result(self) -> str:
        """What the whole program worked out."""
        return (self.folder / "final.txt").read_text()

    def finished(self) -> model_run.Run:
        """The run, once it has come to its end; it must be a good one."""
        self.until("finished", lambda: self.run().final)
        run = self.run()
        assert run.state.value == "finished", self.log()
        return run

    def rewind(self) -> None:
        """As if nothing had been submitted yet."""
        injector.end_processes(injector.supervisors(self.home))
        for path in (self.folder / "checkpoints", self.home):
            shutil.rmtree(path)
        for path in self.folder.iterdir():
            if path.name.startswith("final.") or path.suffix in {".log", ".jsonl"}:
                path.unlink()


Stage = Callable[..., Example]


@contextlib.contextmanager
def stages(make_sandbox: Callable[..., Sandbox]) -> Iterator[Stage]:
    """Examples on one sandbox, of four nodes unless the first says otherwise (options of `up`); no supervisor of them is left."""
    made: list[Example] = []

    def make(name: str, **options: int) -> Example:
        box = made[0].box if made else make_sandbox(**{"nodes": 4, **options})
        made.append(Example(box, name))
        return made[-1]

    try:
        yield make
    finally:
        for example in made:
            injector.end_processes(injector.supervisors(example.home))
