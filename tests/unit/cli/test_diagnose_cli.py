"""Laws of `ftrun diagnose`: files in, the verdict and its proof out. (I/O)"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli import main
from tests.model_server import ModelServer, model_server, says

KEYS = [
    "file", "class", "retry", "action", "nodes", "exclude", "confidence", "signature", "title", "because", "consequences",
    "advice",
]  # fmt: skip

HEALTHY = "epoch 1 step 1/100 loss 2.31\nepoch 1 step 2/100 loss 2.30\n"
BUG = HEALTHY + (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 12, in <module>\n'
    "    main()\n"
    "ZeroDivisionError: division by zero\n"
)
OFF_THE_BUS = (
    HEALTHY + "Nov 21 03:04:05 n2 kernel: NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.\n"
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with a healthy log, one of a user's bug, and one of a lost GPU, zipped."""
    (tmp_path / "healthy.log").write_text(HEALTHY)
    (tmp_path / "bug.log").write_text(BUG)
    (tmp_path / "gpu.out.gz").write_bytes(gzip.compress(OFF_THE_BUS.encode()))
    (tmp_path / "labels.json").write_text("{}")
    return tmp_path


def _json(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("name", "status", "fault"),
    [("healthy.log", 0, "healthy"), ("bug.log", 11, "user-code"), ("gpu.out.gz", 10, "hardware-gpu")],
)
def test_the_exit_status_is_the_answer(
    logs: Path, capsys: pytest.CaptureFixture[str], name: str, status: int, fault: str
) -> None:
    """0 nothing failed, 10 try again, 11 do not: a script needs no more."""
    assert status == main(["diagnose", "--json", str(logs / name)])
    (found,) = _json(capsys)
    assert KEYS == list(found)
    assert fault == found["class"]


def test_a_log_of_consequences_alone_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It failed, nobody knows why: 12, with the lines to look at."""
    (tmp_path / "x.log").write_text("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n")

    assert 12 == main(["diagnose", str(tmp_path / "x.log")])
    assert "worth a look" in capsys.readouterr().out


def test_the_verdict_stands_first_and_the_proof_names_file_and_line(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a person reads first is what it was; then where it is written."""
    main(["diagnose", str(logs / "bug.log")])
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].startswith("user-code: ")
    assert any(f"{logs / 'bug.log'}:6: ZeroDivisionError" in line for line in lines[1:])


def test_each_file_of_a_folder_is_a_case_of_its_own(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of JSON a log, the file as it was given; what is no log is left alone."""
    assert 11 == main(["diagnose", "--each", "--json", str(logs)])
    found = _json(capsys)

    assert ["bug.log", "gpu.out.gz", "healthy.log"] == [Path(case["file"]).name for case in found]


def test_a_folder_that_vanishes_while_it_is_read_costs_no_other_log(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary folders come and go beside a log; what is still there is diagnosed."""
    (logs / "temporary").mkdir()
    there = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("temporary"):
            raise FileNotFoundError(path)
        return there(path)

    monkeypatch.setattr(os, "scandir", scandir)

    assert 11 == main(["diagnose", "--each", "--json", str(logs)])
    assert 3 == len(_json(capsys))


def test_all_files_together_are_one_attempt(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback of one rank and the lost GPU of another are one case: the hardware."""
    main(["diagnose", "--json", str(logs / "bug.log"), str(logs / "gpu.out.gz")])
    (found,) = _json(capsys)

    assert ("hardware-gpu", ["n2"], True) == (found["class"], found["nodes"], found["exclude"])


def test_nodes_that_are_not_of_the_job_are_never_blamed(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --nodes the names in the text count only where they are of the job."""
    main(["diagnose", "--json", "--nodes", "m[1-4]", str(logs / "gpu.out.gz")])
    (found,) = _json(capsys)

    assert [] == found["nodes"]


def test_a_pattern_that_the_shell_did_not_expand_is_expanded(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quoted patterns work, as they do for other commands that read logs."""
    main(["diagnose", "--each", "--json", str(logs / "*.log")])

    assert 2 == len(_json(capsys))


def test_a_log_can_come_from_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-` is stdin, and its lines are called so."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BUG.encode())))

    assert 11 == main(["diagnose", "-"])
    assert "<stdin>:6: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["missing.log"], ["--nodes", "n[1-", "healthy.log"], []])
def test_wrong_usage_is_one_line_and_status_two(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """A file that is not there, a list that is none: one line that says so."""
    monkeypatch.chdir(logs)

    assert 2 == main(["diagnose", *arguments])
    assert 1 == capsys.readouterr().err.count("\n")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A torn .gz is told with its name; the other cases are judged all the same."""
    (tmp_path / "a.log").write_text(BUG)
    (tmp_path / "torn.log.gz").write_bytes(gzip.compress(BUG.encode() * 99)[:60])

    assert 2 == main(["diagnose", "--each", str(tmp_path)])
    said = capsys.readouterr()
    assert "torn.log.gz" in said.err
    assert "user-code" in said.out


STORY = [
    ("", "healthy", []),
    ("Nov 21 03:04:05 n1 kernel: mlx5_core 0000:5e:00.0 ibs3: Link down\nepoch 1 step 3/100\nepoch 1 step 4/100\n", "healthy", []),
    ("Nov 21 03:04:05 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n", "hardware-gpu", ["n1"]),
    ("srun: error: Node failure on n3\n", "node", ["n3"]),
    ("slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-11-21T03:04:05 DUE TO TIME LIMIT ***\n", "timelimit", []),
    ("slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-11-21T03:04:05 DUE TO PREEMPTION ***\n", "preempted", []),
    ("slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-11-21T03:04:05 ***\n", "cancelled", []),
    ("Nov 21 03:04:05 n2 kernel: Out of memory: Killed process 7 (python3) total-vm:9kB, anon-rss:6kB\n", "oom-host", []),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n", "checkpoint", []),
    ("OSError: [Errno 98] Address already in use\n", "port-conflict", []),
    ("AttributeError: 'NoneType' object has no attribute 'shape'\n", "user-code", []),
]  # fmt: skip


@pytest.mark.parametrize(("end", "fault", "nodes"), STORY)
def test_the_common_ends_of_a_job_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, fault: str, nodes: list[str]
) -> None:
    """The shipped catalog knows how jobs end, and blames no node but the one that is named."""
    (tmp_path / "job.log").write_text(HEALTHY + end)

    main(["diagnose", "--json", "--nodes", "n[0-3]", str(tmp_path / "job.log")])
    (found,) = _json(capsys)

    assert (fault, nodes) == (found["class"], found["nodes"])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A model server that this user has named in the settings, and a home that does not exist yet."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FTRUN_SITE_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with model_server() as server:
        monkeypatch.setenv("FTRUN_SECOND_OPINION", server.url)
        yield server


def test_a_second_opinion_is_shown_as_what_it_is(
    tmp_path: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the cause is open; with the words of the log that do not say who is meant."""
    log = tmp_path / "odd.log"
    log.write_text("my password=hunter2\nsrun: error: n1: task 3: Exited with exit code 1\n")
    words = ["diagnose", str(log), "--nodes", "n1,n2", "--second-opinion"]
    assert main(words) == 10
    shown = capsys.readouterr().out
    assert "second opinion, a guess by 127.0.0.1" in shown
    assert "network" in shown.splitlines()[0]
    assert "suspected: n1" in shown
    assert "hunter2" not in str(model.requests)
    assert main([*words, "--json"]) == 10
    (found,) = _json(capsys)
    assert (found["second_opinion"]["class"], found["exclude"]) == ("network", False)
    assert list(found)[: len(KEYS)] == KEYS

    model.answer = says(b"", 503)
    assert main(words) == 12
    assert "no second opinion: it answered 503" in capsys.readouterr().err


def test_a_second_opinion_is_not_asked_for_what_is_known(
    logs: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor unless somebody is named to be asked, which is one line."""
    assert main(["diagnose", str(logs / "gpu.out.gz"), "--second-opinion"]) == 10
    assert model.requests == []
    os.environ.pop("FTRUN_SECOND_OPINION")
    assert main(["diagnose", str(logs / "gpu.out.gz"), "--second-opinion"]) == 2
    assert "set second-opinion" in capsys.readouterr().err
