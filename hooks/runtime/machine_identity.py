"""Which machine bears this node's name: what the host says of itself, as far as any user may read it. (I/O)

A name goes on to another machine: a cloud replaces an instance, a technician a chassis. Reports of nodes carry this
identity, so that the ledger can tell. Nothing here needs root: a serial number that only root may read is left out,
as is everything that makers leave as a placeholder. Whatever cannot be read is absent, and absence says nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

DMI = "sys/class/dmi/id"
PCI = "sys/bus/pci/devices"
VALUE_CHARS = 128
DEVICES_MAX = 64
FILE_BYTES = 512

_PLACEHOLDERS = frozenset({
    "", "none", "0", "123456789", "0123456789", "1234567890", "default string", "not specified", "not applicable", "n/a", "unknown",
    "to be filled by o.e.m.", "system serial number", "system product name", "chassis serial number", "nocloud", "iid-datasource-none",
})  # fmt: skip
_FILES = {
    "serial": (f"{DMI}/product_serial", f"{DMI}/board_serial"),
    "uuid": (f"{DMI}/product_uuid",),
    "id": ("etc/machine-id",),
    "boot": ("proc/sys/kernel/random/boot_id",),
}
_INSTALLERS = ("", "none", "nocloud", "maas")
"""What cloud-init calls a source that gives another instance id to the same machine when it is installed anew."""
_ACCELERATORS = ("0x0300", "0x0302", "0x1200", "0x0b40")  # GPUs and processing accelerators, by their class


def read_identity(root: str = "/") -> dict[str, str]:
    """What is known of the machine: product, serial, uuid, instance (of a cloud), pci (addresses of its accelerators), id
    (machine-id) and boot (which only tells a reboot); what cannot be read is left out.
    """
    found = {key: value for key, names in _FILES.items() if (value := _first(root, names))}
    product = " ".join(
        filter(None, (_read(root, f"{DMI}/{name}") for name in ("sys_vendor", "product_name")))
    )
    tag = _read(root, f"{DMI}/board_asset_tag")
    if tag.startswith("i-"):
        found["instance"] = tag  # EC2 tells every user
    elif _read(root, "run/cloud-init/cloud-id").lower() not in _INSTALLERS:
        instance = _read(root, "run/cloud-init/.instance-id")
        found |= {"instance": instance} if instance else {}
    found |= {"product": product[:VALUE_CHARS]} if product else {}
    devices = ",".join(sorted(_accelerators(root))[:DEVICES_MAX])
    return {**found, "pci": devices} if devices else found


def _first(root: str, names: tuple[str, ...]) -> str:
    return next(filter(None, (_read(root, name) for name in names)), "")


def _read(root: str, name: str) -> str:
    """One line of a small file; "" for what cannot be read or is a placeholder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.join(root, name), os.O_RDONLY | os.O_NONBLOCK)
        try:
            text = os.read(descriptor, FILE_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
        line = " ".join(text.split())[:VALUE_CHARS]
        return "" if line.lower() in _PLACEHOLDERS or not line.strip("0-") else line
    return ""


def _accelerators(root: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for address in os.listdir(os.path.join(root, PCI)):
            if _read(root, f"{PCI}/{address}/class").startswith(_ACCELERATORS):
                yield address
