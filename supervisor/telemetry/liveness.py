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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from ftrun.slurm.records import dataclass, replace

__all__ = [
    "Activity",
    "History",
    "LivenessSample",
    "Moves",
    "Rank",
    "Stacks",
    "Witness",
    "observe",
]


LOOK_S_MAX = 15.0  # two looks further apart than this were not a watch
GAPS_KEPT = 64
STEPPING = frozenset({"", "sync"})  # a beat's phase while it steps
DONE = "done"
WARM_STEPS = 5  # until a habit is known
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

    `stopped`: ranks that a signal or a frozen cgroup holds, others not. `peers`: what half of the ranks or more
    wait in while nothing is seen of the others but that they use their processors: "collective", "idle" where
    only the kernel tells that they wait, "" = no such thing. `absent`: no node has a rank any more, and their launcher (srun) still waits for them. `places`: the node of each rank that is
    `elsewhere` or `stopped`.
    """

    taken: int
    moved: bool | None = None
    waiting: str = ""
    elsewhere: tuple[int, ...] = ()
    ranks: int = 1
    pairs: int = 1
    ended: bool = False
    stopped: tuple[int, ...] = ()
    peers: str = ""
    absent: bool = False
    places: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))


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

    `from_begin`: it is the first look at a start that just began, so every step that it sees was made by it.
    `steps_seen`, `growth`, `median_step_s`, `phase` are those of `WatchReport`. `readable`: all logs were
    read to their ends. `running`: Slurm calls the job running, not suspended.
    """

    life: str = ""
    from_begin: bool = False
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
    """The movement seen. `kind`: "beats", "steps", "output" or "" = none yet. Times in watched seconds.

    `count` are looks that saw one, `steps` the steps that they saw: one look may see many.
    """

    kind: str = ""
    count: int = 0
    steps: int = 0
    at_s: float = 0.0
    gaps: tuple[float, ...] = ()  # the last few between movements, without announced phases
    longest_s: float = 0.0
    usual_s: float = 0.0  # twice the median gap, or more than nearly all of them
    step_s: float | None = None  # the median step


@dataclass(frozen=True, slots=True)
class Witness:
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
    stopped: tuple[int, ...] = ()
    places: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    peers: str = ""
    peers_from_s: float = NEVER  # since when all samples found the peers waiting
    absent: int = 0  # samples in a row without a rank
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
    witness: Witness = field(default_factory=Witness)

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
        if not sight.from_begin:
            history = replace(history, steps_seen=sight.steps_seen, beats=_beats(sight), ranks=sight.ranks)
        if history.steps_seen or history.beats:
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


def _steps(history: History, sight: LivenessSample) -> int:
    """How many steps a look saw: by the log, or by the rank that made most."""
    before = {rank.rank: rank for rank in history.ranks}
    made = [sight.steps_seen - history.steps_seen]
    for rank in sight.ranks:
        known = before.get(rank.rank)
        if known is None or known.step is None or rank.step is None:
            made.append(rank.n - (known.n if known is not None else 0))
        else:
            made.append(rank.step - known.step)
    return max(made)


def _output(history: History, sight: LivenessSample) -> History:
    if sight.growth == history.growth:
        return history
    return replace(history, growth=sight.growth, output_s=history.watched_s)


def _movement(history: History, sight: LivenessSample) -> History:
    beats, steps = _beats(sight), _steps(history, sight)
    stepped, beaten = sight.steps_seen != history.steps_seen, beats != history.beats
    spoke = history.output_s == history.watched_s
    if stepped or beaten or sight.ranks != history.ranks:
        history = replace(history, steps_seen=sight.steps_seen, beats=beats, ranks=sight.ranks)
    kind = history.moves.kind
    if beaten and kind != "beats":
        return _stronger(history, "beats", sight, steps)
    if stepped and kind not in {"beats", "steps"}:
        return _stronger(history, "steps", sight, steps)
    if spoke and not kind:
        return _stronger(history, "output", sight, 1)
    # With beats, steps count too: a loop that no longer calls `beat` still trains.
    moved = (
        beaten or stepped if kind == "beats" else stepped if kind == "steps" else spoke and kind == "output"
    )
    return _moved(history, sight, 1 if kind == "output" else steps) if moved else history


def _stronger(history: History, kind: str, sight: LivenessSample, steps: int) -> History:
    """The first movement of a stronger kind: the habit of a weaker kind no longer counts, but steps do."""
    before = history.moves.steps if history.moves.kind == "steps" else 0
    moves = Moves(
        kind=kind,
        count=1,
        steps=max(before, steps, 1),
        at_s=history.watched_s,
        step_s=sight.median_step_s,
    )
    return replace(history, moves=moves, phase="", witness=_forgotten(history.witness))


def _moved(history: History, sight: LivenessSample, steps: int) -> History:
    before = history.moves
    gap_s = history.watched_s - before.at_s
    learnt, gaps, longest_s = history.learnt, before.gaps, before.longest_s
    if history.phase:
        learnt = MappingProxyType({**learnt, history.phase: max(gap_s, learnt.get(history.phase, 0.0))})
    elif before.count:
        gaps = (*gaps[-GAPS_KEPT + 1 :], gap_s)
        # Time spent on compiling, before the habit is known, does not count.
        longest_s = max(longest_s, gap_s) if before.steps >= WARM_STEPS else 0.0
    moves = Moves(
        kind=before.kind,
        count=before.count + 1,
        steps=before.steps + max(0, steps),
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


def _forgotten(witness: Witness) -> Witness:
    return Witness(taken=witness.taken)


def _witnesses(witness: Witness, sight: LivenessSample, watched_s: float) -> Witness:
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
    works = seen is None or seen.io is not False or seen.gpu is True
    alone = stacks.peers and not stacks.moved and not works
    first_s = watched_s if witness.peers_from_s == NEVER else witness.peers_from_s
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
        stopped=stacks.stopped,
        places=stacks.places,
        peers=stacks.peers,
        peers_from_s=first_s if alone else NEVER,
        absent=witness.absent + 1 if stacks.absent else 0,
    )
