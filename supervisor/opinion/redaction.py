"""Takes names, secrets and paths out of log lines before they leave. (pure)

Patterns find what looks like a secret, and a list gives the names that ftrun knows: users, and the nodes of the
job. Nodes and addresses get numbers, so that lines that are about the same one still show it; `Redactor.node`
finds the node of a number again. What a pattern cannot know, such as the name of a project in a sentence, stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

READ_CHARS = 1200
"""How much of a line is looked at. More would leave to no one, and hostile lines could make the patterns slow."""

_Replace = str | Callable[["re.Match[str]"], str]

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SECRET_NAME = (
    r"[\w.-]*(?:passw(?:or)?d|passwd|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
    r"|authorization|cookie|session[_-]?id|token(?!iz|s?\b\s*[:=]\s*\d+(?:\.\d+)?\b))[\w-]*"
)
_VALUE = r"""(?:"[^"]*"?|'[^']*'?|(?:bearer|basic|token)\s+\S+|[^\s,;}\]]+)"""

_RULES: Sequence[tuple[re.Pattern[str], _Replace]] = (
    (re.compile(r"-----(?:BEGIN|END)[ A-Z0-9]*-----.*"), "<secret>"),
    (re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{8,}"), "<secret>"),
    (re.compile(rf"""(?i)(["']?{_SECRET_NAME}["']?\s*(?:[=:]\s*|=>\s*)){_VALUE}"""), r"\1<secret>"),
    (re.compile(rf"(?i)(--{_SECRET_NAME}\s+)\S+"), r"\1<secret>"),
    (re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+"), "<url>"),
    (re.compile(r"[\w.%+-]+@[\w.-]+"), "<email>"),
    (
        re.compile(r"(?i)\b(user(?:name)?|login|logname|owner|account)(\s*[=:]\s*)[\"']?[\w.-]+"),
        r"\1\2<user>",
    ),
    (re.compile(r"\b([ug]id=\d+)\([^)]*\)"), r"\1(<user>)"),
    (
        re.compile(r"\b(?:sk|pk|rk|hf|gh[pousr]|glpat|xox[abprs]|AKIA|ASIA|ya29|nvapi|wandb)[-_.]?[\w-]{8,}"),
        "<secret>",
    ),
    (re.compile(r"\beyJ[\w-]+(?:\.[\w-]+)*"), "<secret>"),
    (re.compile(r"\b[a-zA-Z]:\\[^\s\"'<>|]*"), "<path>"),
    (re.compile(r"(?<![\w<>/.])(?:~[\w.-]*|\.{1,2})?(?:/(?!dev/)[\w.@%+=:,{}$#-]+)+/?"), "<path>"),
    (
        re.compile(r"(?<![\w<>/.])(?:[\w.@+=-]+/){2,}[\w.@+=-]*|(?<![\w<>/.])[\w.@+-]+/[\w@+-]+\.[a-z]\w*"),
        "<path>",
    ),
    (re.compile(r"(?i)\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"), "<address>"),
    (re.compile(r"(?i)\b(?:GPU|MIG|NPU)-[0-9a-f]{8}[0-9a-f-]*"), "<device>"),
    (re.compile(r"(?i)(?<!0x)\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{24,}\b"), "<secret>"),
    (re.compile(r"(?<![\w<])(?=[\w+/=-]*\d)(?=[\w+/=-]*[a-z])(?=[\w+/=-]*[A-Z])[\w+/=-]{24,}"), "<secret>"),
)
_IPV4 = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_IPV6 = re.compile(
    r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}(?![\w:])|(?<![\w:])[0-9a-f]{0,4}::(?:[0-9a-f]{1,4}:?)+"
)


class Redactor:
    """Redacts the lines of one question. `nodes` are those of the job, `users` names that must not leave."""

    def __init__(self, nodes: Iterable[str], users: Iterable[str] = ()) -> None:
        self._nodes = tuple(dict.fromkeys(nodes))
        short = {name.partition(".")[0]: number for number, name in reversed([*enumerate(self._nodes, 1)])}
        self._number = {name.lower(): number for name, number in short.items()}
        self._number |= {name.lower(): number for number, name in enumerate(self._nodes, 1)}
        self._addresses: dict[str, int] = {}
        self._names = _one_of(self._number, after=r"(?:\.[a-zA-Z][\w-]*)*")
        self._users = _one_of({user for user in users if len(user) > 1 and user != "root"})

    @property
    def labels(self) -> tuple[str, ...]:
        """What the nodes are called: `<node 1>`, ..."""
        return tuple(f"<node {number}>" for number in range(1, len(self._nodes) + 1))

    def node(self, label: str) -> str:
        """The node that is called so, with or without the angle brackets; "" for none of them."""
        wanted = label.strip().strip("<>").lower()
        return dict(zip((one.strip("<>") for one in self.labels), self._nodes, strict=True)).get(wanted, "")

    def named(self, text: str) -> str:
        """A text of the answer with the nodes' own names."""
        return re.sub(r"<node \d+>", lambda found: self.node(found[0]) or found[0], text)

    def redact(self, line: str) -> str:
        """The line as it may leave."""
        text = _ESCAPE.sub(" ", line[:READ_CHARS])
        text = "".join(sign if sign.isprintable() else " " for sign in text)
        if len(line) > READ_CHARS:  # what was cut off in the middle would not be recognised
            text = text.rpartition(" ")[0]
        if self._names is not None:
            text = self._names.sub(lambda found: f"<node {self._number[found[1].lower()]}>", text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        if self._users is not None:
            text = self._users.sub("<user>", text)
        text = _IPV4.sub(self._address, text)
        return _IPV6.sub(self._address, text)

    def _address(self, found: re.Match[str]) -> str:
        return f"<address {self._addresses.setdefault(found[0], len(self._addresses) + 1)}>"


def _one_of(names: Iterable[str], *, after: str = "") -> re.Pattern[str] | None:
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    words = "|".join(map(re.escape, longest_first))
    return re.compile(rf"(?i)(?<![\w-])({words}){after}(?![\w-])") if words else None
