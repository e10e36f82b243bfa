"""What the site's service publishes of nodes, as every supervisor and `ftrun sbatch` read it. (I/O)

    <site-spool>/public/nodes.json     written by the service, by rename, 0644

Only a plain file of the spool's owner counts, of bounded size, that is not older than `STALE_S`; whatever is in it
that is not of its form is passed over. A file that cannot be read says nothing, and nobody waits for it.
"""

from __future__ import annotations

import json
import os
import re
import stat

SCHEMA = 1
BYTES_MAX = 8 << 20
NODES_MAX = 50_000
STALE_S = 86_400.0
QUARANTINE_MAX_S = 400 * 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_cache: dict[str, tuple[tuple[int, int, int], float, dict[str, tuple[float, str]]]] = {}


def public_dir(spool: str) -> str:
    """Where the service publishes."""
    return os.path.join(spool, "public")


def quarantined_nodes(spool: str, now_s: float) -> dict[str, str]:
    """The nodes that the site places last now, the worst first, and why in words; {} where it says nothing."""
    if not spool:
        return {}
    path = os.path.join(public_dir(spool), "nodes.json")
    try:
        status = os.stat(path, follow_symlinks=False)
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = _cache.get(path)
        if known is None or known[0] != mark:
            known = _cache[path] = (mark, *_read(path, os.stat(spool, follow_symlinks=False).st_uid))
    except (OSError, ValueError, RecursionError):
        return {}
    _, written_s, nodes = known
    if not -STALE_S < now_s - written_s < STALE_S:
        return {}
    return {node: why for node, (until_s, why) in nodes.items() if now_s < until_s < now_s + QUARANTINE_MAX_S}


def _read(path: str, owner: int) -> tuple[float, dict[str, tuple[float, str]]]:
    """(when it was written, node -> until when it is quarantined and why). Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner or status.st_size > BYTES_MAX:
            raise ValueError("not the service's")
        told = json.loads(stream.read(BYTES_MAX + 1))
    if not isinstance(told, dict) or told.get("schema") != SCHEMA or not isinstance(told.get("nodes"), list):
        raise ValueError("not of this form")
    found = {}
    for row in told["nodes"][:NODES_MAX]:
        if not isinstance(row, dict):
            continue
        node, until_s = row.get("node"), _number(row.get("quarantined_until_s"))
        if isinstance(node, str) and _NAME.fullmatch(node) and until_s > 0:
            found[node] = (until_s, _words(row.get("classes")))
    return _number(told.get("written_s")), found


def _words(classes: object) -> str:
    words = [one for one in classes if isinstance(one, str)] if isinstance(classes, list) else []
    return ", ".join(word for word in words[:4] if re.fullmatch(r"[a-z][a-z-]{0,31}", word))


def _number(value: object) -> float:
    """A finite number, else 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if -1e12 < value < 1e12 else 0.0
