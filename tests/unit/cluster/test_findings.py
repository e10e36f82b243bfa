"""What follows from the facts of hosts."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.slurm.cluster.plan import CRED_EXPIRE_S, Plan, slurm_conf
from ftrun.supervisor.cluster import findings
from ftrun.supervisor.cluster.bundle import Bundle
from ftrun.supervisor.cluster.hosts import Target
from ftrun.supervisor.cluster.lifecycle import Wish, make_plan
from ftrun.supervisor.cluster.survey import Survey
from ftrun.supervisor.model.errors import UserError

PROGRAMS = {name: f"/usr/bin/{name}" for name in findings.NEEDED}


def _facts(host: str, **changes: Any) -> dict[str, Any]:
    number = int(host[1:])
    return {
        "host": host,
        "system": "Debian",
        "arch": "x86_64",
        "user": "alice",
        "uid": 1000,
        "gid": 1000,
        "home": "/home/alice",
        "addresses": [f"10.0.0.{number}"],
        "called_at": f"10.0.0.{number}",
        "own_name": f"10.0.0.{number}",
        "cpus": 8,
        "topology": [1, 4, 2],
        "memory_mib": 1000,
        "gres": {},
        "holders": {},
        "subreaper": True,
        "memlock": -1,
        "open_files": -1,
        "dies_at_logout": False,
        "linger": False,
        "slurm": {"version": "24.11.5", "programs": PROGRAMS},
        "var_tmp_free_mib": 10_000,
        "claim": {},
        "clock_offset_s": 0.0,
        "clock_within_s": 0.1,
        **changes,
    }


def _found(allow_public: bool = False, **changes: Any) -> list[tuple[str, str, str]]:
    facts = {"h1": _facts("h1"), "h2": _facts("h2") | changes}
    return [(one.target, one.level, one.topic) for one in findings.of_hosts(facts, {}, allow_public)]


def test_two_hosts_alike_have_no_findings() -> None:
    """Nothing is said where nothing follows."""
    assert [] == _found()


@pytest.mark.parametrize(
    ("changes", "level", "topic"),
    [
        ({"user": "bob"}, "bad", "user"),
        ({"uid": 1001}, "bad", "user"),
        ({"home": "/users/alice"}, "note", "home"),
        ({"slurm": {"version": "", "programs": {}}}, "note", "Slurm"),
        ({"slurm": {"version": "21.08.5", "programs": PROGRAMS}}, "note", "Slurm"),
        ({"slurm": {"version": "24.05.1", "programs": PROGRAMS}}, "note", "Slurm"),
        ({"own_name": "127.0.1.1"}, "note", "address"),
        ({"addresses": [], "called_at": "", "own_name": ""}, "bad", "address"),
        ({"addresses": ["8.8.8.8"], "own_name": "8.8.8.8"}, "bad", "address"),
        ({"addresses": ["10.0.0.2", "8.8.8.8"], "own_name": "127.0.1.1"}, "bad", "address"),
        ({"clock_offset_s": 600.0}, "bad", "clock"),
        ({"clock_offset_s": -5.0}, "note", "clock"),
        ({"clock_offset_s": 5.0, "clock_within_s": 4.0}, "", ""),
        ({"subreaper": False}, "note", "processes"),
        ({"var_tmp_free_mib": 10}, "bad", "disk"),
        ({"dies_at_logout": True}, "bad", "logout"),
        ({"dies_at_logout": True, "linger": True}, "", ""),
        ({"claim": {"name": "x", "user": "bob"}}, "bad", "claim"),
        ({"host": "DEFAULT"}, "bad", "name"),
        ({"host": "gpu 2"}, "bad", "name"),
        ({"host": "h[1-2]"}, "bad", "name"),
        ({"clock_offset_s": 11.0}, "bad", "clock"),
    ],
)
def test_each_fact_that_matters_is_told(changes: dict[str, Any], level: str, topic: str) -> None:
    """One finding for it, of that host alone."""
    assert ([("h2", level, topic)] if level else []) == _found(**changes)


def test_a_public_address_is_permitted_by_its_option() -> None:
    """It stays a note."""
    assert [("h2", "note", "address")] == _found(allow_public=True, addresses=["8.8.8.8"], own_name="8.8.8.8")


def test_two_hosts_of_one_name_are_refused() -> None:
    """Nodes are called as hosts call themselves."""
    facts = {"a": _facts("h1"), "b": _facts("h1")}

    assert ["name", "name"] == [one.topic for one in findings.of_hosts(facts, {}, False)]


def _plan(bundles: dict[str, Bundle] | None = None, **changes: Any) -> Plan:
    facts = {"h1": _facts("h1"), "user@h2": _facts("h2", **changes)}
    wish = Wish((Target("h1"), Target("user@h2", 4)))
    return make_plan("mine", wish, Survey(facts, (), ""), bundles or {})


def test_the_configuration_follows_the_facts() -> None:
    """Addresses, sizes, accelerators with at most the slots of the hostfile, a partition for each kind where kinds differ."""
    gpus = {"gpu": {"kind": "nvidia", "files": [f"/dev/nvidia{number}" for number in range(8)]}}
    lines = slurm_conf(_plan(gres=gpus)).splitlines()

    assert "SlurmctldHost=h1(10.0.0.1)" in lines
    assert "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" in lines
    assert "GresTypes=gpu" in lines
    assert (
        "NodeName=h2 NodeAddr=10.0.0.2 CPUs=8 Sockets=1 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=980 Feature=nvidia Gres=gpu:4 State=UNKNOWN"
        in lines
    )
    assert "PartitionName=nvidia Nodes=h2 MaxTime=INFINITE State=UP" in lines


def test_a_credential_outlives_the_most_by_which_two_clocks_may_differ() -> None:
    """A launch still has half a minute to arrive."""
    assert CRED_EXPIRE_S - 2 * findings.CLOCK_BAD_S >= 30
    assert (
        f"AuthInfo=socket=/var/tmp/ftrun-1000/mine/munge/munge.sock,cred_expire={CRED_EXPIRE_S}"
        in slurm_conf(_plan())
    )


def test_slots_are_processors_where_there_is_no_accelerator() -> None:
    """The topology is left out where it would contradict them."""
    assert (
        "NodeName=h2 NodeAddr=10.0.0.2 CPUs=4 RealMemory=980 State=UNKNOWN"
        in slurm_conf(_plan()).splitlines()
    )


def test_a_host_whose_name_leads_elsewhere_listens_everywhere() -> None:
    """slurmd would bind to what its own name means."""
    assert "CommunicationParameters" not in slurm_conf(_plan(own_name="127.0.1.1"))


def test_a_bundle_is_used_on_all_hosts_each_by_its_architecture() -> None:
    """Programs and plugins are those of the bundle, also where one host has a Slurm of its own; one slurm.conf for both."""
    bundles = {
        arch: Bundle("/x", arch[0] * 64, "24.11.5", arch, ("slurmd", "srun"))
        for arch in ("x86_64", "aarch64")
    }
    plan = _plan(bundles, arch="aarch64")

    assert plan.programs == {
        "h1": {
            "slurmd": "/var/tmp/ftrun-1000/slurm_24.11.5_x86_64_xxxxxxxxxxxxxxxx/bin/slurmd",
            "srun": "/var/tmp/ftrun-1000/slurm_24.11.5_x86_64_xxxxxxxxxxxxxxxx/bin/srun",
        },
        "h2": {
            "slurmd": "/var/tmp/ftrun-1000/slurm_24.11.5_aarch64_aaaaaaaaaaaaaaaa/bin/slurmd",
            "srun": "/var/tmp/ftrun-1000/slurm_24.11.5_aarch64_aaaaaaaaaaaaaaaa/bin/srun",
        },
    }
    assert "PluginDir=/var/tmp/ftrun-1000/mine/etc/plugins" in slurm_conf(plan).splitlines()
    assert plan == Plan.from_json(plan.to_json())


def test_a_plan_is_what_was_written() -> None:
    """As JSON and back."""
    plan = _plan()
    assert plan == Plan.from_json(plan.to_json())
    with pytest.raises(ValueError, match="no plan"):
        Plan.from_json("{}")


def test_a_folder_that_is_too_long_for_sockets_is_refused() -> None:
    """Before anything is done."""
    facts = {"h1": _facts("h1") | {"host": "h" * 64}}
    with pytest.raises(UserError, match="too long"):
        make_plan("mine", Wish((Target("h1"),)), Survey(facts, (), ""), {})


def test_two_controllers_keep_their_state_in_the_folder_that_both_see() -> None:
    """The first one stands first: it is in control as long as it lives."""
    facts = {"h1": _facts("h1"), "h2": _facts("h2"), "h3": _facts("h3")}
    wish = Wish(tuple(map(Target, facts)), backup="h3")
    plan = make_plan("mine", wish, Survey(facts, (), "/nfs"), {})
    lines = slurm_conf(plan).splitlines()

    assert [line for line in lines if line.startswith("SlurmctldHost=")] == [
        "SlurmctldHost=h1(10.0.0.1)",
        "SlurmctldHost=h3(10.0.0.3)",
    ]
    assert f"StateSaveLocation=/nfs/.ftrun-cluster-mine-{plan.token}" in lines
    assert plan == Plan.from_json(plan.to_json())


@pytest.mark.parametrize(
    ("backup", "kind", "shared", "told"),
    [
        ("h2", "nfs4", "/nfs", ""),
        ("h1", "nfs4", "/nfs", "one of the other hosts"),
        ("h9", "nfs4", "/nfs", "one of the other hosts"),
        ("h2", "fuse.sshfs", "/nfs", "mounted by sshfs on h2"),
        ("h2", "nfs4", "/my nfs", "cannot be in the path"),
    ],
)
def test_a_second_controller_needs_another_host_and_a_folder_that_outlives_the_first(
    backup: str, kind: str, shared: str, told: str
) -> None:
    """sshfs dies with the host that serves it."""
    facts = {"h1": _facts("h1", shared_kind="nfs4"), "h2": _facts("h2", shared_kind=kind)}
    problem = findings.backup_problem(backup, facts, shared)

    assert told in problem
    assert bool(told) == bool(problem)


def test_what_is_wrong_with_a_living_host() -> None:
    """A clock that was read within half of the time of the answer; space in MiB."""
    fine = findings.with_clock({"clock_s": 100.2, "free_mib": 9999}, 101.0, 2.0)
    late = findings.with_clock({"clock_s": 100.2, "free_mib": 3}, 701.0, 2.0)

    assert () == findings.of_living(fine)
    assert ["its clock is -600 s off", "3 MiB are free in /var/tmp"] == [
        text.partition(": ")[0] for text in findings.of_living(late)
    ]


def test_who_holds_an_accelerator_is_told() -> None:
    """The cluster is made all the same."""
    assert [("h2", "note", "accelerators")] == _found(holders={"/dev/nvidia0": ["python3 (4711)"]})
