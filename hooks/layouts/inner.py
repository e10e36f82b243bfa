"""A checkpoint that lies in a folder of another one: DCP in Accelerate's and Lightning's, DeepSpeed's in the Trainer's. (pure)"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Optional

from ftrun.hooks.checkpoints.model import TORN, Damaged
from ftrun.hooks.checkpoints.registry import layout_of
from ftrun.hooks.layouts import Expected, Need

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Tree
    from ftrun.hooks.layouts import Layout

__all__ = ["TORCH_FILE", "Inner", "below", "inner", "loaded", "whole_state"]

TORCH = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
TORCH_FILE = Need("torch", size_min_bytes=4)  # it begins as a zip or as a pickle
OTHERS = (".json", ".safetensors")
# What a training keeps beside its weights, and what says how to read them.
STATE = re.compile(
    r"(?:training_args\.bin|(?:.*[-_])?optimi[sz]er.*|scheduler.*|scaler.*|sampler.*|dl_state_dict.*|rng_state.*|random_states_.*)"
)
WORDS = (
    ".csv",
    ".html",
    ".jinja",
    ".json",
    ".jsonl",
    ".log",
    ".md",
    ".model",
    ".out",
    ".py",
    ".txt",
    ".yaml",
    ".yml",
)


class Inner:
    """The needs of a checkpoint, gathered from its parts."""

    __slots__ = ("by", "needs", "sure", "world")

    def __init__(self) -> None:
        self.needs: dict[str, Need] = {}
        self.by: list[str] = []
        self.sure = True
        self.world: Optional[int] = None

    def add(self, tree: Tree, folder: str, layout: Layout) -> None:
        """Take what a layout asks for in a folder of the tree. Raises what the layout raises."""
        part = inner(tree, folder, layout)
        self.needs.update(part.needs)
        self.by.append(f"{folder}: {part.by}")
        self.sure = self.sure and part.sure
        self.world = self.world or part.world

    def add_folders(self, tree: Tree, layouts: Mapping[re.Pattern[str], str]) -> None:
        """The same of all folders at the top of the tree whose names say whose they are. Raises what a layout raises."""
        for folder in sorted(_folders(tree)):
            for named, layout in layouts.items():
                if named.fullmatch(folder):
                    self.add(tree, folder, layout_of(layout))

    def expected(self) -> Expected:
        """All of it."""
        return Expected(self.needs, "; ".join(self.by), self.sure, self.world)


def inner(tree: Tree, folder: str, layout: Layout) -> Expected:
    """What a layout asks for in a folder of the tree, by paths from the tree's base."""
    try:
        part = layout.expected(below(tree, folder))
    except Damaged as damaged:
        raise Damaged(damaged.state, f"{folder}/{damaged.why}") from None
    return part._replace(needs={f"{folder}/{name}": need for name, need in part.needs.items()})


def below(tree: Tree, folder: str) -> Tree:
    """The part of a tree in one of its folders."""
    begin = folder + "/"
    path = tree.at(folder)
    files = {name[len(begin) :]: fact for name, fact in tree.files.items() if name.startswith(begin)}
    return tree._replace(path=path, base=path, files=files)


def loaded(tree: Tree) -> dict[str, Need]:
    """The files at the top of the tree that a library would read: none of them is ever written without content."""
    needs = {}
    for name in tree.files:
        if "/" not in name and name.endswith(TORCH):
            needs[name] = TORCH_FILE
        elif "/" not in name and name.endswith(OTHERS):
            needs[name] = Need()
    return needs


def _folders(tree: Tree) -> set[str]:
    """The names of the folders at the top of the tree that have a file below them."""
    return {name.partition("/")[0] for name in tree.files if "/" in name}


def whole_state(tree: Tree, layouts: Mapping[re.Pattern[str], str]) -> None:
    """Raise Damaged where all weights are gone, or the optimizer whose scheduler is there: no library writes the rest alone, and some resume without a
    word about what they did not find. `layouts`: folders that have both in them, as for `add_folders`.
    """
    tops = {name.partition("/")[0] for name in tree.files}
    if any(
        named.fullmatch(top) and layout == "deepspeed" for top in tops for named, layout in layouts.items()
    ):
        return
    if not any(_is_weight(name) for name in tree.files):
        raise Damaged(TORN, "its weights are missing: there is nothing but the state of the training")
    for name in ("scheduler.pt", "scheduler.bin"):
        if name in tree.files and not any("optim" in one.lower() for one in tree.files):
            raise Damaged(TORN, f"optimizer{name[len('scheduler') :]} is missing: {name} is there")


def _is_weight(name: str) -> bool:
    top, last = name.partition("/")[0], name.rpartition("/")[2]
    return not (
        STATE.fullmatch(top) or STATE.fullmatch(last) or last.endswith(WORDS) or last.startswith("events.out")
    )
