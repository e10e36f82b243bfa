"""Laws of asking the site's service: what the journal remembers of it, and whose answers are believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.nodes import spool

ID = "0123456789abcdef" * 2


def journalled(*steps: dict[str, Any], spool_path: str = "") -> Run:
    """A run after these records about one request."""
    run = Run("r-1", settings={"site-spool": spool_path})
    for number, step in enumerate(steps):
        run = apply(
            run, {"kind": "drain.asked", "at": 100.0 + number, "data": {"id": ID, "node": "n1", **step}}
        )
    return run


def answer(path: Path, **facts: Any) -> None:
    """What the service writes."""
    found = spool.Spool(str(path))
    found.answer(ID, {"verdict": "refused", "why": "healthy", "node": "n1", "at_s": 1.0} | facts)
    found.close()


INTENDED, LEFT = {"step": "intended", "incident": "1.0"}, {"step": "left"}


def test_the_journal_remembers_node_incident_and_what_came_of_it() -> None:
    """One entry for each request, whatever was said of it last."""
    run = journalled(INTENDED, LEFT, {"step": "answered", "verdict": "drained", "why": "gpu-check"})

    told = {
        "id": ID,
        "node": "n1",
        "incident": "1.0",
        "at_s": 100.0,
        "step": "answered",
        "verdict": "drained",
        "why": "gpu-check",
    }
    assert run.asked == {ID: told}
    assert journalled(INTENDED).asked[ID]["step"] == "intended"


def test_an_answer_is_seen_by_who_only_looks(tmp_path: Path) -> None:
    """While the request waits, and for two hours; what the journal knows already is not asked for again."""
    path = tmp_path / "spool"
    waiting = journalled(INTENDED, LEFT, spool_path=str(path))
    assert spool.with_answers(waiting, 200.0) == waiting
    answer(path)

    seen = spool.with_answers(waiting, 200.0).asked[ID]
    assert (seen["step"], seen["verdict"], seen["why"], seen["incident"]) == (
        "answered",
        "refused",
        "healthy",
        "1.0",
    )
    assert spool.with_answers(waiting, 100_000.0) == waiting
    intended = journalled(INTENDED, spool_path=str(path))
    assert spool.with_answers(intended, 200.0) == intended


@pytest.mark.parametrize("how", ["link", "no JSON", "another id", "a list", "a FIFO", "a folder"])
def test_what_is_no_answer_of_the_service_is_not_believed(tmp_path: Path, how: str) -> None:
    """Neither where it is another file, nor where it is of another owner, nor where it waits for a writer."""
    path = tmp_path / "spool"
    spool.Spool(str(path)).close()
    place, real = path / spool.ANSWERS / f"{ID}.json", tmp_path / "real"
    real.write_text(json.dumps({"id": ID, "verdict": "drained", "why": ""}))
    if how == "link":
        place.symlink_to(real)
    elif how == "a FIFO":
        os.mkfifo(place)
    elif how == "a folder":
        place.mkdir()
    else:
        place.write_text({"no JSON": "{", "another id": '{"id": "x"}', "a list": "[]"}[how])

    assert spool.read_answer(str(path), ID) is None
    assert spool.read_answer(str(path), "../../etc/passwd") is None
    assert spool.read_answer(str(tmp_path / "nowhere"), ID) is None


def test_a_request_is_left_whole_and_again_is_no_harm(tmp_path: Path) -> None:
    """A cut try leaves nothing in the way; what is there is a plain file of the user's that the service can read."""
    path = tmp_path / "spool"
    service = spool.Spool(str(path))
    (path / f".{ID}.tmp").write_text("cut")
    for _ in range(2):
        spool.put_request(str(path), ID, b"MUNGE:x:")

    (waiting,), removed = service.look()
    assert (waiting.id, waiting.uid, removed) == (ID, os.geteuid(), 0)
    assert service.read(waiting) == b"MUNGE:x:"
    assert (path / f"{ID}.req").stat().st_mode & 0o777 == 0o644
    service.close()


@pytest.mark.parametrize("how", ["folder", "link", "FIFO", "gone", "huge", "another's"])
def test_what_is_swapped_between_look_and_opening_is_not_read(tmp_path: Path, how: str) -> None:
    """The service judges what it opened, not the name that it saw; and waits for nobody."""
    service = spool.Spool(str(tmp_path / "spool"))
    spool.put_request(service.path, ID, b"MUNGE:x:")
    (waiting,), _ = service.look()
    path = tmp_path / "spool" / f"{ID}.req"
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "FIFO":
        os.mkfifo(path)
    elif how == "huge":
        path.write_bytes(b"x" * 20_000)
    elif how == "another's":
        path.write_bytes(b"MUNGE:x:")
        waiting = spool.WaitingRequest(waiting.name, waiting.id, waiting.uid + 1)

    assert service.read(waiting) is None
    service.remove(waiting.name)
    assert service.look() == ([], 0)
    service.close()
