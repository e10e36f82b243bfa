"""A soak of a minute on real Slurm: `make drills` has it, ./test has not."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import __main__ as soak

pytestmark = [pytest.mark.slurm, pytest.mark.drills]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Not tmp_path: Unix sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_short_soak_violates_nothing(short_folder: Path) -> None:
    """Two sides are hurt alike; ftrun's run comes to its end with the right weights, every law was looked at, and nothing is left."""
    told = short_folder / "told.json"
    words = "--hours 0.025 --nodes 5 --ranks 2 --every-s 30 --repair-s 20 --seed 1 --sides ftrun,plain --kinds rank-killed,supervisor-killed"

    status = soak.main([*words.split(), "--json", str(told), "--folder", str(short_folder)])

    seen = json.loads(told.read_text())
    assert (0, 0) == (status, seen["violations"]), seen["laws"]
    assert [seen["checksum"]["right"]] == seen["checksum"]["seen"]
    assert {"rank-killed", "supervisor-killed"} == {blow["kind"] for blow in seen["sides"][0]["blows"]}
    assert all(law["looks"] for law in seen["laws"])
    assert [told] == list(short_folder.iterdir())
