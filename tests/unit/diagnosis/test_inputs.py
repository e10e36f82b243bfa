"""Laws of what is read offline: every kind of file is known by its content, and what is damaged costs nothing else. (I/O)"""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
import zstandard

from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.diagnosis.inputs import FileKind
from ftrun.supervisor.model.types import Source
from ftrun.supervisor.telemetry.tail import LogPath
from tests.unit.diagnosis.test_recorder import _table

DMESG = (
    "[    0.000000] Linux version 6.1.0\n"
    "[  812.338112] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged\n"
    "[ 9120.511200] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
)
SMI = (
    "==============NVSMI LOG==============\n\n"
    "Attached GPUs                             : 2\n"
    "GPU 00000000:3B:00.0\n"
    "    Product Name                          : NVIDIA H100\n"
    "    Remapped Rows\n"
    "        Correctable Error                 : 0\n"
    "        Pending                           : Yes\n"
    "GPU 00000000:5E:00.0\n"
    "    Remapped Rows\n"
    "        Pending                           : No\n"
)
JOB = (
    "JobId=77 JobName=train\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n"
    "   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)\n   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:1\n"
    "   NodeList=n[1-4]\n   BatchHost=n1\n"
)
NODE = "NodeName=n3 Arch=x86_64 CoresPerSocket=1\n   State=DOWN* ThreadsPerCore=1\n\nNodeName=n4 Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n"
SACCT = (
    "JobID|State|ExitCode|DerivedExitCode|Reason|NodeList|WorkDir|JobName\n"
    "77|OUT_OF_MEMORY|0:125|0:0|None|n[1-2]|/home/ann|train\n77.batch|OUT_OF_MEMORY|0:125||||/home/ann|batch\n"
)
ERROR = json.dumps(
    {
        "message": {
            "message": "ZeroDivisionError: division by zero",
            "extraInfo": {
                "py_callstack": 'Traceback (most recent call last):\n  File "t.py", line 1, in main\nZeroDivisionError: division by zero\n',
                "timestamp": "1767323045",
            },
        }
    }
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (DMESG, FileKind.KERNEL),
        ("Nov 21 03:04:05 n2 kernel: x\n" * 5, FileKind.KERNEL),
        ("step 1\n" * 5 + DMESG, FileKind.LOG),
        (SMI, FileKind.DEVICE),
        (JOB, FileKind.RECORD),
        (NODE, FileKind.RECORD),
        (SACCT, FileKind.RECORD),
        (ERROR, FileKind.ERROR),
        ("submitted: JobId=77 JobName=train\n", FileKind.LOG),
        ('{"message": "a JSON log line"}\n' * 3, FileKind.LOG),
        ("", FileKind.LOG),
    ],
)
def test_a_file_is_taken_for_what_it_begins_like(text: str, kind: FileKind) -> None:
    """No name and no option: the content tells."""
    assert kind is inputs.file_kind(text.encode())


def test_a_kernel_log_is_no_claim_of_the_job(tmp_path: Path) -> None:
    """The same line counts as the kernel's in a kernel log, and as the job's word in a job's log."""
    (tmp_path / "dmesg").write_text(DMESG)
    (tmp_path / "job.log").write_text("step 1\n" * 9 + DMESG)
    found = inputs.read_attempt_files([str(tmp_path / "dmesg"), str(tmp_path / "job.log")]).report.evidence

    assert [Source.KERNEL, Source.LOG] == [one.source for one in found if "fallen off" in one.text]


def test_a_report_s_line_bears_its_headings() -> None:
    """`Pending` alone says nothing; the device and the section in front of it do. Lines stay where they are."""
    lines = list(inputs.with_headings(SMI.splitlines()))

    assert "GPU 00000000:3B:00.0 > Remapped Rows > Pending : Yes" == lines[7]
    assert "GPU 00000000:5E:00.0 > Remapped Rows > Pending : No" == lines[10]
    assert len(SMI.splitlines()) == len(lines)


def test_slurm_s_record_is_read_as_slurm_prints_it() -> None:
    """A job, its nodes, or what accounting keeps; a job that still runs has not ended."""
    told = inputs.parse_slurm_record(JOB + "\n" + NODE)
    assert told.ended is not None
    assert ("NODE_FAIL", "NodeDown", 0, 1) == (
        told.ended.state, told.ended.reason, told.ended.exit_code, told.ended.exit_signal,
    )  # fmt: skip
    assert (("n3",), ("n1", "n2", "n3", "n4")) == (told.ended.nodes_down, told.nodes)

    kept = inputs.parse_slurm_record(SACCT)
    assert kept.ended is not None
    assert ("OUT_OF_MEMORY", 125, ("n1", "n2")) == (kept.ended.state, kept.ended.exit_signal, kept.nodes)
    assert inputs.parse_slurm_record(JOB.replace("NODE_FAIL", "RUNNING")).ended is None


def test_a_torchrun_error_file_is_its_traceback(tmp_path: Path) -> None:
    """The message is JSON; what is judged is the exception in it."""
    path = tmp_path / "error.json"
    path.write_text(ERROR)
    found = inputs.read_attempt_files([str(path)]).report.evidence[-1]

    assert "ZeroDivisionError: division by zero" == found.text
    assert () == inputs.torchrun_error_lines("[1, 2")
    assert ("boom",) == inputs.torchrun_error_lines('{"message": "boom"}')
    assert inputs.is_attachment(str(path))


def test_recorders_are_judged_together(tmp_path: Path) -> None:
    """No dump tells by itself who is missing; all of them do."""
    for rank in (0, 1, 3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(_table(6, 5), protocol=2))
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    (found,) = inputs.read_attempt_files(paths).report.evidence

    assert ("recorder-missing-rank", "2") == (found.signature, found.captures["rank"])
    assert found == inputs.attachment_evidence([*paths, __file__])[0]


def test_packed_logs_are_read_as_they_are(tmp_path: Path) -> None:
    """gzip and zstd are known by their first bytes; a torn one is read up to where it is torn, and told."""
    text = b"step 1\nZeroDivisionError: division by zero\n"
    (tmp_path / "a").write_bytes(gzip.compress(text))
    (tmp_path / "b").write_bytes(zstandard.compress(text))
    (tmp_path / "torn").write_bytes(zstandard.compress(text * 1000)[:-3])
    gathered = inputs.read_attempt_files([str(tmp_path / name) for name in ("a", "b", "torn", "none")])

    assert {str(tmp_path / "a"), str(tmp_path / "b")} <= {one.file for one in gathered.report.evidence}
    assert any("none: No such file" in line for line in gathered.unread)


def test_only_the_text_of_this_launch_counts(tmp_path: Path) -> None:
    """What an earlier launch left in the same file is not read, and lines are counted from the top of the file."""
    path = tmp_path / "log"
    old = "ZeroDivisionError: division by zero\nold\n"
    path.write_text(old + "KeyError: 'x'\n")
    (found,) = inputs.read_attempt_files([LogPath(str(path), len(old))]).report.evidence

    assert ("KeyError: 'x'", 3) == (found.text, found.line)
