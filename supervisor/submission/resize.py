"""Rewrites a submission for another number of nodes: with spares, or for a smaller size. (pure)

(pure)

Both use one model: the size that the script uses, and on top of it the spares, which the script does not
see. Options for the whole job (--ntasks, --gpus) scale in proportion. A smaller size changes nothing else:
Slurm itself tells the script of it. Where a job may shrink while it runs, any of its nodes may be lost, so
all have the same share, as with spares.

Slurm cannot add nodes to a running job, so spares are requested at once, with --no-kill, so that the job
survives a lost node. What counts for the whole job is then requested in equal shares: Slurm may give out
unequal ones, and then not every node could replace every other. Options per node or per task stay. Licences
belong to the work and not to the nodes, so they stay, too. Variables that only our options create are
hidden from the script, and those of the whole job show the user's own numbers. The number of nodes must be
plain from what was typed: one that would have to be guessed is refused in one line that says what works.
"""

from __future__ import annotations

from ftrun.supervisor.model.errors import SubmitImpossible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.options import CommandLine, SbatchOptions

_COUNTED = "want a plain number of nodes: -N 4, or -n with --ntasks-per-node"
_SHARES = ("node", "task", "socket")
_SUFFIXES = {"k": 1024, "m": 1024 * 1024}


class ResizedSubmission:
    """What a submission becomes.

    The options to put in (they replace the user's), and what the script is to see.

    `full` is the user's number of nodes, `active` how many of them the script uses this time, `spares` how
    many come on top. `active_tasks` is the script's number of tasks (0 = unknown), `active_gpus` its --gpus
    ("" = none). `hidden` are variables of Slurm that only our options create.
    """

    __slots__ = ("active", "active_gpus", "active_tasks", "full", "hidden", "options", "spares")

    def __init__(self, full: int, active: int, spares: int) -> None:
        self.full = full
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


def resize(
    given: SbatchOptions, spares: int | None, *, size: int = 0, named: Sequence[str] = (), equal: bool = False
) -> ResizedSubmission:
    """The submission for `size` nodes (0 = the user's number) and this many spares.

    None = it has no spares at all.

    `equal`: the job is to go on with fewer nodes, so all have the same share. `named` are the nodes that
    the user requires by name. Raises SubmitImpossible.
    """
    what = "nodes" if spares is None else "spares"
    _refuse_shape(what, given)
    full, tasks, per_node = _meant(what, given)
    made = ResizedSubmission(full, size or full, spares or 0)
    total = made.active + made.spares
    if spares is not None and named and len(named) < total:
        raise SubmitImpossible(
            f"spares: the job names {len(named)} nodes (-w, -F); with --ft-spares={spares} it must name {total}"
        )
    made.active_tasks = (
        _in_proportion(what, "--ntasks", tasks, full, made.active) if tasks else made.active * per_node
    )
    if tasks:
        made.options["ntasks"] = str(_in_proportion(what, "--ntasks", tasks, full, total))
    gpus = given.get("gpus", "SBATCH_GPUS")
    if gpus:
        made.active_gpus = _all_gpus(what, gpus, full, made.active)
        made.options["gpus"] = _all_gpus(what, gpus, full, total)
    if spares is not None or equal:
        _in_equal_shares(made, given, share=tasks // full, per_node=per_node, gpus=gpus)
    return made


def _in_equal_shares(
    made: ResizedSubmission, given: SbatchOptions, *, share: int, per_node: int, gpus: str
) -> None:
    """Let any node replace any other, and the job survive the loss of one."""
    if not given.has("no-kill", "SBATCH_NO_KILL"):
        made.options["no-kill"] = None
    if share:
        made.options["ntasks-per-node"] = str(share)
        made.hidden += [] if per_node else ["SLURM_NTASKS_PER_NODE"]
    shared = any(given.has(f"gpus-per-{of}", f"SBATCH_GPUS_PER_{of.upper()}") for of in _SHARES)
    if gpus and not shared:
        made.options["gpus-per-node"] = _all_gpus("nodes", gpus, made.full, 1)
        made.hidden.append("SLURM_GPUS_PER_NODE")


def _refuse_shape(what: str, given: SbatchOptions) -> None:
    leave = f"leave --ft-{what} out"
    if given.shape == "het":
        raise SubmitImpossible(f"{what}: a heterogeneous job cannot have them: {leave}")
    if given.get("array", "SBATCH_ARRAY_INX"):
        raise SubmitImpossible(f"{what}: the tasks of an array cannot have them: {leave}")
    if given.get("distribution", "SBATCH_DISTRIBUTION").startswith("arbitrary"):
        raise SubmitImpossible(
            f"{what}: --distribution=arbitrary ties tasks to nodes: leave one of the two out"
        )


def requested_nodes(given: SbatchOptions) -> tuple[int, int]:
    """(how many nodes the user means, tasks per node; 0 = unknown). Raises SubmitImpossible."""
    full, tasks, per_node = _meant("nodes", given)
    return full, per_node or tasks // full


def _meant(what: str, given: SbatchOptions) -> tuple[int, int, int]:
    """(nodes, --ntasks, --ntasks-per-node) of the user; 0 = not given."""
    tasks = _number(what, "ntasks", given.get("ntasks"))
    per_node = _number(what, "ntasks-per-node", given.get("ntasks-per-node"))
    return _nodes(what, given.get("nodes"), tasks, per_node), tasks, per_node


def _nodes(what: str, text: str, tasks: int, per_node: int) -> int:
    if text:
        digits, suffix = (text[:-1], text[-1].lower()) if text[-1].lower() in _SUFFIXES else (text, "")
        first, dash, last = digits.partition("-")
        if dash and first == last:
            digits = first
        if not digits.isascii() or not digits.isdigit() or not int(digits):
            raise SubmitImpossible(f"{what} {_COUNTED}; not -N {text}")
        return int(digits) * _SUFFIXES.get(suffix, 1)
    if tasks and per_node and tasks % per_node == 0:
        return tasks // per_node
    if tasks and per_node:
        raise SubmitImpossible(f"{what} {_COUNTED}; {tasks} tasks do not fill nodes of {per_node}")
    raise SubmitImpossible(f"{what} {_COUNTED}")


def _number(what: str, name: str, text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or not int(text):
        raise SubmitImpossible(f"{what} want a plain number in --{name}; not {text!r}")
    return int(text)


def _in_proportion(what: str, name: str, number: int, full: int, nodes: int) -> int:
    if number % full:
        raise SubmitImpossible(
            f"{what}: {name}={number} is no multiple of the {full} nodes, so another number of them has no share; "
            f"take {number // full * full or full}, or say it for each node"
        )
    return number // full * nodes


def _all_gpus(what: str, text: str, full: int, nodes: int) -> str:
    return ",".join(_gpus(what, part, full, nodes) for part in text.split(","))


def _gpus(what: str, part: str, full: int, nodes: int) -> str:
    """One part of --gpus: a number, or TYPE:NUMBER. A type alone means one."""
    kind, colon, count = part.rpartition(":")
    if not colon and not part.isdigit():
        kind, colon, count = part, ":", "1"
    number = _in_proportion(what, "--gpus", _number(what, "gpus", count), full, nodes)
    return f"{kind}{colon}{number}"
