"""Spares: a submission for n nodes widened to n + K, while the user's own view of it stays n. (pure)

How it thinks. Slurm can add no node to a running job, so the nodes that may take another's place are asked for at once, with
--no-kill, so that the job outlives a node. What counts for the whole job grows in proportion (--ntasks, --gpus), and is asked for in
equal shares: Slurm deals out unequal ones where it may, and then not every node could take the place of every other. What counts for
each node or task stays as it is. Licences belong to the work and not to the nodes, so they stay, too. The variables that come of ours are
kept from the script, and those of the whole job show it the user's own numbers. How many nodes the user means must be
plain from what was typed: a number that would have to be guessed is refused in one line that says what works.
"""

from __future__ import annotations

from ftrun.supervisor.errors import SubmitImpossible

__all__ = ["Widened", "widened"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftrun.slurm.options import CommandLine

_COUNTED = "spares want a plain number of nodes: -N 4, or -n with --ntasks-per-node"
_SHARES = ("node", "task", "socket")
_SUFFIXES = {"k": 1024, "m": 1024 * 1024}


class Widened:
    """What a submission becomes: the options to put in (the user's own are replaced), and what the script is to see.

    `spares` is how many nodes more, `active` the number of nodes of the user, `active_tasks` the number of tasks (0 where none is
    known), `active_gpus` the user's own --gpus ("" where there is none). `hidden` are variables of Slurm that only our options made.
    """

    __slots__ = ("active", "active_gpus", "active_tasks", "hidden", "options", "spares")

    def __init__(self, active: int, spares: int) -> None:
        self.active = active
        self.spares = spares
        self.active_tasks = 0
        self.active_gpus = ""
        self.hidden: list[str] = []
        self.options: dict[str, str | None] = {"nodes": str(active + spares)}

    def applied(self, line: CommandLine) -> CommandLine:
        """The command line with the options in it."""
        for name, value in self.options.items():
            line = line.without(name).with_option(name, value)
        return line


def widened(
    line: CommandLine,
    head: Sequence[CommandLine],
    env: Mapping[str, str],
    spares: int,
    *,
    named: Sequence[str] = (),
) -> Widened:
    """The submission with so many nodes more. `named` are the nodes that the user requires by name.

    The arguments outweigh the variables, these the directives of the script, as in sbatch. Raises SubmitImpossible.
    """
    if line.components > 1 or len(head) > 1:
        raise SubmitImpossible("spares: a heterogeneous job cannot have them: leave --ft-spares out")
    if _chosen("array", line, head, env, "SBATCH_ARRAY_INX"):
        raise SubmitImpossible("spares: the tasks of an array cannot have them: leave --ft-spares out")
    if _chosen("distribution", line, head, env, "SBATCH_DISTRIBUTION").startswith("arbitrary"):
        raise SubmitImpossible(
            "spares: --distribution=arbitrary ties tasks to nodes: leave one of the two out"
        )
    tasks = _number("ntasks", _chosen("ntasks", line, head, env))
    per_node = _number("ntasks-per-node", _chosen("ntasks-per-node", line, head, env))
    wide = Widened(_nodes(_chosen("nodes", line, head, env), tasks, per_node), spares)
    total = wide.active + spares
    if named and len(named) < total:
        raise SubmitImpossible(
            f"spares: the job names {len(named)} nodes (-w, -F); with --ft-spares={spares} it must name {total}"
        )
    if not _given("no-kill", line, head, env, "SBATCH_NO_KILL"):
        wide.options["no-kill"] = None
    wide.active_tasks = tasks or wide.active * per_node
    if tasks:
        wide.options["ntasks"] = str(_in_proportion("--ntasks", tasks, wide.active, total))
        wide.options["ntasks-per-node"] = str(tasks // wide.active)
        wide.hidden += [] if per_node else ["SLURM_NTASKS_PER_NODE"]
    gpus = _chosen("gpus", line, head, env, "SBATCH_GPUS")
    if gpus:
        wide.active_gpus = gpus
        wide.options["gpus"] = ",".join(_gpus(part, wide.active, total) for part in gpus.split(","))
        shared = any(
            _given(f"gpus-per-{of}", line, head, env, f"SBATCH_GPUS_PER_{of.upper()}") for of in _SHARES
        )
        if not shared:
            wide.options["gpus-per-node"] = ",".join(_gpus(part, wide.active, 1) for part in gpus.split(","))
            wide.hidden.append("SLURM_GPUS_PER_NODE")
    return wide


def _nodes(text: str, tasks: int, per_node: int) -> int:
    """How many nodes the user means."""
    if text:
        digits, suffix = (text[:-1], text[-1].lower()) if text[-1].lower() in _SUFFIXES else (text, "")
        first, dash, last = digits.partition("-")
        if dash and first == last:
            digits = first
        if not digits.isascii() or not digits.isdigit() or not int(digits):
            raise SubmitImpossible(f"{_COUNTED}; not -N {text}")
        return int(digits) * _SUFFIXES.get(suffix, 1)
    if tasks and per_node and tasks % per_node == 0:
        return tasks // per_node
    if tasks and per_node:
        raise SubmitImpossible(f"{_COUNTED}; {tasks} tasks do not fill nodes of {per_node}")
    raise SubmitImpossible(_COUNTED)


def _number(name: str, text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or not int(text):
        raise SubmitImpossible(f"spares want a plain number in --{name}; not {text!r}")
    return int(text)


def _in_proportion(what: str, number: int, active: int, total: int) -> int:
    if number % active:
        raise SubmitImpossible(
            f"spares: {what}={number} is no multiple of the {active} nodes, so it cannot be widened; "
            f"take {number // active * active or active}, or say it for each node"
        )
    return number // active * total


def _gpus(part: str, active: int, total: int) -> str:
    """One part of --gpus: a number, or TYPE:NUMBER. A type alone means one."""
    kind, colon, count = part.rpartition(":")
    if not colon and not part.isdigit():
        kind, colon, count = part, ":", "1"
    wide = _in_proportion("--gpus", _number("gpus", count), active, total)
    return f"{kind}{colon}{wide}"


def _chosen(
    name: str, line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str], variable: str = ""
) -> str:
    """The value that sbatch goes by; "" where there is none."""
    own = line.get(name)
    if own is None and variable:
        own = env.get(variable)
    return own if own is not None else (head[0].get(name) or "" if head else "")


def _given(
    name: str, line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str], variable: str
) -> bool:
    return line.has(name) or variable in env or any(part.has(name) for part in head)
