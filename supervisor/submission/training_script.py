"""A batch script as `ftrun init` reads it: its variables, the command that trains, the Python files of that. (I/O)

The shell is not run: a line counts as it stands, with variables that the script itself assigned put in. What
depends on anything else stays `$NAME`, and whoever uses it says that it is not known.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S*|\"[^\"]*\"|'[^']*')\s*(?:#.*)?$")
_REFERENCE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_LAUNCHERS = re.compile(
    r"(?:^|[\s/])(?:python[\d.]*|torchrun|deepspeed|msrun|accelerate|srun|mpirun|mpiexec|uv|lightning)\s"
)
_FILES_MAX = 40
_BYTES_MAX = 1 << 20


class TrainingScript(NamedTuple):
    """`command`: the words of the line that trains, variables put in; `line`: its number, 0 where none was found.
    `options`: option (no dashes, `_`) or `key` of `key=value` -> value; `sources`: Python file -> its text.
    """

    text: str
    command: tuple[str, ...]
    line: int
    variables: dict[str, str]
    options: dict[str, str]
    sources: dict[str, str]

    @property
    def passes_arguments(self) -> bool:
        """Whether arguments of the script reach the command that trains."""
        return any("$@" in word or "$*" in word for word in self.command) or self.text.startswith(
            "#!/usr/bin/env python"
        )


def read_script(path: str) -> TrainingScript:
    """Read a script and the Python files that it starts, as far as they are found. Raises OSError."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        text = stream.read()
    folder = os.path.dirname(os.path.abspath(path))
    if re.match(r"#!.*python", text):
        return TrainingScript(text, (path,), 1, {}, {}, _with_imports({path: text}, folder))
    variables: dict[str, str] = {}
    command: tuple[str, ...] = ()
    line = 0
    for number, words in _commands(text, variables):
        if _rank(words) >= _rank(command) and _rank(words):  # the last line of the most telling kind
            command, line = tuple(words), number
    sources: dict[str, str] = {}
    for word in _program_files(command):
        for base in (folder, os.getcwd()):
            found = os.path.normpath(os.path.join(base, word))
            if os.path.isfile(found):
                sources[found] = _read(found)
                break
    base = os.path.dirname(next(iter(sources), "")) or folder
    return TrainingScript(text, command, line, variables, _options(command), _with_imports(sources, base))


def _commands(text: str, variables: dict[str, str]) -> list[tuple[int, list[str]]]:
    """The lines that start a program, continued ones joined: (number of the first, words with variables put in)."""
    found = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        first, joined = at + 1, lines[at]
        while joined.rstrip().endswith("\\") and at + 1 < len(lines):
            at += 1
            joined = joined.rstrip()[:-1] + " " + lines[at]
        at += 1
        if joined.lstrip().startswith("#"):
            continue
        assigned = _ASSIGNMENT.match(joined)
        if assigned is not None:
            variables[assigned[1]] = _filled(assigned[2].strip("\"'"), variables)
        elif _LAUNCHERS.search(joined) or ".py" in joined:
            found.append((first, _words(_filled(joined, variables))))
    return found


def _filled(text: str, variables: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        known = variables.get(found[1] or found[3])
        return known if known is not None else found[2] if found[2] else found[0]

    return _REFERENCE.sub(value, text)


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quote that ends on a later line
        words = line.split()
    inner = next((word for word in words if " " in word and (".py" in word or " -m " in word)), "")
    return [*words, *_words(inner)] if inner else words  # bash -c "python train.py"


def _rank(words: tuple[str, ...] | list[str]) -> int:
    """How surely these words start a training: 2 with a program, 1 with a launcher alone."""
    if _program_files(words):
        return 2
    return int(
        any(os.path.basename(word) in ("torchrun", "deepspeed", "msrun", "accelerate") for word in words)
    )


def _program_files(words: tuple[str, ...] | list[str]) -> list[str]:
    """The Python files among the words, and those of `-m package.module`."""
    found = [word for word in words if word.endswith(".py") and not word.startswith("-")]
    modules = [
        after
        for before, after in itertools.pairwise(words)
        if before == "-m" and re.fullmatch(r"[\w.]+", after)
    ]
    return found + [
        f"{module.replace('.', '/')}{end}" for module in modules for end in (".py", "/__main__.py")
    ]


def _options(words: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for word, after in zip(words, (*words[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        if word.startswith("--") and (equals or not after.startswith("--")):
            found[name.lstrip("-").replace("-", "_")] = value if equals else after
        elif word.startswith("--"):
            found[name.lstrip("-").replace("-", "_")] = ""
        elif equals and re.fullmatch(r"[+~]{0,2}[\w.]+", name):
            found[name.lstrip("+~")] = value
    return found


def _with_imports(sources: dict[str, str], folder: str) -> dict[str, str]:
    """The files, and those beside them that they import, one of another, to a limit."""
    left = list(sources.values())
    while left and len(sources) < _FILES_MAX:
        for module in re.findall(r"^\s*(?:from|import)\s+([\w.]+)", left.pop(), re.MULTILINE):
            path = os.path.join(folder, f"{module.lstrip('.').replace('.', '/')}.py")
            if path not in sources and os.path.isfile(path):
                sources[path] = _read(path)
                left.append(sources[path])
    return sources


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(_BYTES_MAX)
    except OSError:
        return ""
