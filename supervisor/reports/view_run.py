"""A run as facts for people and programs: what `status`, `show`, `history` and `explain` print. (I/O)

Each function takes folded runs and returns plain values (the `--json` form) or short texts; the commands only
lay them out. The companions of an attempt come first, then runs, attempts and incidents, then the conditions
of stop and pause and the expected end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ftrun.slurm import records
from ftrun.slurm.client import nodeset
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.model.agent_events import companion_job_of
from ftrun.supervisor.model.run import Attempt, Companion, Incident, Run
from ftrun.supervisor.model.states import FINAL_STATES, State
from ftrun.supervisor.model.stop_conditions import StopConditions
from ftrun.supervisor.model.types import CLASS_RULES, UNLIMITED, FaultClass
from ftrun.supervisor.policy import estimates
from ftrun.supervisor.policy.policy_input import limits_from

if TYPE_CHECKING:
    from ftrun.supervisor.store.attempt_dir import LaunchRecord
    from ftrun.supervisor.store.live_steps import StepSeen
    from ftrun.supervisor.telemetry.progress import Progress, ProgressReader


def clock_text(at_s: float | None) -> str | None:
    """A moment by the local clock: `2026-12-24 18:00:00`; None for none."""
    return None if at_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def zoned_clock_text(at_s: float | None, *, begin: int = 0, end: int | None = None) -> str | None:
    """The same with its time zone, `2026-12-24 18:00:00 CET`, for a view that does not name the zone elsewhere; of the
    clock only the characters from `begin` to `end`.
    """
    clock = clock_text(at_s)
    return clock and f"{clock[begin:end]} {time.strftime('%Z', time.localtime(at_s))}"


def companion_facts(one: Companion) -> dict[str, Any]:
    """One companion of an attempt. `since`: when it was requested or joined (Unix time)."""
    facts = records.columns(one, "companion=number launch job nodes nodes_asked pool state since=asked_at_s")
    facts |= records.columns(one, "ended_at=gone_at_s end_state reason")
    return facts | ({"since": one.here_at_s} if one.here_at_s is not None else {})


_HOW = {
    "intended": "is requested",
    "submitted": "is in the queue",
    "here": "holds",
    "failed": "failed, held",
    "ending": "is being ended, held",
    "ended": "is being ended, held",
    "gone": "held",
}


def companions_text(companions: Iterable[Mapping[str, Any]]) -> str:
    """Companions in few words: `companion job 17 holds n5`; "" for none."""
    told = []
    for one in companions:
        count = f"{one['nodes_asked']} node{'s' if one['nodes_asked'] != 1 else ''}"
        what, how = nodeset.fold(one["nodes"]) or count, _HOW[one["state"]]
        if one["state"] in ("intended", "submitted"):
            what = f"({count})"
        told.append(f"companion{f' job {name}' if (name := one['job']) else ''} {how} {what}{_whence(one)}")
    return "; ".join(told)


def _whence(data: Mapping[str, Any]) -> str:
    return f" of {pool}" if (pool := data.get("pool")) else ""


def _more(count: int) -> str:
    return f"{count} more {'node' if count == 1 else 'nodes'}"


def _which(data: Mapping[str, Any]) -> str:
    return f"companion {data['number']}" + (f" (job {job})" if (job := companion_job_of(data)) else "")


def _gone(data: Mapping[str, Any]) -> str:
    how = data.get("state") or data.get("reason", "")
    return f"{_which(data)} is gone" + (f": {how}" if how else "")


# The lines of `explain` for records of companions; the job in a record's own columns is the main one.
COMPANION_LINES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "companion.intended": lambda d: f"{_which(d)} is requested, {_more(d['nodes'])}{_whence(d)}: {d['why']}",
    "companion.submitted": lambda d: f"{_which(d)} is in the queue" + (" (found by its mark)" if d.get("found") else ""),
    "companion.here": lambda d: f"{_which(d)} holds {nodeset.fold(d['nodes'])}",
    "companion.failed": lambda d: f"{_which(d)} failed: {d['reason']}",
    "companion.ended": lambda d: f"{_which(d)} was cancelled: {d['reason']}",
    "companion.gone": _gone,
}  # fmt: skip


STEP_TAIL_BYTES = 1 << 16


class LiveSteps:
    """The steps that the ends of live logs show: the journal notes one a minute. A look reads what is new.

    `told`: what the supervisor saw of the logs of many runs a moment ago; only what came since is read of them.
    """

    def __init__(self, told: Mapping[str, StepSeen] = MappingProxyType({})) -> None:
        self._readers: dict[str, tuple[str, int, ProgressReader]] = {}  # folder -> log, bytes read, reader
        self._told = told

    def progress(self, run_dir: str, run: Run, now_s: float) -> Progress | None:
        """What the live log of a run shows now; None without one."""
        attempt = run.attempt
        if attempt is None or run.final or attempt.launch.end.state:
            self._readers.pop(run_dir, None)
            return None
        seen = self._told.get(run.id)
        if seen is not None and seen.start == (
            attempt.number,
            attempt.launch.number,
            attempt.launch.start.number,
        ):
            found = _since(seen, now_s)
            if found is not None:
                return found
        from ftrun.supervisor.store import attempt_dir
        from ftrun.supervisor.telemetry.progress import ProgressReader

        record = attempt_dir.latest_start_record(run_dir, attempt.number, attempt.launch.number)
        path = record.stdout if record else ""
        known, reached, reader = self._readers.get(run_dir, ("", 0, None))
        try:
            with open(path, "rb") as stream:
                size = stream.seek(0, 2)
                begin = max(record.stdout_offset_bytes if record else 0, size - STEP_TAIL_BYTES)
                if reader is None or known != path or not begin <= reached <= size:
                    reached, reader = begin, ProgressReader(start_offset_bytes=begin)
                stream.seek(reached)
                text = stream.read(STEP_TAIL_BYTES)
        except (OSError, ValueError):  # the log is gone, elsewhere, or none
            return None
        if text:
            reader.feed(text, now_s)
        self._readers[run_dir] = (path, reached + len(text), reader)
        return reader.at_rest()[0]


def _since(seen: StepSeen, now_s: float) -> Progress | None:
    """What a log shows now; None where it is not the one that was seen, or has grown by much."""
    from ftrun.supervisor.telemetry.progress import Progress, ProgressReader

    try:
        more_bytes = os.stat(seen.log).st_size - seen.size_bytes
        if not 0 <= more_bytes <= STEP_TAIL_BYTES:
            return None
        known = Progress(step=seen.step)
        if not more_bytes:
            return known
        with open(seen.log, "rb", buffering=0) as stream:
            stream.seek(seen.size_bytes)
            reader = ProgressReader(start_offset_bytes=seen.size_bytes)
            reader.feed(stream.read(more_bytes), now_s)
    except OSError:
        return None
    newest = reader.at_rest()[0]
    return newest if newest is not None and (newest.step or -1) > seen.step else known


def at_step(run: Run, progress: Progress | None, now_s: float) -> Run:
    """The run with the step that its live log shows."""
    attempt = run.attempt
    if progress is None or progress.step is None or attempt is None:
        return run
    noted = attempt.last_step if attempt.last_step is not None and len(attempt.begun) < 2 else -1
    later = progress.step > noted
    return run.with_attempt(last_step=progress.step, stepped_at_s=now_s) if later else run


def with_present_step(run_dir: str, run: Run, now_s: float) -> Run:
    """The run with the step that the end of its live log shows, for those who look once."""
    return at_step(run, LiveSteps().progress(run_dir, run, now_s), now_s)


def start_text(key: tuple[int, int, int], record: LaunchRecord) -> str:
    """One start of the script, as a line above its output; `key`: attempt, launch, start."""
    attempt, launch, start = key
    name = (
        f"attempt {attempt}"
        + (f" launch {launch}" if launch else "")
        + (f" start {start}" if start > 1 else "")
    )
    began = f", {zoned_clock_text(record.started_s)}" if record.started_s else ""
    return f"{name}: job {record.job} on {nodeset.fold(record.nodes)}{began}"


def run_row(run: Run, now_s: float) -> dict[str, Any]:
    """The facts of one row of `ftrun status`."""
    attempt = run.attempt
    last = run.incidents[-1] if run.incidents else None
    return {
        "run": run.id,
        "name": run.name,
        "state": run.state.value,
        "attempt": attempt.number if attempt else 0,
        "job": attempt.job if attempt else "",
        "nodes": list(attempt.nodes) if attempt else [],
        "step": attempt.last_step if attempt and attempt.last_step is not None else run.best_step,
        "retries_used": run.retries,
        "retries_left": max(0, int(number_of(run.settings, "retries")) - run.retries),
        "net_progress_at": run.progress_at_s,
        "caps": _caps(run, now_s),
        "inside": _inside(attempt, _full(run)) if attempt else _NOTHING_INSIDE,
        "growth": _growth(run),
        "companions": [companion_facts(one) for one in attempt.companions if not one.gone] if attempt else [],
        "excluded": list(run.excluded_at(now_s)),
        "step_s": attempt.step_s if attempt else None,
        "last_fault": last.fault if last else "",
        "last_fault_at": last.diagnosed_at_s if last else None,
        "why": run.final_reason or str(run.decision.get("reason", "")),
        "wish": run.wish,
        "halt": dict(run.halt),
        "paused": run.paused,
        "leaving": dict(run.leaving),
        "expected_end": estimates.estimate_json(estimates.estimate_run(run, now_s)),
        "observe": bool(run.settings.get("observe")),
        "warnings": list(run.warnings),
        "asked": [{"request": request_id, **facts} for request_id, facts in run.asked.items()],
        "created_at": run.created_at_s,
        "updated_at": run.last_at_s,
    }


_NOTHING_INSIDE: Mapping[str, Any] = {
    "agent": False, "start": 0, "restarts": 0, "swaps": [], "active": [], "spares": [], "aside": [], "full": 0, "ladder_off": "",
}  # fmt: skip


def _full(run: Run) -> int:
    """The largest size of a run that has several; 0 if it has one."""
    sizes = sizes_of_settings(run.settings)
    return sizes.full if sizes is not None else 0


def _inside(attempt: Attempt, full: int = 0) -> dict[str, Any]:
    """The state inside the present launch: starts of the script, swapped nodes, why the ladder is off.

    `full`: the full size of the run, 0 if it has only one size.
    """
    begun = [one for one in attempt.begun if one.launch == attempt.launch.number]
    swaps = [  # the order of a node list may have changed, so compare sets
        [left, taken]
        for before, after in pairwise(begun)
        for left, taken in zip(
            (node for node in before.nodes if node not in after.nodes),
            (node for node in after.nodes if node not in before.nodes),
            strict=False,
        )
    ]
    return {
        "agent": attempt.launch.inside,
        "start": attempt.launch.start.number if attempt.launch.running_seen_at_s is not None else 0,
        "restarts": attempt.launch.start.number - 1,
        "swaps": swaps,
        "active": list(attempt.used),
        "spares": list(attempt.unused),
        "aside": list(attempt.launch.aside),
        "full": full,
        "ladder_off": attempt.launch.ladder_off or attempt.launch.no_agent,
    }


def _growth(run: Run) -> str:
    """Why a run stays below its full size; "" if it is at full size or has only one."""
    sizes, attempt = sizes_of_settings(run.settings), run.attempt
    if sizes is None or attempt is None or attempt.launch.running_seen_at_s is None or run.final:
        return ""
    return attempt.growth if len(attempt.used) < sizes.full else ""


def inside_text(inside: Mapping[str, Any]) -> str:
    """The state inside a launch in few words; "" if there is nothing to report."""
    times = inside["restarts"]
    told = [f"restarted in place {'once' if times == 1 else f'{times}x'}"] if times else []
    told += [f"{left} -> {taken}" for left, taken in inside["swaps"]]
    told += (
        [f"on {len(inside['active'])} of {inside['full']} nodes"]
        if 0 < len(inside["active"]) < inside["full"]
        else []
    )
    told += [f"ladder off: {inside['ladder_off']}"] if inside["ladder_off"] else []
    return "; ".join(told)


def why_text(row: Mapping[str, Any]) -> str:
    """Why a run (a `run_row`) is where it is: the last decision, and what is the matter inside its launch."""
    words = (row["why"], inside_text(row["inside"]), companions_text(row["companions"]), growth_text(row))
    return "; ".join(filter(None, words))


def growth_text(facts: Mapping[str, Any]) -> str:
    """Why the run is not larger; "" if it is at full size."""
    return f"below its full size: {facts['growth']}" if facts["growth"] else ""


def run_facts(run: Run, now_s: float) -> dict[str, Any]:
    """Everything about one run."""
    told = records.columns(
        run,
        "settings jobs=job_ids companion_jobs=companion_ids best_step best_checkpoint drained exit_code final_class"
        " rungs_used=rungs",
    )
    return (
        run_row(run, now_s)
        | told
        | {
            "attempts": [attempt_facts(a, _full(run)) for a in run.attempts],
            "incidents": [incident_facts(i) for i in run.incidents],
            "budgets": budgets(run),
            "escalated": dict(run.more),
            "exclusions": [
                {"node": e.node, "until": e.until_s, "why": e.why} for e in run.excluded if e.until_s > now_s
            ],
            "checkpoints_set_aside": [path for path, _ in run.set_aside],
            "divergences": [one._asdict() for one in run.poisoned],
            "tasks_given_up": [
                {"tasks": list(lot.tasks), "class": lot.fault, "title": lot.title} for lot in run.given_up
            ],
        }
    )


def attempt_facts(attempt: Attempt, full: int = 0) -> dict[str, Any]:
    """One attempt: where it ran, how it ended. `full`: full size of the run, 0 if it has only one."""
    facts = records.columns(
        attempt,
        "attempt=number job launch=launch.number nodes size submission submitted_at=submitted_at_s"
        " started_at=launch.running_seen_at_s ended_at=launch.end.at_s end_state=launch.end.state"
        " end_reason=launch.end.reason exit_code=launch.end.exit_code exit_signal=launch.end.exit_signal"
        " ended_by_ftrun=end_intended excluded resumed_from=launch.start.resume_from"
        " passed_over=launch.start.passed_over last_step tasks failed_tasks",
    )
    return facts | {
        "started_at": facts["started_at"] or attempt.launch.end.slurm_started_at_s,
        "slurm_started_at": attempt.launch.end.slurm_started_at_s or attempt.launch.started_at_s,
        "slurm_ended_at": attempt.launch.end.slurm_at_s,
        "inside": _inside(attempt, full),
        "companions": [companion_facts(one) for one in attempt.companions],
        "starts": [records.columns(one, _START) for one in attempt.begun],
    }


# One start of the script inside a launch, as its agent recorded it.
_START = (
    "launch start=number nodes begun_at=begun_at_s ended_at=over_at_s code signal ended_by_ftrun=by_us"
    " resumed_from=resume_from passed_over"
)


_MOMENTS = {
    "evidence": "first_evidence_at_s", "end": "ended_at_s", "diagnosis": "diagnosed_at_s", "decision": "decided_at_s",
    "stopped": "stopped_at_s", "placed": "placed_at_s", "running": "running_again_at_s", "first_step": "first_step_at_s",
}  # fmt: skip
_PHASES = (*pairwise(_MOMENTS), ("decision", "running"))


def incident_facts(incident: Incident) -> dict[str, Any]:
    """One fault with its phases in seconds; None for a phase that has not come or was not seen."""
    decision = incident.decision
    return records.columns(incident, "incident=id attempt start class=fault signature title nodes step") | {
        "inside": incident.id.count(".") > 1,
        "action": decision.get("kind", ""),
        "rung": incident.rung,
        "path": [list(step) for step in incident.path],
        "reason": decision.get("reason", ""),
        "excluded": list(decision.get("exclude", ())),
        "drained": list(decision.get("drain", ())),
        "notes": list(decision.get("notes", ())),
        "diagnosis": dict(incident.diagnosis),
        "seconds": {
            f"{first}_to_{last}": _between(
                getattr(incident, _MOMENTS[first]), getattr(incident, _MOMENTS[last])
            )
            for first, last in _PHASES
        },
    }


def reason_text(incident: Mapping[str, Any]) -> str:
    """What the decision says beyond the class, the title and the nodes, which stand beside it in a table."""
    reason = str(incident["reason"])
    rest = reason.removeprefix(f"{incident['class']}: {incident['title']}")
    if rest == reason:
        return reason
    return rest.removeprefix(f" on {nodeset.fold(incident['nodes'])}").lstrip(":;, ")


def end_lines(facts: Mapping[str, Any]) -> list[str]:
    """The lines of `ftrun show` for a run that a fault has stopped: the proof, what to mend, how to go on."""
    if facts["state"] != State.STOPPED.value or facts["paused"] or not facts["incidents"]:
        return []
    diagnosis, told = facts["incidents"][-1]["diagnosis"], []
    if lines := diagnosis.get("because"):
        one = lines[-1] if diagnosis["class"] == FaultClass.UNKNOWN else lines[0]
        told.append(f"proof: {one['file']}:{one['line']}: {one['text']}")
    if diagnosis.get("advice"):
        told.append(f"advice: {diagnosis['advice']}")
    told.append(
        f"next: ftrun resume {facts['run']} goes on with the script as it was; a changed one needs ftrun sbatch"
    )
    return told


def budgets(run: Run) -> dict[str, dict[str, int | None]]:
    """Fault class -> retries used since the last progress, and their number (None: no limit of its own)."""
    limits = limits_from(run.settings)
    table: dict[str, dict[str, int | None]] = {}
    for fault in FaultClass:
        total = limits.budget(fault)
        used = run.spent.get(fault.value, 0)
        if used or (fault in CLASS_RULES and 0 < total < UNLIMITED):
            table[fault.value] = {"used": used, "of": total if total < UNLIMITED else None}
    return table


def _caps(run: Run, now_s: float) -> dict[str, float | None]:
    most, deadline_s = run.settings.get("max-lost", ""), float(run.settings.get("deadline") or 0.0)
    return {
        "lost_node_hours": round(estimates.lost_node_hours(run, now_s), 3),
        "max_lost_node_hours": float(most) if most != "" else None,
        "deadline_at": run.created_at_s + deadline_s if deadline_s else None,
    }


def caps_text(row: Mapping[str, Any]) -> str:
    """What the user's caps leave of a run; "" without any."""
    caps, told = row["caps"], []
    if caps["max_lost_node_hours"] is not None:
        lost, most = caps["lost_node_hours"], caps["max_lost_node_hours"]
        told.append(f"recovery has cost {lost:,.1f} of {most:,g} node-hours")
    if caps["deadline_at"] is not None:
        told.append(f"not started again after {zoned_clock_text(caps['deadline_at'])}")
    return "; ".join(told)


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else round(max(0.0, end_s - start_s), 3)


def conditions_text(halt: StopConditions) -> str:
    """The conditions of a stop or pause, in words."""
    words = []
    if halt.now:
        words.append("now, after a checkpoint if one comes soon")
    if halt.after_checkpoint:
        words.append("after its next checkpoint")
    if halt.at_step is not None:
        words.append(f"at step {halt.at_step}")
    if halt.before_s is not None:
        words.append(f"before {zoned_clock_text(halt.before_s)}")
    return " or ".join(words)


def request_text(data: Mapping[str, Any]) -> str:
    """The request in `halt.json`, in words."""
    halt = StopConditions.from_json(data)
    by = f", asked by {halt.by}" if halt.by else ""
    return (
        f"{'pauses' if halt.pause else 'ends'} {conditions_text(halt)}{by}"
        if halt.wanted
        else f"withdrawn{by}"
    )


def state_text(row: Mapping[str, Any]) -> str:
    """The column STATE of a run (a `run_row`): its state, and the request that waits."""
    if row["paused"]:
        return "paused"
    halt = StopConditions.from_json({} if row["state"] in FINAL_STATES else row["halt"])
    asked = "" if row["state"] in FINAL_STATES else row["wish"] or (halt.word if halt.wanted else "")
    words = [str(row["state"]), "(observe)" if row["observe"] else "", f"({asked} asked)" if asked else ""]
    return " ".join(filter(None, words))


def outlook_lines(row: Mapping[str, Any]) -> list[str]:
    """The lines of `ftrun show` about the future of a run."""
    halt, end, asked, told = StopConditions.from_json(row["halt"]), row["expected_end"], row["leaving"], []
    if halt.wanted and row["state"] not in FINAL_STATES:
        told.append(request_text(row["halt"]))
    if asked and asked["stage"] in ("intended", "asked"):
        told.append(f"ftrun asked for a checkpoint ({asked['occasion']}) and waits for it")
    if end:
        at = zoned_clock_text(end["at"], end=-3)
        of = f"step {end['from_step']} of {end['target_step']}, {end['step_s']:g} s a step"
        hours = (end["time_limit_s"] or 0.0) / 3600
        limit = f", time limit {f'{hours:.3g} h' if hours < 100 else f'{hours / 24:.3g} d'}" if hours else ""
        more = f", {end['jobs'] - 1} more jobs after this one" if end["jobs"] > 1 else ""
        told.append(f"expected end {at}, without time in the queue: {of}{limit}{more}")
    return told
