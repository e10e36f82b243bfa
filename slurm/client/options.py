"""sbatch's options: the table, and splitting an argument list as sbatch itself does. (pure)

sbatch parses its arguments with getopt_long and a leading `+`: options end at the first word that is none,
and that word is the script. So the split must know of all options whether they take a value.

- Long names may be abbreviated as long as they are unambiguous, which depends on the version. So the table
  (`releases`) says in which versions an option exists; `split` raises Ambiguous where that matters and the
  version was not given. Options of SPANK plugins come from `sbatch --help` (`plugin_options`).
- A lone `:` separates the components of a heterogeneous job, anywhere before the script.
- sbatch applies the script's directives first, then SBATCH_* variables, then the command line.
- Other words stay as they were typed.

`ftrun sbatch` imports this module at startup, so it imports nothing but that table.
"""

from __future__ import annotations

from ftrun.slurm.client.releases import NONE, OLDEST, OPTIONAL, OPTIONS, REQUIRED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    Version = tuple[int, int]

# Long name, and the short one where there is one: what all releases know. What only some know stands in the table of releases.
# Facts: the tables of src/common/slurm_opt.c of 22.05 to 26.05.
_ALWAYS_REQUIRED = """
account:A acctg-freq array:a batch bb bbf begin:b chdir:D cluster cluster-constraint clusters:M comment constraint:C
container context core-spec:S cores-per-socket cpu-freq cpus-per-gpu cpus-per-task:c deadline delay-boot dependency:d
distribution:m error:e exclude:x export export-file extra-node-info:B gid gpu-bind gpu-freq gpus:G gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint input:i job-name:J kill-on-invalid-dep licenses:L mail-type mail-user
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile:F nodelist:w nodes:N ntasks:n ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output:o partition:p prefer priority profile
qos:q reservation signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time:t time-min tmp uid
wait-all-nodes wckey wrap
"""
_ALWAYS_BARE = """
contiguous help:h hold:H ignore-pbs no-requeue overcommit:O oversubscribe:s parsable quiet:Q reboot spread-job test-only
usage use-min-nodes verbose:v version:V wait:W
"""
_ALWAYS_OPTIONAL = "exclusive get-user-env nice no-kill:k propagate requeue"
# Two names for one option: callers use one of them.
_SAME = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


class OptionError(Exception):
    """sbatch would refuse these arguments; show its own message."""


class UnknownOption(OptionError):
    """Not in the table: an option of a plugin or of a newer Slurm, or a typo. `name` has no dashes."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unrecognized option '{name}'")
        self.name = name


class Ambiguous(OptionError):
    """An abbreviation that fits several options, of the given version if there is one."""

    def __init__(self, name: str, candidates: Iterable[str]) -> None:
        super().__init__(f"option '--{name}' is ambiguous")
        self.name = name
        self.candidates = tuple(candidates)


class MissingValue(OptionError):
    """One of ftrun's own options is last and lacks its value. `name` is without `--ft-`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"--ft-{name}: a value is wanted")
        self.name = name


def _tables() -> tuple[dict[str, tuple[int, Version, Version | None]], dict[str, str]]:
    long: dict[str, tuple[int, Version, Version | None]] = {}
    short: dict[str, str] = {}
    for text, takes in ((_ALWAYS_REQUIRED, REQUIRED), (_ALWAYS_BARE, NONE), (_ALWAYS_OPTIONAL, OPTIONAL)):
        for entry in text.split():
            name, _, letter = entry.partition(":")
            long[name] = (takes, OLDEST, None)
            if letter:
                short[letter] = name
    for name, takes, since, until in OPTIONS:
        long[name] = (takes, since, until)
    return long, short


LONG, SHORT = _tables()


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
    name = _SAME.get(name, name)
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


def _spell(name: str, value: str | None) -> str:
    return f"--{name}" if value is None else f"--{name}={value}"


def plugin_options(help_text: str) -> dict[str, int]:
    """Options in the text of `sbatch --help` that the table lacks: SPANK plugins' and a newer Slurm's.
    Returns long name -> NONE, REQUIRED or OPTIONAL. The help writes `--name`, `--name=value`,
    `--name[=value]`.
    """
    found: dict[str, int] = {}
    for line in help_text.splitlines():
        words = line.split()
        for word in words[:2]:  # "-N, --nodes=N" or "--nodes=N"
            if not word.startswith("--") or len(word) < 3:
                continue
            name = word[2:].replace("[", "=").split("=", 1)[0].rstrip(",")
            if name not in LONG:
                found[name] = OPTIONAL if "[=" in word else REQUIRED if "=" in word else NONE
            break
    return found
