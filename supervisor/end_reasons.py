"""The words in the journal that say why a launch ended, or is to be ended; others recognise an end by them. (pure)"""

from __future__ import annotations

# How it ended (`reason` of job.ended).
STARTED_TWICE = "started twice by Slurm"
CLOSED = "closed before it started"
LOST_TRACK = "in the queue again under the same count"
FORGOTTEN = "Slurm does not know the job any more"
UNWATCHED = f"{FORGOTTEN}, and nobody watched how it ended"
LEFT_THE_QUEUE = "left the queue unstarted while nobody watched"

# Why we end it (`reason` of end.intended begins so, or has it).
WITHOUT_SCRIPT = "Slurm keeps the job, but nobody runs the script"
AT_LIMIT = "its time limit is near"
AWAY = "moved off"
