"""The claim on a host: it belongs to one cluster at a time. (I/O)

A claim is one symbolic link, made with its content, so there is no moment in which it is empty. It lies in a folder of everybody, which
survives a reboot, because two users' clusters on one host would give the same GPUs to two jobs. The folder's sticky bit keeps others
from removing it. A person takes a host over by removing the link.
"""

from __future__ import annotations

import json
import os
import stat

from ftrun.hooks.cluster.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH = "/var/tmp/ftrun-cluster.claim"  # noqa: S108
FIELDS = ("token", "name", "user", "since_s", "by", "folder")


def take(step: dict[str, Any]) -> dict[str, Any]:
    """Claim this host: the step has FIELDS. Returns {"taken": whether it was free}. Raises HostError where another cluster has it."""
    mine = {field: step[field] for field in FIELDS}
    try:
        os.symlink(json.dumps(mine), PATH)
    except FileExistsError:
        theirs = held()
        if theirs.get("token") == mine["token"]:
            return {"taken": False}
        whose = (
            f"cluster {theirs['name']} of {theirs['user']}"
            if theirs.get("name")
            else "something that is no cluster"
        )
        raise HostError(
            f"{os.uname().nodename} belongs to {whose} ({_since(theirs)}): take that one down first; where it is long gone: rm {PATH}"
        ) from None
    return {"taken": True}


def release(step: dict[str, Any]) -> dict[str, Any]:
    """Give this host back if the cluster of `token` has it. Returns {"released": whether it had}."""
    if held().get("token") != step["token"]:
        return {"released": False}
    os.unlink(PATH)
    return {"released": True}


def held() -> dict[str, Any]:
    """The claim on this host; {} without one, {"token": ""} for what is no claim."""
    try:
        fact = os.lstat(PATH)
        found = json.loads(os.readlink(PATH))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return {"token": ""}
    if not isinstance(found, dict) or not stat.S_ISLNK(fact.st_mode):
        return {"token": ""}
    return {**found, "uid": fact.st_uid}


def _since(claim: dict[str, Any]) -> str:
    import time

    try:
        at = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(float(claim["since_s"])))
    except (KeyError, TypeError, ValueError):
        return "since when is unknown"
    return f"since {at}, by {claim.get('by')}"
