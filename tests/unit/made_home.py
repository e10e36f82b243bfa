"""A home with runs in every state, as their journals would tell them; for the board. (I/O)"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftrun.supervisor.store import journal

Say = Callable[..., None]
FIRST = "000000-submit.jsonl"
STEP_S = 1.25
TOTAL = 50_000
XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def write_run(home: Path, name: str, age_s: float, told: Callable[[Say], None], **settings: Any) -> Path:
    """A run that was created so long ago; `told` says its further records at seconds since then."""
    folder = home / "runs" / name
    (folder / "journal").mkdir(parents=True)
    (folder / "requests").mkdir()
    begun_s = time.time() - age_s
    lines: list[bytes] = []
    numbers: dict[str, Any] = {"attempt": 0, "job": "", "launch": 0, "start": 1}

    def say(at_s: float, kind: str, /, *, attempt: int | None = None, job: str = "", **data: Any) -> None:
        numbers.update({"attempt": attempt or numbers["attempt"], "job": job or numbers["job"]})
        lines.append(
            journal.record_line(
                journal.new_record(kind, dict(numbers), data, seq=len(lines), now_s=begun_s + at_s)
            )
        )

    say(0, "run.created", name=name.rpartition("-")[0], settings=settings, submitter={})
    told(say)
    (folder / "journal" / FIRST).write_bytes(b"".join(lines))
    return folder


def queued(say: Say, at_s: float = 0.0, *, attempt: int = 1, job: str = "4711") -> None:
    """The run waits in the queue."""
    say(at_s, "attempt.opened", attempt=attempt)
    say(at_s, "submit.intended", token="t")
    say(at_s + 1, "submit.done", job=job)


def trains(
    say: Say, at_s: float, until_s: float, *, nodes: list[str], first_step: int = 0, seed: float = 0.0
) -> int:
    """The job starts and shows a step a minute until then; the last step."""
    say(at_s, "job.started", nodes=nodes, started_at_s=None, limit_s=7 * 86_400.0)
    step = first_step
    for minute in range(1, int((until_s - at_s) / 60) + 1):
        step = first_step + int(minute * 60 / STEP_S)
        loss = 2.1 + 7 * math.exp(-step / 4000) + 0.08 * math.sin(minute * 1.7 + seed)
        say(at_s + minute * 60, "launch.progress", step=step, step_s=STEP_S, total=TOTAL, loss=round(loss, 4))
    return step


def breaks(
    say: Say, at_s: float, step: int, *, kind: str = "resubmit", title: str = "a GPU fell off the bus"
) -> None:
    """The job ends by a fault of a node; `kind`: what is decided."""
    say(at_s, "job.ended", state="FAILED", exit_code=1)
    proof = {"file": "/shared/llm/train.out", "line": 812, "text": XID, "signature": "nvidia-xid-79"}
    fault = {
        "class": "hardware-gpu", "signature": "nvidia-xid-79", "title": title, "nodes": ["n3"], "confidence": 0.95,
        "because": [proof], "consequences": 14, "advice": "", "rests_on": [],
    }  # fmt: skip
    say(at_s + 3, "diagnosed", incident="1.0", diagnosis=fault, step=step, first_evidence_at_s=None)
    reason = "hardware-gpu on n3: again without it, from checkpoint step_12000"
    more = {
        "spent": {"hardware-gpu": 1},
        "retries": 1,
        "exclude": ["n3"],
        "exclude_until_s": time.time() + 80_000.0,
        "notes": ["drain: n3 is under the cap"],
    }
    say(at_s + 3, "decided", incident="1.0", kind=kind, reason=reason, step=step, **more)


def _pretraining(say: Say) -> None:
    queued(say)
    step = trains(say, 60, 4 * 3600, nodes=["n1", "n2", "n3", "n4"])
    breaks(say, 4 * 3600 + 10, step)
    say(4 * 3600 + 20, "attempt.over", fenced=["n3"])
    queued(say, 4 * 3600 + 30, attempt=2, job="4719")
    trains(say, 4 * 3600 + 60, 7 * 3600, nodes=["n1", "n2", "n4", "n5"], first_step=step - 300)


def _tuning(say: Say) -> None:
    queued(say, job="4725")
    trains(say, 40, 2 * 3600, nodes=["n7"], seed=2.0)


def _failed(say: Say) -> None:
    queued(say, job="4690")
    step = trains(say, 40, 900, nodes=["n6"])
    breaks(say, 910, step, kind="stop")
    say(
        920,
        "run.stopped",
        reason="user-code: ValueError: batch size must be a multiple of 8",
        **{"class": "user-code"},
    )


def _strange(say: Say) -> None:
    queued(say, job="4699")
    step = trains(say, 40, 900, nodes=["n6"])
    breaks(say, 910, step, title='\x1b[31mred "quoted"\nsecond line \u202eזה הפוך')


def make(home: Path) -> None:
    """Six runs: recovered and training, training, queued, stopped, recovering with a strange title, and a damaged one."""
    write_run(home, "llm-7b-0042", 7 * 3600 + 20, _pretraining, retries=10)
    write_run(home, "tune-lora-0007", 2 * 3600 + 15, _tuning)
    write_run(home, "eval-0003", 600, lambda say: queued(say, job="4730"))
    write_run(home, "vision-0011", 86_400, _failed)
    write_run(home, "odd-0001", 3000, _strange)
    broken = (
        write_run(home, "broken-0002", 100, lambda say: queued(say, job="4600"))
        / "journal"
        / "000000-submit.jsonl"
    )
    broken.write_bytes(broken.read_bytes().replace(b"submit.done", b"submit.dome"))


def many(home: Path, count: int, minutes: int) -> Iterator[Path]:
    """So many runs that have trained for so long, one after another."""
    for number in range(count):

        def told(say: Say, number: int = number) -> None:
            queued(say, job=str(10_000 + number))
            trains(say, 10, minutes * 60.0, nodes=[f"n{number}"], seed=number)

        yield write_run(home, f"run-{number:04d}", minutes * 60.0 + number, told)


def launch(folder: Path, attempt: int, log: Path) -> None:
    """The record that the job of an attempt leaves: it writes into this log."""
    place = folder / "attempts" / str(attempt)
    place.mkdir(parents=True, exist_ok=True)
    (place / "launch.0").write_text(
        f"job=4725\nnodes=n7\nstdout={log}\nstdout_offset=0\nstderr={log}\nstderr_offset=0\n"
    )
