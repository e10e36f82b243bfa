"""Which files the steps of a start write, by the notes of srun or by Slurm's records, and whose each file is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.slurm.client.cluster import StepFiles
from ftrun.slurm.client.parse import parse_step_files
from ftrun.supervisor.telemetry import step_logs
from ftrun.supervisor.telemetry.log_watcher import LogWatcher
from ftrun.supervisor.telemetry.step_logs import FILES_MAX, Place, StepLogs, find_step_logs
from ftrun.supervisor.telemetry.tail import LogPath

NODES = ("gpu1", "gpu2", "gpu3")
# Slurm 25.11.
RECORDS = """\
StepId=2.batch UserId=0 State=RUNNING Partition=main NodeList=n0 Nodes=1 CPUs=0 Tasks=1 Name=batch SrunHost:Pid=(null):0
StepId=2.0 UserId=0 State=RUNNING Partition=main NodeList=n[0-1] Nodes=2 CPUs=2 Tasks=2 Name=sleep Dist=Cyclic SrunHost:Pid=n0:26076
StepId=2.1 UserId=0 State=RUNNING NodeList=n[0-1] Nodes=2 Tasks=4 Dist=Block SrunHost:Pid=n0:5955 StdErr=/w/err_0000_n0.txt StdOut=/w/log_0.txt
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "run" / "attempts" / "1").mkdir(parents=True)
    return Place(str(tmp_path / "run"), 1, 0, 1)


def _note(place: Place, *fields: object) -> None:
    """As the srun in front of Slurm's writes it."""
    with open(place.notes, "a", encoding="utf-8") as stream:
        stream.write("\t".join(map(str, fields)) + "\n")


def _call(
    place: Place, out: str, *sizes: str, each: object = 1, own: str = "", base: str = "", nodes: int = 3
) -> None:
    _note(place, 0, 77, 4711, "llm", nodes, "", each, out, "", own, "", base, *sizes)


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a line\n")


@pytest.mark.parametrize(
    ("pattern", "name", "each", "rank", "node"),
    [
        ("log_%t.txt", "log_2.txt", 1, 2, "gpu3"),
        ("log_%t.txt", "log_2.txt", "", 2, ""),
        ("%j/%04t.out", "4711/0005.out", 2, 5, "gpu3"),
        ("%x-%A-%N.out", "llm-4711-gpu2.out", "", None, "gpu2"),
        ("%x_%n_%s.out", "llm_1_0.out", "", None, "gpu2"),
        ("%N/rank%t.out", "gpu2/rank0.out", "", 0, "gpu2"),
        ("%J.out", "4711.0.out", "", None, ""),
        ("a[1]%%.out", "a[1]%.out", "", None, ""),
        ("all.out", "all.out", 1, None, ""),
    ],
)
def test_a_pattern_tells_the_rank_and_the_node(
    place: Place, tmp_path: Path, pattern: str, name: str, each: object, rank: int | None, node: str
) -> None:
    """As far as the name says so; where tasks can be spread in several ways, a rank is on no node."""
    _touch(tmp_path, name, "log_x.txt", "4712/0005.out", "llm-4712-gpu2.out")
    _call(place, str(tmp_path / pattern), each=each)
    assert StepLogs(place, NODES).find() == [LogPath(str(tmp_path / name), rank=rank, node=node)]


def test_a_step_on_some_of_the_nodes_says_nothing_of_nodes(place: Place, tmp_path: Path) -> None:
    """Which of them it got, nobody knows."""
    _touch(tmp_path, "log_1.txt")
    _call(place, str(tmp_path / "log_%t.txt"), nodes=2)
    assert [log.node for log in StepLogs(place, NODES).find()] == [""]


def test_files_come_in_the_order_of_their_ranks_and_are_bounded(place: Place, tmp_path: Path) -> None:
    """Of too many files, those of the lowest ranks are read."""
    _touch(tmp_path, *(f"log_{n}" for n in range(FILES_MAX + 10)))
    _call(place, str(tmp_path / "log_%t"), each="")
    found = StepLogs(place, NODES).find()
    assert [log.rank for log in found] == list(range(FILES_MAX))


def test_what_stood_in_a_file_before_is_not_of_this_start(place: Place, tmp_path: Path) -> None:
    """Also where the sizes stand in a file of their own; and a later start's text is not of this one."""
    one, two = str(tmp_path / "a.txt"), str(tmp_path / "b.txt")
    _touch(tmp_path, "a.txt", "b.txt")
    _call(place, one, f"7 {one}")
    Path(f"{place.notes}.77").write_text(f"5 {two}\n")
    _call(place, two)
    assert [log.start_offset_bytes for log in StepLogs(place, NODES).find()] == [7, 5]
    later = Place(place.run_dir, 1, 0, 2)
    _call(later, one, f"100 {one}")
    _call(later, two)
    assert find_step_logs(place, NODES) == [LogPath(one, 7, end_offset_bytes=100)]  # the other was emptied


def test_an_old_file_that_nobody_wrote_since_is_left_alone(place: Place, tmp_path: Path) -> None:
    """It may be another job's, or an earlier start's."""
    _touch(tmp_path, "log_0.txt")
    os.utime(tmp_path / "log_0.txt", (1000.0, 1000.0))
    _note(place, 5000, 77, 4711, "llm", 3, "", 1, str(tmp_path / "log_%t.txt"), "", "", "", "")
    logs = StepLogs(place, NODES)
    assert logs.find() == []
    _touch(tmp_path, "log_0.txt")
    assert [log.rank for log in logs.find()] == [0]


def test_redirections_and_the_folder_of_torchrun_are_read(place: Place, tmp_path: Path) -> None:
    """`srun ... >file`, and what each local process of torchrun writes."""
    _touch(tmp_path, "own.txt", "run_x/attempt_0/3/stderr.log", "run_x/attempt_0/3/error.json")
    _call(place, "", own=str(tmp_path / "own.txt"), base=str(tmp_path))
    names = [os.path.relpath(log.path, tmp_path) for log in StepLogs(place, NODES).find()]
    assert names == ["own.txt", "run_x/attempt_0/3/stderr.log"]


def test_slurms_records_name_the_first_tasks_file_and_the_others_are_found(
    place: Place, tmp_path: Path
) -> None:
    """The pattern is lost there; each zero in the name may be the task."""
    found = parse_step_files(RECORDS)
    assert found == (StepFiles(4, ("n0", "n1"), ("/w/log_0.txt", "/w/err_0000_n0.txt")),)
    _touch(tmp_path, "log_0.txt", "log_1.txt", "log_x.txt", "err_0000_n0.txt", "err_0001_n1.txt")
    files = (str(tmp_path / "log_0.txt"), str(tmp_path / "err_0000_n0.txt"))
    sizes = {str(tmp_path / "log_1.txt"): 3}
    step_logs.note_steps(place, "2", [StepFiles(2, ("n0", "n1"), files)], 0.0, sizes)
    logs = StepLogs(place, ("n0", "n1")).find()
    assert [(os.path.basename(log.path), log.rank, log.node, log.start_offset_bytes) for log in logs] == [
        ("log_0.txt", 0, "n0", 0),
        ("log_1.txt", 1, "n1", 3),
        ("err_0000_n0.txt", 0, "n0", 0),
        ("err_0001_n1.txt", 1, "n1", 0),
    ]
    assert Path(place.notes).stat().st_mode & 0o777 == 0o600


def test_lines_of_a_ranks_own_file_are_that_ranks(place: Place, tmp_path: Path) -> None:
    """Also of a file that comes while others are read already; none is read twice."""
    (tmp_path / "job.log").write_text("all begin\n")
    watcher = LogWatcher([LogPath(str(tmp_path / "job.log"))])
    watcher.poll(1.0)
    (tmp_path / "log_2.txt").write_text(
        "rank begins\nRuntimeError: CUDA error: an illegal memory access was encountered\n"
    )
    _call(place, str(tmp_path / "log_%t.txt"))
    for _ in range(2):
        watcher.follow(StepLogs(place, NODES).find())
    report = watcher.poll(2.0)
    told = {(one.file_rank, one.file_node, one.line) for one in report.evidence}
    assert told == {(2, "gpu3", 2)}
    assert report.seats.hosts == {2: "gpu3"}


@pytest.mark.parametrize("line", ["", "x", "1\t2\t3", "\t" * 30, "0\tx\tx\t\tx\t\tx\tlog\t\t\t\t\tx y\tz"])
def test_what_is_no_note_is_nothing(place: Place, line: str) -> None:
    """Whoever wrote it."""
    _note(place, line)
    assert StepLogs(place, NODES).find() == []
