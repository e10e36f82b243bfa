"""The first attempt: from nothing to a submitted job with its intent on disk. (I/O)

    folder, context, journal: created, opened, intended --> sbatch --> done
                                                                   --> refused: the run is removed
                                                                   --> unknown: looked up by the token

The intent with the token is on disk before sbatch is called, so the job can be found by its token after any
crash. A clean refusal leaves nothing behind. Nothing is submitted twice from here.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from ftrun.supervisor.model.errors import UnreadableRun, UserError
from ftrun.supervisor.store import journal, submission_context, user_exclusions
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.submission import plan, sbatch_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ftrun.supervisor.submission.arguments import Submission

_LOOK_UP_FOR_S = 25.0
_ASK_S = 10.0  # how long Slurm may take to say whether a job could be placed
_ASKED = "Batch job submission failed"  # sbatch's message once it has talked to slurmctld
_FEDERATED_ID_DIGITS = 8  # 67,108,863 is the highest id outside of a federation


class FirstAttempt:
    """A run in the making: from the folder to the submitted job."""

    __slots__ = ("asked", "home", "id", "job", "journal", "kept", "plan", "run_dir", "token")

    def __init__(self, asked: Submission, home: str, run_dir: str) -> None:
        self.asked = asked
        self.home = home
        self.run_dir = run_dir
        self.id = os.path.basename(run_dir)
        self.token = f"ftrun:{self.id}:{os.urandom(4).hex()}"
        self.journal: journal.Journal | None = None
        self.kept = asked.kept(self.id, self.token)
        self.plan: plan.SbatchCall | None = None
        self.job = ""

    def open(self) -> None:
        """Write context, journal, the attempt's folder, the file and the intent to disk. Raises OSError."""
        spec, self.plan = self._planned()
        if any(self.kept["settings"][key] for key in ("preflight", "rank-restart", "stage")):
            _put_hooks(self.home)
        submission_context.save(self.run_dir, self.kept, self.asked.raw_env, self.asked.script)
        self.journal = journal.Journal.open_first(self.run_dir)
        self.journal.append(
            "run.created",
            name=self.kept["job_name"],
            token=self.token,
            argv=self.kept["argv"],
            settings=self.kept["settings"],
            submitter={
                "writer": store_run_dir.process_identity(),
                "user": self.kept["user"],
                "host": self.kept["host"],
            },
        )
        if store_run_dir.open_attempt(self.run_dir, 1) is None:
            raise self._given_up()
        self.journal.append("attempt.opened", attempt=1, excluded=list(spec.exclude))
        self._intend(spec.token_in(self.kept))

    def _intend(self, token: str) -> None:
        """Write the file and the intent to call sbatch with it. Raises OSError."""
        assert self.journal is not None
        assert self.plan is not None
        self.plan.write()
        self.journal.append("submit.intended", attempt=1, token=token)

    def _planned(self) -> tuple[plan.AttemptSpec, plan.SbatchCall]:
        """The attempt and its call of sbatch: off the nodes that a person or the site excludes, where sbatch could place it so."""
        dependency = _dependency(self.asked, self.home)

        def planned(exclude: Sequence[str]) -> tuple[plan.AttemptSpec, plan.SbatchCall]:
            spec = plan.AttemptSpec(1, dependency=dependency, exclude=exclude)
            asked = self.asked
            return spec, plan.plan_attempt(self.kept, asked.script, asked.given, spec, run_dir=self.run_dir)

        spool, now_s = str(self.asked.config.values.get("site-spool") or ""), time.time()
        if user_exclusions.read_exclusions(self.home, now_s) or _site_avoids(spool, now_s):
            from ftrun.supervisor.submission import named_nodes

            made = planned(
                named_nodes.nodes_to_avoid(
                    self.asked.given, self.asked.config.values, self.asked.env, self.home
                )
            )
            if made[0].exclude and self._can_be_placed(made[1]):
                return made
        return planned(())

    def _can_be_placed(self, call: plan.SbatchCall) -> bool:
        """Whether sbatch would place such a job at any time; nothing is submitted."""
        import subprocess

        words = call.argv[: call.argv.index(call.path)] if not call.stdin else call.argv
        try:
            done = subprocess.run(
                [self.asked.sbatch, "--test-only", *words],
                env=self.asked.raw_env,
                input=call.content,
                capture_output=True,
                timeout=_ASK_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def submit(self) -> int:
        """Call sbatch once and record the result. Returns the exit status; `job` is "" if there is no job.

        Raises UserError where a supervisor gave the run up while this process was suspended: the job could never start.
        """
        assert self.plan is not None
        if store_run_dir.is_claimed(self.run_dir, 1):
            raise self._given_up()
        env = {key: value for key, value in self.asked.raw_env.items() if key != b"SBATCH_WAIT"}
        stdin = os.open(self.plan.path, os.O_RDONLY) if self.plan.stdin else None
        try:
            ended = sbatch_process.run(self.asked.sbatch, self.plan.argv, env, stdin=stdin)
        except OSError as error:
            self.discard()
            raise UserError(f"sbatch cannot be started: {error.strerror}", 126) from None
        finally:
            if stdin is not None:
                os.close(stdin)
        found = sbatch_process.job_id(ended.stdout) if ended.exit_code == 0 else None
        if found is not None:
            return self._done(*found)
        return self._unclear(ended)

    def _given_up(self) -> UserError:
        reason = f"run {self.id} was given up by a supervisor before it was submitted: submit it again"
        return UserError(reason, 1)

    def _done(self, job: str, cluster: str, exit_code: int = 0) -> int:
        assert self.journal is not None
        self.job = job
        try:
            self.journal.append("submit.done", attempt=1, job=job, cluster=cluster)
            store_run_dir.index_job(self.home, job, self.id)
        except OSError as error:
            print_notice(
                f"job {job} was submitted, but {self.run_dir} cannot be written ({error.strerror}); the supervisor finds it"
            )
        self.journal.close()
        if len(job) >= _FEDERATED_ID_DIGITS and not self.asked.names_cluster:
            from ftrun.supervisor.submission import cluster_client

            if warning := cluster_client.federation_warning(job, self.asked.env):
                print_notice(warning)
        if self.asked.given.is_expedited:
            print_notice(
                "--requeue=expedite: after an exit code other than 0 Slurm holds the job (REQUEUE_HOLD);"
                " ftrun then starts the next attempt, or stops the run and says why"
            )
        self.start_supervisor()
        return exit_code

    def _unclear(self, ended: sbatch_process.SbatchResult) -> int:
        """sbatch failed or printed no id (--quiet): find out what happened before anything is reported."""
        from ftrun.slurm.client.errors import OutcomeUnknown
        from ftrun.slurm.commands.failure_kinds import Call, error_of_failure

        stderr = ended.stderr.decode("utf-8", "replace")
        error = error_of_failure(Call.SUBMIT, stderr=stderr, exit_code=ended.exit_code)
        if ended.exit_code and not ended.killed and not isinstance(error, OutcomeUnknown):
            self.discard()
            return ended.exit_code
        # An unknown message from before sbatch talked to slurmctld: one look-up is enough.
        asked = ended.killed or _ASKED in stderr or not stderr
        job = self._looked_up(_LOOK_UP_FOR_S if asked else 0.0)
        if job:
            if ended.exit_code:
                print_notice(f"sbatch failed, but the job is there: {job} (run {self.id})")
            return self._done(job, "", 130 if ended.interrupted else 0)
        if job is not None and not asked:
            self.discard()
            return ended.exit_code
        if ended.exit_code:
            self._abandon(error.message)
        else:
            print_notice(
                f"sbatch told no job id and the job of run {self.id} is not to be seen yet; the supervisor looks for it"
            )
        self.start_supervisor()
        return ended.exit_code

    def _abandon(self, message: str) -> None:
        """The outcome stays unknown: if the job appears later, the supervisor cancels it."""
        from ftrun.supervisor.store import attempt_dir

        assert self.journal is not None
        fault: dict[str, Any] = {"class": "scheduler"}
        try:
            attempt_dir.close_attempt(
                self.run_dir, 1, 0
            )  # a late job then ends before the user's script begins
            self.journal.append("submit.unknown", attempt=1, message=message)
            reason = f"the outcome of the submission is unknown: {message}"
            self.journal.append("run.abandoned", attempt=1, reason=reason, **fault)
        except OSError:
            print_notice(
                f"{self.run_dir} cannot be written"
            )  # the intent is on disk: a supervisor comes to the same end
        print_notice(f"no job of run {self.id} was found; should it still appear, it will be cancelled")

    def _looked_up(self, patience_s: float) -> str | None:
        """The id of the job with our token; "" where Slurm shows none in time, None if it is silent."""
        from ftrun.slurm.client.errors import SlurmError
        from ftrun.slurm.commands.cluster import CommandCluster

        cluster = CommandCluster(self.asked.env)
        give_up = time.monotonic() + patience_s
        while True:
            answer: str | None = None
            with suppress(SlurmError):
                rows = cluster.find(f"{self.token}:1")
                if rows:
                    return rows[0].raw_job_id or rows[0].job_id
                answer = ""
            if time.monotonic() >= give_up:
                return answer
            time.sleep(1.0)

    def start_supervisor(self) -> None:
        """Start a supervisor unless one is alive or the settings leave that to somebody else."""
        if self.asked.config.text("supervisor") != "auto":
            return
        from ftrun.supervisor.submission import start_supervisor as submission_start_supervisor

        try:
            submission_start_supervisor.ensure_supervisor(self.home, self.asked.env | self._for_supervisor())
        except OSError as error:
            print_notice(f"no supervisor could be started ({error.strerror}); start one: ftrun supervise")

    def _for_supervisor(self) -> dict[str, str]:
        """Settings of this submission that the new supervisor takes over."""
        settings = self.asked.config
        return {"FTRUN_SLURM_CLIENT": settings.text("slurm-client")} if settings.meant("slurm-client") else {}

    def discard(self) -> None:
        """Remove the run: there is no job."""
        if self.journal is not None:
            self.journal.close()
        with suppress(OSError):  # a folder without a job does no harm; `ftrun prune` removes it
            store_run_dir.discard_run(self.run_dir)


def _put_hooks(home: str) -> None:
    """Provide the node tools now: the job may start before any supervisor, and its nodes need them."""
    from ftrun.supervisor.store import node_tools

    try:
        node_tools.install_node_tools(home)
    except OSError as error:
        print_notice(
            f"{error.filename}: {error.strerror}; no node is checked before the script, no rank starts again alone, and no checkpoint is staged"
        )


def _dependency(asked: Submission, home: str) -> str | None:
    """The user's dependency with the ids of ftrun's runs brought up to date; None where nothing changes."""
    typed = asked.given.get("dependency")
    if not typed:
        return None
    renamed = submission_context.map_jobs(typed, lambda job: _present_job(asked, home, job))
    return renamed if renamed != typed else None


def _present_job(asked: Submission, home: str, job: str) -> str:
    """The run's present job instead of its earlier `job`; `job` itself if that id is another job's by now."""
    run_dir = store_run_dir.find_run(home, job)
    if run_dir is None:
        return job
    try:
        submitted = [
            record["job"]
            for record in journal.read_run(run_dir)
            if record["kind"] == "submit.done" and record["job"]
        ]
    except (OSError, UnreadableRun):
        return job
    if job not in submitted[:-1] or _is_anothers(asked, run_dir, job):
        return job
    return str(submitted[-1])


def _is_anothers(asked: Submission, run_dir: str, job: str) -> bool:
    """Whether Slurm shows a job of this id that is not the run's. Asked only if an id would be replaced."""
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.model import job_rows

    try:
        shown = CommandCluster(asked.env, timeout_s=10.0).jobs((job,)).values()
        run = journal.load_run(run_dir)
    except (SlurmError, OSError, UnreadableRun):
        return False
    mine = [attempt for attempt in run.attempts if attempt.job == job]
    return bool(shown) and not any(
        job_rows.rows_of_attempt(shown, one, user=run.submitter.get("user", "")) for one in mine
    )


def _site_avoids(spool: str, now_s: float) -> bool:
    """Whether the site's service places a node last now."""
    if not spool:
        return False
    from ftrun.supervisor.store import site_nodes

    return bool(site_nodes.quarantined_nodes(spool, now_s))


def print_notice(message: str) -> None:
    """Print one line of ftrun's own to stderr."""
    print(f"ftrun: {message}", file=sys.stderr)
