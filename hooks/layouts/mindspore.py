"""`mindspore`: a .ckpt file of MindSpore, the files of one step in the `rank_<n>` folders of MindFormers, its `iteration_<step>` folders. (I/O)

How it thinks. In rank folders every rank writes its own file of a step, by a rename when it is whole, so a step is whole when each rank's
folder has its file. Folders of ranks that an earlier, larger run had stay behind: a rank is not waited for once two newer steps did
without it. The path of such a checkpoint is rank 0's file. In an iteration folder `metadata.json` names the files with every parameter,
and `common.json` is written behind the weights; without `metadata.json` the files' names say how many there are.

The name has the epoch and the step in that epoch (`-2_400.ckpt`), so it is no step of the run: `step_num` in the file is, where
the callback appended it; otherwise as many steps are counted for an epoch as the files beside it show.

Sources: mindspore/train/callback/_checkpoint.py, mindspore/train/serialization.py and files of MindSpore 2.10; MindFormers'
core/callback (rank folders, meta.json), tools/resume_ckpt.py, checkpoint/{checkpoint,metadata,utils}.py of 2.1.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import TYPE_CHECKING, Optional

from ftrun.hooks.checkpoints import look, mindspore_file
from ftrun.hooks.checkpoints.model import TORN, Damaged
from ftrun.hooks.layouts import Expected, Layout, Need

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT"]

FILE = re.compile(r"(?P<stem>.*)-(?P<epoch>[0-9]+)_(?P<step>[0-9]+)(?P<end>\.ckpt|\.safetensors)")
RANK = re.compile(r"rank_([0-9]+)")
SHARD = re.compile(r"(?P<stem>(?:.*-)?(?:model|opt))-(?P<rank>[0-9]{7})-(?P<world>[0-9]{7})\.safetensors")
COMMON = "common.json"
METADATA = "metadata.json"
METADATA_BYTES_MAX = 256 << 20
NEWER_WITHOUT = 2  # so many newer steps without a rank, and it is none of the run any more


def recognise(place: Place) -> bool:
    """A file by its first bytes, a file of a step in a rank's folder, a folder with weights by MindFormers' names."""
    if place.is_folder:
        return any(SHARD.fullmatch(name) for name in place.names)
    named = FILE.fullmatch(place.name) is not None
    if named and _rank(place.path) is not None:
        return True
    return place.name.endswith(".ckpt") and mindspore_file.begins(place.head)


def tree(path: str, before_s: float) -> Tree:
    """The files of one step in all rank folders; elsewhere the file or the folder alone. Raises OSError, Late."""
    if os.path.isdir(path) or _rank(path) is None:
        return look.tree(path, before_s)
    alone = look.tree(path, before_s)  # raises where it is gone
    base = os.path.dirname(os.path.dirname(path))
    folders = [name for name in os.listdir(base) if RANK.fullmatch(name)]
    names = [_of_rank(path, folder) for folder in folders]
    facts = look.each(lambda name: _fact(os.path.join(base, name), before_s), names, before_s)
    files = {name: fact for name, fact in zip(names, facts) if fact is not None}
    own = os.path.relpath(path, base)
    return alone._replace(base=base, files={own: alone.files[os.path.basename(path)], **files})


def expected(tree: Tree) -> Expected:
    """One file of its kind; each rank's; or what an iteration's metadata names."""
    if tree.path == tree.base:
        return _iteration(tree)
    end = os.path.splitext(tree.path)[1]
    kind = "mindspore" if end == ".ckpt" else "safetensors"
    if _rank(tree.path) is None:
        return Expected({name: Need(kind) for name in tree.files}, "one file")
    ranks = _ranks(tree)
    needs = {name: Need(kind) for name in ranks}
    return Expected(needs, f"{len(needs)} rank folders", world=len(needs))


def step(place: Place) -> Optional[int]:
    """The step of the run, by what the file or the files beside it say; None where its name is of another kind."""
    if place.is_folder:
        return None
    named = FILE.fullmatch(place.name)
    if not named or not place.name.endswith(".ckpt"):
        return _counted(place, named) if named else None
    try:
        size_bytes = os.path.getsize(place.path)
        read = functools.partial(look.part, place.path)
        appended = mindspore_file.number_in(read, size_bytes, "step_num")
    except OSError:
        appended = None
    return _counted(place, named) if appended is None else appended


def _counted(place: Place, named: re.Match[str]) -> int:
    """Steps of whole epochs before it, as long as the longest that is seen, and those in its own."""
    epoch, within = int(named["epoch"]), int(named["step"])
    if epoch <= 1:
        return within
    try:
        beside = [FILE.fullmatch(name) for name in os.listdir(os.path.dirname(place.path))]
    except OSError:
        beside = []
    longest = max(
        (int(one["step"]) for one in beside if one and one["stem"] == named["stem"]), default=within
    )
    return (epoch - 1) * max(longest, within) + within


def _iteration(tree: Tree) -> Expected:
    shards = [match for match in map(SHARD.fullmatch, tree.files) if match]
    world = max(int(match["world"]) for match in shards) if shards else None
    needs = {COMMON: Need("json")}
    if METADATA in tree.files:
        named = _named(tree)
        needs.update((name, Need("safetensors")) for name in named)
        return Expected(needs, f"{len(named)} files in {METADATA}", world=world)
    for stem, count in sorted({(match["stem"], match["world"]) for match in shards}):
        needs.update(
            (f"{stem}-{rank:07d}-{count}.safetensors", Need("safetensors")) for rank in range(int(count))
        )
    return Expected(needs, f"{world} ranks by the names", world=world)


def _named(tree: Tree) -> list[str]:
    """Every file that a parameter has a part in: the loader asks for all of them, replicas too."""
    text = tree.read(METADATA, METADATA_BYTES_MAX)
    try:
        stored = json.loads(text)["storage_data"].values()
        return sorted({str(place["file_name"]) for places in stored for place in places})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damaged(TORN, f"{METADATA} cannot be read") from None


def _rank(path: str) -> Optional[int]:
    """The rank whose folder a file lies in; None where it lies in none."""
    match = RANK.fullmatch(os.path.basename(os.path.dirname(path)))
    return int(match[1]) if match and FILE.fullmatch(os.path.basename(path)) else None


def _of_rank(path: str, folder: str) -> str:
    """The same step's file in another rank's folder, by path from the folder of both.

    The name may have the rank in it (`llama_rank_0-2_400.ckpt`), and a number where a run began anew beside older files
    (`llama_rank_0_1-2_400.ckpt`), which not all ranks need to have: there the step decides, if one file alone has it.
    """
    base = os.path.dirname(os.path.dirname(path))
    own, name = os.path.basename(os.path.dirname(path)), os.path.basename(path)
    named = re.sub(rf"(?<![A-Za-z]){own}(?![0-9])", folder, name)
    if not os.path.exists(os.path.join(base, folder, named)):
        found = [one for one in map(FILE.fullmatch, os.listdir(os.path.join(base, folder))) if one]
        wanted = FILE.fullmatch(name)
        same = [
            one[0]
            for one in found
            if wanted and one.group("epoch", "step", "end") == wanted.group("epoch", "step", "end")
        ]
        if len(same) == 1:
            return f"{folder}/{same[0]}"
    return f"{folder}/{named}"


def _fact(path: str, before_s: float) -> Optional[look.Fact]:
    try:
        return look.tree(path, before_s).files[os.path.basename(path)]
    except FileNotFoundError:
        return None


def _ranks(tree: Tree) -> list[str]:
    """The file of each rank that is still one of the run, by path from the base."""
    folders = sorted(name for name in os.listdir(tree.base) if RANK.fullmatch(name))
    mine = _keys(os.path.dirname(tree.path))
    wanted = []
    for folder in folders:
        name = _of_rank(tree.path, folder)
        if name not in tree.files:
            newest = max(_keys(os.path.join(tree.base, folder)), default=None)
            newer = [key for key in mine if newest is None or key > newest]
            if newest is None or len(newer) >= NEWER_WITHOUT:
                continue
        wanted.append(name)
    return wanted


def _keys(folder: str) -> set[tuple[int, int]]:
    """Epoch and step of the files in a rank's folder."""
    found = (FILE.fullmatch(name) for name in os.listdir(folder))
    return {(int(match["epoch"]), int(match["step"])) for match in found if match}


LAYOUT = Layout(
    name="mindspore",
    recognise=recognise,
    expected=expected,
    within=(
        "*.ckpt",
        "rank_0/*.ckpt",
        "rank_0/*.safetensors",
        "checkpoint/rank_0/*.ckpt",
        "checkpoint/rank_0/*.safetensors",
        "iteration_*",
        "iter_*",
        "checkpoint/iteration_*",
    ),
    trackers=("latest_checkpointed_iteration.txt",),
    step=step,
    step_first=True,
    tree=tree,
)
