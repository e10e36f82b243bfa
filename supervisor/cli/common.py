"""What the commands about runs share: which home, which run, who is watching. (I/O)"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor import config, events, journal, lifecycle, store
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.run_types import Run

__all__ = ["Watch", "all_runs", "ensure_supervisor", "find", "home", "read", "request", "watch_state"]

FOREIGN_LOOK_S = 3.0


@dataclass(frozen=True, slots=True)
class Watch:
    """Whether somebody looks after the runs.

    `since_s`: since when the counter has stood still (Unix seconds, by its file's own time); `blind_since_s`: since when
    Slurm has not answered; `set_aside`: runs that the supervisor cannot look after, with the reason; `asks`: `by` what it asks Slurm and
    `why` not by pyslurm, {} where only the commands are meant to be asked.
    """

    watched: bool
    by: str
    since_s: float | None
    blind_since_s: float | None
    set_aside: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, str] = field(default_factory=dict)


def home() -> str:
    """The folder of all runs by the settings in force. Raises UserError where others may have written there."""
    return own_home(config.load(os.getcwd(), dict(os.environ)).home(dict(os.environ)))


def own_home(path: str) -> str:
    """`path`, the folder of all runs. Raises UserError where others may have written there."""
    if why := store.foreign_home(path):
        raise UserError(f"{why}: name a folder of your own (FTRUN_HOME)")
    return path


def read(run_dir: str) -> Run:
    """The run of a folder. Raises UserError where its journal cannot be read."""
    name = os.path.basename(run_dir)
    try:
        return events.fold(name, journal.read_run(run_dir))
    except (journal.JournalDamaged, journal.JournalTooNew, lifecycle.IllegalEvent, events.BadRecord) as error:
        raise UserError(f"{name}: {error}; the run is left alone", 1) from None
    except OSError as error:
        raise UserError(
            f"{name}: its journal cannot be read: {error.filename}: {error.strerror}", 1
        ) from None


def all_runs(home_dir: str) -> list[tuple[str, Run]]:
    """Every readable run, oldest first; one that cannot be read is named on stderr."""
    found = []
    for run_dir in store.run_dirs(home_dir):
        try:
            found.append((run_dir, read(run_dir)))
        except UserError as error:
            print(f"ftrun: {error}", file=sys.stderr)
    return sorted(found, key=lambda pair: pair[1].created_at_s)


def find(name: str) -> tuple[str, Run]:
    """The run that a run id or any of its job ids names. Raises UserError."""
    home_dir = home()
    run_dir = store.resolve(home_dir, name) or _by_journal(home_dir, name)
    if run_dir is None:
        raise UserError(
            f"no run and no job of a run is called {name!r} in {home_dir}; see: ftrun status --all"
        )
    return run_dir, read(run_dir)


def _by_journal(home_dir: str, name: str) -> str | None:
    """The index is only an index: where it does not know the job, the journals do."""
    plain = name.split("_", 1)[0].split("+", 1)[0]
    for run_dir, run in reversed(all_runs(home_dir)):
        if plain in (*run.job_ids, *run.companion_ids):
            store.index(home_dir, plain, run.id)
            return run_dir
    return None


def watch_state(home_dir: str) -> Watch:
    """Is somebody watching? On this machine by the process, elsewhere by looking whether the counter moves."""
    from ftrun.supervisor import lease, spawn

    holder = lease.look(home_dir)
    told = _told(home_dir)
    blind, aside = told.get("blind_since_s"), dict(told.get("set_aside", {}))
    asks = dict(told.get("slurm_client", {}))
    if not holder.epoch:
        return Watch(False, "", None, blind, aside, asks)
    host = holder.writer.split(".")[0]
    if spawn.holder_alive_here(home_dir):
        return Watch(True, host, None, blind, aside, asks)
    if holder.counter != "released" and not store.same_machine(holder.writer):
        time.sleep(FOREIGN_LOOK_S)
        if lease.look(home_dir) != holder:
            return Watch(True, host, None, blind, aside, asks)
    path = os.path.join(home_dir, "lease", f"counter-{holder.epoch:06d}")
    try:
        since = os.stat(path).st_mtime
    except OSError:
        since = None
    return Watch(False, host, since, blind, aside, asks)


def _told(home_dir: str) -> dict[str, Any]:
    """What the last supervisor wrote of itself; nothing where it cannot be read."""
    import json

    try:
        with open(os.path.join(home_dir, "supervisor.json"), encoding="utf-8") as stream:
            facts = json.load(stream)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def ensure_supervisor(home_dir: str) -> bool:
    """Start a supervisor where none is alive and the settings allow it. True when one was started."""
    from ftrun.supervisor import spawn

    if config.load(os.getcwd(), dict(os.environ)).text("supervisor") != "auto":
        return False
    try:
        return bool(spawn.ensure(home_dir, dict(os.environ)))
    except OSError as error:
        print(
            f"ftrun: no supervisor could be started: {error.strerror}; run: ftrun supervise", file=sys.stderr
        )
        return False


def request(run_dir: str, want: str, *, halt: bool = False) -> str:
    """Leave a request for the supervisor (made by atomic rename). Returns its file name. Raises UserError.

    `halt`: under which conditions stands in `halt.json`.
    """
    import getpass
    import json

    name = f"{time.time_ns()}-{want}.json"
    asked = {"want": want, "by": getpass.getuser(), "host": os.uname().nodename}
    body = json.dumps(asked | ({"halt": True} if halt else {}))
    try:
        store.write_atomically(os.path.join(run_dir, "requests", name), body.encode())
    except OSError as error:
        raise UserError(f"the request cannot be written: {run_dir}/requests: {error.strerror}", 1) from None
    return name
