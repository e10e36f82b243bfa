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
TEXT_CHARS, TIME_MAX_S = 500, 1e11
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
            f"cluster {theirs['name']} of {theirs.get('user')}"
            if theirs.get("name")
            else "something that is no cluster"
        )
        who = "" if theirs.get("uid") in (os.geteuid(), None) else f", as user {theirs['uid']} or root"
        raise HostError(
            f"{os.uname().nodename} belongs to {whose} ({_since(theirs)}): take that one down first; where it is long gone: rm {PATH}{who}"
        ) from None
    return {"taken": True}


def is_anothers(step: dict[str, Any]) -> bool:
    """Whether another cluster has this host with the very `folder` of the cluster of `token`: a person took the host over, and what is in
    the folder is no longer this cluster's.
    """
    theirs = held()
    return bool(theirs.get("folder") == step["folder"] and theirs.get("token") != step["token"])


def release(step: dict[str, Any]) -> dict[str, Any]:
    """Give this host back if the cluster of `token` has it. Returns {"released": whether it had}."""
    if held().get("token") != step["token"]:
        return {"released": False}
    os.unlink(PATH)
    return {"released": True}


def held() -> dict[str, Any]:
    """The claim on this host, with the `uid` of who made it; {} without one, {"token": ""} for what is no claim.

    Every user of the host can make one, so nothing but printable text and numbers is taken from it.
    """
    try:
        fact = os.lstat(PATH)
        found = json.loads(os.readlink(PATH))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return {"token": ""}
    if not isinstance(found, dict) or not stat.S_ISLNK(fact.st_mode):
        return {"token": "", "uid": fact.st_uid}
    return {**{field: _plain(found.get(field, "")) for field in FIELDS}, "uid": fact.st_uid}


def _plain(value: Any) -> Any:
    """A short value that a terminal can show; "" for what is neither a text nor a time."""
    if isinstance(value, (int, float)):
        return value if 0 <= value < TIME_MAX_S else ""
    return "".join(filter(str.isprintable, value[:TEXT_CHARS])) if isinstance(value, str) else ""


def _since(claim: dict[str, Any]) -> str:
    import time

    try:
        at = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(float(claim["since_s"])))
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return "since when is unknown"
    return f"since {at}, by {claim.get('by')}"
