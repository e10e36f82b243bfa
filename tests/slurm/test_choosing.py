"""Which checkpoint a start is given on real Slurm, after a training that diverged and was killed while it saved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.states import State
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

# Ten steps to each checkpoint. The first start is well up to step 20, saves nonsense at 30 and 40, and half of something at 50.
TRAINS = """
echo "begins $FTRUN_ATTEMPT.$FTRUN_START from ${FTRUN_RESUME_FROM##*/} at ${FTRUN_RESUME_STEP} of ${FTRUN_RESUME_ROOT##*/}: $*" >>told
/usr/bin/python3 - "${FTRUN_RESUME_STEP:-0}" <<'END'
import os, sys, zipfile
first, bad = int(sys.argv[1]) + 1, not os.path.exists("been")
open("been", "w").close()
for step in range(first, 61):
    sick = bad and step > 20
    print(f"step {step}/60 loss {'nan' if sick else 2.0}", flush=True)
    if step % 10 == 0:
        path = f"ckpt/step_{step}.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", "x" * 1000)
        if sick and step == 50:
            os.truncate(path, 500)
            print("Loss is nan, stopping training", flush=True)
            sys.exit(1)
END
"""
WORDS = ("--ft-checkpoint=ckpt/*", "--ft-resume-arg=--load={checkpoint_root} --step={step}")
LED = "begins {} from step_10.pt at 10 of {}: --load={} --step=10"


def trained(post: Post, *words: str) -> list[str]:
    """What its starts were told, when the run is over."""
    (post.work / "ckpt").mkdir()
    job = post.sbatch(TRAINS, *WORDS, *words)
    post.supervise()
    post.until(lambda: post.run(job).final, "the run is over")
    assert post.run(job).state is State.FINISHED, post.run(job).final_reason
    explained, shown = post.ftrun("explain", job), post.ftrun("show", job)
    assert "diverged at step 21 [loss-not-finite-stop]: not loaded: step 20 on" in explained
    assert "passed over ckpt/step_50.pt: torn: " in explained
    assert "passed over ckpt/step_50.pt: torn: " in shown
    return (post.work / "told").read_text().splitlines()


@side_by_side
def test_a_new_attempt_goes_back_behind_the_divergence(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """Torn and poisoned ones are passed over, the framework's folder leads to the older one, and what is saved anew is good."""
    post = make_post(make_sandbox(nodes=1))
    first, second = trained(post, "--ft-agent=never")
    view = next((post.home / "runs").glob("*")) / "views" / "2.0.1"

    assert "begins 1.1 from  at  of : " == first
    assert LED.format("2.1", "2.0.1", view) == second
    assert ["step_10.pt"] == [file.name for file in view.iterdir()]


@pytest.mark.drills
@side_by_side
def test_a_start_in_place_goes_back_behind_the_divergence(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """The agent in the job finds the same, and says it to the next start."""
    post = make_post(make_sandbox(nodes=1))
    first, second = trained(post)
    view = next((post.home / "runs").glob("*")) / "views" / "1.0.2"

    assert first.startswith("begins 1.1 from  at  of : ")
    assert LED.format("1.2", "1.0.2", view) == second


@side_by_side
def test_a_run_that_may_load_nothing_stops_and_says_so(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """The first start finds what somebody left there, all of it cut: it does not begin from nothing."""
    post = make_post(make_sandbox(nodes=1))
    (post.work / "ckpt").mkdir()
    (post.work / "ckpt" / "step_10.pt").write_bytes(b"PK\x03\x04" + b"x" * 500)
    job = post.sbatch(TRAINS, *WORDS)
    post.supervise()
    post.until(lambda: post.run(job).final, "the run is over")

    assert post.run(job).state is State.STOPPED
    assert "none of 1 checkpoints may be loaded" in post.run(job).final_reason
    assert not (post.work / "told").exists()


# Both checkpoints are of an hour ago; the newer has a wrong byte that no header shows. The first start waits until that was found.
READ_TO_THE_END = """
echo "begins from ${FTRUN_RESUME_FROM##*/}" >>told
[ -e been ] && { sleep 1; exit 0; }
touch been
/usr/bin/python3 - <<'END'
import glob, json, os, time, zipfile
for step in (10, 20):
    path = f"ckpt/step_{step}.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 100)
        archive.writestr("archive/data/0", b"x" * 600_000)
    if step == 20:
        with open(path, "r+b") as stream:
            stream.seek(300_000)
            stream.write(b"y")
    os.utime(path, (time.time() - 3600, time.time() - 3600))
for _ in range(600):
    time.sleep(0.1)
    if any(json.load(open(name))["state"] == "torn" for name in glob.glob(os.environ["FTRUN_RUN_DIR"] + "/deep/*.json")):
        break
END
exit 1
"""


@pytest.mark.drills
def test_what_was_read_to_its_end_while_the_run_ran_is_passed_over_by_the_next_start(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """The agent's child finds the wrong byte, the start in place takes the checkpoint before, and nobody is left of it."""
    post = make_post(make_sandbox(nodes=1))
    (post.work / "ckpt").mkdir()
    job = post.sbatch(READ_TO_THE_END, "--ft-checkpoint=ckpt/*")
    post.supervise()
    post.until(lambda: post.run(job).final, "the run is over")

    assert ["begins from ", "begins from step_10.pt"] == (post.work / "told").read_text().splitlines()
    shown = post.ftrun("show", job)
    assert "step_20.pt: torn: step_20.pt has a wrong checksum" in shown
    assert "passed over ckpt/step_20.pt: torn: step_20.pt has a wrong checksum" in shown


@pytest.mark.drills
def test_a_task_of_an_array_that_may_load_nothing_is_given_up_with_that_reason(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """It follows the rule of a job: it is no failure of the script, and is not tried again and again."""
    post = make_post(make_sandbox(nodes=1))
    (post.work / "ckpt").mkdir()
    (post.work / "ckpt" / "step_10.pt").write_bytes(b"PK\x03\x04" + b"x" * 500)
    job = post.sbatch(TRAINS, *WORDS, "--array=0-1")
    post.supervise()
    post.until(lambda: post.run(job).final, "the run is over")

    assert post.run(job).state is State.STOPPED
    assert "none of 1 checkpoints may be loaded" in post.run(job).final_reason
    assert post.run(job).final_class == "checkpoint"
    assert len(post.run(job).attempts) == 1
    assert not (post.work / "told").exists()


# ---------------------------------------------------------------------- what only the program finds out
# Four files a checkpoint, with sums that only the program knows. The first start damages what DAMAGE says and fails at step 35.
PLAIN = r"""
echo "${FTRUN_RESUME_FROM##*/}" >>told
exec /usr/bin/python3 - "$FTRUN_RESUME_FROM" <<'END'
import hashlib, os, sys, time
resume, first = sys.argv[1], 1
if resume:
    for rank in range(4):
        path = f"{resume}/rank_{rank}.bin"
        with open(path, "rb") as stream:
            content = stream.read()
        if os.path.exists("bug"):
            raise KeyError("optimizer")
        if os.path.exists("away"):
            os.unlink("away")
            raise OSError(5, "Input/output error", path)
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise ValueError(f"checksum of {path} is wrong")
    first = int(resume.rsplit("_", 1)[1]) + 1
been = os.path.exists("been")
for step in range(first, 61):
    time.sleep(0.02)
    print(f"step {step}/60 loss 2.0", flush=True)
    if step % 10 == 0:
        os.makedirs(f"ckpt/step_{step}", exist_ok=True)
        for rank in range(4):
            data = os.urandom(5000)
            with open(f"ckpt/step_{step}/rank_{rank}.bin", "wb") as stream:
                stream.write(hashlib.sha256(data).digest() + data)
    if step == 35 and not been:
        open("been", "w").close()
        for at, rank, what in (one.split(":") for one in os.environ["DAMAGE"].split()):
            path = f"ckpt/step_{at}/rank_{rank}.bin"
            if what == "gone":
                os.unlink(path)
            elif what == "empty":
                os.truncate(path, 0)
            elif what == "other":
                with open(path, "r+b") as stream:
                    stream.seek(1000)
                    stream.write(b"other bytes")
            else:
                open(what, "w").close()
        sys.exit("something else went wrong")
END
"""


def damaged(post: Post, damage: str, *words: str) -> list[str]:
    """What each start of a run resumed from ("" = nothing), whose checkpoints are damaged like that."""
    (post.work / "ckpt").mkdir()
    job = post.sbatch(f"export DAMAGE='{damage}'\n{PLAIN}", "--ft-checkpoint=ckpt/*", *words)
    post.supervise()
    post.until(lambda: post.run(job).final, "the run is over")
    return (post.work / "told").read_text().splitlines()


@side_by_side
def test_a_checkpoint_that_only_the_program_finds_broken_costs_one_start(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """It says so in words of its own, and the next older one is taken, past one that lacks a part."""
    post = make_post(make_sandbox(nodes=1))
    began = damaged(post, "30:1:other 20:2:gone")
    run = post.run()

    assert (["", "step_30", "step_10"], State.FINISHED) == (began, run.state), run.final_reason
    assert ["unknown", "checkpoint"] == [one.fault for one in run.incidents]
    assert [str(post.work / "ckpt" / "step_30")] == [path for path, _ in run.set_aside]
    assert "step_30 could not be loaded" in post.ftrun("explain", run.id)


ALL = "30:1:other 20:2:gone 10:1:empty"


@pytest.mark.drills
@pytest.mark.parametrize("words", [(), ("--ft-agent=never",)], ids=["in place", "new attempts"])
@pytest.mark.parametrize(
    ("damage", "began", "state", "aside"),
    [
        ("30:1:gone", ["", "step_20"], State.FINISHED, 0),
        ("30:1:other 20:2:other", ["", "step_30", "step_20", "step_10"], State.FINISHED, 2),
        ("30:0:away", ["", "step_30", "step_30"], State.FINISHED, 0),
        ("30:0:bug", ["", "step_30", "step_30", "step_20"], State.STOPPED, 0),
        (ALL, ["", "step_30", ""], State.FINISHED, 1),
    ],
    ids=[
        "a part is gone",
        "two in a row",
        "a file system that fails once",
        "the program's own",
        "all of them",
    ],
)
def test_a_run_goes_on_from_what_can_be_loaded(
    make_sandbox: Callable[..., Sandbox],
    make_post: Callable[[Sandbox], Post],
    words: tuple[str, ...],
    damage: str,
    began: list[str],
    state: State,
    aside: int,
) -> None:
    """The checkpoint is blamed for what is its own: not for a file system that comes back, nor for an error that each of them gives."""
    post = make_post(make_sandbox(nodes=1))

    assert began == damaged(post, damage, *words)
    run = post.run()
    assert (state, aside) == (run.state, len(run.set_aside)), run.final_reason
    if state is State.STOPPED:
        assert "user-code" == run.final_class
        assert "2 checkpoints in a row gave the same error" in run.final_reason


@pytest.mark.drills
def test_where_too_much_would_be_lost_the_run_stops_and_names_each_checkpoint(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """With the reason of each, and the setting that allows more."""
    post = make_post(make_sandbox(nodes=1))

    assert ["", "step_30"] == damaged(post, ALL, "--ft-restart-from-zero-max=1s")
    run = post.run()
    assert (State.STOPPED, "checkpoint") == (run.state, run.final_class)
    for words in (
        "step_30: a start failed: ValueError: checksum of ckpt/step_30/rank_1.bin is wrong",
        "step_20: torn: rank_2.bin is missing",
        "step_10: torn: rank_1.bin is empty",
        "restart-from-zero-max",
    ):
        assert words in run.final_reason


@pytest.mark.drills
def test_by_the_rule_of_the_shell_alone_a_part_that_is_gone_costs_one_start(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """The program names the file; ftrun had chosen the checkpoint, and chooses the older one."""
    post = make_post(make_sandbox(nodes=1))

    assert ["", "step_30", "step_20"] == damaged(post, "30:1:gone", "--ft-checkpoint-verify=name")
    assert State.FINISHED is post.run().state
