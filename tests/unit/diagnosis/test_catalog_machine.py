"""What the catalog says of machines, links and file systems: the laws that single rows could break. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, Evidence, FaultClass, Layer, Role, Source, Topology
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.scanner import Scanner

CATALOG = catalog.load()
OURS = {Layer.HARDWARE, Layer.NETWORK, Layer.STORAGE, Layer.NODE}

ALL_CLEAR = [
    "  12 | 02/06/2026 | 18:31:50 | Power Supply PS1 Status | Power Supply AC lost | Deasserted",
    "  19 | 10/16/2026 | 18:38:41 | Temperature Inlet Temp | Upper Critical going high | Deasserted",
    "{1}[Hardware Error]: event severity: corrected",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090",
    "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
    "pcieport 0000:00:03.0: AER: device recovery successful",
    "Lustre: scratch-OST0012-osc-ffff8a3c: Connection restored to 10.10.0.12@o2ib (at 10.10.0.12@o2ib)",
    "nfs: server nas3 OK",
    "mlx5_core 0000:5c:00.0 ens1f0np0: Link up",
    "bond0: (slave ens1f1np1): link status definitely up, 100000 Mbps full duplex",
    "gpu01:811:900 [0] NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port active(9)",
    "Node Health Check completed successfully (2s).",
    "ata3: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "chronyd[812]: Selected source 10.1.0.1",
    "SMART overall-health self-assessment test result: PASSED",
    "mlx5_core 0000:5e:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
]


def _judged(text: str, *, times: int = 1, topology: Topology | None = None) -> Diagnosis:
    hits = Scanner(CATALOG, engine="re").feed(f"{text}\n".encode() * times)
    evidence = [
        Evidence(
            source=Source.KERNEL,
            signature=hit.signature,
            text=hit.text,
            file="kern.log",
            line=hit.line,
            offset_bytes=hit.offset_bytes,
            order=hit.line,
            captures=hit.captures,
        )
        for hit in hits
    ]
    return diagnose(Facts(evidence, topology or Topology(), ended=None, catalog=CATALOG))


@pytest.mark.parametrize("text", ALL_CLEAR)
def test_an_all_clear_is_no_fault(text: str) -> None:
    """Words of a fault in a line that tells of its end, or of its correction, blame nobody."""
    found = _judged(text)

    assert found.fault is FaultClass.HEALTHY
    assert found.nodes == ()


def test_a_server_that_a_client_names_is_never_the_culprit() -> None:
    """File systems and name services say who did not answer; a fault of the cluster has no culprit among the nodes."""
    accused = [
        (signature.id, text)
        for signature in CATALOG.signatures
        if signature.layer in OURS and signature.blame == "cluster"
        for text in signature.examples
        if _judged(text).nodes
    ]

    assert accused == []


def test_a_remark_of_the_machine_has_no_consequence() -> None:
    """What is for information costs no node, no attempt and no wait."""
    wrong = [
        signature.id
        for signature in CATALOG.signatures
        if signature.layer in OURS
        and signature.role is Role.INFO
        and (signature.exclude or signature.action != "none")
    ]

    assert wrong == []


def test_a_node_is_kept_for_a_few_corrected_errors_and_left_for_a_stream() -> None:
    """Memory that corrects itself now and then is healthy; one that does so all the time wants to be replaced."""
    text = "Mar  2 10:11:12 gpu07 kernel: EDAC MC0: 1 CE error on CPU#0Channel#2_DIMM#0 (channel:2 slot:0)"
    few, many = _judged(text, times=2), _judged(text, times=8)

    assert (few.exclude, few.nodes) == (False, ())
    assert (many.exclude, many.nodes) == (True, ("gpu07",))


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_81_0'", "oom-host-shm-full"),
        ("OSError: [Errno 28] No space left on device: '/tmp/torchinductor_u/abc.so'", "storage-full-local"),
        ("OSError: [Errno 28] No space left on device: '/scratch/u/ckpt/step100.pt'", "storage-full"),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/u/ck/step100.pt'", "storage-quota"),
        ("OSError: [Errno 28] inotify watch limit reached", "storage-watches"),
    ],
)
def test_what_is_full_is_told_apart(text: str, signature: str) -> None:
    """The same words mean shared memory, the node's own disk, the file system, a quota or a limit, by what stands around them."""
    assert _judged(text).signature == signature


@pytest.mark.parametrize(
    ("when", "host"),
    [
        ("Mar  2 10:11:12 gpu07 kernel:", ("gpu07",)),
        ("2026-03-02T10:11:12.123456+01:00 gpu07 kernel:", ("gpu07",)),
        ("2026-03-02 10:11:12 gpu07 kernel:", ("gpu07",)),
        ("[Mon Mar  2 10:11:12 2026] gpu07 kernel:", ("gpu07",)),
        ("2026-03-02 10:11:12 INFO worker[12]", ()),
    ],
)
def test_a_system_log_names_its_host_in_every_style_of_date(when: str, host: tuple[str, ...]) -> None:
    """The word between a date and the kernel's name is a host; between a date that programs use, too, and a program it is not."""
    assert _judged(f"{when} watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:81]").nodes == host
