"""`ftrun-hook version`: proves that a node can start ftrun at all. (I/O)"""

from __future__ import annotations

import json
import socket
import sys
from importlib import metadata


def main(arguments: list[str]) -> int:
    """Print one JSON line: version of ftrun (null in a bare copy), Python, interpreter, node."""
    del arguments  # no arguments yet; others are left to later versions
    try:
        version = metadata.version("ftrun")
    except metadata.PackageNotFoundError:
        version = None
    facts = {
        "ftrun": version,
        "python": sys.version.split()[0],
        "interpreter": sys.executable,
        "node": socket.gethostname(),
    }
    print(json.dumps(facts))
    return 0
