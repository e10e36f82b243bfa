"""Read the folder of an attempt: claims, launch records, exit records; close the attempt. (I/O)

`hooks/bundle/batch.sh` writes these files on the node (docs/inside-the-job.md). The supervisor reads them,
and closes an attempt by taking the claim of its next launch before it submits another attempt (protocol
P4). All of it is plain text.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ftrun.hooks.runtime.ownership import is_taken
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config import home
from ftrun.supervisor.model import types
from ftrun.supervisor.model.run import Attempt
from ftrun.supervisor.store import run_dir as store_run_dir

_LAUNCHES_MAX = 10_000
_RECORD_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Claim:
    """Who owns one launch of an attempt: a job, or the supervisor that closed it (`closed`)."""

    launch: int
    content: str

    @property
    def closed(self) -> bool:
        """No job may start this launch or a later one."""
        return self.content.startswith("closed.")

    @property
    def job(self) -> str:
        """The job id in a job's claim; "" in a closed one."""
        parts = self.content.split(".", 3)  # cluster, job, restart, token (which may hold dots)
        return "" if self.closed or len(parts) < 4 else parts[1]


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch as batch.sh recorded it, or one start of the script inside it.

    Paths are real paths on the node; offsets are bytes at the start; `nodes` are those of the job, or those
    that the start uses; `passed` says which newer checkpoint was not loaded, and why; `several`: the job has
    parts with ids and nodes of their own (tasks, components).
    """

    number: int
    job: str
    host: str
    nodes: tuple[str, ...]
    stdout: str
    stdout_offset_bytes: int
    stdout_dev: int
    stdout_ino: int
    stderr: str
    stderr_offset_bytes: int
    stderr_dev: int
    stderr_ino: int
    resume_from: str
    started_s: float | None
    start: int = 1
    passed: str = ""
    several: bool = False


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """The end of the user's script as batch.sh recorded it."""

    code: int
    signal: int
    ended_s: float | None


@functools.lru_cache(maxsize=1024)
def _dir(run_dir: str, attempt: int) -> Path:
    return Path(store_run_dir.attempt_dir(run_dir, attempt))


def claims(run_dir: str, attempt: int) -> tuple[Claim, ...]:
    """The claims of an attempt by launch number. Raises OSError where the folder cannot be read."""
    found = []
    for name in os.listdir(_dir(run_dir, attempt)):
        number = "0" if name == "claim" else name.removeprefix("claim.")
        if number != name and number.isdigit():
            with contextlib.suppress(FileNotFoundError):
                found.append(Claim(int(number), os.readlink(_dir(run_dir, attempt) / name)))
    return tuple(sorted(found, key=lambda claim: claim.launch))


def claim_holder(run_dir: str, attempt: int) -> Claim | None:
    """The newest claim of the job that holds the attempt, whichever launch that is (P4); None where none is seen.

    sbatch can make two jobs of one attempt. If both claimed a launch before either saw the other, the one that
    began is the holder; if none of them did, both have left.
    """
    with contextlib.suppress(OSError):
        held = [one for one in claims(run_dir, attempt) if one.job]
        if len({one.job for one in held}) > 1:
            records = (launch_record(run_dir, attempt, number) for number in launch_numbers(run_dir, attempt))
            began = {record.job for record in records if record is not None}
            held = [one for one in held if one.job in began]
        return held[-1] if held else None
    return None


def latest_claimed_launch(run_dir: str, attempt: Attempt) -> int:
    """The newest launch that the attempt's job has claimed; the one that its journal knows if none is seen."""
    with contextlib.suppress(OSError):
        numbers = (one.launch for one in claims(run_dir, attempt.number) if one.job == attempt.job)
        return max(numbers, default=attempt.launch.number)
    return attempt.launch.number


def close_attempt(run_dir: str, attempt: int, epoch: int, *, started: bool = True) -> Claim | None:
    """Take the first free claim and revoke the token of the present start. Returns None when the attempt is
    closed (now or before).

    `started` False: no job is known to have started, so only the first claim is tried. A job that holds it,
    or that slips in between, is returned: then nothing is closed.
    """
    folder = store_run_dir.attempt_dir(run_dir, attempt)
    before = claims(run_dir, attempt)
    if any(claim.closed for claim in before):
        _close_current(folder)
        return None
    if not started and (held := _of_a_job(before)) is not None:
        return held
    number = before[-1].launch + 1 if before and started else 0
    path = os.path.join(folder, f"claim.{number}" if number else "claim")
    try:
        os.symlink(f"closed.{epoch}", path)
    except OSError as error:
        if not is_taken(error, path):
            raise
        return Claim(number, os.readlink(path))
    # A job that claims another launch at this moment does not find its name taken: it looks once more after its
    # claim, as we do, so one of the two sees the other.
    if not started and (held := _of_a_job(claims(run_dir, attempt))) is not None:
        return held
    _close_current(folder)
    return None


def _of_a_job(found: Iterable[Claim]) -> Claim | None:
    return next((one for one in found if one.job), None)


def claim_for_job(run_dir: str, attempt: int, content: str) -> bool:
    """Take the attempt's first claim in the name of a job that is none of batch.sh's. False if it is taken."""
    path = str(_dir(run_dir, attempt) / "claim")
    try:
        os.symlink(content, path)
    except OSError as error:
        if not is_taken(error, path):
            raise
        return os.readlink(path) == content
    return True


def write_launch_record(run_dir: str, attempt: int, launch: int, lines: Mapping[str, object]) -> None:
    """Write what batch.sh would have recorded of this launch. Raises OSError."""
    text = "".join(f"{key}={value}\n" for key, value in lines.items() if "\n" not in str(value))
    home.write_atomically(str(_dir(run_dir, attempt) / f"launch.{launch}"), os.fsencode(text))


def _close_current(folder: str) -> None:
    """Show processes of this attempt that still live, perhaps on a frozen node, that it is over (P6)."""
    name = os.path.join(folder, "current")
    draft = f"{name}.closed.{os.getpid()}"
    with contextlib.suppress(OSError):  # the claim holds in any case
        os.symlink("closed", draft)
        os.rename(draft, name)


def claim_of_launch(run_dir: str, attempt: int, launch: int) -> Claim | None:
    """Who has the claim of one launch; None where nobody has, or it cannot be seen."""
    name = f"claim.{launch}" if launch else "claim"
    try:
        return Claim(launch, os.readlink(_dir(run_dir, attempt) / name))
    except OSError:
        return None


def launch_record(run_dir: str, attempt: int, launch: int) -> LaunchRecord | None:
    """Return batch.sh's record of the beginning of this launch; None if there is none (yet)."""
    return _launch(_dir(run_dir, attempt) / f"launch.{launch}", launch)


def start_record(run_dir: str, attempt: int, launch: int, start: int) -> LaunchRecord | None:
    """Return batch.sh's record of this start of the script inside one launch; None if there is none."""
    path = _dir(run_dir, attempt) / f"begun.{launch}.{start}"
    found = _launch(path, launch)
    return replace(found, start=start) if found is not None else None


def latest_start_record(run_dir: str, attempt: int, launch: int) -> LaunchRecord | None:
    """The record of the newest start of the script in this launch, else that of the launch."""
    numbers = _numbers(_dir(run_dir, attempt), f"begun.{launch}.")
    found = (start_record(run_dir, attempt, launch, number) for number in reversed(numbers) if number > 1)
    return next((one for one in found if one is not None), None) or launch_record(run_dir, attempt, launch)


def start_numbers(run_dir: str, attempt: int, launch: int) -> list[int]:
    """The starts of the script in a launch that left a record, sorted; the first one is always among them."""
    return sorted({1, *_numbers(_dir(run_dir, attempt), f"begun.{launch}.")})


def next_launch_record(run_dir: str, attempt: int, launch: int) -> LaunchRecord | None:
    """The first launch after this one that left a record in its attempt; None while there is none."""
    after = [number for number in launch_numbers(run_dir, attempt) if number > launch]
    return launch_record(run_dir, attempt, after[0]) if after else None


def launch_numbers(run_dir: str, attempt: int) -> list[int]:
    """The launches of an attempt that left a record, sorted."""
    return _numbers(_dir(run_dir, attempt), "launch.")


def tasks_started(run_dir: str, attempt: int) -> list[int]:
    """The tasks of an array that have claimed their start, sorted."""
    return _numbers(_dir(run_dir, attempt) / "tasks", "")


def array_job(run_dir: str, attempt: int) -> str:
    """The array of the attempt's tasks, as one that has begun says; "" while none has."""
    for task in tasks_started(run_dir, attempt):
        found = read_key_values(_of_task(run_dir, attempt, task, "launch.{}")[1]) or {}
        if found.get("array_job"):
            return found["array_job"]
    return ""


def task_records(run_dir: str, attempt: int, tasks: Iterable[int]) -> dict[int, LaunchRecord]:
    """The record of the last launch of each of these tasks of an array, as far as there is one."""
    found = {}
    for task in tasks:
        launch, path = _of_task(run_dir, attempt, task, "launch.{}")
        record = _launch(path, launch)
        if record is not None:
            found[task] = record
    return found


def task_has_ended(run_dir: str, attempt: int, task: int, launch: int) -> bool:
    """Whether this launch of a task has left the record of its script's end."""
    return (_task_dir(run_dir, attempt, task) / f"exit.{launch}").exists()


def task_dir(run_dir: str, attempt: int, task: int) -> str:
    """The folder of a task of an array."""
    return str(_task_dir(run_dir, attempt, task))


def task_exit(run_dir: str, attempt: int, task: int) -> ExitRecord | None:
    """How the script of the last launch of a task ended; None where it wrote nothing."""
    return _exit(_of_task(run_dir, attempt, task, "exit.{}")[1])


def _task_dir(run_dir: str, attempt: int, task: int) -> Path:
    return _dir(run_dir, attempt) / "tasks" / str(task)


def _of_task(run_dir: str, attempt: int, task: int, name: str) -> tuple[int, Path]:
    """(the last launch of a task, its file of this name); a file that is not there if it has had none."""
    folder = _task_dir(run_dir, attempt, task)
    launch = max(_numbers(folder, "launch."), default=-1)
    return launch, folder / name.format(launch)


def _numbers(folder: Path, prefix: str) -> list[int]:
    """Each N of the files PREFIX<N>, sorted."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    ends = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return sorted(int(end) for end in ends if end.isdigit())


def has_tasks(run_dir: str, attempt: int) -> bool:
    """Some task of an array has claimed its start."""
    return os.path.isdir(_dir(run_dir, attempt) / "tasks")


def _launch(path: Path, launch: int) -> LaunchRecord | None:
    values = read_key_values(path)
    return parse_launch(values, launch) if values is not None else None


def parse_launch(values: Mapping[str, str], launch: int) -> LaunchRecord:
    """A launch, or a start inside it, from the lines of its record. (pure)"""
    return LaunchRecord(
        number=launch,
        job=values.get("job", ""),
        host=values.get("host", ""),
        nodes=nodeset.expand(values.get("nodes", "")),
        stdout=values.get("stdout", ""),
        stdout_offset_bytes=parse_int(values.get("stdout_offset")),
        stdout_dev=parse_int(values.get("stdout_dev")),
        stdout_ino=parse_int(values.get("stdout_ino")),
        stderr=values.get("stderr", ""),
        stderr_offset_bytes=parse_int(values.get("stderr_offset")),
        stderr_dev=parse_int(values.get("stderr_dev")),
        stderr_ino=parse_int(values.get("stderr_ino")),
        resume_from=values.get("resume_from", ""),
        started_s=_seconds(values.get("started_s")),
        passed=values.get("passed", ""),
        several=bool(values.get("array_job") or values.get("het_size")),
    )


def latest_launch_record(run_dir: str, tries: Sequence[tuple[int, int]]) -> LaunchRecord | None:
    """The last launch that began, of (attempt, highest launch), oldest first."""
    for attempt, highest in reversed(tries):
        for launch in range(highest, -1, -1):
            found = launch_record(run_dir, attempt, launch)
            if found is not None:
                return found
    return None


def exit_record(run_dir: str, attempt: int, launch: int) -> ExitRecord | None:
    """How the user's script ended in this launch; None when nothing was written."""
    return _exit(_dir(run_dir, attempt) / f"exit.{launch}")


def _exit(path: Path) -> ExitRecord | None:
    values = read_key_values(path)
    if values is None or "code" not in values:
        return None
    return ExitRecord(
        parse_int(values["code"]), parse_int(values.get("signal")), _seconds(values.get("ended_s"))
    )


def script_has_ended(run_dir: str, attempt: int, launch: int) -> bool:
    """Whether this launch has left the record of its script's end; costs one look at a name."""
    return os.path.exists(_dir(run_dir, attempt) / f"exit.{launch}")


def why_no_checkpoint(run_dir: str, attempt: int, launch: int) -> str:
    """Why batch.sh did not run the script, for want of a checkpoint to load; "" if it did."""
    return (read_key_values(_dir(run_dir, attempt) / f"pick.{launch}.1") or {}).get("stuck", "")


def why_no_checkpoint_for_task(run_dir: str, attempt: int, task: int) -> str:
    """The same of the last launch of a task of an array."""
    return (read_key_values(_of_task(run_dir, attempt, task, "pick.{}.1")[1]) or {}).get("stuck", "")


def second_start_job(run_dir: str, attempt: int, launch: int) -> str:
    """The job that started this launch as the second, so that it did not run the script; "" for none."""
    return (read_key_values(_dir(run_dir, attempt) / f"lost.{launch}") or {}).get("job", "")


def prelaunch_hold(
    run_dir: str, attempt: int, launch: int, nodes: Sequence[str]
) -> types.PrelaunchHold | None:
    """Return what the checks before the script found, if they held it; `nodes` are those of the launch.

    A script with a record of its end was started: the verdict came late and had no effect.
    """
    if script_has_ended(run_dir, attempt, launch):
        return None
    return _prelaunch_hold(prelaunch_path(run_dir, attempt, launch), nodes)


def prelaunch_hold_of_task(
    run_dir: str, attempt: int, task: int, nodes: Sequence[str]
) -> tuple[types.PrelaunchHold | None, str]:
    """The same of the last launch of a task of an array that has left no record of its script's end; and
    where it stands.
    """
    path = str(_of_task(run_dir, attempt, task, "preflight.{}")[1])
    return _prelaunch_hold(path, nodes), path


def _prelaunch_hold(path: str, nodes: Sequence[str]) -> types.PrelaunchHold | None:
    try:
        table = json.loads(store_run_dir.read_untrusted(path, _RECORD_BYTES_MAX) or b"")
    except (ValueError, RecursionError):
        return None
    return types.parse_prelaunch_hold(table, nodes)


def prelaunch_path(run_dir: str, attempt: int, launch: int) -> str:
    """Where that record lies."""
    return str(_dir(run_dir, attempt) / f"preflight.{launch}")


def hook_hold(run_dir: str, attempt: int, launch: int) -> str:
    """How the pre-hook ended that kept the script from starting; "" if it did not."""
    return _hook_hold(_dir(run_dir, attempt) / f"pre-hook.{launch}")


def hook_hold_of_task(run_dir: str, attempt: int, task: int) -> str:
    """The same of the last launch of a task of an array."""
    return _hook_hold(_of_task(run_dir, attempt, task, "pre-hook.{}")[1])


def _hook_hold(path: Path) -> str:
    told = read_key_values(path) or {}
    if told.get("held") != "1":
        return ""
    return (
        "took longer than its limit" if told.get("why") == "limit" else f"ended with {told.get('code', '')}"
    )


def read_key_values(path: Path | str) -> dict[str, str] | None:
    """The lines `key=value` of a small file that a node wrote; None where there is none."""
    found = store_run_dir.read_untrusted(str(path), _RECORD_BYTES_MAX)
    if found is None:
        return None
    pairs = (line.partition("=") for line in found.decode("utf-8", "surrogateescape").splitlines())
    return {key: value for key, sep, value in pairs if sep}


def parse_int(text: str | None) -> int:
    """A number that a shell wrote; 0 where it is none."""
    return int(text) if text and text.lstrip("-").isdigit() else 0


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
