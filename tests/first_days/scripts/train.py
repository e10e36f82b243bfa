"""An ordinary training: it saves every few steps, and goes on from its newest checkpoint."""

import argparse
import glob
import os
import time

words = argparse.ArgumentParser()
words.add_argument("--steps", type=int, default=20)
words.add_argument("--out", default="ckpt")
words.add_argument("--bug-at", type=int, default=0)
words.add_argument("--pace", type=float, default=0.3)
given = words.parse_args()

rank = int(os.environ.get("SLURM_PROCID", "0"))
os.makedirs(given.out, exist_ok=True)
saved = sorted(glob.glob(f"{given.out}/step-*.pt"))
first = int(saved[-1][-7:-3]) + 1 if saved else 1
if rank == 0:
    print(f"starting from {saved[-1]}" if saved else "starting from scratch", flush=True)
for step in range(first, given.steps + 1):
    time.sleep(given.pace)
    if step == given.bug_at:
        batch = {"inputs": [step]}
        print(batch["labels"])
    if rank == 0:
        print(f"step {step}/{given.steps} loss {2.0 / step:.3f}", flush=True)
        if step % 5 == 0:
            draft = f"{given.out}/draft"
            with open(draft, "w") as stream:
                stream.write(str(step))
            os.replace(draft, f"{given.out}/step-{step:04d}.pt")
