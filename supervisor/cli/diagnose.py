"""`ftrun diagnose`: what went wrong, from the logs of a job, without Slurm and without a run. (I/O)

The output has the diagnosis first, then the lines that prove it. All files belong to one attempt unless
`--each` makes a case of each file. A number that is no file is a job id: `diagnosis.inputs` finds its logs
and its record. The exit status is the answer for a script:

    0 nothing failed    10 a retry makes sense    11 a retry would fail the same way    12 unknown
"""

from __future__ import annotations

import glob
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ftrun.hooks.runtime.ownership import private_folders
from ftrun.slurm.client.parse import parse_state
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.diagnosis import inputs, log_text, unknown_cause
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.inputs import SlurmRecord
from ftrun.supervisor.diagnosis.rules import diagnose as diagnose_facts
from ftrun.supervisor.diagnosis.second_opinion import is_open
from ftrun.supervisor.model.errors import EXIT_USAGE, UserError
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Proof, Topology
from ftrun.supervisor.opinion import inquiry
from ftrun.supervisor.opinion.endpoint import Endpoint, NoAnswer
from ftrun.supervisor.signatures.grammar_file import load_grammar
from ftrun.supervisor.telemetry.line_owner import NO_OWNERS_KNOWN, KnownOwners
from ftrun.supervisor.telemetry.tail import LogPath

if TYPE_CHECKING:
    from ftrun.supervisor.signatures.catalog import Catalog

EXIT_HEALTHY, EXIT_RETRY, EXIT_DO_NOT_RETRY, EXIT_UNKNOWN = 0, 10, 11, 12

STDIN = "-"
QUOTED_CHARS = 400
"""A proving line is cut to this length; --json prints all of it."""

_LOG_NAME = re.compile(
    r"(?:\.(?:log|out|err|txt|stdout|stderr|[oe]?\d+)|^error\.json|^[^.]+)(?:\.gz|\.zst)?$"
)
_JOB = re.compile(r"\d+(?:[_+]\d+)?")
_NOTHING = SlurmRecord(None, ())
_COLOURS = {EXIT_HEALTHY: "green", EXIT_RETRY: "yellow", EXIT_DO_NOT_RETRY: "red", EXIT_UNKNOWN: "magenta"}


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    logs: tuple[str | LogPath, ...]
    known: SlurmRecord
    notes: tuple[str, ...] = ()
    ours: KnownOwners = NO_OWNERS_KNOWN


def diagnose(
    logs: Annotated[list[str], argument("LOG...", "Files, folders, patterns, or a job id; - is stdin.")],
    *,
    each: Annotated[bool, option("--each", "Diagnose every file by itself.")] = False,
    as_json: Annotated[bool, option("--json", "Print one JSON object for each case.")] = False,
    nodes: Annotated[
        str, option("--nodes --nodelist", "The nodes of the job (n[1-4],n7): no other is blamed.", "LIST")
    ] = "",
    ended_with: Annotated[
        str,
        option("--exit", "The exit status of the job: 1, or 0:9 as Slurm writes a signal.", "CODE[:SIGNAL]"),
    ] = "",
    state: Annotated[
        str, option("--state", "Slurm's state of the job: FAILED, NODE_FAIL, TIMEOUT ...", "STATE")
    ] = "",
    ranks_per_node: Annotated[
        int,
        option(
            "--ranks-per-node",
            "Ranks 0..N-1 run on the first of --nodes, and so on: a rank then names its node.",
            "N",
            min=0,
        ),
    ] = 0,
    healthy: Annotated[
        list[str] | None,
        option(
            "--healthy",
            "Logs of a healthy run: if no cause is known, lines that are not in them are shown.",
            "LOG",
        ),
    ] = None,
    second_opinion: Annotated[
        bool,
        option(
            "--second-opinion", "Where the cause stays open, ask the model of the setting second-opinion."
        ),
    ] = False,
) -> int:
    """Say what went wrong with a job, which node is to blame, and whether a retry makes sense.

    A log may be a job's output, a kernel log, nvidia-smi -q, a torchrun error file, flight recorder dumps, or
    what scontrol show job or sacct -P printed. A folder stands for the logs in it; .gz and .zst files are
    read as they are. A job id stands for the logs and the record of that job.

    Exit status: 0 nothing failed, 10 a retry makes sense, 11 a retry would fail again, 12 unknown cause, 2
    wrong usage.
    """
    hosts = common.nodes_named([nodes], "--nodes")
    told = _told_end(ended_with, state)
    if ranks_per_node and not hosts:
        raise UserError("--ranks-per-node needs --nodes, in the order of the ranks")
    catalog = common.load_catalog()
    like = list(_files(healthy or []))
    endpoint = _endpoint() if second_opinion else None
    status = EXIT_HEALTHY
    unread = False
    for number, case in enumerate(_cases(logs, each=each, told=told)):
        facts, found, complete = _diagnose_case(case, _topology(case, hosts, ranks_per_node), catalog, like)
        unread = unread or not complete
        if found is None:
            continue
        if endpoint is not None:
            found = _with_opinion(case, facts, found, endpoint)
        if as_json:
            common.print_json(_to_json(case, found))
        else:
            _show(case, found, apart=number > 0, named=each or bool(case.notes))
        status = max(status, _status(found))
    return EXIT_USAGE if unread else status


def _cases(arguments: list[str], *, each: bool, told: Ended | None) -> list[_Case]:
    """The cases that the arguments name, each with the end that the user tells of. Raises UserError for an
    argument that names none.
    """
    jobs = [word for word in arguments if _JOB.fullmatch(word) and not os.path.exists(word)]
    cases = []
    for job in jobs:
        facts = inputs.find_job_facts(job)
        cases.append(_Case(f"job {job}", facts.logs, facts.record, facts.notes, facts.ours))
    files = list(_files([word for word in arguments if word not in jobs]))
    if each:
        cases += [_Case(path, (path,), _NOTHING) for path in files]
    elif files:
        cases.append(_Case(", ".join(files), tuple(files), _NOTHING))
    if told is not None:
        return [replace(case, known=SlurmRecord(told, case.known.nodes)) for case in cases]
    return cases


def _topology(case: _Case, hosts: tuple[str, ...], ranks_per_node: int) -> Topology:
    ranks = {
        rank: host
        for place, host in enumerate(hosts)
        for rank in range(place * ranks_per_node, (place + 1) * ranks_per_node)
    }
    return Topology(nodes=hosts or case.known.nodes, rank_node=ranks)


def _diagnose_case(
    case: _Case, topology: Topology, catalog: Catalog, healthy: Sequence[str]
) -> tuple[Facts, Diagnosis | None, bool]:
    """The facts of one case, their diagnosis (None if nothing could be read), and whether all could be read."""
    given = sys.stdin.buffer.read() if STDIN in case.logs else None
    logs = [log for log in case.logs if log != STDIN]
    gathered = inputs.read_attempt_files(logs, catalog=catalog, stdin=given, ours=case.ours)
    for line in (*case.notes, *gathered.unread):
        print(f"ftrun: {line}", file=sys.stderr)
    if gathered.unread and len(gathered.unread) == len(case.logs):
        return Facts((), topology, catalog), None, False
    record = gathered.record or case.known
    if not topology.nodes and record.nodes:
        topology = replace(topology, nodes=record.nodes)
    report = gathered.report
    topology = report.seats.added_to(topology)
    text = log_text.read_log_text(logs, given or b"")
    facts = Facts(
        report.evidence, topology, catalog, record.ended, report.progress, text=text, grammar=load_grammar()
    )
    found = diagnose_facts(facts)
    if found.fault is FaultClass.UNKNOWN:
        offset_bytes = report.progress.offset_bytes if report.progress is not None else 0
        plain = [LogPath(log) if isinstance(log, str) else log for log in case.logs if log != STDIN]
        lines = unknown_cause.suspicious_lines(
            plain, topology, step_offset_bytes=offset_bytes, healthy=[LogPath(path) for path in healthy]
        )
        facts = replace(facts, last_words=lines)
        found = diagnose_facts(facts)
    return facts, found, not gathered.unread


def _endpoint() -> tuple[Endpoint, str, dict[str, str]]:
    """Whom to ask for a second opinion, the home that counts the questions, the environment. Raises UserError."""
    env = dict(os.environ)
    settings = sources.load(os.getcwd(), env)
    endpoint = Endpoint.of(settings.values)
    if endpoint is None:
        raise UserError("--second-opinion: nobody to ask; set second-opinion (docs/second-opinion.md)")
    return endpoint, settings.home(env), env


def _with_opinion(
    case: _Case, facts: Facts, found: Diagnosis, asked: tuple[Endpoint, str, dict[str, str]]
) -> Diagnosis:
    """The diagnosis with a second opinion, where it is open; without an answer, the reason is on stderr."""
    if not is_open(found):
        return found
    endpoint, home, env = asked
    logs = [LogPath(log) if isinstance(log, str) else log for log in case.logs if log != STDIN]
    question = inquiry.question_of_end(facts, found, logs)
    if not os.path.isdir(home):
        private_folders(home)
    try:
        opinion = inquiry.ask_and_wait(endpoint, question, home, env, time.time())
    except NoAnswer as error:
        print(f"ftrun: no second opinion: {error}", file=sys.stderr)
        return found
    return diagnose_facts(replace(facts, second_opinion=opinion))


def _to_json(case: _Case, found: Diagnosis) -> dict[str, Any]:
    """What `--json` prints: these keys, with these names."""
    return {
        "file": case.name,
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
        **({"second_opinion": found.opinion.to_json()} if found.opinion is not None else {}),
    }


def _show(case: _Case, found: Diagnosis, *, apart: bool, named: bool) -> None:
    if apart:
        print()
    where = f"{case.name}: " if named else ""
    name = f" [{found.signature}]" if found.signature else ""
    colour = _COLOURS[_status(found)]
    common.print_styled(f"{where}{found.fault.value}: {found.title}{name}", style=f"bold {colour}")
    print(f"  {_answer(found)}; confidence {found.confidence:.2f}")
    if found.advice:
        print(f"  {found.advice}")
    _print_proofs("", found.because)
    _print_proofs("  worth a look:", found.suspicious)
    for words in found.rests_on:
        common.print_styled(f"  - {words}", style="dim")


def _print_proofs(heading: str, proofs: Sequence[Proof]) -> None:
    if heading and proofs:
        print(heading)
    for proof in proofs:
        common.print_styled(f"  {proof.file}:{proof.line}: {_trimmed(proof.text)}", style="cyan")


def _trimmed(text: str) -> str:
    """The stripped line; of a long one its beginning and its end, since either may matter."""
    text = text.strip()
    return text if len(text) <= QUOTED_CHARS else f"{text[: QUOTED_CHARS - 100]} ... {text[-90:]}"


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


def _told_end(ended_with: str, state: str) -> Ended | None:
    """The end that the user tells of; None for nothing. Raises UserError for words that Slurm does not use."""
    if not ended_with and not state:
        return None
    code, _, signal = ended_with.partition(":")
    if ended_with and not (code.isdecimal() and (signal or "0").isdecimal()):
        raise UserError(f"--exit {ended_with}: it must be a number such as 1, or 0:9 for signal 9")
    known = parse_state(state or ("FAILED" if int(code or 0) or int(signal or 0) else "COMPLETED"))
    if not known.ended:
        raise UserError(
            f"--state {state}: no state of a job that has ended; Slurm says COMPLETED, FAILED, TIMEOUT ..."
        )
    return Ended(known.value, exit_code=int(code or 0), exit_signal=int(signal or 0))


def _files(arguments: list[str]) -> Iterator[str]:
    """Yield the files that the arguments name. Raises UserError for an argument that names none."""
    for word in arguments:
        if word == STDIN or (os.path.exists(word) and not os.path.isdir(word)):
            yield word
        elif os.path.isdir(word):
            inside = [str(path) for path in sorted(_below(word)) if _is_log(path)]
            if not inside:
                raise UserError(f"{word}: no logs in this folder; name the files themselves")
            yield from inside
        else:
            matching = sorted(path for path in glob.glob(word, recursive=True) if os.path.isfile(path))
            if not matching:
                raise UserError(f"{word}: no such file")
            yield from matching


def _below(folder: str) -> Iterator[Path]:
    """Every file below a folder; other users' folders may be closed, so such ones are skipped."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _is_log(path: Path) -> bool:
    return path.is_file() and bool(_LOG_NAME.search(path.name))
