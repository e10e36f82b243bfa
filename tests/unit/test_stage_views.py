"""What the nodes say of staged checkpoints, summed up for a person."""

from __future__ import annotations

from typing import Any

from ftrun.supervisor.stageviews import summed, trouble, words


def report(*sets: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"set": name, "start": "0.1", "state": state, "size_bytes": 1 << 30, "sealed_s": float(n), "why": why}
        for n, (name, state, why) in enumerate(sets)
    ]
    waiting = sum(row["size_bytes"] for row in rows if row["state"] == "sealed")
    return {
        "sets": rows,
        "backlog_bytes": waiting,
        "used_bytes": 5,
        "limit_bytes": 9,
        "dropped": [],
        "why": "",
        **more,
    }


def test_a_set_is_as_far_as_its_slowest_node() -> None:
    """Published where every node that has a part says so; what one of them refuses is told with its reason."""
    told = summed([
        report(("step-1", "published", ""), ("step-2", "published", ""), ("step-3", "sealed", "")),
        report(("step-1", "published", ""), ("step-2", "refused", "x is not the same on a and b"), ("step-3", "published", "")),
    ])  # fmt: skip
    assert [(one["set"], one["state"], one["nodes"]) for one in told["sets"]] == [
        ("step-1", "published", 2),
        ("step-2", "refused", 2),
        ("step-3", "sealed", 2),
    ]
    line = words(told)
    assert "step-1 published; step-3 in memory (1.0 GiB to go out)" in line
    assert "step-2 refused: x is not the same" in line


def test_what_is_in_the_way_is_told() -> None:
    """A full disk and dropped checkpoints stand in the line; without any set it says that none is published."""
    told = summed([report(why="/shared is full", dropped=["step-1"])])
    assert words(told) == "none published yet; dropped for want of room: step-1; /shared is full"


def test_what_was_refused_is_told_with_its_reason() -> None:
    """None is published because one was refused: that one and why, in `status`, too; no longer once the name is published."""
    why = "/shared/last was saved by a later start"
    told = summed(
        [report(("last", "refused", why)), report(("step-2", "given up", "rank 1 died before it was done"))]
    )
    assert (
        words(told) == f"none published; last refused: {why}; step-2 given up: rank 1 died before it was done"
    )
    assert trouble(told) == "step-2 given up: rank 1 died before it was done"
    later = summed([report(("last", "refused", why), ("last", "published", ""), ("step-2", "published", ""))])
    later["sets"][0]["state"] = "published"
    assert trouble(later) == ""


def test_a_set_that_got_another_name_says_so() -> None:
    """It is published, and not where one would look for it."""
    told = summed(
        [
            report(("last", "published", "it is published as last.of-bcdfgh")),
            report(("last", "published", "")),
        ]
    )
    assert words(told) == "last published (it is published as last.of-bcdfgh)"
