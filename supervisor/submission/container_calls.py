"""What a script's containers will not see, told before the job waits in the queue. (I/O)

A script starts containers by `srun --container-image` (pyxis), by `apptainer exec` (or run, shell; singularity) or by `podman run`
(or exec; docker). Only what its words say for certain counts: a word with a variable that the script does not set to a plain text
says nothing. Nothing is said of mounts that the site makes by itself, so what is found is a remark, and with `strict` a refusal.
"""

from __future__ import annotations

import os
import re
import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ASSIGNED = re.compile(r"^\s*(?:export\s+|readonly\s+|local\s+|declare\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)=(.*)$")
_NAME = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_GLOB = re.compile(r"[*?\[{]")
_MOUNTED = {
    "pyxis": ("--container-mounts",),
    "apptainer": ("--bind", "-B"),
    "podman": ("--volume", "-v"),
}
_ENGINES = {"apptainer": "apptainer", "singularity": "apptainer", "podman": "podman", "docker": "podman"}
_STARTS = {"apptainer": ("exec", "run", "shell"), "podman": ("run",)}
_PROGRAMS = frozenset(
    {"bash", "sh", "env", "python", "python3", "torchrun", "accelerate", "deepspeed", "msrun", "ftrun-rank"}
)
REMARKS_MAX = 3
PAGE = "docs/containers.md"


class ContainerCall:
    """One call that starts a container: its line from 1, engine, words, and (source, path inside) of its mounts.

    `is_plain`: every mount is known, and none is left to a variable.
    """

    __slots__ = ("engine", "is_plain", "line", "mounts", "words")

    def __init__(self, line: int, engine: str, words: Sequence[str]) -> None:
        words = words[: _first_program_word(words)]
        self.line, self.engine, self.words = line, engine, words
        values = list(_values(words, _MOUNTED[engine]))
        self.is_plain = not any("$" in word or word.startswith("--mount") for word in words)
        self.mounts = [
            (parts[0], (parts[1:] or parts)[0])
            for value in values
            for parts in (one.split(":") for one in value.split(","))
            if "$" not in parts[0] and parts[0].startswith("/") and (parts[1:] or parts)[0].startswith("/")
        ]

    def inside(self, path: str) -> str:
        """A path of the host as this container shows it; "" if no mount shows it."""
        found = [(source, path_in) for source, path_in in self.mounts if _is_below(path, source)]
        same = [pair for pair in found if pair[0].rstrip("/") == pair[1].rstrip("/")]
        if not found:
            return ""
        source, path_in = same[0] if same else max(found, key=lambda pair: len(pair[0]))
        return path_in.rstrip("/") + path[len(source.rstrip("/")) :]

    def outside(self, path: str) -> str:
        """The path on the host of a path in this container; "" if no mount shows it."""
        found = [(source, path_in) for source, path_in in self.mounts if _is_below(path, path_in)]
        if not found:
            return ""
        source, path_in = max(found, key=lambda pair: len(pair[1]))
        return source.rstrip("/") + path[len(path_in.rstrip("/")) :]


def container_calls(script: str, env: Mapping[str, str]) -> list[ContainerCall]:
    """The calls of a shell script that start a container, in order. `env`: the variables that the job will have."""
    known = dict(env)
    found = []
    for line, text in _commands(script):
        if assigned := _ASSIGNED.match(text):
            known[assigned[1]] = _plain_text(assigned[2], known)
            continue
        words = _words(text, known)
        call = _call(words)
        if call:
            found.append(ContainerCall(line, *call))
    return found


def _call(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Engine and words of a call, None for another command."""
    for at, word in enumerate(words):
        engine = _ENGINES.get(os.path.basename(word))
        if engine and any(start in words[at + 1 : at + 8] for start in _STARTS[engine]):
            return engine, words[at:]
    names = [os.path.basename(word) for word in words]
    if "srun" in names:
        rest = words[names.index("srun") :]
        if any(word.split("=")[0] in ("--container-image", "--container-name") for word in rest):
            return "pyxis", rest
    return None


def remarks(
    script: bytes,
    env: Mapping[str, str],
    settings: Mapping[str, object],
    home: str,
    exists: Callable[[str], bool] = os.path.exists,
) -> list[str]:
    """What is worth knowing about a script's containers before it waits, one line each, the worst first.

    `settings`: `checkpoint` (globs), `resume-arg`, `resume-env`, `agent`; `home`: $FTRUN_HOME.
    """
    first = script.split(b"\n", 1)[0]
    if not re.match(rb"#!.*\b(?:ba|da|k|z|a)?sh\b", first) or not re.search(
        rb"container-|apptainer|singularity|podman|docker", script
    ):
        return []
    text = script.decode("utf-8", "replace")
    calls = container_calls(text, env)
    globs = [glob for glob in map(str, _listed(settings.get("checkpoint"))) if glob.startswith("/")]
    shows_home = _is_below(home, env.get("HOME") or "/") or "_BIND" in " ".join((text, *env))
    found = list(_of_batch_step(text, home))
    for call in calls:
        found += [*_of_checkpoints(call, globs, settings, exists), *_of_sources(call, exists)]
    for call in calls:
        found += _of_folder(call, home, settings, shows_home=shows_home)
    return list(dict.fromkeys(found))[:REMARKS_MAX]


def _of_batch_step(script: str, home: str) -> Iterator[str]:
    """A batch step in a container: ftrun's opening runs there, too."""
    own = [(line, text) for line, text in enumerate(script.split("\n"), 1) if text.startswith("#SBATCH")]
    call = ContainerCall(0, "pyxis", [word for _, text in own for word in _words(text[7:], {})])
    for line, text in own:
        if (
            "--container-image" in text
            and call.inside(home) != home
            and "--container-mount-home" not in call.words
        ):
            yield (
                f"line {line}: the batch script itself runs in the container, which must show {home} under that path:"
                " give --container-image to srun, or mount that folder"
            )


def _of_checkpoints(
    call: ContainerCall, globs: Sequence[str], settings: Mapping[str, object], exists: Callable[[str], bool]
) -> Iterator[str]:
    for glob in globs:
        folder = _fixed_part(glob)
        if call.inside(folder) == folder:
            continue
        if (outside := call.outside(folder)) and not exists(folder):
            yield (
                f"line {call.line}: checkpoint={glob} is a path inside the container, and ftrun looks on the host:"
                f" write checkpoint={outside}{glob[len(folder) :]}"
            )
        elif (
            (inside := call.inside(folder))
            and call.engine != "pyxis"
            and (settings.get("resume-arg") or settings.get("resume-env"))
        ):
            yield f"line {call.line}: {{checkpoint}} will be a path below {folder}, which is {inside} in the container: mount it under the same path"
        elif not inside and call.is_plain and call.mounts and call.engine != "apptainer":
            yield f"line {call.line}: the container has no mount of {folder}, where checkpoint={glob} looks, unless the site mounts it"


def _of_sources(call: ContainerCall, exists: Callable[[str], bool]) -> Iterator[str]:
    for source, _ in call.mounts:
        if not exists(source):
            yield f"line {call.line}: {source} is to be mounted and does not exist on this host: a container does not start without it"


def _of_folder(
    call: ContainerCall, home: str, settings: Mapping[str, object], *, shows_home: bool
) -> Iterator[str]:
    """The run's folder: with pyxis ftrun mounts it where an agent is, and Apptainer shows the user's home by itself.

    `shows_home`: $FTRUN_HOME is below the user's home, or Apptainer may be told of it by a variable.
    """
    text = " ".join(call.words)
    if call.inside(home) or any("$" in value for value in _values(call.words, _MOUNTED[call.engine])):
        has_folder = True
    elif call.engine == "pyxis":
        has_folder = settings.get("agent") != "never" and settings.get("container-mounts") != "never"
    else:
        hides = re.search(r"--containall|--contain\b|--no-home|\s-[cC]\s", text)
        has_folder = call.engine == "apptainer" and shows_home and not hides
    passes = call.engine != "podman" or "FTRUN_" in text or "--env-host" in text
    if call.engine == "apptainer" and re.search(r"--cleanenv|--containall|\s-[eC]\s", text):
        passes = False
    if not has_folder or not passes:
        what = " and ".join(
            ["$FTRUN_RUN_DIR"] * (not has_folder) + ["the variables FTRUN_* and SLURM_*"] * (not passes)
        )
        yield f"line {call.line}: the container gets no {what}: no beats, stacks by the kernel only, and what outlives it is not found; see {PAGE}"


def _is_below(path: str, folder: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _fixed_part(glob: str) -> str:
    """The folder above the first part of a glob that is no plain name."""
    parts = glob.split("/")
    at = next((at for at, part in enumerate(parts) if _GLOB.search(part)), len(parts) - 1)
    return "/".join(parts[:at]) or "/"


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value] if value else []


def _commands(script: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each command line, continued lines joined; no comments, no empty ones."""
    text, began = "", 0
    for number, line in enumerate(script.split("\n"), 1):
        began = began if text else number
        text += line[:-1] + " " if line.endswith("\\") else line
        if line.endswith("\\"):
            continue
        if text.strip() and not text.lstrip().startswith("#"):
            yield began, text
        text = ""


def _words(text: str, known: Mapping[str, str]) -> list[str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quoted text over several lines
        words = text.replace('"', "").replace("'", "").split()
    return [
        word
        for one in words
        for word in (_filled(one, known).split() if one.startswith("$") else [_filled(one, known)])
    ]


def _plain_text(text: str, known: Mapping[str, str]) -> str:
    """The value of an assignment, with a `$` in it where it is not known."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return "$"
    filled = _filled(words[0], known) if words else ""
    return "$" if "`" in filled or "$" in filled else filled


def _filled(word: str, known: Mapping[str, str]) -> str:
    return _NAME.sub(lambda found: known.get(found[1] or found[2], found[0]), word)


def _values(words: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in names:
            yield value if sign else (words[at + 1] if at + 1 < len(words) else "")


def _first_program_word(words: Sequence[str]) -> int:
    """Up to where a call's own options stand at most: what a variable in the program's words holds is no matter."""
    return next((at for at, word in enumerate(words) if os.path.basename(word) in _PROGRAMS), len(words))
