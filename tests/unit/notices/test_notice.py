"""Which record gives which notice, and what its two lines say. (pure)"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.notices.message import letter_of, mail_of, signature
from ftrun.supervisor.notices.notice import KINDS, Notice, notices_of, one_line, stalled_notice
from ftrun.supervisor.notices.schedule import Message
from ftrun.supervisor.reports.statistics import fault_costs
from tests.unit.told_runs import Told


def notices(told: Told) -> list[Notice]:
    """All notices of a journal."""
    run, ledger = told.run(), told.ledger(10_000)
    found: list[Notice] = []
    for record in told.records:
        found += notices_of(run, record, lambda: fault_costs(run, ledger))
    return found


def faulty(**settings: Any) -> Told:
    """A run that failed once and trains again."""
    told = Told(**settings)
    told.opens(0)
    told.runs(10)
    told.steps(70, 60)
    told.fails(200, sign_s=190, step=150)
    told.opens(210)
    told.runs(230)
    told.say(300, "launch.progress", step=151, step_s=1.0, total=None, loss=1.0, first_step=True)
    return told


def test_a_fault_and_its_recovery_say_what_where_what_was_done_and_what_it_cost() -> None:
    """Two lines each, and the id is the incident's, so the same record twice is one notice."""
    fault, recovered = notices(faulty())

    assert ("fault", "recovered") == (fault.kind, recovered.kind)
    assert "r: node on n1: t" == fault.what
    assert "Done: resubmit (r). Cost: known when it trains again. You: nothing." == fault.then
    assert "r: trains again after node on n1: t" == recovered.what
    assert re.fullmatch(r"Done: resubmit\. Cost: .* node-hours.*\. You: nothing\.", recovered.then)
    assert [one.id for one in notices(faulty())] == [fault.id, recovered.id]
    assert fault == Notice.of_json(json.loads(json.dumps(fault.facts)))


def test_a_run_that_gives_up_says_why_and_what_to_do() -> None:
    told = faulty()
    told.say(400, "job.ended", state="FAILED")
    told.say(402, "run.stopped", reason="the same fault at the same step", **{"class": "node"})
    last = notices(told)[-1]

    assert ("gave-up", "r: gave up: the same fault at the same step") == (last.kind, last.what)
    assert "2 attempts, 1 fault, then stopped. Cost: " in last.then
    assert last.then.endswith("You: read `ftrun explain r`, mend it, then `ftrun resume r`.")


@pytest.mark.parametrize("by", ["cancel", "class"])
def test_a_run_that_a_person_ended_is_no_give_up(by: str) -> None:
    told = Told()
    told.opens(0)
    told.runs(10)
    if by == "cancel":
        told.say(20, "request.seen", name="1", want="cancel", by="ann")
    told.say(30, "job.ended", state="CANCELLED")
    told.say(31, "run.stopped", reason="cancelled by a person", **{"class": "cancelled"})

    assert [] == notices(told)


def test_a_run_that_ends_well_and_a_node_that_is_drained_are_told() -> None:
    told = faulty()
    told.say(301, "drain.done", node="n1", reason="ftrun: Xid 79")
    told.say(400, "job.ended", state="COMPLETED")
    told.say(401, "run.finished", reason="its script ended with 0", exit_code=0)
    drained, finished = notices(told)[-2:]

    assert ("drained", ("n1",), "finished") == (drained.kind, drained.nodes, finished.kind)
    assert "have n1 repaired" in drained.then
    assert "r: finished at step 151" == finished.what


def test_the_last_retry_is_told_before_it_is_needed() -> None:
    assert "budget" in [one.kind for one in notices(_spent(5))]
    assert "budget" not in [one.kind for one in notices(_spent(1))]


def _spent(used: int) -> Told:
    told = Told()
    told.opens(0)
    told.runs(10)
    told.fails(200, sign_s=190, step=150)
    told.records[-1]["data"]["spent"] = {"node": used}
    return told


def stalls_at(told: Told, now_s: float) -> bool:
    return stalled_notice(told.run(), 1000.0 + now_s, 3600.0) is not None


def test_a_run_stalls_where_it_should_train_and_does_not() -> None:
    """Since its last step, or since it lost its job; not in its first wait, not where nobody sees its steps, not when it is over."""
    waits = Told()
    waits.opens(0)
    assert not stalls_at(waits, 90_000)
    silent = Told()
    silent.opens(0)
    silent.runs(10)
    assert not stalls_at(silent, 90_000)

    told = faulty()
    assert not stalls_at(told, 300 + 3599)
    assert stalls_at(told, 300 + 3601)
    assert stalled_notice(told.run(), 9000, 3600) is not None
    told.fails(400, sign_s=390, step=160)
    told.opens(410)
    assert not stalls_at(told, 410 + 3599)
    assert stalls_at(told, 410 + 3601)
    told.say(420, "run.stopped", reason="x")
    assert not stalls_at(told, 90_000)


def test_a_run_that_stands_still_is_one_notice_however_often_it_is_looked_at() -> None:
    """Once it has moved and stands still again, it is another one."""
    told = faulty()
    first = [stalled_notice(told.run(), 1000.0 + at, 3600.0) for at in (4000, 5000, 9000)]
    told.steps(9100, 200)
    later = stalled_notice(told.run(), 1000.0 + 9100 + 4000, 3600.0)

    assert 1 == len({one.id for one in first if one is not None})
    assert later is not None
    assert later.id not in {one.id for one in first if one is not None}


HOSTILE = "\x1b[31mred\x1b[0m\r\nBcc: evil@example.org\x00 \u202e\u2028end \x1b]0;title\x07"


def test_no_word_of_a_log_gets_beyond_one_printable_line() -> None:
    """Escapes for terminals, line ends, marks that turn the direction; a mail has no header that a log wrote."""
    told = faulty()
    for record in told.records:
        if record["kind"] == "diagnosed":
            record["data"]["diagnosis"] |= {"title": HOSTILE * 40, "class": "node"}
    for one in notices(told):
        assert one.what.isprintable()
        assert one.then.isprintable()
        assert len(one.what) <= 300
        mail = mail_of(letter_of(Message((one,)), "ann@login1"), "", ("ann@example.org",), 0.0)
        assert ["Subject", "To", "Date", "Message-ID", "Auto-Submitted"] == [
            name for name in mail if not name.startswith(("Content", "MIME"))
        ]
        assert "evil" not in "".join(line for line in mail.as_string().splitlines() if line.startswith("Bcc"))


@given(st.text())
def test_any_text_becomes_one_bounded_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert len(one_line(text)) <= 300


def test_a_message_says_all_of_its_notices_or_how_many_more_there_are() -> None:
    many = tuple(Notice(f"r {n}", "fault", "r", 1.0, f"fault {n}", "then") for n in range(60))
    letter = letter_of(Message(many, summary=True), "ann@login1")
    told = json.loads(letter.body)

    assert "[ftrun] 60 notices of 1 run" == letter.subject
    assert (40, 20) == (len(told["notices"]), told["more"])
    assert "... and 20 more" in letter.text
    assert letter == letter_of(Message(many, summary=True), "ann@login1")


def test_every_kind_has_a_sentence_in_the_documents() -> None:
    from pathlib import Path

    page = (Path(__file__).resolve().parents[3] / "docs" / "notices.md").read_text()
    assert [] == [kind for kind in KINDS if f"| `{kind}` |" not in page]


def test_the_signature_is_what_the_documents_say() -> None:
    import hashlib
    import hmac

    assert hmac.new(b"k", b"17.{}", hashlib.sha256).hexdigest() == signature("k", "17", b"{}")
