"""Variables that lead the compile caches of frameworks to a run's folder on its node. (I/O)

How it thinks. A variable is set only where the user set neither it nor one that decides the same: who chose a place of their own keeps it. What is set
names a folder, or switches on what newer releases do by themselves. A cache that has given wrong results is not switched on unless it was asked for, and
XLA_FLAGS is left alone: an option that a release does not know ends the process, and JAX itself leads XLA's own caches into its folder.

`EXPORTS` is what batch.sh sets (setting `caches`), `LEFT` what was weighed and left alone. `ftrun sbatch` reads this module, so it
imports next to nothing.

What lies in the compile caches of a run, as its folder tells: packs by class of nodes, and the reports of the nodes.
How it thinks. The packs say what is in them (`hooks.compile_cache.packs`), so only their headers are read. What became of it on the nodes is in the reports
that they leave with the attempts; those of the last launch that has any say how warm its start was. Clearing removes the packs and counts up a
number that every node compares: one that holds entries of before throws them away, and a pack that comes late is not believed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ftrun.hooks.compile_cache.packs import Damaged, kind_of, open_pack, pack_names
from ftrun.slurm.records import dataclass
from ftrun.supervisor.config import home
from ftrun.supervisor.store import node_reports
from ftrun.supervisor.store import run_dir as store_run_dir

__all__ = [
    "EXPORTS",
    "FOLDER",
    "LEFT",
    "Book",
    "Export",
    "NodeClass",
    "Share",
    "Warm",
    "clear",
    "facts",
    "lines",
    "read",
]


FOLDER = "ftrun-{uid}/cache-"
"""How the folder of a run on its nodes begins, below `cache-base`: the user's own folder, and in it the run's. batch.sh knows the number of the user."""

TORCH = "docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html"
TRITON = "github.com/triton-lang/triton, README: tips for hacking"
JAX = "docs.jax.dev/en/latest/persistent_compilation_cache.html"
MINDSPORE = "www.mindspore.cn/docs/en/master/api_python/env_var_list.html"
CANN = "www.hiascend.com/document, CANN: maintenref/envvar"


class Export:
    """One variable that is set where neither it nor any of `aliases` is: value ({caches} is the folder), which settings, where documented, why."""

    __slots__ = ("aliases", "name", "settings", "source", "value", "why")

    def __init__(
        self,
        name: str,
        value: str,
        source: str,
        why: str,
        *,
        aliases: tuple[str, ...] = (),
        settings: tuple[str, ...] = ("auto", "all"),
    ) -> None:
        self.name = name
        self.value = value
        self.aliases = aliases
        self.settings = settings
        self.source = source
        self.why = why


EXPORTS = (
    Export(
        "FTRUN_CACHE_DIR",
        "{caches}",
        "this page",
        "the folder itself, for caches of your own; those stay on their node",
    ),
    Export(
        "TORCHINDUCTOR_CACHE_DIR",
        "{caches}/inductor",
        TORCH,
        "the default is a folder in /tmp, which another node does not have",
    ),
    Export("TORCHINDUCTOR_FX_GRAPH_CACHE", "1", TORCH, "the default of newer releases"),
    Export(
        "TRITON_CACHE_DIR",
        "{caches}/triton",
        TRITON,
        "the default lies in the home folder, which all nodes of a job would write into at once",
        aliases=("TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR"),
    ),
    Export("JAX_COMPILATION_CACHE_DIR", "{caches}/jax", JAX, "JAX keeps nothing unless it is told where"),
    Export(
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "0",
        JAX,
        "the default, 1, leaves out the many small programs of a start",
        aliases=("JAX_COMPILATION_CACHE_DIR",),
    ),
    Export(
        "ASCEND_CACHE_PATH",
        "{caches}/ascend",
        CANN,
        "the operators that CANN compiled, for PyTorch, TensorFlow and MindSpore on NPUs; set only where the first node has NPUs",
        aliases=("ASCEND_WORK_PATH",),
    ),
    Export(
        "MS_COMPILER_CACHE_ENABLE",
        "1",
        MINDSPORE,
        "MindSpore warns of it itself: its names do not stand for all that the graph depends on",
        aliases=("MS_COMPILER_CACHE_PATH",),
        settings=("all",),
    ),
    Export(
        "MS_COMPILER_CACHE_PATH",
        "{caches}/mindspore",
        MINDSPORE,
        "the default is the working folder",
        aliases=("MS_COMPILER_CACHE_ENABLE",),
        settings=("all",),
    ),
)

LEFT = (
    (
        "XLA_FLAGS",
        "an option that a release does not know ends the process at its start; JAX hands the options for XLA's caches to the compiler itself",
    ),
    (
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES",
        "by default results of autotuning on GPUs, in JAX's folder, written by the first process; the other kind, a file of kernels, is no file for several processes",
    ),
    (
        "CUDA_CACHE_PATH",
        "holds what the driver compiles for GPUs newer than the program, which training frameworks seldom need",
    ),
    (
        "TORCHINDUCTOR_AUTOGRAD_CACHE",
        "on by default since PyTorch 2.6, and an experiment before; it lies in the folder of the graphs",
    ),
    ("ASCEND_MAX_OP_CACHE_SIZE", "500 MB by default, and CANN keeps it itself"),
)


def lines(setting: str) -> str:
    """What batch.sh reads: `NAME[,ALIAS...]=VALUE` by lines, `{caches}` to be filled; "" for `never`."""
    told = (one for one in EXPORTS if setting in one.settings)
    return "\n".join(f"{','.join((one.name, *one.aliases))}={one.value}" for one in told)


def facts(kept: Mapping[str, Any], shape: str) -> dict[str, str]:
    """What the submitted file says of caches: nothing where no start can follow, in arrays and heterogeneous jobs, and in contexts of older versions.

    `caches`: the limit in bytes and the folder on the node; `cache_exports`: see `lines`.
    """
    chosen = kept["settings"]
    setting = chosen.get("caches", "never")
    if (
        setting == "never"
        or shape != "single"
        or chosen["observe"]
        or not chosen["retries"]
        or not kept.get("cache_name")
    ):
        return {}
    from ftrun.hooks.runtime.formats import bytes_of

    base = str(chosen["cache-base"]).rstrip("/") or "/"
    if not base.startswith("/") or "\n" in base:
        return {}
    return {
        "caches": f"{bytes_of(str(chosen['cache-limit']))} {base.rstrip('/')}/{FOLDER}{kept['cache_name']}",
        "cache_exports": lines(setting),
    }


PLACE = "caches"


@dataclass(frozen=True, slots=True)
class Share:
    """What one framework has in the packs of a class: its folder's name, entries, bytes on a node, bytes in the packs."""

    kind: str
    entries: int
    size_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that share: what they have in common, versions that wrote last, the packs, and which of these are damaged."""

    name: str
    facts: Mapping[str, str]
    writers: Mapping[str, str]
    packs: int
    damaged: tuple[str, ...]
    shares: tuple[Share, ...]
    written_s: float | None


@dataclass(frozen=True, slots=True)
class Warm:
    """How one start found its caches: entries and bytes that were filled in on a node, how many of them were read (None: nobody can tell), seconds."""

    attempt: int
    launch: int
    node: str
    filled: int
    filled_bytes: int
    hits: int | None
    fill_s: float | None
    trouble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Book:
    """All of a run: its folder on the nodes ("" where its starts are told of none), the limit, why it was refused, classes, the last starts."""

    local: str
    limit_bytes: int
    refused: str
    classes: tuple[NodeClass, ...]
    warm: tuple[Warm, ...]

    @property
    def stored_bytes(self) -> int:
        """What the packs take in the run's folder."""
        return sum(share.stored_bytes for one in self.classes for share in one.shares)


def read(run_dir: str, attempts: int) -> Book:
    """The caches of the run in `run_dir`, which had so many attempts. What cannot be read is left out."""
    place = os.path.join(run_dir, PLACE)
    words = _text(os.path.join(place, "where")).rstrip("\n").partition(" ")
    told = node_reports.json_of(os.path.join(place, "refused"))
    refused = str(told.get("why", "")) if isinstance(told, dict) else ""
    classes = tuple(
        _class_of(place, name) for name in _listed(place) if os.path.isdir(os.path.join(place, name))
    )
    limit_bytes = int(words[0]) if words[0].isdigit() else 0
    return Book(words[2], limit_bytes, refused, classes, tuple(_last_starts(run_dir, attempts)))


def clear(run_dir: str) -> int:
    """Remove all packs, and let no node keep or give what it holds of them. The bytes that were freed. Raises OSError."""
    place = os.path.join(run_dir, PLACE)
    if not os.path.isdir(place):
        return 0
    before = _text(os.path.join(place, "epoch")).strip()
    number = (int(before) if before.isdigit() else 0) + 1
    home.write_atomically(os.path.join(place, "epoch"), f"{number}\n".encode())
    freed = 0
    for name in _listed(place):
        for pack in pack_names(os.path.join(place, name)) if os.path.isdir(os.path.join(place, name)) else ():
            path = os.path.join(place, name, pack)
            freed += os.stat(path).st_size
            os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(place, "refused"))
    return freed


def _class_of(place: str, name: str) -> NodeClass:
    facts: Mapping[str, str] = {}
    writers: Mapping[str, str] = {}
    damaged, written_s = [], None
    shares: dict[str, list[int]] = {}
    seen: set[str] = set()
    packs = pack_names(os.path.join(place, name))
    for pack in packs:
        try:
            with open_pack(os.path.join(place, name), pack) as (_, header):
                pass
        except (Damaged, OSError) as error:
            damaged.append(f"{pack}: {error}")
            continue
        facts, writers = facts or header.facts, {**header.writers, **writers}
        written_s = max(written_s or 0.0, header.made_s)
        for entry in header.entries:
            kind = kind_of(entry.path)
            row = shares.setdefault(kind.folder if kind else "other", [0, 0, 0])
            row[2] += entry.stored
            if entry.path not in seen:
                seen.add(entry.path)
                row[0] += 1
                row[1] += entry.size
    told = tuple(Share(kind, *numbers) for kind, numbers in sorted(shares.items()))
    return NodeClass(name, facts, writers, len(packs), tuple(damaged), told, written_s)


def _last_starts(run_dir: str, attempts: int) -> Iterator[Warm]:
    """The reports of the last launch that left any, by node."""
    for attempt in range(attempts, 0, -1):
        folder = node_reports.folder(run_dir, attempt)
        named = [
            name.split(".", 2)
            for name in _listed(folder)
            if name.startswith("caches.") and name.endswith(".json")
        ]
        launches = [int(parts[1]) for parts in named if len(parts) == 3 and parts[1].isdigit()]
        if not launches:
            continue
        for _, launch, rest in sorted(parts for parts in named if parts[1] == str(max(launches))):
            table = node_reports.json_of(os.path.join(folder, f"caches.{launch}.{rest}"))
            if isinstance(table, dict):
                yield _warm(attempt, int(launch), rest.removesuffix(".json"), table)
        return


def _warm(attempt: int, launch: int, node: str, table: Mapping[str, Any]) -> Warm:
    def number(name: str) -> int | None:
        value = table.get(name)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    seconds, trouble = table.get("fill_s"), table.get("trouble")
    return Warm(
        attempt,
        launch,
        node,
        number("filled") or 0,
        number("filled_bytes") or 0,
        number("hits"),
        float(seconds) if isinstance(seconds, (int, float)) else None,
        tuple(str(line)[:200] for line in trouble) if isinstance(trouble, list) else (),
    )


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    content = store_run_dir.content(path, 1 << 16)
    return content.decode("utf-8", "surrogateescape") if content is not None else ""
