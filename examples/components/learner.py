"""The component that keeps the state: it learns from samples, saves, and says that it is done."""

import os
import sys
import time

STEPS = int(os.environ.get("STEPS", "20"))
done = next((int(word.rpartition("-")[2]) for word in sys.argv if word.startswith("--load=")), 0)
os.makedirs("samples", exist_ok=True)
os.makedirs("ckpt", exist_ok=True)
for step in range(done + 1, STEPS + 1):
    sample = f"samples/{step}"
    with open("wanted.tmp", "w") as file:
        file.write(str(step))
    os.replace("wanted.tmp", "wanted")
    while not os.path.exists(sample):  # as long as the sampler is away
        time.sleep(0.05)
    with open(sample) as file:
        print(f"step {step}/{STEPS} loss {float(file.read()):.3f} pid {os.getpid()}", flush=True)
    if os.path.exists("learner-fails"):
        os.remove("learner-fails")
        print("ncclRemoteError: remote process exited or there was a network error", flush=True)
        sys.exit(1)
    with open("ckpt/draft.tmp", "w") as file:
        file.write(str(step))
    os.replace("ckpt/draft.tmp", f"ckpt/step-{step}")
