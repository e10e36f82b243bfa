"""Lives of training runs in virtual time, as somebody who watches sees them: healthy ones and such that hang. (pure)

How it thinks. A life is a row of segments: set-up, stretches of steps, and between them what keeps healthy runs silent. Each segment says what its
ranks would show to whoever looks closely (`Inside`): whether two samples of stacks are alike, what all wait in, what is used. What a watcher
sees of it is drawn for each life: how often a line is printed, whether the log is buffered, whether anything announces a phase, whether there
are beats, stacks, activity. Nothing here knows how a hang is judged.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from random import Random

from ftrun.supervisor.telemetry.liveness import Activity, LivenessSample, Rank, Stacks

__all__ = ["HANGS", "Inside", "Life", "Viewer", "draw"]

FINEST_S = 2.0  # quicker steps are shown together: nobody looks more often
PRINTED_WITHIN_S = 1500.0  # even the most silent log shows a step in this time


@dataclass(frozen=True, slots=True)
class Inside:
    """What goes on in a segment. `alike`: the chance that two samples of all ranks' stacks are the same."""

    name: str
    alike: float
    waiting: str = ""
    waits: float = 1.0  # the chance that all are found waiting at a sample
    cpu: bool = True
    io: bool = False
    gpu: bool = False
    spins: bool = False  # accelerators are fully used, and move no memory


@dataclass(frozen=True, slots=True)
class Segment:
    """So many seconds of silence or of steps. `phase`: what the program would announce."""

    begins_s: float
    ends_s: float
    inside: Inside
    phase: str = ""


@dataclass(slots=True)
class Life:
    """One run. `steps` are the times at which steps end, `prints` those at which lines with a step become visible."""

    seed: int
    step_s: float
    segments: list[Segment] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    prints: list[float] = field(default_factory=list)
    chatter: list[float] = field(default_factory=list)  # lines without a step
    alarms: list[float] = field(default_factory=list)  # lines that look fatal
    blind: list[tuple[float, float]] = field(default_factory=list)  # the log is away
    suspended: list[tuple[float, float]] = field(default_factory=list)
    asleep: list[tuple[float, float]] = field(default_factory=list)  # nobody looks
    hang_s: float | None = None
    every_s: float = 0.0  # a line with a step
    beats: bool = False
    stacks: bool = False
    knows_cpu: bool = False
    knows_gpu: bool = False
    announces: bool = False
    ends_s: float = 0.0
    ranks: int = 1


def _between(chance: Random, low: float, high: float) -> float:
    """A number of any size between the two: as often small as large."""
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def _evaluation(chance: Random, ranks: int) -> Inside:
    """What an evaluation looks like from within."""
    kind = chance.choice(("device", "device", "rank 0", "python", "talks", "native"))
    same = chance.uniform(0.3, 0.97) ** min(ranks, 8)
    if kind == "device":  # all sit in a call that waits for the accelerator, which works
        waiting = chance.choice(("device", ""))
        return Inside("evaluation", same, waiting, 0.9, io=chance.random() < 0.8, gpu=True)
    if kind == "rank 0":  # the others wait for it in a barrier
        return Inside("evaluation on rank 0", chance.uniform(0.0, 0.3), gpu=True)
    if kind == "talks":  # half of the time in collectives
        return Inside("evaluation with collectives", 0.5 ** min(ranks, 8), "collective", 0.5, gpu=True)
    if kind == "native":  # one long call into C that needs the processor only
        return Inside("native evaluation", 1.0)
    return Inside("python", 0.02)


_TRAINS = Inside("training", 0.1, gpu=True, io=True)


class _Maker:
    def __init__(self, seed: int) -> None:
        chance = self.chance = Random(seed)
        self.ranks = chance.choice((1, 2, 4, 8, 8, 16, 64, 512))
        life = self.life = Life(seed, step_s=_between(chance, 0.05, 40.0), ranks=self.ranks)
        life.beats = chance.random() < 0.35
        life.stacks = chance.random() < 0.7
        life.knows_cpu = chance.random() < 0.8
        life.knows_gpu = life.knows_cpu and chance.random() < 0.5
        life.announces = chance.random() < 0.6
        self.growth = chance.choice((1.0, 1.0, 1.0, 2.0, 6.0))
        self.jitter = chance.choice((0.02, 0.1, 0.4))
        self.now_s = 0.0
        self.length_s = _between(chance, 900.0, 9000.0)

    def silence(self, length_s: float, inside: Inside, phase: str = "") -> None:
        self.life.segments.append(Segment(self.now_s, self.now_s + length_s, inside, phase))
        self.now_s += length_s

    def train(self, length_s: float) -> None:
        life, chance, began_s = self.life, self.chance, self.now_s
        end_s = began_s + length_s
        while self.now_s < end_s:
            step_s = max(life.step_s, FINEST_S) * chance.lognormvariate(0.0, self.jitter)
            step_s *= self.growth ** min(1.0, self.now_s / self.length_s)
            if chance.random() < 0.002:  # a straggler, a retransmission, a collection of garbage
                step_s *= _between(chance, 2.0, 9.0)
            self.now_s += step_s
            life.steps.append(self.now_s)
        life.segments.append(Segment(began_s, self.now_s, _TRAINS))

    def set_up(self) -> None:
        chance = self.chance
        self.silence(_between(chance, 5.0, 120.0), Inside("start", 0.2, io=True))
        self.silence(_between(chance, 1.0, 600.0), Inside("data set", 0.3, io=True), "data")
        inside = chance.choice((Inside("compiling", 1.0), Inside("tracing", 0.05)))
        self.silence(_between(chance, 1.0, 900.0), inside, "compile")
        if chance.random() < 0.3:  # the second step is compiled anew
            self.train(life_step(self.life))
            self.silence(_between(chance, 5.0, 500.0), inside, "compile")

    def something(self) -> None:
        """One of the things for which healthy runs are silent."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.4:
            self.silence(self.evaluation_s * chance.uniform(0.8, 1.3), self.evaluation, "eval")
        elif kind < 0.75:
            inside = Inside("checkpoint", chance.uniform(0.1, 1.0), io=True)
            slow = 6.0 if chance.random() < 0.1 else 1.0
            self.silence(self.checkpoint_s * chance.uniform(0.7, 1.5) * slow, inside, "checkpoint")
        elif kind < 0.83:
            stuck = Inside("file system stands still", 0.98, cpu=False, io=True)
            self.silence(_between(chance, 5.0, 1200.0), stuck)
        elif kind < 0.9:
            waits = Inside("waits for data", 0.97, cpu=False, io=False)
            self.silence(_between(chance, 5.0, 240.0), waits)
        elif kind < 0.94:
            self.silence(_between(chance, 2.0, 290.0), Inside("recompiling", 1.0), "compile")
        elif kind < 0.97:
            self.silence(_between(chance, 1.0, 40.0), Inside("flap of a line", 1.0, "collective", spins=True))
        else:
            self.silence(_between(chance, 10.0, 1200.0), Inside("work in python", 0.02))

    def made(self) -> Life:
        """The whole life: set-up, then steps with something between them."""
        chance, life = self.chance, self.life
        self.evaluation = _evaluation(chance, self.ranks)
        longest_s = 3600.0 if self.evaluation.alike < 1.0 else 1500.0
        self.evaluation_s = _between(chance, 5.0, longest_s)
        self.checkpoint_s = _between(chance, 1.0, 400.0)
        every_s = _between(chance, 60.0, 3000.0)
        self.set_up()
        while self.now_s < self.length_s:
            self.train(every_s * chance.uniform(0.9, 1.1))
            self.something()
        self.train(30.0 * life.step_s)
        life.ends_s = self.now_s
        self.show()
        return life

    def show(self) -> None:
        """What becomes visible: lines every so many steps, perhaps held back by a buffer; other lines; a log that is away."""
        chance, life = self.chance, self.life
        every = chance.choice((1, 1, 10, 50, 100, 1000))
        held = chance.choice((1, 1, 1, 5, 40))
        while every * held * life.step_s * self.growth > PRINTED_WITHIN_S and (every > 1 or held > 1):
            every, held = max(1, every // 2), max(1, held // 2)
        life.every_s = every * held * life.step_s * self.growth
        life.prints = life.steps[:: max(1, round(every * held * life.step_s / max(life.step_s, FINEST_S)))]
        life.announces = life.announces and held == 1
        if chance.random() < 0.2:
            life.chatter = _row(chance.uniform(10.0, 300.0), self.now_s)
        if chance.random() < 0.2:
            life.blind = [_span(chance, self.now_s, 5.0, 900.0) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.1:
            life.suspended = [_span(chance, self.now_s, 30.0, 3600.0)]
            life.steps = _pushed(life.steps, life.suspended[0])
            life.prints = _pushed(life.prints, life.suspended[0])
            life.segments = _longer(life.segments, life.suspended[0])
        if chance.random() < 0.1:
            life.asleep = [_span(chance, self.now_s, 30.0, 3600.0)]


def life_step(life: Life) -> float:
    """A step and a half: the first step is over, the second one is not."""
    return 0.5 * life.step_s


def _row(every_s: float, end_s: float) -> list[float]:
    return [every_s * place for place in range(1, int(end_s / every_s))]


def _span(chance: Random, end_s: float, low_s: float, high_s: float) -> tuple[float, float]:
    begins_s = chance.uniform(0.0, end_s)
    return begins_s, begins_s + _between(chance, low_s, high_s)


def _pushed(times: list[float], span: tuple[float, float]) -> list[float]:
    begins_s, ends_s = span
    return [one if one < begins_s else one + ends_s - begins_s for one in times]


def _longer(segments: list[Segment], span: tuple[float, float]) -> list[Segment]:
    begins_s, length_s = span[0], span[1] - span[0]
    return [
        Segment(
            one.begins_s + (length_s if one.begins_s >= begins_s else 0.0),
            one.ends_s + (length_s if one.ends_s >= begins_s else 0.0),
            one.inside,
            one.phase,
        )
        for one in segments
    ]


HANGS = {
    "collective, found in the stacks": Inside("hang", 1.0, "collective", cpu=True, spins=True),
    "accelerator that does nothing": Inside("hang", 1.0, "device", cpu=True),
    "one stands still, and the others wait; or a dead lock": Inside("hang", 1.0, "", cpu=False),
    "spins, and no stack says where": Inside("hang", 1.0, "", cpu=True, spins=True),
}


def draw(seed: int, hang: Inside | None = None, *, alarms: bool = False) -> Life:
    """A life. With `hang` it stands still for good at some moment after its set-up, while it makes steps.

    With `alarms` it prints lines that look fatal: a healthy one at any moment and often before something long, one that hangs as it does so.
    """
    maker = _Maker(seed)
    life = maker.made()
    if hang is None:
        if alarms:
            chance = Random(seed + 3)
            life.alarms = [chance.uniform(0.0, life.ends_s) for _ in range(chance.randint(1, 8))]
            long = [one for one in life.segments if one.inside is not _TRAINS]
            life.alarms += [one.begins_s + chance.uniform(0.0, 2.0) for one in long if chance.random() < 0.7]
            life.alarms.sort()
        return life
    stretches = [
        one for one in life.segments if one.inside is _TRAINS and one.ends_s - one.begins_s > 20 * life.step_s
    ]
    where = maker.chance.choice(stretches[len(stretches) // 3 :])
    at_s = maker.chance.uniform(where.begins_s + 0.5 * (where.ends_s - where.begins_s), where.ends_s)
    life.steps = [one for one in life.steps if one < at_s]
    life.prints = [one for one in life.prints if one < at_s]
    life.segments = [one for one in life.segments if one.begins_s < at_s and one is not where]
    life.segments += [Segment(where.begins_s, at_s, _TRAINS), Segment(at_s, at_s + 1e6, hang)]
    life.blind = [one for one in life.blind if one[1] < at_s]
    life.suspended = [one for one in life.suspended if one[1] < at_s]
    life.asleep = [one for one in life.asleep if one[1] < at_s]
    life.hang_s = at_s
    life.alarms = [at_s + 1.0] if alarms else []
    life.ends_s = at_s + 20_000.0
    return life


class Viewer:
    """Looks at a life as an agent would. `look` gives what is seen; a sample of stacks that was asked for comes some seconds later.

    `afar`: as a supervisor on a login node would. Its network file system shows it old files now and then, stacks come later or (where no step can
    be had) not at all, and it may begin anew: `anew` are the times at which it has forgotten all.
    """

    def __init__(self, life: Life, *, afar: bool = False) -> None:
        self.life = life
        self._afar = afar
        self._stale: list[tuple[float, float]] = []
        self.anew: list[float] = []
        self._has_steps = True
        self.sampled = 0
        self.asked = 0  # those that somebody had to take
        self._chance = Random(life.seed + 1)
        self._starts = [one.begins_s for one in life.segments]
        self._waits = True
        self._due_s: float | None = None
        self._last_s = -1e9  # of the last sample
        self._lag_s = self._chance.uniform(4.0, 10.0)
        if afar:
            self._draw_afar(Random(life.seed + 2))

    def _draw_afar(self, chance: Random) -> None:
        end_s = self.life.hang_s or self.life.ends_s
        self._lag_s = chance.uniform(5.0, 25.0)
        self._has_steps = chance.random() < 0.7
        if chance.random() < 0.7:
            self._stale = sorted(_span(chance, end_s, 3.0, 120.0) for _ in range(chance.randint(1, 40)))
        if chance.random() < 0.3:
            self.anew = sorted(chance.uniform(0.0, end_s) for _ in range(chance.randint(1, 3)))

    def _shown_s(self, now_s: float) -> float:
        """Up to when the files that are seen now were written."""
        return min((low for low, high in self._stale if low <= now_s < high), default=now_s)

    def ask(self, now_s: float) -> None:
        """Stacks are wanted."""
        if self._due_s is None and not self.life.beats:
            self._due_s = now_s + self._lag_s

    @property
    def awaited(self) -> bool:
        """Whether a sample is under way."""
        return self._due_s is not None

    def within(self, now_s: float) -> Segment:
        """What goes on."""
        return self.life.segments[max(0, bisect.bisect_right(self._starts, now_s) - 1)]

    def asleep(self, now_s: float) -> bool:
        """Nobody looks: the watcher itself was stopped."""
        return _in(self.life.asleep, now_s)

    def alarmed(self, now_s: float) -> bool:
        """A line that looks fatal is seen, and no line with a step after it."""
        life, file_s = self.life, self._shown_s(now_s)
        at = bisect.bisect_right(life.alarms, file_s)
        shown = bisect.bisect_right(life.prints, file_s)
        return bool(at) and (not shown or life.prints[shown - 1] <= life.alarms[at - 1])

    def look(self, now_s: float) -> LivenessSample:
        """What is seen now."""
        life, file_s = self.life, self._shown_s(now_s)
        segment = self.within(now_s)
        shown = bisect.bisect_right(life.prints, file_s)
        seen_s = life.prints[shown - 1] if shown else 0.0
        said = [
            times[place - 1]
            for times in (life.chatter, life.alarms)
            if (place := bisect.bisect_right(times, file_s))
        ]
        made = bisect.bisect_right(life.steps, file_s)
        phase = self.within(file_s).phase if life.announces else ""
        ranks: tuple[Rank, ...] = ()
        if life.beats and made:
            ranks = (Rank(0, "n1", made, made, phase, now_s),)
        stacks = self._sample(now_s, segment, made)
        return LivenessSample(
            life="0.1",
            steps_seen=shown,
            growth=max([seen_s, *said]),
            median_step_s=life.step_s if shown > 2 else None,
            phase=phase,
            readable=not _in(life.blind, now_s),
            # Slurm is asked now and then: a suspension is noticed late.
            running=not _in([(low + 15.0, high) for low, high in life.suspended], now_s),
            ranks=ranks,
            stacks=stacks,
            # What is used is told by whoever takes the stacks, and by ranks that stand still.
            activity=self._used(now_s, segment) if stacks is not None else None,
        )

    def _sample(self, now_s: float, segment: Segment, made: int) -> Stacks | None:
        life = self.life
        last_s = life.steps[made - 1] if made else 0.0
        if life.beats:
            due = made and self._shown_s(now_s) == now_s and now_s - max(last_s, self._last_s) >= 6.0
        else:
            due = self._due_s is not None and now_s >= self._due_s
        if not due:
            return None
        self._due_s = None
        before_s, self._last_s = self._last_s, now_s
        self.sampled += 1
        self.asked += not life.beats
        inside = segment.inside
        alone = inside.name == "evaluation on rank 0"  # the others wait for it
        if not (life.beats or (life.stacks and self._has_steps)):  # the kernel alone tells who waits
            return Stacks(self.sampled, peers="idle" if alone else "")
        stopped = _in(life.suspended, now_s)
        pairs = 1 if life.beats else 2  # whoever takes stacks looks twice
        moved = before_s < segment.begins_s or (not stopped and self._chance.random() >= inside.alike**pairs)
        if moved:  # else it waits where it waited
            self._waits = self._chance.random() < inside.waits
        waits = self._waits
        waiting = inside.waiting if waits else ""
        return Stacks(
            self.sampled,
            moved if before_s > -1e8 else None,
            waiting,
            ranks=life.ranks,
            pairs=pairs,
            peers="collective" if alone else "",
        )

    def _used(self, now_s: float, segment: Segment) -> Activity | None:
        life = self.life
        if not life.knows_cpu:
            return None
        if _in(life.suspended, now_s):
            return Activity(cpu=False, io=False, gpu=False if life.knows_gpu else None)
        inside = segment.inside
        known = life.knows_gpu
        return Activity(inside.cpu, inside.io, inside.gpu if known else None, spins=known and inside.spins)


def _in(spans: list[tuple[float, float]], now_s: float) -> bool:
    return any(low <= now_s < high for low, high in spans)
