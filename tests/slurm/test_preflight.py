"""Laws of the checks before a script, on real Slurm: a sick node costs no attempt, and no mistake of ours costs a script its start."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from tests.slurm.post import FTRUN, Post, posts

pytestmark = pytest.mark.slurm

SICK = json.dumps({"disk-size root": {"size_gb": 10**9}})


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Four nodes with an sshd each; what is asked to end has Slurm's usual time for it, on a busy machine, too."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    sandbox = up(folder, nodes=4, ssh=True, conf={"KillWait": "30"})
    yield sandbox
    sandbox.down()
    shutil.rmtree(folder, ignore_errors=True)


Law = Callable[[Callable[[], Post]], None]
LAWS: dict[str, Law] = {}


def side_by_side(law: Law) -> Callable[[dict[str, Future[None]]], None]:
    """A test whose body is played together with the others: they mostly wait."""
    name = law.__name__
    LAWS[name] = law

    def test(played: dict[str, Future[None]]) -> None:
        played[name].result()

    test.__name__, test.__doc__ = name, law.__doc__
    return test


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, box: Sandbox) -> Iterator[dict[str, Future[None]]]:
    wanted = [item.name for item in request.session.items if item.module is request.module]  # type: ignore[attr-defined]
    with posts(box) as make, ThreadPoolExecutor(len(LAWS)) as pool:
        yield {name: pool.submit(law, make) for name, law in LAWS.items() if name in wanted}


@pytest.fixture
def post(box: Sandbox) -> Iterator[Post]:
    with posts(box) as make:
        yield make()


def _sick(post: Post, *nodes: str) -> str:
    """These nodes fail a check; the option that says so."""
    for node in nodes:
        (post.folder / f"{node}.json").write_text(SICK)
    return f"--ft-checks={post.folder}/{{node}}.json"


@side_by_side
def test_a_script_starts_without_the_node_that_fails_a_check(make: Callable[[], Post]) -> None:
    """The first attempt ends unstarted, the second runs elsewhere, or all the same where no other node is to be had; no budget, no retry, no drain."""
    post = make()
    crowded = make()
    crowded.supervise()
    crowded.sbatch("echo trained\n", "-N4", "--oversubscribe", "--ft-preflight", _sick(crowded, "n1"))
    post.supervise()
    job = post.sbatch("echo trained\n", "-N2", "-w", "n[0-1]", "--ft-preflight", _sick(post, "n1"))
    run = post.until_state("finished", "stopped", job=job)

    assert ("finished", 0, {"preflight": 1}) == (run.state.value, run.retries, dict(run.spent)), post.story()
    assert [("start", "2")] == [tuple(line.split()[:2]) for line in post.ledger()]
    (incident,) = run.incidents
    assert ("storage", ("n1",), "preflight.disk-size-root") == (
        incident.fault,
        incident.nodes,
        incident.signature,
    )
    assert "n1" not in run.attempts[1].nodes
    assert () == run.drained
    assert "preflight: n1: disk-size root:" in post.job_log()
    reports = sorted(
        path.name for path in Path(post.run_dir(job), "attempts", "1", "nodes").glob("preflight*")
    )
    assert ["preflight.0.n0.json", "preflight.0.n1.json"] == reports
    full = crowded.until_state("finished", "stopped")
    assert ("finished", 2, 4) == (full.state.value, len(full.attempts), len(full.attempts[1].nodes)), (
        crowded.story()
    )
    assert "the next script starts whatever its checks say: n1 cannot be left out" in str(
        full.incidents[0].decision
    )
    assert ["the script is not started here", "the script starts all the same"] == re.findall(
        r"the script (?:is not|starts all).*", crowded.job_log()
    )


@side_by_side
def test_what_all_nodes_show_holds_no_script(make: Callable[[], Post]) -> None:
    """It is said in the log, and nobody is left out."""
    post = make()
    post.supervise()
    job = post.sbatch("echo trained\n", "-N2", "--ft-preflight", _sick(post, "n0", "n1", "n2", "n3"))
    run = post.until_state("finished", "stopped", job=job)

    assert ("finished", 1, ()) == (run.state.value, len(run.attempts), run.incidents)
    assert "disk-size root fails on most of 2 nodes: a matter of the site" in post.job_log()


@pytest.mark.drills
@side_by_side
def test_nodes_are_checked_over_ssh_and_what_is_wrong_is_shown(make: Callable[[], Post]) -> None:
    """A table of what is not well, who is to be avoided, who was not seen; the exit status; the same facts as JSON."""
    post = make()
    box = post.box
    (post.folder / "checks.json").write_text(SICK)
    words = ["preflight", "--ssh-config", str(box.ssh_config), "disk-size root", "memory"]
    well = post.ftrun(*words, "--nodelist", "n[0-2]", code=0)
    unseen = post.ftrun(*words, "-w", "n[0-2],no-such-node", code=3)
    sick = json.loads(post.ftrun(*words, "-p", "main", "--checks", "../checks.json", "--json", code=1))

    assert "3 of 3 nodes checked, 0 to be avoided" in well
    assert "not checked: no-such-node: unreachable: " in unseen
    assert {"n0", "n1", "n2", "n3"} == set(sick["nodes"])
    assert (["disk-size root"], {}, 1) == (sick["site"], sick["bad"], sick["exit_status"])
    assert ("answered", "bad") == (sick["nodes"]["n0"]["state"], sick["nodes"]["n0"]["worst"])


@side_by_side
def test_inside_a_job_its_own_nodes_are_checked(make: Callable[[], Post]) -> None:
    """By a step beside the script, without SSH; a node that differs is to be avoided."""
    post = make()
    sick = _sick(post, "n1").partition("=")[2]
    ftrun = f"{' '.join(FTRUN)} preflight"
    body = (
        f"{ftrun} --checks '{sick}' 'disk-size root'; echo left $?; {ftrun} --pairs --all memory; echo over\n"
    )
    job = post.plain(
        "-N3", "-w", "n[0-2]", "--oversubscribe", f"--output={post.work}/job.log", "--wrap", body
    )
    log = post.until(lambda: (text := post.job_log("job")) and "over" in text and text, "the job is over")

    assert "n1: disk-size root /:" in log
    assert "to be avoided: n1\n" in log
    assert re.search(r"^pairs .*n", log, re.MULTILINE), log  # how well depends on what else runs here
    assert "3 of 3 nodes checked, 1 to be avoided\nleft 1\n" in log
    assert [] == [path.name for path in (post.home / "tools").glob("p*-*")], job


@pytest.mark.drills
@side_by_side
def test_what_goes_wrong_with_the_checks_holds_no_script(make: Callable[[], Post]) -> None:
    """Hooks that are no Python, a file of thresholds that is no JSON; and where no other attempt would follow, what is bad is only told."""
    post = make()
    sick = _sick(post, "n1")
    (post.folder / "broken.json").write_text("{")
    options = ("-N2", "-w", "n[0-1]", "--oversubscribe", "--ft-preflight")
    broken = post.sbatch("echo trained\n", *options, "--hold", sick, name="broken.sh")
    (post.home / "tools" / "ftrun-hook.pyz").resolve().write_text("garbage")
    post.call("scontrol", "release", broken)
    post.until(lambda: len(post.ledger()) == 1, "the script has started without checks")
    (post.home / "tools" / "ftrun-hook.pyz").resolve().unlink()
    post.sbatch("echo trained\n", *options, f"--ft-checks={post.folder}/broken.json", name="unread.sh")
    post.sbatch("echo trained\n", *options, sick, "--ft-retries=0", name="told.sh")

    post.until(lambda: len(post.ledger()) == 3, "all three scripts have started")
    assert "2 of 2 nodes gave no report, which is held against none of them" in post.job_log("unread.sh")
    log = post.job_log("told.sh")
    assert "preflight: n1: disk-size root:" in log
    assert "the script starts all the same" in log


@side_by_side
def test_who_cancels_during_the_checks_is_obeyed(make: Callable[[], Post]) -> None:
    """The script never starts, the run stops as cancelled, and nothing private is left on the node."""
    post = make()
    job = post.sbatch("echo trained\n", "-N2", "--ft-preflight", TMPDIR=str(post.work))
    record = Path(post.run_dir(job), "attempts", "1", "launch.0")
    post.until(record.exists, "the checks begin")
    post.call("scancel", job)
    post.supervise()
    run = post.until_state("stopped", "finished", job=job)

    assert ("stopped", "cancelled", []) == (run.state.value, run.final_class, post.ledger())
    # A job is cancelled to Slurm before its processes are gone.
    post.until(lambda: not list(post.work.glob("ftrun.??????")), "nothing private is left")


@pytest.mark.drills
@pytest.mark.parametrize("shell", [["bash"], ["dash"], ["busybox", "sh"]], ids=" ".join)
def test_a_script_is_held_whatever_shell_opens_the_attempt(post: Post, shell: list[str]) -> None:
    """/bin/sh is another program on every system; the submitted file is run by each inside an allocation."""
    for sick in (["n1"], []):
        words = ("-N2", "--hold", "--ft-preflight", _sick(post, *sick))
        job = post.sbatch("echo trained\nexit 5\n", *words, name=f"{len(sick)}.sh")
        post.call("scancel", job)
        (script,) = Path(post.run_dir(job), "attempts", "1", "submitted").iterdir()
        done = post.run_command("salloc", "-Q", "-N2", "-w", "n[0-1]", *shell, str(script))
        (post.folder / "n1.json").unlink(missing_ok=True)

        wanted = (1, 0) if sick else (5, 1)
        assert wanted == (done.returncode, len(post.ledger())), done.stderr
