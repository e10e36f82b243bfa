"""Slurm's text becomes records: the same on 22.05, 24.11 and 26.05, and whatever users put into free text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client import parse
from ftrun.slurm.client.cluster import JobState, NodeUsage
from ftrun.slurm.client.nodeset import expand, fold
from ftrun.slurm.client.parse import parse_node_state

HEAD = (
    "JobId={id} {member}JobName={name} {extra}UserId=bob(1000) GroupId=bob(1000) MCS_label=N/A Priority=1 Nice=0 Account=(null) "
    "QOS=(null) JobState={state} Reason={reason} Dependency={dependency} Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 "
    "ExitCode=3:0 DerivedExitCode=6:0 RunTime=00:05:00 TimeLimit={limit} TimeMin=N/A SubmitTime=1795228374 "
    "Partition=main AllocNode:Sid=login:77 ReqNodeList=(null) ExcNodeList=n[3,7] NodeList=n[0-1] BatchHost=n0 "
    "NumNodes=2 JOB_GRES=(null)   Nodes=n[0-1] CPU_IDs=0 Mem=0 GRES= Command=/home/bob/my job.sh "
)
TAILS = {
    "22.05": "WorkDir=/home/bob Comment={comment}  StdErr=/l/1.err StdIn=/dev/null StdOut=/l/1.out Power= ",
    "24.11": "WorkDir=/home/bob Comment={comment}  StdErr=/l/1.err StdIn=/dev/null StdOut=/l/1.out ",
    "26.05": "SubmitLine=sbatch -o x y.sh StdOut=/wrong WorkDir=/home/bob Comment={comment} StdErr= StdIn=/dev/null "
    "StdOut=/l/1.out",
}


def shown(version: str, **values: str) -> str:
    fields = {
        "id": "7",
        "member": "",
        "name": "train",
        "extra": "SLUID=s025M7 " if version == "26.05" else "",
        "state": "FAILED",
        "reason": "NonZeroExitCode",
        "dependency": "(null)",
        "limit": "1-02:00:00",
        "comment": "hello ftrun:r:1",
    }
    return (HEAD + TAILS[version]).format(**{**fields, **values})


@pytest.mark.parametrize("version", TAILS)
def test_a_job_reads_alike_on_every_version(version: str) -> None:
    """The same record from three layouts."""
    job = parse.parse_details(shown(version), "7")
    assert job is not None
    assert (job.state, job.exit_code, job.derived_exit_code, job.restarts) == (JobState.FAILED, 3, 6, 2)
    assert (job.nodes, job.excluded, job.required, job.batch_host) == (("n0", "n1"), ("n3", "n7"), (), "n0")
    assert (job.std_out, job.time_limit_s, job.user) == ("/l/1.out", 93600.0, "bob")
    assert job.std_err == ("/l/1.out" if version == "26.05" else "/l/1.err")
    assert (job.comment, job.dependency, job.fields["Command"]) == (
        "hello ftrun:r:1",
        "",
        "/home/bob/my job.sh",
    )


@pytest.mark.parametrize("version", TAILS)
def test_free_text_cannot_pose_as_slurm(version: str) -> None:
    """Pairs inside a name or a comment are text; line breaks too."""
    comment = "a\nb JobState=COMPLETED StdOut=/no Restarts=9 ftrun:r:1"
    job = parse.parse_details(shown(version, name="x JobState=RUNNING ExitCode=0:0", comment=comment), "7")
    assert job is not None
    assert (job.state, job.exit_code, job.restarts, job.std_out) == (JobState.FAILED, 3, 2, "/l/1.out")
    assert job.fields["JobName"] == "x JobState=RUNNING ExitCode=0:0"


@pytest.mark.parametrize("version", TAILS)
@pytest.mark.parametrize(
    ("where", "text", "doubt"),
    [
        ("name", "x UserId=ann(1001) JobState=NODE_FAIL NodeList=n5", {"UserId", "JobState"}),
        ("name", "x\tUserId=ann(1001)", {"UserId"}),
        ("name", "x UserId=ann(1001) NodeList=n[ TimeLimit=" + "9" * 5000, {"UserId", "TimeLimit"}),
        ("comment", "x TRES=gres/gpu=99 AllocTRES=gres/gpu=99", {"TRES"}),
        ("comment", "x QOS=top\nNice=-5", {"QOS", "Nice"}),
        ("comment", "k ftrun:llm-1:2 a=b X=1 StdOut=/no", set()),
    ],
)
def test_a_users_text_that_poses_as_a_record_is_known_for_it(
    version: str, where: str, text: str, doubt: set[str]
) -> None:
    """What could be read in two ways is proof of nothing: a name that holds a whole record would be another's job, lost to its node."""
    job = parse.parse_details(shown(version, **{where: text}), "7")
    assert job is not None
    assert job.doubtful == doubt


@pytest.mark.parametrize(
    "reason", ["launch failed requeued held", "ReqNodeNotAvail, UnavailableNodes:n[2-3]", "BeginTime", "None"]
)
def test_a_reason_may_have_several_words(reason: str) -> None:
    """It ends where the next key begins."""
    job = parse.parse_details(shown("22.05", state="PENDING", reason=reason), "7")
    assert job is not None
    assert job.reason == reason


def test_members_of_arrays_and_heterogeneous_jobs_are_told_apart() -> None:
    """From several records, the one that was asked for; a bare id means the record of that number."""
    array = "\n".join(
        [
            shown("22.05", id="36", member="ArrayJobId=21 ArrayTaskId=0 "),
            shown("22.05", id="21", member="ArrayJobId=21 ArrayTaskId=1-3%2 ", state="PENDING"),
        ]
    )
    first, rest = parse.parse_details(array, "21_0"), parse.parse_details(array, "21")
    assert first is not None
    assert rest is not None
    assert (first.job_id, first.state) == ("21_0", JobState.FAILED)
    assert rest.state is JobState.PENDING
    het = "\n".join(
        shown("22.05", id=str(4 + n), member=f"HetJobId=4 HetJobOffset={n} ", extra="HetJobIdSet=4-5 ")
        for n in range(2)
    )
    component = parse.parse_details(het, "4+1")
    assert component is not None
    assert (component.job_id, component.fields["JobId"], component.fields["JobName"]) == ("4+1", "5", "train")
    assert parse.parse_details("", "4") is None
    assert parse.parse_details(het, "99") is None


def squeue(*rows: list[str]) -> str:
    return "".join("\x1f".join(row) + "\x1e\n" for row in rows)


RUNNING = ["4+1", "5", "RUNNING", "None", "n[0-1,7]", "3", "bob", "main", "1795228374", "1795228376", "1826765434",
           "1", "1-00:00:00", "a|b, c", "two\nlines | ftrun:r:1"]  # fmt: skip


def test_rows_hold_any_text_and_end_times_only_of_what_ends() -> None:
    """Without a limit a running job's end is an expectation that differs between versions, unless it is near: then Slurm wants its nodes."""
    (row,) = parse.parse_jobs(squeue(RUNNING))
    assert (row.job_id, row.raw_job_id, row.nodes, row.node_count) == ("4+1", "5", ("n0", "n1", "n7"), 3)
    assert (row.name, row.comment, row.restarts) == ("a|b, c", "two\nlines | ftrun:r:1", 1)
    assert (row.start_time_s, row.end_time_s) == (1795228376.0, None)
    assert (row.time_limit_s, row.limit_end_s) == (86400.0, 1795314776.0)
    pending = [
        "7", "7", "PENDING", "BeginTime", "", "1", "bob", "main", "5", "N/A", "NONE", "0", "UNLIMITED", "x",
        "(null)",
    ]  # fmt: skip
    ended = [*RUNNING[:2], "NODE_FAIL", *RUNNING[3:]]
    waiting, over = parse.parse_jobs(squeue(pending, ended))
    assert (waiting.nodes, waiting.start_time_s, waiting.comment, waiting.reason) == (
        (),
        None,
        "",
        "BeginTime",
    )
    assert over.end_time_s == 1826765434.0
    assert (waiting.time_limit_s, waiting.limit_end_s) == (None, None)
    assert [one.planned_end_s for one in (row, waiting, over)] == [1826765434.0, None, None]
    for planned, cut_short in (("NONE", False), (RUNNING[10], False), ("1795231976", True)):
        (free,) = parse.parse_jobs(squeue([*RUNNING[:10], planned, RUNNING[11], "UNLIMITED", *RUNNING[13:]]))
        assert (free.time_limit_s, free.is_cut_short) == (None, cut_short)
    assert parse.parse_jobs("") == ()


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY),
        ("completing", JobState.COMPLETING),
        ("SOMETHING_NEW", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_a_state_that_is_not_known_is_unknown(text: str, state: JobState) -> None:
    """A newer Slurm's word is neither pending nor live nor ended."""
    assert parse.parse_state(text) is state
    assert not any((JobState.UNKNOWN.pending, JobState.UNKNOWN.live, JobState.UNKNOWN.ended))


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("idle", "idle", set()),
        ("idle+drain", "idle", {"drain"}),
        ("mixed+not_responding", "mixed", {"not_responding"}),
        ("down+not_responding", "down", {"not_responding"}),
        ("down*", "down", {"not_responding"}),
        ("DOWN*+DRAIN", "down", {"not_responding", "drain"}),
        ("draining@", "mixed", {"drain", "reboot_requested"}),
        ("drained*", "idle", {"drain", "not_responding"}),
        ("mixed+fail", "mixed", {"fail"}),
        ("fail*", "idle", {"fail", "not_responding"}),
        ("failing", "mixed", {"fail"}),
        ("allocated+completing+maintenance", "allocated", {"completing", "maint"}),
        ("", "unknown", set()),
    ],
)
def test_node_states_read_alike_in_every_spelling(text: str, state: str, flags: set[str]) -> None:
    """Marks, words and compounds mean the same flags."""
    assert parse_node_state(text) == (state, frozenset(flags))


def sinfo(*rows: list[str]) -> str:
    return squeue(*rows)


def test_nodes_are_joined_over_their_partitions() -> None:
    """One record a node; the default partition's star is no part of its name."""
    nodes = parse.parse_nodes(
        sinfo(
            ["n0", "idle+drain", "1795228408", "main*", "gpu:8", "ftrun: x|y z"],
            ["n0", "idle+drain", "1795228408", "long", "gpu:8", "ftrun: x|y z"],
            ["n1", "mixed", "Unknown", "main*", "(null)", "none"],
        )
    )
    assert nodes["n0"].partitions == ("main", "long")
    assert (nodes["n0"].reason, nodes["n0"].reason_time_s, nodes["n0"].gres) == (
        "ftrun: x|y z",
        1795228408.0,
        "gpu:8",
    )
    assert nodes["n0"].drained
    assert (nodes["n1"].reason, nodes["n1"].reason_time_s, nodes["n1"].available) == ("", None, True)


def test_nodes_that_share_a_line_are_each_a_node() -> None:
    """Alike ones are printed as one list; whatever Slurm prints first, the order is that of their names."""
    text = sinfo(
        ["n[2-3]", "idle", "Unknown", "main*", "gpu:8", "none"],
        ["n[0,4]", "idle+drain", "5", "main*", "gpu:8", "why"],
        ["n[2-4]", "idle", "Unknown", "long", "gpu:8", "none"],
    )
    nodes = parse.parse_nodes(text)
    assert list(nodes) == ["n0", "n2", "n3", "n4"]
    assert [nodes[name].partitions for name in ("n0", "n2", "n4")] == [
        ("main",),
        ("main", "long"),
        ("main", "long"),
    ]
    assert (nodes["n0"].reason, nodes["n0"].drained) == ("why", True)


def test_a_reason_that_outlived_its_drain_is_left_out() -> None:
    """24.11 keeps it after the resume; it is neither ours to resume nor in the way of a drain."""
    rows = [
        ["n0", state, "1795228408", "main*", "", "ftrun: old"] for state in ("idle", "mixed+not_responding")
    ]
    for row in rows:
        assert parse.parse_nodes(sinfo(row))["n0"].reason == ""
    for state in ("down+not_responding", "idle+drain", "mixed+fail", "idle+maint"):
        assert parse.parse_nodes(sinfo(["n0", state, "5", "main*", "", "why"]))["n0"].reason == "why"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:10:00", 600.0),
        ("1-00:00:00", 86400.0),
        ("365-00:00:00", 31536000.0),
        ("10:30", 630.0),
        ("2-12", 216000.0),
        ("6 sec", 6.0),
        ("5 min", 300.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
    ],
)
def test_durations_are_seconds(text: str, seconds: float | None) -> None:
    """As Slurm prints them in jobs and in its configuration."""
    assert parse.parse_seconds(text) == seconds


def test_the_configuration_tells_what_judgement_rests_on() -> None:
    """What is absent has Slurm's own default."""
    facts = parse.parse_config(
        "Configuration data as of 1795228408\nClusterName             = big\nJobRequeue              = 0\n"
        "KillWait                = 3 sec\nMinJobAge               = 2 min\nSLURM_VERSION           = 24.11.5-1\n"
        "SchedulerParameters     = bf_interval=3,max_script_size=1000\nSlurmdTimeout           = 6 sec\n"
        "ProctrackType           = proctrack/pgid\nSlurmctldParameters     = preempt_send_user_signal\n"
    )
    assert (facts.preemption_signals, parse.parse_config("").preemption_signals) == (True, False)
    assert "proctrack/pgid" == facts.tracking
    assert (facts.name, facts.version, facts.requeue_default) == ("big", (24, 11, 5), False)
    assert (facts.kill_wait_s, facts.min_job_age_s, facts.slurmd_timeout_s) == (3.0, 120.0, 6.0)
    assert facts.max_script_size_bytes == 1000
    bare = parse.parse_config("")
    assert (bare.slurmd_timeout_s, bare.max_script_size_bytes, bare.requeue_default) == (300.0, 4 << 20, True)


def test_partitions_know_their_nodes() -> None:
    """24.11 prints NodeSets before Nodes."""
    text = (
        "PartitionName=main Default=YES Hidden=NO NodeSets=ALL Nodes=n[0-1],gpu-a State=UP TotalNodes=3\n"
        "PartitionName=old Default=NO Hidden=YES Nodes=(null) State=DRAIN TotalNodes=0\n"
    )
    rows = parse.parse_partitions(text)
    assert (rows["main"].up, rows["main"].default, set(rows["main"].nodes)) == (
        True,
        True,
        {"n0", "n1", "gpu-a"},
    )
    assert (rows["old"].up, rows["old"].default, rows["old"].nodes) == (False, False, ())


@pytest.mark.parametrize(
    ("stdout", "told"),
    [
        ("Submitted batch job 12\n", ("12", "")),
        ("Submitted batch job 12 on cluster west\n", ("12", "west")),
        ("12\n", ("12", "")),
        ("12;west\n", ("12", "west")),
        ("a filter says hello\nSubmitted batch job 7\n", ("7", "")),
        ("", None),
        ("welcome\n", None),
    ],
)
def test_the_job_id_is_read_however_sbatch_tells_it(stdout: str, told: tuple[str, str] | None) -> None:
    """With and without --parsable, on one cluster or several, behind a filter's greeting."""
    assert parse.parse_submitted(stdout) == told


@pytest.mark.parametrize(
    ("comment", "token", "borne"),
    [
        ("ftrun:r:ab:1", "ftrun:r:ab:1", True),
        ("mine ftrun:r:ab:1 x", "ftrun:r:ab:1", True),
        ("ftrun:r:ab:12", "ftrun:r:ab:1", False),
        ("ftrun:r:ab:12", "ftrun:r:ab", True),
        ("ftrun:r-2:ab:1", "ftrun:r", False),
        ("xftrun:r:ab:1", "ftrun:r:ab:1", False),
        ("", "ftrun:r:ab:1", False),
    ],
)
def test_a_token_is_a_word_or_the_head_of_one(comment: str, token: str, borne: bool) -> None:
    """A run's token is borne by all of its attempts; attempt 1 is not attempt 12."""
    assert parse.has_token(comment, token) is borne


@pytest.mark.parametrize(
    ("dependency", "job_id", "named"),
    [
        ("afterok:7(unfulfilled)", "7", True),
        ("afterok:1:7,singleton", "7", True),
        ("afterany:1?afternotok:7", "7", True),
        ("after:7+5", "7", True),
        ("after:5+7", "7", False),
        ("afterok:17", "7", False),
        ("afterok:7_*(unfulfilled)", "7", True),
        ("afterok:7_3", "7", True),
        ("afterok:7_3", "7_3", True),
        ("afterok:7_33", "7_3", False),
        ("afterok:7", "7+1", True),
        ("singleton", "7", False),
    ],
)
def test_dependencies_name_jobs(dependency: str, job_id: str, named: bool) -> None:
    """Delays are no ids, and an array is named by its tasks."""
    assert parse.depends_on(dependency, job_id) is named


def test_a_dependency_is_told_as_slurm_takes_it() -> None:
    """What Slurm prints in brackets it does not accept back."""
    text = squeue(
        ["3", "afterany:1(unfulfilled)?afterok:2_*(failed)"],
        ["4", "(null)"],
        ["5_[1-3%2]", "afterok:3(unfulfilled)"],
        ["5_4", "afterok:3(unfulfilled)"],
        ["6+0", "afterok:3(unfulfilled)"],
    )
    assert parse.parse_dependencies(text) == {
        "3": "afterany:1?afterok:2",
        "5": "afterok:3",
        "5_4": "afterok:3",
        "6": "afterok:3",
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[0-2,5],gpu-a", {"n0", "n1", "n2", "n5", "gpu-a"}),
        ("n[08-10]", {"n08", "n09", "n10"}),
        ("r[1-2]n[1-2]", {"r1n1", "r1n2", "r2n1", "r2n2"}),
        ("gpu-a", {"gpu-a"}),
        ("b,a", {"a", "b"}),
        ("(null)", set()),
        ("None assigned", set()),
        ("", set()),
    ],
)
def test_node_lists_unfold(text: str, names: set[str]) -> None:
    """Ranges, padding, several brackets, and Slurm's words for nothing."""
    assert set(expand(text)) == names


def test_text_that_is_no_node_list_is_refused() -> None:
    """Rather than a node that does not exist."""
    with pytest.raises(ValueError, match="not a node list"):
        expand("n[0-")


NAMES = st.builds(
    lambda stem, number, width: f"{stem}{number:0{width}d}",
    st.sampled_from(["n", "gpu-a", "r1n", "node"]),
    st.integers(0, 1200),
    st.integers(1, 4),
)


@given(st.sets(NAMES, max_size=40))
def test_folding_and_unfolding_lose_nothing(names: set[str]) -> None:
    """Whatever the padding."""
    assert set(expand(fold(names))) == names


def test_former_launches_of_a_job_are_known_to_accounting_alone() -> None:
    """Accounting tells all launches, the controller the present one; what never started is no stay, and no launch counts twice."""
    told = "1|1001|1795250908|1795250910|n1|ml\n1|1001|1795250950|Unknown|n[2-3]|ml\n1|1001|Unknown|Unknown|None assigned|ml\nnoise\n"
    row = "1\x1f1001\x1f{}\x1f{}\x1f1795259999\x1f{}\x1e\n"
    waiting = row.format("PENDING", "1795251000", "")
    first = NodeUsage("1", 1001, ("n1",), 1795250908.0, 1795250910.0, "ml")
    present = NodeUsage("1", 1001, ("n2", "n3"), 1795250950.0, None, "ml")
    assert parse.parse_node_usage(row.format("RUNNING", "1795250950", "n[2-3]"), told) == (first, present)
    assert parse.parse_node_usage(waiting, told.split("\n", maxsplit=1)[0]) == (first,)
    assert parse.parse_node_usage(waiting, "") == ()
