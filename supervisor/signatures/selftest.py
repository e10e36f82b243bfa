"""The catalog's test of itself, for the tests and `ftrun catalog check`. (I/O)"""

from __future__ import annotations

import re

from ftrun.supervisor.signatures import prefilter
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.signatures.scanner import Scanner


def catalog_errors(catalog: Catalog) -> list[str]:
    """What is wrong with `catalog`, one line for each signature that fails its own proof; [] where all is
    well.

    Every example must match, no counter-example may match, and hyperscan, where it is installed, must compile
    the pattern.
    """
    wrong = []
    for signature in catalog.signatures:
        pattern = re.compile(signature.pattern.encode())
        wrong += [
            f"{signature.id}: does not match its example {text!r}"
            for text in signature.examples
            if not pattern.search(text.encode())
        ]
        wrong += [
            f"{signature.id}: matches its counter-example {text!r}"
            for text in signature.counter_examples
            if pattern.search(text.encode())
        ]
        if not signature.examples:
            wrong.append(f"{signature.id}: has no example")
    wrong += _mistaken(catalog)
    # All at once is fast; one by one only to name the refused pattern.
    if prefilter.compile_error([signature.pattern for signature in catalog.signatures]):
        wrong += [
            f"{signature.id}: hyperscan refuses the pattern: {refusal}"
            for signature in catalog.signatures
            if (refusal := prefilter.compile_error([signature.pattern]))
        ]
    return wrong


def _mistaken(catalog: Catalog) -> list[str]:
    """What is wrong with the tables, one line for each code that is not found in its own example."""
    rows = [
        (name, table.row(name)["examples"][0]) for table in catalog.tables.values() for name in table.codes
    ]
    scanner = Scanner(catalog, engine="re")
    hits = scanner.feed("".join(f"{text}\n" for _, text in rows).encode())
    said = {hit.line: hit.signature for hit in hits}
    return [
        f"{name}: its example {text!r} is read as {said.get(line, 'nothing')}"
        for line, (name, text) in enumerate(rows, start=1)
        if said.get(line) != name
    ]
