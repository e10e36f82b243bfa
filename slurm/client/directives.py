"""The words of #SBATCH lines, as sbatch reads them. (pure)

sbatch joins the words of all lines before it parses them, so an option may be on one line and its value on
the next.

`ftrun sbatch` imports this module at startup, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def directives(script: bytes) -> list[list[str]]:
    """The arguments in the script's #SBATCH lines, a list for each component of a heterogeneous job (one at
    least). Parsing ends at the first line that is neither empty nor a comment, as in sbatch. An unmatched
    quote, at which sbatch stops with its own message, ends the list.
    """
    components: list[list[str]] = [[]]
    for _, text in directive_texts(script):
        words, starts_component = directive_words(text)
        if starts_component:
            components.append([])
        components[-1].extend(words)
    return components


def directive_texts(script: bytes) -> list[tuple[int, str]]:
    """(line number from 0, text after the magic word) of each directive."""
    found: list[tuple[int, str]] = []
    start = number = 0
    while start < len(script):
        end = script.find(b"\n", start)
        line = script[start:] if end < 0 else script[start:end]
        start = len(script) if end < 0 else end + 1
        for magic in (b"#SBATCH", b"#SLURM"):
            if line.startswith(magic):
                found.append((number, line[len(magic) :].decode("utf-8", "surrogateescape")))
                break
        else:
            text = line.strip()
            if text and not text.startswith(b"#"):
                break
        number += 1
    return found


def directive_words(text: str) -> tuple[list[str], bool]:
    """The words of one directive, and whether it opens a new component."""
    rest = text.lstrip()
    first = rest.split(None, 1)[0].lower() if rest else ""
    starts_component = first in {"hetjob", "packjob"}
    return words_of(rest[len(first) :] if starts_component else rest), starts_component


def words_of(rest: str) -> list[str]:
    """The words after the magic one: quotes group, a backslash takes one character, `#` ends the line."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    index = 0
    while index < len(rest):
        char = rest[index]
        index += 1
        if char == "\\":
            if index < len(rest):
                word = (word or "") + rest[index]
            index += 1
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + char
        elif char in "\"'":
            quote = char
        elif char.isspace():
            if word is not None:
                words.append(word)
            word = None
        elif char == "#":
            break
        else:
            word = (word or "") + char
    if word is not None:
        words.append(word)
    return words


def line_of(magic: str, words: Iterable[str]) -> bytes:
    """A directive line with these words; an empty comment without any."""
    left = [_quote(word) for word in words]
    return (" ".join([magic, *left]) if left else "#").encode("utf-8", "surrogateescape")


def _quote(word: str) -> str:
    if word and not any(char.isspace() or char in "\"'\\#" for char in word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
