"""What keeps a supervisor running where nobody is logged in: texts for systemd, cron, scrontab. (I/O)

How it thinks. Each text is ready to be pasted: full paths, and the few variables without which another cluster, home or site would be meant. systemd keeps one process
alive; cron and scrontab call `--once`, which does what is due and ends; whoever leads already is left alone. They share what they must survive: a home with spaces or
`%` in its name, which means something to each of them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping

__all__ = ["TEXTS", "crontab", "operator_crontab", "scrontab", "unit"]

_KEPT = (
    "SLURM_CONF",
    "FTRUN_SITE_CONFIG",
    "XDG_CONFIG_HOME",
    "FTRUN_SLURM_CLIENT",
    "FTRUN_PYSLURM_PYTHON",
    "FTRUN_CATALOG",
)
_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_CALL = (
    "-P",
    "-m",
    "ftrun.supervisor",
    "supervise",
)  # -P: a json.py in the folder where it starts is not Python's


def unit(home: str, env: Mapping[str, str]) -> str:
    """A systemd user unit that keeps a supervisor alive."""
    variables = "".join(
        f"Environment={_for_systemd(f'{key}={value}')}\n" for key, value in _variables(home, env)
    )
    call = " ".join(_for_systemd(word).replace("$", "$$") for word in (sys.executable, *_CALL))
    return f"""\
# ~/.config/systemd/user/ftrun.service; then: systemctl --user enable --now ftrun; loginctl enable-linger
[Unit]
Description=ftrun supervisor
Documentation=man:ftrun-supervise(1)

[Service]
{variables}ExecStart={call}
Restart=always
RestartSec=5
# Wrong settings do not mend themselves.
RestartPreventExitStatus=2

[Install]
WantedBy=default.target
"""


def crontab(home: str, env: Mapping[str, str]) -> str:
    """A crontab line for a login node."""
    line = _line(home, env).replace("%", "\\%")
    return f"# crontab -e, on a login node\n{line}\n"


def scrontab(home: str, env: Mapping[str, str]) -> str:
    """A scrontab entry: Slurm runs it on a node, one at a time."""
    return f"""\
# scrontab -e; the nodes must see this folder and this Python, and may call sbatch
#SCRON --job-name=ftrun-supervisor --ntasks=1 --cpus-per-task=1 --time=00:30:00 --output=/dev/null
{_line(home, env)}
"""


TEXTS = {"systemd": unit, "cron": crontab, "scrontab": scrontab}
"""What writes the text of each kind: (home, environment) -> text."""


def operator_crontab(home: str, env: Mapping[str, str]) -> str:
    """Crontab lines for root or SlurmUser: recheck, and the operator where no service runs it.

    PATH is this shell's, since rechecks need what a site has put there.
    """
    path = env.get("PATH", os.defpath)
    call = _call(home, {key: value for key, value in env.items() if key in _KEPT[:2]}, path=False, once=False)
    call = call.replace("%", "\\%")
    return (
        f"# crontab -e as root or SlurmUser, on one host that reaches the nodes by SSH\nPATH={path}\n"
        f"*/5 * * * * {call} recheck >>/var/log/ftrun-recheck.log 2>&1\n"
        f"* * * * * {call} operator --once >>/var/log/ftrun-operator.log 2>&1\n"
    )


def _variables(home: str, env: Mapping[str, str], *, path: bool = True) -> list[tuple[str, str]]:
    found = [("FTRUN_HOME", home), *((key, env[key]) for key in _KEPT if env.get(key))]
    if path:
        sbatch = shutil.which("sbatch", path=env.get("PATH"))
        folders = [os.path.dirname(sbatch)] if sbatch else []
        found.append(("PATH", ":".join(dict.fromkeys((*folders, *_PATH)))))
    return found


def _line(home: str, env: Mapping[str, str]) -> str:
    """Every two minutes what is due, told in the supervisor's log; `%` as it is."""
    log = shlex.quote(os.path.join(home, "supervisor.log"))
    return f"*/2 * * * * {_call(home, env)} >>{log} 2>&1"


def _call(home: str, env: Mapping[str, str], *, path: bool = True, once: bool = True) -> str:
    variables = [f"{key}={shlex.quote(value)}" for key, value in _variables(home, env, path=path)]
    words = [sys.executable, *_CALL, "--once"] if once else [sys.executable, *_CALL[:-1]]
    return " ".join([*variables, shlex.join(words)])


def _for_systemd(word: str) -> str:
    """One word as a unit file has it: `%` is doubled, what has spaces or quotes in it is quoted."""
    safe = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{safe}"' if safe != word or set(word) & set(" \t';") else word
