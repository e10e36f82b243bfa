"""`ftrun cache`: the compile caches of a run. (I/O)"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

from ftrun.hooks.runtime.formats import duration_text, size_text
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, Name, option
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.submission import compile_cache
from ftrun.supervisor.submission.compile_cache import CacheFill, CacheIndex, NodeClass

Clear = Annotated[bool, option("--clear", "Delete the caches: the next start compiles everything anew.")]


def cache(name: Name, clear: Clear = False, json: Json = False) -> int:
    """Show what the compile caches of a run hold: entries, sizes, versions, and how warm its last start was.

    A run has caches if ftrun may restart it and the setting `caches` is not `never`.
    """
    run_dir, run = common.find_run(name)
    if clear:
        return _clear(run_dir, run.id, json=json)
    book = compile_cache.read_caches(run_dir, len(run.attempts))
    if json:
        common.print_json({"run": run.id, **asdict(book), "stored_bytes": book.stored_bytes})
    else:
        _show(run.id, book)
    return 0


def _clear(run_dir: str, run: str, *, json: bool) -> int:
    try:
        freed = compile_cache.clear_caches(run_dir)
    except OSError as error:
        raise UserError(
            f"the caches of {run} were not cleared: {error.filename}: {error.strerror}", 1
        ) from None
    if json:
        common.print_json({"run": run, "cleared": True, "freed_bytes": freed})
    else:
        print(
            f"the caches of {run} are cleared, {size_text(freed)} freed; nodes delete their copies before the next start"
        )
    return 0


def _show(run: str, book: CacheIndex) -> None:
    if book.refused:
        print(
            f"no start of {run} gets caches: {book.refused}; after `ftrun cache {run} --clear` the next one tries again"
        )
    if not book.classes:
        what = "nothing has been compiled into them yet" if book.local else "its starts get none"
        print(f"{run} has no caches: {what}")
        return
    rows = [
        [
            one.name,
            share.kind,
            one.writers.get("torch" if share.kind == "inductor" else share.kind),
            share.entries,
            size_text(share.size_bytes),
            size_text(share.stored_bytes),
        ]
        for one in book.classes
        for share in one.shares
    ]
    common.print_table(["NODES", "CACHE", "VERSION", "ENTRIES", "SIZE", "STORED"], rows)
    print(f"{size_text(book.stored_bytes)} of {size_text(book.limit_bytes)}; on the nodes in {book.local}")
    for one in book.classes:
        print(f"{one.name}: {_facts(one)}")
        for line in one.damaged:
            print(f"{one.name}: damaged, left out: {line}")
    for warm in [one for one in book.warm if one.filled or one.trouble][:32]:
        print(_started(warm))


def _facts(one: NodeClass) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in one.facts.items() if name != "instructions")
    python = f", python {one.writers['python']}" if "python" in one.writers else ""
    age = f", last written {duration_text(time.time() - one.written_s)} ago" if one.written_s else ""
    return f"{facts}{python}; {one.packs} {'pack' if one.packs == 1 else 'packs'}{age}"


def _started(warm: CacheFill) -> str:
    hits = "" if warm.hits is None else f", {warm.hits} of them read since"
    took = "" if warm.fill_s is None else f" in {warm.fill_s:.1f} s"
    trouble = "".join(f"; {line}" for line in warm.trouble[:3])
    return f"attempt {warm.attempt} on {warm.node}: {warm.filled} entries, {size_text(warm.filled_bytes)} filled in{took}{hits}{trouble}"
