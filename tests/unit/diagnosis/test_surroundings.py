"""Laws of what the other lines of a log make of a line: short logs of our own making in, a diagnosis out. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Topology
from ftrun.supervisor.signatures import catalog as signatures_catalog


def judged(*lines: str, nodes: tuple[str, ...] = ()) -> Diagnosis:
    catalog = signatures_catalog.load()
    report = inputs.read_attempt_files(
        [], catalog=catalog, stdin="".join(f"{line}\n" for line in lines).encode()
    ).report
    topology = report.seats.added_to(Topology(nodes=nodes))
    return diagnose(Facts(report.evidence, topology, ended=None, catalog=catalog, progress=report.progress))


LAUNCH = "srun: error: Task launch for StepId=7.0 failed on node {}: {}"
CONNECT = "{}:41:88 [0] misc/socket.cc:50 NCCL WARN Connect to {}<4711> failed : {}"
CLOSED = "{}:41:88 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer {}<4711>"
XID = "[Mon Jan  5 10:{}:00 2026] NVRM: Xid (PCI:0000:{}:00): 31, pid={}, Ch 00000008, intr 0. MMU Fault: ENGINE GRAPHICS faulted @ 0x7f. Fault is of type FAULT_PDE"
LISTEN = "{}[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address."
DAEMON_LOST = (
    "ORTE has lost communication with its daemon located on node:",
    "",
    "  hostname:  n07",
    "",
    "This is usually due to",
)


def test_one_node_that_does_not_start_tasks_is_to_blame() -> None:
    """Of a job that starts on all nodes but one, that one is the culprit."""
    found = judged(LAUNCH.format("n7", "Communication connection failure"))

    assert (found.fault, found.retry, found.nodes) == (FaultClass.NODE, True, ("n7",))


def test_a_job_that_starts_on_no_node_is_not_set_up() -> None:
    """Several nodes that cannot start the tasks are innocent, each of them."""
    found = judged(
        LAUNCH.format("n7", "No such process"), LAUNCH.format("n8", "Socket timed out on send/recv operation")
    )

    assert (found.fault, found.retry, found.nodes, found.exclude) == (FaultClass.CONFIG, False, (), False)


def test_a_few_of_many_nodes_that_do_not_start_tasks_are_to_blame() -> None:
    """Where most nodes of the attempt start, those that do not are the culprits."""
    lines = [LAUNCH.format(name, "Communication connection failure") for name in ("n1", "n2")]
    found = judged(*lines, nodes=tuple(f"n{number}" for number in range(64)))

    assert (found.fault, set(found.nodes)) == (FaultClass.NODE, {"n1", "n2"})


def test_programs_that_fail_one_after_another_on_one_device_share_a_sick_one() -> None:
    """A page fault is the program's; three programs in a row on one device and no other accuse the device."""
    again = judged(*(XID.format(minute, "3b", 400 + minute) for minute in (11, 24, 37)))
    once = judged(XID.format(11, "3b", 400))
    everywhere = judged(*(XID.format(minute, f"{minute}", 400 + minute) for minute in (11, 24, 37)))

    assert (again.fault, again.retry, again.exclude) == (FaultClass.HARDWARE_GPU, True, True)
    assert FaultClass.HARDWARE_GPU not in {once.fault, everywhere.fault}


def test_a_port_that_several_launchers_miss_is_held_by_one_of_them() -> None:
    """One launcher without its port is a conflict that passes; two tasks that start launchers are a wrong set-up."""
    one = judged(LISTEN.format(""))
    several = judged(LISTEN.format("1: "), LISTEN.format("2: "))

    assert (one.fault, one.retry) == (FaultClass.PORT_CONFLICT, True)
    assert (several.fault, several.retry) == (FaultClass.CONFIG, False)


def test_the_leader_that_tells_of_its_own_silence_is_not_blamed() -> None:
    """Task 0 keeps the list of heartbeats: where it accuses itself alone, nobody was lost."""
    text = "E coordination_service.cc:9] /job:jax_worker/replica:0/task:{} has been set to ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:{} heartbeat timeout."

    assert judged(text.format(0, 0)).nodes == ()
    assert judged(text.format(5, 5)).nodes == ("rank 5",)


def test_the_one_peer_that_all_name_has_gone() -> None:
    """Where nothing but lost connections is told, the peer at the other end of all of them is the suspect."""
    found = judged(CLOSED.format("n1", "n9"), CLOSED.format("n2", "n9"))

    assert (found.fault, found.retry, found.nodes, found.exclude) == (FaultClass.NODE, True, ("n9",), False)


def test_peers_of_all_sorts_accuse_nobody() -> None:
    """Victims that name different peers name no culprit."""
    assert judged(CLOSED.format("n1", "n2"), CLOSED.format("n3", "n4")).nodes == ()


@pytest.mark.parametrize("address", ["fe80::1c2d:3e4f%ib0", "169.254.3.1", "127.0.1.1"])
def test_an_address_that_means_another_host_to_each_reader_names_nobody(address: str) -> None:
    """A link-local or loopback address is a wrong choice of interface, each time, and no machine."""
    found = judged(CONNECT.format("n1", address, "Software caused connection abort"))

    assert (found.fault, found.retry, found.nodes) == (FaultClass.CONFIG, False, ())


def test_what_fails_while_a_cancelled_job_is_ended_is_no_cause_of_its_end() -> None:
    """Processes that outlive a cancel do not make it a failure of the node."""
    cancelled = "slurmstepd: error: *** JOB 81 ON n3 CANCELLED AT 2026-01-05T10:00:00 ***"
    unkillable = "slurmstepd: error: *** JOB 81 STEPD TERMINATED ON n3 AT 2026-01-05T10:03:00 DUE TO JOB NOT ENDING WITH SIGNALS ***"

    assert judged(cancelled, unkillable).fault is FaultClass.CANCELLED
    assert judged(unkillable).fault is FaultClass.NODE


def test_the_prompt_at_which_a_report_was_asked_for_names_its_machine() -> None:
    """Of a text with one prompt the machine is known, unless other machines speak in it."""
    lost = "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"
    other = "n8:41:88 [0] misc/socket.cc:50 NCCL WARN Connect to 10.1.0.7<4711> failed : Connection refused"

    assert judged("root@n7:~# nvidia-smi", lost).nodes == ("n7",)
    assert judged("root@n7:~# nvidia-smi", other, lost).nodes == ()


def test_a_line_that_names_no_node_costs_one_only_if_it_was_measured_there() -> None:
    """Slurm knows on which node a state was measured. A doubtful line, and what others miss, may be a set-up."""
    doubtful = judged("Failed to initialize NVML: Unknown Error")
    missed = judged("scheduler: a node went down")
    driver = judged("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    sure = judged(
        "[Mon Jan  5 10:11:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."
    )

    assert (doubtful.exclude, missed.exclude) == (False, False)
    assert (driver.exclude, driver.nodes) == (True, ())
    assert sure.exclude


def test_a_record_of_a_node_says_whose_reason_it_gives() -> None:
    """In what scontrol prints of a node the name stands lines before the reason."""
    found = judged(
        "NodeName=n7 Arch=x86_64 CoresPerSocket=32",
        "   State=DOWN* ThreadsPerCore=1 TmpDisk=0 Weight=1",
        "   Reason=Not responding [slurm@2026-01-05T10:11:12]",
    )

    assert (found.fault, found.nodes) == (FaultClass.NODE, ("n7",))


def test_one_victim_that_names_several_peers_is_no_culprit() -> None:
    """Who tells of all failing pairs stands in all of them for that reason."""
    text = "n1:41:88 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer {}<4711> with status=12 opcode=0 len=0 vendor err 129"

    assert judged(text.format("10.0.0.7"), text.format("10.0.0.8")).nodes == ()


def test_ranks_that_an_excerpt_leaves_out_are_not_missing() -> None:
    """Of a text without a job only a single rank can be missed, and only where enough others report."""
    seats = [f"rank {rank} of 8 on n{rank}" for rank in range(8)]
    late = "[rank{0}]:[E ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out."

    assert judged(*seats, *(late.format(rank) for rank in range(5))).nodes == ()
    assert judged(*seats, *(late.format(rank) for rank in range(7))).nodes == ("n7",)


def test_a_link_that_came_up_again_is_no_fault_where_nothing_else_failed() -> None:
    """At boot links go down and up; a link that stays down is one to look at."""
    down, up = "mlx5_core 0000:5c:00.0 {}: Link down", "mlx5_core 0000:5c:00.0 {}: Link up"

    assert judged(down.format("ens1f0np0"), up.format("ens1f0np0")).fault is FaultClass.HEALTHY
    assert judged(up.format("ens1f0np0"), down.format("ens1f0np0")).fault is FaultClass.NETWORK
    assert judged(down.format("ens1f0np0"), up.format("ens2f0np0")).fault is FaultClass.NETWORK


def test_a_server_that_came_back_is_no_fault_where_nothing_else_failed() -> None:
    """A file system whose server moved to another machine goes on by itself."""
    lost = "LustreError: 11-0: scratch-OST0003-osc-ffff8a3c: operation ost_write to node 10.0.0.9@o2ib failed: rc = -107"
    back = "Lustre: scratch-OST0003-osc-ffff8a3c: Connection restored to 10.0.0.9@o2ib (at 10.0.0.9@o2ib)"

    assert judged(lost, back).fault is FaultClass.HEALTHY
    assert judged(back, lost).fault is FaultClass.STORAGE


def test_a_link_that_came_up_again_may_be_the_reason_of_what_failed_meanwhile() -> None:
    """A break of a link that something else suffered from is told."""
    found = judged(
        "mlx5_core 0000:5c:00.0 ens1f0np0: Link down",
        "gpu01:811:900 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4711> with status=12 opcode=0 len=0 vendor err 129",
        "mlx5_core 0000:5c:00.0 ens1f0np0: Link up",
    )

    assert found.fault is FaultClass.NETWORK


def test_a_crash_in_several_processes_at_the_start_comes_again() -> None:
    """One process that crashes may be unlucky; two that crash the same way before the first step are the program."""
    text = "EH9999: [PID: {}] 2026-01-05-10:11:12.730.302 wait for compute device to finish failed, runtime result = 507018.[FUNC:ReportCallError]"

    assert judged(text.format(811)).retry
    assert not judged(text.format(811), text.format(812)).retry


def test_a_crash_before_the_first_step_comes_again() -> None:
    """A program that crashes where none of its steps is seen is wrong or wrongly built; one that trained is tried again."""
    crash = "Fatal Python error: Segmentation fault"

    assert not judged(crash).retry
    assert judged("step 100 loss 2.5", "step 101 loss 2.4", "step 102 loss 2.4", crash).retry


def test_a_port_of_the_machine_is_taken_on_every_try() -> None:
    """Below 1024 a service listens; above it another program; 0 means any port, and tells nothing."""
    text = (
        "RuntimeError: The server socket has failed to bind to [::]:{} (errno: 98 - Address already in use)."
    )

    assert (judged(text.format(443)).fault, judged(text.format(443)).retry) == (FaultClass.CONFIG, False)
    assert [judged(text.format(port)).fault for port in (0, 1024, 29500)] == [FaultClass.PORT_CONFLICT] * 3


def test_a_step_that_had_to_wait_for_memory_asked_for_no_more_than_the_job_has() -> None:
    """A step is refused for ever where the job is too small, and for a while where other steps hold what it needs."""
    wait = "srun: Job 81 step creation temporarily disabled, retrying (Requested nodes are busy)"
    refused = "srun: error: Unable to create step for job 81: Memory required by task is not available"
    too_many = "srun: error: Unable to create step for job 81: More processors requested than permitted"

    assert (judged(wait, refused).fault, judged(wait, refused).retry) == (FaultClass.SCHEDULER, True)
    assert (judged(refused).fault, judged(refused).retry) == (FaultClass.CONFIG, False)
    assert (judged(wait, too_many).fault, judged(wait, too_many).retry) == (FaultClass.CONFIG, False)


def test_a_device_that_hangs_in_a_program_that_went_wrong_is_not_sick() -> None:
    """A device that cannot leave a program is to blame, unless that program used a wrong address on it just before."""
    stuck = "[Mon Jan  5 10:{}:01 2026] NVRM: Xid (PCI:0000:{}:00): 109, pid=811, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x2c014"
    alone = judged(stuck.format(11, "3b"))
    after = judged(XID.format(11, "3b", 811), stuck.format(11, "3b"))
    elsewhere = judged(XID.format(11, "5e", 811), stuck.format(11, "3b"))
    before = judged(stuck.format(11, "3b"), XID.format(12, "3b", 811))

    assert {found.fault for found in (alone, elsewhere, before)} == {FaultClass.HARDWARE_GPU}
    assert after.fault is not FaultClass.HARDWARE_GPU
    assert (after.exclude, after.nodes) == (False, ())


def test_a_help_text_of_mpi_names_its_host_lines_below() -> None:
    """The host that Open MPI names under its explanation is the one that the explanation is about; who tells of it is not."""
    daemon = judged("bpsh: Child process exit abnormally.", *DAEMON_LOST)
    peer = judged(
        "An MPI communication peer process has unexpectedly disconnected.  This",
        "usually indicates a failure in the peer process",
        "  Local host: n12",
        "  Peer host:  n13",
    )

    assert daemon.nodes == ("n07",)
    assert (peer.nodes, peer.exclude) == (("n13",), False)


def test_a_node_that_only_mpirun_misses_is_a_lead_and_is_not_left_out() -> None:
    """Mpirun cannot tell a dead node from its own helper that died there; another line that speaks against the node can."""
    alone = judged(*DAEMON_LOST)
    slurm = judged(*DAEMON_LOST, "srun: error: Node failure on n07")

    assert (alone.fault, alone.retry, alone.nodes, alone.exclude) == (FaultClass.NODE, True, ("n07",), False)
    assert slurm.nodes == ("n07",)


def test_two_hosts_that_do_not_meet_do_not_say_whose_fault_it_is() -> None:
    """Of a connection that was never made one end is as suspect as the other, until a second host misses the same one."""
    for told in ("Connection timed out", "No route to host", "Software caused connection abort"):
        one = judged(CONNECT.format("n1", "10.1.0.9", told))
        two = judged(CONNECT.format("n1", "10.1.0.9", told), CONNECT.format("n2", "10.1.0.9", told))

        assert (one.fault, one.nodes, one.exclude) == (FaultClass.NETWORK, (), False)
        assert two.nodes == ("10.1.0.9",)


def test_who_closes_a_connection_at_start_is_no_culprit() -> None:
    """Whoever gives up first closes all its connections; after many collectives, the one that went away is the suspect."""
    start = judged(CLOSED.format("n1", "n9"))
    work = judged(
        CLOSED.format("n1", "n9"),
        "[rank0]:[E ProcessGroupNCCL.cpp:542] [Rank 0] Collective WorkNCCL(SeqNum=89, OpType=ALLREDUCE, NumelIn=7, Timeout(ms)=90000) raised the following async exception: NCCL error: remote process exited or there was a network error",
    )

    assert (start.retry, start.nodes) == (True, ())
    assert (work.fault, work.nodes, work.exclude) == (FaultClass.NODE, ("n9",), False)


def test_a_prompt_on_a_machine_without_a_number_names_no_node() -> None:
    """Nodes of a cluster bear numbers; who reports from a machine of another name may sit anywhere."""
    lost = "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"

    assert judged("me@Workshop:~$ nvidia-smi", lost).nodes == ()


def test_a_node_that_lacks_a_little_memory_lacks_no_module() -> None:
    """What the kernel and the firmware keep for themselves is a wrong line in slurm.conf; a good deal less is a broken node."""
    text = "slurmctld: error: Node n7 has low real_memory size ({} < 64000)"
    little, module = judged(text.format(63622)), judged(text.format(31850))

    assert (little.fault, little.nodes, little.exclude) == (FaultClass.CONFIG, (), False)
    assert (module.fault, module.nodes, module.exclude) == (FaultClass.NODE, ("n7",), True)


def test_a_name_that_begins_with_a_digit_is_told_whole() -> None:
    """Half a name may be that of another node."""
    found = judged("Jan  5 10:11:12 00-17-gpu-1 kernel: NVRM: GPU 0000:3a:00.0: GPU has fallen off the bus.")

    assert found.nodes == ("00-17-gpu-1",)


def test_a_library_that_fails_before_the_first_step_does_so_every_time() -> None:
    """A defect that shows at the start is there on the next try; one that shows after hours of steps may not be."""
    failed = 'RuntimeError: r INTERNAL ASSERT FAILED at "/pytorch/c10/core/x.cpp":12, please report a bug to PyTorch.'
    steps = [f"iteration {step}/500 | loss: 2.{step} | lr: 1e-4" for step in range(1, 40)]

    assert (judged(failed).fault, judged(failed).retry) == (FaultClass.LIBRARY_BUG, False)
    assert judged(*steps, failed).retry


def test_a_host_far_below_a_help_text_is_another_matter() -> None:
    """What stands a page further down belongs to something else."""
    far = [f"note {number}" for number in range(40)]
    found = judged("ORTE has lost communication with its daemon located on node:", *far, "  hostname:  n07")

    assert found.nodes == ()


def test_a_node_that_answered_late_is_not_blamed_for_that_alone() -> None:
    """Load, names and keys make an answer late as well as a sick node does; among others that started it is the odd one."""
    late = LAUNCH.format("n7", "Socket timed out on send/recv operation")
    alone = judged(late)
    of_many = judged(late, nodes=tuple(f"n{number}" for number in range(16)))

    assert (alone.fault, alone.retry, alone.nodes, alone.exclude) == (FaultClass.NODE, True, (), False)
    assert (of_many.nodes, of_many.exclude) == (("n7",), True)


def test_a_node_that_never_booted_is_left_to_slurm() -> None:
    """Slurm sets down by itself what does not boot for a job; a node that was lost while it ran is avoided."""
    lost = "srun: error: Node failure on n7"
    boot = judged(lost, "srun: error: Something is wrong with the boot of the nodes.")

    assert (boot.fault, boot.retry, boot.nodes, boot.exclude) == (FaultClass.NODE, True, (), False)
    assert (judged(lost).nodes, judged(lost).exclude) == (("n7",), True)


def test_no_space_where_workers_starve_for_shared_memory_is_the_container() -> None:
    """What has no space left is /dev/shm where the loader's workers die for want of it, a disk otherwise."""
    full = "OSError: [Errno 28] No space left on device"
    starved = "RuntimeError: DataLoader worker (pid 412) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."

    assert judged(full, starved).fault is FaultClass.CONFIG
    assert judged(full).fault is FaultClass.STORAGE


def test_a_step_that_srun_ended_after_its_first_task_is_no_cancel() -> None:
    """srun ends a step whose task failed, under whatever name a site starts it."""
    lines = (
        "{}: error: n7: task 0: Exited with exit code 174",
        "{}: First task exited 60s ago",
        "slurmstepd: error: *** STEP 81.0 ON n7 CANCELLED AT 2026-01-05T10:00:00 ***",
    )

    for name in ("srun", "yhrun"):
        assert judged(*(line.format(name) for line in lines)).fault is FaultClass.UNKNOWN


def test_a_credential_that_a_node_calls_too_old_blames_no_single_witness() -> None:
    """Two clocks differ, and the line does not say which is wrong; among others that started the node is the odd one."""
    old = LAUNCH.format("n7", "Job credential expired")
    alone = judged(old)
    of_many = judged(old, nodes=tuple(f"n{number}" for number in range(16)))

    assert (alone.fault, alone.nodes, alone.exclude) == (FaultClass.SCHEDULER, (), False)
    assert of_many.nodes == ("n7",)


def test_a_rank_that_all_wait_for_is_named_and_ranks_that_wait_by_turns_are_not() -> None:
    """One rank that is missed may be dead; where several are missed by turns, each waits for another's tensor."""
    text = "[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_{0}_bias_0 [missing ranks: {0}]"

    assert judged(text.format(1), text.format(1)).nodes == ("rank 1",)
    assert judged(text.format(1), text.format(2)).nodes == ()


@pytest.mark.parametrize("peer", ["172.17.0.3", "127.0.0.1"])
def test_the_bridge_of_a_container_names_no_machine(peer: str) -> None:
    """Each host has a bridge of that address; who is sent there has been given a wrong one."""
    found = judged(
        f"[E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to ({peer}, 44737)."
    )

    assert found.nodes == ()


def test_what_a_log_daemon_tells_everybody_is_about_its_machine() -> None:
    """The name stands in the line above; further down it belongs to nothing any more."""
    above = "Message from syslogd@n7 at Jun 17 13:06:42 ..."
    lockup = " kernel:[405108.698255] watchdog: BUG: soft lockup - CPU#2 stuck for 22s! [train:29632]"

    assert judged(above, lockup).nodes == ("n7",)
    assert judged(above, *("note" for _ in range(5)), lockup).nodes == ()
