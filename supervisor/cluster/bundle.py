"""Bundles of Slurm: kept in the user's home, one for each architecture, and copied to the hosts that lack them. (I/O)

<home>/bundles/slurm_<version>_<architecture>_<hash>.tar.gz. On a host it is unpacked as /var/tmp/ftrun-<uid>/slurm_..., beside the clusters:
a name with an underscore is no cluster's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.unpack import MANIFEST, contents
from ftrun.hooks.runtime.ownership import private_folders, why_untrusted
from ftrun.slurm.cluster.plan import Plan
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cluster import packages, remote
from ftrun.supervisor.cluster.findings import release
from ftrun.supervisor.config.home import home_dir, write_atomically
from ftrun.supervisor.model.errors import UserError

EXIT_FAILED = 1
HASH_DIGITS = 16
COPY_S = 600.0
SUFFIX = ".tar.gz"
_NAME = re.compile(r"slurm_(\d+\.\d+[0-9A-Za-z.]*)_([a-z0-9_]+)_([0-9a-f]{16})\.tar\.gz")
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bundle:
    """One bundle: its file, its hash, Slurm's version, the architecture, the names of its programs."""

    path: str
    sha256: str
    version: str
    arch: str
    programs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its folder on hosts, and of its file without the suffix."""
        return f"slurm_{self.version}_{self.arch}_{self.sha256[:HASH_DIGITS]}"


def folder() -> Path:
    """Where bundles are kept."""
    return Path(home_dir(dict(os.environ))) / "bundles"


def make(told: Told, arch: str = "", suite: str = "", out: str = "") -> Bundle:
    """Make a bundle now and keep it, or write it to `out`. Raises UserError."""
    made = packages.made_bundle(arch or platform.machine(), suite, told)
    return _written(made, out) if out else _kept(made)


def choose(files: Sequence[str], architectures: Collection[str], told: Told) -> dict[str, Bundle]:
    """A bundle for each architecture: of `files`, else the newest that is kept, else one made now. Raises UserError."""
    named = {one.arch: one for one in map(taken, files)}
    if strange := sorted(set(named) - set(architectures)):
        raise UserError(f"{named[strange[0]].path} is for {strange[0]}, and no host is", EXIT_FAILED)
    found = {arch: named.get(arch) or _newest(arch) or make(told, arch) for arch in sorted(architectures)}
    if len({release(one.version) for one in found.values()}) > 1:
        versions = ", ".join(f"{one.version} for {one.arch}" for one in found.values())
        raise UserError(
            f"one release of Slurm is needed everywhere, and the bundles are of {versions}", EXIT_FAILED
        )
    return found


def choose_beside(
    plan: Plan, files: Sequence[str], architectures: Collection[str], told: Told
) -> dict[str, Bundle]:
    """As `choose` for hosts that join a cluster: its own bundles, for another architecture one of its release; {} where it has none.

    Raises UserError.
    """
    if not plan.bundles:
        if files:
            raise UserError(f"cluster {plan.name} uses the Slurm that is installed on its hosts: no --bundle")
        return {}
    own = {match[2]: name for name in plan.bundles.values() if (match := _NAME.fullmatch(name + SUFFIX))}
    lacking = sorted(set(architectures) - {one.arch for one in map(taken, files)})
    kept = [str(folder() / f"{own[arch]}{SUFFIX}") for arch in lacking if arch in own]
    found = choose([*files, *kept], architectures, told)
    others = [
        one
        for one in found.values()
        if own.get(one.arch, one.name) != one.name or release(one.version) != plan.version
    ]
    if others:
        raise UserError(
            f"cluster {plan.name} has another Slurm than {others[0].name}: all hosts need one", EXIT_FAILED
        )
    return found


def taken(path: str) -> Bundle:
    """A bundle that the user names, kept: a later `up` finds it. Raises UserError."""
    found = read(path)
    return found if Path(found.path).parent == folder() else _kept(Path(path).read_bytes())


def spread(plan: Plan) -> list[remote.HostAnswer]:
    """Have every host of the plan unpack its bundle, if it has not; hosts that do not see the file here are sent it. Returns those that failed."""
    kept = {
        name: read(str(folder() / f"{name}{SUFFIX}"))
        for name in {plan.bundles[host.name] for host in plan.hosts}
    }
    steps = {name: _step(plan, one) for name, one in kept.items()}
    answers = remote.ask({host.target: [steps[plan.bundles[host.name]]] for host in plan.hosts}, COPY_S)
    lacking = [
        host for host in plan.hosts if answers[host.target].ok and not answers[host.target].done[0]["there"]
    ]
    sent = {
        name: [{**steps[name], "content": base64.b64encode(Path(kept[name].path).read_bytes()).decode()}]
        for name in {plan.bundles[host.name] for host in lacking}
    }
    if lacking:
        answers |= remote.ask({host.target: sent[plan.bundles[host.name]] for host in lacking}, COPY_S)
    return [answer for answer in answers.values() if not answer.ok]


def read(path: str) -> Bundle:
    """The bundle in a file. Raises UserError where it is none, damaged, not what its name says, or another user can have written it."""
    try:
        packed = Path(path).read_bytes()
        if why := why_untrusted(path, follow=True):
            raise UserError(f"{why}: its programs are not run")
        return _understood(path, packed)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def _understood(path: str, packed: bytes) -> Bundle:
    try:
        files = contents(packed)
        told: Mapping[str, Any] = json.loads(files[MANIFEST])
        programs = tuple(name.removeprefix("real/") for name in files if name.startswith("real/"))
        sha256 = hashlib.sha256(files[MANIFEST]).hexdigest()
        found = Bundle(os.path.abspath(path), sha256, str(told["version"]), str(told["arch"]), programs)
    except (HostError, KeyError) as error:
        raise UserError(f"{path}: {error}") from None
    if not _NAME.fullmatch(f"{found.name}{SUFFIX}"):
        raise UserError(f"{path}: it is no bundle of Slurm")
    if _NAME.fullmatch(os.path.basename(path)) and os.path.basename(path) != f"{found.name}{SUFFIX}":
        raise UserError(f"{path} is not the bundle that its name says: remove it")
    return found


def _newest(arch: str) -> Bundle | None:
    rows = []
    for path in folder().glob(f"slurm_*{SUFFIX}"):
        match = _NAME.fullmatch(path.name)
        if match and match[2] == arch:
            rows.append((release(match[1]) or (0, 0), path.stat().st_mtime, str(path)))
    return read(max(rows)[2]) if rows else None


def _kept(packed: bytes) -> Bundle:
    private_folders(str(folder()))
    return _written(packed, str(folder() / f"{_understood('the bundle', packed).name}{SUFFIX}"))


def _written(packed: bytes, path: str) -> Bundle:
    try:
        write_atomically(path, packed)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    return read(path)


def _step(plan: Plan, one: Bundle) -> dict[str, Any]:
    return {"do": "unpack", "folder": plan.bundle_folder(one.name), "sha256": one.sha256, "path": one.path}
