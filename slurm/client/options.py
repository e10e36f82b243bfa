"""sbatch's options: what the user asked for, and splitting an argument list as sbatch itself does. (pure)

`SbatchOptions` answers which value counts: command line over variables over the directives of the script. It
is split once in a submission and handed on.

sbatch parses its arguments with getopt_long and a leading `+`: options end at the first word that is none,
and that word is the script. So the split must know of all options whether they take a value.

- Long names may be abbreviated as long as they are unambiguous, which depends on the version. So the table
  (`releases`) says in which versions an option exists; `split` raises Ambiguous where that matters and the
  version was not given. Options of SPANK plugins come from `sbatch --help` (`plugin_options`).
- A lone `:` separates the components of a heterogeneous job, anywhere before the script.
- Other words stay as they were typed.

sbatch goes through the components of a heterogeneous job one by one: first what the script says of a
component, then what the command line says of it. What neither says is inherited from the component before,
and where the command line has fewer parts than the script its last part counts for all the rest. So an
option that ftrun adds to that last part would outweigh what the script says of later components: then the
part is first written once for each component, which by itself changes nothing. Tried on 22.05 with
comments, names, time limits and nodes.

`ftrun sbatch` imports this module at startup, so it imports only that table and what parses words.
"""

from __future__ import annotations

from ftrun.slurm.client.directives import directive_texts, directive_words, directives, line_of
from ftrun.slurm.client.errors import Ambiguous, MissingValue, OptionError, UnknownOption
from ftrun.slurm.client.releases import LONG, NONE, OLDEST, OPTIONAL, REQUIRED, SAME_OPTION, SHORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    Version = tuple[int, int]


class Word:
    """One option as typed: its tokens (one or two), and the (name, value) pairs in it (several in `-Hn4`). A
    value is None where the option has none. The separator `:` and the end mark `--` have no pairs.
    """

    __slots__ = ("options", "tokens")

    def __init__(self, tokens: tuple[str, ...], options: tuple[tuple[str, str | None], ...] = ()) -> None:
        self.tokens = tokens
        self.options = options

    def without(self, names: Collection[str]) -> Word | None:
        """This word less the options in `names`; None when nothing is left."""
        kept = tuple(option for option in self.options if option[0] not in names)
        if len(kept) == len(self.options):
            return self
        return Word(tuple(_spell(name, value) for name, value in kept), kept) if kept else None


class CommandLine:
    """The arguments of sbatch, split: option words, script (None = stdin or --wrap), the script's arguments.
    A value: every change returns a new one. `own` holds the (name, value) pairs that were not sbatch's. Where
    a name is asked for, it is the long one of the table; `component` counts the parts of a heterogeneous job
    from 0.
    """

    __slots__ = ("own", "script", "script_args", "words")

    def __init__(
        self,
        words: Sequence[Word],
        script: str | None = None,
        script_args: Sequence[str] = (),
        own: Sequence[tuple[str, str | None]] = (),
    ) -> None:
        self.words = tuple(words)
        self.script = script
        self.script_args = tuple(script_args)
        self.own = tuple(own)

    @property
    def components(self) -> int:
        """How many parts the job has by its command line: 1 unless `:` was used."""
        return 1 + sum(word.tokens == (":",) for word in self.words)

    def has(self, name: str, component: int | None = None) -> bool:
        """Whether the option is given (in any part, or in this one)."""
        return any(option == name for option, _ in self._options(component))

    def get(self, name: str, component: int | None = None) -> str | None:
        """The effective value, the last one; None if the option is absent or has no value."""
        found = [value for option, value in self._options(component) if option == name]
        return found[-1] if found else None

    def without(self, *names: str) -> CommandLine:
        """A copy without these options, in all parts."""
        kept = [word.without(names) if word.options else word for word in self.words]
        return self._with([word for word in kept if word is not None])

    def with_option(self, name: str, value: str | None = None, component: int | None = None) -> CommandLine:
        """A copy with this option appended to each part (or to one), where it overrides earlier ones."""
        words: list[Word] = []
        added = Word((_spell(name, value),), ((name, value),))
        part = 0
        for word in (*self.words, Word((":",))):
            if word.tokens in ((":",), ("--",)) and component in (None, part) and not _ended(words):
                words.append(added)
            part += word.tokens == (":",)
            words.append(word)
        return self._with(words[:-1])

    def widened(self, parts: int) -> CommandLine:
        """A copy with at least so many parts, the last one repeated, as sbatch does."""
        ends = [at for at, word in enumerate(self.words) if word.tokens == (":",)]
        last = self.words[ends[-1] + 1 if ends else 0 :]
        again = [word for word in last if word.tokens != ("--",)]
        front = [*self.words[: len(self.words) - len(last)], *again]
        for _ in range(parts - self.components):
            front += [Word((":",)), *again]
        return self._with([*front, *last[len(again) :]])

    def replacing(self, name: str, value: str) -> CommandLine:
        """A copy with exactly one such option in each part."""
        return self.without(name).with_option(name, value)

    def with_script(self, script: str | None, script_args: Sequence[str] = ()) -> CommandLine:
        """The same options with another script."""
        return CommandLine(self.words, script, script_args, self.own)

    def argv(self) -> list[str]:
        """The arguments after the word `sbatch`."""
        options = [token for word in self.words for token in word.tokens]
        if self.script is None:
            return options
        if (
            self.script.startswith("-")
            and self.script != "-"
            and ("--",) not in [word.tokens for word in self.words]
        ):
            options.append("--")
        return [*options, self.script, *self.script_args]

    def _with(self, words: Sequence[Word]) -> CommandLine:
        return CommandLine(words, self.script, self.script_args, self.own)

    def _options(self, component: int | None) -> list[tuple[str, str | None]]:
        part = 0
        found: list[tuple[str, str | None]] = []
        for word in self.words:
            if word.tokens == (":",):
                part += 1
            elif component in (None, part):
                found.extend(word.options)
        return found


def _ended(words: list[Word]) -> bool:
    """The present part already met its `--`."""
    for word in reversed(words):
        if word.tokens == (":",):
            return False
        if word.tokens == ("--",):
            return True
    return False


def _spell(name: str, value: str | None) -> str:
    return f"--{name}" if value is None else f"--{name}={value}"


class SbatchOptions:
    """What the user asked sbatch for.

    `line` as typed, `env` as it was, `head` a command line for each component of the script.
    """

    __slots__ = ("env", "head", "line")

    def __init__(self, line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]) -> None:
        self.line = line
        self.head = list(head) or [CommandLine(())]
        self.env = env

    def get(self, name: str, variable: str = "") -> str:
        """The value that sbatch goes by, "" for none; `variable`: the option's variable, if it has one."""
        value = self.line.get(name)
        if value is None and variable:
            value = self.env.get(variable)
        return value if value is not None else self.head[0].get(name) or ""

    def has(self, name: str, variable: str = "") -> bool:
        """Whether any source names the option, in any component."""
        return self.line.has(name) or variable in self.env or any(part.has(name) for part in self.head)

    @property
    def shape(self) -> str:
        """single, array or het."""
        if self.line.components > 1 or len(self.head) > 1:
            return "het"
        return "array" if self.array else "single"

    @property
    def array(self) -> str:
        """The array's specification; "" for a job that is no array (a heterogeneous job cannot be one)."""
        if self.line.components > 1 or len(self.head) > 1:
            return ""
        return self.get("array", "SBATCH_ARRAY_INX")

    @property
    def signal(self) -> str:
        """The user's own --signal; "" = none was given, "none" = given without a value."""
        if self.line.has("signal"):
            return self.line.get("signal") or "none"
        if "SBATCH_SIGNAL" in self.env:
            return self.env["SBATCH_SIGNAL"] or "none"
        return next((part.get("signal") or "none" for part in self.head if part.has("signal")), "")

    @property
    def requeue(self) -> bool | None:
        """Whether the user wants --requeue; None where nobody said either."""
        for yes, no in (
            (self.line.has("requeue"), self.line.has("no-requeue")),
            ("SBATCH_REQUEUE" in self.env, "SBATCH_NO_REQUEUE" in self.env),
            (self.head[0].has("requeue"), self.head[0].has("no-requeue")),
        ):
            if yes or no:
                return not no
        return None

    @property
    def is_expedited(self) -> bool:
        """Whether the user wants --requeue=expedite (25.11 and later): after a failed epilog or a lost node Slurm puts the job
        first, after any other failure it holds the job.
        """
        told = [self.line.get("requeue", part) for part in range(self.line.components)]
        told += [self.env.get("SBATCH_REQUEUE"), *(part.get("requeue") for part in self.head)]
        return any((value or "").lower() == "expedite" for value in told)


def value_of_each(name: str, line: CommandLine, head: Sequence[CommandLine]) -> list[str | None]:
    """The value of an option for each component; None where nobody gave one."""
    values: list[str | None] = []
    for part in range(max(line.components, len(head))):
        typed = line.get(name, min(part, line.components - 1))
        written = head[part].get(name) if part < len(head) else None
        inherited = values[-1] if values else None
        values.append(typed if typed is not None else written if written is not None else inherited)
    return values


def with_parts_for(line: CommandLine, *values: Sequence[str | None]) -> CommandLine:
    """The same arguments with enough parts to give each component its own of these values."""
    parts = line.components
    if all(value == each[parts - 1] for each in values for value in each[parts:]):
        return line
    return line.widened(max(len(each) for each in values))


def with_token(changed: CommandLine, given: SbatchOptions, token: str) -> CommandLine:
    """`changed` with the token in the comment of each component: behind the user's own text, or under a key of
    its own where that is a JSON object, which other programs read (`{"APS": ...}`).
    """
    own = value_of_each("comment", given.line, given.head)
    changed = with_parts_for(changed, own).without("comment")
    for part in range(changed.components):
        changed = changed.with_option("comment", comment_with(own[part] or "", token), part)
    return changed


def comment_with(comment: str, token: str) -> str:
    """The user's comment with a token of ours. (pure)"""
    text = comment.strip()
    if text[:1] == "{" and text[-1:] == "}":
        import json  # most submissions have no such comment

        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict):  # the user's own bytes stay as they are
            return f'{text[:-1].rstrip()}{", " if found else ""}"ftrun": "{token}"}}'
    return f"{comment} {token}" if comment else token


# ---------------------------------------------------------------------- from text


def split(
    argv: Sequence[str],
    *,
    version: Version | None = None,
    extra: Mapping[str, int] | None = None,
    own: Callable[[str], bool] | None = None,
) -> CommandLine:
    """Split `argv` (without the word `sbatch`) as sbatch of `version` does. `extra` adds options by long name
    (see `plugin_options`). `own` is asked about each `--ft-NAME` before the script, by NAME: True = it takes
    a value (the next word, unless `=` gave it). These come out in `.own` and in no word. Raises OptionError
    where sbatch would refuse; Ambiguous and UnknownOption can pass with a version or `extra`.
    """
    words: list[Word] = []
    owned: list[tuple[str, str | None]] = []
    at = 0
    while at < len(argv):
        token = argv[at]
        at += 1
        if token == ":":
            words.append(Word((":",)))
        elif token == "--":
            words.append(Word(("--",)))
            break
        elif not token.startswith("-") or token == "-":
            at -= 1
            break
        elif own is not None and token.startswith("--ft-"):
            name, equals, given = token[5:].partition("=")
            value: str | None = given if equals else None
            if own(name) and value is None:
                if at >= len(argv):
                    raise MissingValue(name)
                value = argv[at]
                at += 1
            owned.append((name, value))
        else:
            options, wants = _long(token[2:], version, extra) if token.startswith("--") else _short(token[1:])
            if wants is None:
                words.append(Word((token,), options))
                continue
            if at >= len(argv) or argv[at] == ":":  # sbatch takes `:` out first, wherever it stands
                raise OptionError(f"option requires an argument -- '{wants}'")
            words.append(Word((token, argv[at]), (*options, (wants, argv[at]))))
            at += 1
    while at < len(argv) and argv[at] == ":":  # sbatch drops it even after the end mark
        words.append(Word((":",)))
        at += 1
    rest = list(argv[at:])
    return CommandLine(words, rest[0] if rest else None, rest[1:], owned)


def _long(
    text: str, version: Version | None, extra: Mapping[str, int] | None
) -> tuple[tuple[tuple[str, str | None], ...], str | None]:
    """((options complete in themselves), the option that wants the next word or None)."""
    typed, equals, value = text.partition("=")
    name, takes = _resolve(typed, version, extra or {})
    name = SAME_OPTION.get(name, name)
    if equals:
        if takes == NONE:
            raise OptionError(f"option '--{name}' doesn't allow an argument")
        return ((name, value),), None
    if takes == REQUIRED:
        return (), name
    return ((name, None),), None


def _resolve(typed: str, version: Version | None, extra: Mapping[str, int]) -> tuple[str, int]:
    if version is None and typed in LONG:
        takes, since, until = LONG[typed]
        others = [name for name in LONG if name.startswith(typed) and name != typed]
        if others and (
            since > OLDEST or until is not None
        ):  # `--extra` once was short for `--extra-node-info`
            raise Ambiguous(typed, (typed, *others))
        return typed, takes
    known = {name: takes for name, (takes, since, until) in LONG.items() if _exists(since, until, version)}
    known.update(extra)
    if typed in known:
        return typed, known[typed]
    candidates = [name for name in known if name.startswith(typed)]
    if not candidates:
        raise UnknownOption(typed)
    if len(candidates) > 1:
        raise Ambiguous(typed, candidates)
    return candidates[0], known[candidates[0]]


def _exists(since: Version, until: Version | None, version: Version | None) -> bool:
    return version is None or (since <= version and (until is None or version <= until))


def _short(letters: str) -> tuple[tuple[tuple[str, str | None], ...], str | None]:
    options: list[tuple[str, str | None]] = []
    for index, letter in enumerate(letters):
        name = SHORT.get(letter)
        if name is None:
            raise UnknownOption(letter)
        takes = LONG[name][0]
        rest = letters[index + 1 :]
        if takes == NONE:
            options.append((name, None))
        elif takes == OPTIONAL:
            return (*options, (name, rest or None)), None
        elif rest:
            return (*options, (name, rest)), None
        else:
            return tuple(options), name
    return tuple(options), None


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
    for number, text in directive_texts(script):
        words, starts_component = directive_words(text)
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


def split_facts(context: Mapping[str, Any]) -> tuple[tuple[int, int] | None, Mapping[str, int] | None]:
    """(Slurm's version, options of plugins), where the options were not clear without them."""
    known = context.get("slurm_version")
    return (known[0], known[1]) if known else None, context.get("plugin_options")


def script_options(script: bytes, context: Mapping[str, Any]) -> list[CommandLine]:
    """The #SBATCH options by component, those of #PBS and #BSUB in the first. Raises OptionError."""
    head = [CommandLine(())]
    if b"#SBATCH" in script or b"#SLURM" in script:
        version, extra = split_facts(context)
        head = [split(words, version=version, extra=extra) for words in directives(script)]
    ignored = not context.get("foreign", True) or "--ignore-pbs" in context.get("argv", ())
    if (b"#PBS" in script or b"#BSUB" in script) and not (ignored or head[0].has("ignore-pbs")):
        from ftrun.slurm.client import foreign_directives

        foreign = split(foreign_directives.foreign_words(script, head[0].get("export")))
        head[0] = CommandLine((*head[0].words, *foreign.words))
    return head


def submitted_options(context: Mapping[str, Any], script: bytes, env: Mapping[str, str]) -> SbatchOptions:
    """The options of a kept submission, split as they were the first time. Raises OptionError."""
    version, extra = split_facts(context)
    line = split(context["argv"], version=version, extra=extra)
    return SbatchOptions(line, script_options(script, context), env)
