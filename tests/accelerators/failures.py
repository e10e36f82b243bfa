"""Failing programs, and what `ftrun diagnose` makes of their raw logs; what an expert would say stands beside. (I/O)"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.accelerators.cases import Case
from tests.accelerators.here import Here, Seen


class Failure(NamedTuple):
    """A program of programs.py: the classes that an expert would accept, whether it makes sense to start it again (None: both do).

    No node is ever to blame: what fails here is the program, or its neighbour.
    """

    program: str
    classes: str
    retry: bool | None
    device: bool = False
    ranks: int = 1
    env: tuple[tuple[str, str], ...] = ()
    limit_s: float = 60.0
    name: str = ""


NCCL = (
    ("NCCL_DEBUG", "WARN"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "30"),
)
DUMPS = "fr_"
RECORDER = (
    *NCCL,
    ("TORCH_FR_BUFFER_SIZE", "2000"),
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),  # its older name
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
    ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "3000"),
    ("TORCH_FR_DUMP_TEMP_FILE", DUMPS),
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", DUMPS),  # its older name
)
FAILURES = (
    Failure("oom_own", "oom-gpu", False, device=True),
    Failure("oom_foreign", "oom-gpu", True, device=True),
    Failure("illegal_access", "user-code|library-bug", False, device=True),
    Failure("device_assert", "user-code|data", False, device=True),
    Failure("wrong_launch", "user-code|library-bug", False, device=True),
    Failure("cublas_error", "oom-gpu|library-bug", None, device=True),
    Failure("cudnn_error", "oom-gpu|library-bug", None, device=True),
    Failure("nccl_duplicate", "config", False, device=True, ranks=2, env=NCCL),
    Failure("nccl_missing", "hang|network", True, device=True, ranks=2, env=NCCL, limit_s=90),
    Failure(
        "nccl_timeout",
        "hang|network",
        True,
        device=True,
        env=RECORDER,
        limit_s=90,
        name="flight_recorder",
    ),
    Failure(
        "no_device",
        "config|hardware-gpu",
        None,
        device=True,
        env=(("CUDA_VISIBLE_DEVICES", ""),),
        name="none_visible",
    ),
    Failure("triton_error", "user-code|library-bug", False, device=True),
    Failure("nan", "user-code", False),
    Failure("shapes", "user-code", False),
    Failure("compile_error", "user-code|library-bug", False),
    Failure("torn_checkpoint", "checkpoint", True),
    Failure("other_checkpoint", "checkpoint|user-code|config", False),
    Failure("loader_killed", "oom-host|unknown", None),
    Failure("loader_bus", "config|oom-host", False),
    Failure("loader_broken", "user-code|data", False),
    Failure("peer_lost", "unknown|oom-host", True, ranks=2),
    Failure("peer_late", "hang|network", True, ranks=2),
    Failure("nobody_joins", "hang|network", True),
    Failure("port_taken", "port-conflict", True),
)


def judged(here: Here, failure: Failure) -> Seen:
    """Let the program fail, and have its log diagnosed; the log stays where the results go."""
    done = here.program(failure.program, limit_s=failure.limit_s, ranks=failure.ranks, env=dict(failure.env))
    name = failure.name or failure.program
    log = kept(here, f"{name}.log", done.text)
    assert done.code != 0, "the program did not fail"
    told = diagnosis(here, log, *done.folder.glob(f"{DUMPS}*"))
    text = f"{told['class']}, {'retry' if told['retry'] else 'no retry'} ({told['signature']}, confidence {told['confidence']:.2f})"
    if done.code is None:
        text = f"killed at {failure.limit_s:.0f} s; {text}"
    right = told["class"] in failure.classes.split("|") and failure.retry in (None, told["retry"])
    if failure.env == RECORDER:
        text = f"{text}; {len(list(done.folder.glob(f'{DUMPS}*')))} dump(s)"
    return Seen(text + (f", blames {told['nodes']}" if told["nodes"] else ""), right and not told["nodes"])


def diagnosis(here: Here, *logs: Path) -> dict[str, object]:
    """What `ftrun diagnose --json` prints of a log, and of what else the program left."""
    found: dict[str, object] = json.loads(
        here.ftrun("diagnose", "--json", *map(str, logs)).text.strip().splitlines()[-1]
    )
    return found


def kept(here: Here, name: str, text: str) -> Path:
    """A raw log, kept beside the results."""
    path = here.folder / "logs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def _case(failure: Failure) -> Case:
    what = {True: "retry", False: "no retry", None: "retry or not"}[failure.retry]
    need = "device" if failure.device else "torch"
    try_it: Callable[[Here], Seen] = lambda here: judged(here, failure)  # noqa: E731
    return Case(
        "failures",
        failure.name or failure.program,
        f"{failure.classes}, {what}, no node",
        try_it,
        (need,),
        failure.limit_s,
    )


CASES = [_case(failure) for failure in FAILURES]
