"""Laws of SSH to nodes, on real sshds: bounded, no password, strict, and what cannot be reached is no sick node."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.hooks.ssh.pool import ANSWERED, REFUSED, TIMEOUT, UNREACHABLE, Answer, NodePool, check_nodes
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Three nodes with an sshd each."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    sandbox = up(folder, nodes=3, ssh=True)
    yield sandbox
    sandbox.down()
    shutil.rmtree(folder, ignore_errors=True)


def _config(box: Sandbox, folder: Path, *first: str, drop: str = " ") -> NodePool:
    """The sandbox's client configuration behind lines of our own, without lines that begin with `drop`."""
    assert box.ssh_config
    rest = [line for line in box.ssh_config.read_text().splitlines() if not line.strip().startswith(drop)]
    path = folder / "config"
    path.write_text("\n".join([*first, *rest]) + "\n")
    return NodePool(str(path), connect_s=60.0, run_s=120.0)


def _probes(box: Sandbox) -> NodePool:
    return NodePool(str(box.ssh_config), connect_s=60.0, run_s=120.0)


def _one(probes: NodePool, node: str = "n0", command: str = "echo in") -> Answer:
    return probes.run([node], command)[node]


def test_what_a_command_says_comes_back_whole_and_bounded(box: Sandbox) -> None:
    """Its code, both outputs, what it reads; no more than a mebibyte each; a signal is -1; what it leaves behind is not waited for."""
    answers = _probes(box).run(["n2", "n0", "n1", "n0"], 'cat; echo "$0" >&2; exit 7', b"\x00told\n" * 99_999)
    said = {node: (a.state, a.exit_code, len(a.stdout), a.why) for node, a in answers.items()}
    loud = _one(_probes(box), command="head -c 3000000 /dev/zero; kill -9 $$")
    gone = _one(_probes(box), command="sleep 600 & exit 3")

    assert ["n2", "n0", "n1"] == list(answers)
    assert {(ANSWERED, 7, 99_999 * 6, "")} == set(said.values())
    assert all(answer.stderr.strip().endswith("sh") for answer in answers.values())
    assert (ANSWERED, -1, 1 << 20) == (loud.state, loud.exit_code, len(loud.stdout))
    assert (ANSWERED, 3) == (gone.state, gone.exit_code)
    assert gone.took_s < 300


def test_no_more_nodes_than_allowed_are_visited_at_a_time(box: Sandbox) -> None:
    """One by one, where the bound is one; answers are told as they come."""
    told: list[str] = []
    folder = box.shared / "one-at-a-time"
    probes = NodePool(str(box.ssh_config), at_once=1)
    answers = probes.run(
        box.node_names, f"mkdir {folder} && sleep 0.2 && rmdir {folder}", told=lambda a: told.append(a.node)
    )

    assert [0, 0, 0] == [answer.exit_code for answer in answers.values()]
    assert list(box.node_names) == told


def test_what_cannot_be_reached_is_unreachable_and_costs_nobody_else(box: Sandbox) -> None:
    """No such name, nobody listening, a server that accepts and is silent: told within the limit, beside an answer."""
    box.freeze("n1")
    box.crash("n2")
    began = time.monotonic()
    try:
        probes = NodePool(str(box.ssh_config), connect_s=5.0)
        answers = probes.run(["n0", "n1", "n2", "no-such-node"], "echo in")
        while answers["n0"].state != ANSWERED and time.monotonic() - began < 240:  # the machine is that slow
            answers = probes.run(["n0", "n1", "n2", "no-such-node"], "echo in")
    finally:
        box.mend("n1")
        box.mend("n2")

    states = {node: answer.state for node, answer in answers.items()}
    assert {"n0": ANSWERED, "n1": UNREACHABLE, "n2": UNREACHABLE, "no-such-node": UNREACHABLE} == states
    assert all(answer.why for answer in answers.values() if answer.state == UNREACHABLE)
    assert time.monotonic() - began < 300


def test_a_command_that_hangs_ends_at_its_limit(box: Sandbox) -> None:
    """A time-out with what was said until then; it is no verdict on the way to the node."""
    answer = _one(NodePool(str(box.ssh_config), run_s=6.0), command="echo begun; exec sleep 600")

    said = (answer.state, answer.exit_code, answer.stdout, answer.why)
    assert (TIMEOUT, None, "begun\n", "no end within 6 s") == said
    assert answer.took_s < 300


def test_a_host_key_that_is_not_the_known_one_is_refused(box: Sandbox, tmp_path: Path) -> None:
    """Changed, unknown, revoked: refused, and the node is not called bad; hashed names and `accept-new` are understood."""
    assert box.ssh_config
    known = (box.ssh_config.parent / "known_hosts").read_text().splitlines()
    own = next(line for line in known if f":{box.plan.sshd_port('n0')} " in line)
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    name, kind, key = own.split()
    hashed = tmp_path / "hashed"
    hashed.write_text(own + "\n")
    subprocess.run(["ssh-keygen", "-qHf", hashed], check=True, capture_output=True)

    def state(*lines: str, strict: str = "yes") -> tuple[str, str]:
        (tmp_path / "known").write_text("\n".join(lines) + "\n")
        first = ("Host *", f"UserKnownHostsFile {tmp_path}/known", f"StrictHostKeyChecking {strict}")
        answer = _one(_config(box, tmp_path, *first))
        return answer.state, answer.why

    assert (ANSWERED, "") == state(own)
    assert (ANSWERED, "") == state(hashed.read_text())
    assert (ANSWERED, "") == state(f"{name.partition(':')[0].strip('[]')} {kind} {key}")
    assert (ANSWERED, "") == state("", strict="accept-new")
    assert (REFUSED, True) == ((said := state(f"{name} {other}"))[0], "not the one" in said[1])
    assert (REFUSED, True) == ((said := state(f"{name} {other}", strict="no"))[0], "not the one" in said[1])
    assert (REFUSED, True) == ((said := state(""))[0], "not known" in said[1])
    assert (REFUSED, True) == ((said := state(own, f"@revoked * {kind} {key}"))[0], "revoked" in said[1])


@contextlib.contextmanager
def _agent(folder: Path, key: Path) -> Iterator[str]:
    """An agent that holds one key; yields its socket."""
    socket = str(folder / "agent")
    child = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        while not os.path.exists(socket):
            time.sleep(0.01)
        env = {**os.environ, "SSH_AUTH_SOCK": socket}
        subprocess.run(["ssh-add", "-q", key], env=env, check=True, capture_output=True)
        yield socket
    finally:
        child.terminate()
        child.wait()


def test_keys_come_from_files_and_agents_and_nothing_is_asked(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that lets nobody in and one with a pass phrase are refused in words; an agent opens, also for a named key alone."""
    assert box.ssh_config
    good = box.ssh_config.parent / "id_ed25519"
    locked = tmp_path / "locked"
    shutil.copy(good, locked)
    subprocess.run(
        ["ssh-keygen", "-qp", "-P", "", "-N", "secret", "-f", locked], check=True, capture_output=True
    )
    shutil.copy(f"{good}.pub", f"{locked}.pub")
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def answer(*lines: str) -> Answer:
        return _one(_config(box, tmp_path, "Host *", *lines, drop="Identit"))

    assert (REFUSED, "no key to log in with, from files or an agent") == ((a := answer()).state, a.why)
    assert "none of 1 keys" in answer(f"IdentityFile {tmp_path}/other").why
    assert REFUSED == answer(f"IdentityFile {locked}").state
    with _agent(tmp_path, good) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        assert ANSWERED == answer().state
        assert ANSWERED == answer(f"IdentityFile {locked}", "IdentitiesOnly yes").state
        assert REFUSED == answer(f"IdentityFile {tmp_path}/other", "IdentitiesOnly yes").state
        assert REFUSED == answer("IdentityAgent none").state


def test_the_users_own_configuration_is_read_with_what_it_includes(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """~/.ssh/config where none is given: an alias of a node in an included file, and blocks go on behind it."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "one").write_text("Host other\n  HostName 127.255.255.254\n")
    port, address = box.plan.sshd_port("n1"), box.plan.address("n1")
    assert box.ssh_config
    (tmp_path / ".ssh" / "config").write_text(
        f"Host alias\n  HostName {address}\n  Include o*\n  Port {port}\n" + box.ssh_config.read_text()
    )
    monkeypatch.setenv("HOME", str(tmp_path))

    assert ANSWERED == _one(NodePool(connect_s=60.0), "alias").state


@pytest.mark.parametrize(
    "word", ['exec "test %h != n1"', "tagged ftrun", "localnetwork 127.0.0.0/8", "final all"]
)
def test_what_only_ssh_understands_is_asked_of_ssh(box: Sandbox, tmp_path: Path, word: str) -> None:
    """Match with words that our reader does not know: the answer is that of `ssh`, or its reason."""
    told = _one(_config(box, tmp_path, f"Match {word}", "Port 1"))
    plain = subprocess.run(
        ["ssh", "-F", tmp_path / "config", "n0", "echo in"], capture_output=True, text=True, timeout=240
    )

    assert (plain.returncode == 0) == (told.state == ANSWERED), (told, plain.stderr)


def test_nodes_behind_others_are_reached_through_them(box: Sandbox, tmp_path: Path) -> None:
    """ProxyJump over one host and over two, ProxyCommand; a host in between that is not there makes nobody bad."""
    ssh = f"ssh -F {box.ssh_config} -W %h:%p n1"
    one = _config(box, tmp_path, "Host n2", "ProxyJump n0").run(["n2", "n1"], "echo in")
    two = _one(_config(box, tmp_path, "Host n2", "ProxyJump n0,n1"), "n2")
    piped = _one(_config(box, tmp_path, "Host n2", f"ProxyCommand {ssh}"), "n2")
    lost = _one(_config(box, tmp_path, "Host n2", "ProxyJump no-such-node"), "n2")
    wrong = _one(_config(box, tmp_path, "Host n2", "ProxyJump no-such-user@n0"), "n2")
    round_ = _one(_config(box, tmp_path, "Host n2", "ProxyJump n1", "Host n1", "ProxyJump n2"), "n2")

    assert [ANSWERED] * 4 == [one["n2"].state, one["n1"].state, two.state, piped.state]
    assert (UNREACHABLE, True) == (lost.state, lost.why.startswith("by way of no-such-node: "))
    assert (REFUSED, True) == (wrong.state, "no-such-user" in wrong.why)
    assert (REFUSED, True) == (round_.state, "circles" in round_.why)


def test_a_node_s_own_thresholds_count_where_the_caller_names_none(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that its site switched off there is skipped; a file that cannot be read leaves nothing checked, and says so."""
    own = tmp_path / "checks.json"
    monkeypatch.setattr("ftrun.hooks.bundle.zipapp.SITES_OWN", str(own))
    own.write_text('{"memory": {"enabled": false}, "disk-size root": {"size_gb": 1}, "schema": 1}')
    names = ["memory", "disk-size root"]
    (report,) = check_nodes(
        ["n0"], "fast", {"disk-size root": {"size_gb": 10**9}}, _probes(box), names=names
    ).values()
    own.write_text("{")
    (unread,) = check_nodes(["n0"], "fast", {}, _probes(box), names=names).values()

    assert report.report
    assert ["skipped", "bad"] == [found["severity"] for found in report.report["findings"]]
    assert (None, True) == (unread.report, str(own) in unread.why)


def test_the_checks_run_on_a_node_that_has_nothing_of_ours(box: Sandbox) -> None:
    """Sent over the connection, with the site's thresholds; a report under the name we know the node by; nothing left there."""
    box.crash("n2")
    before = _hooks_lying_about()
    try:
        reports = check_nodes(
            box.node_names,
            "fast",
            {"disk-size root": {"size_gb": 10**9}},
            _probes(box),
            kind="preflight",
            names=["memory", "disk-size root"],
        )
    finally:
        box.mend("n2")

    assert (UNREACHABLE, None) == (reports["n2"].state, reports["n2"].report)
    for node in ("n0", "n1"):
        report = reports[node].report
        assert report
        assert (node, "preflight", "bad") == (report["node"], report["kind"], report["worst"])
        assert ["memory", "disk-size root"] == report["checks"]
    give_up = time.monotonic() + 240
    while _hooks_lying_about() - before:  # those of other tests are gone in a moment, too
        assert time.monotonic() < give_up, _hooks_lying_about() - before
        time.sleep(0.2)


def _hooks_lying_about() -> set[str]:
    return {name for place in ("/dev/shm", "/tmp") for name in os.listdir(place) if "ftrun-hook" in name}
