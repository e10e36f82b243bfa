"""Laws of Slurm's hooks: what they cost a job, a node and time when something is wrong with the node, or with ourselves. (I/O)"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks import main
from ftrun.hooks.bundle import zipapp
from ftrun.hooks.health import self_drain
from ftrun.hooks.health.self_drain import Row
from ftrun.hooks.runtime.slurm_env import job_of

JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "gpu001", "SLURM_JOB_USER": "ann"}
SICK = {"memory": {"expected_gb": 1_000_000}}
LIMIT_S = 120
NO_SLURM = "#!/bin/sh\necho '%s'\n"

TWO_GPUS = """<nvidia_smi_log><driver_version>550.54</driver_version>
<gpu id="00000000:1B:00.0"><uuid>GPU-aaaa</uuid><temperature><gpu_temp>40 C</gpu_temp></temperature></gpu>
<gpu id="00000000:43:00.0"><uuid>GPU is lost</uuid><temperature><gpu_temp>GPU is lost</gpu_temp></temperature></gpu>
</nvidia_smi_log>
"""


class Node:
    """The hooks installed on a node of its own: settings, state, and a Slurm that a test writes."""

    def __init__(self, folder: Path, installed: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.etc = folder / "etc"
        for made in (self.etc, folder / "bin", folder / "opt"):
            made.mkdir()
        for hook in ("prolog", "epilog", "health"):
            text = (installed / hook).read_text().replace(f"={installed}/etc", f"={self.etc}")
            # A busy machine may not come to an end in the seconds that a node gives a hook, and a hook that does not says nothing.
            text = re.sub(r"^limit=\d+$", f"limit={LIMIT_S}", text, count=1, flags=re.MULTILINE)
            assert f"limit={LIMIT_S}" in text
            self.put(hook, text.replace(f"={installed}/state", f"={self.state}"))

    def put(self, hook: str, text: str) -> None:
        path = self.folder / "opt" / hook
        path.write_text(text)
        path.chmod(0o755)

    def change(self, hook: str, old: str, new: str) -> None:
        text = (self.folder / "opt" / hook).read_text()
        assert old in text
        self.put(hook, text.replace(old, new, 1))

    def settings(self, table: object) -> None:
        text = table if isinstance(table, str) else json.dumps(table)
        (self.etc / "checks.json").write_text(text)

    def tool(self, name: str, text: str) -> None:
        """A command that the hooks find before any other of its name."""
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        for hook in ("prolog", "epilog", "health"):
            if f"path={self.folder}/bin:" not in (self.folder / "opt" / hook).read_text():
                self.change(hook, "\npath=", f"\npath={self.folder}/bin:")

    def run(self, hook: str, *words: str, **env: str) -> tuple[int, str]:
        """Exit status and words of one call, as slurmd calls it: no PATH, an environment of Slurm's own."""
        command = [str(self.folder / "opt" / hook), *words]
        done = subprocess.run(command, env={**JOB, **env}, capture_output=True, text=True, timeout=180)
        return done.returncode, done.stdout + done.stderr

    @property
    def log(self) -> str:
        path = self.state / "hooks.log"
        return path.read_text() if path.exists() else ""

    def report(self, hook: str) -> dict[str, str]:
        kept = json.loads((self.state / f"{hook}.json").read_text())
        return {one["check"]: one["severity"] for one in kept["findings"]}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opt")
    words = ["--settings", str(folder / "etc" / "checks.json"), "--state", str(folder / "state")]
    assert main.main(["install", str(folder), *words]) == 0
    return folder


@pytest.fixture
def node(tmp_path: Path, installed: Path) -> Node:
    return Node(tmp_path, installed)


def test_a_job_that_may_begin_hears_nothing(node: Node) -> None:
    """0 and no word from all three, on a node without a fault."""
    for hook in ("health", "prolog", "epilog"):
        assert (0, "") == node.run(hook)
    assert "bad" not in node.log


@pytest.mark.parametrize(
    "broken",
    ["interpreter", "settings", "state", "this is no Python", "import time; time.sleep(100)", "exit(1)"],
)
def test_a_mistake_of_ours_costs_no_job(node: Node, installed: Path, broken: str) -> None:
    """Whatever is broken of the hooks themselves, the status is 0, on a node that is sick besides."""
    node.settings(SICK)
    if broken == "interpreter":
        node.change("prolog", "\npython=", "\npython=/nowhere")
    elif broken == "settings":
        node.settings('{"memory": {"expected_gb": 10')
    elif broken == "state":
        node.state.write_text("a file where a folder is wanted")
    else:
        (node.folder / "lib").mkdir()
        (node.folder / "lib" / "start.py").write_text(broken)
        node.change("prolog", f"\nlib={installed}", f"\nlib={node.folder}/lib #")
        node.change("prolog", f"limit={LIMIT_S}", "limit=-1")

    assert (0, "") == node.run("prolog")


def test_every_switch_switches_off(node: Node) -> None:
    """A check by its name, a hook by its name, all by a file or by the environment; on_bad=report only tells."""
    node.tool("sinfo", NO_SLURM % "gpu001|main|idle|none")
    node.tool("scontrol", '#!/bin/sh\necho drained >>"$(dirname $0)/../deeds"\n')
    deeds = node.folder / "deeds"
    for table in ({"memory": {**SICK["memory"], "enabled": False}}, {**SICK, "prolog": {"enabled": False}}):
        node.settings(table)
        assert (0, "") == node.run("prolog")
    node.settings(SICK)
    assert (0, "") == node.run("prolog", FTRUN_HOOKS="off")
    (node.etc / "hooks.off").touch()
    assert (0, "") == node.run("prolog")
    assert "bad" not in node.log
    (node.etc / "hooks.off").unlink()
    assert (0, "") == node.run("prolog", FTRUN_HOOKS="report")
    assert (0, "") == node.run("prolog", "--report")
    node.settings({**SICK, "prolog": {"on_bad": "report"}})
    assert (0, "") == node.run("prolog")
    assert 3 == node.log.count("bad memory")
    assert not deeds.exists()
    node.settings(SICK)
    code, said = node.run("prolog")
    assert (1, "ftrun: no job on gpu001: memory") == (code, said.rpartition(": ")[0])
    assert "drained\n" == deeds.read_text()


def test_a_slurm_that_does_not_answer_costs_no_job(node: Node) -> None:
    """Where the cap cannot be counted nobody is drained, and the job begins."""
    node.settings(SICK)
    node.tool("sinfo", "#!/bin/sh\nexit 1\n")

    assert (0, "") == node.run("prolog")
    assert "not drained: sinfo" in node.log


def test_what_the_health_check_found_is_not_looked_for_again(node: Node) -> None:
    """After a health check without findings a job without devices starts no check; what it found bad is looked at anew."""
    node.settings({"health": {"checks": ["memory"]}})
    node.run("health")
    node.run("prolog")
    assert not (node.state / "prolog.json").exists()
    node.settings({**SICK, "health": {"checks": ["memory"]}})
    node.run("health")
    node.run("prolog", "--report")

    assert {"memory": "bad"} == node.report("prolog")


def test_a_job_is_not_failed_for_a_device_that_it_does_not_have(node: Node) -> None:
    """A GPU that is lost keeps a job with that GPU away, and neither a job with another GPU nor one with none."""
    node.tool("nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{TWO_GPUS}END\n")

    assert "gpu-check" not in (node.run("prolog", "--report"), node.report("prolog"))[1]
    node.run("prolog", "--report", SLURM_JOB_GPUS="0")
    assert "ok" == node.report("prolog")["gpu-check"]
    node.run("prolog", "--report", SLURM_JOB_GPUS="0-1")
    assert "bad" == node.report("prolog")["gpu-check"]


def test_devices_of_an_unknown_maker_are_not_missed(node: Node) -> None:
    """Slurm may hand out devices that no tool of ours can see: no job is failed for them."""
    node.run("prolog", "--report", SLURM_JOB_GPUS="0,1")

    assert "bad" not in node.report("prolog").values()


def test_a_bad_node_is_taken_out_by_the_health_check_in_the_second_run_only(node: Node) -> None:
    """One finding may be a moment's; and without on_bad=drain there is no deed at all."""
    node.tool("sinfo", NO_SLURM % "gpu001|main|idle|none")
    node.tool("scontrol", '#!/bin/sh\necho "$@" >>"$(dirname $0)/../deeds"\n')
    deeds = node.folder / "deeds"
    node.settings({**SICK, "health": {"checks": ["memory"]}})
    assert [(0, "")] * 2 == [node.run("health") for _ in range(2)]
    node.settings({"health": {"checks": ["memory"]}})
    node.run("health")
    assert "health: no longer bad: memory" in node.log
    node.settings({**SICK, "health": {"on_bad": "drain", "checks": ["memory"]}})
    assert (0, "") == node.run("health")
    assert not deeds.exists()
    assert (0, "") == node.run("health")
    assert "update nodename=gpu001 state=drain reason=ftrun: health.12 check.memory 2" in deeds.read_text()


def test_an_epilog_fails_on_purpose_only_where_the_site_wants_it_and_the_node_is_drained(node: Node) -> None:
    """Slurm then puts a job with --requeue=expedite first; by default, on a healthy node and where nobody is drained it returns 0."""
    node.tool("sinfo", NO_SLURM % "gpu001|main|idle|none")
    node.tool("scontrol", "#!/bin/sh\n:\n")
    own = {"on_bad": "drain", "expedite": True, "device_checks": ["memory"]}
    codes = []
    for table in ({"epilog": own}, {**SICK, "epilog": {**own, "expedite": False}}, {**SICK, "epilog": {**own, "on_bad": "report"}},
                  {**SICK, "epilog": own}):  # fmt: skip
        node.settings(table)
        codes.append(node.run("epilog", SLURM_JOB_GPUS="0")[0])

    assert [0, 0, 0, 1] == codes


def test_only_processes_that_bear_the_job_s_name_are_its_leftovers(node: Node) -> None:
    """Told, and ended only where the site asks for it; a process of the same user that bears another name lives."""
    uid = os.getuid() or 65534
    job = str(900_000_000 + os.getpid())  # no sandbox beside us has it
    env = {"SLURM_JOB_ID": job, "SLURM_JOB_UID": str(uid), "SLURM_CLUSTER_NAME": "here"}
    names = [
        {"SLURM_JOB_ID": job},
        {"SLURM_JOB_ID": job + "1"},
        {"SLURM_JOB_ID": job, "SLURM_CLUSTER_NAME": "there"},
    ]
    own, *others = [
        subprocess.Popen(["sleep", "60"], env=name, start_new_session=True, user=None if os.getuid() else uid)
        for name in names
    ]
    try:
        assert (0, "") == node.run("epilog", **env)
        assert f"degraded leftovers: 1 process(es) of job {job} outlived it" in node.log
        assert own.poll() is None
        node.settings({"epilog": {"kill": True}})
        assert (0, "") == node.run("epilog", **env)
        assert -9 == own.wait(60)
        assert [None, None] == [other.poll() for other in others]
    finally:
        for process in (own, *others):
            process.kill()
            process.wait()


@given(
    count=st.integers(1, 60),
    already=st.integers(0, 5),
    cap=st.floats(0, 1),
    order=st.randoms(use_true_random=False),
)
def test_of_all_nodes_that_drain_at_once_the_cap_stays_out(
    count: int, already: int, cap: float, order: object
) -> None:
    """When every node of a partition has drained itself and looks, those that stay are as many as may be, and one at least."""
    own = [
        Row(f"n{i}", "main", "drained", f"ftrun: health check.x 2026-01-01T00:00:0{i % 3}Z")
        for i in range(count)
    ]
    before = [Row(f"o{i}", "main", "drained", "ftrun: run sig 2025-01-01T00:00:00Z") for i in range(already)]
    rest = [Row(f"r{i}", "main", "idle", "") for i in range(20)]
    found = own + before + rest
    order.shuffle(found)  # type: ignore[attr-defined]
    most = max(1, int(cap * len(found)))

    staying = [row.node for row in own if self_drain.is_within_cap(found, row.node, cap)]
    assert len(staying) == min(count, max(0, most - already))


@pytest.mark.parametrize("earlier", [0, 3])
def test_a_drain_that_could_not_be_looked_at_again_is_seen_to_later(node: Node, earlier: int) -> None:
    """Slurm falls silent under a thousand hooks at once: the next health check gives back what is beyond the cap, by its own reason only."""
    node.tool("scontrol", '#!/bin/sh\necho "$@" >>"$(dirname $0)/../deeds"\n')
    node.tool("sinfo", '#!/bin/sh\n[ -e "$(dirname $0)/../deeds" ] && exit 1\necho "gpu001|main|idle|"\n')
    node.settings(SICK)
    assert 0 == node.run("prolog")[0]
    deeds = node.folder / "deeds"
    reason = deeds.read_text().partition("reason=")[2].strip()
    assert reason.startswith("ftrun: prolog.12 check.memory ")

    node.run("health")  # Slurm is away still, and nothing is forgotten
    rows = [f"gpu00{2 + i}|main|drained|ftrun: r s 2025-01-01T00:00:00Z" for i in range(earlier)]
    node.tool("sinfo", NO_SLURM % "\n".join([f"gpu001|main|drained|{reason}", *rows, "gpu009|main|idle|"]))
    for _ in range(2):
        node.run("health")

    assert (["update nodename=gpu001 state=resume"] if earlier else []) == deeds.read_text().splitlines()[1:]


def test_a_reason_of_somebody_is_left_alone(node: Node) -> None:
    """A node that bears any reason is not touched, whoever wrote it."""
    node.tool("scontrol", '#!/bin/sh\necho "$@" >>"$(dirname $0)/../deeds"\n')
    node.settings(SICK)
    for state, reason, code in (("idle", "disk swap on Monday", 0), ("drained", "ann: fan", 1)):
        node.tool("sinfo", NO_SLURM % f"gpu001|main|{state}|{reason}")
        assert code == node.run("prolog")[0]
    assert not (node.folder / "deeds").exists()


@pytest.mark.parametrize(
    ("env", "devices"),
    [
        ({}, ""),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ""),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}, "0,1"),
        ({"SLURM_JOB_GPUS": "0-2,5"}, "0,1,2,5"),
        ({"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "MIG-6b4b2c6e-1"}, "MIG-6b4b2c6e-1"),
        ({"ROCR_VISIBLE_DEVICES": "2"}, "2"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,7"}, "0,7"),
    ],
)
def test_the_devices_of_a_job_are_read_from_what_slurm_tells(env: dict[str, str], devices: str) -> None:
    """Unique names before numbers; a job without devices has none."""
    assert devices == job_of(env).devices


def test_who_asks_how_to_install_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Every option with its default, and nothing is written."""
    assert 0 == main.main(["install", "--help"])
    told = capsys.readouterr().out

    assert all(word in told for word in ("FOLDER", "--settings", "--state", "--python"))


def test_the_packed_hooks_install_themselves(tmp_path: Path) -> None:
    """On a node that has nothing of ours, out of the one file."""
    archive = zipapp.build_zipapp(str(tmp_path))
    command = [
        sys.executable,
        "-I",
        archive,
        "install",
        str(tmp_path / "opt"),
        "--state",
        str(tmp_path / "state"),
    ]
    command += ["--settings", str(tmp_path / "checks.json")]
    done = subprocess.run(command, capture_output=True, text=True, env={}, cwd="/")

    assert (0, "") == (done.returncode, done.stderr)
    done = subprocess.run([str(tmp_path / "opt" / "prolog")], capture_output=True, text=True, env=JOB)
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    assert (tmp_path / "state" / "jobs" / "12").exists()
