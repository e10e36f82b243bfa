"""Slurm from the packages of a distribution, in a debootstrapped root without it: by `sudo -n` of an ordinary user, and by root. Real apt, real packages.

How it thinks. / is read-only while packages are unpacked: what debootstrap, apt and dpkg write lands in the new root alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.bundle import zipapp
from tests.cluster.hosts import ALICE_UID

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="root and debootstrap are needed"
    ),
]
SITE = "http://deb.debian.org/debian"
MAKE_S = 1200.0
HELPER = "/usr/lib/apt/apt-helper"
SAFE = """\
set -e
mount --make-rprivate /
mount --bind {root} /mnt
cp /etc/resolv.conf /dev/shm/resolv.{pid}
mount -t tmpfs own /tmp
mount -o remount,bind,ro /
"""
BOOTSTRAP = (
    SAFE
    + "exec debootstrap --variant=minbase --include=python3-minimal,libpython3-stdlib,sudo bookworm /mnt {site}"
)
INSIDE = (
    SAFE
    + """\
for folder in proc dev; do mount --rbind /$folder /mnt/$folder; done
cat /dev/shm/resolv.{pid} >/mnt/etc/resolv.conf
exec chroot {words} /mnt /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp /bin/sh -c "$0"
"""
)


def _safely(
    script: str, *words: str, stdin: bytes = b"", limit_s: float = MAKE_S
) -> subprocess.CompletedProcess[bytes]:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, *words]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=limit_s, check=False)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A root of Debian 12 with Python and sudo, and without Slurm."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-root-", dir="/var/tmp"))
    folder.chmod(0o755)  # alice enters it, too
    try:
        if subprocess.run(
            [HELPER, "download-file", f"{SITE}/dists/bookworm/InRelease", str(folder / "x")],
            capture_output=True,
            timeout=60,
            check=False,
        ).returncode:
            pytest.skip("the mirror of packages does not answer")
        (folder / "x").unlink()
        made = _safely(BOOTSTRAP.format(root=folder, site=SITE, pid=os.getpid()))
        assert 0 == made.returncode, made.stdout[-2000:]
        with (folder / "etc/passwd").open("a") as stream:
            stream.write(f"alice:*:{ALICE_UID}:{ALICE_UID}::/tmp:/bin/sh\n")
        yield folder
    finally:
        shutil.rmtree(folder)


def _asked(root: Path, *steps: dict[str, Any], user: str = "") -> dict[str, Any]:
    """What the hooks answer in the root, as root or as a user."""
    stdin = zipapp.request_input(["host"], {"steps": list(steps)}, zipapp.packed_rooms("cluster", "runtime"))
    words = f"--userspec={user}" if user else ""
    done = _safely(INSIDE.format(root=root, pid=os.getpid(), words=words), zipapp.REMOTE_COMMAND, stdin=stdin)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_packages_are_installed_by_sudo_and_by_root_and_start_nothing(root: Path) -> None:
    """Without the right to it a refusal; with it Slurm is found as an installed one; nothing runs, and a second time changes nothing."""
    step = {"do": "install", "least": "22.05"}
    look = {"do": "survey"}
    alice = f"{ALICE_UID}:{ALICE_UID}"
    refused = _asked(root, step, user=alice)
    newer = _asked(root, {**step, "least": "99.05"})
    before = _asked(root, look)
    (root / "etc/sudoers.d/alice").write_text("alice ALL=(ALL) NOPASSWD: ALL\n")
    (root / "etc/sudoers.d/alice").chmod(0o440)
    installed = _asked(root, step, look, user=alice)
    again = _asked(root, step)

    assert (
        "install: apt-get: sudo: a password is required"
        == f"{refused['failed']['step']}: {refused['failed']['why']}"
    )
    assert "its packages have Slurm 22.05" in newer["failed"]["why"]
    assert "" == before["done"][0]["slurm"]["version"]
    assert installed["failed"] is None, installed
    assert installed["done"][1]["slurm"]["version"].startswith("22.05")
    assert {"munged", "slurmctld", "slurmd", "sbatch"} <= set(installed["done"][1]["slurm"]["programs"])
    assert "22.05.8" == again["done"][0]["version"]
    assert not (root / "usr/sbin/policy-rc.d").exists()
    assert [] == [pid for pid in os.listdir("/proc") if pid.isdigit() and _lives_in(pid, root)]


def _lives_in(pid: str, root: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/root") == str(root)
    except OSError:
        return False
