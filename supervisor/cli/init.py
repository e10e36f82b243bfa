"""`ftrun init SCRIPT`: the `#FTRUN` lines that a batch script needs. (I/O)

It reads the script and the Python files that it starts, and proposes. `--write` puts the lines behind the
directives of the script, by a new file in its place with the same mode; a setting that the script has already
stays as it is, so a second `--write` changes nothing.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from pathlib import Path
from typing import Annotated

from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.submission import compose
from ftrun.supervisor.submission.framework_rules import Proposal, propose
from ftrun.supervisor.submission.training_script import read_script


def init(
    script: Annotated[str, argument("SCRIPT", "The batch script that you give to sbatch.")],
    write: Annotated[bool, option("--write", "Put the lines into the script.")] = False,
    json: Json = False,
) -> int:
    """Read a script, find its framework, and propose its #FTRUN lines: checkpoints, how to resume, what is unsure."""
    try:
        content = Path(script).read_bytes()
        proposal = propose(read_script(script))
    except OSError as error:
        raise UserError(f"{script}: {error.strerror}") from None
    if not content.startswith(b"#!"):
        raise UserError(f"{script}: no batch script, which begins with #! and the path of an interpreter")
    try:
        present = {name for name, _ in _settings(compose.ftrun_directives(content))}
    except compose.ScriptError as error:
        raise UserError(f"{script}: {error}") from None
    lines = [f"#FTRUN --{name}={_quoted(value)}" for name, value in proposal.lines if name not in present]
    if write and lines:
        _replace(script, _with_lines(content, lines))
    if json:
        common.print_json({
            "script": script, "framework": proposal.framework, "lines": lines, "present": sorted(present),
            "questions": proposal.questions, "notes": proposal.notes, "written": write and bool(lines),
        })  # fmt: skip
        return 0
    _print(script, proposal, lines, sorted(present), write=write)
    return 0


def _print(script: str, proposal: Proposal, lines: list[str], present: list[str], *, write: bool) -> None:
    print(f"{script}: {proposal.framework or 'no framework that ftrun knows'}")
    if present:
        print(f"kept, as the script has it: {', '.join(present)}")
    for line in lines:
        print(line)
    if lines:
        print(f"{'written to' if write else 'to put them in: ftrun init --write'} {script}")
    for title, told in (("question", proposal.questions), ("note", proposal.notes)):
        for one in told:
            print(f"{title}: {one}")


def _settings(directives: list[str]) -> list[tuple[str, str]]:
    """(name, value) of the words of the #FTRUN lines."""
    pairs = (word.lstrip("-").partition("=") for word in directives if word.startswith("--"))
    return [(name, value) for name, _, value in pairs]


def _quoted(value: str) -> str:
    return shlex.quote(value) if set(value) & set(" \t\"'\\#$`") else value


def _with_lines(content: bytes, lines: list[str]) -> bytes:
    """The script with these lines behind its last directive, or behind the first line; every other byte stays. (pure)"""
    rows = content.split(b"\n")
    at = 1
    for number, row in enumerate(rows[1:], 1):
        text = row.strip()
        if text and not text.startswith(b"#"):
            break
        if text.startswith((b"#SBATCH", b"#FTRUN", b"#PBS", b"#BSUB")):
            at = number + 1
    end = b"\r" if rows[0].endswith(b"\r") else b""
    added = [os.fsencode(line) + end for line in lines]
    if at >= len(rows):  # a script of one line without an end
        rows.append(b"")
        at = len(rows) - 1
    return b"\n".join([*rows[:at], *added, *rows[at:]])


def _replace(script: str, content: bytes) -> None:
    """Put a file with this content in the script's place, with its mode. Raises UserError."""
    path = os.path.realpath(script)
    try:
        before = os.stat(path)
        fd, draft = tempfile.mkstemp(dir=os.path.dirname(path), prefix=f".{os.path.basename(path)}.")
        try:
            with os.fdopen(fd, "wb") as stream:
                stream.write(content)
                os.fchmod(stream.fileno(), stat.S_IMODE(before.st_mode))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)
        except OSError:
            os.unlink(draft)
            raise
    except OSError as error:
        raise UserError(f"{script}: cannot be written: {error.strerror}; nothing was changed") from None
