"""Staged checkpoints: which node copies to which partner, and which set a start resumes from. (pure)

Partners. Each node copies to one other node and holds the copy of one other, so none holds more than one. A
leaf switch or block takes all its nodes down when it dies, so partners do not share one where possible. Nodes
sorted by leaf and rotated by the size of the largest leaf always meet another leaf as long as no leaf has
more than half of them; otherwise as few as possible meet their own. Where the topology is unknown, half-way
round the list is farthest from a neighbour in the rack. An existing copy is worth keeping: pairs whose nodes
are both still there stay, and only the rest is paired anew.

Sets. Each node reports the sealed parts in its memory: its own and copies of others. A set is *at hand* if
the part of each node of its start lies on some node that answers. From a published set a start reads what is
in memory there and the rest from disk, so only nodes whose ranks changed need data: the parts of the nodes
that they replace. An unpublished set is usable only if every node gets every part; that happens at once where
it is cheap, and otherwise only when publishing takes too long. Parts that no node vouched for (`proven`)
count only after their set is published, because only then their layout was verified.

Sets are ordered as all checkpoints are: the highest step, then the latest start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftrun.hooks.checkpoints import names as checkpoints_names
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.slurm.records import dataclass

CHEAP_BYTES = 2 << 30
CHEAP_TRANSFERS = 64
WAIT, NONE = "wait", "none"


def pair_nodes(
    nodes: Sequence[str],
    leaves: Mapping[str, Sequence[str]] | None = None,
    before: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Node -> the node that keeps its copy, for all `nodes`; {} for fewer than two.

    `leaves`: leaf switch or block -> its nodes, {} = unknown; `before`: the pairs so far.
    """
    names = tuple(dict.fromkeys(nodes))
    if len(names) < 2:
        return {}
    ours = frozenset(names)
    leaf_of = {node: leaf for leaf, members in (leaves or {}).items() for node in members}
    kept = {
        giver: taker
        for giver, taker in (before or {}).items()
        if giver in ours and taker in ours and giver != taker
    }
    if len(set(kept.values())) < len(kept):
        kept = {}
    givers = [node for node in names if node not in kept]
    taken = set(kept.values())
    takers = [node for node in names if node not in taken]
    found = kept | _turned(givers, takers, leaf_of)
    for own in [node for node, taker in found.items() if node == taker]:
        other = next(node for node in names if node != own)
        found[own], found[other] = found[other], own
    return {node: found[node] for node in names}


def _turned(givers: Sequence[str], takers: Sequence[str], leaf_of: Mapping[str, str]) -> dict[str, str]:
    """Pair givers with takers, two lists of one length; a node may be paired with itself."""
    count = len(givers)
    sizes = Counter(leaf_of.get(node, "") for node in givers)
    largest = max(sizes.values(), default=0)
    turn = largest if len(sizes) > 1 and largest < count else count // 2
    givers = sorted(givers, key=lambda node: leaf_of.get(node, ""))
    takers = sorted(takers, key=lambda node: leaf_of.get(node, ""))
    few = range(count) if count <= 64 else (turn,)
    candidates = dict.fromkeys((turn, *few))

    def clashes(by: int) -> tuple[int, int]:
        pairs = [(givers[at], takers[(at + by) % count]) for at in range(count)]
        same = sum(leaf_of.get(giver, giver) == leaf_of.get(taker, taker) for giver, taker in pairs)
        return sum(giver == taker for giver, taker in pairs), same

    if not count:
        return {}
    best = min(candidates, key=clashes)
    return {givers[at]: takers[(at + best) % count] for at in range(count)}


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part in the memory of node `at`; `node` wrote it. `sealed_s`: Unix seconds."""

    at: str
    node: str
    token: str
    name: str
    size_bytes: int
    proven: bool = True
    is_file: bool = False
    sealed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StagedSet:
    """One checkpoint. `at`: the nodes that hold each part, its own node first; `expected`: the nodes whose
    parts make it complete.
    """

    token: str
    name: str
    expected: tuple[str, ...]
    at: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]
    proven: bool
    is_file: bool
    sealed_s: float

    @property
    def step(self) -> int | None:
        """The step in its name."""
        return checkpoints_names.step_of(self.name)

    @property
    def is_at_hand(self) -> bool:
        """Every part is on some node that answers; for a set that is one file, one copy is enough."""
        return bool(self.expected) and (self.is_file or all(node in self.at for node in self.expected))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes whose parts make it complete; for a set that is one file, any one that is there."""
        return tuple(self.at)[:1] if self.is_file else self.expected


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """`give`: (holder, owner of the part, receiver); `need`: receiver -> owners of its parts; total bytes,
    and bytes to the node that gets most.
    """

    give: tuple[tuple[str, str, str], ...]
    need: Mapping[str, tuple[str, ...]]
    size_bytes: int
    most_bytes: int


def parse_parts(at: str, told: object) -> list[HeldPart]:
    """Parse the report of one node (`ftrun-hook restore --look`); malformed rows are skipped."""
    rows = told.get("parts") if isinstance(told, dict) else None
    found = []
    for row in rows if isinstance(rows, list) else ():
        match row:
            case [
                str(node),
                str(token),
                str(name),
                int(size),
                bool(proven),
                bool(is_file),
                float() | int() as at_s,
            ]:
                found.append(HeldPart(at, node, token, name, size, proven, is_file, float(at_s)))
    return found


def group_sets(held: Iterable[HeldPart], expected: Mapping[str, Sequence[str]]) -> list[StagedSet]:
    """The sets of these parts, newest first. `expected`: token -> the nodes of that start; sets of other
    starts are skipped.
    """
    groups: dict[tuple[str, str], list[HeldPart]] = {}
    for one in held:
        if one.token in expected and token_of(one.token) is not None:
            groups.setdefault((one.token, one.name), []).append(one)
    found = []
    for (token, name), parts in groups.items():
        at: dict[str, tuple[str, ...]] = {}
        for one in sorted(parts, key=lambda one: (one.node, one.at != one.node, one.at)):
            at[one.node] = (*at.get(one.node, ()), one.at)
        found.append(
            StagedSet(
                token,
                name,
                tuple(expected[token]),
                at,
                {one.node: one.size_bytes for one in parts},
                all(one.proven for one in parts),
                any(one.is_file for one in parts),
                max(one.sealed_s for one in parts),
            )
        )
    return sorted(found, key=_rank, reverse=True)


def _rank(one: StagedSet) -> tuple[int, tuple[int, int], float, str]:
    step = one.step
    return -1 if step is None else step, token_of(one.token) or (0, 0), one.sealed_s, one.name


def transfer_plan(one: StagedSet, active: Sequence[str], *, published: bool) -> TransferPlan | None:
    """The transfers that let a start on these nodes resume from the set; None if memory does not hold it (and
    it is not published).
    """
    if not published and not (one.is_at_hand and one.proven):
        return None
    wanted = _replacing(one, active) if published else dict.fromkeys(active, one.nodes)
    load: Counter[str] = Counter()
    give, need = [], {}
    for node in active:
        missing = [of for of in wanted.get(node, ()) if of in one.at and node not in one.at[of]]
        for of in missing:
            own = min(one.at[of], key=lambda at: (at not in active, load[at], at != of))
            load[own] += 1
            give.append((own, of, node))
        if missing:
            need[node] = tuple(missing)
    sizes = {node: sum(one.sizes[of] for of in missing) for node, missing in need.items()}
    return TransferPlan(tuple(give), need, sum(sizes.values()), max(sizes.values(), default=0))


def choose_set(
    sets: Sequence[StagedSet],
    active: Sequence[str],
    *,
    published: Collection[str],
    hopeful: Collection[StagedSet],
    last: bool,
) -> StagedSet | str:
    """The set to resume from, of `sets`, newest first; WAIT for a better one; NONE of them.

    `published`: names; `hopeful`: unpublished sets that may still be published; `last`: no more time to wait.
    """
    for one in sets:
        found = transfer_plan(one, active, published=one.name in published)
        if found is not None and (one.name in published or last or is_cheap(found)):
            return one
        if not last and one in hopeful:
            return WAIT
    return NONE


def is_cheap(wanted: TransferPlan) -> bool:
    """Cheap enough to be done at once."""
    return wanted.most_bytes <= CHEAP_BYTES and len(wanted.give) <= CHEAP_TRANSFERS


def _replacing(one: StagedSet, active: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The parts that each node takes over.

    Ranks follow the order of nodes, so all nodes behind a lost one may shift by one. If that is too many,
    only the new nodes take over parts.
    """
    if len(active) == len(one.expected):
        moved: dict[str, tuple[str, ...]] = {
            new: (old,) for new, old in zip(active, one.expected, strict=True) if new != old
        }
        if len(moved) <= CHEAP_TRANSFERS:
            return moved
    gone = [node for node in one.expected if node not in active]
    come = [node for node in active if node not in one.expected]
    return {new: (old,) for new, old in zip(come, gone, strict=False)}
