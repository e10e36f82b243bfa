"""`ftrun sbatch`: sbatch, and a run under supervision. (I/O)

Every submission of every user passes through here, so it must be quick and must never prevent a job.

    command line --arguments--> options, script, settings --first_attempt--> run folder, intent, sbatch
                     |                                           |
                     v                                           v
           sbatch's own error for                      plain sbatch with a warning
           options that it refuses                     if nothing can be written

Output and exit status are those of sbatch. ftrun prints to stderr only, and only if something is wrong.
"""

from __future__ import annotations

import os
import sys

from ftrun.slurm.client.errors import OptionError
from ftrun.supervisor.cluster import choice
from ftrun.supervisor.model.errors import UnreadableRun, UserError
from ftrun.supervisor.store import journal, submission_context
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.submission import arguments, compose, plan, sbatch_process
from ftrun.supervisor.submission.arguments import PlainSubmission, Submission
from ftrun.supervisor.submission.first_attempt import FirstAttempt, print_notice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NO_PROGRAM = 127
_TELLING = (
    b"--auto-resume",
    b"ft_launcher",
    b'"APS"',
    b"submitit",
    b"scontrol",
)  # of a tool that restarts jobs
_WAIT_POLL_S = 1.0
_REVIVE_EVERY = 30  # looks


def main(argv: Sequence[str]) -> int:
    """Do what `sbatch ARGV` does, as a supervised run. Returns the exit status. Raises UserError."""
    asked = Submission(argv, submission_context.environment_of_process())
    before = dict(asked.env)
    own = {key: before.get(key) for key in choice.VARIABLES}
    asked.use_cluster(choice.changes(before))
    if not asked.sbatch:
        raise UserError(
            "sbatch was not found: load Slurm's client commands, or add their folder to PATH", _NO_PROGRAM
        )
    try:
        arguments.read_submission(asked)
        if wanted := asked.config.text("cluster"):
            asked.use_cluster({**own, **choice.changes(before, wanted)})
        for line in asked.config.ignored:
            print_notice(line)
        if asked.config.values["stage"]:
            from ftrun.supervisor.submission import in_allocation

            is_real = not (asked.config.flag("dry-run") or asked.given.line.has("test-only"))
            in_allocation.check_stage_dir(asked.config.text("stage"), make=is_real)
        restarters = _heed_restarters(asked)
        if asked.config.flag("check"):
            return _check(asked)
        for line in restarters:
            print_notice(line)
        _look_at_containers(asked)
        if asked.config.flag("dry-run"):
            return _dry_run(asked)
        if asked.given.line.has("test-only"):
            return _test_only(asked)
        if any(word.startswith("--ft-") for word in asked.given.line.script_args):
            print_notice(
                "--ft- options behind the script are arguments of the script; settings stand before it"
            )
    except PlainSubmission as plain:
        code = _plain(asked, plain.warning, plain.unknown)
        if asked.given.line.has("help") and code == 0:
            print(
                "\nSettings of ftrun: --ft-NAME=VALUE before the script; `ftrun config show` lists them with their meanings."
            )
        return code
    return _submit(asked)


def _look_at_containers(asked: Submission) -> None:
    """Say what the script's containers will not see; refuse with `strict`. Raises UserError."""
    if not any(
        word in asked.script for word in (b"--container-", b"apptainer", b"singularity", b"podman", b"docker")
    ):
        return
    from ftrun.supervisor.submission import container_calls

    env = {name: value for name, value in asked.env.items() if not name.startswith(("FTRUN_", "SLURM_"))}
    told = container_calls.remarks(asked.script, env, asked.config.values, asked.config.home(asked.env))
    if told and asked.config.flag("strict"):
        raise UserError(f"{told[0]}; nothing was submitted (strict)")
    for line in told:
        print_notice(line)


def _submit(asked: Submission) -> int:
    try:
        home = asked.config.home(asked.env)
        run_dir = store_run_dir.create_run(home, asked.run_name)
    except OSError as error:
        return _without_folder(asked, error)
    run = FirstAttempt(asked, home, run_dir)
    try:
        run.open()
    except OSError as error:
        run.discard()
        return _without_folder(asked, error)
    except (compose.ScriptError, OptionError):
        run.discard()
        return _plain(asked, "its script was not understood")
    code = run.submit()
    if run.job and os.isatty(2):  # for a person; a program's streams are sbatch's own
        _tell_lacks(asked)
    return wait_for_run(run_dir, run.start_supervisor) if run.job and run.kept["wait"] else code


def _tell_lacks(asked: Submission) -> None:
    from ftrun.supervisor.submission import script_check

    if line := script_check.log_folder_line(asked):
        print_notice(line)
    if line := script_check.checkpoint_line(asked):
        print_notice(f"{line}; `--ft-check` looks at a script")
    if line := script_check.arguments_line(asked):
        print_notice(line)


def _plain(asked: Submission, warning: str = "", unknown: str = "") -> int:
    """Call sbatch with the user's own words, as if ftrun were not there."""
    if asked.given.line.own:
        from ftrun.supervisor.submission import misread

        misread.refuse_shifted(asked.given.line, asked.typed, has_script=bool(asked.script))
    stdin = _replayed(asked.script) if asked.source == "stdin" and asked.script else None
    code = sbatch_process.run_through(asked.sbatch, asked.argv, asked.raw_env, stdin=stdin)
    if code == 0 and warning:
        print_notice(f"the job is not looked after: {warning}")
    if code:
        from ftrun.supervisor.submission import misread

        if hint := misread.hint(asked.given.line, unknown, path=asked.script_path, script=asked.script):
            print_notice(hint)
    return code


def _replayed(data: bytes) -> int:
    """A file descriptor that yields the bytes already read from standard input."""
    fd = os.memfd_create("script")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _without_folder(asked: Submission, error: OSError) -> int:
    """Submit a plain job with a one-line warning, since no run folder can be made; refuse with `strict`."""
    where = error.filename or asked.config.home(asked.env)
    if asked.config.flag("strict"):
        raise UserError(
            f"{where}: {error.strerror}; nothing was submitted (strict): make room, or set FTRUN_HOME elsewhere"
        )
    print_notice(f"{where}: {error.strerror}; submitting a plain job that is not looked after")
    return _plain(asked)


def _test_only(asked: Submission) -> int:
    """Run sbatch --test-only on the composed file; nothing is kept."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="ftrun-")
    try:
        made = _tried(asked, os.path.join(folder, "test-0000"))
        made.write()
        stdin = os.open(made.path, os.O_RDONLY) if made.stdin else None
        return sbatch_process.run_through(asked.sbatch, made.argv, asked.raw_env, stdin=stdin)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _heed_restarters(asked: Submission) -> list[str]:
    """See `script_check.heed_restarters`, which a script without these words does not need."""
    comment = (asked.given.get("comment") or "").encode("utf-8", "surrogateescape")
    if not any(word in asked.script or word in comment for word in _TELLING):
        return []
    from ftrun.supervisor.submission import script_check

    return script_check.heed_restarters(asked)


def _check(asked: Submission) -> int:
    """Print what is seen of the script's recovery; submit nothing."""
    from ftrun.supervisor.submission import script_check

    for line in script_check.check_lines(asked):
        print(line)
    return 0


def _dry_run(asked: Submission) -> int:
    """Print the sbatch command and the composed file; write nothing."""
    import shlex

    name = store_run_dir.run_name(asked.run_name)
    made = _tried(asked, os.path.join(asked.config.home(asked.env), "runs", f"{name}-0000"))
    command = shlex.join(["sbatch", *made.argv]) + (f" < {shlex.quote(made.path)}" if made.stdin else "")
    sys.stdout.flush()
    sys.stdout.buffer.write(f"{command}\n\n".encode("utf-8", "surrogateescape") + made.content)
    return 0


def _tried(asked: Submission, run_dir: str) -> plan.SbatchCall:
    run = os.path.basename(run_dir)
    kept = asked.kept(run, f"ftrun:{run}:00000000")
    try:
        return plan.plan_attempt(kept, asked.script, asked.given, plan.AttemptSpec(1), run_dir=run_dir)
    except (compose.ScriptError, OptionError):
        raise PlainSubmission from None


def wait_for_run(run_dir: str, revive: Callable[[], None]) -> int:
    """Wait until the run is over and return the exit status of its last attempt's script, as `sbatch --wait`
    does.

    It calls `revive` now and then, so that a dead supervisor is replaced. An interrupt ends the waiting, not
    the run. Raises UserError if the run can no longer be read.
    """
    import time

    run_id = os.path.basename(run_dir)
    looks = 0
    while True:
        try:
            run = journal.load_run(run_dir)
        except (OSError, UnreadableRun) as error:
            raise UserError(f"cannot wait for run {run_id}: {error}", 1) from None
        if run.final:
            return run.exit_code if run.exit_code is not None else 1
        looks += 1
        if looks % _REVIVE_EVERY == 0:
            revive()
        time.sleep(_WAIT_POLL_S)
