"""Laws of the table of settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.config import settings
from ftrun.supervisor.config.settings import SETTINGS, parse
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.errors import SettingError
from ftrun.supervisor.model.types import CLASS_RULES, FaultClass
from ftrun.supervisor.policy.policy_input import limits_from


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("retries", "10", 10),
        ("retries", 0, 0),
        ("exclude-for", "90", 90.0),
        ("exclude-for", "90s", 90.0),
        ("exclude-for", "5m", 300.0),
        ("exclude-for", "2h", 7200.0),
        ("exclude-for", "1d", 86_400.0),
        ("exclude-for", "1.5h", 5400.0),
        ("exclude-for", 30, 30.0),
        ("fence-wait", "", ""),
        ("drain-cap", "5%", 0.05),
        ("drain-cap", 0.2, 0.2),
        ("drain", "never", "never"),
        ("observe", "yes", True),
        ("observe", False, False),
        ("rank-restart", "yes", True),
        ("rank-restart", "off", False),
        ("log", "a*", ["a*"]),
        ("log", ["a", "b"], ["a", "b"]),
        ("resume-env", "CKPT={checkpoint}", ["CKPT={checkpoint}"]),
        ("budget-node", "7", 7),
        ("straggler-ratio", "1.5", 1.5),
        ("recover", ["step", "resubmit"], "step,resubmit"),
    ],
)
def test_a_value_is_read_in_the_unit_of_the_table(key: str, text: object, value: object) -> None:
    """Durations become seconds, shares 0..1, flags truths."""
    found = parse(key, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("retrys", "1", "did you mean 'retries'?"),
        ("check-point", "1", "did you mean 'checkpoint'?"),
        ("budget-nodes", "1", "did you mean 'budget-node'?"),
        ("zzz", "1", "no setting is called 'zzz'"),
        ("settle", "2", "'settle' is now called 'log-quiet'"),
        ("lock", ["rejoin"], "'rejoin' is now called 'rank-restart'"),
        ("drained", "tell", "drained: 'tell' is now called 'warn'"),
        ("retries", "many", "a whole number from 0 up is wanted, not 'many'"),
        ("retries", "-1", "out of range"),
        ("retries", True, "whole number"),
        ("retries", [1], "not a list"),
        ("log-quiet", "5 minutes", "5m"),
        ("log-quiet", "nan", "a duration"),
        ("retries", float("inf"), "a whole number"),
        ("poll", "0", "a duration of at least 0.2 s such as 90, 90s,"),
        ("recover", "", "a value is wanted, such as rank,step,swap,companion,shrink,resubmit"),
        ("recover", [], "a value is wanted, such as rank,step,swap,companion,shrink,resubmit"),
        ("recover", " ", "a value is wanted"),
        ("rank-restart", "perhaps", "true or false"),
        ("rank-restart", "", "true or false"),
        ("drain-cap", "120%", "out of range"),
        ("drain", "nevr", "did you mean never?"),
        ("straggler-ratio", "1", "a number of at least 1.01"),
        ("straggler-ratio", "fast", "a number of at least 1.01"),
        ("observe", "maybe", "true or false"),
        ("checkpoint", "a\nb", "one line"),
        ("resume-env", "{checkpoint}", "NAME=TEMPLATE"),
        ("lock", "drian", "did you mean 'drain'?"),
        ("pool", "spares", "pool: 'spares' wants reservation:NAME or partition:NAME"),
        ("nodes", "4-2", "nodes: 4 is more than 2"),
        ("nodes-valid", "2,x", "nodes-valid: 'x' is no number of nodes"),
        ("recover", ["step", "companion"], "recover: resubmit stands last"),
        (
            "stage-dir",
            "scratch",
            "stage-dir: a full path that each node has for itself is wanted, not 'scratch'",
        ),
        ("grow", True, "grow: auto or never is wanted, not True"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(key: str, text: object, says: str) -> None:
    """One line, and the nearest right name or form in it."""
    with pytest.raises(SettingError) as refused:
        parse(key, text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", SETTINGS)
def test_every_default_is_what_its_own_text_reads_as(key: str) -> None:
    """`show` and `parse` are each other's inverse on the defaults."""
    default = settings.defaults()[key]
    shown = settings.format_value(key, default)
    assert (parse(key, shown) if shown or not isinstance(default, list) else []) == default
    assert SETTINGS[key].doc.endswith(".")


@given(st.floats(0.001, 1e7).map(lambda s: round(s, 3)))
def test_a_duration_reads_back_as_it_is_shown(seconds: float) -> None:
    """No unit loses anything that matters."""
    shown = settings.format_value("log-quiet", seconds)
    assert parse("log-quiet", shown) == pytest.approx(seconds, rel=1e-5)


def test_there_is_a_budget_for_every_fault_class() -> None:
    """The list here and the classes of the model are the same list; the rungs have budgets of their own."""
    budgets = {key.removeprefix("budget-") for key in SETTINGS if key.startswith("budget-")}
    budgets -= {"rank", "step", "swap", "companion", "shrink"}
    assert budgets == {fault.value for fault in FaultClass}


def test_the_defaults_are_the_defaults_of_the_policy() -> None:
    """A run without any setting is judged as the policy's own defaults would."""
    limits = limits_from(settings.defaults())
    assert limits == type(limits)()
    assert all(limits.budget(fault) == rule.budget for fault, rule in CLASS_RULES.items())


@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=5))
def test_the_nearest_word_is_a_known_one_or_none(word: str, known: list[str]) -> None:
    """And a word that is known is nearest to itself."""
    found = errors.nearest_word(word, known)
    assert found == "" or found in known
    if word in known:
        assert found == word
