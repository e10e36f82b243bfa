"""What the user asked of `ftrun sbatch`: arguments split, script read, settings resolved. (I/O)

What sbatch refuses by itself (a wrong option, a missing file, no `#!`) is not refused here. It raises
`Plain`: sbatch then gets the arguments as typed, so that message and exit status are sbatch's own. Only
ftrun's own settings are refused here, because only ftrun knows them.
"""

from __future__ import annotations

import os
import sys

from ftrun.slurm.client import options, releases
from ftrun.slurm.client.errors import Ambiguous, MissingValue, OptionError, UnknownOption
from ftrun.slurm.client.options import CommandLine, SbatchOptions, script_options
from ftrun.supervisor.config import settings, sources
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.errors import SubmitImpossible, UserError
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.submission import compose, in_allocation, sbatch_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ftrun.supervisor.config.sources import Config

_ELASTIC = ("nodes", "nodes-valid", "global-batch", "micro-batch", "replicas", "on-queue-timeout")
# sbatch answers these and submits nothing.
_ANSWER_ONLY = ("help", "usage", "version", "autocomplete")


class Submission:
    """One call of `ftrun sbatch`: the arguments, the environment to the byte, the script and the settings."""

    __slots__ = (
        "argv",
        "config",
        "env",
        "extra",
        "given",
        "raw_env",
        "sbatch",
        "script",
        "script_path",
        "typed",
        "version",
    )

    def __init__(self, argv: Sequence[str], raw_env: dict[bytes, bytes]) -> None:
        self.typed = tuple(argv)
        self.argv = list(argv)  # sbatch's only, once `given` is there
        self.raw_env = raw_env
        self.env = {os.fsdecode(key): os.fsdecode(value) for key, value in raw_env.items()}
        self.sbatch = sbatch_process.find_sbatch(self.env.get("PATH", os.defpath))
        self.given = SbatchOptions(CommandLine(()), (), self.env)
        self.version: tuple[int, int] | None = None
        self.extra: dict[str, int] = {}
        self.script = b""
        self.script_path = ""
        self.config = sources.Config()

    def use_cluster(self, changes: Mapping[str, str | None]) -> None:
        """Submit as a client of the Slurm to which these variables lead (None: without it); to the job they are the user's own."""
        for key, value in changes.items():
            for env in (os.environ, self.env):
                if value is None:
                    env.pop(key, None)
                else:
                    env[key] = value
            self.raw_env.pop(os.fsencode(key), None)
            if value is not None:
                self.raw_env[os.fsencode(key)] = os.fsencode(value)
        self.sbatch = sbatch_process.find_sbatch(self.env.get("PATH", os.defpath))

    @property
    def source(self) -> str:
        """Where the script comes from: file, stdin or wrap."""
        if self.given.line.has("wrap"):
            return "wrap"
        return "stdin" if self.given.line.script is None else "file"

    @property
    def job_name(self) -> str:
        """The name that Slurm gives the job; of a heterogeneous job, that of the first component."""
        line, head = self.given.line, self.given.head
        chosen = line.get("job-name", 0) or self.env.get("SBATCH_JOB_NAME") or head[0].get("job-name")
        return (
            chosen or os.path.basename(line.script or "") or ("wrap" if self.source == "wrap" else "sbatch")
        )

    @property
    def run_name(self) -> str:
        """The first half of the run's id."""
        return self.config.text("name") or self.job_name

    @property
    def names_cluster(self) -> bool:
        """Whether the user or the environment names the cluster of the job."""
        return bool(_clusters(self)[1])

    @property
    def told(self) -> dict[str, Any]:
        """What is needed to split the directives of the script."""
        return {
            "argv": self.argv,
            "slurm_version": self.version,
            "plugin_options": self.extra,
            "foreign": "SBATCH_IGNORE_PBS" not in self.env,
        }

    def kept(self, run: str, token: str) -> dict[str, Any]:
        """The submission context of this process, as submit/context.json stores it."""
        return {
            **submission_context.capture(),
            "run": run,
            "run_token": token,
            **self.told,
            "script_args": list(self.given.line.script_args),
            "script_path": self.script_path,
            "script_name": os.path.basename(self.given.line.script or ""),
            "source": self.source,
            "has_shebang": self.script.startswith(b"#!"),
            "job_name": self.job_name,
            "shape": self.given.shape,
            "array": self.given.array,
            "wait": self.given.has("wait", "SBATCH_WAIT"),
            "slurm_conf": self.env.get("SLURM_CONF", ""),
            "python": sys.executable,
            "cache_name": os.urandom(8).hex(),
            **self._widened(),
            "settings": self.config.values,
            "settings_from": self.config.layers(),
        }

    def _widened(self) -> dict[str, int]:
        """The number of nodes that the user means, if spares are added to it."""
        wide = in_allocation.with_spares(self.config.values, self.given)
        return {"active": wide.active} if wide is not None and wide.spares else {}


class PlainSubmission(Exception):
    """The submission goes to sbatch unchanged. `warning` is printed if sbatch creates a job; `unknown`: the option
    that is in no table.
    """

    def __init__(self, warning: str = "", unknown: str = "") -> None:
        super().__init__(warning)
        self.warning = warning
        self.unknown = unknown


def read_submission(asked: Submission, script: bytes = b"") -> None:
    """Split the arguments, read script (unless it is given) and settings. Raises PlainSubmission, UserError."""
    asked.script = script
    _split(asked)
    _read_script(asked)
    asked.config = _settings(asked)
    _refuse_other_clusters(asked)
    _refuse_expedited_array(asked)
    _refuse_ladder(asked)


def _split(asked: Submission) -> None:
    typed = asked.argv
    try:
        asked.given.line = options.split(typed, own=takes_value)
    except (Ambiguous, UnknownOption):
        _ask_sbatch(asked)
        try:
            asked.given.line = options.split(typed, version=asked.version, extra=asked.extra, own=takes_value)
        except OptionError as error:
            unknown = error.name if isinstance(error, UnknownOption) else ""
            raise PlainSubmission("its options were not understood", unknown) from None
    except MissingValue as error:
        raise UserError(str(error)) from None
    except OptionError:
        raise PlainSubmission("its options were not understood") from None
    finally:
        asked.argv = (
            asked.given.line.argv() if asked.given.line.words or asked.given.line.script else _less_own(typed)
        )
    if any(asked.given.line.has(name) for name in _ANSWER_ONLY):
        raise PlainSubmission
    for name, value in asked.given.line.own:  # report a typo in our own options before anything else
        try:
            settings.parse(name, True if value is None else value)
        except errors.SettingError as error:
            raise UserError(f"--ft-{name}: {str(error).removeprefix(f'{name}: ')}") from None


def takes_value(name: str) -> bool:
    """Whether ftrun's own option --ft-NAME takes a value. Raises UserError."""
    try:
        return settings.takes_value(name)
    except errors.SettingError as error:
        raise UserError(f"--ft-{name}: {error}") from None


def _less_own(argv: Sequence[str]) -> list[str]:
    """Arguments that could not be split, without what looks like ftrun's."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word.startswith("--ft-"):
            name, equals, _ = word[5:].partition("=")
            skip = not equals and name in settings.SETTINGS and settings.takes_value(name)
        else:
            kept.append(word)
    return kept


def _ask_sbatch(asked: Submission) -> None:
    """Ask sbatch for its version and its plugin options; done only if an option cannot be split without them."""
    import subprocess

    def output_of(option: str) -> str:
        answer = subprocess.run([asked.sbatch, option], env=asked.raw_env, capture_output=True, check=False)
        return answer.stdout.decode("utf-8", "replace")

    numbers = output_of("--version").split()[-1:]
    parts = numbers[0].split(".") if numbers else []
    if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit():
        asked.version = (int(parts[0]), int(parts[1]))
    asked.extra = releases.plugin_options(output_of("--help"))


def _read_script(asked: Submission) -> None:
    line = asked.given.line
    if asked.source == "wrap":
        if line.script is not None:
            raise PlainSubmission  # sbatch refuses arguments beside --wrap
        command = line.get("wrap") or ""
        asked.script = (
            b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" + os.fsencode(command) + b"\n"
        )
    elif asked.script:
        asked.script_path = line.script or ""
    elif line.script is None:
        if line.own and os.isatty(0):
            from ftrun.supervisor.submission import misread

            misread.refuse_shifted(asked.given.line, asked.typed, has_script=bool(asked.script))
        with open(0, "rb", closefd=False) as stream:
            asked.script = stream.read()
    else:
        asked.script_path = _located(line.script, asked.env)
        try:
            with open(asked.script_path, "rb") as stream:
                asked.script = stream.read()
        except OSError:
            raise PlainSubmission from None  # sbatch cannot open it either and says so
    try:
        asked.given.head = script_options(asked.script, asked.told)
    except (Ambiguous, UnknownOption) as error:
        if error.name.startswith("ft-"):
            raise UserError(
                f"#SBATCH --{error.name}: sbatch knows no settings of ftrun; write #FTRUN --{error.name[3:]} in its place"
            ) from None
        _ask_sbatch(asked)
        try:
            asked.given.head = script_options(asked.script, asked.told)
        except OptionError:
            raise PlainSubmission("its #SBATCH options were not understood") from None
    except OptionError:
        raise PlainSubmission("its #SBATCH options were not understood") from None


def _located(script: str, env: Mapping[str, str]) -> str:
    """Where sbatch finds a script: a path as it is; a bare name in the working folder first, then along PATH."""
    cwd = os.getcwd()
    if script.startswith((".", "/")):
        return os.path.join(cwd, script)
    for folder in (cwd, *env.get("PATH", "").split(":")):
        path = os.path.join(cwd, folder, script)
        if os.path.exists(path) and not os.path.isdir(path):
            return path
    return os.path.join(cwd, script)


def _settings(asked: Submission) -> Config:
    script: list[str] = []
    if b"#FTRUN" in asked.script:
        try:
            script = compose.ftrun_directives(asked.script)
        except compose.ScriptError as error:
            raise UserError(str(error)) from None
    found = sources.load(os.getcwd(), asked.env, script=script, own=asked.given.line.own)
    if found.untrusted:
        raise UserError(found.untrusted)
    return found


def _refuse_ladder(asked: Submission) -> None:
    """Refuse recovery settings that this job cannot have, at submission and not at the first fault."""
    try:
        in_allocation.refuse_recovery_settings(asked.config, asked.given.shape)
        if (
            asked.config.meant("recover")
            or any(asked.config.values[key] for key in _ELASTIC)
            or asked.config["unit"] != "node"
        ):
            from ftrun.supervisor.submission import sizes

            sizes.refuse_sizes(asked.config, asked.given)
        wide = in_allocation.with_spares(asked.config.values, asked.given)
    except (errors.SettingError, SubmitImpossible) as error:
        raise UserError(asked.config.blame(str(error))) from None
    if wide is not None and wide.spares:
        _refuse_too_wide(asked, wide.active, wide.spares)


def _refuse_too_wide(asked: Submission, active: int, spares: int) -> None:
    """Refuse more nodes than the partition has: such a job waits forever. Slurm decides if it is silent."""
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.cluster import CommandCluster

    try:
        partitions = CommandCluster(asked.env).partitions()
    except SlurmError:
        return
    named = asked.given.get("partition", "SBATCH_PARTITION")
    names = named.split(",") if named else [row.name for row in partitions.values() if row.default]
    if not names or not all(name in partitions for name in names):
        return
    most, name = max((len(partitions[name].nodes), name) for name in names)
    if active <= most < active + spares:
        left = f"--ft-spares={most - active}" if most > active else "no spares"
        raise UserError(
            f"spares: {active} nodes and {spares} spares are {active + spares}, and partition {name} has {most}: {left} at most"
        )


def _refuse_expedited_array(asked: Submission) -> None:
    """Refuse an expedited requeue of an array: Slurm would hold each failed task while the others go on."""
    if asked.given.is_expedited and asked.given.shape == "array":
        raise UserError(
            "--requeue=expedite: failed tasks of an array would be held (REQUEUE_HOLD) for ever;"
            " leave it out (ftrun itself starts failed tasks again), or use plain sbatch"
        )


def _refuse_other_clusters(asked: Submission) -> None:
    """Refuse submissions to other clusters: a run lives on the cluster that SLURM_CONF names.

    A list of clusters, `all`, another cluster or a constraint on the clusters of a federation is refused
    before anything is created. The local cluster's own name goes through to sbatch, which asks slurmdbd for
    it.
    """
    federal = asked.given.get("cluster-constraint")
    if federal:
        reason = "a run cannot move between the clusters of a federation; leave it out, or use plain sbatch"
        raise UserError(f"--cluster-constraint={federal}: {reason}")
    source, named = _clusters(asked)
    if not named:
        return
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.cluster import CommandCluster

    try:
        here = CommandCluster(asked.env).facts().name
    except SlurmError as error:
        raise UserError(f"{source}{named}: {error.message}", 1) from None
    if named != here:
        mend = f"leave it out, submit on a login node of {named}, or use plain sbatch"
        raise UserError(f"{source}{named}: ftrun looks after jobs of the local cluster ({here}) only; {mend}")


def _clusters(asked: Submission) -> tuple[str, str]:
    """Where clusters are named (by sbatch's precedence: command line, variables, script), and which."""
    if typed := asked.given.line.get("clusters"):
        return "--clusters=", typed
    for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"):
        if asked.env.get(name):
            return f"{name}=", asked.env[name]
    return "#SBATCH --clusters=", asked.given.head[0].get("clusters") or ""
