"""Did it come as it must? A drill's story against its expectations. (pure)

Besides what each drill expects, four laws are checked in every one: what is trained is exactly what an undisturbed
training gives; starts of one run never overlap; each start goes on where a checkpoint ended; and no
checkpoint was written over by a start that came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ftrun.slurm.records import replace
from ftrun.supervisor.drill import weights
from ftrun.supervisor.drill.terms import Check, Expect, Ledger, Row, Scenario, Story
from ftrun.supervisor.drill.verdict_staged import resumptions, staged_laws
from ftrun.supervisor.lifecycle import IGNORED, State
from ftrun.supervisor.run_types import Incident, Run

__all__ = ["judge", "laws"]


def judge(scenario: Scenario, story: Story) -> tuple[tuple[Row, ...], tuple[Check, ...]]:
    """The rows of the table and every check."""
    if story.failure or not story.runs:
        why = story.failure or "no run came about"
        return (Row(scenario.title, finished="no"),), (Check("the drill can be held", False, why),)
    rows = _rows(story)
    checks = [*_asked(scenario, story), *laws(scenario, story)]
    if scenario.expect.again_within_s is not None:
        checks.append(_in_time(rows, scenario.expect.again_within_s))
    if story.timed_out:
        seen = f"still {story.runs[0].state.value} after {scenario.timeout_s:g} s"
        checks.insert(0, Check("it comes to an end in time", False, seen))
    return rows, tuple(checks)


def _in_time(rows: Sequence[Row], limit_s: float) -> Check:
    took = [row.running_after_s for row in rows]
    seen = ", ".join("never" if s is None else f"{s:g} s" for s in took)
    held = all(s is not None and s <= limit_s for s in took)
    return Check(f"running again within {limit_s:g} s", held, seen, timed=None not in took)


# ---------------------------------------------------------------------------- what this drill asks


def _asked(scenario: Scenario, story: Story) -> Iterator[Check]:
    expect, run, ledger = scenario.expect, story.runs[0], story.ledgers[0]
    for one in story.runs:
        wanted = expect.end if one is run else "finished"
        yield Check(
            f"{one.id} is {wanted}",
            one.state.value == wanted,
            f"{one.state.value} {one.final_reason}".strip(),
        )
    if len(story.runs) != scenario.chain:
        yield Check(f"{scenario.chain} runs", False, str(len(story.runs)))
    seen = [incident.fault for incident in run.incidents]
    held = _same_classes(seen, expect.classes)
    yield Check(f"diagnosed as {', '.join(expect.classes) or 'nothing'}", held, ", ".join(seen) or "nothing")
    low, high = expect.attempts if isinstance(expect.attempts, tuple) else (expect.attempts, expect.attempts)
    yield Check(
        f"attempts: {low}" + (f" to {high}" if high > low else ""),
        low <= len(run.attempts) <= high,
        str(len(run.attempts)),
    )
    if expect.starts is not None:
        starts = {line["start"] for line in ledger.ranks}
        yield Check(f"starts of the script: {expect.starts}", len(starts) == expect.starts, str(len(starts)))
    if expect.sizes:
        trained = _sizes(ledger)
        told = ", ".join(map(str, trained))
        yield Check(
            f"nodes of each start: {', '.join(map(str, expect.sizes))}", trained == expect.sizes, told
        )
    if expect.reason:
        yield Check(f"the reason says {expect.reason!r}", expect.reason in run.final_reason, run.final_reason)
    if expect.evidence:
        signatures = sorted({key.split(":")[1] for key in run.evidence_seen if ":" in key})
        yield Check(
            f"{expect.evidence!r} is on record",
            any(expect.evidence in s for s in signatures),
            ", ".join(signatures) or "nothing",
        )
    if expect.no_evidence:
        counted = [key for key in run.evidence_seen if expect.no_evidence in key.split(":")[1]]
        wrong = sorted(key for key in counted if not key.endswith(IGNORED))
        others = f"{len(counted)} such lines are told as another job's"
        yield Check(
            f"{expect.no_evidence!r} is evidence of nothing",
            bool(counted) and not wrong,
            ", ".join(wrong) or others,
        )
    if expect.rungs:
        kinds = [str(incident.decision.get("kind", "")) for incident in run.incidents]
        yield Check(f"decided: {', '.join(expect.rungs)}", kinds == list(expect.rungs), ", ".join(kinds))
    yield from resumptions(expect, ledger)
    if expect.stayed:
        yield _stayed(ledger)
    if expect.ended_by_us is not None:
        first = run.attempts[0]
        by_us = bool(first.end_intended) or any(start.by_us for start in first.begun[:1])
        yield Check(
            "ftrun ended the first start",
            by_us is expect.ended_by_us,
            first.end_intended or ("its agent ended it" if by_us else "it ended by itself"),
        )
    yield from _nodes(expect, story)
    if expect.steps_lost_max is not None:
        lost = _steps_lost(ledger)
        yield Check(
            f"steps trained twice: at most {expect.steps_lost_max}", lost <= expect.steps_lost_max, str(lost)
        )


def _sizes(ledger: Ledger) -> tuple[int, ...]:
    nodes: dict[int, set[str]] = {}
    for line in ledger.ranks:
        nodes.setdefault(int(line["start"]), set()).add(str(line["node"]))
    return tuple(len(nodes[start]) for start in sorted(nodes))


def _same_classes(seen: Sequence[str], wanted: Sequence[str]) -> bool:
    """One for one; "a|b" is either, "a?" may be missing."""
    needed = [words for words in wanted if not words.endswith("?")]
    for choice in (wanted, needed):
        words = [word.rstrip("?").split("|") for word in choice]
        if len(seen) == len(words) and all(s in w for s, w in zip(seen, words, strict=True)):
            return True
    return False


def _nodes(expect: Expect, story: Story) -> Iterator[Check]:
    run, hurt = story.runs[0], _hurt_nodes(story)
    blamed = run.incidents[0].nodes if run.incidents else ()
    if expect.blamed == "hurt":
        yield Check(f"blamed: {', '.join(sorted(hurt))}", set(blamed) == hurt, ", ".join(blamed) or "nobody")
    elif expect.blamed == "nobody":
        yield Check("blamed: nobody", not blamed, ", ".join(blamed) or "nobody")
    if expect.answer:
        verdicts = [str(request["verdict"]) for request in run.asked.values()]
        told = (
            ", ".join(f"{r['verdict'] or r['step']}: {r['why']}" for r in run.asked.values())
            or "nobody asked"
        )
        yield Check(f"the operator's answer: {expect.answer}", verdicts == [expect.answer], told)
    if expect.held is not None:
        ours = [node for node, reason in story.reasons.items() if reason.startswith("ftrun:")]
        yield Check(
            f"nodes held in the end: {expect.held}", len(ours) == expect.held, ", ".join(ours) or "none"
        )
    if expect.avoided:
        # A node blamed in a class that needs proof is avoided from the second time on.
        ranks = story.ledgers[0].ranks
        last = max((line["start"] for line in ranks), default=0)
        nodes = sorted({str(line["node"]) for line in ranks if line["start"] == last})
        yield Check(
            f"the last start avoids {', '.join(sorted(hurt))}",
            bool(hurt) and bool(nodes) and not hurt & set(nodes),
            f"it ran on {', '.join(nodes) or 'nothing'}",
        )


def _stayed(ledger: Ledger) -> Check:
    """Every rank but those that were hurt is at the end the process that it was at the beginning; those are new ones."""
    hurt = {line["rank"] for line in ledger.hurts}
    ends = {line["rank"]: (line["pid"], line["memory"]) for line in ledger.ends}
    wrong = []
    for rank in sorted({line["rank"] for line in ledger.ranks}):
        begun = [(line["pid"], line["memory"]) for line in ledger.ranks if line["rank"] == rank]
        if ends.get(rank) != begun[-1] or (len(begun) > 1) is not (rank in hurt):
            wrong.append(f"rank {rank}: {len(begun)} processes")
    return Check("every rank but the hurt one keeps its process", bool(hurt) and not wrong, ", ".join(wrong))


def _hurt_nodes(story: Story) -> set[str]:
    struck = {str(line["node"]) for line in story.ledgers[0].hurts}
    return {node for node in {str(line["node"]) for line in story.hurts} | struck if node}


# ---------------------------------------------------------------------------- what every drill asks


def laws(scenario: Scenario, story: Story) -> Iterator[Check]:
    """What holds in every training that ftrun looks after, whatever befell it."""
    for run, ledger in zip(story.runs, story.ledgers, strict=False):
        yield _weights(scenario, run, ledger)
        yield _no_overlap(ledger)
        yield _continued(ledger)
    told = ", ".join(story.left) or "none"
    yield Check("no job of the training is left", story.timed_out or not story.left, told)
    if len(story.ledgers) > 1:
        yield _in_turn(story.ledgers)
    yield _checkpoints(story)
    if scenario.stage is not None:
        yield from staged_laws(scenario, story)


def _weights(scenario: Scenario, run: Run, ledger: Ledger) -> Check:
    if run.state is not State.FINISHED:
        return Check("nothing was trained to the end", not ledger.finals, f"{len(ledger.finals)} ends")
    right = weights.checksum(weights.weights_after(scenario.steps, scenario.ranks))
    ends = [str(line["checksum"]) for line in ledger.finals]
    return Check(
        "the weights are those of an undisturbed training, once",
        ends == [right],
        f"{', '.join(ends) or 'none'} (right: {right})",
    )


def _no_overlap(ledger: Ledger) -> Check:
    """The ledger is in the order of writing: no line of an older start may follow one of a newer start."""
    newest, wrong = 0, ""
    for line in sorted((*ledger.steps, *ledger.saves, *ledger.ranks), key=lambda line: float(line["at"])):
        if line["start"] < newest:
            wrong = f"start {line['start']} went on after start {newest} had begun"
        newest = max(newest, line["start"])
    return Check("never two at the same time", not wrong, wrong)


def _continued(ledger: Ledger) -> Check:
    saved = {0}
    steps: dict[int, list[int]] = {}
    for line in ledger.steps:
        steps.setdefault(line["start"], []).append(line["step"])
    for start, made in sorted(steps.items()):
        if made[0] - 1 not in saved:
            return Check(
                "every start goes on from a checkpoint", False, f"start {start} began at step {made[0]}"
            )
        if made != list(range(made[0], made[0] + len(made))):
            return Check("every start goes on from a checkpoint", False, f"start {start} left steps out")
        saved |= {line["step"] for line in ledger.saves if line["start"] == start}
    return Check("every start goes on from a checkpoint", True)


def _in_turn(ledgers: Sequence[Ledger]) -> Check:
    """Each training of a pipeline begins after the one before it has come to its end."""
    for before, now in pairwise(ledgers):
        ended = max((float(line["at"]) for line in before.finals), default=None)
        began = min((float(line["at"]) for line in now.ranks), default=None)
        if began is not None and (ended is None or began < ended):
            return Check("each job waits for the one before it", False, "one began too early")
    return Check("each job waits for the one before it", True)


def _checkpoints(story: Story) -> Check:
    """A file in its place holds what was noted last about it, and is whole (but for one that a fault tore)."""
    torn = {line["step"] for line in story.ledgers[0].hurts if line["what"].endswith("-save")}
    writers = {str(line["path"]): line["start"] for line in story.ledgers[0].saves}
    for path, state in story.checkpoints.items():
        if isinstance(state, str):
            if path not in writers and torn:
                continue  # torn by the fault itself, and not reached again
            return Check("no checkpoint is overwritten or torn", False, f"{path}: {state}")
        if writers.get(path) != state.get("start"):
            return Check(
                "no checkpoint is overwritten or torn",
                False,
                f"{path} is of start {state.get('start')}, noted was {writers.get(path)}",
            )
    return Check("no checkpoint is overwritten or torn", True, f"{len(story.checkpoints)} checkpoints")


def _steps_lost(ledger: Ledger) -> int:
    """Steps that were trained more than once."""
    return len(ledger.steps) - len({line["step"] for line in ledger.steps})


# ---------------------------------------------------------------------------- the table


def _rows(story: Story) -> tuple[Row, ...]:
    run, ledger = story.runs[0], story.ledgers[0]
    hurts = sorted((*ledger.hurts, *story.hurts), key=lambda line: float(line["at"]))
    finished = "yes" if run.state is State.FINISHED else "stopped" if run.final else "no"
    if not run.incidents:
        what = str(hurts[0]["what"]) if hurts else "-"
        return (Row(what, action=_action(run), steps_lost=_steps_lost(ledger), finished=finished),)
    rows = [_row(incident, hurts, ledger) for incident in run.incidents]
    return (*rows[:-1], replace(rows[-1], finished=finished))


def _row(incident: Incident, hurts: Sequence[Mapping[str, Any]], ledger: Ledger) -> Row:
    ours = [line for line in hurts if float(line["at"]) <= incident.diagnosed_at_s]
    mine = [line for line in ours if line.get("start") in (None, incident.attempt)] or ours
    at = float(mine[0]["at"]) if mine else None
    seen = [
        t
        for t in (incident.first_evidence_at_s, incident.ended_at_s, incident.diagnosed_at_s)
        if t is not None
    ]
    detected = min((t for t in seen if at is None or t >= at - 0.5), default=incident.diagnosed_at_s)
    again = _again_at_s(incident, ledger)
    return Row(
        fault=str(mine[0]["what"]) if mine else incident.title,
        detected_after_s=round(max(0.0, detected - at), 1) if at is not None else None,
        diagnosed_as=incident.fault + (f" ({incident.signature})" if incident.signature else ""),
        node_blamed=",".join(incident.nodes) or None,
        action=_decision_in_words(incident.decision),
        running_after_s=round(again - at, 1) if at is not None and again is not None else None,
        steps_lost=_lost_after(incident, ledger),
        phases=_phases(incident, ledger, at),
    )


def _again_at_s(incident: Incident, ledger: Ledger) -> float | None:
    """When what had failed ran again: the script, or on the finest rung the rank itself."""
    if incident.decision.get("kind") != "rank":
        return incident.running_again_at_s
    begun = (float(line["at"]) for line in ledger.ranks)
    return min((at_s for at_s in begun if at_s >= incident.diagnosed_at_s), default=None)


def _phases(incident: Incident, ledger: Ledger, at: float | None) -> dict[str, float]:
    """Phase of the recovery -> seconds after the fault. The first new step is the ledger's: nobody has to notice it."""
    again = _again_at_s(incident, ledger)
    steps = (float(line["at"]) for line in ledger.steps)
    first = min((step_at for step_at in steps if again is not None and step_at >= again), default=None)
    times = {
        "diagnosed": incident.diagnosed_at_s,
        "decided": incident.decided_at_s,
        "stopped": incident.stopped_at_s,
        "placed": incident.placed_at_s,
        "restarted": again,
        "first step": first,
    }
    if at is None:
        return {}
    return {phase: round(time_s - at, 1) for phase, time_s in times.items() if time_s is not None}


def _lost_after(incident: Incident, ledger: Ledger) -> int | None:
    """Steps before the incident that were trained again after it; None where nothing was trained after it."""
    before = [int(line["step"]) for line in ledger.steps if float(line["at"]) <= incident.diagnosed_at_s]
    after = [int(line["step"]) for line in ledger.steps if float(line["at"]) > incident.diagnosed_at_s]
    return max(0, max(before, default=0) - after[0] + 1) if after else None


def _action(run: Run) -> str:
    if run.state is State.FINISHED:
        return "left to Slurm's requeue" if any(attempt.launch.number for attempt in run.attempts) else "none"
    return run.final_reason or "none"


def _decision_in_words(decision: Mapping[str, Any]) -> str | None:
    if not decision:
        return None
    kind = str(decision.get("kind", ""))
    if decision.get("exclude"):
        kind += f" without {','.join(decision['exclude'])}"
    elif decision.get("avoid"):
        kind += " elsewhere"
    if decision.get("older_checkpoint"):
        kind += " from an older checkpoint"
    return kind
