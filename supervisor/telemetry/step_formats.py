"""The lines in which training frameworks print step, loss and checkpoint. (pure)

A table of forms; the first form that matches a line wins. Each form names what stands around its number,
because logs are full of other numbers: an epoch, a percentage, a port, a time, a Slurm step. Separate
counters (evaluation, warm-up, sampling, micro steps) are no progress of the run.

No form depends on which digit stands at a place, so two lines that differ only in their digits are read
alike. Where the numbers are is found once for each such layout and cached; a log of a million steps then
costs little more than cutting out its numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from ftrun.slurm.records import dataclass

# A line without any of these is skipped: finding bytes is much faster than forms. Each word costs a pass over
# all text, so a form whose lines always have a loss or an epoch needs no word of its own.
WORDS = (b"tep", b"iter", b"Iter", b"poch", b"%|", b"batch=", b"oss", b"heckpoint", b"ckpt", b"aved")

GLOBAL, STEP, ITERATION, BAR, LOCAL = 5, 4, 3, 2, 1


@dataclass(frozen=True, slots=True)
class StepCount:
    """A counter in a line. `rank` orders counters by strength. `restarts`: it may begin anew with each
    epoch.
    """

    rank: tuple[int, int]
    step: int
    total: int | None
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint in a line. `done` is False where saving has only begun."""

    step: int | None
    path: str
    done: bool


@dataclass(frozen=True, slots=True)
class _Form:
    word: bytes  # in every line of this form
    strength: int
    pattern: re.Pattern[bytes]
    epoch_base: int | None = None  # the number of the first epoch, where the form counts within epochs
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a line has, and where: (start, end) of each number of its form, and of its loss."""

    form: _Form | None
    places: Mapping[str, tuple[int, int]]
    loss: tuple[int, int] | None
    overflows: bool  # a gradient's norm is not finite, and the loss is
    saves: bool


_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_SEP = rb"""(?:['"]?\s*[:=]\s*|\s+|=)['"]?\[?\s*"""
_START = rb"""(?:^|[\s\[({|,;>"'/-])"""
_END = rb"(?![\d%]|\.\d|:\d\d|/s|\s*%|\s*(?:ms|sec|s|seconds|minutes|hours)\b)"
_NUMBER = rb"(?P<step>\d{1,12})(?:\s*(?:/|of)\s*(?P<total>\d{1,12}))?" + _END


def _form(
    word: bytes, strength: int, pattern: bytes, *, epoch_base: int | None = None, restarts: bool = False
) -> _Form:
    return _Form(word, strength, re.compile(pattern), epoch_base, restarts)


_EPOCH_SHARE = rb"\s*(?P<epoch>\d{1,12})\s*\[\s*(?P<step>\d{1,12})/(?P<total>\d{1,12}) \(\s*\d+%\)\]"
_EPOCH_PLACE = rb"\[(?P<epoch>\d{1,12})\]\s*\[\s*(?P<step>\d{1,12})/(?P<total>\d{1,12})\]"
# At the line's beginning (after the label of srun -l or a rank), or behind a bar without its carriage return.
_BAR_NAME = (
    rb"(?:^(?:\[[^\]]*\]:?\s*|\d+:)?\s*|\]\s*)"
    rb"(?:(?:[Tt]rain(?:ing)?|[Ss]teps?|[Ii]ter(?:ation)?s?|[Pp]rogress)[^:|\[\]]{0,20}:\s*)?"
)
_BAR = rb"\d{1,3}%\|[^|\r\n]*\|\s*(?P<step>\d{1,12})/(?P<total>\d{1,12}) \["
_FORMS = (
    # Megatron-LM, GPT-NeoX:  iteration      120/  500000 | consumed samples: ...
    _form(b"teration", GLOBAL, rb"\b[Ii]teration:?\s+(?P<step>\d{1,12})\s*/\s*(?P<total>\d{1,12})\b(?!\.\d)"),
    # DeepSpeed: step=120, skipped=0, lr=[...]
    _form(b", skipped=", GLOBAL, rb"\bstep=(?P<step>\d{1,12}), skipped="),
    # MindFormers: { Epoch:[  1/  2], step:[   20/  100], loss:[2.3], ...
    _form(
        b"step:[",
        GLOBAL,
        rb"Epoch:\s*\[\s*(?P<epoch>\d{1,12})\s*/\s*(?P<epochs>\d{1,12})\s*\],?\s*step:\[\s*(?P<step>\d{1,12})\s*/\s*(?P<total>\d{1,12})\s*\]",
        epoch_base=1,
    ),
    # NeMo, DeepSpeed, PaddleNLP, verl: global_step=120, "global step 120 / 1000"; fairseq: num_updates=120
    _form(b"global", GLOBAL, rb"(?<![A-Za-z0-9_])global[_ ]?step" + _SEP + _NUMBER),
    _form(b"num_updates", GLOBAL, rb"(?<![A-Za-z0-9_])num_updates" + _SEP + _NUMBER),
    # MaxText: completed step: 120, seconds: 0.5, loss: 2.3
    _form(b"completed step", GLOBAL, rb"\bcompleted step" + _SEP + _NUMBER),
    # Most hand-written loops: step 120 loss 2.3, Step: 120, [Step 1/100], {'step': 120, ...}
    _form(
        b"tep",
        STEP,
        _START + rb"(?:[Tt]rain(?:ing)?[_ /]|opt(?:imizer)?[_ ])?[Ss]tep" + _SEP + _NUMBER,
        restarts=True,
    ),
    # Composer: [batch=20/100]
    _form(b"batch=", STEP, rb"\[batch=(?P<step>\d{1,12})/(?P<total>\d{1,12})\]"),
    # nanoGPT, nanotron, detectron2, MMEngine: iter 120: loss, iteration: 10, Iter(train) [  50/1000]
    _form(b"Iter(train)", ITERATION, rb"\bIter\(train\)\s*\[\s*(?P<step>\d{1,12})/(?P<total>\d{1,12})\]"),
    _form(b"ter", ITERATION, _START + rb"[Ii]ter(?:ation)?" + _SEP + _NUMBER, restarts=True),
    # Lightning: Epoch 1:  45%|####| 450/1000 [00:10<00:12, ...]
    _form(b"%|", BAR, rb"\bEpoch (?P<epoch>\d{1,12})(?:/(?P<epochs>\d{1,12}))?:\s+" + _BAR, epoch_base=0),
    # tqdm, without a name or with one that means training; other names are loading, evaluating, downloading
    _form(b"%|", BAR, _BAR_NAME + _BAR, restarts=True),
    # Keras:  45/100 [====>......] - loss: 2.3, or with a bar of heavy lines
    _form(
        b"/", BAR, rb"^\s*(?P<step>\d{1,12})/(?P<total>\d{1,12})\s+(?:\[[=>.]|\xe2\x94\x81)", restarts=True
    ),
    # PyTorch's examples: Train Epoch: 1 [640/60000 (1%)]; timm: Train: 0 [  50/1251 (  4%)]
    _form(b"Train Epoch:", LOCAL, rb"Train Epoch:" + _EPOCH_SHARE, epoch_base=1),
    _form(b"Train:", LOCAL, rb"Train:" + _EPOCH_SHARE, epoch_base=0),
    # Image classification: Epoch: [0][  10/5005]; MMEngine: Epoch(train)  [1][  50/1000]
    _form(b"Epoch:", LOCAL, rb"Epoch: ?" + _EPOCH_PLACE, epoch_base=0),
    _form(b"Epoch(train)", LOCAL, rb"Epoch\(train\)\s*" + _EPOCH_PLACE, epoch_base=1),
    # MMCV prints Epoch [3][50/1220]
    _form(b"Epoch [", LOCAL, rb"Epoch " + _EPOCH_PLACE, epoch_base=1),
    # MXNet: Epoch[0] Batch [20-40]
    _form(b"] Batch [", LOCAL, rb"Epoch\[(?P<epoch>\d{1,12})\] Batch \[(?:\d+-)?(?P<step>\d{1,12})\]"),
    # [120/1000] loss=2.3
    _form(
        b"oss",
        BAR,
        rb"\[\s*(?P<step>\d{1,12})\s*/\s*(?P<total>\d{1,12})\s*\][^\[]{0,20}?\b[Ll]oss(?:\s*[:=]\s*|\s+)\d",
        restarts=True,
    ),
)
_NOT_OURS = re.compile(
    rb"(?i)^\W*wandb:|\b(?:job|eval\w*|val\w*|test\w*|warm\W?up|micro\w*|inner|sampl\w*|denois\w*|generat\w*|decod\w*|build|last|every|"
    rb"max\w*|num\w*|skipp\w+|until|from|at|after|before|than|resum\w*|load\w*|restor\w*)[\s_/:-]*(?:training |global[_ ])?$"
)
_RESUMES = re.compile(rb"(?i)\b(?:resum|load|restor|skipping)\w*\b")
_LOSS = re.compile(
    rb"""(?<![A-Za-z0-9_])(?:lm |train[_ /]|training[_ /]|reduced_train_|total_)?[Ll]oss['"]?(?:\s*[:=]\s*|\s+)['"]?\[?\s*(?P<loss>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"""
)
# A loss, or a gradient's norm, that is not finite.
_SICK = re.compile(
    rb"""(?i)(?<![a-z0-9])(?:loss|grad(?:ient)?[_ ]norm)['"]?(?:\s*[:=]\s*|\s+)['"]?\[?\s*(?P<loss>nan|[-+]?inf)(?![a-z0-9])"""
)
# Words before a loss that is not the training's: of an empty validation, the best one so far, a limit.
_LOSS_OF_ELSE = re.compile(
    rb"(?i)(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test|dev|best|lowest|smallest|min|max|prev|previous|stop|target|initial)[\s_/:.-]*$"
)
_LOSS_OF_ALL = re.compile(rb"(?:^|[^A-Za-z0-9_/-])(?:lm |train[_ /]|training[_ /]|reduced_train_|total_)?$")
_LEAVES_OUT = re.compile(rb"(?i)\bskip(?:s|ped|ping)?\b(?! iter|\s*[:=])")
_SAVE_WORDS = (b"heckpoint", b"ckpt", b"aved", b"global_step")
_SAVE = re.compile(
    rb"(?i)\bsav(?:ed|ing|e)\b|\bcheckpoint\b.*\b(?:is ready|complete[d]?|finalized|done|written)\b|\bwrote\b"
)
_SAVED = re.compile(
    rb"(?i)\bsaved\b|\b(?:is ready|complete[d]?|finalized|done|written|wrote)\b|\bfinished async\w* save\b"
)
_CHECKPOINT = re.compile(rb"(?i)checkpoint|ckpt|global_?step\d|\bmodel(?:s| state| weights)?\b|save finalize")
_FAILED = re.compile(
    rb"(?i)\b(?:fail\w*|error|unable|cannot|could not|couldn't|not saved|load\w*|delet\w*|remov\w*|preserv\w*|resum\w*|no save|will|interval|every)\b"
)
_PATH = re.compile(
    rb"""(?:^|[\s'"=(])(?P<path>\.{0,2}/[^\s'",;)\]]+|[\w.-]+/[^\s'",;)\]]+|[\w.-]+\.(?:pt|pth|ckpt|bin|safetensors|npz|h5)\b)"""
)
_SAVED_STEP = re.compile(
    rb"(?i)(?<![a-z])(?:iteration|global[_ ]?step|step|iter|checkpoints for)[\s=:_-]*\[?(\d{1,12})\b"
)
_STEP_IN_PATH = re.compile(
    rb"(?i)(?:(?:step|iter(?:ation)?|checkpoint|ckpt|epoch\W?\d+\W*)[-_=]?0*|/0*)(\d{1,12})(?=[./_-]|$)"
)


def is_candidate(line: bytes) -> bool:
    """Whether the line has any of `WORDS`."""
    return any(word in line for word in WORDS)


def parse_line(line: bytes) -> tuple[StepCount | None, float | None, SavedCheckpoint | None]:
    """What the line says of the run: (step, loss, checkpoint). The loss is not finite where the line says so.

    A gradient's norm that is not finite beside a finite loss says nothing: half precision skips that step,
    and otherwise the next loss shows it. Beside a loss of exactly 0 it counts: some trainers print 0 for a
    NaN.

    The step is that of the strongest counter in the line, the last one where a form occurs several times
    (bars without separators).
    """
    layout = _layout(line.translate(_ALIKE))
    return (
        None if layout.form is None else _seen(layout.form, layout.places, line),
        _lost(layout, line),
        saved_checkpoint(line) if layout.saves else None,
    )


def _lost(layout: _Layout, line: bytes) -> float | None:
    if layout.loss is None:
        return None
    loss = float(line[layout.loss[0] : layout.loss[1]])
    if layout.overflows:
        return None if loss else math.nan
    return loss


def _loss_in(line: bytes) -> tuple[tuple[int, int] | None, bool]:
    """Where the training's loss is, and whether a gradient's norm beside it is not finite."""
    known = _LOSS.search(line)
    for sick in () if _LEAVES_OUT.search(line) else _SICK.finditer(line):
        before = line[max(0, sick.start() - 40) : sick.start()]
        if _LOSS_OF_ELSE.search(before):
            continue
        of_gradient = sick.group()[:4].lower() == b"grad"
        if known is None:
            if of_gradient and b"inf" in sick["loss"].lower():
                continue
            return sick.span("loss"), False
        if of_gradient:
            return known.span("loss"), True
        if _LOSS_OF_ALL.search(before):  # one of its terms does not count where the sum is finite
            return sick.span("loss"), False
    return (None if known is None else known.span("loss")), False


@lru_cache(maxsize=4096)
def _layout(line: bytes) -> _Layout:
    """Where the numbers are in all lines that become `line` when each digit is written as 0."""
    where, overflows = _loss_in(line) if b"oss" in line else (None, False)
    saves = saved_checkpoint(line) is not None
    for form in _FORMS:
        if form.word not in line:
            continue
        found = None
        for match in form.pattern.finditer(line):
            if _ours(line, match):
                found = match
        if found is not None:
            places = {name: found.span(name) for name, number in found.groupdict().items() if number}
            return _Layout(form, places, where, overflows, saves)
    return _Layout(None, {}, where, overflows, saves)


def _ours(line: bytes, match: re.Match[bytes]) -> bool:
    """Whether the number counts training: not evaluation, not the place from which a run resumes, not a Slurm
    step.
    """
    words = line[: match.start("step")]
    begins = match.start() + (match.group()[:1] in b" \t[({|,;>\"'/-")
    return not _NOT_OURS.search(line[max(0, begins - 40) : begins]) and not _RESUMES.search(words[-60:])


def _seen(form: _Form, places: Mapping[str, tuple[int, int]], line: bytes) -> StepCount:
    groups = {name: int(line[start:end]) for name, (start, end) in places.items()}
    number, total = groups["step"], groups.get("total")
    length = total or 0
    if form.epoch_base is not None and total is not None:
        number += max(0, groups["epoch"] - form.epoch_base) * total
        if "epochs" in groups:
            total *= groups["epochs"]
        elif form.strength != GLOBAL:
            total = None  # the total of one epoch; the number of epochs is unknown
    return StepCount((form.strength, length if form.strength <= BAR else 0), number, total, form.restarts)


def saved_checkpoint(line: bytes) -> SavedCheckpoint | None:
    """The checkpoint that the line reports as saved, or as being saved."""
    if not any(word in line for word in _SAVE_WORDS):
        return None
    verb = _SAVE.search(line)
    if verb is None or not _CHECKPOINT.search(line) or _FAILED.search(line):
        return None
    path = _PATH.search(line, verb.start())
    where = path["path"].rstrip(b".:") if path is not None else b""
    named = (
        _SAVED_STEP.search(line[: path.start("path")] + line[path.end("path") :])
        if path is not None
        else _SAVED_STEP.search(line)
    )
    numbers = _STEP_IN_PATH.findall(where)
    number = int(named[1]) if named is not None else int(numbers[-1]) if numbers else None
    if number is None and not where:
        return None
    return SavedCheckpoint(number, where.decode("utf-8", "replace"), done=_SAVED.search(line) is not None)
