"""`ftrun simulate`: what faults would cost a run under different policies, on a virtual cluster. (I/O)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, option
from ftrun.supervisor.config import settings
from ftrun.supervisor.config.rungs import Rung
from ftrun.supervisor.config.table import DURATION
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.agent_events import GROW_RUNG
from ftrun.supervisor.model.errors import SettingError, UserError
from ftrun.supervisor.simulator import compare, presets
from ftrun.supervisor.simulator import waterfall as worth
from ftrun.supervisor.simulator.ftrun_rules import IN_THE_QUEUE
from ftrun.supervisor.simulator.scenario import QUANTITIES, Scenario
from ftrun.supervisor.simulator.tally import LOSSES, Row

SEEDS_MAX = 10_000
FAULTS_MAX = 200_000.0
KINDS = (*(rung.value for rung in Rung), GROW_RUNG, IN_THE_QUEUE)


Preset = Annotated[
    str, option("--preset", "A shipped scenario: llama3-16k, research-1k, research-16k.", "NAME")
]
File = Annotated[str, option("--scenario", "A scenario file of your own instead.", "FILE.toml")]
Nodes = Annotated[str, option("--nodes", "Nodes that the training uses.", "N")]
Days = Annotated[str, option("--days", "Simulated time.", "DAYS")]
Seeds = Annotated[int, option("--seeds", "Number of simulated lives for each policy.", "N")]
Spares = Annotated[
    str,
    option(
        "--spares",
        "Spare nodes; one column for each number [default: a quarter of the idle nodes].",
        "K[,K...]",
    ),
]
Every = Annotated[str, option("--checkpoint-every", "Useful work between two checkpoints.", "TIME")]
Cost = Annotated[str, option("--checkpoint-cost", "How long training stops for a checkpoint.", "TIME")]
Queue = Annotated[str, option("--queue", "Mean queue time of a resubmitted job.", "TIME")]
Repair = Annotated[str, option("--repair", "Mean time to repair a node.", "TIME")]
Reaction = Annotated[str, option("--reaction", "Mean time until a person acts.", "TIME")]
Idle = Annotated[str, option("--idle", "Idle nodes of the cluster, beyond those of the training.", "N")]
Elastic = Annotated[
    str, option("--elastic", "Sizes of the elastic column [default: half to all].", "MIN-MAX[:UNIT]")
]
Set = Annotated[
    list[str] | None, option("--set", "Set any quantity (docs/simulate.md); repeatable.", "KEY=VALUE")
]
Ft = Annotated[
    list[str] | None, option("--ft", "A setting of ftrun, such as retries=500; repeatable.", "KEY=VALUE")
]
Waterfall = Annotated[
    bool,
    option("--waterfall", "What each thing that a run can do about faults is worth, one after the other."),
]
Curve = Annotated[
    bool, option("--curve", "The goodput with all of them over the range of each assumption. Takes minutes.")
]


def simulate(  # noqa: PLR0917 - options are given by name
    preset: Preset = "llama3-16k",
    scenario: File = "",
    nodes: Nodes = "",
    days: Days = "",
    seeds: Seeds = 5,
    spares: Spares = "",
    every: Every = "",
    cost: Cost = "",
    queue: Queue = "",
    repair: Repair = "",
    reaction: Reaction = "",
    idle: Idle = "",
    elastic: Elastic = "",
    quantity: Set = None,
    ft: Ft = None,
    waterfall: Waterfall = False,
    curve: Curve = False,
    json: Json = False,
) -> int:
    """Compare ways to recover a run on a virtual cluster: ftrun's own policy, a person, and a plain requeue.

    Fault rates are published ones; other quantities are assumed where nothing is published, and
    docs/simulate.md says which is which.
    """
    own = {
        "nodes": nodes, "days": days, "checkpoint-every": every, "checkpoint-cost": cost, "queue": queue,
        "repair": repair, "reaction": reaction, "idle": idle,
    }  # fmt: skip
    own = {key: value for key, value in own.items() if value} | _quantities(quantity or ())
    try:
        chosen = presets.read_file(scenario, own) if scenario else presets.read_preset(preset, own)
        pairs = common.parse_ft(ft or ())
        wanted = settings.parse_all((key, True if value is None else value) for key, value in pairs)
        found = compare.policies(chosen, _counts(spares, chosen), wanted, elastic)
    except SettingError as error:
        raise UserError(str(error)) from None
    if not 1 <= seeds <= SEEDS_MAX:
        raise UserError(f"--seeds: a number from 1 to {SEEDS_MAX} is wanted, not {seeds}")
    if chosen.faults_a_second * chosen["days"] * 86_400.0 * seeds > FAULTS_MAX:
        raise UserError(
            "that is more than 200,000 faults for each policy: give fewer --nodes, --days or --seeds"
        )
    if waterfall or curve:
        count = max(_counts(spares, chosen), default=0)
        return _show_worth(_Worth(chosen, count, wanted, seeds), waterfall=waterfall, curve=curve, json=json)
    rows = list(compare.compare(chosen, found, seeds))
    if json:
        common.print_json(_facts(chosen, seeds, rows))
    else:
        _show(chosen, seeds, rows)
    return 0


def _quantities(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        near = errors.nearest_word(key, QUANTITIES)
        if equals and key not in QUANTITIES:
            hint = f"did you mean {near}?" if near else f"there are {', '.join(QUANTITIES)}"
            raise UserError(f"--set: {key!r} is not known; {hint}")
        if not equals:
            hint = f"; such as {near}=..." if near else ""
            raise UserError(f"--set: KEY=VALUE is wanted, not {word!r}{hint}")
        found[key] = value
    return found


def _counts(text: str, scenario: Scenario) -> list[int]:
    idle = int(scenario["idle"])
    if not text:
        return [max(1, idle // 4)] if idle else []
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) < 7 for word in words):
        raise UserError(f"--spares: numbers such as 4,8 are wanted, not {text!r}")
    return [int(word) for word in words]


def _facts(scenario: Scenario, seeds: int, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "scenario": {
            "title": scenario.title,
            "source": scenario.source,
            "quantities": {key: scenario[key] for key in QUANTITIES},
            "faults_expected": scenario.faults_a_second * scenario["days"] * 86_400.0,
            "between_faults_s": scenario.between_s,
            "causes": [asdict(cause) for cause in scenario.causes],
        },
        "seeds": seeds,
        "policies": [asdict(row) for row in rows],
    }


def _show_scenario(scenario: Scenario, seeds: int) -> None:
    hours = scenario.between_s / 3600.0
    print(f"rates: {scenario.title or 'of your own'}")
    print(
        f"{scenario.nodes} nodes, {scenario['days']:g} days, a fault every {hours:.1f} h of training;"
        f" {seeds} {'seed' if seeds == 1 else 'seeds'}, means of a seed\n"
    )


@dataclass(frozen=True)
class _Worth:
    """What a waterfall or a curve is made of."""

    scenario: Scenario
    spares: int
    own: Mapping[str, Any]
    seeds: int


def _show_worth(asked: _Worth, *, waterfall: bool, curve: bool, json: bool) -> int:
    given = (asked.scenario, asked.spares, asked.own, asked.seeds)
    steps = list(worth.waterfall(*given)) if waterfall else []
    points = list(worth.curve(*given)) if curve else []
    if json:
        told = [
            {"change": one.change.name, "option": one.change.option, "gain": gain, "replaced": one.replaced, **asdict(one.row)}
            for one, gain in zip(steps, worth.gains(steps), strict=True)
        ]  # fmt: skip
        walked = [{"assumption": one.key, "value": one.value, **asdict(one.row)} for one in points]
        common.print_json({"seeds": asked.seeds, "spares": asked.spares, "waterfall": told, "curve": walked})
        return 0
    _show_scenario(asked.scenario, asked.seeds)
    if steps:
        _show_waterfall(steps, asked.spares)
    if points:
        _show_curve(points)
    return 0


def _show_waterfall(steps: Sequence[worth.Step], spares: int) -> None:
    parts = ("detection", "restart", "lost steps", "queue", "person", "checkpointing")
    lines = [
        [
            f"{spares} {one.change.name}" if one.change.spares else one.change.name,
            one.change.option or None,
            f"{one.row.goodput:.2%}",
            f"{gain * 100:+.2f}" if one is not steps[0] else None,
            *(f"{one.row.lost[part] * 100:.2f}" for part in parts),
        ]
        for one, gain in zip(steps, worth.gains(steps), strict=True)
    ]
    common.print_table(["", "OPTION", "GOODPUT", "GAIN", *(f"{part.upper()}, %" for part in parts)], lines)
    if steps[-1].row.half_width is not None:
        print(f"\nwith all of them {steps[-1].row.goodput:.2%} {_interval(steps[-1].row)}")
    print("\nwhat was measured and replaces an assumption:")
    for key, (old, new) in (item for one in steps for item in one.replaced.items()):
        print(f"  {key}: {old:.3g} s -> {new:.3g} s: {worth.MEASURED[key]}")
    print()


def _show_curve(points: Sequence[worth.Point]) -> None:
    print("with all of them, one assumption moved at a time:\n")
    lines: list[Sequence[object]] = []
    for assumed in worth.ASSUMED:
        mine = [one for one in points if one.key == assumed.key]
        lines += [
            [assumed.key if one is mine[0] else None, _value(one), f"{one.row.goodput:.2%}", assumed.source if one is mine[0] else None]
            for one in mine
        ]  # fmt: skip
    common.print_table(["ASSUMPTION", "VALUE", "GOODPUT", "WHERE THE RANGE COMES FROM"], lines)


def _value(point: worth.Point) -> str:
    timed = point.key in QUANTITIES and QUANTITIES[point.key].kind == DURATION
    return f"{point.value:g} s" if timed else f"{point.value:g}"


def _show(scenario: Scenario, seeds: int, rows: Sequence[Row]) -> None:
    _show_scenario(scenario, seeds)
    lines: list[Sequence[object]] = [
        ["goodput", *(f"{row.goodput:.1%}" for row in rows)],
        ["95 % interval", *(_interval(row) for row in rows)],
        ["spares counted, too", *(f"{row.goodput_of_all:.1%}" for row in rows)],
        *[[f"node-hours: {name}", *(f"{row.node_hours[name]:,.0f}" for row in rows)] for name in LOSSES],
        ["node-hours: spares idle", *(f"{row.spare_node_hours:,.0f}" for row in rows)],
        ["faults", *(f"{row.faults:.0f}" for row in rows)],
        [
            "restarts",
            *(f"{sum(row.restarts.values()) - row.restarts.get(IN_THE_QUEUE, 0):.0f}" for row in rows),
        ],
        *(_kind(kind, rows) for kind in KINDS if any(kind in r.restarts for r in rows)),
        ["stops", *(f"{sum(row.stops.values()):.1f}" for row in rows)],
    ]
    common.print_table(["", *(row.policy for row in rows)], lines)
    print()
    for why in sorted({why for row in rows for why in row.stops}):
        hint = " (--ft retries=N raises it)" if "all " in why else ""
        print(f"stopped until a person came: {why}{hint}")


def _kind(kind: str, rows: Sequence[Row]) -> list[object]:
    return [
        kind if kind == IN_THE_QUEUE else f"by {kind}",
        *(f"{row.restarts[kind]:.0f}" if kind in row.restarts else None for row in rows),
    ]


def _interval(row: Row) -> str | None:
    return None if row.half_width is None else f"+- {row.half_width * 100:.1f}"
