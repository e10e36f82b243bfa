"""The checks of NVIDIA GPUs that one document of nvidia-smi answers. (I/O)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checks import nvidia_smi
from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note
from ftrun.hooks.runtime.host import Machine

# --- gpu-ecc

UNCORRECTABLE = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
)
OLD_UNCORRECTABLE = "double_bit/total"  # schema of Volta and older

# Field -> (how grave, what it means).
ECC_FLAGS = (
    ("remapped_rows/remapped_row_failure", bad, "a row of memory could not be replaced"),
    ("ecc_errors/aggregate/sram_threshold_exceeded", bad, "more SRAM errors than NVIDIA allows"),
    ("ecc_errors/unrepairable_memory", bad, "memory that cannot be repaired"),
    ("remapped_rows/remapped_row_pending", degraded, "a row of memory waits for a reset to be replaced"),
    ("retired_pages/pending_retirement", degraded, "a page of memory waits for a reset to be retired"),
    ("ecc_errors/channel_repair_pending", degraded, "a memory channel waits for a reset to be repaired"),
    ("ecc_errors/tpc_repair_pending", degraded, "a processor cluster waits for a reset to be repaired"),
)


def judge_ecc(answer: nvidia_smi.Answer, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for fresh uncorrectable errors and memory beyond repair; degraded for what waits for a reset."""
    return nvidia_smi.judged(answer, thresholds, lambda gpu: _ecc_faults(gpu, thresholds), _ecc_mode)


def _ecc_faults(gpu: nvidia_smi.Gpu, thresholds: Thresholds) -> list[Finding]:
    found = []
    fresh = _uncorrectable(gpu, "volatile")
    if fresh > thresholds["uncorrectable"]:
        message = f"{fresh:.0f} uncorrectable memory errors since the driver was loaded"
        found.append(bad(message, gpu.device, fresh, "errors", evidence=_ecc_lines(gpu)))
    for field, grade, message in ECC_FLAGS:
        if gpu.word(field).lower() in ("yes", "true", "1"):
            found.append(grade(message, gpu.device, evidence=(f"{field} {gpu.word(field)}",)))
    spent = gpu.number("remapped_rows/row_remapper_histogram/row_remapper_histogram_none") or 0
    if spent > 0:
        message = f"{spent:.0f} memory bank(s) have no spare row left"
        found.append(degraded(message, gpu.device, spent, "banks"))
    for kind in ("sram", "dram"):
        corrected = gpu.number(f"ecc_errors/volatile/{kind}_correctable") or 0
        if corrected > thresholds[f"{kind}_corrected"]:
            message = f"{corrected:.0f} corrected {kind.upper()} errors since the driver was loaded"
            found.append(degraded(message, gpu.device, corrected, "errors"))
    former = _uncorrectable(gpu, "aggregate")
    if former > 0 and not found:
        message = (
            f"{former:.0f} uncorrectable memory errors in its whole life, none since the driver was loaded"
        )
        found.append(note(message, gpu.device, former, "errors"))
    return found


def _uncorrectable(gpu: nvidia_smi.Gpu, when: str) -> float:
    counts = [gpu.number(f"ecc_errors/{when}/{kind}") for kind in UNCORRECTABLE]
    if all(count is None for count in counts):
        counts = [gpu.number(f"ecc_errors/{when}/{OLD_UNCORRECTABLE}")]
    return sum(count or 0 for count in counts)


def _ecc_lines(gpu: nvidia_smi.Gpu) -> tuple[str, ...]:
    told = [(kind, gpu.number(f"ecc_errors/volatile/{kind}")) for kind in UNCORRECTABLE]
    return tuple(f"volatile {kind} {count:.0f}" for kind, count in told if count)


def _ecc_mode(gpu: nvidia_smi.Gpu) -> str:
    mode = gpu.word("ecc_mode/current_ecc")
    return "no errors" if mode == "Enabled" else "ECC is off" if mode == "Disabled" else "no ECC"


# --- gpu-memory

MEMORY_TOTAL = "fb_memory_usage/total"
MEMORY_USED = "fb_memory_usage/used"


def judge_memory(answer: nvidia_smi.Answer, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded when memory is in use by nobody, or a part of it is missing."""
    return nvidia_smi.judged(
        answer,
        thresholds,
        lambda gpu: _memory_faults(gpu, answer.gpus, thresholds),
        lambda gpu: f"{gpu.word(MEMORY_USED) or '?'} of {gpu.word(MEMORY_TOTAL) or '?'} in use",
    )


def _memory_faults(
    gpu: nvidia_smi.Gpu, gpus: Sequence[nvidia_smi.Gpu], thresholds: Thresholds
) -> list[Finding]:
    total, used = gpu.number(MEMORY_TOTAL), gpu.number(MEMORY_USED)
    equals = [
        one.number(MEMORY_TOTAL) or 0
        for one in gpus
        if one.product == gpu.product and one.has_mig == gpu.has_mig
    ]
    most = max(equals, default=0)
    if total is not None and total < most * (1 - thresholds["missing_percent"] / 100):
        message = f"{total:.0f} MiB of memory, its equals have {most:.0f}"
        return [degraded(message, gpu.device, total, "MiB", fault="hardware-gpu")]
    if (
        used is not None
        and used > thresholds["used_mib"]
        and not gpu.processes
        and not gpu.has_mig
        and not gpu.is_busy
    ):
        return [degraded(f"{used:.0f} MiB are in use and no process is on it", gpu.device, used, "MiB")]
    return []


# --- gpu-mode

MODES = {
    "compute_mode": "compute_mode",
    "mig": "mig_mode/current_mig",
    "ecc": "ecc_mode/current_ecc",
    "persistence": "persistence_mode",
}
PENDING = {
    "MIG": ("mig_mode/current_mig", "mig_mode/pending_mig"),
    "ECC": ("ecc_mode/current_ecc", "ecc_mode/pending_ecc"),
}


def judge_mode(answer: nvidia_smi.Answer, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad where no program is let in; degraded where a mode is not the expected one, or not that of the other
    GPUs.
    """
    mine = nvidia_smi.chosen(answer.gpus, nvidia_smi.tokens(thresholds))
    usual = {mode: str(thresholds[mode]) or _usual_mode(mine, field) for mode, field in MODES.items()}
    return nvidia_smi.judged(
        answer,
        thresholds,
        lambda gpu: _mode_faults(gpu, usual),
        lambda gpu: gpu.word("compute_mode") or "mode not told",
    )


def _usual_mode(gpus: Sequence[nvidia_smi.Gpu], field: str) -> str:
    """The mode of most GPUs; "" where there is no majority."""
    told = [gpu.word(field) for gpu in gpus if gpu.word(field)]
    top = max(sorted(set(told)), key=told.count, default="")
    return top if told.count(top) * 2 > len(told) else ""


def _mode_faults(gpu: nvidia_smi.Gpu, usual: Mapping[str, str]) -> list[Finding]:
    if gpu.word("compute_mode") == "Prohibited":
        return [bad("its compute mode lets no program in", gpu.device, evidence=("compute_mode Prohibited",))]
    if gpu.has_mig and not gpu.mig_instances:
        return [degraded("MIG is on and there is no instance to compute on", gpu.device)]
    found = []
    for mode, field in MODES.items():
        now = gpu.word(field)
        if now and usual[mode] and now != usual[mode]:
            # Without the persistence daemon a GPU only takes longer to wake.
            grade = note if mode == "persistence" else degraded
            found.append(grade(f"{mode} is {now} instead of {usual[mode]}", gpu.device))
    for title, (now_field, then_field) in PENDING.items():
        now, then = gpu.word(now_field), gpu.word(then_field)
        if now and then and now != then:
            found.append(note(f"{title} will be {then} after the next reset", gpu.device))
    return found


# --- gpu-pcie

PCIE_LINK = "pci/pci_gpu_link_info/"


def judge_pcie(answer: nvidia_smi.Answer, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded when lanes are missing, or a working link is slower than it can be."""
    fast = {
        (gpu.product, gpu.word("performance_state"))
        for gpu in answer.gpus
        if _generations(gpu)[0] >= _generations(gpu)[1]
    }
    usual: dict[str, float] = {}
    for gpu in answer.gpus:
        usual[gpu.product] = max(usual.get(gpu.product, 0.0), _lanes(gpu))

    def looked(gpu: nvidia_smi.Gpu) -> list[Finding]:
        return _pcie_faults(gpu, thresholds, fast, usual[gpu.product])

    return nvidia_smi.judged(answer, thresholds, looked, _pcie_link)


def _pcie_faults(
    gpu: nvidia_smi.Gpu, thresholds: Thresholds, fast: set[tuple[str, str]], usual: float
) -> list[Finding]:
    width, most_lanes = _lanes(gpu), gpu.number(f"{PCIE_LINK}link_widths/max_link_width") or 0.0
    if 0 < width < (thresholds["lanes"] or usual):
        message = f"{width:.0f} of {thresholds['lanes'] or usual:.0f} PCIe lanes"
        return [degraded(message, gpu.device, width, "lanes", evidence=(_pcie_link(gpu),))]
    if 0 < width < most_lanes and not thresholds["lanes"]:
        message = f"{width:.0f} of {most_lanes:.0f} PCIe lanes, as its equals: the board may have no more"
        return [note(message, gpu.device, width, "lanes", evidence=(_pcie_link(gpu),))]
    now, most = _generations(gpu)
    if 0 < now < most:
        alike = (gpu.product, gpu.word("performance_state")) in fast and gpu.word("performance_state") == "P0"
        if gpu.is_busy or alike:
            why = "while it works" if gpu.is_busy else "while its equals have full speed"
            message = f"PCIe generation {now:.0f} of {most:.0f} {why}"
            return [degraded(message, gpu.device, now, "generation", evidence=(_pcie_link(gpu),))]
    replays = gpu.number("pci/replay_counter") or 0
    if replays > thresholds["replays"]:
        message = f"{replays:.0f} replays on its PCIe link since the driver was loaded"
        return [note(message, gpu.device, replays, "replays")]
    return []


def _lanes(gpu: nvidia_smi.Gpu) -> float:
    """Lanes now; 0 where it is not told."""
    return gpu.number(f"{PCIE_LINK}link_widths/current_link_width") or 0.0


def _generations(gpu: nvidia_smi.Gpu) -> tuple[float, float]:
    """PCIe generation now and at most; 0 where it is not told."""
    now, most = (
        gpu.number(f"{PCIE_LINK}pcie_gen/current_link_gen"),
        gpu.number(f"{PCIE_LINK}pcie_gen/max_link_gen"),
    )
    return now or 0.0, most or 0.0


def _pcie_link(gpu: nvidia_smi.Gpu) -> str:
    now, most = _generations(gpu)
    rest = " at rest" if 0 < now < most else ""
    return (
        f"gen {now:.0f} of {most:.0f}{rest}, {gpu.word(f'{PCIE_LINK}link_widths/current_link_width') or '?'}"
    )


# --- gpu-processes


class ProcessesFacts(NamedTuple):
    """What nvidia-smi answered, and who owns the processes that it lists, where that can be seen."""

    answer: nvidia_smi.Answer
    owners: Mapping[int, Optional[procfs.Owner]]


def probe_processes(machine: Machine, thresholds: Thresholds) -> ProcessesFacts:
    """List the processes of all GPUs and ask /proc whose each is."""
    answer = nvidia_smi.probe(machine, thresholds)
    pids = {one.pid for gpu in answer.gpus for one in gpu.processes}
    return ProcessesFacts(answer, {pid: procfs.owner(machine, pid) for pid in sorted(pids)})


def judge_processes(facts: ProcessesFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for each process that has no business on a GPU of the job."""
    return nvidia_smi.judged(
        facts.answer,
        thresholds,
        lambda gpu: [
            found for one in gpu.processes for found in _processes_faults(gpu, one, facts, thresholds)
        ],
        lambda gpu: f"{len(gpu.processes)} process(es) at home",
    )


def _processes_faults(
    gpu: nvidia_smi.Gpu, one: nvidia_smi.Process, facts: ProcessesFacts, thresholds: Thresholds
) -> list[Finding]:
    owner = facts.owners.get(one.pid)
    if one.kind == "G" or _program(one) in thresholds["allow"]:
        return []
    told = f"process {one.pid} ({_program(one)})"
    memory = "" if one.used_mib is None else f", {one.used_mib:.0f} MiB"
    if owner is None:
        return [note(f"{told} is on it{memory}, and cannot be seen from here", gpu.device)]
    job = str(thresholds["job"])
    if owner.job and (owner.job == job or thresholds["shared"] or not job):
        return []
    whose = f"of job {owner.job}" if owner.job else "of no job"
    message = f"{told} {whose}, user {owner.uid}, is on it{memory}"
    evidence = (f"pid {one.pid} uid {owner.uid} state {owner.state} type {one.kind}",)
    return [degraded(message, gpu.device, one.used_mib, "MiB", evidence=evidence)]


def _program(one: nvidia_smi.Process) -> str:
    return one.name.rsplit("/", 1)[-1]


# --- gpu-recovery

# Part of the action, in small letters -> (how grave, what it means).  The first that fits counts.
ACTIONS = (
    ("reboot", bad, "the node must be rebooted"),
    ("drain p2p", degraded, "its traffic to other GPUs must come to rest first"),
    ("reset", bad, "it must be reset"),
)


def judge_recovery(answer: nvidia_smi.Answer, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when the driver asks for a reset or a reboot."""
    return nvidia_smi.judged(
        answer, thresholds, _recovery_faults, lambda gpu: gpu.word("gpu_recovery_action") or "nothing asked"
    )


def _recovery_faults(gpu: nvidia_smi.Gpu) -> list[Finding]:
    action = gpu.word("gpu_recovery_action")
    if action and action != "None":
        told = (f"GPU Recovery Action: {action}",)
        for part, grade, message in ACTIONS:
            if part in action.lower():
                return [grade(message, gpu.device, evidence=told)]
        return [note(f"the driver recommends: {action}", gpu.device, evidence=told)]
    if gpu.word("gpu_reset_status/reset_required") == "Yes":
        return [bad("it must be reset", gpu.device, evidence=("Reset Required: Yes",))]
    if gpu.word("gpu_reset_status/drain_and_reset_recommended") == "Yes":
        told = ("Drain and Reset Recommended: Yes",)
        return [degraded("it should be reset when its work is done", gpu.device, evidence=told)]
    return []


# --- gpu-temperature


def judge_temperature(answer: nvidia_smi.Answer, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad at the heat of a shutdown, degraded at that of a slowdown, a note when close to it or far above the
    others.
    """
    told = [one for one in (gpu.number("temperature/gpu_temp") for gpu in answer.gpus) if one is not None]
    import statistics  # where there are GPUs

    median = statistics.median(told) if len(told) > 2 else None
    return nvidia_smi.judged(
        answer,
        thresholds,
        lambda gpu: _temperature_faults(gpu, thresholds, median),
        lambda gpu: gpu.word("temperature/gpu_temp") or "not told",
    )


def _temperature_faults(gpu: nvidia_smi.Gpu, thresholds: Thresholds, median: float | None) -> list[Finding]:
    found = [*_core_heat(gpu, thresholds), *_memory_heat(gpu, thresholds)]
    now = gpu.number("temperature/gpu_temp")
    if not found and now is not None and median is not None and now > median + thresholds["above_others_c"]:
        message = f"{now:.0f} C, while half of the GPUs here are below {median:.0f} C"
        found.append(note(message, gpu.device, now, "C"))
    return found


def _core_heat(gpu: nvidia_smi.Gpu, thresholds: Thresholds) -> list[Finding]:
    now = gpu.number("temperature/gpu_temp")
    left = gpu.number("temperature/gpu_temp_tlimit")
    if left is not None:
        stop = gpu.number("temperature/gpu_temp_max_tlimit_threshold")
        slow = gpu.number("temperature/gpu_temp_slow_tlimit_threshold")
        to_stop = None if stop is None else left - stop
        to_slow = left - (slow or 0)
    elif now is not None:
        stop = gpu.number("temperature/gpu_temp_max_threshold")
        slow = gpu.number("temperature/gpu_temp_slow_threshold")
        to_stop = None if stop is None else stop - now
        to_slow = (thresholds["gpu_c"] if slow is None else slow) - now
    else:
        return []
    told = "" if now is None else f"{now:.0f} C: "
    if to_stop is not None and to_stop <= 0:
        return [bad(f"{told}the heat at which it shuts down", gpu.device, now, "C")]
    if to_slow <= 0:
        return [degraded(f"{told}the heat at which it slows down", gpu.device, now, "C")]
    if to_slow <= thresholds["margin_c"]:
        return [note(f"{told}{to_slow:.0f} degrees are left until it slows down", gpu.device, now, "C")]
    return []


def _memory_heat(gpu: nvidia_smi.Gpu, thresholds: Thresholds) -> list[Finding]:
    now = gpu.number("temperature/memory_temp")
    own = gpu.number("temperature/gpu_temp_max_mem_threshold")
    limit = thresholds["memory_c"] if own is None else own
    if now is None or now < limit:
        return []
    return [degraded(f"its memory has {now:.0f} C, the limit is {limit:.0f} C", gpu.device, now, "C")]


# --- gpu-throttle

# Reason -> what it means; all of them are the machine's.
THROTTLE_REASONS = {
    "hw_thermal_slowdown": "the hardware slows it down for heat",
    "hw_power_brake_slowdown": "the power supply has put the brake on",
    "sw_thermal_slowdown": "the driver slows it down for heat",
    "hw_slowdown": "the hardware slows it down",
}


def judge_throttle(answer: nvidia_smi.Answer, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded when the machine slows a GPU down, or a busy one runs far below its clock for no told
    reason.
    """
    return nvidia_smi.judged(answer, thresholds, lambda gpu: _throttle_faults(gpu, thresholds), _clock)


def _throttle_faults(gpu: nvidia_smi.Gpu, thresholds: Thresholds) -> list[Finding]:
    active = [reason for reason in THROTTLE_REASONS if _is_active(gpu, reason)]
    if active:
        evidence = tuple(f"{reason} Active" for reason in active)
        return [degraded(f"{THROTTLE_REASONS[active[0]]} ({_clock(gpu)})", gpu.device, evidence=evidence)]
    now, most = gpu.number("clocks/sm_clock"), gpu.number("max_clocks/sm_clock")
    rests = any(_is_active(gpu, reason) for reason in ("gpu_idle", "sw_power_cap"))
    if (
        now is not None
        and most
        and gpu.is_busy
        and not rests
        and now < most * thresholds["clock_percent"] / 100
    ):
        is_set = _is_active(gpu, "applications_clocks_setting")
        why = "because somebody has set its clocks" if is_set else "and tells no reason"
        message = f"it works at {now:.0f} of {most:.0f} MHz {why}"
        return [degraded(message, gpu.device, now, "MHz")]
    limit, usual = (
        _power(gpu, "current_power_limit", "enforced_power_limit"),
        _power(gpu, "default_power_limit"),
    )
    if limit is not None and usual and limit < usual * thresholds["power_percent"] / 100:
        message = f"its power is limited to {limit:.0f} W instead of {usual:.0f} W"
        return [note(message, gpu.device, limit, "W")]
    return []


def _is_active(gpu: nvidia_smi.Gpu, reason: str) -> bool:
    names = (
        f"clocks_event_reasons/clocks_event_reason_{reason}",
        f"clocks_throttle_reasons/clocks_throttle_reason_{reason}",
    )
    return any(gpu.word(name) == "Active" for name in names)


def _power(gpu: nvidia_smi.Gpu, *names: str) -> float | None:
    """A power in W; the group was called power_readings before driver 525."""
    told = [
        gpu.number(f"{group}/{name}") for name in names for group in ("gpu_power_readings", "power_readings")
    ]
    return next((one for one in told if one is not None), None)


def _clock(gpu: nvidia_smi.Gpu) -> str:
    return f"{gpu.word('clocks/sm_clock') or 'clock not told'} of {gpu.word('max_clocks/sm_clock') or '?'}"


FUNCTIONS = {
    "gpu-ecc": (nvidia_smi.probe, judge_ecc),
    "gpu-memory": (nvidia_smi.probe, judge_memory),
    "gpu-mode": (nvidia_smi.probe, judge_mode),
    "gpu-pcie": (nvidia_smi.probe, judge_pcie),
    "gpu-processes": (probe_processes, judge_processes),
    "gpu-recovery": (nvidia_smi.probe, judge_recovery),
    "gpu-temperature": (nvidia_smi.probe, judge_temperature),
    "gpu-throttle": (nvidia_smi.probe, judge_throttle),
}
