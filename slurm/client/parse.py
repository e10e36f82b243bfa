"""Parses the output of Slurm's commands into records. (pure)

Formats were compared on Slurm 22.05, 24.11 and 26.05, and only what agrees in all three is requested.

- Rows (squeue, sinfo) are requested with `-O "Field:<US>,...,Last:<RS>"`: the separators are the ASCII unit
  and record separators, which no sane name or comment contains, so `|`, commas, spaces and line breaks in
  free text do no harm. A suffix also lifts the 20 character limit of `-O`. Free text is last all the same.
- `scontrol show job` does not escape anything: a comment or a command line may contain ` JobState=FAILED`. So
  fields that Slurm prints before the free text are taken from their first occurrence, those after it from
  their last.
- Times are Unix seconds, because every call sets SLURM_TIME_FORMAT=%s.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ftrun.slurm.client.cluster import (
    ClusterFacts,
    JobDetails,
    JobRow,
    JobState,
    NodeRow,
    NodeUsage,
    PartitionRow,
    StepFiles,
)
from ftrun.slurm.client.nodeset import expand

UNIT = "\x1f"  # between fields
RECORD = "\x1e"  # after the last field; Slurm adds a line break
# One character behind a node's state, with the flag that it stands for.
_STATE_MARKS = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "!": "power_down", "%": "powering_down",
    "$": "maint", "@": "reboot_requested", "^": "reboot_issued", "-": "planned",
}  # fmt: skip
# A node in such a state, with no flag but these, is in service.
_AT_WORK = frozenset({"idle", "mixed", "allocated"})
_PASSING = frozenset({"not_responding", "completing", "planned"})
# States that say "drain" or "fail" in one word (sinfo's short form), the flag and the base state that they hide.
_FLAGS_AS_STATES = {
    "drained": ("drain", "idle"), "draining": ("drain", "mixed"), "drain": ("drain", "idle"),
    "drng": ("drain", "mixed"), "fail": ("fail", "idle"), "failing": ("fail", "mixed"),
    "failg": ("fail", "mixed"),
}  # fmt: skip
# Slurm's own words for a flag, where the records use another.
_FLAG_WORDS = {"no_respond": "not_responding", "maintenance": "maint", "resv": "reserved"}


def _row_format(*fields: str) -> str:
    return ",".join([f"{name}:{UNIT}" for name in fields[:-1]] + [f"{fields[-1]}:{RECORD}"])


JOB_FORMAT = _row_format(
    "JobArrayID", "JobID", "State", "Reason", "NodeList", "NumNodes", "UserName", "Partition",
    "SubmitTime", "StartTime", "EndTime", "RestartCnt", "TimeLimit", "Name", "Comment",
)  # fmt: skip
NODE_FORMAT = _row_format("NodeList", "StateComplete", "Timestamp", "Partition", "Gres", "Reason")
DEPENDENCY_FORMAT = _row_format("JobArrayID", "Dependency")
STAY_FORMAT = "JobIDRaw,UID,Start,End,NodeList,Account"  # of sacct
STAY_ROW = _row_format("JobID", "UserID", "State", "StartTime", "EndTime", "NodeList")

# Slurm prints these for "nothing".
_NULL = frozenset({"", "(null)", "N/A", "None", "none", "NONE", "Unknown", "UNKNOWN"})

_ENDING = frozenset({state for state in JobState if state.ended} | {JobState.COMPLETING})


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """The fields of each row; one with another number of fields (a warning) is dropped."""
    for record in text.split(RECORD):
        fields = record.lstrip("\r\n").split(UNIT)
        if len(fields) == width:
            yield fields


def _text(value: str) -> str:
    return "" if value.strip() in {"(null)", "N/A"} else value


def parse_time(value: str) -> float | None:
    """Unix seconds; None for anything else."""
    value = value.strip()
    return float(value) if value.isdecimal() else None


def _int(value: str) -> int:
    found = re.match(r"\d{1,18}", value.strip())
    return int(found.group()) if found else 0


def parse_state(text: str) -> JobState:
    """The state for Slurm's word; UNKNOWN for a word that this version of ftrun does not know."""
    word = text.strip().split(" ", 1)[0].split("+", 1)[0].upper()
    return JobState(word) if word in JobState.__members__ else JobState.UNKNOWN


def parse_seconds(text: str) -> float | None:
    """A duration as Slurm prints it ([days-]hours:minutes:seconds, or "3 sec"); None = unlimited or not said."""
    text = text.strip()
    found = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", text)
    if found is None:
        number = re.match(r"(\d{1,9}) (sec|min|hour)", text)
        return (
            float(number.group(1)) * {"sec": 1, "min": 60, "hour": 3600}[number.group(2)] if number else None
        )
    days, first, second, third = (int(part) if part else 0 for part in found.groups())
    if found.group(1):  # days-hours[:minutes[:seconds]]
        return float(days * 86400 + first * 3600 + second * 60 + third)
    if found.group(4):
        return float(first * 3600 + second * 60 + third)
    return float(first * 60 + second)


def parse_jobs(text: str) -> tuple[JobRow, ...]:
    """Rows of `squeue -h -O JOB_FORMAT`."""
    return tuple(
        JobRow(
            job_id=job_id,
            raw_job_id=raw,
            state=parse_state(state),
            reason=_text(reason),
            nodes=expand(nodes),
            node_count=_int(count),
            user=user,
            partition=partition,
            submit_time_s=parse_time(submitted),
            start_time_s=parse_time(started),
            # Before the end, versions show different expectations (never, or a year from now): that is no
            # fact.
            end_time_s=parse_time(ended) if parse_state(state) in _ENDING else None,
            planned_end_s=parse_time(ended) if parse_state(state) is JobState.RUNNING else None,
            restarts=int(restarts) if restarts.isdigit() else None,
            time_limit_s=parse_seconds(limit),
            name=name,
            comment=_text(comment),
        )
        for (
            job_id, raw, state, reason, nodes, count, user, partition,
            submitted, started, ended, restarts, limit, name, comment,
        ) in _rows(text, 15)
    )  # fmt: skip


def parse_nodes(text: str) -> dict[str, NodeRow]:
    """Rows of `sinfo -h -O NODE_FORMAT`: nodes that agree in all that is asked for share one. A node in
    several partitions has a row for each: they are joined. The reason is why a node is held back now; one
    that outlived its drain is left out.
    """
    nodes: dict[str, NodeRow] = {}
    for names, state_text, since, partition, gres, reason in _rows(text, 6):
        own: tuple[str, ...] = (partition.rstrip("*"),) if _text(partition) else ()
        state, flags = parse_node_state(state_text)
        outlived = reason in _NULL or has_outlived(state, flags)
        for name in expand(names):
            partitions = tuple(dict.fromkeys(nodes[name].partitions + own)) if name in nodes else own
            nodes[name] = NodeRow(
                name=name,
                state=state,
                flags=flags,
                reason="" if outlived else reason,
                reason_time_s=None if outlived else parse_time(since),
                partitions=partitions,
                gres=_text(gres),
            )
    return dict(sorted(nodes.items()))


_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z_/:]*)=")
_NAME = re.compile(r"\sJobName=(.*?)(?=\s(?:SLUID|HetJobIdSet|UserId)=)", re.DOTALL)
# Printed after the comment and the command line, so the last occurrence is Slurm's own.
_PRINTED_LAST = frozenset({"StdErr", "StdIn", "StdOut"})


def _fields(line: str) -> dict[str, str]:
    """Key=Value pairs of one `scontrol -o show` record; values may hold spaces, free text may hold pairs."""
    fields: dict[str, str] = {}
    name = _NAME.search(line)
    if name is not None:
        fields["JobName"] = name.group(1)
        line = line[: name.start()] + line[name.end() :]
    keys = list(_KEY.finditer(line))
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        value = line[key.end() : following.start() if following else len(line)].strip()
        if key.group(1) in _PRINTED_LAST:
            fields[key.group(1)] = value
        else:
            fields.setdefault(key.group(1), value)
    return fields


# By these somebody else than the job's user decides (policy.priority_boost).
_DECISIVE = frozenset(
    {
        "UserId", "JobState", "Reason", "Priority", "Nice", "Account", "QOS", "TimeLimit", "Partition", "NumNodes",
        "OverSubscribe", "TRES", "ReqTRES", "AllocTRES",
    }
)  # fmt: skip


def doubtful_keys(record: str) -> frozenset[str]:
    """Decisive keys that a `scontrol -o show` record of one job bears twice: one is text that its user chose, such as a
    job's name `x UserId=root(0)`. No release prints TRES beside ReqTRES and AllocTRES.
    """
    found = Counter(key.group(1) for key in _KEY.finditer(record))
    mixed = {"TRES"} if found["TRES"] and (found["ReqTRES"] or found["AllocTRES"]) else set()
    return frozenset({key for key in _DECISIVE if found[key] > 1} | mixed)


def parse_exit(value: str) -> tuple[int, int]:
    """(exit code, signal) of "1:0"; 0 where there is none."""
    code, _, signal = value.partition(":")
    return _int(code), _int(signal)


def _printed_id(fields: Mapping[str, str]) -> str:
    """The id as squeue prints it, from the record of one job."""
    if "HetJobOffset" in fields:
        return f"{fields['HetJobId']}+{fields['HetJobOffset']}"
    if fields.get("ArrayTaskId", "").isdigit():
        return f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
    return fields.get("JobId", "")


def parse_details(text: str, job_id: str) -> JobDetails | None:
    """The record of `scontrol -d -o show job ID` that `job_id` names ("7", "7_3", "7+1"); None when there is
    none. For an array's or a het job's bare id Slurm prints all members: the one whose number it is stands
    for it.
    """
    parts = [part for part in re.split(r"(?:^|\n)(?=JobId=\d)", text) if part.startswith("JobId=")]
    records = [(_fields(part), part) for part in parts]
    for fields, part in records:
        if job_id in {_printed_id(fields), fields.get("JobId")}:
            return _details(fields, part)
    return _details(*records[0]) if len(records) == 1 else None


def parse_step_files(text: str) -> tuple[StepFiles, ...]:
    """The steps of `scontrol -o show step` that have output files of their own."""
    found = []
    for line in text.splitlines():
        fields = _fields(line)
        names = (_text(fields.get(key, "")) for key in ("StdOut", "StdErr"))
        files = tuple(dict.fromkeys(name for name in names if name.startswith("/") and name != "/dev/null"))
        if files:
            found.append(
                StepFiles(_int(fields.get("Tasks", "")) or 0, expand(fields.get("NodeList", "")), files)
            )
    return tuple(found)


def _listed(text: str) -> tuple[str, ...]:
    """The nodes in a list of a job's record; () for what is none: a job's name may pose as the list."""
    try:
        return expand(text)
    except ValueError:
        return ()


def _details(fields: Mapping[str, str], record: str) -> JobDetails:
    exit_code, exit_signal = parse_exit(fields.get("ExitCode", ""))
    std_out = _text(fields.get("StdOut", ""))
    return JobDetails(
        job_id=_printed_id(fields),
        state=parse_state(fields.get("JobState", "")),
        reason=_text(fields.get("Reason", "")),
        exit_code=exit_code,
        exit_signal=exit_signal,
        derived_exit_code=parse_exit(fields.get("DerivedExitCode", ""))[0],
        restarts=_int(fields.get("Restarts", "")),
        nodes=_listed(fields.get("NodeList", "")),
        excluded=_listed(fields.get("ExcNodeList", "")),
        required=_listed(fields.get("ReqNodeList", "")),
        std_out=std_out,
        std_err=_text(fields.get("StdErr", "")) or std_out,  # 26.05 leaves it empty where it is the same file
        dependency=clean_dependency(fields.get("Dependency", "")),
        comment=_text(fields.get("Comment", "")),
        requeue=fields.get("Requeue", "1") != "0",
        batch_host=_text(fields.get("BatchHost", "")),
        time_limit_s=parse_seconds(fields.get("TimeLimit", "")),
        user=fields.get("UserId", "").split("(", 1)[0],
        fields=dict(fields),
        doubtful=doubtful_keys(record),
    )


def parse_node_usage(shown: str, told: str) -> tuple[NodeUsage, ...]:
    """Stays from `squeue -h -t all -O STAY_ROW` and from `sacct -X -D -n -P -o STAY_FORMAT`, oldest first,
    without duplicates. Neither contains text that users choose, so no user can claim another's node by the
    name of a job. The account is accounting's alone: without it users may write there what they like.
    """
    lines = (line.split("|", 5) for line in told.splitlines() if line.count("|") >= 5)
    stays = [_stay(fields) for fields in lines]
    accounts = {stay.job_id: stay.account for stay in stays if stay is not None}
    for job_id, uid, word, start, end, nodes in _rows(shown, 6):
        if not (state := parse_state(word)).pending:
            # Before the end, Slurm shows what the time limit allows.
            ended = end if state in _ENDING else ""
            stays.append(_stay((job_id, uid, start, ended, nodes, accounts.get(job_id, ""))))
    found = {(stay.job_id, stay.start_s): stay for stay in stays if stay is not None}
    return tuple(sorted(found.values(), key=lambda stay: stay.start_s))


def _stay(fields: Sequence[str]) -> NodeUsage | None:
    job_id, uid, start, end, nodes, account = fields
    began = parse_time(start)
    if began is None or nodes.strip() in {*_NULL, "None assigned"}:
        return None
    return NodeUsage(
        job_id,
        int(uid) if re.fullmatch(r"\d{1,10}", uid) else -1,
        expand(nodes),
        began,
        parse_time(end),
        account,
    )


def parse_partitions(text: str) -> dict[str, PartitionRow]:
    """Records of `scontrol -o show partition`."""
    rows: dict[str, PartitionRow] = {}
    for line in text.splitlines():
        fields = _fields(line)
        if "PartitionName" in fields:
            rows[fields["PartitionName"]] = PartitionRow(
                name=fields["PartitionName"],
                up=fields.get("State") == "UP",
                default=fields.get("Default") == "YES",
                nodes=expand(fields.get("Nodes", "")),
                max_time_s=parse_seconds(fields.get("MaxTime", "")),
                max_memory_mib=float(memory)
                if (memory := fields.get("MaxMemPerNode", "")).isdigit()
                else None,
            )
    return rows


def parse_config(text: str) -> ClusterFacts:
    """`scontrol show config`. A setting that is absent has Slurm's own default."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            settings.setdefault(key.strip(), value.strip())
    size = re.search(r"max_script_size=(\d+)", settings.get("SchedulerParameters", ""))
    major, minor, micro, *_ = *map(int, re.findall(r"\d+", settings.get("SLURM_VERSION", ""))), 0, 0, 0
    socket = re.search(r"(?:^|,)(?:socket=)?(/[^,]*)", settings.get("AuthInfo", ""))
    preemption = [settings.get(key, "") for key in ("SlurmctldParameters", "PreemptParameters")]
    return ClusterFacts(
        name=_text(settings.get("ClusterName", "")),
        version=(major, minor, micro),
        slurmd_timeout_s=_or(parse_seconds(settings.get("SlurmdTimeout", "")), 300.0),
        kill_wait_s=_or(parse_seconds(settings.get("KillWait", "")), 30.0),
        max_script_size_bytes=int(size.group(1)) if size else 4 * 1024 * 1024,
        min_job_age_s=_or(parse_seconds(settings.get("MinJobAge", "")), 300.0),
        requeue_default=settings.get("JobRequeue", "1") != "0",
        tracking=_text(settings.get("ProctrackType", "")),
        auth=_text(settings.get("AuthType", "")) or "auth/munge",
        munge_socket=socket.group(1) if socket else "",
        switch=_text(settings.get("SwitchType", "")),
        preemption_signals="send_user_signal" in " ".join(preemption),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def setting(text: str, key: str) -> str:
    """One value of `scontrol show config`; "" when it is not there."""
    found = re.search(rf"^{re.escape(key)}\s*= (.*)$", text, re.MULTILINE)
    return _text(found.group(1).strip()) if found else ""


_SUBMITTED = (
    re.compile(r"^Submitted batch job (\d+)(?: on cluster (\S+))?\s*$", re.MULTILINE),
    re.compile(r"^(\d+)(?:;(\S+))?\s*$", re.MULTILINE),  # --parsable
)


def parse_submitted(stdout: str) -> tuple[str, str] | None:
    """(job id, cluster or "") from what sbatch printed on success, with or without --parsable; None = no id there."""
    for form in _SUBMITTED:
        if found := form.findall(stdout):
            return found[-1][0], found[-1][1]
    return None


@functools.lru_cache(maxsize=8192)  # each poll brings the same comments
def has_token(comment: str, token: str) -> bool:
    """Whether the comment contains this token as a whole word, or as the head of a longer token. `mine
    ftrun:r:1` and `ftrun:r:1:2` contain `ftrun:r:1`; `ftrun:r:12` does not.
    """
    return re.search(rf"(?<![\w.:-]){re.escape(token)}(?![\w.-])", comment) is not None


def clean_dependency(text: str) -> str:
    """A dependency as Slurm prints it, in the form that Slurm accepts: without "(unfulfilled)" and `_*`."""
    return re.sub(r"\(\w+\)", "", _text(text)).replace("_*", "")


def depends_on(dependency: str, job_id: str) -> bool:
    """The dependency names this job (`afterok:7:9+5,singleton`), or, for an array's id, any task of it."""
    # A het job is named by its leader; behind a name, "+5" is a delay in minutes.
    wanted = job_id.split("+", 1)[0]
    for condition in re.split(r"[,?]", clean_dependency(dependency)):
        for part in condition.split(":")[1:]:
            name = part.split("+", 1)[0]
            if wanted in {name, name.split("_", 1)[0]}:
                return True
    return False


def parse_dependencies(text: str) -> dict[str, str]:
    """Job id -> dependency in the form that Slurm takes, from `squeue -O DEPENDENCY_FORMAT`. Ids are those
    that an update takes: an array's own for tasks that have not started, a heterogeneous job's leader. Jobs
    without a dependency are left out.
    """
    rows = (
        (re.split(r"_\[|\+", job_id)[0], clean_dependency(dependency))
        for job_id, dependency in _rows(text, 2)
    )
    return {job_id: dependency for job_id, dependency in rows if dependency}


def parse_node_state(text: str) -> tuple[str, frozenset[str]]:
    """Base state and flags, lower case: `IDLE+DRAIN`, `down*`, `mixed+not_responding`, `draining@`."""
    flags: set[str] = set()
    words: list[str] = []
    for part in text.strip().lower().split("+"):
        word = part
        while word and word[-1] in _STATE_MARKS:
            flags.add(_STATE_MARKS[word[-1]])
            word = word[:-1]
        words.append(_FLAG_WORDS.get(word, word))
    base = words[0] or "unknown"
    if base in _FLAGS_AS_STATES:
        flag, base = _FLAGS_AS_STATES[base]
        flags.add(flag)
    flags.update(word for word in words[1:] if word)
    return base, frozenset(flags)


def has_outlived(state: str, flags: frozenset[str]) -> bool:
    """Whether a reason in such a state is stale: 24.11 keeps the reason of a drain after the resume."""
    return state in _AT_WORK and flags <= _PASSING
