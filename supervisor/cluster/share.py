"""A folder of the head host on all hosts, by sshfs (`up --share DIR`): what it needs, its keys, and the requests for it. (I/O)

`hooks/cluster/share.py` is what runs on a host. The keys are made where `up` is said and live as long as the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ftrun.slurm.cluster.conf import FORBIDDEN_IN_PATHS
from ftrun.slurm.cluster.plan import LOCALHOST, Host, Plan
from ftrun.supervisor.cluster import remote
from ftrun.supervisor.cluster.findings import BAD, Facts, Finding
from ftrun.supervisor.cluster.state import ClusterState
from ftrun.supervisor.model.errors import UserError

KEYS = "share.json"
WORD = "share"


def checked_folder(path: str, shared: str, targets: list[str]) -> str:
    """The folder that the user wants to share as an absolute path; "" for none. Raises UserError where it cannot be."""
    if not path:
        return ""
    if shared:
        raise UserError(
            "--shared names a folder that all hosts see already, --share makes one: only one of them"
        )
    if targets == [LOCALHOST]:
        raise UserError("--share: one machine needs none")
    folder = os.path.abspath(os.path.expanduser(path))
    if any(char in FORBIDDEN_IN_PATHS for char in folder):
        raise UserError(f"--share {path}: blanks, quotes, commas and # cannot be in its path")
    return folder


def findings_of(facts: Mapping[str, Facts], share: str) -> list[Finding]:
    """What keeps a folder from being shared between these hosts, of which the first one serves it. (pure)"""
    found = []
    for number, (target, one) in enumerate(facts.items()):
        texts = _of_host(one, share) if number else _of_head(one, share)
        found += [Finding(target, BAD, WORD, text) for text in texts]
        if one["uid"] == 0:
            text = (
                "a folder by sshfs belongs to one user: root's cluster needs a shared file system of its own"
            )
            found.append(Finding(target, BAD, WORD, text))
    return found


def _of_head(one: Facts, share: str) -> list[str]:
    lines = []
    if not one["sshd"]:
        lines.append(
            "sshd was not found, and this host would serve the folder (Debian, Ubuntu: openssh-server)"
        )
    if one["share"] in {"closed", "taken"}:
        lines.append(f"{share} cannot be shared: it is no folder that you can read")
    return lines


def _of_host(one: Facts, share: str) -> list[str]:
    lines = []
    if not one["sshfs"]:
        lines.append("sshfs was not found (Debian, Ubuntu: sshfs)")
    if not one["fuse"]:
        lines.append(
            "/dev/fuse is not there for you, and sshfs needs it (in a container: --device /dev/fuse)"
        )
    if not one["fusermount3"]:
        lines.append(
            "fusermount3 with its setuid bit was not found, and sshfs needs it (Debian, Ubuntu: fuse3)"
        )
    if one["share"] == "full":
        lines.append(f"{share} is not empty there: what is in it would be hidden")
    elif one["share"] in {"closed", "taken"}:
        lines.append(
            f"{share} is no empty folder that you can read (a mount left over? fusermount3 -u {share})"
        )
    return lines


def serving(plan: Plan, host: Host) -> tuple[str, ...]:
    """The daemon by which a host serves the folder to the others."""
    return ("sshd",) if plan.share and host is plan.head else ()


def mounting(plan: Plan, host: Host) -> tuple[str, ...]:
    """The daemon by which a host has the folder of the first one."""
    return ("sshfs",) if plan.share and host is not plan.head else ()


def fields(state: ClusterState, plan: Plan, host: Host) -> dict[str, Any]:
    """What a request to start daemons on a host tells of the folder; {} without one. Raises OSError."""
    if not plan.share:
        return {}
    keys = _keys(state)
    here = (
        {"host_key": keys["host"], "allowed": keys["user_public"]}
        if host is plan.head
        else {"key": keys["user"], "known": keys["host_public"]}
    )
    return {**_place(plan), "share_port": plan.share_port, "share_keys": here}


def unmounting(plan: Plan, host: Host, *, lazy: bool) -> list[remote.Step]:
    """The requests to a host after which the folder is not mounted there; `lazy`: also where it is used."""
    if not plan.share or host is plan.head:
        return []
    return [{"do": "unmount", "token": plan.token, "folder": plan.folder, **_place(plan), "lazy": lazy}]


def _place(plan: Plan) -> dict[str, Any]:
    return {"share": plan.share, "user": plan.user, "head": plan.head.address}


def _keys(state: ClusterState) -> dict[str, str]:
    """The keys of host and user, private and public; made once. Raises OSError."""
    return state.kept(KEYS, lambda: {**_key_pair("host"), **_key_pair("user")})


def _key_pair(name: str) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return {name: private.decode(), f"{name}_public": public.decode()}
