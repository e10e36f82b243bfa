"""Laws of the variables that are set for the user's libraries: nothing is shortened, nothing of the user's is replaced. (pure)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftrun.hooks.ranks.rank_wrapper import rename_recorder
from ftrun.supervisor.submission import library_env


def test_no_time_out_is_lowered() -> None:
    """What is set records and names files; no name of a time-out is among it."""
    names = [one.name for one in library_env.COLLECTIVES]

    assert len(names) == len(set(names))
    assert [] == [name for name in names if re.search(r"TIMEOUT(?!$)|TIMEOUT_SEC|BLOCKING|HEARTBEAT", name)]
    assert ["TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_HCCL_DUMP_ON_TIMEOUT"] == [
        name for name in names if name.endswith("TIMEOUT")
    ]


@pytest.mark.parametrize("one", [*library_env.COLLECTIVES, *library_env.CACHES], ids=lambda one: one.name)
def test_every_variable_has_a_source_and_a_reason(one: library_env.Export) -> None:
    """Whatever is set."""
    assert "." in one.source or one.name.startswith("FTRUN_")
    assert len(one.why) > 20


def test_the_lines_for_batch_sh_can_be_read_by_a_shell() -> None:
    """Names and their aliases, one sign, a value without anything that a shell would read."""
    for line in library_env.export_lines(library_env.COLLECTIVES, "auto").splitlines():
        assert re.fullmatch(r"[A-Z_]+(,[A-Z_]+)*=[\w{}/]+", line)
    assert "" == library_env.export_lines(library_env.COLLECTIVES, "never")


def test_what_is_left_is_not_set() -> None:
    """The page names what is left alone, with a source and a reason; nothing of it is set."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "timeouts.md").read_text()
    rows = page.partition("ftrun leaves these alone:")[2].partition("\n\n**")[0].strip().splitlines()[2:]
    left = [row.strip("| ").split(" | ") for row in rows]

    assert len(left) >= 7
    for names, why, source in left:
        assert len(why) > 10
        assert "." in source
        assert not set(re.findall(r"[A-Z_]{5,}", names)) & {one.name for one in library_env.COLLECTIVES}


@pytest.mark.parametrize(
    ("release", "own", "wanted"),
    [("2.13.0+cpu", {}, "FR"), ("2.7.1", {}, "NCCL"), ("", {}, "NCCL"), ("2.13.0", {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/x_"}, "NCCL")],
)  # fmt: skip
def test_a_rank_hears_the_names_that_its_torch_knows(
    tmp_path: Path, release: str, own: dict[str, str], wanted: str
) -> None:
    """A newer Torch warns of the older names in each rank. Without a Torch to be seen, and for what the user set, nothing changes."""
    for folder in ("bin", f"lib/python3.11/site-packages/torch-{release}.dist-info" if release else "lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin" / "python").touch(mode=0o755)
    set_by_ftrun = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/run/1/stacks/0.1/nccl_trace_rank_",
        "FTRUN_ATTEMPT_DIR": "/run/1",
        "PATH": f"/nowhere:{tmp_path}/bin",
    }
    env = {key.encode(): value.encode() for key, value in {**set_by_ftrun, **own}.items()}
    rename_recorder(env, "python")

    assert (b"TORCH_FR_BUFFER_SIZE" in env, b"TORCH_FR_DUMP_TEMP_FILE" in env) == (wanted == "FR",) * 2
    assert 2 == sum(name.endswith((b"BUFFER_SIZE", b"TEMP_FILE")) for name in env)
