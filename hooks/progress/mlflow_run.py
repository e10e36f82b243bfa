"""The MLflow run that an earlier start of a run began, found by a tag. (I/O)

MLflow makes the ids of its runs, and MLFLOW_RUN_ID of a run that is not there ends the script. So a first start gives
its run a tag (MLFLOW_RUN_CONTEXT), and a later one looks for it where MLflow keeps its runs: a server, an SQLite file or
a folder. MLflow itself is not there to ask: the script activates its environment later. Where not exactly one run
bears the tag, none is named: a script that begins several is none that goes on in one.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sqlite3
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ftrun.hooks.runtime import UsageError

TAG = "ftrun.run"
PARENT = "mlflow.parentRunId"
REQUEST_LIMIT_S = 4.0
ANSWER_BYTES = 1 << 20

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[\w.-]+")
_QUERY = """
    SELECT run_uuid FROM runs JOIN tags USING (run_uuid)
    WHERE key = ? AND value = ? AND lifecycle_stage = 'active'
    AND run_uuid NOT IN (SELECT run_uuid FROM tags WHERE key = ?)
"""


def main(arguments: list[str]) -> int:
    """`ftrun-hook mlflow-run NAME`: print the id of the one run with this name as its tag, else nothing."""
    if len(arguments) != 1 or not _NAME.fullmatch(arguments[0]):
        raise UsageError("mlflow-run: one name is wanted")
    try:
        found = runs_named(arguments[0], os.environ)
    except (OSError, ValueError, KeyError, TypeError, sqlite3.Error) as error:
        print(f"ftrun-hook: mlflow-run: {type(error).__name__}", file=sys.stderr)
        return 0
    if len(found) == 1 and _RUN_ID.fullmatch(found[0]):
        print(found[0])
    return 0


def runs_named(name: str, env: Mapping[str, str]) -> list[str]:
    """Ids of the live runs with this tag that are no children, in the tracking store of `env`.

    Raises OSError, sqlite3.Error, ValueError, KeyError and TypeError for a store that cannot be read.
    """
    uri = env.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith(("http://", "https://")):
        return _on_server(uri.rstrip("/"), name, env)
    if uri.startswith("sqlite:///"):
        return _in_database(uri[len("sqlite:///") :].partition("?")[0], name)
    if "://" in uri and not uri.startswith("file://"):
        return []
    if not uri and os.path.exists("mlflow.db"):
        return _in_database("mlflow.db", name)
    path = urllib.parse.unquote(urllib.parse.urlsplit(uri).path) if uri.startswith("file:") else uri
    return _in_folder(path or "mlruns", name)


def _in_database(path: str, name: str) -> list[str]:
    base = sqlite3.connect(f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro", uri=True, timeout=2.0)
    try:
        return [row[0] for row in base.execute(_QUERY, (TAG, name, PARENT))]
    finally:
        base.close()


def _in_folder(path: str, name: str) -> list[str]:
    found = []
    for experiment in os.scandir(path):
        if not experiment.is_dir() or experiment.name.startswith("."):
            continue
        for run in os.scandir(experiment.path):
            try:
                with open(os.path.join(run.path, "tags", TAG), encoding="utf-8") as stream:
                    is_this = stream.read(256).strip() == name
                with open(os.path.join(run.path, "meta.yaml"), encoding="utf-8") as stream:
                    is_live = "\nlifecycle_stage: active" in "\n" + stream.read(ANSWER_BYTES)
            except OSError:
                continue
            if is_this and is_live and not os.path.exists(os.path.join(run.path, "tags", PARENT)):
                found.append(run.name)
    return found


def _on_server(url: str, name: str, env: Mapping[str, str]) -> list[str]:
    asked = {"max_results": 1000, "view_type": "ACTIVE_ONLY"}
    experiments = _asked(url, "experiments/search", asked, env).get("experiments", [])
    ids = [one["experiment_id"] for one in experiments]
    asked = {"experiment_ids": ids, "filter": f"tags.`{TAG}` = '{name}'", "run_view_type": "ACTIVE_ONLY"}
    runs = _asked(url, "runs/search", asked, env).get("runs", []) if ids else []
    tags = {one["info"]["run_id"]: {tag["key"] for tag in one["data"].get("tags", ())} for one in runs}
    return [run for run, keys in tags.items() if PARENT not in keys]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:  # the password is for the server that the user named
        return None


def _asked(url: str, what: str, body: dict[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "User-Agent": "ftrun"}
    request = urllib.request.Request(f"{url}/api/2.0/mlflow/{what}", json.dumps(body).encode(), headers)  # noqa: S310
    user, password = (env.get(f"MLFLOW_TRACKING_{key}", "") for key in ("USERNAME", "PASSWORD"))
    if token := env.get("MLFLOW_TRACKING_TOKEN", ""):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    elif user:
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {basic}")
    with urllib.request.build_opener(_NoRedirect()).open(request, timeout=REQUEST_LIMIT_S) as answer:
        found: dict[str, Any] = json.loads(answer.read(ANSWER_BYTES))
    return found
