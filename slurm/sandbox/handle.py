"""The handle on one sandbox: ask it, hurt its nodes, stop its controller, take it down. (I/O)

What is up is read from /proc and from Slurm, never remembered: a sandbox whose maker is dead, or whose
daemons were killed one by one, can be loaded, looked at and taken down like any other.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftrun.slurm.records import dataclass
from ftrun.slurm.sandbox import boot, sshd
from ftrun.slurm.sandbox import processes as sandbox_processes
from ftrun.slurm.sandbox.plan import Plan, SandboxError

HOWS = ("crash", "freeze", "slurmd", "drain")
DOWN_WAIT_S = 10.0
CONTROLLER_WAIT_S = 90.0
NODE_WAIT_S = 120.0
# A client without its slurm.conf, or with a stopped controller, waits by itself for up to a minute.
ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """One daemon: `state` is running, frozen or dead; `pid` is None when dead."""

    name: str
    state: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node in Slurm's words: `state` as `sinfo -o %T` prints it, "unknown" when Slurm cannot be asked."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What lives in a sandbox now. `alive`: munged and slurmctld have processes (a frozen one counts)."""

    name: str
    folder: str
    alive: bool
    daemons: tuple[DaemonStatus, ...]
    nodes: tuple[NodeStatus, ...]
    slurm_version: str
    uts: bool


class Sandbox:
    """A handle on the sandbox in one folder; holds nothing but its plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.name
        self.folder = Path(plan.folder)
        self.conf = Path(plan.slurm_conf_path)
        self.shared = self.folder / "shared"
        self.log = self.folder / "log"
        self.node_names = plan.node_names
        self.uts = plan.uts
        self.ssh_config: Path | None = self.folder / "ssh" / "config" if plan.ssh else None

    @staticmethod
    def load(folder: Path) -> Sandbox:
        """The sandbox in a folder, alive or dead. SandboxError where there is none."""
        path = Path(folder).absolute() / "sandbox.json"
        try:
            for one in (path.parent, path):
                if boot.is_foreign(one):
                    raise SandboxError(
                        f"{one} is not this user's alone: what it says is not done (whose sandbox it is can take it down)",
                        wrong_usage=True,
                    )
            return Sandbox(Plan.from_json(path.read_text()))
        except OSError:
            raise SandboxError(
                f"no sandbox in {path.parent}: make one with `ftrun sandbox up`", wrong_usage=True
            ) from None

    def env(self) -> dict[str, str]:
        """os.environ for a client of this sandbox: its SLURM_CONF, daemons' folders in PATH. Variables of
        another cluster (we may stand inside one of its jobs) are left out.
        """
        environment = dict(os.environ)
        if environment.get("SLURM_CONF") != str(self.conf):
            environment = {
                key: value for key, value in environment.items() if not key.startswith(("SLURM_", "SLURMD_"))
            }
        environment["SLURM_CONF"] = str(self.conf)
        environment["PATH"] = boot.search_path()
        return environment

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float = 60.0,
        input: str | None = None,  # noqa: A002 - as subprocess.run calls it
        check: bool = False,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a client of this sandbox, in `cwd` (default: the caller's folder). Raises
        SandboxError when it takes longer than `timeout_s`, cannot be started, or, with `check`, exits with
        another code than 0.
        """
        if not self.conf.exists():
            raise SandboxError(f"no slurm.conf in {self.folder}: the sandbox is not up")
        words = [str(word) for word in command]
        environment = self.env()
        stdin = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
        try:
            # shutil.which: subprocess would look the program up in our PATH, not in the one given to it.
            program = shutil.which(words[0], path=environment["PATH"]) or words[0]
            done = subprocess.run(
                [program, *words[1:]],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=environment,
                cwd=cwd,
                check=False,
                **stdin,
            )
        except subprocess.TimeoutExpired:
            raise SandboxError(f"{' '.join(words)}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise SandboxError(f"{words[0]}: {error.strerror}") from error
        if check and done.returncode:
            raise SandboxError(
                f"{' '.join(words)}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()}"
            )
        answer: subprocess.CompletedProcess[str] = done
        return answer

    def members(self) -> sandbox_processes.Members:
        """The sandbox's processes at this moment."""
        return sandbox_processes.members(self.plan)

    def status(self) -> SandboxStatus:
        """Daemons from /proc, nodes from sinfo (not asked while the controller is dead or frozen)."""
        living = self.members().daemons
        daemons = tuple(_daemon_status(name, living) for name in self._daemon_names())
        state = {daemon.name: daemon.state for daemon in daemons}
        nodes = self._nodes() if state["slurmctld"] == state["munged"] == "running" else {}
        return SandboxStatus(
            name=self.name,
            folder=str(self.folder),
            alive=state["slurmctld"] != "dead" and state["munged"] != "dead",
            daemons=daemons,
            nodes=tuple(nodes.get(node, NodeStatus(node, "unknown", "")) for node in self.node_names),
            slurm_version=f"{self.plan.version[0]}.{self.plan.version[1]:02d}",
            uts=self.uts,
        )

    def node_state(self, node: str) -> str:
        """A node's state as `sinfo -o %T` prints it (idle, mixed, down*, drained ...), or unknown."""
        self.plan.index(node)
        found = self._nodes().get(node)
        return found.state if found else "unknown"

    def wait_node(self, node: str, *states: str, timeout_s: float = NODE_WAIT_S) -> str:
        """Wait until a node is in one of `states`; returns it, SandboxError when time is up."""
        deadline = time.monotonic() + timeout_s
        while (state := self.node_state(node)) not in states:
            if time.monotonic() > deadline:
                raise SandboxError(f"{node} is {state}, not {' or '.join(states)}, after {timeout_s:g} s")
            time.sleep(0.2)
        return state

    def _nodes(self) -> dict[str, NodeStatus]:
        try:
            answer = self.run(["sinfo", "-h", "-N", "-o", "%N|%T|%E"], timeout_s=ASK_TIMEOUT_S)
        except SandboxError:
            return {}
        rows = (line.split("|", 2) for line in answer.stdout.splitlines() if line.count("|") >= 2)
        return {
            name: NodeStatus(name, state, "" if reason == "none" else reason) for name, state, reason in rows
        }

    def _daemon_names(self) -> list[str]:
        names = [*self.plan.munged_folders]
        names += [*(["mariadbd", "slurmdbd"] if self.plan.accounting else []), "slurmctld"]
        names += [f"slurmd-{node}" for node in self.node_names]
        return names + ([f"sshd-{node}" for node in self.node_names] if self.plan.ssh else [])

    def break_node(self, node: str, how: str) -> None:
        """Hurt a node: crash, freeze, slurmd (only its slurmd dies) or drain."""
        if how not in HOWS:
            raise SandboxError(
                f"unknown way to break a node {how!r}: one of {', '.join(HOWS)}", wrong_usage=True
            )
        if how == "drain":
            self.drain(node, "sandbox: drained on demand")
        else:
            {"crash": self.crash, "freeze": self.freeze, "slurmd": self.slurmd_kill}[how](node)

    def crash(self, node: str) -> None:
        """The machine is gone: slurmd, job steps, ranks and sshd die at once and stay dead until `mend`."""
        self.plan.index(node)
        _, left = sandbox_processes.end(lambda: self.members().nodes[node], DOWN_WAIT_S)
        if left:
            raise SandboxError(f"{node}: {_listing(left)} resist SIGKILL")

    def freeze(self, node: str) -> None:
        """The machine hangs: every process of the node is stopped until `mend`."""
        self.plan.index(node)
        sandbox_processes.send_until_stable(lambda: self.members().nodes[node], signal.SIGSTOP)

    def slurmd_kill(self, node: str) -> None:
        """Only slurmd dies; job steps and ranks of the node go on."""
        self.plan.index(node)
        _, left = sandbox_processes.end(
            lambda: (p for p in self.members().nodes[node] if p.comm == "slurmd"), DOWN_WAIT_S
        )
        if left:
            raise SandboxError(f"{node}: {_listing(left)} resist SIGKILL")

    def drain(self, node: str, reason: str) -> None:
        """Drain a node as an administrator would; running jobs are not touched."""
        self.plan.index(node)
        self.run(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"], check=True)

    def mend(self, node: str, *, timeout_s: float = NODE_WAIT_S) -> None:
        """Undo whatever was done to a node; returns when Slurm uses it again. Thaws it, starts what is dead,
        resumes it where it is down or drained. While the controller is dead or frozen only the processes are
        mended. SandboxError when Slurm does not take it back.
        """
        self.plan.index(node)
        sandbox_processes.send_until_stable(lambda: self.members().nodes[node], signal.SIGCONT)
        living = self.members().daemons
        if f"slurmd-{node}" not in living:
            boot.start_slurmd(self.plan, node)
        if self.plan.ssh and f"sshd-{node}" not in living:
            sshd.start(self.plan, node)
        if _daemon_status("slurmctld", living).state != "running":
            return
        deadline = time.monotonic() + timeout_s
        while (state := self.node_state(node)).endswith("*") or state.rstrip("*") in (
            "down",
            "drained",
            "draining",
            "unknown",
            "fail",
        ):
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"{node} is {state} {timeout_s:g} s after it was mended (log: {self.plan.slurmd_log(node)}): "
                    f"{boot.last_lines(Path(self.plan.slurmd_log(node)), 0)}"
                )
            if (
                f"slurmd-{node}" not in self.members().daemons
            ):  # it gave up: the controller did not hear it in time
                boot.start_slurmd(self.plan, node)
            self.run(["scontrol", "update", f"nodename={node}", "state=resume"], timeout_s=ASK_TIMEOUT_S)
            time.sleep(0.3)

    def start_controller(self) -> None:
        """Start slurmctld (and munged where it is dead) from the saved state; returns when it answers."""
        living = self.members().daemons
        for name in self.plan.munged_folders:
            if name not in living:
                boot.start_munged(self.plan, name)
        if "slurmctld" not in living:
            boot.start_slurmctld(self.plan)
        deadline = time.monotonic() + CONTROLLER_WAIT_S
        while self.run(["scontrol", "ping"], timeout_s=ASK_TIMEOUT_S).returncode:
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"slurmctld does not answer after {CONTROLLER_WAIT_S:g} s (log: {self.log}/slurmctld.log)"
                )
            time.sleep(0.05)

    def has_multiple_slurmd(self) -> bool:
        """Whether this Slurm allows several slurmds on one host, by the running slurmctld's own configuration."""
        config = self.run(["scontrol", "show", "config"], timeout_s=ASK_TIMEOUT_S, check=True).stdout
        return re.search(r"^MULTIPLE_SLURMD\s*= yes$", config, re.MULTILINE | re.IGNORECASE) is not None

    def stop_controller(self) -> None:
        """Ask slurmctld to end (SIGTERM: it saves its state first) and wait until it has."""
        sandbox_processes.send(self._controller(main_only=True), signal.SIGTERM)
        self._wait_controller_gone()

    def kill_controller(self) -> None:
        """SIGKILL slurmctld: what it had not saved yet is lost."""
        sandbox_processes.send(self._controller(), signal.SIGKILL)
        self._wait_controller_gone()

    def pause_controller(self) -> None:
        """SIGSTOP slurmctld: clients connect and get no answer."""
        sandbox_processes.send(self._controller(), signal.SIGSTOP)

    def continue_controller(self) -> None:
        """SIGCONT slurmctld."""
        sandbox_processes.send(self._controller(), signal.SIGCONT)

    def _controller(self, *, main_only: bool = False) -> list[sandbox_processes.Process]:
        found = sorted(self.members().daemons.get("slurmctld", ()), key=lambda process: process.start)
        return [process for process in found if not main_only or process.comm != "slurmscriptd"]

    def _wait_controller_gone(self) -> None:
        deadline = time.monotonic() + CONTROLLER_WAIT_S
        while self._controller():
            if time.monotonic() > deadline:
                raise SandboxError(f"slurmctld is still there after {CONTROLLER_WAIT_S:g} s")
            time.sleep(0.02)

    def down(self) -> int:
        """End every process of the sandbox and remove sockets, keys and spools; logs and `shared` stay. Works
        on a sandbox in any state, also twice. Returns the number of processes ended; SandboxError when one
        resists SIGKILL (a process in uninterruptible sleep).
        """
        ended, left = sandbox_processes.end(lambda: self.members().everything, DOWN_WAIT_S)
        if left:
            raise SandboxError(
                f"still there after SIGKILL: {_listing(left)}; the sandbox in {self.folder} is not down"
            )
        clear(self.plan)
        return ended


def clear(plan: Plan) -> None:
    """Remove what is of no use once the processes are gone; logs and `shared` stay."""
    if plan.run_dir != plan.folder:
        shutil.rmtree(plan.run_dir, ignore_errors=True)
    munge = [Path(folder).name for folder in plan.munged_folders.values()]
    for name in ("run", "state", "spool", "dev", "ssh", "mysql", *munge):
        shutil.rmtree(Path(plan.folder) / name, ignore_errors=True)
    # It holds a password.
    (Path(plan.folder) / "slurmdbd.conf").unlink(missing_ok=True)


def _daemon_status(name: str, living: Mapping[str, frozenset[sandbox_processes.Process]]) -> DaemonStatus:
    # The daemon itself before its helpers, which may have been born in the same clock tick.
    own = name.partition("-")[0]
    found = sorted(
        living.get(name, ()), key=lambda process: (process.comm != own, process.start, process.pid)
    )
    if not found:
        return DaemonStatus(name, "dead", None)
    return DaemonStatus(name, "frozen" if found[0].state == "T" else "running", found[0].pid)


def _listing(processes: frozenset[sandbox_processes.Process]) -> str:
    return ", ".join(f"{process.comm} ({process.pid}, state {process.state})" for process in processes)
