"""One run on a virtual Slurm, second by second: what tests of the loop are made of. (I/O)

The supervisor, its reconcilers, the journal and the lease are the real ones; Slurm is `slurm.memory`, and the test plays
the script: it says lines, ends a launch, and looks at what became of the run.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ftrun.hooks.bundle import zipapp
from ftrun.slurm.client.errors import Unreachable
from ftrun.slurm.commands.node_queries import QueryAnswers
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.config import settings
from ftrun.supervisor.controller.loop import Supervisor
from ftrun.supervisor.model import events
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.store import attempt_dir, journal, run_dir, submission_context
from ftrun.supervisor.store.lease import Lease
from ftrun.supervisor.submission import plan
from tests.fake_slurm.cluster import Clock, Engine, MemoryCluster, Timing
from tests.fake_slurm.records import Launch
from tests.unit import moves

TIMING = Timing(kill_wait_s=2.0, slurmd_timeout_s=20.0, requeue_delay_s=12.0, min_job_age_s=300.0)
TIMED_OUT = (
    "[rank0]:[E1114 22:13:20.000000000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=21, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60021 milliseconds before"
    " timing out."
)


def write_stacks(
    script: str,
    nodes: Sequence[str],
    digest: str = "",
    top: str = "all_reduce (distributed/distributed_c10d.py:12)",
) -> None:
    """What `ftrun-hook stacks` leaves where `script` asks for it: one rank a node. `digest` names where it is now, "" = where it was."""
    found = re.search(r"--out (\S+)", script)
    assert found is not None
    os.makedirs(found[1], exist_ok=True)
    for number, node in enumerate(nodes):
        row = {
            "rank": str(number), "pid": 10, "digest": digest or "same", "moved": bool(digest), "state": "S", "cpu_s": 0.0,
            "bytes": 0, "cpu_all_s": 1.0, "bytes_all": 1, "top": [top],
        }  # fmt: skip
        table = {"at_s": time.time(), "apart_s": 3.0, "ranks": [row]}
        Path(found[1], f"{node}.json").write_text(json.dumps(table))


class StackSteps:
    """Steps whose tasks write the tables that `ftrun-hook stacks` writes, of ranks that wait in a collective, or move on."""

    def __init__(self) -> None:
        self.asked, self.moves, self.away = 0, False, False
        self.top = "all_reduce (distributed/distributed_c10d.py:12)"

    def steps(self, job_id: str) -> tuple[()]:
        return ()

    def end_step(self, step_id: str, *, signal: str | None = None) -> None: ...

    def ask(
        self,
        job_id: str,
        nodes: Sequence[str],
        script: str,
        *,
        limit_s: float,
        quiet_s: float,
        alive: Callable[[], None] = lambda: None,
    ) -> QueryAnswers:
        self.asked += 1
        if self.away:
            raise Unreachable("no srun here")
        write_stacks(script, nodes, f"{self.asked}" if self.moves else "", self.top)
        return QueryAnswers(dict.fromkeys(nodes, ("taken",)))


class LifeClock:
    """The virtual clock as the supervisor sees it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def now_s(self) -> float:
        """Unix seconds."""
        return self.clock.now()

    def mono_s(self) -> float:
        """The same: nothing jumps here."""
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)


@functools.cache
def _node_side() -> tuple[str, bytes]:
    """Name and content of the packed node side."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(zipapp.build_zipapp(home))
        return path.name, path.read_bytes()


def put_node_side(home: str) -> None:
    """Leave it in a home as a supervisor has before: else each life would pack it, and start a process that compiles it."""
    name, content = _node_side()
    Path(home).mkdir(mode=0o700, exist_ok=True)
    link = Path(home, run_dir.TOOLS_LINK)
    link.parent.mkdir()
    link.with_name(name).write_bytes(content)
    link.symlink_to(name)


class Life:
    """A run of `wanted` nodes in a partition of `nodes`, submitted, with a supervisor that looks once a second.

    `beside` nodes are those of another partition, which is the default one; `sizes` is the setting `nodes`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 4,
        wanted: int = 2,
        beside: int = 0,
        comment: bool = True,
        words: tuple[str, ...] = (),
        sizes: str = "",
        **chosen: Any,
    ) -> None:
        self.home = str(folder / "home")
        self.cwd = folder / "work"
        self.cwd.mkdir(parents=True)
        self.log = self.cwd / "out.log"
        default = {"short": [f"s{i}" for i in range(beside)]} if beside else {}
        self.engine = Engine({**default, "main": [f"n{i}" for i in range(nodes)]}, timing=TIMING)
        self.cluster = MemoryCluster(self.engine)
        self.clock = LifeClock(self.engine.clock)
        self.engine.script("", self._started)
        self.launches: list[Launch] = []
        self.comment, self.words = comment, words
        self.settings = settings.defaults() | {key.replace("_", "-"): value for key, value in chosen.items()}
        self.settings["nodes"] = sizes
        put_node_side(self.home)
        self.run_dir = run_dir.create_run(self.home, "train")
        # The run, and how long its journal was then.
        self._told: tuple[dict[str, int], model_run.Run] | None = None
        self.token = f"ftrun:{os.path.basename(self.run_dir)}:0badcafe"
        self._submit(wanted)
        self._leaders = 0
        self.still = False
        self.supervisor = self._lead()

    def _submit(self, wanted: int) -> None:
        argv = [f"-N{wanted}", "-pmain", *self.words, str(self.cwd / "train.sh")]
        kept = {
            "v": submission_context.VERSION, "cwd": str(self.cwd), "umask": 0o022, "limits": {}, "nice": 0, "host": "login",
            "user": "user", "run": os.path.basename(self.run_dir), "run_token": self.token, "argv": argv,
            "script_args": [], "script_path": argv[-1], "script_name": "train.sh", "source": "file",
            "has_shebang": True, "job_name": "train.sh", "shape": "single", "array": "", "wait": False,
            "slurm_conf": "", "settings": self.settings,
        }  # fmt: skip
        submission_context.save(self.run_dir, kept, {b"PATH": b"/bin"}, b"#!/bin/sh\nexec python3 train.py\n")
        first = journal.Journal.open_first(self.run_dir)
        first._now = self.clock.now_s
        first.append("run.created", name="train.sh", token=self.token, settings=self.settings, submitter={})
        run_dir.open_attempt(self.run_dir, 1)
        first.append("attempt.opened", attempt=1)
        first.append("submit.intended", attempt=1, token=f"{self.token}:1")
        heard = self.cluster.submit(plan.request_for(self.run_dir, plan.AttemptSpec(1)))
        first.append("submit.done", attempt=1, job=heard.job_id, cluster="memory")
        first.close()
        run_dir.index_job(self.home, heard.job_id, os.path.basename(self.run_dir))

    def begin_anew(self) -> None:
        """Another supervisor process takes over at once."""
        self.supervisor.forget()
        self.supervisor.lease.release()
        self.supervisor = self._lead()
        if self.still:
            self._show_stacks()

    def _lead(self) -> Supervisor:
        self._leaders += 1
        lease = Lease(self.home, self.clock, term_s=1e6, writer=f"host-{self._leaders}")
        assert lease.acquire()
        return Supervisor(self.home, self.cluster, self.clock, lease)

    # ------------------------------------------------------------------ the script

    def _started(self, launch: Launch) -> None:
        """What batch.sh does: it claims the launch and records it."""
        self.launches.append(launch)
        job = launch.job
        if not self.comment:
            job.comment = ""
        number = int(launch.request.token.rsplit(":", 1)[1])
        place = Path(run_dir.attempt_dir(self.run_dir, number))
        claim = place / (f"claim.{launch.restarts}" if launch.restarts else "claim")
        if any(one.job not in ("", str(job.number)) for one in attempt_dir.claims(self.run_dir, number)):
            launch.exit(0)
            return
        try:
            claim.symlink_to(f"memory.{job.number}.{launch.restarts}.{launch.request.token}")
        except FileExistsError:
            if os.readlink(claim).startswith("closed."):
                launch.exit(0)
            return
        self.log.touch()
        facts = os.stat(self.log)
        rows = {
            "job": job.number, "host": launch.nodes[0], "nodes": ",".join(launch.nodes), "stdout": self.log,
            "stdout_dev": facts.st_dev, "stdout_ino": facts.st_ino, "stdout_offset": facts.st_size,
            "stderr": self.log, "stderr_dev": facts.st_dev, "stderr_ino": facts.st_ino,
            "stderr_offset": facts.st_size, "resume_from": "",
        }  # fmt: skip
        text = "".join(f"{key}={value}\n" for key, value in rows.items())
        (place / f"launch.{launch.restarts}").write_text(text)

    def say(self, *lines: str) -> None:
        """The script prints."""
        with self.log.open("a") as stream:
            stream.writelines(f"{line}\n" for line in lines)

    def stand_still(self, *lines: str) -> None:
        """The script prints these lines, and from now on all of its ranks wait in a collective, as a step of the supervisor's sees."""
        self.say(*lines)
        self.still = True
        self._show_stacks()

    def _show_stacks(self) -> None:
        services = self.supervisor.services
        services.steps, services.in_background = StackSteps(), lambda deed: deed()

    def train(self, first: int, last: int, *, every_s: int = 1) -> None:
        """The script makes these steps, a line each."""
        for step in range(first, last + 1):
            self.say(f"step {step}/100000 loss 0.5")
            self.live(every_s)

    def exit(self, code: int, signal: int = 0) -> None:
        """The present launch ends."""
        self.launches[-1].exit(code, signal)

    # ------------------------------------------------------------------ the run

    def live(self, seconds: float = 1.0, *, step_s: float = 1.0) -> None:
        """Time passes; the supervisor looks every `step_s` seconds."""
        for _ in range(max(1, round(seconds / step_s))):
            self.engine.advance(step_s)
            self.supervisor.tick()

    def until(self, state: str, within_s: float = 900.0) -> None:
        """Live until the run is in this state."""
        end = self.engine.now() + within_s
        while self.run.state.value != state:
            assert self.engine.now() < end, f"{self.run.state.value}, not {state}: {self.run.decision}"
            self.live()

    @property
    def run(self) -> model_run.Run:
        """The run as its journal tells it."""
        with os.scandir(os.path.join(self.run_dir, "journal")) as found:
            sizes = {one.name: one.stat().st_size for one in found}
        if self._told is None or self._told[0] != sizes:
            records = journal.read_run(self.run_dir)
            assert not moves.unlisted_moves(os.path.basename(self.run_dir), records)
            self._told = sizes, events.fold(os.path.basename(self.run_dir), records)
        return self._told[1]

    @property
    def attempt(self) -> model_run.Attempt:
        """The present attempt."""
        attempt = self.run.attempt
        assert attempt is not None
        return attempt

    def records(self) -> list[journal.Record]:
        """The journal's records, oldest first."""
        return journal.read_run(self.run_dir)

    def kinds(self) -> list[str]:
        """The kinds of the journal's records, oldest first."""
        return [record["kind"] for record in self.records()]

    def living(self) -> list[str]:
        """The jobs that have not ended."""
        return [str(job.number) for job in self.engine.jobs.values() if not job.state.ended]

    def ask(self, want: str, name: str) -> None:
        """Leave a request, as the commands do; what is no word is written as it stands."""
        body = json.dumps({"want": want, "by": "ann"}) if want.isalpha() else want
        config_home.write_atomically(os.path.join(self.run_dir, "requests", f"{name}.json"), body.encode())
        run_dir.announce(os.path.dirname(os.path.dirname(self.run_dir)))
