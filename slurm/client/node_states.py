"""Parses Slurm's notations for a node's state. (pure)"""

from __future__ import annotations

# One character behind a node's state, with the flag that it stands for.
_STATE_MARKS = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "!": "power_down", "%": "powering_down",
    "$": "maint", "@": "reboot_requested", "^": "reboot_issued", "-": "planned",
}  # fmt: skip
# A node in such a state, with no flag but these, is in service.
_AT_WORK = frozenset({"idle", "mixed", "allocated"})
_PASSING = frozenset({"not_responding", "completing", "planned"})
# States that say "drain" or "fail" in one word (sinfo's short form), the flag and the base state that they hide.
_FLAGS_AS_STATES = {
    "drained": ("drain", "idle"), "draining": ("drain", "mixed"), "drain": ("drain", "idle"),
    "drng": ("drain", "mixed"), "fail": ("fail", "idle"), "failing": ("fail", "mixed"),
    "failg": ("fail", "mixed"),
}  # fmt: skip
# Slurm's own words for a flag, where the records use another.
_FLAG_WORDS = {"no_respond": "not_responding", "maintenance": "maint", "resv": "reserved"}


def parse_node_state(text: str) -> tuple[str, frozenset[str]]:
    """Base state and flags, lower case: `IDLE+DRAIN`, `down*`, `mixed+not_responding`, `draining@`."""
    flags: set[str] = set()
    words: list[str] = []
    for part in text.strip().lower().split("+"):
        word = part
        while word and word[-1] in _STATE_MARKS:
            flags.add(_STATE_MARKS[word[-1]])
            word = word[:-1]
        words.append(_FLAG_WORDS.get(word, word))
    base = words[0] or "unknown"
    if base in _FLAGS_AS_STATES:
        flag, base = _FLAGS_AS_STATES[base]
        flags.add(flag)
    flags.update(word for word in words[1:] if word)
    return base, frozenset(flags)


def has_outlived(state: str, flags: frozenset[str]) -> bool:
    """Whether a reason in such a state is stale: 24.11 keeps the reason of a drain after the resume."""
    return state in _AT_WORK and flags <= _PASSING
