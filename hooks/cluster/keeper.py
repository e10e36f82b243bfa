"""Looks after the daemons of a cluster on its own host: starts what is dead, also after a reboot. (I/O)

cron, a timer of systemd, or the supervisor over SSH runs `<folder>/keep/keeper` each minute and at boot. It asks nobody but /proc as
long as all daemons live. A slurmctld that is frozen while the other one is in control is ended before it thaws: it would take over with the
memory of then, and until then every client waits for it in vain. It starts nothing

- where the claim on the host is not the cluster's any more, or `down` or `remove` has taken `<folder>/keep` away;
- while another process starts daemons here;
- of what needs a daemon that does not live: a slurmd waits for the mount of the shared folder, which waits for the first host;
- of a slurmd whose node the controller does not confirm: a host that was removed while it was off learns of it so, and leaves;
- that died again and again: the second start is at once, each later one waits twice as long as the one before, an hour at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import time
from typing import Any, Optional

from ftrun.hooks.cluster import claim, share
from ftrun.hooks.cluster.daemons import ask_slurm, bring_up
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.keeper_install import BY, installed, uninstall
from ftrun.hooks.cluster.keeper_memory import Memory
from ftrun.hooks.cluster.launch import starting
from ftrun.hooks.cluster.members import end, members
from ftrun.hooks.cluster.place import remove

ASK_EVERY_S = 600.0
TOUCH_EVERY_S = 86_400.0
TOLD_LINES = 20
NEEDS = {"slurmctld": ("munged",), "slurmd": ("munged", "sshfs")}
"""A daemon -> what has to live before it starts, of what this host has."""


def keep(step: dict[str, Any]) -> dict[str, Any]:
    """Start the daemons of `daemons` that are dead, if they may be. The step is that of `start`, with `node`, this host's name in Slurm.

    Returns {"started": [...], "failed": {daemon: why}, "postponed": {daemon: why}, "left": whether this host has left the cluster}.
    Raises HostError while another process starts daemons.
    """
    if claim.held().get("token") != step["token"]:
        # Somebody has taken the host over by hand. What lives is his to judge; nothing more is started.
        uninstall(step)
        return {"started": [], "failed": {}, "postponed": {}, "left": True}
    with starting(step["folder"], 0.0):
        return _kept(step)


def _kept(step: dict[str, Any]) -> dict[str, Any]:
    memory = Memory(step["folder"])
    living = members(step["token"], step["folder"]).daemons
    stale = [one for one in living.get("slurmctld", []) if one.state == "T"]
    if stale and 0 <= in_control(step) != step["rank"]:
        for one in stale:
            os.kill(one.pid, signal.SIGKILL)
        note(
            step["folder"],
            by=os.environ.get(BY) or step["by"],
            daemon="slurmctld",
            did="ended",
            why="it was frozen, and the other controller has taken over",
        )
        del living["slurmctld"]
    dead = [name for name in step["daemons"] if name not in living]
    memory.note_living(living)
    started: list[str] = []
    failed: dict[str, str] = {}
    postponed: dict[str, str] = {}
    for name in dead:
        if wait_s := memory.wait_s(name):
            postponed[name] = f"it died again and again: the next start is in {wait_s:.0f} s"
        elif lacking := [one for one in NEEDS.get(name, ()) if one in failed or one in postponed]:
            postponed[name] = f"{lacking[0]} does not live"
        elif name == "sshfs" and not share.is_served(step):
            postponed[name] = "the first host does not serve the folder"
        elif name == "slurmd" and (is_node := _is_node(step, memory)) is not True:
            if is_node is False:
                return _left(step)
            postponed[name] = "the controller does not answer"
        else:
            why = _start(step, name, memory)
            if why:
                failed[name] = why
            else:
                started.append(name)
    if not dead and memory.is_time("asked", ASK_EVERY_S) and _is_node(step, memory) is False:
        return _left(step)
    if memory.is_time("touched", TOUCH_EVERY_S):
        _touch(step)
    memory.save()
    return {"started": started, "failed": failed, "postponed": postponed, "left": False}


def _start(step: dict[str, Any], name: str, memory: Memory) -> str:
    """Start one daemon; why it did not come up, "" if it did. What was done is on disk before and after."""
    memory.note_start(name)
    memory.save()
    reason = "the host was off" if memory.was_off(name) else "it was dead"
    began_s = time.monotonic()
    try:
        bring_up(step, name)
        memory.note_living([name])
        why = ""
    except (HostError, OSError) as error:
        why = " ".join(str(error).split())
    note(
        step["folder"],
        by=os.environ.get(BY) or step["by"],
        daemon=name,
        did="failed" if why else "started",
        why=why or reason,
        took_s=round(time.monotonic() - began_s, 2),
    )
    return why


def in_control(step: dict[str, Any]) -> int:
    """Which of the controllers that keep their state in the folder `state` has written its sign of life last; -1 where none has."""
    with (
        contextlib.suppress(OSError, struct.error),
        open(os.path.join(step["state"], "heartbeat"), "rb") as stream,
    ):
        return int(struct.unpack(">QQ", stream.read(16))[1])
    return -1


def _is_node(step: dict[str, Any], memory: Memory) -> Optional[bool]:
    """Whether the controller knows this host; None where it does not answer."""
    memory.times["asked"] = memory.now_s
    try:
        ask_slurm(step, ["scontrol", "show", "node", "-o", step["node"]])
    except HostError as error:
        return False if f"{step['node']} not found" in str(error) else None
    return True


def _left(step: dict[str, Any]) -> dict[str, Any]:
    """This host was removed from the cluster while nobody could ask it: end and remove all that there is of it."""
    note(step["folder"], by=step["by"], did="left", why="the controller does not know this host any more")
    uninstall(step)
    ended, _ = end(step["token"], step["folder"])
    if step.get("share"):
        with contextlib.suppress(HostError):
            share.unmount({**step, "lazy": True})
    remove(step)
    claim.release(step)
    return {"started": [], "failed": {}, "postponed": {}, "left": True, "ended": ended}


def note(folder: str, **data: Any) -> None:
    """Append one line to log/keeper.jsonl, which `down` leaves."""
    line = json.dumps({"at_s": round(time.time(), 3), **data}) + "\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):  # a full disk keeps nothing from being started
        number = os.open(os.path.join(folder, "log", "keeper.jsonl"), flags, 0o600)
        try:
            os.write(number, line.encode())
        finally:
            os.close(number)


def report(step: dict[str, Any]) -> dict[str, Any]:
    """Who runs the keeper here ("by"), since when the host is up ("up_s"), and the last lines of log/keeper.jsonl ("done")."""
    with open("/proc/uptime", encoding="ascii") as stream:
        up_s = float(stream.read().split()[0])
    return {"by": installed(step), "up_s": round(up_s), "done": _lines(step["folder"])}


def _lines(folder: str) -> list[dict[str, Any]]:
    found = []
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, "log", "keeper.jsonl"), encoding="utf-8") as stream,
    ):
        for line in stream.readlines()[-TOLD_LINES:]:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def _touch(step: dict[str, Any]) -> None:
    """Let nothing of the cluster look forgotten: systemd-tmpfiles removes from /var/tmp what nobody used for 30 days."""
    with contextlib.suppress(OSError):
        os.utime(claim.PATH, follow_symlinks=False)
    above = os.path.dirname(step["folder"]) + os.sep
    bundles = {
        os.path.dirname(os.path.dirname(one)) for one in step["programs"].values() if one.startswith(above)
    }
    for folder in (step["folder"], *bundles):
        for path, _, names in os.walk(folder):
            for name in (".", *names):
                with contextlib.suppress(OSError):
                    os.utime(os.path.join(path, name), follow_symlinks=False)
