"""Going on with fewer nodes of the same job, as its agent sees it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrun.supervisor import ladder
from ftrun.supervisor.sizes import sizes_of_settings

__all__ = ["may"]


def may(settings: Mapping[str, Any], active: int) -> bool:
    """Whether a start on so many nodes could be followed by one on fewer: then the loss of a node is not the loss of the job."""
    sizes = sizes_of_settings(settings)
    if sizes is None or not sizes.at_most(active - 1):
        return False
    return any(ladder.Rung.SHRINK in order for order in ladder.rungs_from(settings).orders.values())
