"""Thresholds of checks as a user or a site sets them: a JSON file, by the name of the check. (I/O)"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Optional

__all__ = ["SITES_OWN", "read", "whole"]

SITES_OWN = "/etc/ftrun/checks.json"


def read(path: str, node: str) -> Optional[dict[str, dict[str, Any]]]:
    """What stands in a file ({node} in its name is this node's; one that is not there sets nothing), or in the site's own where none is named.

    None where a file cannot be read: it may be the one that switches a check off, so nothing is to be checked then.
    """
    path = path.replace("{node}", node) or SITES_OWN
    if not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as stream:
            table = json.load(stream)
    except (OSError, ValueError) as error:
        print(f"ftrun-hook: {path}: {error}", file=sys.stderr)
        return None
    if not isinstance(table, dict):
        print(f"ftrun-hook: {path}: it must hold an object", file=sys.stderr)
        return None
    return {name: own for name, own in table.items() if isinstance(own, dict)}


def whole(path: str) -> dict[str, dict[str, Any]]:
    """What stands in a file that somebody names by hand. Raises ValueError, in one line that begins with the path, for anything amiss."""
    try:
        with open(path, encoding="utf-8") as stream:
            table = json.load(stream)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(table, dict) or not all(isinstance(own, dict) for own in table.values()):
        raise ValueError(f"{path}: it must hold an object of objects, one for each check")
    return table
