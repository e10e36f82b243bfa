"""The file that sbatch gets: the user's directives, our variables, batch.sh, then the user's script. (pure)

How it thinks. sbatch reads directives from the top of a file up to the first line that is neither blank nor a comment
(`_opt_batch_script` in Slurm's src/sbatch/opt.c, the same in 22.05 and 26.05). #PBS and #BSUB lines it finds behind that, too: those come up.
So the user's block comes first, and the first line of ours ends it. The user's script stands behind the last line of
batch.sh, byte for byte, and is never parsed by the shell: batch.sh leaves before it gets there, and cuts it out of its
own file by the line before it. Nothing needs quoting, and a filter that inserts lines at the top (`sbatch --bbf`, a
site's job_submit plugin) moves nothing that matters.

What sbatch itself refuses in a script (DOS line ends, NUL bytes) stays in the composed file, and sbatch refuses it in
its own words. What the composed file would hide from sbatch (no `#!`, an empty script) is a ScriptError.

The token in the comment of every component that is submitted.

What is said of each component of a submission, by script and command line together.
How it thinks. sbatch goes through the components of a heterogeneous job one by one: what the script says of one, then what the command line says of
it. Whatever neither says is as it was for the component before, and where the command line has fewer parts than the script its last part counts
for all the rest. So what the script says of a later component may stand behind a part of the command line that outweighs it as soon as that part
says something of the kind: then the part is written once for each component, which by itself changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from ftrun.hooks.bundle.shell import BATCH_SH, SHIM_SH, SPAN_SH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.options import CommandLine

__all__ = [
    "ScriptError",
    "compose",
    "directives",
    "ftrun_directives",
    "payload",
    "said_of_each",
    "shebang",
    "with_room_for",
    "with_token",
    "with_variables",
]


_SPACE = b" \t\n\v\f\r"  # isspace() in the C locale

# The variables of batch.sh and the keys of `attempt` that fill them.
_VARIABLES = {
    "_ft_run": "run",
    "_ft_attempt": "attempt",
    "_ft_token": "token",
    "_ft_dir": "run_dir",
    "_ft_restart": "restart",
    "_ft_fault": "last_fault",
    "_ft_excluded": "excluded",
    "_ft_wait": "claim_wait_s",
    "_ft_glob": "checkpoint_glob",
    "_ft_marker": "checkpoint_marker",
    "_ft_skip": "checkpoint_skip",
    "_ft_poison": "checkpoint_poison",
    "_ft_judge": "checkpoint_verify",
    "_ft_fresh": "checkpoint_fresh",
    "_ft_had": "checkpoint_had",
    "_ft_rarg": "resume_arg",
    "_ft_renv": "resume_env",
    "_ft_cluster": "cluster",
    "_ft_array": "array",
    "_ft_prehook": "pre_hook",
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
    "_ft_rejoin": "rejoin",
    "_ft_save_signal": "save_signal",
    "_ft_timeouts": "timeouts",
    "_ft_sized": "sized",
    "_ft_caches": "caches",
    "_ft_cache_exports": "cache_exports",
    "_ft_stage": "stage",
    "_ft_pack": "tools",
}
_REQUIRED = ("run", "attempt", "token", "run_dir")


class ScriptError(Exception):
    """The script cannot be submitted. The message is what sbatch says about it."""


def compose(script: bytes, attempt: Mapping[str, str]) -> bytes:
    """The file to submit for one attempt.

    `attempt` has run, attempt, token and run_dir, and may have
    - restart, last_fault, excluded, cluster, claim_wait_s (seconds), array (NAME=VALUE that tell a task of the whole array);
    - checkpoint_glob, checkpoint_marker, checkpoint_skip, checkpoint_poison (lines of hooks.checkpoints.diverged), checkpoint_verify ("structure": Python
      looks into them), checkpoint_fresh ("1": with none that may be loaded the script begins from nothing, "once": at the first launch only), checkpoint_had ("1": the run had one);
    - resume_arg, resume_env;
    - pre_hook, post_hook (commands of a shell), hook_limit_s (seconds);
    - watch ("PERIOD DELAY", seconds), after ("1": the nodes of a failed script are checked), before ("hold": the nodes are
      checked first, and a bad minority keeps the script from starting; "report": it does not), checks (a file of thresholds);
    - agent (the interpreter that the agent runs under; "" for no agent), spares (how many nodes of the job no start uses at
      first), active (how many nodes the script uses; "" for all), active_tasks (its --ntasks, where the user gave one and the
      job's is wider), active_gpus (its --gpus, likewise), hidden (names of variables that only the wider job has), labels ("auto" or "never"), timeouts (lines NAME[,ALIAS...]=VALUE), rejoin ("1": a process may join again), save_signal;
    - sized (five numbers: the nodes that are asked for, the full size, the nodes of a unit, the samples of a unit's micro step, those of the
      whole batch, 0 = not told; "" = the run has but one size).
    - caches (the limit in bytes and the folder of compile caches on a node; "" = the script is told of none), cache_exports (lines
      NAME[,ALIAS...]=VALUE);
    - stage (seven lines: the folder that staged checkpoints are published to, the one on each node, how much memory, bytes in a second, how many
      stay, "auto" or "never" for copies on other nodes, seconds to wait at the end; "" = none are staged);
    - tools (the name of the node side of ftrun in `tools` of the home, which ends with its SHA-256; "" = whatever the link there leads to).
    Several globs, paths, templates or pairs in one value are separated by newlines. Other keys are not read. Raises
    ScriptError for a script that sbatch would refuse, KeyError for a missing key, ValueError for a NUL byte in a value.
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
    # A comment or a value of the user's may hold the line itself: take one that occurs nowhere before.
    mark = next(mark for n in count() if (mark := b"#ftrun-payload-%d#" % n) not in before)
    return b"".join((before, b"_ft_mark='", mark, b"'\n", BATCH_SH.partition(b"\n")[2], mark, b"\n", script))


def with_variables(text: bytes, values: Mapping[str, str]) -> bytes:
    """A script of our own, its `#!` line included, with these variables set behind that line. Raises ValueError for a NUL byte."""
    first, _, rest = text.partition(b"\n")
    return b"\n".join((first, *_assigned(values), rest))


def _assigned(values: Mapping[str, str]) -> list[bytes]:
    return [name.encode() + b"=" + _quoted(_encoded(value)) for name, value in values.items()]


def payload(composed: bytes) -> bytes:
    """The user's script out of a composed file. Raises ValueError where there is none."""
    import re

    found = re.search(rb"^_ft_mark='(#ftrun-payload-\d+#)'$", composed, re.MULTILINE)
    if found is None:
        raise ValueError("not a file that ftrun composed")
    return composed.partition(b"\n" + found[1] + b"\n")[2]


def directives(script: bytes) -> list[bytes]:
    """The user's directive block: the lines after the first up to the first command, as sbatch scans them, without
    their line ends. Comments and blank lines are part of it."""
    block = []
    for line in _lines_after_first(script):
        first = line.lstrip(_SPACE)[:1]
        if first not in (b"", b"#"):
            break
        block.append(line)
    return block


def _late(script: bytes) -> list[bytes]:
    """#PBS or #BSUB lines behind the first command, where sbatch still looks for them, and would not behind ours."""
    if b"\n#PBS" not in script and b"\n#BSUB" not in script:
        return []
    from ftrun.slurm.client import foreign_directives

    above = len(directives(script))
    return [line for number, line in foreign_directives.foreign_lines(script) if number > above]


def ftrun_directives(script: bytes) -> list[str]:
    """The arguments on `#FTRUN` lines of the directive block, split as a shell splits words; `#` begins a comment.
    Raises ScriptError for an unclosed quote."""
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
    """Interpreter and its one argument, cut as the kernel cuts them; (b"", b"") where there is none. An interpreter
    without a slash is a file of the working folder, as it is to the kernel."""
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
    """A directive line that a shell takes for a comment too: to sbatch any white space is blank, to a shell only
    space and tab are. Lines that sbatch reads as directives have no white space in front and stay as they are."""
    text = line.lstrip(_SPACE)
    if not text:
        return b""
    if line[: len(line) - len(text)].strip(b" \t"):
        return b" " + text
    return line


def _refuse_what_sbatch_refuses(script: bytes) -> None:
    """The checks of sbatch (src/sbatch/sbatch.c) that a composed file would no longer fail, in its words."""
    if not script:
        raise ScriptError("Batch script is empty!")
    if not script.strip(_SPACE):
        raise ScriptError("Batch script contains only whitespace!")
    if not script.startswith(b"#!"):
        raise ScriptError(
            "This does not look like a batch script.  The first line must start with #! followed by the path to an interpreter. For instance: #!/bin/sh"
        )


def _encoded(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _quoted(value: bytes) -> bytes:
    """`value` as one word of a POSIX shell. Raises ValueError for a NUL byte."""
    if b"\0" in value:
        raise ValueError("a NUL byte cannot be passed to a job")
    return b"'" + value.replace(b"'", b"'\\''") + b"'"


def said_of_each(name: str, line: CommandLine, head: Sequence[CommandLine]) -> list[str | None]:
    """The value of an option for each component; None where nobody gave one. Tried on 22.05 with comments, names, time limits and nodes."""
    said: list[str | None] = []
    for part in range(max(line.components, len(head))):
        typed = line.get(name, min(part, line.components - 1))
        written = head[part].get(name) if part < len(head) else None
        before = said[-1] if said else None
        said.append(typed if typed is not None else written if written is not None else before)
    return said


def with_room_for(changed: CommandLine, *said: Sequence[str | None]) -> CommandLine:
    """The same arguments with as many parts as these values, one for each component, need to be told apart."""
    parts = changed.components
    if all(value == each[parts - 1] for each in said for value in each[parts:]):
        return changed
    return changed.widened(max(len(each) for each in said))


def with_token(
    changed: CommandLine, line: CommandLine, head: Sequence[CommandLine], token: str
) -> CommandLine:
    """`changed` with the token behind the user's own comment in each component.

    `line` and `head` are the arguments and the directives as the user gave them; there is no variable for a comment.
    """
    own = said_of_each("comment", line, head)
    changed = with_room_for(changed, own).without("comment")
    for part in range(changed.components):
        changed = changed.with_option("comment", f"{own[part]} {token}" if own[part] else token, part)
    return changed
