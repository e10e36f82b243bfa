"""What commands share: the home, finding and reading runs, the state of the supervisor, printing. (I/O)

Commands print JSON for programs and tables for people. rich is loaded with the first table on a terminal;
JSON and a table into a pipe never load it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

from ftrun.hooks.runtime.formats import plain
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import dataclass
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.config import settings, sources
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.errors import SettingError, UnreadableRun, UserError
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import journal
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store.run_cache import RunCache

if TYPE_CHECKING:
    from rich.console import Console

    from ftrun.supervisor.signatures.catalog import Catalog

FOREIGN_LOOK_S = 3.0


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """Whether a supervisor is alive.

    `since_s`: since when its counter has not moved (Unix seconds, the mtime of the file); `blind_since_s`:
    since when Slurm has not answered; `set_aside`: run -> why the supervisor cannot handle it; `asks`: `by`
    which client it asks Slurm, and `why` not by pyslurm, {} where the settings want the commands;
    `not_published`: metrics, notices or another publisher -> why nothing leaves by it.
    """

    watched: bool
    by: str
    since_s: float | None
    blind_since_s: float | None
    set_aside: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, str] = field(default_factory=dict)
    not_published: Mapping[str, str] = field(default_factory=dict)


def home() -> str:
    """The folder of all runs, by the settings. Raises UserError where others may have written there."""
    return checked_home(sources.load(os.getcwd(), dict(os.environ)).home(dict(os.environ)))


def checked_home(path: str) -> str:
    """`path`, the folder of all runs. Raises UserError where others may have written there."""
    if why := store_run_dir.why_home_untrusted(path):
        raise UserError(f"{why}: name a folder of your own (FTRUN_HOME)")
    return path


def load_run(run_dir: str, cache: RunCache | None = None) -> Run:
    """The run in this folder. Raises UserError if its journal cannot be read."""
    try:
        return journal.load_run(run_dir) if cache is None else cache.load(run_dir)[0]
    except (UnreadableRun, OSError) as error:
        raise UserError(errors.unreadable_text(os.path.basename(run_dir), error), 1) from None


def load_records(run_dir: str) -> tuple[Run, list[dict[str, Any]]]:
    """The run in this folder and its records, read once. Raises UserError if its journal cannot be read."""
    from ftrun.supervisor.model.events import fold

    try:
        records = journal.read_run(run_dir)
        return fold(os.path.basename(run_dir), records), records
    except (UnreadableRun, OSError) as error:
        raise UserError(errors.unreadable_text(os.path.basename(run_dir), error), 1) from None


def all_runs(home_dir: str, *, over: bool = True) -> list[tuple[str, Run]]:
    """Every readable run, oldest first; unreadable ones are reported on stderr. `over` False: runs that are known
    to be over may lack.
    """
    found, cache = [], RunCache(home_dir)
    for run_dir in store_run_dir.run_dirs(home_dir):
        if not over and cache.is_over(run_dir):
            continue
        try:
            found.append((run_dir, load_run(run_dir, cache)))
        except UserError as error:
            print(f"ftrun: {error}", file=sys.stderr)
    return sorted(found, key=lambda pair: pair[1].created_at_s)


def find_run(name: str) -> tuple[str, Run]:
    """The run that a run id or any of its job ids names. Raises UserError."""
    run_dir = find_run_dir(name)
    return run_dir, load_run(run_dir)


def find_run_dir(name: str) -> str:
    """The folder of the run that a run id, written in any case, or any of its job ids names. Raises UserError."""
    home_dir = home()
    run_dir = store_run_dir.find_run(home_dir, name)
    if run_dir is not None:
        return run_dir
    known = {os.path.basename(path): path for path in store_run_dir.run_dirs(home_dir)}
    alike = [path for run, path in known.items() if run.casefold() == name.casefold()]
    if len(alike) == 1:
        return alike[0]
    run_dir = _find_by_journal(home_dir, name)
    if run_dir is None:
        near = errors.nearest_word(name, sorted(known, reverse=True))
        hint = f"did you mean {near}? " if near else ""
        raise UserError(
            f"no run and no job of a run is called {name!r} in {home_dir}; {hint}see: ftrun status --all"
        )
    return run_dir


def _find_by_journal(home_dir: str, name: str) -> str | None:
    """The run whose journal names this job, for a job that the index lacks; the index is mended."""
    plain = name.split("_", 1)[0].split("+", 1)[0]
    for run_dir, run in reversed(all_runs(home_dir)):
        if plain in (*run.job_ids, *run.companion_ids):
            store_run_dir.index_job(home_dir, plain, run.id)
            return run_dir
    return None


def supervisor_state(home_dir: str) -> SupervisorState:
    """Whether a supervisor is alive: here by its process, on another machine by whether its counter moves."""
    from ftrun.supervisor.store import lease
    from ftrun.supervisor.submission import start_supervisor

    holder = lease.read_holder(home_dir)
    status = _status_file(home_dir)
    blind, aside = status.get("blind_since_s"), dict(status.get("set_aside", {}))
    asks = dict(status.get("slurm_client", {}))
    unsaid = dict(status.get("not_published", {}))
    if not holder.epoch:
        return SupervisorState(False, "", None, blind, aside, asks, unsaid)
    host = holder.writer.split(".")[0]
    if start_supervisor.holder_alive_here(home_dir):
        return SupervisorState(True, host, None, blind, aside, asks, unsaid)
    if holder.counter != "released" and not store_run_dir.same_machine(holder.writer):
        time.sleep(FOREIGN_LOOK_S)
        if lease.read_holder(home_dir) != holder:
            return SupervisorState(True, host, None, blind, aside, asks, unsaid)
    path = os.path.join(home_dir, "lease", f"counter-{holder.epoch:06d}")
    try:
        since = os.stat(path).st_mtime
    except OSError:
        since = None
    return SupervisorState(False, host, since, blind, aside, asks, unsaid)


def _status_file(home_dir: str) -> dict[str, Any]:
    """The status file of the last supervisor; {} if it cannot be read."""
    try:
        with open(os.path.join(home_dir, "supervisor.json"), encoding="utf-8") as stream:
            facts = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def ensure_supervisor(home_dir: str) -> bool:
    """Start a supervisor if none is alive and the settings allow it. True if one was started."""
    from ftrun.supervisor.submission import start_supervisor

    if sources.load(os.getcwd(), dict(os.environ)).text("supervisor") != "auto":
        return False
    try:
        return bool(start_supervisor.ensure_supervisor(home_dir, dict(os.environ)))
    except OSError as error:
        print(
            f"ftrun: no supervisor could be started: {error.strerror}; run: ftrun supervise", file=sys.stderr
        )
        return False


def write_request(run_dir: str, want: str, *, halt: bool = False) -> str:
    """Write a request for the supervisor (by atomic rename) and return its file name. Raises UserError.

    With `halt`, the conditions of the request are in `halt.json`.
    """
    import getpass

    name = f"{time.time_ns()}-{want}.json"
    asked = {"want": want, "by": getpass.getuser(), "host": os.uname().nodename}
    body = json.dumps(asked | ({"halt": True} if halt else {}))
    try:
        config_home.write_atomically(os.path.join(run_dir, "requests", name), body.encode())
    except OSError as error:
        raise UserError(f"the request cannot be written: {run_dir}/requests: {error.strerror}", 1) from None
    store_run_dir.announce(os.path.dirname(os.path.dirname(run_dir)))
    return name


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether `stream` (default: stdout) is a terminal."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty()


def print_json(value: object) -> None:
    """Print `value` as one line of JSON on stdout.

    It may contain dataclasses, msgspec Structs, enums, paths, datetimes and sets; sets are sorted, so that
    equal facts print equal lines.
    """
    print(json.dumps(value, default=_to_json, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print `rows` under `columns` on stdout, one cell for each column; None prints as `-`.

    On a terminal this is a rich table; elsewhere the columns are aligned, one line for each row, and never
    shortened, so that `grep` and `awk` see whole values.
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if is_terminal():
        _rich_table(columns, cells)
    else:
        _plain_table(columns, cells)


def print_styled(line: str, *, style: str) -> None:
    """Print one line on stdout, in a `style` of rich on a terminal."""
    if is_terminal():
        console().print(line, style=style, markup=False, soft_wrap=True)
    else:
        print(line)


def parse_ft(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """The settings that KEY=VALUE words of an option `--ft` name; a flag may stand alone. Raises UserError."""
    pairs: list[tuple[str, str | None]] = []
    for word in words:
        key, equals, value = word.partition("=")
        try:
            if settings.takes_value(key) and not equals:
                raise UserError(f"--ft {key}: KEY=VALUE is wanted, such as --ft spares=2")
        except SettingError as error:
            raise UserError(f"--ft: {error}") from None
        pairs.append((key, value if equals else None))
    return pairs


def load_catalog() -> Catalog:
    """The catalogue of signatures, with the site's own of FTRUN_CATALOG. Raises UserError."""
    from ftrun.supervisor.signatures import catalog

    folders = [folder for folder in os.environ.get("FTRUN_CATALOG", "").split(":") if folder]
    try:
        return catalog.load(folders)
    except catalog.CatalogError as error:
        raise UserError(str(error)) from None


@cache
def console() -> Console:
    """The rich console on stdout; NO_COLOR is respected."""
    from rich.console import Console

    return Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False, emoji=False)


def _rich_table(columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        view.add_column(column, overflow="fold")
    for row in cells:
        # Text: rich would read a node set such as gpu[1-4] as markup.
        view.add_row(*(Text(plain(cell, keep="\n")) for cell in row))
    console().print(view)


def _plain_table(columns: Sequence[str], cells: list[list[str]]) -> None:
    lines = [list(columns), *([plain(" ".join(cell.split())) for cell in row] for row in cells)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def nodes_named(words: Iterable[str], option: str = "") -> tuple[str, ...]:
    """The nodes of lists such as n[1-4], each once. Raises UserError, which names the option."""
    try:
        return tuple(dict.fromkeys(node for word in words for node in nodeset.expand(word)))
    except ValueError as error:
        raise UserError(f"{option}: {error}" if option else str(error)) from None


def _to_json(value: object) -> Any:
    """A JSON value for an object that json cannot encode."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (PurePath, Exception)):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be printed as JSON")
