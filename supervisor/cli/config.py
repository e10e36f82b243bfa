"""`ftrun config show`, `trust` and `init`: the settings in force, trust in project files, the lines for a script. (I/O)

`init` reads a batch script and the Python files that it starts, and proposes its #FTRUN lines. `--write` puts
them behind the directives of the script, by a new file in its place with the same mode; a setting that the
script has already stays as it is, so a second `--write` changes nothing.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.config import trust as config_trust
from ftrun.supervisor.config.settings import SETTINGS, format_value, lookup
from ftrun.supervisor.model.errors import SettingError, UserError
from ftrun.supervisor.submission import compose
from ftrun.supervisor.submission.framework_rules import Proposal, propose
from ftrun.supervisor.submission.training_script import read_script

app = typer.Typer(help="The settings in force, and where each value came from.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The settings in force, and where each value came from."""


@app.command("show", context_settings={"ignore_unknown_options": True})  # --ft-NAME is a name
def show_settings(
    names: Annotated[list[str] | None, argument("SETTING...", "Only these settings.")] = None,
    *,
    json: Json = False,
) -> None:
    """Show every setting in force in this folder and environment, what it means, the layer that set it, where,
    and what the site has locked.

    The #FTRUN lines of a script and the command line of `ftrun sbatch` override what is shown.
    """
    cwd = os.getcwd()
    loaded = sources.load(cwd, os.environ)
    try:
        keys = [lookup(name.removeprefix("--").removeprefix("ft-")).key for name in names or SETTINGS]
    except SettingError as error:
        raise UserError(str(error)) from None
    rows = [_row(loaded, key) for key in keys]
    for line in [*loaded.ignored, *([loaded.untrusted] if loaded.untrusted else [])]:
        print(f"ftrun: {line}", file=sys.stderr)
    if json:
        files = [{"layer": layer, "path": path} for layer, path in sources.source_files(cwd, os.environ)]
        told = {"ignored": loaded.ignored, "untrusted": loaded.untrusted}
        common.print_json({"files": files, **told, "home": loaded.home(os.environ), "settings": rows})
        return
    common.print_table(
        ("setting", "value", "from", "where", "meaning"),
        [(row["key"], row["text"] or "-", row["layer"], _where(row), row["meaning"]) for row in rows],
    )


def _where(row: dict[str, Any]) -> str:
    """Where the value was set, and whether the site has locked it."""
    if not row["locked"]:
        return row["where"] or "-"
    return f"{row['where']} (locked)" if row["where"] == row["locked"] else f"locked by {row['locked']}"


def _row(loaded: sources.Config, key: str) -> dict[str, Any]:
    layer, where = loaded.origin[key]
    return {
        "key": key,
        "value": loaded[key],
        "text": format_value(key, loaded[key]),
        "layer": layer,
        "where": where,
        "locked": loaded.locked.get(key),
        "meaning": SETTINGS[key].doc,
    }


def trust(
    file: Annotated[str, argument("FILE", "The project's ftrun.toml.")] = "",
    *,
    revoke: Annotated[bool, option("--revoke", "Trust the file no longer.")] = False,
    list_: Annotated[bool, option("--list", "Show which files are trusted.")] = False,
    json: Json = False,
) -> None:
    """Allow FILE, a project's ftrun.toml, to set what can run, read or write something, and show these
    settings.

    Its commands run as you, on the login node and on the nodes of your jobs: read it first. Trust holds for
    this content at this path; when the file changes, `ftrun sbatch` refuses it until you trust it again. A
    file that another user could have written cannot be trusted.
    """
    if bool(file) == list_ or (revoke and list_):
        raise UserError("trust: a FILE is wanted, or --list")
    folder = sources.user_folder(os.environ)
    if list_:
        _list(folder, json=json)
    elif revoke:
        _revoke(file, folder, json=json)
    else:
        _trust(file, folder, json=json)


def _trust(file: str, folder: str, *, json: bool) -> None:
    path = config_trust.trust_key(file)
    if os.path.basename(path) != sources.PROJECT_FILE:
        raise UserError(f"{file}: only files called {sources.PROJECT_FILE} need trust")
    try:
        content, why = config_trust.read_settings_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if why:
        raise UserError(f"{why}, so it cannot be trusted")
    found = sources.project_settings(path, content)
    able = sources.settings_with_reach(found)
    rows = [
        {"key": key, "value": found[key], "text": format_value(key, found[key]), "can": can}
        for key, can in able.items()
    ]
    if able and config_trust.why_untrusted(path, content, folder):
        try:
            config_trust.trust_file(path, content, folder)
        except OSError as error:
            raise UserError(
                f"{error.filename or folder}: {error.strerror or error}; nothing is trusted", 1
            ) from None
    if json:
        common.print_json({"path": path, "trusted": bool(able), "settings": rows})
    elif not able:
        print(f"{path} sets nothing that can run, read or write something: it needs no trust")
    else:
        common.print_table(
            ("setting", "can", "value"), [(row["key"], row["can"], row["text"]) for row in rows]
        )
        print(f"{path} is trusted with its present content")


def _revoke(file: str, folder: str, *, json: bool) -> None:
    try:
        was_trusted = config_trust.untrust_file(file, folder)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", 1) from None
    if not was_trusted:
        raise UserError(f"{config_trust.trust_key(file)} was not trusted; see: ftrun trust --list", 1)
    if json:
        common.print_json({"path": config_trust.trust_key(file), "trusted": False})
    else:
        print(f"{config_trust.trust_key(file)} is trusted no longer")


def _list(folder: str, *, json: bool) -> None:
    rows: list[dict[str, Any]] = config_trust.list_trusted(folder)
    if json:
        common.print_json({"files": rows})
    elif rows:
        common.print_table(
            ("file", "since", "state"), [(row["path"], row["at"], row["state"]) for row in rows]
        )
    else:
        print("no file is trusted")


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
        present = {name for name, _ in _named(compose.ftrun_directives(content))}
    except compose.ScriptError as error:
        raise UserError(f"{script}: {error}") from None
    lines = [f"#FTRUN --{name}={_quoted(value)}" for name, value in proposal.lines if name not in present]
    if write and lines:
        _replace_script(script, _with_lines(content, lines))
    if json:
        common.print_json({
            "script": script, "framework": proposal.framework, "lines": lines, "present": sorted(present),
            "questions": proposal.questions, "notes": proposal.notes, "written": write and bool(lines),
        })  # fmt: skip
        return 0
    _print_proposal(script, proposal, lines, sorted(present), write=write)
    return 0


def _print_proposal(
    script: str, proposal: Proposal, lines: list[str], present: list[str], *, write: bool
) -> None:
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


def _named(directives: list[str]) -> list[tuple[str, str]]:
    """(name, value) of the words of the #FTRUN lines."""
    pairs = (word.lstrip("-").partition("=") for word in directives if word.startswith("--"))
    return [(name, value) for name, _, value in pairs]


def _quoted(value: str) -> str:
    if "'" in value and not set(value) & set('"\\$`'):
        return f'"{value}"'
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


def _replace_script(script: str, content: bytes) -> None:
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
