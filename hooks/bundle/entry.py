"""Entry point of the zipapp: its `__main__`. (I/O)"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036  any python3 of a node may run this
    # Status 0: a node that cannot be examined is not a sick node.
    print("ftrun-hook: needs Python 3.9, this is " + sys.version.split()[0], file=sys.stderr)
    sys.exit(0)

if __name__ == "__main__":
    from ftrun.hooks.bundle import bytecode_cache

    # `install` copies the sources and needs no cache file.
    if sys.argv[1:2] != ["install"]:
        bytecode_cache.install_or_compile(sys.path[0])

    from ftrun.hooks.main import main

    sys.exit(main())
