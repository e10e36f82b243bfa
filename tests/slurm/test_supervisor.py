"""The real supervisor on real Slurm: who leads, what a person may say at any moment, what is kept, what is told.

How it thinks. These laws need seconds of waiting and hardly any work, so they are tried side by side: the first test that
asks for an outcome starts all that were asked for, each in a home of its own.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill import injector
from tests.slurm.post import FTRUN, OFF_THE_BUS, PATIENCE_S, Post, posts, queue
from tests.slurm.post import boxes as own_boxes

pytestmark = pytest.mark.slurm

LANES = 7
ME = getpass.getuser()
Make = Callable[..., Post]
Boxes = Callable[..., Sandbox]
Law = Callable[[Make, Boxes], None]
LAWS: dict[str, Law] = {}

FAILS_ONCE = f"""
echo "step 1 loss 2.5"
[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}
echo "step 2 loss 2.4"
echo done >>ledger
"""
ALWAYS_FAILS = f'echo "{OFF_THE_BUS}"\nexit 1\n'
SLEEPS = "echo 'step 1 loss 2.5'\nsleep 300\n"


def side_by_side(law: Law) -> Callable[[dict[str, Future[None]]], None]:
    """A test whose body is played together with all the others."""
    name = law.__name__
    LAWS[name] = law

    def test(played: dict[str, Future[None]]) -> None:
        played[name].result()

    test.__name__, test.__doc__ = name, law.__doc__
    return test


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, slurm_sandbox: Sandbox) -> Iterator[dict[str, Future[None]]]:
    wanted = [item.name for item in request.session.items if item.module is request.module]  # type: ignore[attr-defined]
    with posts(slurm_sandbox) as make, own_boxes() as boxes, ThreadPoolExecutor(LANES) as pool:
        yield {name: pool.submit(law, make, boxes) for name, law in LAWS.items() if name in wanted}


# ---- what is kept: P2

DUMP = f"""
env -0 >env.$FTRUN_ATTEMPT
{{ ulimit -aS; ulimit -aH; umask; nice; pwd; greet you; echo "args $*"; }} >facts.$FTRUN_ATTEMPT
[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}
exit 0
"""


@pytest.mark.drills  # a supervisor with nice 4 starves on a busy machine; what is kept and restored: tests/unit/submission/test_submit.py
@side_by_side
def test_a_later_attempt_is_submitted_from_what_was_kept(make: Make, boxes: Boxes) -> None:
    """`env -i ftrun supervise --once` elsewhere: environment, functions, limits, umask, nice and folder are attempt 1's."""
    post = make()
    script = post.script(DUMP)
    submit = (
        'greet() { echo "hello $1"; }; export -f greet; export ODD=$\'two\\nlines = "and" more\'; '
        "umask 027; ulimit -S -n 333; ulimit -c 0; "
        f'exec nice -n 3 "$@" sbatch --output={post.work}/job.log {script} one "two three"'
    )
    post.call("bash", "-c", submit, "bash", *FTRUN)
    settings = [f"FTRUN_HOME={post.home}", f"FTRUN_SITE_CONFIG={post.folder}/site.toml"]
    nicer = (
        4 if os.geteuid() == 0 else 1
    )  # only root goes back from more to 3; far more would starve on a busy machine
    other = f"cd /; umask 077; ulimit -S -n 222; exec nice -n {nicer} env -i " + " ".join(settings)
    started = time.monotonic()
    while not post.run().final and time.monotonic() - started < 400:
        post.call("bash", "-c", f'{other} "$@"', "bash", *FTRUN, "supervise", "--once")
        time.sleep(1.0)  # as cron, not as a loop that takes a core

    assert post.run().state.value == "finished", post.story()
    assert [line.split()[:2] for line in post.ledger()] == [["start", "1"], ["start", "2"]]
    first, second = ((post.work / f"facts.{n}").read_text() for n in (1, 2))
    assert "hello you\nargs one two three" in first
    assert second == first
    assert _environment(post.work / "env.2") == _environment(post.work / "env.1")
    assert any(key.startswith(b"BASH_FUNC_greet") for key in _environment(post.work / "env.2"))
    assert _environment(post.work / "env.2")[b"ODD"] == b'two\nlines = "and" more'
    modes = {n: stat.S_IMODE((post.work / f"env.{n}").stat().st_mode) for n in (1, 2)}
    assert modes == {1: 0o640, 2: 0o640}


def _environment(path: Path) -> dict[bytes, bytes]:
    """What `env -0` wrote, less what is ftrun's (docs/inside-the-job.md), Slurm's and the node's."""
    pairs = (entry.partition(b"=") for entry in path.read_bytes().split(b"\0") if entry)
    ours = (b"FTRUN_", b"SLURM", b"HOSTNAME", b"MASTER_", b"TORCH_NCCL_", b"TORCH_HCCL_")
    found = {key: value for key, _, value in pairs if not key.startswith(ours)}
    shim, _, rest = found[b"PATH"].partition(b":")
    return found | {b"PATH": rest} if shim.endswith(b"/agent/bin") else found


# ---- who leads: P8


@side_by_side
def test_a_second_supervisor_stands_by_and_leads_once_the_first_is_dead(make: Make, boxes: Boxes) -> None:
    """kill -9 of the holder: on the same machine its heir need not wait for the lease. SIGTERM ends either, the lease is given back."""
    post = make("lease = 300\n")
    first = post.supervise()
    post.until(lambda: post.holder().epoch == 1, "the first leads")
    second, third = post.supervise(), post.supervise()
    post.until(lambda: post.log.count('"lease.awaited"') == 2, "two stand by")
    assert _pid(post) == first.pid
    third.send_signal(signal.SIGTERM)
    assert third.wait(PATIENCE_S) == 0
    first.kill()
    post.until(lambda: _pid(post) == second.pid, "the second leads")
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE_S) == 0
    assert (post.holder().epoch, post.holder().counter) == (2, "released")


@side_by_side
def test_a_supervisor_that_slept_through_its_lease_does_nothing_any_more(make: Make, boxes: Boxes) -> None:
    """SIGSTOP for longer than the term, in mid-run: the next one recovers the run alone, the old one says that it lost the lease."""
    post = make("lease = 12\n")  # on a busy machine a shorter one is lost by who is awake, too
    body = f'while [ ! -e go.$FTRUN_ATTEMPT ]; do sleep 0.2; done\n[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}\nexit 0\n'
    post.sbatch(body, "--ft-agent=never")
    first = post.supervise()
    post.until_state("running")
    post.until(lambda: "launch.seen" in post.kinds(), "the launch is seen")
    first.send_signal(signal.SIGSTOP)
    post.until(lambda: _stands_still(first.pid), "it stands still")
    (mine,) = Path(post.run_dir(), "journal").glob("000001-*")
    before = mine.read_bytes()
    post.supervise()
    post.until(lambda: post.holder().epoch == 2, "the second leads")
    (post.work / "go.1").touch()
    post.until(lambda: "decided" in post.kinds(), "the fault is seen")
    first.send_signal(signal.SIGCONT)
    post.until(lambda: '"lease.lost"' in post.log, "the first has noticed")
    (post.work / "go.2").touch()
    post.until_state("finished")

    assert mine.read_bytes() == before
    assert post.holder().epoch == 2
    assert sorted(state for _, state, _ in post.jobs()) == ["COMPLETED", "FAILED"]


@side_by_side
def test_status_says_that_nobody_is_watching_and_starts_somebody(make: Make, boxes: Boxes) -> None:
    """Every command revives a dead supervisor, unless that is forbidden; then it says how to."""
    post = make()
    post.sbatch("while [ ! -e go ]; do sleep 0.2; done\n", FTRUN_SUPERVISOR="auto")
    post.until(lambda: post.holder().counter not in ("", "released"), "somebody leads")
    (pid,) = injector.supervisors(post.home)
    assert "watched from" in post.ftrun("status")
    os.kill(pid, signal.SIGKILL)
    post.until(lambda: not injector.supervisors(post.home), "the supervisor is dead")

    assert re.search(r"nobody was watching for \d+ s; start one: ftrun supervise", post.ftrun("status"))
    assert re.search(r"nobody was watching for \d+ s; a supervisor was started", _auto(post, "status"))
    (post.work / "go").touch()
    post.until_state("finished")
    told = json.loads(post.ftrun("status", "--json"))
    assert told["supervisor"]["watched"] is True


@pytest.mark.drills  # in ./test: tests/slurm/test_sbatch.py
@side_by_side
def test_a_submission_in_a_pipe_returns_at_once_and_leaves_a_supervisor(make: Make, boxes: Boxes) -> None:
    """Under $(...), before a pipe and without a terminal the caller is not held up by the supervisor that was started."""
    post = make("lease = 3\n")
    script = post.script(SLEEPS)
    ftrun = " ".join(FTRUN)
    begun = time.monotonic()
    job = post.call(
        "sh", "-c", f"id=$({ftrun} sbatch --parsable {script}); echo $id", FTRUN_SUPERVISOR="auto"
    )
    other = post.call("sh", "-c", f"{ftrun} sbatch {script} 2>&1 | cat", FTRUN_SUPERVISOR="auto")
    took_s = time.monotonic() - begun

    assert re.fullmatch(r"\d+\n", job)
    assert re.fullmatch(r"Submitted batch job \d+\n", other)
    assert took_s < 250  # the job sleeps for 300 s
    # The second submission may have come before the first one's supervisor led, and have started another, which ends.
    post.until(lambda: len(injector.supervisors(post.home)) == 1, "one supervisor is left")
    (pid,) = injector.supervisors(post.home)
    post.until(lambda: post.run(job.strip()).state.value == "running", "it is watched")
    assert os.getsid(pid) == pid
    assert {os.readlink(f"/proc/{pid}/fd/{n}") for n in (1, 2)} == {str(post.home / "supervisor.log")}


@side_by_side
def test_a_run_that_comes_while_an_idle_supervisor_ends_is_not_left_behind(make: Make, boxes: Boxes) -> None:
    """A started supervisor ends when there is nothing to do; at whatever moment a run comes, somebody looks after it."""
    post = make("idle-exit = 1\n")
    for wait_s in (0.0, 0.95):
        job = post.sbatch("true\n", "--ft-agent=never", name=f"j{wait_s}", FTRUN_SUPERVISOR="auto")
        post.until(lambda j=job: post.run(j).final, "the run is over")  # type: ignore[misc]
        time.sleep(wait_s)
    post.until(lambda: not injector.supervisors(post.home), "the idle supervisor ended")
    assert post.holder().counter == "released"


def _stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _pid(post: Post) -> int:
    return int(post.holder().writer.split(".")[3])


def _auto(post: Post, *words: str) -> str:
    return post.ftrun(*words, FTRUN_SUPERVISOR="auto")


# ---- what people want: P5


@side_by_side
def test_what_a_person_cancels_does_not_come_back(make: Make, boxes: Boxes) -> None:
    """scancel of a pending or a running job stops the run; scancel of one step does not."""
    post = make()
    post.supervise()
    pending = post.sbatch(SLEEPS, "--begin=now+1hour", name="pending")
    running = post.sbatch(SLEEPS, name="running")
    step = post.sbatch("srun --overlap sleep 300\nexit 0\n", name="step")
    post.until_state("queued", job=pending)
    post.until(lambda: post.run(running).state.value == "running", "it runs")
    post.call("scancel", pending, running)
    # Slurm does not take it before the step's tasks are there; while they start it may take it and say that it did not.
    post.until(
        lambda: (
            post.run_command("scancel", f"{step}.0").returncode == 0 or "CANCELLED" in post.job_log("step")
        ),
        "the step is cancelled",
    )

    for job in (pending, running):
        run = post.until_state("stopped", "finished", job=job)
        assert (run.state.value, run.final_class) == ("stopped", "cancelled"), post.story()
    assert post.until_state("finished", "stopped", job=step).state.value == "finished"
    assert sorted(job for job, _, _ in post.jobs()) == sorted([pending, running, step])


@pytest.mark.drills
@side_by_side
def test_a_second_job_of_a_run_is_cancelled_while_its_attempt_goes_on(make: Make, boxes: Boxes) -> None:
    """What bears the run's token and is not its attempt does not hold its place in the queue; nobody else's job is touched."""
    post = make()
    post.supervise()
    job = post.sbatch(SLEEPS)
    post.until_state("running")
    second, other = (
        post.plain("--hold", f"--comment={comment}", "--wrap=sleep 300")
        for comment in (f"{post.run().token}:7", f"not {post.run().token}0:1")
    )

    def states() -> dict[str, str]:
        rows = (line.split("|") for line in queue(post.box))
        return {job: state for job, state, _ in rows}

    post.until(lambda: states()[second] == "CANCELLED", "the second job is cancelled")

    assert (states()[job], states()[other], post.run().state.value) == ("RUNNING", "PENDING", "running")


@pytest.mark.drills
@side_by_side
def test_of_two_jobs_of_one_attempt_the_one_with_the_claim_is_followed(make: Make, boxes: Boxes) -> None:
    """P4: sbatch made two; the one that ftrun did not hear of was started twice, its first launch left no trace, and it trains. The other one, which waits, is cancelled."""
    post = make()
    heard = post.sbatch(SLEEPS, "--hold")
    place = Path(post.run_dir(), "attempts", "1")
    (composed,) = (place / "submitted").iterdir()
    other = post.plain(f"--comment={post.run().token}:1", "--requeue", "--open-mode=append", str(composed))
    post.until(lambda: len(post.ledger()) == 1, "the other one runs")
    post.call("scontrol", "requeue", other)
    post.until((place / "exit.0").exists, "its first launch is over")
    for path in place.iterdir():
        if path.is_symlink() or path.is_file():
            path.unlink()
    post.until(lambda: len(post.ledger()) == 2, "it runs again")
    assert os.path.lexists(place / "claim.1")
    post.supervise()
    post.until(
        lambda: (heard, "CANCELLED") in [(job, state) for job, state, _ in post.jobs()],
        "the waiting one ends",
    )
    run = post.until_state("running")

    assert run.attempt is not None
    assert (run.attempt.job, run.attempt.launch.number, run.incidents) == (other, 1, ())
    assert (other, "RUNNING") in [(job, state) for job, state, _ in post.jobs()]


@side_by_side
def test_a_run_is_cancelled_between_two_attempts(make: Make, boxes: Boxes) -> None:
    """No job is there to be hit, so the run is: by any job id that it ever had; nothing is submitted after that."""
    post = make()
    post.supervise()
    job = post.sbatch(ALWAYS_FAILS, "--ft-backoff=1h", "--ft-agent=never")
    post.until(lambda: post.kinds().count("attempt.over") == 2, "the run waits before its third attempt")
    assert post.run().state.value == "recovering"
    assert "cancel" in post.ftrun("cancel", job)

    run = post.run()
    assert (run.state.value, run.final_class, run.final_reason) == (
        "stopped",
        "cancelled",
        f"cancelled by {ME}",
    )
    time.sleep(2.0)
    assert [state for _, state, _ in post.jobs()] == ["FAILED", "FAILED"], post.story()


@pytest.mark.drills  # in ./test: tests/slurm/test_leaving.py
@side_by_side
def test_a_run_is_stopped_after_its_next_checkpoint_and_resumed_from_it(make: Make, boxes: Boxes) -> None:
    """`ftrun stop` lets the attempt save; `ftrun resume` begins another one from there, with fresh budgets."""
    post = make()
    post.supervise()
    body = """
    echo "start from ${1:-nothing}" >>ledger
    [ -e finish ] && exit 0
    for i in $(seq 1 300); do echo "step $i loss 2"; [ -e save ] && { echo x >ckpt-$i.tmp; mv ckpt-$i.tmp ckpt-$i.pt; rm save; }; sleep 0.3; done
    """
    job = post.sbatch(body, f"--ft-checkpoint={post.work}/ckpt-*.pt", "--ft-resume-arg={checkpoint}")
    post.until(lambda: "launch.progress" in post.kinds(), "it trains")
    (post.work / "save").touch()
    post.until(lambda: list(post.work.glob("ckpt-*.pt")), "it saved once")
    assert "ends after its next checkpoint" in post.ftrun("stop", job)
    time.sleep(2.0)
    assert post.run().state.value in ("running", "suspect"), post.story()
    (post.work / "save").touch()
    run = post.until_state("stopped")
    newest = max(post.work.glob("ckpt-*.pt"), key=lambda path: path.stat().st_mtime)
    assert run.final_reason == f"stopped by {ME}"

    (post.work / "finish").touch()
    post.ftrun("resume", job)
    run = post.until_state("finished")
    assert len(run.attempts) == 2
    assert [line for line in post.ledger() if line.startswith("start from")][1:] == [f"start from {newest}"]


@pytest.mark.drills
@side_by_side
def test_what_waits_for_a_run_waits_for_its_next_attempt(make: Make, boxes: Boxes) -> None:
    """afterok after a fault, afterany and afterok after an end by ftrun: the dependency names attempt 2's job, nothing stays held."""
    post = make()
    hangs = f'[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; sleep 300; }}\nwhile [ ! -e go ]; do sleep 0.2; done\n'
    fails = hangs.replace("sleep 300", "exit 1")
    ended, failed = post.sbatch(hangs, name="ended"), post.sbatch(fails, name="failed")
    after = {
        kind: post.plain("--job-name", kind, f"--dependency={kind}:{job}", "--wrap=true")
        for kind, job in (("afterany", ended), ("afterok", failed))
    }
    held = post.plain("--hold", f"--dependency=afterok:{ended}", "--wrap=true")
    post.supervise()
    for job in (ended, failed):
        post.until(lambda j=job: len(post.run(j).job_ids) == 2, "attempt 2 has a job")  # type: ignore[misc]
        post.until_state("running", job=job)

    def waits_for(job: str) -> str:
        return post.call("squeue", "-h", "-j", job, "-o", "%E").strip()

    for kind, job in (("afterany", ended), ("afterok", failed)):
        second = post.run(job).job_ids[1]
        moved = f"{kind}:{second}(unfulfilled)"
        post.until(lambda k=kind, m=moved: waits_for(after[k]) == m, f"{kind} moved")  # type: ignore[misc]
    (post.work / "go").touch()
    for kind in after:
        post.until(lambda k=kind: "COMPLETED" in _state(post, after[k]), f"{kind} ran")  # type: ignore[misc]
    assert "JobHeld" in post.call("squeue", "-h", "-j", held, "-o", "%r"), "a person's own hold is left alone"
    post.call("scancel", held)


def _state(post: Post, job: str) -> str:
    return post.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")


# ---- what may be done, and what is told


HANGS = """
import time
from ftrun.hooks import beat
for step in range(1, 9):
    beat(step)
    print(f"step {{step}} loss 1.0", flush=True)
    time.sleep(0.3)
print("{line}", flush=True)
time.sleep(300)
"""


@side_by_side
def test_where_ftrun_may_only_watch_all_is_told_and_nothing_done(make: Make, boxes: Boxes) -> None:
    """--ft-observe and --ft-retries=0: the fault is diagnosed, the decision shown, a live job is not ended, nothing is resubmitted."""
    post = make()
    post.supervise()
    hangs = post.work / "hangs.py"
    hangs.write_text(HANGS.format(line=OFF_THE_BUS))
    root = Path(__file__).resolve().parents[2] / ".ci" / "typing"
    observed = post.sbatch(ALWAYS_FAILS, "--ft-observe", name="observed")
    zero = post.sbatch(ALWAYS_FAILS, "--ft-retries=0", name="zero")
    live = post.sbatch(f"PYTHONPATH={root} {sys.executable} {hangs}\n", "--ft-observe", name="live")
    for job in (observed, zero):
        run = post.until_state("stopped", job=job)
        assert [i.fault for i in run.incidents] == ["hardware-gpu"]
    post.until(lambda: "observed" in post.kinds(live), "the decision on the live run")
    time.sleep(2.0)

    assert "would resubmit" in post.run(observed).final_reason
    assert "retries=0" in post.run(zero).final_reason
    assert "observe: would end" in post.ftrun("explain", live)
    assert post.run(live).state.value in ("running", "suspect")
    assert {job: state for job, state, _ in post.jobs()} == {
        observed: "FAILED",
        zero: "FAILED",
        live: "RUNNING",
    }


@side_by_side
def test_the_last_line_of_a_stopped_run_stands_in_its_log(make: Make, boxes: Boxes) -> None:
    """`ftrun: TIME: RUN stopped after attempt N: why; proof: ...`, once, at the end of the job's own log."""
    post = make()
    post.supervise()
    post.sbatch(ALWAYS_FAILS, "--ft-retries=1")
    run = post.until_state("stopped")
    post.until(lambda: "final.line" in post.kinds(), "the line is written")
    lines = [line for line in post.job_log().splitlines() if " stopped after attempt " in line]
    assert lines == [post.job_log().splitlines()[-1]]
    node = run.incidents[-1].nodes[0]
    pattern = rf"ftrun: 20[-\d]+ [:\d]+ \w+: {run.id} stopped after attempt 2: hardware-gpu: .* on {node}.*the 1 retry is used up; proof: {post.work}/job.sh.log:\d+: .*Xid.*; more: ftrun explain {run.id}"
    assert re.fullmatch(pattern, lines[0]), lines[0]
    # The same words from the user's log alone: the node is avoided, and stays in service for everybody else.
    assert run.excluded_at(time.time()) == (run.attempts[0].nodes[0],)
    assert not run.drained
    assert "only the job's own log says so" in post.ftrun("explain", run.id)
    assert "drain" not in post.call("sinfo", "-h", "-N", "-o", "%T")


@side_by_side
def test_a_node_that_slurm_lost_too_is_drained(make: Make, boxes: Boxes) -> None:
    """Log and Slurm's own node state agree: as root the node is drained with run, signature and time; another attempt runs elsewhere."""
    box = boxes(nodes=3)
    with posts(box) as make_here:
        post = make_here("fence-wait = 1\n")
        post.supervise()
        post.sbatch(
            f'[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; sleep 300; }}\nexit 0\n',
            "--ft-fault-grace=10m",
        )
        post.until(lambda: "evidence" in post.kinds(), "the line is seen")
        (node,) = post.run().attempts[0].nodes
        box.crash(node)
        run = post.until_state("finished")

        assert run.drained == (node,), post.story() + post.ftrun("explain", run.id)
        shown = post.call("scontrol", "show", "node", node)
        assert "DRAIN" in shown
        assert re.search(rf"Reason=ftrun: {run.id} \S+ \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ", shown), shown
        assert node not in run.attempts[-1].nodes


@side_by_side
def test_while_slurm_cannot_be_seen_nothing_changes(make: Make, boxes: Boxes) -> None:
    """slurmctld away for a quarter of a minute in mid-run: no record, no attempt, no end; `status` says so, then all goes on."""
    box = boxes(nodes=1)
    with posts(box) as make_here:
        post = make_here()
        post.supervise()
        post.sbatch("while [ ! -e go ]; do sleep 0.2; done\n")
        post.until_state("running")
        # The last records of a run that goes on by itself, in either order: what comes later was not written while Slurm was away, but copied late.
        post.until(lambda: {"launch.seen", "start.begun"} <= {*post.kinds()}, "the start is told")
        before = post.kinds()
        box.stop_controller()
        gone = time.monotonic()
        post.until(lambda: "Slurm has not answered" in post.ftrun("status"), "status says so", every_s=2)
        assert json.loads(post.ftrun("status", "--json"))["supervisor"]["slurm_unseen_since"] is not None
        time.sleep(max(0.0, 15 - (time.monotonic() - gone)))
        assert post.kinds() == before
        box.start_controller()
        post.until(
            lambda: "Slurm has not answered" not in post.ftrun("status"), "it is seen again", every_s=1
        )
        (post.work / "go").touch()
        run = post.until_state("finished", "stopped")
        assert (run.state.value, len(run.attempts), run.incidents) == ("finished", 1, ())


# ---- the user's own commands


@side_by_side
def test_the_user_s_commands_run_around_each_start_and_beside_the_supervisor(
    make: Make, boxes: Boxes
) -> None:
    """Before and after the script of each attempt; at the fault and at the stop, once, with a supervisor that lives for one look
    at a time. None of them changes what becomes of the run, be it that it hangs or fails.
    """
    post = make("hook-limit = 3\nretries = 1\n")
    told = 'echo "$FTRUN_HOOK $FTRUN_ATTEMPT $FTRUN_FAULT $FTRUN_DECISION" >>told; '
    words = ["--ft-pre-hook", told + "sleep 300", "--ft-post-hook", told + "exit 9"]
    words += ["--ft-on-fault", told + "sleep 300", "--ft-on-give-up", told]
    post.sbatch(ALWAYS_FAILS, *words)

    def looked(holds: Callable[[], bool]) -> bool:
        post.ftrun("supervise", "--once")
        return holds()

    post.until(lambda: looked(lambda: post.run().final), "the run is over", every_s=1)
    lines = post.work / "told"
    post.until(lambda: looked(lambda: all(post.run().hooks.values())), "all is told", every_s=1)

    fault = post.run().incidents[0].fault
    expected = [f"{hook} {attempt} " for attempt in (1, 2) for hook in ("pre-hook", "post-hook")]
    expected += [f"on-fault 1 {fault} resubmit", f"on-fault 2 {fault} stop", f"on-give-up 2 {fault} stop"]
    assert sorted(line.strip() for line in expected) == sorted(
        line.strip() for line in lines.read_text().splitlines()
    )
    assert {"on-fault.1.0.1": "limit", "post-hook.2.0": "itself"}.items() <= post.run().hooks.items()
    assert ["1", "2"] == [line.split()[1] for line in post.ledger()]
