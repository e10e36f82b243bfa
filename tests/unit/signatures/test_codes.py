"""Tables of codes: each number is as good as a signature. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Action, Evidence, FaultClass, Source, Topology
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures import selftest
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.signatures.scanner import Hit, Scanner

SITE = """
[[signature]]
id = "pump-alarm"
title = "The pump reports something"
class = "hardware-other"
layer = "hardware"
role = "info"
priority = 30
pattern = '''pump (?P<host>\\w+) says (?P<code>[A-Z]\\d{3}(?:, [A-Z]\\d{3})*)'''
table = "pump"
examples = ["pump p7 says A999"]

[[signature]]
id = "pump-gone"
title = "The pump is gone"
class = "hardware-other"
layer = "hardware"
priority = 60
pattern = '''pump gone'''
examples = ["pump gone"]

[[table]]
id = "pump"
title = "Pump code"
written = '''[A-Z]\\d{3}'''
example = "pump p1 says {code}"
fact = "the pump's manual"
[table.defaults]
class = "hardware-other"
layer = "hardware"
blame = "node"
[[table.level]]
name = "watch"
role = "info"
priority = 20
codes = '''
A001 the water is warm
A002
'''
[[table.level]]
name = "stop"
action = "drain"
exclude = true
priority = 80
vendor = "replace the pump"
codes = '''
B001 the pump stands still
'''
"""


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., str]:
    """Write SITE, changed as asked, into a folder of its own and return the folder."""

    def write(*changes: tuple[str, str]) -> str:
        text = SITE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / "site.toml").write_text(text)
        return str(tmp_path)

    return write


def _hits(folder: str, text: str, engine: str = "auto") -> list[Hit]:
    """By the folder's own signatures among a few of ours: to compile them all takes seconds."""
    both = signatures_catalog.load([folder])
    few = tuple(one for one in both.signatures if one.id.startswith("pump")) + both.signatures[:-2:30]
    return Scanner(replace(both, signatures=few), engine=engine).feed(text.encode() + b"\n")


def _own(folder: str) -> Catalog:
    """The folder's own signatures and codes: ours are checked elsewhere, once."""
    both = signatures_catalog.load([folder])
    own = tuple(one for one in both.signatures if one.id.startswith("pump"))
    return replace(both, signatures=own, tables={"pump": both.tables["pump"]})


def _complaints(folder: str) -> list[str]:
    """What `check` says of this folder's own."""
    return selftest.catalog_errors(_own(folder))


def test_a_code_speaks_as_a_signature_of_its_own(site: Callable[..., str]) -> None:
    """The signature has what the level says, and the title, the example and the proof of the code."""
    folder = site()

    hit = _hits(folder, "pump p3 says B001")[0]
    signature = signatures_catalog.load([folder]).by_id[hit.signature]

    assert ("pump-b001", "B001", "p3") == (hit.signature, hit.captures["code"], hit.captures["host"])
    assert ("Pump code B001 (the pump stands still)", Action.DRAIN, "replace the pump") == (
        signature.title,
        signature.action,
        signature.vendor,
    )
    assert [] == _complaints(folder)


@pytest.mark.parametrize("engine", ["auto", "re"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pump p3 says A001, B001, A002", "pump-b001"),
        ("pump p3 says A002 and pump p4 says B001", "pump-b001"),
        ("pump p3 says A002, A001", "pump-a001"),
        ("pump p3 says A777, A001", "pump-a001"),
        ("pump p3 says A777", "pump-alarm"),
        ("pump p3 says A001: pump gone", "pump-gone"),
        ("pump p3 says B001: pump gone", "pump-b001"),
    ],
)
def test_the_worst_code_of_a_line_speaks(site: Callable[..., str], engine: str, line: str, said: str) -> None:
    """Of equals one whose meaning is known; a code that the table does not have leaves the word to others."""
    assert [said] == [hit.signature for hit in _hits(site(), line, engine)]


def test_a_code_is_diagnosed_as_any_signature_is(site: Callable[..., str]) -> None:
    """What weighs evidence finds the code by its id; who is named is blamed."""
    catalog = signatures_catalog.load([site()])
    hit = _hits(site(), "pump p3 says B001")[0]
    line = Evidence(Source.LOG, hit.signature, hit.text, captures=hit.captures)

    found = diagnose(Facts([line], Topology(nodes=("p3", "p4")), ended=None, catalog=catalog))

    assert (FaultClass.HARDWARE_OTHER, "pump-b001", ("p3",)) == (found.fault, found.signature, found.nodes)


def test_a_code_without_a_meaning_says_so(site: Callable[..., str]) -> None:
    """Its title names the table and the number."""
    assert "Pump code A002 (no public meaning)" == signatures_catalog.load([site()]).by_id["pump-a002"].title


def test_codes_are_known_by_id_but_not_scanned_for(site: Callable[..., str]) -> None:
    """`by_id` has every code, `signatures` none."""
    catalog = signatures_catalog.load([site()])
    scanned = {one.id for one in catalog.signatures if one.id.startswith("pump")}
    known = {name for name in catalog.by_id if name.startswith("pump")}

    assert {"pump-alarm", "pump-gone"} == scanned
    assert scanned | {"pump-a001", "pump-a002", "pump-b001"} == known
    assert len(catalog.by_id) == len(list(catalog.by_id))
    assert "pump-a003" not in catalog.by_id


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("A002\n", "A001\n"), "the code A001 is given twice"),
        (("B001 the", "B1 the"), "the code B1 is not written as"),
        (('name = "stop"', 'name = "watch"'), "two levels have one name"),
        (('action = "drain"', 'action = "replace"'), "is none of"),
        (('vendor = "replace', 'title = "replace'), "cannot say 'title'"),
        (('vendor = "replace', 'colour = "replace'), "unknown key 'colour'"),
        (("priority = 80", ""), "'priority' is missing"),
        (("says {code}", "says"), "has no {code}"),
        (('id = "pump"', 'id = "Pump"'), "lower-case"),
        (('table = "pump"', 'table = "pumps"'), "there is no table 'pumps'"),
        (("(?P<code>", "(?:"), "captures no code"),
        (('id = "pump-gone"', 'id = "pump-a001"'), "the id pump-a001 is given twice"),
        (('fact = "the pump', 'fakt = "the pump'), "unknown key 'fakt'"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(
    site: Callable[..., str],
    change: tuple[str, str],
    reason: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message says which table, signature or code, and what is wrong."""
    folder = site(change)
    monkeypatch.setattr(signatures_catalog, "_FOLDER", tmp_path_factory.mktemp("ours"))

    with pytest.raises(signatures_catalog.CatalogError, match=re.escape(reason)) as caught:
        signatures_catalog.load([folder])

    assert "\n" not in str(caught.value)


def test_check_finds_a_code_that_nothing_reads(site: Callable[..., str]) -> None:
    """A table whose example no signature finds proves nothing."""
    wrong = _complaints(site(("pump p1 says {code}", "code {code}")))

    assert 3 == len(wrong)
    assert "pump-a001: its example 'code A001' is read as nothing" in wrong


def test_the_command_lists_and_shows_codes(
    site: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code is shown as any signature is, and listed where codes are asked for."""
    monkeypatch.setenv("FTRUN_CATALOG", site())

    assert 0 == main(["catalog", "show", "pump-b001"])
    assert "replace the pump" in capsys.readouterr().out
    assert 0 == main(["catalog", "list"])
    assert "pump-b001" not in capsys.readouterr().out
    assert 0 == main(["catalog", "list", "--codes"])
    assert "pump-b001" in capsys.readouterr().out
