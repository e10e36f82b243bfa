"""Hosts that call each other, as addresses of the loopback with real sockets."""

from __future__ import annotations

import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.cluster.reach import reach
from ftrun.supervisor.cluster import findings

H1, H2 = "127.0.0.2", "127.0.0.3"
HOSTS = {H1: H1, H2: H2}


@pytest.fixture
def step(tmp_path: Path) -> dict[str, Any]:
    """The request to the first host, with ports that are free."""
    first = random.randrange(20_000, 30_000, 3)
    return {"own": H1, "hosts": HOSTS, "ports": [first, first + 1, first + 2], "shared": str(tmp_path), "token": "t",
            "limit_s": 1.0, "late_s": 4.0}  # fmt: skip


def _topics(answer: dict[str, Any]) -> list[str]:
    found = findings.of_reach({H1: answer}, "/mnt")
    return [one.topic for one in found if one.level == findings.BAD]


def test_a_host_that_begins_late_is_waited_for(step: dict[str, Any]) -> None:
    """A refused call is no firewall, and the early one stays until the late one has called all of its ports."""

    def late(step: dict[str, Any]) -> dict[str, Any]:
        time.sleep(2.5)
        return reach({**step, "own": H2})

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(reach, step), pool.submit(late, step)]
    assert [[], []] == [_topics(one.result()) for one in both]


def test_who_never_listens_is_no_firewall(step: dict[str, Any]) -> None:
    """A refused call is told as one."""
    answer = reach(step)

    assert ({}, [H2]) == (answer["unreached"], list(answer["silent"]))
    assert "Connection refused" in answer["silent"][H2]
    assert ["ports", "shared folder"] == _topics(answer)


def test_an_address_that_nothing_comes_back_from_is_a_firewall(step: dict[str, Any]) -> None:
    """It is not waited for as long as a host that is late."""
    began_s = time.monotonic()
    answer = reach({**step, "hosts": {**HOSTS, H2: "192.0.2.1"}, "shared": "", "late_s": 30.0})

    assert [H2] == list(answer["unreached"])
    assert ["firewall"] == _topics(answer)
    assert time.monotonic() - began_s < 10


def test_a_stranger_on_a_port_is_told(step: dict[str, Any]) -> None:
    """Nobody waits for an answer of his: the host itself says which port is taken."""
    with socket.socket() as stranger:
        stranger.bind((H1, step["ports"][1]))
        stranger.listen()
        answer = reach({**step, "hosts": {H1: H1}})

    assert [step["ports"][1]] == answer["busy"]


def test_a_host_joins_only_where_all_ports_of_a_member_let_it_through(step: dict[str, Any]) -> None:
    """Of a member a connection is enough, on each port that its daemons hold."""
    with socket.socket() as slurmd:
        slurmd.bind((H2, step["ports"][1]))
        slurmd.listen()
        members = {H2: [step["ports"][1]]}
        served = {H2: [step["ports"][1], step["ports"][2]]}
        common = {**step, "shared": "", "late_s": 1.0}
        answers = [reach({**common, "members": one}) for one in (members, served)]

    assert [[], [H2]] == [list(one["silent"]) for one in answers]
