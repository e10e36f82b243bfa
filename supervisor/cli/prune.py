"""`ftrun prune`: remove runs that have been over for long. (I/O)"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from ftrun.supervisor import prune as pruner
from ftrun.supervisor.cli import common, output
from ftrun.supervisor.cli.runs import Json
from ftrun.supervisor.errors import UserError

DAY_S = 86_400.0
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def prune(
    days: Annotated[
        float, typer.Option("--days", help="Remove what ended more than so many days ago.", min=0)
    ] = 30.0,
    keep: Annotated[int, typer.Option("--keep", help="Never remove the newest N.", min=0, metavar="N")] = 0,
    size: Annotated[
        str,
        typer.Option(
            "--max-size",
            help="Also remove the oldest until the rest takes no more: 500M, 2G.",
            metavar="SIZE",
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    json: Json = False,
) -> int:
    """Remove runs that are finished or stopped, with their journals. Logs and checkpoints of the jobs are not touched.

    A run that is not over, that cannot be read, or for which a request waits is never removed.
    """
    home_dir = common.home()
    now = time.time()
    rules = pruner.Rules(days * DAY_S, keep, _bytes(size) if size else None)
    over, kept = pruner.survey(home_dir, now)
    chosen = pruner.choose(over, rules, now)
    removed = chosen if dry_run else [one for one in chosen if _removed(home_dir, one)]
    if not dry_run:
        pruner.sweep(home_dir)
    freed = sum(one.size_bytes for one in removed)
    if json:
        facts = [asdict(one) for one in removed]
        output.emit_json(
            {
                "dry_run": dry_run,
                "removed": facts,
                "freed_bytes": freed,
                "untouched": [asdict(one) for one in kept],
            }
        )
        return 0 if len(removed) == len(chosen) else 1
    if removed:
        rows = [[r.run, r.state, _days(now - r.ended_at_s), _shown(r.size_bytes)] for r in removed]
        output.table(["RUN", "STATE", "ENDED", "SIZE"], rows)
    verb = "would be removed" if dry_run else "removed"
    print(
        f"{len(removed)} {'run' if len(removed) == 1 else 'runs'} {verb}, {_shown(freed)} freed; {len(over) - len(removed)} kept"
    )
    return 0 if len(removed) == len(chosen) else 1


def _removed(home_dir: str, one: pruner.Candidate) -> bool:
    try:
        if pruner.remove(home_dir, one):
            return True
        why = "a request for it has just come"
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    print(f"ftrun: {one.run} was not removed: {why}", file=sys.stderr)
    return False


def _bytes(text: str) -> int:
    number, unit = text.strip().upper().removesuffix("B").removesuffix("I"), ""
    if number[-1:] in _UNITS and number[-1:]:
        number, unit = number[:-1], number[-1]
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"--max-size {text!r} is no size: write 500M or 2G")
    return int(value)


def _shown(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _days(age_s: float) -> str:
    return f"{age_s / DAY_S:.0f} days ago"
