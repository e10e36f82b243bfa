"""Laws of the agent's rooms: what steps say, who went around the shim, what a start's end means, what stacks say together."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.commands.node_queries import parse_answers
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.commands.steps import parse_steps
from ftrun.supervisor.agent import (
    batch_channel,
    main,
    node_liveness,
    rank_restart,
    start_monitor,
    start_outcome,
    stop_start,
)
from ftrun.supervisor.agent.batch_channel import BatchChannel, parse_started
from ftrun.supervisor.agent.node_liveness import NodeAnswers
from ftrun.supervisor.controller import assess, gather_facts
from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.diagnosis.node_findings import NodeFacts, NodeFinding
from ftrun.supervisor.model.run import Attempt, Incident, Launch, LaunchEnd, Run, Start, StartNote
from ftrun.supervisor.model.types import (
    Diagnosis,
    Evidence,
    FaultClass,
    HangState,
    HangVerdict,
    Source,
    Topology,
)
from ftrun.supervisor.policy import policy_input, start_decision
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.store.lease import SystemClock
from ftrun.supervisor.telemetry import liveness, stack_samples
from tests.unit.questions import Said, Shut

NODES = ("n0", "n1", "n2", "n3")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return signatures_catalog.load()


# ---- what Slurm's commands and tasks print


def test_only_numbered_steps_of_the_job_are_steps() -> None:
    """batch, extern and another job's steps are none; a name may hold anything."""
    rows = parse_steps("7.batch|n0|batch\n7.extern|n0|extern\n7.0|n[0-1]|a|b\n8.0|n2|x\n7.1|n1|ftrun\n", "7")

    assert [(row.id, row.name, row.nodes) for row in rows] == [
        ("7.0", "a|b", ("n0", "n1")),
        ("7.1", "ftrun", ("n1",)),
    ]
    assert [row.id for row in stop_start.script_steps(rows)] == ["7.0"]


def test_an_answer_counts_for_the_nodes_that_were_asked() -> None:
    """What srun says, and what claims to be another node, is no answer."""
    text = 'ftrun-here n0\nsrun: error: n2: gone\nftrun-here n0 {"left": []}\nftrun-here n9\nftrun-here n1\n'
    found = parse_answers(text, NODES)

    assert found.answers == {"n0": ('{"left": []}',), "n1": ()}
    assert found.told == "srun: error: n2: gone; ftrun-here n9"


# ---- which nodes answer


def test_the_agent_brings_the_node_side_where_no_supervisor_has_put_it_yet(tmp_path: Path) -> None:
    """Without it no node could be swept, and a script that fails in its first second would never be started again."""
    main._install_node_tools(str(tmp_path))

    assert (tmp_path / "tools" / "ftrun-hook.pyz").is_file()


def _job(nodes: Sequence[str], **more: Any) -> JobRow:
    told: dict[str, Any] = {
        "job_id": "7", "state": JobState.RUNNING, "reason": "None", "nodes": tuple(nodes), "node_count": len(nodes), "comment": "",
        "name": "train", "user": "ann", "partition": "main", "submit_time_s": 1.0, "start_time_s": 1000.0, "end_time_s": None,
    }  # fmt: skip
    return JobRow(**(told | more))


class _Cluster:
    """Shows one job."""

    def __init__(self, row: JobRow, *, preempted: bool = False) -> None:
        self.row, self.preempted = row, preempted

    def jobs(self, ids: Sequence[str]) -> dict[str, JobRow]:
        return {self.row.job_id: self.row}

    def details(self, job_id: str) -> SimpleNamespace:
        return SimpleNamespace(is_preempted=self.preempted)


class _Asked:
    """Steps that answer when `hears` says so, which is told how many nodes are asked at a time."""

    def __init__(self, hears: Callable[[str, int], bool]) -> None:
        self.hears, self.asked = hears, list[tuple[str, ...]]()

    def begin(self, job: str, nodes: Sequence[str], script: str) -> Said:
        self.asked.append(tuple(nodes))
        return Said(nodes, {node: self.says(node) for node in nodes if self.hears(node, len(nodes))})

    def doors(self, nodes: Sequence[str]) -> Shut:
        return Shut(())

    def says(self, node: str) -> tuple[str, ...]:
        return ('{"left": [], "unfit": ""}',)


def _reached(
    row: JobRow, steps: _Asked, quiet_s: float = 3.0, *, preempted: bool = False
) -> node_liveness.NodeAnswers:
    line = node_liveness.sweep_line("/home", "/home/runs/r/attempts/1", "0.2", "7")
    sweep = node_liveness.PingRequest("7", row.nodes, row.nodes[0], line, quiet_s)
    cluster = _Cluster(row, preempted=preempted)
    return node_liveness.query_nodes(cast("Any", cluster), cast("Any", steps), SystemClock(), sweep)


def test_nodes_behind_a_dead_one_are_not_silent() -> None:
    """Slurm hands a step of a large job on from node to node; who hears of nothing because the one before is dead is asked once more, few at a time."""
    nodes = [f"n{number}" for number in range(60)]
    behind = {f"n{number}" for number in range(20, 40)}
    steps = _Asked(lambda node, asked: node != "n20" and (asked <= 16 or node not in behind))
    found = _reached(_job(nodes), steps, 1.0)

    assert found.known
    assert found.silent == ("n20",)
    assert max(len(one) for one in steps.asked[1:]) <= 16


def test_a_node_that_was_late_once_is_not_silent() -> None:
    """A loaded node may start a step late. Whoever was silent twice already while the start lived is not asked a third time."""
    steps = _Asked(lambda node, asked: node != "n2" or asked < 4)

    assert _reached(_job(NODES), steps).silent == ()
    assert _reached(_job(NODES), steps, 1.0).silent == ("n2",)


def test_a_node_that_was_not_swept_is_used_by_no_later_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, but nobody knows whether ranks of an earlier start live there. One that was interrupted at its sweep is asked once more."""
    steps = _Asked(lambda node, asked: True)
    monkeypatch.setattr(steps, "says", lambda node: () if node == "n2" or len(steps.asked) == 1 else ("{}",))
    found = _reached(_job(NODES), steps)

    assert (found.known, found.answered, found.silent) == (True, NODES, ())
    assert found.unfit == {"n2": node_liveness.UNSWEPT}


def test_a_companion_that_ended_since_slurm_was_asked_took_its_nodes_with_it() -> None:
    """A person may cancel it between the two questions: its node is silent for that, and not lost."""
    own, beside = _job(NODES[:2]), _job(NODES[2:], job_id="8", comment="a companion's mark")
    ended = replace(beside, state=JobState.CANCELLED)
    sweep = node_liveness.PingRequest("7", NODES, NODES[0], "", spans=(Span("8", NODES[2:]),))
    for now, gone in ((ended, NODES[2:]), (beside, ())):
        cluster = SimpleNamespace(
            jobs=lambda _: {"7": own, "8": beside},
            find=lambda mark, now=now: (now,) if mark == beside.comment else (),
            nodes=lambda names: {name: SimpleNamespace(responding=True) for name in names},
        )
        steps = _Asked(lambda node, _: node in own.nodes)
        found = node_liveness.query_nodes(cast("Any", cluster), cast("Any", steps), SystemClock(), sweep)
        assert (found.gone, found.silent) == (gone, tuple(node for node in NODES[2:] if not gone))


def test_where_very_many_are_silent_nothing_is_known_of_any() -> None:
    """It is a network or Slurm itself, no matter of single nodes."""
    nodes = [f"n{number}" for number in range(200)]
    found = _reached(_job(nodes), _Asked(lambda node, asked: int(node[1:]) < 100))

    assert (found.known, found.silent, found.running) == (False, (), True)


def test_a_job_that_is_preempted_is_left() -> None:
    """In its time of grace it still runs, but its end came nearer than its time limit."""
    all_hear = _Asked(lambda node, asked: True)
    limit = {"time_limit_s": 86400.0}

    assert _reached(_job(NODES, **limit, planned_end_s=87400.0), all_hear).running
    assert _reached(
        _job(NODES, **limit, planned_end_s=90000.0), all_hear
    ).running  # it was suspended for a while
    assert _reached(_job(NODES), all_hear).running
    for nodes in (NODES, NODES[:1]):
        short = _job(nodes, **limit, planned_end_s=5000.0)
        assert not _reached(short, all_hear, preempted=True).running


def test_a_job_that_ends_sooner_for_another_reason_goes_on_until_then() -> None:
    """A reservation that ends is no preemption: Slurm is asked, and the nearer end is the one that counts."""
    short = _job(NODES, time_limit_s=86400.0, planned_end_s=5000.0)
    found = _reached(short, _Asked(lambda node, asked: True))

    assert (found.known, found.running, found.end_s) == (True, True, 5000.0)


# ---- who went around the shim


@pytest.fixture
def script(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts what a script starts: children of this process."""
    made: list[subprocess.Popen[bytes]] = []
    shutil.copy(shutil.which("sleep") or "", tmp_path / "srun")
    yield made
    for process in made:
        process.kill()
        process.wait()


def _child(made: list[subprocess.Popen[bytes]], *words: str, **env: str) -> int:
    made.append(subprocess.Popen(list(words), env={"PATH": os.environ["PATH"], **env}))
    give_up_s = time.monotonic() + 60
    place = Path(f"/proc/{made[-1].pid}")
    while time.monotonic() < give_up_s:  # until it is what it is to be, with its environment
        if (
            not batch_channel.executable_name(made[-1].pid).startswith("python")
            and (place / "environ").read_bytes()
        ):
            break
        time.sleep(0.01)
    return made[-1].pid


def test_an_srun_without_the_shims_mark_went_around_it(
    script: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Of this job, and below the script; with the mark, or of another job, it did not."""
    srun = str(tmp_path / "srun")
    _child(script, srun, "60", SLURM_JOB_ID="7", FTRUN_SHIM="1")
    _child(script, srun, "60", SLURM_JOB_ID="8")
    assert batch_channel.unshimmed_srun(os.getpid(), "7") == 0
    stray = _child(script, srun, "60", SLURM_JOB_ID="7")
    assert batch_channel.unshimmed_srun(os.getpid(), "7") == stray


def test_the_shim_itself_is_no_srun_yet(script: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """A shell that is called srun has not become Slurm's."""
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "srun"
    shim.write_text("#!/bin/sh\nsleep 60\nexit 0\n")
    shim.chmod(0o755)
    pid = _child(script, str(shim), SLURM_JOB_ID="7")
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "srun"

    assert batch_channel.unshimmed_srun(os.getpid(), "7") == 0


# ---- what the end of a start means


def _seen(**changes: object) -> start_decision.StartFacts:
    usual = start_decision.StartFacts(1, NODES[:2], "", 1, 0, 1000.0, topology=Topology(nodes=NODES[:2]))
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_a_node_that_does_not_answer_is_the_culprit_with_its_own_evidence(catalog: Catalog) -> None:
    """Whatever the exit says; it may be left out, and the words name the step that asked."""
    found = start_decision.diagnose_start(_seen(silent=("n1",)), catalog)

    assert (found.fault, found.nodes, found.exclude) == (FaultClass.NODE, ("n1",), True)
    assert any("did not answer" in words for words in found.rests_on)
    assert not set(found.sources) & policy_input.PROOF_SOURCES, (
        "nobody is drained for a silence that Slurm has not seen"
    )


def test_what_is_said_while_we_end_a_start_is_no_cause(catalog: Catalog) -> None:
    """Ranks that are ended leave with a code of their own, and Slurm says so: that explains no hang."""
    suspicion = suspicions.hang_suspicion(
        HangVerdict(HangState.HUNG, 70.0, 60.0, "no step for 70 s"), NODES[:2]
    )
    line = Evidence(
        Source.LOG, "slurm-task-exit", "srun: error: n1: task 1: Exited with exit code 1", line=46
    )
    found = start_decision.diagnose_start(_seen(suspicion=suspicion, code=137, evidence=(line,)), catalog)

    assert (found.fault, found.signature) == (FaultClass.HANG, "hang.no-progress")


def test_why_we_ended_a_start_stands_where_nothing_better_is_known(catalog: Catalog) -> None:
    """A hang that no line explains stays the hang that it was ended for."""
    verdict = HangVerdict(HangState.HUNG, 70.0, 60.0, "no step for 70 s", ("rank 1 (n1.cluster)",))
    suspicion = suspicions.hang_suspicion(verdict, NODES[:2])
    assert suspicion.nodes == ("n1",)
    found = start_decision.diagnose_start(_seen(suspicion=suspicion, code=137), catalog)

    assert (found.fault, found.signature) == (FaultClass.HANG, "hang.no-progress")


def test_spares_that_are_bad_are_none_and_degraded_ones_come_last() -> None:
    """As the checks of the nodes say; what is over no longer counts."""

    def finding(node: str, severity: str, until_s: float | None = None) -> NodeFinding:
        return NodeFinding(node, "watch", "gpu", severity, FaultClass.HARDWARE_GPU, "broken", until_s=until_s)

    facts = NodeFacts(NODES, (finding("n1", "degraded"), finding("n2", "bad"), finding("n3", "bad", 900.0)))
    found = start_decision.usable_spares(
        NODES, active=("n0",), aside=(), answered=NODES, unfit={}, facts=facts
    )

    assert found == ("n3", "n1")
    assert start_decision.spares_objection(NODES, {"n3": "full"}, facts) == "n2: gpu: broken; n3: full"


def test_what_all_nodes_show_that_still_answer_costs_no_spare() -> None:
    """A lost node cannot show it, too."""

    def finding(node: str) -> NodeFinding:
        return NodeFinding(node, "after", "shm", "bad", FaultClass.STORAGE, "small")

    rest = ("n0", "n2", "n3")
    facts = NodeFacts(NODES, tuple(finding(node) for node in rest), frozenset(rest))
    found = start_decision.usable_spares(
        NODES, active=("n0", "n1"), aside=("n1",), answered=rest, unfit={}, facts=facts
    )
    assert found == ("n2", "n3")
    few = NodeFacts(NODES, tuple(finding(node) for node in rest[:2]), frozenset(rest[:2]))
    assert start_decision.usable_spares(NODES, active=(), aside=(), answered=rest, unfit={}, facts=few) == (
        "n3",
    )


def test_half_of_the_nodes_that_are_lost_make_no_spare_sick() -> None:
    """Two of four do not answer, and the two others share a finding: it is the site's, and the spare among them is one."""

    def finding(node: str) -> NodeFinding:
        return NodeFinding(node, "after", "shm", "bad", FaultClass.STORAGE, "small")

    answer = ("n0", "n3")
    facts = NodeFacts(NODES, tuple(map(finding, answer)), frozenset(answer), frozenset({"n1", "n2"}))

    assert start_decision.usable_spares(
        NODES, active=("n0", "n1"), aside=("n1",), answered=answer, unfit={}, facts=facts
    ) == ("n3",)


def test_a_node_that_this_run_avoids_is_a_spare_of_last_resort() -> None:
    """Better than none."""
    found = start_decision.usable_spares(
        NODES,
        active=("n0",),
        aside=("n1",),
        answered=NODES,
        unfit={},
        facts=NodeFacts(NODES),
        excluded=("n2",),
    )

    assert found == ("n3", "n2")


def test_a_lost_node_is_a_fatal_suspicion() -> None:
    """It has a signature, so that the rules of live runs take it for one."""
    found: Diagnosis = suspicions.lost_suspicion(("n1",))

    assert found.signature
    assert found.nodes == ("n1",)


# ---- stacks


def _table(*rows: dict[str, object]) -> dict[str, object]:
    return {"schema": 1, "ranks": list(rows)}


def _row(pid: int, digest: str, **more: object) -> dict[str, object]:
    return {
        "rank": str(pid),
        "pid": pid,
        "digest": digest,
        "moved": False,
        "cpu_s": 0.0,
        "bytes": 0,
        "top": [],
        **more,
    }


def test_stacks_that_all_stand_still_twice_have_not_moved() -> None:
    """One sample alone leaves it open; a second one with the same stacks says so."""
    tables = {"n0": _table(_row(1, "a")), "n1": _table(_row(2, "b"))}
    first, activity, digests = stack_samples.stack_sample(tables, {}, 1)
    second, _, _ = stack_samples.stack_sample(tables, digests, 2)

    assert (first.moved, second.moved) == (None, False)
    assert activity == liveness.Activity(cpu=False, io=False)


def test_one_rank_that_moves_is_enough() -> None:
    """Between the two looks of a sample, or between samples."""
    still = {"n0": _table(_row(1, "a")), "n1": _table(_row(2, "b"))}
    _, _, digests = stack_samples.stack_sample(still, {}, 1)
    other = {"n0": _table(_row(1, "a")), "n1": _table(_row(2, "c"))}
    within = {"n0": _table(_row(1, "a")), "n1": _table(_row(2, "b", moved=True))}

    assert stack_samples.stack_sample(other, digests, 2)[0].moved is True
    assert stack_samples.stack_sample(within, digests, 2)[0].moved is True


def test_a_node_without_a_table_leaves_it_open() -> None:
    """Nobody knows what its ranks do, nor whether they use anything."""
    tables = {"n0": _table(_row(1, "a")), "n1": None}
    _, _, digests = stack_samples.stack_sample(tables, {}, 1)
    stacks, activity, _ = stack_samples.stack_sample(tables, digests, 2)

    assert stacks.moved is None
    assert activity == liveness.Activity()


def test_who_spins_in_a_collective_uses_nothing() -> None:
    """One rank stands elsewhere and does nothing, the others burn their processors where they wait for it: nothing is used."""
    waits = {"top": ["all_reduce (torch/distributed/distributed_c10d.py:2501)"], "cpu_s": 3.0}
    idle = {"n0": _table(_row(1, "a", **waits)), "n1": _table(_row(2, "b", **waits), _row(3, "c"))}
    works = {"n0": _table(_row(1, "a", **waits)), "n1": _table(_row(3, "c", cpu_s=3.0))}

    assert stack_samples.stack_sample(idle, {}, 1)[1].cpu is False
    assert stack_samples.stack_sample(works, {}, 1)[1].cpu is True


def test_a_wait_in_a_collective_is_read_from_the_table() -> None:
    """As the node writes a frame: function, folder, file and line."""
    waits = {"top": ["wait (distributed/distributed_c10d.py:2501)", "main (train.py:7)"]}
    both = {"n0": _table(_row(1, "a", **waits)), "n1": _table(_row(2, "b", **waits))}
    one = {"n0": _table(_row(1, "a", **waits), _row(3, "a", **waits)), "n1": _table(_row(2, "b"))}

    assert stack_samples.stack_sample(both, {}, 1)[0].waiting == "collective"
    assert stack_samples.stack_sample(one, {}, 1)[0].elsewhere == (2,)


def test_what_was_used_between_two_samples_counts() -> None:
    """A burst that falls between the looks is in the sums."""
    row = _row(1, "a", cpu_all_s=10.0, bytes_all=0)
    later = _row(1, "a", cpu_all_s=18.0, bytes_all=50_000_000)
    _, first, seen = stack_samples.stack_sample({"n0": {**_table(row), "at_s": 100.0}}, {}, 1)
    _, second, _ = stack_samples.stack_sample({"n0": {**_table(later), "at_s": 140.0}}, seen, 2)

    assert (first.cpu, first.io) == (False, False)
    assert (second.cpu, second.io) == (True, True)


@pytest.mark.parametrize(
    ("looks", "gpu", "spins"),
    [
        (["0, GPU-a, 100, 0, 140.2, 71000\n1, GPU-b, 99, 0, 138.0, 71000"] * 2, False, True),
        (
            [
                "0, GPU-a, 100, 0, 140.2, 71000\n1, GPU-b, 99, 0, 138.0, 71000",
                "0, GPU-a, 99, 34, 600, 7\n1, GPU-b, 9, 0, 60, 7",
            ],
            True,
            False,
        ),
        (["0, GPU-a, 0, 0, 70.2, 71000\n1, GPU-b, 0, 0, 68.0, 71000"] * 2, False, False),
        (["0, GPU-a, [N/A], [N/A], 70.2, 71000"] * 2, None, False),
        ([], None, False),
    ],
    ids=[
        "they spin",
        "one moves memory at the second look",
        "they rest",
        "parts of a device do not tell",
        "no tool",
    ],
)
def test_accelerators_tell_whether_they_move_memory(looks: list[str], gpu: bool | None, spins: bool) -> None:
    """Use without memory is a kernel that waits; what cannot be read is not known."""
    table = {**_table(_row(1, "a"), _row(2, "b")), "accelerators": {"nvidia-smi": looks}}
    activity = stack_samples.stack_sample({"n0": table}, {}, 1)[1]

    assert (activity.gpu, activity.spins) == (gpu, spins)


def test_a_process_that_waits_in_the_kernel_is_told() -> None:
    """State D is neither rest nor work that a hang could not do."""
    activity = stack_samples.stack_sample({"n0": _table(_row(1, "a", state="D"))}, {}, 1)[1]

    assert (activity.io, activity.stuck) == (True, True)


@pytest.mark.parametrize(
    "table", [[], "x", {"ranks": 3}, {"ranks": [1, {}]}, {"ranks": [{"cpu_s": "x", "top": 5}]}]
)
def test_a_table_of_any_form_is_read(table: object) -> None:
    """The folder belongs to the job's user."""
    stack_samples.stack_sample({"n0": table}, {}, 1)


def _finding(node: str, severity: str, check: str = "throughput") -> NodeFinding:
    return NodeFinding(node, "watch", check, severity, FaultClass.NODE, f"{check} is low")


@pytest.mark.parametrize(
    ("findings", "found"),
    [
        ((_finding("n1", "degraded"),), {"n1": "throughput is low"}),
        ((_finding("n1", "degraded"), _finding("n1", "bad", "gpu-check")), {}),
        ((_finding("n1", "degraded"), _finding("n2", "degraded", "clock")), {}),
        ((_finding("n3", "degraded"),), {}),
        (tuple(_finding(node, "degraded") for node in NODES), {}),
    ],
    ids=["one alone", "it is worse", "several", "a spare", "the site's"],
)
def test_a_degraded_node_is_told_where_it_is_the_only_one(
    findings: tuple[NodeFinding, ...], found: dict[str, str]
) -> None:
    """What several nodes of a start show is no reason to leave one of them."""
    assert start_monitor.degraded_node(NodeFacts(NODES, findings), NODES[:3]) == found


# ---- the talk


def test_a_torn_death_is_none() -> None:
    """What a parent of a rank has not written whole is read later, or never."""
    assert rank_restart.parse_death("0.1", b'{"rank": 1, "co') is None
    assert rank_restart.parse_death("0.1", b'{"rank": 1, "code": 0, "signal": 9}') is not None


def test_nodes_of_a_start_keep_their_order() -> None:
    """The order of the ranks is the order of the nodes."""
    assert parse_started({"nodes": "n3,n1,n2", "pid": "5"}, 2).nodes == ("n3", "n1", "n2")


def test_calls_of_srun_are_counted_by_their_processes(tmp_path: Path) -> None:
    """A line that is not whole says nothing."""
    (tmp_path / "calls.1").write_text("1700000000 11 srun -n2 ./a b\n1700000001 12\n17\n")

    assert BatchChannel(str(tmp_path)).calls(1) == (11, 12)
    assert BatchChannel(str(tmp_path)).calls(2) == ()


def test_the_agent_is_light() -> None:
    """It loads none of the libraries that only commands need, and stays below 60 MB with everything in use."""
    code = (
        "import sys; from ftrun.supervisor.agent import main; from ftrun.supervisor.signatures import catalog as signatures; from ftrun.supervisor.telemetry.log_watcher import LogWatcher, LogPath;"
        "w = LogWatcher([LogPath('/dev/null')], catalog=signatures.load()); w.poll(1.0);"
        "heavy = {'typer', 'rich', 'structlog', 'paramiko', 'asyncio'} & {m.split('.')[0] for m in sys.modules};"
        # ru_maxrss would tell of the process that this one was forked from, too.
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'));"
        "print(sorted(heavy), int(peak) < 60 << 10)"
    )
    for _ in range(
        2
    ):  # the first may find the signatures uncompiled, which takes more, once for each user and edition
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[] True"


def test_a_script_that_exits_0_because_its_agent_ended_it_has_not_finished() -> None:
    """The supervisor takes the end for the agent's making, and goes on with the run."""
    ended = StartNote(0, 2, NODES[:2], 1000.0, over_at_s=1100.0, code=0, signal=0, by_us=True)
    attempt = Attempt(
        1, 900.0, begun=(ended,), launch=Launch(0, end=LaunchEnd(state="COMPLETED"), start=Start(number=2))
    )
    seen = gather_facts.corrected_by_log(attempt, ())

    assert (seen.launch.end.state, seen.ended_by_us) == ("FAILED", True)
    own = replace(attempt, begun=(replace(ended, by_us=False),))
    assert gather_facts.corrected_by_log(own, ()) is own
    third = replace(attempt, launch=replace(attempt.launch, start=Start(3)))
    assert gather_facts.corrected_by_log(third, ()) is third, "its agent died before it noted start 3"


@pytest.mark.parametrize(
    ("reach", "wanted_s", "quiet_s"),
    [
        (NodeAnswers(("n1", "n2", "spare")), 2.0, start_outcome.CLOSED_QUIET_S),
        (NodeAnswers(("n1", "n2")), 0.1, 0.1),
        (NodeAnswers(("n1", "n2")), 30.0, 30.0),  # the user knows a log that lags
        (NodeAnswers(("n1",), silent=("n2",)), 2.0, 2.0),
        (NodeAnswers(("n1",), gone=("n2",)), 2.0, 2.0),
        (NodeAnswers(("n1", "n2"), unfit={"n2": node_liveness.UNSWEPT}), 2.0, 2.0),
        (NodeAnswers(("n1", "n2"), known=False), 2.0, 2.0),
    ],
)
def test_late_lines_are_awaited_from_ranks_that_may_still_be_there(
    reach: NodeAnswers, wanted_s: float, quiet_s: float
) -> None:
    """P7: where every node has answered that nothing of the start is left, little is awaited; else all of `log-quiet`."""
    started = parse_started({"nodes": "n[1-2]"}, 1)
    assert quiet_s == start_outcome._quiet_s({"log-quiet": wanted_s}, started, reach)


def _handed_over(state: str = "FAILED", **changes: Any) -> bool:
    launch = Launch(inside=True, end=LaunchEnd(state), start=Start(2))
    incident = Incident("1.0.2", 1, 0, "network", "x", "x", ("n1",), ("n1",), 7, None, None, 1.0, {})
    run = Run("r-0001", attempts=(Attempt(1, 0.0, launch=launch),), incidents=(replace(incident, **changes),))
    report = SimpleNamespace(behind=False)
    return assess._settled_inside(
        cast("Any", SimpleNamespace(run=run, attempt=run.attempt)), cast("Any", report)
    )


def test_an_end_that_the_agent_has_settled_is_not_settled_again() -> None:
    """Only that very end: not one of an earlier start, not one after a restart that it decided, not a job that was ended."""
    assert _handed_over()
    assert not _handed_over(id="1.0.1")
    assert not _handed_over(decision={"kind": "step"})
    assert not _handed_over("NODE_FAIL")
    assert not _handed_over("CANCELLED")
