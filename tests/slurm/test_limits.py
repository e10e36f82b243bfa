"""Limits of accounts and QOS on a real slurmdbd: named as what they are, waited for where they pass, told where they do not."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Callable, Iterator

import pytest

from ftrun.slurm.client.cluster import SubmitRequest
from ftrun.slurm.client.errors import RefusedForGood, RefusedForNow, SlurmError
from ftrun.slurm.commands import completion_names
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.sandbox import boot
from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import FTRUN, Post, boxes, posts

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.accounting,
    pytest.mark.skipif(
        any(shutil.which(name, path=boot.search_path()) is None for name in ("mariadbd", "slurmdbd")),
        reason="no slurmdbd or no MariaDB: `.ci/env accounting` installs them",
    ),
]

ME = getpass.getuser()
ENDS_ONCE = '[ "$FTRUN_ATTEMPT" = 1 ] && exit 7\necho done >>ledger\n'
SETTINGS = 'agent = "never"\n'


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """A cluster that enforces limits: accounts `few` (two jobs in all), `one` (one at a time), and QOS `lean` and `small`."""
    with boxes() as make:
        box = make(nodes=4, accounting=True, conf={"AccountingStorageEnforce": "associations,limits,qos"})
        for words in (
            ("add", "qos", "lean", "MaxSubmitJobsPerUser=1"),
            ("add", "qos", "small", "MaxTRESPerJob=node=1"),
            ("add", "account", "few", "one", "Description=x", "Organization=x"),
            ("add", "user", ME, "Account=few", "MaxSubmitJobs=2"),
            ("add", "user", ME, "Account=one"),
            ("modify", "account", "one", "set", "GrpJobs=1"),
            ("modify", "user", ME, "set", "qos=normal,lean,small"),
        ):
            box.run(["sacctmgr", "--immediate", *words], check=True)
        yield box


@pytest.fixture
def make(box: Sandbox) -> Iterator[Callable[..., Post]]:
    """A maker of posts on it."""
    with posts(box) as maker:
        yield maker


def test_accounts_and_qos_that_i_may_use_are_known_by_name(box: Sandbox) -> None:
    """What completion offers behind `-A` and `-q`; another user has none of them."""
    asked = {kind: completion_names.names(kind, ME, box.env(), timeout_s=60.0) for kind in ("account", "qos")}

    assert {"few", "one"} <= set(asked["account"])
    assert ["lean", "normal", "small"] == asked["qos"]
    assert [] == completion_names.names("account", "nobody", box.env(), timeout_s=60.0)


def _refused(box: Sandbox, *words: str) -> SlurmError:
    request = SubmitRequest("", (*words, "--hold", "--wrap=true"), None, box.env(), "/")
    with pytest.raises(SlurmError) as caught:
        CommandCluster(box.env()).submit(request)
    return caught.value


def test_a_limit_on_the_number_of_jobs_passes_and_is_named(box: Sandbox, make: Callable[..., Post]) -> None:
    """The next submission may be accepted: refused for now, with Slurm's word for the limit; a wrong account or QOS is refused for good."""
    post = make()
    for _ in range(2):
        post.plain("-Afew", "--hold", "--wrap=true")
    post.plain("-qlean", "--hold", "--wrap=true")
    association, quality = _refused(box, "-Afew"), _refused(box, "-qlean")

    assert (type(association), type(quality)) == (RefusedForNow, RefusedForNow)
    assert "AssocMaxSubmitJobLimit" in association.message
    assert "QOSMaxSubmitJobPerUserLimit" in quality.message
    assert [type(_refused(box, words)) for words in ("-Anobodys", "-qnone")] == [
        RefusedForGood,
        RefusedForGood,
    ]

    theirs = post.run_command("sbatch", "-Afew", "--wrap=true")
    ours = post.run_command(*FTRUN, "sbatch", "-Afew", "--wrap=true")
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert not list((post.home / "runs").glob("*/journal")), "a refused submission leaves no run"


def test_a_next_attempt_waits_until_the_limit_lets_it_in(make: Callable[..., Post]) -> None:
    """The user's other jobs filled the account between two attempts: the run waits, spends nothing of its retries on it, and goes on when one of them is gone."""
    post = make(SETTINGS)
    job = post.sbatch(ENDS_ONCE, "-N1", "-Afew")
    post.until(
        lambda: "FAILED" in post.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T"), "attempt 1 ends"
    )
    others = [post.plain("-Afew", "--hold", "--wrap=true") for _ in range(2)]
    post.supervise()
    post.until(lambda: "submit.refused" in post.kinds(), "sbatch refuses attempt 2")
    refused = next(record for record in post.records() if record["kind"] == "submit.refused")
    post.call("scancel", others[0])
    run = post.until_state("finished")

    assert "AssocMaxSubmitJobLimit" in refused["data"]["message"]
    assert refused["data"]["for_good"] is False
    assert run.attempts[-1].launch.end.state == "COMPLETED"


def test_a_job_under_a_limit_waits_and_does_not_fail(make: Callable[..., Post]) -> None:
    """One job of the account at a time: the run is queued with Slurm's reason, unchanged, until it is its turn."""
    post = make(SETTINGS + "queue-timeout = 5\n")
    other = post.plain("-Aone", "--wrap=sleep 300")
    post.until(
        lambda: "RUNNING" in post.call("squeue", "-h", "-j", other, "-o", "%T"),
        "another job of the account runs",
    )
    job = post.sbatch("echo done >>ledger\n", "-N1", "-Aone")
    post.supervise()
    post.until_state("queued")
    post.until(
        lambda: "AssocGrpJobsLimit" in post.call("squeue", "-h", "-j", job, "-o", "%r"), "Slurm says why"
    )
    assert post.kinds()[-1] in ("submit.done", "journal.opened")
    post.call("scancel", other)
    run = post.until_state("finished")

    assert [a.job for a in run.attempts] == [job]
    assert not run.incidents


def test_a_job_that_is_above_a_limit_for_one_job_is_told_of(make: Callable[..., Post]) -> None:
    """Time does not resolve it: the user is told that the first attempt can never start, and why; a person decides."""
    post = make(SETTINGS)
    post.sbatch("true\n", "-N2", "-qsmall")
    post.supervise()
    post.until(lambda: post.run().warnings, "the user is warned")

    assert "the job can never start: Slurm says QOSMaxNodePerJobLimit" in post.run().warnings[0]
    assert post.run().state.value == "queued"


def test_the_local_clusters_own_name_goes_through(box: Sandbox, make: Callable[..., Post]) -> None:
    """`-M` with the name of the only cluster is sbatch's to understand; the run is looked after as any other."""
    post = make(SETTINGS)
    job = post.sbatch(ENDS_ONCE, "-N1", "-M", box.plan.cluster)
    post.supervise()
    run = post.until_state("finished", job=job)

    assert [a.cluster for a in run.attempts] == [box.plan.cluster] * 2


def test_a_federation_of_this_cluster_alone_changes_nothing_for_a_run(
    box: Sandbox, make: Callable[..., Post]
) -> None:
    """Ids of a federation are larger than any of a cluster's own; the run goes through a fault and finishes."""
    box.run(
        ["sacctmgr", "--immediate", "add", "federation", "all", f"clusters={box.plan.cluster}"], check=True
    )
    post = make(SETTINGS)
    post.until(
        lambda: "Federation: all" in post.call("scontrol", "show", "federation"), "the cluster is federated"
    )
    job = post.sbatch(ENDS_ONCE, "-N1")
    post.supervise()
    run = post.until_state("finished", job=job)

    assert int(job) > 2**26
    assert len(run.attempts) == 2


def test_a_job_that_a_sibling_may_take_is_told_of_and_never_made_twice(
    box: Sandbox, make: Callable[..., Post]
) -> None:
    """A federation of two: one line names the other cluster, `-M` keeps the job here without a word; one that is revoked here stops its run."""
    for words in (
        ("add", "cluster", "far"),
        ("add", "federation", "both", f"clusters={box.plan.cluster},far"),
    ):
        box.run(["sacctmgr", "--immediate", *words], check=True)
    post = make(SETTINGS)
    try:
        post.until(
            lambda: "Sibling:" in post.call("scontrol", "show", "federation"), "the cluster has a sibling"
        )
        path = post.script("true\n")
        told = post.run_command(*FTRUN, "sbatch", "-H", "-N1", "--output=/dev/null", str(path))
        here = post.run_command(
            *FTRUN, "sbatch", "-H", "-N1", "--output=/dev/null", "-M", box.plan.cluster, str(path)
        )
        assert "may be started on another cluster of its federation (far)" in told.stderr
        assert f"submit with -M {box.plan.cluster} " in told.stderr
        assert (told.returncode, told.stderr.count("\n")) == (0, 1)
        assert (here.returncode, here.stderr) == (0, "")
    finally:
        box.run(["sacctmgr", "--immediate", "delete", "federation", "both"], check=True)
