"""`ftrun-hook restore`: lists this node's parts, and makes the view that a start resumes from. (I/O)

The agent calls all nodes twice: first to list their parts (`--look`), then with one plan for all. By the plan
a node sends the parts that others need into their memory, waits for those that it needs, and makes its view,
a folder of links. A file in memory that is unchanged and has the checksum of the published file is a hard link,
which survives later drops; any other file is a symbolic link to the published one. So nothing that is in
memory is read from the shared file system. If a file is missing, no view is made, and the start reads the
published checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ftrun.hooks.checkpoints import names
from ftrun.hooks.runtime.command_line import node_name, parser_of
from ftrun.hooks.runtime.host import UsageError
from ftrun.hooks.staging import copy, inventory
from ftrun.hooks.staging.inventory import StoredPart
from ftrun.hooks.staging.partner_client import Route, Target, send
from ftrun.hooks.staging.records import File, Home, is_inner_path, is_set

LOOK_EVERY_S = 0.1
SEALS_S = 3.0  # a complete part is sealed within this time
PLAN_MAX_BYTES = 1 << 28
CORES_MAX = 8
TRACKERS_BY_STEP = frozenset({"latest_checkpointed_iteration.txt"})
TRACKERS = frozenset({"latest", "latest_universal"}) | TRACKERS_BY_STEP
"""Files by which frameworks find the newest checkpoint; in a view they name its only one."""


class Plan(NamedTuple):
    """What the next start resumes from, and what each node does for it. `start`: token of the next start;
    `token`, `name`: the set, with the parts of `nodes`; `give`: (holder, node of the part, receiver); `need`:
    node -> the nodes whose parts it needs. `published`: the published checkpoint; if "", a view needs the
    parts of all `nodes`; `files`: its files with their SHA-256, {"": sum} for one file; `trackers`: those of
    TRACKERS that the script writes; `marker`: its completeness marker. `jobs`, `limit`: as in
    `partner_map.Ring`; `limit_s`: the time limit for transfers.
    """

    start: str
    token: str
    name: str
    nodes: Sequence[str]
    give: Sequence[tuple[str, str, str]] = ()
    need: Mapping[str, Sequence[str]] = {}
    published: str = ""
    files: Mapping[str, str] = {}
    trackers: Sequence[str] = ()
    marker: str = ""
    jobs: Mapping[str, str] = {}
    limit: str = "40%"
    limit_s: float = 60.0


class Made(NamedTuple):
    """A view, or `why` not: files and bytes by their source; `fetched_bytes` came from other nodes now."""

    view: str = ""
    why: str = ""
    memory_files: int = 0
    memory_bytes: int = 0
    disk_files: int = 0
    fetched_bytes: int = 0


def find_plan(home: Home) -> dict[str, Any]:
    """What is on this node. `parts`: a row [node, token, set, bytes, proven, is one file, sealed at (Unix
    seconds)] for each unchanged part; `trackers`: those that the script wrote; `growing`: a part is about to
    be sealed.
    """
    rows, tokens = [], inventory.listed(f"{home.base}/stage")
    for part in inventory.stored_parts(home):
        seal = part.seal
        if inventory.first_changed(part) is None:
            # Whether two nodes have the same save of a name is known only after publishing (`merge`).
            proven = seal.proven and (seal.save == 1 or seal.is_file)
            facts = (seal.size_bytes, proven, seal.is_file, seal.sealed_s)
            rows.append([seal.node, seal.token, seal.name, *facts])
    beside = {name for token in tokens for name in inventory.listed(home.stage(token)) if name in TRACKERS}
    growing = any(
        _is_growing(home, token, name) for token in tokens for name in inventory.listed(home.stage(token))
    )
    return {"parts": rows, "trackers": sorted(beside), "growing": growing}


def _is_growing(home: Home, token: str, name: str) -> bool:
    """Whether an unsealed part was written to a moment ago."""
    top, changed_s = f"{home.stage(token)}/{name}", 0.0
    if not is_set(name, is_folder=os.path.isdir(top)) or os.path.exists(home.seal(token, name)):
        return False
    for where, _, files in os.walk(top) if os.path.isdir(top) else [(home.stage(token), (), [name])]:
        for file in files:
            with contextlib.suppress(OSError):
                changed_s = max(changed_s, os.stat(f"{where}/{file}").st_mtime)
    return time.time() - changed_s < SEALS_S


def restore(home: Home, node: str, plan: Plan, failed: str) -> Made:
    """Do this node's share of a plan; files `failed.*` end a wait. Raises OSError, copy.Changed."""
    give_up_s = time.monotonic() + plan.limit_s
    before = {of for of in plan.nodes if inventory.stored_part(home, of, plan.token, plan.name) is not None}
    _give(home, node, plan, failed)
    waiting = [of for of in plan.need.get(node, ()) if of not in before]
    while waiting and time.monotonic() < give_up_s:
        waiting = [of for of in waiting if inventory.stored_part(home, of, plan.token, plan.name) is None]
        waiting = [of for of in waiting if not os.path.exists(f"{failed}.{of}.{node}")]
        if waiting:
            time.sleep(LOOK_EVERY_S)
    found = {of: inventory.stored_part(home, of, plan.token, plan.name) for of in plan.nodes}
    parts = {of: part for of, part in found.items() if part is not None}
    missing = [of for of in plan.nodes if of not in parts]
    if not plan.published and missing:
        return Made(why=f"the part of {missing[0]} is not in memory, and the set is not published")
    made = _view(home, plan, list(parts.values()))
    if made.view and not plan.published:
        from ftrun.hooks.staging.publish import seal_check_of

        why = seal_check_of(plan.marker)(made.view, all(part.seal.proven for part in parts.values()))
        made = Made(why=f"{plan.name}: {why}") if why else made
    fetched = sum(part.seal.size_bytes for of, part in parts.items() if of not in before)
    return made._replace(fetched_bytes=fetched)


def _all_cores() -> int:
    """No trainer runs while a start is prepared."""
    return min(CORES_MAX, len(os.sched_getaffinity(0)))


def _give(home: Home, node: str, plan: Plan, failed: str) -> None:
    """Send the parts that others need; a failure is noted for the receiver."""
    route = Route()
    for holder, of, receiver in plan.give:
        if holder != node:
            continue
        why = "it is not here any more"
        part = inventory.stored_part(home, of, plan.token, plan.name)
        if part is not None:
            target = Target(receiver, plan.jobs.get(receiver, ""), home.base, plan.limit)
            try:
                sent = send(inventory.summed(part, _all_cores()), target, route)
                why = "" if sent.kept else sent.why
            except (OSError, copy.Changed) as error:
                why = str(error)
        if why:
            note = f"{failed}.{of}.{receiver}"
            with contextlib.suppress(OSError), open(note, "w", encoding="utf-8") as out:
                out.write(why)


def _view(home: Home, plan: Plan, parts: Sequence[StoredPart]) -> Made:
    """Make the folder of links. Raises OSError, copy.Changed."""
    folder = f"{home.views}/{plan.start}"
    inventory.remove(folder)
    os.makedirs(folder, mode=0o700)
    view = f"{folder}/{plan.name}"
    is_file = "" in plan.files or any(part.seal.is_file for part in parts)
    if not is_file:
        os.mkdir(view, 0o700)
    done: dict[str, tuple[StoredPart, File]] = {}
    for part in _comparable(plan, parts):
        for inner, one in part.seal.files.items():
            if plan.published:
                if inner in done or plan.files.get(inner) != one.sha256:
                    continue
            elif inner in done:
                if done[inner][1].sha256 != one.sha256:
                    return Made(why=f"{inner or plan.name} is not the same on all nodes")
                continue
            _linked(os.link, inventory.file_path(part, inner), view, inner)
            done[inner] = part, one
    left = [inner for inner in plan.files if inner not in done and is_inner_path(inner)]
    for inner in left:
        _linked(os.symlink, f"{plan.published}/{inner}" if inner else plan.published, view, inner)
    _track(folder, plan.name, [one for one in plan.trackers if one in TRACKERS])
    return Made(view, "", len(done), sum(one.size_bytes for _, one in done.values()), len(left))


def _comparable(plan: Plan, parts: Sequence[StoredPart]) -> list[StoredPart]:
    """The parts with the checksums that are to be compared. Raises OSError, copy.Changed."""
    several = Counter(inner for part in parts for inner in part.seal.files)
    twice = {inner for inner, times in several.items() if times > 1}
    only = plan.files.keys() if plan.published else twice
    return [inventory.summed(part, _all_cores(), only) for part in parts]


def _linked(link: Callable[[str, str], None], at: str, view: str, inner: str) -> None:
    path = f"{view}/{inner}" if inner else view
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    link(at, path)


def _track(folder: str, name: str, trackers: Sequence[str]) -> None:
    """Write the tracker files; a step is written without leading zeros."""
    for tracker in trackers:
        step = names.step_of(name) if tracker in TRACKERS_BY_STEP else None
        with open(f"{folder}/{tracker}", "w", encoding="utf-8") as stream:
            stream.write(name if step is None else str(step))


def read_plan(path: str) -> Optional[Plan]:
    """The plan in a file; None if it cannot be read or is invalid."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            told = json.loads(stream.read(PLAN_MAX_BYTES))
        plan = Plan(**{name: told[name] for name in Plan._fields if name in told})
        give = [(str(holder), str(of), str(receiver)) for holder, of, receiver in plan.give]
    except (OSError, ValueError, TypeError):
        return None
    inside = all(is_inner_path(inner) for inner in plan.files) and "/" not in plan.name + plan.start
    return plan._replace(give=give) if inside else None


def main(arguments: list[str]) -> int:
    """Print one line of JSON: the parts on this node, or the view that was made. Always 0."""
    text = "Make the folder that a start on this node resumes from."
    parser = parser_of("restore", text, "--base", "--node")
    parser.add_argument("--look", action="store_true", help="only say what lies here")
    parser.add_argument("--plan", default="", help="the agent's plan")
    args = parser.parse_args(arguments)
    home = Home(args.base)
    if args.look:
        print(json.dumps(find_plan(home)), flush=True)
        return 0
    plan = read_plan(args.plan)
    if plan is None:
        raise UsageError(f"--plan {args.plan}: no plan that can be read")
    os.umask(0o077)
    node = node_name(args.node)
    try:
        made = restore(home, node, plan, args.plan.removesuffix(".json"))
    except (OSError, copy.Changed) as error:
        made = Made(why=f"the view could not be made: {getattr(error, 'strerror', None) or error}")
    print(json.dumps(made._asdict()), flush=True)
    return 0
