"""Runs one Slurm command as a child, with a timeout and, for sbatch, in the context of another process. (I/O)

There are two environments: commands whose output ftrun parses get `reading_env`, in which no variable of the
caller can change a format or a filter; sbatch gets the environment of the submission, unchanged.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ftrun.slurm.client.errors import RefusedForGood, RefusedForNow, SlurmError, Unreachable
from ftrun.slurm.commands.failure_kinds import Call, error_of_failure
from ftrun.slurm.records import dataclass

# Variables that Slurm's commands need to reach the right cluster; all other SLURM_* change output or
# selection.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_SOCKET"})
_CHANGING = ("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_", "SACCTMGR_", "SBATCH_")
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command. `killed`: our timeout ended it; `exit_code` is then None."""

    exit_code: int | None
    stdout: str
    stderr: str
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """A child's context besides its environment; None or empty: inherited, limits (soft, hard)."""

    cwd: str | None = None
    umask: int | None = None
    limits: Mapping[str, tuple[int, int]] | None = None
    nice: int | None = None


def reading_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands that are parsed: English, Unix seconds, no formats from outside."""
    kept = {key: value for key, value in env.items() if key in _KEPT or not key.startswith(_CHANGING)}
    kept.update(LC_ALL="C", SLURM_TIME_FORMAT="%s")
    kept.setdefault("PATH", _USUAL_PATH)
    return kept


def tool(name: str, env: Mapping[str, str]) -> str:
    """Full path of a Slurm command: from this environment's PATH, else our own, else the usual places."""
    for path in (env.get("PATH"), os.environ.get("PATH"), _USUAL_PATH):
        found = shutil.which(name, path=path) if path else None
        if found is not None:
            return found
    raise Unreachable(f"{name} is not installed here: install Slurm's client commands or add them to PATH")


def check_configuration(env: Mapping[str, str]) -> None:
    """Raises Unreachable when SLURM_CONF names no readable file: Slurm's commands would retry for 60 s.
    Without SLURM_CONF nothing is checked: the file may come from the controller (configless), and then there
    is none.
    """
    path = env.get("SLURM_CONF")
    if path and not os.access(path, os.R_OK):
        raise Unreachable(
            f"SLURM_CONF={path}: no such file, or not readable; set it to this cluster's slurm.conf"
        )


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    timeout_s: float,
    stdin: bytes | None = None,
    context: Context | None = None,
) -> Answer:
    """Run a command to its end or to the timer. Raises RefusedForGood where the context cannot be made,
    Unreachable or RefusedForNow where the command cannot be started (its arguments too long:
    RefusedForGood).
    """
    report, complain = os.pipe()
    prepare = _preparation(context, complain) if context is not None else None
    try:
        with subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=context.cwd if context is not None else None,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=prepare,  # noqa: PLW1509  the only way to set limits; nothing of ours runs in threads
        ) as child:
            try:
                out, err = child.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                out, err = child.communicate()
                return Answer(None, _decode(out), _decode(err), killed=True)
            except BaseException:
                child.kill()
                raise
        return Answer(child.returncode, _decode(out), _decode(err))
    except subprocess.SubprocessError as wrong:  # preparation failed, before the command was started
        os.set_blocking(report, False)
        raise RefusedForGood(_decode(os.read(report, 4096)) or f"cannot start {argv[0]}: {wrong}") from wrong
    except OSError as wrong:
        if context is not None and context.cwd is not None and not os.access(context.cwd, os.X_OK):
            raise RefusedForGood(
                f"cannot restore the working folder {context.cwd}: {wrong.strerror}"
            ) from wrong
        raise _start_failure(wrong)(f"cannot start {argv[0]}: {wrong.strerror}") from wrong
    finally:
        os.close(report)
        os.close(complain)


def ask(
    call: Call,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    timeout_s: float,
    accept: Callable[[str], bool] | None = None,
) -> Answer:
    """The answer of a command; `accept` sees in stderr that one that failed did answer. Raises SlurmError."""
    check_configuration(env)
    answer = run([tool(argv[0], env), *argv[1:]], env, timeout_s=timeout_s)
    if answer.exit_code == 0 or (accept is not None and not answer.killed and accept(answer.stderr)):
        return answer
    raise failure(call, answer, timeout_s)


def failure(call: Call, answer: Answer, timeout_s: float) -> SlurmError:
    """The error that a command's answer means, which had `timeout_s` for it."""
    killed_s = timeout_s if answer.killed else None
    return error_of_failure(call, stderr=answer.stderr, exit_code=answer.exit_code, killed_after_s=killed_s)


def _start_failure(wrong: OSError) -> type[SlurmError]:
    if wrong.errno == errno.E2BIG:  # arguments and environment together are too long for this system
        return RefusedForGood
    return RefusedForNow if wrong.errno in {errno.EAGAIN, errno.ENOMEM} else Unreachable


def _preparation(context: Context, complain: int) -> Callable[[], None]:
    """Runs in the child between fork and exec; reports on the pipe what cannot be restored."""
    umask, nice = context.umask, context.nice
    limits = [(name, _limit_number(name), pair) for name, pair in (context.limits or {}).items()]
    step = nice - os.getpriority(os.PRIO_PROCESS, 0) if nice is not None else 0

    def restore() -> None:
        what = ""
        try:
            if umask is not None:
                os.umask(umask)
            for name, number, pair in limits:
                what = f"limit {name} (soft {pair[0]}, hard {pair[1]})"
                if resource.getrlimit(number) != pair:
                    resource.setrlimit(number, pair)
            if step:
                what = f"nice {nice}"
                os.nice(step)
        except (OSError, ValueError) as wrong:
            os.write(complain, f"cannot restore {what} of the submission: {wrong}".encode())
            raise

    return restore


def _limit_number(name: str) -> int:
    number = getattr(resource, f"RLIMIT_{name.removeprefix('RLIMIT_')}", None)
    if not isinstance(number, int):
        raise RefusedForGood(f"cannot restore limit {name} of the submission: this system has no such limit")
    return number


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
