"""Classifies the error output of a failed Slurm command into the four kinds of `errors`. (pure)

The question is not "what went wrong" but "what may the caller do next". The expensive mistake is to treat a
submission as refused that Slurm has accepted (a run would run twice). So, in this order:

1. Any sign that a message was sent without an answer: unknown, whatever else was printed.
2. Any sign that nothing was sent (no controller, no munge, no configuration): unreachable.
3. A refusal in Slurm's own words: for now or for good.
4. Words that are not in the table: unknown for effects (the caller looks up the
   token), unreachable for reads (the caller keeps the last state). Never a refusal.

For a read, 1 and 2 are the same: nothing has changed and nothing is known.

The phrases were seen on 22.05, 24.11 and 26.05 or stand in Slurm's list of errors; the tests compare this
table with that list for each release.
"""

from __future__ import annotations

import re
from enum import Enum

from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, SlurmError, Unreachable


class Call(Enum):
    """The kind of call that failed: it decides what an unclear answer means."""

    SUBMIT = "submit"
    EFFECT = "effect"
    READ = "read"


# Sent without an answer: it may have happened.
_SENT: tuple[str, ...] = (
    "socket timed out on send/recv operation", "zero bytes were transmitted or received",
    "unable to contact slurm controller (send failure)",
    "unable to contact slurm controller (receive failure)",
    "unable to contact slurm controller (shutdown failure)", "message send failure",
    "message receive failure", "communication shutdown failure", "received zero length message",
    "received message length < 0", "failed to send entire message",
    "header lengths are longer than data received", "unexpected message received", "insane message length",
    "connection reset by peer", "connection timed out", "broken pipe",
)  # fmt: skip

# Not sent, or dropped unread by a controller that could not authenticate the sender.
_UNSENT: tuple[str, ...] = (
    "unable to contact slurm controller (connect failure)", "communication connection failure",
    "can't find an address, check slurm.conf", "unable to establish controller machine",
    "munge encode failed", "munge decode failed", "failed to access munge", "did you start munged",
    "protocol authentication error", "invalid authentication credential",
    "authentication credential invalid", "failed to create authentication credential",
    "could not establish a configuration source", "failed to fetch config",
    "unable to process configuration file", "slurm.conf: no such file or directory",
    "unable to status file", "no slurmctld", "incompatible versions of client and server code",
    "connection refused", "no route to host", "network is unreachable", "plugin initialization failed",
)  # fmt: skip

# Refused because of a temporary condition; "lua": a site's job_submit.lua broke, nothing was asked of the scheduler yet.
_FOR_NOW: tuple[str, ...] = (
    "slurm temporarily unable to accept job", "job queue full", "maxjobcount limit reached",
    "rate limit exceeded, please retry", "licenses currently unavailable", "max powered up nodes reached",
    "required nodes lack available resources", "insufficient resources in topology unit",
    "weight-based selection could not satisfy", "exceeded maximum node limit during topology allocation",
    "no available nodes in topology", "reservation is in use", "lua function", "lua script", "lua state",
    "resource temporarily unavailable", "unable to create job record, try again",
    "slurm backup controller in standby mode", "controller is in standby mode", "in standby",
    "job can not be altered now, try again later", "job update not available right now",
    "system submissions disabled", "required partition not available (inactive or drain)",
    "partition in down state", "requested partition configuration not available now",
    "required node not available (down, drained or reserved)", "requested nodes are busy",
    "job can not start immediately", "immediate execution impossible",
    "requested reservation not usable now", "job can not start due to maintenance reservation",
    "switch resources currently not available", "burst buffer resource limit exceeded",
    "required ports are in use", "unable to connect to database",
    "i/o error writing script/environment to file", "cannot allocate memory", "too many open files",
    "prologslurmctld is still running", "node reboot already in progress", "reboot already in progress",
)  # fmt: skip

# Refused; a retry will be refused again. From "unable to open file" on by sbatch itself, before it contacts the controller
# ("--help": "Try sbatch --help", wrong usage of any kind).
_FOR_GOOD: tuple[str, ...] = (
    "invalid partition name specified", "invalid partition specified",
    "no partition specified or system default partition",
    "user's group not permitted to use this partition", "requested nodes not in this partition",
    "invalid account or account/partition combination specified", "invalid account",
    "invalid qos specification", "invalid wckey specification", "invalid license specification",
    "invalid or unknown association", "invalid container id specified",
    "invalid extra constraints specification", "invalid configuration for external job",
    "invalid cluster feature specification", "requested topology configuration is not available",
    "required nodes do not fit topology", "no suitable topology unit found", "restrictedcorespergpu:",
    "preemption is required but is disabled on this system", "multiple knl numa and/or mcdram constraints",
    "current switchtype does not permit arbitrary task distribution",
    "job cannot be submitted without the current working directory",
    "cannot modify scrontab jobs through scontrol", "cannot cancel scrontab jobs without --cron flag",
    "job not heterogeneous job", "job is current suspended", "job has already started", "cannot signal job",
    "larger than acceptable range", "includes unexpected non-numeric characters",
    "id must not be an empty string", "component must not be an empty string",
    "can not be a negative number", "id can not be zero", "component can not be zero",
    "invalid mcs_label specified", "invalid feature specification",
    "invalid preferred feature specification", "invalid node name specified",
    "invalid node state specified", "requested node configuration is not available",
    "more processors requested than permitted", "node count specification invalid",
    "cpu count specification invalid", "task count specification invalid",
    "task distribution specification invalid", "requested more tasks than available processors",
    "memory required by task is not available", "requested time limit is invalid",
    "invalid time limit specification", "invalid time specified", "invalid time-min specification",
    "time limit specification required, but not provided", "invalid generic resource (gres) specification",
    "duplicate generic resource (gres) specification", "invalid gres specification",
    "requested gres option unsupported", "insufficient gres available in allocation",
    "invalid trackable resource (tres) specification", "invalid jobdefaults specification",
    "invalid job array specification", "invalid --nice value", "job dependency problem",
    "circular job dependency", "requested reservation is invalid", "access denied to requested reservation",
    "burst buffer request invalid", "burst buffer permission denied",
    "job size specification needs to be provided",
    "pathname of a file, directory or other parameter too long", "job script not specified",
    "only batch jobs are accepted or processed", "requires more ports than can be reserved",
    "requested operation not supported on this system", "requested operation is presently disabled",
    "requested account has breached requested qos usage threshold",
    "no eligible clusters for federated job", "invalid cluster name",
    "multiple partition job request not supported", "job --batch option is invalid",
    "environment is missing in job", "invalid user id", "invalid group id", "user not found on host",
    "access/permission denied", "invalid job id", "invalid step id", "job has already finished",
    "job/step already completing or completed", "job is no longer pending execution",
    "job is pending execution", "job is not pending nor running", "job is not running",
    "job is not suspended", "job is in held state", "job is not finished",
    "job not heterogeneous job leader",
    "operation not permitted on individual component of heterogeneous job",
    "changes to job priority are not persistent",
    "you must specify a reason when downing or draining a node", "no update request", "unable to open file",
    "this does not look like a batch script", "dos line breaks", "batch script is empty",
    "batch script contains", "script file is too large", "unrecognized option", "invalid option",
    "requires an argument", "is ambiguous", "invalid numeric value", "invalid --", "is not a valid",
    "couldn't chdir", "--help",
)  # fmt: skip

_RULES: tuple[tuple[tuple[str, ...], type[SlurmError]], ...] = (
    (_SENT, OutcomeUnknown),
    (_UNSENT, Unreachable),
    (_FOR_NOW, RefusedForNow),
    (_FOR_GOOD, RefusedForGood),
)

# For a cancel, the goal is reached.
GONE: tuple[str, ...] = (
    "invalid job id specified",
    "job/step already completing or completed",
    "job has already finished",
)

_LIMIT = re.compile(r"\b(?:assoc|qos)\w*limit\b", re.IGNORECASE)
_POLICY = "job violates accounting/qos policy"
_FINAL = re.compile(
    r"(?:batch job submission failed|slurm_\w+ error|_update error|fatal): ?(.+)$",
    re.IGNORECASE | re.MULTILINE,
)
_PREFIX = re.compile(
    r"^(?:\w+: )?(?:(?:error|fatal|warning|slurm_\w+ error): ?)?(?:Batch job submission failed: )?"
)


def is_gone(stderr: str) -> bool:
    """Whether every line says that the job is over or unknown."""
    lines = [line.lower() for line in stderr.splitlines() if line.strip()]
    return bool(lines) and all(any(word in line for word in GONE) for line in lines)


def is_known(text: str) -> bool:
    """Whether these words are in the table."""
    return _kind_of(text) is not None


def _kind_of(text: str) -> type[SlurmError] | None:
    lowered = text.lower()
    for fragments, kind in _RULES:
        if any(fragment in lowered for fragment in fragments):
            return kind
    return None


def _limit_kind(text: str) -> type[SlurmError] | None:
    """Limits of accounts and QOS: a full queue empties, a size above the limit stays above it. Slurm names
    the limit on a line of its own; without one it can be either, and waiting is the cheaper mistake.
    """
    names = _LIMIT.findall(text)
    if not names and _POLICY not in text.lower():
        return None
    passing = not names or any("submit" in name.lower() or "grp" in name.lower() for name in names)
    return RefusedForNow if passing else RefusedForGood


def _message(stderr: str, exit_code: int | None, kind: type[SlurmError]) -> str:
    """The first line with a reason, else the last one, without the command's own prefixes."""
    lines = [_PREFIX.sub("", line.strip()) for line in stderr.splitlines()]
    told = [line for line in lines if line]
    if not told:
        return "Slurm gave no reason" if exit_code is None else f"Slurm gave no reason (exit {exit_code})"
    limit = next((line for line in told if _LIMIT.fullmatch(line)), "")
    if limit:
        return f"{told[-1]} ({limit})" if told[-1] != limit else limit
    return next((line for line in told if _kind_of(line) is kind), told[-1])


def error_of_failure(
    call: Call, *, stderr: str, exit_code: int | None = None, killed_after_s: float | None = None
) -> SlurmError:
    """The error to raise for a failed command. `killed_after_s`: our timeout killed it after so many seconds."""
    reading = call is Call.READ
    if killed_after_s is not None:
        message = f"Slurm did not answer within {killed_after_s:g} s"
        kind: type[SlurmError] = Unreachable if reading else OutcomeUnknown
        return kind(message, output=stderr, exit_code=exit_code)
    found = _kind_of(stderr)
    if found not in {OutcomeUnknown, Unreachable}:
        # The last line decides: before it, sbatch may have printed that it is waiting.
        final = _FINAL.findall(stderr)
        found = _limit_kind(stderr) or (_kind_of(final[-1]) if final else None) or found
    if found is None or (reading and found is OutcomeUnknown):
        found = Unreachable if reading else OutcomeUnknown
    return found(_message(stderr, exit_code, found), output=stderr, exit_code=exit_code)
