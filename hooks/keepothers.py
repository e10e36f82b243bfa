"""What a keeper knows of the other nodes at the end of a start: who still moves, and what may still come of those that are lost. (I/O)

How it thinks. A node whose report does not change for long is not waited for, and one that the agent calls lost not at all. But whoever has its copies brings them out in
its name, and that is waited for: as long as that node says that it has the copy, the part may still come.
"""

from __future__ import annotations

from ftrun.hooks import keeptell, ring, staged
from ftrun.hooks.staged import Publishing

__all__ = ["SILENT_S", "Others"]

SILENT_S = 15.0  # a node whose report does not change for so long is not waited for at the end


class Others:
    """The other nodes, by what lies in the attempt's folder; `look` reads anew who is lost. All raise OSError."""

    def __init__(self, attempt_folder: str) -> None:
        self._folder = attempt_folder
        self._file = ring.RingFile(attempt_folder)
        self._ring = ring.Ring()
        self._reports: dict[str, tuple[str, float]] = {}

    def look(self) -> None:
        """Read what the agent told last."""
        self._ring = self._file.look()

    def move(self, node: str, now_s: float) -> bool:
        """Whether a node is not known to be lost, and its report changed lately. `now_s`: monotonic."""
        if node in self._ring.lost:
            return False
        text = keeptell.text(staged.report_path(self._folder, node))
        known = self._reports.get(node)
        if known is None or known[0] != text:
            self._reports[node] = (text, now_s)
            return True
        return now_s - known[1] < SILENT_S

    def may_bring(self, node: str, to: Publishing, now_s: float) -> bool:
        """Whether a node's part of a set may still come: it moves, or it is lost and who has its copies is there."""
        if node not in self._ring.lost:
            return self.move(node, now_s)
        holder = self._ring.kept.get(node, "")
        if not holder or holder in self._ring.lost:
            return False
        return (node, to.token, to.name) in ring.read_copies(self._folder, holder).kept
