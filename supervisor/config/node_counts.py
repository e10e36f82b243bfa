"""The sizes at which an elastic run may go on: parse, check, calculate; and the pool of spares. (pure)

A size is the number of nodes that one start of the script uses. A model that spans several nodes can only
lose or gain whole *units*, the nodes of one data-parallel replica. So sizes are multiples of the unit, or
the ones that the user lists. The largest size is the one that the user asked Slurm for: the *full* size. A
global batch, if given, is kept at every size; a size that cannot keep it is refused at submission.

`ftrun sbatch` imports this module only where one of its settings is used, so it imports nothing heavy.
"""

from __future__ import annotations

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.errors import SettingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SIZES_MAX = 16_384
"""More nodes than that are a slip of the keyboard."""


class Sizes:
    """The sizes of a run, ascending, the last one full. `unit`: nodes of one data-parallel replica."""

    __slots__ = ("all", "unit")

    def __init__(self, sizes: Sequence[int], unit: int = 1) -> None:
        self.all = tuple(sizes)
        self.unit = unit

    @property
    def full(self) -> int:
        """The largest size: what the user asked for."""
        return self.all[-1]

    def at_most(self, nodes: int) -> int:
        """The largest size that so many nodes allow; 0 where there is none."""
        return max((size for size in self.all if size <= nodes), default=0)

    def without(self, aside: Collection[int]) -> Sizes:
        """These sizes less those that did not work. The full size is always kept."""
        return Sizes([size for size in self.all if size not in aside or size == self.full], self.unit)


class GlobalBatch:
    """The global batch: `whole` samples, in micro batches of `micro` on each replica.

    `replicas` is how many data-parallel replicas one unit of nodes holds.
    """

    __slots__ = ("micro", "replicas", "whole")

    def __init__(self, whole: int, micro: int, replicas: int) -> None:
        self.whole = whole
        self.micro = micro
        self.replicas = replicas

    def steps(self, size: int, unit: int) -> int:
        """Micro steps that each replica adds up at this size to keep the global batch; 0: impossible."""
        at_once = self.micro * self.replicas * (size // unit)
        return self.whole // at_once if at_once and self.whole % at_once == 0 else 0


def parse_sizes(said: str, listed: str) -> Sizes | None:
    """Parse `nodes` (MIN-MAX or MIN-MAX:UNIT) and `nodes-valid` (a list of numbers) into sizes; None if both
    are empty. Raises SettingError in one line.
    """
    if not said and not listed:
        return None
    least, most, unit = _span(said) if said else (1, SIZES_MAX, 1)
    if not listed:
        return Sizes(range(least, most + 1, unit), unit)
    sizes = sorted({_number("nodes-valid", word.strip()) for word in listed.split(",")})
    for size in sizes:
        if not least <= size <= most:
            raise SettingError(f"nodes-valid: {size} is not within nodes={said}")
        if size % unit:
            raise SettingError(f"nodes-valid: {size} is no multiple of the unit of {unit} nodes")
    if said and sizes[-1] != most:
        raise SettingError(f"nodes-valid: the full size, {most} of nodes={said}, is missing")
    return Sizes(sizes, unit)


def sizes_of_settings(chosen: Mapping[str, object]) -> Sizes | None:
    """The sizes of a run by its settings; None where it has but one. Raises SettingError."""
    return parse_sizes(str(chosen.get("nodes", "")), str(chosen.get("nodes-valid", "")))


def segment_size(chosen: Mapping[str, object]) -> int:
    """How many nodes in a row share a leaf switch or block, by the setting `unit`; 0 where none need to. Raises SettingError."""
    kind, colon, count = str(chosen.get("unit", "") or "node").partition(":")
    if kind == "node" and not colon:
        return 0
    if kind != "segment":
        raise SettingError(f"unit: {chosen['unit']!r} wants node, segment or segment:NODES")
    sizes = sizes_of_settings(chosen)
    size = _number("unit", count) if colon else sizes.unit if sizes is not None else 0
    if size < 2:
        raise SettingError(
            "unit: how many nodes make a segment is not known: --ft-unit=segment:NODES, or --ft-nodes=MIN-MAX:NODES"
        )
    if sizes is not None and (wrong := [one for one in sizes.all if one % size]):
        raise SettingError(
            f"unit: {_named(wrong)} nodes are no whole segments of {size}: --ft-nodes=MIN-MAX:{size}"
        )
    return size


def plan_batch(sizes: Sizes, whole: int, micro: int, per_node: int, replicas: int = 0) -> GlobalBatch | None:
    """Return how the global batch is kept at every size; None if none was given.

    `per_node` is how many ranks a node holds (its GPUs, else its tasks; 0 = unknown); `replicas` how many
    data-parallel replicas one unit holds, 0 = one if a unit is several nodes, else one for each rank. Raises
    SettingError with the sizes that work.
    """
    if not whole and not micro:
        return None
    if not whole or not micro:
        there, gone = ("global-batch", "micro-batch") if whole else ("micro-batch", "global-batch")
        raise SettingError(f"{there} wants {gone} beside it: one alone says nothing of the other")
    replicas = replicas or (1 if sizes.unit > 1 else per_node)
    if not replicas:
        raise SettingError(
            "global-batch: how many ranks a node holds is not known: say --ntasks-per-node, --gpus-per-node or --ft-replicas"
        )
    batch = GlobalBatch(whole, micro, replicas)
    wrong = [size for size in sizes.all if not batch.steps(size, sizes.unit)]
    if wrong:
        right = [str(size) for size in sizes.all if size not in wrong]
        works = f"these sizes work: --ft-nodes-valid={','.join(right)}" if right else "no size works"
        unit = "node" if sizes.unit == 1 else f"unit of {sizes.unit} nodes"
        raise SettingError(
            f"global-batch: {whole} cannot be dealt out by {micro} over {_named(wrong)} nodes"
            f" ({replicas} {'replica' if replicas == 1 else 'replicas'} in each {unit}); {works}"
        )
    return batch


def whole_units(
    active: Sequence[str], bad: Collection[str], unit: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (nodes whose unit is whole, in rank order; healthy neighbours of the bad ones, which become
    free).

    Units are counted in rank order: the first `unit` nodes are one, and so on.
    """
    stay: list[str] = []
    free: list[str] = []
    for start in range(0, len(active), unit):
        nodes = active[start : start + unit]
        well = [node for node in nodes if node not in bad]
        (stay if len(well) == unit else free).extend(well)
    return tuple(stay), tuple(free)


def _span(said: str) -> tuple[int, int, int]:
    """(least, most, unit) of MIN-MAX or MIN-MAX:UNIT."""
    span, colon, last = said.partition(":")
    first, dash, final = span.partition("-")
    if not dash:
        raise SettingError(f"nodes: {said!r} wants MIN-MAX or MIN-MAX:UNIT, such as 2-8 or 4-16:2")
    unit = _number("nodes", last.strip()) if colon else 1
    least, most = _number("nodes", first.strip()), _number("nodes", final.strip())
    if least > most:
        raise SettingError(f"nodes: {least} is more than {most}: {most}-{least}{colon}{last}")
    if most % unit:
        raise SettingError(f"nodes: {most} is no multiple of the unit of {unit} nodes")
    if least % unit:
        raise SettingError(
            f"nodes: {least} is no multiple of the unit of {unit} nodes: {-(-least // unit) * unit}-{most}:{unit}"
        )
    return least, most, unit


def _number(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= SIZES_MAX:
        raise SettingError(f"{key}: {text!r} is no number of nodes (1 to {SIZES_MAX})")
    return int(text)


def _named(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:4]] + (["..."] if len(numbers) > 4 else [])
    return ", ".join(shown)


_KINDS = ("reservation", "partition")


@dataclass(frozen=True, slots=True)
class Pool:
    """`kind` is reservation or partition."""

    kind: str
    name: str

    @property
    def option(self) -> str:
        """For sbatch."""
        return f"--{self.kind}={self.name}"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def parse_pool(said: str) -> Pool | None:
    """What the setting `pool` means; None where it is empty. Raises SettingError."""
    if not said:
        return None
    kind, colon, name = said.partition(":")
    if not colon or kind not in _KINDS or not name or any(sign in name for sign in ", \t\n="):
        raise SettingError(f"pool: {said!r} wants reservation:NAME or partition:NAME")
    return Pool(kind, name)
