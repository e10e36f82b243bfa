"""When a drill moves, and what it does. (pure)

Conditions look at steps reached and states, never at the clock alone, so a slow machine makes a drill longer and not wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.supervisor.drill.terms import Hands, Move, Sight

__all__ = [
    "NO_NODE",
    "after",
    "asked",
    "at_step",
    "both",
    "controller",
    "crash",
    "crash_node",
    "drain",
    "fill_disk",
    "free_disk",
    "freeze",
    "ftrun_command",
    "held",
    "held_once",
    "held_twice",
    "in_state",
    "kill_agent",
    "kill_staging_daemons",
    "kill_supervisor",
    "lose_gpu",
    "lose_memory",
    "lose_memory_of",
    "mend_gpu",
    "new_attempt_saved",
    "node_of",
    "occupy",
    "on_attempt",
    "published",
    "saved",
    "saving",
    "scancel",
    "spare",
    "started",
    "struck",
    "thaw",
    "unsupervised",
    "vacate",
]

When = Callable[[Sight], bool]
STRANGERS = "--name=strangers"


# ---------------------------------------------------------------------------- conditions


def at_step(step: int, start: int = 1) -> When:
    """Training reached a step, in this start of the script or a later one."""
    return lambda sight: (sight.ledger.start, sight.ledger.step) >= (start, step)


def on_attempt(number: int) -> When:
    """This attempt (or a later one) is trained by."""
    return lambda sight: bool(sight.ledger.steps) and sight.ledger.steps[-1]["attempt"] >= number


def in_state(*states: str) -> When:
    """The run is in one of these states."""
    return lambda sight: sight.run.state.value in states


def after(seconds: float) -> When:
    """So long after the last move."""
    return lambda sight: sight.since_move_s >= seconds


def submitted(number: int) -> When:
    """So many attempts have been made."""
    return lambda sight: len(sight.run.attempts) >= number


def saving(sight: Sight, start: int = 1) -> bool:
    """Rank 0 is writing a checkpoint that is not in its place yet, beyond the first of this start."""
    begun = [line for line in sight.ledger.saving if line["start"] == start]
    done = [line for line in sight.ledger.saves if line["start"] == start]
    return len(begun) >= 2 and len(begun) > len(done)


def started(number: int) -> When:
    """All ranks of this start of the script are there, or a later one has begun; no step need have been made."""
    return lambda sight: any(line["start"] >= number for line in sight.ledger.ranks)


def saved(start: int) -> When:
    """This start, or a later one, has written a checkpoint."""
    return lambda sight: any(line["start"] >= start for line in sight.ledger.saves)


def unsupervised(sight: Sight) -> bool:
    """The supervisor is dead."""
    return not sight.supervised


def struck(sight: Sight) -> bool:
    """The trainer has hurt itself."""
    return bool(sight.ledger.hurts)


def new_attempt_saved(sight: Sight) -> bool:
    """The second attempt has written a checkpoint."""
    return any(line["attempt"] >= 2 for line in sight.ledger.saves)


def asked(sight: Sight) -> bool:
    """The run has left a request for the operator."""
    return any(request["step"] == "left" for request in sight.run.asked.values())


def held(words: str) -> When:
    """Slurm holds a node back for a reason of ftrun's with these words in it."""
    return lambda sight: any(r.startswith("ftrun:") and words in r for r in sight.reasons.values())


def published(step: int) -> When:
    """The staged checkpoint of this step is on disk."""
    return lambda sight: step in sight.published


def held_twice(step: int, *ranks: int) -> When:
    """What these ranks staged at this step is in the memory of two nodes, and not on disk yet."""

    def twice(sight: Sight) -> bool:
        nodes = [sight.ledger.node_of(rank, 1) for rank in ranks]
        return step not in sight.published and all(step in sight.copied.get(node, ()) for node in nodes)

    return twice


def held_once(step: int, *ranks: int) -> When:
    """What these ranks staged at this step is whole in the memory of their nodes, and not on disk yet."""

    def once(sight: Sight) -> bool:
        nodes = [sight.ledger.node_of(rank, 1) for rank in ranks]
        return step not in sight.published and all(step in sight.sealed.get(node, ()) for node in nodes)

    return once


def both(one: When, other: When) -> When:
    """Two conditions at once."""
    return lambda sight: one(sight) and other(sight)


# ---------------------------------------------------------------------------- acts

NO_NODE: Callable[[Sight], str] = lambda sight: ""  # noqa: E731 - a fault that hurts nobody in particular


def node_of(rank: int, start: int = 1) -> Callable[[Sight], str]:
    """The node on which this rank was placed in this start."""
    return lambda sight: sight.ledger.node_of(rank, start)


def spare(number: int) -> Callable[[Sight], str]:
    """A node of the present attempt that no start has used, counted from 0."""

    def find(sight: Sight) -> str:
        attempt = sight.run.attempt
        used = {str(line["node"]) for line in sight.ledger.ranks}
        left = [node for node in attempt.nodes if node not in used] if attempt is not None else []
        return left[number] if number < len(left) else ""

    return find


def occupy(nodes: int) -> Move:
    """Strangers take so many nodes, as soon as the training has begun."""
    words = (f"-N{nodes}", "--exclusive", f"--job-{STRANGERS[2:]}", "--output=/dev/null", "--wrap=sleep 900")
    return Move("strangers take the other nodes", at_step(1), lambda hands, _: hands.submit_plain(*words))


def vacate(when: When) -> Move:
    """The strangers leave."""
    return Move("the strangers leave", when, lambda hands, _: hands.scancel(STRANGERS))


def crash(rank: int, when: When, start: int = 1) -> Move:
    """The node of a rank loses power."""
    return crash_node(node_of(rank, start), when)


def crash_node(node: Callable[[Sight], str], when: When) -> Move:
    """A node loses power."""
    known = both(when, lambda sight: bool(node(sight)))
    return Move("a node loses power", known, lambda hands, sight: hands.crash(node(sight)), node)


def freeze(rank: int, when: When, start: int = 1) -> Move:
    """The node of a rank freezes."""
    node = node_of(rank, start)
    return Move("a node freezes", when, lambda hands, sight: hands.freeze(node(sight)), node)


def drain(rank: int, when: When) -> Move:
    """An administrator drains the node of a rank."""
    node = node_of(rank)
    return Move("an administrator drains a node", when, lambda hands, sight: hands.drain(node(sight)), node)


def thaw(rank: int, when: When, start: int = 1) -> Move:
    """The node of a rank comes back, with its old processes."""
    node = node_of(rank, start)
    return Move("the node thaws", when, lambda hands, sight: hands.mend(node(sight)))


def _scancel(hands: Hands, sight: Sight) -> None:
    assert sight.run.attempt is not None
    hands.scancel(sight.run.attempt.job)


def lose_memory(rank: int, when: When) -> Move:
    """The memory of a rank's node loses data, and nothing but a counter of that node says so."""
    return lose_memory_of(node_of(rank), when)


def lose_memory_of(node: Callable[[Sight], str], when: When) -> Move:
    """The same for any node."""
    return Move("memory loses data", when, lambda hands, sight: hands.lose_memory(node(sight)), node)


def lose_gpu(rank: int, when: When) -> Move:
    """The driver of a rank's node loses a GPU: whoever looks at the node finds it."""
    node = node_of(rank)
    return Move("a driver loses its GPU", when, lambda hands, sight: hands.lose_gpu(node(sight)), node)


def mend_gpu(rank: int, when: When) -> Move:
    """Somebody puts a new GPU into the node that the rank had first."""
    node = node_of(rank)
    return Move("the GPU is replaced", when, lambda hands, sight: hands.mend_gpu(node(sight)))


def scancel(when: When) -> Move:
    """The user cancels the present job."""
    return Move("the user says scancel", when, _scancel, NO_NODE)


def ftrun_command(says: str, *words: str, when: When, repeats: bool = False) -> Move:
    """A person or a timer runs ftrun; {run} stands for the run's id."""

    def act(hands: Hands, sight: Sight) -> None:
        hands.ftrun(*(word.replace("{run}", sight.run.id) for word in words))

    return Move(says, when, act, repeats=repeats)


def controller(up: bool, when: When) -> Move:
    """slurmctld ends, or comes back."""
    if up:
        return Move("slurmctld comes back", when, lambda hands, sight: hands.controller_up())
    return Move("slurmctld ends", when, lambda hands, sight: hands.controller_down(), NO_NODE)


def kill_supervisor(when: When) -> Move:
    """kill -9 to the supervisor."""
    return Move("the supervisor is killed", when, lambda hands, sight: hands.kill_supervisor())


def kill_staging_daemons(when: When, *, repeats: bool = False) -> Move:
    """kill -9 to the staging daemon of every node."""
    return Move(
        "the staging daemons are killed", when, lambda hands, _: hands.kill_staging_daemons(), repeats=repeats
    )


def fill_disk(when: When) -> Move:
    """The disk that is published to is full."""
    return Move("the disk is full", when, lambda hands, _: hands.fill_disk(), NO_NODE)


def free_disk(when: When) -> Move:
    """Somebody makes room on it."""
    return Move("there is room on the disk", when, lambda hands, _: hands.free_disk())


def kill_agent(when: When) -> Move:
    """kill -9 to the agent beside the script."""
    return Move("the agent is killed", when, lambda hands, sight: hands.kill_agent())
