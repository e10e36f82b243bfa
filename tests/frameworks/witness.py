"""Beside each training: writes its losses down, and kills it once. (I/O)

`note(step, loss)` appends to the file losses. In the step that KILL_AT names, once, the process writes the line of a
lost GPU, as a driver would, and kills itself by signal 9.
"""

# mypy: ignore-errors
# The libraries that call it are not there where types are checked.

import os
import signal


def note(step, loss):
    """Keep the loss of this step to its last bit; die in the step that was named, once."""
    with open("losses", "a") as stream:
        stream.write(f"{step} {float(loss)!r}\n")
    print(f"step {step} loss {float(loss):.6f}", flush=True)
    if str(step) == os.environ.get("KILL_AT") and not os.path.exists("killed"):
        with open("killed", "w"):
            pass
        print(f"{os.uname().nodename} NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
