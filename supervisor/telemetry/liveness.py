"""The signs of life of one start, look by look: movement, phases, stacks and activity. (pure)

`observe` takes what a look saw and returns the next `History`; `hang_rules` judges hangs by it. Every look
costs the same, however long the start runs.

- **Watched time.** Only watched time counts: the job runs, its logs could be read to their ends, and the
  looks came in time. A suspended job, a stopped agent or a jump of a clock by an hour adds nothing to
  anybody's silence.
- **Movement.** The strongest sign a start has shown: its beats, else its steps, else (if neither was ever
  seen) its output. The gaps between movements are its habit; the first few are warm-up. A new start, or a
  restart within one, begins anew.
- **Phases.** A gap in which something long was announced counts for that phase and not for stepping. A phase
  ends with the next movement, so one that never ended is forgotten with its start.
- **Witnesses.** Stacks and activity are stored with the watched time of their sight; movement makes old ones
  worthless.
- **Earlier starts.** The lengths of phases and the longest silence that a start came back from are kept over
  starts; other habits are not.

`sample_of` merges the tables of `ftrun-hook stacks`. Each node's table has two looks at its ranks, some
seconds apart, and what its accelerators showed at both. A rank stood still if both looks are alike, and equal
the last one of the sample before. Use of processor and files is counted from sample to sample, so nothing
between them is missed.

- **Spinning proves nothing.** A rank that waits in a collective may use its processor fully; if others do not
  wait there, only theirs counts.
- **Accelerators.** nvidia-smi's `utilization.memory` is the share of time in which memory was read or
  written, `utilization.gpu` that in which a kernel ran (nvidia-smi --help-query-gpu). A kernel that waits in
  a collective runs all the time and moves nothing. Tools of other makers are not read: unknown.
- **Missing is unknown.** A node without a table, or without ranks, leaves open whether anybody moved or used
  anything.

`waits_in` tells by the innermost Python frames what a rank waits for: a collective of its framework, or a
call that synchronises with its accelerator. A name alone (`wait`, `send`) says little, so the file must be
the framework's too. Unknown frames count as work. Names: torch.distributed, torch.autograd, torch.cuda,
Horovod, DeepSpeed and JAX, as in their released sources.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

from ftrun.slurm.records import dataclass, replace

__all__ = [
    "BUSY_BYTES_S",
    "BUSY_SHARE",
    "COLLECTIVE",
    "DEVICE",
    "Activity",
    "History",
    "LivenessSample",
    "Moves",
    "Rank",
    "RankSample",
    "Stacks",
    "common_wait",
    "observe",
    "ranks_elsewhere",
    "stack_sample",
    "wait_kind",
]


LOOK_S_MAX = 15.0  # two looks further apart than this were not a watch
GAPS_KEPT = 64
STEPPING = frozenset({"", "sync"})  # a beat's phase while it steps
DONE = "done"
WARM_MOVES = 5  # movements until a habit is known
NEVER = float("-inf")
HOLDS_S = 30.0  # how long a witness of activity counts
BLIND_S = 300.0  # after so long without news on activity, what was known before is dropped


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's last beat. `moved_s`: when its count moved last, by the reader's clock; `n` counts beats."""

    rank: int
    node: str
    step: int | None
    n: int
    phase: str = ""
    moved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stacks:
    """The latest sample of stacks, all ranks together. `taken` counts samples, so that each is used once.

    `moved`: whether any rank's main stack differs from the sample before; None where that is not known for
    every rank. `waiting`: what every rank waits in, "collective" or "device" (its accelerator); "" = not all
    wait so, or unknown. `ended`: all ranks of one node, but not of all nodes, have ended by themselves.
    `elsewhere`: ranks that do not wait where most do. `ranks`: their number; a single rank is found at the
    same place by chance more easily than many. `pairs`: how many comparisons the sample adds.
    """

    taken: int
    moved: bool | None = None
    waiting: str = ""
    elsewhere: tuple[int, ...] = ()
    ranks: int = 1
    pairs: int = 1
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """Whether any process of the start did something since the last look, on any node; None = unknown.

    `cpu`: more than a twentieth of a core for a rank. Ranks that wait in a collective while others do not are
    left out: they spin there, which says nothing about those they wait for. `io`: more than 64 KiB/s to or
    from files or the network (a log or an experiment tracker writes less), or a process waits in the kernel
    for them (state D). `gpu`: a device moves memory. `spins`: no device does, and those of all ranks are
    fully used, as by a kernel that waits in a collective. `stuck`: a process waits in the kernel (state D)
    now.
    """

    cpu: bool | None = None
    io: bool | None = None
    gpu: bool | None = None
    spins: bool = False
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class LivenessSample:
    """One look. `life` identifies the start (and a restart within it); another value begins anew.

    `steps_seen`, `growth`, `median_step_s`, `phase` are those of `WatchReport`. `readable`: all logs were
    read to their ends. `running`: Slurm calls the job running, not suspended.
    """

    life: str = ""
    steps_seen: int = 0
    growth: float | None = None
    median_step_s: float | None = None
    phase: str = ""
    readable: bool = True
    running: bool = True
    ranks: tuple[Rank, ...] = ()
    stacks: Stacks | None = None
    activity: Activity | None = None


@dataclass(frozen=True, slots=True)
class Moves:
    """The movement seen. `kind`: "beats", "steps", "output" or "" = none yet. Times in watched seconds."""

    kind: str = ""
    count: int = 0
    at_s: float = 0.0
    gaps: tuple[float, ...] = ()  # the last few between movements, without announced phases
    longest_s: float = 0.0
    usual_s: float = 0.0  # twice the median gap, or more than nearly all of them
    step_s: float | None = None  # the median step


@dataclass(frozen=True, slots=True)
class _Witness:
    """What was seen since the last movement. Times in watched seconds."""

    taken: int = 0
    samples: int = 0
    sampled_s: float = NEVER
    ranks: int = 1  # of the last sample
    frozen: int = 0  # pairs of samples in a row in which nobody moved
    waiting: str = ""
    steady: int = 0  # pairs of samples in a row that waited alike
    moved_s: float = NEVER
    elsewhere: tuple[int, ...] = ()
    ended: bool = False
    cpu_s: float = NEVER
    io_s: float = NEVER
    gpu_s: float = NEVER
    free_s: float = NEVER  # when nobody waited in the kernel
    knows_s: float = NEVER  # when processor and files were both known ...
    knows_from_s: float = NEVER  # ... and since when
    knows_gpu_s: float = NEVER
    spins: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """The state of the watch. Starts empty; `observe` returns the next one."""

    life: str = ""
    seen_s: float | None = None
    counts: bool = False  # whether the time since the last look counts
    watched_s: float = 0.0
    moves: Moves = field(default_factory=Moves)
    steps_seen: int = 0
    beats: int = 0
    growth: float | None = None
    output_s: float = 0.0
    phase: str = ""
    learnt: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # phase -> its longest
    before_s: float = 0.0  # the longest silence that earlier starts came back from
    device_moves: bool = False  # its devices once moved memory
    ranks: tuple[Rank, ...] = ()
    witness: _Witness = field(default_factory=_Witness)

    def at(self, now_s: float) -> float:
        """The watched time now."""
        if self.seen_s is None or not self.counts:
            return self.watched_s
        return self.watched_s + min(max(0.0, now_s - self.seen_s), LOOK_S_MAX)


def observe(history: History, sight: LivenessSample, now_s: float) -> History:
    """The history after one more look. `now_s`: any clock that does not jump, the same at all looks."""
    watched_s = history.at(now_s)
    if history.seen_s is None or sight.life != history.life:
        history = History(
            life=sight.life,
            learnt=history.learnt,
            before_s=max(history.before_s, history.moves.longest_s),
            device_moves=history.device_moves,
            growth=sight.growth,
        )
        history = replace(history, watched_s=watched_s, output_s=watched_s, moves=Moves(at_s=watched_s))
        # What a log had before its first reading is no movement now.
        history = replace(history, steps_seen=sight.steps_seen, beats=_beats(sight))
        if sight.steps_seen or _beats(sight):
            history = replace(
                history, moves=Moves(kind="beats" if _beats(sight) else "steps", at_s=watched_s)
            )
    counts = sight.running and sight.readable
    history = replace(history, seen_s=now_s, counts=counts, watched_s=watched_s)
    if not counts:
        return history
    history = _output(history, sight)
    history = _movement(history, sight)
    history = _phase(history, sight)
    if sight.activity is not None and sight.activity.gpu and not history.device_moves:
        history = replace(history, device_moves=True)
    witness = _witnesses(history.witness, sight, watched_s)
    return history if witness is history.witness else replace(history, witness=witness)


def _beats(sight: LivenessSample) -> int:
    return sum(rank.n for rank in sight.ranks)


def _output(history: History, sight: LivenessSample) -> History:
    if sight.growth == history.growth:
        return history
    return replace(history, growth=sight.growth, output_s=history.watched_s)


def _movement(history: History, sight: LivenessSample) -> History:
    beats = _beats(sight)
    stepped, beaten = sight.steps_seen != history.steps_seen, beats != history.beats
    spoke = history.output_s == history.watched_s
    if stepped or beaten or sight.ranks != history.ranks:
        history = replace(history, steps_seen=sight.steps_seen, beats=beats, ranks=sight.ranks)
    kind = history.moves.kind
    if beaten and kind != "beats":
        return _stronger(history, "beats", sight)
    if stepped and kind not in {"beats", "steps"}:
        return _stronger(history, "steps", sight)
    if spoke and not kind:
        return _stronger(history, "output", sight)
    # With beats, steps count too: a loop that no longer calls `beat` still trains.
    moved = (
        beaten or stepped if kind == "beats" else stepped if kind == "steps" else spoke and kind == "output"
    )
    return _moved(history, sight) if moved else history


def _stronger(history: History, kind: str, sight: LivenessSample) -> History:
    """The first movement of a stronger kind: the habit of a weaker kind no longer counts."""
    moves = Moves(kind=kind, count=1, at_s=history.watched_s, step_s=sight.median_step_s)
    return replace(history, moves=moves, phase="", witness=_forgotten(history.witness))


def _moved(history: History, sight: LivenessSample) -> History:
    before = history.moves
    gap_s = history.watched_s - before.at_s
    learnt, gaps, longest_s = history.learnt, before.gaps, before.longest_s
    if history.phase:
        learnt = MappingProxyType({**learnt, history.phase: max(gap_s, learnt.get(history.phase, 0.0))})
    elif before.count:
        gaps = (*gaps[-GAPS_KEPT + 1 :], gap_s)
        # Time spent on compiling, before the habit is known, does not count.
        longest_s = max(longest_s, gap_s) if before.count >= WARM_MOVES else 0.0
    moves = Moves(
        kind=before.kind,
        count=before.count + 1,
        at_s=history.watched_s,
        gaps=gaps,
        longest_s=longest_s,
        usual_s=_usual_s(gaps) if gaps is not before.gaps else before.usual_s,
        step_s=sight.median_step_s if sight.median_step_s is not None else before.step_s,
    )
    return replace(history, moves=moves, learnt=learnt, phase="", witness=_forgotten(history.witness))


def _usual_s(gaps: tuple[float, ...]) -> float:
    ordered = sorted(gaps)
    return max(2.0 * ordered[len(ordered) // 2], 1.5 * ordered[int(0.95 * (len(ordered) - 1))])


def _phase(history: History, sight: LivenessSample) -> History:
    """The phase that the log or any rank's beat announced last, if it is not over."""
    training = [rank for rank in sight.ranks if rank.phase != DONE]
    told = next((rank.phase for rank in training if rank.phase not in STEPPING), "") or sight.phase
    if sight.ranks and not training:
        told = DONE
    if not told or told == history.phase:
        return history
    return replace(history, phase=told)


def _forgotten(witness: _Witness) -> _Witness:
    return _Witness(taken=witness.taken)


def _witnesses(witness: _Witness, sight: LivenessSample, watched_s: float) -> _Witness:
    seen = sight.activity
    if seen is not None:
        known = seen.cpu is not None and seen.io is not None
        begins = known and watched_s - witness.knows_s > BLIND_S
        witness = replace(
            witness,
            cpu_s=watched_s if seen.cpu else witness.cpu_s,
            io_s=watched_s if seen.io else witness.io_s,
            gpu_s=watched_s if seen.gpu else witness.gpu_s,
            free_s=witness.free_s if seen.stuck else watched_s,
            knows_s=watched_s if known else witness.knows_s,
            knows_from_s=watched_s if begins else witness.knows_from_s,
            knows_gpu_s=watched_s if seen.gpu is not None else witness.knows_gpu_s,
            spins=seen.spins if seen.gpu is not None else witness.spins,
        )
    stacks = sight.stacks
    if stacks is None or stacks.taken == witness.taken:
        return witness
    frozen = witness.frozen + stacks.pairs if stacks.moved is False else 0
    return replace(
        witness,
        taken=stacks.taken,
        samples=witness.samples + 1,
        sampled_s=watched_s,
        ranks=stacks.ranks,
        frozen=frozen,
        waiting=stacks.waiting,
        steady=witness.steady + stacks.pairs if stacks.waiting == witness.waiting else 1,
        moved_s=watched_s if stacks.moved else witness.moved_s,
        elsewhere=stacks.elsewhere,
        ended=stacks.ended,
    )


COLLECTIVE, DEVICE = "collective", "device"
_COLLECTIVE = re.compile(
    r"\b(?:distributed/(?:distributed_c10d|rendezvous|\w*collectives\w*)|comm/(?:comm|torch|ccl)|torch/mpi_ops|horovod/\w+)\.py"
    r"[:, \w\"]*?\b_?\w*(?:all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|all_?to_?all|gather|scatter|reduce|send|recv|wait"
    r"|synchronize)\w*"
)
_DEVICE = re.compile(
    r"\b(?:cuda/(?:__init__|streams)\.py[:, \w\"]*?\bsynchronize|autograd/(?:graph|__init__)\.py[:, \w\"]*?\b_?(?:engine_run_)?backward"
    r"|npu/utils\.py[:, \w\"]*?\bsynchronize|(?:array|api)\.py[:, \w\"]*?\b(?:_value|block_until_ready))\b"
)


def wait_kind(frames: str) -> str:
    """What a rank waits in: "collective", "device" or "".

    `frames`: the innermost few, as "folder/file.py:function < ..." or faulthandler's lines.
    """
    if _COLLECTIVE.search(frames):
        return COLLECTIVE
    return DEVICE if _DEVICE.search(frames) else ""


def common_wait(frames: Mapping[int, str]) -> str:
    """What all ranks wait in; "" where any rank does something else, or there are none."""
    kinds = {wait_kind(text) for text in frames.values()}
    if not kinds or "" in kinds:
        return ""
    return COLLECTIVE if kinds == {COLLECTIVE} else DEVICE


def ranks_elsewhere(frames: Mapping[int, str]) -> tuple[int, ...]:
    """The ranks, in order, that do not wait in a collective where most others do."""
    kinds = {rank: wait_kind(text) for rank, text in frames.items()}
    if 2 * Counter(kinds.values())[COLLECTIVE] <= len(kinds):
        return ()
    return tuple(sorted(rank for rank, kind in kinds.items() if kind != COLLECTIVE))


BUSY_SHARE = 0.05  # of a core
BUSY_BYTES_S = 65536.0
_FRAME = re.compile(r"(.{1,200}) \((.{1,400}):\d+\)$")
FULL, RESTS = 90.0, 1.0  # per cent of the time


@dataclass(frozen=True, slots=True)
class RankSample:
    """What is kept of a rank for the next sample. `at_s`: its node's clock. The sums cover the rank and its
    children.
    """

    digest: str
    at_s: float
    cpu_s: float
    size_bytes: float


def stack_sample(
    tables: Mapping[str, object], before: Mapping[str, RankSample], taken: int, *, exited: bool = False
) -> tuple[Stacks, Activity, dict[str, RankSample]]:
    """What the nodes' tables say, and what the next sample needs of each rank.

    `exited`: srun reports that tasks ended by themselves. Then a node that answers without a rank has none
    left: its table is complete, and the others' count.
    """
    seen: dict[str, RankSample] = {}
    tops: dict[int, str] = {}
    busy: dict[int, bool] = {}
    whole, moved, io, stuck = bool(tables), False, False, False
    empty = {node for node, table in tables.items() if exited and _has_no_rank(table)}
    for node, table in tables.items():
        rows = _rows(table)
        whole = whole and (bool(rows) or node in empty)
        for row in rows:
            key, now = f"{node}:{row.get('pid')}", _seen(row, table)
            last = before.get(key)
            seen[key] = now
            whole = whole and bool(now.digest) and row.get("moved") is not None
            moved = moved or row.get("moved") is True or (last is not None and last.digest != now.digest)
            cpu, used = _use(row, table, now, last)
            stuck = stuck or row.get("state") == "D"
            io = io or used or row.get("state") == "D"
            name = str(row.get("rank") or "")
            rank = int(name) if name.isdigit() else -1 - len(tops)
            tops[rank], busy[rank] = _top(row), cpu
    gpu, spins = _accelerators(tables)
    known = whole or None
    stacks = Stacks(
        taken=taken,
        moved=True if moved else (False if whole and before else None),
        waiting=common_wait(tops),
        elsewhere=tuple(rank for rank in ranks_elsewhere(tops) if rank >= 0),
        ranks=max(1, len(tops)),
        pairs=2,
        ended=0 < len(empty) < len(tables),
    )
    cpu = any(used for rank, used in busy.items() if wait_kind(tops[rank]) != COLLECTIVE)
    return (
        stacks,
        Activity(cpu=cpu or (known and cpu), io=io or (known and io), gpu=gpu, spins=spins, stuck=stuck),
        seen,
    )


def _has_no_rank(table: object) -> bool:
    return isinstance(table, Mapping) and table.get("ranks") == []


def _rows(table: object) -> list[Mapping[str, Any]]:
    rows = table.get("ranks") if isinstance(table, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _seen(row: Mapping[str, Any], table: object) -> RankSample:
    at_s = _number(table.get("at_s")) if isinstance(table, Mapping) else 0.0
    return RankSample(
        str(row.get("digest") or ""), at_s, _number(row.get("cpu_all_s")), _number(row.get("bytes_all"))
    )


def _use(
    row: Mapping[str, Any], table: object, now: RankSample, last: RankSample | None
) -> tuple[bool, bool]:
    """Whether a rank used its processor, and files: between the looks, or since the sample before."""
    took_s = _number(table.get("apart_s")) if isinstance(table, Mapping) else 0.0
    spans = [(max(0.1, took_s), _number(row.get("cpu_s")), _number(row.get("bytes")))]
    if last is not None and now.at_s > last.at_s > 0.0:
        spans.append((now.at_s - last.at_s, now.cpu_s - last.cpu_s, now.size_bytes - last.size_bytes))
    return (
        any(cpu_s > BUSY_SHARE * passed_s for passed_s, cpu_s, _ in spans),
        any(size_bytes > BUSY_BYTES_S * passed_s for passed_s, _, size_bytes in spans),
    )


def _top(row: Mapping[str, Any]) -> str:
    """The innermost frames in the form of `waits_in`. The table has "function (folder/file.py:line)"."""
    top = row.get("top")
    if not isinstance(top, list):
        return ""
    found = [_FRAME.match(str(one)) for one in top]
    return " < ".join(f"{one[2]}:{one[1]}" for one in found if one)


def _accelerators(tables: Mapping[str, object]) -> tuple[bool | None, bool]:
    """Whether any accelerator moves memory (None: not known for all nodes), and whether those of all ranks
    are busy without.
    """
    moves, spins, known = False, bool(tables), bool(tables)
    for table in tables.values():
        looks = list(_looks(table))
        if not looks:
            known = False
            continue
        for devices in looks:
            moves = moves or any(memory > RESTS for _, memory in devices)
            full = sum(core >= FULL for core, _ in devices)
            spins = spins and full >= min(len(devices), max(1, len(_rows(table))))
    return True if moves else (False if known else None), known and spins and not moves


def _looks(table: object) -> Iterator[list[tuple[float, float]]]:
    """(utilisation, that of memory) of each device, look by look; nothing where one of them is missing."""
    told = table.get("accelerators") if isinstance(table, Mapping) else None
    texts = told.get("nvidia-smi") if isinstance(told, Mapping) else None
    for text in texts if isinstance(texts, list) else ():
        devices = []
        for line in str(text).splitlines():
            parts = [part.strip() for part in line.split(",")]
            try:
                devices.append((float(parts[2]), float(parts[3])))
            except (IndexError, ValueError):
                return
        if devices:
            yield devices


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
