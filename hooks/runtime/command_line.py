"""What commands of `ftrun-hook` share: their options, the name of this node, and how one runs another. (I/O)"""

from __future__ import annotations

import os
import signal
import sys

from ftrun.hooks.runtime.host import UsageError
from ftrun.hooks.runtime.ownership import RUNNER

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any, NoReturn

MEANT_FOR_OTHERS = (
    signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO,
    signal.SIGPWR, signal.SIGXCPU, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)  # fmt: skip
"""Signals of --signal and `scancel --signal`: they reach every step, and a step that a signal ends is a failed one."""
END = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)

SHARED: dict[str, dict[str, Any]] = {
    "--attempt-folder": {"required": True, "help": "the folder of the present attempt"},
    "--base": {"required": True, "help": "the folder of the job on its nodes"},
    "--folder": {"required": True, "help": "where reports are written: nodes/ of the attempt"},
    "--job": {"required": True, "help": "the Slurm job whose checkpoints these are"},
    "--json": {"action": "store_true", "help": "print one JSON object"},
    "--launch": {"type": int, "default": 0, "help": "the number of this launch of the job"},
    "--marker": {"default": "", "help": "the file that makes a checkpoint complete"},
    "--node": {"default": "", "help": "the name of this node (default: Slurm's)"},
    "--root": {"default": "/", "help": "look below this folder, for drills; {node} in it is the node's name"},
    "--to": {"required": True, "help": "the folder that checkpoints are published to"},
}


def parser_of(command: str, description: str, *shared: str) -> argparse.ArgumentParser:
    """A parser with these SHARED options; wrong usage raises UsageError."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}; `{self.prog} --help` tells more")

    parser = Parser(prog=f"ftrun-hook {command}", description=description)
    for option in shared:
        parser.add_argument(option, **SHARED[option])
    return parser


def parse_options(command: str, arguments: list[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """The values of these options, and the words after `--`. Raises UsageError. For commands that live as
    long as the job: argparse would be a fifth of their memory.
    """
    found: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        name, sign, value = waiting.pop(0).partition("=")
        if name == "--":
            break
        if name not in names or not (sign or waiting):
            raise UsageError(f"{name} is not understood; `ftrun-hook {command} --help` tells more")
        found[name] = value if sign else waiting.pop(0)
    return found, waiting


def handle_end_signals(leave: Callable[..., object]) -> None:
    """Call `leave(number, frame)` on a signal that ends this process; ignore those for the job's own steps."""
    for number in END:
        signal.signal(number, leave)
    for number in MEANT_FOR_OTHERS:
        signal.signal(number, signal.SIG_IGN)


def node_name(told: str = "") -> str:
    """The name `told`; without one Slurm's name of this node, else the host's without its domain."""
    return told or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def own_command(*arguments: str) -> list[str]:
    """The command line that runs `ftrun-hook` with these arguments as this process runs: zipapp or package."""
    flags = [flag for flag, is_set in (("-I", sys.flags.isolated), ("-S", sys.flags.no_site)) if is_set]
    is_package = sys.argv[0].endswith(".py") or not os.path.isfile(sys.argv[0])
    own = ["-m", "ftrun.hooks.main"] if is_package else ["-c", RUNNER, sys.argv[0]]
    return [sys.executable, *flags, *own, *arguments]
