"""`halt.json` in a run's folder: written whole by the commands, read by supervisor and agent. (I/O)"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor import checkpoints, store
from ftrun.supervisor.halts import FILE, BadHalt, Halt

if TYPE_CHECKING:
    from ftrun.supervisor.run_types import Run

__all__ = ["read", "remove", "wished", "write"]

SIZE_MAX_BYTES = 16 * 1024


def write(run_dir: str, halt: Halt) -> None:
    """Put these conditions in the place of those before. Raises OSError."""
    text = json.dumps(halt.to_json()) + "\n"
    store.write_atomically(os.path.join(run_dir, FILE), text.encode())


def read(run_dir: str) -> Halt | None:
    """The conditions that stand there; None where there is no file that can be read. Raises BadHalt."""
    path = os.path.join(run_dir, FILE)
    text = store.content(path, SIZE_MAX_BYTES)
    if text is None:
        return None
    try:
        halt = Halt.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadHalt(str(error) if isinstance(error, BadHalt) else "it is no JSON") from None
    return halt if halt.token else replace(halt, token=checkpoints.stamp(path))  # written by hand


def remove(run_dir: str) -> None:
    """No conditions any more. Raises OSError, not where there were none."""
    try:
        os.unlink(os.path.join(run_dir, FILE))
    except FileNotFoundError:
        return


def wished(run: Run, run_dir: str, now_s: float) -> Run:
    """`run` with the wish that its file says, where a condition holds and no supervisor has journalled it yet."""
    try:
        halt = read(run_dir)
    except BadHalt:
        return run
    if halt is None or run.wish == "cancel" or halt.token == run.halt.get("token"):
        return run
    step = run.attempt.last_step if run.attempt is not None else None
    save_wait_s = float(run.settings.get("save-wait", 120.0))
    if not halt.due(step=step, now_s=now_s, save_wait_s=save_wait_s):
        return replace(run, wish="", halt=halt.to_json())
    return replace(run, wish=halt.word, wish_by=halt.by, halt=halt.to_json())
