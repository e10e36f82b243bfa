"""Accounting for a sandbox: a MariaDB and a slurmdbd of its own. (I/O)

The database lies in the sandbox's folder, listens on loopback and knows one user with a random password.
It gives up durability for speed: it dies with the sandbox. Every user of the sandbox may charge the
account `sandbox`; its maker is known to it from the start.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from pathlib import Path

from ftrun.slurm.sandbox.boot import find_tool, search_path, start_daemon
from ftrun.slurm.sandbox.plan import Plan, SandboxError

# mariadb-install-db calls my_print_defaults, which is in another package.
TOOLS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "my_print_defaults")
# A new data folder takes 5 s on an idle machine.
WAIT_S = 90.0


def start(plan: Plan) -> None:
    """Make the database, start it and slurmdbd, register the cluster; run before the first slurmctld.
    slurmctld refuses its very first start while slurmdbd is away. SandboxError with the reason when one of
    them does not come up.
    """
    password = secrets.token_hex(16)
    _start_database(plan, password)
    conf = Path(plan.folder) / "slurmdbd.conf"
    # slurmdbd looks for this file beside SLURM_CONF and refuses it when others may read it.
    with open(os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(_slurmdbd_conf(plan, password))
    log = f"{plan.folder}/log/slurmdbd.log"
    start_daemon(plan, [find_tool("slurmdbd")], log)
    _wait_port(plan.slurmdbd_port, "slurmdbd", log)
    for words in (
        ("add", "cluster", plan.cluster),
        ("add", "account", "sandbox", "Description=sandbox", "Organization=sandbox"),
        ("add", "user", plan.user, "Account=sandbox"),
    ):
        _sacctmgr(plan, *words)


def _start_database(plan: Plan, password: str) -> None:
    data, log = f"{plan.run_dir}/mysql", f"{plan.folder}/log/mariadb.log"
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as said:
        done = subprocess.run(
            [find_tool("mariadb-install-db"), "--no-defaults", *as_root, f"--datadir={data}", "--skip-test-db",
             "--auth-root-authentication-method=normal", "--innodb-log-file-size=16M"],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False, timeout=WAIT_S,
            env={"PATH": search_path(), "HOME": plan.folder}, umask=0o077,
        )  # fmt: skip
    if done.returncode:
        raise SandboxError(f"mariadb-install-db did not make a database (log: {log})")
    grants = Path(plan.run_dir) / "run" / "mariadb.sql"
    with open(os.open(grants, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(
            f"CREATE OR REPLACE USER 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            "GRANT ALL ON *.* TO 'slurm'@'127.0.0.1';\n"
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';\n"
        )
    start_daemon(
        plan,
        [find_tool("mariadbd"), "--no-defaults", *as_root, f"--datadir={data}", f"--init-file={grants}",
         "--bind-address=127.0.0.1", f"--port={plan.database_port}", f"--socket={plan.run_dir}/run/mysql.sock",
         f"--pid-file={plan.run_dir}/run/mariadbd.pid", f"--log-error={log}", "--skip-name-resolve",
         "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900"],
        log,
        detach=True,
    )  # fmt: skip
    _wait_port(plan.database_port, "mariadbd", log)


def _slurmdbd_conf(plan: Plan, password: str) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={plan.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={plan.slurmdbd_port}
SlurmUser={plan.user}
LogFile={plan.folder}/log/slurmdbd.log
PidFile={plan.run_dir}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={plan.database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""


def _sacctmgr(plan: Plan, *words: str) -> None:
    done = subprocess.run(
        [find_tool("sacctmgr"), "--immediate", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=WAIT_S, env={"PATH": search_path(), "SLURM_CONF": plan.slurm_conf_path},
    )  # fmt: skip
    if done.returncode:
        raise SandboxError(f"sacctmgr {' '.join(words)}: {' '.join((done.stderr or done.stdout).split())}")


def _wait_port(port: int, daemon: str, log: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise SandboxError(f"{daemon} does not answer after {WAIT_S:g} s (log: {log})") from None
            time.sleep(0.05)
