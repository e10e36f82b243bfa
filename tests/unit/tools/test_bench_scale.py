"""What the bench of scale reads of `sdiag`."""

from __future__ import annotations

from tests.bench.scale_cluster import Asked, asked

SDIAG = """
Main schedule statistics (microseconds):
	Last cycle:   1203

Remote Procedure Call statistics by message type
	REQUEST_PARTITION_INFO                  ( 2009) count:74     ave_time:1759   total_time:130199
	REQUEST_JOB_USER_INFO                   ( 2039) count:21     ave_time:12649  total_time:265630
	REQUEST_STATS_INFO                      ( 2035) count:3      ave_time:12     total_time:36

Remote Procedure Call statistics by user
	root            (       0) count:6361   ave_time:11910  total_time:75765553
"""


def test_questions_are_counted_by_kind_without_those_that_count() -> None:
    """Users are another table, and sdiag's own questions are nobody's cost."""
    assert asked(SDIAG) == {
        "REQUEST_PARTITION_INFO": Asked(74, 130199),
        "REQUEST_JOB_USER_INFO": Asked(21, 265630),
    }
    assert asked("") == {}
