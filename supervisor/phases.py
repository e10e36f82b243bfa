"""The lines in which a run announces that something long begins: evaluation, compiling, preparing data. (pure)

How it thinks. Such a line buys time: silence after it is judged by the habit of that phase. So a line too many costs a late detection and a line
too few a false suspicion, and what merely looks like an announcement is one; settings, intervals and results are none. The end of a phase
is the next step; a line that tells the end of it ends it sooner. Checkpoints are read where steps are (`steps.checkpoint`).
"""

from __future__ import annotations

import re

__all__ = ["WORDS", "announced"]

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


def announced(line: bytes) -> str | None:
    """Which phase the line says begins: "eval", "compile" or "data"; "" where it says that one is over; None for any other line."""
    if not any(word in line for word in WORDS):
        return None
    if _OVER.search(line):
        return ""
    if _SETTING.search(line):
        return None
    return next((phase for phase, form in _FORMS if form.search(line)), None)
