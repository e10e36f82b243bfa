"""What telling costs a supervisor of many running runs: metrics, notices and a report, all on beside all off. (I/O)

One supervisor is measured all along: it reads its settings once a minute, so the file that asks for metrics and notices comes and goes
under it. The jobs print a step each second. What the process that publishes uses is counted by the kernel, beside the supervisor's own,
and so is a report of all runs, one in each window. The runs of both have a tracker: that is arranged when they are submitted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.bench.bench_load import JOB, memory_mib, settled, submit
from tests.bench.bench_quiet import Used, used
from tests.bench.figures import Figure
from tests.bench.stand import FTRUN, Stand, stand, until

__all__ = ["measure"]

SETTINGS_WAIT_S = 120.0
AIM_RATIO = 1.25


def measure(runs: int, seconds: float, turns: int = 2) -> list[Figure]:
    """Off and on in turn, a window of so many seconds each."""
    off, on, reports = list[Used](), list[tuple[Used, Used]](), list[float]()
    with stand(nodes=16) as here:
        os.mkfifo(here.work / "fifo")
        (here.work / "job.sh").write_text(JOB)
        config = here.folder / "config" / "ftrun" / "config.toml"
        config.parent.mkdir(parents=True)
        here.env["XDG_CONFIG_HOME"] = str(config.parents[1])
        addresses = here.folder / "notify"
        addresses.write_text("http://127.0.0.1:9/ key=none\n")  # nothing happens to the runs: nothing is sent
        addresses.chmod(0o600)
        submit(here, 0, runs, "--ft-tracker=auto")
        settled(here, runs)
        supervisor, child = here.supervisor(), 0
        for _ in range(turns):
            off.append(_window((supervisor,), seconds)[0])
            config.write_text(f"metrics-folder = '{here.work}'\nnotify = '{addresses}'\n")
            child = until(lambda: _publisher(here), SETTINGS_WAIT_S, every_s=1.0)
            until(lambda: list(here.work.glob("*.prom")), SETTINGS_WAIT_S, every_s=1.0)
            ours, beside = _window((supervisor, child), seconds)
            on.append((ours, beside))
            reports.append(_report_s(here))
            memory = memory_mib(child)
            size_kib = next(here.work.glob("*.prom")).stat().st_size / 1024
            config.write_text("")
            until(lambda: not _publisher(here), SETTINGS_WAIT_S, every_s=1.0)
            for file in here.work.glob("*.prom"):
                file.unlink()
        plain = memory_mib(supervisor)
    share = 100 / seconds / turns
    off_percent = sum(one.seconds for one in off) * share
    on_percent = (sum(one.seconds + more.seconds for one, more in on) + sum(reports)) * share
    beside_percent = sum(more.seconds for _, more in on) * share
    wakeups = [
        sum(one.wakeups for one in which) / seconds / turns for which in (off, [more for _, more in on])
    ]
    ratio = (off_percent + beside_percent + sum(reports) * share) / off_percent
    return [
        Figure(
            name=f"metrics, notices, tracker and a report every {seconds:g} s, of {runs} running runs (real Slurm)",
            unit="",
            ours={
                "CPU %": round(on_percent, 2),
                "of it the process that publishes %": round(beside_percent, 2),
                "its wakeups a second": round(wakeups[1], 2),
                "a report of all runs, processor s": round(sum(reports) / turns, 2),
                "its RSS MiB": memory["RSS MiB"],
                "file KiB": round(size_kib, 1),
            },
            rival_name="the same supervisor with all that off",
            rival={
                "CPU %": round(off_percent, 2),
                "wakeups a second": round(wakeups[0], 2),
                "RSS MiB": plain["RSS MiB"],
            },
            value=round(ratio, 3),
            value_name="CPU with all on / off",
            aim=f"<= {AIM_RATIO:g}",
            held=ratio <= AIM_RATIO,
        )
    ]


def _report_s(here: Stand) -> float:
    """Processor time of a report of all runs."""
    before = os.times()
    here.call(FTRUN, "report", "--html", str(here.folder / "report.html"))
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _publisher(here: Stand) -> int:
    """The pid of the process that publishes for this home; 0 = none."""
    pid = here.supervisor()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"ftrun.supervisor.publish" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return 0


def _window(pids: tuple[int, ...], seconds: float) -> list[Used]:
    before = [used(pid) for pid in pids]
    time.sleep(seconds)
    after = [used(pid) for pid in pids]
    return [
        Used(late.seconds - early.seconds, late.wakeups - early.wakeups)
        for early, late in zip(before, after, strict=True)
    ]
