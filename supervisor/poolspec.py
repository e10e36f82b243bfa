"""The name of a pool of spares, as the setting `pool` says it. (pure)"""

from __future__ import annotations

from ftrun.slurm.records import dataclass
from ftrun.supervisor.settings_errors import SettingError

__all__ = ["Pool", "pool_of"]

_KINDS = ("reservation", "partition")


@dataclass(frozen=True, slots=True)
class Pool:
    """`kind` is reservation or partition."""

    kind: str
    name: str

    @property
    def option(self) -> str:
        """For sbatch."""
        return f"--{self.kind}={self.name}"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def pool_of(said: str) -> Pool | None:
    """What the setting `pool` means; None where it is empty. Raises SettingError."""
    if not said:
        return None
    kind, colon, name = said.partition(":")
    if not colon or kind not in _KINDS or not name or any(sign in name for sign in ", \t\n="):
        raise SettingError(f"pool: {said!r} wants reservation:NAME or partition:NAME")
    return Pool(kind, name)
