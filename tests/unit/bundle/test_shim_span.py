"""srun in a start that spans several jobs, under each POSIX shell, with a fake srun behind it; and which calls say that they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.hooks.bundle.shell import SPAN_SH
from tests.unit.bundle.test_batch_sh import EACH_SHELL, shell_of, under_one_shell
from tests.unit.bundle.test_starts_sh import Shim

# Writes down its words up to the command, then is every task in turn.
SRUN = """
n=0 j=0 out=
for a; do case $a in --ntasks=*) n=${a#*=} ;; --jobid=*) j=${a#*=} ;; --label) l=1 ;; esac; done
while [ $# -gt 0 ] && [ "$1" != /bin/sh ]; do out="$out[$1]"; shift; done
echo "$out" >>"$FOLDER/called.$j"
env | grep -c '^SLURM_' >>"$FOLDER/left.$j"
i=0
while [ $i -lt $n ]; do
    export SLURM_PROCID=$i SLURM_NODEID=0 SLURM_LOCALID=$i SLURM_JOB_ID=$j SLURM_STEP_ID=4 SLURMD_NODENAME=m$j SLURM_GTIDS=0,1
    if [ -n "$l" ]; then "$@" 2>&1 | sed "s/^/$i: /"; else "$@"; fi
    i=$((i + 1))
done
"""


class SpanningShim(Shim):
    """Job 7 with n0 and n1, and job 9 with n4; two tasks on each node."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        super().__init__(folder, shell)
        self._tool("srun", SRUN)
        (self.talk / "span.sh").write_bytes(SPAN_SH)
        words = (
            "7", "0.2", str(folder), "", " n0 n1", "", "--no-kill --overlap", "", "", "", " 9:n4",
            "n[0-1],n4",
        )  # fmt: skip
        (self.talk / "shim.2").write_text("set -- " + " ".join(f"'{word}'" for word in words) + "\n")
        self.env |= {
            "FOLDER": str(folder),
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_NNODES": "3",
            "SLURM_NTASKS": "6",
        }
        self.env |= {"SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS": "6", "SLURM_CPU_BIND": "none", "TMP": "x"}

    def sides(self) -> dict[str, str]:
        """The words of each step, by its job, less what all have."""
        found = {}
        for file in sorted(self.folder.glob("called.*")):
            text = file.read_text().strip()
            file.unlink()
            found[file.suffix[1:]] = text.replace("[--no-kill]", "").replace(
                f"[--jobid={file.suffix[1:]}]", ""
            )
        return found


@pytest.fixture(params=EACH_SHELL)
def shim(request: pytest.FixtureRequest, tmp_path: Path) -> SpanningShim:
    return SpanningShim(tmp_path, shell_of(request))


def part(nodes: int, each: int, names: str, *more: str) -> str:
    """A side's words."""
    words = (
        f"--nodes={nodes}",
        f"--ntasks={nodes * each}",
        f"--ntasks-per-node={each}",
        f"--nodelist={names}",
        *more,
    )
    return "".join(f"[{word}]" for word in words)


SPANNING = [
    ("true", 2, ()),
    ("-N3 -n6 true", 2, ()),
    ("--nodes 3 --ntasks=3 true", 1, ()),
    ("-n3 -c2 true", 1, ("-c2",)),
    ("--tasks-per-node=1 -n3 true", 1, ()),
    ("-vN3 --cpus-per-task 4 -J x -- true", 2, ("-v", "--cpus-per-task", "4", "-J", "x", "--")),
    ("--jobid=7 --overlap --mpi=none true", 2, ("--mpi=none",)),
    ("--gres=gpu:1 --export=ALL,A=b true", 2, ("--gres=gpu:1", "--export=ALL,A=b")),
]


@pytest.mark.parametrize(("call", "each", "own"), SPANNING)
def test_a_call_is_one_step_in_each_job(
    shim: SpanningShim, call: str, each: int, own: tuple[str, ...]
) -> None:
    """Each is described in full; what the user said of nodes and tasks is said anew, and all else as it was."""
    assert shim.call(*call.split()) == ""

    more = ("--overlap", *own)
    assert shim.sides() == {"7": part(2, each, "n0,n1", *more), "9": part(1, each, "n4", *more)}
    left = [file.read_text() for file in shim.folder.glob("left.*")]
    assert left == ["2\n", "2\n"]  # SLURM_JOB_ID, and SLURM_CPU_BIND, which may be the user's own
    assert not (shim.talk / "nospan.2").exists()


def test_a_task_sees_the_whole(shim: SpanningShim) -> None:
    """Its rank and its node are counted through; its place on the node is its own."""
    told = shim.call("sh", "-c", "echo $SLURM_PROCID $SLURM_NTASKS $SLURM_NNODES $SLURM_NODEID $SLURM_LOCALID $SLURM_GTIDS $SLURM_JOB_ID $SLURM_JOB_NODELIST $TMP")  # fmt: skip

    far = ["4 6 3 2 0 4,5 7 n[0-1],n4 x", "5 6 3 2 1 4,5 7 n[0-1],n4 x"]
    assert [line for line in told.splitlines() if line[0] in "45"] == far
    assert sorted(line.split()[0] for line in told.splitlines()) == list("012345")


def test_output_by_task_is_counted_through(shim: SpanningShim) -> None:
    """The files of a companion's tasks bear their ranks in the whole; what all write is one file."""
    place = shim.folder / "o u t"
    place.mkdir()
    shim.call("-o", f"{place}/%3t-%j-%n-%%-%N", "sh", "-c", "echo out $SLURM_PROCID; echo err >&2")
    assert shim.sides()["7"].startswith(part(2, 2, "n0,n1", "--overlap", f"--output={place}/%3t-%j-%n-%%-%N"))
    assert {file.name: file.read_text() for file in place.iterdir()} == {
        "004-7-2-%-m9": "out 4\nerr\n",
        "005-7-2-%-m9": "out 5\nerr\n",
    }
    shim.call("--error", f"{place}/all.%j", "true")

    both = ("--overlap", "--open-mode=append", f"--error={place}/all.7")
    assert shim.sides() == {"7": part(2, 2, "n0,n1", *both), "9": part(1, 2, "n4", *both)}
    assert (place / "all.7").read_text() == ""


@pytest.mark.parametrize("perl", [True, False])
def test_labels_are_counted_through(shim: SpanningShim, perl: bool) -> None:
    """With perl and without; what is no label stays."""
    if not perl:
        file = shim.talk / "span.sh"
        file.write_text(file.read_text().replace("/perl", "/none"))
    told = shim.call("-l", "sh", "-c", "echo here: $SLURM_PROCID")
    assert sorted(line for line in told.splitlines() if line[0] in "45") == ["4: here: 4", "5: here: 5"]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("-N1 -n1 true", "[--nodes=1][--ntasks=1]"),
        ("-n1 true", "[--nodes=1][--ntasks=1]"),
        ("-N2 -n2 --mpi=pmix true", "[--nodes=2][--ntasks=2]"),
        ("-w n1 -N1 -n1 true", "[--nodes=1][--ntasks=1]"),
        ("-N9 -n9 true", "[--nodes=9][--ntasks=9]"),
    ],
)
def test_a_call_that_this_job_is_enough_for_is_one_step_of_it(
    shim: SpanningShim, call: str, wanted: str
) -> None:
    """The first nodes are this job's; more than there are is for Slurm to refuse."""
    shim._tool("srun", 'for a; do printf "[%s]" "$a"; done')
    words = "".join(f"[{word}]" for word in call.split())
    words = words.replace("[-w][n1]", "[-w][n1]")

    assert shim.call(*call.split()) == f"{wanted}[--no-kill][--overlap]{words}"


def test_a_companions_node_by_name_is_a_step_of_the_companion(shim: SpanningShim) -> None:
    """As scripts that start one server on each node name them."""
    assert shim.call("-w", "n4", "-N1", "-n1", "true") == ""
    assert shim.sides() == {"9": part(1, 1, "n4", "--overlap")}


REFUSED = [
    ("--mpi=pmix true", "--mpi=pmix makes one world in one job"),
    ("--mpi pmi2 true", "--mpi=pmi2 makes one world in one job"),
    ("-N3 -n3 orted -x", "mpirun makes one world in one job (orted)"),
    ("--multi-prog file", "--multi-prog is for one job"),
    ("--pty bash", "--pty is for one job"),
    ("-m arbitrary true", "--distribution=arbitrary counts the nodes of one job"),
    ("--distribution=plane=2 true", "--distribution=plane=2 counts the nodes of one job"),
    ("-x n1 true", "-x names nodes of one job"),
    ("-r1 -N3 true", "-r names nodes of one job"),
    ("-G 6 true", "G counts what one job has"),
    ("-n5 true", "5 tasks do not fill 3 nodes evenly"),
    ("-N2-3 true", "-N 2-3 is no plain number"),
    ("-o log-%s true", "log-%s would be another file in each job"),
    ("-N3 -i in-%t true", "in-%t would be another file in each job"),
    ("-N3 --output=2 true", "task 2 is in one job"),
    ("--new-plugin thing", "nobody knows what --new-plugin means"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "why"), REFUSED)
def test_what_cannot_span_says_so(shim: SpanningShim, call: str, why: str) -> None:
    """In a start over several jobs it fails with that line; in any start the agent is told, before it asks for a companion."""
    said = shim.call(*call.split())
    assert said == f"srun: ftrun: this start spans several jobs, and this call cannot: {why}"
    shim.brief(no="")
    (shim.talk / "nospan.2").unlink()
    shim.call(*call.split())

    assert (shim.talk / "nospan.2").read_text() == f"{why}\n"


@pytest.mark.parametrize("call", ["-n08 true", "-N 08 true", "--ntasks-per-node=09 -N1 true", "-N08-09 true", "-n 99999999999999999999 true", "-N - true"])  # fmt: skip
def test_numbers_are_read_as_slurm_reads_them(shim: SpanningShim, call: str) -> None:
    """08, as `seq -w` writes it, is eight; what is no number at all is for Slurm to refuse."""
    shim._tool("srun", 'for a; do printf "[%s]" "$a"; done')
    shim.brief(no="")

    assert shim.call(*call.split()) == "[--no-kill][--overlap]" + "".join(
        f"[{word}]" for word in call.split()
    )


def test_a_padded_number_of_nodes_is_that_many(shim: SpanningShim) -> None:
    """In a start over several jobs as in any other."""
    assert shim.call("-N", "03", "-n", "06", "true") == ""
    assert shim.sides() == {"7": part(2, 2, "n0,n1", "--overlap"), "9": part(1, 2, "n4", "--overlap")}


def test_what_a_call_is_fed_would_be_read_in_one_job_only(shim: SpanningShim) -> None:
    """The tasks of the others would end well without it; a call that says where its stdin comes from may go on."""
    assert "what it is fed on stdin goes to one job" in shim.call("sh", fed="python train.py")
    assert (shim.talk / "nospan.2").read_text().startswith("what it is fed on stdin")
    (shim.talk / "nospan.2").unlink()
    assert shim.call("-i", "none", "true", fed="of a loop around the call") == ""
    assert not (shim.talk / "nospan.2").exists()


def test_where_slurm_itself_prepares_mpi_somebody_must_choose(shim: SpanningShim) -> None:
    """Two worlds of one program would be two trainings into one checkpoint."""
    assert shim.call("-N1", "-n1", "true") == ""
    assert not (shim.talk / "unchosen.2").exists()
    assert shim.call("true") == ""
    assert (shim.talk / "unchosen.2").exists()
    (shim.talk / "mpi").write_text("pmix\n")

    assert "srun prepares MPI (pmix) where nobody chose" in shim.call("true")
    assert (shim.talk / "nospan.2").read_text().startswith("srun prepares MPI (pmix)")
    assert shim.call("--mpi=none", "true") == ""


@under_one_shell("shim")
def test_a_companion_whose_srun_says_that_all_is_well_is_not_believed(shim: SpanningShim) -> None:
    """Every task of it leaves its own word."""
    shim._tool("srun", "exit 0")

    assert shim.call("true") == "srun: ftrun: of 2 tasks in job 9 0 ended well"
