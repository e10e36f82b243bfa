"""Laws of the checks of storage: what hangs is bad here, what is full is told, and nothing is touched that may hang a check. (I/O)

Lines of /proc/mounts are in the format of proc(5), as this kernel prints them, with hosts of our own.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import folders, mounts
from ftrun.hooks.checks.catalogue import CHECKS
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.mounts import Touch, ask_paths, is_network, mount_of, parse_mounts
from tests.unit.checked import probed, severities, told, tree

MOUNTS = """\
proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0
/dev/nvme0n1p2 / ext4 rw,relatime,errors=remount-ro 0 0
/dev/nvme1n1 /scratch xfs rw,relatime,attr2,inode64,logbufs=8 0 0
filer1:/export/home /home nfs4 rw,relatime,vers=4.2,rsize=1048576,hard,proto=tcp,addr=10.1.0.5 0 0
10.1.0.9@o2ib:10.1.0.10@o2ib:/lfs /lustre/big\\040data lustre rw,flock,lazystatfs 0 0
filer2:/sw /sw nfs ro,relatime,vers=3 0 0
JuiceFS:ckpt /ckpt fuse.juicefs rw,relatime,user_id=0 0 0
lxcfs /var/lib/lxcfs fuse.lxcfs rw,relatime 0 0
"""


def test_the_table_of_mounts_is_read_as_it_is() -> None:
    """Blanks in paths come back, cut lines are left out, and only what comes from another machine is a network mount."""
    table = parse_mounts(MOUNTS + "cut line\n")

    network = [one.target for one in table if is_network(one)]
    assert ["/home", "/lustre/big data", "/sw", "/ckpt"] == network
    assert 8 == len(table)


@pytest.mark.parametrize(
    ("path", "target"),
    [("/home/eva/run", "/home"), ("/homes", "/"), ("/scratch", "/scratch"), ("/scratch/../sw/x", "/sw")],
)
def test_a_path_lies_on_the_deepest_mount(path: str, target: str) -> None:
    """Names that only begin alike are not below each other."""
    found = mount_of(parse_mounts(MOUNTS), path)

    assert found is not None
    assert target == found.target


def test_one_hung_mount_does_not_hold_the_others() -> None:
    """All are asked at the same time, and the one that hangs is left behind."""

    def question(path: str) -> str:
        if path == "/d":
            raise OSError(errno.ENOTCONN, "")
        time.sleep(600 if path < "/c" else 0)
        return "x y"

    began = time.monotonic()
    for limit_s in (1.0, 5.0, 60.0):  # a busy machine takes seconds to ask at all
        touches = ask_paths(Machine(), ["/a", "/b", "/c", "/d"], question, limit_s)
        if not touches["/c"].hung and not touches["/d"].hung:
            break

    assert time.monotonic() - began < 500  # nobody waited for those that hang
    assert [True, True, False, False] == [touch.hung for touch in touches.values()]
    assert ("x y", errno.ENOTCONN) == (touches["/c"].text, touches["/d"].errno)
    assert [BAD, BAD, BAD] == severities("mounts", touches)


@pytest.mark.parametrize(
    ("touch", "expected"),
    [
        (Touch(0.01), OK),
        (Touch(5.0, hung=True), BAD),
        (Touch(3.0), DEGRADED),
        (Touch(0.1, errno.ENOTCONN), BAD),
        (Touch(0.1, errno.EIO), BAD),
        (Touch(0.1, errno.EACCES), OK),
        (Touch(0.1, errno.ESTALE), OK),
        (Touch(0.1, errno.ENOENT), NOTE),
    ],
)
def test_a_mount_answers_in_time(touch: Touch, expected: str) -> None:
    """Hung and dead are bad, slow is degraded; what may not be looked at has answered."""
    assert [expected] == severities("mounts", {"/home": touch})
    if expected == BAD:
        assert "/home" == told("mounts", {"/home": touch})[0].device


def test_without_network_mounts_there_is_nothing_to_ask(tmp_path: Path) -> None:
    """A node with local disks only is not judged by servers that it has not."""
    machine = tree(tmp_path, {"/proc/mounts": "/dev/sda1 / ext4 rw 0 0\n"})

    for name in ("mounts", "stale-handle"):
        assert [SKIPPED] == severities(name, probed(name, machine))


def test_mounts_of_the_table_are_asked(tmp_path: Path) -> None:
    """Every network mount is asked where no path is named, and the named ones where there are."""
    (tmp_path / "home").mkdir()
    machine = tree(tmp_path, {"/proc/mounts": "filer1:/h /home nfs4 rw 0 0\n"})

    for check in (CHECKS["mounts"], CHECKS["stale-handle"]):
        assert ["/home"] == list(check.probe(machine, check.thresholds))
        touches = check.probe(machine, {**check.thresholds, "paths": ["/home", "/gone"]})
        assert ["/home", "/gone"] == list(touches)
        assert [0, errno.ENOENT] == [touch.errno for touch in touches.values()]


@pytest.mark.parametrize(
    ("fstab", "expected", "severity"),
    [
        ("", [], SKIPPED),
        ("", ["/home", "/scratch/"], OK),
        ("", ["/home", "/data"], BAD),
        ("filer1:/export/home\t/home\tnfs4\tdefaults,_netdev 0 0\n", [], OK),
        (
            "# filer9:/d /data nfs rw 0 0\nfiler9:/d /data nfs noauto 0 0\nf:/e /e nfs rw,nofail 0 0\n",
            [],
            SKIPPED,
        ),
        ("filer9:/d  /data  nfs  rw  0 0\n", [], BAD),
        ("/dev/sdb1 /local ext4 rw 0 0\nodd\n", [], SKIPPED),
    ],
)
def test_what_must_be_mounted_is_mounted(fstab: str, expected: list[str], severity: str) -> None:
    """What the site names and what fstab promises, and nothing more."""
    facts = mounts.PresentFacts(parse_mounts(MOUNTS), fstab)

    assert [severity] == severities("mount-present", facts, expected=expected)


def test_an_automount_counts_as_mounted() -> None:
    """What autofs mounts at the first touch is not missing before it."""
    facts = mounts.PresentFacts(parse_mounts("auto.data /data autofs rw,fd=7,indirect 0 0\n"), "")

    assert [OK] == severities("mount-present", facts, expected=["/data/set1"])


@pytest.mark.parametrize(
    ("more", "writable", "expected"),
    [
        ("", [], [OK]),
        ("", ["/home/eva", "/scratch"], [OK]),
        ("", ["/sw/build"], [BAD]),
        ("/dev/sdb1 /local ext4 ro,relatime,errors=remount-ro 0 0\n", ["/local/x"], [BAD]),
        ("/dev/sdc1 /data xfs rw,relatime,shutdown 0 0\n", [], [BAD]),
        ("/dev/sr0 /media iso9660 ro,relatime 0 0\n", [], [OK]),
    ],
)
def test_a_file_system_that_turned_read_only_is_bad(
    more: str, writable: list[str], expected: list[str]
) -> None:
    """After an error, or below a path that must be written; what is read-only on purpose is well."""
    assert expected == severities("mount-readonly", parse_mounts(MOUNTS + more), writable=writable)


@pytest.mark.parametrize(
    ("touch", "expected"),
    [
        (Touch(0.01), OK),
        (Touch(8.0, hung=True), BAD),
        (Touch(4.0), DEGRADED),
        (Touch(0.1, errno.EIO), BAD),
        (Touch(0.1, errno.EROFS), BAD),
        (Touch(0.1, errno.ENOSPC), DEGRADED),
        (Touch(0.1, errno.EDQUOT), DEGRADED),
        (Touch(0.1, errno.EACCES), DEGRADED),
        (Touch(0.1, errno.ENOENT), NOTE),
        (Touch(0.1, text="different"), BAD),
    ],
)
def test_only_a_write_proves_that_one_can_write(touch: Touch, expected: str) -> None:
    """Errors of the machine are bad; full, over quota and forbidden are the folder's state on every node."""
    assert [expected] == severities("canary", {"/ckpt": touch})


def test_a_canary_leaves_nothing_behind(tmp_path: Path) -> None:
    """Written, read back, removed; a folder that is not there is a note, and no folder at all is skipped."""
    thresholds = {**CHECKS["canary"].thresholds, "folders": [str(tmp_path), str(tmp_path / "gone")]}

    assert [NOTE] == [
        one.severity
        for one in CHECKS["canary"].judge(CHECKS["canary"].probe(Machine(), thresholds), thresholds)
    ]
    assert [] == os.listdir(tmp_path)
    assert [SKIPPED] == severities("canary", {})


@pytest.mark.parametrize(
    ("touch", "expected"),
    [
        (Touch(0.1, errno.ESTALE), BAD),
        (Touch(0.1), OK),
        (Touch(0.1, errno.EACCES), OK),
        (Touch(5.0, hung=True), UNKNOWN),
    ],
)
def test_a_stale_handle_is_this_node_s_fault(touch: Touch, expected: str) -> None:
    """Only ESTALE counts here; what hangs is told by another check."""
    assert [expected] == severities("stale-handle", {"/home": touch})


@pytest.mark.parametrize(
    ("touch", "more", "expected"),
    [
        (Touch(0.1, text="1000000000000 500000000000 1000 900"), {}, OK),
        (Touch(0.1, text="1000000000000 500000000000 0 0"), {}, OK),
        (Touch(0.1, text="1000000000000 10000000000 1000 900"), {}, DEGRADED),
        (Touch(0.1, text="1000000000000 500000000000 1000 3"), {}, DEGRADED),
        (Touch(0.1, text="1000000000000 500000000000 1000 900"), {"free_gb": 600}, DEGRADED),
        (Touch(5.0, hung=True), {}, UNKNOWN),
        (Touch(0.1, errno.ENOENT), {}, UNKNOWN),
    ],
)
def test_a_folder_has_room_for_what_comes(touch: Touch, more: dict[str, Any], expected: str) -> None:
    """Room and inodes; a full folder is full from every node, so it is never bad."""
    assert [expected] == severities("folder-room", {"/ckpt": touch}, **more)


def test_the_room_of_a_real_folder_is_told(tmp_path: Path) -> None:
    """The file system of this test has a size."""
    thresholds = {**CHECKS["folder-room"].thresholds, "folders": [str(tmp_path)]}
    (touch,) = CHECKS["folder-room"].probe(Machine(), thresholds).values()

    assert 4 == len(touch.text.split())


# Columns as the source of quota-tools prints them with -w -p, and as lfs-quota(1) shows them; numbers and names are made up.
QUOTA = """\
Disk quotas for user eva (uid 1201):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
filer1:/export/home {blocks} 1000000 1100000 {grace} 4200       0       0 0
"""
LFS = """\
Disk quotas for usr eva (uid 1201):
      Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
/lustre/very/long/name/of/a/mount
                 {kbytes}       0 20000000       -   {files} 0 1000000       -
uid 1201 is using default block quota setting
"""


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (folders.QuotaFacts(QUOTA.format(blocks="400000", grace="0")), [OK]),
        (folders.QuotaFacts(QUOTA.format(blocks="1050000*", grace="1796000000")), [DEGRADED]),
        (folders.QuotaFacts(QUOTA.format(blocks="1099000", grace="0")), [DEGRADED]),
        (
            folders.QuotaFacts(QUOTA.format(blocks="1050000*", grace="6days").replace(" 0\n", "\n")),
            [DEGRADED],
        ),
        (folders.QuotaFacts(QUOTA.format(blocks="40", grace="").replace(" 0\n", "\n")), [OK]),
        (folders.QuotaFacts("", (LFS.format(kbytes="1000", files="12"),)), [OK]),
        (folders.QuotaFacts("", (LFS.format(kbytes="20000001*", files="12"),)), [DEGRADED]),
        (folders.QuotaFacts("", (LFS.format(kbytes="1000", files="1000000*"),)), [DEGRADED]),
        (folders.QuotaFacts("Disk quotas for user eva (uid 1201): none\n"), [SKIPPED]),
        (folders.QuotaFacts("filer1:/x 12\n/y\n", ("",)), [SKIPPED]),
    ],
)
def test_a_quota_that_is_used_up_is_told(facts: folders.QuotaFacts, expected: list[str]) -> None:
    """Over it or near its end; it is full from every node, so it is never bad."""
    assert expected == severities("quota", facts)


def nvme(**more: Any) -> str:
    # Names as nvme-cli prints them with -o json.
    log = {
        "critical_warning": 0,
        "temperature": 311,
        "avail_spare": 100,
        "spare_thresh": 10,
        "percent_used": 3,
        "media_errors": 0,
    }
    return json.dumps({**log, **more})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (nvme(), [OK]),
        (nvme(media_errors="0"), [OK]),
        (nvme(critical_warning=1), [BAD]),
        (nvme(critical_warning=2), [DEGRADED]),
        (nvme(critical_warning={"value": 12, "ns_reliability_degraded": 1}), [BAD, BAD]),
        (nvme(media_errors=7), [DEGRADED]),
        (nvme(percent_used=104), [DEGRADED]),
        (
            json.dumps(
                {"nvme_smart_health_information_log": {"critical_warning": 0, "percentage_used": 101}}
            ),
            [DEGRADED],
        ),
        (json.dumps({"no answer": "failed to open /dev/nvme0: Permission denied"}), [SKIPPED]),
        (json.dumps({"no answer": "nvme did not end within 5 s"}), [UNKNOWN]),
        ("{", [UNKNOWN]),
        ("[]", [UNKNOWN]),
        ("", [UNKNOWN]),
    ],
)
def test_a_drive_tells_of_its_health(text: str, expected: list[str]) -> None:
    """A drive that failed is bad, one that wears out degraded, one that may not be asked is skipped."""
    assert expected == severities("nvme-health", {"nvme0": text})


def test_a_node_without_drives_has_none_to_ask(tmp_path: Path) -> None:
    """No NVMe is no fault."""
    assert [SKIPPED] == severities("nvme-health", probed("nvme-health", Machine(str(tmp_path))))


# The form of `state` is that of Lustre's manual.
STATE = "current_state: {now}\nstate_history:\n - [ 1795000000, CONNECTING ]\n - [ {when}, {then} ]\n - [ 1795000300, FULL ]\n"


@pytest.mark.parametrize(
    ("health", "state", "expected"),
    [
        ("healthy\n", STATE.format(now="FULL", when=1795000100, then="DISCONN"), OK),
        ("", STATE.format(now="IDLE", when=1795000100, then="FULL"), OK),
        ("NOT HEALTHY\n", "", BAD),
        ("LBUG\n", STATE.format(now="FULL", when=1795000100, then="FULL"), BAD),
        ("healthy\n", STATE.format(now="DISCONN", when=1795000100, then="FULL"), DEGRADED),
        ("healthy\n", STATE.format(now="FULL", when=1795000100, then="EVICTED"), DEGRADED),
        ("healthy\n", STATE.format(now="FULL", when=1794000000, then="EVICTED"), NOTE),
        ("healthy\n", "odd", OK),
        ("what\n", "", UNKNOWN),
        ("", "", SKIPPED),
    ],
)
def test_a_lustre_client_is_healthy_and_connected(health: str, state: str, expected: str) -> None:
    """It says of itself whether it is well, and when a server shut it out."""
    states = {"lfs-OST0001-osc-ffff8d5e": state} if state else {}

    assert [expected] == severities("lustre-client", mounts.LustreFacts(health, states, 1795001000.0))


def test_a_lustre_client_is_read_from_its_files(tmp_path: Path) -> None:
    """Both places of its files are looked at."""
    full = STATE.format(now="FULL", when=1795000100, then="FULL")
    machine = tree(
        tmp_path,
        {
            "/sys/fs/lustre/health_check": "healthy\n",
            "/sys/kernel/debug/lustre/osc/lfs-OST0000-osc-f1/state": full,
            "/proc/fs/lustre/mdc/lfs-MDT0000-mdc-f1/state": full,
        },
    )
    facts = probed("lustre-client", machine)

    assert ("healthy\n", 2) == (facts.health, len(facts.states))
