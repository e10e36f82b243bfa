"""What the agent of a large job takes: its own processor time for what it does on all nodes, and that of each node. (I/O)

How it thinks. Fake nodes are real processes without Slurm's daemons: a stand-in for srun starts one shell for each node after a delay as
a network has it, and their answers come in one by one through one pipe, as srun brings them. So what the agent's own part costs is measured
up to 512 nodes, and its growth with them. For 2,048 nodes the answers come from a clock of the test: processor time is measured, wall time
is the model's. Commands on a node are measured on a few: all fake nodes would see each other's processes.
"""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ftrun.slurm.commands.node_queries import SrunQuery
from ftrun.supervisor.agent import node_liveness
from ftrun.supervisor.diagnosis.node_findings import facts_from_reports
from ftrun.supervisor.store import node_reports
from ftrun.supervisor.store.lease import SystemClock
from ftrun.supervisor.store.node_tools import install_node_tools, node_command
from ftrun.supervisor.telemetry import liveness, straggler
from ftrun.supervisor.telemetry.heartbeats import BeatReader
from tests.bench.figures import Figure
from tests.falsealarms import lives, silences

__all__ = ["measure"]

SIZES = (64, 128, 256, 512)
MODELLED = 2048
GROWTH_MAX = 2.5  # per node, at 512 nodes and at 64: nodes x nodes would make it 8
CORE_MAX = 0.02
INCIDENT_MAX_S = 1.5
STAND_IN = """#!{python}
import os, random, subprocess, sys, time
sys.path[:0] = {path!r}
from ftrun.slurm.client.nodeset import expand
nodes = next(expand(word.partition("=")[2]) for word in sys.argv if word.startswith("--nodelist="))
chance = random.Random(len(nodes))
due_s = sorted((0.03 + 0.01 * len(nodes) ** 0.25 + chance.expovariate(100.0), node) for node in nodes)
began_s, children = time.monotonic(), []
for at_s, node in due_s:
    time.sleep(max(0.0, began_s + at_s - time.monotonic()))
    children.append(subprocess.Popen(["/bin/sh", "-c", sys.argv[-1]], env=dict(os.environ, SLURMD_NODENAME=node)))
for child in children:
    child.wait()
"""


def measure(sizes: tuple[int, ...] = SIZES) -> list[Figure]:
    """The growth with real processes, and the cost of a job of 2,048 nodes."""
    with tempfile.TemporaryDirectory(prefix="ftrun-nodes-") as folder:
        place = Path(folder)
        return [_growth(place, sizes), _large(place), _on_a_node(place)]


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _ask(place: Path, nodes: tuple[str, ...], line: str) -> float:
    """A roll call of real processes: the agent's processor seconds. All must answer."""
    env = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    steps = SimpleNamespace(begin=lambda job, asked, script: SrunQuery(env, job, asked, script), doors=None)
    ask = node_liveness.PingRequest("1", nodes, nodes[0], line, quiet_s=15.0, again=False)
    found: dict[str, Any] = {}

    def work() -> None:
        answers = node_liveness.ping_nodes(cast("Any", steps), SystemClock(), ask, lambda: None).answers
        found.update(answers)

    spent_s = _cpu_s(work)
    assert len(found) == len(nodes), f"{len(nodes) - len(found)} fake nodes did not answer"
    return spent_s


def _growth(place: Path, sizes: tuple[int, ...]) -> Figure:
    stand_in = place / "bin" / "srun"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN.format(python=sys.executable, path=[one for one in sys.path if one]))
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    node_ms = {}
    for size in sizes:
        nodes = tuple(f"n{number}" for number in range(size))
        node_ms[f"{size} nodes"] = round(1e3 * min(_ask(place, nodes, ":") for _ in range(3)) / size, 3)
    value = node_ms[f"{sizes[-1]} nodes"] / node_ms[f"{sizes[0]} nodes"]
    return Figure(
        f"a roll call, {sizes[-1]} real processes as nodes", "ms of the agent's processor time for each node", node_ms, "(none)", {}, round(value, 2),
        f"per node, {sizes[-1]} to {sizes[0]} nodes", f"<= {GROWTH_MAX:g}", value <= GROWTH_MAX,
    )  # fmt: skip


def _large(place: Path) -> Figure:
    """What a healthy second and an incident cost the agent of 2,048 nodes with one rank each that beats."""
    nodes = tuple(f"n{number}" for number in range(MODELLED))
    reader, folder = BeatReader(str(place / "beats")), place / "beats"
    folder.mkdir()
    for rank, node in enumerate(nodes):
        told = {
            "rank": rank, "pid": 1, "host": node, "step": 5, "phase": "", "n": 5, "t": 1e9, "stack_signal": 0, "own_s": 0.5, "own_n": 5,
        }  # fmt: skip
        (folder / str(rank)).write_text(json.dumps(told).ljust(639) + "\n")
    history, slow, looks = liveness.History(), straggler.History(), 20

    def look(at_s: float) -> None:
        nonlocal history, slow
        pulse = reader.poll(at_s)
        history = liveness.observe(history, liveness.LivenessSample(ranks=pulse.ranks), at_s)
        slow = straggler.observe(slow, reader.samples(), at_s, ratio=1.3, window_s=60.0)
        straggler.find_stragglers(slow)

    for number in range(looks):
        look(5.0 * number)
    began_s = time.process_time()
    for number in range(looks, 2 * looks):
        look(5.0 * number)
    look_s = (time.process_time() - began_s) / looks
    frozen = [silences.Trouble(nodes[7], silences.KINDS["the whole node stands still"], 0.0, 1e9)]
    world = silences.World(1, lives.Life(1, 1.0, ranks=MODELLED), nodes, frozen)
    call_s = _cpu_s(lambda: world.lost(110.0, 100.0, 1e9))
    world = silences.World(1, lives.Life(1, 1.0, ranks=MODELLED), nodes, [])
    sweep_s = _cpu_s(lambda: world.lost(110.0, 100.0, 1e9))
    _read_reports(place / "r", nodes)  # writes them
    reports_s = _cpu_s(lambda: _read_reports(place / "r", nodes))
    incident_s, core = call_s + 2.0 * sweep_s + reports_s, look_s / 5.0
    return Figure(
        f"the agent of {MODELLED} nodes with a rank each that beats", "s of processor time",
        {"a look at the beats (every 5 s)": round(look_s, 4), "roll call, one node frozen": round(call_s, 3), "sweep or checks of all": round(sweep_s, 3)},
        "(none)", {}, round(100.0 * core, 2), "% of a core while healthy", f"<= {100.0 * CORE_MAX:g} %, an incident <= {INCIDENT_MAX_S:g} s",
        core <= CORE_MAX and incident_s <= INCIDENT_MAX_S, (f"an incident (roll call, sweep, checks, reports): {incident_s:.2f} s",),
    )  # fmt: skip


def _read_reports(run_dir: Path, nodes: tuple[str, ...]) -> None:
    """Read what the checks of all nodes have left, as the agent does after a failed start."""
    folder = Path(node_reports.folder(str(run_dir), 1))
    if not folder.exists():
        folder.mkdir(parents=True)
        finding = {
            "check": "edac",
            "device": "mc0",
            "severity": "ok",
            "message": "no errors",
            "fault": "",
            "value": None,
            "unit": "",
        }
        for node in nodes:
            told = {
                "schema": 1,
                "kind": "after",
                "node": node,
                "at_s": 1.0,
                "start": 1,
                "findings": [finding] * 8,
            }
            (folder / f"after.0.{node}.json").write_text(json.dumps(told))
    facts_from_reports(nodes, node_reports.read_reports(str(run_dir), 1, 0, nodes))


def _on_a_node(place: Path) -> Figure:
    """What the commands of an incident cost the node that they run on."""
    home = place / "home"
    attempt = home / "runs" / "r" / "attempts" / "1"
    (attempt / "nodes").mkdir(parents=True)
    install_node_tools(str(home))
    words = {
        "sweep": ["sweep", "--attempt-folder", str(attempt), "--token", "0.2", "--job", "1", "--spare-check"],
        "checks": ["post-failure-check", "--folder", str(attempt / "nodes"), "--launch", "0", "--start", "1", "--since", "0", "--settings", ""],
    }  # fmt: skip
    spent: dict[str, float] = {}
    for name, one in words.items():
        before, count = resource.getrusage(resource.RUSAGE_CHILDREN), 4
        for number in range(count):
            env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": f"n{number}", "SLURM_JOB_ID": "1"}
            line = node_command(str(home), one)
            subprocess.run(
                ["/bin/sh", "-c", line], env=env, stdout=subprocess.DEVNULL, check=True, timeout=120
            )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent[name] = round((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count, 3)
    return Figure(
        "what an incident costs a node", "s of processor time", spent, "(none)", {}, round(sum(spent.values()), 3), "together", "<= 1 s",
        sum(spent.values()) <= 1.0, ("on this machine's /proc; checks without accelerators",),
    )  # fmt: skip
