"""What follows from the facts of a survey: a line for each thing that a user should know before a cluster is made. (pure)

A finding is `bad` where no cluster can be made with that host, and a `note` where something will be missing or different.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ftrun.slurm.client.releases import OLDEST, release_text
from ftrun.slurm.cluster.conf import FORBIDDEN_IN_PATHS
from ftrun.slurm.cluster.plan import LOCALHOST, SOCKET_PATH_MAX, longest_socket_path
from ftrun.slurm.records import dataclass

BAD, NOTE = "bad", "note"
SSHFS = "fuse.sshfs"
CLOCK_BAD_S = 10.0
"""Two hosts may differ by twice as much, and a launch has to arrive within CRED_EXPIRE_S by both clocks."""
CLOCK_NOTE_S = 2.0
FREE_MIB_LEAST = 512
FREE_MIB_FULL = 64
OPEN_FILES_LEAST = 4096

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

Facts = Mapping[str, Any]
"""The facts of one host, as `hooks/cluster/survey.py` tells them, with `clock_offset_s` and `clock_within_s` of the asker."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is so on a host (`target`, as the user names it), and what follows. `topic`: what it is about, in a word or two."""

    target: str
    level: str
    topic: str
    text: str


def of_hosts(facts: Mapping[str, Facts], unreached: Mapping[str, str], allow_public: bool) -> list[Finding]:
    """The findings of the hosts that answered, and of those that did not (target -> why)."""
    found = [Finding(target, BAD, "ssh", f"cannot be asked: {why}") for target, why in unreached.items()]
    found += [
        Finding(target, NOTE, "Slurm", f"{why}: a bundle of Slurm is used on all hosts")
        for target, why in without_slurm(facts).items()
    ]
    head = next(iter(facts.values()), {})
    names = Counter(one["host"] for one in facts.values())
    for target, one in facts.items():
        found += [
            Finding(target, level, topic, text)
            for level, topic, text in (
                *_of_user(one, head),
                *_of_network(target, one, allow_public),
                *_of_machine(one),
            )
        ]
        if names[one["host"]] > 1:
            found.append(
                Finding(
                    target,
                    BAD,
                    "name",
                    f"calls itself {one['host']}, as another host does: give it a name of its own (hostname)",
                )
            )
    return found


def of_reach(answers: Mapping[str, Mapping[str, Any]], shared: str) -> list[Finding]:
    """The findings of `reach`, by target."""
    found = []
    deaf = {one["own"] for one in answers.values() if one["busy"] or one["bad_address"]}
    for target, one in answers.items():
        if one["busy"]:
            ports = ", ".join(map(str, one["busy"]))
            found.append(
                Finding(
                    target,
                    BAD,
                    "ports",
                    f"port {ports} is taken by another program: choose others by --base-port",
                )
            )
        if one["bad_address"]:
            found.append(Finding(target, BAD, "address", f"cannot be listened on: {one['bad_address']}"))
        for name, why in sorted(one["unreached"].items()):
            found.append(
                Finding(
                    target,
                    BAD,
                    "firewall",
                    f"does not reach {name} ({why}): Slurm's daemons must reach each other",
                )
            )
        for name, why in sorted(one["silent"].items()):
            if name in deaf:  # it says itself why
                continue
            text = f"is not answered by {name} ({why}): nothing of ours listened there in time, or a firewall refuses calls; say it again"
            found.append(Finding(target, BAD, "ports", text))
        if one["share"]:
            found.append(Finding(target, BAD, "shared folder", f"cannot be written: {one['share']}"))
        if one["unshared"]:
            others = ", ".join(sorted(one["unshared"]))
            text = f"{shared} is not the folder that {others} sees: runs, logs and checkpoints need one that all hosts see (--shared DIR names it, --share DIR makes one by sshfs)"
            found.append(Finding(target, BAD, "shared folder", text))
        for name, address in sorted(one["unresolved"].items()):
            text = f"finds {address or 'no address'} for the name {name}: a training that meets there by that name does not (/etc/hosts)"
            found.append(Finding(target, NOTE, "names", text))
    return found


def _of_user(one: Facts, head: Facts) -> Iterable[tuple[str, str, str]]:
    if not one["user"]:
        yield BAD, "user", f"user id {one['uid']} has no entry in passwd: Slurm refuses to run as it"
    for fact, told in (("user", "user"), ("uid", "user id"), ("gid", "group id")):
        if one[fact] != head[fact]:
            yield (
                BAD,
                "user",
                f"{told} {one[fact]}, and {head[fact]} on {head['host']}: it has to be the same everywhere",
            )
    if one["home"] != head["home"]:
        yield (
            NOTE,
            "home",
            f"is {one['home']}, and {head['home']} on {head['host']}: paths below it differ in jobs",
        )


NEEDED = ("munged", "slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "scontrol", "sinfo", "squeue")
"""The programs of Slurm and munge without which there is no cluster."""


def without_slurm(facts: Mapping[str, Facts]) -> dict[str, str]:
    """Target -> why its installed Slurm cannot be used; empty where all hosts have one release that is new enough."""
    found = {}
    head = next(iter(facts.values()), None)
    for target, one in facts.items():
        version = release(one["slurm"]["version"])
        missing = [name for name in NEEDED if name not in one["slurm"]["programs"]]
        if len(missing) == len(NEEDED):
            found[target] = "not installed"
        elif missing:
            found[target] = f"{', '.join(missing)} not found"
        elif version is None:
            found[target] = "slurmd -V tells no version"
        elif version < OLDEST:
            found[target] = f"{one['slurm']['version']} is too old ({release_text(OLDEST)} at least)"
        elif head and head["slurm"]["version"] and version != release(head["slurm"]["version"]):
            found[target] = f"{one['slurm']['version']}, and {head['slurm']['version']} on {head['host']}"
    return found


def release(version: str) -> tuple[int, int] | None:
    """(major, minor) of what `slurmd -V` says; None for no version."""
    parts = version.split(".")
    if len(parts) < 2 or not parts[0].isdigit() or not parts[1].isdigit():
        return None
    return int(parts[0]), int(parts[1])


def _of_network(target: str, one: Facts, allow_public: bool) -> Iterable[tuple[str, str, str]]:
    address = address_of(target, one)
    if not address:
        yield BAD, "address", "no IPv4 address but that of the loopback"
        return
    listening = [address] if one["own_name"] == address else sorted({address, *one["addresses"]})
    public = [found for found in listening if ipaddress.ip_address(found).is_global]
    if public:
        yield (
            NOTE if allow_public else BAD,
            "address",
            f"Slurm would listen on {', '.join(public)}, which the whole internet reaches: --allow-public permits it",
        )
    elif one["own_name"] != address:
        own = one["own_name"] or "nothing"
        yield (
            NOTE,
            "address",
            f"its own name means {own} there, not {address}: daemons listen on all of its addresses (/etc/hosts)",
        )


def _of_machine(one: Facts) -> Iterable[tuple[str, str, str]]:
    yield from _of_clock(one)
    if not _NODE_NAME.fullmatch(one["host"]) or one["host"].upper() in {"ALL", "DEFAULT"}:
        yield (
            BAD,
            "name",
            f"calls itself {one['host']!r}, and a node cannot be called so: give it another (hostname)",
        )
    for path, names in sorted(one["holders"].items()):
        yield (
            NOTE,
            "accelerators",
            f"{path} is held by {', '.join(names)}, and jobs will get it all the same: end that first",
        )
    if not one["subreaper"]:
        yield NOTE, "processes", "its Python has no ctypes: what leaves its process group can outlive a step"
    if one["var_tmp_free_mib"] < FREE_MIB_LEAST:
        yield (
            BAD,
            "disk",
            f"{one['var_tmp_free_mib']} MiB are free in /var/tmp: Slurm's state needs {FREE_MIB_LEAST}",
        )
    if 0 <= one["open_files"] < OPEN_FILES_LEAST:
        yield NOTE, "limits", f"{one['open_files']} open files at most: a large srun needs more (limits.conf)"
    if one["memlock"] >= 0 and one["gres"]:
        yield (
            NOTE,
            "limits",
            f"{one['memlock'] >> 20} MiB may be locked in memory: RDMA needs no limit (memlock in limits.conf)",
        )
    if one["dies_at_logout"] and not one["linger"]:
        yield BAD, "logout", "logind ends the daemons when you log out: loginctl enable-linger"
    if one["claim"]:
        whose = (
            f"cluster {one['claim']['name']} of {one['claim'].get('user')}"
            if one["claim"].get("name")
            else "something unknown"
        )
        yield BAD, "claim", f"belongs to {whose}: take that one down first"


def _of_clock(one: Facts) -> Iterable[tuple[str, str, str]]:
    offset, within = one["clock_offset_s"], one["clock_within_s"]
    if abs(offset) - within > CLOCK_BAD_S:
        yield (
            BAD,
            "clock",
            f"is {offset:+.0f} s off: Slurm and munge refuse what comes from another time (set it: NTP)",
        )
    elif abs(offset) - within > CLOCK_NOTE_S:
        yield NOTE, "clock", f"is {offset:+.1f} s off: times in logs do not agree"


def of_living(one: Facts) -> tuple[str, ...]:
    """What is wrong with a host of a living cluster: its clock, its disk. `one` has `clock_s`, as `with_clock` tells it, and `free_mib`."""
    disk = f"{one['free_mib']} MiB are free in /var/tmp: no job starts where slurmd cannot write"
    clock = [f"its clock {text}" for _, _, text in _of_clock(one)]
    return (*clock, *([disk] if one["free_mib"] < FREE_MIB_FULL else []))


def with_clock(one: Facts, at_s: float, took_s: float) -> Facts:
    """The facts with the offset of the clock `clock_s`, which was read at some moment before the answer came."""
    within_s = took_s / 2
    return {**one, "clock_offset_s": one["clock_s"] - (at_s - within_s), "clock_within_s": within_s}


def address_of(target: str, one: Facts) -> str:
    """The address by which the other hosts reach this one: where its own name leads, else where SSH found it, else its first."""
    if target == LOCALHOST:
        own = str(one["own_name"])
        is_private = own.startswith("127.") or (
            own in one["addresses"] and not ipaddress.ip_address(own).is_global
        )
        return own if is_private else "127.0.0.1"
    for candidate in (one["own_name"], one["called_at"]):
        if candidate in one["addresses"]:
            return str(candidate)
    return str(one["addresses"][0]) if one["addresses"] else ""


def backup_problem(backup: str, facts: Mapping[str, Facts], shared: str) -> str:
    """Why a host cannot run a second slurmctld, which keeps its state with the first one in `shared`; "" if it can."""
    if backup not in facts or backup == next(iter(facts)):
        return f"--backup {backup}: it has to be one of the other hosts, as the first one runs slurmctld"
    if any(char in FORBIDDEN_IN_PATHS for char in shared):
        return f"--backup: blanks, quotes, commas and # cannot be in the path of the shared folder, {shared}"
    for target, one in facts.items():
        if one["shared_kind"] == SSHFS:
            return f"--backup: {shared} is mounted by sshfs on {target}: it is gone with the host that serves it, and files that were open then are lost"
    return ""


def socket_path_problem(folder: str, facts: Mapping[str, Facts]) -> str:
    """Why the folder is too long for the sockets of steps; "" if it is not."""
    length = longest_socket_path(folder, tuple(one["host"] for one in facts.values()))
    return (
        f"{folder} is too long: the socket of a step would have {length} of {SOCKET_PATH_MAX} bytes"
        if length > SOCKET_PATH_MAX
        else ""
    )
