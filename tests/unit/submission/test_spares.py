"""Laws of spares: what a submission becomes with them, what is refused, and how many a later attempt gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client import options
from ftrun.slurm.client.options import SbatchOptions
from ftrun.supervisor.config import settings, sources
from ftrun.supervisor.model.errors import SettingError, SubmitImpossible, UserError
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd
from ftrun.supervisor.policy.policy_input import ClusterView
from ftrun.supervisor.submission import in_allocation
from ftrun.supervisor.submission.resize import ResizedSubmission, resize

PARTITION = tuple(f"n{i}" for i in range(8))


def wide(
    *words: str, spares: int = 2, head: tuple[str, ...] = (), named: tuple[str, ...] = (), **env: str
) -> ResizedSubmission:
    """What the options become with so many spares."""
    line = options.split([*words, "job.sh"])
    return resize(SbatchOptions(line, [options.split([*head, "job.sh"])], env), spares, named=named)


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (("-N4",), {"nodes": "6", "no-kill": None}),
        (("--nodes", "4-4"), {"nodes": "6", "no-kill": None}),
        (("-N1k",), {"nodes": "1026", "no-kill": None}),
        (("-N4", "-n8"), {"nodes": "6", "ntasks": "12", "ntasks-per-node": "2", "no-kill": None}),
        (("-n8", "--ntasks-per-node=2"), {"nodes": "6", "ntasks": "12", "ntasks-per-node": "2", "no-kill": None}),
        (("-N4", "--ntasks-per-node=3"), {"nodes": "6", "no-kill": None}),
        (("-N4", "--gpus=8"), {"nodes": "6", "gpus": "12", "gpus-per-node": "2", "no-kill": None}),
        (("-N2", "-G", "a100:4,v100:2"), {"nodes": "4", "gpus": "a100:8,v100:4", "gpus-per-node": "a100:2,v100:1", "no-kill": None}),
        (("-N1", "--gpus=a100"), {"nodes": "3", "gpus": "a100:3", "gpus-per-node": "a100:1", "no-kill": None}),
        (("-N4", "--gpus=8", "--gpus-per-task=1"), {"nodes": "6", "gpus": "12", "no-kill": None}),
        (("-N4", "--no-kill=off"), {"nodes": "6"}),
        (("-N4", "-k"), {"nodes": "6"}),
        (("-N4", "--mem=8G", "-c4", "--gres=gpu:2", "-L", "matlab:3"), {"nodes": "6", "no-kill": None}),
    ],
)  # fmt: skip
def test_what_counts_for_the_whole_job_grows_in_proportion(
    words: tuple[str, ...], becomes: dict[str, Any]
) -> None:
    """And in equal shares; what counts for a node or a task stays; the user's own --no-kill stays."""
    assert wide(*words).options == becomes


def test_the_arguments_outweigh_the_variables_and_these_the_directives() -> None:
    """As in sbatch."""
    assert wide("-N4", head=("-N2", "-n8")).options["ntasks"] == "12"
    assert wide(head=("-N2",)).options["nodes"] == "4"
    assert wide("-N4", head=("--gpus=4",), SBATCH_GPUS="8").options["gpus"] == "12"
    assert "no-kill" not in wide("-N4", SBATCH_NO_KILL="").options


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "-N 4, or -n with --ntasks-per-node"),
        (("-n4",), "-N 4, or -n with --ntasks-per-node"),
        (("-N2-4",), "not -N 2-4"),
        (("-N1,3-5",), "not -N 1,3-5"),
        (("-N0",), "not -N 0"),
        (("-N4", "-n6"), "--ntasks=6 is no multiple of the 4 nodes"),
        (("-N4", "-n2"), "take 4, or say it for each node"),
        (("-n7", "--ntasks-per-node=2"), "7 tasks do not fill nodes of 2"),
        (("-N4", "--gpus=6"), "--gpus=6 is no multiple of the 4 nodes"),
        (("-N4", "-a0-3"), "the tasks of an array cannot have them"),
        (("-N4", ":", "-N2"), "a heterogeneous job cannot have them"),
        (("-N4", "-marbitrary"), "--distribution=arbitrary"),
        (("-N4", "-nx"), "a plain number in --ntasks"),
    ],
)
def test_what_would_have_to_be_guessed_is_refused_with_what_works(words: tuple[str, ...], says: str) -> None:
    """One line."""
    with pytest.raises(SubmitImpossible) as refused:
        wide(*words)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_named_nodes_must_be_enough_for_the_spares() -> None:
    """Slurm would add others by itself, which the user did not name."""
    assert wide("-N2", named=("a", "b", "c", "d")).options["nodes"] == "4"
    with pytest.raises(SubmitImpossible, match="it must name 4"):
        wide("-N2", named=("a", "b"))


@given(st.integers(1, 50), st.integers(0, 9), st.integers(1, 8), st.integers(0, 8))
def test_each_node_gets_the_same_share(nodes: int, spares: int, tasks: int, gpus: int) -> None:
    """Any node may take the place of any other; what the script sees is what the user asked for."""
    asked = [f"-N{nodes}", f"-n{nodes * tasks}", *([f"--gpus={nodes * gpus}"] if gpus else [])]
    found = wide(*asked, spares=spares)
    total = nodes + spares
    assert found.options["nodes"] == str(total)
    assert found.options["ntasks"] == str(total * tasks)
    assert found.options["ntasks-per-node"] == str(tasks)
    assert (found.active, found.spares, found.active_tasks) == (nodes, spares, nodes * tasks)
    assert found.active_gpus == (str(nodes * gpus) if gpus else "")
    assert found.options.get("gpus-per-node") == (str(gpus) if gpus else None)
    line = found.applied(options.split([*asked, "job.sh"]))
    assert (line.get("nodes"), line.get("ntasks")) == (str(total), str(total * tasks))
    assert line.script == "job.sh"


def test_only_variables_that_ours_made_are_hidden() -> None:
    """What the user typed stays to be seen."""
    assert wide("-N2", "-n4").hidden == ["SLURM_NTASKS_PER_NODE"]
    assert wide("-N2", "-n4", "--ntasks-per-node=2").hidden == []
    assert wide("-N2", "--gpus=4").hidden == ["SLURM_GPUS_PER_NODE"]
    assert wide("-N2").hidden == []


# --------------------------------------------------------------------- who may have them


def chosen(
    tmp_path: Path, *own: tuple[str, str], user: str = "", script: tuple[str, ...] = ()
) -> sources.Config:
    """The settings with these options, directives and this file of the user's."""
    place = tmp_path / "config" / "ftrun"
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.toml").write_text(user)
    env = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "FTRUN_SITE_CONFIG": "/nowhere",
    }
    return sources.load(str(tmp_path), env, own=own, script=script)


@pytest.mark.parametrize(
    ("own", "shape", "says"),
    [
        ((("spares", "1"), ("retries", "0")), "single", "retries=0 and observe start nothing again"),
        ((("spares", "1"), ("agent", "never")), "single", "agent=never"),
        ((("spares", "1"), ("recover", "step,resubmit")), "single", "swap is not in recover=step,resubmit"),
        ((("spares", "1"),), "array", "by a new submission only"),
        ((("recover", "step,resubmit"),), "array", "recover=resubmit"),
        ((("recover", "step,resubmit"),), "het", "recover=resubmit"),
        ((("recover", "swap,resubmit"),), "single", "--ft-spares=K"),
        ((("recover", "rank,resubmit"),), "single", "--ft-rank-restart"),
        ((("recover", "step"),), "single", "step,resubmit"),
        ((("policy", "netwrk.recover=step,resubmit"),), "single", "did you mean 'network'?"),
        ((("policy", "nvidia-xidd-79.budget-swap=1"),), "single", "did you mean 'nvidia-xid-79'?"),
        ((("policy", "network.recover=swap,resubmit"),), "single", "--ft-spares=K"),
        ((("hang-min", "1h"),), "single", "hang-min (1h) is longer than hang-max (30m)"),
        ((("limit-step", "1h"),), "single", "at most 9m"),
    ],
)
def test_what_could_never_be_used_is_refused_at_submission(
    tmp_path: Path, own: tuple[tuple[str, str], ...], shape: str, says: str
) -> None:
    """In one line that says what is missing."""
    with pytest.raises(
        (SettingError, UserError)
    ) as refused:  # by its form where it is read, by its sense for this job
        in_allocation.refuse_recovery_settings(chosen(tmp_path, *own), shape)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "own",
    [
        (),
        (("recover", "resubmit"),),
        (("recover", "rank,step,swap,companion,shrink,resubmit"),),
        (("recover", "rank,step,swap,resubmit"),),
        (("spares", "2"),),
        (("rank-restart", "true"), ("recover", "rank,step,resubmit")),
        (("save-signal", "B:USR1"),),
        (("policy", "network.recover=step,resubmit"), ("policy", "nvidia-xid-79.budget-swap=2")),
        (("policy", "slurm.lost-track.recover=resubmit"),),
    ],
)
def test_what_makes_sense_is_taken(tmp_path: Path, own: tuple[tuple[str, str], ...]) -> None:
    """Nothing is refused that can work."""
    in_allocation.refuse_recovery_settings(chosen(tmp_path, *own), "single")


def test_a_file_for_all_jobs_may_name_rungs_that_one_job_lacks(tmp_path: Path) -> None:
    """What a person wrote for every job drops out where it does not apply; what was written for this one does not."""
    text = 'recover = ["swap", "step", "resubmit"]\n[policy.network]\nrecover = ["swap", "resubmit"]\nlimit-step = 30\n'
    in_allocation.refuse_recovery_settings(chosen(tmp_path, user=text), "array")
    with pytest.raises(SettingError, match="--ft-spares=K"):
        in_allocation.refuse_recovery_settings(
            chosen(tmp_path, user=text, script=("--recover=swap,resubmit",)), "single"
        )


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('[policy.network]\nrecover = ["swap", "resubmit"]\n', ["network.recover=swap,resubmit"]),
        ('[policy."nvidia-xid-79"]\nbudget-swap = 2\nlimit-swap = "90s"\n', ["nvidia-xid-79.budget-swap=2", "nvidia-xid-79.limit-swap=90s"]),
        ("[policy.slurm.lost-track]\nbudget-step = 0\n", ["slurm.lost-track.budget-step=0"]),
        ('policy = ["hang.budget=1"]\n', ["hang.budget=1"]),
    ],
)  # fmt: skip
def test_tables_of_a_file_are_the_elements_of_the_setting(
    tmp_path: Path, text: str, rules: list[str]
) -> None:
    """One setting, two ways to write it."""
    assert chosen(tmp_path, user=text)["policy"] == rules


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[policy]\nnetwork = 3\n", r"\[policy.network\]"),
        ("[policy.network]\nrecovr = 3\n", "did you mean 'recover'?"),
        ("[policy.network]\nbudget-step = 'x'\n", "a whole number"),
        ("[hang]\nmin = 3\n", r"without tables but \[policy.NAME\]"),
    ],
)
def test_a_wrong_table_is_refused_with_its_file(tmp_path: Path, text: str, says: str) -> None:
    """As every other wrong line of a file."""
    with pytest.raises(UserError, match=says) as refused:
        chosen(tmp_path, user=text)
    assert "config.toml" in refused.value.message


@pytest.mark.parametrize(
    ("own", "shape", "has"),
    [
        ({}, "single", True),
        ({}, "array", False),
        ({}, "het", False),
        ({"retries": 0}, "single", False),
        ({"observe": True}, "single", False),
        ({"agent": "never"}, "single", False),
        ({"recover": "resubmit"}, "single", False),
        ({"recover": "swap,resubmit"}, "single", False),
        ({"recover": "swap,resubmit", "spares": 1}, "single", True),
        ({"recover": "rank,resubmit"}, "single", False),
        ({"recover": "resubmit", "policy": ["network.recover=step,resubmit"]}, "single", True),
    ],
)
def test_an_agent_is_started_only_where_it_could_do_something(
    own: dict[str, Any], shape: str, has: bool
) -> None:
    """Everything else runs as it would without one."""
    values = {**settings.defaults(), **own}
    assert in_allocation.with_agent(values, shape) is has
    told = in_allocation.batch_facts({"settings": values, "python": "/opt/py"}, shape, None)
    assert told["agent"] == ("/opt/py" if has else "")
    assert in_allocation.batch_facts({"settings": values}, shape, None)["agent"] == ""


# --------------------------------------------------------------------- later attempts


def test_a_later_attempt_gets_as_many_spares_as_there_is_room_for() -> None:
    """What is excluded or drained makes no spare; busy nodes come free again; a refusal is met by none at all."""
    values = {**settings.defaults(), "spares": 2}
    before = Attempt(1, 0.0, launch=Launch(end=LaunchEnd(state="FAILED")))
    view = ClusterView(PARTITION, available=frozenset(PARTITION), nodes_needed=4)
    assert in_allocation.spares_for_next(values, before, view, ()) == 2
    assert in_allocation.spares_for_next(values, before, view, PARTITION[:3]) == 1
    assert in_allocation.spares_for_next(values, before, view, PARTITION[:6]) == 0
    assert (
        in_allocation.spares_for_next(values, before, replace(view, available=frozenset(PARTITION[:5])), ())
        == 1
    )
    lost = replace(view, available=frozenset(PARTITION[:5]), lost=frozenset(PARTITION[5:]))
    assert in_allocation.spares_for_next(values, before, lost, ()) == 2
    assert in_allocation.spares_for_next(values, before, ClusterView(nodes_needed=4), ()) == 2
    assert in_allocation.spares_for_next(values, before.ended_as(state="REFUSED"), view, ()) == 0
    assert in_allocation.spares_for_next(settings.defaults(), before, view, ()) is None
    assert in_allocation.spares_of(values, before) == 2
    assert in_allocation.spares_of(values, replace(before, spares_asked=0)) == 0


@pytest.mark.parametrize(
    ("fewer", "exclude", "idle", "nodes", "listed"),
    [
        (None, (), (), "4", "n[0-3]"),
        (1, ("n1",), (), "3", "n0,n2,n3"),
        (None, ("n1",), (), "3", "n0,n2,n3"),
        (None, ("n1",), ("n5",), "4", "n[0-3]"),
        (0, ("n1",), (), "2", "n0,n2"),
        (0, (), (), "2", "n0,n1"),
        (None, ("n1", "n2", "n3"), (), "2", "n0,n1"),
    ],
)
def test_spares_that_were_named_and_are_bad_are_done_without(
    fewer: int | None, exclude: tuple[str, ...], idle: tuple[str, ...], nodes: str, listed: str
) -> None:
    """Slurm takes no list of names that is longer than the job; the bad ones are the first to go."""
    line = options.split(["-N2", "-w", "n[0-3]", "job.sh"])
    values = {**settings.defaults(), "spares": 2}
    found = in_allocation.with_spares(values, SbatchOptions(line, [], {}), fewer, exclude=exclude, idle=idle)
    assert found is not None
    changed = found.applied(line)
    assert (changed.get("nodes"), changed.get("nodelist")) == (nodes, listed)
