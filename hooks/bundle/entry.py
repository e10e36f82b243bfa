"""Where the packed node side begins: the `__main__` of the zip application. (I/O)"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036  whatever a node calls python3 may read this
    # 0: a node that cannot be looked at is no sick node.
    print("ftrun-hook: needs Python 3.9, this is " + sys.version.split()[0], file=sys.stderr)
    sys.exit(0)

if __name__ == "__main__":
    from ftrun.hooks.bundle import bytecode_cache

    # To install is to copy the sources.
    if sys.argv[1:2] != ["install"]:
        bytecode_cache.load_or_make(sys.path[0])

    from ftrun.hooks.main import main

    sys.exit(main())
