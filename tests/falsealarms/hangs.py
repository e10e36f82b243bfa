"""`make hang-alarms`: healthy runs that a hang is looked for in, and runs that hang; both as one curve. (I/O)

    python -m tests.falsealarms.hangs [--runs N] [--seed N] [--hangs N]

First they are watched as the agent beside the script does, then as a supervisor on a login node does where there is none.
Each line of the curve is one scale of all thresholds (1 = the settings' defaults): how many of the healthy runs would have been ended, and after how
many seconds hangs are decided. Then come the hangs by what a watcher can see of them. Time is virtual, seeds are counted from --seed on.
Exit 1 where a healthy run would have been ended at scale 1.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from ftrun.supervisor.model import types
from ftrun.supervisor.telemetry import hang_rules, liveness
from tests.falsealarms import lives

SCALES = (0.25, 0.5, 1.0, 2.0)
BUSY_EVERY_S = 14.0  # looks further apart are no watch
EASY_EVERY_S = 6.0
STILL_EVERY_S = 2.0
NEAR_S = 20.0
OFTEN_S = 30.0
USUAL = hang_rules.HangLimits()
END_WAIT_S = 60.0


@dataclass(slots=True)
class Tally:
    """What became of many lives. `ended`: healthy ones, by what they were doing; `delays_s` of hangs, None = not within the life."""

    runs: int = 0
    watched_s: float = 0.0
    samples: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    seeds: list[int] = field(default_factory=list)
    delays_s: list[float | None] = field(default_factory=list)


def limits(scale: float, *, afar: bool = False) -> hang_rules.HangLimits:
    """The default limits, all of them shorter or longer."""
    return hang_rules.HangLimits(USUAL.min_s * scale, USUAL.max_s * scale, USUAL.grace_s * scale, afar)


def watch(life: lives.Life, limit: hang_rules.HangLimits) -> tuple[float | None, lives.Viewer]:
    """When the life is held to hang; None = never. By limits from afar it is looked at from afar."""
    viewer, history, now_s = lives.Viewer(life, afar=limit.afar), liveness.History(), 0.0
    at_once = Random(life.seed + 4).random() < 0.1  # such a line is a verdict in itself
    anew = list(viewer.anew)
    while now_s < life.ends_s:
        if anew and now_s >= anew[0]:
            anew.pop(0)
            history = liveness.History()
        if viewer.asleep(now_s):
            now_s += STILL_EVERY_S
            continue
        history = liveness.observe(history, viewer.look(now_s), now_s)
        suspect = (
            hang_rules.after_fatal_line(limit, "a line", END_WAIT_S, at_once=at_once)
            if viewer.alarmed(now_s)
            else limit
        )
        verdict = hang_rules.hang_verdict(history, now_s, suspect)
        if verdict.state is types.HangState.HUNG:
            return now_s, viewer
        if verdict.wants_stacks:
            viewer.ask(now_s)
        now_s += STILL_EVERY_S if life.hang_s is not None else _pause_s(verdict, viewer, history, limit)
    return None, viewer


def _pause_s(
    verdict: types.HangVerdict, viewer: lives.Viewer, history: liveness.History, limit: hang_rules.HangLimits
) -> float:
    """Until the next look at a healthy life: rarer where nothing hangs on it."""
    if verdict.quiet_s <= 0.2 * limit.min_s:
        return BUSY_EVERY_S
    near = verdict.threshold_s is not None and verdict.quiet_s + NEAR_S >= verdict.threshold_s
    close = near or viewer.awaited or history.witness.frozen > 0 or history.witness.samples == 1
    return STILL_EVERY_S if close else EASY_EVERY_S


def healthy(tally: Tally, seed: int, limit: hang_rules.HangLimits, *, alarms: bool = False) -> None:
    """One healthy life; with `alarms`, one that prints lines which look fatal."""
    life = lives.draw(seed, alarms=alarms)
    ended_s, viewer = watch(life, limit)
    tally.runs += 1
    tally.watched_s += life.ends_s
    tally.samples += viewer.asked
    if ended_s is not None:
        segment = viewer.within(ended_s)
        tally.ended[f"{segment.inside.name}, {segment.phase if life.announces else 'not announced'}"] += 1
        tally.seeds.append(seed)


def hung(
    tally: Tally, seed: int, inside: lives.Inside, limit: hang_rules.HangLimits, *, alarms: bool = False
) -> float | None:
    """One life that hangs: after how long that is decided. Lives that end before they hang are false alarms of their own."""
    life = lives.draw(seed, inside, alarms=alarms)
    ended_s, _ = watch(life, limit)
    assert life.hang_s is not None
    delay_s = None if ended_s is None else ended_s - life.hang_s
    tally.runs += 1
    tally.delays_s.append(delay_s)
    return delay_s


def spread(delays_s: Sequence[float | None]) -> str:
    """Median, nineteen of twenty, the longest; and how many were not decided."""
    known = sorted(one for one in delays_s if one is not None)
    missed = len(delays_s) - len(known)
    if not known:
        return f"none of {len(delays_s)} decided"
    marks = (known[len(known) // 2], known[int(0.95 * (len(known) - 1))], known[-1])
    return "median {:5.0f} s   95 % {:5.0f} s   longest {:5.0f} s".format(*marks) + (
        f"   {missed} of {len(delays_s)} never" if missed else ""
    )


def curve(runs: int, hangs: int, seed: int, *, afar: bool = False) -> Tally:
    """Print a line for each scale; return the healthy lives of scale 1."""
    proof = Tally()
    kinds = list(lives.HANGS.values())
    for scale in SCALES:
        limit, tally, late = limits(scale, afar=afar), Tally(), Tally()
        for place in range(runs if scale == 1.0 else max(1, runs // 10)):
            healthy(tally, seed + place, limit)
        for place in range(hangs):
            hung(late, seed + place, kinds[place % len(kinds)], limit)
        ends, open_ = sum(tally.ended.values()), Tally()
        for place in range(hangs):  # the hang that a watcher is made for, of runs that can be watched
            life = lives.draw(seed + place, kinds[0])
            if (life.beats or life.stacks) and (life.beats or life.every_s <= OFTEN_S):
                hung(open_, seed + place, kinds[0], limit)
        print(f"x {scale:<5} {ends:4} of {tally.runs:6} healthy runs ended; hangs are decided after")
        print(
            f"        in a collective, with beats, or stacks and a line in {OFTEN_S:.0f} s: {spread(open_.delays_s)}"
        )
        print(
            f"        all kinds, whatever can be seen of them:               {spread(late.delays_s)}",
            flush=True,
        )
        if scale == 1.0:
            proof = tally
    return proof


def by_sight(hangs: int, seed: int, *, afar: bool = False) -> None:
    """Print when hangs are decided, by what they are and what can be seen of them."""
    for name, inside in lives.HANGS.items():
        seen: dict[str, list[float | None]] = {}
        over: list[float] = []
        for place in range(hangs):
            life = lives.draw(seed + place, inside)
            ended_s, _ = watch(life, limits(1.0, afar=afar))
            assert life.hang_s is not None
            delay_s = None if ended_s is None else ended_s - life.hang_s
            seen.setdefault(_sight(life), []).append(delay_s)
            if life.beats or life.every_s <= OFTEN_S:
                over.append(math.inf if delay_s is None else delay_s / max(60.0, 10.0 * life.step_s))
        print(f"{name}:")
        for what in sorted(seen):
            print(f"  {what:38} {len(seen[what]):5}   {spread(seen[what])}")
        within = sum(one <= 1.1 for one in over)
        print(
            f"  of {len(over)} that show their steps each {OFTEN_S:.0f} s or beat: {within} within 1.1 x max(60 s, 10 steps)"
        )


def after_fatal_lines(runs: int, hangs: int, seed: int, *, afar: bool = False) -> Tally:
    """Print both sides of a fatal line: healthy runs that print some, and runs that hang after one beside the same that hang without a word."""
    limit, tally = limits(1.0, afar=afar), Tally()
    for place in range(runs):
        healthy(tally, seed + place, limit, alarms=True)
    print(
        f"with lines that look fatal: {sum(tally.ended.values())} of {tally.runs} healthy runs ended; hangs are decided after"
    )
    for name, inside in lives.HANGS.items():
        for alarms in (False, True):
            late = Tally()
            for place in range(hangs):
                hung(late, seed + 1_000_000 + place, inside, limit, alarms=alarms)
            told = "after a fatal line" if alarms else "without a word"
            print(f"  {name + ', ' + told:76} {spread(late.delays_s)}", flush=True)
    return tally


def _sight(life: lives.Life) -> str:
    stacks = "beats" if life.beats else "stacks" if life.stacks else "no stacks"
    used = "devices" if life.knows_gpu else "processors" if life.knows_cpu else "no activity"
    shown = "" if life.beats or life.every_s <= OFTEN_S else ", rare lines"
    return f"{stacks}, {used}{shown}"


def main() -> int:
    """Print the curve and what is behind it, and say whether a healthy run would have been ended."""
    parser = argparse.ArgumentParser(prog="make hang-alarms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="so many healthy runs (default: 10000)")
    parser.add_argument("--hangs", type=int, default=400, help="so many runs that hang, of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", choices=("inside", "afar"), help="watched from there only")
    asked = parser.parse_args()
    places = [getattr(asked, "from")] if getattr(asked, "from") else ["inside", "afar"]
    return max([tell(asked, afar=place == "afar") for place in places])


def tell(asked: argparse.Namespace, *, afar: bool) -> int:
    """Everything from one place; 1 where a healthy run would have been ended."""
    print("by a supervisor on a login node:" if afar else "by the agent beside the script:")
    began = time.monotonic()
    proof = curve(asked.runs, asked.hangs, asked.seed, afar=afar)
    by_sight(asked.hangs, asked.seed + 1_000_000, afar=afar)
    scared = after_fatal_lines(asked.runs, asked.hangs, asked.seed, afar=afar)
    for what, count in scared.ended.most_common():
        print(f"  ended: {count} x {what}")
    if scared.seeds:
        print(f"  seeds: {' '.join(map(str, scared.seeds[:20]))}")
    hours = proof.watched_s / 3600.0
    print(
        f"{proof.runs} healthy runs, {hours:.0f} hours of them, {proof.samples / max(1.0, hours):.1f} samples of stacks an hour; "
        f"{time.monotonic() - began:.0f} s"
    )
    for what, count in proof.ended.most_common():
        print(f"  ended: {count} x {what}")
    if proof.seeds:
        print(f"  seeds: {' '.join(map(str, proof.seeds[:20]))}")
    return bool(proof.ended or scared.ended)


if __name__ == "__main__":
    sys.exit(main())
