"""What batch.sh and the agent say to each other, in a folder of the node's own. (I/O)

How it thinks. batch.sh is a shell and the parent; so all of it is lines `key=value` in small files, written whole or not at all, numbered by the
start of the script that they are about. An answer can be given once: whoever comes second (the watchdog, or the agent that
was given up) finds it given. Nothing here is on a shared file system, so nothing here waits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftrun.slurm import nodeset
from ftrun.supervisor import store
from ftrun.supervisor.attempts import Launch

__all__ = ["Over", "Started", "Talk", "started_from"]

_BYTES_MAX = 1 << 20
_CALLS_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Started:
    """One start of the script: its process group, the nodes that it uses, its token, and where its output begins."""

    number: int
    pid: int
    nodes: tuple[str, ...]
    token: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class Over:
    """How a start ended: exit code, signal (0 = none)."""

    code: int
    signal: int

    @property
    def failed(self) -> bool:
        """It did not end well."""
        return bool(self.code or self.signal)


class Talk:
    """The folder, as the agent sees it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._pulse = 0

    def started(self, number: int) -> Started | None:
        """Start `number`; None while it has not begun."""
        values = _values(self._path("started", number))
        return started_from(values, number) if values is not None else None

    def over(self, number: int) -> Over | None:
        """The end of start `number`; None while the script runs."""
        values = _values(self._path("over", number))
        return Over(_int(values.get("code")), _int(values.get("signal"))) if values is not None else None

    def answer(
        self,
        number: int,
        nodes: Sequence[str] = (),
        *,
        fault: str = "",
        skip: Sequence[str] = (),
        checked: bool = False,
    ) -> bool:
        """Say what comes after start `number`: the script again on `nodes`, in this order, or the job's end where there are none.

        `fault` is the class of the fault, `skip` are checkpoints that are set aside; `checked`: the nodes need no other look before
        the job ends. False where it was answered before.
        Raises OSError.
        """
        lines = (
            ["end", *(["checked=1"] if checked else [])]
            if not nodes
            else ["again", f"nodes={','.join(nodes)}", f"fault={fault}"]
        )
        if nodes:
            lines += [f"skip={path}" for path in skip if "\n" not in path]
        target = self._path("next", number)
        temporary = f"{target}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        with open(temporary, "wb") as stream:
            stream.write(text)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    def ending(self, number: int) -> None:
        """Start `number` is being ended by us: batch.sh asks even where it then says that all is well. Raises OSError."""
        with open(self._path("ending", number), "w", encoding="ascii"):
            pass

    def asked(self, number: int) -> bool:
        """batch.sh waits for what comes after start `number`, or did."""
        over = self.over(number)
        return over is not None and (over.failed or os.path.exists(self._path("ending", number)))

    def answered(self, number: int) -> bool:
        """Somebody has answered."""
        return os.path.exists(self._path("next", number))

    def pulse(self) -> None:
        """The agent lives. Raises OSError."""
        self._pulse += 1
        descriptor = os.open(os.path.join(self.folder, "pulse"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, f"{self._pulse:020d}\n".encode(), 0)
        finally:
            os.close(descriptor)

    def calls(self, number: int) -> tuple[int, ...]:
        """The processes that called srun through the shim in start `number`."""
        found = store.content(self._path("calls", number), _CALLS_MAX_BYTES)
        lines = (found or b"").decode("utf-8", "replace").splitlines()
        words = (line.split(None, 2) for line in lines)
        return tuple(int(fields[1]) for fields in words if len(fields) > 1 and fields[1].isdigit())

    def _path(self, what: str, number: int) -> str:
        return os.path.join(self.folder, f"{what}.{number}")


def started_from(values: Mapping[str, str], number: int) -> Started:
    """A start from the lines of its record. (pure)"""
    launch = Launch(
        number=number,
        job=values.get("job", ""),
        host=values.get("host", ""),
        nodes=nodeset.expand(values.get("nodes", "")),
        stdout=values.get("stdout", ""),
        stdout_offset_bytes=_int(values.get("stdout_offset")),
        stdout_dev=_int(values.get("stdout_dev")),
        stdout_ino=_int(values.get("stdout_ino")),
        stderr=values.get("stderr", ""),
        stderr_offset_bytes=_int(values.get("stderr_offset")),
        stderr_dev=_int(values.get("stderr_dev")),
        stderr_ino=_int(values.get("stderr_ino")),
        resume_from=values.get("resume_from", ""),
        started_s=float(_int(values.get("started_s"))) or None,
    )
    return Started(number, _int(values.get("pid")), launch.nodes, values.get("token", ""), launch)


def _values(path: str) -> dict[str, str] | None:
    found = store.content(path, _BYTES_MAX)
    if found is None:
        return None
    pairs = (line.partition("=") for line in found.decode("utf-8", "surrogateescape").splitlines())
    return {key: value for key, sep, value in pairs if sep}


def _int(text: str | None) -> int:
    text = (text or "").partition(".")[0]
    return int(text) if text.lstrip("-").isdigit() else 0
