"""The site's ledger on disk: one SQLite file on the service's local disk, with migrations and backups. (I/O)

A report or an event is in the file, synced, when its call returns; SQLite's journal (WAL) makes each call whole
or nothing, whatever cuts it. Both have keys, so that what a crash repeats counts once.

    $FTRUN_HOME/site/site.db              the ledger
    $FTRUN_HOME/site/backups/<date>.db    a whole copy of each day, the last ones
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from ftrun.supervisor.site.standing import Event, Report

BACKUPS_KEPT = 7
REPORT = "id, uid, project, node, job, fault, signature, confidence, seen_s, ran_s, digest, machine"
A_DAY_S = 86_400.0
BUSY_S = 10.0

MIGRATIONS = (
    """
    CREATE TABLE reports (
        uid INTEGER, id TEXT, project TEXT, node TEXT, job TEXT, fault TEXT, signature TEXT,
        confidence REAL, seen_s REAL, ran_s REAL, digest TEXT, taken_s REAL, PRIMARY KEY (uid, id)
    ) WITHOUT ROWID;
    CREATE INDEX reports_seen ON reports (seen_s);
    CREATE INDEX reports_taken ON reports (uid, taken_s);
    CREATE TABLE refusals (uid INTEGER, id TEXT, why TEXT, taken_s REAL, PRIMARY KEY (uid, id)) WITHOUT ROWID;
    CREATE INDEX refusals_taken ON refusals (uid, taken_s);
    CREATE TABLE events (
        id TEXT PRIMARY KEY, node TEXT, at_s REAL, what TEXT, detail TEXT
    ) WITHOUT ROWID;
    CREATE INDEX events_at ON events (at_s);
    """,
    "ALTER TABLE reports ADD COLUMN machine TEXT NOT NULL DEFAULT ''",
)
"""What makes each version of the file of the one before it; a new version is a new row."""


class DatabaseError(Exception):
    """The file cannot be used; one line: what is wrong and how to mend it."""


class SiteDatabase:
    """The open ledger in `folder`. Its methods raise DatabaseError."""

    def __init__(self, folder: str) -> None:
        self._backups = os.path.join(folder, "backups")
        self.path = os.path.join(folder, "site.db")
        self._version = 0
        os.makedirs(self._backups, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # SQLite gives its other files the mode of this one
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with self._told():
            self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            wrong = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if wrong != "ok":
                raise sqlite3.DatabaseError(wrong)
            self._migrate()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _migrate(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise DatabaseError(
                f"{self.path} was written by a newer ftrun: run that one, or move the file away to begin anew"
            )
        if 0 < version < len(MIGRATIONS):
            self._copy(os.path.join(self._backups, f"before-{version + 1}.db"))
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            mend = f"look at the disk; the last whole copies are in {self._backups}"
            raise DatabaseError(f"{self.path}: {error}; {mend}") from None

    # ------------------------------------------------------------------ reports

    def knows(self, uid: int, report_id: str) -> bool:
        """Whether this user's report of this id was taken or refused before."""
        asked = "SELECT 1 FROM {} WHERE uid = ? AND id = ?"
        return any(self._rows(asked.format(table), uid, report_id) for table in ("reports", "refusals"))

    def taken_since(self, uid: int, since_s: float) -> int:
        """How many reports of this user were taken or refused since then."""
        asked = "SELECT count(*) FROM {} WHERE uid = ? AND taken_s > ?"
        return sum(self._rows(asked.format(table), uid, since_s)[0][0] for table in ("reports", "refusals"))

    def nodes_blamed(self, uid: int, since_s: float) -> set[str]:
        """The nodes that this user's reports have blamed since then."""
        asked = "SELECT DISTINCT node FROM reports WHERE uid = ? AND taken_s > ?"
        return {row[0] for row in self._rows(asked, uid, since_s)}

    def add_report(self, report: Report, taken_s: float) -> None:
        """Keep a report."""
        self._do(
            f"INSERT OR IGNORE INTO reports ({REPORT}, taken_s) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
            (report.id, report.uid, report.project, report.node, report.job, report.fault, report.signature,
             report.confidence, report.seen_s, report.ran_s, report.digest, report.machine, taken_s),
        )  # fmt: skip

    def refuse(self, uid: int, report_id: str, why: str, taken_s: float) -> None:
        """Keep that a report was refused: it counts against its user, and is not looked at again."""
        self._do("INSERT OR IGNORE INTO refusals VALUES (?,?,?,?)", (uid, report_id, why, taken_s))

    def reports(self, since_s: float) -> list[Report]:
        """The reports of faults that were seen since then."""
        return [Report(*row) for row in self._rows(f"SELECT {REPORT} FROM reports WHERE seen_s > ?", since_s)]  # noqa: S608

    def refused(self, since_s: float) -> int:
        """How many reports were refused since then."""
        return int(self._rows("SELECT count(*) FROM refusals WHERE taken_s > ?", since_s)[0][0])

    # ------------------------------------------------------------------ events

    def add_events(self, *events: Event) -> None:
        """Keep these events, all or none; one of the same id takes the place of the one before."""
        rows = [(one.id, one.node, one.at_s, one.what, json.dumps(one.detail)) for one in events]
        self._do("INSERT OR REPLACE INTO events VALUES (?,?,?,?,?)", *rows)

    def events(self, since_s: float) -> list[Event]:
        """The events since then, oldest first; which machine bore which name, from the beginning."""
        found = self._rows(
            "SELECT id, node, at_s, what, detail FROM events WHERE at_s > ? OR what = 'machine' ORDER BY at_s, id",
            since_s,
        )
        return [Event(key, node, at_s, what, json.loads(told)) for key, node, at_s, what, told in found]

    def changed_by_others(self) -> bool:
        """Whether another process has written since the last call: a person released a node."""
        before, self._version = self._version, int(self._rows("PRAGMA data_version")[0][0])
        return before != self._version

    # ------------------------------------------------------------------ upkeep

    def tidy(self, now_s: float, keep_s: float) -> None:
        """Once a day: copy the whole file, and forget what is older than `keep_s`."""
        copy = os.path.join(self._backups, time.strftime("%Y-%m-%d.db", time.gmtime(now_s)))
        if os.path.exists(copy):
            return
        for table, column in (("reports", "seen_s"), ("refusals", "taken_s"), ("events", "at_s")):
            kept = " AND what != 'machine'" if table == "events" else ""
            self._do(f"DELETE FROM {table} WHERE {column} < ?{kept}", (now_s - keep_s,))  # noqa: S608
        self._copy(copy)
        days = sorted(
            name for name in os.listdir(self._backups) if name[:1].isdigit() and name.endswith(".db")
        )
        for name in days[:-BACKUPS_KEPT]:
            os.unlink(os.path.join(self._backups, name))

    def _copy(self, path: str) -> None:
        temporary = f"{path}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with self._told(), contextlib.closing(sqlite3.connect(temporary)) as target:
            self._db.backup(target)
        os.replace(temporary, path)

    def _rows(self, asked: str, *values: object) -> list[Any]:
        with self._told():
            return self._db.execute(asked, values).fetchall()

    def _do(self, statement: str, *rows: tuple[object, ...]) -> None:
        with self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
