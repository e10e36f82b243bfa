"""Runs of odd shape on real Slurm: jobs that Slurm starts twice, arrays, heterogeneous jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.slurm.sandbox import boot
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.store import attempt_dir
from tests.slurm.post import Post

ECC = "NVRM: Xid (PCI:0000:3b:00): 48, pid=8123, name=python, An uncorrectable double bit error (DBE) has been detected"

pytestmark = pytest.mark.slurm


@pytest.mark.drills
def test_a_job_that_slurm_starts_a_second_time_runs_once_an_attempt(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """A controller that died comes back with an old state and starts a running job again, with the same id and count: that start is refused, the attempt is over, and the next one runs.

    batch.sh refuses it, or slurmd before: 24.11 removes the first start when its node reports it, and revokes the job's credential.
    """
    box = make_sandbox(nodes=2)
    at = make_post(box, "fence-wait = 8\n")  # so long every node must have been heard after the second start
    state = Path(box.run(["scontrol", "show", "config"]).stdout.partition("StateSaveLocation")[2].split()[1])
    kept = box.folder / "old state"
    job = at.sbatch(
        '[ "$FTRUN_ATTEMPT" = 1 ] && sleep 300; exit 0\n',
        "--begin=now+1hour",
        "--time=9",
        "--open-mode=append",
    )
    at.until(lambda: job.encode() and _saved(state, kept, at.run(job).token), "the pending job is saved")
    begin = ("scontrol", "update", f"JobId={job}", "StartTime=now")
    at.call(*begin)
    at.until(lambda: at.ledger() == [f"start 1 {job}"], "attempt 1 runs")
    supervisor = at.supervise()
    at.until_state("running", job=job)

    box.kill_controller()
    shutil.rmtree(state)
    shutil.copytree(kept, state)
    box.start_controller()
    at.call(*begin)

    run = at.until_state("finished", job=job)
    assert supervisor.poll() is None
    assert ["started twice by Slurm"] == [a.launch.end.reason for a in run.attempts[:-1]]
    assert ["scheduler"] == [i.fault for i in run.incidents]
    assert [f"start 1 {job}", f"start 2 {run.attempts[1].job}"] == at.ledger()
    by_slurmd = "Job credential revoked" in (box.log / "slurmctld.log").read_text()
    assert by_slurmd or "launch 0 of attempt 1" in at.job_log()


EIGHT = """
case $SLURM_ARRAY_TASK_ID.$FTRUN_ATTEMPT in
2.*) echo "Traceback (most recent call last):"; echo "ModuleNotFoundError: No module named 'nope'"; exit 1 ;;
5.1) echo "$SLURMD_NODENAME: {ecc}"; exit 1 ;;
esac
srun --export=NONE /bin/sh -c 'echo of $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX'
"""


def test_each_failed_task_of_an_array_is_judged_by_itself(
    slurm_sandbox: Sandbox, make_post: Callable[..., Post]
) -> None:
    """The task that met a broken GPU is repeated without that node; the one with a mistake in its code is not; the run says so."""
    at = make_post(slurm_sandbox)
    job = at.sbatch(EIGHT.replace("{ecc}", ECC), "--array=0-7%4", f"--output={at.work}/%x.%a.log", "-t10")
    at.supervise()
    run = at.until_state("stopped", job=job)
    first, second = run.attempts

    assert (2, 5) == first.failed_tasks
    assert [((2,), "config")] == [(lot.tasks, lot.fault) for lot in run.given_up]
    assert ["hardware-gpu"] == [i.fault for i in run.incidents if i.attempt == 1]
    assert ((5,), first_node(at, 5)) == (second.tasks, second.excluded)
    assert "of 8 0 7" in at.job_log("job.sh.5")
    assert "task 2" in run.final_reason
    assert 9 == sum(line.startswith("start") for line in at.ledger())
    shown = at.ftrun("show", job)
    assert "2,5" in shown
    told = at.ftrun("logs", job)
    assert "task 5" in told
    assert "No module named" in told


def first_node(at: Post, task: int) -> tuple[str, ...]:
    record = attempt_dir.task_records(at.run_dir(), 1, [task])[task]
    return record.nodes


@pytest.mark.drills
def test_a_thousand_tasks_are_one_run(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """However long the array, the run ends once, when all tasks have; watching it costs little."""
    box = make_sandbox(nodes=4, conf={"MaxArraySize": "2001", "MaxJobCount": "5000"})
    at = make_post(box)
    job = at.sbatch("exit 0\n", "--array=0-999", "--output=/dev/null", "-t10")
    supervisor = at.supervise()
    with open(f"/proc/{supervisor.pid}/stat") as stat:
        run = at.until_state("finished", job=job, within_s=600)
        stat.seek(0)
        ticks = sum(map(int, stat.read().rpartition(")")[2].split()[11:15]))

    assert 1000 == len({line.split()[2] for line in at.ledger()})
    assert 1 == len(run.attempts)
    assert "job.requeued" not in at.kinds(job)
    assert ticks / os.sysconf("SC_CLK_TCK") < 0.2 * (run.last_at_s - run.created_at_s)


HET = """#SBATCH -N1 -t10 --output={log}
#SBATCH hetjob
#SBATCH -N1
cd {work}
echo "start $FTRUN_ATTEMPT $SLURM_JOB_ID $SLURM_HET_SIZE" >>ledger
srun --het-group=0,1 /bin/sh -c '
[ "$FTRUN_ATTEMPT.$SLURM_PROCID" = 1.1 ] && echo "$SLURMD_NODENAME: {ecc}" && exit 1
exit 0' || exit 1
"""


def test_a_heterogeneous_job_comes_back_whole(slurm_sandbox: Sandbox, make_post: Callable[..., Post]) -> None:
    """A fault in component 1 is the run's; the next attempt has the same components, and none of them goes to the bad node."""
    at = make_post(slurm_sandbox)
    script = at.work / "het.sh"
    log = at.work / "het.log"
    script.write_text("#!/bin/bash\n" + HET.format(work=at.work, log=log, ecc=ECC))
    out = at.ftrun("sbatch", str(script))
    at.supervise()
    run = at.until_state("finished")
    first, second = run.attempts

    assert f"Submitted batch job {first.job}" in out
    assert [f"start 1 {first.job} 2", f"start 2 {second.job} 2"] == at.ledger()
    assert ["hardware-gpu"] == [i.fault for i in run.incidents]
    bad = run.incidents[0].nodes
    assert 1 == len(bad)
    assert bad == second.excluded
    shown = at.call("scontrol", "-o", "show", "job", second.job)
    assert [bad[0]] * 2 == re.findall(r"ExcNodeList=(\S+)", shown)


@pytest.mark.parametrize("agent", [pytest.param("never", marks=pytest.mark.drills), "auto"])
def test_a_script_that_slurm_holds_for_its_exit_code_goes_on(
    agent: str, make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """RequeueExitHold: the job would wait in SPECIAL_EXIT until a person releases it. It is taken out of the queue, and the next attempt runs."""
    at = make_post(make_sandbox(nodes=2, conf={"RequeueExitHold": "3"}))
    body = 'echo "step 1 loss 2.5"\n[ "$FTRUN_ATTEMPT" = 1 ] && exit 3\nexit 0\n'
    job = at.sbatch(body, "-N1", f"--ft-agent={agent}")
    at.supervise()
    run = at.until_state("finished", "stopped")

    assert ("finished", 2) == (run.state.value, len(run.attempts)), at.story()
    assert not at.call("squeue", "-h", "-j", job, code=None).strip().startswith(job)


@pytest.fixture
def expediting(make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]) -> tuple[Sandbox, Post]:
    """A cluster whose Slurm knows --requeue=expedite, and whose epilog fails on a node where the file `bad-NODE` is."""
    if boot.slurm_version() < (25, 11):
        pytest.skip("sbatch --requeue=expedite: 25.11 and later")
    folder = Path(tempfile.mkdtemp(prefix="ftrun-e-"))
    epilog = folder / "epilog"
    epilog.write_text(
        f"#!/bin/sh\n[ -e {folder}/bad-$SLURMD_NODENAME ] && rm {folder}/bad-$SLURMD_NODENAME && exit 1\nexit 0\n"
    )
    epilog.chmod(0o755)
    folder.chmod(0o777)
    box = make_sandbox(
        nodes=5, conf={"Epilog": str(epilog), "SlurmctldParameters": "enable_expedited_requeue"}
    )
    post = make_post(box)
    post.env["BAD"] = f"{folder}/bad"
    return box, post


@pytest.mark.drills
def test_an_expedited_job_that_slurm_holds_goes_on(expediting: tuple[Sandbox, Post]) -> None:
    """A non-zero exit without a failed epilog ends in REQUEUE_HOLD: one line tells so at submission, and the next attempt runs."""
    at = expediting[1]
    body = 'echo "step 1 loss 2.5"\n[ "$FTRUN_ATTEMPT" = 1 ] && exit 3\nexit 0\n'
    path = at.script(body)
    told = at.ftrun(
        "sbatch", "--requeue=expedite", "-N1", "--ft-agent=never", f"--output={at.work}/%x.log", str(path)
    )
    at.supervise()
    run = at.until_state("finished", "stopped")

    assert 1 == told.count("REQUEUE_HOLD")
    assert ("finished", 2) == (run.state.value, len(run.attempts)), at.story()
    assert ["REQUEUE_HOLD"] == [run.attempts[0].launch.end.state] or run.attempts[0].launch.requeued


@pytest.mark.drills
def test_an_expedited_job_that_nobody_may_retry_stops_and_leaves_the_queue(
    expediting: tuple[Sandbox, Post],
) -> None:
    """What cannot succeed stops with its reason, and nothing is held for ever."""
    at = expediting[1]
    job = at.sbatch(
        'echo "ModuleNotFoundError: No module named torch"\nexit 1\n',
        "--requeue=expedite",
        "-N1",
        "--ft-agent=never",
    )
    at.supervise()
    run = at.until_state("finished", "stopped")

    assert "stopped" == run.state.value, at.story()
    at.until(
        lambda: "REQUEUE_HOLD" not in at.call("squeue", "-h", "-j", job, "-o", "%T", code=None),
        "it has left the queue",
    )


@pytest.mark.drills
def test_a_failed_epilog_puts_an_expedited_job_first(expediting: tuple[Sandbox, Post]) -> None:
    """As the epilog hook may on purpose: Slurm drains the culprit's node and starts the job before all others. ftrun leaves it to Slurm."""
    at = expediting[1]
    body = f"""
        echo "on $SLURM_JOB_NODELIST"
        [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || {{ sleep 15; exit 0; }}
        until [ -e seen ]; do sleep 0.2; done
        echo "$SLURMD_NODENAME kernel: {ECC}"; touch $BAD-$SLURMD_NODENAME; exit 1
    """
    at.sbatch(body, "--requeue=expedite", "-N2", "--open-mode=append", "--ft-agent=never")
    at.supervise()
    at.until_state("running")
    (at.work / "seen").touch()
    run = at.until_state("finished", "stopped")

    before, after = re.findall(r"^on (.*)$", at.job_log(), re.MULTILINE)
    assert before.split(",")[0] not in after
    assert ("finished", 1, 1) == (run.state.value, len(run.attempts), run.attempts[0].launch.number), (
        at.story()
    )
    assert ["hardware-gpu"] == [one.fault for one in run.incidents]


def test_doctor_warns_where_slurm_cannot_end_a_script(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """A script that leads a process group of its own is out of reach of proctrack/pgid."""
    at = make_post(make_sandbox(nodes=1, conf={"ProctrackType": "proctrack/pgid"}))
    told = json.loads(at.ftrun("doctor", "--json", code=None).partition("\n")[0])

    assert "warn" in [f["state"] for f in told["findings"] if f["check"] == "ProctrackType"]


def _saved(state: Path, kept: Path, token: str) -> bool:
    """Copy the state folder once the job is in it."""
    file = state / "job_state"
    if not file.exists() or token.encode() not in file.read_bytes():
        return False
    shutil.copytree(state, kept)
    return True


APPENDS = """
at=$FTRUN_ATTEMPT.$FTRUN_START
echo "--- $at" >>all.log
[ "$at" = 1.1 ] && { echo "RuntimeError: CUDA error: uncorrectable ECC error encountered" >>all.log; sleep 1; exit 1; }
for i in 1 2 3; do echo "step $i loss 2.5" >>all.log; sleep 1; done
[ -e failed ] || { touch failed; exit 7; }
exit 0
"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--ft-agent=never",), marks=pytest.mark.drills),
        pytest.param(("--ft-policy=cuda-ecc.recover=step,resubmit",), marks=pytest.mark.drills),
    ],
    ids=["supervisor", "agent"],
)
def test_an_appended_log_accuses_no_later_start(
    words: tuple[str, ...], slurm_sandbox: Sandbox, make_post: Callable[..., Post]
) -> None:
    """All attempts append to one `--ft-log`: the GPU's error of the first is nobody's after it, and blames no second node."""
    at = make_post(slurm_sandbox)
    at.sbatch(APPENDS, "-N1", f"--ft-log={at.work}/all.log", *words)
    at.supervise()
    run = at.until_state("finished", "stopped")

    assert "finished" == run.state.value, at.story()
    assert ["hardware-gpu", "unknown"] == [one.fault for one in run.incidents], at.story()
    assert () == run.incidents[1].nodes


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        pytest.param(3, "as far as they are idle", marks=pytest.mark.drills),
        pytest.param(2, "too few other nodes are idle", marks=pytest.mark.drills),
    ],
)
def test_a_retry_in_an_almost_full_partition_leaves_what_it_can(
    nodes: int, words: str, make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """Two nodes failed without a word: the next attempt has the one that is idle, without a wait; and the stop counts what was tried."""
    at = make_post(make_sandbox(nodes=nodes))
    at.sbatch("exit 3\n", "-N2", "--ft-recover=step,resubmit")
    at.supervise()
    run = at.until_state("stopped")

    assert words in str(run.incidents[1].decision["reason"]), at.story()
    assert (nodes == 3) == ("n2" in run.attempts[1].nodes)
    assert "1 of 1 retries for unknown and 1 restart in the same job used" in run.final_reason
