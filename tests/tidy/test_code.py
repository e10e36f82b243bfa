"""The rules of the code that a machine can keep: purity, clients, sizes, words. (I/O)"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conftest import BEGIN_WITH

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("supervisor", "slurm", "hooks")

# What a pure module may not import: the clock, files, processes, threads, the network, chance.
WORLD = {
    "asyncio", "fcntl", "glob", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "pwd", "random", "resource",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading",
    "time", "urllib", "uuid",
}  # fmt: skip
# Values, although their module also has the world.
HARMLESS = {
    ("pathlib", "PurePath"),
    ("pathlib", "PurePosixPath"),
    ("time", "struct_time"),
    ("random", "Random"),
    ("signal", "Signals"),
}
READS_THE_WORLD = {"open", "print", "input", "exec", "eval"}
# Makes methods from the names of fields, as the standard library does; the text comes from nowhere else.
MAKES_CODE = {"slurm/records.py": {"exec"}}
READS_A_CLOCK = {"now", "utcnow", "today"}

# Read once from a shipped file when imported: a constant for whoever uses it.
CONSTANTS = {"ftrun.hooks.bundle.shell"}

# Third-party client -> the module that may import it.  The command line is typer's, all of it.
CLIENTS = {
    "ClusterShell": {
        "slurm/client/nodeset.py",
        "supervisor/cluster/hosts.py",
    },  # the latter for groups, which are files
    "apprise": {"supervisor/notices/delivery.py"},
    "hyperscan": {"supervisor/signatures/prefilter.py"},
    "paramiko": {"hooks/ssh/pool.py"},
    "prometheus_client": {"supervisor/publish/metrics.py"},
    "psycopg": {"supervisor/postgres.py"},
    "pyslurm": {"slurm/native/child.py"},
    "structlog": {"supervisor/store/supervisor_log.py"},
    "tenacity": {"slurm/commands/cluster.py"},
}
TYPER_FOLDER = "supervisor/cli/"
TEXTUAL_FOLDER = "supervisor/board/"
RICH_FOLDERS = ("supervisor/cli/", TEXTUAL_FOLDER)

LINES_PER_FILE_MAX = 600
LINES_PER_FUNCTION_MAX = 70
# (file or file:function) that were longer when the rule came.  Empty, and it stays so.
LONGER: set[str] = set()

# Word -> what to write instead.  Spelled in halves, so that this file does not offend itself.
BANNED = {
    "TO" + "DO": "do it, or say what is missing in the docs",
    "FIX" + "ME": "mend it",
    "XX" + "X:": "say what is meant",
    "HA" + "CK": "say why it is so",
    "black" + "list": "denied, excluded",
    "white" + "list": "allowed",
    "sanity " + "check": "check",
    "master " + "node": "controller",
    "/" + "work/": "a path that every machine has",
}
UNREAD = {".git", ".venv", ".tools", ".cache", "build", "dist", "__pycache__", ".hypothesis"}
NOT_OURS = {"uv.lock", "LICENSE"}


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file of ours: its path from the root and text; its tree once a test asks for it, not while tests are collected."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """What the text says in Python's grammar."""
        return _tree(self)

    @property
    def name(self) -> str:
        """Its import name, `ftrun.` in front."""
        parts = Path("ftrun", self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_pure(self) -> bool:
        """Whether its docstring, which comes first, promises so."""
        return self.text.split("\n", 1)[0].removesuffix('"""').endswith("(pure)")


@cache
def _sources() -> tuple[Source, ...]:
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(_read(path) for path in paths if "__pycache__" not in path.parts)


def _read(path: Path) -> Source:
    return Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


@cache
def _tree(source: Source) -> ast.Module:
    return ast.parse(source.text)


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").split("\n", 1)[0]


@cache
def _imports(source: Source) -> tuple[tuple[str, str], ...]:
    """(module, name) of all imports that run; those below `if TYPE_CHECKING:` do not."""
    return tuple(_imported(source.tree))


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        else:
            yield from _imported(node)


def _pure() -> list[Source]:
    return [source for source in _sources() if source.is_pure]


def test_every_module_says_whether_it_is_pure() -> None:
    """The first line of a module's docstring ends with (pure) or (I/O), and nothing stands before it."""
    for source in _sources():
        first = _first_line(source.tree)
        assert first.endswith(("(pure)", "(I/O)")), source.path
        assert source.text.startswith(('"""', 'r"""')), source.path
        assert source.is_pure == first.endswith("(pure)"), source.path


def test_a_pure_module_imports_nothing_of_the_world() -> None:
    """A pure module imports no clock, no file, no process, no thread, no network and no chance."""
    worldly = [
        f"{source.path}: {module} {name}".strip()
        for source in _pure()
        for module, name in _imports(source)
        if module.split(".")[0] in WORLD and (module, name) not in HARMLESS
    ]

    assert [] == worldly


def test_a_pure_module_touches_nothing() -> None:
    """A pure module calls neither open nor print, and reads no clock through datetime."""
    assert [] == [f"{source.path}: {touch}" for source in _pure() for touch in _touches(source)]


def _touches(source: Source) -> Iterator[str]:
    worldly = READS_THE_WORLD - MAKES_CODE.get(source.path, set())
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in worldly:
                yield f"line {node.lineno}: {function.id}()"
            if (
                isinstance(function, ast.Attribute)
                and function.attr in READS_A_CLOCK
                and _is_date(function.value)
            ):
                yield f"line {node.lineno}: .{function.attr}()"


def _is_date(owner: ast.expr) -> bool:
    # The clock of a simulation has a now() too, and is no clock of the world.
    return ast.unparse(owner).split(".")[-1] in {"datetime", "date"}


def test_a_pure_module_stands_on_pure_modules() -> None:
    """What a pure module imports from us is pure too."""
    impure = {other.name for other in _sources() if not other.is_pure} - CONSTANTS
    found = set()
    for source in _pure():
        used = {name for module, name in _imports(source) for name in (module, f"{module}.{name}")}
        found |= {f"{source.path}: {name}" for name in used & impure}

    assert set() == found


def test_a_client_library_is_imported_in_its_one_module() -> None:
    """Each third-party client has one module that may import it; typer belongs to the command line."""
    for path, module in [(source.path, module) for source in _sources() for module, _ in _imports(source)]:
        top = module.split(".")[0]
        assert path in CLIENTS.get(top, {path}), f"{top} belongs to {CLIENTS[top]}"
        assert top != "typer" or path.startswith(TYPER_FOLDER), f"{path}: typer belongs to the command line"
        assert top != "rich" or path.startswith(RICH_FOLDERS), f"{path}: rich belongs to what is shown"
        assert top != "textual" or path.startswith(TEXTUAL_FOLDER), f"{path}: textual belongs to the board"
        assert top not in {"click", "pydantic"}, f"{path}: typer's own, not ours"


def test_files_and_functions_stay_short() -> None:
    """A file has 600 lines at most and a function 70."""
    long = set()
    for source in _sources():
        if source.text.count("\n") > LINES_PER_FILE_MAX:
            long.add(source.path)
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LINES_PER_FUNCTION_MAX:
                    long.add(f"{source.path}:{node.name}")

    assert set() == long - LONGER


def test_the_list_of_longer_things_only_shrinks() -> None:
    """What is excused is still there: a stale excuse is removed."""
    paths = {source.path for source in _sources()}

    assert {excuse.split(":")[0] for excuse in LONGER} <= paths


def test_the_files_that_begin_first_are_there() -> None:
    """A test file that was renamed keeps its place in the order of `./test`."""
    assert [] == [name for name in BEGIN_WITH if not (ROOT / "tests" / name).is_file()]


def test_no_banned_word_is_written_anywhere() -> None:
    """Words that hide work or point at one machine are in no file of the project."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        if _is_unread(relative) or path.is_symlink() or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{relative}: {word!r}: write {better}" for word, better in BANNED.items() if word in text]

    assert [] == found


def _is_unread(path: Path) -> bool:
    made = any(part in UNREAD or part.endswith(("_cache", ".egg-info")) for part in path.parts)
    return made or path.name in NOT_OURS


def test_the_standard_library_is_known() -> None:
    """The set of worldly modules names modules that exist, so that a typing error cannot open a hole."""
    assert WORLD <= set(sys.stdlib_module_names)
