"""Laws of the parent of a rank, and of a sweep, inside steps of real Slurm. (I/O)"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.slurm.sandbox.handle import Sandbox

pytestmark = pytest.mark.slurm

COUNTING = """import collections, os, signal, sys, time
seen = collections.Counter()
for name in ("USR1", "USR2", "TERM", "INT", "HUP", "CONT", "WINCH"):
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: seen.update([signal.Signals(number).name]))
told = ""
while not os.path.exists(sys.argv[1] + ".end"):
    now = " ".join(["on", *seen])
    if now != told:
        with open(sys.argv[1] + ".draft" + os.environ["SLURM_PROCID"], "w") as draft:
            draft.write(now)
        os.rename(draft.name, sys.argv[1] + os.environ["SLURM_PROCID"])
        told = now
    time.sleep(0.05)
print(os.environ["SLURM_PROCID"], sorted(seen.items()), flush=True)
sys.exit(int(sys.argv[2]))
"""

TWICE_S = 1.0  # a signal that is delivered twice shows within this time
# What is done to a step of two tasks that count signals, and what they exit with.
ROWS: dict[str, tuple[list[list[str]], int]] = {
    "nothing": ([], 0),
    "an exit code": ([], 7),
    "a signal to the step": ([["scancel", "-s", "USR1", "STEP"]], 0),
    "two signals to the job": ([["scancel", "-s", "USR1", "JOB"], ["scancel", "-s", "USR2", "JOB"]], 3),
    "TERM as a signal": ([["scancel", "-s", "TERM", "STEP"]], 5),
    "a cancelled step": ([["scancel", "STEP"]], 5),
}


@pytest.fixture(scope="module")
def place(slurm_sandbox: Sandbox) -> Iterator[Path]:
    """A folder that the nodes see, with a program that counts signals and the packed hooks."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    (folder / "count.py").write_text(COUNTING)
    (folder / "attempts" / "1").mkdir(parents=True)
    (folder / "attempts" / "1" / "current").symlink_to("0.1")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _until(ready: Callable[[], bool], limit_s: float = 240.0) -> None:
    give_up = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def _run(box: Sandbox, *command: str) -> str:
    return subprocess.run(
        command, env=box.env(), capture_output=True, text=True, check=True, timeout=180
    ).stdout


def _seen(box: Sandbox, place: Path, row: str, wrapped: bool) -> tuple[str, list[str]]:
    """srun's status and what the ranks said."""
    acts, code = ROWS[row]
    mark = Path(tempfile.mkdtemp(dir=place))
    wrapper = ""
    if wrapped:
        wrapper = f"{sys.executable} -IS {build_zipapp(str(place / 'home'))} rank --folder {place}/attempts/1/ranks/0.1 --wait 1 -- "
    script = mark / "job"
    script.write_text(
        "#!/bin/sh\ntrap : USR1 USR2 TERM\n"
        f"srun -N2 -n2 --kill-on-bad-exit=0 --wait=0 {wrapper}{sys.executable} {place}/count.py {mark}/on {code} 2>/dev/null &\n"
        f"wait $!; c=$?; while kill -0 $! 2>/dev/null; do wait $!; c=$?; done; echo srun $c\n"
    )
    job = _run(box, "sbatch", "--parsable", "-N2", "-n2", "-c1", f"--output={mark}/out", str(script)).strip()
    _until(lambda: all((mark / f"on{rank}").exists() for rank in (0, 1)))
    for act in acts:
        _run(box, *(word.replace("STEP", f"{job}.0").replace("JOB", job) for word in act))
        if act[1] == "-s":  # else it is ended by Slurm
            said = f"SIG{act[2]}"
            _until(lambda said=said: all(said in (mark / f"on{rank}").read_text().split() for rank in (0, 1)))  # type: ignore[misc]
    if acts != [["scancel", "STEP"]]:
        time.sleep(TWICE_S if acts else 0.0)
        (mark / "on.end").touch()
    _until(lambda: "srun" in (mark / "out").read_text())
    lines = (mark / "out").read_text().splitlines()
    return lines[-1], sorted(lines[:-1])


@pytest.mark.parametrize("row", ROWS)
def test_slurm_sees_a_rank_and_not_its_parent(slurm_sandbox: Sandbox, place: Path, row: str) -> None:
    """With and without the parent: srun's status, the output, and every signal as often."""
    assert _seen(slurm_sandbox, place, row, wrapped=False) == _seen(slurm_sandbox, place, row, wrapped=True)


def test_a_sweep_by_a_step_ends_an_earlier_start_on_every_node(slurm_sandbox: Sandbox, place: Path) -> None:
    """Ranks that left their step's session are found on all nodes, and the present start stays."""
    mark = Path(tempfile.mkdtemp(dir=place))
    hook = build_zipapp(str(place / "home"))
    attempt = place / "attempts" / "1"
    script = mark / "job"
    script.write_text(f"""#!/bin/sh
export FTRUN_ATTEMPT_DIR={attempt}
FTRUN_START_TOKEN=0.1 srun --overlap -N2 -n2 sh -c 'sleep 300 & setsid sleep 301 & : >{mark}/old.$SLURM_PROCID; wait' &
FTRUN_START_TOKEN=0.2 srun --overlap -N2 -n2 sh -c ': >{mark}/new.$SLURM_PROCID; exec sleep 300' &
new=$!
for name in old.0 old.1 new.0 new.1; do until [ -e {mark}/$name ]; do sleep 0.1; done; done
srun --overlap -N2 -n2 --export=NONE {sys.executable} -IS {hook} sweep --attempt-folder {attempt} --token 0.2 >{mark}/swept
kill -0 $new && echo present
touch {mark}/done
""")
    job = _run(
        slurm_sandbox, "sbatch", "--parsable", "-N2", "-n2", f"--output={mark}/out", str(script)
    ).strip()
    _until((mark / "done").exists)
    _run(slurm_sandbox, "scancel", job)
    told = [json.loads(line) for line in (mark / "swept").read_text().splitlines()]

    assert 2 == len({line["node"] for line in told})
    assert [[], []] == [line["left"] for line in told]
    # The nodes of a sandbox share one machine, so one of them may have ended what was of both.
    assert len({pid for line in told for pid in line["killed"]}) >= 4
    assert "present" in (mark / "out").read_text()


def test_a_guard_is_a_step_that_ends_old_ranks_and_leaves_without_a_trace(
    slurm_sandbox: Sandbox, place: Path
) -> None:
    """Beside the script's own step; asked by USR2 through srun it leaves with the watch that it started, and srun returns 0."""
    mark = Path(tempfile.mkdtemp(dir=place))
    hook = build_zipapp(str(place / "home"))
    attempt = mark / "attempts" / "1"
    (attempt / "nodes").mkdir(parents=True)
    (attempt / "current").symlink_to("0.1")
    watch = f"--watch-after 0 -- --period 60 --folder {attempt}/nodes --launch 0"
    script = mark / "job"
    script.write_text(f"""#!/bin/sh
export FTRUN_ATTEMPT_DIR={attempt}
trap '' USR2
srun --overlap -n1 --export=NONE --quiet {sys.executable} -IS {hook} guard --attempt-folder {attempt} --launch 0 {watch} &
guard=$!
FTRUN_START_TOKEN=0.1 srun --overlap -n1 sleep 300 &
rank=$!
sleep 3
kill -0 $rank && echo alive
ln -s 0.2 {attempt}/next && mv -T {attempt}/next {attempt}/current
wait $rank
echo "rank $?"
for i in 1 2 3 4 5 6 7 8 9 10; do kill -USR2 $guard || break; sleep 0.2; done
wait $guard
echo "guard $?"
""")
    job = _run(
        slurm_sandbox, "sbatch", "--parsable", "-N1", "-n1", f"--output={mark}/out", str(script)
    ).strip()
    _until(lambda: "guard" in (mark / "out").read_text() if (mark / "out").exists() else False)
    lines = [
        line
        for line in (mark / "out").read_text().splitlines()
        if line.startswith(("alive", "rank ", "guard "))
    ]

    assert ["alive", "rank 137", "guard 0"] == lines, job
    assert 1 == len(list(attempt.glob("guarded.0.*")))
