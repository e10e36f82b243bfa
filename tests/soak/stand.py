"""One side of a soak: a sandbox of its own, a training in it, and hands that strike and repair by the plan. (I/O)

How it thinks. All sides are the same but for who looks after the training: the same nodes, the same script and trainer, the same blows at the same
moments, the same repairs at the same moments. A side has a thread that strikes and repairs when the time has come, and
never waits for the others.

    <folder>/box  the sandbox    <folder>/home  $FTRUN_HOME    <folder>/work  script, log, checkpoints, what the trainer noted
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.slurm.sandbox.plan import SandboxError
from ftrun.supervisor.drill import injector, readers
from ftrun.supervisor.drill.observation import Trace
from ftrun.supervisor.drill.workload import write_workload
from tests.drills.tables import by_name
from tests.soak.blows import Blow

__all__ = ["ENDLESS", "JOB", "Options", "Side"]

JOB = "soak"
ENDLESS = 10_000_000
STRIKES_WITHIN_S = 45.0  # a blow from within that finds no training by then is not struck
AGAIN_S = 10.0  # between two tries to repair
NOT_USED = {"down", "drained", "draining", "unknown", "fail"}


class Options:
    """What all sides share."""

    def __init__(self, *, nodes: int, ranks: int, step_s: float, save_every: int, timeout_s: float) -> None:
        self.nodes, self.ranks, self.step_s, self.save_every, self.timeout_s = (
            nodes,
            ranks,
            step_s,
            save_every,
            timeout_s,
        )


class Side:
    """What every side can do; whoever looks after the training is a subclass."""

    name = ""
    ssh = False

    def __init__(self, folder: Path, options: Options, say: Callable[[str, str], None]) -> None:
        self.folder, self.options, self._say = folder, options, say
        self.home, self.work = folder / "home", folder / "work"
        self.struck: list[tuple[Blow, float, str]] = []  # blow, Unix seconds, node
        self.hurt: dict[str, float] = {}  # node -> when it was hurt last
        self._steps, self._faults = ENDLESS, []  # type: int, list[dict[str, object]]
        self._box: Sandbox | None = None
        self._doer: injector.Injector | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- beginning

    def build(self) -> None:
        """The sandbox, the folders, the script. Raises SandboxError."""
        (self.work / "checkpoints").mkdir(parents=True)
        self.home.mkdir(mode=0o700)
        (self.folder / "tmp").mkdir()
        self._box = up(
            self.folder / "box",
            nodes=self.options.nodes,
            conf=by_name("preemption").slurm_conf,
            ssh=self.ssh,
            name=self.name,
        )
        env = {
            key: value for key, value in self._box.env().items() if not key.startswith(("FTRUN_", "SBATCH_"))
        }
        env |= {
            "FTRUN_HOME": str(self.home),
            "FTRUN_SITE_CONFIG": str(self.folder / "config.toml"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PWD": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
        }
        (self.folder / "config.toml").write_text(self._site())
        self._doer = injector.Injector(self._box, self.folder, self.home, env)
        self._tell()
        o = self.options
        plan = {
            "folder": str(self.work), "steps": ENDLESS, "shares": o.ranks, "save_every": o.save_every, "step_s": o.step_s, "save_s": 0.2,
            "collective_timeout_s": o.timeout_s, "on_timeout": "exit", "on_peer_lost": "exit", "heartbeats": True,
            "host": "" if self._box.plan.hosts else "127.0.0.1", "faults": [],
        }  # fmt: skip
        shutil.copy(Path(__file__).with_name("struck.py"), self.work)
        write_workload(self.work, plan, srun=["--kill-on-bad-exit=1"], python=sys.executable, module="struck")

    def _site(self) -> str:
        return ""

    def submit(self) -> None:
        """Begin to train."""
        raise NotImplementedError

    @property
    def doer(self) -> injector.Injector:
        """The hands; after `build`."""
        assert self._doer is not None
        return self._doer

    @property
    def box(self) -> Sandbox:
        """The sandbox; after `build`."""
        assert self._box is not None
        return self._box

    def sbatch_words(self) -> list[str]:
        """Options that every side's job has."""
        return [
            f"--job-name={JOB}", f"--nodes={self.options.ranks}", "--ntasks-per-node=1", "--partition=patient", "--requeue",
            "--open-mode=append", f"--output={self.work}/train.log",
        ]  # fmt: skip

    # ---- looking

    def trace(self) -> Trace:
        """What the trainer noted so far."""
        return readers.read_trace(self.work)

    def look(self) -> None:
        """What this side does and notices every few seconds."""

    def standing(self) -> str:
        """How it stands, in a few words."""
        return f"step {self.trace().step}"

    def node_of(self, rank: int) -> str:
        """The node on which a rank was placed last; "" before its first start."""
        placed = [str(line["node"]) for line in self.trace().ranks if line["rank"] == rank]
        return placed[-1] if placed else ""

    # ---- striking and repairing

    def begin(self, blows: tuple[Blow, ...], began_s: float) -> None:
        """From now on strike and repair by the plan. `began_s`: Unix seconds."""
        due: list[tuple[float, Callable[[], None]]] = []
        for blow in blows:
            due.append((began_s + blow.at_s, lambda blow=blow: self._strike(blow)))  # type: ignore[misc]
            due.append((began_s + blow.at_s + blow.repair_s, lambda blow=blow: self._repair(blow)))  # type: ignore[misc]
        due.sort(key=lambda one: one[0])
        self._thread = threading.Thread(target=self._work_off, args=(due,), daemon=True)
        self._thread.start()

    def _work_off(self, due: list[tuple[float, Callable[[], None]]]) -> None:
        for at_s, act in due:
            if self._stop.wait(max(0.0, at_s - time.time())):
                return
            try:
                act()
            except Exception as error:  # noqa: BLE001 - a side that cannot be struck any more says so, and the others go on
                self.say(f"?? {type(error).__name__}: {error}")

    def say(self, text: str) -> None:
        """A line of the live view."""
        self._say(self.name, text)

    def _strike(self, blow: Blow) -> None:
        kind, node = blow.kind, self.node_of(blow.rank)
        at_s = time.time()
        self.struck.append((blow, at_s, node))
        if kind.node and node:
            self.hurt[node] = at_s
        self.say(f"!! {kind.says}" + (f": rank {blow.rank} on {node}" if kind.inside or kind.node else ""))
        if kind.inside:
            self._faults.append(
                {
                    "what": kind.inside,
                    "rank": blow.rank,
                    "sticky": kind.sticky,
                    "until": at_s + STRIKES_WITHIN_S,
                    "blow": blow.number,
                }
            )
            self._tell()
            if kind.sticky and self.ssh and node:
                self.doer.lose_gpu(node)
            if kind.name == "memory" and node:
                self._lose_memory(node)
            return
        self._strike_outside(kind.name, node)

    def _strike_outside(self, kind: str, node: str) -> None:
        doer, box = self.doer, self.box
        acts: dict[str, Callable[[], None]] = {
            "node-crash": lambda: doer.box.crash(node),
            "node-frozen": lambda: doer.box.freeze(node),
            "slurmd-killed": lambda: box.slurmd_kill(node),
            "drain": lambda: doer.drain(node),
            "controller-killed": box.kill_controller,
            "controller-down": doer.box.stop_controller,
            "controller-hangs": box.pause_controller,
            "preemption": self._urgent_job,
            "supervisor-killed": self._kill_supervisor,
            "agent-killed": self._kill_agent,
        }
        if kind in {"node-crash", "node-frozen", "slurmd-killed", "drain"} and not node:
            return
        acts[kind]()

    def _urgent_job(self) -> None:
        words = (
            f"-N{self.options.nodes - self.options.ranks + 1}",
            "--exclusive",
            "--output=/dev/null",
            "--job-name=urgent",
        )
        self.doer.submit_plain("--partition=urgent", *words, "--wrap=sleep 5")

    def _kill_supervisor(self) -> None:
        """There is none on most sides."""

    def _kill_agent(self) -> None:
        """There is none on most sides."""

    def _lose_memory(self, node: str) -> None:
        """Nobody looks at the counter on most sides."""

    def _repair(self, blow: Blow) -> None:
        kind = blow.kind.name
        node = next((where for other, _, where in self.struck if other is blow), "")
        if kind in {"controller-killed", "controller-down"}:
            self.doer.box.start_controller()
        elif kind == "controller-hangs":
            self.box.continue_controller()
        elif kind == "preemption":
            self.doer.scancel_named("urgent")
        elif kind in {"node-crash", "node-frozen", "slurmd-killed", "drain"}:
            self._mend(node)
        elif blow.kind.sticky:
            self._replace_gpu(blow)
        self._repaired(kind, node)

    def _mend(self, node: str) -> None:
        """The administrator brings the node back, and sees to it that Slurm uses it. A controller that is down is waited for."""
        for _ in range(6):
            if not node or self._stop.is_set():
                return
            with contextlib.suppress(SandboxError):
                self.box.mend(node)
                if self.box.node_state(node).rstrip("*") not in NOT_USED:
                    self.say(f"{node} is repaired")
                    return
            self._stop.wait(AGAIN_S)
        self.say(f"?? {node} could not be repaired")

    def _replace_gpu(self, blow: Blow) -> None:
        number = next((n for n, fault in enumerate(self._faults) if fault["blow"] == blow.number), -1)
        mark = self.work / f"bad-node-{number}"
        if mark.exists():
            node = mark.read_text()
            (self.work / "mended").write_text("")
            os.replace(self.work / "mended", mark)
            self.say(f"the GPU of {node} is replaced")
        for node in self.box.node_names if self.ssh else ():
            self.doer.mend_gpu(node)

    def _repaired(self, kind: str, node: str) -> None:
        """What else follows upon a repair."""

    def _tell(self) -> None:
        (self.work / "told.new").write_text(json.dumps({"steps": self._steps, "faults": self._faults}))
        os.replace(self.work / "told.new", self.work / "told.json")

    # ---- the end

    def come_to_an_end(self, steps: int) -> None:
        """From now on this is the last step."""
        self._steps = steps
        self._tell()

    def halt(self) -> None:
        """Strike and repair no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=90.0)

    def all_well(self) -> None:
        """Whatever is still broken is repaired."""
        with contextlib.suppress(SandboxError):
            self.box.continue_controller()
            self.doer.box.start_controller()
        for number in range(len(self._faults)):
            if (self.work / f"bad-node-{number}").exists():
                (self.work / f"bad-node-{number}").write_text("")
        for node in self.box.node_names:
            if self.ssh:
                self.doer.mend_gpu(node)
            state = self.box.node_state(node).rstrip("*")
            if state in NOT_USED and not self.ours(node):
                with contextlib.suppress(SandboxError):
                    self.box.mend(node)

    def ours(self, node: str) -> bool:
        """Whether Slurm holds this node back by a word of ftrun's, which nobody else may take away."""
        return self.doer.reasons().get(node, "").startswith("ftrun:")

    def clear(self) -> None:
        """No process of this side is left."""
        self._stop.set()
        injector.end_processes(injector.supervisors(self.home))
        if (self.folder / "box" / "sandbox.json").exists():
            Sandbox.load(self.folder / "box").down()
