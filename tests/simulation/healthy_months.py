"""Months of training on virtual clusters: does a run stop that was getting on?

`python -m tests.simulation.healthy_months --seeds 20 --days 30`: each preset of `ftrun simulate` with default settings,
without spares and with a quarter of the idle nodes as spares. Prints one line for each; exits 1 if a run stopped within
six hours of net progress.
"""

from __future__ import annotations

import argparse
from collections import Counter

from ftrun.supervisor.policy.policy_input import RECENT_S, PolicyInput, Ruling
from ftrun.supervisor.simulator import presets
from ftrun.supervisor.simulator.ftrun_rules import FtrunRules
from ftrun.supervisor.simulator.scenario import Scenario
from ftrun.supervisor.simulator.virtual_run import VirtualRun, simulate


class Watched(FtrunRules):
    """ftrun, with its stops noted: the reason, and the seconds since net progress (None = there was none)."""

    def __init__(self, spares: int) -> None:
        super().__init__({}, spares)
        self.stops: list[tuple[str, float | None]] = []
        self.longest = 0

    def _case(self, *args: object) -> PolicyInput:
        self.longest = max(self.longest, self.run.retries)
        return super()._case(*args)  # type: ignore[arg-type]

    def _stopped(self, life: VirtualRun, case: PolicyInput, ruling: Ruling) -> None:
        at_s = case.progress_at_s
        self.stops.append((ruling.decision.reason, None if at_s is None else life.now_s - at_s))
        super()._stopped(life, case, ruling)


def rash_stops(scenario: Scenario, spares: int, seeds: range) -> tuple[list[str], int, int, float]:
    """(reasons of stops soon after net progress, all stops, most restarts without net progress, mean goodput)."""
    rash, stops, longest, goodput = [], 0, 0, 0.0
    for seed in seeds:
        rules = Watched(spares)
        goodput += simulate(scenario, seed, rules).goodput / len(seeds)
        rash += [
            f"seed {seed}: {why}" for why, ago_s in rules.stops if ago_s is not None and ago_s <= RECENT_S
        ]
        stops, longest = stops + len(rules.stops), max(longest, rules.longest)
    return rash, stops, longest, goodput


def main() -> int:
    """Run it; 1 if a run stopped that was getting on."""
    parser = argparse.ArgumentParser(prog="healthy_months", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--preset", nargs="*", default=presets.names())
    asked = parser.parse_args()
    found: Counter[str] = Counter()
    for name in asked.preset:
        scenario = presets.read_preset(name, {"days": asked.days})
        for spares in (0, max(1, int(scenario["idle"]) // 4)):
            rash, stops, longest, goodput = rash_stops(scenario, spares, range(1, asked.seeds + 1))
            print(
                f"{name} +{spares}: {asked.seeds} seeds of {asked.days:g} days, goodput {goodput:.1%}, {stops} stops,"
                f" {len(rash)} within 6 h of net progress, at most {longest} restarts without net progress",
                *rash,
                sep="\n    ",
                flush=True,
            )
            found[name] += len(rash)
    return 1 if found.total() else 0


if __name__ == "__main__":
    raise SystemExit(main())
