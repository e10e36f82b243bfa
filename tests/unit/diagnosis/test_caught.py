"""Laws of what a text itself calls no fault: short logs of our own making in, a diagnosis out. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Topology
from ftrun.supervisor.signatures import catalog as signatures_catalog


def judged(*lines: str) -> Diagnosis:
    catalog = signatures_catalog.load()
    report = inputs.read_attempt_files(
        [], catalog=catalog, stdin="".join(f"{line}\n" for line in lines).encode()
    ).report
    topology = report.seats.added_to(Topology())
    return diagnose(Facts(report.evidence, topology, ended=None, catalog=catalog, progress=report.progress))


MISSING = "ModuleNotFoundError: No module named 'einops'"
VALUE = "ValueError: expected 3 channels, got 4"
WARNED_OOM = (
    "10:11:12 WARNING pool: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
)
TIME_LIMIT = "slurmstepd: error: *** STEP 81.0 ON n3 CANCELLED AT 2026-01-05T10:00:00 DUE TO TIME LIMIT ***"


def test_what_was_only_warned_of_is_not_what_ended_the_program() -> None:
    """A program that warns and then ends by an exception ended by the exception."""
    found = judged(WARNED_OOM, VALUE)

    assert (found.fault, found.signature) == (FaultClass.USER_CODE, "python-value-error")


def test_a_warning_after_the_exception_stays_what_it_is() -> None:
    """Only what comes before the graver line was survived; what comes after it may tell why."""
    assert judged(VALUE, WARNED_OOM).fault is FaultClass.OOM_GPU


def test_the_name_of_a_level_in_an_advice_makes_no_warning() -> None:
    """`NCCL_DEBUG=INFO` inside a message is a word of advice; a level stands by itself."""
    told = "NCCL_DEBUG=INFO python train.py: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"

    assert judged(told, VALUE).fault is FaultClass.OOM_GPU


@pytest.mark.parametrize("level", ["WARNING", "WARN", "[INFO]", "(DEBUG)"])
def test_what_nothing_graver_follows_is_told(level: str) -> None:
    """The only trouble that a log knows of is its cause, whatever the level."""
    assert (
        judged(f"{level} pool: torch.cuda.OutOfMemoryError: CUDA out of memory.").fault
        is not FaultClass.UNKNOWN
    )


@pytest.mark.parametrize("front", ["INFO stdout: ", "[INFO] ", "2026-01-01 12:00:00 INFO - "])
def test_a_traceback_that_a_logger_copied_keeps_its_cause(front: str) -> None:
    """A program's output goes through a logger, at one level for all lines; a sentence at that level is a remark."""
    lines = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>',
             "ModuleNotFoundError: No module named 'apex'")  # fmt: skip

    assert judged(*(front + line for line in lines)).fault is FaultClass.CONFIG
    assert judged(f"{front}no fused kernels here ({lines[-1]})").fault is not FaultClass.CONFIG


def test_a_message_that_a_logger_cannot_format_ends_no_program() -> None:
    """A logger prints a traceback of its own trouble and goes on; without its headline the same traceback is a failure."""
    traceback = [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/logging/__init__.py", line 1110, in emit',
        "    msg = self.format(record)",
        "TypeError: not all arguments converted during string formatting",
    ]

    assert judged("--- Logging error ---", *traceback).fault is not FaultClass.USER_CODE
    assert judged(*traceback).fault is FaultClass.USER_CODE


def test_what_fails_after_the_traceback_of_a_logger_is_a_failure() -> None:
    """Only the lines next to the headline are the logger's."""
    quiet = [f"epoch notes {number}" for number in range(30)]

    assert judged("--- Logging error ---", *quiet, VALUE).fault is FaultClass.USER_CODE


def test_hardware_next_to_the_traceback_of_a_logger_is_told() -> None:
    """What the kernel says is not the logger's."""
    gone = "[Mon Jan  5 10:11:00 2026] n7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."

    assert judged("--- Logging error ---", gone).fault is FaultClass.HARDWARE_GPU


def test_an_import_that_fails_after_slurm_ended_a_step_is_of_another_attempt() -> None:
    """Modules are imported first: what fails there after Slurm's verdict was appended to the file by a later start."""
    assert judged(TIME_LIMIT, MISSING).fault is FaultClass.CONFIG
    assert judged(MISSING, TIME_LIMIT).fault is FaultClass.TIMELIMIT
    assert judged(TIME_LIMIT, "ImportError: sys.meta_path is None, Python is likely shutting down").fault is (
        FaultClass.TIMELIMIT
    )


def test_an_exception_that_python_ignored_ended_nothing() -> None:
    """What a destructor raises is printed with a traceback, and the program goes on; the exception below it is another matter."""
    ignored = (
        "Exception ignored in: <function Loader.__del__ at 0x7f2d1c1d9ee0>",
        "Traceback (most recent call last):",
        '  File "loader.py", line 1358, in __del__',
        "AssertionError: can only test a child process",
    )
    end = "`Trainer.fit` stopped: `max_epochs=10` reached."

    assert judged(end, *ignored).fault is FaultClass.HEALTHY
    assert judged(*ignored, VALUE).signature == "python-value-error"
    assert (
        judged(ignored[0], "Traceback (most recent call last):", "KeyboardInterrupt").fault
        is FaultClass.CANCELLED
    )
