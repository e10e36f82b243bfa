"""What lines of the kernel's log mean for a node: faults, lines that another check judges, and lines that healthy machines write. (pure)

The first rule that matches speaks. What other checks judge by better means (a driver's own
codes, counters) is not told twice. Lines of the error level that no rule knows are left to the caller: they
are shown, because tomorrow's fault is among them, and prove nothing. Hundreds of lines meet dozens of rules:
whose words stand nowhere in the log is not tried. A rule names the thing: what stands in its group `device`,
else a PCI address in the line.

Severity: bad where the machine itself says that data, a device or the kernel is lost; degraded where it says
that it recovered or was late.

Sources: the messages in the kernel's own source (mm/memory-failure.c, kernel/watchdog.c, drivers/nvme,
drivers/scsi, fs/*, net/*), in the drivers of NVIDIA/Mellanox (mlx5_core), AMD (amdgpu), Intel (habanalabs,
i40e, ice), and in public logs of clusters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple, Optional

from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK


class Rule(NamedTuple):
    """One kind of line. `severity` is "ok" for lines that say nothing against the node; `fault` is "" where
    nobody is to blame. One of `words` stands in each line that `expression` matches; () where that cannot be
    told.
    """

    severity: str
    fault: str
    title: str
    expression: str
    words: tuple[str, ...] = ()

    def search(self, text: str) -> Optional[re.Match[str]]:
        """As of `re`; compiled when it is asked for the first time, which for most rules is never."""
        return _pattern(self.expression).search(text)


@cache
def _pattern(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


_HARDWARE, _GPU, _NETWORK, _STORAGE, _NODE = "hardware-other", "hardware-gpu", "network", "storage", "node"

# severity, fault, title, pattern; the order counts.
TABLE: tuple[tuple[str, str, str, str], ...] = (
    # Judged by gpu-xid, mce, edac, pcie-aer, each by counters or codes.
    (OK, "", "another check judges it", r"NVRM: Xid|nvidia-nvswitch\S*: SXid|\bEDAC MC\d+:|Node\d+: DRAM .*ECC [Ee]rror|: Machine Check(?: Exception)?: \w+ Bank|AER: |PCIe Bus Error: severity=|pcieport \S+:\s+\[ ?\d+\] \w+|\[Hardware Error\]: CPU:\d+ .*_STATUS\["),
    (OK, "", "it went well", r"recovery succeeded|recovered after timeout|GPU reset succeeded|but soft recovered|no user action is needed|device recovery successful|nfs: server \S+ OK$|Connection restored to"),
    # Memory and processors.
    (BAD, _HARDWARE, "memory is broken, and a process was ended for it", r"Memory failure: (?P<device>0x[0-9a-f]+): (?:Sending SIGBUS|Killing)|Uncorrected hardware memory error"),
    (BAD, _HARDWARE, "broken memory stays in use", r"Memory failure: (?P<device>0x[0-9a-f]+): recovery action for .*: (?:Ignored|Failed)"),
    (DEGRADED, _HARDWARE, "broken memory was taken out of use", r"Memory failure: (?P<device>0x[0-9a-f]+): recovery action for .*: (?:Recovered|Delayed)|soft[_ ]offline: (?:0x)?[0-9a-f]+.* failed"),
    (BAD, _HARDWARE, "the processors met a fatal machine check", r"\[Hardware Error\]: Machine check: |Fatal (?:local )?machine check|Not all CPUs entered broadcast exception handler|\[Hardware Error\]: System Fatal error"),
    (DEGRADED, _HARDWARE, "a storm of corrected machine checks", r"CMCI storm detected"),
    (BAD, _HARDWARE, "the firmware reports a fatal hardware error", r"\[Hardware Error\]: event severity: fatal"),
    (DEGRADED, _HARDWARE, "the firmware reports a recoverable hardware error", r"\[Hardware Error\]: event severity: recoverable"),
    (DEGRADED, _HARDWARE, "the last boot ended with a hardware error", r"BERT: (?:\[Hardware Error\]: )?Error records from previous boot"),
    (OK, "", "corrected", r"\[Hardware Error\]:.*(?:corrected|Machine check events logged)|\[Hardware Error\]: event severity: (?:corrected|info)"),
    (BAD, _HARDWARE, "a machine too hot shuts down", r"[Cc]ritical temperature reached|HARDWARE PROTECTION shutdown"),
    (DEGRADED, _HARDWARE, "the processors were slowed down by heat", r"(?P<device>CPU\d+).*temperature(?:/speed)? (?:is )?above threshold.*total events = \d{3,}"),
    (DEGRADED, _HARDWARE, "an interrupt that nobody explains", r"NMI received for unknown reason|NMI: IOCK error"),
    (BAD, _HARDWARE, "the bus reports a system error", r"NMI: PCI system error"),
    (DEGRADED, _HARDWARE, "the processors' microcode was not loaded", r"microcode: .*update.*failed"),
    # PCI Express.
    (BAD, _HARDWARE, "a device does not come back", r"can't change power state from \S+ to D0 \(config space inaccessible\)|pciehp: .*Link Down|PCIe link lost, device now detached|infiniband (?P<device>\S+): ib_query_port failed"),
    (DEGRADED, _HARDWARE, "a link was contained", r"DPC: containment event"),
    (DEGRADED, _HARDWARE, "the IOMMU refused a device's access", r"AMD-Vi: Event logged \[|DMAR: \[DMA (?:Read|Write)\b.*fault"),
    (DEGRADED, _HARDWARE, "a device has fewer lanes than it could", r"(?:mlx5_core|nvidia|nvme|amdgpu|ice|bnxt_en)\b.*available PCIe bandwidth, limited by"),
    # Accelerators.
    (BAD, _GPU, "the GPU has fallen off the bus", r"NVRM: .*fallen off the bus|NVRM: .*GPU is lost"),
    (BAD, _GPU, "the driver could not start a GPU", r"NVRM: .*(?:RmInitAdapter|rm_init_adapter|probe routine) failed|(?:nvidia|amdgpu): probe of (?P<device>\S+) failed|NVRM: (?:No NVIDIA GPU found|None of the NVIDIA devices)|necessary power cables|PCI I/O region assigned to your NVIDIA device is invalid|NVRM: request_mem_region failed|uvm encountered global fatal error|GSP init code may have failed|Cannot initialize GSP firmware"),
    (DEGRADED, _GPU, "the GPU's firmware does not answer", r"NVRM: .*(?:GSP RPC|GPU is probably locked|likely needs to be reset|RPC (?:event )?history|postRxDetLinkMask failed)"),
    (BAD, _NODE, "the driver's module and library do not belong together", r"NVRM: API mismatch|nvidia_peermem.*Invalid argument"),
    (BAD, _GPU, "memory of the GPU is broken", r"amdgpu.*(?<!no )\b[1-9]\d* (?:new )?uncorrectable hardware errors|\}uncorrectable hardware error\(ERREVENT|reaches threshold value"),
    (BAD, _GPU, "the GPU is lost", r"amdgpu.*(?:device lost from bus|GPU reset\(\d+\) failed|Fatal error during GPU init|GPU Recovery Failed|hw_init of IP block|PSP firmware loading failed)|hw_init of IP block|habanalabs.*(?:Device heartbeat failed|Failed to reset)|amdgpu.*PSP load \w+ failed|\*ERROR\* PSP load \w+ failed"),
    (DEGRADED, _GPU, "the GPU was reset or hangs", r"amdgpu.*(?:GPU reset begin|poison is consumed|Poison is created|MES(?:\(\d+\))? failed to respond|cp might be in an unrecoverable state|SMU: I'm not done|Failed to send message|Ring \S+ reset failed|deferred hardware errors|Accelerator Check Architecture)|amdgpu_job_timedout|amdgpu.*ring \S+ timeout|qcm fence wait loop timeout|habanalabs.*Going to (?:hard|compute)-reset"),
    # Networks.
    (BAD, _NETWORK, "the driver could not take the adapter", r"(?:mlx[45]_core|bnxt_en|ice|i40e|ixgbe|igb|qede|ionic|ena|hfi1|cxi_core|irdma|be2net)\b.*(?:probe of [0-9a-f:.]{7,16} failed with error|load_one failed|probe_one:?.* failed|probe with driver \w+ failed)"),
    (BAD, _NETWORK, "the adapter's firmware has failed", r"mlx5_core.*(?:health compromised|health recovery flow aborted|assert_var\[0\] 0x(?!0+\b)|severity\([0-3]\) ERROR|unrecoverable hardware error|handling bad device here|pre-initializing state, aborting)|mlx4_core.*Internal error detected|bnxt_en.*Firmware not responding|hfi1.*Please REBOOT|efa.*didn't send any completion|gve .*AQ commands timed out"),
    (BAD, _NETWORK, "the adapter's module or cable is broken", r"Port module event\[error\]|hfi1.*QSFP cable temperature|SENSOR_ALERT.*fatal state|adapter has been stopped because it has over ?heated"),
    (DEGRADED, _NETWORK, "the adapter did not answer a command", r"mlx5_core.*(?:timeout\. Will cause a leak|status internal error|High temperature on sensors|TX timeout detected|Error cqe on|did not return all pages)"),
    (DEGRADED, _NETWORK, "packets were stuck in the adapter", r"NETDEV WATCHDOG: (?P<device>\S+)|Detected Tx Unit Hang|Fake Tx hang|ib\d+: (?:transmit timeout|failed send event)|Keep alive watchdog timeout|Rx/Tx is disabled on this device because an unsupported"),
    (DEGRADED, _NETWORK, "a link went down", r"(?:mlx5_core|i40e|ice|ixgbe|bnxt_en|hfi1|cxi\S*|igb|tg3)\b.*(?:[Ll]ink (?:[Dd]own|DOWN)|NIC Link is Down|taking link down)"),
    (BAD, _NETWORK, "a bond has no link left", r"now running without any active interface"),
    (DEGRADED, _NODE, "a table of the network is full", r"nf_conntrack: table full|neighbor table overflow|TCP: out of memory"),
    (DEGRADED, _NETWORK, "another machine has this address", r"IPv6 duplicate address .* detected"),
    # Disks and file systems.
    (BAD, _STORAGE, "a drive is gone", r"(?P<device>nvme\d+)(?:n\d+)?: (?:controller is down|Disabling device after reset|Removing after probe failure|Device not ready)|rejecting I/O to (?:offline|dead) device|no available path - failing I/O"),
    (DEGRADED, _STORAGE, "a drive was late and is reset", r"(?P<device>nvme\d+): I/O (?:tag )?\d+.* timeout|(?P<other>ata\d+)(?:\.\d+)?: (?:exception Emask|error: \{)|(?P<third>ata\d+): (?:hard|soft) resetting link"),
    (BAD, _STORAGE, "a drive cannot read or write", r"(?:I/O|critical medium|critical target) error, dev (?!(?:loop|sr|fd)\d)(?P<device>\w+)|Sense Key : (?:Medium|Hardware) Error|Buffer I/O error on dev(?:ice)? (?!(?:loop|sr|fd)\d)(?P<other>\S+?),|attempt to access beyond end of device"),
    (BAD, _STORAGE, "an array or a controller has failed", r"md/raid\S*: Disk failure on \S+ detected, failing array|not enough operational devices|mpt3sas\S+: fault_state|FW in FAULT state|Pool '\S+' has encountered an uncorrectable I/O failure"),
    (DEGRADED, _STORAGE, "an array has lost a drive or a path", r"md/raid\S*: Disk failure on (?P<device>\w+)|multipath: .*Failing path (?P<other>\S+?)\.?$|switching pool to out-of-data-space"),
    (BAD, _STORAGE, "a file system has broken off", r"EXT4-fs error \(device (?P<device>[^)]+)\)|EXT4-fs \((?P<other>[^)]+)\): Remounting filesystem read-only|Aborting journal on device (?P<fifth>\S+)|XFS \((?P<third>[^)]+)\): .*(?:[Ss]hut(?:ting)? ?down|corruption detected)|BTRFS (?:error|critical) \(device (?P<fourth>[^)]+)\)|LBUG\b"),
    (DEGRADED, _STORAGE, "a file server does not answer", r"nfs: server (?P<device>\S+) not responding|NFS: state manager: .* failed|LustreError: .*(?:was evicted by|BAD WRITE CHECKSUM|was lost; in progress)|LNetError: .*Timed out|libceph: .*session lost|ceph: client is blocklisted|ceph: mds\d+ reconnect denied"),
    # The kernel itself.
    (BAD, "oom-host", "the kernel gave up for want of memory", r"Kernel panic - not syncing: (?:System is deadlocked on memory|Out of memory)"),
    (BAD, _NODE, "the kernel is broken", r"PANIC: double fault|Kernel panic - not syncing|\bBUG: (?:unable to handle|Bad page|kernel NULL|scheduling while atomic)|general protection fault.*\[#\d+\]|Oops: |kernel BUG at|list_(?:add|del) corruption"),
    (BAD, _NODE, "a processor is stuck", r"hard LOCKUP"),
    (DEGRADED, _NODE, "a processor was stuck", r"soft lockup - (?P<device>CPU#\d+)|workqueue lockup|rcu\S*: (?:INFO: )?\S+ (?:self-)?detected (?:expedited )?stalls?"),
    (DEGRADED, _STORAGE, "a task hangs in the kernel", r"INFO: task (?P<device>\S+):\d+ blocked for more than"),
    (DEGRADED, _NODE, "the table of open files is full", r"file-max limit \d+ reached"),
    # Jobs' own affairs, and the chatter of healthy machines.
    (NOTE, "", "memory ran out", r"^Out of memory: Killed process|page allocation failure"),
    (OK, "", "a job reached its own limit", r"Memory cgroup out of memory|oom-kill:constraint=CONSTRAINT_MEMCG|fork rejected by pids controller|segfault at|traps: "),
    (OK, "", "chatter", r"CPU\d+.*temperature(?:/speed)? (?:is )?above threshold|temperature/speed normal|Firmware Bug|^ACPI|^ERST|^GHES|^x86/|^kvm|^DMAR-IR|^Spectre|^RETBleed|^MDS:|^TAA:|^MMIO|^SRSO|^GDS:|^i8042|^tpm|^usb |^hub |^Bluetooth|^snd_|^platform |^cfg80211|^vga|^nouveau|^ast |^mgag200|^squashfs|^FAT-fs|^audit|^ipmi_si|^ses |^mei_|^RAPL|^intel_rapl|^i2c |^hid|^usbhid|^igb .*PHY"),
    (OK, "", "a drive without a cache of its own", r"Asking for cache data failed|Assuming drive cache|No Caching mode page"),
    (OK, "", "empty or virtual drives", r"I/O error, dev (?:loop|sr|fd)\d|Buffer I/O error on dev(?:ice)? (?:loop|sr|fd)\d"),
)  # fmt: skip

# Words of which one stands in every line that a rule matches, in the order of the table: written by `make docs` from its expressions.
# fmt: off
WORDS: tuple[tuple[str, ...], ...] = (
    (": DRAM ", ": Machine Check", "AER: ", "EDAC MC", "NVRM: Xid", "PCIe Bus Error: severity=", "[Hardware Error]: CPU:", "nvidia-nvswitch", "pcieport "),
    ("Connection restored to", "GPU reset succeeded", "but soft recovered", "device recovery successful", "nfs: server ", "no user action is needed", "recovered after timeout", "recovery succeeded"),
    ("Memory failure: ", "Uncorrected hardware memory error"),
    (": recovery action for ",),
    (": recovery action for ", "offline: "),
    ("Not all CPUs entered broadcast exception handler", "[Hardware Error]: Machine check: ", "[Hardware Error]: System Fatal error", "machine check"),
    ("CMCI storm detected",),
    ("[Hardware Error]: event severity: fatal",),
    ("[Hardware Error]: event severity: recoverable",),
    ("Error records from previous boot",),
    ("[Hardware Error]:",),
    ("HARDWARE PROTECTION shutdown", "ritical temperature reached"),
    ("above threshold",),
    (" received for unknown reason", ": IOCK error"),
    ("NMI: PCI system error",),
    ("microcode: ",),
    (" to D0 (config space inaccessible)", ": ib_query_port failed", "Link Down", "PCIe link lost, device now detached"),
    ("DPC: containment event",),
    ("AMD-Vi: Event logged [", "DMAR: [DMA "),
    ("available PCIe bandwidth, limited by",),
    ("GPU is lost", "fallen off the bus"),
    (" NVIDIA GPU found", ": probe of ", "Cannot initialize GSP firmware", "GSP init code may have failed", "NVRM: request_mem_region failed", "PCI I/O region assigned to your NVIDIA device is invalid", "RmInitAdapter", "ne of the NVIDIA devices", "necessary power cables", "probe routine", "rm_init_adapter", "uvm encountered global fatal error"),
    ("GPU is probably locked", "GSP RPC", "history", "likely needs to be reset", "postRxDetLinkMask failed"),
    ("Invalid argument", "NVRM: API mismatch"),
    ("reaches threshold value", "uncorrectable hardware errors", "}uncorrectable hardware error(ERREVENT"),
    ("*ERROR* PSP load ", "Device heartbeat failed", "Failed to reset", "Fatal error during GPU init", "GPU Recovery Failed", "GPU reset(", "PSP firmware loading failed", "PSP load ", "device lost from bus", "hw_init of IP block"),
    (" failed to respond", " reset failed", " timeout", "Accelerator Check Architecture", "Failed to send message", "GPU reset begin", "Poison is created", "SMU: I'm not done", "amdgpu_job_timedout", "cp might be in an unrecoverable state", "deferred hardware errors", "habanalabs", "poison is consumed", "qcm fence wait loop timeout"),
    (" failed with error", "load_one failed", "probe with driver ", "probe_one"),
    ("AQ commands timed out", "Firmware not responding", "Internal error detected", "Please REBOOT", "didn't send any completion", "mlx5_core"),
    ("Port module event[error]", "QSFP cable temperature", "SENSOR_ALERT", "adapter has been stopped because it has over"),
    ("Error cqe on", "High temperature on sensors", "TX timeout detected", "did not return all pages", "status internal error", "timeout. Will cause a leak"),
    ("Detected Tx Unit Hang", "Fake Tx hang", "Keep alive watchdog timeout", "NETDEV WATCHDOG: ", "Rx/Tx is disabled on this device because an unsupported", "failed send event", "transmit timeout"),
    ("NIC Link is Down", "ink ", "taking link down"),
    ("now running without any active interface",),
    ("TCP: out of memory", "neighbor table overflow", "nf_conntrack: table full"),
    ("IPv6 duplicate address ",),
    ("Device not ready", "Disabling device after reset", "Removing after probe failure", "controller is down", "no available path - failing I/O", "rejecting I/O to "),
    (" resetting link", " timeout", "rror: {", "xception Emask"),
    (" error, dev ", "Buffer I/O error on dev", "Sense Key : ", "attempt to access beyond end of device"),
    (" detected, failing array", "' has encountered an uncorrectable I/O failure", ": fault_state", "FW in FAULT state", "not enough operational devices"),
    (": Disk failure on ", "Failing path ", "switching pool to out-of-data-space"),
    (" (device ", "): Remounting filesystem read-only", "Aborting journal on device ", "EXT4-fs error (device ", "LBUG", "XFS ("),
    (" not responding", " reconnect denied", "BAD WRITE CHECKSUM", "LNetError: ", "NFS: state manager: ", "ceph: client is blocklisted", "session lost", "was evicted by", "was lost; in progress"),
    ("Kernel panic - not syncing: ",),
    (" corruption", "Bad page", "Kernel panic - not syncing", "Oops: ", "PANIC: double fault", "general protection fault", "kernel BUG at", "kernel NULL", "scheduling while atomic", "unable to handle"),
    ("hard LOCKUP",),
    ("detected ", "soft lockup - ", "workqueue lockup"),
    (" blocked for more than",),
    ("file-max limit ",),
    ("Out of memory: Killed process", "page allocation failure"),
    ("Memory cgroup out of memory", "fork rejected by pids controller", "oom-kill:constraint=CONSTRAINT_MEMCG", "segfault at", "traps: "),
    ("ACPI", "Bluetooth", "DMAR-IR", "ERST", "FAT-fs", "Firmware Bug", "GDS:", "GHES", "MDS:", "MMIO", "RAPL", "RETBleed", "SRSO", "Spectre", "TAA:", "above threshold", "ast ", "audit", "cfg80211", "hid", "hub ", "i2c ", "i8042", "igb ", "intel_rapl", "ipmi_si", "kvm", "mei_", "mgag200", "nouveau", "platform ", "ses ", "snd_", "squashfs", "temperature/speed normal", "tpm", "usb ", "usbhid", "vga", "x86/"),
    ("Asking for cache data failed", "Assuming drive cache", "No Caching mode page"),
    ("Buffer I/O error on dev", "I/O error, dev "),
)
# fmt: on

RULES = tuple(Rule(*row, words) for row, words in zip(TABLE, WORDS))
_ADDRESS = re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]\b")


def rules_for(texts: Iterable[str]) -> tuple[Rule, ...]:
    """The rules that any of these lines may be of, in their order: on a healthy machine a few."""
    whole = "\n".join(texts)
    return tuple(rule for rule in RULES if not rule.words or any(word in whole for word in rule.words))


def rule_of(text: str, among: Sequence[Rule] = RULES) -> Optional[Rule]:
    """The rule for a line (without its time); None for a line that nobody knows."""
    return next((rule for rule in among if rule.search(text)), None)


def device_of(rule: Rule, text: str) -> str:
    """Which device, drive or processor a line is about; "" where it does not tell."""
    found = rule.search(text)
    named = next((name for name in (found.groups() if found else ()) if name), "")
    address = _ADDRESS.search(text)
    return named or (address.group() if address else "")
