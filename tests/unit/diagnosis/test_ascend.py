"""Laws of the Ascend catalog: codes in every place they are printed, and whom the lines of a broken collective accuse. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Action, Diagnosis, Evidence, FaultClass, Role, Source, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.scanner import Scanner

CATALOG = catalog.load()
AGENT = "device fault, nodeName:n2, assertion:{what}, cardID:5, deviceID:0, faultCodes:{codes}, faultLevelName:X, alarmRaisedTime:2026-02-03 05:36:53"
SWITCH = 'switch subscribe got fault:deviceswitch.SwitchFaultEvent{{EventType:0x4, AssembledFaultCode:"[0x00f103b0,155907,na,na]", Severity:0x0, Assertion:{what}, EventSerialNum:0}}'
WAITED = "EI0002: [PID: 7277] 2026-02-05-11:59:30.645.648 The wait execution of the Notify register times out. Reason: The Notify register has not received the Notify record from remote rank [unknown]."
LOST = "Cluster Exception Location[IP/ID]:[10.0.0.2/1], Arrival Time:[Thu Feb  5 11:56:34 2026], Discoverer:[10.0.0.1/0], ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. Process has exited, 2. Network Disconnected"
NODES = Topology(nodes=("n1", "n2"), address_node={"10.0.0.1": "n1", "10.0.0.2": "n2"})


def _evidence(lines: Sequence[str]) -> list[Evidence]:
    hits = Scanner(CATALOG, engine="re").feed("".join(f"{line}\n" for line in lines).encode())
    return [
        Evidence(
            Source.LOG,
            hit.signature,
            hit.text,
            file="job.log",
            line=hit.line,
            offset_bytes=hit.offset_bytes,
            order=hit.line,
            captures=hit.captures,
        )
        for hit in hits
    ]


def _judged(*lines: str, topology: Topology = NODES) -> Diagnosis:
    return diagnose(Facts(_evidence(lines), topology, ended=None, catalog=CATALOG))


def _said(line: str) -> list[str]:
    return [one.signature for one in _evidence([line])]


def test_every_code_with_a_level_is_known() -> None:
    """802 of chips, 59 of servers, 30 of switches, 30 of the cluster's monitors."""
    known = {name: len(table.codes) for name, table in CATALOG.tables.items()}

    assert {"ascend": 802, "ascend-node": 59, "ascend-switch": 30, "ascend-public": 30} == {
        name: count for name, count in known.items() if name.startswith("ascend")
    }


def test_every_code_makes_a_signature_that_agrees_with_its_class() -> None:
    """Only what is a cause or may be one acts, only nodes, devices and links are left out, and each has the maker's word."""
    codes = [CATALOG.by_id[name] for table in CATALOG.tables.values() for name in table.codes]

    assert [] == [s.id for s in codes if s.role is Role.INFO and s.action is not Action.NONE]
    assert [] == [s.id for s in codes if s.exclude and s.blame not in {"node", "device", "link"}]
    assert [] == [s.id for s in codes if s.id.startswith("ascend") and not s.vendor]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[klogd.c:242][583733.716915] event_id=0x80e01801", "80e01801"),
        ("[tsdaemon.cpp:1811][RunSpecialProcess][tid:4717] [TsdEVENT] Event id=0x8c17a005.", "8c17a005"),
        ("event_id:  [0x80c78008]", "80c78008"),
        ("\tError Code                     : A4025021 8C03A000 8C084E00", "8c03a000"),
        ("npu error code: 0x80E18402", "80e18402"),
        ("rank id: 3, log id: 3, policy: isolate, error code: 80E18005", "80e18005"),
        (AGENT.format(what="Occur", codes="81078603,80E0020B"), "80e0020b"),
        (
            r"{\"npu_name\":\"Ascend910-4\",\"fault_level\":\"X\",\"fault_code\":\"A8028801,80E18402,80E18401\"}",
            "80e18402",
        ),
        ("receive ts exception msg, call excep_code=0xb4060007, time=1.9s, devid=1 tsid=0", "b4060007"),
        ("get fault event, [device type: CPU]-[device id: 1]-[error code: 2C000031]", "node-2c000031"),
        ("2026-02-03 10:12:13 | Major | CPU1 | 0x0000001D | CPU 1 error | Asserted", "node-0000001d"),
        (SWITCH.format(what="0x1"), "switch-0x00f103b0-155907-na-na"),
        (
            "faultId: 7f3a, faultType: Network, faultCode: 220001001, faultTime: 1769866717, assertion: occur",
            "public-220001001",
        ),
    ],
)
def test_a_code_is_found_wherever_it_is_printed(line: str, code: str) -> None:
    """In the device's log, npu-smi, the agents of the cluster, the board's log; of several the worst."""
    assert [f"ascend-{code}"] == _said(line)


@pytest.mark.parametrize(
    "line",
    [
        AGENT.format(what="Recovery", codes="80E18402"),
        SWITCH.format(what="0x0"),
        '      "EventId": ["80E18402","80E18005"],',
        'huawei.com/schedule.filter.faultCode: "8C1F8608,4C1F8608,80E01801"',
        '  "SeparateNPUCodes":["80E18402"],',
        "2026-02-03 10:15:13 | Major | CPU1 | 0x0000001D | CPU 1 error | Deasserted",
        "\tError Code                     : NA",
        "\tHealth Status                  : OK",
        "error code: 0x80070005",
        "[EVENT] HCCL(107,python):2026-02-05-02:15:14.633.679 [externalinput.cc:457][107][107]environmental variable HCCL_CONNECT_TIMEOUT is set, timeOut[600]",
        "[EVENT] HCCL(55,python):2026-02-05-06:25:51.049.901 [externalinput.cc:969][55]ExecTimeOut is set to timeOut[120]",
    ],
)
def test_a_code_in_a_setting_or_one_that_is_over_is_no_fault(line: str) -> None:
    """A list of codes in a configuration, a recovery and a healthy device accuse nobody."""
    assert all(CATALOG.by_id[name].role is Role.INFO for name in _said(line))


def test_an_agent_that_names_its_node_accuses_it() -> None:
    """The host of the device stands in the line."""
    found = _judged(AGENT.format(what="Occur", codes="80E18402"))

    assert (FaultClass.HARDWARE_GPU, ("n2",), True) == (found.fault, found.nodes, found.exclude)


def test_the_process_that_has_gone_is_accused_and_not_those_who_waited() -> None:
    """HCCL names the location of the exception inside the time-out of a healthy rank."""
    found = _judged("RuntimeError: x NPU function error: y(stream), error code is 507048", WAITED, LOST)

    assert ("hccl-exception-location", ("n2",)) == (found.signature, found.nodes)


def test_the_one_rank_that_never_connected_is_accused() -> None:
    """The root rank lists who is absent; those who came waited, and are alive."""
    ranks = Topology(nodes=("n1", "n2"), rank_node={0: "n1", 1: "n2"})
    root = "topo exchange server get socket timeout! timeout[120 s]"
    listed = "[TopoInfoExchangeServer][Setup]Broadcast Rank Basic Infos failed, connectFailedAgentIdList[1,]"

    found = _judged(root, listed, topology=ranks)

    assert (FaultClass.HANG, ("n2",), False) == (found.fault, found.nodes, found.exclude)


def test_a_user_error_stands_above_the_process_that_it_ended() -> None:
    """A rank that ends on its own exception falls silent for the others, and no node is to blame."""
    found = _judged("KeyError: 'input_ids'", WAITED, LOST)

    assert (FaultClass.USER_CODE, False, ()) == (found.fault, found.retry, found.nodes)


def test_a_code_of_the_device_stands_above_the_software_that_noticed_it() -> None:
    """An operator that failed on a device whose memory is broken was not the operator's fault."""
    found = _judged(
        "[klogd.c:242][583733.716915] event_id=0x80e18402",
        "The error from device(chipId:2, dieId:0), serial number is 13, there is an exception of aivec error, core id is 43, error code = 0",
        "RuntimeError: ACL stream synchronize failed, error code:507035",
    )

    assert (FaultClass.HARDWARE_GPU, "ascend-80e18402") == (found.fault, found.signature)


def test_a_wrapper_alone_is_tried_once_more_and_blames_nobody() -> None:
    """Device stopped, suspected remote, inner error: what others print when one has failed."""
    found = _judged(
        "RuntimeError: NPU function error: FORCE STOP., error code is 107022",
        "RuntimeError: NPU function error: SUSPECT REMOTE ERROR., error code is 507057",
        "RuntimeError: The Inner error is reported as above.",
    )

    assert (FaultClass.UNKNOWN, True, ()) == (found.fault, found.retry, found.nodes)


def test_what_no_other_try_mends_is_not_tried_again() -> None:
    """Rank tables, arguments and device memory stay as they are."""
    for line in (
        "EI0005: The arguments for collective communication are inconsistent between ranks: tag [x], parameter [count], local [1], remote [2]",
        "RuntimeError: NPU out of memory. Tried to allocate 260.00 MiB (NPU 0; 28.50 GiB total capacity)",
        "RuntimeError: call aclnnMatmul failed, error code is 161002",
    ):
        assert not _judged(line).retry
