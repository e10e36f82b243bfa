"""The signal before a time limit: whether and when Slurm sends one, and what sbatch is told so that it does. (I/O)

Where the user chose no --signal, `save-signal` is set and --time is given, `--signal=<SIG>@<s>` is added to every submission, so
that the script can save in time, be it that no supervisor is alive then. It goes to the tasks of the steps, with `B:` in front of the
setting to the batch script. Slurm may send it up to a minute early, so a short limit gets none: a script that does not listen yet
would die of it. The supervisor sends the signal itself then. Without a time of its own, a --signal of the user's comes a minute before the limit.
"""

from __future__ import annotations

from ftrun.slurm.client.options import OptionError
from ftrun.slurm.client.parse import parse_seconds
from ftrun.supervisor import context, leaving, submit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ftrun.slurm.client.options import CommandLine

__all__ = ["ahead_s", "signal_option"]

AHEAD_S = 60.0  # what sbatch takes where --signal names no time


def signal_option(
    settings: Mapping[str, Any], line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]
) -> str:
    """The value of --signal that is added to what the user typed; "" = nothing is added."""
    name, to_script = leaving.split_signal(str(settings.get("save-signal", "")))
    if not name or line.components > 1 or len(head) > 1 or _chosen(line, head, env):
        return ""
    limit = line.get("time") or env.get("SBATCH_TIMELIMIT") or head[0].get("time") or ""
    ahead_s = leaving.warning_s(parse_seconds(limit), float(settings.get("save-wait", 120.0)))
    return f"{'B:' if to_script else ''}{name}@{ahead_s}" if ahead_s else ""


def ahead_s(run_dir: str) -> float | None:
    """How long before the time limit Slurm was told to send a signal, the user's own or ours; None where it was not told to.

    0.0 where that cannot be known.
    """
    try:
        kept, env = context.load(run_dir), context.environment(run_dir)
        line, head = submit.split_kept(kept), submit.directive_lines(context.script(run_dir), kept)
    except (context.ContextError, OptionError):
        return 0.0
    value = _chosen(line, head, env) or signal_option(kept["settings"], line, head, env)
    if not value:
        return None
    told = value.rpartition("@")[2] if "@" in value else ""
    return float(told) if told.isdigit() else AHEAD_S


def _chosen(line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]) -> str:
    """The --signal of the user's own; "" = none. One that stands there without a value still keeps ours away."""
    if line.has("signal"):
        return line.get("signal") or "none"
    if "SBATCH_SIGNAL" in env:
        return env["SBATCH_SIGNAL"] or "none"
    return next((part.get("signal") or "none" for part in head if part.has("signal")), "")
