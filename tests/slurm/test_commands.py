"""What the Slurm commands must stand besides the contract: other people's environments, names, numbers and rights."""

from __future__ import annotations

import json
import os
import pwd
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ftrun.slurm.client import parse
from ftrun.slurm.client.cluster import JobState, NodeRow, SubmitRequest
from ftrun.slurm.client.errors import RefusedForGood, Unreachable
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.commands.process import Context, reading_env, run
from ftrun.slurm.sandbox.handle import Sandbox

pytestmark = pytest.mark.slurm
TOKEN = "ftrun:commands"


@pytest.fixture
def cluster(slurm_sandbox: Sandbox) -> Iterator[CommandCluster]:
    """The shared sandbox; what a test leaves in its queue is cancelled."""
    cluster = CommandCluster(slurm_sandbox.env())
    yield cluster
    for row in cluster.find(TOKEN):
        cluster.cancel(row.job_id)
    until(lambda: all(row.state.ended for row in cluster.find(TOKEN)))


def until(condition: Callable[[], bool], limit_s: float = 240) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {limit_s} s"
        time.sleep(0.1)


def request(box: Sandbox, *argv: str, script: str = "true", **context: Any) -> SubmitRequest:
    values = {"env": box.env(), "cwd": "/", **context}
    return SubmitRequest(
        token=TOKEN,
        argv=("-o", "/dev/null", f"--comment={TOKEN}", *argv),
        script=f"#!/bin/sh\n{script}\n".encode(),
        **values,
    )


def test_a_submission_carries_its_whole_context(slurm_sandbox: Sandbox, cluster: CommandCluster) -> None:
    """Environment, working folder, umask, soft limit and nice value reach the job as given, and nothing of ours does."""
    out = slurm_sandbox.shared / "context.json"
    script = f"""cd "$SLURM_SUBMIT_DIR"
printf '{{"umask":"%s","files":"%s","cwd":"%s","mine":"%s","ours":"%s"}}' \
    "$(umask)" "$(ulimit -n)" "$PWD" "$MINE" "$OURS" > {out}.new && mv {out}.new {out}"""
    env = {**slurm_sandbox.env(), "MINE": "a b\nc"}
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    folder = slurm_sandbox.shared / "a folder"
    folder.mkdir()
    os.environ["OURS"] = "leaked"
    try:
        limits = {"NOFILE": (321, hard)}
        given = request(slurm_sandbox, script=script, env=env, cwd=str(folder), umask=0o027, limits=limits)
        cluster.submit(replace(given, nice=os.nice(0)))
    finally:
        del os.environ["OURS"]
    until(out.exists)
    told = json.loads(out.read_text(), strict=False)
    assert told == {"umask": "0027", "files": "321", "cwd": str(folder), "mine": "a b\nc", "ours": ""}


@pytest.mark.parametrize(
    ("context", "named"),
    [
        ({"cwd": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"limits": {"NOFILE": (20, 10)}}, "NOFILE"),
        ({"limits": {"UNHEARD": (1, 1)}}, "UNHEARD"),
    ],
    ids=["folder", "limit", "unknown limit"],
)
def test_what_cannot_be_restored_is_refused_by_name(
    slurm_sandbox: Sandbox, cluster: CommandCluster, context: dict[str, Any], named: str
) -> None:
    """Better no attempt than one in another context."""
    with pytest.raises(RefusedForGood, match=named):
        cluster.submit(request(slurm_sandbox, "--comment=ftrun:refused", **context))
    assert cluster.find("ftrun:refused") == ()


def test_the_callers_formats_and_filters_change_nothing(
    slurm_sandbox: Sandbox, cluster: CommandCluster
) -> None:
    """Variables that bend squeue, sinfo, scontrol and scancel for people do not bend them for us."""
    job_id = cluster.submit(request(slurm_sandbox, "-H")).job_id
    bent = CommandCluster(
        {
            **slurm_sandbox.env(),
            "SQUEUE_FORMAT": "%u",
            "SQUEUE_FORMAT2": "username",
            "SQUEUE_STATES": "RUNNING",
            "SQUEUE_PARTITION": "nowhere",
            "SINFO_FORMAT": "%n",
            "SLURM_TIME_FORMAT": "relative",
            "SLURM_CLUSTERS": "elsewhere",
            "SCANCEL_STATE": "RUNNING",
            "LC_ALL": "de_DE.UTF-8",
        }
    )
    assert bent.jobs([job_id]) == cluster.jobs([job_id])
    assert set(bent.nodes()) == set(slurm_sandbox.node_names)
    bent.cancel(job_id)
    until(lambda: cluster.jobs([job_id])[job_id].state is JobState.CANCELLED)


def test_names_and_comments_may_hold_anything(slurm_sandbox: Sandbox, cluster: CommandCluster) -> None:
    """Separators, line breaks and Key=Value in free text are text."""
    name, comment = "a|b, c JobState=FAILED", f"first JobState=FAILED\nStdOut=/no 'x' \"y\" {TOKEN}"
    job_id = cluster.submit(request(slurm_sandbox, "-H", f"--job-name={name}", f"--comment={comment}")).job_id
    row = cluster.jobs([job_id])[job_id]
    details = cluster.details(job_id)
    assert details is not None
    assert (row.name, row.comment, row.state) == (name, comment, JobState.PENDING)
    assert (details.state, details.std_out, details.fields["JobName"]) == (
        JobState.PENDING,
        "/dev/null",
        name,
    )


def test_every_task_of_an_array_has_a_row(slurm_sandbox: Sandbox, cluster: CommandCluster) -> None:
    """The array's id yields its tasks under their own ids; one that is cancelled before it starts may leave no row."""
    array = cluster.submit(request(slurm_sandbox, "-H", "--array=0-2,7%2", "--parsable"))
    tasks = {f"{array.job_id}_{number}" for number in (0, 1, 2, 7)}
    assert set(cluster.jobs([array.job_id])) == tasks
    assert {row.raw_job_id for row in cluster.jobs(tasks).values()} == {array.job_id}
    details = cluster.details(f"{array.job_id}_7")
    assert details is not None
    assert details.job_id == f"{array.job_id}_7"
    cluster.cancel(f"{array.job_id}_7")
    until(lambda: all(row.state.ended for row in cluster.jobs([f"{array.job_id}_7"]).values()))
    assert set(cluster.jobs([array.job_id])) >= tasks - {f"{array.job_id}_7"}


def test_the_components_of_a_heterogeneous_job_have_rows(
    slurm_sandbox: Sandbox, cluster: CommandCluster
) -> None:
    """The leader's id yields all components, and they are cancelled as a whole, whichever is named."""
    argv = ("-H", "-N1", f"--comment={TOKEN}", ":", "-N1", f"--comment={TOKEN}")
    leader = cluster.submit(request(slurm_sandbox, *argv)).job_id
    assert set(cluster.jobs([leader])) == {f"{leader}+0", f"{leader}+1"}
    cluster.cancel(f"{leader}+1")
    until(lambda: all(row.state is JobState.CANCELLED for row in cluster.jobs([leader]).values()))


def test_dependents_that_are_arrays_or_heterogeneous_can_be_moved(
    slurm_sandbox: Sandbox, cluster: CommandCluster
) -> None:
    """Their ids are told as an update takes them."""
    first, second = (cluster.submit(request(slurm_sandbox, "-H")).job_id for _ in range(2))
    waits = f"--dependency=afterok:{first}"
    array = cluster.submit(request(slurm_sandbox, waits, "--array=1-3%2")).job_id
    het = cluster.submit(request(slurm_sandbox, waits, "-N1", ":", "-N1", f"--comment={TOKEN}")).job_id
    assert cluster.dependents(first) == {array: f"afterok:{first}", het: f"afterok:{first}"}
    for waiting in (array, het):
        cluster.set_dependency(waiting, f"afterany:{second}")
    assert cluster.dependents(first) == {}
    assert cluster.dependents(second) == {array: f"afterany:{second}", het: f"afterany:{second}"}


def test_any_number_of_jobs_is_one_question(slurm_sandbox: Sandbox, cluster: CommandCluster) -> None:
    """More ids than fit into an argument are answered all the same."""
    job_id = cluster.submit(request(slurm_sandbox, "-H")).job_id
    assert set(cluster.jobs([job_id, *(str(number) for number in range(500_000, 520_000))])) == {job_id}


def test_whose_jobs_are_asked_for_makes_no_difference(
    slurm_sandbox: Sandbox, cluster: CommandCluster
) -> None:
    """To whom they belong decides only how Slurm is asked: squeue sends one user's jobs sooner than a list of ids."""
    jobs = [
        cluster.submit(request(slurm_sandbox, "-H", *words)).job_id for words in ((), (), ("--array=1-3",))
    ]
    stranger = CommandCluster(slurm_sandbox.env(), user="nobody")
    shown = cluster.jobs([*jobs, "999999"])
    assert set(shown) == {*jobs[:2], *(f"{jobs[2]}_{task}" for task in (1, 2, 3))}
    assert stranger.jobs([*jobs, "999999"]) == shown


def test_nodes_that_share_a_line_are_told_as_each_alone(
    slurm_sandbox: Sandbox, cluster: CommandCluster
) -> None:
    """Slurm puts only those into one line that agree in all: state, flags, reason and its time, partition, devices."""
    drained = slurm_sandbox.node_names[:2]
    for node, reason in zip(drained, ("ftrun: one", "ftrun: other"), strict=True):
        cluster.drain(node, reason)

    def alone() -> dict[str, NodeRow]:
        argv = ["sinfo", "-h", "-N", "-a", "-O", parse.NODE_FORMAT]
        return parse.parse_nodes(run(argv, reading_env(slurm_sandbox.env()), timeout_s=30).stdout)

    try:
        until(lambda: cluster.nodes() == alone())
        assert [cluster.nodes()[node].reason for node in drained] == ["ftrun: one", "ftrun: other"]
        assert set(cluster.nodes(drained)) == set(drained)
    finally:
        for node, reason in zip(drained, ("ftrun: one", "ftrun: other"), strict=True):
            cluster.resume(node, reason)


def test_a_missing_configuration_is_told_at_once(slurm_sandbox: Sandbox) -> None:
    """Slurm's own commands would try for a minute."""
    nowhere = CommandCluster({**slurm_sandbox.env(), "SLURM_CONF": "/nowhere/slurm.conf"})
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"/nowhere/slurm\.conf"):
        nowhere.jobs(["1"])
    assert nowhere.ping() is False
    assert time.monotonic() - began < 60


def test_a_command_that_hangs_is_ended_by_our_timer() -> None:
    """What it had said by then is kept."""
    answer = run(["/bin/sh", "-c", "echo so far; exec sleep 600"], {}, timeout_s=5)
    assert (answer.killed, answer.exit_code, answer.stdout) == (True, None, "so far\n")


def test_the_context_is_the_childs_only() -> None:
    """Our own umask and limits stay as they are."""
    before = (os.umask(0o22), resource.getrlimit(resource.RLIMIT_NOFILE))
    os.umask(before[0])
    child = run(
        ["/bin/sh", "-c", "umask"], {}, timeout_s=10, context=Context("/", 0o077, {"NOFILE": (99, 99)})
    )
    assert child.stdout == "0077\n"
    after = (os.umask(0o22), resource.getrlimit(resource.RLIMIT_NOFILE))
    os.umask(after[0])
    assert after == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user, so root")
def test_an_ordinary_user_may_neither_drain_nor_touch_others(
    slurm_sandbox: Sandbox, cluster: CommandCluster
) -> None:
    """Told beforehand by rights(), and refused for good when tried all the same."""
    job_id = cluster.submit(request(slurm_sandbox, "-H")).job_id
    node = slurm_sandbox.node_names[0]
    os.seteuid(pwd.getpwnam("nobody").pw_uid)  # what munge vouches for
    try:
        somebody = CommandCluster(slurm_sandbox.env())
        rights = somebody.rights()
        with pytest.raises(RefusedForGood):
            somebody.drain(node, "ftrun: x")
        with pytest.raises(RefusedForGood):
            somebody.cancel(job_id)
    finally:
        os.seteuid(0)
    assert not rights.may_drain
    assert "nobody" in rights.why
    assert cluster.jobs([job_id])[job_id].state is JobState.PENDING
    assert cluster.nodes([node])[node].available
