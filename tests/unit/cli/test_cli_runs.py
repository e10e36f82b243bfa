"""Laws of the commands about runs, on frozen run folders and without any supervisor. (I/O)"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli import common, main
from ftrun.supervisor.store import journal
from ftrun.supervisor.submission import start_supervisor

FROZEN = Path(__file__).resolve().parents[2] / "frozen" / "v1"
RECOVERED, STOPPED, CUT = "torn-checkpoint-0001", "scancel-resubmitted-0001", "node-frozen-0001"
RECOVERED_AT_S = 1_795_233_183.0
ABOUT_ONE = ["show", "logs", "explain", "cancel", "stop", "resume"]
WITH_JSON = [
    "status",
    "status --all",
    "history",
    f"show {RECOVERED}",
    f"explain {RECOVERED}",
    f"cancel {STOPPED}",
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a recovered run, a stopped one, and one whose supervisor died in mid-recovery."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FTRUN_SUPERVISOR", "none")
    monkeypatch.setattr(start_supervisor, "ensure_supervisor", _no_supervisor)
    for name in ("recovered", "stopped", "cut"):
        source = next(path for path in (FROZEN / name).iterdir() if path.is_dir())
        run_dir = tmp_path / "home" / "runs" / source.name
        shutil.copytree(source, run_dir)
        (run_dir / "requests").mkdir()
    return tmp_path / "home"


def _no_supervisor(*_: Any) -> int:
    raise AssertionError("a test must start no supervisor")


def _json(capsys: pytest.CaptureFixture[str]) -> Any:
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def _requests(home: Path, run: str) -> list[Path]:
    return sorted((home / "runs" / run / "requests").iterdir())


def _write_log(home: Path, run: str, text: str) -> None:
    """Give every launch of a run one log file, each launch a part of the same length."""
    log = home / f"{run}.log"
    with log.open("w") as stream:
        for record in sorted((home / "runs" / run / "attempts").glob("*/launch.*")):
            offset = stream.tell()
            stream.write(f"{text} {record.parent.name}\n")
            lines = re.sub(r"(?m)^stdout=.*$", f"stdout={log}", record.read_text())
            stream.flush()
            record.write_text(re.sub(r"(?m)^stdout_offset=.*$", f"stdout_offset={offset}", lines))


# ---------------------------------------------------------------------- for all of them


@pytest.mark.parametrize("command", ABOUT_ONE)
@pytest.mark.parametrize("name", ["nobody-0001", "4711", "../etc", ""])
def test_an_unknown_run_is_wrong_usage(
    home: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, one line that names what was asked for and how to find what there is."""
    assert 2 == main([command, name])

    out, err = capsys.readouterr()
    assert "" == out
    assert 1 == len(err.splitlines())
    assert "ftrun status --all" in err


def test_a_run_is_found_in_any_case_and_a_wrong_name_gets_its_nearest(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Someone who typed `Torn-Checkpoint-0001` meant that run; one who left a letter out is asked whether it is meant."""
    assert 0 == main(["show", RECOVERED.upper()])
    assert RECOVERED in capsys.readouterr().out
    assert 2 == main(["show", RECOVERED.replace("torn", "trn")])
    assert f"did you mean {RECOVERED}?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ABOUT_ONE)
def test_a_run_must_be_named(home: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an argument: exit 2 and one line, no traceback."""
    assert 2 == main([command])
    assert 1 == len(capsys.readouterr().err.splitlines())


@pytest.mark.parametrize("command", WITH_JSON)
def test_json_is_one_line_of_one_object(home: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever prints facts prints them for programs, on stdout alone."""
    assert 0 == main([*command.split(), "--json"])
    assert isinstance(_json(capsys), dict)


@pytest.mark.parametrize("job", ["1", "2", "3", "3_4", "2+1"])
def test_any_job_id_that_a_run_ever_had_names_it(
    home: Path, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a task's or a component's, also where the index was lost: it is rebuilt from the journals."""
    shutil.rmtree(home / "runs" / STOPPED)
    shutil.rmtree(home / "runs" / CUT)

    assert 0 == main(["show", job, "--json"])

    assert RECOVERED == _json(capsys)["run"]
    assert (home / "index" / re.split(r"[_+]", job)[0]).is_symlink()


def test_a_journal_that_makes_no_sense_hides_no_other_run(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` names it in one line on stderr and goes on."""
    record = {"v": 1, "seq": 0, "at": 1.0, "kind": "launch.kept", "attempt": 1, "data": {}}
    path = home / "runs" / RECOVERED / "journal" / "000009-x.000.jsonl"
    path.write_text(json.dumps(record) + "\n")

    assert 0 == main(["status", "--all", "--json"])

    out, err = capsys.readouterr()
    assert 2 == len(json.loads(out)["runs"])
    assert "'launch.kept' cannot happen to a run that is finished" in err


# ---------------------------------------------------------------------- status


def test_status_shows_what_is_not_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a run; --all adds those that are over."""
    main(["status"])
    lines = capsys.readouterr().out.splitlines()
    main(["status", "--all"])
    more = capsys.readouterr().out.splitlines()

    assert (2, 4) == (len(lines), len(more))
    assert "RUN" == lines[0].split()[0]
    assert [CUT, "recovering"] == lines[1].split()[:2]


def test_status_says_that_nobody_is_watching(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is not over and no supervisor: how long it has been so, and what to do, on stderr."""
    (home / "lease").mkdir()
    (home / "lease" / "epoch-000003").symlink_to("login1.0.0.1.1")
    counter = home / "lease" / "counter-000003"
    counter.write_text("released")
    os.utime(counter, (time.time() - 600, time.time() - 600))

    assert 0 == main(["status"])

    assert "nobody was watching for 10 min; start one: ftrun supervise\n" == capsys.readouterr().err


def test_status_says_who_is_watching_and_that_slurm_is_not_seen(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A living supervisor that gets no answer from Slurm says so: nothing is done until it does."""
    monkeypatch.setattr(start_supervisor, "holder_alive_here", lambda _: True)
    (home / "lease").mkdir()
    (home / "lease" / "epoch-000003").symlink_to("login1.0.0.1.1")
    asks = {"by": "commands", "why": "no answer within 15 s"}
    aside = {"odd-0001": "its journal is damaged"}
    told = {"blind_since_s": time.time() - 90, "set_aside": aside, "slurm_client": asks}
    (home / "supervisor.json").write_text(json.dumps(told))

    main(["status"])
    watched, aside_line, asked, blind = capsys.readouterr().err.splitlines()
    main(["status", "--json"])
    facts = _json(capsys)["supervisor"]

    assert "watched from login1" == watched
    assert "odd-0001 is not supervised: its journal is damaged" == aside_line
    assert "Slurm is asked by its commands, not by pyslurm: no answer within 15 s" == asked
    assert asks == facts["slurm_client"]
    assert re.match(r"Slurm has not answered for 9\d s: ftrun does nothing until it does$", blind)
    assert ["odd-0001"] == list(facts["set_aside"])
    assert (True, "login1") == (facts["watched"], facts["by"])
    assert facts["slurm_unseen_since"] is not None


def test_status_of_an_empty_home_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing there, nothing made: exit 0 and a sentence."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "none"))

    assert 0 == main(["status"])

    assert "no run is under supervision" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


# ---------------------------------------------------------------------- show, history, explain, logs


def test_show_tells_attempts_faults_and_budgets(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every attempt with its nodes and what it resumed from; every fault with its class and what was done. Looked at before its exclusion is over, a day later."""
    monkeypatch.setattr(time, "time", lambda: RECOVERED_AT_S + 3600.0)
    assert 0 == main(["show", RECOVERED])

    out = capsys.readouterr().out
    assert out.startswith(f"{RECOVERED}: finished, the script exited 0\n")
    assert "retries 2 used since the last net progress, 18 left" in out
    for word in ("hardware-gpu", "checkpoint", "ckpt-000012.pt", "excluded", "COMPLETED"):
        assert word in out


def test_history_tells_the_faults_of_all_runs_in_order(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oldest first; -n takes the newest."""
    main(["history", "--json"])
    found = _json(capsys)["incidents"]
    main(["history", "--json", "-n1"])
    last = _json(capsys)["incidents"]

    assert {RECOVERED, STOPPED, CUT} == {row["run"] for row in found}
    assert sorted(row["at"] for row in found) == [row["at"] for row in found]
    assert found[-1:] == last


def test_explain_gives_evidence_rule_and_budget_of_each_decision(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line that proves it, what was considered, what it cost, and the exact reason of the decision."""
    assert 0 == main(["explain", RECOVERED])

    out = capsys.readouterr().out
    for part in (
        "diagnosed: hardware-gpu: ",
        "proof: ",
        "decided: resubmit: hardware-gpu: ",
        "considered: not drained: only the job's own log says so",
        "budgets used since the last progress: hardware-gpu 1",
        "checkpoint set aside: ",
        "finished: the script exited 0",
    ):
        assert part in out


def test_explain_json_is_the_journal_itself(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get every record as it was written."""
    main(["explain", CUT, "--json"])

    assert journal.read_run(str(home / "runs" / CUT)) == _json(capsys)["records"]


def test_a_damaged_run_says_what_is_readable_and_how_to_go_on(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that is readable, what is not, and one way: end its jobs, submit anew, remove the folder."""
    path = next((home / "runs" / RECOVERED / "journal").glob("000001-*"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:20], lines[20][:40] + b"\n", *lines[21:]]))
    whole = sum(len(one.read_bytes().splitlines()) for one in path.parent.iterdir())

    assert 1 == main(["explain", RECOVERED])

    out = capsys.readouterr().out
    assert f"{path.name}: byte {sum(map(len, lines[:20]))}: " in out
    assert f"Readable are {whole - 1} records" in out
    assert re.search(r"scancel 1 2 3 .*\n.*ftrun sbatch .*\n.*rm -r ", out)
    assert 1 == main(["explain", RECOVERED, "--json"])
    assert whole - 1 == len(_json(capsys)["records"])
    assert 1 == main(["show", RECOVERED])
    assert f"ftrun explain {RECOVERED}" in capsys.readouterr().err


def test_every_record_of_a_frozen_run_can_be_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain` has a sentence for what a person may ask about, and stumbles over nothing."""
    for run in (RECOVERED, STOPPED, CUT):
        assert 0 == main(["explain", run])
    assert "" == capsys.readouterr().err


def test_explain_is_short_and_tells_the_rest_on_request(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each start the last stacks and ten lines of its logs; `--all` prints each."""
    folder = home / "runs" / CUT
    book = journal.Journal.open_epoch(
        str(folder), epoch=99, writer="t", believed=journal.believed_lengths(str(folder))
    )
    for number in range(130):
        book.append("stacks.taken", attempt=1, folder=f"stacks/{number}", nodes=["n0"])
    for number in range(40):
        seen: dict[str, Any] = {"signature": "s", "source": "log", "file": "a.out", "line": number}
        book.append("evidence", attempt=1, key=str(number), text="odd", captures={}, **seen)
    book.close()

    assert 0 == main(["explain", CUT])
    short = capsys.readouterr().out
    assert 1 == short.count("stacks of the ranks")
    assert "stacks/129" in short
    assert short.count("a.out:") <= 10
    assert f"ftrun explain {CUT} --all)" in short
    assert 0 == main(["explain", CUT, "--all"])
    whole = capsys.readouterr().out
    assert (130, 40) == (whole.count("stacks of the ranks"), whole.count("a.out:"))


def test_status_of_one_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`status RUN` shows that run alone, also where it is over."""
    assert 0 == main(["status", RECOVERED, "--json"])
    assert [RECOVERED] == [row["run"] for row in _json(capsys)["runs"]]
    assert 0 == main(["status", RECOVERED, STOPPED])
    assert 3 == len(capsys.readouterr().out.splitlines())
    assert 2 == main(["status", "nobody-0001"])
    assert "nobody-0001" in capsys.readouterr().err


def test_status_reads_the_present_step_from_the_log(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal notes a step a minute: of a live run the end of its log says more, that of an ended one nothing."""

    def steps() -> list[Any]:
        assert 0 == main(["status", CUT, RECOVERED, "--json"])
        return [row["step"] for row in _json(capsys)["runs"]]

    before = steps()
    for run in (CUT, RECOVERED):
        _write_log(home, run, "step 777/1000 loss 0.3 attempt")
    _live_again(home)
    assert [777, before[1]] == steps()


def _live_again(home: Path) -> None:
    """The cut run has a next attempt, which runs and writes into the log."""
    run_dir = home / "runs" / CUT
    number = journal.load_run(str(run_dir)).attempts[-1].number
    book = journal.Journal.open_epoch(
        str(run_dir), epoch=99, writer="t", believed=journal.believed_lengths(str(run_dir))
    )
    book.append("job.started", attempt=number, nodes=["n0"], started_at_s=RECOVERED_AT_S)
    book.close()


def test_logs_go_on_across_attempts(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Each attempt's part once, its boundary marked, though all wrote into one file."""
    _write_log(home, RECOVERED, "hello from attempt")

    assert 0 == main(["logs", RECOVERED])

    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert ["hello from attempt 1", "hello from attempt 2", "hello from attempt 3"] == lines[1::2]
    assert [True] * 3 == [f"{RECOVERED} attempt " in line for line in lines[::2]]


def test_logs_that_follow_end_with_the_run(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """`-f` of a run that is over prints what there is and returns."""
    _write_log(home, RECOVERED, "x" * 200_000)

    assert 0 == main(["logs", "-f", RECOVERED])

    assert 600_000 < len(capfdbinary.readouterr().out)


def test_logs_that_cannot_be_read_are_said_to_be_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 and one line: the file is elsewhere, or nothing has started."""
    assert 1 == main(["logs", RECOVERED])
    assert "no log can be read yet" in capsys.readouterr().err


# ---------------------------------------------------------------------- cancel, stop, resume


@pytest.mark.parametrize("command", ["cancel", "stop"])
def test_a_wish_is_kept_though_nobody_watches(
    home: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request is written whole, and the user told that nobody takes it up and what to do."""
    assert 1 == main([command, CUT])

    (request,) = _requests(home, CUT)
    wish = json.loads(request.read_text())
    assert (command, True) == (wish["want"], bool(wish["by"]))
    assert "ftrun supervise --once" in capsys.readouterr().err
    assert 0o600 == request.stat().st_mode & 0o777


@pytest.mark.parametrize("command", ["cancel", "stop"])
@pytest.mark.parametrize("run", [RECOVERED, STOPPED])
def test_what_is_over_needs_no_ending(
    home: Path, command: str, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0, a sentence, no request left behind."""
    assert 0 == main([command, run])
    assert f"{run} is over already" in capsys.readouterr().out
    assert [] == _requests(home, run)


@pytest.mark.parametrize(("run", "state"), [(RECOVERED, "finished"), (CUT, "recovering")])
def test_only_a_stopped_run_can_be_resumed(
    home: Path, run: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything else is wrong usage, and the state is named."""
    assert 2 == main(["resume", run])
    assert f"{run} is {state}: only a stopped run can be resumed" in capsys.readouterr().err
    assert [] == _requests(home, run)


def test_a_request_that_cannot_be_written_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk or a missing folder: one line, exit 1, and no half request."""
    (home / "runs" / CUT / "requests").rmdir()

    assert 1 == main(["cancel", CUT])

    assert "the request cannot be written" in capsys.readouterr().err


# ---------------------------------------------------------------------- doctor


@pytest.fixture
def bare(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Slurm's commands."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return home


def test_doctor_says_what_is_missing(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 where recovery would not work; each bad finding tells how to mend it."""
    assert 1 == main(["doctor", "--json"])

    facts = _json(capsys)
    bad = {f["check"]: f for f in facts["findings"] if f["state"] == "bad"}
    assert facts["ok"] is False
    assert "sbatch" in bad["Slurm's commands"]["what"]
    assert all(f["mend"] for f in bad.values())


def test_doctor_as_a_table(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for people."""
    assert 1 == main(["doctor"])
    assert ["CHECK", "WHAT", "HOW", "TO", "MEND"] == capsys.readouterr().out.splitlines()[0].split()


def test_doctor_notices_a_folder_that_others_can_read(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The submission's environment lies in there: a warning with the command that mends it."""
    bare.chmod(0o755)

    main(["doctor", "--json"])

    (folder,) = [f for f in _json(capsys)["findings"] if f["check"] == "run folder"]
    assert ("warn", f"chmod 700 {bare}") == (folder["state"], folder["mend"])
    assert [] == list(bare.glob(".doctor-*"))


def test_doctor_prints_units_for_this_home(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A systemd unit and crontab lines that can be pasted, for exactly this folder."""
    assert 0 == main(["doctor", "--units"])

    out = capsys.readouterr().out
    assert f"Environment=FTRUN_HOME={home}" in out
    assert "[Service]" in out
    assert "supervise --once" in out
    assert "#SCRON" in out


def test_a_table_shows_control_characters_as_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault's title comes from a log: it must not colour, move or turn what a person reads."""
    common.print_table(["WHAT"], [["\x1b[31mred\u202e  and\nnext"]])
    assert "WHAT\n\\x1b[31mred\\x202e and next\n" == capsys.readouterr().out


def test_status_goes_on_until_the_named_runs_are_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, the state first; with --json the facts of `status --json`."""
    assert 0 == main(["status", "--watch", RECOVERED, STOPPED])
    lines = capsys.readouterr().out.splitlines()
    assert [STOPPED, RECOVERED] == sorted(line.split("  ")[1] for line in lines)
    assert any(f"{STOPPED}  stopped" in line for line in lines)
    assert 0 == main(["status", "-w", RECOVERED, "--json"])
    assert RECOVERED == _json(capsys)["run"]


@pytest.mark.parametrize(
    ("term", "said"), [("xterm", "top needs a terminal"), ("dumb", "cannot draw"), (None, "cannot draw")]
)
def test_top_names_the_way_without_a_screen(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    term: str | None,
    said: str,
) -> None:
    """Where it cannot draw, one line says what to call instead."""
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: term != "xterm")
    assert 2 == main(["top"])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "ftrun status --watch" in line


def test_top_says_how_to_install_what_it_needs(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    for name in [*sys.modules, "textual"]:  # another test may have loaded it
        if name.partition(".")[0] == "textual":
            monkeypatch.setitem(sys.modules, name, None)
        elif name.startswith("ftrun.supervisor.board."):
            monkeypatch.delitem(sys.modules, name)
    assert 2 == main(["top"])
    assert f"{sys.executable} -m pip install textual" in capsys.readouterr().err
