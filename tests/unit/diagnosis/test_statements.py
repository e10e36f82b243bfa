"""What a log says in words that no signature knows: the class, whom it means, and how sure that is. (I/O)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.diagnosis import inputs, log_text, names
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd
from ftrun.supervisor.model.types import Action, Diagnosis, FaultClass, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.grammar_file import load_grammar

CATALOG = catalog.load()
GRAMMAR = load_grammar()
FAILED = Ended("FAILED", "NonZeroExitCode", exit_code=1)
STEPS = "".join(f"step {step} loss 2.{step}\n" for step in range(1, 9))


def read(
    *lines: str, ended: Ended | None = None, attempt: Attempt | None = None, nodes: str = ""
) -> Diagnosis:
    """The diagnosis of a text with no other facts."""
    log = "".join(f"{line}\n" for line in lines).encode()
    report = inputs.read_attempt_files([], catalog=CATALOG, stdin=log).report
    topology = report.seats.added_to(Topology(nodes=tuple(nodes.split())))
    text = log_text.read_log_text([], log)
    return diagnose(
        Facts(
            report.evidence,
            topology,
            CATALOG,
            ended,
            report.progress,
            attempt=attempt,
            text=text,
            grammar=GRAMMAR,
        )
    )


# ---- health must be earned


def test_a_text_that_says_nothing_is_hardly_called_healthy() -> None:
    """A sign of health counts: a good end, or steps."""
    nothing = read("loading modules", "hello world")
    ends_well = read("loading modules", "all 8 tasks finished successfully")
    steps = read(*STEPS.splitlines())

    assert {nothing.fault, ends_well.fault, steps.fault} == {FaultClass.HEALTHY}
    assert nothing.confidence < 0.5 < steps.confidence < ends_well.confidence


def test_words_of_failure_that_tell_no_class_are_unknown_and_hardly_sure() -> None:
    """They are shown, and cost no node."""
    found = read("[ERROR] frobnication failed, giving up")

    assert (found.fault, found.exclude) == (FaultClass.UNKNOWN, False)
    assert found.confidence <= 0.3
    assert found.suspicious


def test_what_steps_followed_was_survived() -> None:
    """The same line before and after training went on."""
    before = read("no reply from nid0034 after 30 s", *STEPS.splitlines())
    after = read(*STEPS.splitlines(), "no reply from nid0034 after 30 s")

    assert before.fault is FaultClass.HEALTHY
    assert (after.fault, after.nodes) == (FaultClass.NODE, ("nid0034",))


# ---- what a statement may do, and what not


@pytest.mark.parametrize(
    "line",
    [
        "no reply from n7",
        "accelerator 3: uncorrectable error",
        "Uncorrectable machine check, CPU 2",
        "HCA: catastrophic error",
    ],
)
def test_a_statement_never_drains_and_is_a_guess(line: str) -> None:
    """Users write logs."""
    found = read(f"launcher: {line}")

    assert found.signature.startswith("statement.")
    assert found.action is not Action.DRAIN
    assert found.confidence <= 0.55


def test_a_run_that_ftrun_looks_after_is_not_stopped_by_a_statement() -> None:
    """There, a class that would stop it stays unknown, and the run gets its one more try."""
    lived = Attempt(1, 0.0, job="7", launch=Launch(end=LaunchEnd("FAILED")), submission="done")
    alone = read("model ERROR: namelist group &phys is missing", ended=FAILED)
    supervised = read("model ERROR: namelist group &phys is missing", ended=FAILED, attempt=lived)

    assert (alone.fault, alone.retry) == (FaultClass.CONFIG, False)
    assert (supervised.fault, supervised.retry) == (FaultClass.UNKNOWN, True)


def test_no_name_outside_the_job_is_blamed() -> None:
    """Whatever a line says."""
    found = read("no reply from n7 after 30 s", nodes="n1 n2")

    assert found.nodes == ()
    assert read("no reply from n2 after 30 s", nodes="n1 n2").nodes == ("n2",)


def test_the_sentence_of_an_exception_says_more_than_its_type() -> None:
    """RuntimeError says nothing; what follows it does."""
    found = read("RuntimeError: accelerator 3 does not respond")
    plain = read("RuntimeError: this went wrong")

    assert found.fault is FaultClass.HARDWARE_GPU
    assert (plain.fault, plain.signature) == (FaultClass.USER_CODE, "python-exception")


# ---- who is meant

SENTENCES = {
    "ping failed on nid0011: No reply from nid0034 after 30s": ("nid0034",),
    "launch failed on nid0011: Couldn't forward RPC launch(7) to child nid0077": ("nid0077",),
    "nid0012 (rank 4) has disconnected unexpectedly. Marking it LOST": ("nid0012",),
    "lost contact with node c12": ("c12",),
    "node failure on c12n3 (shell rank 4)": ("c12n3",),
    "ip: 10.2.3.4 has been marked dead": ("10.2.3.4",),
    "Nodes gpu[03-04] not responding": ("gpu03", "gpu04"),
    "step 12 failed in train.py": (),
    "rank3 died": (),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_silent_one_is_meant_and_not_who_reports_it(sentence: str) -> None:
    """The argument of the failing verb; a rank, a file and a step are no hosts."""
    assert names.accused_hosts(sentence) == SENTENCES[sentence]


def test_a_name_may_stand_beside_the_line() -> None:
    """In the fields of a record, at the prompt, in the answer to uname, at the rank whose traceback stands above."""
    record = read("Node: c12", "Date: today", "Reason: the accelerator does not respond")
    uname = read("Linux gpu07 5.14.0-70.el9.x86_64", "accelerator 3 does not respond")
    above = read(
        "[rank5]: Traceback (most recent call last):", '[rank5]:   File "a.py", line 3', "CUDA error: uncorrectable ECC error encountered"
    )  # fmt: skip

    assert (record.nodes, uname.nodes) == (("c12",), ("gpu07",))
    assert above.nodes == ("rank 5",)


# ---- set-up in the clothes of a fault


def test_an_address_that_no_other_node_can_reach_is_set_up() -> None:
    """A container's bridge, before the first step."""
    line = "RuntimeError: connection to 172.17.0.2 port 29500 timed out"
    bridge = read(line)
    real = read(line.replace("172.17.0.2", "10.4.0.2"))

    assert (bridge.fault, bridge.retry) == (FaultClass.CONFIG, False)
    assert real.retry


def test_refused_before_the_first_step_is_set_up() -> None:
    """Refused is an answer: the machine lives. After steps it is a fault."""
    line = "could not connect to store at n3: Connection refused"

    assert read(line).fault is FaultClass.CONFIG
    assert read(*STEPS.splitlines(), line).retry


def test_a_node_on_which_nothing_died_was_removed() -> None:
    """An autoscaler's removal is worded like a death."""
    dead = "(raylet) The node with node id: 7f and ip: 10.2.3.4 has been marked dead because the detector has missed too many heartbeats from it."
    idle = read(dead)
    actor = read(
        dead, "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."
    )

    assert idle.fault is FaultClass.HEALTHY
    assert actor.fault is not FaultClass.HEALTHY


# ---- what the user knows of the end


def test_the_command_takes_what_the_user_knows_of_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--exit, --state and --nodelist stand for Slurm's record."""
    log = tmp_path / "job.out"
    log.write_text("hello\n")

    def told(*words: str) -> tuple[str, list[str]]:
        main(["diagnose", "--json", *words, str(log)])
        found = json.loads(capsys.readouterr().out)
        return found["class"], found["nodes"]

    assert told("--exit", "0") == ("healthy", [])
    assert told("--exit", "1") == ("unknown", [])
    assert told("--state", "TIMEOUT") == ("timelimit", [])
    assert told("--state", "NODE_FAIL", "--nodelist", "n7") == ("node", ["n7"])
    for wrong in (("--exit", "x"), ("--state", "RUNNING")):
        assert main(["diagnose", *wrong, str(log)]) == 2


# ---- what the program outlived

WORK = [f"sample {number} of the batch was written to part {number}" for number in range(40)]
NO_MODULE = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'seaborn'")


def test_what_work_followed_is_no_cause_of_the_end() -> None:
    """A script that was started again into the same file fails for the reason of its last start."""
    last = ("Traceback (most recent call last):", "RuntimeError: Non-finite loss, training stopped")

    assert read(*NO_MODULE).fault is FaultClass.CONFIG
    again = read(*NO_MODULE, *WORK, *last)
    assert again.fault is FaultClass.USER_CODE
    assert any("was outlived" in words for words in again.rests_on)
    assert read(*NO_MODULE, *WORK[:5], *last).fault is FaultClass.CONFIG, "too little work"


def test_what_follows_from_a_failure_does_not_hide_it() -> None:
    """Others wait for the one that failed: their time-out is no cause of its own."""
    timed_out = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)"

    assert read(*NO_MODULE, *WORK, timed_out).fault is FaultClass.CONFIG


def test_a_program_that_died_failed_although_its_script_went_on() -> None:
    """Only a mistake of the script's own lines is outlived by a good end."""
    died = ("Traceback (most recent call last):", "KeyError: 'labels'")
    end = "Job exited without errors"

    assert read(*died, *WORK, end).fault is FaultClass.USER_CODE
    assert read("/home/user/.bashrc: line 13: s: command not found", *WORK, end).fault is FaultClass.HEALTHY


def test_the_batch_system_says_more_than_the_program() -> None:
    """Its words stand behind or before those of the program."""
    limit = "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit."

    assert read(*NO_MODULE, limit).fault is FaultClass.OOM_HOST


def test_a_remark_is_no_cause() -> None:
    """NCCL tries symbols that older libraries do not have, and says so as information."""
    remark = "gpu07:649:649 [1] NCCL INFO dlvsym failed on mlx5dv_x - libmlx5.so: undefined symbol: mlx5dv_x"

    assert read(remark, *WORK, "# Avg bus bandwidth    : 178.4").fault is FaultClass.HEALTHY


# ---- the odd one


@pytest.mark.parametrize(
    ("lines", "who"),
    [
        (("Stalled ops:", "grad_12 [ready ranks: 0, 1, 2, 3, 4, 6, 7]"), "rank 5"),
        (("RuntimeError: barrier timed out, waiting for ranks: [3]",), "rank 3"),
        (("expected: cn01 cn02 cn03 cn04", "checked in: cn01 cn02 cn04", "timed out after 900 s"), "cn03"),
        (("NAME   STATUS   AGE", "cn01   Ready   5d", "cn02   NotReady   5d", "cn03   Ready   5d"), "cn02"),
    ],
)  # fmt: skip
def test_the_odd_one_of_a_list_or_a_table_is_named(lines: tuple[str, ...], who: str) -> None:
    """Who is not among the ready is missing; equal rows are the norm."""
    found = read(*lines)

    assert found.fault is not FaultClass.HEALTHY
    assert found.nodes == (who,)
    assert found.confidence <= 0.45


def test_a_long_list_leaves_nobody_out_that_is_in_it() -> None:
    """Nor does one that is too long to be a job's cost more memory than a job's."""
    assert read("Stalled ops:", "grad [ready ranks: 0-4998]", "world_size=5000").nodes == ("rank 4999",)
    assert not read("Stalled ops:", "grad [ready ranks: 0-4097]", "world_size=4098").nodes
    whole = ",".join(f"{first}-{first + 2999}" for first in range(0, 900_000, 3000))
    assert not read("Stalled ops:", *[f"ready ranks: {whole}"] * 3, "world_size=900001").nodes


def test_where_most_are_missing_nobody_is_named() -> None:
    """Then they were never started."""
    assert not read("Stalled ops:", "grad_12 [ready ranks: 0]", "world_size=8").nodes
    rows = ("NAME   STATUS", "cn01   NotReady", "cn02   NotReady", "cn03   Ready")
    assert not read(*rows).nodes


def test_words_of_two_meanings_leave_no_nameless_machine_out() -> None:
    """A machine that no line names is left out only where all words agree."""
    sick, wrong = "error: accelerator 3 does not respond", "error: option speed is not recognized"

    assert read(sick).exclude
    assert not read(sick, wrong).exclude
