"""`safetensors`: one file, or a folder of them, with or without an index, as Hugging Face's save_pretrained writes it. (pure)

How it thinks. A shard says in its name how many there are (`model-00002-of-00004.safetensors`), and the index, which is written after all
shards, names each of them. Where both are there the index is right: shards of an earlier save with another count may lie beside it.

Sources: huggingface_hub/serialization and transformers/modeling_utils.py (names, index); the same names are used for `.bin` shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints import names
from ftrun.hooks.checkpoints.model import TORN, Damaged
from ftrun.hooks.layouts import Expected, Layout, Need
from ftrun.hooks.layouts.inner import loaded

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT", "shards"]

SHARD = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<end>\.safetensors|\.bin)")
STEP = re.compile(r"(?:step|iter|epoch|checkpoint|ckpt)[a-z_=.-]*[0-9]", re.IGNORECASE)
INDEX = ".index.json"
ENDINGS = (".safetensors", ".safetensors" + INDEX)
INDEX_BYTES_MAX = 64 << 20


def recognise(place: Place) -> bool:
    """A file of that ending, also an empty one; a folder with one, or with the index of some, unless it is a folder of steps."""
    if place.is_folder:
        return not _has_steps(place) and any(name.endswith(ENDINGS) for name in place.names)
    return place.name.endswith(".safetensors")


def _has_steps(place: Place) -> bool:
    """Whether folders in it have steps, or files of several steps lie in a folder that has none."""
    if any(is_folder and STEP.search(name) for name, is_folder in place.names.items()):
        return True
    stepped = {
        names.step_of(name) for name in place.names if name.endswith(".safetensors") and STEP.search(name)
    }
    return len(stepped) > 1 and names.step_of(place.path) is None


def expected(tree: Tree) -> Expected:
    """The shards that the indices name, or else those that the names count."""
    if tree.path != tree.base:
        return Expected({name: Need() for name in tree.files}, "one file")
    needs, by = shards(tree)
    needs = {**loaded(tree), **needs}
    return Expected(needs, by or "the files in it", sure=bool(by))


def shards(tree: Tree, prefix: str = "") -> tuple[dict[str, Need], str]:
    """What the model files at the top of a checkpoint, or of a folder in it, ask for, and by what ("" for nothing).

    Raises Damaged where an index cannot be read.
    """
    here = [
        name[len(prefix) :]
        for name in tree.files
        if name.startswith(prefix) and "/" not in name[len(prefix) :]
    ]
    needs: dict[str, Need] = {}
    by = []
    indexed = set()
    for name in sorted(here):
        # Where the whole model lies in one file, loaders take that: the index is of an earlier save.
        if name.endswith(INDEX) and name[: -len(INDEX)] not in here:
            named = _indexed(tree, prefix + name)
            needs.update((prefix + shard, Need()) for shard in named)
            indexed.update(_stems(named))
            by += [f"{len(named)} shards in {name}"] if named else []
    counted = {
        (match["stem"], match["count"], match["end"])
        for match in map(SHARD.fullmatch, here)
        if match and (match["stem"], match["end"]) not in indexed
    }
    for stem, count, end in sorted(counted):
        wanted = [f"{prefix}{stem}-{number:05d}-of-{count}{end}" for number in range(1, int(count) + 1)]
        needs.update((name, Need()) for name in wanted)
        by.append(f"{int(count)} shards by their names")
    return needs, "; ".join(by)


def _indexed(tree: Tree, name: str) -> list[str]:
    text = tree.read(name, INDEX_BYTES_MAX)
    if not text:
        return []  # told as an empty file
    try:
        shards = {str(shard) for shard in json.loads(text)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        if len(text) == INDEX_BYTES_MAX or not _is_index(text):
            return []
        raise Damaged(TORN, f"{name} cannot be read") from None
    return sorted(shards)


def _is_index(text: bytes) -> bool:
    """Whether it begins as one; a JSON object of another kind says nothing of shards."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def _stems(names: Iterable[str]) -> set[tuple[str, str]]:
    return {(match["stem"], match["end"]) for match in map(SHARD.fullmatch, names) if match}


LAYOUT = Layout(
    name="safetensors",
    recognise=recognise,
    expected=expected,
    within=("*.safetensors", "*[0-9]*", "last*"),
)
