"""Who runs the keeper on a host: a timer of systemd, else cron, else nobody; installed and removed here. (I/O)

`<folder>/keep/` has keeper (the script that they run), keeper.pyz (the code, as it was sent), request.json (what it is asked) and
state.json. Where request.json is gone the script does nothing, so it is the first thing that `uninstall` removes.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shlex
import shutil
import subprocess
import sys
from typing import Any, Optional

from ftrun.hooks.cluster import claim
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.init_system import systemctl, systemd_mode, unit_folder
from ftrun.hooks.cluster.keeper_memory import Memory
from ftrun.hooks.cluster.members import MARK, mark_of
from ftrun.hooks.cluster.place import write_file
from ftrun.hooks.cluster.survey import search_path
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.procfs import quick_processes

SYSTEMD, CRON, NOBODY = "systemd", "cron", ""
CRON_DAEMONS = frozenset({"cron", "crond", "fcron", "dcron", "bcron-start"})
RUN_S = 100.0
BY = "FTRUN_KEEPER_BY"
"""The variable that tells who runs the keeper, where it is not who was installed to do so."""
ASK_S = 20.0
EVERY_S = 60

SCRIPT = """\
#!/bin/sh
# Starts what is dead of cluster {name} on this host: run each minute and at boot by cron or systemd. `ftrun cluster down` removes it.
cd / && [ -e {folder}/keep/request.json ] || exit 0
exec env {mark} {python} -IS -c 'import sys; sys.path.insert(0, "{folder}/keep/keeper.pyz"); from ftrun.hooks.main import main; sys.exit(main(sys.argv[1:]))' host --request {folder}/keep/request.json
"""
SERVICE = """\
[Unit]
Description=Starts what is dead of the Slurm cluster {name} on {host} (ftrun cluster)
ConditionHost={host}
ConditionPathExists={folder}/keep/request.json

[Service]
Type=oneshot
KillMode=process
ExecStart=/bin/sh {folder}/keep/keeper
"""
TIMER = """\
[Unit]
Description=Looks after the Slurm cluster {name} on {host} (ftrun cluster)
ConditionHost={host}
ConditionPathExists={folder}/keep/request.json

[Timer]
OnActiveSec=1s
OnUnitInactiveSec={every_s}s
AccuracySec=5s

[Install]
WantedBy=timers.target
"""


def install(step: dict[str, Any]) -> dict[str, str]:
    """Install the keeper for the step of `keep` in `keep`, or bring what is there up to date. Returns {"by": systemd, cron or ""}.

    "" where the host has neither: then somebody else has to run the keeper (`run`).
    """
    wish = step["keep"]
    folder = os.path.join(wish["folder"], "keep")
    script = SCRIPT.format(
        name=wish["name"],
        folder=wish["folder"],
        mark=f"{MARK}={mark_of(wish['token'], 'keeper')}",
        python=shlex.quote(sys.executable),
    )
    write_file(os.path.join(folder, "keeper.pyz"), _own_code(), 0o600)
    write_file(os.path.join(folder, "keeper"), script.encode(), 0o700)
    memory = Memory(wish["folder"])
    memory.note_living(wish["daemons"])
    memory.save()
    by = _install_timer(wish) or _install_cron_line(wish) or NOBODY
    request = {"steps": [{**wish, "do": "keep", "by": by}]}
    write_file(os.path.join(folder, "request.json"), json.dumps(request).encode(), 0o600)
    if by == SYSTEMD:  # its conditions hold only now
        systemctl("start", f"{_unit(wish)}.timer")
    return {"by": by}


def uninstall(step: dict[str, Any]) -> dict[str, bool]:
    """Let nobody run the keeper of a cluster any more. Returns {"removed": whether there was one}. Raises HostError where that fails.

    Another cluster that has this host with the same folder keeps its own.
    """
    was_there = False
    if not claim.is_anothers(step):
        request = os.path.join(step["folder"], "keep", "request.json")
        was_there = os.path.exists(request)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(request)
        _remove_timer(step)
    lines = _crontab()
    rest = [line for line in lines or () if not line.endswith(_tag(step))]
    if lines is not None and rest != lines:
        _write_crontab(rest)
        was_there = True
    return {"removed": was_there}


def run(step: dict[str, Any]) -> dict[str, str]:
    """Run the keeper now, for a host where nobody else does; returns {"said": what it printed}. Raises HostError without one."""
    script = os.path.join(step["folder"], "keep", "keeper")
    if not os.path.exists(script):
        raise HostError(f"there is no keeper in {os.path.dirname(script)}")
    done = subprocess.run(
        ["/bin/sh", script], stdin=subprocess.DEVNULL, capture_output=True,
        env={**os.environ, BY: step["by"]}, timeout=RUN_S, check=False,
    )  # fmt: skip
    return {"said": done.stdout.decode("utf-8", "replace").strip()}


def installed(step: dict[str, Any]) -> str:
    """Who runs the keeper here, as far as that is still so; "" for nobody."""
    try:
        with open(os.path.join(step["folder"], "keep", "request.json"), encoding="utf-8") as stream:
            by = str(json.load(stream)["steps"][0]["by"])
    except (OSError, ValueError, LookupError):
        return NOBODY
    if by == CRON and not (_cron_lives() and any(line.endswith(_tag(step)) for line in _crontab() or ())):
        return NOBODY
    return by


def _own_code() -> bytes:
    """The packed hooks that this process runs. Raises HostError where it does not run packed ones."""
    for path in sys.path:
        if path.startswith("/proc/self/fd/") or path.endswith(".pyz"):
            with open(path, "rb") as stream:
                return stream.read()
    raise HostError("this is no packed ftrun-hook: it cannot leave a copy of itself")


def _tag(step: dict[str, Any]) -> str:
    return f"# ftrun-cluster {step['token']}"


def _unit(step: dict[str, Any]) -> str:
    # The folder of a user's units is often shared by all hosts: each has a unit of its own name, and ConditionHost.
    return f"ftrun-cluster-{os.path.basename(step['folder'])}-{os.uname().nodename}"


def _install_timer(wish: dict[str, Any]) -> str:
    if systemd_mode() is None:
        return ""
    words = {"name": wish["name"], "folder": wish["folder"], "host": os.uname().nodename, "every_s": EVERY_S}
    folder, unit = unit_folder(), _unit(wish)
    os.makedirs(folder, exist_ok=True)
    write_file(os.path.join(folder, f"{unit}.service"), SERVICE.format(**words).encode(), 0o644)
    write_file(os.path.join(folder, f"{unit}.timer"), TIMER.format(**words).encode(), 0o644)
    if systemctl("daemon-reload") and systemctl("enable", f"{unit}.timer"):
        return SYSTEMD
    _remove_timer(wish)
    return ""


def _remove_timer(step: dict[str, Any]) -> None:
    folder, unit = unit_folder(), _unit(step)
    paths = [os.path.join(folder, f"{unit}.{kind}") for kind in ("timer", "service")]
    if not any(map(os.path.exists, paths)):
        return
    systemctl("disable", "--now", f"{unit}.timer")
    for path in (*paths, os.path.join(folder, "timers.target.wants", f"{unit}.timer")):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    systemctl("daemon-reload")


def _install_cron_line(wish: dict[str, Any]) -> str:
    lines = _crontab() if _cron_lives() else None
    if lines is None:
        return ""
    command = f"/bin/sh {wish['folder']}/keep/keeper >/dev/null 2>&1 {_tag(wish)}"
    wanted = [f"@reboot {command}", f"* * * * * {command}"]
    rest = [line for line in lines if not line.endswith(_tag(wish))]
    if lines != [*rest, *wanted]:
        try:
            _write_crontab([*rest, *wanted])
        except HostError:
            return ""
    return CRON


def _cron_lives() -> bool:
    """Whether a cron daemon runs here: a line that nobody reads is none."""
    return any(one.name in CRON_DAEMONS for one in quick_processes(Machine()).values())


def _crontab() -> Optional[list[str]]:
    """The lines of the user's crontab; None where there is no cron for this user."""
    done = _cron("-l")
    if done is None:
        return None
    if done.returncode:
        return [] if b"no crontab for" in done.stderr else None
    return done.stdout.decode("utf-8", "surrogateescape").splitlines()


def _write_crontab(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    done = _cron("-", text) if lines else _cron("-r")
    if done is None or done.returncode:
        words = done.stderr.decode("utf-8", "replace").split() if done else ["no crontab"]
        raise HostError(f"the crontab of {getpass.getuser()} cannot be changed: {' '.join(words)}")


def _cron(argument: str, text: bytes = b"") -> Optional[subprocess.CompletedProcess[bytes]]:
    program = shutil.which("crontab", path=search_path())
    if program is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            [program, argument], input=text, capture_output=True, timeout=ASK_S, check=False
        )
    return None
