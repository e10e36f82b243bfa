"""Questions to accounting for all runs together, asked in the background, and their answers. (I/O)"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftrun.slurm.client.errors import RefusedForGood, SlurmError
from ftrun.slurm.commands.accounting import Accounting, AccountingRow
from ftrun.supervisor.model.job_rows import base_job_id

GIVE_UP_S = 45.0  # no run waits longer for an answer
AGAIN_AFTER_S = 15.0  # between two queries
NONE_HERE_S = 3600.0  # how long a cluster without accounting is not asked again


class AccountingCache:
    """Shared by all runs of one supervisor. `accounts` None = there is no accounting to ask."""

    def __init__(self, mono_s: Callable[[], float], tell: Callable[..., None]) -> None:
        self.accounts: Accounting | None = None
        self._mono_s = mono_s
        self._tell = tell
        self._wanted: dict[str, float] = {}  # job -> since when an answer is waited for
        self._known: dict[str, tuple[AccountingRow, ...]] = {}
        self._busy = False
        self._asked_s = float("-inf")
        self._none_until_s = float("-inf")
        self._silent = False

    def answer(self, job: str) -> tuple[AccountingRow, ...] | None:
        """All rows with this job id, of any user; None until the answer arrives. The first call asks."""
        now = self._mono_s()
        if job in self._known:
            return self._known[job]
        if self.accounts is None or now < self._none_until_s:
            return ()
        if now - self._wanted.setdefault(job, now) < GIVE_UP_S:
            return None
        self._gave_up()
        self._known[job] = ()  # accounting is not asked about it again
        return ()

    def known(self, job: str) -> tuple[AccountingRow, ...]:
        """The rows from an earlier answer; never asks."""
        return self._known.get(job, ())

    def forget(self, job: str) -> None:
        """Drop what is known of a job that Slurm shows (again)."""
        self._known.pop(job, None)
        self._wanted.pop(job, None)

    def look(self, beside: Callable[[Callable[[], None]], None]) -> None:
        """Ask for all pending jobs in one query, unless a query is under way."""
        now, accounts = self._mono_s(), self.accounts
        missing = sorted(job for job in self._wanted if job not in self._known)
        if not missing or self._busy or accounts is None or now < self._none_until_s:
            return
        if now - self._asked_s < AGAIN_AFTER_S:
            return
        self._busy, self._asked_s = True, now
        beside(lambda: self._ask(accounts, missing))

    def _ask(self, accounts: Accounting, jobs: Sequence[str]) -> None:
        try:
            found = accounts.rows(jobs)
        except RefusedForGood:
            self._none_until_s = self._mono_s() + NONE_HERE_S
        except SlurmError as error:
            self._gave_up(error.message)
        else:
            by_job: dict[str, list[AccountingRow]] = {job: [] for job in jobs}
            for one in found:
                by_job.setdefault(base_job_id(one.job_id), []).append(one)
            self._known |= {job: tuple(rows) for job, rows in by_job.items() if job in self._wanted}
            self._silent = False
        finally:
            self._busy = False

    def _gave_up(self, why: str = "no answer") -> None:
        if not self._silent:
            self._silent = True
            self._tell("accounting.unseen", why=why)
