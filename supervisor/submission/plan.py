"""What an attempt is submitted with: sbatch's arguments and the file, the first time and every time after. (I/O)

How it thinks. Attempt 1 and attempt 7 come from one function, so they differ only in what is meant to differ. Its input
is the kept context (the arguments as typed, the script, the environment), never this process.

Added to what the user typed
- with `spares`, so many nodes more (see `spares`);
- the attempt's token at the end of `--comment`, behind the user's own comment;
- where `save-signal` is set and no --signal was chosen, a --signal so long before the time limit (see `signal_option`);
- `--open-mode=append`, unless the user chose: the next attempt writes into the same log, which holds the evidence;
- for a script from a file, a copy with the same base name, so that Slurm gives the job the same name by itself; for
  --wrap the composed file goes in by standard input, with the job name that sbatch would have given.

Left out: `--wait`, because ftrun waits for the run; from attempt 2 on also what was meant for the first start only
(--begin, --hold, --test-only, --parsable, --quiet, dependencies that were met). Where one of these stands in a #SBATCH
line it is taken out there, because no argument can undo it. Everything else goes to sbatch as it was typed.
"""

from __future__ import annotations

import os

from ftrun.slurm.client import options
from ftrun.slurm.client.directives import directives, drop_directives
from ftrun.slurm.client.options import CommandLine, OptionError
from ftrun.supervisor.config import home
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.submission import compose, in_allocation, node_names

__all__ = [
    "Plan",
    "SubmitImpossible",
    "outlives",
    "plan",
    "request_for",
    "requeues",
    "shape_of",
    "signal_option",
    "warning_ahead_s",
    "watched",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ftrun.hooks.checkpoints.diverged import Poison
    from ftrun.slurm.client.cluster import SubmitRequest
    from ftrun.supervisor.submission.resize import Resized

SIGNAL_AHEAD_S = 60.0  # what sbatch takes where --signal names no time
FIRST_DROPPED = ("wait",)
LATER_DROPPED = ("wait", "begin", "hold", "test-only", "parsable", "quiet")


class Plan:
    """One call of sbatch: its arguments, the file, and whether the file goes in by standard input."""

    __slots__ = ("argv", "content", "path", "stdin")

    def __init__(self, argv: Sequence[str], content: bytes, path: str, *, stdin: bool) -> None:
        self.argv = tuple(argv)
        self.content = content
        self.path = path
        self.stdin = stdin

    def write(self) -> None:
        """Put the file where sbatch (or a person, later) finds it. Raises OSError."""
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        home.write_atomically(self.path, self.content, sync=False)


def plan(
    kept: Mapping[str, Any],
    script: bytes,
    env: Mapping[str, str],
    *,
    run_dir: str,
    attempt: int,
    token: str,
    exclude: Sequence[str] = (),
    idle: Sequence[str] = (),
    dependency: str | None = None,
    array: str = "",
    restart: int = 0,
    last_fault: str = "",
    set_aside: Sequence[str] = (),
    poisoned: Sequence[Poison] = (),
    had: bool = False,
    fresh: bool = False,
    anyway: bool = False,
    spares: int | None = None,
    size: int = 0,
) -> Plan:
    """The call of sbatch for one attempt of the run in `run_dir`.

    `kept` is the submission context. `dependency` replaces the user's; None keeps it for attempt 1 and drops it after
    that. `exclude` are nodes to avoid beside the user's own; `idle` may stand in for them where the user named nodes; `set_aside`, `poisoned` and `had` are what is
    known of the run's checkpoints, and with `fresh` the first launch may begin from nothing;
    with `anyway` the script starts whatever a preflight finds; `spares` are fewer than the settings want (None = as many);
    `size` is another number of nodes than the user's (0 = the user's).
    Raises SubmitImpossible, OptionError (sbatch would refuse the arguments), compose.ScriptError.
    """
    line, head = split_kept(kept), directive_lines(script, kept)
    dropped = FIRST_DROPPED if attempt == 1 else LATER_DROPPED
    if attempt > 1 and dependency is None:
        dropped = (*dropped, "dependency")
    if attempt > 1 and (line.get("export-file") or "").isdigit():
        raise SubmitImpossible(
            "--export-file named an open file of the first submission, which is gone; name a file instead"
        )
    made = _resized(kept, line, head, env, fewer=spares, size=size, exclude=exclude, idle=idle)
    changed = compose.with_token(line.without("wrap", *dropped), line, head, token)
    changed = _chosen_for_the_user(changed, line, head, env, kept)
    changed = made.applied(changed) if made is not None else changed
    if dependency is not None:
        changed = changed.replacing("dependency", dependency)
    if array:
        changed = changed.replacing("array", array)
    if exclude:
        changed = node_names.avoiding(changed, head, exclude, idle, kept.get("cwd", ""))
    facts = {
        "attempt": str(attempt),
        "token": token,
        **_facts_of_place(run_dir),
        "restart": str(restart),
        "last_fault": last_fault,
        "excluded": ",".join(exclude),
        "export_mode": export_mode(line, head, env),
        "array": _told_of_the_whole(shape_of(line, head, env)[1]) if array else "",
        **_facts_of_run(kept),
        **_facts_of_checkpoints(set_aside, poisoned, had=had, fresh=fresh),
        **in_allocation.facts(kept, shape_of(line, head, env)[0], made),
        **_facts_of_size(kept, line, head, env, size),
    }
    if anyway and facts["before"]:
        facts["before"] = "report"
    content = _without(dropped, compose.compose(script, facts), head, kept)
    path = os.path.join(run_dir, "attempts", str(attempt), "submitted", kept["script_name"] or "script")
    from_file = kept["source"] == "file"
    final = changed.with_script(path, line.script_args) if from_file else changed.with_script(None)
    return Plan(final.argv(), content, path, stdin=not from_file)


def _resized(
    kept: Mapping[str, Any],
    line: CommandLine,
    head: Sequence[CommandLine],
    env: Mapping[str, str],
    **about: Any,
) -> Resized | None:
    return in_allocation.resized(
        kept["settings"], line, head, env, agent=bool(kept.get("python")), cwd=kept.get("cwd", ""), **about
    )


def _chosen_for_the_user(
    changed: CommandLine,
    line: CommandLine,
    head: Sequence[CommandLine],
    env: Mapping[str, str],
    kept: Mapping[str, Any],
) -> CommandLine:
    """What ftrun chooses where the user did not."""
    if not _chosen("open-mode", line, head, env, "SBATCH_OPEN_MODE"):
        changed = changed.with_option("open-mode", "append")
    if line.has("wrap") and not _chosen("job-name", line, head, env, "SBATCH_JOB_NAME"):
        changed = changed.with_option("job-name", "wrap")
    said = _chosen("no-kill", line, head, env, "SBATCH_NO_KILL")
    if not said and outlives(kept, line, head, env):
        changed = changed.with_option("no-kill", None)
    if signal := signal_option(kept["settings"], line, head, env):
        changed = changed.with_option("signal", signal)
    return changed


def outlives(
    kept: Mapping[str, Any], line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]
) -> bool:
    """Whether the run's jobs go on without a node that they lost: what the user says counts, then what ftrun asks for."""
    if line.has("no-kill"):
        said = line.get("no-kill")
    elif "SBATCH_NO_KILL" in env:
        said = env["SBATCH_NO_KILL"]
    elif any(part.has("no-kill") for part in head):
        said = head[0].get("no-kill")
    else:
        chosen, shape = kept["settings"], shape_of(line, head, env)[0]
        return bool(chosen.get("spares")) or (
            bool(kept.get("python")) and in_allocation.outlives(chosen, shape)
        )
    return (said or "").lower() not in ("off", "no")  # sbatch reads them so


def request_for(
    run_dir: str,
    attempt: int,
    *,
    token: str = "",
    exclude: Sequence[str] = (),
    idle: Sequence[str] = (),
    dependency: str | None = None,
    array: str = "",
    restart: int | None = None,
    last_fault: str = "",
    set_aside: Sequence[str] = (),
    poisoned: Sequence[Poison] = (),
    had: bool = False,
    fresh: bool = False,
    anyway: bool = False,
    spares: int | None = None,
    size: int = 0,
) -> SubmitRequest:
    """The request for attempt `attempt` (whose folder the caller has opened), from the kept context alone.

    Writes the composed file into the attempt's folder. See `plan` for the arguments. Raises SubmitImpossible.
    """
    from ftrun.slurm.client.cluster import SubmitRequest

    try:
        kept = submission_context.load(run_dir)
        env = submission_context.environment(run_dir)
        token = token or f"{kept['run_token']}:{attempt}"
        made = plan(
            kept,
            submission_context.script(run_dir),
            env,
            run_dir=run_dir,
            attempt=attempt,
            token=token,
            exclude=exclude,
            idle=idle,
            dependency=dependency,
            array=array,
            restart=attempt - 1 if restart is None else restart,
            last_fault=last_fault,
            set_aside=set_aside,
            poisoned=poisoned,
            had=had,
            fresh=fresh,
            anyway=anyway,
            spares=spares,
            size=size,
        )
        made.write()
    except (submission_context.ContextError, OptionError, compose.ScriptError) as error:
        raise SubmitImpossible(str(error)) from None
    except OSError as error:
        raise SubmitImpossible(f"{run_dir}: cannot be written: {error.strerror}") from None
    env.pop("SBATCH_WAIT", None)
    return SubmitRequest(
        token=token,
        argv=made.argv,
        script=made.content if made.stdin else None,
        env=env,
        cwd=kept["cwd"],
        umask=kept["umask"],
        limits={name: (soft, hard) for name, (soft, hard) in kept["limits"].items()},
        nice=kept["nice"],
    )


def _without(
    dropped: Sequence[str], content: bytes, head: Sequence[CommandLine], kept: Mapping[str, Any]
) -> bytes:
    """The file without these options in its directives."""
    if not any(part.has(name) for part in head for name in dropped):
        return content
    content = drop_directives(content, dropped, version=_version(kept), extra=kept.get("plugin_options"))
    if b"#PBS" not in content:
        return content
    from ftrun.slurm.client import foreign_directives

    return foreign_directives.drop_foreign(content, dropped)


def _facts_of_place(run_dir: str) -> dict[str, str]:
    """Where the run lies, and what its nodes run: what Slurm carries nobody can change."""
    return {"run_dir": run_dir, "tools": store_run_dir.tools_name(os.path.dirname(os.path.dirname(run_dir)))}


def _facts_of_checkpoints(
    set_aside: Sequence[str], poisoned: Sequence[Poison], *, had: bool, fresh: bool
) -> dict[str, str]:
    """What starts of this attempt must not load, whether the run has had a checkpoint, and whether the first launch may begin from nothing all the same."""
    facts = {"checkpoint_skip": "\n".join(set_aside), "checkpoint_had": "1" if had else ""}
    if fresh:
        facts["checkpoint_fresh"] = "once"
    if poisoned:
        from ftrun.hooks.checkpoints import diverged  # no first submission needs it

        facts["checkpoint_poison"] = diverged.to_lines(poisoned)
    return facts


def split_kept(kept: Mapping[str, Any]) -> CommandLine:
    """The user's arguments, split as the first submission split them. Raises OptionError."""
    return options.split(kept["argv"], version=_version(kept), extra=kept.get("plugin_options"))


def _version(kept: Mapping[str, Any]) -> tuple[int, int] | None:
    """Slurm's version, where the options could not be told apart without it."""
    known = kept.get("slurm_version")
    return (known[0], known[1]) if known else None


def directive_lines(script: bytes, kept: Mapping[str, Any]) -> list[CommandLine]:
    """The options of the #SBATCH lines, one command line for each component, and what #PBS or #BSUB lines say. Raises OptionError."""
    head = [CommandLine(())]
    if b"#SBATCH" in script or b"#SLURM" in script:
        version, extra = _version(kept), kept.get("plugin_options")
        head = [options.split(words, version=version, extra=extra) for words in directives(script)]
    ignored = not kept.get("foreign", True) or "--ignore-pbs" in kept.get("argv", ())
    if (b"#PBS" in script or b"#BSUB" in script) and not (ignored or head[0].has("ignore-pbs")):
        from ftrun.slurm.client import foreign_directives

        said = options.split(foreign_directives.foreign_words(script, head[0].get("export")))
        head[0] = CommandLine((*head[0].words, *said.words))
    return head


def shape_of(line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]) -> tuple[str, str]:
    """(single | array | het, the array's specification or "")."""
    if line.components > 1 or len(head) > 1:
        return "het", ""
    spec = line.get("array") or env.get("SBATCH_ARRAY_INX") or head[0].get("array") or ""
    return ("array", spec) if spec else ("single", "")


def requeues(run_dir: str, *, otherwise: bool) -> bool:
    """Whether Slurm puts the run's jobs back into the queue when a node is lost: as the user said, or the site (`otherwise`).

    Where the context of submission cannot be read nothing is sure: False.
    """
    try:
        kept, env = submission_context.load(run_dir), submission_context.environment(run_dir)
        line, head = split_kept(kept), directive_lines(submission_context.script(run_dir), kept)
    except (submission_context.ContextError, OptionError):
        return False
    for yes, no in (
        (line.has("requeue"), line.has("no-requeue")),
        ("SBATCH_REQUEUE" in env, "SBATCH_NO_REQUEUE" in env),
        (head[0].has("requeue"), head[0].has("no-requeue")),
    ):
        if yes or no:
            return not no
    return otherwise


def _told_of_the_whole(spec: str) -> str:
    """What a task of a narrowed array is told about the array that the user asked for."""
    from ftrun.supervisor.submission import node_names  # no first submission needs it

    return "\n".join(f"{name}={value}" for name, value in node_names.told(spec).items())


def export_mode(line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]) -> str:
    """all, none or list: which of the environment reaches the job (and, by Slurm's rule, its steps)."""
    value = line.get("export") or env.get("SBATCH_EXPORT") or head[0].get("export") or "ALL"
    if value.upper() == "NONE":
        return "none"
    return "all" if value.split(",", 1)[0].upper() == "ALL" else "list"


def _chosen(
    name: str, line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str], variable: str
) -> bool:
    return line.has(name) or variable in env or any(part.has(name) for part in head)


def _facts_of_size(
    kept: Mapping[str, Any], line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str], size: int
) -> dict[str, str]:
    """What the script is told of its size; nothing where the settings name neither sizes nor a batch."""
    chosen = kept["settings"]
    if not (chosen.get("nodes") or chosen.get("nodes-valid") or chosen.get("global-batch")):
        return {}
    from ftrun.supervisor.submission import sizes  # most submissions have but one size

    return sizes.facts(chosen, line, head, env, size)


def _facts_of_run(kept: Mapping[str, Any]) -> dict[str, str]:
    """What the submitted file says about the run, the same in every attempt."""
    chosen = kept["settings"]
    return {
        "run": kept["run"],
        "script_name": kept["script_name"],
        "cluster": kept.get("cluster", ""),
        "claim_wait_s": f"{chosen['claim-wait']:g}",
        "checkpoint_glob": chosen["checkpoint"],
        "checkpoint_marker": chosen["checkpoint-marker"],
        "checkpoint_verify": chosen.get("checkpoint-verify", "name"),
        "checkpoint_fresh": "1" if chosen.get("checkpoint-fresh") else "",
        "resume_arg": "\n".join(chosen["resume-arg"]),
        "resume_env": "\n".join(chosen["resume-env"]),
        "pre_hook": chosen.get("pre-hook", ""),
        "post_hook": chosen.get("post-hook", ""),
        "hook_limit_s": f"{chosen.get('hook-limit', 60.0):.0f}",
        "watch": watched(chosen),
        "after": "" if chosen.get("after-checks") == "never" else "1",
        "before": _before(chosen),
        "checks": chosen.get("checks", ""),
    }


def _before(chosen: Mapping[str, Any]) -> str:
    """Whether the nodes are checked first, and what for: a script is held only where another attempt follows."""
    if not chosen.get("preflight"):
        return ""
    return "report" if chosen["observe"] or not chosen["retries"] else "hold"


def watched(chosen: Mapping[str, Any]) -> str:
    """The watch's period and how long after the script it begins, in seconds; "" for no watch. Contexts of older versions lack both."""
    if chosen.get("watch") == "never":
        return ""
    period_s = float(chosen.get("watch-period", 60.0))
    return f"{period_s:g} {min(period_s / 2, 30.0):g}"


def signal_option(
    settings: Mapping[str, Any], line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]
) -> str:
    """The value of --signal that is added to what the user typed; "" = nothing is added.

    So the script can save in time, be it that no supervisor is alive then. The signal goes to the tasks of the steps, with `B:` in front
    of the setting to the batch script. Slurm may send it up to a minute early, so a short limit gets none: a script that does not listen
    yet would die of it. The supervisor sends the signal itself then.
    """
    if not settings.get("save-signal"):  # most submissions do without
        return ""
    from ftrun.slurm.client.parse import parse_seconds
    from ftrun.supervisor.policy import save_request

    name, to_script = save_request.split_signal(str(settings["save-signal"]))
    if not name or line.components > 1 or len(head) > 1 or _chosen_signal(line, head, env):
        return ""
    limit = line.get("time") or env.get("SBATCH_TIMELIMIT") or head[0].get("time") or ""
    ahead_s = save_request.warning_s(parse_seconds(limit), float(settings.get("save-wait", 120.0)))
    return f"{'B:' if to_script else ''}{name}@{ahead_s}" if ahead_s else ""


def warning_ahead_s(run_dir: str) -> float | None:
    """How long before the time limit Slurm was told to send a signal, the user's own or ours; None where it was not told to.

    0.0 where that cannot be known.
    """
    try:
        kept, env = submission_context.load(run_dir), submission_context.environment(run_dir)
        line, head = split_kept(kept), directive_lines(submission_context.script(run_dir), kept)
    except (submission_context.ContextError, OptionError):
        return 0.0
    value = _chosen_signal(line, head, env) or signal_option(kept["settings"], line, head, env)
    if not value:
        return None
    told = value.rpartition("@")[2] if "@" in value else ""
    return float(told) if told.isdigit() else SIGNAL_AHEAD_S


def _chosen_signal(line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]) -> str:
    """The --signal of the user's own; "" = none. One that stands there without a value still keeps ours away."""
    if line.has("signal"):
        return line.get("signal") or "none"
    if "SBATCH_SIGNAL" in env:
        return env["SBATCH_SIGNAL"] or "none"
    return next((part.get("signal") or "none" for part in head if part.has("signal")), "")
