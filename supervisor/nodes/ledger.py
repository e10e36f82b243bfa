"""The node ledger on disk: `$FTRUN_HOME/nodes/*.jsonl`, one file per writer, read by all. (I/O)

- A writer appends whole lines to a file of its own and syncs. A torn line (a crash, a full disk) costs that
  line: the next one starts on a new line. Readers take whole lines and skip the rest; damage is not an
  error.
- The ledger never stops its caller: `note` returns False if the disk did not take the entries, `read` gives
  what it can read.
- Compaction merges files without a writer into one and drops entries older than `keep_s`. It first renames
  a file (`.closed`), so that a writer that comes back creates a new one; a writer checks after its write
  whether the name still leads to its file, and writes again if not. The merged file appears whole, by
  rename, and its first line names the files that it replaces; readers then skip those. An entry that is
  found twice counts once, by its id.
- A supervisor keeps the ledger of its home by `NodeLedger`.
- Re-reading costs only what was appended since: `Reader` remembers how far it read each file.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.hooks.runtime.formats import DAY_S
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import replace
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.model.node_entry import NodeEntry, canonical_device
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.nodes import from_runs
from ftrun.supervisor.nodes.history import (
    NodeHistory,
    QuarantineRules,
    common_causes_of,
    fold_entries,
    may_be_common,
)
from ftrun.supervisor.nodes.machines import borne_by
from ftrun.supervisor.nodes.repeat_failures import ENDED, SIGNATURE
from ftrun.supervisor.store import journal, node_reports, run_dir, site_nodes, user_exclusions

SCHEMA = 1
KEEP_S = 180 * DAY_S
COMPACT_FROM_FILES = 8
MANY_FILES = 64
LOOKS = 3  # while a compaction renames files
APPENDS_MAX = 100  # while compactions rename the file each time
Domains = Mapping[str, tuple[str, ...]]  # switch or block -> the nodes below it
_OPEN, _CLOSED, _MERGED = ".jsonl", ".closed", "merged-"


def ledger_dir(home: str) -> str:
    """The folder of the ledger."""
    return os.path.join(home, "nodes")


def append_entries(home: str, *entries: NodeEntry | Mapping[str, Any], writer: str = "") -> bool:
    """Append entries, durable when this returns True; never raises. `writer` is this process (its default).

    A mapping has the keys of `Entry`, with `node` (or `nodes`), `at_s` (default: now) and `what`. An entry
    without an id gets one. False: the disk did not take them (some may have been written: give an id to
    what must count once), or one of them names no node or is not an entry.
    """
    parsed = [_entry(_mapping(entry)) for entry in entries]
    whole = [entry for entry in parsed if entry is not None]
    if whole:
        try:
            if _append(
                home, [entry_json(entry) for entry in whole], writer or run_dir.process_identity()
            ) and _many_files(home):
                compact(home, time.time(), math.inf)  # each command from cron leaves a file
        except (OSError, ValueError, TypeError):
            return False
    return len(whole) == len(parsed)


def read_entries(home: str) -> list[NodeEntry]:
    """Every entry of the ledger, each once; [] where there is none or it cannot be read."""
    return Reader(home).entries()


def entry_json(entry: NodeEntry) -> dict[str, Any]:
    """An entry as a line of the ledger has it."""
    who: dict[str, Any] = {"node": entry.nodes[0]} if len(entry.nodes) == 1 else {"nodes": list(entry.nodes)}
    return {
        "schema": SCHEMA,
        "id": entry.id,
        "at_s": round(entry.at_s, 3),
        **who,
        "what": entry.what,
        "run": entry.run,
        "signature": entry.signature,
        "fault": entry.fault,
        "device": entry.device,
        "serial": entry.serial,
        "detail": dict(entry.detail),
    }


# ---------------------------------------------------------------------- writing


def _append(home: str, records: list[dict[str, Any]], writer: str) -> bool:
    """Append to our own file, even if a compaction renames it meanwhile.

    True if the file is new. Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(ledger_dir(home), 0o700)  # not the home: one that was removed is not made again
    path = os.path.join(ledger_dir(home), writer + _OPEN)
    for _ in range(APPENDS_MAX):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n":
                os.write(fd, b"\n")  # end the line that a full disk cut off
            journal.append_record(fd, *records)
            if _leads_to(path, os.fstat(fd)):
                return not size_bytes
        finally:
            os.close(fd)
    raise OSError(f"{path}: renamed again and again")


def _many_files(home: str) -> bool:
    return sum(map(_is_ours, os.listdir(ledger_dir(home)))) >= MANY_FILES


def _leads_to(path: str, file: os.stat_result) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)


def _mapping(entry: NodeEntry | Mapping[str, Any]) -> Mapping[str, Any]:
    record = dict(entry_json(entry) if isinstance(entry, NodeEntry) else entry)
    record.setdefault("at_s", time.time())
    record["id"] = record.get("id") or secrets.token_hex(8)
    return record


# ---------------------------------------------------------------------- reading


@dataclass(slots=True)
class _File:
    """What was read of one file."""

    inode: int
    read_bytes: int = 0
    entries: list[NodeEntry] = field(default_factory=list)
    replaces: frozenset[str] = frozenset()


class Reader:
    """The entries of a home, kept up to date at the cost of what is new.

    `unread` counts lines that could not be parsed; `blind`: the last look did not see everything.
    """

    def __init__(self, home: str) -> None:
        self._folder = ledger_dir(home)
        self._files: dict[str, _File] = {}
        self._known: list[NodeEntry] = []
        self.unread = 0
        self.blind = False

    def entries(self) -> list[NodeEntry]:
        """Every entry, each once. Where the folder cannot be read, as of the last look. Never raises."""
        if self._look():
            replaced = self.replaced()
            once: dict[tuple[str, str], NodeEntry] = {}
            for name in sorted(self._files):
                if name not in replaced:
                    for entry in self._files[name].entries:
                        once.setdefault((entry.id, entry.what), entry)
            self._known = list(once.values())
        return self._known

    def of(self, names: Iterable[str]) -> list[NodeEntry]:
        """The entries of these files, without files that a merged one replaces."""
        self.entries()
        replaced = self.replaced()
        files = [self._files[name] for name in names if name in self._files and name not in replaced]
        return list({(e.id, e.what): e for file in files for e in file.entries}.values())

    def replaced(self) -> frozenset[str]:
        """The files that a merged one replaces: a crash may have left them."""
        return frozenset[str]().union(*(file.replaces for file in self._files.values()))

    def _look(self) -> bool:
        """Read what is new. True where there was something."""
        self.blind = False
        for _ in range(LOOKS):
            try:
                return self._look_once()
            except FileNotFoundError:
                continue  # a compaction renamed a file: look again
            except OSError:
                break
        self.blind = True
        return False

    def _look_once(self) -> bool:
        try:
            with os.scandir(self._folder) as found:
                names = {entry.name: entry.stat() for entry in found if _is_ours(entry.name)}
        except FileNotFoundError:
            names = {}
        gone = set(self._files) - set(names)
        news = bool(gone)
        for name, status in names.items():
            known = self._files.get(name)
            if known is None or known.inode != status.st_ino or status.st_size < known.read_bytes:
                known = self._files[name] = _File(status.st_ino)
                news = True
            if status.st_size > known.read_bytes:
                self._read(os.path.join(self._folder, name), known)
                news = True
        for name in gone:
            del self._files[name]
        return news

    def _read(self, path: str, known: _File) -> None:
        """Read the whole lines behind what was read. Raises OSError."""
        with open(path, "rb") as stream:
            stream.seek(known.read_bytes)
            content = stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines()):
            record = _parsed(line)
            if record is not None and record.get("what") == "merged":
                told = record.get("replaces", ())
                known.replaces = frozenset(map(str, told if isinstance(told, list) else ()))
            elif record is not None and (entry := _entry(record)) is not None:
                unnamed = f"{known.inode}.{known.read_bytes}.{number}"
                known.entries.append(entry if entry.id else replace(entry, id=unnamed))
            elif line.strip():
                self.unread += 1
        known.read_bytes += len(whole)


def _is_ours(name: str) -> bool:
    return name.endswith((_OPEN, _CLOSED)) and not name.startswith(".")


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    """The record of a line; None for a torn or changed one, and for one of a newer ftrun."""
    try:
        record = journal.parse_record(line)
    except ValueError:
        return None
    known = isinstance(record, dict) and isinstance(record.get("schema"), int) and record["schema"] <= SCHEMA
    return record if known else None


def _entry(record: Mapping[str, Any]) -> NodeEntry | None:
    """The entry of a record; None where it is none."""
    try:
        return _understood(record)
    except OverflowError:  # a number beyond any clock
        return None


def _understood(record: Mapping[str, Any]) -> NodeEntry | None:
    nodes = record.get("nodes") or [record.get("node")]
    at_s, what, detail = record.get("at_s"), record.get("what"), record.get("detail") or {}
    if not isinstance(nodes, list | tuple) or not all(isinstance(node, str) and node for node in nodes):
        return None
    if not isinstance(at_s, int | float) or not math.isfinite(at_s) or not isinstance(what, str) or not what:
        return None
    texts = {
        key: str(record.get(key) or "") for key in ("id", "run", "signature", "fault", "device", "serial")
    }
    if not isinstance(detail, Mapping):
        detail = {"text": str(detail)}
    return NodeEntry(at_s=float(at_s), what=what, nodes=tuple(nodes), detail=detail, **texts)


# ---------------------------------------------------------------------- compaction


def compact(home: str, now_s: float, keep_s: float, *, least: int = COMPACT_FROM_FILES) -> bool:
    """Merge files without a writer, once there are `least`. True where that was done; never raises."""
    try:
        return _compact(ledger_dir(home), now_s, keep_s, least)
    except OSError:
        return False  # safe to cut anywhere: the next compaction finishes it


def _compact(where: str, now_s: float, keep_s: float, least: int) -> bool:
    with os.scandir(where) as found:
        written = {entry.name: entry.stat().st_mtime for entry in found if _is_ours(entry.name)}
    newest_s = max(written.values(), default=0.0)  # by the clock of the file system
    quiet = [name for name, at_s in written.items() if _quiet(name, newest_s - at_s)]
    if len(quiet) < least:
        return False
    closed = [name for name in (_close(where, name) for name in quiet) if name]
    reader = Reader(os.path.dirname(where))
    kept = [entry for entry in reader.of(closed) if now_s - entry.at_s <= keep_s]
    if reader.blind:
        return False  # never remove what was not read: the next one finds the closed files
    gone = {*closed, *(old for old in reader.replaced() if os.path.exists(os.path.join(where, old)))}
    head = {"schema": SCHEMA, "what": "merged", "at_s": round(now_s, 3), "replaces": sorted(gone)}
    lines = [head, *(entry_json(entry) for entry in sorted(kept, key=lambda e: (e.at_s, e.id)))]
    name = f"{_MERGED}{secrets.token_hex(8)}{_OPEN}"
    config_home.write_atomically(os.path.join(where, name), b"".join(map(journal.record_line, lines)))
    for old in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(where, old))
    return True


def _quiet(name: str, idle_s: float) -> bool:
    """Whether the file has no writer, as far as known; a writer that comes back notices (see `_append`)."""
    if name.startswith(_MERGED) or name.endswith(_CLOSED):
        return True
    return run_dir.provably_dead(name.removesuffix(_OPEN)) or idle_s > DAY_S


def _close(where: str, name: str) -> str:
    """The name that the file has from now on; "" where somebody else took it."""
    if name.startswith(_MERGED) or name.endswith(_CLOSED):
        return name
    closed = f"{name.removesuffix(_OPEN)}.{secrets.token_hex(4)}{_CLOSED}"
    try:
        os.rename(os.path.join(where, name), os.path.join(where, closed))
    except FileNotFoundError:
        return ""
    return closed


# ---------------------------------------------------------------------- for a supervisor


class NodeLedger:
    """The ledger of one home as its supervisor, the `writer`, keeps it.

    The journals are the truth and the ledger is derived from them: after each step of a run the supervisor
    adds the entries of its journal that the ledger lacks. If a supervisor dies in between, the next one adds
    them, and no entry counts twice (`nodes.from_runs`). A ledger that cannot be read or written is logged, and
    the runs go on as if there were no ledger. `tell` logs an event, `now_s` returns Unix seconds, `domains` the
    nodes below each switch or block (raises SlurmError), `report` tells the site of what is new.
    """

    def __init__(
        self,
        home: str,
        now_s: Callable[[], float],
        tell: Callable[..., None],
        *,
        writer: str = "",
        domains: Callable[[], Domains] = dict,
        report: Callable[..., None] = lambda *_: None,
    ) -> None:
        self._report = report
        self._home = home
        self._now_s = now_s
        self._tell = tell
        self._writer, self._domains = writer, domains
        self._reader = Reader(home)
        self._followed: dict[str, tuple[Any, ...]] = {}
        self._folded: tuple[list[NodeEntry], QuarantineRules, Domains, NodeHistory] | None = None
        self._tidied_s = float("-inf")
        self._failing = False

    def follow(self, run: Run) -> None:
        """Add what the journal of this run has and the ledger lacks. Never raises."""
        mark = from_runs.entries_mark(run)
        if self._followed.get(run.id) == mark:
            self._report(run, [])  # what could not be told before
            return
        try:
            done = self._note(run)
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:  # written by another version of ftrun
            self._tell("ledger.not-understood", run=run.id, why=f"{type(error).__name__}: {error}")
            done = True
        if done:
            self._followed[run.id] = mark

    def _note(self, run: Run) -> bool:
        now_s, keep_s = self._now_s(), float(run.settings.get("ledger-keep", KEEP_S))
        told = [*from_runs.entries_of(run), *self._reported(run, now_s)]
        told = [entry for entry in told if now_s - entry.at_s <= keep_s]
        if not told:
            return True
        known = {entry.id for entry in self._reader.entries()}
        lacking = [entry for entry in told if entry.id not in known]
        bear = (
            borne_by([*self._reader.entries(), *told]) if any(e.what == "incident" for e in lacking) else {}
        )
        self._report(run, lacking, bear)
        noted = append_entries(self._home, *lacking, writer=self._writer)
        if noted and any(one.what == ENDED and one.detail["result"] == "failed" for one in lacking):
            self._keep_submissions_off(run, now_s)
        if noted is self._failing:
            self._tell("ledger.written-again" if noted else "ledger.not-written", run=run.id)
            self._failing = not noted
        if noted and now_s - self._tidied_s > DAY_S:
            self._tidied_s = now_s
            compact(self._home, now_s, keep_s)
        return noted

    def _keep_submissions_off(self, run: Run, now_s: float) -> None:
        """Let `ftrun sbatch` avoid the nodes that failures follow: a job that dies at once leaves such a node
        idle, so the next one would start there without ever waiting in the queue.
        """
        if run.settings.get("quarantine", "auto") == "never":
            return
        known = user_exclusions.read_exclusions(self._home, now_s)
        for node, record in self._history(run).nodes.items():
            until_s = max((s.until_s for s in record.strikes if s.signature == SIGNATURE), default=0.0)
            if until_s > now_s and node not in known and record.association is not None:
                try:
                    user_exclusions.write_exclusions(self._home, [node], until_s)
                except OSError as error:
                    self._tell("ledger.not-written", run=run.id, why=str(error))
                self._tell("node.excluded", node=node, why=record.association.sentence)

    def _reported(self, run: Run, now_s: float) -> list[NodeEntry]:
        """Entries from the node reports of the launch that is over.

        An inventory entry of a device is kept only if the ledger does not yet show that device in that place.
        """
        attempt = run.attempt
        if attempt is None or not attempt.launch.end.state or now_s - run.last_at_s > DAY_S:
            return []
        run_dir = os.path.join(self._home, "runs", run.id)
        left = node_reports.read_reports(run_dir, attempt.number, attempt.launch.number, attempt.reach)
        found = [
            entry
            for reports in left.values()
            for node, report in reports.items()
            for entry in from_runs.entries_of_report(
                run, attempt.number, attempt.launch.number, report, node=node, now_s=now_s
            )
        ]
        if not any(entry.what == "device" for entry in found):
            return found
        known = sorted(self._reader.entries(), key=lambda e: e.at_s)
        sits = {
            (node, canonical_device(e.device)): e.serial
            for e in known
            if e.device and e.serial
            for node in e.nodes
        }
        return [e for e in found if e.what != "device" or sits.get((e.nodes[0], e.device)) != e.serial]

    def entries(self) -> list[NodeEntry]:
        """The entries of the ledger now."""
        return self._reader.entries()

    def book(self, rules: QuarantineRules, domains: Callable[[], Domains]) -> NodeHistory:
        """The folded ledger. `domains` is called only if enough nodes failed for a switch to be blamed."""
        entries = self._reader.entries()
        below = domains() if may_be_common(entries, rules) else {}
        done = self._folded
        if done is None or done[0] is not entries or done[1:3] != (rules, below):
            done = self._folded = (entries, rules, below, fold_entries(entries, rules, below))
        return done[3]

    def common_cause(self, run: Run, diagnosis: Diagnosis, now_s: float) -> str:
        """Why the fault is blamed on something that several nodes share; "" if it may be the node's own."""
        attempt = run.attempt
        culprits = tuple(node for node in diagnosis.nodes if attempt is not None and node in attempt.reach)
        if not culprits:
            return ""
        fault, signature = diagnosis.fault.value, diagnosis.signature
        this = NodeEntry(now_s, "incident", culprits, id="now", run=run.id, signature=signature, fault=fault)
        rules = QuarantineRules.of(run.settings)
        recent = [entry for entry in self.entries() if abs(now_s - entry.at_s) <= rules.window_s]
        found = common_causes_of([*recent, this], rules, self._below)
        ours = (cause for cause in found if any(key == "now" for _, key in cause.failures))
        return next((cause.sentence for cause in ours), "")

    def quarantined(self, run: Run, now_s: float) -> tuple[str, ...]:
        """The nodes that the next attempt avoids if it can, worst first: bad by other runs, by people, or for the site.

        () if the setting says so, or if sbatch refused this run with excluded nodes.
        """
        refused = any(one.launch.end.state == "REFUSED" and one.excluded for one in run.attempts)
        if refused or run.settings.get("quarantine", "auto") == "never":
            return ()
        site = site_nodes.quarantined_nodes(str(run.settings.get("site-spool", "")), now_s)
        return tuple(dict.fromkeys((*self._history(run).quarantined(now_s), *site)))

    def suspects(self, run: Run) -> dict[str, str]:
        """The nodes that failures for no known cause follow over starts and runs, and the arithmetic of each."""
        if run.settings.get("quarantine", "auto") == "never":
            return {}
        return {node: found.sentence for node, found in self._history(run).suspects.items()}

    def excluded(self, run: Run, now_s: float) -> tuple[str, ...]:
        """The run's own exclusions, newest first, less the nodes that a person has released since."""
        left = (one for one in run.excluded if one.until_s > now_s)
        own = sorted(left, key=lambda one: (one.until_s, one.node), reverse=True)
        if not own:
            return ()
        known, for_s = self._history(run).nodes, QuarantineRules.of(run.settings).base_s
        released = {name: record.released_at_s for name, record in known.items()}
        return tuple(
            dict.fromkeys(one.node for one in own if released.get(one.node, 0.0) <= one.until_s - for_s)
        )

    def _history(self, run: Run) -> NodeHistory:
        return self.book(QuarantineRules.of(run.settings), self._below)

    def _below(self) -> Domains:
        """The nodes below each switch; {} if Slurm does not say so now."""
        try:
            return self._domains()
        except SlurmError:
            return {}
