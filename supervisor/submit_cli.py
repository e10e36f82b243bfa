"""`ftrun sbatch`: sbatch, and a run that is looked after. (I/O)

How it thinks. Every submission of every user comes through here, so it must be quick and must never be the reason why
a job was not submitted.

    arguments --split--> sbatch's and ours --script, settings--> a run folder --journal: intended--> sbatch
                 |                                  |                                                  |
                 v                                  v                                                  v
     sbatch's own words for              plain sbatch with a warning                 done | refused (no run is left) |
     what it would refuse                where nothing can be written                unknown (looked up by the token)

- What sbatch would refuse before it asks anybody (a wrong option, no such file, no `#!`) is handed to sbatch as it is, so
  that the message and the exit status are its own.
- The intent, with the token, is on disk before sbatch is called; the token finds the job whatever happens after that.
- Output and exit status are sbatch's. What ftrun has to say goes to stderr, and only when something is wrong.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from ftrun.slurm import options
from ftrun.slurm.options import CommandLine, OptionError
from ftrun.supervisor import child, compose, config, context, journal, settings, store, submit
from ftrun.supervisor.errors import UserError

__all__ = ["main", "wait_for_run"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ftrun.supervisor.config import Config

# sbatch answers these and submits nothing.
_ASIDE = ("help", "usage", "version", "autocomplete")
_LOOK_UP_FOR_S = 25.0
_WAIT_POLL_S = 1.0
_NO_PROGRAM = 127


class Submission:
    """What one call of `ftrun sbatch` knows: the arguments, the environment to the byte, and the script."""

    __slots__ = (
        "argv",
        "config",
        "env",
        "extra",
        "head",
        "line",
        "raw_env",
        "sbatch",
        "script",
        "script_path",
        "version",
    )

    def __init__(self, argv: Sequence[str], raw_env: dict[bytes, bytes]) -> None:
        self.argv = list(argv)  # sbatch's only, once `line` is there
        self.raw_env = raw_env
        self.env = {os.fsdecode(key): os.fsdecode(value) for key, value in raw_env.items()}
        self.sbatch = child.find_sbatch(self.env.get("PATH", os.defpath))
        self.line = CommandLine(())
        self.head: list[CommandLine] = []
        self.version: tuple[int, int] | None = None
        self.extra: dict[str, int] = {}
        self.script = b""
        self.script_path = ""
        self.config: Config | None = None

    @property
    def source(self) -> str:
        """file, stdin or wrap."""
        if self.line.has("wrap"):
            return "wrap"
        return "stdin" if self.line.script is None else "file"


class _Plain(Exception):
    """This goes to sbatch as it is. `warning` is said when a job came of it all the same."""

    def __init__(self, warning: str = "") -> None:
        super().__init__(warning)
        self.warning = warning


def main(argv: Sequence[str]) -> int:
    """Do what `sbatch ARGV` does and look after the job. Returns the exit status. Raises UserError (exit 2, or 127)."""
    this = Submission(argv, context.environment_of_process())
    if not this.sbatch:
        raise UserError(
            "sbatch was not found: load Slurm's client commands, or add their folder to PATH", _NO_PROGRAM
        )
    try:
        _split(this)
        _read_script(this)
        this.config = _settings(this)
        _refuse_other_clusters(this)
        if this.config.flag("dry-run"):
            return _dry_run(this)
        if this.line.has("test-only"):
            return _test_only(this)
    except _Plain as plain:
        return _plain(this, plain.warning)
    return _submit(this)


# ---- reading what was asked for ---------------------------------------------------------------------------------------


def _split(this: Submission) -> None:
    typed = this.argv
    try:
        this.line = options.split(typed, own=_own)
    except (options.Ambiguous, options.UnknownOption):
        _ask_sbatch(this)
        try:
            this.line = options.split(typed, version=this.version, extra=this.extra, own=_own)
        except OptionError:
            raise _Plain("its options were not understood") from None
    except OptionError:
        raise _Plain("its options were not understood") from None
    finally:
        this.argv = this.line.argv() if this.line.words or this.line.script else _less_own(typed)
    if any(this.line.has(name) for name in _ASIDE):
        raise _Plain


def _own(name: str) -> bool:
    try:
        return settings.takes_value(name)
    except settings.SettingError as error:
        raise UserError(f"--ft-{name}: {error}") from None


def _less_own(argv: Sequence[str]) -> list[str]:
    """Arguments that could not be split, less what looks like ours."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word.startswith("--ft-"):
            name, equals, _ = word[5:].partition("=")
            skip = not equals and name in settings.SETTINGS and settings.takes_value(name)
        else:
            kept.append(word)
    return kept


def _ask_sbatch(this: Submission) -> None:
    """The version, and the options of plugins: asked for only when an option needs it."""
    import subprocess

    def told(option: str) -> str:
        answer = subprocess.run([this.sbatch, option], env=this.raw_env, capture_output=True, check=False)
        return answer.stdout.decode("utf-8", "replace")

    numbers = told("--version").split()[-1:]
    parts = numbers[0].split(".") if numbers else []
    if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit():
        this.version = (int(parts[0]), int(parts[1]))
    this.extra = options.plugin_options(told("--help"))


def _read_script(this: Submission) -> None:
    line = this.line
    if this.source == "wrap":
        if line.script is not None:
            raise _Plain  # sbatch refuses arguments beside --wrap
        command = line.get("wrap") or ""
        this.script = (
            b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" + os.fsencode(command) + b"\n"
        )
    elif line.script is None:
        with open(0, "rb", closefd=False) as stream:
            this.script = stream.read()
    else:
        this.script_path = _located(line.script, this.env)
        try:
            with open(this.script_path, "rb") as stream:
                this.script = stream.read()
        except OSError:
            raise _Plain from None  # sbatch cannot open it either, and says so
    try:
        this.head = submit.directive_lines(
            this.script, {"slurm_version": this.version, "plugin_options": this.extra}
        )
    except (options.Ambiguous, options.UnknownOption):
        _ask_sbatch(this)
        try:
            this.head = submit.directive_lines(
                this.script, {"slurm_version": this.version, "plugin_options": this.extra}
            )
        except OptionError:
            raise _Plain("its #SBATCH options were not understood") from None
    except OptionError:
        raise _Plain("its #SBATCH options were not understood") from None


def _located(script: str, env: Mapping[str, str]) -> str:
    """Where sbatch finds a script: a path as it is; a bare name in the working folder first, then along PATH."""
    cwd = os.getcwd()
    if script.startswith((".", "/")):
        return os.path.join(cwd, script)
    for folder in (cwd, *env.get("PATH", "").split(":")):
        path = os.path.join(cwd, folder, script)
        if os.path.exists(path) and not os.path.isdir(path):
            return path
    return os.path.join(cwd, script)


def _settings(this: Submission) -> Config:
    script: list[str] = []
    if b"#FTRUN" in this.script:
        try:
            script = compose.ftrun_directives(this.script)
        except compose.ScriptError as error:
            raise UserError(str(error)) from None
    return config.load(os.getcwd(), this.env, script=script, own=this.line.own)


def _refuse_other_clusters(this: Submission) -> None:
    """A run lives on one cluster, the one that SLURM_CONF names."""
    asked = this.line.get("clusters") or this.env.get("SBATCH_CLUSTERS") or this.env.get("SLURM_CLUSTERS")
    asked = asked or this.head[0].get("clusters")
    if not asked:
        return
    from ftrun.slurm.commands import CommandCluster
    from ftrun.slurm.errors import SlurmError

    try:
        here = CommandCluster(this.env).facts().name
    except SlurmError as error:
        raise UserError(f"--clusters={asked}: {error.message}", 1) from None
    if asked != here:
        raise UserError(
            f"--clusters={asked}: only jobs of the local cluster ({here}) can be looked after; use plain sbatch"
        )


# ---- submitting -------------------------------------------------------------------------------------------------------


def _submit(this: Submission) -> int:
    assert this.config is not None
    try:
        home = this.config.home(this.env)
        run_dir = store.create_run(home, _run_name(this))
    except OSError as error:
        return _without_folder(this, error)
    run = Run(this, home, run_dir)
    try:
        run.open()
    except OSError as error:
        run.discard()
        return _without_folder(this, error)
    except (compose.ScriptError, OptionError):
        run.discard()
        return _plain(this, "its script was not understood")
    return run.submit()


class Run:
    """A run in the making: from the folder to the submitted job."""

    __slots__ = ("home", "id", "journal", "kept", "plan", "run_dir", "this", "token")

    def __init__(self, this: Submission, home: str, run_dir: str) -> None:
        self.this = this
        self.home = home
        self.run_dir = run_dir
        self.id = os.path.basename(run_dir)
        self.token = f"ftrun:{self.id}:{os.urandom(4).hex()}"
        self.journal: journal.Journal | None = None
        self.kept = _context(this, self.id, self.token)
        self.plan: submit.Plan | None = None

    def open(self) -> None:
        """Context, journal, the attempt's folder, the file, and the intent: all on disk. Raises OSError."""
        assert self.this.config is not None
        attempt_token = f"{self.token}:1"
        self.plan = submit.plan(
            self.kept,
            self.this.script,
            self.this.env,
            run_dir=self.run_dir,
            attempt=1,
            token=attempt_token,
            dependency=_dependency(self.this, self.home),
        )
        context.save(self.run_dir, self.kept, self.this.raw_env, self.this.script)
        self.journal = journal.Journal.open_first(self.run_dir)
        self.journal.append(
            "run.created",
            name=self.kept["job_name"],
            token=self.token,
            argv=self.kept["argv"],
            settings=self.kept["settings"],
            submitter={"writer": store.identity(), "user": self.kept["user"], "host": self.kept["host"]},
        )
        store.open_attempt(self.run_dir, 1)
        self.journal.append("attempt.opened", attempt=1)
        self.plan.write()
        self.journal.append("submit.intended", attempt=1, token=attempt_token)

    def submit(self) -> int:
        """Call sbatch once and write down what came of it. Returns the exit status of the command."""
        assert self.plan is not None
        env = {key: value for key, value in self.this.raw_env.items() if key != b"SBATCH_WAIT"}
        stdin = os.open(self.plan.path, os.O_RDONLY) if self.plan.stdin else None
        try:
            ended = child.run(self.this.sbatch, self.plan.argv, env, stdin=stdin)
        except OSError as error:
            self.discard()
            raise UserError(f"sbatch cannot be started: {error.strerror}", 126) from None
        finally:
            if stdin is not None:
                os.close(stdin)
        found = child.job_id(ended.stdout) if ended.exit_code == 0 else None
        if found is not None:
            return self._done(*found)
        return self._unclear(ended)

    def _done(self, job: str, cluster: str, exit_code: int = 0) -> int:
        assert self.journal is not None
        assert self.this.config is not None
        try:
            self.journal.append("submit.done", attempt=1, job=job, cluster=cluster)
            store.index(self.home, job, self.id)
        except OSError as error:
            _say(
                f"job {job} was submitted, but {self.run_dir} cannot be written ({error.strerror}); the supervisor finds it"
            )
        self.journal.close()
        if self.this.config.text("supervisor") == "auto":
            self._start_supervisor()
        if self.kept["wait"]:
            return wait_for_run(self.run_dir)
        return exit_code

    def _unclear(self, ended: child.Ended) -> int:
        """sbatch failed, or told no id (--quiet): find out what happened before anything else is said."""
        from ftrun.slurm.answers import Call, sort_failure
        from ftrun.slurm.errors import OutcomeUnknown

        assert self.journal is not None
        stderr = ended.stderr.decode("utf-8", "replace")
        told = ended.exit_code != 0 and not ended.interrupted and ended.exit_code <= 128
        error = sort_failure(Call.SUBMIT, stderr=stderr, exit_code=ended.exit_code)
        if told and not isinstance(error, OutcomeUnknown):
            self.discard()
            return ended.exit_code
        job = self._looked_up(patient=ended.exit_code != 0)
        if job:
            if ended.exit_code != 0:
                _say(f"sbatch failed, but the job is there: {job} (run {self.id})")
            return self._done(job, "", 130 if ended.interrupted else 0)
        message = error.message if ended.exit_code else "sbatch told no job id"
        try:
            self.journal.append("submit.unknown", attempt=1, message=message)
            reason = f"the outcome of the submission is unknown: {message}"
            fault: dict[str, Any] = {"class": "scheduler"}
            self.journal.append("run.abandoned", attempt=1, reason=reason, **fault)
        except OSError:
            _say(
                f"{self.run_dir} cannot be written"
            )  # the intent is there: a supervisor comes to the same end
        _say(f"no job of run {self.id} was found; should it still appear, it will be cancelled")
        return ended.exit_code or 1

    def _looked_up(self, *, patient: bool) -> str:
        """The id of the job that bears our token; "" where none is found in time."""
        import time

        from ftrun.slurm.commands import CommandCluster
        from ftrun.slurm.errors import SlurmError

        cluster = CommandCluster(self.this.env)
        give_up = time.monotonic() + (_LOOK_UP_FOR_S if patient else 5.0)
        while True:
            try:
                rows = cluster.find(f"{self.token}:1")
            except SlurmError:
                rows = ()
            if rows:
                return rows[0].raw_job_id or rows[0].job_id
            if time.monotonic() > give_up:
                return ""
            time.sleep(1.0)

    def _start_supervisor(self) -> None:
        from ftrun.supervisor import spawn

        spawn.ensure(self.home, self.this.env)

    def discard(self) -> None:
        """Nothing came of it: no run is left behind."""
        if self.journal is not None:
            self.journal.close()
        with suppress(OSError):  # a folder without a job does no harm; `ftrun prune` takes it
            store.discard_run(self.run_dir)


def _context(this: Submission, run: str, token: str) -> dict[str, Any]:
    assert this.config is not None
    shape, array = submit.shape_of(this.line, this.head, this.env)
    wait = this.line.has("wait") or "SBATCH_WAIT" in this.env or any(part.has("wait") for part in this.head)
    return {
        **context.capture(),
        "run": run,
        "run_token": token,
        "argv": this.argv,
        "script_args": list(this.line.script_args),
        "script_path": this.script_path,
        "script_name": os.path.basename(this.line.script or ""),
        "source": this.source,
        "has_shebang": this.script.startswith(b"#!"),
        "job_name": _job_name(this),
        "shape": shape,
        "array": array,
        "wait": wait,
        "slurm_conf": this.env.get("SLURM_CONF", ""),
        "slurm_version": this.version,
        "plugin_options": this.extra,
        "settings": this.config.values,
        "settings_from": this.config.layers(),
    }


def _job_name(this: Submission) -> str:
    """The name that Slurm gives the job."""
    chosen = this.line.get("job-name") or this.env.get("SBATCH_JOB_NAME") or this.head[0].get("job-name")
    return (
        chosen or os.path.basename(this.line.script or "") or ("wrap" if this.source == "wrap" else "sbatch")
    )


def _run_name(this: Submission) -> str:
    assert this.config is not None
    return this.config.text("name") or _job_name(this)


def _dependency(this: Submission, home: str) -> str | None:
    """The user's dependency with the ids of our runs brought up to date; None where nothing changes."""
    asked = this.line.get("dependency") or this.head[0].get("dependency")
    if not asked:
        return None
    renamed = context.map_jobs(asked, lambda job: _present_job(home, job))
    return renamed if renamed != asked else None


def _present_job(home: str, job: str) -> str:
    """The job that a run has now, where `job` is one of its earlier ones."""
    run_dir = store.resolve(home, job)
    if run_dir is None:
        return job
    try:
        submitted = [
            record["job"]
            for record in journal.read_run(run_dir)
            if record["kind"] == "submit.done" and record["job"]
        ]
    except (OSError, journal.JournalDamaged, journal.JournalTooNew):
        return job
    return submitted[-1] if submitted and job in submitted else job


# ---- ways around ------------------------------------------------------------------------------------------------------


def _plain(this: Submission, warning: str = "") -> int:
    """sbatch with what the user typed, as if ftrun were not there."""
    stdin = _replayed(this.script) if this.source == "stdin" and this.script else None
    code = child.run_through(this.sbatch, this.argv, this.raw_env, stdin=stdin)
    if code == 0 and warning:
        _say(f"the job is not looked after: {warning}")
    return code


def _replayed(data: bytes) -> int:
    """A file descriptor from which what we read of standard input can be read again."""
    fd = os.memfd_create("script")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _without_folder(this: Submission, error: OSError) -> int:
    """No run can be kept: a plain job, said in one line, unless the user wants all or nothing."""
    assert this.config is not None
    where = error.filename or this.config.home(this.env)
    if this.config.flag("strict"):
        raise UserError(
            f"{where}: {error.strerror}; nothing was submitted (strict): make room, or set FTRUN_HOME elsewhere"
        )
    _say(f"{where}: {error.strerror}; submitting a plain job that is not looked after")
    return _plain(this)


def _test_only(this: Submission) -> int:
    """sbatch --test-only on the composed file; nothing is kept."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="ftrun-")
    try:
        made = _tried(this, os.path.join(folder, "test-0000"))
        made.write()
        stdin = os.open(made.path, os.O_RDONLY) if made.stdin else None
        return child.run_through(this.sbatch, made.argv, this.raw_env, stdin=stdin)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _dry_run(this: Submission) -> int:
    """Print the command and the file; make nothing."""
    import shlex

    assert this.config is not None
    name = store.run_name(_run_name(this))
    made = _tried(this, os.path.join(this.config.home(this.env), "runs", f"{name}-0000"))
    command = shlex.join(["sbatch", *made.argv]) + (f" < {shlex.quote(made.path)}" if made.stdin else "")
    sys.stdout.flush()
    sys.stdout.buffer.write(f"{command}\n\n".encode("utf-8", "surrogateescape") + made.content)
    return 0


def _tried(this: Submission, run_dir: str) -> submit.Plan:
    run = os.path.basename(run_dir)
    token = f"ftrun:{run}:00000000"
    kept = _context(this, run, token)
    try:
        return submit.plan(kept, this.script, this.env, run_dir=run_dir, attempt=1, token=f"{token}:1")
    except (compose.ScriptError, OptionError):
        raise _Plain from None


# ---- --wait -----------------------------------------------------------------------------------------------------------


def wait_for_run(run_dir: str) -> int:
    """Wait until the run is over and return the exit status of its last attempt's script, as `sbatch --wait` does.

    An interrupt ends the waiting, not the run.
    """
    import time

    from ftrun.supervisor import events

    run_id = os.path.basename(run_dir)
    while True:
        run = events.fold(run_id, journal.read_run(run_dir))
        if run.final:
            return run.exit_code if run.exit_code is not None else 1
        time.sleep(_WAIT_POLL_S)


def _say(message: str) -> None:
    print(f"ftrun: {message}", file=sys.stderr)
