"""What healthy jobs print that train nothing: MPI, simulations, batch scripts, installers, tests, configurations. (pure)

Formats: the sources and documentation of each program, as far as the messages are fixed; all names and numbers are made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.falsealarms.dice import Dice

__all__ = ["FORMATS"]

RULE = "-" * 74

OPEN_MPI = (
    (
        RULE,
        "WARNING: There was an error initializing an OpenFabrics device.",
        "",
        "  Local host:   @host",
        "  Local device: mlx5_0",
        RULE,
    ),
    (
        RULE,
        "By default, for Open MPI 4.0 and later, infiniband ports on a device",
        "are not used by default.  The intent is to use UCX for these devices.",
        "You can override this policy by setting the btl_openib_allow_ib MCA parameter",
        "to true.",
        "",
        "  Local host:              @host",
        "  Local adapter:           mlx5_@digit",
        "  Local port:              1",
        "",
        RULE,
    ),
    (
        RULE,
        "WARNING: No preset parameters were found for the device that Open MPI",
        "detected:",
        "",
        "  Local host:            @host",
        "  Device name:           mlx5_2",
        "  Device vendor ID:      0x02c9",
        "",
        "Default device parameters will be used, which may result in lower",
        "performance.  You can edit any of the files specified by the",
        "btl_openib_device_param_files MCA parameter to set values for your",
        "device.",
        RULE,
    ),
    (
        RULE,
        "[[@many,1],@rank]: A high-performance Open MPI point-to-point messaging module",
        "was unable to find any relevant network interfaces:",
        "",
        "Module: OpenFabrics (openib)",
        "  Host: @host",
        "",
        "Another transport will be used instead, although this may result in",
        "lower performance.",
        RULE,
    ),
    (
        RULE,
        "A process has executed an operation involving a call to the",
        '"fork()" system call to create a child process.  Open MPI is currently',
        "operating in a condition that could result in memory corruption or",
        "other system errors; your job may hang, crash, or produce silent",
        "data corruption.  The use of fork() (or system() or other calls that",
        "create child processes) is strongly discouraged.",
        "",
        "If you are *absolutely sure* that your application will successfully",
        "and correctly survive a call to fork(), you may disable this warning",
        "by setting the mpi_warn_on_fork MCA parameter to 0.",
        RULE,
    ),
    (
        "[@host:@pid] 15 more processes have sent help message help-mpi-btl-openib.txt / error in device init",
        '[@host:@pid] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages',
    ),
    (
        "[@host:@pid] mca_base_component_repository_open: unable to open mca_coll_hcoll: libhcoll.so.1: cannot open shared object file: No such file or directory (ignored)",
    ),
    (
        "[@unix] [@host:@pid:0]          parser.c:2033 UCX  WARN  unused environment variables: UCX_HOME; UCX_DIR (maybe: UCX_TLS?)",
        "[@unix] [@host:@pid:0]          parser.c:2033 UCX  WARN  (set UCX_WARN_UNUSED_ENV_VARS=n to suppress this warning)",
    ),
    (
        "[@unix] [@host:@pid:0]       ucp_context.c:1437 UCX  WARN  UCP version is incompatible, required: 1.8, actual: 1.7 (release 0 /lib64/libucp.so.0)",
    ),
    (
        "[@unix] [@host:@pid:0]           ib_md.c:1140 UCX  WARN  IB: ibv_fork_init() was disabled or failed, yet a fork() has been issued.",
    ),
    (
        "[@unix] [@host:@pid:0]          mpool.c:54   UCX  WARN  object 0x@hex was not returned to mpool ucp_requests",
    ),
    ("[@unix] [@host:@pid:0]       sys.c:1032 UCX  WARN  could not find address of current library: (null)",),
    (
        "[@unix] [@host:@pid:0]     ucp_worker.c:1855 UCX  INFO    ep_cfg[2]: tag(self/memory0 knem/memory rc_mlx5/mlx5_0:1)",
    ),
    ("libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.",),
    ("libfabric:@pid:@unix::core:core:ofi_register_provider():474<info> registering provider: tcp (118.0)",),
    (
        "libfabric:@pid:@unix::core:core:fi_getinfo_():1352<warn> fi_getinfo: provider usnic returned -61 (No data available)",
    ),
    (
        "[0] MPI startup(): Warning: I_MPI_PMI_LIBRARY will be ignored since the hydra process manager was found",
    ),
    ("[0] MPI startup(): Unable to read tuning file for ch4 level, using the default",),
    (
        "MPI startup(): PMI server not found. Please set I_MPI_PMI_LIBRARY variable if it is not a singleton case.",
    ),
    (
        "MPIR_CVAR_CH4_OFI_ENABLE_HMEM=0 OMPI_MCA_btl=^openib PMIX_MCA_gds=hash  mpirun --mca btl_base_warn_component_unused 0",
    ),
    (
        "WARNING: Linux kernel CMA support was requested via the btl_vader_single_copy_mechanism MCA variable, but CMA support is not available due to restrictive ptrace settings.",
    ),
    ("PSM3 can't open nic unit: 0 (err=23), trying the next",),
    (
        "srun: warning: can't honor --ntasks-per-node set to 8 which doesn't match the requested tasks 12 with the number of requested nodes 2. Ignoring --ntasks-per-node.",
    ),
)


def _blocks(dice: Dice, blocks: Sequence[Sequence[str]], share: float = 0.3) -> Iterator[str]:
    for block in blocks:
        if dice.rare(share):
            yield from dice.every(block)


def open_mpi(dice: Dice) -> Iterator[str]:
    """A solver under MPI, with what MPI, UCX and libfabric warn of."""
    while dice.left_bytes > 0:
        yield from _blocks(dice, OPEN_MPI)
        for _ in range(100):
            dice.go()
            yield f"Time step {dice.step:8d}  residual {dice.part(0, 1):.6e}  max error {dice.part(0, 1):.3e}  CFL {dice.part(0.1, 0.9):.3f}  iterations {dice.whole(3, 90)}"
    yield "Simulation finished normally."


GROMACS = (
    "NOTE 1 [file md.mdp]:",
    "  With Verlet lists the optimal nstlist is >= 10, with GPUs >= 20. Note that with the Verlet scheme, nstlist has no effect on the accuracy of your simulation.",
    "WARNING: Using the slow plain C kernels. This should not happen during routine usage on supported platforms.",
    "There were 2 notes",
    "On host @host 4 GPUs selected for this run.",
    "Non-default thread affinity set, disabling internal thread affinity",
    "starting mdrun 'Protein in water'",
    "DD  step @step load imb.: force @real%",
    "step @step: timed with pme grid 96 96 96, coulomb cutoff 1.000: 512.4 M-cycles",
    "vol 0.92  imb F  3% pme/F 0.61 step @step, will finish Sat Feb  7 12:00:00 2026",
    "Step @step: Domain decomposition grid 4 x 2 x 1, separate PME ranks 0",
)
LAMMPS = (
    "WARNING: Using 'neigh_modify every 1 delay 0 check yes' setting during minimization (src/min.cpp:187)",
    "WARNING: Communication cutoff 0.0 is shorter than a bond length based estimate of 3.2. This may lead to errors. (src/comm.cpp:730)",
    "WARNING: Bond/angle/dihedral extent > half of periodic box length (src/domain.cpp:936)",
    "WARNING: Temperature for MSST is NULL, ignored (src/fix_msst.cpp:@few)",
    "Neighbor list builds = @many",
    "Dangerous builds = 0",
    "Total # of neighbors = @many",
    "Performance: 12.412 ns/day, 1.934 hours/ns, 143.661 timesteps/s, 4.597 Matom-step/s",
    "Other dangerous operations: 0, lost atoms: 0",
)
VASP = (
    " running   32 mpi-ranks, with    1 threads/rank, on    2 nodes",
    " distrk:  each k-point on   32 cores,    1 groups",
    " -----------------------------------------------------------------------------",
    "|           W    W    AA    RRRRR   N    N  II  N    N   GGGG   !!!           |",
    "|     You have a (more or less) 'large supercell' and for larger cells it     |",
    "|     might be more efficient to use real-space projection operators.         |",
    "|     ERROR-free run expected only if ENCUT is larger than ENMAX              |",
    " WARNING: Sub-Space-Matrix is not hermitian in DAV            1  -7.8E-004",
    " WARNING: aliasing errors must be expected set NGX to  140 to avoid them",
    " reached required accuracy - stopping structural energy minimisation",
    " General timing and accounting informations for this job:",
    "                  Total CPU time used (sec):     @many.@few",
)
SOLVERS = (
    "Note: The following floating-point exceptions are signalling: IEEE_UNDERFLOW_FLAG IEEE_DENORMAL",
    "smoothSolver:  Solving for Ux, Initial residual = 1.2e-05, Final residual = 8.8e-07, No Iterations 2",
    "time step continuity errors : sum local = 1.1e-09, global = -2.2e-11, cumulative = 3.1e-08",
    "--> FOAM Warning : ",
    "    From void Foam::timeSelector::addOptions()",
    "    Found [v2312] but expected zone names, ignoring",
    "ExecutionTime = @many.1 s  ClockTime = @many s",
    "d01 2026-02-03_10:15:21  calling inc/HALO_EM_PHYS_A_inline.inc",
    "Timing for main: time 2026-02-03_10:15:21 on domain   1:    0.41231 elapsed seconds",
    "d01 2026-02-03_10:15:21  0 points exceeded cfl=2 in domain d01 at time 2026-02-03_10:15:21",
    "d01 2026-02-03_10:15:21 Input data is acceptable to use: wrfbdy_d01",
    "     estimated scf accuracy    <       0.00000071 Ry",
    "     convergence has been achieved in  11 iterations",
    "     Message from routine setup: using ibrav=0 is NOT recommended",
    "     IEEE_INVALID_FLAG is signalling at the end, which is harmless here",
    "Warning message: In log(x) : NaNs produced",
    "Warning: 4 divergent transitions after warmup; examine the pairs() plot to diagnose sampling problems",
    "WARNING: replacing module Solver.",
    "[ Info: precompiling @few packages, 0 failed",
    "Picked up JAVA_TOOL_OPTIONS: -XX:+ExitOnOutOfMemoryError -XX:OnError=/bin/true",
    "WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java classes where applicable",
    "ERROR_TOLERANCE = 1e-8, MAX_FAILURES = 3, failed steps: 0, rejected steps: @few",
)


def simulations(dice: Dice) -> Iterator[str]:
    """Molecules, materials, flows and weather."""
    while dice.more():
        yield from dice.some(GROMACS + LAMMPS + VASP + SOLVERS, 0.4)
        for _ in range(40):
            yield f"DAV: {dice.whole(1, 40):3d}    -0.{dice.whole(10**11, 10**12)}E+03   {dice.part(-1, 1):.5E}   {dice.part(-1, 1):.5E}  1536   0.332E+00"
            yield f"{dice.step * 1000:10d} {dice.part(290, 310):10.4f} {dice.part(-9, 9):12.5f} {dice.part(0, 2):10.4f}"


BATCH = (
    "Submitted batch job @many",
    "Job started at @stamp on @host",
    "SLURM_JOB_ID=@many SLURM_JOB_NODELIST=@host SLURM_NNODES=2 SLURM_NTASKS=16",
    'Lmod is automatically replacing "gcc/12.2" with "intel/2023.1".',
    "The following have been reloaded with a version change:",
    "  1) openmpi/4.1.4 => openmpi/4.1.6     2) ucx/1.13 => ucx/1.15",
    "Inactive Modules:",
    "  1) hdf5     2) netcdf-fortran",
    "Due to MODULEPATH changes, the following have been reloaded:",
    "Loading cuda/12.4",
    "  ERROR: Module evaluation aborted for the cached copy, the module was loaded from its source",
    "srun: job @many queued and waiting for resources",
    "srun: job @many has been allocated resources",
    "srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)",
    "srun: Job step creation still disabled, retrying (Requested nodes are busy)",
    "srun: Step created for StepId=@many.@digit",
    "srun: jobid @many: nodes(2):`@host,@host', cpu counts: 64(x2)",
    "srun: launching StepId=@many.0 on host @host, 8 tasks: [0-7]",
    "srun: route/default: init: route default plugin loaded",
    "srun: launch/slurm: _task_start: Node @host, 8 tasks started",
    "srun: warning: can't run 1 processes on 2 nodes, setting nnodes to 1",
    "srun: launch/slurm: _task_finish: Received task exit notification for 8 tasks of StepId=@many.0 (status=0x0000).",
    "srun: launch/slurm: _task_finish: @host: tasks 0-7: Completed",
    "srun: Consumable Resources (CR) Node Selection plugin loaded with argument 17",
    "cpu-bind=MASK - @host, task  0  0 [@pid]: mask 0xff set",
    "gpu-bind: usable_gres=0x1; bit_alloc=0x1; local_inx=4; global_list=0; local_list=0",
    "slurmstepd: debug:  Sending launch resp rc=0",
    "slurmstepd: task_p_pre_launch: Using sched_affinity for tasks",
    "sbatch: warning: can't honor --ntasks-per-node, the job is placed all the same",
    "scontrol: job @many: Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 TimeLimit=1-00:00:00 KillOInInvalidDependent=No",
    "   JobState=RUNNING Reason=None Dependency=(null)",
    "   NodeList=@host OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null) PreemptTime=None SuspendTime=None",
    "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
    "gpu*         up 2-00:00:00      2  drain @host,@host",
    "gpu*         up 2-00:00:00      3   down @host",
    "gpu*         up 2-00:00:00     94   idle @host",
    "mkdir: cannot create directory '/scratch/run': File exists",
    "rm: cannot remove '/dev/shm/nccl-*': No such file or directory",
    "ls: cannot access '/scratch/run/latest': No such file or directory",
    "cat: /etc/nccl.conf: No such file or directory",
    "grep: /proc/driver/nvidia/version: No such file or directory",
    "+ set -euo pipefail",
    "+ trap 'echo \"job failed at line $LINENO\"' ERR",
    "+ [[ -z '' ]]",
    "+ pkill -u someone -f old_server || true",
    "ulimit -c 0; ulimit -l unlimited; ulimit -n 65536",
    "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)",
    "/usr/bin/xauth:  error in locking authority file /home/u/.Xauthority",
    "tput: No value for $TERM and no -T specified",
    "stty: 'standard input': Inappropriate ioctl for device",
    "touch: setting times of '/scratch/run/.keep': Operation not permitted",
    "ssh: warning: Permanently added '@host' (ED25519) to the list of known hosts.",
    "time limit of this partition is 2-00:00:00; the job ends itself before",
    "signal handlers installed: SIGUSR1 (checkpoint), SIGTERM (checkpoint and exit)",
    "pyxis: importing docker image: nvcr.io/nvidia/pytorch:25.01-py3",
    "pyxis: imported docker image: nvcr.io/nvidia/pytorch:25.01-py3",
    "[INFO] Querying registry for permission grant",
    "[INFO] Fetching image manifest list",
    "INFO:    underlay of /etc/localtime required more than 50 (91) bind mounts",
    "WARNING: While bind mounting '/scratch:/scratch': destination is already in the mount point list",
    "INFO:    Environment variable SINGULARITY_BIND is set, but APPTAINER_BIND is preferred",
    "WARNING: Skipping mount /var/apptainer/mnt/session/etc/resolv.conf [files]: /etc/resolv.conf doesn't exist in container",
    "WARNING: Could not find any nv files on this host!",
    "checking node @host ... GPU ok, fabric ok, no Xid errors in dmesg, 0 ECC errors, disk ok",
    "health check: oom=0 xid=0 nan=0 timeouts=0 link_down=0",
    "NHC: Health check passed on @host",
    "exit codes so far: 0 0 0 0",
    "slurmstepd: error: acct_gather_energy_p_get_data: unknown info type, energy is not counted",
    "slurmstepd: error: Failed to get the NVML energy of a GPU, it is not counted",
    "slurmstepd: error: _is_a_lwp: 1 read() attempts on /proc/@pid/status failed: No such process",
    "slurmstepd: error: hwloc_get_obj_below_by_type() failing, task/affinity plugin may be required to address bug fixed in HWLOC version 1.11.5",
    "slurmstepd: error: task_g_set_affinity: Invalid argument",
    "slurmstepd: error: x11 forwarding is not set up, going on without it",
    "slurmstepd: error: mpi/pmix_v4: pmixp_info_nspace_usock: usock is removed",
    "srun: error: ioctl(TIOCGWINSZ): Inappropriate ioctl for device",
    "srun: error: Not using a pseudo-terminal, disregarding --pty option",
    "srun: warning: Job step's --cpus-per-task value exceeds that of job (64 > 32). Job step may never run.",
    "sbatch: error: spank-auks: cred forwarding failed, none is needed",
    "Job ID: @many",
    "State: COMPLETED (exit code 0)",
    "CPU Efficiency: 81.12% of 12-00:00:00 core-walltime",
    "Memory Efficiency: 99.12% of 512.00 GB",
    "JobID|JobName|State|ExitCode is the format of sacct",
    "@many       train    gpu        acct         64  COMPLETED      0:0 ",
    "@many       old      gpu        acct         64     FAILED      1:0 ",
    "@many       older    gpu        acct         64  CANCELLED+     0:0 ",
    "@many       oldest   gpu        acct         64  NODE_FAIL      0:0 ",
    "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
    "            @many       gpu    train      u23 PD       0:00      4 (Priority)",
    "            @many       gpu    train      u23 PD       0:00      4 (ReqNodeNotAvail, UnavailableNodes:@host)",
    "            @many       gpu    train      u23 PD       0:00      4 (DependencyNeverSatisfied)",
    "retry budget: 3; failures so far: 0; last failure: none",
)


def batch_script(dice: Dice) -> Iterator[str]:
    """What Slurm, modules, containers and shells print around a job."""
    while dice.more():
        yield from dice.some(BATCH, 0.6)
        for _ in range(30):
            dice.go()
            yield f"{dice.whole(0, 63)}: {dice.moment()} iteration {dice.step} done in {dice.part(0, 9):.2f} s"
    if dice.tells_end:
        yield "job completed successfully"


INSTALL = (
    "Collecting torch==2.6.0 (from -r requirements.txt (line @digit))",
    "  Downloading torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl.metadata (28 kB)",
    "Requirement already satisfied: numpy in /opt/env/lib/python3.11/site-packages (1.26.4)",
    "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f@hex>: Failed to establish a new connection: [Errno 101] Network is unreachable')': /simple/torch/",
    "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviour is the source of the following dependency conflicts.",
    "torchvision 0.20.1 requires torch==2.5.1, but you have torch 2.6.0 which is incompatible.",
    "tensorboard 2.18.0 requires six>1.9, which is not installed.",
    "DEPRECATION: Legacy editable install of mylib==0.1 from file:///home/u/mylib (setup.py develop) is deprecated. pip 25.1 will enforce this behaviour change.",
    "WARNING: Running pip as the 'root' user can result in broken permissions and conflicting behaviour with the system package manager, possibly rendering your system unusable.",
    "WARNING: The script torchrun is installed in '/home/u/.local/bin' which is not on PATH.",
    "  Building wheel for flash-attn (setup.py): finished with status 'done'",
    "Installing build dependencies: finished with status 'done'",
    "Successfully installed torch-2.6.0 triton-3.2.0 errorhandler-2.0.1 retrying-1.3.4",
    "[notice] A new release of pip is available: 24.0 -> 25.0",
    "Solving environment: failed with initial frozen solve. Retrying with flexible solve.",
    "Solving environment: failed with repodata from current_repodata.json, will retry with next repodata source.",
    "Collecting package metadata (repodata.json): done",
    "CondaError: Run 'conda init' before 'conda activate'",
    "Preparing transaction: done",
    "Verifying transaction: done",
    "WARNING conda.core.path_actions:verify(1055): Unable to create environments file. Path not writable.",
    "Cloning into 'someproject'...",
    "warning: redirecting to https://git.example.org/someproject.git/",
    "remote: Compressing objects: 100% (312/312), done.",
    "From https://git.example.org/someproject",
    "   1a2b3c4..5d6e7f8  main       -> origin/main",
    "   1a2b3c4  Fix segmentation fault in the loader, handle a full disk (OSError)",
    " * 5d6e7f8 Do not hang when a rank fails (NCCL timeout), add tests for CUDA out of memory",
    " tests/test_node_failure.py | 12 ++++++------",
    "hint: Pulling without specifying how to reconcile divergent branches is discouraged.",
    "Note: switching to '5d6e7f8'.",
    "HEAD is now at 5d6e7f8 Raise ValueError where the config is wrong",
    "-- Looking for pthread_create - not found",
    "-- Performing Test HAVE_FLAG_search_paths_first - Failed",
    "-- Could NOT find NCCL (missing: NCCL_INCLUDE_DIR NCCL_LIBRARY)",
    "CMake Warning (dev) at CMakeLists.txt:@few (find_package):",
    "  Policy CMP0148 is not set: The FindPythonInterp modules are removed.",
    "[ 41%] Building CXX object src/CMakeFiles/core.dir/error_handler.cpp.o",
    "src/core.cpp:@few:9: warning: unused variable 'error' [-Wunused-variable]",
    "nvcc warning : Support for offline compilation for architectures prior to '<compute/sm/lto>_75' will be removed in a future release",
    "ptxas info    : 0 bytes gmem, 24 bytes cmem[4], 0 bytes spill stores",
    "checking for error_at_line... no",
    "checking whether the C compiler works... yes",
    "make[1]: Nothing to be done for 'all'.",
    "debconf: unable to initialize frontend: Dialog",
    "debconf: (Dialog frontend will not work on a dumb terminal, an emacs shell buffer, or without a controlling terminal.)",
    "invoke-rc.d: policy-rc.d denied execution of start.",
    "E: (harmless) the cache of apt was locked for a moment, waited 3 s",
    "dpkg-preconfigure: unable to re-open stdin: No such file or directory",
    "--2026-02-03 10:15:21--  https://files.example.org/data/part-@few.tar.zst",
    "Connecting to files.example.org (files.example.org)|@ip|:443... failed: Connection timed out.",
    "Retrying.",
    "HTTP request sent, awaiting response... 200 OK",
)


def installers(dice: Dice) -> Iterator[str]:
    """pip, conda, git, cmake and their like, which succeed in the end."""
    while dice.more():
        yield from dice.some(INSTALL, 0.6)
        for number in range(60):
            yield f"[{number + 1}/60] Building CUDA object CMakeFiles/kernels.dir/kernel_{dice.whole(0, 999)}.cu.o"


TESTS = (
    "tests/test_errors.py::test_value_error_is_raised_for_a_wrong_shape PASSED   [ @few%]",
    "tests/test_cuda.py::test_out_of_memory_is_reported[RuntimeError] PASSED     [ @few%]",
    "tests/test_node.py::test_node_failure_on_n7_is_retried PASSED               [ @few%]",
    "tests/test_io.py::test_no_space_left_on_device SKIPPED (needs root)         [ @few%]",
    "tests/test_nccl.py::TestTimeouts::test_watchdog_caught_collective_operation_timeout PASSED [ @few%]",
    "tests/test_signal.py::test_segmentation_fault XFAIL (ValueError: known)     [ @few%]",
    "======================= 412 passed, 3 skipped, 1 xfailed, 2 warnings in 81.12s ========================",
    "[ RUN      ] ErrorTest.ThrowsRuntimeError",
    "[       OK ] ErrorTest.ThrowsRuntimeError (0 ms)",
    "[  PASSED  ] 88 tests.",
    "test_raises_key_error (test_config.ConfigTest) ... ok",
    "ok 12 - handles 'No such file or directory'",
    "100% tests passed, 0 tests failed out of 41",
    "usage: train.py [-h] [--fail-fast] [--on-error {stop,ignore}] [--nan-policy POLICY] CONFIG",
    "  --fail-fast           end at the first error (default: False)",
    "  --on-error {stop,ignore}",
    "                        what to do when a sample raises an exception such as ValueError or OSError",
    "  --oom-retries N       how often to retry after CUDA out of memory (default: 3)",
    "  --nccl-timeout S      seconds until a collective operation timeout is raised (default: 600)",
    "  --kill-on-bad-exit    as in srun: terminate a step if any task exits with a non-zero exit code",
    "  --no-requeue          do not requeue after a node failure or preemption",
    '  "on_failure": "restart", "max_failures": 3, "fail_timeout_s": 600, "ignore_errors": true,',
    "  error_policy: {oom: shrink, nan: skip, timeout: abort, node_failure: requeue}",
    "  raise_on_nan: true",
    "  # out of memory: lower batch_size; NCCL error: set NCCL_DEBUG=INFO",
    "  alert_titles: [loss spike, 'CUDA error', 'node failure', hang]",
    "  watchdog: {enabled: true, kill_after_s: 1800, message: training seems stuck}",
    "  notify_on: [FAIL, TIME_LIMIT, REQUEUE, INVALID_DEPEND]",
    "NCCL_ASYNC_ERROR_HANDLING=1",
    "TORCH_SHOW_CPP_STACKTRACES=1",
    "CUDA_LAUNCH_BLOCKING=0",
    "PYTHONFAULTHANDLER=1",
    "OMPI_MCA_orte_abort_on_non_zero_status=1",
    "ERROR_LOG=/scratch/run/error.log",
    "HYDRA_FULL_ERROR=1",
    "export MPICH_ABORT_ON_ERROR=1",
    "FI_LOG_LEVEL=warn",
    "MODULE: errors.py, exceptions.py (TimeoutError, RuntimeError, ValueError)",
    "registered handlers: on_exception, on_sigterm, on_oom, on_nan",
    "class NodeFailure(Exception): a node was lost",
    "    except (RuntimeError, torch.cuda.OutOfMemoryError):",
    "    raise ValueError(f'unknown policy {name}')",
    "number of errors: 0",
    "0 errors, 0 warnings",
    "Errors: 0  Failures: 0  Timeouts: 0",
    "No errors found. No exceptions were raised.",
    "error rate 0.0%, failure rate 0.0%, timeout rate 0.0%",
    "|  fatal error | 0 | killed | 0 | segfaults | 0 |",
)


def tests_and_settings(dice: Dice) -> Iterator[str]:
    """Test runners that pass, the help of programs, dumps of settings: names of errors, and none happened."""
    while dice.more():
        yield from dice.some(TESTS, 0.7)
        for _ in range(20):
            yield f"tests/test_{dice.whole(0, 99)}.py::test_case_{dice.whole(0, 9999)} PASSED [ {dice.whole(1, 99)}%]"


FORMATS = (open_mpi, simulations, batch_script, installers, tests_and_settings)
