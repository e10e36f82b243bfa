"""What a person probably meant where sbatch would refuse a submission. (I/O)

Loaded only once something is wrong: a good submission pays nothing for it.
"""

from __future__ import annotations

import os
import shlex

from ftrun.slurm.client.options import CommandLine
from ftrun.supervisor.config.settings import SETTINGS
from ftrun.supervisor.model.errors import UserError, nearest_word


def refuse_shifted(line: CommandLine, typed: tuple[str, ...], *, has_script: bool) -> None:
    """Raise UserError where a setting has taken the script for its value, or where the shell has replaced a
    pattern by the files that it names, so that one of these stands where the script should.

    sbatch would only say that the script is empty, or is none.
    """
    for name, value in line.own:
        if value is None or f"--ft-{name}" not in typed:
            continue  # a flag, or written with `=`: it cannot have taken another word
        if line.script is None and not has_script and _is_script(value):
            raise UserError(
                f"--ft-{name} lacks its value, and took {value!r} for it, so no script is left:"
                f" ftrun sbatch --ft-{name}=VALUE {value}"
            )
        behind = next((word for word in line.script_args if _is_script(word)), "")
        if line.script is not None and behind and not _is_script(line.script) and os.path.exists(value):
            raise UserError(
                f"--ft-{name}: the shell has replaced the pattern by the files {value}, {line.script} ...: quote it,"
                f" as in: ftrun sbatch --ft-{name}='PATTERN' {behind}"
            )


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False


def hint(line: CommandLine, unknown: str, *, path: str, script: bytes) -> str:
    """A line to add to sbatch's refusal; "" for none. `unknown`: an option that sbatch does not know; `path`,
    `script`: the file that stands for the script, and its content.
    """
    if unknown:
        key = unknown.removeprefix("ft").lstrip("-_").replace("_", "-")
        near = nearest_word(key, SETTINGS) if unknown.startswith("ft") else ""
        near = key if key in SETTINGS else near
        return (
            f"--{unknown} is no option of sbatch; the setting of ftrun is written --ft-{near}" if near else ""
        )
    elsewhere = path and line.script and "/" not in line.script and os.path.dirname(path) != os.getcwd()
    if elsewhere and script and not script.startswith(b"#!"):
        command = shlex.quote(shlex.join([line.script or "", *line.script_args]))
        return f"{line.script} is a program, not a batch script: write a script, or: ftrun sbatch --wrap={command}"
    return ""
