"""Laws of the cases for accelerators: they come to their end wherever they run, and no case takes the results of the others with it. (I/O)"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.hooks.checks.nvidia_smi import Answer
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.cli import doctor, main
from tests.accelerators import behaviour, cases, checks, failures, here, loop, settings

PARTS = (checks, failures, behaviour, loop, settings)
ALL = [case for part in PARTS for case in part.CASES]
DOCUMENT = Path(__file__).parents[3] / "docs" / "accelerators.md"


class Bare(here.Here):
    """A machine without any accelerator and without torch."""

    gpus = ()
    torch = ""

    def ask_smi(self) -> Answer:
        return Answer(())


@pytest.fixture
def bare(tmp_path: Path) -> here.Here:
    def no_slurm() -> Sandbox:
        raise here.NotHere("Slurm does not run here")

    return Bare(sys.executable, tmp_path, no_slurm, own_machine=False)


def test_every_case_that_needs_a_device_says_that_there_is_none(bare: here.Here, tmp_path: Path) -> None:
    """No device is a verdict of its own: the run ends well, both files are written, and no setting is touched."""
    needy = [case for case in ALL if case.needs]

    results = cases.run(needy, bare, 60.0, lambda row: None)
    written = cases.write(tmp_path / "out", {"accelerators": "no device"}, results)

    verdicts = {row.case: row.verdict for row in results}
    assert {cases.NO_DEVICE, cases.LEFT_OUT} == set(verdicts.values())
    assert {cases.NO_DEVICE} == {
        verdicts[case.name]
        for case in needy
        if {"smi", "device"} & set(case.needs) and "own-machine" not in case.needs
    }
    assert {cases.LEFT_OUT} == {verdicts[case.name] for case in settings.CASES}
    assert len(needy) == len(json.loads(written[0].read_text())["cases"])
    assert all(f"| {case.name} |" in written[1].read_text() for case in needy)


def test_a_case_that_breaks_or_has_no_time_costs_the_others_nothing(bare: here.Here) -> None:
    """Whatever a case raises is its own verdict, and what does not fit into the time is said."""

    def breaks(_: here.Here) -> here.Seen:
        raise RuntimeError("of the case itself")

    def well(_: here.Here) -> here.Seen:
        return here.Seen("as it should be", ok=True)

    rows = [
        cases.Case("checks", "one", "x", breaks),
        cases.Case("checks", "two", "x", well),
        cases.Case("checks", "three", "x", well, limit_s=900),
    ]
    results = cases.run(rows, bare, 60.0, lambda row: None)

    assert [cases.BROKEN, cases.EXPECTED, cases.NO_TIME] == [row.verdict for row in results]


def test_each_case_is_named_once_and_its_program_is_there() -> None:
    """Names choose cases; a program is called by its name, and its module parses as Python 3.9."""
    names = [case.name for case in ALL]
    tree = ast.parse(here.PROGRAMS.read_text(), feature_version=(3, 9))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

    assert len(set(names)) == len(names)
    assert {failure.program for failure in failures.FAILURES} <= functions
    assert {case.part for case in ALL} == {"checks", "failures", "behaviour", "loop", "settings"}


def test_the_document_names_each_case() -> None:
    """docs/accelerators.md lists what will be tried."""
    text = DOCUMENT.read_text()

    assert [] == [case.name for case in ALL if f"`{case.name}`" not in text]


def test_a_part_that_there_is_not_is_refused_in_a_line() -> None:
    """Wrong usage costs no minute of a lent machine."""
    words = [sys.executable, "-m", "tests.accelerators", "--parts", "chucks"]
    done = subprocess.run(words, cwd=here.ROOT, capture_output=True, text=True)

    assert (2, True) == (done.returncode, "no part is called chucks" in done.stderr)


def test_doctor_reads_accelerators_and_says_that_nothing_is_proven(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever the checks say, the last row tells how far to trust them."""
    code = main(["doctor", "--accelerators", "--json"])

    told = json.loads(capsys.readouterr().out)["findings"]
    assert code in (0, 1)
    assert ("proof", doctor.NOT_PROVEN) == (told[-1]["check"], told[-1]["what"])
    assert len(told) > 1
