"""`ftrun adopt JOBID`: a job that plain sbatch submitted becomes a run. (I/O)

The job goes on untouched, but for its comment, which gets the run's token. From its end on it is a run like any
other. Settings come from where `ftrun sbatch` takes them: files, `#FTRUN` lines of the job's script, FTRUN_*
variables, and `--ft-NAME=VALUE` here.
"""

from __future__ import annotations

import os
import pwd
from typing import Annotated, Any, Literal

import typer

from ftrun.slurm.client import options
from ftrun.slurm.client.cluster import JobDetails
from ftrun.slurm.client.errors import OptionError, SlurmError
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.commands.steps import CommandSteps
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.model.errors import SubmitImpossible, UnreadableRun, UserError
from ftrun.supervisor.store import journal, submission_context
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.submission import arguments, compose, plain_job
from ftrun.supervisor.submission.adoption import Adoption
from ftrun.supervisor.submission.arguments import PlainSubmission, Submission

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
def adopt(
    words: Annotated[
        list[str],
        argument(
            "[--ft-NAME=VALUE]... JOBID", "A job of yours, queued or running; settings as for ftrun sbatch."
        ),
    ],
    environment: Annotated[
        Literal["job", "shell"],
        option(
            "--environment",
            "Where later attempts take their environment from: the running job, or this shell.",
        ),
    ] = "job",
    json: Json = False,
) -> int:
    """Look after a job that plain sbatch submitted: it goes on as it is, and when it fails, ftrun submits it again."""
    own, job = _split(words)
    try:
        made = _adoption(job, own, shell=environment == "shell")
        made.adopt()
    except SlurmError as error:
        raise UserError(f"job {job}: {error.message}", 1) from None
    if json:
        common.print_json({"id": made.id, "job": job, "environment": environment})
    else:
        print(f"Adopted job {job} as run {made.id}")
    return 0


def _split(words: list[str]) -> tuple[list[str], str]:
    """(the settings, each as one word; the job). Raises UserError."""
    try:
        line = options.split(words, own=arguments.takes_value)
        rest = options.split(line.script_args, own=arguments.takes_value)
    except OptionError as error:
        raise UserError(str(error)) from None
    if line.words or rest.words or rest.script is not None or line.script is None:
        raise UserError("adopt takes one job id, and settings as --ft-NAME=VALUE")
    if not line.script.isdecimal():
        raise UserError(
            f"{line.script}: adopt takes the number of a plain job, not a part of an array or of a heterogeneous job"
        )
    own = [
        f"--ft-{name}" if value is None else f"--ft-{name}={value}" for name, value in (*line.own, *rest.own)
    ]
    return own, line.script


def _adoption(job: str, own: list[str], *, shell: bool) -> Adoption:
    """The run with its intent on disk. Raises UserError, SlurmError; then nothing is left behind."""
    cluster = CommandCluster()
    user = pwd.getpwuid(os.geteuid()).pw_name
    details = plain_job.refuse(cluster.details(job), job, user, _run_of(job))
    asked, umask = _submission(cluster, details, own, shell=shell)
    home = asked.config.home(asked.env)
    try:
        run_dir = store_run_dir.create_run(home, asked.run_name)
    except OSError as error:
        raise UserError(f"{error.filename or home}: {error.strerror}; nothing was changed", 1) from None
    made = Adoption(asked, home, run_dir, details, cluster)
    made.kept |= {"umask": umask}
    try:
        made.open()
    except (OSError, compose.ScriptError, OptionError, SubmitImpossible) as error:
        made.discard()
        raise UserError(
            f"job {job}: it could not be submitted again: {error}; nothing was changed", 1
        ) from None
    return made


def _run_of(job: str) -> str:
    """The run whose present job this is by the journals of this home; "" for none."""
    run_dir = store_run_dir.find_run(common.home(), job)
    try:
        run = journal.load_run(run_dir) if run_dir is not None else None
    except (OSError, UnreadableRun):
        return ""
    alive = run is not None and not run.final and run.attempt is not None and run.attempt.job == job
    return run.id if run is not None and alive else ""


def _submission(
    cluster: CommandCluster, details: JobDetails, own: list[str], *, shell: bool
) -> tuple[Submission, int]:
    """The job as if it were submitted now, and its umask. Raises UserError, SlurmError."""
    job, folder = details.job_id, details.fields.get("WorkDir", "")
    script = cluster.batch_script(job)
    here = submission_context.environment_of_process()
    env, words, umask = here, None, submission_context.capture()["umask"]
    if not shell and not details.state.live:
        raise UserError(
            f"job {job}: its environment cannot be read before it runs; adopt it then, or with --environment=shell"
            " if this shell has the variables that it was submitted with", 1
        )  # fmt: skip
    if not shell:
        process = plain_job.batch_process(CommandSteps(), details)
        env, words, umask = (
            plain_job.submission_environment(process.environment, here),
            process.arguments,
            process.umask,
        )
    try:
        os.chdir(folder)  # settings of the project, and where later attempts start
    except OSError as error:
        raise UserError(f"job {job}: its working folder {folder}: {error.strerror}", 1) from None
    told: dict[str, Any] = {"argv": [], "slurm_version": None, "plugin_options": {}, "foreign": True}
    try:
        heads = options.script_options(script, told)
        asked_for = plain_job.sbatch_arguments(details, heads[0])
        asked = Submission([*own, *asked_for, *plain_job.script_words(details, words)], env)
        arguments.read_submission(asked, script)
    except (OptionError, PlainSubmission) as error:
        raise UserError(f"job {job}: its options were not understood: {error}", 1) from None
    return asked, umask
