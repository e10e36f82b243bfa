"""`sbatch X` and `ftrun sbatch X` come to the same job on real Slurm, for scripts that we did not write for the purpose.

The table (dropin_rows.py) is submitted twice in one sandbox, everything held, and the records of all jobs are read at once. What may differ is in
DIFFERS_BY_NATURE and in DOCUMENTED, and nowhere else; docs/sbatch.md lists the latter.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftrun.slurm.client.nodeset import expand
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.submission import array_spec, named_nodes, plan
from tests.matrix import spellings
from tests.slurm.callee import Callee
from tests.slurm.dropin_rows import ROWS, Row

pytestmark = pytest.mark.slurm

STRIDE = 8
"""./test takes every eighth row; `make drills` and `make test-slurm-matrix` take all."""

CONF = {
    "Licenses": "solver:8,mesh:4",
    "PartitionName": "short Nodes=n[0-1] MaxTime=60 State=UP",
    "FirstJobId": "700001",  # found in no path by chance
    "MaxArraySize": "100001",
    "PropagateResourceLimits": "ALL",
    "JobAcctGatherType": "jobacct_gather/linux",
}

# Two jobs of the same script differ in these.
DIFFERS_BY_NATURE = ("JobId", "ArrayJobId", "HetJobId", "HetJobIdSet", "SubmitTime", "EligibleTime", "AccrueTime", "LastSchedEval", "Priority", "SLUID")  # fmt: skip
# What ftrun changes and says so: the file that sbatch got, a token at the end of the comment.
DOCUMENTED: Mapping[str, str] = {
    "Command": "names the copy in the run's folder",
    "SubmitLine": "holds the options that ftrun adds, and the copy",
    "Comment": "ends with the run's token",
}
# Refused by both, by ftrun in its own words: a run lives on one cluster.
OWN_WORDS = ("no such cluster",)


FREE_TEXT = "Comment|Command|WorkDir|StdErr|StdIn|StdOut|SubmitLine|Reservation|MailUser|Extra|AdminComment|SystemComment"


@dataclass(frozen=True)
class Came:
    """What came of one submission: streams and status, with what differs by nature replaced, and the job's id."""

    said: tuple[str, str, int]
    job: str


def _normal(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "TIME", text)
    return re.sub(r"(?m)((?<=batch job )\d+|(?<=Job )\d+|^\d+(?=;|$))", "ID", text)


def _came(done: subprocess.CompletedProcess[bytes]) -> Came:
    found = re.search(rb"(?m)^(?:Submitted batch job )?(\d+)(?:;\S+)?(?: on cluster \S+)?$", done.stdout)
    return Came(
        (_normal(done.stdout), _normal(done.stderr), done.returncode),
        found[1].decode() if found and not done.returncode else "",
    )


class Counter:
    """A folder with scripts, and both ways to submit them."""

    def __init__(self, box: Sandbox, folder: Path, ftrun: Callee) -> None:
        self.box, self.folder, self.ftrun = box, folder, ftrun
        (folder / "work" / "sub").mkdir(parents=True)
        self.work = folder / "work"
        (self.work / "vars.env").write_bytes(b"A=1\0B=2\0")
        (self.work / "nodes.txt").write_text("n0  # the first\nn1\n")
        os.chmod(folder, 0o755)
        self.env = {
            **box.env(),
            "FTRUN_HOME": str(folder / "home"),
            "FTRUN_SUPERVISOR": "none",
            "PWD": str(self.work),
        }
        parent = box.run(
            ["sbatch", "-H", "--parsable", "-J", "weekly", "-o", "/dev/null", "--wrap=true"],
            cwd=self.work,
            check=True,
        )
        self.words = {
            "parent": parent.stdout.strip(),
            "folder": str(self.work),
            "node": box.node_names[0],
            "user": "root",
            "cluster": box.plan.cluster,
        }
        box.run(
            [
                "scontrol",
                "create",
                "reservation",
                "ReservationName=maint",
                "StartTime=2037-01-01",
                "Duration=60",
                "Nodes=n0",
                "Users=root",
            ],
            check=True,
        )

    def filled(self, text: str) -> str:
        return functools.reduce(
            lambda done, word: done.replace(f"{{{word}}}", self.words[word]), self.words, text
        )

    def both(self, row: Row) -> tuple[Came, Came]:
        """Plain sbatch first, then ours, on the same file in the same folder."""
        content = self.filled(row.content.decode("latin-1")).encode("latin-1")
        words = [self.filled(word) for word in row.words]
        stdin = b""
        if row.script is None:
            stdin = content if row.text else b""
        else:
            words.append(row.script)
            if row.script == "job.sh":
                (self.work / row.script).write_bytes(content)
        words += row.behind
        env = {**self.env, **row.env}
        plain = subprocess.run(
            ["sbatch", *words], cwd=self.work, env=env, input=stdin, capture_output=True, check=False
        )
        return _came(plain), _came(self.ftrun.sbatch(words, cwd=self.work, env=env, stdin=stdin))


def records(text: str) -> dict[str, list[dict[str, str]]]:
    """The records of `scontrol show job` by the id that sbatch printed: one, or one for each component. Keys as printed, free text included."""
    found: dict[str, list[dict[str, str]]] = {}
    for part in re.split(r"\n\n(?=JobId=)", text.strip()):
        first, *lines = part.split("\n")
        ids, _, name = first.partition(" JobName=")
        fields = {"JobName": name}
        for line in (ids, *lines):
            # What users choose holds blanks and equal signs; each such field has a line of its own.
            lone = re.fullmatch(rf"\s*({FREE_TEXT})=(.*)", line)
            pairs = ["", lone[1], lone[2]] if lone else re.split(r"(?:^|\s+)([A-Z][\w:/]*)=", line)
            fields |= dict(zip(pairs[1::2], pairs[2::2], strict=True))
        found.setdefault(fields.get("ArrayJobId") or fields.get("HetJobId") or fields["JobId"], []).append(
            fields
        )
    return found


def compared(fields: Mapping[str, str], job: str) -> dict[str, str]:
    """A record without what differs by nature and what is documented."""
    kept = {
        key: value
        for key, value in fields.items()
        if key not in DIFFERS_BY_NATURE and (key not in DOCUMENTED or key == "Comment")
    }
    comment = re.sub(r" ?ftrun:\S+$", "", kept.pop("Comment", "").strip())
    if comment:
        kept["Comment"] = comment
    own = fields["JobId"]
    for key in ("StdOut", "StdErr", "StdIn"):
        if key in kept:
            kept[key] = re.sub(rf"(?<!\d)0*(?:{job}|{own})(?!\d)", "ID", kept[key])
    return kept


@dataclass(frozen=True)
class Table:
    """The rows that were tried, what was said of each by both, and the records of all jobs."""

    came: dict[str, tuple[Came, Came]]
    records: dict[str, list[dict[str, str]]]
    home: str


def play(box: Sandbox, folder: Path, rows: tuple[Row, ...]) -> Table:
    """Submit every row both ways, then read all records at once."""
    with Callee() as ftrun:
        counter = Counter(box, folder, ftrun)
        came = {row.name: counter.both(row) for row in rows}
    shown = subprocess.run(["scontrol", "show", "job"], env=box.env(), capture_output=True, check=True).stdout
    return Table(came, records(shown.decode("utf-8", "surrogateescape")), str(folder / "home"))


def differences(table: Table) -> Iterator[str]:
    """What a user could notice, row by row."""
    for name, (plain, ours) in table.came.items():
        if name in OWN_WORDS:
            if not plain.said[2] or not ours.said[2]:
                yield f"{name}: not refused: {plain} {ours}"
            continue
        if plain.said != ours.said:
            yield f"{name}: said\n    {plain.said}\n  but with ftrun\n    {ours.said}"
            continue
        if not plain.job:
            continue
        was = [compared(fields, plain.job) for fields in table.records.get(plain.job, [])]
        now = [compared(fields, ours.job) for fields in table.records.get(ours.job, [])]
        if not all("ftrun:" in fields.get("Comment", "") for fields in table.records.get(ours.job, [])):
            yield f"{name}: a job without a token"
        if was != now or not was:
            told = [
                f"{key}: {a.get(key)} -> {b.get(key)}"
                for a, b in zip(was, now, strict=False)
                for key in sorted({*a, *b})
                if a.get(key) != b.get(key)
            ]
            yield f"{name}: {len(was)} and {len(now)} records; " + "; ".join(told)


def misread(table: Table) -> Iterator[str]:
    """What ftrun makes of the options of a run, where Slurm made something else of them."""
    for name, (_, ours) in table.came.items():
        run_dir = store_run_dir.find_run(table.home, ours.job) if ours.job else None
        if run_dir is not None:
            read, done = what_ftrun_read(run_dir), what_slurm_did(table.records[ours.job])
            if not done["waits for others"]:  # Slurm lets go of a dependency on nothing, sooner or later
                read["waits for others"] = False
            if read != done:
                yield f"{name}: read " + "; ".join(
                    f"{key} {read[key]!r}, is {done[key]!r}" for key in done if read[key] != done[key]
                )


def what_ftrun_read(run_dir: str) -> dict[str, object]:
    """From the kept context, as every later attempt is made from it."""
    kept, given = plan.load_options(run_dir)
    single = kept["shape"] != "het"
    return {
        "name": kept["job_name"],
        "shape": kept["shape"],
        "tasks": array_spec.array_tasks(kept["array"]),
        "requeue": plan.is_requeued(run_dir, otherwise=True),
        "left out": set(named_nodes.excluded_nodes(given, kept["cwd"])) if single else set(),
        "asked for": set(named_nodes.required_nodes(given, kept["cwd"])) if single else set(),
        "waits for others": bool(given.get("dependency")),
    }


def what_slurm_did(found: list[dict[str, str]]) -> dict[str, object]:
    """The same from the records of the job."""
    first = next((fields for fields in found if fields["JobId"] == fields.get("HetJobId")), found[0])
    tasks = {task for fields in found for task in array_spec.array_tasks(fields.get("ArrayTaskId", ""))}
    single = "HetJobId" not in first
    return {
        "name": first["JobName"],
        "shape": "array" if tasks else "single" if single else "het",
        "tasks": tuple(sorted(tasks)),
        "requeue": first["Requeue"] == "1",
        "left out": set(expand(first["ExcNodeList"].replace("(null)", ""))) if single else set(),
        "asked for": set(expand(first["ReqNodeList"].replace("(null)", ""))) if single else set(),
        "waits for others": first["Dependency"] != "(null)",
    }


@pytest.fixture
def tried(make_sandbox: Callable[..., Sandbox], tmp_path: Path) -> Callable[[tuple[Row, ...]], list[str]]:
    """Play rows in a sandbox that has what they ask for."""

    def these(rows: tuple[Row, ...]) -> list[str]:
        table = play(make_sandbox(nodes=4, gpus=2, conf=CONF), tmp_path, rows)
        return [*differences(table), *misread(table)]

    return these


def test_every_eighth_submission_comes_to_the_same_job(tried: Callable[[tuple[Row, ...]], list[str]]) -> None:
    """Every field of `scontrol show job`, both streams and the status; a refusal is refused in the same words. And ftrun reads what sbatch read."""
    told = tried(ROWS[::STRIDE])
    assert not told, "\n".join(told)


@pytest.mark.drills
def test_every_submission_comes_to_the_same_job(tried: Callable[[tuple[Row, ...]], list[str]]) -> None:
    """The same of all of them."""
    told = tried(ROWS)
    assert not told, "\n".join(told)


def test_the_table_has_rows_enough_and_each_its_name() -> None:
    """More than a hundred scripts and command lines."""
    assert len(ROWS) > 150
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_kept_spellings_are_those_of_the_installed_sbatch(slurm_sandbox: Sandbox) -> None:
    """What its help and its manual page name stands in the list that the laws of spellings go through."""
    answers = [slurm_sandbox.run(["sbatch", word], check=True).stdout for word in ("--version", "--help")]
    major, minor = answers[0].split()[-1].split(".")[:2]
    kept_file = Path(__file__).parents[1] / "data" / "sbatch" / f"{major}.{minor}.txt"
    if not kept_file.exists():
        pytest.skip(f"no list for Slurm {major}.{minor}: tests/matrix/spellings.py writes one")
    listed = {one.name for one in spellings.kept(kept_file)}

    assert {*spellings.in_help(answers[1])} <= listed
    if page := spellings.manual_page():  # images of containers often leave manual pages out
        assert {*spellings.in_man(page), *spellings.in_help(answers[1])} == listed
