"""Hosts and clusters for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.hosts import ALICE, Hosts


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Three hosts, or HOST_COUNT of the module, with a cron if it has CRON; each test leaves them without a cluster."""
    count, cron = getattr(request.module, "HOST_COUNT", 3), getattr(request.module, "CRON", False)
    yield from made(count, ALICE, cron=cron)


@pytest.fixture
def hosts_of_root() -> Iterator[Hosts]:
    """Two hosts on which root says what is said."""
    yield from made(2, "root")


@pytest.fixture(scope="module")
def living(hosts: Hosts) -> Iterator[Hosts]:
    """As `cluster`, one for all tests of a module that only look: they stand last in it."""
    done = hosts.ftrun("h1", "cluster", "up", "h[1-3]")
    assert 0 == done.returncode, done.stderr
    yield hosts
    hosts.ftrun("h1", "cluster", "down", "--force")


@pytest.fixture
def cluster(hosts: Hosts) -> Iterator[Hosts]:
    """The hosts with a cluster on the first three of them."""
    done = hosts.ftrun("h1", "cluster", "up", "h[1-3]")
    assert 0 == done.returncode, done.stderr
    yield hosts
    hosts.ftrun("h1", "cluster", "down", "--force")


def made(count: int, user: str, *, cron: bool = False, hidden: Sequence[str] = ()) -> Iterator[Hosts]:
    """`count` hosts, until the test that asked for them is over."""
    if os.geteuid():
        pytest.skip("hosts are network namespaces, which root alone can make")
    folder = Path(tempfile.mkdtemp(prefix="ftrun-hosts-"))
    folder.chmod(0o755)
    hosts = Hosts(folder, count, user, hidden, cron=cron)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()
        shutil.rmtree(folder, ignore_errors=True)
