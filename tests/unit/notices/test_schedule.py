"""Laws of when a message leaves: never more than N an hour, nothing in quiet hours, nothing lost, nothing twice. (pure, and an outbox on disk)"""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.runtime.formats import DAY_S
from ftrun.supervisor.config.settings import defaults
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.notices.notice import KINDS, Notice
from ftrun.supervisor.notices.outbox import Outbox
from ftrun.supervisor.notices.schedule import Message, Rules, Told, is_quiet, next_message

NIGHT = 1_800_000_000.0 - 1_800_000_000.0 % DAY_S


def notice(number: int, kind: str = "gave-up") -> Notice:
    return Notice(f"n{number}", kind, "r", 0.0, f"what {number}", "then")


def sent(*notices: Notice, told: Told, rules: Rules, now_s: float) -> list[str] | str:
    found = next_message(notices, told, rules, now_s, 0.0)
    return [one.id for one in found.notices] if isinstance(found, Message) else found


def test_what_matters_leaves_at_once_and_the_rest_waits_for_the_morning() -> None:
    """The summary holds all that waits; there is none where nothing waits, and one a day."""
    rules, told = Rules(), Told(NIGHT)
    fault, end = notice(1, "fault"), notice(2, "finished")

    assert ["n2"] == sent(fault, end, told=told, rules=rules, now_s=NIGHT + 60)
    assert "" == sent(fault, told=told, rules=rules, now_s=NIGHT + 60)
    assert ["n1"] == sent(fault, told=told, rules=rules, now_s=NIGHT + 8 * 3600)
    done = Told(NIGHT, (), NIGHT + 8 * 3600)
    assert "" == sent(fault, told=done, rules=rules, now_s=NIGHT + 9 * 3600)
    assert ["n1"] == sent(fault, told=done, rules=rules, now_s=NIGHT + DAY_S + 9 * 3600)
    assert "" == sent(told=done, rules=rules, now_s=NIGHT + DAY_S + 9 * 3600)


def test_the_last_message_of_an_hour_holds_all_that_waits() -> None:
    rules, now_s = Rules(per_hour=2), NIGHT + 60
    many = [notice(n) for n in range(5)]

    assert ["n0"] == sent(*many, told=Told(NIGHT), rules=rules, now_s=now_s)
    assert ["n1", "n2", "n3", "n4"] == sent(
        *many[1:], told=Told(NIGHT, (now_s,)), rules=rules, now_s=now_s + 1
    )
    full = Told(NIGHT, (now_s, now_s + 1))
    assert "2 messages left within an hour" == sent(*many, told=full, rules=rules, now_s=now_s + 3599)
    assert isinstance(sent(*many, told=full, rules=rules, now_s=now_s + 3600), list)


@pytest.mark.parametrize(
    ("quiet", "minutes"), [((22 * 60, 7 * 60), {23 * 60, 0, 419}), ((60, 120), {60, 119})]
)
def test_quiet_hours_may_lie_on_either_side_of_midnight(quiet: tuple[int, int], minutes: set[int]) -> None:
    rules = Rules(quiet=quiet)

    assert all(is_quiet(rules, NIGHT + 60 * minute, 0.0) for minute in minutes)
    assert not any(is_quiet(rules, NIGHT + 60 * minute, 0.0) for minute in (12 * 60, quiet[1]))
    assert is_quiet(rules, NIGHT + 60 * quiet[0] - 3600, 3600.0)


KIND = st.sampled_from(sorted(KINDS))
WAIT = st.sampled_from([0.0, 1.0, 30.0, 300.0, 1800.0, 4000.0, 40_000.0])
STORY = st.lists(st.tuples(WAIT, st.lists(KIND, max_size=8), st.sampled_from(["", "", "down"])), max_size=40)


@given(STORY, st.integers(1, 4), st.sampled_from([None, (22 * 60, 7 * 60), (600, 700)]))
def test_whatever_happens_an_hour_has_so_many_messages_and_each_notice_arrives_once(
    story: list[tuple[float, list[str], str]], per_hour: int, quiet: tuple[int, int] | None
) -> None:
    """Bursts, receivers that are down, restarts of the process after each event: no hour has more than N, no quiet hour any, and in the end all arrived, each once."""
    rules = Rules(per_hour=per_hour, quiet=quiet)
    arrived: list[tuple[float, list[str]]] = []
    told, now_s = 0, NIGHT
    with tempfile.TemporaryDirectory() as folder:
        box = Outbox(folder)
        box.add_receivers(["a"], now_s)
        quiet_days: list[tuple[float, list[str], str]] = [(600.0, [], "")] * (3 * 144)
        for wait_s, kinds, state in [*story, *quiet_days]:
            now_s += wait_s
            if kinds or state or not now_s % 4:
                box = Outbox(folder)  # what is on disk is all there is
            for kind in kinds:
                assert box.accept(notice(told, kind), now_s)
                assert not box.accept(notice(told, kind), now_s)
                told += 1
            inbox = box.inboxes["a"]
            message = next_message(list(inbox.waiting.values()), inbox.told, rules, now_s, 0.0)
            if isinstance(message, str) or inbox.is_pausing(now_s):
                continue
            box.begin("a", message, now_s)
            box.end("a", "it is down" if state else "", now_s)
            if not state:
                arrived.append((now_s, [one.id for one in message.notices]))
        assert {} == Outbox(folder).inboxes["a"].waiting
    ids = [one for _, some in arrived for one in some]
    assert sorted(ids) == sorted(f"n{number}" for number in range(told))
    times_s = [at_s for at_s, _ in arrived]
    assert all(sum(1 for other in times_s if 0 <= one - other < 3600) <= per_hour for one in times_s)
    assert not any(is_quiet(rules, at_s, 0.0) for at_s in times_s)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("notify-now", "gaveup"),
        ("notify-summary", "8"),
        ("notify-quiet", "22:00"),
        ("notify-quiet", "22:00-25:00"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(key: str, value: str) -> None:
    with pytest.raises(UserError, match=key):
        Rules.of({**defaults(), key: value})


def test_the_default_settings_are_the_default_rules() -> None:
    assert Rules() == Rules.of(defaults())
    assert Rules(now=frozenset(KINDS), summary=None) == Rules.of(
        {**defaults(), "notify-now": "all", "notify-summary": "never"}
    )
