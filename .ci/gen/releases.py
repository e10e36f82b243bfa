"""Writes which options of sbatch not all releases have into docs/releases.md from the table itself; `--check` compares. (I/O)"""

from __future__ import annotations

from marked import keep_current

from ftrun.slurm.client.releases import NONE, OPTIONAL, OPTIONS, release_text

BEGIN = "<!-- options: begin, written by `make docs` from slurm/client/releases.py -->"
END = "<!-- options: end -->"


def tables() -> str:
    """Return the options that not all releases have."""
    rows = ["| option of sbatch | takes | from | to |", "|---|---|---|---|"]
    values = {NONE: "no value", OPTIONAL: "a value or none"}
    rows += [
        f"| `--{name}` | {values.get(takes, 'a value')} | {release_text(first)} | {release_text(last) if last else 'now'} |"
        for name, takes, first, last in sorted(OPTIONS)
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    keep_current("releases.md", "the options", BEGIN, END, tables())
