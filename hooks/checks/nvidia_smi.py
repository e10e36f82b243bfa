"""What `nvidia-smi` says of the GPUs of this node: one reading for all checks, and whose devices count. (I/O)

`nvidia-smi -q -x` tells everything at once and in all versions with nearly the same names, so
every check of a GPU reads that one document; a value that a driver does not know is "N/A" there and None
here, never zero. A driver that does not answer is an answer too: the reason stands in `trouble`, and the
check called gpu-check is the one to say so.

The names of the fields were checked against documents of the schemas v11, v12 (A100 with MIG, driver 535) and
v13 (Blackwell, driver 590) in Telegraf's public test data; the meaning of exit codes against nvidia-smi's
manual. No GPU was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ftrun.hooks.runtime.finding import Finding, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, Output

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

READ_LIMIT_S = 12.0
TROUBLE_CHARS = 200

LOST_WORDS = ("gpu is lost", "unknown error", "requires reset", "err!")
"""What stands in the place of a value when the driver has lost the device."""

# Exit codes of nvidia-smi that say something about the machine: its manual, "RETURN VALUE", and for those that the manual lacks the
# return codes of NVML, which it passes on. The manual gives the interrupt issue 10, NVML 11 (10 is a time-out there).
CODES = {
    6: "no devices were found",
    8: "the external power cables of a GPU are not attached",
    9: "the NVIDIA driver is not loaded",
    10: "the kernel found an interrupt issue with a GPU",
    11: "the kernel found an interrupt issue with a GPU",
    12: "the NVML library could not be found",
    14: "the infoROM of a GPU is corrupted",
    15: "a GPU has fallen off the bus or cannot be reached",
    16: "a GPU must be reset before it can be used",
    17: "the control device is closed by the operating system or a cgroup",
    18: "Driver/library version mismatch",
}

# Long lists that no check reads.
UNREAD = {"supported_clocks", "processes", "accounted_processes", "mig_devices"}


class Process(NamedTuple):
    """A process on a GPU: its id, kind (C compute, G graphics, M+C by MPS), name, and memory in MiB where it is told."""

    pid: int
    kind: str
    name: str
    used_mib: Optional[float]


class Gpu(NamedTuple):
    """One GPU in the order of nvidia-smi; `facts` maps "group/field" to text as printed."""

    place: int
    address: str
    uuid: str
    product: str
    facts: Mapping[str, str]
    processes: tuple[Process, ...] = ()
    mig_uuids: tuple[str, ...] = ()
    mig_instances: int = 0

    def word(self, path: str) -> str:
        """The text of a field; "" where it is not told."""
        text = self.facts.get(path, "")
        return "" if text in ("N/A", "[N/A]", "[Not Supported]", "Not Supported") else text

    def number(self, path: str) -> Optional[float]:
        """The number in front of a field's unit; None where there is none."""
        return number(self.word(path))

    @property
    def device(self) -> str:
        """How findings name it: index and PCI address."""
        return f"{self.place} ({self.address})"

    @property
    def has_mig(self) -> bool:
        """Whether it is cut into MIG instances."""
        return self.word("mig_mode/current_mig") == "Enabled"

    @property
    def is_busy(self) -> bool:
        """Whether it works: a link or a clock of an idle GPU may rest."""
        return (self.number("utilization/gpu_util") or 0) >= 10


class Answer(NamedTuple):
    """What nvidia-smi answered: its GPUs, or why there are none."""

    gpus: tuple[Gpu, ...]
    driver: str = ""
    code: int = 0
    trouble: str = ""


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Answer:
    """Ask nvidia-smi for everything. Raises NoAnswer where it is not installed or does not end."""
    return understood(machine.once(["nvidia-smi", "-q", "-x"], READ_LIMIT_S))


def understood(output: Output) -> Answer:
    """The document that nvidia-smi printed, or its trouble in one line."""
    from xml.etree import ElementTree as ET  # a node without GPUs needs none

    code = output.code if output.code is not None else -1
    at = output.out.find("<nvidia_smi_log")
    try:
        top = ET.fromstring(output.out[at:]) if at >= 0 else None  # noqa: S314  the driver's own tool wrote it
    except ET.ParseError:
        top = None
    if top is None:
        return Answer((), code=code, trouble=_trouble(output, code))
    gpus = tuple(_gpu(place, element) for place, element in enumerate(top.findall("gpu")))
    trouble = "" if gpus and code == 0 else _trouble(Output(code, output.out[:at], output.err), code)
    return Answer(gpus, (top.findtext("driver_version") or "").strip(), code, trouble)


def number(text: str) -> Optional[float]:
    """The number that a text begins with: "45 C", "16x", "0 us"; None where there is none."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)", text)
    return float(found.group(1)) if found else None


def tokens(thresholds: Mapping[str, Any]) -> list[str]:
    """The devices of the job as CUDA_VISIBLE_DEVICES writes them: indexes, UUIDs or PCI addresses; [] for all of the node."""
    told = thresholds.get("devices") or ()
    parts = told.split(",") if isinstance(told, str) else [str(one) for one in told]
    return [part.strip() for part in parts if part.strip()]


def chosen(gpus: Sequence[Gpu], wanted: Sequence[str]) -> list[Gpu]:
    """The GPUs that a job's devices name; all where they name all that can be seen, or cannot be told apart.
    A job in a device cgroup sees its own GPUs only, numbered anew, while Slurm may name them by the node's
    numbers.
    """
    if not wanted:
        return list(gpus)
    found = [gpu for gpu in gpus if any(_names(gpu, token) for token in wanted)]
    named = [token for token in wanted if any(_names(gpu, token) for gpu in gpus)]
    return found if len(named) == len(wanted) else list(gpus)


def unread(answer: Answer, thresholds: Mapping[str, Any]) -> list[Finding]:
    """What a check says that has nothing to look at; [] where the GPUs of the job can be judged."""
    if chosen(answer.gpus, tokens(thresholds)):
        return []
    if answer.code == 6:
        return [skipped("no GPU can be seen here")]
    return [unknown(f"nvidia-smi gave nothing to judge: {answer.trouble or 'it lists no GPU'}")]


def judged(
    answer: Answer,
    thresholds: Mapping[str, Any],
    look: Callable[[Gpu], Sequence[Finding]],
    well: Callable[[Gpu], str],
) -> list[Finding]:
    """What `look` finds on each GPU of the job; where it finds nothing, one line with what `well` tells of each."""
    nothing = unread(answer, thresholds)
    if nothing:
        return nothing
    mine = chosen(answer.gpus, tokens(thresholds))
    found = [one for gpu in mine for one in look(gpu)]
    return found or [ok(f"{len(mine)} GPU(s): {', '.join(well(gpu) for gpu in mine)}")]


def _names(gpu: Gpu, token: str) -> bool:
    low = token.lower()
    if low.isdigit():
        return gpu.place == int(low)
    if low.startswith("mig-"):  # "MIG-<uuid>", and before driver 470 "MIG-GPU-<uuid>/<instance>/<instance>"
        mine = [uuid.lower() for uuid in gpu.mig_uuids]
        return low in mine or low.startswith(f"mig-{gpu.uuid.lower()}/")
    if low.startswith("gpu-"):
        return gpu.uuid.lower().startswith(low)
    return bool(low) and gpu.address.lower().endswith(low)


def _gpu(place: int, element: Element) -> Gpu:
    facts: dict[str, str] = {}
    _flatten(element, "", facts)
    processes = tuple(
        Process(
            int(number(one.findtext("pid") or "") or 0),
            (one.findtext("type") or "").strip(),
            (one.findtext("process_name") or "").strip(),
            number(one.findtext("used_memory") or ""),
        )
        for one in element.findall("processes/process_info")
    )
    instances = element.findall("mig_devices/mig_device")
    uuids = tuple((one.findtext("uuid") or "").strip() for one in instances)
    return Gpu(
        place,
        _short(element.get("id", "")),
        facts.get("uuid", ""),
        facts.get("product_name", ""),
        facts,
        processes,
        tuple(uuid for uuid in uuids if uuid),
        len(instances),
    )


def _short(address: str) -> str:
    """00000000:3B:00.0 as the kernel writes it, 0000:3b:00.0."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else domain


def _flatten(element: Element, path: str, facts: dict[str, str]) -> None:
    for child in element:
        if child.tag in UNREAD:
            continue
        name = f"{path}{child.tag}"
        if len(child):
            _flatten(child, f"{name}/", facts)
        else:
            facts.setdefault(name, (child.text or "").strip())


def _trouble(output: Output, code: int) -> str:
    lines = [line.strip() for line in (output.out + "\n" + output.err).splitlines()]
    told = next((line for line in lines if line and not line.startswith("<")), "")
    return (told or CODES.get(code, f"exit code {code}"))[:TROUBLE_CHARS]
