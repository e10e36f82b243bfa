"""Laws of machines behind the names of nodes: a strike dies with its machine, and nothing else ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.runtime.machine_identity import read_identity
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.run import Attempt, Run
from ftrun.supervisor.nodes import node_facts
from ftrun.supervisor.nodes.from_runs import entries_of_report
from ftrun.supervisor.nodes.history import NodeRecord, fold_entries
from ftrun.supervisor.nodes.machines import (
    KEYS,
    is_another,
    known_after,
    machine_text,
    parse_identity,
    reason_of_others,
)
from ftrun.supervisor.nodes.recheck_rules import step_command
from tests.unit.nodes.test_nodes import DAY, HOUR, T, fault, node, other, served

OLD = {"product": "ACME X9", "serial": "A1", "id": "aaa", "pci": "0000:3b:00.0,0000:5e:00.0", "boot": "b1"}
IMAGE = {"product": "ACME X9", "id": "same image", "pci": "0000:3b:00.0,0000:5e:00.0"}


def machine(at_s: float, told: dict[str, str], name: str = "n1") -> NodeEntry:
    return other("machine", at_s, name, detail=told)


@pytest.mark.parametrize(
    ("before", "now", "another"),
    [
        (OLD, {**OLD, "serial": "B2"}, True),
        (OLD, {**OLD, "id": "new", "product": "other board", "pci": ""}, False),
        ({"instance": "i-1"}, {"instance": "i-2", "id": "x"}, True),
        ({"instance": "i-1", "serial": "A"}, {"instance": "i-1", "serial": "B"}, True),
        ({"instance": "i-1", "serial": "A"}, {"instance": "i-2", "serial": "A"}, False),
        ({"uuid": "u1"}, {"uuid": "u2"}, True),
        (IMAGE, {**IMAGE, "product": "ACME X10"}, True),
        (IMAGE, {**IMAGE, "id": "installed anew"}, False),
        (IMAGE, {**IMAGE, "pci": "0000:3b:00.0"}, False),
        (IMAGE, {**IMAGE, "id": "new", "pci": "0000:3b:00.0"}, False),
        (IMAGE, {**IMAGE, "id": "new", "pci": "0000:17:00.0,0000:5e:00.0"}, True),
        (IMAGE, {**IMAGE, "pci": "0000:17:00.0,0000:5e:00.0"}, False),
        ({"boot": "b1"}, {"boot": "b2"}, False),
        (OLD, {}, False),
        ({}, OLD, False),
    ],
)  # fmt: skip
def test_another_machine_is_one_that_says_so(
    before: dict[str, str], now: dict[str, str], another: bool
) -> None:
    """A new installation, a reboot, a broken card and an absent number are none."""
    assert is_another(before, now) is another


WORDS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["", "a", "b", "a,b"]))


@given(WORDS, WORDS)
def test_the_same_is_never_another_and_absence_says_nothing(one: dict[str, str], two: dict[str, str]) -> None:
    """And it does not matter which was first."""
    assert not is_another(one, one)
    assert not is_another(one, {})
    assert is_another(one, two) is is_another(two, one)
    assert not is_another(known_after(one, two), two)


def test_a_strike_dies_with_its_machine() -> None:
    """What the next one does wrong counts from the first strike on; the history stays."""
    first, second = fault(0), fault(1)
    before = node(first, second, machine(T + DAY + HOUR, OLD))
    assert len(before.strikes) == 2
    new = machine(T + 2 * DAY, {**OLD, "serial": "B2"})
    after = node(first, second, machine(T + DAY + HOUR, OLD), new)
    assert (after.strikes, after.faded, after.quarantined_until_s) == ((), 2, 0.0)
    assert after.replaced == (T + 2 * DAY,)
    assert after.machine["serial"] == "B2"
    again = node(first, second, machine(T + DAY + HOUR, OLD), new, fault(3))
    assert [strike.until_s - strike.at_s for strike in again.strikes] == [DAY]
    assert [entry.what for entry in again.history].count("incident") == 3


def test_without_an_identity_everything_is_as_before() -> None:
    """Nor does the first one that is ever told change anything, nor the same again."""
    faults = [fault(0), fault(1)]
    plain = node(*faults)
    told = node(*faults, machine(T + DAY + HOUR, OLD), machine(T + DAY + 2 * HOUR, {**OLD, "boot": "b2"}))
    assert told.strikes == plain.strikes
    assert told.replaced == ()
    assert [entry.what for entry in told.history] == ["incident", "incident", "machine"]


def test_a_person_who_excluded_the_name_means_the_name() -> None:
    """A new machine does not end that."""
    person = other("excluded", T, detail={"by": "ada", "until_s": T + 9 * DAY})
    record = node(person, machine(T + 1, OLD), machine(T + 2, {**OLD, "serial": "B2"}))
    assert record.excluded_until_s == T + 9 * DAY


def test_failures_that_followed_the_old_machine_do_not_follow_the_new_one() -> None:
    """As if a person had released the node."""

    def ended(number: int, name: str, *, failed: bool) -> NodeEntry:
        detail = {"result": "failed" if failed else "passed", "work": "w"}
        return NodeEntry(T + number * HOUR, "ended", (name,), f"e{number}{name}", f"r{number}", detail=detail)

    starts = [ended(n, "n1", failed=True) for n in range(4)]
    starts += [ended(n, f"m{n}", failed=False) for n in range(30)]
    book = fold_entries([*starts, machine(T, OLD)])
    assert "n1" in book.suspects
    new = machine(T + 5 * HOUR, {**OLD, "serial": "B2"})
    assert "n1" not in fold_entries([*starts, machine(T, OLD), new]).suspects


@given(
    st.permutations(
        [
            fault(0),
            machine(T + 1, OLD),
            machine(T + DAY, {**OLD, "serial": "B"}),
            fault(2),
            served(3.0, T + 9),
        ]
    )
)
def test_the_order_of_the_files_does_not_matter(entries: list[NodeEntry]) -> None:
    """Only the entries' own times."""
    assert len(node(*entries).strikes) == 1


def test_a_report_tells_which_machine_it_is() -> None:
    """Known keys only, bounded; a report of an older release has none."""
    report = {"schema": 1, "node": "n1", "kind": "after", "at_s": T, "findings": []}
    run = Run("r-1", token="t", attempts=(Attempt(1, T),))
    told = {**OLD, "made-up": "x", "uuid": 7, "instance": "i" * 9999}
    (entry,) = entries_of_report(run, 1, 0, {**report, "machine": told}, node="n1", now_s=T)
    assert (entry.what, entry.nodes) == ("machine", ("n1",))
    assert set(entry.detail) == {*OLD, "instance"}
    assert len(entry.detail["instance"]) < 9999
    nothings: tuple[object, ...] = ({}, None, [], "x", {"uuid": ""})
    for nothing in nothings:
        assert entries_of_report(run, 1, 0, {**report, "machine": nothing}, node="n1", now_s=T) == []
    assert parse_identity({}) == {}


def _put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text + "\n")


def test_a_host_tells_what_any_user_may_read(tmp_path: Path) -> None:
    """Placeholders of makers are left out; only accelerators count among the devices."""
    for name, text in (
        ("sys/class/dmi/id/sys_vendor", "ACME"),
        ("sys/class/dmi/id/product_name", "X9"),
        ("sys/class/dmi/id/product_serial", "To Be Filled By O.E.M."),
        ("sys/class/dmi/id/board_serial", "B7"),
        ("sys/class/dmi/id/product_uuid", "00000000-0000-0000-0000-000000000000"),
        ("sys/class/dmi/id/board_asset_tag", "i-0abc"),
        ("etc/machine-id", "f00d"),
        ("sys/bus/pci/devices/0000:5e:00.0/class", "0x030200"),
        ("sys/bus/pci/devices/0000:3b:00.0/class", "0x120000"),
        ("sys/bus/pci/devices/0000:00:1f.0/class", "0x060100"),
    ):
        _put(tmp_path, name, text)
    found = read_identity(str(tmp_path))
    assert found == {
        "product": "ACME X9",
        "serial": "B7",
        "instance": "i-0abc",
        "id": "f00d",
        "pci": "0000:3b:00.0,0000:5e:00.0",
    }
    assert machine_text(found) == "ACME X9, serial B7"
    assert read_identity(str(tmp_path / "nothing")) == {}
    (tmp_path / "etc/machine-id").unlink()
    (tmp_path / "etc/machine-id").mkdir()
    assert "id" not in read_identity(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "counts"), [("gce", True), ("nocloud", False), ("none", False), ("maas", False), ("", False)]
)
def test_only_a_cloud_names_an_instance(tmp_path: Path, source: str, counts: bool) -> None:
    """An installer gives a machine another instance id each time, which must not forgive its strikes."""
    _put(tmp_path, "run/cloud-init/.instance-id", "4c1d")
    _put(tmp_path, "run/cloud-init/cloud-id", source)
    assert read_identity(str(tmp_path)) == ({"instance": "4c1d"} if counts else {})


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("Action:Replace", "HyperPod replaces"),
        ("Action:Reboot", "HyperPod reboots"),
        ("[node_problem] gpu_health: job 7 [slurm_job]", "Soperator"),
        ("[hardware_problem] x", "replace its machine"),
        ("[compute_maintenance] node reboot process", "reboots"),
        ("[node_problem] compute_maintenance: node replacement process", "replace its machine"),
        ("[user_problem] alloc_gpus_busy", "a person has to mend"),
        ("[software_problem] nvidia_libraries: empty [hc_program]", "a person has to mend"),
        ("ftrun: r-1 xid-79 2026-11-20T10:00:00Z", ""),
        ("kernel update", ""),
        ("", ""),
    ],
)
def test_reasons_of_other_services_are_told(reason: str, says: str) -> None:
    """A node that another service has taken shows in `ftrun nodes`, also without a history."""
    assert says in reason_of_others(reason)
    assert bool(says) is bool(reason_of_others(reason))


def test_facts_of_a_node_tell_its_machine() -> None:
    """And when another one came under the name."""
    record = node(fault(0), machine(T + 1, OLD), machine(T + 2, {**OLD, "serial": "B2"}))
    facts = node_facts.node_facts(record, None, T + 3)
    assert (facts["machine"]["serial"], facts["machine_replaced_at"]) == ("B2", [T + 2])
    assert node_facts.node_facts(NodeRecord("n2"), None, T)["machine"] == {}


@pytest.mark.parametrize(
    ("step", "fault_class", "command"),
    [
        ("ssh {node} reset", "hardware-gpu", "ssh {node} reset"),
        ("hardware-gpu: ssh {node} reset", "hardware-gpu", "ssh {node} reset"),
        ("hardware-gpu, network: reset", "network", "reset"),
        ("hardware-gpu: reset", "network", ""),
        ("hardware-gpu: reset", "", ""),
        ("curl https://site/{node}", "node", "curl https://site/{node}"),
        ("node: scontrol update nodename={node} state=fail reason=Action:Replace", "node",
         "scontrol update nodename={node} state=fail reason=Action:Replace"),
    ],
)  # fmt: skip
def test_a_step_may_be_for_some_classes_only(step: str, fault_class: str, command: str) -> None:
    """A command that asks HyperPod for another machine is not for every fault."""
    assert step_command(step, fault_class) == command
