"""Cases that change a setting of the device: with --own-machine only; each puts it back and makes sure of that. (I/O)

Never a reset of the device, never MIG.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator

from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE
from tests.accelerators.cases import Case
from tests.accelerators.failures import diagnosis, kept
from tests.accelerators.here import Here, NotHere, Seen

ASK_S = 30.0
COMPUTE_MODES = {"Default": "0", "Prohibited": "2", "Exclusive_Process": "3"}
"""As `nvidia-smi -q` prints a mode -> as `nvidia-smi -c` takes it (its manual; 1, Exclusive_Thread, is no longer supported)."""
BUSY_S = 8.0


def _set(*words: str) -> None:
    """Change a setting of the first GPU. Raises NotHere where that is refused."""
    done = subprocess.run(
        ["nvidia-smi", "-i", "0", *words], capture_output=True, text=True, timeout=ASK_S, check=False
    )
    if done.returncode:
        raise NotHere(f"nvidia-smi {' '.join(words)}: {' '.join((done.stdout + done.stderr).split())[:160]}")


@contextlib.contextmanager
def _changed(here: Here, field: str, to: tuple[str, ...], back: tuple[str, ...]) -> Iterator[None]:
    """The setting is changed while the block runs. Raises AssertionError where it is not as before after that."""
    before = here.ask_smi().gpus[0].word(field)
    try:
        _set(*to)
        yield
    finally:
        _set(*back)
        after = here.ask_smi().gpus[0].word(field)
        assert after == before, f"{field} was {before} and is {after}: nvidia-smi -i 0 {' '.join(back)}"


def compute_mode(here: Here) -> Seen:
    """One process at a time: the check sees it where the site wants another mode, and a second process is turned away."""
    before = here.gpus[0].word("compute_mode")
    with _changed(here, "compute_mode", ("-c", "3"), ("-c", COMPUTE_MODES[before])):
        found = here.checks("gpu-mode", settings={"gpu-mode": {"compute_mode": "Default"}})["gpu-mode"]
        log = kept(here, "busy_device.log", here.program("busy_device").text)
    told = diagnosis(here, log)
    text = f"{found.severity}: {found.message}; second process: {told['class']} ({told['signature']})"
    return Seen(text, found.severity == DEGRADED and told["class"] in ("config", "node", "port-conflict"))


def prohibited(here: Here) -> Seen:
    """No process is let in."""
    before = here.gpus[0].word("compute_mode")
    with _changed(here, "compute_mode", ("-c", "2"), ("-c", COMPUTE_MODES[before])):
        found = here.checks("gpu-mode")["gpu-mode"]
    return Seen(f"{found.severity}: {found.message}", found.severity == BAD)


def persistence(here: Here) -> Seen:
    """The other persistence mode than the site wants is a note."""
    before = here.gpus[0].word("persistence_mode")
    other, back = ("0", "1") if before == "Enabled" else ("1", "0")
    with _changed(here, "persistence_mode", ("-pm", other), ("-pm", back)):
        found = here.checks("gpu-mode", settings={"gpu-mode": {"persistence": before}})["gpu-mode"]
    return Seen(f"{found.severity}: {found.message}", found.severity == NOTE)


def power_limit(here: Here) -> Seen:
    """A lower power limit is a note, with both numbers."""
    gpu = here.gpus[0]
    groups = ("gpu_power_readings", "power_readings")
    group = next((one for one in groups if gpu.word(f"{one}/min_power_limit")), "")
    if not group:
        raise NotHere("its power limits are not told")
    field = next(
        f"{group}/{name}" for name in ("current_power_limit", "power_limit") if gpu.word(f"{group}/{name}")
    )
    now, least = gpu.number(field), gpu.number(f"{group}/min_power_limit")
    if now is None or least is None or least > 0.9 * now:
        raise NotHere(f"its power limit cannot be lowered: {now} W, at least {least} W")
    with _changed(here, field, ("-pl", f"{least:.0f}"), ("-pl", f"{now:.0f}")):
        found = here.checks("gpu-throttle")["gpu-throttle"]
    return Seen(f"{found.severity}: {found.message}", found.severity == NOTE)


def clocks(here: Here) -> Seen:
    """A clock that somebody has locked low is seen while the device works."""
    with _changed(here, "compute_mode", ("-lgc", "300,300"), ("-rgc",)), here.beside("hold", "500", "busy"):
        time.sleep(BUSY_S)
        now = here.ask_smi().gpus[0].word("clocks/sm_clock")
        found = here.checks("gpu-throttle")["gpu-throttle"]
    return Seen(f"at {now}: {found.severity}: {found.message}", found.severity == DEGRADED)


# fmt: off
CASES = [
    Case("settings", "compute-mode", "degraded; the second process is turned away: config or node", compute_mode, ("own-machine", "device"), 90),
    Case("settings", "prohibited", "bad", prohibited, ("own-machine", "device")),
    Case("settings", "persistence", "a note", persistence, ("own-machine", "device")),
    Case("settings", "power-limit", "a note", power_limit, ("own-machine", "device")),
    Case("settings", "clocks", "degraded", clocks, ("own-machine", "device")),
]
# fmt: on
