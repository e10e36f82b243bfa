"""The example of a loop that beats runs as it stands. (I/O)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "beat" / "train.py"


def test_the_example_trains_saves_and_tells_where_it_is(tmp_path: Path) -> None:
    """It ends at its last step, with a checkpoint, own times and a beat that says that it is done; a second start goes on from there."""
    env = {**os.environ, "FTRUN_BEAT_DIR": str(tmp_path / "beats"), "RANK": "0"}
    for steps in (60, 70):
        command = [sys.executable, str(EXAMPLE), "--steps", str(steps), "--step-s", "0.001"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    told = json.loads((tmp_path / "beats" / "0").read_text())

    assert "step 51 " in done.stdout
    assert "step 50 " not in done.stdout
    assert json.loads((tmp_path / "checkpoint.json").read_text()) == {"step": 50}
    assert (70, "done", 20) == (told["step"], told["phase"], told["own_n"])
