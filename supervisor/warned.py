"""The signal before a time limit: whether Slurm sends one, and what sbatch is told so that it does. (I/O)

Where the user chose no --signal, `save-signal` is set and --time is given, `--signal=<SIG>@<s>` is added to every submission, so
that the script can save in time, be it that no supervisor is alive then. It goes to the tasks of the steps, with `B:` in front of the
setting to the batch script. Slurm may send it up to a minute early, so a short limit gets none: a script that does not listen yet
would die of it. The supervisor sends the signal itself then.
"""

from __future__ import annotations

from ftrun.slurm.options import OptionError
from ftrun.slurm.parse import parse_seconds
from ftrun.supervisor import context, leaving, submit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ftrun.slurm.options import CommandLine

__all__ = ["by_slurm", "signal_option"]


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


def by_slurm(run_dir: str) -> bool:
    """Whether Slurm sends a signal before the time limit: the user's own or ours. Where that cannot be known: True, nothing is sent."""
    try:
        kept, env = context.load(run_dir), context.environment(run_dir)
        line, head = submit.split_kept(kept), submit.directive_lines(context.script(run_dir), kept)
    except (context.ContextError, OptionError):
        return True
    return _chosen(line, head, env) or bool(signal_option(kept["settings"], line, head, env))


def _chosen(line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]) -> bool:
    return line.has("signal") or "SBATCH_SIGNAL" in env or any(part.has("signal") for part in head)
