"""`make soak`: a training is hurt for hours, under ftrun and under its rivals at once. (I/O)

    python -m tests.soak [--hours H] [--nodes N] [--every-s S] [--seed N] [--sides NAMES] [--json FILE] [--folder DIR]

How it thinks. A seed makes a plan of blows; every side gets the same plan at the same time on a sandbox of its own. Each side's trainer notes every
step, so in the end it is counted how much of the time went into steps that were new and kept. ftrun's invariants are looked at all
along. Then ftrun's side is brought to an end, and its weights are compared with those of an undisturbed training. Exit 1 where anything was violated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.cli import drill
from ftrun.supervisor.drill.timeline import Event
from tests.soak import report
from tests.soak.blows import KINDS, plan, plan_as_json
from tests.soak.goodput import usual_step_s
from tests.soak.ours import Ours
from tests.soak.rivals import Attended, Loop, Plain
from tests.soak.stand import Options, Side

SIDES: dict[str, type[Side]] = {side.name: side for side in (Ours, Plain, Loop, Attended)}
LOOK_EVERY_S = 2.0
FINISHES_WITHIN_S = 420.0
LAST_STEPS_S = 20.0  # so long before the last step every rank is told of it


def main(arguments: Sequence[str]) -> int:
    """Hold a soak. Returns the exit status."""
    options = _options(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    length_s = options.hours * 3600.0
    kinds = tuple(kind for kind in KINDS if not options.kinds or kind.name in options.kinds.split(","))
    blows = plan(
        seed,
        length_s=length_s,
        every_s=options.every_s,
        ranks=options.ranks,
        person_s=options.repair_s,
        kinds=kinds,
    )
    if options.plan:
        print(json.dumps(plan_as_json(blows), indent=1))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="ftrun-soak-", dir=options.folder))
    folder.chmod(0o755)
    print(
        f"soak: seed {seed}, {len(blows)} blows in {length_s / 60:.0f} min, folder {folder}",
        file=sys.stderr,
        flush=True,
    )
    try:
        with _interruptible():
            told = _hold(options, folder, length_s, blows)
    except SandboxError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    told = {"seed": seed, "plan": plan_as_json(blows), **told}
    if options.json:
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")
    print(report.text(told))
    if told["violations"] or options.keep:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if told["violations"] else 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """TERM and HUP end a soak as Ctrl-C does: nothing of it is left."""
    ours = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hold(
    options: argparse.Namespace, folder: Path, length_s: float, blows: tuple[Any, ...]
) -> dict[str, Any]:
    shared = Options(
        nodes=options.nodes,
        ranks=options.ranks,
        step_s=options.step_s,
        save_every=options.save_every,
        timeout_s=options.timeout_s,
    )
    made_s = time.monotonic()
    with drill.live(several=True, json=False) as shown:

        def say(side: str, text: str, *, passing: bool = False) -> None:
            shown.event(Event(side, round(time.monotonic() - made_s, 1), text, passing=passing))

        sides = [SIDES[name](folder / name, shared, say) for name in options.sides.split(",")]
        for side in sides:
            if isinstance(side, Attended):
                side.person_s = options.person_s
        try:
            for side in sides:
                side.build()
            for side in sides:
                side.submit()
            began_s = time.time()
            for side in sides:
                side.begin(blows, began_s)
            loads: list[float] = []
            while (gone_s := time.time() - began_s) < length_s:
                for side in sides:
                    _look(side, gone_s, length_s, say)
                loads.append(os.getloadavg()[0])
                time.sleep(LOOK_EVERY_S)
            ended_s = time.time()
            return {"load": [round(median(loads), 1), round(max(loads), 1)], **_end(sides, began_s, ended_s)}
        finally:
            for side in sides:
                side.clear()


def _look(side: Side, gone_s: float, length_s: float, say: Any) -> None:
    """One look at a side; what cannot be looked at now can be later."""
    try:
        side.look()
        done = int(20 * gone_s / length_s)
        say(side.name, f"[{'#' * done}{'.' * (20 - done)}] {side.standing()}", passing=True)
    except SandboxError as error:
        side.say(f"?? {error}")


def _end(sides: list[Side], began_s: float, ended_s: float) -> dict[str, Any]:
    """The rivals are cleared away, ours is brought to its end; everything that is to be told."""
    for side in sides:
        side.halt()
    books = {side.name: side.trace() for side in sides}
    step_s = usual_step_s([[line for line in book.steps if line["at"] <= ended_s] for book in books.values()])
    told = {
        "minutes": round((ended_s - began_s) / 60, 1),
        "usual_step_s": round(step_s, 3),
        "sides": [report.of_side(side, books[side.name], began_s, ended_s, step_s) for side in sides],
    }
    for side in sides:
        if not isinstance(side, Ours):
            side.clear()
    ours = next((side for side in sides if isinstance(side, Ours)), None)
    if ours is None:
        return {**told, "violations": 0}
    ours.all_well()
    ours.come_to_an_end(ours.trace().step + max(20, int(LAST_STEPS_S / max(step_s, 0.05))))
    ours.finish(FINISHES_WITHIN_S)
    return {**told, **report.of_ours(ours, (ended_s - began_s) / 3600), "violations": ours.laws.violations}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Hurt a training for hours, under ftrun and under its rivals.",
    )
    parser.add_argument("--hours", type=float, default=1.0, help="how long blows fall [1]")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of each side's sandbox [8]")
    parser.add_argument("--ranks", type=int, default=4, help="nodes that the training uses [4]")
    parser.add_argument(
        "--every-s", type=float, default=120.0, help="a blow in each stretch of so many seconds [120]"
    )
    parser.add_argument("--seed", type=int, help="of the plan [a random one, printed]")
    parser.add_argument("--sides", default="ftrun,plain,loop,attended", help="which sides [%(default)s]")
    parser.add_argument("--kinds", default="", help="only these blows [all]")
    parser.add_argument("--step-s", type=float, default=0.4, help="what a step computes for [0.4]")
    parser.add_argument("--save-every", type=int, default=20, help="steps between two checkpoints [20]")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="of a collective [20]")
    parser.add_argument("--repair-s", type=float, default=180.0, help="until a node is repaired [180]")
    parser.add_argument(
        "--person-s", type=float, default=300.0, help="until a person looks after the attended side [300]"
    )
    parser.add_argument("--json", help="write everything into this file, too")
    parser.add_argument(
        "--folder", help="where the soak's folder is made: a short path [the temporary folder]"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder also where nothing was violated")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    options = parser.parse_args(arguments)
    known = {kind.name for kind in KINDS}
    for name in [*options.sides.split(","), *filter(None, options.kinds.split(","))]:
        if name not in SIDES and name not in known:
            parser.error(
                f"{name} is neither a side ({', '.join(SIDES)}) nor a blow ({', '.join(sorted(known))})"
            )
    if not 1 <= options.ranks < options.nodes or options.every_s < 5 or options.hours <= 0:
        parser.error(
            "a training needs fewer nodes than there are, blows some seconds between them, and a soak some time"
        )
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
