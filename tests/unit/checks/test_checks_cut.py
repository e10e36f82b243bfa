"""Laws of reading what tools print: cut anywhere, mixed up, or not theirs at all, it breaks no check and proves nothing. (pure)"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.checks import bmc, clock, cpu, kernel_rules
from ftrun.hooks.checks.kernel_log_reader import Log, parsed
from tests.unit.checked import told

DATA = Path(__file__).parents[2] / "data" / "checks"
SEL = (DATA / "ipmitool-sel-list.txt").read_text()
DMESG = (DATA / "dmesg-xid.txt").read_text()
CHRONY = "7F000001,127.0.0.1,4,1795250641.232410724,-0.000001149,-0.000000402,0.000000402,-0.040,-0.000,1.146,0.000006079,0.000014102,2.0,Normal\n"
TOOLS = ("chronyc", "ntpq", "timedatectl timesync-status", "timedatectl show")
# Text with the signs that make such output: a wilder mix than any tool prints.
ODD = st.text(st.sampled_from("ab09 .:|,=-+/#()[]<>\n\t\0µé%"), max_size=300)


@pytest.mark.parametrize("name", TOOLS)
@given(ODD)
def test_odd_answers_of_time_services_are_no_answers(name: str, text: str) -> None:
    """Whatever stands there."""
    told("clock", clock.ClockFacts(((name, text),)))


@given(st.integers(0, len(SEL)), st.integers(0, len(SEL)), ODD)
def test_an_event_log_may_be_cut_anywhere(first: int, last: int, odd: str) -> None:
    """Half lines say nothing, whole ones the same as ever."""
    told("bmc", bmc.BmcFacts(SEL[first:last] + odd, odd, 1_795_255_000.0))
    assert len(bmc.events(SEL[:last])) <= len(bmc.events(SEL))


@given(st.integers(0, len(DMESG)), st.integers(0, len(DMESG)), ODD)
def test_a_kernel_log_may_be_cut_anywhere(first: int, last: int, odd: str) -> None:
    """Half lines and lines of programs too."""
    lines = parsed(DMESG[first:last] + odd, 1_795_000_000.0)
    told("kernel-log", Log(lines, 1_795_001_000.0, "" if lines else "nothing"))


@given(ODD)
def test_the_table_of_kernel_faults_takes_any_line(text: str) -> None:
    """And names a device only where a rule matches."""
    rule = kernel_rules.rule_of(text)
    assert rule == kernel_rules.rule_of(text, kernel_rules.rules_for([text]))
    if rule:
        kernel_rules.device_of(rule, text)


def test_rules_that_are_not_tried_would_not_match() -> None:
    """Every line of the examples, alone and among all others, is of the same rule as among all rules."""
    texts = [line.text for line in parsed(DMESG, 1_795_000_000.0)]
    few = kernel_rules.rules_for(texts)

    assert 1 < len(few) < len(kernel_rules.RULES)
    for text in texts:
        assert kernel_rules.rule_of(text) == kernel_rules.rule_of(text, few)
        assert kernel_rules.rule_of(text) == kernel_rules.rule_of(text, kernel_rules.rules_for([text]))


@given(ODD)
def test_lists_of_processors_take_any_text(text: str) -> None:
    """What is odd is left out."""
    assert all(number >= 0 for number in cpu.members(text))


def test_every_cut_of_a_good_answer_is_less_sure_and_never_worse() -> None:
    """A pipe that broke makes no clock wrong."""
    whole = told("clock", clock.ClockFacts((("chronyc", CHRONY),)))
    cuts = [told("clock", clock.ClockFacts((("chronyc", CHRONY[:end]),))) for end in range(0, len(CHRONY), 3)]

    assert "ok" == whole[0].severity
    assert {"ok", "unknown"} >= {found[0].severity for found in cuts}
