"""`orbax`: the folder of a step of Orbax, with its items in folders or flat, arrays in OCDBT or zarr. (I/O)

On a POSIX file system Orbax writes a step under a name with `.orbax-checkpoint-tmp` and renames it when it is
complete; on object stores it writes `commit_success.txt` last instead (0.12 does both). So a folder with its
own name was complete once, and the checks look for later losses: a manifest of OCDBT, the bytes that it
counts, and the arrays and chunks of zarr in the metadata. If Orbax was told to omit chunks that are all fill
value, chunks are not counted.

Sources: orbax/checkpoint/_src/path/{atomicity,temporary_paths}.py, _src/metadata (the JSON files), the zarr
specifications 2 and 3; folders written by Orbax 0.12.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any

from ftrun.hooks.checkpoints import names, ocdbt_reader
from ftrun.hooks.checkpoints.listing import Candidate, FileFact, Tree, read_part
from ftrun.hooks.checkpoints.model import TORN, UNREADABLE, Damaged, Expected, Layout, Need

STEP = "_CHECKPOINT_METADATA"
ITEM = "_METADATA"
MANIFEST = "manifest.ocdbt"
MARKS = {STEP, ITEM, MANIFEST, "_sharding", "commit_success.txt"}
AGGREGATE = "checkpoint"
WRITTEN = ("scalar", "jax.Array", "np.ndarray")
PROCESSES = "array_metadatas/process_"
UNFINISHED = ".orbax-checkpoint-tmp"
FOLDERS_LOOKED_AT = 8
JSON_BYTES_MAX = 64 << 20
PROCESS = re.compile(r"(?:.*/)?(?:array_metadatas/process_|ocdbt\.process_)([0-9]+)(?:/.*)?")
DATA = re.compile(r"(?:ocdbt\.process_[0-9]+/)?d/[0-9a-f]{32}|.*/manifest\.ocdbt")
NODE_FILE_BYTES_MAX = 1 << 20
CHUNKS_MAX = 100_000  # of one array; what has more is not counted


def _is_orbax(candidate: Candidate) -> bool:
    """A folder with one of Orbax's own files, or with items that have one."""
    if not candidate.is_folder or candidate.name in ("d", "array_metadatas"):
        return False
    if not MARKS.isdisjoint(candidate.names) or UNFINISHED in candidate.name:
        return True
    folders = [name for name, is_folder in candidate.names.items() if is_folder]
    if names.step_of(candidate.path) is None or len(folders) > FOLDERS_LOOKED_AT:
        return False
    # Items have names; what has a number is a step, and this a folder of them.
    return any(names.step_of(name) is None and ITEM in candidate.below(name).names for name in folders)


def _is_temporary(path: str) -> bool:
    """Orbax's own name for it, with or without a number behind, besides what all writers use."""
    return UNFINISHED in path.rstrip("/").rpartition("/")[2] or names.is_temporary(path)


def _expect_orbax(tree: Tree) -> Expected:
    """For each item its manifest and the arrays in its metadata; for the step only its JSON."""
    needs: dict[str, Need] = {}
    by: list[str] = []
    if STEP in tree.files:
        needs[STEP] = Need("json")
    # Newer Orbax writes a list of each process's arrays with the item's metadata.
    needs.update(
        (name.partition(PROCESSES)[0] + ITEM, Need("json")) for name in tree.files if PROCESSES in name
    )
    items = sorted(name[: -len(ITEM)].rstrip("/") for name in tree.files if name.rpartition("/")[2] == ITEM)
    for item in items:
        part = tree.below(item) if item else tree
        begin = f"{item}/" if item else ""
        told = _expect_item(part)
        needs.update((begin + name, need) for name, need in told.needs.items())
        by.append(f"{item}: {told.by}" if item else told.by)
    processes = [int(match[1]) for match in map(PROCESS.fullmatch, tree.files) if match]
    return Expected(
        needs,
        "; ".join(by) or "its own name, which it gets when all is written",
        sure=bool(items),
        world=max(processes) + 1 if processes else None,
    )


def _expect_item(tree: Tree) -> Expected:
    needs = {name: Need("json") for name in tree.files if name == ITEM or name.startswith(PROCESSES)}
    metadata = _json(tree, ITEM)
    if metadata.get("use_ocdbt") is True or MANIFEST in tree.files:
        needs[MANIFEST] = Need("ocdbt")
        needs.update((name, Need("ocdbt")) for name in tree.files if DATA.fullmatch(name))
        told = _expect_ocdbt(tree) if MANIFEST in tree.files else Expected({}, "OCDBT by its metadata")
        return Expected({**needs, **told.needs}, told.by)
    arrays = {
        name.rpartition("/")[0]: name for name in tree.files if name.endswith(("/.zarray", "/zarr.json"))
    }
    needs.update(dict.fromkeys(arrays.values(), Need("json")))
    missing = next((name for name in _array_names(tree, metadata) if name not in arrays), "")
    if missing:
        needs[f"{missing}/.zarray"] = Need()
    if metadata.get("store_array_data_equal_to_fill_value") is True:
        for array, name in arrays.items():
            needs.update((f"{array}/{chunk}", Need()) for chunk in _chunks(_json(tree, name)))
    return Expected(needs, f"{len(arrays)} zarr arrays")


def _expect_ocdbt(tree: Tree) -> Expected:
    """The files in the tree's nodes with their least sizes; of a large tree only the bytes of all values.
    Raises Damaged where a node is not there, or where fewer bytes lie there than the manifest counts.
    """
    root = ocdbt_reader.newest_root(tree.read(MANIFEST, ocdbt_reader.MANIFEST_BYTES_MAX))
    if root is None or _is_outside(root.place.name):
        return Expected({}, "an OCDBT manifest")
    by = f"{root.value_bytes} bytes of values by {MANIFEST}"
    try:
        ends = ocdbt_reader.file_ends(
            root, lambda at: read_part(tree.at(at.name), at.begin, at.end - at.begin)
        )
    except FileNotFoundError as error:
        name = os.path.relpath(str(error.filename), tree.base)
        raise Damaged(TORN, f"{name} is missing: {MANIFEST} leads to it") from None
    if ends is not None:
        inside = {name: end for name, end in ends.items() if not _is_outside(name)}
        needs = {name: Need("ocdbt", size_min_bytes=end) for name, end in inside.items()}
        return Expected(needs, f"{by}, each in its place")
    held = sum(fact.size_bytes for name, fact in tree.files.items() if _may_hold_values(tree, name, fact))
    if held < root.value_bytes:
        why = f"data files have {held} bytes, and {MANIFEST} counts {root.value_bytes} of values"
        raise Damaged(TORN, why)
    return Expected({root.place.name: Need("ocdbt", size_min_bytes=root.place.end)}, by)


def _is_outside(name: str) -> bool:
    """Whether a file is another checkpoint's, of which nothing is said here."""
    return name.startswith(("/", "../"))


def _may_hold_values(tree: Tree, name: str, fact: FileFact) -> bool:
    """Whether it is not one of Orbax's own files, and not one node from its first byte to its last."""
    if name.endswith((MANIFEST, "commit_success.txt")) or name.startswith(("_", PROCESSES)):
        return False
    large = fact.size_bytes > NODE_FILE_BYTES_MAX
    return large or ocdbt_reader.node_bytes(tree.read(name, ocdbt_reader.FRAME_BYTES)) != fact.size_bytes


def _array_names(tree: Tree, metadata: dict[str, Any]) -> Iterator[str]:
    """The arrays in the metadata of each process, and the item's numbers, unless a file `checkpoint` has them."""
    for name in tree.files:
        if name.startswith(PROCESSES):
            with contextlib.suppress(*UNREADABLE):
                for row in _json(tree, name)["array_metadatas"]:
                    told = row.get("array_metadata", {}).get("param_name")
                    if isinstance(told, str):
                        yield told
    listed = metadata.get("tree_metadata")
    for row in listed.values() if isinstance(listed, dict) and AGGREGATE not in tree.files else ():
        with contextlib.suppress(*UNREADABLE):
            value = row["value_metadata"]
            if value["value_type"] in WRITTEN and value["skip_deserialize"] is False:
                yield ".".join(str(one["key"]) for one in row["key_metadata"])


def _chunks(array: dict[str, Any]) -> list[str]:
    """The chunks of an array by their paths in its folder; none where they cannot be told."""
    try:
        if array.get("zarr_format") == 3:
            grid, encoding = array["chunk_grid"], array["chunk_key_encoding"]
            sizes, first = grid["configuration"]["chunk_shape"], ["c"]
            between = encoding.get("configuration", {}).get("separator", "/")
            known = encoding["name"] == "default" and grid["name"] == "regular"
        else:
            sizes, first = array["chunks"], []
            between, known = array.get("dimension_separator", "."), True
        counts = [-(-length // size) for length, size in zip(array["shape"], sizes)]
        if not known or math.prod(counts) > CHUNKS_MAX:
            return []
        places = itertools.product(*map(range, counts))
        return [between.join([*first, *map(str, place)]) or "0" for place in places]
    except UNREADABLE:
        return []


def _json(tree: Tree, name: str) -> dict[str, Any]:
    """An object; an empty one where the file has none, which its kind tells of, or is not there."""
    try:
        told = json.loads(tree.read(name, JSON_BYTES_MAX))
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


ORBAX = Layout(
    name="orbax",
    recognise=_is_orbax,
    expected=_expect_orbax,
    within=("[0-9]*", "*[-_.][0-9]*", "checkpoints/[0-9]*"),
    temporary=_is_temporary,
)
