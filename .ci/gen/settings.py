"""Writes docs/settings.md from the table of settings; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path

from ftrun.supervisor.config.settings import SETTINGS, format_value
from ftrun.supervisor.config.table import LIST, Setting
from ftrun.supervisor.model.types import CLASS_RULES, UNLIMITED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
HEAD = """\
# Settings

<!-- Written by `make docs` from supervisor/config/table.py; do not edit by hand. -->

A setting has one name everywhere. For `retries`, from the weakest place to the strongest:

| where | how |
|---|---|
| site | `retries = 10` in `/etc/ftrun/config.toml`, or in the file that `$FTRUN_SITE_CONFIG` names |
| user | the same line in `~/.config/ftrun/config.toml` (`$XDG_CONFIG_HOME` respected) |
| project | the same line in the nearest `ftrun.toml` from the working folder upwards, within the repository or the home folder ([whose files count](#whose-files-count)) |
| script | `#FTRUN --retries=10` among the `#SBATCH` lines |
| environment | `FTRUN_RETRIES=10`; a setting that may be given several times has one element a line |
| command line | `ftrun sbatch --ft-retries=10` or `--ft-retries 10`; a flag needs no value |

A list replaces the list of a weaker place. `ftrun config show` prints what holds where you stand, what it means, and which place said
so. A wrong name or value is refused at submission with the nearest right one.

The site can lock settings: `lock = ["drain", "drain-cap"]` in its file. Whoever gives one of these another value, in whatever place, is refused with one line that names the place, the
setting and the site's file; `ftrun config show` marks them. What `/etc/ftrun/config.toml` locks stays so, to its value, where `$FTRUN_SITE_CONFIG` names another file. This is a rule
for whoever uses ftrun, and no wall: what a user must not be able to do at all, Slurm has to refuse.

## Whose files count

A setting can be a command, so a file is read only where nobody else can have written it: it belongs to you or to root (a link that leads to it as well), and neither everybody nor a
group of several may write it. The same as for git: a repository (`.git`) of another user is none, and no `ftrun.toml` above the working folder is looked for in it.

- Another user's `ftrun.toml`, or one that others may write, is left unread, and the next one upwards counts; `ftrun sbatch` and `ftrun config show` say so in one line on stderr.
- A file of the site or your own `config.toml` that does not count is refused with exit 2 and the mend: without it the runs would have another home. What belongs to the owner of ftrun's own
  code counts for the site, since that runs as you anyway.

A file of yours may still be somebody else's work, cloned or unpacked. What it sets that can run, read or write something (the column *can*) waits for your word:

    $ ftrun sbatch train.sh
    ftrun: /home/ann/llm/ftrun.toml is not trusted, and it sets on-give-up (runs): read it, then: ftrun trust /home/ann/llm/ftrun.toml
    $ ftrun trust ftrun.toml
    setting  can   value
    on-give-up  runs  ./notify.sh
    /home/ann/llm/ftrun.toml is trusted with its present content

Nothing is submitted before that, since a run without its `pre-hook` or `checkpoint` would be another run. Trust is bound to the place of the file and to its content: after an edit or a `git pull` that changes it you are
asked again. It does not cover the programs that the file names. `ftrun trust --list` shows what is trusted, `--revoke FILE` takes it back; the records lie in `~/.config/ftrun/trusted/`. What the
command line, a `#FTRUN` line or a variable sets instead needs no trust: `--ft-on-give-up=` leaves the command out once.

These values are harmless in a row that can do something, and count at once: a relative path without `..`, `~` or `$` for `checkpoint`, `checkpoint-marker` and `log`; for
`resume-arg` an option with what ftrun puts in, such as `--resume={checkpoint}`, `trainer.ckpt={checkpoint}` or `--resume`.

A run keeps the settings of its submission: what happens to the file afterwards changes nothing for later attempts.

## The settings

Durations are written `90`, `90s`, `5m`, `2h` or `1d`, shares `5%` or `0.05`. A flag is `true` or `false`; `yes`, `on` and `1`, `no`, `off` and `0` say the
same, in every place.

What holds for one fault class or one signature alone stands in a table of its own, `[policy.network]` or
`[policy.nvidia-xid-79]`: [the ladder](ladder.md#rules-for-one-class-or-one-signature).

| setting | value | default | can | meaning |
|---|---|---|---|---|
"""
BUDGETS = """
## Budgets of the fault classes

`budget-CLASS = N`: how often a run may fail with this class without progress in between (a newer complete checkpoint,
or a step beyond the highest so far). [`retries` and `storm`](retries.md) stand above all of them.

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
    default = format_value(row.key, row.default)
    value = " or ".join(f"`{choice}`" for choice in row.choices) or row.value_name or "flag"
    where = {
        "admin": " Site, user or environment only.",
        "site": " Site only.",
        "once": " For one submission only.",
    }
    several = " (list)" if row.kind == LIST else ""
    shown = f"`{default}`" if default else ""
    cells = (f"`{row.key}`", value + several, shown, row.reach, row.doc + where.get(row.scope, ""))
    return "| " + " | ".join(cells).replace("|  |", "| |").replace("|  |", "| |") + " |"


def _budget(number: int) -> str:
    return "no limit" if number == UNLIMITED else str(number)


if __name__ == "__main__":
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/settings.md is not current: run `make docs`")
