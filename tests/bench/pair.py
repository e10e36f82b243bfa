"""A trainer without a framework, one rank on each node: a star of sockets around rank 0, which is a collective as far as a fault goes. (standard library)

    srun -n N python pair.py FOLDER TOKEN STEPS STEP_S PATIENCE_S

A peer that dies is noticed at once, as by any collective over TCP; one that stands still after PATIENCE_S (0 = never). Then every rank prints what a trainer prints and
ends with 1. Rank 0 writes Unix seconds into FOLDER/first.TOKEN at its first step, and every rank its pid into FOLDER/rank.TOKEN.RANK.
"""

import os
import socket
import sys
import time

FATAL = (
    "[rank{}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021, remote process exited "
    "or there was a network error, ncclRemoteError"
)


def main() -> None:
    """Train to the last step."""
    folder, token, steps, step_s, patience_s = sys.argv[1:]
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    whole(os.path.join(folder, f"rank.{token}.{rank}"), str(os.getpid()))
    peers = joined(folder, token, rank, ranks)
    for peer in peers:
        peer.settimeout(float(patience_s) or None)
    try:
        for step in range(1, int(steps) + 1):
            together(peers, rank)
            if rank == 0:
                if step == 1:
                    whole(os.path.join(folder, f"first.{token}"), f"{time.time():.6f}")
                print(f"step {step} loss 2.5", flush=True)
            time.sleep(float(step_s))
    except OSError:
        print(FATAL.format(rank), flush=True)
        sys.exit(1)


def joined(folder: str, token: str, rank: int, ranks: int) -> list[socket.socket]:
    """Connections to all others for rank 0, one to rank 0 for the others."""
    path = os.path.join(folder, f"port.{token}")
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as door:
            whole(path, str(door.getsockname()[1]))
            return [door.accept()[0] for _ in range(ranks - 1)]
    while not os.path.exists(path):
        time.sleep(0.005)
    with open(path) as stream:
        return [socket.create_connection(("127.0.0.1", int(stream.read())))]


def together(peers: list[socket.socket], rank: int) -> None:
    """Nobody goes on before all are here."""
    if rank:
        peers[0].sendall(b"x")
    for peer in peers:
        if not peer.recv(1):
            raise ConnectionResetError
    if not rank:
        for peer in peers:
            peer.sendall(b"x")


def whole(path: str, text: str) -> None:
    """A reader finds all of it or nothing."""
    with open(path + ".tmp", "w") as stream:
        stream.write(text)
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    main()
