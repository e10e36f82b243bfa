"""The options that sbatch goes by: command line over variables over the directives of the script. (I/O)

`SbatchOptions` holds the three sources and answers which value counts. It is split once in a submission and
handed on.

sbatch goes through the components of a heterogeneous job one by one: first what the script says of a
component, then what the command line says of it. What neither says is inherited from the component before,
and where the command line has fewer parts than the script its last part counts for all the rest. So an
option that ftrun adds to that last part would outweigh what the script says of later components: then the
part is first written once for each component, which by itself changes nothing. Tried on 22.05 with
comments, names, time limits and nodes.

Nodes to avoid are added to the user's own --exclude; nodes that the user named with -w are replaced by idle
ones. A list with a slash in it names a file of nodes, which is read; nothing else here reads a file.
"""

from __future__ import annotations

import os

from ftrun.slurm.client import options
from ftrun.slurm.client.directives import directives
from ftrun.slurm.client.options import CommandLine
from ftrun.supervisor.model.errors import SubmitImpossible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class SbatchOptions:
    """What the user asked sbatch for.

    `line` as typed, `env` as it was, `head` a command line for each component of the script.
    """

    __slots__ = ("env", "head", "line")

    def __init__(self, line: CommandLine, head: Sequence[CommandLine], env: Mapping[str, str]) -> None:
        self.line = line
        self.head = list(head) or [CommandLine(())]
        self.env = env

    @staticmethod
    def of_context(context: Mapping[str, Any], script: bytes, env: Mapping[str, str]) -> SbatchOptions:
        """Split as the first submission split them. Raises OptionError."""
        version, extra = split_facts(context)
        line = options.split(context["argv"], version=version, extra=extra)
        return SbatchOptions(line, directive_lines(script, context), env)

    def get(self, name: str, variable: str = "") -> str:
        """The value that sbatch goes by, "" for none; `variable`: the option's variable, if it has one."""
        value = self.line.get(name)
        if value is None and variable:
            value = self.env.get(variable)
        return value if value is not None else self.head[0].get(name) or ""

    def has(self, name: str, variable: str = "") -> bool:
        """Whether any source names the option, in any component."""
        return self.line.has(name) or variable in self.env or any(part.has(name) for part in self.head)

    @property
    def shape(self) -> str:
        """single, array or het."""
        if self.line.components > 1 or len(self.head) > 1:
            return "het"
        return "array" if self.array else "single"

    @property
    def array(self) -> str:
        """The array's specification; "" for a job that is no array (a heterogeneous job cannot be one)."""
        if self.line.components > 1 or len(self.head) > 1:
            return ""
        return self.get("array", "SBATCH_ARRAY_INX")

    @property
    def signal(self) -> str:
        """The user's own --signal; "" = none was given, "none" = given without a value."""
        if self.line.has("signal"):
            return self.line.get("signal") or "none"
        if "SBATCH_SIGNAL" in self.env:
            return self.env["SBATCH_SIGNAL"] or "none"
        return next((part.get("signal") or "none" for part in self.head if part.has("signal")), "")

    @property
    def requeue(self) -> bool | None:
        """Whether the user wants --requeue; None where nobody said either."""
        for yes, no in (
            (self.line.has("requeue"), self.line.has("no-requeue")),
            ("SBATCH_REQUEUE" in self.env, "SBATCH_NO_REQUEUE" in self.env),
            (self.head[0].has("requeue"), self.head[0].has("no-requeue")),
        ):
            if yes or no:
                return not no
        return None

    @property
    def is_expedited(self) -> bool:
        """Whether the user wants --requeue=expedite (25.11 and later): after a failed epilog or a lost node Slurm puts the job
        first, after any other failure it holds the job.
        """
        told = [self.line.get("requeue", part) for part in range(self.line.components)]
        told += [self.env.get("SBATCH_REQUEUE"), *(part.get("requeue") for part in self.head)]
        return any((value or "").lower() == "expedite" for value in told)


def split_facts(context: Mapping[str, Any]) -> tuple[tuple[int, int] | None, Mapping[str, int] | None]:
    """(Slurm's version, options of plugins), where the options were not clear without them."""
    known = context.get("slurm_version")
    return (known[0], known[1]) if known else None, context.get("plugin_options")


def directive_lines(script: bytes, context: Mapping[str, Any]) -> list[CommandLine]:
    """The #SBATCH options by component, those of #PBS and #BSUB in the first. Raises OptionError."""
    head = [CommandLine(())]
    if b"#SBATCH" in script or b"#SLURM" in script:
        version, extra = split_facts(context)
        head = [options.split(words, version=version, extra=extra) for words in directives(script)]
    ignored = not context.get("foreign", True) or "--ignore-pbs" in context.get("argv", ())
    if (b"#PBS" in script or b"#BSUB" in script) and not (ignored or head[0].has("ignore-pbs")):
        from ftrun.slurm.client import foreign_directives

        foreign = options.split(foreign_directives.foreign_words(script, head[0].get("export")))
        head[0] = CommandLine((*head[0].words, *foreign.words))
    return head


def value_of_each(name: str, line: CommandLine, head: Sequence[CommandLine]) -> list[str | None]:
    """The value of an option for each component; None where nobody gave one."""
    values: list[str | None] = []
    for part in range(max(line.components, len(head))):
        typed = line.get(name, min(part, line.components - 1))
        written = head[part].get(name) if part < len(head) else None
        inherited = values[-1] if values else None
        values.append(typed if typed is not None else written if written is not None else inherited)
    return values


def with_parts_for(line: CommandLine, *values: Sequence[str | None]) -> CommandLine:
    """The same arguments with enough parts to give each component its own of these values."""
    parts = line.components
    if all(value == each[parts - 1] for each in values for value in each[parts:]):
        return line
    return line.widened(max(len(each) for each in values))


def with_token(changed: CommandLine, given: SbatchOptions, token: str) -> CommandLine:
    """`changed` with the token in the comment of each component: behind the user's own text, or under a key of
    its own where that is a JSON object, which other programs read (`{"APS": ...}`).
    """
    own = value_of_each("comment", given.line, given.head)
    changed = with_parts_for(changed, own).without("comment")
    for part in range(changed.components):
        changed = changed.with_option("comment", comment_with(own[part] or "", token), part)
    return changed


def comment_with(comment: str, token: str) -> str:
    """The user's comment with a token of ours. (pure)"""
    text = comment.strip()
    if text[:1] == "{" and text[-1:] == "}":
        import json  # most submissions have no such comment

        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict):  # the user's own bytes stay as they are
            return f'{text[:-1].rstrip()}{", " if found else ""}"ftrun": "{token}"}}'
    return f"{comment} {token}" if comment else token


# ---------------------------------------------------------------------- the nodes that a submission names


def required_nodes(given: SbatchOptions, cwd: str = "") -> list[str]:
    """The nodes that the user names by -w or -F (job of one component).

    Raises SubmitImpossible if the file is unreadable. `cwd` is where the job was submitted ("" = here).
    """
    return _expanded(given.get("nodelist"), given.get("nodefile"), cwd)


def excluded_nodes(given: SbatchOptions, cwd: str = "") -> list[str]:
    """The nodes that the user excludes by -x (job of one component).

    Raises SubmitImpossible if the file is unreadable.
    """
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

    own, named, files = (value_of_each(name, changed, head) for name in ("exclude", "nodelist", "nodefile"))
    changed = with_parts_for(changed, own, named, files)
    wanted = [_expanded(named[part], files[part], cwd) for part in range(changed.components)]
    taken = {*exclude, *(node for nodes in wanted for node in nodes)}  # components have no node in common
    spares = [node for node in idle if node not in taken]
    for part, nodes in enumerate(wanted):
        merged = ",".join(filter(None, (node_list(own[part] or "", cwd), nodeset.fold(exclude))))
        changed = changed.with_option("exclude", merged, part)
        if set(nodes) & set(exclude):
            changed = changed.with_option(
                "nodelist", nodeset.fold(_substituted(nodes, exclude, spares)), part
            )
    return changed


def _substituted(wanted: Sequence[str], exclude: Sequence[str], spares: list[str]) -> list[str]:
    """The nodes with one of `spares`, which is taken from there, in the place of each excluded one."""
    bad = [node for node in wanted if node in exclude]
    if len(spares) < len(bad):
        raise SubmitImpossible(
            f"the job asks for {', '.join(bad)} by name (-w), which must be avoided, and no idle node can stand in"
        )
    return [spares.pop(0) if node in exclude else node for node in wanted]


def node_list(nodes: str, cwd: str = "") -> str:
    """A node list as given to -w and -x: with a slash in it, it names a file of nodes.

    Raises SubmitImpossible.
    """
    return _from_file(nodes, cwd) if "/" in nodes else nodes


def _from_file(path: str, cwd: str) -> str:
    """The names in a file of nodes, as sbatch reads it.

    Lines, lists, `n1*2` for a name twice, `#` for a comment.
    """
    try:
        with open(os.path.join(cwd, path), encoding="utf-8") as stream:
            lines = [text.partition("#")[0] for text in stream]
    except OSError as error:
        raise SubmitImpossible(f"the node list {path} cannot be read: {error.strerror}") from None
    return ",".join(word.partition("*")[0] for word in " ".join(lines).split())
