"""Notices of real runs on a real Slurm, to a web server on loopback: one gives up, one finishes, one recovers and a node is drained."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import OFF_THE_BUS, Post

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

SECRET = "s3cr3t-path"


class Site(HTTPServer):
    """A web server that keeps the notices it gets; `code` is its answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.code = 200
        self.asked = 0
        self.notices: list[dict[str, Any]] = []

    def kinds(self, run: str) -> list[str]:
        return [one["kind"] for one in self.notices if one["run"] == run]


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        if self.server.code == 200:
            self.server.notices += told["notices"]
        self.send_response(self.server.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}).start()
    yield one
    one.shutdown()
    one.server_close()


@pytest.fixture
def post(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post], site: Site, tmp_path: Path
) -> Post:
    file = tmp_path / "notify"
    file.write_text(f"http://127.0.0.1:{site.server_address[1]}/{SECRET} key={SECRET}\n")
    file.chmod(0o600)
    settings = f"notify = '{file}'\nnotify-now = 'all'\nnotify-per-hour = 50\nretries = 1\n"
    return make_post(make_sandbox(nodes=3), settings)


def everything_written(post: Post) -> str:
    return "".join(path.read_text(errors="replace") for path in post.home.rglob("*") if path.is_file())


def test_a_run_that_gives_up_and_one_that_finishes_are_told(post: Post, site: Site) -> None:
    """Each once, by the process that a supervisor started; the URL is in no file of the home and in no command's output."""
    post.supervise()
    fails = post.sbatch("echo boom\nexit 3\n", "-N1", "--ft-agent=never", name="fails.sh")
    ends = post.sbatch("exit 0\n", "-N1", name="ends.sh")
    lost, won = post.until_state("stopped", job=fails), post.until_state("finished", job=ends)
    post.until(lambda: {"gave-up"} <= set(site.kinds(lost.id)), "the give-up is told", every_s=0.5)
    post.until(lambda: site.kinds(won.id) == ["finished"], "the end is told", every_s=0.5)
    (gave_up,) = (one for one in site.notices if one["kind"] == "gave-up")
    assert gave_up["what"].startswith(f"{lost.id}: gave up: ")
    assert "You: " in gave_up["then"]

    assert "sent" in post.ftrun("notify", "--test")
    shown = post.ftrun("status", "--all", code=None) + post.ftrun("notify")
    assert SECRET not in shown + everything_written(post)
    assert len({one["id"] for one in site.notices}) == len(site.notices)


def test_a_receiver_that_is_down_is_told_in_status_and_gets_all_later(post: Post, site: Site) -> None:
    site.code = 503
    post.supervise()
    ends = post.sbatch("exit 0\n", "-N1", name="ends.sh")
    run = post.until_state("finished", job=ends)
    post.until(lambda: site.asked >= 2, "it was tried again", every_s=1)
    post.until(lambda: "it answered 503" in post.ftrun("status", code=None), "status says so", every_s=2)
    site.code = 200
    post.until(lambda: site.kinds(run.id) == ["finished"], "it arrives", every_s=1)


def test_a_node_that_slurm_lost_is_told_with_what_to_do(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post], site: Site, tmp_path: Path
) -> None:
    """The fault, the drain and the end, in this order; who is to act reads which node."""
    file = tmp_path / "notify"
    file.write_text(f"http://127.0.0.1:{site.server_address[1]}/{SECRET}\n")
    file.chmod(0o600)
    box = make_sandbox(nodes=3)
    post = make_post(box, f"notify = '{file}'\nnotify-now = 'all'\nnotify-per-hour = 50\nfence-wait = 1\n")
    post.supervise()
    post.sbatch(
        f'[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; sleep 300; }}\nexit 0\n',
        "--ft-fault-grace=10m",
    )
    post.until(lambda: "evidence" in post.kinds(), "the line is seen")
    (node,) = post.run().attempts[0].nodes
    box.crash(node)
    run = post.until_state("finished")
    post.until(lambda: "finished" in site.kinds(run.id), "the end is told", every_s=0.5)

    assert ["fault", "drained", "finished"] == site.kinds(run.id)
    (drained,) = (one for one in site.notices if one["kind"] == "drained")
    assert [node] == drained["nodes"]
    assert f"have {node} repaired" in drained["then"]
