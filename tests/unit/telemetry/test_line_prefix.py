"""Prefixes of lines: peeled from outside inwards, and a rank is global or none. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.telemetry.line_prefix import peeled

LINES = {
    "10.4.0.7: kern: warning: [2026-01-05T10:11:12.1Z]: NVRM: Xid": ("NVRM: Xid", "10.4.0.7", None, "w"),
    "[default3]:[rank19]: [E ProcessGroupNCCL.cpp:1] it failed": ("it failed", "", 19, "e"),
    "[1,5]<stderr>: gpu07:81:90 [1] NET/IB : Got async event": ("NET/IB : Got async event", "gpu07", 5, ""),
    "Mar  4 11:20:31 gpu17 kernel: [23720.150280] mlx5 down": ("mlx5 down", "gpu17", None, ""),
    "2026-01-05 10:11:12,123 - trainer - ERROR - no reply": ("no reply", "", None, "e"),
    "(TrainWorker pid=12, ip=10.1.2.3) it died": ("it died", "10.1.2.3", None, ""),
    "[mpiexec@n7] control_cb": ("control_cb", "n7", None, ""),
    "c12n3: shepherd died": ("shepherd died", "c12n3", None, ""),
    "W0312 10:00:00.123 41 socket.cpp:12] waiting": ("waiting", "", None, "w"),
    "3: text": ("text", "", 3, ""),
    "plain words": ("plain words", "", None, ""),
    "": ("", "", None, ""),
}


@pytest.mark.parametrize("line", LINES)
def test_what_stands_in_front_of_a_line_is_peeled(line: str) -> None:
    """The text, and what its prefixes say of host, rank and level."""
    told = peeled(line)

    assert (told.text, told.host, told.rank, told.level) == LINES[line]


def test_the_number_that_counts_within_one_host_is_no_rank() -> None:
    """torchrun's outer number begins at 0 on every host: naming it would accuse another machine."""
    assert peeled("[default0]: lost").rank is None
    assert peeled("[default0]:[rank8]: lost").rank == 8
