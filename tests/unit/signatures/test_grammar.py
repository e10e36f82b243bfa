"""The grammar of failure statements: what it reads, what it leaves alone. (pure)"""

from __future__ import annotations

import time

import pytest

from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.signatures.grammar import CONFIDENCE_MAX, parse_grammar, spoken_lines
from ftrun.supervisor.signatures.grammar_file import load_grammar
from ftrun.supervisor.telemetry.line_prefix import peeled

GRAMMAR = load_grammar()

READ = {
    # what no signature need know: any host, any daemon, any device
    "no reply from nid0034 after 30 s": FaultClass.NODE,
    "broker: lost contact with compute node c12, giving up": FaultClass.NODE,
    "nid0012 (rank 4) has disconnected unexpectedly": FaultClass.NODE,
    "execution host b07 is not responding": FaultClass.NODE,
    "chip 3: initialization failed, 0 of 4 cores answered": FaultClass.HARDWARE_GPU,
    "accelerator 2 reports an uncorrectable memory error": FaultClass.HARDWARE_GPU,
    "neuron device nd3 is unavailable": FaultClass.HARDWARE_GPU,
    "81:00.0 3D controller: NVIDIA Corporation Device (rev ff)": FaultClass.HARDWARE_GPU,
    "Critical: Uncorrectable Machine Check Exception, processor 2": FaultClass.HARDWARE_OTHER,
    "Memory error, failing DIMM in slot A4": FaultClass.HARDWARE_OTHER,
    "the HCA reported a catastrophic error": FaultClass.NETWORK,
    "endpoint to 10.0.0.7: transport retry counter exceeded": FaultClass.NETWORK,
    "job preempted (node failure)": FaultClass.NODE,
    "the VM is in state PREEMPTED": FaultClass.PREEMPTED,
    "job exceeded its walltime limit": FaultClass.TIMELIMIT,
    "TERM_RUNLIMIT: job killed after reaching the run time limit": FaultClass.TIMELIMIT,
    "TERM_MEMLIMIT: job killed after reaching the memory usage limit": FaultClass.OOM_HOST,
    "Job deleted at request of operator@head1": FaultClass.CANCELLED,
    "Invalid server type (4[XYZ]) requested": FaultClass.CONFIG,
    "unrecognized option --foo": FaultClass.CONFIG,
    "the namelist group &phys is missing": FaultClass.CONFIG,
    "undefined symbol: cublasLtFoo, version libcublas.so": FaultClass.CONFIG,
    "checkpoint step 400 is incomplete: shard 3 missing": FaultClass.CHECKPOINT,
    "shard 17 of the dataset is truncated": FaultClass.DATA,
    "write: no space left on device": FaultClass.STORAGE,
    "lustre: read of /scratch/x: Input/output error": FaultClass.STORAGE,
    "bind: address already in use": FaultClass.PORT_CONFLICT,
    "temperature outside valid range, t(3,4,5) = -1.0e30": FaultClass.USER_CODE,
    "ERROR: Lost atoms: original 4000 current 3998": FaultClass.USER_CODE,
    "ranks 3 and 7 are stuck in the barrier": FaultClass.HANG,
    "failed to allocate 3.2TiB from device": FaultClass.LIBRARY_BUG,
    # other languages, where the C library or the shell prints them
    "bash: foo: Kommando nicht gefunden": FaultClass.CONFIG,
    "open: Aucun fichier ou dossier de ce nom: /data/x.nml": FaultClass.CONFIG,
    "写入失败: 设备上没有空间": FaultClass.STORAGE,
    "RuntimeError: 显存不足": FaultClass.OOM_HOST,
    "节点 gpu07 心跳丢失, node gpu07 失联": FaultClass.NODE,
    "connect: 接続を拒否されました": FaultClass.NETWORK,
}

LEFT_ALONE = (
    "validation error: 0.021",
    "0 errors, 0 retries, 0 failed reads",
    "lost atoms: 0",
    "HBM Double Bit Error Count     : 0",
    "number of nan iterations:   0",
    "connection lost, will retry in 30 s",
    "if the node is preempted, the job restarts",
    "preemption mode: REQUEUE, grace time 120 s",
    "watchdog: kills the job if a node does not answer",
    "WARNING: could not find TensorRT",
    "all nodes responding; down nodes: none",
    "epoch 3 done, loss 2.1",
    "checking for pthread_create in -lpthread... no",
    "no checkpoint found, starting from scratch",
)


@pytest.mark.parametrize("line", READ)
def test_a_statement_of_failure_is_read_though_no_signature_knows_it(line: str) -> None:
    """Subject and predicate give the class."""
    found = GRAMMAR.read(peeled(line).text)

    assert found is not None
    assert found.reading.fault is READ[line], found


@pytest.mark.parametrize("line", LEFT_ALONE)
def test_what_says_of_itself_that_it_is_no_failure_is_not_read(line: str) -> None:
    """Counts of 0, tries that are repeated, what is only possible, what is only a warning."""
    spoken = peeled(line)
    found = GRAMMAR.read(spoken.text, loud=spoken.level != "w")

    assert found is None or found.reading.fault is FaultClass.UNKNOWN


def test_a_warning_is_no_statement_but_a_preemption_counts_at_any_level() -> None:
    """Managers report at level INFO what they do with a job."""
    assert GRAMMAR.read("node n7 is down", loud=False) is None
    found = GRAMMAR.read("the cluster is preempted", loud=False)
    assert found is not None
    assert found.reading.fault is FaultClass.PREEMPTED


def test_no_statement_is_surer_than_signatures_are() -> None:
    """And a reading that is would be refused."""
    assert max(reading.confidence for reading in GRAMMAR.readings) <= CONFIDENCE_MAX < 0.6
    with pytest.raises(ValueError, match="confidence"):
        parse_grammar(
            {
                "subject": {},
                "predicate": {"dead": "dead"},
                "reading": [
                    {
                        "id": "x",
                        "predicate": ["dead"],
                        "class": "node",
                        "retry": True,
                        "weight": 1,
                        "confidence": 0.9,
                    }
                ],
                "calm": dict.fromkeys(("line", "box", "health", "supposed", "again"), "a^"),
            }
        )


def test_boxes_frames_and_ignored_exceptions_are_not_read() -> None:
    """Who calms a line calms its box; the frames of a traceback quote source code."""
    texts = [
        "-" * 60,
        "A module was unable to find any network interface.",
        "Another transport will be used instead.",
        "-" * 60,
        "Exception ignored in: <function x>",
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "    raise ValueError('node is down')",
        "ValueError: node is down",
        "the end",
    ]

    assert [texts[at] for at in spoken_lines(texts, GRAMMAR)] == ["the end"]


@pytest.mark.parametrize(
    "piece",
    [
        "=",
        "-",
        "a",
        "a ",
        "is ",
        "not ",
        "node ",
        "n7 ",
        "1.",
        "a-",
        "connection to ",
        "exceeded ",
        "[(",
        "…",
    ],
)
def test_whatever_a_line_holds_it_is_read_in_bounded_time(piece: str) -> None:
    """A user who writes for it gets no more than a moment."""
    began = time.process_time()
    GRAMMAR.read(peeled(piece * 2000).text)

    assert time.process_time() - began < 1.0
