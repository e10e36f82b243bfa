"""Configure structlog for the supervisor's own log; nothing else configures it. (I/O)

JSON lines where a machine reads (a file, a pipe), short lines on a terminal. Pure code never logs: it
returns reasons.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def configure(*, machine: bool, less: Collection[str] = ()) -> Any:
    """A structlog logger that writes to stderr, each event at once; those named in `less` are left out."""
    import sys

    import structlog

    def wanted(_logger: object, _level: str, event: dict[str, Any]) -> dict[str, Any]:
        if event.get("event") in less:
            raise structlog.DropEvent
        return event

    shared: list[Any] = [
        wanted,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=machine),
    ]
    renderer = (
        structlog.processors.JSONRenderer()
        if machine
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger()
