"""Ranks in containers on real Slurm, by a stand-in for the plug-in that GPU sites have (`container_plugin.c` says in what it is like it)."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox import boot
from tests.slurm.post import Post, boxes, posts

pytestmark = pytest.mark.slurm

PLUGIN = Path(__file__).with_name("container_plugin.c")
PIDS = "--container-unshare=pid"
# A trainer as in an image: it has no ftrun but the packed one, saves below /ckpt, and stands still or fails as a file there says.
TRAINER = """
import os, sys, time
sys.path.insert(0, os.environ["FTRUN_RUN_DIR"].split("/runs/")[0] + "/tools/ftrun-hook.pyz")
from ftrun.hooks import beat
rank, start = os.environ["SLURM_PROCID"], os.environ["FTRUN_START"]
with open(f"/ckpt/seen.{start}.{rank}", "w") as seen:
    caches = os.path.isdir(os.environ.get("FTRUN_CACHE_DIR", "/none"))
    print(*sys.argv[1:], os.environ["FTRUN_RESUME_FROM"], os.getpid(), caches, sorted(os.listdir("/")), file=seen)
def wait(name):
    while not os.path.exists("/ckpt/" + name):
        time.sleep(0.05)
step = 0
while not os.path.exists("/ckpt/end"):
    step += 1
    beat(step)
    time.sleep(0.05)
    if step == 10:
        if rank == "0" and start == "1":
            with open("/ckpt/step-10.draft", "w") as file:
                file.write("weights")
            os.rename("/ckpt/step-10.draft", "/ckpt/step-10")
        wait("on")
    if start == "1" and os.path.exists("/ckpt/fail"):
        print("ncclRemoteError: remote process exited or there was a network error", flush=True)
        if os.fork() == 0:  # what outlives its rank
            os.setsid()
            os.closerange(0, 3)
            time.sleep(600)
        os._exit(1)
"""


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Post]]:
    """A maker of posts on a sandbox of two nodes that has the plug-in."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make the stand-in for a container plug-in with")
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces, and so no containers")
    folder = tmp_path_factory.mktemp("plugin")
    said = subprocess.run(
        [boot.find_tool("slurmd"), "-V"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    release = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    assert release
    number = int(release[1]) << 16 | int(release[2]) << 8 | int(release[3])
    words = [
        compiler,
        "-shared",
        "-fPIC",
        f"-DSLURM_VERSION={number}",
        "-o",
        str(folder / "plugin.so"),
        str(PLUGIN),
    ]
    subprocess.run(words, check=True, timeout=60)
    (folder / "plugstack.conf").write_text(f"required {folder}/plugin.so\n")
    with (
        boxes() as box,
        posts(box(nodes=2, conf={"PlugStackConfig": str(folder / "plugstack.conf")})) as post_of,
    ):
        yield post_of


def _train(post: Post, options: str, *words: str) -> tuple[str, Path]:
    """A training of two containers, one on each node, with its data at another path inside; the job and the data outside."""
    data = post.folder / "data"
    data.mkdir()
    (data / "train.py").write_text(TRAINER)
    body = f'srun -N2 --container-image=image --container-mounts={data}:/ckpt {options} python3 /ckpt/train.py "$@"\n'
    job = post.sbatch(
        body, "-N2", f"--ft-checkpoint={data}/step-*", "--ft-resume-arg=--load={checkpoint}", *words
    )
    return job, data


def beats_of(post: Post, start: int) -> list[dict[str, object]]:
    folder = Path(post.run_dir()) / "attempts" / "1" / "beats" / f"0.{start}"
    return [json.loads(path.read_text()) for path in folder.glob("[0-9]") if path.stat().st_size]


def left_of_first(post: Post) -> list[str]:
    """The processes of the run's first start that still live."""
    run = f"FTRUN_RUN_DIR={post.run_dir()}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if run in words and b"FTRUN_START_TOKEN=0.1" in words:
                found.append(path.parent.name)
    return found


def stacks_of_first(post: Post, job: str, nodes: int) -> list[dict[str, Any]]:
    """What a step of ftrun's writes down about each rank."""
    attempt, out = f"{post.run_dir()}/attempts/1", post.folder / "stacks"
    hook = f"/usr/bin/python3 -IS {post.home}/tools/ftrun-hook.pyz stacks --attempt-folder {attempt} --token 0.1 --apart 0.2 --out {out}"
    shape = (f"-N{nodes}", f"-n{nodes}", "--overlap", "--export=NONE")
    post.call("srun", f"--jobid={job}", *shape, *hook.split())
    return [row for path in out.glob("*.json") for row in json.loads(path.read_text())["ranks"]]


@pytest.mark.parametrize("options", ["", pytest.param(PIDS, marks=pytest.mark.containers)], ids=["", "pids"])
def test_a_container_is_seen_from_outside_and_resumes_where_it_saved(
    make: Callable[..., Post], options: str
) -> None:
    """Beats and stacks come out, the checkpoint has its name inside, caches are there, what lives on in another session is swept, only the mounts are seen."""
    post = make()
    job, data = _train(post, options)
    post.until((data / "step-10").exists, "it saved")
    post.until(lambda: len(beats_of(post, 1)) == 2, "both beat")
    rows = stacks_of_first(post, job, 2)

    assert sorted(row["rank"] for row in rows) == ["0", "1"]
    assert {row["source"] for row in rows} <= {"faulthandler", "py-spy"}
    assert all("wait" in row["top"][0] for row in rows), rows
    (data / "fail").touch()
    (data / "on").touch()
    post.until((data / "seen.2.1").exists, "it was started again")
    seen = (data / "seen.2.1").read_text().split(" ", 4)

    assert [*seen[:2], seen[3]] == ["--load=/ckpt/step-10", "/ckpt/step-10", "True"]
    assert (int(seen[2]) < 10) is bool(options)
    assert "'ckpt'" in seen[4]
    assert "'mnt'" not in seen[4]
    assert left_of_first(post) == []
    (data / "end").touch()
    post.until(lambda: not post.call("squeue", "-h"), "it is over")


@pytest.mark.containers
def test_a_container_saves_at_memory_speed(make: Callable[..., Post]) -> None:
    """What it writes into the node's memory appears in the folder outside."""
    post = make()
    data = post.folder / "data"
    saves = 'import os; os.makedirs(os.environ["FTRUN_STAGE_DIR"] + "/step-1"); open(os.environ["FTRUN_STAGE_DIR"] + "/step-1/weights", "w").write("3")'
    body = f"srun -n1 --container-image=image python3 -c '{saves}; print(os.environ[\"FTRUN_STAGE_DIR\"])'\nsleep 5\n"
    post.sbatch(body, "-N1", f"--ft-stage={data}")
    post.until(lambda: not post.call("squeue", "-h"), "it is over")

    assert (data / "step-1" / "weights").read_text() == "3", post.job_log()
    assert "/dev/shm/" in post.job_log()


@pytest.mark.containers
def test_one_rank_of_a_container_starts_again_alone(make: Callable[..., Post]) -> None:
    """Its parent runs inside too, asks the agent through the run's folder, and the other rank stays."""
    post = make()
    data = post.folder / "data"
    data.mkdir()
    (data / "rank.sh").write_text(
        'echo "$SLURM_PROCID ${FTRUN_RANK_RESTART-0}" >>/ckpt/begun\n'
        "until [ -e /ckpt/die ]; do sleep 0.1; done\n"
        '[ "$SLURM_PROCID.${FTRUN_RANK_RESTART-0}" != 1.0 ] || kill -9 $$\n'
        "until [ -e /ckpt/end ]; do sleep 0.1; done\n"
    )
    post.sbatch(
        f"srun -N2 -n2 --container-image=i --container-mounts={data}:/ckpt sh /ckpt/rank.sh\n",
        "-N2",
        "--ft-rank-restart",
    )
    post.until(
        lambda: (data / "begun").exists() and len((data / "begun").read_text().split()) == 4, "both begin"
    )
    (data / "die").touch()
    post.until(lambda: "1 1" in (data / "begun").read_text(), "the dead one is there again")
    (data / "end").touch()
    post.until(lambda: not post.call("squeue", "-h"), "it is over")

    assert sorted((data / "begun").read_text().splitlines()) == ["0 0", "1 0", "1 1"]


def test_a_missing_mount_is_said_before_the_job_waits(make: Callable[..., Post]) -> None:
    """One line beside what sbatch prints; with strict nothing is submitted."""
    post = make()
    script = post.script("srun --container-image=image --container-mounts=/nowhere:/data true\n")
    said = post.ftrun("sbatch", "--hold", str(script))
    assert "line 6: /nowhere is to be mounted and does not exist on this host" in said
    assert "Submitted batch job" in said
    post.call("scancel", said.split()[-1] if said.split()[-1].isdigit() else post.run().attempts[0].job)
    refused = post.ftrun("sbatch", "--hold", "--ft-strict", str(script), code=2)

    assert "nothing was submitted (strict)" in refused
