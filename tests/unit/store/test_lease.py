"""Laws of the lease: one leads, whoever stands still leads no more, and no two clocks are compared. (I/O)"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from ftrun.supervisor.store.lease import Lease, LeaseLost, read_holder

TERM_S = 20.0


@dataclass
class Time:
    """What really is, in seconds."""

    now: float = 0.0


class Host:
    """A host whose clocks are its own: skewed, and counting from its own boot."""

    def __init__(self, time: Time, skew_s: float = 0.0, boot_s: float = 0.0) -> None:
        self._time, self._skew_s, self._boot_s = time, skew_s, boot_s

    def now_s(self) -> float:
        return self._time.now + self._skew_s

    def mono_s(self) -> float:
        return self._time.now - self._boot_s

    def sleep(self, seconds: float) -> None:
        self._time.now += seconds


def lease(home: Path, time: Time, name: str, *, skew_s: float = 0.0, boot_s: float = 0.0) -> Lease:
    return Lease(str(home), Host(time, skew_s, boot_s), term_s=TERM_S, writer=name)


def acts(holder: Lease) -> bool:
    try:
        holder.confirm()
    except LeaseLost:
        return False
    return True


@pytest.mark.parametrize("skew_s", [-3600.0, 0.0, 3600.0])
def test_a_living_holder_keeps_the_lease_whatever_the_clocks_say(tmp_path: Path, skew_s: float) -> None:
    """A challenger whose clock is an hour off, on a host that booted at another time, never takes over."""
    time = Time()
    holder = lease(tmp_path, time, "a")
    challenger = lease(tmp_path, time, "b", skew_s=skew_s, boot_s=-5000.0)
    assert holder.acquire()
    for _ in range(100):
        time.now += TERM_S / 10
        holder.renew()
        assert not challenger.acquire()

    assert acts(holder)


def test_a_silent_holder_is_succeeded_after_the_term_and_acts_no_more(tmp_path: Path) -> None:
    """It stops acting after half the term by itself, so there is no moment in which two may act."""
    time = Time()
    holder, challenger = lease(tmp_path, time, "a"), lease(tmp_path, time, "b")
    assert holder.acquire()
    acting: list[tuple[bool, bool]] = []
    while not challenger.acquire():
        acting.append((acts(holder), False))
        time.now += 1.0
        assert time.now < TERM_S * 3
    assert not acts(holder)
    assert acts(challenger)
    assert (True, False) in acting
    assert time.now >= TERM_S

    with pytest.raises(LeaseLost):
        holder.renew()


def test_a_paused_holder_wakes_up_and_does_nothing(tmp_path: Path) -> None:
    """SIGSTOP for longer than the lease: the first thing it asks after waking is refused, even before it looks who leads."""
    time = Time()
    holder = lease(tmp_path, time, "a")
    assert holder.acquire()
    time.now += TERM_S / 2 + 1.0

    with pytest.raises(LeaseLost, match="not renewed"):
        holder.confirm()
    assert not holder.held


def test_of_two_challengers_one_wins(tmp_path: Path) -> None:
    """Both saw the same silence; the next epoch is made by exclusive create."""
    time = Time()
    holder = lease(tmp_path, time, "a")
    challengers = [lease(tmp_path, time, name) for name in "bc"]
    assert holder.acquire()
    for challenger in challengers:
        assert not challenger.acquire()
    time.now += TERM_S + 1.0

    assert [True, False] == [challenger.acquire() for challenger in challengers]
    assert "b" == read_holder(str(tmp_path)).writer


def test_a_challenger_starts_to_count_anew_when_the_counter_moved(tmp_path: Path) -> None:
    """A holder that is slow but alive is not robbed for the sum of its pauses."""
    time = Time()
    holder, challenger = lease(tmp_path, time, "a"), lease(tmp_path, time, "b")
    assert holder.acquire()
    for _ in range(10):
        assert not challenger.acquire()
        time.now += TERM_S * 0.45
        holder.renew()


def test_a_released_lease_is_taken_at_once(tmp_path: Path) -> None:
    """A clean end makes nobody wait."""
    time = Time()
    holder, challenger = lease(tmp_path, time, "a"), lease(tmp_path, time, "b")
    assert holder.acquire()
    holder.release()

    assert challenger.acquire()
    assert 2 == challenger.epoch


@pytest.mark.parametrize(("ends", "rival"), [("released", 0), ("silent", 1), ("before its first beat", 1)])
def test_an_earlier_holder_that_may_still_wake_up_is_a_rival(tmp_path: Path, ends: str, rival: int) -> None:
    """Who released the lease writes no more; who is only silent may, whoever led in between."""
    time = Time()
    first = lease(tmp_path, time, "a")
    assert first.acquire()
    if ends == "released":
        first.release()
    elif ends == "before its first beat":
        (tmp_path / "lease" / "counter-000001").unlink()
    second = lease(tmp_path, time, "b")
    if not second.acquire():
        time.now += TERM_S
        assert second.acquire()
    second.release()
    third = lease(tmp_path, time, "c")

    assert third.acquire()
    assert (second.rival, third.rival) == (rival, rival)


def test_a_dead_process_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    """Same boot, same namespace, no such process: that is proof. A process of another machine is waited for."""
    child = os.fork()
    if not child:
        Lease(str(tmp_path), Host(Time()), term_s=TERM_S).acquire()
        os._exit(0)
    os.waitpid(child, 0)

    assert lease(tmp_path, Time(), "b").acquire()


def test_an_unreadable_lease_is_a_lost_one(tmp_path: Path) -> None:
    """Who cannot prove that he leads does not act."""
    holder = lease(tmp_path, Time(), "a")
    assert holder.acquire()
    for name in os.listdir(tmp_path / "lease"):
        (tmp_path / "lease" / name).unlink()

    assert not acts(holder)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.drills) for seed in range(6, 20))]
)
def test_two_never_act_at_one_time(tmp_path: Path, seed: int) -> None:
    """Four processes that stop, wake up, die and come back at will; renewals that take seconds, as on a slow network file system."""
    luck, time = Random(seed), Time()
    fleet = [
        lease(tmp_path, time, f"p{n}", skew_s=luck.uniform(-3600, 3600), boot_s=-1000.0 * n) for n in range(4)
    ]
    asleep_until = dict.fromkeys(range(4), 0.0)
    epochs = []
    for _ in range(600):
        time.now += luck.choice((0.5, 1.0, 2.0))
        for number, one in enumerate(fleet):
            if asleep_until[number] > time.now:
                continue
            if luck.random() < 0.02:
                asleep_until[number] = time.now + luck.choice((5.0, 15.0, 60.0))
            elif not one.held:
                if one.acquire():
                    epochs.append(one.epoch)
            else:
                time.now += luck.choice((0.0, 0.0, 3.0))  # the file system takes its time
                try:
                    one.renew()
                except LeaseLost:
                    assert not one.held
        acting = [one for one in fleet if one.held and acts(one)]
        assert len(acting) <= 1

    assert epochs == sorted(set(epochs))
    assert len(epochs) > 1
