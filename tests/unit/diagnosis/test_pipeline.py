"""Laws of the whole way from a line to a diagnosis: each known line is diagnosed as what it is, by itself. (I/O)"""

from __future__ import annotations

from collections.abc import Iterator

from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import TRACEBACK, diagnose
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Role, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.catalog import Signature
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.tail import Piece

CATALOG = catalog.load()
BOOK = LogContext(CATALOG)


def _diagnosed(text: str, ended: Ended | None = None) -> Diagnosis:
    """What a log of this one line is diagnosed as."""
    file = LogFile("log", BOOK)
    file.take(Piece(f"{text}\n".encode(), 0, 0), None)
    file.finish(None)
    return diagnose(Facts(file.evidence(), Topology(), ended=ended, catalog=CATALOG))


def _examples(*roles: Role) -> Iterator[tuple[Signature, str]]:
    for signature in CATALOG.signatures:
        if signature.role in roles and not signature.table:
            yield from ((signature, text) for text in signature.examples)


def test_the_example_of_a_cause_is_diagnosed_as_its_signature() -> None:
    """Not only matched: scanned, weighed and judged, it is what the catalog says it is."""
    wrong = [
        (signature.id, found.signature or found.fault.value, text)
        for signature, text in _examples(Role.CAUSE, Role.EITHER)
        if signature.fault is not FaultClass.HEALTHY and (found := _diagnosed(text)).signature != signature.id
    ]

    assert [] == wrong


def test_a_note_is_never_diagnosed_as_a_fault() -> None:
    """A note or a seat by itself is a healthy log."""
    wrong = [
        (signature.id, found.fault.value, found.nodes)
        for signature, text in _examples(Role.INFO, Role.SEAT)
        if (found := _diagnosed(text)).fault is not FaultClass.HEALTHY or found.nodes
    ]

    assert [] == wrong


def test_a_consequence_alone_stops_no_run() -> None:
    """What follows from something else may point at somebody, but another try always makes sense.

    A traceback is how a program of Python gives up: where no end is recorded and no signature knows its exception, it is the
    program's, without much confidence.
    """
    wrong = [
        (signature.id, found.fault.value)
        for signature, text in _examples(Role.CONSEQUENCE)
        if signature.id != TRACEBACK
        if not (found := _diagnosed(text)).retry or found.fault is FaultClass.HEALTHY
    ]

    assert [] == wrong


def test_a_code_is_diagnosed_by_its_level() -> None:
    """Each number of a maker is a signature of its own."""
    wrong = []
    for table in CATALOG.tables.values():
        for name in table.codes:
            signature = CATALOG.by_id[name]
            found = _diagnosed(signature.examples[0])
            if signature.role in {Role.CAUSE, Role.EITHER} and found.signature != name:
                wrong.append((name, found.signature))

    assert [] == wrong


def test_a_counter_example_is_not_diagnosed_as_that_signature() -> None:
    """What looks alike is something else."""
    wrong = [
        (signature.id, text)
        for signature in CATALOG.signatures
        for text in signature.counter_examples
        if _diagnosed(text).signature == signature.id
    ]

    assert [] == wrong


def test_a_good_end_stands_above_every_line() -> None:
    """A job that Slurm calls completed is healthy, whatever its log says."""
    ended = Ended("COMPLETED", exit_code=0)
    wrong = [
        signature.id
        for signature, text in _examples(Role.CAUSE)
        if _diagnosed(text, ended).fault is not FaultClass.HEALTHY
    ]

    assert [] == wrong
