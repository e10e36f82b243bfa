"""`ftrun advise`: what a run's own history says about its checkpoints, spares and sizes. (I/O)"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ftrun.supervisor import advise as counsel
from ftrun.supervisor import checkpoints, context, inside, settings
from ftrun.supervisor.cli import common, output
from ftrun.supervisor.cli.runs import Json, Name
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.run_types import Run
from ftrun.supervisor.settings_errors import SettingError
from ftrun.supervisor.virtual.scenario import quantity

__all__ = ["advise"]

Cost = Annotated[
    str, typer.Option("--checkpoint-cost", help="What one takes, if you know it better.", metavar="TIME")
]
Every = Annotated[
    str, typer.Option("--checkpoint-every", help="Work between two, if you know it better.", metavar="TIME")
]
Nodes = Annotated[str, typer.Option("--nodes", help="For so many nodes instead.", metavar="N")]


def advise(name: Name, cost: Cost = "", every: Every = "", nodes: Nodes = "", json: Json = False) -> int:
    """Advise a run: the best interval between checkpoints, how many spares, and what each choice would bring.

    Rests on the faults, phases and checkpoints of the run itself; where it has few, the intervals are wide, and a published rate steps in.
    """
    run_dir, run = common.find(name)
    try:
        cost_s = quantity("checkpoint-cost", cost) if cost else None
        every_s = quantity("checkpoint-every", every) if every else None
        wanted = int(quantity("nodes", nodes)) if nodes else _nodes(run_dir, run)
    except SettingError as error:
        raise UserError(f"--{error}") from None
    if not wanted:
        raise UserError(f"{run.id} has not had nodes yet; say how many: --nodes=N", 1)
    found = counsel.advise(
        run, time.time(), nodes=wanted, saved=_written(run_dir, run), cost_s=cost_s, every_s=every_s
    )
    if json:
        output.emit_json(asdict(found))
    else:
        _show(found)
    return 0


def _nodes(run_dir: str, run: Run) -> int:
    """How many nodes the script uses; 0 where no attempt has had any yet."""
    used = [len(one.used) for one in run.attempts if one.used]
    return inside.active_of(run_dir) or max(used, default=0)


def _written(run_dir: str, run: Run) -> counsel.Written | None:
    """What the checkpoints on disk say; None where there are too few, or none can be found."""
    chosen = {**settings.defaults(), **run.settings}
    folder = context.cwd(run_dir)
    if not folder:
        return None
    paths = checkpoints.complete(
        str(chosen["checkpoint"]), marker=str(chosen["checkpoint-marker"]), cwd=folder
    )
    saves = [(checkpoints.step_of(path), checkpoints.written_s(path)) for path in paths]
    step_s = next((one.step_s for one in reversed(run.attempts) if one.step_s), None)
    return counsel.written([(step, at) for step, at in saves if step is not None and at is not None], step_s)


def _show(found: counsel.Advice) -> None:
    print(f"{found.run}: {found.nodes} nodes\n")
    output.table(
        ["CLASS", "FAULTS", "PER 1000 NODE-DAYS", "95 % INTERVAL"],
        [
            [one.fault, one.events, _number(one.rate), f"{_number(one.least)} to {_number(one.most)}"]
            for one in found.rates
        ],
    )
    expected, soon, late = (_hours(seconds) for seconds in found.between_s)
    print(f"\nreckoned with {_number(found.reckoned)}: a fault every {expected} ({soon} to {late})\n")
    output.table(
        ["", "SECONDS", "FROM"],
        [[name, f"{one.seconds:.1f}", _source(one)] for name, one in found.figures.items()],
    )
    print(f"\nbest interval: {found.best_every_s:.0f} s of work by Daly, {found.young_s:.0f} s by Young\n")
    output.table(
        ["CHOICE", "GOODPUT", "INTERVAL", "SPARES COUNTED, TOO", "NODE-HOURS A DAY"],
        [
            [
                one.name,
                f"{one.goodput:.2%}",
                f"{one.least:.1%} to {one.most:.1%}",
                f"{one.of_all:.2%}",
                f"{one.gained_hours:+.1f} for {one.paid_hours:.0f}" if one.spares else None,
            ]
            for one in found.choices
        ],
    )
    print()
    for line in found.words:
        print(line)


def _source(figure: counsel.Figure) -> str:
    return figure.source + (f", median of {figure.count}" if figure.count else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.3g}"


def _hours(seconds: float) -> str:
    if seconds < 3600.0:
        return f"{seconds:.0f} s"
    hours = seconds / 3600.0
    return f"{hours:.1f} h" if hours < 48.0 else f"{hours / 24.0:,.1f} days"
