"""Install the node side of ftrun for jobs, and compose the shell line that runs it on a node. (I/O)

A job finds the node side behind one link, `tools/ftrun-hook.pyz` in the run's home, when it starts, and
keeps the file that it found. The leading supervisor puts its own version there, so `ftrun sbatch` pays
nothing for it. The first call compiles the archive for all later ones; the supervisor makes that call,
because otherwise all nodes of the first job would compile it at the same moment.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable

from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.hooks.runtime.ownership import RUNNER
from ftrun.slurm.commands.node_queries import ANSWER
from ftrun.supervisor.store.run_dir import TOOLS_LINK

RunOnThisNode = Callable[[str, str, str, float], "tuple[str, ...] | None"]
"""As `run_on_this_node`: (line, job, node, limit_s) -> what it answers."""

INTERPRETERS = f"/usr/bin/python3 python3 {shlex.quote(sys.executable)}"
"""The node's own first; where that is too old, ours, if the node sees it."""

_LINE = """PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin; export PATH
h=$(readlink -f {tool}) && [ -f "$h" ] || exit 0
for p in {interpreters}; do
    "$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null || continue
    said=$("$p" -IS -c {runner} "$h" {words} --node "$SLURMD_NODENAME" 2>/dev/null)
    printf "%s %s %s\\n" {answer} "$SLURMD_NODENAME" "{told}"
    exit 0
done"""


def node_command(home: str, words: Iterable[str], *, told: str = "$said") -> str:
    """Return the shell line that runs `ftrun-hook WORDS` on a node and answers with its output, or with the
    word `told` once it has ended.

    `home` is $FTRUN_HOME. A node without Python 3.9 or the node side answers nothing.
    """
    return _LINE.format(
        tool=shlex.quote(os.path.join(home, TOOLS_LINK)),
        interpreters=INTERPRETERS,
        runner=shlex.quote(RUNNER),
        words=shlex.join(words),
        answer=ANSWER,
        told=told,
    )


def run_on_this_node(line: str, job: str, node: str, limit_s: float) -> tuple[str, ...] | None:
    """Run such a line without Slurm, on this node, and return its answer line by line; None on a timeout."""
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": job, "SLURMD_NODENAME": node}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return tuple(line.split(" ", 2)[2] for line in lines if line.count(" ") >= 2)


def install_node_tools(home: str) -> str:
    """Put the node side into `home`, let the link lead to it, and return its path. Raises OSError, also where
    there is no such home: one that was removed is not made again.
    """
    os.stat(home)
    path, link = build_zipapp(home), os.path.join(home, TOOLS_LINK)
    name = os.path.basename(path)
    with contextlib.suppress(OSError):
        if os.readlink(link) == name:
            return path
    draft = f"{link}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    os.symlink(name, draft)
    os.replace(draft, link)
    _compile(path)
    return path


def _compile(path: str) -> None:
    """Let the interpreter that nodes try first compile it, without waiting; else the nodes do."""
    line = '/usr/bin/python3 -IS -c "$0" "$1" version >/dev/null 2>&1 &'
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["/bin/sh", "-c", line, RUNNER, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=5.0,
            check=False,
            start_new_session=True,
        )
