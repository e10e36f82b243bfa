"""Writes what differs between Slurm's releases into docs/releases.md from the table itself; `--check` compares. (I/O)"""

from __future__ import annotations

from marked import keep_current

from ftrun.slurm.client.releases import DIFFERENCES, NONE, OPTIONAL, OPTIONS, release_text

BEGIN = "<!-- differences: begin, written by `make docs` from slurm/client/releases.py -->"
END = "<!-- differences: end -->"


def tables() -> str:
    """Return the differences, then the options that not all releases have."""
    rows = ["| from | before | since then | ftrun |", "|---|---|---|---|"]
    rows += [
        f"| {release_text(one.first)} | {one.before} | {one.after} | {one.where}{' (asks for the release)' if one.asked else ''} |"
        for one in sorted(DIFFERENCES, key=lambda one: (one.first, one.key))
    ]
    rows += ["", "| option of sbatch | takes | from | to |", "|---|---|---|---|"]
    values = {NONE: "no value", OPTIONAL: "a value or none"}
    rows += [
        f"| `--{name}` | {values.get(takes, 'a value')} | {release_text(first)} | {release_text(last) if last else 'now'} |"
        for name, takes, first, last in sorted(OPTIONS)
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    keep_current("releases.md", "the differences", BEGIN, END, tables())
