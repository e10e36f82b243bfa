"""What is known of a job that plain sbatch submitted: who may be adopted, and what a later attempt asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.slurm.client import options, parse
from ftrun.slurm.client.cluster import JobDetails, JobState
from ftrun.slurm.client.options import CommandLine
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.submission import plain_job

SHOWN = (
    "JobId=7 JobName=train.sh UserId=ann(1000) GroupId=ann(1000) Nice=0 Account=(null) QOS=normal JobState=RUNNING Reason=None "
    "Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 ExitCode=0:0 TimeLimit=1-00:20:00 TimeMin=N/A SubmitTime=100 "
    "Partition=gpu ReqNodeList=(null) ExcNodeList=n9 NodeList=n[0-1] BatchHost=n0 NumNodes=2 NumCPUs=16 NumTasks=8 CPUs/Task=2 "
    "NtasksPerN:B:S:C=4:0:*:* CoreSpec=* MinCPUsNode=8 MinMemoryNode=62.50G MinTmpDiskNode=0 Features=h100 OverSubscribe=NO "
    "Contiguous=0 Licenses=(null) Network=(null) Command=/w/train.sh a b WorkDir=/w Comment=mine "
    "StdErr=/w/slurm-7.out StdIn=/dev/null StdOut=/w/slurm-7.out TresPerNode=gres/gpu:8 Power="
)


def _job(**changed: str) -> JobDetails:
    text = SHOWN
    for field, value in changed.items():
        before = next(word for word in text.split() if word.startswith(f"{field}="))
        text = text.replace(before, f"{field}={value}")
    found = parse.parse_details(text, "7")
    assert found is not None
    return found


def _asked(details: JobDetails, *head: str) -> CommandLine:
    return options.split(plain_job.sbatch_arguments(details, options.split(list(head))))


def test_a_job_of_mine_that_lives_is_taken() -> None:
    """Queued or running, requeued before or not."""
    for details in (_job(), _job(JobState="PENDING"), _job(Restarts="2")):
        assert plain_job.refuse(details, "7", "ann") is details


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"JobState": "COMPLETED"}, "it is over (COMPLETED)"),
        ({"JobState": "COMPLETING"}, "it is over (COMPLETING)"),
        ({"BatchFlag": "0"}, "it has no batch script"),
        ({"UserId": "bob(1001)"}, "it is bob's"),
        ({"JobState": "REQUEUE_HOLD"}, "it was requeued and is held"),
        ({"JobState": "PENDING", "Reason": "job_requeued_in_held_state"}, "it was requeued and is held"),
        ({"JobState": "PENDING", "Reason": "launch_failed_requeued_held"}, "it was requeued and is held"),
        ({"Comment": "ftrun:run-0001:0a1b2c3d:2"}, "it is a job of run run-0001 already"),
        ({"Nice": "0 ArrayJobId=7 ArrayTaskId=1-3"}, "it is part of a job array"),
        ({"Nice": "0 HetJobId=7 HetJobOffset=0"}, "it is part of a heterogeneous job"),
    ],
)  # fmt: skip
def test_every_other_job_is_refused_with_its_reason(changed: dict[str, str], why: str) -> None:
    """In one line, which names the job."""
    with pytest.raises(UserError) as refused:
        plain_job.refuse(_job(**changed), "7", "ann")
    assert f"job 7: {why}" in refused.value.message
    assert "\n" not in refused.value.message


def test_a_job_that_slurm_does_not_know_or_that_a_run_has_is_refused() -> None:
    """The second where the index of this home names its run."""
    with pytest.raises(UserError, match="does not know it"):
        plain_job.refuse(None, "7", "ann")
    with pytest.raises(UserError, match="a job of run old-0003 already"):
        plain_job.refuse(_job(), "7", "ann", "old-0003")


def test_a_later_attempt_asks_for_what_the_job_asked_for() -> None:
    """Amounts in a form that sbatch takes; nothing for what nobody gave."""
    line = _asked(_job())
    expected = {
        "partition": "gpu", "qos": "normal", "time": "1-00:20:00", "nodes": "2", "ntasks": "8", "cpus-per-task": "2",
        "ntasks-per-node": "4", "exclude": "n9", "constraint": "h100", "comment": "mine", "mem": "64000M", "gres": "gpu:8",
        "job-name": "train.sh",
    }  # fmt: skip
    assert {name: line.get(name) for name in expected} == expected
    assert line.has("exclusive")
    assert line.has("requeue")
    absent = (
        "account",
        "nice",
        "core-spec",
        "tmp",
        "output",
        "error",
        "input",
        "licenses",
        "nodelist",
        "no-requeue",
    )
    assert not [name for name in absent if line.has(name)]


def test_what_the_script_says_is_not_said_differently() -> None:
    """One spelling of GPUs, its own pattern of the log, its own list of partitions."""
    line = _asked(_job(), "--gpus-per-node=8", "--partition=gpu,spare", "--output=slurm-%j.out")
    assert line.get("gpus-per-node") == "8"
    assert not line.has("gres")
    assert not line.has("partition")
    assert not line.has("output")
    assert _asked(_job(StdOut="/w/other.log")).get("output") == "/w/other.log"


def test_a_count_of_nodes_that_slurm_only_guesses_is_not_asked_for() -> None:
    """Of a waiting job, `2-2` was asked for and `2` was not."""
    assert not _asked(_job(JobState="PENDING")).has("nodes")
    assert _asked(_job(JobState="PENDING", NumNodes="2-4")).get("nodes") == "2-4"


def test_the_words_of_the_script() -> None:
    """Its arguments as the process has them; without a process, the words of Slurm's line; a name for --wrap."""
    assert plain_job.script_words(_job(), ["a b"]) == ["/w/train.sh", "a b"]
    assert plain_job.script_words(_job(), None) == ["/w/train.sh", "a", "b"]
    wrap = replace(_job(), fields={**_job().fields, "Command": "(null)", "JobName": "wrap"})
    assert plain_job.script_words(wrap, ()) == ["/w/wrap"]


def test_a_process_tells_environment_arguments_and_umask() -> None:
    """To the byte; what Slurm set for this launch is left out of a submission's environment."""
    environ = b"A=x=y\0BAD=\xff\n2\0SLURM_JOB_ID=7\0CUDA_VISIBLE_DEVICES=0\0SLURM_CONF=/node/cache\0FTRUN_HOME=/old\0"
    cmdline = b"/bin/bash\0/var/spool/job00007/slurm_script\0a b\0\0"
    found = plain_job.parse_process(environ, cmdline, b"Name:\tbash\nUmask:\t0027\n")
    assert (found.arguments, found.umask) == (("a b", ""), 0o027)
    shell = {b"SLURM_CONF": b"/etc/slurm.conf", b"A": b"other", b"FTRUN_HOME": b"/home/runs"}
    env = plain_job.submission_environment(found.environment, shell)
    assert env == {
        b"A": b"x=y",
        b"BAD": b"\xff\n2",
        b"SLURM_CONF": b"/etc/slurm.conf",
        b"FTRUN_HOME": b"/home/runs",
    }


def test_only_live_states_have_a_process() -> None:
    """What waits has none."""
    assert _job().state.live
    assert JobState.PENDING.pending
