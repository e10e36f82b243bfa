"""Prolog, Epilog and HealthCheckProgram configured in a real Slurm: what becomes of nodes and jobs. (I/O)"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks import main
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from tests.slurm.post import posts

pytestmark = pytest.mark.slurm
SICK: dict[str, dict[str, Any]] = {"memory": {"expected_gb": 1_000_000}}
NOTHING: dict[str, dict[str, Any]] = {"health": {"enabled": False}, "prolog": {"fresh_s": 0}}


class Site:
    """A cluster whose slurm.conf names our three scripts, and the settings of its nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings({})
        words = ["--settings", str(folder / "etc" / "checks.json"), "--state", str(folder / "state")]
        assert main.main(["install", str(folder / "opt"), *words]) == 0
        conf = {
            "Prolog": f"{folder}/opt/prolog",
            "Epilog": f"{folder}/opt/epilog",
            "HealthCheckProgram": f"{folder}/opt/health",
            "HealthCheckInterval": "2",
            "PrologEpilogTimeout": "60",
            "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0,nohold_on_prolog_fail",
        }
        self.box = up(folder / "box", nodes=2, gpus=1, conf=conf)
        for name in ("prolog", "epilog", "health"):
            script = folder / "opt" / name
            # The nodes share this machine's disk; and slurmd gives a health check no SLURM_CONF.
            text = script.read_text().replace("/state\n", "/state/$SLURMD_NODENAME\n", 1)
            script.write_text(text.replace("\nconf=", f"\nconf={self.box.conf} #", 1))

    def settings(self, table: dict[str, dict[str, Any]]) -> None:
        (self.folder / "etc").mkdir(exist_ok=True)
        draft = self.folder / "etc" / "draft"
        draft.write_text(json.dumps(table))
        draft.rename(self.folder / "etc" / "checks.json")

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("state/*/hooks.log"))

    def submit(self, node: str, wrap: str, *words: str) -> str:
        command = ["sbatch", "--parsable", "-w", node, "-o", str(self.folder / "out"), *words, "--wrap", wrap]
        return self.box.run(command, check=True).stdout.strip()

    def nodes(self) -> dict[str, tuple[str, str]]:
        """State and reason."""
        told = self.box.run(["sinfo", "-h", "-N", "-o", "%N|%T|%E"], check=True).stdout
        return {
            name: (state, reason) for name, state, reason in (line.split("|") for line in told.splitlines())
        }

    def job(self, number: str) -> str:
        told = self.box.run(["squeue", "-h", "-t", "all", "-j", number, "-o", "%T %r"]).stdout
        return told.strip()

    def resume(self, *nodes: str) -> None:
        for node in nodes:
            self.box.run(["scontrol", "update", f"nodename={node}", "state=resume"])


def wait(until: Callable[[], bool], within_s: float = 240.0) -> None:
    deadline = time.monotonic() + within_s
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    try:
        yield Site(folder)
    finally:
        if (folder / "box" / "sandbox.json").exists():
            Sandbox.load(folder / "box").down()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_sick_node_takes_no_job_and_the_cap_leaves_the_others_to_work(site: Site) -> None:
    """The first node is drained with ftrun's reason and its job waits for another, not held; on the next one, beyond the
    cap, the same finding costs nothing.
    """
    site.settings(SICK | NOTHING)
    refused = site.submit("n0", "true")
    wait(lambda: site.nodes()["n0"][0] == "drained")
    begun = site.submit("n1", "true", "--gres=gpu:1")
    wait(lambda: site.job(begun).startswith("COMPLETED"))

    assert site.nodes()["n0"][1].startswith(f"ftrun: prolog.{refused} check.memory 20")
    wait(lambda: site.nodes()["n1"] == ("idle", "none"))
    assert site.job(refused).split()[0] == "PENDING"
    assert "held" not in site.job(refused).lower()
    assert f"prolog job={begun} bad memory" in site.log
    assert "as many nodes as may be" in site.log
    assert "no job on n0: memory" in Path(site.box.plan.slurmd_log("n0")).read_text()
    site.box.run(["scancel", refused], check=True)
    site.resume("n0")


def test_what_a_job_leaves_behind_is_told_and_drains_nobody(site: Site) -> None:
    """A process that left the job's session is in the log of the hooks; the node takes the next job."""
    site.settings(NOTHING)
    job = site.submit("n1", "setsid sleep 40 >/dev/null 2>&1 & sleep 0.3")
    wait(lambda: f"epilog job={job} degraded leftovers" in site.log)

    wait(lambda: site.nodes()["n1"] == ("idle", "none"))


def test_the_health_check_respects_a_person_s_reason_and_the_cap(site: Site) -> None:
    """A node that a person has drained keeps that reason; another is drained with ftrun's; slurmd sees no failure."""
    site.box.run(["scontrol", "update", "nodename=n0", "state=drain", "reason=ann: fan"], check=True)
    site.settings(SICK | {"health": {"on_bad": "drain", "runs": 1, "checks": ["memory"]}})
    wait(lambda: site.nodes()["n1"][0] == "drained")

    assert site.nodes()["n0"] == ("drained", "ann: fan")
    assert site.nodes()["n1"][1].startswith("ftrun: health check.memory 20")
    assert "health_check failed" not in Path(site.box.plan.slurmd_log("n1")).read_text()
    site.settings(NOTHING)
    site.resume("n0", "n1")


@pytest.mark.drills
def test_a_run_whose_job_was_refused_goes_on_elsewhere_at_no_cost(site: Site) -> None:
    """The prolog keeps the job off a sick node; Slurm starts it on another one, and no budget and no attempt is spent."""
    site.settings(SICK | NOTHING)
    healthy = site.folder / "etc" / "n1.json"
    healthy.write_text(json.dumps(NOTHING))
    script = site.folder / "opt" / "prolog"
    before = script.read_text()
    (site.folder / "etc" / "n0.json").write_text(json.dumps(SICK | NOTHING))
    script.write_text(before.replace("/etc/checks.json\n", "/etc/$SLURMD_NODENAME.json\n", 1))
    try:
        with posts(site.box) as make:
            post = make()
            post.supervise()
            post.sbatch("echo 'step 1 loss 2.0'; sleep 1\n")
            run = post.until_state("finished")
    finally:
        script.write_text(before)

    assert ([("n1",)], 0) == ([attempt.nodes for attempt in run.attempts], run.retries)
    assert site.nodes()["n0"][1].startswith("ftrun: prolog.")
    site.resume("n0")
