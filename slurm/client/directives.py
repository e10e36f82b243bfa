"""#SBATCH lines: parsed as sbatch does, and options removed from them. (pure)

sbatch joins the words of all lines before it parses them, so an option may be on one line and its value on
the next. Only lines with an option to be removed are rewritten.

`ftrun sbatch` imports this module at startup, so it imports nothing but the option table.
"""

from __future__ import annotations

from ftrun.slurm.client.options import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ftrun.slurm.client.options import Version


def directives(script: bytes) -> list[list[str]]:
    """The arguments in the script's #SBATCH lines, a list for each component of a heterogeneous job (one at
    least). Parsing ends at the first line that is neither empty nor a comment, as in sbatch. An unmatched
    quote, at which sbatch stops with its own message, ends the list.
    """
    components: list[list[str]] = [[]]
    for _, text in _directive_lines(script):
        words, starts_component = _words(text)
        if starts_component:
            components.append([])
        components[-1].extend(words)
    return components


def drop_directives(
    script: bytes,
    names: Collection[str],
    *,
    version: Version | None = None,
    extra: Mapping[str, int] | None = None,
) -> bytes:
    """The script without these options in its #SBATCH lines; every other byte stays. A line with other
    options as well is rewritten with what is left. Raises OptionError if sbatch would refuse.
    """
    lines = script.split(b"\n")
    head: list[tuple[int, list[str], bool]] = []
    for number, text in _directive_lines(script):
        words, starts_component = _words(text)
        head.append((number, words, starts_component))
    doomed = _doomed(head, names, version, extra)
    for position, (number, words, starts_component) in enumerate(head):
        if not any(place == position for place, _ in doomed):
            continue
        left = [new for index, word in enumerate(words) for new in doomed.get((position, index), (word,))]
        lines[number] = line_of("#SBATCH", ["hetjob", *left] if starts_component else left)
    return b"\n".join(lines)


def _doomed(
    head: list[tuple[int, list[str], bool]],
    names: Collection[str],
    version: Version | None,
    extra: Mapping[str, int] | None,
) -> dict[tuple[int, int], tuple[str, ...]]:
    """(line, word) -> its replacement, for every word that contains an option in `names`."""
    flat: list[tuple[int, int, str]] = []
    for position, (_, words, starts_component) in enumerate(head):
        if starts_component:
            flat.append((position, -1, ":"))
        flat.extend((position, index, word) for index, word in enumerate(words))
    line = split([word for _, _, word in flat], version=version, extra=extra)
    replaced: dict[tuple[int, int], tuple[str, ...]] = {}
    at = 0
    for word in line.words:
        span = flat[at : at + len(word.tokens)]
        at += len(word.tokens)
        left = word.without(names) if word.options else word
        if left is word:
            continue
        for position, index, _ in span:
            replaced[position, index] = ()
        if left is not None:
            replaced[span[0][:2]] = left.tokens
    return replaced


def _directive_lines(script: bytes) -> list[tuple[int, str]]:
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


def _words(text: str) -> tuple[list[str], bool]:
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
