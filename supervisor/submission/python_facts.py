"""What the source of a training program says: imports, options, variables, calls, and the paths that it makes. (pure)

Nothing is run or imported: the source is parsed, and a path is computed as far as constants, options and
variables go. Whatever changes while the program runs (a step, an epoch) becomes `*`; what is not known either,
becomes None, so that nobody takes a guess for a fact.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Option(NamedTuple):
    """An option of the program: its name with dashes, its default ("" = none is known), whether it takes no value."""

    name: str
    default: str
    is_flag: bool


class Call(NamedTuple):
    """A call in the source: the last names of what is called ("save", "ModelCheckpoint"), and its parts."""

    name: str
    owner: str
    node: ast.Call
    line: int

    def argument(self, keyword: str, position: int | None = None) -> ast.expr | None:
        """The argument of this keyword, else at this position; None where it has neither."""
        found = next((one.value for one in self.node.keywords if one.arg == keyword), None)
        if found is None and position is not None and position < len(self.node.args):
            found = self.node.args[position]
        return found


class PythonFacts:
    """One source, or several of one program as if they were one. Sources that cannot be parsed count as text only."""

    def __init__(
        self, sources: Mapping[str, str], words: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        self.text = "\n".join(sources.values())
        self.files = tuple(sources)
        self.options: dict[str, Option] = {}
        self.calls: list[Call] = []
        self.read_variables: dict[str, str] = {}
        self.imports: set[str] = set()
        self._assigned: dict[str, list[ast.expr]] = {}
        self._words, self._variables = words, variables
        for text in sources.values():
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError):
                self.imports |= set(re.findall(r"^\s*(?:from|import)\s+([\w.]+)", text, re.MULTILINE))
                continue
            for node in ast.walk(tree):
                self._note(node)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.imports |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            self.imports |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            self._assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self._assigned.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.Subscript) and _dotted(node.value).endswith("environ"):
            self._note_variable(node.slice, None)
        elif isinstance(node, ast.Call):
            self._note_call(node)

    def _note_call(self, node: ast.Call) -> None:
        owner, _, name = _dotted(node.func).rpartition(".")
        call = Call(name, owner, node, node.lineno)
        self.calls.append(call)
        if name == "getenv" or (name == "get" and owner.endswith("environ")):
            self._note_variable(call.argument("key", 0), call.argument("default", 1))
        if name not in ("add_argument", "option"):
            return
        names = [
            one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        action, default = call.argument("action"), call.argument("default")
        flag = isinstance(action, ast.Constant) and str(action.value).startswith("store_")
        told = str(default.value) if isinstance(default, ast.Constant) and default.value is not None else ""
        for one in names:
            if one.startswith("--"):
                self.options[_plain(one)] = Option(one, told, flag)

    def _note_variable(self, name: ast.expr | None, default: ast.expr | None) -> None:
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            told = default.value if isinstance(default, ast.Constant) else ""
            self.read_variables[name.value] = str(told or "")

    def uses(self, *modules: str) -> bool:
        """Whether a source imports one of these modules, or one below it."""
        return any(one == name or one.startswith(f"{name}.") for one in self.imports for name in modules)

    def called(self, *names: str, owner: str = "") -> Iterator[Call]:
        """The calls of these names, of what ends with `owner`."""
        return (one for one in self.calls if one.name in names and one.owner.endswith(owner))

    def value(self, name: str) -> str | None:
        """What an option is given, or its default; None where neither is known."""
        plain = _plain(name)
        given = self._words.get(plain)
        return given or (self.options[plain].default or None if plain in self.options else None)

    def path(self, node: ast.expr | None, depth: int = 0) -> str | None:
        """The path that an expression makes, `*` for what changes; None where it is not known."""
        if node is None or depth > 12:  # a name that is assigned from itself
            return None
        if isinstance(node, ast.Constant):
            return str(node.value) if isinstance(node.value, str | int) else None
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.FormattedValue) else one for one in node.values)
            return _stars("".join(self.path(part, depth + 1) or "*" for part in parts))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
            left, right = self.path(node.left, depth + 1), self.path(node.right, depth + 1) or "*"
            return (
                None if left is None else _stars(left + ("/" if isinstance(node.op, ast.Div) else "") + right)
            )
        if isinstance(node, ast.Call):
            return self._path_of_call(node, depth)
        if isinstance(node, ast.Subscript) and _dotted(node.value).endswith("environ"):
            name = node.slice.value if isinstance(node.slice, ast.Constant) else ""
            return self._variables.get(str(name))
        if isinstance(node, ast.Attribute):
            return self.value(f"--{node.attr}")
        if isinstance(node, ast.Name) and node.id in self._assigned:
            values = sorted(self._assigned[node.id], key=lambda one: one.lineno)
            before = [one for one in values if one.lineno < node.lineno]  # out = join(folder, out)
            return self.path((before or values)[-1], depth + 1)
        return None

    def _path_of_call(self, node: ast.Call, depth: int) -> str | None:
        owner, _, name = _dotted(node.func).rpartition(".")
        inner = [self.path(one, depth + 1) for one in node.args]
        if name == "join" and owner.endswith("path"):
            return None if not inner or inner[0] is None else posixpath.join(*(one or "*" for one in inner))
        if name in ("Path", "str", "abspath", "realpath", "expanduser", "epath") and inner:
            return inner[0]
        if name in ("resolve", "absolute", "as_posix") and isinstance(node.func, ast.Attribute):
            return self.path(node.func.value, depth + 1)
        if name == "getenv" or (name == "get" and owner.endswith("environ")):
            known = self._variables.get(inner[0] or "") if inner else None
            return known or (inner[1] if len(inner) > 1 else None)
        if name == "format" and isinstance(node.func, ast.Attribute):
            text = self.path(node.func.value, depth + 1)
            return None if text is None else _stars(re.sub(r"\{[^}]*\}", "*", text))
        return None


def _dotted(node: ast.expr) -> str:
    """ "os.environ.get" of such an expression; what is no name counts as ""."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _stars(path: str) -> str:
    return re.sub(r"\*{2,}", "*", path)
