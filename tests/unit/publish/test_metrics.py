"""Counters never fall, series do not grow with the runs, and whatever is wrong with the folder or the port is one line."""

from __future__ import annotations

import os
import re
import socket
import stat
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from ftrun.supervisor.publish import follower, metrics, series
from ftrun.supervisor.publish.metrics import Metrics
from tests.unit.publish.test_follower import Home, life
from tests.unit.told_runs import Told, long_run

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Exporter:
    """A home, its follower and its metrics, by a clock that a test moves."""

    def __init__(self, tmp: Path, home: Home | None = None, *, folder: str = "", port: int = 0) -> None:
        self.home = home or Home(tmp)
        self.metrics = Metrics(
            self.home.path, folder=folder, port=port, user="ann", clock=lambda: self.home.mono_s
        )
        self.follower = self.home.follower(self.metrics)

    def round(self, later_s: float = 20.0) -> Samples:
        self.home.mono_s += later_s
        assert self.follower.round()
        self.follower.save()
        return samples(self.metrics.text(self.home.now_s).decode())


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in parse(text):
        for one in family.samples:
            assert one.labels["user"] == "ann"
            labels = {k: v for k, v in one.labels.items() if k not in ("user", "home")}
            key = (one.name, frozenset(labels.items()))
            assert key not in found
            found[key] = one.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset({key.rstrip("_"): value for key, value in labels.items()}.items())]


def recovered() -> Told:
    """A run that lost a node, was submitted again and went on."""
    told = Told()
    told.opens(0)
    told.runs(60)
    for minute in range(2, 12):
        told.steps(60.0 * minute, 60 * minute)
    told.fails(680, sign_s=670, step=670)
    told.opens(700)
    told.runs(760)
    told.say(820, "launch.progress", step=601, step_s=1.0, total=2000, loss=0.5, first_step=True)
    told.steps(880, 661)
    return told


def test_a_run_with_a_fault_is_told_by_its_series(tmp_path: Path) -> None:
    exporter = Exporter(tmp_path)
    exporter.home.write("train-0001", recovered().records)
    found = exporter.round()
    assert value(found, "ftrun_run_step", run="train-0001") == 661
    assert value(found, "ftrun_run_attempts", run="train-0001") == 2
    assert value(found, "ftrun_run_state", run="train-0001", state="running") == 1
    assert value(found, "ftrun_runs", state="running") == 1
    assert value(found, "ftrun_incidents_total", class_="node", rung="resubmit") == 1
    assert value(found, "ftrun_recovery_seconds_count", class_="node") == 1
    assert value(found, "ftrun_recovery_seconds_sum", class_="node") == pytest.approx(150.0)
    assert value(found, "ftrun_recovery_seconds_bucket", class_="node", le="120.0") == 0
    assert value(found, "ftrun_recovery_seconds_bucket", class_="node", le="300.0") == 1
    assert value(found, "ftrun_run_seconds_total", spent="queued") == pytest.approx(120.0)
    assert 0 < value(found, "ftrun_goodput_ratio", run="train-0001") < 1
    assert value(found, "ftrun_submissions_total") == 2


def test_the_names_told_are_those_of_the_table_and_end_in_their_unit(tmp_path: Path) -> None:
    exporter = Exporter(tmp_path)
    exporter.home.write("train-0001", recovered().records)
    exporter.round()
    for family in parse(exporter.metrics.text(0.0).decode()):
        row = series.NAMES.get(family.name) or series.NAMES[f"{family.name}_total"]
        assert family.type == row.kind
        assert row.help == family.documentation
    for row in series.SERIES:
        assert re.fullmatch(r"ftrun_[a-z_]+[a-z]", row.name)
        assert row.name.endswith("_total") == (row.kind == series.COUNTER)


def test_a_run_that_is_over_loses_its_series_and_keeps_its_part_of_the_sums(tmp_path: Path) -> None:
    exporter = Exporter(tmp_path)
    home = exporter.home
    home.write("train-0001", life(ended=True))
    before = exporter.round()
    assert value(before, "ftrun_run_attempts", run="train-0001") == 1
    home.now_s += follower.LEAVE_AFTER_S
    after = exporter.round(follower.LEAVE_AFTER_S + 1)
    again = Exporter(tmp_path, home).round()
    (tmp_path / "publish" / "metrics.json").unlink()
    os.rename(tmp_path / "runs", tmp_path / "pruned")
    pruned = Exporter(tmp_path, home).round()
    for found in (after, again, pruned):
        assert not any("run" in dict(labels) for _, labels in found)
        assert value(found, "ftrun_submissions_total") == 1
        assert value(found, "ftrun_runs_ended_total", state="finished", class_="none") == 1
        kept = {key: told for key, told in before.items() if key[0].endswith("_total")}
        assert kept == {key: told for key, told in found.items() if key[0].endswith("_total")}


def test_a_resumed_run_counts_once(tmp_path: Path) -> None:
    exporter = Exporter(tmp_path)
    exporter.home.write("train-0001", life(ended=True))
    exporter.round()
    exporter.round(follower.LEAVE_AFTER_S + 1)
    requests = tmp_path / "runs" / "train-0001" / "requests"
    os.utime(requests, (exporter.home.now_s + 5000, exporter.home.now_s + 5000))
    found = exporter.round(follower.RETURNS_EVERY_S + 1)
    assert value(found, "ftrun_submissions_total") == 1
    assert exporter.metrics._kept["ftrun_submissions_total",] == 0


def test_counters_never_fall_also_over_a_new_exporter_and_a_clock_set_back(tmp_path: Path) -> None:
    home, records = Home(tmp_path), recovered().records
    before: Samples = {}
    exporter = Exporter(tmp_path, home)
    for count in range(1, len(records) + 1):
        home.write("train-0001", records[count - 1 : count])
        exporter = Exporter(tmp_path, home) if count % 5 == 1 else exporter
        home.now_s -= 3600.0 if count == 30 else 0.0
        found = exporter.round()
        for key, told in before.items():
            if key[0].endswith(("_total", "_count", "_sum", "_bucket")):
                assert found[key] >= told - 0.001, (count, key)
        before = found


def test_ten_thousand_runs_do_not_make_ten_thousand_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "RUNS_MAX", 5)
    exporter = Exporter(tmp_path)
    for number in range(12):
        exporter.home.write(f"r{number:02d}-0001", life(ended=number < 10))
    found = exporter.round()
    assert len({dict(labels)["run"] for _, labels in found if "run" in dict(labels)}) == 5
    assert {"r10-0001", "r11-0001"} <= {dict(labels).get("run") for _, labels in found}
    assert value(found, "ftrun_submissions_total") == 12
    assert value(found, "ftrun_runs", state="finished") == 10


def test_names_with_quotes_newlines_and_escapes_are_labels(tmp_path: Path) -> None:
    evil = 'a"b\\c\nd\x1b[31m\u202e\udcff' + "x" * 500
    exporter = Exporter(tmp_path)
    records = life()
    records[0]["data"]["name"] = evil
    exporter.home.write("train-0001", records)
    found = exporter.round()
    names = [dict(labels)["name"] for name, labels in found if name == "ftrun_run_info"]
    assert names == [('a"b\\c?d?[31m??' + "x" * 500)[: series.LABEL_LENGTH_MAX]]


def test_the_text_file_is_whole_and_readable_by_all_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "collector"
    folder.mkdir()
    exporter = Exporter(tmp_path / "home", folder=str(folder))
    before = os.umask(0o077)
    try:
        exporter.round()
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert re.fullmatch(r"ftrun-ann-[0-9a-f]{8}\.prom", file.name), "this home is not the user's usual one"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert value(samples(file.read_text()), "ftrun_runs", state="running") == 0
    assert exporter.follower.problems() == {}


def test_a_folder_that_is_missing_or_not_ours_is_one_line_and_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "collector"
    exporter = Exporter(tmp_path / "home", folder=str(folder))
    exporter.round()
    assert exporter.follower.problems() == {"metrics": f"{folder} does not exist"}
    folder.mkdir()
    exporter.round()
    assert exporter.follower.problems() == {}


def test_a_link_of_somebody_else_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    """Others may write to that folder."""
    victim, folder = tmp_path / "victim", tmp_path / "collector"
    victim.write_text("mine")
    folder.mkdir()
    exporter = Exporter(tmp_path / "home", folder=str(folder))
    path = exporter.metrics._path
    os.symlink(victim, f"{path}.{os.getpid()}.tmp")
    os.symlink(victim, path)
    exporter.round()
    assert victim.read_text() == "mine"
    assert samples(Path(path).read_text())


def test_the_port_answers_on_loopback_and_one_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        exporter = Exporter(tmp_path, port=port)
        exporter.home.write("train-0001", recovered().records)
        exporter.round()
        assert exporter.follower.problems() == {"metrics": f"metrics-port {port}: Address already in use"}
    exporter.round(metrics.PORT_EVERY_S + 1)
    assert exporter.follower.problems() == {}
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        plain = answer.read().decode()
    assert value(samples(plain), "ftrun_run_step", run="train-0001") == 661
    asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        told = list(openmetrics(answer.read().decode()))  # type: ignore[no-untyped-call]
    assert len(told) > 15


def test_a_journal_of_many_records_costs_memory_and_time_of_a_few(tmp_path: Path) -> None:
    told, end_s = long_run(300)
    exporter = Exporter(tmp_path)
    exporter.home.write("long-0001", told.records)
    found = exporter.round()
    whole = told.ledger(end_s).seconds()
    assert value(found, "ftrun_run_seconds_total", spent="productive") == pytest.approx(
        whole[next(key for key in whole if key.value == "productive")], rel=0.02
    )
    ledger = exporter.metrics._counted["long-0001"].figures._ledger
    assert len(ledger._pending) < 500 < len(told.records)
