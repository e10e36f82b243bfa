"""Laws of what the loop is made of: handlers, clocks, and slots that their features own. (I/O)"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.supervisor.context.run_context import LaunchObservations
from ftrun.supervisor.controller import reconcile
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.timers import Interval, Intervals, Stopwatch, Stopwatches

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class _Clocks:
    looked: Interval = field(default_factory=Interval)


@dataclass
class _Log:
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


def test_every_state_has_a_handler() -> None:
    """No run can come into a state that nothing moves it on from."""
    assert set(State) == set(reconcile.HANDLERS)


def test_the_context_knows_no_feature() -> None:
    """What takes the context is not imported by it, nor by what it is made of, be it for types alone."""
    features, context = set(), {"run_context", "services", "launch_state", "timers"}
    used: dict[str, set[str]] = {}
    for path in (ROOT / "supervisor").rglob("*.py"):
        names = {
            part
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ftrun.supervisor")
            for part in ((node.module or "").rpartition(".")[2], *(alias.name for alias in node.names))
        }
        used[path.stem] = names
        if "RunContext" in names:
            features.add(path.stem)

    assert len(features) > 25
    assert set() == {name for part in context for name in used[part]} & features


def test_a_stopwatch_runs_from_its_first_question_until_it_is_stopped() -> None:
    """Whoever asks first starts it; one that was stopped begins anew."""
    watch = Stopwatch()

    assert [watch.held_s(10.0), watch.held_s(14.0), watch.runs] == [0.0, 4.0, True]
    watch.stop()
    assert [watch.runs, watch.held_s(20.0)] == [False, 0.0]
    watch.restart(30.0)
    assert watch.held_s(31.0) == 1.0


def test_an_interval_is_due_at_once_and_then_once_in_its_time() -> None:
    """What was not due does not put off the next time; `first` is true once for all."""
    interval = Interval()

    assert [interval.due(at, 5.0) for at in (0.0, 4.9, 5.0, 9.0, 10.0)] == [True, False, True, False, True]
    assert [Interval().first(), interval.first()] == [True, False]


def test_each_key_has_a_clock_of_its_own() -> None:
    """A key that is only looked for has none."""
    silent, told = Stopwatches(), Intervals()
    silent["n1"].held_s(1.0)

    assert ["n1" in silent, "n2" in silent, silent["n1"].held_s(3.0)] == [True, False, 2.0]
    silent.stop("n1")
    silent.stop("n3")
    assert ["n1" in silent, told["a"].first(), told["b"].first(), told["a"].first()] == [
        False,
        True,
        True,
        False,
    ]


def test_a_launch_forgets_all_and_a_start_what_the_logs_showed() -> None:
    """Files are closed when what read them is forgotten."""
    seen = LaunchObservations(1, 0)
    seen.per_launch(_Clocks).looked.first()
    log, seen.seen_s, seen.step = seen.per_start(_Log), 7.0, 3

    later = seen.at_start(2)
    assert (later.per_launch(_Clocks).looked.first(), later.step, later.start, log.closed) == (
        False,
        None,
        2,
        1,
    )
    assert later.per_start(_Log) is not log
    anew = later.at_launch(2, 0)
    assert (anew.per_launch(_Clocks).looked.first(), anew.attempt, anew.seen_s) == (True, 2, 7.0)


def test_the_silence_of_nodes_counts_anew_after_a_long_outage() -> None:
    """P6: a node may come back and go again while Slurm cannot be seen; a short outage is an answer that failed."""
    seen = LaunchObservations()
    for at, answered in ((0.0, True), (1.0, False), (20.0, True)):
        seen.looked(seen=answered, mono_s=at)
        seen.silent["n1"].held_s(at)
    assert (seen.silent["n1"].held_s(20.0), seen.answered_s) == (20.0, 0.0)

    seen.looked(seen=False, mono_s=30.0)
    seen.looked(seen=True, mono_s=61.0)
    seen.looked(seen=True, mono_s=63.0)

    assert ("n1" in seen.silent, seen.answered_s, seen.outages) == (False, 2.0, 2)
