"""What one start shows of its life, look by look: the memory that hangs are judged by. (pure)

How it thinks. `observe` takes what a look saw and returns the memory after it; every look costs the same, however long the start runs.

- **Watched time.** Only time that was watched counts: while the job runs, its logs could be read to their ends, and the looks came in time. A
  suspended job, a stopped agent, a full hour's jump of a clock add nothing to anybody's silence.
- **Movement.** The strongest sign a start has shown: its beats, else its steps, else (where neither was ever seen) its output. Gaps between
  movements are its habit; the first few are warm-up. A further start, or a restart within one, begins anew.
- **Phases.** A gap in which something long was announced is learnt for that phase and not for stepping. A phase ends with the next movement, so
  one that was begun and never ended is forgotten with its start.
- **Witnesses.** Stacks and activity are noted with the watched time at which they were seen; movement makes old ones worthless.
- **Earlier starts.** How long phases took and the longest silence that a start came back from are kept over starts; other habits are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from ftrun.slurm.records import dataclass, replace

__all__ = ["Activity", "History", "Moves", "Rank", "Sight", "Stacks", "observe"]

LOOK_S_MAX = 15.0  # two looks further apart than this were not a watch
GAPS_KEPT = 64
STEPPING = frozenset({"", "sync"})  # phases of a beat that are no phases
DONE = "done"
WARM_MOVES = 5  # so many movements until a habit is known
NEVER = float("-inf")
HOLDS_S = 30.0  # a witness of activity says nothing about later times
BLIND_S = 300.0  # so long without a word on activity, and what was known before is forgotten


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's last beat. `moved_s`: when its count moved last, by the clock of whoever reads it; `n` counts beats."""

    rank: int
    node: str
    step: int | None
    n: int
    phase: str = ""
    moved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stacks:
    """What the latest sample of stacks says, all ranks together. `taken` counts samples, so that each is used once.

    `moved`: whether any rank's main stack differs from the sample before; None where that is not known for every rank.
    `waiting`: what every rank waits in: "collective", "device" (for its accelerator), "" = not all of them wait so, or it is not known.
    `ended`: the ranks of a node, and not of all nodes, have ended by themselves. `elsewhere`: ranks that do not wait where most do. `ranks`: of how many it tells; one rank is met at the same place by chance more easily than
    many. `pairs`: how many comparisons it adds.
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
    """Whether any process of the start did something since the look before, on any node; None = not known.

    `cpu`: more than a twentieth of a core for a rank, but for ranks that wait in a collective while others do not: they spin there, and say
    nothing about those they wait for. `io`: more than 64 KiB/s went to or from files or the network (what a log or a tracker of experiments
    writes is less), or a process waits in the kernel for them (state D). `gpu`: a device moves memory. `spins`: none does, and those of all
    ranks are fully used, as by a kernel that waits in a collective. `stuck`: a process waits in the kernel (state D) now.
    """

    cpu: bool | None = None
    io: bool | None = None
    gpu: bool | None = None
    spins: bool = False
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """One look. `life` names the start (and what restarted within it): another text begins anew.

    `steps_seen`, `growth`, `median_step_s`, `phase` are those of `WatchReport`; `readable` = all logs were read to their ends;
    `running` = Slurm calls the job running, not suspended.
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
    """What movement was seen. `kind`: "beats", "steps", "output" or "" = none yet. Times in watched seconds."""

    kind: str = ""
    count: int = 0
    at_s: float = 0.0
    gaps: tuple[float, ...] = ()  # the last few between movements, none of an announced phase
    longest_s: float = 0.0
    usual_s: float = 0.0  # twice the median gap, or somewhat more than nearly all of them
    step_s: float | None = None  # the median step


@dataclass(frozen=True, slots=True)
class _Witness:
    """What was seen besides movement since the last one. Times in watched seconds."""

    taken: int = 0
    samples: int = 0
    sampled_s: float = NEVER
    ranks: int = 1  # of the last sample
    frozen: int = 0  # pairs of samples in a row in which nobody moved
    waiting: str = ""
    steady: int = 0  # samples in a row that waited alike
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
    """The memory. Made empty; `observe` returns the next one."""

    life: str = ""
    seen_s: float | None = None
    counts: bool = False  # whether time since the last look counts
    watched_s: float = 0.0
    moves: Moves = field(default_factory=Moves)
    steps_seen: int = 0
    beats: int = 0
    growth: float | None = None
    output_s: float = 0.0
    phase: str = ""
    phase_s: float = 0.0
    learnt: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # phase -> its longest
    before_s: float = 0.0  # the longest silence that earlier starts came back from
    device_moves: bool = False  # its devices were once seen to move memory
    ranks: tuple[Rank, ...] = ()
    witness: _Witness = field(default_factory=_Witness)

    def at(self, now_s: float) -> float:
        """The watched time now."""
        if self.seen_s is None or not self.counts:
            return self.watched_s
        return self.watched_s + min(max(0.0, now_s - self.seen_s), LOOK_S_MAX)


def observe(history: History, sight: Sight, now_s: float) -> History:
    """The memory after one more look. `now_s`: any clock that does not jump, the same at all looks."""
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
        # What a log held before it was read for the first time is no movement now.
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


def _beats(sight: Sight) -> int:
    return sum(rank.n for rank in sight.ranks)


def _output(history: History, sight: Sight) -> History:
    if sight.growth == history.growth:
        return history
    return replace(history, growth=sight.growth, output_s=history.watched_s)


def _movement(history: History, sight: Sight) -> History:
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
    # Steps are movement too where there are beats: a loop that stopped calling them still trains.
    moved = (
        beaten or stepped if kind == "beats" else stepped if kind == "steps" else spoke and kind == "output"
    )
    return _moved(history, sight) if moved else history


def _stronger(history: History, kind: str, sight: Sight) -> History:
    """The first movement of a kind: what is known of a weaker kind's habit says nothing of this one's."""
    moves = Moves(kind=kind, count=1, at_s=history.watched_s, step_s=sight.median_step_s)
    return replace(history, moves=moves, phase="", witness=_forgotten(history.witness))


def _moved(history: History, sight: Sight) -> History:
    before = history.moves
    gap_s = history.watched_s - before.at_s
    learnt, gaps, longest_s = history.learnt, before.gaps, before.longest_s
    if history.phase:
        learnt = MappingProxyType({**learnt, history.phase: max(gap_s, learnt.get(history.phase, 0.0))})
    elif before.count:
        gaps = (*gaps[-GAPS_KEPT + 1 :], gap_s)
        # What compiling took before the habit was known is none of it.
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


def _phase(history: History, sight: Sight) -> History:
    """The phase that was announced last and is not over: by the log, or by any rank's beat."""
    training = [rank for rank in sight.ranks if rank.phase != DONE]
    told = next((rank.phase for rank in training if rank.phase not in STEPPING), "") or sight.phase
    if sight.ranks and not training:
        told = DONE
    if not told or told == history.phase:
        return history
    return replace(history, phase=told, phase_s=history.watched_s)


def _forgotten(witness: _Witness) -> _Witness:
    return _Witness(taken=witness.taken)


def _witnesses(witness: _Witness, sight: Sight, watched_s: float) -> _Witness:
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
