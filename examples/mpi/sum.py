"""A plain MPI program: all ranks add up what each of them works out, step by step.

It keeps its state in a file that is moved into place when it is whole, and goes on from $FTRUN_RESUME_FROM. It knows nothing else of ftrun.

    mpirun python3 sum.py [STEPS]        checkpoints go to ./checkpoints, the result to ./final.txt
"""

import json
import os
import sys
import time

from mpi4py import MPI

EVERY = 10
PRIME = 2_147_483_647
STEP_S = float(os.environ.get("EXAMPLE_STEP_S", "0.1"))  # what a real step would take


def save(path, step, total):
    """A reader finds the whole file or none."""
    with open(path + ".tmp", "w") as stream:
        json.dump({"step": step, "total": total}, stream)
    os.replace(path + ".tmp", path)
    print(f"saved checkpoint {path} at step {step}", flush=True)


def main():
    """Add up to the last step."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    world = MPI.COMM_WORLD
    done, total = 0, 1
    resume = os.environ.get("FTRUN_RESUME_FROM")
    if resume:
        with open(resume) as stream:
            state = json.load(stream)
        done, total = state["step"], state["total"]
    os.makedirs("checkpoints", exist_ok=True)
    for step in range(done + 1, steps + 1):
        part = (total * 48_271 + step * (world.rank + 1)) % PRIME
        total = world.allreduce(part) % PRIME
        time.sleep(STEP_S)
        if world.rank == 0:
            print(f"step {step}/{steps} total {total}", flush=True)
            if step % EVERY == 0:
                save(f"checkpoints/step-{step:06d}.json", step, total)
    if world.rank == 0:
        with open("final.txt", "w") as stream:
            stream.write(f"{total}\n")


if __name__ == "__main__":
    main()
