"""How a launch ended, and what each fault class gets by default. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, Evidence, FaultClass, Proof, Source

__all__ = [
    "CLASS_DEFAULTS",
    "UNSURE",
    "ClassDefault",
    "Ended",
    "clamp_confidence",
    "plain",
    "proofs",
    "recorded_end",
]

UNSURE = 0.5
"""Below this confidence a diagnosis is a guess: a bad machine outweighs it, and it never stops a run by
itself.
"""

PROOFS_MAX = 5
"""The most lines quoted as proof. The others are only counted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch ended, by Slurm's record and the exit record of batch.sh.

    `state` is Slurm's ("GONE" and "" = unknown). `by_us`: ftrun ended it after a suspicion. `nodes_down`:
    nodes of this attempt that Slurm calls down or not responding. `requeued`: Slurm put the job back into its
    queue. `unused`: the job had nodes that the script did not use, so what Slurm says of a node may concern
    one of those.
    """

    state: str
    reason: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    derived_exit_code: int = 0
    by_us: bool = False
    nodes_down: tuple[str, ...] = ()
    requeued: bool = False
    unused: bool = False

    @property
    def why(self) -> str:
        """Slurm's reason in lower case without separators; "" for none."""
        plain_words = self.reason.lower().replace("_", "").replace(" ", "")
        return "" if plain_words in {"none", "(null)"} else plain_words

    @property
    def failed(self) -> bool:
        """Whether the script left an exit code or a signal."""
        return bool(self.exit_code or self.exit_signal)

    @property
    def signal(self) -> int:
        """The signal that ended the script, 0 = none. A shell reports a child's as 128 + N."""
        if self.exit_signal:
            return self.exit_signal
        code = self.exit_code or 0
        return code - 128 if 128 < code <= 128 + 64 else 0


@dataclass(frozen=True, slots=True)
class ClassDefault:
    """What a fault class gets where no signature says otherwise."""

    retry: bool
    action: Action
    exclude: bool = False
    advice: str = ""


_AGAIN = ClassDefault(True, Action.RESUBMIT)
_STOP = ClassDefault(False, Action.STOP)
_ELSEWHERE = ClassDefault(True, Action.DRAIN, exclude=True)

CLASS_DEFAULTS: Mapping[FaultClass, ClassDefault] = {
    FaultClass.HARDWARE_GPU: _ELSEWHERE,
    FaultClass.HARDWARE_OTHER: _ELSEWHERE,
    FaultClass.NODE: _ELSEWHERE,
    FaultClass.NETWORK: _AGAIN,
    FaultClass.STORAGE: ClassDefault(True, Action.WAIT),
    FaultClass.SCHEDULER: ClassDefault(True, Action.WAIT),
    FaultClass.PREEMPTED: _AGAIN,
    FaultClass.TIMELIMIT: ClassDefault(
        True, Action.RESUBMIT, advice="save checkpoints well before the limit, or raise --time"
    ),
    FaultClass.HANG: _AGAIN,
    FaultClass.CHECKPOINT: _AGAIN,
    FaultClass.PORT_CONFLICT: _AGAIN,
    FaultClass.LIBRARY_BUG: _AGAIN,
    FaultClass.UNKNOWN: _AGAIN,
    FaultClass.OOM_GPU: _STOP,
    FaultClass.OOM_HOST: ClassDefault(
        False, Action.STOP, advice="ask for more memory (--mem) or use less of it"
    ),
    FaultClass.USER_CODE: _STOP,
    FaultClass.DATA: _STOP,
    FaultClass.CONFIG: _STOP,
    FaultClass.CANCELLED: _STOP,
    FaultClass.HEALTHY: ClassDefault(False, Action.NONE),
}


def plain(
    fault: FaultClass,
    title: str,
    rests_on: Sequence[str],
    *,
    confidence: float,
    names: tuple[str, ...] = (),
    lines: Sequence[Evidence] = (),
    sources: tuple[Source, ...] = (),
    advice: str = "",
) -> Diagnosis:
    """A diagnosis without a signature, by the defaults of its class."""
    default = CLASS_DEFAULTS[fault]
    return Diagnosis(
        fault=fault,
        retry=default.retry,
        action=default.action,
        nodes=names,
        exclude=default.exclude,
        confidence=confidence,
        signature="",
        title=title,
        because=proofs(lines),
        advice=advice or default.advice,
        blame=Blame.NODE if names else Blame.UNKNOWN,
        rests_on=tuple(rests_on),
        sources=sources,
    )


def recorded_end(
    fault: FaultClass,
    signature: str,
    title: str,
    rests_on: tuple[str, ...] = (),
    *,
    confidence: float = 0.9,
    retry: bool | None = None,
    action: Action | None = None,
    advice: str = "",
    sources: tuple[Source, ...] = (Source.SLURM,),
) -> Diagnosis:
    """A diagnosis that a record of Slurm's or ours makes, whatever the log says; it blames nobody. `retry` and
    `action` are those of the class where none are given.
    """
    default = CLASS_DEFAULTS[fault]
    return Diagnosis(
        fault=fault,
        retry=default.retry if retry is None else retry,
        action=action or default.action,
        nodes=(),
        exclude=False,
        confidence=confidence,
        signature=signature,
        title=title,
        advice=advice,
        rests_on=rests_on,
        sources=sources,
    )


def proofs(lines: Sequence[Evidence]) -> tuple[Proof, ...]:
    """The first of `lines` in written order, as proofs."""
    ordered = sorted(lines, key=lambda item: item.order)[:PROOFS_MAX]
    return tuple(Proof(item.file, item.line, item.text, item.signature) for item in ordered)


def clamp_confidence(confidence: float) -> float:
    """The confidence, kept between 0.05 and 0.99: nothing is certain, and nothing stated is worthless."""
    return round(min(0.99, max(0.05, confidence)), 2)
