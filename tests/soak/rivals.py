"""The rivals of a soak: plain sbatch, a script that requeues itself, and the same with a person who looks now and then. (I/O)"""

from __future__ import annotations

import time

from ftrun.supervisor.drill import readers
from tests.soak.stand import JOB, Side

__all__ = ["Attended", "Loop", "Plain"]

NEWEST = 'newest=$(ls -1 {work}/checkpoints/ckpt-*.pt 2>/dev/null | tail -n 1)\nsh {work}/train.sh ${{newest:+"--resume=$newest"}}'


class Plain(Side):
    """`sbatch --requeue`: Slurm starts the job again where a node is lost or the job is preempted, and nobody else does."""

    name = "plain"
    after_failure = ""

    def submit(self) -> None:
        """As a user does without ftrun; the script resumes from the newest checkpoint."""
        path = self.work / "plain.sh"
        path.write_text(
            f"#!/bin/sh\n{NEWEST.format(work=self.work)}\nstatus=$?\n{self.after_failure}exit $status\n"
        )
        self.doer.submit_plain(*self.sbatch_words(), str(path))

    def alive(self) -> bool:
        """Whether a job of it waits or runs; True where Slurm does not answer."""
        asked = self.box.run(
            ["squeue", "-h", f"--name={JOB}", "-t", "PD,R,CF,CG,S,RQ", "-o", "%i"], timeout_s=15.0
        )
        return bool(asked.returncode or asked.stdout.split())


class Loop(Plain):
    """The script puts its job back into the queue whenever it fails, as many do."""

    name = "loop"
    after_failure = '[ $status -eq 0 ] || { scontrol requeue "$SLURM_JOB_ID"; sleep 30; }\n'


class Attended(Loop):
    """The same, and a person looks into it: after so long without a step they remove broken checkpoints and submit it anew."""

    name = "attended"
    person_s = 300.0

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._came_s = time.time()

    def look(self) -> None:
        """The person comes `person_s` after the last step, and not before they have been away for as long."""
        book = self.trace()
        last_s = float(book.steps[-1]["at"]) if book.steps else self._came_s
        if time.time() - max(last_s, self._came_s) < self.person_s:
            return
        self._came_s = time.time()
        broken = [
            path for path, state in readers.read_checkpoints(self.work).items() if isinstance(state, str)
        ]
        for path in broken:
            (self.work / "checkpoints" / path).unlink()
        self.doer.scancel_named(JOB)
        time.sleep(3.0)
        self.submit()
        self.say(
            "a person submits it again" + (f", without {len(broken)} broken checkpoints" if broken else "")
        )
