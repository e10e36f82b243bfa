"""Whether a node's name has gone on to another machine, and who else's reasons are on a node. (pure)

A strike is held against a machine. Reports of a node say which one it is (`hooks.runtime.machine_identity`); a report
that shows another machine under the same name closes the strikes of the one before. The comparison is careful: a
strike that stays too long costs a quarantine, one that is dropped for nothing costs a job.

- A serial number, the firmware's UUID or a cloud's instance id that both reports have decides alone, in this order: different
  = another machine, the same = the same one, whatever else changed.
- Else another product is another machine.
- Else another machine-id together with accelerators at other PCI addresses (neither set within the other, since a broken
  device is missing from the list) is another machine. A machine-id alone is not: a new installation changes it, and images
  share one.
- A boot id tells a reboot and nothing more. What is absent says nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from ftrun.supervisor.model.node_entry import NodeEntry

MACHINE = "machine"
"""What an entry of the ledger is called that tells which machine bears the name."""

DECISIVE = ("serial", "uuid", "instance")
KEYS = (*DECISIVE, "product", "pci", "id", "boot")
VALUE_CHARS = 2048

REASONS_OF_OTHERS = (
    ("action:replace", "HyperPod replaces this machine"),
    ("action:reboot", "HyperPod reboots this machine"),
    ("[node_problem]", "Soperator has taken this node and may replace its machine"),
    ("[hardware_problem]", "Soperator has taken this node and may replace its machine"),
    ("[compute_maintenance]", "Soperator replaces or reboots this machine"),
    ("[user_problem]", "Soperator has taken this node, and a person has to mend something on it"),
    ("[software_problem]", "Soperator has taken this node, and a person has to mend something on it"),
)
"""How drain reasons of others begin, in lower case, and what they mean. Soperator's are those of nebius/soperator
(internal/consts, and its document on passive checks); old releases write `[node_problem] compute_maintenance`.
"""


def parse_identity(told: object) -> dict[str, str]:
    """The identity in a report; users write reports, so only known keys and bounded texts are taken."""
    rows = told.items() if isinstance(told, Mapping) else ()
    return {
        str(key): value[:VALUE_CHARS]
        for key, value in rows
        if key in KEYS and isinstance(value, str) and value
    }


def is_another(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether these identities are those of two machines, for sure enough to close strikes."""
    for key in DECISIVE:
        if before.get(key) and now.get(key):
            return before[key] != now[key]
    if _differs("product", before, now):
        return True
    there, here = (set(one.get("pci", "").split(",")) - {""} for one in (before, now))
    return _differs("id", before, now) and bool(there - here) and bool(here - there)


def _differs(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return bool(before.get(key) and now.get(key)) and before[key] != now[key]


def is_the_same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether a serial number, a UUID or a cloud's instance id says that these are one machine."""
    both = [key for key in DECISIVE if one.get(key) and other.get(key)]
    return bool(both) and one[both[0]] == other[both[0]]


DIGEST_CHARS = 16


def digests(identity: Mapping[str, str], *, like: str = "") -> str:
    """What tells the machine, as hashes: `serial=0123456789abcdef,uuid=...`; `like`: only what that text has, too."""
    wanted = [part.partition("=")[0] for part in like.split(",")] if like else [*DECISIVE, "product"]
    return ",".join(
        f"{key}={hashlib.sha256(identity[key].encode()).hexdigest()[:DIGEST_CHARS]}"
        for key in (*DECISIVE, "product")
        if key in wanted and identity.get(key)
    )


def borne_by(entries: Iterable[NodeEntry]) -> dict[str, dict[str, str]]:
    """Node -> what the entries of a ledger, oldest first, tell of the machine that bears its name."""
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        for node in entry.nodes if entry.what == MACHINE else ():
            found[node] = known_after(found.get(node, {}), parse_identity(entry.detail))
    return found


def known_after(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What is known of the machine after another report."""
    return dict(now) if is_another(before, now) else {**before, **now}


def replaced_at(ordered: Iterable[NodeEntry]) -> dict[str, tuple[float, ...]]:
    """Node -> when reports first showed another machine under its name. `ordered`: entries, oldest first."""
    known: dict[str, dict[str, str]] = {}
    found: dict[str, tuple[float, ...]] = {}
    for entry in ordered:
        if entry.what != MACHINE:
            continue
        now = parse_identity(entry.detail)
        for node in entry.nodes:
            before = known.get(node, {})
            if is_another(before, now):
                found[node] = (*found.get(node, ()), entry.at_s)
            known[node] = known_after(before, now)
    return found


def machine_text(known: Mapping[str, str]) -> str:
    """The machine in a few words; "" if nothing is known."""
    words = [known.get("product", "")]
    words += [f"{key} {known[key]}" for key in DECISIVE if known.get(key)][:1]
    return ", ".join(filter(None, words)) or (f"machine-id {known['id']}" if known.get("id") else "")


def reason_of_others(reason: str) -> str:
    """What another service means by this drain reason, which ftrun leaves alone; "" if it is none that is known."""
    text = reason.strip().lower()
    return next((words for start, words in REASONS_OF_OTHERS if text.startswith(start)), "")
