"""Shell completion: the candidates for the word at the cursor. (I/O)

A person waits for the answer to TAB, so no command is imported: `make docs` writes the tree of commands into
`complete_table`. The options of sbatch come from the table that `ftrun sbatch` reads, settings from theirs,
runs from the names of folders. Slurm is asked only for names that it alone knows (partitions, nodes, ...),
with a short timeout.
"""

from __future__ import annotations

import os
import sys

from ftrun.supervisor.cli.complete_table import COMMANDS
from ftrun.supervisor.config.home import home_dir
from ftrun.supervisor.model.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CURSOR = "\0"
_PATHS = {"file": ":files", "dir": ":dirs"}
# Options of sbatch whose value is a file.
_FILES = frozenset({"bbf", "error", "export-file", "input", "nodefile", "output"})
# Options of sbatch whose value names things that Slurm knows, and what they name.
_NAMES = {
    "account": "account", "exclude": "node", "nodelist": "node", "partition": "partition", "qos": "qos", "reservation": "reservation"
}  # fmt: skip
_SLURM = frozenset(_NAMES.values())
_SLURM_TIMEOUT_S = 2.0  # longer than a person waits for TAB


def main(arguments: Sequence[str]) -> int:
    """Print the candidates for `SHELL WORD...` (bash: the line, and its word breaks). Never fails."""
    try:
        shell, *rest = arguments
        words = _split(rest[0]) if shell == "bash" else list(rest)
        found = list(candidates(words[1:]))
        skip = _bash_prefix_len(words[-1], rest[1]) if shell == "bash" else 0
        text = "".join(f"{one if one.startswith(':') else one[skip:]}\n" for one in found)
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    except Exception:  # noqa: BLE001, S110  no candidate is better than an error at a prompt
        pass
    return 0


def candidates(words: Sequence[str]) -> Iterator[str]:
    """The candidates for the last of `words`, with a tab and their help; or `:files`, `:dirs`."""
    *before, current = words
    if before and before[0] == "sbatch":
        yield from _sbatch(before[1:], current)
        return
    path, kind, at, plain = _walk(before)
    _, options, operands, members = COMMANDS[path]
    if kind is not None:
        yield from _values(kind, current)
    elif current.startswith("-") and not plain:
        yield from _options(options, current)
    elif members and not at:
        yield from _matching(((name, COMMANDS[f"{path} {name}".strip()][0]) for name in members), current)
        if not path:
            yield from _matching(
                [("sbatch", "Submit a supervised job, with the options of sbatch.")], current
            )
    elif operands:
        number = min(at, len(operands) - 1)
        if number == at or operands[number].endswith("*"):
            yield from _values(operands[number].rstrip("*"), current)


def _walk(words: Sequence[str]) -> tuple[str, str | None, int, bool]:
    """(command, kind of value that the last option takes or None, number of operands, `--` was given)."""
    path, at, waits, plain = "", 0, None, False
    for word in words:
        _, options, _, members = COMMANDS[path]
        if waits is not None:
            waits = None
        elif word == "--" and not plain:
            plain = True
        elif word.startswith("-") and not plain:
            kinds = [kind for names, kind, _ in options if word in names.split()]
            waits = kinds[0] if kinds and kinds[0] else None
        elif word in members:
            path = f"{path} {word}".strip()
        else:
            at += 1
    return path, waits, at, plain


def _options(options: Sequence[tuple[str, str, str]], current: str) -> Iterator[str]:
    name, equals, begun = current.partition("=")
    if equals:
        for names, kind, _ in options:
            if kind and name in names.split():
                yield from _values(kind, begun, f"{name}=")
        return
    rows = [
        (f"{one}=" if kind and one.startswith("--") else one, told)
        for names, kind, told in options
        for one in names.split()
    ]
    yield from _matching(rows, current)


def _values(kind: str, current: str, lead: str = "") -> Iterator[str]:
    for part in kind.split("+"):
        if part in _PATHS:
            yield _PATHS[part]
        elif part.startswith("="):
            yield from _matching([(lead + one, "") for one in part[1:].split()], lead + current)
        elif part == "run":
            yield from _matching([(lead + one, "") for one in _runs(current)], lead + current)
        elif part == "signature":
            yield from _matching([(lead + one, "") for one in _signatures()], lead + current)
        elif part in _SLURM:
            listed = lead + current[: current.rfind(",") + 1]
            yield from _matching([(listed + one, "") for one in _slurm_names(part)], lead + current)


def _matching(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]], current: str) -> Iterator[str]:
    for word, told in rows:
        if word.startswith(current):
            yield f"{word}\t{told[:80]}" if told else word


def _runs(current: str) -> list[str]:
    """The names of runs; where the word begins with a digit, the ids of their jobs as well."""
    from ftrun.supervisor.config import sources

    env = dict(os.environ)
    try:
        home = sources.load(os.getcwd(), env).home(env)
    except UserError:
        home = home_dir(env)
    folders = ["runs", "index"] if current[:1].isdigit() else ["runs"]
    found: list[str] = []
    for folder in folders:
        try:
            found += os.listdir(os.path.join(home, folder))
        except OSError:
            continue
    return sorted(name for name in found if not name.startswith(".") and not name.endswith(".tmp"))


def _signatures() -> list[str]:
    from ftrun.supervisor import catalog

    folder = os.path.dirname(catalog.__file__)
    found: list[str] = []
    for name in os.listdir(folder):
        if name.endswith(".toml"):
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                found += [line.split('"')[1] for line in stream if line.startswith('id = "')]
    return sorted(found)


def _slurm_names(kind: str) -> list[str]:
    import getpass

    from ftrun.slurm.commands import completion_names

    return completion_names.names(kind, getpass.getuser(), os.environ, timeout_s=_SLURM_TIMEOUT_S)


def _sbatch(before: Sequence[str], current: str) -> Iterator[str]:
    """Options of sbatch and of ftrun before the script; files for the script and its arguments."""
    from ftrun.slurm.client import options as client_options
    from ftrun.slurm.client import releases
    from ftrun.supervisor.config import settings

    line = client_options.split([*before, _CURSOR], own=settings.takes_value)
    if line.script is None:  # the option before the cursor waits for its value
        yield from _values(_kind_of_sbatch(before[-1]), current)
    elif line.script != _CURSOR or not current.startswith("-"):
        yield ":files"
    elif "=" in current:
        name, _, begun = current.partition("=")
        yield from _values(_kind_of_sbatch(name), begun, f"{name}=")
    else:
        yield from _matching(_own_options(), current)
        always = [
            (f"--{name}=" if takes == releases.REQUIRED else f"--{name}", "")
            for name, (takes, since, until) in releases.LONG.items()
            if since == releases.OLDEST and until is None
        ]
        yield from _matching(sorted(always), current)


def _own_options() -> list[tuple[str, str]]:
    from ftrun.supervisor.config.settings import SETTINGS

    return [
        (f"--ft-{key}" + ("=" if row.kind != "flag" else ""), row.doc.partition(". ")[0].partition(": ")[0])
        for key, row in SETTINGS.items()
        if row.scope in ("any", "once")
    ]


def _kind_of_sbatch(word: str) -> str:
    """The kind of value that an option takes."""
    from ftrun.slurm.client.releases import SHORT
    from ftrun.supervisor.config.settings import SETTINGS

    if word.startswith("--ft-") and word[5:] in SETTINGS:
        row = SETTINGS[word[5:]]
        if row.choices:
            return "=" + " ".join(row.choices)
        return {"DIR": "dir", "FILE": "file", "GLOB": "file"}.get(row.value_name, "any")
    name = word[2:] if word.startswith("--") else SHORT.get(word[-1:], "")
    return "file" if name in _FILES else "dir" if name == "chdir" else _NAMES.get(name, "any")


def _split(line: str) -> list[str]:
    """Split a line that ends at the cursor as a shell does; the last word may be incomplete or empty."""
    words, word, quote, begun = [], "", "", False
    letters = iter(line)
    for letter in letters:
        if letter == "\\" and quote != "'":
            word, begun = word + next(letters, ""), True
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote, begun = letter, True
        elif not quote and letter in " \t":
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + letter, True
    return [*words, word]


def _bash_prefix_len(word: str, breaks: str) -> int:
    """The length of the part that bash takes for an earlier word: it breaks words at `=` and `:`."""
    return max((word.rfind(one) + 1 for one in "=:" if one in breaks), default=0)
