"""Which nodes of the allocation answer, and whether they are clean of earlier starts. (I/O)

`reach` runs one step over all nodes that Slurm still counts as the job's. It asks each node for its name and
sweeps it; a node that answered but was not swept is asked once more. A job of one node needs no step. A node
that Slurm already took from the job is lost without a question. A node that was found silent while the start
still lived gets no more time than the sweep of the others takes.

`ping_nodes` finds silent nodes as fast as is safe. A node is silent only if two independent signs say so:
- Two questions. The first goes to all nodes. A node that is silent a second after the last answer is asked
  again, directly from our own node and in small groups, because on a large job Slurm forwards a step from
  node to node and one dead node can cut off others. Both questions run side by side with their full time
  limits, since a loaded node may just be late.
- Or, faster, the first question and the node's kernel: the kernel refuses connections to slurmd at every look
  for longer than a restart of slurmd takes. With accelerators to detect, a restart takes seconds although the
  node is well. So where no spare could replace the node and its loss would cost the job, the limit is longer
  (`shut_s`). When slurmd listens again the agent asks the node anew, because srun has given up on it by then.

The agent that watches a live start (`silent_nodes`) sends no line, and stays on the roll call until its own
`judge` has decided on each missing node. Only time in which an answer would have been heard counts: the step
has begun, since our own node answers it, and srun has not given the node up. A node that srun gives up is asked
anew. Where Slurm refuses that step, it may have taken the node from the job, and is asked whether it did.

Only time in which the agent listens counts: while it is suspended with the job, or has no CPU, the nodes had
none either. The question is also a test of itself: our own node must answer each one. Otherwise the question
failed (controller gone, step table full), and nothing is known of any node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import field

from ftrun.slurm.client.cluster import Cluster, JobRow, JobState
from ftrun.slurm.client.errors import SlurmError, Unreachable
from ftrun.slurm.commands.node_queries import NodeQuery, QueryAnswers
from ftrun.slurm.commands.slurmd_ports import SlurmdPorts
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.commands.steps import InsideSteps
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.store.lease import Clock
from ftrun.supervisor.store.node_tools import RunOnThisNode, node_command, run_on_this_node
from ftrun.supervisor.telemetry.node_silence import PATIENCE_MAX_S, NodeSilence

LIMIT_S = 20.0
JUDGED_LIMIT_S = PATIENCE_MAX_S + 2.0
QUIET_S = 3.0
"""How long to wait after the last answer; srun itself needs 4 s to find a port closed."""

AGAIN_S = 1.0  # after the last answer; then missing nodes are asked a second time
AGAIN_QUIET_S = 2.0
DOORS_S = 0.3  # after the last answer; then the agent tests the slurmd of missing nodes
SHUT_S = 1.2  # a slurmd without devices to detect restarts within a second, and refuses connections meanwhile
SHUT_LONG_S = 8.0  # every slurmd restarts within this
LATER_THAN = 3.0  # or wait so many times what the slowest answer took
FLAT_NODES = 16
"""srun reaches so many nodes directly, whatever TreeWidth the site has (its default was 50 and is now 16)."""

DOUBTED_MAX = 64  # beyond that the fault is not one of single nodes
TICK_S = 0.1
TICK_MAX_S = 0.2  # a longer tick was not spent listening

UNSWEPT = "it could not be swept of what earlier starts left: no Python 3.9 there, or no answer in time"


@dataclass(frozen=True, slots=True)
class PingRequest:
    """One roll call: `line` runs on the `nodes` of `job` and of its companions (`spans`); `node` is our own.

    `quiet_s`: how long after the last answer to wait for a silent node; `again`: whether silent nodes are
    asked a second time. `lost` were found silent just now and get no time of their own. `doubted` is called
    once with the nodes that have answered while others are missing. `shut_s`: how long a slurmd may refuse
    connections. `judge`, if given, decides on a missing node: whether it is lost, None if it need not be
    waited for; its last argument are all missing nodes. `stop` ends the roll call early. `taken`: which of the
    nodes Slurm no longer gives to the job; asked where a step over missing nodes could not begin.
    """

    job: str
    nodes: tuple[str, ...]
    node: str
    line: str
    quiet_s: float = QUIET_S
    again: bool = True
    lost: tuple[str, ...] = ()
    doubted: Callable[[tuple[str, ...]], None] = lambda _: None
    shut_s: float = SHUT_S
    spans: tuple[Span, ...] = ()
    judge: Callable[[str, NodeSilence, tuple[str, ...]], bool | None] | None = None
    stop: Callable[[], bool] = lambda: False
    taken: Callable[[], frozenset[str]] = frozenset


def ping_nodes(steps: InsideSteps, clock: Clock, ask: PingRequest, alive: Callable[[], None]) -> QueryAnswers:
    """The nodes that answer, with their output. Raises Unreachable if even our own node does not answer, or
    srun cannot start.
    """
    roll = _RollCall(steps, clock, ask)
    try:
        return roll.call(alive)
    finally:
        roll.close()


class _Stopwatch:
    def __init__(self, clock: Clock) -> None:
        self._clock, self._at_s = clock, clock.mono_s()
        self.now_s = 0.0

    def tick(self) -> None:
        at_s = self._clock.mono_s()
        self.now_s += min(at_s - self._at_s, TICK_MAX_S)
        self._at_s = at_s


class _Listener:
    """A question, and the times of its answers; `node` is our own."""

    def __init__(self, question: NodeQuery, watch: _Stopwatch, node: str) -> None:
        self.question = question
        self._watch, self._node = watch, node
        self.began_s = watch.now_s
        self.answered_s: float | None = None  # our own node did: the step has begun
        self._count, self._last_s = 0, self.began_s
        self._over_s: float | None = None

    @property
    def end_s(self) -> float:
        """Until when an answer could be heard, with the pause before the next question."""
        return self._watch.now_s if self._over_s is None else min(self._watch.now_s, self._over_s + AGAIN_S)

    @property
    def is_refused(self) -> bool:
        """It is over, and not even our own node has answered: Slurm did not begin the step."""
        return self.question.over and self.answered_s is None

    @property
    def slowest_s(self) -> float:
        """What the slowest answer so far took."""
        return self._last_s - self.began_s

    def listen(self, wait_s: float) -> None:
        self.question.listen(wait_s)
        count = len(self.question.reached.answers)
        if count > self._count:
            self._count, self._last_s = count, self._watch.now_s
        if self.answered_s is None and self.answers(self._node):
            self.answered_s = self._watch.now_s
        if self.question.over and self._over_s is None:
            self._over_s = self._watch.now_s

    def answers(self, node: str) -> bool:
        return node in self.question.reached.answers

    def done(self, node: str) -> bool:
        return self.answers(node) and (self.question.over or node in self.question.reached.ended)

    def is_quiet(self, quiet_s: float, times: float = LATER_THAN) -> bool:
        """No answer for `quiet_s` after the last one, nor for `times` what the slowest answer took; or no
        more answers can come.
        """
        waited_s = self._watch.now_s - self._last_s
        return self.question.over or (self._count > 0 and waited_s > max(quiet_s, times * self.slowest_s))


class _RollCall:
    def __init__(self, steps: InsideSteps, clock: Clock, ask: PingRequest) -> None:
        self._steps, self._clock, self._ask = steps, clock, ask
        self._watch = _Stopwatch(clock)
        self._asked = [_Listener(steps.begin(ask.job, ask.nodes, ask.line), self._watch, ask.node)]
        self._taken: frozenset[str] = frozenset()
        self._refused = 0  # questions that Slurm refused, when it was last asked what it took
        self._doors: SlurmdPorts | None = None
        self._shut_since_s: dict[str, float] = {}
        self._came: list[tuple[int, int, bool]] = []
        self._missing, self._others_done = ask.nodes, False
        self._opened: tuple[str, ...] = ()  # their slurmd refused at the last look and listens now
        self._opened_s: dict[str, float] = {}  # when it last did so

    def call(self, alive: Callable[[], None]) -> QueryAnswers:
        """Listen until all nodes are decided."""
        while self._watch.now_s < (LIMIT_S if self._ask.judge is None else JUDGED_LIMIT_S):
            alive()
            self._listen()
            if self._ask.stop():
                break
            self._note_answers()
            missing = self._missing
            if self._ask.node in missing:
                if self._asked[0].question.over:
                    break
                continue
            missing = tuple(node for node in missing if node not in self._ask.lost)
            self._investigate(missing)
            given_up = [self._is_given_up(node) for node in missing]  # each is judged in each round
            if all(given_up) and self._others_done:
                break
        return self._result()

    def close(self) -> None:
        """Drop all questions."""
        for one in self._asked:
            one.question.let_go()
        if self._doors is not None:
            self._doors.close()

    def _listen(self) -> None:
        wait_s = TICK_S
        self._watch.tick()
        for one in self._asked:
            over = one.question.over
            one.listen(wait_s)
            wait_s = wait_s if over else 0.0
        if wait_s:  # no question is open any more, but slurmd ports are watched
            self._clock.sleep(wait_s)
        self._watch.tick()

    def _heard(self, node: str) -> bool:
        return any(one.answers(node) for one in self._asked)

    def _note_answers(self) -> None:
        """Who is missing, and whether all others have ended; anew only where something came."""
        came = [
            (len(one.question.reached.answers), len(one.question.reached.ended), one.question.over)
            for one in self._asked
        ]
        if came != self._came:
            self._came = came
            self._missing = tuple(node for node in self._ask.nodes if not self._heard(node))
            self._others_done = all(
                any(one.done(node) for one in self._asked) for node in self._ask.nodes if self._heard(node)
            )

    def _investigate(self, missing: tuple[str, ...]) -> None:
        first, ask = self._asked[0], self._ask
        self._note_shut(missing)
        self._note_taken()
        if not missing or len(missing) > DOUBTED_MAX or not first.is_quiet(DOORS_S, 1.0):
            return
        if self._doors is None:
            self._doors = self._steps.doors(missing)
            doubted = frozenset(missing)
            ask.doubted(tuple(node for node in ask.nodes if node not in doubted))
        if ask.again and len(self._asked) == 1 and first.is_quiet(AGAIN_S, 1.0):
            self._ask_again(missing)
        elif self._opened:
            self._ask_again(self._opened)
        elif ask.judge is not None and (dropped := tuple(n for n in missing if self._is_dropped(n))):
            self._ask_again(dropped)

    def _ask_again(self, nodes: tuple[str, ...]) -> None:
        for at in range(0, len(nodes), FLAT_NODES - 1):
            few = (self._ask.node, *nodes[at : at + FLAT_NODES - 1])
            question = self._steps.begin(self._ask.job, few, self._ask.line)
            self._asked.append(_Listener(question, self._watch, self._ask.node))

    def _note_taken(self) -> None:
        refused = sum(one.is_refused for one in self._asked[1:])
        if refused > self._refused:
            self._refused, self._taken = refused, self._ask.taken()

    def _note_shut(self, missing: tuple[str, ...]) -> None:
        refused = self._doors.refused() if self._doors is not None else frozenset()
        still = {node: self._shut_since_s.get(node, self._watch.now_s) for node in missing if node in refused}
        self._opened = tuple(node for node in missing if node in self._shut_since_s and node not in refused)
        self._opened_s |= dict.fromkeys(self._opened, self._watch.now_s)
        self._shut_since_s = still

    def _is_shut(self, node: str) -> bool:
        since_s = self._shut_since_s.get(node)
        return since_s is not None and self._watch.now_s - since_s >= self._ask.shut_s

    def _is_given_up(self, node: str) -> bool:
        """No need to wait for this missing node any longer."""
        if node in self._taken:
            return True
        if self._ask.judge is not None:
            return self._is_judged(node)
        if self._is_shut(node):
            return True
        if node in self._shut_since_s and self._ask.shut_s > SHUT_S:
            return False
        first, *again = self._asked
        if not first.is_quiet(self._ask.quiet_s):
            return False
        if self._missing_too_many():
            return True
        own = [one for one in again if node in one.question.nodes]
        return own[-1].is_quiet(AGAIN_QUIET_S) if own else not self._ask.again

    def _is_judged(self, node: str) -> bool:
        assert self._ask.judge is not None
        first = self._asked[0]
        if self._missing_too_many():
            return first.is_quiet(self._ask.quiet_s)
        own = self._direct(node)
        direct_s = _open_s(own) if own and own[-1].answered_s is not None else None
        if node in self._shut_since_s and not self._is_shut(node):
            direct_s = None  # its slurmd restarts, and srun gives it up
        silence = NodeSilence(
            _open_s([first, *own]), direct_s, first.slowest_s, since_s=self._watch.now_s - first.began_s
        )
        return self._ask.judge(node, silence, self._missing) is not False

    def _direct(self, node: str) -> list[_Listener]:
        """The questions to this node alone, since its slurmd began to listen."""
        since_s = self._opened_s.get(node, 0.0)
        return [one for one in self._asked[1:] if node in one.question.nodes and one.began_s >= since_s]

    def _is_dropped(self, node: str) -> bool:
        """srun has given up on each question to this node alone, so no answer to it would be heard."""
        own = self._direct(node)
        return bool(own) and all(
            one.question.over and self._watch.now_s - one.began_s >= AGAIN_S for one in own
        )

    def _missing_too_many(self) -> bool:
        return len(self._missing) > DOUBTED_MAX

    def _result(self) -> QueryAnswers:
        answers: dict[str, tuple[str, ...]] = {}
        for one in reversed(self._asked):  # output of the first question wins, where there is any
            answers |= {
                node: words
                for node, words in one.question.reached.answers.items()
                if words or node not in answers
            }
        for one in self._asked:
            known = {*answers, *self._ask.lost, *self._taken}
            if one.answers(self._ask.node) or (self._ask.judge is not None and one is not self._asked[0]):
                continue  # the judge has heeded it
            if one is self._asked[0] or any(
                n not in known and not self._is_shut(n) for n in one.question.nodes
            ):
                raise Unreachable(f"no answer even from {self._ask.node}: {one.question.reached.told}")
        return QueryAnswers(answers)


def _open_s(asked: Sequence[_Listener]) -> float:
    """For how long an answer to at least one of these questions could be heard."""
    open_s, until_s = 0.0, 0.0
    for one in asked:
        if one.answered_s is not None:
            open_s += max(0.0, one.end_s - max(one.answered_s, until_s))
            until_s = max(until_s, one.end_s)
    return open_s


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    """Which nodes answer.

    `answered` may take part in the next start; `silent` did not answer; `unfit` answered but may not take
    part, and why; `gone` are nodes of a companion that is over, with nothing bad known; `taken` are the silent
    ones that were not asked, because Slurm no longer gives them to any of the jobs. If `known` is False
    nothing was learnt, and `why` says why. `running`: Slurm says that the job runs. `shown`: it answered, and
    knows the job (True where it did not answer). `end_s`: when the time of
    the job or of one of its companions is up (Unix seconds, None = unknown).
    """

    answered: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    unfit: dict[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    known: bool = True
    running: bool = True
    shown: bool = True
    why: str = ""
    end_s: float | None = None


def query_nodes(
    cluster: Cluster,
    steps: InsideSteps,
    clock: Clock,
    sweep: PingRequest,
    *,
    alive: Callable[[], None] = lambda: None,
    own_node: RunOnThisNode = run_on_this_node,
) -> NodeAnswers:
    """Ask and sweep all nodes (`sweep.line`: see `sweep_line`). Never raises because Slurm does not answer: then
    `known` is False.
    """
    job, nodes = sweep.job, sweep.nodes
    live: tuple[JobRow, ...] = ()
    leaves: dict[str, str] = {}
    gone: frozenset[str] = frozenset()
    try:
        rows = cluster.jobs((job, *(span.job for span in sweep.spans)))
        row = rows.get(job)
        leaves = {one.job_id: _end_objection(cluster, one) for one in rows.values()}
        live = tuple(one for one in rows.values() if not leaves[one.job_id])
        gone = _ended_companion_nodes(cluster, sweep, live) if row is not None else gone
    except SlurmError as error:
        row, why, shown = None, error.message, True
    else:
        why, shown = "Slurm does not show the job", row is not None
    if row is not None and leaves[job]:
        return NodeAnswers(known=False, running=False, why=leaves[job])
    if len(nodes) == 1:
        return replace(_sweep_own_node(row, sweep, own_node), shown=shown)
    if row is None:
        return NodeAnswers(known=False, why=why, shown=shown)
    held = {node for one in live for node in one.nodes}
    there = tuple(node for node in nodes if node in held)
    if len(there) > FLAT_NODES:  # Slurm would reach others through a lost one
        there = tuple(node for node in there if node not in sweep.lost)
    if sweep.node not in there:
        return NodeAnswers(known=False, why=f"{sweep.node} is not among the job's nodes")
    again = len(there) > FLAT_NODES or sweep.quiet_s >= QUIET_S
    taken: set[str] = set()

    def note_taken() -> frozenset[str]:
        taken.update(_taken_meanwhile(cluster, live))
        return frozenset(taken)

    ask = replace(sweep, nodes=there, again=again, taken=note_taken)
    try:
        answers = dict(ping_nodes(steps, clock, ask, alive).answers)
        late = tuple(node for node in answers if sweep.line and not answers[node])
        if sweep.stop():
            return NodeAnswers(known=False, why="the start goes on")
        if len(there) - len(answers) + len(late) > DOUBTED_MAX:
            return NodeAnswers(
                known=False, why=f"{len(there) - len(answers) + len(late)} nodes did not answer in time"
            )
        answers |= _sweep_again(steps, clock, ask, late, alive)
        gone |= _ended_meanwhile(cluster, sweep, live, {*nodes} - {*answers} - gone)
        held -= taken
    except SlurmError as error:
        return NodeAnswers(known=False, why=error.message)
    stuck = {node: why for node, words in answers.items() if sweep.line and (why := unfit_reason(words))}
    return NodeAnswers(
        answered=tuple(node for node in nodes if node in answers),
        silent=tuple(node for node in nodes if node not in answers and node not in gone),
        unfit=stuck,
        gone=tuple(node for node in nodes if node in gone and node not in answers),
        taken=tuple(node for node in nodes if node not in held and node not in gone),
        end_s=min((end_s for one in live if (end_s := planned_end_s(one)) is not None), default=None),
    )


def _ended_companion_nodes(cluster: Cluster, sweep: PingRequest, live: tuple[JobRow, ...]) -> frozenset[str]:
    """The nodes of companions that are over, except those that Slurm does not hear: these were lost and ended
    their companion.
    """
    jobs = {row.job_id for row in live}
    found = [node for span in sweep.spans if span.job not in jobs for node in span.nodes]
    known = cluster.nodes(found) if found else {}
    return frozenset(node for node in found if node not in known or known[node].responding)


def _ended_meanwhile(
    cluster: Cluster, sweep: PingRequest, live: tuple[JobRow, ...], silent: set[str]
) -> frozenset[str]:
    """The nodes of companions that were running when Slurm was asked, did not answer, and are over by now.

    Raises SlurmError.
    """
    doubted = [row for row in live if row.job_id != sweep.job and row.comment and silent & {*row.nodes}]
    found = {one.job_id: one for row in doubted for one in cluster.find(row.comment)}
    still = tuple(row for row in live if found.get(row.job_id, row).state is JobState.RUNNING)
    return _ended_companion_nodes(cluster, sweep, still) if len(still) < len(live) else frozenset()


def _taken_meanwhile(cluster: Cluster, live: tuple[JobRow, ...]) -> frozenset[str]:
    """The nodes that Slurm took from these jobs, which run on without them; none where it does not say."""
    try:
        rows = cluster.jobs(tuple(row.job_id for row in live))
    except SlurmError:
        return frozenset()
    still = [(row, rows[row.job_id]) for row in live if row.job_id in rows]
    running = [(before, now) for before, now in still if now.state is JobState.RUNNING]
    return frozenset(node for before, now in running for node in {*before.nodes} - {*now.nodes})


def _end_objection(cluster: Cluster, row: JobRow) -> str:
    """Why the job will not go on; "" if it will. A preempted job has a grace time: it runs, but its end came
    nearer.

    An earlier end alone may also be a reservation that ends, or a person who shortened the job, so Slurm is
    asked for the reason. Raises SlurmError.
    """
    if row.state is not JobState.RUNNING:
        return f"Slurm calls the job {row.state.value}"
    if row.is_cut_short and (details := cluster.details(row.job_id)) is not None and details.is_preempted:
        return "Slurm ends the job before its time limit: its nodes are wanted for another"
    return ""


def planned_end_s(row: JobRow) -> float | None:
    """When Slurm will end the job, possibly before its limit."""
    return row.planned_end_s if row.is_cut_short else row.limit_end_s


def _sweep_again(
    steps: InsideSteps, clock: Clock, ask: PingRequest, late: tuple[str, ...], alive: Callable[[], None]
) -> dict[str, tuple[str, ...]]:
    """The answers of nodes that answered but were not swept, in small groups; an answer without output
    remains one. Raises Unreachable.
    """
    found: dict[str, tuple[str, ...]] = {}
    for first in range(0, len(late), FLAT_NODES - 1):
        few = tuple(dict.fromkeys((ask.node, *late[first : first + FLAT_NODES - 1])))
        once = replace(ask, nodes=few, quiet_s=AGAIN_QUIET_S, again=False, lost=(), doubted=lambda _: None)
        found |= {
            node: words for node, words in ping_nodes(steps, clock, once, alive).answers.items() if words
        }
    return found


def job_is_running(cluster: Cluster, job: str) -> bool | None:
    """Whether Slurm shows the job as running and not suspended; None if Slurm does not answer."""
    try:
        row = cluster.jobs((job,)).get(job)
    except SlurmError:
        return None
    return None if row is None else row.state is JobState.RUNNING


def _sweep_own_node(row: JobRow | None, sweep: PingRequest, own_node: RunOnThisNode) -> NodeAnswers:
    """The only node is our own; no need to ask Slurm."""
    words = own_node(sweep.line, sweep.job, sweep.node, LIMIT_S)
    if words is None:
        return NodeAnswers(known=False, why="what earlier starts left could not be swept in time")
    why = unfit_reason(words) if words else ""  # batch.sh itself ends the script's processes here
    stuck = {sweep.node: why} if why else {}
    return NodeAnswers(
        answered=sweep.nodes, unfit=stuck, end_s=planned_end_s(row) if row is not None else None
    )


def sweep_line(home: str, place: str, token: str, job: str) -> str:
    """The shell line by which a node kills what is left of starts before `token` and says whether a start may
    use it. `home` is $FTRUN_HOME, `place` the attempt's folder.
    """
    words = ["sweep", "--attempt-folder", place, "--token", token, "--job", job]
    return node_command(home, [*words, "--spare-check"])


def unfit_reason(words: Sequence[str]) -> str:
    """Why the node's sweep says that no start should use it, or that the sweep did not run, so ranks of an
    earlier start may still live there; "" = fit.
    """
    if not words:
        return UNSWEPT
    for line in words:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("unfit"):
            return str(told["unfit"])[:200]
        if isinstance(told, dict) and told.get("left"):
            return "processes of an earlier start cannot be ended"
    return ""
