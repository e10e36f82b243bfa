"""The verdict: a drill's outcome checked against its expectation. (pure)

Besides the expectation of each drill, four laws are checked in every drill: the trained weights are exactly
those of an undisturbed training; starts of one run never overlap; each start continues from a checkpoint; and
no start overwrites a checkpoint of a later one. Where checkpoints are staged there are two more: a checkpoint
that is marked complete on disk is complete, and of one start; and the drill leaves nothing in the memory of
any living node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.drill.observation import Outcome, Trace
from ftrun.supervisor.drill.scenario import Expectation, Scenario
from ftrun.supervisor.drill.timeline import Row, rows
from ftrun.supervisor.drill_trainer import toy_model
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import IGNORED_SUFFIX, State


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was expected, whether it held, what was seen.

    `timed`: it is about seconds, so it depends on the machine as well.
    """

    wanted: str
    held: bool
    seen: str = ""
    timed: bool = False


def check_outcome(scenario: Scenario, outcome: Outcome) -> tuple[tuple[Row, ...], tuple[Check, ...]]:
    """The rows of the table and every check."""
    if outcome.failure or not outcome.runs:
        why = outcome.failure or "no run came about"
        return (Row(scenario.title, finished="no"),), (Check("the drill can be held", False, why),)
    expect, table = scenario.expect, rows(outcome)
    checks = [
        *_ends(scenario, outcome),
        *_recovery(expect, outcome.runs[0]),
        *_training(expect, outcome.traces[0]),
        *_nodes(expect, outcome),
        *laws(scenario, outcome),
    ]
    if expect.again_within_s is not None:
        checks.append(_in_time(table, expect.again_within_s))
    if outcome.timed_out:
        seen = f"still {outcome.runs[0].state.value} after {scenario.timeout_s:g} s"
        checks.insert(0, Check("it comes to an end in time", False, seen))
    return table, tuple(checks)


def _in_time(table: Sequence[Row], limit_s: float) -> Check:
    took = [row.running_after_s for row in table]
    seen = ", ".join("never" if s is None else f"{s:g} s" for s in took)
    held = all(s is not None and s <= limit_s for s in took)
    return Check(f"running again within {limit_s:g} s", held, seen, timed=None not in took)


def _listed(things: Sequence[Any], nothing: str) -> str:
    return ", ".join(map(str, things)) or nothing


# ---------------------------------------------------------------------------- expectations of one drill


def _ends(scenario: Scenario, outcome: Outcome) -> Iterator[Check]:
    for one in outcome.runs:
        wanted = scenario.expect.end if one is outcome.runs[0] else "finished"
        seen = f"{one.state.value} {one.final_reason}".strip()
        yield Check(f"{one.id} is {wanted}", one.state.value == wanted, seen)
    if len(outcome.runs) != scenario.chain:
        yield Check(f"{scenario.chain} runs", False, str(len(outcome.runs)))


def _recovery(expect: Expectation, run: Run) -> Iterator[Check]:
    classes = [incident.fault for incident in run.incidents]
    held = _same_classes(classes, expect.classes)
    yield Check(f"diagnosed as {_listed(expect.classes, 'nothing')}", held, _listed(classes, "nothing"))
    low, high = expect.attempts_range
    wanted = f"attempts: {low}" + (f" to {high}" if high > low else "")
    yield Check(wanted, low <= len(run.attempts) <= high, str(len(run.attempts)))
    if expect.reason:
        yield Check(f"the reason says {expect.reason!r}", expect.reason in run.final_reason, run.final_reason)
    signatures = [(key, key.split(":")[1]) for key in sorted(run.evidence_seen) if ":" in key]
    if expect.evidence:
        held = any(expect.evidence in name for _, name in signatures)
        names = sorted({name for _, name in signatures})
        yield Check(f"{expect.evidence!r} is on record", held, _listed(names, "nothing"))
    if expect.no_evidence:
        counted = [key for key, name in signatures if expect.no_evidence in name]
        wrong = [key for key in counted if not key.endswith(IGNORED_SUFFIX)]
        others = f"{len(counted)} such lines are told as another job's"
        held = bool(counted) and not wrong
        yield Check(f"{expect.no_evidence!r} is evidence of nothing", held, _listed(wrong, others))
    if expect.rungs:
        kinds = [str(incident.decision.get("kind", "")) for incident in run.incidents]
        yield Check(f"decided: {', '.join(expect.rungs)}", kinds == list(expect.rungs), ", ".join(kinds))
    if expect.told:
        reasons = [str(incident.decision.get("reason", "")) for incident in run.incidents]
        said = any(expect.told in reason for reason in reasons)
        yield Check(f"a decision says {expect.told!r}", said, "; ".join(reasons))
    if expect.ended_by_us is not None:
        first = run.attempts[0]
        by_us = bool(first.end_intended) or any(start.by_us for start in first.begun[:1])
        told = first.end_intended or ("its agent ended it" if by_us else "it ended by itself")
        yield Check("ftrun ended the first start", by_us is expect.ended_by_us, told)


def _same_classes(seen: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the classes match one for one; "a|b" is either, "a?" may be missing."""
    needed = [words for words in wanted if not words.endswith("?")]
    for choice in (wanted, needed):
        words = [word.rstrip("?").split("|") for word in choice]
        if len(seen) == len(words) and all(s in w for s, w in zip(seen, words, strict=True)):
            return True
    return False


def _training(expect: Expectation, trace: Trace) -> Iterator[Check]:
    """Check how often the script started, on how many nodes, from which step, and what was repeated."""
    if expect.starts is not None:
        starts = len(trace.starts)
        yield Check(f"starts of the script: {expect.starts}", starts == expect.starts, str(starts))
    if expect.sizes:
        sizes = tuple(len(trace.nodes_of(start)) for start in trace.starts)
        yield Check(
            f"nodes of each start: {_listed(expect.sizes, '')}", sizes == expect.sizes, _listed(sizes, "none")
        )
    if expect.resumed_from_min:
        # Each rank notes what it read; the newest of a start is where all of its ranks begin.
        began = [
            max(int(line["resumed"]) for line in trace.ranks if line["start"] == n) for n in trace.starts
        ]
        held = len(began) == len(expect.resumed_from_min) and all(
            at >= wanted for at, wanted in zip(began, expect.resumed_from_min, strict=True)
        )
        least = _listed(expect.resumed_from_min, "")
        yield Check(f"each start begins at least at step {least}", held, _listed(began, "none"))
    if expect.read_from:
        places = _places_read(trace)
        wanted = f"the last start reads from {expect.read_from}"
        yield Check(wanted, places == {expect.read_from}, _listed(sorted(places), "nothing"))
    if expect.processes_kept:
        yield _processes_kept(trace)
    if (most := expect.steps_lost_max) is not None:
        yield Check(f"steps trained twice: at most {most}", trace.steps_lost <= most, str(trace.steps_lost))


def _places_read(trace: Trace) -> set[str]:
    """Where the files were that the ranks of the last start read (links followed): memory, disk, or both."""
    last = trace.starts[-1] if trace.starts else 0
    files = [str(path) for line in trace.ranks if line["start"] == last for path in line.get("read", ())]
    return {"disk" if "/published/" in path else "memory" for path in files}


def _processes_kept(trace: Trace) -> Check:
    """Check that every rank that was not hurt is still its first process, and the others are new ones."""
    hurt = {line["rank"] for line in trace.faults}
    ends = {line["rank"]: (line["pid"], line["memory"]) for line in trace.ends}
    wrong = []
    for rank in sorted({line["rank"] for line in trace.ranks}):
        begun = [(line["pid"], line["memory"]) for line in trace.ranks if line["rank"] == rank]
        if ends.get(rank) != begun[-1] or (len(begun) > 1) is not (rank in hurt):
            wrong.append(f"rank {rank}: {len(begun)} processes")
    return Check("every rank but the hurt one keeps its process", bool(hurt) and not wrong, ", ".join(wrong))


def _nodes(expect: Expectation, outcome: Outcome) -> Iterator[Check]:
    run, trace, hurt = outcome.runs[0], outcome.traces[0], outcome.hurt_nodes
    blamed = run.incidents[0].nodes if run.incidents else ()
    if expect.blamed == "hurt":
        yield Check(f"blamed: {', '.join(sorted(hurt))}", set(blamed) == hurt, _listed(blamed, "nobody"))
    elif expect.blamed == "nobody":
        yield Check("blamed: nobody", not blamed, _listed(blamed, "nobody"))
    if answer := expect.site_answer:
        asked = run.asked.values()
        told = [f"{request['verdict'] or request['step']}: {request['why']}" for request in asked]
        held = [str(request["verdict"]) for request in asked] == [answer]
        yield Check(f"the answer of the site's service: {answer}", held, _listed(told, "nobody asked"))
    if (drained := expect.drained_nodes) is not None:
        ours = [node for node, reason in outcome.reasons.items() if reason.startswith("ftrun:")]
        yield Check(f"nodes held in the end: {drained}", len(ours) == drained, _listed(ours, "none"))
    if expect.avoided:
        # A node blamed in a class that needs proof is avoided from the second time on.
        nodes = trace.nodes_of(trace.starts[-1]) if trace.starts else frozenset()
        held = bool(hurt) and bool(nodes) and not hurt & nodes
        ran_on = f"it ran on {_listed(sorted(nodes), 'nothing')}"
        yield Check(f"the last start avoids {', '.join(sorted(hurt))}", held, ran_on)


# ---------------------------------------------------------------------------- laws of every drill


def laws(scenario: Scenario, outcome: Outcome) -> Iterator[Check]:
    """Check the laws that hold in every supervised training, whatever fault struck."""
    for run, trace in zip(outcome.runs, outcome.traces, strict=False):
        yield _weights(scenario, run, trace)
        yield _no_overlap(trace)
        yield _continued(trace)
    told = ", ".join(outcome.jobs_left) or "none"
    yield Check("no job of the training is left", outcome.timed_out or not outcome.jobs_left, told)
    if len(outcome.traces) > 1:
        yield _in_turn(outcome.traces)
    yield _checkpoints(outcome)
    if scenario.stage is not None:
        yield from _staged_laws(scenario, outcome)


def _weights(scenario: Scenario, run: Run, trace: Trace) -> Check:
    if run.state is not State.FINISHED:
        return Check("nothing was trained to the end", not trace.finals, f"{len(trace.finals)} ends")
    right = toy_model.checksum(toy_model.weights_after(scenario.steps, scenario.ranks))
    ends = [str(line["checksum"]) for line in trace.finals]
    return Check(
        "the weights are those of an undisturbed training, once",
        ends == [right],
        f"{', '.join(ends) or 'none'} (right: {right})",
    )


def _no_overlap(trace: Trace) -> Check:
    """Check that no line of an older start follows one of a newer start."""
    newest, wrong = 0, ""
    for line in sorted((*trace.steps, *trace.saves, *trace.ranks), key=lambda line: float(line["at"])):
        if line["start"] < newest:
            wrong = f"start {line['start']} went on after start {newest} had begun"
        newest = max(newest, line["start"])
    return Check("never two at the same time", not wrong, wrong)


def _continued(trace: Trace) -> Check:
    wrong, saved = "", {0}
    steps: dict[int, list[int]] = {}
    for line in trace.steps:
        steps.setdefault(line["start"], []).append(line["step"])
    for start, made in sorted(steps.items()):
        if made[0] - 1 not in saved:
            wrong = wrong or f"start {start} began at step {made[0]}"
        elif made != list(range(made[0], made[0] + len(made))):
            wrong = wrong or f"start {start} left steps out"
        saved |= {line["step"] for line in trace.saves if line["start"] == start}
    return Check("every start goes on from a checkpoint", not wrong, wrong)


def _in_turn(traces: Sequence[Trace]) -> Check:
    """Check that each training of a chain begins after the end of the one before it."""
    for before, now in pairwise(traces):
        ended = max((float(line["at"]) for line in before.finals), default=None)
        began = min((float(line["at"]) for line in now.ranks), default=None)
        if began is not None and (ended is None or began < ended):
            return Check("each job waits for the one before it", False, "one began too early")
    return Check("each job waits for the one before it", True)


def _checkpoints(outcome: Outcome) -> Check:
    """Check that each file holds what was logged last about it, and is complete unless a fault tore it."""
    trace, wrong = outcome.traces[0], ""
    torn = any(line["what"].endswith("-save") for line in trace.faults)
    writers = {str(line["path"]): line["start"] for line in trace.saves}
    for path, state in outcome.checkpoints.items():
        if isinstance(state, str):
            if path in writers or not torn:  # else the fault itself tore it, and no later start reached it
                wrong = wrong or f"{path}: {state}"
        elif writers.get(path) != state.get("start"):
            wrong = wrong or f"{path} is of start {state.get('start')}, noted was {writers.get(path)}"
    seen = wrong or f"{len(outcome.checkpoints)} checkpoints"
    return Check("no checkpoint is overwritten or torn", not wrong, seen)


def _staged_laws(scenario: Scenario, outcome: Outcome) -> Iterator[Check]:
    """Check that published checkpoints are complete, of one start, as expected, and that memory is free."""
    trace = outcome.traces[0]
    saved = {(int(line["step"]), int(line["start"])) for line in trace.saves}
    wrong = ""
    for path, state in outcome.published.items():
        if isinstance(state, str):
            wrong = f"{path}: {state}"
        elif (state["step"], state["start"]) not in saved:
            wrong = f"{path} is of step {state['step']} and start {state['start']}, which none saved"
    yield Check("what is published is whole", not wrong, wrong or f"{len(outcome.published)} checkpoints")
    steps = sorted(state["step"] for state in outcome.published.values() if not isinstance(state, str))
    missing = [step for step in scenario.expect.published if step not in steps]
    wanted = ", ".join(map(str, scenario.expect.published))
    if wanted:
        yield Check(f"published in the end: {wanted}", not missing, ", ".join(map(str, steps)) or "nothing")
    left = [f"{node}: {', '.join(jobs)}" for node, jobs in outcome.in_memory.items() if jobs]
    yield Check("nothing is left in the memory of the nodes", not left, "; ".join(left) or "nothing")
