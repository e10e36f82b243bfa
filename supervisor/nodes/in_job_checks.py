"""The checks on the nodes of this process's own job: one Slurm step beside whatever runs there. (I/O)

The step requests nothing and shares everything, so it starts beside other steps. Each node writes its
report into a folder below $FTRUN_HOME, and the caller sees the reports arrive. A node whose report does not
come in time is silent.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ftrun.hooks.health import pair_test
from ftrun.hooks.health.preflight import KIND
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.node_report import parse_report
from ftrun.hooks.runtime.ownership import RUNNER
from ftrun.supervisor.nodes.check_summary import ANSWERED, CheckedNode
from ftrun.supervisor.store import node_tools

SILENT = "silent"
START_S = 15.0
PAIRS_S = 300.0
POLL_S = 0.1
REPORT_BYTES_MAX = 1 << 20

# The first Python that is new enough; the same as in batch.sh.
NODE_SIDE = """\
PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin
export PATH
for p in /usr/bin/python3 python3; do
    "$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null && exec "$p" -IS -c "$@"
done
echo no Python 3.9 or newer >&2"""


def check_nodes(
    nodes: Sequence[str],
    arguments: Sequence[str],
    *,
    home: str,
    job: str,
    within_s: float,
    env: Mapping[str, str],
    told: Callable[[CheckedNode], None] = lambda _seen: None,
) -> dict[str, CheckedNode]:
    """Run the checks on nodes of job `job`; `arguments` are those of `ftrun-hook preflight`.

    Calls `told` for each report, and returns what is known of every node. Raises OSError where `home` cannot
    be written or srun is not installed.
    """
    packed = node_tools.install_node_tools(home)
    with tempfile.TemporaryDirectory(
        prefix="preflight-", dir=os.path.dirname(packed), ignore_cleanup_errors=True
    ) as place:
        folder = os.path.join(place, "nodes")
        within = ["--within", f"{within_s:g}", "--folder", folder]
        command = [*_step(job, nodes, packed), "preflight", *arguments, *within]
        with tempfile.TemporaryFile() as words:
            step = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words, env=_outside(env)
            )
            try:
                found = _gathered(step, nodes, folder, time.monotonic() + within_s + START_S, told)
            finally:
                _end(step)
            words.seek(0)
            said = words.read(4096).decode("utf-8", "replace").strip().splitlines()
            why = said[-1] if said else "no report in time"
    return {node: found.get(node) or CheckedNode(node, SILENT, why=why) for node in nodes}


def test_pairs(
    nodes: Sequence[str], *, home: str, job: str, env: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The finding for each node of a test of the network in pairs; {} without a verdict.

    Takes as long as the slowest pair, PAIRS_S at most. Raises OSError as `check_nodes`.
    """
    packed = node_tools.install_node_tools(home)
    with tempfile.TemporaryDirectory(
        prefix="pairs-", dir=os.path.dirname(packed), ignore_cleanup_errors=True
    ) as place:
        command = [*_step(job, nodes, packed), "pair-test", "--json", "--folder", place]
        try:
            done = subprocess.run(
                [*command, "--nodes", ",".join(nodes)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=_outside(env),
                timeout=PAIRS_S,
                check=False,
            )
            result = json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
            return {node: one._asdict() for node, one in pair_test.findings(result).items()}
        except (subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
            return {}


def _step(job: str, nodes: Sequence[str], packed: str) -> list[str]:
    number = str(len(nodes))
    return [
        "srun", f"--jobid={job}", "--job-name=ftrun", "--overlap", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}", "--mem=0", "--cpu-bind=none", "--mpi=none", "--input=none", "--export=NONE",
        "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet",
        "/bin/sh", "-c", NODE_SIDE, "ftrun-hook", RUNNER, packed,
    ]  # fmt: skip


def _outside(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the shape of the surrounding job or step: this step has another shape."""
    kept = ("SLURM_CONF", "SLURM_JWT", "SLURM_SACK_")  # which Slurm is asked, and how
    return {key: value for key, value in env.items() if not key.startswith("SLURM_") or key.startswith(kept)}


def _gathered(
    step: subprocess.Popen[bytes],
    nodes: Sequence[str],
    folder: str,
    give_up_s: float,
    told: Callable[[CheckedNode], None],
) -> dict[str, CheckedNode]:
    began_s = time.monotonic()
    found: dict[str, CheckedNode] = {}
    while True:
        over = step.poll() is not None  # checked first: a finished step has written all its reports
        for seen in _new(folder, [node for node in nodes if node not in found], began_s):
            found[seen.node] = seen
            told(seen)
        if over or len(found) == len(nodes) or time.monotonic() > give_up_s:
            return found
        time.sleep(POLL_S)


def _new(folder: str, awaited: Sequence[str], began_s: float) -> Iterator[CheckedNode]:
    for node in awaited:
        try:
            with open(node_report.report_path(folder, KIND, 0, node), encoding="utf-8") as stream:
                report = parse_report(stream.read(REPORT_BYTES_MAX))
        except OSError:
            continue
        if report is not None:
            yield CheckedNode(node, ANSWERED, tuple(report["findings"]), round(time.monotonic() - began_s, 3))


def _end(step: subprocess.Popen[bytes]) -> None:
    """All reports are there, or the time is up: do not wait for a step that hangs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        step.wait(2.0)
        return
    step.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        step.wait(5.0)
        return
    step.kill()
    step.wait()
