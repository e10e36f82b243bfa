"""`python -m ftrun.supervisor` is `ftrun`. (I/O)"""

from __future__ import annotations

import sys

from ftrun.supervisor.cli import main

if __name__ == "__main__":
    sys.exit(main())
