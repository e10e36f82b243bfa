"""Laws of order: live equals offline, whichever file is read first and in whatever pieces. (I/O)"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.inputs import read_attempt_files
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.log_order import sort_by_time_written
from ftrun.supervisor.model.types import Diagnosis, Evidence, Source, Topology
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.telemetry.log_watcher import LogWatcher, WatchReport
from ftrun.supervisor.telemetry.tail import LogPath

LINES = (
    "step 1 loss 2.0", "step 2 loss 1.9", "step 3 loss 1.8", "step 40 loss 1.1", "saved checkpoint /ckpt/step_3.pt",
    "n2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "2026-11-21 03:04:05 n3 kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE",
    "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered",
    "ZeroDivisionError: division by zero",
    "2026-11-21T03:04:09Z KeyError: 'x'",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T03:05:00 DUE TO TIME LIMIT ***",
    "n1:10:11 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4711> with status=12 opcode=0 len=0 vendor err 129",
    "[E ProcessGroupNCCL.cpp:1] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, Timeout(ms)=600000)",
    "nothing at all", "",
)  # fmt: skip
TOPOLOGY = Topology(nodes=("n1", "n2", "n3"), rank_node={0: "n1", 1: "n2", 2: "n3"})


def _judged(report: WatchReport, ended: Ended | None) -> Diagnosis:
    catalog = signatures_catalog.load()
    return diagnose(Facts(report.evidence, TOPOLOGY, ended=ended, catalog=catalog, progress=report.progress))


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from(LINES), max_size=12), min_size=1, max_size=3),
    ended=st.sampled_from([None, Ended("FAILED", exit_code=1), Ended("NODE_FAIL", nodes_down=("n2",))]),
    seed=st.integers(0, 2**32),
)
def test_live_equals_offline(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]], ended: Ended | None, seed: int
) -> None:
    """Any chunks, any order of files, any times of arrival: the last diagnosis is that of the whole files."""
    folder: Path = tmp_path_factory.mktemp("logs")
    dice = random.Random(seed)
    paths = [folder / f"{number}.log" for number in range(len(texts))]
    for path in paths:
        path.touch()
    rest = [("\n".join(lines) + "\n").encode() if lines else b"" for lines in texts]
    watched = list(zip(paths, rest, strict=True))
    live = LogWatcher([LogPath(str(path)) for path in dice.sample(paths, len(paths))])
    now_s, done = 1000.0, [0] * len(paths)
    while any(at < len(text) for at, text in zip(done, rest, strict=True)):
        number = dice.randrange(len(paths))
        path, text = watched[number]
        piece = text[done[number] : done[number] + dice.randint(1, 400)]
        with path.open("ab") as stream:
            stream.write(piece)
        done[number] += len(piece)
        if dice.random() < 0.5:
            live.poll(now_s)
        now_s += dice.random() * 100
    for _ in range(2):
        report = live.poll(now_s, fresh=True)
    live.close()
    offline = read_attempt_files([str(path) for path in dice.sample(paths, len(paths))]).report

    assert _judged(offline, ended) == _judged(report, ended)


def test_dates_order_files_and_places_order_lines() -> None:
    """A line without a date is as old as the dated one before it; a file without any comes last."""

    def line(file: str, offset_bytes: int, text: str, order: int) -> Evidence:
        return Evidence(Source.LOG, "s", text, file=file, offset_bytes=offset_bytes, order=order)

    given_in = [
        line("plain", 0, "no date", 1),
        line("b", 9, "second", 2),
        line("b", 0, "2026-11-21 03:00:05 first", 3),
        line("a", 0, "2026-11-21 03:00:06 third", 4),
        Evidence(Source.SLURM, "s", "of no file", order=5),
    ]
    told = [one.text for one in sort_by_time_written(given_in)]

    assert [
        "2026-11-21 03:00:05 first",
        "second",
        "2026-11-21 03:00:06 third",
        "no date",
        "of no file",
    ] == told
    assert told == [one.text for one in sort_by_time_written(given_in[::-1])]
