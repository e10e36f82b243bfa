"""Looking at nodes from outside: the checks over SSH, as recheck and operator take them. (I/O)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftrun.supervisor.recheck import Report

__all__ = ["Look", "by_ssh"]

Look = Callable[[Sequence[str]], Mapping[str, Report]]
"""Names of nodes -> a report for each, in bounded time; a node that gave none has a report that says why."""


def by_ssh(tier: str, kind: str, ssh_config: str = "") -> Look:
    """A look by the checks of a tier, sent over SSH; `kind` is the occasion that the reports name.

    The look raises UserError where `ssh_config` cannot be read.
    """

    def look(nodes: Sequence[str]) -> Mapping[str, Report]:
        from ftrun.hooks import probe
        from ftrun.supervisor.errors import UserError

        try:
            answers = probe.checked(nodes, tier, {}, probe.Probes(ssh_config), kind=kind)
        except OSError as error:
            raise UserError(f"ssh-config: {error.filename}: {error.strerror}") from None
        return {
            node: Report(
                answer.state if answer.report is not None else answer.state.replace("answered", "speechless"),
                answer.report["findings"] if answer.report is not None else (),
                answer.why,
            )
            for node, answer in answers.items()
        }

    return look
