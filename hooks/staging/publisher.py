"""A node's work on the shared file system: it copies its parts there and assembles sets. (I/O)

Any access to a shared file system may hang, so this runs in a thread of its own and reads everything anew in
each round. Parts are copied newest first, since a start resumes from the newest. A failed copy stays in memory
and is repeated after a growing pause.

The first node of a start, by name, is the coordinator: it assembles each set whose parts are complete. After
every five seconds without progress the next node may assemble it too, so a dead node delays no set.

A node that saves nothing looks like a node whose ranks are late. So it first reports that a part may still
come: then a set can be published if its format proves that it is complete; later, that it has nothing
(`EmptyParts`). The end of a start does not wait for nodes whose report stands still, nor for lost ones
(`PeerNodes`): the holder of a lost node's copies publishes them in that node's name, and is waited for.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.staging import copy, merge, partner_map, publish, records, sealing, status_report
from ftrun.hooks.staging.copy import Disk, read_text
from ftrun.hooks.staging.local import LocalPart, LocalState, StartPhases
from ftrun.hooks.staging.records import Publishing, Seal
from ftrun.hooks.staging.replace import Own

SILENT_S = 15.0  # the end of a start does not wait for a node whose report stands still for so long


class PeerNodes:
    """The other nodes, from the attempt's folder; `look` reads which are lost. All methods raise OSError."""

    def __init__(self, attempt_folder: str) -> None:
        self._folder = attempt_folder
        self._file = partner_map.RingFile(attempt_folder)
        self._ring = partner_map.Ring()
        self._reports: dict[str, tuple[str, float]] = {}

    def look(self) -> None:
        """Read the agent's latest ring."""
        self._ring = self._file.look()

    def is_moving(self, node: str, now_s: float) -> bool:
        """Whether a node is not lost and its report changed lately. `now_s`: monotonic."""
        if node in self._ring.lost:
            return False
        text = read_text(records.report_path(self._folder, node))
        known = self._reports.get(node)
        if known is None or known[0] != text:
            self._reports[node] = (text, now_s)
            return True
        return now_s - known[1] < SILENT_S

    def may_bring(self, node: str, to: Publishing, now_s: float) -> bool:
        """Whether a part may still come: from its node, or from the holder of a lost node's copies."""
        if node not in self._ring.lost:
            return self.is_moving(node, now_s)
        holder = self._ring.kept.get(node, "")
        if not holder or holder in self._ring.lost:
            return False
        return (node, to.token, to.name) in partner_map.read_copies(self._folder, holder).kept


# How long a node waits before it reports that it has nothing of a set.
FIRST_GRACE_S = 10.0
USUAL_GRACE_S = 2.0  # ... if it had nothing of earlier sets
AFTER_GRACE_S = 1.0  # ... after the end of its script

SetKey = tuple[str, str]  # of a set: its start and name


class EmptyParts:
    """The reports of one node on sets that it has nothing of. `wait_s`: how long ranks may be late."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._had: set[str] = set()  # starts
        self._had_not: set[str] = set()
        self._tentative: set[SetKey] = set()

    def note_part(self, token: str) -> None:
        """This node has a part of a set of this start."""
        self._had.add(token)

    def note_claim(self, key: SetKey, *, sure: bool) -> None:
        """This node has reported that it has nothing of a set; not `sure` if something may still come."""
        if sure:
            self._had_not.add(key[0])
            self._tentative.discard(key)
        else:
            self._tentative.add(key)

    def is_tentative(self, key: SetKey) -> bool:
        """Whether it has reported that something may still come."""
        return key in self._tentative

    def claim(
        self, key: SetKey, now_s: float, since_s: float, phase: str, seen: Mapping[SetKey, float]
    ) -> Optional[bool]:
        """What to report now: True, there is nothing; False, something may still come; None, no report.
        `since_s`: when the set was first seen on other nodes, or its start ended; `seen`: when each set was
        first seen.
        """
        token, waited_s = key[0], now_s - since_s
        if phase == sealing.LIVE:
            return self._live(key, waited_s, seen)
        if waited_s < AFTER_GRACE_S:
            return None
        # In a start that failed, ranks here may have been about to save.
        sure = phase == sealing.ENDED or (token in self._had_not and token not in self._had)
        return sure if sure or key not in self._tentative else None

    def _live(self, key: SetKey, waited_s: float, seen: Mapping[SetKey, float]) -> Optional[bool]:
        token = key[0]
        if token not in self._had and token in self._had_not:
            return True if waited_s >= USUAL_GRACE_S else None
        if waited_s >= self._wait_s:
            return True
        if token in self._had or waited_s < FIRST_GRACE_S:
            return None
        if any(other[0] == token and at_s > seen[key] for other, at_s in seen.items()):
            return True
        return None if key in self._tentative else False


AGAIN_S = (1.0, 5.0, 15.0, 60.0)
NODES_PER_S, PAUSE_S, NEAR_S = 256, 1.0, 0.25
AGREE_S = 3.0  # ranks that save together begin within this time
JOIN_S = 3.0
CHECK_S = 30.0


class PublisherConfig(NamedTuple):
    """Where and for whom to publish; `rate` in bytes per second (0: no limit). `wait_s`: how much later a
    node's ranks may save than others', if the format proves nothing.
    """

    attempt_folder: str
    launch: int
    job: str
    node: str
    to: str
    owner: bytes
    rate: int = 0
    wait_s: float = 120.0


class SetState:
    """What this node knows of one set. `pushed`: the generation of the part that it has copied ("": none).
    `seen_s`, `whole_s`: since when the set is pending, and since when all parts are there. `refused`: the
    records with which it was refused last; `is_open`: a part may come all the same. `is_wanted`: the part is
    to be copied once more. `checked_s`: when it was last seen to be published.
    """

    def __init__(self) -> None:
        self.pushed = ""
        self.seen_s: Optional[float] = None
        self.whole_s: Optional[float] = None
        self.refused: object = None
        self.is_open = self.is_wanted = False
        self.checked_s = 0.0

    @property
    def is_refused(self) -> bool:
        """Whether it was refused, and nothing has changed since."""
        return self.refused is not None


class Publisher:
    """Publishes what `local` has; `run_round` is called about once a second."""

    def __init__(
        self, config: PublisherConfig, local: LocalState, judge: publish.Judge, disk: Optional[Disk] = None
    ) -> None:
        self.config, self.local, self._judge = config, local, judge
        self._disk = disk or Disk()
        self.starts = StartPhases(f"{config.launch}.1", {})
        self.why = ""
        self.flushed_bytes, self.flush_s = 0, 0.0
        self.copying = ""
        self._expected: dict[str, list[str]] = {}
        self._over: dict[str, float] = {}  # token -> when its end was first seen
        self._sets: dict[SetKey, SetState] = defaultdict(SetState)
        self._empty = EmptyParts(config.wait_s)
        self._failures, self._again_s = 0, 0.0
        self._run = Own.of(config.owner, "").run
        self._asked: dict[merge.ConsensusRequest, float] = {}
        self.refused: dict[str, str] = {}  # set -> why it was refused last
        self._peers = PeerNodes(config.attempt_folder)

    def read_starts(self, now_s: float) -> None:
        """Read which start is the present one, and which are over. Raises OSError."""
        token = status_report.read_link(f"{self.config.attempt_folder}/current")
        token = token if token_of(token) else self.starts.token
        phases = dict(self.starts.phases)
        for own in {token, self.starts.token} - set(phases):
            text = read_text(f"{self.config.attempt_folder}/stage/over.{own}").strip()
            if text:
                phases[own] = sealing.ENDED if text == "code=0" else sealing.BROKEN
                self._over[own] = now_s
        self.starts = StartPhases(token, phases)

    def end(self, now_s: float) -> None:
        """The present start is being ended by a signal; no file records that."""
        self._over.setdefault(self.starts.token, now_s)
        self.starts = StartPhases(
            self.starts.token, {self.starts.token: sealing.BROKEN, **self.starts.phases}
        )

    def run_round(self, now_s: float) -> bool:
        """One round at the time `now_s` (monotonic). True if something was done."""
        if now_s < self._again_s:
            return False
        done = False
        try:
            self._withdraw()
            for part in reversed(self.local.sealed()):
                done = self._bring_part(part, now_s) or done
            for to in publish.pending(self.config.to, self.config.job):
                done = self._advance_set(to, now_s) or done
        except OSError as error:
            self._again_s = now_s + AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
            self._failures += 1
            self.why = status_report.error_text(error, self.config.to)
            return False
        self._failures, self.why = 0, ""
        return done

    def _bring_part(self, part: LocalPart, now_s: float) -> bool:
        """Copy a sealed part to the shared file system, if that is still to be done. True if it was."""
        seal, key = part.seal, (part.token, part.name)
        state = self._sets[key]
        if seal is None or self._is_settled(part, seal, now_s):
            return False
        if len(os.fsencode(part.name)) > status_report.NAME_MAX_BYTES:
            part.state, part.why = publish.REFUSED, "its name is too long for what is added to it"
            return False
        to = self._to(part)
        self._empty.note_part(part.token)
        own = merge.generation(seal)
        try:
            if not state.is_wanted and self._is_out(part, seal, now_s):
                return True
            if state.pushed == own:
                if not os.path.isdir(to.folder):
                    part.state, part.why = publish.REFUSED, status_report.GONE
                    state.refused = None
                    return False
                if publish.has_part(to, self.config.node):
                    return False
            self._push(part, seal, to)
        except copy.Changed as error:
            part.why = str(error)
            return False
        except FileNotFoundError:
            if key in self.local.parts and part.seal is seal:
                raise
            return False  # it was dropped for room, or is saved again
        finally:
            self.copying = ""
        state.pushed, state.is_wanted = own, False
        return True

    def _push(self, part: LocalPart, seal: Seal, to: Publishing) -> None:
        there = publish.part_of(to, self.config.node)
        if there is not None and there.files and merge.generation(there) == merge.generation(seal):
            self._note(part, there)
            return
        self.copying = part.name
        held, owner = self.local.home.held(part.token, part.name), self.config.owner
        began_s = time.monotonic()
        try:
            whole = publish.copy_and_publish(self._disk, to, seal, held, owner=owner, pace=self._pace())
        finally:
            self.flush_s += time.monotonic() - began_s
        self._note(part, whole)

    def _is_settled(self, part: LocalPart, seal: Seal, now_s: float) -> bool:
        """Whether nothing is to be done; a name that was saved again is checked periodically."""
        state = self._sets[part.token, part.name]
        if part.state == publish.REFUSED and not state.is_refused:
            return True
        if not part.is_published or state.is_wanted:
            return False
        return seal.save == 1 or now_s - state.checked_s < CHECK_S

    def _is_out(self, part: LocalPart, seal: Seal, now_s: float) -> bool:
        """Whether this very save is published."""
        if not seal.has_sums:
            return False  # they are known once the part is copied
        found = publish.is_published(self.config.to, seal, self.config.owner)
        part.is_published = bool(found)
        if found:
            part.why = status_report.alias_note(
                part.name, publish.published_path(self.config.to, part.name, self._run)
            )
        self._sets[part.token, part.name].checked_s = now_s
        return part.is_published

    def _to(self, part: LocalPart) -> Publishing:
        return Publishing(self.config.to, part.name, self.config.job, part.token)

    def _withdraw(self) -> None:
        """Withdraw the records of parts that are no longer sealed."""
        for key, state in self._sets.items():
            part = self.local.parts.get(key)
            if state.pushed and part is not None and part.seal is None:
                self._disk.remove(self._to(part).part(self.config.node))
                state.pushed = ""

    def _note(self, part: LocalPart, seal: Seal) -> None:
        if part.seal is not None and merge.generation(part.seal) == merge.generation(seal):
            files = {
                path: one._replace(sha256=seal.files[path].sha256) for path, one in part.seal.files.items()
            }
            self.local.note_sums(part, part.seal._replace(files=files))

    def _pace(self) -> copy.Pace:
        """A function that slows a copy down to `rate` and counts its bytes."""
        began_s, done = time.monotonic(), 0

        def pace(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            self.flushed_bytes += size_bytes
            if self.config.rate:
                time.sleep(max(0.0, began_s + done / self.config.rate - time.monotonic()))

        return pace

    def pause_s(self) -> float:
        """The pause between two rounds: short while a part is unpublished, longer with many nodes."""
        near = {one.state for one in self.local.sealed() if not one.is_published} - {publish.REFUSED}
        return max(NEAR_S if near else PAUSE_S, len(self.expected(self.starts.token)) / NODES_PER_S)

    def expected(self, token: str) -> list[str]:
        """The nodes of a start; none if its record cannot be read."""
        if token not in self._expected:
            known = status_report.nodes_of_start(f"{self.config.attempt_folder}/begun.{token}")
            if not known:
                return []
            self._expected[token] = known
        return self._expected[token]

    def _advance_set(self, to: Publishing, now_s: float) -> bool:
        """Do this node's share of publishing a pending set."""
        key = (to.token, to.name)
        expected = self.expected(to.token)
        if self.config.node not in expected:
            return False
        state = self._sets[key]
        state.seen_s = now_s if state.seen_s is None else state.seen_s
        if not publish.has_part(to, self.config.node) or self._empty.is_tentative(key):
            done = self._report_empty(to, now_s)
            if done or not self._empty.is_tentative(key):
                return done
        if self._is_hopeless(to):
            self._disk.clear(to.folder)
            return True
        said = self._confirm_save(to, now_s)
        is_alone = self._is_alone(key)
        takeover_s = 0.0 if is_alone else merge.takeover_s(expected, self.config.node)
        if takeover_s is None:
            return said
        if len(publish.nodes_with_parts(to)) < len(expected) and not is_alone:
            state.whole_s = None
            return said
        names = status_report.record_times(to.parts)
        state.whole_s = now_s if state.whole_s is None else state.whole_s
        if state.refused == names or now_s - state.whole_s < takeover_s:
            return said
        return self._finish(to, expected, names) or said

    def _finish(self, to: Publishing, expected: list[str], names: object) -> bool:
        key = (to.token, to.name)
        part, state = self.local.parts.get(key), self._sets[key]
        outcome = publish.finish(
            self._disk, to, expected, self.config.node, self._judge, owner=self.config.owner
        )
        if outcome.is_unsure and self.starts.phase(to.token) == sealing.BROKEN:
            outcome = publish.Outcome(publish.REFUSED, status_report.UNSURE)
        if outcome.for_good:
            self._disk.clear(to.folder)
        elif outcome.state == publish.REFUSED:
            state.refused = names
        if outcome.state == publish.REFUSED and self._is_open(to):
            if part is not None:
                part.why = status_report.MAY_COME
            return False
        state.is_open = False
        if outcome.state == publish.REFUSED:
            self.refused[to.name] = outcome.why
            if part is not None:
                part.state, part.why = publish.REFUSED, outcome.why
            return False
        if state.is_refused and part is not None:
            part.state, part.why = sealing.SEAL, ""
        state.refused = None
        if outcome.state == publish.PUBLISHED:
            self.refused.pop(to.name, None)
        return outcome.state == publish.PUBLISHED

    def _is_open(self, to: Publishing) -> bool:
        """Whether an unproven set may still become complete: a node reported that a part may come."""
        if self.starts.phase(to.token) == sealing.BROKEN:
            return False
        parts = publish.parts_of(to).values()
        if all(part.proven for part in parts if part.files) and not all(part.proven for part in parts):
            self._sets[to.token, to.name].is_open = True
            return True
        return False

    def _confirm_save(self, to: Publishing, now_s: float) -> bool:
        """Confirm on request that this node's part is of the same save; never in a start that failed."""
        request = merge.consensus_request(to, self.config.node)
        part = self.local.parts.get((to.token, to.name))
        phase = self.starts.phase(to.token)
        if request is None or part is None or part.seal is None or phase == sealing.BROKEN:
            return False
        since_s = self._asked.setdefault(request, now_s)
        if phase == sealing.LIVE and now_s - since_s < (AGREE_S if request.is_even else sealing.LATE_S):
            return False
        if merge.generation(part.seal) != request.own or not self.local.is_still(part):
            return False
        merge.confirm(self._disk, to, self.config.node, request.word)
        part.save = max(part.save, request.save)
        return True

    def _is_hopeless(self, to: Publishing) -> bool:
        """Whether a set can never be published: its script has ended, or a later start has published."""
        if to.token in self._over and self.starts.phase(to.token) == sealing.ENDED:
            state = self._sets[to.token, to.name]
            return state.is_refused and not state.is_open
        own = token_of(to.token) or (0, 0)
        return any(
            part.is_published and (token_of(part.token) or (0, 0)) > own for part in self.local.sealed()
        )

    def _is_alone(self, key: tuple[str, str]) -> bool:
        """Whether a set needs no other node: it is one file, or one rank saved it for all."""
        part = self.local.parts.get(key)
        return part is not None and part.seal is not None and (part.seal.is_file or part.seal.is_alone)

    def _report_empty(self, to: Publishing, now_s: float) -> bool:
        """Report that this node has nothing of a set, once that is likely enough."""
        key = (to.token, to.name)
        part = self.local.parts.get(key)
        if part is not None and (part.files or part.state == sealing.GIVEN_UP):
            self._want_again(part, to, now_s)  # it is sealed, or will be, or never
            return False
        seen = {one: state.seen_s for one, state in self._sets.items() if state.seen_s is not None}
        since_s = max(seen[key], self._over.get(to.token, 0.0))
        sure = self._empty.claim(key, now_s, since_s, self.starts.phase(to.token), seen)
        if sure is None:
            return False
        publish.report_empty(self._disk, to, self.config.node, self.config.owner, proven=sure)
        self._empty.note_claim(key, sure=sure)
        return True

    def _want_again(self, part: LocalPart, to: Publishing, now_s: float) -> None:
        """Another node saves a set again, or late, after this node's part was published. The part is copied
        once more if it is still the same after a long time, or at the end.
        """
        over_s = self._over.get(to.token)
        is_over = over_s is not None and self.starts.phase(to.token) == sealing.ENDED
        state = self._sets[to.token, to.name]
        since_s = max(state.seen_s or 0.0, over_s or 0.0)
        if part.is_published and now_s - since_s >= (JOIN_S if is_over else self.config.wait_s):
            state.is_wanted = True

    def is_flushed(self, token: str, now_s: float) -> bool:
        """Whether nothing of an ended start is left to publish, here and on all nodes that still report."""
        if not self.is_done(token, now_s):
            return False
        said = set(os.listdir(f"{self.config.attempt_folder}/stage"))
        others = (node for node in self.expected(token) if node != self.config.node)
        return not any(
            f"done.{token}.{node}" not in said and self._peers.is_moving(node, now_s) for node in others
        )

    def is_done(self, token: str, now_s: float) -> bool:
        """Whether all parts of an ended start are copied, and no pending set may still become complete."""
        over_s = self._over.get(token)
        if over_s is None or over_s >= self.local.looked_s:
            return False  # it runs, or saved something since the last look
        self._peers.look()
        if any(part.token == token and self._is_waiting(part) for part in list(self.local.parts.values())):
            return False
        for to in publish.pending(self.config.to, self.config.job):
            if to.token != token:
                continue
            state = self._sets[to.token, to.name]
            if state.is_refused:
                if self._is_hopeless(to) or state.is_open:
                    return False
                continue
            heard = publish.nodes_with_parts(to)
            missing = [node for node in self.expected(token) if node not in heard]
            if not missing or any(self._peers.may_bring(node, to, now_s) for node in missing):
                return False
        return True

    def _is_waiting(self, part: LocalPart) -> bool:
        if part.seal is None:
            return part.state == sealing.WAIT and bool(part.files)
        state = self._sets[part.token, part.name]
        return not (part.is_published or part.state == publish.REFUSED or state.is_refused or state.pushed)

    def report(self) -> dict[str, Any]:
        """The report on this node's staged checkpoints."""
        rows = status_report.rows(list(self.local.parts.values()), dict(self.refused))
        waiting = [row for row in rows if row["state"] in ("sealed", "writing")]
        return {
            "version": 1, "node": self.config.node, "launch": self.config.launch, "job": self.config.job,
            "pid": os.getpid(), "start": self.starts.token, "sets": rows, "copying": self.copying,
            "backlog_bytes": sum(row["size_bytes"] for row in waiting), "dropped": self.local.dropped[-4:],
            "flushed_bytes": self.flushed_bytes, "flush_s": round(self.flush_s, 3), "why": self.why,
        }  # fmt: skip
