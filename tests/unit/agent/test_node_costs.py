"""Laws of what ftrun costs a node: file operations an hour (the budget of docs/node-costs.md), and no work that grows as nodes x nodes."""

from __future__ import annotations

import builtins
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.hooks.progress import beat as beat_module
from ftrun.hooks.ranks.fence_daemon import FenceDaemon
from ftrun.hooks.staging import partner_map
from ftrun.slurm.commands.node_queries import ANSWER, ENDED, AnswerParser
from ftrun.supervisor.agent import node_checks
from ftrun.supervisor.diagnosis.node_findings import facts_from_reports
from ftrun.supervisor.policy import staging
from ftrun.supervisor.telemetry import heartbeats
from tests.falsealarms import lives, silences
from tests.unit.questions import Said

HOUR_S = 3600
DOCUMENT = Path(__file__).parents[3] / "docs" / "node-costs.md"
BY_PATH = (
    "open", "readlink", "stat", "lstat", "listdir", "scandir", "mkdir", "rename", "replace", "unlink", "symlink", "access",
)  # fmt: skip


def _budget(what: str) -> int:
    """Operations an hour, by the row of the document."""
    found = re.search(rf"^\| {re.escape(what)} \|.*\| ([\d,]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert found is not None, what
    return int(found[1].replace(",", ""))


@contextlib.contextmanager
def _operations(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is asked of the file system that holds `folder`: names of calls; a file that is opened is closed, too."""
    seen: list[str] = []
    opened: set[int] = set()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(path: Any, *args: Any, **words: Any) -> Any:
            counts = words.get("dir_fd") in opened or str(path).startswith(str(folder))
            seen.extend([name] if counts else [])
            found = call(path, *args, **words)
            if counts:
                if isinstance(found, int) and name == "open":
                    opened.add(found)
                elif name == "open":
                    seen.extend(["read", "close"])
            return found

        return instead

    def on_descriptor(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(place: int, *args: Any) -> Any:
            if place in opened:
                seen.append(name)
                opened.difference_update({place} if name == "close" else ())
            return call(place, *args)

        return instead

    with monkeypatch.context() as patch:
        for name in BY_PATH:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        for name in ("close", "pwrite"):
            patch.setattr(os, name, on_descriptor(name, getattr(os, name)))
        patch.setattr(builtins, "open", counted("open", builtins.open))
        yield seen


def _holds(what: str, count: float) -> None:
    """Neither more than the document says, nor so much less that it is wrong."""
    budget = _budget(what)
    assert 0.8 * budget <= count <= budget, (
        f"{what}: {count:.0f} operations an hour, the document says {budget}"
    )


def test_a_guard_keeps_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three operations a look, also where a question lies there that is not for this node."""
    os.symlink("1 n7", tmp_path / "asked")
    os.symlink("0.1", tmp_path / "current")
    guard = FenceDaemon(str(tmp_path), "7", "n1", "0")
    guard._seen = "0.1"  # what earlier starts left is ended
    with _operations(tmp_path, monkeypatch) as seen:
        for second in range(HOUR_S):
            guard.look(float(second))

    _holds("guard", len(seen))


@pytest.mark.parametrize(
    ("ranks", "what"), [(8, "beats of a rank"), (16_384, "beats of a rank, 16,384 ranks")]
)
def test_a_rank_that_beats_keeps_its_budget(
    ranks: int, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes its line and reads which start is the present one; more rarely the more ranks there are."""
    (tmp_path / "beats").mkdir()
    for name, value in {
        "BEAT_DIR": tmp_path / "beats",
        "ATTEMPT_DIR": tmp_path,
        "START_TOKEN": "0.1",
    }.items():
        monkeypatch.setenv(f"FTRUN_{name}", str(value))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    heart = beat_module._State()
    writer = beat_module._Writer(heart)
    os.symlink("0.1", tmp_path / "current")
    with _operations(tmp_path, monkeypatch) as seen:
        for turn in range(60):
            heart.n = turn + 1
            writer._write()
            writer._check_fence()

    _holds(what, len(seen) / 60 * HOUR_S / writer.every_s)


@pytest.mark.parametrize(
    ("ranks", "what"),
    [(8, "the agent reads beats, 8 ranks"), (512, "the agent reads beats, 256 ranks or more")],
)
def test_the_agent_reads_no_more_beats_than_its_budget(
    ranks: int, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole job, however many ranks there are."""
    for rank in range(ranks):
        (tmp_path / str(rank)).write_text("{}\n")
    reader, every_s = heartbeats.BeatReader(str(tmp_path)), 5.0 if ranks > 32 else 1.0
    with _operations(tmp_path, monkeypatch) as seen:
        for look in range(10):
            reader.poll(look * every_s)

    _holds(what, len(seen) / 10 * HOUR_S / every_s)


def test_a_staging_daemon_that_waits_keeps_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look a second at the pairs of partners, which are read only after a change."""
    partner_map.put_ring(str(tmp_path), partner_map.Ring("0.1", {f"n{place}": "n0" for place in range(64)}))
    ring = partner_map.RingFile(str(tmp_path))
    with _operations(tmp_path, monkeypatch) as seen:
        for _ in range(HOUR_S):
            ring.look()

    _holds("staging daemon: the pairs of partners", len(seen))


# ---------------------------------------------------------------------- no nodes x nodes


class Name(str):
    """A node's name that counts how often it is hashed or compared."""

    __slots__ = ()
    used = 0

    def __hash__(self) -> int:
        Name.used += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        Name.used += 1
        return str.__eq__(self, other)


def _roll_call(nodes: tuple[str, ...], *, frozen: bool) -> None:
    troubles = (
        [silences.Trouble(nodes[5], silences.KINDS["the whole node stands still"], 0.0, 1e9)]
        if frozen
        else []
    )
    world = silences.World(1, lives.Life(1, 1.0, ranks=len(nodes)), nodes, troubles)
    assert world.lost(110.0, 100.0, 1e9) == ((nodes[5],) if frozen else ())


def _answers_in_pieces(nodes: tuple[str, ...]) -> None:
    parser = AnswerParser(nodes)
    for node in nodes:
        found = parser.feed(f"{ANSWER} {node}\n{ANSWER} {node} {{}}\n{ENDED} {node}\n")
    assert len(found.ended) == len(nodes)


def _checks(nodes: tuple[str, ...]) -> None:
    ctx = SimpleNamespace(
        nodes=nodes, clock=SimpleNamespace(mono_s=lambda: 1.0), where=SimpleNamespace(home="/", place="/", launch=0),
        journal=SimpleNamespace(record=lambda kind, **_: None),
        steps=SimpleNamespace(begin=lambda job, asked, line: Said(asked, dict.fromkeys(asked, (node_checks.CHECKED,)))),
    )  # fmt: skip
    ctx.where.job = "7"
    started = SimpleNamespace(number=1, launch=SimpleNamespace(started_s=0.0))
    checks = node_checks.FailureChecks(cast("Any", ctx), cast("Any", started), {"checks": ""})
    checks.begin(nodes)
    assert checks.finish(nodes, lambda: None)


WORK: dict[str, Callable[[tuple[str, ...]], object]] = {
    "a roll call that all answer": lambda nodes: _roll_call(nodes, frozen=False),
    "a roll call with a frozen node": lambda nodes: _roll_call(nodes, frozen=True),
    "answers that come one by one": _answers_in_pieces,
    "checks of all nodes": _checks,
    "the partners of staged checkpoints": lambda nodes: staging.pair_nodes(
        nodes, {}, staging.pair_nodes(nodes)
    ),
    "the reports of all nodes": lambda nodes: facts_from_reports(
        nodes, {"after": {node: {"findings": []} for node in nodes}}
    ),
}


@pytest.mark.parametrize("what", WORK)
def test_work_for_all_nodes_grows_as_the_nodes(what: str) -> None:
    """Four times as many nodes: about four times as many looks at their names, far from sixteen times."""
    used = []
    for count in (32, 128):
        nodes = tuple(Name(f"n{place}") for place in range(count))
        Name.used = 0
        WORK[what](nodes)
        used.append(Name.used)

    assert 0 < used[1] <= 8 * used[0]
