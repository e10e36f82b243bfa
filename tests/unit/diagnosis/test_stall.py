"""How long a job whose script is over is left to end by itself."""

from __future__ import annotations

from ftrun.supervisor.diagnosis.launch_state import LEAVING_FOR_S, exit_grace_s


def test_what_a_job_does_behind_its_script_is_given_its_time() -> None:
    """A hook of the user's has its limit, and what is staged has `stage-flush-timeout`: a suspicion that stands ends neither of them."""
    assert exit_grace_s({}) == LEAVING_FOR_S
    assert exit_grace_s({"post-hook": "true", "hook-limit": 30.0}) == LEAVING_FOR_S + 30.0
    assert exit_grace_s({"stage": "/shared/c", "stage-flush-timeout": 90.0}) == LEAVING_FOR_S + 90.0
    assert exit_grace_s({"stage-flush-timeout": 90.0}) == LEAVING_FOR_S
