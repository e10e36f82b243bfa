"""What users of other recovery services bring along, on real Slurm: their scripts and options under `ftrun sbatch`.

Written after what the vendors' documents describe: NVIDIA's autonomous job recovery puts a job back into the queue, or
has the user submit a chain of jobs of one name; Amazon's HyperPod adds `srun --auto-resume=1` by a SPANK plugin. The
twelve faults of NVIDIA's resiliency extension are drills (tests/drills/nvrx.toml); a node that another service drains
or fails is in test_drained.py. docs/vendors.md says what came of each.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox import boot
from tests.slurm.post import OFF_THE_BUS, Post, boxes, posts

pytestmark = [pytest.mark.slurm, pytest.mark.vendors]

STEPS = 40
# Resumes by itself, as the scripts of these services do: from a file of its own, in whatever job it runs.
TRAINER = f"""
import os, sys, time
done = int(open("progress").read()) if os.path.exists("progress") else 0
print("from", done, flush=True)
for step in range(done + 1, {STEPS} + 1):
    time.sleep(0.2)
    if step == 10 and os.path.exists("sick") and not os.path.exists("struck"):
        open("struck", "w").write(os.environ["SLURMD_NODENAME"])
        print(time.strftime("%b %d %H:%M:%S"), os.environ["SLURMD_NODENAME"], "kernel: {OFF_THE_BUS}", flush=True)
        sys.exit(1)
    print(f"step {{step}}/{STEPS} loss 2.5", flush=True)
    with open("progress.tmp", "w") as file:
        file.write(str(step))
    os.replace("progress.tmp", "progress")
"""
# The option of the plugin, and nothing else: the restart is left to whoever looks after the job.
PLUGIN = """
#include <stdint.h>
const char plugin_name[] = "auto-resume", plugin_type[] = "spank";
const uint32_t plugin_version = %d;
const unsigned int spank_plugin_version = 1;
int slurm_spank_init(void *spank, int words, char **word) { return 0; }
static int taken(int value, const char *text, int remote) { return 0; }
struct { char *name, *argument, *usage; int has_argument, value; int (*taken)(int, const char *, int); } spank_options[] = {
    {"auto-resume", "[0|1]", "go on by itself", 1, 0, taken}, {0}};
"""


@pytest.fixture
def post() -> Iterator[Post]:
    """A home in a sandbox of its own, with a supervisor and the trainer."""
    with boxes() as make, posts(make(nodes=4)) as post_of:
        yield _looked_after(post_of())


def _looked_after(post: Post) -> Post:
    post.supervise()
    (post.work / "trainer.py").write_text(TRAINER)
    return post


def _sick(post: Post) -> None:
    (post.work / "sick").touch()


def _is_done(post: Post) -> bool:
    return (post.work / "progress").read_text() == str(STEPS)


def test_a_job_that_a_service_puts_back_into_the_queue_goes_on(post: Post) -> None:
    """Requeue mode: another service drains the node and requeues the same job; it costs no retry, and nothing runs twice."""
    job = post.sbatch("srun python3 trainer.py\n", "--requeue", "-N1")
    post.until(lambda: "launch.progress" in post.kinds(), "it trains")
    (node,) = post.run().attempts[0].nodes
    post.call("scontrol", "update", f"nodename={node}", "state=drain", "reason=another service")
    post.call("scontrol", "requeue", job)

    run = post.until_state("finished")

    assert _is_done(post)
    assert not [line for line in post.ledger() if line.startswith("double")]
    assert dict(run.spent) == {}


def test_a_chain_of_jobs_of_one_name_trains_once(post: Post) -> None:
    """Singleton mode: three jobs of one name, each goes on where the one before ended; the fault of the first costs the chain nothing."""
    _sick(post)
    jobs = [
        post.sbatch("srun python3 trainer.py\n", "-N1", "-Jtrain", "--dependency=singleton") for _ in range(3)
    ]
    runs = [post.until_state("finished", "stopped", job=job) for job in jobs]

    assert [run.state.value for run in runs] == ["finished"] * 3
    assert _is_done(post)
    assert not [line for line in post.ledger() if line.startswith("double")]
    assert len(runs[0].attempts) == 2
    assert (post.work / "struck").read_text() not in runs[0].attempts[1].nodes


def test_auto_resume_without_its_plugin_is_the_users_to_mend(post: Post) -> None:
    """srun refuses the option: trying again cannot succeed, and the run says whose word it was."""
    post.sbatch("srun --auto-resume=1 python3 trainer.py\n", "-N1")
    run = post.until_state("stopped")

    assert (len(run.attempts), run.final_class) == (1, "config")
    assert "auto-resume" in post.ftrun("explain", post.run().id)


def test_auto_resume_with_its_plugin_is_passed_on(tmp_path: Path) -> None:
    """The option reaches srun, and a node whose GPU is lost is left out of the next start."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to make the stand-in plugin with")
    version = re.search(
        r"(\d+)\.(\d+)\.(\d+)",
        subprocess.run(
            [boot.find_tool("slurmd"), "-V"], capture_output=True, text=True, check=True, timeout=60
        ).stdout,
    )
    assert version
    number = int(version[1]) << 16 | int(version[2]) << 8 | int(version[3])
    (tmp_path / "plugin.c").write_text(PLUGIN % number)
    plugin, stack = tmp_path / "auto_resume.so", tmp_path / "plugstack.conf"
    words = [compiler, "-shared", "-fPIC", "-o", str(plugin), str(tmp_path / "plugin.c")]
    subprocess.run(words, check=True, timeout=60)
    stack.write_text(f"required {plugin}\n")
    with boxes() as make, posts(make(nodes=3, conf={"PlugStackConfig": str(stack)})) as post_of:
        post = _looked_after(post_of())
        _sick(post)
        post.sbatch("srun --auto-resume=1 python3 trainer.py\n", "-N1")
        run = post.until_state("finished")

        assert _is_done(post)
        assert (post.work / "struck").read_text() not in run.attempts[-1].nodes
