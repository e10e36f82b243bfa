"""`ftrun config show`: the settings in force here, and where each came from. (I/O)"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from ftrun.supervisor import config
from ftrun.supervisor.cli import output
from ftrun.supervisor.settings import SETTINGS, show

__all__ = ["app"]

app = typer.Typer(help="The settings in force, and where each value came from.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The settings in force, and where each value came from."""


@app.command("show")
def show_settings(json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """Show every setting as it holds in this folder and environment, the layer that set it, that layer's place, and what the site has locked.

    What a script's #FTRUN lines and the command line of `ftrun sbatch` say comes on top of it.
    """
    cwd = os.getcwd()
    loaded = config.load(cwd, os.environ)
    rows = [_row(loaded, key) for key in SETTINGS]
    for line in [*loaded.ignored, *([loaded.untrusted] if loaded.untrusted else [])]:
        print(f"ftrun: {line}", file=sys.stderr)
    if json:
        files = [{"layer": layer, "path": path} for layer, path in config.source_files(cwd, os.environ)]
        told = {"ignored": loaded.ignored, "untrusted": loaded.untrusted}
        output.emit_json({"files": files, **told, "home": loaded.home(os.environ), "settings": rows})
        return
    output.table(
        ("setting", "value", "from", "where"),
        [(row["key"], row["text"] or "-", row["layer"], _where(row)) for row in rows],
    )


def _where(row: dict[str, Any]) -> str:
    """Where the value was said, and whether it can be said elsewhere."""
    if not row["locked"]:
        return row["where"] or "-"
    return f"{row['where']} (locked)" if row["where"] == row["locked"] else f"locked by {row['locked']}"


def _row(loaded: config.Config, key: str) -> dict[str, Any]:
    layer, where = loaded.origin[key]
    return {
        "key": key,
        "value": loaded[key],
        "text": show(key, loaded[key]),
        "layer": layer,
        "where": where,
        "locked": loaded.locked.get(key),
    }
