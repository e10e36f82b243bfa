"""Writes man/*.1 from the command tree and the table of settings; `--check` says whether they are current. (I/O)

Our own roff, and not click-man: that one reads click's objects, typer's are others by now, and a page for each family with its sub-commands reads better than one
for each of them. Macros of man(7) alone, so that groff and mandoc show the same. No date: a page says what its version does.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import tree

from ftrun.supervisor.config.settings import SETTINGS, format_value
from ftrun.supervisor.config.table import LIST

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "man"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SBATCH = "Submit a job as sbatch does, and have it looked after."
EXIT = """\
.TP
.B 0
Done.
.TP
.B 1
It could not be done, or what was looked at is not well; one line on standard error says why.
.TP
.B 2
Wrong usage.
.TP
.B 70
A mistake of ftrun's own; the line names a file with details.
"""
ENVIRONMENT = """\
.TP
.B FTRUN_HOME
Folder of all runs; default:
.IR ~/.local/state/ftrun .
.TP
.B FTRUN_SITE_CONFIG
The site's settings in place of
.IR /etc/ftrun/config.toml .
.TP
.BI FTRUN_ KEY
A setting:
.B FTRUN_RETRIES=10
is
.B retries = 10
in a file of settings.
.TP
.B SLURM_CONF
The cluster, as for Slurm's own commands.
"""
FILES = """\
.TP
.I /etc/ftrun/config.toml
The site's settings; it can lock some of them.
.TP
.I ~/.config/ftrun/config.toml
The user's settings.
.TP
.I ftrun.toml
The project's: the nearest one from the working folder upwards that nobody else can have written.
.TP
.I ~/.config/ftrun/trusted/
Which projects' files may run, read and write something: see
.BR ftrun-trust (1).
.TP
.I ~/.local/state/ftrun/runs/
A folder for each run: what was submitted, and a journal of all that was seen, decided and done.
"""


def pages() -> dict[str, str]:
    """Every page by its file name."""
    found = tree.commands()
    kin = {name: [one for one in found if one.path.split()[0] == name] for name in _top(found)}
    made = {f"ftrun-{name}.1": _page(family) for name, family in kin.items()}
    return {"ftrun.1": _front(found), "ftrun-sbatch.1": _sbatch(), **made}


def _top(found: Iterable[tree.Command]) -> list[str]:
    return [command.path for command in found if " " not in command.path]


def _front(found: list[tree.Command]) -> str:
    listed = [("sbatch", SBATCH), *((one.path, one.line) for one in found if " " not in one.path)]
    parts = [
        _head("ftrun", PROJECT["description"].rstrip(".")),
        ".SH SYNOPSIS\n.B ftrun\n.I COMMAND\n.RI [ ARGUMENTS ]\n.PP\n.B ftrun sbatch\n.RI [ OPTIONS ]\n.I script\n.RI [ ARGUMENTS ]\n",
        ".SH DESCRIPTION\n"
        + _text(
            "Write `ftrun sbatch` where you wrote `sbatch`. From then on the run is looked after until it is finished or until going on makes no sense: faults are seen"
            " and named, bad nodes avoided, and training goes on from the newest good checkpoint.\n\nEvery command that prints facts takes `--json`."
            " `ftrun COMMAND --help` tells what its page tells."
        ),
        ".SH COMMANDS\n"
        + "".join(f".TP\n.BR ftrun\\-{_escape(name)} (1)\n{_text(line)}" for name, line in listed),
        f".SH EXIT STATUS\n{EXIT}.SH ENVIRONMENT\n{ENVIRONMENT}.SH FILES\n{FILES}",
        _see(["sbatch", "scontrol", "squeue"]),
    ]
    return "".join(parts)


def _page(family: list[tree.Command]) -> str:
    first, *members = family
    parts = [
        _head(f"ftrun-{first.path}", first.line.rstrip(".")),
        ".SH SYNOPSIS\n" + ".PP\n".join(map(_synopsis, family)),
        ".SH DESCRIPTION\n" + _text(first.help),
        *_parameters(first, ".SH"),
    ]
    if members:
        parts.append(".SH COMMANDS\n")
    for member in members:
        parts += [f".SS ftrun {_escape(member.path)}\n", _text(member.help), *_parameters(member, "")]
    return "".join([*parts, _see(["ftrun"])])


def _sbatch() -> str:
    ours = [row for row in SETTINGS.values() if row.scope in ("any", "once") and row.doc]
    rows = []
    for row in ours:
        value = f"\\fR=\\fI{_escape('|'.join(row.choices) or row.value_name)}" if row.kind != "flag" else ""
        default = f" Default: {shown}." if (shown := format_value(row.key, row.default)) else ""
        several = " May be given several times." if row.kind == LIST and "several" not in row.doc else ""
        rows.append(
            f".TP\n\\fB\\-\\-ft\\-{_escape(row.key)}{value}\\fR\n{_text(row.doc + default + several)}"
        )
    parts = [
        _head("ftrun-sbatch", SBATCH.rstrip(".")),
        '.SH SYNOPSIS\n.B ftrun sbatch\n.RI [ "any option of sbatch" ]\n.RB [ \\-\\-ft\\- \\fINAME\\fR[=\\fIVALUE\\fR]]...\n.I script\n.RI [ ARGUMENTS ]\n',
        ".SH DESCRIPTION\n"
        + _text(
            "What it prints and how it exits is sbatch's; every option that does not begin with `--ft-` goes to sbatch untouched. What ftrun has to say goes to standard"
            " error.\n\nThe same settings may stand in the script as `#FTRUN --NAME=VALUE`, in the environment as `FTRUN_NAME`, and in files of settings;"
            " `ftrun config show` prints what holds where you stand, what it means and which place said so."
        ),
        ".SH OPTIONS\n" + "".join(rows),
        _see(["ftrun", "ftrun-config", "sbatch"]),
    ]
    return "".join(parts)


def _head(name: str, line: str) -> str:
    title = f'.TH {_escape(name.upper())} 1 "" "ftrun {PROJECT["version"]}" "ftrun"\n'
    return f'.\\" Written by `make docs`; do not edit by hand.\n{title}.SH NAME\n{_escape(name)} \\- {_escape(line)}\n'


def _synopsis(command: tree.Command) -> str:
    operands = "".join(f"\n.RI {_quoted(_escape(one.shown))}" for one in command.operands)
    members = "\n.I COMMAND\n.RI [ ARGUMENTS ]" if command.members else ""
    return f".B ftrun {_escape(command.path)}\n.RI [ OPTIONS ]{operands}{members}\n"


def _parameters(command: tree.Command, heading: str) -> list[str]:
    operands = "".join(
        f".TP\n.I {_quoted(_escape(one.shown))}\n{_text(one.help)}" for one in command.operands
    )
    options = "".join(
        ".TP\n"
        + ", ".join(f"\\fB{_escape(name)}\\fR" for name in one.names)
        + (f" \\fI{_escape(one.value)}\\fR" if one.value else "")
        + f"\n{_text(one.help)}"
        for one in command.options
    )
    named = (("ARGUMENTS", operands), ("OPTIONS", options))
    return [f"{heading} {name}\n{text}" if heading else text for name, text in named if text]


def _see(names: Iterable[str]) -> str:
    return (
        ".SH SEE ALSO\n"
        + ",\n".join(f".BR {_escape(name)} (1)" for name in names).replace("),\n", ") ,\n")
        + "\n"
    )


def _text(text: str) -> str:
    """Paragraphs, `code` in bold, one sentence of ours as one line of roff, since roff fills lines itself."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    bold = [re.sub(r"`([^`]+)`", r"\\fB\1\\fR", _escape(part)) for part in paragraphs if part]
    return "\n.IP\n".join(bold).replace("\n.IP\n", "\n.sp\n") + "\n"


def _escape(text: str) -> str:
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


if __name__ == "__main__":
    os.environ.update(COLUMNS="80", NO_COLOR="1", LC_ALL="C.UTF-8")
    wanted = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.1")}
    if "--check" not in sys.argv:
        FOLDER.mkdir(exist_ok=True)
        for name in present.keys() - wanted.keys():
            (FOLDER / name).unlink()
        for name, text in wanted.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    elif present != wanted:
        sys.exit("man/ is not current: run `make docs`")
