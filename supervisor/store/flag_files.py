"""Small files by which supervisor, agent, commands and script ask each other for something. (I/O)

    halt.json            in a run's folder: the conditions of `ftrun stop` and `ftrun pause`
    leave.<launch>.json  in an attempt's folder: the nodes that the supervisor wants the agent to leave at the
                         next checkpoint; only the agent acts inside its allocation
    save-now             in a run's folder: a token that asks for a checkpoint, for scripts that poll a file

Each is written whole or not at all, and stands as long as the request does.

Supervisor and agent may ask for a checkpoint at the same time for different reasons; any new checkpoint
answers both. The token tells one request from the next. The agent does not overwrite a request that stands
there; the supervisor does, because its requests outlive a start. Nobody removes a request of another. When
a launch is over, so are all of its requests.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config import home
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.model import stop_conditions
from ftrun.supervisor.model.stop_conditions import BadStopConditions, StopConditions
from ftrun.supervisor.store import checkpoints
from ftrun.supervisor.store import run_dir as store_run_dir

if TYPE_CHECKING:
    from ftrun.supervisor.model.run import Run

VERSION = 1
"""Of both JSON files; readers of earlier releases ignore the key."""

HALT_MAX_BYTES = 16 * 1024


def write_halt(run_dir: str, halt: StopConditions) -> None:
    """Replace the stop conditions. Raises OSError."""
    text = json.dumps({"v": VERSION, **halt.to_json()}) + "\n"
    home.write_atomically(os.path.join(run_dir, stop_conditions.HALT_FILE), text.encode())


def read_halt(run_dir: str) -> StopConditions | None:
    """Return the stop conditions; None if there is no file that can be read. Raises BadStopConditions."""
    path = os.path.join(run_dir, stop_conditions.HALT_FILE)
    text = store_run_dir.read_untrusted(path, HALT_MAX_BYTES)
    if text is None:
        return None
    try:
        halt = StopConditions.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadStopConditions(
            str(error) if isinstance(error, BadStopConditions) else "it is no JSON"
        ) from None
    return halt if halt.token else replace(halt, token=checkpoints.content_stamp(path))  # written by hand


def remove_halt(run_dir: str) -> None:
    """Remove the stop conditions. Raises OSError, but not if there are none."""
    try:
        os.unlink(os.path.join(run_dir, stop_conditions.HALT_FILE))
    except FileNotFoundError:
        return


def with_due_stop(run: Run, run_dir: str, now_s: float) -> Run:
    """`run` with the request in its halt.json, where that is due and not yet journalled."""
    try:
        halt = read_halt(run_dir)
    except BadStopConditions:
        return run
    if halt is None or run.wish == "cancel" or halt.token == run.halt.get("token"):
        return run
    step = run.attempt.last_step if run.attempt is not None else None
    save_wait_s = number_of(run.settings, "save-wait")
    if not halt.due(step=step, now_s=now_s, save_wait_s=save_wait_s):
        return replace(run, wish="", halt=halt.to_json())
    return replace(run, wish=halt.word, wish_by=halt.by, halt=halt.to_json())


LEAVE_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """The nodes that the agent is to leave, the nodes that no later start may use, and why."""

    token: str
    nodes: tuple[str, ...]
    aside: tuple[str, ...]
    why: str


def write_leave(place: str, launch: int, wish: LeaveRequest) -> None:
    """Write the request into the attempt's folder `place`. Raises OSError."""
    home.write_atomically(_path(place, launch), (json.dumps({"v": VERSION, **asdict(wish)}) + "\n").encode())


def read_leave(place: str, launch: int) -> LeaveRequest | None:
    """Return the request that stands there; None if there is none that can be read."""
    text = store_run_dir.read_untrusted(_path(place, launch), LEAVE_MAX_BYTES)
    if not text:
        return None
    try:
        told = json.loads(text)
        nodes, aside = (tuple(map(str, told[key])) for key in ("nodes", "aside"))
        return LeaveRequest(str(told["token"]), nodes, aside, str(told["why"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def remove_leave(place: str, launch: int) -> None:
    """Remove the request."""
    _remove(_path(place, launch))


def _path(place: str, launch: int) -> str:
    return os.path.join(place, f"leave.{launch}.json")


SAVE_FILE = "save-now"
SAVE_MAX_BYTES = 4096


def request_save(run_dir: str, token: str, *, beside: bool = False) -> None:
    """Write the request `token`; `beside` = only if no other stands there. Raises OSError."""
    path = os.path.join(run_dir, SAVE_FILE)
    if beside and store_run_dir.read_untrusted(path, SAVE_MAX_BYTES):
        return
    home.write_atomically(path, f"{token}\n".encode(), mode=0o644)


def withdraw_save(run_dir: str, token: str) -> None:
    """Remove the request `token`; any other one stays."""
    path = os.path.join(run_dir, SAVE_FILE)
    if token and store_run_dir.read_untrusted(path, SAVE_MAX_BYTES) == f"{token}\n".encode():
        _remove(path)


def clear_save_requests(run_dir: str) -> None:
    """Remove any request."""
    _remove(os.path.join(run_dir, SAVE_FILE))


def script_reads_save_file(place: str, start_token: str) -> bool:
    """Whether a rank of this start sends heartbeats by `beat`, and so reads the file, too."""
    try:
        return bool(os.listdir(os.path.join(place, "beats", start_token)))
    except OSError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
