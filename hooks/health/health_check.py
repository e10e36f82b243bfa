"""`ftrun-hook health`: Slurm's HealthCheckProgram; runs the fast checks periodically on every node. (I/O)

Slurm leaves the action to the health check, and kills it after 60 s. The status is always 0: older releases
ignore it, newer ones keep a node from registering after boot until it is 0, without any cap. Findings are
stored for the prolog and logged. The node is drained only if the site has enabled that, for checks that were
bad in two runs in a row, under the cap, and never if the node has a drain reason already. Counters are
compared with those of the last run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ftrun.hooks.health.slurm_hook import Hook, act_on_bad, log_findings, open_hook, run_checks, settle_drain

DEFAULTS = {"enabled": True, "on_bad": "report", "tier": "fast", "checks": [], "runs": 2, "within_s": 45.0}


def main(arguments: list[str]) -> int:
    """Check the node: 0 always."""
    hook = open_hook("health", arguments, DEFAULTS)
    if hook is None:
        return 0
    with _alone(hook.kept.path) as alone:
        if alone:
            settle_drain(hook)
            _look(hook)
    return 0


def _look(hook: Hook) -> None:
    bad_before, last = hook.kept.read("streaks"), hook.kept.read("health")
    known = {_mark(one) for one in last.get("findings", ())}
    tier = "recheck" if hook.own["tier"] == "recheck" else "fast"
    # Without counters of the last run a check takes two readings itself.
    counters = hook.kept.read("counters").items()
    before = {name: {"before": counts} for name, counts in counters if isinstance(counts, dict) and counts}
    found = run_checks(
        hook,
        [str(name) for name in hook.own["checks"]],
        tier=tier,
        more=before,
    )
    log_findings(hook, [one for one in found if one.severity == "bad" or _mark(one._asdict()) not in known])
    bad = [one for one in found if one.severity == "bad"]
    hook.kept.note_health(sorted({one.check for one in bad}))
    streaks = {one.check: int(bad_before.get(one.check, 0)) + 1 for one in bad}
    hook.kept.write("streaks", streaks)
    healed = sorted(set(bad_before) - set(streaks))
    if healed:
        hook.kept.log(f"health: no longer bad: {', '.join(healed)}")
    hook.kept.write("counters", _counters())
    hook.kept.forget_old()
    act_on_bad(hook, [one for one in bad if streaks[one.check] >= int(hook.own["runs"])])


def _mark(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    """The identity of a finding, which tells whether the last run has logged it."""
    return finding["check"], finding["severity"], finding["device"]


def _counters() -> dict[str, Any]:
    from ftrun.hooks.checks import ethernet, rdma
    from ftrun.hooks.runtime.host import Machine, NoAnswer

    machine = Machine()
    try:
        return {
            "ib-errors": rdma.counters(machine, [*rdma.LINK_LIMITS, *rdma.PACKET_LIMITS]),
            "ib-flaps": rdma.counters(machine, [rdma.FLAP_COUNTER]),
            "nic-errors": ethernet.counters(machine, list(ethernet.NIC_LIMITS)),
        }
    except NoAnswer:
        return {}


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[bool]:
    """False while another health check of this node runs; True without a folder for the lock."""
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        lock = os.open(os.path.join(folder, "health.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield True
        return
    try:
        # A record lock: a check that hangs forever does not inherit it, so the next run is not blocked.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
