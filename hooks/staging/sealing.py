"""Decides when a node's part of a staged checkpoint is complete and will not change any more. (pure)

Ranks that use `with stage(step):` report begin and end, and are believed. Otherwise a part is complete when no
file is open for writing and nothing changed for a while. That does not distinguish a finished writer from one
that died in the middle. So a part whose writers are gone, or whose start failed, is sealed as *unproven*: it
becomes a checkpoint only if its layout proves that it is complete, or if the script ended well.

A name that is saved again has all its files already, so no missing file shows that a rank is still to come. So
the daemon waits for files that are unchanged since the previous save.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Optional

from ftrun.hooks.staging.records import File

QUIET_S = 1.0
LATE_S = 30.0
"""How long after the others a late rank is waited for."""

LIVE, ENDED, BROKEN = (
    "live",
    "ended",
    "broken",
)  # the start: running; its script ended with 0; over in any other way
WAIT, SEAL, UNPROVEN, GIVEN_UP = "wait", "seal", "unproven", "given up"


class Marks(NamedTuple):
    """What the ranks of this node reported on a set. `local`: how many of them will report (0: unknown);
    `dead`: begun, and gone. `is_alone`: one rank said that it saves for all nodes.
    """

    begun: Collection[str] = ()
    done: Collection[str] = ()
    failed: Collection[str] = ()
    dead: Collection[str] = ()
    local: int = 0
    is_alone: bool = False


class Growth(NamedTuple):
    """What was observed of a part over time. `still_s`: how long nothing changed. `open_by`: the processes
    with a file open for writing. `has_lost_writer`: a process that was seen writing is gone. `stale`: for a
    name that is saved again, how many files are unchanged since the previous save.
    """

    files: Mapping[str, File]
    still_s: float
    open_by: Collection[int] = ()
    has_lost_writer: bool = False
    stale: int = 0


class Verdict(NamedTuple):
    """One of WAIT, SEAL, UNPROVEN, GIVEN_UP, and why."""

    word: str
    why: str = ""


def verdict(growth: Growth, marks: Marks, phase: str) -> Verdict:
    """What to do with a part that is not sealed yet, in this phase of its start."""
    if not growth.files and not marks.begun:
        return Verdict(WAIT, "nothing is in it")
    told = _told(marks)
    if told is not None:
        return told
    if growth.open_by:
        return Verdict(WAIT, f"process {min(growth.open_by)} has a file of it open")
    if marks.local and len(set(marks.done)) >= marks.local:
        return Verdict(SEAL, "all ranks of this node are done")
    if growth.still_s < QUIET_S:
        return Verdict(WAIT, "it was just written")
    if growth.stale and phase == BROKEN:
        return Verdict(GIVEN_UP, "its start broke down while it was saved again")
    if growth.stale and phase == LIVE and growth.still_s < LATE_S:
        return Verdict(
            WAIT, f"it is saved again, and {growth.stale} files of it are still those of the save before"
        )
    if not growth.files:
        return Verdict(WAIT, "nothing is in it")
    if marks.begun and len(set(marks.done)) < marks.local and phase == LIVE and growth.still_s < LATE_S:
        return Verdict(WAIT, f"{marks.local - len(set(marks.done))} ranks of this node have not begun")
    if marks.begun or phase == ENDED:
        return Verdict(SEAL, "its ranks are done" if marks.begun else "the script ended well")
    if phase == BROKEN:
        return Verdict(UNPROVEN, "its start broke down before it was sealed")
    if growth.has_lost_writer:
        return Verdict(UNPROVEN, "a process that wrote it is gone")
    return Verdict(SEAL, "nothing of it changes any more")


def _told(marks: Marks) -> Optional[Verdict]:
    """What the ranks' own words come to, where they settle it."""
    if marks.failed:
        return Verdict(GIVEN_UP, f"rank {min(marks.failed)} failed to save it")
    open_ranks = sorted(set(marks.begun) - set(marks.done))
    gone = [rank for rank in open_ranks if rank in marks.dead]
    if gone:
        return Verdict(GIVEN_UP, f"rank {gone[0]} died before it was done")
    return Verdict(WAIT, f"rank {open_ranks[0]} is saving it") if open_ranks else None
