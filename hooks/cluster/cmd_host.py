"""`ftrun-hook host`: carries out what `ftrun cluster` asks of this host, and prints one JSON object. (I/O)

A request is a list of steps, done in order until one fails. Each step can be repeated: what is done already stays as it is. The
request comes in a file and not on the command line, which other users could read: it may hold the key of the cluster.
"""

from __future__ import annotations

import json
from typing import Any, Callable

from ftrun.hooks.cluster import (
    claim,
    daemons,
    install,
    keeper,
    keeper_install,
    nodes,
    place,
    reach,
    share,
    survey,
    unpack,
)
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.runtime.command_line import parser_of

STEPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "survey": survey.survey,
    "reach": reach.reach,
    "unmark": reach.unmark,
    "install": install.install,
    "claim": claim.take,
    "release": claim.release,
    "unpack": unpack.unpack,
    "place": place.place,
    "start": daemons.start,
    "unmount": share.unmount,
    "nodes": nodes.nodes_of_slurm,
    "jobs": nodes.jobs_of_slurm,
    "set_state": nodes.set_state,
    "status": daemons.status,
    "look_after": keeper_install.install,
    "let_go": keeper_install.uninstall,
    "keep": keeper.keep,
    "run_keeper": keeper_install.run,
    "kept": keeper.report,
    "in_control": keeper.in_control,
    "stop": daemons.stop,
    "remove": place.remove,
    "remove_state": place.remove_state,
    "logs": place.logs,
}


def main(arguments: list[str]) -> int:
    """Carry out `--request FILE`; print {"done": [answer of each step], "failed": null | {"step", "why"}}. Returns 0."""
    parser = parser_of("host", "Carry out a request of `ftrun cluster` on this host.")
    parser.add_argument("--request", required=True, metavar="FILE", help="the steps, as JSON")
    with open(parser.parse_args(arguments).request, encoding="utf-8") as stream:
        steps = json.load(stream)["steps"]
    done: list[Any] = []
    failed = None
    for step in steps:
        answer, why = _carried_out(step)
        if why:
            failed = {"step": step["do"], "why": why}
            break
        done.append(answer)
    print(json.dumps({"done": done, "failed": failed}))
    return 0


def _carried_out(step: dict[str, Any]) -> tuple[Any, str]:
    """The answer of a step, and why it failed ("" for not)."""
    try:
        return STEPS[step["do"]](step), ""
    except (HostError, OSError) as error:
        return None, " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001  a defect of ours is an answer too: else nobody learns where it was
        return None, f"{type(error).__name__}: {error}"
