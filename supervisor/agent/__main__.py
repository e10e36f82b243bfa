"""`python -m ftrun.supervisor.agent` is the agent of an allocation. (I/O)"""

import os
import sys

from ftrun.supervisor.agent.main import main

if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
