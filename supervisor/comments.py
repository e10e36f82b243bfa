"""The token in the comment of every component that is submitted. (pure)"""

from __future__ import annotations

from ftrun.supervisor.components import said_of_each, with_room_for

__all__ = ["with_token"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.options import CommandLine


def with_token(
    changed: CommandLine, line: CommandLine, head: Sequence[CommandLine], token: str
) -> CommandLine:
    """`changed` with the token behind the user's own comment in each component.

    `line` and `head` are the arguments and the directives as the user gave them; there is no variable for a comment.
    """
    own = said_of_each("comment", line, head)
    changed = with_room_for(changed, own).without("comment")
    for part in range(changed.components):
        changed = changed.with_option("comment", f"{own[part]} {token}" if own[part] else token, part)
    return changed
