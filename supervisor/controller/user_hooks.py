"""The user's commands: starts on-fault and on-give-up, and journals the ends of all hooks. (I/O)

What is due follows from the folded run: every incident that was decided, also by the agent inside an
allocation, and a stop. Each has a key and is journalled as intended before it is started, so that a crash in
between starts it at most once. A command runs beside the loop under a parent process of its own
(`hook_runner`), a few at a time; its outcome never changes the run: it is recorded and no more.

If ftrun may only observe a run (`observe`), the commands still run, with FTRUN_OBSERVED=1: they are the
user's own, and to be notified is why one observes.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import hook_runner
from ftrun.supervisor.model.run import Incident, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store import submission_context

AT_ONCE_MAX = 8
FENCE = "fence-command"
FENCED = "fenced"
"""What is kept of a fence-command that succeeded."""
LOST_AFTER_S = 30.0  # after its limit: a parent without a record has died


@dataclass
class _Children:
    """Of all runs: the parent processes of user commands."""

    pids: set[int] = field(default_factory=set)


class DueHook(NamedTuple):
    """A command to run once: its key in the journal, the setting that holds it, the facts for its
    variables.
    """

    key: str
    hook: str
    facts: Mapping[str, Any]


def due_hooks(run: Run) -> list[DueHook]:
    """What is to be run and not yet intended. (pure)"""
    last = run.incidents[-1] if run.incidents else None
    wanted = bool(run.settings.get("on-fault"))
    found = [_on_fault(one) for one in run.incidents if one.decision] if wanted else []
    if run.state is State.STOPPED and not run.paused and run.settings.get("on-give-up"):
        number, nodes = (run.attempt.number, run.attempt.reach) if run.attempt is not None else (0, ())
        facts: dict[str, Any] = {"class": run.final_class, "decision": "stop", "reason": run.final_reason}
        facts |= {"attempt": number, "nodes": nodes}
        of_this = last is not None and last.attempt == number and last.fault == run.final_class
        if last is not None and of_this:
            facts |= {"signature": last.signature, "title": last.title, "culprits": last.nodes}
        found.append(DueHook(f"on-give-up.{number}", "on-give-up", facts))
    return [one for one in found if one.key not in run.hooks]


def _on_fault(incident: Incident) -> DueHook:
    facts: dict[str, Any] = {
        "class": incident.fault,
        "signature": incident.signature,
        "title": incident.title,
        "culprits": incident.nodes,
        "attempt": incident.attempt,
        "nodes": incident.attempt_nodes,
        "decision": incident.decision.get("kind", ""),
        "reason": incident.decision.get("reason", ""),
    }
    return DueHook(f"on-fault.{incident.id}", "on-fault", facts)


def hook_environment(run: Run, run_dir: str, one: DueHook) -> dict[str, str]:
    """The variables that a command gets in addition to those of the submission (docs/hooks.md)."""
    number = one.facts["attempt"]
    told = {
        "HOOK": one.hook,
        "RUN_ID": run.id,
        "RUN_DIR": run_dir,
        "ATTEMPT": number,
        "JOB_ID": next((attempt.job for attempt in run.attempts if attempt.number == number), ""),
        "NODES": ",".join(one.facts["nodes"]),
        "FAULT": one.facts.get("class", ""),
        "SIGNATURE": one.facts.get("signature", ""),
        "TITLE": one.facts.get("title", ""),
        "CULPRITS": ",".join(one.facts.get("culprits", ())),
        "DECISION": one.facts.get("decision", ""),
        "REASON": one.facts.get("reason", ""),
        "OBSERVED": "1" if run.settings.get("observe") else "",
    }
    return {f"FTRUN_{name}": " ".join(str(value).replace("\0", " ").split()) for name, value in told.items()}


def run_due_hooks(ctx: RunContext) -> None:
    """Journal the ends of commands and start what is due. Raises LeaseLost, Stale, OSError (journal)."""
    if not any(ctx.settings.get(name) for name in ("on-fault", "on-give-up", "pre-hook", "post-hook")):
        return
    _note_those_in_the_job(ctx)
    note_ends(ctx)
    for one in due_hooks(ctx.run):
        if _running_hooks(ctx) >= AT_ONCE_MAX:
            return
        start(ctx, one)


def start(ctx: RunContext, one: DueHook) -> None:
    """Journal a command as intended, and start it. Raises LeaseLost, Stale, OSError (journal)."""
    ctx.record("hook.intended", key=one.key, hook=one.hook)
    ctx.act("hook", partial(_start, ctx, one))


def has_pending_hooks(ctx: RunContext) -> bool:
    """Whether a run has a command to start, or one whose end is not recorded."""
    return any(not why for why in ctx.run.hooks.values()) or bool(due_hooks(ctx.run))


def _start(ctx: RunContext, one: DueHook) -> None:
    """Start a command; a failure to start it is recorded as its end."""
    run, folder = ctx.run, os.path.join(ctx.run_dir, "hooks")
    cwd = ctx.cwd
    cwd = cwd if os.path.isdir(cwd) else ctx.run_dir
    limit_s = number_of(ctx.settings, "hook-limit")
    argv = [
        "-I",
        "-S",
        hook_runner.__file__,
        folder,
        one.key,
        f"{limit_s:g}",
        cwd,
        _command(run, one),
    ]
    try:
        argv.append(str(submission_context.load(ctx.run_dir)["umask"]))  # not the supervisor's own
        env = submission_context.environment(ctx.run_dir) | hook_environment(run, ctx.run_dir, one)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        child = os.posix_spawn(sys.executable, [sys.executable, *argv], env, file_actions=null, setsid=True)
    except (OSError, ValueError, KeyError, submission_context.ContextError) as error:
        ctx.record("hook.ended", key=one.key, hook=one.hook, code=None, why=f"not started: {error}")
    else:
        ctx.services.shared(_Children).pids.add(child)


def _command(run: Run, one: DueHook) -> str:
    command = str(run.settings[one.hook])
    return command.replace("{node}", shlex.quote(one.facts["nodes"][0])) if one.hook == FENCE else command


def _running_hooks(ctx: RunContext) -> int:
    """How many commands of all runs are running now; reaps those that ended."""
    pids = ctx.services.shared(_Children).pids
    for child in list(pids):
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                pids.discard(child)
        except ChildProcessError:
            pids.discard(child)
    return len(pids)


def note_ends(ctx: RunContext) -> None:
    """Journal the ends of commands. Raises OSError (journal)."""
    limit_s = number_of(ctx.settings, "hook-limit")
    for key in [key for key, why in ctx.run.hooks.items() if not why]:
        hook = key.partition(".")[0]
        end = _end(os.path.join(ctx.run_dir, "hooks", f"{key}.end"))
        if end is not None:
            _running_hooks(ctx)
            if hook == FENCE and end["code"] == 0:
                end["why"] = FENCED
            ctx.record("hook.ended", key=key, hook=hook, **end)
        elif (
            ctx.observations.stopwatches["hook unheard", key].held_s(ctx.snapshot.mono_s)
            > limit_s + LOST_AFTER_S
        ):
            ctx.record("hook.ended", key=key, hook=hook, code=None, why="unknown: it left no record")


def _end(path: str) -> dict[str, Any] | None:
    """How a command ended; None if it has left no record."""
    try:
        with open(path, encoding="utf-8") as stream:
            end = json.load(stream)
        return {"code": end["code"], "why": str(end["why"]) or "itself"}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note_those_in_the_job(ctx: RunContext) -> None:
    """Journal what batch.sh recorded of pre-hook and post-hook.

    For an array the records are in the task folders only.
    """
    attempt = ctx.run.attempt
    if attempt is None or not attempt.launch.claim_seen:
        return
    launch = attempt.launch
    folder = store_run_dir.attempt_dir(ctx.run_dir, attempt.number)
    for hook, since in (("pre-hook", launch.running_seen_at_s), ("post-hook", launch.end.at_s)):
        key = f"{hook}.{attempt.number}.{launch.number}"
        if not ctx.settings.get(hook) or since is None or key in ctx.run.hooks:
            continue
        row = _job_hook_end(os.path.join(folder, f"{hook}.{launch.number}"))
        if row is not None:
            ctx.record("hook.ended", key=key, hook=hook, **row)


def _job_hook_end(path: str) -> dict[str, Any] | None:
    """How a command around the script ended; None if its record is missing or incomplete."""
    content = store_run_dir.read_untrusted(path, 4096) or b""
    fields = dict(line.partition("=")[::2] for line in content.decode("utf-8", "replace").splitlines())
    if not (fields.get("code", "").isdigit() and fields.get("why")):
        return None
    return {"code": int(fields["code"]), "why": fields["why"]}
