"""The question before each effect, and the help. (I/O)"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ftrun.supervisor.model.run import Run

EFFECTS = {
    "stop": "It saves a checkpoint and ends after it. Nothing is submitted again; resume continues it.",
    "pause": "It saves a checkpoint, releases its nodes, and waits for resume. A pause is not a fault.",
    "resume": "It is submitted again, and goes on from its newest complete checkpoint.",
    "cancel": "Its job ends now, for good, without another checkpoint.",
}
"""Command -> what it does to the run."""

GIVEN_UP = "It is paused: this gives it up for good."

HELP = """\
[b]Runs and nodes[/b]
  up down j k   choose a run (page, home, end as well)
  Enter         open it: faults, explain, logs
  Tab           the nodes, and back
  /             show only what holds a word: run, state, job, node
  a             also runs that are over
  q             quit
[b]The chosen run[/b], each after a question, as the command of that name
  s stop        end it after its next checkpoint
  p pause       save a checkpoint, release the nodes, wait
  r resume      continue a stopped or paused run
  c cancel      end it now, for good
[b]In a run[/b]
  Tab, 1 2 3    faults, explain, logs
  Esc, q        back
[b]Words[/b]
  unwatched     no supervisor looks after it: ftrun supervise
  S/STEP        usual seconds a step
  LOSS          its losses so far, and the newest
  TIME LEFT     until its last step, without time in the queue
  WHEN          how long ago its last fault was diagnosed
Slurm is asked nothing for this screen: docs/top.md."""


def question(verb: str, run: Run) -> Content:
    """What is asked before `ftrun VERB RUN`."""
    what = GIVEN_UP if run.paused and verb in ("stop", "cancel") else EFFECTS[verb]
    return Content.assemble(
        (f"{verb.capitalize()} {run.id}?", "bold"),
        f"\n\n{what}\n\n",
        ("y", "bold"),
        "  yes      ",
        ("n", "bold"),
        "  no",
    )


class Question(ModalScreen[bool]):
    """Yes or no; anything but y is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q,enter", "answer(False)", show=False),
    ]

    def __init__(self, text: Content) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """One box."""
        yield Static(self._text, classes="box")

    def action_answer(self, yes: bool) -> None:
        """Return the answer."""
        self.dismiss(yes)


class Help(ModalScreen[None]):
    """All keys, and the words that are not in `ftrun status`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "app.pop_screen", show=False)
    ]

    def compose(self) -> ComposeResult:
        """One box, which scrolls where the terminal is low."""
        with VerticalScroll(classes="box"):
            yield Static(Content.from_markup(HELP))
