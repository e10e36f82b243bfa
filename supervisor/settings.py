"""The table of settings: names, kinds, defaults, meaning; reading and refusing values. (pure)

How it thinks. A setting has one name in every layer: `drain-cap` is the TOML key, `--ft-drain-cap` the option,
`--drain-cap` on a `#FTRUN` line, FTRUN_DRAIN_CAP in the environment. A value is checked where it is written, so a wrong
one is refused at submission, with the nearest right one, and never found out by a supervisor at night.

What a value is once it was read: a whole number (int), a duration in seconds (float), a share 0..1 (float), a flag (bool),
a text, or a list of texts. A setting whose default has to be learned or asked for is "" until somebody sets it.

`ftrun sbatch` reads this module, so it imports nothing; the sense of each setting stands in `doc` and docs/settings.md
is made from it.
"""

from __future__ import annotations

__all__ = [
    "SETTINGS",
    "Setting",
    "SettingError",
    "defaults",
    "nearest",
    "parse",
    "parse_all",
    "show",
    "takes_value",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Value = bool | int | float | str | list[str]

INT, DURATION, SHARE, FLAG, TEXT, LIST, CHOICE = "int", "duration", "share", "flag", "text", "list", "choice"
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class SettingError(Exception):
    """A name or value that cannot be meant. The message is one line and names what would be right."""


class Setting:
    """One row of the table.

    `default` is in the form that `parse` returns. `least` is the smallest number allowed. `scope` says who may set it:
    "any", "admin" (site and user files), "site" (site file only), "once" (a single submission: script, environment,
    command line).
    """

    __slots__ = ("choices", "default", "doc", "key", "kind", "least", "scope", "value_name")

    def __init__(
        self,
        key: str,
        kind: str,
        default: Value,
        doc: str,
        *,
        choices: tuple[str, ...] = (),
        least: float = 0,
        scope: str = "any",
        value_name: str = "",
    ) -> None:
        self.key = key
        self.kind = kind
        self.default = default
        self.doc = doc
        self.choices = choices
        self.least = least
        self.scope = scope
        self.value_name = value_name or {INT: "N", DURATION: "TIME", SHARE: "PERCENT", FLAG: ""}.get(
            kind, "TEXT"
        )

    @property
    def environment(self) -> str:
        """The name of its environment variable."""
        return "FTRUN_" + self.key.upper().replace("-", "_")


_TABLE = (
    Setting("retries", INT, 20, "How often a run may be started again, over all fault classes; progress does not refill it."
            " 0: watch and diagnose, never start again."),
    Setting("observe", FLAG, False, "Watch, diagnose and decide, but do nothing; the decisions are shown."),
    Setting("name", TEXT, "", "First half of the run's id; default: the job's name.", scope="once"),
    Setting("checkpoint", TEXT, "", "Where the script writes its checkpoints: a glob, relative to the job's working folder.",
            value_name="GLOB"),
    Setting("checkpoint-marker", TEXT, "", "What makes a checkpoint complete: the name of a file inside a checkpoint folder, or a"
            " suffix of a file beside it. Default: any that is no longer growing.", value_name="NAME"),
    Setting("resume-arg", LIST, [], "Argument that is appended to the script's when there is a checkpoint; {checkpoint} is its"
            " path. May be given several times.", value_name="TEMPLATE"),
    Setting("resume-env", LIST, [], "Variable that is set for the script when there is a checkpoint: NAME=TEMPLATE with"
            " {checkpoint}. May be given several times.", value_name="NAME=TEMPLATE"),
    Setting("log", LIST, [], "Further log files to read, as globs; the job's own output is always read. May be given several"
            " times.", value_name="GLOB"),
    Setting("exclude-for", DURATION, 86_400.0, "How long the run avoids a node that was blamed."),
    Setting("exclude-cap", SHARE, 0.10, "Largest part of a partition that a run may avoid at one time."),
    Setting("quarantine", CHOICE, "auto", "Avoid nodes that other runs of this user hold faults against, within `exclude-cap`; never ="
            " only those that this run itself blames.", choices=("auto", "never")),
    Setting("quarantine-max", DURATION, 2_592_000.0, "Longest quarantine of a node; the first lasts `exclude-for`, each further strike"
            " doubles it."),
    Setting("ledger-keep", DURATION, 15_552_000.0, "How long the ledger of nodes keeps what it knows.", least=86_400.0,
            scope="admin"),
    Setting("drain", CHOICE, "auto", "Drain bad nodes: auto = where Slurm permits it and the proof does not rest on the log alone, else ask"
            " the site's operator where there is one; ask = always ask the operator.", choices=("auto", "ask", "never")),
    Setting("drain-cap", SHARE, 0.05, "Largest part of a partition that ftrun may hold drained, all supervisors together; one node"
            " is always allowed."),
    Setting("operator-spool", TEXT, "", "Folder in which supervisors that may not drain leave signed requests for `ftrun operator`.",
            scope="site", value_name="DIR"),
    Setting("operator-action", CHOICE, "drain", "What the operator does with a request that a node confirms: drain = drain it; none ="
            " note and answer it only.", choices=("drain", "none"), scope="site"),
    Setting("operator-per-hour", INT, 4, "How many nodes the operator drains in an hour at most.", scope="site"),
    Setting("operator-per-user", INT, 10, "How many requests of one user the operator looks into in an hour.", scope="site"),
    Setting("recheck-passes", INT, 2, "How many clean rechecks in a row give a node back; one more for each time that it lied.",
            least=1, scope="admin"),
    Setting("recheck-spacing", DURATION, 600.0, "Pause between the first two clean rechecks of a node; longer for the next ones, after"
            " failures, and four times as long for each time that it lied.", scope="admin"),
    Setting("recheck-lies", INT, 2, "How often a node may be given back and be blamed again before it is left to a person.", least=1,
            scope="admin"),
    Setting("recheck-step", LIST, [], "Command that `ftrun recheck` tries on a node that fails, {node} is its name; the next one after"
            " the next failure, each once. May be given several times.", scope="admin", value_name="COMMAND"),
    Setting("ssh-config", TEXT, "", "ssh_config file for looking at nodes. Default: ~/.ssh/config, then /etc/ssh/ssh_config.",
            scope="admin", value_name="FILE"),
    Setting("settle", DURATION, 2.0, "How long a log must be quiet after the end before the fault is judged."),
    Setting("settle-max", DURATION, 10.0, "How long to wait at most for that quiet."),
    Setting("end-wait", DURATION, 60.0, "How long after a fatal line a live run may stand still before it is ended; never less than"
            " five median steps."),
    Setting("fence-wait", DURATION, "", "How long a node that fell silent is waited for before its job counts as over. Default:"
            " Slurm's SlurmdTimeout + 30 s."),
    Setting("claim-wait", DURATION, 120.0, "How long a later attempt waits on its node for the run's folder before it gives up."),
    Setting("backoff", DURATION, 5.0, "Pause before a new attempt after a fault that time may heal; doubled each time."),
    Setting("backoff-max", DURATION, 600.0, "Longest such pause."),
    Setting("poll", DURATION, 2.0, "How often Slurm is asked about the jobs, once for all of them; 5 s to 30 s on a big site.",
            least=0.2),
    Setting("lease", DURATION, 20.0, "How long a supervisor may be silent before another takes over.", least=1),
    Setting("watch", CHOICE, "auto", "Look after the nodes while the script runs, by a step that takes nothing from it: auto = where it"
            " can (not for tasks of arrays).", choices=("auto", "never")),
    Setting("watch-period", DURATION, 60.0, "How often the watch looks at a node; it begins after half of it, at most 30 s.",
            least=1),
    Setting("after-checks", CHOICE, "auto", "Check the nodes of a script that failed before its job ends: auto = unless it failed"
            " within 5 s or somebody ended it; ssh = where the job is gone already, over SSH as well.",
            choices=("auto", "ssh", "never")),
    Setting("preflight", FLAG, False, "Check the nodes before the script starts, in every attempt; where a few of them are bad the script"
            " starts on others instead."),
    Setting("checks", TEXT, "", "File with thresholds of the checks before the script, as JSON; {node} in it is the node's name. Default:"
            " /etc/ftrun/checks.json of each node, where there is one.", value_name="FILE"),
    Setting("pre-hook", TEXT, "", "Command that each attempt runs on its first node before the script (docs/hooks.md).",
            value_name="COMMAND"),
    Setting("post-hook", TEXT, "", "Command that each attempt runs on its first node after the script, however that ended.",
            value_name="COMMAND"),
    Setting("on-fault", TEXT, "", "Command that the supervisor runs once a fault is diagnosed and the next step is decided.",
            value_name="COMMAND"),
    Setting("on-stop", TEXT, "", "Command that the supervisor runs when it stops a run for good.", value_name="COMMAND"),
    Setting("hook-limit", DURATION, 60.0, "How long such a command may take before it is ended; it never costs more than this.",
            least=1),
    Setting("supervisor", CHOICE, "auto", "auto: a submission starts a supervisor where none is alive; none: somebody else runs"
            " `ftrun supervise`.", choices=("auto", "none")),
    Setting("idle-exit", DURATION, 120.0, "How long a supervisor that was started by a command stays when there is nothing to look"
            " after.", scope="admin"),
    Setting("strict", FLAG, False, "Refuse to submit where the run's folder cannot be written, instead of submitting a plain job."),
    Setting("dry-run", FLAG, False, "Print the command and the file that would be submitted; submit nothing.", scope="once"),
    Setting("home", TEXT, "", "Folder of all runs, on a file system that the nodes see. Default: ~/.local/state/ftrun.",
            scope="admin", value_name="DIR"),
    Setting("lock", LIST, [], "Settings that nobody but the site may set.", scope="site", value_name="KEY"),
)  # fmt: skip
_BUDGETS = (
    "hardware-gpu hardware-other network storage node scheduler oom-gpu oom-host user-code data checkpoint preempted"
    " timelimit cancelled hang library-bug config port-conflict unknown healthy"
)


def _table() -> dict[str, Setting]:
    rows = {row.key: row for row in _TABLE}
    for fault in _BUDGETS.split():
        doc = f"How often a run may fail with class {fault} without progress in between."
        rows[f"budget-{fault}"] = Setting(f"budget-{fault}", INT, "", doc)
    return rows


SETTINGS: Mapping[str, Setting] = _table()


def defaults() -> dict[str, Value]:
    """Every setting's default. Lists are fresh."""
    return {
        key: list(row.default) if isinstance(row.default, list) else row.default
        for key, row in SETTINGS.items()
    }


def lookup(key: str) -> Setting:
    """The row of `key`. Raises SettingError with the nearest name."""
    row = SETTINGS.get(key)
    if row is None:
        near = nearest(key, SETTINGS)
        raise SettingError(f"no setting is called {key!r}" + (f"; did you mean {near!r}?" if near else ""))
    return row


def takes_value(key: str) -> bool:
    """Whether `--ft-KEY` wants a value. Raises SettingError for an unknown key."""
    return lookup(key).kind != FLAG


def parse(key: str, text: object) -> Value:
    """The value of `key` from what a layer says: text, or a number, truth or list from TOML.

    Raises SettingError. A list setting takes one element or a list of them.
    """
    row = lookup(key)
    if isinstance(text, (list, tuple)) and row.kind != LIST:
        raise SettingError(f"{key}: one value is wanted, not a list")
    if row.kind == LIST:
        elements = text if isinstance(text, (list, tuple)) else [text]
        return [_element(key, element) for element in elements]
    if row.default == "" and text == "":
        return ""
    if row.kind in (TEXT, CHOICE):
        return _text(row, text)
    if row.kind == FLAG:
        return _flag(key, text)
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise SettingError(f"{key}: {_wanted(row)} is wanted, not {text!r}")
    return _number(row, text)


def parse_all(pairs: Iterable[tuple[str, object]]) -> dict[str, Value]:
    """One layer: later pairs win, the elements of list settings add up. Raises SettingError."""
    values: dict[str, Value] = {}
    for key, text in pairs:
        value = parse(key, text)
        before = values.get(key)
        values[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return values


def show(key: str, value: Value) -> str:
    """A value as a person would write it."""
    kind = SETTINGS[key].kind
    if value in ("", []):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(value)
    if kind == SHARE and isinstance(value, float):
        return f"{value * 100:g}%"
    if kind == DURATION and isinstance(value, float):
        return _show_duration(value)
    return str(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that takes the fewest changes to get to; "" where none is near."""
    best, least = "", max(2, len(word) // 3) + 1
    for candidate in known:
        changes = _distance(word, candidate, least)
        if candidate.startswith(word) and word:
            changes = min(changes, 1)
        if changes < least:
            best, least = candidate, changes
    return best


def _distance(a: str, b: str, limit: int) -> int:
    if abs(len(a) - len(b)) >= limit:
        return limit
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def _element(key: str, element: object) -> str:
    if not isinstance(element, str) or not element:
        raise SettingError(f"{key}: a text is wanted, not {element!r}")
    name, equals, _ = element.partition("=")
    if key == "resume-env" and not (equals and name.isidentifier() and name.isascii()):
        raise SettingError(f"resume-env: NAME=TEMPLATE is wanted, not {element!r}")
    if key == "lock":
        lookup(element)
    return element


def _text(row: Setting, text: object) -> str:
    if not isinstance(text, str):
        raise SettingError(f"{row.key}: a text is wanted, not {text!r}")
    if "\n" in text or "\0" in text:
        raise SettingError(f"{row.key}: one line is wanted")
    if row.choices and text not in row.choices:
        near = nearest(text, row.choices)
        hint = f"; did you mean {near}?" if near else ""
        raise SettingError(f"{row.key}: {' or '.join(row.choices)} is wanted, not {text!r}{hint}")
    return text


def _flag(key: str, text: object) -> bool:
    if isinstance(text, bool):
        return text
    word = str(text).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise SettingError(f"{key}: true or false is wanted, not {text!r}")


def _number(row: Setting, given: str | float) -> int | float:
    text = str(given).strip()
    try:
        if row.kind == INT:
            value: int | float = int(text)
        elif row.kind == SHARE:
            value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        else:
            value = _duration(text)
    except ValueError:
        raise SettingError(f"{row.key}: {_wanted(row)} is wanted, not {given!r}") from None
    if not row.least <= value < 1e12 or (row.kind == SHARE and value > 1):
        raise SettingError(f"{row.key}: {given!r} is out of range; {_wanted(row)} is wanted")
    return value


def _duration(text: str) -> float:
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(digits) :]
    if unit not in _UNITS:
        raise ValueError(unit)
    return float(digits) * _UNITS[unit]


def _show_duration(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def _wanted(row: Setting) -> str:
    least = f" of at least {row.least:g}" if row.least else ""
    return {
        INT: f"a whole number{least or ' from 0 up'}",
        DURATION: f"a duration{least} such as 90, 90s, 5m, 2h or 1d",
        SHARE: "a share such as 5% or 0.05",
    }[row.kind]
