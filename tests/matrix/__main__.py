"""`make test-slurm-matrix`: the suites on every Slurm release that ftrun is tried on, each in a root of its own. (I/O)

    python -m tests.matrix [RELEASE...] [--suite NAME...] [--tests PYTEST-ARGUMENTS] [--json FILE]

The releases are those of the table in slurm/client/releases.py; all by default. Exit 1 where a suite fails, 2 where nothing could be tried.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from ftrun.slurm.client.releases import TRIED, release_text
from tests.matrix.root import TREE, Root, RootError, folder, missing

HERE = Path(__file__).resolve().parents[2]
REPORT = "matrix.xml"
SUITE_S_MAX = 1200.0
SIDE_BY_SIDE = 4

SUITES: Mapping[str, str] = {
    "contract": "tests/slurm/test_contract.py tests/slurm/test_commands.py",
    "submission": "tests/slurm/test_sbatch.py tests/slurm/test_dropin.py tests/slurm/test_equivalence.py tests/slurm/test_shapes.py",
    "same-job": "-m drills tests/slurm/test_dropin.py",
    "sandbox": "tests/slurm/test_sandbox.py tests/slurm/test_sandbox_cli.py tests/slurm/test_sandbox_memory.py tests/slurm/test_sandbox_refused.py",
    "inside": "tests/slurm/test_agent.py tests/slurm/test_rank_steps.py tests/slurm/test_starts.py",
    "drills": "tests/slurm/test_drills.py tests/slurm/test_supervisor.py",
}
"""What is run: Slurm as a source and a means, submission, the whole table of submissions, the sandbox itself, the agent in the job, whole recoveries."""


@dataclass(frozen=True)
class Row:
    """What came of one suite on one release. `log` is what it printed; `why` is "" where the suite itself tells."""

    release: str
    suite: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    log: str
    why: str = ""

    @property
    def well(self) -> bool:
        """Something passed and nothing failed."""
        return self.passed > 0 and not self.failed and not self.why


def counted(report: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) by pytest's own report. RootError where there is none."""
    try:
        suite = ET.parse(report).getroot().find("testsuite")
    except (OSError, ET.ParseError) as error:
        raise RootError(f"pytest left no report: {error}") from None
    assert suite is not None
    tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return tests - failed - skipped, failed, skipped


def table(rows: list[Row]) -> str:
    """Release by suite, as a Markdown table."""
    lines = [
        "| release | suite | passed | failed | skipped | seconds | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        verdict = "ok" if row.well else f"**{row.why or 'FAILED'}**"
        lines.append(
            f"| {row.release} | {row.suite} | {row.passed} | {row.failed} | {row.skipped} | {row.seconds:.0f} | {verdict} |"
        )
    return "\n".join(lines)


def on(root: Root, suites: Mapping[str, str], logs: Path) -> Iterator[Row]:
    """Make the root ready and run the suites in it, one after another."""
    release = release_text(root.release)
    log, began = logs / f"{release}-environment.log", time.monotonic()
    try:
        built_s = root.build()
        root.copy_tree(HERE)
        root.prepare(log)
    except RootError as error:
        yield Row(release, "environment", 0, 1, 0, time.monotonic() - began, str(log), str(error))
        return
    print(
        f"{release}: root {built_s:.0f} s, environment {time.monotonic() - began - built_s:.0f} s", flush=True
    )
    for suite, asked in suites.items():
        yield _held(root, suite, asked, logs / f"{release}-{suite}.log")


def _held(root: Root, suite: str, asked: str, log: Path) -> Row:
    report, began = root.path / TREE.lstrip("/") / REPORT, time.monotonic()
    report.unlink(missing_ok=True)
    workers = f"-n {SIDE_BY_SIDE} --dist loadfile"
    command = f"cd {TREE} && .venv/bin/python -m pytest -q -ra -p no:cacheprovider {workers} --junitxml={REPORT} {asked}"
    code = root.run(command, log, limit_s=SUITE_S_MAX)
    told: tuple[int, int, int] = (0, 0, 0)
    why = ""
    try:
        told = counted(report)
    except RootError as error:
        why = f"took longer than {SUITE_S_MAX:.0f} s" if code == 124 else str(error)
    return Row(release_text(root.release), suite, *told, time.monotonic() - began, str(log), why)


def main() -> int:
    """Try the releases that were asked for, print a line for each suite and the table. Returns the exit status."""
    names = [release_text(release) for release, _ in TRIED]
    parser = argparse.ArgumentParser(
        prog="make test-slurm-matrix", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("releases", nargs="*", choices=[*names, []], metavar="RELEASE", help=", ".join(names))
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=[*SUITES], help="only these suites")
    parser.add_argument("--tests", metavar="ARGUMENTS", help="only these, in pytest's words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there, too")
    asked = parser.parse_args()
    if lacking := missing():
        print(f"matrix: {lacking}", file=sys.stderr)
        return 2
    suites = {"asked": asked.tests} if asked.tests else {name: SUITES[name] for name in asked.suite}
    began, logs, rows = time.monotonic(), Path(tempfile.mkdtemp(prefix="ftrun-matrix-")), list[Row]()
    for release, suite in TRIED:
        name = release_text(release)
        root = Root(release, suite, folder() / name)
        if asked.releases and name not in asked.releases:
            continue
        try:
            with root.held():
                for row in on(root, suites, logs):
                    rows.append(row)
                    where = "" if row.well else f", see {row.log}"
                    print(
                        f"{row.release} {row.suite}: {row.passed} passed, {row.failed} failed, {row.skipped} skipped, {row.seconds:.0f} s{where}",
                        flush=True,
                    )
        except RootError as error:
            rows.append(Row(name, "environment", 0, 1, 0, 0.0, "", str(error)))
    print(f"\n{table(rows)}\n\n{time.monotonic() - began:.0f} s; logs: {shlex.quote(str(logs))}")
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(not all(row.well for row in rows))


if __name__ == "__main__":
    sys.exit(main())
