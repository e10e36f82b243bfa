"""A training loop that tells where it is: what to put into your own, with arithmetic in place of a model. (I/O)

    ftrun sbatch job.sh --steps 500

Outside of ftrun the same calls do nothing. Where ftrun is not installed on the nodes, its folder `hooks` on PYTHONPATH under the name `ftrun/hooks`
is enough: standard library, Python 3.9.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from ftrun.hooks import beat

EVALUATE_EVERY = 100
SAVE_EVERY = 50


def step_of(path: str) -> int:
    """Where an earlier start came to; 0 where there is no checkpoint."""
    try:
        with open(path) as stream:
            return int(json.load(stream)["step"])
    except OSError:
        return 0


def save(path: str, step: int) -> None:
    """Write a checkpoint, whole or not at all."""
    print(f"saving checkpoint {path} at step {step}", flush=True)
    with open(path + ".tmp", "w") as stream:
        json.dump({"step": step}, stream)
    os.replace(path + ".tmp", path)
    print(f"saved checkpoint {path} at step {step}", flush=True)


def train(steps: int, path: str, step_s: float) -> None:
    """Go on from the checkpoint, to the last step."""
    for step in range(step_of(path) + 1, steps + 1):
        beat(step)
        time.sleep(step_s)  # forward and backward
        beat(step, phase="sync")
        loss = 1.0 / step  # the gradients of all ranks come together
        print(f"step {step} loss {loss:.4f}", flush=True)
        if step % EVALUATE_EVERY == 0:
            beat(step, phase="eval")
            time.sleep(10 * step_s)
        if step % SAVE_EVERY == 0 or beat.save_wanted():
            beat(step, phase="checkpoint")
            save(path, step)
    beat.done()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--checkpoint", default="checkpoint.json")
    asked = parser.parse_args()
    train(asked.steps, asked.checkpoint, asked.step_s)


if __name__ == "__main__":
    main()
