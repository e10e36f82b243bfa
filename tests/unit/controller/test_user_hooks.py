"""The user's own commands beside the loop: when they run, how often, and that nothing of them reaches the run. (I/O)"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.controller import hook_runner, user_hooks
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.unit.lives import Life

TELL = (
    'env | grep ^FTRUN_ | sort >"$FTRUN_RUN_DIR/$FTRUN_HOOK.told"; echo once >>"$FTRUN_RUN_DIR/count"; exit 3'
)


def fail(life: Life) -> None:
    """A launch of the script dies of the machine."""
    life.until("running")
    life.train(1, 5)
    life.say("NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus.")
    life.exit(1)


def heard(life: Life, count: int = 1) -> list[dict[str, Any]]:
    """The ends of commands, once there are so many; real time passes, and a little of the virtual one."""
    deadline = time.monotonic() + 60
    while len(ends(life)) < count:
        assert time.monotonic() < deadline, life.kinds()
        life.live(0.02, step_s=0.02)
        time.sleep(0.02)
    return ends(life)


def ends(life: Life) -> list[dict[str, Any]]:
    return [record["data"] for record in life.records() if record["kind"] == "hook.ended"]


def told(life: Life, hook: str) -> dict[str, str]:
    text = Path(life.run_dir, f"{hook}.told").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def count(life: Life) -> int:
    path = Path(life.run_dir, "count")
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_fault_is_told_once_with_its_cause_and_the_decision(tmp_path: Path) -> None:
    """The command's failure is a record, and the run goes on as it would have."""
    life = Life(tmp_path, on_fault=TELL)
    fail(life)
    life.live(3)
    (end,) = heard(life)
    life.live(30)

    env = told(life, "on-fault")
    assert (3, "itself", "on-fault") == (end["code"], end["why"], end["hook"])
    assert ("hardware-gpu", "resubmit", "1") == (
        env["FTRUN_FAULT"],
        env["FTRUN_DECISION"],
        env["FTRUN_ATTEMPT"],
    )
    assert env["FTRUN_NODES"] == ",".join(life.launches[0].nodes)
    assert env["FTRUN_REASON"]
    assert (1, 1, 2) == (count(life), life.kinds().count("hook.intended"), life.attempt.number)


def test_a_stop_is_told_once_be_it_that_nobody_watched_then(tmp_path: Path) -> None:
    """A supervisor that dies between the stop and the command leaves it to the next one; after a third nothing is told again."""
    life = Life(tmp_path, on_give_up=TELL)
    life.until("running")

    def dies(point: str) -> None:
        if point == "record:after:run.stopped":
            raise PlannedCrash(point)

    life.supervisor.services.crash = dies
    life.say("ValueError: the user's own mistake")
    life.exit(1)
    with pytest.raises(PlannedCrash):
        life.until("stopped")
    assert "hook.intended" not in life.kinds()
    life.begin_anew()
    (end,) = heard(life)
    life.begin_anew()
    life.live(5)

    assert ("on-give-up", 1) == (end["hook"], count(life))
    assert ("stop", life.run.final_class) == (
        told(life, "on-give-up")["FTRUN_DECISION"],
        told(life, "on-give-up")["FTRUN_FAULT"],
    )
    assert {} == life.supervisor.reconcilers


@pytest.mark.parametrize(
    ("point", "times", "why"), [("hook:before", 0, "unknown"), ("hook:after", 1, "itself")]
)
def test_a_command_runs_at_most_once_whenever_the_supervisor_dies(
    tmp_path: Path, point: str, times: int, why: str
) -> None:
    """What was announced is not started again; how it ended is told by the next supervisor, or that nobody knows."""
    life = Life(tmp_path, on_fault=TELL, hook_limit=5.0)

    def dies(now: str) -> None:
        if now == point:
            raise PlannedCrash(now)

    life.supervisor.services.crash = dies
    fail(life)
    with pytest.raises(PlannedCrash):
        life.until("stopped")
    life.begin_anew()
    while times and not count(life):
        time.sleep(0.02)
    if not times:
        life.live(60)
    (end,) = heard(life)

    assert end["why"].startswith(why)
    assert times == count(life)


def test_where_ftrun_only_watches_the_user_is_told_all_the_same(tmp_path: Path) -> None:
    """The decision is what would be done; FTRUN_OBSERVED says that it is not."""
    life = Life(tmp_path, on_fault=TELL, observe=True)
    fail(life)
    life.until("stopped")
    heard(life)

    assert ("1", "resubmit") == (
        told(life, "on-fault")["FTRUN_OBSERVED"],
        told(life, "on-fault")["FTRUN_DECISION"],
    )


def test_a_command_that_hangs_or_is_missing_holds_up_nothing(tmp_path: Path) -> None:
    """The next attempt runs while the command still does; one that cannot be started is told, too."""
    life = Life(tmp_path, on_fault="exec sleep 321", hook_limit=1.0)
    fail(life)
    life.live(12)
    assert ("running", 2) == (life.run.state.value, life.attempt.number)
    (end,) = heard(life)

    assert "limit" == end["why"]
    missing = Life(tmp_path / "other", on_give_up="/no/such/program")
    missing.until("running")
    missing.say("ValueError: the user's own mistake")
    missing.exit(1)
    missing.until("stopped")
    assert 127 == heard(missing)[0]["code"]


def test_only_a_few_commands_are_at_work_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for their turn and are not lost."""
    life = Life(tmp_path, on_fault=TELL)
    monkeypatch.setattr(user_hooks, "AT_ONCE_MAX", 0)
    fail(life)
    life.live(30)
    assert "hook.intended" not in life.kinds()
    monkeypatch.setattr(user_hooks, "AT_ONCE_MAX", 1)

    assert 3 == heard(life)[0]["code"]


def test_what_happened_around_the_script_is_journalled(tmp_path: Path) -> None:
    """The records that batch.sh leaves on the node become records of the run."""
    life = Life(tmp_path, pre_hook="true", post_hook="false")
    life.until("running")
    place = Path(life.run_dir, "attempts", "1")
    (place / "pre-hook.0").write_text("code=0\nwhy=itself\n")
    life.train(1, 3)
    (place / "post-hook.0").write_text("code=1\nwhy=limit\n")
    life.exit(0)
    life.until("finished")

    told_ = [(end["key"], end["code"], end["why"]) for end in ends(life)]
    assert [("pre-hook.1.0", 0, "itself"), ("post-hook.1.0", 1, "limit")] == told_


def test_a_command_s_words_and_end_are_kept(tmp_path: Path) -> None:
    """Both streams in one file; the record is whole or not there."""
    hook_runner.main(str(tmp_path), "k", 10.0, "/", "echo out; echo err >&2; exit 4", umask=0o022)

    assert "out\nerr\n" == (tmp_path / "k.log").read_text()
    assert {"code": 4, "why": "itself"} == user_hooks._end(str(tmp_path / "k.end"))
