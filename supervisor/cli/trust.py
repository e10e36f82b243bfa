"""`ftrun trust`: let a project's file of settings run, read and write something. (I/O)"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ftrun.supervisor import config
from ftrun.supervisor import trust as trusting
from ftrun.supervisor.cli import output
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.settings import show

__all__ = ["trust"]


def trust(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The project's ftrun.toml.")] = "",
    *,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust the file no longer.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show which files are trusted.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Let FILE, a project's ftrun.toml, set what can run, read or write something, and show what that is.

    Its commands run as you, on the login node and on the nodes of your jobs: read it first. Trust holds for this content in this
    place; once the file changes, `ftrun sbatch` refuses it until you have trusted it again. A file that another user could have written
    is not trusted.
    """
    if bool(file) == list_ or (revoke and list_):
        raise UserError("trust: a FILE is wanted, or --list")
    folder = config.user_folder(os.environ)
    if list_:
        _list(folder, json=json)
    elif revoke:
        _revoke(file, folder, json=json)
    else:
        _trust(file, folder, json=json)


def _trust(file: str, folder: str, *, json: bool) -> None:
    path = trusting.place(file)
    if os.path.basename(path) != config.PROJECT_FILE:
        raise UserError(f"{file}: only files called {config.PROJECT_FILE} wait for trust")
    try:
        content, why = trusting.read(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if why:
        raise UserError(f"{why}, so it cannot be trusted")
    found = config.project_settings(path, content)
    able = config.reaching(found)
    rows = [
        {"key": key, "value": found[key], "text": show(key, found[key]), "can": can}
        for key, can in able.items()
    ]
    if able and trusting.why_not(path, content, folder):
        try:
            trusting.allow(path, content, folder)
        except OSError as error:
            raise UserError(
                f"{error.filename or folder}: {error.strerror or error}; nothing is trusted", 1
            ) from None
    if json:
        output.emit_json({"path": path, "trusted": bool(able), "settings": rows})
    elif not able:
        print(f"{path} sets nothing that can run, read or write something: it counts without trust")
    else:
        output.table(("setting", "can", "value"), [(row["key"], row["can"], row["text"]) for row in rows])
        print(f"{path} is trusted as it is now")


def _revoke(file: str, folder: str, *, json: bool) -> None:
    try:
        was_trusted = trusting.revoke(file, folder)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", 1) from None
    if not was_trusted:
        raise UserError(f"{trusting.place(file)} was not trusted; see: ftrun trust --list", 1)
    if json:
        output.emit_json({"path": trusting.place(file), "trusted": False})
    else:
        print(f"{trusting.place(file)} is trusted no longer")


def _list(folder: str, *, json: bool) -> None:
    rows: list[dict[str, Any]] = trusting.listed(folder)
    if json:
        output.emit_json({"files": rows})
    elif rows:
        output.table(("file", "since", "state"), [(row["path"], row["at"], row["state"]) for row in rows])
    else:
        print("no file is trusted")
