"""The file that sbatch gets: the user's directives, our variables, batch.sh, then the user's script. (pure)

sbatch reads directives from the top of a file up to the first line that is neither blank nor a comment
(`_opt_batch_script` in Slurm's src/sbatch/opt.c, the same in 22.05 and 26.05). #PBS and #BSUB lines it
finds behind that line, too: those are moved up. So the user's directive block comes first, and our first
line ends it. The user's script stands behind the last line of batch.sh, byte for byte, and no shell parses
it there: batch.sh exits before it, and cuts the script out of its own file at the marker line in front of
it. Nothing needs quoting, and a filter that inserts lines at the top (`sbatch --bbf`, a site's job_submit
plugin) breaks nothing.

What sbatch itself refuses in a script (DOS line ends, NUL bytes) stays in the composed file, so sbatch
refuses it in its own words. What the composed file would hide from sbatch (no `#!`, an empty script) is a
ScriptError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from ftrun.hooks.bundle.shell import BATCH_SH, SHIM_SH, SPAN_SH

TYPE_CHECKING = False

_SPACE = b" \t\n\v\f\r"  # isspace() in the C locale

# The variables of batch.sh and the keys of `attempt` that fill them.
_VARIABLES = {
    "_ft_run": "run",
    "_ft_attempt": "attempt",
    "_ft_token": "token",
    "_ft_dir": "run_dir",
    "_ft_restart": "restart",
    "_ft_fault": "last_fault",
    "_ft_why": "last_words",
    "_ft_excluded": "excluded",
    "_ft_wait": "claim_wait_s",
    "_ft_glob": "checkpoint_glob",
    "_ft_marker": "checkpoint_marker",
    "_ft_skip": "checkpoint_skip",
    "_ft_poison": "checkpoint_poison",
    "_ft_verify": "checkpoint_verify",
    "_ft_fresh": "checkpoint_fresh",
    "_ft_had": "checkpoint_had",
    "_ft_rarg": "resume_arg",
    "_ft_renv": "resume_env",
    "_ft_cluster": "cluster",
    "_ft_array": "array",
    "_ft_prehook": "pre_hook",
    "_ft_prehook_nodes": "pre_hook_nodes",
    "_ft_prehook_holds": "pre_hook_holds",
    "_ft_posthook": "post_hook",
    "_ft_hook_limit": "hook_limit_s",
    "_ft_watch": "watch",
    "_ft_after": "after",
    "_ft_before": "before",
    "_ft_checks": "checks",
    "_ft_agent": "agent",
    "_ft_spares": "spares",
    "_ft_active_n": "active",
    "_ft_active_tasks": "active_tasks",
    "_ft_active_gpus": "active_gpus",
    "_ft_hidden": "hidden",
    "_ft_labels": "labels",
    "_ft_shows": "shows",
    "_ft_rejoin": "rejoin",
    "_ft_save_signal": "save_signal",
    "_ft_timeouts": "timeouts",
    "_ft_trackers": "trackers",
    "_ft_mlflow_tag": "mlflow_tag",
    "_ft_sized": "sized",
    "_ft_segment": "segment",
    "_ft_caches": "caches",
    "_ft_cache_exports": "cache_exports",
    "_ft_stage": "stage",
    "_ft_pack": "tools",
    "_ft_clients": "clients",
    "_ft_conf": "conf",
}
_REQUIRED = ("run", "attempt", "token", "run_dir")


class ScriptError(Exception):
    """The script cannot be submitted. The message is what sbatch says about it."""


def compose(script: bytes, attempt: Mapping[str, str]) -> bytes:
    """The file to submit for one attempt.

    `attempt` has run, attempt, token and run_dir, and may have
    - restart, last_fault, last_words, excluded, cluster, claim_wait_s (seconds), array (NAME=VALUE: the bounds of the
      whole array);
    - checkpoint_glob, checkpoint_marker, checkpoint_skip, checkpoint_poison (lines of
      hooks.checkpoints.diverged), checkpoint_verify ("structure": Python looks into them), checkpoint_fresh
      ("1": without a loadable checkpoint the script starts from nothing, "once": at the first launch only),
      checkpoint_had ("1": the run had one);
    - resume_arg, resume_env;
    - pre_hook, post_hook (shell commands), hook_limit_s (seconds), pre_hook_nodes ("all": it runs on every
      node), pre_hook_holds ("nodes": where it fails the script does not start, and a minority of nodes that
      failed is blamed; "nobody": the same, and no node is blamed);
    - watch ("PERIOD DELAY", seconds), after ("1": check the nodes of a failed script), before ("hold":
      check the nodes first, and a bad minority keeps the script from starting; "report": check them first
      and start anyway), checks (a file of thresholds);
    - agent (the agent's interpreter; "" for no agent), spares (nodes of the job that no start uses at
      first), active (how many nodes the script uses; "" for all), active_tasks (its --ntasks, where the
      user gave one and the job's is larger), active_gpus (its --gpus, likewise), hidden (names of variables
      that only the larger job has), labels ("auto" or "never"), shows ("auto": containers of the site's
      plug-in get the run's folder), timeouts and trackers (lines NAME[,ALIAS...]=VALUE; in trackers {task} is
      the task of an array), mlflow_tag (the value of the tag by which a later start finds the run of MLflow),
      rejoin ("1": a process may join again), save_signal;
    - sized (five numbers: nodes asked for, full size, nodes of a unit, samples of a unit's micro step,
      samples of the whole batch, 0 = unknown; "" = the run has one size);
    - segment (how many nodes in a row share a leaf switch or block; "" = any);
    - caches (the limit in bytes and the folder of compile caches on a node; "" = none), cache_exports
      (lines NAME[,ALIAS...]=VALUE);
    - stage (seven lines: the folder that staged checkpoints are published to, the folder on each node,
      memory, bytes per second, how many stay, "auto" or "never" for partner copies, seconds to wait at the
      end; "" = none are staged);
    - clients (the folder of the Slurm clients of this submission), conf (its SLURM_CONF);
    - tools (the file of node tools in `tools` of the home, whose name ends with its SHA-256; "" = the link
      there). Several globs, paths, templates or pairs in one value are separated by newlines. Other keys
      are ignored. Raises ScriptError for a script that sbatch would refuse, KeyError for a missing key,
      ValueError for a NUL byte in a value.
    """
    _refuse_what_sbatch_refuses(script)
    for key in _REQUIRED:
        attempt[key]
    interpreter, argument = shebang(script)
    values = {name: attempt.get(key, "") for name, key in _VARIABLES.items()}
    assignments = _assigned(values)
    inside = values["_ft_agent"] or values["_ft_spares"] not in ("", "0")
    assignments.append(b"_ft_shim=" + _quoted(SHIM_SH if inside else b""))
    assignments.append(b"_ft_shim_span=" + _quoted(SPAN_SH if values["_ft_agent"] else b""))
    assignments += [b"_ft_interp=" + _quoted(interpreter), b"_ft_iarg=" + _quoted(argument)]
    before = b"".join(
        (
            b"#!/bin/sh\n",
            *(_as_sh_sees_it(line) + b"\n" for line in directives(script)),
            *(line + b"\n" for line in _late(script)),
            b"\n".join(assignments),
            b"\n",
        )
    )
    # A comment or a value of the user's may contain the marker: take one that occurs nowhere before.
    mark = next(mark for n in count() if (mark := b"#ftrun-payload-%d#" % n) not in before)
    return b"".join((before, b"_ft_mark='", mark, b"'\n", BATCH_SH.partition(b"\n")[2], mark, b"\n", script))


def with_variables(text: bytes, values: Mapping[str, str]) -> bytes:
    """A script of ours with these variables set behind its `#!` line. Raises ValueError for a NUL byte."""
    first, _, rest = text.partition(b"\n")
    return b"\n".join((first, *_assigned(values), rest))


def _assigned(values: Mapping[str, str]) -> list[bytes]:
    return [
        name.encode() + b"=" + _quoted(value.encode("utf-8", "surrogateescape"))
        for name, value in values.items()
    ]


def directives(script: bytes) -> list[bytes]:
    """The user's directive block without line ends.

    From the second line to the first command, as sbatch scans it.

    Comments and blank lines are part of it.
    """
    block = []
    for line in _lines_after_first(script):
        first = line.lstrip(_SPACE)[:1]
        if first not in (b"", b"#"):
            break
        block.append(line)
    return block


def _late(script: bytes) -> list[bytes]:
    """#PBS or #BSUB lines behind the first command: sbatch would not find them behind our lines."""
    if b"\n#PBS" not in script and b"\n#BSUB" not in script:
        return []
    from ftrun.slurm.client import foreign_directives

    above = len(directives(script))
    return [line for number, line in foreign_directives.foreign_lines(script) if number > above]


def ftrun_directives(script: bytes) -> list[str]:
    """The arguments on `#FTRUN` lines of the directive block, split as in a shell; `#` begins a comment.

    Raises ScriptError for an unclosed quote.
    """
    import shlex

    arguments: list[str] = []
    for number, line in enumerate(directives(script), start=2):
        head, rest = line[:6], line[6:]
        if head != b"#FTRUN" or (rest and rest[:1] not in (b" ", b"\t", b"\r")):
            continue
        try:
            arguments += shlex.split(rest.decode("utf-8", "surrogateescape"), comments=True)
        except ValueError as error:
            raise ScriptError(f"line {number}: #FTRUN: {str(error).lower()}") from None
    return arguments


def shebang(script: bytes) -> tuple[bytes, bytes]:
    """Interpreter and its one argument, split as the kernel does; (b"", b"") where there is none.

    An interpreter without a slash is a file of the working folder, as for the kernel.
    """
    line = script[2:].partition(b"\n")[0].strip(b" \t") if script.startswith(b"#!") else b""
    interpreter = line.replace(b"\t", b" ").partition(b" ")[0]
    argument = line[len(interpreter) :].strip(b" \t")
    if interpreter and b"/" not in interpreter:
        interpreter = b"./" + interpreter
    return interpreter, argument


def _lines_after_first(script: bytes) -> Iterator[bytes]:
    lines = script.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    yield from lines[1:]


def _as_sh_sees_it(line: bytes) -> bytes:
    """A directive line that a shell takes for a comment too.

    For sbatch any white space is blank, for a shell only space and tab. Lines that sbatch reads as
    directives have no white space in front and stay as they are.
    """
    text = line.lstrip(_SPACE)
    if not text:
        return b""
    if line[: len(line) - len(text)].strip(b" \t"):
        return b" " + text
    return line


def _refuse_what_sbatch_refuses(script: bytes) -> None:
    """sbatch's own checks (src/sbatch/sbatch.c) that every composed file passes, in sbatch's words."""
    if not script:
        raise ScriptError("Batch script is empty!")
    if not script.strip(_SPACE):
        raise ScriptError("Batch script contains only whitespace!")
    if not script.startswith(b"#!"):
        raise ScriptError(
            "This does not look like a batch script.  The first line must start with #! followed by the path to an interpreter. For instance: #!/bin/sh"
        )


def _quoted(value: bytes) -> bytes:
    """`value` as one word of a POSIX shell. Raises ValueError for a NUL byte."""
    if b"\0" in value:
        raise ValueError("a NUL byte cannot be passed to a job")
    return b"'" + value.replace(b"'", b"'\\''") + b"'"
