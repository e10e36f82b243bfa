"""One list of rules makes every diagnosis: nothing else makes one, or changes one. (I/O)"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from ftrun.supervisor.model.types import Decision, Diagnosis

ROOT = Path(__file__).resolve().parents[2] / "supervisor"

# The list and what its rules are made of.
DIAGNOSIS = {
    "diagnosis/checkpoint_blame.py", "diagnosis/class_defaults.py", "diagnosis/context_rules.py", "diagnosis/facts.py",
    "diagnosis/known_ends.py", "diagnosis/node_findings.py", "diagnosis/odd_one.py", "diagnosis/outlived.py", "diagnosis/rank_deaths.py", "diagnosis/review.py",
    "diagnosis/rules.py", "diagnosis/second_opinion.py", "diagnosis/setup_rules.py", "diagnosis/statements.py",
    "diagnosis/suspect_nodes.py", "diagnosis/suspicions.py",
}  # fmt: skip
# A simulated fault has no evidence: what ftrun would say of it is made from its description.
SIMULATED = {"simulator/ftrun_rules.py"}

# What only a diagnosis has, of all records that are changed.
FIELDS = {field.name for field in dataclasses.fields(Diagnosis)}
FIELDS -= {field.name for field in dataclasses.fields(Decision)} | {"nodes", "action", "signature", "title"}

# Judges that stand behind the list: nobody else asks them.
JUDGES = {"case_of", "joined", "plain", "while_alive"}

OTHERS = sorted(
    path
    for path in ROOT.rglob("*.py")
    if "__pycache__" not in path.parts and path.relative_to(ROOT).as_posix() not in DIAGNOSIS | SIMULATED
)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _offences(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            changed = FIELDS & {word.arg for word in node.keywords if word.arg}
            if _called(node) == "Diagnosis":
                found.append(f"line {node.lineno} makes a diagnosis")
            elif _called(node) == "replace" and changed:
                found.append(f"line {node.lineno} changes {', '.join(sorted(changed))} of one")
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {alias.name for alias in node.names} & JUDGES
            if names and node.module.startswith("ftrun.supervisor."):
                found.append(f"line {node.lineno} asks {', '.join(sorted(names))}")
    return found


def test_nothing_but_the_list_of_rules_makes_or_changes_a_diagnosis() -> None:
    """What was found is what is decided about."""
    found = {path: _offences(ast.parse(path.read_text(encoding="utf-8"))) for path in OTHERS}

    assert {path: offences for path, offences in found.items() if offences} == {}


def test_the_test_sees_what_it_forbids() -> None:
    """Each of the three."""
    for text in (
        "Diagnosis(1)",
        "replace(found, fault=x)",
        "replace(found, rests_on=())",
        "from ftrun.supervisor.diagnosis.node_findings import joined",
    ):
        assert _offences(ast.parse(text)) != []
    assert {"fault", "confidence", "rests_on", "sources", "because", "blame", "loading"} <= FIELDS


def test_the_modules_of_the_diagnosis_are_there() -> None:
    """A list of files that are not there would allow whatever comes under their names."""
    assert all((ROOT / name).is_file() for name in DIAGNOSIS | SIMULATED)
