"""`ftrun cache RUN`: what the caches of a run hold, how warm the last start was, and throwing them away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks import main as hooks_main
from ftrun.supervisor.cli import main
from ftrun.supervisor.submission import in_allocation, library_env
from tests.unit.cache_nodes import ENTRIES, LIMIT_BYTES, Node
from tests.unit.cli.test_cli_runs import RECOVERED, home

__all__ = ["home"]


@pytest.fixture
def node(home: Path, tmp_path: Path) -> Node:
    """A node of the recovered run, which compiled something in its first attempt."""
    one = Node(tmp_path, "n1")
    one.run = home / "runs" / RECOVERED
    (one.run / "caches").mkdir()
    (one.run / "caches" / "where").write_text(f"{LIMIT_BYTES} {one.local}\n")
    one.compile(ENTRIES)
    _hook(one, "merge", attempt=1)
    return one


def _hook(node: Node, what: str, *, attempt: int) -> None:
    folder = node.run / "attempts" / str(attempt) / "nodes"
    folder.mkdir(exist_ok=True)
    assert hooks_main.main(["cache", what, "--folder", str(folder), "--launch", "0"]) == 0


def _asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["cache", RECOVERED, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_tells_what_each_framework_has(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """Entries and bytes by framework, from the headers of the packs alone."""
    told = _asked(capsys)

    (one,) = told["classes"]
    sizes = {share["kind"]: (share["entries"], share["size_bytes"]) for share in one["shares"]}
    assert sizes["triton"] == (2, sum(len(ENTRIES[p]) for p in ENTRIES if p.startswith("triton")))
    assert sum(entries for entries, _ in sizes.values()) == len(ENTRIES)
    assert 0 < told["stored_bytes"] < told["limit_bytes"] == LIMIT_BYTES


def test_it_tells_how_warm_the_last_start_was(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was filled in on each node of the last attempt, and how much of it was used."""
    other = Node(tmp_path, "n2")
    (node.run / "caches" / "where").write_text(f"{LIMIT_BYTES} {other.local}\n")
    _hook(_on(node, other), "fill", attempt=2)

    (warm,) = _asked(capsys)["warm"]
    assert main(["cache", RECOVERED]) == 0

    assert (warm["attempt"], warm["filled"], warm["trouble"]) == (2, len(ENTRIES), [])
    assert f"{len(ENTRIES)} entries" in capsys.readouterr().out


def _on(run: Node, other: Node) -> Node:
    other.run = run.run
    return other


def test_cleared_caches_stay_cleared(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the node that still holds them nor a pack that comes late brings them back."""
    (pack,) = (node.run / "caches").glob("*/*.pack")
    late = pack.read_bytes()

    freed = _asked(capsys, "--clear")["freed_bytes"]
    pack.write_bytes(late)
    _hook(node, "fill", attempt=2)
    _hook(node, "merge", attempt=2)

    assert freed == len(late)
    assert node.has() == {}
    assert _asked(capsys)["classes"][0]["shares"] == []


def test_a_run_without_caches_says_why(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no error to ask."""
    assert main(["cache", RECOVERED]) == 0
    assert "its starts get none" in capsys.readouterr().out
    assert main(["cache", RECOVERED, "--clear"]) == 0


def test_a_damaged_pack_is_named(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """The command reads what it can."""
    (pack,) = (node.run / "caches").glob("*/*.pack")
    pack.write_bytes(pack.read_bytes()[:100])

    assert "cut" in _asked(capsys)["classes"][0]["damaged"][0]


# ---------------------------------------------------------------------- which runs have them


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        ({"caches": "never"}, "single"),
        ({"retries": 0}, "single"),
        ({"observe": True}, "single"),
        ({}, "array"),
        ({}, "het"),
    ],
)
def test_a_run_that_is_never_started_again_keeps_its_environment(
    change: dict[str, object], shape: str
) -> None:
    """Nothing is set for it: there is no later start that could gain."""
    assert in_allocation.cache_facts(_kept(**change), shape) == {}


def test_all_starts_of_a_run_have_one_folder_and_no_two_runs_the_same() -> None:
    """Its name is drawn once and kept with the submission; a context of an older version has none."""
    told = in_allocation.cache_facts(_kept(), "single")

    assert told == in_allocation.cache_facts(_kept(), "single")
    assert told["caches"] == f"{4 << 30} /tmp/ftrun-{{uid}}/cache-00ff"
    assert in_allocation.cache_facts({**_kept(), "cache_name": ""}, "single") == {}


def test_what_may_compute_wrongly_is_switched_on_by_nobody_but_the_user() -> None:
    """MindSpore's cache of graphs is set with `all` only, and XLA_FLAGS with nothing."""
    usual, every = (
        library_env.export_lines(library_env.CACHES, "auto"),
        library_env.export_lines(library_env.CACHES, "all"),
    )

    assert "MS_COMPILER" not in usual
    assert "MS_COMPILER_CACHE_ENABLE" in every
    assert "XLA_FLAGS" not in every


def _kept(**change: object) -> dict[str, Any]:
    chosen = {"caches": "auto", "cache-limit": "4G", "cache-base": "/tmp", "observe": False, "retries": 20}
    return {"settings": {**chosen, **change}, "cache_name": "00ff"}
