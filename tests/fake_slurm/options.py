"""The few sbatch options that change what a virtual Slurm does. (pure)

Everything else is accepted and ignored. Job arrays and heterogeneous jobs are refused: the virtual Slurm has none.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence

from ftrun.slurm.client.cluster import SubmitRequest
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.client.nodeset import expand
from ftrun.slurm.client.parse import parse_seconds
from ftrun.slurm.records import dataclass, replace
from tests.fake_slurm.records import Job

__all__ = ["Wanted", "fits", "job_of", "read_options"]

_SHORT_WITH_VALUE = "AaBbCcDdeFGiJLMmNnopqStwx"
_LONG_OF_SHORT = {
    "N": "nodes", "x": "exclude", "w": "nodelist", "J": "job-name", "d": "dependency", "t": "time", "b": "begin",
    "p": "partition", "H": "hold", "a": "array", "k": "no-kill", "o": "output", "e": "error",
}  # fmt: skip
_LONG_WITHOUT_VALUE = frozenset(
    {
        "hold", "requeue", "no-requeue", "no-kill", "parsable", "wait", "quiet", "verbose", "contiguous", "overcommit",
        "oversubscribe", "spread-job", "use-min-nodes", "reboot", "ignore-pbs", "test-only", "exclusive", "nice",
        "propagate", "get-user-env", "kill-on-invalid-dep",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a submission asks for. Times are seconds; `begin_delay_s` counts from submission."""

    node_count: int = 1
    name: str = "sbatch"
    comment: str = ""
    partition: str = ""
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    dependency: str = ""
    requeue: bool | None = None
    no_kill: bool = False
    hold: bool = False
    begin_delay_s: float = 0.0
    time_limit_s: float | None = None
    std_out: str = ""
    std_err: str = ""


def read_options(argv: Sequence[str], script: bytes | None) -> Wanted:
    """What the `#SBATCH` lines and then the arguments ask for. Raises RefusedForGood as sbatch would."""
    wanted = Wanted()
    for name, value in (*_pairs(_directives(script or b"")), *_pairs(argv)):
        wanted = _with(wanted, name, value)
    return wanted


def fits(wanted: Wanted, members: Collection[str]) -> bool:
    """Whether a partition of these nodes takes it. Not so for a request that is too big without any exclusion: that one waits for nodes to come."""
    usable = set(members) - set(wanted.excluded)
    short = wanted.node_count > len(usable) and wanted.excluded
    return not short and usable.issuperset(wanted.required)


def job_of(wanted: Wanted, number: int, user: str, request: SubmitRequest, now_s: float) -> Job:
    """The job that a submission becomes; its partition and requeue are settled by now."""
    std_out = (wanted.std_out or "slurm-%j.out").replace("%j", str(number))
    return Job(
        number=number,
        name=wanted.name,
        comment=wanted.comment,
        user=user,
        partition=wanted.partition,
        node_count=wanted.node_count,
        request=request,
        submit_s=now_s,
        begin_s=now_s + wanted.begin_delay_s,
        excluded=wanted.excluded,
        required=wanted.required,
        dependency=wanted.dependency,
        requeue=bool(wanted.requeue),
        no_kill=wanted.no_kill,
        held=wanted.hold,
        reason="JobHeldUser" if wanted.hold else "None",
        time_limit_s=wanted.time_limit_s,
        std_out=std_out if std_out.startswith("/") else f"{request.cwd}/{std_out}",
        std_err=wanted.std_err.replace("%j", str(number)),
    )


def _directives(script: bytes) -> list[str]:
    words: list[str] = []
    for line in script.split(b"\n"):
        if line.strip() and not line.startswith(b"#"):
            break
        if line.startswith(b"#SBATCH"):
            words += shlex.split(line[7:].decode("utf-8", "replace"), comments=True)
    return words


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(long name, value) of every option before the script's own name."""
    words = iter(argv)
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in _LONG_WITHOUT_VALUE:
                value = next(words, "")
            yield name, value
        elif word.startswith("-") and len(word) > 1:
            letter, value = word[1], word[2:].removeprefix("=")
            if letter in _SHORT_WITH_VALUE and not value:
                value = next(words, "")
            yield _LONG_OF_SHORT.get(letter, letter), value
        else:
            return


def _with(wanted: Wanted, name: str, value: str) -> Wanted:
    change = _MEANINGS.get(name)
    return wanted if change is None else change(wanted, value)


def _with_nodes(wanted: Wanted, value: str) -> Wanted:
    first = value.split("-", 1)[0]
    if not first.isdigit() or int(first) < 1:
        raise RefusedForGood(f'"{value}" is not a valid node count', exit_code=255)
    return replace(wanted, node_count=int(first))


def _refuse_array(_wanted: Wanted, _value: str) -> Wanted:
    raise RefusedForGood("a virtual Slurm has no job arrays")


def _delay_s(value: str) -> float:
    """`now+10`, `now+10seconds`, `now+2minutes`, `now+1hours`."""
    number = value.removeprefix("now").removeprefix("+")
    digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
    units = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    unit = number[len(digits) :][:1]
    if number and (not digits.isdigit() or unit not in units):
        raise RefusedForGood("Invalid --begin specification", exit_code=255)
    return float(int(digits or 0) * units[unit])


def _limit_s(value: str) -> float | None:
    """A time limit as sbatch takes it: a bare number is minutes."""
    return float(value) * 60 if value.isdigit() else parse_seconds(value)


_MEANINGS: dict[str, Callable[[Wanted, str], Wanted]] = {
    "nodes": _with_nodes,
    "job-name": lambda wanted, value: replace(wanted, name=value),
    "comment": lambda wanted, value: replace(wanted, comment=value),
    "partition": lambda wanted, value: replace(wanted, partition=value),
    "exclude": lambda wanted, value: replace(wanted, excluded=expand(value)),
    "nodelist": lambda wanted, value: replace(wanted, required=expand(value)),
    "dependency": lambda wanted, value: replace(wanted, dependency=value),
    "requeue": lambda wanted, _: replace(wanted, requeue=True),
    "no-requeue": lambda wanted, _: replace(wanted, requeue=False),
    "no-kill": lambda wanted, value: replace(wanted, no_kill=value != "off"),
    "hold": lambda wanted, _: replace(wanted, hold=True),
    "begin": lambda wanted, value: replace(wanted, begin_delay_s=_delay_s(value)),
    "time": lambda wanted, value: replace(wanted, time_limit_s=_limit_s(value)),
    "output": lambda wanted, value: replace(wanted, std_out=value),
    "error": lambda wanted, value: replace(wanted, std_err=value),
    "array": _refuse_array,
}
