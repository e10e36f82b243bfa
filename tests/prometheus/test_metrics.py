"""A real Prometheus reads the metrics: every expression of the dashboard and the alerts has an answer, each alert fires."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.publish import series
from ftrun.supervisor.publish.metrics import samples_text
from ftrun.supervisor.site import publication
from ftrun.supervisor.site.standing import Event, Report, SiteRules, fold, quarantined
from ftrun.supervisor.store import journal, run_dir, submission_context
from tests.unit.told_runs import Told

pytestmark = pytest.mark.prometheus

SHIPPED = Path(__file__).resolve().parents[2] / "supervisor" / "publish"
DEADLINE_S = 90.0
SCRAPE = "1s"
WINDOWS = re.compile(r"\[(\d+[mhd]|\$__rate_interval)\]")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def wait_for(met: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> Any:
    until_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if found := met():
                return found
        assert time.monotonic() < until_s, what
        time.sleep(0.5)


class Server:
    """A Prometheus that scrapes these ports every second, with these rules."""

    def __init__(self, folder: Path, ports: Sequence[int], rules: str) -> None:
        self.port = free_port()
        targets = [f"127.0.0.1:{port}" for port in ports]
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(
            f"global: {{scrape_interval: {SCRAPE}, evaluation_interval: 1s}}\nrule_files: [rules.yml]\n"
            f"scrape_configs: [{{job_name: ftrun, static_configs: [{{targets: {targets}}}]}}]\n"
        )
        checked = ["promtool", "check", "config", str(folder / "prometheus.yml")]
        subprocess.run(checked, check=True, capture_output=True, timeout=60)
        words = (
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )
        self.log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(["prometheus", *words], stderr=self.log, stdout=self.log)

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[Any]:
        return list(self.ask("query", query=expression)["result"])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


class Runs:
    """Runs whose journals are written in time: what happened lies before now, and more happens while Prometheus looks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.now_s = time.time()

    def write(self, name: str, told: Told, *, since_s: float, cwd: Path) -> None:
        """`since_s`: how long ago the story began."""
        folder = run_dir.create_run(str(self.home), name)
        context = submission_context.capture() | {"cwd": str(cwd), "settings": {}}
        Path(folder, "submit", "context.json").write_text(json.dumps(context))
        self.go_on(Path(folder), told, since_s=since_s)

    def go_on(self, folder: Path, told: Told, *, since_s: float, known: int = 0) -> None:
        """Append what the run's journal does not know yet."""
        later_s = self.now_s - since_s - 1000.0
        lines = []
        for record in told.records[known:]:
            data = dict(record["data"])
            data |= {key: told_s + later_s for key, told_s in data.items() if key.endswith("at_s")}
            lines.append(journal.record_line({**record, "at": record["at"] + later_s, "data": data}))
        with (folder / "journal" / "000000-submit.jsonl").open("ab") as stream:
            stream.write(b"".join(lines))


def trained(settings: dict[str, Any], *, queued_s: float, until_s: float, faults: int) -> Told:
    """A run that waited, failed so often, and then went on until that second."""
    told = Told(**settings)
    told.opens(0)
    told.runs(queued_s)
    at_s, step = queued_s, 0
    for _ in range(faults):
        for _ in range(5):
            at_s, step = at_s + 60, step + 60
            told.steps(at_s, step)
        told.fails(at_s + 30, sign_s=at_s + 20, step=step + 20)
        told.opens(at_s + 40)
        told.runs(at_s + 100)
        at_s, step = at_s + 160, step - 100
        told.say(at_s, "launch.progress", step=step, step_s=1.0, total=100_000, loss=2.0, first_step=True)
    while at_s + 60 < until_s:
        at_s, step = at_s + 60, step + 60
        told.steps(at_s, step)
    return told


@pytest.fixture
def home(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FTRUN_")}
    env |= {
        "FTRUN_HOME": str(folder),
        "XDG_CONFIG_HOME": str(tmp_path),
        "FTRUN_METRICS_PORT": str(free_port()),
    }
    return folder, env


def site_of(now_s: float) -> http.server.ThreadingHTTPServer:
    """What the site's service publishes, as a text file that a server shows: a node that two users blame, one placed last."""
    told = [
        Report(str(uid), uid, f"p{uid}", "n1", "7", "hardware-gpu", "s", 0.9, now_s - 60.0) for uid in (1, 2)
    ]
    events = [Event("q", "n2", now_s - 60.0, "quarantined", {"until_s": now_s + 1e5})]
    nodes = fold(told, events, now_s, SiteRules())
    last = quarantined(nodes, now_s, 9, SiteRules())
    found = publication.samples(nodes, last, publication.month_of(told, events, 1), now_s)
    text = samples_text(found, {"cluster": "c"})
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

    class Told(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def expressions_of_the_dashboard() -> list[str]:
    """Each expression, with the variables that Grafana would put in."""
    told = json.loads((SHIPPED / "dashboard.json").read_text())
    found = [target["expr"] for panel in told["panels"] for target in panel.get("targets", ())]
    found += [one["expr"] for one in told["annotations"]["list"]]
    return [expression.replace("$user", ".*").replace("$run", ".*") for expression in found]


def _runs_of_a_day(folder: Path, cwd: Path) -> tuple[Runs, Any]:
    """A run that trains, one in doubt, one that will fail, and a bad node of three days; the one that will fail is returned."""
    (cwd / "ckpt").mkdir(parents=True)
    checkpoint = cwd / "ckpt" / "step-100.pt"
    checkpoint.write_bytes(b"x" * 100)
    old_s = time.time() - 6 * 3600
    os.utime(checkpoint, (old_s, old_s))
    runs = Runs(folder)
    settings = {"checkpoint": "ckpt/step-*.pt", "retries": 1, "nodes": "2-4"}
    runs.write("train", trained(settings, queued_s=6000, until_s=9000, faults=4), since_s=4 * 3600, cwd=cwd)
    doubtful = trained({}, queued_s=60, until_s=3000, faults=1)
    doubtful.say(3000, "fault.suspected", signature="s", title="t", key="k")
    fails = trained({}, queued_s=60, until_s=600, faults=0)
    runs.write("fails", fails, since_s=700, cwd=cwd)
    runs.write("doubt", doubtful, since_s=3000, cwd=cwd)
    for number in range(3):
        at_s = time.time() - 86_400 * number
        more = {
            "id": f"e{number}",
            "run": f"r{number}",
            "signature": "nvidia-xid-79",
            "fault": "hardware-gpu",
        }
        entry = NodeEntry(at_s, "incident", ("n1",), detail={"incident": "1.0", "strike": True}, **more)
        assert ledger.append_entries(str(folder), entry, writer="test")
    return runs, fails


def test_every_expression_has_an_answer_and_each_alert_fires_on_a_real_prometheus(
    home: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """The runs are journals replayed in time; windows and waits are shortened, since nobody waits a day here."""
    folder, env = home
    cwd = tmp_path / "job"
    runs, fails = _runs_of_a_day(folder, cwd)
    rules = (SHIPPED / "alerts.yml").read_text()
    subprocess.run(["promtool", "check", "rules", str(SHIPPED / "alerts.yml")], check=True, timeout=60)
    names = re.findall(r"alert: (\w+)", rules)
    assert len(set(names)) == len(names) == 12
    site = site_of(time.time() - 1000.0)
    publisher = subprocess.Popen(
        [sys.executable, "-P", "-m", "ftrun.supervisor.publish"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    server = Server(
        tmp_path,
        [int(env["FTRUN_METRICS_PORT"]), site.server_port],
        re.sub(r"for: \w+", "for: 1s", rules).replace("> 600", "> 15"),
    )
    try:
        assert publisher.stdin is not None
        publisher.stdin.write(b".")
        publisher.stdin.flush()
        wait_for(lambda: server.series('ftrun_run_step{run="train-0001"}'), "nothing was scraped")
        late = trained({}, queued_s=60, until_s=0, faults=12)
        late.say(9000, "drain.done", node="n1", incident="1.0")
        late.fails(9010, sign_s=9005, step=10, fault="library-bug")
        late.say(9020, "run.stopped", reason="no retry is left", **{"class": "library-bug"})
        runs.write("late", late, since_s=9030, cwd=cwd)
        known = len(fails.records)
        fails.fails(650, sign_s=640, step=590)
        runs.go_on(folder / "runs" / "fails-0001", fails, since_s=700, known=known)
        wait_for(
            lambda: server.series("sum(increase(ftrun_incidents_total[1h])) > 10"), "no increase was seen"
        )

        empty = [one for one in expressions_of_the_dashboard() if not _answers(server, one)]
        assert empty == []

        def fired() -> bool:
            found = {
                one["labels"]["alertname"]
                for one in server.ask("alerts")["alerts"]
                if one["state"] == "firing"
            }
            return set(names) <= found

        wait_for(fired, f"{server.ask('alerts')}")
    finally:
        server.stop()
        site.shutdown()
        site.server_close()
        publisher.communicate(timeout=60)
    assert publisher.returncode == 0


def _answers(server: Server, expression: str) -> bool:
    """Whether it returns a series that is a number, over windows that fit a test of seconds."""
    shorter = WINDOWS.sub("[2m]", expression)
    found = server.series(shorter)
    return bool(found) and any(one["value"][1] != "NaN" for one in found)


FULL_AND_READ_ONLY = """
mount -t tmpfs -o size=8k tmpfs "$1" && head -c 8192 /dev/zero >"$1/fill"
mount --bind "$2" "$2" && mount -o remount,ro,bind "$2"
for folder in "$1" "$2"; do
    FTRUN_METRICS_FOLDER=$folder "$3" -P -m ftrun.supervisor.publish </dev/null || exit 1
    ls "$folder"
done
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a full and a read-only folder: as root")
def test_a_full_folder_and_a_read_only_one_are_a_line_and_nothing_is_left_there(
    home: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    _, env = home
    folders = [tmp_path / "full", tmp_path / "locked"]
    for one in folders:
        one.mkdir()
    words = ["unshare", "-m", "sh", "-c", FULL_AND_READ_ONLY, "sh", *map(str, folders), sys.executable]
    del env["FTRUN_METRICS_PORT"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    told = [
        json.loads(line)["problems"]["metrics"] for line in done.stdout.splitlines() if "problems" in line
    ]
    assert {line.rpartition(": ")[2] for line in told} == {"No space left on device", "Read-only file system"}
    assert [line for line in done.stdout.splitlines() if "problems" not in line] == ["fill"]


def test_promtool_finds_nothing_to_change_in_the_format(
    home: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, env = home
    Runs(folder).write("train", trained({}, queued_s=60, until_s=900, faults=1), since_s=900, cwd=tmp_path)
    command = [sys.executable, "-m", "ftrun.supervisor", "metrics"]
    told = subprocess.run(command, env=env, capture_output=True, check=True, timeout=60)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=told.stdout, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_rules_fire_after_their_time_and_not_before() -> None:
    """promtool plays hours in a moment: the waits of the rules as they are shipped."""
    tested = Path(__file__).parent / "alerts.test.yml"
    done = subprocess.run(
        ["promtool", "test", "rules", str(tested)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_names_only_series_that_exist_and_draws_each_in_a_panel_of_its_own() -> None:
    told = json.loads((SHIPPED / "dashboard.json").read_text())
    used = set(
        re.findall(r"ftrun_[a-z_]+", json.dumps([told["panels"], (SHIPPED / "alerts.yml").read_text()]))
    )
    plain = {re.sub("_bucket$", "", name) for name in used}
    assert plain <= set(series.NAMES)
    assert {"ftrun_build_info"} == set(series.NAMES) - plain, "each series is drawn"
    places = [one["gridPos"] for one in told["panels"]]
    cells = [
        (x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells)), "no panel lies on another"
    assert max(x for x, _ in cells) < 24
    assert len({one["id"] for one in told["panels"]}) == len(told["panels"])
    for panel in told["panels"]:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(letters)) == len(letters)
