"""What a script says of its own recovery, and what ftrun lacks to resume it: told before a submission. (I/O)

`ftrun sbatch` imports this for a script with a telling word, at a terminal, and for `--ft-check`.
docs/other-recovery.md tells who acts where another tool restarts jobs, too.
"""

from __future__ import annotations

import glob
import os
import re

from ftrun.slurm.records import dataclass
from ftrun.supervisor.config import sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ftrun.slurm.client.options import SbatchOptions
    from ftrun.supervisor.submission.arguments import Submission

_ARGUMENTS = re.compile(
    rb"\A#!(?!.*sh\b)|^[^#\n]*(?:\$\{?[@*#1]|\bargv\b|\bBASH_ARGV\b|\bgetopts\b|\bshift\b)", re.MULTILINE
)
"""What reads the arguments of a script for a shell; a script for another program is not looked at."""
_NAME = re.compile(r"%\d*([A-Za-z])")


@dataclass(frozen=True, slots=True)
class Restarter:
    """Another tool that starts a failed job again, and how it is switched off. `wait_s`: how long ftrun waits
    for one that does so within the same job; 0: it makes a new job, or puts this one back into the queue.
    """

    name: str
    pattern: bytes
    wait_s: float
    off: str


RESTARTERS = (
    Restarter("srun --auto-resume (HyperPod)", rb"^[^#\n]*--auto-resume(?![= ]0)", 1800.0, "--auto-resume=0"),
    Restarter("NVRx's ft_launcher", rb"^[^#\n]*\bft_launcher\b", 600.0, "torchrun in place of ft_launcher"),
    Restarter(
        "NVIDIA's job recovery (AJR)", rb'"APS"\s*:', 0.0, 'no "APS" in --comment'
    ),
    Restarter(
        "submitit", rb"^[^#\n]*\bsubmitit\b", 0.0, "max_num_timeout=0 in its executor"
    ),
    Restarter(
        "the script's own scontrol requeue", rb"^[^#\n]*\bscontrol\s+requeue\b", 0.0, "without that line"
    ),
)  # fmt: skip


def restarters(text: bytes) -> list[Restarter]:
    """The tools that a script and its comment name. (pure)"""
    return [one for one in RESTARTERS if re.search(one.pattern, text, re.MULTILINE)]


def heed_restarters(asked: Submission) -> list[str]:
    """Wait for what restarts within the job, unless somebody said how long; a line on each tool that starts it
    again.
    """
    found = restarters(told_text(asked))
    wait_s = max((one.wait_s for one in found), default=0.0)
    if wait_s and asked.config.origin["own-restart"][0] == sources.DEFAULT:
        asked.config.put(sources.SCRIPT, "the script", {"own-restart": wait_s})
    return [restarter_line(one, asked.config.number("own-restart")) for one in found]


def restarter_line(one: Restarter, wait_s: float) -> str:
    """Who acts and who waits, in one line. (pure)"""
    if one.wait_s:
        return f"{one.name} restarts within the job: it acts first, ftrun waits {wait_s / 60:g} min after a fault (own-restart); off: {one.off}"
    return f"{one.name} starts jobs again, too: let one of the two do it (ftrun: --ft-retries=0; the other: {one.off})"


def checkpoint_line(asked: Submission) -> str:
    """What keeps ftrun from resuming at a checkpoint; "" if nothing is seen."""
    pattern = asked.config.text("checkpoint")
    if not pattern:
        return "no checkpoint setting: ftrun cannot tell from where a restart goes on (`ftrun init SCRIPT` proposes one)"
    if _found(asked):
        return ""
    folder = os.path.join(_folder(asked), os.path.expanduser(pattern))
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    there = (
        ""
        if os.path.isdir(folder) or os.path.isdir(os.path.dirname(folder))
        else f", and there is no {folder}"
    )
    return f"nothing matches --ft-checkpoint={pattern} in {_folder(asked)} yet{there}"


def arguments_line(asked: Submission) -> str:
    """That what ftrun appends to the script's arguments reaches no program; "" if it may."""
    if not asked.config.values["resume-arg"] or _ARGUMENTS.search(asked.script):
        return ""
    return 'the script uses no arguments, so --ft-resume-arg reaches no program: end the line that trains by "$@"'


def missing_log_folder(given: SbatchOptions, folder: str, names: Mapping[str, str]) -> str:
    """The folder of the job's output that does not exist on this machine; "" if none is missing.

    Slurm makes no folders: a job whose output cannot be opened ends before its first line. `folder` is the one
    of the submission, `names` what stands for %x and the like; at an unknown name the path is given up.
    """
    for value in (given.get("output", "SBATCH_OUTPUT"), given.get("error", "SBATCH_ERROR")):
        expanded = _NAME.sub(lambda found: names.get(found[1], found[0]), value)
        path = os.path.dirname(os.path.join(folder, given.get("chdir"), expanded))
        if "%" in path:
            path = os.path.dirname(path[: path.index("%")])
        if "\\" not in path and not os.path.isdir(path):
            return os.path.normpath(path)
    return ""


def log_folder_line(asked: Submission) -> str:
    """What Slurm does to a job whose output lies in a folder that does not exist; "" if it exists."""
    missing = missing_log_folder(asked.given, os.getcwd(), {"x": asked.job_name})
    if not missing:
        return ""
    return f"there is no {missing} here: Slurm ends a job whose output it cannot open; mkdir -p {missing}"


def check_lines(asked: Submission) -> Iterator[str]:
    """All that `--ft-check` tells, line by line."""
    script, values = asked.script, asked.config.values
    yield f"job: {asked.job_name}, {asked.given.shape}, at most {values['retries']} retries"
    if told := log_folder_line(asked):
        yield f"output: {told}"
    found = _found(asked)
    told = checkpoint_line(asked)
    yield f"checkpoint: {told or f'{len(found)} match now, the youngest is {found[-1]}'}"
    passed = [str(one) for key in ("resume-arg", "resume-env") for one in _texts(values[key])]
    if passed:
        yield f"resume: {' '.join(passed)}"
        if told := arguments_line(asked):
            yield f"arguments: {told}"
    elif b"FTRUN_RESUME" in script:
        yield "resume: the script reads FTRUN_RESUME_..."
    else:
        yield "resume: nothing passes a checkpoint on (--ft-resume-arg, --ft-resume-env); the program must find its newest one itself"
    named = restarters(told_text(asked))
    for one in named:
        yield f"also restarts: {restarter_line(one, asked.config.number('own-restart'))}"
    if not named:
        yield "also restarts: nothing that ftrun knows"


def _texts(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def told_text(asked: Submission) -> bytes:
    """The script, the words that it is submitted with, and its comment."""
    words = " ".join([*asked.given.line.script_args, asked.given.get("comment") or ""])
    return asked.script + b"\n" + words.encode("utf-8", "surrogateescape")


def _folder(asked: Submission) -> str:
    return os.path.normpath(os.path.join(os.getcwd(), asked.given.get("chdir") or ""))


def _found(asked: Submission) -> list[str]:
    pattern = asked.config.text("checkpoint")
    paths = glob.glob(os.path.join(_folder(asked), os.path.expanduser(pattern))) if pattern else []
    return sorted(paths, key=lambda path: (os.path.getmtime(path) if os.path.exists(path) else 0.0, path))
