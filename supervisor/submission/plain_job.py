"""A job that was submitted without ftrun, as a submission: what Slurm and the job itself tell of it. (I/O)

A later attempt needs what the first sbatch was given. Slurm keeps the script (`scontrol write batch_script`)
and the resources (`scontrol show job`), from which `sbatch_arguments` makes the options again. It does not
give out the environment; the batch script of a running job has it, and a short step beside it reads that. A
job that waits has none yet, so its user must name another (`shell`). What Slurm itself put into the
environment is left out.

What neither tells is lost: options that were typed and stand in no field (--signal, --open-mode). Those in
the script are kept with it.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftrun.slurm.client.cluster import JobDetails, JobState
from ftrun.slurm.client.options import CommandLine
from ftrun.slurm.commands.node_queries import ANSWER
from ftrun.slurm.commands.steps import Steps
from ftrun.supervisor.model.errors import UserError

_LIMIT_S = 60.0
_HELD = frozenset({JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT})
_TOKEN = re.compile(r"ftrun:([\w.-]+):[0-9a-f]{8}(?![\w])")

# Option of sbatch, field of `scontrol show job`.
_FIELDS = (
    ("job-name", "JobName"), ("partition", "Partition"), ("account", "Account"), ("qos", "QOS"), ("time", "TimeLimit"),
    ("time-min", "TimeMin"), ("nodes", "NumNodes"), ("ntasks", "NumTasks"), ("cpus-per-task", "CPUs/Task"), ("nodelist", "ReqNodeList"), ("exclude", "ExcNodeList"),
    ("constraint", "Features"), ("prefer", "Prefer"), ("reservation", "Reservation"), ("licenses", "Licenses"), ("network", "Network"),
    ("wckey", "WCKey"), ("mail-user", "MailUser"), ("mail-type", "MailType"), ("switches", "Switches"), ("container", "Container"),
    ("core-spec", "CoreSpec"), ("nice", "Nice"), ("tmp", "MinTmpDiskNode"), ("comment", "Comment"),
)  # fmt: skip
_UNSAID = frozenset({"", "(null)", "N/A", "*", "0", "None", "NONE", "UNLIMITED", "Partition_Limit"})
_DEVICES = (
    ("gres", "TresPerNode"), ("gpus", "TresPerJob"), ("gpus-per-socket", "TresPerSocket"), ("gpus-per-task", "TresPerTask"),
    ("cpus-per-gpu", "CpusPerTres"), ("mem-per-gpu", "MemPerTres"),
)  # fmt: skip

# What slurmd and its plugins set for a job; a new submission gets its own.
_OF_A_JOB = ("SLURM_", "SLURMD_", "PMI_", "PMIX_", "FTRUN_")
_OF_A_LAUNCH = frozenset({
    "ENVIRONMENT", "HOSTNAME", "TMPDIR", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES", "SHLVL", "_",
})  # fmt: skip

_LOOK = r"""PATH=/usr/bin:/bin:$PATH
for p in /proc/[0-9]*; do
    tr '\0' '\n' <"$p/cmdline" | grep -q '/slurm_script$' || continue
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$p/status")
    case $(cat "/proc/$parent/comm") in slurmstepd*) ;; *) continue ;; esac
    tr '\0' '\n' <"$p/environ" | grep -q '^SLURM_STEP_ID=' && continue
    tr '\0' '\n' <"$p/environ" | grep -qx 'SLURM_JOB_ID={job}' || continue
    tr '\0' '\n' <"$p/environ" | grep -qx "SLURMD_NODENAME=$SLURMD_NODENAME" || continue
    for what in environ cmdline status; do
        printf '%s %s %s %s\n' {answer} "$SLURMD_NODENAME" "$what" "$(base64 <"$p/$what" | tr -d '\n')"
    done
    break
done 2>/dev/null"""


class BatchProcess(NamedTuple):
    """The environment (bytes), the script's arguments and the umask of a batch script."""

    environment: dict[bytes, bytes]
    arguments: tuple[str, ...]
    umask: int


def refuse(details: JobDetails | None, job: str, user: str, run_of_job: str = "") -> JobDetails:
    """The job, unless it cannot become a run. `run_of_job`: the run that has it already. Raises UserError."""
    if details is None:
        raise UserError(f"job {job}: Slurm does not know it (any more); submit its script by ftrun sbatch", 1)
    fields, state = details.fields, details.state
    known = _TOKEN.search(details.comment)
    run = run_of_job or (known[1] if known else "")
    held = state in _HELD or re.search("requeued.*held", details.reason, re.IGNORECASE) is not None
    for wrong, why in (
        (bool(run), f"it is a job of run {run} already: ftrun show {run}"),
        (details.user != user, f"it is {details.user}'s; only {details.user} can adopt it"),
        ("HetJobId" in fields, "it is part of a heterogeneous job, whose parts ftrun cannot adopt; submit such a job by ftrun sbatch"),
        ("ArrayJobId" in fields, "it is part of a job array, which ftrun cannot adopt; submit arrays by ftrun sbatch"),
        (fields.get("BatchFlag") == "0", "it has no batch script (salloc or srun made it), so nothing could be submitted again"),
        (state.ended or state is JobState.COMPLETING, f"it is over ({state.value}); submit its script by ftrun sbatch"),
        (held, f"it was requeued and is held; release it first: scontrol release {job}"),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"job {job}: {why}", 1)
    return details


def batch_process(steps: Steps, details: JobDetails) -> BatchProcess:
    """What a short step on the node of the batch script reads of it. Raises UserError, SlurmError."""
    job, host = details.job_id, details.batch_host
    line = _LOOK.replace("{job}", job).replace("{answer}", ANSWER)
    found = steps.ask(job, [host], line, limit_s=_LIMIT_S, quiet_s=_LIMIT_S)
    told = dict(words.partition(" ")[::2] for words in found.answers.get(host, ()))
    if not told.keys() >= {"environ", "cmdline", "status"}:
        why = found.told or f"no batch script of it was found on {host}"
        raise UserError(
            f"job {job}: its environment cannot be read ({why}); --environment=shell takes that of this shell",
            1,
        )
    return parse_process(*(base64.b64decode(told[name]) for name in ("environ", "cmdline", "status")))


def parse_process(environ: bytes, cmdline: bytes, status: bytes) -> BatchProcess:
    """The same from the three files in /proc. (pure)"""
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0"))
    words = [os.fsdecode(word) for word in cmdline.split(b"\0")[:-1]]
    script = next(at for at, word in enumerate(words) if os.path.basename(word) == "slurm_script")
    umask = re.search(rb"^Umask:\s*([0-7]+)", status, re.MULTILINE)
    environment = {name: value for name, equals, value in pairs if equals and name}
    return BatchProcess(environment, tuple(words[script + 1 :]), int(umask[1], 8) if umask else 0o022)


def submission_environment(job: Mapping[bytes, bytes], shell: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The job's environment without what Slurm put there; ftrun's variables, SLURM_CONF and TMPDIR as this shell has them. (pure)"""
    kept = {
        name: value
        for name, value in job.items()
        if os.fsdecode(name) not in _OF_A_LAUNCH and not os.fsdecode(name).startswith(_OF_A_JOB)
    }
    own = {
        name: value
        for name, value in shell.items()
        if name in (b"SLURM_CONF", b"TMPDIR") or name.startswith(b"FTRUN_")
    }
    return kept | own


def script_words(details: JobDetails, arguments: Sequence[str] | None) -> list[str]:
    """The script's path as it was submitted and its arguments, which are split at spaces if `None` is known. (pure)"""
    command = details.fields.get("Command", "")
    if command in _UNSAID:  # --wrap, or a script from standard input
        return [os.path.join(details.fields["WorkDir"], details.fields.get("JobName", "") or "script")]
    if arguments is None:
        return command.split()
    return [command.removesuffix(" ".join(["", *arguments])), *arguments]


def sbatch_arguments(details: JobDetails, head: CommandLine) -> list[str]:
    """The options that make sbatch ask for what the job asked for; `head`: those of its script. (pure)"""
    fields = details.fields
    found = {name: fields.get(field, "") for name, field in _FIELDS}
    if details.state.pending and "-" not in found["nodes"]:
        found["nodes"] = ""  # a guess of Slurm's: nobody asked for nodes
    if found["partition"] in (head.get("partition") or "").split(","):
        found["partition"] = ""  # where it runs, of those that its script names
    per_node = fields.get("NtasksPerN:B:S:C", "").partition(":")[0]
    found |= {"ntasks-per-node": per_node, "output": _output(details, head)}
    if found["cpus-per-task"] == "1":
        found["cpus-per-task"] = ""  # as with nothing said
    found["error"] = details.std_err if details.std_err != details.std_out else ""
    found["input"] = "" if fields.get("StdIn") == "/dev/null" else fields.get("StdIn", "")
    found["mem"], found["mem-per-cpu"] = (
        _megabytes(fields.get(f"MinMemory{of}", "")) for of in ("Node", "CPU")
    )
    for name, field in _DEVICES:
        value = re.sub(r"gres[/:]", "", fields.get(field, ""))
        found[name] = value if name == "gres" else re.sub(r"^gpu[:=]", "", value)
    if head.has("gpus-per-node"):
        found["gpus-per-node"] = found.pop("gres").removeprefix("gpu:")
    bare = {"exclusive": fields.get("OverSubscribe") == "NO", "contiguous": fields.get("Contiguous") == "1"}
    bare |= {"requeue": details.requeue, "no-requeue": not details.requeue}
    valued = [f"--{name}={value}" for name, value in found.items() if value not in _UNSAID]
    return valued + [f"--{name}" for name, given in bare.items() if given]


def _output(details: JobDetails, head: CommandLine) -> str:
    """The log, unless it is the one that the script or Slurm names anyway."""
    pattern = head.get("output") or "slurm-%j.out"
    of_job = {
        "%j": details.job_id,
        "%A": details.job_id,
        "%x": details.fields.get("JobName", ""),
        "%u": details.user,
    }
    for mark, value in of_job.items():
        pattern = pattern.replace(mark, value)
    usual = os.path.join(details.fields.get("WorkDir", ""), pattern)
    return "" if os.path.normpath(usual) == os.path.normpath(details.std_out) else details.std_out


def _megabytes(value: str) -> str:
    """An amount as Slurm prints it ("62.50G") in the form that sbatch takes ("64000M"); "" for none."""
    amount = re.fullmatch(r"([0-9.]+)([KMGTP]?)", value)
    if amount is None or not float(amount[1]):
        return ""
    return f"{round(float(amount[1]) * 1024.0 ** ('KMGTP'.find(amount[2] or 'M') - 1))}M"
