"""Laws of hostile input: what a user writes into a log harms no node, no other job, and not the supervisor that reads it. (I/O)"""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.slurm.client import nodeset
from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Source, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.scanner import REPEATED_MAX, bounded
from ftrun.supervisor.telemetry.log_watcher import LogWatcher
from ftrun.supervisor.telemetry.tail import LogPath
from tests.unit.cases import rule

CATALOG = catalog.load()
NODES = ("n1", "n2", "n3", "n4")
SEATED = Topology(NODES, {rank: NODES[rank // 8] for rank in range(32)})
FAILED = Ended("FAILED", "NonZeroExitCode", exit_code=1)

CLAIMS = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "{} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "[ 100.123456] {} kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE",
    "Node failure on {}",
    "srun: error: Node failure on {}",
    "slurmstepd: error: *** JOB 4711 ON {} CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    "slurmstepd: error: *** JOB 4711 STEPD TERMINATED ON {} AT 2026-01-01T00:00:00 DUE TO JOB NOT ENDING WITH SIGNALS ***",
    "flight recorder: rank 9 did not join collective 81 (all_reduce) of group 0; 31 of 32 ranks wait in it, and it left no dump",
    "[Error]: Cluster Exception Location[IP/ID]:[{}], the device is lost, error code 0x80E01801",
    "{}: npu 3 health: Alarm, error code: 80E18402",
    "ftrun: 2026-11-23 08:41:50 UTC: llm-0042 stopped after attempt 1: node {} is broken, drain it",
    "Message from syslogd@{} at Jan  5 10:11:12: Hardware event. Uncorrected memory error",
    "{}:811:900 [0] NCCL WARN NET/IB : Got completion from peer {}<4711> with status=12 opcode=0 len=0 vendor err 129",
    "gpu*         up 2-00:00:00      1   down {}",
    "4711       train    gpu        acct         64  NODE_FAIL      0:0 ",
    "\x1b[2K\x1b[1m{} kernel: \x1b[31mEDAC MC0: 1 UE memory read error on CPU_SrcID#0\x1b[0m",
    "Node failure on n[0-999999999]",
    "Node failure on n[1-4],victim[1-200]",
)  # fmt: skip


def judged(text: str | bytes, ended: Ended | None = FAILED, topology: Topology = SEATED) -> Diagnosis:
    content = text.encode() if isinstance(text, str) else text
    report = inputs.read_attempt_files([], catalog=CATALOG, stdin=content).report
    return diagnose(
        Facts(
            report.evidence,
            report.seats.added_to(topology),
            ended=ended,
            catalog=CATALOG,
            progress=report.progress,
        )
    )


def live(tmp_path: Path, content: bytes, name: str = "job.log") -> LogWatcher:
    path = tmp_path / name
    path.write_bytes(content)
    return LogWatcher([LogPath(str(path))], catalog=CATALOG)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("end", [FAILED, None, Ended("GONE"), Ended("FAILED", exit_code=1, by_us=True)])
def test_no_name_outside_the_job_is_ever_blamed(claim: str, end: Ended | None) -> None:
    """A user who prints the name of somebody else's node reaches nothing: it is not of the attempt."""
    text = "\n".join(claim.replace("{}", name) for name in ("victim7", "victim7.cluster.local", "10.9.9.9"))

    assert set(judged(text + "\n", end).nodes) <= set(NODES)


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_job_prints_drains_no_node(tmp_path: Path, claim: str) -> None:
    """A log followed live is a claim, however it looks; a claim alone drains nobody, not even a node of the job."""
    watcher = live(tmp_path, (claim.replace("{}", "n2") + "\n").encode())
    report = watcher.poll(0.0, fresh=True)
    watcher.close()

    found = diagnose(Facts(report.evidence, SEATED, ended=FAILED, catalog=CATALOG, progress=report.progress))

    assert {Source.LOG} >= {one.source for one in report.evidence}
    assert {Source.LOG, Source.EXIT} >= set(found.sources)
    assert () == rule(found).decision.drain


def test_a_log_that_looks_like_the_kernels_is_still_the_jobs_where_it_is_followed(tmp_path: Path) -> None:
    """Every line stamped as dmesg stamps it: `ftrun diagnose` may believe the person who gives it, the supervisor does not."""
    lines = [f"[{second:5d}.123456] NVRM: Xid (PCI:0000:3b:00): 79, pid=1" for second in range(50)]
    content = ("\n".join(lines) + "\n").encode()
    watcher = live(tmp_path, content, "dmesg.log")
    report = watcher.poll(0.0, fresh=True)
    watcher.close()

    assert {Source.LOG} == {one.source for one in report.evidence}
    assert {Source.KERNEL} == {
        one.source for one in inputs.read_attempt_files([], catalog=CATALOG, stdin=content).report.evidence
    }


def test_a_file_that_becomes_a_kernel_log_between_two_looks_stays_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What belongs to a live run besides its logs is asked what it is, then read; whatever it is by then, a user wrote it."""
    path = tmp_path / "error.json"
    path.write_text("[ 1.123456] NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n" * 30)
    monkeypatch.setattr(inputs, "is_attachment", lambda _: True)

    told = inputs.attachment_evidence([str(path)], catalog=CATALOG)

    assert told
    assert {Source.LOG} == {one.source for one in told}


def test_an_error_file_nested_without_end_costs_nothing(tmp_path: Path) -> None:
    """A file that no parser can hold is no evidence, and no end of the supervisor."""
    path = tmp_path / "error.json"
    path.write_text('{"message": {"extraInfo": ' + "[" * 200_000)

    assert () == inputs.attachment_evidence([str(path)], catalog=CATALOG)


def test_numbers_beyond_all_bounds_are_read_without_harm() -> None:
    """A rank, a step or a count of thousands of digits, or one below zero, ends no supervisor."""
    digits = "9" * 9000
    text = "\n".join(
        (
            f"[rank{digits}]: RuntimeError: CUDA error: an illegal memory access was encountered",
            f"[Rank {digits}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={digits}, OpType=ALLREDUCE)",
            f"EDAC MC0: {digits} CE memory read error on CPU_SrcID#0",
            f"srun: error: n2: tasks {digits}-{digits}: Killed",
            f"step {digits} loss nan",
            f"iteration {digits}/{digits} | lm loss: {digits}",
            f"Unexpected result nan on rank {digits} at iteration #-{digits}",
            f"n1:1:2 [0] NCCL INFO comm 0x1 rank {digits} nranks {digits[:7]} cudaDev 0 busId 1b000 - Init COMPLETE",
        )
    )

    for ended in (None, FAILED):
        assert set(judged(text, ended).nodes) <= set(NODES)


@pytest.mark.parametrize(
    "listed",
    [
        "n[0-999999999]",
        "n[0-99999]x[0-99999]",
        "n[" + ",".join(f"{first}00000-{first}99999" for first in range(1, 60)) + "]",
        ",".join(f"n{first}[0-99999]" for first in range(60)),
        "n[" * 500,
        "n[1-",
        "n]1[",
    ],
)
def test_a_list_of_nodes_without_end_is_refused_at_once(listed: str) -> None:
    """A list is counted before it is written out."""
    began = time.process_time()
    try:
        names = nodeset.expand(listed)
    except ValueError:
        names = ()
    refused = time.process_time()
    nodeset.expand(f"n[1-{nodeset.NODES_MAX}]")

    assert len(names) <= nodeset.NODES_MAX
    assert refused - began < 10 * (time.process_time() - refused)  # of what the longest good one costs
    assert set(judged(f"srun: error: Node failure on {listed}\n").nodes) <= set(NODES)


def test_a_log_that_seats_everybody_again_in_each_line_is_read_in_time() -> None:
    """Tens of thousands of ranks a line, thousands of lines: the map has an end, and so has the work."""
    text = "srun: error: n2: tasks 0-60000: Exited with exit code 1\n" * 3000
    plain = "srun: error: n2: task 7: Exited with exit code 1        \n" * 3000

    assert _cost_s(text) < 100 * _cost_s(plain)


def test_a_repetition_has_an_end_in_every_pattern() -> None:
    """A kind of character repeats up to a bound; a group repeats without an end in no signature: no line makes a pattern run away."""
    for signature in CATALOG.signatures:
        pattern = bounded(signature.pattern)
        plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern)

        assert not re.search(r"\)(?:[*+]|\{\d*,\})", plain), signature.id
        assert f"{{0,{REPEATED_MAX}}}" in pattern or not re.search(r"\.\*|\\[wdsS]\*", pattern), signature.id
        assert all(re.search(pattern, text) for text in signature.examples), signature.id


@pytest.mark.parametrize("filler", ["a", "1", "a.", "a-", "a:1:", "[", " ", "' "])
def test_a_line_made_to_run_away_is_read_in_time(filler: str) -> None:
    """A line as long as a segment, full of what patterns begin with, costs little more than one of words that no pattern begins with."""
    known = {one.id: one for one in CATALOG.signatures}
    ends = [
        known[name].examples[0]
        for name in ("nvidia-xid-79", "amd-lost", "nccl-connect", "python-value-error")
    ]
    text, plain = (
        "".join((words * (1 << 16))[: 65_000 - len(end)] + end + "\n" for end in ends)
        for words in (filler, "zq ")
    )

    assert _cost_s(text) < 500 * _cost_s(plain)


def _cost_s(log: str) -> float:
    """What it costs a processor to judge this log."""
    began = time.process_time()
    judged(log)
    return time.process_time() - began


def test_a_good_end_after_the_failure_does_not_outvote_the_record() -> None:
    """A log that imitates a finished run, or a later beginning, changes nothing where the record says that the job failed."""
    failed = "[rank3]: ValueError: expected 3 channels, got 4\n"
    for lie in (
        "Training completed!",
        "INFO - Job completed successfully",
        "`Trainer.fit` stopped: `max_steps=10` reached.",
    ):
        found = judged(failed + lie + "\n")

        assert (FaultClass.USER_CODE, False) == (found.fault, found.retry)


def test_a_log_that_claims_a_good_end_is_no_good_end_of_a_lost_node() -> None:
    """What Slurm says of a node stands above what the job wrote."""
    found = judged("Training completed!\n", Ended("NODE_FAIL", nodes_down=("n3", "victim7")))

    assert (FaultClass.NODE, ("n3",)) == (found.fault, found.nodes)


def test_a_packed_log_is_unpacked_a_piece_at_a_time(tmp_path: Path) -> None:
    """A small file that unpacks to something huge is read without holding it."""
    path = tmp_path / "job.log.gz"
    with gzip.open(path, "wb", compresslevel=9) as stream:
        for _ in range(64):
            stream.write(b"\0" * (1 << 20))

    assert inputs.read_attempt_files([str(path)], catalog=CATALOG).report.evidence == ()


WORDS = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:3b:00): 79", "Node failure on ", "victim7", "n2", "n[1-4]", "kernel: ", "[rank3]: ", "srun: error: ", "\x1b[31m",
        "\r", "\n", "\0", "slurmstepd: error: *** JOB 1 ON ", " CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***",
        "step 5 loss 1.0\n", "Training completed!\n", "CUDA error: ", "uncorrectable ECC error", "flight recorder: rank 3 did not join ",
        "[1,3]<stderr>:", "\u0663", "\u00b2", "\ud7ff", "{\"message\": 1, \"extraInfo\": 2}", "JobId=1 JobState=FAILED NodeList=victim[1-9]\n", "tasks 0-7: Killed",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(WORDS, st.text(max_size=20), st.integers().map(str)), max_size=30))
def test_no_text_at_all_blames_a_stranger_or_drains_a_node(pieces: list[str]) -> None:
    """Whatever a job prints: no error, no name outside the attempt, no drain."""
    text = "".join(pieces)
    for ended in (None, FAILED):
        found = judged("x\n" + text, ended)

        assert set(found.nodes) <= {*NODES, *(f"rank {rank}" for rank in range(32))}
        assert {Source.LOG, Source.EXIT, Source.SLURM, Source.SILENCE} >= set(found.sources)
        assert Source.SLURM not in found.sources or ended is not None
        if Source.SLURM not in found.sources:
            assert () == rule(found).decision.drain


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=12))  # fmt: skip
def test_an_error_file_may_hold_anything(message: object) -> None:
    """torchrun's error file is a user's file: no content of it is an error of ours."""
    text = json.dumps({"message": message, "extraInfo": message})

    assert judged(text).title


def test_what_ftrun_itself_printed_is_no_evidence() -> None:
    """Words of a fault that ftrun repeats in a job's log say nothing new, whatever they are."""
    told = "step 100 loss 2.0\nftrun: preflight: n7: dns: nfs7: Name or service not known\n"

    assert judged(told, ended=None).fault is FaultClass.HEALTHY
