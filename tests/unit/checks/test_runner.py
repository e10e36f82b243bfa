"""Laws of running checks: side by side, none longer than it may take, and no mistake of ours is a node's fault. (I/O)"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import catalogue, runner
from ftrun.hooks.checks.thresholds import of_job
from ftrun.hooks.main import main
from ftrun.hooks.runtime import UsageError
from ftrun.hooks.runtime.finding import BAD, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.runtime.host import NoAnswer

Judge = Callable[[Any, Mapping[str, Any]], Sequence[Finding]]


def _check(name: str, judge: Judge, *, needs: tuple[str, ...] = (), limit_s: float = 60.0) -> Check:
    return Check(name, name, "fast", "node", needs, limit_s, {"limit": 7}, lambda machine, _: machine, judge)


def _severities(*checks: Check, budget_s: float = 120.0, **settings: Any) -> dict[str, str]:
    reports = runner.run(checks, settings=settings, budget_s=budget_s)
    assert [check.name for check in checks] == [report.check for report in reports]
    return {report.check: report.findings[0].severity for report in reports}


def _ok(name: str) -> Judge:
    return lambda _facts, thresholds: [Finding(name, OK, str(thresholds["limit"]))]


def test_checks_run_side_by_side_and_a_hanging_one_is_left_behind() -> None:
    """Ten that wait half a second and one that never ends cost little more than its limit."""

    def slow(_facts: Any, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
        time.sleep(0.5)
        return [Finding("slow", OK, "")]

    def hanging(_facts: Any, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
        time.sleep(600)
        return []

    began = time.monotonic()
    found = _severities(
        _check("hangs", hanging, limit_s=1.0), *(_check(f"slow {number}", slow) for number in range(10))
    )

    assert UNKNOWN == found.pop("hangs")
    assert {OK} == set(found.values())
    assert time.monotonic() - began < 500  # it was not waited for


def test_checks_end_with_whoever_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C nothing is left running: a pipe that only the hanging check holds open is closed."""

    def hanging(_facts: Any, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
        time.sleep(600)
        return []

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    reader, writer = os.pipe()
    with monkeypatch.context() as patched:
        patched.setattr(select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run([_check("hangs", hanging, limit_s=60.0)])
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 60)
    os.close(reader)

    assert ready


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """130, as a shell tells of it, and no traceback."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)

    assert 130 == main(["check", "dns"])
    assert ("", "") == capsys.readouterr()


def test_the_budget_ends_all() -> None:
    """What had no time is unknown; nothing is waited for beyond."""
    checks = [_check(f"c{number}", lambda _f, _t: time.sleep(600) or []) for number in range(20)]  # type: ignore[func-returns-value]
    began = time.monotonic()

    assert {UNKNOWN} == set(_severities(*checks, budget_s=1.0).values())
    assert time.monotonic() - began < 500  # none was waited for


def test_a_mistake_of_ours_is_no_fault_of_the_node() -> None:
    """A check that raises, dies, or says nothing sensible is unknown, and the others go on."""

    def raises(_facts: Any, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
        raise KeyError("boom")

    def silent(_facts: Any, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
        raise NoAnswer("nvidia-smi did not end")

    def dies(_facts: Any, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
        os.kill(os.getpid(), signal.SIGKILL)
        return ()

    found = _severities(*(_check(f.__name__, f) for f in (raises, silent, dies)), _check("well", _ok("well")))

    assert {"raises": UNKNOWN, "silent": UNKNOWN, "dies": UNKNOWN, "well": OK} == found


def test_what_is_not_here_or_switched_off_is_skipped() -> None:
    """A command, a path, a site's word: each is a reason, none a verdict."""
    found = _severities(
        _check("tool", _ok("tool"), needs=("no-such-tool",)),
        _check("path", _ok("path"), needs=("/no/such/path",)),
        _check("off", _ok("off")),
        _check("on", _ok("on"), needs=("sh", "/proc")),
        off={"enabled": False},
    )

    assert {"tool": SKIPPED, "path": SKIPPED, "off": SKIPPED, "on": OK} == found


def test_a_site_sets_thresholds() -> None:
    """Over the defaults, check by check."""
    (report,) = runner.run([_check("c", _ok("c"))], settings={"c": {"limit": 9}})

    assert "9" == report.findings[0].message


@pytest.mark.parametrize(
    ("usual", "told", "fits"),
    [
        (7, "much", False),
        (7, None, False),
        (7, True, False),
        (7, 0.5, True),
        (False, "no", False),
        (False, True, True),
    ],
)
def test_a_setting_of_the_wrong_kind_is_told_and_the_check_not_begun(
    usual: object, told: object, fits: bool
) -> None:
    """A text in a number's place is no verdict on the node, and says which setting it was."""
    check = _check("c", _ok("c"))._replace(thresholds={"limit": usual})
    (report,) = runner.run([check], settings={"c": {"limit": told}})
    (finding,) = report.findings

    assert (OK if fits else UNKNOWN) == finding.severity
    assert fits or "its setting limit must be" in finding.message


@pytest.mark.parametrize(
    ("env", "has_driver", "told"),
    [
        ({}, True, {}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, True, {}),
        ({"SLURM_JOB_ID": "7"}, True, {"job": "7", "shared": False}),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1,3"},
            True,
            {"job": "7", "shared": False, "devices": "1,3"},
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1,3"}, False, {"job": "7", "shared": False}),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-5a1e"},
            True,
            {"job": "7", "shared": False, "devices": "MIG-5a1e"},
        ),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURM_SHARDS_ON_NODE": "2"},
            True,
            {"job": "7", "shared": True, "devices": "0"},
        ),
        (
            {"SLURM_JOB_ID": "7", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
            True,
            {"job": "7", "shared": True},
        ),
    ],
)
def test_the_job_around_implies_whose_devices_are_judged(
    env: dict[str, str], has_driver: bool, told: dict[str, Any]
) -> None:
    """MIG instances by their names, shares of a GPU as shared; outside a job the whole node."""
    assert told == of_job(env, has_driver=has_driver)


def test_what_a_job_implies_stands_below_what_the_site_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """And above the defaults, for the thresholds that a check has."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def judge(_facts: Any, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
        return [Finding("c", OK, json.dumps(dict(thresholds)))]

    check = Check(
        "c", "c", "fast", "node", (), 5.0, {"job": "", "limit": 7}, lambda machine, _: machine, judge
    )
    (first,), (second,) = runner.run([check]), runner.run([check], settings={"c": {"job": "9"}})

    assert {"job": "7", "limit": 7} == json.loads(first.findings[0].message)
    assert {"job": "9", "limit": 7} == json.loads(second.findings[0].message)


def test_a_finding_comes_back_whole() -> None:
    """Through the pipe of a child process, evidence and all."""
    told = Finding("c", BAD, "broken", "hardware-gpu", "0000:3b:00.0", ("a", "b"), 3.5, "GB")
    (report,) = runner.run([_check("c", lambda _facts, _thresholds: [told])])

    assert (told,) == report.findings


def test_names_that_there_are_not_are_refused() -> None:
    """By whoever configures a hook, before any job depends on it."""
    with pytest.raises(UsageError, match="no check is called nope"):
        catalogue.checks(names=["nope"])
    with pytest.raises(UsageError, match="no tier"):
        catalogue.checks("slow")


def test_words_of_a_settings_file_that_no_check_knows_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A switch that is misspelt switches nothing off, so whoever tries the file hears of it; hooks' own sections are known."""
    path = tmp_path / "checks.json"
    path.write_text(
        json.dumps({"gpu-ec": {}, "dns": {"host": "a", "enabled": False}, "prolog": {"on_bad": "report"}})
    )

    assert 0 == main(["check", "dns", "--settings", str(path)])
    told = capsys.readouterr().err.splitlines()[:-1]
    assert told == [
        f"ftrun-hook: --settings {path}: no check is called gpu-ec; did you mean gpu-ecc?",
        f"ftrun-hook: --settings {path}: dns has no setting host; did you mean hosts?",
    ]


def test_the_command_answers_by_its_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 nothing bad, 1 something bad, 2 wrong usage; --json is one object."""
    assert 0 == main(["check", "--json", "disk-size root", "--settings", _settings(tmp_path, size_gb=0)])
    facts = json.loads(capsys.readouterr().out)
    assert ("disk-size root", "ok") == (facts["findings"][0]["check"], facts["worst"])
    assert 1 == main(["check", "disk-size root", "--settings", _settings(tmp_path, size_gb=10**9)])
    assert capsys.readouterr().out.startswith("bad       disk-size root /: ")
    assert 2 == main(["check", "--tier", "never"])
    assert 2 == main(["check", "--settings", str(tmp_path / "none")])
    assert 2 == len(capsys.readouterr().err.splitlines())


def test_a_reader_who_has_seen_enough_ends_the_list_without_a_word() -> None:
    """As in `ftrun-hook check --list | head -1`."""
    command = [sys.executable, "-m", "ftrun.hooks.main", "check", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()

        assert (b"", 0) == (listing.stderr.read(), listing.wait())


def test_a_selection_that_was_skipped_whole_is_not_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word where nothing was looked at, beside the output."""
    (tmp_path / "off.json").write_text('{"dns": {"enabled": false}}')

    assert 0 == main(["check", "dns", "--settings", str(tmp_path / "off.json")])
    assert ("", "nothing was looked at, --all tells why\n") == capsys.readouterr()


def test_the_checks_are_listed_with_what_they_need_and_their_thresholds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a terminal and as JSON; none is run."""
    assert 0 == main(["check", "--list", "bmc"])
    told = capsys.readouterr().out
    assert all(
        word in told for word in ("bmc", "recheck", "hardware-other", "needs ipmitool", "recent_s=86400")
    )
    assert 0 == main(["check", "--list", "--json", "--tier", "burn-in"])
    listed = json.loads(capsys.readouterr().out)
    assert [check.name for check in catalogue.checks("burn-in")] == [one["name"] for one in listed]
    assert all(one["checked_against"] for one in listed)


def test_the_report_of_a_node_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What files of an attempt hold and what goes over the wire is the same: schema, occasion, node, time, findings."""
    arguments = ["--kind", "preflight", "--node", "n3", "--settings", _settings(tmp_path, size_gb=10**9)]
    assert 1 == main(["check", "--json", "disk-size root", *arguments])
    report = json.loads(capsys.readouterr().out)

    assert (1, "preflight", "n3", "fast", "bad") == tuple(
        report[key] for key in ("schema", "kind", "node", "tier", "worst")
    )
    assert ["disk-size root"] == report["checks"]
    assert abs(report["at_s"] - time.time()) < 3600
    (found,) = report["findings"]
    assert set(Finding._fields) == set(found)


def _settings(folder: Path, **thresholds: Any) -> str:
    path = folder / "checks.json"
    path.write_text(json.dumps({"disk-size root": thresholds}))
    return str(path)


def test_a_check_that_is_named_has_the_time_of_its_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board's controller takes longer than all fast checks may."""
    given: list[float] = []

    def noted(
        _chosen: Sequence[Check], *, settings: Mapping[str, Any], budget_s: float
    ) -> list[runner.Report]:
        given.append(budget_s)
        return []

    monkeypatch.setattr(runner, "run", noted)

    assert [0, 0, 0] == [main(["check", *words]) for words in (["bmc"], ["swap"], ["bmc", "--within", "3"])]
    assert [300.0, 15.0, 3.0] == given


def test_a_worker_that_is_lost_takes_one_check_along(tmp_path: Path) -> None:
    """Others do the rest, and each check is done once."""

    def told(name: str) -> Judge:
        def judge(_facts: Any, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
            with open(tmp_path / "done", "a", encoding="utf-8") as stream:
                stream.write(f"{name}\n")
            if name == "c3":
                os.kill(os.getpid(), signal.SIGKILL)
            return [Finding(name, OK, "")]

        return judge

    names = [f"c{number}" for number in range(12)]
    found = _severities(*(_check(name, told(name)) for name in names))

    assert {name: UNKNOWN if name == "c3" else OK for name in names} == found
    assert sorted(names) == sorted((tmp_path / "done").read_text().split())
