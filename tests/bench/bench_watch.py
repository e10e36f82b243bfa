"""The watch over a node during a job: what one look costs against the start of an interpreter. (I/O)

The node has eight adapters and sixty devices. The aim is a thousandth of a core at the usual period of a minute, which is what four starts
of an interpreter in a minute cost.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ftrun.hooks.health import node_monitor
from tests.bench.figures import Figure, percentiles, ratio

__all__ = ["measure", "put", "put_devices"]

PERIOD_S = 60.0
RATIO_MAX = 4.0


def measure(looks: int) -> list[Figure]:
    """`looks` of each, in turns."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as folder:
        root = Path(folder)
        put_devices(root)
        one = node_monitor.NodeMonitor(root=str(root), period_s=PERIOD_S, began_s=1000.0)
        one.look(0.0)
        ours: list[float] = []
        starts: list[float] = []
        for _ in range(looks):
            ours.append(_look_ms(one, root))
            starts.append(_start_ms())
    value = ratio(ours, starts)
    return [
        Figure(
            name="one look of the node watch",
            unit="CPU ms",
            ours=percentiles(ours),
            rival_name="start of a bare interpreter",
            rival=percentiles(starts),
            value=value,
            value_name="ratio of medians",
            aim=f"< {RATIO_MAX:g}",
            held=value < RATIO_MAX,
            notes=(f"{100 * statistics.median(ours) / 1000 / PERIOD_S:.3f} % of a core at the usual period",),
        )
    ]


def put(root: Path, name: str, text: object) -> None:
    """Write one file of a machine below `root`."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def put_devices(root: Path) -> None:
    """A machine with one memory controller, eight adapters and sixty devices."""
    put(root, "/sys/devices/system/edac/mc/mc0/ue_count", 0)
    put(root, "/sys/devices/system/edac/mc/mc0/ce_count", 0)
    put(root, "/sys/devices/system/edac/mc/mc0/seconds_since_reset", 5000)
    put(root, "/proc/mounts", "proc /proc proc rw 0 0")
    for number in range(8):
        port = f"/sys/class/infiniband/mlx5_{number}/ports/1"
        put(root, f"{port}/state", "4: ACTIVE")
        put(root, f"{port}/phys_state", "5: LinkUp")
        put(root, f"{port}/rate", "400 Gb/sec (4X NDR)")
        put(root, f"{port}/counters/symbol_error", 0)
    for number in range(60):
        put(root, f"/sys/bus/pci/devices/0000:{number:02x}:00.0/aer_dev_fatal", "TOTAL_ERR_FATAL 0")


def _look_ms(one: node_monitor.NodeMonitor, root: Path) -> float:
    """The processor time of one look at all members, each weighed by how often it is asked."""
    own_s = time.process_time()
    spent_s = 0.0
    for member in one._members:
        asked = node_monitor._ask(member.checks, one._thresholds, str(root))
        spent_s += asked.cpu_s * PERIOD_S / max(PERIOD_S, asked.cpu_s / member.share)
    return 1000 * (spent_s + time.process_time() - own_s)


def _start_ms() -> float:
    began_s = _children_s()
    subprocess.run([sys.executable, "-IS", "-c", "pass"], check=True, timeout=120)
    return 1000 * (_children_s() - began_s)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
