"""What a caller may do next, read from what Slurm's commands said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, SlurmError, Unreachable
from ftrun.slurm.commands import failure_kinds
from ftrun.slurm.commands.failure_kinds import Call, error_of_failure, is_gone

FAILED = "sbatch: error: Batch job submission failed: "

SUBMISSIONS: dict[str, tuple[str, type[SlurmError]]] = {
    "hung": (FAILED + "Socket timed out on send/recv operation", OutcomeUnknown),
    "zero bytes": (FAILED + "Zero Bytes were transmitted or received", OutcomeUnknown),
    "receive": (FAILED + "Unable to contact slurm controller (receive failure)", OutcomeUnknown),
    "send": (FAILED + "Unable to contact slurm controller (send failure)", OutcomeUnknown),
    "hung, then gone": (
        "sbatch: error: Socket timed out on send/recv operation\n"
        + FAILED
        + "Unable to contact slurm controller (connect failure)",
        OutcomeUnknown,
    ),
    "never heard of": (FAILED + "The flux capacitor is empty", OutcomeUnknown),
    "silence": ("", OutcomeUnknown),
    "gone": (FAILED + "Unable to contact slurm controller (connect failure)", Unreachable),
    "no munge": (
        'sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode failed: Failed to access "/run/munge.sock": '
        "No such file or directory (Did you start munged?)\nsbatch: error: slurm_send_node_msg: auth_g_create failed\n"
        + FAILED
        + "Protocol authentication error",
        Unreachable,
    ),
    "no configuration": (
        (
            "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nsbatch: error: fetch_config: DNS SRV lookup failed\n"
            "sbatch: fatal: Could not establish a configuration source"
        ),
        Unreachable,
    ),
    "queue full": (
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
        + FAILED
        + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        RefusedForNow,
    ),
    "association full": (
        "sbatch: error: AssocMaxSubmitJobLimit\n"
        + FAILED
        + "Job violates accounting/QOS policy (job submit limit)",
        RefusedForNow,
    ),
    "too big for the QOS": (
        "sbatch: error: QOSMaxNodePerUserLimit\n"
        + FAILED
        + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        RefusedForGood,
    ),
    "limit without a name": (FAILED + "Job violates accounting/QOS policy (job submit limit)", RefusedForNow),
    "preemption off": (FAILED + "Preemption is required but is disabled on this system", RefusedForGood),
    "too many at once": (FAILED + "Rate limit exceeded, please retry momentarily", RefusedForNow),
    "busy": (FAILED + "Slurm temporarily unable to accept job, sleeping and retrying", RefusedForNow),
    "waited, then refused": (
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
        + FAILED
        + "Invalid partition name specified",
        RefusedForGood,
    ),
    "no memory for it": (FAILED + "Resource temporarily unavailable", RefusedForNow),
    "standby": (FAILED + "Slurm controller not responding: in standby", RefusedForNow),
    "backup": (FAILED + "Slurm backup controller in standby mode", RefusedForNow),
    "disk of the controller": (FAILED + "I/O error writing script/environment to file", RefusedForNow),
    "partition drained": (FAILED + "Required partition not available (inactive or drain)", RefusedForNow),
    "partition": (
        "sbatch: error: invalid partition specified: nope\n" + FAILED + "Invalid partition name specified",
        RefusedForGood,
    ),
    "account": (FAILED + "Invalid account or account/partition combination specified", RefusedForGood),
    "qos": (FAILED + "Invalid qos specification", RefusedForGood),
    "feature": (FAILED + "Invalid feature specification", RefusedForGood),
    "node name": (FAILED + "Invalid node name specified", RefusedForGood),
    "nodes": (FAILED + "Requested node configuration is not available", RefusedForGood),
    "time": (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", RefusedForGood),
    "gres": (FAILED + "Invalid generic resource (gres) specification", RefusedForGood),
    "dependency": (FAILED + "Job dependency problem", RefusedForGood),
    "reservation": (FAILED + "Requested reservation is invalid", RefusedForGood),
    "no script": ("sbatch: error: Unable to open file nowhere.sh", RefusedForGood),
    "no batch script": (
        (
            "sbatch: error: This does not look like a batch script.  The first\n"
            "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
            "sbatch: error: For instance: #!/bin/sh"
        ),
        RefusedForGood,
    ),
    "line ends": ("sbatch: error: Batch script contains DOS line breaks (\\r\\n)", RefusedForGood),
    "option": (
        "sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information",
        RefusedForGood,
    ),
    "begin": ("sbatch: error: Invalid --begin specification", RefusedForGood),
    "node count": ('sbatch: error: "x" is not a valid node count', RefusedForGood),
}


@pytest.mark.parametrize(("stderr", "kind"), SUBMISSIONS.values(), ids=SUBMISSIONS)
def test_every_answer_to_a_submission_has_its_kind(stderr: str, kind: type[SlurmError]) -> None:
    """In doubt the outcome is unknown, so that nothing is submitted twice; the message is one line, the output whole."""
    error = error_of_failure(Call.SUBMIT, stderr=stderr, exit_code=1)
    assert type(error) is kind
    assert error.message
    assert "\n" not in error.message
    assert not error.message.startswith("sbatch: error")
    assert (error.output, error.exit_code) == (stderr, 1)


@pytest.mark.parametrize(("stderr", "kind"), SUBMISSIONS.values(), ids=SUBMISSIONS)
def test_a_read_never_has_an_unknown_outcome(stderr: str, kind: type[SlurmError]) -> None:
    """Nothing happened: an unclear answer is no answer."""
    expected = Unreachable if kind is OutcomeUnknown else kind
    assert type(error_of_failure(Call.READ, stderr=stderr, exit_code=1)) is expected


@pytest.mark.parametrize(
    ("call", "kind"),
    [(Call.SUBMIT, OutcomeUnknown), (Call.EFFECT, OutcomeUnknown), (Call.READ, Unreachable)],
)
def test_what_our_timer_ended_may_have_happened(call: Call, kind: type[SlurmError]) -> None:
    """Whatever was printed until then; a read changes nothing."""
    stderr = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    error = error_of_failure(call, stderr=stderr, killed_after_s=30)
    assert type(error) is kind
    assert "30 s" in error.message


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("Job is no longer pending execution for job 7", RefusedForGood),
        ("Invalid job id specified for job 9\nslurm_suspend error: Invalid job id specified", RefusedForGood),
        ("slurm_update error: Invalid user id", RefusedForGood),
        ("slurm_update error: Invalid node name specified", RefusedForGood),
        ("scancel: error: Kill job error on job id 7: Access/permission denied", RefusedForGood),
        (
            "Job update not available right now, the DB index is being set, try again in a bit for job 7",
            RefusedForNow,
        ),
        ("slurm_update error: Job can not be altered now, try again later", RefusedForNow),
        ("slurm_update error: Unable to contact slurm controller (connect failure)", Unreachable),
        ("slurm_update error: Socket timed out on send/recv operation", OutcomeUnknown),
    ],
)
def test_every_answer_to_an_effect_has_its_kind(stderr: str, kind: type[SlurmError]) -> None:
    """As scontrol and scancel put it."""
    assert type(error_of_failure(Call.EFFECT, stderr=stderr, exit_code=1)) is kind


@pytest.mark.parametrize(
    ("stderr", "gone"),
    [
        ("scancel: error: Kill job error on job id 6: Invalid job id specified", True),
        ("scancel: error: Kill job error on job id 6: Job/step already completing or completed", True),
        ("slurm_load_jobs error: Invalid job id specified\n", True),
        ("scancel: error: Kill job error on job id 6: Access/permission denied", False),
        ("slurm_load_jobs error: Invalid job id specified\nsqueue: error: something else", False),
        ("", False),
    ],
)
def test_a_job_that_is_gone_is_told_by_every_line(stderr: str, gone: bool) -> None:
    """One other line makes it another failure."""
    assert is_gone(stderr) is gone


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        (SUBMISSIONS["partition"][0], "invalid partition specified: nope"),
        (SUBMISSIONS["no batch script"][0], "This does not look like a batch script.  The first"),
        (SUBMISSIONS["never heard of"][0], "The flux capacitor is empty"),
        ("", "Slurm gave no reason (exit 1)"),
    ],
)
def test_the_message_is_the_line_that_tells_why(stderr: str, message: str) -> None:
    """Without the prefixes of the commands."""
    assert error_of_failure(Call.SUBMIT, stderr=stderr, exit_code=1).message == message


def test_a_limit_is_named_in_the_message() -> None:
    """Which of the many limits it was stands on a line of its own."""
    error = error_of_failure(Call.SUBMIT, stderr=SUBMISSIONS["queue full"][0], exit_code=1)
    assert "QOSMaxSubmitJobPerUserLimit" in error.message


def test_the_tables_do_not_contradict_each_other() -> None:
    """No text is in two of them, and all are in lower case, as they are compared."""
    tables = [set(fragments) for fragments, _ in failure_kinds._RULES]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert all(fragment == fragment.lower() for table in tables for fragment in table)


# Of Slurm's own list: what answers administrators, steps and daemons alone, and what says of a submission nothing that is certain.
NOT_OURS = re.compile(
    "(change|were made) requires? restart|[Rr]eservation|parent account|block (state|name|layout)|Preemption loop|Partition is in use|event trigger"
    "|X11|TRESBillingWeights|ConfigLess|threads per core than|StepID|HetStep|Het step|Job killed|Empty list|resolve (group|user) ID|node table|signal jobs request"
    "|file descriptor|takeover|would block|extern step|[Ss]teps? |power action|SLUID|job state|node state transition|file for reading|MPI|stream version"
    "|has not changed|Duplicate job|interconnect|Active features|Waiting for burst|job credential|socket error|internal error|Connection (rejected|forced)"
)
LISTS = sorted((Path(__file__).parents[2] / "data" / "slurm-errors").glob("*.txt"))


@pytest.mark.parametrize("listed", LISTS, ids=lambda path: path.stem)
def test_every_refusal_in_the_list_of_a_release_is_known(listed: Path) -> None:
    """What slurmctld may answer to a submission or an effect is told apart; only what leaves it open whether it happened is not."""
    lines = [line.split(" ", 1) for line in listed.read_text().splitlines()]
    asked = [words for number, words in lines if 1000 <= int(number) < 3000 or 7200 <= int(number) < 7500]
    refusals = [
        words for words in asked if "accounting/QOS policy" not in words and not NOT_OURS.search(words)
    ]

    assert len(refusals) > 100
    assert [words for words in refusals if not failure_kinds.is_known(words)] == []
