"""`python -m tests.walk [--json] [--list]`: how far a reader walks with a fault and a submission. (I/O)

A file counts once; a change of file is where one function of the list, in the order of first entries, lies
in another file than the one before it. What is on the list: `main_path` and `with_details` in `trace.py`;
what of it is plumbing: `walks.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tests.walk.trace import Function, changes, files, main_path, with_details
from tests.walk.walks import fault, submission

WALKS = {
    "Xid 79 in a log -> second sbatch": (fault, {"files": 25, "changes": 50}),
    "ftrun sbatch train.sh -> sbatch": (submission, {"files": 10}),
}


def main(words: list[str]) -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.walk", description="Counts of two walks through the code."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--list", action="store_true", help="the functions of both main paths, in order")
    args = parser.parse_args(words)
    rows = [_row(name) for name in WALKS]
    if args.json:
        print(json.dumps([{key: row[key] for key in row if key != "path"} for row in rows]))
        return 0
    print(f"{'':<36}{'main path:':<42}{'with details:':<30}all that ran:")
    print(
        f"{'walk':<36}{'functions':<11}{'files':<7}{'aim':<7}{'changes':<9}{'aim':<8}{'functions':<11}{'files':<7}{'changes':<12}functions  files"
    )
    for row in rows:
        path, details, ran, aim = row["main_path"], row["with_details"], row["all"], row["aim"]
        print(
            f"{row['walk']:<36}{path['functions']:<11}{path['files']:<7}{_aim(aim, 'files'):<7}{path['changes']:<9}{_aim(aim, 'changes'):<8}"
            f"{details['functions']:<11}{details['files']:<7}{details['changes']:<12}{ran['functions']:<11}{ran['files']}"
        )
    for row in rows if args.list else ():
        print(f"\n{row['walk']}")
        print("\n".join(f"    {file}:{line} {name}" for file, name, line in row["path"]))
    return 0


def _aim(aim: dict[str, int], what: str) -> str:
    return f"<= {aim[what]}" if what in aim else "-"


def _row(name: str) -> dict[str, Any]:
    walk, aim = WALKS[name]
    trace, plumbing = walk()
    path = main_path(trace, plumbing)
    details = with_details(trace, plumbing)
    return {
        "walk": name, "aim": aim, "main_path": _counts(path), "with_details": _counts(details), "all": _counts([*trace.order]), "path": path,
    }  # fmt: skip


def _counts(path: list[Function]) -> dict[str, int]:
    return {"functions": len(path), "files": len(files(path)), "changes": changes(path)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
