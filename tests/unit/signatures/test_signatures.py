"""The catalog proves itself, and refuses what cannot be proven. (I/O)"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.diagnosis.class_defaults import UNSURE, Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.inputs import read_attempt_files
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import FaultClass, Role, Topology
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures import selftest
from ftrun.supervisor.signatures.catalog import CatalogError
from ftrun.supervisor.signatures.scanner import Scanner

ROW = {
    "id": "site-disk",
    "title": "The site's disk",
    "class": "storage",
    "layer": "storage",
    "priority": 50,
    "pattern": "site disk gone",
    "examples": ["site disk gone"],
}


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., str]:
    """Write one signature (`ROW`, changed as asked) into a folder of its own and return the folder."""

    def write(**changes: object) -> str:
        row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
        lines = [f"{key} = {json.dumps(value)}" for key, value in row.items()]
        (tmp_path / "site.toml").write_text("[[signature]]\n" + "\n".join(lines) + "\n")
        return str(tmp_path)

    return write


def test_every_signature_proves_itself() -> None:
    """Each matches its examples and none of its counter-examples, and hyperscan takes its pattern."""
    assert [] == selftest.catalog_errors(signatures_catalog.load())


def test_every_signature_has_an_example_a_counter_example_and_a_source() -> None:
    """A claim without proof is not in the catalog."""
    bare = [
        s.id
        for s in signatures_catalog.load().signatures
        if not (s.examples and s.counter_examples and s.fact)
    ]

    assert [] == bare


def test_every_class_of_fault_has_a_cause() -> None:
    """There is no class that no line can lead to, but `unknown`."""
    causes = {s.fault for s in signatures_catalog.load().signatures if s.role in {Role.CAUSE, Role.EITHER}}

    assert set(FaultClass) - {FaultClass.UNKNOWN} <= causes


def test_an_example_is_spoken_for_by_its_own_signature() -> None:
    """On the line that a signature gives as its example no other signature takes the word."""
    catalog = signatures_catalog.load()
    rows = [(one.id, text) for one in catalog.signatures for text in one.examples]
    scanner = Scanner(catalog)
    hits = scanner.feed("".join(f"{text}\n" for _, text in rows).encode())
    said = {hit.line: hit.signature for hit in hits}
    # A number that has a signature of its own speaks for itself.
    coded = {one.id for one in catalog.signatures if one.table}
    taken = [
        (name, said.get(line), text)
        for line, (name, text) in enumerate(rows, start=1)
        if said.get(line) != name
        and not (name in coded and said.get(line, "").startswith(tuple(catalog.tables)))
    ]

    assert [] == taken


def test_a_site_changes_and_silences_what_there_is(tmp_path: Path) -> None:
    """What a site knows better stands in a file of its own; an id that nobody has is refused."""
    (tmp_path / "site.toml").write_text(
        'silence = ["python-exception", "ascend-80e01801"]\n[[change]]\nid = "cuda-ecc"\nadvice = "Call 4711."\n'
    )
    known = signatures_catalog.load([str(tmp_path)])
    names = {one.id for one in known.signatures}

    assert "Call 4711." == known.by_id["cuda-ecc"].advice
    assert not {"python-exception", "ascend-80e01801"} & (names | set(known.by_id))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "site.toml").write_text('silence = ["nobody"]\n')
    with pytest.raises(CatalogError, match="no signature nobody to silence"):
        signatures_catalog.load([str(tmp_path / "other")])


def test_the_kept_catalog_is_the_one_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from the cache file equals what the files say; a damaged cache file costs time only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    read = signatures_catalog._load.__wrapped__(())
    (kept,) = (tmp_path / "ftrun").glob("catalog-*")

    assert read.signatures == signatures_catalog._load.__wrapped__(()).signatures
    kept.write_bytes(kept.read_bytes()[:-100])
    again = signatures_catalog._load.__wrapped__(())
    assert read.signatures == again.signatures
    assert dict(read.tables["ascend"].codes) == dict(again.tables["ascend"].codes)


def test_what_retries_and_what_stops_agree_with_the_class() -> None:
    """A fault that another try cannot mend is never marked for one."""
    final = {
        FaultClass.USER_CODE,
        FaultClass.DATA,
        FaultClass.CONFIG,
        FaultClass.OOM_GPU,
        FaultClass.CANCELLED,
    }
    wrong = [
        s.id
        for s in signatures_catalog.load().signatures
        if s.fault in final and s.retry and s.role is Role.CAUSE and s.id != "slurm-step-task-failure"
    ]

    assert [] == wrong


OF_MEMORY = re.compile(
    r"mem(?:ory)?\b|memory|MemoryError|OOM|oom[_-]|alloc|object store|shm|heap|PROC_MEM", re.IGNORECASE
)


def test_no_kill_is_a_lack_of_memory_by_itself() -> None:
    """`oom-host` needs the word of the kernel, the cgroup, Slurm or the program; a guess of it is marked as one, and tried again."""
    of_memory = [s for s in signatures_catalog.load().signatures if s.fault is FaultClass.OOM_HOST]
    mute = [s for s in of_memory if not all(OF_MEMORY.search(text) for text in s.examples)]

    assert [(s.id, s.retry, s.confidence < UNSURE) for s in mute] == [("oom-host-loader-killed", True, True)]


@pytest.mark.parametrize(
    "line",
    [
        "Killed",
        "slurm_script: line 41: 81234 Killed                  python train.py",
        "failed (exitcode: -9) local_rank: 3 (pid: 811) of binary: /usr/bin/python",
        "Process exited with exit code 137",
        "mpirun noticed that process rank 3 with PID 4711 on node n07 exited on signal 9 (Killed).",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
        "",
    ],
)
@pytest.mark.parametrize(
    ("witness", "state", "expected"),
    [
        ("", "FAILED", FaultClass.UNKNOWN),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=81.0.", "FAILED", FaultClass.OOM_HOST),
        ("Memory cgroup out of memory: Killed process 8123 (python)", "FAILED", FaultClass.OOM_HOST),
        ("", "OUT_OF_MEMORY", FaultClass.OOM_HOST),
    ],
)
def test_a_kill_is_for_memory_where_somebody_says_so(
    tmp_path: Path, line: str, witness: str, state: str, expected: FaultClass
) -> None:
    """Signal 9 and a lone "Killed" are unknown, and worth another try; with the word of the kernel or of Slurm it is memory, and no try."""
    log = tmp_path / "job.out"
    log.write_text(f"{line}\n{witness}\n")
    seen = read_attempt_files([str(log)]).report.evidence

    found = diagnose(
        Facts(seen, Topology(), ended=Ended(state, exit_code=137), catalog=signatures_catalog.load())
    )

    assert (found.fault, found.retry) == (expected, expected is FaultClass.UNKNOWN)


def test_a_last_step_of_another_rank_makes_no_guess_of_what_the_exit_confirms(tmp_path: Path) -> None:
    """A rank is killed for memory, another prints one more step, the script ends by signal 9: that is no handled line."""
    log = tmp_path / "job.out"
    log.write_text("step 1 loss 2\nMemory cgroup out of memory: Killed process 812 (python)\nstep 2 loss 2\n")
    report = read_attempt_files([str(log)]).report
    found = {
        code: diagnose(
            Facts(
                report.evidence,
                Topology(),
                ended=Ended("FAILED", exit_code=code),
                catalog=signatures_catalog.load(),
                progress=report.progress,
            )
        ).confidence
        for code in (1, 137)
    }

    assert found[1] < UNSURE < found[137]


def test_only_nodes_devices_and_links_are_excluded() -> None:
    """A fault of the job or the cluster costs no node."""
    wrong = [
        s.id
        for s in signatures_catalog.load().signatures
        if s.exclude and s.blame not in {"node", "device", "link"}
    ]

    assert [] == wrong


def test_a_site_adds_signatures_of_its_own(site: Callable[..., str]) -> None:
    """A folder given to `load` stands beside ours, and changes the digest."""
    ours, both = signatures_catalog.load(), signatures_catalog.load([site()])

    assert len(both.signatures) == len(ours.signatures) + 1
    assert "site-disk" in both.by_id
    assert ours.digest != both.digest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": "cuda-ecc"}, "given twice"),
        ({"id": "Site_Disk"}, "lower-case"),
        ({"class": "disk"}, "is none of"),
        ({"pattern": "(?=x)y"}, "look-around"),
        ({"pattern": r"(a)\1"}, "back-reference"),
        ({"pattern": "gone.*"}, "open end"),
        ({"pattern": "(gone"}, "unterminated"),
        ({"pattern": "x?"}, "empty line"),
        ({"pattern": "(?P<gpu>gone)"}, "names 'gpu'"),
        ({"priority": None}, "'priority' is missing"),
        ({"confidence": 2}, "between 0 and 1"),
        ({"retry": "no"}, "true or false"),
        ({"examples": ["two\nlines"]}, "single lines"),
        ({"colour": "red"}, "unknown key"),
    ],
)
def test_a_wrong_signature_is_refused_in_one_line(
    site: Callable[..., str],
    changes: dict[str, object],
    reason: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names the file and what is wrong; it is the same beside one file of ours as beside all of them."""
    folder = site(**changes)
    ours = tmp_path_factory.mktemp("ours")
    shutil.copy(signatures_catalog._FOLDER / "cuda.toml", ours)
    monkeypatch.setattr(signatures_catalog, "_FOLDER", ours)

    with pytest.raises(signatures_catalog.CatalogError, match=re.escape(reason)) as caught:
        signatures_catalog.load([folder])

    assert "\n" not in str(caught.value)
    assert "site.toml" in str(caught.value)


def test_check_finds_a_signature_that_fails_its_own_proof(site: Callable[..., str]) -> None:
    """An example that does not match and a counter-example that does are two complaints."""
    both = signatures_catalog.load(
        [site(examples=["all is well"], counter_examples=["site disk gone again"])]
    )
    own = replace(both, signatures=(both.by_id["site-disk"],), tables={})

    wrong = selftest.catalog_errors(own)

    assert [
        "site-disk: does not match its example 'all is well'",
        "site-disk: matches its counter-example 'site disk gone again'",
    ] == wrong


def test_the_command_checks_lists_and_tests(
    site: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`catalog` sees the folders of FTRUN_CATALOG, and a wrong signature makes `check` exit 1."""
    monkeypatch.setenv("FTRUN_CATALOG", site(examples=["nothing"]))
    log = tmp_path / "job.log"
    log.write_text("step 1\nsite disk gone\n")

    assert 1 == main(["catalog", "check"])
    assert "site-disk: does not match" in capsys.readouterr().err
    assert 0 == main(["catalog", "test", str(log), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ("site-disk", 2) == (found["signature"], found["line"])
    assert 2 == main(["catalog", "show", "no-such"])
