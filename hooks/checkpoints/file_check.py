"""Checks one file of a checkpoint by its kind; the readers of JSON and safetensors are here. (I/O)

A reader `check_<kind>(path, fact, level, before_s)` reads what the level allows, raises Damaged if the
content proves damage, and returns in a few words what it has proven ("" for nothing). Without a kind the name
decides; a file of an unknown kind must only have bytes.

Source of safetensors: the format's description in huggingface/safetensors: eight bytes of length,
little-endian; a JSON object from tensors to `data_offsets` [begin, end) after the header; the loader refuses
a file whose tensors do not end at its last byte.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections.abc import Mapping

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.checkpoints.listing import FileFact, Tree, read_part
from ftrun.hooks.checkpoints.model import DEEP, EMPTY, TORN, UNFLUSHED, UNREADABLE, Damaged, Need

READERS: Mapping[str, tuple[str, str]] = {
    "json": ("file_check", "check_json"), "msgpack": ("layout_flax", "check_msgpack"),
    "mindspore": ("layout_mindspore", "check_ckpt"), "ocdbt": ("ocdbt_reader", "check_ocdbt"),
    "safetensors": ("file_check", "check_safetensors"), "tar": ("tar_reader", "check_tar"),
    "torch": ("torch_reader", "check_torch"), "zip": ("zip_reader", "check_zip"),
    "zipchain": ("zip_reader", "check_zip_chain"),
}  # fmt: skip
"""Kind -> the module, imported on demand, and the function that reads it."""

SUFFIXES: Mapping[str, str] = {
    ".bin": "torch", ".ckpt": "torch", ".json": "json", ".nemo": "tar", ".npz": "zip", ".pickle": "torch",
    ".pkl": "torch", ".pt": "torch", ".pth": "torch", ".safetensors": "safetensors", ".tar": "torch",
}  # fmt: skip
"""Suffix -> kind; `torch` proves nothing of a file that begins as neither a zip nor a pickle."""


PAGE_BYTES = 4096
PAGES_LOOKED_AT = 64
LOOSE = ("json",)
"""Kinds whose suffix has other uses (logs of JSON lines): read only if a layout asks for the file."""


def _has_no_content(path: str, fact: FileFact, need: Need) -> bool:
    """Whether the first page is zeros, or without a kind all of the sampled pages are."""
    places = range(0, fact.size_bytes, max(PAGE_BYTES, fact.size_bytes // PAGES_LOOKED_AT))
    wanted = [0] if need.kind else [*places, max(0, fact.size_bytes - PAGE_BYTES)]
    return not any(read_part(path, at, PAGE_BYTES).strip(b"\0") for at in wanted)


def check_file(tree: Tree, name: str, need: Need, level: str, before_s: float) -> str:
    """Check one file; returns what was proven. Raises Damaged, OSError, DeadlinePassed."""
    fact = tree.files[name]
    kind = need.kind or SUFFIXES.get(os.path.splitext(name)[1].lower(), "")
    is_asked = bool(need.kind or need.size_min_bytes)
    if not fact.size_bytes:
        is_usual = is_asked or need.size_bytes == 0 or not kind or kind in LOOSE or name.endswith(".bin")
        if need.may_be_empty and is_usual:
            return ""
        raise Damaged(EMPTY, f"{name} has no byte")
    if need.size_bytes is not None and fact.size_bytes != need.size_bytes:
        raise Damaged(TORN, f"{name} has {fact.size_bytes} bytes, not {need.size_bytes}")
    if fact.size_bytes < need.size_min_bytes:
        least = f"{need.size_min_bytes} at least are in it when it is whole"
        raise Damaged(TORN, f"{name} has {fact.size_bytes} bytes, and {least}")
    said = ""
    if kind in READERS and not (kind in LOOSE and not is_asked):
        try:
            module, function = READERS[kind]
            check = getattr(importlib.import_module(f"ftrun.hooks.checkpoints.{module}"), function)
            said = str(check(tree.at(name), fact, level, before_s))
        except Damaged as damaged:
            raise Damaged(damaged.state, f"{name} {damaged.why}") from None
        if not said and kind == "torch" and is_asked and _has_no_content(tree.at(name), fact, need):
            raise Damaged(UNFLUSHED, f"{name} is zeros where a zip or a pickle must be")
    if level == DEEP and need.sha256:
        if manifest.sha256(tree.at(name)) != need.sha256:
            raise Damaged(TORN, f"{name} does not have the SHA-256 that was noted when it was written")
        return "SHA-256"
    return said


JSON_BYTES_MAX = 4 << 20  # more than the index of a large model; larger files are data


def check_json(path: str, fact: FileFact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Parse it. Raises Damaged; its text follows the file's name."""
    if fact.size_bytes > JSON_BYTES_MAX:
        return ""
    text = read_part(path, 0, JSON_BYTES_MAX)
    if not text.strip(b"\0"):
        raise Damaged(UNFLUSHED, "is all zeros")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        state = UNFLUSHED if b"\0" in text else TORN
        raise Damaged(state, "is no whole JSON") from None
    return "JSON parsed"


LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000  # what the library reads at most


def check_safetensors(path: str, fact: FileFact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Check the header against the size; the format has no checksums. Raises Damaged, OSError."""
    first = read_part(path, 0, LENGTH_BYTES)
    if len(first) < LENGTH_BYTES:
        raise Damaged(TORN, f"has {fact.size_bytes} bytes, too few for a header")
    (length,) = struct.unpack("<Q", first)
    if not length:
        raise Damaged(UNFLUSHED, "begins with zeros where its header must be")
    if length > HEADER_BYTES_MAX:
        raise Damaged(TORN, "begins with no header")
    header = read_part(path, LENGTH_BYTES, length)
    if len(header) < length:
        raise Damaged(TORN, f"is cut inside its header: {fact.size_bytes} of {length + LENGTH_BYTES} bytes")
    wanted = LENGTH_BYTES + length + data_bytes(header)
    if fact.size_bytes < wanted:
        raise Damaged(TORN, f"is cut: {fact.size_bytes} of {wanted} bytes")
    if fact.size_bytes > wanted:
        raise Damaged(TORN, f"has {fact.size_bytes} bytes, more than the {wanted} of its tensors")
    return "tensor headers"


def data_bytes(header: bytes) -> int:
    """Where the last tensor ends, in bytes after the header. Raises Damaged if the header is invalid."""
    try:
        tensors = json.loads(header)
        ends = [int(entry["data_offsets"][1]) for name, entry in tensors.items() if name != "__metadata__"]
    except UNREADABLE:
        state = UNFLUSHED if b"\0" in header else TORN
        raise Damaged(state, "has a header that cannot be read") from None
    return max(ends, default=0)
