"""Laws of the variables that are set for the user's libraries: nothing is shortened, nothing of the user's is replaced. (pure)"""

from __future__ import annotations

import re

import pytest

from ftrun.supervisor.submission import collective_env


def test_no_time_out_is_lowered() -> None:
    """What is set records and names files; no name of a time-out is among it."""
    names = [one.name for one in collective_env.EXPORTS]

    assert len(names) == len(set(names))
    assert [] == [name for name in names if re.search(r"TIMEOUT(?!$)|TIMEOUT_SEC|BLOCKING|HEARTBEAT", name)]
    assert ["TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_HCCL_DUMP_ON_TIMEOUT"] == [
        name for name in names if name.endswith("TIMEOUT")
    ]


@pytest.mark.parametrize(
    "one", [*collective_env.EXPORTS, *collective_env.LEFT_ALONE], ids=lambda one: one.name
)
def test_every_variable_has_a_source_and_a_reason(
    one: collective_env.Export | collective_env.LeftAlone,
) -> None:
    """Whether it is set or left alone."""
    assert "." in one.source
    assert len(one.why) > 20


def test_the_lines_for_batch_sh_can_be_read_by_a_shell() -> None:
    """Names and their aliases, one sign, a value without anything that a shell would read."""
    for line in collective_env.export_lines("auto").splitlines():
        assert re.fullmatch(r"[A-Z_]+(,[A-Z_]+)*=[\w{}/]+", line)
    assert "" == collective_env.export_lines("never")


def test_what_is_left_is_not_set() -> None:
    """One table or the other."""
    assert not {one.name for one in collective_env.LEFT_ALONE} & {one.name for one in collective_env.EXPORTS}


def test_what_was_set_is_told_with_its_reason() -> None:
    """By the names that a start recorded; names of others are passed over."""
    rows = collective_env.explain_exports(["TORCH_NCCL_TRACE_BUFFER_SIZE", "HOME", ""])

    assert [("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")] == [row[:2] for row in rows]
