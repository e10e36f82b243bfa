"""Laws of the one list of rules: whoever asks gets the same answer, each rule stands where it must, and
nothing is said twice. (I/O)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.controller import assess
from ftrun.supervisor.diagnosis import rules, suspicions
from ftrun.supervisor.diagnosis.checkpoint_blame import ResumedCheckpoint
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts, LostCompanion, SbatchRefusal
from ftrun.supervisor.diagnosis.log_text import text_lines
from ftrun.supervisor.diagnosis.node_findings import NodeFacts, NodeFinding
from ftrun.supervisor.diagnosis.rules import RULES, Part, diagnose
from ftrun.supervisor.model.run import Attempt, GivenUpTasks, Launch, LaunchEnd
from ftrun.supervisor.model.types import (
    LEFT_THE_QUEUE,
    LOST_TRACK,
    NEAR_TIME_LIMIT,
    STARTED_TWICE,
    UNWATCHED,
    Diagnosis,
    Evidence,
    FaultClass,
    HangState,
    HangVerdict,
    Opinion,
    PrelaunchHold,
    Proof,
    Source,
    Topology,
)
from ftrun.supervisor.policy import start_decision
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.grammar_file import load_grammar
from ftrun.supervisor.signatures.scanner import Scanner
from ftrun.supervisor.telemetry.progress import Progress
from tests.unit.cases import diagnosis
from tests.unit.lives import TIMED_OUT, Life

CATALOG = catalog.load()
NODES = ("n0", "n1", "n2")
SEATS = Topology(nodes=NODES, rank_node=dict(enumerate(NODES)))
XID = "n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."
BUG = (
    "Traceback (most recent call last):",
    '  File "t.py", line 3, in <module>',
    "NameError: name 'x' is not defined",
)
FAILED = Ended("FAILED", "NonZeroExitCode", exit_code=1)
OURS = replace(FAILED, by_us=True)
TRAINED = Progress(
    step=9, total=None, loss=None, checkpoint_step=None, checkpoint_path="", offset_bytes=0, steps_seen=9
)
HUNG = suspicions.hang_suspicion(HangVerdict(HangState.HUNG, 70.0, 60.0, "no step for 70 s"), NODES)
BAD = NodeFacts(
    NODES,
    (NodeFinding("n2", "after", "gpu", "bad", FaultClass.HARDWARE_GPU, "broken"),),
    frozenset(NODES),
)
GONE = (LostCompanion(("n2",), "the companion that held n2 is over"),)
INSIDE = {
    "class": "hardware-gpu",
    "retry": True,
    "action": "exclude",
    "nodes": ["n0"],
    "exclude": True,
    "confidence": 0.9,
    "signature": "xid-79",
    "title": "found inside",
}
CUT_OFF = (
    "gpu1:41:88 [7] NCCL INFO Call to recv from 10.0.0.2<46532> failed : Connection reset by peer",
    "gpu1:41:88 [7] socket.cc:540 NCCL WARN Net : Connection closed by remote peer n2.cluster<46532>",
)
KILLED = (
    "srun: error: n1: task 1: Killed",
    "0: ConnectionResetError: [Errno 104] Connection reset by peer",
)
INVALID = "srun: error: Unable to confirm allocation for job 7: Invalid job id specified"
SILENT_NODE = "launcher: no reply from node n1 after 60 s"
SICK_GPU = "RuntimeError: accelerator 3 does not respond"
CHECK = "ERROR:  nhc:  Health check failed:  check_xid_errors:  Found Xid 79 on GPU 3"
DRIVER = (
    "Linux n1 5.14.0-70.el9.x86_64 #1 SMP",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
)
ODD = (Proof("job.log", 3, "what is this", ""),)
LIVED = Attempt(1, 0.0, job="7", nodes=NODES, launch=Launch(end=LaunchEnd("FAILED")), submission="done")
REQUEUED = replace(LIVED, launch=replace(LIVED.launch, requeued=True))
AT_ITS_LIMIT = replace(LIVED, end_intended=f"{NEAR_TIME_LIMIT}; it has saved", end_done=True)


def _evidence(*lines: str) -> tuple[Evidence, ...]:
    hits = Scanner(CATALOG, engine="re").feed("".join(f"{line}\n" for line in lines).encode())
    return tuple(
        Evidence(Source.LOG, h.signature, h.text, "job.log", h.line, order=h.line, captures=h.captures)
        for h in hits
    )


def _facts(*lines: str, **more: Any) -> Facts:
    known: dict[str, Any] = {"ended": FAILED, "attempt": LIVED, "now_s": 1000.0} | more
    return Facts(_evidence(*lines), SEATS, CATALOG, **known)


def _read(*lines: str, **more: Any) -> Facts:
    """The facts of a text alone, with its lines as they stand."""
    text = tuple(text_lines("job.log", "\n".join(lines).encode()))
    known: dict[str, Any] = {"ended": None, "attempt": None, "text": text, "grammar": load_grammar()} | more
    return replace(_facts(*lines, **known), topology=Topology())


# ---- the list itself


def test_every_rule_has_a_name_of_its_own_and_says_in_a_line_why_it_stands_there() -> None:
    """A person who changes the order reads why it is as it is."""
    names = [rule.name for rule in RULES]

    assert len(set(names)) == len(names)
    assert all(rule.why and "\n" not in rule.why and len(rule.why) < 100 for rule in RULES)


def test_the_parts_of_the_list_follow_each_other() -> None:
    """What tells by itself, then causes, then what is said of a cause."""
    order = list(Part)
    places = [order.index(rule.part) for rule in RULES]

    assert places == sorted(places)


ORDER: dict[tuple[str, str], Callable[[], Facts]] = {
    ("refused", "started-twice"): lambda: _facts(
        refusal=SbatchRefusal("no such partition", True, "r"), attempt=LIVED.ended_as(reason=STARTED_TWICE)
    ),
    ("started-twice", "log"): lambda: _facts(XID, attempt=LIVED.ended_as(reason=STARTED_TWICE)),
    ("left-the-queue", "log"): lambda: _facts(*BUG, attempt=LIVED.ended_as(reason=LEFT_THE_QUEUE)),
    ("cancelled-again", "held"): lambda: _facts(
        attempt=REQUEUED.ended_as(state="CANCELLED"),
        held=PrelaunchHold(
            {"n1": {"check": "gpu", "fault": "hardware-gpu", "device": "", "message": "bad"}}, 3
        ),
    ),
    ("held", "log"): lambda: _facts(
        *BUG,
        held=PrelaunchHold(
            {"n1": {"check": "gpu", "fault": "hardware-gpu", "device": "", "message": "bad"}}, 3
        ),
    ),
    ("unloadable", "log"): lambda: _facts(*BUG, unloadable="none of 3 may be loaded"),
    ("hook-hold", "log"): lambda: _facts(*BUG, hook_hold="ended with 3"),
    ("tasks", "log"): lambda: _facts(*BUG, tasks=(diagnosis(FaultClass.NETWORK),)),
    ("finished", "log"): lambda: _facts(*BUG, ended=Ended("COMPLETED", exit_code=0)),
    ("hardware-of-lost-node", "node-lost"): lambda: _facts(XID, ended=Ended("NODE_FAIL", nodes_down=("n1",))),
    ("node-lost", "log"): lambda: _facts(*BUG, ended=replace(FAILED, nodes_down=("n1",))),
    ("hardware-before-limit", "time-limit"): lambda: _facts(XID, ended=Ended("TIMEOUT"), progress=TRAINED),
    ("preempted", "log"): lambda: _facts(*BUG, ended=Ended("PREEMPTED")),
    ("cancelled", "log"): lambda: _facts(XID, ended=Ended("CANCELLED")),
    ("rank-death", "log"): lambda: _facts(*KILLED),
    ("log", "job-forgotten"): lambda: _facts(XID, INVALID, ended=Ended("GONE", exit_code=1), forgotten=True),
    ("job-forgotten", "exit-record"): lambda: _facts(
        INVALID, ended=Ended("GONE", exit_code=1), forgotten=True
    ),
    ("log", "requeued"): lambda: _facts(XID, ended=Ended("PENDING", requeued=True)),
    ("log", "exit-record"): lambda: _facts(*BUG),
    ("launch-failure", "exit-record"): lambda: _facts(
        ended=Ended("FAILED", "JobLaunchFailure", exit_signal=9)
    ),
    ("requeued", "exit-record"): lambda: _facts(ended=Ended("PENDING", exit_signal=15, requeued=True)),
    ("put-back", "companion-over"): lambda: _facts(
        "slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-01-01T00:00:00 ***",
        ended=Ended("GONE"),
        attempt=LIVED.ended_as(state="GONE", reason=UNWATCHED),
        gone=GONE,
    ),
    ("suspected", "nodes"): lambda: _facts(*BUG, ended=OURS, suspicion=HUNG, nodes=BAD),
    ("companion-over", "nodes"): lambda: _facts(
        gone=GONE, nodes=replace(BAD, nodes=("n0", "n1", "n2", "n3"))
    ),
    ("nodes", "left-as-asked"): lambda: _facts(ended=OURS, nodes=BAD, attempt=AT_ITS_LIMIT),
    ("left-as-asked", "told-inside"): lambda: _facts(near_limit=True, told_inside=INSIDE),
    ("statement", "exit-record"): lambda: _read(SILENT_NODE, ended=FAILED),
    ("told-inside", "worth-a-look"): lambda: _facts(told_inside=INSIDE, last_words=ODD),
}


@pytest.mark.parametrize("pair", ORDER, ids="-".join)
def test_the_order_of_the_rules_bears_weight(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """There are facts for which the diagnosis is another one where two rules change places."""
    names = [rule.name for rule in RULES]
    first, second = map(names.index, pair)
    assert first < second
    found = diagnose(ORDER[pair]())
    swapped = list(RULES)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    monkeypatch.setattr(rules, "RULES", tuple(swapped))

    assert diagnose(ORDER[pair]()) != found


@pytest.mark.parametrize("pair", ORDER, ids="-".join)
def test_a_rule_without_its_input_would_not_have_answered(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rule needs only saves asking it."""
    found = diagnose(ORDER[pair]())
    monkeypatch.setattr(rules, "RULES", tuple(replace(rule, needs=None) for rule in RULES))

    assert diagnose(ORDER[pair]()) == found


def test_every_rule_answers_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it some diagnosis would be another one: none stands there for nothing."""
    rare = (
        _facts(attempt=REQUEUED.ended_as(reason=LOST_TRACK)),
        _facts(attempt=LIVED.ended_as(state="REVOKED")),
        _facts(
            ended=Ended("COMPLETED"),
            given_up=(GivenUpTasks((2,), "user-code", "", "a mistake in the script"),),
        ),
        _facts("something odd", last_words=(Proof("job.log", 7, "something odd", ""),)),
        _facts("something odd", second_opinion=Opinion(FaultClass.NETWORK, retry=True)),
        _facts(*BUG, suspects={NODES[0]: "it fails more often than chance"}),
        _facts(ended=Ended("TIMEOUT")),
        _facts(ended=Ended("OUT_OF_MEMORY")),
        _facts(ended=None, attempt=None),
        _facts(*CUT_OFF, ended=None, attempt=None),
        _facts(ended=Ended("GONE")),
        _read(SICK_GPU),
        _read(CHECK),
        _read(*DRIVER),
        _read("Stalled ops:", "grad_12 [ready ranks: 0, 1, 2, 4]"),
        _read("GPU 0: PASS", "GPU 1: PASS", "GPU 2: FAIL", "GPU 3: PASS"),
        _facts(*BUG, resumed=ResumedCheckpoint("/ckpt/step-5", trained=True)),
        _facts(ended=Ended("CANCELLED"), attempt=replace(LIVED, cancel_intended=True)),
        _facts(ended=replace(FAILED, nodes_down=("n1",)), silent=("n1",)),
    )
    every = (*(facts() for facts in ORDER.values()), *rare)
    answers = [diagnose(facts) for facts in every]
    idle = []
    for rule in RULES[:-1]:
        rest = tuple(one for one in RULES if one is not rule)
        monkeypatch.setattr(rules, "RULES", rest)
        if all(_or_none(facts) == answer for facts, answer in zip(every, answers, strict=True)):
            idle.append(rule.name)

    assert idle == []


# ---- one judge


SUSPICIONS = (
    None,
    HUNG,
    suspicions.lost_suspicion(("n1",)),
    suspicions.slow_suspicion("n1", "slow"),
    suspicions.growth_suspicion("room"),
)
LOGS = ((), BUG, (XID,), (TIMED_OUT,), (*BUG, XID))


@pytest.mark.parametrize("lines", LOGS)
@pytest.mark.parametrize("suspicion", SUSPICIONS)
@pytest.mark.parametrize("nodes", [NodeFacts(), BAD])
@pytest.mark.parametrize("gone", [(), ("n2",)])
def test_the_same_facts_are_judged_alike_by_the_agent_and_by_the_supervisor(
    lines: tuple[str, ...], suspicion: Diagnosis | None, nodes: NodeFacts, gone: tuple[str, ...]
) -> None:
    """What only the supervisor knows of such an end (its journal, what others had said) makes no difference
    where it says nothing else.
    """
    seen = start_decision.StartFacts(
        1,
        NODES,
        "",
        1,
        0,
        1000.0,
        evidence=_evidence(*lines),
        topology=SEATS,
        facts=nodes,
        gone=gone,
        suspicion=suspicion,
    )
    ended = suspicion is not None
    told = replace(LIVED, end_intended=suspicion.title if suspicion else "", end_done=ended)
    outside = replace(
        start_decision.diagnosis_facts(seen, CATALOG), attempt=told, requeues=False, near_limit=False
    )

    assert diagnose(outside) == start_decision.diagnose_start(seen, CATALOG)


@pytest.mark.parametrize("lines", LOGS)
@pytest.mark.parametrize("code", [1, 137])
def test_what_the_supervisor_gathers_is_what_an_agent_would_have_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], code: int
) -> None:
    """Both fill the same facts: a launch that is over is told of alike from outside and from inside."""
    told: list[Facts] = []

    def judged(facts: Facts) -> Diagnosis:
        told.append(facts)
        return diagnose(facts)

    monkeypatch.setattr(assess, "diagnose", judged)
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.say(*lines)
    life.exit(code)
    while not told:
        life.live(1)
    facts = told[0]
    ended = facts.ended
    assert ended is not None
    seen = start_decision.StartFacts(
        1,
        facts.topology.nodes,
        "",
        ended.exit_code or 0,
        ended.exit_signal or 0,
        facts.now_s,
        evidence=tuple(facts.evidence),
        topology=facts.topology,
        progress=facts.progress,
        facts=facts.nodes,
        resumed=facts.resumed,
    )

    assert start_decision.diagnose_start(seen, facts.catalog) == diagnose(facts)


def test_a_live_run_is_judged_by_the_same_list() -> None:
    """A line and a check of a node are weighed as at an end: the check alone makes a live run suspect."""
    live = _facts(ended=None, attempt=None, nodes=BAD)

    assert diagnose(replace(live, nodes=NodeFacts())).signature == ""
    assert diagnose(live).signature == "check-gpu"


def _or_none(facts: Facts) -> Diagnosis | None:
    try:
        return diagnose(facts)
    except AssertionError:
        return None
