"""Laws of the checks of networks: ports, links, counters, names, routes and peers. (I/O)

Trees of /sys have the form of the kernel's ABI pages and of a public H100 node in the test data of leptonai's gpud; files of /proc
that of Linux 6.1 and of the kernel's bonding documentation. Names, addresses and numbers are made up.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import ethernet, job_hosts, rdma, reachability
from ftrun.hooks.checks.catalogue import CHECKS
from ftrun.hooks.checks.ethernet import Interface
from ftrun.hooks.checks.rdma import Port
from ftrun.hooks.runtime.device_counters import Growth, growth_of
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN
from ftrun.hooks.runtime.host import Machine, NoAnswer
from tests.unit.checked import probed, severity

DATA = Path(__file__).parents[2] / "data" / "checks"
BONDING = (DATA / "bonding-lacp.txt").read_text()
TABLE = (DATA / "proc-net-route.txt").read_text()
SOCKETS = (DATA / "proc-net-tcp.txt").read_text()
FAST = {"window_s": 0.05}


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def adapter(root: Path, device: str, **files: str) -> Path:
    """An adapter with one port, as a H100 node has eight; `files` of the port over the usual ones."""
    folder = root / "sys/class/infiniband" / device
    write(folder, hca_type="MT4129", board_id="MT_0000000838", fw_ver="28.39.1002")
    usual = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand", "counters__link_downed": "0", "counters__symbol_error": "0",
        "counters__port_rcv_errors": "0", "hw_counters__out_of_sequence": "0",
    }  # fmt: skip
    write(folder / "ports/1", **{**usual, **files})
    return folder / "ports/1"


DOWN = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "2.5 Gb/sec (1X SDR)"}
POLLING = {**DOWN, "phys_state": "2: Polling"}
WAITING = {"state": "2: INIT", "rate": "400 Gb/sec (4X NDR)"}


@pytest.mark.parametrize(
    ("second", "thresholds", "expected"),
    [
        ({}, {}, OK),
        ({}, {"active": 3}, OK),
        ({}, {"active": 8}, BAD),
        (POLLING, {}, DEGRADED),
        (DOWN, {}, NOTE),
        (WAITING, {}, BAD),
        (POLLING, {"ports": ["mlx5_1"]}, BAD),
        (POLLING, {"ports": ["mlx5_0", "mlx5_2/1"]}, OK),
        (POLLING, {"active": 2}, OK),
        ({}, {"ports": ["mlx5_9"]}, BAD),
        ({"state": "odd", "phys_state": ""}, {}, OK),
        ({**POLLING, "link_layer": "Ethernet"}, {}, NOTE),
    ],
)
def test_ib_port(tmp_path: Path, second: dict[str, str], thresholds: dict[str, Any], expected: str) -> None:
    """A port that is down is a fault where the site expects it or its equals are up, and never because it was disabled."""
    for device, files in (("mlx5_0", {}), ("mlx5_1", second), ("mlx5_2", {})):
        adapter(tmp_path, device, **files)

    assert expected == severity("ib-port", probed("ib-port", Machine(str(tmp_path))), **thresholds)


def test_a_node_without_rdma_is_skipped(tmp_path: Path) -> None:
    """Unless the site expects a port."""
    machine = Machine(str(tmp_path))

    assert SKIPPED == severity("ib-port", probed("ib-port", machine))
    assert BAD == severity("ib-port", probed("ib-port", machine), ports=["mlx5_0"])
    assert SKIPPED == severity("ib-speed", probed("ib-speed", machine))
    for name in ("ib-errors", "ib-flaps", "roce-config"):
        assert SKIPPED == severity(name, probed(name, machine, **FAST))


@pytest.mark.parametrize(
    ("second", "thresholds", "expected"),
    [
        ({}, {}, OK),
        ({}, {"gbps": 400, "lanes": 4}, OK),
        ({"rate": "200 Gb/sec (4X HDR)"}, {}, DEGRADED),
        ({"rate": "100 Gb/sec (1X NDR)"}, {}, DEGRADED),
        ({"rate": "200 Gb/sec (4X HDR)"}, {"gbps": 400}, BAD),
        ({"rate": "200 Gb/sec (4X HDR)"}, {"gbps": 200}, OK),
        ({"rate": "100 Gb/sec (1X NDR)"}, {"lanes": 4}, BAD),
        ({"rate": "100 Gb/sec (4X EDR)", "link_layer": "Ethernet"}, {}, OK),
        ({"rate": "2.5 Gb/sec (1X SDR)", "state": "1: DOWN"}, {}, OK),
        ({"rate": ""}, {}, OK),
        ({"rate": "odd"}, {}, OK),
        ({"rate": "200 Gb/sec (4X HDR)"}, {"ports": ["mlx5_0"]}, OK),
    ],
)
def test_ib_speed(tmp_path: Path, second: dict[str, str], thresholds: dict[str, Any], expected: str) -> None:
    """Ports are compared with their equals, or with the site's number; those that are down are another check's matter."""
    adapter(tmp_path, "mlx5_0")
    adapter(tmp_path, "mlx5_1", **second)

    assert expected == severity("ib-speed", probed("ib-speed", Machine(str(tmp_path))), **thresholds)


def test_a_port_is_read_whole(tmp_path: Path) -> None:
    """Words without their numbers, speed and lanes as numbers, counters of both groups."""
    port = adapter(tmp_path, "mlx5_0", counters__symbol_error="N/A (no PMA)")
    (port / "cap_mask").mkdir()
    machine = Machine(str(tmp_path))

    expected = Port("mlx5_0/1", "ACTIVE", "LinkUp", 400.0, 4, "InfiniBand", "MT4129 MT_0000000838")
    assert [expected] == rdma.ports(machine, {})
    only = ["symbol_error", "link_downed", "out_of_sequence"]
    assert {"mlx5_0/1": {"link_downed": 0, "out_of_sequence": 0}} == rdma.counters(machine, only)


def counted(before: int, after: int, counter: str = "symbol_error") -> Growth:
    return Growth({"mlx5_0/1": {counter: before}}, {"mlx5_0/1": {counter: after}}, 1.0)


@pytest.mark.parametrize(
    ("growth", "thresholds", "expected"),
    [
        (counted(0, 0), {}, OK),
        (counted(7, 8), {}, NOTE),
        (counted(7, 17), {}, DEGRADED),
        (counted(7, 17), {"ports": ["mlx5_1"]}, SKIPPED),
        (counted(7, 17), {"ports": ["mlx5_0"]}, DEGRADED),
        (counted(7, 17), {"growth": {"symbol_error": 100}}, NOTE),
        (counted(0, 1, "link_error_recovery"), {}, DEGRADED),
        (counted(0, 5, "out_of_sequence"), {}, NOTE),
        (counted(0, 20_000, "out_of_sequence"), {}, DEGRADED),
        (counted(0, 10, "local_ack_timeout_err"), {}, DEGRADED),
        (counted(99, 3), {}, OK),  # reset in between
        (counted(65_535, 65_535), {}, NOTE),
        (Growth({}, {"mlx5_0/1": {"symbol_error": 3}}, 1.0), {}, OK),
        (Growth({}, {}, 0.0), {}, SKIPPED),
    ],
)
def test_ib_errors(growth: Growth, thresholds: dict[str, Any], expected: str) -> None:
    """What grows fast is degraded, what grows slowly or is great and old is a note."""
    assert expected == severity("ib-errors", growth, **thresholds)


def test_two_readings_are_compared(tmp_path: Path) -> None:
    """Those of this moment, or this one with one that somebody kept."""
    adapter(tmp_path, "mlx5_0", counters__symbol_error="100")
    machine = Machine(str(tmp_path))
    kept = {"mlx5_0/1": {"symbol_error": 40}}

    now = probed("ib-errors", machine, **FAST)
    assert {} == growth_of(now, "mlx5_0/1")
    later = probed("ib-errors", machine, before=kept)
    assert {"symbol_error": 60} == growth_of(later, "mlx5_0/1")


@pytest.mark.parametrize(
    ("growth", "days", "expected"),
    [
        (counted(3, 3, "link_downed"), 0.1, OK),
        (counted(3, 4, "link_downed"), 100, DEGRADED),
        (counted(9, 9, "link_downed"), 0.1, DEGRADED),
        (counted(9, 9, "link_downed"), 100, OK),
        (counted(900, 900, "link_downed"), 100, DEGRADED),
        (Growth({}, {}, 0.0), 1, SKIPPED),
    ],
)
def test_ib_flaps(growth: Growth, days: float, expected: str) -> None:
    """A fall since the last reading, or many a day."""
    assert expected == severity("ib-flaps", rdma.FlapsFacts(growth, days * 86_400))


def test_the_probe_of_flaps_reads_the_tree(tmp_path: Path) -> None:
    """The counter and the uptime."""
    adapter(tmp_path, "mlx5_0", counters__link_downed="7")
    write(tmp_path / "proc", uptime="200000.12 1.0")
    facts = probed("ib-flaps", Machine(str(tmp_path)), **FAST)

    assert ({"mlx5_0/1": {"link_downed": 7}}, 200000.12) == (facts.growth.after, facts.uptime_s)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"rx_crc_errors": 5}, {"rx_crc_errors": 5}, OK),
        ({"rx_crc_errors": 5}, {"rx_crc_errors": 6}, DEGRADED),
        ({"rx_missed_errors": 5}, {"rx_missed_errors": 6}, NOTE),
        ({"rx_missed_errors": 5}, {"rx_missed_errors": 50_000}, DEGRADED),
        ({"rx_errors": 50}, {"rx_errors": 0}, OK),
    ],
)
def test_nic_errors(before: dict[str, int], after: dict[str, int], expected: str) -> None:
    """Checksums count at once, packets that a busy machine missed in great number."""
    assert expected == severity("nic-errors", Growth({"eth0": before}, {"eth0": after}, 1.0))


def card(name: str = "eth0", **changes: Any) -> Interface:
    return Interface(name, "Ethernet", True, True, False, "up", 100_000, 9000, "full")._replace(**changes)


@pytest.mark.parametrize(
    ("found", "thresholds", "expected"),
    [
        ([card()], {}, OK),
        ([], {}, SKIPPED),
        ([card(is_physical=False)], {}, SKIPPED),
        ([card(state="down", speed_mbps=None)], {}, DEGRADED),
        ([card(state="down", speed_mbps=None, is_wanted=False)], {}, OK),
        ([card(state="down", speed_mbps=None, is_slave=True)], {}, OK),
        ([card(state="down", speed_mbps=None)], {"expected": {"eth0": 0}}, BAD),
        ([card()], {"expected": {"eth0": 100_000}}, OK),
        ([card(speed_mbps=25_000)], {"expected": {"eth0": 100_000}}, BAD),
        ([card(speed_mbps=None, state="unknown")], {"expected": {"eth0": 100_000}}, OK),
        ([], {"expected": {"bond0": 0}}, BAD),
        ([card(speed_mbps=100)], {}, DEGRADED),
        ([card(duplex="half")], {}, DEGRADED),
        ([card(state="", speed_mbps=None, mtu=None, duplex="")], {}, OK),
    ],
)
def test_nic_link(found: list[Interface], thresholds: dict[str, Any], expected: str) -> None:
    """What somebody set up has a carrier, what the site expects is there and fast."""
    assert expected == severity("nic-link", found, **thresholds)


@pytest.mark.parametrize(
    ("found", "thresholds", "expected"),
    [
        ([card("a"), card("b"), card("c")], {}, OK),
        ([card("a"), card("b"), card("c", mtu=1500)], {}, DEGRADED),
        ([card("a"), card("b", mtu=1500)], {}, OK),  # no majority
        ([card("a"), card("b"), card("c", mtu=1500, speed_mbps=1000)], {}, OK),  # another network
        ([card("a"), card("b"), card("c", mtu=1500, state="down")], {}, OK),
        ([card("a", mtu=1500)], {"expected": {"a": 9000}}, BAD),
        ([card("bond0", mtu=9000, is_physical=False)], {"expected": {"bond0": 9000}}, OK),
        ([card("a"), card("b"), card("c", mtu=4200)], {"expected": {"c": 4200}}, OK),
        ([], {}, SKIPPED),
    ],
)
def test_mtu(found: list[Interface], thresholds: dict[str, Any], expected: str) -> None:
    """As the site says, or as most equals have."""
    assert expected == severity("mtu", found, **thresholds)


def test_interfaces_are_read_from_the_tree(tmp_path: Path) -> None:
    """Cards have a device, virtual functions a parent; a speed that is not known is none."""
    net = tmp_path / "sys/class/net"
    write(net / "ens1", operstate="up", speed="200000", mtu="9000", flags="0x1003", type="1", duplex="full")
    write(net / "ens1", device__vendor="0x15b3", statistics__rx_crc_errors="4")
    write(
        net / "ens1v0", operstate="down", speed="-1", mtu="1500", flags="0x1002", type="1", device__physfn=""
    )
    write(net / "docker0", operstate="down", mtu="1500", flags="0x1003", type="1")
    write(net / "lo", operstate="unknown", flags="0x9", type="772")
    machine = Machine(str(tmp_path))
    docker, ens1, function = ethernet.interfaces(machine, {})

    assert Interface("ens1", "Ethernet", True, True, False, "up", 200_000, 9000, "full") == ens1
    assert (False, False, None) == (docker.is_physical, function.is_physical, function.speed_mbps)
    assert {"ens1": {"rx_crc_errors": 4}} == ethernet.counters(machine, ["rx_crc_errors", "tx_errors"])


def test_this_machine_s_own_interfaces_are_read() -> None:
    """Real /sys and /proc: every check says something, and nothing breaks."""
    machine = Machine()
    for name in ("nic-link", "nic-errors", "mtu", "bond", "routes", "port-free"):
        severity(name, probed(name, machine, **FAST))


UP_LINK = "MII Status: up\nSpeed: 100000 Mbps"
DOWN_LINK = "MII Status: down\nSpeed: Unknown"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BONDING, OK),
        (BONDING.replace(UP_LINK, DOWN_LINK, 1), DEGRADED),
        (BONDING.replace(UP_LINK, DOWN_LINK), BAD),
        (BONDING.replace("MII Status: up", "MII Status: down"), BAD),
        (
            BONDING.replace("Slave queue ID: 0\nAggregator ID: 1", "Slave queue ID: 0\nAggregator ID: 2", 1),
            DEGRADED,
        ),
        (BONDING.replace("Link Failure Count: 1", "Link Failure Count: 40"), NOTE),
        ("", UNKNOWN),
        (BONDING[:200], UNKNOWN),
    ],
)
def test_bond(text: str, expected: str) -> None:
    """One link down is degraded, all down is bad; a link in another group carries nothing."""
    assert expected == severity("bond", [ethernet.parsed_bond("bond0", text)])


def test_no_bond_is_skipped() -> None:
    """And so is a kernel without bonding."""
    assert SKIPPED == severity("bond", [])


def roce(root: Path, device: str, kinds: list[str], trust: str = "") -> None:
    port = adapter(root, device, link_layer="Ethernet", rate="200 Gb/sec (4X HDR)")
    for index, kind in enumerate(kinds):
        gid = "0000:0000:0000:0000:0000:ffff:0a64:0005" if kind else rdma.EMPTY
        write(port, **{f"gids__{index}": gid})
        if kind:
            write(port, **{f"gid_attrs__types__{index}": kind, f"gid_attrs__ndevs__{index}": f"net-{device}"})
    if trust:
        write(root / f"sys/class/net/net-{device}", qos__trust=trust)


FULL = ["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2", "", ""]


@pytest.mark.parametrize(
    ("kinds", "thresholds", "expected"),
    [
        (FULL, {}, OK),
        (FULL, {"gid_index": 3}, OK),
        (FULL, {"gid_index": 2}, BAD),
        (FULL, {"gid_index": 5}, BAD),
        (["IB/RoCE v1"], {}, DEGRADED),
        ([], {}, DEGRADED),
    ],
)
def test_roce_config(tmp_path: Path, kinds: list[str], thresholds: dict[str, Any], expected: str) -> None:
    """A RoCE v2 address on every port, at the site's index where it has one."""
    roce(tmp_path, "mlx5_0", FULL)
    roce(tmp_path, "mlx5_1", kinds)

    assert expected == severity("roce-config", probed("roce-config", Machine(str(tmp_path))), **thresholds)


def test_ports_that_trust_differently_are_told(tmp_path: Path) -> None:
    """A note: which of them is right is the site's to say."""
    roce(tmp_path, "mlx5_0", FULL, "dscp")
    roce(tmp_path, "mlx5_1", FULL, "pcp")

    assert NOTE == severity("roce-config", probed("roce-config", Machine(str(tmp_path))))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, SKIPPED),
        ({"gpu01": "10.0.0.1", "gpu02": "10.0.0.2 fd00::2"}, OK),
        ({"gpu01": "10.0.0.1", "gpu02": "!Name or service not known"}, BAD),
        ({"gpu01": "10.0.0.1", "gpu02": job_hosts.NO_ANSWER}, BAD),
        ({"gpu01": ""}, BAD),
        ({"gpu01": "127.0.1.1", "gpu02": "10.0.0.2"}, OK),
        ({"gpu01": "127.0.1.1", "gpu02": "127.0.1.1"}, DEGRADED),
    ],
)
def test_dns(found: dict[str, str], expected: str) -> None:
    """Every host has an address, and at most this node has its own loopback."""
    assert expected == severity("dns", found)


def test_names_are_resolved_within_their_time(tmp_path: Path) -> None:
    """Hosts from a list and a file, with what the resolver says, and no waiting for it."""
    (tmp_path / "hosts").write_text("# the login node\nlocalhost # twice\n\nno-such-host.invalid\n")
    thresholds = {
        **CHECKS["dns"].thresholds,
        "hosts": "localhost,127.0.0.1",
        "hosts_file": "/hosts",
        "limit_s": 8.0,
    }
    found = CHECKS["dns"].probe(Machine(str(tmp_path)), thresholds)

    assert ["localhost", "127.0.0.1", "no-such-host.invalid"] == list(found)
    assert "127.0.0.1" == found["127.0.0.1"]
    assert found["no-such-host.invalid"][:1] == "!" or found["no-such-host.invalid"] == job_hosts.NO_ANSWER
    assert BAD == severity("dns", found)


def test_who_has_no_answer_in_time_has_none() -> None:
    """A resolver that hangs costs the limit, for one host and not for all."""

    def slow(host: str) -> str:
        import time

        time.sleep(600 if host == "slow" else 0)
        return "10.0.0.1"

    for limit_s in (1.0, 5.0, 60.0):  # a busy machine takes seconds to ask at all
        found = job_hosts.asked(Machine(), ["quick", "slow"], slow, limit_s)
        if found["quick"] != job_hosts.NO_ANSWER:
            break
    assert {"quick": "10.0.0.1", "slow": job_hosts.NO_ANSWER} == found


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
        (
            "n[0-1,7]-ib,login,r[1-2]c[01,3]",
            ["n0-ib", "n1-ib", "n7-ib", "login", "r1c01", "r1c3", "r2c01", "r2c3"],
        ),
        ("a, b,", ["a", "b"]),
        ("", []),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_the_list_of_nodes_is_read_without_slurm(
    told: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have another Slurm's tools, or none: names are unfolded as Slurm does, and nobody is asked."""
    monkeypatch.setattr(Machine, "run", None)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)

    assert names == job_hosts.all_of(Machine(), {"hosts": told})


def test_a_job_of_a_million_nodes_is_cut() -> None:
    """A list is what somebody wrote: its length has a limit."""
    assert job_hosts.HOSTS_MAX == len(
        job_hosts.all_of(Machine(), {"hosts": "a[0-999999999]b[0-999999999],c[0-9]"})
    )


@pytest.mark.parametrize("told", ["gpu[01-04", "gpu01]", "gpu[]", "gpu[a-b]", "gpu[1-2-3]", "x y", "n[[1]]"])
def test_a_list_that_nobody_can_read_is_no_verdict(told: str) -> None:
    """Nothing is known of its hosts."""
    with pytest.raises(NoAnswer):
        probed("dns", Machine(), hosts=told)


NET = {"near": ("10.0.0.7",), "fast": ("10.100.3.4",)}
NO_DEFAULT = TABLE.replace("eth0\t00000000\t0100000A\t0003", "eth0\t00000000\t0100000A\t0002")


@pytest.mark.skipif(sys.byteorder != "little", reason="the table was written on a little-endian machine")
@pytest.mark.parametrize(
    ("table", "addresses", "thresholds", "expected"),
    [
        (TABLE, NET, {}, OK),
        (TABLE, {}, {}, OK),
        (TABLE, {}, {"default": True}, OK),
        (NO_DEFAULT, NET, {}, OK),
        (NO_DEFAULT, {}, {}, SKIPPED),
        (NO_DEFAULT, {}, {"default": True}, BAD),
        (NO_DEFAULT, {**NET, "far": ("192.0.2.1",)}, {}, BAD),
        (NO_DEFAULT, {"self": ("127.0.1.1",)}, {}, OK),
        (NO_DEFAULT, {"both": ("192.0.2.1", "10.0.0.9")}, {}, OK),
        (NO_DEFAULT, {"six": ()}, {}, OK),
        (TABLE.replace("ib0\t0000640A\t00000000\t0001", "*\t0000640A\t00000000\t0201"), NET, {}, BAD),
        ("", NET, {}, UNKNOWN),
        ("odd", NET, {}, UNKNOWN),
        (TABLE[:260], {}, {}, OK),
    ],
)
def test_routes(
    table: str, addresses: dict[str, tuple[str, ...]], thresholds: dict[str, Any], expected: str
) -> None:
    """The longest route that fits decides; a default route is needed where the site says so."""
    assert expected == severity("routes", reachability.RoutesFacts(table, addresses), **thresholds)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, SKIPPED),
        ({"a": "ok", "b": "refused"}, OK),
        ({"a": "ok", "b": "refused", "c": "!timed out"}, NOTE),
        ({"a": "ok", "b": "!No route to host", "c": job_hosts.NO_ANSWER}, DEGRADED),
        ({"a": "!timed out", "b": "!timed out"}, BAD),
        ({"a": "!timed out"}, UNKNOWN),
    ],
)
def test_peers(found: dict[str, str], expected: str) -> None:
    """One lost peer proves nothing against this node; none of several reached does."""
    assert expected == severity("peers", found)


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_a_refused_connection_proves_that_a_host_answers(listening: int) -> None:
    """Whether somebody listens is another question."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free = int(unused.getsockname()[1])  # nobody else's as long as it is bound

        assert ("ok", "refused") == (
            job_hosts.connect("127.0.0.1", listening, 5.0),
            job_hosts.connect("127.0.0.1", free, 5.0),
        )
    assert "!" == job_hosts.connect("no-such-host.invalid", 1, 5.0)[:1]
    found = CHECKS["peers"].probe(Machine(), {"hosts": ["127.0.0.1"], "port": listening, "limit_s": 5.0})
    assert {"127.0.0.1": "ok"} == found


@pytest.mark.parametrize(
    ("ports", "tables", "expected"),
    [
        ((), (SOCKETS,), SKIPPED),
        ((29000,), (SOCKETS,), DEGRADED),
        ((29500,), (SOCKETS,), OK),
        ((6815,), (SOCKETS,), OK),  # connected, nobody listens
        ((29500, 29000), ("", SOCKETS), DEGRADED),
        ((40000,), (SOCKETS,), NOTE),
        ((29500,), (), UNKNOWN),
        ((29500,), ("odd\nlines of\nanother kind",), OK),
    ],
)
def test_port_free(ports: tuple[int, ...], tables: tuple[str, ...], expected: str) -> None:
    """Who listens holds the port; a port that outgoing connections may take is a note."""
    assert expected == severity("port-free", reachability.PortFreeFacts(ports, tables, "32768\t60999"))


def test_a_listener_is_seen_in_the_kernel_s_own_table(
    listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real /proc: whoever listens is found, and MASTER_PORT is the port that is meant."""
    monkeypatch.setenv("MASTER_PORT", str(listening))

    assert DEGRADED == severity("port-free", probed("port-free", Machine()))
