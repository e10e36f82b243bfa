"""`ftrun-hook cache`: whose folder is believed, what it says and clears, and which nodes share."""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
import time
from pathlib import Path

import pytest

from ftrun.hooks import main
from ftrun.hooks.compile_cache import cmd, exchange, packs, periodic_merge
from ftrun.hooks.compile_cache import node as compile_cache_node
from ftrun.supervisor.submission import library_env
from tests.unit.cache_nodes import ENTRIES, LIMIT_BYTES, Node, attempt_of

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@ROOT_ONLY
def test_a_folder_of_somebody_else_is_refused_for_the_whole_run(tmp_path: Path) -> None:
    """Compiled code is run: none from a folder whose owner chose what lies in it."""
    node = Node(tmp_path, "n1")
    nodes = attempt_of(node)
    os.chown(node.local, 12345, 12345)

    status = main.main(["cache", "fill", "--folder", str(nodes)])

    assert status == cmd.EXIT_FOREIGN
    assert "belongs to user 12345" in (node.run / "caches" / "refused").read_text()
    assert compile_cache_node.locate(str(nodes.parent)) is None


@pytest.mark.parametrize("mode", [0o777, pytest.param(0o770, marks=ROOT_ONLY)])
def test_what_others_could_have_written_is_neither_given_nor_started_with(tmp_path: Path, mode: int) -> None:
    """Ranks make the folder by the user's umask: it is closed at the first look, and its content begins anew at the next start."""
    node = Node(tmp_path, "n1")
    nodes = attempt_of(node)
    node.compile(ENTRIES)
    if mode == 0o770:
        os.chown(node.local, 0, 12345)
    node.local.chmod(mode)

    main.main(["cache", "merge", "--folder", str(nodes)])
    given = list((node.run / "caches").glob("*/*.pack"))
    kept = set(node.has()) == set(ENTRIES)
    main.main(["cache", "fill", "--folder", str(nodes)])

    assert (given, kept, node.local.stat().st_mode & 0o777) == ([], True, 0o700)
    assert node.has() == {}


def test_a_private_group_may_write_as_its_user_may(tmp_path: Path) -> None:
    """With a umask of 002 and a group of one's own, what ranks made is as good as with 022."""
    if grp.getgrgid(os.getgid()).gr_name != pwd.getpwuid(os.getuid()).pw_name:
        pytest.skip("this user has no group of their own")
    node = Node(tmp_path, "n1")
    node.local.chmod(0o775)

    assert compile_cache_node.ensure_private(str(node.local))


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """Whoever made it chose where it leads."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(compile_cache_node.ForeignFolder):
        compile_cache_node.ensure_private(str(tmp_path / "link"))


def test_the_command_gives_and_fills_and_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two nodes of one class, one after the other; each leaves a report and prints nothing."""
    first, second = Node(tmp_path, "n1"), Node(tmp_path, "n2")
    nodes = attempt_of(first)
    first.compile(ENTRIES)

    statuses = [main.main(["cache", "merge", "--folder", str(nodes), "--launch", "0"])]
    (first.run / "caches" / "where").write_text(f"{LIMIT_BYTES} {second.local}\n")
    statuses.append(main.main(["cache", "fill", "--folder", str(nodes), "--launch", "1"]))

    reports = [json.loads(one.read_text()) for one in sorted(nodes.glob("caches.*.json"))]
    assert statuses == [0, 0]
    assert [(one["given"] if "given" in one else one["filled"]) for one in reports] == [len(ENTRIES)] * 2
    assert second.has() == ENTRIES
    assert capsys.readouterr().out == ""


def test_clearing_reaches_what_lies_on_the_nodes(tmp_path: Path) -> None:
    """A node that was filled before is emptied before its next start, and does not give the old entries back."""
    node = Node(tmp_path, "n1")
    nodes = attempt_of(node)
    node.compile(ENTRIES)
    main.main(["cache", "merge", "--folder", str(nodes)])
    (node.run / "caches" / "epoch").write_text("1\n")

    main.main(["cache", "fill", "--folder", str(nodes)])

    assert node.has() == {}


def test_without_a_note_of_batch_sh_nothing_is_done(tmp_path: Path) -> None:
    """A run whose starts are told of no caches has none."""
    nodes = tmp_path / "run" / "attempts" / "1" / "nodes"
    nodes.mkdir(parents=True)

    assert main.main(["cache", "merge", "--folder", str(nodes)]) == 0
    assert list(nodes.iterdir()) == []


def test_a_fill_ends_in_time_with_what_it_has(tmp_path: Path) -> None:
    """A slow file system costs warm entries, not the start."""
    first, second = Node(tmp_path, "n1"), Node(tmp_path, "n2")
    first.compile(ENTRIES)
    first.give()

    index, trouble = exchange.fill(second.where, second.index, time.monotonic() - 1.0)

    assert trouble
    assert index.packs == {}
    assert second.has() == {}


@pytest.mark.parametrize("path", ["../x", "/etc/x", "inductor/../../x", "", "a//b", "a/\0"])
def test_a_pack_cannot_lead_out_of_the_folder(path: str) -> None:
    """Whatever its header says."""
    assert not packs.is_safe(path)


@pytest.mark.parametrize(
    "path",
    [
        "inductor/locks/a.lock",
        "inductor/ab/.12.34.tmp",
        "triton/tmp.pid_3_x/a.json",
        "jax/.lockfile",
        "mine/a",
        ".ftrun-index.json",
    ],
)
def test_locks_drafts_and_the_users_own_files_do_not_travel(path: str) -> None:
    """Only what a framework finished, below a folder that it was told."""
    assert not packs.is_entry(path)


def test_a_node_with_npus_has_the_folder_that_cann_wants_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that does not exist is an error to some of its releases."""
    node = Node(tmp_path, "n1")
    nodes = attempt_of(node)
    (tmp_path / "davinci_manager").touch()
    monkeypatch.setattr(cmd, "NPUS", str(tmp_path / "davinci_manager"))

    main.main(["cache", "fill", "--folder", str(nodes)])

    assert (node.local / "ascend").is_dir()


def test_nodes_with_another_driver_or_processor_share_nothing(tmp_path: Path) -> None:
    """The class is made from what compiled code rests on, and from nothing that changes by itself."""
    root = tmp_path / "root"
    (root / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(
        "processor : 0\nflags\t\t: fpu avx2 avx512f md_clear\ncpu MHz : 1200.0\n"
    )
    (root / "proc/driver/nvidia/gpus/0000:01:00.0/information").write_text(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n"
    )
    version = root / "proc/driver/nvidia/version"
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    )

    facts = compile_cache_node.node_facts(str(root))

    assert facts["instructions"] == "avx2 avx512f"
    assert (facts["nvidia"], facts["gpus"]) == ("550.54.15", "NVIDIA H100 80GB HBM3")
    (root / "proc/cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 avx512f mds\ncpu MHz : 3600.0\n")
    assert compile_cache_node.node_facts(str(root)) == facts
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n")
    assert compile_cache_node.node_class_of(
        compile_cache_node.node_facts(str(root))
    ) != compile_cache_node.node_class_of(facts)


def test_versions_are_learned_from_those_who_use_the_cache(tmp_path: Path) -> None:
    """A process that was told of the folder says by the libraries that it has loaded which framework it is."""
    library = tmp_path / "site-packages" / "torch"
    library.mkdir(parents=True)
    (library / "version.py").write_text("__version__ = '2.9.1+cu128'\n")
    proc = tmp_path / "proc"
    for pid, told in (
        ("10", "TORCHINDUCTOR_CACHE_DIR=/tmp/ftrun-cache-1/inductor\0"),
        ("11", "HOME=/root\0"),
    ):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "environ").write_text(told)
        (proc / pid / "maps").write_text(
            f"7f00-7f01 r-xp 00000000 08:01 42   {library}/lib/libtorch_cpu.so\n"
        )
        (proc / pid / "exe").symlink_to("/usr/bin/python3.12")

    assert compile_cache_node.framework_versions("/tmp/ftrun-cache-1", str(proc)) == {
        "torch": "2.9.1+cu128",
        "python": "3.12",
    }
    assert compile_cache_node.framework_versions("/tmp/ftrun-cache-2", str(proc)) == {}


class Looks:
    """A merger whose merges are counted instead of made."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[list[str]] = []
        monkeypatch.setattr(os, "posix_spawn", self._begin)
        self.merger = periodic_merge.PeriodicMerge(str(folder), "0", 1000.0)

    def _begin(self, _program: str, words: list[str], _environment: object) -> int:
        self.made.append(words)
        return 0

    def over(self, seconds: int) -> int:
        """How many looks there were, `seconds` after the step began."""
        for second in range(0, seconds, 5):
            self.merger.poll(1000.0 + second)
        return len(self.made)


def test_a_node_looks_soon_and_then_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled at the beginning is given within a minute; a day costs fifty looks."""
    looks = Looks(attempt_of(Node(tmp_path, "n1")), monkeypatch)

    assert looks.over(60) == 1
    assert looks.over(24 * 3600) < 60


def test_a_run_without_caches_costs_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a watch below a guard, which looks itself."""
    nodes = attempt_of(Node(tmp_path, "n1"))
    (nodes.parents[2] / "caches" / "where").unlink()
    without = Looks(nodes, monkeypatch).over(3600)
    (nodes.parents[2] / "caches" / "where").write_text("1 /tmp/x\n")
    monkeypatch.setenv(periodic_merge.HAS_MERGER, "1")

    assert (without, Looks(nodes, monkeypatch).over(3600)) == (0, 0)


def test_the_nodes_of_a_large_job_come_behind_the_first_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So they find what it gave, and no two of a thousand read or write at once."""
    nodes = attempt_of(Node(tmp_path, "n1"))
    monkeypatch.setenv("SLURM_NTASKS", "1000")
    due = []
    for place in (0, 1, 2, 999):
        monkeypatch.setenv("SLURM_PROCID", str(place))
        due.append(periodic_merge.PeriodicMerge(str(nodes), "0", 0.0).due_s())

    assert (
        due[0] + periodic_merge.BEHIND_S
        <= due[1]
        < due[2]
        < due[3]
        <= due[0] + periodic_merge.BEHIND_S + periodic_merge.APART_MAX_S
    )
    assert due[2] - due[1] >= 0.4


def test_between_two_starts_a_node_drops_what_is_torn_and_takes_what_is_new(tmp_path: Path) -> None:
    """The sweep that ends old ranks is where this happens, so it costs no step of its own."""
    first, second = Node(tmp_path, "n1"), Node(tmp_path, "n2")
    nodes = attempt_of(second)
    first.index = first.index._replace(
        node_class=compile_cache_node.node_class_of(compile_cache_node.node_facts())
    )
    first.compile({"jax/a-cache": ENTRIES["jax/jit_net-12ab-cache"]})
    first.give()
    second.compile({"inductor/ab/cab.main.so": b"\x7fELF cut"})

    cmd.mend(str(nodes.parent))

    assert list(second.has()) == ["jax/a-cache"]


def test_what_a_living_rank_is_writing_is_not_taken_for_torn(tmp_path: Path) -> None:
    """A node may be asked while the present start runs on it: a library that is half linked is finished a moment later."""
    node = Node(tmp_path, "n1")
    nodes = attempt_of(node)
    half = node.local / "inductor" / "ab" / "cab.main.so"
    node.compile({"inductor/ab/cab.main.so": b"\x7fELF cut"})
    told = {"PATH": os.environ["PATH"], "TORCHINDUCTOR_CACHE_DIR": str(node.local / "inductor")}
    with subprocess.Popen(["sleep", "60"], env=told) as rank:
        cmd.mend(str(nodes.parent))
        stays = half.exists()
        rank.kill()

    cmd.mend(str(nodes.parent))

    assert (stays, half.exists()) == (True, False)


def test_the_page_names_every_variable_that_is_set_and_those_that_were_left() -> None:
    """docs/caches.md is what batch.sh does."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "caches.md").read_text()

    assert [one.name for one in library_env.CACHES if f"`{one.name}`" not in page] == []
    assert "XLA_FLAGS" in page
