"""One sshd for every node of a sandbox, on the node's own address. (I/O)

`ssh -F FOLDER/ssh/config n0` works without a word about keys or hosts. All nodes share one host key; the
user's key, the known hosts and the client configuration lie in the sandbox's folder.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import cache
from pathlib import Path

from ftrun.slurm.sandbox import boot
from ftrun.slurm.sandbox.boot import find_tool, node_wrapper, start_daemon
from ftrun.slurm.sandbox.plan import Plan, SandboxError

PRIVILEGE_SEPARATION = Path("/run/sshd")
LISTENS_WITHIN_S = 60.0


def prepare(plan: Plan) -> None:
    """Make keys, server configurations and the client configuration."""
    folder = Path(plan.folder) / "ssh"
    boot.make_folder(folder, 0o700)
    for key in ("host_key", "id_ed25519"):
        subprocess.run(
            [
                find_tool("ssh-keygen"),
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                f"ftrun-sandbox-{plan.name}",
                "-f",
                str(folder / key),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            umask=0o077,
        )
    public = (folder / "id_ed25519.pub").read_text()
    # Whoever could write one of these would be whom the sshd lets in: root, where root started it.
    boot.put(folder / "authorized_keys", public, 0o600)
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    hosts = [f"[{plan.address(node)}]:{plan.sshd_port(node)} {host_key}" for node in plan.node_names]
    boot.put(folder / "known_hosts", "\n".join(hosts) + "\n", 0o600)
    for node in plan.node_names:
        boot.make_folder(tools(plan, node), 0o700)
        boot.put(Path(plan.sshd_config_path(node)), _server(plan, node), 0o600)
    boot.put(folder / "config", _client(plan), 0o600)


def tools(plan: Plan, node: str) -> Path:
    """A folder that comes first in PATH of whoever logs in to the node: a tool put there stands in for one of the machine's own."""
    return Path(plan.folder) / "ssh" / f"bin-{node}"


def start(plan: Plan, node: str) -> None:
    """Start the sshd of one node under the node's own host name where the machine allows it; returns when it listens.
    SandboxError where it does not.
    """
    log = f"{plan.folder}/log/sshd-{node}.log"
    command = [find_tool("sshd"), "-f", plan.sshd_config_path(node), "-E", log]
    if os.geteuid() == 0 and not PRIVILEGE_SEPARATION.is_dir():
        command = _with_run_sshd(command)
    pid_file = Path(plan.sshd_pid_path(node))
    pid_file.unlink(missing_ok=True)
    start_daemon(plan, [*node_wrapper(plan, node), *command], log)
    # It goes to the background before it listens, and writes its pid when it does.
    deadline = time.monotonic() + LISTENS_WITHIN_S
    while not pid_file.exists():
        if time.monotonic() > deadline:
            said = boot.last_lines(Path(log), 0)
            raise SandboxError(f"the sshd of {node} does not listen after {LISTENS_WITHIN_S:g} s: {said}")
        time.sleep(0.02)


def _with_run_sshd(command: list[str]) -> list[str]:
    # Root's sshd insists on an empty /run/sshd. We leave the machine as it is and give sshd a /run of its own.
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode:
        # In a chroot or a bare container: make what the package's own service makes at every boot.
        boot.make_folder(PRIVILEGE_SEPARATION)
        return command
    script = 'mount -t tmpfs -o mode=0755 ftrun-sandbox /run && mkdir /run/sshd && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


def _server(plan: Plan, node: str) -> str:
    folder = f"{plan.folder}/ssh"
    # SHLVL: bash takes its first level under sshd for a login by hand and reads the user's ~/.bashrc, which is slow and sets PATH anew.
    return f"""\
ListenAddress {plan.address(node)}
Port {plan.sshd_port(node)}
HostKey {folder}/host_key
PidFile {plan.sshd_pid_path(node)}
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PrintMotd no
UseDNS no
SetEnv SLURM_CONF={plan.slurm_conf_path} PATH={tools(plan, node)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SHLVL=1
Subsystem sftp internal-sftp
{_no_penalties()}"""


@cache
def _no_penalties() -> str:
    """A newer sshd shuts out for a while whom it refused, and all nodes of a sandbox are asked from one address; an older one knows no such word."""
    words = [find_tool("sshd"), "-T", "-f", "/dev/null", "-o", "PerSourcePenalties=no"]
    known = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return "" if b"Bad configuration option" in known.stderr else "PerSourcePenalties no\n"


def _client(plan: Plan) -> str:
    folder = f"{plan.folder}/ssh"
    hosts = "".join(
        f"Host {node}\n  HostName {plan.address(node)}\n  Port {plan.sshd_port(node)}\n"
        for node in plan.node_names
    )
    return f"""\
{hosts}Host *
  User {plan.user}
  IdentityFile {folder}/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  LogLevel ERROR
"""
