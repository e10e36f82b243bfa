"""Two login nodes share one home: supervisors with host names and process numbers of their own, and one lease between them.

How it thinks. Each supervisor runs in a UTS and a PID namespace of its own, so that neither can look the other's process up: as on two machines,
only the lease's counter tells whether the other lives. A witness counts the jobs of the run that are alive at once.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import FTRUN, OFF_THE_BUS, Post, Witness

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.drills,
    pytest.mark.skipif(
        subprocess.run(
            ["unshare", "--uts", "--pid", "--fork", "true"], check=False, capture_output=True
        ).returncode
        != 0,
        reason="this machine allows no namespaces: there are no two hosts to be had",
    ),
]

TERM_S = 5.0
BODY = f"""
echo "step $FTRUN_ATTEMPT loss 2.5"
while [ ! -e go.$FTRUN_ATTEMPT ]; do sleep 0.2; done
[ "$FTRUN_ATTEMPT" -lt 3 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}
exit 0
"""


class Host:
    """A supervisor on a login node of this name."""

    def __init__(self, post: Post, name: str) -> None:
        self.name = name
        self.log = post.folder / f"{name}.log"
        inside = 'hostname "$1"; shift; exec "$@"'
        with self.log.open("ab") as log:
            self._outside = subprocess.Popen(
                ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inside, "sh", name, *FTRUN, "supervise"],
                env=post.env, cwd=post.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        post._started.append(self._outside)
        self._post = post

    @property
    def pid(self) -> int:
        """Of the supervisor itself, as seen from here."""
        return int(
            Path(f"/proc/{self._outside.pid}/task/{self._outside.pid}/children").read_text().split()[0]
        )

    def leads(self) -> bool:
        """It holds the lease."""
        return self._post.holder().writer.startswith(f"{self.name}.")


def _decided(post: Post) -> int:
    return post.kinds().count("decided")


def test_another_host_takes_over_in_seconds_and_who_sleeps_acts_no_more(
    slurm_sandbox: Sandbox, make_post: Callable[..., Post], record_property: Callable[[str, object], None]
) -> None:
    """kill -9 of the holder, then SIGSTOP of its heir, each with a fault of the run after it: within two terms of the lease another host leads and recovers
    the run; one sbatch for each attempt, one live job at a time, and the sleeper that wakes up writes and submits nothing.
    """
    post = make_post(slurm_sandbox, f"lease = {TERM_S:g}\n")
    job = post.sbatch(BODY, "-N1", "--ft-agent=never")
    one = Host(post, "login1")
    post.until(one.leads, "login1 leads")
    two = Host(post, "login2")
    post.until(lambda: "lease.awaited" in two.log.read_text(), "login2 stands by")
    post.until(lambda: "launch.seen" in post.kinds(), "the run is looked after")

    with Witness(slurm_sandbox) as witness:
        os.kill(one.pid, signal.SIGKILL)
        killed = time.monotonic()
        post.until(two.leads, "login2 leads")
        print(
            f"login2 leads {time.monotonic() - killed:.1f} s after kill -9 of login1, the lease being {TERM_S:g} s"
        )
        (post.work / "go.1").touch()
        post.until(
            lambda: len(post.run(job).attempts) == 2 and post.run(job).state.value == "running",
            "attempt 2 runs",
        )

        three = Host(post, "login3")
        post.until(lambda: "lease.awaited" in three.log.read_text(), "login3 stands by")
        sleeper = two.pid
        os.kill(sleeper, signal.SIGSTOP)
        stopped = time.monotonic()
        post.until(three.leads, "login3 leads")
        print(f"login3 leads {time.monotonic() - stopped:.1f} s after SIGSTOP of login2")
        (mine,) = Path(post.run_dir(job), "journal").glob("*-login2.*")
        before = mine.read_bytes()
        (post.work / "go.2").touch()
        post.until(lambda: _decided(post) == 2, "login3 has decided")
        os.kill(sleeper, signal.SIGCONT)
        post.until(lambda: "lease.lost" in two.log.read_text(), "login2 has noticed")
        (post.work / "go.3").touch()
        run = post.until_state("finished", job=job)

    tokens = collections.Counter(token for _, _, token in post.jobs())
    assert mine.read_bytes() == before, "who slept wrote nothing more"
    assert [a.number for a in run.attempts] == [1, 2, 3]
    assert max(tokens.values()) == 1, f"one sbatch for each attempt: {tokens}"
    assert witness.most[run.token] <= 1, post.story()
    assert not [line for line in post.ledger() if line.startswith("double")], post.story()
    assert post.holder().epoch == 3
