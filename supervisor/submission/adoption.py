"""A plain job of the user becomes the first attempt of a run: intent, claim, mark, fact. (I/O)

    folder, context, journal: created, opened, intended --> claim --> token in the comment --> done

The job's comment has no token of ours, so its identity rests on three things until it has one: the job id, the
time of submission that Slurm shows, and the claim of attempt 1, which is taken here in the name of that job.
The claim decides between this process and a supervisor that takes it for dead: who has it goes on, the other
one touches nothing. A death before the claim leaves a plain job and a run that is abandoned; after it, the
supervisor finds the job by its claim and writes the token itself. Once the comment has the token, every law of
identity holds as for a job that ftrun submitted.
"""

from __future__ import annotations

import os

from ftrun.slurm.client import options
from ftrun.slurm.client.cluster import Cluster, JobDetails
from ftrun.slurm.client.errors import OutcomeUnknown, SlurmError, Unreachable
from ftrun.slurm.client.nodeset import fold
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.store.crash_points import crash_plan
from ftrun.supervisor.submission import plan
from ftrun.supervisor.submission.arguments import Submission
from ftrun.supervisor.submission.first_attempt import FirstAttempt


class Adoption(FirstAttempt):
    """A run in the making, whose job is there already."""

    __slots__ = ("cluster", "cluster_name", "crash", "details")

    def __init__(
        self, asked: Submission, home: str, run_dir: str, details: JobDetails, cluster: Cluster
    ) -> None:
        super().__init__(asked, home, run_dir)
        self.details = details
        self.cluster = cluster
        self.cluster_name = cluster.facts().name
        self.crash = crash_plan(asked.env.get("FTRUN_CRASH_AT", ""))

    def _planned(self) -> tuple[plan.AttemptSpec, plan.SbatchCall]:
        """What a later attempt would be submitted with, to see now that it can be. Raises SubmitImpossible."""
        spec = plan.AttemptSpec(1)
        asked = self.asked
        return spec, plan.plan_attempt(self.kept, asked.script, asked.given, spec, run_dir=self.run_dir)

    def _intend(self, token: str) -> None:
        assert self.journal is not None
        submitted = self.details.fields.get("SubmitTime", "")
        self.journal.append(
            "submit.intended", attempt=1, token=token, adopts=self.details.job_id, submitted=submitted
        )
        self.crash("record:after:submit.intended")

    def adopt(self) -> None:
        """Claim the job and mark it. Raises UserError: then nothing was changed, or a supervisor goes on."""
        token = plan.AttemptSpec(1).token_in(self.kept)
        self._record_launch()
        if not attempt_dir.claim_for_job(self.run_dir, 1, self._claim(token)):
            raise UserError(
                f"run {self.id} was given up by a supervisor before the job was adopted: try again", 1
            )
        self.crash("claim:after")
        try:
            self._mark(token)
        except (OutcomeUnknown, Unreachable) as error:
            self.start_supervisor()
            raise UserError(
                f"{error.message}; a supervisor goes on with it: ftrun show {self.id}", 1
            ) from None
        except SlurmError as error:
            self.discard()
            raise UserError(
                f"job {self.details.job_id}: Slurm does not take the run's mark into its comment: {error.message}",
                1,
            ) from None
        self.crash("mark:after")
        self._done(self.details.job_id, self.cluster_name)

    def _claim(self, token: str) -> str:
        return f"{self.cluster_name}.{self.details.job_id}.{self.details.restarts}.{token}"

    def _mark(self, token: str) -> None:
        """Write the token behind the user's own comment, and see that it stands there. Raises SlurmError."""
        job = self.details.job_id
        self.cluster.set_comment(job, options.comment_with(self.details.comment, token))
        shown = self.cluster.details(job)
        if shown is not None and not has_token(shown.comment, token):
            raise SlurmError("the comment is not what was written (a plugin of this site may change it)")

    def _record_launch(self) -> None:
        """The launch as batch.sh would have recorded it: where it runs and where its log is."""
        one = self.details
        appended = self.asked.given.get("open-mode", "SBATCH_OPEN_MODE").startswith("a")
        sizes = [
            os.path.getsize(path) if appended and os.path.exists(path) else 0
            for path in (one.std_out, one.std_err)
        ]
        lines = {
            "job": one.job_id, "restart": one.restarts, "cluster": self.cluster_name, "host": one.batch_host,
            "nodes": fold(one.nodes), "stdout": one.std_out, "stderr": one.std_err,
            "stdout_offset": sizes[0], "stderr_offset": sizes[1],
        }  # fmt: skip
        attempt_dir.write_launch_record(self.run_dir, 1, one.restarts, lines)
