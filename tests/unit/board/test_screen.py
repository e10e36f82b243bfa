"""The board, driven by textual's pilot on a made home: what it shows, what its keys do. (I/O)"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot

from ftrun.supervisor.board import screen
from ftrun.supervisor.board.reading import Told, Watch
from ftrun.supervisor.board.run_page import RunPage
from ftrun.supervisor.board.screen import Board
from ftrun.supervisor.cli import runs
from ftrun.supervisor.store import journal
from tests.unit import made_home

Drive = Callable[[Board, Pilot[None]], Awaitable[None]]


class Asked:
    """The commands that were started; each prints what it is."""

    def __init__(self) -> None:
        self.words: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str]) -> Sequence[str]:
        self.words.append(words)
        return ["/bin/echo", "done:", *words]


def told(home: Path, asked: Asked | None = None, *, watched: bool = True) -> Told:
    by = runs.told_by(str(home))
    says = Watch(
        watched, ("watched from here",) if watched else ("nobody was watching; start one: ftrun supervise",)
    )
    return Told(str(home), lambda _: says, by.explain, by.nodes, asked or Asked())


def drive(told: Told, drive: Drive, *, size: tuple[int, int] = (80, 24), every: bool = False) -> None:
    """Start a board, wait until it has read the home, and let the test press keys."""

    async def run() -> None:
        board = Board(told, every=every)
        async with board.run_test(size=size) as pilot:
            await until(pilot, lambda: board.reader.whole and bool(board.watch_now.lines))
            await pilot.pause()
            await drive(board, pilot)

    asyncio.run(asyncio.wait_for(run(), 60))


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not come")


def shown(board: Board) -> str:
    """The characters on the screen, line by line."""
    width, height = board.size
    strips = board.screen._compositor.render_strips()
    assert len(strips) == height
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    assert all(len(line) >= width or not line for line in lines)
    return "\n".join(line.rstrip() for line in lines)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    made_home.make(folder)
    return folder


def test_runs_keys_and_a_page_of_one_run(home: Path) -> None:
    """One life of a board: the table, a question that is denied, one that is not, a run's three tabs, help, nodes."""
    asked = Asked()

    async def live(board: Board, pilot: Pilot[None]) -> None:
        text = shown(board)
        assert "2 running" in text
        assert "watched from here" in text
        for word in ("llm-7b-0042", "19,764", "1.25", "2.18", "hardware-gpu", "unreadable", "▁"):
            assert word in text
        assert "vision-0011" not in text
        await pilot.press("G")
        assert "job 4719, attempt 2 on n[1-2,4-5]" in shown(board)
        await pilot.press("c")
        assert "Cancel llm-7b-0042?" in shown(board)
        await pilot.press("enter")
        assert "Cancel" not in shown(board)
        assert [] == asked.words
        await pilot.press("s", "y")
        await until(pilot, lambda: "done: stop llm-7b-0042" in shown(board))
        await pilot.press("enter")
        text = shown(board)
        assert "fallen off the bus" in text
        assert "step 19,764 of 50,000" in text
        await pilot.press("2")
        assert "decided: resubmit" in shown(board)
        await pilot.press("tab")
        assert "no log can be read yet" in shown(board)
        await pilot.press("p", "y")
        await until(pilot, lambda: "done: pause llm-7b-0042" in shown(board))
        await pilot.press("q", "question_mark")
        assert "unwatched" in shown(board)
        await pilot.press("escape", "a")
        assert "vision-0011" in shown(board)
        await pilot.press("slash", *"lora", "enter")
        assert "vision-0011" not in shown(board)
        await pilot.press("escape", "tab")
        assert "tune-lora-0007" in shown(board)
        assert "STRIKES" in shown(board)
        await pilot.press("c")
        assert [["stop", "llm-7b-0042"], ["pause", "llm-7b-0042"]] == asked.words

    drive(told(home, asked), live, size=(100, 24))


@pytest.mark.parametrize("size", [(60, 16), (30, 8), (200, 50)])
def test_any_size_and_a_change_of_it(home: Path, size: tuple[int, int]) -> None:
    async def live(board: Board, pilot: Pilot[None]) -> None:
        assert "odd-0001" in shown(board)
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert "odd-0001" in shown(board)
        await pilot.press("down", "down", "enter")
        text = shown(board)
        assert "\x1b" not in text
        assert "\u202e" not in text
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "\\x1b[31mred" in shown(board)

    drive(told(home, watched=True), live)


def test_a_dead_supervisor_is_seen_at_each_run(home: Path) -> None:
    async def live(board: Board, pilot: Pilot[None]) -> None:
        text = shown(board)
        assert "nobody was watching" in text
        assert "unwatched, running" in text
        await pilot.press("home", "r")
        assert "choose a run whose journal can be read" in shown(board)

    drive(told(home, watched=False), live, size=(140, 24))


def test_without_runs_it_says_what_to_do(tmp_path: Path) -> None:
    async def live(board: Board, pilot: Pilot[None]) -> None:
        assert "ftrun sbatch train.sh" in shown(board)
        made_home.make(tmp_path)
        await until(pilot, lambda: "llm-7b-0042" in shown(board))

    drive(told(tmp_path), live)


def test_a_bug_of_the_board_is_reported_by_who_started_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the terminal and raises: the command line turns that into one line."""

    def breaks(self: Board) -> None:
        raise RuntimeError("as a test wants it")

    monkeypatch.setattr(Board, "_show_detail", breaks)
    board = Board(told(home))
    monkeypatch.setattr(screen, "Board", lambda *_, **__: board)
    monkeypatch.setattr(
        board, "run", lambda **_: asyncio.run(asyncio.wait_for(board.run_async(headless=True), 60))
    )
    with pytest.raises(RuntimeError, match="as a test wants it"):
        screen.run_board(told(home))


def test_the_page_follows_the_journal(home: Path, tmp_path: Path) -> None:
    """A record that is written while the page is open appears on it."""
    folder = made_home.write_run(tmp_path, "one-0001", 60, made_home.queued)

    async def live(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        assert isinstance(board.screen, RunPage)
        await pilot.press("2")
        numbers = {"attempt": 1, "job": "4711", "launch": 0, "start": 1}
        record = journal.new_record("warned", numbers, {"message": "watch out"}, seq=4, now_s=2e9)
        with (folder / "journal" / made_home.FIRST).open("ab") as stream:
            stream.write(journal.record_line(record))
        await until(pilot, lambda: "warning: watch out" in shown(board))

    drive(told(tmp_path), live)
