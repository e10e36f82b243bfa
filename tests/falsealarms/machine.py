"""What healthy machines print: kernels at boot, drivers, file systems, and the reports of their tools. (pure)

Formats: the Linux kernel and the drivers' sources, nvidia-smi -q, npu-smi, rocm-smi, ibstat, dcgmi; all names and numbers are made up.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.falsealarms.dice import Dice

__all__ = ["FORMATS"]

BOOT = (
    "Linux version 5.15.0-122-generic (build@builder) (gcc 11.4.0) #132 SMP Thu Aug 29 13:45:52 UTC 2024",
    "Command line: BOOT_IMAGE=/vmlinuz root=UUID=0a ro crashkernel=512M iommu=pt panic=10 mce=bootlog pci=noaer",
    "BIOS-e820: [mem 0x0000000000000000-0x000000000009ffff] usable",
    "x86/fpu: Supporting XSAVE feature 0x001: 'x87 floating point registers'",
    "Spectre V1 : Mitigation: usercopy/swapgs barriers and __user pointer sanitization",
    "MDS: Vulnerable: Clear CPU buffers attempted, no microcode",
    "L1TF CPU bug present and SMT on, data leak possible. See CVE-2018-3646 for details.",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "mce: Using 20 MCE banks",
    "RAS: Correctable Errors collector initialized.",
    "MCE: In-kernel MCE decoding enabled.",
    "EDAC MC: Ver: 3.0.0",
    "EDAC i10nm: No hbm memory",
    "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0: DEV 0000:fe:0c.0 (INTERRUPT)",
    "EDAC amd64: F19h detected (node 0).",
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00.DRAM], AE_NOT_FOUND (20210730/psargs-330)",
    "ACPI Error: Aborting method \\_SB.PMI0._GHL due to previous error (AE_NOT_EXIST) (20210730/psparse-529)",
    "ACPI Error: No handler for Region [POWR] (00000000@hex) [IPMI] (20210730/evregion-130)",
    "ACPI: Enabled 4 GPEs in block 00 to 7F",
    "ACPI: SPCR: Unexpected SPCR Access Width. Defaulting to byte size",
    "[Firmware Bug]: TSC ADJUST differs within socket(s), fixing all errors",
    "[Firmware Bug]: the BIOS has corrupted hw-PMU resources (MSR 38d is 330)",
    "ERST: Error Record Serialization Table (ERST) support is initialized.",
    "HEST: Table parsing has been initialized.",
    "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    "GHES: HEST is not enabled!",
    "BERT: Boot Error Record Table support is disabled. Enable it by using bert_enable as kernel parameter.",
    'PCI: Using host bridge windows from ACPI; if necessary, use "pci=nocrs" and report a bug',
    "pci @pci: BAR 13: failed to assign [io  size 0x1000]",
    "pci @pci: BAR 7: no space for [mem size 0x00100000 64bit]",
    "pci @pci: can't claim BAR 6 [mem 0xfff80000-0xffffffff pref]: no compatible bridge window",
    "pci @pci: PME# supported from D0 D3hot D3cold",
    "pci @pci: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at @pci (capable of 126.024 Gb/s with 32.0 GT/s PCIe x4 link)",
    "pcieport @pci: PME: Signaling with IRQ 32",
    "pcieport @pci: AER: enabled with IRQ 32",
    "pcieport @pci: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+ RP PIO Log 4, DL_ActiveErr+",
    "pcieport @pci: pciehp: Slot #@few AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+ Interlock- NoCompl+ IbPresDis- LLActRep+",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
    "nvidia: loading out-of-tree module taints kernel.",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "nvidia: module license 'NVIDIA' taints kernel.",
    "Disabling lock debugging due to kernel taint",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@few)  Tue Feb 25",
    "NVRM: The NVIDIA GPU driver for the persistence mode is set up by nvidia-persistenced",
    "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  570.124.06",
    "[drm] [nvidia-drm] [GPU ID 0x00001b00] Loading driver",
    "[drm:nv_drm_load [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00001b00] Failed to allocate NvKmsKapiDevice",
    "nvidia @pci: Direct firmware load for nvidia/570.124.06/gsp_ga10x.bin succeeded",
    "nvidia-uvm: Loaded the UVM driver, major device number 508.",
    "nvidia-nvswitch0: using MSI",
    "nvidia-nvswitch: Probing device @pci, Vendor Id = 0x10de, Device Id = 0x22a3, Class = 0x68000 ",
    "nvidia_peermem: module loaded",
    "amdgpu @pci: amdgpu: Fetched VBIOS from VFCT",
    "amdgpu @pci: amdgpu: MEM ECC is active.",
    "amdgpu @pci: amdgpu: SRAM ECC is active.",
    "amdgpu @pci: amdgpu: RAS INFO: ras initialized successfully, hardware ability[7fff] ras_mask[7fff]",
    "amdgpu @pci: amdgpu: no uncorrectable hardware errors detected in umc block",
    "[drm] add ip block number 5 <gfx_v9_4_3>",
    "mlx5_core @pci: firmware version: 28.39.1002",
    "mlx5_core @pci: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x8 link)",
    "mlx5_core @pci: Rate limit: 127 rates are supported, range: 0Mbps to 195312Mbps",
    "mlx5_core @pci: Port module event: module 0, Cable unplugged",
    "mlx5_core @pci: Port module event: module 0, Cable plugged",
    "mlx5_core @pci: mlx5_pcie_event:299:(pid @pid): PCIe slot advertised sufficient power (75W).",
    "mlx5_core @pci: mlx5_pcie_event:304:(pid @pid): Detected insufficient power on the PCIe slot (27W).",
    "mlx5_core @pci: mlx5_cmd_out_err:808:(pid @pid): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3), syndrome (0x15c356), err(-22)",
    "mlx5_core @pci mlx5_0: Port: 1 Link ACTIVE",
    "mlx5_core @pci: mlx5e_ipsec_init: IPsec offload is not supported",
    "mlx5_core @pci: E-Switch: Total vports 2, per vport: max uc(128) max mc(2048)",
    "infiniband mlx5_0: renamed from mlx5_bond_0",
    "ib0: multicast join failed for ff12:401b:ffff:0000:0000:0000:0000:0001, status -22",
    "IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready",
    "IPv6: ADDRCONF(NETDEV_UP): ib0: link is not ready",
    "i40e @pci: The driver for the device detected a newer version of the NVM image than expected. Please install the most recent version of the network driver.",
    "nvme nvme0: pci function @pci",
    "nvme nvme0: 32/0/0 default/read/poll queues",
    "nvme nvme0: missing or invalid SUBNQN field.",
    "nvme nvme1: Shutdown timeout set to 10 seconds",
    "nvme0n1: p1 p2 p3",
    "ata1: SATA link down (SStatus 0 SControl 300)",
    "ata7.00: supports DRM functions and may not be fully accessible",
    "sd 0:0:0:0: [sda] No Caching mode page found",
    "sd 0:0:0:0: [sda] Assuming drive cache: write through",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: errors=remount-ro. Quota mode: none.",
    "EXT4-fs (nvme0n1p2): re-mounted. Opts: errors=remount-ro. Quota mode: none.",
    "EXT4-fs (nvme0n1p3): recovery complete",
    "XFS (nvme1n1): Mounting V5 Filesystem",
    "XFS (nvme1n1): Ending clean mount",
    "systemd[1]: Failed to find module 'autofs4'",
    "systemd[1]: Condition check resulted in Dispatch Password Requests to Console being skipped.",
    "systemd-journald[812]: File /var/log/journal/system.journal corrupted or uncleanly shut down, renaming and replacing.",
    "Lustre: Lustre: Build Version: 2.15.5",
    "LNet: HW NUMA nodes: 2, HW CPU cores: 128, npartitions: 8",
    "LNet: Added LNI @ip@o2ib [32/1024/0/180]",
    "LNet: Using FastReg for registration",
    "Lustre: Mounted scratch-client",
    "Lustre: scratch-OST0003-osc-ffff@hex: Connection restored to @ip@o2ib (at @ip@o2ib)",
    "Lustre: Layout lock feature supported.",
    "FS-Cache: Netfs 'nfs' registered for caching",
    "RPC: Registered rdma transport module.",
    "NFS: Registering the id_resolver key type",
    "mmfs: module verification failed: signature and/or required key missing - tainting kernel",
    "beegfs: enabled. Version: 7.4.2",
    "beegfs: mount(@pid): BeeGFS mount ready.",
    "ipmi_si IPI0001:00: The BMC does not support clearing the recv irq bit, compensating, but the BMC needs to be fixed.",
    "ipmi_si IPI0001:00: IPMI message handler: Found new BMC (man_id: 0x0002a2, prod_id: 0x0100, dev_id: 0x20)",
    "power_meter ACPI000D:00: Found ACPI power meter.",
    "power_meter ACPI000D:00: Ignoring unsafe software power cap!",
    "intel_rapl_common: Found RAPL domain package",
    "watchdog: Delayed init of the lockup detector failed: -95",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "rcu: Hierarchical RCU implementation.",
    "rcu: \tRCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=256.",
    "Kernel panic on oops is set by kernel.panic_on_oops = 0",
    "kexec: crash kernel reserved, kdump: loaded kdump kernel",
    "perf: interrupt took too long (2512 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "hrtimer: interrupt took 12345 ns",
    "clocksource: timekeeping watchdog on CPU12: hpet wd-wd read-back delay of 51200ns",
    "clocksource: wd-tsc-wd read-back delay of 132400ns, clock-skew test skipped!",
    "TCP: request_sock_TCP: Possible SYN flooding on port @port. Sending cookies.",
    "nf_conntrack: default automatic helper assignment has been turned off for security reasons",
    'audit: type=1400 audit(@unix:12): apparmor="STATUS" operation="profile_load" name="nvidia_modprobe" pid=@pid',
    "loop: module loaded",
    "squashfs: version 4.0 (2009/01/31) Phillip Lougher",
    'overlayfs: "xino" feature enabled using 2 upper inode bits.',
    "docker0: port 1(veth@few) entered disabled state",
    "process 'opt/env/bin/python' started with executable stack",
    "python[@pid]: segfault handler installed",
    "CPU15: Core temperature above threshold, cpu clock throttled (total events = 1)",
    "CPU15: Core temperature/speed normal",
    "mce: CPU15: Package temperature/speed normal",
    "efa @pci: Setup irq:16 name:efa-mgmnt@pci:@pci",
    "hfi1 @pci: hfi1_0: Link is in state INIT",
    "usb 1-1: device descriptor read/64, error -110",
    "NVRM: GPU at PCI:@pci: GPU-@hex is ready",
    "NVRM: Xid (PCI:@pci): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "nvidia-nvlink: Unregistered Nvlink Core, major device number 234",
    "[drm] GPU recovery disabled.",
    "amdgpu @pci: amdgpu: ring sdma0 timeout, but soft recovered",
    "amdgpu @pci: amdgpu: PSP runtime database doesn't exist",
    "amdgpu @pci: amdgpu: RAS: optional ras ta ucode is not available",
    "amdgpu @pci: amdgpu: SMU is initialized successfully!",
    "amdgpu: HMM registered 196592MB device memory",
    "NETDEV WATCHDOG is armed with 5000 ms",
    "mlx5_core @pci: health polling is enabled, miss counter 0",
    "mlx5_core @pci: wait_func_handle_exec_timeout:1113:(pid @pid): cmd[0]: CREATE_CQ(0x400) recovered after timeout",
    "mlx5_core @pci: mlx5_fw_tracer_init:1015: FWTracer: enabled",
    "mlx5_core @pci: temp_warn: module 0 temperature is back to normal",
    "nvme nvme0: Identify NS List failed (status=0xb), falling back to scan",
    "nvme nvme0: using unchecked data buffer",
    "nvme @pci: platform quirk: setting simple suspend",
    "blk_update_request: operation not supported error, dev loop0, sector 0 op 0x9:(WRITE_ZEROES) flags 0x800 phys_seg 0 prio class 0",
    "EXT4-fs error count is 0 since last fsck",
    "XFS (nvme1n1): Unmounting Filesystem",
    "XFS (nvme1n1): Starting recovery (logdev: internal)",
    "NFS: nfs4_discover_server_trunking: server @ip is found",
    "nfs: server @host OK",
    "oom_kill_allocating_task = 0, panic_on_oom = 0",
    "Memory cgroup stats are enabled; oom_score_adj of sshd is -1000",
    "INFO: hung_task_timeout_secs is 120",
    "watchdog: BUG detector: soft lockup threshold is 20 s",
    "rcu: INFO: rcu stall timeout is 60 s",
    "IPMI System Event Log is cleared",
    "DMAR: [Firmware Bug]: No firmware reserved region can cover this RMRR",
    "DMAR-IR: Enabled IRQ remapping in x2apic mode",
    "iommu: Default domain type: Passthrough",
    "AMD-Vi: AMD IOMMUv2 loaded and initialized",
    "x86/cpu: SGX disabled by BIOS.",
    "x86/split lock detection: #AC: crashing the kernel on kernel split_locks and warning on user-space split_locks",
    "traps: python[@pid] trap handler test passed",
    "systemd[1]: Starting Load Kernel Module efi_pstore... failed to find, skipped",
    "kauditd_printk_skb: 12 callbacks suppressed",
    "warning: `python' uses wireless extensions which will stop working for Wi-Fi 7 hardware; use nl80211",
    "drivers/davinci: hdcdrv@few: device 0 hccs status ok, ecc 0",
    "ascend_event: [ascend] [devmng] device @digit heartbeat normal",
)

BREAKS = (
    "LustreError: 11-0: scratch-MDT0000-mdc-ffff8a3c1d2e4000: operation mds_getattr to node 10.1.0.2@o2ib failed: rc = -107\nLustre: scratch-MDT0000-mdc-ffff8a3c1d2e4000: Connection restored to 10.1.0.2@o2ib (at 10.1.0.2@o2ib)",
    "mlx5_core @pci ens3f0np0: Link down\nmlx5_core @pci ens3f0np0: Link up",
    "bond0: (slave ens3f1np1): link status definitely down, disabling slave\nbond0: (slave ens3f1np1): link status definitely up, 100000 Mbps full duplex",
    "ixgbe @pci eno1: NIC Link is Down\nixgbe @pci eno1: NIC Link is Up 10 Gbps, Flow Control: None",
)
"""Links that go down and up again: at boot, and then hardly ever."""

BREAKS_MAX = 5

CORRECTED = (
    "mce: [Hardware Error]: Machine check events logged",
    "pcieport @pci: AER: Corrected error received: @pci",
    "pcieport @pci: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "pcieport @pci:   device [8086:347a] error status/mask=00001000/00002000",
    "pcieport @pci:    [12] Timeout               ",
    "pcieport @pci: AER: Multiple Corrected error received: @pci",
    "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0",
    "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
    "{1}[Hardware Error]: event severity: corrected",
    "{1}[Hardware Error]:  Error 0, type: corrected",
    "amdgpu @pci: amdgpu: @few correctable hardware errors detected in umc block, no user action is needed",
    "nvidia-nvswitch3: SXid (PCI:@pci): 12023, Non-fatal, Link 33 NCISOC CRUMBSTORE ECC limit error (single bit)",
    "nvidia-nvswitch0: SXid (PCI:@pci): 19049, Non-fatal, Link 44 EGRESS NCISOC hdr ECC limit error",
)
"""What was corrected: now and then; one after another is the sign of a part that wears out, and no sign of health."""


def kernel_boot(dice: Dice) -> Iterator[str]:
    """dmesg of nodes that boot and work."""
    seconds = 0.0
    while dice.more():
        seconds += dice.part(0, 2)
        for text in dice.some(_printed(dice), 0.85):
            seconds += dice.part(0, 0.01)
            yield "\n".join(f"[{seconds:12.6f}] {line}" for line in text.split("\n"))


def _printed(dice: Dice) -> tuple[str, ...]:
    """The lines that one start of a machine may print."""
    corrected = CORRECTED if dice.step == 1 else ()
    return (*corrected, *(BREAKS if dice.step <= BREAKS_MAX else ()), *BOOT)


def syslog(dice: Dice) -> Iterator[str]:
    """The same as a system log has it, with the words of daemons between."""
    daemons = (
        "systemd[1]: Started NVIDIA Persistence Daemon.",
        "systemd[1]: nvidia-fabricmanager.service: Main process exited, code=exited, status=0/SUCCESS",
        "systemd[1]: Stopped Slurm node daemon.",
        "systemd[1]: session-@few.scope: Succeeded.",
        "slurmd[@pid]: slurmd: launching the batch script for batch job @many",
        "slurmd[@pid]: error: Unable to register: Unable to contact slurm controller (connect failure), retrying",
        "slurmd[@pid]: task/affinity: task_p_slurmd_batch_request: task_p_slurmd_batch_request: @many",
        "slurmstepd[@pid]: done with job",
        "nv-fabricmanager[@pid]: Connected to 1 node.",
        "nvidia-fabricmanager: fabric manager NVIDIA GPU driver interface version 570.124.06 don't need NVSwitch, NV_WARN_NOTHING_TO_DO",
        "chronyd[@pid]: Can't synchronise: no selectable sources",
        "chronyd[@pid]: Selected source @ip",
        "sshd[@pid]: error: kex_exchange_identification: Connection closed by remote host",
        "sshd[@pid]: Failed password for invalid user admin from @ip port @port ssh2",
        "munged[@pid]: Info: Unauthorized credential for client UID=0 GID=0 expired, replay 0",
        "rasdaemon[@pid]: rasdaemon: 0 uncorrected errors, 0 corrected errors since boot",
        'dcgm-exporter[@pid]: level=warning msg="Not collecting DCP metrics: Error getting supported metrics: This request is serviced by a module of DCGM that is not currently loaded"',
        'smartd[@pid]: Device: /dev/nvme0, is SMART capable. Adding to "monitor" list.',
        "smartd[@pid]: Device: /dev/sda [SAT], 0 Currently unreadable (pending) sectors",
        "ipmievd: Power Supply sensor Presence detected, 0 failures",
        'kubelet[@pid]: E@glog @pid summary_sys_containers.go:48] Failed to get system container stats: unknown container "/system.slice/kubelet.service"',
        "opensm[@pid]: SUBNET UP",
        "healthcheck[@pid]: all 8 GPUs ok, 0 Xid, 0 fallen off the bus, 0 NVLink errors",
    )
    while dice.more():
        host = dice.filled("@host")
        stamp = dice.moment("%b %d %H:%M:%S")
        for text in dice.some(_printed(dice)):
            yield "\n".join(f"{stamp} {host} kernel: {line}" for line in text.split("\n"))
        for text in dice.some(daemons):
            yield f"{stamp} {host} {text}"


SMI = """    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    GPU Recovery Action                   : None
    Fabric
        State                             : Completed
        Status                            : Success
        Health
            Bandwidth                     : N/A
            Route Recovery in progress    : N/A
            Route Unhealthy               : N/A
            Access Timeout Recovery       : N/A
    PCI
        Replays Since Reset               : 0
        Replay Number Rollovers           : 0
        Link Width
            Max                           : 16x
            Current                       : 16x
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : @digit
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : @few
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : No
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 0
            SRAM SM                       : 0
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
            None                          : 0 bank(s)
    Temperature
        GPU Current Temp                  : @few C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
    Processes                             : None
"""


def nvidia_smi(dice: Dice) -> Iterator[str]:
    """nvidia-smi -q of nodes whose counters are zero."""
    while dice.more():
        yield "\n==============NVSMI LOG==============\n"
        yield f"Timestamp                                 : {dice.moment()}"
        yield "Driver Version                            : 570.124.06"
        yield "CUDA Version                              : 12.8\n"
        yield "Attached GPUs                             : 8"
        for place in range(8):
            yield f"GPU 00000000:{0x1A + 16 * place:02X}:00.0"
            yield dice.filled(SMI)


TABLES = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   @fewC    P0             71W /  700W |       1MiB /  81559MiB |      0%      Default |
+-----------------------------------------------------------------------------------------+
|  No running processes found                                                             |
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 90.4        32                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          41697/ 65536         |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
        NPU ID                         : 0
        Chip Count                     : 1
        HBM Single Bit Error Count     : 0
        HBM Double Bit Error Count     : 0
        HBM Double Bit Isolated Pages Count       : 0
        Health                         : OK
        Error Code                     : NA
        Error Information              : NA
============================ ROCm System Management Interface ============================
================================== RAS Info ==============================================
GPU[0]\t: \tUMC: ENABLED  correctable 0 uncorrectable 0
GPU[0]\t\t: Temperature (Sensor junction) (C): 41.0
GPU[0]\t\t: PCIe Replay Count: 0
GPU[0]\t\t: XGMI error count: 0
================================== End of ROCm SMI Log ===================================
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
CA 'mlx5_6'
\tPort 1:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tRate: 10
hca_id:\tmlx5_0
\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\tphys_state:\t\tLINK_UP (5)
SymbolErrorCounter:..............0
LinkErrorRecoveryCounter:........0
LinkDownedCounter:...............@digit
PortRcvErrors:...................0
PortXmitDiscards:................0
     rx_discards_phy: 0
     link_down_events_phy: 1
     rx_crc_errors_phy: 0
Successfully ran diagnostic for group.
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
| NVML Library              | Pass                                           |
| Page Retirement/Row Remap | Pass                                           |
| PCIe                      | Pass - All                                     |
| GPU Memory                | Pass - All                                     |
| Overall Health            | Healthy                                        |
GPU 0: Link 0: Replay Errors: 0 Recovery Errors: 0 CRC Errors: 0
\t Link 0: 26.562 GB/s
\t Link 17: <inactive>
GPU0\t X \tNV18\tPIX\tNODE\tSYS\t0-55\t0\t\tN/A
 1 | 02/03/2026 | 10:15:21 | Power Supply PS1 Status | Presence detected | Asserted
 2 | 02/03/2026 | 10:15:22 | Event Logging Disabled SEL | Log area reset/cleared | Asserted
 3 | 02/03/2026 | 10:15:23 | System Event | Timestamp Clock Sync | Asserted
CPU1_DIMM_A1     | 40 degrees C      | ok
PS2 Status       | 0x01              | ok
Memory ECC       | 0x00              | ok
critical_warning                        : 0
media_errors                            : 0
num_err_log_entries                     : @few
Warning Temperature Time                : 0
SMART overall-health self-assessment test result: PASSED
Filesystem      Size  Used Avail Use% Mounted on
/dev/nvme0n1p2  879G  791G   43G  95% /
tmpfs           504G  501G  3.1G 100% /dev/shm
mce-status: no errors; ras-mc-ctl: No Memory errors. No PCIe AER errors. No MCE errors.
"""


def reports(dice: Dice) -> Iterator[str]:
    """The tables of nvidia-smi, npu-smi, rocm-smi, ibstat, dcgmi and their like."""
    while dice.more():
        yield dice.filled(TABLES)


FORMATS = (kernel_boot, syslog, nvidia_smi, reports)
