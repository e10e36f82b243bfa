"""What one file of a checkpoint must look like inside, by its kind. (I/O)

How it thinks. A kind is a module here with `check(path, fact, level, before_s)`: it reads what the level allows, raises Damaged where the
content proves damage, and returns in a few words what it has proven ("" for nothing). Where no kind is told, the name and the first
bytes decide, and what nobody knows is only asked to have bytes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.checkpoints.look import part
from ftrun.hooks.checkpoints.model import DEEP, EMPTY, TORN, UNFLUSHED, Damaged
from ftrun.hooks.layouts import Need

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact, Tree

__all__ = ["KINDS", "SUFFIXES", "check", "kind_of"]

KINDS: Mapping[str, str] = {
    "json": "ftrun.hooks.checkpoints.plain",
    "msgpack": "ftrun.hooks.checkpoints.msgpack",
    "mindspore": "ftrun.hooks.checkpoints.mindspore_file",
    "ocdbt": "ftrun.hooks.checkpoints.ocdbt",
    "safetensors": "ftrun.hooks.checkpoints.tensorfile",
    "tar": "ftrun.hooks.checkpoints.tars",
    "torch": "ftrun.hooks.checkpoints.torchfile",
    "zip": "ftrun.hooks.checkpoints.zips",
    "zipchain": "ftrun.hooks.checkpoints.zipchain",
}
"""A kind's module, imported when a file of it is met."""

SUFFIXES: Mapping[str, str] = {
    ".bin": "torch",
    ".ckpt": "torch",
    ".json": "json",
    ".nemo": "tar",
    ".npz": "zip",
    ".pickle": "torch",
    ".pkl": "torch",
    ".pt": "torch",
    ".pth": "torch",
    ".safetensors": "safetensors",
    ".tar": "torch",
}
"""What a file is by the end of its name; `torch` says nothing of a file that begins as neither a zip nor a pickle."""


PAGE_BYTES = 4096
PAGES_LOOKED_AT = 64
LOOSE = ("json",)
"""Kinds whose ending others use for other things, logs of JSON lines among them: such a file is looked into where a layout asks for it."""


def _has_no_content(path: str, fact: Fact, need: Need) -> bool:
    """Whether it begins with zeros where a framework reads its own format; of others under such a name, whether all that is looked at is zeros."""
    places = range(0, fact.size_bytes, max(PAGE_BYTES, fact.size_bytes // PAGES_LOOKED_AT))
    wanted = [0] if need.kind else [*places, max(0, fact.size_bytes - PAGE_BYTES)]
    return not any(part(path, at, PAGE_BYTES).strip(b"\0") for at in wanted)


def kind_of(name: str) -> str:
    """The kind of a file by its name; "" for one that nobody knows."""
    return SUFFIXES.get(os.path.splitext(name)[1].lower(), "")


def check(tree: Tree, name: str, need: Need, level: str, before_s: float) -> str:
    """Look at one file; return what was proven. Raises Damaged, OSError, and Late past `before_s` (by time.monotonic)."""
    fact = tree.files[name]
    kind = need.kind or kind_of(name)
    is_asked = bool(need.kind or need.size_min_bytes)
    if not fact.size_bytes:
        if need.may_be_empty and (
            is_asked or need.size_bytes == 0 or not kind or kind in LOOSE or name.endswith(".bin")
        ):
            return ""
        raise Damaged(EMPTY, f"{name} has no byte")
    if need.size_bytes is not None and fact.size_bytes != need.size_bytes:
        raise Damaged(TORN, f"{name} has {fact.size_bytes} bytes, not {need.size_bytes}")
    if fact.size_bytes < need.size_min_bytes:
        raise Damaged(
            TORN,
            f"{name} has {fact.size_bytes} bytes, and {need.size_min_bytes} at least are in it when it is whole",
        )
    said = ""
    if kind in KINDS and not (kind in LOOSE and not is_asked):
        try:
            said = str(importlib.import_module(KINDS[kind]).check(tree.at(name), fact, level, before_s))
        except Damaged as damaged:
            raise Damaged(damaged.state, f"{name} {damaged.why}") from None
        if not said and kind == "torch" and is_asked and _has_no_content(tree.at(name), fact, need):
            raise Damaged(UNFLUSHED, f"{name} is zeros where a zip or a pickle must be")
    if level == DEEP and need.sha256:
        if manifest.sha256(tree.at(name)) != need.sha256:
            raise Damaged(TORN, f"{name} does not have the SHA-256 that was noted when it was written")
        return "SHA-256"
    return said
