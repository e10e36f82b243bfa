"""What an attempt is submitted with: arguments of sbatch and the file, first attempt or later. (I/O)

Attempt 1 and attempt 7 come from the same function, `plan`, so they differ only where they are meant to.
Its input is the submission context (arguments as typed, script, environment), never this process.

Added to what the user typed
- with `spares`, that many more nodes (see `resize`);
- the attempt's token at the end of `--comment`, behind the user's own comment;
- with `save-signal` and no --signal of the user's, a --signal that long before the time limit (see
  `signal_option`);
- `--open-mode=append`, unless the user chose: the next attempt writes into the same log, which holds the
  evidence;
- for a script from a file, a copy with the same base name, so that Slurm gives the job the same name; with
  --wrap the composed file goes to standard input, with the job name that sbatch would have given.

Left out: `--wait`, because ftrun waits for the run; from attempt 2 on also what applies to the first start
only (--begin, --hold, --test-only, --parsable, --quiet, dependencies that were met). Where one of these
stands in a #SBATCH line it is removed there, because no argument can undo it. Everything else reaches
sbatch as typed.
"""

from __future__ import annotations

import os

from ftrun.slurm.client import options
from ftrun.slurm.client.errors import OptionError
from ftrun.slurm.client.options import (
    CommandLine,
    SbatchOptions,
    drop_directives,
    value_of_each,
    with_parts_for,
)
from ftrun.supervisor.config import home
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.submission import (
    array_spec,
    compose,
    in_allocation,
    library_env,
    named_nodes,
    sbatch_process,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ftrun.hooks.checkpoints.diverged import Divergence
    from ftrun.slurm.client.cluster import SubmitRequest
    from ftrun.supervisor.submission.resize import ResizedSubmission

SIGNAL_AHEAD_S = 60.0  # sbatch's own value where --signal names no time
FIRST_DROPPED = ("wait",)
LATER_DROPPED = ("wait", "begin", "hold", "test-only", "parsable", "quiet")


class AttemptSpec:
    """What ftrun decided about one attempt; everything else comes from the submission context.

    - `exclude`: nodes to avoid beside the user's own; `idle`: nodes that may stand in where the user named
      nodes.
    - `dependency` replaces the user's; None keeps it for attempt 1. For later attempts it is satisfied and
      dropped, but `singleton`: it holds for every job of that name.
    - `array`: the tasks to submit again ("" = all); `restart`: how many starts came before (None = one per
      attempt).
    - `set_aside`, `poisoned`, `had`: what is known of the run's checkpoints; with `fresh` the first launch
      may begin from nothing.
    - `anyway`: start the script whatever a preflight finds.
    - `spares`: fewer than the settings want (None = as many); `size`: another number of nodes than the
      user's (0 = the user's).
    - `more`: options that replace the user's own (`escalate`).
    - `token`: the mark in the job's comment ("" = the run's token and the attempt's number).
    """

    __slots__ = (
        "anyway", "array", "dependency", "exclude", "fresh", "had", "idle", "last_fault", "last_words", "more", "number", "poisoned", "restart",
        "set_aside", "size", "spares", "token",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        *,
        token: str = "",
        exclude: Sequence[str] = (),
        idle: Sequence[str] = (),
        dependency: str | None = None,
        array: str = "",
        restart: int | None = None,
        last_fault: str = "",
        last_words: str = "",
        set_aside: Sequence[str] = (),
        poisoned: Sequence[Divergence] = (),
        had: bool = False,
        fresh: bool = False,
        anyway: bool = False,
        spares: int | None = None,
        size: int = 0,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.number = number
        self.more = more or {}
        self.token = token
        self.exclude = exclude
        self.idle = idle
        self.dependency = dependency
        self.array = array
        self.restart = number - 1 if restart is None else restart
        self.last_fault = last_fault
        self.last_words = last_words
        self.set_aside = set_aside
        self.poisoned = poisoned
        self.had = had
        self.fresh = fresh
        self.anyway = anyway
        self.spares = spares
        self.size = size

    def token_in(self, context: Mapping[str, Any]) -> str:
        """The attempt's token in the run of this context."""
        return self.token or f"{context['run_token']}:{self.number}"

    def dropped(self) -> tuple[str, ...]:
        """The user's options that this attempt leaves out."""
        if self.number == 1:
            return FIRST_DROPPED
        return LATER_DROPPED if self.dependency is not None else (*LATER_DROPPED, "dependency")


class SbatchCall:
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


def plan_attempt(
    context: Mapping[str, Any], script: bytes, given: SbatchOptions, spec: AttemptSpec, *, run_dir: str
) -> SbatchCall:
    """The call of sbatch for one attempt of the run in `run_dir`.

    `given` are the options of `context` and `script`, split.

    Raises SubmitImpossible, OptionError (sbatch would refuse the arguments), compose.ScriptError.
    """
    line, dropped = given.line, spec.dropped()
    if spec.number > 1 and (line.get("export-file") or "").isdigit():
        raise SubmitImpossible(
            "--export-file named an open file of the first submission, which is gone; name a file instead"
        )
    cwd = context.get("cwd", "")
    made = in_allocation.with_spares(
        context["settings"],
        given,
        spec.spares,
        size=spec.size,
        exclude=spec.exclude,
        idle=spec.idle,
        agent=bool(context.get("python")),
        cwd=cwd,
    )
    changed = options.with_token(line.without("wrap", *dropped), given, spec.token_in(context))
    changed = _with_defaults(changed, given, context)
    changed = made.applied(changed) if made is not None else changed
    if spec.dependency is not None:
        changed = changed.replacing("dependency", spec.dependency)
    elif spec.number > 1 and "singleton" in given.get("dependency").lower().split(","):
        changed = changed.with_option("dependency", "singleton")
    for option, value in spec.more.items():
        changed = changed.replacing(option, value)
    if spec.array:
        changed = changed.replacing("array", spec.array)
    if spec.exclude:
        changed = with_excluded(changed, given.head, spec.exclude, spec.idle, cwd)
    facts = _facts(context, given, spec, made, run_dir)
    content = _without(dropped, compose.compose(script, facts), given, context)
    path = os.path.join(
        run_dir, "attempts", str(spec.number), "submitted", context["script_name"] or "script"
    )
    from_file = context["source"] == "file"
    final = changed.with_script(path, line.script_args) if from_file else changed.with_script(None)
    return SbatchCall(final.argv(), content, path, stdin=not from_file)


def load_options(
    run_dir: str, known: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Any], SbatchOptions]:
    """The submission context of a run (`known` to a caller who has read it) and its options, split.

    Raises ContextError, OptionError.
    """
    context = known or submission_context.load(run_dir)
    script, env = submission_context.script(run_dir), submission_context.environment(run_dir)
    return context, options.submitted_options(context, script, env)


def request_for(run_dir: str, spec: AttemptSpec, known: Mapping[str, Any] | None = None) -> SubmitRequest:
    """The request for an attempt whose folder the caller has opened, from the submission context alone.

    Writes the composed file into the attempt's folder. Raises SubmitImpossible.
    """
    try:
        context, given = load_options(run_dir, known)
        made = plan_attempt(context, submission_context.script(run_dir), given, spec, run_dir=run_dir)
        made.write()
    except (submission_context.ContextError, OptionError, compose.ScriptError) as error:
        raise SubmitImpossible(str(error)) from None
    except OSError as error:
        raise SubmitImpossible(f"{run_dir}: cannot be written: {error.strerror}") from None
    env = {name: value for name, value in given.env.items() if name != "SBATCH_WAIT"}
    content = made.content if made.stdin else None
    return request_in(context, spec.token_in(context), made.argv, content, env)


def request_in(
    context: Mapping[str, Any], token: str, argv: Sequence[str], content: bytes | None, env: Mapping[str, str]
) -> SubmitRequest:
    """A call of sbatch in the folder, with the umask, limits and nice value of the first submission."""
    from ftrun.slurm.client.cluster import SubmitRequest

    limits = {name: (soft, hard) for name, (soft, hard) in context["limits"].items()}
    place = context["cwd"], context["umask"], limits, context["nice"]
    return SubmitRequest(token, tuple(argv), content, env, *place)


# ---------------------------------------------------------------------- the arguments


def _with_defaults(changed: CommandLine, given: SbatchOptions, context: Mapping[str, Any]) -> CommandLine:
    """What ftrun chooses where the user did not."""
    if not given.has("open-mode", "SBATCH_OPEN_MODE"):
        changed = changed.with_option("open-mode", "append")
    if given.line.has("wrap") and not given.has("job-name", "SBATCH_JOB_NAME"):
        changed = changed.with_option("job-name", "wrap")
    if not given.has("no-kill", "SBATCH_NO_KILL") and survives_node_loss(context, given):
        changed = changed.with_option("no-kill", None)
    if signal := signal_option(context["settings"], given):
        changed = changed.with_option("signal", signal)
    return changed


def survives_node_loss(context: Mapping[str, Any], given: SbatchOptions) -> bool:
    """Whether the jobs go on without a node that they lost: as the user said, else as ftrun asks."""
    if not given.has("no-kill", "SBATCH_NO_KILL"):
        chosen = context["settings"]
        return bool(chosen.get("spares")) or (
            bool(context.get("python")) and in_allocation.survives_node_loss(chosen, given.shape)
        )
    typed = given.line.has("no-kill")
    value = given.line.get("no-kill") if typed else given.get("no-kill", "SBATCH_NO_KILL")
    return (value or "").lower() not in ("off", "no")  # sbatch reads them so


def is_requeued(run_dir: str, *, otherwise: bool, known: Mapping[str, Any] | None = None) -> bool:
    """Whether Slurm requeues the run's jobs when a node is lost: as the user said, or the site (`otherwise`).

    False where the submission context cannot be read.
    """
    try:
        said = load_options(run_dir, known)[1].requeue
    except (submission_context.ContextError, OptionError):
        return False
    return otherwise if said is None else said


def is_expedited(run_dir: str, *, known: Mapping[str, Any] | None = None) -> bool:
    """Whether the user asked for expedited requeues. False where the submission context cannot be read."""
    try:
        return load_options(run_dir, known)[1].is_expedited
    except (submission_context.ContextError, OptionError):
        return False


def signal_option(settings: Mapping[str, Any], given: SbatchOptions) -> str:
    """The value of --signal that is added to what the user typed; "" = nothing is added.

    It lets the script save in time even if no supervisor is alive then. The signal goes to the tasks of the
    steps, with `B:` in front of the setting to the batch script. Slurm may send it up to a minute early, so
    a short limit gets none: a script that does not listen yet would die of it. The supervisor sends the
    signal itself then.
    """
    if not settings.get("save-signal"):  # most submissions do without
        return ""
    from ftrun.slurm.client.parse import parse_seconds
    from ftrun.supervisor.policy import save_request

    name, to_script = save_request.parse_save_signal(str(settings["save-signal"]))
    if not name or given.shape == "het" or given.signal:
        return ""
    limit_s = parse_seconds(given.get("time", "SBATCH_TIMELIMIT"))
    ahead_s = save_request.warning_s(limit_s, number_of(settings, "save-wait"))
    return f"{'B:' if to_script else ''}{name}@{ahead_s}" if ahead_s else ""


def signal_ahead_s(run_dir: str) -> float | None:
    """How long before the time limit Slurm sends a signal; None where it sends none, 0.0 where unknown."""
    try:
        context, given = load_options(run_dir)
    except (submission_context.ContextError, OptionError):
        return 0.0
    value = given.signal or signal_option(context["settings"], given)
    if not value:
        return None
    ahead = value.rpartition("@")[2] if "@" in value else ""
    return float(ahead) if ahead.isdigit() else SIGNAL_AHEAD_S


# ---------------------------------------------------------------------- the file


def _without(
    dropped: Sequence[str], content: bytes, given: SbatchOptions, context: Mapping[str, Any]
) -> bytes:
    """The file without these options in its directives."""
    if not any(part.has(name) for part in given.head for name in dropped):
        return content
    version, extra = options.split_facts(context)
    content = drop_directives(content, dropped, version=version, extra=extra)
    if b"#PBS" not in content:
        return content
    from ftrun.slurm.client import foreign_directives

    return foreign_directives.drop_foreign(content, dropped)


def _facts(
    context: Mapping[str, Any],
    given: SbatchOptions,
    spec: AttemptSpec,
    made: ResizedSubmission | None,
    run_dir: str,
) -> dict[str, str]:
    """What the submitted file says; see `compose.compose` for the keys."""
    chosen = context["settings"]
    facts = {
        "attempt": str(spec.number),
        "token": spec.token_in(context),
        "run_dir": run_dir,
        "tools": store_run_dir.tools_name(os.path.dirname(os.path.dirname(run_dir))),
        "restart": str(spec.restart),
        "last_fault": spec.last_fault,
        "last_words": spec.last_words,
        "excluded": ",".join(spec.exclude),
        "array": "\n".join(f"{k}={v}" for k, v in array_spec.array_env(given.array).items())
        if spec.array
        else "",
        **sbatch_process.slurm_facts(given.env, context.get("cwd", "")),
        **_facts_of_run(context),
        **_facts_of_checkpoints(spec),
        **in_allocation.batch_facts(context, given.shape, made),
    }
    if chosen.get("nodes") or chosen.get("nodes-valid") or chosen.get("global-batch"):
        from ftrun.supervisor.submission import sizes  # most submissions have but one size

        facts |= sizes.size_facts(chosen, given, spec.size)
    if chosen.get("unit", "node") != "node":
        from ftrun.supervisor.config import node_counts

        facts["segment"] = str(node_counts.segment_size(chosen))
    if spec.anyway and facts["before"]:
        facts["before"] = "report"
    if spec.anyway and facts["pre_hook_holds"]:
        facts["pre_hook_holds"] = "nobody"
    return facts


def _facts_of_checkpoints(spec: AttemptSpec) -> dict[str, str]:
    """What starts must not load, whether the run had a checkpoint, whether it may begin without one."""
    facts = {"checkpoint_skip": "\n".join(spec.set_aside), "checkpoint_had": "1" if spec.had else ""}
    if spec.fresh:
        facts["checkpoint_fresh"] = "once"
    if spec.poisoned:
        from ftrun.hooks.checkpoints import diverged  # no first submission needs it

        facts["checkpoint_poison"] = diverged.to_lines(spec.poisoned)
    return facts


def _facts_of_run(context: Mapping[str, Any]) -> dict[str, str]:
    chosen = context["settings"]
    return {
        "run": context["run"],
        "cluster": context.get("cluster", ""),
        "claim_wait_s": f"{chosen['claim-wait']:g}",
        "checkpoint_glob": chosen["checkpoint"],
        "checkpoint_marker": chosen["checkpoint-marker"],
        "checkpoint_verify": chosen.get("checkpoint-verify", "name"),
        "checkpoint_fresh": "1" if chosen.get("checkpoint-fresh") else "",
        "resume_arg": "\n".join(chosen["resume-arg"]),
        "resume_env": "\n".join(chosen["resume-env"]),
        "pre_hook": text_of(chosen, "pre-hook"),
        "pre_hook_nodes": "all" if text_of(chosen, "pre-hook-where") == "all-nodes" else "",
        "pre_hook_holds": "nodes" if text_of(chosen, "pre-hook-failed") == "hold" else "",
        "post_hook": text_of(chosen, "post-hook"),
        "hook_limit_s": f"{chosen.get('hook-limit', 60.0):.0f}",
        "watch": monitor_period(chosen),
        "after": "" if chosen.get("after-checks") == "never" else "1",
        "before": _before(chosen),
        "checks": text_of(chosen, "checks"),
        "timeouts": library_env.export_lines(library_env.COLLECTIVES, chosen.get("timeouts", "never")),
        **_facts_of_trackers(chosen.get("tracker", "never"), context),
    }


def _facts_of_trackers(setting: str, context: Mapping[str, Any]) -> dict[str, str]:
    """What trackers of experiments are told: a name of the run that no other run of anybody has."""
    if setting == "never":
        return {}
    name = "-".join((context["run"], context["run_token"].rpartition(":")[2]))
    lines = library_env.export_lines(library_env.TRACKERS, setting).replace("{name}", name)
    if "{key}" in lines:
        import hashlib

        lines = lines.replace("{key}", hashlib.sha256(name.encode()).hexdigest()[:32])
    return {"trackers": lines, "mlflow_tag": name}


def _before(chosen: Mapping[str, Any]) -> str:
    """Whether the nodes are checked first; a script is held back only where another attempt follows."""
    if not chosen.get("preflight"):
        return ""
    return "report" if chosen["observe"] or not chosen["retries"] else "hold"


def monitor_period(chosen: Mapping[str, Any]) -> str:
    """Period of the node monitor and its delay after the script's start, in seconds; "" = none."""
    if chosen.get("watch") == "never":
        return ""
    period_s = number_of(chosen, "watch-period")
    return f"{period_s:g} {min(period_s / 2, 30.0):g}"


def with_excluded(
    changed: CommandLine,
    head: Sequence[CommandLine],
    exclude: Sequence[str],
    idle: Sequence[str],
    cwd: str = "",
) -> CommandLine:
    """`--exclude` with these nodes beside the user's own; nodes that the user asked for by name are replaced.

    A component of the script that names nodes of its own may get its own part of the command line.
    """
    from ftrun.slurm.client import nodeset

    own, named, files = (value_of_each(name, changed, head) for name in ("exclude", "nodelist", "nodefile"))
    changed = with_parts_for(changed, own, named, files)
    wanted = [named_nodes.expanded_names(named[part], files[part], cwd) for part in range(changed.components)]
    taken = {*exclude, *(node for nodes in wanted for node in nodes)}  # components have no node in common
    spares = [node for node in idle if node not in taken]
    for part, nodes in enumerate(wanted):
        merged = ",".join(filter(None, (named_nodes.node_list(own[part] or "", cwd), nodeset.fold(exclude))))
        changed = changed.with_option("exclude", merged, part)
        if set(nodes) & set(exclude):
            changed = changed.with_option(
                "nodelist", nodeset.fold(_substituted(nodes, exclude, spares)), part
            )
    return changed


def _substituted(wanted: Sequence[str], exclude: Sequence[str], spares: list[str]) -> list[str]:
    """The nodes with one of `spares`, which is taken from there, in the place of each excluded one."""
    bad = [node for node in wanted if node in exclude]
    if len(spares) < len(bad):
        raise SubmitImpossible(
            f"the job asks for {', '.join(bad)} by name (-w), which must be avoided, and no idle node can stand in"
        )
    return [spares.pop(0) if node in exclude else node for node in wanted]
