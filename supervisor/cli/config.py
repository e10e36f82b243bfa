"""`ftrun config show` and `ftrun trust`: the settings in force, and trust in project files. (I/O)"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.config import trust as config_trust
from ftrun.supervisor.config.settings import SETTINGS, format_value, lookup
from ftrun.supervisor.model.errors import SettingError, UserError

app = typer.Typer(help="The settings in force, and where each value came from.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The settings in force, and where each value came from."""


@app.command("show")
def show_settings(
    names: Annotated[list[str] | None, argument("SETTING...", "Only these settings.")] = None,
    *,
    json: Json = False,
) -> None:
    """Show every setting in force in this folder and environment, what it means, the layer that set it, where,
    and what the site has locked.

    The #FTRUN lines of a script and the command line of `ftrun sbatch` override what is shown.
    """
    cwd = os.getcwd()
    loaded = sources.load(cwd, os.environ)
    try:
        keys = [lookup(name.removeprefix("--").removeprefix("ft-")).key for name in names or SETTINGS]
    except SettingError as error:
        raise UserError(str(error)) from None
    rows = [_row(loaded, key) for key in keys]
    for line in [*loaded.ignored, *([loaded.untrusted] if loaded.untrusted else [])]:
        print(f"ftrun: {line}", file=sys.stderr)
    if json:
        files = [{"layer": layer, "path": path} for layer, path in sources.source_files(cwd, os.environ)]
        told = {"ignored": loaded.ignored, "untrusted": loaded.untrusted}
        common.print_json({"files": files, **told, "home": loaded.home(os.environ), "settings": rows})
        return
    common.print_table(
        ("setting", "value", "from", "where", "meaning"),
        [(row["key"], row["text"] or "-", row["layer"], _where(row), row["meaning"]) for row in rows],
    )


def _where(row: dict[str, Any]) -> str:
    """Where the value was set, and whether the site has locked it."""
    if not row["locked"]:
        return row["where"] or "-"
    return f"{row['where']} (locked)" if row["where"] == row["locked"] else f"locked by {row['locked']}"


def _row(loaded: sources.Config, key: str) -> dict[str, Any]:
    layer, where = loaded.origin[key]
    return {
        "key": key,
        "value": loaded[key],
        "text": format_value(key, loaded[key]),
        "layer": layer,
        "where": where,
        "locked": loaded.locked.get(key),
        "meaning": SETTINGS[key].doc,
    }


def trust(
    file: Annotated[str, argument("FILE", "The project's ftrun.toml.")] = "",
    *,
    revoke: Annotated[bool, option("--revoke", "Trust the file no longer.")] = False,
    list_: Annotated[bool, option("--list", "Show which files are trusted.")] = False,
    json: Json = False,
) -> None:
    """Allow FILE, a project's ftrun.toml, to set what can run, read or write something, and show these
    settings.

    Its commands run as you, on the login node and on the nodes of your jobs: read it first. Trust holds for
    this content at this path; when the file changes, `ftrun sbatch` refuses it until you trust it again. A
    file that another user could have written cannot be trusted.
    """
    if bool(file) == list_ or (revoke and list_):
        raise UserError("trust: a FILE is wanted, or --list")
    folder = sources.user_folder(os.environ)
    if list_:
        _list(folder, json=json)
    elif revoke:
        _revoke(file, folder, json=json)
    else:
        _trust(file, folder, json=json)


def _trust(file: str, folder: str, *, json: bool) -> None:
    path = config_trust.trust_key(file)
    if os.path.basename(path) != sources.PROJECT_FILE:
        raise UserError(f"{file}: only files called {sources.PROJECT_FILE} need trust")
    try:
        content, why = config_trust.read_settings_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if why:
        raise UserError(f"{why}, so it cannot be trusted")
    found = sources.project_settings(path, content)
    able = sources.settings_with_reach(found)
    rows = [
        {"key": key, "value": found[key], "text": format_value(key, found[key]), "can": can}
        for key, can in able.items()
    ]
    if able and config_trust.why_untrusted(path, content, folder):
        try:
            config_trust.trust_file(path, content, folder)
        except OSError as error:
            raise UserError(
                f"{error.filename or folder}: {error.strerror or error}; nothing is trusted", 1
            ) from None
    if json:
        common.print_json({"path": path, "trusted": bool(able), "settings": rows})
    elif not able:
        print(f"{path} sets nothing that can run, read or write something: it needs no trust")
    else:
        common.print_table(
            ("setting", "can", "value"), [(row["key"], row["can"], row["text"]) for row in rows]
        )
        print(f"{path} is trusted with its present content")


def _revoke(file: str, folder: str, *, json: bool) -> None:
    try:
        was_trusted = config_trust.untrust_file(file, folder)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", 1) from None
    if not was_trusted:
        raise UserError(f"{config_trust.trust_key(file)} was not trusted; see: ftrun trust --list", 1)
    if json:
        common.print_json({"path": config_trust.trust_key(file), "trusted": False})
    else:
        print(f"{config_trust.trust_key(file)} is trusted no longer")


def _list(folder: str, *, json: bool) -> None:
    rows: list[dict[str, Any]] = config_trust.list_trusted(folder)
    if json:
        common.print_json({"files": rows})
    elif rows:
        common.print_table(
            ("file", "since", "state"), [(row["path"], row["at"], row["state"]) for row in rows]
        )
    else:
        print("no file is trusted")
