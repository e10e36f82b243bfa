"""What a run is to be left for, and when it will be through, in words. (I/O)"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ftrun.supervisor.halts import Halt

__all__ = ["conditions", "lines", "state", "wanted"]


def conditions(halt: Halt) -> str:
    """Under which conditions a run is left."""
    words = []
    if halt.now:
        words.append("now, after a checkpoint if one comes soon")
    if halt.after_checkpoint:
        words.append("after its next checkpoint")
    if halt.at_step is not None:
        words.append(f"at step {halt.at_step}")
    if halt.before_s is not None:
        words.append(time.strftime("before %Y-%m-%d %H:%M:%S", time.localtime(halt.before_s)))
    return " or ".join(words)


def wanted(data: Mapping[str, Any]) -> str:
    """What `halt.json` said when it was read."""
    halt = Halt.from_json(data)
    by = f", asked by {halt.by}" if halt.by else ""
    return (
        f"{'pauses' if halt.pause else 'ends'} {conditions(halt)}{by}" if halt.wanted else f"taken back{by}"
    )


def state(row: Mapping[str, Any]) -> str:
    """The column STATE of a run (`views.run_row`): where it is, and what is asked of it."""
    if row["paused"]:
        return "paused"
    halt = Halt.from_json(row["halt"])
    asked = row["wish"] or (halt.word if halt.wanted else "")
    words = [str(row["state"]), "(observe)" if row["observe"] else "", f"({asked} asked)" if asked else ""]
    return " ".join(filter(None, words))


def lines(row: Mapping[str, Any]) -> list[str]:
    """What `ftrun show` says of the future of a run."""
    halt, end, asked, told = Halt.from_json(row["halt"]), row["expected_end"], row["leaving"], []
    if halt.wanted and not row["paused"]:
        told.append(wanted(row["halt"]))
    if asked and asked["stage"] in ("intended", "asked"):
        told.append(f"a checkpoint was asked for ({asked['occasion']}) and is awaited")
    if end:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(end["at"]))
        of = f"step {end['from_step']} of {end['target_step']}, {end['step_s']:g} s a step"
        hours = (end["time_limit_s"] or 0.0) / 3600
        limit = f", time limit {f'{hours:.3g} h' if hours < 100 else f'{hours / 24:.3g} d'}" if hours else ""
        more = f", {end['jobs'] - 1} more jobs after this one" if end["jobs"] > 1 else ""
        told.append(f"expected end {at}, without time in the queue: {of}{limit}{more}")
    return told
