"""Small torch programs that fail, hang or measure, each as real training code would: python programs.py NAME. (I/O)

Python 3.9 and torch, nothing of ftrun unless a program measures it. Those without "device" in `failures.FAILURES` run on any machine.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

with contextlib.suppress(ImportError):  # a build for processors has none
    import triton
    import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RANK = int(os.environ.get("RANK", "0"))


def step(number, loss=0.5):
    """The line of a step, as training code prints it."""
    print(f"step {number}/100 loss {loss:.4f}", flush=True)


def small(width=64):
    """A small network, its optimizer and a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), torch.randn(32, width, device=DEVICE)


def train_step(model, optimizer, batch):
    """One step; the loss."""
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


def group(backend="gloo", timeout_s=8):
    """Join the process group of the environment."""
    import datetime as dt

    dist.init_process_group(backend, timeout=dt.timedelta(seconds=timeout_s))


# --- failures on the device


def oom_own():
    """It wants more than the device has."""
    step(1)
    kept = []
    while True:
        kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def oom_foreign():
    """Another program holds the device."""
    free, _ = torch.cuda.mem_get_info()
    holder = subprocess.Popen(
        [sys.executable, __file__, "hold", str((free >> 20) - 3000)], stdout=subprocess.PIPE
    )
    try:
        holder.stdout.readline()
        step(1)
        torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    finally:
        holder.kill()
        holder.wait()


def illegal_access():
    """A kernel writes where nothing is."""

    @triton.jit
    def stray(pointer, far):
        tl.store(pointer + far, 1.0)

    step(1)
    stray[(1,)](torch.zeros(4, device="cuda"), 1 << 40)
    torch.cuda.synchronize()


def device_assert():
    """An index of a table that is not there."""
    step(1)
    nn.Embedding(10, 4).to("cuda")(torch.tensor([99], device="cuda"))
    torch.cuda.synchronize()


def wrong_launch():
    """A grid larger than the device takes."""

    @triton.jit
    def one(pointer):
        tl.store(pointer, 1.0)

    step(1)
    one[(1, 1 << 20, 1)](torch.zeros(4, device="cuda"))
    torch.cuda.synchronize()


def _fill_by_driver(left_mib):
    """Take the device's memory from below torch, so that libraries find none."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda")
    place = ctypes.c_uint64()
    while torch.cuda.mem_get_info()[0] > left_mib << 20:
        size = min(1 << 30, torch.cuda.mem_get_info()[0] - (left_mib << 20))
        if size < 1 << 20 or driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)):
            return


def cublas_error():
    """cuBLAS finds no memory for its handle."""
    left, right = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")
    step(1)
    _fill_by_driver(1)
    print((left @ right).sum().item())


def cudnn_error():
    """cuDNN finds no memory for its handle or its work."""
    layer, picture = nn.Conv2d(64, 64, 3).to("cuda"), torch.ones(8, 64, 128, 128, device="cuda")
    torch.cuda.synchronize()
    step(1)
    _fill_by_driver(1)
    torch.cuda.empty_cache()
    layer(picture).sum().backward()
    torch.cuda.synchronize()


def nccl_duplicate():
    """Two ranks on one device: NCCL refuses."""
    torch.cuda.set_device(0)
    group("nccl")
    step(1)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()


def nccl_missing():
    """The communicator cannot be built: the rank that should begin does not come."""
    torch.cuda.set_device(0)
    group("nccl", 15)
    step(1)
    if RANK == 0:
        time.sleep(60)
        return
    dist.all_reduce(torch.ones(1, device="cuda"))


def nccl_timeout():
    """A collective stands behind a kernel that does not end, until NCCL's watchdog gives up: all that one device can show of it."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()), RANK="0", WORLD_SIZE="1")
    torch.cuda.set_device(0)
    group("nccl", 10)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    step(1)
    torch.cuda._sleep(1 << 44)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()


def no_device():
    """The device is not visible, or torch was built without CUDA."""
    step(1)
    torch.zeros(1, device="cuda")


def busy_device():
    """A second process on a device in exclusive mode."""
    torch.zeros(1, device="cuda")
    other = subprocess.run([sys.executable, __file__, "no_device"], check=False)
    sys.exit(other.returncode)


def triton_error():
    """A kernel that Triton cannot compile."""

    @triton.jit
    def wrong(pointer):
        tl.store(pointer, tl.arange(0, 3))  # no power of two

    step(1)
    wrong[(1,)](torch.zeros(4, device="cuda"))


# --- failures on any machine


def nan():
    """The loss is no number, and anomaly detection says where it began."""
    weight = torch.zeros(3, device=DEVICE, requires_grad=True)
    step(1)
    with torch.autograd.set_detect_anomaly(True):
        (torch.sqrt(weight) * 0).sum().backward()


def shapes():
    """Two matrices that do not fit."""
    step(1)
    nn.Linear(8, 4).to(DEVICE)(torch.ones(2, 9, device=DEVICE))


def compile_error():
    """torch.compile cannot follow a branch on data."""
    step(1)

    def branch(value):
        if value.sum() > 0:
            return value
        return -value

    torch.compile(branch, fullgraph=True, backend="eager")(torch.ones(3))


def torn_checkpoint():
    """The checkpoint was cut off."""
    torch.save({"weight": torch.ones(1000)}, "step-10.pt")
    os.truncate("step-10.pt", 2000)
    torch.load("step-10.pt")


def other_checkpoint():
    """The checkpoint is of another model."""
    torch.save(nn.Linear(4, 4).state_dict(), "step-10.pt")
    nn.Linear(8, 4).load_state_dict(torch.load("step-10.pt"))


class Records(torch.utils.data.Dataset):
    """Ten records; what happens at the fifth is told by its name."""

    def __init__(self, fate):
        self.fate = fate

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 5:
            getattr(self, self.fate)()
        return torch.ones(2)

    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def bus(self):
        os.kill(os.getpid(), signal.SIGBUS)

    def broken(self):
        raise ValueError("record 5: label 17 is not in 0..9")

    def stuck(self):
        time.sleep(3600)


def _load(fate):
    step(1)
    for _ in torch.utils.data.DataLoader(Records(fate), batch_size=2, num_workers=2):
        pass


def loader_killed():
    """A data loader's worker is killed."""
    _load("killed")


def loader_bus():
    """A data loader's worker finds no shared memory."""
    _load("bus")


def loader_broken():
    """A record is wrong."""
    _load("broken")


def peer_lost():
    """The other rank dies in the middle of a collective."""
    group()
    for number in range(1, 6):
        step(number)
        if RANK == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))


def peer_late():
    """The other rank does not come to a collective."""
    group()
    step(1)
    if RANK == 1:
        time.sleep(20)
        os._exit(0)
    dist.all_reduce(torch.ones(1))


def nobody_joins():
    """The other rank never starts."""
    step(1)
    dist.TCPStore("127.0.0.1", _free_port(), 2, is_master=True, timeout=_seconds(3))


def port_taken():
    """Another program has the port of the rendezvous."""
    with socket.create_server(("0.0.0.0", 0)) as taken:
        step(1)
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, is_master=True, timeout=_seconds(5))


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def _seconds(count):
    import datetime as dt

    return dt.timedelta(seconds=count)


# --- what stands still


def hang_kernel():
    """The main thread waits for a kernel that does not end."""
    _listen()
    torch.zeros(1, device="cuda")
    print("ready", flush=True)
    for _ in range(20):
        torch.cuda._sleep(1 << 40)
    torch.cuda.synchronize()


def hang_gil():
    """The main thread computes in C and keeps the GIL."""
    import re

    _listen()
    print("ready", flush=True)
    re.match(r"(a+)+$", "a" * 60 + "b")


def hang_loader():
    """The main thread waits for a data loader."""
    _listen()
    print("ready", flush=True)
    _load("stuck")


def _listen():
    """As a rank of ftrun's: it beats, so that its stack can be asked for."""
    with contextlib.suppress(ImportError):
        from ftrun.hooks import beat

        beat(1)
        time.sleep(1.2)


# --- what is measured


def hold(mib="3000", busy=""):
    """Hold memory of the device, and compute on it if `busy`, until it is killed."""
    kept = torch.empty(int(mib) << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    print("ready", flush=True)
    work = torch.randn(4096, 4096, device="cuda") if busy else None
    while True:
        if work is None:
            time.sleep(1)
            kept[0] = 1
        else:
            for _ in range(50):
                torch.mm(work, work)
            torch.cuda.synchronize()


def properties():
    """What torch tells of the first device."""
    told = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    uuid = str(getattr(told, "uuid", ""))
    print(json.dumps({"name": told.name, "total_mib": total >> 20, "free_mib": free >> 20, "uuid": uuid}))


def context():
    """How long the first use of the device takes."""
    began = time.perf_counter()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    print(json.dumps({"context_s": time.perf_counter() - began}))


def compiled():
    """A few steps through torch.compile: the time to the first, and all losses."""
    model, optimizer, batch = small()
    torch.use_deterministic_algorithms(True, warn_only=True)
    fast = torch.compile(model)
    began = time.perf_counter()
    losses = []
    for _ in range(5):
        loss = (fast(batch) - batch).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == 1:
            first_s = time.perf_counter() - began
    print(json.dumps({"first_s": first_s, "losses": losses}))


def saving(mib="512"):
    """The pause of a training for a checkpoint: torch.save to disk, DCP's async save, ftrun's staging."""
    import torch.distributed.checkpoint as dcp

    from ftrun.hooks import stage

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()), RANK="0", WORLD_SIZE="1")
    group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo", 60)
    state = {f"w{n}": torch.randn(16 << 18, device=DEVICE) for n in range(int(mib) // 16)}
    pauses = {}

    def pause(name, work):
        best = []
        for number in range(3):
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            left = work(number)
            best.append(time.perf_counter() - began)
            if left is not None:
                left.result()
        pauses[name] = sorted(best)[1]

    def staged(number):
        with stage(number, ranks=1) as folder:
            torch.save(state, os.path.join(folder, "rank-0.pt"))

    def saved(number):
        path = os.path.join(os.environ["SAVE_TO"], f"plain-{number}.pt")
        torch.save(state, path)
        with open(path, "rb+") as stream:
            os.fsync(stream.fileno())

    pause("torch.save", saved)
    pause(
        "dcp.async_save",
        lambda n: dcp.async_save(state, checkpoint_id=os.path.join(os.environ["SAVE_TO"], f"dcp-{n}")),
    )
    pause("stage", staged)
    print(json.dumps({"mib": int(mib), "device": DEVICE, **pauses}))
    dist.destroy_process_group()


def beats(steps="100"):
    """The time of a training step with beats and without, in turns."""
    from ftrun.hooks import beat

    torch.set_num_threads(1)
    model, optimizer, batch = small(256 if DEVICE == "cpu" else 2048)
    for number in range(10):
        train_step(model, optimizer, batch)
        beat(number)
    took = {True: [], False: []}
    for block in range(20):
        with_beats = block % 2 == 0
        began = time.process_time() if DEVICE == "cpu" else time.perf_counter()
        for number in range(int(steps) // 10):
            train_step(model, optimizer, batch)
            if with_beats:
                beat(block * 100 + number)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        took[with_beats].append((time.process_time() if DEVICE == "cpu" else time.perf_counter()) - began)
    with_s, without_s = sorted(took[True])[5], sorted(took[False])[5]
    began = time.perf_counter()
    for number in range(20000):
        beat(number)
    call_s = (time.perf_counter() - began) / 20000
    step_s = without_s / (int(steps) // 10)
    print(
        json.dumps(
            {"step_s": step_s, "call_s": call_s, "price": call_s / step_s, "ratio": with_s / without_s}
        )
    )


# --- a training for the loop


def training(fault="none", at="6", steps="12"):
    """A training that saves each third step, resumes, and has one fault on its first start."""
    from ftrun.hooks import beat

    model, optimizer, batch = small()
    begin = 0
    resume = os.environ.get("FTRUN_RESUME_FROM") or ""
    if resume:
        saved = torch.load(os.path.join(resume, "state.pt") if os.path.isdir(resume) else resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    is_first = os.environ.get("FTRUN_ATTEMPT", "1") == "1" and os.environ.get("FTRUN_RESTART", "0") == "0"
    print(f"on {DEVICE} {os.environ.get('CUDA_VISIBLE_DEVICES', '')} from step {begin}", flush=True)
    for number in range(begin + 1, int(steps) + 1):
        beat(number)
        loss = train_step(model, optimizer, batch).item()
        print(f"step {number}/{steps} loss {loss:.17g}", flush=True)
        time.sleep(0.3)
        if number % 3 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}
            torch.save(state, "checkpoints/draft.pt")
            os.replace("checkpoints/draft.pt", f"checkpoints/step-{number}.pt")
        if is_first and number == int(at) and fault != "none":
            FAULTS[fault]()


def _xid():
    print("NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, name=python, GPU has fallen off the bus", flush=True)
    raise RuntimeError("CUDA error: unspecified launch failure")


def _hang():
    if DEVICE == "cuda":
        torch.cuda._sleep(1 << 44)
        torch.cuda.synchronize()
    threading.Event().wait()


FAULTS = {
    "xid": _xid,
    "hang": _hang,
    "hang-gil": hang_gil,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "oom": oom_own,
    "assert": device_assert,
    "user-bug": shapes,
}

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
