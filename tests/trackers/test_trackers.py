"""A script that logs to a tracker is started twice by batch.sh; the tracker has one run with the whole curve. Real libraries, offline.

`make test-trackers` makes their environment. Each case says what docs/trackers.md promises of that library.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.hooks.bundle import zipapp
from ftrun.supervisor.submission.plan import _facts_of_trackers
from tests.told import told
from tests.unit.bundle.test_batch_sh import Attempt

pytestmark = pytest.mark.trackers

ROOT = Path(__file__).resolve().parents[2]
PYTHON = told("FTRUN_TRACKERS_PYTHON", str(ROOT / ".cache" / "trackers" / "bin" / "python"))
CONTEXT = {"run": "r-0001", "run_token": "ftrun:r-0001:ab12cd34"}
NAME = "r-0001-ab12cd34"

STEPS = "range(int(os.environ['FTRUN_ATTEMPT']) * 3 - 3, int(os.environ['FTRUN_ATTEMPT']) * 3 + 2)"
TOLD = "{key: os.environ[key] for key in ('FTRUN_ATTEMPT', 'FTRUN_START', 'FTRUN_LAST_FAULT')}"

WANDB = f"""
import os, wandb
run = wandb.init(project="p", config={{"lr": 0.1}})
run.config.update({TOLD}, allow_val_change=True)
for step in {STEPS}:
    run.log({{"loss": 1 / (step + 1)}}, step=step)
print("id", run.id, run.config["FTRUN_ATTEMPT"], run.config["FTRUN_LAST_FAULT"])
run.finish()
"""

MLFLOW = f"""
import os, mlflow
with mlflow.start_run() as run:
    mlflow.set_tags({TOLD})
    for step in {STEPS}:
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
    with mlflow.start_run(nested=True):
        mlflow.log_metric("of a child", 1)
print("id", run.info.run_id)
"""

COMET = f"""
import os, comet_ml
run = comet_ml.start(online=False, project_name="p")
run.log_others({TOLD})
for step in {STEPS}:
    run.log_metric("loss", 1 / (step + 1), step=step)
print("id", run.get_key())
run.end()
"""

AIM = f"""
import os, pathlib
from aim import Run
kept = pathlib.Path(os.environ["FTRUN_RUN_DIR"], "aim-hash")
run = Run(run_hash=kept.read_text() if kept.exists() else None, system_tracking_interval=None)
kept.write_text(run.hash)
run["ftrun"] = {TOLD}
for step in {STEPS}:
    run.track(1 / (step + 1), name="loss", step=step)
print("id", run.hash)
run.close()
"""

TENSORBOARD = f"""
import os
from tensorboardX import SummaryWriter
steps = {STEPS}
writer = SummaryWriter("tb/" + os.environ["FTRUN_RUN_ID"], purge_step=steps[0] if int(os.environ["FTRUN_RESTART"]) else None)
for step in steps:
    writer.add_scalar("loss", 1 / (step + 1), step)
writer.close()
print("id", os.environ["FTRUN_RUN_ID"])
"""


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    if not os.access(PYTHON, os.X_OK):
        pytest.skip("no environment with the trackers: make test-trackers")
    shell = shutil.which("dash") or "/bin/sh"
    one = Attempt(tmp_path, [shell])
    one.values["tools"] = Path(zipapp.build_zipapp(str(one.run_dir))).name
    one.values |= _facts_of_trackers("all", CONTEXT)
    one.env["WANDB_MODE"] = "offline"
    (tmp_path / "aim").mkdir()
    return one


def ids_of_two_starts(attempt: Attempt, program: str, *, before: str = "") -> list[str]:
    """What each of two attempts printed behind `id`."""
    (attempt.folder / "train.py").write_text(program)
    found = []
    for number in ("1", "2"):
        attempt.values |= {
            "attempt": number,
            "token": f"ftrun:r-0001:ab:{number}",
            "restart": str(int(number) - 1),
            "last_fault": "network" if number == "2" else "",
        }
        attempt.place.mkdir(parents=True, exist_ok=True)
        code, out, err = attempt.run(f"#!/bin/sh\n{before}\nexec {PYTHON} train.py\n")
        assert code == 0, out + err
        found += [line[3:] for line in out.splitlines() if line.startswith("id ")]
    return found


def asked(program: str, folder: Path) -> str:
    done = subprocess.run([PYTHON, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wandb_goes_on_under_one_id_and_is_told_why_it_began_again(attempt: Attempt) -> None:
    """Offline each start has a folder of its own; all bear one id, which `wandb sync` puts together in the order of their starts."""
    assert [f"{NAME} 1 ", f"{NAME} 2 network"] == ids_of_two_starts(attempt, WANDB)
    folders = [one.name for one in (attempt.folder / "wandb").glob("offline-run-*")]
    assert 2 == len(folders)
    assert {True} == {name.endswith(f"-{NAME}") for name in folders}


@pytest.mark.parametrize("where", ["sqlite", "folder", "server"])
def test_mlflow_goes_on_in_the_run_that_the_first_start_began(
    attempt: Attempt, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its tag in a database, in a folder, on a server; its children are not taken for it; steps are those of both."""
    with contextlib.ExitStack() as stack:
        if where == "folder":
            attempt.env["MLFLOW_TRACKING_URI"] = f"file://{attempt.folder}/my%20runs"
            attempt.env["MLFLOW_ALLOW_FILE_STORE"] = "true"
        if where == "server":
            attempt.env["MLFLOW_TRACKING_URI"] = stack.enter_context(mlflow_server(attempt.folder))
        first, second = ids_of_two_starts(attempt, MLFLOW)

        assert first == second
        ask = "import mlflow; c = mlflow.MlflowClient(); print([m.step for m in c.get_metric_history('<id>', 'loss')], c.get_run('<id>').data.tags['FTRUN_ATTEMPT'])"
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        if "MLFLOW_TRACKING_URI" in attempt.env:
            ask = f"import mlflow; mlflow.set_tracking_uri({attempt.env['MLFLOW_TRACKING_URI']!r}); " + ask
        assert "[0, 1, 2, 3, 4, 3, 4, 5, 6, 7] 2\n" == asked(ask.replace("<id>", first), attempt.folder)


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    store = f"sqlite:///{folder}/server.db"
    argv = [PYTHON, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--backend-store-uri", store, "--default-artifact-root", str(folder / "art"), "--workers", "1"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        until_s = time.monotonic() + 240
        while time.monotonic() < until_s and server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def test_comet_goes_on_under_one_key(attempt: Attempt) -> None:
    """Two archives of one experiment, each of which says that it may go on with an existing one."""
    first, second = ids_of_two_starts(attempt, COMET)

    assert first == second
    kept = list((attempt.folder / ".cometml-runs").glob("*.zip"))
    assert 2 == len(kept)
    for one in kept:
        said = json.loads(zipfile.ZipFile(one).read("experiment.json"))
        assert (first, "get_or_create") == (said["offline_id"], said["resume_strategy"])


def test_aim_goes_on_where_the_script_keeps_its_hash(attempt: Attempt) -> None:
    """It has no variable: two lines of the script's own."""
    first, second = ids_of_two_starts(attempt, AIM)

    assert first == second
    ask = f"from aim import Run; run = Run({first!r}, system_tracking_interval=None); print(run['ftrun', 'FTRUN_ATTEMPT'], run.close())"
    assert ["2", "None"] == asked(ask, attempt.folder).split()


def test_tensorboard_shows_what_counts_where_the_folder_stays(attempt: Attempt) -> None:
    """Steps that were done again are shown once, as the last start made them."""
    ids_of_two_starts(attempt, TENSORBOARD)
    ask = (
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "e = EventAccumulator('tb/r-0001'); e.Reload(); print([one.step for one in e.Scalars('loss')])"
    )
    assert "[0, 1, 2, 3, 4, 5, 6, 7]\n" == asked(ask, attempt.folder)
