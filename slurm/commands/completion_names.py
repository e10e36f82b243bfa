"""Names for shell completion: partitions, nodes, accounts, QOS, reservations. (I/O)

Each kind is one query that any user may make. Without an answer in time there are no names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.client.nodeset import expand
from ftrun.slurm.commands.process import check_configuration, reading_env, run, tool

# Accounts and QOS under which this user may submit.
_OWN = ("sacctmgr", "-nP", "show", "associations", "where", "user={user}")
_ASKED: Mapping[str, tuple[Sequence[str], Callable[[str], Sequence[str]]]] = {
    "partition": (("sinfo", "-h", "-o", "%R"), str.split),
    "node": (
        ("sinfo", "-h", "-o", "%N"),
        lambda text: [one for line in text.split() for one in expand(line)],
    ),
    "account": ((*_OWN, "format=account"), str.split),
    "qos": ((*_OWN, "format=qos"), lambda text: text.replace(",", " ").split()),
    "reservation": (
        ("scontrol", "-o", "show", "reservation"),
        re.compile(r"^ReservationName=(\S+)", re.M).findall,
    ),
}
KINDS = frozenset(_ASKED)
"""The kinds of names."""


def names(kind: str, user: str, env: Mapping[str, str], *, timeout_s: float) -> list[str]:
    """The sorted names of this kind; none if Slurm is silent. `user`: whose accounts and QOS."""
    argv, read = _ASKED[kind]
    try:
        check_configuration(env)
        told = run(
            [tool(argv[0], env), *(word.format(user=user) for word in argv[1:])],
            reading_env(env),
            timeout_s=timeout_s,
        )
        return sorted(set(read(told.stdout))) if told.exit_code == 0 else []
    except (SlurmError, ValueError):
        return []
