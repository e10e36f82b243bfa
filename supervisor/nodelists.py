"""The nodes that a submission names: those to avoid beside the user's own, and stand-ins for named ones. (I/O)"""

from __future__ import annotations

from ftrun.supervisor.errors import SubmitImpossible

__all__ = ["avoiding", "required"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.options import CommandLine


def required(line: CommandLine, head: Sequence[CommandLine]) -> list[str]:
    """The nodes that a job of one part names by -w or -F. Raises SubmitImpossible where its file cannot be read."""
    from ftrun.slurm import nodeset  # most submissions name no node

    named = line.get("nodelist") or head[0].get("nodelist") or ""
    file = line.get("nodefile") or head[0].get("nodefile") or ""
    return list(nodeset.expand(listed(named) or (listed(file) if file else "")))


def avoiding(
    changed: CommandLine, head: Sequence[CommandLine], exclude: Sequence[str], idle: Sequence[str]
) -> CommandLine:
    """`--exclude` with these nodes beside the user's own; nodes that the user asked for by name are replaced."""
    from ftrun.slurm import nodeset

    for part in range(changed.components):
        above = head[min(part, len(head) - 1)]
        own = listed(changed.get("exclude", part) or above.get("exclude") or "")
        merged = ",".join(filter(None, (own, nodeset.fold(exclude))))
        named = changed.get("nodelist", part) or above.get("nodelist") or ""
        file = changed.get("nodefile", part) or above.get("nodefile") or ""
        changed = changed.with_option("exclude", merged, part)
        wanted = nodeset.expand(listed(named) or (listed(file) if file else ""))
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


def listed(nodes: str) -> str:
    """A node list as given to -w and -x: with a slash in it, it names a file of nodes."""
    if "/" not in nodes:
        return nodes
    try:
        with open(nodes, encoding="utf-8") as stream:
            return ",".join(stream.read().split())
    except OSError as error:
        raise SubmitImpossible(f"the node list {nodes} cannot be read: {error.strerror}") from None
