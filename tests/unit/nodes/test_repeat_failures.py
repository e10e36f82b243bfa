"""Laws of the test that finds a node which failures follow. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.diagnosis.evidence import case_of
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.diagnosis.suspect_nodes import add_suspect_nodes
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.run import Attempt, Incident, Launch, LaunchEnd, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import Action, Topology
from ftrun.supervisor.nodes import from_runs, ledger
from ftrun.supervisor.nodes.history import QuarantineRules, fold_entries
from ftrun.supervisor.nodes.ledger import NodeLedger
from ftrun.supervisor.nodes.repeat_failures import (
    ENDED,
    SIGNATURE,
    Association,
    Start,
    associations,
    odds,
    strike_times_s,
)
from ftrun.supervisor.signatures.catalog import load
from ftrun.supervisor.store import user_exclusions
from tests.simulation.blamed_clusters import Cluster
from tests.unit import cases
from tests.unit.cases import DAY, NODES, NOW, F, cluster, diagnosis, rule

HOUR = 3600.0


def incident(fault: F, **changes: Any) -> Incident:
    """A fault that was decided on: before that it may be diagnosed anew."""
    return cases.incident(fault, **{"decided_at_s": NOW, **changes})


def starts(words: str, *, work: str = "w", begin_s: float = 0.0) -> list[Start]:
    """`a+ b- ab+`: one start an hour, on those nodes, + passed, - failed."""
    return [
        Start(begin_s + number * HOUR, work, frozenset(word[:-1]), word.endswith("-"), f"r{number}")
        for number, word in enumerate(words.split())
    ]


def entries(found: Iterable[Start], begin_s: float = 0.0) -> list[NodeEntry]:
    return [
        NodeEntry(
            begin_s + one.at_s,
            ENDED,
            tuple(sorted(one.nodes)),
            id=f"{one.work}{number}",
            run=one.run,
            detail={"result": "failed" if one.failed else "passed", "work": one.work},
        )
        for number, one in enumerate(found)
    ]


def of(found: Iterable[Start], node: str = "a") -> Association | None:
    return associations(list(found)).get(node)


ROUND = "b+ c+ d+ b+ c+ d+ e+ "
BAD = starts((ROUND + "a- ") * 5 + ROUND)


def test_the_chance_is_the_share_of_placements_that_look_as_bad() -> None:
    """Counted by hand: of all ways to have placed the starts on the node, those with as many failures there."""
    rows = starts("b+ a- c+ a- b- a+ c+ b+ a- c- b+")
    failed = {place for place, one in enumerate(rows) if one.failed}
    here = [place for place, one in enumerate(rows) if "a" in one.nodes]
    seen = len(failed & set(here))
    ways = list(combinations(range(len(rows)), len(here)))
    as_bad = sum(len(failed & set(way)) >= seen for way in ways)

    found = of(rows)
    assert found is not None
    assert (found.failed, found.starts, found.failed_elsewhere, found.starts_elsewhere) == (3, 4, 2, 7)
    assert found.chance == pytest.approx(as_bad / len(ways))
    assert found.corrected == pytest.approx(min(1.0, 3 * as_bad / len(ways)))


def test_works_add_up_and_are_never_mixed() -> None:
    """Two works that each tell a little tell more together; one that fails wherever it runs tells nothing."""
    one, other = starts("b+ c+ a- b+ d+ c+"), starts("b+ c+ a- b+ d+ c+", work="v", begin_s=DAY)
    found = of(one + other)
    assert found is not None
    assert found.chance == pytest.approx(1 / 36)

    hopeless = starts("a- b- c- a- b- a- c- a-", work="u", begin_s=2 * DAY)
    assert of(hopeless) is None
    again = of(one + other + hopeless)
    assert again is not None
    assert (again.failed, again.chance) == (2, found.chance)


def test_a_bug_that_is_being_mended_counts_once() -> None:
    """Ten submissions die on the first free node until the bug is found; after that all is well elsewhere."""
    found = of(starts("a- " * 10 + ROUND * 3 + "a- "))
    assert found is not None
    assert found.failed == 2
    assert not found.excluded


def test_an_outage_counts_once_whatever_work_it_hits() -> None:
    """Three works die on one node within minutes: one event."""
    rows = [
        one
        for number, work in enumerate("uvw")
        for one in (
            *starts(ROUND, work=work),
            Start(20 * HOUR + 60 * number, work, frozenset("a"), failed=True),
        )
    ]
    found = associations(sorted(rows, key=lambda one: one.at_s))
    assert found.get("a") is None


def test_passing_there_speaks_for_a_node_in_full() -> None:
    """A flaky program that mostly runs on one node also fails there mostly."""
    found = of(starts(("a+ " * 6 + "a- b+ ") * 12))
    assert found is not None
    assert not found.suspect


def test_a_bad_node_is_a_suspect_first_and_avoided_later() -> None:
    """With the number of failures: nothing, suspect, excluded; each further failure is one more strike."""
    found = associations(BAD)["a"]
    assert (found.failed, found.starts, found.failed_elsewhere) == (5, 5, 0)
    assert found.excluded
    levels = [
        (one.suspect, one.excluded) if (one := of(BAD[: 8 * rounds])) else (False, False)
        for rounds in range(1, 6)
    ]
    assert levels == sorted(levels)
    assert {(False, False), (True, False), (True, True)} == set(levels)
    times = strike_times_s(BAD, found, float("-inf"))
    assert times == found.failed_at_s[-len(times) :]
    assert len(times) == sum(excluded for _, excluded in levels)


def test_the_arithmetic_is_told() -> None:
    """Counts, the chance, and how many nodes could have been the one."""
    found = associations(BAD)["a"]
    assert found.sentence.startswith("5 of 5 starts on a failed for no known cause, 0 of 42 of the same work")
    assert found.sentence.endswith("among 5 nodes")
    assert [odds(0.7), odds(0.04), odds(1 / 2345)] == ["likely", "1 in 25", "1 in 2,300"]


# ---------------------------------------------------------------------- in the ledger


def test_it_quarantines_the_node_as_strikes_do() -> None:
    """The last failure keeps it away for a day, doubled with each; the reason is the arithmetic."""
    book = fold_entries(entries(BAD, NOW), QuarantineRules())
    record = book.nodes["a"]
    last_s = NOW + associations(BAD)["a"].failed_at_s[-1]

    assert {strike.signature for strike in record.strikes} == {SIGNATURE}
    assert record.quarantined_until_s == last_s + DAY * 2 ** (len(record.strikes) - 1)
    assert book.quarantined(last_s + 1) == ("a",)
    assert "by chance 1 in" in record.why
    assert list(book.suspects) == ["a"]
    assert fold_entries(reversed(entries(BAD, NOW)), QuarantineRules()) == book
    assert not any(entry.what in ("drained", "excluded") for entry in record.history)


def test_a_release_forgives_what_was_before() -> None:
    """A person looked at it: only what fails later counts."""
    released = NodeEntry(NOW + 100 * HOUR, "released", ("a",), id="x", detail={"by": "ann"})
    later = entries(starts("b+ c+ d+ a- b+ c+", begin_s=101 * HOUR), NOW)
    book = fold_entries([*entries(BAD, NOW), released, *(replace(one, id=f"l{one.id}") for one in later)])

    assert book.quarantined(NOW + 103 * HOUR) == ()
    assert book.nodes["a"].association is None


def test_what_is_old_does_not_count() -> None:
    """A month later the node is like any other."""
    fresh = NodeEntry(NOW + 60 * DAY, ENDED, ("b",), id="new", detail={"result": "passed", "work": "w"})
    assert fold_entries([*entries(BAD, NOW), fresh]).nodes.get("a") is None


@pytest.mark.parametrize("quarantine", ["auto", "never"])
def test_the_next_submission_avoids_it_without_asking_the_ledger(tmp_path: Path, quarantine: str) -> None:
    """A node on which jobs die at once is always idle: `ftrun sbatch` has to know. Unless it should not."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    assert ledger.append_entries(str(home), *entries(BAD[:-8], NOW))
    told: list[str] = []
    book = NodeLedger(str(home), lambda: NOW + 40 * HOUR, lambda event, **_: told.append(event), writer="me")
    run = Run(
        "r-9",
        State.STOPPED,
        name="w",
        token="t",
        settings={"quarantine": quarantine},
        attempts=(Attempt(1, NOW, nodes=("a",), partition="p"),),
        incidents=(
            incident(F.USER_CODE, nodes=(), attempt_nodes=("a",), attempt=1, diagnosed_at_s=NOW + 39 * HOUR),
        ),
    )
    book.follow(run)

    wanted = ("a",) if quarantine == "auto" else ()
    assert user_exclusions.read_exclusions(str(home), NOW + 40 * HOUR) == wanted
    assert tuple(book.suspects(run)) == wanted
    assert ("node.excluded" in told) == bool(wanted)


# ---------------------------------------------------------------------- from a run's journal


def ended_of(run: Run) -> list[tuple[tuple[str, ...], str]]:
    return [(one.nodes, one.detail["result"]) for one in from_runs.entries_of(run) if one.what == ENDED]


def test_a_run_tells_how_its_starts_ended() -> None:
    """It failed for no node's reason, was tried elsewhere, and finished."""
    first = Attempt(1, NOW - 9000, nodes=("n1",), launch=Launch(end=LaunchEnd("FAILED", at_s=NOW - 100)))
    last = Attempt(2, NOW - 50, nodes=("n2",), launch=Launch(end=LaunchEnd("COMPLETED", at_s=NOW)))
    failed = incident(F.UNKNOWN, nodes=(), attempt_nodes=("n1",), attempt=1)
    run = Run("r", State.FINISHED, name="llm-7b", token="t", attempts=(first, last), incidents=(failed,))

    assert ended_of(run) == [(("n1",), "failed"), (("n2",), "passed")]
    (entry, _) = (one for one in from_runs.entries_of(run) if one.what == ENDED)
    assert entry.detail["work"] == "llm-#b@x1"
    assert from_runs.entries_mark(run) != from_runs.entries_mark(replace(run, state=State.SETTLING))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"settings": {"observe": True}}, []),
        ({"incidents": (incident(F.HARDWARE_GPU, nodes=("n1",), attempt_nodes=NODES),)}, []),
        ({"incidents": (incident(F.CANCELLED, nodes=(), attempt_nodes=NODES),)}, []),
        ({"incidents": (incident(F.PREEMPTED, nodes=(), attempt_nodes=NODES, step=5),)}, [(NODES, "passed")]),
        ({"incidents": (incident(F.PREEMPTED, nodes=(), attempt_nodes=NODES, step=None),)}, []),
        ({"incidents": (incident(F.USER_CODE, nodes=(), attempt_nodes=NODES),)}, [(NODES, "failed")]),
    ],
)
def test_only_what_tells_of_nodes_is_told(
    changes: dict[str, Any], told: list[tuple[tuple[str, ...], str]]
) -> None:
    """A fault with a cause of its own, a person's cancel and a run that is only watched tell nothing."""
    attempts = (Attempt(1, NOW, nodes=NODES),)
    assert ended_of(replace(Run("r", State.STOPPED, token="t", attempts=attempts), **changes)) == told


def test_getting_further_than_where_it_failed_is_passing() -> None:
    """Whatever ended the next attempt, its nodes did what the first one's did not. Not while it runs: what the journal
    gives rise to is never taken back.
    """
    failed = incident(F.UNKNOWN, nodes=(), attempt_nodes=("n1",), attempt=1, step=40)
    attempts = (Attempt(1, NOW - 900, nodes=("n1",)), Attempt(2, NOW, nodes=("n2",), last_step=41))
    run = Run("r", State.RUNNING, token="t", attempts=attempts, incidents=(failed,))
    later = replace(failed, id="2.0", attempt=2, attempt_nodes=("n2",), diagnosed_at_s=NOW)

    assert ended_of(run) == [(("n1",), "failed")]
    for step, told in ((41, [(("n2",), "passed"), (("n2",), "failed")]), (40, [(("n2",), "failed")])):
        again = replace(run, incidents=(failed, replace(later, step=step)))
        assert ended_of(again) == [(("n1",), "failed"), *told]


# ---------------------------------------------------------------------- in diagnosis and policy


@pytest.mark.parametrize(
    ("fault", "suspects", "named"),
    [
        (F.USER_CODE, {"n2": "odd"}, ("n2",)),
        (F.UNKNOWN, {"n2": "odd", "n9": "odd"}, ("n2",)),
        (F.USER_CODE, dict.fromkeys(NODES, "odd"), None),
        (F.STORAGE, {"n2": "odd"}, None),
        (F.TIMELIMIT, {"n2": "odd"}, None),
    ],
)
def test_a_suspect_gives_a_failure_of_the_program_another_try(
    fault: F, suspects: dict[str, str], named: tuple[str, ...] | None
) -> None:
    """Once more, elsewhere; class, confidence and exclusion stay as they are."""
    attempt = Attempt(1, 0.0, nodes=NODES, launch=Launch(end=LaunchEnd("FAILED")))
    facts = Facts((), Topology(nodes=NODES), load(), attempt=attempt, suspects=suspects)
    before = diagnosis(fault, nodes=(), retry=False, action=Action.STOP, exclude=False)
    after = add_suspect_nodes(case_of(facts), before)

    assert (after.nodes if after is not None else None) == named
    if after is not None:
        assert (after.retry, after.action, after.fault) == (True, Action.RESUBMIT, fault)
        assert (after.confidence, after.exclude) == (before.confidence, False)
        assert "suspected: odd" in after.rests_on


def test_the_other_try_avoids_the_suspect_and_drains_nothing() -> None:
    """The suspect is avoided by the next attempt alone. A second failure stops the run."""
    found = diagnosis(F.USER_CODE, nodes=("n2",), retry=True, action=Action.RESUBMIT, exclude=False)
    decision = rule(found).decision
    assert (decision.kind, decision.avoid, decision.exclude, decision.drain, decision.ask) == (
        "resubmit",
        ("n2",),
        (),
        (),
        (),
    )
    again = rule(found, run={"spent": {"user-code": 1}}).decision
    assert again.kind == "stop"
    assert cluster().may_drain


def test_an_end_that_explains_itself_names_no_suspect() -> None:
    """A finished script is finished, whatever the history says."""
    facts = Facts((), Topology(nodes=NODES), load(), suspects={"n1": "odd"})
    assert diagnose(facts).nodes == ()


# ---------------------------------------------------------------------- clusters


def test_healthy_clusters_lose_no_node_and_a_bad_one_is_found() -> None:
    """A small draw of `tests/simulation/blamed_clusters`, whose thousand clusters docs/nodes.md tells of."""
    assert sum(len(Cluster(seed, 8).live(80).excluded) for seed in range(8)) == 0
    bad = Cluster(1, 8, bad=1.0, job_nodes=1, quiet=True).live(600, enough=True)
    assert bad.found_after is not None
