"""Draining on request and giving back, on a real Slurm with several real users, a real munge and a real sshd per node."""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import catalogue
from ftrun.slurm import commands
from ftrun.slurm.commands import munge
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.sandbox import sshd
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.supervisor import config, nodes, store
from ftrun.supervisor import site as site_room
from ftrun.supervisor.cli import site
from ftrun.supervisor.drill import injector
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.nodes import drain_rules, ledger, remote_checks, spool
from ftrun.supervisor.nodes.drain_rules import DrainRequest, Limits
from ftrun.supervisor.nodes.recheck_rules import CheckReport
from ftrun.supervisor.site.drain_service import Answer, DrainService
from ftrun.supervisor.store import site_nodes

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users"),
]

FTRUN = (sys.executable, "-m", "ftrun.supervisor")
ANN, BEN = 65534, 1  # nobody and daemon: every system has them
H100 = Path(__file__).resolve().parents[1] / "data" / "checks" / "nvidia-smi-h100.xml"
WELL_TOOL = f"#!/bin/sh\ncat {H100}\n"
SICK_TOOL = f"#!/bin/sh\nsed 's/<gpu_temp>.*</<gpu_temp>GPU is lost</' {H100}\n"
FINDING = {"check": "gpu-check", "severity": "bad", "message": "7 of 8 GPUs", "fault": "hardware-gpu"}
SICK, WELL = CheckReport("answered", (FINDING,)), CheckReport("answered", (FINDING | {"severity": "ok"},))


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Four nodes with an sshd each, on root's account."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    made = up(folder, nodes=4, ssh=True)
    yield made
    made.down()
    shutil.rmtree(folder, ignore_errors=True)


class Office:
    """A service with a spool and a home of its own in front of the shared cluster; `health` is what a look at a node shows."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder, self.home, self.path = box, folder, folder / "home", str(folder / "spool")
        self.cluster = CommandCluster(box.env())
        self.spool = spool.Spool(self.path)
        self.health: dict[str, CheckReport] = {}
        self.looked: list[str] = []
        self.limits = Limits(share=1.0, per_hour=100, per_user=100)
        self.name = self.cluster.facts().name

    def look(self, nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        self.looked += nodes
        return {node: self.health.get(node, WELL) for node in nodes}

    def desk(self, **options: Any) -> DrainService:
        opened = partial(munge.decode, socket=self.cluster.facts().munge_socket)
        given: dict[str, Any] = {"look": self.look, "limits": self.limits, "opened": opened} | options
        return DrainService(str(self.home), self.cluster, self.spool, **given)

    def round(self, **options: Any) -> list[Answer]:
        return self.desk(**options).round()

    def only(self, **options: Any) -> Answer:
        (answer,) = self.round(**options)
        return answer

    def wanted(self, node: str, job: str, **changes: Any) -> DrainRequest:
        made = DrainRequest(
            secrets.token_hex(16), self.name, node, job, "llm-0042", "hardware-gpu", "gpu.lost", time.time()
        )
        return replace(made, **changes)

    def sign(self, asked: DrainRequest, uid: int = ANN, ttl_s: int = 3600) -> bytes:
        made: list[bytes] = []
        path = Path(self.path).parent / "signed"
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
        file = path / secrets.token_hex(8)

        def deed() -> None:
            socket = self.cluster.facts().munge_socket
            file.write_bytes(munge.sign(drain_rules.to_payload(asked), for_uid=0, socket=socket, ttl_s=ttl_s))

        as_user(uid, deed)
        made.append(file.read_bytes())
        return made[0]

    def leave(self, asked: DrainRequest, uid: int = ANN, credential: bytes | None = None) -> DrainRequest:
        signed = self.sign(asked, uid) if credential is None else credential
        as_user(uid, lambda: spool.put_request(self.path, asked.id, signed))
        return asked

    def drained(self) -> dict[str, str]:
        return {name: row.reason for name, row in self.cluster.nodes().items() if row.drained}

    def waiting(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if name != spool.ANSWERS)


def as_user(uid: int, deed: Callable[[], object]) -> None:
    """Do something as another user, in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            deed()
            code = 0
        except BaseException as error:  # noqa: BLE001  the child must not go on as a second pytest
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def office(box: Sandbox) -> Iterator[Office]:
    # Not tmp_path: other users must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    made = Office(box, folder)
    yield made
    for node, reason in made.drained().items():
        made.cluster.resume(node, reason)
    made.spool.close()
    shutil.rmtree(folder, ignore_errors=True)


def job_of(box: Sandbox, uid: int, node: str) -> str:
    """A job of that user on that node, by now over."""
    command = [
        *_as(uid),
        "sbatch",
        "--parsable",
        "--wait",
        "-w",
        node,
        "-o",
        "/dev/null",
        "--chdir=/",
        "--wrap=true",
    ]
    return box.run(command, check=True, cwd=box.shared).stdout.strip().splitlines()[0]


@pytest.fixture(scope="module")
def jobs(box: Sandbox) -> dict[int, str]:
    """A job of Ann on n0, one of Ben on n1."""
    return {ANN: job_of(box, ANN, "n0"), BEN: job_of(box, BEN, "n1")}


def test_a_sick_node_is_drained_for_a_user_who_may_not(office: Office, jobs: dict[int, str]) -> None:
    """Signed by the user, found sick by the service: drained with ftrun's reason, told to the user, noted, and out of the spool."""
    office.health["n0"] = SICK
    asked = office.leave(office.wanted("n0", jobs[ANN]))
    answer = office.only()
    assert (answer.verdict, answer.uid, answer.why) == ("drained", ANN, "gpu-check: 7 of 8 GPUs")
    assert list(office.drained()) == ["n0"]
    assert office.drained()["n0"].startswith("ftrun: llm-0042 gpu.lost 20")
    assert office.waiting() == []
    as_user(ANN, lambda: _read_as_user(office.path, asked.id, "drained"))
    assert [(e.what, e.nodes, e.run) for e in ledger.read_entries(str(office.home))] == [
        ("incident", ("n0",), "llm-0042"),
        ("drained", ("n0",), "llm-0042"),
    ]
    office.leave(office.wanted("n0", jobs[ANN]))
    assert office.only().verdict == "already"


def _read_as_user(path: str, request_id: str, verdict: str) -> None:
    told = spool.read_answer(path, request_id)
    assert told is not None
    assert told["verdict"] == verdict


def test_a_node_that_the_checks_find_healthy_is_never_drained(office: Office, jobs: dict[int, str]) -> None:
    """Whatever the request says; so is one that cannot be looked at while Slurm hears it for good, and one whose peers show the same."""
    unreachable = CheckReport("unreachable", why="no route")
    office.health["n1"] = unreachable
    asked = office.leave(office.wanted("n1", jobs[BEN]), BEN)
    assert office.round() == []
    later = office.only(now=lambda: time.time() + 60)
    assert (later.id, later.verdict, "Slurm hears it" in later.why) == (asked.id, "refused", True)
    for health, why in (
        (WELL, "healthy"),
        (CheckReport("refused", why="host key"), "could not be looked at"),
        (CheckReport("answered", (FINDING | {"fault": "network"},)), "no node is drained"),
    ):
        office.health["n1"] = health
        office.leave(office.wanted("n1", jobs[BEN]), BEN)
        answer = office.only()
        assert answer.verdict == "refused"
        assert why in answer.why
    office.health = dict.fromkeys(office.box.node_names, SICK)
    office.leave(office.wanted("n1", jobs[BEN]), BEN)
    assert "peers" in office.only().why
    assert office.drained() == {}


@pytest.mark.drills
def test_a_node_that_neither_ssh_nor_slurm_reaches_is_drained(office: Office, jobs: dict[int, str]) -> None:
    """Two witnesses that no user can be. Slurm sees its crash after SlurmdTimeout: a request right after it waits for that."""
    office.box.crash("n0")
    try:
        office.leave(office.wanted("n0", jobs[ANN]))
        looks: list[Sequence[str]] = []
        ssh = remote_checks.ssh_checks("fast", "site", ssh_config=str(office.box.ssh_config))

        def look(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
            looks.append(nodes)
            return ssh(nodes)

        desk, answers, deadline = office.desk(look=look), list[Answer](), time.monotonic() + 120
        while not answers and time.monotonic() < deadline:
            answers = desk.round()
            time.sleep(0.5)
        (answer,) = answers
        assert len(looks) == 2  # once at first, and once when Slurm had lost it
        assert (answer.verdict, "neither SSH" in answer.why) == ("drained", True), answer
    finally:
        office.box.mend("n0")


@pytest.mark.parametrize(
    "case", ["another's job", "node outside", "no such job", "no such node", "long ago", "other cluster"]
)
def test_who_was_not_there_has_no_say(office: Office, jobs: dict[int, str], case: str) -> None:
    """By the user of the signature and what Slurm remembers, never by what is claimed; the node is not even visited."""
    table: dict[str, dict[str, Any]] = {
        "another's job": {"job": jobs[BEN], "node": "n1"},
        "node outside": {"node": "n2"},
        "no such job": {"job": "999999"},
        "no such node": {"node": "n77"},
        "long ago": {"seen_s": time.time() - 3000},
        "other cluster": {"cluster": "elsewhere"},
    }
    office.health = {"n0": SICK, "n1": SICK, "n2": SICK}
    office.leave(replace(office.wanted("n0", jobs[ANN]), **table[case]))
    assert office.only().verdict == "refused"
    assert (office.looked, office.drained()) == ([], {})


def test_a_forged_or_stolen_request_is_refused(office: Office, jobs: dict[int, str]) -> None:
    """Not munge's, signed by another, signed for another name, or signed for another purpose."""
    office.health["n0"] = SICK
    asked = office.wanted("n0", jobs[ANN])
    good = office.sign(asked)
    flipped = bytearray(good)
    flipped[40] ^= 1
    for uid, credential, why in (
        (ANN, b"MUNGE:forged:", "not signed"),
        (ANN, bytes(flipped), "not signed"),
        (BEN, office.sign(office.wanted("n0", jobs[ANN])), "another user"),
        (ANN, office.sign(office.wanted("n0", jobs[ANN])), "another name"),
    ):
        office.leave(replace(asked, id=secrets.token_hex(16)), uid, credential)
        assert why in office.only().why
    assert (office.looked, office.drained()) == ([], {})
    as_user(BEN, lambda: spool.put_request(office.path, secrets.token_hex(16), good))
    assert "another user" in office.only().why
    office.leave(asked, credential=good)
    assert office.only().verdict == "drained"


def test_a_request_counts_once_and_only_for_an_hour(office: Office, jobs: dict[int, str]) -> None:
    """The same file again, the same id anew, one that was opened elsewhere, one that is too old."""
    office.health["n0"] = SICK
    asked = office.wanted("n0", jobs[ANN])
    credential = office.sign(asked)
    office.leave(asked, credential=credential)
    assert office.only().verdict == "drained"
    office.cluster.resume("n0", office.drained()["n0"])
    for again in (credential, office.sign(asked)):
        office.leave(asked, credential=again)
        assert office.round() == []
    other = office.wanted("n0", jobs[ANN])
    opened = office.sign(other)
    assert office.desk().opened(opened)
    office.leave(other, credential=opened)
    assert "opened before" in office.only().why
    late = office.wanted("n0", jobs[ANN])
    short = office.sign(late, ttl_s=1)
    time.sleep(2.1)
    office.leave(late, credential=short)
    assert "older than" in office.only().why
    assert office.drained() == {}


def test_caps_hold_and_many_requests_cost_little(office: Office, jobs: dict[int, str]) -> None:
    """A share of the partition, drains an hour, requests a user and hour; what is beyond is removed without being opened."""
    office.health = dict.fromkeys(["n0", "n1"], SICK)
    office.limits = Limits(share=0.05, per_hour=1, per_user=3)
    office.leave(office.wanted("n0", jobs[ANN]))
    assert office.only().verdict == "drained"
    office.leave(office.wanted("n1", jobs[BEN]), BEN)
    assert "within the last hour" in office.only().why
    office.leave(office.wanted("n1", jobs[BEN]), BEN)
    office.limits = replace(office.limits, per_hour=9)
    assert "bear drains of ftrun" in office.only().why

    def flood() -> None:
        for number in range(3000):
            Path(office.path, f"{number:032x}.req").write_bytes(b"MUNGE:%d:" % (number // 2))

    as_user(ANN, flood)
    began = time.monotonic()
    assert len(office.round()) == 2  # of three in this hour
    assert time.monotonic() - began < 120
    assert office.waiting() == []
    assert list(office.drained()) == ["n0"]


def test_a_hostile_spool_harms_nobody(office: Office, jobs: dict[int, str]) -> None:
    """Links, FIFOs, folders, huge files, names with line breaks: removed or passed over in bounded time, and real requests are served."""
    secret = office.folder / "secret"
    secret.write_text("keep me")
    name = [f"{number:032x}.req" for number in range(8)]

    def rubbish() -> None:
        os.chdir(office.path)
        os.symlink(secret, name[0])
        os.symlink("/dev/zero", name[1])
        os.mkfifo(name[2])
        os.mkdir(name[3])
        os.mkdir("full")
        Path("full/file").touch()
        Path(name[4]).touch()
        with open(name[5], "wb") as stream:
            stream.truncate(1 << 40)
        Path("x\n2026-11-21 drained n1\n.req").write_text("y")
        Path("answers-").write_text("y")
        Path(".hidden").write_text("y")
        os.symlink("answers", "also-answers")

    as_user(BEN, rubbish)
    office.health["n0"] = SICK
    asked = office.leave(office.wanted("n0", jobs[ANN]))
    began = time.monotonic()
    assert [(a.id, a.verdict) for a in office.round()] == [(asked.id, "drained")]
    assert time.monotonic() - began < 120
    assert office.waiting() == ["full"]
    assert secret.read_text() == "keep me"
    assert stat.S_IMODE(os.stat(office.path).st_mode) == 0o1733
    journal = "".join(path.read_text() for path in (office.home / "site").glob("*.jsonl"))
    assert all(json.loads(line) for line in journal.splitlines())


def test_a_spool_that_is_not_the_services_own_is_not_used(office: Office) -> None:
    """A folder of somebody else, one that others may list, or a link is refused with the mode that it must have."""
    theirs = office.folder / "theirs"
    theirs.mkdir()
    theirs.chmod(0o1777)
    with pytest.raises(spool.SpoolError, match="chmod 1733"):
        spool.Spool(str(theirs))
    (office.folder / "link").symlink_to(office.path)
    with pytest.raises((spool.SpoolError, OSError)):
        spool.Spool(str(office.folder / "link"))


def test_observing_finds_out_and_drains_nothing(office: Office, jobs: dict[int, str]) -> None:
    """The answer says what would be done; so does a site that takes no action."""
    office.health["n0"] = SICK
    ways: list[tuple[dict[str, Any], str]] = [({"observe": True}, "observed"), ({"action": "none"}, "noted")]
    for options, verdict in ways:
        office.leave(office.wanted("n0", jobs[ANN]))
        assert office.only(**options).verdict == verdict
    assert office.drained() == {}


class Cut(BaseException):
    """A death at a point of a round."""


def test_a_round_may_be_cut_at_every_record_and_effect(office: Office, jobs: dict[int, str]) -> None:
    """The next service finishes: drained once, answered once, nothing left in the spool."""
    office.health["n0"] = SICK
    for cut_at in range(1, 20):
        left = [cut_at]

        def crash(_point: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Cut

        asked = office.leave(office.wanted("n0", jobs[ANN]))
        try:
            office.round(crash=crash)
        except Cut:
            office.round()
        told = spool.read_answer(office.path, asked.id)
        assert told is not None, cut_at
        assert (told["verdict"], office.waiting(), list(office.drained())) == ("drained", [], ["n0"]), cut_at
        office.cluster.resume("n0", office.drained()["n0"])
        if left[0] > 0:
            break
    assert cut_at > 4


def _ftrun(
    box: Sandbox, folder: Path, *words: str, spacing: str = "0", **more: str
) -> subprocess.CompletedProcess[str]:
    site, checks = folder / "site.toml", folder / "checks.json"
    others = [
        check.name for check in catalogue.checks("recheck") if check.name not in ("gpu-check", "memory")
    ]
    checks.write_text(json.dumps({name: {"enabled": False} for name in others}))  # what a site may say
    site.write_text(
        f'site-spool = "{folder}/spool"\nssh-config = "{box.ssh_config}"\nchecks = "{checks}"\nrecheck-spacing = "{spacing}"\nrecheck-passes = 1\ndrain-cap = "50%"\nsite-drains-per-hour = 99\n'
    )
    env = {**box.env(), "FTRUN_HOME": str(folder / "home"), "FTRUN_SITE_CONFIG": str(site), **more}
    return subprocess.run([*FTRUN, *words], env=env, capture_output=True, text=True, timeout=240, check=False)


def test_the_commands_drain_a_sick_node_and_give_it_back_when_it_is_mended(
    office: Office, jobs: dict[int, str]
) -> None:
    """From request to return by the commands alone, over real SSH: the tool of one node says that its driver is gone, and later not."""
    box, tool = office.box, sshd.tools(office.box.plan, "n0") / "nvidia-smi"
    tool.write_text(SICK_TOOL)
    tool.chmod(0o755)
    office.leave(office.wanted("n0", jobs[ANN]))
    done = _ftrun(box, office.folder, "site", "--once")
    assert (done.returncode, " drained n0 for nobody: gpu-check" in done.stdout) == (0, True), done
    broken = _ftrun(box, office.folder, "recheck", "--json")
    (line,) = json.loads(broken.stdout)["nodes"]
    assert (broken.returncode, line["state"], "gpu-check" in line["why"]) == (1, "failing", True)
    assert "[still: gpu-check]" in office.drained()["n0"]
    tool.write_text(WELL_TOOL)
    cut = _ftrun(box, office.folder, "recheck", FTRUN_CRASH_AT="resume:after")
    assert (cut.returncode, office.drained()) == (-9, {})
    back = _ftrun(box, office.folder, "recheck")
    assert (back.returncode, "given back" in back.stdout) == (0, True), back
    assert _ftrun(box, office.folder, "recheck").stdout.startswith("nothing to do: no node ")
    assert _ftrun(box, office.folder, "recheck", "--quiet").stdout == ""
    named = _ftrun(box, office.folder, "recheck", "n[0-1]")
    assert (named.returncode, named.stderr) == (0, "ftrun: n[0-1]: not drained by ftrun; left alone\n")
    assert _ftrun(box, office.folder, "recheck", "n[0-").returncode == 2
    tool.unlink()


def _told_by_two(office: Office, jobs: dict[int, str], node: str) -> None:
    """Reports of Ann and Ben, each by a credential of theirs about a job of theirs that was on that node."""
    facts = office.cluster.facts()
    for uid in (ANN, BEN):
        asked = office.wanted(node, jobs[uid], want="report", confidence=0.9, signature="gpu.lost")
        as_user(uid, partial(spool.leave_request, office.path, asked, facts.auth, facts.munge_socket))


def test_a_node_that_two_users_blame_is_drained_if_it_is_sick_and_placed_last_if_not(
    office: Office, box: Sandbox
) -> None:
    """By the commands alone, on real Slurm, munge and SSH; what is published can be read by every user and names none."""
    for node, sick in (("n2", True), ("n3", False)):
        if sick:
            tool = sshd.tools(box.plan, node) / "nvidia-smi"
            tool.write_text(SICK_TOOL)
            tool.chmod(0o755)
        _told_by_two(office, {uid: job_of(box, uid, node) for uid in (ANN, BEN)}, node)
    done = _ftrun(box, office.folder, "site", "--once", "--json")
    answers = [json.loads(line) for line in done.stdout.splitlines() if '"verdict"' in line]
    assert [one["verdict"] for one in answers][:4] == ["reported"] * 4, done
    acts = {one["node"]: (one["verdict"], one["why"]) for one in answers[4:]}
    assert {node: verdict for node, (verdict, _) in acts.items()} == {"n2": "drained", "n3": "quarantined"}, (
        acts
    )
    assert list(office.drained()) == ["n2"]
    assert office.drained()["n2"].startswith("ftrun: site gpu.lost ")
    as_user(ANN, lambda: _placed_last(office.path, ["n3"]))
    whole = "".join(path.read_text() for path in Path(site_nodes.public_dir(office.path)).iterdir())
    assert not any(word in whole for word in ("nobody", "daemon", "llm-0042", str(office.folder)))
    assert _ftrun(box, office.folder, "site", "check").returncode == 0
    assert "placed last until" in _ftrun(box, office.folder, "site", "nodes").stdout
    assert _ftrun(box, office.folder, "site", "node", "n3").stdout.count(" of nobody") == 1
    assert _ftrun(box, office.folder, "site", "release", "n3").stdout == "released: n3\n"
    _ftrun(box, office.folder, "site", "--once")
    as_user(ANN, lambda: _placed_last(office.path, []))
    tool.unlink()


@pytest.mark.drills
def test_a_drain_that_two_users_brought_about_may_be_cut_anywhere(office: Office, box: Sandbox) -> None:
    """SIGKILL at each step: the next round finishes, the node is drained once, and each report counts once."""
    tool = sshd.tools(box.plan, "n2") / "nvidia-smi"
    tool.write_text(SICK_TOOL)
    tool.chmod(0o755)
    points = ("report:kept", "drain:before", "record:draining", "drain:after", "event:checked", "event:out")
    for number, point in enumerate(points, start=1):
        _told_by_two(office, {uid: job_of(box, uid, "n2") for uid in (ANN, BEN)}, "n2")
        assert _ftrun(box, office.folder, "site", "--once", FTRUN_CRASH_AT=point).returncode == -9, point
        done = _ftrun(box, office.folder, "site", "--once")
        assert (done.returncode, list(office.drained())) == (0, ["n2"]), (point, done)
        assert office.waiting() == ["public"], point
        told = json.loads(_ftrun(box, office.folder, "site", "node", "n2", "--json").stdout)
        assert (len(told["reports"]), told["out"]) == (2 * number, True), point
        office.cluster.resume("n2", office.drained()["n2"])
        _ftrun(box, office.folder, "site", "--once")
        _ftrun(box, office.folder, "site", "release", "n2")
        time.sleep(1.0)
    tool.unlink()


def test_an_administrators_day(office: Office, box: Sandbox, jobs: dict[int, str]) -> None:
    """By the commands on a real Slurm: requests of two users are listed, one user is denied, a pause keeps a request waiting
    for the end of the pause, and `why` tells the story; who is not the service's user, or names nobody, gets one line.
    """

    def told(*words: str, status: int = 0, **more: str) -> str:
        done = _ftrun(box, office.folder, *words, **more)
        assert (done.returncode, done.stderr.count("\n")) == (status, int(status != 0)), done
        return done.stdout or done.stderr

    tool = sshd.tools(box.plan, "n0") / "nvidia-smi"
    tool.write_text(SICK_TOOL)
    tool.chmod(0o755)
    assert "no `ftrun site` has run" in told("site", "requests", status=1)
    told("site", "--once", "--observe")
    office.leave(office.wanted("n0", jobs[ANN]))
    assert " observed n0 for nobody" in told("site", "--once", "--observe")
    seen = json.loads(told("site", "observed", "--json"))
    assert [(one["node"], one["outcome"], one["times"]) for one in seen["drains"]] == [("n0", "right", 1)]
    assert "1 drain would have been made: 1 right, 0 wrong" in told("site", "observed")
    assert "paused since" in told("site", "pause", "--why", "new firmware")
    assert "denied: daemon" in told("site", "deny", "daemon", "--why", "ticket 7")
    office.leave(office.wanted("n0", jobs[ANN]))
    office.leave(office.wanted("n1", jobs[BEN]), BEN)
    assert told("site", "--once") == ""
    assert office.drained() == {}
    assert "waiting: 1 requests of nobody" in told("site", "requests")
    assert "the service is paused since" in told("site", "why", "n0")
    assert "not paused" in told("site", "resume")
    answers = told("site", "--once")
    assert (" drained n0 for nobody" in answers, "nothing of yours: ticket 7" in answers) == (True, True)
    rows = json.loads(told("site", "requests", "--json"))
    assert sorted((one["uid"], one["verdict"]) for one in rows["answered"]) == [
        (BEN, "refused"),
        (ANN, "drained"),
        (ANN, "observed"),
    ]
    story = told("site", "why", "n0")
    for words in ("out of service: ftrun: llm-0042", "nobody asked for its drain: drained", "recheck"):
        assert words in story, story
    assert told("site", "deny", "--off", "1") == "not paused\n"
    archive = office.folder / "ticket.tar.gz"
    ticket = json.loads(told("site", "ticket", "n0", "--json", f"--out={archive}"))
    assert {one["check"] for one in ticket["findings"] if one["severity"] == "bad"} == {"gpu-check"}
    with tarfile.open(archive) as packed:
        texts = [(packed.extractfile(one) or io.BytesIO()).read().decode() for one in packed.getmembers()]
    assert not any(word in text for text in texts for word in ("nobody", "llm-0042", str(office.folder)))
    assert "File exists" in told("site", "ticket", "n0", "--no-look", f"--out={archive}", status=2)
    assert "knows a node 'n77'" in told("site", "ticket", "n77", status=2)
    for typed, line in (
        ("why n77", "knows no node 'n77'"),
        ("node n77", "knows a node 'n77'"),
        ("release n77", "knows n77"),
        ("deny nobody-of-that-name", "no user is called"),
        ("requests --user=x-y", "no user is called"),
    ):
        assert line in told("site", *typed.split(), status=2)
    other = subprocess.run(
        [*_as(BEN), "env", f"FTRUN_HOME={office.folder}/home", f"FTRUN_SITE_CONFIG={office.folder}/site.toml",
         *_user_command(), "site", "pause"], capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert (other.returncode, other.stderr.count("\n"), "run this as root" in other.stderr) == (77, 1, True)
    tool.unlink()


def test_a_sweep_holds_idle_nodes_finds_the_odd_one_and_the_service_drains_it(
    office: Office, box: Sandbox
) -> None:
    """By the commands on a real Slurm and SSH: a job of the lowest priority holds the nodes, pairs are tested, the sick node is
    drained by the next round of the service; a check that fails everywhere drains nobody; it does not begin while a job waits.
    """

    def sweep(*words: str, status: int, **more: str) -> dict[str, Any]:
        done = _ftrun(box, office.folder, "site", "sweep", "--json", *words, **more)
        assert done.returncode == status, done
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    _ftrun(box, office.folder, "site", "--once")
    tools = {node: sshd.tools(box.plan, node) / "nvidia-smi" for node in box.node_names}
    for node, tool in tools.items():
        tool.write_text(SICK_TOOL if node == "n1" else WELL_TOOL)
        tool.chmod(0o755)
    deadline = time.monotonic() + 60  # a job of the test before may still complete
    while any(row.state != "idle" for row in office.cluster.nodes(box.node_names).values()):
        assert time.monotonic() < deadline, office.cluster.nodes(box.node_names)
        time.sleep(0.2)
    found = sweep(status=1)
    assert (list(found["bad"]), found["gave_way"]) == (["n1"], False)
    checks = {node: {one["check"] for one in told["findings"]} for node, told in found["nodes"].items()}
    assert sorted(checks) == ["n0", "n1", "n2", "n3"]
    assert all("pairs" in told for told in checks.values()), checks
    jobs = box.run(["squeue", "-h", "-a", "-t", "RUNNING,PENDING"], check=True).stdout
    assert "ftrun-sweep" not in jobs
    assert sweep(status=0)["nodes"] == {}  # none is due
    told = _ftrun(box, office.folder, "site", "--once").stdout
    assert " drained n1 for the site's ledger: gpu-check" in told, told
    assert office.drained()["n1"].startswith("ftrun: sweep gpu-check ")
    office.cluster.resume("n1", office.drained()["n1"])
    for tool in tools.values():
        tool.write_text(SICK_TOOL)
    found = sweep("--every-days=0", "--no-job", status=0)
    assert (found["bad"], found["site"]) == ({}, ["gpu-check"])
    _ftrun(box, office.folder, "site", "--once")
    assert office.drained() == {}
    three, four = (
        box.run(
            [
                *_as(ANN),
                "sbatch",
                "--parsable",
                size,
                "--exclusive",
                "-o/dev/null",
                "--chdir=/",
                "--wrap=sleep 300",
            ],
            check=True,
        )
        for size in ("-N3", "-N4")
    )
    deadline = time.monotonic() + 60
    while not office.cluster.contended(["main"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    done = _ftrun(box, office.folder, "site", "sweep", "--every-days=0")
    assert (done.returncode, "jobs wait for nodes of main" in done.stderr) == (75, True), done
    box.run(["scancel", three.stdout.strip(), four.stdout.strip()], check=True)
    assert "no tier of sweeps" in _ftrun(box, office.folder, "site", "sweep", "--tier", "fast").stderr
    assert "Slurm knows no node n77" in _ftrun(box, office.folder, "site", "sweep", "n77").stderr
    _ftrun(box, office.folder, "site", "pause")
    paused = _ftrun(box, office.folder, "site", "sweep")
    assert (paused.returncode, "resume" in paused.stderr) == (75, True)
    for tool in tools.values():
        tool.unlink()


def _placed_last(path: str, nodes: list[str]) -> None:
    assert list(site_nodes.quarantined_nodes(path, time.time())) == nodes


def test_who_may_not_drain_is_told_so(office: Office) -> None:
    """Exit 77 for both commands, before anything is looked at; exit 2 where the site names no spool."""
    env = {
        **office.box.env(),
        "FTRUN_HOME": str(office.home),
        "FTRUN_SITE_CONFIG": str(office.folder / "site.toml"),
    }
    told: list[int] = []
    for words in (["site", "--once"], ["recheck"]):
        told += [subprocess.run([*FTRUN, *words], env=env, capture_output=True, check=False).returncode]
    assert told == [2, 0]
    (office.folder / "site.toml").write_text(f'site-spool = "{office.path}"\n')
    fd, report = tempfile.mkstemp(dir=office.box.shared)
    os.close(fd)
    Path(report).chmod(0o666)

    # The other user may not enter the folder of this Python, so nothing may be left to import.
    for room in (commands, nodes, store, config, site_room):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)

    def deed() -> None:
        os.environ.clear()
        os.environ.update(env, FTRUN_HOME="/nonexistent")
        codes = []
        for called in (site.serve, site.recheck):
            try:
                called()
            except UserError as error:
                codes.append(error.exit_code)
        Path(report).write_text(str(codes))

    as_user(ANN, deed)
    assert Path(report).read_text() == "[77, 77]"


FLOOD = """#!/bin/sh
#SBATCH -N2 -o {folder}/log
node=$(scontrol show hostnames | tail -1)
i=0
while [ $i -lt 3000 ]; do
    echo "$(date '+%b %d %H:%M:%S') $node kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."
    i=$((i+1))
done
exit 1
"""


@pytest.mark.drills
def test_a_liar_is_kept_longer_and_left_to_a_person_in_the_end(office: Office) -> None:
    """On real Slurm: a job has its node to itself; a node that is blamed again waits longer, and the second lie is the last."""
    box, node = office.box, "n3"

    def recheck() -> str:
        told = _ftrun(box, office.folder, "recheck", "--json", spacing="2s")
        (line,) = json.loads(told.stdout)["nodes"]
        return f"{line['state']} {line['why']}"

    job = box.run(
        ["sbatch", "--parsable", "-w", node, "-o", "/dev/null", "--wrap=sleep 60"], check=True
    ).stdout.strip()
    while office.cluster.nodes([node])[node].state == "idle":
        time.sleep(0.2)
    office.cluster.drain(node, "ftrun: llm-0001 gpu.lost 2026-11-20T10:00:00Z")
    assert recheck() == "waiting jobs still run there"
    box.run(["scancel", job], check=True)
    states = []
    for number in range(2, 4):
        deadline = time.monotonic() + 240
        while node in office.drained() and time.monotonic() < deadline:
            states.append(recheck())
        office.cluster.drain(node, f"ftrun: llm-000{number} gpu.lost 2026-11-20T1{number}:00:00Z")
    assert "passing clean, pass 1 of 2" in states
    assert any(state.startswith("waiting looked at again in") for state in states)
    assert recheck().startswith("left given back 2 times, and blamed again each time; evidence in ")
    assert "[left to a person: it lied]" in office.drained()[node]


@pytest.mark.drills
def test_a_flood_of_xid_lines_that_a_user_prints_drains_nobody(office: Office) -> None:
    """A user without any right, from sbatch to answer: the supervisor asks, the service looks at the node, and status tells the refusal."""
    box, folder = office.box, office.folder
    mine, run = _user_of(office, ANN)
    script = folder / "flood.sh"
    script.write_text(FLOOD.format(folder=mine))
    assert _ftrun(box, folder, "site", "--once").returncode == 0

    def as_ann(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, done
        return done.stdout + done.stderr

    limits = ("--ft-retries=1", "--ft-exclude-cap=50%", "--ft-log-quiet=1s", "--ft-backoff=1s")
    as_ann("sbatch", *limits, str(script))
    told = ""
    deadline = time.monotonic() + 240
    while "refused" not in told and time.monotonic() < deadline:
        time.sleep(1.0)
        _ftrun(box, folder, "site", "--once")
        told = as_ann("status", "--all")
    assert "the site's service was asked to drain n" in told
    assert "refused: the checks find the node healthy" in told
    assert office.drained() == {}
    for pid in injector.supervisors(mine / "home"):
        os.kill(pid, signal.SIGTERM)


XID = """#!/bin/sh
#SBATCH -N1 -w n2 -o {folder}/log
echo step 1; sleep 1
echo "$(date '+%b %d %H:%M:%S') n2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."
exit 1
"""


@pytest.mark.drills
@pytest.mark.parametrize("sick", [True, False])
def test_ordinary_runs_of_two_users_make_a_node_known(office: Office, *, sick: bool) -> None:
    """No setting of theirs: their supervisors tell the site, which checks the node, drains it or places it last, and
    the next job of a third is kept off it.
    """
    box, folder = office.box, office.folder
    if sick:
        tool = sshd.tools(box.plan, "n2") / "nvidia-smi"
        tool.write_text(SICK_TOOL)
        tool.chmod(0o755)
    _ftrun(box, folder, "site", "--once")
    text = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(text + 'drain = "never"\n')  # no requests: the reports alone
    people = {uid: _user_of(office, uid) for uid in (ANN, BEN)}
    for uid, (mine, run) in people.items():
        script = mine / "train.sh"
        script.write_text(XID.format(folder=mine))
        script.chmod(0o755)
        assert run("sbatch", "--ft-retries=0", "--ft-log-quiet=1s", str(script)).returncode == 0, uid
    told, deadline = "", time.monotonic() + 240
    while "the site's ledger" not in told and time.monotonic() < deadline:
        time.sleep(1.0)
        told += _ftrun(box, folder, "site", "--once").stdout
        (folder / "site.toml").write_text(text + 'drain = "never"\n')
    assert told.count(" reported n2 ") == 2, told
    assert f"{'drained' if sick else 'quarantined'} n2 for the site's ledger" in told, told
    assert ("n2" in office.drained()) is sick
    mine, run = people[BEN]
    job = run("sbatch", "--parsable", "--hold", "--wrap=true").stdout.strip()
    shown = box.run(["scontrol", "show", "job", job], check=True).stdout
    assert ("ExcNodeList=n2" in shown) is not sick, shown
    box.run(["scancel", job], check=True)
    for uid, (home, _) in people.items():
        del uid
        for pid in injector.supervisors(home / "home"):
            os.kill(pid, signal.SIGTERM)
    (sshd.tools(box.plan, "n2") / "nvidia-smi").unlink(missing_ok=True)


def _user_of(office: Office, uid: int) -> tuple[Path, Callable[..., subprocess.CompletedProcess[str]]]:
    """A folder of an ordinary user's, and their `ftrun`."""
    mine = office.folder / f"user-{uid}"
    mine.mkdir()
    os.chown(mine, uid, uid)
    env = {
        **{key: value for key, value in office.box.env().items() if key in ("SLURM_CONF", "PATH", "LANG")},
        "HOME": str(mine),
        "FTRUN_HOME": str(mine / "home"),
        "FTRUN_SITE_CONFIG": str(office.folder / "site.toml"),
    }
    command = [*_as(uid), "env", *_user_command()]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], env=env, cwd=mine, capture_output=True, text=True, timeout=240, check=False
        )

    return mine, run


def _user_command() -> list[str]:
    """ftrun for an ordinary user, as arguments of `env`."""
    libraries = [str(Path(__file__).resolve().parents[2] / ".ci" / "typing"), sysconfig.get_path("purelib")]
    own = [f"PYTHONPATH={':'.join(libraries)}", "PYTHONDONTWRITEBYTECODE=1"]
    return [*own, _python_for_all(), "-m", "ftrun.supervisor"]


def _python_for_all() -> str:
    """An interpreter that every user may start, and start again by its path."""
    for candidate in (Path(sys.executable).resolve(), Path("/usr/bin/python3")):
        # By way of env: setpriv itself still sees what only root may.
        command = [*_as(ANN), "env", str(candidate), "-c", "pass"]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return str(candidate)
    pytest.fail("no Python that an ordinary user may start: install python3")


def _as(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
