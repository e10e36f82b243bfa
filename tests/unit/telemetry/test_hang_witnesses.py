"""Laws of what is certain of a hang, and of the warm-up: stopped ranks, ranks that are gone, peers that wait. (pure)"""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.model.types import HangState, HangVerdict
from ftrun.supervisor.telemetry import hang_rules, liveness, stack_samples
from ftrun.supervisor.telemetry.hang_rules import HangLimits
from ftrun.supervisor.telemetry.liveness import History, LivenessSample, Rank

WAITS = ["wait (distributed/distributed_c10d.py:4220)", "step (work/train.py:31)"]
WORKS = ["encode (work/train.py:77)", "step (work/train.py:30)"]
APART_S = 3.0


def _row(rank: int, **more: Any) -> dict[str, Any]:
    """A rank that waits in a collective, seen by py-spy, unless `more` says otherwise."""
    found = {"rank": str(rank), "pid": 100 + rank, "source": "py-spy", "digest": f"d{rank}", "moved": False, "top": WAITS,
             "state": "S", "stopped": False, "cpu_s": 0.0, "bytes": 0, "cpu_all_s": 1.0, "bytes_all": 5}  # fmt: skip
    return found | more


def _kernel(rank: int, *, busy: bool = False, **more: Any) -> dict[str, Any]:
    """The same rank where only the kernel tells of it; its place differs from look to look if it is busy."""
    seen: dict[str, Any] = {"source": "proc", "top": [], "moved": None if busy else False}
    return _row(rank, **seen, cpu_s=3.0 if busy else 0.0, state="R" if busy else "S") | more


def _tables(*rows: dict[str, Any], launchers: bool = True, **more: Any) -> dict[str, object]:
    """One node a rank; srun is on the first."""
    nodes: dict[str, object] = {}
    for at, row in enumerate(rows):
        told = {"ranks": [row], "apart_s": APART_S, "accelerators": {}, "at_s": 10.0}
        nodes[f"n{at}"] = told | {"launchers": ["srun"] if launchers and not at else []} | more
    return nodes


class Watched:
    """A start that made `steps`, one a second, and stands still from then on; samples are taken when wanted."""

    def __init__(self, steps: int = 20, limits: HangLimits | None = None) -> None:
        self.history, self.now_s, self.taken = History(), 100.0, 0
        self.limits = limits or HangLimits()
        self.before: dict[str, stack_samples.RankSample] = {}
        self.sight = LivenessSample(life="0.1", growth=0.0)
        for step in range(steps + 1):
            self.see(LivenessSample("0.1", steps_seen=step, growth=float(step), median_step_s=1.0))

    def see(self, sight: LivenessSample) -> None:
        self.now_s, self.sight = self.now_s + 1.0, sight
        self.history = liveness.observe(self.history, sight, self.now_s)

    def decided_after_s(
        self, tables: Any, within_s: float, took_s: int = 4
    ) -> tuple[float | None, str, tuple[str, ...]]:
        """When it is held to hang (None: not within so long), why, and who is behind. `tables(number)` is the answer of the nodes."""
        began_s, due_s = self.now_s, None
        while self.now_s - began_s < within_s:
            self.see(self.sight)
            if due_s is not None and self.now_s >= due_s:
                due_s, self.taken = None, self.taken + 1
                stacks, activity, self.before = stack_samples.stack_sample(
                    tables(self.taken), self.before, self.taken
                )
                seen = LivenessSample(
                    **{
                        name: getattr(self.sight, name)
                        for name in ("life", "steps_seen", "growth", "median_step_s", "ranks")
                    },
                    stacks=stacks,
                    activity=activity,
                )
                self.history = liveness.observe(self.history, seen, self.now_s)
            verdict = hang_rules.hang_verdict(self.history, self.now_s, self.limits)
            if verdict.state is HangState.HUNG:
                return self.now_s - began_s, verdict.reason, verdict.behind
            if verdict.wants_stacks and due_s is None:
                due_s = self.now_s + took_s
        return None, "", ()


# ---- stopped ranks


@pytest.mark.parametrize("rest", [_row, _kernel])
def test_a_stopped_rank_is_found_within_half_a_minute_and_named_with_its_node(rest: Any) -> None:
    """It beats no more and answers nobody, so nothing else is known of it. Its node is blamed by that name."""
    stopped = _kernel(1, state="T", stopped=True)
    after_s, reason, behind = Watched().decided_after_s(
        lambda _: _tables(rest(0), stopped, rest(2), rest(3)), 60
    )

    assert after_s is not None
    assert after_s <= 30.0
    assert behind == ("rank 1 (n1)",)
    assert "rank 1 is stopped" in reason
    verdict = HangVerdict(HangState.HUNG, after_s, 15.0, reason, behind)
    assert suspicions.hang_suspicion(verdict, ("n0", "n1", "n2", "n3")).nodes == ("n1",)


def test_a_run_that_is_stopped_as_a_whole_was_suspended() -> None:
    """By a person or a checkpointer: the usual rules apply, in their usual time."""
    stopped = [_kernel(rank, state="T", stopped=True) for rank in range(4)]
    assert Watched().decided_after_s(lambda _: _tables(*stopped), 250)[0] is None


def test_a_rank_that_steps_on_while_another_is_stopped_is_no_hang() -> None:
    watched = Watched()
    tables = _tables(_row(0), _kernel(1, state="T", stopped=True))
    for step in range(21, 80):
        watched.see(LivenessSample("0.1", steps_seen=step, growth=float(step), median_step_s=1.0))
        stacks, activity, watched.before = stack_samples.stack_sample(tables, watched.before, step)
        watched.history = liveness.observe(
            watched.history,
            LivenessSample("0.1", steps_seen=step, growth=float(step), stacks=stacks, activity=activity),
            watched.now_s,
        )
        assert (
            hang_rules.hang_verdict(watched.history, watched.now_s, watched.limits).state is HangState.HEALTHY
        )


def test_a_rank_that_was_woken_is_stopped_no_more() -> None:
    watched = Watched()
    stacks, _, seen = stack_samples.stack_sample(_tables(_row(0), _kernel(1, stopped=True)), {}, 1)
    assert stacks.stopped == (1,)
    stacks, _, _ = stack_samples.stack_sample(_tables(_row(0), _kernel(1)), seen, 2)
    assert stacks.stopped == ()
    assert watched.history.witness.stopped == ()


# ---- the warm-up counts steps


@pytest.mark.parametrize("looks", [1, 2, 4])
def test_the_warm_up_ends_with_the_fifth_step_however_few_looks_saw_them(looks: int) -> None:
    """Steps that are quicker than the looks, or held back by a buffer, are steps."""
    watched = Watched(0)
    for look in range(1, looks + 1):
        steps = 21 * look // looks
        watched.see(LivenessSample("0.1", steps_seen=steps, growth=float(look), median_step_s=0.2))
    after_s, _, _ = watched.decided_after_s(lambda _: _tables(_row(0), _row(1)), 400)
    assert after_s is not None
    assert after_s < 120.0


def test_four_steps_are_a_warm_up() -> None:
    watched = Watched(0)
    watched.see(LivenessSample("0.1", steps_seen=4, growth=1.0, median_step_s=0.2))
    assert watched.decided_after_s(lambda _: _tables(_row(0), _row(1)), 400)[0] is None


@pytest.mark.parametrize("begins", [True, False])
def test_steps_before_the_first_look_count_only_for_who_saw_the_start_begin(begins: bool) -> None:
    """On a busy machine the agent's first look may come late; a supervisor that takes over learns anew."""
    watched = Watched(0)
    watched.history = History()
    watched.see(LivenessSample("0.2", from_begin=begins, steps_seen=21, growth=1.0, median_step_s=0.2))
    found, _, _ = watched.decided_after_s(lambda _: _tables(_row(0), _row(1)), 400)
    assert (found is not None) is begins


@pytest.mark.parametrize("step", [None, 500])
def test_beats_of_many_ranks_are_not_steps_of_one(step: int | None) -> None:
    """Eight ranks that beat once have made one step."""

    def ranks(n: int) -> tuple[Rank, ...]:
        return tuple(Rank(rank, "n0", None if step is None else step + n, n) for rank in range(8))

    watched = Watched(0)
    for n in (1, 2):
        watched.see(LivenessSample("0.1", ranks=ranks(n), growth=float(n)))
    assert watched.history.moves.steps == 2
    watched.see(LivenessSample("0.1", ranks=ranks(7), growth=3.0))
    assert (watched.history.moves.steps, watched.history.moves.count) == (7, 3)


# ---- peers that wait


SPIN = {"cpu_s": 3.0, "state": "R"}


@pytest.mark.parametrize(
    ("peers", "spins", "least_s"),
    [
        (_row, lambda at: _row(1, top=WORKS, cpu_all_s=9.0 * at, **SPIN), 1800.0),  # in one call into C
        (_kernel, lambda at: _kernel(1, busy=True, digest=f"x{at}", cpu_all_s=9.0 * at), 3600.0),  # without its lock
        (_row, lambda at: _kernel(1, busy=True, digest=f"x{at}", cpu_all_s=9.0 * at), 1800.0),  # in the kernel
    ],
)  # fmt: skip
def test_a_rank_that_only_spins_is_found_by_the_peers_that_wait_for_it(
    peers: Any, spins: Any, least_s: float
) -> None:
    """After hang-max, or twice that where nobody's frames are known: so long no healthy rank 0 computes alone without
    moving, reading, writing, or an accelerator.
    """
    after_s, reason, behind = Watched().decided_after_s(
        lambda at: _tables(peers(0), spins(at), peers(2), peers(3)), 2 * least_s
    )
    assert after_s is not None
    assert least_s <= after_s <= least_s + 300.0
    assert "the others wait for ranks that do nothing but use their processors" in reason
    assert behind == ("rank 1 (n1)",)


@pytest.mark.parametrize(
    "works",
    [
        lambda at: _row(1, top=WORKS, digest=f"m{at}", moved=True, cpu_all_s=9.0 * at, **SPIN),  # its stack moves
        lambda at: _kernel(1, busy=True, bytes=10**7, bytes_all=10**8 * at, cpu_all_s=9.0 * at),  # it reads
        lambda at: _kernel(1, busy=True, state="D"),
    ],
)  # fmt: skip
def test_a_rank_0_that_evaluates_alone_is_left_alone(works: Any) -> None:
    assert (
        Watched().decided_after_s(lambda at: _tables(_row(0), works(at), _row(2), _row(3)), 9000)[0] is None
    )


def test_what_accelerators_of_another_maker_do_is_not_known_and_a_rank_may_use_one() -> None:
    shown = {"rocm-smi": ["device,use\ncard0,99"]}

    def tables(at: int) -> dict[str, object]:
        return _tables(_row(0), _kernel(1, busy=True, cpu_all_s=9.0 * at), _row(2), accelerators=shown)

    assert Watched().decided_after_s(tables, 9000)[0] is None


def test_half_that_work_wait_for_nobody() -> None:
    rows = [_row(0), *(_kernel(rank, busy=True) for rank in (1, 2))]
    assert Watched().decided_after_s(lambda _: _tables(*rows), 9000)[0] is None


# ---- ranks that are gone


GONE = {"n0": {"ranks": [], "launchers": ["srun"]}, "n1": {"ranks": [], "launchers": []}}


def test_a_start_whose_ranks_are_gone_and_whose_srun_waits_for_them_is_ended() -> None:
    """slurmstepd died with them, and srun hears nothing."""
    after_s, reason, _ = Watched().decided_after_s(lambda _: GONE, 900)
    assert after_s is not None
    assert 300.0 <= after_s <= 330.0
    assert "no rank is left on any node" in reason


@pytest.mark.parametrize(
    "tables",
    [
        {**GONE, "n1": None},  # a node that does not answer
        {**GONE, "n0": {"ranks": [], "launchers": []}},  # the script does something else
        {**GONE, "n1": {"ranks": [_row(1)], "launchers": []}},
        {},
    ],
)  # fmt: skip
def test_where_a_rank_may_be_left_nothing_is_ended_for_that(tables: dict[str, object]) -> None:
    assert "no rank is left" not in Watched().decided_after_s(lambda _: tables, 900)[1]


def test_a_script_that_never_made_a_step_may_have_none_yet() -> None:
    assert Watched(0).decided_after_s(lambda _: GONE, 900)[0] is None
