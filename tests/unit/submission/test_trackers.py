"""Laws of the variables for trackers of experiments: one name for all starts of a run, nothing of the user's replaced, and an MLflow run only where there is exactly one."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.bundle import zipapp
from ftrun.hooks.progress import mlflow_run
from ftrun.supervisor.submission import library_env
from ftrun.supervisor.submission.plan import _facts_of_trackers
from tests.unit.bundle.test_batch_sh import Attempt

NAME = "r-0001-ab12cd34"
CONTEXT = {"run": "r-0001", "run_token": "ftrun:r-0001:ab12cd34"}
NAMES = tuple(one.name for one in library_env.TRACKERS)
TELL = "#!/bin/sh\nenv | grep '^WANDB\\|^MLFLOW\\|^COMET\\|^FTRUN_TRACKED' | sort\n"


@pytest.fixture(params=["dash", "bash"])
def attempt(request: pytest.FixtureRequest, tmp_path: Path) -> Attempt:
    one = Attempt(tmp_path, [shutil.which(request.param) or pytest.skip(f"no {request.param}")])
    one.values |= _facts_of_trackers("all", CONTEXT)
    return one


def told(attempt: Attempt, script: str = TELL) -> dict[str, str]:
    code, out, err = attempt.run(script)
    assert (code, err) == (0, "")
    return dict(line.split("=", 1) for line in out.splitlines())


def again(attempt: Attempt) -> None:
    """The next attempt."""
    attempt.values |= {"attempt": "2", "token": "ftrun:r-0001:ab:2", "restart": "1", "last_fault": "network"}
    attempt.place.mkdir(parents=True)


def test_without_the_setting_nothing_is_told() -> None:
    """It is off unless asked for; `auto` leaves out what older programs of the library would not survive."""
    assert {} == _facts_of_trackers("never", CONTEXT)
    assert "COMET" not in _facts_of_trackers("auto", CONTEXT)["trackers"]


def test_each_tracker_gets_one_name_for_all_starts(attempt: Attempt) -> None:
    """The name is the run's with the random part of its token: two homes may each have a train-0001. Comet takes 32 to 50 letters and digits."""
    first = told(attempt)
    again(attempt)

    assert (NAME, "allow") == (first["WANDB_RUN_ID"], first["WANDB_RESUME"])
    assert {"ftrun.run": NAME} == json.loads(first["MLFLOW_RUN_CONTEXT"])
    assert re.fullmatch(r"[0-9a-z]{32}", first["COMET_EXPERIMENT_KEY"])
    assert " ".join(NAMES) == first["FTRUN_TRACKED"]
    assert first == told(attempt)


def test_tasks_of_an_array_are_runs_of_their_own(attempt: Attempt) -> None:
    attempt.env |= {"SLURM_ARRAY_TASK_ID": "12", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_COUNT": "20"}
    found = told(attempt)

    assert f"{NAME}x12" == found["WANDB_RUN_ID"]
    assert {"ftrun.run": f"{NAME}x12"} == json.loads(found["MLFLOW_RUN_CONTEXT"])
    assert re.fullmatch(r"[0-9a-z]{35}", found["COMET_EXPERIMENT_KEY"])


def test_what_the_user_set_stays(attempt: Attempt) -> None:
    """Under any name that says the same, if only to nothing; an agent of a sweep has ids of its own."""
    attempt.env |= {"WANDB_SWEEP_ID": "s", "MLFLOW_RUN_ID": "", "COMET_EXPERIMENT_KEY": "mine"}
    user = {"WANDB_SWEEP_ID": "s", "MLFLOW_RUN_ID": "", "COMET_EXPERIMENT_KEY": "mine"}

    assert user | {"FTRUN_TRACKED": ""} == told(attempt)


def test_a_job_that_was_submitted_from_inside_another_is_a_run_of_its_own(attempt: Attempt) -> None:
    """It inherits what ftrun set for the outer one, which is not the user's word."""
    attempt.env |= {"WANDB_RUN_ID": "outer", "WANDB_RESUME": "allow", "MLFLOW_RUN_ID": "mine"}
    attempt.env["FTRUN_TRACKED"] = "WANDB_RUN_ID WANDB_RESUME PATH"
    found = told(attempt)

    assert (NAME, "mine") == (found["WANDB_RUN_ID"], found["MLFLOW_RUN_ID"])


# ---------------------------------------------------------------------- the run of MLflow

RUNS: list[tuple[str, Mapping[str, str], str]] = [
    ("a" * 32, {"ftrun.run": NAME}, "active"),
    ("b" * 32, {"ftrun.run": NAME, "mlflow.parentRunId": "a" * 32}, "active"),
    ("c" * 32, {"ftrun.run": "r-0002-ab12cd34"}, "active"),
    ("d" * 32, {"ftrun.run": NAME}, "deleted"),
]


def database(path: Path, runs: list[tuple[str, Mapping[str, str], str]]) -> None:
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE runs (run_uuid, lifecycle_stage)")
    base.execute("CREATE TABLE tags (key, value, run_uuid)")
    for run, tags, stage in runs:
        base.execute("INSERT INTO runs VALUES (?, ?)", (run, stage))
        base.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(*pair, run) for pair in tags.items()])
    base.commit()
    base.close()


def folders(path: Path) -> None:
    for run, tags, stage in RUNS:
        place = path / "0" / run / "tags"
        place.mkdir(parents=True)
        (place.parent / "meta.yaml").write_text(f"experiment_id: '0'\nlifecycle_stage: {stage}\n")
        for key, value in tags.items():
            (place / key).write_text(value)
    (path / "0" / "meta.yaml").write_text("")


class _Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: dict[str, Any] = {"experiments": [{"experiment_id": "0"}]}
        if self.path.endswith("/runs/search"):
            wanted = [(run, tags) for run, tags, stage in RUNS if stage == "active"]
            rows = [
                {"info": {"run_id": run}, "data": {"tags": [{"key": key} for key in tags]}}
                for run, tags in wanted
                if f"'{tags['ftrun.run']}'" in asked["filter"]
            ]
            answer = {"runs": rows}
        body = json.dumps(answer).encode()
        self.send_response(200 if self.headers["Authorization"] == "Bearer t" else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def server() -> Iterator[str]:
    one = HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02}).start()
    yield f"http://127.0.0.1:{one.server_address[1]}"
    one.shutdown()
    one.server_close()


def test_the_one_live_run_that_bears_the_tag_is_found_wherever_mlflow_keeps_its_runs(
    tmp_path: Path, server: str
) -> None:
    """Not its children, not a deleted one, not another's."""
    database(tmp_path / "my runs.db", RUNS)
    folders(tmp_path / "my runs")
    for uri in (
        f"sqlite:///{tmp_path}/my runs.db",
        f"{tmp_path}/my runs",
        f"file://{tmp_path}/my%20runs",
        server,
    ):
        assert ["a" * 32] == mlflow_run.runs_named(
            NAME, {"MLFLOW_TRACKING_URI": uri, "MLFLOW_TRACKING_TOKEN": "t"}
        )
    assert [] == mlflow_run.runs_named(NAME, {"MLFLOW_TRACKING_URI": "postgresql://db/x"})


@pytest.mark.parametrize("uri", ["sqlite:////none/x.db", "/none", "http://127.0.0.1:9/", "sqlite:///garbage"])
def test_a_store_that_cannot_be_asked_gives_no_run_and_costs_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], uri: str
) -> None:
    (tmp_path / "garbage").write_text("no database")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    assert 0 == mlflow_run.main([NAME])
    assert "" == capsys.readouterr().out


def test_a_later_start_is_told_the_run_and_a_first_one_asks_nobody(attempt: Attempt) -> None:
    """The id is set only where the run is there: MLflow ends a script that names another."""
    attempt.values["tools"] = Path(zipapp.build_zipapp(str(attempt.run_dir))).name
    database(attempt.folder / "mlflow.db", RUNS)

    assert "MLFLOW_RUN_ID" not in told(attempt)
    again(attempt)
    found = told(attempt)
    assert "a" * 32 == found["MLFLOW_RUN_ID"]
    assert "MLFLOW_RUN_ID" in found["FTRUN_TRACKED"].split()


def test_where_several_runs_bear_the_tag_none_is_told(attempt: Attempt) -> None:
    """A script that begins one for training and one for evaluation, or one a rank."""
    attempt.values["tools"] = Path(zipapp.build_zipapp(str(attempt.run_dir))).name
    database(attempt.folder / "mlflow.db", [*RUNS, ("e" * 32, {"ftrun.run": NAME}, "active")])
    again(attempt)

    assert "MLFLOW_RUN_ID" not in told(attempt)
