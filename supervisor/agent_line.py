"""What the agent has a node do: a line of sh that finds Python and the node side of ftrun there, runs it, and answers. (I/O)"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable

from ftrun.slurm.steps import ANSWER

__all__ = ["node_line"]

INTERPRETERS = f"/usr/bin/python3 python3 {shlex.quote(sys.executable)}"
"""The node's own first; where that is too old, ours, if the node sees it."""

_LINE = """PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin; export PATH
h=$(readlink -f {tool}) && [ -f "$h" ] || exit 0
for p in {interpreters}; do
    "$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null || continue
    said=$("$p" -IS "$h" {words} --node "$SLURMD_NODENAME" 2>/dev/null)
    printf "%s %s %s\\n" {answer} "$SLURMD_NODENAME" "{told}"
    exit 0
done"""


def node_line(home: str, words: Iterable[str], *, told: str = "$said") -> str:
    """The line that runs `ftrun-hook WORDS` on a node and answers with what it prints, or with the word `told` once it has ended.

    `home` is $FTRUN_HOME. A node without Python 3.9 or the node side answers nothing.
    """
    return _LINE.format(
        tool=shlex.quote(os.path.join(home, "tools", "ftrun-hook.pyz")),
        interpreters=INTERPRETERS,
        words=shlex.join(words),
        answer=ANSWER,
        told=told,
    )
