"""A private Slurm on a user's own hosts: its plan, and slurm.conf from it. (pure)

All that `ftrun cluster up` decides stands in the plan, which is written before the first effect: who was killed half-way goes on
from it. `folder` lies on the local disk of each host and has the same path on all of them, because slurm.conf is one text for all.

A node is called as its host calls itself, so that training scripts, which meet at the name of the first node, find it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from ftrun.slurm.cluster.conf import common_settings, slurm_conf_text
from ftrun.slurm.records import dataclass

LOCALHOST = "localhost"
"""How a user names this machine; it is reached without SSH, and cannot be one of several hosts."""
SOCKET_PATH_MAX = 107
"""Bytes of the path of a Unix socket; that of a step is `<spool>/<node>_<job>.<step>`."""
STEP_NAME_LENGTH = len("_4294967295.4294967295")
SHARE_PORT = 3
CRED_EXPIRE_S = 50
"""How long the credential of a launch lives, by the clocks of controller and node; a requeued job waits for as long (slurm.conf(5); by
default 120 s). The survey lets two clocks differ by 20 s, so a slurmd has 30 s to take a launch up: one that needs more is asked again with a
new credential (tried on 22.05: slurmd frozen for 45 s, and dead for 40 s, with a credential of 20 s)."""
SETTINGS = "etc/ftrun.toml"
"""The settings of ftrun that a cluster brings along, below its folder."""
SRUN_PORTS = 200
FIRST_SRUN_PORT = 10
PORT_COUNT = FIRST_SRUN_PORT + SRUN_PORTS


@dataclass(frozen=True, slots=True)
class Host:
    """One host. `name`: as it calls itself, and its node's name; `target`: how SSH calls it; `address`: where the other hosts reach it.

    `topology`: sockets, cores of a socket, threads of a core. `gres`: name -> how many. `kind`: of its accelerators, "" for none.
    """

    name: str
    target: str
    address: str
    cpus: int
    topology: tuple[int, int, int]
    memory_mib: int
    gres: Mapping[str, int] = dataclasses.field(default_factory=dict)
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was decided when a cluster was made.

    `token`: tells this cluster from an earlier one of the same name. `hosts`: the first one runs slurmctld. `version`: Slurm's (major,
    minor). `bound`: each host resolves its own name to its address, so its daemons listen on that address alone. `programs`: host -> name
    of a program of Slurm or munge -> its path. `subreaper`: the hosts on which a step can adopt the orphans of its tasks.
    `bundles`: host -> name of the bundle of Slurm that it uses; empty where all use an installed one.
    `shared`: the folder that all hosts see and in which runs are kept, "" for the user's home; `share`: the same where it is the head
    host's own and the others mount it. `fence_command`, `repair_commands`: as the settings say (`docs/settings.md`), "" and () for none.
    `backup`: the name of the host whose slurmctld takes over from the first one's, "" for none; then `state` is the folder, seen by both, in
    which they keep theirs.
    `leaving`: hosts that are being removed: no longer in slurm.conf, and there may still be something on them. `kept_by`: host -> who starts
    what is dead on it, by itself: systemd, cron, or "" for nobody.
    """

    name: str
    token: str
    user: str
    uid: int
    folder: str
    base_port: int
    version: tuple[int, int]
    bound: bool
    hosts: tuple[Host, ...]
    programs: Mapping[str, Mapping[str, str]]
    subreaper: tuple[str, ...]
    slurmd_timeout_s: int = 60
    bundles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shared: str = ""
    share: str = ""
    fence_command: str = ""
    repair_commands: tuple[str, ...] = ()
    backup: str = ""
    state: str = ""
    leaving: tuple[Host, ...] = ()
    kept_by: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def everywhere(self) -> tuple[Host, ...]:
        """All hosts on which something of the cluster may be."""
        return (*self.hosts, *self.leaving)

    @property
    def unkept(self) -> tuple[Host, ...]:
        """The hosts that do not come back by themselves after a reboot."""
        return tuple(host for host in self.hosts if not self.kept_by.get(host.name))

    @property
    def head(self) -> Host:
        """The host of slurmctld."""
        return self.hosts[0]

    @property
    def controllers(self) -> tuple[Host, ...]:
        """The hosts of slurmctld: the first one is in control as long as it lives."""
        return (self.head, *(host for host in self.hosts if host.name == self.backup))

    @property
    def slurm_conf_path(self) -> str:
        """The path of slurm.conf on each host."""
        return f"{self.folder}/etc/slurm.conf"

    @property
    def munge_socket(self) -> str:
        """The path of munged's socket on each host."""
        return f"{self.folder}/munge/munge.sock"

    def bundle_folder(self, name: str) -> str:
        """The path of a bundle on the hosts that use it: beside the clusters of this user."""
        return f"{self.folder.rpartition('/')[0]}/{name}"

    @property
    def slurmctld_port(self) -> int:
        """The port of slurmctld."""
        return self.base_port

    @property
    def slurmd_port(self) -> int:
        """The port of slurmd on each host."""
        return self.base_port + 1

    @property
    def share_port(self) -> int:
        """The port of the sshd that serves `share`, on the head host."""
        return self.base_port + SHARE_PORT

    @property
    def srun_ports(self) -> tuple[int, int]:
        """The first and the last port on which an srun listens."""
        return self.base_port + FIRST_SRUN_PORT, self.base_port + PORT_COUNT - 1

    def to_json(self) -> str:
        """The text of cluster.json."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan in a cluster.json. Raises ValueError where it is none."""
        try:
            fields = json.loads(text)
            known = {field.name for field in dataclasses.fields(Plan)}
            fields = {key: value for key, value in fields.items() if key in known}
            hosts, leaving = (
                tuple(Host(**{**row, "topology": tuple(row["topology"])}) for row in rows)
                for rows in (fields.pop("hosts"), fields.pop("leaving", ()))
            )
            version = (int(fields["version"][0]), int(fields["version"][1]))
            subreaper = tuple(fields["subreaper"])
            fields["repair_commands"] = tuple(fields.get("repair_commands", ()))
            return Plan(
                **{**fields, "hosts": hosts, "leaving": leaving, "version": version, "subreaper": subreaper}
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"no plan of a cluster: {error}") from error


def longest_socket_path(folder: str, names: tuple[str, ...]) -> int:
    """The length of the longest path of a step's socket below `folder`, in bytes."""
    return len(f"{folder}/spool/") + max(map(len, names), default=0) + STEP_NAME_LENGTH


def slurm_conf(plan: Plan) -> str:
    """The text of slurm.conf, the same for all hosts."""
    first, last = plan.srun_ports
    settings = common_settings(f"ftrun-{plan.name}", plan.user, plan.munge_socket) | {
        "SlurmctldPort": str(plan.slurmctld_port),
        "SlurmdPort": str(plan.slurmd_port),
        "SrunPortRange": f"{first}-{last}",
        "StateSaveLocation": plan.state or f"{plan.folder}/state",
        "SlurmdSpoolDir": f"{plan.folder}/spool",
        "SlurmctldPidFile": f"{plan.folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{plan.folder}/run/slurmd.pid",
        "SlurmctldLogFile": f"{plan.folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{plan.folder}/log/slurmd.log",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": str(plan.slurmd_timeout_s),
        "MessageTimeout": "10",
        "AuthInfo": f"socket={plan.munge_socket},cred_expire={CRED_EXPIRE_S}",
    }
    if plan.bundles:  # a link, so that hosts of several architectures have one text
        settings["PluginDir"] = f"{plan.folder}/etc/plugins"
    if plan.bound:
        settings["CommunicationParameters"] = "NoInAddrAny,NoCtldInAddrAny"
    gres = sorted({name for host in plan.hosts for name in host.gres})
    if gres:
        settings["GresTypes"] = ",".join(gres)
    controllers = [f"SlurmctldHost={host.name}({host.address})" for host in plan.controllers]
    return slurm_conf_text(settings, map(_node, plan.hosts), [*controllers, *_partitions(plan)])


def _node(host: Host) -> dict[str, str]:
    row = {"NodeName": host.name, "NodeAddr": host.address, "CPUs": str(host.cpus)}
    sockets, cores, threads = host.topology
    if sockets * cores * threads == host.cpus:
        row |= {"Sockets": str(sockets), "CoresPerSocket": str(cores), "ThreadsPerCore": str(threads)}
    row["RealMemory"] = str(host.memory_mib)
    if host.kind:
        row["Feature"] = host.kind
    if host.gres:
        row["Gres"] = ",".join(f"{name}:{count}" for name, count in sorted(host.gres.items()))
    return row | {"State": "UNKNOWN"}


def _partitions(plan: Plan) -> list[str]:
    """One for all hosts, and one for each kind of accelerator where there are several."""
    lines = ["PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"]
    kinds = sorted({host.kind for host in plan.hosts if host.kind})
    if len({host.kind for host in plan.hosts}) > 1:
        for kind in kinds:
            names = ",".join(host.name for host in plan.hosts if host.kind == kind)
            lines.append(f"PartitionName={kind} Nodes={names} MaxTime=INFINITE State=UP")
    return lines
