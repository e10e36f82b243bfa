"""What the other lines of a log make of the cause that was chosen. (pure)

A signature sees one line. These rules see the lines around it: how many hosts, ranks or processes print it,
whether a step was done before it, and which other signatures matched. Each rule changes a diagnosis in one
way and adds the reason to `rests_on`. The lists say which classes and signatures a rule is about; `in_context`
asks it about no other, and applies at most one rule of each list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.blame import ENOUGH_PAIRS, Culprits, find_culprits, rank_of, writer_of
from ftrun.supervisor.diagnosis.class_defaults import plain
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, Evidence, FaultClass, Source

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.evidence import Case


Rule = Callable[[Diagnosis, Sequence[Evidence], "Case"], "Diagnosis | None"]
About = frozenset[str]  # classes and signatures; empty = any


def in_context(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis:
    """`found` after the first rule that applies of each list. `lines` are the lines of its cause."""
    for rules in (COUNT_RULES, LOG_RULES):
        for about, rule in rules:
            asked = not about or found.fault in about or found.signature in about
            better = rule(found, lines, case) if asked else None
            if better is not None:
                found = better
                break
    return found


# ---- rules that count: hosts, ranks, processes, amounts, steps

CORRECTED = frozenset({"memory-corrected"})
"""Signatures of corrected errors. Only their number tells anything."""

STREAM = 5
"""From this number on, corrected errors are a stream."""

CRASHES = frozenset(
    {"process-segfault", "slurm-task-crash", "fortran-crash", "mpi-rank-crashed", "cann-core-exception"}
)
"""Signatures of a process that crashed in its own memory."""

LOW = frozenset({"slurmd-low-resources", "slurm-node-low-resources"})
"""Signatures of a node that has less than slurm.conf says."""

NEARLY_ALL = 0.9
"""A node with at least this share of its configured memory has all its modules: kernel and firmware keep
some.
"""

DEFECTS = frozenset(
    {
        "torch-inductor",
        "torch-internal-assert",
        "compiler-assertion",
        "megatron-grad-norm",
        "rocm-memory-fault",
    }
)
"""Signatures of a library that finds its own error or computes nonsense. No machine does that at the very
start.
"""

_LESS_THAN = re.compile(r"\b(\d+) < (?:[\d.]+% of configured:)?(\d+)\b")
_PID_NUMBER = re.compile(r"\bPID\W{1,3}(\d+)")


def _a_little_less_than_promised(
    found: Diagnosis, lines: Sequence[Evidence], _case: Case
) -> Diagnosis | None:
    """A node that lacks a memory module has much less. One that has nearly all is whole, and slurm.conf is
    wrong.
    """
    told = [numbers for line in lines if (numbers := _LESS_THAN.search(line.text))]
    if len(told) < len(lines):
        return None
    if any(int(numbers[1]) < NEARLY_ALL * int(numbers[2]) for numbers in told):
        return None
    return replace(
        found,
        fault=FaultClass.CONFIG,
        nodes=(),
        exclude=False,
        action=Action.RESUBMIT,
        blame=Blame.CLUSTER,
        rests_on=(*found.rests_on, "it has nearly all that was promised: the promise is wrong, not the node"),
        advice="An administrator corrects slurm.conf: `slurmd -C` on the node prints what it has.",
    )


def _wrong_before_the_first_step(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """A result that is wrong before any was right is the software's fault, even if the line accuses a
    device.
    """
    steps = [line.captures.get("step", "") for line in lines]
    if case.trained or not all(_is_before_first(step) for step in steps):
        return None
    words = (*found.rests_on, "before the first step was done: the set-up, not the device")
    return replace(
        found,
        fault=FaultClass.LIBRARY_BUG,
        retry=False,
        action=Action.STOP,
        nodes=(),
        exclude=False,
        blame=Blame.JOB,
        confidence=round(found.confidence * 0.7, 2),
        rests_on=words,
    )


def _crashed_everywhere_at_start(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """A program that crashes on several hosts, or in several processes, before its first step does so every
    time.
    """
    if not found.retry or case.trained:
        return None
    hosts = {who for line in lines if (who := writer_of(line, case.topology)) and not who.startswith("rank ")}
    processes = {who for line in lines if (who := _process(line))}
    if len(hosts) < 2 and len(processes) < 2:
        return None
    several = f"on {len(hosts)} hosts" if len(hosts) > 1 else f"in {len(processes)} processes"
    words = (*found.rests_on, f"the same {several} before the first step: the program, every time")
    return replace(found, retry=False, action=Action.STOP, rests_on=words)


def _broken_before_the_first_step(
    found: Diagnosis, _lines: Sequence[Evidence], case: Case
) -> Diagnosis | None:
    """A crash or library failure before the first step will come again. After some training it may not."""
    if not found.retry or case.trained:
        return None
    words = (*found.rests_on, "no step was seen before it: the program or its build, every time")
    return replace(found, retry=False, action=Action.STOP, rests_on=words)


def _damaged_for_every_rank(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """Several ranks cannot read a file before the first step: all read it, so it is configuration and no
    sample.
    """
    ranks = {rank for line in lines if (rank := rank_of(line)) is not None}
    if case.trained or len(ranks) < 2:
        return None
    words = (*found.rests_on, f"the same for {len(ranks)} ranks before the first step: a file of the set-up")
    return replace(
        found, fault=FaultClass.CONFIG, confidence=round(found.confidence * 0.8, 2), rests_on=words
    )


def _corrected_and_rare(found: Diagnosis, lines: Sequence[Evidence], _case: Case) -> Diagnosis | None:
    """Errors get corrected all the time. Only a stream of them is worth a node."""
    seen = sum(line.count * int(line.captures.get("code", "1")) for line in lines)
    if seen >= STREAM:
        return None
    words = (*found.rests_on, f"{seen} corrected errors are no stream: the node is kept")
    return replace(found, exclude=False, nodes=(), action=Action.RESUBMIT, rests_on=words)


def _process(line: Evidence) -> str:
    """Which process crashed: its rank, or its process id if the line gives only that."""
    rank = rank_of(line)
    told = _PID_NUMBER.search(line.text)
    return f"rank {rank}" if rank is not None else (told[1] if told else "")


def _is_before_first(step: str) -> bool:
    return step.startswith("-") or (step.isdecimal() and int(step) == 0)


COUNT_RULES: tuple[tuple[About, Rule], ...] = (
    (LOW, _a_little_less_than_promised),
    (frozenset({FaultClass.HARDWARE_GPU}), _wrong_before_the_first_step),
    (frozenset({FaultClass.LIBRARY_BUG, FaultClass.USER_CODE}), _crashed_everywhere_at_start),
    (CRASHES | DEFECTS, _broken_before_the_first_step),
    (frozenset({FaultClass.DATA}), _damaged_for_every_rank),
    (CORRECTED, _corrected_and_rare),
)

# ---- rules that compare the cause with the other signatures of the log

STARTS = frozenset(
    {"slurm-launch-failed-node", "slurm-launch-credential", "launch-no-answer", "slurm-node-io-lost"}
)
"""Signatures of a node that did not start a job's tasks."""

BAD_ADDRESS = re.compile(r"nvidia-xid-(?:13|31)(?:-\w+)*|amd-(?:vm-fault|page-fault)\S*")
"""Signatures of a program that used a wrong address: usually its own mistake."""

PROGRAMS = 3
"""How many programs must fail on one device, one after another and on no other, to make it the device's
fault.
"""

SAID_TWICE = 2
"""One launcher reports it twice: itself, and by its exception."""

REFUSED, BUSY = "slurm-step-refused", "slurm-step-busy"
"""Signatures of a step that Slurm refuses, and of one that it lets wait."""

STUCK = "nvidia-xid-109"
"""The signature of a device that the driver cannot take from its program."""

NODE_FAILED, NODE_UNBOOTED = "slurm-node-failure", "slurm-boot-fail-state"
"""The signatures of a node that Slurm lost, and of one that did not boot for the job."""

FULL, WORKERS_STARVED = "storage-full", "oom-host-shared-memory"
"""The signatures of a full file system, and of loader workers without shared memory."""

MISSING_RANK = "horovod-missing-rank"
"""The signature of a line that names the one rank that others wait for."""

DAEMONS = frozenset({"mpi-daemon-lost", "node-daemon-lost"})
"""Signatures with which mpirun reports that a node does not answer: its power, its network, or only mpirun's
own helper there.
"""

REMOTE_SHELL = frozenset({"mpi-remote-shell-died", "workflow-killed"})
"""Signatures of the end of the remote shell that started such a helper."""

UNRESERVED = 1024
"""The first port that any program may take."""

_PORT = re.compile(r"(?:\]|\d|\*|localhost):(\d{1,5}) \(errno|\bport:? (\d{1,5})\b")
_IN_USE = re.compile(r"Memory required by task is not available")
_PID = re.compile(r"\bpid\W{1,3}(\d+)|\((?:PID|pid)[: ]+(\d+)")
_UNSURE = re.compile(
    r"Socket timed out on send/recv operation|Zero Bytes were transmitted or received|credential (?:expired|replayed)"
)
_AT_WORK = re.compile(r"SeqNum=(?:[2-9]|\d{2,})\b|last completed(?: NCCL)? work: [1-9]")
_LISTEN = re.compile(r"failed to listen on any local")


def _daemon_alone(found: Diagnosis, _lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """A node that only mpirun misses may be well. It is left out only if another line names that host too."""
    if not found.nodes:
        return None
    others = [line for line, of in case.log.causes if of.id not in DAEMONS] + list(case.log.spoken)
    named = {line.captures.get(key, "") for line in others for key in ("host", "ip", "peer")}
    if named & set(found.nodes) or REMOTE_SHELL & case.log.noted:
        return None
    words = (
        *found.rests_on,
        "nothing but mpirun's own word speaks against that node: a lead, and no reason to leave it out",
    )
    return replace(found, exclude=False, action=Action.RESUBMIT, rests_on=words)


def _starts_nowhere(found: Diagnosis, _lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """Two nodes that cannot start tasks are a coincidence. If none can, the set-up is wrong."""
    several = found.blame is Blame.CLUSTER or len(found.nodes) > 1
    if not several or 2 * len(found.nodes) < len(case.topology.nodes):
        return None
    words = (*found.rests_on, "no node of them starts the tasks: the set-up, not a node")
    return replace(
        found,
        fault=FaultClass.SCHEDULER if found.fault is FaultClass.SCHEDULER else FaultClass.CONFIG,
        retry=False,
        action=Action.STOP,
        nodes=(),
        exclude=False,
        blame=Blame.CLUSTER,
        confidence=round(found.confidence * 0.6, 2),
        rests_on=words,
    )


def _reached_and_unsure(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """A node that was too slow, or called a credential too old, was reachable: load or the controller's clock
    can cause that.

    Where the attempt's other nodes are known to have started, the one that did not is to blame all the same.
    """
    if not found.nodes or len(case.topology.nodes) > 1:
        return None
    if not all(_UNSURE.search(line.text) for line in lines):
        return None
    words = (
        *found.rests_on,
        "the node was there, and the reason may be at either end: nobody is blamed for that alone",
    )
    return replace(
        found,
        nodes=(),
        exclude=False,
        action=Action.RESUBMIT,
        blame=Blame.UNKNOWN,
        confidence=round(found.confidence * 0.6, 2),
        rests_on=words,
        advice="Look at the load of slurmd and slurmctld, and at names, clocks and munge keys of the node.",
    )


def _never_booted(found: Diagnosis, _lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """Slurm itself marks a node down that does not boot for a job. In a cloud, its name is another machine
    next time.
    """
    if NODE_UNBOOTED not in case.log.noted:
        return None
    return replace(
        _nobody(found, Blame.CLUSTER, "it had not booted for the job: Slurm sets it down by itself"),
        action=Action.RESUBMIT,
        confidence=round(found.confidence * 0.7, 2),
        advice="An administrator looks at the node's boot and at the resume program of the site.",
    )


def _shared_memory_full(found: Diagnosis, _lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """Loader workers died for lack of shared memory, so it is /dev/shm that is full."""
    starved = next((of for _, of in case.log.causes if of.id == WORKERS_STARVED), None)
    if starved is None:
        return None
    words = (*found.rests_on, f"{starved.id} as well: it is /dev/shm that is full")
    return replace(found, fault=starved.fault, rests_on=words, advice=starved.advice)


def _reserved_port(found: Diagnosis, lines: Sequence[Evidence], _case: Case) -> Diagnosis | None:
    """A port below 1024 belongs to a service of the machine, on every try."""
    ports = {int(told[1] or told[2]) for line in lines if (told := _PORT.search(line.text))}
    if not ports or not 0 < min(ports) < UNRESERVED:
        return None
    words = (*found.rests_on, f"port {min(ports)} is a service's of the machine, on every try")
    return replace(
        found,
        fault=FaultClass.CONFIG,
        retry=False,
        action=Action.STOP,
        rests_on=words,
        advice="Choose a port above 1023.",
    )


def _step_found_no_room(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """A step that first had to wait for others asked for no more than the job has."""
    if BUSY not in case.log.noted or not any(_IN_USE.search(line.text) for line in lines):
        return None
    words = (*found.rests_on, "it had been told to wait: what it asks for was in use, not too much")
    return replace(
        found,
        fault=FaultClass.SCHEDULER,
        retry=True,
        action=Action.RESUBMIT,
        confidence=round(found.confidence * 0.7, 2),
        rests_on=words,
        advice="Steps that run side by side must share out the job's memory: give each its --mem, or --exact.",
    )


def _program_hung_the_device(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """A program used a wrong address, and then its device could not be taken from it: the program is the
    cause.
    """
    places = {line.captures.get("pci", "") for line in lines}
    first = min(line.order for line in lines)
    wrong = next(
        (
            of
            for line, of in case.log.causes
            if BAD_ADDRESS.fullmatch(of.id) and line.order < first and line.captures.get("pci", "") in places
        ),
        None,
    )
    if wrong is None:
        return None
    words = (*found.rests_on, f"{wrong.id} on the same device came first: the program")
    return replace(
        found,
        fault=wrong.fault,
        retry=wrong.retry,
        action=wrong.action,
        nodes=(),
        exclude=False,
        blame=Blame.JOB,
        signature=wrong.id,
        title=wrong.title,
        rests_on=words,
        advice=wrong.advice,
    )


def _same_device_again(found: Diagnosis, lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """One program that uses a wrong address is wrong. Several, on one device and on no other, have a bad
    device.
    """
    if not BAD_ADDRESS.fullmatch(found.signature):
        return None
    devices = {line.captures.get("pci", "") for line in lines}
    programs = {number for line in lines if (number := _pid(line.text))}
    if len(devices) != 1 or "" in devices or len(programs) < PROGRAMS:
        return None
    who = find_culprits(Blame.DEVICE, lines, case.topology)
    words = (
        *found.rests_on,
        f"{len(programs)} programs in a row on one device ({devices.pop()}) and on no other: the device",
    )
    return replace(
        found,
        fault=FaultClass.HARDWARE_GPU,
        retry=True,
        action=Action.EXCLUDE,
        nodes=who.names,
        exclude=True,
        blame=Blame.DEVICE,
        confidence=min(found.confidence, 0.5),
        rests_on=words,
        advice="Run the maker's diagnostics on that GPU before it is used again.",
    )


def _launched_several_times(found: Diagnosis, lines: Sequence[Evidence], _case: Case) -> Diagnosis | None:
    """Several launchers of one job miss the same port: one of them holds it."""
    listening = [line for line in lines if _LISTEN.search(line.text)]
    ranks = {rank for line in listening if (rank := rank_of(line)) is not None}
    if len(ranks) < 2 and sum(line.count for line in listening) <= SAID_TWICE:
        return None
    words = (*found.rests_on, "told by several launchers: one of them holds the port")
    return replace(
        found,
        fault=FaultClass.CONFIG,
        retry=False,
        action=Action.STOP,
        confidence=round(found.confidence * 0.7, 2),
        rests_on=words,
        advice="Start one launcher on each node (--ntasks-per-node=1).",
    )


def _leader_accused(found: Diagnosis, lines: Sequence[Evidence], _case: Case) -> Diagnosis | None:
    """The leader reports on the heartbeats. If it reports its own as late, it was slow, not gone."""
    if not found.nodes or found.blame is Blame.CLUSTER:
        return None
    accused = {line.captures.get("rank") or line.captures.get("peer") for line in lines}
    if accused != {"0"} or "heartbeat" not in lines[0].text:
        return None
    return _nobody(found, Blame.JOB, "only the leader is accused, who was alive to say so")


def _wait_for_each_other(found: Diagnosis, _lines: Sequence[Evidence], _case: Case) -> Diagnosis | None:
    """Several ranks are each missed by somebody: they wait for one another (different tensors), and none is
    dead.
    """
    if len(found.nodes) < 2:
        return None
    return _nobody(found, Blame.JOB, "several ranks are missed by turns: they wait for one another")


def _one_peer_of_all(found: Diagnosis, _lines: Sequence[Evidence], case: Case) -> Diagnosis | None:
    """A network fault names nobody, but all victims name the same peer: that one is the suspect."""
    if found.nodes or found.blame is Blame.CLUSTER:
        return None
    who = _lost_peer(case)
    return replace(found, nodes=who.names, rests_on=(*found.rests_on, *who.words)) if who.names else None


LOG_RULES: tuple[tuple[About, Rule], ...] = (
    (DAEMONS, _daemon_alone),
    (STARTS, _starts_nowhere),
    (STARTS, _reached_and_unsure),
    (frozenset({NODE_FAILED}), _never_booted),
    (frozenset({FULL}), _shared_memory_full),
    (frozenset({FaultClass.PORT_CONFLICT}), _reserved_port),
    (frozenset({REFUSED}), _step_found_no_room),
    (frozenset({STUCK}), _program_hung_the_device),
    (frozenset(), _same_device_again),
    (frozenset({FaultClass.PORT_CONFLICT}), _launched_several_times),
    (frozenset({FaultClass.HANG}), _leader_accused),
    (frozenset({MISSING_RANK}), _wait_for_each_other),
    (frozenset({FaultClass.NETWORK}), _one_peer_of_all),
)


def _nobody(found: Diagnosis, blame: Blame, why: str) -> Diagnosis:
    return replace(found, nodes=(), exclude=False, blame=blame, rests_on=(*found.rests_on, why))


def _pid(text: str) -> str:
    found = _PID.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


# ---- logs in which only lost connections are reported


def cut_off(case: Case) -> Diagnosis | None:
    """A text in which ranks report only lost connections; None where it has another cause, or a record of the
    end.

    If all name one peer, that peer has gone without a word. This is no proof, and costs no node.
    """
    log = case.log
    if case.ended is not None or log.finished or log.causes or not log.spoken:
        return None
    who = _lost_peer(case)
    if not who.names and log.hinted != {FaultClass.NETWORK}:
        return None
    # A connection that broke had worked: the other end has gone. A refused one may never have worked.
    gone = bool(who.names) and any("losed" in line.text for line in log.spoken if _names_peer(line))
    found = plain(
        FaultClass.NODE if gone else FaultClass.NETWORK,
        "a peer has gone, and nothing says why" if gone else "connections failed, and nothing says why",
        who.words,
        confidence=0.35 if who.names else 0.25,
        names=who.names,
        lines=[line for line in log.spoken if _names_peer(line)] or log.spoken,
        sources=(Source.LOG,),
        advice="Look at the other end: its kernel log, and what its rank printed last.",
    )
    return replace(found, exclude=False, action=Action.RESUBMIT)


def _lost_peer(case: Case) -> Culprits:
    """The one peer that all cut-off ranks name; nobody where they name several, or none.

    While connections are set up, a rank that gives up closes them. So one witness is enough only after
    collectives worked.
    """
    lines = [line for line in case.log.spoken if _names_peer(line)]
    witnesses = {writer_of(line, case.topology) for line in lines}
    at_work = any(_AT_WORK.search(line.text) for line in case.log.spoken)
    if lines and len(witnesses) < ENOUGH_PAIRS and not at_work:
        return Culprits(words=("one witness, and no sign that the connection had ever worked",))
    return find_culprits(Blame.LINK, lines, case.topology)


def _names_peer(line: Evidence) -> bool:
    return bool(line.captures.get("peer") or line.captures.get("ip"))
