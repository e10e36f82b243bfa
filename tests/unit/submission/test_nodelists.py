"""Laws of the nodes that a submission names: where the user has them from, and those that a later attempt avoids."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.slurm.client import options
from ftrun.slurm.client.options import CommandLine, SbatchOptions, split
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.submission import named_nodes, plan

NOTHING = [CommandLine(())]


@pytest.mark.parametrize("option", ["--nodefile=nodes.txt", "-F./nodes.txt", "--nodelist=./nodes.txt"])
def test_a_file_of_nodes_is_read_where_the_job_was_submitted(tmp_path: Path, option: str) -> None:
    """With remarks, lists and names that come twice; -F names a file without a slash, too."""
    (tmp_path / "nodes.txt").write_text("# ours\nn1,n2 # both\nn4*2\n")

    assert named_nodes.required_nodes(SbatchOptions(split([option]), NOTHING, {}), str(tmp_path)) == [
        "n1",
        "n2",
        "n4",
    ]
    with pytest.raises(SubmitImpossible, match="cannot be read"):
        named_nodes.required_nodes(SbatchOptions(split([option]), NOTHING, {}), str(tmp_path / "elsewhere"))


def test_excluded_nodes_of_a_file_stay_excluded(tmp_path: Path) -> None:
    """Beside those that are to be avoided."""
    (tmp_path / "bad").write_text("n1\nn2\n")
    changed = plan.with_excluded(split(["-x", "./bad", "job.sh"]), NOTHING, ["n7"], [], str(tmp_path))

    assert changed.get("exclude") == "n1,n2,n7"


def test_each_component_keeps_the_nodes_that_it_leaves_out() -> None:
    """One part of the command line would count for all components of the script, so it is written once for each; who names none leaves out what the one before does."""
    head = [split(["-x", "n0"]), split([]), split(["-x", "n1"])]
    changed = plan.with_excluded(split(["-H", "job.sh"]), head, ["n7"], [])

    assert changed.argv() == [
        "-H",
        "--exclude=n0,n7",
        ":",
        "-H",
        "--exclude=n0,n7",
        ":",
        "-H",
        "--exclude=n1,n7",
        "job.sh",
    ]
    plain = plan.with_excluded(split(["-H", "job.sh"]), [split(["-x", "n0"]), split([])], ["n7"], [])
    assert plain.argv()[:3] == ["-H", "--exclude=n0,n7", "job.sh"]


def test_a_stand_in_is_no_node_of_another_component() -> None:
    """sbatch refuses components that have a node in common; each stand-in is used once."""
    changed = plan.with_excluded(
        split(["-w", "n0", ":", "-w", "n1", ":", "-w", "n2", "job.sh"]),
        NOTHING,
        ["n1", "n2"],
        ["n0", "n3", "n4"],
    )

    assert ["n0", "n3", "n4"] == [
        options.value_of_each("nodelist", changed, NOTHING)[part] for part in range(3)
    ]
