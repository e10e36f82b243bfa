"""What a log says of divergence, and which checkpoints that spoils."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checkpoints import diverged
from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.run import Attempt, Incident, Launch, LaunchEnd
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, FaultClass
from ftrun.supervisor.policy import decide
from ftrun.supervisor.policy.policy_input import ClusterView, PolicyInput, PolicyLimits
from ftrun.supervisor.signatures.catalog import load
from ftrun.supervisor.telemetry import divergence
from ftrun.supervisor.telemetry.divergence import DivergenceSign
from ftrun.supervisor.telemetry.log_watcher import LogWatcher, WatchReport
from ftrun.supervisor.telemetry.tail import LogPath

END_S = 10_000.0
TIMES: dict[str, Any] = {"now_s": END_S, "disk_s": END_S, "youngest_s": END_S}


def read(tmp_path: Path, text: str, pieces: int = 1) -> WatchReport:
    """A log as it was written, in so many pieces."""
    path = tmp_path / "log"
    path.write_text("")
    watcher = LogWatcher([LogPath(str(path))], catalog=load())
    size = max(1, -(-len(text) // pieces))
    try:
        for at in range(0, len(text), size):
            with path.open("a") as log:
                log.write(text[at : at + size])
            report = watcher.poll(END_S - 100)
        return report
    finally:
        watcher.close()


def sign(tmp_path: Path, text: str) -> DivergenceSign | None:
    whole = read(tmp_path, text)
    parts = read(tmp_path, text, 7)
    found = divergence.find_divergence(whole.evidence, whole.health)
    assert found == divergence.find_divergence(parts.evidence, parts.health)  # however it arrives
    return found


def steps(first: int, last: int, loss: str = "2.0", every: int = 1) -> str:
    return "".join(f"step {n}/9999 loss {loss}\n" for n in range(first, last + 1, every))


HEALTHY = [
    ("to the end", steps(1, 50)),
    ("a skipped step", steps(1, 9) + "step 10 loss: 2.0 grad_norm: inf\n" + steps(11, 20)),
    ("many of them", "".join(f"step {n} loss: {'nan' if n % 2 else 2.0}\n" for n in range(1, 81))),
    ("a loss scale", steps(1, 9) + "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"),
    ("a skipped step at the end", steps(1, 9) + "step 10 loss: 2.0 grad_norm: inf\n{'loss': 2.1, 'grad_norm': nan, 'epoch': 0.3}\n"),
    ("a loss scale that is found", "step 1 loss: 9.3 grad_norm: inf\nstep 2 loss: 9.2 grad_norm: inf\n"),
    ("a skipped batch", steps(1, 9) + "WARNING: non-finite loss: nan, batch is skipped\n"),
    ("no validation yet", "".join(f"step {n} train_loss: 2.0, val_loss: nan, best_loss=inf\n" for n in range(1, 9))),
    ("an empty validation at the end", steps(1, 9) + "{'eval_loss': nan, 'eval_runtime': 3.2}\nstep 9 validation loss: nan\n"),
    ("a term that is switched off", "".join(f"step {n} loss: 2.0 | aux_loss: nan | z-loss: inf\n" for n in range(1, 9))),
    ("a jump that came down", steps(1, 9) + "loss spike detected: 9.3 against a mean of 2.1\n" + steps(10, 12, "8.0") + steps(13, 30)),
]  # fmt: skip


@pytest.mark.parametrize("text", [row[1] for row in HEALTHY], ids=[row[0] for row in HEALTHY])
def test_what_training_took_back_is_no_sign(tmp_path: Path, text: str) -> None:
    """A line after which healthy ones came told of nothing that is still in the weights."""
    assert sign(tmp_path, text) is None


SICK = [
    # name, log, step of the sign, first step that is not trusted
    ("nan from 21 on", steps(1, 20) + steps(21, 200, "nan"), 21, 20),
    ("lines every ten steps", steps(10, 100, every=10) + steps(110, 400, "nan", 10), 110, 100),
    ("survived ones before", "".join(f"step {n} loss: 2.0 grad_norm: inf\nstep {n} loss: 2.0\n" for n in range(1, 40)) + steps(40, 90, "nan"), 40, 39),
    ("zero loss, no gradient", steps(1, 20) + "".join(f"{{'loss': 0.0, 'grad_norm': nan, 'step': {n}}}\n" for n in range(21, 60)), 21, 20),
    ("a mean that is none, a validation that is one", steps(1, 20) + "".join(f"step {n} train_loss: nan, val_loss: 2.0\n" for n in range(21, 60)), 21, 20),
    ("gradients only", steps(1, 20) + "".join(f"step {n} gradient norm: nan, loss scale: 1.0\n" for n in range(21, 60)), 21, 20),
    ("the trainer stops", steps(1, 33) + "Loss is nan, stopping training\n", 33, 33),
    ("first line of all", steps(21, 30, "nan"), 21, 15),
    ("a jump that stayed", steps(1, 40) + "[step 41] loss spike detected: 9.3 against a mean of 2.1\n" + steps(41, 60, "9.0"), 41, 31),
    ("a jump, then nan", steps(10, 400, every=10) + "loss spike detected: 9\n" + steps(410, 500, "9.0", 10) + steps(510, 600, "nan", 10), 400, 300),
]  # fmt: skip


@pytest.mark.parametrize(("text", "at", "first"), [row[1:] for row in SICK], ids=[row[0] for row in SICK])
def test_a_sign_spoils_what_is_not_older_than_health(tmp_path: Path, text: str, at: int, first: int) -> None:
    """The last healthy line is the bound, and for a jump, which is reported late, ten lines more; storms of lines hide nothing."""
    found = sign(tmp_path, text)
    assert found is not None
    spoilt = divergence.poison_of(found, name="1.0.1", resumed_step=15 if first == 15 else None, **TIMES)

    assert (at, first) == (found.step, spoilt.step)
    told = divergence.divergence_data(found, spoilt)
    assert (at, first) == (told["step"], told["before_step"])


def test_a_start_that_was_healthy_for_a_while_clears_what_it_began_with(tmp_path: Path) -> None:
    """The checkpoint gave finite losses: it is not what is wrong, however short that was."""
    found = sign(tmp_path, "step 20 loss 2.0\n" + steps(21, 40, "nan"))
    assert found is not None

    assert 20 == divergence.poison_of(found, name="x", resumed_step=15, **TIMES).step
    assert 21 == divergence.poison_of(found, name="x", resumed_step=20, **TIMES).step


def test_without_steps_times_decide(tmp_path: Path) -> None:
    """A log that counts nothing: what was written in the minutes before the sign is not trusted."""
    found = sign(tmp_path, "begin\nFloatingPointError: Loss became infinite or NaN\n")
    assert found is not None
    spoilt = divergence.poison_of(found, name="x", resumed_step=None, **TIMES)

    assert (None, END_S - 400, END_S) == (spoilt.step, spoilt.since_s, spoilt.until_s)
    assert diverged.why_diverged(7, END_S - 100, [spoilt])
    assert not diverged.why_diverged(7, END_S - 500, [spoilt])
    assert not diverged.why_diverged(7, END_S + 1, [spoilt])


def test_clocks_of_other_hosts_are_not_compared(tmp_path: Path) -> None:
    """The supervisor's clock may be hours off: ages are measured by it, and times are those of the file system."""
    found = sign(tmp_path, "begin\nFloatingPointError: Loss became infinite or NaN\n")
    assert found is not None
    spoilt = divergence.poison_of(
        found, name="x", resumed_step=None, now_s=END_S, disk_s=END_S + 7200, youngest_s=END_S + 7000
    )

    assert (END_S + 7200 - 400, END_S + 7000) == (spoilt.since_s, spoilt.until_s)


def test_what_is_written_anew_is_good_again() -> None:
    """A start that went back comes past the same steps: its checkpoints have the same names, and are younger."""
    spoilt = Divergence("1.0.1", 100, 0.0, END_S)

    assert diverged.why_diverged(100, END_S - 1, [spoilt])
    assert not diverged.why_diverged(99, END_S - 1, [spoilt])
    assert not diverged.why_diverged(100, END_S + 1, [spoilt])
    assert diverged.why_diverged(None, END_S - 1, [spoilt])


def test_a_job_is_told_of_divergences_in_lines() -> None:
    """What is written for batch.sh is read by the hook."""
    known = [Divergence("1.0.1", 100, None, 20.0), Divergence("1.0.2", None, 10.0, 30.0)]

    assert (*(one._replace(until_s=one.until_s + 1) for one in known),) == diverged.from_lines(
        diverged.to_lines(known)
    )


# ---------------------------------------------------------------------- what the policy makes of it


def case(*, older: str = "/c/step-80.pt", before: int | None = None, spent: int = 0) -> PolicyInput:
    """A trainer that stopped itself at step 100, which a signature calls hopeless."""
    attempt = Attempt(
        2, 0.0, job="8", nodes=("n1",), submission="done", launch=Launch(0, end=LaunchEnd(state="FAILED"))
    )
    incidents: tuple[Incident, ...] = ()
    if before is not None:
        incidents = (
            Incident("1.0", 1, 0, "user-code", "loss-not-finite-stop", "", (), ("n1",), before, None, None, 0.0, {}),
        )  # fmt: skip
    run = model_run.Run(
        "r", attempts=(attempt,), incidents=incidents, spent={"user-code": spent}, best_step=900
    )
    diagnosis = Diagnosis(
        FaultClass.USER_CODE, retry=False, action=Action.STOP, nodes=(), exclude=False, confidence=0.7,
        signature="loss-not-finite-stop", title="Training stopped", blame=Blame.JOB,
    )  # fmt: skip
    words = "the training diverged at step 100"
    return PolicyInput(
        run, attempt, diagnosis, ClusterView(), PolicyLimits(), 0.0, step=100, diverged=words, older=older
    )


def test_what_diverged_goes_back_once() -> None:
    """To a checkpoint from before the divergence, though the same words would end a run that has none."""
    decision = decide.decide(case()).decision

    assert ("resubmit", "user-code", False) == (decision.kind, decision.spends, decision.older_checkpoint)
    assert decision.reason.endswith("the training diverged at step 100, back to /c/step-80.pt")
    assert "stop" == decide.decide(case(older="")).decision.kind


def test_what_diverges_at_the_same_step_again_is_stopped() -> None:
    """That is in the data or the code, and no retry helps; at another step the budget of one try says so."""
    again = decide.decide(case(before=100)).decision
    assert ("stop", True) == (again.kind, "the same failure twice at step 100" in again.reason)

    assert "resubmit" == decide.decide(case(before=90)).decision.kind
    spent = decide.decide(case(before=90, spent=1)).decision
    assert ("stop", True) == (spent.kind, "1 of 1 retries for user-code used" in spent.reason)
