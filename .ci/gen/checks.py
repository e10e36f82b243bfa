"""Writes docs/checks.md from the checks' own tables and files; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ftrun.hooks.checks.catalogue import checks, entry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"
HEAD = """\
# The checks of a node

```sh
ftrun-hook check                        # the fast ones, on this node: a line each; exit 1 where something is bad
ftrun-hook check --tier recheck         # also those that take longer
ftrun-hook check gpu-check mounts       # only these; --all also prints what was skipped
ftrun-hook check --json                 # the report of the node as one object
ftrun-hook check --list                 # this page, short; with --json whole
ftrun-hook check --settings checks.json # other thresholds, or {"swap": {"enabled": false}}
```

A check is skipped, with the reason, where what it needs is not here: that is never bad. What it cannot find out in time is `unknown`, which is no verdict
on the node. A `note` is worth a line; `degraded` means that the node works, worse than it should; only `bad` keeps a job away, and then only where
the other nodes of the attempt do not show the same: what most of them show is the site's, is told once and held against none of them. The node that differs from its peers is
found by comparison: by version, clock, link speed, memory, number of GPUs, limits (`ulimit` counts only so, unless its `enforce` is set), and by what its peers say of it. Only machines of
one make (`product` of `versions`) are compared with each other, and only what holds up all ranks keeps a job away: a slow RDMA link, a missing GPU or memory module, a low limit, a node that most peers
cannot reach; another kernel or driver is told.

The fast checks together end within 15 seconds, side by side; those of `recheck` within 5 minutes. Each has a limit of its own, and what hangs is left behind.

`ftrun-hook pair-test` tries the network between nodes: started on each of them at once (`srun --ntasks-per-node=1 ftrun-hook pair-test --folder DIR`), each with
one other, then suspects with proven good nodes, so that a failure has a name. It measures the round trip and both directions of plain TCP; a try is bad below half of the usual bandwidth.
Without a shared folder `--board HOST:PORT` of the first node serves. With two nodes that fail together nobody is named.

A node that is dead is asked through its board: `ftrun-hook check bmc --settings bmc.json` with `{"bmc": {"host": "n7-bmc", "user": "operator", "password_file": "/etc/ftrun/bmc"}}`.

<!-- Written by `make docs` from hooks/checks; do not edit by hand. -->
"""


def page() -> str:
    """Return the whole page."""
    entries = [entry(check) for check in checks("burn-in")]
    rows = [
        f"There are {len(entries)} checks.\n",
        "| check | what it says | tier | class | needs |",
        "|---|---|---|---|---|",
    ]
    for one in entries:
        needs = ", ".join(f"`{need}`" for need in one["needs"]) or "-"
        rows.append(
            f"| [`{one['name']}`](#{one['name'].replace(' ', '-')}) | {one['title']} | {one['tier']} | `{one['fault']}` | {needs} |"
        )
    return "\n".join([HEAD, *rows, "", *(_section(one) for one in entries)])


def _section(one: dict[str, Any]) -> str:
    lines = [f"## {one['name']}", "", one["thinking"], "", f"Thresholds: {one['thresholds_told']}", ""]
    lines += [
        f"Defaults: {', '.join(f'`{name}` = `{value!r}`' for name, value in one['thresholds'].items())}. Limit {one['limit_s']:g} s.",
        "",
    ]
    if one["formats"]:
        lines += [f"Reads: {one['formats']}", ""]
    lines += [f"Checked against: {one['checked_against']}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/checks.md is not current: run `make docs`")
