"""The child process that calls Slurm through pyslurm, and the only module that imports it. (I/O)

pyslurm holds the interpreter lock for a whole call, libslurm may end the process without notice, and its licence
is GPL-2.0-only. So it lives in a process of its own, which ftrun starts, times and kills (`pipe`), and which
shares no module with ftrun. Each request is one line of JSON on stdin; replies go to the original stdout:

    {"hello": 1, "pyslurm": "22.5.3"}            once, at the start; {"hello": 1, "cannot": "why"} where pyslurm does not load
    {"id": 7, "begun": true}                     before an effect, at the last moment at which nothing has happened yet
    {"id": 7, "ok": ...}                         the answer; or, in its place:
    {"id": 7, "rpc": [2017, "Invalid job id specified"]}    what Slurm said
    {"id": 7, "other": "why"}                    nothing was done: this is for Slurm's commands, which take arrays and heterogeneous jobs whole
    {"id": 7, "broken": "TypeError: ..."}        pyslurm failed

It ends when stdin is closed. Standard library only, and no module of ftrun's: it may run on another
interpreter, of Python 3.9 or later. Attribute names are those of pyslurm's tags v22.5.3 to v25.11.2 (compared
in their sources).
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable
from typing import Any

PROTOCOL = 1
GONE = 2017  # ESLURM_INVALID_JOB_ID

# Differences between pyslurm's releases, by the beginning of their version: the first that fits. "mixed": a
# partly allocated node is reported as ALLOCATED, and recognised by its processors.
DIALECTS: tuple[tuple[str, frozenset[str]], ...] = (
    ("22.5.", frozenset({"mixed"})),
    ("", frozenset()),
)

JOB = (
    "id", "array_id", "array_task_id", "array_tasks_waiting", "heterogeneous_id", "heterogeneous_offset", "state", "state_reason", "allocated_nodes",
    "num_nodes", "user_id", "partition", "submit_time", "start_time", "end_time", "requeue_count", "time_limit", "name", "comment",
)  # fmt: skip


class NotSupported(Exception):
    """pyslurm cannot do this; nothing was done."""


class PyslurmClient:
    """pyslurm's answers as plain values. `begin` is called right before an effect."""

    def __init__(self, pyslurm: Any, begin: Callable[[], None]) -> None:
        version = str(pyslurm.__version__)
        self._slurm = pyslurm
        self._begin = begin
        self._dialect = next(words for start, words in DIALECTS if version.startswith(start))
        self._users: dict[int, str] = {}
        self.verbs: dict[str, Callable[..., object]] = {
            "jobs": self.jobs, "nodes": self.nodes, "partitions": self.partitions, "cancel": self.cancel,
            "hold": self.hold, "release": self.release, "exclude": self.exclude, "node": self.node,
        }  # fmt: skip

    def jobs(self, ids: list[int]) -> list[list[object]]:
        """A row (JOB) for each job of these numbers, all tasks and components of an array's or a heterogeneous job's included."""
        wanted = set(ids)
        if len(wanted) == 1:
            try:
                found = [self._slurm.Job.load(*wanted)]
            except self._slurm.RPCError as told:
                if told.errno == GONE:
                    return []
                raise
            if not found[0].array_id and not found[0].heterogeneous_id:
                return [self._job(found[0])]
        every = self._slurm.Jobs.load().values()
        return [
            self._job(job)
            for job in every
            if job.id in wanted or job.array_id in wanted or job.heterogeneous_id in wanted
        ]

    def _job(self, job: Any) -> list[object]:
        row = {name: getattr(job, name) for name in JOB}
        row["user_id"] = self._user(row["user_id"])
        return list(row.values())

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def nodes(self) -> list[list[object]]:
        """Name, state, reason, since when, partitions, devices of every node."""
        every = self._slurm.Nodes.load().values()
        return [
            [
                node.name,
                self._state(node),
                node.reason,
                node.reason_time,
                node.partitions,
                node.configured_gres,
            ]
            for node in every
            if node.name
        ]

    def _state(self, node: Any) -> str:
        state = str(node.state)
        if "mixed" in self._dialect and state.startswith("ALLOCATED"):
            part = 0 < node.allocated_cpus < (node.effective_cpus or node.total_cpus)
            return state.replace("ALLOCATED", "MIXED", 1) if part else state
        return state

    def partitions(self) -> list[list[object]]:
        """Name, state, whether it is the default, and node list of every partition."""
        every = self._slurm.Partitions.load().values()
        return [[one.name, one.state, bool(one.is_default), one.nodes] for one in every]

    def cancel(self, job: int) -> None:
        """Cancel a plain job; one that is gone is no error."""
        self._plain(job).cancel()

    def hold(self, job: int) -> None:
        """Hold a plain pending job."""
        self._plain(job).hold()

    def release(self, job: int) -> None:
        """Release a plain held job."""
        self._plain(job).release()

    def exclude(self, job: int, nodes: list[str]) -> None:
        """Set the excluded nodes of a plain pending job; folded lists, at least one node."""
        self._plain(job).modify(self._slurm.JobSubmitDescription(excluded_nodes=nodes))

    def node(self, name: str, change: dict[str, str]) -> None:
        """Change state, reason or both of a node."""
        node, wanted = self._slurm.Node(name), self._slurm.Node(**change)
        self._begin()
        node.modify(wanted)

    def _plain(self, number: int) -> Any:
        """The job, read right before an effect: its number may be that of one task of an array."""
        job = self._slurm.Job.load(number)
        if job.array_id or job.heterogeneous_id:
            raise NotSupported("part of an array or of a heterogeneous job")
        self._begin()
        return job


def answer(speaker: PyslurmClient, error: type[Exception], asked: dict[str, Any]) -> dict[str, object]:
    """The reply to one request; exceptions of pyslurm become replies, too."""
    number = asked.pop("id")
    verb = speaker.verbs[asked.pop("do")]
    try:
        return {"id": number, "ok": verb(**asked)}
    except NotSupported as why:
        return {"id": number, "other": str(why)}
    except error as told:
        code = getattr(told, "errno", 0)
        return {"id": number, "rpc": [code if isinstance(code, int) else 0, str(told)]}
    except Exception as wrong:  # noqa: BLE001 - ftrun uses Slurm's commands then, and reports why
        return {"id": number, "broken": f"{type(wrong).__name__}: {wrong}"}


def load() -> Any:
    """Import pyslurm. Raises whatever the import does; libslurm may end this process during it."""
    conf = os.environ.get("SLURM_CONF")
    if conf and not os.access(conf, os.R_OK):
        raise FileNotFoundError(f"SLURM_CONF={conf} cannot be read")  # libslurm would look for it for 60 s
    import pyslurm

    return pyslurm


def main() -> int:
    """Answer requests until stdin is closed."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of C code is no reply
    asking: dict[str, object] = {}

    def say(**line: object) -> None:
        out.write(json.dumps(line).encode() + b"\n")
        out.flush()

    try:
        pyslurm = load()
    except Exception as wrong:  # noqa: BLE001 - a build for another Slurm fails in many ways
        say(hello=PROTOCOL, cannot=f"{type(wrong).__name__}: {wrong}")
        return 0
    speaker = PyslurmClient(pyslurm, lambda: say(id=asking["id"], begun=True))
    say(hello=PROTOCOL, pyslurm=str(pyslurm.__version__))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        asking["id"] = asked["id"]
        say(**answer(speaker, pyslurm.RPCError, asked))
    return 0


if __name__ == "__main__":
    if os.path.abspath(sys.path[0] or ".") == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # modules beside this one must not be visible to pyslurm
    sys.exit(main())
