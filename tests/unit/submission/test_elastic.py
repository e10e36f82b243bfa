"""Laws of sizes at submission: what is refused with what works, and what a smaller size is submitted with. (pure)"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client import options
from ftrun.slurm.client.options import SbatchOptions
from ftrun.supervisor.config import settings, sources
from ftrun.supervisor.model.errors import SettingError, SubmitImpossible
from ftrun.supervisor.submission import in_allocation, sizes
from ftrun.supervisor.submission.resize import resize

HEAD = [options.split(["job.sh"])]


def chosen(**own: Any) -> dict[str, Any]:
    """The settings with these."""
    return {**settings.defaults(), **{key.replace("_", "-"): value for key, value in own.items()}}


def refused(*words: str, **own: Any) -> str:
    """Why this submission is refused; "" where it is not."""
    return why(settled("command line", **own), *words)


def settled(layer: str, **own: Any) -> sources.Config:
    """These settings from one layer."""
    made = sources.Config()
    made.values |= {key.replace("_", "-"): value for key, value in own.items()}
    made.origin |= {key.replace("_", "-"): (layer, "") for key in own}
    return made


def why(made: sources.Config, *words: str) -> str:
    """Why a submission with these settings is refused."""
    try:
        sizes.refuse_sizes(made, SbatchOptions(options.split([*words, "job.sh"]), HEAD, {}))
    except (SettingError, SubmitImpossible) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (("-N4",), {"nodes": "2-4"}),
        (("-N4", "--ntasks=8", "--gpus=16"), {"nodes": "2-4"}),
        (("-n8", "--ntasks-per-node=2"), {"nodes": "2-4:2"}),
        (("-N8",), {"nodes_valid": "2,4,8"}),
        (("-N4", "--gres=gpu:8"), {"nodes": "2-4:2", "global_batch": 64, "micro_batch": 2}),
        (("-N4",), {"nodes": "2-4", "spares": 2}),
        (("-N4", "--gpus-per-node=4"), {"global_batch": 64, "micro_batch": 2}),
        (("-N4",), {"on_queue_timeout": "stop"}),
    ],
)
def test_sizes_that_fit_are_taken(words: tuple[str, ...], own: dict[str, Any]) -> None:
    """Beside spares, too."""
    assert refused(*words, **own) == ""


@pytest.mark.parametrize(
    ("words", "own", "says"),
    [
        (("-N8",), {"nodes": "2-4"}, "--ft-nodes=2-8"),
        (("-N8",), {"nodes_valid": "2,4"}, "nodes-valid: the largest size is 4, and -N says 8: --ft-nodes-valid=2,4,8"),
        (("-N3",), {"nodes_valid": "2,4"}, "--ft-nodes-valid=2,3"),
        (("-N4",), {"nodes": "4-4"}, "nodes: 4 is the only size"),
        (("-N4",), {"nodes_valid": "4"}, "nodes-valid: 4 is the only size"),
        (("-N2-4",), {"nodes": "2-4"}, "not -N 2-4"),
        ((), {"nodes": "2-4"}, "-N 4, or -n with --ntasks-per-node"),
        (("-N4", "-n6"), {"nodes": "2-4"}, "--ntasks=6 is no multiple of the 4 nodes"),
        (("-N4", "--gpus=6"), {"nodes": "2-4"}, "--gpus=6 is no multiple"),
        (("-N4", "-a0-3"), {"nodes": "2-4"}, "the tasks of an array cannot have them"),
        (("-N4", ":", "-N2"), {"nodes": "2-4"}, "a heterogeneous job"),
        (("-N4", "-wn[0-3]"), {"nodes": "2-4"}, "names its nodes (-w, -F)"),
        (("-N4",), {"nodes": "2-4", "retries": 0}, "nothing would ever use them"),
        (("-N4",), {"nodes": "2-4", "observe": True}, "nothing would ever use them"),
        (("-N4",), {"on_queue_timeout": "shrink"}, "--ft-nodes=MIN-MAX"),
        (("-N4",), {"replicas": 2}, "--ft-global-batch"),
        (("-N2-4",), {"recover": "companion,resubmit"}, "recover: companion cannot be used: it wants a plain number of nodes"),
        (("-n4",), {"recover": "step,companion,resubmit"}, "-n with --ntasks-per-node"),
        (("-N4", "--gres=gpu:8"), {"nodes": "2-4", "global_batch": 64, "micro_batch": 2}, "--ft-nodes-valid=2,4"),
        (("-N3", "--gpus-per-node=8"), {"global_batch": 64, "micro_batch": 2}, "no size works"),
        (("-N4",), {"nodes": "2-4", "global_batch": 64}, "micro-batch"),
        (("-N4",), {"nodes": "2-4", "global_batch": 64, "micro_batch": 2}, "--ft-replicas"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_with_what_works(
    words: tuple[str, ...], own: dict[str, Any], says: str
) -> None:
    """One line, at submission and not at night."""
    told = refused(*words, **own)
    assert says in told
    assert "\n" not in told


def test_what_a_user_wants_of_all_runs_refuses_none_that_cannot_have_it() -> None:
    """A layer that was not written for this job says what to do where it can be done."""
    assert why(settled("user", on_queue_timeout="shrink"), "-N4") == ""
    assert why(settled("user", recover="companion,resubmit"), "-N2-4") == ""


def test_what_commands_of_the_user_are_told_is_no_setting() -> None:
    """A run that is submitted from such a command, or from inside a job, has no sizes of that one."""
    told = {"FTRUN_NODES": "n0,n1", "FTRUN_WORLD_SIZE": "8", "FTRUN_DP_SCALE": "4/3", "FTRUN_GRAD_ACCUM": "4"}
    assert sources.load("/", told)["nodes"] == ""


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (("--gpus-per-node=a100:4",), 4),
        (("--gres=gpu:a100:8,nvme",), 8),
        (("--gres=gpu",), 1),
        (("--gpus=16",), 4),
        (("--ntasks-per-node=2", "--gpus-per-task=2"), 4),
        (("-n12",), 3),
    ],
)
def test_ranks_are_gpus_else_tasks(words: tuple[str, ...], ranks: int) -> None:
    """Whichever option says how many there are."""
    line = options.split(["-N4", *words, "job.sh"])
    own = chosen(nodes_valid="2,4", global_batch=4 * ranks * 5, micro_batch=1)
    assert sizes.size_facts(own, SbatchOptions(line, HEAD, {}), 0) == {"sized": f"4 4 1 {ranks} {20 * ranks}"}
    assert sizes.size_facts(own, SbatchOptions(line, HEAD, {}), 2) == {"sized": f"2 4 1 {ranks} {20 * ranks}"}


def test_a_smaller_size_changes_what_counts_for_the_whole_job_and_nothing_else() -> None:
    """Slurm itself tells the script of the rest."""
    line = options.split(["-N4", "-n8", "--gpus=16", "-c2", "--mem=8G", "job.sh"])
    assert resize(SbatchOptions(line, HEAD, {}), None, size=3).options == {
        "nodes": "3",
        "ntasks": "6",
        "gpus": "12",
    }
    alone = {"agent": "never"}
    assert (
        in_allocation.with_spares(chosen(nodes="2-4", **alone), SbatchOptions(line, HEAD, {}), size=4) is None
    )
    assert in_allocation.with_spares(chosen(nodes="2-4", **alone), SbatchOptions(line, HEAD, {})) is None
    assert in_allocation.with_spares(chosen(nodes="2-4"), SbatchOptions(line, HEAD, {}), agent=False) is None
    assert (
        in_allocation.with_spares(chosen(nodes="2-4", recover="step,resubmit"), SbatchOptions(line, HEAD, {}))
        is None
    )


def test_a_job_that_may_become_smaller_while_it_runs_outlives_a_node_and_deals_out_equal_shares() -> None:
    """Any of its nodes may be lost; the script is kept from what only our options made."""
    line = options.split(["-N4", "-n8", "--gpus=16", "-c2", "--mem=8G", "job.sh"])
    made = in_allocation.with_spares(chosen(nodes="2-4"), SbatchOptions(line, HEAD, {}))
    assert made is not None
    assert made.options == {
        "nodes": "4",
        "ntasks": "8",
        "gpus": "16",
        "no-kill": None,
        "ntasks-per-node": "2",
        "gpus-per-node": "4",
    }
    told = in_allocation.batch_facts(
        {"settings": chosen(nodes="2-4"), "python": "/bin/python3"}, "single", made
    )
    assert (told["spares"], told["active"], told["active_tasks"], told["active_gpus"]) == (
        "0",
        "4",
        "8",
        "16",
    )
    assert told["hidden"] == "SLURM_NTASKS_PER_NODE SLURM_GPUS_PER_NODE"


def test_spares_come_on_top_of_each_size() -> None:
    """The script sees its size."""
    line = options.split(["-N4", "-n8", "job.sh"])
    made = in_allocation.with_spares(chosen(nodes="2-4", spares=2), SbatchOptions(line, HEAD, {}), 1, size=3)
    assert made is not None
    assert (made.options["nodes"], made.options["ntasks"], made.active, made.active_tasks) == ("4", "8", 3, 6)
    told = in_allocation.batch_facts({"settings": chosen(spares=2)}, "single", made)
    assert (told["active"], told["spares"], told["active_tasks"]) == ("3", "1", "6")


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 8), st.data())
def test_every_size_has_the_same_share_for_each_node(
    full: int, tasks: int, gpus: int, data: st.DataObject
) -> None:
    """Whatever the size."""
    size = data.draw(st.integers(1, full))
    line = options.split([f"-N{full}", f"-n{full * tasks}", f"--gpus={full * gpus}", "job.sh"])
    made = resize(SbatchOptions(line, HEAD, {}), None, size=size)
    assert (made.options["ntasks"], made.options["gpus"]) == (str(size * tasks), str(size * gpus))
