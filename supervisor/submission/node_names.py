"""The tasks that `--array` asks for, and the nodes that a submission names. (I/O)

    0-5%4      tasks 0 to 5, four at a time          1,3,5-9:2   tasks 1, 3, 5, 7, 9

A later attempt submits the failed tasks alone, and Slurm would tell them the count and the bounds of those.
A script that splits its work by them would do other work than before, so it gets the values of the whole
array.

Nodes to avoid are added to the user's own --exclude; nodes that the user named with -w are replaced by idle
ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ftrun.supervisor.model.errors import SubmitImpossible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.options import CommandLine
    from ftrun.supervisor.submission.sbatch_options import SbatchOptions

_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_TASKS_MAX = 4_000_001  # Slurm's own bound of MaxArraySize


def array_tasks(spec: str) -> tuple[int, ...]:
    """The task numbers, sorted, each once; empty for what Slurm would refuse."""
    found: set[int] = set()
    for part in spec.partition("%")[0].strip().strip("[]").split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            return ()
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step or last >= _TASKS_MAX:
            return ()
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))


def narrowed_array(spec: str, wanted: tuple[int, ...]) -> str:
    """The same array with these tasks only."""
    most = spec.partition("%")[2].strip()
    return ",".join(map(str, wanted)) + (f"%{most}" if most else "")


def array_env(spec: str) -> Mapping[str, str]:
    """The variables by which Slurm describes the whole array to a task; empty for what is no array."""
    numbers = array_tasks(spec)
    if not numbers:
        return {}
    step = re.search(r":(\d+)", spec)
    return {
        "SLURM_ARRAY_TASK_COUNT": str(len(numbers)),
        "SLURM_ARRAY_TASK_MAX": str(numbers[-1]),
        "SLURM_ARRAY_TASK_MIN": str(numbers[0]),
        "SLURM_ARRAY_TASK_STEP": step[1] if step else "1",
    }


def required_nodes(given: SbatchOptions, cwd: str = "") -> list[str]:
    """The nodes that the user names by -w or -F (job of one component).

    Raises SubmitImpossible if the file is unreadable. `cwd` is where the job was submitted ("" = here).
    """
    return _expanded(given.get("nodelist"), given.get("nodefile"), cwd)


def excluded_nodes(given: SbatchOptions, cwd: str = "") -> list[str]:
    """The nodes that the user excludes by -x. Raises SubmitImpossible if the file is unreadable."""
    from ftrun.slurm.client import nodeset

    return list(nodeset.expand(node_list(given.get("exclude"), cwd)))


def _expanded(named: str | None, file: str | None, cwd: str) -> list[str]:
    from ftrun.slurm.client import nodeset  # most submissions name no node

    return list(nodeset.expand(node_list(named or "", cwd) or (_from_file(file, cwd) if file else "")))


def with_excluded(
    changed: CommandLine,
    head: Sequence[CommandLine],
    exclude: Sequence[str],
    idle: Sequence[str],
    cwd: str = "",
) -> CommandLine:
    """`--exclude` with these nodes beside the user's own; nodes that the user asked for by name are replaced.

    A component of the script that names nodes of its own may get its own part of the command line.
    """
    from ftrun.slurm.client import nodeset
    from ftrun.supervisor.submission.sbatch_options import value_of_each, with_parts_for

    own, named, files = (value_of_each(name, changed, head) for name in ("exclude", "nodelist", "nodefile"))
    changed = with_parts_for(changed, own, named, files)
    for part in range(changed.components):
        merged = ",".join(filter(None, (node_list(own[part] or "", cwd), nodeset.fold(exclude))))
        wanted = _expanded(named[part], files[part], cwd)
        changed = changed.with_option("exclude", merged, part)
        if set(wanted) & set(exclude):
            changed = changed.with_option("nodelist", nodeset.fold(_substituted(wanted, exclude, idle)), part)
    return changed


def _substituted(wanted: Sequence[str], exclude: Sequence[str], idle: Sequence[str]) -> list[str]:
    spares = [node for node in idle if node not in wanted and node not in exclude]
    bad = [node for node in wanted if node in exclude]
    if len(spares) < len(bad):
        raise SubmitImpossible(
            f"the job asks for {', '.join(bad)} by name (-w), which must be avoided, and no idle node can stand in"
        )
    return [spares.pop(0) if node in exclude else node for node in wanted]


def node_list(nodes: str, cwd: str = "") -> str:
    """A node list as given to -w and -x; one with a slash names a file. Raises SubmitImpossible."""
    return _from_file(nodes, cwd) if "/" in nodes else nodes


def _from_file(path: str, cwd: str) -> str:
    """The names in a file, as sbatch reads it: lines, lists, `n1*2` for a name twice, `#` for a comment."""
    try:
        with open(os.path.join(cwd, path), encoding="utf-8") as stream:
            lines = [text.partition("#")[0] for text in stream]
    except OSError as error:
        raise SubmitImpossible(f"the node list {path} cannot be read: {error.strerror}") from None
    return ",".join(word.partition("*")[0] for word in " ".join(lines).split())
