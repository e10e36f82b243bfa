"""What a check is, for people: read from its table entry and from the head of its file. (I/O)

How it thinks. A check is described where it is written; whoever lists the checks, in a terminal or in the documents, reads the same. The head of a
file has paragraphs that begin with a word: "How it thinks.", "Thresholds:", "Files:", "Formats:", "Checked against:".
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ftrun.hooks.findings import Check

__all__ = ["Entry", "entry"]


class Entry(NamedTuple):
    """A check in words. `fault` is its class; `thinking`, `thresholds_told`, `formats` and `checked_against` are paragraphs of the head of its file."""

    name: str
    title: str
    tier: str
    fault: str
    needs: tuple[str, ...]
    limit_s: float
    thresholds: dict[str, Any]
    thinking: str
    thresholds_told: str
    formats: str
    checked_against: str


def entry(check: Check) -> Entry:
    """The description of a check."""
    paragraphs = (sys.modules[check.judge.__module__].__doc__ or "").split("\n\n")[1:]
    texts = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return Entry(
        check.name,
        check.title,
        check.tier,
        check.fault,
        tuple(check.needs),
        check.limit_s,
        dict(check.thresholds),
        _after(texts, "How it thinks."),
        _after(texts, "Thresholds:"),
        _after(texts, "Files:") or _after(texts, "Formats:"),
        _after(texts, "Checked against:"),
    )


def _after(texts: list[str], word: str) -> str:
    """The paragraph that begins with a word, without it; "" where there is none."""
    return next((text[len(word) :].strip() for text in texts if text.startswith(word)), "")
