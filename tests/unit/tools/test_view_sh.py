"""batch.sh and a checkpoint that lies in the memory of the nodes: the agent's word goes before every choice on disk."""

from __future__ import annotations

from tests.unit.bundle.test_batch_sh import Attempt, attempt, wait_for
from tests.unit.bundle.test_starts_sh import COUNT, inside, plan

__all__ = ["attempt", "inside"]

TELLS = 'echo "$FTRUN_RESUME_FROM $FTRUN_RESUME_STEP $FTRUN_RESUME_ROOT $*"\nexit 3\n'


def test_a_start_is_led_to_the_view_that_all_nodes_have(inside: Attempt) -> None:
    """Nobody looks at what is on disk; the records name the checkpoint that it stands for, and the script the folder of links."""
    (inside.folder / "c").mkdir()
    (inside.folder / "c" / "step_90.pt").write_bytes(b"newer, and not asked for")
    inside.values |= {
        "checkpoint_glob": "c/*",
        "resume_arg": "--load={checkpoint}\n--at={step}\n--dir={checkpoint_root}",
    }
    plan(
        inside,
        "again|nodes=a,b|fault=network|view=/dev/shm/x/views/0.2/step_20|from=/p/step_20|step=20",
        "again|nodes=a,b|fault=network",
        "end",
    )
    code, out, _ = inside.run(COUNT + TELLS)
    assert code == 3
    first, second, third = (line for line in out.splitlines() if not line.startswith("start"))
    assert first.startswith("c/step_90.pt")
    assert (
        second
        == "/dev/shm/x/views/0.2/step_20 20 /dev/shm/x/views/0.2 --load=/dev/shm/x/views/0.2/step_20 --at=20 --dir=/dev/shm/x/views/0.2"
    )
    assert third.startswith("c/step_90.pt")
    wait_for((inside.place / "begun.0.2").exists)
    assert "resume_from=/p/step_20\n" in (inside.place / "begun.0.2").read_text()
    wait_for((inside.place / "pick.0.2").exists)
    assert "use=/dev/shm/x/views/0.2/step_20" in (inside.place / "pick.0.2").read_text().splitlines()
