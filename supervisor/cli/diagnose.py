"""`ftrun diagnose`: what went wrong, from logs alone, without Slurm and without a run. (I/O)

How it thinks. The verdict stands first, then the lines that prove it, then what was set aside. All files are logs of one
attempt unless `--each` makes every file a case of its own. The exit status is the answer for a script:

    0 nothing failed    10 another try makes sense    11 another try fails the same way    12 it is not known
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrun.slurm import nodeset
from ftrun.supervisor import signatures, watch
from ftrun.supervisor.cli import output
from ftrun.supervisor.diagnose import diagnose as diagnose_evidence
from ftrun.supervisor.errors import EXIT_USAGE, UserError
from ftrun.supervisor.model import Diagnosis, FaultClass, Topology

if TYPE_CHECKING:
    from ftrun.supervisor.signatures import Catalog

__all__ = ["EXIT_DO_NOT_RETRY", "EXIT_HEALTHY", "EXIT_RETRY", "EXIT_UNKNOWN", "diagnose"]

EXIT_HEALTHY, EXIT_RETRY, EXIT_DO_NOT_RETRY, EXIT_UNKNOWN = 0, 10, 11, 12

STDIN = "-"
QUOTED_CHARS = 400
"""So much of a proving line is shown to a person; --json has all of it."""

_LOG_NAME = re.compile(r"(?:\.(?:log|out|err|txt|stdout|stderr|[oe]?\d+)|^[^.]+)(?:\.gz)?$")


def diagnose(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOG...", help="Log files, folders, patterns; - is stdin.")
    ],
    each: Annotated[bool, typer.Option("--each", help="Every file is a case of its own.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each case.")] = False,
    nodes: Annotated[
        str,
        typer.Option("--nodes", metavar="LIST", help="The nodes of the job (n[1-4],n7): no other is blamed."),
    ] = "",
) -> int:
    """Say what went wrong in the logs of one job, who is to blame, and whether another try makes sense.

    A folder stands for the logs in it; .gz is read as it is.

    Exit status: 0 nothing failed, 10 another try makes sense, 11 it would fail again, 12 not known, 2 wrong usage.
    """
    paths = list(_files(logs))
    topology = Topology(nodes=_nodes(nodes))
    catalog = _catalog()
    status = EXIT_HEALTHY
    unread = False
    for number, case in enumerate([[path] for path in paths] if each else [paths]):
        found = _judge(case, topology, catalog)
        if found is None:
            unread = True
            continue
        if as_json:
            output.emit_json(_surface(case, found))
        else:
            _show(case, found, apart=number > 0, named=each)
        status = max(status, _status(found))
    return EXIT_USAGE if unread else status


def _judge(paths: list[str], topology: Topology, catalog: Catalog) -> Diagnosis | None:
    """The diagnosis of one case; None, and one line on stderr, where a file of it cannot be read."""
    given = sys.stdin.buffer.read() if STDIN in paths else None
    report = watch.collect([path for path in paths if path != STDIN], catalog=catalog, stdin=given)
    if not report.readable:
        print(f"ftrun: {report.why_unreadable}", file=sys.stderr)
        return None
    return diagnose_evidence(report.evidence, topology, ended=None, catalog=catalog, progress=report.progress)


def _surface(paths: list[str], found: Diagnosis) -> dict[str, Any]:
    """What `--json` prints: these keys, with these names."""
    return {
        "file": ", ".join(paths),
        "class": found.fault,
        "retry": found.retry,
        "action": found.action,
        "nodes": found.nodes,
        "exclude": found.exclude,
        "confidence": found.confidence,
        "signature": found.signature,
        "title": found.title,
        "because": found.because or found.suspicious,
        "consequences": found.consequences,
        "advice": found.advice,
    }


def _show(paths: list[str], found: Diagnosis, *, apart: bool, named: bool) -> None:
    if apart:
        print()
    where = f"{paths[0]}: " if named else ""
    name = f" [{found.signature}]" if found.signature else ""
    print(f"{where}{found.fault.value}: {found.title}{name}")
    print(f"  {_answer(found)}; confidence {found.confidence:.2f}")
    if found.advice:
        print(f"  {found.advice}")
    for proof in found.because:
        print(f"  {proof.file}:{proof.line}: {proof.text.strip()[:QUOTED_CHARS]}")
    if found.suspicious:
        print("  worth a look:")
        for proof in found.suspicious:
            print(f"  {proof.file}:{proof.line}: {proof.text.strip()[:QUOTED_CHARS]}")
    for words in found.rests_on:
        print(f"  - {words}")


def _answer(found: Diagnosis) -> str:
    if found.fault is FaultClass.HEALTHY:
        return "nothing to do"
    if not found.retry:
        return "do not retry unchanged"
    without = f" without {', '.join(found.nodes)}" if found.exclude and found.nodes else ""
    if found.exclude and not found.nodes:
        without = " on another node (the log does not name this one)"
    suspects = f"; suspected: {', '.join(found.nodes)}" if found.nodes and not found.exclude else ""
    return f"retry{without}{suspects}"


def _status(found: Diagnosis) -> int:
    if found.fault is FaultClass.HEALTHY:
        return EXIT_HEALTHY
    if found.fault is FaultClass.UNKNOWN:
        return EXIT_UNKNOWN
    return EXIT_RETRY if found.retry else EXIT_DO_NOT_RETRY


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return nodeset.expand(text)
    except ValueError as error:
        raise UserError(f"--nodes: {error}") from None


def _catalog() -> Catalog:
    try:
        return signatures.load(
            [folder for folder in os.environ.get("FTRUN_CATALOG", "").split(":") if folder]
        )
    except signatures.CatalogError as error:
        raise UserError(str(error)) from None


def _files(arguments: list[str]) -> Iterator[str]:
    """Yield the files that the arguments stand for; raises UserError for one that stands for none."""
    for argument in arguments:
        if argument == STDIN or (os.path.exists(argument) and not os.path.isdir(argument)):
            yield argument
        elif os.path.isdir(argument):
            inside = [str(path) for path in sorted(Path(argument).rglob("*")) if _is_log(path)]
            if not inside:
                raise UserError(f"{argument}: no logs in this folder; name the files themselves")
            yield from inside
        else:
            matching = sorted(path for path in glob.glob(argument, recursive=True) if os.path.isfile(path))
            if not matching:
                raise UserError(f"{argument}: no such file")
            yield from matching


def _is_log(path: Path) -> bool:
    return path.is_file() and bool(_LOG_NAME.search(path.name))
