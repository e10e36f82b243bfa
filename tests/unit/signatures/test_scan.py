"""The scanner: any chunks, either engine, the same hits. (I/O)"""

from __future__ import annotations

import os
import resource
import stat
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures import prefilter
from ftrun.supervisor.signatures import scanner as signatures_scanner
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.signatures.scanner import Hit, Scanner, clean

CATALOG = signatures_catalog.load()
ECC = b"[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
ENGINES = ["hyperscan", "re"]
_FEW = [one for one in CATALOG.signatures if one.id == "cuda-ecc" or one.table] + list(
    CATALOG.signatures[::30]
)
SMALL = replace(CATALOG, signatures=tuple({one.id: one for one in _FEW}.values()))
"""A few of every kind: what is said of catalogs in general is tried with it, in a fraction of the time."""

pytest.importorskip("hyperscan")


@pytest.fixture(scope="module", autouse=True)
def _cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> object:
    """Keep the tests out of the user's own cache; the whole catalog is compiled once an edition, not once a run, where pytest keeps a cache."""
    kept: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    folder = kept.mkdir("ftrun-scan") if kept else tmp_path_factory.mktemp("scan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield


def _scan(chunks: list[bytes], engine: str, catalog: Catalog = CATALOG) -> list[Hit]:
    scanner = Scanner(catalog, engine=engine)
    hits = [hit for chunk in chunks for hit in scanner.feed(chunk)]
    return hits + scanner.flush()


def _logs(catalog: Catalog) -> st.SearchStrategy[bytes]:
    """Lines of a catalog and lines of none, in every way to end a line."""
    lines = st.one_of(
        st.sampled_from(
            [text.encode() for s in catalog.signatures for text in s.examples + s.counter_examples]
        ),
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"\x1b[31m" + ECC + b"\x1b[0m",
                b" 40%|####  | 4/10\r 50%|##### | 5/10",
                b"CUDA\x00 error: out of memory",
            ]
        ),
    )
    ends = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b""])
    return st.lists(st.tuples(lines, ends).map(b"".join), max_size=30).map(b"".join)


_CUTS = st.lists(st.integers(0, 4000), max_size=12)


def _same(log: bytes, cuts: list[int], catalog: Catalog) -> None:
    edges = sorted({0, len(log), *(cut for cut in cuts if cut < len(log))})
    pieces = [log[a:b] for a, b in pairwise(edges)]

    whole = _scan([log], "re", catalog)

    assert whole == _scan(pieces, "re", catalog)
    assert whole == _scan(pieces, "hyperscan", catalog)


@settings(max_examples=80, deadline=None)
@given(log=_logs(SMALL), cuts=_CUTS)
def test_neither_chunks_nor_the_engine_change_the_hits(log: bytes, cuts: list[int]) -> None:
    """The same bytes give the same hits, whole or in pieces, by hyperscan or by literals."""
    _same(log, cuts, SMALL)


@settings(max_examples=10, deadline=None)
@given(log=_logs(CATALOG), cuts=_CUTS)
def test_nor_do_they_with_the_whole_catalog(log: bytes, cuts: list[int]) -> None:
    """The same of all signatures together."""
    _same(log, cuts, CATALOG)


@settings(max_examples=10, deadline=None)
@given(
    log=_logs(SMALL),
    overlong=st.integers(signatures_scanner.SEGMENT_BYTES - 2, 2 * signatures_scanner.SEGMENT_BYTES + 2),
    cuts=_CUTS,
)
def test_nor_do_they_where_lines_are_too_long_or_blocks_full(
    log: bytes, overlong: int, cuts: list[int]
) -> None:
    """The same where a line is cut, and in text of several blocks."""
    filler = b"step 1 loss 2.5\n" * (signatures_scanner.BLOCK_BYTES // 16)
    _same(log + b"x" * overlong + b"\n" + log + filler + log, [*cuts, *(cut * 70 for cut in cuts)], SMALL)


def test_every_example_is_found_by_both_engines() -> None:
    """All examples of the catalog in one file: a hit on each line."""
    log = b"".join(text.encode() + b"\n" for s in CATALOG.signatures for text in s.examples)

    fast = _scan([log], "hyperscan")

    assert log.count(b"\n") == len({hit.line for hit in fast})
    assert fast == _scan([log], "re")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "line",
    [
        ECC,
        b"0: " + ECC,
        b"[1,13]<stderr>:" + ECC,
        b"(Worker pid=81, ip=10.0.0.7) " + ECC,
        b"2026-01-01T00:00:00.123Z gpu1 " + ECC,
        b"\x1b[1;31mRuntimeError\x1b[0m: CUDA error: \x1b[1muncorrectable\x1b[0m ECC error encountered",
        b" 12%|#2   | 120/1000 [00:10<01:10]\r 13%|#3   | 130/1000 " + ECC,
        b"\xff\xfe broken \xc3( " + ECC,
        "".join(f"{c}\0" for c in ECC.decode()).encode(),
        ECC + b"\r",
    ],
    ids=["plain", "srun", "mpi", "ray", "stamp", "colour", "bar", "utf8", "nul", "crlf"],
)
def test_a_line_is_known_whatever_stands_before_it(line: bytes, engine: str) -> None:
    """Prefixes of launchers, time stamps, colours, progress bars and broken text hide nothing."""
    hits = _scan([b"first\n" + line + b"\nlast\n"], engine)

    assert [("cuda-ecc", 2)] == [(hit.signature, hit.line) for hit in hits]
    assert "\x1b" not in hits[0].text
    assert "\0" not in hits[0].text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hit_says_where_it_was(engine: str) -> None:
    """Line counts newlines, the offset is that of the segment in the stream, captures are text."""
    bar = b"10%\r20%\r"
    log = b"a\n" + bar + b"srun: error: Node failure on gpu012\n"

    (hit,) = _scan([log], engine)

    assert (2, 2 + len(bar)) == (hit.line, hit.offset_bytes)
    assert {"host": "gpu012"} == hit.captures
    assert "srun: error: Node failure on gpu012" == hit.text


def test_one_voice_for_each_line() -> None:
    """Of all signatures that match, the one with the highest priority speaks."""
    (hit,) = _scan([b"RuntimeError: NCCL communicator was aborted on rank 1.\n"], "hyperscan")

    assert "torchrun-closing-echo" == hit.signature


def test_a_last_line_without_newline_waits_for_flush() -> None:
    """What may still grow is not judged; flush says that it will not."""
    scanner = Scanner(CATALOG)

    assert [] == scanner.feed(ECC)
    assert (0, len(ECC)) == (scanner.position.lines, scanner.position.size_bytes)
    assert ["cuda-ecc"] == [hit.signature for hit in scanner.flush()]
    assert [] == scanner.flush()


def test_a_line_of_one_gib_costs_bounded_memory() -> None:
    """A progress bar without end, or a binary file: memory stays, and what comes after it is still found."""
    scanner = Scanner(CATALOG)
    chunk = b"x" * (1 << 22)
    scanner.feed(chunk)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(255):
        scanner.feed(chunk)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    (hit,) = scanner.feed(b"\n" + ECC + b"\n")

    assert (2, (1 << 30) + 1) == (hit.line, hit.offset_bytes)
    assert grown_kib < 32 * 1024


def test_a_long_line_is_quoted_around_its_match() -> None:
    """The text of a hit has at most 2,000 characters, and the match is among them."""
    (hit,) = _scan([b"x " * 10_000 + ECC + b" y" * 10_000 + b"\n"], "hyperscan")

    assert len(hit.text) <= signatures_scanner.TEXT_CHARS
    assert ECC.decode() in hit.text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_longer_than_a_segment_is_cut_the_same_way_in_any_chunks(engine: str) -> None:
    """The cut depends on where the line began, not on how its bytes arrived."""
    log = b"z" * (signatures_scanner.SEGMENT_BYTES + 17) + b" " + ECC + b"\n" + ECC + b"\n"

    whole = _scan([log], engine)

    assert [1, 2] == [hit.line for hit in whole]
    assert whole == _scan([log[at : at + 1000] for at in range(0, len(log), 1000)], engine)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"\x1b[32mok\x1b[0m", "ok"),
        (b"10%\r20%\r", "20%"),
        (b"a\0b\r\n", "ab"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"\x1b]0;title\x07text", "text"),
        (b"", ""),
    ],
)
def test_clean_is_what_a_person_sees(line: bytes, seen: str) -> None:
    """No terminal codes, no NUL, the last state of a progress bar."""
    assert seen == clean(line)


def test_the_compiled_catalog_is_kept_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first scanner writes the cache, 0700 the folder and 0600 the file; the next process reads it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prefilter._hyperscan_sieve.cache_clear()

    first = Scanner(SMALL, engine="hyperscan").feed(ECC + b"\n")
    (file,) = (tmp_path / "ftrun").iterdir()
    prefilter._hyperscan_sieve.cache_clear()
    monkeypatch.setattr(prefilter, "_database", lambda *_: pytest.fail("compiled again"))

    assert first == Scanner(SMALL, engine="hyperscan").feed(ECC + b"\n")
    assert (0o700, 0o600) == tuple(stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file))


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_scanner_of_a_user_does_not_wait_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Meanwhile, and where it fails, the literals find the same; what it made is there for the next process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prefilter._hyperscan_sieve.cache_clear()
    may_end, database = threading.Event(), prefilter._database

    def slow(module: Any, patterns: Sequence[str]) -> Any:
        assert may_end.wait(60)
        if fails:
            raise module.error("no memory")
        return database(module, patterns)

    monkeypatch.setattr(prefilter, "_database", slow)
    scanner = Scanner(SMALL)
    before = scanner.feed(ECC + b"\n")
    pending = scanner._sieve
    assert isinstance(pending, prefilter.PendingPrefilter)
    may_end.set()
    pending.compiler.join(60)

    assert ["cuda-ecc"] == [hit.signature for hit in before]
    assert before == Scanner(SMALL).feed(ECC + b"\n")
    assert fails is not isinstance(pending._present, prefilter.HyperscanPrefilter)
    assert fails is not any(tmp_path.glob("ftrun/*"))
    prefilter._hyperscan_sieve.cache_clear()


@pytest.mark.parametrize("spoil", ["garbage", "truncated", "writable", "link", "folder"])
def test_a_cache_that_cannot_be_trusted_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """Broken, cut, writable by others or a link: compiled anew, and the hits are the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prefilter._hyperscan_sieve.cache_clear()
    Scanner(SMALL, engine="hyperscan")
    prefilter._hyperscan_sieve.cache_clear()
    (file,) = (tmp_path / "ftrun").iterdir()
    if spoil == "garbage":
        file.write_bytes(os.urandom(4096))
    elif spoil == "truncated":
        file.write_bytes(file.read_bytes()[:1000])
    elif spoil == "writable":
        file.chmod(0o666)
    elif spoil == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        file.parent.chmod(0o777)
    compiled = []
    real = prefilter._database

    def counted(*given: Any) -> Any:
        compiled.append(1)
        return real(*given)

    monkeypatch.setattr(prefilter, "_database", counted)

    hits = Scanner(SMALL, engine="hyperscan").feed(ECC + b"\n")

    assert ["cuda-ecc"] == [hit.signature for hit in hits]
    assert [1] == compiled


def test_without_hyperscan_the_literals_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hyperscan is not installed `auto` scans all the same; asked for by name, it is an error."""
    monkeypatch.setitem(sys.modules, "hyperscan", None)

    assert ["cuda-ecc"] == [hit.signature for hit in Scanner(SMALL).feed(ECC + b"\n")]
    with pytest.raises(ImportError):
        Scanner(SMALL, engine="hyperscan")
    with pytest.raises(ValueError, match="no engine"):
        Scanner(SMALL, engine="grep")
