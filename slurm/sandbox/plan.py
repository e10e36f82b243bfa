"""What a sandbox is made of, and the text of its configuration files. (pure)

A sandbox is one folder. Everything in it follows from a `Plan`: the ports, the addresses, the files of
configuration. The plan is written to `sandbox.json` before the first daemon starts, so a sandbox whose
maker was killed half-way can still be understood and taken down.

Facts the texts rest on (seen on Slurm 22.05 to 26.05):
- slurmd binds 0.0.0.0, so every node needs a port of its own although the addresses differ;
- a Slurm built without --enable-multiple-slurmd (SchedMD's own packages) refuses two nodes with one NodeHostname,
  and its slurmds refuse a credential that their munged has seen: each needs a munged of its own.
Those on which every Slurm of ftrun's own rests are in `slurm.cluster.conf`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import PurePath

from ftrun.slurm.cluster.conf import (
    FORBIDDEN_IN_PATHS,
    common_settings,
    gres_conf_text,
    slurm_conf_text,
)
from ftrun.slurm.records import dataclass

# Stepd sockets are `<spool>/<node>/<node>_<job>.<step>` and a Unix socket's path ends at 107 bytes.
RUN_DIR_LENGTH_MAX = 56
NODES_MAX = 1000


class SandboxError(Exception):
    """A sandbox could not do what was asked; one line: what is wrong and how to mend it. `wrong_usage` is
    True where the caller or the machine lacks something (exit 2 on the command line).
    """

    def __init__(self, message: str, *, wrong_usage: bool = False) -> None:
        super().__init__(message)
        self.wrong_usage = wrong_usage


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was decided when the sandbox was made. `run_dir` holds sockets, keys and spools:
    `folder` itself, or a short folder in the temporary folder where `folder` is too long for Unix sockets.
    `version` is Slurm's (major, minor). `gpu_files` is the File= expression of gres.conf ("" without GPUs);
    `gpu_numbered` tells whether jobs see CUDA_VISIBLE_DEVICES. `uts`: nodes have host names of their own;
    `hosts`: they can resolve them; `marked`: every node lives in a UTS namespace of its own, named or not.
    `shm_mib`: every node has a /dev/shm of its own, so large (0: that of the machine). `topology`: the text of
    topology.conf, of switches or of blocks ("": no topology). `multiple_slurmd`:
    this Slurm allows several slurmds on one host; where it does not, each node has a host name and a munged
    of its own. Ports: slurmctld `base_port`, then one per slurmd, then one per sshd, then two for
    accounting.
    """

    name: str
    folder: str
    run_dir: str
    user: str
    host: str
    node_count: int
    base_port: int
    version: tuple[int, int]
    gpus: int = 0
    gpu_files: str = ""
    gpu_numbered: bool = True
    ssh: bool = False
    accounting: bool = False
    shm_mib: int = 0
    topology: str = ""
    uts: bool = True
    hosts: bool = True
    multiple_slurmd: bool = True
    marked: bool = True
    uts_refused: str = ""
    slurmd_timeout_s: int = 10
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def node_names(self) -> tuple[str, ...]:
        """n0, n1, ... in order."""
        return tuple(f"n{i}" for i in range(self.node_count))

    @property
    def slurm_conf_path(self) -> str:
        """The path every daemon is started with and every client finds in SLURM_CONF."""
        return f"{self.folder}/slurm.conf"

    @property
    def hosts_path(self) -> str:
        """What stands in the place of /etc/hosts for the daemons and jobs."""
        return f"{self.folder}/hosts"

    @property
    def munge_socket(self) -> str:
        """The socket of munged under the name that all daemons and clients know."""
        return f"{self.munged_folders['munged']}/munge.sock"

    @property
    def munged_folders(self) -> dict[str, str]:
        """Name of each munged -> its socket's folder, which a node sees in the sandbox's place."""
        names = ["munged", *(f"munged-{node}" for node in self.node_names if not self.multiple_slurmd)]
        return {name: f"{self.run_dir}/{name.replace('munged', 'munge')}" for name in names}

    @property
    def port_count(self) -> int:
        """How many consecutive ports from `base_port` belong to the sandbox."""
        return 1 + 2 * self.node_count + 2

    def address(self, node: str) -> str:
        """The loopback address of a node: 127.0.1.1 for n0, 127.0.1.2 for n1, ..."""
        index = self.index(node)
        return f"127.0.{1 + index // 250}.{1 + index % 250}"

    def index(self, node: str) -> int:
        """Position of a node's name; SandboxError when there is no such node."""
        try:
            return self.node_names.index(node)
        except ValueError:
            last = self.node_names[-1]
            raise SandboxError(
                f"no node {node!r} in this sandbox: it has n0 to {last}", wrong_usage=True
            ) from None

    def slurmd_port(self, node: str) -> int:
        """The TCP port of a node's slurmd."""
        return self.base_port + 1 + self.index(node)

    def sshd_port(self, node: str) -> int:
        """The TCP port of a node's sshd."""
        return self.base_port + 1 + self.node_count + self.index(node)

    @property
    def slurmdbd_port(self) -> int:
        """The TCP port of slurmdbd."""
        return self.base_port + 1 + 2 * self.node_count

    @property
    def database_port(self) -> int:
        """The TCP port of the accounting database."""
        return self.slurmdbd_port + 1

    @property
    def cluster(self) -> str:
        """Slurm's ClusterName."""
        return f"sandbox{self.base_port}"

    def slurmd_log(self, node: str) -> str:
        """The log file of a node's slurmd and of its job steps; also how a job step is told apart."""
        return f"{self.folder}/log/slurmd-{node}.log"

    def sshd_pid_path(self, node: str) -> str:
        """The file in which a node's sshd writes its pid as soon as it listens."""
        return f"{self.run_dir}/run/sshd-{node}.pid"

    def sshd_config_path(self, node: str) -> str:
        """The configuration file a node's sshd is started with."""
        return f"{self.folder}/ssh/sshd-{node}.conf"

    def to_json(self) -> str:
        """The text of sandbox.json."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan in a sandbox.json; SandboxError where it is none."""
        try:
            fields = json.loads(text)
            known = {field.name for field in dataclasses.fields(Plan)}
            fields = {key: value for key, value in fields.items() if key in known}
            fields["version"] = (int(fields["version"][0]), int(fields["version"][1]))
            return Plan(**fields)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise SandboxError(f"sandbox.json is not readable ({error}): remove the folder") from error


def usable_folder(folder: PurePath) -> None:
    """Raise SandboxError where slurm.conf could not hold the folder's path."""
    if any(character in str(folder) for character in FORBIDDEN_IN_PATHS):
        raise SandboxError(
            f"slurm.conf cannot hold the path {str(folder)!r}: choose a folder without spaces or # % , =",
            wrong_usage=True,
        )


def slurm_conf(plan: Plan) -> str:
    """The text of slurm.conf: the sandbox's settings, overridden by `plan.conf`. In `plan.conf` an empty
    value drops a default. `PartitionName` and `NodeSet` add lines to the default partition `main`; a value of
    several lines gives several entries.
    """
    settings = _settings(plan)
    extra: list[str] = []
    for key, value in plan.conf.items():
        if key in ("PartitionName", "NodeSet"):
            extra += [f"{key}={line}" for line in value.splitlines() if line.strip()]
        elif value:
            settings[key] = value
        else:
            settings.pop(key, None)
    partition = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    return slurm_conf_text(settings, (_node(plan, node) for node in plan.node_names), [partition, *extra])


def _node(plan: Plan, node: str) -> dict[str, str]:
    return {
        "NodeName": node,
        "NodeHostname": plan.host if plan.multiple_slurmd else node,
        "NodeAddr": plan.address(node),
        "Port": str(plan.slurmd_port(node)),
        "CPUs": "16",
        "RealMemory": "64000",
        "Feature": "sandbox",
        **({"Gres": f"gpu:{plan.gpus}"} if plan.gpus else {}),
        "State": "UNKNOWN",
    }


def _settings(plan: Plan) -> dict[str, str]:
    settings = common_settings(plan.cluster, plan.user, plan.munge_socket) | {
        "SlurmctldHost": f"{plan.host}(127.0.0.1)",
        "SlurmctldPort": str(plan.base_port),
        # A requeued job may not start before its old credential expired: 120 s unless told otherwise.
        "AuthInfo": f"socket={plan.munge_socket},cred_expire=5",
        "StateSaveLocation": f"{plan.run_dir}/state",
        "SlurmdSpoolDir": f"{plan.run_dir}/spool/%n",
        "SlurmctldPidFile": f"{plan.run_dir}/run/slurmctld.pid",
        "SlurmdPidFile": f"{plan.run_dir}/run/slurmd-%n.pid",
        "SlurmctldLogFile": f"{plan.folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{plan.folder}/log/slurmd-%n.log",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": str(plan.slurmd_timeout_s),
        # slurmctld takes no node's answer while it waits for a dead one's, which lasts some MessageTimeouts.
        # A SlurmdTimeout below three of them lets healthy nodes go down with the dead (seen on 24.11 in 40 %
        # of crashes with 6 and 5, never with 10 and 3). With these a crashed node is down after 17 s.
        "MessageTimeout": "3",
        "KillWait": "2",
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
    }
    if plan.gpus:
        settings["GresTypes"] = "gpu"
    if plan.topology:
        kind = "block" if "BlockName=" in plan.topology else "tree"
        settings["TopologyPlugin"] = f"topology/{kind}"
    if plan.accounting:
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(plan.slurmdbd_port),
            # Without it clients ask the system's munge, which has another key.
            "AccountingStoragePass": plan.munge_socket,
            "AccountingStoreFlags": "job_comment",
        }
    return settings


def gres_conf(plan: Plan) -> str:
    """The text of gres.conf; empty without GPUs."""
    return gres_conf_text({"gpu": plan.gpu_files} if plan.gpus else {})


def hosts_file(plan: Plan, machine: str) -> str:
    """The text of the sandbox's /etc/hosts: the machine's own, and the nodes before it."""
    return "".join(f"{plan.address(node)} {node}\n" for node in plan.node_names) + machine
