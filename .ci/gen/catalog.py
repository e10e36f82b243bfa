"""Writes docs/catalog.md from the signatures; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path

from ftrun.supervisor.model.types import FaultClass, Layer, Source
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures.catalog import Catalog, Signature
from ftrun.supervisor.signatures.codes import CodeTable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "catalog.md"
HEAD = """\
# The known faults

A signature is a pattern for one line of text, with the class of fault, whom to blame and what to do, and with examples
and counter-examples that prove it. Of several signatures on one line the one with the highest priority speaks. A `cause`
can be the reason by itself, `either` is one only where nothing better is known, a `consequence` is counted and never
blamed, and `info` is no fault. `ftrun catalog show SIGNATURE` prints all of one, `ftrun catalog test LOG` what
they find in a file. A table holds the numbered faults
of one maker: `TABLE-CODE` is a signature, too, made of the code's level. A site's own files (the same form, in folders named by `FTRUN_CATALOG`, joined by `:`) are
checked by `ftrun catalog check`.

A maker's codes need no pattern each. A signature with `table = "pump"` finds them (capture `code`), and a table says what they mean:

```toml
[[table]]
id = "pump"                        # the code P17 is the signature pump-p17
title = "Pump code"
written = '''P\\d+'''               # how one code is written, where a line has several
example = "pump n1 reports {code}" # a line in which a signature finds it
fact = "the pump's manual"
[table.defaults]                   # what all levels share: any key of a signature
class = "hardware-other"
layer = "hardware"
blame = "node"
[[table.level]]
name = "stop"
action = "drain"
priority = 80
codes = '''
P17 the pump stands still
P18
'''
```

A site's file may also change or silence what there is:

```toml
silence = ["nvidia-xid-63"]        # above the first table; ids of signatures or of codes
[[change]]
id = "nvidia-xid-48"
advice = "Tell the night shift: 4711."
```

<!-- Written by `make docs` from the signatures; do not edit by hand. -->
"""


def page() -> str:
    """Return the whole page."""
    catalog = signatures_catalog.load()
    known = catalog.signatures
    codes = sum(len(table.codes) for table in catalog.tables.values())
    parts = [HEAD, f"There are {len(known)} signatures, and {codes} codes in tables.\n", _counts(known)]
    for fault in FaultClass:
        of_class = sorted(
            (signature for signature in known if signature.fault is fault),
            key=lambda signature: (-signature.priority, signature.id),
        )
        if of_class:
            parts.append("\n".join([f"## {fault}", "", *_table(of_class)]) + "\n")
    parts += [_codes(catalog, table) for table in catalog.tables.values()]
    return "\n".join(parts)


def _codes(catalog: Catalog, table: CodeTable) -> str:
    """The codes of one table, a row for each level; what each code means is in its file."""
    rows = [f"## Codes: {table.title}", "", f"`{table.id}-...`, from {table.fact}.", ""]
    rows += [
        "| level | codes | class | role | blame | do | retry | the maker's word |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for level in table.levels:
        names = [name for name, code in table.codes.items() if code.level is level]
        if names:
            s = catalog.by_id[names[0]]
            rows.append(
                f"| {level.name} | {len(names)} | {s.fault} | {s.role} | {s.blame} | {s.action} | {'yes' if s.retry else 'no'} | {s.vendor} |"
            )
    return "\n".join(rows) + "\n"


def _counts(known: tuple[Signature, ...]) -> str:
    """How many there are of each layer, by the place where such a line is born."""
    places = {Source.LOG: "job's own log", Source.KERNEL: "kernel log", Source.BMC: "board's event log"}
    rows = [f"| layer | {' | '.join(places.values())} | all |", "|---|" + "---|" * (len(places) + 1)]
    for layer in Layer:
        of_layer = [one for one in known if one.layer is layer]
        cells = [sum(one.sources[0] is place for one in of_layer) for place in places]
        rows.append(f"| {layer} | {' | '.join(map(str, cells))} | {len(of_layer)} |")
    cells = [sum(one.sources[0] is place for one in known) for place in places]
    rows.append(f"| all | {' | '.join(map(str, cells))} | {len(known)} |")
    seen = sum(Source.COUNTER in one.sources for one in known)
    tail = (
        "By the place where the line is born. A plain user sees the job's own log and what driver tools print"
        f" ({seen} signatures know such output); the kernel's log where the site allows `dmesg`, the board's only by root."
    )
    return "\n".join([*rows, "", tail]) + "\n"


def _table(of_class: list[Signature]) -> list[str]:
    rows = ["| signature | what it is | role | blame | do | retry |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{s.id}` | {s.title}{'. ' + s.advice if s.advice else ''} | {s.role} | {s.blame} | {s.action} | {'yes' if s.retry else 'no'} |"
        for s in of_class
    ]
    return rows


if __name__ == "__main__":
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/catalog.md is not current: run `make docs`")
