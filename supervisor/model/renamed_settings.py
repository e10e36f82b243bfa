"""The settings that were renamed: old runs are read under the new names, a person is told them. (pure)"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAMES = {
    "checkpoint-deep": "checkpoint-checksum",
    "checkpoint-deep-rate": "checkpoint-checksum-rate",
    "checkpoint-judge": "checkpoint-verify",
    "end-wait": "fault-grace",
    "gasp-wait": "fault-save-timeout",
    "labels": "srun-label",
    "min-stay": "grow-min-interval",
    "on-stop": "on-give-up",
    "operator-action": "site-action",
    "operator-per-hour": "site-drains-per-hour",
    "operator-per-user": "site-requests-per-user",
    "operator-priority": "site-priority",
    "operator-raise-after": "site-raise-after",
    "operator-raise-per-hour": "site-raise-per-hour",
    "operator-raise-per-user": "site-raise-per-user",
    "operator-spool": "site-spool",
    "recheck-lies": "recheck-max-relapses",
    "rejoin": "rank-restart",
    "settle": "log-quiet",
    "settle-max": "log-quiet-max",
    "spare-wait": "resize-after",
    "stage-wait": "stage-flush-timeout",
}
VALUES = {
    ("checkpoint-verify", "quick"): "structure",
    ("checkpoint-verify", "rule"): "name",
    ("drained", "tell"): "warn",
    ("straggler", "tell"): "warn",
}


def new_name(key: str) -> str:
    """What a setting that is not called `key` any more is called now; "" for any other word."""
    return NAMES.get(key, "")


def new_value(key: str, text: str) -> str:
    """The same of a value of the setting `key`."""
    return VALUES.get((key, text), "")


def rename_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a journal or a context with the names and values of today; unknown ones stay."""
    named = {NAMES.get(key, key): value for key, value in settings.items()}
    return {
        key: VALUES.get((key, value), value) if isinstance(value, str) else value
        for key, value in named.items()
    }
