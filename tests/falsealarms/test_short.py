"""Short and cut healthy logs: scary words alone are no failure. (I/O)"""

from __future__ import annotations

from ftrun.supervisor.diagnosis import inputs, log_text
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.grammar_file import load_grammar
from tests.falsealarms import __main__ as alarms
from tests.falsealarms import short

CUTS, REMARKS = 80, 80

CUT_SENSE = frozenset(
    {
        *("nccl-setup", "c10d-socket-no-route", "python-module-missing", "storage-full", "sinfo-node-down"),
        "nvidia-nvlink-inactive",
    }
)
"""Signatures whose line is a failure unless the lines that were cut off show otherwise: a sample that a model
wrote, a list of other nodes, a try that a later line repeats. A person could not tell either.
"""


def _judged(log: bytes) -> Diagnosis:
    known = catalog.load()
    report = inputs.read_attempt_files([], catalog=known, stdin=log).report
    text = log_text.read_log_text([], log)
    seats = report.seats.added_to(Topology())
    return diagnose(
        Facts(report.evidence, seats, known, progress=report.progress, text=text, grammar=load_grammar())
    )


def test_pieces_of_healthy_logs_are_not_called_failures_for_their_words() -> None:
    """Windows with scary words, out of the logs of all formats."""
    wrong = [
        (name, found.signature, found.title)
        for name, log in short.cut_logs(alarms.FORMATS, alarms.text, CUTS, 1)
        if short.is_false_alarm(found := _judged(log)) and found.signature not in CUT_SENSE
    ]

    assert wrong == []


def test_harmless_remarks_alone_are_no_failures() -> None:
    """One to six harmless lines without a step, a begin or an end."""
    wrong = [
        (name, found.signature, found.title)
        for name, log in short.remark_logs(REMARKS, 1)
        if short.is_false_alarm(found := _judged(log))
    ]

    assert wrong == []


def test_the_count_is_not_blind() -> None:
    """A failure in such a piece counts."""
    assert short.is_false_alarm(_judged(b"no reply from nid0034 after 30 s\n"))
    assert short.is_false_alarm(_judged(b"job exceeded its walltime limit\n"))
