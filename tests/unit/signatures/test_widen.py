"""What the sieve looks for in a pattern's place: wider, never narrower. (pure)"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.prefilter import widened

_PATTERNS = sorted({one.pattern for one in catalog.load().signatures})


def _finds(pattern: str, line: bytes) -> bool:
    return re.search(widened(pattern).encode(), line, re.MULTILINE) is not None


def test_every_example_is_found_by_the_wider_expression() -> None:
    """What a signature matches, the sieve does not miss."""
    missed = [
        (one.id, text)
        for one in catalog.load().signatures
        for text in one.examples
        if not _finds(one.pattern, text.encode())
    ]

    assert [] == missed


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_a_pattern_matches_its_expression_matches(data: st.DataObject) -> None:
    """For text made from the patterns themselves, in the midst of other text."""
    pattern = data.draw(st.sampled_from(_PATTERNS))
    made = data.draw(st.from_regex(re.compile(pattern.encode())))
    for line in re.split(rb"[\r\n]", made):
        if re.search(pattern.encode(), line):
            assert _finds(pattern, line), (pattern, line)


_PIECES = ["a", "bc", "longer word", "another", r"\d+", ".{0,60}", "(?:x|longest of all)", r"(?:y.*other words)?", "^", r"\b", r"\d{2,}", "x?", r"(?:a|bc\d+)", "(?:1?|b)"]  # fmt: skip


@given(
    st.lists(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=5), min_size=1, max_size=3), st.data()
)
def test_gaps_choices_and_ends_are_cut_safely(branches: list[list[str]], data: st.DataObject) -> None:
    """The same for any order of what patterns are made of."""
    pattern = "|".join(map("".join, branches))
    compiled = re.compile(pattern.encode())
    made = data.draw(st.text(alphabet="abcxy 1longerwdthfsu", max_size=20).map(str.encode)) + b" ".join(
        data.draw(st.lists(st.sampled_from([b"a", b"bc", b"longer word", b"another", b"12", b"x", b"longest of all"])))
    )  # fmt: skip
    if compiled.search(made):
        assert _finds(pattern, made), (pattern, made)


@pytest.mark.parametrize(
    ("pattern", "cheap"),
    [
        (r"^\d{1,2}, .*Unknown Error", "Unknown Error"),
        (r"(?:host (?P<host>\w+) kernel: .{0,60})?Machine check", "Machine check"),
        (r"short.{0,20}text", "short.*text"),
        (r"(?i:LOST carrier) on (?P<peer>\S+)", r"(?i:LOST carrier) on [\S]"),
        (r"(?:host (?P<host>\w+) kernel: .{0,60})?\bGPU \d\d*: 13,", r"\x3a 13\x2c"),
        (r"\d+ kept \d{2,}", r" kept [\d]{2}"),
        (r"lost(?: \d+|, all)(?: of them)?", r"lost(?: [\d]|\x2c all)"),
    ],
)
def test_a_pattern_begins_with_what_is_rare(pattern: str, cheap: str) -> None:
    """What stands in front of the first rare words is left to `re`, and so is what may be missing at either end."""
    assert cheap == widened(pattern)
