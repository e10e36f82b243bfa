"""A parameter server whose ranks may die and come back one by one; the standard library only, Python 3.9.

Rank 0 serves the parameters and saves them, the others compute gradients of a small regression. Whoever loses the server tries again,
and keeps its memory meanwhile: `own` counts the steps of this very process, so it shows who was started again and who was not.

    srun python3 train.py [STEPS] [FOLDER]
"""

from __future__ import annotations

import json
import os
import random
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ.get("SLURM_PROCID", "0"))
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else ".")
STATE = FOLDER / "parameters.json"
ADDRESS = FOLDER / f"server.{os.environ.get('FTRUN_START_TOKEN', 'x')}"
SAVE_EVERY = 10
STEP_S = float(os.environ.get("STEP_S", "0.05"))


def put(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def say(text: str) -> None:
    """One line for the log: who, which process, whether it was started again."""
    again = os.environ.get("FTRUN_RANK_RESTART", "0")
    print(f"rank {RANK} pid {os.getpid()} restart {again} {text}", flush=True)


class Server:
    """The parameters, the step, and who is done."""

    def __init__(self) -> None:
        kept = json.loads(STATE.read_text()) if STATE.exists() else {}
        self.weights: list[float] = kept.get("weights", [0.0, 0.0])
        self.step: int = kept.get("step", 0)
        self.lock = threading.Lock()
        self.over = threading.Event()
        if self.step >= STEPS:  # it died after the last step
            self.over.set()

    def take(self, gradient: list[float]) -> dict[str, object]:
        """One update; answers with the parameters and the step."""
        with self.lock:
            if gradient and self.step < STEPS:
                self.weights = [self.weights[i] - 0.05 * gradient[i] for i in (0, 1)]
                self.step += 1
                if self.step % SAVE_EVERY == 0 or self.step == STEPS:
                    put(STATE, json.dumps({"step": self.step, "weights": self.weights}))
                    say(f"step {self.step} saved")
                if self.step == STEPS:
                    self.over.set()
            return {"weights": self.weights, "step": self.step}


def serve() -> None:
    """Rank 0: until the last step is done and the workers had time to hear of it."""
    state = Server()

    class Handler(socketserver.StreamRequestHandler):
        """One worker's connection: a line with a gradient, a line with parameters."""

        def handle(self) -> None:
            for line in self.rfile:
                self.wfile.write(json.dumps(state.take(json.loads(line))).encode() + b"\n")

    class Threaded(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    host = "127.0.0.1" if os.environ.get("LOOPBACK") else ""
    with Threaded((host, 0), Handler) as listening:
        put(ADDRESS, f"{host or socket.gethostname()} {listening.server_address[1]}")
        say(f"serves from step {state.step}")
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        state.over.wait()
        time.sleep(2)
    say(f"done at step {state.step}: {[round(w, 2) for w in state.weights]}")


def connected() -> socket.socket:
    """A connection to the server, however long it takes."""
    while True:
        try:
            host, port = ADDRESS.read_text().split()
            return socket.create_connection((host, int(port)), timeout=10)
        except (OSError, ValueError):
            time.sleep(0.2)


def work() -> None:
    """Every other rank: gradients of y = 3 x - 1 at points of its own."""
    points = random.Random(RANK)
    own, weights, step = 0, [0.0, 0.0], 0
    while step < STEPS:
        try:
            with connected() as line, line.makefile("rwb") as stream:
                gradient: list[float] = []
                while step < STEPS:
                    stream.write(json.dumps(gradient).encode() + b"\n")
                    stream.flush()
                    told = json.loads(stream.readline())
                    weights, step = told["weights"], told["step"]
                    x = points.uniform(-1, 1)
                    error = weights[0] * x + weights[1] - (3 * x - 1)
                    gradient = [2 * error * x, 2 * error]
                    own += 1
                    if own % 10 == 0:
                        say(f"step {step} own {own}")
                    time.sleep(STEP_S)
        except (OSError, ValueError):
            say(f"lost the server at step {step}, own {own}")
            time.sleep(0.2)
    say(f"done, own {own}")


if __name__ == "__main__":
    serve() if RANK == 0 else work()
