"""Fixtures for tests on real Slurm: a sandbox for the session, and a factory for sandboxes of their own; the order of files.

A machine without Slurm fails these tests, it does not skip them: a proof that did not run is none.
Side by side (`./test`) the files that take longest begin first, so that none of them is left alone at the end.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.slurm.sandbox.plan import SandboxError
from tests.told import hide

hide()

# How long an example takes says how busy the machine is, and is no law of any property. `--hypothesis-profile hundred` tries more of them.
settings.register_profile("hundred", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", settings.get_profile("hundred"), max_examples=25)
settings.load_profile("any machine")

# No test takes the power away, so what waits for a disk in this process proves nothing; where many write it waits for minutes in all.
for _name in ("fsync", "fdatasync"):
    setattr(os, _name, lambda _descriptor: None)

DEADLINE_S = 900.0  # of one test, of its fixtures and of its clean-up: some five times what the longest takes on a machine with 2 busy cores

LEFT_OUT = (
    "drills",
    "formats",
    "accounting",
    "vendors",
    "cluster",
    "browser",
    "containers",
    "board",
    "prometheus",
    "trackers",
)  # markers of what takes minutes

# The files that take more than about 10 s on a machine with 2 cores: the longest first, by the processor time of all their processes,
# and those that mostly wait for Slurm (release, contract, operator, sandbox) between those that compute.
BEGIN_WITH = (
    "slurm/test_supervisor.py",
    "slurm/test_equivalence.py",
    "slurm/test_adopt.py",
    "simulation/test_lives.py",
    "simulation/test_simulation.py",
    "slurm/test_drills.py",
    "slurm/test_release.py",
    "slurm/test_contract.py",
    "slurm/test_site.py",
    "slurm/test_leaving.py",
    "slurm/test_sandbox.py",
    "slurm/test_companions.py",
    "slurm/test_crashes.py",
    "slurm/test_agent.py",
    "slurm/test_spans.py",
    "slurm/test_preflight.py",
    "slurm/test_queue.py",
    "slurm/test_elastic.py",
    "unit/ranks/test_fencing.py",
    "unit/bundle/test_batch_sh.py",
    "slurm/test_stage.py",
    "slurm/test_sandbox_cli.py",
    "unit/bundle/test_starts_sh.py",
    "slurm/test_stage_restore.py",
    "slurm/test_shapes.py",
    "unit/checkpoints/test_pick_sh.py",
    "slurm/test_sbatch.py",
    "slurm/test_first_days.py",
    "slurm/test_step_logs.py",
    "slurm/test_containers.py",
    "slurm/test_starts.py",
    "unit/bundle/test_beat.py",
    "slurm/test_preempted.py",
    "slurm/test_nodes.py",
    "slurm/test_companion_job.py",
    "unit/tools/test_spans_sh.py",
    "unit/submission/test_companion_form.py",
    "slurm/test_rank_steps.py",
    "slurm/test_spares.py",
    "unit/controller/test_beside.py",
    "slurm/test_choosing.py",
    "slurm/test_agent_deaths.py",
    "slurm/test_agent_crashes.py",
    "slurm/test_diagnose_job.py",
    "slurm/test_nodes_of_a_job.py",
    "unit/policy/test_elastic_growth.py",
    "unit/staging/test_staging_publish.py",
    "slurm/test_probe.py",
    "unit/cli/test_simulate.py",
    "unit/policy/test_save_request.py",
    "unit/controller/test_hanging.py",
    "unit/bundle/test_rank.py",
    "unit/agent/test_agent.py",
    "slurm/test_caches.py",
    "slurm/test_spanning.py",
    "slurm/test_pool.py",
    "unit/health/test_slurm_hooks.py",
    "slurm/test_slurm_hooks.py",
    "slurm/test_agent_companion.py",
    "unit/diagnosis/test_pipeline.py",
    "falsealarms/test_smoke_hangs.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=6, help="simulation: how many lives")
    parser.addoption("--stride", type=int, default=12, help="simulation: every Nth place at which to die")
    parser.addoption("--from", type=int, default=0, help="simulation: the seed of the first of them")
    parser.addoption(
        "--deadline-s", type=float, default=DEADLINE_S, help="a test that takes longer fails; 0 = none"
    )
    parser.addoption("--seed", type=int, default=None, help="simulation: replay this life and tell its story")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs the Slurm packages (./test installs them)")
    config.addinivalue_line(
        "markers", "drills: takes minutes; left out unless asked for (-m drills, make drills)"
    )
    config.addinivalue_line(
        "markers", "browser: pages in a real headless Chromium; left out unless asked for (make test-browser)"
    )
    config.addinivalue_line(
        "markers", "board: the board of ftrun top in a real tmux; left out unless asked for (make test-board)"
    )
    config.addinivalue_line(
        "markers",
        "formats: checkpoints written anew by the real libraries; left out unless asked for (make test-formats)",
    )
    config.addinivalue_line(
        "markers",
        "accounting: on a slurmdbd with a MariaDB; left out unless asked for (make test-accounting)",
    )
    config.addinivalue_line(
        "markers",
        "vendors: scripts and options of other services; left out unless asked for (make test-vendors)",
    )
    config.addinivalue_line(
        "markers", "trackers: real trackers of experiments; left out unless asked for (make test-trackers)"
    )
    config.addinivalue_line(
        "markers", "cluster: many ups and downs of a cluster; left out unless asked for (make test-cluster)"
    )
    config.addinivalue_line(
        "markers", "containers: needs podman; left out unless asked for (make test-containers)"
    )
    config.addinivalue_line(
        "markers", "prometheus: needs a Prometheus; left out unless asked for (make test-metrics)"
    )
    if hasattr(config.option, "loadscopereorder"):
        # xdist would begin with the files of most tests, which are short.
        config.option.loadscopereorder = False
    if not getattr(
        config.option, "numprocesses", None
    ):  # this process runs tests: xdist's controller runs none
        _trap_ignored_signals()


def _trap_ignored_signals() -> None:
    """Let children have each signal as a terminal's child has it: a shell cannot trap what was ignored when it began.

    `nohup` ignores SIGHUP, a script's background SIGINT and SIGQUIT. A handler is not inherited across exec, so a child begins
    with the default; this process still outlives the signal. Python itself ignores SIGPIPE and SIGXFSZ, and resets them for children.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number is signal.SIGINT else lambda *_: None
            signal.signal(number, usual)


@contextlib.contextmanager
def _deadline(item: pytest.Item) -> Iterator[None]:
    """A test that waits for ever fails with the line where it waits. What takes minutes has no limit (LEFT_OUT)."""
    limit_s = item.config.getoption("--deadline-s")
    long = any(item.get_closest_marker(name) for name in LEFT_OUT)
    if long or threading.current_thread() is not threading.main_thread():
        yield
        return

    def fail(*_: object) -> None:
        pytest.fail(f"not over after {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 30.0)  # again where its clean-up waits, too
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Give its fixtures a deadline."""
    with _deadline(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Give the test itself a deadline."""
    with _deadline(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Give its clean-up a deadline."""
    with _deadline(item):
        return (yield)


def pytest_collection(session: pytest.Session) -> None:
    """Let each of several workers begin with other files: what one has compiled the others load.

    In a fresh clone they would else compile every file at the same time, each for itself. `_in_order` puts the tests in one order again.
    """
    config, here = session.config, Path(__file__).parent
    if not hasattr(config, "workerinput") or [Path(one).absolute() for one in config.args] != [here]:
        return
    files = sorted(str(path) for path in here.rglob("test_*.py"))
    worker = int(config.workerinput["workerid"].removeprefix("gw"))
    begin = len(files) * worker // config.workerinput["workercount"]
    config.args = files[begin:] + files[:begin]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long proofs out of an ordinary run; of several workers, each has the files in the order in which to begin them."""
    unasked = {name for name in LEFT_OUT if name not in config.option.markexpr}
    long = [item for item in items if any(mark.name in unasked for mark in item.iter_markers())]
    if long:
        config.hook.pytest_deselected(items=long)
        gone = {*long}
        items[:] = [item for item in items if item not in gone]
    if hasattr(config, "workerinput"):
        _in_order(items)


def _in_order(items: list[pytest.Item]) -> None:
    """Sort files, not the tests in them: those of the table, then the others by their number of tests."""
    here = Path(__file__).parent
    ranks = {here / name: rank for rank, name in enumerate(BEGIN_WITH)}
    tests = collections.Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int, str]:
        """What is not listed begins behind the list: first what waits for a Slurm, for one of these at the very end keeps all waiting."""
        waits = item.path.parent.name == "slurm"
        return ranks.get(item.path, len(ranks) + (not waits)), -tests[item.path], str(item.path)

    items.sort(key=place)


def _new_folder() -> Path:
    # Not tmp_path: Unix sockets need a short path, and jobs of other users must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    return folder


def _up(folder: Path, options: dict[str, Any]) -> Sandbox:
    try:
        return up(folder, **options)
    except SandboxError as error:
        pytest.fail(f"no sandbox: {error}. ./test installs what the tests need.", pytrace=False)


def _remove(folder: Path) -> None:
    try:
        Sandbox.load(folder).down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_sandbox() -> Iterator[Sandbox]:
    """Four nodes with two GPUs each, shared by all tests of the session: leave it as you found it."""
    folder = _new_folder()
    # In a log no job's number is an exit code or a count by chance; and no two workers have jobs of one number: processes are told by it.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    box = _up(folder, {"nodes": 4, "gpus": 2, "conf": {"FirstJobId": str(20_001 + 10_000 * worker)}})
    yield box
    _remove(box.folder)


@pytest.fixture
def make_sandbox() -> Iterator[Callable[..., Sandbox]]:
    """Make sandboxes of the test's own, with the options of `up`; all are taken down after the test."""
    folders: list[Path] = []

    def make(**options: Any) -> Sandbox:
        folders.append(_new_folder())
        return _up(folders[-1], options)

    yield make
    for folder in folders:
        if (folder / "sandbox.json").exists():
            _remove(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
