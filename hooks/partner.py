"""`ftrun-hook partner`: keeps a copy of what this node has staged in the memory of another node. (I/O)

How it thinks. It is a process of its own beside the keeper: a partner that is dead, or a network that stands still, holds nobody else. Once a second it looks what
is sealed here, and what `ring.json` says: who keeps our copy, and who is lost. The newest sealed part goes first, since a start resumes from it. What the
partner cannot take, or what never arrives, costs a line in the report; it is tried again, ever more seldom.

It also looks after the copies that lie here. Where their node is lost it publishes them in that node's name, as the node would have done. They go when their node gives its
copies to somebody else, and those of a lost node when a checkpoint of a later start is published.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from typing import NamedTuple, Optional

from ftrun.hooks import at_hand, copying, publish
from ftrun.hooks.at_hand import Part
from ftrun.hooks.checkpoints.manifest import MARKER
from ftrun.hooks.disk import Disk
from ftrun.hooks.errors import UsageError
from ftrun.hooks.receive import remove
from ftrun.hooks.restore import summed
from ftrun.hooks.ring import Copies, RingFile, put_copies
from ftrun.hooks.staged import Home, Publishing
from ftrun.hooks.tokens import token_of
from ftrun.hooks.transfer import Rates, Sent, Target, send

__all__ = ["Partner", "Place", "main"]

PERIOD_S = 1.0
AGAIN_S = (2.0, 5.0, 15.0, 60.0)  # after so many failures in a row


class Place(NamedTuple):
    """Where this is: the job's folder on its nodes, the attempt's folder, this node, the Slurm job whose sets these are, and where they are published to."""

    base: str
    attempt_folder: str
    node: str
    job: str
    to: str
    owner: bytes = b"{}"


class Partner:
    """The copies of one node; `tend` is called about once a second."""

    def __init__(self, place: Place, rates: Optional[Rates] = None) -> None:
        self.place, self.home = place, Home(place.base)
        self.rates = Rates() if rates is None else rates
        self.told = Copies()
        self._file = RingFile(place.attempt_folder)
        self._ring = self._file.ring
        self._given: dict[tuple[str, str, str], float] = {}  # (partner, token, set) -> when it was sealed
        self._sums: dict[str, Part] = {}
        self._published: set[tuple[str, str, str]] = set()
        self._out: set[str] = set()
        self._failures, self._again_s, self._reported = 0, 0.0, False

    def tend(self, now_s: float) -> bool:
        """One round at the time `now_s` (monotonic). True where a part was copied or published. Raises OSError (the attempt's folder)."""
        self._ring = self._file.look()
        done = self._publish_lost()
        self._clear()
        partner = self._ring.to.get(self.place.node, "")
        if partner and now_s >= self._again_s:
            part = self._next(partner)
            if part is not None:
                done = self._give(part, partner) or done
        self._report(partner)
        return done

    # ------------------------------------------------------------------ giving

    def _worth(self) -> list[Part]:
        """The parts that a copy is worth something of, newest first: the newest, and what is not published yet. Others are on disk, and older."""
        own = sorted(at_hand.own_parts(self.home), key=_newest, reverse=True)
        return [one for at, one in enumerate(own) if one.seal.files and (not at or not self._is_out(one))]

    def _is_out(self, part: Part) -> bool:
        """Its set is published."""
        if part.place not in self._out and os.path.exists(f"{self.place.to}/{part.seal.name}/{MARKER}"):
            self._out.add(part.place)
        return part.place in self._out

    def _next(self, partner: str) -> Optional[Part]:
        """The newest part that the partner does not have."""
        missing = (
            one for one in self._worth() if self._given.get((partner, *_key(one))) != one.seal.sealed_s
        )
        return next(missing, None)

    def _give(self, part: Part, partner: str) -> bool:
        given = [_key(one) for one in at_hand.own_parts(self.home) if (partner, *_key(one)) in self._given]
        own = list(
            dict.fromkeys((*map(_key, self._worth()), *given[:1]))
        )  # the last one until this one is whole
        ring = self._ring
        target = Target(
            partner,
            ring.jobs.get(partner, self.place.job),
            self.place.base,
            ring.limit,
            own,
            ring.ssh_config,
        )
        try:
            sent = send(self._summed(part), target, self.rates)
        except (OSError, copying.Changed) as error:
            sent = Sent(False, str(error))
        if not sent.kept:
            self._again_s = time.monotonic() + AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
            self._failures += 1
            self.told = self.told._replace(why=sent.why)
            return False
        self._failures = 0
        self._given = {one: at_s for one, at_s in self._given.items() if one[0] == partner and one[1:] in own}
        now = (partner, *_key(part))
        self._given[now] = part.seal.sealed_s
        self.told = self.told._replace(
            way=sent.way,
            bytes_per_s=round(self.rates.known.get(sent.way, 0.0)),
            linked_bytes=self.told.linked_bytes + sent.linked_bytes,
            why="",
        )
        return True

    def _summed(self, part: Part) -> Part:
        """The part with all sums, which are made once. Raises OSError, copying.Changed."""
        known = self._sums.get(part.place)
        if known is None or known.seal.sealed_s != part.seal.sealed_s or at_hand.changed(known):
            self._sums = {part.place: summed(part)}
        return self._sums[part.place]

    # ------------------------------------------------------------------ keeping

    def _kept(self) -> list[Part]:
        return [part for part in at_hand.parts(self.home) if not part.own]

    def _publish_lost(self) -> bool:
        """Bring the parts of lost nodes to the shared file system in their names."""
        done = False
        for part in self._kept() if self._ring.lost else ():
            seal = part.seal
            key = (seal.node, seal.token, seal.name)
            if seal.node not in self._ring.lost or key in self._published or at_hand.changed(part):
                continue
            to = Publishing(self.place.to, seal.name, self.place.job, seal.token)
            try:
                if not publish.is_published(to.to, seal, self.place.owner) and not publish.has_part(
                    to, seal.node
                ):
                    publish.push(Disk(), to, seal, part.place, owner=self.place.owner, pace=_no_pace)
            except (OSError, copying.Changed) as error:
                self.told = self.told._replace(why=f"for {seal.node}: {error}"[:200])
                continue
            self._published.add(key)
            done = True
        return done

    def _clear(self) -> None:
        """Copies, and views of earlier starts, that nobody will ask for."""
        ring = self._ring
        newer = None
        for part in self._kept():
            node = part.seal.node
            if node in ring.to:
                if ring.to[node] == self.place.node or token_of(part.seal.token) == token_of(ring.token):
                    continue
            else:
                newer = self._is_newer_published() if newer is None else newer
                if not newer or token_of(part.seal.token) == token_of(ring.token):
                    continue
            remove(f"{part.place}.json")
            remove(part.place)
        # Not those of a start to come, which is not in the ring yet.
        now = token_of(ring.token) or (0, 0)
        self._make_room()
        old = [name for name in at_hand.listed(self.home.views) if (token_of(name) or (0, 0)) < now]
        if old and (self._is_newer_published() if newer is None else newer):
            for name in old:
                remove(f"{self.home.views}/{name}")

    def _make_room(self) -> None:
        """What this node stages itself goes first: where it holds too much, older copies go, each node's newest stays."""
        kept = sorted(self._kept(), key=_newest, reverse=True)
        newest = {part.seal.node: part.place for part in reversed(kept)}
        spare = [part for part in kept if newest[part.seal.node] != part.place]
        while spare and not at_hand.room_bytes(self.home, self._ring.limit):
            part = spare.pop()
            remove(f"{part.place}.json")
            remove(part.place)

    def _is_newer_published(self) -> bool:
        """A checkpoint of the present start is on disk: nobody resumes from an older one's memory."""
        own = (part.seal for part in at_hand.own_parts(self.home) if part.seal.token == self._ring.token)
        return any(os.path.exists(f"{self.place.to}/{seal.name}/{MARKER}") for seal in own)

    # ------------------------------------------------------------------ telling

    def _report(self, partner: str) -> None:
        given = sorted((token, name) for of, token, name in self._given if of == partner)
        kept = sorted((part.seal.node, part.seal.token, part.seal.name) for part in self._kept())
        told = self.told._replace(partner=partner, given=given, kept=kept)
        if told != self.told or (partner and not self._reported):
            put_copies(self.place.attempt_folder, self.place.node, told)
            self._reported = True
        self.told = told


def _key(part: Part) -> tuple[str, str]:
    return part.seal.token, part.seal.name


def _newest(part: Part) -> tuple[tuple[int, int], float, str]:
    return token_of(part.seal.token) or (0, 0), part.seal.sealed_s, part.seal.name


def _no_pace(_size_bytes: int) -> None:
    """Memory is as fast as it is."""


def main(arguments: list[str]) -> int:
    """Keep the copies until whoever started us is gone. Always 0."""
    parser = argparse.ArgumentParser(
        prog="ftrun-hook partner",
        description="Keep a copy of staged checkpoints in the memory of another node.",
    )
    parser.add_argument("--base", required=True, help="the folder of the job on its nodes")
    parser.add_argument("--attempt-folder", required=True, help="the folder of the present attempt")
    parser.add_argument("--job", required=True, help="the Slurm job whose checkpoints these are")
    parser.add_argument("--to", required=True, help="the folder that they are published to")
    parser.add_argument("--owner", default="{}", help="whose they are, as JSON")
    parser.add_argument("--node", default="", help="the name of this node (default: Slurm's)")
    words = parser.parse_args(arguments)
    if not os.path.isabs(words.base):
        raise UsageError("--base must be a full path")
    node = words.node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    _hold_back()
    partner = Partner(
        Place(words.base, words.attempt_folder, node, words.job, words.to, words.owner.encode())
    )
    parent = os.getppid()
    while os.getppid() == parent:
        done = False
        try:
            done = partner.tend(time.monotonic())
        except OSError as error:
            print(f"ftrun-hook: partner: {error}", file=sys.stderr)
        if not done:
            time.sleep(PERIOD_S)
    return 0


def _hold_back() -> None:
    """Come last for the processor; leave when asked to."""
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(19)
