"""Laws of a waiting job that is made smaller where it stands: what Slurm is told, and what cannot be told to it. (pure)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.policy.queue import (
    NOTED_EVERY_S,
    STEP_MAX_S,
    JobShape,
    QueueClock,
    has_shape,
    resized_shape,
)

FOUR = {
    "NumNodes": "4-4",
    "NumTasks": "8",
    "NumCPUs": "16",
    "TresPerNode": "gres:gpu:8",
    "ReqNodeList": "(null)",
}


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16), st.integers(1, 64))
def test_tasks_and_cpus_go_with_the_nodes(nodes: int, tasks: int, cpus: int, wanted: int) -> None:
    """In proportion, whatever the old size was; and what was told is recognised."""
    fields = {"NumNodes": f"{nodes}", "NumTasks": f"{nodes * tasks}", "NumCPUs": f"{nodes * tasks * cpus}"}
    shape = resized_shape(fields, wanted)
    assert shape == JobShape(wanted, wanted * tasks, wanted * tasks * cpus)
    told = {
        "NumNodes": f"{wanted}-{wanted}",
        "NumTasks": f"{wanted * tasks}",
        "NumCPUs": f"{wanted * tasks * cpus}",
    }
    assert has_shape(told, JobShape(wanted, wanted * tasks, wanted * tasks * cpus))


@pytest.mark.parametrize(
    "change",
    [
        {"TresPerJob": "gres:gpu:32"},
        {"TresPerTask": "cpu=2,gres/gpu=1"},
        {"TresPerSocket": "gres:gpu:1"},
        {"CpusPerTres": "gres:gpu:4"},
        {"NumNodes": "2-4"},
        {"NumNodes": "4-0"},
        {"NumTasks": ""},
        {"NumTasks": "7"},
        {"NumCPUs": "17"},
        {"ReqNodeList": "n[0-3]"},
    ],
)
def test_what_counts_otherwise_than_by_node_is_submitted_anew(change: dict[str, str]) -> None:
    """Slurm cannot be told of it, or takes it and starts a job that is wrong."""
    assert isinstance(resized_shape(FOUR | change, 2), str)


def test_cpus_of_each_task_are_no_hindrance() -> None:
    """24.11 and later name them among what counts for each task."""
    assert resized_shape(FOUR | {"TresPerTask": "cpu=2"}, 1) == JobShape(1, 2, 4)


def test_what_slurm_made_of_it_is_read_back() -> None:
    """An upper end that stayed, or a count that did, is not what was told."""
    assert not has_shape({"NumNodes": "1-4", "NumTasks": "2", "NumCPUs": "4"}, JobShape(1, 2, 4))
    assert not has_shape({"NumNodes": "1-1", "NumTasks": "2", "NumCPUs": "16"}, JobShape(1, 2, 4))


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), max_size=40))
def test_the_clock_never_counts_more_than_was_waited(steps: list[tuple[float, bool]]) -> None:
    """Nor runs back; silence of Slurm counts nothing, and neither does a supervisor that stood still."""
    clock, mono_s, most, before = QueueClock(), 0.0, 0.0, 0.0
    seen = False
    for step_s, answers in steps:
        mono_s += step_s
        if answers:
            most += min(step_s, STEP_MAX_S) if seen else 0.0
            waited_s = clock.look(0.0, mono_s)
            assert before <= waited_s <= most + 1e-6
            before = waited_s
        else:
            clock.stop()
        seen = answers


def test_a_new_clock_goes_on_from_the_note() -> None:
    """What the one before noted is not waited for again; notes get rarer as the wait gets long."""
    clock = QueueClock()
    assert clock.look(600.0, 5000.0) == 600.0
    clock.look(600.0, 5000.0 + NOTED_EVERY_S)
    assert clock.due
    long = QueueClock()
    long.look(36_000.0, 0.0)
    long.look(36_000.0, 300.0)
    assert not long.due
