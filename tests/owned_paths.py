"""Every path that ftrun writes, reads or runs: owner, largest mode, and what checks it before use. (pure)

One table, and tests check it. One walks all files that the commands created, under every umask: each must
match a row and have no more than its mode. Another tries each row that other users could have put there
first. A new path without a row fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

OWN, SHARED = "below a folder of the user's own", "a place that others write to"


class Row(NamedTuple):
    """One kind of path.

    `where`: starts with a root ({home}, {tmp}, {cache-base}, {stage-dir}, {sandbox}); * matches within a
    name, ** anything below as well. `mode`: the most it may have; folders of `**` also get the right to
    enter. `use`: "run", "read" or "write" by ftrun. `lies`: who else could have put something there. `asked`:
    the function that checks owner and mode, "" if the folder above is checked.
    """

    name: str
    where: str
    mode: int
    use: str
    lies: str = OWN
    asked: str = ""


ROWS = (
    Row("home", "{home}", 0o755, "read", SHARED, "store.foreign_home"),
    Row("node side", "{home}/tools/ftrun-hook-*.pyz", 0o700, "run", OWN, "ownership.RUNNER"),
    Row("compiled node side", "{home}/tools/ftrun-hook-*.pyz.*", 0o600, "run", OWN, "compiled.load"),
    Row("link to the node side", "{home}/tools/ftrun-hook.pyz", 0o777, "run", OWN, "ownership.RUNNER"),
    Row("tools", "{home}/tools", 0o700, "run", OWN, "ownership.RUNNER"),
    Row("a node's answers to a command", "{home}/tools/p*-*/**", 0o700, "read"),
    Row("runs", "{home}/runs", 0o700, "read"),
    Row("run", "{home}/runs/*", 0o700, "read"),
    Row("submission", "{home}/runs/*/submit/**", 0o600, "run"),
    Row("journal", "{home}/runs/*/journal/**", 0o600, "read"),
    Row("requests", "{home}/runs/*/requests/**", 0o600, "read"),
    Row("attempts", "{home}/runs/*/attempts", 0o700, "read"),
    Row("attempt", "{home}/runs/*/attempts/*", 0o700, "read"),
    Row("submitted file", "{home}/runs/*/attempts/*/submitted/**", 0o600, "run"),
    Row("records of an attempt", "{home}/runs/*/attempts/*/**", 0o600, "read"),
    Row("packs of caches", "{home}/runs/*/caches/**", 0o600, "read"),
    Row("commands of the user's", "{home}/runs/*/hooks/**", 0o600, "read"),
    Row("divergences", "{home}/runs/*/diverged/**", 0o600, "read"),
    Row("views of checkpoints", "{home}/runs/*/views/**", 0o600, "read"),
    Row("verdicts on checkpoints", "{home}/runs/*/deep/**", 0o600, "read"),
    Row("a person's words to a run", "{home}/runs/*/save-now", 0o600, "read"),
    Row("index", "{home}/index/**", 0o600, "read"),
    Row("lease", "{home}/lease/**", 0o600, "read"),
    Row("ledger of nodes", "{home}/nodes/**", 0o600, "read"),
    Row("questions to a language model", "{home}/opinions", 0o600, "read"),
    Row("results of checks", "{home}/checks", 0o700, "read"),
    Row("results of a kind of node", "{home}/checks/*", 0o600, "read"),
    Row("supervisor's state", "{home}/supervisor*", 0o600, "read"),
    Row("what was published", "{home}/publish/**", 0o600, "read"),
    Row("rechecks", "{home}/recheck/**", 0o600, "read"),
    Row("journal of the site's service", "{home}/site/**", 0o600, "read"),
    Row(
        "plan, key and journal of a cluster",
        "{home}/cluster/**",
        0o600,
        "run",
        OWN,
        "ownership.why_untrusted",
    ),
    Row("bundles of Slurm", "{home}/bundles/**", 0o600, "run", OWN, "ownership.why_untrusted"),
    Row("a bundle in the making", "{tmp}/ftrun-bundle-*/**", 0o755, "run", SHARED, "made anew"),
    Row("claim on a host", "{var-tmp}/ftrun-cluster.claim", 0o777, "read", SHARED, "cluster.choice.changes"),
    Row(
        "a user's clusters on a host",
        "{var-tmp}/ftrun-<uid>",
        0o755,
        "run",
        SHARED,
        "ownership.private_folder",
    ),
    Row("keys and state of a cluster", "{var-tmp}/ftrun-<uid>/*/(key|state)/**", 0o700, "read"),
    Row("keeper of a cluster on a host", "{var-tmp}/ftrun-<uid>/*/keep/**", 0o700, "run"),
    Row("socket of a cluster's munged", "{var-tmp}/ftrun-<uid>/*/munge/munge.sock*", 0o777, "run"),
    Row("cluster on a host", "{var-tmp}/ftrun-<uid>/*/**", 0o755, "run"),
    Row("script's folder", "{tmp}/ftrun.??????/**", 0o700, "run", SHARED, "made anew"),
    Row("what checks ask in common", "{tmp}/ftrun-check-*/**", 0o600, "read", SHARED, "made anew"),
    Row("crash report", "{tmp}/ftrun-crash-*.txt", 0o600, "write", SHARED, "made anew"),
    Row(
        "user's folder for caches",
        "{cache-base}/ftrun-<uid>",
        0o700,
        "run",
        SHARED,
        "compile_cache.node.ensure_private",
    ),
    Row(
        "a run's caches",
        "{cache-base}/ftrun-<uid>/cache-*",
        0o700,
        "run",
        SHARED,
        "compile_cache.node.ensure_private",
    ),
    # By the user's umask: other users cannot get there.
    Row("what frameworks compiled", "{cache-base}/ftrun-<uid>/cache-*/**", 0o777, "run"),
    Row(
        "user's folder for staging",
        "{stage-dir}/ftrun-<uid>",
        0o700,
        "read",
        SHARED,
        "staging.workspace.open_base",
    ),
    Row(
        "a job's staged checkpoints",
        "{stage-dir}/ftrun-<uid>/*.*",
        0o700,
        "read",
        SHARED,
        "staging.workspace.open_base",
    ),
    Row("lock of a user's sandboxes", "{tmp}/ftrun-sandbox-ports.*.lock", 0o600, "write", SHARED, "ports"),
    Row("sockets of a sandbox", "{tmp}/ftrun-sandbox-*", 0o755, "run", SHARED, "made anew"),
    Row("sandbox", "{sandbox}", 0o755, "read", SHARED, "boot.is_foreign"),
    Row("plan of a sandbox", "{sandbox}/sandbox.json", 0o644, "read", SHARED, "boot.is_foreign"),
    Row("keys of a sandbox", "{sandbox}/ssh/**", 0o700, "run", OWN, "boot.is_foreign"),
    Row("user's files of a sandbox", "{sandbox}/shared", 0o1777, "write"),
    Row("settings of a sandbox", "{sandbox}/*.conf", 0o644, "run"),
    Row("names of a sandbox", "{sandbox}/hosts", 0o644, "read"),
    Row("lock of a sandbox", "{sandbox}/.lock", 0o600, "write"),
    Row("prompt of a sandbox", "{sandbox}/bashrc", 0o644, "run"),
    Row("devices of a sandbox", "{sandbox}/dev/gpu*", 0o666, "read"),
    Row("folder of devices", "{sandbox}/dev", 0o755, "read"),
    Row("logs of a sandbox", "{sandbox}/log/**", 0o644, "read"),
    Row("socket of a sandbox", "{sandbox}/munge*/munge.sock*", 0o777, "run"),
    Row("folder of that socket", "{sandbox}/munge*", 0o755, "run"),
    Row("daemons' own files", "{sandbox}/(run|state|spool|mysql)/**", 0o755, "run"),
)
"""The first match counts: specific rows stand first."""


def row_of(path: str, roots: Iterable[tuple[str, str]]) -> Optional[Row]:
    """The row of a path, None without one. `roots`: name of each root, such as "home", and its folder."""
    for name, folder in roots:
        if path == folder or path.startswith(f"{folder}/"):
            short = f"{{{name}}}{path[len(folder) :]}"
            for row in ROWS:
                if _pattern(row.where).fullmatch(short):
                    return row
    return None


def _pattern(where: str) -> re.Pattern[str]:
    parts = re.split(r"(/\*\*|\*|\?|<uid>|\([a-z|]+\))", where)
    meant = {"/**": "(/.*)?", "*": "[^/]*", "?": "[^/]", "<uid>": "[0-9]+"}
    meant |= {part: part for part in parts if part.startswith("(")}
    return re.compile("".join(meant.get(part) or re.escape(part) for part in parts))
