"""The daemons of a cluster on this host: munged, slurmctld on the head host, slurmd, and who serves or mounts its shared folder. (I/O)

Each is started where it is not alive. One that lives with another slurm.conf than that of now is started again: jobs and steps outlive
that. A daemon's start returns 0 even where it dies right after, so it counts as started once it answers: munged by its socket,
slurmctld by `scontrol ping`, slurmd by its port.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any

from ftrun.hooks.cluster import claim, share
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.launch import CONF_MARK, POLL_S, conf_hash, environment, launch, log_of, starting
from ftrun.hooks.cluster.members import end, members, variable_of
from ftrun.hooks.cluster.place import is_state, write_file
from ftrun.hooks.cluster.survey import accelerators, free_mib

READY_S = 60.0
END_S = 30.0
LOCK_S = 90.0
ASK_S = 20.0
LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it


def start(step: dict[str, Any]) -> dict[str, Any]:
    """Start the daemons in `daemons` that are not alive, in that order; each answers before the next is started.

    The step has `token`, `folder`, `programs` (name -> path), `address` and `slurmd_port` of this host, `gres` (name -> how many
    slurm.conf promises), and what `share` asks for. Returns {"started": [...], "missing": {gres: how many devices fewer}}. Raises
    HostError with the daemon's own last words.
    """
    started = []
    missing: dict[str, int] = {}
    with starting(step["folder"], LOCK_S):
        for daemon in step["daemons"]:
            if daemon in share.STARTS:
                if share.STARTS[daemon](step):
                    started.append(daemon)
                continue
            living = members(step["token"], step["folder"]).daemons.get(daemon, [])
            if living and (
                daemon == "munged" or variable_of(living[0].pid, CONF_MARK) == conf_hash(step["folder"])
            ):
                await_ready(step, daemon)
                continue
            if living:
                _end_daemon(step, daemon)
            missing |= bring_up(step, daemon)
            started.append(daemon)
    return {"started": started, "missing": missing}


def status(step: dict[str, Any]) -> dict[str, Any]:
    """Each daemon that lives here -> {"pid", "up_s", "frozen"}; how many processes there are in all, and steps of jobs; clock, and space on the disk."""
    found = members(step["token"], step["folder"])
    with open("/proc/uptime", encoding="ascii") as stream:
        since_boot_s = float(stream.read().split()[0])
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        "daemons": {
            name: {
                "pid": rows[0].pid,
                "up_s": round(since_boot_s - rows[0].began / ticks, 1),
                "frozen": rows[0].state == "T",
            }
            for name, rows in found.daemons.items()
        },
        "processes": len(found.everything),
        "steps": sum(one.name == "slurmstepd" for one in found.everything),
        "free_mib": free_mib(step["folder"]),
        "clock_s": time.time(),
    }


def stop(step: dict[str, Any]) -> dict[str, Any]:
    """End every process of the cluster on this host, and let nobody start another one: without slurm.conf nothing is started.

    Whoever starts daemons here now (an `up` that was killed, the keeper) fails once they are ended, and is waited for. Returns {"ended":
    how many}. Raises HostError where a process resists, or who starts them does not end.
    """
    token, folder = step["token"], step["folder"]
    if claim.is_anothers(step):  # what has the folder's slurm.conf is the other cluster's
        ended, left = end(token, f"{folder}/taken")
    else:
        ended, left = end(token, folder)
        if os.path.isdir(os.path.join(folder, "run")):
            with starting(folder, LOCK_S):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, "etc", "slurm.conf"))
                more, left = end(token, folder)
                ended += more
    if left:
        names = ", ".join(f"{one.name} ({one.pid}, state {one.state})" for one in left)
        raise HostError(f"still there after SIGKILL: {names}")
    return {"ended": ended}


def ask_slurm(step: dict[str, Any], command: list[str], *, fails: bool = False) -> str:
    """What a client of Slurm prints on this host. Raises HostError where it fails, unless it may: `fails`."""
    program = step["programs"].get(command[0], command[0])
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL, capture_output=True,
            env=environment(step), timeout=ASK_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise HostError(f"{command[0]} got no answer within {ASK_S:g} s") from None
    except OSError as error:
        raise HostError(f"{program}: {error.strerror}") from None
    if done.returncode and not fails:
        said = done.stderr or done.stdout  # scontrol says on stdout that it does not know a node
        raise HostError(f"{command[0]}: {' '.join(said.decode('utf-8', 'replace').split())}")
    return done.stdout.decode("utf-8", "replace")


def _command(step: dict[str, Any], daemon: str) -> list[str]:
    folder, program = step["folder"], step["programs"][daemon]
    if daemon == "munged":
        return [
            program,
            f"--socket={folder}/munge/munge.sock",
            f"--key-file={folder}/key/munge.key",
            f"--pid-file={folder}/run/munged.pid",
            f"--seed-file={folder}/run/munged.seed",
            f"--log-file={folder}/log/munged.log",
            # The folders above belong to the user or root; munged asks for more where a user's group can write to them.
            "--force",
        ]
    command = [program, "-f", f"{folder}/etc/slurm.conf"]
    wrapper = f"{folder}/bin/slurmstepd"
    stepd = wrapper if os.path.exists(wrapper) else step["programs"]["slurmstepd"]
    return [*command, "-d", stepd] if daemon == "slurmd" else command


def _end_daemon(step: dict[str, Any], daemon: str) -> None:
    """End a daemon as Slurm means it, so that it saves its state. Raises HostError where it does not end."""
    give_up_s = time.monotonic() + END_S
    asked = False
    while rows := members(step["token"], step["folder"]).daemons.get(daemon):
        pids = {one.pid for one in rows}
        for one in () if asked else rows:
            if one.parent not in pids:  # its helpers end with it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGTERM)
        asked = True
        if time.monotonic() > give_up_s:
            raise HostError(f"{daemon} ({rows[0].pid}) does not end within {END_S:g} s")
        time.sleep(POLL_S)


def bring_up(step: dict[str, Any], daemon: str) -> dict[str, int]:
    """Start one daemon, and return once it answers. gres.conf is written anew before a slurmd: a device file that is gone would end it.

    Returns the GRES of which fewer are here than promised. Raises HostError with its last words where it refuses or dies.
    """
    if daemon in share.STARTS:
        share.STARTS[daemon](step)
        return {}
    if daemon == "slurmctld" and step["state"] and not is_state(step):
        raise HostError(
            f"{step['state']}, where the controllers keep their state, is not there: is it mounted?"
        )
    missing = _write_gres(step) if daemon == "slurmd" else {}
    if daemon == "munged":  # what an earlier process left behind keeps a new one from binding its socket
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(step["folder"], "munge", "munge.sock"))
    launch(step, daemon, _command(step, daemon))
    await_ready(step, daemon)
    return missing


def await_ready(step: dict[str, Any], daemon: str) -> None:
    """Wait until a daemon answers. Raises HostError where it ends or does not."""
    give_up_s = time.monotonic() + READY_S
    while not _is_ready(step, daemon):
        # A daemon forks before it is one: it is missed only where it is still missing a moment later.
        if not members(step["token"], step["folder"]).daemons.get(daemon):
            time.sleep(0.5)
            if not members(step["token"], step["folder"]).daemons.get(daemon):
                raise HostError(f"{daemon} ended right after its start: {log_of(step, daemon)}")
        if time.monotonic() > give_up_s:
            raise HostError(f"{daemon} does not answer within {READY_S:g} s: {log_of(step, daemon)}")
        time.sleep(POLL_S)


def _is_ready(step: dict[str, Any], daemon: str) -> bool:
    if daemon == "slurmctld":
        with contextlib.suppress(HostError):  # it fails where the other controller is away
            return f" at {step['node']} is UP" in ask_slurm(step, ["scontrol", "ping"], fails=True)
        return False
    ready = (
        os.path.exists(f"{step['folder']}/munge/munge.sock")
        if daemon == "munged"
        else _is_listening(step["slurmd_port"])
    )
    return ready and bool(members(step["token"], step["folder"]).daemons.get(daemon))


def _is_listening(port: int) -> bool:
    """Whether a process of this host listens on a port. It is looked up, not called: slurmd logs a call without a message as an error."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as stream:
            for words in map(str.split, stream):
                if len(words) > 3 and words[3] == LISTENING and words[1].endswith(f":{port:04X}"):
                    return True
    return False


def _write_gres(step: dict[str, Any]) -> dict[str, int]:
    """Write gres.conf of the devices that are here now; the GRES of which fewer are here than promised."""
    here = {name: row["files"] for name, row in accelerators().items()}
    lines = [
        f"Name={name} File={','.join(files[: step['gres'].get(name, 0)])}" for name, files in here.items()
    ]
    lines = [line for line in lines if not line.endswith("File=")]
    text = "\n".join(["AutoDetect=off", *lines]) + "\n" if lines else ""
    write_file(os.path.join(step["folder"], "etc", "gres.conf"), text.encode(), 0o644)
    return {
        name: count - len(here.get(name, []))
        for name, count in step["gres"].items()
        if count > len(here.get(name, []))
    }
