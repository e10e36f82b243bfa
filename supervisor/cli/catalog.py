"""`ftrun catalog`: list, show and check the fault signatures, and try them on a log. (I/O)"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from ftrun.hooks.runtime.formats import counted
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.signatures import selftest
from ftrun.supervisor.signatures.catalog import Catalog, Signature

CHUNK_BYTES = 1 << 20

app = typer.Typer(
    help="The known faults: what each looks like and what ftrun does about it.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """The known faults: what each looks like and what ftrun does about it.

    FTRUN_CATALOG (folders joined by ":") adds a site's own *.toml files.
    """


@app.command("list")
def list_signatures(
    fault: Annotated[str, option("--class", "Only this fault class.", "CLASS")] = "",
    codes: Annotated[bool, option("--codes", "Also list the error codes of tables.")] = False,
    json: Json = False,
) -> None:
    """List the signatures, those closest to a root cause first."""
    catalog = common.load_catalog()
    known = catalog.by_id.values() if codes else catalog.signatures
    found = [signature for signature in known if fault in {"", signature.fault.value}]
    found.sort(key=lambda signature: (-signature.priority, signature.id))
    if json:
        common.print_json(found)
        return
    rows = [(s.id, s.fault, s.role, s.blame, s.action, s.priority, s.title) for s in found]
    common.print_table(("signature", "class", "role", "blame", "action", "priority", "title"), rows)


@app.command("show")
def show_signature(name: Annotated[str, argument("SIGNATURE")], json: Json = False) -> None:
    """Show one signature in full, with its examples."""
    signature = common.load_catalog().by_id.get(name)
    if signature is None:
        raise UserError(f"no signature is called {name}; `ftrun catalog list` names them")
    if json:
        common.print_json(signature)
        return
    common.print_table(("field", "value"), _fields(signature))


@app.command("check")
def check(json: Json = False) -> int:
    """Check that every signature matches its examples and not its counter-examples; exit 1 where one does
    not.
    """
    catalog = common.load_catalog()
    wrong = selftest.catalog_errors(catalog)
    codes = sum(len(table.codes) for table in catalog.tables.values())
    if json:
        counts = {"signatures": len(catalog.signatures), "codes": codes}
        common.print_json({**counts, "digest": catalog.digest, "wrong": wrong})
    else:
        for line in wrong:
            print(line, file=sys.stderr)
        print(f"{len(catalog.signatures)} signatures, {codes} codes, {counted(len(wrong), 'complaint')}")
    return 1 if wrong else 0


@app.command("test")
def try_log(
    log: Annotated[str, argument("LOG", "A file; - is stdin.")],
    engine: Annotated[str, option("--engine", "auto, hyperscan or re.")] = "auto",
    json: Json = False,
) -> None:
    """Show every line of LOG that a signature matches, without a diagnosis; `ftrun diagnose` makes one."""
    catalog = common.load_catalog()
    hits = _hits(catalog, log, engine)
    if json:
        for hit in hits:
            common.print_json({"file": log, "class": catalog.by_id[hit.signature].fault, **_plain(hit)})
        return
    for hit in hits:
        print(f"{hit.line}: {hit.signature}: {hit.text.strip()}")
    by_name = Counter(hit.signature for hit in hits)
    print(
        f"{counted(len(hits), 'line')}: "
        + (", ".join(f"{n} {name}" for name, n in by_name.most_common()) or "none known")
    )


def _hits(catalog: Catalog, log: str, engine: str) -> list[Any]:
    from ftrun.supervisor.signatures.scanner import Scanner

    try:
        scanner = Scanner(catalog, engine=engine)
    except (ValueError, ImportError) as error:
        raise UserError(f"--engine {engine}: {error}") from None
    try:
        if log == "-":
            return _scan(scanner, sys.stdin.buffer)
        with Path(log).open("rb") as file:
            return _scan(scanner, file)
    except OSError as error:
        raise UserError(f"{log}: {error.strerror}") from None


def _scan(scanner: Any, file: BinaryIO) -> list[Any]:
    hits: list[Any] = []
    while chunk := file.read(CHUNK_BYTES):
        hits += scanner.feed(chunk)
    hits += scanner.flush()
    return hits


def _plain(hit: Any) -> dict[str, Any]:
    return {
        "signature": hit.signature,
        "line": hit.line,
        "offset_bytes": hit.offset_bytes,
        "text": hit.text,
        "captures": dict(hit.captures),
    }


def _fields(signature: Signature) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("signature", signature.id),
        ("title", signature.title),
        ("class", signature.fault),
        ("layer", signature.layer),
        ("role", signature.role),
        ("blame", signature.blame),
        ("action", signature.action),
        ("retry", "yes" if signature.retry else "no"),
        ("exclude", "yes" if signature.exclude else "no"),
        ("priority", signature.priority),
        ("confidence", signature.confidence),
        ("advice", signature.advice or None),
        ("the maker says", signature.vendor or None),
        ("seen in", ", ".join(signature.sources)),
        ("known from", signature.fact or None),
        ("pattern", signature.pattern),
    ]
    rows += [("example", text) for text in signature.examples]
    rows += [("not", text) for text in signature.counter_examples]
    return rows
