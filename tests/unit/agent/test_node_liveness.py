"""Laws of the roll call: one silent answer is never enough, and two cost no more time than one needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.slurm.client.errors import Unreachable
from ftrun.slurm.commands.node_queries import QueryAnswers
from ftrun.slurm.commands.slurmd_ports import parse_slurmd_addresses
from ftrun.slurm.records import replace
from ftrun.supervisor.agent import node_liveness
from ftrun.supervisor.telemetry.node_silence import PATIENCE_S, NodeSilence, is_lost

NODES = tuple(f"n{number}" for number in range(4))
NEVER = 1e9
Takes = Callable[[str, int], float]  # (node, number of the question) -> seconds until it answers
Refuses = Callable[
    [str, float], bool
]  # (node, seconds since the roll call began) -> its slurmd does not listen


class _Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def mono_s(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class _Question:
    """Each node says one word when its time has come."""

    def __init__(self, world: _World, nodes: Sequence[str], number: int) -> None:
        self.nodes, self.over, self.reached = tuple(nodes), False, QueryAnswers()
        self._world, self._number, self._began_s = world, number, world.clock.at_s

    def listen(self, wait_s: float) -> None:
        if self.over:
            return
        self._world.clock.sleep(wait_s)
        waited_s = self._world.clock.at_s - self._began_s
        heard = [node for node in self.nodes if self._world.takes(node, self._number) <= waited_s]
        self.over = len(heard) == len(self.nodes) or waited_s >= self._world.gives_up_s
        if self._world.refuses_step(self._began_s - self._world.began_s) and self._number:
            heard, self.over = [], True
        self.reached = QueryAnswers(dict.fromkeys(heard, ("{}",)), ended=frozenset(heard))

    def let_go(self) -> None:
        self.over = True


class _World:
    """Steps that know when each node answers each question."""

    def __init__(self, takes: Takes, refuses: Refuses = lambda node, at_s: False) -> None:
        self.clock, self.takes, self._refuses = _Clock(), takes, refuses
        self.began_s, self.gives_up_s = self.clock.at_s, NEVER
        self.refuses_step: Callable[[float], bool] = lambda at_s: (
            False
        )  # Slurm begins no step over missing nodes then
        self.asked: list[tuple[str, ...]] = []
        self._nodes: tuple[str, ...] = ()

    def begin(self, job: str, nodes: Sequence[str], script: str) -> _Question:
        self.asked.append(tuple(nodes))
        return _Question(self, nodes, len(self.asked) - 1)

    def doors(self, nodes: Sequence[str]) -> _World:
        self._nodes = tuple(nodes)
        return self

    def refused(self) -> frozenset[str]:
        return frozenset(node for node in self._nodes if self._refuses(node, self.took_s))

    def close(self) -> None:
        self._nodes = ()

    @property
    def took_s(self) -> float:
        return self.clock.at_s - self.began_s

    def silent(self, alive: Callable[[], None] = lambda: None, **more: Any) -> tuple[str, ...]:
        ask = node_liveness.PingRequest("7", NODES, NODES[0], "true", **more)
        found = node_liveness.ping_nodes(cast("Any", self), cast("Any", self.clock), ask, alive)
        return tuple(node for node in NODES if node not in found.answers)


def _all_but(node: str, takes_s: float = NEVER) -> Takes:
    return lambda one, number: takes_s if one == node else 0.2


def test_who_answers_neither_of_two_questions_is_silent_and_both_run_side_by_side() -> None:
    """The second one begins a second after the last answer, and takes no time beyond the first one's."""
    world = _World(_all_but("n2"))

    assert world.silent() == ("n2",)
    assert world.asked == [NODES, ("n0", "n2")]
    assert node_liveness.QUIET_S <= world.took_s < node_liveness.QUIET_S + 1.0


def test_who_hears_only_the_second_question_is_there() -> None:
    """It sits behind a dead node, by whose way the first one came."""
    assert _World(lambda node, number: NEVER if (node, number) == ("n2", 0) else 0.2).silent() == ()


def test_a_node_is_silent_at_once_only_where_its_slurmd_refuses_for_longer_than_a_restart_takes() -> None:
    """Refused at every look for more than a second, it is lost before any question's time is up; a slurmd that was started anew answers."""
    gone = _World(_all_but("n2"), lambda node, at_s: node == "n2")
    assert gone.silent() == ("n2",)
    assert gone.took_s < 2.5

    restarted = _World(
        lambda node, number: NEVER if node == "n2" and number == 0 else 0.2, lambda node, at_s: at_s < 1.3
    )
    assert restarted.silent() == ()


def test_where_a_lost_node_costs_the_job_its_slurmd_has_time_to_start() -> None:
    """On a node with accelerators that takes seconds; whose kernel answers is not given up before, by no question; in the end it is."""
    restarted = _World(
        lambda node, number: NEVER if node == "n2" and number < 2 else 0.2, lambda node, at_s: at_s < 5.0
    )
    assert restarted.silent(shut_s=node_liveness.SHUT_LONG_S) == ()
    assert restarted.took_s < 6.0
    gone = _World(_all_but("n2"), lambda node, at_s: node == "n2")
    assert gone.silent(shut_s=node_liveness.SHUT_LONG_S) == ("n2",)
    assert gone.took_s < node_liveness.SHUT_LONG_S + 2.0


def test_time_in_which_nobody_listened_is_no_silence() -> None:
    """The job was suspended, and we with it, while two questions were under way: nobody is silent for the hours in between."""
    world = _World(
        lambda node, number: 3602.8 if (node, number) == ("n2", 0) else NEVER if node == "n2" else 0.2
    )
    stops = [3600.0]

    def alive() -> None:
        if world.took_s > 2.0 and stops:
            world.clock.sleep(stops.pop())

    assert world.silent(alive=alive) == ()
    assert not stops


def _lost(node: str, silence: NodeSilence, missing: tuple[str, ...]) -> bool:
    return is_lost(silence)


def test_time_in_which_srun_has_given_up_on_a_node_is_no_silence_of_it() -> None:
    """It is asked anew, so that its answer is heard; who answers nothing is lost some seconds later."""
    late = _World(lambda node, number: NEVER if node == "n2" and number < 3 else 0.2)
    late.gives_up_s = 4.0
    assert late.silent(judge=_lost) == ()
    assert len(late.asked) == 4
    gone = _World(_all_but("n2"))
    gone.gives_up_s = 4.0
    assert gone.silent(judge=_lost) == ("n2",)
    assert PATIENCE_S < gone.took_s < PATIENCE_S + 1.0


def test_a_node_that_slurm_takes_from_the_job_is_lost_at_once() -> None:
    """A step over it is refused from then on; while Slurm keeps it, that refusal proves nothing."""
    world = _World(_all_but("n2"))
    world.gives_up_s, world.refuses_step = 4.0, lambda at_s: at_s > 3.0
    assert world.silent(judge=_lost, taken=lambda: frozenset({"n2"})) == ("n2",)
    assert world.took_s < 6.0
    verdicts: list[bool] = []

    def judge(node: str, silence: NodeSilence, missing: tuple[str, ...]) -> bool:
        verdicts.append(is_lost(silence))
        return verdicts[-1]

    kept = _World(_all_but("n2"))
    kept.gives_up_s, kept.refuses_step = 4.0, lambda at_s: at_s > 3.0
    kept.silent(judge=judge)
    assert not any(verdicts)


def test_time_in_which_slurm_begins_no_step_is_no_silence_of_a_node() -> None:
    """The controller refuses steps for most of a minute's quarter; the node has the whole patience after that."""
    busy = _World(lambda node, number: 12.0 if node == "n2" and number == 0 else 0.5 if node == "n2" else 0.2)
    busy.refuses_step = lambda at_s: at_s < 11.0
    assert busy.silent(judge=_lost) == ()
    slow = _World(
        lambda node, number: 13.0 + 2.0 * (node == "n2") if number else NEVER if node == "n2" else 0.2
    )
    assert slow.silent(judge=_lost) == ()


def test_a_slurmd_that_restarts_loses_no_node_of_a_live_start() -> None:
    """Whatever else is silent: it has its time, and is asked anew when it listens."""
    world = _World(
        lambda node, number: NEVER if node == "n2" and number < 2 else 0.2, lambda node, at_s: at_s < 7.5
    )

    def judge(node: str, silence: NodeSilence, missing: tuple[str, ...]) -> bool:
        return is_lost(replace(silence, unwritten_s=NEVER))

    assert world.silent(judge=judge, shut_s=node_liveness.SHUT_LONG_S) == ()
    gone = _World(_all_but("n2"), lambda node, at_s: True)
    assert gone.silent(judge=judge, shut_s=node_liveness.SHUT_LONG_S) == ("n2",)


def test_who_was_found_silent_just_now_gets_no_time_of_its_own() -> None:
    """The others' answers are all that is waited for; if it answers meanwhile it is there."""
    world = _World(_all_but("n2"))
    assert world.silent(lost=("n2",)) == ("n2",)
    assert world.took_s < 0.5
    assert _World(_all_but("n2", 0.1)).silent(lost=("n2",)) == ()


@pytest.mark.parametrize("question", [0, 1])
def test_a_question_that_not_even_our_own_node_answers_proves_nothing(question: int) -> None:
    """A controller that is away makes no node silent."""
    world = _World(lambda node, number: NEVER if node == "n2" or (node, number) == ("n0", question) else 0.2)
    with pytest.raises(Unreachable):
        world.silent()


@settings(max_examples=120, deadline=None)
@given(
    takes=st.lists(st.floats(0.0, 12.0), min_size=8, max_size=8),
    opens_s=st.floats(0.0, 5.0),
)
def test_one_silent_answer_is_never_enough(takes: list[float], opens_s: float) -> None:
    """Whoever is called silent kept two questions waiting, each for its whole time, or one and had its slurmd refuse for longer than a restart takes."""
    world = _World(
        lambda node, number: takes[int(node[1:]) + 4 * min(number, 1)] if node != "n0" else 0.2,
        lambda node, at_s: at_s < opens_s,
    )
    for node in world.silent():
        first_s, second_s = takes[int(node[1:])], takes[int(node[1:]) + 4]
        refused = opens_s > node_liveness.SHUT_S
        assert first_s > (node_liveness.SHUT_S if refused else node_liveness.QUIET_S) - 0.01
        assert refused or second_s > node_liveness.AGAIN_QUIET_S - 0.01


def test_the_port_of_a_slurmd_is_told_only_where_it_is_not_the_usual_one() -> None:
    """One line for each node; what is no node is none."""
    text = "NodeName=a1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=a1 Version=22.05.8\nNodeName=a2 NodeAddr=10.0.0.2 Port=7003 \nNode a3 not found\n"

    assert parse_slurmd_addresses(text) == {"a1": ("10.0.0.1", 6818), "a2": ("10.0.0.2", 7003)}
