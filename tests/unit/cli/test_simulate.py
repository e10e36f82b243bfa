"""Laws of `ftrun simulate`: it agrees with what is known on paper, loses no second, and asks the real policy."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli import app
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.simulator import formulas, presets, waterfall
from ftrun.supervisor.simulator.compare import PersonRules, RequeueRules, compare, policies
from ftrun.supervisor.simulator.ftrun_rules import IN_THE_QUEUE, FtrunRules
from ftrun.supervisor.simulator.scenario import QUANTITIES, Cause, Scenario, scenario_from
from ftrun.supervisor.simulator.virtual_run import Fault, Rules, VirtualRun, simulate
from tests.simulation.healthy_months import rash_stops

HOUR = 3600.0
COST_S, RESTART_S, BETWEEN_S = 300.0, 600.0, 6.0 * HOUR
SMALL = {"nodes": "64", "days": "30", "idle": "6"}


def textbook(every_s: float, days: float) -> Scenario:
    """Nothing but faults, checkpoints and a restart that takes ten minutes: the world of the formula."""
    nodes = 4
    cause = Cause("any", FaultClass.UNKNOWN, 86_400.0 / BETWEEN_S / nodes)
    free = dict.fromkeys(("queue", "requeue", "new-job"), 0.0)
    sizes = {"nodes": float(nodes), "days": days, "launch": RESTART_S}
    return Scenario((cause,), {**free, **sizes, "checkpoint-every": every_s, "checkpoint-cost": COST_S})


def small(**own: Any) -> Scenario:
    return presets.read_preset("llama3-16k", {**SMALL, "repair": "2d", **own})


def hot(**own: Any) -> Scenario:
    """A small training on which so much breaks that everything happens."""
    table = {
        "observed": {"per-1000-node-days": 60},
        "cause": [
            {"name": "gpu", "class": "hardware-gpu", "count": 5, "lasts": 0.6, "named": 0.8},
            {"name": "crash", "class": "node", "count": 2, "lasts": 0.5, "lost": True},
            {"name": "bug", "class": "library-bug", "count": 2},
            {"name": "hang", "class": "hang", "count": 1, "named": 0.5},
        ],
    }
    return scenario_from({**table, **SMALL, **own})


@pytest.mark.parametrize("times", [0.4, 0.7, 1.0, 1.5, 2.5])
def test_a_plain_restart_agrees_with_dalys_model(times: float) -> None:
    """Over a sweep of intervals around the best one, the simulated share is within 1 % of the expected one."""
    every_s = times * formulas.daly_s(COST_S, BETWEEN_S)
    shares = [simulate(textbook(every_s, 2_000.0), seed, RequeueRules()).goodput for seed in range(3)]

    expected = formulas.useful_share(every_s, COST_S, BETWEEN_S, RESTART_S)
    assert sum(shares) / 3 == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("hours", "minutes"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)])
def test_the_best_interval_is_the_published_one(hours: float, minutes: float) -> None:
    """The three examples of Daly's paper: a checkpoint of five minutes, faults every 24 h, 6 h and 15 min."""
    found_s = formulas.daly_s(300.0, hours * HOUR)

    assert found_s / 60.0 == pytest.approx(minutes, rel=0.01)
    assert _best_interval_s(300.0, hours * HOUR) == pytest.approx(found_s, rel=0.005)


def _best_interval_s(cost_s: float, between_s: float) -> float:
    """The interval that maximises the useful share, found by search."""
    low, high = 1e-3, 10.0 * between_s
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(160):
        one, other = high - golden * (high - low), low + golden * (high - low)
        if formulas.useful_share(one, cost_s, between_s, 0.0) >= formulas.useful_share(
            other, cost_s, between_s, 0.0
        ):
            high = other
        else:
            low = one
    return (low + high) / 2.0


def test_young_is_the_first_term() -> None:
    """Where checkpoints cost next to nothing, Daly's interval is Young's."""
    assert formulas.daly_s(0.1, 1e6) == pytest.approx(formulas.young_s(0.1, 1e6), rel=1e-3)


@pytest.mark.parametrize(
    ("events", "least", "most"),
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (5, 1.623, 11.668), (100, 81.36, 121.63)],
)
def test_the_interval_of_a_rate_is_garwoods(events: int, least: float, most: float) -> None:
    """The exact interval as tables have it; few events make it wide."""
    assert formulas.rate_interval(events, 1.0) == pytest.approx((least, most), abs=0.01)


def test_the_presets_say_what_was_published() -> None:
    """419 interruptions of 2,048 nodes in 54 days; 7.9 hours for 128 nodes; 1.8 hours for 2,048."""
    llama = presets.read_preset("llama3-16k", {})
    assert llama.faults_a_second * 54 * 86_400 == pytest.approx(419.0)
    assert presets.read_preset("research-1k", {}).between_s / HOUR == pytest.approx(7.9, rel=0.01)
    assert presets.read_preset("research-16k", {}).between_s / HOUR == pytest.approx(1.8, rel=0.01)


class Watched:
    """Rules whose every outcome is looked at."""

    def __init__(self, rules: Rules, sizes: Collection[int]) -> None:
        self.rules, self.sizes = rules, sizes
        self.grown: list[tuple[float, int]] = []  # (when, of how many nodes it came to be more)

    def begin(self, life: VirtualRun) -> None:
        """The first job."""
        self.rules.begin(life)

    def recover(self, life: VirtualRun, fault: Fault) -> None:
        """The training has its nodes, each once, and none that Slurm would not give."""
        before, kept = life.now_s, {*life.active, *life.spares}
        self.rules.recover(life, fault)
        self._check(life, before, kept)

    def look_at_s(self, life: VirtualRun) -> float:
        """A run of the full size is left alone."""
        found = self.rules.look_at_s(life)
        assert found >= life.now_s
        assert len(life.active) < max(self.sizes) or found == math.inf
        return found

    def look(self, life: VirtualRun) -> None:
        """It goes on as it was, or with more nodes than before, those that it had among them."""
        before, active, kept = life.now_s, life.active, {*life.active, *life.spares}
        self.rules.look(life)
        assert life.active[: len(active)] == active
        if life.active != active:
            self.grown.append((before, len(active)))
        self._check(life, before, kept)

    def _check(self, life: VirtualRun, before: float, kept: Collection[str]) -> None:
        assert life.now_s >= before
        if life.over:
            return
        assert len(set(life.active)) == len(life.active)
        assert len(life.active) in self.sizes
        assert not set(life.active) & set(life.spares)
        assert not (set(life.active) - set(kept)) & life.cluster.away(life.now_s)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", range(5))
def test_every_second_is_told_and_every_size_is_right(way: int, seed: int) -> None:
    """Useful time and losses add up to the whole, whoever looks after the run."""
    rules: list[Rules] = [
        PersonRules(),
        RequeueRules(),
        FtrunRules({}),
        FtrunRules({}, 4),
        FtrunRules({"nodes": "32-64:4", "retries": 10_000}),
    ]
    sizes = range(32, 65, 4) if way == 4 else (64,)
    outcome = simulate(hot(), seed, Watched(rules[way], sizes))

    told = outcome.useful_s + sum(outcome.lost_s.values())
    assert told == pytest.approx(outcome.span_s, abs=1.0)
    assert min(outcome.lost_s.values()) >= 0.0
    assert outcome.faults > 50


def test_the_same_seed_is_the_same_life() -> None:
    """A seed decides everything."""
    assert simulate(hot(), 7, FtrunRules({}, 2)) == simulate(hot(), 7, FtrunRules({}, 2))
    assert simulate(hot(), 7, FtrunRules({}, 2)) != simulate(hot(), 8, FtrunRules({}, 2))


def test_the_policy_is_the_real_one() -> None:
    """Its ceiling stops runs here, too, its rungs are those of the settings, and a spare is what `swap` wants."""
    few = simulate(hot(), 1, FtrunRules({"retries": 3}))
    assert set(few.stops) == {"no net progress, and all 3 retries are used up"}
    without, beside = (simulate(hot(), 1, FtrunRules({"retries": 10_000}, spares)) for spares in (0, 4))
    assert "swap" not in without.restarts
    assert beside.restarts["swap"] > 0
    for own in ({"recover": "resubmit"}, {"agent": "never"}):
        assert set(simulate(hot(), 1, FtrunRules({"retries": 10_000, **own})).restarts) == {"resubmit"}


def test_who_asks_no_questions_meets_the_broken_node_again() -> None:
    """A plain requeue restarts more often than there are faults; ftrun leaves out what it named."""
    world = hot(cause=[{"name": "gpu", "class": "hardware-gpu", "count": 1, "lasts": 1.0, "named": 1.0}])
    plain, ours = simulate(world, 3, RequeueRules()), simulate(world, 3, FtrunRules({"retries": 10_000}))

    assert sum(plain.restarts.values()) > 2 * plain.faults
    assert sum(ours.restarts.values()) <= ours.faults


@pytest.mark.parametrize("recover", ["step,swap,companion,shrink,resubmit", "step,swap,resubmit"])
def test_an_elastic_run_goes_on_where_nodes_are_missing(recover: str) -> None:
    """Without an idle node a full run waits for repairs; an elastic one goes on smaller, inside its job or by another one, and does not thrash."""
    world = hot(idle="0", repair="1d")
    full, small = (
        simulate(world, 2, FtrunRules({"retries": 10_000, "recover": recover.replace("shrink,", ""), **own}))
        if not own
        else simulate(world, 2, FtrunRules({"retries": 10_000, "recover": recover, **own}))
        for own in ({}, {"nodes": "32-64:4"})
    )

    assert small.goodput > 1.2 * full.goodput
    assert small.lost_s["queue"] < full.lost_s["queue"] / 2
    assert ("shrink" in small.restarts) == ("shrink" in recover)
    assert sum(small.restarts.get(how, 0) for how in ("shrink", IN_THE_QUEUE)) <= small.faults
    assert small.lost_s["smaller size"] > 0.0 == full.lost_s["smaller size"]


def test_a_run_that_lost_nodes_grows_back_where_it_pays() -> None:
    """Growing is worth more than it costs, and none of it happens where it is not wanted or where others always wait."""
    world = {"idle": "2", "repair": "12h"}
    grown, left, crowded = (
        simulate(hot(**world, **more), 4, FtrunRules({"retries": 10_000, "nodes": "32-64", **own}))
        for own, more in (({}, {}), ({"grow": "never"}, {}), ({}, {"contended": "100%"}))
    )

    assert grown.restarts["grow"] > 5
    assert grown.lost_s["smaller size"] < left.lost_s["smaller size"] / 2
    assert grown.goodput > left.goodput
    assert "grow" not in left.restarts
    assert crowded.restarts.get("grow", 0) < grown.restarts["grow"]


def test_one_job_does_not_keep_what_it_lost() -> None:
    """Where hardly a node is idle a run that stays in its job does no worse than one that goes on by new jobs only: what it lost is mended, and comes back."""
    full = {"nodes": "64", "idle": "1", "days": "30"}
    inside, outside = (
        [
            simulate(presets.read_preset("research-1k", full), seed, FtrunRules(own)).goodput
            for seed in range(2)
        ]
        for own in (
            {"retries": 1000, "nodes": "32-64"},
            {"retries": 1000, "nodes": "32-64", "recover": "step,swap,resubmit"},
        )
    )

    assert sum(inside) > sum(outside)
    assert min(inside) > 0.92


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.drills) for seed in (1, 2))])
def test_nodes_that_come_and_go_make_no_run_thrash(seed: int) -> None:
    """Nodes crash by the dozen a day and are back within minutes: growths are never closer than grow-min-interval, and cost less than 2 % of the month."""
    crash = {"name": "crash", "class": "node", "count": 1, "lost": True}
    world = hot(cause=[crash], observed={"per-1000-node-days": 300}, reboot="5m", idle="0", contended="0")
    own = {"retries": 100_000, "nodes": "32-64", "exclude-for": 60.0, "recover": "shrink,resubmit"}
    rules = Watched(FtrunRules(own), range(32, 65))
    outcome = simulate(world, seed, rules)

    assert outcome.restarts["shrink"] > 300
    assert all(after - before >= 1800.0 for (before, _), (after, _) in itertools.pairwise(rules.grown))
    assert outcome.restarts.get("grow", 0) * 162.0 < 0.02 * outcome.span_s


def test_the_published_training_is_reached() -> None:
    """More than 90 % of effective training time on 16,384 GPUs with 419 unexpected interruptions in 54 days; all unexpected ones come."""
    world = presets.read_preset("llama3-16k", {"days": "54"})
    outcome = simulate(world, 1, FtrunRules({"retries": 10_000}, 8))

    assert outcome.goodput > 0.90
    assert 350 < outcome.faults < 480


def test_nodes_and_days_without_a_fault_cost_nothing() -> None:
    """Five ways to look after it, one seed: the same number of faults on a quarter of the nodes takes about as long, so that a month of 2,048 nodes takes seconds."""
    spent_s: list[float] = []
    for nodes, days in ((2048, 5), (512, 20)):
        world = presets.read_preset("llama3-16k", {"nodes": str(nodes), "days": str(days)})
        before_s = time.process_time()
        rows = list(compare(world, policies(world, [8], {}), 1))
        spent_s.append(time.process_time() - before_s)

    assert spent_s[0] < 5.0 * spent_s[1]
    assert spent_s[1] < 5.0 * spent_s[0]
    assert [row.policy for row in rows] == ["none", "requeue", "ftrun", "ftrun +8", "elastic"]


def test_the_command_prints_a_table_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """A column for each way; the same as one JSON object."""
    arguments = ["simulate", "--nodes", "64", "--days", "10", "--seeds", "2", "--spares", "2,4"]
    assert 0 == app.run(arguments)
    shown = capsys.readouterr().out
    assert "ftrun +4" in shown
    assert "elastic" in shown
    assert 0 == app.run([*arguments, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert ["none", "requeue", "ftrun", "ftrun +2", "ftrun +4", "elastic"] == [
        row["policy"] for row in facts["policies"]
    ]
    assert 2 == facts["seeds"]
    assert 64.0 == facts["scenario"]["quantities"]["nodes"]


@pytest.mark.parametrize(
    ("words", "column"), [("", "ftrun +1"), ("--idle 0", "ftrun"), ("--spares 0", "ftrun")]
)
def test_the_number_of_spares_follows_the_idle_nodes(
    words: str, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarter of them unless it is said; none where there are none."""
    assert 0 == app.run(
        ["simulate", "--nodes", "16", "--days", "2", "--seeds", "1", "--json", *words.split()]
    )
    names = [row["policy"] for row in json.loads(capsys.readouterr().out)["policies"]]
    assert names[-2] == column


FILE = """
title = "mine"
nodes = 32
days = 5
[observed]
per-1000-node-days = 20
[[cause]]
name = "gpu"
class = "hardware-gpu"
count = 1
lasts = "50%"
"""


def test_a_scenario_of_ones_own_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with what breaks, and options on top of it."""
    (tmp_path / "mine.toml").write_text(FILE)
    arguments = [
        "simulate",
        "--scenario",
        str(tmp_path / "mine.toml"),
        "--days",
        "20",
        "--seeds",
        "1",
        "--json",
        "--spares",
        "1",
    ]
    assert 0 == app.run(arguments)
    facts = json.loads(capsys.readouterr().out)["scenario"]
    assert (facts["title"], facts["quantities"]["days"]) == ("mine", 20.0)
    assert facts["faults_expected"] == pytest.approx(0.02 * 32 * 20)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--preset llama", "did you mean llama3-16k?"),
        ("--nodes 0", "nodes: '0' is out of range"),
        ("--days nan", "days: 'nan' is out of range"),
        ("--seeds 0", "--seeds: a number from 1"),
        ("--spares x", "--spares: numbers such as 4,8"),
        ("--spares 99", "more than the 32 idle nodes"),
        ("--set fund=1h", "did you mean found?"),
        ("--set found", "KEY=VALUE is wanted"),
        ("--ft spares=2", "the simulation sets it itself"),
        ("--ft observe=true", "has no column of its own"),
        ("--ft nodes=1-2048", "the simulation sets it itself (--elastic)"),
        ("--elastic 2-64", "elastic: the largest size is the 2048 nodes"),
        ("--elastic 64", "wants MIN-MAX"),
        ("--nodes 16385", "nodes: at most 16384"),
        ("--ft recover=swop", "no rung is called 'swop'"),
        ("--scenario /nowhere/x.toml", "cannot be read"),
        ("--nodes 16384 --days 3650", "more than 200,000 faults"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(words: str, told: str) -> None:
    """What is wrong and what would be right."""
    with pytest.raises(UserError) as error:
        app.run(["simulate", *words.split()])
    assert told in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("per-1000-node-days = 20", "nodes = 3", "observed: nodes and days are wanted"),
        ('class = "hardware-gpu"', 'class = "hardware"', "cause 'gpu': class is a fault class"),
        ("count = 1", "count = -1", "cause 'gpu': count"),
        ("count = 1", "count = 0", "no cause has a count"),
        ("lasts", "lastss", "did you mean 'lasts'?"),
        ("title =", "titlle =", "did you mean 'title'?"),
        ("nodes = 32", "nodes = true", "nodes: one value is wanted"),
        ("[observed]", "[observed", "is no TOML"),
    ],
)
def test_a_bad_scenario_is_refused_in_one_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    """The file, the place in it, and what would be right."""
    path = tmp_path / "mine.toml"
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        app.run(["simulate", "--scenario", str(path)])
    assert told in error.value.message
    assert str(path) in error.value.message


def test_a_waterfall_names_each_step_and_where_its_figures_come_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Shares of lost time and goodput are the whole; what replaces an assumption is shown with the old and the new value, and the rates stay."""
    assert 0 == app.run(
        ["simulate", "--nodes", "256", "--days", "10", "--seeds", "1", "--waterfall", "--json"]
    )
    found = json.loads(capsys.readouterr().out)["waterfall"]
    world = presets.read_preset("llama3-16k", {"nodes": "256", "days": "10"})

    assert [one.name for one in waterfall.CHANGES] == [row["change"] for row in found]
    assert all(row["goodput"] + sum(row["lost"].values()) == pytest.approx(1.0) for row in found)
    assert found[-1]["goodput"] > found[0]["goodput"]
    replaced = {key: pair for row in found for key, pair in row["replaced"].items()}
    assert {*replaced} == {*waterfall.MEASURED}
    assert all(old != new for old, new in replaced.values())
    for _, stage in waterfall.stages(world, 2, {}):
        assert stage.scenario.causes == world.causes
        kept = ("repair", "reaction", "new-job", "queue", "found", "relapse", "lost-after", "watchdog")
        assert [world[key] for key in kept] == [stage.scenario[key] for key in kept]


def test_an_own_figure_that_is_better_than_the_measured_one_stays() -> None:
    """A scenario whose saves pause the training for less, or whose starts are quick, is made no worse."""
    world = presets.read_preset("llama3-16k", {"checkpoint-cost": "0.1", "launch": "5", "in-place-step": "1"})
    *_, (_, last) = waterfall.stages(world, 2, {})

    assert (0.1, 1.0) == (last.scenario["checkpoint-cost"], last.scenario["in-place-step"])
    assert last.scenario["launch"] <= 5.0


def test_a_curve_moves_one_assumption_at_a_time() -> None:
    """A slower start is worth less, a quicker one more; every quantity that is no published rate is walked, or stays on purpose."""
    *_, (_, last) = waterfall.stages(presets.read_preset("llama3-16k", {"nodes": "512", "days": "20"}), 2, {})
    shares = [
        dataclasses.replace(last, scenario=waterfall.with_assumption(last.scenario, "launch", launch_s)).run("", 1).goodput
        for launch_s in (30.0, 600.0)
    ]  # fmt: skip

    assert shares[0] > shares[1]
    walked = {one.key for one in waterfall.ASSUMED}
    kept = {"nodes", "days", "repair", "reaction"}  # said by the question itself
    unused = {"requeue", "watchdog"}  # of other columns
    unused |= {"rack", "rack-every", "rack-repair"}  # no rack fails unless somebody says so
    one_key = {"in-place-step", "in-place-swap"}  # walked together as `in-place`
    assert {*QUANTITIES} - walked - kept - unused - one_key == set()


def test_spares_that_queue_are_never_more_than_asked_for() -> None:
    """They come back one by one, and what they save is time in the queue."""
    plain, refilled = (
        simulate(hot(days="20"), 3, Watched(FtrunRules({"retries": 10_000, **own}, 2), (64,)))
        for own in ({}, {"spares-refill": "auto"})
    )

    assert refilled.restarts["swap"] > plain.restarts["swap"]
    assert refilled.lost_s["queue"] < plain.lost_s["queue"]
    assert refilled.spare_node_s <= 2 * refilled.span_s


def test_more_seeds_make_a_narrower_interval() -> None:
    """One seed has no interval; with more it shrinks."""
    world = small()
    found = policies(world, [], {})[1:2]
    widths = [next(iter(compare(world, found, seeds))).half_width for seeds in (1, 4, 24)]
    assert widths[0] is None
    assert all(
        one is not None and other is not None and one > other for one, other in itertools.pairwise(widths[1:])
    )


def test_every_quantity_is_in_the_documents() -> None:
    """With its name, its meaning and the shipped scenarios beside it."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert [] == [
        row.key for row in QUANTITIES.values() if f"| `{row.key}` |" not in page or row.doc not in page
    ]
    assert [] == [name for name in presets.names() if f"| `{name}` |" not in page]


def test_a_run_that_is_getting_on_is_never_stopped() -> None:
    """Ten days on 2,048 nodes, a fault every three hours: no stop within six hours of net progress (`make healthy-months`: all presets)."""
    rash, _, longest, _ = rash_stops(presets.read_preset("llama3-16k", {"days": "10"}), 8, range(1, 2))

    assert [] == rash
    assert 1 <= longest < 10


# ---------------------------------------------------------------------- racks


RACKED = {"rack": "8", "rack-every": "60d", "rack-repair": "4h"}


class _Watched(FtrunRules):
    """Keeps the faults that it met."""

    def recover(self, life: VirtualRun, fault: Fault) -> None:
        """Note it."""
        self.met = [*getattr(self, "met", []), (fault, life.active)]
        super().recover(life, fault)


def test_a_rack_fails_as_a_whole_and_comes_back_as_a_whole() -> None:
    """Its faults come as often as said, hit all of its nodes, and the run goes on without them."""
    scenario, met = hot(**RACKED, idle="16"), []
    for seed in range(8):
        rules = _Watched({"storm": "never"}, spares=8)
        simulate(scenario, seed, rules)
        met += [fault for fault, _ in getattr(rules, "met", []) if fault.cause.rack]
    assert met
    assert all(len(fault.nodes) == 8 for fault in met)
    assert all(len({int(node[1:]) // 8 for node in fault.nodes}) == 1 for fault in met)
    expected = 8 * 30 / 60 * 8  # seeds, days, racks at work
    assert expected / 3 < len(met) < expected * 2


def test_without_racks_nothing_changes() -> None:
    """Not one draw."""
    plain = simulate(hot(), 3, FtrunRules({}, spares=2))
    assert simulate(hot(rack="0"), 3, FtrunRules({}, spares=2)) == plain
    assert all(not cause.rack for cause in hot().causes)


def test_racks_cost_and_a_suspected_switch_excludes_nobody() -> None:
    """All nodes of a rack at once are a switch's fault, so the run keeps the right to use them when they are back."""
    scenario = hot(**RACKED, nodes="64", idle="16")
    rules = FtrunRules({"storm": "never"}, spares=8)
    life = VirtualRun(scenario, 1)
    rules.begin(life)
    (cause,) = (one for one in scenario.causes if one.rack)
    node = life.active[20]
    fault = Fault(cause, node, True, None, 0, life.cluster.lose_rack(node, cause, life.now_s))
    rules.recover(life, fault)
    assert len(life.active) == 64
    assert not set(fault.nodes) & set(life.active)
    assert rules.run.excluded == ()
    assert "is suspected: 8 of 8" in str(rules.run.incidents[-1].decision["reason"])
