"""Read settings from their sources, and tell where each value came from. (I/O)

Seven layers, the later wins:

    default < site < user < project < script < environment < command line

    site      $FTRUN_SITE_CONFIG, else /etc/ftrun/config.toml
    user      $XDG_CONFIG_HOME/ftrun/config.toml, else ~/.config/ftrun/config.toml
    project   the nearest `ftrun.toml` from the working folder upwards, up to the repository or the home
              folder; outside of both only the working folder itself
    script    `#FTRUN --key=value` lines among the #SBATCH lines

`[policy.NAME]` tables of a file are the elements of the list setting `policy`; every other setting is at
the top level.

A layer replaces the value of an earlier one, lists too. The site can name settings in `lock`; a later layer
that gives one of them another value is refused, as is every wrong name or value: at submission, with file
or variable named. What /etc/ftrun/config.toml locks stays locked to its value even if $FTRUN_SITE_CONFIG
names another file, because everybody can set a variable.

A file counts only if nobody but this user or root can have written it; the same holds for a repository
(`trust`). A project file that fails this is not read, with a line in `ignored`; a site or user file that
fails it is refused, because its absence would change everything. Settings of a project file that can run,
read or write something wait for `ftrun trust FILE`; `untrusted` names them, and the submission is refused
until then.

`ftrun sbatch` comes through here, so the TOML reader is imported only if there is a file to read.
"""

from __future__ import annotations

import os

from ftrun.supervisor.config import settings, trust
from ftrun.supervisor.config.settings import SETTINGS
from ftrun.supervisor.config.table import LIST
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.errors import SettingError, UserError
from ftrun.supervisor.model.renamed_settings import new_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ftrun.supervisor.config.table import Value

    Pair = tuple[str, object]

SITE_CONFIG = "/etc/ftrun/config.toml"
PROJECT_FILE = "ftrun.toml"

DEFAULT, SITE, USER, PROJECT = "default", "site", "user", "project"
SCRIPT, ENVIRONMENT, COMMAND_LINE = "script", "environment", "command line"

# Where a setting of each scope may stand.
_ALLOWED = {
    "any": (SITE, USER, PROJECT, SCRIPT, ENVIRONMENT, COMMAND_LINE),
    "admin": (SITE, USER, ENVIRONMENT),
    "site": (SITE,),
    "once": (SCRIPT, ENVIRONMENT, COMMAND_LINE),
}
# FTRUN_* variables that are no settings: what a script sees, and how ftrun itself is pointed to its files.
_NOT_SETTINGS = frozenset(
    """RUN_ID ATTEMPT RESTART RESUME_FROM LAST_FAULT EXCLUDED RUN_DIR NNODES SITE_CONFIG CLAIM_WAIT_S HOOK HOOKS STATE JOB_ID
    FAULT SIGNATURE NODES REASON DECISION OBSERVED TITLE CULPRITS EXIT_CODE EXIT_SIGNAL START START_TOKEN SHIM BEAT_DIR
    ATTEMPT_DIR MASTER_ADDR MASTER_PORT FENCE WORLD_SIZE DP_SCALE GRAD_ACCUM STAGE_DIR STAGE_TO CACHE_DIR
    SECOND_OPINION_KEY""".split()  # noqa: SIM905
)


class Config:
    """The settings in force. `values` has every key; `origin` says (layer, file or variable) of each;
    `locked` by which file a key is locked.

    `ignored`: a line for each file of another user in the place of a project's; `untrusted`: one line where
    settings wait for `ftrun trust`.
    """

    __slots__ = ("ignored", "locked", "origin", "untrusted", "values")

    def __init__(self) -> None:
        self.values: dict[str, Value] = settings.defaults()
        self.origin: dict[str, tuple[str, str]] = dict.fromkeys(self.values, (DEFAULT, ""))
        self.locked: dict[str, str] = {}
        self.ignored: list[str] = []
        self.untrusted = ""

    def __getitem__(self, key: str) -> Value:
        return self.values[key]

    def text(self, key: str) -> str:
        """A text setting."""
        value = self.values[key]
        assert isinstance(value, str)
        return value

    def number(self, key: str) -> float:
        """A number, a share or a duration in seconds."""
        value = self.values[key]
        assert isinstance(value, int | float)
        return float(value)

    def whole(self, key: str) -> int:
        """A whole number."""
        return int(self.number(key))

    def flag(self, key: str) -> bool:
        """A setting that is true or false."""
        return self.values[key] is True

    def meant(self, key: str) -> bool:
        """Whether it was set for this very job, and not for all of a site's or a user's."""
        return self.origin[key][0] not in (DEFAULT, SITE, USER)

    def apply(self, layer: str, where: str, pairs: Iterable[Pair]) -> None:
        """Put one layer on top. Raises UserError for a wrong name, value or place."""
        self.put(layer, where, self.checked(layer, where, pairs))

    def checked(self, layer: str, where: str, pairs: Iterable[Pair]) -> dict[str, Value]:
        """The values of one layer, as they may stand there. Raises UserError."""
        place = where or layer
        try:
            found = settings.parse_all(pairs)
        except SettingError as error:
            raise UserError(f"{place}: {error}") from None
        for key, value in found.items():
            if key in self.locked and not self._same(key, value):
                raise UserError(f"{place}: {key} is locked by the site ({self.locked[key]}); leave it out")
            if layer not in _ALLOWED[SETTINGS[key].scope]:
                nameless = key.upper() in _NOT_SETTINGS
                places = _ALLOWED[SETTINGS[key].scope]
                allowed = ", ".join(one for one in places if one != ENVIRONMENT or not nameless)
                raise UserError(f"{place}: {key} cannot be set here, only in: {allowed}")
        return found

    def put(self, layer: str, where: str, found: Mapping[str, Value]) -> None:
        """Apply these values unless they are locked."""
        place = where or layer
        fresh = {key: value for key, value in found.items() if key not in self.locked}
        if isinstance(lock := fresh.get("lock"), list):
            self.locked.update((key, place) for key in lock if key not in self.locked)
            fresh["lock"] = list(self.locked)
        self.values.update(fresh)
        self.origin.update((key, (layer, where)) for key in fresh)

    def _same(self, key: str, value: Value) -> bool:
        """Whether a locked setting has this value anyway: a supervisor gets its home by a variable."""
        now = self.values[key]
        if key == "home" and isinstance(now, str) and isinstance(value, str) and now and value:
            return _folder(now) == _folder(value)
        return now == value

    def blame(self, message: str) -> str:
        """Return a complaint about a setting, with its source in front unless that is the command line."""
        layer, where = self.origin.get(message.partition(":")[0], (DEFAULT, ""))
        return message if layer in (DEFAULT, COMMAND_LINE) else f"{where or layer}: {message}"

    def home(self, env: Mapping[str, str]) -> str:
        """The folder of all runs as an absolute path."""
        from ftrun.supervisor.config.home import home_dir

        home = self.text("home")
        return _folder(home) if home else home_dir(dict(env))

    def path(self, key: str) -> str:
        """A folder of the settings as an absolute path; "" where none is set."""
        return _folder(self.text(key)) if self.text(key) else ""

    def layers(self) -> dict[str, str]:
        """Key -> layer, for the settings that are not at their default."""
        return {key: layer for key, (layer, _) in self.origin.items() if layer != DEFAULT}


def load(
    cwd: str,
    env: Mapping[str, str],
    *,
    script: Sequence[str] = (),
    own: Iterable[tuple[str, str | None]] = (),
) -> Config:
    """All layers. `script` are the arguments of the #FTRUN lines, `own` the --ft- options without that
    prefix. Raises UserError (exit 2) in one line that names the place and the nearest right name or value.
    """
    config = Config()
    site = env.get("FTRUN_SITE_CONFIG")
    if site and os.path.isfile(SITE_CONFIG) and os.path.realpath(site) != os.path.realpath(SITE_CONFIG):
        config.apply(SITE, SITE_CONFIG, _locked_there())
    files, config.ignored = _files(cwd, env)
    waiting: dict[str, str] = {}  # what the project's file may not do
    project = why = ""
    for layer, path, content in files:
        found = config.checked(layer, path, _pairs(path, content))
        if layer == PROJECT and (able := settings_with_reach(found)):
            project, why = path, trust.why_untrusted(path, content, user_folder(env))
            waiting = able if why else {}
        config.put(layer, path, {key: value for key, value in found.items() if key not in waiting})
    if script:
        config.apply(SCRIPT, "#FTRUN", from_arguments(script))
    for variable, pairs in _from_environment(env):
        config.apply(ENVIRONMENT, variable, pairs)
    config.apply(COMMAND_LINE, "", [(key, True if value is None else value) for key, value in own])
    waiting = {key: can for key, can in waiting.items() if not config.meant(key) and key not in config.locked}
    if waiting:
        config.untrusted = _untrusted(project, why, waiting)
    if config.values["stage"] and not config.values["checkpoint"]:
        # What is staged is resumed from where it is published.
        config.values["checkpoint"] = f"{config.text('stage').rstrip('/')}/*"
        config.origin["checkpoint"] = config.origin["stage"]
    return config


def source_files(cwd: str, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """(layer, path) of the configuration files that are read, in that order. Raises UserError."""
    return [(layer, path) for layer, path, _ in _files(cwd, env)[0]]


def user_folder(env: Mapping[str, str]) -> str:
    """The folder of what this user has set for ftrun."""
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.join(env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "ftrun")


def project_settings(path: str, content: bytes) -> dict[str, Value]:
    """What a project's file sets. Raises UserError."""
    return Config().checked(PROJECT, path, _pairs(path, content))


def settings_with_reach(found: Mapping[str, Value]) -> dict[str, str]:
    """Those settings that can do something, and what: key -> runs, reads or writes."""
    return {key: can for key, value in found.items() if (can := settings.reach_of_value(key, value))}


def _untrusted(path: str, why: str, waiting: Mapping[str, str]) -> str:
    import shlex

    sets = ", ".join(f"{key} ({can})" for key, can in waiting.items())
    return f"{path} {why}, and it sets {sets}: read it, then: ftrun trust {shlex.quote(path)}"


def _files(cwd: str, env: Mapping[str, str]) -> tuple[list[tuple[str, str, bytes]], list[str]]:
    """(layer, path, content) of the files that count, a line for each that does not. Raises UserError."""
    site = env.get("FTRUN_SITE_CONFIG") or SITE_CONFIG
    user = os.path.join(user_folder(env), "config.toml")
    found = [
        (layer, path, _own(path)) for layer, path in ((SITE, site), (USER, user)) if os.path.isfile(path)
    ]
    home = env.get("HOME") or os.path.expanduser("~")
    project, ignored = _project_file(cwd, home)
    return [*found, *((PROJECT, path, content) for path, content in project)], ignored


def _locked_there() -> list[Pair]:
    """What the site's own file locks, and the values of that alone."""
    pairs = _pairs(SITE_CONFIG, _own(SITE_CONFIG))
    locked = [key for name, keys in pairs if name == "lock" and isinstance(keys, list) for key in keys]
    return [pair for pair in pairs if pair[0] == "lock" or pair[0] in locked]


def _folder(path: str) -> str:
    """A folder of the settings as an absolute path: variables and `~` are read."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path) if "$" in path else path))


def from_arguments(arguments: Sequence[str]) -> list[Pair]:
    """Pairs from `--key=value`, `--key value`, `--flag` of #FTRUN lines, also with `--ft-`. UserError."""
    pairs: list[Pair] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith("--") or word == "--":
            raise UserError(f"#FTRUN: options such as --retries=10 are wanted, not {word!r}")
        key, equals, value = word.removeprefix("--").removeprefix("ft-").partition("=")
        try:
            wants = settings.takes_value(key)
        except SettingError as error:
            raise UserError(f"#FTRUN: {error}") from None
        if not equals and wants:
            following = next(words, None)
            if following is None:
                raise UserError(f"#FTRUN: --{key} wants a value")
            value = following
        pairs.append((key, value if equals or wants else True))
    return pairs


def _from_environment(env: Mapping[str, str]) -> list[tuple[str, list[Pair]]]:
    """(variable, what it sets) for each FTRUN_* variable that is a setting. A list has one element a line."""
    found: list[tuple[str, list[Pair]]] = []
    for name, value in env.items():
        if not name.startswith("FTRUN_") or name[6:] in _NOT_SETTINGS:
            continue
        key = name[6:].lower().replace("_", "-")
        row = SETTINGS.get(key)
        if row is None:
            if now := new_name(key):
                raise UserError(f"{name}: {key!r} is now called {now!r}: {SETTINGS[now].environment}")
            near = errors.nearest_word(key, SETTINGS)
            # A variable that resembles no setting is somebody else's.
            if near and abs(len(near) - len(key)) <= 1:
                raise UserError(
                    f"{name}: no setting is called so; did you mean {SETTINGS[near].environment}?"
                )
        elif row.kind == LIST:
            found.append((name, [(key, element) for element in value.split("\n") if element]))
        else:
            found.append((name, [(key, value)]))
    return found


def _project_file(cwd: str, home: str) -> tuple[list[tuple[str, bytes]], list[str]]:
    """The project's file with its content, or none; and a line for each nearer one that does not count.

    A repository of another user is none: what lies in a folder above could be anybody's.
    """
    home = os.path.normpath(home)
    found: list[str] = []
    theirs: list[str] = []  # why the nearest repository is none, and the files within
    ours = False
    folder = cwd
    while not ours:
        path = os.path.join(folder, PROJECT_FILE)
        if os.path.isfile(path):
            found.append(path)
        ours = folder == home
        if not ours and os.path.lexists(os.path.join(folder, ".git")):
            why = trust.why_foreign(os.path.join(folder, ".git")) or trust.why_foreign(folder)
            ours = not why
            theirs = theirs or ([why, *found] if why else [])
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    if not ours:
        found = [path for path in found if os.path.dirname(path) == cwd]
        if theirs[1:] and not found:
            return [], [f"{theirs[1]} is not read: {_content(theirs[1])[1] or theirs[0]}"]
    ignored: list[str] = []
    for path in found:
        content, why = _content(path)
        if not why:
            return [(path, content)], ignored
        ignored.append(f"{path} is not read: {why}")
    return [], ignored


def _own(path: str) -> bytes:
    """Return the site's or the user's own file. Files of the owner of ftrun's code count, too: that code runs
    as this user anyway. Raises UserError.
    """
    content, why = _content(path, (os.stat(__file__).st_uid,))
    if why:
        raise UserError(f"{why}; settings can run commands, so nothing is read from it")
    return content


def _content(path: str, also: tuple[int, ...] = ()) -> tuple[bytes, str]:
    try:
        return trust.read_settings_file(path, also)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _pairs(path: str, content: bytes) -> list[Pair]:
    import tomllib

    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None
    pairs: list[Pair] = []
    for key, value in table.items():
        if key == "policy" and isinstance(value, dict):
            pairs += [("policy", rule) for rule in _rules(path, value)]
        elif isinstance(value, dict):
            raise UserError(
                f"{path}: [{key}]: settings stand at the top level, without tables but [policy.NAME]"
            )
        else:
            pairs.append((key, value))
    return pairs


def _rules(path: str, table: dict[str, object], name: str = "") -> Iterator[str]:
    """`[policy.network] recover = ["swap", "resubmit"]` as the element `network.recover=swap,resubmit`."""
    for key, value in table.items():
        inner = f"{name}.{key}" if name else key
        if isinstance(value, dict):  # a signature with a dot in it that nobody quoted is one table in another
            yield from _rules(path, value, inner)
        elif not name:
            raise UserError(
                f"{path}: [policy]: a table for each class or signature is wanted: [policy.{key}]"
            )
        elif isinstance(value, list):
            yield f"{inner}={','.join(map(str, value))}"
        else:
            yield f"{inner}={value}"
