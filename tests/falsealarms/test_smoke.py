"""The false alarms in small: every format once, and what the figures would mean. (I/O)"""

from __future__ import annotations

from ftrun.supervisor.signatures import catalog
from tests.falsealarms import __main__ as alarms

KIB = 1 << 10


def test_healthy_logs_of_every_format_harm_no_run() -> None:
    """What a healthy run prints stops nothing, excludes nobody and is called healthy, whatever format it has."""
    names = list(alarms.FORMATS)

    tally = alarms.run(len(names) * 60 * KIB, 5, names, case_mib=(0.045, 0.055), tell=False)

    assert len(names) <= tally.cases
    assert {} == dict(tally.alarms)
    assert (0, 0, 0) == (tally.stops, tally.exclusions, tally.blamed)


def test_the_count_is_not_blind() -> None:
    """A log that ends in an exception counts as an alarm, and as a stop."""
    tally = alarms.Tally()
    log = b"step 1 loss 2.0\nTraceback (most recent call last):\nKeyError: 'tokens'\n"

    alarms.judge(tally, alarms.FORMATS["torchrun"], log, catalog.load())

    assert tally.alarms
    assert tally.stops


def test_a_seed_gives_the_same_log() -> None:
    """Whoever finds an alarm can find it again."""
    made = alarms.FORMATS["megatron"]

    assert alarms.text(made, 3, 20 * KIB) == alarms.text(made, 3, 20 * KIB)
