"""Whoever starts the supervisor where nobody is logged in, on real Slurm: a real cron, Slurm's scrontab, and a job that lasts beyond its time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

ENDS_ONCE = 'echo "step $FTRUN_ATTEMPT loss 2.5"\n[ "$FTRUN_ATTEMPT" = 1 ] && exit 7\nexit 0\n'
SETTINGS = 'agent = "never"\nlease = 5\n'
# A cron of its own: it sees the one table that is given to it, and no job of this machine.
CRON = """
mount --make-rprivate / && mount -t tmpfs none /var/spool/cron/crontabs && mount -t tmpfs none /etc/cron.d && mount --bind /dev/null /etc/crontab || exit 9
: >>/run/crond.pid && cp /dev/null "$1.pid" && mount --bind "$1.pid" /run/crond.pid || exit 9
cp "$1" /var/spool/cron/crontabs/root && chmod 600 /var/spool/cron/crontabs/root && exec cron -f
"""


def _every_minute(text: str) -> str:
    return text.replace("*/2 * * * *", "* * * * *")


@contextmanager
def _cron(table: Path) -> Iterator[subprocess.Popen[bytes]]:
    daemon = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", CRON, "sh", str(table)], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, start_new_session=True
    )  # fmt: skip
    try:
        yield daemon
    finally:
        daemon.terminate()
        daemon.wait(60)


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("cron", path="/usr/sbin:/usr/bin") is None,
    reason="a cron of its own needs root, and Debian's package cron",
)
@side_by_side
def test_cron_looks_after_a_run(make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]) -> None:
    """The line that is printed, in a real cron: it recovers a run that failed, and a supervisor that leads is left alone."""
    post = make_post(make_sandbox(nodes=2), SETTINGS)
    job = post.sbatch(ENDS_ONCE, "-N1", "--ft-policy=unknown.budget=3")
    table = post.folder / "crontab"
    table.write_text(_every_minute(post.ftrun("supervise", "--print", "cron")))
    with _cron(table) as daemon:
        run = post.until_state("finished", job=job, within_s=400.0)
        assert len(run.attempts) == 2
        assert daemon.poll() is None
        post.until(lambda: post.holder().counter == "released", "its last call is over")
        post.supervise()
        post.until(lambda: post.holder().counter != "released", "a supervisor leads")
        epoch = post.holder().epoch
        time.sleep(70)  # cron's next minute is in it
        assert post.holder().epoch == epoch


@pytest.mark.skipif(
    shutil.which("scrontab") is None, reason="no scrontab: Debian's Slurm 22.05 comes without it"
)
@side_by_side
def test_scrontab_looks_after_a_run(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """The entry that is printed, in Slurm's own cron: its job recovers a run that failed."""
    post = make_post(make_sandbox(nodes=2, conf={"ScronParameters": "enable"}), SETTINGS)
    job = post.sbatch(ENDS_ONCE, "-N1", "--ft-policy=unknown.budget=3")
    table = post.folder / "scrontab"
    table.write_text(_every_minute(post.ftrun("supervise", "--print", "scrontab")))
    post.call("scrontab", str(table))
    try:
        run = post.until_state("finished", job=job, within_s=400.0)
    finally:
        post.call("scrontab", "-r", code=None)

    assert len(run.attempts) == 2


@side_by_side
def test_the_supervisors_job_goes_on_past_its_time_limit(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """Of four minutes it takes the last two to go back into the queue, by Slurm's own signal: the same job leads again and again, and never runs out of time."""
    post = make_post(make_sandbox(nodes=2), SETTINGS + "idle-exit = 600\n")
    post.sbatch("sleep 900\n", "-N1", "--ft-agent=never")
    made = post.ftrun("supervise", "--as-job", "--json", "--sbatch-options", "-t 4")
    job = made.partition('"job": "')[2].partition('"')[0]
    post.until(lambda: post.holder().epoch == 1 and post.holder().counter != "released", "it leads")
    began = time.monotonic()
    post.until(
        lambda: post.holder().epoch >= 3 and post.holder().counter != "released",
        "it leads for the third time",
        480.0,
    )
    post.until(lambda: time.monotonic() - began > 245, "its first limit is over", 250.0)
    post.until(lambda: post.holder().counter != "released", "it leads")
    shown = post.call("scontrol", "-o", "show", "job", job)

    assert "TimeLimit=00:04:00" in shown
    assert "JobState=RUNNING" in shown or "JobState=PENDING" in shown, shown
    assert "TIMEOUT" not in shown
    restarts = int(shown.partition("Restarts=")[2].split()[0])
    assert restarts >= 2, shown
    post.call("scancel", job)


@side_by_side
def test_a_supervisor_that_dies_in_its_job_is_started_again(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """kill -9: the same job leads again; a day was asked for, as its partition has no limit; a partition that is of no use is refused."""
    box = make_sandbox(nodes=2, conf={"PartitionName": "debug Nodes=ALL MaxTime=2 State=UP"})
    post = make_post(box, SETTINGS)
    post.sbatch("sleep 300\n", "-N1", "--ft-agent=never")
    told = post.ftrun("supervise", "--as-job", "--sbatch-options=-p debug", code=2)
    assert told.startswith("ftrun: partition debug ends a job after 2 minutes")
    assert not post.call("squeue", "-h", "-n", "ftrun-supervisor")
    job = post.ftrun("supervise", "--as-job").split()[2]
    post.until(lambda: post.holder().epoch == 1 and post.holder().counter != "released", "it leads")
    assert "TimeLimit=1-00:00:00" in post.call("scontrol", "-o", "show", "job", job)
    os.kill(int(post.holder().writer.split(".")[3]), 9)
    post.until(lambda: post.holder().epoch == 2, "the next one leads in the same job", 120.0)

    assert "Restarts=0" in post.call("scontrol", "-o", "show", "job", job)
    post.call("scancel", job)
