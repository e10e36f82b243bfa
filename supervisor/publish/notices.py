"""Notices: tells people what happens to runs, by the addresses in the file of the setting `notify`. (I/O)

What a record gives is noted in the outbox at once; each tick begins what the schedule lets leave, at most one delivery
to each address at a time, each in a child of its own.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Sequence

from ftrun.hooks.runtime.formats import counted
from ftrun.supervisor.config.home import host_name
from ftrun.supervisor.config.sources import Config
from ftrun.supervisor.model.errors import UnreadableRun, UserError
from ftrun.supervisor.model.run import Record
from ftrun.supervisor.notices.addresses import Address, read_addresses
from ftrun.supervisor.notices.delivery import Delivery
from ftrun.supervisor.notices.message import letter_of
from ftrun.supervisor.notices.notice import Notice, notices_of, stalled_notice
from ftrun.supervisor.notices.outbox import Outbox
from ftrun.supervisor.notices.schedule import Rules, next_message
from ftrun.supervisor.publish.publisher import FollowedRun, Kept, Publisher
from ftrun.supervisor.reports.statistics import FaultCost, fault_costs
from ftrun.supervisor.reports.time_ledger import ledger_of
from ftrun.supervisor.store import journal, lease

STALLED_EVERY_S = 60.0
HEARTBEAT_EVERY_S = 300.0
LAST_WAIT_S = 10.0
RECENT_S = 600.0


def sender() -> str:
    """Who tells, such as ann@login1."""
    try:
        return f"{getpass.getuser()}@{host_name()}"
    except (OSError, KeyError):
        return host_name()


class Notices(Publisher):
    """The notices of one home."""

    name = "notices"

    def __init__(self, home: str, path: str, rules: Rules, stalled_after_s: float) -> None:
        self._home, self._path, self._rules, self._stalled_after_s = home, path, rules, stalled_after_s
        self._read_outbox: Outbox | None = None
        self._by, self._began_s = sender(), time.time()
        self._addresses: list[Address] = []
        self._file_stamp: object = None
        self._file_problem = ""
        self._runs: dict[str, FollowedRun] = {}
        self._unnoted: list[Notice] = []  # what a full disk kept out of the outbox
        self._under_way: dict[str, Delivery] = {}
        self._odd = ""  # the last record that no notice could be made of
        self._looked_s = self._beat_s = float("-inf")  # monotonic
        self._beat_counter = self._beat_problem = ""

    @classmethod
    def of(cls, home: str, config: Config) -> Notices:
        """As the settings say. Raises UserError."""
        return cls(
            home, config.path("notify"), Rules.of(config.values), config.number("notify-stalled-after")
        )

    @property
    def _outbox(self) -> Outbox:
        """Read when first asked for: before that another process may publish for this home."""
        if self._read_outbox is None:
            self._read_outbox = Outbox(os.path.join(self._home, "publish", self.name))
            self._read_outbox.give_up_deliveries()
        return self._read_outbox

    def on_history(self, run: FollowedRun, records: Sequence[Record]) -> None:
        """What happened just before this process began is told, unless it was: the first run of a home may fail
        before anybody looks.
        """
        self.on_events(run, [one for one in records if one["at"] > self._began_s - RECENT_S])

    def on_events(self, run: FollowedRun, events: Sequence[Record]) -> None:
        """Note what is to be told of them."""
        self._runs[run.run.id] = run
        self._read_file()
        known: list[Sequence[FaultCost] | None] = []

        def costs() -> Sequence[FaultCost] | None:
            if not known:
                known.append(_costs(run))
            return known[0]

        for record in events:
            try:
                found = list(notices_of(run.run, record, costs))
            except (LookupError, TypeError, ValueError) as error:
                self._odd = (
                    f"a record of {run.run.id} ({record['kind']}) cannot be told: {type(error).__name__}"
                )
                continue
            for one in found:
                self._accept(one)

    def on_left(self, run: FollowedRun) -> Kept:
        """It does not stall any more."""
        self._runs.pop(run.run.id, None)
        return {}

    def tick(self, now_s: float) -> None:
        """Begin what may leave, and see how what left fares. Raises OSError where the outbox cannot be written."""
        self._read_file()
        unnoted, self._unnoted = self._unnoted, []
        for one in unnoted:
            self._accept(one)
        if time.monotonic() - self._looked_s >= STALLED_EVERY_S:
            self._looked_s = time.monotonic()
            for followed in self._runs.values():
                stalled = stalled_notice(followed.run, now_s, self._stalled_after_s)
                if stalled is not None:
                    self._accept(stalled)
        for address in self._addresses:
            if address.way == "heartbeat":
                self._beat(address)
            else:
                self._deliver(address, now_s)

    def close(self, now_s: float) -> None:
        """Let what is under way arrive, and what is due."""
        self.tick(now_s)
        until_s = time.monotonic() + LAST_WAIT_S
        while self._under_way and time.monotonic() < until_s:
            time.sleep(0.05)
            self._look(time.time())

    def problem(self) -> str:
        """What does not arrive."""
        found = [self._file_problem, self._beat_problem, self._odd]
        if self._unnoted:
            found.append(f"{len(self._unnoted)} notices cannot be noted below {self._home}/publish")
        found += problems(self._outbox, self._addresses)
        return "; ".join(one for one in found if one)

    # ------------------------------------------------------------------ one address

    def _accept(self, one: Notice) -> None:
        try:
            self._outbox.accept(one, time.time())
        except OSError:
            self._unnoted.append(one)

    def _read_file(self) -> None:
        """The addresses, again where the file was changed; those of before where it is wrong now."""
        try:
            fact = os.stat(os.path.expanduser(self._path))
            stamp: object = (fact.st_mtime_ns, fact.st_ctime_ns, fact.st_ino, fact.st_size)
        except OSError:
            stamp = "unseen"
        if stamp == self._file_stamp:
            return
        found: list[Address] = []
        why = ""
        try:
            found = read_addresses(self._path)
        except UserError as error:
            why = str(error)
        try:
            self._outbox.add_receivers((one.id for one in found if one.way != "heartbeat"), time.time())
        except OSError as error:
            self._file_problem = f"{self._home}/publish cannot be written: {error.strerror}"
            return
        self._addresses, self._file_problem, self._file_stamp = found, why, stamp

    def _deliver(self, address: Address, now_s: float) -> None:
        self._look(now_s)
        inbox = self._outbox.inboxes[address.id]
        if address.id in self._under_way or inbox.is_pausing(now_s) or not inbox.waiting:
            return
        offset_s = time.localtime(now_s).tm_gmtoff
        message = next_message(list(inbox.waiting.values()), inbox.told, self._rules, now_s, offset_s)
        if isinstance(message, str):
            return
        letter = letter_of(message, self._by)
        self._outbox.begin(address.id, message, now_s)
        try:
            self._under_way[address.id] = Delivery(address, letter)
        except OSError as error:
            self._outbox.end(address.id, f"no process can be started: {error.strerror}", now_s)

    def _look(self, now_s: float) -> None:
        for one, delivery in list(self._under_way.items()):
            why = delivery.look()
            if why is not None:
                del self._under_way[one]
                if one.startswith("heartbeat"):
                    self._beat_problem = f"{one}: {why}" if why else ""
                else:
                    self._outbox.end(one, why, now_s)

    def _beat(self, address: Address) -> None:
        """Ask the heartbeat's URL, while the supervisor's own counter goes on."""
        key = f"heartbeat {address.label}"
        self._look(time.time())
        if time.monotonic() - self._beat_s < HEARTBEAT_EVERY_S or key in self._under_way:
            return
        counter = lease.read_holder(self._home).counter
        if counter == self._beat_counter:
            return  # it stands still: that is what the switch is for
        self._beat_s, self._beat_counter = time.monotonic(), counter
        self._under_way[key] = Delivery(address, None)


def _costs(run: FollowedRun) -> Sequence[FaultCost] | None:
    """What its faults cost; None where its journal cannot be read whole."""
    try:
        return fault_costs(run.run, ledger_of(run.run, journal.read_run(run.dir), run.run.last_at_s))
    except (UnreadableRun, OSError, LookupError, TypeError, ValueError):
        return None


def problems(outbox: Outbox, addresses: Sequence[Address]) -> list[str]:
    """What does not arrive at these addresses, one line each."""
    found = []
    for one in addresses:
        inbox = outbox.inboxes.get(one.id)
        if inbox is None:
            continue
        if inbox.failures > 1:
            waiting = len(inbox.waiting) + len(inbox.under_way)
            found.append(
                f"{one.label}: {inbox.why}; {counted(waiting, 'notice')} waiting, tried {counted(inbox.failures, 'time')}"
            )
        if inbox.unknown:
            found.append(
                f"{one.label}: {len(inbox.unknown)} messages may not have arrived: ftrun ended while they left"
            )
    return found
