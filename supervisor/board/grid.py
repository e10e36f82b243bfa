"""A table on the screen: only the rows in sight are made, and only the cells that changed are sent. (I/O)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ftrun.supervisor.board.lines import Column, fitting, gap

TONES: Mapping[str, Style] = {
    "good": Style(color="green"),
    "bad": Style(color="red", bold=True),
    "odd": Style(color="magenta", bold=True),
    "calm": Style(color="blue"),
    "faint": Style(dim=True),
    "": Style(),
}
CURSOR = Style(reverse=True)

Cells = Sequence[tuple[str, str]]
"""Texts of exactly the widths of their columns, each with its tone."""


class Grid(ScrollView, can_focus=True):
    """Rows under fixed column heads, one of them chosen. `cells(key, layout)` makes a row when it comes into sight."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Moved(Message):
        """Another row is chosen now."""

    class Opened(Message):
        """Enter was pressed on the chosen row."""

    def __init__(
        self,
        columns: Sequence[Column],
        cells: Callable[[str, Sequence[tuple[Column, int]]], Cells],
        *,
        name: str,
    ) -> None:
        super().__init__(id=name)
        self._columns = columns
        self._make = cells
        self._keys: list[str] = []
        self._wanted: Mapping[str, int] = {}
        self._drawn: dict[str, Cells] = {}  # of the rows in sight
        self.layout_now: list[tuple[Column, int]] = []
        self.chosen = ""
        self._by_hand = False  # somebody has chosen it; until then it is the first

    @property
    def place(self) -> int:
        """Where the chosen row is, from 0; 0 where none is."""
        return self._keys.index(self.chosen) if self.chosen in self._keys else 0

    @property
    def in_sight(self) -> list[str]:
        """The keys of the rows that are shown."""
        top = round(self.scroll_offset.y)
        return self._keys[top : top + max(0, self.size.height - 1)]

    def show(self, keys: Sequence[str], wanted: Mapping[str, int]) -> None:
        """Show these rows. `wanted`: column -> its widest text. The chosen row stays chosen while it is there."""
        place, keys, before = self.place, list(keys), self.chosen
        if not self._by_hand:
            self.chosen = next(iter(keys), "")
        elif self.chosen not in keys:
            self.chosen = keys[min(place, len(keys) - 1)] if keys else ""
        if self.chosen != before:
            self.post_message(self.Moved())
        if keys != self._keys or wanted != self._wanted:
            self._keys, self._wanted = keys, dict(wanted)
            self._lay_out()
        else:
            self.renew()

    def renew(self) -> None:
        """Draw the rows in sight again, as far as they changed."""
        for line, key in enumerate(self.in_sight, 1):
            before, now = self._drawn.get(key), self._make(key, self.layout_now)
            self._drawn[key] = now
            left = 0
            for number, (_, width) in enumerate(self.layout_now):
                if before is None or before[number : number + 1] != now[number : number + 1]:
                    self.refresh(Region(1 + left, line, width, 1))
                left += width + gap(self._room)

    def _lay_out(self) -> None:
        self.layout_now = fitting(self._columns, self._room, self._wanted)
        self._drawn = {}
        self.virtual_size = Size(self.size.width, len(self._keys) + 1)
        self._follow_cursor()
        self.refresh()

    @property
    def _room(self) -> int:
        return max(1, self.size.width - 2)

    def on_resize(self, _: events.Resize) -> None:
        """Choose the columns that fit now."""
        self._lay_out()

    def render_line(self, y: int) -> Strip:
        """One line of what is in sight: the heads, or a row."""
        width = self.size.width
        if y == 0:
            texts = [
                one.name.rjust(size) if one.right else one.name.ljust(size) for one, size in self.layout_now
            ]
            return Strip(
                [Segment(" "), Segment((" " * gap(self._room)).join(texts), Style(bold=True))]
            ).adjust_cell_length(width)
        row = y - 1 + round(self.scroll_offset.y)
        if row >= len(self._keys):
            return Strip.blank(width)
        key = self._keys[row]
        if key not in self._drawn:
            self._drawn[key] = self._make(key, self.layout_now)
        space, chosen = Segment(" " * gap(self._room)), key == self.chosen
        parts = [Segment(" ")]
        for text, tone in self._drawn[key]:
            parts += [Segment(text, TONES["" if chosen else tone]), space]
        strip = Strip(parts).adjust_cell_length(width)
        return strip.apply_style(CURSOR) if chosen else strip

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Forget the rows that went out of sight."""
        super().watch_scroll_y(old_value, new_value)
        self._drawn = {}
        self.refresh()

    def action_move(self, by: int) -> None:
        """Choose the row so many rows further."""
        if not self._keys:
            return
        self._by_hand = True
        before = self.place
        place = max(0, min(len(self._keys) - 1, before + by))
        self.chosen = self._keys[place]
        if place != before:
            top = round(self.scroll_offset.y)
            self._follow_cursor()
            if round(self.scroll_offset.y) == top:
                for one in (before, place):
                    self.refresh(Region(0, one - top + 1, self.size.width, 1))
            self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        """Choose the row one screen further."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_open(self) -> None:
        """Open the chosen row."""
        if self.chosen:
            self.post_message(self.Opened())

    def _follow_cursor(self) -> None:
        rows = max(1, self.size.height - 1)
        top, place = round(self.scroll_offset.y), self.place
        wanted = max(min(top, place), place - rows + 1)
        wanted = max(0, min(wanted, len(self._keys) - rows))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True, immediate=True)
