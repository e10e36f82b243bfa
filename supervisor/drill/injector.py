"""The actions of a drill: on nodes, their disk, slurmctld, the supervisor, jobs. (I/O)"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftrun.slurm.sandbox import sshd
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.drill.observation import Observation, target_node
from ftrun.supervisor.drill.scenario import Action

COMMAND_TIMEOUT_S = 120.0
GONE_WITHIN_S = 10.0
STRANGERS = "strangers"
FILLER = ".filler"


class NoSandbox(Exception):
    """An action that needs a sandbox was requested on a real cluster."""


class Injector:
    """Acts on the sandbox and the jobs of one drill; commands run as the user in the drill's folder."""

    def __init__(self, box: Sandbox | None, folder: Path, home: Path, env: Mapping[str, str]) -> None:
        self._box, self.folder, self.home, self.env = box, folder, home, dict(env)

    @property
    def box(self) -> Sandbox:
        """The sandbox. Raises NoSandbox."""
        if self._box is None:
            raise NoSandbox("this drill breaks nodes: it runs in a sandbox only")
        return self._box

    def do(self, action: Action, seen: Observation) -> None:
        """Perform one action of a scenario: one of this class, or one of the sandbox. Raises NoSandbox,
        SandboxError.
        """
        if action.do == "ftrun":
            self.ftrun(*(word.replace("{run}", seen.run.id) for word in action.words))
        elif action.do == "scancel":
            assert seen.run.attempt is not None
            self.scancel(seen.run.attempt.job)
        elif action.do == "occupy":
            self._occupy(action.nodes, f"--job-name={STRANGERS}", "--wrap=sleep 900")
        elif action.do == "vacate":
            self.scancel_named(STRANGERS)
        elif action.do == "urgent_job":
            self._occupy(len(self.box.node_names), "--partition=urgent", "--wrap=sleep 4")
        else:
            act = getattr(self if hasattr(self, action.do) else self.box, action.do)
            act(*([target_node(action, seen)] if action.has_target else []))

    def _occupy(self, nodes: int, *words: str) -> None:
        self.submit_plain(f"-N{nodes}", "--exclusive", "--output=/dev/null", *words)

    # ---- nodes and the controller

    def counters(self, nodes: Sequence[str]) -> str:
        """Give these nodes a memory controller without errors; return the folder for `ftrun-hook watch
        --root`.
        """
        for node in nodes:
            self._controller(node).mkdir(parents=True, exist_ok=True)
            self._count(node, 0)
        return str(self.folder / "machine" / "{node}")

    def lose_memory(self, node: str) -> None:
        """Let the memory controller of the node count an uncorrected error."""
        self._count(node, 1)

    def _count(self, node: str, errors: int) -> None:
        for name, count in (("ue_count", errors), ("ce_count", 0)):
            (self._controller(node) / name).write_text(f"{count}\n")

    def _controller(self, node: str) -> Path:
        return self.folder / "machine" / node / "sys" / "devices" / "system" / "edac" / "mc" / "mc0"

    def lose_gpu(self, node: str) -> None:
        """Let the node's nvidia-smi report a lost GPU."""
        self._gpus(node, "GPU is lost")

    def mend_gpu(self, node: str) -> None:
        """Let the node's nvidia-smi report a healthy GPU."""
        self._gpus(node, "31 C")

    def _gpus(self, node: str, temperature: str) -> None:
        path = sshd.tools(self.box.plan, node) / "nvidia-smi"
        gpu = f"<uuid>GPU-1</uuid><temperature><gpu_temp>{temperature}</gpu_temp></temperature>"
        facts = "<driver_version>550.54</driver_version><attached_gpus>1</attached_gpus>"
        log = f"<nvidia_smi_log>{facts}<gpu id='00000000:3B:00.0'>{gpu}</gpu></nvidia_smi_log>"
        path.write_text(f'#!/bin/sh\necho "{log}"\n')
        path.chmod(0o755)

    def reasons(self) -> dict[str, str]:
        """Node -> its drain reason in Slurm; {} if Slurm does not answer."""
        rows = self.box.run(["sinfo", "-h", "-N", "-o", "%N|%E"]).stdout.splitlines()
        told = dict(row.split("|", 1) for row in rows if "|" in row)
        return {node: reason.strip() for node, reason in told.items() if reason.strip() not in ("", "none")}

    def drain(self, node: str) -> None:
        """Drain the node as an administrator does."""
        self._run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=kernel update"])

    # ---- ftrun's own processes

    def kill_supervisor(self) -> None:
        """Kill the supervisor of this drill (SIGKILL)."""
        end_processes(supervisors(self.home), signal.SIGKILL)

    def kill_agent(self) -> None:
        """SIGKILL to the agent of this drill."""
        end_processes(_ours(self.home, b"ftrun.supervisor.agent"), signal.SIGKILL)

    def kill_staging_daemons(self) -> None:
        """Kill every staging daemon of this drill (SIGKILL)."""
        end_processes(_ours(self.home, b"staging-daemon"), signal.SIGKILL)

    def fill_disk(self) -> None:
        """Fill the disk to which checkpoints are published."""
        with (self.folder / "published" / FILLER).open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(1 << 16))
            except OSError:  # the disk is full
                return

    def free_disk(self) -> None:
        """Free the disk again."""
        (self.folder / "published" / FILLER).unlink()

    # ---- commands

    def ftrun(self, *words: str) -> None:
        """Run an ftrun command to its end; its output goes to commands.log."""
        self._run([sys.executable, "-P", "-m", "ftrun.supervisor", *words])

    def scancel(self, job: str) -> None:
        """Cancel a job as the user does."""
        self._run(["scancel", job])

    def scancel_named(self, name: str) -> None:
        """Cancel every job of this user with this name."""
        self._run(["scancel", f"--name={name}", f"--user={getpass.getuser()}"])

    def jobs_named(self, name: str) -> tuple[str, ...]:
        """The pending and running jobs of this user with this name."""
        found = self._run(
            ["squeue", "-h", f"--name={name}", "-u", getpass.getuser(), "-t", "PD,R,CF,S", "-o", "%i"]
        )
        return tuple(found.stdout.split())

    def submit_plain(self, *words: str) -> None:
        """Submit a job by plain sbatch."""
        self._run(["sbatch", *words])

    def submit(self, words: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run `ftrun sbatch WORDS`."""
        return self._run([sys.executable, "-P", "-m", "ftrun.supervisor", "sbatch", *words], env)

    def _run(
        self, command: list[str], env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        with open(self.folder / "commands.log", "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}[{done.returncode}]\n")
        return done


def mount_small_disk(folder: Path, size_mib: int) -> None:
    """Mount a disk of this size on the folder. Raises SandboxError if that is not allowed."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0755", "ftrun-drill", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxError(
            f"this drill mounts a disk of its own, which only root can do: {done.stderr.strip()}"
        )


def unmount_disk(folder: Path) -> None:
    """Unmount the disk, lazily: it may be in use for a moment."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def supervisors(home: Path) -> list[int]:
    """The pids of the supervisors of this home."""
    return _ours(home, b"supervise")


def _ours(home: Path, word: bytes) -> list[int]:
    """The pids of processes of this home with this word among their arguments.

    FTRUN_HOME in their environment shows whose they are: a home belongs to one drill. Children are left out:
    between fork and exec a child has the arguments of its parent.
    """
    wanted = f"FTRUN_HOME={home}".encode()
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        # A process may end meanwhile, and the environment of other users' processes cannot be read.
        with contextlib.suppress(OSError):
            words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
            if word in words and wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found[int(entry)] = int(
                    Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]
                )
    return [pid for pid, parent in found.items() if parent not in found]


def end_processes(pids: list[int], how: signal.Signals = signal.SIGTERM) -> None:
    """Signal these processes and wait until they are gone; kill those that stay."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
    deadline = time.monotonic() + GONE_WITHIN_S
    left = pids
    while left := [pid for pid in left if _lives(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
