"""Parse and refuse the values of settings. (pure)

A setting has one name in every source: `drain-cap` is the TOML key, `--ft-drain-cap` the option,
`--drain-cap` on a `#FTRUN` line, FTRUN_DRAIN_CAP in the environment. A value is checked where it is
written, so a wrong one is refused at submission, with the nearest right one.

A parsed value is a whole number (int), a duration in seconds (float), a share 0..1 (float), a flag (bool),
a text, a number, or a list of texts. A setting whose default has to be learned or asked for is "" until
somebody sets it.

The rows are in `table`. `ftrun sbatch` imports these modules, so they import nothing else.
"""

from __future__ import annotations

from ftrun.supervisor.config.table import (
    BELOW,
    BUDGET_CLASSES,
    CHOICE,
    DURATION,
    FLAG,
    INT,
    LIST,
    NOTHING,
    NUMBER,
    OPTION,
    SHARE,
    TABLE,
    TEXT,
    Setting,
)
from ftrun.supervisor.model.errors import SettingError, nearest_word
from ftrun.supervisor.model.renamed_settings import new_name, new_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ftrun.supervisor.config.table import Value

RULE_KEYS = (
    "recover",
    "budget",
    *(
        f"{kind}-{rung}"
        for kind in ("budget", "limit")
        for rung in ("rank", "step", "swap", "companion", "shrink")
    ),
)
"""What can be said of one class or signature alone, by `policy`."""

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
# What both sbatch and scancel send, and what a script can catch.
_SIGNALS = ("USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "ALRM", "URG", "CONT")


def _table() -> dict[str, Setting]:
    rows = {row.key: row for row in TABLE}
    for fault in BUDGET_CLASSES.split():
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


def number_of(values: Mapping[str, Any], key: str) -> float:
    """A run's number, in seconds for a duration; the default where an older release knew no such setting."""
    return float(values[key] if key in values else SETTINGS[key].default)  # type: ignore[arg-type]


def text_of(values: Mapping[str, Any], key: str) -> str:
    """The same of a text or a choice."""
    return str(values[key] if key in values else SETTINGS[key].default)


def lookup(key: str) -> Setting:
    """The row of `key`. Raises SettingError with its name of today, else the nearest one."""
    row = SETTINGS.get(key)
    if row is None:
        if now := new_name(key):
            raise SettingError(f"{key!r} is now called {now!r}")
        near = nearest_word(key, SETTINGS)
        raise SettingError(f"no setting is called {key!r}" + (f"; did you mean {near!r}?" if near else ""))
    return row


def takes_value(key: str) -> bool:
    """Whether `--ft-KEY` wants a value. Raises SettingError for an unknown key."""
    return lookup(key).kind != FLAG


def parse(key: str, text: object) -> Value:
    """The value of `key` from what a layer says: text, or a number, truth or list from TOML. Raises
    SettingError. A list setting takes one element or a list of them.
    """
    row = lookup(key)
    if key == "recover" and isinstance(text, (list, tuple)):  # in TOML a list reads better
        text = ",".join(map(str, text))
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
    return parse_number(row, text)


def parse_all(pairs: Iterable[tuple[str, object]]) -> dict[str, Value]:
    """One layer: later pairs win, the elements of list settings add up. Raises SettingError."""
    values: dict[str, Value] = {}
    for key, text in pairs:
        value = parse(key, text)
        before = values.get(key)
        values[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return values


def reach_of_value(key: str, value: Value) -> str:
    """What a value lets its author do: "runs", "reads", "writes", or "" for a harmless one."""
    row = SETTINGS[key]
    elements = [
        one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str) and one
    ]
    return row.reach if any(not _is_tame(row.tame, one) for one in elements) else NOTHING


def parse_policy_rule(element: str) -> tuple[str, str, Value]:
    """(class or signature, key, value) of one element of `policy`: "network.budget-swap=2". The name itself
    is not looked up. Raises SettingError.
    """
    left, equals, text = element.partition("=")
    name, dot, key = left.strip().rpartition(".")
    if not (name and dot and equals):
        raise SettingError(
            f"policy: NAME.KEY=VALUE is wanted, such as network.recover=swap,resubmit, not {element!r}"
        )
    if key not in RULE_KEYS:
        near = nearest_word(key, RULE_KEYS)
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(RULE_KEYS)}"
        raise SettingError(f"policy: {name} has no key {key!r}; {hint}")
    if not text.strip():
        raise SettingError(f"policy: {name}.{key}: a value is wanted behind the =")
    try:
        return name, key, parse("budget-node" if key == "budget" else key, text.strip())
    except SettingError as error:
        raise SettingError(f"policy: {name}.{str(error).replace('budget-node:', 'budget:', 1)}") from None


def format_value(key: str, value: Value) -> str:
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
    if kind == NUMBER and isinstance(value, float):
        return f"{value:g}"
    if kind == DURATION and isinstance(value, float):
        return _show_duration(value)
    return str(value)


def _is_tame(form: str, text: str) -> bool:
    """Whether a text has the harmless form of its row."""
    if form == BELOW:  # a name that begins with a dot and has a wildcard may be `..` to a shell
        parts = text.split("/")
        dotted = (part for part in parts if part.startswith(".") and part != ".")
        return not (text.startswith(("/", "~")) or "$" in text) and not any(
            part.startswith("..") or any(sign in part for sign in "*?[{") for part in dotted
        )
    if (
        form == OPTION
    ):  # `--resume={checkpoint}`, `trainer.ckpt={checkpoint}`, `{step}`, `--resume`; no `-mMODULE`, no path
        rest = text
        for name in ("{checkpoint_root}", "{checkpoint}", "{step}"):
            rest = rest.removesuffix(name)
        is_word = rest.isascii() and all(sign.isalnum() or sign in "-_.+=" for sign in rest)
        return is_word and ".." not in rest and (rest != text or text.startswith("--"))
    return False


def _element(key: str, element: object) -> str:
    if not isinstance(element, str) or not element:
        raise SettingError(f"{key}: a text is wanted, not {element!r}")
    name, equals, _ = element.partition("=")
    if key == "resume-env" and not (equals and name.isidentifier() and name.isascii()):
        raise SettingError(f"resume-env: NAME=TEMPLATE is wanted, not {element!r}")
    if key == "lock":
        lookup(element)
    if key == "policy":
        parse_policy_rule(element)
    return element


def _text(row: Setting, text: object) -> str:
    if not isinstance(text, str):
        wanted = " or ".join(row.choices) or "a text"
        raise SettingError(f"{row.key}: {wanted} is wanted, not {text!r}")
    if "\n" in text or "\0" in text:
        raise SettingError(f"{row.key}: one line is wanted")
    if row.default and not row.choices and not text.strip():
        raise SettingError(f"{row.key}: a value is wanted, such as {row.default}")
    if row.choices and text not in row.choices:
        if now := new_value(row.key, text):
            raise SettingError(f"{row.key}: {text!r} is now called {now!r}")
        near = nearest_word(text, row.choices)
        hint = f"; did you mean {near}?" if near else ""
        raise SettingError(f"{row.key}: {' or '.join(row.choices)} is wanted, not {text!r}{hint}")
    if row.key == "save-signal" and text.upper().removeprefix("B:").removeprefix("SIG") not in _SIGNALS:
        raise SettingError(f"save-signal: a signal such as USR1 or B:USR1 is wanted, not {text!r}")
    _refuse_form(row.key, text)
    return text


def _refuse_form(key: str, text: str) -> None:
    """Refuse a text that its reader would refuse; a reader is imported only if its setting is made."""
    if key == "pool":
        from ftrun.supervisor.config.node_counts import parse_pool

        parse_pool(text)
    elif key == "unit":
        from ftrun.supervisor.config.node_counts import segment_size

        segment_size({"unit": text, "nodes": "" if ":" in text else "2-2:2"})
    elif key in ("nodes", "nodes-valid"):
        from ftrun.supervisor.config.node_counts import parse_sizes

        parse_sizes(*((text, "") if key == "nodes" else ("", text)))
    elif key == "stage-dir" and not text.startswith("/"):
        raise SettingError(f"{key}: a full path that each node has for itself is wanted, not {text!r}")
    elif key == "stage" and text and not text.startswith(("/", "~/")):
        raise SettingError(f"{key}: a full path that all nodes see is wanted, not {text!r}")
    elif key in ("stage-limit", "stage-rate", "cache-limit", "checkpoint-checksum-rate"):
        from ftrun.hooks.runtime.formats import parse_amount

        if key != "stage-limit" and "%" in text:
            raise SettingError(f"{key}: a size such as 500M is wanted, not {text!r}")
        try:
            parse_amount(text, 0)
        except ValueError:
            wanted = (
                "a size such as 500M"
                if key != "stage-limit"
                else "a size such as 200G or a share such as 40%"
            )
            raise SettingError(f"{key}: {wanted} is wanted, not {text!r}") from None
    elif key == "second-opinion":
        from ftrun.supervisor.config.endpoint_url import parse_endpoint_url

        parse_endpoint_url(key, text)
    elif key == "storm":
        parse_storm(text)
    elif key == "escalate":
        parse_escalation(text)
    elif key == "recover":
        from ftrun.supervisor.config.rungs import parse_order

        parse_order(key, text)


_STORM_COUNT = Setting("storm", INT, 0, "", least=1)
_STORM_WITHIN = Setting("storm", DURATION, 0.0, "", least=1)


def parse_storm(text: str) -> tuple[int, float] | None:
    """(restarts, seconds) of `storm`, such as 10/1h; None for never. Raises SettingError."""
    count, slash, within = text.partition("/")
    if text == "never":
        return None
    if not slash:
        raise SettingError(f"storm: N/TIME such as 10/1h, or never, is wanted, not {text!r}")
    return int(parse_number(_STORM_COUNT, count)), float(parse_number(_STORM_WITHIN, within))


def parse_escalation(text: str) -> dict[str, float]:
    """What is asked for how many times as much, of `escalate`: mem, time. Raises SettingError."""
    factors = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        key, _, times = part.partition("=")
        try:
            factor = float(times.removesuffix("x"))
        except ValueError:
            factor = 0.0
        if key not in ("mem", "time") or key in factors or not (times.endswith("x") and 1.0 < factor <= 10.0):
            raise SettingError(
                f"escalate: mem=1.5x, time=2x or both are wanted, each of more than 1x and at most 10x, not {text!r}"
            )
        factors[key] = factor
    return factors


def _flag(key: str, text: object) -> bool:
    if isinstance(text, bool):
        return text
    word = str(text).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise SettingError(f"{key}: true or false is wanted, not {text!r}")


def parse_number(row: Setting, given: str | float) -> int | float:
    """The number that `given` means for a row, in seconds for a duration. Raises SettingError."""
    text = str(given).strip()
    try:
        if row.kind == INT:
            value: int | float = int(text)
        elif row.kind == NUMBER:
            value = float(text)
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
    unit = " s" if row.kind == DURATION else ""
    least = f" of at least {row.least:g}{unit}" if row.least else ""
    return {
        INT: f"a whole number{least or ' from 0 up'}",
        DURATION: f"a duration{least} such as 90, 90s, 5m, 2h or 1d",
        SHARE: "a share such as 5% or 0.05",
        NUMBER: f"a number{least}",
    }[row.kind]
