"""Runs of older builds go on under the names that settings have today. (I/O)"""

from __future__ import annotations

import json
from pathlib import Path

from ftrun.supervisor.config import table
from ftrun.supervisor.model.events import fold
from ftrun.supervisor.model.renamed_settings import NAMES, VALUES, rename_settings
from ftrun.supervisor.store import journal

FROZEN = Path(__file__).resolve().parents[2] / "frozen" / "v1"


def test_every_new_name_is_a_setting_and_no_old_one_is() -> None:
    """A name means one thing."""
    known = {setting.key for setting in table.TABLE}

    assert set() == set(NAMES.values()) - known
    assert set() == set(NAMES) & known
    for (key, _), value in VALUES.items():
        (choices,) = [setting.choices for setting in table.TABLE if setting.key == key]
        assert value in choices


def test_a_frozen_run_has_the_settings_of_today() -> None:
    """Whatever its build called them."""
    for run_dir in sorted(path.parent for path in FROZEN.glob("*/*/journal")):
        run = fold(run_dir.name, journal.read_run(str(run_dir)))
        assert set() == set(run.settings) & set(NAMES)
        assert "fault-grace" in run.settings


def test_what_has_no_old_name_stays() -> None:
    """Values are not touched where the name is another one's."""
    kept = {"drain": "auto", "log": ["a", "b"], "name": "tell", "retries": 3}

    assert kept == rename_settings(json.loads(json.dumps(kept)))
    assert {"straggler": "warn", "log-quiet": 2.0} == rename_settings({"straggler": "tell", "settle": 2.0})
