"""Laws of testing the network in pairs: a bad node is named, a good one never; and workers that really do it, on addresses of the loopback. (I/O)"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.health import pair_test
from ftrun.hooks.health.pair_test import Measurement, Pair
from ftrun.hooks.health.rendezvous import BoardServer, FolderBoard, SocketBoard, wait_for_notes
from ftrun.hooks.main import main
from ftrun.hooks.runtime.finding import BAD, OK, UNKNOWN

NODES = st.integers(0, 33).map(lambda count: [f"n{number}" for number in range(count)])


@given(NODES)
def test_every_node_is_tried_once_and_in_one_try_at_a_time(nodes: list[str]) -> None:
    """The last of an odd number with the first, in a step of its own; a node is client or server of a round, never both."""
    plan = pair_test.first_round(nodes)
    tried = [node for pair in plan for node in (pair.client, pair.server)]

    assert set(nodes if len(nodes) > 1 else ()) == set(tried)
    assert len(tried) == len(nodes) + len(nodes) % 2 or len(nodes) < 2
    _assert_steps_are_free(plan)


def _assert_steps_are_free(plan: tuple[Pair, ...]) -> None:
    for _, of_step in itertools.groupby(sorted(plan, key=lambda pair: pair.step), key=lambda pair: pair.step):
        at_once = [node for pair in of_step for node in (pair.client, pair.server)]
        assert len(set(at_once)) == len(at_once)
    assert not {pair.client for pair in plan} & {pair.server for pair in plan}


class World:
    """Nodes with a speed each, some cut off; noise from a fixed table."""

    def __init__(self, speeds: dict[str, float], dead: set[str], noise: list[float]) -> None:
        self.speeds, self.dead, self.noise = speeds, dead, itertools.cycle(noise or [1.0])

    def tried(self, plan: tuple[Pair, ...]) -> dict[Pair, Measurement]:
        return {pair: self._try(pair) for pair in plan}

    def _try(self, pair: Pair) -> Measurement:
        if {pair.client, pair.server} & self.dead:
            return Measurement(why="no connection: timed out")
        return Measurement(min(self.speeds[pair.client], self.speeds[pair.server]) * next(self.noise), 2e-5)

    def outcome(self) -> pair_test.Outcome:
        first = self.tried(pair_test.first_round(list(self.speeds)))
        plan = pair_test.second_round(first, 0.5, 10.0)
        _assert_steps_are_free(plan)
        return pair_test.evaluate(first, self.tried(plan))


@given(st.data(), st.integers(2, 24), st.lists(st.floats(0.8, 1.2), max_size=9))
def test_no_good_node_is_ever_named_and_a_minority_of_bad_ones_always(
    data: st.DataObject, count: int, noise: list[float]
) -> None:
    """Whatever is slow or cut off; all of them are named where most tries went well."""
    nodes = [f"n{number}" for number in range(count)]
    slow = data.draw(st.sets(st.sampled_from(nodes)))
    dead = data.draw(st.sets(st.sampled_from(nodes)))
    found = World({node: 1e8 if node in slow else 1e10 for node in nodes}, dead, noise).outcome()

    assert set(found.bad) <= slow | dead
    assert not (found.bad and found.site)
    if len(slow | dead) * 4 < count:
        assert slow | dead == set(found.bad)
        assert () == found.untried


def test_two_nodes_that_differ_name_nobody() -> None:
    """There is no third to tell which of them it is."""
    found = World({"n0": 1e10, "n1": 1e10}, {"n1"}, []).outcome()

    assert {} == found.bad
    assert ("n0", "n1") == found.untried
    assert "a matter of the network" in found.site


def test_a_way_that_is_bad_between_two_good_nodes_is_told() -> None:
    """Both are well with others."""
    first = {pair: Measurement(1e10, 2e-5) for pair in pair_test.first_round(["n0", "n1", "n2", "n3"])}
    first[Pair("n2", "n3")] = Measurement(why="no connection: timed out")
    second = {pair: Measurement(1e10, 2e-5) for pair in pair_test.second_round(first, 0.5, 10.0)}
    found = pair_test.evaluate(first, second)

    assert ({}, (("n2", "n3"),)) == (found.bad, found.between)


def test_a_slow_answer_counts_like_a_slow_link() -> None:
    """A round trip many times longer than most."""
    first = {pair: Measurement(1e10, 2e-5) for pair in pair_test.first_round([f"n{n}" for n in range(6)])}
    first[Pair("n4", "n5")] = Measurement(1e10, 9e-4)
    (other, sick) = pair_test.second_round(first, 0.5, 10.0)
    found = pair_test.evaluate(first, {other: Measurement(1e10, 2e-5), sick: Measurement(1e10, 9e-4)})

    assert {"n5": "900 us for a round trip, most others need 20"} == found.bad


def test_a_suspect_without_a_second_try_is_unknown() -> None:
    """Nothing that did not happen is held against a node."""
    first = {pair: Measurement(1e10, 2e-5) for pair in pair_test.first_round(["n0", "n1", "n2", "n3"])}
    first[Pair("n2", "n3")] = Measurement(why="no result came")
    found = pair_test.evaluate(first, {})

    assert ({}, ("n2", "n3")) == (found.bad, found.untried)


# A worker whose network takes little: it reads and writes 16 KiB every 20 ms.
SLOW = """
import sys, time
from ftrun.hooks import main
from ftrun.hooks.health import pair_test

def pour(connection, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(bytes(1 << 14))
        time.sleep(0.02)

def swallowed(connection):
    received, began = 0, time.monotonic()
    while True:
        count = len(connection.recv(1 << 14))
        if not count:
            return received, time.monotonic() - began
        received += count
        time.sleep(0.02)

pair_test._pour, pair_test._swallowed = pour, swallowed
sys.exit(main.main(sys.argv[1:]))
"""
GENTLE = ["--seconds", "0.3", "--limit", "4", "--meet", "60", "--share", "0.1", "--slower", "10000"]


def _started(node: int, folder: Path, *, slow: bool = False) -> subprocess.Popen[str]:
    how = ["-c", SLOW] if slow else ["-m", "ftrun.hooks.main"]
    place = [
        "--folder",
        str(folder),
        "--nodes",
        "n0,n1,n2,n3,n4",
        "--node",
        f"n{node}",
        "--address",
        f"127.0.0.{node + 1}",
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    command = [sys.executable, *how, "pair-test", "--json", *place, *GENTLE]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean)


@pytest.mark.drills
def test_five_real_workers_name_the_slow_and_the_dead_node(tmp_path: Path) -> None:
    """n1 is slow, n3 stands still after it has come, n2 had the bad luck to be tried with it and is cleared."""
    workers = {3: _started(3, tmp_path)}
    try:
        wait_for_notes(FolderBoard(str(tmp_path)), "here.n3", bool, 60.0)
        workers[3].send_signal(signal.SIGSTOP)
        workers |= {node: _started(node, tmp_path, slow=node == 1) for node in (0, 1, 2, 4)}
        out, err = workers[0].communicate(timeout=180)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()
    assert out, err
    verdict = json.loads(out)

    assert {"n1", "n3"} == set(verdict["bad"]), verdict
    assert (1, [], "") == (workers[0].returncode, verdict["untried"], verdict["site"])
    told = pair_test.findings(verdict)
    assert [OK, BAD, OK, BAD, OK] == [told[f"n{node}"].severity for node in range(5)]
    assert all(one.fault for one in told.values() if one.severity == BAD)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _in_threads(nodes: list[str], rest: list[str], started: list[str]) -> dict[str, int]:
    """The exit status of a worker for each of `started`, run side by side in this process."""
    done: dict[str, int] = {}

    def work(node: str) -> None:
        done[node] = main(
            ["pair-test", "--nodes", ",".join(nodes), "--node", node, "--address", "127.0.0.1", *rest]
        )

    threads = [threading.Thread(target=work, args=(node,)) for node in started]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return done


def test_workers_meet_without_a_shared_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node keeps the notes; one that does not come is left out, and nothing is held against it."""
    monkeypatch.setenv("FTRUN_PAIRS_TOKEN", "some secret")
    for meet_s in (1, 10, 60):  # a busy machine may not bring the two together in a second
        rest = ["--board", f"127.0.0.1:{_free_port()}", "--json", *GENTLE, "--meet", str(meet_s)]
        done = _in_threads(["n0", "n1", "n2"], rest, ["n0", "n1"])
        out = capsys.readouterr().out
        verdict: dict[str, Any] = json.loads(out) if out else {}
        if verdict.get("absent") == ["n2"] and not verdict["bad"]:
            break

    assert {"n0": 0, "n1": 0} == done
    assert (["n2"], {}) == (verdict["absent"], verdict["bad"])
    assert 1 == len(verdict["pairs"])
    assert UNKNOWN == pair_test.findings(verdict)["n2"].severity


def test_an_address_of_the_loopback_is_taken_only_where_it_was_asked_for() -> None:
    """A node whose name means its own loopback would be found by nobody."""
    assert "127.0.0.2" == pair_test._address("127.0.0.2")
    assert "192.0.2.7" == pair_test._address("192.0.2.7")
    assert pair_test._address("localhost").startswith(("127.", "::1"))
    assert pair_test._address("no-such-name.invalid").count(".") == 3


def test_workers_that_do_not_find_together_give_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper of the notes is not there, or does not take a wrong token: a line, and a status of its own."""
    monkeypatch.setenv("FTRUN_PAIRS_TOKEN", "some secret")
    rest = ["--board", f"127.0.0.1:{_free_port()}", *GENTLE, "--meet", "0.3"]

    assert {"n1": 3} == _in_threads(["n0", "n1"], rest, ["n1"])
    assert capsys.readouterr().err.startswith("ftrun-hook: pair-test: 127.0.0.1:")
    keeper = BoardServer("127.0.0.1", 0, "right")
    stranger = SocketBoard("127.0.0.1", keeper.port, "wrong", 0.1)
    assert {} == stranger.notes("")
    with pytest.raises((OSError, ValueError)):
        stranger.put("here.n9", {})
    assert {} == SocketBoard("127.0.0.1", keeper.port, "right").notes("here.")
    keeper.close()


def test_wrong_usage_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is opened."""
    for words in (
        ["--nodes", "n0,n1", "--node", "n7", "--folder", str(tmp_path)],
        ["--nodes", "n0,n1", "--node", "n0"],
        ["--nodes", "n0,n1", "--node", "n0", "--board", "nowhere"],
        ["--nodes", "n0,n1", "--node", "n0", "--board", "127.0.0.1:4000"],  # and no token
    ):
        assert 2 == main(["pair-test", *words])
    assert 4 == len(capsys.readouterr().err.splitlines())
