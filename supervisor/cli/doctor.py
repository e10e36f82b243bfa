"""`ftrun doctor`: what this site lets ftrun do, and what is in its way. (I/O)

Each check asks one question and yields a `Finding`: ok, warn (works, but not as well as it could) or bad
(recovery will not work), and how to mend it. Nothing is changed. Questions that only a node can answer (does
it see the run folder and the interpreter, how far is its clock off, which facts can the node monitor see) are
asked there by a short `srun`, and only with `--nodes`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, NamedTuple

from ftrun.hooks.health import node_monitor
from ftrun.hooks.runtime import mounts
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.ownership import RUNNER
from ftrun.slurm.client import releases
from ftrun.slurm.client.cluster import Cluster
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, option
from ftrun.supervisor.store import node_tools
from ftrun.supervisor.submission import start_supervisor


def doctor(
    nodes: Annotated[bool, option("--nodes", "Also check a node, by short srun steps.")] = False,
    units: Annotated[
        bool, option("--units", "Print only a systemd user unit, a crontab line and a scrontab entry.")
    ] = False,
    cron: Annotated[
        bool,
        option("--cron", "Print only the crontab of the site's service; `ftrun site unit` prints more."),
    ] = False,
    accelerators: Annotated[
        bool,
        option(
            "--accelerators",
            "Only run the checks of this machine's accelerators; they read, and change nothing.",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Check this site: Slurm, rights, folders, life after logout. Exit 1 if recovery would not work."""
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.cli import supervise

    home = common.home()
    env = dict(os.environ)
    if cron:
        lines = supervise.site_crontab(home, env)
        if json:
            common.print_json({"crontab": lines})
        else:
            print(lines, end="")
        return 0
    if units:
        made = [make(home, env) for make in (supervise.unit, supervise.crontab, supervise.scrontab)]
        if json:
            common.print_json(dict(zip(("unit", "crontab", "scrontab"), made, strict=True)))
        else:
            print("\n".join(made), end="")
        return 0
    if accelerators:
        return print_findings(list(examine_accelerators()), json=json)
    return print_findings(list(examine(home, CommandCluster(env, timeout_s=15), env, nodes=nodes)), json=json)


def print_findings(findings: list[Finding], *, json: bool) -> int:
    """Show them as a table or as JSON; 1 if one is bad."""
    bad = any(finding.state == "bad" for finding in findings)
    if json:
        common.print_json({"ok": not bad, "findings": [asdict(finding) for finding in findings]})
    else:
        common.print_table(
            ["CHECK", "", "WHAT", "HOW TO MEND"],
            [[f.check, f.state, f.what, f.mend if f.state != "ok" else None] for f in findings],
        )
    return 1 if bad else 0


ANSWER_WITHIN_S = 60.0
LOG = "log"
KERNEL_LOG = "kernel log"
NODE_SIDE = 'for p in /usr/bin/python3 python3; do "$p" -IS -c "$@" && echo "${SLURMD_NODENAME:-a node}" && exit; done'


class MonitorCapability(NamedTuple):
    """One family of facts: whether any of it can be seen, which, and what would show more."""

    family: str
    seen: bool
    what: str
    mend: str = ""


def visible_on_node(home: str, env: Mapping[str, str]) -> tuple[str, Mapping[str, list[str]]] | None:
    """The name of an idle node and what can be seen there, by one short srun; None if none answers."""
    try:
        words = (RUNNER, node_tools.install_node_tools(home), "watch", "--visible")
        told, node = _on_a_node(NODE_SIDE, words, env).stdout.splitlines()[:2]
        found = json.loads(told)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return (node, found) if isinstance(found, dict) else None


def _on_a_node(script: str, words: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A line of sh with these arguments on an idle node. Raises OSError, TimeoutExpired."""
    srun = ("srun", "--immediate=30", "-N1", "-n1", "--time=1", "--quiet", "/bin/sh", "-c", script, "sh")
    return subprocess.run(
        (*srun, *words), capture_output=True, text=True, timeout=ANSWER_WITHIN_S, env=env, check=False
    )


def capabilities(found: Mapping[str, list[str]]) -> Iterator[MonitorCapability]:
    """One `Sight` for each family. (pure)"""
    for family, checks in found.items():
        names = ", ".join(name for name in checks if name != LOG)
        if family == KERNEL_LOG and LOG not in checks:
            mend = "kernel.dmesg_restrict=0, or users in the group systemd-journal: then Xids and machine checks are seen within a minute"
            yield MonitorCapability(family, False, f"closed to users; without it: {names or 'nothing'}", mend)
        else:
            yield MonitorCapability(family, bool(names), names or "nothing of this kind here")


ACCELERATOR_FILES = ("nvidia", "nvidia_driver", "nvlink", "amd", "npu")
"""The files of hooks/checks whose checks are of accelerators."""
NOT_PROVEN = (
    "no accelerator has been tried with ftrun yet: these checks rest on documents and on outputs of others"
)


def examine_accelerators() -> Iterator[Finding]:
    """What the node checks say of the accelerators of this machine, and how far these checks are proven."""
    from ftrun.hooks.checks import catalogue, runner
    from ftrun.hooks.runtime.finding import BAD, OK, SKIPPED, worst

    chosen = [check for check in catalogue.checks() if check.file in ACCELERATOR_FILES]
    reports = runner.run(chosen, budget_s=runner.BUDGETS_S["fast"])
    asked = [report for report in reports if worst(report.findings) != SKIPPED]
    for report in asked:
        severity = worst(report.findings)
        state = {OK: "ok", BAD: "bad"}.get(severity, "warn")
        for one in report.findings:
            yield Finding(report.check, state, f"{one.device}: {one.message}" if one.device else one.message)
    if not asked:
        yield Finding("accelerators", "ok", "none on this machine")
    yield Finding(
        "proof", "warn", NOT_PROVEN, "make gpu-proofs on a machine with a GPU (docs/accelerators.md)"
    )


CLOCK_SKEW_MAX_S = 5.0
MIN_JOB_AGE_S = 60.0
# File systems that nodes do not share. All others are assumed to be shared; --nodes proves it.
LOCAL_TYPES = frozenset({"tmpfs", "ext4", "ext3", "xfs", "btrfs", "overlay", "zfs"})


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check. `state` is ok, warn or bad; `mend` says what to do if it is not ok."""

    check: str
    state: str
    what: str
    mend: str = ""


def examine(home: str, cluster: Cluster, env: dict[str, str], *, nodes: bool) -> Iterator[Finding]:
    """Run every check in turn and yield its findings."""
    yield _commands(env)
    yield from _second_slurm("here", _clients_here(env))
    yield from _slurm(cluster)
    yield _client(env)
    yield from _site_service(env, cluster)
    yield _folder(home)
    seen = list(_from_a_node(home, env)) if nodes else []
    if Finding(FOLDER_SEEN, "ok", "") not in [Finding(one.check, one.state, "") for one in seen]:
        yield _shared(home, cluster)
    yield _logout()
    yield from _supervisor(home)
    yield _known_faults()
    yield from _capability_findings("here", node_monitor.checks_by_family())
    yield from seen
    if nodes:
        told = visible_on_node(home, env)
        if told is not None:
            yield from _capability_findings(*told)


def _commands(env: dict[str, str]) -> Finding:
    names = ("sbatch", "squeue", "scontrol", "sinfo", "scancel")
    missing = ", ".join(name for name in names if shutil.which(name, path=env.get("PATH")) is None)
    if not missing:
        return Finding("Slurm's commands", "ok", "all found")
    mend = "load Slurm's client commands (module load slurm)"
    return Finding("Slurm's commands", "bad", f"not found: {missing}", mend)


_CLIENT_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/slurm/bin")


def _clients_here(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """(folder, release) of each Slurm whose clients are on this machine; that which PATH finds first stands first."""
    folders = [*env.get("PATH", os.defpath).split(":"), *_CLIENT_FOLDERS]
    files = {os.path.realpath(f"{folder}/scontrol"): folder for folder in reversed(folders) if folder}
    found = [(folder, file) for file, folder in reversed(files.items()) if os.access(file, os.X_OK)]
    return [(folder, _output([f"{folder}/scontrol", "--version"]).strip()) for folder, _ in found]


def _second_slurm(where: str, found: list[tuple[str, str]]) -> Iterator[Finding]:
    """A warning where the clients of two releases are on one machine: one of them cannot speak with this controller."""
    if len({release for _, release in found}) > 1:
        yield Finding(
            f"a second Slurm {where}",
            "warn",
            ", ".join(f"{release or 'of unknown release'} in {folder}" for folder, release in found),
            "ftrun asks by the clients beside the sbatch that submitted; put their folder first in PATH for what scripts call",
        )


def _slurm(cluster: Cluster) -> Iterator[Finding]:
    try:
        facts = cluster.facts()
        rights = cluster.rights()
    except SlurmError as error:
        yield Finding(
            "slurmctld",
            "bad",
            error.message,
            "run it where sinfo answers; no Slurm here: ftrun sandbox up (to try), ftrun cluster (your own hosts)",
        )
        return
    major, minor, micro = facts.version
    version = f"{major}.{minor:02}.{micro}"
    if facts.version[:2] < releases.OLDEST:
        oldest = releases.release_text(releases.OLDEST)
        yield Finding("Slurm's release", "bad", version, f"{oldest} is the oldest that was tested")
    else:
        yield Finding("Slurm's release", "ok", f"{version}, cluster {facts.name}")
    if rights.may_drain:
        yield Finding("draining", "ok", rights.why)
    else:
        yield Finding(
            "draining", "warn", rights.why, "bad nodes are avoided by your runs, but not drained for others"
        )
    if facts.tracking == "proctrack/pgid":
        yield Finding(
            "ProctrackType",
            "warn",
            "proctrack/pgid: Slurm kills one process group, and a script under ftrun leads one of its own",
            "ProctrackType=proctrack/cgroup (or linuxproc); until then a cancelled job's processes may stay behind",
        )
    if facts.min_job_age_s < MIN_JOB_AGE_S:
        yield Finding(
            "MinJobAge",
            "warn",
            f"{facts.min_job_age_s:.0f} s: an ended job is forgotten before its exit code is read",
            "MinJobAge=300 in slurm.conf; until then the exit record of the job itself is used",
        )


def _client(env: dict[str, str]) -> Finding:
    """The client by which the supervisor would ask Slurm; pyslurm is tried with a query."""
    from ftrun.supervisor.config import sources
    from ftrun.supervisor.submission import cluster_client

    return Finding("asking Slurm", *cluster_client.examine_client(sources.load(os.getcwd(), env), env))


def _site_service(env: dict[str, str], cluster: Cluster) -> Iterator[Finding]:
    """If the site has a service: can requests be signed and left there?"""
    from ftrun.supervisor.config import sources

    if path := sources.load(os.getcwd(), env).text("site-spool"):
        yield from site_findings(env, path, cluster)


def site_findings(env: Mapping[str, str], path: str, cluster: Cluster) -> Iterator[Finding]:
    """What users' supervisors need of the site's service: a spool, and munge where the cluster has it."""
    from ftrun.supervisor.nodes import spool

    check, mend = (
        "site's service",
        "the administrator starts `ftrun site`: it makes the folder (docs/site.md)",
    )
    if not path:
        mend = "ftrun site unit prints the settings for /etc/ftrun/config.toml"
        yield Finding(check, "bad", "no site-spool is set: users' supervisors find no service", mend)
        return
    try:
        signed = cluster.facts().auth == "auth/munge"
    except SlurmError:
        signed = True  # what Slurm lacks is told elsewhere
    if signed and shutil.which("munge", path=env.get("PATH")) is None:
        yield Finding(
            check, "warn", "munge was not found: requests cannot be signed", "install munge's commands"
        )
        return
    try:
        owner = spool.spool_owner(path)
        if os.access(path, os.W_OK | os.X_OK):
            yield Finding(check, "ok", f"requests are left in {path} for user {owner}")
        else:
            yield Finding(check, "warn", f"{path} cannot be written", mend)
    except OSError as error:
        yield Finding(check, "warn", f"{path}: {error.strerror}", mend)


def _folder(home: str) -> Finding:
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        probe = os.path.join(home, f".doctor-{os.getpid()}")
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, b"x" * 4096)
        os.fsync(fd)
        os.close(fd)
        os.unlink(probe)
    except OSError as error:
        mend = "set `home` in ~/.config/ftrun/config.toml, or FTRUN_HOME"
        return Finding("run folder", "bad", f"{home}: {error.strerror}", mend)
    mode = os.stat(home).st_mode & 0o777
    if mode & 0o077:
        return Finding(
            "run folder", "warn", f"{home} can be read by others (mode {mode:o})", f"chmod 700 {home}"
        )
    return Finding("run folder", "ok", home)


def _shared(home: str, cluster: Cluster) -> Finding:
    kind = file_system(home)
    try:
        here_only = len(cluster.nodes()) <= 1
    except SlurmError:
        here_only = False
    if kind in LOCAL_TYPES and not here_only:
        mend = "ask a node: ftrun doctor --nodes; or set `home` to a folder that all nodes see"
        what = f"{home} lies on {kind}, which nodes usually do not share"
        return Finding("shared folder", "warn", what, mend)
    return Finding("shared folder", "ok", f"{home} lies on {kind or 'an unknown file system'}")


def file_system(path: str) -> str:
    """The type of the file system on which a path lies; "" if it is not known."""
    try:
        found = mounts.mount_of(mounts.mounted(Machine()), path)
    except NoAnswer:
        return ""
    return found.kind if found is not None else ""


def _logout() -> Finding:
    check = "life after logout"
    loginctl = shutil.which("loginctl")
    if loginctl is None:
        return Finding(check, "ok", "no logind: processes outlive the session")
    shown = _output([loginctl, "show-user", str(os.getuid()), "--property=Linger", "--value"])
    if shown.strip() == "yes":
        return Finding(check, "ok", "linger is on")
    kill = _output([loginctl, "show-session", "self", "--property=KillUserProcesses", "--value"]).strip()
    if kill == "yes" or start_supervisor.dies_at_logout():
        mend = "loginctl enable-linger, and the unit of: ftrun doctor --units; or the crontab line of it"
        return Finding(check, "bad", "logind ends all processes at logout, the supervisor too", mend)
    return Finding(check, "ok", "logind leaves processes alone at logout")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _supervisor(home: str) -> Iterator[Finding]:
    watch = common.supervisor_state(home)
    if not watch.watched:
        yield Finding("supervisor", "ok", "none is running; the next ftrun sbatch starts one")
        return
    yield Finding("supervisor", "ok", f"alive on {watch.by}")
    for name, why in watch.not_published.items():
        yield Finding(
            "published",
            "warn",
            f"{name}: {why}",
            "no run suffers from it; supervisor.log in the home says more",
        )


def _known_faults() -> Finding:
    """The patterns of known faults: compiled now where they never were."""
    from ftrun.supervisor.signatures.scanner import Scanner

    began_s = time.monotonic()
    catalog = common.load_catalog()
    with suppress(ImportError):
        Scanner(catalog, engine="hyperscan")
    took_s = time.monotonic() - began_s
    return Finding("known faults", "ok", f"{len(catalog.signatures):,} patterns, ready after {took_s:.1f} s")


def _capability_findings(where: str, found: Mapping[str, list[str]]) -> Iterator[Finding]:
    """What the node monitor can see on one machine; hardware that is not there is no fault of the site."""
    for sight in capabilities(found):
        state = "warn" if sight.mend else "ok"
        yield Finding(f"seen {where}: {sight.family}", state, sight.what, sight.mend)


FOLDER_SEEN = "folder seen from a node"
# -P: a folder `ftrun` in the current directory is not this program.
_NODE_PROBE = 'test -w "$1" && echo folder; "$2" -P -c "import ftrun.hooks" 2>/dev/null && echo python; IFS=:; for d in $PATH $3; do c=$(readlink -f "$d/scontrol") && [ -x "$c" ] && echo "slurm $c $d $("$c" --version)"; done; date +%s.%N; hostname'


def _from_a_node(home: str, env: dict[str, str]) -> Iterator[Finding]:
    """By one srun on one node: does it see the folder and the interpreter, and what time is it there?"""
    python, started = sys.executable, time.time()
    check, later = "a node's view", "try again when a node is idle"
    try:
        result = _on_a_node(_NODE_PROBE, (home, python, ":".join(_CLIENT_FOLDERS)), env)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding(check, "warn", f"srun did not answer: {type(error).__name__}", later)
        return
    told = [line for line in result.stdout.splitlines() if line.startswith("slurm ")]
    lines = [word for line in result.stdout.splitlines() if line not in told for word in line.split()]
    if result.returncode or len(lines) < 2:
        yield Finding(check, "warn", f"srun failed: {result.stderr.strip()[:200]}", later)
        return
    host, stamp = lines[-1], lines[-2]
    skew_s = max(started - float(stamp), float(stamp) - time.time(), 0.0)
    for check, holds, otherwise, what, mend in (
        (FOLDER_SEEN, "folder" in lines, "bad", f"{home} on {host}", "set `home` to a folder on a file system that the nodes see"),
        ("interpreter seen from a node", "python" in lines, "warn", f"{python} on {host}", "install ftrun where nodes see it; attempts start all the same, but without checks and agent on the nodes"),
        ("clock of a node", skew_s <= CLOCK_SKEW_MAX_S, "warn", f"{host}: {skew_s:.1f} s off", "chrony on the nodes; times in reports are off"),
    ):  # fmt: skip
        yield Finding(check, "ok" if holds else otherwise, what, "" if holds else mend)
    clients = {
        file: (folder, release)
        for _, file, folder, release in (line.split(" ", 3) for line in reversed(told))
    }
    yield from _second_slurm("on a node", list(reversed(clients.values())))
