"""How far a training run is, read from what it prints. (pure)

A line may show a counter (`step_formats`). Counters differ in strength: the framework's own global step, then
a line that says "step", one that says "iteration", a progress bar, and last a place within an epoch. One log
often has several kinds; the strongest one so far is *the* counter, and weaker ones are ignored from then on.
Among bars the one with the largest total wins, since evaluation and loading draw bars too.

- A place within an epoch becomes cumulative only where the epoch's length is known: by the line's own epoch
  number, or because a bar that had reached its total starts again. Otherwise `step` stays at its maximum.
- `step` is the highest step printed. A restart inside the log (three lines in a row that rise below the
  maximum) moves the present place back: `steps_seen` goes on counting, `step` does not.
- An epoch, a percentage, a port or a time is never a step: each form names what must stand around its number.
- A line "saving ..." becomes a checkpoint with a line "saved", or with a higher step. Where neither names a
  step (one file that is always written anew), its step is the highest printed before it.
- `phase` is what the last lines announced and no step has ended: evaluation, compiling, preparing data,
  saving. Only live text counts; in old text it is out of date. An announcement buys time, since silence after
  it is judged by the habit of that phase. A line too many costs a late detection, a line too few a false
  suspicion. A doubtful line is taken as an announcement; settings, intervals and results are not. A phase
  ends with the next step, or with a line that reports its end.

Text arrives in pieces of any size; carriage returns end lines too. Only the first `LINE_BYTES` of a line are
read.
"""

from __future__ import annotations

import copy
import math
import re
from collections import deque
from collections.abc import Iterator
from statistics import median

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.telemetry import step_formats
from ftrun.supervisor.telemetry.divergence import LossReader, LossSummary

__all__ = ["LINE_BYTES", "WORDS", "Progress", "ProgressReader", "announced_phase"]


# A line without any of these announces nothing.
WORDS = (b"eval", b"Eval", b"alidat", b"ompil", b"okeniz", b"uilding", b"reprocess")

_EVAL = re.compile(
    rb"(?i)\b(?:evaluating|validating)\b|\b(?:start|begin|run|enter|launch|do)\w*\b[^=:]{0,40}\b(?:evaluation|validation|eval)\b"
    rb"|^\W*(?:\[[^\]]*\]\W*)*(?:running )?(?:evaluation|validation|eval|validation dataloader \d+)\b[^=]{0,40}(?:\.\.\.|%\||\*{3}|$)"
)
_COMPILE = re.compile(
    rb"(?i)\b(?:re)?compiling\b|\b(?:start|begin)\w*\b[^=:]{0,30}\bcompil|\bvery slow compile\b"
)
_DATA = re.compile(
    rb"(?i)\btokenizing\b|\bpreprocessing\b|\bbuilding\b[^=:]{0,40}\b(?:ind(?:ex|ices)|datasets?|dataloaders?|vocab\w*|cache|mappings?)\b"
    rb"|\brunning tokenizer on\b"
)
_OVER = re.compile(
    rb"(?i)\b(?:finished|done|completed?|took|ended|elapsed|end of|compiled|failed|after|skip\w*|no)\b.{0,60}\b(?:eval|valid|compil|token|build|preproc)"
    rb"|\b(?:eval|valid|compil|token|build|preproc)\w*\b.{0,60}\b(?:finished|done|completed?|took|ended|elapsed|succeeded|failed)\b"
    rb"|\bcompiled\b.{0,60}\d"
    rb"|\b(?:eval|val|valid|validation|evaluation)\w*[ _/](?:loss|acc\w*|score|ppl|perplexity|results?|metrics?)\b.{0,40}\d"
)
_SETTING = re.compile(
    rb"(?i)\b(?:every|interval|strategy|will|would|enabled?|disabled?|should|frequency|iters|batch.size|if|error|warning)\b"
    rb"|\beval\w*\s*[=:]\s*(?:true|false|none)\b|\b\w*eval\w*="
)
_FORMS = (("eval", _EVAL), ("compile", _COMPILE), ("data", _DATA))


def announced_phase(line: bytes) -> str | None:
    """The phase that the line says begins: "eval", "compile" or "data"; "" where it says that one is over;
    None for any other line.
    """
    if not any(word in line for word in WORDS):
        return None
    if _OVER.search(line):
        return ""
    if _SETTING.search(line):
        return None
    return next((phase for phase, form in _FORMS if form.search(line)), None)


LINE_BYTES = 4096
TIMES_KEPT = 101  # the median covers recent steps only
RESTART_LINES = 3  # ranks may be a step or two apart; a restart is more


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training is. `offset_bytes`: where in the file the last line with a step begins.

    `step` is the highest printed, in the counter's unit: steps, or samples where nothing else is printed.
    `steps_seen` counts how often the counter moved, restarts included.
    """

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    checkpoint_step: int | None = None
    checkpoint_path: str = ""
    offset_bytes: int = 0
    steps_seen: int = 0


@dataclass(slots=True)
class _Counter:
    """The trusted counter: its rank, and where it is."""

    rank: tuple[int, int] = (0, 0)
    present: int = -1  # the last place, after restarts
    base: int = 0  # what epochs before this one add to a bar without an epoch
    low: int = -1  # the last step of a row below the present place ...
    low_rises: int = 0  # ... and how often that row rose


_TERMINAL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
# Labels without a space behind them: mpirun --tag-output, torchrun --tee, excepthooks of ranks.
_LABEL = re.compile(rb"\s*\[(?:\d+,\d+\]<std(?:out|err)>|(?:default|rank)\d+\]):")


def _without_labels(line: bytes) -> bytes:
    """The line without terminal codes, NUL and its launcher's label."""
    if b"\0" in line:
        line = line.replace(b"\0", b"")
    if b"\x1b" in line:
        line = _TERMINAL.sub(b"", line)
    label = _LABEL.match(line) if line.lstrip()[:1] == b"[" else None
    return line[label.end() :] if label is not None else line


class ProgressReader:
    """Reads one log. The same bytes give the same `progress`, however they are cut; only times come from the
    caller.
    """

    def __init__(self, *, start_offset_bytes: int = 0) -> None:
        self._offset = start_offset_bytes  # of the first byte of the pending line
        self._pending = b""  # at most LINE_BYTES of it
        self._pending_bytes = 0
        self._progress: Progress | None = None
        self._counter = _Counter()
        self._saving: tuple[int | None, str] | None = None
        self._announced = ("", -1)  # a phase, and the offset of its line
        self._advances = 0
        self._last_s: float | None = None
        self._look_s: float | None = None  # between the last two looks that saw steps
        self._look_moved = 0
        self._moved = 0
        self._times: deque[float] = deque(maxlen=TIMES_KEPT)
        self._losses = LossReader()

    @property
    def progress(self) -> Progress | None:
        """What whole lines have shown so far; None before the first step or checkpoint."""
        return self._progress

    @property
    def advances(self) -> int:
        """How often a step higher than all before was printed. A counter's first step does not count."""
        return self._advances

    @property
    def losses(self) -> LossReader:
        """What the losses printed so far say of the training."""
        return self._losses

    @property
    def announced(self) -> tuple[str, int]:
        """The phase announced last ("" = over), and where its line begins; ("", -1) before any."""
        return self._announced

    @property
    def phase(self) -> str:
        """The announced phase that goes on: "checkpoint", "eval", "compile", "data", or "" while steps are
        made.
        """
        if self._saving is not None:
            return "checkpoint"
        phase, offset_bytes = self._announced
        return phase if self._progress is None or offset_bytes > self._progress.offset_bytes else ""

    @property
    def strength(self) -> int:
        """How far the counter can be trusted: higher is better, 0 = no counter yet."""
        return self._counter.rank[0]

    @property
    def median_step_s(self) -> float | None:
        """The median seconds per step, by the caller's clock; None before the third look that saw steps."""
        return median(self._times) if len(self._times) > 1 else None

    def feed(self, chunk: bytes, now_s: float, *, behind: bool = False) -> None:
        """Read on. `now_s`: when the bytes came, by any clock. `behind`: they are old, so no times are
        learnt.
        """
        self._moved = 0
        text = chunk.replace(b"\r", b"\n")
        first = text.find(b"\n")
        if first < 0:
            self._keep(text)
            return
        self._keep(text[:first])
        self._line(self._pending, self._offset)
        if not behind:
            self._announce(self._pending, self._offset)
        last = text.rfind(b"\n")
        body = self._offset + self._pending_bytes - first  # the offset of text[0]
        for start, line in _candidates(text, first + 1, last):
            self._telling(line, body + start)
        if not behind:
            for start, line in _last_with(WORDS, text, first + 1, last):
                self._announce(line, body + start)
        self._offset = body + last + 1
        self._pending = b""
        self._pending_bytes = 0
        self._keep(text[last + 1 :])
        self._learn(now_s, behind=behind)

    def flush(self) -> None:
        """The text is over: the last line needs no newline."""
        self._line(self._pending, self._offset)
        self._offset += self._pending_bytes
        self._pending = b""
        self._pending_bytes = 0

    def at_rest(self) -> tuple[Progress | None, int, LossSummary]:
        """(`progress`, `advances`, `losses.seen`) as if the text ended here; changes nothing."""
        if step_formats.is_candidate(self._pending):
            before, counter, losses = dict(self.__dict__), copy.copy(self._counter), self._losses.copy()
            self.flush()
            shown = self._progress, self._advances, self._losses.seen
            self.__dict__.update(before)
            self._counter, self._losses = counter, losses
            return shown
        return self._progress, self._advances, self._losses.seen

    def begin_anew(self, offset_bytes: int = 0) -> None:
        """The file was truncated or replaced: what was read stays, offsets count from here on."""
        self.flush()
        self._offset = offset_bytes
        self._announced = ("", -1)

    def _keep(self, part: bytes) -> None:
        self._pending_bytes += len(part)
        room = LINE_BYTES - len(self._pending)
        if room > 0 and part:
            self._pending += part[:room]

    def _line(self, line: bytes, offset_bytes: int) -> None:
        if step_formats.is_candidate(line):
            self._telling(line, offset_bytes)

    def _announce(self, line: bytes, offset_bytes: int) -> None:
        phase = announced_phase(_without_labels(line))
        if phase is not None:
            self._announced = (phase, offset_bytes)

    def _telling(self, line: bytes, offset_bytes: int) -> None:
        seen, said, saved = step_formats.parse_line(_without_labels(line))
        loss = said if said is not None and math.isfinite(said) else None
        if seen is not None and seen.rank >= self._counter.rank:
            self._count(seen, loss, offset_bytes)
        elif loss is not None and self._progress is not None:
            self._progress = replace(self._progress, loss=loss)
        if said is not None:
            self._losses.note(said, self._progress.step if self._progress is not None else None)
        if saved is not None:
            self._save(saved)

    def _count(self, seen: step_formats.StepCount, loss: float | None, offset_bytes: int) -> None:
        counter = self._counter
        before = self._progress or Progress()
        loss = before.loss if loss is None else loss
        step, total = seen.step, seen.total
        if seen.rank > counter.rank:
            self._counter = _Counter(rank=seen.rank, present=step)
            self._last_s = None
            # Another counter has another unit: the count so far does not apply to it.
            self._progress = replace(
                before,
                step=step,
                total=total,
                loss=loss,
                offset_bytes=offset_bytes,
                steps_seen=before.steps_seen + 1,
            )
            return
        if seen.restarts and total is not None:
            if step < counter.present - counter.base >= total:
                counter.base += total
            step += counter.base
        moved = self._move(step)
        highest = max(step, -1 if before.step is None else before.step)
        if before.step is not None and step > before.step:
            self._advances += 1
            self._settle_saving()
            before = self._progress or before
        self._progress = Progress(  # not `replace`: every step of every log runs this line
            step=highest,
            total=before.total if total is None else total,
            loss=loss,
            checkpoint_step=before.checkpoint_step,
            checkpoint_path=before.checkpoint_path,
            offset_bytes=offset_bytes,
            steps_seen=before.steps_seen + (moved > 0),
        )

    def _move(self, step: int) -> int:
        """By how many steps the counter went on with this line."""
        counter = self._counter
        moved = 0
        if step >= counter.present:
            moved = step - counter.present
            counter.present, counter.low, counter.low_rises = step, -1, 0
        else:
            counter.low_rises = counter.low_rises + 1 if step > counter.low else 1
            counter.low = step
            if counter.low_rises >= RESTART_LINES:
                counter.present, counter.low, counter.low_rises = step, -1, 0
                moved = 1
        self._moved += moved
        return moved

    def _save(self, saved: step_formats.SavedCheckpoint) -> None:
        if not saved.done:
            self._saving = (saved.step, saved.path)
            return
        step, path = saved.step, saved.path
        if self._saving is not None:
            step = self._saving[0] if step is None else step
            path = path or self._saving[1]
        self._saving = (step, path)
        self._settle_saving()

    def _settle_saving(self) -> None:
        if self._saving is None:
            return
        step, path = self._saving
        self._saving = None
        if step is None and self._progress is not None:
            step = self._progress.step
        self._progress = replace(self._progress or Progress(), checkpoint_step=step, checkpoint_path=path)

    def _learn(self, now_s: float, *, behind: bool) -> None:
        """Times are as coarse as the looks: the steps since the last look share the time between the two."""
        if behind:
            self._last_s = None
        elif self._moved and now_s == self._last_s:
            self._look_moved += self._moved
            if self._look_s is not None:
                self._times[-1] = self._look_s / self._look_moved
        elif self._moved:
            self._look_s = None if self._last_s is None else now_s - self._last_s
            self._look_moved = self._moved
            if self._look_s is not None:
                self._times.append(self._look_s / self._moved)
            self._last_s = now_s


def _candidates(text: bytes, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield (start, line) of the lines of text[first:last] that may have a step, loss or checkpoint, in
    order.
    """
    starts: set[int] = set()
    for word in step_formats.WORDS:
        at = text.find(word, first, last)
        while at >= 0:
            starts.add(max(first, text.rfind(b"\n", first, at) + 1))
            end = text.find(b"\n", at, last)
            at = text.find(word, end, last) if end >= 0 else -1
    for start in sorted(starts):
        end = text.find(b"\n", start)
        yield start, text[start : min(end, start + LINE_BYTES)]


def _last_with(words: tuple[bytes, ...], text: bytes, first: int, last: int) -> list[tuple[int, bytes]]:
    """The last line of text[first:last] with each of the words, as (start, line), in order."""
    places = {text.rfind(word, first, last) for word in words} - {-1}
    starts = sorted({max(first, text.rfind(b"\n", first, at) + 1) for at in places})
    return [(start, text[start : min(text.find(b"\n", start), start + LINE_BYTES)]) for start in starts]
