"""batch.sh and an agent beside the script, under each POSIX shell: who is asked, who is waited for, and what each start sees."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.hooks.bundle.shell import SHIM_SH
from tests.unit.bundle.test_batch_sh import (
    EACH_SHELL,
    NO_PERL,
    Attempt,
    attempt,
    checkpoint,
    shell_of,
    under_one_shell,
    wait_for,
)

__all__ = ["attempt"]

# An agent that does as it is told by a file: line k is the answer after start k, with | for line ends. It ends with the job.
AGENT = """#!/bin/sh
echo "$0 $*" >'{folder}/agent.words'
echo $$ >'{folder}/agent.pid'
while [ $# -gt 0 ]; do [ "$1" = --talk ] && t=$2; shift; done
k=1 n=0
while [ -d "$t" ]; do
    n=$((n + 1))
    [ -e '{folder}/silent' ] || echo $n >"$t/pulse"
    if [ -e "$t/over.$k" ]; then
        cat "$t/over.$k" "$t/started.$k" >>'{folder}/heard'
        line=$(sed -n ${{k}}p '{folder}/plan')
        case $line in
            die) exit 1 ;;
            wait) ;;
            *) echo "$line" | tr '|' '\\n' >"$t/tmp" && mv "$t/tmp" "$t/next.$k" && k=$((k + 1)) ;;
        esac
    fi
    sleep 0.02
done
"""
COUNT = "#!/bin/sh\necho start $FTRUN_START\n"


@pytest.fixture
def inside(attempt: Attempt) -> Iterator[Attempt]:
    """An attempt with an agent, in a job of three nodes of which two are active."""
    agent = attempt.folder / "agent"
    agent.write_text(AGENT.format(folder=attempt.folder))
    agent.chmod(0o755)
    attempt.values |= {"agent": str(agent), "spares": "1", "labels": "auto"}
    attempt.env |= {
        "SLURM_JOB_NODELIST": "a,b,c",
        "SLURM_NODELIST": "a,b,c",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NNODES": "3",
        "SLURM_NTASKS": "6",
        "SLURM_TASKS_PER_NODE": "2(x3)",
        "SLURM_JOB_CPUS_PER_NODE": "4(x2),8",
    }
    yield attempt
    wait_for(lambda: not agent_lives(attempt))


def plan(inside: Attempt, *answers: str) -> None:
    (inside.folder / "plan").write_text("".join(f"{line}\n" for line in answers))


def agent_pid(inside: Attempt) -> int:
    file = inside.folder / "agent.pid"
    text = file.read_text() if file.exists() else ""
    return int(text) if text.endswith("\n") else 0


def agent_lives(inside: Attempt) -> bool:
    pid = agent_pid(inside)
    try:
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def heard(inside: Attempt) -> list[str]:
    file = inside.folder / "heard"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("change", [(b"", b""), NO_PERL], ids=["perl", "no perl"])
def test_the_script_starts_again_when_the_agent_says_so(inside: Attempt, change: tuple[bytes, bytes]) -> None:
    """Each start is counted, has a token of its own, and the job ends as the last of them."""
    plan(inside, "again|nodes=a,b|fault=network", "again|nodes=a,b|fault=process", "end")
    script = (
        COUNT
        + 'echo "$FTRUN_RESTART $FTRUN_START_TOKEN $FTRUN_LAST_FAULT $(readlink "$FTRUN_ATTEMPT_DIR/current")"\n'
    )
    inside.values["restart"] = "4"
    answer = inside.run(script + "exit $((FTRUN_START + 4))\n", change=change)

    seen = "start 1\n4 0.1  0.1\nstart 2\n5 0.2 network 0.2\nstart 3\n6 0.3 process 0.3\n"
    assert (7, seen, "") == answer
    assert (inside.place / "exit.0").read_text().startswith("code=7\nsignal=0\n")
    begun = [
        dict(line.split("=", 1) for line in (inside.place / f"begun.0.{n}").read_text().splitlines())
        for n in (1, 2, 3)
    ]
    assert [("1", "0.1", "a,b"), ("2", "0.2", "a,b"), ("3", "0.3", "a,b")] == [
        (one["start"], one["token"], one["nodes"]) for one in begun
    ]
    assert [line for line in heard(inside) if line.startswith(("code=", "start="))] == [
        "code=5", "start=1", "code=6", "start=2", "code=7", "start=3",
    ]  # fmt: skip


def test_the_agent_is_told_where_it_is(inside: Attempt) -> None:
    """Its words name the attempt, the launch and the job; what it says is kept with the attempt."""
    plan(inside, "end")
    agent = Path(inside.values["agent"])
    agent.write_text(agent.read_text().replace("k=1 n=0", "echo oops >&2; ls /proc/self/fd >&2; k=1 n=0"))
    inside.run(COUNT + "until [ -e agent.words ]; do sleep 0.05; done\nexit 3\n")

    words = (inside.folder / "agent.words").read_text()
    opening = f"{agent} -P -m ftrun.supervisor.agent --run-dir {inside.run_dir} --attempt 1 --launch 0 --job 7 --cluster c "
    assert words.startswith(f"{opening}--talk {inside.folder}/my tmp/ftrun.")
    assert words.endswith(f"/agent --place {inside.place}\n")
    assert "oops\n0\n1\n2\n3\n" == (inside.place / "agent.0.log").read_text()


def test_a_script_that_ends_well_asks_nobody(inside: Attempt) -> None:
    """Code 0 is the end of the job, whatever an agent would say."""
    plan(inside, "again|nodes=a,b")

    assert (0, "start 1\n", "") == inside.run(COUNT + "sleep 0.2\n")


def test_without_agent_and_spares_nothing_is_different(inside: Attempt) -> None:
    """No folder, no link, no record, no srun of ours: the script is told of its start and no more."""
    inside.values |= {"agent": "", "spares": "0"}
    out = inside.run(COUNT + 'echo "$PATH $MASTER_ADDR $SLURM_NTASKS"\nls "${0%/*}"\nexit 3\n')

    assert (3, "start 1\n/usr/bin:/bin  6\nask.1\nask.2\njobs\nseen.1\nseen.2\nslurm_script\n") == out[:2]
    assert ["claim", "exit.0", "launch.0", "start.0"] == sorted(os.listdir(inside.place))


def test_spares_without_an_agent_are_kept_out_of_the_script(inside: Attempt) -> None:
    """A job that is wider than its script shows the script its own width, whoever looks after it."""
    inside.values["agent"] = ""

    assert (3, "2 4 a,b\n") == inside.run(
        '#!/bin/sh\necho "$SLURM_NNODES $SLURM_NTASKS $SLURM_NODELIST"\nexit 3\n'
    )[:2]


@under_one_shell("attempt")
@pytest.mark.parametrize("how", ["die", "kill", "absent", "nonsense", "elsewhere"])
def test_no_answer_is_the_end(inside: Attempt, how: str) -> None:
    """An agent that is dead, was never there, or names what it cannot, costs the run nothing: the code is the script's."""
    plan(
        inside,
        {"nonsense": "perhaps", "elsewhere": "again|nodes=a,zz"}.get(how, "wait" if how == "kill" else "die"),
    )
    if how == "absent":
        inside.values["agent"] = "/no/such/python"
    # A pulse that stands still is waited for in vain; here that would be seen.
    job = inside.start(COUNT + "exit 9\n", change=(b"beaten)) -lt 20", b"beaten)) -lt 900"))
    if how == "kill":
        wait_for(lambda: agent_pid(inside) > 0)
        wait_for(lambda: len(heard(inside)) > 0)
        os.kill(agent_pid(inside), signal.SIGKILL)

    assert (b"start 1\n", b"") == job.communicate(timeout=120)
    assert job.returncode == 9


@under_one_shell("attempt")
def test_an_agent_whose_pulse_stands_still_is_not_waited_for(inside: Attempt) -> None:
    """It may hang where nobody can see it: after 20 s without a pulse the job ends as the script did."""
    plan(inside, "wait")
    (inside.folder / "silent").touch()

    assert (9, "start 1\n", "") == inside.run(
        COUNT + "exit 9\n", change=(b"beaten)) -lt 20", b"beaten)) -lt 1")
    )


@under_one_shell("attempt")
def test_a_slow_answer_has_its_time(inside: Attempt) -> None:
    """As long as the pulse goes on an answer may take a while, and there is a limit to that too."""
    plan(inside, "wait")
    assert (9, "start 1\n", "") == inside.run(COUNT + "exit 9\n", change=(b"-lt 600 ]", b"-lt 1 ]"))


@pytest.mark.parametrize("name", ["TERM", "INT", "QUIT"])
def test_whoever_ends_the_job_ends_the_asking(inside: Attempt, name: str) -> None:
    """A cancel that comes while the agent is asked ends the job at once, with the script's own code."""
    plan(inside, "wait")
    job = inside.start(COUNT + "exit 9\n")
    wait_for(lambda: len(heard(inside)) > 0)
    job.send_signal(getattr(signal, "SIG" + name))

    assert (b"start 1\n", b"") == job.communicate(timeout=120)  # the agent would never have answered
    assert job.returncode == 9


def test_a_cancelled_script_is_not_asked_about(inside: Attempt) -> None:
    """TERM came to the job: whatever the script's code, the job is over."""
    plan(inside, "again|nodes=a,b")
    job = inside.start(COUNT + "trap 'exit 5' TERM\ntouch ready\nwhile :; do sleep 0.05; done\n")
    wait_for((inside.folder / "ready").exists)
    job.send_signal(signal.SIGTERM)

    assert b"start 1\n" == job.communicate(timeout=120)[0]
    assert job.returncode == 5


def test_signals_reach_every_start_once(inside: Attempt) -> None:
    """The witnesses stand beside each start; what came while no script ran is handed to none."""
    plan(inside, "wait")
    script = (
        COUNT
        + "trap 'echo saw; touch saw.$FTRUN_START' USR1\ntouch ready.$FTRUN_START\nwhile [ ! -e go.$FTRUN_START ]; do sleep 0.05; done\nexit 9\n"
    )
    job = inside.start(script)
    for number in (1, 2):
        wait_for((inside.folder / f"ready.{number}").exists)
        job.send_signal(signal.SIGUSR1)
        wait_for((inside.folder / f"saw.{number}").exists)
        time.sleep(0.2)  # for one that comes twice
        (inside.folder / f"go.{number}").touch()
        if number == 1:
            wait_for(lambda: len(heard(inside)) > 0)
            job.send_signal(signal.SIGUSR1)
            time.sleep(0.2)
            plan(inside, "again|nodes=a,b", "end")

    assert b"start 1\nsaw\nstart 2\nsaw\n" == job.communicate(timeout=120)[0]
    assert job.returncode == 9


def test_a_signal_that_ended_the_last_start_ends_the_job(inside: Attempt) -> None:
    """The job dies of what its last start died of."""
    plan(inside, "again|nodes=a,b", "end")
    answer = inside.run(COUNT + "[ $FTRUN_START = 1 ] && exit 3\nkill -SEGV $$\n")

    assert (-signal.SIGSEGV, "start 1\nstart 2\n", "") == answer


def test_the_job_looks_like_its_active_nodes(inside: Attempt) -> None:
    """Node list, counts and tasks are those of the nodes in use, in the order of the job, at the first start and at later ones."""
    plan(inside, "again|nodes=c,b|fault=accelerator", "end")
    names = "SLURM_JOB_NODELIST SLURM_NODELIST SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_NTASKS SLURM_NPROCS SLURM_TASKS_PER_NODE SLURM_JOB_CPUS_PER_NODE"
    out = inside.run(
        COUNT
        + f'for n in {names}; do eval "echo $n=\\${{$n-unset}}"; done; echo "$FTRUN_NNODES $MASTER_ADDR $SLURM_OVERLAP"\nexit 3\n'
    )[1]

    def shape(nodes: str, cpus: str) -> str:
        return (
            f"SLURM_JOB_NODELIST={nodes}\nSLURM_NODELIST={nodes}\nSLURM_JOB_NUM_NODES=2\nSLURM_NNODES=2\n"
            f"SLURM_NTASKS=4\nSLURM_NPROCS=unset\nSLURM_TASKS_PER_NODE=2(x2)\nSLURM_JOB_CPUS_PER_NODE={cpus}\n"
        )

    assert out == f"start 1\n{shape('a,b', '4(x2)')}2  \nstart 2\n{shape('b,c', '4,8')}2 b 1\n"


def test_tasks_that_the_user_counted_are_dealt_out_as_slurm_does(inside: Attempt) -> None:
    """Where the user said --ntasks, the active nodes share that many, the first ones one more."""
    inside.values["active_tasks"] = "5"

    assert "5 3,2\n" == inside.run('#!/bin/sh\necho "$SLURM_NTASKS $SLURM_TASKS_PER_NODE"\n')[1]


def test_a_start_on_fewer_nodes_has_its_share_of_what_was_counted_for_the_whole_job(inside: Attempt) -> None:
    """Tasks and GPUs of the nodes that were asked for, in proportion; what only our options made is hidden from every start."""
    plan(inside, "again|nodes=b", "end")
    inside.values |= {
        "spares": "0",
        "active": "3",
        "active_tasks": "6",
        "active_gpus": "a100:3,h100:6",
        "hidden": "SLURM_NTASKS_PER_NODE",
    }
    inside.env |= {"SLURM_GPUS": "a100:3,h100:6", "SLURM_NTASKS_PER_NODE": "2"}
    words = (
        '"$SLURM_NTASKS $SLURM_TASKS_PER_NODE $SLURM_GPUS ${SLURM_NTASKS_PER_NODE-unset} $FTRUN_WORLD_SIZE"'
    )
    out = inside.run(COUNT + f"echo {words}\nexit 3\n")[1]

    assert out == "start 1\n6 2(x3) a100:3,h100:6 unset 6\nstart 2\n2 2 a100:1,h100:2 unset 2\n"


def test_each_start_is_told_its_size(inside: Attempt) -> None:
    """Nodes, tasks, the share of the full size and the micro steps: at the first start, and after a swap, which changes none of them."""
    plan(inside, "again|nodes=c,b", "end")
    inside.values |= {"sized": "2 3 1 4 48"}
    out = inside.run(
        COUNT + 'echo "$FTRUN_NNODES $FTRUN_WORLD_SIZE $FTRUN_DP_SCALE $FTRUN_GRAD_ACCUM"\nexit 3\n'
    )[1]

    assert out == "start 1\n2 4 3/2 6\nstart 2\n2 4 3/2 6\n"


@under_one_shell("attempt")
@pytest.mark.parametrize(
    ("sized", "told"),
    [
        ("2 2 1 4 48", "1 6"),
        ("2 4 2 4 48", "2 12"),
        ("4 3 1 0 0", "3/2 -"),
        ("2 6 1 5 48", "3 -"),
        ("", "1 -"),
    ],
)
def test_the_batch_is_kept_at_the_size_that_there_is(inside: Attempt, sized: str, told: str) -> None:
    """It is reckoned from the nodes of the start, not from those that were asked for; a size that cannot keep it is told nothing."""
    inside.values |= {"sized": sized}
    assert f"{told}\n" == inside.run('#!/bin/sh\necho "$FTRUN_DP_SCALE ${FTRUN_GRAD_ACCUM--}"\n')[1]


@pytest.mark.parametrize(("asked", "told"), [("8", "3 3 3"), ("2", "9 9 9")])
def test_a_job_that_was_made_smaller_in_the_queue_counts_its_own_tasks(
    attempt: Attempt, asked: str, told: str
) -> None:
    """Slurm 22.05 makes the variables of a job at submission: what a plain srun goes by is put right, in such a job only."""
    attempt.env |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "2,1"}
    attempt.env |= {"SLURM_NTASKS": "9", "SLURM_NPROCS": "9"}
    attempt.values |= {"sized": f"{asked} 8 1 0 0"}
    script = '#!/bin/sh\necho "$SLURM_NTASKS $SLURM_NPROCS $FTRUN_WORLD_SIZE"\n'
    assert f"{told}\n" == attempt.run(script)[1]


@under_one_shell("attempt")
@pytest.mark.parametrize(
    ("env", "world"),
    [
        ({"SLURM_NTASKS": ""}, "2"),
        ({"SLURM_NTASKS": "", "SLURM_NTASKS_PER_NODE": "4"}, "8"),
        ({"SLURM_NTASKS_PER_NODE": "2"}, "4"),
    ],
)
def test_the_world_is_what_a_plain_srun_makes(inside: Attempt, env: dict[str, str], world: str) -> None:
    """The tasks that Slurm was told of, else one for each node."""
    inside.env |= env
    inside.env = {key: value for key, value in inside.env.items() if value}
    script = '#!/bin/sh\necho "$FTRUN_WORLD_SIZE ${FTRUN_GRAD_ACCUM-unset}"\n'
    assert f"{world} unset\n" == inside.run(script)[1]


def test_a_meeting_place_is_chosen_anew(inside: Attempt) -> None:
    """Port and address of a start differ from those of the one before; what the job's environment has stays.
    A first start finds nothing that sbatch would not give it, for two trainings beside each other in one job
    would meet where each of them had found a place of its own.
    """
    plan(inside, "again|nodes=b,c", "end")
    inside.env["MASTER_PORT"] = "4711"
    lines = inside.run(
        '#!/bin/sh\necho "$FTRUN_MASTER_ADDR ${MASTER_ADDR-unset} $MASTER_PORT $FTRUN_MASTER_PORT"\nexit 3\n'
    )[1].splitlines()

    assert [line.split()[:3] for line in lines] == [["a", "unset", "4711"], ["b", "b", "4711"]]
    ports = [int(line.split()[3]) for line in lines]
    assert ports[0] != ports[1]
    assert all(21000 <= port < 29100 for port in ports)


def test_each_start_takes_the_newest_checkpoint(inside: Attempt) -> None:
    """What the script saved is resumed from, and what the agent sets aside is passed over."""
    checkpoint(inside.folder / "c" / "step_1")
    inside.values |= {"checkpoint_glob": f"{inside.folder}/c/*", "resume_arg": "--resume={checkpoint}"}
    plan(
        inside,
        "again|nodes=a,b",
        f"again|nodes=a,b|skip={inside.folder}/c/step_3|skip={inside.folder}/c/step_2",
        "end",
    )
    script = 'n=$((FTRUN_START + 1))\nmkdir -p c/step_$n; echo x >c/step_$n/w\necho "$# ${2##*/} ${FTRUN_RESUME_FROM##*/}"\nexit 3\n'
    out = inside.run("#!/bin/sh\n" + script, "own")[1]

    assert out == "2 step_1 step_1\n2 step_2 step_2\n2 step_1 step_1\n"
    assert f"resume_from={inside.folder}/c/step_2\n" in (inside.place / "begun.0.2").read_text()


def test_input_begins_anew(inside: Attempt) -> None:
    """A second start reads the file that the job was given from its first byte."""
    plan(inside, "again|nodes=a,b", "end")
    job_input = inside.folder / "input"
    job_input.write_text("one\ntwo\n")
    shell = inside.shell
    inside.shell = ["/bin/sh", "-c", f'exec "$@" <"{job_input}"', "sh", *shell]

    assert (3, "one\none\n", "") == inside.run("#!/bin/sh\nread -r x; echo $x\nexit 3\n")


def test_what_a_start_left_behind_is_ended_before_the_next(inside: Attempt) -> None:
    """Children of the script in its own process group do not outlive it into the next start."""
    plan(inside, "again|nodes=a,b", "end")
    alive = "grep -qs 'State:.[^Z]' /proc/$(cat left)/status"
    script = f"[ -e left ] && {{ for i in $(seq 50); do {alive} || break; sleep 0.1; done; {alive} && echo alive || echo gone; exit 3; }}\nsleep 60 & echo $! >left\nexit 3\n"

    assert (3, "gone\n", "") == inside.run("#!/bin/sh\n" + script)


def test_a_closed_attempt_gets_no_further_start(inside: Attempt) -> None:
    """Whoever closed the attempt meanwhile has gone on elsewhere: an answer that comes later starts nothing."""
    plan(inside, "again|nodes=a,b")
    script = COUNT + 'ln -sfn closed "$FTRUN_ATTEMPT_DIR/current"\nexit 9\n'

    assert (9, "start 1\n", "") == inside.run(script)
    assert "closed" == inside.claim("current")


def test_an_attempt_that_is_closed_while_it_starts_again_stays_closed(inside: Attempt) -> None:
    """The claim that follows tells, however the two raced each other."""
    plan(inside, "again|nodes=a,b")
    script = COUNT + 'ln -s closed.2 "$FTRUN_ATTEMPT_DIR/claim.1"\nexit 9\n'

    assert (9, "start 1\n", "") == inside.run(script)
    assert "closed" == inside.claim("current")


@pytest.mark.parametrize("where", [b"_ft_hear_agent && ", b'eval "_ft_compose'])
def test_a_mistake_of_ours_between_two_starts_costs_the_next_one_only(inside: Attempt, where: bytes) -> None:
    """Wherever our own shell breaks down then, the job ends with the script's code."""
    plan(inside, "again|nodes=a,b")
    job = inside.start(COUNT + "exit 9\n", change=(where, b"exit 2; " + where))

    assert b"start 1\n" == job.communicate(timeout=120)[0]
    assert job.returncode == 9
    with contextlib.suppress(ProcessLookupError):  # what hands on signals has nobody left to end it
        os.killpg(job.pid, signal.SIGKILL)
    if agent_lives(inside):
        os.kill(agent_pid(inside), signal.SIGKILL)
    wait_for(lambda: not agent_lives(inside))
    for left in (inside.folder / "my tmp").iterdir():  # nobody is left to remove it
        shutil.rmtree(left)


def test_a_slurm_that_does_not_answer_holds_no_start_with_segments(inside: Attempt) -> None:
    """It is asked for the topology for some seconds, and nothing of the question stays; then the first nodes are used."""
    tools = inside.folder / "tools"
    tools.mkdir()
    hangs = f"sleep 607.{os.getpid()}"
    (tools / "scontrol").write_text(f"#!/bin/sh\n[ \"$1 $2\" != 'show topology' ] || exec {hangs}\n")
    (tools / "scontrol").chmod(0o755)
    (tools / "srun").symlink_to("/bin/true")
    inside.values |= {"spares": "2", "active": "4", "segment": "2", "clients": str(tools)}
    inside.env |= {"SLURM_JOB_NODELIST": "a,b,c,d,e,f", "SLURM_JOB_NUM_NODES": "6"}
    script = "#!/bin/sh\necho $SLURM_JOB_NODELIST\n"

    code, out, err = inside.run(script, change=(b'_ft_within 10 "$_ft_asker"', b'_ft_within 1 "$_ft_asker"'))

    assert (0, "a,b,c,d\n") == (code, out)
    assert "segments of 2: the first 4 are used" in err
    asked = subprocess.run(["pgrep", "-f", hangs], capture_output=True, check=False)
    assert asked.stdout == b""


SPREAD = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=a,b,c\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=d,e,f,x\nSwitchName=top Level=1 LinkSpeed=1 Nodes=a,b,c,d,e,f,x Switches=s0,s1\n"
BLOCKS = "BlockName=b0 BlockIndex=0 Nodes=a,d,f BlockSize=3\nBlockName=b1 BlockIndex=1 Nodes=b,c,e BlockSize=3\nAggregatedBlock=b0,b1 BlockIndex=2 Nodes=a,b,c,d,e,f BlockSize=6\n"


@pytest.mark.parametrize(
    ("topology", "unit", "nodes", "says"),
    [
        (SPREAD, "2", "a,b,d,e", ""),
        (BLOCKS, "2", "a,b,c,d", ""),
        (SPREAD, "", "a,b,c,d", ""),
        (SPREAD, "4", "a,b,c,d", "segments of 4: the first 4 are used"),
        ("", "2", "a,b,c,d", "segments of 2: the first 4 are used"),
    ],
)
def test_the_first_start_of_a_job_with_spares_has_whole_segments(
    inside: Attempt, topology: str, unit: str, nodes: str, says: str
) -> None:
    """Each of nodes below one switch or in one block, in Slurm's order; where there are too few, the first nodes and a line."""
    tools = inside.folder / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(f"#!/bin/sh\n[ \"$*\" = 'show topology' ] && printf '%s' '{topology}'\n")
    (tools / "scontrol").chmod(0o755)
    (tools / "srun").symlink_to("/bin/true")
    inside.values |= {"spares": "2", "active": "4", "segment": unit, "clients": str(tools)}
    inside.env |= {"SLURM_JOB_NODELIST": "a,b,c,d,e,f", "SLURM_JOB_NUM_NODES": "6"}
    _, out, err = inside.run('#!/bin/sh\necho "$SLURM_JOB_NODELIST"\n')
    assert out.split() == [nodes]
    assert says in err
    assert ("unit: " in err) is bool(says)


class Shim:
    """The srun in front of Slurm's, with a fake one behind it that prints its words."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder, self.shell = folder, shell
        self.talk = folder / "ftrun.abcdef" / "agent"
        (self.talk / "bin").mkdir(parents=True)
        (self.talk / "bin" / "srun").write_bytes(SHIM_SH)
        (folder / "bin").mkdir()
        self._tool("srun", 'for a; do printf "[%s]" "$a"; done; echo " shim=${FTRUN_SHIM-none}"')
        self._tool("scontrol", "echo n0; echo n1")
        (folder / "current").symlink_to("0.2")
        self.env = {
            "PATH": f"{self.talk}/bin:{folder}/bin:/usr/bin:/bin",
            "SLURM_JOB_ID": "7",
            "FTRUN_START": "2",
        }
        self.env["FTRUN_START_TOKEN"] = "0.2"
        self.brief()

    def _tool(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def brief(
        self, no: str = "n1", active: str = " n0 n2", moved: str = " n1=n2", front: str = "--no-kill --overlap",
        label: str = "", log: str = "", pyz: str = "",
    ) -> None:  # fmt: skip
        words = ("7", "0.2", str(self.folder), no, active, moved, front, label, log, pyz)
        (self.talk / "shim.2").write_text("set -- " + " ".join(f"'{word}'" for word in words) + "\n")

    def call(self, *words: str, stdout: Path | None = None, fed: str = "") -> str:
        """What the fake srun said (or a file that it wrote into), or what the shim said on stderr. Fed nothing, as a batch script is, or that text."""
        command = [*self.shell, str(self.talk / "bin" / "srun"), *words]
        if stdout is not None:
            with stdout.open("w") as file:
                subprocess.run(command, env=self.env, stdout=file, check=True, timeout=120)
            return stdout.read_text().strip()
        with subprocess.Popen(
            command,
            env=self.env,
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            said, errors = process.communicate(fed or None, timeout=120)
        return (said or errors).strip()


@pytest.fixture(params=EACH_SHELL)
def shim(request: pytest.FixtureRequest, tmp_path: Path) -> Shim:
    return Shim(tmp_path, shell_of(request))


FRONT = "[--no-kill][--overlap]"
CALLS = [
    ("python x.py -w n1", f"{FRONT}[--exclude=n1][python][x.py][-w][n1]"),
    ("-n4 -N2 python x.py", f"{FRONT}[--exclude=n1][-n4][-N2][python][x.py]"),
    ("-N 1 -w n1 a", f"{FRONT}[--exclude=n1][-N][1][--nodelist=n2][a]"),
    ("-lwn1 a", f"{FRONT}[--exclude=n1][-l][--nodelist=n2][a]"),
    ("--nodelist=n1,n0 a", f"{FRONT}[--exclude=n1][--nodelist=n2,n0][a]"),
    ("--nodelist n[0-1] a -w n1", f"{FRONT}[--exclude=n1][--nodelist=n0,n2][a][-w][n1]"),
    ("-w ./hosts a", f"{FRONT}[--exclude=n1][--nodelist=./hosts][a]"),
    ("-x n0 -n1 a", f"{FRONT}[--exclude=n1,n0][-n1][a]"),
    ("--exclude=n0 a", f"{FRONT}[--exclude=n1,n0][a]"),
    ("-r1 -N1 a", f"{FRONT}[--exclude=n1,n0][-N1][a]"),
    ("--relative 1 -N1 a", f"{FRONT}[--exclude=n1,n0][-N1][a]"),
    ("--cpu-bind none --mpi=none a", f"{FRONT}[--exclude=n1][--cpu-bind][none][--mpi=none][a]"),
    ("--kill-on-bad-exit -K -k --exclusive a", "[--no-kill][--exclude=n1][--kill-on-bad-exit][-K][-k][--exclusive][a]"),
    ("--jobid 7 a", f"{FRONT}[--exclude=n1][--jobid][7][a]"),
    ("--container-mount-home --container-writable a -w n1 -x b", f"{FRONT}[--exclude=n1][--container-mount-home][--container-writable][a][-w][n1][-x][b]"),
    ("--container-image a -w n1 -N1 b", f"{FRONT}[--exclude=n1][--container-image][a][--nodelist=n2][-N1][b]"),
    ("--oom-kill-step --consolidate-segments --async a -w n1", f"{FRONT}[--exclude=n1][--oom-kill-step][--consolidate-segments][--async][a][-w][n1]"),
    ("--container-type a --ignore-signals b -wn1 c", f"{FRONT}[--exclude=n1][--container-type][a][--ignore-signals][b][--nodelist=n2][c]"),
    ("-wn1 --site-option a -x b -r 1", f"{FRONT}[--exclude=n1][--nodelist=n2][--site-option][a][-x][b][-r][1]"),
    ("-- a -w n1", f"{FRONT}[--exclude=n1][--][a][-w][n1]"),
]  # fmt: skip
# What is told of elsewhere in this file, and what prints a page and ends.
NOT_ASKED = {"nodelist", "exclude", "relative", "jobid", "het-group", "help", "usage", "version"}
THROUGH = [
    "--version", "-V", "--help", "--usage", "--jobid=8 -w n1 a", "--jobid 8 a", "--het-group=0 a",
    "-n1 --jobid=8.0 a",
]  # fmt: skip


@under_one_shell("shim")
@pytest.mark.parametrize(("words", "wanted"), CALLS, ids=[words for words, _ in CALLS])
def test_a_step_goes_to_the_active_nodes(shim: Shim, words: str, wanted: str) -> None:
    """What the user typed stays; what must not be used is excluded, and names of nodes set aside become those of their successors."""
    assert f"{wanted} shim=2" == shim.call(*words.split())
    assert (shim.talk / "calls.2").read_text().split(None, 2)[2] == words + "\n"


def test_each_option_of_this_machines_srun_takes_what_srun_takes(shim: Shim, tmp_path: Path) -> None:
    """An option's value is not taken for the command, nor the command for a value, whatever the release of Slurm."""
    if shim.shell[0].rpartition("/")[2] != "dash":
        pytest.skip("the words do not depend on the shell")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n0\nPartitionName=a Nodes=ALL\n")
    tool, env = shutil.which("srun"), {**os.environ, "SLURM_CONF": str(conf)}
    if tool is None:
        pytest.skip("no Slurm on this machine")
    page = subprocess.run([tool, "--help"], env=env, capture_output=True, text=True, timeout=120).stdout
    names = set(re.findall(r"^ +(?:-[a-zA-Z], )?--([a-z-]+)", page, re.MULTILINE)) - NOT_ASKED
    assert len(names) > 90

    wrong = {}
    for name in sorted(names):
        # A value is taken whatever it looks like; an option without one leaves the next word to be refused.
        said = subprocess.run(
            [tool, f"--{name}", "--of-no-slurm"], env=env, capture_output=True, text=True, timeout=120
        ).stderr
        valued = "unrecognized option '--of-no-slurm'" not in said
        words = shim.call(f"--{name}", "a", "-w", "n1", "b")
        if ("[--nodelist=n2][b]" in words) is not valued:
            wrong[name] = words
    assert not wrong


@under_one_shell("shim")
@pytest.mark.parametrize("words", THROUGH)
def test_what_is_no_step_of_this_job_is_handed_through(shim: Shim, words: str) -> None:
    """Another job's step, a het group, a question about srun itself: word for word as typed."""
    assert "".join(f"[{word}]" for word in words.split()) + " shim=none" == shim.call(*words.split())


@under_one_shell("shim")
@pytest.mark.parametrize(
    "change", [{"SLURM_JOB_ID": "8"}, {"SLURM_JOB_ID": ""}, {"FTRUN_START": "9"}, {"FTRUN_START": ""}]
)
def test_outside_its_own_job_the_shim_is_not_there(shim: Shim, change: dict[str, str]) -> None:
    """A job that inherited the PATH, a shell without the job's variables: plain srun."""
    shim.env |= change

    assert "[-w][n1][a] shim=none" == shim.call("-w", "n1", "a")


def test_an_earlier_start_gets_no_step(shim: Shim) -> None:
    """A script that should be gone is told so; where nobody can say which start is the present one, the step goes on."""
    shim.env["FTRUN_START_TOKEN"] = "0.1"
    assert "srun: ftrun: start 0.1 of this script is over (now: 0.2); no step for it" == shim.call("a")
    (shim.folder / "current").unlink()

    assert f"{FRONT}[--exclude=n1][a] shim=2" == shim.call("a")


def test_the_first_start_of_a_job_without_spares_adds_nothing(shim: Shim) -> None:
    """Several steps beside each other find what plain srun gives them."""
    shim.brief(no="", active="", moved="", front="")

    assert "[-w][n1][-r1][-x][n0][a] shim=2" == shim.call("-w", "n1", "-r1", "-x", "n0", "a")


@under_one_shell("shim")
@pytest.mark.parametrize(
    ("words", "labelled"),
    [
        ("a", True),
        ("-n2 a -l", True),
        ("-l a", False),
        ("-o x a", False),
        ("--output=x a", False),
        ("-n2 -e x a", False),
        ("-vl a", False),
        ("-u a", False),
        ("-n2 --unbuffered a", False),
        ("--pty a", False),
        ("--site-option x -o x a", False),
    ],
)
def test_lines_are_labelled_where_they_go_into_the_log(shim: Shim, words: str, labelled: bool) -> None:
    """Only where the user said nothing of it, and where srun writes into the job's own log."""
    log = shim.folder / "log"
    log.touch()
    shim.brief(no="", active="", moved="", front="", label="1", log=str(log))

    assert ("[--label]" in shim.call(*words.split(), stdout=log)) is labelled
    assert "[--label]" not in shim.call(*words.split(), stdout=shim.folder / "other")
    shim.brief(no="", active="", moved="", front="", label="", log=str(log))
    assert "[--label]" not in shim.call(*words.split(), stdout=log)


@under_one_shell("shim")
@pytest.mark.parametrize("name", ["SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_UNBUFFEREDIO"])
def test_what_the_environment_says_of_the_output_counts_as_well(shim: Shim, name: str) -> None:
    """Files of the user's own get no labels, nor do pieces of lines."""
    log = shim.folder / "log"
    log.touch()
    shim.brief(no="", active="", moved="", front="", label="1", log=str(log))
    shim.env[name] = "out.%t"

    assert "[--label]" not in shim.call("a", stdout=log)


@under_one_shell("shim")
@pytest.mark.parametrize(
    ("words", "wrapped"),
    [("-n2 a b", True), ("-n2 -- a b", True), ("orted a", False), ("--pty a", False), ("-n2", False)],
)
def test_ranks_that_may_join_again_have_a_parent(shim: Shim, words: str, wrapped: bool) -> None:
    """The wrapper stands between srun's options and the command, and a dead rank ends no other."""
    shim.brief(pyz="/p")
    said = shim.call(*words.split())

    assert ("[ftrun-rank][" in said and f"[/p][{shim.folder}/ranks/0.2][a][b]" in said) is wrapped
    assert ("[--kill-on-bad-exit=0][--wait=0]" in said) is wrapped


def test_two_of_them_do_not_call_each_other(shim: Shim) -> None:
    """A job that was submitted from inside another one has both on its PATH."""
    other = shim.folder / "ftrun.zzzzzz" / "agent"
    shutil.copytree(shim.talk, other)
    (other / "bin" / "srun").chmod(0o755)
    shim.env["PATH"] = f"{shim.talk}/bin:{other}/bin:{shim.folder}/bin:/usr/bin:/bin"

    assert f"{FRONT}[--exclude=n1][a] shim=2" == shim.call("a")


def test_what_libraries_record_is_exported_where_the_user_said_nothing(inside: Attempt) -> None:
    """No name that the job has under any spelling is touched; the folder of this start's stacks is there; the record names what was set."""
    plan(inside, "again|nodes=a,b", "end")
    inside.values["timeouts"] = "T_SIZE,T_OLD=20\nT_FILE={stacks}/rank_\nT_DUMP=1"
    inside.env |= {"T_OLD": "", "SLURM_EXPORT_ENV": "NONE"}
    out = inside.run('#!/bin/sh\necho "${T_SIZE-unset} $T_FILE $T_DUMP"\n[ -d "${T_FILE%/*}" ] && exit 3\n')

    stacks = inside.place / "stacks"
    assert (3, f"unset {stacks}/0.1/rank_ 1\nunset {stacks}/0.2/rank_ 1\n") == out[:2]
    assert "exported=T_FILE,T_DUMP\n" in (inside.place / "begun.0.2").read_text()


@pytest.mark.parametrize("change", [(b"", b""), NO_PERL], ids=["perl", "no perl"])
def test_what_only_the_wider_job_has_is_not_there(inside: Attempt, change: tuple[bytes, bytes]) -> None:
    """Variables that the script's own options would not have made are taken away, and GPUs are counted as the user did."""
    inside.values |= {"hidden": "SLURM_NTASKS_PER_NODE", "active_gpus": "4"}
    inside.env |= {"SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS": "6"}
    script = '#!/bin/sh\necho "${SLURM_NTASKS_PER_NODE-unset} $SLURM_GPUS"\n'

    assert "unset 4\n" == inside.run(script, change=change)[1]


def test_a_node_that_this_job_lost_may_be_back_in_a_companion(inside: Attempt) -> None:
    """It is the companion's then: behind this job's own nodes, in no step of this job, and kept out of nothing."""
    plan(inside, "again|nodes=a,c|fault=node", "again|nodes=a,c,b|span=9:b|fault=node", "end")
    script = '#!/bin/sh\n[ "$FTRUN_START" -gt 1 ] || exit 5\necho "$SLURM_JOB_NODELIST"\ncat "${0%/*}/agent/shim.$FTRUN_START"\nexit 3\n'
    told = inside.run(script)[1].splitlines()

    assert [told[0], told[2]] == ["a,c", "a,c,b"]
    assert "'b' ' a c'" in told[1]
    assert "'' ' a c'" in told[3]
    assert "' 9:b' 'a,c,b'" in told[3]
