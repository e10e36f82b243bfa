"""What is kept of a cluster where `up` was said: plan, key and journal in a folder of the user's home. (I/O)

<home>/cluster/<name>/cluster.json    the plan; there from before the first effect until `down` is complete
                      munge.key       0600, as long
                      share.json      0600, as long: the keys of a folder that the head host shares
                      gone-<token>    a cluster.json of before: hosts that were given up, on which something may be left
                      said            commands run on the first host, and that was said
                      journal.jsonl   intent before each effect, fact after it; stays
                      lock            held while a command changes the cluster
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ftrun.hooks.runtime.ownership import private_folders, why_untrusted
from ftrun.slurm.cluster.plan import Plan
from ftrun.supervisor.config.home import home_dir, write_atomically
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.store.crash_points import crash_plan

KEY_BYTES = 1024
GONE = "gone-"
SAID = "said"
"""There once a user was told that commands run on the first host."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,22}[a-z0-9])?")


class ClusterState:
    """The folder of one cluster. Raises UserError for a name that is none."""

    def __init__(self, name: str, env: Mapping[str, str] | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} is no name for a cluster: use up to 24 of a-z, 0-9 and -")
        self.name = name
        variables = dict(os.environ if env is None else env)
        self.folder = os.path.join(home_dir(variables), "cluster", name)
        self._crash = crash_plan(variables.get("FTRUN_CRASH_AT", ""))

    def plan(self) -> Plan | None:
        """The plan; None where no such cluster is up, or half up. Raises UserError where it cannot be believed."""
        path = os.path.join(self.folder, "cluster.json")
        try:
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        if why := why_untrusted(path):
            raise UserError(f"{why}: nothing of it is done")
        try:
            return Plan.from_json(text)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None

    def existing_plan(self) -> Plan:
        """The plan. Raises UserError where there is no such cluster."""
        plan = self.plan()
        if plan is None:
            raise UserError(f"there is no cluster {self.name!r}: `ftrun cluster up HOSTS` makes one")
        return plan

    def keep_plan(self, plan: Plan) -> None:
        """Write the key of a new cluster, if it has none, then the plan."""
        path = os.path.join(self.folder, "munge.key")
        if not os.path.exists(path):
            write_atomically(path, os.urandom(KEY_BYTES))
        write_atomically(os.path.join(self.folder, "cluster.json"), plan.to_json().encode())

    def key(self) -> bytes:
        """The key of munge. Raises OSError."""
        with open(os.path.join(self.folder, "munge.key"), "rb") as stream:
            return stream.read()

    def kept(self, name: str, make: Callable[[], dict[str, str]]) -> dict[str, str]:
        """What is kept in the file `name`; made and kept where it is not. Raises OSError."""
        path = os.path.join(self.folder, name)
        try:
            with open(path, encoding="utf-8") as stream:
                found: dict[str, str] = json.load(stream)
        except FileNotFoundError:
            found = make()
            write_atomically(path, json.dumps(found).encode())
        return found

    def forget(self) -> None:
        """Remove keys and plan: nothing of the cluster lives any more."""
        for name in ("munge.key", "share.json", SAID, "cluster.json"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))

    def give_up(self, plan: Plan) -> None:
        """Remember a cluster that is no more for the hosts in `leaving`, on which something of it may be left; without any, forget it."""
        path = os.path.join(self.folder, f"{GONE}{plan.token}")
        if plan.leaving:
            write_atomically(path, plan.to_json().encode())
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def given_up(self) -> list[Plan]:
        """The plans that `give_up` remembers."""
        found = []
        for name in sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else ():
            path = os.path.join(self.folder, name)
            if name.startswith(GONE) and not why_untrusted(path):
                with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as stream:
                    found.append(Plan.from_json(stream.read()))
        return found

    def record(self, kind: str, **data: Any) -> None:
        """Append to the journal: `kind` is <effect>.intent, <effect>.done or <effect>.failed."""
        line = json.dumps({"at_s": round(time.time(), 3), "kind": kind, **data}) + "\n"
        number = os.open(
            os.path.join(self.folder, "journal.jsonl"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        try:
            os.write(number, line.encode())
            os.fsync(number)
        finally:
            os.close(number)
        self._crash(f"record:after:{kind}")

    def journal(self) -> list[dict[str, Any]]:
        """The records of the journal; a torn last line is left out."""
        found = []
        with (
            contextlib.suppress(FileNotFoundError),
            open(os.path.join(self.folder, "journal.jsonl"), encoding="utf-8") as stream,
        ):
            for line in stream:
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the cluster: one command changes it at a time. Raises UserError where another one does."""
        try:
            private_folders(self.folder)
            number = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"{self.folder}: {error.strerror or error}") from None
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise UserError(
                f"another command is changing cluster {self.name}: wait until it is done"
            ) from None
        finally:
            os.close(number)


def known(env: Mapping[str, str] | None = None) -> list[ClusterState]:
    """The clusters that were made here and are not taken down."""
    root = os.path.join(home_dir(dict(os.environ if env is None else env)), "cluster")
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    return [
        ClusterState(name, env) for name in names if os.path.exists(os.path.join(root, name, "cluster.json"))
    ]
