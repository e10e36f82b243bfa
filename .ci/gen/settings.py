"""Writes docs/settings.md from the table of settings; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path

from ftrun.supervisor.grounds import CLASS_RULES, UNLIMITED
from ftrun.supervisor.settings import SETTINGS, show
from ftrun.supervisor.settings_table import LIST, Setting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
HEAD = """\
# Settings

<!-- Written by `make docs` from supervisor/settings_table.py; do not edit by hand. -->

A setting has one name everywhere. For `retries`, from the weakest place to the strongest:

| where | how |
|---|---|
| site | `retries = 10` in `/etc/ftrun/config.toml`, or in the file that `$FTRUN_SITE_CONFIG` names |
| user | the same line in `~/.config/ftrun/config.toml` (`$XDG_CONFIG_HOME` respected) |
| project | the same line in the nearest `ftrun.toml` from the working folder upwards, within the repository or the home folder |
| script | `#FTRUN --retries=10` among the `#SBATCH` lines |
| environment | `FTRUN_RETRIES=10`; a setting that may be given several times has one element a line |
| command line | `ftrun sbatch --ft-retries=10` or `--ft-retries 10`; a flag needs no value |

A list replaces the list of a weaker place. `ftrun config show` prints what holds where you stand, and which place said
so. A wrong name or value is refused at submission with the nearest right one.

The site can lock settings: `lock = ["drain", "drain-cap"]` in its file. Whoever gives one of these another value, in whatever place, is refused with one line that names the place, the
setting and the site's file; `ftrun config show` marks them. What `/etc/ftrun/config.toml` locks stays so, to its value, where `$FTRUN_SITE_CONFIG` names another file. This is a rule
for whoever uses ftrun, and no wall: what a user must not be able to do at all, Slurm has to refuse.

Durations are written `90`, `90s`, `5m`, `2h` or `1d`, shares `5%` or `0.05`. A flag is `true` or `false`; `yes`, `on` and `1`, `no`, `off` and `0` say the
same, in every place.

What holds for one fault class or one signature alone stands in a table of its own, `[policy.network]` or
`[policy.nvidia-xid-79]`: [the ladder](ladder.md#rules-for-one-class-or-one-signature).

| setting | value | default | meaning |
|---|---|---|---|
"""
BUDGETS = """
## Budgets of the fault classes

`budget-CLASS = N`: how often a run may fail with this class without progress in between (a newer complete checkpoint,
or a step beyond the highest so far). `retries` stands above all of them.

| setting | default |
|---|---|
"""


def page() -> str:
    """Return the whole page."""
    classes = {f"budget-{fault.value}" for fault in CLASS_RULES}
    rows = [_row(row) for key, row in SETTINGS.items() if key not in classes]
    budgets = [f"| `budget-{fault.value}` | {_budget(rule.budget)} |" for fault, rule in CLASS_RULES.items()]
    return HEAD + "\n".join(rows) + "\n" + BUDGETS + "\n".join(sorted(budgets)) + "\n"


def _row(row: Setting) -> str:
    default = show(row.key, row.default)
    value = " or ".join(f"`{choice}`" for choice in row.choices) or row.value_name or "flag"
    where = {
        "admin": " Site, user or environment only.",
        "site": " Site only.",
        "once": " For one submission only.",
    }
    several = " (list)" if row.kind == LIST else ""
    shown = f"`{default}`" if default else ""
    return f"| `{row.key}` | {value}{several} | {shown} | {row.doc}{where.get(row.scope, '')} |".replace(
        "|  |", "| |"
    )


def _budget(number: int) -> str:
    return "no limit" if number == UNLIMITED else str(number)


if __name__ == "__main__":
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/settings.md is not current: run `make docs`")
