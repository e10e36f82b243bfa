"""`ftrun drill` with the drills of the tests as well: python -m tests.drills --help (I/O)"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ftrun.supervisor.cli import drill
from ftrun.supervisor.model.errors import UserError
from tests.drills.tables import all_scenarios


def main() -> int:
    """Hold drills as `ftrun drill` does; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in ("all", "list", "json", "keep"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lanes", type=int, default=drill.LANES_MAX)
    given = parser.parse_args()
    if given.list:
        drill.show_list(all_scenarios(), json=given.json)
        return 0
    try:
        chosen = drill.choose(all_scenarios(), given.names, everything=given.all, here=False)
    except UserError as error:
        parser.error(str(error))
    return drill.run_drills(
        chosen, json=given.json, here=False, keep=given.keep, parent=given.folder, lanes=given.lanes
    )


if __name__ == "__main__":
    sys.exit(main())
