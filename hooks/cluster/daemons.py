"""The daemons of a cluster on this host: munged, slurmctld on the head host, slurmd. (I/O)

Each is started where it is not alive, in a session of its own, with the environment of nobody: what a daemon inherits, steps inherit
from it. One that lives with another slurm.conf than that of now is started again: jobs and steps outlive that. A daemon's start returns 0 even where it dies right after, so it counts as started once it answers: munged by its socket,
slurmctld by `scontrol ping`, slurmd by its port.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.init_system import environment, scope_words
from ftrun.hooks.cluster.members import MARK, end, mark_of, members, variable_of
from ftrun.hooks.cluster.place import write_file
from ftrun.hooks.cluster.survey import SBIN, accelerators

START_S = 60.0
READY_S = 60.0
END_S = 30.0
LOCK_S = 90.0
POLL_S = 0.05
ASK_S = 20.0
LAST_LINES = 2
LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it
CONF_MARK = "FTRUN_CLUSTER_CONF"
"""The variable of a daemon that tells with which slurm.conf it was started."""


def start(step: dict[str, Any]) -> dict[str, Any]:
    """Start the daemons in `daemons` that are not alive, in that order; each answers before the next is started.

    The step has `token`, `folder`, `programs` (name -> path), `address` and `slurmd_port` of this host, and `gres` (name -> how many
    slurm.conf promises). gres.conf is written anew before slurmd starts: a device file that is gone would end it after 19 s. Returns
    {"started": [...], "missing": {gres: how many devices fewer}}. Raises HostError with the daemon's own last words.
    """
    started = []
    missing: dict[str, int] = {}
    with starting(step["folder"], LOCK_S):
        for daemon in step["daemons"]:
            living = members(step["token"], step["folder"]).daemons.get(daemon, [])
            if living and (
                daemon == "munged" or variable_of(living[0].pid, CONF_MARK) == _conf_hash(step["folder"])
            ):
                await_ready(step, daemon)
                continue
            if living:
                _end_daemon(step, daemon)
            if daemon == "slurmd":
                missing = _write_gres(step)
            start_daemon(step, daemon)
            await_ready(step, daemon)
            started.append(daemon)
    return {"started": started, "missing": missing}


@contextlib.contextmanager
def starting(folder: str, limit_s: float) -> Iterator[None]:
    """Hold the right to start daemons of a cluster here: one process has it at a time. Raises HostError after `limit_s`."""
    number = os.open(os.path.join(folder, "run", "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_s = time.monotonic() + limit_s
    try:
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_s:
                    raise HostError(
                        "another command or the keeper starts daemons here: say it again"
                    ) from None
            time.sleep(POLL_S)
        yield
    finally:
        os.close(number)


def status(step: dict[str, Any]) -> dict[str, Any]:
    """Each daemon that lives here -> {"pid", "up_s", "frozen"}; and how many processes there are in all."""
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
    }


def stop(step: dict[str, Any]) -> dict[str, Any]:
    """End every process of the cluster on this host. Returns {"ended": how many}. Raises HostError where one resists."""
    ended, left = end(step["token"], step["folder"])
    if left:
        names = ", ".join(f"{one.name} ({one.pid}, state {one.state})" for one in left)
        raise HostError(f"still there after SIGKILL: {names}")
    return {"ended": ended}


def ask_slurm(step: dict[str, Any], command: list[str]) -> str:
    """What a client of Slurm prints on this host. Raises HostError where it fails."""
    program = step["programs"].get(command[0], command[0])
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL, capture_output=True,
            env=_environment(step), timeout=ASK_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise HostError(f"{command[0]} got no answer within {ASK_S:g} s") from None
    if done.returncode:
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
    return [*command, "-d", wrapper] if daemon == "slurmd" and os.path.exists(wrapper) else command


def path_of_daemons() -> str:
    """PATH with the folders of daemons, which an ordinary user's lacks."""
    return os.pathsep.join(
        dict.fromkeys([*filter(None, os.environ.get("PATH", "").split(os.pathsep)), *SBIN])
    )


def _environment(step: dict[str, Any], daemon: str = "") -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if key in {"HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME"}
    }
    kept |= {"PATH": path_of_daemons(), "SLURM_CONF": f"{step['folder']}/etc/slurm.conf"}
    if not daemon:
        return kept
    return {**kept, MARK: mark_of(step["token"], daemon), CONF_MARK: _conf_hash(step["folder"])}


def _conf_hash(folder: str) -> str:
    with open(os.path.join(folder, "etc", "slurm.conf"), "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()[:16]


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


def start_daemon(step: dict[str, Any], daemon: str) -> None:
    """Start one daemon. Raises HostError with its last words where it refuses; it may die right after, too."""
    folder = step["folder"]
    said = os.path.join(folder, "log", "start.log")
    # What an earlier process left behind keeps a new one from binding its socket.
    for name in ("munge/munge.sock",) if daemon == "munged" else ():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    scope, env = scope_words(), _environment(step, daemon)
    if scope:
        env = {"XDG_RUNTIME_DIR": environment()["XDG_RUNTIME_DIR"], **env}
    with open(said, "ab") as output:
        before = output.tell()
        process = subprocess.Popen(
            [*scope, *_command(step, daemon)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            cwd=folder, env=env, start_new_session=True,
        )  # fmt: skip
        try:
            exit_code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            exit_code = -1
    if exit_code:
        raise HostError(
            f"{daemon} did not start: {_last_lines(said, before) or _log_of(step, daemon) or f'exit code {exit_code}'}"
        )


def await_ready(step: dict[str, Any], daemon: str) -> None:
    """Wait until a daemon answers. Raises HostError where it ends or does not."""
    give_up_s = time.monotonic() + READY_S
    while not _is_ready(step, daemon):
        # A daemon forks before it is one: it is missed only where it is still missing a moment later.
        if not members(step["token"], step["folder"]).daemons.get(daemon):
            time.sleep(0.5)
            if not members(step["token"], step["folder"]).daemons.get(daemon):
                raise HostError(f"{daemon} ended right after its start: {_log_of(step, daemon)}")
        if time.monotonic() > give_up_s:
            raise HostError(f"{daemon} does not answer within {READY_S:g} s: {_log_of(step, daemon)}")
        time.sleep(POLL_S)


def _is_ready(step: dict[str, Any], daemon: str) -> bool:
    if daemon == "slurmctld":
        try:
            ask_slurm(step, ["scontrol", "ping"])
        except HostError:
            return False
        return True
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


def _log_of(step: dict[str, Any], daemon: str) -> str:
    return _last_lines(os.path.join(step["folder"], "log", f"{daemon}.log"), 0)


def _last_lines(path: str, offset: int) -> str:
    """The last words behind `offset`: Slurm's last line says that it gives up, the one before says why."""
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            lines = [
                line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()
            ]
    except OSError:
        return ""
    return "; ".join(lines[-LAST_LINES:])
