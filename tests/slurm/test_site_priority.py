"""A recovered job among fifty of others, on a real Slurm with several users: the service puts it ahead, and nobody else by the same way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.supervisor.drill import injector
from tests.slurm.test_site import ANN, BEN, FTRUN, _as, _python_for_all

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.drills,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users"),
]

SITE = """site-spool = "{folder}/spool"
site-priority = "nice:-10000"
site-raise-after = 1
exclude-cap = "50%"
log-quiet = 1
log-quiet-max = 2
backoff = 1
poll = 0.5
"""
SCRIPT = (
    "#!/bin/sh\n#SBATCH -N2 --exclusive --no-requeue -o {folder}/log\necho step 1 loss 2\nsleep {seconds}\n"
)


@pytest.fixture
def box() -> Iterator[Sandbox]:
    """Four nodes on root's account."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    made = up(folder, nodes=4)
    yield made
    made.down()
    shutil.rmtree(folder, ignore_errors=True)


class Town:
    """Ann with her supervisor, Ben with many jobs, and root with a service."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
        self.folder.chmod(0o755)
        self.mine = self.folder / "ann"
        self.mine.mkdir()
        os.chown(self.mine, ANN, ANN)
        (self.folder / "site.toml").write_text(SITE.format(folder=self.folder))
        libraries = [
            str(Path(__file__).resolve().parents[2] / ".ci" / "typing"),
            sysconfig.get_path("purelib"),
        ]
        self.env = {
            **{key: value for key, value in box.env().items() if key in ("SLURM_CONF", "PATH", "LANG")},
            "HOME": str(self.mine),
            "FTRUN_HOME": str(self.mine / "home"),
            "FTRUN_SITE_CONFIG": str(self.folder / "site.toml"),
            "PYTHONPATH": ":".join(libraries),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def as_ann(self, *words: str) -> str:
        command = [*_as(ANN), _python_for_all(), "-m", "ftrun.supervisor", *words]
        done = subprocess.run(
            command, env=self.env, cwd=self.mine, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done
        return done.stdout + done.stderr

    def plain(self, uid: int, *words: str) -> str:
        command = [*_as(uid), "sbatch", "--parsable", "--exclusive", "--chdir=/", "-o", "/dev/null", *words]
        return self.box.run(command, check=True).stdout.strip()

    def service(self, code: int = 0, **more: str) -> str:
        env = {
            **self.box.env(),
            "FTRUN_HOME": str(self.folder / "root"),
            "FTRUN_SITE_CONFIG": self.env["FTRUN_SITE_CONFIG"],
            **more,
        }
        done = subprocess.run(
            [*FTRUN, "site", "--once"], env=env, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == code, done
        return done.stdout

    def queue(self, what: str, *selection: str) -> list[str]:
        return self.box.run(["squeue", "-h", *selection, "-o", what], check=True).stdout.split()

    def until(self, holds: Callable[[], object], what: str, within_s: float = 240.0) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.as_ann('explain', '1')}"
            time.sleep(0.3)

    def clear(self) -> None:
        for pid in injector.supervisors(self.mine / "home"):
            os.kill(pid, signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def town(box: Sandbox) -> Iterator[Town]:
    made = Town(box)
    yield made
    made.clear()


def test_a_recovered_job_starts_next_before_fifty_of_others(town: Town) -> None:
    """Its node died by no fault of its user: among all that wait it stands first, once the service has looked; a job that only says so does not."""
    town.service()
    script = town.folder / "train.sh"
    script.write_text(SCRIPT.format(folder=town.mine, seconds=120))
    town.as_ann("sbatch", "--ft-fence-wait=1", "--ft-recover=resubmit", str(script))
    town.until(lambda: town.queue("%T", "-j", "1") == ["RUNNING"], "Ann's job runs")
    time.sleep(2.0)
    first = town.plain(BEN, "-N2", "--wrap=sleep 25")
    town.until(lambda: town.queue("%T", "-j", first) == ["RUNNING"], "Ben's first job runs")
    backlog = [town.plain(BEN, "-N2", "--wrap=sleep 2") for _ in range(50)]
    liar = town.plain(BEN, "-N2", "--comment=ftrun:train.sh-0001:00000000:2", "--wrap=sleep 2")
    lost = town.box.run(["squeue", "-h", "-j", "1", "-o", "%N"], check=True).stdout.strip()
    node = town.box.run(["scontrol", "show", "hostnames", lost], check=True).stdout.split()[-1]
    town.box.crash(node)
    town.box.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost"], check=True)
    town.until(lambda: town.queue("%i", "-u", str(ANN), "-t", "PD"), "Ann's second job waits")
    (second,) = town.queue("%i", "-u", str(ANN), "-t", "PD")
    assert town.queue("%i", "-t", "PD", "--sort=-p")[0] == backlog[0]

    town.until(lambda: list((town.folder / "spool").glob("*.req")), "her supervisor has asked")
    town.service(-9, FTRUN_CRASH_AT="raise:after")
    town.until(lambda: " raised " in town.service(), "the service has raised it")
    assert town.queue("%i", "-t", "PD", "--sort=-p")[:2] == [second, backlog[0]]
    town.until(lambda: town.queue("%T", "-j", second) == ["RUNNING"], "it runs")
    assert town.queue("%T", "-j", ",".join([*backlog, liar])).count("PENDING") == 51
    town.until(lambda: f"put job {second} ahead: raised" in town.as_ann("status", "--all"), "status tells it")
