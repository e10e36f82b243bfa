"""What is said of each component of a submission, by script and command line together. (pure)

How it thinks. sbatch goes through the components of a heterogeneous job one by one: what the script says of one, then what the command line says of
it. Whatever neither says is as it was for the component before, and where the command line has fewer parts than the script its last part counts
for all the rest. So what the script says of a later component may stand behind a part of the command line that outweighs it as soon as that part
says something of the kind: then the part is written once for each component, which by itself changes nothing.
"""

from __future__ import annotations

__all__ = ["said_of_each", "with_room_for"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.options import CommandLine


def said_of_each(name: str, line: CommandLine, head: Sequence[CommandLine]) -> list[str | None]:
    """The value of an option for each component; None where nobody gave one. Tried on 22.05 with comments, names, time limits and nodes."""
    said: list[str | None] = []
    for part in range(max(line.components, len(head))):
        typed = line.get(name, min(part, line.components - 1))
        written = head[part].get(name) if part < len(head) else None
        before = said[-1] if said else None
        said.append(typed if typed is not None else written if written is not None else before)
    return said


def with_room_for(changed: CommandLine, *said: Sequence[str | None]) -> CommandLine:
    """The same arguments with as many parts as these values, one for each component, need to be told apart."""
    parts = changed.components
    if all(value == each[parts - 1] for each in said for value in each[parts:]):
        return changed
    return changed.widened(max(len(each) for each in said))
