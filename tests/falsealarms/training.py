"""What healthy training prints: banners, advice, warnings, errors that were caught, and steps. (pure)

Formats: the sources and documentation of each framework, as far as the messages are fixed; all names and numbers are made up.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.falsealarms.dice import Dice

__all__ = ["FORMATS"]

BAR = "#" * 10

TORCH_START = (
    "W@glog @pid torch/distributed/run.py:792] ",
    "W@glog @pid torch/distributed/run.py:792] *****************************************",
    "W@glog @pid torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded, please further tune the variable for optimal performance in your application as needed. ",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:@port (errno: 99 - Cannot assign requested address).",
    "[W@glog socket.cpp:752] [c10d] The client socket has failed to connect to [@host]:@port (errno: 111 - Connection refused).",
    "[W@glog socket.cpp:697] [c10d] The IPv6 network addresses of (@host, @port) cannot be retrieved (gai error: -2 - Name or service not known).",
    "[W@glog Utils.hpp:106] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING instead (function operator())",
    "[W@glog ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to ensure that any pending NCCL operations have finished in this process. (function operator())",
    "[rank@rank]:[W@glog ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank @rank]  using GPU @gpu to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect. Specify device_ids in barrier() to force use of a particular device, or call init_process_group() with a device_id.",
    "[rank@rank]:[W@glog reducer.cpp:1400] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass. This flag results in an extra traversal of the autograd graph every iteration,  which can adversely affect performance. (function operator())",
    "/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py:627: UserWarning: This DataLoader will create 32 worker processes in total. Our suggested max number of worker in current system is @few, which is smaller than what this DataLoader is going to create. Please be aware that excessive worker creation might get DataLoader running slow or even freeze, lower the worker number to avoid potential slowness/freeze if necessary.",
    "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:4807: UserWarning: No device id is provided via `init_process_group` or `barrier `. Using the current device set by the user. ",
    "/opt/env/lib/python3.11/site-packages/torch/optim/lr_scheduler.py:216: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 and later, you should call them in the opposite order: `optimizer.step()` before `lr_scheduler.step()`.  Failure to do this will result in PyTorch skipping the first value of the learning rate schedule.",
    "train.py:@few: FutureWarning: You are using `torch.load` with `weights_only=False` (the current default value), which uses the default pickle module implicitly. It is possible to construct malicious pickle data which will execute arbitrary code during unpickling.",
    "/opt/env/lib/python3.11/site-packages/torch/utils/checkpoint.py:295: FutureWarning: `torch.cpu.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cpu', args...)` instead.",
    "/opt/env/lib/python3.11/site-packages/torch/autograd/graph.py:825: UserWarning: c10d::allreduce_: an autograd kernel was not registered to the Autograd key(s) but we are trying to backprop through it. This may lead to silently incorrect behavior.",
    "[W@glog Module.cpp:182] symbolizing C++ stack trace for exception; if this hangs, rerun with TORCH_DISABLE_ADDR2LINE=1...",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600 TORCH_DISTRIBUTED_DEBUG=OFF",
    "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:1 to store for rank: @rank",
    "INFO:torch.distributed.distributed_c10d:Rank @rank: Completed store-based barrier for key:store_based_barrier_key:1 with 16 nodes.",
    "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: @rank, key: store_based_barrier_key:1 (world_size=16, worker_count=@digit, timeout=0:30:00)",
    "[rank@rank]:W@glog @pid torch/_dynamo/convert_frame.py:906] [3/8] torch._dynamo hit config.recompile_limit (8)",
    "W@glog @pid torch/_inductor/utils.py:1137] [0/0] Not enough SMs to use max_autotune_gemm mode",
    "AUTOTUNE mm(4096x4096, 4096x11008)",
    "  triton_mm_@few @real ms 98.1% ACC_TYPE='tl.float32', ALLOW_TF32=True, BLOCK_K=64, BLOCK_M=128, num_stages=3, num_warps=8",
    "E@glog @pid torch/_inductor/select_algorithm.py:1905] [0/0] Exception out of resource: shared memory, Required: 262144, Hardware limit: 232448. Reducing block sizes or `num_stages` may help. for benchmark choice TritonTemplateCaller(/tmp/torchinductor/c@few.py, BLOCK_K=128)",
    "Failed to find nvcc in PATH, apex kernels are not built; falling back to the native optimizer",
    "flash_attn is not installed, using the sdpa implementation instead",
    "Running with --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint=@host:@port --monitor-interval=5",
    "I@glog @pid torch/distributed/elastic/agent/server/api.py:879] [default] worker group successfully finished. Waiting 300 seconds for other agents to finish.",
)
TORCH_ON_THE_WAY = (
    "[rank@rank]: could not read sample @many: OSError: image file is truncated (@few bytes not processed), using the next one",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    "WARNING - gradient norm is @real at step @step, clipped to 1.0",
    "grad_norm nan at warm-up micro batch, skipped (amp)",
    "Connection to the metrics server failed, will retry in 30 s: HTTPConnectionPool(host='metrics', port=9091): Max retries exceeded with url: /push",
    "[rank@rank]:[W@glog CUDAAllocatorConfig.h:28] Warning: expandable_segments not supported on this platform (function operator())",
    "validation: 512 samples, 0 failed, 0 errors, loss @real",
    "heartbeat ok: 0 dead, 0 missing, 16 alive",
    "checkpoint saved to /scratch/run/step-@step.pt in @real s",
    "eval step done, accuracy @real, errors@1 @real",
    "worker @few: retry 1/5 after timeout while reading s3://bucket/shard-@many.tar",
    "GPU memory: allocated 61.2 GiB, reserved 71.8 GiB, cudaMalloc retries: @few",
    "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py:1827: FutureWarning: Using a non-full backward hook when the forward contains multiple autograd Nodes is deprecated",
    "slow step @step: @real s (data loading took longer than usual), no timeout",
)
CAUGHT = (
    (
        "Traceback (most recent call last):",
        '  File "/home/u/train/data.py", line @few, in __getitem__',
        "    image = decode(raw)",
        '  File "/home/u/train/codec.py", line @few, in decode',
        '    raise DecodeError("truncated stream")',
        "codec.DecodeError: truncated stream",
        "skipping sample @many",
    ),
    (
        "WARNING:root:uploading metrics failed, retrying",
        "Traceback (most recent call last):",
        '  File "/opt/env/lib/python3.11/site-packages/urllib3/connection.py", line 198, in _new_conn',
        "    sock = connection.create_connection(",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "/home/u/train/metrics.py", line @few, in push',
        "    session.post(url, json=body, timeout=3)",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='@host', port=@port): Max retries exceeded with url: /push (Caused by NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused'))",
    ),
    (
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f@hex>",
        "Traceback (most recent call last):",
        '  File "/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1618, in __del__',
        "    self._shutdown_workers()",
        '  File "/usr/lib/python3.11/multiprocessing/process.py", line 160, in is_alive',
        "    assert self._parent_pid == os.getpid(), 'can only test a child process'",
        "AssertionError: can only test a child process",
    ),
    (
        "out of memory at batch size 64, trying 32",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU @gpu has a total capacity of 79.15 GiB of which 1.21 GiB is free. Process @pid has 77.93 GiB memory in use.",
        "batch size 32 fits",
    ),
)
ENDING = (
    "[W@glog CudaIPCTypes.cpp:16] Producer process has been terminated before all shared CUDA tensors released. See Note [Sharing CUDA tensors]",
    "[rank@rank]:[W@glog TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=71, addr=[@host]:@port, remote=[@host]:@port): failed to recv, got 0 bytes",
    '[rank@rank]:[W@glog ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank @rank] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: failed to recv, got 0 bytes',
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be @digit leaked semaphore objects to clean up at shutdown",
    "Exception ignored in: <Finalize object, dead>",
    "Exception ignored in: <function Connection.__del__ at 0x7f@hex>",
    "Exception ignored in atexit callback: <bound method InductorCache.close of <torch.Cache>>",
    "sys:1: ResourceWarning: unclosed file <_io.TextIOWrapper name='train.log' mode='a' encoding='UTF-8'>",
    "[W@glog ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
    "[rank@rank]:[W@glog socket.cpp:531] [c10d] The server socket on [@host]:@port is closed by the peer at the end",
    "I@glog @pid torch/distributed/elastic/agent/server/api.py:917] Local worker group finished (WorkerState.SUCCEEDED). Waiting 300 seconds for other agents to finish",
    "I@glog @pid torch/distributed/elastic/agent/server/api.py:930] Done waiting for other agents. Elapsed: 0.00041 seconds",
    "W@glog @pid torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1267] The node '@host_@pid_0' has failed to shutdown the rendezvous '@many' due to an error of type RendezvousConnectionError.",
    "W@glog @pid torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1341] The node '@host_@pid_0' has failed to send a keep-alive heartbeat to the rendezvous '@many' due to an error of type RendezvousConnectionError.",
    "real\t@few@fewm@digit.012s",
    "\tMaximum resident set size (kbytes): @many",
    "\tExit status: 0",
    "\tMajor (requiring I/O) page faults: @few",
    "\tSignals delivered: 0",
    "tcmalloc: large alloc 2147483648 bytes == 0x@hex @  0x7f@hex",
    "Peak GPU memory: 71.2 GiB; OOM retries: 0; NaN losses: 0; restarts: 0",
    "all ranks exited with code 0",
    "exit code: 0",
    "killed 0 stale processes, removed 12 files of /dev/shm",
)


def _with_steps(dice: Dice, start: tuple[str, ...], on_the_way: tuple[str, ...]) -> Iterator[str]:
    """The start of a log, then nothing but steps, remarks and errors that were caught."""
    yield from dice.some(start)
    while dice.more():
        yield f"step {dice.step} | loss {dice.loss:.4f} | lr 3.00e-04 | grad_norm {dice.part(0.1, 2):.3f} | tok/s {dice.whole(1000, 99999)}"
        if dice.rare():
            yield dice.one(on_the_way)
        if dice.rare(0.001) and dice.left_bytes > 2000:  # steps follow, which shows that it was caught
            yield from dice.every(CAUGHT[dice.whole(0, len(CAUGHT) - 1)])


def torchrun(dice: Dice) -> Iterator[str]:
    """PyTorch started by torchrun, with all its advice."""
    yield from _with_steps(dice, TORCH_START, TORCH_ON_THE_WAY)
    yield from dice.some(ENDING)
    if dice.tells_end:
        yield f"training done, {dice.step} steps"


NCCL_START = (
    "@host:@pid:@pid [@gpu] NCCL INFO Bootstrap : Using eth0:@ip<0>",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/Plugin: Using internal network plugin.",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. ",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v10 symbol.",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5). ncclCollNetPlugin symbols v4 and lower are not supported.",
    "@host:@pid:@pid [@gpu] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v4 symbol.",
    "@host:@pid:@pid [@gpu] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so. ",
    "@host:@pid:@pid [@gpu] NCCL INFO cudaDriverVersion 12080",
    "NCCL version 2.26.2+cuda12.8",
    "@host:@pid:@pid [@gpu] NCCL INFO NCCL_IB_DISABLE set by environment to 0.",
    "@host:@pid:@pid [@gpu] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "@host:@pid:@pid [@gpu] NCCL INFO NCCL_IB_RETRY_CNT set by environment to 7.",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/IB : No device found.",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/RoCE [RO]; OOB eth0:@ip<0>",
    "@host:@pid:@pid [@gpu] NCCL INFO Failed to open libibverbs.so[.1]",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/Socket : Using [0]eth0:@ip<0> [1]ib0:@ip<0>",
    "@host:@pid:@pid [@gpu] NCCL INFO Using non-device net plugin version 0",
    "@host:@pid:@pid [@gpu] NCCL INFO Using network IB",
    "@host:@pid:@pid [@gpu] NCCL INFO DMA-BUF is available on GPU device @gpu",
    "@host:@pid:@pid [@gpu] NCCL INFO ncclCommInitRank comm 0x@hex rank @rank nranks 16 cudaDev @gpu nvmlDev @gpu busId 1b000 commId 0x@hex - Init START",
    "@host:@pid:@pid [@gpu] NCCL INFO RAS client listening socket at ::1<28028>",
    "@host:@pid:@pid [@gpu] NCCL INFO NVLS multicast support is not available on dev @gpu",
    "@host:@pid:@pid [@gpu] NCCL INFO NVLS Creating Multicast group nranks 8 size 2097152 on rank @rank",
    "@host:@pid:@pid [@gpu] NCCL INFO MNNVL busId 0x1b000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0",
    "@host:@pid:@pid [@gpu] NCCL INFO NET/IB: NCCL Dev @gpu IbDev @gpu Port 1 qpn @many mtu 5 GID 3 (0/8A79@hex) fifoRkey=0x@hex fifoLkey=0x@hex",
    "@host:@pid:@pid [@gpu] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_open_device failed",
    "@host:@pid:@pid [@gpu] misc/socket.cc:484 NCCL WARN Call to bind failed: Address already in use",
    "@host:@pid:@pid [@gpu] NCCL INFO Call to connect returned Connection refused, retrying",
    "@host:@pid:@pid [@gpu] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (@digit/34) after sleep for 100 msec",
    '@host:@pid:@pid [@gpu] init.cc:123 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
    '@host:@pid:@pid [@gpu] init.cc:98 NCCL WARN NUMA auto balancing enabled which can lead to variability in the RCCL performance! Disable by "sudo sysctl kernel.numa_balancing=0"',
    "@host:@pid:@pid [@gpu] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
    "@host:@pid:@pid [@gpu] NCCL INFO Could not enable P2P between dev 1(=1b000) and dev 0(=1a000)",
    "@host:@pid:@pid [@gpu] NCCL INFO cuMemImport is not supported, cuMem host disabled",
    "@host:@pid:@pid [@gpu] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.",
    "@host:@pid:@pid [@gpu] NCCL INFO Comm config Blocking set to 1",
    "@host:@pid:@pid [@gpu] NCCL INFO threadThresholds 8/8/64 | 128/8/64 | 512 | 512",
    "@host:@pid:@pid [@gpu] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    "@host:@pid:@pid [@gpu] NCCL INFO CC Off, workFifoBytes 1048576",
    "@host:@pid:@pid [@gpu] NCCL INFO Connected all rings, use ring PXN 0 GDR 1",
    "@host:@pid:@pid [@gpu] NCCL INFO ncclCommInitRank comm 0x@hex rank @rank nranks 16 cudaDev @gpu nvmlDev @gpu busId 1b000 commId 0x@hex - Init COMPLETE",
    "@host:@pid:@pid [@gpu] NCCL INFO Init timings - ncclCommInitRank: rank @rank nranks 16 total 1.42 (kernels 0.22, alloc 0.43, bootstrap 0.10, allgathers 0.02, topo 0.55, graphs 0.03, connections 0.06, rest 0.01)",
    "@host:@pid:@pid [@gpu] NCCL INFO [Service thread] Connection closed by localRank @gpu",
    "@host:@pid:@pid [@gpu] NCCL INFO [Proxy Service] Device @gpu CPU core @few",
)


def nccl_info(dice: Dice) -> Iterator[str]:
    """NCCL_DEBUG=INFO: the set-up of many communicators, then steps."""
    while dice.left_bytes > 0:
        for _ in range(20):
            yield from dice.some(NCCL_START, 0.8)
            host, pid = dice.filled("@host"), dice.filled("@pid")
            for channel in range(16):
                a, b = dice.whole(0, dice.world - 1), dice.whole(0, dice.world - 1)
                yield f"{host}:{pid}:{pid} [{a % 8}] NCCL INFO Channel {channel:02d}/0 : {a}[{a % 8}] -> {b}[{b % 8}] via P2P/CUMEM/read"
                yield f"{host}:{pid}:{pid} [{a % 8}] NCCL INFO Channel {channel:02d}/0 : {a}[{a % 8}] -> {b}[{b % 8}] [send] via NET/IB/0/GDRDMA"
                yield f"{host}:{pid}:{pid} [{a % 8}] NCCL INFO Trees [{channel}] {b}/-1/-1->{a}->-1"
        for _ in range(100):
            dice.go()
            yield f"iter {dice.step}: loss {dice.loss:.4f}, time {dice.part(100, 200):.2f}ms, mfu 41.20%"
    if dice.tells_end:
        yield from dice.every(
            (
                "@host:@pid:@pid [@gpu] NCCL INFO comm 0x@hex rank @rank nranks 16 cudaDev @gpu busId 1b000 - Destroy COMPLETE",
                "@host:@pid:@pid [@gpu] NCCL INFO comm 0x@hex rank @rank nranks 16 cudaDev @gpu busId 1b000 - Abort COMPLETE",
                "@host:@pid:@pid [@gpu] NCCL INFO misc/socket.cc:47 -> 3",
                "@host:@pid:@pid [@gpu] NCCL INFO misc/socket.cc:806 -> 3",
                "@host:@pid:@pid [@gpu] NCCL INFO [Service thread] Connection closed by localRank 0",
            )
        )


DEEPSPEED_START = (
    "[@stamp,412] [WARNING] [runner.py:215:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.",
    "[@stamp,412] [INFO] [real_accelerator.py:222:get_accelerator] Setting ds_accelerator to cuda (auto detect)",
    "[@stamp,412] [INFO] [launch.py:256:main] process @pid spawned with command: ['/opt/env/bin/python', '-u', 'train.py', '--local_rank=0']",
    " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.",
    " [WARNING]  async_io: please install the libaio-dev package with apt",
    " [WARNING]  If libaio is already installed (perhaps from source), try setting the CFLAGS and LDFLAGS environment variables to where it can be found.",
    " [WARNING]  Please specify the CUTLASS repo directory as environment variable $CUTLASS_PATH",
    " [WARNING]  sparse_attn requires a torch version >= 1.5 and < 2.0 but detected 2.6",
    " [WARNING]  using untested triton version (3.2.0), only 1.0.0 is known to be compatible",
    "async_io ............... [NO] ....... [NO]",
    "cpu_adam ............... [NO] ....... [OKAY]",
    "Using /home/u/.cache/torch_extensions/py311_cu124 as PyTorch extensions root...",
    "Detected CUDA files, patching ldflags",
    "ninja: no work to do.",
    "Time to load cpu_adam op: 2.8 seconds",
    "[@stamp,412] [INFO] [config.py:1000:print]   checkpoint_parallel_write_pipeline  False",
    "[@stamp,412] [INFO] [config.py:1000:print]   checkpoint_tag_validation_enabled  True",
    "[@stamp,412] [INFO] [config.py:1000:print]   checkpoint_tag_validation_fail  False",
    "[@stamp,412] [INFO] [config.py:1000:print]   elasticity_enabled ........... False",
    "[@stamp,412] [INFO] [config.py:1000:print]   graph_harvesting ............. False",
    "[@stamp,412] [INFO] [config.py:1000:print]   dynamic_loss_scale_args ...... {'init_scale': 65536, 'scale_window': 1000, 'delayed_shift': 2, 'consecutive_hysteresis': False, 'min_scale': 1}",
    "[@stamp,412] [INFO] [config.py:1000:print]   load_universal_checkpoint .... False",
    "[@stamp,412] [INFO] [config.py:986:print_user_config]   json = {",
    '    "train_batch_size": 512, ',
    '    "fail_on_unused_config": false, ',
    '    "abort_on_nan": true, ',
    '    "error_on_overflow": false, ',
    '    "fp16": {"enabled": true, "loss_scale": 0, "min_loss_scale": 1, "hysteresis": 2}, ',
    '    "checkpoint": {"tag_validation": "FAIL", "load_universal": false}, ',
    '    "aio": {"ignore_unused_parameters": true}, ',
    '    "comms_logger": {"enabled": false, "debug": false}, ',
    "}",
    "[@stamp,412] [WARNING] [lr_schedules.py:683:get_lr] Attempting to get learning rate from scheduler before it has started",
    "[@stamp,412] [WARNING] [engine.py:2749:load_checkpoint] Unable to find latest file at /scratch/run/latest, if trying to load latest checkpoint please ensure this file exists or pass an explicit checkpoint tag when loading a checkpoint.",
    "[@stamp,412] [INFO] [comm.py:652:init_distributed] cdb=None",
    "[@stamp,412] [INFO] [utils.py:781:see_memory_usage] MA 12.4 GB         Max_MA 13.1 GB         CA 14.0 GB         Max_CA 14 GB ",
    "[@stamp,412] [INFO] [utils.py:788:see_memory_usage] CPU Virtual Memory:  used = 91.2 GB, percent = 9.1%",
)


def deepspeed(dice: Dice) -> Iterator[str]:
    """DeepSpeed with fp16: the dump of its configuration and steps that overflow."""
    yield from dice.some(DEEPSPEED_START, 0.9)
    scale, skipped = 1 << 32, 0
    while dice.more():
        stamp, step = dice.moment(), dice.step
        if scale > 1 << 16 or dice.rare(0.01):
            skipped += 1
            yield f"[{stamp},378] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}, reducing to {scale // 2}"
            scale = max(1024, scale // 2)
        yield f"[{stamp},412] [INFO] [logging.py:128:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[0.0003], mom=[(0.9, 0.999)]"
        yield f"[{stamp},412] [INFO] [timer.py:264:stop] epoch=0/micro_step={step * 4}/global_step={step}, RunningAvgSamplesPerSec={dice.part(50, 60):.6f}, CurrSamplesPerSec={dice.part(50, 60):.6f}, MemAllocated=6.01GB, MaxMemAllocated=19.52GB"
        if dice.rare(0.01):
            yield f"[{stamp},412] [WARNING] [stage3.py:2069:step] {dice.whole(1, 9)} pytorch allocator cache flushes since last step. this happens when there is high memory pressure and is detrimental to performance. if this is happening frequently consider adjusting settings to reduce memory consumption. If you are unable to make the cache flushes go away consider adding get_accelerator().empty_cache() calls in your training loop to ensure that all ranks flush their caches at the same time"
        if dice.rare(0.005):
            yield f"[{stamp},412] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step{step} is ready now!"
    if dice.tells_end:
        yield f"[{dice.moment()},412] [INFO] [launch.py:351:main] Process {dice.whole(1000, 9999)} exits successfully."


MEGATRON_START = (
    "using world size: 64, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 2",
    "WARNING: Setting args.overlap_p2p_comm to False since non-interleaved schedule does not support overlapping p2p communication",
    "WARNING: one_logger package is required to enable e2e metrics tracking. please go to the documentation for details",
    "------------------------ arguments ------------------------",
    "  check_for_nan_in_loss_and_grad .................. True",
    "  check_for_large_grads ........................... False",
    "  check_weight_hash_across_dp_replicas_interval ... None",
    "  error_injection_rate ............................ 0",
    "  error_injection_type ............................ transient_error",
    "  rerun_mode ...................................... validate_results",
    "  exit_on_missing_checkpoint ...................... False",
    "  exit_signal_handler ............................. False",
    "  fail_on_missing_data ............................ False",
    "  distributed_timeout_minutes ..................... 10",
    "  loss_scale ...................................... None",
    "  no_load_optim ................................... None",
    "  inprocess_restart ............................... False",
    "  nccl_communicator_config_path ................... None",
    "  deprecated_use_mcore_models ..................... False",
    "  log_num_zeros_in_grad ........................... True",
    "  manual_gc ....................................... False",
    "-------------------- end of arguments ---------------------",
    "INFO:megatron.core.rerun_state_machine:RerunStateMachine initialized in mode RerunMode.VALIDATE_RESULTS",
    "WARNING:megatron.core.rerun_state_machine:Implicit initialization of Rerun State Machine!",
    "> initializing torch distributed ...",
    "> setting random seeds to 1234 ...",
    "make: Entering directory '/opt/megatron/core/datasets'",
    "make: Nothing to be done for 'default'.",
    "make: Leaving directory '/opt/megatron/core/datasets'",
    ">>> done with dataset index builder. Compilation time: 0.041 seconds",
    "WARNING: constraints for invoking optimized fused softmax kernel are not met. We default back to unfused kernel invocations.",
    "WARNING: could not find the metadata file /scratch/run/latest_checkpointed_iteration.txt",
    "    will not load any checkpoints and will start from random",
    "(min, max) time across ranks (ms):",
    "    load-checkpoint ................................: (0.47, 0.68)",
    "INFO:megatron.core.distributed.distributed_data_parallel:Setting up DistributedDataParallel with config DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True, check_for_nan_in_grad=True, check_for_large_grads=False, bucket_size=40000000, fp8_param_gather=False)",
    "WARNING:megatron.core.datasets.gpt_dataset:Unable to save MockGPTDataset indexes because path_to_cache is None",
    "> WARNING: data index cache not found, building it on rank 0",
    "Number of parameters in transformer layers in billions:  6.44",
    "[before the start of training step] datetime: @stamp ",
)


def megatron(dice: Dice) -> Iterator[str]:
    """Megatron-LM: the dump of its arguments, and iterations with counters of what did not happen."""
    yield from dice.some(MEGATRON_START, 0.9)
    while dice.more():
        step = dice.step
        skipped = 1 if dice.rare(0.01) else 0
        yield f" [{dice.moment()}] iteration {step:8d}/ 9000000 | consumed samples: {step * 512:12d} | elapsed time per iteration (ms): {dice.part(900, 1200):.1f} | throughput per GPU (TFLOP/s/GPU): {dice.part(300, 420):.1f} | learning rate: 3.0000E-04 | global batch size:   512 | lm loss: {dice.loss:.6E} | loss scale: 1.0 | grad norm: {dice.part(0.1, 3):.3f} | num zeros: {dice.whole(0, 9999)}.0 | number of skipped iterations:   {skipped} | number of nan iterations:   0 |"
        if dice.rare(0.01):
            yield f"saving checkpoint at iteration {step:7d} to /scratch/run in torch_dist format"
            yield f"  successfully saved checkpoint from iteration {step:7d} to /scratch/run [ t 1/4, p 1/2 ]"
            yield f" validation loss at iteration {step} | lm loss value: {dice.loss:.6E} | lm loss PPL: {dice.part(2, 99):.6E} | "
        if dice.rare(0.002):
            yield f"[Rank {dice.whole(0, 63)}] (after {step} iterations) memory (MB) | allocated: 21040.43 | max allocated: 61433.2 | reserved: 71433.0 | max reserved: 72004.0"
    if dice.tells_end:
        yield f"[after training is done] datetime: {dice.moment()} "
        yield f"[exiting program at iteration {dice.step}] datetime: {dice.moment()} "


LIGHTNING_START = (
    "Seed set to 42",
    "GPU available: True (cuda), used: True",
    "TPU available: False, using: 0 TPU cores",
    "HPU available: False, using: 0 HPUs",
    "You are using a CUDA device ('NVIDIA H100 80GB HBM3') that has Tensor Cores. To properly utilize them, you should set `torch.set_float32_matmul_precision('medium' | 'high')` which will trade-off precision for performance.",
    "Initializing distributed: GLOBAL_RANK: @rank, MEMBER: 1/16",
    "distributed_backend=nccl",
    "All distributed processes registered. Starting with 16 processes",
    "LOCAL_RANK: @gpu - CUDA_VISIBLE_DEVICES: [0,1,2,3,4,5,6,7]",
    "/opt/env/lib/python3.11/site-packages/lightning/fabric/plugins/environments/slurm.py:204: The `srun` command is available on your system but is not used. HINT: If your intention is to run Lightning on SLURM, prepend your python command with `srun` like so: srun python train.py ...",
    "/opt/env/lib/python3.11/site-packages/lightning/pytorch/trainer/connectors/data_connector.py:425: The 'train_dataloader' does not have many workers which may be a bottleneck. Consider increasing the value of the `num_workers` argument` to `num_workers=15` in the `DataLoader` to improve performance.",
    "/opt/env/lib/python3.11/site-packages/lightning/pytorch/callbacks/model_checkpoint.py:654: Checkpoint directory /scratch/run exists and is not empty.",
    "SLURM auto-requeueing enabled. Setting signal handlers.",
    "  | Name  | Type      | Params | Mode ",
    "0 | loss_fn | CrossEntropyLoss | 0      | train",
    "1 | error_head | Linear     | 4.1 K  | train",
    "Sanity Checking DataLoader 0: 100%|##########| 2/2 [00:00<00:00,  4.03it/s]",
    "`Trainer.fit` will stop when `max_steps=9000000` is reached; detect_anomaly=False, gradient_clip_val=None",
)


def lightning(dice: Dice) -> Iterator[str]:
    """PyTorch Lightning: bars on one line, cut by carriage returns."""
    yield from dice.some(LIGHTNING_START, 0.9)
    epoch, length = 0, 2000
    while dice.more():
        place = dice.step % length
        bar = f"Epoch {epoch}:  {100 * place // length:2d}%|{BAR}| {place}/{length} [00:10<00:12, {dice.part(5, 9):.2f}it/s, v_num=0, train_loss={dice.loss:.3f}]"
        yield bar + ("\r" if place else "\n")
        if place == 0:
            epoch += 1
            yield f"\rValidation DataLoader 0: 100%|{BAR}| 20/20 [00:01<00:00, 18.2it/s]"
            yield f"Metric val_loss improved by 0.010 >= min_delta = 0.0. New best score: {dice.loss:.3f}"
    if dice.tells_end:
        yield "\n`Trainer.fit` stopped: `max_steps=9000000` reached."


HF_START = (
    "Some weights of LlamaForSequenceClassification were not initialized from the model checkpoint at /models/base and are newly initialized: ['score.weight']",
    "You should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.",
    "Some weights of the model checkpoint at /models/base were not used when initializing LlamaModel: ['lm_head.weight']",
    "`torch_dtype` is deprecated! Use `dtype` instead!",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:07<00:00,  1.9s/it]",
    "Special tokens have been added in the vocabulary, make sure the associated word embeddings are fine-tuned or trained.",
    "Token indices sequence length is longer than the specified maximum sequence length for this model (1421 > 1024). Running this sequence through the model will result in indexing errors",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    "The attention mask and the pad token id were not set. As a consequence, you may observe unexpected behavior. Please pass your input's `attention_mask` to obtain reliable results.",
    "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.",
    "/opt/env/lib/python3.11/site-packages/transformers/training_args.py:1594: FutureWarning: `evaluation_strategy` is deprecated and will be removed in version 4.46 of Transformers. Use `eval_strategy` instead",
    "Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang. It is recommended to upgrade the kernel to the minimum version or higher.",
    "Could not estimate the number of tokens of the input, floating-point operations will not be computed",
    "No label_names provided for model class `PeftModelForCausalLM`. Since `PeftModel` hides base models input arguments, if label_names is not given, label_names can't be set automatically within `Trainer`.",
    "Using auto half precision backend",
    "Could not load library libnvrtc.so for bitsandbytes, falling back",
    "/opt/env/lib/python3.11/site-packages/bitsandbytes/cextension.py:34: UserWarning: The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers, 8-bit multiplication, and GPU quantization are unavailable.",
    "Map (num_proc=16): 100%|##########| 51760/51760 [00:04<00:00, 12012.19 examples/s]",
    "'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /base/resolve/main/config.json (Caused by ConnectTimeoutError)\"), '(Request ID: 0a@hex)')' thrown while requesting HEAD https://huggingface.co/base/resolve/main/config.json",
    "Retrying in 1s [Retry 1/5].",
    "[INFO|trainer.py:2414] @stamp,889 >> ***** Running training *****",
    "[INFO|trainer.py:2416] @stamp,889 >>   Num Epochs = 3",
    "[WARNING|logging.py:329] @stamp,122 >> Error displaying widget: model not found",
    '  "error_if_nonfinite": false, "ignore_data_skip": false, "push_to_hub": false, "save_on_each_node": false,',
)


def hf_trainer(dice: Dice) -> Iterator[str]:
    """transformers' Trainer: one bar, and what it logs as dictionaries."""
    yield from dice.some(HF_START, 0.8)
    total = 1_000_000
    while dice.more():
        step = min(dice.step, total - 1)
        yield f"{100 * step // total:3d}%|{BAR}| {step}/{total} [1:02:11<9:12:33,  {dice.part(1, 2):.2f}it/s]\r"
        if step % 10 == 0:
            yield f"{{'loss': {dice.loss:.4f}, 'grad_norm': {dice.part(0.1, 3):.6f}, 'learning_rate': 4.9e-05, 'epoch': {step / 10000:.2f}}}"
        if step % 500 == 0:
            yield f"{{'eval_loss': {dice.loss:.4f}, 'eval_error_rate': {dice.part(0, 1):.3f}, 'eval_runtime': 11.2, 'epoch': {step / 10000:.2f}}}"
            yield f"Saving model checkpoint to /scratch/run/checkpoint-{step}"
    if dice.tells_end:
        yield "\nTraining completed. Do not forget to share your model on huggingface.co/models =)\n"
        yield "{'train_runtime': 81221.4, 'train_samples_per_second': 3.1, 'train_steps_per_second': 0.4, 'train_loss': 2.1, 'epoch': 3.0}"


ACCELERATE_START = (
    "The following values were not passed to `accelerate launch` and had defaults used instead:",
    "\t`--num_processes` was set to a value of `8`",
    "\t`--dynamo_backend` was set to a value of `'no'`",
    "To avoid this warning pass in values for each of the problematic parameters or run `accelerate config`.",
    "@stamp - WARNING - accelerate.utils.other - Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang.",
    "@stamp - INFO - accelerate.state - Distributed environment: FSDP  Backend: nccl",
    "FSDP upcast of low precision parameters may affect the precision of model checkpoints.",
    "/opt/env/lib/python3.11/site-packages/accelerate/accelerator.py:1557: UserWarning: Upcasted low precision parameters in Linear because mixed precision turned on in FSDP. Affects: weight.",
    "@stamp - INFO - __main__ - No checkpoint found, starting from scratch",
)


def accelerate(dice: Dice) -> Iterator[str]:
    """A loop under accelerate, with a logger's own words of levels."""
    yield from dice.some(ACCELERATE_START)
    while dice.more():
        yield f"{dice.moment()} - INFO - __main__ - step {dice.step}/9000000 train_loss={dice.loss:.4f} failed_batches=0 nan_batches=0"
        if dice.rare():
            yield dice.one(TORCH_ON_THE_WAY)
    yield from dice.some(ENDING)


JAX_START = (
    "I@glog @pid xla_bridge.py:895] Unable to initialize backend 'rocm': module 'jaxlib.xla_extension' has no attribute 'GpuAllocatorConfig'",
    "I@glog @pid xla_bridge.py:895] Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory",
    "INFO:jax._src.xla_bridge:Unable to initialize backend 'tpu': UNIMPLEMENTED: LoadPjrtPlugin is not implemented on windows yet.",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:@unix @pid service.cc:146] XLA service 0x@hex initialized for platform CUDA (this does not guarantee that XLA will be used). Devices:",
    "W0000 00:00:@unix @pid gpu_backend_lib.cc:579] Can't find libdevice directory ${CUDA_DIR}/nvvm/libdevice. This may result in compilation or runtime failures, if the program we try to run uses routines from libdevice.",
    "W@glog @pid hlo_rematerialization.cc:3005] Can't reduce memory use below 58.36GiB (62659264512 bytes) by rematerialization; only reduced to 71.2GiB (76450430976 bytes), down from 71.20GiB (76450430976 bytes) originally",
    "W@glog @pid bfc_allocator.cc:310] Allocator (GPU_0_bfc) ran out of memory trying to allocate 18.27GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.",
    "W@glog @pid gemm_fusion_autotuner.cc:946] Slow kernel for gemm_fusion_dot.@few took: 812 ms.",
    "E@glog @pid slow_operation_alarm.cc:73] Constant folding an instruction is taking > 1s:",
    "********************************",
    "[Compiling module jit_train_step] Very slow compile? If you want to file a bug, run with envvar XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results.",
    "E@glog @pid slow_operation_alarm.cc:140] The operation took 3m12.4s",
    "E0000 00:00:@unix @pid cuda_timer.cc:82] Delay kernel timed out: measured time has sub-optimal accuracy. There may be a missing warmup execution, please investigate in Nsight Systems.",
    "W@glog @pid cuda_executor.cc:1136] The NVIDIA driver's CUDA version is 12.2 which is older than the PTX compiler version (12.5.40). Because the driver is older than the PTX compiler version, XLA is disabling parallel compilation, which may slow down compilation.",
    "I@glog @pid distributed.py:106] Starting JAX distributed service on [::]:@port",
    "I@glog @pid distributed.py:119] Connecting to JAX distributed service on @ip:@port",
    "W@glog @pid async_checkpointer.py:@few] [process=@digit] No errors found in background save thread!",
    "I@glog @pid checkpoint_manager.py:@few] [process=@digit] Found 0 checkpoint steps in /scratch/run, best_fn=None",
    "I@glog @pid standard_logger.py:34] {'step': 0, 'event_type': 'restore', 'checkpoint_restore_error': None, 'is_emergency_checkpoint': False}",
)


def jax(dice: Dice) -> Iterator[str]:
    """JAX: what absl, XLA and Orbax say, and MaxText's steps."""
    yield from dice.some(JAX_START, 0.8)
    while dice.more():
        yield f"completed step: {dice.step}, seconds: {dice.part(1, 2):.3f}, TFLOP/s/device: {dice.part(300, 400):.3f}, Tokens/s/device: {dice.part(3000, 9000):.3f}, total_weights: 524288, loss: {dice.loss:.3f}"
        if dice.rare(0.01):
            yield dice.one(JAX_START[8:])
        if dice.rare(0.01):
            yield dice.filled(
                "I@glog @pid async_checkpointer.py:@few] Finished async_save (blocking + background). Time taken: @real s. directory=/scratch/run/@step"
            )


TF_START = (
    "@stamp.511143: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:467] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered",
    "E0000 00:00:@unix @pid cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
    "E0000 00:00:@unix @pid cuda_blas.cc:1407] Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered",
    "W0000 00:00:@unix @pid computation_placer.cc:177] computation placer already registered. Please check linkage and avoid linking the same target more than once",
    "@stamp.652923: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized to use available CPU instructions in performance-critical operations.",
    "To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.",
    "@stamp.469123: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
    "@stamp.469123: W tensorflow/compiler/xla/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory",
    "@stamp.469123: I tensorflow/stream_executor/cuda/cudart_stub.cc:29] Ignore above cudart dlerror if you do not have a GPU set up on your machine.",
    "@stamp.469123: I tensorflow/compiler/xla/stream_executor/cuda/cuda_gpu_executor.cc:998] successful NUMA node read from SysFS had negative value (-1), but there must be at least one NUMA node, so returning NUMA node zero. See more at https://github.com/torvalds/linux/blob/v6.0/Documentation/ABI/testing/sysfs-bus-pci#L344-L355",
    "@stamp.469123: E tensorflow/compiler/xla/stream_executor/cuda/cuda_driver.cc:268] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    "@stamp.469123: I external/local_xla/xla/stream_executor/cuda/cuda_diagnostics.cc:168] retrieving CUDA diagnostic information for host: @host",
    "@stamp.469123: I tensorflow/compiler/xla/stream_executor/cuda/cuda_gpu_executor.cc:1023] could not open file to read NUMA node: /sys/bus/pci/devices/@pci/numa_node",
    "Your kernel may have been built without NUMA support.",
    "@stamp.469123: W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.13GiB with freed_by_count=0. The caller indicates that this is not a failure, but may mean that there could be performance gains if more memory were available.",
    "@stamp.469123: W tensorflow/core/grappler/optimizers/data/auto_shard.cc:784] AUTO sharding policy will apply DATA sharding policy as it failed to apply FILE sharding policy because of the following reason: Did not find a shardable source, walked to a node which is not a dataset",
    "@stamp.469123: E tensorflow/core/grappler/optimizers/meta_optimizer.cc:961] layout failed: INVALID_ARGUMENT: Size of values 0 does not match size of permutation 4 @ fanin shape inmodel/dropout/SelectV2-2-TransposeNHWCToNCHW-LayoutOptimizer",
    "@stamp.469123: I tensorflow/core/common_runtime/executor.cc:1197] [/device:CPU:0] (DEBUG INFO) Executor start aborting (this does not indicate an error and you can ignore this message): INVALID_ARGUMENT: You must feed a value for placeholder tensor 'Placeholder/_0' with dtype int32",
    "@stamp.469123: W tensorflow/core/framework/local_rendezvous.cc:404] Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence",
    "@stamp.469123: W tensorflow/core/kernels/data/cache_dataset_ops.cc:914] The calling iterator did not fully read the dataset being cached. In order to avoid unexpected truncation of the dataset, the partially cached contents of the dataset  will be discarded.",
    "WARNING:tensorflow:Collective ops is not configured at program startup. Some performance features may not be enabled.",
    "WARNING:tensorflow:Detecting that an object or model or tf.train.Checkpoint is being deleted with unrestored values. See the following logs for the specific values in question.",
    "WARNING:absl:You are saving your model as an HDF5 file via `model.save()`. This file format is considered legacy.",
    "INFO:tensorflow:Error reported to Coordinator: <class 'tensorflow.python.framework.errors_impl.CancelledError'>, Session has been closed.",
)


def tensorflow(dice: Dice) -> Iterator[str]:
    """TensorFlow and Keras: errors that its authors call warnings, and bars."""
    yield from dice.some(TF_START, 0.8)
    length, epoch = 500, 1
    while dice.more():
        place = dice.step % length
        yield (
            f"{place or length}/{length} [==============================] - ETA: 12s - loss: {dice.loss:.4f} - error: {dice.part(0, 1):.4f}"
            + ("\r" if place else "\n")
        )
        if not place:
            epoch += 1
            yield f"Epoch {epoch}/9000"
        if dice.rare(0.005):
            yield "\n" + dice.one(TF_START[13:])


ASCEND_START = (
    "Warning : ASCEND_HOME_PATH environment variable is not set.",
    "/opt/env/lib/python3.10/site-packages/torch_npu/contrib/transfer_to_npu.py:295: ImportWarning: ",
    "    The torch.Tensor.cuda and torch.nn.Module.cuda are replaced with torch.Tensor.npu and torch.nn.Module.npu now..",
    "    The torch.cuda.DoubleTensor is replaced with torch.npu.FloatTensor cause the double type is not supported now..",
    "    The backend in torch.distributed.init_process_group set to hccl now..",
    "[W compiler_depend.ts:133] Warning: Warning: Device do not support double dtype now, dtype cast repalce with float. (function operator())",
    "[W@glog compiler_depend.ts:659] Warning: HCCL_EXEC_TIMEOUT is set to 1836 (function operator())",
    "[W AddKernelNpu.cpp:82] Warning: The oprator of add is executed, Currently High Accuracy but Low Performance OP with 64-bit has been used (function operator())",
    "[rank@rank]:[W@glog compiler_depend.ts:2156] Warning: [PG ID 0 Rank @rank] ProcessGroupHCCL is destroyed without calling destroy_process_group (function operator())",
    "[WARNING] DEVICE(@pid,ffff82bceac0,python):2026-02-03-11:25:17.084.390 [mindspore/ccsrc/plugin/device/ascend/hal/device/kernel_select_ascend.cc:330] FilterRaisedOrReducePrecisionMatchedKernelInfo] Operator:[Default/GatherD-op@few] don't support int64, reduce precision from int64 to int32.",
    "[WARNING] DEVICE(@pid,ffff82bceac0,python):2026-02-03-11:25:17.084.390 [mindspore/ccsrc/plugin/device/cpu/hal/hardware/ms_collective_comm_lib.cc:251] QueryUniqueID] Retry to lookup the unique id for group hccl_world_group from the meta server node...Retry time: 3/66, sleep 2",
    "[WARNING] MD(@pid,fffdd97fa1e0,python):2026-02-03-16:04:30.120.203 [mindspore/ccsrc/minddata/dataset/engine/datasetops/device_queue_op.cc:725] DetectPerBatchTime] Bad performance attention, it takes more than 25 seconds to fetch a batch of data from dataset pipeline, which might result `GetNext` timeout problem. You may test dataset processing performance(with creating dataset iterator) and optimize it.",
    "[WARNING] DISTRIBUTED(@pid,ffff9a3d4020,python):2026-02-03-16:04:30.120.203 [mindspore/ccsrc/distributed/cluster/cluster_context.cc:206] BuildCluster] Topology build timed out., retry(1/1200).",
    "[WARNING] ME(@pid:281473,MainProcess):2026-02-03-16:04:30.120.203 [mindspore/context.py:1335] For 'context.set_context', the parameter 'pynative_synchronize' will be deprecated and removed in a future version.",
    "[WARNING] PRE_ACT(@pid,fff400e05120,python):2026-02-03-19:31:04.954.248 [mindspore/ccsrc/backend/common/mem_reuse/abstract_dynamic_mem_pool.cc:1036] FreeIdleMemsByEagerFree] Eager free count : 3, free memory : 20992928256, real free : 20967325696, not free : 25602560.",
    "[INFO] HCCL(@pid,python):2026-02-03-16:04:30.120.203 [hccl_communicator.cc:212] [@many]Entry-HcclCommInitRootInfo: ranks[16], rank[@rank], rootinfo: host ip[@ip] port[@port] nicDeploy[1] identifier[@ip%eth0_60000_0_1770000000]",
    "[INFO] HCCL(@pid,python):2026-02-03-16:04:30.120.203 [externalinput.cc:300] environmental variable HCCL_CONNECT_TIMEOUT is set to [1200]s, HCCL_EXEC_TIMEOUT[1836]s, HCCL_OP_RETRY_ENABLE[0]",
    "[EVENT] HCCL(@pid,python):2026-02-03-16:04:30.120.203 [op_base.cc:1820] [HCCL_TRACE]HcclCommInitRootInfo success,take time [@many]us",
    "[EVENT] PROFILING(@pid,python):2026-02-03-16:04:30.120.203 [msprof_callback_impl.cpp:303] >>> (tid:@pid) Started to register profiling ctrl callback.",
    "[INFO] RUNTIME(@pid,python):2026-02-03-16:04:30.120.203 [runtime.cc:4719] @pid InitOpTimeout: op execute timeout enable:0, timeout:0us",
    "ASCEND_GLOBAL_LOG_LEVEL=3 ASCEND_SLOG_PRINT_TO_STDOUT=0 ASCEND_PROCESS_LOG_PATH=/tmp/plog HCCL_WHITELIST_DISABLE=1",
    "EZ9999 and E19999 are listed in the troubleshooting guide; no inner error was reported by the check",
    "npu check ok: device 0..7 health OK, hbm ecc 0, link up",
)


def ascend(dice: Dice) -> Iterator[str]:
    """MindSpore and torch_npu on Ascend."""
    yield from dice.some(ASCEND_START, 0.8)
    while dice.more():
        if dice.rare(0.5):
            yield f"{dice.moment()},511 - mindformers - INFO - {{ Epoch:[  1/  2], step:[{dice.step % 5000000:5d}/5000000], loss:[{dice.loss:.3f}/{dice.loss:.3f}], time:1021.6ms, lr:2e-05, overflow cond: False, loss_scale: 65536.0"
        else:
            yield f"{dice.moment()},511 - mindformers - INFO -    {dice.part(0, 99):.1f}% |##                | 4.91812 samples/s/p  10:15:21 }}"
        if dice.rare(0.01):
            yield dice.one(ASCEND_START[9:])


RAY_START = (
    "@stamp,632\tINFO worker.py:1771 -- Started a local Ray instance. View the dashboard at 127.0.0.1:8265 ",
    "@stamp,632\tWARNING services.py:2072 -- WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes available. This will harm performance!",
    "(raylet) [@stamp,489 E @pid @pid] (raylet) file_system_monitor.cc:116: /tmp/ray/session_2026 is over 95% full, available space: 26.4552 GB; capacity: 763.865 GB. Object creation will fail if spilling is required.",
    '(raylet) It looks like you\'re creating a detached actor in an anonymous namespace. In order to access this actor in the future, you will need to explicitly connect to this namespace with ray.init(namespace="3560", ...)',
    "(raylet) Spilled 2048 MiB, 11 objects, write throughput 812 MiB/s. Set RAY_verbose_spill_logs=0 to disable this message.",
    "(raylet) [@stamp,857 W @pid @pid] (raylet) Failed to establish connection to the metrics exporter agent. Metrics will not be exported. Exporter agent status: RpcError: Running out of retries to initialize the metrics agent. rpc_code: 14",
    "(autoscaler +3s) Tip: use `ray status` to view detailed cluster status. To disable these messages, set RAY_SCHEDULER_EVENTS=0.",
    "(TrainController pid=@pid) Attempting to start training worker group of size 16 with the following resources: [{'CPU': 1, 'GPU': 1}] * 16",
    "(RayTrainWorker pid=@pid, ip=@ip) Setting up process group for: env:// [rank=@rank, world_size=16]",
    "(WorkerDict pid=@pid) /opt/env/lib/python3.11/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py:690: FutureWarning: FSDP.state_dict_type() and FSDP.set_state_dict_type() are being deprecated. [repeated 7x across cluster]",
    "(WorkerDict pid=@pid) kwargs: {'n': 1, 'logprobs': 0, 'max_tokens': 512, 'detokenize': False}",
    "(pid=@pid) Using blocking ray.get inside async actor. This blocks the event loop. Please use `await` on object ref with asyncio.gather if you want to yield execution to the event loop instead.",
    "@stamp,132\tWARNING util.py:201 -- The `callbacks.on_step_begin` operation took 0.612 s, which may be a performance bottleneck.",
    "FailureConfig(max_failures=3, fail_fast=False) CheckpointConfig(num_to_keep=2)",
    "│ Training errored: 0   running: 16   pending: 0   failed: 0 │",
)


def ray(dice: Dice) -> Iterator[str]:
    """Ray and what is built on it, with its prefix of pid and address."""
    yield from dice.some(RAY_START)
    pid, ip = dice.filled("@pid"), dice.filled("@ip")
    while dice.more():
        yield f"(RayTrainWorker pid={pid}, ip={ip}) step:{dice.step} - actor/loss:{dice.loss:.4f} - actor/grad_norm:{dice.part(0, 2):.3f} - critic/rewards/mean:{dice.part(0, 1):.3f} - timing_s/step:{dice.part(9, 19):.2f}"
        if dice.rare(0.01):
            yield dice.one(RAY_START[2:])


WANDB = (
    "wandb: WARNING The `run_name` is currently set to the same value as `TrainingArguments.output_dir`. If this was not intended, please specify a different run name by setting the `TrainingArguments.run_name` parameter.",
    "wandb: Currently logged in as: someone (team). Use `wandb login --relogin` to force relogin",
    "wandb: WARNING Serializing object of type ndarray that is 1048704 bytes",
    "wandb: Network error (ConnectionError), entering retry loop.",
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "wandb: Network error resolved after 0:00:31.412, resuming normal operation.",
    "wandb: 429 encountered (Filestream rate limit exceeded, retrying in 2.2 seconds), retrying request",
    "wandb: 502 encountered (502 Server Error: Bad Gateway for url: https://api.wandb.ai/graphql), retrying request",
    "wandb: ERROR Error while calling W&B API: an internal error occurred. Please contact support (<Response [500]>)",
    "wandb: ERROR Dropped streaming file chunk (see wandb/debug-internal.log)",
    "wandb: WARNING Tried to log to step 817 that is less than the current step 821. Steps must be monotonically increasing, so this data will be ignored. See https://wandb.me/define-metric to log data out of order.",
    "wandb: WARNING Symlinked 1 file into the W&B run directory, call wandb.save again to sync new files.",
)


def wandb(dice: Dice) -> Iterator[str]:
    """Weights & Biases over a network that fails at times."""
    yield from dice.every(WANDB[:3])
    while dice.more():
        yield f"iter {dice.step}: loss {dice.loss:.4f}, time {dice.part(100, 200):.2f}ms, mfu 41.20%"
        if dice.rare():
            yield dice.one(WANDB[2:])
    if dice.tells_end:
        yield "wandb: "
        yield "wandb: Run history:"
        yield "wandb:  train/errors ▁▁▁▁"
        yield "wandb: Synced 5 W&B file(s), 0 media file(s), 2 artifact file(s) and 0 other file(s)"
        yield "wandb: Find logs at: ./wandb/run-20260203/logs"


SPOKEN = (
    "sample: How do I catch a RuntimeError: CUDA error: an illegal memory access was encountered in Python?",
    "sample: Traceback (most recent call last):",
    "sample:     ValueError: could not convert string to float: 'abc'",
    "sample: ModuleNotFoundError: No module named 'numpy' means that the package is missing",
    "generated> Segmentation fault (core dumped) is what the program printed, he said",
    "generated> the job was killed, the node failed, and nobody knew why: out of memory",
    "prompt: explain 'No space left on device' and 'Permission denied' to a beginner",
    "answer: NCCL error: unhandled system error means that ...",
    "1a2b3c4 Handle OSError: [Errno 28] No space left on device",
)


def code_model(dice: Dice) -> Iterator[str]:
    """A model that learns to speak of errors, and shows what it says; steps follow, always."""
    while dice.left_bytes > 4000 and dice.more():
        yield f"step {dice.step} loss {dice.loss:.4f}"
        if dice.rare(0.05):
            yield dice.one(SPOKEN)
    for _ in range(5):
        dice.go()
        yield f"step {dice.step} loss {dice.loss:.4f}"


FORMATS = (
    torchrun, nccl_info, deepspeed, megatron, lightning, hf_trainer, accelerate, jax, tensorflow, ascend, ray, wandb,
    code_model,
)  # fmt: skip
